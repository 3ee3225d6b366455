"""Sections: tables, facts and figures under a title, which a page, a notebook or a terminal can show."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tractable.core.shown import as_html
from tractable.diagnostics.report import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas


Value: TypeAlias = float | int | str | bool | np.floating | np.integer | list | tuple | None
COLUMNS, ROWS = 12, 30  # the largest numbers of columns and rows of a table that a page shows in one piece


class Cell(NamedTuple):
    """A table's cell: a value and how to show it."""

    value: Value
    form: str | None = None  # the format of a number, such as ".3f"; four significant digits by default
    aside: str = ""  # a remark in small letters after the value
    poor: bool = False  # whether the value speaks against the result


def cell(value: Value | Cell) -> Cell:
    """The value as a Cell, if it is not one already."""
    return value if isinstance(value, Cell) else Cell(value)


class Table(NamedTuple):
    """Rows of values. The first column names the rows; a column headed "verdict" holds verdicts."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]  # each as long as ``heads``, of Cells or values
    words: Sequence[str] = ()  # the heads of other columns that hold text

    @property
    def cells(self) -> list[list[Cell]]:
        return [[cell(value) for value in row] for row in self.rows]

    @property
    def pieces(self) -> "list[Table]":
        """The table in pieces of at most ``COLUMNS`` columns, each of which begins with the names of the rows."""
        starts = range(1, max(len(self.heads), 2), COLUMNS - 1)
        parts = [[0, *range(start, min(start + COLUMNS - 1, len(self.heads)))] for start in starts]
        return [
            Table([self.heads[i] for i in part], [[row[i] for i in part] for row in self.rows], self.words)
            for part in parts
        ]

    def is_text(self, head: str) -> bool:
        """Whether the column is aligned to the left."""
        return head in ("verdict", *self.words) or head == self.heads[0]

    def frame(self) -> "pd.DataFrame":
        """The values as a DataFrame, for example for a CSV file."""
        import pandas as pd

        return pd.DataFrame([[cell.value for cell in row] for row in self.cells], columns=pd.Index(self.heads))


class Figure(NamedTuple):
    """A matplotlib figure that is drawn when it is shown."""

    draw: "Callable[[Canvas], None]"  # draws on an empty matplotlib Figure
    size: tuple[float, float]  # width and height in inches
    title: str  # a description for readers who cannot see the figure
    caption: str = ""  # the text above the figure
    svg: str = ""  # the figure as an element of a page, if it was drawn before
    _repr_html_ = as_html


class Picture(NamedTuple):
    """An image of (height, width, 4) bytes, ``size`` CSS pixels wide."""

    pixels: np.ndarray
    size: int
    title: str
    caption: str = ""


class Section(NamedTuple):
    """Parts under one title, which may be empty, with a verdict if there is one.

    Attributes:
        parts: the parts in order; a dict holds facts, values by name; a Section is a subsection.
        note: sentences on how to read the parts; without title and verdict, they are the page's answer.
        layout: a CSS class of the parts: "settings"; "folded" hides the parts until the title is clicked.
    """

    title: str
    parts: "Sequence[Part]" = ()
    note: str = ""
    layout: str = ""
    verdict: str = ""


Part: TypeAlias = Table | dict[str, Any] | Figure | Picture | Section | str


def text(value: Value, form: str | None = None, minus: str = "-") -> str:
    """A value as text: a number with its meaningful digits, or – if it is not finite."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(text(each, None, minus) for each in value) or "none"
    if isinstance(value, bool | np.bool_ | str):
        return value if isinstance(value, str) else str(value).lower()
    if not math.isfinite(value):
        return "–"
    found = number(float(value)) if form is None else format(value, form)
    return (found if float(found.replace(",", "")) else found.removeprefix("-")).replace("-", minus)


def decimals(sizes: np.ndarray) -> int:
    """The number of decimal places with which the smaller ones of some sizes still show two significant digits."""
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return int(np.clip(1 - math.floor(math.log10(np.quantile(sizes, 0.1) / 2)), 0, 6)) if len(sizes) else 3


def duration(seconds: float | int) -> str:
    """Seconds in words, such as "5 s", "3 min" or "2.0 h"."""
    if not math.isfinite(seconds) or seconds >= 3600:
        return f"{seconds / 3600:.1f} h" if math.isfinite(seconds) else "–"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def table_of(frame: "pd.DataFrame") -> Table:
    """A frame as a table; columns without values are left out, and the numbers of a column have equal decimals."""
    filled, columns = frame.dropna(axis=1, how="all"), []
    for values in filled.to_numpy(object).T:
        whole = all(isinstance(value, str) or not math.isfinite(value) or value == int(value) for value in values)
        form = ",.0f" if whole else f",.{1 + decimals(np.abs(values.astype(float)))}f"
        columns.append([value if isinstance(value, str) else Cell(float(value), form) for value in values])
    return Table(list(map(str, filled.columns)), list(zip(*columns, strict=True)))
