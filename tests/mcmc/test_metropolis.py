"""Metropolis–Hastings, the random walk and MALA leave exactly π as it is."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import C, Scores, assert_holds, error, ks, of_p, replicate, uniform_counts
from scipy import stats

from tractable.core.model import Kernel
from tractable.kernels import langevin, mala, random_walk
from tractable.mcmc.metropolis import Point, Proposal, asymmetric

pytestmark = [pytest.mark.test, pytest.mark.usefixtures("strict_ranks")]

module = importlib.import_module("tractable.mcmc.metropolis")  # the package's name is the function
MATRIX = np.array([[1.0, 0, 0], [0.5, 0.8, 0], [-0.3, 0.2, 1.4]])
SCALES = {"number": 0.7, "vector": jnp.array([0.3, 1.0, 2.0]), "matrix": jnp.asarray(MATRIX)}


def logistic(x: jax.Array) -> jax.Array:
    """log Π e^{−x}/(1 + e^{−x})²."""
    return jnp.sum(-x - 2 * jax.nn.softplus(-x))


def invariance(make: Callable[..., Kernel], step_size: float, steps: int, count: int = C, seed: int = 0) -> Scores:
    """θ ~ π and θ' one or more steps on: θ' ~ π. π is a product of two logistics, with cdf σ."""
    key_start, key = jax.random.split(jax.random.key(seed))
    start = jax.random.logistic(key_start, (count, 2))
    state, _ = replicate(make(logistic, step_size), key, start, steps)
    u = jax.nn.sigmoid(state.position)
    square = jnp.sum(jax.scipy.special.ndtri(u) ** 2, axis=1)
    return {
        "first": ks(u[:, 0], "uniform"),
        "second": ks(u[:, 1], "uniform"),
        "norm": ks(square, stats.chi2(2).cdf),
    }


def detailed_balance() -> Scores:
    """π_i T_ij = π_j T_ji, Σ_j T_ij = 1 and πT = π on 8 states, for an asymmetric proposal."""
    rng = np.random.default_rng(1)
    pi = rng.dirichlet(np.ones(8))
    q = rng.dirichlet(np.ones(8), 8)
    proposal = asymmetric(
        draw=lambda key, count, position: jax.random.split(key, count),
        move=lambda key, here: jax.random.categorical(key, jnp.log(q)[here.position]),
        log_prob=lambda there, here: jnp.log(q)[here.position, there.position],
    )

    def acceptance(i: jax.Array, j: jax.Array) -> jax.Array:
        here, there = (Point(x, jnp.log(pi)[x], ()) for x in (i, j))
        return jnp.exp(jnp.minimum(0.0, module.log_accept_ratio(proposal, (), here, there)))

    states = jnp.arange(8)
    accept = np.array(jax.jit(jax.vmap(lambda i: jax.vmap(lambda j: acceptance(i, j))(states)))(states))
    transition = q * accept
    np.fill_diagonal(transition, 0)
    np.fill_diagonal(transition, 1 - transition.sum(1))
    flow = pi[:, None] * transition
    return {
        "probabilities": 0.0 if transition.min() >= 0 else math.inf,
        "rows": error(transition.sum(1), 1, 1e-12),
        "balance": error(flow, flow.T, 1e-12),
        "invariance": error(pi @ transition, pi, 1e-12),
    }


def antisymmetry(make: Callable[..., Proposal], scale: Any) -> Scores:
    """log π(z) + log q(z'|z) + min(0, A(z, z')) is the same with z and z' swapped, for 1000 pairs."""
    dim, step_size = 3, 0.9
    proposal = make(step_size, scale)

    def point(x: jax.Array) -> Point:
        return Point(x, logistic(x), jax.grad(logistic)(x))

    def pair(key: jax.Array) -> tuple[jax.Array, ...]:
        key_here, key_noise = jax.random.split(key)
        here = point(2 * jax.random.normal(key_here, (dim,)))
        noise = jax.tree.map(lambda z: z[0], proposal.draw(key_noise, 1, here.position))
        there = point(proposal.move(noise, here))
        root = jnp.sqrt(step_size)
        lower = scale if jnp.ndim(scale) == 2 else jnp.diag(jnp.broadcast_to(scale, (dim,)))

        def log_q(b: Point, a: Point) -> jax.Array:
            """A naive second telling."""
            mean = a.position + 0.5 * step_size * lower @ (lower.T @ a.gradient)
            return jax.scipy.stats.multivariate_normal.logpdf(b.position, mean, step_size * lower @ lower.T)

        back = -noise - 0.5 * root * lower.T @ (here.gradient + there.gradient)
        forth = module.log_accept_ratio(proposal, noise, here, there)
        reverse = module.log_accept_ratio(proposal, back, there, here)
        left = jnp.sum(here.terms) + log_q(there, here) + jnp.minimum(0.0, forth)
        right = jnp.sum(there.terms) + log_q(here, there) + jnp.minimum(0.0, reverse)
        densities = proposal.log_prob(here, there) - proposal.log_prob(there, here)
        log_ratio = jnp.zeros(()) if proposal.log_ratio is None else proposal.log_ratio(noise, here, there)
        returned = proposal.move(back, there) - here.position
        return left - right, log_ratio - densities, forth + reverse, jnp.max(jnp.abs(returned))

    flow, ratio, sum_, returned = jax.jit(jax.vmap(pair))(jax.random.split(jax.random.key(2), 1000))
    return {
        "balance": error(flow, 0, 1e-9),
        "log_ratio": error(ratio, 0, 1e-9),
        "antisymmetry": error(sum_, 0, 1e-9),
        "way back": error(returned, 0, 1e-9),
    }


