"""Distributions of pixels: a vector of many binary units, and the continuous Bernoulli for grey pixels."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.core.tree import PyTree
from tractable.glm.families import BernoulliLogits

FACTORS = 8  # number of factors, each at most 2, whose product gets one logarithm; 2⁸ overflows in no float format


class BinaryUnits(dist.Independent):
    """Independent binary units: log p(h | η) = −Σ_i log(1 + e^{t_i}) with t = (1 − 2h) η.

    h, of zeros and ones, and η have the shape (…, n).
    """

    def __init__(self, logits: jax.Array) -> None:
        super().__init__(BernoulliLogits(logits, validate_args=False), 1, validate_args=False)

    def log_prob(self, value: ArrayLike, intermediates: PyTree = None) -> jax.Array:
        base: Any = self.base_dist
        logits = base.logits
        # The pixels are converted to floats first, since 1 − 2h can be −1 and an unsigned integer cannot.
        return -sum_softplus((1 - 2 * jnp.asarray(value, jnp.result_type(value, logits))) * logits)


@jax.custom_jvp
def sum_softplus(t: jax.Array) -> jax.Array:
    """Σ_i log(1 + e^{t_i}) over the last axis.

    It takes one logarithm per product of eight factors 1 + e^{−|t|}, because exp and log1p of a single t cost as much
    as the two hundred multiplications that compute the t. The rounding error of a factor, half a unit in the last place
    of 1, is below the rounding error of the sum.
    """
    n = t.shape[-1]
    end = n - n % FACTORS  # the t before ``end`` are multiplied in groups of eight; at most seven t are left over
    small = jnp.exp(-jnp.abs(t))
    factors = (1 + small[..., :end]).reshape(*t.shape[:-1], FACTORS, end // FACTORS)
    logs = jnp.sum(jnp.log(jnp.prod(factors, axis=-2)), axis=-1) + jnp.sum(jnp.log1p(small[..., end:]), axis=-1)
    return jnp.sum(jnp.maximum(t, 0), axis=-1) + logs


@sum_softplus.defjvp
def _slope(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (t,), (along,) = primals, tangents
    # Written by σ(t), which has all derivatives; the formula above uses |t|, which has none at t = 0.
    return sum_softplus(t), jnp.sum(jax.nn.sigmoid(t) * along, axis=-1)


class ContinuousBernoulliLogits(dist.Distribution):
    """The continuous Bernoulli p(x | λ) = C(λ) λ^x (1 − λ)^(1−x) on [0, 1], λ = σ(η), log C = log(η / tanh(η/2)).

    The source is Loaiza-Ganem & Cunningham 2019.
    """

    arg_constraints: ClassVar = {"logits": constraints.real}
    support = constraints.unit_interval  # pyright: ignore[reportAssignmentType]
    reparametrized_params: ClassVar = ["logits"]
    pytree_data_fields = ("logits",)

    def __init__(self, logits: ArrayLike, *, validate_args: bool | None = None) -> None:
        self.logits = jnp.asarray(logits)
        super().__init__(self.logits.shape, (), validate_args=validate_args)

    def log_prob(self, value: ArrayLike, intermediates: PyTree = None) -> jax.Array:
        eta = self.logits
        # log(η / tanh(η/2)) is even in η, and log 2 at η = 0. Near 0 rounding would spoil derivatives: use a series.
        near = jnp.abs(eta) < 0.05
        safe = jnp.where(near, 1.0, eta)
        square = jnp.square(jnp.where(near, eta, 0.0))
        series = math.log(2) + square / 12 - jnp.square(square) * 7 / 1440
        log_constant = jnp.where(near, series, jnp.log(safe / jnp.tanh(safe / 2)))
        return jnp.asarray(value) * eta - jax.nn.softplus(eta) + log_constant

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        u = jax.random.uniform(key, (*sample_shape, *self.batch_shape), self.logits.dtype)
        # Inverts the distribution function (e^{ηx} − 1)/(e^η − 1) at |η|; for a negative η, x becomes 1 − x.
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
