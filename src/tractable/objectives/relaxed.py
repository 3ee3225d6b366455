"""Discrete layers drawn as if they were continuous: concrete, or Gumbel–softmax, relaxations.

    binary      σ(l),        l = (η + log u − log(1 − u)) / τ         u ~ Uniform(0, 1)
    others      softmax(l),  l = log_softmax((η + g) / τ)             g ~ Gumbel(0, 1)

Densities are those of l, since σ(l) loses its digits near 0 and 1 (Maddison, Mnih & Teh 2017, appendix C; Jang, Gu
& Poole 2017). q and p are both relaxed, at the same τ. The objective is then a bound for the relaxed model; for the
discrete model its gradient is biased, the more so the larger τ is.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints

from tractable.models.causes import base_of
from tractable.models.ladder import Ladder, draws_of
from tractable.models.layers import Soft
from tractable.tools.errors import ModelError
from tractable.tools.settings import Positive, expect
from tractable.tools.tree import PyTree


class LogConcrete(dist.Distribution):
    """l = log_softmax((η + Gumbel noise)/τ) of K levels; the batch shape is η's without its last axis.

        log p(l) = log (K − 1)! + (K − 1) log τ + Σ_k (η_k − τ l_k) − K log Σ_k exp(η_k − τ l_k),    Σ_k exp l_k = 1

    is a density in the K − 1 differences l_k − l_K: the ExpConcrete of Maddison et al. 2017. Adding a constant to η
    changes nothing.
    """

    arg_constraints: ClassVar = {"logits": constraints.real_vector, "temperature": constraints.positive}
    support = constraints.real_vector  # pyright: ignore[reportAssignmentType]
    reparametrized_params: ClassVar = ["logits", "temperature"]
    pytree_data_fields = ("logits", "temperature")

    def __init__(self, logits: ArrayLike, temperature: ArrayLike, *, validate_args: bool | None = None) -> None:
        self.logits, self.temperature = jnp.asarray(logits), temperature
        super().__init__(self.logits.shape[:-1], self.logits.shape[-1:], validate_args=validate_args)

    def log_prob(self, value: jax.Array | np.ndarray, intermediates: PyTree = None) -> jax.Array:
        levels = self.logits.shape[-1]
        free = self.logits - self.temperature * value
        constant = math.lgamma(levels) + (levels - 1) * jnp.log(self.temperature)
        return constant + jnp.sum(free, -1) - levels * jax.nn.logsumexp(free, -1)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        g = jax.random.gumbel(key, (*sample_shape, *self.logits.shape), self.logits.dtype)
        return jax.nn.log_softmax((self.logits + g) / self.temperature)


def soften(distribution: Distribution, temperature: float) -> Distribution:
    """The distribution of l that relaxes a discrete layer's distribution."""
    base = base_of(distribution)
    if isinstance(base, dist.BernoulliLogits):
        scale = jnp.full_like(base.logits, 1 / temperature)
        return dist.Logistic(base.logits / temperature, scale, validate_args=False).to_event(1)
    return LogConcrete(base.logits, temperature, validate_args=False).to_event(1)


def drawn(
    key: jax.Array, ladder: Ladder, params: PyTree, x: PyTree, draws: int, temperature: float
) -> tuple[tuple, list[Any]]:
    """``Ladder.drawn(..., pathwise=True)``, discrete layers relaxed: their h is ``Soft``, their q a density of l."""
    keys, found = jax.random.split(key, ladder.depth), {}

    def choose(i: int, q: Distribution) -> PyTree:
        soft = i + 1 in ladder.discrete
        q = found[i] = soften(q, temperature) if soft else q
        h = draws_of(q, keys[i], draws)
        return Soft(h) if soft else h

    h, _ = ladder.infer(params, jax.tree.map(lambda a: a[None], x), choose)
    return h, [found[i] for i in range(ladder.depth)]


def softened(ladder: Ladder, layers: list[Any], temperature: float) -> list[Any]:
    """The hidden layers' distributions, [h¹, …, h^L], with discrete ones relaxed."""
    return [soften(d, temperature) if i + 1 in ladder.discrete else d for i, d in enumerate(layers)]


def check_relaxation(ladder: Ladder, temperature: object) -> None:
    """Raise where no layer is discrete, or a discrete layer has no relaxation."""
    expect("relaxation, a temperature,", temperature, Positive)
    if not ladder.discrete:
        raise ModelError("relaxation= is of discrete layers, and this ladder has none: leave it out.")
    for i in ladder.discrete:
        family = ladder.layers[i].family
        if family.name not in ("Bernoulli", "Categorical"):
            raise ModelError(
                f"relaxation= is of Bernoulli and categorical layers, and layer {i} is {family.name}: NVIL, VIMCO, "
                "WakeSleep and ReweightedWakeSleep learn such a ladder."
            )
