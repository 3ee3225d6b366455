"""Encodes a table as the arrays of a model, and decodes the model's answers into the table's units and classes."""

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from scipy import sparse

from tractable.core.censored import middle
from tractable.core.errors import DataError
from tractable.core.sealed import plain
from tractable.core.settings import is_number
from tractable.core.tree import Numbers, PyTree
from tractable.core.view import Label, unique_labels
from tractable.core.words import listing, nearest, tell
from tractable.glm.families import PARAMETERS
from tractable.tables import columns as cols
from tractable.tables.faults import REMEDY, all_faults, describe_gaps
from tractable.tables.files import Frame, as_table, distinct
from tractable.tables.levels import NEW, Term
from tractable.tables.numerals import BARE, Form, check_numbers_in_text, plain_column, read_numbers
from tractable.tables.response import multiple_targets as several_in
from tractable.tables.response import response
from tractable.tables.targets import (
    COUNTS,
    POSITIVE,
    Target,
    decode_target,
    encode_censored,
    encode_target,
    fit_censored,
    fit_target,
    fit_targets,
)

if TYPE_CHECKING:
    from tractable.tables.formula import Formula

MISSING = ("raise", "drop", "impute")
T = TypeVar("T")
VERSION = 2  # of the format of saved encoders

NOTHING = Target("", "none")  # in place of a target, for an encoder of inputs only


