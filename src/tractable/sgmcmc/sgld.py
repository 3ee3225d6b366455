"""Stochastic-gradient Langevin dynamics.

    θ' = θ + (ε_t/2) P ĝ(θ) + √(ε_t T) L z,   z ~ N(0, I),   P = L Lᵀ

ĝ is an unbiased estimate of ∇ log p(θ|D) from a minibatch (Welling & Teh 2011, eq. 4). Target: p(θ|D)^{1/T} as ε → 0.
At a fixed ε a known bias remains. For a normal target of precision h, gradient noise of variance V, independent batches
and P = 1:

    stationary variance = (1/h) (1 + εV/4) / (1 − εh/4),   stable iff ε < 4/h.

``sgmcmc.bias`` predicts the bias in any dimension. There is no accept step that would remove it: if gradients over all
rows are affordable, use MALA or NUTS, which have no such bias.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core import scaling, schedules, tree
from tractable.core.model import Batch, Kernel, PyTree
from tractable.sgmcmc.gradients import minibatch, require_batch
from tractable.sgmcmc.preconditioners import IDENTITY, Preconditioner


class State(NamedTuple):
    """A position, the schedule's time and the preconditioner's state."""

    position: PyTree
    time: jax.Array  # () t, steps taken
    memory: PyTree  # the preconditioner's state


class Info(NamedTuple):
    """The trace of one step of SGLD or SGHMC."""

    step_size: jax.Array  # () ε_t
    temperature: jax.Array  # () T_t, 0 in the exploring part of a cycle


def sgld(
    log_posterior: Callable,
    step_size: float | jax.Array | schedules.Schedule,
    *,
    temperature: float | jax.Array | Callable = 1.0,
    preconditioner: Preconditioner | None = None,
    gradient: Callable | None = None,
    noise_scale: PyTree = None,
) -> Kernel:
    """Make the SGLD kernel.

    Args:
        log_posterior: ``(position, batch) -> ()``, an unbiased estimate of the sum over all rows
            (``tr.log_posterior``).
        step_size: ε > 0, or a schedule ``t -> ε_t``. It is twice BlackJAX's step size.
        temperature: T ≥ 0, or ``t -> T_t``. 1 samples the posterior, 0 is stochastic gradient ascent.
        preconditioner: P, by default 1; with ``preconditioners.rmsprop()`` this is pSGLD.
        gradient: makes an estimator from ``log_posterior``; one of ``tractable.gradients``, by default ``minibatch``.
        noise_scale: S, a scale of the injected noise S z that replaces √ε L. It is smaller, because the gradient's
            measured noise is subtracted (``bias.reduced_noise``). For a constant ε only.
    """
    estimate, preconditioner = (gradient or minibatch)(log_posterior), preconditioner or IDENTITY
    epsilon, heat = as_schedule(step_size), as_schedule(temperature)

    def init(key: jax.Array, position: PyTree) -> State:
        return State(position, jnp.array(0), preconditioner.init(position))

    def draw(key: jax.Array, count: int, state: State, batch: Batch | None = None) -> PyTree:
        return tree.normal_like(key, state.position, count)

    def step(noise: PyTree, state: State, batch: Batch | None) -> tuple[State, Info]:
        eps, temp = epsilon(state.time), heat(state.time)
        slope = estimate(state.position, require_batch(batch))
        memory = preconditioner.update(state.memory, slope, batch)
        scale = preconditioner.scale(memory)
        spread = jnp.sqrt(temp) if noise_scale is not None else jnp.sqrt(eps * temp)
        position = jax.tree.map(
            lambda x, g, z: (x + 0.5 * eps * g + spread * z).astype(x.dtype),
            state.position,
            scaling.covariance_multiply(scale, slope),
            scaling.multiply(scale if noise_scale is None else noise_scale, noise),
        )
        return State(position, state.time + 1, memory), Info(eps, temp)

    return Kernel(init, draw, step)


def as_schedule(value: float | jax.Array | Callable) -> Callable:
    """The value itself if it is a schedule (a function of t), else a constant schedule."""
    return value if callable(value) else lambda t: jnp.asarray(value, jnp.result_type(float))
