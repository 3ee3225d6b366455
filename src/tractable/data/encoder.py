"""A table of one's own, as arrays that a model takes; and a model's answers, in the table's terms."""

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.linalg import block_diag

from tractable.data.censored import middle
from tractable.data.columns import (
    Column,
    encode_column,
    fit_column,
    gap,
    kind_of,
    lacks,
    level_of,
    many_levels,
    spread_of_groups,
    standardised,
)
from tractable.data.files import Frame, distinct
from tractable.data.formula import NEW, Formula, Term
from tractable.data.response import response
from tractable.data.response import several as several_in
from tractable.data.targets import (
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
from tractable.tools.checkpoint import plain
from tractable.tools.errors import DataError
from tractable.tools.settings import is_number
from tractable.tools.tree import Numbers
from tractable.tools.words import listing, nearest

MISSING = ("raise", "drop", "impute")
PyTree = Any
T = TypeVar("T")
VERSION = 2

NOTHING = Target("", "none")


@dataclass(frozen=True)
class Encoder:
    """How rows become numbers and numbers rows: what ``fit_encoder`` or ``fit_numbers`` learnt.

        number      (value − mean) / sd
        boolean     0 or 1, and text such as yes and no; less its mean
        text        K − 1 columns for K levels, less their means: orthonormal contrasts, under which no level is the
                    reference (``columns.contrasts``); a level never seen is the mean of the others
        many levels of text, where they are pooled: the number of the level, whose effect is drawn from N(0, sd²); a
                    level never seen has an effect of that distribution
        date        its trend in days, and where rows go round them the time of year and of day (two harmonics each)
                    and the day of the week; a duration its days
        identifier  left out, with a warning
        missing     with missing="impute" a number is its median, True/False and text the most frequent value; where
                    training lacked values, a column beside says so, which for text is a level of its own; of a
                    formula, which names its columns, only text says so (``Formula.filled``)
        target      ``Target``

    Centred inputs make the intercept that of a mean row, and weights as little correlated as they can be.

    Attributes:
        columns: used ones, in the training table's order.
        target: what is explained.
        missing: "raise", "drop" or "impute".
        shape: of a row of an array, whose numbers the columns are; None of a table.
        weights: a column that says how often each row counts; "" of none.
        exposure: of counts, a column that rates are multiplied by; "" of none.
        formula: what makes the inputs, in place of columns, as they are and in the table's units, as the target then
            is; None of none.
    """

    columns: tuple[Column, ...]
    target: Target = NOTHING
    missing: str = "raise"
    shape: tuple[int, ...] | None = None
    weights: str = ""
    exposure: str = ""
    formula: Formula | None = None
    others: tuple[Target, ...] = ()

    @property
    def targets(self) -> tuple[Target, ...]:
        """All that is explained, in the order of y's columns."""
        return (self.target, *self.others)

    @property
    def explained(self) -> str:
        """Names of the targets, in a sentence."""
        return ", ".join(repr(aim.name) for aim in self.targets)

    @property
    def each(self) -> "list[Encoder]":
        """An encoder of each target by itself."""
        return [replace(self, target=aim, others=()) for aim in self.targets]

    @property
    def units(self) -> tuple[Any, Any]:
        """What y is multiplied by, and what is added then: numbers, or (K,) of several targets."""
        if not self.others:
            return self.target.sd, self.target.mean
        return np.array([aim.sd for aim in self.targets]), np.array([aim.mean for aim in self.targets])

    @property
    def features(self) -> list[str]:
        if self.formula is not None:
            return self.formula.features
        return [name for column in self.columns for name in column.features]

    @functools.cached_property
    def levels(self) -> list[Term]:
        """Pooled columns, as terms of a formula: "1|city", with its levels and where their effects lie among all."""
        found, start = [], 0
        for column in self.columns:
            if column.kind == "pooled":
                found.append(Term(f"1|{column.title}", column.title, (*column.levels, NEW), start))
                start += len(column.levels) + 1
        return found

    @functools.cached_property
    def effects(self) -> tuple[list[str], np.ndarray]:
        """What linear weights say in the table's units: names, and rows that weights (D,) are multiplied by, (e, D).

        In units of the target where it is a number of itself; else of η: log odds, or logarithms.
        """
        parts = [column.effects() for column in self.columns]
        rows = np.asarray(block_diag(*(rows for _, rows in parts)))
        return [name for names, _ in parts for name in names], rows * self.target.sd ** (self.target.family == "normal")

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @functools.cached_property
    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of each column, (d,)."""
        return np.array([c.mean for c in self.columns]), np.array([c.sd for c in self.columns])

    # Of columns that are all numbers.

    def standardise(self, values: np.ndarray) -> np.ndarray:
        """(value − mean) / sd of rows (n, d); NaN stays."""
        mean, sd = self.scale
        return (values - mean) / sd

    def restore(self, rows: np.ndarray) -> np.ndarray:
        """Standardised rows (n, d) in the file's units."""
        mean, sd = self.scale
        return rows * sd + mean

    def log_scales(self, rows: np.ndarray) -> np.ndarray:
        """log |∂ numbers of the file / ∂ standardised ones| of each row, (n,): its log density is so much lower."""
        return np.where(np.isnan(rows), 0, np.log(self.scale[1])).sum(1)

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts, for JSON; fields of columns that are as by default are left out."""
        usual = asdict(Column("", ""))
        columns = [{k: v for k, v in asdict(c).items() if v != usual[k]} for c in self.columns]
        formula = {} if self.formula is None else {"formula": self.formula.to_dict()}
        about = asdict(replace(self, formula=None))
        del about["formula"]
        if not self.others:
            del about["others"]
        return plain({"version": VERSION, **about, "columns": columns} | formula)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Encoder":
        """The encoder which ``to_dict`` described; a DataError of another version, or fields missing or unknown."""
        try:
            old = saved.get("version") == 1 and all(c["kind"] == "number" for c in saved["columns"])  # read alike
            if saved.get("version") != VERSION and not old:
                raise DataError(f"This encoder has version {saved.get('version')!r}; expected {VERSION}. Fit it anew.")
            columns = tuple(_typed(Column(**_tupled(column))) for column in saved["columns"])
            apart = ("version", "columns", "target", "others", "formula")
            fields = {name: value for name, value in saved.items() if name not in apart}
            formula = Formula.from_dict(saved["formula"]) if "formula" in saved else None
            target, *others = (_typed(Target(**_tupled(aim))) for aim in (saved["target"], *saved.get("others", ())))
            return replace(_typed(cls(columns, target, **_tupled(fields), formula=formula)), others=tuple(others))
        except DataError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(f"This is not a saved encoder, or it is damaged: {error}. Fit it anew.") from error


def _typed(made: T) -> T:
    """What was made of entries that may be anybody's; a TypeError of one that is of another kind than its default."""
    described: Any = made
    for field in fields(described):
        value, usual = getattr(described, field.name), "" if field.name in ("name", "kind", "family") else field.default
        parts = value if isinstance(value, tuple) else (value,)
        if usual is None or not isinstance(usual, float | str | tuple):  # is something of its own, or nothing
            good = all(part is None or isinstance(part, bool | int | float | str | Column | Formula) for part in parts)
        elif isinstance(usual, float):
            good = is_number(value)
        else:
            good = isinstance(value, type(usual)) and all(isinstance(part, bool | int | float | str) for part in parts)
        if not good and not isinstance(value, Target):
            raise TypeError(f"{field.name} is {value!r:.40}")
    return made


def _tupled(saved: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}


class Encoded(NamedTuple):
    x: np.ndarray  # (n, D) float64
    # (n,) float64, for classes int64, (n, 2) bounds where censored, (n, K) of several targets; None of no target
    y: np.ndarray | None
    weights: np.ndarray | None = None  # (n,) how often each row counts; None where the table does not say
    offset: np.ndarray | None = None  # (n,) of counts: log(level · exposure), a part of η that is known
    # of a formula: z (n, T) and group (n, T), as in ``Design``; of pooled columns: level (n, T)
    groups: dict[str, np.ndarray] | None = None

    @property
    def given(self) -> PyTree:
        """What a model of these rows sees beside y: x, or with an offset or groups all by name."""
        beside = ({} if self.offset is None else {"offset": self.offset}) | (self.groups or {})
        return {"x": self.x} | beside if beside else self.x


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
    pooled: bool = False,
) -> Encoder:
    """Learn from a training table how to turn tables into arrays.

    The target's family is told from its values (``targets.fit_target``). A column which is the same in every row, or
    only names the rows, is left out with a TractableWarning.

    Args:
        frame: the training table; every column that is not named below is an input.
        target: the column to explain, or several, of numbers (``targets.fit_targets``); with a formula "" are those
            that it names.
        missing: "raise" refuses rows with missing values, "drop" leaves them out, "impute" fills inputs in and leaves
            out rows without a target.
        family: a name of ``targets.FAMILIES``, in place of the one told from the values.
        exclude: columns that are no inputs.
        weights: a column of numbers ≥ 0, how often each row counts.
        exposure: of a target that is counts, a column of numbers > 0 that each row's rate is multiplied by.
        formula: such as "y ~ x*z + (1|school)", in place of all other columns (``formula.Formula``). Neither inputs nor
            the target are then scaled.
        censored: a column that says how each row's target is censored: none, right or left, or 0, 1 (or True) and −1,
            as in brms and bambi; y is then bounds, (n, 2) (``censored.censored``).
        event: or a column that says whether it was seen, 1 or True, or else is right-censored, as in lifelines.
        pooled: whether text of more than 100 levels is pooled (a model ``with_levels``) rather than the rarest made
            one; not with several classes or targets, and not where there is no other input.
        until: or a column of upper bounds, of which the target is the lower one; one of them may be missing.

    Raises:
        DataError: with the column, and where it helps the row, that cannot be used, and the remedy.

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
    frame = _named(frame)
    if formula and exclude:
        raise DataError(f"exclude={listing(exclude)} is not for a formula, which sees the columns that it names.")
    beyond = _censoring(censored, event, until)
    names = [target] * bool(target) if isinstance(target, str) else list(target)
    if formula:
        return _fit_formula(frame, formula, names, missing, family, weights, exposure, beyond)
    for name in names or [""]:
        if name not in frame:
            raise DataError(
                f"The target {name!r} is not a column of the table; got {listing(frame.columns)}."
                f"{nearest(name, frame.columns)}"
            )
    for named in (*exclude, *filter(None, (weights, exposure, beyond[1]))):
        if named not in frame or named in names:
            raise DataError(f"{named!r} is not a column beside the target; the table has {listing(frame.columns)}.")
    frame = frame.drop(columns=list(exclude))
    if len(frame.columns) == len(names):
        raise DataError(f"The table has no column but the target {listing(names)}; expected inputs beside it.")
    frame = _present(frame, _needed(list(frame.columns), (*names, beyond[1]), missing, beyond), missing)
    aim, *more = _aims(frame, names, beyond, family)
    target, others = aim.name, [
        name for name in frame.columns if name not in (*names, weights, exposure, beyond[1])
    ]  # fmt: skip
    if exposure:
        if aim.family not in COUNTS:
            raise DataError(f"exposure={exposure!r} is for counts; the target {target!r} is {aim.family}.")
        aim = replace(aim, level=float(frame[target].sum() / _positive(frame, exposure).sum()))
    pooled = pooled and aim.family != "categorical" and not more and not all(many_levels(frame[o]) for o in others)
    columns = tuple(column for name in others for column in fit_column(frame[name], missing == "impute", pooled))
    if columns and not any(column.features for column in columns):  # a model wants weights too
        columns = tuple(column for name in others for column in fit_column(frame[name], missing == "impute"))
    if not columns:
        raise DataError("Every input column is the same in all rows, or names them: there is nothing to learn from.")
    found = Encoder(columns, aim, missing, weights=weights, exposure=exposure, others=tuple(more))
    return _guessed(found, frame) if found.levels else found


def _guessed(encoder: Encoder, frame: Frame) -> Encoder:
    """With guesses of how levels' effects spread, from y or its logarithm less its least squares on x."""
    rows = encode(encoder, frame)
    y = middle(np.asarray(rows.y, np.float64))
    y = np.log(y) if encoder.target.family in POSITIVE else y
    x = np.column_stack([np.ones(len(y)), rows.x])
    left, columns, place = y - x @ np.linalg.lstsq(x, y, rcond=None)[0], [], 0
    for column in encoder.columns:
        if column.kind == "pooled":
            term = encoder.levels[place]
            group = rows.groups["level"][:, place] - term.start if rows.groups else np.zeros(len(y), int)
            ratio = spread_of_groups(left, np.ones(len(y)), group, len(term.groups))[1]
            column, place = replace(column, sd=math.sqrt(min(ratio, 1e6))), place + 1
        columns.append(column)
    return replace(encoder, columns=tuple(columns))