@dataclass(frozen=True)
class Encoder:
    """The map from a table's rows to numbers and back, as ``fit_encoder`` or ``fit_numbers`` learnt it.

        number      (value − mean) / sd
        boolean     0 or 1 minus its mean; also text such as yes and no
        text        K − 1 columns for K levels, minus their means: orthonormal contrasts, so that no level is the
                    reference (``columns.contrasts``); a level that was not in training counts as the mean of the levels
        pooled      text of many levels: the index of the level. Effects of levels are N(0, sd²) with a learnt sd; so is
                    the effect of a level that was not in training. The effect of a missing level is 0
        date        its trend in days; the time of year and of day (two harmonics each) and the day of the week, each
                    only if the rows cover that cycle; for a duration, its days
        identifier  left out, with a warning
        missing     with missing="impute": the median of numbers, the most frequent value of True/False and text. If
                    values were missing in training, a further column marks such rows, or for text a further level. A
                    formula gets no further columns; it marks only text, by a further level (``Formula.filled``).
        target      as ``Target`` says

    With centred inputs, the intercept is the linear predictor η of a row of mean inputs, and is least correlated with
    the weights.

    Attributes:
        columns: the inputs, in the order of the training table.
        target: the column to explain.
        missing: "raise", "drop" or "impute".
        shape: the shape of a row of an array whose numbers are the columns; None for a table.
        weights: the column that says how often each row counts, or "".
        exposure: for counts, the column by which rates are multiplied, or "".
        formula: a formula that makes the inputs in place of ``columns``, or None. With a formula neither inputs nor
            target are scaled.
        others: the further targets of a model of several targets.
        rows: the number of training rows, each counted as often as its weight says; 0 if they were not counted.
        numerals: for each column whose numbers were text, such as "€1,234", four entries: its name and its
            ``numerals.Form``. New rows are read in this form.
    """

    columns: tuple[cols.Column, ...]
    target: Target = NOTHING
    missing: str = "raise"
    shape: tuple[int, ...] | None = None
    weights: str = ""
    exposure: str = ""
    formula: "Formula | None" = None
    others: tuple[Target, ...] = ()
    rows: float = 0.0
    numerals: tuple[str, ...] = ()

    @property
    def forms(self) -> dict[str, Form]:
        """How each column of numbers was written in training."""
        plain = {column.name: Form() for column in self.columns if column.kind == "number" and not column.part}
        return plain | {name: Form(*form) for name, *form in zip(*[iter(self.numerals)] * 4, strict=True)}

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets, in the order of y's columns."""
        return (self.target, *self.others)

    @property
    def explained(self) -> str:
        """The names of the targets, for use in a sentence."""
        return ", ".join(repr(aim.name) for aim in self.targets)

    @property
    def each(self) -> "list[Encoder]":
        """An encoder for each target by itself."""
        return [replace(self, target=aim, others=()) for aim in self.targets]

    @property
    def units(self) -> tuple[Any, Any]:
        """(scale, shift), so that y · scale + shift is in the table's units; numbers, or (K,) for several targets."""
        if not self.others:
            return self.target.sd, self.target.mean
        return np.array([aim.sd for aim in self.targets]), np.array([aim.mean for aim in self.targets])

    @functools.cached_property
    def features(self) -> list[str]:
        """The names of the D numbers that a row becomes; they are cached, as a page needs them for each parameter."""
        if self.formula is not None:
            return self.formula.features
        return [name for column in self.columns for name in column.features]

    @functools.cached_property
    def levels(self) -> list[Term]:
        """The pooled columns as terms such as "1|city", with their levels and the index of their first effect."""
        found, start = [], 0
        for column in self.columns:
            if column.kind == "pooled":
                found.append(Term(f"1|{column.title}", column.title, (*column.levels, NEW), start))
                start += len(column.levels) + 1
        return found

    @functools.cached_property
    def effects(self) -> tuple[list[Label], Any]:
        """The names of the effects of one more unit of η, and a sparse matrix (e, D) that gives them from weights."""
        parts = [column.effects() for column in self.columns]
        labels = unique_labels([label for labels, _ in parts for label in labels], PARAMETERS)
        return labels, sparse.block_diag([rows for _, rows in parts], "csr")

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @functools.cached_property
    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of each column, (d,)."""
        return np.array([c.mean for c in self.columns]), np.array([c.sd for c in self.columns])

    # The next three functions are for encoders whose columns are all numbers.

    def standardise(self, values: np.ndarray) -> np.ndarray:
        """(value − mean) / sd of rows (n, d); NaN stays NaN."""
        mean, sd = self.scale
        return (values - mean) / sd

    def restore(self, rows: np.ndarray) -> np.ndarray:
        """Standardised rows (n, d) in the file's units."""
        mean, sd = self.scale
        return rows * sd + mean

    def log_scales(self, rows: np.ndarray) -> np.ndarray:
        """log |∂ (file's numbers) / ∂ (standardised numbers)| of each row, (n,).

        A row's log density is lower by this number in the file's units.
        """
        return np.where(np.isnan(rows), 0, np.log(self.scale[1])).sum(1)

    def to_dict(self) -> dict[str, Any]:
        """The encoder as numbers, strings, lists and dicts, for JSON; default values of columns are left out."""
        usual = asdict(cols.Column("", ""))
        columns = [{k: v for k, v in asdict(c).items() if v != usual[k]} for c in self.columns]
        formula = {} if self.formula is None else {"formula": self.formula.to_dict()}
        about = asdict(replace(self, formula=None))
        del about["formula"]
        for name in ("others", "numerals"):
            if not about[name]:
                del about[name]
        return plain({"version": VERSION, **about, "columns": columns} | formula)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Encoder":
        """The encoder that ``to_dict`` wrote.

        Raises:
            DataError: it is of another version, or has missing or unknown fields.
        """
        try:
            if saved.get("version") != VERSION:
                raise DataError(f"This encoder has version {saved.get('version')!r}; expected {VERSION}. Fit it again.")
            columns = tuple(_check_types(cols.Column(**_with_tuples(column))) for column in saved["columns"])
            separate = ("version", "columns", "target", "others", "formula")
            fields = {name: value for name, value in saved.items() if name not in separate}
            formula = _formulas().from_dict(saved["formula"]) if "formula" in saved else None
            target, *others = (
                _check_types(Target(**_with_tuples(aim))) for aim in (saved["target"], *saved.get("others", ()))
            )
            encoder = _check_types(cls(columns, target, **_with_tuples(fields)))
            return replace(encoder, formula=formula, others=tuple(others))
        except DataError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(f"This is not a saved encoder, or it is damaged: {error}. Fit it again.") from error


def _formulas() -> "type[Formula]":
    """The class ``Formula``, which is imported only if a table has a formula, as its import is slow."""
    from tractable.tables.formula import Formula

    return Formula


