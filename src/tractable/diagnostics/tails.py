"""Whether a density falls along every ray and every valley: if not, there is no posterior, or no maximum."""

import numpy as np

from tractable.core.check import Check
from tractable.core.tree import PyTree
from tractable.diagnostics.belief import values_of
from tractable.diagnostics.target import Target

RAYS = 60  # at most half of them along principal axes of the posterior, the widest and narrowest included
RADII = np.array([0.0, 1e4, 1e5])  # in the posterior's sds
SLOWEST = -0.9  # d log p / d log r above which there is no finite mass along a ray: −1, and a margin
PLATEAU_DEPTH = 100.0  # nats below the posterior's centre; a plateau lower than that is never met
NARROW = 24  # most parameters for which valleys are followed
VALLEY_RADII = (2.0, 4.0, 8.0, 12.0, 16.0, 20.0, 28.0, 40.0)  # to which valleys are followed, in sds of one parameter
LEAST_RADIUS_BLURRED, LEAST_RADIUS = 4.0, 12.0  # sds that a valley must reach to count, if rounding ends it and if not
COMMON_RADIUS = 20.0  # sds to which all valleys are followed
SLOWING = -30.0  # d log p / d log r above which a valley is followed further: it may still be on its way to a plain
NEWTON = 3  # Newton steps of the other parameters at each distance
FOUND, BLURRED, SADDLE = 0, 1, 2
BLUR = 0.02  # rounding error of a curvature's least eigenvalue, as a share of its largest
AS_HIGH = 0.5  # nats: no maximum if a plateau lies at most this far below; least rise of a valley that climbs on
STEADY = 3  # consecutive rises at a valley's end that show that it climbs on


