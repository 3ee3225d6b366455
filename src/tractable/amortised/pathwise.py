"""Bounds climbed through the draws themselves: variational autoencoders, and their importance-weighted kin.

For layers whose draws can be differentiated: h = h(φ, ε).
"""

from typing import Any

import jax
import jax.numpy as jnp

from tractable.amortised.bounds import log_weights
from tractable.core import Batch
from tractable.models.ladder import Ladder
from tractable.objectives import Objective

PyTree = Any


def keys(key: jax.Array, count: int, params: PyTree) -> jax.Array:
    """The ``draw`` of an objective whose noise is a key a step: how much randomness a layer takes is its own affair."""
    del params
    return jax.random.split(key, count)


def summed(ladder: Ladder, params: PyTree, terms: jax.Array, batch: Batch) -> jax.Array:
    """N/n Σ of a term a row, (n,), and log p(θ)."""
    return batch.scale * jnp.sum(jnp.where(batch.mask > 0, terms, 0.0)) + ladder.log_prior(params["theta"])


def autoencoding(ladder: Ladder, *, samples: int = 1) -> Objective:
    """The ELBO of a variational autoencoder, E_q[log p(x, h) − log q(h | x)] (Kingma & Welling 2014)."""

    def value(noise: jax.Array, params: PyTree, batch: Batch) -> jax.Array:
        look_key, draw_key = jax.random.split(noise)
        x = ladder.look(look_key, batch.data[0])
        h, q = ladder.drawn(draw_key, params, x, samples, pathwise=True)
        log_w, _ = log_weights(ladder, params, x, h, q)  # (S, n)
        return summed(ladder, params, jnp.mean(log_w, axis=0), batch)

    return Objective(keys, value)
