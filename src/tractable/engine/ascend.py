"""Climb an objective with an optax optimiser.

    params' = params + optimiser(∇ objective(noise, params, batch))

Target: a maximum of the objective's expectation. optax minimises, so the gradient's sign is flipped in this file.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable.core.errors import SettingsError
from tractable.core.model import Batch, Kernel, Objective, PyTree

CHECKED = 1000  # largest number of times at which a user's schedule is checked


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


def evaluate_schedule(what: str, schedule: Callable, steps: int, most: int = CHECKED) -> np.ndarray:
    """(m,) the learning rates of a user's schedule at m ≤ ``most`` evenly spaced times of a run of ``steps`` steps.

    Raises:
        SettingsError: "{what} expects a schedule ...": JAX cannot trace the schedule, or a rate is no scalar, negative
            or not finite.
    """
    times = np.unique(np.linspace(0, steps - 1, min(steps, most)).astype(int))
    try:
        found = np.asarray(jax.vmap(schedule)(jnp.asarray(times)), float)
    except Exception as error:  # a user's function may raise anything
        got = f"{type(error).__name__}: {str(error).split(chr(10))[0].rstrip('.')}"
    else:
        good = (found >= 0) & (found < math.inf)
        if found.ndim == 1 and good.all():
            return found
        first = int(np.argmin(good)) if found.ndim == 1 else 0
        got = f"{found[first]:.3g} after {times[first]} steps" if found.ndim == 1 else f"shape {found.shape[1:]}"
    raise SettingsError(
        f"{what} expects a schedule whose rate at each of the {steps} steps is one finite number ≥ 0, computed by "
        f"jax.numpy; got {got}. optax.cosine_decay_schedule(0.01, {steps}) is such a schedule."
    )
