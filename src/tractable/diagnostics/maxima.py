"""Checks whether an optimisation ended at a maximum, for all methods that optimise from several starts."""

from typing import Any

from tractable.core.check import Check

FLAT = 1e-7  # smallest over largest eigenvalue, below which single precision cannot tell the smallest from 0


def curvature(
    found: dict[str, Any], ridge: float,
    sentence: str = "smallest eigenvalue of the observed information; above 0 at a proper maximum",
) -> list[Check]:  # fmt: skip
    """Checks the smallest eigenvalue of the observed information; no check if it was not computed.

    Args:
        found: results of the run: "eigenvalue", the smallest one, and "condition", its ratio to the largest.
        ridge: a negative smallest eigenvalue counts as a flat ridge, not as a saddle point, if its size is less than
            this share of the largest: rounding or Monte-Carlo error hides the difference.
        sentence: the check's sentence.
    """
    if "eigenvalue" not in found:
        return []
    smallest, condition = found["eigenvalue"], found.get("condition", -1.0)
    verdict = "trust" if smallest > 0 else "caution" if condition > -ridge else "reject"
    if 0 < condition < FLAT:
        verdict, sentence = "caution", f"{sentence}; {condition:.1g} of the largest: a ridge, or a maximum at infinity"
    return [Check("curvature", smallest, verdict, sentence)]


def agreement(found: dict[str, Any], starts: int, near: str, below: float) -> list[Check]:
    """Checks how many of ``starts`` ended within ``near`` of the best one, where the worst ended ``below`` lower."""
    if starts == 1:
        return []
    count = found["starts that agree"]
    sentence = f"of {starts} starts ended within {near} of the best; the worst ended {below:.3g} below it"
    return [Check("starts that agree", float(count), "trust" if count > 1 else "caution", sentence)]
