"""Kernels of Hamiltonian Monte Carlo and of the No-U-Turn sampler.

Target: exactly π. Duane et al. 1987, Neal 2011; Hoffman & Gelman 2014, with the multinomial trajectories and the
criterion for U-turns of Betancourt 2017. They are the first choice if gradients on all rows are affordable.

With the inverse mass matrix L Lᵀ, the momentum r = Lᵀ p is a standard normal, and a leapfrog step of size ε is

    r ← r + (ε/2) Lᵀ ∇log π(θ),   θ ← θ + ε L r,   r ← r + (ε/2) Lᵀ ∇log π(θ).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tractable.core import noise, scaling
from tractable.core.model import Batch, Kernel, PyTree

DIVERGENT = 1000.0  # energy error from which on a trajectory counts as divergent


class Info(NamedTuple):
    """The trace of one trajectory."""

    acceptance: jax.Array  # () mean acceptance probability over the trajectory
    divergent: jax.Array  # () 1 if the energy error exceeded 1000, otherwise 0
    energy: jax.Array  # () energy of the new state
    gradients: jax.Array  # () number of leapfrog steps
    saturated: jax.Array  # () 1 if the tree reached its largest depth, otherwise 0


class Point(NamedTuple):
    """A position, with the log density and its gradient there."""

    position: PyTree
    log_density: jax.Array  # ()
    gradient: PyTree  # like the position


class End(NamedTuple):
    """An end of a trajectory."""

    position: jax.Array  # (d,)
    momentum: jax.Array  # (d,) r
    force: jax.Array  # (d,) Lᵀ ∇log π


def hmc(
    log_density: Callable, step_size: float | jax.Array, inverse_mass: PyTree, leapfrogs: int = 10,
    jitter: float | int = 0,
) -> Kernel:  # fmt: skip
    """The kernel of HMC with a fixed number of leapfrog steps.

    Args:
        log_density: ``position -> ()``, for positions that are vectors (d,) or pytrees of d numbers.
        step_size: the leapfrog's step size, > 0. It is not Langevin's ε: one leapfrog step of size s is MALA with
            ε = s².
        inverse_mass: (d,) or (d, d); ideally the posterior variances or covariance. A ``scaling.LowRank`` is its root.
        leapfrogs: the number of steps in a trajectory, ≥ 1.
        jitter: in [0, 1); the step size of each trajectory is uniform within this share of ``step_size``. Without
            jitter, a trajectory returns to its start on a target whose period is the trajectory's length (Neal 2011,
            section 3.2).
    """
    root = _root(inverse_mass)

    def draw(key: jax.Array, count: int, state: Point) -> tuple:
        key_momentum, key_accept, key_size = jax.random.split(key, 3)
        momenta = noise.normal(key_momentum, (count, *state.position.shape), state.position.dtype)
        accept = noise.log_uniform(key_accept, (count,), state.log_density.dtype)
        return momenta, accept, jax.random.uniform(key_size, (count,), minval=1 - jitter, maxval=1 + jitter)

    def step(random: tuple, state: Point, evaluate: Callable) -> tuple[Point, Info]:
        momentum, log_u, share = random
        size = step_size * share if jitter else step_size
        energy = 0.5 * momentum @ momentum - state.log_density
        first = End(state.position, momentum, scaling.transpose_multiply(root, state.gradient))

        def leap(carry: tuple[End, Point], _: None) -> tuple[tuple[End, Point], None]:
            return _leapfrog(evaluate, root, size, carry[0]), None

        (end, point), _ = jax.lax.scan(leap, (first, state), None, leapfrogs)
        reached = 0.5 * end.momentum @ end.momentum - point.log_density
        error = jnp.nan_to_num(reached - energy, nan=jnp.inf)
        accepted = log_u < -error
        state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), point, state)
        zero = jnp.zeros_like(energy)
        acceptance, divergent = jnp.exp(jnp.minimum(-error, 0)), (error > DIVERGENT).astype(zero.dtype)
        return state, Info(acceptance, divergent, jnp.where(accepted, reached, energy), zero + leapfrogs, zero)

    return _kernel(log_density, draw, step)


def nuts(log_density: Callable, step_size: float | jax.Array, inverse_mass: PyTree, max_depth: int = 10) -> Kernel:
    """The kernel of the No-U-Turn sampler with multinomial trajectories.

    Args:
        log_density: ``position -> ()``, for positions that are vectors (d,) or pytrees of d numbers.
        step_size: the leapfrog's step size, > 0.
        inverse_mass: (d,) or (d, d); ideally the posterior variances or covariance. A ``scaling.LowRank`` is its root.
        max_depth: largest number of doublings of the trajectory; a draw takes at most 2^max_depth − 1 gradients.
    """
    root = _root(inverse_mass)

    def draw(key: jax.Array, count: int, state: Point) -> tuple:
        key_momentum, key_sides, key_merges, key_leaves = jax.random.split(key, 4)
        momenta = noise.normal(key_momentum, (count, *state.position.shape), state.position.dtype)
        sides = jax.random.bernoulli(key_sides, shape=(count, max_depth))
        merges = noise.log_uniform(key_merges, (count, max_depth), state.log_density.dtype)
        return momenta, sides, merges, jax.random.split(key_leaves, count)

    def step(random: tuple, state: Point, evaluate: Callable) -> tuple[Point, Info]:
        momentum, sides, merges, key = random
        energy = 0.5 * momentum @ momentum - state.log_density

        def grow(tree: _Tree) -> _Tree:
            return _grow(tree, evaluate, root, step_size, energy, sides, merges, key)

        end = End(state.position, momentum, scaling.transpose_multiply(root, state.gradient))
        tree = jax.lax.while_loop(lambda tree: tree.grows, grow, _seed(end, state, energy, max_depth))
        kind = energy.dtype
        steps = tree.leaves.astype(kind)
        divergent, saturated = tree.diverged.astype(kind), (tree.depth >= max_depth).astype(kind)
        return tree.chosen, Info(tree.acceptance / steps, divergent, tree.energy, steps, saturated)

    return _kernel(log_density, draw, step)


def _kernel(log_density: Callable, draw: Callable, step: Callable) -> Kernel:
    """The kernel on pytrees of functions that draw the noise and take a step on position vectors."""

    def flat_density(position: PyTree) -> tuple[jax.Array, Callable, Callable]:
        flat, unravel = ravel_pytree(position)
        return flat, unravel, jax.value_and_grad(lambda x: log_density(unravel(x)))

    def init(key: jax.Array, position: PyTree) -> Point:
        flat, unravel, evaluate = flat_density(position)
        value, gradient = evaluate(flat)
        return Point(position, value, unravel(gradient))

    def draw_flat(key: jax.Array, count: int, state: Point, batch: Batch | None = None) -> tuple:
        return draw(key, count, state._replace(position=ravel_pytree(state.position)[0]))

    def step_flat(random: tuple, state: Point, batch: Batch | None = None) -> tuple[Point, Info]:
        flat, unravel, evaluate = flat_density(state.position)
        point, info = step(random, Point(flat, state.log_density, ravel_pytree(state.gradient)[0]), evaluate)
        return Point(unravel(point.position), point.log_density, unravel(point.gradient)), info

    return Kernel(init, draw_flat, step_flat)


def _root(inverse_mass: PyTree) -> PyTree:
    """L with L Lᵀ = the inverse mass matrix."""
    if isinstance(inverse_mass, scaling.LowRank):
        return inverse_mass
    return jnp.linalg.cholesky(inverse_mass) if scaling.is_matrix(inverse_mass) else jnp.sqrt(inverse_mass)


def _point(evaluate: Callable, position: jax.Array) -> Point:
    value, gradient = evaluate(position)
    return Point(position, value, gradient)


def _leapfrog(evaluate: Callable, root: PyTree, size: float | jax.Array, end: End) -> tuple[End, Point]:
    """The end of a trajectory one leapfrog step later; a negative ``size`` goes back in time."""
    momentum = end.momentum + 0.5 * size * end.force
    point = _point(evaluate, end.position + size * scaling.multiply(root, momentum))
    force = scaling.transpose_multiply(root, point.gradient)
    return End(point.position, momentum + 0.5 * size * force, force), point


class _Tree(NamedTuple):
    """A trajectory that grows by doubling: at each leapfrog step its newest subtree gets one more leaf.

    The checks for U-turns need only a subtree's checkpoints: the momenta of some of its leaves and the sums of momenta
    up to them, at most as many as the subtree has levels.
    """

    left: End
    right: End
    chosen: Point  # the draw from the trajectory, without the newest subtree
    energy: jax.Array  # () energy of ``chosen``
    weight: jax.Array  # () log Σ exp(energy of the first point − energy) over the trajectory
    momenta: jax.Array  # (d,) sum of the momenta
    depth: jax.Array  # () doublings done
    leaves: jax.Array  # () leapfrog steps done
    acceptance: jax.Array  # () sum of the acceptance probabilities of the leaves
    grows: jax.Array  # () whether the trajectory goes on
    diverged: jax.Array  # ()
    # The newest subtree.
    count: jax.Array  # () its leaves
    front: End  # its newest leaf
    sub_chosen: Point
    sub_energy: jax.Array
    sub_weight: jax.Array
    sub_momenta: jax.Array  # (d,)
    checkpoints: jax.Array  # (2, max_depth, d) momenta of some leaves, and the sums of momenta up to them


def _seed(end: End, point: Point, energy: jax.Array, max_depth: int) -> _Tree:
    """The trajectory of one point."""
    zero, none = jnp.zeros_like(energy), jnp.array(0)
    checkpoints = jnp.zeros((2, max_depth, *end.momentum.shape), end.momentum.dtype)
    return _Tree(
        end, end, point, energy, zero, end.momentum, none, none, zero, jnp.array(True), jnp.array(False), none, end,
        point, energy, zero, jnp.zeros_like(end.momentum), checkpoints,
    )  # fmt: skip


def _grow(
    tree: _Tree, evaluate: Callable, root: PyTree, step_size: float | jax.Array, energy: jax.Array, sides: jax.Array,
    merges: jax.Array, key: jax.Array,
) -> _Tree:  # fmt: skip
    """The trajectory with one more leaf. ``energy`` is that of the trajectory's first point."""
    forward, first = sides[tree.depth], tree.count == 0
    front = _where(first, _where(forward, tree.right, tree.left), tree.front)
    front, point = _leapfrog(evaluate, root, jnp.where(forward, step_size, -step_size), front)
    reached = 0.5 * front.momentum @ front.momentum - point.log_density
    gain = jnp.nan_to_num(energy - reached, nan=-jnp.inf)
    diverged = gain < -DIVERGENT

    # The subtree's draw moves to the new leaf with the leaf's share of the weight.
    weight = jnp.where(first, gain, jnp.logaddexp(tree.sub_weight, gain))
    moves = first | (noise.log_uniform_at(key, tree.leaves, gain.dtype) < gain - weight)
    chosen, chosen_energy = _where(moves, (point, reached), (tree.sub_chosen, tree.sub_energy))
    momenta = jnp.where(first, 0, tree.sub_momenta) + front.momentum
    checkpoints, turned = _check_subtrees(tree.checkpoints, tree.count, front.momentum, momenta)

    # A subtree that is complete and has no U-turn joins the trajectory. The trajectory's draw then prefers the subtree
    # (biased progressive sampling), which keeps π invariant and moves further.
    complete = tree.count + 1 == jnp.left_shift(1, tree.depth)
    fine = ~(turned | diverged)
    joins = complete & fine
    moves = joins & (merges[tree.depth] < weight - tree.weight)
    left, right = _where(joins & ~forward, front, tree.left), _where(joins & forward, front, tree.right)
    total = jnp.where(joins, tree.momenta + momenta, tree.momenta)
    depth = tree.depth + joins
    ends = joins & ((depth == len(sides)) | _turns(left.momentum, right.momentum, total))
    best, best_energy = _where(moves, (chosen, chosen_energy), (tree.chosen, tree.energy))
    return _Tree(
        left, right, best, best_energy, jnp.where(joins, jnp.logaddexp(tree.weight, weight), tree.weight), total, depth,
        tree.leaves + 1, tree.acceptance + jnp.exp(jnp.minimum(gain, 0)), fine & ~ends, diverged,
        jnp.where(complete, 0, tree.count + 1), front, chosen, chosen_energy, weight, momenta, checkpoints,
    )  # fmt: skip


