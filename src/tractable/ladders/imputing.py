"""Imputation by a fitted ladder: draws of p(x_m, h | x_o), the missing numbers x_m given the observed ones x_o."""

import functools
import math
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.arrays import arrays_of
from tractable.core.errors import ModelError
from tractable.core.model import Data, PyTree
from tractable.core.settings import Count, at_least, check_seed, expect
from tractable.core.shared import compiled
from tractable.diagnostics.learnt import Learnt
from tractable.ladders import encoding as coding
from tractable.ladders.bounds import moments
from tractable.ladders.ladder import Ladder

DEFENCE = 0.2  # share of proposals that are drawn from p(h); it bounds the weights where q is far from the posterior


class Imputed(NamedTuple):
    """Rows with missing numbers filled in."""

    mean: np.ndarray  # (row, n) x if observed, else E[x_m | x_o]; for categorical x the likeliest level
    draws: np.ndarray  # (draw, row, n) x if observed, else draws of p(x_m | x_o)
    h: tuple[np.ndarray, ...]  # (draw, row, n) the h of each draw
    effective: np.ndarray  # (row,) effective sample size of the importance weights


def impute(
    posterior: Learnt, x: Data | PyTree, *, draws: int = 100, samples: int = 1000, steps: int = 5, seed: int = 0
) -> Imputed:
    """Impute the missing numbers (NaN) of rows x (row, n): the mean and draws of p(x_m, h | x_o).

        x̃_k completes x,   h_k ~ r_k(h) = 0.8 q(h | x̃_k) + 0.2 p(h),   w_k = p(x_o | h_k) p(h_k) / r_k(h_k)

    This is done for k = 1 … K, ``steps`` times. The completions x̃_k, which fill in the missing numbers, are first drawn
    from the model. In later steps they are drawn from p(x | h) at the previous step's h, resampled by weight
    (population Monte Carlo; Cappé et al. 2004). Given its completion, w_k is an unbiased estimate of p(x_o) and at most
    p(x_o | h_k) / 0.2, whatever q is. So the self-normalised averages of the last step have a bias of order 1/K.
    ``effective``, the effective sample size of the weights, is small where q is far from the posterior.

    Args:
        draws: number of draws to return, resampled by weight.
        samples: K ≥ 2, weighted draws per row.
        steps: number of steps, ≥ 1.

    Raises:
        SettingsError, DataError: as ``encode``.
        ModelError: p(x | h) does not factorise over x's numbers.
    """
    ladder, params = coding.network_of(posterior, "impute")
    expect("impute(draws=...)", draws, Count)
    expect("impute(samples=...)", samples, Annotated[int, at_least(2)])
    expect("impute(steps=...)", steps, Count)
    rows = np.asarray(x.rows[0] if isinstance(x, Data) else arrays_of(x, "x"))
    filled = _fill(ladder, params, rows)
    coding.rows_of(ladder, params, filled, "impute")  # checks that observed numbers lie in the support
    observed = ~np.isnan(rows) if rows.dtype.kind == "f" else np.ones(rows.shape, bool)
    complete = functools.partial(
        _impute, ladder, (draws, samples, steps), params, jax.random.key(check_seed("impute(seed)", seed))
    )
    width = coding.rows_together(ladder, samples)
    mean, x_draws, h, effective = coding.over_rows(complete, (filled, observed), width)
    return Imputed(mean, np.swapaxes(x_draws, 0, 1), coding.draws_first(h), effective)


def _fill(ladder: Ladder, params: PyTree, rows: np.ndarray) -> np.ndarray:
    """The rows with an arbitrary valid number in place of each missing one; integers become integers again.

    Missing numbers are NaN, so integers with gaps arrive as floats.
    """
    coding.check_width(ladder, params, rows, "impute")
    if not jax.eval_shape(functools.partial(_check_factorisation, ladder), params["theta"]):
        raise ModelError("impute(x) expects a p(x | h) that is a product over the numbers of x; this one is not.")
    possible = np.asarray(_possible(ladder, params["theta"]))
    if rows.dtype.kind != "f":
        return rows
    filled = np.where(np.isnan(rows), possible, rows)
    are_integers = possible.dtype.kind in "iu" and not ladder.redraw and np.all(filled == np.round(filled))
    return filled.astype(possible.dtype) if are_integers else filled


def _check_factorisation(ladder: Ladder, theta: PyTree) -> list[jax.Array]:
    """A non-empty list if p(x | h) is a product over the numbers of x, else []: ``eval_shape`` cannot return a bool."""
    h = ladder.dreamt(jax.random.key(0), theta, 1)[1]
    p = ladder.generative(theta, h)[0]
    return [jnp.zeros(0)] if isinstance(p, dist.Independent) and p.reinterpreted_batch_ndims == 1 else []


