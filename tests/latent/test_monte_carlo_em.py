"""Monte-Carlo EM and online EM: what is drawn is p(z | x, θ), gains and errors are what they say, ends are EM's.

A law takes what it judges as an argument and returns scores; wrong ones must break it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Scores, Z, assert_holds, broken, error, ks, moments, z_mean
from numpyro.distributions import constraints
from scipy import optimize, special, stats

from tractable.core.batches import Batch
from tractable.core.errors import DataError, ModelError, RunError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.model import Data, Kernel
from tractable.core.rows import SHUFFLE
from tractable.engine.method import Session
from tractable.inference import infer
from tractable.latent.em_method import EM
from tractable.latent.latent_chains import by_chains
from tractable.latent.latent_draws import Draws, Sampler, by_rejection, by_values
from tractable.latent.mixture import Bernoullis, Gaussians, bernoulli_mixture, gaussian_mixture
from tractable.latent.monte_carlo_climb import has_stalled
from tractable.latent.monte_carlo_em import (
    bridge,
    drawn_m_step,
    drawn_statistics,
    expected_log_joint,
    improve,
    observed_information,
)
from tractable.latent.monte_carlo_em_method import MonteCarloEM
from tractable.latent.online_em import OnlineEM
from tractable.mcmc.mala import mala
from tractable.posterior.posterior import Posterior

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(5)
CHAINS = 4


def flat(params: Any) -> jax.Array:
    return jnp.zeros(())


def learnt(model: Any, data: Any, method: Any, seed: int = 0) -> Posterior:
    data = data if isinstance(data, Data) else Data(data)
    session = Session(model, data, jax.random.key(seed), lambda: False, lambda *said: None)
    return Posterior(model, data, method, seed, *method.learn(session))


# A normal code: z ~ N(m, v), x | z ~ N(z, s²). The maximum is known: m = mean x, v = var x − s².

S2 = 0.5
X = RNG.normal(1.0, math.sqrt(S2 + 1.5), 30)
NORMAL = LatentModel(
    flat,
    lambda p: dist.Normal(p["m"], jnp.sqrt(p["v"])),
    lambda p, z: dist.Normal(z, math.sqrt(S2)),
    statistics=lambda x, z: jnp.stack([jnp.ones_like(z), z, z**2]),
    m_step=lambda s: {"m": s[1] / s[0], "v": s[2] / s[0] - (s[1] / s[0]) ** 2},
    position={"m": 0.0, "v": 1.0},
    support={"m": constraints.real, "v": constraints.positive},
    begin=lambda key, rows: {"m": jnp.array(0.0), "v": jnp.array(3.0)},
)
THETA = {"m": jnp.array(0.5), "v": jnp.array(2.0)}
BETTER = {"m": jnp.array(0.9), "v": jnp.array(1.6)}
BEST = np.array([X.mean(), X.var() - S2])


def code(theta: Any, x: Any) -> tuple[np.ndarray, float]:
    """Mean and variance of z | x."""
    v = float(theta["v"])
    return (v * np.asarray(x) + S2 * float(theta["m"])) / (v + S2), v * S2 / (v + S2)


def exact_draws(key: jax.Array, theta: Any, x: Any, length: int) -> Draws:
    """Independent draws by the closed form, (length, n, C)."""
    mean, variance = code(theta, x)
    noise = jax.random.normal(key, (length, len(mean), CHAINS))
    return Draws(jnp.array(mean)[:, None] + math.sqrt(variance) * noise, jnp.array(length))


def latent_of(model: LatentModel) -> Callable:
    return lambda theta, datum: model.latent(theta)


# What is drawn: few values.

COINS = LatentModel(
    {"fair": dist.Beta(1, 1), "bias": dist.Uniform(0, 1)},
    lambda p: dist.Bernoulli(p["fair"]),
    lambda p, z: dist.Binomial(10, jnp.where(z == 1, 0.5, p["bias"])),
    statistics=lambda x, z: jnp.stack([z, (1 - z) * x, 1.0 - z]),
    m_step=lambda s: {"fair": s[0] / (s[0] + s[2]), "bias": s[1] / (10 * s[2])},
    begin=lambda key, rows: {"fair": jnp.array(0.5), "bias": jnp.array(0.8)},
)
HEADS = jnp.array([4, 5, 7, 8, 9, 10])
COIN = {"fair": jnp.array(0.4), "bias": jnp.array(0.75)}
OLD = {"fair": jnp.array(0.4), "bias": jnp.array(0.7)}
WEIGHTS = jnp.array([1.0, 1, 2, 1, 0, 1])


def drawn_z(sampler: Sampler, summed: Callable) -> Scores:
    """C5: with S = 10⁵ drawn z the statistics are the enumerated ones."""
    length = 25_000

    @jax.jit
    def go(key: jax.Array) -> jax.Array:
        chains, room = sampler.begin(key, COIN, HEADS), sampler.room(COIN, HEADS, length)
        draws = sampler.draw(key, COIN, chains, HEADS, room, length, 0, 0)[1]
        return summed(COINS.steps.statistics, HEADS, WEIGHTS, draws)

    found = np.asarray(go(jax.random.key(1)))
    wanted = np.asarray(COINS.e_step(COIN, Batch(HEADS, WEIGHTS, 6)).statistics)
    r = np.asarray(COINS.responsibilities(COIN, HEADS))[:, 1]
    spread = np.sqrt(
        np.sum(
            (np.asarray(WEIGHTS)[:, None] * np.stack([r**0, np.asarray(HEADS), r**0], 1)) ** 2 * (r * (1 - r))[:, None],
            0,
        )
    )
    z = np.abs(found - wanted) / (spread / math.sqrt(length * CHAINS)) / Z
    return {f"statistic {i}": float(z[i]) for i in range(3)}


@pytest.mark.test
def test_drawn_z_is_enumerated_z():
    right = by_values(COINS.responsibilities, COINS.causes, CHAINS)
    assert_holds(drawn_z(right, drawn_statistics))
    old = by_values(lambda theta, rows: COINS.responsibilities(OLD, rows), COINS.causes, CHAINS)
    no_shares = by_values(
        lambda theta, rows: COINS.responsibilities({"fair": 0.5, "bias": theta["bias"]}, rows), COINS.causes, CHAINS
    )
    assert broken(drawn_z(old, drawn_statistics))  # old θ
    assert broken(drawn_z(no_shares, drawn_statistics))  # p(z | θ) left out

    def no_mean(*args: Any) -> jax.Array:
        return drawn_statistics(*args) * args[3].length * CHAINS

    def no_weights(statistics: Any, rows: Any, weights: Any, draws: Any) -> jax.Array:
        return drawn_statistics(statistics, rows, jnp.ones(6), draws)

    assert broken(drawn_z(right, no_mean))  # 1/S missing
    assert broken(drawn_z(right, no_weights))


# What is drawn: chains. z ~ Gamma(2, rate), x | z ~ Poisson(z): z | x ~ Gamma(2 + x, rate + 1).

COUNTS = LatentModel(
    {"rate": dist.Gamma(2.0, 2.0)},
    lambda p: dist.Gamma(2.0, p["rate"]),
    lambda p, z: dist.Poisson(z),
)
RATE = {"rate": jnp.array(1.5)}
THREES = jnp.full(1500, 3)


def left_alone(sampler: Sampler, steps: int = 3) -> Scores:
    """Chains begun at p(z | x, θ) stay there: independent draws of it, one of every chain."""

    @jax.jit
    def go(key: jax.Array) -> tuple:
        first, second, third = jax.random.split(key, 3)
        chains = sampler.begin(first, RATE, THREES)
        if not sampler.exact:
            z = jax.random.gamma(second, 5.0, (*THREES.shape, CHAINS, 1)) / 2.5
            chains = chains._replace(position=jnp.log(z))
        room = sampler.room(RATE, THREES, 1)
        _, draws, told = sampler.draw(third, RATE, chains, THREES, room, 1, steps - 1, 0)
        return draws.z, told.acceptance

    z, acceptance = go(jax.random.key(2))
    z = np.asarray(z).ravel()
    assert 0.1 < acceptance < 0.999
    return {"cdf": ks(z, stats.gamma(5, scale=1 / 2.5).cdf), **moments("z", z, 2.0, 0.8)}


def chains_of(kernel: Any, log_joint: Callable = COUNTS.log_joint) -> Sampler:
    return by_chains(kernel, latent_of(COUNTS), log_joint, CHAINS)


@pytest.mark.test("mala")
@pytest.mark.parametrize("kernel", ["mala", "random-walk", "hmc", "nuts"])
def test_chains_leave_the_conditional_alone(kernel):
    if kernel == "nuts":  # whose acceptance is a mean over a trajectory
        assert_holds(left_alone(chains_of(kernel), 1))
    else:
        assert_holds(left_alone(chains_of(kernel)))


def test_rejection_draws_the_conditional():
    def bound(theta: Any, x: jax.Array) -> jax.Array:
        return x * jnp.log(x) - x - jax.scipy.special.gammaln(x + 1.0)

    sampler = by_rejection(latent_of(COUNTS), lambda p, x, z: COUNTS.factors(p, z, x)[0], bound, CHAINS)
    assert_holds(left_alone(sampler))
    no_bound = by_rejection(latent_of(COUNTS), lambda p, x, z: 0.5 * COUNTS.factors(p, z, x)[0], bound, CHAINS)
    assert broken(left_alone(no_bound))


@pytest.mark.test
def test_the_share_of_trials_that_rejection_keeps():
    """A trial is kept with probability p(x)/M, and the number of trials is geometric."""
    model = LatentModel(
        {"a": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["a"], 2.0), lambda p, z: dist.Normal(z, 1)
    )
    theta, x, most = {"a": jnp.array(0.5)}, jnp.full(400, 2.0), stats.norm.logpdf(0)
    sampler = by_rejection(latent_of(model), lambda p, x, z: model.factors(p, z, x)[0], lambda p, x: most, CHAINS)
    room = sampler.room(theta, x, 1)
    told = jax.jit(lambda key: sampler.draw(key, theta, sampler.begin(key, theta, x), x, room, 1, 0, 0)[2])(
        jax.random.key(4)
    )
    share = stats.norm(0.5, math.sqrt(5)).pdf(2) / math.exp(most)
    error = math.sqrt(1 - share) / share / math.sqrt(len(x) * CHAINS)
    assert abs(1 / float(told.acceptance) - 1 / share) < Z * error and Z * error < 0.2 / share


@pytest.mark.test
def test_chains_that_burn_in_find_their_step():
    """z | x is 2,000 times narrower than the first step: without tuning, 300 discarded steps find one of its size."""
    model = LatentModel(
        {"a": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["a"], 1.0), lambda p, z: dist.Normal(z, 1e-3)
    )
    theta, x = {"a": jnp.array(0.0)}, jnp.zeros(3)
    sampler = by_chains("random-walk", latent_of(model), model.log_joint, CHAINS)

    @jax.jit
    def go(key: jax.Array) -> tuple:
        chains = sampler.begin(key, theta, x)._replace(position=jnp.zeros((3, CHAINS, 1)))
        return sampler.draw(key, theta, chains, x, sampler.room(theta, x, 60), 60, 300, 0)[:2]

    chains, draws = go(jax.random.key(5))
    z = np.asarray(draws.z)
    assert np.mean(z[1:] != z[:-1]) > 0.1 and 3e-4 < z.std() < 3e-3
    assert 5e-4 < float(jnp.exp(chains.log_step)) < 2e-2


def stale(log_density: Callable) -> Kernel:
    """A state that keeps the log density and the gradient of another θ."""
    right = mala(log_density, 0.4)
    before = mala(lambda u: log_density(u) + 1.5 * u[0], 0.4)
    return Kernel(before.init, right.draw, right.step)


def test_chain_mutants():
    assert_holds(left_alone(chains_of(lambda log_density: mala(log_density, 0.4))))
    assert broken(left_alone(chains_of(stale), 1))

    def no_determinant(params: Any, x: Any, z: jax.Array) -> jax.Array:
        return COUNTS.log_joint(params, x, z) - jnp.log(z)

    def old_theta(params: Any, x: Any, z: jax.Array) -> jax.Array:
        return COUNTS.log_joint({"rate": jnp.array(1.0)}, x, z)

    assert broken(left_alone(chains_of("mala", no_determinant), 10))
    assert broken(left_alone(chains_of("mala", old_theta), 10))


def counter(log_density: Callable) -> Kernel:
    """Moves by one, whatever the density."""

    def step(noise: Any, state: Any, batch: Any = None) -> tuple:
        from tractable.mcmc.rejection import State

        return State(state.position + 1, state.worst, state.excess), ()

    def init(key: jax.Array, position: jax.Array) -> Any:
        from tractable.mcmc.rejection import State

        return State(position, position, jnp.zeros(()))

    return Kernel(init, lambda key, count, state, batch=None: jnp.zeros((count, 1)), step)


def test_chains_go_on_and_draws_are_appended():
    sampler = by_chains(counter, latent_of(NORMAL), NORMAL.log_joint, CHAINS)
    x = jnp.array(X[:3])
    chains, room = sampler.begin(jax.random.key(0), THETA, x), sampler.room(THETA, x, 6)
    assert chains.position.shape == (3, CHAINS, 1)
    first = np.asarray(chains.position)[..., 0]
    chains, draws, _ = sampler.draw(jax.random.key(1), THETA, chains, x, room, 2, 3, 0)
    np.testing.assert_allclose(draws.z[:2], first + np.array([4, 5])[:, None, None])
    chains, draws, _ = sampler.draw(jax.random.key(2), BETTER, chains, x, draws, 3, 0, 0)
    np.testing.assert_allclose(draws.z[:5], first + np.arange(4, 9)[:, None, None])
    np.testing.assert_array_equal(draws.z[5], 0)
    assert int(draws.length) == 5 and int(chains.time) == 2
    chains, tuned, _ = sampler.draw(jax.random.key(3), BETTER, chains, x, draws, 1, 1, 1)
    assert int(tuned.length) == 5 and int(chains.time) == 2  # a warm-up keeps nothing
    np.testing.assert_allclose(chains.position[..., 0], first + 10)


def test_warm_up_finds_the_step_and_the_proportions():
    """Two coordinates a hundredfold apart, a first step that is far too long: acceptance is near what is aimed at."""
    model = LatentModel(
        {"a": dist.Normal(0.0, 1.0)},
        lambda p: {"far": dist.Normal(p["a"], 1.0), "near": dist.Normal(0.0, 0.01)},
        lambda p, z: dist.Normal(z["far"] + z["near"], 1.0),
    )
    sampler = by_chains("mala", latent_of(model), model.log_joint, CHAINS)
    theta, x = {"a": jnp.array(0.3)}, jnp.array(X)

    @jax.jit
    def draw(key: jax.Array, chains: Any, count: Any, burn: Any, tune: Any) -> tuple:
        chains, _, told = sampler.draw(key, theta, chains, x, sampler.room(theta, x, 1), count, burn, tune)
        return chains, told

    chains = sampler.begin(jax.random.key(0), theta, x)
    chains, _ = draw(jax.random.key(1), chains, 200, 200, 1)
    chains, _ = draw(jax.random.key(2), chains, 100, 0, 2)
    _, told = draw(jax.random.key(3), chains, 0, 200, 0)
    assert abs(float(told.acceptance) - 0.574) < 0.06
    assert 30 < float(jnp.median(chains.scale[:, 0] / chains.scale[:, 1])) < 300


# The gain and its error.


def log_prior(theta: Any) -> jax.Array:
    return -0.5 * (theta["m"] - 2) ** 2 - theta["v"]


def gain_law(improve: Callable, replicates: int = 1500) -> Scores:
    """The mean gain is Q's, with the prior once; σ̂² is its variance, though draws of a chain are correlated."""
    x, length = jnp.array(X[:3]), 40
    weights = jnp.array([1.0, 2.0, 1.0])
    sampler = by_chains("random-walk", latent_of(NORMAL), NORMAL.log_joint, CHAINS)
    mean, variance = code(THETA, X[:3])

    @jax.jit
    @jax.vmap
    def go(key: jax.Array) -> tuple:
        first, second, third = jax.random.split(key, 3)
        chains = sampler.begin(first, THETA, x)
        z = jnp.array(mean)[:, None, None] + math.sqrt(variance) * jax.random.normal(second, (3, CHAINS, 1))
        chains = chains._replace(position=z, log_step=jnp.log(0.4))
        draws = sampler.draw(third, THETA, chains, x, sampler.room(THETA, x, length), length, 0, 0)[1]
        found = improve(lambda *args: BETTER, NORMAL.log_joint, log_prior, THETA, x, weights, draws, False)
        return found.gain, found.error

    gains, errors = map(np.asarray, go(jax.random.split(jax.random.key(3), replicates)))

    def q(theta: Any) -> float:
        m, v = float(theta["m"]), float(theta["v"])
        return float(np.asarray(weights) @ (-0.5 * math.log(v) - 0.5 * ((mean - m) ** 2 + variance) / v))

    wanted = q(BETTER) - q(THETA) + float(log_prior(BETTER) - log_prior(THETA))
    with np.errstate(divide="ignore"):  # a mutant's gains may all be the same
        ratio = np.mean(errors**2) / gains.var(ddof=1)
    off = math.sqrt(2 / replicates + (errors**2).var() / np.mean(errors**2) ** 2 / replicates)
    return {"gain": z_mean(gains, wanted, gains.var()), "error": abs(ratio - 1) / off / Z}