def _check_types(instance: T) -> T:
    """``instance`` itself, after a check of its fields, because a saved file may come from anybody.

    Raises:
        TypeError: the type of a field is not that of its default value.
    """
    record: Any = instance
    for field in fields(record):
        value, usual = getattr(record, field.name), "" if field.name in ("name", "kind", "family") else field.default
        parts = value if isinstance(value, tuple) else (value,)
        if usual is None or not isinstance(usual, float | str | tuple):  # the default value says nothing about the type
            good = all(isinstance(part, bool | int | float | str | cols.Column | None) for part in parts)
        elif isinstance(usual, float):
            good = is_number(value)
        else:
            good = isinstance(value, type(usual)) and all(isinstance(part, bool | int | float | str) for part in parts)
        if not good and not isinstance(value, Target):
            raise TypeError(f"{field.name} is {value!r:.40}")
    return instance


def _with_tuples(saved: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}


class Encoded(NamedTuple):
    """A table's rows as arrays."""

    x: np.ndarray  # (n, D) float64
    # (n,) float64, or int64 for classes; (n, 2) bounds if censored; (n, K) for several targets; None without a target
    y: np.ndarray | None
    weights: np.ndarray | None = None  # (n,) how often each row counts; None if the table does not say
    offset: np.ndarray | None = None  # (n,) the known part of η; for counts log(mean of training · exposure)
    # With a formula: z (n, T) and group (n, T), as in ``Design``. With pooled columns: level (n, T), as group.
    groups: dict[str, np.ndarray] | None = None

    @property
    def given(self) -> PyTree:
        """The model's inputs: x alone or, if there are an offset or groups, a dict of all of these."""
        others = ({} if self.offset is None else {"offset": self.offset}) | (self.groups or {})
        return {"x": self.x} | others if others else self.x


