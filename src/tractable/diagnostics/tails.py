"""Checks whether a density falls along every ray and every ridge: if not, there is no posterior, or no maximum.

A ray is a half-line from the posterior's centre. A "valley" (of −log p) is a curved path, along which one parameter
moves away and the others stay at their conditional maximum. Decisions behind the numbers are in
docs/decisions/014-tails-and-valleys.md and 015-a-maximum-must-look-like-one.md.
"""

import numpy as np

from tractable.core.check import Check
from tractable.core.tree import PyTree
from tractable.diagnostics.belief import values_of
from tractable.diagnostics.target import Target

RAYS = 60  # number of rays; up to half lie along principal axes of the posterior, including the widest and narrowest
RADII = np.array([0.0, 1e4, 1e5])  # distances from the centre at which rays are evaluated, in posterior sds
SLOWEST = -0.9  # d log p / d log r above which the mass along a ray is infinite; the exact limit −1 plus a margin
PLATEAU_DEPTH = 100.0  # nats; chains never reach a plateau this far below the posterior's centre
NARROW = 24  # maximum number of parameters for which valleys are followed
VALLEY_RADII = (2.0, 4.0, 8.0, 12.0, 16.0, 20.0, 28.0, 40.0)  # distances at which valleys are evaluated, in sds
# Smallest distances, in sds, to which a valley must be followed to count: if rounding errors end it, and otherwise.
LEAST_RADIUS_BLURRED, LEAST_RADIUS = 4.0, 12.0
COMMON_RADIUS = 20.0  # sds to which every valley is followed
SLOWING = -30.0  # d log p / d log r above which a valley is followed beyond COMMON_RADIUS: it may still become flat
NEWTON = 3  # number of Newton steps of the other parameters at each distance
FOUND, BLURRED, SADDLE = 0, 1, 2  # outcomes of the search for a conditional maximum
BLUR = 0.02  # rounding error of a curvature's smallest eigenvalue, as a share of the largest
AS_HIGH = 0.5  # nats; a point is no maximum if a plateau is at most this far below it, or if a valley rises by more
STEADY = 3  # number of consecutive rises at a valley's end that show that it rises for ever


def check(target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, point: bool, seed: int) -> Check:
    """Checks the slowest decrease of log p with log r, far out on rays and in valleys.

    For ``point`` estimates the question is whether there is a maximum; otherwise, whether the mass is finite.
    """
    proper = target.prior and not target.model.prior_is_callable and target.model.drawable
    slope, high = slowest(target, rows, centre, root, AS_HIGH if point else PLATEAU_DEPTH, seed, proper and not point)
    # Under a proper prior the mass in every valley is finite, so valleys are not followed.
    follows_valleys = point or not target.prior or target.model.prior_is_callable
    if follows_valleys and not (high and slope > SLOWEST) and len(centre) <= NARROW:
        end = valley(target, rows, centre, np.sqrt(np.sum(root**2, 1)), point)
        slope, high = (end, True) if end > SLOWEST else (slope, high)
    endless = high and slope > SLOWEST
    problem = "there is no maximum" if point else "the posterior has no finite mass"
    sentence = "d log p / d log r far from the centre, where log p falls most slowly; below −1 if the mass is finite"
    if endless:
        sentence += f". Here it does not fall: {problem}; use a proper prior in the flat direction"
    return Check("tails", slope, "reject" if endless else "trust", sentence)


