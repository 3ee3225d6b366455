"""Shows the tables and facts of sections on a terminal; their sentences and figures are only on the page."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from tractable.core.shown import printable
from tractable.pages.sections import Cell, Section, Table, text

COLOUR = {"trust": "green", "caution": "yellow", "reject": "red", "failed": "red"}


def to_terminal(section: Section, rows: int | None = None, columns: int | None = None) -> Group:
    """A section for the package rich to print: its title, its verdict and its tables.

    A table is cut to at most ``rows`` rows and ``columns`` columns.
    """
    return Group(*_print_section(section, rows, columns))


def _print_section(section: Section, rows: int | None, columns: int | None) -> Iterator[RenderableType]:
    title = Text(printable(section.title), "bold")
    if section.verdict:
        title.append(": ").append(section.verdict, COLOUR[section.verdict])
    for part in section.parts:
        if isinstance(part, Section):
            yield from _print_section(part, rows, columns)
        elif isinstance(part, Table | dict):
            table = part if isinstance(part, Table) else Table(["", "value"], list(part.items()))
            yield from ([title] if title else [])
            yield _grid(table, rows, columns)
            title = Text()


def _grid(table: Table, rows: int | None, columns: int | None) -> Grid:
    grid, heads, lines = Grid(box=box.SIMPLE_HEAD, pad_edge=False), table.heads[:columns], table.cells
    for i, head in enumerate(heads):
        grid.add_column(Text(printable(head)), justify="left" if table.is_text(head) else "right", no_wrap=i == 0)
    for line in lines[:rows]:
        grid.add_row(*(_text(cell, head) for cell, head in zip(line, heads, strict=False)))
    for what, every, most in (("rows", lines, rows), ("columns", table.heads, columns)):
        if most is not None and len(every) > most:
            grid.add_row(f"{what} not shown: {len(every) - most:,}")
    return grid


def _text(cell: Cell, head: str) -> Text:
    written, aside = printable(text(cell.value, cell.form)), printable(f" {cell.aside}") if cell.aside else ""
    colour = COLOUR.get(written, "") if head == "verdict" else "red" * cell.poor
    return Text.assemble((written, colour), (aside, "dim"))
