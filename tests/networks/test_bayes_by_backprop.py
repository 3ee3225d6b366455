"""Bayes by Backprop adds up: over an epoch to the bound, over the noise to its gradient, in the end to 1/√Λᵢᵢ.

F = KL(q ‖ p) − E_q log p(y|w) is a sum over batches, F_i = π_i KL − E Σ_{n in i} log p(y_n|w) with Σ π_i = 1: for the
same noise ε it adds up exactly, whatever the batches' sizes and order (Blundell et al. 2015, eqs. 8 and 9). Values are
in the sum scale, −M F_i, so that their mean over an epoch is −F.
"""

import functools
import importlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from montecarlo import C, Scores, Z, assert_holds, broken, error, of_p
from scipy import special, stats

import tractable as tr
from tractable import objectives
from tractable.core import approximations
from tractable.core import model as core
from tractable.core.batches import Plan, place, window
from tractable.core.errors import ModelError, SettingsError, TractableWarning
from tractable.core.model import Batch, Data, Model, Through
from tractable.gallery import conjugate
from tractable.methods import BayesByBackprop, Laplace
from tractable.networks import spread as spreads
from tractable.networks.network import mlp, scale_mixture

module = importlib.import_module("tractable.networks.bayes_by_backprop")  # the package's name is the function

pytestmark = pytest.mark.test

RNG = np.random.default_rng(8)
D, N, NOISE, SD = 2, 7, 0.6, 1.4
X = RNG.normal(size=(N, D)) @ np.array([[1.0, 0.7], [0.0, 0.6]])
Y = X @ np.array([0.8, -0.4]) + NOISE * RNG.normal(size=N)
EXACT = conjugate.linear_regression(X, Y, NOISE, SD)
PRECISION = np.linalg.inv(EXACT.covariance)
GAP = 0.5 * (np.log(np.diag(PRECISION)).sum() - np.linalg.slogdet(PRECISION)[1])
SIZES = (3, 3, 1)
WEIGHTS = ("uniform", "geometric")
PHI = {"mean": {"w": jnp.array([0.5, -0.2])}, "rho": {"w": jnp.array([-0.7, 0.4])}}


def regression(prior: Any = None, x: Any = X, y: Any = Y, sd: float = SD) -> tuple[Model, Data]:
    """Linear regression with known noise, under a normal prior or another."""
    prior = dist.Normal(jnp.zeros(D), sd) if prior is None else prior
    likelihood = Through(lambda params, x: jnp.dot(x, params["w"]), lambda params, eta: dist.Normal(eta, NOISE))
    if callable(prior) and not core.is_distribution(prior):
        return Model(prior, likelihood, position={"w": jnp.zeros(D)}), Data(y, given=x)
    return Model({"w": prior}, likelihood), Data(y, given=x)


def mixture() -> dist.Distribution:
    return scale_mixture(0.3, 1.5, 0.2).expand((D,))


def flat(tree: Any) -> jax.Array:
    return ravel_pytree(tree)[0]


def drawn(objective: objectives.Objective, phi: Any = PHI, seed: int = 0) -> Any:
    return jax.tree.map(lambda a: a[0], objective.draw(jax.random.key(seed), 1, phi))


def cut(data: Data, sizes: tuple[int, ...], order: tuple[int, ...]) -> list[Batch]:
    """Batches of these sizes, each padded to the largest with rows that must not count, in the order visited."""
    ends, width = np.cumsum((0, *sizes)), max(sizes)

    def one(block: int, index: int) -> Batch:
        count = sizes[block]
        rows = jax.tree.map(
            lambda a: jnp.concatenate(
                [jnp.asarray(a[ends[block] : ends[block + 1]]), jnp.full((width - count, *a.shape[1:]), 1e3)]
            ),
            data.rows,
        )
        return Batch(rows, (jnp.arange(width) < count) * 1.0, data.size, index, len(sizes))

    return [one(block, index) for index, block in enumerate(order)]


def nodes(count: int, dims: int) -> tuple[jax.Array, jax.Array]:
    """Points (K, dims) and shares (K,) that integrate over N(0, I)."""
    points, shares = np.polynomial.hermite_e.hermegauss(count)
    grid = np.stack(np.meshgrid(*[points] * dims, indexing="ij"), -1).reshape(-1, dims)
    mass = np.prod(np.stack(np.meshgrid(*[shares / shares.sum()] * dims, indexing="ij"), -1), -1).ravel()
    return jnp.asarray(grid), jnp.asarray(mass)


def value_and_slope(objective: objectives.Objective, noise: Any, phi: Any, batches: list[Batch]) -> jax.Array:
    """Mean over ``batches`` of the value and the gradient, flat."""

    @jax.jit
    def of(phi: Any, noise: Any) -> jax.Array:
        parts = [jax.value_and_grad(objective.value, argnums=1)(noise, phi, batch) for batch in batches]
        return sum(map(flat, parts), jnp.zeros(())) / len(parts)

    return of(phi, noise)


