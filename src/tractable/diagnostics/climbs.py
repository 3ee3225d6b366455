"""Finds modes that a posterior's draws may have missed, by climbs from overdispersed starts.

A climb is a maximisation of the log density by L-BFGS. All climbs run at the same time in one compiled program.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # whose parts are imported when they are first used

from tractable.core.priors import is_distribution
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.simulation import draws_of
from tractable.core.tree import PyTree
from tractable.diagnostics.target import Target

# The numbers below were tuned on the examples of docs/decisions/010-climbs-to-modes.md. Log densities are in nats, the
# unit of natural logarithms.
MEMORY = 6  # number of past steps and gradient changes that L-BFGS keeps
ITERATIONS = 150  # maximum number of steps of a climb
GAIN = 1e-3  # nats; a climb ends when a step is expected to gain less than a tenth of this
START_WIDTHS = (3.0, 5.0, 8.0, 12.0, 30.0, 5.0, 8.0, 12.0, 300.0)  # sds of starts around the mean, in posterior sds
# For a density without a prior to draw from, every EXAMPLE_EVERY-th distant start lies near the model's example: each
# unconstrained number within ±BEGIN of the example's. Chains start there too.
EXAMPLE_EVERY, BEGIN = 8, 1.0
# Number of random points that are screened for starts: points of high density become starts. For many starts and up to
# FEW_NUMBERS parameters, four times as many are screened.
SCREENED, FEW_NUMBERS = 512, 6
AXIS_STEPS = (4.0, 16.0, 64.0, 256.0, 1024.0)  # sds from the centre to points on axes
OFF_AXIS = 0.03  # distance of these points from their axis, in posterior sds
NEAR = 6.0  # nats, to which half the number of parameters is added: how far below a maximum most of its mass lies
NEIGHBOURS = 6  # number of nearest points whose density a screened point must exceed to become a start
INNER_WIDTHS = (1.0, 0.7, 1.0, 0.4, 1.0, 0.2)  # sds of points drawn inside the posterior, in posterior sds
DISTANCES = (3.0, 5.0, 8.0, 12.0, 18.0, 26.0)  # posterior sds from the centre to the modes that distant points seek
LIFTED = 20  # maximum number of steps of a climb on p/q, with q the posterior's normal approximation
# Number of points in a shell (all about equally far from the centre), and maximum number of outliers from one shell.
SHELL, FROM_SHELL = 128, 8
SAME_DIRECTION = 0.9  # cosine of the angle between two points, above which they lie in the same direction
MODES = 8  # maximum number of modes examined
# Two ends closer than this are the same mode: in nats, and in posterior sds (root mean square over parameters).
SAME_MODE = 0.1
NEGLIGIBLE = 12.0  # nats; a mode whose log mass is this far below the largest is left out
LEAST_FALL, MOST_FALL = 0.15, 3.0  # nats by which log p should fall at one sd from a mode; a normal's falls by 0.5
MODE_WIDTHS = (1.0, 0.1, 0.01)  # widths that are tried for a mode, as shares of the posterior's width
# Factor by which a curvature may grow if it is measured over the width that it suggests. Where a density is flat, this
# width is so large that the differences reach beyond the plain.
MOST_BEND = 1e6
FLAT = 1e-6  # smallest over largest eigenvalue of a mode's curvature, below which it is a ridge or a plateau


class Ends(NamedTuple):
    """Where climbs ended."""

    positions: np.ndarray  # (s, d)
    values: np.ndarray  # (s,)
    to_come: np.ndarray  # (s,) nats that the last step tried was expected to gain


class Path(NamedTuple):
    """Points at which climbs were, in no order."""

    positions: np.ndarray  # (n, d)
    values: np.ndarray  # (n,) log densities


class Mode(NamedTuple):
    """A maximum of the log density, and the normal approximation around it."""

    position: np.ndarray  # (d,)
    value: float  # log density at the maximum, up to the target's constant
    root: np.ndarray  # (d, d) Cholesky factor L of the normal's covariance, L Lᵀ = (−∇² log p)⁻¹
    log_mass: float  # log of the density's integral around the mode, by Laplace's approximation


def starts(
    target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, count: int, points: int, seed: int,
    known: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """About 1.4 ``count`` starting points (s, d) of climbs; ``known`` points (k, d), if given, come first.

    Of ``count`` points, half are overdispersed draws: antithetic pairs from the prior, where it can be sampled, and
    pairs around the posterior's mean at growing widths. A quarter are the best of many more such draws: points whose
    density is higher than at all their nearest neighbours. Such a point belongs to a peak that its neighbours do not
    belong to (Boender et al. 1982). Without this step a narrow mode seldom gets a start. One eighth are outliers of the
    density among ``points`` draws inside the posterior, and one eighth are outliers among ``points`` distant draws.

    An outlier's gradient may still point to the visited mode, even if the outlier belongs to a narrow mode. The
    gradient of log p/q, where q is the posterior's normal approximation, does not. Therefore each outlier is also moved
    by a short climb on p/q, and the ends of these climbs are further starts.
    """
    generator = np.random.default_rng(seed)
    size, is_large = len(centre), count > SCREENED // 4
    screened = SCREENED * (4 if size <= FEW_NUMBERS and is_large else 1)
    unscreened, part = count // 2, count // 8
    distant = _distant_points(target.model, generator, centre, root, unscreened // 4 + screened // 4, seed)
    first_starts = _overdispersed_points(generator, centre, root, unscreened, *(a[: unscreened // 4] for a in distant))
    # With the width √(1 + D²/d), most points lie as far out as the draws of a mode at the distance D.
    outer_widths = np.sqrt(1 + np.square(DISTANCES) / size)
    outliers = lifted_outliers = np.empty((0, size))
    if part:
        normals = generator.standard_normal((points, size), np.float32)
        outliers = np.concatenate([
            _shell_outliers(target, rows, normals, centre, root, np.resize(widths, points), part)
            for widths in (INNER_WIDTHS, outer_widths)
        ])  # fmt: skip
        lifted_outliers = climb(target, rows, outliers, centre, root, LIFTED, 1.0).positions
    places = _overdispersed_points(generator, centre, root, screened, *(a[unscreened // 4 :] for a in distant))
    values = target.at(rows, places)
    white = (places - centre) @ np.linalg.inv(root).T
    neighbours = np.asarray(scipy.spatial.KDTree(white).query(white, NEIGHBOURS + 1)[1])[:, 1:]
    highest = np.flatnonzero(values > values[neighbours].max(1))
    best = highest[np.argsort(-values[highest])][: count // 4]
    remainder = np.argsort(-values)[: count // 4 - len(best)]
    known = np.empty((0, size)) if known is None else known
    on_axes = _axis_points(target, rows, generator, centre, root, part, points) if part else np.empty((0, size))
    return np.concatenate([known, first_starts, outliers, lifted_outliers, places[best], places[remainder], on_axes])


def _axis_points(
    target: Target, rows: PyTree, generator: np.random.Generator, centre: np.ndarray, root: np.ndarray, count: int,
    points: int,
) -> np.ndarray:  # fmt: skip
    """The ``count`` points (count, d) near axes through the centre where log p/q is highest, one for each half-axis.

    Axes are those of the parameters and the main axes of the posterior. A narrow bar that crosses the posterior is
    missed by random points, but an axis lies in it or near it. Points on an axis itself could be saddle points. If
    more than about ``points`` would be looked at, only some of the half-axes are.
    """
    values, basis = np.linalg.eigh(root @ root.T)
    axes = np.concatenate([np.diag(np.sqrt(np.sum(np.square(root), 1))), (basis * np.sqrt(np.abs(values))).T])
    axes = generator.permutation(np.concatenate([axes, -axes]))[: max(count, points // len(AXIS_STEPS))]
    places = centre + np.array(AXIS_STEPS)[:, None, None] * axes  # (step, axis, d)
    places = places + OFF_AXIS * generator.standard_normal(places.shape) @ root.T
    white = (places - centre) @ np.linalg.inv(root).T
    heights = target.at(rows, np.concatenate([centre[None], places.reshape(-1, len(centre))]))
    height, heights = heights[0], heights[1:].reshape(places.shape[:2])
    excess = heights + np.sum(np.square(white), 2) / 2 - height
    near = heights > height - NEAR - len(centre) / 2
    excess = np.where(near & (excess > NEAR), 1e100 + excess, excess)  # such a point already lies on the bar
    best = np.argsort(-np.max(excess, 0))[:count]
    return places[np.argmax(excess, 0)[best], best]


def _shell_outliers(
    target: Target, rows: PyTree, normals: np.ndarray, centre: np.ndarray, root: np.ndarray, widths: np.ndarray,
    best: int,
) -> np.ndarray:  # fmt: skip
    """Random points (best, d) whose density is unusually high for their distance from the centre (outliers).

    Standard ``normals`` (n, d) are placed at ``widths`` (n,), in posterior sds. The gradient alone cannot find a narrow
    mode: outside it, the gradient is that of the wide mode around it. A normal density is constant on a shell of points
    that are equally far from its centre. A point whose density is an outlier within its shell therefore belongs to
    another mode.
    An outlier is measured from the shell's median, in units of the shell's interquartile range.
    """
    x = widths.astype(np.float32)[:, None] * normals
    radii = np.einsum("nd,nd->n", x, x, dtype=np.float64)
    shells = np.argsort(radii)[: len(x) // SHELL * SHELL].reshape(-1, SHELL)
    dtype = jnp.result_type(float)  # of the target's program, because in double precision this takes longer than log p
    positions = centre.astype(dtype) + x @ root.T.astype(dtype)
    values = (target.at(rows, positions) + radii / 2)[shells]
    low, middle, high = np.sort(values, 1)[:, [SHELL // 4, SHELL // 2, 3 * SHELL // 4]].T
    spread = np.maximum(high - low, 1e-6 * (1 + np.abs(middle)))
    excess = np.where(np.isfinite(spread)[:, None], (values - middle[:, None]) / spread[:, None], -np.inf)
    top = np.argsort(-excess, 1)[:, :FROM_SHELL]
    shells, excess = (np.take_along_axis(a, top, 1).ravel() for a in (shells, excess))
    return centre + x[_best_per_direction(x, shells, excess, best)] @ root.T


def _best_per_direction(x: np.ndarray, places: np.ndarray, excess: np.ndarray, best: int) -> np.ndarray:
    """Chooses ``best`` of ``places``, which are indices into x (n, d): first the highest ``excess`` in each direction.

    When one point of every direction has been chosen, the second highest of each direction follow, and so on.
    """
    directions = x[places] / np.linalg.norm(x[places], axis=1, keepdims=True)
    unused, free, choices = np.ones(len(places), bool), np.ones(len(places), bool), []
    while len(choices) < best and unused.any():
        free = free if free.any() else unused.copy()
        candidates = np.flatnonzero(free)
        i = candidates[np.argmax(excess[candidates])]
        choices.append(i)
        unused[i] = free[i] = False
        free &= directions @ directions[i] < SAME_DIRECTION
    return places[choices]


def _distant_points(
    model: Any, generator: np.random.Generator, centre: np.ndarray, root: np.ndarray, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(count, d) distant points, and their mirror images (count, d): draws of the prior, mirrored at its median.

    If the prior is a function, it cannot be drawn from. Then the points are draws of wide normals around the model's
    example parameters, mirrored there; every EXAMPLE_EVERY-th point is near the example, where chains start too.
    """
    if model.prior_is_callable:
        example = np.asarray(model.position_of(model.example(jax.random.key(0))), np.float64)
        widths = np.resize(START_WIDTHS, count)[:, None]
        points = example + widths * generator.standard_normal((count, len(centre))) @ root.T
        close = points[EXAMPLE_EVERY - 1 :: EXAMPLE_EVERY]
        close[:] = example + generator.uniform(-BEGIN, BEGIN, close.shape)
        return points, 2 * example - points
    points = np.asarray(_from_prior(model, seed, count), np.float64)
    return points, 2 * np.median(np.where(np.isfinite(points), points, 0.0), 0) - points


