"""Generalised EM: an M-step by gradient, for models without a closed-form one.

    Q(θ) = Σ_n w_n Σ_s r_ns log p(x_n, z_ns | θ) + log p(θ),    θ' with Q(θ') ≥ Q(θ_t)

The r_ns are the responsibilities of the values of z. The M-step takes a few steps of L-BFGS, or of an optax optimiser,
from θ_t in unconstrained coordinates. It rejects steps that lower Q, so the likelihood never falls (Dempster, Laird &
Rubin 1977, section 2). Q is computed on all rows at once: memory is O(n m), for m values of z.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from tractable.core import tree
from tractable.core.model import Batch, PyTree
from tractable.core.sums import Expected, observed


class CompleteData(NamedTuple):
    """Rows with the values of z and their responsibilities, from which Q is computed."""

    theta: PyTree  # θ_t
    rows: PyTree  # (n, ...)
    weights: jax.Array  # (n,)
    z: PyTree  # (m, ...), the same values for every row
    shares: jax.Array  # (n, m)


def expected_log_joint(log_joint: Callable, data: CompleteData) -> Callable:
    """``theta -> Σ_n w_n Σ_s r_ns log p(x_n, z_ns | θ)``.

    Args:
        log_joint: ``(theta, datum, z) -> ()``.
    """

    def one(theta: PyTree, datum: PyTree, z: PyTree, shares: jax.Array) -> jax.Array:
        terms = jax.vmap(lambda z: log_joint(theta, datum, z))(z)
        return jnp.sum(jnp.where(shares > 0, shares * terms, 0))  # for an impossible z the product would be 0 · −∞

    is_counted = data.weights > 0
    first = jnp.argmax(is_counted)

    def stand_in(leaf: jax.Array) -> jax.Array:
        """Replaces rows of weight 0 by a row that counts: they may hold NaN, and the gradient of 0 · NaN is NaN."""
        return jnp.where(is_counted.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, leaf[first][None])

    rows = jax.tree.map(stand_in, data.rows)

    def q(theta: PyTree) -> jax.Array:
        terms = jax.vmap(one, (None, 0, None, 0))(theta, rows, data.z, data.shares)
        return jnp.sum(jnp.where(is_counted, data.weights * terms, 0))

    return q


def climb_by_lbfgs(value: Callable, start: jax.Array, steps: int) -> jax.Array:
    """The point that ``steps`` steps of L-BFGS reach from ``start`` (d,), or ``start`` if the value is higher there."""
    optimizer = optax.lbfgs()

    def downhill(position: jax.Array) -> jax.Array:
        return -value(position)

    slope = optax.value_and_grad_from_state(downhill)

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        position, state = carry
        height, gradient = slope(position, state=state)
        updates, state = optimizer.update(gradient, state, position, value=height, grad=gradient, value_fn=downhill)
        return (optax.apply_updates(position, updates), state), None

    (end, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    better = value(end) >= value(start)  # False for NaN
    return tree.where(better, end, start)


def climb_by_optax(value: Callable, start: jax.Array, steps: int, optimizer: optax.GradientTransformation) -> jax.Array:
    """The point that an optax optimiser reaches from ``start`` (d,) in ``steps`` steps; none of them lowers the value.

    A step that would lower the value, or make it NaN, is rejected, and the following steps are half as long. Each
    accepted step doubles their length again, up to what the optimiser proposes. The optimiser's state is updated in
    either case.
    """
    transformation = optax.with_extra_args_support(optimizer)

    def downhill(position: jax.Array) -> jax.Array:
        return -value(position)

    slope = jax.value_and_grad(downhill)

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        point, state, share = carry  # point: position, −value and gradient
        position, depth, gradient = point
        updates, state = transformation.update(gradient, state, position, value=depth, grad=gradient, value_fn=downhill)
        proposal = position + (share * updates).astype(position.dtype)
        trial = (proposal, *slope(proposal))
        rises = trial[1] <= depth  # False for NaN
        return (tree.where(rises, trial, point), state, jnp.where(rises, jnp.minimum(2 * share, 1), share / 2)), None

    first = ((start, *slope(start)), transformation.init(start), jnp.ones((), start.dtype))
    return jax.lax.scan(step, first, length=steps)[0][0][0]


def by_enumeration(log_prob: Callable, responsibilities: Callable, values: PyTree) -> Callable:
    """An E-step ``(theta, batch) -> Expected`` whose statistics are ``CompleteData``, for ``values`` (m, ...) of z."""

    def e_step(theta: PyTree, batch: Batch) -> Expected:
        rows = observed(batch)
        weights = jnp.asarray(batch.mask)
        terms = jnp.where(weights > 0, log_prob(theta, rows), 0)
        data = CompleteData(theta, rows, weights, values, responsibilities(theta, rows))
        return Expected(data, jnp.sum(weights * terms))

    return e_step


def gradient_m_step(
    q_of: Callable,
    log_prior: Callable | None,
    constrain: Callable,
    unconstrain: Callable,
    steps: int = 10,
    optimizer: str | optax.GradientTransformation = "lbfgs",
) -> Callable:
    """An M-step ``statistics -> theta`` for ``em``; it resets the optimiser at every call.

    Args:
        q_of: ``statistics -> (theta -> Q)``; the statistics hold the starting ``theta``.
        log_prior: ``theta -> ()`` or None.
        constrain: maps flat unconstrained values (d,) to θ; ``unconstrain`` is its inverse. Densities are those of θ:
            no Jacobian is added.
        steps: steps of the optimiser in one M-step.
        optimizer: "lbfgs", or an optax optimiser.
    """

    def m_step(data: PyTree) -> PyTree:
        q = q_of(data)

        def value(position: jax.Array) -> jax.Array:
            theta = constrain(position)
            return q(theta) if log_prior is None else q(theta) + log_prior(theta)

        start = unconstrain(data.theta)
        if isinstance(optimizer, str):
            return constrain(climb_by_lbfgs(value, start, steps))
        return constrain(climb_by_optax(value, start, steps, optimizer))

    return m_step