# Laws.


def epoch(make: Callable = objectives.bayes_by_backprop, samples: int = 2) -> Scores:
    """(1/M) Σ_i −M F_i = −F, value and gradient, for the same ε."""
    scores = {}
    for name, prior in {"closed form": None, "Monte Carlo": mixture()}.items():
        model, data = regression(prior)
        for weights in WEIGHTS:
            objective = make(model, samples=samples, kl_weights=weights)
            noise = drawn(objective)
            wanted = value_and_slope(objective, noise, PHI, [core.whole(data.arrays())])
            for order in ((0, 1, 2), (2, 0, 1)):
                got = value_and_slope(objective, noise, PHI, cut(data, SIZES, order))
                scores[f"{name}, {weights}, {order}"] = error(got, wanted, 1e-8)
    return scores


def planned(make: Callable = objectives.bayes_by_backprop) -> Scores:
    """The same over the epochs that a run walks through: balanced blocks, shuffled, indices in the order visited."""
    x, y = RNG.normal(size=(23, D)), RNG.normal(size=23)
    model, data = regression(x=x, y=y)
    scores, plan = {}, Plan(23, 5)
    rows, key = data.windows(plan.width), jax.random.key(4)
    for weights in WEIGHTS:
        objective = make(model, kl_weights=weights)
        noise = drawn(objective)
        of = jax.jit(
            lambda t, o=objective, noise=noise: flat(
                jax.value_and_grad(o.value, argnums=1)(noise, PHI, window(rows, plan, *place(plan, key, t)))
            )
        )
        wanted = value_and_slope(objective, noise, PHI, [core.whole(data.arrays())])
        for first in (0, 5, 20):
            got = jnp.mean(jnp.stack([of(t) for t in range(first, first + plan.count)]), 0)
            scores[f"{weights}, from {first}"] = error(got, wanted, 1e-8)
    return scores


def shares(weight: Callable = objectives.kl_weight) -> Scores:
    """π_i = 2^{M−i}/(2^M − 1), by fractions; finite and of sum 1 for thousands of batches, in float32 too."""
    scores = {}
    for count in (1, 2, 3, 10, 60):
        for weights in WEIGHTS:
            got = [float(weight(weights, Batch((), jnp.ones(1), 1, i, count))) for i in range(count)]
            exact = [Fraction(2 ** (count - i - 1), 2**count - 1) for i in range(count)]
            wanted = [float(f) for f in exact] if weights == "geometric" else [1 / count] * count
            scores[f"{weights}, M = {count}"] = error(np.array(got) / wanted, 1.0, 1e-12)
    for bits in (32, 64):
        with jax.enable_x64(bits == 64):
            of = jax.jit(jax.vmap(lambda i: jnp.asarray(weight("geometric", Batch((), jnp.ones(1), 1, i, 2000)))))
            got = np.asarray(of(jnp.arange(2000)), np.float64)
        scores[f"M = 2000, float{bits}"] = error(got, 0.5 ** np.arange(1.0, 2001.0), 1e-6)
        scores[f"M = 2000, float{bits}: sum"] = error(got.sum(), 1.0, 1e-6)
    return scores


def two_terms(make: Callable = objectives.bayes_by_backprop) -> Scores:
    """Δ_μ = ∂f/∂w + ∂f/∂μ,  Δ_ρ = ∂f/∂w ε/(1 + e^−ρ) + ∂f/∂ρ, for every ε: the paper's steps 4 and 5, by hand.

    f(w, θ) = log q(w|θ) − log p(w) − log p(y|w), with the densities written out.
    """
    x, y = jnp.asarray(X), jnp.asarray(Y)
    share, wide, narrow = 0.3, 1.5, 0.2

    def f(w: jax.Array, mean: jax.Array, rho: jax.Array) -> jax.Array:
        def normal(at: jax.Array, sd: Any) -> jax.Array:
            return jnp.exp(-((at / sd) ** 2) / 2) / (sd * math.sqrt(2 * math.pi))

        log_q = jnp.sum(jnp.log(normal(w - mean, jnp.log1p(jnp.exp(rho)))))
        log_prior = jnp.sum(jnp.log(share * normal(w, wide) + (1 - share) * normal(w, narrow)))
        return log_q - log_prior - jnp.sum(jnp.log(normal(y - x @ w, NOISE)))

    model, data = regression(mixture())
    objective, scores = make(model), {}
    mean, rho = PHI["mean"]["w"], PHI["rho"]["w"]
    for seed in range(3):
        eps = jax.random.normal(jax.random.key(seed), (D,))
        w = mean + jnp.log1p(jnp.exp(rho)) * eps
        by_w, by_mean, by_rho = jax.jit(jax.grad(f, argnums=(0, 1, 2)))(w, mean, rho)
        noise = ({"w": eps[None]}, ())
        got = value_and_slope(objective, noise, PHI, [core.whole(data.arrays())])
        scores |= {
            f"f, {seed}": error(-got[0], f(w, mean, rho), 1e-9),
            f"Δ_μ, {seed}": error(-got[1:3], by_w + by_mean, 1e-9),
            f"Δ_ρ, {seed}": error(-got[3:], by_w * eps / (1 + jnp.exp(-rho)) + by_rho, 1e-9),
        }
    return scores


