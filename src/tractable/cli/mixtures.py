"""Mixtures of normals of a table's numbers: what is asked of them, and the rows they are fitted to."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tractable.cli.columns import Column, encoded, is_number, refuse_infinite, standardised, values_of
from tractable.cli.models import MIXTURE
from tractable.cli.problem import split
from tractable.data import tables
from tractable.models import mixture
from tractable.select import CRITERIA
from tractable.tools.errors import DataError, SettingsError
from tractable.tools.words import counted, listing, tell

USUAL = "1..10"  # components tried
MOST = 1000  # components
MISSING = ("raise", "drop", "exact")


@dataclass(frozen=True)
class Asked:
    """What a command line says of a mixture.

    Attributes:
        components: "3", "2,3,5", "2..10" or several of these with commas between.
        covariance: "full", "tied", "diagonal" or "spherical".
        choose: a name of ``CRITERIA``.
        held_out: share of the rows, in [0, 1).
        missing: "raise", "drop" leaves rows with gaps out, "exact" takes the numbers there are.

    Raises:
        SettingsError, DataError: one that is none of these.
    """

    components: str = USUAL
    covariance: str = "full"
    choose: str = "bic"
    held_out: float = 0.2
    missing: str = "raise"

    def __post_init__(self) -> None:
        components_of(self.components)
        if self.covariance not in mixture.COVARIANCES:
            raise SettingsError(f"--covariance is {', '.join(mixture.COVARIANCES)}; got {self.covariance!r}.")
        if self.choose not in CRITERIA:
            raise SettingsError(f"--choose is {', '.join(CRITERIA)}; got {self.choose!r}.")
        if not 0 <= self.held_out < 1:
            raise DataError(f"--held-out expects a share of the rows in [0, 1); got {self.held_out:g}.")
        if self.choose == "held-out" and self.held_out == 0:
            raise SettingsError("--choose held-out looks at held-out rows: give --held-out a share above 0.")
        if self.choose == "evidence" and self.missing == "exact":
            raise SettingsError("--choose evidence knows no gaps: use --missing drop, or --choose bic.")
        if self.missing not in MISSING:
            raise SettingsError(f"--missing of a mixture is {', '.join(MISSING)}; got {self.missing!r}.")


def components_of(text: str) -> tuple[int, ...]:
    """The numbers of components that a text asks for, ascending.

    >>> components_of("2..4"), components_of("5, 2"), components_of("1,3..4")
    ((2, 3, 4), (2, 5), (1, 3, 4))
    """
    found: set[int] = set()
    for part in text.split(","):
        low, dots, high = (piece.strip() for piece in part.partition(".."))
        ends = (low, high) if dots else (low, low)
        if not all(end.isascii() and end.isdigit() and int(end) > 0 for end in ends):
            raise SettingsError(
                f"--components expects a number, a list such as 2,3,5 or a range such as 2..10, of 1 or more; got "
                f"{text!r}."
            )
        first, last = map(int, ends)
        if first > last:
            raise SettingsError(f"--components expects ranges from few to many, such as {last}..{first}; got {text!r}.")
        if last > MOST:
            raise SettingsError(f"--components takes at most {MOST}; got {text!r}.")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


@dataclass(frozen=True, eq=False)
class Problem:
    """A table's numbers.

    Attributes:
        name: short, for the run's folder.
        path: of the table.
        columns: the d that are used.
        rows: (n, d), standardised; NaN marks a gap where gaps are dealt with exactly.
        held_out: (m, d), rows that no fit sees.
        asked: what is wanted of them.
    """

    name: str
    path: Path
    columns: tuple[Column, ...]
    rows: np.ndarray
    held_out: np.ndarray
    asked: Asked

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def label(self) -> str:
        return f"{self.name} ({len(self.rows):,} rows of {counted(len(self.columns), 'number')})"

    @property
    def gaps(self) -> bool:
        return bool(np.isnan(self.rows).any() or np.isnan(self.held_out).any())

    @property
    def tried(self) -> tuple[int, ...]:
        """K."""
        return components_of(self.asked.components)

    def spec(self, chosen: int | None = None) -> dict[str, Any]:
        """What JSON can hold; enough to predict."""
        return {
            "table": str(self.path.resolve()),
            "model": MIXTURE,
            **dataclasses.asdict(self.asked),
            "columns": [column._asdict() for column in self.columns],
            "chosen": chosen,
        }


def from_table(path: Path, asked: Asked) -> Problem:
    """The numbers of a table; what is left out is told by warnings.

    Raises:
        DataError: no numbers, gaps that nothing was said of, more components than rows.
    """
    frame = tables.read_table(path)
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1).reset_index(drop=True)
    numbers = [name for name in frame.columns if is_number(frame[name])]
    others = [name for name in frame.columns if name not in numbers]
    if not numbers:
        raise DataError(f"{path} has no column of numbers, which a mixture of normals is of; got {listing(others)}.")
    if others:
        tell(f"Left out, as they hold no numbers: {listing(others)}.")
    empty = [name for name in numbers if not np.isfinite(values_of(frame, [name])).any()]
    if empty:
        tell(f"Left out, as they hold no value at all: {listing(empty)}.")
    numbers = [name for name in numbers if name not in empty]
    frame = with_values(frame, numbers, asked.missing)
    kept, rest = split(frame, "", "normal", asked.held_out)
    columns = tuple(column for name in numbers if (column := standardised(kept, name)) is not None)
    if not columns:
        raise DataError(f"No column of numbers in {path} differs between rows, so there is nothing to learn from.")
    asks, n = components_of(asked.components)[-1], len(kept)
    if asks > n:
        raise DataError(
            f"--components asks for up to {asks}, of {counted(n, 'row')} to fit: each needs a row at least. Ask for "
            f"fewer{', or set --held-out 0' if len(rest) else ''}."
        )
    name = path.name.split(".")[0] or "table"
    return Problem(name, path, columns, encoded(columns, kept), encoded(columns, rest), asked)


def with_values(frame: pd.DataFrame, names: list[str], missing: str) -> pd.DataFrame:
    """The rows that are learnt from, or a sentence about the first gap."""
    values = values_of(frame, names)
    absent = np.isnan(values) if missing == "exact" else ~np.isfinite(values)
    refuse_infinite(values, names, missing == "exact")
    if missing == "raise" and absent.any():
        column = int(np.argmax(absent.any(0)))
        count, more = int(absent[:, column].sum()), int(absent.any(0).sum()) - 1
        raise DataError(
            f"Column {names[column]!r} has {counted(count, 'value')} missing or not finite, the first in row "
            f"{int(np.argmax(absent[:, column]))} (the top row is 0)"
            + (f"; {counted(more, 'more column')} likewise" if more else "")
            + ". Use --missing exact, which learns from the numbers there are and imputes nothing, or leave out such "
            "rows (--missing drop) or the column."
        )
    gone = absent.all(1) if missing == "exact" else absent.any(1)
    if gone.all():
        raise DataError("No row is left once those with missing values are left out. Use --missing exact.")
    if missing == "exact" and gone.any():
        tell(f"Left out: {counted(int(gone.sum()), 'row')} without any number.")
    return frame.loc[~gone]