@pytest.mark.test
def test_gain_and_its_error():
    assert_holds(gain_law(improve))


def independent(m_step: Any, joint: Any, prior: Any, theta: Any, rows: Any, weights: Any, draws: Any, exact: Any):
    return improve(m_step, joint, prior, theta, rows, weights, draws, True)


def prior_by_draw(m_step: Any, joint: Any, prior: Any, theta: Any, rows: Any, weights: Any, draws: Any, exact: Any):
    return improve(m_step, joint, lambda t: draws.length * prior(t), theta, rows, weights, draws, exact)


def no_prior(m_step: Any, joint: Any, prior: Any, theta: Any, rows: Any, weights: Any, draws: Any, exact: Any):
    return improve(m_step, joint, None, theta, rows, weights, draws, exact)


def drawn_at_the_new(m_step: Any, joint: Any, prior: Any, theta: Any, rows: Any, weights: Any, draws: Any, exact: Any):
    fresh = exact_draws(jax.random.key(9), BETTER, X[:3], 40)
    return improve(m_step, joint, prior, theta, rows, weights, fresh, exact)


def one_chain(m_step: Any, joint: Any, prior: Any, theta: Any, rows: Any, weights: Any, draws: Any, exact: Any):
    found = improve(m_step, joint, prior, theta, rows, weights, draws, exact)
    return found._replace(error=found.error * math.sqrt(CHAINS))


