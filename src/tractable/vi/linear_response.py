"""Linear response: a posterior's covariance from how the means of a fitted mean field would move.

If a small multiple of z is added to log p, the exact mean moves by a multiple of the covariance, Cov(z) = dE[z]/dt at
log p + tᵀz. A mean field's means are often right where its sds are too small, so their movement gives better sds. Where
q is best, the objective K(φ) = −E_q[log p] − entropy has the gradient 0, and the implicit function theorem gives

    Σ = (H⁻¹)_μμ,   H = ∇²K(μ, log σ).

For a normal posterior Σ is exact. Here E_q is a mean over fixed draws, in pairs ±ε (Giordano, Broderick & Jordan 2018,
"Covariances, robustness, and variational Bayes"; Giordano, Ingram & Broderick 2024, arXiv:2304.05527).
"""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.model import Model, PyTree, log_density
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FASTEST, ONCE, compiled

PAIRS = 32  # number of pairs of fixed draws
MOST = 200  # largest number of parameters: H takes 4 d² numbers and 256 d gradients
ABREAST = 8  # number of draws that are computed in parallel


def gradients(size: int) -> int:
    """About how many gradients ``root_of_covariance`` takes for ``size`` parameters."""
    return 2 * (2 * size) * (2 * PAIRS)


def root_of_covariance(
    model: Model, data: Data | None, mean: np.ndarray, sd: np.ndarray, key: jax.Array
) -> np.ndarray | None:
    """The lower triangular root (d, d) of Σ; None if H is not finite and positive definite.

    Args:
        model, data: the model and its rows.
        mean, sd: (d,) means and sds of the fitted mean field, over unconstrained parameters.
        key: key of the fixed draws.
    """
    rows = None if data is None else data.arrays()
    half = jax.random.normal(key, (PAIRS, len(mean)))
    curvature = np.asarray(_curvature(model, rows, mean, sd, jnp.concatenate([half, -half])), np.float64)
    curvature, scale = (curvature + curvature.T) / 2, np.asarray(sd, np.float64)
    if not np.all(np.isfinite(curvature)):
        return None
    try:
        np.linalg.cholesky(curvature)
        return scale[:, None] * np.linalg.cholesky(np.linalg.inv(curvature)[: len(mean), : len(mean)])
    except np.linalg.LinAlgError:
        return None


@compiled("model", if_few=COMPILE_FASTEST, few=ONCE)
def _curvature(model: Model, rows: PyTree, mean: jax.Array, sd: jax.Array, eps: jax.Array) -> jax.Array:
    """H (2d, 2d) in the coordinates (u, v), in which μ = mean + sd u and σ = sd eᵛ, at u = v = 0."""
    density = log_density(model, rows, flat=True)

    def objective(uv: jax.Array) -> jax.Array:
        u, v = jnp.split(uv, 2)
        values = jax.lax.map(lambda e: density(mean + sd * (u + jnp.exp(v) * e)), eps, batch_size=ABREAST)
        return -jnp.mean(values) - jnp.sum(v)

    slope, origin = jax.grad(objective), jnp.zeros(2 * len(mean), mean.dtype)
    return jax.lax.map(lambda direction: jax.jvp(slope, (origin,), (direction,))[1], jnp.eye(len(origin)))
