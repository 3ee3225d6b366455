"""Whether a climb ended at a maximum: checks for all methods that climb from several starts."""

from typing import Any

from tractable.core.check import Check

FLAT = 1e-7  # share of the largest eigenvalue below which single precision cannot tell the least from 0


def curvature(
    found: dict[str, Any],
    ridge: float,
    sentence: str = "smallest eigenvalue of the observed information; above 0 at a proper maximum",
) -> list[Check]:
    """The least eigenvalue of the information, where it was computed.

    Args:
        ridge: a negative least eigenvalue, if smaller than this share of the largest, counts as a flat ridge and not as
            a saddle: rounding, or Monte-Carlo error, hides the difference.
    """
    if "eigenvalue" not in found:
        return []
    least, condition = found["eigenvalue"], found.get("condition", -1.0)
    verdict = "trust" if least > 0 else "caution" if condition > -ridge else "reject"
    if 0 < condition < FLAT:
        verdict, sentence = "caution", f"{sentence}; {condition:.1g} of the largest: a ridge, or a maximum that recedes"
    return [Check("curvature", least, verdict, sentence)]


def agreement(found: dict[str, Any], starts: int, near: str, below: float) -> list[Check]:
    """How many of several starts ended within ``near`` of the best, and how far ``below`` it the worst one did."""
    if starts == 1:
        return []
    same = found["starts that agree"]
    sentence = f"of {starts} within {near} of the best; the last is {below:.3g} below"
    return [Check("starts that agree", float(same), "trust" if same > 1 else "caution", sentence)]
