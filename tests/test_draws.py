"""Draws are the posterior's, within their Monte-Carlo errors and, for SGLD, within the bias it predicts.

The model is three conjugate ones side by side, so that one run of a method is judged on all of them.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from contract_method import quick_compilation
from montecarlo import ALARM, Scores, Z, assert_holds, binomial, detectable, of_p, uniform_counts
from scipy import linalg, stats

import tractable as tr
from tractable.core import schedules
from tractable.core.errors import SettingsError
from tractable.core.model import log_density
from tractable.engine.method import plan_batches
from tractable.gallery import conjugate
from tractable.kernels import mala
from tractable.sgmcmc import bias

pytestmark = pytest.mark.laws

quiet = pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
RNG = np.random.default_rng(11)
N = 40
X = RNG.normal(size=(N, 3)) @ np.array([[1.0, 0.6, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.7]])
SEEN = {
    "flip": (RNG.random(N) < 0.3).astype(int),
    "level": 1.0 + RNG.normal(size=N),
    "line": X @ np.array([0.5, -1.0, 1.0]) + 0.8 * RNG.normal(size=N),
}
COIN = conjugate.beta_bernoulli(SEEN["flip"], 2, 3)
LEVEL = conjugate.normal_mean(SEEN["level"], 1.0, 0.0, 1.0)
LINE = conjugate.linear_regression(X, SEEN["line"], 0.8, 1.5)
MEAN = np.array([LEVEL.mean, COIN.mean, *LINE.mean])  # in the order of the names: mu, theta, w
SD = np.array([LEVEL.sd, COIN.sd, *LINE.sd])


def three() -> tr.Model:
    prior = {
        "theta": dist.Beta(2.0, 3.0),
        "mu": dist.Normal(0.0, 1.0),
        "w": dist.Normal(jnp.zeros(3), 1.5).to_event(1),
    }

    def likelihood(params, x):
        return {
            "flip": dist.Bernoulli(params["theta"]),
            "level": dist.Normal(params["mu"], 1.0),
            "line": dist.Normal(x @ params["w"], 0.8),
        }

    return tr.Model(prior, likelihood)


MODEL, DATA = three(), tr.Data(SEEN, X)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Programs here run for less than they compile."""
    with quick_compilation():
        yield


def by_chain(posterior: tr.Posterior, sd: np.ndarray = SD, slack: float = 0.0) -> Scores:
    """Mean and second moment about the exact mean, with errors from the scatter of independent chains.

    Args:
        slack: bias allowed, in sd of the mean and as a share of the sd.
    """
    x = posterior.values.astype(np.float64)
    off, squares = (x - MEAN).mean(1), np.square(x - MEAN).mean(1)  # (chain, k)
    error = off.std(0, ddof=1) / math.sqrt(len(x))
    error2 = squares.std(0, ddof=1) / math.sqrt(len(x))
    scores = {}
    for i, name in enumerate(posterior.names):
        allowed, allowed2 = slack * sd[i], 2 * slack * sd[i] ** 2
        scores[f"{name} mean"] = float(abs(off[:, i].mean()) / (Z * error[i] + allowed))
        scores[f"{name} sd"] = float(abs(squares[:, i].mean() - sd[i] ** 2) / (Z * error2[i] + allowed2))
    return scores


