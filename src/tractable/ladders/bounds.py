"""Lower bounds of log p(x) for rows under a ladder and its inference network, and each layer's share of the KL.

A layer's "cost" is the mean of log q(h^i | ·) − log p(h^i | ·) in nats: what the layer subtracts from the ELBO.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from tractable.core.causes import base_of
from tractable.core.errors import ModelError
from tractable.core.model import Data, PyTree
from tractable.core.shared import compiled
from tractable.ladders.ladder import Ladder

MOST_NUMBERS = 1 << 23  # how many numbers (draws and layers' outputs) may be in memory at once
CACHED = 1 << 19  # the same limit on a CPU: so many fit a core's cache, which halves the time (decisions/046)
DRAWS_A_KEY = 128  # number of a row's draws that are made from one random key


class Bounds(NamedTuple):
    """The bounds of every row, arrays (n,) in nats, from weights w_k = p(x, h_k) / q(h_k | x) with h_k ~ q(h | x).

        ELBO = E log w  ≤  E log (1/K) Σ_k w_k  ≤  log p(x)      (Burda, Grosse & Salakhutdinov 2016, theorem 1)

    As K grows, the K-sample bound tends to log p(x). The difference log p(x) − ELBO is KL(q(h | x) ‖ p(h | x)).
    """

    elbo: np.ndarray  # mean of log w
    elbo_error: np.ndarray  # the standard error of ``elbo``
    log_evidence: np.ndarray  # log of the mean of w: a lower bound in expectation
    error: np.ndarray  # standard error of ``log_evidence``, √(Var w / K) / mean w; too small where few weights count
    ess: np.ndarray  # the effective sample size (Σ w)² / Σ w², at most K
    costs: np.ndarray  # (n, L) mean of log q(h^i | ·) − log p(h^i | ·), each layer's cost
    samples: int  # K


def numbers() -> int:
    """How many numbers may be in memory at once on this device. The draws do not depend on this limit."""
    return CACHED if jax.default_backend() == "cpu" else MOST_NUMBERS


def log_weights(ladder: Ladder, params: PyTree, x: PyTree, h: tuple, q: list) -> tuple[jax.Array, jax.Array]:
    """log w of every draw, (draw, row), and each layer's cost log q − log p, (L, draw, row)."""
    log_p = ladder.log_p(params["theta"], jax.tree.map(lambda a: a[None], x), h)
    costs = jnp.stack([q_i.log_prob(h_i) - p_i for q_i, h_i, p_i in zip(q, h, log_p[1:], strict=True)])
    return log_p[0] - jnp.sum(costs, axis=0), costs


