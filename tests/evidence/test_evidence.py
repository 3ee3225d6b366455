"""The evidence: weights whose mean is Z exactly, bounds that hold the truth, verdicts that notice when they cannot.

Laws are functions of what they judge; the circulating mistakes go through the same ones and break them.
"""

import dataclasses
import functools
import math
import os
import signal
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Scores, Z, assert_holds, broken, error, of_p
from scipy import special, stats

import tractable as tr
from tractable.core.errors import DataError, ModelError, RunError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.model import Kernel, log_density
from tractable.diagnostics import weights as of_weights
from tractable.diagnostics.belief import Draws, Fitted, Point
from tractable.evidence import annealing, proposals, targets, weights
from tractable.evidence.annealed import annealed, next_beta
from tractable.gallery import conjugate
from tractable.gallery.models import readings
from tractable.glm import linear
from tractable.kernels import langevin, mala, metropolis, random_walk
from tractable.posterior.posterior import Posterior

pytestmark = pytest.mark.laws

log_evidence: Any = tr.log_evidence
COUNT = 100_000


def z_score(x: Any, mean: float) -> float:
    """The mean of independent numbers against a known one, by their own spread."""
    x = np.asarray(x, float)
    return abs(x.mean() - mean) / (x.std(ddof=1) / math.sqrt(x.size)) / Z


def check_of(found: Any, name: str) -> Any:
    return next(c for c in found.checks if c.name == name)


# Annealed importance sampling between normals, every transition an independent draw: all is known.
#
# p₀ = N(0, 1), r(x) = c − (x − 2)²/(2v):  f_β = Z_β N(m_β, v_β), 1/v_β = 1 + β/v, m_β = v_β 2β/v.

BETAS = np.array([0.0, 0.05, 0.3, 1.0])
WIDTH, CENTRE, HEIGHT = 0.3, 2.0, -0.7


def log_base(x: jax.Array) -> jax.Array:
    return -(x**2) / 2 - 0.5 * math.log(2 * math.pi)


def log_ratio(x: jax.Array) -> jax.Array:
    return HEIGHT - (x - CENTRE) ** 2 / (2 * WIDTH)


def bridge(beta: Any) -> tuple[Any, Any]:
    """(mean, variance) of f_β."""
    variance = 1 / (1 + beta / WIDTH)
    return variance * CENTRE * beta / WIDTH, variance


def log_z() -> float:
    """∫ N(x; 0, 1) e^{r(x)} dx."""
    return HEIGHT + 0.5 * math.log(2 * math.pi * WIDTH) + float(stats.norm.logpdf(CENTRE, 0, math.sqrt(1 + WIDTH)))


def independent(_: Callable, t: jax.Array) -> Kernel:
    """The exact transition at β_t: forgets where it was."""
    mean, variance = bridge(jnp.asarray(BETAS)[t])

    def step(noise, state, batch=None):
        return state._replace(position=mean + jnp.sqrt(variance) * noise), jnp.zeros(())

    def init(key, position):
        return tr.kernels.sgld(lambda x, b: 0.0, 0.1).init(key, position)

    return Kernel(init, lambda key, count, state, batch=None: jax.random.normal(key, (count,)), step)


def expected(beta: float) -> tuple[float, float]:
    """Mean and variance of r under f_β: a square of a normal."""
    mean, variance = bridge(beta)
    away = mean - CENTRE
    return HEIGHT - (away**2 + variance) / (2 * WIDTH), (2 * variance**2 + 4 * variance * away**2) / (2 * WIDTH) ** 2


def independent_transitions(run: Callable, average: Callable = of_weights.log_mean, count: int = COUNT) -> Scores:
    """E and Var of log w, forwards and backwards; E[w] = Z and E[1/w] = 1/Z."""
    steps = np.diff(BETAS)
    forward = [expected(b) for b in BETAS[:-1]]
    backward = [expected(b) for b in BETAS[1:]]
    scores = {}
    for name, moments, sign in (("forwards", forward, 1), ("backwards", backward, -1)):
        key = jax.random.key(0 if sign > 0 else 1)
        mean, variance = bridge(0.0 if sign > 0 else 1.0)
        start = mean + math.sqrt(variance) * jax.random.normal(jax.random.fold_in(key, 1), (count,))
        go = functools.partial(run, backwards=sign < 0)
        keys = jax.random.split(key, count)
        got = np.asarray(jax.jit(jax.vmap(lambda k, x, go=go: go(k, x, independent)))(keys, start), float)
        mean, variance = (sum(f * m[i] for f, m in zip(steps**p, moments, strict=True)) for i, p in ((0, 1), (1, 2)))
        scores[f"{name}: E log w"] = z_score(got, mean)
        scores[f"{name}: Var log w"] = z_score((got - mean) ** 2, variance)
        scores[f"{name}: E w"] = z_score(np.exp(sign * (got - log_z())), 1.0)
        spread = np.exp(sign * (got - log_z())).std() / math.sqrt(count)
        scores[f"{name}: estimate"] = abs(sign * average(sign * got) - log_z()) / spread / Z
    return scores


def right(key: jax.Array, x: jax.Array, kernel_of: Callable, backwards: bool) -> jax.Array:
    return annealed(key, x, log_base, log_ratio, kernel_of, jnp.asarray(BETAS), backwards=backwards).log_weight


def told(
    key: jax.Array, x: jax.Array, kernel_of: Callable, backwards: bool, *, ratio: Callable = log_ratio,
    shift: int = 0, after: bool = False, one_way: bool = False,
) -> jax.Array:  # fmt: skip
    """A plain loop, with the mistakes that circulate as options."""
    total = jnp.zeros(())
    last = len(BETAS) - 1
    backwards = backwards and not one_way
    order = range(last, 0, -1) if backwards else range(1, last + 1)
    for t in order:
        low, high = (min(max(i + shift, 0), last) for i in (t - 1, t))
        gain = BETAS[high] - BETAS[low]
        kernel = kernel_of(lambda x, t=t: log_base(x) + BETAS[t] * log_ratio(x), t)
        moved = kernel(jax.random.fold_in(key, t), kernel.init(key, x))[0].position
        total = total + gain * ratio(moved if after != backwards else x)
        x = moved
    return total


@pytest.mark.test
def test_independent_transitions():
    """Mean, variance and exponential mean of log w, both ways, against closed forms."""
    assert_holds(independent_transitions(right), COUNT)


@pytest.mark.test
def test_a_plain_loop_says_the_same():
    """The naive second telling obeys the same law, so what breaks below is the mistake."""
    assert_holds(independent_transitions(told), COUNT)


WRONG_RUNS: dict[str, Callable] = {
    "prior counted twice": functools.partial(told, ratio=lambda x: log_ratio(x) + log_base(x)),
    "β off by one step": functools.partial(told, shift=1),
    "weight after the transition": functools.partial(told, after=True),
    "forward weights for the reverse run": functools.partial(told, one_way=True),
}


@pytest.mark.test
@pytest.mark.parametrize("name", WRONG_RUNS)
def test_wrong_runs_are_caught(name):
    assert broken(independent_transitions(WRONG_RUNS[name], count=20_000))


