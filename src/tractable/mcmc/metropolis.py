"""Metropolis–Hastings: propose, then accept with probability min(1, π(θ')q(θ|θ') / π(θ)q(θ'|θ)).

    log α(θ, θ') = min(0, log π(θ') − log π(θ) + log q(θ|θ') − log q(θ'|θ))

Target: exactly π for every proposal that can reach the whole space. Metropolis et al. 1953; Hastings 1970. It does not
work with minibatches, since a noisy ratio gives another target. So the kernel takes a log density that depends on the
position alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core import tree
from tractable.core.model import Batch, Kernel, PyTree
from tractable.core.noise import log_uniform


class Point(NamedTuple):
    """A position with its log density and gradient."""

    position: PyTree
    terms: jax.Array  # () the log density, or (m,) terms that sum to it
    gradient: PyTree  # a pytree like the position; () if the proposal does not need it


class Proposal(NamedTuple):
    """A proposal of a new position, with its log density ratio if it is not symmetric.

    Attributes:
        draw: ``(key, count, position) -> noise``, with a leading axis of length ``count``.
        move: ``(noise, here: Point) -> position``, the proposed position.
        log_ratio: ``(noise, here, there) -> log q(here|there) − log q(there|here)``; None for a symmetric proposal.
        log_prob: ``(there, here) -> log q(there|here)`` up to a constant; the kernel does not need it, tests do.
        gradient: whether ``move`` reads ``here.gradient``.
    """

    draw: Callable
    move: Callable
    log_ratio: Callable | None = None
    log_prob: Callable | None = None
    gradient: bool = False


class Info(NamedTuple):
    """The trace of one proposal, accepted or not."""

    acceptance: jax.Array  # () acceptance probability min(1, ratio)
    accepted: jax.Array  # () 1 if the proposal was accepted, otherwise 0
    not_a_number: jax.Array  # () 1 if the proposal's log density was NaN, which counts as −∞, otherwise 0
    log_density: jax.Array  # () log density of the new state


def metropolis(log_density: Callable, proposal: Proposal) -> Kernel:
    """The Metropolis–Hastings kernel of a proposal.

    Args:
        log_density: ``position -> ()``, or ``position -> (m,)``, the terms that sum to the log density. The log ratio
            is then the sum of the terms' differences, which stays accurate in float32 if the log density is large.
        proposal: the proposal; ``asymmetric`` makes one from your own functions.
    """

    def point(position: PyTree) -> Point:
        if not proposal.gradient:
            return Point(position, log_density(position), ())

        def total(position: PyTree) -> tuple[jax.Array, jax.Array]:
            terms = log_density(position)
            return jnp.sum(terms), terms

        gradient, terms = jax.grad(total, has_aux=True)(position)
        return Point(position, terms, gradient)

    def draw(key: jax.Array, count: int, state: Point, batch: Batch | None = None) -> tuple[PyTree, jax.Array]:
        key_move, key_accept = jax.random.split(key)
        dtype = jnp.result_type(*jax.tree.leaves(state.position))
        return proposal.draw(key_move, count, state.position), log_uniform(key_accept, (count,), dtype)

    def step(noise: tuple[PyTree, jax.Array], state: Point, batch: Batch | None = None) -> tuple[Point, Info]:
        movement, log_u = noise
        there = point(proposal.move(movement, state))
        ratio = log_accept_ratio(proposal, movement, state, there)
        bad = jnp.isnan(ratio)
        ratio = jnp.where(bad, -jnp.inf, ratio)
        accepted = log_u < ratio
        new = tree.where(accepted, there, state)
        return new, Info(
            jnp.exp(jnp.minimum(ratio, 0.0)), accepted.astype(ratio.dtype), bad.astype(ratio.dtype), jnp.sum(new.terms)
        )

    return Kernel(lambda key, position: point(position), draw, step)


def log_accept_ratio(proposal: Proposal, noise: PyTree, here: Point, there: Point) -> jax.Array:
    """The log acceptance ratio log [π(there) q(here|there)] − log [π(here) q(there|here)]."""
    ratio = jnp.sum(there.terms - here.terms)
    return ratio if proposal.log_ratio is None else ratio + proposal.log_ratio(noise, here, there)


def asymmetric(draw: Callable, move: Callable, log_prob: Callable, *, gradient: bool = False) -> Proposal:
    """A proposal from the user's own functions.

    Args:
        draw: ``(key, count, position) -> noise``.
        move: ``(noise, here: Point) -> position``.
        log_prob: ``(there: Point, here: Point) -> log q(there|here)``, up to a constant.
        gradient: whether ``move`` or ``log_prob`` reads the gradient.
    """
    return Proposal(
        draw, move, lambda _, here, there: log_prob(here, there) - log_prob(there, here), log_prob, gradient
    )
