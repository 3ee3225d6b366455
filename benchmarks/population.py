"""The population of targets with exact answers on which verdicts are measured, and its division into two halves.

A *variant* is one ``tr.Model``. Its members differ only in numbers that are passed as data, so every method compiles
once for all of them. A *family* is a set of variants that are reported together. A member's numbers are drawn by a
generator seeded with the variant's name and the member's index. Half of the members, in expectation, are hard.

A bit of a hash of a target's variant, index and numbers determines its half (``tune`` or ``publish``). So a target
whose numbers change is a new target.
"""

import functools
import hashlib
import zlib
from typing import Any, NamedTuple

import jax
import numpy as np
import population_models
import population_transports
from population_truth import Truth, Variant

import tractable as tr

SEED = 2027
MEMBERS = 32  # of a variant
HALVES = ("tune", "publish")
DERIVED = ("A", "inverse")


class Target(NamedTuple):
    """A member of a variant."""

    variant: Variant
    index: int
    hard: bool
    numbers: dict[str, Any]
    half: str

    @property
    def family(self) -> str:
        return self.variant.family

    @property
    def name(self) -> str:
        return f"{self.variant.name} #{self.index}"

    def data(self) -> tr.Data:
        return self.variant.data(self.numbers)

    def truth(self) -> Truth:
        return self.variant.truth(self.numbers)


@functools.cache
def variants() -> dict[str, Variant]:
    """All variants, by name."""
    every = [*population_models.variants(), *population_transports.variants()]
    return {variant.name: variant for variant in every}


def target(variant: Variant, index: int) -> Target:
    """Member ``index`` of a variant; every call gives the same one."""
    rng = np.random.default_rng([SEED, zlib.crc32(variant.name.encode()), index])
    hard = bool(rng.random() < 0.5)
    numbers = variant.draw(rng, hard)
    return Target(variant, index, hard, numbers, half_of(variant.name, index, numbers))


def half_of(name: str, index: int, numbers: dict[str, Any]) -> str:
    """A target's half, by the first bit of a hash of the variant, the index and the numbers, to six digits.

    Matrices A and their inverses do not enter the hash, because their last digits depend on the machine; their
    determinant does.
    """
    digest = hashlib.sha256(f"{name}/{index}".encode())
    told = {key: value for key, value in numbers.items() if key not in DERIVED}
    for leaf in jax.tree.leaves(told):
        digest.update(" ".join(f"{x:.5e}" for x in np.ravel(np.asarray(leaf, np.float64))).encode())
    return HALVES[digest.digest()[0] & 1]


def members(variant: Variant, half: str, count: int = MEMBERS, first: int = 0) -> list[Target]:
    """Those of the ``count`` members from ``first`` on that belong to a half."""
    return [t for t in (target(variant, first + index) for index in range(count)) if t.half == half]
