"""Exact posteriors, computed in float64 by NumPy, with which approximate posteriors can be compared."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.special import betaln

from tractable.core.errors import DataError, ModelError
from tractable.core.numbers import LOG_2PI, Numbers, Real, positive

EDGE = 1e-6  # the largest accepted density at the edge of a grid, as a share of the density's maximum


class BetaPosterior(NamedTuple):
    """Beta(alpha, beta)."""

    alpha: float
    beta: float
    mean: float
    sd: float
    mode: float  # NaN if the density has no single highest point
    log_evidence: float  # log p(y)


def beta_bernoulli(y: Numbers, alpha: Real, beta: Real) -> BetaPosterior:
    """The posterior of a coin's probability, from flips.

        θ ~ Beta(α, β),  y ~ Bernoulli(θ)   ⇒   θ | y ~ Beta(α + k, β + n − k),  k = Σ y
        log p(y) = log B(α + k, β + n − k) − log B(α, β)

    Args:
        y: (n,), each 0 or 1.
        alpha, beta: > 0.

    Raises:
        DataError: a flip is neither 0 nor 1.

    With a uniform prior and two heads in three flips the mean is 3/5 and the evidence 1/12:

    >>> posterior = beta_bernoulli([1, 1, 0], 1.0, 1.0)
    >>> posterior.alpha, posterior.beta, round(posterior.mean, 9)
    (3.0, 2.0, 0.6)
    >>> print(np.exp(-posterior.log_evidence).round(9))
    12.0
    """
    positive(alpha=alpha, beta=beta)
    y = np.asarray(y)
    if not np.isin(y, (0, 1)).all():
        raise DataError(f"Flips are 0 or 1; got {y[~np.isin(y, (0, 1))][0]}. Code heads as 1 and tails as 0.")
    a, b = float(alpha + y.sum()), float(beta + y.size - y.sum())
    total = a + b
    if a > 1 and b > 1:
        mode = (a - 1) / (total - 2)
    elif a == b or max(a, b) < 1:
        mode = np.nan
    else:
        mode = float(a > b)
    sd = np.sqrt(a * b / (total**2 * (total + 1)))
    return BetaPosterior(a, b, a / total, float(sd), float(mode), float(betaln(a, b) - betaln(alpha, beta)))


class NormalPosterior(NamedTuple):
    """N(mean, sd²)."""

    mean: float
    sd: float
    log_evidence: float  # log p(y)


def normal_mean(y: Numbers, noise_sd: Real, prior_mean: Real, prior_sd: Real) -> NormalPosterior:
    """The posterior of a mean under normal noise of known sd.

        μ ~ N(m, s²),  y ~ N(μ, σ²)   ⇒   precision 1/s² + n/σ²,  mean (m/s² + Σ y/σ²) / precision
        log p(y) = log p(y | μ) + log p(μ) − log p(μ | y)  at any μ

    for y (n,), ``noise_sd`` σ > 0, ``prior_mean`` m and ``prior_sd`` s > 0.

    With one observation and all scales 1, the mean is half-way between the prior mean and y, and p(y) is the density
    of N(0, 2) at 2:

    >>> posterior = normal_mean([2.0], 1.0, 0.0, 1.0)
    >>> round(posterior.mean, 9), round(posterior.sd**2, 9)
    (1.0, 0.5)
    >>> print((posterior.log_evidence + np.log(4 * np.pi) / 2).round(9))
    -1.0
    """
    positive(noise_sd=noise_sd, prior_sd=prior_sd)
    y = np.asarray(y, np.float64)
    precision = 1 / prior_sd**2 + y.size / noise_sd**2
    # y is centred on the prior mean, so that rounding errors stay small if the mean is far from zero.
    z = y - prior_mean
    shift = float(z.sum() / noise_sd**2 / precision)
    log_evidence = (
        -0.5 * y.size * LOG_2PI
        - y.size * np.log(noise_sd)
        - np.log(prior_sd)
        - 0.5 * np.log(precision)
        - 0.5 * (np.sum((z - shift) ** 2) / noise_sd**2 + (shift / prior_sd) ** 2)
    )
    return NormalPosterior(prior_mean + shift, float(precision**-0.5), float(log_evidence))


class LinearPosterior(NamedTuple):
    """The normal posterior N(mean, covariance) of the weights."""

    mean: np.ndarray  # (d,)
    covariance: np.ndarray  # (d, d)
    log_evidence: float  # log p(y | X)

    @property
    def sd(self) -> np.ndarray:
        """Marginal standard deviations (d,)."""
        return np.sqrt(np.diag(self.covariance))


def linear_regression(x: Numbers, y: Numbers, noise_sd: Real, weight_sd: Real) -> LinearPosterior:
    """The posterior of the weights of a linear regression with known noise.

        w ~ N(0, s² I),  y ~ N(Xw, σ² I)   ⇒   Λ = I/s² + XᵀX/σ²,  Σ = Λ⁻¹,  μ = Σ Xᵀy/σ²
        log p(y | X) = −½ [n log 2πσ² + D log s² + log |Λ| + |y − Xμ|²/σ² + |μ|²/s²]

    for x (n, D), y (n,), ``noise_sd`` σ > 0 and ``weight_sd`` s > 0. Bishop 2006, eqs. 3.53, 3.54 and 3.86.

    Raises:
        DataError: the shapes of x and y do not match.

    With one weight, one observation and all scales 1, the result is that of ``normal_mean``:

    >>> posterior = linear_regression([[1.0]], [2.0], 1.0, 1.0)
    >>> posterior.mean.round(9).tolist(), posterior.covariance.round(9).tolist()
    ([1.0], [[0.5]])
    >>> print((posterior.log_evidence + np.log(4 * np.pi) / 2).round(9))
    -1.0
    """
    positive(noise_sd=noise_sd, weight_sd=weight_sd)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise DataError(f"Expected x of shape (n, D) and y of shape (n,); got {x.shape} and {y.shape}.")
    n, d = x.shape
    factor = linalg.cho_factor(np.eye(d) / weight_sd**2 + x.T @ x / noise_sd**2, lower=True)
    mean = linalg.cho_solve(factor, x.T @ y / noise_sd**2)
    covariance = linalg.cho_solve(factor, np.eye(d))
    log_evidence = (
        -0.5 * n * LOG_2PI
        - n * np.log(noise_sd)
        - d * np.log(weight_sd)
        - np.sum(np.log(np.diag(factor[0])))
        - 0.5 * (np.sum((y - x @ mean) ** 2) / noise_sd**2 + np.sum(mean**2) / weight_sd**2)
    )
    return LinearPosterior(mean, (covariance + covariance.T) / 2, float(log_evidence))


class Grid(NamedTuple):
    """A density in two dimensions on a regular grid, normalised so that its integral over the grid is 1."""

    first: np.ndarray  # (n,) values of θ₁
    second: np.ndarray  # (n,) values of θ₂
    density: np.ndarray  # (n, n), with element [i, j] at (first[i], second[j])
    mean: np.ndarray  # (2,)
    sd: np.ndarray  # (2,)
    log_mass: float  # log ∫ exp(log_density): the log evidence, if log_density was log p(y, θ)


def grid_2d(log_density: Callable, ranges: Sequence[Sequence[Real]], n: int = 201) -> Grid:
    """The moments of a density in two dimensions, by the trapezoid rule.

    If the density is smooth and vanishes at the edges, the error falls faster than any power of the spacing. For a
    normal, the relative error of the variance is below 3e-7 at a spacing of one sd.

    Args:
        log_density: the log density up to a constant, a function ``points (m, 2) -> (m,)``.
        ranges: ((low, high), (low, high)) of θ₁ and θ₂; wide enough to leave no probability mass outside.
        n: number of points per side.

    Raises:
        ModelError: a range has low ≥ high; or the density is nowhere finite, is NaN at a point, or is not negligible at
            the edge of the grid.

    A standard normal:

    >>> grid = grid_2d(lambda points: -0.5 * np.sum(points**2, axis=1), ((-9, 9), (-9, 9)))
    >>> print(grid.sd.round(9), (np.exp(grid.log_mass) / (2 * np.pi)).round(9))
    [1. 1.] 1.0
    """
    for low, high in ranges:
        if not low < high:
            raise ModelError(f"A range of the grid must be (low, high) with low < high; got ({low}, {high}).")
    if n < 3:
        raise ModelError(f"A grid needs at least 3 points per side; got n={n}.")
    first, second = (np.linspace(low, high, n) for low, high in ranges)
    points = np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1).reshape(-1, 2)
    values = np.asarray(log_density(points), np.float64).reshape(n, n)
    peak = values.max()  # NaN if any value is NaN
    if not np.isfinite(peak):
        raise ModelError(f"The log density's maximum over the grid is {peak}; expected a finite number.")
    relative = np.exp(values - peak)
    edge = max(relative[0].max(), relative[-1].max(), relative[:, 0].max(), relative[:, -1].max())
    if edge > EDGE:
        raise ModelError(
            f"At the edge of the grid the density is still {edge:.2g} of its maximum, so moments would miss mass "
            f"outside the grid; expected at most {EDGE:g}. Widen the ranges {tuple(map(tuple, ranges))}."
        )
    weights = [np.full(n, axis[1] - axis[0]) for axis in (first, second)]
    for weight in weights:
        weight[[0, -1]] /= 2
    mass = float(weights[0] @ relative @ weights[1])
    density = relative / mass
    marginals = density @ weights[1] * weights[0], density.T @ weights[0] * weights[1]
    mean = np.array([axis @ p for axis, p in zip((first, second), marginals, strict=True)])
    variance = [(axis - m) ** 2 @ p for axis, m, p in zip((first, second), mean, marginals, strict=True)]
    return Grid(first, second, density, mean, np.sqrt(variance), float(peak + np.log(mass)))


def mixture_grid(x: Numbers, ranges: Sequence[Sequence[Real]] = ((-2, 3), (-4, 4)), n: int = 161) -> Grid:
    """The posterior of ``linear.gaussian_mixture_2d`` for data x (N,), on a grid; ``log_mass`` is its log evidence."""
    x = np.asarray(x, np.float64)

    def log_joint(points: np.ndarray) -> np.ndarray:
        first, second = points.T
        total = -0.5 * (first**2 / 10 + second**2 + np.log(10)) - LOG_2PI
        for value in x:
            total = total + np.logaddexp(-((value - first) ** 2) / 4, -((value - first - second) ** 2) / 4)
        return total - x.size * (np.log(2) + 0.5 * np.log(4 * np.pi))

    return grid_2d(log_joint, ranges, n)
