"""The continuous Bernoulli: a density on [0, 1] for grey pixels (Loaiza-Ganem & Cunningham 2019)."""

import math

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import constraints


class ContinuousBernoulliLogits(dist.Distribution):
    """p(x | λ) = C(λ) λ^x (1 − λ)^(1−x) on [0, 1], λ = σ(η), log C = log(η / tanh(η/2))."""

    arg_constraints = {"logits": constraints.real}  # noqa: RUF012
    support = constraints.unit_interval  # pyright: ignore[reportAssignmentType]
    reparametrized_params = ["logits"]  # noqa: RUF012
    pytree_data_fields = ("logits",)

    def __init__(self, logits: ArrayLike, *, validate_args: bool | None = None) -> None:
        self.logits = jnp.asarray(logits)
        super().__init__(self.logits.shape, (), validate_args=validate_args)

    def log_prob(self, value: jax.Array, intermediates: object = None) -> jax.Array:
        return value * self.logits - jax.nn.softplus(self.logits) + _log_constant(self.logits)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        u = jax.random.uniform(key, (*sample_shape, *self.batch_shape), self.logits.dtype)
        # The distribution function is (e^{ηx} − 1)/(e^η − 1), of which this is the inverse; x mirrors with η's sign.
        size, below = jnp.abs(self.logits), self.logits < 0
        u = jnp.where(below, 1 - u, u)
        near = size < 1e-3
        safe = jnp.where(near, 1.0, size)
        x = 1 + jnp.log(u + (1 - u) * jnp.exp(-safe)) / safe
        x = jnp.where(near, u + size * u * (1 - u) / 2, x)
        return jnp.clip(jnp.where(below, 1 - x, x), 0, 1)

    @property
    def mean(self) -> jax.Array:
        size = jnp.abs(self.logits)
        near = size < 0.1
        safe = jnp.where(near, 1.0, size)
        exact = 0.5 + jnp.exp(-safe) / -jnp.expm1(-safe) - 1 / safe
        over = jnp.where(near, size / 12 - size**3 / 720, exact)  # |mean − ½|
        return 0.5 + jnp.where(self.logits < 0, -over, over)

    @property
    def variance(self) -> jax.Array:
        size = jnp.abs(self.logits)
        near = size < 0.1
        safe = jnp.where(near, 1.0, size)
        exact = 1 / jnp.square(safe) - jnp.exp(-safe) / jnp.square(jnp.expm1(-safe))
        return jnp.where(near, 1 / 12 - jnp.square(size) / 240, exact)


def _log_constant(eta: jax.Array) -> jax.Array:
    """log(η / tanh(η/2)), even in η and log 2 at 0; by its series where the quotient loses its digits."""
    near = jnp.abs(eta) < 0.05
    safe = jnp.where(near, 1.0, eta)
    square = jnp.square(jnp.where(near, eta, 0.0))
    series = math.log(2) + square / 12 - jnp.square(square) * 7 / 1440
    return jnp.where(near, series, jnp.log(safe / jnp.tanh(safe / 2)))