def fit_encoder(
    frame: Frame,
    target: str | Sequence[str],
    missing: str = "raise",
    family: str | None = None,
    *,
    exclude: Sequence[str] = (),
    weights: str = "",
    exposure: str = "",
    formula: str = "",
    censored: str = "",
    event: str = "",
    until: str = "",
    pool: Sequence[str] | None = (),
    marks: Form = BARE,
) -> Encoder:
    """Learn from a training table how to encode tables as arrays.

    The target's family is guessed from its values (``targets.fit_target``). A column that is the same in every row, or
    that only identifies the rows, is left out with a TractableWarning.

    Args:
        frame: the training table; every column that is not named below is an input.
        target: the column to explain, or several columns of numbers (``targets.fit_targets``); "" for those that the
            formula names.
        missing: "raise" raises an error for rows with missing values, "drop" leaves them out, and "impute" imputes
            inputs and leaves out rows without a target.
        family: a name of ``targets.FAMILIES``, in place of the guess.
        exclude: columns that are not inputs.
        weights: a column of numbers ≥ 0, how often each row counts.
        exposure: for a target of counts, a column of numbers > 0 by which each row's rate is multiplied.
        formula: a formula such as "y ~ x*z + (1|school)", which names the inputs (``formula.Formula``). Inputs and
            target are then not scaled.
        censored: a column that says how each row's target is censored: none, right or left, or 0, 1 (or True) and −1,
            as in brms and bambi; y then holds bounds, (n, 2) (``censored.censored``).
        event: instead of ``censored``, a column that is 1 or True if the event was observed; if it was not, the row is
            right-censored, as in lifelines.
        until: instead of ``censored``, a column of upper bounds, while the target holds the lower bounds; either bound
            may be missing.
        pool: the columns whose levels have effects with a common sd, which is learnt (a model ``with_levels``); their
            values may be text or whole numbers. None chooses text of more than 100 levels, if the target is one column
            without several classes, and there are other inputs. Of text that is not pooled and has more than 100
            levels, the rarest ones are merged.
        marks: the separator of thousands and the decimal mark of numbers in text, where they are known.

    Raises:
        DataError: a column (or row) cannot be used; the message names it and the remedy.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"height": [1.0, 3.0], "colour": ["red", "blue"], "ripe": ["no", "yes"]})
    >>> encoder = fit_encoder(table, "ripe")
    >>> encoder.features, encoder.target.classes
    (['height', 'colour [1]'], ('no', 'yes'))
    >>> encode(encoder, table).x.round(3).tolist()
    [[-1.0, -0.707], [1.0, 0.707]]
    """
    if missing not in MISSING:
        raise DataError(f"missing is 'raise', 'drop' or 'impute'; got {missing!r}.")
    if formula and exclude:
        raise DataError(f"exclude={listing(exclude)} is not for a formula, which uses only the columns that it names.")
    if formula and pool:
        raise DataError(f"pool={listing(pool)} is not for a formula; write a term (1 | {next(iter(pool))}) in it.")
    censor = _censoring(censored, event, until)
    special = [name for name in (weights, exposure, censor[1]) if name]
    frame, numerals = with_numbers(frame, exclude, formula, special, marks)
    names = [target] * bool(target) if isinstance(target, str) else list(target)
    if formula:
        found = _fit_formula(frame, formula, names, missing, family, weights, exposure, censor)
        return replace(found, numerals=numerals)
    used = [name for name in frame.columns if name not in exclude or name in names]
    needed = _complete_columns(used, (*names, censor[1]), missing, censor)
    frame = frame if missing == "raise" else _present(frame, needed, missing)
    inputs, options = [name for name in used if name not in (*names, *special)], [*exclude, *special, *(pool or ())]
    checks: dict[str, Any] = {name: functools.partial(_fit_input, pool or ()) for name in inputs}
    checks |= {name: lambda values: fit_target(values, family) for name in names if not censor[0]}
    checks |= {each: lambda values: _positive(values.to_frame(), values.name, True) for each in (weights, exposure)}
    with all_faults(frame, needed, checks):
        absent = [name for name in (*(names or [""]), *options) if name not in frame]
        twice = [name for name in pool or () if name in (*exclude, *special)]
        if wrong := absent or [name for name in options if name in names]:
            near = "".join(nearest(name, frame.columns) for name in absent)
            raise DataError(
                f"{listing(wrong)} is not a column of the table{' other than the target' * (not absent)}; got "
                f"{listing(frame.columns)}.{near}"
            )
        if twice:
            raise DataError(f"pool={listing(twice)} expects inputs; these columns are excluded or have another role.")
        if len(used) == len(names):
            raise DataError(f"The table has no column except the target {listing(names)}; expected inputs too.")
        frame = _present(pd.DataFrame(frame[used]), needed, missing)
        aims = _aims(frame, names, censor, family)
        draft = Encoder((), aims[0], missing, weights=weights, exposure=exposure, others=aims[1:], numerals=numerals)
        return _with_inputs(draft, frame, inputs, pool)


def _fit_input(pool: Sequence[str], values: cols.Values) -> list[cols.Column]:
    """``columns.fit_column`` of an input, which is pooled if ``pool`` names it."""
    pooled = values.name in pool
    return cols.fit_column(cols.as_levels(values) if pooled else cols.of_groups(values), True, pooled)


def with_numbers(
    frame: Frame, exclude: Sequence[str], formula: str, special: Sequence[str], marks: Form = BARE
) -> tuple[Frame, tuple[str, ...]]:
    """The table with text read as numbers in the columns that are used, where that is certain; and ``numerals``.

    Used are all columns but those to exclude; with a formula, those that it names and the ``special`` ones.
    """
    frame = _normalise_frame(frame)
    named = [*special, *(name for name in frame.columns if not formula or name in formula)]
    used = [name for name in frame.columns if name in named and name not in exclude]
    frame, forms = read_numbers(frame, used, marks=marks)
    return frame, tuple(part for name, form in forms.items() for part in (name, *form))


