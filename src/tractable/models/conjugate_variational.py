"""Variational Bayes where it is closed form: conjugate-exponential models with q(θ) q(z), by coordinate ascent.

    log p(x) ≥ ELBO(λ) = Σ_n w_n log Σ_z exp E_q(θ;λ)[log p(x_n, z | θ)] − KL(q(θ; λ) ‖ p(θ))

Given q(θ), the best q(z) is a softmax of expected log densities; given q(z), the best q(θ) is the prior with expected
statistics added. These are an E-step and an M-step on additive statistics, with λ in the place of θ, so that

    em(e_step, m_step, log_prior=lambda λ: -divergence(λ))      is coordinate ascent: the ELBO never falls
    online_em(e_step, m_step, ..., log_prior=...)               is stochastic variational inference, natural gradients

Attias 1999; Hoffman, Blei, Wang & Paisley 2013. Here also the smallest of these models, one normal sample, with its
exact posterior beside it. q is too narrow where the posterior's parts depend on each other: the ELBO's gap says by
how much in all, not where.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln
from jax.typing import ArrayLike, DTypeLike

from tractable.core import Batch
from tractable.kernels.em import Expected, observed
from tractable.models.conjugate import LOG_2PI, Numbers, Real, positive
from tractable.tools.errors import DataError, ModelError
from tractable.tools.shared import shared

NODES = 257  # of the trapezium rule over a log precision


@dataclass(frozen=True, eq=False)
class Conjugate:
    """What a model with a closed-form q(θ; λ) can do; pure functions, compiled by whoever calls them.

    Attributes:
        e_step: ``(lambda, batch) -> Expected``: sums over rows weighted by the batch's mask, and the bound's local part
            Σ_n w_n log Σ_z exp E_q[log p(x_n, z | θ)], nats.
        m_step: ``statistics -> lambda``, the q(θ) that is best for them.
        divergence: ``lambda -> ()``, KL(q(θ; λ) ‖ p(θ)) ≥ 0, nats; the ELBO is the local part less this.
        sample: ``(key, lambda, n) -> θ`` with a leading axis of n, independent draws from q(θ; λ).
        mean: ``lambda -> θ`` of q's means; of precisions, so that a covariance is the inverse of a mean.
        predictive_log_prob: ``(lambda, x) -> (n,)``, log ∫ p(x_n | θ) q(θ; λ) dθ, nats.
        prior: a λ from before any data, in NumPy's float64; not a place to climb from where components are alike.
        responsibilities: ``(lambda, x) -> (n, K)``, q(z), where there are components.
        assigned: ``(batch, responsibilities (n, K)) -> statistics``: a start from a guess of which row is whose.
    """

    e_step: Callable
    m_step: Callable
    divergence: Callable
    sample: Callable
    mean: Callable
    predictive_log_prob: Callable
    prior: Any
    responsibilities: Callable | None = None
    assigned: Callable | None = None


def gamma_divergence(shape: Any, rate: Any, prior_shape: Any, prior_rate: Any) -> jax.Array:
    """KL(Gamma(a, b) ‖ Gamma(a₀, b₀)), nats, elementwise.

    (a − a₀) ψ(a) − log Γ(a) + log Γ(a₀) + a₀ log(b/b₀) + a (b₀/b − 1)
    """
    return (
        (shape - prior_shape) * digamma(shape)
        - gammaln(shape)
        + gammaln(prior_shape)
        + prior_shape * jnp.log(rate / prior_rate)
        + shape * (prior_rate / rate - 1)
    )


def dirichlet_divergence(concentration: jax.Array, prior: jax.Array) -> jax.Array:
    """KL(Dirichlet(α) ‖ Dirichlet(α₀)), nats, over the last axis; of two, a Beta's."""
    total = jnp.sum(concentration, axis=-1)
    expected = digamma(concentration) - jnp.expand_dims(digamma(total), -1)  # E log π
    normalisers = gammaln(total) - gammaln(jnp.sum(prior, axis=-1))
    return normalisers + jnp.sum(gammaln(prior) - gammaln(concentration) + (concentration - prior) * expected, axis=-1)