@pytest.mark.test("drawn_at_the_new")
@pytest.mark.parametrize("wrong", [independent, prior_by_draw, no_prior, drawn_at_the_new, one_chain])
def test_gain_mutants(wrong):
    assert broken(gain_law(wrong))


@pytest.mark.test
def test_error_of_independent_draws():
    """σ̂² = Σ w² var/S, told again in NumPy."""
    draws = exact_draws(jax.random.key(1), THETA, X[:3], 50)
    weights = np.array([1.0, 2.0, 0.0])
    args = (lambda *args: BETTER, NORMAL.log_joint, None, THETA, jnp.array(X[:3]), jnp.array(weights), draws, True)
    found = jax.jit(lambda: improve(*args))()
    z = np.asarray(draws.z).swapaxes(0, 1).reshape(3, -1)
    change = stats.norm.logpdf(z, 0.9, math.sqrt(1.6)) - stats.norm.logpdf(z, 0.5, math.sqrt(2.0))
    wanted = np.sqrt(np.sum(weights**2 * change.var(1, ddof=1) / 200))
    assert_holds({"gain": error(found.gain, weights @ change.mean(1), 1e-9), "error": error(found.error, wanted, 1e-9)})


# The M-step.


def m_step_law(m_step: Callable) -> Scores:
    """Of the same draws, by gradient and in closed form, with half of the buffer not yet written."""
    draws = exact_draws(jax.random.key(4), THETA, X, 20)
    room = draws._replace(z=jnp.concatenate([draws.z, jnp.full_like(draws.z, 77.0)]))
    weights = jnp.ones(30).at[3].set(0.0).at[4].set(2.0)
    found = jax.jit(lambda d: m_step(THETA, jnp.array(X), weights, d))(room)
    z = np.asarray(draws.z).swapaxes(0, 1).reshape(30, -1)
    w = np.asarray(weights)[:, None] / 80
    m = (w * z).sum() / 30
    return {"m": error(found["m"], m, 1e-5), "v": error(found["v"], (w * z**2).sum() / 30 - m**2, 1e-5)}


