"""Rejection sampling: draw z from q, and accept it if log u < log w(z) − log M, with w = π/q and u ~ U(0, 1).

Target: exactly π ∝ w q, with independent draws, if M ≥ sup w; M = sup w is best. von Neumann 1951. The accepted share
estimates ∫ w q / M. If q is the prior and w the likelihood, this is the evidence divided by M. The method does not suit
peaked posteriors: the accepted share is at most p(x)/sup p(x|z), which falls as data are added.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core import tree
from tractable.core.model import Batch, Kernel, PyTree


class State(NamedTuple):
    """The last accepted draw, and the proposal of the largest weight so far, which tests the bound."""

    position: PyTree  # the last accepted draw
    worst: PyTree  # the proposal with the largest log w − log M so far
    excess: jax.Array  # () log w − log M of that proposal; if it is above 0, log M is no bound


class Info(NamedTuple):
    """The cost of one draw, and the margin to the bound."""

    tries: jax.Array  # () number of proposals for this draw, the accepted one included
    excess: jax.Array  # () running maximum of log w − log M
    gave_up: jax.Array  # () 1 if no proposal was accepted, after ``limit`` of them or a wrong bound; otherwise 0


def rejection(
    sample: Callable, log_weight: Callable, log_bound: float | jax.Array, *, width: int = 16, limit: int = 2**22
) -> Kernel:
    """The kernel of the rejection sampler, of which every step is an independent draw.

    Args:
        sample: ``key -> position``, a draw from q.
        log_weight: ``position -> ()``, log w = log π − log q up to a constant.
        log_bound: log M ≥ sup log w.
        width: the number of proposals that are made at once.
        limit: a draw is given up after this many proposals.
    """

    def init(key: jax.Array, position: PyTree) -> State:
        return State(position, position, jnp.full((), -jnp.inf, jnp.result_type(float)))

    def draw(key: jax.Array, count: int, state: State, batch: Batch | None = None) -> jax.Array:
        return jax.random.split(key, count)  # the noise is a key, since the number of proposals is not known yet

    def step(key: jax.Array, state: State, batch: Batch | None = None) -> tuple[State, Info]:

        def attempt(carry: tuple) -> tuple:
            trial, tries, _, state = carry
            key_sample, key_accept = jax.random.split(jax.random.fold_in(key, trial))
            positions = jax.vmap(sample)(jax.random.split(key_sample, width))
            margin = jax.vmap(log_weight)(positions) - log_bound  # (width,)
            margin = jnp.where(jnp.isnan(margin), -jnp.inf, margin)
            accept = -jax.random.exponential(key_accept, (width,), margin.dtype) < margin
            first = jnp.argmax(accept)
            accepted = accept[first]
            largest = jnp.argmax(margin)

            def at(index: jax.Array) -> PyTree:
                return jax.tree.map(lambda p: p[index], positions)

            new = State(
                tree.where(accepted, at(first), state.position),
                tree.where(margin[largest] > state.excess, at(largest), state.worst),
                jnp.maximum(state.excess, margin[largest]),
            )
            return trial + 1, tries + jnp.where(accepted, first + 1, width), accepted, new

        def unfinished(carry: tuple) -> jax.Array:
            trial, _, accepted, state = carry
            return ~accepted & (trial * width < limit) & (state.excess <= 0)

        start = (jnp.array(0), jnp.array(0), jnp.array(False), state)
        _, tries, accepted, state = jax.lax.while_loop(unfinished, attempt, start)
        dtype = state.excess.dtype
        return state, Info(tries.astype(dtype), state.excess, 1.0 - accepted.astype(dtype))

    return Kernel(init, draw, step)
