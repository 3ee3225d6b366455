"""Points: maximum likelihood and maximum a posteriori are where algebra says."""

import math

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import assert_holds, error

import tractable as tr
from tractable.engine import search
from tractable.gallery import conjugate
from tractable.glm.linear import generalised_linear, with_priors

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(7)
N = 60
X = RNG.normal(size=(N, 3)) * np.array([1.0, 2.0, 0.5])
Y = X @ np.array([1.0, -0.5, 0.0]) + 0.7 * RNG.normal(size=N)
LABELS = (RNG.random(N) < 1 / (1 + np.exp(-X @ np.array([1.0, -1.0, 0.5])))).astype(int)
FLIPS = (RNG.random(N) < 0.3).astype(int)
NOISE = 0.7


def linear(prior: dist.Distribution) -> tr.Model:
    return tr.Model({"w": prior}, lambda params, x: dist.Normal(x @ params["w"], NOISE))


def normals(sd: float) -> dist.Distribution:
    return dist.Normal(jnp.zeros(3), sd).to_event(1)


def logistic(prior: dist.Distribution) -> tr.Model:
    return tr.Model({"w": prior}, lambda params, x: dist.Bernoulli(logits=x @ params["w"]))


def coin(alpha: float, beta: float) -> tr.Model:
    return tr.Model({"theta": dist.Beta(alpha, beta)}, lambda params: dist.Bernoulli(params["theta"]))


def newton(x: np.ndarray, labels: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray]:
    """Logistic regression in float64: the maximum and the inverse of the information."""
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ w))
        information = (x.T * (p * (1 - p))) @ x + precision * np.eye(len(w))
        w = w + np.linalg.solve(information, x.T @ (labels - p) - precision * w)
    return w, np.linalg.inv(information)


def assert_maximum(posterior: tr.Posterior, rows: int) -> None:
    """|∇|∞ ≤ 1e-8 N, and a curvature that is positive."""
    assert posterior.found["slope"] <= 1e-8 * rows, posterior.found
    assert posterior.found["eigenvalue"] > 0
    assert posterior.report().verdict == "trust", posterior.report()


