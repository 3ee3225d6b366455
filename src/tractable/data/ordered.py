"""A table whose rows are steps of sequences: which row is which step, and tables laid out as arrays and back."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from tractable.data.columns import Values
from tractable.data.files import Frame
from tractable.tools.errors import DataError
from tractable.tools.words import counted, listing, nearest, tell

SPARSE = 4  # steps for each row at most; with more of them missing, rows are taken as they follow each other


class Places(NamedTuple):
    """Where rows of a table lie in its sequences.

    Attributes:
        sequence, step: (n,) whole numbers from 0.
        names: of the sequences.
        unit: the time between two steps, in words; "" where rows are taken as they follow each other.
    """

    sequence: np.ndarray
    step: np.ndarray
    names: list[str]
    unit: str

    @property
    def longest(self) -> int:
        return int(self.step.max()) + 1

    def laid(self, values: np.ndarray) -> np.ndarray:
        """Rows (n, d) as sequences (N, T, d), filled up with NaN."""
        out = np.full((len(self.names), self.longest, values.shape[1]), np.nan)
        out[self.sequence, self.step] = values
        return out

    def back(self, laid: np.ndarray) -> np.ndarray:
        """What is said of steps (N, T, …), row by row of the table (n, …)."""
        return laid[self.sequence, self.step]


def places(frame: Frame, by: str | None = None, time: str | None = None, unit: str | None = None) -> Places:
    """Which row is which step of which sequence.

    Steps are as far apart as the commonest two rows that follow each other, where all others are whole multiples of
    that: between them steps are missing. Else, or without a time, they are the rows in their order.

    Args:
        by: a column that says which sequence a row is of; all are one where there is none.
        time: a column of numbers or dates that says when.
        unit: of an earlier table, ``Places.unit``, which this one is laid out by.

    Raises:
        DataError: no such column; a time that is missing, no time, or twice in a sequence.

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
            raise DataError(f"{counted(absent, 'row')} say nothing in {by!r}, of which sequence they are.")
        sequence, found = pd.factorize(frame[by].astype(str), sort=True)
        names = list(map(str, found))
    if time is None:
        return Places(sequence, _ranks(sequence, np.arange(n)), names, "")
    when = _times(frame[time], time)
    ranks, (each, step) = _ranks(sequence, when), _spacing(sequence, when)
    if np.any(each == 0):
        order = np.lexsort((when, sequence))
        row = order[np.flatnonzero((np.diff(sequence[order]) == 0) & (np.diff(when[order]) == 0))[0] + 1]
        whose = "" if by is None else f" of {by} {frame[by].iloc[row]}"
        raise DataError(f"{time!r} is {frame[time].iloc[row]} twice{whose}; expected one row for each step.")
    known = step if not unit else _parsed(unit)
    if unit == "" or known is None:
        if unit is None and len(each):
            tell(f"Times in {time!r} are not evenly spaced; steps are the rows in their order.")
        return Places(sequence, ranks, names, "")
    first = np.full(len(names), np.inf)
    np.minimum.at(first, sequence, when)
    steps = (when - first[sequence]) / known
    if np.any(np.abs(steps - np.round(steps)) > 1e-6) or steps.max() >= SPARSE * (n + 8):
        tell(f"Times in {time!r} leave too many steps empty, or lie between them; steps are the rows in their order.")
        return Places(sequence, ranks, names, "")
    found = Places(sequence, np.round(steps).astype(int), names, _words(known, frame[time]))
    missing = int(sum(steps[sequence == i].max() + 1 for i in range(len(names))) - n) if len(names) <= 10_000 else 0
    if missing > 0:
        tell(f"Steps are {found.unit} apart; {counted(missing, 'step')} are missing, and summed over.")
    return found


def _times(values: Values, name: str) -> np.ndarray:
    """Seconds, or numbers as they are."""
    absent = int(np.sum(pd.isna(values)))
    if absent:
        raise DataError(f"{counted(absent, 'row')} lack a time in {name!r}; expected one in each.")
    if values.dtype.kind in "iuf":
        return values.to_numpy(np.float64)
    try:
        return pd.to_datetime(values).to_numpy("datetime64[s]").astype(np.float64)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name!r} expects numbers or dates; got {values.iloc[0]!r}.") from error


def _spacing(sequence: np.ndarray, when: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Times between rows that follow each other, and the step of which all are multiples."""
    order = np.lexsort((when, sequence))
    each = np.diff(when[order])[np.diff(sequence[order]) == 0]
    if not len(each) or np.any(each == 0):
        return each, None
    values, counts = np.unique(np.round(each, 6), return_counts=True)
    step = float(values[np.argmax(counts)])
    multiples = each / step
    return each, step if np.all(np.abs(multiples - np.round(multiples)) < 1e-6) else None


def _ranks(sequence: np.ndarray, when: np.ndarray) -> np.ndarray:
    """Each row's place among those of its sequence."""
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


def _parsed(unit: str) -> float:
    try:
        return float(unit)
    except ValueError:
        return pd.Timedelta(unit).total_seconds()
