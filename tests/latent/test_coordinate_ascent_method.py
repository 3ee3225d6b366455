"""Coordinate ascent as a method: its models' densities, where it ends, and what it says of that."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import assert_holds, error, z_mean
from scipy import stats
from sklearn.datasets import load_diabetes

import tractable as tr
from tractable.core.errors import ModelError, SettingsError
from tractable.latent.conjugate_models import Normal, normal_gamma_posterior
from tractable.latent.mixture import Gaussians
from tractable.latent.variational_mixture import log_mixture_prior
from tractable.latent.variational_regression import Regression
from tractable.models import bayesian_gaussian_mixture, bayesian_linear_regression, normal_gamma

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(5)
Y = RNG.normal(2.0, 3.0, 40)
PAIR = normal_gamma(1.0, 0.5, 2.0, 3.0)
CLUSTERS = np.concatenate([RNG.normal(-2, 0.5, (60, 2)), RNG.normal(2, 0.5, (40, 2))])
ALPHA, BETA, NU, M0 = 0.7, 2.0, 4.0, np.array([0.5, -0.3])
WEIGHTS, MEANS = np.array([0.3, 0.7]), np.array([[0.1, 0.4], [-0.2, 1.0]])
SCALE = np.array([[1.5, 0.3], [0.3, 0.8]])
FULL = np.array([[[1.0, 0.2], [0.2, 0.6]], [[0.7, -0.1], [-0.1, 1.1]]])


def by_scipy(kind: str, covariances: np.ndarray) -> float:
    """log p(π) + Σ log p(μ_k | Σ_k) + log p(Σ_k), from the textbook's names."""
    value = stats.dirichlet([ALPHA, ALPHA]).logpdf(WEIGHTS)
    if kind == "full":
        value += sum(stats.invwishart(NU, SCALE).logpdf(c) for c in covariances)
        matrices = covariances
    elif kind == "tied":
        value += stats.invwishart(NU, SCALE).logpdf(covariances)
        matrices = [covariances] * 2
    elif kind == "diagonal":
        value += sum(
            stats.invgamma(NU / 2, scale=s / 2).logpdf(v)
            for c in covariances
            for v, s in zip(c, np.diag(SCALE), strict=True)
        )
        matrices = [np.diag(c) for c in covariances]
    else:
        value += sum(stats.invgamma(2 * NU / 2, scale=2 * SCALE[0, 0] / 2).logpdf(c) for c in covariances)
        matrices = [c * np.eye(2) for c in covariances]
    return value + sum(stats.multivariate_normal(M0, c / BETA).logpdf(m) for m, c in zip(MEANS, matrices, strict=True))


@pytest.mark.parametrize("kind", ["full", "tied", "diagonal", "spherical"])
def test_the_prior_of_a_mixture_is_the_textbooks(kind):
    given = {
        "full": FULL,
        "tied": FULL[0],
        "diagonal": np.array([[1.0, 0.6], [0.7, 1.1]]),
        "spherical": np.array([0.9, 1.3]),
    }
    scale = {"diagonal": np.diag(SCALE), "spherical": SCALE[0, 0]}.get(kind, SCALE)
    model = bayesian_gaussian_mixture(
        2,
        2,
        kind,
        weight_concentration=ALPHA,
        mean_prior=M0,
        mean_precision=BETA,
        degrees_of_freedom=NU,
        covariance_prior=scale,
    )
    theta = Gaussians(jnp.array(WEIGHTS), jnp.array(MEANS), jnp.array(given[kind]))
    assert_holds({"density": error(model.log_prior(theta), by_scipy(kind, given[kind]), 1e-9)})


def test_the_prior_of_a_process_is_a_density():
    """Of K = 1 the weights are (v, 1 − v) with v ~ Beta(1, α): all else cancels in a ratio."""
    model = bayesian_gaussian_mixture(1, 1, "spherical", process=True, weight_concentration=2.5)
    theta = Gaussians(jnp.array([0.3, 0.7]), jnp.zeros((2, 1)), jnp.ones(2))
    ratio = model.log_prior(theta) - model.log_prior(theta._replace(weights=jnp.array([0.6, 0.4])))
    beta = stats.beta(1, 2.5)
    assert_holds({"ratio": error(ratio, beta.logpdf(0.3) - beta.logpdf(0.6), 1e-10)})


def test_one_component_knows_the_evidence():
    """q is the posterior of a single normal: log p(x, θ) − log q(θ) is the bound for every θ (LAWS: the evidence)."""
    model = bayesian_gaussian_mixture(1, 2, weight_concentration=1.0)
    posterior = tr.infer(model, tr.Data(CLUSTERS), tr.CoordinateAscent(starts=1, draws=50), seed=0)
    q = [posterior.found[f"lambda {i}"] for i in range(5)]
    after = type(model.conjugate.prior)(*q)
    for i in range(3):
        theta = jax.tree.map(lambda a, i=i: jnp.asarray(a[0, i]), posterior.draws)
        joint = model.log_prior(theta) + jnp.sum(model.log_prob(theta, jnp.array(CLUSTERS)))
        bound = joint - log_mixture_prior(after, "full", False, theta)
        assert_holds({f"draw {i}": error(bound, posterior.found["objective"], 1e-7)})


