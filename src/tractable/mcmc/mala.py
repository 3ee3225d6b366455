"""The Metropolis-adjusted Langevin algorithm (MALA): a Langevin step that is accepted or rejected.

    θ' = θ + (ε/2) P ∇log π(θ) + √ε L z,   z ~ N(0, I),   P = L Lᵀ

Target: exactly π for every ε. Roberts & Tweedie 1996. ε is defined as by Welling & Teh 2011; it is twice BlackJAX's
step size. The optimal acceptance rate is 0.574 (Roberts & Rosenthal 1998). Without a preconditioner P, the direction of
the smallest scale limits ε.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from tractable.core import scaling, tree
from tractable.core.model import Kernel, PyTree
from tractable.mcmc.metropolis import Point, Proposal, metropolis


def mala(log_density: Callable, step_size: float | jax.Array, scale: PyTree = 1.0) -> Kernel:
    """The MALA kernel.

    Args:
        log_density: ``position -> ()``, or the terms (m,) that sum to it.
        step_size: ε > 0.
        scale: L, which is a number, a pytree like the position, or for position vectors a lower-triangular matrix
            (d, d).
    """
    return metropolis(log_density, langevin(step_size, scale))


def langevin(step_size: float | jax.Array, scale: PyTree = 1.0) -> Proposal:
    """The proposal N(θ + (ε/2) P ∇log π(θ), ε P)."""
    root = jnp.sqrt(step_size)

    def draw(key: jax.Array, count: int, position: PyTree) -> PyTree:
        return tree.normal_like(key, position, count)

    def drift(gradient: PyTree) -> PyTree:
        """The drift in units of the noise, (√ε/2) Lᵀ ∇log π."""
        return jax.tree.map(lambda g: 0.5 * root * g, scaling.transpose_multiply(scale, gradient))

    def move(noise: PyTree, here: Point) -> PyTree:
        whitened = jax.tree.map(lambda d, z: root * (d + z), drift(here.gradient), noise)
        return jax.tree.map(lambda x, s: x + s, here.position, scaling.multiply(scale, whitened))

    def log_ratio(noise: PyTree, here: Point, there: Point) -> jax.Array:
        # The reverse step has the noise −(z + drift here + drift there). Computed from the difference of the positions,
        # it would have large rounding errors if the step is small.
        back = jax.tree.map(lambda z, a, b: z + a + b, noise, drift(here.gradient), drift(there.gradient))
        return 0.5 * (tree.dot(noise, noise) - tree.dot(back, back))

    def log_prob(there: Point, here: Point) -> jax.Array:
        difference = jax.tree.map(jnp.subtract, there.position, here.position)
        whitened = scaling.solve(scale, difference)
        residual = jax.tree.map(lambda w, d: w / root - d, whitened, drift(here.gradient))
        return -0.5 * tree.dot(residual, residual)

    return Proposal(draw, move, log_ratio, log_prob, gradient=True)
