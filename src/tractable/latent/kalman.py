"""Kalman filter and smoother: hidden normal states are integrated out or drawn.

    z_1 ~ N(m, diag p²),    z_t ~ N(A z_{t−1} + B u_t, diag q²),    x_t ~ N(C z_t + D u_t + o, diag r²)

Everything follows from the formula for a normal state z ~ N(m, P) given one number x = c z + noise of variance r²:

    v = x − c m,    s = c P cᵀ + r²,    k = P cᵀ / s,    m ← m + k v,    P ← (I − k c) P (I − k c)ᵀ + r² k kᵀ

In the forward pass the numbers are the entries of x_t. In the backward pass z_t, given x_1 … x_t, is conditioned on the
entries of z_{t+1}, and m is then an affine function of z_{t+1}. In the parallel pass m is an affine function of the
state before x_t. A missing number is NaN; it is skipped, and so integrated out. No covariance is inverted, so p, q and
r may be 0. Koopman & Durbin 2000; Durbin & Koopman 2012, section 6.4; Carter & Kohn 1994.

On a CPU the steps run one after another; on an accelerator the steps of a long sequence run in parallel, in log T
rounds (Särkkä & García-Fernández 2021).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.numbers import LOG_2PI

LONG = 256  # number of steps from which an accelerator runs them in parallel
UNROLLED = 8  # number of a vector's entries up to which the loop over them is unrolled

Normal = tuple[jax.Array, jax.Array]  # mean and covariance


class LinearGaussian(NamedTuple):
    """A linear system with normal noise.

    As the θ of a model it holds only the learnt entries: a leaf is None if all its entries are known, and a vector of
    the learnt entries if some are known.
    """

    initial_mean: Any  # (d,) of z_1
    initial_noise: Any  # (d,) sds of z_1
    transition: Any  # (d, d) A
    control: Any  # (d, k) B
    state_noise: Any  # (d,) sds
    emission: Any  # (p, d) C
    feedthrough: Any  # (p, k) D
    offset: Any  # (p,) o
    noise: Any  # (p,) sds


class Filtered(NamedTuple):
    """States given the steps so far."""

    mean: jax.Array  # (T, d)
    covariance: jax.Array  # (T, d, d)
    log_prob: jax.Array  # (T,) log p(x_t | x_1 … x_{t−1})


class Smoothed(NamedTuple):
    """States given the whole sequence."""

    mean: jax.Array  # (T, d)
    covariance: jax.Array  # (T, d, d)
    cross: jax.Array  # (T, d, d) Cov[z_t, z_{t−1} | x]; 0 at the first step


class Conditionals(NamedTuple):
    """The distribution of z_t given z_{t+1} and x_1 … x_t, N(G z_{t+1} + g, L); G is 0 at the last step."""

    gain: jax.Array  # (T, d, d) G
    offset: jax.Array  # (T, d) g
    covariance: jax.Array  # (T, d, d) L


def filter_states(system: LinearGaussian, x: jax.Array, u: jax.Array, parallel: bool | None = None) -> Filtered:
    """The forward pass over one sequence x (T, p) with inputs u (T, k).

    Args:
        system: all leaves filled in.
        parallel: whether to run the steps in parallel; by default device and length decide.
    """
    x, drift = x - _level(system, u), _drift(system, u)
    if _is_parallel(x, parallel):
        return _filter_in_parallel(system, x, drift)

    def step(prediction: Normal, entry: Normal) -> tuple[Normal, Filtered]:
        x, drift = entry
        (mean, covariance), (_, _, logs) = _condition_on_step(system, prediction, x)
        return _predict(system, mean, covariance, drift), Filtered(mean, covariance, jnp.sum(logs))

    next_drift = jnp.concatenate([drift[1:], jnp.zeros_like(drift[:1])])
    return jax.lax.scan(step, _start(system), (x, next_drift))[1]


def smooth(
    system: LinearGaussian, x: jax.Array, u: jax.Array, parallel: bool | None = None
) -> tuple[Smoothed, jax.Array]:
    """Both passes, and log p(x), (). Args: as for ``filter_states``."""
    states = filter_states(system, x, u, parallel)
    conditionals = _conditionals(system, states, u)
    mean, covariance = _run_back(conditionals, _is_parallel(x, parallel))
    cross = covariance[1:] @ jnp.swapaxes(conditionals.gain[:-1], 1, 2)
    cross = jnp.concatenate([jnp.zeros_like(covariance[:1]), cross])
    return Smoothed(mean, covariance, cross), jnp.sum(states.log_prob)


def log_prob(system: LinearGaussian, x: jax.Array, u: jax.Array) -> jax.Array:
    """log p(x), (), in nats (natural logarithms), with the states integrated out.

    JAX differentiates it by one backward pass.
    """
    return jnp.sum(filter_states(system, x, u).log_prob)


def draw_states(noise: jax.Array, system: LinearGaussian, x: jax.Array, u: jax.Array) -> jax.Array:
    """A draw of the states from p(z | x), (T, d): the last state given x, then each state given the next one.

    ``noise`` (T, d), standard normal, is the only randomness; the draw is linear in it. Paths stay close to x even if A
    has eigenvalues above 1. Carter & Kohn 1994; Frühwirth-Schnatter 1994.
    """
    conditionals = _conditionals(system, filter_states(system, x, u), u)
    noise = jax.vmap(lambda covariance, noise: _root(covariance) @ noise)(conditionals.covariance, noise)
    offset, none = conditionals.offset + noise, jnp.zeros_like(conditionals.covariance)
    path = conditionals._replace(offset=offset, covariance=none)
    return _run_back(path, _is_parallel(x, None))[0]


def simulate(key: jax.Array, system: LinearGaussian, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Simulated states (T, d) and observations (T, p) of one sequence with inputs u (T, k)."""
    key_z, key_x = jax.random.split(key)
    drift = _drift(system, u).at[0].set(system.initial_mean)
    sds = jnp.broadcast_to(system.state_noise, drift.shape).at[0].set(system.initial_noise)

    def step(z: jax.Array, drift: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = system.transition @ z + drift
        return z, z

    moves = drift + sds * jax.random.normal(key_z, drift.shape, drift.dtype)
    z = jax.lax.scan(step, jnp.zeros_like(moves[0]), moves)[1]
    x = z @ system.emission.T + _level(system, u)
    return z, x + system.noise[None] * jax.random.normal(key_x, x.shape, x.dtype)


def _condition_on_number(state: Normal, entry: tuple) -> tuple[Normal, tuple[jax.Array, jax.Array, jax.Array]]:
    """A normal state given one more number; and the number's v, 1 / s (0 if it carries no information) and log density.

    The mean and the number may be affine functions of e other numbers. Axis 0 then holds the constant and the
    coefficients: the mean is (1 + e, d), and x is (1 + e,).
    """
    (mean, covariance), (x, row, variance) = state, entry
    is_observed = ~jnp.any(jnp.isnan(x))
    residual = jnp.where(is_observed, x - mean @ row, 0)
    covariance_with_x = covariance @ row
    spread = jnp.sum(row * covariance_with_x) + variance
    log_prob = jnp.where(is_observed, -0.5 * (residual**2 / spread + jnp.log(spread) + LOG_2PI), 0)
    informs = is_observed & (spread > 0)  # a number that is known already carries no information
    gain = jnp.where(informs, covariance_with_x / spread, 0)
    rest = jnp.eye(len(row), dtype=row.dtype) - gain[:, None] * row[None]
    covariance = rest @ covariance @ rest.T + variance * gain[:, None] * gain[None]
    weight = jnp.where(informs, 1 / spread, 0)
    return (mean + jnp.tensordot(residual, gain, 0), covariance), (residual, weight, log_prob)


def _condition_on_step(system: LinearGaussian, prediction: Normal, x: jax.Array) -> tuple[Normal, tuple]:
    entries = x, system.emission, system.noise**2
    return jax.lax.scan(_condition_on_number, prediction, entries, unroll=min(len(x), UNROLLED))


def _conditionals(system: LinearGaussian, states: Filtered, u: jax.Array) -> Conditionals:
    unit = jnp.eye(states.mean.shape[1], dtype=states.mean.dtype)

    def one(mean: jax.Array, covariance: jax.Array, drift: jax.Array) -> Conditionals:
        state = jnp.concatenate([mean[None], jnp.zeros_like(unit)]), covariance
        entries = jnp.concatenate([-drift[:, None], unit], axis=1), system.transition, system.state_noise**2
        (mean, covariance), _ = jax.lax.scan(_condition_on_number, state, entries, unroll=min(len(unit), UNROLLED))
        return Conditionals(mean[1:].T, mean[0], covariance)

    others = jax.vmap(one)(states.mean[:-1], states.covariance[:-1], _drift(system, u)[1:])
    last = Conditionals(jnp.zeros_like(unit), states.mean[-1], states.covariance[-1])
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), others, last)


