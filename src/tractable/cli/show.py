"""Prints results on a terminal; the verdict and the time come last."""

from collections.abc import Sequence

from rich.console import RenderableType

from tractable.beliefs.check import Check
from tractable.pages.exhibit import Exhibit
from tractable.pages.terminal import to_terminal
from tractable.pages.verdict import checks

ROWS, COLUMNS = 12, 9  # at most this many of a long table are shown


def verdict(word: str, found: Sequence[Check]) -> RenderableType:
    """The verdict and its checks, as a terminal shows them."""
    return to_terminal(Exhibit("Verdict", [checks(found)], verdict=word))


def seconds(phases: dict[str, float]) -> str:
    """Wall time in seconds, and each phase's part of it."""
    parts = ", ".join(f"{name} {value:.1f}" for name, value in phases.items() if value >= 0.05)
    return f"{sum(phases.values()):.1f} s" + (f" ({parts})" if len(phases) > 1 and parts else "")
