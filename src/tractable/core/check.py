"""A check of a result, the unit that a report's verdict is made of."""

from typing import NamedTuple


class Check(NamedTuple):
    """One reason to trust or to doubt a result.

    Attributes:
        place: an unconstrained position from which an optimisation ends at a better point than the result, or None.
    """

    name: str
    value: float
    verdict: str  # "trust", "caution" or "reject"
    sentence: str
    place: tuple[float, ...] | None = None