def exact_rank(make: Callable[[Callable], Kernel], count: int = 20_000, seed: int = 0) -> Scores:
    """Among L steps of a reversible kernel around θ, with (θ, y) from the joint, θ's rank is uniform.

    y_i ~ N(m, e^{2s}), i = 1..5; m ~ N(0, 1), s ~ N(0, ½²). The chain goes K ~ U{0..L} steps one way and
    L − K the other from θ. The log likelihood depends on the data: a sampler of the prior fails there alone.
    Gandy & Scott 2020.
    """
    length = 7

    def replicate_of(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 6)
        theta = jax.random.normal(keys[0], (2,)) * jnp.array([1.0, 0.5])
        y = theta[0] + jnp.exp(theta[1]) * jax.random.normal(keys[1], (5,))

        def log_likelihood(x: jax.Array) -> jax.Array:
            return -0.5 * jnp.sum((y - x[0]) ** 2) * jnp.exp(-2 * x[1]) - 5 * x[1]

        def log_joint(x: jax.Array) -> jax.Array:
            return -0.5 * x[0] ** 2 - 2 * x[1] ** 2 + log_likelihood(x)

        def statistics(x: jax.Array) -> jax.Array:
            return jnp.array([x[0], x[1], x[0] ** 2, x[1] ** 2, log_likelihood(x)])

        kernel = make(log_joint)

        def path(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            key_init, key = jax.random.split(key)

            def body(state: Any, key: jax.Array) -> tuple[Any, tuple]:
                state, _ = kernel(key, state)
                return state, (statistics(state.position), jnp.all(state.position == theta))

            return jax.lax.scan(body, kernel.init(key_init, theta), jax.random.split(key, length))[1]

        steps = jax.random.randint(keys[2], (), 0, length + 1)
        one_way, other_way = jnp.arange(length) < steps, jnp.arange(length) < length - steps
        values, stayed = jax.tree.map(lambda *x: jnp.concatenate(x), path(keys[3]), path(keys[4]))
        taken = jnp.concatenate([one_way, other_way])
        below = (taken & ~stayed)[:, None] & (values < statistics(theta)[None])
        less, ties = jnp.sum(below, axis=0), jnp.sum(taken & stayed)  # equal up to rounding: not compared
        return less + jnp.floor(jax.random.uniform(keys[5], less.shape) * (ties + 1)).astype(int)

    ranks = np.asarray(jax.jit(jax.vmap(replicate_of))(jax.random.split(jax.random.key(seed), count)))
    names = ["mean", "log scale", "mean²", "log scale²", "log likelihood"]
    return {name: uniform_counts(np.bincount(ranks[:, i], minlength=length + 1)) for i, name in enumerate(names)}


def test_detailed_balance():
    """π_i T_ij = π_j T_ji."""
    assert_holds(detailed_balance())


@pytest.mark.test("vector", "number")
@pytest.mark.parametrize("scale", SCALES)
def test_antisymmetry(scale):
    """π(z) q(z'|z) α(z, z') = π(z') q(z|z') α(z', z)."""
    assert_holds(antisymmetry(langevin, SCALES[scale]))


@pytest.mark.test("mala-1.0-1", "random_walk-4.0-1")
@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("step_size", [1.0, 4.0])
@pytest.mark.parametrize("make", [mala, random_walk])
def test_invariance(make, step_size, steps):
    """πT^k = π for every step size."""
    assert_holds(invariance(make, step_size, steps), C)


@pytest.mark.laws
def test_invariance_of_a_preconditioned_walk():
    """πT = π with P = L Lᵀ."""
    lower = jnp.array([[1.0, 0.0], [0.7, 0.5]])
    for make in (mala, random_walk):
        assert_holds(invariance(lambda log_density, s, make=make: make(log_density, s, lower), 2.0, 3), C)


@pytest.mark.laws
@pytest.mark.parametrize("make", [mala, random_walk])
def test_exact_rank(make):
    """θ's rank among the steps around it is uniform."""
    assert_holds(exact_rank(lambda log_joint: make(log_joint, 0.3)), 20_000)


@pytest.mark.parametrize("make", [mala, random_walk])
def test_summands(make):
    """Summands of the log density move the chain as their sum does."""

    def terms(x: jax.Array) -> jax.Array:
        return -x - 2 * jax.nn.softplus(-x)

    start = jax.random.logistic(jax.random.key(0), (100, 4))
    sums, _ = replicate(make(logistic, 0.8), jax.random.key(1), start, 20)
    parts, _ = replicate(make(terms, 0.8), jax.random.key(1), start, 20)
    np.testing.assert_allclose(parts.position, sums.position, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [mala, random_walk])
def test_not_a_number(make):
    """A NaN counts as log density −∞: refused, counted, and π restricted to the rest is left as it is."""

    def half(x: jax.Array) -> jax.Array:
        return jnp.where(x[0] < 0, jnp.nan, -0.5 * jnp.sum(x**2))

    start = jnp.abs(jax.random.normal(jax.random.key(0), (C, 1)))
    state, info = replicate(make(half, 1.0), jax.random.key(1), start, 5)
    x = np.asarray(state.position[:, 0])
    assert np.all(np.isfinite(x)) and np.all(x >= 0)
    assert 0.01 < info.not_a_number.mean() < 0.5
    assert np.all(info.not_a_number + info.accepted <= 1 + 1e-12)
    assert_holds({"half normal": ks(x, stats.halfnorm.cdf)}, C)


@pytest.mark.laws
def test_acceptance_is_its_expectation():
    """E[accepted − min(1, ratio)] = 0."""
    start = jax.random.logistic(jax.random.key(0), (C, 2))
    _, info = replicate(mala(logistic, 3.0), jax.random.key(1), start, 1)
    difference = np.asarray(info.accepted - info.acceptance)
    z = difference.mean() / (difference.std() / math.sqrt(C))
    assert_holds({"accepted": of_p(2 * stats.norm.sf(abs(z)))}, C)


def test_float32_keeps_its_digits():
    """At N = 10⁶, Σ(differences) is right to 0.02 nat in float32, where the difference of sums is not."""
    size = 1_000_000
    y = np.random.default_rng(0).standard_normal(size)

    def terms(x: jax.Array, y: jax.Array) -> jax.Array:
        return -0.5 * (y - x) ** 2 - 0.5 * math.log(2 * math.pi)

    proposal = Proposal(lambda *_: (), lambda noise, here: here.position + noise)

    @jax.jit
    def ratios(x: jax.Array, move: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        here, there = (Point(p, terms(p, y), ()) for p in (x, x + move))
        return module.log_accept_ratio(proposal, move, here, there), jnp.sum(there.terms) - jnp.sum(here.terms)

    differences, naive = [], []
    rng = np.random.default_rng(1)
    for _ in range(30):
        x, there = (1e-3 * rng.standard_normal(2)).astype(np.float32)
        move = np.float32(there - x)
        here64, there64 = np.float64(x), np.float64(np.float32(x + move))  # what float32 steps to, exactly
        y64 = y.astype(np.float32).astype(np.float64)
        exact = np.sum((y64 - 0.5 * (here64 + there64)) * (there64 - here64))
        difference, of_sums = ratios(jnp.float32(x), jnp.float32(move), jnp.asarray(y, jnp.float32))
        assert difference.dtype == jnp.float32
        differences.append(float(difference) - exact)
        naive.append(float(of_sums) - exact)
    rms, rms_naive = (float(np.sqrt(np.mean(np.square(e)))) for e in (differences, naive))
    print(f"rms error {rms:.2g} nat from differences, {rms_naive:.2g} from sums")
    assert rms < 0.02
    assert rms_naive > 5 * rms