def closed_form() -> Scores:
    """The Monte-Carlo cost under a normal prior has the closed form's value and gradient in expectation."""
    prior = dist.Normal(jnp.array([0.3, -0.5]), jnp.array([0.8, 1.6]))
    points, mass = nodes(20, D)
    means = []
    for given in (prior, lambda params: jnp.sum(prior.log_prob(params["w"]))):
        model, data = regression(given)
        objective, batch = objectives.bayes_by_backprop(model), core.whole(data.arrays())
        of = jax.jit(
            jax.vmap(lambda eps, o=objective, b=batch: flat(
                jax.value_and_grad(o.value, argnums=1)(({"w": eps[None]}, ()), PHI, b)))
        )  # fmt: skip
        means.append(mass @ of(points))
    # The callable prior's model is the one without a closed form: a draw's cost then has noise of its own.
    return {"mean": error(means[1], means[0], 1e-9)}


def optimum(weights: str = "uniform", make: Callable = objectives.bayes_by_backprop, samples: int = 1) -> Scores:
    """E −F at μ and σᵢ² = 1/Λᵢᵢ is log p(y) − ½ (Σ log Λᵢᵢ − log |Λ|), its gradient 0: batches, shares and all."""
    return optimum_scores(jax.jit(lambda: optimum_means(weights, make, samples))(), weights)


def optimum_means(weights: str, make: Callable = objectives.bayes_by_backprop, samples: int = 1) -> jax.Array:
    """The expected bound there and its gradient."""
    model, data = regression()
    objective = make(model, kl_weights=weights, samples=samples)
    sd = 1 / np.sqrt(np.diag(PRECISION))
    phi = {"mean": {"w": jnp.asarray(EXACT.mean)}, "rho": {"w": approximations.inverse_softplus(jnp.asarray(sd))}}
    batches = cut(data, SIZES, (1, 2, 0))

    def of(eps: jax.Array) -> jax.Array:
        noise = ({"w": jnp.broadcast_to(eps, (samples, D))}, ())
        parts = [flat(jax.value_and_grad(objective.value, argnums=1)(noise, phi, b)) for b in batches]
        return jnp.mean(jnp.stack(parts), 0)

    points, mass = nodes(4, D)
    return mass @ jax.vmap(of)(points)


def optimum_scores(mean: Any, weights: str = "uniform") -> Scores:
    """Against the closed form."""
    return {
        f"{weights}: bound": error(mean[0], EXACT.log_evidence - GAP, 1e-8),
        f"{weights}: gradient": error(mean[1:], 0.0, 1e-8),
    }


def mixture_density(log_prob: Callable = lambda w: scale_mixture(0.5, 1.0, math.exp(-6)).log_prob(w)) -> Scores:
    """log [π N₁ + (1 − π) N₂] and its slope, far into the tails, in both precisions."""
    w = np.array([0.0, 1e-3, 0.01, 0.1, 1.0, 5.0, 15.0, 40.0, 300.0])
    long, narrow = w.astype(np.longdouble), math.exp(-6)
    terms = np.stack([
        math.log(0.5) - long**2 / 2 - np.log(sd) - long**2 / 2 * (sd**-2.0 - 1) - 0.5 * math.log(2 * math.pi)
        for sd in (1.0, narrow)
    ])  # fmt: skip
    wanted = np.logaddexp(*terms)
    pull = np.exp(terms - wanted)
    slopes = -long * (pull[0] + pull[1] / narrow**2)
    scores = {}
    for bits, tolerance in ((64, 1e-12), (32, 3e-6)):
        with jax.enable_x64(bits == 64):
            here = jnp.asarray(w, jnp.float64 if bits == 64 else jnp.float32)
            got, got_slopes = jax.vmap(jax.value_and_grad(lambda w: jnp.sum(log_prob(w))))(here)
        scale = np.maximum(1, np.abs(wanted.astype(float)))
        scores[f"float{bits}"] = error(np.asarray(got, float) / scale, wanted / scale, tolerance)
        scale = np.maximum(1, np.abs(slopes.astype(float)))
        scores[f"float{bits}: slope"] = error(np.asarray(got_slopes, float) / scale, slopes / scale, 30 * tolerance)
    return scores


