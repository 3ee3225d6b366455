"""A table of one's own, as arrays that a model takes; and a model's answers, in the table's terms."""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from tractable.data.columns import (
    Column,
    Values,
    check_numbers_in_text,
    encode_column,
    fit_column,
    gap,
    kind_of,
    lacks,
    moments,
    standardised,
    text_of,
)
from tractable.data.files import Frame, distinct
from tractable.tools.checkpoint import plain
from tractable.tools.errors import DataError
from tractable.tools.tree import Numbers
from tractable.tools.words import listing

MOST_CLASSES = 100  # of a target
MISSING = ("raise", "drop", "impute")
FEW = 10  # a whole-numbered target with at most so many values is a set of classes
VERSION = 1


@dataclass(frozen=True)
class Target:
    """How the target becomes y.

    Attributes:
        name: of the table's column.
        family: "normal", "bernoulli" or "categorical"; "none" where nothing is explained.
        mean, sd: of a normal target in training; 0 and 1 otherwise.
        classes: labels in the order of their codes; empty for a normal target.
    """

    name: str
    family: str
    mean: float = 0.0
    sd: float = 1.0
    classes: tuple[bool | int | float | str, ...] = ()


NOTHING = Target("", "none")


@dataclass(frozen=True)
class Encoder:
    """How rows become numbers and numbers rows: what ``fit_encoder`` or ``fit_numbers`` learnt.

        number      (value − mean) / sd
        boolean     0 or 1
        text        one 0/1 column a level, every level; a level never seen is all zeros
        missing     with missing="impute" a number is its median, True/False and text the most frequent value; where
                    training lacked values, a 0/1 column beside says so, which for text is a level of its own
        target      "normal": standardised; "bernoulli", "categorical": 0..C−1 in sorted order

    Attributes:
        columns: used ones, in the training table's order.
        target: what is explained.
        missing: "raise", "drop" or "impute".
        shape: of a row of an array, whose numbers the columns are; None of a table.
    """

    columns: tuple[Column, ...]
    target: Target = NOTHING
    missing: str = "raise"
    shape: tuple[int, ...] | None = None

    @property
    def features(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

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
        return plain({"version": VERSION, **asdict(self), "columns": columns})

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Encoder":
        """The encoder which ``to_dict`` described; a DataError of another version, or fields missing or unknown."""
        if saved.get("version") != VERSION:
            raise DataError(f"This encoder has version {saved.get('version')!r}; expected {VERSION}. Fit it anew.")
        try:
            columns = tuple(Column(**{**c, "levels": tuple(c.get("levels", ()))}) for c in saved["columns"])
            target = Target(**{**saved["target"], "classes": tuple(saved["target"]["classes"])})
            shape = saved.get("shape")
            return cls(columns, target, saved["missing"], None if shape is None else tuple(shape))
        except (KeyError, TypeError) as error:
            raise DataError(f"This is not a saved encoder, or it is damaged: {error}. Fit it anew.") from error


class Encoded(NamedTuple):
    x: np.ndarray  # (n, D) float64
    y: np.ndarray | None  # (n,) float64 or, for classes, int64; None where the table has no target


def fit_encoder(frame: Frame, target: str, missing: str = "raise", family: str | None = None) -> Encoder:
    """Learn from a training table how to turn tables into arrays.

    The target is "normal" where it is a number, unless it has two distinct values ("bernoulli"), or at most ten which
    are all whole ("categorical"). True/False and text are classes. A column which is the same in every row is left out
    with a TractableWarning.

    Args:
        frame: the training table; every column but the target is an input.
        target: the column to explain.
        missing: "raise" refuses rows with missing values, "drop" leaves them out, "impute" fills inputs in and leaves
            out rows without a target.
        family: overrules what is said above about the target.

    Raises:
        DataError: with the column, and where it helps the row, that cannot be used, and the remedy.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"height": [1.0, 3.0], "colour": ["red", "blue"], "ripe": ["no", "yes"]})
    >>> encoder = fit_encoder(table, "ripe")
    >>> encoder.features, encoder.target.classes
    (['height', 'colour=blue', 'colour=red'], ('no', 'yes'))
    >>> encode(encoder, table).x.tolist()
    [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    if missing not in MISSING:
        raise DataError(f"missing is 'raise', 'drop' or 'impute'; got {missing!r}.")
    frame = _named(frame)
    if target not in frame:
        raise DataError(f"The target {target!r} is not a column of the table; got {listing(frame.columns)}.")
    if len(frame.columns) == 1:
        raise DataError(f"The table has no column but the target {target!r}; expected inputs beside it.")
    frame = _present(frame, _needed(list(frame.columns), target, missing), missing)
    aim = _fit_target(frame[target], family)
    fitted = (fit_column(frame[name], missing == "impute") for name in frame.columns if name != target)
    columns = tuple(column for column in fitted if column is not None)
    if not columns:
        raise DataError("Every input column is the same in all rows, so there is nothing to learn from.")
    return Encoder(columns, aim, missing)


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
    explained = encoder.target.name in frame
    needed = _needed(wanted, encoder.target.name, encoder.missing)
    frame = _present(frame, needed, encoder.missing if explained else "raise")
    x = np.concatenate([encode_column(column, frame[column.name]) for column in encoder.columns], axis=1)
    return Encoded(x, _encode_target(encoder.target, frame[encoder.target.name]) if explained else None)


def complete(encoder: Encoder, frame: Frame) -> np.ndarray:
    """Which rows have a value in every column where ``encode`` needs one, (n,) of booleans."""
    frame = _named(frame)
    needed = _needed(_wanted(encoder, frame), encoder.target.name, encoder.missing)
    return ~np.any([np.zeros(len(frame), bool), *(lacks(frame[name]) for name in needed)], axis=0)


def decode(encoder: Encoder, y: Numbers) -> np.ndarray:
    """Encoded targets of any shape in the table's terms: standardised values in its units, codes as class labels."""
    target = encoder.target
    if target.family == "normal":
        return np.asarray(np.asarray(y, np.float64) * target.sd + target.mean)
    codes = np.asarray(y)
    if codes.dtype.kind not in "iub" or np.any((codes < 0) | (codes >= len(target.classes))):
        raise DataError(f"Expected codes of classes, whole numbers in 0..{len(target.classes) - 1}; got {codes}.")
    labels = np.array(target.classes, dtype=object if isinstance(target.classes[0], str) else None)
    return np.asarray(labels[codes.astype(np.int64)])


def decode_sd(encoder: Encoder, sd: Numbers) -> np.ndarray:
    """Standard deviations of a normal target, of any shape, in the table's units."""
    if encoder.target.family != "normal":
        raise DataError(
            f"{encoder.target.name!r} is a set of classes: they have probabilities, not a standard deviation."
        )
    return np.asarray(np.asarray(sd, np.float64) * encoder.target.sd)


def _named(frame: Frame) -> Frame:
    """The table with strings for column names, all different, and rows numbered from 0."""
    names = [str(name) for name in frame.columns]
    distinct(names, "The table")
    if not len(frame):
        raise DataError("The table holds no rows; expected at least one.")
    return frame.set_axis(names, axis=1).reset_index(drop=True)


def _wanted(encoder: Encoder, frame: Frame) -> list[str]:
    wanted = [column.name for column in encoder.columns]
    absent = [name for name in wanted if name not in frame]
    if absent:
        raise DataError(
            f"The table lacks {listing(absent)}; expected the columns {listing(wanted)}, got {listing(frame.columns)}."
        )
    return wanted + [encoder.target.name] * (encoder.target.name in frame)


def _needed(names: list[str], target: str, missing: str) -> list[str]:
    """Columns in which a value may not be missing."""
    return [name for name in names if name == target or missing != "impute"]


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


def _fit_target(values: Values, family: str | None) -> Target:
    name, kind = str(values.name), kind_of(values)
    if kind == "text":
        check_numbers_in_text(values)
    found = sorted(_plain(values))
    if family not in (None, "normal", "bernoulli", "categorical"):
        raise DataError(f"family is 'normal', 'bernoulli' or 'categorical'; got {family!r}.")
    if len(found) == 1:
        raise DataError(f"The target {name!r} is {found[0]!r} in every row, so there is nothing to explain.")
    if family is None:
        whole = kind != "number" or all(float(value).is_integer() for value in found)
        if len(found) == 2:
            family = "bernoulli"
        else:
            family = "categorical" if whole and (kind != "number" or len(found) <= FEW) else "normal"
    if family == "normal":
        if kind != "number":
            raise DataError(f"The target {name!r} is {kind}; family='normal' expects numbers.")
        return Target(name, family, *moments(name, values.to_numpy(np.float64)))
    if family == "bernoulli" and len(found) != 2:
        raise DataError(f"family='bernoulli' expects two classes; the target {name!r} has {len(found)}.")
    if len(found) > MOST_CLASSES:
        raise DataError(
            f"The target {name!r} has {len(found)} classes; at most {MOST_CLASSES} are supported. "
            "Merge rare ones, or choose a target that is a number."
        )
    return Target(name, family, classes=tuple(found))


def _encode_target(target: Target, values: Values) -> np.ndarray:
    kind = kind_of(values)
    if target.family == "normal":
        if kind != "number":
            raise DataError(f"The target {target.name!r} was a number in training and is {kind} here.")
        return (values.to_numpy(np.float64) - target.mean) / target.sd
    textual = isinstance(target.classes[0], str)
    code = {label: i for i, label in enumerate(target.classes)}
    found = text_of(values) if textual else values.tolist()
    unknown = sorted({str(label) for label in found if label not in code})
    if unknown:
        raise DataError(
            f"The target {target.name!r} has classes never seen in training, {listing(unknown)}; expected "
            f"{listing(map(str, target.classes))}. Fit anew with them, or leave those rows out."
        )
    return np.array([code[label] for label in found], np.int64)


def _plain(values: Values) -> set[Any]:
    """Distinct values as Python's own, so that they are JSON."""
    if kind_of(values) == "text":
        return set(text_of(values))
    found = {value.item() if hasattr(value, "item") else value for value in values.unique()}
    whole = all(float(value).is_integer() for value in found)
    return {int(value) if whole and isinstance(value, float) else value for value in found}
