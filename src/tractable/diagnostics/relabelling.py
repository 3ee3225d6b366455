"""Label switching: matches exchangeable components between draws, so that posterior means are meaningful."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import split_weights
from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel
from tractable.core.model import PyTree, whole
from tractable.core.shared import compiled
from tractable.core.sums import OfRows

BATCH = 64  # draws computed at once


def matched(model: LatentModel, rows: PyTree, positions: np.ndarray) -> np.ndarray:
    """The draws, with components reordered so that they explain the same rows as those of the likeliest draw.

        order_s = argmax_order Σ_k Σ_n r_nk(θ_pivot) r_n,order(k)(θ_s)

    By the Hungarian algorithm, draw by draw. Only labels change; densities and predictions stay the same. This is the
    equivalence-classes-representatives method of Papastamoulis & Iliopoulos 2010, with responsibilities as allocations.

    Args:
        model: one with exchangeable components: it has ``symmetry.permute`` and ``responsibilities``.
        rows: ``core.arrays()``; positions: (s, d) unconstrained draws.
    """
    orders = labels(model, rows, positions)
    return np.asarray(_reordered(model, model.symmetry.permute, jnp.asarray(positions), jnp.asarray(orders)))


def labels(model: LatentModel, rows: PyTree, positions: np.ndarray) -> np.ndarray:
    """The order (s, K) in which each draw's components are those of the likeliest draw; arguments as of ``matched``."""
    from scipy.optimize import linear_sum_assignment

    shares, flat = model.responsibilities, jnp.asarray(positions)
    if shares is None or model.symmetry.permute is None:
        raise ModelError("Draws are matched by their exchangeable components; this model has none.")
    pivot = flat[int(np.argmax(np.asarray(_heights(model, rows, flat))))]
    agreement = np.asarray(_agreement(model, shares, rows, flat, pivot))  # (s, K, K)
    return np.stack([linear_sum_assignment(-each)[1] for each in agreement])


@compiled("model")
def averaged(model: LatentModel, rows: PyTree, params: PyTree, weights: jax.Array) -> jax.Array:
    """Σ_s w_s p(z | x_n, θ_s) of every row, (n, m); θ with a leading axis (s,)."""
    x = rows[0] if rows[1] is None else rows
    if model.responsibilities is None:
        raise ModelError("allocations() expects a z of few values, which this model has not; paths() draws states.")
    shares: OfRows = model.responsibilities

    def add(total: jax.Array, now: tuple[PyTree, jax.Array]) -> tuple[jax.Array, None]:
        theta, weight = now
        return total + weight * shares(theta, x), None

    first = jax.eval_shape(shares, jax.tree.map(lambda a: a[0], params), x)
    return jax.lax.scan(add, jnp.zeros(first.shape, first.dtype), (params, weights.astype(first.dtype)))[0]


@compiled("model")
def drawn(model: LatentModel, rows: PyTree, params: PyTree, key: jax.Array) -> PyTree:
    """z of every row from p(z | x_n, θ_s), (s, n, ...); θ with a leading axis (s,)."""
    if model.sums is None or model.sums.drawn is None:
        raise ModelError("paths() expects a z that Gibbs draws: one of few values, or states of sequences.")
    draw, x = model.sums.drawn, rows[0] if rows[1] is None else rows
    keys = jax.random.split(key, len(jax.tree.leaves(params)[0]))
    return jax.lax.map(lambda now: draw(now[0], now[1], x), (keys, params))


@compiled("model")
def _heights(model: LatentModel, rows: PyTree, flat: jax.Array) -> jax.Array:
    """The log posterior of every draw, (s,)."""
    return jax.lax.map(lambda u: model.traced(u, whole(rows)), flat, batch_size=BATCH)


@compiled("model", "shares")
def _agreement(model: LatentModel, shares: OfRows, rows: PyTree, flat: jax.Array, pivot: jax.Array) -> jax.Array:
    """The number of rows that component j of the pivot and component k of a draw share, (s, K, K)."""
    (y, given), weights = split_weights(rows)
    x = y if given is None else (y, given)

    def of(u: jax.Array) -> jax.Array:
        return shares(model.params(u), x)

    known = of(pivot)
    known = known if weights is None else weights.reshape(-1, *(1,) * (known.ndim - 1)) * known
    known = known.reshape(-1, known.shape[-1])  # for sequences, all steps
    return jax.lax.map(lambda u: known.T @ of(u).reshape(known.shape), flat, batch_size=BATCH)


@compiled("model", "permute")
def _reordered(model: LatentModel, permute: PyTree, flat: jax.Array, orders: jax.Array) -> jax.Array:
    def one(now: tuple[jax.Array, jax.Array]) -> jax.Array:
        return model.position_of(permute(model.params(now[0]), now[1]))

    return jax.lax.map(one, (flat, orders), batch_size=BATCH)
