"""A kernel is one step of a Markov chain or of an optimisation; an objective is what an optimisation maximises."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from tractable.core.batches import Batch
from tractable.core.tree import PyTree


class Objective(NamedTuple):
    """An objective that ``ascend`` maximises, using unbiased estimates of the objective's gradient.

    Attributes:
        draw: ``(key, count, params) -> noise`` with leading axis ``count``.
        value: ``(noise, params, batch) -> ()``, an estimate of the objective.
        remember: ``params -> memory``, the gradient estimator's first memory; () by default.
        slope: ``(noise, params, batch, memory) -> (value, gradient, memory)``, for an estimator other than the gradient
            of ``value``. The memory holds statistics of *earlier* steps only, which keeps the estimate unbiased.
    """

    draw: Callable
    value: Callable
    remember: Callable | None = None
    slope: Callable | None = None

    def first_memory(self, params: PyTree) -> PyTree:
        """The gradient estimator's memory before its first step."""
        return () if self.remember is None else self.remember(params)


@dataclass(frozen=True)
class Kernel:
    """A transition as three pure functions, whose randomness is an argument.

    Attributes:
        init: ``(key, position) -> state``; every state has a ``position``.
        draw: ``(key, count, state, batch) -> noise`` of ``count`` consecutive steps, with leading axis ``count``. The
            noise depends on the shapes of state and batch only.
        step: ``(noise, state, batch) -> (state, info)``, deterministic, with the noise of one step. Every leaf of
            ``info`` is a number, so that a run can average ``info``.

    ``kernel(key, state, batch)`` draws the noise of one step and takes the step. Exact samplers ignore the batch.
    """

    init: Callable
    draw: Callable
    step: Callable

    def __call__(self, key: jax.Array, state: PyTree, batch: Batch | None = None) -> tuple[Any, Any]:
        noise = self.draw(key, 1, state, batch)
        return self.step(jax.tree.map(lambda x: x[0], noise), state, batch)
