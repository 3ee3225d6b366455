"""Climb an objective with an optax optimiser.

    params' = params + optimiser(∇ objective(noise, params, batch))

Target: a maximum of the objective's expectation. optax minimises, so the gradient's sign is flipped in this file.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from tractable.core.model import Batch, Kernel, Objective, PyTree


class State(NamedTuple):
    """The position of a climb, and the state of its optimiser and of its gradient estimator."""

    position: PyTree
    memory: PyTree  # the optimiser's state
    seen: PyTree = ()  # the gradient estimator's state


class Info(NamedTuple):
    """The trace of one step of a climb."""

    objective: jax.Array  # () noisy value of the objective at the position before the step


def ascend(objective: Objective, optimizer: optax.GradientTransformation) -> Kernel:
    """The kernel that takes one optimiser step up ``objective``, with fresh noise and a fresh batch at every step."""

    def init(key: jax.Array, position: PyTree) -> State:
        return State(position, optimizer.init(position), objective.first_memory(position))

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
