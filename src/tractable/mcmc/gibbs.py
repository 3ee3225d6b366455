"""Gibbs sampling: block by block, each from its full conditional, or by a kernel that leaves that as it is.

    x_b ~ p(x_b | all else)    for b = 1 … B

Target: exactly π, as of every block. A fixed scan goes through the blocks in their order; it is not reversible and
need not be. A random scan picks B blocks with replacement, each equally likely; it is reversible where the blocks are.
Geman & Geman 1984; Gelfand & Smith 1990. Not where blocks are strongly dependent: a sweep then moves little, and
unknowns that depend on each other belong in one block.

Where every row has a z of its own the state holds it: z is drawn row by row given θ, and θ given z from the density of
both. A block that is moved with z summed out stands right before z is drawn, and is one block with it, or the chain
would have another target (van Dyk & Park 2008).
"""

import functools
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.model import Batch, Kernel, PyTree
from tractable.mcmc.conditionals import Family

PLENTY = 50  # roundings that a difference of log densities may be off by
SLACK = 1e3  # of the precision, nats


class State(NamedTuple):
    """Where a chain stands."""

    position: jax.Array  # (d,) θ, unconstrained
    hidden: PyTree  # z of the rows; () where there is none


class BlockInfo(NamedTuple):
    """What a block says of its move."""

    gradients: Any  # evaluations, about
    acceptance: Any = ()  # () of a block that is moved by a kernel of its own
    divergent: Any = ()


class Block(NamedTuple):
    """One block: randomness is a value here too.

    Attributes:
        draw: ``(key, count, state) -> noise`` with a leading axis of ``count``.
        move: ``(noise, state) -> (state, Told)``, deterministic; a list of Told where it is several in turn.
    """

    draw: Callable
    move: Callable


class Target(NamedTuple):
    """What blocks see of a model and its rows. θ is the list of its leaves, in the user's space.

    Attributes:
        params: ``position -> θ``.
        inverse: ``(i, leaf) -> `` the flat unconstrained numbers of the i-th leaf.
        places: of each leaf, where its numbers begin and end in a position.
        terms: ``(θ, z) -> (m,)``, summands of log p(θ) + log p(x, z | θ).
        summed_out: ``θ -> (m,)``, those with z summed out.
        jacobian: ``position -> ()``, log |∂θ/∂position|.
        hidden: ``(key, θ) -> z``, a draw from p(z | x, θ).
    """

    params: Callable
    inverse: Callable
    places: tuple[tuple[int, int], ...]
    terms: Callable
    summed_out: Callable
    jacobian: Callable
    hidden: Callable


def gibbs(blocks: Sequence[Block], hidden: Callable, names: Sequence[str] = (), random_scan: bool = False) -> Kernel:
    """The kernel of a sweep.

    Args:
        blocks: in the order of a fixed scan.
        hidden: ``(key, position) -> z`` to begin with.
        names: of the blocks that tell an acceptance, in their order.
        random_scan: pick as many blocks as there are, with replacement. A chain among several then goes through all
            blocks at every pick, and keeps one: a sweep costs B times as much.
    """
    count_of = len(blocks)
    info = info_of(tuple(names))

    def draw(key: jax.Array, count: int, state: State, batch: Batch | None = None) -> PyTree:
        keys = [jax.random.fold_in(key, b) for b in range(count_of)]
        if not random_scan:
            return [block.draw(key, count, state) for block, key in zip(blocks, keys, strict=True)]
        picks = jax.random.randint(jax.random.fold_in(key, count_of), (count, count_of), 0, count_of)
        each = [block.draw(key, count * count_of, state) for block, key in zip(blocks, keys, strict=True)]
        return picks, jax.tree.map(lambda a: a.reshape(count, count_of, *a.shape[1:]), each)

    def step(noise: PyTree, state: State, batch: Batch | None = None) -> tuple[State, Any]:
        if not random_scan:
            state, info_of_blocks = in_turn(blocks).move(noise, state)
            return state, info(info_of_blocks)

        def pick(state: State, now: PyTree) -> tuple[State, PyTree]:
            which, each = now
            shapes = jax.eval_shape(lambda s, n: [b.move(o, s)[1] for b, o in zip(blocks, n, strict=True)], state, each)
            nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

            def branch(b: int) -> Callable:
                def moved(state: State, each: PyTree) -> tuple[State, PyTree]:
                    state, one = blocks[b].move(each[b], state)
                    return state, [*nothing[:b], one, *nothing[b + 1 :]]

                return moved

            return jax.lax.switch(which, [branch(b) for b in range(count_of)], state, each)

        state, info_of_blocks = jax.lax.scan(pick, state, noise)
        # A block is picked once a sweep in the mean, so that sums are means over many sweeps.
        return state, info(jax.tree.map(lambda a: jnp.sum(a, 0), info_of_blocks))

    return Kernel(lambda key, position: State(position, hidden(key, position)), draw, step)