def _censoring(censored: str, event: str, until: str) -> tuple[str, str]:
    """(what a column says, its name) of rows of which bounds are known; ("", "") where all were seen."""
    given = [(what, name) for what, name in (("status", censored), ("event", event), ("upper", until)) if name]
    if len(given) > 1:
        raise DataError(f"censored=, event= and until= say the same thing; got {listing([n for _, n in given])}.")
    return given[0] if given else ("", "")


def _aims(frame: Frame, names: Sequence[str], beyond: tuple[str, str], family: str | None) -> tuple[Target, ...]:
    how, name = beyond
    if how and len(names) > 1:
        raise DataError(f"A target that is censored is explained by itself; got {listing(names)}.")
    if how:
        return (fit_censored(frame[names[0]], frame[name], how, family),)
    distinct(list(names), "What is to be explained")
    if len(names) > 1:
        return fit_targets([frame[each] for each in names], family)
    return (fit_target(frame[names[0]], family),)


def _fit_formula(
    frame: Frame, text: str, names: list[str], missing: str, family: str | None, weights: str, exposure: str,
    beyond: tuple[str, str],
) -> Encoder:  # fmt: skip
    whole, (text, several) = text, several_in(text)
    text, told = response(text)
    if told[0] and beyond[0] and told != beyond:
        raise DataError(f"The formula says that {told[1]!r} tells what is censored, and so does {beyond[1]!r}.")
    beyond = told if told[0] else beyond
    beside = [name for name in (*several[1:], weights, exposure, beyond[1]) if name]
    formula = Formula(text, frame, beside)
    aims = list(several or (formula.target,))
    if names not in ([], aims):
        raise DataError(f"The formula {whole!r} explains {listing(aims)}, not {listing(names)}; leave the target out.")
    if both := [name for name in aims if name in formula.names]:
        raise DataError(f"The formula {whole!r} explains {both[0]!r} by itself: leave it out on one side.")
    needed = _needed(list(formula.table.columns), (*aims, beyond[1]), missing, beyond)
    frame = _present(frame, needed, missing)
    if missing == "impute":
        frame = formula.filled(frame, frame)
    aim, *more = (replace(each, mean=0.0, sd=1.0, level=1.0) for each in _aims(frame, aims, beyond, family))
    if exposure and aim.family not in COUNTS:
        raise DataError(f"exposure={exposure!r} is for counts; the target {formula.target!r} is {aim.family}.")
    formula = Formula(text, frame, beside)
    return Encoder((), aim, missing, weights=weights, exposure=exposure, formula=formula, others=tuple(more))


