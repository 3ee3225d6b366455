"""The display of results as text and in a notebook."""

import re
from collections.abc import Callable

# Control characters except line ends and tabs: those of ASCII and Latin 1, and those that change the writing direction.
CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")

makers: list[Callable[[object], str]] = []  # at most one function that returns HTML, which ``tractable`` adds


def as_html(self: object) -> str | None:
    """HTML for ``_repr_html_``; None, so that a notebook shows text, if there is no function that makes HTML."""
    return makers[0](self) if makers else None


def printable(text: str) -> str:
    """The text with control characters, which could rewrite a terminal, escaped as in Python.

    >>> printable("\\x1b[2Jdose")
    '\\\\x1b[2Jdose'
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