def network(prior: str) -> tuple[Model, tuple[jax.Array, jax.Array]]:
    """Three tanh units and a learnt noise scale; all priors normal, or some of them scale mixtures."""
    net = mlp(2, (3,), 1, activation="tanh")
    weights = jax.tree.map(lambda a: dist.Normal(0.0, 1.0).expand(a.shape), net.params)
    if prior == "mixture":
        weights["layer0"] = jax.tree.map(lambda a: scale_mixture(0.5, 1.2, 0.3).expand(a.shape), net.params["layer0"])

    def observe(params: dict, eta: jax.Array) -> dist.Distribution:
        return dist.Normal(eta[0], params["noise"])

    model = Model({"weights": weights, "noise": dist.HalfNormal(1.0)}, Through(
        lambda params, x: net.apply(params["weights"], x), observe))  # fmt: skip
    generator = np.random.default_rng(3)
    return model, (jnp.asarray(generator.normal(size=4)), jnp.asarray(generator.normal(size=(4, 2))))


def weight_noise(prior: str, make: Callable = objectives.bayes_by_backprop, count: int = C) -> Scores:
    """ "local" and "flipout" have the mean gradient of "shared", by z-scores and Hotelling's T² of their difference."""
    model, (y, x) = network(prior)
    batch = Batch((y, x), jnp.array([1.0, 1.0, 1.0, 0.0]), 9, 1, 3)
    generator = np.random.default_rng(4)
    phi = {
        "mean": jax.tree.map(lambda s: jnp.asarray(generator.normal(0, 0.5, s.shape)), model.space.shapes),
        "rho": jax.tree.map(lambda s: jnp.asarray(generator.normal(-0.8, 0.2, s.shape)), model.space.shapes),
    }
    gradients, scores = {}, {}
    for i, noise in enumerate(("shared", "local", "flipout")):
        factory = objectives.bayes_by_backprop if noise == "shared" else make
        objective = factory(model, noise=noise, size=5, given=jax.ShapeDtypeStruct((2,), x.dtype))
        of = jax.jit(lambda key, o=objective: jax.lax.map(
            lambda eps: flat(jax.grad(o.value, argnums=1)(eps, phi, batch)), o.draw(key, count, phi),
            batch_size=5000))  # fmt: skip
        gradients[noise] = np.asarray(of(jax.random.key(i)))
        print(noise, "total variance", gradients[noise].var(0).sum().round(1))
    shared = gradients.pop("shared")
    for noise, other in gradients.items():
        away = other.mean(0) - shared.mean(0)
        covariance = (np.cov(other.T) + np.cov(shared.T)) / count
        z = np.abs(away) / np.sqrt(np.diag(covariance))
        square = float(away @ np.linalg.solve(covariance, away))
        scores |= {f"{noise}: z": float(z.max()) / Z, f"{noise}: T²": of_p(float(stats.chi2(len(away)).sf(square)))}
    return scores


# The right ones hold.


def test_epoch():
    """Σ F_i = F."""
    assert_holds(epoch())


def test_a_batch_by_itself():
    """M = 1, made by hand: N/n Σ log p(y_n|w) less the whole cost, as ``log_posterior`` scales it."""
    model, data = regression()
    whole, n = core.whole(data.arrays()), 3
    some = Batch(jax.tree.map(lambda a: a[:n], whole.data), jnp.ones(n), data.size)
    for weights in WEIGHTS:
        objective = objectives.bayes_by_backprop(model, kl_weights=weights)
        noise = drawn(objective)
        cost = objective.value(noise, PHI, whole._replace(mask=jnp.zeros(data.size)))  # no row counts: cost alone
        inside = objective.value(noise, PHI, some._replace(size=n)) - cost
        assert_holds({weights: error(objective.value(noise, PHI, some), cost + data.size / n * inside, 1e-12)})


@pytest.mark.laws
def test_planned():
    """Σ F_i = F, of a run's own batches."""
    assert_holds(planned())


def test_shares():
    """π."""
    assert_holds(shares())


def test_two_terms():
    """Blundell's formulas."""
    assert_holds(two_terms())


def test_closed_form():
    """E of the Monte-Carlo KL."""
    assert_holds(closed_form())


@pytest.mark.parametrize("weights", WEIGHTS)
def test_optimum(weights):
    """σᵢ² = 1/Λᵢᵢ."""
    assert_holds(optimum(weights))


def test_mixture_density():
    """logsumexp."""
    assert_holds(mixture_density())


@pytest.mark.laws
@pytest.mark.parametrize("prior", ["normal", "mixture"])
def test_weight_noise(prior):
    """E ĝ is the same."""
    assert_holds(weight_noise(prior), C)


