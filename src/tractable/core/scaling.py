"""Preconditioners P = L Lᵀ, given by L: a positive number, a vector (diagonal), a lower-triangular matrix or a LowRank.

A number acts on any pytree, a pytree of vectors on a pytree of its structure, and the others on flat positions only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.tree import PyTree


class LowRank(NamedTuple):
    """L = S (I + U (Λ − I) Uᵀ), which stretches k orthonormal directions beyond a diagonal S; it has no ``solve``."""

    scale: jax.Array | np.ndarray  # (d,) the diagonal of S
    directions: jax.Array | np.ndarray  # (d, k) U; a column of zeros stretches nothing
    stretch: jax.Array | np.ndarray  # (k,) the diagonal of Λ


def is_matrix(scale: PyTree) -> bool:
    """Whether L is a matrix, which acts on flat positions."""
    return isinstance(scale, jax.Array | np.ndarray) and scale.ndim == 2


def multiply(scale: PyTree, x: PyTree) -> PyTree:
    """L x."""
    if isinstance(scale, LowRank):
        return scale.scale * _stretch(scale, x)
    if is_matrix(scale):
        return scale @ x
    return jax.tree.map(lambda a: scale * a, x) if _one(scale) else jax.tree.map(jnp.multiply, scale, x)


def transpose_multiply(scale: PyTree, x: PyTree) -> PyTree:
    """Lᵀ x."""
    if isinstance(scale, LowRank):
        return _stretch(scale, scale.scale * x)
    return scale.T @ x if is_matrix(scale) else multiply(scale, x)


def solve(scale: PyTree, x: PyTree) -> PyTree:
    """L⁻¹ x."""
    if is_matrix(scale):
        return jax.scipy.linalg.solve_triangular(scale, x, lower=True)
    return jax.tree.map(lambda a: a / scale, x) if _one(scale) else jax.tree.map(jnp.divide, x, scale)


def covariance_multiply(scale: PyTree, x: PyTree) -> PyTree:
    """P x."""
    return multiply(scale, transpose_multiply(scale, x))


def _stretch(scale: LowRank, x: jax.Array) -> jax.Array:
    if not scale.stretch.size:
        return x
    return x + scale.directions @ ((scale.stretch - 1) * (x @ scale.directions))


def _one(scale: PyTree) -> bool:
    return isinstance(scale, float | int) or (hasattr(scale, "ndim") and scale.ndim == 0)
