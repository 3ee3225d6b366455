"""Undoes label switching: matches exchangeable components between draws, so that posterior means are meaningful."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import split_weights
from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel
from tractable.core.model import PyTree, whole
from tractable.core.shared import compiled
from tractable.core.sums import OfRows

BATCH = 64  # number of draws evaluated at once


def match_components(model: LatentModel, rows: PyTree, positions: np.ndarray) -> np.ndarray:
    """Reorders each draw's components so that they explain the same rows as those of the pivot draw.

        order_s = argmax_order Σ_k Σ_n r_nk(θ_pivot) r_n,order(k)(θ_s)

    r_nk is the responsibility of component k for row n. The pivot is the draw of highest posterior density. The best
    order of each draw is found by the Hungarian algorithm. Only labels change; densities and predictions stay the
    same. This is the equivalence-classes-representatives method of Papastamoulis & Iliopoulos 2010, with
    responsibilities in place of allocations.

    Args:
        model: a model with exchangeable components, which has ``symmetry.permute`` and ``responsibilities``.
        rows: the data's arrays, as ``Data.arrays()`` returns them.
        positions: (s, d) unconstrained draws.
    """
    orders = labels(model, rows, positions)
    return np.asarray(_reorder(model, model.symmetry.permute, jnp.asarray(positions), jnp.asarray(orders)))


def labels(model: LatentModel, rows: PyTree, positions: np.ndarray) -> np.ndarray:
    """The order (s, K) in which each draw's components match the pivot's; arguments as in ``match_components``."""
    from scipy.optimize import linear_sum_assignment

    shares, flat = model.responsibilities, jnp.asarray(positions)
    if shares is None or model.symmetry.permute is None:
        raise ModelError("Matching draws needs a model with exchangeable components; this model has none.")
    pivot = flat[int(np.argmax(np.asarray(_heights(model, rows, flat))))]
    agreement = np.asarray(_agreement(model, shares, rows, flat, pivot))  # (s, K, K)
    return np.stack([linear_sum_assignment(-each)[1] for each in agreement])


@compiled("model")
def mean_allocations(model: LatentModel, rows: PyTree, params: PyTree, weights: jax.Array) -> jax.Array:
    """The average Σ_s w_s p(z | x_n, θ_s) of every row, (n, m) for m values of z, over θ with a leading axis (s,)."""
    x = rows[0] if rows[1] is None else rows
    if model.responsibilities is None:
        raise ModelError("allocations() expects a model whose z has few values; use paths() to draw other z.")
    shares: OfRows = model.responsibilities

    def add(total: jax.Array, draw: tuple[PyTree, jax.Array]) -> tuple[jax.Array, None]:
        theta, weight = draw
        return total + weight * shares(theta, x), None

    first = jax.eval_shape(shares, jax.tree.map(lambda a: a[0], params), x)
    return jax.lax.scan(add, jnp.zeros(first.shape, first.dtype), (params, weights.astype(first.dtype)))[0]


@compiled("model")
def draw_latents(model: LatentModel, rows: PyTree, params: PyTree, key: jax.Array) -> PyTree:
    """Draws z of every row from p(z | x_n, θ_s), (s, n, ...), for parameters θ with a leading axis (s,)."""
    if model.sums is None or model.sums.drawn is None:
        raise ModelError("paths() expects a model whose z has few values, or is a sequence of states.")
    draw, x = model.sums.drawn, rows[0] if rows[1] is None else rows
    keys = jax.random.split(key, len(jax.tree.leaves(params)[0]))
    return jax.lax.map(lambda pair: draw(pair[0], pair[1], x), (keys, params))


@compiled("model")
def _heights(model: LatentModel, rows: PyTree, flat: jax.Array) -> jax.Array:
    """The log posterior of every draw, (s,)."""
    return jax.lax.map(lambda u: model.traced(u, whole(rows)), flat, batch_size=BATCH)


@compiled("model", "shares")
def _agreement(model: LatentModel, shares: OfRows, rows: PyTree, flat: jax.Array, pivot: jax.Array) -> jax.Array:
    """The expected number of rows in both component j of the pivot and component k of a draw, (s, K, K)."""
    (y, given), weights = split_weights(rows)
    x = y if given is None else (y, given)

    def shares_at(u: jax.Array) -> jax.Array:
        return shares(model.params(u), x)

    of_pivot = shares_at(pivot)
    of_pivot = of_pivot if weights is None else weights.reshape(-1, *(1,) * (of_pivot.ndim - 1)) * of_pivot
    of_pivot = of_pivot.reshape(-1, of_pivot.shape[-1])  # for sequences, one row for each step
    return jax.lax.map(lambda u: of_pivot.T @ shares_at(u).reshape(of_pivot.shape), flat, batch_size=BATCH)


@compiled("model", "permute")
def _reorder(model: LatentModel, permute: PyTree, flat: jax.Array, orders: jax.Array) -> jax.Array:
    """The draws (s, d) after each draw's components have been put into its order (s, K)."""

    def reorder(draw: tuple[jax.Array, jax.Array]) -> jax.Array:
        position, order = draw
        return model.position_of(permute(model.params(position), order))

    return jax.lax.map(reorder, (flat, orders), batch_size=BATCH)
