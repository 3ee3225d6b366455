"""Finds modes that a posterior may have missed: climbs from overdispersed starts, side by side in one program."""

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy  # whose parts are imported when they are first used

from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.tree import PyTree
from tractable.diagnostics.target import Target

MEMORY = 6  # pairs of a step and its change of gradient that L-BFGS keeps
ITERATIONS = 150
GAIN = 1e-3  # nats; a climb ends when its next step promises less than a tenth of this
START_WIDTHS = (3.0, 5.0, 8.0, 12.0, 30.0, 5.0, 8.0, 12.0, 300.0)  # of starts around the posterior's mean, in its sds
HOMES, BEGIN = 8, 1.0  # every how manyth far place is near the example of a density; how near, as chains begin
SCREENED, FEW_NUMBERS = 512, 6  # screened places; four times as many for up to FEW_NUMBERS parameters
NEIGHBOURS = 6  # nearest places that a screened place must exceed for a climb to start from it
INNER_WIDTHS = (1.0, 0.7, 1.0, 0.4, 1.0, 0.2)  # of places drawn within the posterior, in its sds
DISTANCES = (3.0, 5.0, 8.0, 12.0, 18.0, 26.0)  # sds from the centre to modes as wide, of places drawn around it
LIFTED = 20  # most steps of a climb on p/q
SHELL, FROM_SHELL = 128, 8  # places in a shell, all about as far from the centre, and how many of them may stand out
SAME_DIRECTION = 0.9  # cosine of the angle between two places; above it one stands for the other
MODES = 8  # most modes examined
SAME_MODE = 0.1  # nats, and posterior sds per parameter, within which two climbs ended at one mode
NEGLIGIBLE = 12.0  # nats below the largest mass at which a mode no longer counts
LEAST_FALL, MOST_FALL = 0.15, 3.0  # nats that the log density may fall one sd away from a mode; a normal's falls 0.5
MODE_WIDTHS = (1.0, 0.1, 0.01)  # widths that a mode may have, as shares of the posterior's
FLAT = 1e-6  # least over largest eigenvalue of a mode's curvature, below which it is a ridge or a plateau


class Ends(NamedTuple):
    """Where climbs ended."""

    positions: np.ndarray  # (s, d)
    values: np.ndarray  # (s,)
    to_come: np.ndarray  # (s,) nats that the last step still promised


class Mode(NamedTuple):
    """A maximum, and the normal around it."""

    position: np.ndarray  # (d,)
    value: float
    root: np.ndarray  # (d, d) L, L Lᵀ = (−∇²)⁻¹
    log_mass: float  # by Laplace's approximation


