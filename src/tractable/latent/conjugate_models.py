"""Models for ``CoordinateAscent``: if z is known, or there is no z, their q(θ) has a closed form."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import digamma
from jax.typing import ArrayLike, DTypeLike
from numpyro.distributions import constraints

from tractable.core.errors import DataError, ModelError
from tractable.core.model import Batch
from tractable.core.numbers import LOG_2PI, Numbers, Real, positive
from tractable.core.shared import shared
from tractable.core.sums import Expected, observed
from tractable.latent import conjugate_variational
from tractable.latent.conjugate_variational import Conjugate, ConjugateModel, conjugate_model
from tractable.latent.variational_mixture import bayesian_gaussian_mixture
from tractable.latent.variational_regression import bayesian_linear_regression

__all__ = [
    "Conjugate", "ConjugateModel", "bayesian_gaussian_mixture", "bayesian_linear_regression", "conjugate_model",
    "normal_gamma", "normal_gamma_posterior",
]  # fmt: skip


class Normal(NamedTuple):
    """θ of one normal sample."""

    mean: Any  # () μ
    precision: Any  # () τ, of one row


class NormalAndGamma(NamedTuple):
    """λ of q(μ) q(τ) = N(μ; mean, 1/precision) Gamma(τ; shape, rate)."""

    mean: Any  # ()
    precision: Any  # () of μ
    shape: Any  # ()
    rate: Any  # ()


class Sums(NamedTuple):
    """Sums Σ_n w_n (1, x, x²), for x minus the prior's mean."""

    count: Any  # ()
    first: Any  # ()
    second: Any  # ()


@shared
def normal_gamma(mean: Real = 0.0, strength: Real = 1.0, shape: Real = 1.0, rate: Real = 1.0) -> ConjugateModel:
    """One normal sample with unknown mean and precision, by mean field: the smallest example of mean field's cost.

        x ~ N(μ, 1/τ),   μ | τ ~ N(μ₀, 1/(λ₀ τ)),   τ ~ Gamma(a₀, b₀),   q(μ) q(τ)
        q(μ) = N(m, 1/(λ_n E[τ])),  m = (λ₀ μ₀ + Σ x)/λ_n,  λ_n = λ₀ + n
        q(τ) = Gamma(a₀ + (n + 1)/2, b₀ + ½ E[Σ (x − μ)² + λ₀ (μ − μ₀)²])

    The M-step computes the fixed point of both updates in closed form: E[τ] is A/B, as in the exact posterior
    (``normal_gamma_posterior`` gives A and B). Whatever the data, the ELBO (a lower bound on the log evidence) is
    below the log evidence by

        log Γ(A) − log Γ(A + ½) + A log((A + ½)/A) + ½ log(A + ½) − ½  > 0,    A = a₀ + n/2.

    Bishop 2006, section 10.1.3.

    Args:
        mean: μ₀.
        strength: λ₀ > 0, the number of rows that the prior's mean is worth.
        shape, rate: a₀ > 0 and b₀ > 0; b₀ is in the units of x².

    Returns:
        A ConjugateModel with λ ``NormalAndGamma`` and θ ``Normal``, for rows (n,). The same arguments give the same
        object.

    Raises:
        ModelError: a setting is out of range. DataError: rows are not (n,).

    >>> model = normal_gamma(strength=1.0, shape=1.0, rate=1.0)
    >>> model.names
    ['mean', 'precision']
    >>> found = model.conjugate.m_step(Sums(jnp.array(3.0), jnp.array(6.0), jnp.array(14.0)))  # of 1, 2 and 3
    >>> float(found.mean), float(found.shape)
    (1.5, 3.0)
    """
    positive(strength=strength, shape=shape, rate=rate)
    if not math.isfinite(mean):
        raise ModelError(f"mean must be finite; got {mean}.")
    mean, strength, shape, rate = map(float, (mean, strength, shape, rate))

    def rows(x: ArrayLike, dtype: DTypeLike) -> jax.Array:
        if jnp.ndim(x) != 1:
            raise DataError(f"Expected one number a row, shape (n,); got shape {jnp.shape(x)}.")
        return jnp.asarray(x).astype(dtype)

    def e_step(q: NormalAndGamma, batch: Batch) -> Expected:
        x = rows(observed(batch), jnp.result_type(q.mean))
        weights = jnp.asarray(batch.mask, x.dtype)
        x = jnp.where(weights > 0, x, mean)  # a row of weight 0 may hold NaN
        square = (x - q.mean) ** 2 + 1 / q.precision  # E (x − μ)²
        terms = digamma(q.shape) - jnp.log(q.rate) - LOG_2PI - q.shape / q.rate * square
        deviation = x - mean
        sums = Sums(jnp.sum(weights), jnp.sum(weights * deviation), jnp.sum(weights * deviation**2))
        return Expected(sums, 0.5 * jnp.sum(weights * terms))

    def m_step(statistics: Sums) -> NormalAndGamma:
        count, first, second = jax.tree.map(jnp.asarray, statistics)
        total = strength + count
        shift = first / total
        # The minimum of Σ (x − μ)² + λ₀ (μ − μ₀)² over μ. The mean of this sum under q(μ) is larger by 1/E[τ].
        square = jnp.maximum(second - total * shift**2, 0)
        exact_shape, exact_rate = shape + count / 2, rate + square / 2
        tau = exact_shape / exact_rate
        return NormalAndGamma(mean + shift, total * tau, exact_shape + 0.5, (exact_shape + 0.5) / tau)

    def divergence(q: NormalAndGamma) -> jax.Array:
        tau, log_tau = q.shape / q.rate, digamma(q.shape) - jnp.log(q.rate)
        square = (q.mean - mean) ** 2 + 1 / q.precision
        of_mean = 0.5 * (strength * tau * square - 1 + jnp.log(q.precision / strength) - log_tau)
        return of_mean + conjugate_variational.gamma_divergence(q.shape, q.rate, shape, rate)

    def sample(key: jax.Array, q: NormalAndGamma, n: int) -> Normal:
        key_mean, key_precision = jax.random.split(key)
        dtype = jnp.result_type(q.mean)
        mu = q.mean + jax.random.normal(key_mean, (n,), dtype) / jnp.sqrt(q.precision)
        return Normal(mu, jax.random.gamma(key_precision, q.shape, (n,), dtype) / q.rate)

    def predictive_log_prob(q: NormalAndGamma, x: ArrayLike) -> jax.Array:
        distance = rows(x, jnp.result_type(q.mean)) - q.mean
        return conjugate_variational.log_normal_of_unknown_precision(
            distance, jnp.full_like(distance, 1 / q.precision), q.shape, q.rate
        )

    def log_prior(theta: Normal) -> jax.Array:
        of_mean = dist.Normal(mean, 1 / jnp.sqrt(strength * theta.precision)).log_prob(theta.mean)
        return jnp.asarray(of_mean + dist.Gamma(shape, rate).log_prob(theta.precision))

    def log_prob(theta: Normal, x: ArrayLike) -> jax.Array:
        return dist.Normal(theta.mean, 1 / jnp.sqrt(theta.precision)).log_prob(x)

    def draw(key: jax.Array, theta: Normal, n: int) -> tuple[jax.Array, jax.Array]:
        return theta.mean + jax.random.normal(key, (n,)) / jnp.sqrt(theta.precision), jnp.zeros((n, 0))

    prior = NormalAndGamma(*map(np.asarray, (mean, strength * shape / rate, shape, rate)))
    forms = Conjugate(
        e_step, m_step, divergence, sample, lambda q: Normal(q.mean, q.shape / q.rate), predictive_log_prob, prior
    )
    position, support = Normal(np.array(mean), np.array(shape / rate)), Normal(constraints.real, constraints.positive)
    return ConjugateModel.of(forms, log_prob, position, support, log_prior, sample=draw)


