"""The z of one datum as a flat vector of unconstrained real numbers, the space in which Markov chains move."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to

from tractable.core import tree
from tractable.core.errors import ModelError
from tractable.core.model import PyTree, is_distribution


class LatentSpace(NamedTuple):
    """The z of one datum as k real numbers u."""

    size: int  # k, the length of u
    constrain: Callable  # (theta, datum, u) -> z
    log_density: Callable  # (theta, datum, u) -> (), log p(x, z | θ) + log |∂z/∂u|
    sample: Callable  # (key, theta, datum) -> the u of a draw z ~ p(z | θ)
    log_weight: Callable  # (theta, datum, u) -> (), log p(x | z, θ)


def latent_space(latent: Callable, log_joint: Callable, theta: PyTree, datum: PyTree) -> LatentSpace:
    """The space of z: bijections from real numbers to the supports of z's distributions, with their log-determinants.

    Args:
        latent: ``(theta, datum) -> `` z's distribution, or a pytree of them.
        log_joint: ``(theta, datum, z) -> ()``, log p(x, z | θ).
        theta, datum: examples; only their shapes matter.

    Raises:
        ModelError: z is discrete, or the log joint is not a scalar.
    """

    def draw_reals(key: jax.Array, theta: PyTree, datum: PyTree) -> PyTree:
        leaves, bijectors, structure = _parts(latent(theta, datum))
        keys = jax.random.split(key, len(leaves))
        draws = [b.inv(d.sample(k)) for b, d, k in zip(bijectors, leaves, keys, strict=True)]
        return jax.tree.unflatten(structure, draws)

    shapes = jax.eval_shape(draw_reals, jax.random.key(0), theta, datum)
    ravel, unravel = tree.raveller(shapes)

    def transform(theta: PyTree, datum: PyTree, u: jax.Array) -> tuple[PyTree, jax.Array]:
        """The z that u stands for, and log |∂z/∂u|."""
        _, bijectors, structure = _parts(latent(theta, datum))
        reals = jax.tree.leaves(unravel(u))
        values = [b(v) for b, v in zip(bijectors, reals, strict=True)]
        terms = [jnp.sum(b.log_abs_det_jacobian(v, z)) for b, v, z in zip(bijectors, reals, values, strict=True)]
        return jax.tree.unflatten(structure, values), tree.total(terms)

    def constrain(theta: PyTree, datum: PyTree, u: jax.Array) -> PyTree:
        return transform(theta, datum, u)[0]

    def log_density(theta: PyTree, datum: PyTree, u: jax.Array) -> jax.Array:
        z, log_determinant = transform(theta, datum, u)
        return log_joint(theta, datum, z) + log_determinant

    def sample(key: jax.Array, theta: PyTree, datum: PyTree) -> jax.Array:
        return ravel(draw_reals(key, theta, datum))

    def log_weight(theta: PyTree, datum: PyTree, u: jax.Array) -> jax.Array:
        z = constrain(theta, datum, u)
        terms = [d.log_prob(v) for d, v in zip(_parts(latent(theta, datum))[0], jax.tree.leaves(z), strict=True)]
        return log_joint(theta, datum, z) - tree.total(terms)

    output = jax.eval_shape(log_density, theta, datum, jax.eval_shape(ravel, shapes))
    if output.shape != ():
        raise ModelError(
            f"log p(x, z | θ) of one datum must be one number; got shape {output.shape}. If z or x has several "
            "numbers, give its distribution .to_event()."
        )
    return LatentSpace(tree.size(shapes), constrain, log_density, sample, log_weight)


def _parts(distributions: PyTree) -> tuple[list, list, Any]:
    """z's distributions, the bijections to their supports, and z's structure; raises ModelError for discrete ones."""
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    for leaf in leaves:
        if leaf.support.is_discrete:
            raise ModelError(
                f"z's {type(leaf).__name__} is discrete, but Markov chains move in real numbers. Give causes=, the "
                "values of z; z is then drawn exactly."
            )
    return leaves, [biject_to(d.support) for d in leaves], structure
