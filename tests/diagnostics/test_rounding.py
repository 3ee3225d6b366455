"""Rounding is not taken for information: large counts are computed in double precision, and noise is told."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import tractable as tr
from tractable.core.errors import TractableError
from tractable.diagnostics.weights import shares
from tractable.estimators import BayesianCountRegression
from tractable.glm.linear import generalised_linear

pytestmark = [pytest.mark.laws, pytest.mark.filterwarnings("ignore:Do not use this posterior")]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 2))
SHAPE = np.exp(0.2 * X[:, 0] - 0.1 * X[:, 1])


@pytest.fixture(autouse=True)
def in_single():
    """The other tests compute in double precision throughout."""
    with jax.enable_x64(False):
        yield


def poisson(scale):
    """Counts, and the maximum and sds of (a, w) by Newton in double precision."""
    y = np.random.default_rng(1).poisson(scale * SHAPE).astype(float)
    design, beta = np.column_stack([np.ones(200), X]), np.array([np.log(y.mean()), 0.0, 0.0])
    for _ in range(50):
        mean = np.exp(design @ beta)
        precision = design.T @ (design * mean[:, None])
        beta = beta + np.linalg.solve(precision, design.T @ (y - mean))
    return y, beta, np.sqrt(np.diag(np.linalg.inv(precision)))


def assert_right(mean, sd, wanted, sds):
    assert np.max(np.abs(np.asarray(mean, np.float64) - wanted) / sds) < 0.15
    np.testing.assert_allclose(np.asarray(sd, np.float64) / sds, 1, atol=0.12)


METHODS = {"inla": tr.INLA(), "laplace": tr.Laplace(), "nuts": tr.NUTS(chains=2, draws=1000), "map": tr.MAP()}


@pytest.mark.test("inla-1000000000.0")
@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("name", METHODS)
def test_counts_of_any_size(name, scale):
    y, wanted, sds = poisson(scale)
    posterior = tr.infer(generalised_linear(2, "poisson"), tr.Data(y, given=X), METHODS[name], seed=0)
    mean, sd = posterior.mean(), posterior.sd()
    assert_right(np.r_[mean["intercept"], mean["weights"]], np.r_[sd["intercept"], sd["weights"]], wanted, sds)
    assert posterior.report().verdict == "trust"
    assert bool(posterior.found.get("double")) == (scale > 1e3)


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9, 1e12])
def test_counts_of_any_size_in_the_estimator(scale):
    y, wanted, sds = poisson(scale)
    fitted = BayesianCountRegression("poisson", random_state=0).fit(X, y)
    assert_right(np.r_[fitted.intercept_, fitted.coef_], np.r_[sds[0], fitted.coef_std_], wanted, sds)
    np.testing.assert_allclose(fitted.predict(X), np.exp(wanted[0] + X @ wanted[1:]), rtol=3 / np.sqrt(scale))
    assert fitted.report_.verdict == "trust"


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5, 1e8])
@pytest.mark.parametrize("name", ["laplace", "nuts", "meanfield"])
def test_numbers_far_from_zero(name, offset):
    """y ~ N(μ, 1), μ ~ N(offset, 10²)."""
    y = offset + np.random.default_rng(0).normal(size=50)
    precision = 1 / 100 + 50
    method = METHODS.get(name, tr.MeanField())
    model = tr.Model({"mu": dist.Normal(offset, 10.0)}, lambda p: dist.Normal(p["mu"], 1.0))
    posterior = tr.infer(model, tr.Data(y), method, seed=0)
    sd = precision**-0.5
    assert abs(float(posterior.mean()["mu"]) - (offset / 100 + y.sum()) / precision) < 0.15 * sd
    assert float(posterior.sd()["mu"]) == pytest.approx(sd, rel=0.12)
    assert posterior.report().verdict == "trust"


def of_scale(family, k):
    """A model of one parameter whose data are of size k, data, and the exact posterior."""
    rng, n = np.random.default_rng(0), 40
    if family == "exponential":
        y, prior = rng.exponential(k, n), dist.Gamma(2.0, 2.0 * k)
        return (
            tr.Model({"t": prior}, lambda p: dist.Exponential(p["t"])),
            y,
            stats.gamma(2 + n, 0, 1 / (2 * k + y.sum())),
        )
    if family == "gamma":
        y, prior = rng.gamma(3.0, k, n), dist.Gamma(2.0, 2.0 * k)
        exact = stats.gamma(2 + 3 * n, 0, 1 / (2 * k + y.sum()))
        return tr.Model({"t": prior}, lambda p: dist.Gamma(3.0, p["t"])), y, exact
    if family == "binomial":
        y = rng.binomial(int(k), 0.3, n).astype(float)
        exact = stats.beta(2 + y.sum(), 2 + (k - y).sum())
        return tr.Model({"t": dist.Beta(2.0, 2.0)}, lambda p: dist.Binomial(int(k), p["t"])), y, exact
    if family == "negative binomial":
        y = rng.negative_binomial(5, 5 / (5 + k), n).astype(float)
        exact = stats.beta(2 + y.sum(), 2 + 5 * n)
        return tr.Model({"t": dist.Beta(2.0, 2.0)}, lambda p: dist.NegativeBinomialProbs(5.0, p["t"])), y, exact
    if family == "normal":
        y = k * (3 + rng.normal(size=n))
        exact = stats.norm(y.sum() / (n + 0.01), k * (n + 0.01) ** -0.5)
        return tr.Model({"t": dist.Normal(0.0, 10 * k)}, lambda p: dist.Normal(p["t"], k)), y, exact
    if family == "normal sd":
        y = k * rng.normal(size=n)
        exact = stats.gamma(2 + n / 2, 0, 1 / (1 + np.sum((y / k) ** 2) / 2))
        return tr.Model({"t": dist.Gamma(2.0, 1.0)}, lambda p: dist.Normal(0.0, k * p["t"] ** -0.5)), y, exact
    y = np.exp(np.log(k) + rng.normal(size=n))
    exact = stats.norm((np.log(k) / 1e4 + np.log(y).sum()) / (n + 1e-4), (n + 1e-4) ** -0.5)
    return tr.Model({"t": dist.Normal(np.log(k), 100.0)}, lambda p: dist.LogNormal(p["t"], 1.0)), y, exact


COUNTS, SIZES = (1e3, 1e6, 1e9), (1e-300, 1e-150, 1e-42, 1e-30, 1e-5, 1e5, 1e30, 1e42, 1e300)
SCALES = [(family, k) for family in ("binomial", "negative binomial") for k in COUNTS]
SCALES += [(family, k) for family in ("exponential", "gamma", "normal", "normal sd", "log-normal") for k in SIZES]


@pytest.mark.parametrize(("family", "k"), SCALES)
def test_every_family_is_right_or_refused_at_any_scale(family, k):
    """By Laplace; between 10⁻⁴² and 10³⁰, which double precision holds with its squares, it is right."""
    model, y, exact = of_scale(family, k)
    try:
        posterior = tr.infer(model, tr.Data(y), tr.Laplace(), seed=0)
    except TractableError as error:
        assert not 1e-42 <= k <= 1e30, error
        return
    if 1e-42 <= k <= 1e30 or posterior.report().verdict == "trust":
        assert abs(float(posterior.mean()["t"]) - exact.mean()) < 0.2 * exact.std()
        assert float(posterior.sd()["t"]) == pytest.approx(exact.std(), rel=0.12)


def test_one_model_in_both_precisions(tmp_path):
    """As runs on small and large counts, one after the other, and as saved and loaded."""
    model, sizes = generalised_linear(2, "poisson"), (1e2, 1e7, 1e2)
    found = [tr.infer(model, tr.Data(poisson(s)[0], given=X), tr.Laplace(), seed=0) for s in sizes]
    assert [bool(f.found.get("double")) for f in found] == [False, True, False]
    np.testing.assert_array_equal(found[0].mean()["weights"], found[2].mean()["weights"])
    data = tr.Data(poisson(1e7)[0], given=X)
    found[1].save(tmp_path / "a")
    loaded = tr.load(tmp_path / "a", model, data)
    np.testing.assert_array_equal(loaded.sd()["weights"], found[1].sd()["weights"])
    assert loaded.log_predictive(data).dtype == found[1].log_predictive(data).dtype
    np.testing.assert_array_equal(loaded.log_predictive(data), found[1].log_predictive(data))
    assert jnp.result_type(float) == jnp.float32


NOISY = {
    "cancelling": lambda t: jnp.sum(-0.5 * t["x"] ** 2 + 1e7 * (t["x"] + 1) - 1e7 * t["x"]),
    "far away": lambda t: -0.5 * jnp.sum((t["x"] - 3e7) ** 2),
    "a large constant in it": lambda t: -0.5 * jnp.sum(t["x"] ** 2) + (1e8 + jnp.sum(t["x"])) - jnp.sum(t["x"]),
}


@pytest.mark.parametrize("method", ["laplace", "nuts"])
@pytest.mark.parametrize("name", NOISY)
def test_a_density_of_noise_is_not_trusted(name, method):
    model = tr.Model.from_log_density(NOISY[name], {"x": jnp.zeros(2)})
    assert tr.infer(model, None, METHODS[method], seed=0).report().verdict != "trust"


def test_rounding_is_measured():
    """Nothing is said of a density as smooth as its numbers."""
    for density, told in ((NOISY["cancelling"], True), (lambda t: -0.5 * jnp.sum(t["x"] ** 2) + 100.0, False)):
        model = tr.Model.from_log_density(density, {"x": jnp.zeros(2)})
        checks = {check.name for check in tr.infer(model, None, tr.Laplace(), seed=0).report().checks}
        assert ("rounding" in checks) == told


@pytest.mark.test("laplace-0", "importance-1")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("how", ["laplace", "importance"])
def test_the_evidence_of_a_normal_posterior_is_the_best_case(how, seed):
    """60 rows of 12 columns, whose log weights are nothing but rounding: −1,930 nats."""
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(60, 12)), 0.05
    y = x @ rng.normal(size=12) * 20 + noise * rng.normal(size=60)
    covariance = noise**2 * np.eye(60) + x @ x.T
    exact = -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1] + 60 * np.log(2 * np.pi))
    model = tr.Model({"w": dist.Normal(jnp.zeros(12), 1.0)}, lambda p, x: dist.Normal(x @ p["w"], noise))
    data = tr.Data(y, given=x)
    posterior = tr.infer(model, data, tr.Laplace(), seed=seed, verify=None)
    found = tr.log_evidence(model, data, how, seed=seed, **({"posterior": posterior} if how == "importance" else {}))
    assert found.verdict == "trust", found.checks
    assert abs(found.estimate - exact) < 0.02


@pytest.mark.test
def test_shares_of_large_logarithms_sum_to_one():
    """As of rows that count 10¹² times: NumPy draws by no shares whose sum is off by 10⁻⁸."""
    for size in (1.0, 1e8, 1e13, 1e30):
        logs = size * (-1 - 1e-3 * RNG.random(1000))
        found = shares(logs)
        assert abs(found.sum() - 1) < 1e-12 and np.argmax(found) == np.argmax(logs)
        RNG.choice(1000, 10, p=found)
