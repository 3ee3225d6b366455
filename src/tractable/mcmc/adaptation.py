"""The warm-up of HMC and NUTS: step sizes by dual averaging, and a mass matrix from draws and their gradients.

The kernel tunes its own step size at every step of the warm-up (Hoffman & Gelman 2014, eq. 6, with Stan's constants).
The host computes the inverse mass matrix L Lᵀ between windows of steps, in double precision, from the draws of all
chains. It minimises the Fisher divergence between the draws, seen through L⁻¹, and a standard normal (Seyboldt, Carlson
& Carpenter 2026): on a normal target any draws give the right matrix, wherever the chains are.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import scaling
from tractable.core.model import Batch, Kernel, PyTree
from tractable.mcmc.hamiltonian import Point

RATE, DELAY, DECAY = 0.05, 10, 0.75  # γ, t₀ and κ of Hoffman & Gelman
FULL = 32  # up to this many parameters, L may stretch every direction
MOST = 1000  # beyond this many parameters, L is diagonal
# docs/decisions/055 says what these limits do; they were not tuned.
NUMBERS = 1 << 24  # largest number of numbers of a window's draws that are kept
RIDGE = 1e-9  # share of the diagonal that is added to a covariance of draws, which makes it definite
CUTOFF = 2.0  # directions are stretched if this changes their variance by more than this factor


class Adapting(NamedTuple):
    """The state of a kernel that tunes its step size."""

    point: Point  # the state of the kernel itself
    averaging: jax.Array  # (3,) H̄, weighted mean of log ε, and number of updates of dual averaging

    @property
    def position(self) -> jax.Array:
        return self.point.position


class Traced(NamedTuple):
    """The trace of one trajectory, with the gradient at its draw."""

    acceptance: jax.Array
    divergent: jax.Array
    energy: jax.Array
    gradients: jax.Array
    saturated: jax.Array
    gradient: jax.Array  # (d,)


def adaptive(kernel: Callable[[jax.Array], Kernel], tuned: dict[str, jax.Array]) -> Kernel:
    """The kernel that ``kernel(step size)`` gives, with the step size ``tuned["step_size"]``.

    If ``tuned["adapts"]`` is 1, this number is only the first step size: each step changes the chain's step size
    towards the acceptance probability ``tuned["target"]``. The info has the gradient at each draw, from which the host
    computes the mass matrix.
    """
    first, adapts, target = (tuned[name] for name in ("step_size", "adapts", "target"))
    plain = kernel(first)

    def draw(key: jax.Array, count: int, state: Adapting, batch: Batch | None = None) -> PyTree:
        return plain.draw(key, count, state.point, batch)

    def init(key: jax.Array, position: jax.Array) -> Adapting:
        return Adapting(plain.init(key, position), jnp.zeros(3, position.dtype))

    def step(noise: PyTree, state: Adapting, batch: Batch | None = None) -> tuple[Adapting, Traced]:
        gap, _, time = state.averaging
        size = jnp.where(time > 0, 10 * first * jnp.exp(-jnp.sqrt(time) / RATE * gap), first)
        point, info = kernel(size).step(noise, state.point, batch)
        averaging = _average(state.averaging, target - info.acceptance, jnp.log(10 * first))
        return Adapting(point, adapts * averaging), Traced(*info, gradient=point.gradient)

    return Kernel(init, draw, step)


def _average(averaging: jax.Array, miss: jax.Array, centre: jax.Array) -> jax.Array:
    """The next state of dual averaging around ``centre``, after an acceptance that was ``miss`` below the target."""
    gap, mean, time = averaging
    time = time + 1
    gap = gap + (miss - gap) / (time + DELAY)
    share = time**-DECAY
    mean = share * (centre - jnp.sqrt(time) / RATE * gap) + (1 - share) * mean
    return jnp.stack([gap, mean, time])


def common_step(averaging: np.ndarray) -> float:
    """The geometric mean over chains of the averaged step sizes, from the state (chain, 3) of dual averaging."""
    return float(np.exp(np.mean(averaging[:, 1])))


def windows(groups: int) -> list[int]:
    """The numbers of groups after which windows end. The last window only tunes the step size.

    From the second window on, lengths double, until the rest is too short for another window. The draws of a window
    give the mass matrix of the next one.
    """
    last = max(1, round(0.1 * groups))
    ends, length = [], 1
    while (end := sum(ends[-1:]) + length) <= groups - last:
        ends.append(end if end + 2 * length <= groups - last else groups - last)
        length *= 2 if len(ends) > 1 else 1
    return [*dict.fromkeys(ends), groups]


def rank(size: int, dense: bool) -> int:
    """The number k of directions that L stretches beyond its diagonal."""
    if size < 2 or (size > MOST and not dense):
        return 0
    return size if dense else min(size, FULL)


def first_root(size: int, rank: int, gradients: np.ndarray | None = None) -> scaling.LowRank:
    """A diagonal L: the identity, or variances 1 / |∇log π| from the gradients (chain, d) at the chains' starts."""
    slopes = np.ones(size) if gradients is None else np.abs(gradients.astype(float)).mean(0)
    scale = np.sqrt(1 / np.clip(slopes, 1e-10, 1e10))
    return scaling.LowRank(scale, np.zeros((size, rank)), np.ones(rank))


