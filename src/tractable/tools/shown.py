"""What a notebook shows of a result: made by the room of pages, which lies above results and is loaded when asked."""

from collections.abc import Callable

makers: list[Callable[[object], str]] = []  # at most one


def as_html(self: object) -> str | None:
    """For ``_repr_html_``: HTML, or None, which leaves a notebook with the text."""
    return makers[0](self) if makers else None
