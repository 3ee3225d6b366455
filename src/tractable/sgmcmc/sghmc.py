"""Stochastic-gradient Hamiltonian Monte Carlo: SGLD with momentum.

    v' = (1 − α) v + (ε_t/2) P ĝ(θ) + √(α ε_t T) L z,   θ' = θ + v',   z ~ N(0, I),   P = L Lᵀ

Target: p(θ|D)^{1/T} as ε → 0. The step is eq. 15 of Chen, Fox & Guestrin 2014 with η = ε/2 and without subtracting an
estimate of the gradient's noise. At friction α = 1 it *is* SGLD with step size ε. The stationary covariance at a fixed
ε solves a discrete Lyapunov equation, which gives the bias (``sgmcmc.bias``). Use this sampler if the parameters'
posterior scales differ and no preconditioner can be measured.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core import scaling, schedules, tree
from tractable.core.model import Batch, Kernel, PyTree
from tractable.sgmcmc.gradients import minibatch, require_batch
from tractable.sgmcmc.preconditioners import IDENTITY, Preconditioner
from tractable.sgmcmc.sgld import Info, as_schedule


class State(NamedTuple):
    """A position with its momentum, the schedule's time and the preconditioner's state."""

    position: PyTree
    velocity: PyTree  # v, like position
    time: jax.Array  # () t, steps taken
    memory: PyTree  # the preconditioner's state


def sghmc(
    log_posterior: Callable,
    step_size: float | jax.Array | schedules.Schedule,
    friction: float | jax.Array = 0.1,
    *,
    temperature: float | jax.Array | Callable = 1.0,
    preconditioner: Preconditioner | None = None,
    gradient: Callable | None = None,
) -> Kernel:
    """Make the SGHMC kernel.

    Args:
        log_posterior: ``(position, batch) -> ()``, an unbiased estimate of the sum over all rows.
        step_size: ε > 0, or a schedule ``t -> ε_t``.
        friction: α in (0, 1]; momentum lasts about 1/α steps.
        temperature, preconditioner, gradient: as for ``sgld``.
    """
    estimate, preconditioner = (gradient or minibatch)(log_posterior), preconditioner or IDENTITY
    epsilon, heat = as_schedule(step_size), as_schedule(temperature)

    def init(key: jax.Array, position: PyTree) -> State:
        return State(position, jax.tree.map(jnp.zeros_like, position), jnp.array(0), preconditioner.init(position))

    def draw(key: jax.Array, count: int, state: State, batch: Batch | None = None) -> PyTree:
        return tree.normal_like(key, state.position, count)

    def step(noise: PyTree, state: State, batch: Batch | None) -> tuple[State, Info]:
        eps, temp = epsilon(state.time), heat(state.time)
        slope = estimate(state.position, require_batch(batch))
        memory = preconditioner.update(state.memory, slope, batch)
        scale = preconditioner.scale(memory)
        spread = jnp.sqrt(friction * eps * temp)
        velocity = jax.tree.map(
            lambda v, g, z: ((1 - friction) * v + 0.5 * eps * g + spread * z).astype(v.dtype),
            state.velocity,
            scaling.covariance_multiply(scale, slope),
            scaling.multiply(scale, noise),
        )
        position = jax.tree.map(lambda x, v: x + v, state.position, velocity)
        return State(position, velocity, state.time + 1, memory), Info(eps, temp)

    return Kernel(init, draw, step)