SPACE = NORMAL.space


def constrained(u: jax.Array) -> Any:
    return NORMAL.constrain(SPACE.unravel(u))


def unconstrained(theta: Any) -> jax.Array:
    return SPACE.ravel(NORMAL.unconstrain(theta))


def test_m_step_by_gradient_is_the_closed_form():
    assert_holds(m_step_law(drawn_m_step(NORMAL.log_joint, None, constrained, unconstrained, 40)))
    assert_holds(m_step_law(lambda t, rows, w, d: NORMAL.m_step(drawn_statistics(NORMAL.steps.statistics, rows, w, d))))
    whole_buffer = drawn_m_step(NORMAL.log_joint, None, constrained, unconstrained, 40)
    assert broken(m_step_law(lambda t, r, w, d: whole_buffer(t, r, w, d._replace(length=jnp.array(40)))))
    with_jacobian = drawn_m_step(NORMAL.log_joint, lambda t: jnp.log(t["v"]), constrained, unconstrained, 40)
    assert broken(m_step_law(with_jacobian))


@pytest.mark.test
def test_slope_of_the_expected_log_joint():
    """Summed beside the value, it is that of differentiation; the prior counts once, whatever S is."""
    draws, x = exact_draws(jax.random.key(4), THETA, X[:4], 5), jnp.array(X[:4])
    q = expected_log_joint(NORMAL.log_joint, constrained, x, jnp.ones(4), draws)

    def plain(u: jax.Array) -> jax.Array:
        theta = constrained(u)
        terms = jax.vmap(lambda z: jax.vmap(lambda x, z: jax.vmap(lambda z: NORMAL.log_joint(theta, x, z))(z))(x, z))
        return jnp.sum(jnp.mean(terms(draws.z), axis=(0, 2)))

    u = unconstrained(BETTER)
    value, slope = jax.jit(jax.value_and_grad(q))(u)
    wanted, wanted_slope = jax.value_and_grad(plain)(u)
    assert_holds({"value": error(value, wanted, 1e-10), "slope": error(slope, wanted_slope, 1e-10)})