def test_the_pair_is_told_with_its_width():
    posterior = tr.infer(PAIR, tr.Data(Y), tr.CoordinateAscent(starts=1), seed=0)
    exact = normal_gamma_posterior(Y, 1.0, 0.5, 2.0, 3.0)
    assert posterior.report().verdict == "trust"
    assert posterior.found["objective"] < exact.log_evidence < posterior.found["objective"] + 0.05
    tau = exact.shape / exact.rate
    draws = posterior.draws
    assert isinstance(draws, Normal)
    variance = 1 / (exact.strength * tau)
    assert_holds(
        {
            "mean": z_mean(draws.mean.ravel(), exact.mean, variance),
            "precision": z_mean(draws.precision.ravel(), tau, tau**2 / exact.shape),
        }
    )
    again = tr.infer(PAIR, tr.Data(Y), tr.MAP(), seed=0)  # one model, any method
    assert abs(again.mean().mean - exact.mean) < 0.05


def test_a_regression_predicts():
    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std()
    model = bayesian_linear_regression(10, (1.0, 1.0))
    posterior = tr.infer(model, tr.Data(y, x), tr.CoordinateAscent(starts=1), seed=0)
    theta = posterior.mean()
    assert isinstance(theta, Regression)
    told = posterior.predict(x[:50])
    assert_holds({"mean": error(told.mean, x[:50] @ theta.weights, 0.02)})
    assert np.all(told.sd > told.aleatoric)
    covered = posterior.predict(x)
    assert abs(np.mean((covered.lower < y) & (y < covered.upper)) - 0.9) < 0.05


def test_superfluous_components_are_left_alone(tmp_path):
    model = bayesian_gaussian_mixture(5, 2)
    posterior = tr.infer(model, tr.Data(CLUSTERS), tr.CoordinateAscent(starts=3), seed=1)
    weights = np.sort(posterior.mean().weights)
    assert_holds({"weights": error(weights[-2:], [0.4, 0.6], 0.03), "others": error(weights[:3].sum(), 0, 0.02)})
    assert posterior.report().verdict == "trust"
    posterior.save(tmp_path / "run")
    back = tr.load(tmp_path / "run", model, tr.Data(CLUSTERS))
    assert_holds({"mean": error(back.mean().weights, posterior.mean().weights, 1e-12)})
    np.save(tmp_path / "x.npy", CLUSTERS)
    on_file = tr.infer(
        model, tr.Data(tmp_path / "x.npy", resident=False), tr.CoordinateAscent(starts=3, chunk=32), seed=1
    )
    assert_holds({"bound": error(on_file.found["objective"], posterior.found["objective"], 1e-3)})


def test_labels_are_matched_from_draw_to_draw():
    """Draws whose labels were exchanged at random come back as they were, up to one order of all."""
    model = bayesian_gaussian_mixture(3, 2, "diagonal")
    x = np.concatenate([CLUSTERS, RNG.normal([2, -3], 0.6, (50, 2))])
    posterior = tr.infer(model, tr.Data(x), tr.CoordinateAscent(starts=2, draws=200), seed=0)
    assert posterior.unconstrained is not None
    orders = jnp.array([np.random.default_rng(s).permutation(3) for s in range(200)])
    switched = jax.vmap(
        lambda u, order: model.space.ravel(
            model.unconstrain(model.symmetry.permute(model.constrain(model.space.unravel(u)), order))
        )
    )(jnp.asarray(posterior.unconstrained[0]), orders)
    belief = dataclasses.replace(posterior.belief, positions=np.asarray(switched)[None])
    mixed = dataclasses.replace(posterior, belief=belief)
    back = mixed.relabelled()
    order = np.argsort(posterior.mean().means[:, 0] + 10 * posterior.mean().means[:, 1])
    again = np.argsort(back.mean().means[:, 0] + 10 * back.mean().means[:, 1])
    assert_holds(
        {
            "means": error(back.mean().means[again], posterior.mean().means[order], 1e-9),
            "sds": error(back.sd().means[again], posterior.sd().means[order], 1e-9),
        }
    )
    assert mixed.sd().means.min() > 5 * back.sd().means.max()  # what switching does to a summary
    with pytest.raises(SettingsError, match="of a mixture's parameters"):
        tr.infer(PAIR, tr.Data(Y), tr.CoordinateAscent(starts=1, draws=20)).relabelled()


def test_minibatches_by_natural_gradients():
    model = bayesian_gaussian_mixture(3, 2)
    whole = tr.infer(model, tr.Data(CLUSTERS), tr.CoordinateAscent(starts=3), seed=1)
    parts = tr.infer(model, tr.Data(CLUSTERS), tr.CoordinateAscent(starts=3, batch_size=25, epochs=60), seed=1)
    bound = whole.found["objective"]
    assert bound - 0.01 * abs(bound) < parts.found["objective"] <= bound + 1e-6
    assert parts.found["fall"] == 0


@pytest.mark.test
def test_other_models_are_refused():
    cook: Any = tr.Model.from_log_density(lambda x: -0.5 * x**2, 0.0)
    with pytest.raises(ModelError, match="needs closed forms"):
        tr.infer(cook, None, tr.CoordinateAscent())
    with pytest.raises(ModelError, match="sums over z"):
        tr.infer(PAIR, tr.Data(Y), tr.EM())