EXACT = {
    "random-walk": tr.RandomWalk(chains=32, draws=800, warmup=1000, thin=4),
    "mala": tr.MALA(chains=32, draws=800, warmup=600),
    "hmc": tr.HMC(chains=32, draws=300, warmup=300),
    "nuts": tr.NUTS(chains=32, draws=300, warmup=300),
    "microcanonical": tr.Microcanonical(chains=32, draws=400, warmup=400),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods(name):
    posterior = tr.infer(MODEL, DATA, EXACT[name])
    assert posterior.names == ["mu", "theta", "w[0]", "w[1]", "w[2]"]
    assert_holds(by_chain(posterior), EXACT[name].draws * 32)


NOISY = {
    "sgld": tr.SGLD(chains=32, draws=800, warmup=500, batch_size=10),
    "sgld control variates": tr.SGLD(chains=32, draws=800, warmup=500, batch_size=10, gradient="control_variates"),
    "sghmc": tr.SGHMC(chains=32, draws=200, warmup=500, batch_size=20, step_size=0.001, momentum_decay=0.3),
}


@quiet
@pytest.mark.parametrize("name", NOISY)
def test_noisy_methods(name):
    """The sd is the one predicted; a tenth of an sd is left for what is not normal."""
    posterior = tr.infer(MODEL, DATA, NOISY[name])
    predicted = posterior.predicted_bias
    assert np.all(np.abs(predicted.inflation) < 0.2)
    assert_holds(by_chain(posterior, SD * (1 + predicted.inflation), slack=0.1))


@quiet
def test_corrected_sgld_is_unbiased():
    """At a step whose bias would be large, ``correct`` leaves nothing of it on a normal target."""
    model = tr.Model({"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["mu"], 1.0))
    data, h = tr.Data(SEEN["level"]), N + 1.0
    method = tr.SGLD(chains=64, draws=1500, warmup=300, thin=2, batch_size=10, step_size=0.2 / h, correct=True)
    corrected = tr.infer(model, data, method)
    plain = tr.infer(model, data, dataclasses.replace(method, correct=False))
    sds = [p.values.std(1, ddof=0) for p in (corrected, plain)]
    error = Z * sds[0].std() / math.sqrt(64) + 0.004 * LEVEL.sd
    assert abs(sds[0].mean() - LEVEL.sd) < error, (sds[0].mean(), LEVEL.sd, error)
    assert abs(corrected.mean()["mu"] - LEVEL.mean) < Z * corrected.values.mean(1).std() / 8
    assert abs(corrected.predicted_bias.worst) < 0.01


# Gaussian mean, P = 1: what a chain's variance is, against what was predicted for it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Independent(tr.SGHMC):
    """Batches drawn independently, so that their noise is white."""

    def plan(self, data):
        return plan_batches(self, data, self.batch_size, independent=True)


H = N + 1.0
ARMS = {
    "epochs": tr.SGLD(step_size=0.3 / H, batch_size=10),
    "epochs of two": tr.SGLD(step_size=1.0 / H, batch_size=20),
    "independent": Independent(step_size=0.3 / H, batch_size=10, momentum_decay=1.0),
    "independent, friction": Independent(step_size=0.05 / H, batch_size=10, momentum_decay=0.3),
    "epochs, friction": tr.SGHMC(step_size=0.2 / H, batch_size=10, momentum_decay=0.2),
    "all rows, friction": tr.SGHMC(step_size=1.0 / H, batch_size=N, momentum_decay=0.2),
}


@pytest.mark.test("independent, friction")
@quiet
@pytest.mark.parametrize("name", ARMS)
def test_predicted_bias(name):
    """Stationary sd = the discrete Lyapunov equation's, epochs and momentum included."""
    model = tr.Model({"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["mu"], 1.0))
    data = tr.Data(SEEN["level"])
    method = dataclasses.replace(ARMS[name], chains=64, draws=1500, warmup=400, thin=3)
    posterior = tr.infer(model, data, method)
    predicted = posterior.predicted_bias
    x = posterior.values[..., 0]
    squares = np.square(x - LEVEL.mean).mean(1)
    error = squares.std(ddof=1) / 8
    wanted = float(np.ravel(predicted.covariance)[0])
    print(f"inflation {predicted.worst:.3f}; detects {100 * 6 * error / wanted:.1f} % of the variance")
    assert_holds({"variance": float(abs(squares.mean() - wanted) / (Z * error))})
    np.testing.assert_allclose(np.ravel(predicted.target)[0], 1 / H, rtol=1e-6)


def over_an_epoch(pull: np.ndarray, friction: float, epoch: int | None, heat: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Σ of θ by the recursion itself, phase by phase: v' = (1 − α) v − x θ + n, θ' = θ + v', Σ_epoch of v's noise 0."""
    size = len(pull)
    keep, both = (1 - friction) * np.eye(size), np.vstack([np.eye(size)] * 2)
    a = np.block([[np.eye(size) - np.diag(pull), keep], [-np.diag(pull), keep]])
    white, batch = both @ (friction * heat) @ both.T, both @ v @ both.T
    if epoch is None:
        return linalg.solve_discrete_lyapunov(a, white + batch)[:size, :size]
    powers = [np.linalg.matrix_power(a, k) for k in range(epoch + 1)]

    def within(steps: int) -> np.ndarray:
        summed = sum(powers[:steps]) if steps else np.zeros_like(a)
        kicks = sum(p @ (batch * epoch / (epoch - 1) + white) @ p.T for p in powers[:steps])
        return kicks - summed @ batch @ summed.T / (epoch - 1)

    carried = linalg.solve_discrete_lyapunov(powers[-1], within(epoch))
    phases = [within(k) + powers[k] @ carried @ powers[k].T for k in range(1, epoch + 1)]
    return np.mean(phases, 0)[:size, :size]


@pytest.mark.quick
@pytest.mark.parametrize("friction", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("epoch", [None, 2, 3, 40])
def test_stationary_is_the_recursion_s(friction, epoch):
    """Three directions, one of them critically damped: exact, for friction within epochs too."""
    for step in (1e-3, 0.1, 1.0):
        critical = 2 * (2 - friction - 2 * math.sqrt(1 - friction)) / step
        h = np.array([0.7, 2.5, critical if friction < 1 else 1.3])
        root = np.random.default_rng(1).normal(size=(3, 3))
        v, order = root @ root.T, np.argsort(h)
        found = bias.stationary(bias.Measured(np.diag(h), v), step, friction=friction, epoch=epoch).covariance
        wanted = over_an_epoch(step * h / 2, friction, epoch, step * np.eye(3), step**2 / 4 * v)
        np.testing.assert_allclose(found[order][:, order], wanted[order][:, order], rtol=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("friction", [1.0, 0.1])
@pytest.mark.parametrize("epoch", [None, 2, 100_000])
def test_a_step_below_rounding_has_no_bias(friction, epoch):
    """1 − ab was 0 where εh is less than the machine's precision."""
    for step in (1e-15, 1e-18, 1e-30):
        found = bias.stationary(bias.Measured(np.diag([1.0, 4.0]), np.eye(2)), step, friction=friction, epoch=epoch)
        np.testing.assert_allclose(found.covariance, np.diag([1.0, 0.25]), atol=1e-9)
        assert found.worst < 1e-9


@quiet
def test_batches_are_of_as_many_rows_as_there_are():
    """A default that asks for a hundred serves twenty; a size that was given is held to."""
    model = tr.Model({"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["mu"], 1.0))
    some = tr.Data(SEEN["level"][:20])
    posterior = tr.infer(model, some, tr.SGLD(chains=2, draws=10, warmup=20), verify=None)
    assert posterior.method.plan(some).width == 20
    assert posterior.predicted_bias.worst < 0.0501
    with pytest.raises(SettingsError, match="more than the 20 rows"):
        tr.SGLD(batch_size=101).plan(some)


@pytest.mark.test
def test_measured_curvature_and_noise():
    """H = N + 1 and V = Var of N/n Σ (y − θ) over the windows that batches are, the same wherever θ is."""
    model = tr.Model({"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["mu"], 1.0))
    data, method = tr.Data(SEEN["level"]), tr.SGLD(batch_size=10)
    plan = method.plan(data)
    one, other = (bias.measure(model, data, plan, np.array([[at]]), jax.random.key(0)) for at in (0.0, 1.5))
    np.testing.assert_allclose(one.curvature, [[H]], rtol=1e-9)
    np.testing.assert_allclose(one.noise, other.noise, rtol=1e-9)
    rows = np.asarray(data.windows(10)[0])
    sums = [N / 10 * rows[i : i + 10].sum() for i in range(N)]
    np.testing.assert_allclose(one.noise, [[np.var(sums)]], rtol=1e-6)


@pytest.mark.test
@pytest.mark.parametrize("every", [True, False])
def test_diagonals_of_many_parameters(monkeypatch, every):
    """Beyond ``DENSE`` parameters: V of all windows, or of single rows with V = V₁ (N − n)/(n (N − 1)), and
    H = 1 + V₁/(N − 1), whose first part is the prior's; both are what NumPy says of the same rows."""
    y = np.random.default_rng(6).normal(size=(40, 3)) * [1.0, 2.0, 0.5]
    prior = {"mu": dist.Normal(jnp.zeros(3), 1.0).to_event(1)}
    model = tr.Model(prior, lambda params: dist.Normal(params["mu"], 1.0).to_event(1))
    data, size, n = tr.Data(y), 40, 8
    monkeypatch.setattr(bias, "DENSE", 2)
    if not every:
        monkeypatch.setattr(bias, "ALL_WINDOWS", 0)
    plan, at, key = tr.SGLD(batch_size=n).plan(data), np.array([0.3, -0.2, 0.1]), jax.random.key(0)
    found = bias.measure(model, data, plan, at[None], key)
    rows = np.asarray(data.windows(n)[0]) - at
    if every:
        noise = np.var([size / n * rows[i : i + n].sum(0) for i in range(size)], axis=0)
        single = noise * n * (size - 1) / (size - n)
    else:
        single = np.var(size * rows[np.asarray(jax.random.randint(key, (size,), 0, size))], axis=0, ddof=1)
        noise = single * (size - n) / (n * (size - 1))
    np.testing.assert_allclose(found.noise, noise, rtol=1e-9)
    np.testing.assert_allclose(found.curvature, 1 + single / (size - 1), rtol=1e-9)
    dense = bias.Measured(np.diag(found.curvature), np.diag(found.noise))
    for friction, epoch in ((1.0, None), (0.3, None), (1.0, 5)):
        by_numbers = bias.stationary(found, 0.01, np.array([0.5, 1.0, 0.8]), friction=friction, epoch=epoch)
        by_matrices = bias.stationary(dense, 0.01, np.array([0.5, 1.0, 0.8]), friction=friction, epoch=epoch)
        np.testing.assert_allclose(by_numbers.covariance, np.diag(by_matrices.covariance), rtol=1e-8)
        np.testing.assert_allclose(by_numbers.inflation, by_matrices.inflation, rtol=1e-6)
        assert by_numbers.worst == pytest.approx(by_matrices.worst, rel=1e-6)


@pytest.mark.test
def test_noise_of_rows_too_wide_to_stack(monkeypatch):
    """V from single rows, V₁ (N − n)/(n (N − 1)), where all windows would take too much memory: its mean is theirs."""
    wide = np.random.default_rng(4).normal(size=(60, 30))
    y = wide @ np.full(30, 0.3) + np.random.default_rng(5).normal(size=60)
    model = tr.Model(
        {"w": dist.Normal(np.zeros(30), 1.0).to_event(1)}, lambda params, x: dist.Normal(x @ params["w"], 1.0)
    )
    data, method = tr.Data(y, given=wide), tr.SGLD(batch_size=20)

    def noise() -> float:
        key = jax.random.key(0)
        return float(np.trace(bias.measure(model, data, method.plan(data), np.zeros((4, 30)), key).noise))

    of_windows = noise()
    monkeypatch.setattr(bias, "WINDOW_BYTES", data.nbytes)
    # 60 single rows, drawn with replacement: the sd of their mean square is a seventh or so of it.
    assert abs(noise() / of_windows - 1) < 0.6


@quiet
def test_polynomial_schedule_weighs_by_step():
    """Draws count as much as their steps are long: Σ ε θ / Σ ε."""
    model = tr.Model({"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["mu"], 1.0))
    schedule = schedules.polynomial_between(0.4 / H, 0.04 / H, 3000)
    method = tr.SGLD(chains=32, draws=1500, thin=2, warmup=200, batch_size=20, step_size=schedule)
    posterior = tr.infer(model, SEEN["level"], method)
    weights = np.asarray(posterior.weights)
    times = 2 * np.arange(1500)
    wanted = (np.asarray(schedule(times)) + np.asarray(schedule(times + 1))) / 2
    np.testing.assert_allclose(weights, np.broadcast_to(wanted, weights.shape), rtol=1e-9)
    x = posterior.values[..., 0]
    np.testing.assert_allclose(posterior.mean()["mu"], np.average(x, weights=weights), rtol=1e-12)
    means = np.average(x, axis=1, weights=weights)
    assert abs(means.mean() - LEVEL.mean) < Z * means.std(ddof=1) / math.sqrt(32)
    assert abs(posterior.sd()["mu"] / LEVEL.sd - 1) < 0.05


# Rejection: exact draws, and the evidence.


def test_rejection():
    coin = tr.Model({"theta": dist.Beta(2.0, 3.0)}, lambda params: dist.Bernoulli(params["theta"]))
    level = tr.Model({"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["mu"], 1.0))
    method = tr.Rejection(chains=4, draws=2500)
    for model, seen, exact in ((coin, SEEN["flip"], COIN), (level, SEEN["level"], LEVEL)):
        posterior = tr.infer(model, seen, method)
        x = posterior.values.ravel()
        cdf = stats.beta(COIN.alpha, COIN.beta).cdf if model is coin else stats.norm(LEVEL.mean, LEVEL.sd).cdf
        found = posterior.log_evidence()
        estimate, error = found.estimate, found.standard_error
        assert found.verdict == "trust"
        assert_holds(
            {
                "draws": of_p(stats.kstest(x, cdf).pvalue),
                "mean": abs(x.mean() - exact.mean) / (exact.sd / 100) / Z,
                "evidence": abs(estimate - exact.log_evidence) / error / Z,
            },
            x.size,
        )
        assert error < 0.05 and posterior.report().verdict == "trust"


# Predictions of Bayesian linear regression.


def test_predictions():
    """Aleatoric σ, epistemic √(xᵀΣx), their sum, the interval and the density, in closed form."""
    model = tr.Model(
        {"w": dist.Normal(jnp.zeros(3), 1.5).to_event(1)}, lambda params, x: dist.Normal(x @ params["w"], 0.8)
    )
    posterior = tr.infer(model, tr.Data(SEEN["line"], X), tr.NUTS(draws=2000, warmup=400))
    x = 2 * RNG.normal(size=(8, 3))
    mean, epistemic = x @ LINE.mean, np.sqrt(np.diag(x @ LINE.covariance @ x.T))
    sd = np.hypot(epistemic, 0.8)
    got = posterior.predict(x, level=0.8, draws=8000)
    ess = posterior.summary()["ess_bulk"].min()
    reach = Z / math.sqrt(ess)
    np.testing.assert_allclose(got.aleatoric, 0.8, rtol=1e-9)
    assert np.all(np.abs(got.mean - mean) < reach * epistemic)
    assert np.all(np.abs(got.epistemic / epistemic - 1) < reach)
    np.testing.assert_allclose(got.sd, np.hypot(got.aleatoric, got.epistemic), rtol=1e-9)
    half = stats.norm.isf(0.1) * sd
    for bound, wanted in ((got.lower, mean - half), (got.upper, mean + half)):
        assert np.all(np.abs(bound - wanted) < 0.12 * sd)
    new = mean + sd * RNG.normal(size=8)
    wanted = stats.norm(mean, sd).logpdf(new)
    np.testing.assert_allclose(posterior.log_predictive(tr.Data(new, x), draws=8000), wanted, atol=0.05)


# Coverage and calibration.


def test_coverage():
    """1000 means drawn from their prior, learnt at once: 90 % of 90 % intervals hold their mean."""
    size = 1000
    rng = np.random.default_rng(5)
    truth = rng.normal(size=size)
    y = truth + rng.normal(size=(3, size))
    model = tr.Model(
        {"mu": dist.Normal(jnp.zeros(size), 1.0).to_event(1)},
        lambda params: dist.Normal(params["mu"], 1.0).to_event(1),
    )
    posterior = tr.infer(model, y, tr.HMC(chains=4, draws=300, warmup=150))
    low, high = np.quantile(posterior.values.reshape(-1, size), [0.05, 0.95], axis=0)
    inside = int(np.sum((low <= truth) & (truth <= high)))
    assert_holds({"coverage": binomial(inside, size, 0.9)}, size)


L = 19  # draws a replicate, so 20 ranks
SBC = 20_000


@functools.partial(jax.jit, static_argnames=("model", "shrink"))
def ranks(model: tr.Model, key: jax.Array, shrink: float = 1.0) -> dict:
    """Exact ranks of a reversible kernel (Gandy & Scott 2020): the truth is put at a random place in its own chain.

    θ ~ prior, y ~ p(y|θ); from θ the chain goes M steps back and L − M on. The ranks of θ and of its log
    likelihood are uniform on 0..L, however badly the chain mixes.
    """

    def replicate(key: jax.Array) -> dict:
        key_theta, key_y, key_place, *keys = jax.random.split(key, 5)
        theta = model.space.ravel(model.unconstrain(model.sample_prior(key_theta)))
        y = model.datum(model.constrain(model.space.unravel(theta))).sample(key_y, (5,))
        density = log_density(model, (y, None), flat=True)
        kernel = mala(lambda x: shrink * density(x), 0.4)

        def log_likelihood(x: jax.Array) -> jax.Array:
            return jnp.sum(model.log_likelihoods(model.constrain(model.space.unravel(x)), (y, None)))

        def chain(key: jax.Array) -> jax.Array:
            def step(state, key):
                state, _ = jax.lax.scan(lambda s, k: (kernel(k, s)[0], None), state, jax.random.split(key, 3))
                return state, state.position

            return jax.lax.scan(step, kernel.init(key, theta), jax.random.split(key, L))[1]

        back, on = (chain(k) for k in keys)
        place = jax.random.randint(key_place, (), 0, L + 1)
        index = jnp.arange(L)
        used = jnp.concatenate([index < place, index < L - place])
        x = jnp.concatenate([back, on])
        tie = jnp.concatenate([index, index]) % 2 == 0  # draws equal to θ: refused proposals, put on either side

        def rank(values: jax.Array, value: jax.Array) -> jax.Array:
            below = (values < value) | ((values == value) & tie)
            return jnp.sum(used & below)

        return {
            "theta": rank(x[:, 0], theta[0]),
            "log likelihood": rank(jax.vmap(log_likelihood)(x), log_likelihood(theta)),
        }

    return jax.lax.map(replicate, jax.random.split(key, SBC), batch_size=2500)


def rank_scores(found: dict) -> Scores:
    return {name: uniform_counts(np.bincount(np.asarray(rank), minlength=L + 1)) for name, rank in found.items()}


def test_simulation_based_calibration():
    """Ranks of θ and of the log likelihood are uniform; with a posterior 10 % too wide they are not."""
    model = tr.Model({"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["mu"], 1.0))
    scores = rank_scores(ranks(model, jax.random.key(4)))
    assert_holds(scores, SBC)
    assert max(rank_scores(ranks(model, jax.random.key(4), 0.8)).values()) > 1
    print(detectable(SBC), ALARM)