def log_normal_of_unknown_precision(off: jax.Array, variance: jax.Array, shape: Any, rate: Any) -> jax.Array:
    """log ∫ N(off; 0, variance + 1/τ) Gamma(τ; shape, rate) dτ, nats; a Student t where the variance is 0.

    By the trapezium rule in log τ, whose error is below 1e-9 for a shape of ½ or more.

    Args:
        off: (n,), distance from the mean.
        variance: (n,), ≥ 0, what is added to the noise's.
        shape: (), a.
        rate: (), b.
    """
    reach = 40 / shape + 9 / jnp.sqrt(shape)  # beyond this to the left, and log(1 + it) to the right, e⁻⁴⁰ of the peak
    high = jnp.log(shape / rate) + jnp.log1p(reach)
    low = jnp.log(shape) - jnp.log(rate + off**2 / 2) - reach  # a row far out makes a small τ likely
    step = (high - low) / (NODES - 1)
    u = low[:, None] + step[:, None] * jnp.arange(NODES, dtype=off.dtype)[None, :]  # (n, NODES)
    log_variance = jnp.logaddexp(jnp.log(variance)[:, None], -u)
    terms = (
        shape * jnp.log(rate)
        - gammaln(shape)
        + shape * u
        - rate * jnp.exp(u)
        - 0.5 * (LOG_2PI + log_variance + (off**2)[:, None] * jnp.exp(-log_variance))
    )
    return jax.nn.logsumexp(terms, axis=1) + jnp.log(step)


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
    """Σ_n w_n (1, x, x²), x about the prior's mean."""

    count: Any  # ()
    first: Any  # ()
    second: Any  # ()