def _with_inputs(draft: Encoder, frame: Frame, others: Sequence[str], pool: Sequence[str] | None) -> Encoder:
    """An encoder of targets with the columns of the inputs ``others`` too, learnt from the training table."""
    aim, more, names = draft.target, draft.others, [aim.name for aim in draft.targets]
    if exposure := draft.exposure:
        if aim.family not in COUNTS:
            raise DataError(f"exposure={exposure!r} is for counts; the target {aim.name!r} is {aim.family}.")
        aim = replace(aim, level=float(frame[aim.name].sum() / _positive(frame, exposure).sum()))
    for name, target_name in ((name, target_name) for name in others for target_name in names):
        if cols.tells(frame[name], frame[target_name]):
            tell(
                f"Column {name!r} determines the target {target_name!r} wherever both are known. If it is the target "
                f"under another name, and will not be known where {target_name!r} is to be predicted, leave it out: "
                f"exclude {name}."
            )
    frame, impute = frame.assign(**{name: cols.of_groups(frame[name]) for name in others}), draft.missing == "impute"
    single = aim.family != "categorical" and not more
    if pool and not single:
        raise DataError(
            f"pool={listing(pool)} expects one target of numbers or two classes; got {draft.explained}"
            f"{' of several classes' * (not more)}. Leave pool= out, or give a formula with groups (1 | {pool[0]})."
        )
    chosen = [name for name in others if single and cols.many_levels(frame[name])] if pool is None else pool
    frame = frame.assign(**{name: cols.as_levels(frame[name]) for name in pool or ()})
    columns = tuple(column for name in others for column in cols.fit_column(frame[name], impute, name in chosen))
    if columns and not any(column.features for column in columns):  # a model needs a weight
        if pool:
            raise DataError(
                f"pool={listing(pool)} leaves no other input; expected one. Or give a formula: "
                f"{names[0]} ~ {' + '.join(f'(1 | {name})' for name in pool)}."
            )
        columns = tuple(column for name in others for column in cols.fit_column(frame[name], impute))
    for column in columns if pool is None else ():
        if column.kind == "pooled":
            tell(
                f"Column {column.name!r} has {len(column.levels):,} distinct values: each has an effect of its own, "
                "and the effects are shrunk towards 0 by a common sd, which is learnt, as with "
                f"(1|{column.name}) in a formula."
            )
    if not columns:
        raise DataError("Every input column is constant or identifies the rows: there is nothing to learn from.")
    rows = float(_positive(frame, draft.weights, zero=True).sum()) if draft.weights else float(len(frame))
    found = replace(draft, columns=columns, target=aim, others=tuple(more), rows=rows)
    return _guess_sds(found, frame) if found.levels else found


def _guess_sds(encoder: Encoder, frame: Frame) -> Encoder:
    """The encoder with first guesses of the sds of pooled effects.

    They come from the residuals of a least-squares fit of y, or of log y for positive families, on x.
    """
    rows = encode(encoder, frame)
    y = middle(np.asarray(rows.y, np.float64))
    y = np.log(y) if encoder.target.family in POSITIVE else y
    x = np.column_stack([np.ones(len(y)), rows.x])
    left, columns, place = y - x @ np.linalg.lstsq(x, y, rcond=None)[0], [], 0
    for column in encoder.columns:
        if column.kind == "pooled":
            term = encoder.levels[place]
            group = rows.groups["level"][:, place] - term.start if rows.groups else np.zeros(len(y), int)
            ratio = cols.spread_of_groups(left, np.ones(len(y)), group, len(term.groups))[1]
            column, place = replace(column, sd=math.sqrt(min(ratio, 1e6))), place + 1
        columns.append(column)
    return replace(encoder, columns=tuple(columns))


def _censoring(censored: str, event: str, until: str) -> tuple[str, str]:
    """("status", "event" or "upper", name of its column); ("", "") if no row is censored."""
    given = [(what, name) for what, name in (("status", censored), ("event", event), ("upper", until)) if name]
    if len(given) > 1:
        raise DataError(f"Give only one of censored=, event= and until=; got {listing([n for _, n in given])}.")
    return given[0] if given else ("", "")


def _aims(frame: Frame, names: Sequence[str], censor: tuple[str, str], family: str | None) -> tuple[Target, ...]:
    how, name = censor
    if how and len(names) > 1:
        raise DataError(f"A censored target must be the only target; got {listing(names)}.")
    if how:
        return (fit_censored(frame[names[0]], frame[name], how, family),)
    distinct(list(names), "The list of targets")
    if len(names) > 1:
        return fit_targets([frame[each] for each in names], family)
    return (fit_target(frame[names[0]], family),)


