"""Rows on which the posterior depends too much for reweighting, left out by moved draws, against exact answers."""

import math

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Z, assert_holds, broken
from scipy import stats

import tractable as tr
from tractable.core.approximations import inverse_softplus
from tractable.diagnostics.belief import Draws, Fitted
from tractable.posterior import moment_matching, pointwise

pytestmark = pytest.mark.laws

N, D, SEEDS = 20, 3, 20
RNG = np.random.default_rng(1)
X = np.column_stack([np.ones(N), RNG.normal(size=(N, D - 1))])
Y = X.sum(1) + RNG.normal(size=N)
X[-1, 1:] += 1.5
Y[-1] += 30.0  # the last row is far from where the others say
MODEL = tr.Model({"b": dist.Normal(0.0, 2.0).expand([D]).to_event(1)}, lambda p, x: dist.Normal(x @ p["b"], 1.0))


def exact(counts):
    """Mean and covariance of the weights, where row n counts counts[n] times."""
    covariance = np.linalg.inv(np.eye(D) / 4 + (counts[:, None] * X).T @ X)
    return covariance @ (X.T @ (counts * Y)), covariance


def left_out(counts, row):
    """log p(y_n | the rest), exactly, where one of the counts of the row is left out."""
    mean, covariance = exact(counts - (np.arange(N) == row))
    return stats.norm(X[row] @ mean, math.sqrt(1 + X[row] @ covariance @ X[row])).logpdf(Y[row])


def drawn(counts=None, seed=0):
    """Independent draws of the exact posterior."""
    mean, covariance = exact(np.ones(N) if counts is None else counts)
    noise = np.random.default_rng(seed).normal(size=(4, 1000, D))
    draws = Draws(positions=mean + noise @ np.linalg.cholesky(covariance).T)
    return tr.Posterior(MODEL, tr.Data(Y, given=X, weights=counts), tr.NUTS(), 0, draws)


def law(errors, reach=0.05):
    """Errors in nats of independent estimates have the mean 0, and no one is larger than ``reach``."""
    errors = np.asarray(errors)
    far = stats.t(len(errors) - 1).isf(stats.norm.sf(Z)) * errors.std(ddof=1) / math.sqrt(len(errors))
    return {"mean": abs(errors.mean()) / far, "largest": float(np.max(np.abs(errors))) / reach}


def wrong_volume(kind, draws, shares, right=moment_matching._stretch):
    """A map without its determinant."""
    return right(kind, draws, shares)[0], 0.0


@pytest.mark.computes
def test_an_outlier_has_its_exact_density(monkeypatch):
    posteriors, wanted = [drawn(seed=seed) for seed in range(SEEDS)], left_out(np.ones(N), N - 1)
    found = [posterior.loo() for posterior in posteriors]
    assert all(loo.khat <= loo.limit and not len(loo.failed) for loo in found)
    assert_holds(law([loo.pointwise[-1] - wanted for loo in found]))
    assert f"; {found[0].matched} rows by moment matching; p_loo" in str(found[0])
    np.testing.assert_allclose(found[0].elpd, found[0].pointwise.sum(), rtol=1e-12)
    with monkeypatch.context() as patch:
        patch.setattr(moment_matching, "_stretch", wrong_volume)
        assert broken(law([posterior.loo().pointwise[-1] - wanted for posterior in posteriors[:4]]))
    monkeypatch.setattr(pointwise, "MATCHED", 0)
    for loo, posterior in zip(found[:4], posteriors, strict=False):
        plain = posterior.loo()
        assert N - 1 in plain.failed and np.isnan(plain.elpd) and abs(plain.pointwise[-1] - wanted) > 5
        rest = plain.khats <= plain.limit
        assert loo.matched == N - rest.sum()
        np.testing.assert_array_equal(loo.pointwise[rest], plain.pointwise[rest])
        np.testing.assert_array_equal(loo.khats[rest], plain.khats[rest])


def test_of_a_row_of_weight_two_one_is_left_out():
    counts, errors = np.full(N, 2.0), []
    for seed in range(SEEDS):
        found = drawn(counts, seed).loo()
        assert found.matched and found.khats[-1] <= found.limit
        errors.append(found.pointwise[-1] - left_out(counts, N - 1))
    assert_holds(law(errors))


def test_draws_of_an_approximation_are_weighted(monkeypatch):
    """A mean-field q that is wider than the posterior; without its weights the answer is another."""
    mean, covariance = exact(np.ones(N))
    wanted = left_out(np.ones(N), N - 1)

    def loo(seed, width):
        sd = width * np.sqrt(np.diag(covariance))
        phi = {"mean": mean, "rho": np.asarray(inverse_softplus(jnp.asarray(sd)))}
        draws = mean + sd * np.random.default_rng(seed).normal(size=(1, 4000, D))
        q = Fitted(positions=draws, family="mean field", phi=phi, log_weights=np.zeros(1000))
        return tr.Posterior(MODEL, tr.Data(Y, given=X), tr.MeanField(), 0, q).loo()

    assert_holds(law([loo(seed, 1.3).pointwise[-1] - wanted for seed in range(SEEDS)], 0.2))
    narrow = loo(0, 0.4)
    assert narrow.khats[-1] > narrow.limit, "its own weights have a tail, whatever the moved draws' weights"
    right = moment_matching.leave_out

    def unweighted(model, data, positions, log_weights, *rest):
        return right(model, data, positions, np.zeros_like(log_weights), *rest)

    monkeypatch.setattr("tractable.posterior.predictive.leave_out", unweighted)
    assert broken(law([loo(seed, 1.3).pointwise[-1] - wanted for seed in range(4)], 0.2))


def test_a_bounded_parameter_is_moved_on_the_real_line():
    """Exponential times with a gamma prior of their rate, one of them far longer than the others."""
    y = np.append(np.random.default_rng(2).exponential(size=10), 60.0)
    model = tr.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params: dist.Exponential(params["rate"]))
    shape, scale = 2 + len(y), 1 + y.sum()
    wanted = stats.lomax(shape - 1, scale=scale - y[-1]).logpdf(y[-1])
    errors = []
    for seed in range(SEEDS):
        rate = np.random.default_rng(seed).gamma(shape, 1 / scale, (4, 1000, 1))
        found = tr.Posterior(model, tr.Data(y), tr.NUTS(), 0, Draws(positions=np.log(rate))).loo()
        assert found.matched == 1 and found.khat <= found.limit
        errors.append(found.pointwise[-1] - wanted)
    assert_holds(law(errors, 0.3))


def test_what_is_not_moved_keeps_its_refusal(monkeypatch):
    """A row that counts half, whose density is the mean of a function far from all draws; and a larger model."""
    found = [drawn(np.full(N, 0.5)).loo()]
    monkeypatch.setattr("tractable.posterior.predictive.MOST_PARAMETERS", D - 1)
    for loo in (*found, drawn().loo()):
        assert not loo.matched and np.isnan(loo.elpd) and N - 1 in loo.failed and "is not known" in str(loo)