def fit_numbers(
    values: np.ndarray, names: Sequence[str], shape: tuple[int, ...] | None = None, missing: str = "raise"
) -> tuple[Encoder, np.ndarray]:
    """Learn from training rows (n, d), NaN left out, how to standardise columns of numbers, none a target.

    Args:
        names: of the d columns.
        shape: of a row of an array, whose numbers the columns are; None of a table.
        missing: what was done about gaps.

    Returns:
        The encoder, and which columns differ between the rows, (d,). One that does not is left out of a table, and
        keeps its place in an array, with an sd of 1.

    >>> encoder, differs = fit_numbers(np.array([[1.0, 7.0], [3.0, 7.0]]), ["age", "year"])
    >>> encoder.names, differs.tolist(), encoder.standardise(np.array([[3.0]])).tolist()
    (['age'], [True, False], [[1.0]])
    """
    numbers = np.asarray(values, np.float64)
    columns = [standardised(name, column) for name, column in zip(names, numbers.T, strict=True)]
    differs = np.array([column is not None for column in columns])
    if shape is not None:
        same = (Column(name, "number", float(mean)) for name, mean in zip(names, numbers[0], strict=True))
        columns = [column or other for column, other in zip(columns, same, strict=True)]
    return Encoder(tuple(column for column in columns if column is not None), NOTHING, missing, shape), differs


