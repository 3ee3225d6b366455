"""Stochastic-gradient Langevin dynamics does what its recursion says, bias included.

For y_i ~ N(θ, 1), i = 1..N, and θ ~ N(0, 1/N), the posterior is N(μ, 1/h) with h = 2N, and a step is

    θ' = θ + (ε/2)(h (μ − θ) + ζ) + √ε z,  V = Var ζ = (N²/n)(1 − n/N) S²,  without replacement,

so that, exactly and for any schedule,

    m' = m + (ε/2) h (μ − m),   v' = (1 − εh/2)² v + ε + ε² V/4,   v → (1/h)(1 + εV/4)/(1 − εh/4).

The strong prior makes a wrong weight of prior against likelihood visible.
"""

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

from tractable import core
from tractable.core import Batch, Kernel, Model
from tractable.kernels import fixed, sghmc, sgld
from tractable.kernels.gradients import control_variates, minibatch
from tractable.tools import schedules
from tractable.tools.errors import DataError, SettingsError

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
    scores, eps = {}, 0.3
    batch = Batch((), jnp.ones(1), 1)

    def log_posterior(x: jax.Array, batch: Batch) -> jax.Array:
        return jnp.sum(jnp.sin(x) * jnp.array([1.0, 2.0])) + x[0] * x[1]

    here = jnp.array([0.3, -1.2])
    gradient = np.asarray(jax.grad(log_posterior)(here, batch))
    scales = {"number": 0.7, "vector": jnp.array([0.5, 2.0]), "matrix": CHOLESKY}
    for name, scale in {**scales, "NumPy matrix": np.asarray(CHOLESKY)}.items():
        kernel = make(log_posterior, eps, preconditioner=fixed(scale))
        new, _ = kernel.step(jnp.zeros(2), kernel.init(jax.random.key(0), here), batch)
        lower = np.asarray(scale) if np.ndim(scale) == 2 else np.diag(np.broadcast_to(scale, 2))
        wanted = 0.5 * eps * lower @ lower.T @ gradient
        scores[name] = error(new.position - here, wanted, 1e-12)
    return scores