def slowest(
    target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, below: float, seed: int, proper: bool = False
) -> tuple[float, bool]:
    """The largest d log p / d log r at the rays' ends, and whether some ray's end is high.

    An end is high if it lies at most ``below`` nats under the centre. The largest slope is taken over rays with high
    ends, or over all rays if there are none. Under a ``proper`` prior, rays on which the constrained parameters do not
    change are left out.
    """
    size, generator = len(centre), np.random.default_rng(seed)
    widths, basis = np.linalg.eigh(root @ root.T)
    axes = basis * np.sqrt(np.maximum(widths, 0))  # (d, d), each column a principal axis
    index = np.unique(np.linspace(0, size - 1, min(size, RAYS // 4)).astype(int))
    along_axes = np.concatenate([axes[:, index].T, -axes[:, index].T])
    random_rays = generator.standard_normal((max(2, (RAYS - len(along_axes)) // 2), size)) @ root.T
    rays = np.concatenate([along_axes, random_rays, -random_rays])
    distance = float(np.linalg.norm(np.linalg.solve(root, centre)))
    if distance > 0.1:  # also the ray from the origin, on which the likelihood of separable data rises for ever
        rays = np.concatenate([rays, centre / distance * np.array([[1.0], [-1.0]])])
    places = centre + RADII[:, None, None] * rays  # (radius, ray, d)
    values = target.at(rows, places.reshape(-1, size)).reshape(len(RADII), -1)
    height, inner, outer = values
    # Where log p is −inf the density has already fallen to zero, so that the ray needs no further check.
    finite = np.isfinite(inner) & np.isfinite(outer)
    high = finite & (outer > height - below)
    flat = np.zeros(len(outer), bool)
    flat[high] = outer[high] - inner[high] > SLOWEST * np.log(RADII[2] / RADII[1])
    if proper and flat.any():
        # Far out, a bijection may return the same constrained parameters by rounding (a simplex with an empty part, for
        # example). Such a ray is flat for that reason alone, and says nothing about the prior's mass.
        ends = values_of(target.model, places[1:].reshape(-1, size)).reshape(2, len(outer), -1)
        constant = flat & np.all(ends[0] == ends[1], axis=-1)
        finite, high = finite & ~constant, high & ~constant
    counts = high if high.any() else finite
    if not counts.any():
        return -np.inf, False
    if not high.any():  # the slope from the centre: this far below it, rounding hides the slope between the outer radii
        return float(np.max((outer - height)[counts]) / np.log(RADII[2])), False
    return float(np.max(outer[counts] - inner[counts]) / np.log(RADII[2] / RADII[1])), True


def valley(target: Target, rows: PyTree, centre: np.ndarray, sds: np.ndarray, point: bool) -> float:
    """The largest d log p / d log r at the ends of valleys, with p the marginal density of the parameter that moves.

    One parameter is moved away, and the others are moved to their conditional maximum by Newton steps. The marginal
    density is Laplace's approximation. If a group's effects and their sd go to zero together, for example, the density
    may have infinite mass along a valley, but finite mass along each ray. For a ``point`` estimate p is the density
    itself, and only valleys that rise above the point count. The result is −inf if all valleys end far below.
    """
    numbers = np.tile(np.arange(len(centre)), 2)
    signs = np.repeat([-1.0, 1.0], len(centre))
    if len(centre) == 1:
        return -np.inf  # with one parameter the only valley is a ray
    return float(np.max(valley_slopes(target, rows, centre, sds, numbers, signs, point)))


def valley_slopes(
    target: Target, rows: PyTree, centre: np.ndarray, sds: np.ndarray, numbers: np.ndarray, signs: np.ndarray,
    point: bool,
) -> np.ndarray:  # fmt: skip
    """(v,) slopes at the ends of valleys; valley i moves parameter ``numbers[i]`` in the direction ``signs[i]``.

    All valleys are followed at the same time, so that one call of the compiled program evaluates them all.
    """
    count = len(numbers)
    positions, scale = np.tile(centre, (count, 1)), np.tile(sds, (count, 1))
    first_height, outcome = conditional_maxima(target, rows, positions, scale, numbers, point)
    last_height, slopes, reach = first_height.copy(), np.full(count, -np.inf), np.zeros(count)
    rises, blurred = np.zeros(count, int), np.zeros(count, bool)
    active = np.flatnonzero(outcome == FOUND)
    for radius in VALLEY_RADII:
        if radius > COMMON_RADIUS:
            active = active[slopes[active] > SLOWING]
        if not len(active):
            break
        entries = np.arange(len(active)), numbers[active]
        places, widths = positions[active], scale[active]
        places[entries] = (centre + radius * np.outer(signs[active], sds))[entries]
        heights, outcome = conditional_maxima(target, rows, places, widths, numbers[active], point)
        blurred[active[outcome == BLURRED]] = True
        goes_on = outcome == FOUND
        slopes[active[heights < first_height[active] - PLATEAU_DEPTH]] = -np.inf
        goes_on &= heights >= first_height[active] - PLATEAU_DEPTH
        stopped, active, height = active[~goes_on], active[goes_on], heights[goes_on]
        rises[active] = np.where(height > last_height[active] + AS_HIGH, rises[active] + 1, 0)
        with np.errstate(divide="ignore"):
            slopes[active] = (height - last_height[active]) / np.log(radius / reach[active])
        last_height[active], reach[active] = height, radius
        positions[active], scale[active] = places[goes_on], widths[goes_on]
        reach[stopped[np.isneginf(slopes[stopped])]] = 0
    counts = (reach >= LEAST_RADIUS) | (blurred & (reach >= LEAST_RADIUS_BLURRED))
    if point:
        counts &= (last_height > first_height + AS_HIGH) | (rises >= STEADY)
    return np.where(counts, slopes, -np.inf)


def conditional_maxima(
    target: Target, rows: PyTree, positions: np.ndarray, scale: np.ndarray, numbers: np.ndarray, point: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Moves all parameters but ``numbers[i]`` of each position i to their conditional maximum; returns log p there.

    Args:
        target: the log density.
        rows: the data, as ``target`` takes them.
        positions: (v, d), updated in place.
        scale: (v, d) sds of the parameters given all others, updated in place.
        numbers: (v,) the parameter of each position that stays as it is.
        point: whether p is the density itself; otherwise it is the marginal density of that parameter, by Laplace.

    Returns:
        (v,) log p, NaN if no maximum was found, and (v,) the outcome: ``FOUND``, ``SADDLE`` if the density is not
        concave there, or ``BLURRED`` if its curvature is lost in rounding errors.
    """
    diagonal = np.arange(len(positions)), numbers
    value, outcome = np.zeros(len(positions)), np.full(len(positions), FOUND)
    for iteration in range(NEWTON):
        if iteration == 0 or not point:
            value, slope, (sds, spectrum, basis) = _curvature(target, rows, positions, scale, numbers, outcome)
        else:  # without its volume, the height of a maximum needs no second curvature, which takes 2 d gradients
            value, slope = target.look(rows, positions)
        outcome[~np.isfinite(value)] = SADDLE
        is_found = (outcome == FOUND)[:, None]
        slope[diagonal] = 0.0
        step = np.einsum("vij,vi->vj", basis, sds * slope) / spectrum
        positions += np.where(is_found, sds * np.einsum("vij,vj->vi", basis, step), 0.0)
        sds[diagonal] = 1.0
        volume = 0.0 if point else np.sum(np.log(sds), 1) - np.sum(np.log(spectrum), 1) / 2
        sds[diagonal] = scale[diagonal]
        scale[:] = np.where(is_found, sds, scale)
    heights = target.at(rows, positions) + volume
    return np.where(outcome == FOUND, heights, np.nan), outcome


def _curvature(
    target: Target, rows: PyTree, positions: np.ndarray, scale: np.ndarray, numbers: np.ndarray, outcome: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
    """log p (v,) and its gradient (v, d) at positions (v, d), and −∇² by differences of gradients.

    −∇² is returned as sds D (v, d) and the eigenvalues (v, d) and vectors (v, d, d) of D (−∇²) D, whose diagonal is 1.
    The parameter that stays as it is takes no part. Where −∇² is not positive definite, ``outcome`` is updated.
    """
    count, size = positions.shape
    entries = np.arange(count)
    steps = 0.1 * scale[:, :, None] * np.eye(size)
    places = np.concatenate([positions[:, None], positions[:, None] + steps, positions[:, None] - steps], 1)
    values, slopes = target.look(rows, places.reshape(-1, size))
    slopes = slopes.reshape(count, -1, size)
    curvature = (slopes[:, 1 + size :] - slopes[:, 1 : 1 + size]) / (0.2 * scale[:, :, None])
    curvature = (curvature + curvature.swapaxes(1, 2)) / 2
    curvature[entries, numbers] = 0.0
    curvature[entries, :, numbers] = 0.0
    curvature[entries, numbers, numbers] = 1.0
    squares = np.diagonal(curvature, axis1=1, axis2=2)
    outcome[~np.all(squares > 0, 1)] = SADDLE
    is_found = (outcome == FOUND)[:, None]
    sds = np.where(is_found, squares, 1.0) ** -0.5
    correlation = np.where(is_found[:, None], curvature * sds[:, :, None] * sds[:, None, :], np.eye(size))
    spectrum, basis = np.linalg.eigh(correlation)
    outcome[spectrum[:, 0] <= 0] = BLURRED
    outcome[spectrum[:, 0] <= -BLUR * spectrum[:, -1]] = SADDLE
    spectrum = np.where((outcome == FOUND)[:, None], spectrum, 1.0)
    return values.reshape(count, -1)[:, 0], slopes[:, 0], (sds, spectrum, basis)