def encode(encoder: Encoder, frame: Frame) -> Encoded:
    """X and, where the table holds the target, y; other columns are ignored.

    Rows with missing values are left out where the encoder says "drop" and the table holds the target, and rows without
    a target where it says "impute"; ``complete`` tells which stay. A table to predict for keeps every row: missing
    values are then filled in by an encoder that imputes, and refused by any other. A level never seen in training is
    encoded as none of the known ones, with a TractableWarning.

    Raises:
        DataError: columns missing or of another kind, missing values, a class never seen.
    """
    frame = _named(frame)
    wanted = _wanted(encoder, frame)
    explained = explains(encoder, frame)
    needed = _needed_of(encoder, wanted)
    frame = _present(frame, needed, encoder.missing if explained else "raise").reset_index(drop=True)
    if encoder.formula is not None and encoder.missing == "impute":
        frame = encoder.formula.filled(frame)
    design = None if encoder.formula is None else encoder.formula.rows(frame)
    columns = [encode_column(column, frame[column.name]) for column in encoder.columns]
    x = np.concatenate(columns, axis=1) if design is None else design.x
    y = _encode_targets(encoder, frame) if explained else None
    offset = None
    if design is not None:
        offset = design.offset
        if encoder.exposure:
            offset = np.log(_positive(frame, encoder.exposure)) + (0.0 if offset is None else offset)
    elif encoder.target.family in COUNTS:
        exposure = _positive(frame, encoder.exposure) if encoder.exposure else np.ones(len(frame))
        offset = np.log(encoder.target.level * exposure)
    counted = explained and encoder.weights in frame
    levels = [
        term.start + level_of(column, frame[column.name])
        for term, column in zip(encoder.levels, (c for c in encoder.columns if c.kind == "pooled"), strict=True)
    ]
    groups = {"z": design.z, "group": design.group} if design is not None and design.z.shape[1] else None
    groups = {"level": np.stack(levels, 1).astype(np.int32)} if levels else groups
    return Encoded(x, y, _positive(frame, encoder.weights, zero=True) if counted else None, offset, groups)


