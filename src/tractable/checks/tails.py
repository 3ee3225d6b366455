"""Whether a density falls on every ray and along every valley: else there is no posterior, or no maximum."""

from typing import Any

import numpy as np

from tractable.beliefs.check import Check
from tractable.checks.target import Target

PyTree = Any
RAYS = 60  # half of them along the directions in which the posterior is widest and narrowest
RADII = np.array([0.0, 1e4, 1e5])  # in the posterior's sds
SLOWEST = -0.9  # d log p / d log r of a density that has mass without end along a ray is −1 or more
SEEN = 100.0  # nats below what was found, under which a plateau is never met
NARROW = 24  # numbers up to which valleys are followed
AWAY, FAR = (2.0, 4.0, 8.0, 12.0, 16.0, 20.0), 12.0  # sds of one number to which they are, and to which at least
NEWTON = 3  # steps of the other numbers at each
AS_HIGH = 0.5  # nats below a maximum, above which a plateau says that it is none


def check(target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, point: bool, seed: int) -> Check:
    """The slowest fall of log p with log r, far out on rays."""
    slope, high = slowest(target, rows, centre, root, AS_HIGH if point else SEEN, seed)
    # Proper priors leave no valley without end, only plains as wide as they are.
    followed = point or not target.prior or target.model.prior_is_callable
    if followed and not (high and slope > SLOWEST) and len(centre) <= NARROW:
        end = valley(target, rows, centre, np.sqrt(np.sum(root**2, 1)), point)
        slope, high = (end, True) if end > SLOWEST else (slope, high)
    endless = high and slope > SLOWEST
    what = "there is no maximum" if point else "the posterior has no finite mass"
    sentence = (
        "d log p / d log r far out on the ray or in the valley that falls least; below −1 where the mass is finite"
    )
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


def valley(target: Target, rows: PyTree, centre: np.ndarray, sds: np.ndarray, point: bool) -> float:
    """The largest d log p / d log r at the end of valleys, p a number's marginal density by Laplace's approximation.

    One number is moved away and the others follow to their conditional maximum, by Newton's steps: where scales shrink
    with what they scale (a variance of groups going to zero) mass escapes on no ray. For a point p is the density,
    and only a valley that climbs above it counts. −inf where all end far below.
    """
    size = len(centre)
    if size == 1:
        return -np.inf  # its own ray
    return max(
        _followed(target, rows, centre, sds, number, sign, point) for number in range(size) for sign in (-1.0, 1.0)
    )


def _followed(
    target: Target, rows: PyTree, centre: np.ndarray, sds: np.ndarray, number: int, sign: float, point: bool
) -> float:
    """Of one number and direction."""
    at, scale = centre.copy(), sds.copy()
    reached, heights = [0.0], [_settled(target, rows, at, scale, number, point)]
    for radius in AWAY:
        at[number] = centre[number] + sign * radius * sds[number]
        height = _settled(target, rows, at, scale, number, point)
        if height < heights[0] - SEEN:
            return -np.inf
        if np.isnan(height):  # finer than the digits there are
            break
        reached.append(radius)
        heights.append(height)
    if reached[-1] < FAR or not np.isfinite(heights[0]) or (point and heights[-1] <= heights[0] + AS_HIGH):
        return -np.inf
    return float((heights[-1] - heights[-2]) / np.log(reached[-1] / reached[-2]))


def _settled(target: Target, rows: PyTree, at: np.ndarray, scale: np.ndarray, number: int, point: bool) -> float:
    """log p where all but one number are at their conditional maximum, to which ``at`` moves; NaN without one."""
    others = np.delete(np.arange(len(at)), number)
    value = -np.inf
    for _ in range(NEWTON):
        steps = np.zeros((len(others), len(at)))
        steps[np.arange(len(others)), others] = 0.1 * scale[others]
        values, slopes = target.look(rows, np.concatenate([at[None], at + steps, at - steps]))
        count = len(others)
        curved = (slopes[1 + count :, others] - slopes[1 : 1 + count, others]) / (0.2 * scale[others, None])
        curved = (curved + curved.T) / 2
        if not np.isfinite(values[0]) or not np.all(np.isfinite(curved)) or not np.all(np.diag(curved) > 0):
            return np.nan
        own = 1 / np.sqrt(np.diag(curved))
        spectrum, basis = np.linalg.eigh(curved * np.outer(own, own))
        if spectrum[0] <= 0:
            return np.nan
        whitened = basis / np.sqrt(spectrum)
        step = own * (whitened @ (whitened.T @ (own * slopes[0, others])))
        at[others] += step
        scale[others] = own
        value = values[0] - (0.0 if point else float(0.5 * np.sum(np.log(spectrum)) - np.sum(np.log(own))))
    final = target.at(rows, at[None])[0]
    return float(value - values[0] + final)
