"""Columns of numbers of a table, and how they are standardised."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tractable.tools.errors import DataError
from tractable.tools.words import tell


def is_number(values: Any) -> bool:
    """Whether a column holds numbers; True and False are none."""
    return pd.api.types.is_numeric_dtype(values.dtype) and values.dtype.kind in "iuf"


def values_of(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """(n, d) float64; NaN where there is no value."""
    if not names:
        return np.zeros((len(frame), 0))
    return np.stack([frame[name].to_numpy(np.float64, na_value=np.nan) for name in names], 1)


def refuse_infinite(values: np.ndarray, names: Sequence[str], refused: bool = True) -> None:
    """A sentence about the first number that is infinite."""
    if refused and np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise DataError(f"Column {names[column]!r} is infinite in row {row} (the top row is 0); mend it.")


class Column(NamedTuple):
    """A column of numbers, standardised by the mean and sd of the rows fitted."""

    name: str
    mean: float
    sd: float


def standardised(frame: pd.DataFrame, name: str) -> Column | None:
    """Mean and sd of the values there are; None, and a warning, where they are all the same."""
    values = values_of(frame, [name])[:, 0]
    values = values[~np.isnan(values)]
    if not len(values) or np.ptp(values) == 0:
        same = f"is {values[0]:g} in every row" if len(values) else "holds no value"
        tell(f"Column {name!r} {same} that is fitted; it is left out.")
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = float(values.mean()), float(values.std())
    if not 0 < sd < math.inf:
        raise DataError(f"Column {name!r} cannot be standardised: its standard deviation is {sd}. Rescale it.")
    return Column(name, mean, sd)


def encoded(columns: Sequence[Column], frame: pd.DataFrame) -> np.ndarray:
    """(n, d) standardised rows."""
    mean, sd = (np.array([getattr(c, field) for c in columns]) for field in ("mean", "sd"))
    return (values_of(frame, [c.name for c in columns]) - mean) / sd
