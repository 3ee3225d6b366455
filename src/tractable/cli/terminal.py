"""The one place that writes on a terminal: what tables, notes and folders hold may come from anybody."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from tractable.tools.shown import printable

WIDE = 120  # columns of text where the output is no terminal


class Terminal(Console):
    """A console on which text stays text: no markup, no emoji, and control characters as Python writes them."""

    def __init__(self, *, stderr: bool = False) -> None:
        wide = None if (sys.stderr if stderr else sys.stdout).isatty() else WIDE
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, width=wide)

    def print(self, *objects: Any, **named: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **named)

    def render(self, *args: Any, **named: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **named):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def console() -> Terminal:
    """Of results, on stdout."""
    return Terminal()


def line(text: object, style: str = "", *, stderr: bool = False) -> None:
    """One line, however long."""
    Terminal(stderr=stderr).print(str(text), style=style, soft_wrap=True)