def assert_errors(posterior: tr.Posterior, covariance: np.ndarray) -> None:
    np.testing.assert_allclose(posterior.found["covariance"], covariance, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(posterior.sd()["w"], np.sqrt(np.diag(covariance)), rtol=1e-5)


@pytest.mark.test
def test_ordinary_least_squares():
    posterior = tr.infer(linear(normals(1.0)), tr.Data(Y, X), tr.MLE())
    assert_maximum(posterior, N)
    np.testing.assert_allclose(posterior.mean()["w"], np.linalg.lstsq(X, Y)[0], rtol=1e-6)
    assert_errors(posterior, NOISE**2 * np.linalg.inv(X.T @ X))


@pytest.mark.test
def test_ridge():
    """A normal prior of sd s is ridge regression with α = σ²/s²; its errors are the posterior's sds."""
    posterior = tr.infer(linear(normals(0.8)), tr.Data(Y, X), tr.MAP())
    exact = conjugate.linear_regression(X, Y, NOISE, 0.8)
    assert_maximum(posterior, N)
    alpha = (NOISE / 0.8) ** 2
    np.testing.assert_allclose(posterior.mean()["w"], np.linalg.solve(X.T @ X + alpha * np.eye(3), X.T @ Y), rtol=1e-6)
    assert_errors(posterior, exact.covariance)


def test_logistic_regression():
    for method, precision in ((tr.MLE(), 0.0), (tr.MAP(starts=2), 0.25)):
        posterior = tr.infer(logistic(normals(2.0)), tr.Data(LABELS, X), method, verify=None)
        wanted, covariance = newton(X, LABELS, precision)
        assert_maximum(posterior.verify(), N)
        np.testing.assert_allclose(posterior.mean()["w"], wanted, rtol=1e-6)
        assert_errors(posterior, covariance)


def test_coin():
    """The mean of the flips; with a Beta prior (a + s − 1)/(a + b + N − 2): the mode of θ, not of its logit."""
    s, data = FLIPS.sum(), tr.Data(FLIPS)
    mle = tr.infer(coin(3.0, 4.0), data, tr.MLE())
    np.testing.assert_allclose(mle.mean()["theta"], s / N, rtol=1e-6)
    np.testing.assert_allclose(mle.sd()["theta"], math.sqrt(s / N * (1 - s / N) / N), rtol=1e-5)
    map_ = tr.infer(coin(3.0, 4.0), data, tr.MAP())
    np.testing.assert_allclose(map_.mean()["theta"], (3 + s - 1) / (3 + 4 + N - 2), rtol=1e-6)
    np.testing.assert_allclose(map_.mean()["theta"], conjugate.beta_bernoulli(FLIPS, 3, 4).mode, rtol=1e-6)
    for posterior in (mle, map_):
        assert posterior.found["slope"] <= 1e-8 * N


def test_laplace_prior_leaves_exact_zeros():
    """KKT: |∇ᵢ log p(y|w)| ≤ λ where wᵢ = 0, = λ sign(wᵢ) elsewhere."""
    rate = 12.0
    posterior = tr.infer(linear(dist.Laplace(jnp.zeros(3), 1 / rate).to_event(1)), tr.Data(Y, X), tr.MAP())
    w = np.asarray(posterior.mean()["w"], np.float64)
    slope = X.T @ (Y - X @ w) / NOISE**2
    zero = w == 0
    assert zero.any() and not zero.all(), w
    assert np.all(np.abs(slope[zero]) <= rate + 1e-6)
    np.testing.assert_allclose(slope[~zero], rate * np.sign(w[~zero]), atol=1e-6 * N)
    without = tr.infer(linear(dist.Laplace(jnp.zeros(3), 1 / rate).to_event(1)), tr.Data(Y, X), tr.MLE())
    np.testing.assert_allclose(without.mean()["w"], np.linalg.lstsq(X, Y)[0], rtol=1e-5)


@pytest.mark.parametrize("scale", [0.03, 0.1, 0.3, 1.0])
def test_laplace_prior_of_a_logistic_regression(scale):
    """KKT again, where the search passes through exact zeros on its way: liblinear's answer is ours."""
    generator = np.random.default_rng(4)
    x = generator.normal(size=(60, 4))
    y = (generator.random(60) < 1 / (1 + np.exp(-x @ [2.0, -1.0, 0.0, 0.1]))).astype(float)
    priors = {"intercept": dist.Laplace(0.0, scale), "weights": dist.Laplace(0.0, scale)}
    posterior = tr.infer(with_priors(generalised_linear(4, "bernoulli"), priors), tr.Data(y, x), tr.MAP())
    mode = posterior.mean()
    a, w = float(mode["intercept"]), np.asarray(mode["weights"], np.float64)
    design, theta = np.column_stack([np.ones(60), x]), np.concatenate([[a], w])
    slope = design.T @ (y - 1 / (1 + np.exp(-design @ theta)))
    zero = theta == 0
    assert np.all(np.abs(slope[zero]) <= 1 / scale + 1e-6)
    np.testing.assert_allclose(slope[~zero], np.sign(theta[~zero]) / scale, atol=1e-5)
    assert posterior.report().verdict != "reject"


@pytest.mark.test
@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_equivariance(scale):
    """In other units of x the weights are in other units, and nothing else has changed."""
    model = linear(normals(1.0))
    one = tr.infer(model, tr.Data(Y, X), tr.MLE())
    other = tr.infer(model, tr.Data(Y, scale * X), tr.MLE())
    np.testing.assert_allclose(scale * other.mean()["w"], one.mean()["w"], rtol=1e-6)
    np.testing.assert_allclose(scale * other.sd()["w"], one.sd()["w"], rtol=1e-5)


@pytest.mark.parametrize("low", [0.0, jnp.array([-1.0, 0.0])])
def test_bounds_may_be_arrays(low):
    """The model is new, so its way to the reals is first asked for within a trace."""
    high = jnp.array([1.0, 3.0])
    y = np.array([0.4, 1.9]) + np.random.default_rng(1).normal(size=(50, 2))
    model = tr.Model({"w": dist.Uniform(low, high)}, lambda params: dist.Normal(params["w"], 1.0).to_event(1))
    posterior = tr.infer(model, y, tr.MAP(), verify=None)
    np.testing.assert_allclose(posterior.mean()["w"], y.mean(0), atol=1e-5)
    inside = (y.mean(0) - low) / (high - low)
    position = model.position_of({"w": jnp.asarray(y.mean(0))})
    np.testing.assert_allclose(position, np.log(inside / (1 - inside)), rtol=1e-9)


def test_scale_does_not_move_with_its_parametrisation():
    """σ̂² = mean squared residual, though the climb is over log σ: no log-determinant in a maximum."""
    model = tr.Model(
        {"mu": dist.Normal(0, 10.0), "sigma": dist.HalfNormal(5.0)},
        lambda params: dist.Normal(params["mu"], params["sigma"]),
    )
    posterior = tr.infer(model, tr.Data(Y + 3), tr.MLE(), verify=None)
    np.testing.assert_allclose(posterior.mean()["mu"], (Y + 3).mean(), rtol=1e-6)
    np.testing.assert_allclose(posterior.mean()["sigma"], Y.std(), rtol=1e-6)
    np.testing.assert_allclose(posterior.sd()["sigma"], Y.std() / math.sqrt(2 * N), rtol=1e-4)


def test_map_becomes_mle_as_the_prior_widens():
    wanted = np.linalg.lstsq(X, Y)[0]
    gaps = [
        np.abs(tr.infer(linear(normals(sd)), tr.Data(Y, X), tr.MAP()).mean()["w"] - wanted).max()
        for sd in (0.3, 3.0, 3000.0)
    ]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 1e-6, gaps


@pytest.mark.test
def test_starts_agree_or_say_so():
    """Two modes: the higher is kept, and the report tells that starts disagree."""

    def log_density(x):
        return jnp.logaddexp(-0.5 * ((x["x"] - 3) / 0.3) ** 2, -1 - 0.5 * ((x["x"] + 3) / 0.3) ** 2)

    model = tr.Model.from_log_density(lambda x: log_density(x), {"x": 0.0})
    posterior = tr.infer(model, None, tr.MAP(starts=8))
    assert abs(posterior.mean()["x"] - 3) < 1e-3
    starts = next(check for check in posterior.report().checks if check.name == "starts")
    assert starts.verdict == "caution" and abs(starts.value - 1) < 1e-3


def test_minibatches_climb_to_the_same_place():
    posterior = tr.infer(linear(normals(0.8)), tr.Data(Y, X), tr.MAP(optimizer="adam", batch_size=15, steps=3000))
    exact = conjugate.linear_regression(X, Y, NOISE, 0.8)
    assert np.all(np.abs(posterior.mean()["w"] - exact.mean) < 0.1 * exact.sd)


@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_separable_classes_have_no_maximum():
    """A likelihood without a maximum gives no standard errors that look good."""
    labels = (X[:, 0] > 0).astype(int)
    posterior = tr.infer(logistic(normals(2.0)), tr.Data(labels, X), tr.MLE(steps=100))
    assert posterior.report().verdict != "trust" or np.max(posterior.sd()["w"]) > 100, posterior.report()


@pytest.mark.test
@pytest.mark.parametrize("prior", [True, False])
def test_curvature_by_chunks_is_the_whole(prior, monkeypatch):
    """Many rows are looked at some at a time, the prior once."""
    y = np.random.default_rng(8).normal(1.0, 2.0, 50)

    def curvature() -> np.ndarray:
        model = tr.Model(  # a new one, so that nothing compiled is found
            {"m": dist.Normal(0.0, 3.0), "s": dist.LogNormal(0.0, 1.0)}, lambda p: dist.Normal(p["m"], p["s"])
        )
        batch = search.all_rows(tr.Data(y))
        return np.asarray(search.curvature(model, jnp.array([0.4, 0.2]), batch, prior, False))

    at_once = curvature()
    monkeypatch.setattr(search, "CURVED", 16)
    assert_holds({"curvature": error(curvature(), at_once, 1e-9)})