# Louis.


def louis(information: Callable, replicates: int = 60) -> Scores:
    """Information by draws against the exact Hessian; the noise of the mean score against replicates."""
    x, length = jnp.array(X), 25
    u = unconstrained(THETA)

    def log_likelihood(u: jax.Array) -> jax.Array:
        theta = constrained(u)
        variance = theta["v"] + S2
        return jnp.sum(-0.5 * jnp.log(variance) - 0.5 * (x - theta["m"]) ** 2 / variance) + log_prior(theta)

    wanted = -jax.hessian(log_likelihood)(u)

    @jax.jit
    @jax.vmap
    def go(key: jax.Array) -> tuple:
        draws = exact_draws(key, THETA, X, length)
        known = observed_information(NORMAL.log_joint, log_prior, constrained, u, x, jnp.ones(30), draws)
        q = expected_log_joint(NORMAL.log_joint, constrained, x, jnp.ones(30), draws)
        return information(known), jax.grad(q)(u), known.noise

    found, scores, noise = map(np.asarray, go(jax.random.split(jax.random.key(6), replicates)))
    out = {}
    for i, j in ((0, 0), (0, 1), (1, 1)):
        each = found[:, i, j]
        out[f"information {i}{j}"] = (
            abs(each.mean() - float(wanted[i, j])) / (each.std(ddof=1) / math.sqrt(replicates) + 1e-9) / Z
        )
    spread = scores.var(0, ddof=1) / np.einsum("rii->i", noise) * replicates
    return out | {f"noise {i}": float(abs(spread[i] - 1) / math.sqrt(2 / replicates) / Z) for i in range(2)}


@pytest.mark.test
def test_louis():
    assert_holds(louis(lambda known: known.complete - known.missing))


@pytest.mark.test("hidden only")
@pytest.mark.parametrize(
    "wrong",
    [lambda known: known.complete, lambda known: known.complete + known.missing, lambda known: known.missing,
     lambda known: known.complete - known.missing / 2],
    ids=["nothing is hidden", "sign", "hidden only", "half"],
)  # fmt: skip
def test_louis_mutants(wrong):
    assert broken(louis(wrong))


