"""Results as text and in a notebook."""

import re
from collections.abc import Callable

# All but line ends and tabs: those of ASCII and Latin 1, and those that turn the direction of writing round.
CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")

# A notebook's HTML: ``pages``, a higher room loaded on demand, puts its maker here.

makers: list[Callable[[object], str]] = []  # at most one


def as_html(self: object) -> str | None:
    """For ``_repr_html_``: HTML, or None, for which a notebook shows the text."""
    return makers[0](self) if makers else None


def printable(text: str) -> str:
    """Text whose control characters, which could rewrite a terminal, are as Python writes them.

    >>> printable("\\x1b[2Jdose")
    '\\\\x1b[2Jdose'
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
