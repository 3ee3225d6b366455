"""A check: one reason to trust or to doubt a result."""

from typing import NamedTuple


class Check(NamedTuple):
    """One check of a result, with its verdict.

    Attributes:
        place: an unconstrained position from which a climb ends better than the result, if the check found one.
    """

    name: str
    value: float
    verdict: str  # "trust", "caution" or "reject"
    sentence: str
    place: tuple[float, ...] | None = None