def _fit_formula(
    frame: Frame, text: str, names: list[str], missing: str, family: str | None, weights: str, exposure: str,
    censor: tuple[str, str],
) -> Encoder:  # fmt: skip
    whole, (text, multiple_targets) = text, several_in(text)
    text, censored_by = response(text)
    if censored_by[0] and censor[0] and censored_by != censor:
        raise DataError(f"The formula names {censored_by[1]!r} for censoring; leave out the option for {censor[1]!r}.")
    censor = censored_by if censored_by[0] else censor
    other_columns = [name for name in (*multiple_targets[1:], weights, exposure, censor[1]) if name]
    formula = _formulas()(text, frame, other_columns)
    aims = list(multiple_targets or (formula.target,))
    if names not in ([], aims):
        raise DataError(f"The formula {whole!r} explains {listing(aims)}, not {listing(names)}; leave the target out.")
    if both := [name for name in aims if name in formula.names]:
        raise DataError(f"The formula {whole!r} explains {both[0]!r} by itself: leave it out on one side.")
    needed = _complete_columns(list(formula.table.columns), (*aims, censor[1]), missing, censor)
    frame = frame if missing == "raise" else _present(frame, needed, missing)
    checks: dict[str, Any] = {name: _check_input for name in formula.names if name not in formula.groups}
    with all_faults(frame, needed, checks | {n: lambda v: fit_target(v, family) for n in aims if not censor[0]}):
        frame = _present(frame, needed, missing)
        for name in checks:
            _check_input(frame[name][~cols.lacks(frame[name])])
        targets = _aims(frame, aims, censor, family)
    if missing == "impute":
        frame = formula.filled(frame, frame)
    aim, *more = (replace(each, mean=0.0, sd=1.0, level=1.0) for each in targets)
    if exposure and aim.family not in COUNTS:
        raise DataError(f"exposure={exposure!r} is for counts; the target {formula.target!r} is {aim.family}.")
    formula = _formulas()(text, frame, other_columns)
    return Encoder((), aim, missing, weights=weights, exposure=exposure, formula=formula, others=tuple(more))


def _check_input(values: cols.Values) -> None:
    """Raise a DataError if an input of a formula is text that seems to hold numbers."""
    if len(values) and cols.kind_of(values) == "text":
        check_numbers_in_text(values)


def fit_numbers(
    values: np.ndarray, names: Sequence[str], shape: tuple[int, ...] | None = None, missing: str = "raise"
) -> tuple[Encoder, np.ndarray]:
    """Learn from training rows (n, d) how to standardise columns of numbers, without a target; NaN is ignored.

    Args:
        values: (n, d) the training rows.
        names: the names of the d columns.
        shape: the shape of a row of an array whose numbers are the columns; None for a table.
        missing: the encoder's ``missing``.

    Returns:
        The encoder, and whether each column varies between the rows, (d,). A constant column of a table is left out; a
        constant column of an array stays, with an sd of 1.

    >>> encoder, differs = fit_numbers(np.array([[1.0, 7.0], [3.0, 7.0]]), ["age", "year"])
    >>> encoder.names, differs.tolist(), encoder.standardise(np.array([[3.0]])).tolist()
    (['age'], [True, False], [[1.0]])
    """
    numbers = np.asarray(values, np.float64)
    columns = [cols.standardise(name, column) for name, column in zip(names, numbers.T, strict=True)]
    differs = np.array([column is not None for column in columns])
    if shape is not None:
        same = (cols.Column(name, "number", float(mean)) for name, mean in zip(names, numbers[0], strict=True))
        columns = [column or other for column, other in zip(columns, same, strict=True)]
    return Encoder(tuple(column for column in columns if column is not None), NOTHING, missing, shape), differs


