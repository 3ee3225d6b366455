"""The standard deviations σ at which the ELBO of a mean field is highest, for given means μ (docs/decisions/020).

    1/σᵢ² = E_q[Λᵢᵢ] = −E[εᵢ (gᵢ(μ + σε) − gᵢ(μ − σε))] / (2 σᵢ E[εᵢ²]),   g = ∇ log p(θ, y),  ε ~ N(0, 1)

The equation holds by Price's theorem (Opper & Archambeau 2009); Λ = −∇² log p(θ, y). The algorithm finds the σ that
solves it, for the average of all batches. A step takes gradients at ±ε on one batch, so the batch's noise in g(μ)
cancels. The signs of ε follow the rows of a Hadamard matrix. Then, where the density is normal, up to ``SIGNS``
parameters do not disturb each other's estimates, and the only noise left is the variation of Λᵢᵢ with the batch and θ.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.typing import ArrayLike

from tractable.core.model import Batch, Kernel

SIGNS = 16  # largest number of pairs of gradients in a step
SETTLING = 10  # number of steps before σ is first changed
SURE = 3.0  # standard errors by which a precision 1/σ² must exceed 0 before its σ is changed


class State(NamedTuple):
    """log σ, and running means from which it is computed; later steps have more weight in these means."""

    position: jax.Array  # (d,) log σ
    curvature: jax.Array  # (d,) mean of −εᵢ Δgᵢ / 2σᵢ
    square: jax.Array  # (d,) mean of εᵢ²
    spread: jax.Array  # (d,) mean of the squared difference of a step's curvature and precision × square
    time: jax.Array  # () number of steps taken


class Info(NamedTuple):
    """The trace of one step."""

    error: jax.Array  # () the largest relative standard error of a precision


def spread(log_posterior: Callable, mean: jax.Array) -> Kernel:
    """The kernel that finds σ (d,) of independent normals around ``mean`` (d,); positions are log σ.

    Args:
        log_posterior: ``(position (d,), batch) -> ()``, an estimate for all rows (``tr.log_posterior``).
    """
    size, count = mean.shape[0], pairs(mean.shape[0])
    signs = jnp.asarray(scipy.linalg.hadamard(count)[:, np.arange(size) % count], mean.dtype)  # (pair, d)
    gradient = jax.grad(log_posterior)

    def init(key: jax.Array, position: jax.Array) -> State:
        return first_state(position)

    def draw(key: jax.Array, count: int, state: State, batch: Batch | None = None) -> jax.Array:
        return jax.random.normal(key, (count, size), mean.dtype)

    def step(noise: jax.Array, state: State, batch: Batch | None) -> tuple[State, Info]:
        sd = jnp.exp(state.position)

        def one(eps: jax.Array) -> jax.Array:
            return -eps * (gradient(mean + sd * eps, batch) - gradient(mean - sd * eps, batch)) / (2 * sd)

        curvature, square = jnp.mean(jax.vmap(one)(signs * noise), 0), jnp.square(noise)
        time = state.time + 1
        weight = 2 / (time + 1)  # step t has weight t, out of a sum of t (t + 1) / 2
        residual = jnp.square(curvature - precision(state) * square)
        new = State(
            state.position, state.curvature + weight * (curvature - state.curvature),
            state.square + weight * (square - state.square),
            state.spread + weight * (residual - state.spread), time,
        )  # fmt: skip
        moves = (time >= SETTLING) & (SURE * relative_error(new) < 1)
        position = jnp.where(moves, -jnp.log(jnp.where(moves, precision(new), 1)) / 2, state.position)
        return new._replace(position=position), Info(jnp.max(relative_error(new)))

    return Kernel(init, draw, step)


def first_state(position: ArrayLike) -> State:
    """The state before the first step, at log σ (..., d)."""
    nothing = np.zeros(np.shape(position), jnp.result_type(position))
    return State(*map(jnp.asarray, (position, nothing, nothing, nothing, np.zeros(nothing.shape[:-1], int))))


def pairs(size: int) -> int:
    """The number of pairs of gradients in a step for ``size`` parameters, a power of 2."""
    return min(SIGNS, 1 << (size - 1).bit_length())


def precision(state: State) -> jax.Array:
    """The current estimate of E_q[Λᵢᵢ], (d,)."""
    return state.curvature / jnp.where(state.square > 0, state.square, 1)


def relative_error(state: State) -> jax.Array:
    """The relative standard errors of ``precision``, (d,); infinite where a precision is not above 0."""
    variance = state.spread * 4 / (3 * jnp.maximum(state.time, 1))  # Σ t² / (Σ t)² = 4/3t
    above = state.curvature > 0
    return jnp.where(above, jnp.sqrt(variance) / jnp.where(above, state.curvature, 1), jnp.inf)
