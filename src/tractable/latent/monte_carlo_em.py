"""Monte-Carlo EM: an E-step by draws of z, where z can be neither summed nor integrated out.

    E:  z_n1 … z_nS ~ p(z | x_n, θ),  exactly or by chains       M:  θ' = argmax Q̂ (+ log p)
    Q̂(θ') = Σ_n w_n (1/S) Σ_s log p(x_n, z_ns | θ')              gain = Q̂(θ') − Q̂(θ),  its standard error σ̂

As S grows, θ climbs to a stationary point of Σ_n w_n log p(x_n | θ). With S fixed, θ wanders about that point for ever,
and a step may lower the objective (Wei & Tanner 1990). The gain and its error decide when S grows and when to stop
(Caffo, Jank & Jones 2005). Standard errors come from the draws (Louis 1982).

This file has the M-step, its gain and the standard errors; ``latent_draws`` and ``latent_chains`` draw z. Every datum
has several chains that are independent given θ. So the spread of their means gives σ̂, whatever the correlation of the
draws within a chain.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.sums import dtype_of
from tractable.core.tree import PyTree
from tractable.latent.gradient_em import climb_by_lbfgs
from tractable.latent.latent_draws import Draws, count_rows, map_chains, sum_over_draws, weighted_sum


class Improvement(NamedTuple):
    """The result of an M-step, and its gain."""

    theta: PyTree
    gain: jax.Array  # () Q̂(θ') − Q̂(θ) (+ log p(θ') − log p(θ)), in nats (natural logarithms)
    error: jax.Array  # () σ̂ of the gain


class Information(NamedTuple):
    """Estimates, from draws, of the curvature at φ, the unconstrained values of θ."""

    complete: jax.Array  # (d, d) E[−∂² log p(x, z)] − ∂² log p(θ), summed over data
    missing: jax.Array  # (d, d) Cov[∂ log p(x, z)]: observed = complete − missing
    noise: jax.Array  # (d, d) covariance of the Monte-Carlo error of the score, ∂ log p(x | θ)


def drawn_statistics(statistics: Callable, rows: PyTree, weights: jax.Array, draws: Draws) -> PyTree:
    """Σ_n w_n (1/S) Σ_s T(x_n, z_ns); ``statistics`` is ``(datum, z) -> T``."""

    def of(z: PyTree) -> PyTree:  # of one draw of every chain
        return jax.tree.map(
            lambda t: weighted_sum(weights, jnp.mean(jnp.asarray(t, jnp.result_type(t, weights)), axis=1)),
            map_chains(statistics)(rows, z),
        )

    return jax.tree.map(lambda total: total / draws.length, sum_over_draws(of, draws))


def drawn_m_step(
    log_joint: Callable, log_prior: Callable | None, constrain: Callable, unconstrain: Callable, steps: int = 10
) -> Callable:
    """An M-step ``(theta, rows, weights, draws) -> theta'``: ``steps`` steps of L-BFGS on Q̂ + log p(θ).

    The result never lowers Q̂ + log p(θ).

    Args:
        log_joint: ``(theta, datum, z) -> ()``.
        log_prior: ``theta -> ()`` or None.
        constrain: maps flat unconstrained values (d,) to θ; ``unconstrain`` is its inverse. Densities are those of θ:
            no Jacobian is added.
    """

    def m_step(theta: PyTree, rows: PyTree, weights: jax.Array, draws: Draws) -> PyTree:
        q = expected_log_joint(log_joint, constrain, rows, weights, draws)

        def value(position: jax.Array) -> jax.Array:
            return q(position) if log_prior is None else q(position) + log_prior(constrain(position))

        return constrain(climb_by_lbfgs(value, unconstrain(theta), steps))

    return m_step


def expected_log_joint(
    log_joint: Callable, constrain: Callable, rows: PyTree, weights: jax.Array, draws: Draws
) -> Callable:
    """``φ -> Σ_n w_n (1/S) Σ_s log p(x_n, z_ns | θ(φ))``.

    The gradient is summed in the same loop, because JAX cannot differentiate a loop of unknown length in reverse.
    """

    def part(position: jax.Array, z: PyTree) -> jax.Array:
        theta = constrain(position)
        terms = map_chains(lambda datum, z: log_joint(theta, datum, z))(rows, z)  # (n, C)
        return weighted_sum(weights, jnp.mean(terms, axis=1))

    @jax.custom_vjp
    def q(position: jax.Array) -> jax.Array:
        return sum_over_draws(lambda z: part(position, z), draws) / draws.length

    def forward(position: jax.Array) -> tuple:
        value, slope = sum_over_draws(lambda z: jax.value_and_grad(part)(position, z), draws)
        return value / draws.length, slope / draws.length

    q.defvjp(forward, lambda slope, cotangent: (cotangent * slope,))
    return q


def improve(
    m_step: Callable, log_joint: Callable, log_prior: Callable | None, theta: PyTree, rows: PyTree,
    weights: jax.Array, draws: Draws, exact: bool,
) -> Improvement:  # fmt: skip
    """An M-step on draws of z, and its gain with a standard error.

    Args:
        m_step: ``(theta, rows, weights, draws) -> theta'``.
        log_joint: ``(theta, datum, z) -> ()``.
        log_prior: ``theta -> ()`` if the M-step maximises it too, else None.
        weights: (n,) ≥ 0.
        draws: of z given ``theta``.
        exact: whether all draws are independent; otherwise only draws of different chains are.
    """
    new = m_step(theta, rows, weights, draws)
    new = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, theta)

    def change(datum: PyTree, z: PyTree) -> jax.Array:
        # The difference is taken draw by draw: its noise is far smaller than that of either term.
        return log_joint(new, datum, z) - log_joint(theta, datum, z)

    def of(z: PyTree) -> tuple:
        delta = jnp.where(weights[:, None] > 0, map_chains(change)(rows, z), 0)  # (n, C)
        return delta, jnp.square(delta)

    total, square = sum_over_draws(of, draws)
    chains = total.shape[1]
    mean = jnp.mean(total, axis=1) / draws.length  # (n,)
    gain = jnp.sum(weights * mean)
    if log_prior is not None:
        gain = gain + log_prior(new) - log_prior(theta)
    if exact:
        count = chains * draws.length
        variance = (jnp.sum(square, axis=1) / count - jnp.square(mean)) / (count - 1)
    else:
        variance = jnp.var(total / draws.length, axis=1, ddof=1) / chains
    error = jnp.sqrt(jnp.sum(jnp.square(weights) * jnp.maximum(variance, 0)))
    return Improvement(new, gain, error)


def observed_information(
    log_joint: Callable, log_prior: Callable | None, constrain: Callable, position: jax.Array, rows: PyTree,
    weights: jax.Array, draws: Draws,
) -> Information:  # fmt: skip
    """The observed information, estimated from draws of z by Louis's identity, where E and Cov are over z | x, θ.

        −∂² log p(x | θ) = E[−∂² log p(x, z | θ)] − Cov[∂ log p(x, z | θ)]

    Args:
        log_joint: ``(theta, datum, z) -> ()``.
        log_prior: ``theta -> ()`` or None.
        constrain: maps flat values φ (d,) to θ.
        position: φ, (d,), at which z was drawn.
    """
    counted = jnp.where(weights > 0, weights, 0)

    def joint(phi: jax.Array, datum: PyTree, z: PyTree) -> jax.Array:
        return log_joint(constrain(phi), datum, z)

    def of(z: PyTree) -> tuple:
        def mean_log_joint(phi: jax.Array) -> jax.Array:
            return weighted_sum(weights, jnp.mean(map_chains(functools.partial(joint, phi))(rows, z), axis=1))

        curvature = jax.hessian(mean_log_joint)(position)
        scores = map_chains(functools.partial(jax.grad(joint), position))(rows, z)  # (n, C, d)
        scores = jnp.where(counted[:, None, None] > 0, scores, 0)
        return curvature, scores, jnp.einsum("n,ncd,nce->de", counted, scores, scores)

    curvature, total, outer = sum_over_draws(of, draws)
    complete = -curvature / draws.length
    if log_prior is not None:
        complete = complete - jax.hessian(lambda phi: log_prior(constrain(phi)))(position)
    chains = total.shape[1]
    count, means = chains * draws.length, total / draws.length
    mean = jnp.mean(means, axis=1)  # (n, d)
    missing = (outer - count * jnp.einsum("n,nd,ne->de", counted, mean, mean)) / (count - 1)
    deviations = means - mean[:, None]
    noise = jnp.einsum("n,ncd,nce->de", jnp.square(counted), deviations, deviations) / (chains * (chains - 1))
    return Information((complete + complete.T) / 2, missing, noise)


def bridge(
    log_joint: Callable, first: PyTree, second: PyTree, rows: PyTree, at_first: Draws, at_second: Draws
) -> jax.Array:
    """log p(x_n | second) − log p(x_n | first), (n,), by a geometric bridge between draws of z given each θ.

        p₂(x)/p₁(x) = E₁[√r] / E₂[1/√r],   r = p₂(x, z)/p₁(x, z)

    Meng & Wong 1996. It is accurate where the two posteriors of z overlap.
    """

    def log_mean(draws: Draws, power: float) -> jax.Array:
        def add(index: jax.Array, total: jax.Array) -> jax.Array:
            z = jax.tree.map(lambda a: a[index], draws.z)
            ratio = map_chains(lambda datum, z: log_joint(second, datum, z) - log_joint(first, datum, z))(rows, z)
            return jnp.logaddexp(total, jax.nn.logsumexp(power * ratio, axis=1))

        total = jax.lax.fori_loop(0, draws.length, add, jnp.full(count_rows(rows), -jnp.inf, dtype_of(first)))
        return total - jnp.log(draws.length * jax.tree.leaves(draws.z)[0].shape[2])

    return log_mean(at_first, 0.5) - log_mean(at_second, -0.5)