def _run_back(conditionals: Conditionals, parallel: bool) -> Normal:
    """The means (T, d) and covariances (T, d, d) of all states, from the last to the first."""

    def move(conditional: Conditionals, mean: jax.Array, covariance: jax.Array) -> Normal:
        gain, offset, noise = conditional
        return gain @ mean + offset, gain @ covariance @ gain.T + noise

    def combine(rest: Conditionals, conditional: Conditionals) -> Conditionals:
        return Conditionals(conditional.gain @ rest.gain, *move(conditional, rest.offset, rest.covariance))

    def step(state: Normal, conditional: Conditionals) -> tuple[Normal, Normal]:
        state = move(conditional, *state)
        return state, state

    if parallel:
        return jax.lax.associative_scan(jax.vmap(combine), conditionals, reverse=True)[1:]
    nothing = jnp.zeros_like(conditionals.offset[0]), jnp.zeros_like(conditionals.covariance[0])
    return jax.lax.scan(step, nothing, conditionals, reverse=True)[1]


def _root(covariance: jax.Array) -> jax.Array:
    """R, lower triangular, with R Rᵀ = covariance, which may be singular; for each column one more entry is known."""

    def column(covariance: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        variance = row @ covariance @ row
        entry = jnp.ones(()), row, jnp.zeros(())
        (gain, covariance), _ = _condition_on_number((jnp.zeros_like(row), covariance), entry)
        return covariance, gain * jnp.sqrt(jnp.maximum(variance, 0))

    unit = jnp.eye(len(covariance), dtype=covariance.dtype)
    return jax.lax.scan(column, covariance, unit, unroll=min(len(unit), UNROLLED))[1].T


def _start(system: LinearGaussian) -> Normal:
    return system.initial_mean, jnp.diag(system.initial_noise**2)


def _drift(system: LinearGaussian, u: jax.Array) -> jax.Array:
    """B u_t, (T, d); the value at the first step is unused."""
    return u @ system.control.T


def _level(system: LinearGaussian, u: jax.Array) -> jax.Array:
    """D u_t + o, (T, p)."""
    return u @ system.feedthrough.T + system.offset[None]


def _predict(system: LinearGaussian, mean: jax.Array, covariance: jax.Array, drift: jax.Array) -> Normal:
    """Mean and covariance one step later."""
    a = system.transition
    spread = a @ covariance @ a.T + jnp.diag(system.state_noise**2)
    return a @ mean + drift, 0.5 * (spread + spread.T)


def _is_parallel(x: jax.Array, parallel: bool | None) -> bool:
    return (jax.default_backend() != "cpu" and len(x) >= LONG) if parallel is None else parallel


# The filter in parallel (Särkkä & García-Fernández 2021). An element stands for a run of steps: it has the distribution
# of the run's last state given the state before the run, and the likelihood of the state before the run. The elements
# of two consecutive runs combine into the element of both, and this operation is associative.


class _Element(NamedTuple):
    """p(z_j | z_i, x) = N(a z_i + b, c) and p(x | z_i) ∝ exp(ηᵀ z_i − ½ z_iᵀ J z_i), for x_{i+1} … x_j."""

    a: jax.Array
    b: jax.Array
    c: jax.Array
    eta: jax.Array
    j: jax.Array


def _filter_in_parallel(system: LinearGaussian, x: jax.Array, drift: jax.Array) -> Filtered:
    mean, covariance = _start(system)
    steps = len(x), *covariance.shape

    def element(x: jax.Array, mean: jax.Array, slopes: jax.Array, covariance: jax.Array) -> _Element:
        numbers = jnp.concatenate([x[:, None], jnp.zeros((len(x), len(slopes)), x.dtype)], axis=1)
        state = jnp.concatenate([mean[None], slopes]), covariance
        (mean, covariance), (residual, weight, _) = _condition_on_step(system, state, numbers)
        slopes = residual[:, 1:].T * weight[None]  # v is affine in z_i
        return _Element(mean[1:].T, mean[0], covariance, -slopes @ residual[:, 0], slopes @ residual[:, 1:])

    slopes = jnp.broadcast_to(system.transition.T, steps).at[0].set(0)
    noises = jnp.broadcast_to(jnp.diag(system.state_noise**2), steps).at[0].set(covariance)
    elements = jax.vmap(element)(x, drift.at[0].set(mean), slopes, noises)
    prefixes = jax.lax.associative_scan(jax.vmap(_combine), elements)
    others = jax.vmap(partial(_predict, system))(prefixes.b[:-1], prefixes.c[:-1], drift[1:])
    predictions = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), (mean, covariance), others)
    (mean, covariance), (_, _, logs) = jax.vmap(partial(_condition_on_step, system))(predictions, x)
    return Filtered(mean, covariance, jnp.sum(logs, axis=1))


def _combine(one: _Element, two: _Element) -> _Element:
    """The element of two consecutive runs of steps."""
    unit = jnp.eye(one.a.shape[-1], dtype=one.a.dtype)
    into_two = jnp.linalg.solve((unit + one.c @ two.j).T, two.a.T).T  # a₂ (I + c₁ J₂)⁻¹
    into_one = jnp.linalg.solve((unit + two.j @ one.c).T, one.a).T  # a₁ᵀ (I + J₂ c₁)⁻¹
    return _Element(
        into_two @ one.a,
        into_two @ (one.b + one.c @ two.eta) + two.b,
        into_two @ one.c @ two.a.T + two.c,
        into_one @ (two.eta - two.j @ one.b) + one.eta,
        into_one @ two.j @ one.a + one.j,
    )