@functools.lru_cache(maxsize=64)
def info_of(names: tuple[str, ...]) -> Callable:
    """``[Told, …] -> `` a sweep's info: ``gradients``, and where kernels move blocks their acceptances."""
    fields = ["gradients", *(["divergent"] if names else []), *(f"acceptance_{name}" for name in names)]
    kind: Any = namedtuple("Info", fields)

    def info(info_of_blocks: PyTree) -> Any:
        each: list[BlockInfo] = jax.tree.leaves(info_of_blocks, is_leaf=lambda one: type(one) is BlockInfo)
        moved = [one for one in each if not isinstance(one.acceptance, tuple)]
        gradients = functools.reduce(jnp.add, [one.gradients for one in each])
        if not names:
            return kind(gradients)
        divergent = functools.reduce(jnp.add, [one.divergent for one in moved])
        return kind(gradients, divergent, *(one.acceptance for one in moved))

    return info


def keyed(move: Callable) -> Block:
    """A block whose noise is a key: how much it takes is not known, or of many rows a block of steps would not fit."""
    return Block(lambda key, count, state: jax.random.split(key, count), move)


def exact(target: Target, family: Family, leaves: Sequence[int], gradients: int = 2) -> Block:
    """A block drawn from its conditional, of a family that it was shown to be of: one leaf, or several jointly normal.

    Args:
        leaves: of θ; several are one flat vector.
        gradients: what finding the conditional costs.
    """

    def move(key: jax.Array, state: State) -> tuple[State, BlockInfo]:
        theta = target.params(state.position)
        x, put = gather_leaves(theta, leaves, family.flat)
        eta = family.found(lambda x: jnp.sum(target.terms(put(x), state.hidden)), x)
        new, position = put(family.drawn(key, eta)), state.position
        for i in leaves:
            position = position.at[slice(*target.places[i])].set(target.inverse(i, new[i]).astype(position.dtype))
        return State(position, state.hidden), BlockInfo(jnp.full((), gradients, position.dtype))

    return keyed(move)


def miss(target: Target, family: Family, leaves: Sequence[int], key: jax.Array, state: State) -> jax.Array:
    """How far a conditional is from the family, in units of what rounding can do; above 1 it is not of it.

        |log π(x') − log π(x) − (log q(x') − log q(x))|,  x' ~ q, the density of the family that was found at x

    Infinite where q is no density.
    """
    theta = target.params(state.position)
    x, put = gather_leaves(theta, leaves, family.flat)
    eta = family.found(lambda x: jnp.sum(target.terms(put(x), state.hidden)), x)
    new = family.drawn(key, eta)
    here, there = (target.terms(put(place), state.hidden) for place in (x, new))
    q_here, q_there = family.log_prob(eta, x), family.log_prob(eta, new)
    off = jnp.abs(jnp.sum(there - here) - (q_there - q_here))
    eps = jnp.finfo(x.dtype).eps
    # Summands round by themselves, and the two ends of q as wholes.
    size = jnp.sqrt(jnp.sum(here**2 + there**2)) + jnp.abs(q_here) + jnp.abs(q_there)
    found = off / (eps * (SLACK + PLENTY * size))
    return jnp.where(family.proper(eta) & jnp.isfinite(found), found, jnp.inf)