@pytest.mark.test
def test_mean_of_logs_is_caught():
    """Instead of the log of the mean."""
    assert broken(independent_transitions(right, lambda w: float(np.mean(w)), 20_000))


# Transitions that are not exact: E[w] = Z all the same, whatever the step size, if they leave the bridge as it is.


def wells(x: jax.Array) -> jax.Array:
    """Bounded, so that w and 1/w have all their moments."""
    return 2.0 * jnp.cos(2.5 * x + 0.5)


GRID = np.linspace(-7, 7, 20_001)
MASS = np.exp(np.asarray(wells(jnp.asarray(GRID))) + stats.norm.logpdf(GRID))
LOG_WELLS = float(np.log(np.sum(MASS) * (GRID[1] - GRID[0])))


def unbiased(kernel_of: Callable, transitions: int = 1, count: int = COUNT) -> Scores:
    """E[w] = Z from exact draws of the base, E[1/w] = 1/Z back from exact draws of the target."""
    betas = jnp.array([0.0, 0.1, 0.4, 1.0])
    run = functools.partial(
        annealed, log_base=log_base, log_ratio=wells, kernel_of=kernel_of, betas=betas, transitions=transitions
    )
    keys = jax.random.split(jax.random.key(3), count)
    base = jax.random.normal(jax.random.key(4), (count,))
    uniform = np.asarray(jax.random.uniform(jax.random.key(5), (count,)))
    target = jnp.asarray(np.interp(uniform, (np.cumsum(MASS) - MASS / 2) / MASS.sum(), GRID))
    forward = jax.jit(jax.vmap(lambda k, x: run(k, x).log_weight))(keys, base)
    backward = jax.jit(jax.vmap(lambda k, x: run(k, x, backwards=True).log_weight))(keys, target)
    return {
        "E w": z_score(np.exp(np.asarray(forward) - LOG_WELLS), 1.0),
        "E 1/w": z_score(np.exp(LOG_WELLS - np.asarray(backward)), 1.0),
    }


def langevin_of(density: Callable, t: jax.Array) -> Kernel:
    return mala(density, jnp.array([0.0, 1.0, 0.5, 0.2])[t])


def unadjusted(density: Callable, t: jax.Array) -> Kernel:
    """Langevin steps taken as if they were symmetric: no q(here|there)/q(there|here)."""
    return metropolis(density, langevin(jnp.array([0.0, 1.0, 0.5, 0.2])[t])._replace(log_ratio=None))


def other_temperature(density: Callable, t: jax.Array) -> Kernel:
    """Leaves the target as it is, not the bridge."""
    del density
    return random_walk(lambda x: log_base(x) + wells(x), 0.8)


@pytest.mark.parametrize(
    ("kernel_of", "transitions"), [(lambda density, t: random_walk(density, 0.8), 1), (langevin_of, 2)]
)
def test_unbiased(kernel_of, transitions):
    assert_holds(unbiased(kernel_of, transitions), COUNT)


@pytest.mark.parametrize("kernel_of", [unadjusted, other_temperature])
def test_transitions_that_leave_the_bridge_are_caught(kernel_of):
    assert broken(unbiased(kernel_of))


def test_codes_of_many_data():
    """p(x) of each datum, by ``vmap`` over data: z ~ N(0, I), x | z ~ N(z, s²)."""
    sd, x = 0.5, jnp.array([[0.1, -1.0], [2.0, 0.3], [-1.5, 1.5]])

    def one(key, datum):
        begin, key = jax.random.split(key)
        return annealed(
            key, jax.random.normal(begin, (2,)), lambda z: dist.Normal().log_prob(z).sum(),
            lambda z: dist.Normal(z, sd).log_prob(datum).sum(), lambda density, t: mala(density, 0.3),
            jnp.linspace(0, 1, 9),
        ).log_weight  # fmt: skip

    keys = jax.random.split(jax.random.key(0), (3, 5000))
    weights = np.exp(np.asarray(jax.jit(jax.vmap(jax.vmap(one, (0, None))))(keys, x)))
    truth = stats.norm.pdf(np.asarray(x), 0, math.sqrt(1 + sd**2)).prod(1)
    assert_holds({f"datum {i}": z_score(weights[i], truth[i]) for i in range(3)}, 5000)


@pytest.mark.test
def test_impossible_places_weigh_nothing():
    """r = −∞ and NaN are weights of 0, and E[w] is still Z = P(x > 0)."""

    def half(x):
        return jnp.where(x > 0, 0.0, jnp.where(x > -1, jnp.nan, -jnp.inf))

    keys = jax.random.split(jax.random.key(0), 20_000)
    start = jax.random.normal(jax.random.key(1), (20_000,))
    betas = jnp.array([0.0, 0.5, 1.0])
    run = jax.vmap(lambda k, x: annealed(k, x, log_base, half, lambda f, t: random_walk(f, 1.0), betas).log_weight)
    weights = np.exp(np.asarray(jax.jit(run)(keys, start)))
    assert_holds({"Z": z_score(weights, 0.5), "0 or 1": error(weights * (1 - weights), 0.0, 1e-12)}, 20_000)


@pytest.mark.quick
def test_next_beta_keeps_its_share():
    """(Σ w)²/(S Σ w²) is the share at β', to the last digits; 1 where there is nothing to keep."""
    ratios = -(np.random.default_rng(0).normal(size=300) ** 2) * 50
    scores = {}
    for share in (0.3, 0.5, 0.9):
        beta = next_beta(np.append(ratios, -np.inf), 0.25, share)
        w = np.exp((beta - 0.25) * ratios)
        scores[f"{share}"] = error(w.sum() ** 2 / (300 * np.sum(w**2)), share, 1e-9)
    scores["flat"] = error(next_beta(np.full(5, -3.0), 0.25), 1.0, 1e-12)
    assert_holds(scores)


# What weights say.


def averages(average: Callable) -> Scores:
    """log (1/S) Σ w, where the weights are those of 2000 flips too."""
    with np.errstate(all="ignore"):
        return {
            "two": error(average(np.log([1.0, 3.0])), math.log(2.0), 1e-12),
            "2000 flips": error(average(np.array([-1400.0, -1400.0 + math.log(3)])), math.log(2.0) - 1400, 1e-9),
            "one impossible": error(average(np.array([-np.inf, 0.0])), -math.log(2.0), 1e-12),
            "all impossible": 0.0 if average(np.full(3, -np.inf)) == -np.inf else math.inf,
        }


@pytest.mark.quick
def test_averages():
    assert_holds(averages(of_weights.log_mean))


@pytest.mark.quick
@pytest.mark.parametrize(
    "wrong",
    [lambda w: np.log(np.mean(np.exp(w))), np.mean, lambda w: special.logsumexp(w)],
    ids=["no logsumexp", "mean of logs", "sum for mean"],
)
def test_wrong_averages_are_caught(wrong):
    assert broken(averages(wrong))


