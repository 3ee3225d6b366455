"""Modes that a posterior may not have visited: climbs from overdispersed starts, side by side in one program."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.spatial import KDTree

from tractable.checks.target import Target

PyTree = Any
MEMORY = 6  # pairs of steps and gradients that L-BFGS keeps
ITERATIONS = 150
GAIN = 1e-3  # nats to be had, below which a climb has ended
WIDTHS = (3.0, 5.0, 8.0, 12.0, 30.0, 5.0, 8.0, 12.0, 300.0)  # of starts around what was found, in its sds
SCREENED, LOW = 512, 6  # places of which the highest among their neighbours are climbed from; to six numbers four times
NEIGHBOURS = 6
MODES = 8  # looked at, at most
SAME = 0.1  # nats, and sds a number, within which two climbs ended at one mode
NEGLIGIBLE = 12.0  # nats below the largest mass at which a mode no longer counts
LEAST, MOST = 0.15, 3.0  # nats that the density falls by an sd away from a mode; a normal's 0.5
FLAT = 1e-6  # least eigenvalue of a mode's curvature, of the largest: below it is a ridge or a plateau


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


def starts(target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(count, d) overdispersed places: half as they fell, and half those of many that are higher than all near them.

    Antithetic, from the prior where it is one, and around what was found at growing widths. A place above its
    neighbours stands for a basin that they do not (Boender et al. 1982): a narrow mode seldom has a start of its own.
    """
    generator = np.random.default_rng(seed)
    first = _overdispersed(target, generator, centre, root, count - count // 2, seed)
    screened = SCREENED * (4 if len(centre) <= LOW and count > SCREENED // 4 else 1)
    many = _overdispersed(target, generator, centre, root, screened, seed + 1)
    values = target.at(rows, many)
    white = np.linalg.solve(root, (many - centre).T).T
    near = np.asarray(KDTree(white).query(white, NEIGHBOURS + 1)[1])[:, 1:]
    highest = np.flatnonzero(values > values[near].max(1))
    best = highest[np.argsort(-values[highest])][: count // 2]
    others = np.argsort(-values)[: count // 2 - len(best)]
    return np.concatenate([first, many[best], many[others]])


def _overdispersed(
    target: Target, generator: np.random.Generator, centre: np.ndarray, root: np.ndarray, count: int, seed: int
) -> np.ndarray:
    model, pairs = target.model, count // 2
    normal = generator.standard_normal((pairs, len(centre)))
    half = pairs // 2
    if model.prior_is_callable:
        home = np.asarray(model.position_of(model.example(jax.random.key(0))), np.float64)
        away = home + np.resize(WIDTHS, half)[:, None] * normal[:half] @ root.T
        mirrored = 2 * home - away
    else:
        away = np.asarray(_from_prior(model, jax.random.key(seed), half), np.float64)
        mirrored = 2 * np.median(np.where(np.isfinite(away), away, 0.0), 0) - away
    around = np.resize(WIDTHS, pairs - half)[:, None] * normal[half:] @ root.T
    found = np.concatenate([away, mirrored, centre + around, centre - around])
    return np.where(np.isfinite(found), found, centre)


@functools.partial(jax.jit, static_argnames=("model", "count"))
def _from_prior(model: Any, key: jax.Array, count: int) -> jax.Array:
    return jax.vmap(lambda key: model.position_of(model.sample_prior(key)))(jax.random.split(key, count))


def climb(target: Target, rows: PyTree, begin: np.ndarray, centre: np.ndarray, root: np.ndarray) -> Ends:
    """L-BFGS from every start (s, d), in coordinates x in which what was found has unit covariance: z = centre + L x.

    All climbs take one try at a time, so that one call looks at them all: a try is taken where it climbs enough, and
    else the next is shorter.
    """

    def look(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = target.look(rows, centre + x @ root.T)
        return values, slopes @ root

    x = np.linalg.solve(root, (begin - centre).T).T
    count, size = x.shape
    value, slope = look(x)
    memory = Memory.empty(count, size)
    length = np.minimum(1.0, 1 / np.maximum(np.linalg.norm(slope, axis=1), 1e-30))
    to_come = np.full(count, np.inf)
    going = np.isfinite(value)
    for _ in range(ITERATIONS):
        active = np.flatnonzero(going)
        if not len(active):
            break
        at, up = x[active], slope[active]
        direction = memory.direction(active, up)
        promised = np.sum(direction * up, 1)
        downhill = ~(promised > 0)
        direction[downhill], promised[downhill] = up[downhill], np.sum(up[downhill] ** 2, 1)
        # Where the density is nearly flat a step goes no further than the climb has come.
        reach = 5 * np.sqrt(size) + np.linalg.norm(at, axis=1)
        step_length = np.minimum(length[active], reach / np.maximum(np.linalg.norm(direction, axis=1), 1e-30))
        new = at + step_length[:, None] * direction
        new_value, new_slope = look(new)
        taken = new_value >= value[active] + 1e-4 * step_length * promised
        memory.keep(active[taken], (new - at)[taken], (up - new_slope)[taken])
        to_come[active] = promised
        floor = np.maximum(GAIN / 10, 1e-6 * (1 + np.abs(value[active])))  # what rounding leaves of a climb
        x[active[taken]], value[active[taken]], slope[active[taken]] = new[taken], new_value[taken], new_slope[taken]
        length[active] = np.where(taken, 1.0, 0.3 * step_length)
        going[active] = step_length * promised > floor
    return Ends(x @ root.T + centre, value, to_come)


class Memory(NamedTuple):
    """The last steps of L-BFGS and what the slope lost on them, climb by climb; newest last, zeros to begin with."""

    steps: np.ndarray  # (s, m, d)
    turns: np.ndarray  # (s, m, d)

    @classmethod
    def empty(cls, count: int, size: int) -> "Memory":
        return cls(np.zeros((count, MEMORY, size)), np.zeros((count, MEMORY, size)))

    def keep(self, which: np.ndarray, step: np.ndarray, turn: np.ndarray) -> None:
        """Pairs of climbs ``which``, but for those across which the density curves upwards."""
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
    """−∇² (d, d) by differences of slopes at ±``scale`` (d,) along each number."""
    steps = np.diag(scale)
    _, slopes = target.look(rows, np.concatenate([position + steps, position - steps]))
    size = len(position)
    columns = (slopes[size:] - slopes[:size]) / (2 * scale[:, None])
    return (columns + columns.T) / 2


def modes(target: Target, rows: PyTree, ends: Ends, root: np.ndarray) -> list[Mode]:
    """Maxima of the density among where climbs ended, likeliest mass first; plateaus and ridges are none."""
    size = root.shape[0]
    chosen: list[int] = []
    for i in np.argsort(-ends.values):
        if not np.isfinite(ends.values[i]) or ends.to_come[i] > max(GAIN, 1e-5 * (1 + abs(ends.values[i]))) * 10:
            continue
        near = [
            abs(ends.values[i] - ends.values[j]) < SAME
            and np.linalg.norm(np.linalg.solve(root, ends.positions[i] - ends.positions[j])) < SAME * np.sqrt(size)
            for j in chosen
        ]
        if not any(near):
            chosen.append(int(i))
        if len(chosen) == MODES:
            break
    if not chosen:
        return []
    found: list[Mode] = []
    for i in chosen:
        mode = _mode(target, rows, ends.positions[i], float(ends.values[i]), np.sqrt(np.sum(root**2, 1)))
        if mode is not None and not any(_alike(mode, other) for other in found) and rounded(target, rows, mode):
            found.append(mode)
    if not found:
        return []
    found.sort(key=lambda m: -m.log_mass)
    return [m for m in found if m.log_mass > found[0].log_mass - NEGLIGIBLE]


def _mode(target: Target, rows: PyTree, position: np.ndarray, value: float, width: np.ndarray) -> Mode | None:
    """The maximum and its curvature, looked at over a tenth of its own width; None where it is none."""
    curved = precision(target, rows, position, 0.1 * width)
    own = np.abs(np.diag(curved))
    if np.all(np.isfinite(curved)) and np.all(own > 0):  # what was found may be far wider or narrower than the mode
        curved = precision(target, rows, position, 0.1 / np.sqrt(own))
    if not np.all(np.isfinite(curved)):
        return None
    scale = np.sqrt(np.maximum(np.abs(np.diag(curved)), 1e-300))
    values, basis = np.linalg.eigh(curved / np.outer(scale, scale))
    if values[0] <= FLAT * values[-1]:
        return None
    covariance = (basis / values) @ basis.T / np.outer(scale, scale)
    root = np.linalg.cholesky((covariance + covariance.T) / 2)
    mass = value + len(position) / 2 * np.log(2 * np.pi) + float(np.sum(np.log(np.diag(root))))
    return Mode(position, value, root, mass)


def rounded(target: Target, rows: PyTree, mode: Mode) -> bool:
    """Whether the density falls around it as the normal's does, half a nat at an sd: on a plain it does not."""
    columns = mode.root.T
    falls = mode.value - target.at(rows, np.concatenate([mode.position + columns, mode.position - columns]))
    return bool(LEAST <= np.median(falls) <= MOST)


def _alike(one: Mode, other: Mode) -> bool:
    away = np.linalg.solve(other.root, one.position - other.position)
    return bool(np.linalg.norm(away) < 0.5 * np.sqrt(len(away)))
