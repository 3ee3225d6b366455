"""The horseshoe prior: its density and coordinates against closed forms, its posterior against sums over a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from montecarlo import assert_holds, error
from scipy import stats
from scipy.special import exp1, logsumexp

import tractable as tr
from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import log_density
from tractable.glm import horseshoe
from tractable.glm.horseshoe import Horseshoe, scale_for, with_horseshoe
from tractable.glm.linear import bayesian_linear, generalised_linear
from tractable.tables.encoder import encode, fit_encoder
from tractable.tables.models import table_model

pytestmark = pytest.mark.laws

DRAWS = 100_000


def log_unit_density(x: np.ndarray) -> np.ndarray:
    """log of e^u E₁(u) / √(2π³), u = x²/2 (Carvalho, Polson & Scott 2010), for |x| < 30."""
    u = np.square(x) / 2
    return u + np.log(exp1(u)) - 0.5 * np.log(2 * np.pi**3)


@pytest.mark.test
def test_density_is_the_closed_form():
    with jax.enable_x64(True):
        x = np.exp(np.linspace(-50, 3, 300)) * np.where(np.arange(300) % 2, 1, -1)
        np.testing.assert_allclose(horseshoe.log_density(jnp.asarray(x)), log_unit_density(x), atol=2e-6)
        far = np.exp(np.linspace(5, 40, 50))  # e^u E₁(u) → 1/u − 1/u²
        tail = np.log(2 / far**2) + np.log1p(-2 / far**2) - 0.5 * np.log(2 * np.pi**3)
        np.testing.assert_allclose(horseshoe.log_density(jnp.asarray(far)), tail, atol=2e-6)
        tau, w = 0.3, np.array([0.01, -2.0, 0.4])
        expected = stats.halfcauchy.logpdf(tau, scale=0.1) + (log_unit_density(w / tau) - np.log(tau)).sum()
        got = Horseshoe(3, 0.1).log_prob(np.concatenate([[tau], w]))
        np.testing.assert_allclose(got, expected, atol=1e-5)
        wrong = expected + len(w) * np.log(tau)  # a mutant without the Jacobian of w/τ
        assert abs(got - wrong) > 1


@pytest.mark.test
def test_coordinates_are_normal_scores():
    """The map and its inverse agree, its Jacobian is the derivative, and the density of z is that of N(0, 1)."""
    prior = Horseshoe(2, 0.1)
    for double, tolerance in [(True, 1e-6), (False, 2e-5)]:
        with jax.enable_x64(double):
            to = horseshoe._FromNormals()
            for z in ([0.3, 1.2, -0.7], [-2.0, 4.5, 1e-3], [1.0, -6.0, 1e-8]):
                z = jnp.array(z, float)
                v = to(z)
                np.testing.assert_allclose(to._inverse(v), z, rtol=tolerance, atol=1e-12)
                assert bool(prior.support(v))
                derivative = np.linalg.slogdet(np.asarray(jax.jacfwd(to)(z), np.float64))[1]
                np.testing.assert_allclose(to.log_abs_det_jacobian(z, v), derivative, atol=30 * tolerance)
                density = prior.log_prob(v) + to.log_abs_det_jacobian(z, v)
                # Of log τ: a hyperbolic secant.
                own = stats.halfcauchy.logpdf(np.exp(float(z[0])), scale=0.1) + float(z[0])
                np.testing.assert_allclose(density, own + stats.norm.logpdf(z[1:]).sum(), atol=30 * tolerance)
    at_pole = to(jnp.zeros(3))
    assert np.isfinite(prior.log_prob(at_pole)) and bool(jnp.all(at_pole[1:] == 0))


@pytest.mark.test
def test_draws_are_of_the_scale_mixture():
    """Of λ ~ HalfCauchy, τ ~ HalfCauchy drawn by themselves, by their quantiles in logs."""
    draws = np.asarray(Horseshoe(1, 0.2).sample(jax.random.key(0), (DRAWS,)), np.float64)
    rng = np.random.default_rng(0)
    tau = 0.2 * np.abs(rng.standard_cauchy(DRAWS))
    w = tau * np.abs(rng.standard_cauchy(DRAWS)) * rng.normal(size=DRAWS)
    for got, wanted in [(draws[:, 0], tau), (draws[:, 1], np.abs(w)), (draws[:, 1], w)]:
        got = np.abs(got) if wanted.min() > 0 else got
        assert stats.ks_2samp(got, wanted).pvalue > 1e-4


def exact(estimates: np.ndarray, error_sd: float, scale: float) -> np.ndarray:
    """Posterior means of w where each estimate is N(w_j, error_sd²), by sums over log τ and log λ."""
    logs = np.arange(-14.0, 12.0, 0.02)
    secant = -np.log(np.cosh(logs))  # of the log of a half-Cauchy variable
    totals, means = [], []
    for log_tau in np.arange(-12.0, 4.0, 0.05):
        variance = np.exp(2 * (log_tau + logs))[:, None]
        terms = secant[:, None] + stats.norm.logpdf(estimates, 0, np.sqrt(variance + error_sd**2))
        each = logsumexp(terms, axis=0)
        shrunk = (np.exp(terms - each) * variance / (variance + error_sd**2)).sum(0) * estimates
        totals.append(each.sum() - np.log(np.cosh(log_tau - np.log(scale))))
        means.append(shrunk)
    weights = np.exp(totals - logsumexp(totals))
    return weights @ np.array(means)


def test_posterior_is_that_of_a_grid():
    """Inputs that are orthogonal, so that the weights are independent given τ."""
    rng, rows, features = np.random.default_rng(1), 64, 12
    x = np.linalg.qr(rng.normal(size=(rows, features)))[0] * np.sqrt(rows)
    w = np.array([2.0, -0.6, 0.3] + [0.0] * (features - 3))
    y = x @ w + rng.normal(size=rows)
    scale = scale_for(features, float(rows))
    model = with_horseshoe(bayesian_linear(features, 1.0, 2.5), scale)
    assert model.names[0] == "scale of weights" and model.names[1] == "weights[0]"
    posterior = tr.infer(model, tr.Data(y, x), tr.NUTS(), seed=0)
    assert posterior.report().verdict != "reject"
    wanted = exact(x.T @ y / rows, 1 / np.sqrt(rows), scale)
    table = posterior.summary().iloc[1:]
    assert_holds({f"w{i}": error(table["mean"].iloc[i], wanted[i], 5.33 * table["mcse_mean"].iloc[i])
                  for i in range(features)})  # fmt: skip
    assert np.abs(wanted[3:]).max() < 0.1 and wanted[0] > 1.8  # the law tells shrinkage of noise from that of signals


def test_a_table_of_few_effects():
    """``fit`` names the effects, in the table's units; without a prior the null effects are several times larger."""
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(rng.normal(size=(80, 20)) * 10, columns=[f"x{i}" for i in range(20)])
    frame["y"] = 0.2 * frame["x0"] - 0.1 * frame["x1"] + rng.normal(size=80)
    sparse, usual = (tr.fit(frame, "y", prior=prior).summary()["mean"] for prior in ("horseshoe", None))
    assert list(sparse.index[:3]) == ["intercept", "scale of weights", "x0"]
    null = [f"x{i}" for i in range(2, 20)]
    assert sparse[null].abs().mean() < 0.5 * usual[null].abs().mean()
    np.testing.assert_allclose(sparse[["x0", "x1"]], [0.2, -0.1], atol=0.05)


