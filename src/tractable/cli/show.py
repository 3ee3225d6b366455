"""Results as tables on the terminal."""

from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from tractable.checks.report import number

ROWS = 12  # parameters shown
WIDE = 110  # where there is no terminal to ask
COLOUR = {"trust": "green", "caution": "yellow", "reject": "red", "failed": "red"}


def console(*, stderr: bool = False) -> Console:
    """Where tables go."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=WIDE)


def table(title: str, *columns: str, numbers: int = 0) -> Table:
    """An empty table whose columns from the second on are ``numbers`` right-aligned ones, and then text."""
    out = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        out.add_column(column, justify="right" if 1 <= i <= numbers else "left", no_wrap=i == 0)
    return out


def parameters(summary: pd.DataFrame, weights: int = 0) -> Table:
    """The first rows of ``posterior.summary()``; and how many weights of a network it leaves out."""
    out = table("Parameters", "", *summary.columns, numbers=len(summary.columns))
    for name, row in summary.head(ROWS).iterrows():
        out.add_row(str(name), *(number(float(f"{v:.3g}")) for v in row))
    if len(summary) > ROWS:
        out.add_row(f"and {len(summary) - ROWS} more")
    if weights:
        out.add_row(f"{weights:,} weights of the network: see the report")
    return out


def held_out(scores: list[Any]) -> Table:
    """Held-out scores."""
    out = table("Held-out rows", "", "value", "", numbers=1)
    for each in scores:
        out.add_row(each.name, number(each.value), each.meaning)
    return out


def verdict(word: str, checks: list[dict[str, Any]]) -> Table:
    """A verdict, and the checks which made it."""
    out = table(f"Verdict: [{COLOUR[word]}]{word}[/]", "check", "value", "", "", numbers=1)
    for c in checks:
        out.add_row(c["name"], number(c["value"]), f"[{COLOUR[c['verdict']]}]{c['verdict']}[/]", c["sentence"])
    return out


def comparison(cells: pd.DataFrame) -> Table:
    """A comparison's table, already text."""
    out = table("Methods side by side", "method", *cells.columns, numbers=len(cells.columns) - 1)
    for name, row in cells.iterrows():
        *values, word = map(str, row)
        out.add_row(str(name), *values, f"[{COLOUR.get(word, 'default')}]{word}[/]")
    return out


def seconds(phases: dict[str, float]) -> str:
    """Wall time, and what it went into."""
    parts = ", ".join(f"{name} {value:.1f}" for name, value in phases.items() if value >= 0.05)
    return f"{sum(phases.values()):.1f} s" + (f" ({parts})" if len(phases) > 1 and parts else "")