@pytest.mark.laws
def test_in_float32():
    """Value and gradient are finite for σ from 1e-30 to 100, under both kinds of prior."""
    with jax.enable_x64(False):
        for prior in (dist.Normal(jnp.zeros(D), 1.0), scale_mixture().expand((D,))):
            likelihood = Through(lambda params, x: jnp.dot(x, params["w"]), lambda params, eta: dist.Normal(eta, NOISE))
            objective = objectives.bayes_by_backprop(Model({"w": prior}, likelihood))
            batch = core.whole((jnp.asarray(Y, jnp.float32), jnp.asarray(X, jnp.float32)))
            of = jax.jit(jax.value_and_grad(objective.value, argnums=1))
            for rho in (-69.0, -20.0, -3.0, 100.0):
                phi = {"mean": {"w": jnp.array([0.3, 15.0])}, "rho": {"w": jnp.full(2, rho)}}
                got = flat(of(drawn(objective, phi), phi, batch))
                assert got.dtype == jnp.float32
                assert jnp.all(jnp.isfinite(got)), (prior, rho, got)


def test_refused():
    """What cannot be, before anything runs; and a warning where most shares underflow."""
    model, _ = regression()
    with pytest.raises(SettingsError, match="samples"):
        objectives.bayes_by_backprop(model, samples=0)
    plain = Model({"w": dist.Normal(jnp.zeros(D), 1.0)}, lambda params, x: dist.Normal(jnp.dot(x, params["w"]), NOISE))
    for noise in ("local", "flipout"):
        with pytest.raises(ModelError, match="Through"):
            objectives.bayes_by_backprop(plain, noise=noise, given=jnp.zeros(D))
    many = Data(np.zeros(300), given=np.zeros((300, D)))
    with pytest.warns(TractableWarning, match="126"):
        BayesByBackprop(kl_weights="geometric", batch_size=2).plan(many)


# Whole runs.


def large(times: int = 1, sd: float = SD) -> tuple[Model, Data, Any]:
    """Sixty rows, each so many times; and the exact posterior."""
    generator = np.random.default_rng(12)
    x = generator.normal(size=(60, D)) @ np.array([[1.0, 0.7], [0.0, 0.7]])
    y = x @ np.array([0.8, -0.4]) + NOISE * generator.normal(size=60)
    x, y = np.tile(x, (times, 1)), np.tile(y, times)
    return *regression(x=x, y=y, sd=sd), conjugate.linear_regression(x, y, NOISE, sd)


def ratios(method: BayesByBackprop, times: int = 1, sd: float = SD) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Δμ/sd and the ratio of σᵢ to 1/√Λᵢᵢ, from φ; and σ."""
    model, data, exact = large(times, sd)
    posterior = tr.infer(model, data, method, progress=False)
    assert posterior.fitted is not None
    got = np.log1p(np.exp(posterior.fitted.phi["rho"]))
    ratio = got * np.sqrt(np.diag(np.linalg.inv(exact.covariance)))
    away = (posterior.fitted.phi["mean"] - exact.mean) / exact.sd
    print({k: v for k, v in posterior.found.items() if np.ndim(v) == 0}, "Δμ/sd", away, "ratio", ratio)
    return away, ratio, got


TRAINED = BayesByBackprop(batch_size=8, samples=256, learning_rate=0.02, tolerance=1e-4, draws=50)  # M = 8


@pytest.mark.laws
@pytest.mark.parametrize("weights", WEIGHTS)
def test_trained(weights):
    """sd over 1/√Λᵢᵢ: 1 ± 0.02, under the paper's shares too."""
    away, ratio, _ = ratios(BayesByBackprop(**vars(TRAINED) | {"kl_weights": weights}))
    assert_holds({"mean": error(away, 0.0, 0.1), "sd": error(ratio, 1.0, 0.02 if weights == "uniform" else 0.04)})


@pytest.mark.laws
def test_trained_without_shares_is_wide(monkeypatch):
    """The cost in full for every batch: the prior counts M times, and spreads are √M times too wide."""
    right = objectives.kl_weight
    monkeypatch.setattr(module, "kl_weight", lambda *args: 8 * right(*args))
    _, ratio, _ = ratios(TRAINED)
    assert_holds({"√8": error(ratio, math.sqrt(8), 0.5)})


@pytest.mark.laws
def test_twice_the_data():
    """Every datum twice: half the variance."""
    once, twice = (ratios(TRAINED, times, 1e2)[2] for times in (1, 2))
    assert_holds({"variance": error(twice**2 / once**2, 0.5, 0.025)})


# σ after the climb.


def settled(log_density: Any, mean: Any, sd: Any, steps: int) -> Any:
    """The kernel's state after so many steps, by one compiled loop."""
    kernel = spreads.spread(log_density, jnp.asarray(mean))
    state = kernel.init(jax.random.key(0), jnp.log(jnp.asarray(sd)))
    noise = kernel.draw(jax.random.key(3), steps, state)
    return jax.jit(lambda noise, at: jax.lax.scan(lambda s, e: kernel.step(e, s, None), at, noise)[0])(noise, state)