def gather_leaves(theta: list, leaves: Sequence[int], flat: bool) -> tuple[jax.Array, Callable]:
    """Some leaves of θ as one flat vector, or one as it is, and ``x -> θ`` with others in their place."""
    if not flat:
        i = leaves[0]
        return theta[i], lambda x: [*theta[:i], x, *theta[i + 1 :]]
    shapes = [theta[i].shape for i in leaves]
    ends = [0]
    for i in leaves:
        ends.append(ends[-1] + theta[i].size)

    def put(x: jax.Array) -> list:
        new = list(theta)
        for i, start, end, shape in zip(leaves, ends, ends[1:], shapes, strict=False):
            new[i] = x[start:end].reshape(shape)
        return new

    return jnp.concatenate([theta[i].ravel() for i in leaves]), put


def moved(
    target: Target, make: Callable[[Callable], Kernel], leaves: Sequence[int], steps: int, summed_out: bool = False
) -> Block:
    """A block that a kernel moves on its unconstrained numbers, all else held.

    Args:
        make: ``log density of the block's flat position, or its summands -> Kernel``.
        steps: of that kernel a sweep.
        summed_out: whether z is summed out of the density, so that the block does not wait for it.
    """
    where = jnp.concatenate([jnp.arange(*target.places[i]) for i in leaves])

    def kernel(state: State) -> Kernel:
        def density(own: jax.Array) -> jax.Array:
            position = state.position.at[where].set(own)
            theta = target.params(position)
            terms = target.summed_out(theta) if summed_out else target.terms(theta, state.hidden)
            return jnp.append(terms, target.jacobian(position))

        return make(density)

    def draw(key: jax.Array, count: int, state: State) -> PyTree:
        inner = kernel(state)
        noise = inner.draw(key, count * steps, inner.init(key, state.position[where]), None)
        return jax.tree.map(lambda a: a.reshape(count, steps, *a.shape[1:]), noise)

    def move(noise: PyTree, state: State) -> tuple[State, BlockInfo]:
        inner = kernel(state)
        begun = inner.init(jax.random.key(0), state.position[where])
        after, info = jax.lax.scan(lambda s, n: inner.step(n, s, None), begun, noise)
        zero = jnp.zeros((), state.position.dtype)
        gradients = getattr(info, "gradients", None)
        info_of_blocks = BlockInfo(
            zero + steps if gradients is None else jnp.sum(gradients), jnp.mean(info.acceptance),
            jnp.sum(getattr(info, "divergent", zero)),
        )  # fmt: skip
        return State(state.position.at[where].set(after.position), state.hidden), info_of_blocks

    return Block(draw, move)


def allocations(target: Target) -> Block:
    """z of every row from p(z | x, θ)."""

    def move(key: jax.Array, state: State) -> tuple[State, BlockInfo]:
        z = target.hidden(key, target.params(state.position))
        return State(state.position, z), BlockInfo(jnp.ones((), state.position.dtype))

    return keyed(move)


def joint_draw(position: Callable, theta_given: Callable) -> Block:
    """All of θ at once, ``theta_given(key, z) -> θ`` from p(θ | x, z), and ``position(θ)``."""

    def move(key: jax.Array, state: State) -> tuple[State, BlockInfo]:
        new = position(theta_given(key, state.hidden)).astype(state.position.dtype)
        return State(new, state.hidden), BlockInfo(jnp.ones((), new.dtype))

    return keyed(move)


def in_turn(blocks: Sequence[Block]) -> Block:
    """Several blocks that are one to a scan."""

    def draw(key: jax.Array, count: int, state: State) -> list:
        return [block.draw(jax.random.fold_in(key, b), count, state) for b, block in enumerate(blocks)]

    def move(noise: list, state: State) -> tuple[State, list[BlockInfo]]:
        info_of_blocks = []
        for block, own in zip(blocks, noise, strict=True):
            state, one = block.move(own, state)
            info_of_blocks.append(one)
        return state, info_of_blocks

    return Block(draw, move)
