"""Factor analysis and probabilistic principal components: few latent numbers explain many columns.

    z ~ N(0, I_q),    x | z ~ N(μ + W z, Ψ)    ⇒    x ~ N(μ, W Wᵀ + Ψ)

W is identified only up to a rotation of z: the density of x depends on W Wᵀ alone. Rubin & Thayer 1982; Tipping &
Bishop 1999.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.core.check import Check
from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel
from tractable.core.model import Batch
from tractable.core.numbers import LOG_2PI, Numbers, Real
from tractable.core.settings import is_whole
from tractable.core.shared import recorded
from tractable.core.small import inverse_root
from tractable.core.sums import Expected, observed
from tractable.latent.columns import check_sizes, minus_centre, origin_of


class Loadings(NamedTuple):
    """θ of a factor model."""

    mean: Any  # (d,) μ
    loadings: Any  # (d, q) W
    noise: Any  # variances: (d,) diagonal of Ψ, or () σ²


class Regression(NamedTuple):
    """Statistics Σ_n w_n E[·], with z̃ = [z, 1], and x minus the centre."""

    latent: Any  # (q + 1, q + 1) of z̃ z̃ᵀ; its last entry counts the rows
    cross: Any  # (d, q + 1) of x z̃ᵀ
    square: Any  # (d,) of x²


@recorded
def factor_analysis(features: int, rank: int, floor: Real = 1e-12, centre: Numbers | None = None) -> LatentModel:
    """Factor analysis: every column has its own noise.

        p(x | θ) = N(x; μ, W Wᵀ + diag ψ)
        M-step:  [W μ] = (Σ x z̃ᵀ)(Σ z̃ z̃ᵀ)⁻¹,    ψ = max{diag(Σ xxᵀ − [W μ] Σ z̃ xᵀ) / N, floor},    z̃ = [z, 1]

    Args:
        features: d ≥ 1, columns of x.
        rank: q in 1..d.
        floor: > 0, the smallest noise variance allowed: where z explains a column fully (a Heywood case), the
            likelihood is unbounded without it.
        centre: (d,), such as the data's mean, subtracted from x first, so that rounding errors are small in single
            precision; 0 by default.

    Returns:
        A ``LatentModel`` of ``Loadings`` whose ``noise`` is (d,).

    Raises:
        ModelError: a setting is out of range. DataError: rows are not (n, d).

    >>> factor_analysis(5, 2).parameters
    19
    """
    return _setting_of(features, rank, floor, centre, isotropic=False).model()


@recorded
def probabilistic_pca(features: int, rank: int, floor: Real = 1e-12, centre: Numbers | None = None) -> LatentModel:
    """Probabilistic principal components: the same noise in every column, so that ``noise`` is ().

        p(x | θ) = N(x; μ, W Wᵀ + σ² I);    M-step: as in factor analysis, with σ² the mean of ψ

    EM converges to the closed form of Tipping & Bishop 1999, eqs. 7 and 8. Arguments and errors are those of
    ``factor_analysis``.

    >>> probabilistic_pca(5, 2).parameters
    15
    """
    return _setting_of(features, rank, floor, centre, isotropic=True).model()


class Setting(NamedTuple):
    """The settings of a factor model, and its closed-form functions."""

    features: int  # d
    rank: int  # q
    floor: float  # of variances
    origin: tuple[float, ...]  # (d,) the centre, rounded to single precision: both precisions use the same one
    isotropic: bool

    @property
    def centre(self) -> np.ndarray:
        return np.array([self.origin], np.float32)  # (1, d)

    @functools.lru_cache(maxsize=128)  # noqa: B019
    def model(self) -> LatentModel:
        """The model; equal settings give the same object."""
        features, rank, _, _, isotropic = self
        position = Loadings(np.zeros(features), np.eye(features, rank), np.ones(() if isotropic else features))
        return LatentModel.from_steps(
            self.e_step, self.m_step, self.log_prob, position,
            support=Loadings(constraints.real, constraints.real, constraints.positive),
            encode=self.encode, sample=self.sample, begin=self.begin, examine=self.examine,
            parameters=features + features * rank - rank * (rank - 1) // 2 + (1 if isotropic else features),
            shift=lambda theta, offset: theta._replace(mean=theta.mean + offset),
        )  # fmt: skip

    def codes(self, theta: Loadings, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """E[z | x] (n, q), Cov[z | x] (q, q), log p(x) (n,), for x minus the centre."""
        features = self.features
        noise = jnp.broadcast_to(theta.noise, (features,))
        deviation = x - (theta.mean[None, :] - self.centre.astype(x.dtype))
        scaled = theta.loadings / noise[:, None]  # Ψ⁻¹ W
        inner = jnp.eye(self.rank, dtype=x.dtype) + jnp.matmul(theta.loadings.T, scaled, precision="highest")
        root = inverse_root(inner)
        covariance = jnp.matmul(root.T, root, precision="highest")
        means = jnp.matmul(deviation, jnp.matmul(scaled, covariance, precision="highest"), precision="highest")
        # xᵀ Σ⁻¹ x is a sum of squares, of the residual and of E[z | x]; Woodbury's difference has larger rounding
        # errors.
        residual = deviation - jnp.matmul(means, theta.loadings.T, precision="highest")
        square = jnp.sum(residual**2 / noise[None, :], axis=1) + jnp.sum(means**2, axis=1)
        log_det = jnp.sum(jnp.log(noise)) - 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        return means, covariance, -0.5 * (square + log_det + features * LOG_2PI)

    def e_step(self, theta: Loadings, batch: Batch) -> Expected:
        x, rank = minus_centre(self.centre, observed(batch), theta.mean.dtype), self.rank
        weights = jnp.asarray(batch.mask, x.dtype)
        x = jnp.where(weights[:, None] > 0, x, 0)  # a row of weight 0 may hold NaN
        means, covariance, log_probs = self.codes(theta, x)
        codes = jnp.concatenate([means, jnp.ones((x.shape[0], 1), x.dtype)], axis=1)  # z̃
        weighted = codes * weights[:, None]
        latent = jnp.matmul(weighted.T, codes, precision="highest")
        latent = latent.at[:rank, :rank].add(jnp.sum(weights) * covariance)
        cross = jnp.matmul(x.T, weighted, precision="highest")
        square = jnp.sum(x**2 * weights[:, None], axis=0)
        return Expected(Regression(latent, cross, square), jnp.sum(weights * log_probs))

    def m_step(self, statistics: Regression) -> Loadings:
        rank = self.rank
        latent, cross, square = jax.tree.map(jnp.asarray, statistics)
        root = inverse_root(latent)
        solution = jnp.matmul(jnp.matmul(cross, root.T, precision="highest"), root, precision="highest")  # [W μ]
        noise = (square - jnp.sum(solution * cross, axis=1)) / latent[rank, rank]
        noise = jnp.mean(noise) if self.isotropic else noise
        mean = solution[:, rank] + self.centre[0].astype(cross.dtype)
        return Loadings(mean, solution[:, :rank], jnp.maximum(noise, self.floor))

    def log_prob(self, theta: Loadings, x: ArrayLike) -> jax.Array:
        return self.codes(theta, minus_centre(self.centre, x, theta.mean.dtype))[2]

    def encode(self, theta: Loadings, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Mean and covariance of z given x."""
        return self.codes(theta, minus_centre(self.centre, x, theta.mean.dtype))[:2]

    def sample(self, key: jax.Array, theta: Loadings, n: int) -> tuple[jax.Array, jax.Array]:
        """Rows (n, d) and their z (n, q)."""
        key_z, key_x = jax.random.split(key)
        z = jax.random.normal(key_z, (n, self.rank), theta.mean.dtype)
        noise = jax.random.normal(key_x, (n, self.features), theta.mean.dtype)
        sd = jnp.sqrt(jnp.broadcast_to(theta.noise, (self.features,)))
        return theta.mean[None, :] + jnp.matmul(z, theta.loadings.T, precision="highest") + sd[None, :] * noise, z

    def begin(self, key: jax.Array, rows: ArrayLike) -> Loadings:
        """A starting θ with random loadings: from loadings of zero, EM would not move."""
        features, rank, floor, _, isotropic = self
        x = np.asarray(rows, np.float64)
        variance = np.maximum(x.var(0), floor)
        direction = np.asarray(jax.random.normal(key, (features, rank)))
        noise = 0.5 * (variance.mean() if isotropic else variance)
        return Loadings(x.mean(0), np.sqrt(0.5 * variance / rank)[:, None] * direction, np.maximum(noise, floor))

    def examine(self, theta: Loadings, size: int) -> list[Check]:
        """The report's checks of a maximum."""
        least, floor = float(np.min(theta.noise)), self.floor
        if least > 4 * floor:
            return []
        sentence = f"of noise variance, {floor:g}: z explains their values fully (a Heywood case)"
        return [Check("columns at the floor", float(np.sum(np.asarray(theta.noise) <= 4 * floor)), "caution", sentence)]


def _setting_of(features: int, rank: int, floor: Real, centre: Numbers | None, isotropic: bool) -> Setting:
    """The setting for these arguments; raises ModelError if one is out of range."""
    check_sizes(features=features)
    if not is_whole(rank) or rank > features:
        raise ModelError(f"rank is a whole number from 1 to {features}, the number of columns; got {rank}.")
    if not 0 < floor < math.inf:
        raise ModelError(f"floor is a variance, positive and finite; got {floor}.")
    return Setting(int(features), int(rank), float(floor), origin_of(centre, features), isotropic)
