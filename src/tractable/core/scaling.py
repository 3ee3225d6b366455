"""Preconditioners P = L Lᵀ, given by L: a positive number, a vector (diagonal) or a lower-triangular matrix.

A number acts on any pytree, a pytree of vectors on a pytree of its structure, and a matrix on flat positions only.
"""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.tree import PyTree


def is_matrix(scale: PyTree) -> bool:
    """Whether L is a matrix, which acts on flat positions."""
    return isinstance(scale, jax.Array | np.ndarray) and scale.ndim == 2


def multiply(scale: PyTree, x: PyTree) -> PyTree:
    """L x."""
    if is_matrix(scale):
        return scale @ x
    return jax.tree.map(lambda a: scale * a, x) if _one(scale) else jax.tree.map(jnp.multiply, scale, x)


def transpose_multiply(scale: PyTree, x: PyTree) -> PyTree:
    """Lᵀ x."""
    return scale.T @ x if is_matrix(scale) else multiply(scale, x)


def solve(scale: PyTree, x: PyTree) -> PyTree:
    """L⁻¹ x."""
    if is_matrix(scale):
        return jax.scipy.linalg.solve_triangular(scale, x, lower=True)
    return jax.tree.map(lambda a: a / scale, x) if _one(scale) else jax.tree.map(jnp.divide, x, scale)


def covariance_multiply(scale: PyTree, x: PyTree) -> PyTree:
    """P x."""
    return multiply(scale, transpose_multiply(scale, x))


def _one(scale: PyTree) -> bool:
    return isinstance(scale, float | int) or (hasattr(scale, "ndim") and scale.ndim == 0)
