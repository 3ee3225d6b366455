"""Linear regression with unknown noise, by mean field: one pass over the data is all that it needs."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma
from scipy import linalg

from tractable.core import Batch
from tractable.kernels.em import Expected
from tractable.models.conjugate import LOG_2PI, Real, positive
from tractable.models.conjugate_variational import Conjugate, gamma_divergence, log_normal_of_unknown_precision
from tractable.tools.errors import DataError, ModelError
from tractable.tools.settings import expect_whole, is_whole

SWEEPS = 1000  # at most, where none are asked for


class Regression(NamedTuple):
    """θ of a linear regression."""

    weights: Any  # (D,) w
    noise_precision: Any  # () τ
    weight_precision: Any  # () α; an empty tuple where it is fixed


class RegressionPosterior(NamedTuple):
    """λ of q(w) q(τ) q(α) = N(w; mean, covariance) Gamma(τ; shape, rate) Gamma(α; precision_shape, precision_rate)."""

    mean: Any  # (D,)
    covariance: Any  # (D, D)
    shape: Any  # ()
    rate: Any  # ()
    precision_shape: Any  # (); an empty tuple where α is fixed
    precision_rate: Any  # (); likewise


class Products(NamedTuple):
    """Σ_n w_n (1, xxᵀ, xy, y²): all that regression looks at."""

    count: Any  # ()
    xx: Any  # (D, D)
    xy: Any  # (D,)
    yy: Any  # ()


class Beliefs(NamedTuple):
    """The prior's numbers and how it is climbed; hashable, so that equal ones give the same functions."""

    features: int  # D
    alpha: float  # E α
    gamma: tuple[float, float] | None  # (c₀, d₀); None where α is fixed
    shape: float  # a₀
    rate: float  # b₀
    scaled: bool
    sweeps: int | None


class Spectrum(NamedTuple):
    """Products in the coordinates of the eigenvectors of Σ xxᵀ."""

    values: jax.Array  # (D,)
    vectors: jax.Array  # (D, D)
    along: jax.Array  # (D,), xy
    yy: jax.Array  # ()


def linear_regression_unknown_noise(
    features: int,
    prior_precision: Real | tuple[Real, Real] = 1.0,
    shape: Real = 1.0,
    rate: Real = 1.0,
    scaled: bool = False,
    sweeps: int | None = None,
) -> Conjugate:
    """Linear regression whose noise, and if wished the size of whose weights, is learnt; by mean field.

        y ~ N(xᵀw, 1/τ),   τ ~ Gamma(a₀, b₀),   w ~ N(0, I/α),   α a number or ~ Gamma(c₀, d₀);   q(w) q(τ) q(α)
        q(w) = N(m, V),  V⁻¹ = E[τ] Σxxᵀ + E[α] I,  m = E[τ] V Σxy
        q(τ) = Gamma(a₀ + n/2, b₀ + ½ E[Σ (y − xᵀw)²]),    q(α) = Gamma(c₀ + D/2, d₀ + ½ E[wᵀw])

    Bishop 2006, section 10.3, with τ unknown as well. The statistics do not depend on λ, so one E-step is a pass over
    the data and the M-step sweeps over the three factors until they rest: one eigendecomposition, then O(D) a sweep.
    There is no intercept: centre y, or give x a column of ones.

    Squares are expanded: the residuals' sum loses as many digits as it is smaller than Σ y². Standardise, and where
    the fit leaves less than 1e-4 of the variance use double precision.

    Args:
        features: D ≥ 1, columns of x.
        prior_precision: α > 0; or (c₀, d₀), shape and rate, each > 0, and it is learnt.
        shape: a₀ > 0.
        rate: b₀ > 0, in the units of y².
        scaled: the weights' prior is in units of the noise, w ~ N(0, I/(α τ)), for which ``normal_gamma_regression``
            knows the exact posterior where α is a number.
        sweeps: ≥ 1, so many in an M-step, always from τ of w = 0; by default until they rest.

    Returns:
        A Conjugate of λ ``RegressionPosterior`` and θ ``Regression``; rows are (y (n,), x (n, D)), as ``Data(y,
        given=x)`` has them, and so are those of ``predictive_log_prob``, which gives log p(y | x). The same arguments
        give the same functions.

    Raises:
        ModelError: a setting out of range. DataError: rows whose shapes do not fit.

    >>> model = linear_regression_unknown_noise(2, prior_precision=(1.0, 1.0))
    >>> float(model.mean(model.prior).weight_precision)
    1.0
    """
    expect_whole("features", features, ModelError)
    positive(shape=shape, rate=rate)
    if sweeps is not None and not is_whole(sweeps):
        raise ModelError(f"sweeps is a whole number, 1 or more, or None; got {sweeps}.")
    if isinstance(prior_precision, tuple):
        if len(prior_precision) != 2:
            raise ModelError(f"prior_precision is a number or (shape, rate); got {prior_precision}.")
        positive(**{"prior_precision's shape": prior_precision[0], "prior_precision's rate": prior_precision[1]})
        gamma = float(prior_precision[0]), float(prior_precision[1])
        alpha = gamma[0] / gamma[1]
    else:
        positive(prior_precision=prior_precision)
        alpha, gamma = float(prior_precision), None
    return _regression(Beliefs(features, alpha, gamma, float(shape), float(rate), scaled, sweeps))