@pytest.mark.test
def test_bridge():
    """Log likelihoods compared by draws at both ends."""
    x = jnp.array(X)
    ends = [exact_draws(jax.random.key(i), theta, X, 500) for i, theta in enumerate((THETA, BETTER))]
    found = np.asarray(bridge(NORMAL.log_joint, THETA, BETTER, x, *ends))
    of = [stats.norm.logpdf(X, float(t["m"]), math.sqrt(float(t["v"]) + S2)) for t in (THETA, BETTER)]
    assert np.max(np.abs(found - (of[1] - of[0]))) < 0.01


# The method.


def bound(params: Any, datum: Any) -> float:
    return -0.5 * math.log(2 * math.pi * S2)


@pytest.mark.parametrize(
    "settings",
    [{"kernel": "mala"}, {"kernel": "random-walk", "tolerance": 8e-3}, {"kernel": "rejection", "bound": bound}],
    ids=["mala", "random-walk", "rejection"],
)
def test_ends_within_its_error_of_the_maximum(settings):
    posterior = learnt(NORMAL, X, MonteCarloEM(**{"tolerance": 2e-3, "most": 4096, "starts": 1, **settings}))
    found = posterior.found
    off = np.abs(posterior.values[0, 0] - BEST) / (3 * found["monte carlo error"])
    exact = -jax.hessian(lambda t: jnp.sum(-0.5 * jnp.log(t[1] + S2) - 0.5 * (jnp.array(X) - t[0]) ** 2 / (t[1] + S2)))(
        jnp.array(BEST)
    )
    sd = np.sqrt(np.diag(np.linalg.inv(exact)))
    assert_holds({"m": off[0], "v": off[1], "errors": error(np.sqrt(np.diag(found["covariance"])) / sd, 1, 0.15)})
    sizes = posterior.info["draws"][0]
    assert found["ended"] == "settled" and sizes[0] < sizes[-1] and np.all(np.diff(sizes) >= 0)
    assert posterior.info["gain"].shape == posterior.info["gain error"].shape == posterior.info["draws"].shape
    assert math.isnan(found["objective"]) and found["worst monte carlo error"] < 0.25
    report = posterior.report()
    assert report.verdict == "trust" and {"left to climb", "Monte-Carlo error"} <= {c.name for c in report.checks}


def test_fixed_draws_do_not_converge():
    """Eight draws for ever: θ wanders, the report says so; the error shrinks as S grows."""
    errors = []
    for most in (8, 128, 2048):
        method = MonteCarloEM(kernel="rejection", bound=bound, tolerance=1e-4, most=most, starts=1)
        posterior = learnt(NORMAL, X, method)
        assert posterior.found["ended"] == "ceiling" and posterior.report().verdict != "trust"
        errors.append(posterior.found["worst monte carlo error"])
        assert posterior.found["draws at the end"] == most
    assert errors[0] > 2 * errors[1] > 4 * errors[2], errors


