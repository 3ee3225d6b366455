"""Measures on a noisy bound, such as an ELBO: how much one state gains over another, and whether a trace still rises.

The bounds of two states are compared on common random numbers. These are independent of the noise and the batches of
the climb.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import tree
from tractable.core.batches import Plan, place, window
from tractable.core.model import Objective, PyTree
from tractable.core.rows import SHUFFLE, Data
from tractable.core.shared import COMPILE_FAST, compiled
from tractable.engine import run as loop
from tractable.engine.method import Program

# Number of paired draws of the bound that compare two states, FEW if φ is large; and of draws whose noise is drawn at
# once.
EVALUATED, FEW, AT_ONCE = 1000, 100, 10
LARGE = 200_000  # φ, the variational parameters, is large if it holds more numbers than this
GRADIENTS = 32  # number of gradient estimates from which the mean gradient and its noise are estimated
SIGMAS = 2.0  # critical value of the tests on a noisy bound, in standard errors
SURE = 3.0  # a difference of held-out scores or rise of a trace beyond this many standard errors is not due to chance
FLAT = 0.1  # a flat trace may rise from its third to its fourth quarter by this share of its whole rise
BATCHES = 5  # number of batch means in each part of a trace; their variance gives the standard error of the part's mean


def evaluation_rows(data: Data, plan: Plan) -> Data:
    """Rows in memory on which the bound is estimated.

    For data on file they are a random sample of rows, weighted so that together they count as much as all rows.
    """
    if data.resident:
        return data
    most = max(plan.width, loop.BUFFER_BYTES * data.size // max(data.nbytes, 1))
    drawn = np.random.default_rng(SHUFFLE).integers(0, data.size, min(most, EVALUATED * plan.width))
    sample = data.take(np.unique(drawn))
    sample.weights = np.full(sample.size, data.size / sample.size) * (1 if sample.weights is None else sample.weights)
    return sample


class Bound(NamedTuple):
    """The bound of a climb, estimated with noise and batches that are independent of the climb's."""

    program: Program
    plan: Plan | None
    data: Any  # Data, or None
    rows: PyTree
    key: jax.Array

    def batches(self) -> tuple[Plan | None, PyTree]:
        """The plan of batches, and the rows in memory; for data on file, the rows of ``evaluation_rows``."""
        if self.plan is None:
            return None, self.rows
        plan = Plan(self.data.size, min(self.plan.batch_size, self.data.size), self.plan.independent)
        return plan, self.data.windows(plan.width)

    def values(self, tuned: PyTree, phis: PyTree) -> np.ndarray:
        """(start, draw) noisy bounds of the φ of every starting point; every call uses the same random numbers."""
        plan, rows = self.batches()
        return np.asarray(_values(self.program, plan, tuned, rows, phis, self.key), np.float64)

    def gain(self, tuned: PyTree, unravel: Callable, before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
        """The gain of ``after`` (start, p) over ``before``, and its standard error, for one of the starting points.

        It is the starting point for which the gain minus ``SIGMAS`` standard errors is largest.
        """
        gains = self.values(tuned, unravel(after)) - self.values(tuned, unravel(before))
        errors = gains.std(1, ddof=1) / math.sqrt(gains.shape[1])
        clearest = int(np.argmax(gains.mean(1) - SIGMAS * errors))
        return float(gains[clearest].mean()), float(errors[clearest])


def has_settled(history: np.ndarray) -> bool:
    """Whether the last half of a noisy trace (start, step) shows no upward trend.

    This is so if the mean of the fourth quarter exceeds that of the third by at most ``SIGMAS`` standard errors.
    The standard errors come from batch means, which allow for dependence between neighbouring steps.
    """
    tail = history[:, history.shape[1] // 2 :]
    half = tail.shape[1] // 2
    if half < BATCHES:
        return False
    gain, error = _rise(tail[:, :half], tail[:, -half:])
    return bool(np.all(gain <= SIGMAS * error))


def is_flat(history: np.ndarray, pace: np.ndarray) -> bool:
    """Whether a noisy trace (start, step) has clearly stopped rising; False if noise could hide a rise.

    ``pace`` (step,) is the length of each step. The quarters of the run are quarters of the sum of these lengths. The
    trace is flat if its rise from the third quarter to the fourth is less than a tenth of its whole rise, from the
    first tenth of the run to the second half. Errors are allowed for: ``SURE`` standard errors are added to the former
    rise and subtracted from the whole rise. If a flat trace approaches its limit exponentially, it has covered 96 % of
    the way.
    """
    way = np.cumsum(pace) / np.sum(pace)
    begin, middle, last = (history[:, (low < way) & (way <= high)] for low, high in ((0, 0.1), (0.5, 0.75), (0.75, 1)))
    if min(begin.shape[1] * BATCHES, middle.shape[1], last.shape[1]) < BATCHES:
        return False
    gain, error = _rise(middle, last)
    risen = middle.mean(1) + gain / 2 - begin.mean(1)
    # The noise of the later parts stands for that of the first part, whose own variance would include its steep rise.
    unsure = error * math.sqrt(1 + middle.shape[1] / begin.shape[1])
    return bool(np.all(gain + SURE * error <= FLAT * (risen - SURE * unsure)))


def _rise(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start,) difference of the means of two parts (start, step) of a trace, and its standard error by batch means."""

    def squared(x: np.ndarray) -> np.ndarray:
        width = x.shape[1] // BATCHES
        means = x[:, : width * BATCHES].reshape(len(x), BATCHES, width).mean(2)
        return means.var(1, ddof=1) / BATCHES

    return last.mean(1) - first.mean(1), np.sqrt(squared(first) + squared(last))


@compiled("program", "plan", if_few=COMPILE_FAST)
def _values(
    program: Program, plan: Plan | None, tuned: PyTree, rows: PyTree, phis: PyTree, key: jax.Array
) -> jax.Array:
    objective: Objective = program.method.objective(program.model, rows, tuned)  # pyright: ignore
    first = jax.tree.map(lambda a: a[0], phis)
    count, block = (EVALUATED, AT_ONCE) if tree.size(first) <= LARGE else (FEW, 1)

    def once(now: tuple[jax.Array, PyTree]) -> jax.Array:
        batch = None if plan is None else window(rows, plan, *place(plan, key, now[0]))
        return jax.vmap(lambda phi: objective.value(now[1], phi, batch))(phis)

    def values(b: jax.Array) -> jax.Array:  # the inner loop makes XLA store the noise instead of drawing it again
        return jax.lax.map(once, (b + jnp.arange(block), objective.draw(jax.random.fold_in(key, b), block, first)))

    return jax.lax.map(values, jnp.arange(0, count, block)).reshape(count, -1).T


def signal(
    objective: Objective, plan: Plan | None, rows: PyTree, params: PyTree, memory: PyTree, key: jax.Array,
    part: Callable[[PyTree], PyTree] = lambda params: params,
) -> jax.Array:  # fmt: skip
    """The signal-to-noise ratio ‖E g‖² / tr Cov g of one step's gradient estimate g, from 32 estimates.

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
