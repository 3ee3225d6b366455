"""Models whose prior is an earlier posterior, for ``partial_fit``."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.errors import SettingsError
from tractable.core.model import Model, PyTree, is_distribution
from tractable.posterior.posterior import Posterior

LEAST_SD = 1e-6  # sd of a parameter that a method held fixed


def moments(posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the d unconstrained parameters, (d,) each.

    Raises:
        SettingsError: the posterior is a point without curvature.
    """
    known = posterior.belief.unconstrained_moments()
    if known is None:
        raise SettingsError(
            "partial_fit makes the posterior of earlier rows the prior of the next, and "
            f"{type(posterior.method).__name__} left a point without a width (more than 1000 numbers, or no proper "
            "maximum). Use method='bbb' or 'laplace'."
        )
    mean, sd = known
    return np.asarray(mean, np.float64), np.maximum(np.asarray(sd, np.float64), LEAST_SD)


def updated(model: Model, mean: np.ndarray, sd: np.ndarray) -> Model:
    """The model with independent priors N(mean, sd²) of the unconstrained numbers, transformed to the parameters.

    mean and sd are arguments of its compiled programs, so later calls compile nothing new.
    """
    dtype = jnp.result_type(float)
    where, width = (model.space.unravel(jnp.asarray(numbers, dtype)) for numbers in (mean, sd))

    def carried(bijection: dist.transforms.Transform, plain: bool, mean: jax.Array, sd: jax.Array) -> dist.Distribution:
        normal = dist.Normal(mean, sd)
        if plain:
            return normal
        prior = dist.TransformedDistribution(normal.to_event(bijection.domain.event_dim), bijection)
        # So that methods which ask for normal priors know these, as of weights that sum to zero over classes.
        prior.normal_coordinates = mean, sd
        return prior

    priors = list(map(carried, model.bijectors, model.unbounded, *map(jax.tree.leaves, (where, width))))
    structure = jax.tree.structure(model.prior, is_leaf=is_distribution)
    # A model without its own start is no network; Laplace tells the two apart by it, so none is added here.
    start = None if model.start is None else jax.tree_util.Partial(_drawn, model.bijectors, where, width)
    parts = None
    if model.parts is not None:
        places = {name: model.part(name) for name in model.parts}
        parts = {name: updated(part, mean[places[name]], sd[places[name]]) for name, part in model.parts.items()}
    return Model(jax.tree.unflatten(structure, priors), model.likelihood, start=start, shared=True, parts=parts)


def _drawn(bijectors: list, where: PyTree, width: PyTree, key: jax.Array) -> PyTree:
    """Parameters: one draw of the normals, transformed."""
    means, structure = jax.tree.flatten(where)
    noise = jax.random.normal(key, (sum(mean.size for mean in means),), means[0].dtype)
    pieces = jnp.split(noise, np.cumsum([mean.size for mean in means])[:-1])
    return jax.tree.unflatten(structure, [
        bijection(mean + sd * piece.reshape(mean.shape))
        for bijection, mean, sd, piece in zip(bijectors, means, jax.tree.leaves(width), pieces, strict=True)
    ])  # fmt: skip
