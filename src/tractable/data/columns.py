"""A column of a table: what kind it is, and how it becomes numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tractable.tools.errors import DataError
from tractable.tools.words import counted, listing, tell

MOST_LEVELS = 100  # of a text column; above, it is more likely an identifier

Values = Any  # a Series; pandas annotates frame[name] as more than that


@dataclass(frozen=True)
class Column:
    """How one column of the table becomes columns of X.

    Attributes:
        name: of the table's column.
        kind: "number", "boolean", "text", or "presence" of a column that was one value or missing.
        mean, sd: of a number's present values in training; 0 and 1 otherwise.
        levels: of text, sorted.
        fill: what a missing value counts as; None where it is refused, or is nothing but missing.
        indicator: a further column of X is 1 where the value is missing.
    """

    name: str
    kind: str
    mean: float = 0.0
    sd: float = 1.0
    levels: tuple[str, ...] = ()
    fill: bool | int | float | str | None = None
    indicator: bool = False

    @property
    def features(self) -> list[str]:
        plain = {"text": [f"{self.name}={level}" for level in self.levels], "presence": []}
        return plain.get(self.kind, [self.name]) + [f"{self.name} is missing"] * self.indicator


def lacks(values: Values) -> np.ndarray:
    """Absent, or a number that is not finite."""
    absent = values.isna().to_numpy(bool)
    if values.dtype.kind == "f":
        absent = absent | ~np.isfinite(values.to_numpy(np.float64, na_value=np.nan))
    return absent


def gap(absent: dict[str, np.ndarray]) -> str:
    """The beginning of a sentence about the first column that lacks a value; ``absent`` by column, (n,) each."""
    name, where = next((name, where) for name, where in absent.items() if where.any())
    others = sum(bool(where.any()) for where in absent.values()) - 1
    more = f"; {counted(others, 'more column')} likewise" if others else ""
    return (
        f"Column {name!r} has {counted(int(where.sum()), 'value')} missing or not finite, the first in row "
        f"{int(np.argmax(where))} (the top row is 0){more}."
    )


def kind_of(values: Values) -> str:
    """ "number", "boolean" or "text"; values are all present."""
    dtype = values.dtype
    if pd.api.types.is_bool_dtype(dtype) and not isinstance(dtype, pd.CategoricalDtype):
        return "boolean"
    if pd.api.types.is_numeric_dtype(dtype) and dtype.kind in "iuf":
        return "number"
    if pd.api.types.is_object_dtype(dtype):
        dtype = pd.api.types.infer_dtype(values, skipna=False)
        if dtype in ("boolean", "string"):
            return "boolean" if dtype == "boolean" else "text"
    elif isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype):
        return "text"
    remedy = "Turn dates into numbers, such as days since a first one." if "date" in str(dtype) else ""
    raise DataError(
        f"Column {str(values.name)!r} holds {dtype}; expected numbers, True/False or text. "
        f"{remedy or 'Convert it, or leave it out.'}"
    )


def fit_column(values: Values, impute: bool) -> Column | None:
    """What a training column's kind is and how it is scaled; None, and a warning, where it is the same in every row."""
    name, gone = str(values.name), lacks(values)
    values = values[~gone]  # all of them, unless missing ones are filled in
    kind = kind_of(values) if len(values) else ""
    if values.nunique() < 2:
        if len(values) and gone.any():
            return Column(name, "presence", indicator=True)
        same = f"{values.tolist()[0]!r}" if len(values) else "missing"
        tell(f"Column {name!r} is {same} in every row; it is left out.")
        return None
    fill, indicator = _fill(values, kind) if impute else None, bool(gone.any())
    if kind == "number":
        return Column(name, kind, *moments(name, values.to_numpy(np.float64)), fill=fill, indicator=indicator)
    if kind == "boolean":
        return Column(name, kind, fill=fill, indicator=indicator)
    levels = tuple(sorted(set(text_of(values))))
    check_numbers_in_text(values)
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"Column {name!r} is text with {len(levels)} distinct values in {len(values)} rows; at most "
            f"{MOST_LEVELS} are supported. Leave it out if it only names the rows, or merge its rare values."
        )
    return Column(name, kind, levels=levels, fill=None if indicator else fill, indicator=indicator)


