"""A mixture of normals on rows with gaps: conditional moments of what is not seen, and the E-step of them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core import Batch
from tractable.kernels.em import Expected, observed
from tractable.models.columns import about
from tractable.models.conjugate import LOG_2PI
from tractable.models.gaussians import Gaussians, Setting
from tractable.models.linear_mixture import Moments, normalised
from tractable.models.normal_wishart import is_matrix
from tractable.tools.small import inverse_root


def conditional(x: jax.Array, mean: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log N(x_o), E[x | x_o] and E[xxᵀ | x_o] of one row (d,) and component."""
    present = ~jnp.isnan(x)
    inner = jnp.where(present[:, None] & present[None, :], matrix, jnp.eye(x.size, dtype=matrix.dtype))
    root = inverse_root(inner)
    off = jnp.where(present, x - mean, 0)
    white = jnp.matmul(root, off, precision="highest")
    cross = jnp.matmul(root, jnp.where(present[:, None], matrix, 0), precision="highest")
    log_prob = -0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diagonal(root))) - 0.5 * jnp.sum(present) * LOG_2PI
    filled = jnp.where(present, x, mean + white @ cross)
    left = jnp.where(present[:, None] | present[None, :], 0, matrix - cross.T @ cross)
    return log_prob, filled, filled[:, None] * filled[None, :] + left


def conditionals(setting: Setting, theta: Gaussians, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log π_k N(x_o; μ_k, Σ_k) (n, K), E[x | x_o, k] (n, K, d) and E[xxᵀ | x_o, k] (n, K, d, d), about the centre."""
    components, features, covariance, *_ = setting
    x = about(setting.centre, x, theta.means.dtype)
    means, given = theta.means - setting.centre.astype(theta.means.dtype), theta.covariances
    if is_matrix(covariance):
        matrices = jnp.broadcast_to(given, (components, features, features))
    else:
        matrices = given.reshape(components, -1, 1) * jnp.eye(features, dtype=given.dtype)[None]
    every = jax.vmap(jax.vmap(conditional, (None, 0, 0)), (0, None, None))
    log_probs, filled, second = every(x, means, matrices)
    return log_probs + jnp.log(theta.weights)[None, :], filled, second


def shares(setting: Setting, theta: Gaussians, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Responsibilities (n, K) and log densities (n,) of rows with gaps."""
    return normalised(conditionals(setting, theta, jnp.asarray(x))[0])


def e_step(setting: Setting, theta: Gaussians, batch: Batch) -> Expected:
    logits, filled, second = conditionals(setting, theta, jnp.asarray(observed(batch)))
    share, log_probs = normalised(logits)
    weights = batch.mask.astype(logits.dtype)
    share = share * weights[:, None]
    first = jnp.einsum("nk,nki->ki", share, filled, precision="highest")
    sums = jnp.einsum("nk,nkij->kij", share, second, precision="highest")
    if is_matrix(setting.covariance):
        rows, columns = np.triu_indices(setting.features)
        sums = sums[:, rows, columns]
        sums = jnp.sum(sums, axis=0) if setting.covariance == "tied" else sums
    else:
        sums = jnp.diagonal(sums, axis1=1, axis2=2)
        sums = jnp.sum(sums, axis=1) if setting.covariance == "spherical" else sums
    return Expected(Moments(jnp.sum(share, axis=0), first, sums), jnp.sum(weights * log_probs))
