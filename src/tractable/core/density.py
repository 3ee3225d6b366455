"""Log densities of a model: functions of a position in its unconstrained space, over a batch or over all rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from tractable.core.errors import ModelError
from tractable.core.prior import Prior
from tractable.core.rows import Batch, PlacedRows, split_weights, whole
from tractable.core.tree import PyTree


def needed_likelihood(model: Prior) -> Callable:
    """The likelihood; a ModelError if the model has none."""
    if model.likelihood is None:
        said = "This model has no likelihood, so it says nothing about data: pass data=None."
        raise ModelError(getattr(model.prior, "why", None) or said)
    return model.likelihood


def counted_log_likelihoods(model: Prior, params: PyTree, rows: PyTree) -> jax.Array:
    """w_n log p(y_n | x_n, θ) of each row of ``core.arrays()``, (n,); w_n = 1 if the data have no weights."""
    rows, weights = split_weights(rows)
    terms = model.log_likelihoods(params, rows)
    return terms if weights is None else jnp.where(weights > 0, weights.astype(terms.dtype) * terms, 0.0)


def log_posterior(model: Prior, *, flat: bool = False, jacobian: bool = True) -> Callable:
    """``(position, batch) -> log p(θ) + N/n Σ_n w_n log p(y_n|θ)``, unconstrained; unbiased for the full sum.

    Args:
        flat: positions are flat vectors (``model.space``) instead of pytrees.
        jacobian: include the log-determinant, which makes it a log density of the unconstrained position. Leave it out
            to find a mode of the user's parameters.
    """

    def of(position: PyTree, batch: Batch | None) -> jax.Array:
        params, prior = _prior(model, position, flat, jacobian)
        if batch is None or model.likelihood is None:
            return prior
        return prior + batch.scale * batch_log_likelihood(model, params, batch)

    return of


def batch_log_likelihood(model: Prior, params: PyTree, batch: Batch) -> jax.Array:
    """Σ w_n log p(y_n | x_n, θ) of a batch's rows, unscaled; over all devices where they lie over several."""

    def of(params: PyTree, batch: Batch) -> jax.Array:
        return jnp.sum(batch.counted(model.log_likelihoods(params, batch.data)))

    return batch.summed(of, params)


def log_density(
    model: Prior, rows: PyTree = None, *, flat: bool = False, jacobian: bool = True, terms: bool = False
) -> Callable:
    """``position -> log p(θ) + Σ_n w_n log p(y_n|θ)`` over all rows, unconstrained.

    Args:
        rows: ``core.arrays()``; None for a model without data.
        terms: return the summands, (N + 1,), instead of the sum: a Metropolis ratio from their differences keeps
            its digits in float32 if N is large.
    """

    def of(position: PyTree) -> jax.Array:
        params, prior = _prior(model, position, flat, jacobian)
        if rows is None or model.likelihood is None:
            return prior
        if isinstance(rows, PlacedRows):
            return prior + batch_log_likelihood(model, params, whole(rows))
        likelihoods = counted_log_likelihoods(model, params, rows)
        return jnp.append(likelihoods, prior) if terms else prior + jnp.sum(likelihoods)

    return of


def _prior(model: Prior, position: PyTree, flat: bool, jacobian: bool) -> tuple[PyTree, jax.Array]:
    unconstrained = model.space.unravel(position) if flat else position
    params = model.constrain(unconstrained)
    prior = model.log_prior(params)
    if jacobian:
        prior = prior + model.log_jacobian(unconstrained, params)
    return params, prior
