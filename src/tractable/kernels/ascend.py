"""Climb an objective with an optax optimiser.

    params' = params + optimiser(∇ objective(noise, params, batch))

Target: a maximum of the objective's expectation. The one place with a minus sign: optax descends.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tractable.core import Batch, Kernel, Objective

PyTree = Any


class State(NamedTuple):
    """Where a climb is, and what its optimiser and its gradient's estimator remember."""

    position: PyTree
    memory: PyTree  # of the optimiser
    seen: PyTree = ()  # of the gradient's estimator


class Info(NamedTuple):
    """What one step of a climb tells."""

    objective: jax.Array  # () noisy, at the position left behind


def ascend(objective: Objective, optimizer: optax.GradientTransformation) -> Kernel:
    """The kernel that climbs ``objective``, noise and batch drawn afresh at every step."""

    def init(key: jax.Array, position: PyTree) -> State:
        return State(position, optimizer.init(position), objective.remember(position))

    def draw(key: jax.Array, count: int, state: State, batch: Batch | None = None) -> PyTree:
        return objective.draw(key, count, state.position)

    def step(noise: PyTree, state: State, batch: Batch | None) -> tuple[State, Info]:
        if objective.slope is None:
            value, gradient = jax.value_and_grad(objective.value, argnums=1)(noise, state.position, batch)
            seen = state.seen
        else:
            value, gradient, seen = objective.slope(noise, state.position, batch, state.seen)
        downhill = jax.tree.map(jnp.negative, gradient)
        updates, memory = optimizer.update(downhill, state.memory, state.position)
        return State(optax.apply_updates(state.position, updates), memory, seen), Info(value)

    return Kernel(init, draw, step)