def check(target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, point: bool, seed: int) -> Check:
    """Checks the slowest fall of log p with log r, far out on rays and in valleys."""
    proper = target.prior and not target.model.prior_is_callable and target.model.drawable
    slope, high = slowest(target, rows, centre, root, AS_HIGH if point else PLATEAU_DEPTH, seed, proper and not point)
    # Under a proper prior no valley is endless: plains are at most as wide as the prior.
    valleys = point or not target.prior or target.model.prior_is_callable
    if valleys and not (high and slope > SLOWEST) and len(centre) <= NARROW:
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
    target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, below: float, seed: int, proper: bool = False
) -> tuple[float, bool]:
    """The largest d log p / d log r at rays' ends, and whether some ray ends at most ``below`` nats under the centre.

    The largest is taken over such rays, or over all rays if there are none. Under a ``proper`` prior of distributions
    rays do not count on which the parameters stand still.
    """
    size, generator = len(centre), np.random.default_rng(seed)
    widths, basis = np.linalg.eigh(root @ root.T)
    axes = basis * np.sqrt(np.maximum(widths, 0))  # (d, d), each column a principal axis
    some = np.unique(np.linspace(0, size - 1, min(size, RAYS // 4)).astype(int))
    along = np.concatenate([axes[:, some].T, -axes[:, some].T])
    others = generator.standard_normal((max(2, (RAYS - len(along)) // 2), size)) @ root.T
    rays = np.concatenate([along, others, -others])
    away = float(np.linalg.norm(np.linalg.solve(root, centre)))
    if away > 0.1:  # also along the ray from the origin, on which maxima of separable data recede
        rays = np.concatenate([rays, centre / away * np.array([[1.0], [-1.0]])])
    places = centre + RADII[:, None, None] * rays  # (radius, ray, d)
    values = target.at(rows, places.reshape(-1, size)).reshape(len(RADII), -1)
    home, near, last = values
    finite = np.isfinite(near) & np.isfinite(last)  # at −inf the density has already fallen
    seen = finite & (last > home - below)
    flat = np.zeros(len(last), bool)
    flat[seen] = last[seen] - near[seen] > SLOWEST * np.log(RADII[2] / RADII[1])
    if proper and flat.any():
        # A bijection that has run out of digits, as of a simplex with an empty part, says nothing of the prior's mass.
        ends = values_of(target.model, places[1:].reshape(-1, size)).reshape(2, len(last), -1)
        stuck = flat & np.all(ends[0] == ends[1], axis=-1)
        finite, seen = finite & ~stuck, seen & ~stuck
    chosen = seen if seen.any() else finite
    if not chosen.any():
        return -np.inf, False
    if not seen.any():  # the whole way: far below, digits say nothing of the last stretch
        return float(np.max((last - home)[chosen]) / np.log(RADII[2])), False
    return float(np.max(last[chosen] - near[chosen]) / np.log(RADII[2] / RADII[1])), True


def valley(target: Target, rows: PyTree, centre: np.ndarray, sds: np.ndarray, point: bool) -> float:
    """The largest d log p / d log r at the ends of valleys; p is a parameter's marginal density by Laplace.

    One parameter is moved away and the others follow to their conditional maximum by Newton steps. Where scales shrink
    with what they scale (a group variance going to zero), mass escapes along a valley but on no ray. For a point p is
    the density itself, and only a valley that climbs above the point counts. −inf where all valleys end far below.
    """
    numbers = np.tile(np.arange(len(centre)), 2)
    signs = np.repeat([-1.0, 1.0], len(centre))
    if len(centre) == 1:
        return -np.inf  # the only valley is a ray
    return float(np.max(valley_slopes(target, rows, centre, sds, numbers, signs, point)))


def valley_slopes(
    target: Target, rows: PyTree, centre: np.ndarray, sds: np.ndarray, numbers: np.ndarray, signs: np.ndarray,
    point: bool,
) -> np.ndarray:  # fmt: skip
    """(v,) slopes at the ends of valleys; valley i moves parameter ``numbers[i]`` in the direction ``signs[i]``.

    All valleys are followed side by side, so that one call of the compiled program evaluates them all.
    """
    count = len(numbers)
    at, scale = np.tile(centre, (count, 1)), np.tile(sds, (count, 1))
    home, found = conditional_maxima(target, rows, at, scale, numbers, point)
    last, slopes, reached = home.copy(), np.full(count, -np.inf), np.zeros(count)
    rises, blurred = np.zeros(count, int), np.zeros(count, bool)
    going = np.flatnonzero(found == FOUND)
    for radius in VALLEY_RADII:
        if radius > COMMON_RADIUS:
            going = going[slopes[going] > SLOWING]
        if not len(going):
            break
        moved = np.arange(len(going)), numbers[going]
        places, widths = at[going], scale[going]
        places[moved] = (centre + radius * np.outer(signs[going], sds))[moved]
        heights, found = conditional_maxima(target, rows, places, widths, numbers[going], point)
        blurred[going[found == BLURRED]] = True
        on = found == FOUND
        slopes[going[heights < home[going] - PLATEAU_DEPTH]] = -np.inf
        on &= heights >= home[going] - PLATEAU_DEPTH
        gone, going, height = going[~on], going[on], heights[on]
        rises[going] = np.where(height > last[going] + AS_HIGH, rises[going] + 1, 0)
        with np.errstate(divide="ignore"):
            slopes[going] = (height - last[going]) / np.log(radius / reached[going])
        last[going], reached[going], at[going], scale[going] = height, radius, places[on], widths[on]
        reached[gone[np.isneginf(slopes[gone])]] = 0
    counts = (reached >= LEAST_RADIUS) | (blurred & (reached >= LEAST_RADIUS_BLURRED))
    if point:
        counts &= (last > home + AS_HIGH) | (rises >= STEADY)
    return np.where(counts, slopes, -np.inf)


def conditional_maxima(
    target: Target, rows: PyTree, at: np.ndarray, scale: np.ndarray, numbers: np.ndarray, point: bool
) -> tuple[np.ndarray, np.ndarray]:
    """log p (v,) once all but parameter ``numbers[i]`` of place ``at[i]`` (v, d) are at their conditional maximum.

    ``at`` and ``scale`` (sds) are updated in place. Also returns, for each place, whether the maximum was ``FOUND``,
    the density curves upwards there (``SADDLE``), or its curvature is lost in rounding (``BLURRED``).
    """
    count, size = at.shape
    diagonal = np.arange(count), numbers
    value, found = np.zeros(count), np.full(count, FOUND)
    for _ in range(NEWTON):
        steps = 0.1 * scale[:, :, None] * np.eye(size)
        places = np.concatenate([at[:, None], at[:, None] + steps, at[:, None] - steps], 1)
        values, slopes = target.look(rows, places.reshape(-1, size))
        slopes = slopes.reshape(count, -1, size)
        slope, value = slopes[:, 0], values.reshape(count, -1)[:, 0]
        curved = (slopes[:, 1 + size :] - slopes[:, 1 : 1 + size]) / (0.2 * scale[:, :, None])
        curved = (curved + curved.swapaxes(1, 2)) / 2
        # The held parameter takes no part: its row and column are those of the unit matrix.
        curved[diagonal[0], numbers] = 0.0
        curved[diagonal[0], :, numbers] = 0.0
        curved[diagonal[0], numbers, numbers] = 1.0
        slope[diagonal] = 0.0
        own = np.diagonal(curved, axis1=1, axis2=2)
        found[~np.isfinite(value) | ~np.all(own > 0, 1)] = SADDLE
        going = (found == FOUND)[:, None]
        own = np.where(going, own, 1.0) ** -0.5
        scaled = np.where(going[:, None], curved * own[:, :, None] * own[:, None, :], np.eye(size))
        spectrum, basis = np.linalg.eigh(scaled)
        found[spectrum[:, 0] <= 0] = BLURRED
        found[spectrum[:, 0] <= -BLUR * spectrum[:, -1]] = SADDLE
        going = (found == FOUND)[:, None]
        spectrum = np.where(going, spectrum, 1.0)
        along = np.einsum("vij,vi->vj", basis, own * slope) / spectrum
        at += np.where(going, own * np.einsum("vij,vj->vi", basis, along), 0.0)
        own[diagonal] = 1.0
        volume = 0.0 if point else np.sum(np.log(own), 1) - np.sum(np.log(spectrum), 1) / 2
        own[diagonal] = scale[diagonal]
        scale[:] = np.where(going, own, scale)
    heights = target.at(rows, at) + volume
    return np.where(found == FOUND, heights, np.nan), found