def _overdispersed_points(
    generator: np.random.Generator, centre: np.ndarray, root: np.ndarray, count: int, distant: np.ndarray,
    mirrored: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """(count, d): ``distant`` points, their mirror images, and antithetic pairs around the posterior's mean.

    A point with a coordinate that is not finite has the posterior's mean there.
    """
    size = count // 2 - len(distant)
    steps = np.resize(START_WIDTHS, size)[:, None] * generator.standard_normal((size, len(centre))) @ root.T
    points = np.concatenate([distant, mirrored, centre + steps, centre - steps])
    return np.where(np.isfinite(points), points, centre)


def _from_prior(model: Any, seed: int, count: int) -> np.ndarray | jax.Array:
    """(count, d) positions drawn from the prior, by NumPy where it can."""
    draws = draws_of(jax.tree.leaves(model.prior, is_leaf=is_distribution), count, seed)
    if draws is None or model.numpy_bijections is None:
        return _from_prior_by_jax(model, jax.random.key(seed), count)
    with np.errstate(divide="ignore"):
        positions = [inverse(a) for (_, inverse), a in zip(model.numpy_bijections, draws, strict=True)]
    return np.concatenate([a.reshape(count, -1) for a in positions], 1)


@compiled("model", "count", if_few=COMPILE_FASTEST)
def _from_prior_by_jax(model: Any, key: jax.Array, count: int) -> jax.Array:
    return jax.vmap(lambda key: model.position_of(model.sample_prior(key)))(jax.random.split(key, count))


def climb(
    target: Target, rows: PyTree, begin: np.ndarray, centre: np.ndarray, root: np.ndarray, steps: int = ITERATIONS,
    lift: float = 0.0, path: list[Path] | None = None,
) -> Ends:  # fmt: skip
    """Maximises the density by L-BFGS from every start ``begin`` (s, d).

    The climbs use coordinates x in which the posterior has unit covariance: z = centre + L x, with L the ``root``. They
    maximise log p + lift |x|²/2. With a ``lift`` of 1, this is log p/q, where q is the posterior's normal
    approximation. In each iteration every climb tries one step, and one call evaluates all these steps. A step that
    gains enough is accepted. After a step that does not, the climb tries a shorter one.
    """

    def look(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = target.look(rows, centre + x @ root.T)
        return values + lift / 2 * np.sum(np.square(x), 1), slopes @ root + lift * x

    x = np.linalg.solve(root, (begin - centre).T).T
    count, size = x.shape
    value, slope = look(x)
    if path is not None:
        path.append(Path(begin, value.copy()))
    memory = Memory.empty(count, size)
    length = np.minimum(1.0, 1 / np.maximum(np.linalg.norm(slope, axis=1), 1e-30))
    to_come = np.full(count, np.inf)
    is_running = np.isfinite(value)
    for _ in range(steps):
        active = np.flatnonzero(is_running)
        if not len(active):
            break
        old, up = x[active], slope[active]
        direction = memory.direction(active, up)
        gain = np.sum(direction * up, 1)  # the gain that the slope predicts for a full step
        downhill = ~(gain > 0)
        direction[downhill], gain[downhill] = up[downhill], np.sum(up[downhill] ** 2, 1)
        # The step's length is limited, because a nearly flat density would suggest a very long step. The limit is the
        # distance from the centre plus 5 √d. On p/q it is one sd: where p falls more slowly than q, p/q rises for ever.
        limit = 1.0 if lift else 5 * np.sqrt(size) + np.linalg.norm(old, axis=1)
        step_length = np.minimum(length[active], limit / np.maximum(np.linalg.norm(direction, axis=1), 1e-30))
        new = old + step_length[:, None] * direction
        new_value, new_slope = look(new)
        accept = new_value >= value[active] + 1e-4 * step_length * gain
        memory.keep(active[accept], (new - old)[accept], (up - new_slope)[accept])
        to_come[active] = gain
        floor = np.maximum(GAIN / 10, 1e-6 * (1 + np.abs(value[active])))  # a smaller gain is negligible, or rounding
        updated = active[accept]
        if path is not None:
            path.append(Path(new[accept] @ root.T + centre, new_value[accept]))
        x[updated], value[updated], slope[updated] = new[accept], new_value[accept], new_slope[accept]
        length[active] = np.where(accept, 1.0, 0.3 * step_length)
        is_running[active] = step_length * gain > floor
    return Ends(x @ root.T + centre, value, to_come)


class Memory(NamedTuple):
    """For each climb, the last m L-BFGS steps and the gradient's changes along them; the newest pair is the last.

    Pairs are zero until they have been filled.
    """

    steps: np.ndarray  # (s, m, d)
    turns: np.ndarray  # (s, m, d) the gradient before the step minus the gradient after it

    @classmethod
    def empty(cls, count: int, size: int) -> "Memory":
        return cls(np.zeros((count, MEMORY, size)), np.zeros((count, MEMORY, size)))

    def keep(self, which: np.ndarray, step: np.ndarray, turn: np.ndarray) -> None:
        """Stores the pairs of climbs ``which``, except where the log density is convex along the step."""
        useful = np.sum(step * turn, 1) > 1e-10 * np.sum(step**2, 1)
        for memory, new in ((self.steps, step), (self.turns, turn)):
            memory[which[useful]] = np.concatenate([memory[which[useful]][:, 1:], new[useful, None]], 1)

    def direction(self, which: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """The L-BFGS direction by the two-loop recursion (Nocedal 1980); pairs that are zero change nothing."""
        steps, turns = self.steps[which], self.turns[which]
        inner = np.sum(steps * turns, 2)
        rho = np.divide(1.0, inner, out=np.zeros_like(inner), where=inner > 0)
        q, alphas = slope.copy(), np.zeros_like(inner)
        for i in reversed(range(MEMORY)):
            alphas[:, i] = rho[:, i] * np.sum(steps[:, i] * q, 1)
            q -= alphas[:, i, None] * turns[:, i]
        newest = np.sum(turns[:, -1] ** 2, 1)
        q *= np.divide(inner[:, -1], newest, out=np.ones_like(newest), where=newest > 0)[:, None]
        for i in range(MEMORY):
            q += steps[:, i] * (alphas[:, i] - rho[:, i] * np.sum(turns[:, i] * q, 1))[:, None]
        return q


def precision(target: Target, rows: PyTree, position: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """−∇² log p (d, d) at ``position``, by differences of the gradient at ±``scale`` (d,) along each coordinate."""
    steps = np.diag(scale)
    _, slopes = target.look(rows, np.concatenate([position + steps, position - steps]))
    size = len(position)
    columns = (slopes[size:] - slopes[:size]) / (2 * scale[:, None])
    return (columns + columns.T) / 2


def modes(target: Target, rows: PyTree, ends: Ends, root: np.ndarray) -> list[Mode]:
    """The maxima at which climbs ended, the one with the largest mass first; plateaus and ridges are left out."""
    size = root.shape[0]
    tolerance = np.maximum(GAIN, 1e-5 * (1 + np.abs(ends.values))) * 10
    queue = np.argsort(-ends.values)
    queue = queue[np.isfinite(ends.values[queue]) & (ends.to_come[queue] <= tolerance[queue])]
    white = ends.positions @ np.linalg.inv(root).T
    distinct: list[int] = []
    while len(queue) and len(distinct) < MODES:
        best = queue[0]
        distinct.append(int(best))
        equal = np.abs(ends.values[queue] - ends.values[best]) < SAME_MODE
        queue = queue[~(equal & (np.linalg.norm(white[queue] - white[best], axis=1) < SAME_MODE * np.sqrt(size)))]
    maxima: list[Mode] = []
    for i in distinct:
        mode = _mode(target, rows, ends.positions[i], float(ends.values[i]), np.sqrt(np.sum(root**2, 1)))
        if mode is not None and not any(_same_mode(mode, other) for other in maxima):
            maxima.append(mode)
    maxima.sort(key=lambda m: -m.log_mass)
    return [m for m in maxima if m.log_mass > maxima[0].log_mass - NEGLIGIBLE]


def places_met(ends: Ends, root: np.ndarray) -> np.ndarray:
    """(s,) for every end of a climb, the index of the highest end in its group.

    From the highest end down, each end without a group starts one with all such ends closer than √d/2 posterior sds.
    """
    white = ends.positions @ np.linalg.inv(root).T
    highest = np.full(len(white), -1)
    for i in np.argsort(-ends.values):
        if highest[i] < 0:
            close = np.linalg.norm(white - white[i], axis=1) < 0.5 * np.sqrt(white.shape[1])
            highest[close & (highest < 0)] = i
            highest[i] = i
    return highest


def climbs_at(ends: Ends, modes: list[Mode]) -> np.ndarray:
    """(modes,) the number of climbs that ended at each mode."""
    white = [np.linalg.solve(m.root, (ends.positions - m.position).T) for m in modes]
    return np.array([int(np.sum(np.linalg.norm(w, axis=0) < 0.5 * np.sqrt(len(w)))) for w in white])


def _mode(target: Target, rows: PyTree, position: np.ndarray, value: float, width: np.ndarray) -> Mode | None:
    """The mode at a climb's end; None if it is no maximum.

    Its curvature is measured over a tenth of its own width. Several widths are tried, because a mode may be far
    narrower than the posterior: differences over the posterior's width would not see the narrow mode's curvature.
    """
    for part in MODE_WIDTHS:
        curvature = precision(target, rows, position, 0.1 * part * width)
        own = np.abs(np.diag(curvature))
        if np.all(np.isfinite(curvature)) and np.all(own > 0):
            curvature = precision(target, rows, position, 0.1 / np.sqrt(own))
            if np.any(np.abs(np.diag(curvature)) > MOST_BEND * own):
                continue
        mode = _normal(position, value, curvature)
        if mode is not None and falls_as_normal(target, rows, mode):
            slope = target.look(rows, mode.position[None])[1][0]
            # The gain in nats that a Newton step would still bring. On a curved ridge a climb may stop too early.
            if float(np.sum(np.square(mode.root.T @ slope))) / 2 < SAME_MODE:
                return mode
    return None


def _normal(position: np.ndarray, value: float, curvature: np.ndarray) -> Mode | None:
    """The mode with a normal of precision ``curvature`` (d, d); None where ``curvature`` is not positive definite."""
    if not np.all(np.isfinite(curvature)):
        return None
    scale = np.sqrt(np.maximum(np.abs(np.diag(curvature)), 1e-300))
    with np.errstate(over="ignore"):
        correlation = curvature / np.outer(scale, scale)
    # A correlation cannot exceed 1, so with larger entries this is no maximum. LAPACK might also fail to find the
    # eigenvalues of such a matrix.
    if not np.max(np.abs(correlation)) <= 2:
        return None
    values, basis = np.linalg.eigh(correlation)
    if values[0] <= FLAT * values[-1]:
        return None
    covariance = (basis / values) @ basis.T / np.outer(scale, scale)
    root = np.linalg.cholesky((covariance + covariance.T) / 2)
    mass = value + len(position) / 2 * np.log(2 * np.pi) + float(np.sum(np.log(np.diag(root))))
    return Mode(position, value, root, mass)


def falls_as_normal(target: Target, rows: PyTree, mode: Mode) -> bool:
    """Whether log p falls about as a normal's does: by half a nat at one sd from the mode. On a plateau it does not."""
    columns = mode.root.T
    falls = mode.value - target.at(rows, np.concatenate([mode.position + columns, mode.position - columns]))
    return bool(LEAST_FALL <= np.median(falls) <= MOST_FALL)


def _same_mode(one: Mode, other: Mode) -> bool:
    """Whether one mode lies within half the radius √d of the other's normal."""
    white = np.linalg.solve(other.root, one.position - other.position)
    return bool(np.linalg.norm(white) < 0.5 * np.sqrt(len(white)))