@pytest.mark.test
def test_same_seed_same_bits():
    first, again, other = (learnt(NORMAL, X[:8], MonteCarloEM(most=32, starts=1), seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.point, again.point)
    assert np.any(first.point != other.point)


@pytest.mark.computes
def test_counts_by_gradient():
    """y | z ~ Poisson(exp(a + σ z)), no closed form anywhere: the maximum and errors by quadrature; several starts."""
    rng = np.random.default_rng(8)
    y = rng.poisson(np.exp(0.8 + 0.6 * rng.normal(size=60)))
    model = LatentModel(
        flat,
        lambda p: dist.Normal(0.0, p["sd"]),
        lambda p, z: dist.Poisson(jnp.exp(p["a"] + z)),
        position={"a": 0.0, "sd": 1.0},
        support={"a": constraints.real, "sd": constraints.positive},
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def downhill(u: np.ndarray) -> float:
        eta = u[0] + math.exp(u[1]) * nodes
        terms = y[:, None] * eta - np.exp(eta) - special.gammaln(y + 1)[:, None]
        return -float(np.sum(special.logsumexp(terms, b=weights / weights.sum(), axis=1)))

    best = optimize.minimize(downhill, [0.5, -0.5], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10})
    h = 1e-3
    hessian = np.array([
        [sum(a * b * downhill(best.x + h * (a * np.eye(2)[i] + b * np.eye(2)[j])) for a in (1, -1) for b in (1, -1))
         / (4 * h * h) for j in range(2)] for i in range(2)
    ])  # fmt: skip
    sd = np.sqrt(np.diag(np.linalg.inv(hessian))) * np.array([1, math.exp(best.x[1])])
    posterior = learnt(model, y, MonteCarloEM(tolerance=5e-3, most=4096, starts=2))
    off = np.abs(posterior.values[0, 0] - [best.x[0], math.exp(best.x[1])])
    found = posterior.found
    assert_holds({
        "a": off[0] / (4 * found["monte carlo error"][0]), "sd": off[1] / (4 * found["monte carlo error"][1]),
        "errors": error(np.sqrt(np.diag(found["covariance"])) / sd, 1, 0.15),
    })  # fmt: skip
    assert found["starts that agree"] == 2
    # Trust or caution: by chance its bound of what is left to climb is half a standard error, or a little more.
    assert posterior.report().verdict != "reject", posterior.report()


def test_coins_as_exact_em():
    """A z of few values is drawn exactly; the end is EM's."""
    rng = np.random.default_rng(2)
    heads = rng.binomial(10, np.where(rng.random(80) < 0.4, 0.5, 0.9))
    exact = learnt(COINS, heads, EM(starts=1, tolerance=1e-12))
    posterior = learnt(COINS, heads, MonteCarloEM(tolerance=2e-3, most=2048, starts=1))
    off = np.abs(posterior.values - exact.values)[0, 0] / (3 * posterior.found["monte carlo error"])
    assert_holds({"bias": off[0], "fair": off[1]})
    ratio = np.sqrt(np.diag(posterior.found["covariance"]) / np.diag(exact.found["covariance"]))
    assert_holds({"errors": error(ratio, 1, 0.15)})
    assert abs(posterior.found["objective"] - exact.found["objective"]) < 0.02 and posterior.found["exact draws"]


@pytest.mark.quick
def test_stalled():
    assert not has_stalled([3.0, 2.0, 1.0, 0.5, 0.4])
    assert not has_stalled([3.0, 2.0, 1.0, 0.5, 0.4, 0.3])
    assert has_stalled([9.0, 0.1, 0.2, 0.1, 0.2, 0.1, 0.1])


@pytest.mark.quick
@pytest.mark.parametrize(
    "settings",
    [{"kernel": "gibbs"}, {"draws": 6}, {"draws": 0}, {"most": 4}, {"level": 0.4}, {"tolerance": 0.0},
     {"kernel": "rejection"}, {"burn": -1}, {"steps": 0}],
)  # fmt: skip
def test_settings(settings):
    with pytest.raises(SettingsError, match="MonteCarloEM"):
        MonteCarloEM(**settings)


@pytest.mark.test
def test_sentences(tmp_path):
    with pytest.raises(ModelError, match="dealt with in closed form"):
        learnt(gaussian_mixture(2, 1), X[:, None], MonteCarloEM())
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(DataError, match="in memory"):
        learnt(NORMAL, Data(tmp_path / "x.npy", resident=False), MonteCarloEM())
    low = MonteCarloEM(kernel="rejection", bound=lambda p, x: bound(p, x) - 0.3)
    with pytest.raises(RunError, match="exceeds log M"):
        learnt(NORMAL, X, low)
    endless = LatentModel(
        {"rate": dist.Gamma(2.0, 1.0)}, lambda p: dist.Poisson(p["rate"]), lambda p, z: dist.Normal(z, 1.0)
    )
    with pytest.raises(ModelError, match="discrete"):
        learnt(endless, X, MonteCarloEM())
    vector = LatentModel(
        {"a": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["a"], jnp.ones(2)), lambda p, z: dist.Normal(z[0], 1.0)
    )
    with pytest.raises(ModelError, match="to_event"):
        learnt(vector, X, MonteCarloEM())


# Online EM.

START = Gaussians(
    jnp.array([0.5, 0.5]), jnp.array([[5.0, 5.7], [6.3, 5.3]]), jnp.array([np.eye(2), np.eye(2)])
)  # fmt: skip
MIXTURE = gaussian_mixture(2, 2).with_steps(begin=lambda key, rows: START)
_labels = RNG.random((3000, 1)) < 0.35
ROWS = np.where(_labels, [4.0, 6.0], [7.0, 5.0]) + RNG.normal(size=(3000, 2)) * np.where(_labels, 1.0, 0.7)


def test_online_is_near_em():
    """Within 1 % of EM's log likelihood, and of its standard errors' order; the report trusts it."""
    exact = learnt(MIXTURE, ROWS, EM(starts=1))
    posterior = learnt(MIXTURE, ROWS, OnlineEM(epochs=6))
    best, found = exact.found["objective"], posterior.found
    assert abs(found["objective"] - best) < 0.01 * abs(best)
    assert best - found["objective"] < 1e-3 * 3000  # nats a datum: far nearer than that
    assert abs(found["objective"] - float(jnp.sum(MIXTURE.log_prob(posterior.mean(), jnp.array(ROWS))))) < 1e-3
    assert found["steps"] == posterior.info["objective"].shape[1] == 200
    assert found["gain to come"] >= -1e-9 and np.all(np.isfinite(np.diag(found["covariance"])))
    report = posterior.report()
    assert report.verdict == "trust", report
    last = learnt(MIXTURE, ROWS, OnlineEM(epochs=6, average=False))
    assert last.found["objective"] < found["objective"]  # the average forgets the batches' noise
    short = learnt(MIXTURE, ROWS, OnlineEM(epochs=1, batch_size=1000, patience=1))
    assert short.found["steps"] == 50  # a whole block


def test_online_from_file_is_online_in_memory(tmp_path):
    """Bit for bit, where the file's rows lie in the order in which those in memory are shuffled."""
    order = np.random.default_rng(SHUFFLE).permutation(len(ROWS))
    np.save(tmp_path / "rows.npy", ROWS[order])
    data = Data(tmp_path / "rows.npy", resident=False)
    one = learnt(MIXTURE, ROWS, OnlineEM(epochs=3, batch_size=70, starts=2), 2)
    two = learnt(MIXTURE, data, OnlineEM(epochs=3, batch_size=70, starts=2), 2)
    np.testing.assert_array_equal(one.info["objective"], two.info["objective"])
    np.testing.assert_array_equal(one.point, two.point)
    assert abs(one.found["objective"] - two.found["objective"]) < 1e-6
    assert one.found["starts that agree"] == two.found["starts that agree"] == 2
    assert "covariance" in one.found and "covariance" not in two.found


BITS = (RNG.random((400, 3)) < np.where(RNG.random((400, 1)) < 0.5, [0.9, 0.2, 0.7], [0.1, 0.8, 0.3])).astype(float)
COINS_START = Bernoullis(jnp.array([0.5, 0.5]), jnp.array([[0.7, 0.4, 0.6], [0.3, 0.6, 0.4]]))
PAIR = bernoulli_mixture(2, 3, 5.0).with_steps(begin=lambda key, rows: COINS_START)


def with_a_prior(batch_size: int) -> Scores:
    """The prior weighs what it weighs against all N rows, not against a batch."""
    exact = learnt(PAIR, BITS, EM(starts=1)).mean()
    posterior = learnt(PAIR, BITS, OnlineEM(batch_size=batch_size, epochs=25))
    return {"means": error(posterior.mean().means, exact.means, 0.02)}


@pytest.mark.filterwarnings("ignore:The observed information")
def test_online_with_a_prior(monkeypatch):
    assert_holds(with_a_prior(40))
    jax.clear_caches()
    monkeypatch.setattr(Batch, "scale", property(lambda batch: 1.0))  # no N/n
    assert broken(with_a_prior(40))
    jax.clear_caches()


def test_offset():
    """Rows far from 0 in single precision: they are looked at about their mean, and θ comes back where they are."""
    with jax.enable_x64(False):
        far = (ROWS[:1000] + 3000.0).astype(np.float32)
        start = jax.tree.map(lambda a: np.asarray(a, np.float32), START)
        start = start._replace(means=start.means + np.float32(3000))
        model = gaussian_mixture(2, 2).with_steps(begin=lambda key, rows: start)
        means = np.asarray(learnt(model, far, OnlineEM(epochs=10)).mean().means)
    assert np.allclose(means[np.argsort(means[:, 0])], [[3004, 3006], [3007, 3005]], atol=0.2), means


@pytest.mark.quick
@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"epochs": 0}, {"step_exponent": 0.5}, {"step_exponent": 1.1}, {"patience": 0},
                 {"chunk": 0}, {"starts": 0}],
)  # fmt: skip
def test_online_settings(settings):
    with pytest.raises(SettingsError, match="OnlineEM"):
        OnlineEM(**settings)