def complete(encoder: Encoder, frame: Frame) -> np.ndarray:
    """Which rows have a value in every column where ``encode`` needs one, (n,) of booleans."""
    frame = _named(frame)
    needed = _needed_of(encoder, _wanted(encoder, frame))
    return ~np.any([np.zeros(len(frame), bool), *(lacks(frame[name]) for name in needed)], axis=0)


def explains(encoder: Encoder, frame: Frame) -> bool:
    """Whether a table holds what is explained, all of it where it is several columns."""
    return all(aim.name in frame for aim in encoder.targets)


def unexplained(encoder: Encoder, frame: Frame) -> Frame:
    """The table without what is explained."""
    return frame.drop(columns=[aim.name for aim in encoder.targets], errors="ignore")


def decode(encoder: Encoder, y: Numbers) -> np.ndarray:
    """Encoded targets of any shape in the table's terms: numbers in its units, codes as class labels.

    Of several targets (..., K), one in each place of the last axis.
    """
    if encoder.others:
        unit, middle = encoder.units
        return np.asarray(np.asarray(y, np.float64) * unit + middle)
    return decode_target(encoder.target, y)


def decode_sd(encoder: Encoder, sd: Numbers) -> np.ndarray:
    """Standard deviations of a target that is a number, of any shape, in the table's units."""
    if encoder.target.classes:
        raise DataError(
            f"{encoder.target.name!r} is a set of classes: they have probabilities, not a standard deviation."
        )
    return np.asarray(np.asarray(sd, np.float64) * encoder.units[0])


