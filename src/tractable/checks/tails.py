"""Whether a density falls on every ray from what was found: else there is no posterior, or no maximum."""

from typing import Any

import numpy as np

from tractable.beliefs.check import Check
from tractable.checks.target import Target

PyTree = Any
RAYS = 60  # half of them along the directions in which the posterior is widest and narrowest
RADII = np.array([0.0, 1e4, 1e5])  # in the posterior's sds
SLOWEST = -0.9  # d log p / d log r of a density that has mass without end along a ray is −1 or more
SEEN = 100.0  # nats below what was found, under which a plateau is never met
AS_HIGH = 0.5  # nats below a maximum, above which a plateau says that it is none


def check(target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, point: bool, seed: int) -> Check:
    """The slowest fall of log p with log r, far out on rays."""
    slope, high = slowest(target, rows, centre, root, AS_HIGH if point else SEEN, seed)
    endless = high and slope > SLOWEST
    what = "there is no maximum" if point else "the posterior has no finite mass"
    sentence = "d log p / d log r far out on the ray that falls least; below −1 where the mass is finite"
    if endless:
        sentence += f". Here it does not fall: {what}; give a proper prior in the flat direction"
    return Check("tails", slope, "reject" if endless else "trust", sentence)


def slowest(
    target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, below: float, seed: int
) -> tuple[float, bool]:
    """The largest d log p / d log r at the ends of rays, and whether one ends no more than ``below`` nats lower.

    Of the rays that do, and where none does of all.
    """
    size, generator = len(centre), np.random.default_rng(seed)
    widths, basis = np.linalg.eigh(root @ root.T)
    axes = basis * np.sqrt(np.maximum(widths, 0))  # (d, d) a column a principal axis
    some = np.unique(np.linspace(0, size - 1, min(size, RAYS // 4)).astype(int))
    along = np.concatenate([axes[:, some].T, -axes[:, some].T])
    others = generator.standard_normal((max(2, (RAYS - len(along)) // 2), size)) @ root.T
    rays = np.concatenate([along, others, -others])
    away = float(np.linalg.norm(np.linalg.solve(root, centre)))
    if away > 0.1:  # from the origin outwards, as maxima of separable data recede
        rays = np.concatenate([rays, centre / away * np.array([[1.0], [-1.0]])])
    places = centre + RADII[:, None, None] * rays  # (radius, ray, d)
    values = target.at(rows, places.reshape(-1, size)).reshape(len(RADII), -1)
    home, near, last = values
    finite = np.isfinite(near) & np.isfinite(last)  # −inf has fallen
    seen = finite & (last > home - below)
    looked = seen if seen.any() else finite
    if not looked.any():
        return -np.inf, False
    return float(np.max(last[looked] - near[looked]) / np.log(RADII[2] / RADII[1])), bool(seen.any())