def test_spread_of_a_normal():
    """1/Λᵢᵢ to rounding for up to sixteen correlated numbers; within its own standard errors for forty."""
    for size, steps in ((3, 12), (16, 12), (40, 400)):
        root = np.random.default_rng(size).normal(size=(size, 2 * size)) + 1
        matrix = jnp.asarray(root @ root.T / size)
        state = settled(lambda z, _, m=matrix: -z @ m @ z / 2, np.ones(size), np.full(size, 0.3), steps)
        ratio, error_of = np.asarray(spreads.precision(state) / jnp.diag(matrix)), spreads.relative_error(state)
        tolerance = 1e-3 if size <= 16 else 5.4 * np.max(error_of)
        assert np.all(np.abs(ratio - 1) < tolerance) and tolerance < 0.3
        np.testing.assert_allclose(np.exp(-2 * state.position), spreads.precision(state), rtol=1e-4)


@pytest.mark.test
def test_the_error_of_a_measured_precision_by_hand():
    """Λ is Σ of curvatures over Σ of squares; its error √(4 S/3t) over the curvature, without end below 0."""
    numbers = ([0.0, 0.0, 0.0], [0.5, 4.0, -1.0], [0.25, 2.0, 0.0], [0.09, 1.0, 1.0])
    state = spreads.State(*map(jnp.array, numbers), jnp.array(12))
    np.testing.assert_allclose(spreads.precision(state), [2.0, 2.0, -1.0], rtol=1e-12)
    np.testing.assert_allclose(spreads.relative_error(state), [0.2, 1 / 12, np.inf], rtol=1e-12)


def test_spread_where_the_curvature_varies():
    """log p = θ − e^θ has Λ = e^θ, whose mean under q is e^{μ + σ²/2}: σ² e^{σ²/2} = e^{−μ}. At μ alone it is e^μ."""
    state = settled(lambda z, _: jnp.sum(z - jnp.exp(z)), np.array([0.5]), [1.0], 30_000)
    right = math.sqrt(2 * special.lambertw(math.exp(-0.5) / 2).real)
    got, known = float(np.exp(state.position[0])), float(spreads.relative_error(state)[0]) / 2
    assert abs(got / right - 1) < 5.4 * known < 0.05 < abs(math.exp(-0.25) / right - 1)


NARROW = {
    "all rows": {"batch_size": None},
    "batches": {"batch_size": 40},
    "geometric": {"batch_size": 40, "kl_weights": "geometric"},
}


@pytest.mark.laws
@pytest.mark.parametrize("mutant", [None, "half", "climb"])
def test_default_settings_find_the_sds(monkeypatch, mutant):
    """Within 2 % where marginal sds are three times these, by all batches and KL weights; climbs end 20 % off."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1)) * math.sqrt(0.92) + rng.normal(size=(400, 3)) * math.sqrt(0.08)
    y = x @ np.array([0.8, -0.4, 0.3]) + NOISE * rng.normal(size=400)
    diagonal = np.square(x).sum(0) / NOISE**2 + 1 / SD**2
    prior = {"w": dist.Normal(jnp.zeros(3), SD).to_event(1)}
    model = Model(prior, lambda params, x: dist.Normal(jnp.dot(x, params["w"]), NOISE))
    if mutant == "half":
        monkeypatch.setattr(spreads, "precision", lambda state, right=spreads.precision: right(state) / 2)
    if mutant == "climb":
        monkeypatch.setattr(BayesByBackprop, "finish", lambda self, problem, phi, steps: (phi, {}))
    off = {}
    for name, settings in NARROW.items():
        if mutant is None or name == "batches":
            method = BayesByBackprop(**settings)
            found = tr.infer(model, Data(y, given=x), method, progress=False, verify=None).fitted
            assert found is not None
            off[name] = np.max(np.abs(np.log1p(np.exp(found.phi["rho"])) * np.sqrt(diagonal) - 1))
    assert max(off.values()) < 0.02 if mutant is None else off["batches"] > 0.04, off


@pytest.mark.laws
@pytest.mark.parametrize(("settings", "most"), [({"epochs": 2}, 6), ({"steps": 50}, 50), ({"epochs": 5000}, 2000)])
def test_the_search_for_a_maximum_takes_no_more_steps_than_the_climb(monkeypatch, settings, most):
    """Two epochs of three batches are six steps, not two thousand and six."""

    class Seen(Exception):
        pass

    def look(method, *_):
        raise Seen(method.steps)

    monkeypatch.setattr(tr.MAP, "climbed", look)
    model = tr.models.neural_network(tr.models.mlp(1, (2000,), 1))
    with pytest.raises(Seen, match=f"^{most}$"):
        tr.infer(model, Data(np.arange(120.0), given=np.ones((120, 1))), BayesByBackprop(batch_size=40, **settings))


@pytest.mark.laws
def test_twice_the_data_laplace():
    """The same of the normal at the mode."""
    model, data, _ = large(1, 1e3)
    again, doubled, _ = large(2, 1e3)
    once, twice = (tr.infer(m, d, Laplace(), progress=False).sd()["w"] for m, d in ((model, data), (again, doubled)))
    assert_holds({"variance": error(np.square(twice / once), 0.5, 0.05)})


# Formulas that circulate wrong.


def patched(name: str, wrong: Callable) -> Callable:
    return lambda monkeypatch: monkeypatch.setattr(module, name, wrong(getattr(module, name)))


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


def mean_over_rows(model: Model, **options: Any) -> objectives.Objective:
    """The mean of a batch's log likelihoods instead of their sum."""
    right = objectives.bayes_by_backprop(model, **options)

    def value(noise: Any, phi: Any, batch: Batch) -> jax.Array:
        cost = right.value(noise, phi, batch._replace(mask=0 * batch.mask))
        return (right.value(noise, phi, batch) - cost) / jnp.sum(batch.mask) + cost

    return right._replace(value=value)


