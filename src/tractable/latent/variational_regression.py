"""Linear regression with unknown noise, by mean field, in one pass over the data."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import digamma
from jax.typing import DTypeLike
from numpyro.distributions import constraints

from tractable.core.errors import DataError, ModelError
from tractable.core.model import Batch, Model, PyTree
from tractable.core.numbers import LOG_2PI, Number, Real, positive
from tractable.core.settings import expect_whole
from tractable.core.shared import shared
from tractable.core.sums import Expected
from tractable.core.words import removed
from tractable.latent import conjugate_variational
from tractable.latent.conjugate_variational import Conjugate, ConjugateModel

SWEEPS = 1000  # largest number of sweeps over the three factors of q in an M-step


class Regression(NamedTuple):
    """θ of a linear regression."""

    weights: Any  # (D,) w
    noise_precision: Any  # () τ
    weight_precision: Any  # () α; an empty tuple if α is fixed


class RegressionPosterior(NamedTuple):
    """λ of q(w) q(τ) q(α) = N(w; mean, covariance) Gamma(τ; shape, rate) Gamma(α; precision_shape, precision_rate)."""

    mean: Any  # (D,)
    covariance: Any  # (D, D)
    shape: Any  # ()
    rate: Any  # ()
    precision_shape: Any  # (); an empty tuple if α is fixed
    precision_rate: Any  # (); an empty tuple if α is fixed


class Products(NamedTuple):
    """Σ_n w_n (1, xxᵀ, xy, y²), the sufficient statistics of a regression."""

    count: Any  # ()
    xx: Any  # (D, D)
    xy: Any  # (D,)
    yy: Any  # ()


@shared
@removed(
    scaled="for weights in units of the noise write tr.Model with that prior, and tr.NUTS()",
    sweeps="leave it out: an M-step sweeps until it converges",
)
def bayesian_linear_regression(
    features: int, prior_precision: Real | Sequence[Real] = 1.0, shape: Real = 1.0, rate: Real = 1.0
) -> ConjugateModel:
    """Linear regression with learnt noise and, optionally, learnt size of the weights; by mean field.

        y ~ N(xᵀw, 1/τ),   τ ~ Gamma(a₀, b₀),   w ~ N(0, I/α),   α fixed or ~ Gamma(c₀, d₀);   q(w) q(τ) q(α)
        q(w) = N(m, V),  V⁻¹ = E[τ] Σxxᵀ + E[α] I,  m = E[τ] V Σxy
        q(τ) = Gamma(a₀ + n/2, b₀ + ½ E[Σ (y − xᵀw)²]),    q(α) = Gamma(c₀ + D/2, d₀ + ½ E[wᵀw])

    Bishop 2006, section 10.3, with τ unknown as well. The statistics do not depend on λ, so a single pass over the data
    is enough. The M-step updates the three factors in turn until they converge, which takes one eigendecomposition,
    then O(D) for each sweep. There is no intercept: centre y, or give x a column of ones.

    The residual sum of squares is computed from expanded squares, so its rounding error is large if it is much smaller
    than Σ y². Standardise the columns, and use double precision if the residuals have less than 1e-4 of the variance of
    y.

    Args:
        features: D ≥ 1, columns of x.
        prior_precision: α > 0, fixed; or (c₀, d₀), shape and rate, each > 0, of a learnt α.
        shape: a₀ > 0.
        rate: b₀ > 0, in the units of y².

    Returns:
        A ConjugateModel with λ ``RegressionPosterior`` and θ ``Regression``: ``weights``, ``noise_precision`` and, if
        learnt, ``weight_precision``. Data are ``Data(y, given=x)``; ``predictive_log_prob`` for rows (y, x) gives
        log p(y | x). The same arguments give the same model.

    Raises:
        ModelError: a setting is out of range. DataError: the shapes of rows do not fit.

    >>> bayesian_linear_regression(2).names
    ['weights[0]', 'weights[1]', 'noise_precision']
    """
    expect_whole("features", features, ModelError)
    positive(shape=shape, rate=rate)
    if isinstance(prior_precision, Sequence):
        if len(prior_precision) != 2:
            raise ModelError(f"prior_precision expects a number or (shape, rate); got {prior_precision}.")
        positive(**{"prior_precision's shape": prior_precision[0], "prior_precision's rate": prior_precision[1]})
        gamma = float(prior_precision[0]), float(prior_precision[1])
        alpha = gamma[0] / gamma[1]
    else:
        positive(prior_precision=prior_precision)
        alpha, gamma = float(prior_precision), None
    beliefs = Beliefs(features, alpha, gamma, float(shape), float(rate))
    forms = Conjugate(
        beliefs.e_step, beliefs.m_step, beliefs.divergence, beliefs.sample, beliefs.mean, beliefs.predictive_log_prob,
        beliefs.prior(),
    )  # fmt: skip

    def log_prob(theta: Regression, rows: tuple) -> jax.Array:
        return jnp.asarray(likelihood(theta, rows[1]).log_prob(rows[0]))

    of_alpha = () if gamma is None else np.ones(()), () if gamma is None else constraints.positive
    position = Regression(np.zeros(features), np.ones(()), of_alpha[0])
    support = Regression(constraints.real, constraints.positive, of_alpha[1])
    model = ConjugateModel.of(forms, log_prob, position, support, beliefs.log_prior)
    # ``predict`` needs the moments of the likelihood, so the model gets it as a distribution.
    Model.__init__(model, model.prior, likelihood, position, support)
    return model


def likelihood(theta: Regression, x: jax.Array | np.ndarray) -> dist.Distribution:
    """The distribution of y given x."""
    return dist.Normal(x @ theta.weights, 1 / jnp.sqrt(theta.noise_precision))


class Beliefs(NamedTuple):
    """The prior's parameters, and the functions from which a ``Conjugate`` is made."""

    features: int  # D
    alpha: float  # E α
    gamma: tuple[float, float] | None  # (c₀, d₀); None if α is fixed
    shape: float  # a₀
    rate: float  # b₀

    def prior(self) -> RegressionPosterior:
        """The prior's λ."""
        of_alpha = ((), ()) if self.gamma is None else tuple(map(np.asarray, self.gamma))
        covariance = 1 / self.alpha * np.eye(self.features)
        return RegressionPosterior(
            np.zeros(self.features), covariance, np.asarray(self.shape), np.asarray(self.rate), *of_alpha
        )

    def log_prior(self, theta: Regression) -> jax.Array:
        alpha = self.alpha if self.gamma is None else theta.weight_precision
        value = dist.Gamma(self.shape, self.rate).log_prob(theta.noise_precision)
        value = value + jnp.sum(dist.Normal(0.0, 1 / jnp.sqrt(alpha)).log_prob(theta.weights))
        return jnp.asarray(value if self.gamma is None else value + dist.Gamma(*self.gamma).log_prob(alpha))

    def alpha_of(self, q: RegressionPosterior) -> tuple[Number, Number]:
        """E α and E log α."""
        if self.gamma is None:
            return self.alpha, math.log(self.alpha)
        return q.precision_shape / q.precision_rate, digamma(q.precision_shape) - jnp.log(q.precision_rate)

    def cleaned(self, rows: PyTree, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
        """y and x of the rows; raises DataError if their shapes do not fit."""
        shapes = [jnp.shape(part) for part in jax.tree.leaves(rows)]
        if len(shapes) != 2 or len(shapes[0]) != 1 or shapes[1] != (shapes[0][0], self.features):
            raise DataError(f"Expected rows (y, x) of shapes (n,) and (n, {self.features}); got {shapes}.")
        y, x = rows
        return jnp.asarray(y).astype(dtype), jnp.asarray(x).astype(dtype)

    def e_step(self, q: RegressionPosterior, batch: Batch) -> Expected:
        y, x = self.cleaned(batch.data, jnp.result_type(q.mean))
        weights = jnp.asarray(batch.mask, y.dtype)
        y = jnp.where(weights > 0, y, 0)  # a row of weight 0 may hold NaN
        x = jnp.where(weights[:, None] > 0, x, 0)
        square = (y - jnp.matmul(x, q.mean, precision="highest")) ** 2 + weight_variance(q, x)
        terms = digamma(q.shape) - jnp.log(q.rate) - LOG_2PI - q.shape / q.rate * square
        scaled_x = weights[:, None] * x
        xx = jnp.matmul(scaled_x.T, x, precision="highest")
        xy = jnp.matmul(scaled_x.T, y, precision="highest")
        sums = Products(jnp.sum(weights), xx, xy, jnp.sum(weights * y**2))
        return Expected(sums, 0.5 * jnp.sum(weights * terms))

    def m_step(self, statistics: Products) -> RegressionPosterior:
        count, xx, xy, yy = jax.tree.map(jnp.asarray, statistics)
        values, vectors = jnp.linalg.eigh((xx + xx.T) / 2)  # Σ xy is projected on these eigenvectors
        values, projections = jnp.maximum(values, 0), jnp.matmul(xy, vectors, precision="highest")
        a = jnp.asarray(self.shape + count / 2, yy.dtype)
        c = jnp.asarray(0.0 if self.gamma is None else self.gamma[0] + self.features / 2, yy.dtype)

        def of_weights(tau: jax.Array, alpha: jax.Array) -> tuple[jax.Array, jax.Array]:
            """Mean and variances of q(w) given E τ and E α, (D,) each, along the eigenvectors."""
            variances = 1 / (tau * values + alpha)
            return tau * projections * variances, variances

        def continues(carry: tuple) -> jax.Array:
            count, (tau, alpha), (tau_before, alpha_before), _ = carry
            change = jnp.maximum(jnp.abs(tau / tau_before - 1), jnp.abs(alpha / alpha_before - 1))
            return (count == 0) | ((change > 4 * jnp.finfo(change.dtype).eps) & (count < SWEEPS))

        def sweep(carry: tuple) -> tuple:
            """The new and the old E τ and E α; and the old ones with the rates of q(τ) and q(α) that they lead to."""
            count, (tau, alpha), _, _ = carry
            mean, variances = of_weights(tau, alpha)
            size = jnp.sum(mean**2 + variances)  # E wᵀw
            squares = yy - 2 * jnp.sum(projections * mean) + jnp.sum(values * (mean**2 + variances))  # E Σ (y − xᵀw)²
            b = self.rate + 0.5 * jnp.maximum(squares, 0)
            if self.gamma is None:
                return count + 1, (a / b, alpha), (tau, alpha), (tau, alpha, b, alpha)
            d = self.gamma[1] + 0.5 * size
            return count + 1, (a / b, c / d), (tau, alpha), (tau, alpha, b, d)

        first = (a / (self.rate + 0.5 * yy), jnp.asarray(self.alpha, yy.dtype))
        tau, alpha, b, d = jax.lax.while_loop(continues, sweep, (jnp.array(0), first, first, (*first, *first)))[3]
        mean, variances = of_weights(tau, alpha)
        covariance = jnp.einsum("ij,j,kj->ik", vectors, variances, vectors, precision="highest")
        of_alpha = ((), ()) if self.gamma is None else (c, d)
        return RegressionPosterior(jnp.matmul(vectors, mean, precision="highest"), covariance, a, b, *of_alpha)

    def divergence(self, q: RegressionPosterior) -> jax.Array:
        precision, log_precision = self.alpha_of(q)
        size = jnp.sum(q.mean**2) + jnp.trace(q.covariance)
        root = jnp.linalg.cholesky(q.covariance)
        log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        total = 0.5 * (precision * size - self.features - log_det - self.features * log_precision)
        total = total + conjugate_variational.gamma_divergence(q.shape, q.rate, self.shape, self.rate)
        if self.gamma is None:
            return total
        return total + conjugate_variational.gamma_divergence(q.precision_shape, q.precision_rate, *self.gamma)

    def sample(self, key: jax.Array, q: RegressionPosterior, n: int) -> Regression:
        key_weights, key_noise, key_precision = jax.random.split(key, 3)
        dtype, alpha = jnp.result_type(q.mean), ()
        noise = jax.random.normal(key_weights, (n, self.features), dtype)
        weights = q.mean[None, :] + jnp.matmul(noise, jnp.linalg.cholesky(q.covariance).T, precision="highest")
        if self.gamma is not None:
            alpha = jax.random.gamma(key_precision, q.precision_shape, (n,), dtype) / q.precision_rate
        return Regression(weights, jax.random.gamma(key_noise, q.shape, (n,), dtype) / q.rate, alpha)

    def mean(self, q: RegressionPosterior) -> Regression:
        return Regression(q.mean, q.shape / q.rate, () if self.gamma is None else self.alpha_of(q)[0])

    def predictive_log_prob(self, q: RegressionPosterior, rows: PyTree) -> jax.Array:
        y, x = self.cleaned(rows, jnp.result_type(q.mean))
        residual = y - jnp.matmul(x, q.mean, precision="highest")
        return conjugate_variational.log_normal_of_unknown_precision(residual, weight_variance(q, x), q.shape, q.rate)


def weight_variance(q: RegressionPosterior, x: jax.Array) -> jax.Array:
    """xᵀ V x, (n,): the part of a prediction's variance that comes from the weights."""
    return jnp.sum(jnp.matmul(x, q.covariance, precision="highest") * x, axis=1)
