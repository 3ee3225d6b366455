"""Log densities of a model as functions of an unconstrained position, over a batch or over all rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import Batch, PlacedRows, split_weights, whole
from tractable.core.errors import ModelError
from tractable.core.prior import Prior
from tractable.core.rows import arrays_for
from tractable.core.tree import PyTree


def needed_likelihood(model: Prior) -> Callable:
    """The likelihood; a ModelError if the model has none."""
    if model.likelihood is None:
        reason = getattr(model.prior, "why", None)  # why a program of another library gives no likelihood of rows
        raise ModelError(reason or "This model has no likelihood, so it says nothing about data: pass data=None.")
    return model.likelihood


def counted_log_likelihoods(model: Prior, params: PyTree, rows: PyTree) -> jax.Array:
    """w_n log p(y_n | x_n, θ) of each row, (n,), with w_n = 1 if the data have no weights.

    Args:
        rows: the rows as ``Data.arrays`` returns them.
    """
    rows, weights = split_weights(rows)
    terms = model.log_likelihoods(params, rows)
    return terms if weights is None else jnp.where(weights > 0, weights.astype(terms.dtype) * terms, 0.0)


def log_posterior(model: Prior, *, flat: bool = False, jacobian: bool = True) -> Callable:
    """The function ``(position, batch) -> log p(θ) + N/n Σ_n w_n log p(y_n|θ)``, unbiased for the sum over all rows.

    The function takes a Batch; Data, or arrays of y, are the batch of all rows.

    Args:
        flat: positions are flat vectors (``model.space``) instead of pytrees.
        jacobian: add the log-determinant, so that the value is a log density of the unconstrained position. Without the
            log-determinant the maximum is a mode of the user's parameters.
    """

    def density(position: PyTree, batch: Batch | None) -> jax.Array:
        if batch is not None and not isinstance(batch, Batch):
            batch = whole(arrays_for(batch))
        params, prior = _prior(model, position, flat, jacobian)
        if batch is None or model.likelihood is None:
            return prior
        return prior + batch.scale * batch_log_likelihood(model, params, batch)

    return density


def batch_log_likelihood(model: Prior, params: PyTree, batch: Batch) -> jax.Array:
    """Σ w_n log p(y_n | x_n, θ) over a batch's rows, on all devices that hold some of the rows; not scaled by N/n."""

    def log_likelihood(params: PyTree, batch: Batch) -> jax.Array:
        return jnp.sum(batch.counted(model.log_likelihoods(params, batch.data)))

    return batch.summed(log_likelihood, params)


def log_density(
    model: Prior, rows: PyTree = None, *, flat: bool = False, jacobian: bool = True, terms: bool = False
) -> Callable:
    """The function ``position -> log p(θ) + Σ_n w_n log p(y_n|θ)`` of an unconstrained position, over all rows.

    Args:
        rows: Data, or rows as ``Data.arrays`` returns them, or arrays of y; None for a model without data.
        flat, jacobian: as in ``log_posterior``.
        terms: return the summands, (N + 1,), instead of their sum: a Metropolis ratio from differences of summands
            is accurate in float32 even if N is large.
    """

    rows = None if rows is None else arrays_for(rows)

    def density(position: PyTree) -> jax.Array:
        params, prior = _prior(model, position, flat, jacobian)
        if rows is None or model.likelihood is None:
            return prior
        if isinstance(rows, PlacedRows):
            return prior + batch_log_likelihood(model, params, whole(rows))
        likelihoods = counted_log_likelihoods(model, params, rows)
        return jnp.append(likelihoods, prior) if terms else prior + jnp.sum(likelihoods)

    return density


def _prior(model: Prior, position: PyTree, flat: bool, jacobian: bool) -> tuple[PyTree, jax.Array]:
    """(θ, log p(θ)) at an unconstrained position."""
    unconstrained = model.space.unravel(position) if flat else position
    params = model.constrain(unconstrained)
    prior = model.log_prior(params)
    if jacobian:
        prior = prior + model.log_jacobian(unconstrained, params)
    return params, prior


def density_from_gradients(function: Callable, size: int) -> Callable:
    """A log density that JAX differentiates, from ``function(position) -> (log density, gradient (d,))`` in NumPy.

    Compiled programs call the function on the host, once for each position (``jax.pure_callback``).
    """
    found = function(np.zeros(size))
    shapes = [np.shape(part) for part in found] if isinstance(found, tuple) else np.shape(found)
    if shapes != [(), (size,)]:
        raise ModelError(
            f"Expected function(position) to return a log density and its gradient ({size},); at zeros the "
            f"shape of the result is {shapes}."
        )

    def call(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = [function(each) for each in np.asarray(positions, np.float64).reshape(-1, size)]
        values, gradients = (np.asarray(part, positions.dtype) for part in zip(*pairs, strict=True))
        return values.reshape(positions.shape[:-1]), gradients.reshape(positions.shape)

    def both(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        shapes = jax.ShapeDtypeStruct((), position.dtype), jax.ShapeDtypeStruct((size,), position.dtype)
        return jax.pure_callback(call, shapes, position, vmap_method="broadcast_all")

    @jax.custom_vjp
    def density(position: jax.Array) -> jax.Array:
        return both(position)[0]

    density.defvjp(both, lambda gradient, change: (change * gradient,))
    return density