def starts(
    target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, count: int, points: int, seed: int,
    known: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """About ``count`` starting points (s, d), and a quarter as many that others of them climb to on p/q.

    ``known`` places (k, d) are among them.

    Half are overdispersed draws: antithetic pairs from the prior, where it can be sampled, and around the posterior's
    mean at growing widths. A quarter are the best of many more such draws: those above all their neighbours. Such a
    place marks a basin that its neighbours miss (Boender et al. 1982); a narrow mode seldom gets a start otherwise. An
    eighth each stand out among ``points`` within the posterior, and as many far around it.

    A place stands out long before it is nearer a narrow mode than the one that was visited. Its slope still points to
    the latter; that of p/q, q the posterior's normal, does not. So these places also climb on p/q first.
    """
    generator = np.random.default_rng(seed)
    size, many = len(centre), count > SCREENED // 4
    screened = SCREENED * (4 if size <= FEW_NUMBERS and many else 1)
    fallen, part = count // 2, count // 8
    away = _distant_points(target.model, generator, centre, root, fallen // 4 + screened // 4, seed)
    first = _overdispersed(generator, centre, root, fallen, *(a[: fallen // 4] for a in away))
    # √(1 + D²/d) is the width at which most places lie as far out as the draws of a mode at the distance D.
    outside = np.sqrt(1 + np.square(DISTANCES) / size)
    outliers = lifted = np.empty((0, size))
    if part:
        outliers = np.concatenate([
            _shell_outliers(target, rows, generator, centre, root, np.resize(widths, points), part)
            for widths in (INNER_WIDTHS, outside)
        ])  # fmt: skip
        lifted = climb(target, rows, outliers, centre, root, LIFTED, 1.0).positions
    places = _overdispersed(generator, centre, root, screened, *(a[fallen // 4 :] for a in away))
    values = target.at(rows, places)
    white = (places - centre) @ np.linalg.inv(root).T
    near = np.asarray(scipy.spatial.KDTree(white).query(white, NEIGHBOURS + 1)[1])[:, 1:]
    highest = np.flatnonzero(values > values[near].max(1))
    best = highest[np.argsort(-values[highest])][: count // 4]
    others = np.argsort(-values)[: count // 4 - len(best)]
    known = np.empty((0, size)) if known is None else known
    return np.concatenate([known, first, outliers, lifted, places[best], places[others]])


def _shell_outliers(
    target: Target, rows: PyTree, generator: np.random.Generator, centre: np.ndarray, root: np.ndarray,
    widths: np.ndarray, best: int,
) -> np.ndarray:  # fmt: skip
    """(best, d) places whose density is too high for their distance from the centre; one is drawn for each width.

    ``widths`` are in posterior sds. A spike in a slab can be felt only inside the spike: outside, the slope is the
    slab's. A narrow mode far away can be felt only within a cone. A normal has one height on a shell around its centre,
    so a place that stands out of its shell belongs to something else. The shell's quartiles say what is usual there.
    """
    x = widths[:, None] * generator.standard_normal((len(widths), len(centre)), np.float32)
    radii = np.einsum("nd,nd->n", x, x, dtype=np.float64)
    shells = np.argsort(radii)[: len(x) // SHELL * SHELL].reshape(-1, SHELL)
    positions = centre + x @ root.T
    values = (target.at(rows, positions) + radii / 2)[shells]
    low, middle, high = np.sort(values, 1)[:, [SHELL // 4, SHELL // 2, 3 * SHELL // 4]].T
    usual = np.maximum(high - low, 1e-6 * (1 + np.abs(middle)))
    above = np.where(np.isfinite(usual)[:, None], (values - middle[:, None]) / usual[:, None], -np.inf)
    top = np.argsort(-above, 1)[:, :FROM_SHELL]
    shells, above = (np.take_along_axis(a, top, 1).ravel() for a in (shells, above))
    return positions[_best_per_direction(x, shells, above, best)]


def _best_per_direction(x: np.ndarray, places: np.ndarray, above: np.ndarray, best: int) -> np.ndarray:
    """(best,) of ``places``, indices into x (n, d): the highest ``above`` of each direction, then each one's next."""
    towards = x[places] / np.linalg.norm(x[places], axis=1, keepdims=True)
    left, free, chosen = np.ones(len(places), bool), np.ones(len(places), bool), []
    while len(chosen) < best and left.any():
        free = free if free.any() else left.copy()
        which = np.flatnonzero(free)
        i = which[np.argmax(above[which])]
        chosen.append(i)
        left[i] = free[i] = False
        free &= towards @ towards[i] < SAME_DIRECTION
    return places[chosen]


def _distant_points(
    model: Any, generator: np.random.Generator, centre: np.ndarray, root: np.ndarray, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(count, d) places far out, and their mirror images: draws of the prior.

    Where the prior cannot be drawn from, wide normals around the model's example, and where methods begin (HOMES).
    """
    if model.prior_is_callable:
        home = np.asarray(model.position_of(model.example(jax.random.key(0))), np.float64)
        away = home + np.resize(START_WIDTHS, count)[:, None] * generator.standard_normal((count, len(centre))) @ root.T
        near = away[HOMES - 1 :: HOMES]
        near[:] = home + generator.uniform(-BEGIN, BEGIN, near.shape)
        return away, 2 * home - away
    away = np.asarray(_from_prior(model, jax.random.key(seed), count), np.float64)
    return away, 2 * np.median(np.where(np.isfinite(away), away, 0.0), 0) - away


def _overdispersed(
    generator: np.random.Generator, centre: np.ndarray, root: np.ndarray, count: int, away: np.ndarray,
    mirrored: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """(count, d): the far places ``away``, and as many around the posterior's mean, in antithetic pairs."""
    size = count // 2 - len(away)
    around = np.resize(START_WIDTHS, size)[:, None] * generator.standard_normal((size, len(centre))) @ root.T
    found = np.concatenate([away, mirrored, centre + around, centre - around])
    return np.where(np.isfinite(found), found, centre)


@compiled("model", "count", if_few=COMPILE_FASTEST)
def _from_prior(model: Any, key: jax.Array, count: int) -> jax.Array:
    return jax.vmap(lambda key: model.position_of(model.sample_prior(key)))(jax.random.split(key, count))


def climb(
    target: Target, rows: PyTree, begin: np.ndarray, centre: np.ndarray, root: np.ndarray, steps: int = ITERATIONS,
    lift: float = 0.0,
) -> Ends:  # fmt: skip
    """L-BFGS from every start (s, d), in coordinates x in which the posterior has unit covariance: z = centre + L x.

    What is climbed is log p + lift |x|²/2: with a ``lift`` of 1, log p/q. All climbs try one step at a time, so that
    one call evaluates them all. A step that gains enough is taken; after one that does not, the next try is shorter.
    """

    def look(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = target.look(rows, centre + x @ root.T)
        return values + lift / 2 * np.sum(np.square(x), 1), slopes @ root + lift * x

    x = np.linalg.solve(root, (begin - centre).T).T
    count, size = x.shape
    value, slope = look(x)
    memory = Memory.empty(count, size)
    length = np.minimum(1.0, 1 / np.maximum(np.linalg.norm(slope, axis=1), 1e-30))
    to_come = np.full(count, np.inf)
    going = np.isfinite(value)
    for _ in range(steps):
        active = np.flatnonzero(going)
        if not len(active):
            break
        at, up = x[active], slope[active]
        direction = memory.direction(active, up)
        promised = np.sum(direction * up, 1)
        downhill = ~(promised > 0)
        direction[downhill], promised[downhill] = up[downhill], np.sum(up[downhill] ** 2, 1)
        # Where the density is nearly flat a step is at most as long as the distance from the centre, plus 5 √d; on p/q,
        # which rises for ever where p falls more slowly than q, one sd.
        reach = 1.0 if lift else 5 * np.sqrt(size) + np.linalg.norm(at, axis=1)
        step_length = np.minimum(length[active], reach / np.maximum(np.linalg.norm(direction, axis=1), 1e-30))
        new = at + step_length[:, None] * direction
        new_value, new_slope = look(new)
        taken = new_value >= value[active] + 1e-4 * step_length * promised
        memory.keep(active[taken], (new - at)[taken], (up - new_slope)[taken])
        to_come[active] = promised
        floor = np.maximum(GAIN / 10, 1e-6 * (1 + np.abs(value[active])))  # below this a gain is rounding
        x[active[taken]], value[active[taken]], slope[active[taken]] = new[taken], new_value[taken], new_slope[taken]
        length[active] = np.where(taken, 1.0, 0.3 * step_length)
        going[active] = step_length * promised > floor
    return Ends(x @ root.T + centre, value, to_come)


class Memory(NamedTuple):
    """For each climb the last L-BFGS steps, and how much the slope fell on each; newest last, zeros at first."""

    steps: np.ndarray  # (s, m, d)
    turns: np.ndarray  # (s, m, d)

    @classmethod
    def empty(cls, count: int, size: int) -> "Memory":
        return cls(np.zeros((count, MEMORY, size)), np.zeros((count, MEMORY, size)))

    def keep(self, which: np.ndarray, step: np.ndarray, turn: np.ndarray) -> None:
        """Store the pairs of climbs ``which``, except where the density curves upwards along the step."""
        useful = np.sum(step * turn, 1) > 1e-10 * np.sum(step**2, 1)
        for memory, new in ((self.steps, step), (self.turns, turn)):
            memory[which[useful]] = np.concatenate([memory[which[useful]][:, 1:], new[useful, None]], 1)

    def direction(self, which: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Two-loop recursion (Nocedal 1980); pairs that are zero change nothing."""
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
    """−∇² log density (d, d), by differences of its gradient at ±``scale`` (d,) along each coordinate."""
    steps = np.diag(scale)
    _, slopes = target.look(rows, np.concatenate([position + steps, position - steps]))
    size = len(position)
    columns = (slopes[size:] - slopes[:size]) / (2 * scale[:, None])
    return (columns + columns.T) / 2


def modes(target: Target, rows: PyTree, ends: Ends, root: np.ndarray) -> list[Mode]:
    """The maxima at which climbs ended, largest mass first; plateaus and ridges are left out."""
    size = root.shape[0]
    enough = np.maximum(GAIN, 1e-5 * (1 + np.abs(ends.values))) * 10
    left = np.argsort(-ends.values)
    left = left[np.isfinite(ends.values[left]) & (ends.to_come[left] <= enough[left])]
    white = ends.positions @ np.linalg.inv(root).T
    chosen: list[int] = []
    while len(left) and len(chosen) < MODES:
        best = left[0]
        chosen.append(int(best))
        same = np.abs(ends.values[left] - ends.values[best]) < SAME_MODE
        left = left[~(same & (np.linalg.norm(white[left] - white[best], axis=1) < SAME_MODE * np.sqrt(size)))]
    found: list[Mode] = []
    for i in chosen:
        mode = _mode(target, rows, ends.positions[i], float(ends.values[i]), np.sqrt(np.sum(root**2, 1)))
        if mode is not None and not any(_same_mode(mode, other) for other in found):
            found.append(mode)
    if not found:
        return []
    found.sort(key=lambda m: -m.log_mass)
    return [m for m in found if m.log_mass > found[0].log_mass - NEGLIGIBLE]


def places_met(ends: Ends, root: np.ndarray) -> np.ndarray:
    """(s,) of every end the index of the highest one at its place, within half the posterior's radius."""
    white = ends.positions @ np.linalg.inv(root).T
    found = np.full(len(white), -1)
    for i in np.argsort(-ends.values):
        if found[i] < 0:
            near = np.linalg.norm(white - white[i], axis=1) < 0.5 * np.sqrt(white.shape[1])
            found[near & (found < 0)] = i
            found[i] = i
    return found


def met(ends: Ends, modes: list[Mode]) -> np.ndarray:
    """(modes,) how many climbs ended at each."""
    size = ends.positions.shape[1]
    white = [np.linalg.solve(m.root, (ends.positions - m.position).T) for m in modes]
    return np.array([int(np.sum(np.linalg.norm(w, axis=0) < 0.5 * np.sqrt(size))) for w in white])


def _mode(target: Target, rows: PyTree, position: np.ndarray, value: float, width: np.ndarray) -> Mode | None:
    """The mode at a climb's end, its curvature measured over a tenth of its own width; None if it is no maximum.

    Several widths are tried: over the width of a far wider posterior a spike in a slab looks like the slab.
    """
    for part in MODE_WIDTHS:
        curved = precision(target, rows, position, 0.1 * part * width)
        own = np.abs(np.diag(curved))
        if np.all(np.isfinite(curved)) and np.all(own > 0):
            curved = precision(target, rows, position, 0.1 / np.sqrt(own))
        mode = _normal(position, value, curved)
        if mode is not None and rounded(target, rows, mode):
            slope = target.look(rows, mode.position[None])[1][0]
            # Nats that Newton's step would still climb: in a bent valley climbs may stall with a slope along it.
            if float(np.sum(np.square(mode.root.T @ slope))) / 2 < SAME_MODE:
                return mode
    return None


def _normal(position: np.ndarray, value: float, curved: np.ndarray) -> Mode | None:
    """The mode with a normal of precision ``curved`` (d, d); None where ``curved`` is not positive definite."""
    if not np.all(np.isfinite(curved)):
        return None
    scale = np.sqrt(np.maximum(np.abs(np.diag(curved)), 1e-300))
    with np.errstate(over="ignore"):
        scaled = curved / np.outer(scale, scale)
    if not np.max(np.abs(scaled)) <= 2:  # no correlation is above 1: no eigenvalues that LAPACK may not find
        return None
    values, basis = np.linalg.eigh(scaled)
    if values[0] <= FLAT * values[-1]:
        return None
    covariance = (basis / values) @ basis.T / np.outer(scale, scale)
    root = np.linalg.cholesky((covariance + covariance.T) / 2)
    mass = value + len(position) / 2 * np.log(2 * np.pi) + float(np.sum(np.log(np.diag(root))))
    return Mode(position, value, root, mass)


def rounded(target: Target, rows: PyTree, mode: Mode) -> bool:
    """Whether the density falls around the mode as a normal's does, half a nat at one sd; on a plain it does not."""
    columns = mode.root.T
    falls = mode.value - target.at(rows, np.concatenate([mode.position + columns, mode.position - columns]))
    return bool(LEAST_FALL <= np.median(falls) <= MOST_FALL)


def _same_mode(one: Mode, other: Mode) -> bool:
    away = np.linalg.solve(other.root, one.position - other.position)
    return bool(np.linalg.norm(away) < 0.5 * np.sqrt(len(away)))
