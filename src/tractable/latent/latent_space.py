"""The z of one datum as flat unconstrained reals, the space that chains move in."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to

from tractable.core import tree
from tractable.core.errors import ModelError
from tractable.core.model import PyTree, is_distribution


class LatentSpace(NamedTuple):
    """The z of one datum as k reals u."""

    size: int  # k
    constrain: Callable  # (theta, datum, u) -> z
    log_density: Callable  # (theta, datum, u) -> (), log p(x, z | θ) + log |∂z/∂u|
    sample: Callable  # (key, theta, datum) -> u of a z ~ p(z | θ)
    log_weight: Callable  # (theta, datum, u) -> (), log p(x | z, θ)


def latent_space(latent: Callable, log_joint: Callable, theta: PyTree, datum: PyTree) -> LatentSpace:
    """z as reals: bijections to its distributions' supports, with their log-determinants.

    Args:
        latent: ``(theta, datum) -> `` z's distribution, or a pytree of them.
        log_joint: ``(theta, datum, z) -> ()``, log p(x, z | θ).
        theta, datum: examples; only their shapes matter.

    Raises:
        ModelError: z is discrete, or the log joint is not a scalar.
    """

    def sampled(key: jax.Array, theta: PyTree, datum: PyTree) -> PyTree:
        leaves, bijectors, structure = _parts(latent(theta, datum))
        keys = jax.random.split(key, len(leaves))
        drawn = [b.inv(d.sample(k)) for b, d, k in zip(bijectors, leaves, keys, strict=True)]
        return jax.tree.unflatten(structure, drawn)

    shapes = jax.eval_shape(sampled, jax.random.key(0), theta, datum)
    ravel, unravel = tree.raveller(shapes)

    def opened(theta: PyTree, datum: PyTree, u: jax.Array) -> tuple[PyTree, jax.Array]:
        """z and log |∂z/∂u|."""
        _, bijectors, structure = _parts(latent(theta, datum))
        reals = jax.tree.leaves(unravel(u))
        values = [b(v) for b, v in zip(bijectors, reals, strict=True)]
        terms = [jnp.sum(b.log_abs_det_jacobian(v, z)) for b, v, z in zip(bijectors, reals, values, strict=True)]
        return jax.tree.unflatten(structure, values), tree.total(terms)

    def constrain(theta: PyTree, datum: PyTree, u: jax.Array) -> PyTree:
        return opened(theta, datum, u)[0]

    def log_density(theta: PyTree, datum: PyTree, u: jax.Array) -> jax.Array:
        z, log_determinant = opened(theta, datum, u)
        return log_joint(theta, datum, z) + log_determinant

    def sample(key: jax.Array, theta: PyTree, datum: PyTree) -> jax.Array:
        return ravel(sampled(key, theta, datum))

    def log_weight(theta: PyTree, datum: PyTree, u: jax.Array) -> jax.Array:
        z = constrain(theta, datum, u)
        terms = [d.log_prob(v) for d, v in zip(_parts(latent(theta, datum))[0], jax.tree.leaves(z), strict=True)]
        return log_joint(theta, datum, z) - tree.total(terms)

    got = jax.eval_shape(log_density, theta, datum, jax.eval_shape(ravel, shapes))
    if got.shape != ():
        raise ModelError(
            f"log p(x, z | θ) of one datum is one number; got shape {got.shape}. Where z or x has several numbers, its "
            "distribution wants .to_event()."
        )
    return LatentSpace(tree.size(shapes), constrain, log_density, sample, log_weight)


def _parts(distributions: PyTree) -> tuple[list, list, Any]:
    """z's distributions, the bijections to their supports, and the tree structure."""
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    for leaf in leaves:
        if leaf.support.is_discrete:
            raise ModelError(
                f"z's {type(leaf).__name__} is discrete, and chains move on the reals: give causes=, the values "
                "of z, which are then drawn exactly."
            )
    return leaves, [biject_to(d.support) for d in leaves], structure
