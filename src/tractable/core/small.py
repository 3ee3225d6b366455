"""Triangular factors of many small matrices, computed by loops over columns.

Two batched LAPACK calls in one program can wait for each other for ever (docs/decisions/042).
"""

import jax
import jax.numpy as jnp


@jax.jit  # outside of jit, every call would compile the loop
def cholesky(matrices: jax.Array) -> jax.Array:
    """L with L Lᵀ = A, lower triangular, (..., d, d); NaN where A is not positive definite.

    A is made symmetric first, so that its derivatives are symmetric too.

    >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    size = matrices.shape[-1]
    index = jnp.arange(size)
    matrices = (matrices + jnp.swapaxes(matrices, -1, -2)) / 2

    def column(lower: jax.Array, j: jax.Array) -> tuple[jax.Array, None]:
        row = jax.lax.dynamic_index_in_dim(lower, j, -2, keepdims=False)  # (..., d); the columns from j on are still 0
        left = jax.lax.dynamic_index_in_dim(matrices, j, -1, keepdims=False) - jnp.sum(lower * row[..., None, :], -1)
        pivot = jnp.sqrt(jax.lax.dynamic_index_in_dim(left, j, -1))
        new = jnp.where(_along(index >= j, left.ndim), left / pivot, 0)
        return jnp.where(_along(index == j, lower.ndim), new[..., :, None], lower), None

    return jax.lax.scan(column, jnp.zeros_like(matrices), index)[0]


@jax.jit
def inverse(lower: jax.Array) -> jax.Array:
    """L⁻¹ of lower-triangular matrices L, (..., d, d), by forward substitution.

    >>> inverse(jnp.array([[2.0, 0.0], [1.0, 2.0]])).tolist()
    [[0.5, 0.0], [-0.25, 0.5]]
    """
    size = lower.shape[-1]
    index = jnp.arange(size)

    def row(known: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        coefficients = jax.lax.dynamic_index_in_dim(lower, i, -2, keepdims=False)  # (..., d)
        unit = _along(index == i, known.ndim - 1).astype(lower.dtype)
        solution = unit - jnp.sum(coefficients[..., :, None] * known, -2)  # rows from i on are still 0
        solution = solution / jax.lax.dynamic_index_in_dim(coefficients, i, -1)
        return jnp.where(_along(index == i, known.ndim - 1)[..., None], solution[..., None, :], known), None

    return jax.lax.scan(row, jnp.zeros_like(lower), index)[0]


def inverse_root(matrices: jax.Array) -> jax.Array:
    """L⁻¹ of A = L Lᵀ, (..., d, d)."""
    return inverse(cholesky(matrices))


def _along(mask: jax.Array, rank: int) -> jax.Array:
    """The mask (d,) along the last of ``rank`` axes."""
    return mask.reshape((1,) * (rank - 1) + mask.shape)
