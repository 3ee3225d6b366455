"""Preconditioners P = L Lᵀ of the stochastic-gradient samplers, fixed or adapting to the gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.errors import SettingsError
from tractable.core.model import Batch, PyTree


class Preconditioner(NamedTuple):
    """A preconditioner: three functions, with a state that adapts to the gradients or is empty."""

    init: Callable  # position -> state
    update: Callable  # (state, gradient, batch) -> state
    scale: Callable  # state -> L


def fixed(scale: PyTree = 1.0) -> Preconditioner:
    """A fixed L: a number, a pytree like the position, or a lower-triangular matrix for flat positions."""
    return Preconditioner(lambda position: (), lambda state, gradient, batch: state, lambda state: scale)


IDENTITY = fixed()


def rmsprop(decay: float = 0.99, damping: float = 1e-5) -> Preconditioner:
    """RMSprop's P = 1/(λ + √v), where v is a running mean of (g/N)² (pSGLD, Li et al. 2016, eqs. 4–5).

    P changes with the position, so exact dynamics need a further drift term Γ(θ). It is left out here, as in the
    paper's experiments. With ``decay`` near 1, P changes little and the error is small. Use a preconditioner that is
    measured in warm-up if the predicted bias should include all of the bias.

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