@pytest.mark.quick
def test_errors_and_effective_numbers():
    """Of w = 1, 2, 3: sd 1, mean 2, (Σ w)²/Σ w² = 36/14."""
    log_weights = np.log([1.0, 2.0, 3.0]) - 1300
    assert_holds(
        {
            "error": error(of_weights.relative_error(log_weights), 1 / (2 * math.sqrt(3)), 1e-12),
            "effective": error(of_weights.effective(log_weights), 36 / 14, 1e-12),
            "impossible": error(of_weights.effective(np.full(3, -np.inf)), 0.0, 1e-12),
        }
    )


@pytest.mark.quick
def test_smoothing_touches_the_tail_alone():
    """All but the 3√S largest weights stay; the order stays; none grows past the largest; equal ones stay."""
    log_weights = 1.3 * np.random.default_rng(0).normal(size=2000) - 900
    got = weights.smooth_tail(log_weights)
    order = np.argsort(log_weights)
    body, tail = order[: -math.ceil(3 * math.sqrt(2000))], order[-math.ceil(3 * math.sqrt(2000)) :]
    assert_holds(
        {
            "body": error(got[body], log_weights[body], 1e-9),
            "order": 0.0 if np.all(np.diff(got[order]) >= -1e-9) else math.inf,
            "largest": max(0.0, (got.max() - log_weights.max()) / 1e-9),
            "tail moved": 0.0 if np.max(np.abs(got[tail] - log_weights[tail])) > 1e-3 else math.inf,
            "equal": error(weights.smooth_tail(np.full(200, -3.0)), -3.0, 1e-12),
        }
    )


def laplace_of_a_normal(value_of: Callable) -> Scores:
    """Exact where the posterior is normal: a regression of three weights."""
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.5
    exact = conjugate.linear_regression(x, y, 0.5, 2.0)
    log_joint = stats.norm.logpdf(y, x @ exact.mean, 0.5).sum() + stats.norm.logpdf(exact.mean, 0, 2.0).sum()
    root = np.linalg.cholesky(exact.covariance)
    return {"log p(y)": error(value_of(float(log_joint), root), exact.log_evidence, 1e-9)}


@pytest.mark.quick
def test_laplace_of_a_normal():
    assert_holds(laplace_of_a_normal(proposals.laplace_value))


@pytest.mark.quick
@pytest.mark.parametrize(
    "wrong",
    [
        lambda v, root: v + np.log(np.diag(root)).sum(),
        lambda v, root: v + len(root) * np.log(2 * np.pi) / 2 - np.log(np.diag(root)).sum(),
        lambda v, root: v + len(root) * np.log(2 * np.pi) / 2 + 2 * np.log(np.diag(root)).sum(),
        lambda v, root: v - len(root) * np.log(12) / 2,
    ],
    ids=["no (d/2) log 2π", "+½ log |Λ|", "log |Λ|", "BIC"],
)
def test_wrong_laplaces_are_caught(wrong):
    assert broken(laplace_of_a_normal(wrong))


# The sandwich over seeds.