@functools.lru_cache(maxsize=128)
def _regression(beliefs: Beliefs) -> Conjugate:
    def of(function: Callable) -> Callable:
        return functools.partial(function, beliefs)

    return Conjugate(
        of(e_step), of(m_step), of(divergence), of(sample), of(mean), of(predictive_log_prob), prior_of(beliefs)
    )


def prior_of(beliefs: Beliefs) -> RegressionPosterior:
    """λ from before any data."""
    features, alpha, gamma, shape, rate, scaled, _ = beliefs
    variance = 1 / (alpha * shape / rate) if scaled else 1 / alpha
    of_alpha = ((), ()) if gamma is None else tuple(map(np.asarray, gamma))
    return RegressionPosterior(
        np.zeros(features), variance * np.eye(features), np.asarray(shape), np.asarray(rate), *of_alpha
    )


def alpha_of(beliefs: Beliefs, q: RegressionPosterior) -> tuple[Any, Any]:
    """E α and E log α."""
    if beliefs.gamma is None:
        return beliefs.alpha, math.log(beliefs.alpha)
    return q.precision_shape / q.precision_rate, digamma(q.precision_shape) - jnp.log(q.precision_rate)


def cleaned(features: int, rows: Any, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """y and x of rows, or a sentence where their shapes do not fit."""
    shapes = [jnp.shape(part) for part in jax.tree.leaves(rows)]
    if len(shapes) != 2 or len(shapes[0]) != 1 or shapes[1] != (shapes[0][0], features):
        raise DataError(f"Expected rows (y, x) of shapes (n,) and (n, {features}); got {shapes}.")
    y, x = rows
    return jnp.asarray(y).astype(dtype), jnp.asarray(x).astype(dtype)


def e_step(beliefs: Beliefs, q: RegressionPosterior, batch: Batch) -> Expected:
    y, x = cleaned(beliefs.features, batch.data, jnp.result_type(q.mean))
    weights = jnp.asarray(batch.mask, y.dtype)
    y = jnp.where(weights > 0, y, 0)  # a row that does not count may hold anything
    x = jnp.where(weights[:, None] > 0, x, 0)
    square = (y - jnp.matmul(x, q.mean, precision="highest")) ** 2 + spread(q, x)
    terms = digamma(q.shape) - jnp.log(q.rate) - LOG_2PI - q.shape / q.rate * square
    scaled_x = weights[:, None] * x
    xx = jnp.matmul(scaled_x.T, x, precision="highest")
    xy = jnp.matmul(scaled_x.T, y, precision="highest")
    sums = Products(jnp.sum(weights), xx, xy, jnp.sum(weights * y**2))
    return Expected(sums, 0.5 * jnp.sum(weights * terms))


def m_step(beliefs: Beliefs, statistics: Products) -> RegressionPosterior:
    count, xx, xy, yy = jax.tree.map(jnp.asarray, statistics)
    values, vectors = jnp.linalg.eigh((xx + xx.T) / 2)
    values = jnp.maximum(values, 0)
    spectrum = Spectrum(values, vectors, jnp.matmul(xy, vectors, precision="highest"), yy)
    half = beliefs.features / 2
    a = jnp.asarray(beliefs.shape + count / 2 + (half if beliefs.scaled else 0), yy.dtype)
    c = jnp.asarray(0.0 if beliefs.gamma is None else beliefs.gamma[0] + half, yy.dtype)
    tau, alpha, b, d = rested(beliefs, spectrum, a, c)
    mean, variances = of_weights(beliefs, spectrum, tau, alpha)
    covariance = jnp.einsum("ij,j,kj->ik", vectors, variances, vectors, precision="highest")
    of_alpha = ((), ()) if beliefs.gamma is None else (c, d)
    return RegressionPosterior(jnp.matmul(vectors, mean, precision="highest"), covariance, a, b, *of_alpha)


def of_weights(beliefs: Beliefs, spectrum: Spectrum, tau: jax.Array, alpha: jax.Array) -> tuple[jax.Array, jax.Array]:
    """m and the variances of q(w) given E τ and E α, (D,) each, along the eigenvectors."""
    variances = 1 / (tau * spectrum.values + alpha * (tau if beliefs.scaled else 1))
    return tau * spectrum.along * variances, variances


def sweep(
    beliefs: Beliefs, spectrum: Spectrum, a: jax.Array, tau: jax.Array, alpha: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The rates of q(τ) and q(α), given q(w) given the means of both."""
    mean, variances = of_weights(beliefs, spectrum, tau, alpha)
    size = jnp.sum(mean**2 + variances)  # E wᵀw
    # E Σ (y − xᵀw)²
    left = spectrum.yy - 2 * jnp.sum(spectrum.along * mean) + jnp.sum(spectrum.values * (mean**2 + variances))
    b = beliefs.rate + 0.5 * (jnp.maximum(left, 0) + (alpha * size if beliefs.scaled else 0))
    if beliefs.gamma is None:
        return b, alpha  # no rate: it stays
    return b, beliefs.gamma[1] + 0.5 * size * (a / b if beliefs.scaled else 1)


def rested(beliefs: Beliefs, spectrum: Spectrum, a: jax.Array, c: jax.Array) -> tuple:
    """E τ and E α of the last sweep but one, and the last's rates of q(τ) and q(α)."""

    def again(carry: tuple) -> jax.Array:
        count, (tau, alpha), (tau_before, alpha_before), _ = carry
        if beliefs.sweeps is not None:
            return count < beliefs.sweeps
        moved = jnp.maximum(jnp.abs(tau / tau_before - 1), jnp.abs(alpha / alpha_before - 1))
        return (count == 0) | ((moved > 4 * jnp.finfo(moved.dtype).eps) & (count < SWEEPS))

    def body(carry: tuple) -> tuple:
        count, now, _, _ = carry
        b, d = sweep(beliefs, spectrum, a, *now)
        return count + 1, (a / b, d if beliefs.gamma is None else c / d), now, (*now, b, d)

    first = (a / (beliefs.rate + 0.5 * spectrum.yy), jnp.asarray(beliefs.alpha, spectrum.yy.dtype))
    return jax.lax.while_loop(again, body, (jnp.array(0), first, first, (*first, *first)))[3]


def divergence(beliefs: Beliefs, q: RegressionPosterior) -> jax.Array:
    precision, log_precision = alpha_of(beliefs, q)
    if beliefs.scaled:
        precision = precision * q.shape / q.rate
        log_precision = log_precision + digamma(q.shape) - jnp.log(q.rate)
    size = jnp.sum(q.mean**2) + jnp.trace(q.covariance)
    root = jnp.linalg.cholesky(q.covariance)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
    total = 0.5 * (precision * size - beliefs.features - log_det - beliefs.features * log_precision)
    total = total + gamma_divergence(q.shape, q.rate, beliefs.shape, beliefs.rate)
    if beliefs.gamma is None:
        return total
    return total + gamma_divergence(q.precision_shape, q.precision_rate, *beliefs.gamma)


def sample(beliefs: Beliefs, key: jax.Array, q: RegressionPosterior, n: int) -> Regression:
    key_weights, key_noise, key_precision = jax.random.split(key, 3)
    dtype, alpha = jnp.result_type(q.mean), ()
    noise = jax.random.normal(key_weights, (n, beliefs.features), dtype)
    weights = q.mean[None, :] + jnp.matmul(noise, jnp.linalg.cholesky(q.covariance).T, precision="highest")
    if beliefs.gamma is not None:
        alpha = jax.random.gamma(key_precision, q.precision_shape, (n,), dtype) / q.precision_rate
    return Regression(weights, jax.random.gamma(key_noise, q.shape, (n,), dtype) / q.rate, alpha)


def mean(beliefs: Beliefs, q: RegressionPosterior) -> Regression:
    alpha = () if beliefs.gamma is None else alpha_of(beliefs, q)[0]
    return Regression(q.mean, q.shape / q.rate, alpha)


def predictive_log_prob(beliefs: Beliefs, q: RegressionPosterior, rows: Any) -> jax.Array:
    y, x = cleaned(beliefs.features, rows, jnp.result_type(q.mean))
    off = y - jnp.matmul(x, q.mean, precision="highest")
    return log_normal_of_unknown_precision(off, spread(q, x), q.shape, q.rate)


def spread(q: RegressionPosterior, x: jax.Array) -> jax.Array:
    """xᵀ V x, (n,): the variance that the weights give a prediction."""
    return jnp.sum(jnp.matmul(x, q.covariance, precision="highest") * x, axis=1)


class NormalGammaRegression(NamedTuple):
    """τ ~ Gamma(shape, rate), w | τ ~ N(mean, scale/τ)."""

    mean: np.ndarray  # (D,)
    scale: np.ndarray  # (D, D)
    shape: float
    rate: float
    log_evidence: float  # log p(y | X), nats


def normal_gamma_regression(x: Any, y: Any, prior_precision: Real, shape: Real, rate: Real) -> NormalGammaRegression:
    """The exact posterior of a regression with a prior in units of the noise, in NumPy's float64.

        y ~ N(Xw, I/τ),   w | τ ~ N(0, I/(α τ)),   τ ~ Gamma(a₀, b₀)
        S = (XᵀX + α I)⁻¹,  m = S Xᵀy,  A = a₀ + n/2,  B = b₀ + ½ [|y − Xm|² + α |m|²]
        log p(y | X) = ½ log |S| + D/2 log α + a₀ log b₀ − A log B + log Γ(A) − log Γ(a₀) − n/2 log 2π

    Bishop 2006, exercises 3.12 and 3.23.

    Args:
        x: (n, D).
        y: (n,).
        prior_precision: α > 0.
        shape: a₀ > 0.
        rate: b₀ > 0.

    Raises:
        DataError: x and y whose shapes do not fit.

    One input of 1 is ``normal_gamma_posterior`` with a prior mean of 0:

    >>> print(np.exp(normal_gamma_regression([[1.0]], [0.0], 1.0, 1.0, 1.0).log_evidence).round(9))
    0.25
    """
    positive(prior_precision=prior_precision, shape=shape, rate=rate)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise DataError(f"Expected x of shape (n, D) and y of shape (n,); got {x.shape} and {y.shape}.")
    n, d = x.shape
    factor = linalg.cho_factor(x.T @ x + prior_precision * np.eye(d), lower=True)
    mean = linalg.cho_solve(factor, x.T @ y)
    a = shape + n / 2
    b = rate + 0.5 * float(np.sum((y - x @ mean) ** 2) + prior_precision * np.sum(mean**2))
    log_evidence = (
        -float(np.sum(np.log(np.diag(factor[0]))))
        + 0.5 * d * math.log(prior_precision)
        + shape * math.log(rate)
        - a * math.log(b)
        + math.lgamma(a)
        - math.lgamma(shape)
        - 0.5 * n * LOG_2PI
    )
    return NormalGammaRegression(mean, linalg.cho_solve(factor, np.eye(d)), float(a), b, log_evidence)
