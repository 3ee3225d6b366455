"""Gibbs sampling: each block is drawn from its full conditional, or moved by a kernel that leaves it invariant.

    x_b ~ p(x_b | all else)    for b = 1 … B

Target: exactly π, since every block leaves π invariant. A fixed scan goes through the blocks in order; it is not
reversible, and need not be. A random scan picks B blocks with replacement, each with equal probability; it is
reversible if the blocks are. Geman & Geman 1984; Gelfand & Smith 1990. If blocks depend strongly on each other, a sweep
moves little: such unknowns belong in one block, or need another method.

In a latent-variable model every row has a z, which is part of the state. z is drawn row by row given θ, and θ is drawn
given z. A block may be moved by the density with z summed out. z must then be drawn right after it, as part of the same
block: otherwise the chain would have another target (van Dyk & Park 2008).
"""

import functools
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.model import Batch, Kernel, PyTree
from tractable.mcmc.conditionals import Family

PLENTY = 50  # number of rounding errors by which a difference of log densities may be wrong
SLACK = 1e3  # further error that is allowed, in units of the floating-point precision


class State(NamedTuple):
    """The state of a chain."""

    position: jax.Array  # (d,) θ, unconstrained
    hidden: PyTree  # z of the rows; () if there is none


class BlockInfo(NamedTuple):
    """The trace of one move of a block."""

    gradients: Any  # approximate number of gradient evaluations
    acceptance: Any = ()  # acceptance rate of a block that a kernel moves; () for other blocks
    divergent: Any = ()  # number of divergent trajectories of such a block; () for other blocks


class Block(NamedTuple):
    """One block of a Gibbs sampler, as two functions: one makes the noise, one moves the state with it.

    Attributes:
        draw: ``(key, count, state) -> noise``, with a leading axis of length ``count``.
        move: ``(noise, state) -> (state, BlockInfo)``, deterministic. A block of several blocks returns a list of
            BlockInfo.
    """

    draw: Callable
    move: Callable


class Target(NamedTuple):
    """The functions of a model and its rows that blocks need. θ is the list of its leaves, in the user's space.

    Attributes:
        params: ``position -> θ``.
        inverse: ``(i, leaf) -> vector``, the unconstrained numbers of the i-th leaf.
        places: for each leaf, the indices in a position at which its numbers begin and end.
        terms: ``(θ, z) -> (m,)``, the summands of log p(θ) + log p(x, z | θ).
        summed_out: ``θ -> (m,)``, the summands of log p(θ) + log p(x | θ), with z summed out.
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
    """The kernel of a sweep over the blocks.

    Args:
        blocks: the blocks, in the order of a fixed scan.
        hidden: ``(key, position) -> z``, the first z of a chain.
        names: the names of the blocks that have an acceptance rate, in their order.
        random_scan: pick as many blocks as there are, with replacement. If several chains run in parallel, each chain
            computes all blocks at every pick and keeps one, so a sweep costs B times as much.
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
                def move_block(state: State, each: PyTree) -> tuple[State, PyTree]:
                    state, one = blocks[b].move(each[b], state)
                    return state, [*nothing[:b], one, *nothing[b + 1 :]]

                return move_block

            return jax.lax.switch(which, [branch(b) for b in range(count_of)], state, each)

        state, info_of_blocks = jax.lax.scan(pick, state, noise)
        # A block is picked once in a sweep on average. So the mean over sweeps of these sums is a mean over picks.
        return state, info(jax.tree.map(lambda a: jnp.sum(a, 0), info_of_blocks))

    return Kernel(lambda key, position: State(position, hidden(key, position)), draw, step)


@functools.lru_cache(maxsize=64)
def info_of(names: tuple[str, ...]) -> Callable:
    """The function from the blocks' BlockInfo to a sweep's info: ``gradients``, and the acceptance rates by name."""
    fields = ["gradients", *(["divergent"] if names else []), *(f"acceptance_{name}" for name in names)]
    kind: Any = namedtuple("Info", fields)

    def info(info_of_blocks: PyTree) -> Any:
        each: list[BlockInfo] = jax.tree.leaves(info_of_blocks, is_leaf=lambda one: type(one) is BlockInfo)
        by_kernels = [one for one in each if not isinstance(one.acceptance, tuple)]
        gradients = functools.reduce(jnp.add, [one.gradients for one in each])
        if not names:
            return kind(gradients)
        divergent = functools.reduce(jnp.add, [one.divergent for one in by_kernels])
        return kind(gradients, divergent, *(one.acceptance for one in by_kernels))

    return info