@compiled("ladder")
def _possible(ladder: Ladder, theta: PyTree) -> jax.Array:
    return ladder.dreamt(jax.random.key(0), theta, 1)[0]


@compiled("ladder", "counts")
def _impute(
    ladder: Ladder, counts: tuple[int, int, int], params: PyTree, key: jax.Array, index: jax.Array, rows: PyTree
) -> tuple:
    complete = functools.partial(complete_row, ladder, counts, params)
    return coding.each_row(complete, key, index, *rows)


def complete_row(
    ladder: Ladder, counts: tuple[int, int, int], params: PyTree, key: jax.Array, x: jax.Array, observed: jax.Array
) -> tuple:
    """Impute one row x (n,): its mean (n,), draws (draw, n), their h, and the effective sample size of the weights.

    Args:
        counts: (draws, samples, steps), as for ``impute``.
        observed: (n,) mask of the observed numbers.
    """
    draws, samples, steps = counts
    theta = params["theta"]
    look_key, first_key, step_key, last_key, draws_key = jax.random.split(key, 5)
    first = ladder.dreamt(first_key, theta, samples)[0]
    x = ladder.look(look_key, x[None]).astype(first.dtype)  # (1, n)

    def keep(new_x: jax.Array) -> jax.Array:
        return jnp.where(observed[None], x, new_x)

    def resample(key: jax.Array, h: tuple, log_w: jax.Array, count: int) -> tuple[jax.Array, tuple]:
        pick_key, draw_key = jax.random.split(key)
        index = pick(pick_key, log_w, count)
        h = jax.tree.map(lambda a: a[:, index], h)
        return keep(ladder.generative(theta, h)[0].sample(draw_key)[0]), h

    def step(filled: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        weigh_key, pick_key = jax.random.split(key)
        h, log_w = weigh_proposals(ladder, params, weigh_key, filled, x, observed)
        return resample(pick_key, h, log_w, samples)[0], None

    filled, _ = jax.lax.scan(step, keep(first), jax.random.split(step_key, steps)[1:])
    h, log_w = weigh_proposals(ladder, params, last_key, filled, x, observed)
    weights = jax.nn.softmax(log_w)  # (K,)
    mean = moments(ladder.generative(theta, h)[0])[0][0]  # (K, n) or (K, n · levels)
    mean = jnp.sum(weights[:, None] * mean, axis=0, keepdims=True)
    if mean.shape != x.shape:
        mean = jnp.argmax(mean.reshape(*x.shape, -1), axis=-1)
    filled, h = resample(draws_key, h, log_w, draws)
    mean = jnp.where(observed[None], x, mean)[0]
    return mean, filled, jax.tree.map(lambda a: a[0], h), 1 / jnp.sum(jnp.square(weights))


def pick(key: jax.Array, log_w: jax.Array, count: int) -> jax.Array:
    """Draw ``count`` independent indices, index i with probability ∝ w_i."""
    totals = jnp.cumsum(jnp.exp(log_w - jnp.max(log_w)))
    u = jax.random.uniform(key, (count,), totals.dtype) * totals[-1]
    return jnp.minimum(jnp.searchsorted(totals, u, side="right"), len(log_w) - 1)


def weigh_proposals(
    ladder: Ladder, params: PyTree, key: jax.Array, filled: jax.Array, x: jax.Array, observed: jax.Array
) -> tuple[tuple, jax.Array]:
    """Draw a proposal h_k for each completion of x, and compute its log w_k, (K,).

    Args:
        filled: the completions, (K, n). The proposals have leading axes (1, K).
        x: the row, (1, n), with arbitrary numbers where ``observed`` (n,) is False.
    """
    network_key, model_key, choice_key = jax.random.split(key, 3)
    theta, count = params["theta"], len(filled)
    of_network = ladder.drawn(network_key, params, filled, 1)[0]
    of_model = jax.tree.map(lambda a: a[None], ladder.dreamt(model_key, theta, count)[1])
    mask = jax.random.bernoulli(choice_key, DEFENCE, (1, count))  # True where h_k is drawn from p(h)
    h = jax.tree.map(lambda a, b: jnp.where(mask.reshape(1, count, *[1] * (a.ndim - 2)), a, b), of_model, of_network)
    p, *above = ladder.generative(theta, h)
    terms = jnp.where(observed[None, None], p.base_dist.log_prob(x[None]), 0.0)  # (1, K, n)
    prior = sum(p_i.log_prob(h_i) for p_i, h_i in zip(above, h, strict=True))
    network = sum(ladder.log_q(params, filled[None], h))
    proposal = jnp.logaddexp(math.log1p(-DEFENCE) + network, math.log(DEFENCE) + prior)
    return h, (jnp.sum(terms, axis=-1) + prior - proposal)[0]
