"""Finds the sequence and the step of each row of a table, and arranges the rows in arrays of sequences."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from tractable.core.errors import DataError
from tractable.core.words import counted, listing, nearest, tell
from tractable.tables.columns import Values
from tractable.tables.files import Frame

SPARSE = 4  # the largest number of steps per row; with more, most steps would be empty, and steps are the rows instead


class Places(NamedTuple):
    """The sequence and the step of each row.

    Attributes:
        sequence, step: (n,) whole numbers from 0.
        names: the names of the sequences.
        unit: the time between two steps, in words; "" if steps are the rows in their order.
    """

    sequence: np.ndarray
    step: np.ndarray
    names: list[str]
    unit: str

    @property
    def longest(self) -> int:
        return int(self.step.max()) + 1

    def placed_rows(self, values: np.ndarray) -> np.ndarray:
        """Rows (n, d) as sequences (N, T, d), padded with NaN."""
        out = np.full((len(self.names), self.longest, values.shape[1]), np.nan)
        out[self.sequence, self.step] = values
        return out

    def back(self, sequences: np.ndarray) -> np.ndarray:
        """Values of steps (N, T, …) for each row of the table, (n, …)."""
        return sequences[self.sequence, self.step]


def places(frame: Frame, by: str | None = None, time: str | None = None, unit: str | None = None) -> Places:
    """Find each row's sequence and step.

    One step is the most frequent interval between two successive rows, if all intervals are whole multiples of it; an
    interval of several steps means that steps are missing. Otherwise, or without ``time``, steps are the rows in their
    order.

    Args:
        by: the column that names each row's sequence; without it all rows are one sequence.
        time: the column with each row's time, as numbers or dates.
        unit: ``Places.unit`` of an earlier table, if the steps shall be the same.

    Raises:
        DataError: a column does not exist; or a time is missing, is not a time, or occurs twice in a sequence.

    >>> table = pd.DataFrame({"cook": ["a", "a", "b"], "day": [3, 1, 7]})
    >>> places(table, "cook", "day").step.tolist(), places(table, "cook").step.tolist()
    ([1, 0, 0], [0, 1, 0])
    """
    for option, name in {"--by": by, "--time": time}.items():
        if name is not None and name not in frame:
            raise DataError(
                f"{option} {name} is not a column of the table; it has {listing(frame.columns)}."
                f"{nearest(name, frame.columns)}"
            )
    n = len(frame)
    if by is None:
        sequence, names = np.zeros(n, int), ["1"]
    else:
        absent = int(np.sum(pd.isna(frame[by])))
        if absent:
            raise DataError(f"{by!r} names each row's sequence, but has no value in {counted(absent, 'row')}.")
        sequence, found = pd.factorize(frame[by].astype(str), sort=True)
        names = list(map(str, found))
    if time is None:
        return Places(sequence, _ranks(sequence, np.arange(n)), names, "")
    when = _times(frame[time], time)
    ranks, (each, step) = _ranks(sequence, when), _spacing(sequence, when)
    if np.any(each == 0):
        order = np.lexsort((when, sequence))
        row = order[np.flatnonzero((np.diff(sequence[order]) == 0) & (np.diff(when[order]) == 0))[0] + 1]
        whose = "" if by is None else f" for {by} {frame[by].iloc[row]}"
        raise DataError(f"{time!r} is {frame[time].iloc[row]} twice{whose}; expected one row for each step.")
    known = step if not unit else _parse_unit(unit)
    if unit == "" or known is None:
        if unit is None and len(each):
            tell(f"Times in {time!r} are not evenly spaced; steps are the rows in their order.")
        return Places(sequence, ranks, names, "")
    first = np.full(len(names), np.inf)
    np.minimum.at(first, sequence, when)
    steps = (when - first[sequence]) / known
    if np.any(np.abs(steps - np.round(steps)) > 1e-6) or steps.max() >= SPARSE * (n + 8):
        tell(f"Times in {time!r} leave too many steps empty, or lie between steps; steps are the rows in their order.")
        return Places(sequence, ranks, names, "")
    found = Places(sequence, np.round(steps).astype(int), names, _words(known, frame[time]))
    missing = int(sum(steps[sequence == i].max() + 1 for i in range(len(names))) - n) if len(names) <= 10_000 else 0
    if missing > 0:
        tell(f"Steps are {found.unit} apart; the model sums over {counted(missing, 'step')} without a row.")
    return found


def _times(values: Values, name: str) -> np.ndarray:
    """Dates in seconds; numbers unchanged."""
    absent = int(np.sum(pd.isna(values)))
    if absent:
        raise DataError(f"{name!r} has no time in {counted(absent, 'row')}; expected a time in each row.")
    if values.dtype.kind in "iuf":
        return values.to_numpy(np.float64)
    try:
        return pd.to_datetime(values).to_numpy("datetime64[s]").astype(np.float64)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name!r} expects numbers or dates; got {values.iloc[0]!r}.") from error


def _spacing(sequence: np.ndarray, when: np.ndarray) -> tuple[np.ndarray, float | None]:
    """The intervals between successive rows, and the step of which all are multiples (None if there is none)."""
    order = np.lexsort((when, sequence))
    each = np.diff(when[order])[np.diff(sequence[order]) == 0]
    if not len(each) or np.any(each == 0):
        return each, None
    values, counts = np.unique(np.round(each, 6), return_counts=True)
    step = float(values[np.argmax(counts)])
    multiples = each / step
    return each, step if np.all(np.abs(multiples - np.round(multiples)) < 1e-6) else None


def _ranks(sequence: np.ndarray, when: np.ndarray) -> np.ndarray:
    """Each row's rank by time in its sequence, from 0."""
    order = np.lexsort((when, sequence))
    starts = np.flatnonzero(np.diff(sequence[order], prepend=-1))
    ranks = np.empty(len(order), int)
    ranks[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return ranks


def _words(step: float, values: Values) -> str:
    if values.dtype.kind in "iuf":
        return f"{step:g}"
    for name, seconds in {"day": 86_400, "hour": 3600, "minute": 60}.items():
        if step % seconds == 0:
            return counted(int(step / seconds), name)
    return counted(int(step), "second")


def _parse_unit(unit: str) -> float:
    try:
        return float(unit)
    except ValueError:
        return pd.Timedelta(unit).total_seconds()
