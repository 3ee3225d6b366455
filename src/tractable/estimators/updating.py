"""Models whose prior is an earlier posterior: what ``partial_fit`` learns more rows with."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core import Model, is_distribution
from tractable.results.posterior import Posterior
from tractable.tools.errors import SettingsError

LEAST_SD = 1e-6  # of a number that a method held fixed


def moments(posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the d unconstrained numbers, (d,) each.

    Raises:
        SettingsError: a point without curvature.
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
    """The model with the prior N(mean, sd²) of every unconstrained number by itself, carried to the parameters."""
    dtype = jnp.result_type(float)
    where, width = jnp.asarray(mean, dtype), jnp.asarray(sd, dtype)
    leaves = (jax.tree.leaves(model.space.unravel(numbers)) for numbers in (where, width))

    def carried(bijection: dist.transforms.Transform, plain: bool, mean: jax.Array, sd: jax.Array) -> dist.Distribution:
        normal = dist.Normal(mean, sd)
        event = bijection.domain.event_dim
        return normal if plain else dist.TransformedDistribution(normal.to_event(event), bijection)

    priors = list(map(carried, model.bijectors, model.unbounded, *leaves))
    structure = jax.tree.structure(model.prior, is_leaf=is_distribution)

    def start(key: jax.Array) -> Any:
        jitter = jax.random.normal(key, where.shape, dtype)
        return model.params(where + width * jitter)

    # A model without a start of its own is not a network, and Laplace tells the two apart by it.
    return Model(jax.tree.unflatten(structure, priors), model.likelihood, start=None if model.start is None else start)
