"""Draws of each datum's z given its x: their buffer, sums over them, and samplers of independent draws.

The buffer has room for the largest number S of draws per datum: memory is O(n S). Sums loop over the draws made so far,
so that another S needs no new compilation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.sums import dtype_of
from tractable.core.tree import PyTree
from tractable.latent.latent_space import latent_space
from tractable.mcmc.rejection import rejection


class Chains(NamedTuple):
    """The state that one E-step passes to the next."""

    position: Any  # (n, C, k) unconstrained z; () where draws are exact
    log_step: jax.Array  # () log ε, where ε is the step size of all chains; fixed within an E-step
    scale: jax.Array  # (n, k) relative sds of the moves, whose geometric mean is 1
    time: jax.Array  # () the number of E-steps since the warm-up


class Draws(NamedTuple):
    """The draws of z given x so far."""

    z: PyTree  # (room, n, C, ...), where room is the largest number of draws per chain
    length: jax.Array  # () L ≤ room, draws of each of C chains; S = C L


class DrawInfo(NamedTuple):
    """What a sampler reports about its draws."""

    acceptance: jax.Array  # () the mean share of accepted proposals; 1 for draws without proposals
    excess: jax.Array  # (n,) the largest log p(x|z,θ) − log M of all proposals; −∞ without a bound M
    gave_up: jax.Array  # (n,) 1 where a draw was given up after too many proposals


class Sampler(NamedTuple):
    """A sampler of each datum's z given its x.

    Attributes:
        begin: ``(key, theta, rows) -> Chains``.
        room: ``(theta, rows, most) -> Draws`` without draws yet, with room for ``most`` of every chain.
        draw: ``(key, theta, chains, rows, draws, count, burn, tune) -> (Chains, Draws, DrawInfo)``: ``count`` more
            draws of every chain, after ``burn`` discarded steps. If ``tune`` is not 0, no draw is added and ε adapts
            at every step. The last three arguments may be traced.
        exact: whether draws are independent.
    """

    begin: Callable
    room: Callable
    draw: Callable
    exact: bool


def by_rejection(
    latent: Callable, log_likelihood: Callable, bound: Callable, chains: int, *, limit: int = 1 << 16
) -> Sampler:
    """Independent draws by rejection: z ~ p(z | θ), accepted if log u < log p(x | z, θ) − log M.

    Args:
        latent: as for ``latent_space``.
        log_likelihood: ``(theta, datum, z) -> ()``, log p(x | z, θ).
        bound: ``(theta, datum) -> ()``, log M ≥ sup_z log p(x | z, θ); ``DrawInfo.excess`` is above 0 if a proposal
            exceeds it.
        chains: C, draws of every datum.
        limit: proposals after which a draw is given up.
    """

    def draw_once(key: jax.Array, theta: PyTree, rows: PyTree) -> tuple:
        space = latent_space(latent, log_likelihood, theta, jax.tree.map(lambda a: a[0], rows))

        def one(datum: PyTree, key: jax.Array) -> tuple:
            def sample(key: jax.Array) -> jax.Array:
                return space.sample(key, theta, datum)

            def log_weight(u: jax.Array) -> jax.Array:
                return log_likelihood(theta, datum, space.constrain(theta, datum, u))

            k = rejection(sample, log_weight, bound(theta, datum), limit=limit)
            key_init, key_draw = jax.random.split(key)
            state, info = k(key_draw, k.init(key_init, sample(key_init)), None)
            return space.constrain(theta, datum, state.position), info

        z, info = map_chains(one)(rows, jax.random.split(key, (count_rows(rows), chains)))
        return z, DrawInfo(1 / jnp.mean(info.tries), jnp.max(info.excess, axis=1), jnp.max(info.gave_up, axis=1))

    return _exact(draw_once)


def by_values(responsibilities: Callable, values: PyTree, chains: int) -> Sampler:
    """Independent draws of a z that takes few values.

    Args:
        responsibilities: ``(theta, rows) -> (n, m)``.
        values: (m, ...) the values of z.
        chains: C, draws of every datum.
    """

    def draw_once(key: jax.Array, theta: PyTree, rows: PyTree) -> tuple:
        shares = responsibilities(theta, rows)
        logits = jnp.log(shares)[:, None, :]  # a value of logit log 0 is never drawn
        index = jax.random.categorical(key, logits, axis=-1, shape=(shares.shape[0], chains))
        return jax.tree.map(lambda v: v[index], values), unbounded_info(jnp.ones((), shares.dtype), rows)

    return _exact(draw_once)


def _exact(draw_once: Callable) -> Sampler:
    """A sampler of independent draws; ``draw_once(key, theta, rows) -> (z, DrawInfo)`` makes one draw per chain."""

    def begin(key: jax.Array, theta: PyTree, rows: PyTree) -> Chains:
        zero = jnp.zeros((), dtype_of(theta))
        return Chains((), zero, jnp.ones(0, zero.dtype), zero)

    def room(theta: PyTree, rows: PyTree, most: int) -> Draws:
        return empty_draws(jax.eval_shape(draw_once, jax.random.key(0), theta, rows)[0], most)

    def draw(
        key: jax.Array, theta: PyTree, chains: Chains, rows: PyTree, draws: Draws, count: jax.Array | int,
        burn: jax.Array | int, tune: jax.Array | int,
    ) -> tuple[Chains, Draws, DrawInfo]:  # fmt: skip
        def step(t: jax.Array, carry: tuple) -> tuple:
            z, info = carry
            new, new_info = draw_once(jax.random.fold_in(key, t), theta, rows)
            worst = DrawInfo(info.acceptance + new_info.acceptance, *(map(jnp.maximum, info[1:], new_info[1:])))
            return write(z, new, draws.length + t, tune == 0), worst

        info = unbounded_info(jnp.zeros((), dtype_of(theta)), rows)
        z, info = jax.lax.fori_loop(0, count, step, (draws.z, info))
        info = info._replace(acceptance=info.acceptance / jnp.maximum(count, 1))
        return chains, Draws(z, draws.length + jnp.where(tune > 0, 0, count)), info

    return Sampler(begin, room, draw, exact=True)


def map_chains(function: Callable) -> Callable:
    """``function(datum, z)`` mapped over data and chains: ``(rows, z) -> (n, C, ...)``, for z of shape (n, C, ...)."""
    return jax.vmap(lambda datum, z: jax.vmap(lambda z: function(datum, z))(z))


def sum_over_draws(function: Callable, draws: Draws) -> PyTree:
    """Σ_l function(z_l) over the draws so far."""

    def at(index: jax.Array | int) -> PyTree:
        return function(jax.tree.map(lambda a: a[index], draws.z))

    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(at, jnp.array(0)))
    return jax.lax.fori_loop(0, draws.length, lambda i, total: jax.tree.map(jnp.add, total, at(i)), zero)


def weighted_sum(weights: jax.Array, terms: jax.Array) -> jax.Array:
    """Σ_n w_n t_n; terms of weight 0 do not count, even if they are NaN."""
    weights = jnp.expand_dims(weights, tuple(range(1, terms.ndim)))
    return jnp.sum(jnp.where(weights > 0, weights * terms, 0), axis=0)


def write(buffer: PyTree, values: PyTree, index: jax.Array, stored: jax.Array | int) -> PyTree:
    """The buffer with ``values`` written at ``index``, if ``stored`` is true."""

    def put(a: jax.Array, v: jax.Array) -> jax.Array:
        i = jnp.clip(index, 0, a.shape[0] - 1)
        return a.at[i].set(jnp.where(stored, v.astype(a.dtype), a[i]))

    return jax.tree.map(put, buffer, values)


def empty_draws(shapes: PyTree, most: int) -> Draws:
    """A buffer with room for ``most`` draws of these shapes, and no draw yet."""
    return Draws(jax.tree.map(lambda s: jnp.zeros((most, *s.shape), s.dtype), shapes), jnp.array(0))


def unbounded_info(acceptance: jax.Array, rows: PyTree) -> DrawInfo:
    """The info of draws that need no bound on p(x | z, θ): their excess is −∞ for each row."""
    nothing = jnp.full(count_rows(rows), -jnp.inf, acceptance.dtype)
    return DrawInfo(acceptance, nothing, jnp.zeros_like(nothing))


def count_rows(rows: PyTree) -> int:
    """The number of rows."""
    return jax.tree.leaves(rows)[0].shape[0]