def _named(frame: Frame) -> Frame:
    """The table with strings for column names, all different, and rows numbered from 0."""
    names = [str(name) for name in frame.columns]
    distinct(names, "The table")
    if not len(frame):
        raise DataError("The table holds no rows; expected at least one.")
    return frame.set_axis(names, axis=1).reset_index(drop=True)


def _wanted(encoder: Encoder, frame: Frame) -> list[str]:
    inputs = [column.name for column in encoder.columns] if encoder.formula is None else encoder.formula.names
    target, explained = encoder.target, explains(encoder, frame)
    beside = [target.beside] if target.beside and explained else []
    wanted = list(dict.fromkeys([*inputs, *filter(None, [encoder.exposure]), *beside]))
    absent = [name for name in wanted if name not in frame]
    if absent:
        raise DataError(
            f"The table lacks {listing(absent)}; expected the columns {listing(wanted)}, got {listing(frame.columns)}."
            f"{nearest(absent[0], frame.columns)}"
        )
    return wanted + [aim.name for aim in encoder.targets] * explained


def _positive(frame: Frame, name: str, zero: bool = False) -> np.ndarray:
    """A column of numbers above 0, or with ``zero`` at least 0, (n,)."""
    numbers = (
        frame[name].to_numpy(np.float64, na_value=np.nan) if kind_of(frame[name]) == "number" else np.array([-1.0])
    )
    good = np.isfinite(numbers) & ((numbers >= 0) if zero else (numbers > 0))
    if not good.all():
        raise DataError(f"Column {name!r} says how much a row counts: expected numbers {'≥' if zero else '>'} 0.")
    return numbers


def _needed(names: list[str], explained: tuple[str, ...], missing: str, beyond: tuple[str, str]) -> list[str]:
    """Columns in which a value may not be missing: of two bounds either may, as then there is none."""
    loose = explained if beyond[0] == "upper" else ()
    return [name for name in names if name not in loose and (name in explained or missing != "impute")]


def _needed_of(encoder: Encoder, names: list[str]) -> list[str]:
    aim = encoder.target
    explained = (*(each.name for each in encoder.targets), aim.beside)
    return _needed(names, explained, encoder.missing, (aim.censoring, aim.beside))


def _encode_targets(encoder: Encoder, frame: Frame) -> np.ndarray:
    target = encoder.target
    if encoder.others:
        return np.stack([encode_target(aim, frame[aim.name]) for aim in encoder.targets], 1)
    if target.censoring:
        return encode_censored(target, frame[target.name], frame[target.beside])
    return encode_target(target, frame[target.name])


def _present(frame: Frame, names: list[str], missing: str) -> Frame:
    """The rows with a value in every named column, or a sentence about the first that lacks one."""
    absent = {name: lacks(frame[name]) for name in names}
    gone = np.any([np.zeros(len(frame), bool), *absent.values()], axis=0)
    if not gone.any():
        return frame
    if missing == "raise":
        raise DataError(
            f"{gap(absent)} Fill them in, have inputs imputed (missing='impute' when fitting), or leave out such rows "
            "(missing='drop' when fitting) or the column."
        )
    if gone.all():
        worst = max(absent, key=lambda name: absent[name].sum())
        raise DataError(
            f"No row is left once those with missing values are left out; column {worst!r} lacks the most, "
            f"{absent[worst].sum()} of {len(frame)}. Leave that column out, or fill it in."
        )
    return frame.loc[~gone]
