"""Closed forms against quadrature and a second telling; the grid against closed forms."""

import numpy as np
import pytest
from scipy import integrate, stats

from tractable.core.errors import DataError, ModelError
from tractable.gallery import conjugate
from tractable.glm import linear

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("alpha", "beta"), [(5.0, 5.0), (1, 1), (2.0, 7.0)])
def test_beta_bernoulli(alpha, beta):
    y = RNG.integers(0, 2, 20)
    k, n = y.sum(), y.size

    def joint(theta):
        return theta**k * (1 - theta) ** (n - k) * stats.beta.pdf(theta, alpha, beta)

    evidence, mean, square = (
        integrate.quad(lambda t, p=p: t**p * joint(t) * 1e6, 0, 1, epsrel=1e-12)[0] / 1e6 for p in range(3)
    )
    posterior = conjugate.beta_bernoulli(y, alpha, beta)
    np.testing.assert_allclose(posterior.log_evidence, np.log(evidence), atol=1e-8)
    np.testing.assert_allclose(posterior.mean, mean / evidence, atol=1e-8)
    np.testing.assert_allclose(posterior.sd, np.sqrt(square / evidence - (mean / evidence) ** 2), atol=1e-8)
    theta = np.linspace(0, 1, 100_001)
    np.testing.assert_allclose(posterior.mode, theta[joint(theta).argmax()], atol=1e-5)


@pytest.mark.parametrize(
    ("alpha", "beta", "mode"), [(0.5, 2.0, 0.0), (1.0, 3.0, 0.0), (3.0, 1.0, 1.0), (1.0, 1.0, np.nan)]
)
def test_beta_mode_at_an_edge(alpha, beta, mode):
    np.testing.assert_equal(conjugate.beta_bernoulli([], alpha, beta).mode, mode)


def test_beta_mode_of_two_poles_is_none():
    assert np.isnan(conjugate.beta_bernoulli([], 0.5, 0.7).mode)


def test_normal_mean():
    y = RNG.normal(3.0, 2.0, 9)

    def joint(mu):
        return np.exp(stats.norm.logpdf(y, mu, 2.0).sum() + stats.norm.logpdf(mu, -1.0, 1.5) + 20)

    evidence, first, second = (
        integrate.quad(lambda t, p=p: t**p * joint(t), -10, 10, epsrel=1e-12, points=[2.0])[0] for p in range(3)
    )
    posterior = conjugate.normal_mean(y, 2.0, -1.0, 1.5)
    np.testing.assert_allclose(posterior.log_evidence, np.log(evidence) - 20, atol=1e-8)
    np.testing.assert_allclose(posterior.mean, first / evidence, atol=1e-8)
    np.testing.assert_allclose(posterior.sd, np.sqrt(second / evidence - posterior.mean**2), atol=1e-8)


def test_normal_mean_far_from_zero_keeps_its_digits():
    y = RNG.normal(0.0, 2.0, 9)
    near, far = conjugate.normal_mean(y, 2, 0, 1), conjugate.normal_mean(y + 2.0**30, 2, 2**30, 1)
    np.testing.assert_allclose(far.log_evidence, near.log_evidence, atol=1e-6)
    np.testing.assert_allclose(far.mean - 2.0**30, near.mean, atol=1e-6)


def test_linear_regression():
    """Against the joint normal of (w, y), conditioned by the textbook."""
    x, y = RNG.normal(size=(12, 3)), RNG.normal(size=12)
    marginal = 0.49 * np.eye(12) + 4.0 * x @ x.T
    gain = 4.0 * x.T @ np.linalg.inv(marginal)
    posterior = conjugate.linear_regression(x, y, 0.7, 2.0)
    np.testing.assert_allclose(posterior.mean, gain @ y, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance, 4 * np.eye(3) - gain @ x * 4, atol=1e-10)
    np.testing.assert_allclose(posterior.sd**2, np.diag(posterior.covariance))
    evidence = stats.multivariate_normal.logpdf(y, np.zeros(12), marginal)
    np.testing.assert_allclose(posterior.log_evidence, evidence, atol=1e-8)


def test_linear_evidence_is_the_grids():
    x, y = RNG.normal(size=(12, 2)), RNG.normal(size=12)
    exact = conjugate.linear_regression(x, y, 0.7, 2.0)

    def log_joint(w):
        return stats.norm.logpdf(y, w @ x.T, 0.7).sum(1) + stats.norm.logpdf(w, 0, 2.0).sum(1)

    grid = conjugate.grid_2d(log_joint, [(m - 9 * s, m + 9 * s) for m, s in zip(exact.mean, exact.sd, strict=True)])
    np.testing.assert_allclose(grid.log_mass, exact.log_evidence, atol=1e-8)
    np.testing.assert_allclose(grid.mean, exact.mean, atol=1e-8)
    np.testing.assert_allclose(grid.sd, exact.sd, atol=1e-8)
    np.testing.assert_allclose(
        grid.density.max(), 1 / (2 * np.pi * np.sqrt(np.linalg.det(exact.covariance))), rtol=1e-2
    )


def test_grid_integrates_to_one():
    grid = conjugate.mixture_grid([0.0, 1.0, 2.0], ((-6, 8), (-7, 7)))
    total = integrate.trapezoid(integrate.trapezoid(grid.density, grid.second), grid.first)
    np.testing.assert_allclose(total, 1.0)


@pytest.mark.laws
def test_mixture_grid_is_the_models_density():
    """The evidence of one point, by hand: an average of N(0, 10 + 2) and N(0, 10 + 1 + 2)."""
    grid = conjugate.mixture_grid([1.5], ((-20, 20), (-8, 8)), 301)
    components = stats.norm.logpdf(1.5, 0, np.sqrt([12, 13]))
    np.testing.assert_allclose(grid.log_mass, np.log(0.5) + np.logaddexp(*components), atol=1e-8)

    x = linear.draw_mixture(5, seed=1)
    grid = conjugate.mixture_grid(x, ((-6, 8), (-7, 7)), 15)
    model = linear.gaussian_mixture_2d()
    for i, j in [(5, 7), (8, 6), (7, 9)]:
        params = {"theta": np.array([grid.first[i], grid.second[j]])}
        log_joint = model.log_prior(params) + model.log_likelihoods(params, (x, None)).sum()
        np.testing.assert_allclose(np.log(grid.density[i, j]) + grid.log_mass, log_joint, atol=1e-8)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: conjugate.beta_bernoulli([0, 2], 1, 1), DataError, "Flips are 0 or 1; got 2"),
        (lambda: conjugate.beta_bernoulli([0], 0, 1), ModelError, "alpha must be positive"),
        (lambda: conjugate.normal_mean([0.0], 1, 0, -1), ModelError, "prior_sd must be positive"),
        (lambda: conjugate.linear_regression([[1.0]], [1, 2], 1, 1), DataError, r"got \(1, 1\) and \(2,\)"),
        (lambda: conjugate.grid_2d(_flat, ((0, 1), (0, 1))), ModelError, "still 1 of its maximum.*Widen"),
        (lambda: conjugate.grid_2d(_flat, ((1, 0), (0, 1))), ModelError, r"low < high; got \(1, 0\)"),
        (lambda: conjugate.grid_2d(_flat, ((0, 1), (0, 1)), 2), ModelError, "3 points per side"),
        (lambda: conjugate.grid_2d(lambda p: _flat(p) * np.nan, ((0, 1), (0, 1))), ModelError, "is nan"),
    ],
)
def test_faults(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()


def _flat(points):
    return np.zeros(len(points))
