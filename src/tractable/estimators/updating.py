"""Models whose prior is the posterior of earlier rows, for ``partial_fit``."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.errors import SettingsError
from tractable.core.model import Model, PyTree, is_distribution
from tractable.posterior.posterior import Posterior

LEAST_SD = 1e-6  # the sd given to a parameter that a method held fixed


def moments(posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the d unconstrained parameters, (d,) each.

    Raises:
        SettingsError: the posterior is a point without curvature, or several chains of a network.
    """
    known, reason = posterior.belief.unconstrained_moments(), ""
    if known is None:
        reason = "gave a point estimate without sds (it has more than 1000 numbers, or no proper maximum)"
    elif posterior.model.network_weights and posterior.chains > 1:
        reason = "drew the weights of a network in several chains, which may lie in different modes"
    if known is None or reason:
        raise SettingsError(
            "partial_fit uses the posterior of the earlier rows as the prior of the next rows, but "
            f"{type(posterior.method).__name__} {reason}. Use method='bbb' or 'laplace', in the first call too."
        )
    mean, sd = known
    return np.asarray(mean, np.float64), np.maximum(np.asarray(sd, np.float64), LEAST_SD)


def with_normal_priors(model: Model, mean: np.ndarray, sd: np.ndarray) -> Model:
    """The model with independent priors N(mean, sd²) of the unconstrained numbers, transformed to the parameters.

    The compiled programs take mean and sd as arguments, so later calls compile nothing new.
    """
    dtype = jnp.result_type(float)
    means, sds = (model.space.unravel(jnp.asarray(numbers, dtype)) for numbers in (mean, sd))

    def normal_prior(
        bijection: dist.transforms.Transform, unbounded: bool, mean: jax.Array, sd: jax.Array
    ) -> dist.Distribution:
        normal = dist.Normal(mean, sd)
        if unbounded:
            return normal
        prior = dist.TransformedDistribution(normal.to_event(bijection.domain.event_dim), bijection)
        # Methods that need normal priors recognise this one by the attribute. An example of such a parameter is a
        # vector of weights that sum to zero over classes.
        prior.normal_coordinates = mean, sd
        return prior

    priors = list(map(normal_prior, model.bijectors, model.unbounded, *map(jax.tree.leaves, (means, sds))))
    structure = jax.tree.structure(model.prior, is_leaf=is_distribution)
    # ``Laplace`` treats a model with its own starting point as a network. So no start is added to a model without one.
    start = None if model.start is None else jax.tree_util.Partial(_draw, model.bijectors, means, sds)
    parts = model.parts and {
        name: with_normal_priors(part, mean[model.part(name)], sd[model.part(name)])
        for name, part in model.parts.items()
    }
    return Model(jax.tree.unflatten(structure, priors), model.likelihood, start=start, shared=True, parts=parts)


def _draw(bijectors: list, means: PyTree, sds: PyTree, key: jax.Array) -> PyTree:
    """One draw of the normals, transformed to the parameters."""
    means, structure = jax.tree.flatten(means)
    noise = jax.random.normal(key, (sum(mean.size for mean in means),), means[0].dtype)
    pieces = jnp.split(noise, np.cumsum([mean.size for mean in means])[:-1])
    return jax.tree.unflatten(structure, [
        bijection(mean + sd * piece.reshape(mean.shape))
        for bijection, mean, sd, piece in zip(bijectors, means, jax.tree.leaves(sds), pieces, strict=True)
    ])  # fmt: skip
