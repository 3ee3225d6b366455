"""The standard deviations at which a mean field's bound is highest, for given means.

    1/σᵢ² = E_q[Λᵢᵢ] = −E[εᵢ (gᵢ(μ + σε) − gᵢ(μ − σε))] / (2 σᵢ E[εᵢ²]),   g = ∇ log p(θ, y),  ε ~ N(0, 1)

by Price's theorem (Opper & Archambeau 2009). A step takes pairs ±ε on one batch, so that the batch's noise in g(μ)
drops out, with signs by rows of a Hadamard matrix, so that up to ``SIGNS`` parameters do not disturb each other where
the density is normal: what is left is how Λᵢᵢ varies with the batch and with θ. Target: the fixed point in σ, for the
average of all batches.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.typing import ArrayLike

from tractable.core.model import Batch, Kernel

SIGNS = 16  # pairs of gradients a step, at most
SETTLING = 10  # steps before σ moves
SURE = 3.0  # standard errors that a precision must lie above 0 for its σ to move


class State(NamedTuple):
    """log σ, and running means of what it is made of, in which later steps weigh more."""

    position: jax.Array  # (d,) log σ
    curvature: jax.Array  # (d,) of −εᵢ Δgᵢ / 2σᵢ
    square: jax.Array  # (d,) of εᵢ²
    spread: jax.Array  # (d,) of the squares of what a step's curvature lacks of precision × square
    time: jax.Array  # () steps taken


class Info(NamedTuple):
    """The trace of one step."""

    error: jax.Array  # () largest standard error of a precision, over the precision


def spread(log_posterior: Callable, mean: jax.Array) -> Kernel:
    """The kernel that finds σ (d,) of independent normals about ``mean`` (d,); positions are log σ.

    Args:
        log_posterior: ``(position (d,), batch) -> ()``, in the sum scale (``tr.log_posterior``).
    """
    size, count = mean.shape[0], pairs(mean.shape[0])
    signs = jnp.asarray(scipy.linalg.hadamard(count)[:, np.arange(size) % count], mean.dtype)  # (pair, d)
    gradient = jax.grad(log_posterior)

    def init(key: jax.Array, position: jax.Array) -> State:
        return begun(position)

    def draw(key: jax.Array, count: int, state: State, batch: Batch | None = None) -> jax.Array:
        return jax.random.normal(key, (count, size), mean.dtype)

    def step(noise: jax.Array, state: State, batch: Batch | None) -> tuple[State, Info]:
        sd = jnp.exp(state.position)

        def one(eps: jax.Array) -> jax.Array:
            return -eps * (gradient(mean + sd * eps, batch) - gradient(mean - sd * eps, batch)) / (2 * sd)

        curvature, square = jnp.mean(jax.vmap(one)(signs * noise), 0), jnp.square(noise)
        time = state.time + 1
        weight = 2 / (time + 1)  # of step t: t, of all t (t + 1) / 2
        lacking = jnp.square(curvature - precision(state) * square)
        new = State(
            state.position, state.curvature + weight * (curvature - state.curvature),
            state.square + weight * (square - state.square),
            state.spread + weight * (lacking - state.spread), time,
        )  # fmt: skip
        moves = (time >= SETTLING) & (SURE * relative_error(new) < 1)
        found = jnp.where(moves, -jnp.log(jnp.where(moves, precision(new), 1)) / 2, state.position)
        return new._replace(position=found), Info(jnp.max(relative_error(new)))

    return Kernel(init, draw, step)


def begun(position: ArrayLike) -> State:
    """The first state at log σ (..., d)."""
    nothing = np.zeros(np.shape(position), jnp.result_type(position))
    return State(*map(jnp.asarray, (position, nothing, nothing, nothing, np.zeros(nothing.shape[:-1], int))))


def pairs(size: int) -> int:
    """Pairs of gradients that a step takes for so many parameters: a power of 2."""
    return min(SIGNS, 1 << (size - 1).bit_length())


def precision(state: State) -> jax.Array:
    """(d,) E_q[Λᵢᵢ], as far as known."""
    return state.curvature / jnp.where(state.square > 0, state.square, 1)


def relative_error(state: State) -> jax.Array:
    """(d,) standard errors of ``precision``, over it; infinite where it is not above 0."""
    variance = state.spread * 4 / (3 * jnp.maximum(state.time, 1))  # Σ t² / (Σ t)² = 4/3t
    above = state.curvature > 0
    return jnp.where(above, jnp.sqrt(variance) / jnp.where(above, state.curvature, 1), jnp.inf)