def padding_counts(model: Model, **options: Any) -> objectives.Objective:
    right = objectives.bayes_by_backprop(model, **options)
    return right._replace(
        value=lambda noise, phi, batch: right.value(noise, phi, batch._replace(mask=jnp.ones_like(batch.mask)))
    )


def spread_for_free(model: Model, *, noise: str, **options: Any) -> objectives.Objective:
    """The spread of the weights feels its price alone, and nothing of the likelihood."""
    right = objectives.bayes_by_backprop(model, noise=noise, **options)
    held = functools.partial(jax.tree.map, jax.lax.stop_gradient)

    def value(noise: Any, phi: Any, batch: Batch) -> jax.Array:
        still = {"mean": phi["mean"], "rho": held(phi["rho"])}
        free = right.value(noise, phi, batch._replace(mask=0 * batch.mask))
        return right.value(noise, still, batch) + free - right.value(noise, still, batch._replace(mask=0 * batch.mask))

    return right._replace(value=value)


def weight_of(of: Callable) -> Callable:
    """π_i of (i from 1, M)."""
    return lambda right: lambda weights, batch: 1.0 if batch is None else of(weights, batch.index + 1, batch.count)


NOT_NORMALISED = weight_of(lambda weights, i, count: 1 / count if weights == "uniform" else 2.0**-i)
NO_SHARES = weight_of(lambda weights, i, count: 1.0)
OF_BLOCKS = weight_of(lambda weights, i, count: 2.0 ** (1 - i) / (2 - 2.0**-count))
KL_OF_SD = patched(
    "normal_kl",
    lambda right: (
        lambda m, rho, c, s: (
            right(m, rho, c, s) + jnp.sum(jax.nn.softplus(rho) - jax.nn.softplus(rho) ** 2) / (2 * jnp.mean(s) ** 2)
        )
    ),
)
NO_ENTROPY = patched("normal_kl", lambda right: lambda m, rho, c, s: right(m, rho, c, s) + jnp.sum(
    approximations.log_softplus(rho)))  # fmt: skip
DIRECT = patched("log_normal", lambda right: lambda away, rho: right(away, jax.lax.stop_gradient(rho)))
DIRECT_ALL = patched("log_normal", lambda right: lambda away, rho: jax.lax.stop_gradient(right(away, rho)))
EXPONENTIAL = patched(
    "log_normal", lambda right: lambda away, rho: right(away, approximations.inverse_softplus(jnp.exp(rho)))
)


def as_typed(w: jax.Array) -> jax.Array:
    """log [π N₁ + (1 − π) N₂]."""
    each = [jnp.exp(-((w / sd) ** 2) / 2) / (sd * math.sqrt(2 * math.pi)) for sd in (1.0, math.exp(-6))]
    return jnp.log(0.5 * each[0] + 0.5 * each[1])


def share_as_typed(weights: str, batch: Batch) -> Any:
    """2^{M−i}/(2^M − 1)."""
    if weights == "uniform":
        return 1 / batch.count
    two = jnp.asarray(2.0)
    return two ** (batch.count - batch.index - 1) / (two**batch.count - 1)


def determinant_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def log_priors(model: Model, params: Any, unconstrained: Any) -> list[jax.Array]:
        return [jnp.sum(d.log_prob(params[name])) for name, d in sorted(model.prior.items())]

    monkeypatch.setattr(Model, "log_priors", log_priors)


def log_normal_prior() -> Scores:
    """θ > 0 with a log-normal prior costs what log θ costs under a normal one: the log-determinant is in the price."""
    y = jnp.asarray([0.4, 1.1])
    positive = Model({"w": dist.LogNormal(0.2, 0.9)}, lambda params: dist.Normal(jnp.log(params["w"]), 0.5))
    real = Model({"w": dist.Normal(0.2, 0.9)}, lambda params: dist.Normal(params["w"], 0.5))
    phi = {"mean": {"w": jnp.array(0.3)}, "rho": {"w": jnp.array(-0.4)}}
    points, mass = nodes(20, 1)
    means = []
    for model in (positive, real):
        objective = objectives.bayes_by_backprop(model)
        of = jax.vmap(lambda eps, o=objective: flat(
            jax.value_and_grad(o.value, argnums=1)(({"w": eps}, ()), phi, core.whole((y, None)))))  # fmt: skip
        means.append(mass @ jax.jit(of)(points))
    return {"mean": error(means[0], means[1], 1e-9)}


