"""Stochastic-gradient Langevin dynamics does what its recursion says, bias included.

For y_i ~ N(θ, 1), i = 1..N, and θ ~ N(0, 1/N), the posterior is N(μ, 1/h) with h = 2N, and a step is

    θ' = θ + (ε/2)(h (μ − θ) + ζ) + √ε z,  V = Var ζ = (N²/n)(1 − n/N) S²,  without replacement,

so that, exactly and for any schedule,

    m' = m + (ε/2) h (μ − m),   v' = (1 − εh/2)² v + ε + ε² V/4,   v → (1/h)(1 + εV/4)/(1 − εh/4).

The strong prior makes a wrong weight of prior against likelihood visible.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import C, Scores, Z, all_rows, assert_holds, error, ks, moments, pairs, replicate
from scipy import linalg, special, stats

from tractable.core import model as core
from tractable.core import schedules
from tractable.core.errors import DataError, SettingsError
from tractable.core.model import Batch, Kernel, Model
from tractable.kernels import fixed, rmsprop, sghmc, sgld
from tractable.sgmcmc.gradients import control_variates, minibatch

pytestmark = pytest.mark.test

N = 20
Y = jnp.asarray(np.random.default_rng(0).normal(0.8, 1.0, N))
H = 2.0 * N
MU = float(Y.sum()) / H
V_PAIRS = N**2 / 2 * (1 - 2 / N) * float(np.var(Y, ddof=1))
ARMS = [(0.2, 20, 90), (1.0, 20, 30), (1.0, 2, 30), (2.0, 2, 30)]  # εh, n, T
CHOLESKY = jnp.array([[1.0, 0.0], [0.4, 0.8]])


def gaussian_mean() -> Model:
    return Model({"theta": dist.Normal(0.0, 1 / math.sqrt(N))}, lambda params: dist.Normal(params["theta"], 1.0))


def recursion(steps: Any, variance: float, noise: float) -> tuple[float, float]:
    """Mean and variance after steps ε_0, ε_1, …, from N(μ, ``variance``)."""
    for eps in steps:
        variance = (1 - eps * H / 2) ** 2 * variance + eps + eps**2 * noise / 4
    return MU, variance


def starts(count: int) -> dict:
    """Exact draws from the posterior."""
    return {"theta": MU + jax.random.normal(jax.random.key(9), (count,)) / math.sqrt(H)}


def batches(rows: int) -> Callable:
    return all_rows(Y) if rows == N else pairs(Y)


# Laws: make(log_posterior, step_size, **options) -> Kernel.


def drift(make: Callable[..., Kernel]) -> Scores:
    """Without noise θ' − θ = (ε/2) P ∇log p."""
    return drift_scores(jax.jit(lambda: drift_steps(make))())


SCALES = {"number": 0.7, "vector": np.array([0.5, 2.0]), "matrix": CHOLESKY, "NumPy matrix": np.asarray(CHOLESKY)}


def drift_steps(make: Callable[..., Kernel]) -> dict:
    """θ' − θ by name of the scale, each (2,)."""
    found, batch, here = {}, Batch((), jnp.ones(1), 1), jnp.array([0.3, -1.2])
    for name, scale in SCALES.items():
        kernel = make(lambda x, batch: jnp.sum(jnp.sin(x) * jnp.array([1.0, 2.0])) + x[0] * x[1], 0.3,
                      preconditioner=fixed(scale))  # fmt: skip
        new, _ = kernel.step(jnp.zeros(2), kernel.init(jax.random.key(0), here), batch)
        found[name] = new.position - here
    return found


def drift_scores(steps: dict) -> Scores:
    """Against (ε/2) P ∇[sin x₀ + 2 sin x₁ + x₀ x₁]."""
    gradient, scores = np.array([math.cos(0.3) - 1.2, 2 * math.cos(-1.2) + 0.3]), {}
    for name, scale in SCALES.items():
        lower = np.asarray(scale) if np.ndim(scale) == 2 else np.diag(np.broadcast_to(scale, 2))
        scores[name] = error(steps[name], 0.15 * lower @ lower.T @ gradient, 1e-12)
    return scores


def diffusion(make: Callable[..., Kernel], count: int = 1_000_000) -> Scores:
    """Without drift θ' − θ ~ N(0, ε P)."""
    return diffusion_scores(jax.jit(lambda: diffusion_draws(make, count))())


ROOTS = {"identity": np.eye(2), "matrix": np.asarray(CHOLESKY)}


