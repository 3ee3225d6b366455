"""A layer of binary units, whose log probability costs little more than the product that its logits come from."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike

from tractable.models.linear import BernoulliLogits

PyTree = Any
TOGETHER = 8  # factors of at most 2 under one logarithm: 2⁸ is a number in every format


class BinaryUnits(dist.Independent):
    """log p(h | η) = −Σ_i log(1 + e^{t_i}),  t = (1 − 2h) η;  h and η (…, n), h in {0, 1}."""

    def __init__(self, logits: jax.Array) -> None:
        super().__init__(BernoulliLogits(logits, validate_args=False), 1, validate_args=False)

    def log_prob(self, value: ArrayLike, intermediates: PyTree = None) -> jax.Array:
        base: Any = self.base_dist
        logits = base.logits
        # Pixels of an unsigned type have no −1.
        return -sum_softplus((1 - 2 * jnp.asarray(value, jnp.result_type(value, logits))) * logits)


@jax.custom_jvp
def sum_softplus(t: jax.Array) -> jax.Array:
    """Σ_i log(1 + e^{t_i}) over the last axis.

    The logarithm of products of eight 1 + e^{−|t|}, not eight logarithms: exp and log1p of one t cost as much as
    the two hundred multiplications behind it. What a factor's rounding loses, ½ ulp of 1, is less than the sum's own.
    """
    n = t.shape[-1]
    whole = n - n % TOGETHER
    small = jnp.exp(-jnp.abs(t))
    factors = (1 + small[..., :whole]).reshape(*t.shape[:-1], TOGETHER, whole // TOGETHER)
    logs = jnp.sum(jnp.log(jnp.prod(factors, axis=-2)), axis=-1) + jnp.sum(jnp.log1p(small[..., whole:]), axis=-1)
    return jnp.sum(jnp.maximum(t, 0), axis=-1) + logs


@sum_softplus.defjvp
def _slope(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (t,), (along,) = primals, tangents
    # σ has every further derivative, at t = 0 too, where |t| has none.
    return sum_softplus(t), jnp.sum(jax.nn.sigmoid(t) * along, axis=-1)