@functools.cache
def both_ways(seeds: int, chains: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Log weights (seed, chain), forwards and backwards, in two dimensions by MALA, in few steps."""
    mean, variance = (jnp.full(2, bridge(1.0)[i]) for i in (0, 1))

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        k1, k2, k3, k4 = jax.random.split(key, 4)
        run = functools.partial(
            annealed, log_base=lambda z: log_base(z).sum(), log_ratio=lambda z: log_ratio(z).sum(),
            kernel_of=lambda f, t: mala(f, 0.3), betas=jnp.linspace(0, 1, 33) ** 2,
        )  # fmt: skip
        base = jax.random.normal(k1, (chains, 2))
        target = mean[None] + jnp.sqrt(variance)[None] * jax.random.normal(k2, (chains, 2))
        forward = jax.vmap(lambda k, z: run(k, z).log_weight)(jax.random.split(k3, chains), base)
        back = jax.vmap(lambda k, z: run(k, z, backwards=True).log_weight)(jax.random.split(k4, chains), target)
        return forward, back

    forward, back = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(7), seeds))
    return np.asarray(forward), np.asarray(back)


def sandwich(upper: Callable, seeds: int = 400) -> Scores:
    """[lower, upper] holds log Z in at least 99 % of seeds, each side in 99.5 %."""
    truth = 2 * log_z()
    forward, back = both_ways(seeds)
    lower = np.array([of_weights.stochastic_bound(w) for w in forward])
    above = np.array([upper(f, b) for f, b in zip(forward, back, strict=True)])
    missed = {"below": np.sum(lower > truth), "above": np.sum(above < truth)}
    scores = {name: of_p(float(stats.binom.sf(int(m) - 1, seeds, 0.005))) for name, m in missed.items()}
    outside = float(sum(missed.values())) / seeds
    print(f"{1 - outside:.4f} of seeds inside; gap {np.mean(above - lower):.2f}, Var log w {forward.var(1).mean():.2f}")
    return scores | {"outside": outside / 0.01, "gap": float(np.mean(above - lower)) / 2.5}


def test_sandwich_holds_the_truth():
    """At least 99 % of 400 seeds, in a mean gap of at most 2.5 nats."""
    assert_holds(sandwich(lambda forward, back: -of_weights.stochastic_bound(-back)))


@pytest.mark.test("forward estimate")
@pytest.mark.parametrize(
    "wrong",
    [
        lambda forward, back: -of_weights.stochastic_bound(-forward),
        lambda forward, back: -of_weights.log_mean(-back),
        lambda forward, back: of_weights.log_mean(forward),
    ],
    ids=["forward weights for the reverse run", "no error bar", "forward estimate"],
)
def test_wrong_sandwiches_are_caught(wrong):
    assert broken(sandwich(wrong))


# Models whose evidence is known.


def coin_of(size: int, alpha: float = 2.0, beta: float = 3.0) -> tuple[tr.Model, tr.Data, float]:
    """A fresh model at every call: a patched one has no compilation to find."""
    y = np.random.default_rng(0).binomial(1, 0.7, size)
    model = tr.Model({"theta": dist.Beta(alpha, beta)}, lambda params: dist.Bernoulli(params["theta"]))
    return model, tr.Data(y), conjugate.beta_bernoulli(y, alpha, beta).log_evidence


def mean_of() -> tuple[tr.Model, tr.Data, float]:
    y = readings()
    model = tr.Model({"mu": dist.Normal(0.0, 10.0)}, lambda params: dist.Normal(params["mu"], 2.0))
    return model, tr.Data(y), conjugate.normal_mean(y, 2.0, 0.0, 10.0).log_evidence


def regression_of(features: int, noise_sd: float = 1.0) -> tuple[tr.Model, tr.Data, float]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4 * features, features))
    y = x @ rng.normal(size=features) + noise_sd * rng.normal(size=len(x))
    model = linear.bayesian_linear(features, noise_sd, 1.0)
    return model, tr.Data(y, x), conjugate.linear_regression(x, y, noise_sd, 1.0).log_evidence


PROBLEMS = {"coin": lambda: coin_of(20), "normal mean": mean_of, "regression": lambda: regression_of(2)}
SMALL: dict[str, dict[str, Any]] = {
    "monte-carlo": {"draws": 20_000},
    "importance": {"draws": 4000},
    "annealed": {"chains": 128, "temperatures": 100, "pilot": 256},
}


def known(problem: Callable, method: str, **settings: Any) -> Scores:
    """The estimate within 5.33 of its own standard errors, the truth between the bounds."""
    model, data, truth = problem()
    found = log_evidence(model, data, method, **(SMALL[method] | settings))
    outside = max(found.lower - truth, truth - found.upper, 0.0)
    return {
        "estimate": abs(found.estimate - truth) / found.standard_error / Z,
        # 5.33 for 2.58: bounds at the alarm's rate; the ELBO's side is no nearer.
        "bounds": outside / (found.standard_error * (Z - 2.58)),
        "verdict": 0.0 if found.verdict == ("trust" if found.upper < math.inf else "caution") else math.inf,
        "error": found.standard_error / 0.2,
    }


@pytest.mark.test("normal mean-monte-carlo", "regression-monte-carlo")
@pytest.mark.parametrize("method", SMALL)
@pytest.mark.parametrize("name", PROBLEMS)
def test_known_evidence(name, method):
    one_way = method == "annealed" and name != "regression"  # the way back takes NUTS, compiled for every model
    assert_holds(known(PROBLEMS[name], method, **({"reverse": False} if one_way else {})))


@pytest.mark.test
def test_random_walk_and_transitions():
    assert_holds(known(PROBLEMS["regression"], "annealed", kernel="random-walk", transitions=3, reverse=False))


def test_two_thousand_flips():
    """The likelihood underflows to 0, its logarithm does not."""
    assert_holds(known(lambda: coin_of(2000), "monte-carlo"))


@pytest.mark.parametrize("method", ["importance", "annealed"])
def test_missing_jacobian_is_caught(method, monkeypatch):
    monkeypatch.setattr(tr.Model, "log_jacobian", lambda *_: jnp.zeros(()))
    assert broken(known(lambda: coin_of(20), method, **({"reverse": False} if method == "annealed" else {})))


def test_prior_counted_twice_is_caught(monkeypatch):
    right_one = targets.log_likelihood
    monkeypatch.setattr(
        targets,
        "log_likelihood",
        lambda model, rows, params: right_one(model, rows, params) + model.log_prior(params),
    )
    assert broken(known(lambda: coin_of(20), "monte-carlo"))


@pytest.mark.test
def test_exact_q_of_a_coin():
    """Weights from the posterior itself are all log p(y), in logits of θ with their log-determinant."""
    model, data, truth = coin_of(20)
    heads = int(np.sum(data.y))
    theta = np.random.default_rng(0).beta(2.0 + heads, 3.0 + 20 - heads, 500)
    target = jax.jit(jax.vmap(log_density(model, data.arrays(), flat=True)))
    log_q = stats.beta.logpdf(theta, 2.0 + heads, 3.0 + 20 - heads) + np.log(theta) + np.log1p(-theta)
    log_weights = np.asarray(target(jnp.asarray(special.logit(theta))[:, None])) - log_q
    smooth = weights.smooth_tail(log_weights)
    assert_holds(
        {"weights": error(log_weights, truth, 1e-9), "estimate": error(of_weights.log_mean(smooth), truth, 1e-8)}
    )


def test_exact_q_of_a_normal():
    """q from ``Laplace`` is the posterior: equal weights, the evidence to 1e-8, no error left, k-hat −∞."""
    model, data, truth = regression_of(3)
    posterior = tr.infer(model, data, tr.Laplace())
    found = log_evidence(model, method="importance", posterior=posterior, draws=500)
    assert_holds(
        {
            "weights": error(found.log_weights, truth, 1e-8),
            "estimate": error(found.estimate, truth, 1e-8),
            "error": error(found.standard_error, 0.0, 1e-9),
            "k-hat": 0.0 if check_of(found, "k-hat").value == -math.inf else math.inf,
        }
    )
    assert found.verdict == "trust"
    alone = log_evidence(model, data, "laplace", draws=500)
    assert_holds({"laplace": error(alone.estimate, truth, 1e-8)})
    assert alone.verdict == "trust" and math.isnan(alone.standard_error) and "no error bar" in str(alone)


@pytest.mark.parametrize("features, rows", [(1, 20), (3, 3000), (10, 500)])
def test_a_perfect_approximation_is_the_best_case(features: int, rows: int) -> None:
    """Of a normal posterior in single precision, every method's answer is right and trusted, for ten seeds.

    3,000 rows have a log density of −4,500 nats, which single precision rounds to 0.0005. The largest weights of
    Student t's around the mode then have few different values, and of those no tail index is a number.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    y = (x @ (10 * rng.normal(size=features)) + rng.normal(size=rows)).astype(np.float32)
    truth = conjugate.linear_regression(x.astype(float), y.astype(float), 1.0, 10.0).log_evidence
    with jax.enable_x64(False):
        model, data = linear.bayesian_linear(features, 1.0, 10.0), tr.Data(y, x)
        exact = tr.infer(model, data, tr.Laplace(), progress=False)
        for seed in range(10):
            found = {
                "Laplace": log_evidence(model, data, "laplace", seed=seed, draws=1000),
                "q": log_evidence(model, data, "importance", seed=seed, posterior=exact, draws=1000),
                "t": log_evidence(model, data, "importance", seed=seed),
            }
            if seed == 0 and rows == 20:
                found["annealed"] = log_evidence(model, data, "annealed", seed=seed)
            assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(found, "trust")
            rounded = 1e-6 * abs(truth)
            errors = {n: np.nan_to_num(e.standard_error) * Z + rounded for n, e in found.items()}
            assert_holds({name: abs(each.estimate - truth) / errors[name] for name, each in found.items()})
            assert check_of(found["q"], "k-hat").value == -math.inf


def test_draws_of_a_prior_alone_have_equal_weights() -> None:
    """Without data the prior is the posterior: every weight is 1, up to rounding."""
    model = tr.Model({"a": dist.Normal(3.0, 2.0), "b": dist.Gamma(2.0, 1.0)})
    with jax.enable_x64(False):
        for seed in range(10):
            found = log_evidence(model, None, "monte-carlo", seed=seed, draws=1000)
            assert (found.estimate, found.verdict) == (0.0, "trust")


def test_narrow_q_is_not_trusted():
    """A mean field on collinear columns, made half as wide: the weights' tail says so."""
    model, data, truth = regression_of(6)
    posterior = tr.infer(model, data, tr.Laplace())
    fitted: Any = posterior.fitted
    phi = dict(fitted.phi)
    phi["rho"], phi["lower"] = np.log(np.expm1(0.4 * np.log1p(np.exp(phi["rho"])))), 0.4 * phi["lower"]
    posterior = dataclasses.replace(posterior, belief=dataclasses.replace(fitted, phi=phi))
    found = log_evidence(model, data, "importance", posterior=posterior, draws=4000)
    assert found.verdict == "reject" and check_of(found, "k-hat").value > 0.7
    assert found.lower < truth


# Jensen.


@functools.cache
def exact_bias(draws: int, y: float, noise_sd: float, prior_sd: float) -> float:
    """E log (1/K) Σ w − log E w, by log x = ∫ (e^{−t} − e^{−tx})/t dt: two quadratures, no simulation."""
    mu = np.linspace(-9, 9, 4001)
    share = stats.norm.pdf(mu) * (mu[1] - mu[0])
    log_z = stats.norm.logpdf(y, 0, math.hypot(noise_sd, prior_sd))
    w = np.exp(stats.norm.logpdf(prior_sd * mu, y, noise_sd) - log_z)
    u = np.linspace(-30, 60, 1501)
    laplace = np.array([share @ np.exp(-np.exp(each) / draws * w) for each in u]) ** draws
    return float(np.sum(np.exp(-np.exp(u)) - laplace) * (u[1] - u[0]))


@functools.cache
def tens(runs: int = 20_000) -> np.ndarray:
    """Log likelihoods of ten prior draws, over and over: (runs, 10)."""
    model = tr.Model({"mu": dist.Normal(0.0, 5.0)}, lambda params: dist.Normal(params["mu"], 0.5))
    target = targets.of_parameters(model, tr.Data(np.array([1.0])))
    return np.asarray(weights.log_weights(target, None, jax.random.key(0), 10 * runs)).reshape(runs, 10)


def jensen(average: Callable) -> Scores:
    """The mean over many runs of ten draws is low by exactly this much: more than half a nat."""
    got = np.array([average(each) for each in tens()])
    truth = float(stats.norm.logpdf(1.0, 0, math.hypot(5.0, 0.5)))
    bias = exact_bias(10, 1.0, 0.5, 5.0)
    print(f"bias {bias:.4f}, simulated {got.mean() - truth:.4f} ± {got.std() / math.sqrt(len(got)):.4f}")
    return {"E log mean": z_score(got - truth, bias), "it is large": 0.5 / -bias}


@pytest.mark.test
def test_jensen():
    assert_holds(jensen(of_weights.log_mean), 20_000)


def test_wrong_means_of_ten_are_caught():
    assert broken(jensen(np.mean))
    assert broken(jensen(lambda w: of_weights.log_mean(w) + of_weights.relative_error(w) ** 2 / 2))


@pytest.mark.test
def test_the_bias_reported():
    """−var/(2S) is what the exact bias tends to; the check is an estimate of it."""
    model = tr.Model({"mu": dist.Normal(0.0, 3.0)}, lambda params: dist.Normal(params["mu"], 0.5))
    found = log_evidence(model, np.array([1.0]), "monte-carlo", draws=2000)
    bias = exact_bias(2000, 1.0, 0.5, 3.0)
    assert_holds({"reported": error(check_of(found, "Jensen bias").value / bias, 1.0, 0.2)})


# Failures that must be noticed, and agreements.


def test_rejection_agrees():
    """Its own evidence, and the sandwich that comes back from its exact draws."""
    model, data, truth = coin_of(30)
    posterior = tr.infer(model, data, tr.Rejection(draws=500))
    value, spread = posterior.log_evidence()[:2]
    found = log_evidence(model, data, "annealed", posterior=posterior, **SMALL["annealed"])
    assert "exact" in check_of(found, "posterior draws").sentence
    assert_holds(
        {
            "rejection": abs(value - truth) / spread / Z,
            "both": abs(value - found.estimate) / math.hypot(spread, found.standard_error) / Z,
            "inside": max(found.lower - truth, truth - found.upper, 0.0) / 0.1,
        }
    )
    assert found.verdict == "trust"


def test_two_modes():
    """Laplace at one of two modes is half an evidence short, and not trusted; annealing is right."""
    x = linear.draw_mixture(100, seed=3)
    truth = conjugate.mixture_grid(x).log_mass
    model = linear.gaussian_mixture_2d()
    alone = log_evidence(model, x, "laplace", draws=1000)
    assert abs(alone.estimate - truth) > 0.5 and alone.verdict == "reject"
    assert check_of(alone, "modes").value == 2
    found = log_evidence(model, x, "annealed", chains=128, temperatures=150, pilot=256, reverse=False)
    assert_holds(
        {
            "estimate": abs(found.estimate - truth) / found.standard_error / Z,
            "inside": max(found.lower - truth, truth - found.upper, 0.0) / 0.1,
        }
    )


def test_apart_modes_are_noticed():
    """Modes so far apart that no weight from one sees the other: the climbs do."""

    def density(z):
        return jnp.logaddexp(-jnp.sum((z - 4) ** 2) / 0.02, -jnp.sum((z + 4) ** 2) / 0.02)

    model = tr.Model.from_log_density(density, jnp.zeros(1))
    found = log_evidence(model, method="laplace", draws=500, starts=8)
    truth = math.log(2 * math.sqrt(2 * math.pi) * 0.1)
    assert check_of(found, "k-hat").verdict == "trust" and abs(found.estimate - truth + math.log(2)) < 1e-6
    assert found.verdict == "reject" and check_of(found, "modes").verdict == "reject"


def test_many_sharp_weights():
    """Twenty weights known to a twentieth of their prior: Monte Carlo is nats off, says ± 1, and is rejected."""
    model, data, truth = regression_of(20, 0.3)
    plain = log_evidence(model, data, "monte-carlo", draws=20_000)
    assert plain.verdict == "reject" and truth - plain.estimate > 20 and plain.standard_error <= 1
    assert "too low" in check_of(plain, "ESS").sentence
    found = log_evidence(model, data, "annealed", chains=64, temperatures=1500)
    assert_holds(
        {
            "estimate": abs(found.estimate - truth) / found.standard_error / Z,
            "inside": max(found.lower - truth, truth - found.upper, 0.0) / 0.1,
            "gap": (found.upper - found.lower) / 5,
        }
    )


def test_log_densities():
    """log Z of an unnormalised Gamma and Normal, of a positive and a real parameter, from a normal around the mode."""

    def density(params):
        rate, place = params["rate"], params["place"]
        return 2.0 * jnp.log(rate) - 4.0 * rate - (place - 3.0) ** 2 / 8

    position = {"rate": jnp.array(1.0), "place": jnp.array(0.0)}
    support = {"rate": dist.constraints.positive, "place": dist.constraints.real}
    model = tr.Model.from_log_density(density, position, support)
    truth = special.gammaln(3.0) - 3 * math.log(4.0) + math.log(2 * math.sqrt(2 * math.pi))
    scores = {}
    for method, settings in SMALL.items():
        one_way = {"reverse": False} if method == "annealed" else {}
        found = log_evidence(model, method=method, **settings, **one_way)
        scores[method] = abs(found.estimate - truth) / found.standard_error / Z
        scores[f"{method} verdict"] = 0.0 if found.verdict == ("caution" if one_way else "trust") else math.inf
        if method != "importance":
            assert "no prior to draw from" in check_of(found, "base").sentence
    scores["laplace"] = abs(log_evidence(model, method="laplace").estimate - truth) / 0.2
    assert_holds(scores)


@pytest.mark.test
def test_callable_prior_is_cautioned():
    """log ∫ p(y|θ) prior(θ) dθ; of a prior that integrates to 1 it is the evidence, and it may not."""
    model = tr.Model(
        lambda mu: -(mu**2) / 200 - math.log(10.0) - 0.5 * math.log(2 * math.pi),
        lambda mu: dist.Normal(mu, 2.0),
        position=jnp.array(0.0),
    )
    found = log_evidence(model, readings(), "monte-carlo", draws=5000)
    truth = conjugate.normal_mean(readings(), 2.0, 0.0, 10.0).log_evidence
    assert_holds({"estimate": abs(found.estimate - truth) / found.standard_error / Z})
    assert found.verdict == "caution" and "integrates to 1" in check_of(found, "normalisation").sentence


@pytest.mark.test
def test_prior_alone():
    """Without data p() = 1."""
    found = log_evidence(tr.Model({"mu": dist.Normal(0.0, 1.0)}), method="monte-carlo", draws=200)
    assert_holds({"estimate": error(found.estimate, 0.0, 1e-12), "error": error(found.standard_error, 0.0, 1e-12)})


def test_equal_seeds_give_equal_results():
    model, data, _ = coin_of(20)
    first, second, third = (
        log_evidence(model, data, "annealed", seed=seed, reverse=False, **SMALL["annealed"]) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.log_weights, second.log_weights) and first.estimate != third.estimate
    assert first.upper == math.inf and check_of(first, "gap").verdict == "caution" and first.verdict == "caution"


@pytest.mark.test
def test_it_prints():
    """The verdict, the estimate and every check, a line each."""
    model, data, _ = coin_of(20)
    found = log_evidence(model, data, "monte-carlo", draws=2000)
    lines = str(found).splitlines()
    assert lines[0] == "log evidence by monte-carlo: trust" and "±" in lines[1] and "99 %" in lines[2]
    assert len(lines) == 3 + len(found.checks) and found.seconds > 0


# Of a latent model at a given θ.


def cook() -> tuple[LatentModel, dict[str, jax.Array], np.ndarray]:
    """Ratings of a cook in two moods."""
    prior = {"good": dist.Beta(2.0, 2.0), "mean": dist.Normal(jnp.array([4.0, 7.0]), 2.0).to_event(1)}
    model = LatentModel(prior, lambda p: dist.Bernoulli(p["good"]), lambda p, z: dist.Normal(p["mean"][z], 1.2))
    theta = {"good": jnp.array(0.6), "mean": jnp.array([4.0, 8.0])}
    return model, theta, np.array([3.1, 4.4, 8.3, 7.7, 5.9, 9.0, 4.0, 6.6])


def moods(combine: Callable = special.logsumexp) -> float:
    _, theta, x = cook()
    shares = np.log([0.4, 0.6])
    each = shares[None] + stats.norm.logpdf(x[:, None], np.asarray(theta["mean"])[None], 1.2)
    return float(sum(combine(row) for row in each))


def enumerated_law(value: float) -> Scores:
    return {"Σ log p(x|θ)": error(value, moods(), 1e-10)}


@pytest.mark.test
def test_enumeration_is_exact():
    model, theta, x = cook()
    found = log_evidence(model, x, theta=theta)
    assert_holds(enumerated_law(found.estimate) | {"rows": error(found.log_weights.sum(), moods(), 1e-10)})
    assert (found.method, found.verdict, found.standard_error) == ("enumeration", "trust", 0.0)
    assert found.lower == found.estimate == found.upper
    drawn = log_evidence(model, x, "monte-carlo", theta=theta)
    assert_holds({"drawn": abs(drawn.estimate - moods()) / drawn.standard_error / Z})
    for wrong in (np.max, np.mean, lambda row: math.log(np.exp(row - np.log([0.4, 0.6])).mean())):
        assert broken(enumerated_law(moods(wrong)))


NOISE, SPREAD = 0.5, 2.0


def normal_code() -> LatentModel:
    """z ~ N(m, v), x | z ~ N(z, s²), so x ~ N(m, v + s²)."""
    return LatentModel(
        {"m": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["m"], SPREAD), lambda p, z: dist.Normal(z, NOISE)
    )


THETA = {"m": jnp.array(0.3)}


def normal_truth(x: np.ndarray) -> np.ndarray:
    return stats.norm.logpdf(x, 0.3, math.hypot(SPREAD, NOISE))


@functools.cache
def hundreds(rows: int = 20_000) -> np.ndarray:
    """(rows, 100) log weights of the same datum."""
    causes = targets.of_causes(normal_code(), THETA, tr.Data(np.full(rows, 1.3)))
    return np.asarray(weights.log_weights(causes, None, jax.random.key(0), 100))


def summing(summed: Callable, log_weights: np.ndarray | None = None) -> Scores:
    """Σ_n is low by N times the exact bias of a datum, its error is the spread over data, its bias the one reported."""
    log_weights = hundreds() if log_weights is None else log_weights
    size = len(log_weights)
    got, each = summed(log_weights), of_weights.sum_up(log_weights).estimates
    bias = size * exact_bias(100, 1.0, NOISE, SPREAD)  # 1.3 is 1 from the mean of 0.3
    spread = math.sqrt(size) * each.std(ddof=1)
    low = got.estimate - size * float(normal_truth(np.array(1.3)))
    print(f"low by {low:.1f}, exact {bias:.1f}, reported {got.bias:.1f} ± {got.error:.1f}")
    return {
        "estimate": abs(low - bias) / max(spread, 1e-9) / Z,
        "error": error(got.error / spread, 1.0, 0.05) if spread > 0 else math.inf,
        "bias": error(got.bias / bias, 1.0, 0.1),
    }


def test_biases_of_data_add_up():
    """Each datum is low by a hundredth of a nat; 20,000 of them by two hundred."""
    assert_holds(summing(of_weights.sum_up), 20_000)


def altered(**changes: Callable) -> Callable:
    """The summary with one number computed otherwise."""

    def wrong(log_weights: np.ndarray) -> Any:
        right = of_weights.sum_up(log_weights)
        kept = {name: getattr(right, name) for name in ("estimate", "error", "bias")}
        changed = {name: change(right, log_weights) for name, change in changes.items()}
        return type("Wrong", (), kept | changed)

    return wrong


WRONG_SUMS = {
    "mean of logs": altered(estimate=lambda found, w: w.mean(1).sum()),
    "log of the mean over data": altered(estimate=lambda found, w: len(w) * of_weights.log_mean(w.ravel())),
    "bias taken off twice": altered(estimate=lambda found, w: found.estimate - 2 * found.bias),
    "errors added": altered(error=lambda found, w: found.errors.sum()),
    "error of the mean": altered(error=lambda found, w: found.error / math.sqrt(len(w))),
    "biases as squares": altered(bias=lambda found, w: -math.sqrt(np.sum(found.errors**4)) / 2),
    "bias without ½": altered(bias=lambda found, w: 2 * found.bias),
    "bias up": altered(bias=lambda found, w: -found.bias),
}


@pytest.mark.test("bias taken off twice", "error of the mean")
@pytest.mark.parametrize("name", WRONG_SUMS)
def test_wrong_sums_are_caught(name):
    assert broken(summing(WRONG_SUMS[name]))


def test_draws_shared_by_data_are_caught():
    """Their errors are no longer independent."""
    assert broken(summing(of_weights.sum_up, np.broadcast_to(hundreds()[:1], (20_000, 100))))


@pytest.mark.test
def test_monte_carlo_says_how_low_it_is():
    """Var(w)/w̄² is known: N(x; m, v + s²/2)/(2 s √π)/p(x)² − 1."""
    x = stats.norm.ppf((np.arange(400) + 0.5) / 400, 0.3, math.hypot(SPREAD, NOISE))
    found = log_evidence(normal_code(), x, "monte-carlo", theta=THETA, draws=500)
    square = stats.norm.logpdf(x, 0.3, math.sqrt(SPREAD**2 + NOISE**2 / 2)) - math.log(2 * NOISE * math.sqrt(math.pi))
    predicted = -np.sum(np.expm1(square - 2 * normal_truth(x))) / (2 * 500)
    said, truth = check_of(found, "Jensen bias"), normal_truth(x).sum()
    assert_holds(
        {
            "reported": error(said.value / predicted, 1.0, 0.35),  # of the farthest data a few draws know
            "estimate": abs(found.estimate - truth - predicted) / found.standard_error / Z,
            "inside": max(found.lower - truth, truth - found.upper, 0.0) / found.standard_error / (Z - 2.58),
        }
    )
    assert "−Σ var/(2S) over 400 data" in said.sentence and found.log_weights.shape == (400, 500)


def product_code() -> LatentModel:
    """A code in (0, 1), a real one and an input: y | a, b, x ~ N(3a + b x, s²); given a, y ~ N(3a + m x, x² + s²)."""
    return LatentModel(
        {"m": dist.Normal(0.0, 1.0)},
        lambda p, x=None: {"a": dist.Beta(2.0, 3.0), "b": dist.Normal(p["m"], 1.0)},
        lambda p, z, x: dist.Normal(3.0 * z["a"] + z["b"] * x, NOISE),
    )


def product_truth(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    a = (np.arange(4000) + 0.5) / 4000
    given = stats.norm.pdf(y[:, None], 3.0 * a[None] + 0.3 * x[:, None], np.sqrt(x**2 + NOISE**2)[:, None])
    return np.log(given @ stats.beta.pdf(a, 2.0, 3.0) / 4000)


@functools.cache
def products(size: int) -> tuple[np.ndarray, np.ndarray, Any]:
    x = np.linspace(-1.0, 1.0, size)
    y, z = product_code().sample(jax.random.key(5), THETA, size, jnp.asarray(x))
    return np.asarray(y), x, z


def code_weights(backwards: bool = False, size: int = 1000) -> Scores:
    """E[w] = p(y_n|x_n, θ), and back from the causes E[1/w] = 1/p(y_n|x_n, θ), datum by datum, in few steps."""
    y, x, z = products(size)
    ladder = annealing.TemperatureLadder(
        jnp.linspace(0, 1, 7) ** 2, jnp.maximum(jnp.arange(7) - 1, 0), jnp.linspace(1.5, 0.8, 6), jnp.ones((6, 2))
    )
    causes = targets.of_causes(product_code(), THETA, tr.Data(y, x))
    exact = jnp.repeat(causes.flat(z)[:, None], 16, 1) if backwards else None
    got = np.asarray(
        annealing.run(causes, ladder, jax.random.key(2), exact, kind="random-walk", chains=16, transitions=10)[0]
    )
    sign = -1 if backwards else 1
    relative = np.exp(sign * (got - product_truth(y, x)[:, None]))
    # Over all data of the model a wrong normalised p(y) would average to 1 too; not over the low and the high ones.
    low = y < np.median(y)
    return {name: z_score(relative[half].mean(1), 1.0) for name, half in (("E w, low y", low), ("high y", ~low))}


@pytest.mark.parametrize("backwards", [False, True])
def test_weights_of_codes(backwards):
    assert_holds(code_weights(backwards), 1000)


def _without_jacobian(code: Any) -> Any:
    a, b = dist.Beta(2.0, 3.0), dist.Normal(0.3, 1.0)
    return code._replace(log_base=lambda u: a.log_prob(jax.nn.sigmoid(u[0])) + b.log_prob(u[1]))


WRONG_CODES: dict[str, Callable] = {
    "no log-determinant": _without_jacobian,
    "p(z) twice": lambda code: code._replace(log_ratio=lambda u: code.log_ratio(u) + code.log_base(u)),
    "p(z) of another θ": lambda code: code._replace(log_base=lambda u: code.log_base(u - 1.5)),
}


@pytest.mark.parametrize("name", WRONG_CODES)
def test_wrong_codes_are_caught(name, monkeypatch):
    right_one = targets.cause_target
    monkeypatch.setattr(targets, "cause_target", lambda *args: WRONG_CODES[name](right_one(*args)))
    assert broken(code_weights())


def test_annealed_codes():
    """Within its own error of the truth; with the causes between the bounds, and trusted."""
    y, x, z = products(40)
    truth = product_truth(y, x).sum()
    found = log_evidence(product_code(), tr.Data(y, x), theta=THETA, z=z, temperatures=40, pilot=40 * 32, seed=1)
    assert found.method == "annealed" and found.log_weights.shape == found.reverse_log_weights.shape == (40, 32)
    assert_holds(
        {
            "estimate": abs(found.estimate - truth) / found.standard_error / Z,
            "inside": max(found.lower - truth, truth - found.upper, 0.0) / 0.1,
            "error": found.standard_error / 1.0,
            "acceptance": 0.35 / check_of(found, "acceptance").value,  # of 0.574 aimed at, at every temperature
        }
    )
    assert found.verdict == "trust"


# Progress, and being stopped.


def interrupting(phase: str, done: int) -> tuple[list[str], Callable]:
    """What was said, and one who presses Ctrl-C at a point."""
    said: list[str] = []

    def say(now: str, at: int, of: int) -> None:
        said.append(now)
        if (now, at) == (phase, done):
            os.kill(os.getpid(), signal.SIGINT)

    return said, say


TINY: dict[str, Any] = {"chains": 128, "temperatures": 60, "pilot": 64, "kernel": "random-walk"}


def test_stopped_with_forward_weights():
    """The lower bound stands; the backward run, and NUTS before it, were never begun."""
    model, data, truth = coin_of(20)
    said, say = interrupting("", 0)
    whole = log_evidence(model, data, "annealed", reverse=False, progress=say, **TINY)
    assert list(dict.fromkeys(said)) == ["pilot", "forward"]
    said, say = interrupting("forward", 1)
    found = log_evidence(model, data, "annealed", progress=say, **TINY)
    assert np.array_equal(found.log_weights, whole.log_weights) and found.reverse_log_weights is None
    assert found.verdict == "caution" and found.upper == math.inf and found.lower < truth
    assert check_of(found, "interrupted").verdict == "caution" and said[-1] == "forward"


@pytest.mark.parametrize(("method", "phase"), [("annealed", "pilot"), ("importance", "modes")])
def test_stopped_before_any_weight(method, phase):
    model, data, _ = coin_of(20)
    with pytest.raises(RunError, match="interrupted before its weights were made"):
        log_evidence(model, data, method, progress=interrupting(phase, 0)[1], **(TINY if method == "annealed" else {}))


def test_stopped_codes():
    """By random walks; what there is is right."""
    model = normal_code()
    x, z = model.sample(jax.random.key(2), THETA, 8)
    settings: dict[str, Any] = {"kernel": "random-walk", "temperatures": 30, "pilot": 8 * 32, "theta": THETA, "z": z}
    with pytest.raises(RunError, match="interrupted before"):
        log_evidence(model, x, progress=interrupting("pilot", 0)[1], **settings)
    said, say = interrupting("forward", 1)
    found = log_evidence(model, x, progress=say, **settings)
    assert said[-1] == "forward" and check_of(found, "interrupted").verdict == "caution" and found.upper == math.inf
    assert check_of(found, "gap").verdict == "caution" and "no exact posterior draws" in check_of(found, "gap").sentence
    off = abs(found.estimate - normal_truth(np.asarray(x)).sum())
    assert_holds({"estimate": off / found.standard_error / Z, "error": found.standard_error / 1.0})


@pytest.mark.test
def test_what_does_not_fit_a_given_theta():
    model, theta, x = cook()
    poisson = LatentModel(
        {"m": dist.Normal(0.0, 1.0)}, lambda p: dist.Poisson(2.0), lambda p, z: dist.Normal(p["m"] + z, 1.0)
    )
    shapeless = LatentModel(
        {"m": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(jnp.zeros(2), 1.0), lambda p, z: dist.Normal(z.sum(), 1.0)
    )
    cases: list[tuple[Any, dict[str, Any], Any, str]] = [
        (coin_of(5)[0], {"theta": {"theta": 0.5}, "data": np.array([1, 0])}, SettingsError, "is for a LatentModel"),
        (model, {"z": np.ones(8)}, SettingsError, "z= needs theta="),
        (model, {"theta": theta, "method": "laplace"}, SettingsError, "theta=...) expects one of 'enumeration'"),
        (model, {"theta": theta, "draws": 500}, SettingsError, "has no setting draws; expected some of none"),
        (model, {"theta": theta, "method": "annealed", "reverse": True}, SettingsError, "no setting reverse"),
        (model, {"theta": {"good": 0.5}}, SettingsError, "expects parameters of shapes"),
        (model, {"theta": {**theta, "good": jnp.array(1.5)}}, SettingsError, "inside the parameters' supports"),
        (model, {"theta": theta, "method": "annealed"}, ModelError, "z is discrete (Bernoulli"),
        (model, {"theta": theta, "z": np.ones(8)}, SettingsError, "method='enumeration' takes no z="),
        (model, {"theta": theta, "data": None}, DataError, "needs data with at least one row"),
        (poisson, {"theta": THETA}, ModelError, "use method='monte-carlo'"),
        (poisson, {"theta": THETA, "method": "enumeration"}, ModelError, "cannot be summed out"),
        (shapeless, {"theta": THETA, "method": "monte-carlo"}, ModelError, "to_event(1) missing"),
        (normal_code(), {"theta": THETA, "z": np.ones(7)}, SettingsError, "leading axis of N = 8"),
        (normal_code(), {}, ModelError, "cannot be summed out"),
    ]
    for given, settings, kind, sentence in cases:
        with pytest.raises(kind) as caught:
            log_evidence(given, **({"data": x} | settings))
        assert sentence in str(caught.value), caught.value
    uniform = LatentModel(
        {"m": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["m"], 1.0), lambda p, z: dist.Uniform(z, z + 1.0)
    )
    with pytest.raises(RunError, match=r"1 of 2 rows \(the first is row 1\) was finite at no draw"):
        log_evidence(uniform, np.array([0.0, 50.0]), "monte-carlo", theta=THETA)


# Sentences.


def _improper() -> tr.Model:
    return tr.Model(
        {"mu": dist.ImproperUniform(dist.constraints.real, (), ())}, lambda params: dist.Normal(params["mu"], 1.0)
    )


@pytest.mark.test
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "harmonic-mean"}, "expects one of 'monte-carlo', 'importance', 'annealed', 'laplace'"),
        ({"method": "monte-carlo", "chains": 4}, "has no setting chains; expected some of draws"),
        ({"method": "monte-carlo", "draws": 10}, "draws=...) expects a whole number ≥ 100; got 10"),
        ({"method": "importance", "degrees": -1.0}, "expects a positive number; got -1.0"),
        ({"method": "annealed", "kernel": "gibbs"}, "expects 'mala' or 'random-walk'; got 'gibbs'"),
        ({"method": "annealed", "chains": 8}, "expects a whole number ≥ 32"),
        ({"method": "annealed", "temperatures": 1}, "expects a whole number ≥ 2"),
    ],
)
def test_settings(settings, sentence):
    model, data, _ = coin_of(5)
    with pytest.raises(SettingsError, match="log_evidence") as caught:
        log_evidence(model, data, **settings)
    assert sentence in str(caught.value)