def keyed(move: Callable) -> Block:
    """A block whose noise is a key, from which ``move`` makes its random numbers.

    This suits moves that need an unknown number of random numbers, or so many that those of several steps would not fit
    into memory.
    """
    return Block(lambda key, count, state: jax.random.split(key, count), move)


def exact(target: Target, family: Family, leaves: Sequence[int], gradients: int = 2) -> Block:
    """A block that is drawn from its full conditional, which must be of the given family.

    Args:
        leaves: indices of the leaves of θ in the block: one leaf, or several that are jointly normal.
        gradients: the gradient evaluations that finding the conditional costs.
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
    """The distance of a conditional from a family, in units of the error that rounding can cause.

        |log π(x') − log π(x) − (log q(x') − log q(x))|,  x' ~ q, the density of the family that was found at x

    If it is above 1, the conditional is not of the family. It is infinite if q is not a proper density.
    """
    theta = target.params(state.position)
    x, put = gather_leaves(theta, leaves, family.flat)
    eta = family.found(lambda x: jnp.sum(target.terms(put(x), state.hidden)), x)
    new = family.drawn(key, eta)
    terms, new_terms = (target.terms(put(place), state.hidden) for place in (x, new))
    q, new_q = family.log_prob(eta, x), family.log_prob(eta, new)
    difference = jnp.abs(jnp.sum(new_terms - terms) - (new_q - q))
    eps = jnp.finfo(x.dtype).eps
    # The summands of π round independently of each other; each value of log q rounds as one number.
    size = jnp.sqrt(jnp.sum(terms**2 + new_terms**2)) + jnp.abs(q) + jnp.abs(new_q)
    distance = difference / (eps * (SLACK + PLENTY * size))
    return jnp.where(family.proper(eta) & jnp.isfinite(distance), distance, jnp.inf)


def gather_leaves(theta: list, leaves: Sequence[int], flat: bool) -> tuple[jax.Array, Callable]:
    """Some leaves of θ as one array x, and the function from a new x to the new θ.

    If ``flat``, x is one vector of all these leaves; otherwise it is a single leaf with its shape.
    """
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


def kernel_block(
    target: Target, make: Callable[[Callable], Kernel], leaves: Sequence[int], steps: int, summed_out: bool = False
) -> Block:
    """A block whose unconstrained numbers a kernel moves, while all else is fixed.

    Args:
        make: makes the kernel, from a function that gives the summands of the log density at the block's position.
        leaves: indices of the leaves of θ in the block.
        steps: the kernel's steps in a sweep.
        summed_out: whether z is summed out of the density.
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
        start = inner.init(jax.random.key(0), state.position[where])
        after, info = jax.lax.scan(lambda s, n: inner.step(n, s, None), start, noise)
        zero = jnp.zeros((), state.position.dtype)
        gradients = getattr(info, "gradients", None)
        info_of_blocks = BlockInfo(
            zero + steps if gradients is None else jnp.sum(gradients), jnp.mean(info.acceptance),
            jnp.sum(getattr(info, "divergent", zero)),
        )  # fmt: skip
        return State(state.position.at[where].set(after.position), state.hidden), info_of_blocks

    return Block(draw, move)


def allocations(target: Target) -> Block:
    """The block that draws the z of every row from p(z | x, θ)."""

    def move(key: jax.Array, state: State) -> tuple[State, BlockInfo]:
        z = target.hidden(key, target.params(state.position))
        return State(state.position, z), BlockInfo(jnp.ones((), state.position.dtype))

    return keyed(move)


def joint_draw(position: Callable, theta_given: Callable) -> Block:
    """The block that draws all of θ at once from p(θ | x, z).

    Args:
        position: ``θ -> position``, its unconstrained numbers.
        theta_given: ``(key, z) -> θ``, the draw.
    """

    def move(key: jax.Array, state: State) -> tuple[State, BlockInfo]:
        new = position(theta_given(key, state.hidden)).astype(state.position.dtype)
        return State(new, state.hidden), BlockInfo(jnp.ones((), new.dtype))

    return keyed(move)


def in_turn(blocks: Sequence[Block]) -> Block:
    """One block that moves several blocks one after another."""

    def draw(key: jax.Array, count: int, state: State) -> list:
        return [block.draw(jax.random.fold_in(key, b), count, state) for b, block in enumerate(blocks)]

    def move(noise: list, state: State) -> tuple[State, list[BlockInfo]]:
        info_of_blocks = []
        for block, own in zip(blocks, noise, strict=True):
            state, one = block.move(own, state)
            info_of_blocks.append(one)
        return state, info_of_blocks

    return Block(draw, move)
