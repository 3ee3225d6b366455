"""A kernel is one step of a chain or a climb; an objective is what a climb raises."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from tractable.core.rows import Batch
from tractable.core.tree import PyTree


class Objective(NamedTuple):
    """An objective that ``ascend`` maximises, by unbiased estimates.

    Attributes:
        draw: ``(key, count, params) -> noise`` with leading axis ``count``.
        value: ``(noise, params, batch) -> ()``.
        remember: ``params -> memory``, the gradient estimator's first memory; () by default.
        slope: ``(noise, params, batch, memory) -> (value, gradient, memory)``, for gradients other than the value's
            own; memory holds statistics of *earlier* steps, which keeps the estimate unbiased.
    """

    draw: Callable
    value: Callable
    remember: Callable = lambda params: ()
    slope: Callable | None = None


@dataclass(frozen=True)
class Kernel:
    """A transition, as three pure functions; its randomness is an argument.

    Attributes:
        init: ``(key, position) -> state``; every state has a ``position``.
        draw: ``(key, count, state, batch) -> noise`` of ``count`` consecutive steps, with leading axis ``count``;
            depends on the shapes of state and batch only.
        step: ``(noise, state, batch) -> (state, info)`` with the noise of one step; deterministic.
            Every leaf of ``info`` is a number, so that a run can average it.

    ``kernel(key, state, batch)`` draws and steps, for use by hand. Exact samplers ignore the batch.
    """

    init: Callable
    draw: Callable
    step: Callable

    def __call__(self, key: jax.Array, state: PyTree, batch: Batch | None = None) -> tuple[Any, Any]:
        noise = self.draw(key, 1, state, batch)
        return self.step(jax.tree.map(lambda x: x[0], noise), state, batch)
