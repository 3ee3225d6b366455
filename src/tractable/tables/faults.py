"""Gathers the faults of a table, so that one error reports all of them."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tractable.core.errors import DataError
from tractable.core.words import counted
from tractable.tables.columns import lacks
from tractable.tables.numerals import Frame, Values

MOST = 10  # the largest number of columns whose faults are listed
REMEDY = (
    "Fill missing values in, let inputs be imputed (missing='impute' when fitting), leave out such rows "
    "(missing='drop' when fitting), or leave out the column."
)


def describe_gaps(values: Values, absent: np.ndarray) -> str:
    """A sentence about a column's values that are missing or not finite, which ``absent`` (n,) marks."""
    what, infinite = counted(int(absent.sum()), "value"), values[absent].isin([np.inf, -np.inf])
    return (
        f"Column {str(values.name)!r} has {what} missing or not finite, the first in row {values.index[absent][0]} of "
        f"{len(absent):,} (the top row is 0){f'; {infinite.sum()} are infinite' * bool(infinite.any())}."
    )


@contextlib.contextmanager
def all_faults(frame: Frame, needed: Sequence[str], checks: Mapping[str, Callable[[Values], object]]) -> Iterator[None]:
    """A context whose DataError becomes one with a line for each column that has faults.

    Args:
        frame: the table.
        needed: the columns in which no value may be missing.
        checks: for each column a function of its values, none of them missing, that raises a DataError for a fault.
    """
    try:
        yield
    except DataError as error:
        found: list[str] = []
        for name in (name for name in dict.fromkeys([*checks, *needed]) if name in frame):
            absent = lacks(frame[name])
            sentences = [describe_gaps(frame[name], absent)] if name in needed and absent.any() else []
            with warnings.catch_warnings(action="ignore"):
                try:
                    checks.get(name, len)(frame[name][~absent]) if not absent.all() else None
                except DataError as fault:
                    sentences.append(str(fault))
            found += [" ".join(sentences)] * bool(sentences)
        if not any(sentence.split(" (")[0] in str(error) for sentence in found):
            found = [str(error), *found]  # the fault of no single column
        if len(found) == 1:
            raise
        more = [f"and faults of {counted(len(found) - MOST, 'more column')}"] * (len(found) > MOST)
        lines = ["The table cannot be used as it is:", *found[:MOST], *more]
        remedy = f"\n{REMEDY}" * any("missing or not finite" in line for line in found)
        raise DataError("\n- ".join(lines) + remedy) from None
