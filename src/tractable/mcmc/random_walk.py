"""Random-walk Metropolis: the proposal is θ' = θ + s L z, z ~ N(0, I).

Target: exactly π. Metropolis et al. 1953. It needs no gradient. Its mixing time grows with the dimension, so with more
than a few dozen parameters prefer MALA or NUTS. The optimal acceptance rate is 0.44 in one dimension and 0.234 in many
(Roberts, Gelman & Gilks 1997). It is reached at s ≈ 2.38/√d if L Lᵀ is the posterior covariance.
"""

from collections.abc import Callable

import jax

from tractable.core import scaling, tree
from tractable.core.model import Kernel, PyTree
from tractable.mcmc.metropolis import Proposal, metropolis


def random_walk(log_density: Callable, step_size: float | jax.Array = 1.0, scale: PyTree = 1.0) -> Kernel:
    """The random-walk Metropolis kernel.

    Args:
        log_density: ``position -> ()``, or the terms (m,) that sum to it.
        step_size: s > 0, a standard deviation.
        scale: L, which is a number, a pytree like the position, or for position vectors a lower-triangular matrix
            (d, d).
    """
    return metropolis(log_density, gaussian(step_size, scale))


def gaussian(step_size: float | jax.Array = 1.0, scale: PyTree = 1.0) -> Proposal:
    """The symmetric normal proposal N(θ, s² L Lᵀ)."""

    def draw(key: jax.Array, count: int, position: PyTree) -> PyTree:
        noise = tree.normal_like(key, position, count)
        if scaling.is_matrix(scale):
            return step_size * (noise @ scale.T)  # one product for all ``count`` steps
        return jax.tree.map(lambda z: step_size * z, jax.vmap(lambda z: scaling.multiply(scale, z))(noise))

    return Proposal(draw, lambda noise, here: jax.tree.map(lambda x, z: x + z, here.position, noise))
