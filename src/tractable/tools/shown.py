"""A result's HTML in a notebook: ``pages``, a higher room loaded on demand, puts its maker here."""

from collections.abc import Callable

makers: list[Callable[[object], str]] = []  # at most one


def as_html(self: object) -> str | None:
    """For ``_repr_html_``: HTML, or None, for which a notebook shows the text."""
    return makers[0](self) if makers else None