@pytest.mark.test
def test_posteriors_that_do_not_fit():
    model, data, _ = coin_of(5)
    phi = {"mean": np.zeros(1), "rho": np.zeros(1), "lower": np.zeros(0)}
    point = Posterior(model, data, tr.MAP(), 0, Point(position=np.zeros(1)))
    fitted = Fitted(positions=np.zeros((1, 100, 1)), family="full rank", phi=phi)
    q = Posterior(model, data, tr.Laplace(), 0, fitted)
    few = Posterior(model, data, tr.Rejection(), 0, Draws(positions=np.zeros((1, 40, 1))))
    for settings, sentence in (
        ({"posterior": point, "method": "importance"}, "needs a q with a density"),
        ({"posterior": q, "method": "annealed"}, "draws of an exact sampler"),
        ({"posterior": q, "method": "laplace"}, "takes no posterior="),
        ({"posterior": q, "method": "importance", "data": np.array([1, 1, 1])}, "fitted to other data"),
        ({"posterior": few, "method": "annealed"}, "posterior= has 40"),
    ):
        with pytest.raises(SettingsError) as caught:
            log_evidence(model, **({"data": data} | settings))
        assert sentence in str(caught.value)
    with pytest.raises(SettingsError, match="another model"):
        log_evidence(coin_of(5)[0], data, "importance", posterior=q)


@pytest.mark.test
def test_models_and_data_that_do_not_fit():
    model, data, _ = coin_of(5)
    with pytest.raises(ModelError, match="improper prior"):
        log_evidence(_improper(), np.array([1.0]), "monte-carlo")
    with pytest.raises(DataError, match="needs them in memory"):
        log_evidence(model, tr.Data(data.y, resident=False), "monte-carlo")
    with pytest.raises(DataError, match="needs data"):
        log_evidence(model, None, "monte-carlo")
    ridge = tr.Model.from_log_density(lambda z: -((z[0] + z[1]) ** 2), jnp.zeros(2))
    with pytest.raises(ModelError, match="a ridge, a saddle"):
        log_evidence(ridge, method="laplace")


@pytest.mark.test
@pytest.mark.parametrize("method", ["monte-carlo", "annealed"])
def test_impossible_data(method):
    """No draw of the prior can have made them."""
    model = tr.Model({"width": dist.Uniform(0.0, 1.0)}, lambda params: dist.Uniform(0.0, params["width"]))
    with pytest.raises((RunError, DataError), match=r"possible under the prior|outside the support"):
        log_evidence(model, np.array([2.0]), method, **({"draws": 100} if method == "monte-carlo" else {}))