@pytest.mark.test
@pytest.mark.filterwarnings("ignore:Column")
def test_density_of_a_table_is_that_of_its_weights():
    """A table's model has the density of the model without the prior, but for the prior of the weights."""
    frame = pd.DataFrame({"a": np.arange(12.0), "b": np.tile(["u", "v", "w"], 4), "y": np.arange(12) % 2})
    encoder = fit_encoder(frame, "y")
    rows = encode(encoder, frame)
    data = tr.Data(rows.y, rows.given).arrays()
    usual, sparse = table_model(encoder), table_model(encoder, None, "horseshoe")
    weights = jnp.array([0.5, -0.2, 0.1])
    both = {"intercept": jnp.asarray(0.3), "weights": weights}
    given = {"intercept": jnp.asarray(0.3), "sparse": jnp.concatenate([jnp.array([0.2]), weights])}
    one = log_density(usual, data, jacobian=False)(usual.unconstrain(both))
    one -= usual.prior["weights"].log_prob(weights).sum()
    other = log_density(sparse, data, jacobian=False)(sparse.unconstrain(given))
    other -= sparse.prior["sparse"].log_prob(given["sparse"])
    np.testing.assert_allclose(one, other, rtol=1e-5)
    # Text has more effects than weights; they are those of the same weights under the usual prior.
    names, effects = zip(*((model.table.view.names, model.table.view) for model in (usual, sparse)), strict=True)
    assert names[1] == (names[0][0], "scale of weights", *names[0][1:])
    order = [usual.names.index("intercept"), *(usual.names.index(f"weights[{name}]") for name in encoder.features)]
    flat = np.zeros(len(usual.names))
    flat[order] = [0.3, *weights]
    both = np.zeros(len(sparse.names))
    both[[sparse.names.index(each) for each in ("intercept", "scale of weights")]] = 0.3, 0.2
    both[[sparse.names.index(f"weights[{name}]") for name in encoder.features]] = weights
    np.testing.assert_allclose(np.delete(effects[1].values(both), 1), effects[0].values(flat), rtol=1e-6)


@pytest.mark.test
def test_what_has_no_horseshoe_is_refused():
    with pytest.raises(ModelError, match="one linear predictor"):
        with_horseshoe(generalised_linear(2, "categorical", 3), 0.1)
    frame = pd.DataFrame({"x": np.arange(10.0), "y": np.arange(10.0) % 3})
    with pytest.raises(SettingsError, match="expects 'normal', 'horseshoe'; got 'lasso'"):
        tr.fit(frame, "y", prior="lasso")
    with pytest.raises(SettingsError, match="formula takes priors by name"):
        tr.fit(frame, "y ~ x", prior="horseshoe")