class NormalGammaPosterior(NamedTuple):
    """τ ~ Gamma(shape, rate), μ | τ ~ N(mean, 1/(strength τ))."""

    mean: float
    strength: float
    shape: float
    rate: float
    log_evidence: float  # log p(x), in nats (natural logarithms)


def normal_gamma_posterior(x: Numbers, mean: Real, strength: Real, shape: Real, rate: Real) -> NormalGammaPosterior:
    """The exact posterior of ``normal_gamma``, in NumPy's float64.

        λ_n = λ₀ + n,  m = (λ₀ μ₀ + Σ x)/λ_n,  A = a₀ + n/2,  B = b₀ + ½ [Σ (x − m)² + λ₀ (m − μ₀)²]
        log p(x) = ½ log(λ₀/λ_n) + a₀ log b₀ − A log B + log Γ(A) − log Γ(a₀) − n/2 log 2π

    Murphy 2007, "Conjugate Bayesian analysis of the Gaussian distribution", section 3.

    Args: x, (n,); the others as for ``normal_gamma``.

    Example: one row at the prior's mean, where all other arguments are 1. Then x has a Student t distribution with two
    degrees of freedom and scale √2, so p(x) = 1/4.

    >>> print(np.exp(normal_gamma_posterior([0.0], 0.0, 1.0, 1.0, 1.0).log_evidence).round(9))
    0.25
    """
    positive(strength=strength, shape=shape, rate=rate)
    x = np.asarray(x, np.float64)
    if x.ndim != 1:
        raise DataError(f"Expected one number a row, shape (n,); got shape {x.shape}.")
    total = strength + x.size
    where = mean + float(np.sum(x - mean)) / total
    a = shape + x.size / 2
    b = rate + 0.5 * (float(np.sum((x - where) ** 2)) + strength * (where - mean) ** 2)
    evidence = 0.5 * math.log(strength / total) + shape * math.log(rate) - a * math.log(b)
    evidence += math.lgamma(a) - math.lgamma(shape) - 0.5 * x.size * LOG_2PI
    return NormalGammaPosterior(where, float(total), float(a), b, evidence)
