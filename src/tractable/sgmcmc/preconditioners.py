"""Preconditioners P = L Lᵀ of the stochastic-gradient samplers; they may adapt to the gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.errors import SettingsError
from tractable.core.model import Batch, PyTree


class Preconditioner(NamedTuple):
    """``init(position) -> state``, ``update(state, gradient, batch) -> state``, ``scale(state) -> L``."""

    init: Callable
    update: Callable
    scale: Callable


def fixed(scale: PyTree = 1.0) -> Preconditioner:
    """L as given: a number, a pytree like the position, or a lower-triangular matrix for flat positions."""
    return Preconditioner(lambda position: (), lambda state, gradient, batch: state, lambda state: scale)


IDENTITY = fixed()


def rmsprop(decay: float = 0.99, damping: float = 1e-5) -> Preconditioner:
    """P = 1/(λ + √v), v a running mean of (g/N)² (pSGLD, Li et al. 2016, eqs. 4–5).

    P changes with the position. The drift term Γ(θ) that this requires is left out, as in the paper's
    experiments; with ``decay`` near 1 both P and the error hardly change. For an exact account of the bias
    use a preconditioner measured in warm-up.

    Args:
        decay: α in (0, 1).
        damping: λ > 0.
    """
    if not 0 < decay < 1:
        raise SettingsError(f"rmsprop needs a decay in (0, 1); got {decay}.")
    if not damping > 0:
        raise SettingsError(f"rmsprop needs a damping > 0; got {damping}.")

    def update(mean_square: PyTree, gradient: PyTree, batch: Batch) -> PyTree:
        return jax.tree.map(lambda v, g: decay * v + (1 - decay) * jnp.square(g / batch.size), mean_square, gradient)

    def scale(mean_square: PyTree) -> PyTree:
        return jax.tree.map(lambda v: jax.lax.rsqrt(damping + jnp.sqrt(v)), mean_square)

    return Preconditioner(lambda position: jax.tree.map(jnp.ones_like, position), update, scale)