def encode(encoder: Encoder, frame: Frame) -> Encoded:
    """Encode a table: X and, if the table holds the target, y; other columns are ignored.

    If the table holds the target, rows with missing values are left out under "drop", and rows without a target under
    "impute". If it lacks the target, every row stays: missing values are imputed under "impute", and are an error
    otherwise, except that a missing group has the effect 0. A level that was not in training is encoded as none of the
    known levels, with a TractableWarning.

    Raises:
        DataError: columns are missing or of another kind, values are missing, or a class was not in training.
    """
    frame, forms, explained = _normalise_frame(frame), encoder.forms, explains(encoder, frame)
    frame = read_numbers(frame, [name for name in forms if name in frame], forms)[0]
    checks: dict[str, Any] = {column.name: functools.partial(cols.encode_column, column) for column in encoder.columns}
    learnt: Any = encoder.formula.table[encoder.formula.names] if encoder.formula is not None else {}
    for name in (name for name in learnt if learnt[name].dtype.kind in "iuf"):
        checks[name] = functools.partial(cols.encode_column, cols.Column(name, "number"))
    if explained and not encoder.target.censoring:
        checks |= {aim.name: functools.partial(encode_target, aim) for aim in encoder.targets}
    how = encoder.missing if explained else "raise"
    needed = [name for name in _needed_of(encoder, frame) if name in frame]
    with all_faults(frame if how == "raise" else _present(frame, needed, how), needed, checks):
        _refuse_absent(encoder, frame)
        frame = _present(frame, needed, how).reset_index(drop=True)
        columns = [cols.encode_column(column, frame[column.name]) for column in encoder.columns]
        for name in checks.keys() & set(learnt):
            checks[name](frame[name][~cols.lacks(frame[name])])
        y = _encode_targets(encoder, frame) if explained else None
    if encoder.formula is not None and encoder.missing == "impute":
        frame = encoder.formula.filled(frame)
    design = None if encoder.formula is None else encoder.formula.rows(frame)
    x = np.concatenate(columns, axis=1) if design is None else design.x
    offset = None
    if design is not None:
        offset = design.offset
        if encoder.exposure:
            offset = np.log(_positive(frame, encoder.exposure)) + (0.0 if offset is None else offset)
    elif encoder.target.family in COUNTS:
        exposure = _positive(frame, encoder.exposure) if encoder.exposure else np.ones(len(frame))
        offset = np.log(encoder.target.level * exposure)
    counted = explained and encoder.weights in frame
    levels, size = [], sum(len(term.groups) for term in encoder.levels)
    for term, column in zip(encoder.levels, (c for c in encoder.columns if c.kind == "pooled"), strict=True):
        code = cols.level_of(column, frame[column.name])
        levels.append(np.where(code < 0, size, term.start + code))  # beyond all effects: ``with_levels`` takes 0
    groups = {"z": design.z, "group": design.group} if design is not None and design.z.shape[1] else None
    groups = {"level": np.stack(levels, 1).astype(np.int32)} if levels else groups
    return Encoded(x, y, _positive(frame, encoder.weights, zero=True) if counted else None, offset, groups)


def explains(encoder: Encoder, frame: Frame) -> bool:
    """Whether a table holds every target."""
    return all(aim.name in frame for aim in encoder.targets)


def drop_targets(encoder: Encoder, frame: Frame) -> Frame:
    """The table without the targets."""
    return frame.drop(columns=[aim.name for aim in encoder.targets], errors="ignore")


def decode(encoder: Encoder, y: Numbers) -> np.ndarray:
    """Encoded targets of any shape, in the table's units or as its class labels.

    Several targets are (..., K), with one target at each index of the last axis.
    """
    if encoder.others:
        unit, middle = encoder.units
        return np.asarray(np.asarray(y, np.float64) * unit + middle)
    return decode_target(encoder.target, y)


def decode_sd(encoder: Encoder, sd: Numbers) -> np.ndarray:
    """Standard deviations of a numeric target, of any shape, in the table's units."""
    if encoder.target.classes:
        raise DataError(f"{encoder.target.name!r} has classes, which have probabilities and not a standard deviation.")
    return np.asarray(np.asarray(sd, np.float64) * encoder.units[0])