def diffusion(make: Callable[..., Kernel], count: int = 1_000_000) -> Scores:
    """Without drift θ' − θ ~ N(0, ε P)."""
    scores, eps = {}, 0.3
    batch = Batch((), jnp.ones(1), 1)
    for name, lower in {"identity": jnp.eye(2), "matrix": CHOLESKY}.items():
        preconditioner = fixed(1.0 if name == "identity" else lower)
        kernel = make(lambda x, batch: 0.0 * jnp.sum(x), eps, preconditioner=preconditioner)
        state = kernel.init(jax.random.key(0), jnp.zeros(2))

        @jax.jit
        def draws(key: jax.Array, kernel: Kernel = kernel, state: Any = state) -> jax.Array:
            noise = kernel.draw(key, count // 2, state, batch)
            return jax.vmap(lambda z: kernel.step(z, state, batch)[0].position)(noise)

        white = np.linalg.solve(np.asarray(lower), np.asarray(draws(jax.random.key(1))).T) / math.sqrt(eps)
        scores |= moments(name, white.ravel(), 0.0, 1.0)
        scores[f"{name} cdf"] = ks(white.ravel()[:: 1 if name == "matrix" else 4], stats.norm.cdf)
        scores[f"{name} correlation"] = abs(np.mean(white[0] * white[1])) * math.sqrt(count // 2) / Z
    return scores


def stationary(make: Callable[..., Kernel], count: int = C, arms: Any = ARMS) -> Scores:
    """v = (1/h)(1 + εV/4)/(1 − εh/4) at four (ε, n), minibatches and strong prior included."""
    scores = {}
    log_posterior = core.log_posterior(gaussian_mean())
    for arm, (scaled, rows, steps) in enumerate(arms):
        eps = scaled / H
        noise = 0.0 if rows == N else V_PAIRS
        _, variance = recursion([eps] * steps, 1 / H, noise)
        name = f"εh = {scaled}, n = {rows}"
        formula = (1 + eps * noise / 4) / (1 - eps * H / 4) / H
        scores[f"{name}: formula"] = abs(variance / formula - 1) / 1e-3
        kernel = make(log_posterior, eps)
        state, _ = replicate(kernel, jax.random.key(arm), starts(count), steps, batches(rows))
        scores |= moments(name, state.position["theta"], MU, variance)
    return scores


def subsets(estimate: Callable, rows: int, tolerance: float = 1e-10) -> Scores:
    """The average of ĝ over all C(6, n) minibatches is ∇log p(θ|D), the prior counted once."""
    y = jnp.asarray(np.random.default_rng(3).normal(0.5, 1.0, 6))
    model = Model({"m": dist.Normal(0.3, 0.5), "s": dist.HalfNormal(2.0)}, lambda p: dist.Normal(p["m"], p["s"]))
    here = {"m": jnp.array(0.7), "s": jnp.array(-0.4)}
    g = estimate(core.log_posterior(model))

    def density(position: dict) -> jax.Array:
        """A naive second telling: log-normal coordinates of s."""
        m, s = position["m"], jnp.exp(position["s"])
        prior = -0.5 * ((m - 0.3) / 0.5) ** 2 - 0.5 * (s / 2) ** 2 + position["s"]
        return prior + jnp.sum(-0.5 * ((y - m) / s) ** 2 - jnp.log(s))

    wanted = jax.jit(jax.grad(density))(here)
    index = jnp.array(list(itertools.combinations(range(6), rows)))
    got = jax.jit(jax.vmap(lambda i: g(here, Batch((y[i], None), jnp.ones(rows), 6))))(index)
    return {name: error(jnp.mean(got[name]), wanted[name], tolerance) for name in wanted}


def coin(count: int = C) -> Scores:
    """y ~ Bernoulli(θ), θ ~ Beta(2, 3), moved in u = logit θ: the law of u after T steps.

    Its density is θ^{2+s} (1 − θ)^{3+f} in u, the log-determinant log θ(1 − θ) included, and a step adds
    N((ε/2)[2 + s_b − (5 + N) θ], ε) with s_b = (N/n) × the successes in the batch, hypergeometric; the law
    after T steps is T products of that transition, by quadrature.
    """
    a, b, ones, rows, steps = 2.0, 3.0, 15, 2, 12
    y = jnp.asarray(np.repeat([1.0, 0.0], [ones, N - ones]))
    model = Model({"theta": dist.Beta(a, b)}, lambda params: dist.Bernoulli(params["theta"]))
    eps = 0.12

    grid = np.linspace(-6, 8, 1401)
    width = grid[1] - grid[0]
    mass = np.zeros_like(grid)
    mass[np.argmin(np.abs(grid))] = 1.0  # u = 0
    transition = np.zeros((grid.size, grid.size))
    for k, share in enumerate(stats.hypergeom(N, ones, rows).pmf(np.arange(rows + 1))):
        mean = grid + 0.5 * eps * (a + N / rows * k - (a + b + N) * special.expit(grid))
        transition += share * stats.norm.pdf(grid[None], mean[:, None], math.sqrt(eps)) * width
    for _ in range(steps):
        mass = mass @ transition
    cdf = np.cumsum(mass) - 0.5 * mass

    kernel = sgld(core.log_posterior(model), eps)
    start = {"theta": jnp.zeros(count)}
    state, _ = replicate(kernel, jax.random.key(4), start, steps, pairs(y))
    u = np.asarray(state.position["theta"])
    return {
        "quadrature": abs(mass.sum() - 1) / 1e-6,
        "cdf": ks(u, lambda x: np.interp(x, grid, cdf)),
        "support": 0.0 if np.all((special.expit(u) > 0) & (special.expit(u) < 1)) else math.inf,
    }


def coin_density() -> Scores:
    """∫ exp(log density) du = B(a + s, b + f), E[u] = ψ(a + s) − ψ(b + f): the log-determinant is there."""
    y = jnp.asarray(np.repeat([1.0, 0.0], [7, 3]))
    model = Model({"theta": dist.Beta(2.0, 3.0)}, lambda params: dist.Bernoulli(params["theta"]))
    u = jnp.linspace(-25, 25, 20_001)
    density = jnp.exp(jax.jit(jax.vmap(lambda u: core.log_density(model, (y, None))({"theta": u})))(u))
    total = float(density.sum() * (u[1] - u[0]))
    mean = float((u * density).sum() * (u[1] - u[0])) / total
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


@pytest.mark.computes
def test_coin():
    """SGLD in logit space, after T steps, against quadrature."""
    assert_holds(coin(), C)


def test_coin_density():
    """The density of u = logit θ is θ^{a+s} (1 − θ)^{b+f}."""
    assert_holds(coin_density())


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
    with pytest.raises(DataError, match="expects a batch at every step, and got None: it would sample the prior"):
        kernel.step(noise, state, None)


@pytest.mark.computes
def test_schedule_moments():
    """m_T and v_T of a polynomial schedule, T = 200."""
    schedule, steps = schedules.polynomial(0.3, 10.0, 0.7), 200
    _, variance = recursion(0.3 * (10.0 + np.arange(steps)) ** -0.7, 1 / H, V_PAIRS)
    kernel = sgld(core.log_posterior(gaussian_mean()), schedule)
    state, _ = replicate(kernel, jax.random.key(7), starts(C), steps, pairs(Y))
    assert_holds(moments("θ", state.position["theta"], MU, variance), C)


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
