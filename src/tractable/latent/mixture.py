"""Mixtures: each datum comes from one of K components, which is not observed: p(x | θ) = Σ_k π_k p(x | θ_k)."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from numpyro.distributions import constraints

from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel
from tractable.core.numbers import Numbers, Real
from tractable.core.shared import recorded, shared
from tractable.latent import gaussians, linear_mixture
from tractable.latent.columns import check_sizes, rows_of
from tractable.latent.gaussians import COVARIANCES, Gaussians
from tractable.latent.linear_mixture import Family, Moments

__all__ = [
    "COVARIANCES", "Bernoullis", "Gaussians", "Moments", "bernoulli_mixture", "gaussian_mixture", "with_missing"
]  # fmt: skip


class Bernoullis(NamedTuple):
    """θ of a mixture of independent Bernoullis."""

    weights: Any  # (K,) π
    means: Any  # (K, d), probabilities of a 1


@recorded
def gaussian_mixture(
    components: int, features: int, covariance: str = "full", floor: Real = 1e-6, centre: Numbers | None = None
) -> LatentModel:
    """A mixture of normals.

        p(x | θ) = Σ_k π_k N(x; μ_k, Σ_k)
        M-step:  N_k = Σ_n w_n r_nk,  π_k = N_k / Σ N_k,  μ_k = Σ w r x / N_k,
                 Σ_k = Σ w r xxᵀ / N_k − μ_k μ_kᵀ + floor · I

    The likelihood is unbounded as a component shrinks to a single row (Σ_k → 0): the floor keeps it finite. The floor
    is scikit-learn's ``reg_covar``, added after every M-step. Such an M-step is not the exact maximum, so the
    likelihood may fall a little.

    Rows and statistics are expressed as distances from each component's mean, in its sds. In single precision, a
    component at a distance of a thousand sds from the centre then loses three of the seven decimal digits. Rounding
    errors of a full or tied covariance scale with its largest eigenvalue. If sds differ by a factor of a thousand or
    more, give ``em`` the steps of ``.climbed``, the same mixture with Cholesky roots in place of covariances; ``EM``
    and ``OnlineEM`` always use it.

    Args:
        components: K ≥ 1.
        features: d ≥ 1, columns of x.
        covariance: "full", "tied" (one for all), "diagonal" or "spherical".
        floor: ≥ 0, added to every variance; in the units of x².
        centre: (d,), such as the data's mean, subtracted from x first; 0 by default. It is rounded to single precision,
            so that both precisions use the same one. The means in θ are those of x itself.

    Returns:
        A ``LatentModel`` of ``Gaussians``. The same arguments give the same object, so that a second fit does not
        compile anew.

    Raises:
        ModelError: a setting is out of range. DataError: rows are not (n, d).

    >>> gaussian_mixture(3, 2).parameters
    17
    """
    return gaussians.setting_of(components, features, covariance, floor, centre).mixture()


@recorded
def with_missing(
    components: int, features: int, covariance: str = "full", floor: Real = 1e-6, centre: Numbers | None = None
) -> LatentModel:
    """``gaussian_mixture`` for rows in which NaN marks numbers missing at random; nothing is imputed.

        r_nk ∝ π_k N(x_o; μ_o, Σ_oo),    E[x | x_o, k] = μ + Σ_·o Σ_oo⁻¹ (x_o − μ_o)
        E[xxᵀ | x_o, k] = E[x] E[x]ᵀ + Σ − Σ_·o Σ_oo⁻¹ Σ_o·

    Here o are the observed entries of row n. This is exact, by one factorisation per row and component: it takes time
    O(n K d³) and memory O(n K d²), so wrap its E-step in ``chunked``. Ghahramani & Jordan 1994.

    Arguments and errors are those of ``gaussian_mixture``, whose ``m_step`` and ``sample`` it uses.
    """
    return gaussians.setting_of(components, features, covariance, floor, centre).mixture_of_gaps()


@shared
def bernoulli_mixture(components: int, features: int, prior_counts: Real = 1.0) -> LatentModel:
    """A mixture of independent Bernoullis, for binary columns.

        p(x | θ) = Σ_k π_k Π_i μ_ki^{x_i} (1 − μ_ki)^{1 − x_i},    μ_ki ~ Beta(1 + c, 1 + c)
        M-step:  μ_k = (Σ w r x + c) / (N_k + 2c),  π_k = N_k / Σ N_k

    The M-step finds a posterior mode: give ``em`` this mixture's ``log_prior``. Without prior counts, a column that is
    constant within a component would get probability 0 or 1, and a row that differs there would have likelihood 0.

    Args: ``components`` and ``features`` as for ``gaussian_mixture``, with columns of 0 and 1, and
        prior_counts: c > 0, the number of imagined ones, and of zeros, in each column of each component.

    Returns:
        A ``LatentModel`` of ``Bernoullis``.

    >>> bernoulli_mixture(2, 5).parameters
    11
    """
    check_sizes(components=components, features=features)
    if not 0 < prior_counts < math.inf:
        raise ModelError(f"prior_counts must be positive and finite; got {prior_counts}.")
    prior_counts = float(prior_counts)

    def clean(x: ArrayLike, dtype: DTypeLike) -> jax.Array:
        return rows_of(x, features).astype(dtype)

    def logits(theta: Bernoullis, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        zero = jnp.log1p(-theta.means)
        constant = jnp.log(theta.weights) + jnp.sum(zero, axis=1)
        return jnp.matmul(jnp.log(theta.means) - zero, x.T, precision="highest") + constant[:, None], x

    def summed(theta: Bernoullis, share: jax.Array, x: jax.Array) -> Moments:
        return Moments(jnp.sum(share, axis=1), jnp.matmul(share, x, precision="highest"))

    def m_step(statistics: Moments) -> Bernoullis:
        count, first = jnp.asarray(statistics.count), jnp.asarray(statistics.first)
        means = (first + prior_counts) / (count[:, None] + 2 * prior_counts)
        count = count + 10 * jnp.finfo(count.dtype).eps
        return Bernoullis(count / jnp.sum(count), means)

    def sample(key: jax.Array, theta: Bernoullis, n: int) -> tuple[jax.Array, jax.Array]:
        key_component, key_x = jax.random.split(key)
        k = linear_mixture.draw_components(key_component, theta.weights, n)
        return jax.random.bernoulli(key_x, theta.means[k]).astype(theta.means.dtype), k

    def log_prior(theta: Bernoullis) -> jax.Array:
        """Σ log Beta(μ; 1 + c, 1 + c)."""
        normaliser = math.lgamma(2 + 2 * prior_counts) - 2 * math.lgamma(1 + prior_counts)
        return jnp.sum(prior_counts * (jnp.log(theta.means) + jnp.log1p(-theta.means)) + normaliser)

    position = Bernoullis(np.full(components, 1 / components), np.full((components, features), 0.5))
    support = Bernoullis(constraints.simplex, constraints.unit_interval)

    def begin(key: jax.Array, rows: ArrayLike) -> Bernoullis:
        x, shares = linear_mixture.cluster_rows(key, rows, components)
        dtype = jnp.result_type(float)
        sums = Moments(shares.sum(0), shares.T @ x)
        return m_step(jax.tree.map(lambda a: jnp.asarray(a, dtype), sums))

    return Family(clean, logits, summed).model(
        m_step, position,
        support=support, prior=log_prior, sample=sample, begin=begin,
        examine=functools.partial(linear_mixture.counts_check, least=1), canonical=linear_mixture.by_weight,
        permute=linear_mixture.permute,
    )  # fmt: skip
