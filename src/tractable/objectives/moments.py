"""Moments of what layers draw: of h given x under q, and of x given h under p."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from tractable.models.causes import base_of
from tractable.models.ladder import Ladder
from tractable.tools.errors import ModelError

PyTree = Any


def moments(p: Distribution) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of a layer's units, (…, n).

    Of categorical units those of their indicators, (…, n · levels), as a neighbouring layer's network sees them.
    """
    base = base_of(p)
    if isinstance(base, dist.CategoricalLogits | dist.CategoricalProbs):
        probabilities = jnp.asarray(base.probs)
        probabilities = probabilities.reshape(*probabilities.shape[:-2], -1)
        return probabilities, probabilities * (1 - probabilities)
    try:
        return p.mean, p.variance
    except NotImplementedError as error:
        raise ModelError(f"{type(base).__name__} does not know its mean and variance in closed form.") from error


def draws_needed(ladder: Ladder, params: PyTree, x: PyTree, draws: int) -> list[int]:
    """Draws that each layer's moments are averaged over: 0 where q(h^i | ·) depends on x alone.

    Args:
        x: rows, of which only the shape is looked at.
        draws: where it depends on a drawn layer.
    """

    def widths(key: jax.Array, params: PyTree, x: PyTree) -> list[jax.Array]:
        return [moments(q)[0] for q in ladder.drawn(key, params, x, 2)[1]]

    key = jax.eval_shape(lambda: jax.random.key(0))
    return [draws if mean.shape[0] == 2 else 0 for mean in jax.eval_shape(widths, key, params, x)]


def coded(ladder: Ladder, params: PyTree, x: PyTree, key: jax.Array, draws: int) -> list[tuple]:
    """For each layer E[h^i | x], Var[h^i | x] and the variance of that mean's error, (row, n) each, under q.

        E[h²|x] = E E[h²|h¹],    Var[h²|x] = E Var[h²|h¹] + Var E[h²|h¹],    over h¹ ~ q(h¹ | x)

    Exact where q(h^i | ·) depends on x alone, else averaged over ``draws``.
    """
    found = []
    for q in ladder.drawn(key, params, x, draws)[1]:
        mean, variance = moments(q)  # (1 or draws, row, n)
        between = jnp.var(mean, axis=0)
        found.append((jnp.mean(mean, axis=0), jnp.mean(variance, axis=0) + between, between / max(draws - 1, 1)))
    return found