class Window:
    """The draws of a window with their gradients.

    Args:
        rank: the number of directions that L may stretch.
        numbers: the number of numbers of all draws; of many, only every m-th draw is kept.
    """

    def __init__(self, rank: int, numbers: int) -> None:
        self.rank, self.every = rank, -(-numbers // NUMBERS)
        self.draws: list[np.ndarray] = []  # (chain, draw, d) each
        self.gradients: list[np.ndarray] = []

    def add(self, draws: np.ndarray, info: dict[str, np.ndarray], *others: object) -> None:
        """Add the draws of a segment of the run."""
        self.draws.append(draws[:, :: self.every])
        self.gradients.append(info["gradient"][:, :: self.every])

    def root(self, before: scaling.LowRank, dense: bool) -> scaling.LowRank:
        """L for the next window.

        The diagonal has the variances sqrt(var θ / var ∇log π), in the median over chains. The directions are those
        in which the geometric mean of the covariance of the draws and of the inverse covariance of the gradients is
        largest or smallest; without ``dense``, only those that change the variance by more than a factor of CUTOFF.
        """
        with np.errstate(all="ignore"):
            draws, gradients = (_centre(np.concatenate(parts, 1)) for parts in (self.draws, self.gradients))
            scales = (draws.var(1) / gradients.var(1)) ** 0.25  # (chain, d)
            scales[~((scales > 1e-10) & (scales < 1e10))] = np.nan  # a chain that did not move
        known = np.isfinite(scales).any(0)
        scale = np.array(before.scale, float)
        scale[known] = np.exp(np.nanmedian(np.log(scales[:, known]), 0))
        root = scaling.LowRank(scale, np.zeros((len(scale), self.rank)), np.ones(self.rank))
        if not self.rank:
            return root
        try:
            vectors, variances, others = _directions(draws / scale, gradients * scale, self.rank)
        except np.linalg.LinAlgError:
            return root
        if not (np.all(np.isfinite([*variances, others])) and min(*variances, others) > 0):
            return root
        stretch = np.sqrt(variances / others)
        if not dense:
            stretch[np.abs(np.log(stretch)) < 0.5 * np.log(CUTOFF)] = 1.0
        return scaling.LowRank(scale * np.sqrt(others), vectors * (stretch != 1), stretch)


def _centre(draws: np.ndarray) -> np.ndarray:
    draws = draws.astype(float)
    return draws - draws.mean(1, keepdims=True)


def _directions(draws: np.ndarray, gradients: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Orthonormal directions (d, k), the variance of the draws along each, and their typical variance along others.

    Args:
        draws, gradients: (chain, draw, d), centred and in units of the diagonal of L.
    """
    x, g = (each.reshape(-1, each.shape[-1]) / np.sqrt(each.shape[0] * each.shape[1]) for each in (draws, gradients))
    basis = np.eye(x.shape[1])
    if rank < len(basis):  # the directions of the largest and of the smallest variances
        extremes = [np.linalg.svd(each, full_matrices=False)[2][: rank // 2] for each in (x, g)]
        basis = np.linalg.qr(np.concatenate(extremes).T)[0]
    if len(x) < 3 * basis.shape[1]:
        raise np.linalg.LinAlgError("too few draws")
    covariance, information = ((each @ basis).T @ (each @ basis) for each in (x, g))
    variances, vectors = np.linalg.eigh(
        _geometric_mean(*(a + RIDGE * np.diag(np.diag(a)) for a in (covariance, information)))
    )
    others = float(np.median(variances))
    if rank < len(x[0]):
        others = float(np.sqrt((np.sum(x**2) - np.trace(covariance)) / (np.sum(g**2) - np.trace(information))))
    padding = rank - basis.shape[1]
    return np.pad(basis @ vectors, ((0, 0), (0, padding))), np.append(variances, np.full(padding, others)), others


def _geometric_mean(covariance: np.ndarray, information: np.ndarray) -> np.ndarray:
    """The symmetric Σ with Σ · information · Σ = covariance."""
    values, vectors = np.linalg.eigh(information)
    if values.min() <= 0:
        raise np.linalg.LinAlgError("the gradients' covariance is not definite")
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    values, vectors = np.linalg.eigh(root @ covariance @ root)
    if values.min() <= 0:
        raise np.linalg.LinAlgError("the draws' covariance is not definite")
    return inverse @ (vectors * np.sqrt(values)) @ vectors.T @ inverse


def directions(root: scaling.LowRank) -> int:
    """The number of directions that L stretches beyond its diagonal."""
    return int(np.sum(np.asarray(root.stretch) != 1))