def _fill(values: Values, kind: str) -> Any:
    """What stands for a missing value: the median of numbers, the most frequent of others (the first of several)."""
    if kind == "number":
        return float(np.median(values.to_numpy(np.float64)))
    found = pd.Series(text_of(values) if kind == "text" else values.to_numpy(np.float64)).mode()[0]
    return str(found) if kind == "text" else bool(found)


def check_numbers_in_text(values: Values) -> None:
    """Numbers that one stray entry has turned into text are a fault to be told, not a hundred levels."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return
    stray = np.isnan(np.asarray(pd.to_numeric(values, errors="coerce"), np.float64))
    if 0 < stray.sum() < len(stray) / 2:
        first = int(np.argmax(stray))
        raise DataError(
            f"Column {str(values.name)!r} is text, but {len(stray) - stray.sum()} of its {len(stray)} values "
            f"are numbers; the first that is not is {values.tolist()[first]!r}, in row {values.index[first]} "
            "(the top row is 0). Mend it, or leave the cell empty if it stands for a missing value; or make "
            "the column categorical if the numbers are only names."
        )


def standardised(name: str, numbers: np.ndarray) -> Column | None:
    """A column of numbers by their mean and sd; NaN is left out. None where there are none, or all are the same."""
    present = numbers[~np.isnan(numbers)]
    if not len(present) or present.min() == present.max():
        return None
    return Column(name, "number", *moments(name, present))


def moments(name: str, numbers: np.ndarray) -> tuple[float, float]:
    """Mean and sd of a column's numbers; a DataError where they are so large or so close that there is no sd."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = float(numbers.mean()), float(numbers.std())
    if not (0 < sd < math.inf):
        raise DataError(f"Column {name!r} cannot be standardised: its standard deviation is {sd}. Rescale it.")
    return mean, sd


def encode_column(column: Column, values: Values) -> np.ndarray:
    """(n, columns of X that it makes)."""
    gone = lacks(values)
    blocks = [] if column.kind == "presence" else [_encode_present(column, values, gone)]
    return np.concatenate([*blocks, *([gone[:, None]] * column.indicator)], axis=1).astype(np.float64)


def _encode_present(column: Column, values: Values, gone: np.ndarray) -> np.ndarray:
    present = values[~gone]
    kind = kind_of(present) if len(present) else column.kind
    if column.kind == "text":
        text = text_of(present)
        codes = np.full(len(values), -1 if column.fill is None else column.levels.index(str(column.fill)))
        codes[~gone] = pd.Index(column.levels).get_indexer(text)  # −1 where unknown
        unknown = sorted({level for level, code in zip(text, codes[~gone], strict=True) if code < 0})
        if unknown:
            tell(
                f"Column {column.name!r} has values never seen in training, {listing(unknown)}: they count "
                f"as none of {listing(column.levels)}."
            )
        return codes[:, None] == np.arange(len(column.levels))
    if kind == "text" or (column.kind == "number" and kind == "boolean"):
        raise DataError(f"Column {column.name!r} was {column.kind} in training and is {kind} here.")
    numbers = np.full(len(values), 0.0 if column.fill is None else float(column.fill))
    numbers[~gone] = present.to_numpy(np.float64)
    if column.kind == "boolean" and not np.isin(numbers, (0, 1)).all():
        wrong = numbers[~np.isin(numbers, (0, 1))][0]
        raise DataError(f"Column {column.name!r} was True/False in training; got {wrong:g} here.")
    return ((numbers - column.mean) / column.sd)[:, None]


def text_of(values: Iterable[Any]) -> list[str]:
    """As strings, a whole number written alike whether it is held as 1 or as 1.0."""
    return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values]
