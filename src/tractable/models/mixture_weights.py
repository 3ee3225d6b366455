"""What is believed of a mixture's weights: Dirichlet, or a process's, pieces of a stick of which K are looked at.

π ~ Dirichlet(a_1, …, a_K)            concentration (K,)
π_k = v_k Π_{j<k} (1 − v_j),  v_k ~ Beta(a_k, b_k)    concentration (2, K), and 1 − Σ π is left of the stick
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma

from tractable.models.conjugate_variational import dirichlet_divergence


def before(components: int, alpha: float, process: bool) -> np.ndarray:
    """The prior's concentration: all α₀, or Betas of 1 and α₀."""
    each = np.ones(components)
    return np.stack([each, alpha * each]) if process else alpha * each


def after(count: jax.Array, alpha: float, process: bool) -> jax.Array:
    """The prior's concentration with N_k rows of each component added."""
    if not process:
        return alpha + count
    later = jnp.append(jnp.cumsum(count[::-1])[::-1][1:], 0)  # Σ_{j>k} N_j
    return jnp.stack([1 + count, alpha + later])


def expected_log(concentration: jax.Array, process: bool) -> jax.Array:
    """E log π, (K,)."""
    if not process:
        return digamma(concentration) - digamma(jnp.sum(concentration))
    whole = digamma(jnp.sum(concentration, axis=0))
    piece, left = digamma(concentration[0]) - whole, digamma(concentration[1]) - whole
    return piece + jnp.append(0, jnp.cumsum(left)[:-1])


def expected(concentration: jax.Array, process: bool) -> jax.Array:
    """E π, (K,); of a process (K + 1,), with what is left."""
    shares = concentration / jnp.sum(concentration, axis=0, keepdims=process)
    return broken(shares[:1], shares[1:])[0] if process else shares


def divergence(concentration: jax.Array, prior: jax.Array, process: bool) -> jax.Array:
    """KL, (), nats."""
    pair = (concentration.T, prior.T) if process else (concentration, prior)  # Betas, or one
    return jnp.sum(dirichlet_divergence(*pair))


def sample(key: jax.Array, concentration: jax.Array, process: bool, n: int, dtype: np.dtype) -> jax.Array:
    """n independent π, (n, K); of a process (n, K + 1)."""
    if not process:
        return jax.random.dirichlet(key, concentration, (n,), dtype)
    pairs = jax.random.dirichlet(key, concentration.T, (n, concentration.shape[1]), dtype)
    return broken(pairs[..., 0], pairs[..., 1])


def broken(pieces: jax.Array, left: jax.Array) -> jax.Array:
    """v_k Π_{j<k} (1 − v_j), and what is left of the stick: (n, K + 1) of (n, K) twice."""
    one = jnp.ones((pieces.shape[0], 1), pieces.dtype)
    return jnp.concatenate([pieces, one], axis=1) * jnp.concatenate([one, jnp.cumprod(left, axis=1)], axis=1)