def _normalise_frame(frame: Frame) -> Frame:
    """The table in pandas, with column names as strings, which must differ, and rows numbered from 0.

    A column without a name is called by its place, such as "Unnamed: 3", as pandas calls it.
    """
    frame = as_table(frame)
    names = [str(name) or f"Unnamed: {i}" for i, name in enumerate(frame.columns)]
    distinct(names, "The table")
    if not len(frame):
        raise DataError("The table holds no rows; expected at least one.")
    frame = frame.set_axis(names, axis=1).reset_index(drop=True)
    return frame.assign(**{name: plain_column(frame[name]) for name in names})


def _columns_to_read(encoder: Encoder, frame: Frame) -> list[str]:
    """The columns that ``encode`` reads."""
    inputs = [column.name for column in encoder.columns] if encoder.formula is None else encoder.formula.names
    target, explained = encoder.target, explains(encoder, frame)
    bound = [target.bound_column] if target.bound_column and explained else []
    targets = [aim.name for aim in encoder.targets] * explained
    return list(dict.fromkeys([*inputs, *filter(None, [encoder.exposure]), *bound, *targets]))


def _refuse_absent(encoder: Encoder, frame: Frame) -> None:
    """Raise a DataError if the table lacks a column that ``encode`` reads."""
    wanted = _columns_to_read(encoder, frame)
    if absent := [name for name in wanted if name not in frame]:
        raise DataError(
            f"The table lacks {listing(absent)}; expected the columns {listing(wanted)}, got {listing(frame.columns)}."
            f"{nearest(absent[0], frame.columns)}"
        )


def _positive(frame: Frame, name: str, zero: bool = False) -> np.ndarray:
    """A column of numbers > 0, or ≥ 0 if ``zero``, (n,)."""
    numbers = (
        frame[name].to_numpy(np.float64, na_value=np.nan) if cols.kind_of(frame[name]) == "number" else np.array([-1.0])
    )
    good = np.isfinite(numbers) & ((numbers >= 0) if zero else (numbers > 0))
    if not good.all():
        raise DataError(f"Column {name!r} must hold numbers {'≥ 0, as weights' if zero else '> 0, as exposures'}.")
    return numbers


def _complete_columns(names: list[str], explained: tuple[str, ...], missing: str, censor: tuple[str, str]) -> list[str]:
    """The columns in which no value may be missing.

    If the target has two bounds, either may be missing; the row then has no such bound.
    """
    loose = explained if censor[0] == "upper" else ()
    return [name for name in names if name not in loose and (name in explained or missing != "impute")]


def _needed_of(encoder: Encoder, frame: Frame) -> list[str]:
    """The columns that ``encode`` reads and in which no value may be missing; rows to predict may lack a group."""
    aim, names = encoder.target, _columns_to_read(encoder, frame)
    if not explains(encoder, frame):
        pooled = {column.name for column in encoder.columns if column.kind == "pooled"}
        groups = pooled if encoder.formula is None else encoder.formula.groups
        names = [name for name in names if name not in groups]
    explained = (*(each.name for each in encoder.targets), aim.bound_column)
    return _complete_columns(names, explained, encoder.missing, (aim.censoring, aim.bound_column))


def _encode_targets(encoder: Encoder, frame: Frame) -> np.ndarray:
    target = encoder.target
    if encoder.others:
        return np.stack([encode_target(aim, frame[aim.name]) for aim in encoder.targets], 1)
    if target.censoring:
        return encode_censored(target, frame[target.name], frame[target.bound_column])
    return encode_target(target, frame[target.name])


def _present(frame: Frame, names: list[str], missing: str) -> Frame:
    """The rows that have a value in every named column.

    Raises:
        DataError: a row lacks a value under missing="raise", or no row is left.
    """
    absent = {name: cols.lacks(frame[name]) for name in names}
    gone = np.any([np.zeros(len(frame), bool), *absent.values()], axis=0)
    if not gone.any():
        return frame
    if missing == "raise":
        name = next(name for name in names if absent[name].any())
        raise DataError(f"{describe_gaps(frame[name], absent[name])} {REMEDY}")
    if gone.all():
        worst = max(absent, key=lambda name: absent[name].sum())
        raise DataError(
            f"No row is left when rows with missing values are left out; column {worst!r} lacks the most values, "
            f"{absent[worst].sum()} of {len(frame)}. Leave that column out, or fill it in."
        )
    return frame.loc[~gone]
