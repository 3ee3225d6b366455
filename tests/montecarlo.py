"""Scores of laws: how far a statistic lies from what the law says, in units of what would raise the alarm.

A law is a function that returns ``{name: score}``; it holds where every score is at most 1. Statistical
scores alarm at a probability of 1e-7 (|z| = 5.33), so a thousand of them err once in ten thousand runs.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from tractable.core.model import Batch, Kernel

ALARM = 1e-7
Z = 5.33  # two-sided, at ALARM
C = 100_000  # replicates of a statistical law
Scores = dict[str, float]


def error(got: Any, wanted: Any, tolerance: float) -> float:
    """The largest absolute difference over its tolerance; of an exact law."""
    return float(np.max(np.abs(np.asarray(got, float) - np.asarray(wanted, float)))) / tolerance


def z_mean(x: Any, mean: float, variance: float) -> float:
    """Mean of independent draws against a known mean."""
    x = np.asarray(x, float)
    return abs(x.mean() - mean) / math.sqrt(variance / x.size) / Z


def z_variance(x: Any, mean: float, variance: float) -> float:
    """Σ (x − mean)²/variance ~ χ²_n of normal draws, as a z-score."""
    x = np.asarray(x, float)
    return abs(np.sum((x - mean) ** 2) / variance - x.size) / math.sqrt(2 * x.size) / Z


def moments(name: str, x: Any, mean: float, variance: float) -> Scores:
    """Both."""
    return {f"{name} mean": z_mean(x, mean, variance), f"{name} variance": z_variance(x, mean, variance)}


def of_p(p: float) -> float:
    """A p-value as a score: log p / log 1e-7."""
    return math.log(max(p, 1e-300)) / math.log(ALARM) if p == p else math.nan


def ks(x: Any, cdf: Callable) -> float:
    """Kolmogorov–Smirnov: independent draws against a continuous cdf."""
    return of_p(stats.kstest(np.asarray(x, float), cdf).pvalue)


def binomial(successes: int, trials: int, probability: float) -> float:
    return of_p(stats.binomtest(int(successes), int(trials), probability).pvalue)


def uniform_counts(counts: Any) -> float:
    """Pearson's χ² of counts against equal shares."""
    return of_p(stats.chisquare(np.asarray(counts)).pvalue)


def detectable(count: int) -> str:
    """What ``count`` draws show with 99 % probability, at the alarm's rate."""
    reach = Z + stats.norm.isf(0.01)
    cdf = (math.sqrt(math.log(2 / ALARM) / 2) + math.sqrt(math.log(2 / 0.01) / 2)) / math.sqrt(count)
    return (
        f"{count} draws detect: mean {reach / math.sqrt(count):.3g} sd, variance "
        f"{100 * reach * math.sqrt(2 / count):.2g} %, cdf {cdf:.2g}"
    )


def broken(scores: Scores) -> Scores:
    """The scores that break the law; NaN breaks it."""
    return {name: score for name, score in scores.items() if not score <= 1}


def assert_holds(scores: Scores, count: int | None = None) -> None:
    """The law holds; with the draws it was tested on, say what it could have seen."""
    if count is not None:
        print(detectable(count))
    print(f"largest score {max(scores.values()):.2g} of {len(scores)}")
    assert scores and not broken(scores), broken(scores)


@functools.partial(jax.jit, static_argnames=("kernel", "steps", "batches"))
def replicate(
    kernel: Kernel, key: jax.Array, positions: Any, steps: int, batches: Callable | None = None
) -> tuple[Any, Any]:
    """``steps`` steps of independent chains, one from each of the leading axis of ``positions``.

    Args:
        batches: ``key -> Batch``, drawn afresh at every step of every chain.

    Returns:
        The last state and the mean info of every chain.
    """

    def chain(key: jax.Array, position: Any) -> tuple[Any, Any]:
        key_init, key = jax.random.split(key)
        state = kernel.init(key_init, position)

        def one(key: jax.Array, state: Any) -> tuple[Any, Any]:
            key_noise, key_batch = jax.random.split(key)
            return kernel(key_noise, state, None if batches is None else batches(key_batch))

        info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, key, state)[1])

        def body(carry: tuple, t: jax.Array) -> tuple[tuple, None]:
            state, total = carry
            state, info = one(jax.random.fold_in(key, t), state)
            return (state, jax.tree.map(lambda a, b: a + b / steps, total, info)), None

        return jax.lax.scan(body, (state, info), jnp.arange(steps))[0]

    count = jax.tree.leaves(positions)[0].shape[0]
    return jax.vmap(chain)(jax.random.split(key, count), positions)


def all_rows(y: jax.Array) -> Callable:
    """Every batch is the whole."""
    return lambda key: Batch((y, None), jnp.ones(len(y)), len(y))


def pairs(y: jax.Array) -> Callable:
    """Batches of two rows, without replacement; every pair equally often."""
    size = len(y)

    def of(key: jax.Array) -> Batch:
        first, second = jax.random.split(key)
        i = jax.random.randint(first, (), 0, size)
        j = (i + 1 + jax.random.randint(second, (), 0, size - 1)) % size
        return Batch((y[jnp.stack([i, j])], None), jnp.ones(2), size)

    return of