def _check_subtrees(
    checkpoints: jax.Array, leaf: jax.Array, momentum: jax.Array, momenta: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The checkpoints after a leaf, and whether a balanced subtree that the leaf completes has a U-turn.

    Even leaves become checkpoints, and odd leaves complete subtrees. The place of leaf n among the checkpoints is the
    number of ones in the binary digits of n without the last digit. So leaf n completes as many subtrees as n has ones
    at its end, and their first leaves are at the last places up to that of n (Phan, Pradhan & Jankowiak 2019).
    """
    place = jax.lax.population_count(leaf >> 1)
    places, completed = jnp.arange(checkpoints.shape[1]), jax.lax.population_count(leaf & ~(leaf + 1))
    is_place = (leaf % 2 == 0) & (places == place)
    checkpoints = jnp.where(is_place[None, :, None], jnp.stack([momentum, momenta])[:, None], checkpoints)
    sums = momenta[None] - checkpoints[1] + checkpoints[0]
    checked = (places <= place) & (places > place - completed)
    return checkpoints, jnp.any(checked & jax.vmap(_turns, (0, None, 0))(checkpoints[0], momentum, sums))


def _turns(left: jax.Array, right: jax.Array, momenta: jax.Array) -> jax.Array:
    """Whether one end of a trajectory no longer moves away from the other."""
    across = momenta - 0.5 * (left + right)
    return (left @ across <= 0) | (right @ across <= 0)


def _where(condition: jax.Array, yes: PyTree, no: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
