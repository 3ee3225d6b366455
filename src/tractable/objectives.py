"""Objectives: ``value(noise, params, batch) -> scalar`` whose gradient is an unbiased uphill direction.

Up is better: these are log densities and bounds, never losses.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tractable.core import Batch, Model, log_posterior

PyTree = Any


class Objective(NamedTuple):
    """``draw(key, count, params) -> noise`` with a leading axis of ``count``, and ``value``."""

    draw: Callable
    value: Callable


def log_joint(model: Model, *, prior: bool = True, flat: bool = False) -> Objective:
    """N/n Σ log p(y|θ) (+ log p(θ)): maximum likelihood, or a posteriori with the prior.

    The density is of the *user's* parameters, so the maximum is where they would look for it: it does not move
    with the parametrisation, and carries no log-determinant.
    """
    posterior = log_posterior(model, flat=flat, jacobian=False)

    def value(noise: Any, params: PyTree, batch: Batch | None) -> jax.Array:
        del noise
        if prior or batch is None:
            return posterior(params, batch)
        theta = model.constrain(model.space.unravel(params) if flat else params)
        terms = model.log_likelihoods(theta, batch.data)
        return batch.scale * jnp.sum(jnp.where(batch.mask > 0, terms, 0.0))

    return Objective(lambda key, count, params: jnp.zeros((count, 0)), value)