def diffusion_draws(make: Callable[..., Kernel], count: int) -> dict:
    """(θ' − θ)/√ε by name of P, each (count // 2, 2)."""
    found, eps, batch = {}, 0.3, Batch((), jnp.ones(1), 1)
    for name, lower in ROOTS.items():
        preconditioner = fixed(1.0 if name == "identity" else jnp.asarray(lower))
        kernel = make(lambda x, batch: 0.0 * jnp.sum(x), eps, preconditioner=preconditioner)
        state = kernel.init(jax.random.key(0), jnp.zeros(2))
        noise = kernel.draw(jax.random.key(1), count // 2, state, batch)
        found[name] = jax.vmap(lambda z, k=kernel, s=state: k.step(z, s, batch)[0].position)(noise) / math.sqrt(eps)
    return found


def diffusion_scores(draws: dict) -> Scores:
    """Moments and distribution of the draws, made white by P."""
    scores = {}
    for name, lower in ROOTS.items():
        white = np.linalg.solve(lower, np.asarray(draws[name]).T)
        scores |= moments(name, white.ravel(), 0.0, 1.0)
        scores[f"{name} cdf"] = ks(white.ravel()[:: 1 if name == "matrix" else 4], stats.norm.cdf)
        scores[f"{name} correlation"] = abs(np.mean(white[0] * white[1])) * math.sqrt(white.shape[1]) / Z
    return scores


def stationary(make: Callable[..., Kernel], count: int = C, arms: Any = ARMS) -> Scores:
    """v = (1/h)(1 + εV/4)/(1 − εh/4) at four (ε, n), minibatches and strong prior included."""
    return stationary_scores([stationary_ends(make, count, i, arm) for i, arm in enumerate(arms)], arms)


def stationary_ends(make: Callable[..., Kernel], count: int, number: int, arm: tuple) -> jax.Array:
    """Where ``count`` chains of an arm end, (count,)."""
    scaled, rows, steps = arm
    kernel = make(core.log_posterior(gaussian_mean()), scaled / H)
    state, _ = replicate(kernel, jax.random.key(number), starts(count), steps, batches(rows))
    return state.position["theta"]


def stationary_scores(ends: list, arms: Any = ARMS) -> Scores:
    """The ends of each arm against mean and variance of the recursion, and that against the formula."""
    scores = {}
    for theta, (scaled, rows, steps) in zip(ends, arms, strict=True):
        eps, noise = scaled / H, 0.0 if rows == N else V_PAIRS
        _, variance = recursion([eps] * steps, 1 / H, noise)
        name = f"εh = {scaled}, n = {rows}"
        formula = (1 + eps * noise / 4) / (1 - eps * H / 4) / H
        scores[f"{name}: formula"] = abs(variance / formula - 1) / 1e-3
        scores |= moments(name, theta, MU, variance)
    return scores


SIX = jnp.asarray(np.random.default_rng(3).normal(0.5, 1.0, 6))
HERE = {"m": jnp.array(0.7), "s": jnp.array(-0.4)}


def subsets(estimate: Callable, rows: int, tolerance: float = 1e-10) -> Scores:
    """The average of ĝ over all C(6, n) minibatches is ∇log p(θ|D), the prior counted once."""
    return subset_scores(jax.jit(lambda: subset_slopes(estimate, rows))(), tolerance)


def subset_slopes(estimate: Callable, rows: int) -> dict:
    """The average of ĝ over all minibatches of so many rows."""
    g = estimate(core.log_posterior(mean_and_sd()))
    index = jnp.array(list(itertools.combinations(range(6), rows)))
    every = jax.vmap(lambda i: g(HERE, Batch((SIX[i], None), jnp.ones(rows), 6)))(index)
    return jax.tree.map(lambda slopes: jnp.mean(slopes, 0), every)


def mean_and_sd() -> Model:
    return Model({"m": dist.Normal(0.3, 0.5), "s": dist.HalfNormal(2.0)}, lambda p: dist.Normal(p["m"], p["s"]))


def subset_scores(slopes: dict, tolerance: float = 1e-10) -> Scores:
    """Against the slopes of the density, written by hand in log-normal coordinates of s."""
    m, s, y = 0.7, math.exp(-0.4), np.asarray(SIX)
    wanted = {
        "m": -(m - 0.3) / 0.5**2 + np.sum(y - m) / s**2,
        "s": -((s / 2) ** 2) + 1 + np.sum((y - m) ** 2) / s**2 - len(y),
    }
    return {name: error(slopes[name], wanted[name], tolerance) for name in wanted}


def coin(count: int = C) -> Scores:
    """y ~ Bernoulli(θ), θ ~ Beta(2, 3), moved in u = logit θ: the law of u after T steps.

    Its density is θ^{2+s} (1 − θ)^{3+f} in u, the log-determinant log θ(1 − θ) included, and a step adds
    N((ε/2)[2 + s_b − (5 + N) θ], ε) with s_b = (N/n) × the successes in the batch, hypergeometric; the law
    after T steps is T products of that transition, by quadrature.
    """
    return coin_scores(coin_ends(sgld, count))


ONES, EPS, STEPS = 15, 0.12, 12  # the coin's heads, and its steps


def coin_ends(make: Callable[..., Kernel], count: int) -> jax.Array:
    """Where ``count`` chains end, (count,), in u."""
    y = jnp.asarray(np.repeat([1.0, 0.0], [ONES, N - ONES]))
    kernel = make(core.log_posterior(beta_bernoulli()), EPS)
    state, _ = replicate(kernel, jax.random.key(4), {"theta": jnp.zeros(count)}, STEPS, pairs(y))
    return state.position["theta"]


def beta_bernoulli() -> Model:
    return Model({"theta": dist.Beta(2.0, 3.0)}, lambda params: dist.Bernoulli(params["theta"]))


@functools.cache
def coin_law() -> tuple[np.ndarray, np.ndarray]:
    """A grid of u and its distribution function after the steps, by quadrature."""
    a, b, rows = 2.0, 3.0, 2
    grid = np.linspace(-6, 8, 1401)
    width = grid[1] - grid[0]
    mass = np.zeros_like(grid)
    mass[np.argmin(np.abs(grid))] = 1.0  # u = 0
    transition = np.zeros((grid.size, grid.size))
    for k, share in enumerate(stats.hypergeom(N, ONES, rows).pmf(np.arange(rows + 1))):
        mean = grid + 0.5 * EPS * (a + N / rows * k - (a + b + N) * special.expit(grid))
        transition += share * stats.norm.pdf(grid[None], mean[:, None], math.sqrt(EPS)) * width
    for _ in range(STEPS):
        mass = mass @ transition
    return grid, np.cumsum(mass) - 0.5 * mass


def coin_scores(ends: Any) -> Scores:
    """The ends against the law."""
    (grid, cdf), u = coin_law(), np.asarray(ends)
    return {
        "quadrature": abs(cdf[-1] - 1) / 1e-6,
        "cdf": ks(u, lambda x: np.interp(x, grid, cdf)),
        "support": 0.0 if np.all((special.expit(u) > 0) & (special.expit(u) < 1)) else math.inf,
    }


def coin_density() -> Scores:
    """∫ exp(log density) du = B(a + s, b + f), E[u] = ψ(a + s) − ψ(b + f): the log-determinant is there."""
    return coin_density_scores(jax.jit(coin_density_values)())


GRID = np.linspace(-25, 25, 20_001)


def coin_density_values() -> jax.Array:
    """The log density of seven heads in ten on the grid of u."""
    y = jnp.asarray(np.repeat([1.0, 0.0], [7, 3]))
    return jax.vmap(lambda u: core.log_density(beta_bernoulli(), (y, None))({"theta": u}))(jnp.asarray(GRID))


def coin_density_scores(values: Any) -> Scores:
    """Its integral and mean."""
    density = np.exp(np.asarray(values))
    total = density.sum() * (GRID[1] - GRID[0])
    mean = (GRID * density).sum() * (GRID[1] - GRID[0]) / total
    return {
        "evidence": error(math.log(total), special.betaln(9, 6) - special.betaln(2, 3), 1e-9),
        "mean": error(mean, special.digamma(9) - special.digamma(6), 1e-9),
    }


def test_drift():
    """θ' = θ + (ε/2) P g."""
    assert_holds(drift(sgld))


def test_diffusion():
    """(θ' − θ)/√ε ~ N(0, P)."""
    assert_holds(diffusion(sgld), 1_000_000)


@pytest.mark.laws
@pytest.mark.computes
def test_stationary():
    """v = (1/h)(1 + εV/4)/(1 − εh/4)."""
    assert_holds(stationary(sgld), C)


@pytest.mark.parametrize("rows", [1, 2, 4, 6])
def test_minibatch(rows):
    """E[ĝ] = ∇log p(θ|D)."""
    assert_holds(subsets(minibatch, rows))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_control_variates(rows):
    """E[ĝ] = ∇log p(θ|D) wherever the anchor lies."""
    anchor = {"m": jnp.array(0.1), "s": jnp.array(0.2)}

    def estimate(log_posterior: Callable) -> Callable:
        y = jnp.asarray(np.random.default_rng(3).normal(0.5, 1.0, 6))
        gradient = jax.jit(jax.grad(log_posterior))(anchor, core.whole((y, None)))
        return control_variates(log_posterior, anchor, gradient)

    assert_holds(subsets(estimate, rows))


@pytest.mark.laws
def test_control_variates_of_one_quadratic():
    """Where the log likelihoods share their quadratic term every minibatch gives ∇log p(θ|D) itself."""
    log_posterior = core.log_posterior(gaussian_mean())
    whole = core.whole((Y, None))
    anchor = {"theta": jnp.array(-0.4)}
    g = control_variates(log_posterior, anchor, jax.grad(log_posterior)(anchor, whole))
    here = {"theta": jnp.array(1.3)}
    index = jnp.array(list(itertools.combinations(range(N), 2)))
    got = jax.jit(jax.vmap(lambda i: g(here, Batch((Y[i], None), jnp.ones(2), N))["theta"]))(index)
    assert_holds({"every batch": error(got, H * (MU - 1.3), 1e-10)})


def test_whole_batch_is_the_log_density():
    """With n = N the stochastic and the exact density are one; padding does not count."""
    model, here = gaussian_mean(), {"theta": jnp.array(0.3)}
    exact = core.log_density(model, (Y, None))(here)
    padded = Batch((jnp.append(Y, 99.0), None), jnp.append(jnp.ones(N), 0.0), N)
    scores = {
        "whole": error(core.log_posterior(model)(here, core.whole((Y, None))), exact, 1e-10),
        "padded": error(core.log_posterior(model)(here, padded), exact, 1e-10),
        "summands": error(core.log_density(model, (Y, None), terms=True)(here).sum(), exact, 1e-10),
    }
    assert_holds(scores)


@pytest.mark.laws
@pytest.mark.computes
def test_coin():
    """SGLD in logit space, after T steps, against quadrature."""
    assert_holds(coin(), C)


def test_coin_density():
    """The density of u = logit θ is θ^{a+s} (1 − θ)^{b+f}."""
    assert_holds(coin_density())


@pytest.mark.laws
@pytest.mark.computes
def test_momentum():
    """Σ' = A Σ Aᵀ + q 11ᵀ of (θ, v), A = [[1 − εh/2, 1 − α], [−εh/2, 1 − α]], q = αε + ε²V/4."""
    friction, eps, steps = 0.3, 0.5 / H, 60
    a = np.array([[1 - eps * H / 2, 1 - friction], [-eps * H / 2, 1 - friction]])
    q = (friction * eps + eps**2 * V_PAIRS / 4) * np.ones((2, 2))
    sigma = np.diag([1 / H, 0.0])
    for _ in range(steps):
        sigma = a @ sigma @ a.T + q
    kernel = sghmc(core.log_posterior(gaussian_mean()), eps, friction)
    state, _ = replicate(kernel, jax.random.key(5), starts(C), steps, pairs(Y))
    x = np.stack([state.position["theta"] - MU, state.velocity["theta"]])
    white = np.linalg.solve(np.linalg.cholesky(sigma), x)
    scores = {"lyapunov": error(sigma / linalg.solve_discrete_lyapunov(a, q), 1, 1e-3)}
    scores |= moments("position", x[0], 0.0, sigma[0, 0]) | moments("velocity", x[1], 0.0, sigma[1, 1])
    scores["correlation"] = abs(np.mean(white[0] * white[1])) * math.sqrt(C) / Z
    assert_holds(scores, C)


def test_momentum_without_memory():
    """At α = 1 SGHMC is SGLD, draw for draw."""
    log_posterior, start = core.log_posterior(gaussian_mean()), starts(100)
    for eps in (0.5 / H, schedules.polynomial(0.05, 10.0)):
        langevin, _ = replicate(sgld(log_posterior, eps), jax.random.key(6), start, 30, pairs(Y))
        momentum, _ = replicate(sghmc(log_posterior, eps, 1.0), jax.random.key(6), start, 30, pairs(Y))
        assert_holds({"θ": error(momentum.position["theta"], langevin.position["theta"], 1e-12)})


@pytest.mark.parametrize("make", [sgld, sghmc])
def test_without_a_batch_no_prior_is_sampled(make):
    kernel = make(core.log_posterior(gaussian_mean()), 0.1)
    state = kernel.init(jax.random.key(0), {"theta": jnp.zeros(())})
    noise = jax.tree.map(lambda a: a[0], kernel.draw(jax.random.key(1), 1, state, None))
    with pytest.raises(DataError, match="expects a batch at every step; got None: it would sample the prior"):
        kernel.step(noise, state, None)


@pytest.mark.laws
@pytest.mark.computes
def test_schedule_moments():
    """m_T and v_T of a polynomial schedule, T = 200."""
    schedule, steps = schedules.polynomial(0.3, 10.0, 0.7), 200
    _, variance = recursion(0.3 * (10.0 + np.arange(steps)) ** -0.7, 1 / H, V_PAIRS)
    kernel = sgld(core.log_posterior(gaussian_mean()), schedule)
    state, _ = replicate(kernel, jax.random.key(7), starts(C), steps, pairs(Y))
    assert_holds(moments("θ", state.position["theta"], MU, variance), C)


def test_rmsprop_is_its_recursion():
    """v ← α v + (1 − α)(g/N)² from 1, L = (λ + √v)^−½."""
    preconditioner, wanted = rmsprop(0.9, 0.01), np.ones(2)
    state = preconditioner.init(jnp.zeros(2))
    for slope in (np.array([3.0, -1.0]), np.array([0.5, 8.0])):
        state = preconditioner.update(state, jnp.asarray(slope), Batch((), jnp.ones(1), 4))
        wanted = 0.9 * wanted + 0.1 * (slope / 4) ** 2
    scores = {
        "v": error(state, wanted, 1e-12),
        "L": error(preconditioner.scale(state), (0.01 + wanted**0.5) ** -0.5, 1e-12),
    }
    assert_holds(scores)


def test_temperature():
    """At temperature τ the full-batch variance is τ (1/h)/(1 − εh/4)."""
    for heat in (0.5, 3.0):
        kernel = sgld(core.log_posterior(gaussian_mean()), 1.0 / H, temperature=heat)
        start = jax.tree.map(lambda x, heat=heat: MU + math.sqrt(heat) * (x - MU), starts(20_000))
        state, _ = replicate(kernel, jax.random.key(8), start, 30, all_rows(Y))
        assert_holds(moments(f"τ = {heat}", state.position["theta"], MU, heat / H / 0.75), 20_000)


@pytest.mark.parametrize(("a", "b", "gamma"), [(0.2, 231.0, 0.55), (25.0, 1e8, 0.51), (1.0, 1.0, 1.0)])
def test_polynomial_in_float32(a, b, gamma):
    """ε_t = a (b + t)^−γ to 1e-6, also where b + t = b in float32."""
    t = np.array([0, 1, 10, 1000, 10**6, 10**8, 2 * 10**9])
    wanted = a * (b + t.astype(float)) ** -gamma
    with jax.enable_x64(False):
        got = jax.jit(jax.vmap(schedules.polynomial(a, b, gamma)))(jnp.asarray(t, jnp.int32))
        assert got.dtype == jnp.float32
    assert_holds({"ε": error(np.asarray(got, float) / wanted, 1, 1e-6)})


def test_schedules():
    """End points, cycles, and that γ outside (½, 1] is refused."""
    between = schedules.polynomial_between(0.1, 0.01, 500, 0.6)
    cycle = schedules.cyclical(0.4, 8)
    scores = {
        "between": error([between(0), between(500)], [0.1, 0.01], 1e-12),
        "cycle": error([cycle(t) for t in (0, 4, 8, 12)], [0.4, 0.2, 0.4, 0.2], 1e-12),
        "constant": error(schedules.constant(0.3)(7), 0.3, 1e-12),
    }
    assert_holds(scores)
    for gamma in (0.5, 1.01, -0.6, math.nan):
        with pytest.raises(SettingsError, match=r"gamma in \(1/2, 1\]"):
            schedules.polynomial(1.0, 1.0, gamma)
    for a, b in ((0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (-1.0, 1.0)):
        with pytest.raises(SettingsError, match="a > 0 and b > 0"):
            schedules.polynomial(a, b)
    for step in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingsError, match="positive finite"):
            schedules.constant(step)