@shared
def normal_gamma(mean: Real = 0.0, strength: Real = 1.0, shape: Real = 1.0, rate: Real = 1.0) -> Conjugate:
    """One normal sample with unknown mean and precision, by mean field: the smallest example of what that costs.

        x ~ N(μ, 1/τ),   μ | τ ~ N(μ₀, 1/(λ₀ τ)),   τ ~ Gamma(a₀, b₀),   q(μ) q(τ)
        q(μ) = N(m, 1/(λ_n E[τ])),  m = (λ₀ μ₀ + Σ x)/λ_n,  λ_n = λ₀ + n
        q(τ) = Gamma(a₀ + (n + 1)/2, b₀ + ½ E[Σ (x − μ)² + λ₀ (μ − μ₀)²])

    The M-step is where the two would come to rest, in closed form: E[τ] = A/B, the exact posterior's
    (``normal_gamma_posterior``), with A = a₀ + n/2. The ELBO falls short of the log evidence by

        log Γ(A) − log Γ(A + ½) + A log((A + ½)/A) + ½ log(A + ½) − ½  > 0,

    whatever the data. Bishop 2006, section 10.1.3.

    Args:
        mean: μ₀.
        strength: λ₀ > 0, the rows that the prior's mean is worth.
        shape: a₀ > 0.
        rate: b₀ > 0, in the units of x².

    Returns:
        A Conjugate of λ ``NormalAndGamma`` and θ ``Normal``; rows are (n,), or (y, None) as ``Data`` has them. The same
        arguments give the same functions.

    Raises:
        ModelError: a setting out of range. DataError: rows that are not (n,).

    >>> model = normal_gamma(strength=1.0, shape=1.0, rate=1.0)
    >>> found = model.m_step(Sums(jnp.array(3.0), jnp.array(6.0), jnp.array(14.0)))  # of 1, 2 and 3
    >>> float(found.mean), float(found.shape)
    (1.5, 3.0)
    """
    positive(strength=strength, shape=shape, rate=rate)
    if not math.isfinite(mean):
        raise ModelError(f"mean needs to be finite; got {mean}.")
    mean, strength, shape, rate = map(float, (mean, strength, shape, rate))

    def rows(x: ArrayLike, dtype: DTypeLike) -> jax.Array:
        if jnp.ndim(x) != 1:
            raise DataError(f"Expected one number a row, shape (n,); got shape {jnp.shape(x)}.")
        return jnp.asarray(x).astype(dtype)

    def e_step(q: NormalAndGamma, batch: Batch) -> Expected:
        x = rows(observed(batch), jnp.result_type(q.mean))
        weights = jnp.asarray(batch.mask, x.dtype)
        x = jnp.where(weights > 0, x, mean)  # a row that does not count may hold anything
        square = (x - q.mean) ** 2 + 1 / q.precision  # E (x − μ)²
        terms = digamma(q.shape) - jnp.log(q.rate) - LOG_2PI - q.shape / q.rate * square
        off = x - mean
        sums = Sums(jnp.sum(weights), jnp.sum(weights * off), jnp.sum(weights * off**2))
        return Expected(sums, 0.5 * jnp.sum(weights * terms))

    def m_step(statistics: Sums) -> NormalAndGamma:
        count, first, second = jax.tree.map(jnp.asarray, statistics)
        total = strength + count
        off = first / total
        # The smallest value of Σ (x − μ)² + λ₀ (μ − μ₀)²; what the variance of q(μ) adds to it is 1/E[τ].
        square = jnp.maximum(second - total * off**2, 0)
        exact_shape, exact_rate = shape + count / 2, rate + square / 2
        tau = exact_shape / exact_rate
        return NormalAndGamma(mean + off, total * tau, exact_shape + 0.5, (exact_shape + 0.5) / tau)

    def divergence(q: NormalAndGamma) -> jax.Array:
        tau, log_tau = q.shape / q.rate, digamma(q.shape) - jnp.log(q.rate)
        square = (q.mean - mean) ** 2 + 1 / q.precision
        of_mean = 0.5 * (strength * tau * square - 1 + jnp.log(q.precision / strength) - log_tau)
        return of_mean + gamma_divergence(q.shape, q.rate, shape, rate)

    def sample(key: jax.Array, q: NormalAndGamma, n: int) -> Normal:
        key_mean, key_precision = jax.random.split(key)
        dtype = jnp.result_type(q.mean)
        mu = q.mean + jax.random.normal(key_mean, (n,), dtype) / jnp.sqrt(q.precision)
        return Normal(mu, jax.random.gamma(key_precision, q.shape, (n,), dtype) / q.rate)

    def predictive_log_prob(q: NormalAndGamma, x: ArrayLike) -> jax.Array:
        off = rows(x, jnp.result_type(q.mean)) - q.mean
        return log_normal_of_unknown_precision(off, jnp.full_like(off, 1 / q.precision), q.shape, q.rate)

    prior = NormalAndGamma(*map(np.asarray, (mean, strength * shape / rate, shape, rate)))
    return Conjugate(
        e_step, m_step, divergence, sample, lambda q: Normal(q.mean, q.shape / q.rate), predictive_log_prob, prior
    )


class NormalGammaPosterior(NamedTuple):
    """τ ~ Gamma(shape, rate), μ | τ ~ N(mean, 1/(strength τ))."""

    mean: float
    strength: float
    shape: float
    rate: float
    log_evidence: float  # log p(x), nats


def normal_gamma_posterior(x: Numbers, mean: Real, strength: Real, shape: Real, rate: Real) -> NormalGammaPosterior:
    """The exact posterior of ``normal_gamma``, in NumPy's float64.

        λ_n = λ₀ + n,  m = (λ₀ μ₀ + Σ x)/λ_n,  A = a₀ + n/2,  B = b₀ + ½ [Σ (x − m)² + λ₀ (m − μ₀)²]
        log p(x) = ½ log(λ₀/λ_n) + a₀ log b₀ − A log B + log Γ(A) − log Γ(a₀) − n/2 log 2π

    Murphy 2007, "Conjugate Bayesian analysis of the Gaussian distribution", section 3.

    Args: as for ``normal_gamma``, and x (n,).

    One row at the prior's mean, all else 1: x is a Student t of two degrees, scale √2, so p = 1/4.

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
    log_evidence = (
        0.5 * math.log(strength / total)
        + shape * math.log(rate)
        - a * math.log(b)
        + math.lgamma(a)
        - math.lgamma(shape)
        - 0.5 * x.size * LOG_2PI
    )
    return NormalGammaPosterior(where, float(total), float(a), b, log_evidence)