def bounds(ladder: Ladder, params: PyTree, data: Data, key: jax.Array, samples: int) -> Bounds:
    """Compute the bounds of all rows; memory grows neither with the rows nor with the draws.

    The draws for row n depend on the key, n and K alone.

    Args:
        samples: K ≥ 1 draws a row.
    """
    units = sum(layer.size for layer in ladder.layers)
    width = max(1, min(data.size, numbers() // (units * min(samples, DRAWS_A_KEY))))
    parts = []
    for start in range(0, data.size, width):
        # Every part has the same shape, so that one compiled program serves all parts: the last row is repeated.
        index = np.minimum(np.arange(start, start + width), data.size - 1)
        rows = jax.tree.map(lambda a, i=index: jnp.asarray(a[i]), data.rows[0])
        sums = _bounds(ladder, samples, params, rows, jnp.asarray(index), key)
        count = min(width, data.size - start)
        parts.append([np.asarray(a)[..., :count] for a in sums])
    first, second, weight, square, costs = (np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
    elbo = first / samples
    spread = np.maximum(second / samples - np.square(elbo), 0)
    one = max(samples - 1, 1)
    log_evidence = weight - math.log(samples)
    ess = np.exp(2 * weight - square)
    # Var w / (K mean²) = (K Σw² / (Σw)² − 1) / (K − 1)
    error = np.sqrt(np.maximum(samples / ess - 1, 0) / one)
    return Bounds(elbo, np.sqrt(spread / one), log_evidence, error, ess, np.moveaxis(costs, 0, -1) / samples, samples)


@compiled("ladder", "samples")
def _bounds(ladder: Ladder, samples: int, params: PyTree, rows: PyTree, index: jax.Array, key: jax.Array) -> tuple:
    """Sums over the draws: Σ log w, Σ (log w)², log Σ w and log Σ w², each (n,), and Σ (log q − log p), (L, n)."""
    n, at_once = len(index), min(samples, DRAWS_A_KEY)
    keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(index)
    x = jax.vmap(lambda key, row: ladder.look(key, row[None])[0])(keys[:, 0], rows)

    def of_row(key: jax.Array, x: PyTree) -> tuple[jax.Array, jax.Array]:
        h, q = ladder.drawn(key, params, x[None], at_once)
        log_w, costs = log_weights(ladder, params, x[None], h, q)
        return log_w[:, 0], costs[..., 0]

    def some(sums: tuple, first: jax.Array) -> tuple[tuple, None]:
        now = jax.vmap(lambda key: jax.random.fold_in(key, first))(keys[:, 1])
        log_w, costs = jax.vmap(of_row, out_axes=-1)(now, x)
        counts = (first + jnp.arange(at_once) < samples)[:, None]
        valid_log_w = jnp.where(counts, log_w, -jnp.inf)
        terms = (
            jnp.sum(jnp.where(counts, log_w, 0), 0),
            jnp.sum(jnp.where(counts, jnp.square(log_w), 0), 0),
            jax.nn.logsumexp(valid_log_w, axis=0),
            jax.nn.logsumexp(2 * valid_log_w, axis=0),
            jnp.sum(jnp.where(counts[None], costs, 0), 1),
        )
        additions = (jnp.add, jnp.add, jnp.logaddexp, jnp.logaddexp, jnp.add)
        return tuple(add(total, more) for add, total, more in zip(additions, sums, terms, strict=True)), None

    dtype = jnp.result_type(float)
    zero, none = jnp.zeros(n, dtype), jnp.full(n, -jnp.inf, dtype)
    times = -(-samples // at_once)
    begin = zero, zero, none, none, jnp.zeros((ladder.depth, n), dtype)
    return jax.lax.scan(some, begin, jnp.arange(times) * at_once)[0]


def moments(p: Distribution) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of a layer's units, (…, n); for categorical units those of the indicators, (…, n · levels)."""
    base = base_of(p)
    if isinstance(base, dist.CategoricalLogits | dist.CategoricalProbs):
        probabilities = jnp.asarray(base.probs)
        probabilities = probabilities.reshape(*probabilities.shape[:-2], -1)
        return probabilities, probabilities * (1 - probabilities)
    try:
        return p.mean, p.variance
    except NotImplementedError as error:
        raise ModelError(f"A layer needs a .mean and .variance, and {type(base).__name__} has none.") from error


def draws_needed(ladder: Ladder, params: PyTree, x: PyTree, draws: int) -> list[int]:
    """For each layer, the number of draws to average its moments over: 0 where q(h^i | ·) depends on x alone."""

    def widths(key: jax.Array, params: PyTree, x: PyTree) -> list[jax.Array]:
        return [moments(q)[0] for q in ladder.drawn(key, params, x, 2)[1]]

    key = jax.eval_shape(lambda: jax.random.key(0))
    return [draws if mean.shape[0] == 2 else 0 for mean in jax.eval_shape(widths, key, params, x)]


def moments_of_codes(ladder: Ladder, params: PyTree, x: PyTree, key: jax.Array, draws: int) -> list[tuple]:
    """For each layer E[h^i | x], Var[h^i | x] and the Monte-Carlo variance of that mean, (row, n) each, under q.

        E[h²|x] = E E[h²|h¹],    Var[h²|x] = E Var[h²|h¹] + Var E[h²|h¹],    over h¹ ~ q(h¹ | x)

    The moments are exact where q(h^i | ·) depends on x alone. Elsewhere they are averages over ``draws`` draws.
    """
    codes = []
    for q in ladder.drawn(key, params, x, draws)[1]:
        mean, variance = moments(q)  # (1 or draws, row, n)
        between = jnp.var(mean, axis=0)
        codes.append((jnp.mean(mean, axis=0), jnp.mean(variance, axis=0) + between, between / max(draws - 1, 1)))
    return codes
