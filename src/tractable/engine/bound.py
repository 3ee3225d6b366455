"""Judges a climb whose bound is noisy: what one state gains on another, and whether a trace still rises.

Differences between two states are taken on common random numbers, away from the noise and batches of the climb.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import tree
from tractable.core.model import Objective, PyTree
from tractable.core.rows import SHUFFLE, Data, Plan, place, window
from tractable.core.shared import compiled
from tractable.engine import run as loop
from tractable.engine.method import Program

EVALUATED, FEW = 1000, 100  # paired draws of the bound that compare two states; FEW where φ is large
LARGE = 200_000  # numbers in φ above which it is large
GRADIENTS = 32  # gradient estimates that compare the mean gradient with its noise
SIGMAS = 2.0  # standard errors, in the tests on the noisy bound
SURE = 3.0  # standard errors beyond which a difference is no chance: of held-out scores, of what a run still rises
FLAT = 0.1  # share of what a trace has risen that it may still rise from the third to the fourth quarter of its way
BATCHES = 5  # batch means per half of a trace, which give its standard error


def evaluation_rows(data: Data, plan: Plan) -> Data:
    """Rows in memory on which the bound is judged; for data on file a random sample, weighted so as to count as all."""
    if data.resident:
        return data
    most = max(plan.width, loop.BUFFER_BYTES * data.size // max(data.nbytes, 1))
    drawn = np.random.default_rng(SHUFFLE).integers(0, data.size, min(most, EVALUATED * plan.width))
    sample = data.take(np.unique(drawn))
    sample.weights = np.full(sample.size, data.size / sample.size) * (1 if sample.weights is None else sample.weights)
    return sample


class Bound(NamedTuple):
    """The bound of a climb, on noise and batches of its own."""

    program: Program
    plan: Plan | None
    data: Any  # Data, or None
    rows: PyTree
    key: jax.Array

    def batches(self) -> tuple[Plan | None, PyTree]:
        """Plan and rows in memory; for data on file, those of ``evaluation_rows``."""
        if self.plan is None:
            return None, self.rows
        plan = Plan(self.data.size, min(self.plan.batch_size, self.data.size), self.plan.independent)
        return plan, self.data.windows(plan.width)

    def values(self, tuned: PyTree, phis: PyTree) -> np.ndarray:
        """(start, draw) noisy bounds of every start's φ, on random numbers that are the same in every call."""
        plan, rows = self.batches()
        return np.asarray(_values(self.program, plan, tuned, rows, phis, self.key), np.float64)

    def gain(self, tuned: PyTree, unravel: Callable, before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
        """The gain of ``after`` (start, p) on ``before`` at the start that gains most surely, and its error."""
        gains = self.values(tuned, unravel(after)) - self.values(tuned, unravel(before))
        errors = gains.std(1, ddof=1) / math.sqrt(gains.shape[1])
        worst = int(np.argmax(gains.mean(1) - SIGMAS * errors))
        return float(gains[worst].mean()), float(errors[worst])

    def signal(self, tuned: PyTree, phi: PyTree) -> float:
        """‖E g‖² / tr Cov g of one step's gradient estimate."""
        plan, rows = self.batches()
        return float(_signal(self.program, plan, tuned, rows, phi, self.key))


def settled(history: np.ndarray) -> bool:
    """Whether the last half of a noisy trace (start, step) shows no upward trend.

    The means of the two halves of this half then differ by less than ``SIGMAS`` standard errors. The errors come from
    batch means, which allow for dependence between neighbouring steps.
    """
    tail = history[:, history.shape[1] // 2 :]
    half = tail.shape[1] // 2
    if half < BATCHES:
        return False
    gain, error = _rise(tail[:, :half], tail[:, -half:])
    return bool(np.all(gain <= SIGMAS * error))


def is_flat(history: np.ndarray, pace: np.ndarray) -> bool:
    """Whether a noisy trace (start, step) shows that it has stopped rising, so that noise does not only hide a rise.

    ``pace`` (step,) is the length of each step, and the run is divided into quarters of their sum. The trace is flat if
    its rise from the third quarter to the fourth is less than a tenth of its rise from the first tenth of the run to
    these two, both beyond chance. An exponential approach is then at 96 % of its way.
    """
    way = np.cumsum(pace) / np.sum(pace)
    begin, middle, last = (history[:, (low < way) & (way <= high)] for low, high in ((0, 0.1), (0.5, 0.75), (0.75, 1)))
    if min(begin.shape[1] * BATCHES, middle.shape[1], last.shape[1]) < BATCHES:
        return False
    gain, error = _rise(middle, last)
    risen = middle.mean(1) + gain / 2 - begin.mean(1)
    unsure = error * math.sqrt(1 + middle.shape[1] / begin.shape[1])  # by the later noise: the first part rises
    return bool(np.all(gain + SURE * error <= FLAT * (risen - SURE * unsure)))


def _rise(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start,) difference of the means of two parts (start, step) of a trace, and its standard error by batch means."""

    def squared(x: np.ndarray) -> np.ndarray:
        width = x.shape[1] // BATCHES
        means = x[:, : width * BATCHES].reshape(len(x), BATCHES, width).mean(2)
        return means.var(1, ddof=1) / BATCHES

    return last.mean(1) - first.mean(1), np.sqrt(squared(first) + squared(last))


@compiled("program", "plan")
def _values(
    program: Program, plan: Plan | None, tuned: PyTree, rows: PyTree, phis: PyTree, key: jax.Array
) -> jax.Array:
    method: Any = program.method
    objective = method.objective(program.model, rows, tuned)
    first = jax.tree.map(lambda a: a[0], phis)

    def once(t: jax.Array) -> jax.Array:
        batch = None if plan is None else window(rows, plan, *place(plan, key, t))
        noise = jax.tree.map(lambda a: a[0], objective.draw(jax.random.fold_in(key, t), 1, first))
        return jax.vmap(lambda phi: objective.value(noise, phi, batch))(phis)

    return jax.lax.map(once, jnp.arange(EVALUATED if tree.size(first) <= LARGE else FEW)).T


@compiled("program", "plan")
def _signal(program: Program, plan: Plan | None, tuned: PyTree, rows: PyTree, phi: PyTree, key: jax.Array) -> jax.Array:
    method: Any = program.method
    objective = method.objective(program.model, rows, tuned)
    return signal(objective, plan, rows, phi, objective.remember(phi), key)


def signal(
    objective: Objective, plan: Plan | None, rows: PyTree, params: PyTree, memory: PyTree, key: jax.Array,
    part: Callable[[PyTree], PyTree] = lambda params: params,
) -> jax.Array:  # fmt: skip
    """‖E g‖² / tr Cov g of one step's gradient estimate, from 32 estimates.

    Args:
        memory: the gradient estimator's state.
        part: picks the part of a gradient to measure.
    """

    def once(carry: tuple, t: jax.Array) -> tuple[tuple, None]:
        total, square, memory = carry
        batch = None if plan is None else window(rows, plan, *place(plan, key, t))
        noise = jax.tree.map(lambda a: a[0], objective.draw(jax.random.fold_in(key, t), 1, params))
        if objective.slope is None:
            gradient = jax.grad(objective.value, argnums=1)(noise, params, batch)
        else:
            _, gradient, memory = objective.slope(noise, params, batch, memory)
        gradient = part(gradient)
        return (jax.tree.map(jnp.add, total, gradient), square + tree.dot(gradient, gradient), memory), None

    nothing = jax.tree.map(jnp.zeros_like, part(params))
    start = (nothing, jnp.zeros((), jax.tree.leaves(nothing)[0].dtype), memory)
    (total, square, _), _ = jax.lax.scan(once, start, jnp.arange(GRADIENTS))
    mean = tree.dot(total, total) / GRADIENTS**2
    noise = (square / GRADIENTS - mean) * GRADIENTS / (GRADIENTS - 1)
    return jnp.maximum(mean - noise / GRADIENTS, 0) / jnp.maximum(noise, jnp.finfo(noise.dtype).tiny)