@pytest.mark.test
def test_online_sentences():
    with pytest.raises(ModelError, match="closed form"):
        learnt(COUNTS, np.array([1, 2, 3]), OnlineEM(batch_size=2))
    with pytest.raises(SettingsError, match="more than the 30 rows"):
        learnt(MIXTURE, ROWS[:30], OnlineEM(batch_size=31))


@pytest.mark.computes
def test_no_climb_ends_where_chains_stand_still():
    """Random intercepts, 400 groups of five, by MALA in single precision: both starts end at the maximum.

    Steps tuned at the first θ, or a step of 3.4 variances for a z of one number, left chains standing: climbs ended 18
    nats low, and said that they were near the top.
    """
    groups, size = 400, 5
    generator = np.random.default_rng(0)
    y = 1.0 + 0.7 * generator.normal(size=(groups, 1)) + generator.normal(size=(groups, size))
    between, within = y.mean(1), float(((y - y.mean(1, keepdims=True)) ** 2).sum())

    def log_likelihood(mu: float, tau: float, sigma: float) -> float:
        wide = tau**2 + sigma**2 / size
        of_means = np.sum((between - mu) ** 2) / wide + groups * np.log(wide)
        return -0.5 * float(of_means + within / sigma**2 + groups * (size - 1) * np.log(sigma**2))

    sigma = math.sqrt(within / (groups * (size - 1)))
    best = log_likelihood(between.mean(), math.sqrt(between.var() - sigma**2 / size), sigma)
    model = LatentModel(
        {"mu": dist.Normal(0.0, 10.0), "tau": dist.HalfNormal(5.0), "sigma": dist.HalfNormal(5.0)},
        lambda p: dist.Normal(p["mu"], p["tau"]),
        lambda p, z: dist.Normal(z, p["sigma"]).expand([size]).to_event(1),
    )
    with jax.enable_x64(False):
        found = infer(model, Data(y), MonteCarloEM(prior=False, most=512), seed=1, verify=None)
    mean = {name: float(value) for name, value in found.mean().items()}
    assert 0 <= best - log_likelihood(**mean) < 0.03
    assert found.found["agreement"] < 0.4