def test_log_normal_prior():
    """The log-determinant is there."""
    assert_holds(log_normal_prior())


MUTANTS: dict[str, tuple[Callable, Callable[[], Scores]]] = {
    "σ for σ²: optimum": (KL_OF_SD, optimum),
    "entropy dropped: optimum": (NO_ENTROPY, optimum),
    "no shares: epoch": (patched("kl_weight", NO_SHARES), epoch),
    "shares not normalised: epoch": (patched("kl_weight", NOT_NORMALISED), epoch),
    "shares of another sum: optimum": (patched("kl_weight", OF_BLOCKS), lambda: optimum("geometric")),
    "shares not normalised: fractions": (nothing, lambda: shares(NOT_NORMALISED(None))),
    "shares as typed: fractions": (nothing, lambda: shares(share_as_typed)),
    "mean over rows: epoch": (nothing, lambda: epoch(mean_over_rows)),
    "mean over rows: optimum": (nothing, lambda: optimum(make=mean_over_rows)),
    "padding counts: epoch": (nothing, lambda: epoch(padding_counts)),
    "direct term of ρ dropped: two terms": (DIRECT, two_terms),
    "direct terms dropped: two terms": (DIRECT_ALL, two_terms),
    "e^ρ in log q: two terms": (EXPONENTIAL, two_terms),
    "e^ρ in log q: closed form": (EXPONENTIAL, closed_form),
    "direct terms dropped: closed form": (DIRECT_ALL, closed_form),
    "mixture as typed": (nothing, lambda: mixture_density(as_typed)),
    "log-determinant dropped: prior": (determinant_dropped, log_normal_prior),
    "likelihood blind to the spread": (nothing, lambda: weight_noise("normal", spread_for_free, 4_000)),
}


# The KL times a number and times M to a power, and the rows' likelihood times a number and times N/n to a power.
NUMBERS = {
    "right": (1.0, 0.0, 1.0, 0.0),
    "sign of the KL": (-1.0, 0.0, 1.0, 0.0),
    "½ dropped": (2.0, 0.0, 1.0, 0.0),
    "KL averaged over weights": (1 / D, 0.0, 1.0, 0.0),
    "no shares": (1.0, 1.0, 1.0, 0.0),
    "N/n on top of M": (1.0, 0.0, 1.0, 1.0),
    "Σ over five samples": (5.0, 0.0, 5.0, 0.0),
}


def test_wrong_numbers_are_caught():
    """The bound at its optimum raises the alarm at each of them, all in one program."""

    def under(numbers: jax.Array) -> jax.Array:
        kl, by_count, likelihood, by_scale = numbers

        def make(model: Model, **options: Any) -> objectives.Objective:
            right = objectives.bayes_by_backprop(model, **options)

            def value(noise: Any, phi: Any, batch: Batch) -> jax.Array:
                cost = right.value(noise, phi, batch._replace(mask=0 * batch.mask))
                rows = right.value(noise, phi, batch) - cost
                return likelihood * batch.scale**by_scale * rows + kl * batch.count**by_count * cost

            return right._replace(value=value)

        return optimum_means("uniform", make)

    found = jax.jit(jax.vmap(under))(jnp.array(list(NUMBERS.values())))
    killers = {name: broken(optimum_scores(mean)) for name, mean in zip(NUMBERS, np.asarray(found), strict=True)}
    assert not killers.pop("right")
    assert not [name for name, alarms in killers.items() if not alarms], "these live"


@pytest.mark.laws
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(monkeypatch, name):
    """The law raises the alarm."""
    patch, law = MUTANTS[name]
    patch(monkeypatch)
    killers = broken(law())
    print(f"{name}: {killers}")
    assert killers, f"{name} lives"


@pytest.mark.laws
@pytest.mark.parametrize("corrected", [True, False])
def test_a_climb_of_many_rows_knows_its_bound_by_corrected_batches(corrected: bool, monkeypatch: pytest.MonkeyPatch):
    """4,000 rows by eights: a stage's gain is known to 0.003 to 0.006 nats, uncorrected to 0.2 to 0.7 (four seeds)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, D))
    model, data = regression(x=x, y=x @ np.array([0.8, -0.4]) + NOISE * rng.normal(size=4000))
    if not corrected:
        monkeypatch.setattr(BayesByBackprop, "corrects", lambda *_: False)
    found = tr.infer(model, data, BayesByBackprop(batch_size=8, draws=50), verify=None).found
    assert (found["gain error"] < 0.03) == corrected
