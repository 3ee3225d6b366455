"""Where results go on a terminal, and what ends them: the verdict and the time."""

from collections.abc import Sequence

from rich.console import Console, RenderableType

from tractable.beliefs.check import Check
from tractable.pages.exhibit import Exhibit
from tractable.pages.terminal import to_terminal
from tractable.pages.verdict import checks

ROWS, COLUMNS = 12, 9  # of a long table, at most
WIDE = 120  # where there is no terminal to ask


def console() -> Console:
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDE)


def verdict(word: str, found: Sequence[Check]) -> RenderableType:
    return to_terminal(Exhibit("Verdict", [checks(found)], verdict=word))


def seconds(phases: dict[str, float]) -> str:
    """Wall time, and what it went into."""
    parts = ", ".join(f"{name} {value:.1f}" for name, value in phases.items() if value >= 0.05)
    return f"{sum(phases.values()):.1f} s" + (f" ({parts})" if len(phases) > 1 and parts else "")
