"""One thing that was looked at before a result is trusted."""

from typing import NamedTuple


class Check(NamedTuple):
    """One thing that was looked at, and what it means for trust."""

    name: str
    value: float
    verdict: str  # "trust", "caution" or "reject"
    sentence: str
