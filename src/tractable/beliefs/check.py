"""One thing that was looked at before a result is trusted."""

from typing import NamedTuple


class Check(NamedTuple):
    """One thing that was looked at, and what it means for trust.

    Attributes:
        place: an unconstrained position from which a climb ends better than what was learnt, where a look found one.
    """

    name: str
    value: float
    verdict: str  # "trust", "caution" or "reject"
    sentence: str
    place: tuple[float, ...] | None = None
