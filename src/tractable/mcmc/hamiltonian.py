"""Kernels of Hamiltonian Monte Carlo and of the No-U-Turn sampler.

Target: exactly π. Duane et al. 1987, Neal 2011; Hoffman & Gelman 2014, with the multinomial trajectories and the
criterion for U-turns of Betancourt 2017. They are the first choice if gradients on all rows are affordable.
NUTS can halve its steps where the density bends (WALNUTS, Bou-Rabee, Carpenter, Kleppe & Liu 2025).

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
MAX_ERROR = 1.0  # range of energies within a leapfrog step above which the step is halved
# A trajectory of halved steps ends once it has taken more than this many times the gradients of the longest trajectory
# of whole steps. In eight schools the longest of 4,000 takes three quarters of it, and in Neal's funnel a seventh.
MOST_WORK = 8


class Info(NamedTuple):
    """The trace of one trajectory."""

    acceptance: jax.Array  # () mean acceptance probability over the trajectory; with halvings, of single whole steps
    divergent: jax.Array  # () 1 if the energy error exceeded 1000 or no number of halvings sufficed, otherwise 0
    energy: jax.Array  # () energy of the new state
    gradients: jax.Array  # () number of leapfrog steps, those of failed attempts included
    saturated: jax.Array  # () 1 if the tree reached its largest depth or most gradients, otherwise 0


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
    energy: jax.Array  # () r·r/2 − log π


class Move(NamedTuple):
    """The step that adds a leaf to a trajectory."""

    end: End
    point: Point
    cut: jax.Array | bool = False  # () whether the trajectory must end before this step
    diverged: jax.Array | bool = False  # () whether even the smallest size had too large an error
    acceptance: jax.Array | None = None  # () exp(−|energy error|) of the step that is not halved
    gradients: jax.Array | int = 1  # () those of all attempts


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
    root = root_of(inverse_mass)

    def draw(key: jax.Array, count: int, state: Point) -> tuple:
        key_momentum, key_accept, key_size = jax.random.split(key, 3)
        momenta = noise.normal(key_momentum, (count, *state.position.shape), state.position.dtype)
        accept = noise.log_uniform(key_accept, (count,), state.log_density.dtype)
        return momenta, accept, jax.random.uniform(key_size, (count,), minval=1 - jitter, maxval=1 + jitter)

    def step(random: tuple, state: Point, evaluate: Callable) -> tuple[Point, Info]:
        momentum, log_u, share = random
        size = step_size * share if jitter else step_size
        first = _end(root, state, momentum)

        def leap(carry: tuple[End, Point], _: None) -> tuple[tuple[End, Point], None]:
            return _leapfrog(evaluate, root, size, carry[0]), None

        (end, point), _ = jax.lax.scan(leap, (first, state), None, leapfrogs)
        error = jnp.nan_to_num(end.energy - first.energy, nan=jnp.inf)
        accepted = log_u < -error
        state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), point, state)
        zero = jnp.zeros_like(error)
        acceptance, divergent = jnp.exp(jnp.minimum(-error, 0)), (error > DIVERGENT).astype(zero.dtype)
        return state, Info(acceptance, divergent, jnp.where(accepted, end.energy, first.energy), zero + leapfrogs, zero)

    return kernel_on_vectors(log_density, draw, step)


def nuts(
    log_density: Callable, step_size: float | jax.Array, inverse_mass: PyTree, max_depth: int = 10,
    max_halvings: int = 0, max_error: float = MAX_ERROR,
) -> Kernel:  # fmt: skip
    """The kernel of the No-U-Turn sampler with multinomial trajectories.

    Args:
        log_density: ``position -> ()``, for positions that are vectors (d,) or pytrees of d numbers.
        step_size: the leapfrog's step size, > 0.
        inverse_mass: (d,) or (d, d); ideally the posterior variances or covariance. A ``scaling.LowRank`` is its root.
        max_depth: largest number of doublings of the trajectory; a trajectory has at most 2^max_depth − 1 steps.
        max_halvings: how often a step may be halved: a step is divided into the 1, 2, 4, … smaller ones whose energies
            differ by at most ``max_error`` (WALNUTS, Bou-Rabee, Carpenter, Kleppe & Liu 2025). 0 never divides. A
            trajectory ends once it has taken more than ``MOST_WORK`` · 2^max_depth gradients.
    """
    root, most = root_of(inverse_mass), MOST_WORK * 2**max_depth

    def draw(key: jax.Array, count: int, state: Point) -> tuple:
        key_momentum, key_sides, key_merges, key_leaves = jax.random.split(key, 4)
        momenta = noise.normal(key_momentum, (count, *state.position.shape), state.position.dtype)
        sides = jax.random.bernoulli(key_sides, shape=(count, max_depth))
        merges = noise.log_uniform(key_merges, (count, max_depth), state.log_density.dtype)
        return momenta, sides, merges, jax.random.split(key_leaves, count)

    def step(random: tuple, state: Point, evaluate: Callable) -> tuple[Point, Info]:
        momentum, sides, merges, key = random
        end = _end(root, state, momentum)
        kind = end.energy.dtype

        def move(size: jax.Array, front: End) -> Move:
            if max_halvings:
                return _halve(evaluate, root, size, front, max_halvings, max_error)
            return Move(*_leapfrog(evaluate, root, size, front))

        def grow(tree: _Tree) -> _Tree:
            return _grow(tree, move, step_size, end.energy, sides, merges, key, most)

        tree = jax.lax.while_loop(lambda tree: tree.grows, grow, _seed(end, state, max_depth))
        steps, gradients = tree.leaves.astype(kind), tree.gradients.astype(kind)
        divergent, saturated = tree.diverged.astype(kind), ((tree.depth >= max_depth) | (gradients > most)).astype(kind)
        return tree.chosen, Info(tree.acceptance / steps, divergent, tree.energy, gradients, saturated)

    return kernel_on_vectors(log_density, draw, step)


def kernel_on_vectors(log_density: Callable, draw: Callable, step: Callable) -> Kernel:
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


def root_of(inverse_mass: PyTree) -> PyTree:
    """L with L Lᵀ = the inverse mass matrix."""
    if isinstance(inverse_mass, scaling.LowRank):
        return inverse_mass
    return jnp.linalg.cholesky(inverse_mass) if scaling.is_matrix(inverse_mass) else jnp.sqrt(inverse_mass)


def point_at(evaluate: Callable, position: jax.Array) -> Point:
    """The point at a position, from ``evaluate(position)``, the log density and its gradient."""
    return Point(position, *evaluate(position))


def _end(root: PyTree, point: Point, momentum: jax.Array) -> End:
    force = scaling.transpose_multiply(root, point.gradient)
    return End(point.position, momentum, force, 0.5 * momentum @ momentum - point.log_density)


def _leapfrog(evaluate: Callable, root: PyTree, size: float | jax.Array, end: End) -> tuple[End, Point]:
    """The end of a trajectory one leapfrog step later; a negative ``size`` goes back in time."""
    momentum = end.momentum + 0.5 * size * end.force
    point = point_at(evaluate, end.position + size * scaling.multiply(root, momentum))
    force = scaling.transpose_multiply(root, point.gradient)
    momentum = momentum + 0.5 * size * force
    return End(point.position, momentum, force, 0.5 * momentum @ momentum - point.log_density), point


class _Attempt(NamedTuple):
    """The attempts to take a step that is divided into 2^halvings leapfrog steps."""

    start: End  # where attempts start: the step's own start, later its end
    point: Point  # the step's end
    end: End  # where the current attempt is
    low: jax.Array  # () least energy of the current attempt
    high: jax.Array  # () largest one
    count: jax.Array  # () leapfrog steps of the current attempt
    halvings: jax.Array  # ()
    most: jax.Array  # () the largest number of halvings to try
    back: jax.Array  # () whether attempts go from the step's end back to its start
    cut: jax.Array  # () whether one with fewer halvings succeeds on the way back
    acceptance: jax.Array  # () as in ``Move``
    gradients: jax.Array  # ()


def _halve(evaluate: Callable, root: PyTree, size: jax.Array, first: End, max_halvings: int, max_error: float) -> Move:
    """The step of the smallest number of halvings within which energies differ by at most ``max_error``.

    The step is reversible only if no smaller number succeeds on the way back. If one does, the trajectory must end, as
    it does at a divergence: then every pair of neighbours on a trajectory is joined from both sides or from neither,
    so a trajectory is as probable from each of its points.
    """

    def leap(now: _Attempt) -> _Attempt:
        share = jnp.left_shift(1, now.halvings).astype(first.energy.dtype)
        end, point = _leapfrog(evaluate, root, jnp.where(now.back, -size, size) / share, now.end)
        low, high = jnp.minimum(now.low, end.energy), jnp.maximum(now.high, end.energy)
        missed = ~(high - low <= max_error)  # also if it is not a number
        over = missed | (now.count + 1 == jnp.left_shift(1, now.halvings))
        arrives = over & ~missed & ~now.back
        start = _where(arrives, end, now.start)
        gain = -jnp.abs(jnp.nan_to_num(end.energy - first.energy, nan=jnp.inf))
        return _Attempt(
            start, _where(arrives, point, now.point), _where(over, start, end), jnp.where(over, start.energy, low),
            jnp.where(over, start.energy, high), jnp.where(over, 0, now.count + 1),
            jnp.where(arrives, 0, now.halvings + missed), jnp.where(arrives, now.halvings - 1, now.most),
            now.back | arrives, over & ~missed & now.back,
            jnp.where(now.gradients == 0, jnp.exp(gain), now.acceptance), now.gradients + 1,
        )  # fmt: skip

    none, false, zero = jnp.array(0), jnp.array(False), jnp.zeros_like(first.energy)
    seed = _Attempt(
        first, Point(first.position, zero, first.position), first, first.energy, first.energy, none, none,
        none + max_halvings, false, false, zero, none,
    )  # fmt: skip
    last = jax.lax.while_loop(lambda now: (now.halvings <= now.most) & ~now.cut, leap, seed)
    return Move(last.start, last.point, last.cut, ~last.back, last.acceptance, last.gradients)


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
    gradients: jax.Array  # ()
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


def _seed(end: End, point: Point, max_depth: int) -> _Tree:
    """The trajectory of one point."""
    energy, none = end.energy, jnp.array(0)
    zero = jnp.zeros_like(energy)
    checkpoints = jnp.zeros((2, max_depth, *end.momentum.shape), end.momentum.dtype)
    return _Tree(
        end, end, point, energy, zero, end.momentum, none, none, none, zero, jnp.array(True), jnp.array(False), none,
        end, point, energy, zero, jnp.zeros_like(end.momentum), checkpoints,
    )  # fmt: skip


def _grow(
    tree: _Tree, move: Callable[[jax.Array, End], Move], step_size: float | jax.Array, energy: jax.Array,
    sides: jax.Array, merges: jax.Array, key: jax.Array, most: int,
) -> _Tree:  # fmt: skip
    """The trajectory with one more leaf. ``energy`` is that of the trajectory's first point.

    A subtree with which the trajectory would have more than ``most`` gradients does not join. The gradients between
    neighbouring leaves are the same in both directions. So the sum is the same from each of a trajectory's points, it
    only grows, and the trajectory is as probable from each of its points, as with the check for U-turns.
    """
    forward, first = sides[tree.depth], tree.count == 0
    front = _where(first, _where(forward, tree.right, tree.left), tree.front)
    moved = move(jnp.where(forward, step_size, -step_size), front)
    front = moved.end
    gain = jnp.nan_to_num(energy - front.energy, nan=-jnp.inf)
    diverged = moved.diverged | (gain < -DIVERGENT)
    acceptance = jnp.exp(jnp.minimum(gain, 0)) if moved.acceptance is None else moved.acceptance

    # The subtree's draw moves to the new leaf with the leaf's share of the weight.
    weight = jnp.where(first, gain, jnp.logaddexp(tree.sub_weight, gain))
    moves = first | (noise.log_uniform_at(key, tree.leaves, gain.dtype) < gain - weight)
    chosen, chosen_energy = _where(moves, (moved.point, front.energy), (tree.sub_chosen, tree.sub_energy))
    momenta = jnp.where(first, 0, tree.sub_momenta) + front.momentum
    checkpoints, turned = _check_subtrees(tree.checkpoints, tree.count, front.momentum, momenta)

    # A subtree that is complete and has no U-turn joins the trajectory. The trajectory's draw then prefers the subtree
    # (biased progressive sampling), which keeps π invariant and moves further.
    complete = tree.count + 1 == jnp.left_shift(1, tree.depth)
    gradients = tree.gradients + moved.gradients
    fine = ~(turned | diverged | moved.cut | (gradients > most))
    joins = complete & fine
    moves = joins & (merges[tree.depth] < weight - tree.weight)
    left, right = _where(joins & ~forward, front, tree.left), _where(joins & forward, front, tree.right)
    total = jnp.where(joins, tree.momenta + momenta, tree.momenta)
    depth = tree.depth + joins
    ends = joins & ((depth == len(sides)) | _turns(left.momentum, right.momentum, total))
    best, best_energy = _where(moves, (chosen, chosen_energy), (tree.chosen, tree.energy))
    return _Tree(
        left, right, best, best_energy, jnp.where(joins, jnp.logaddexp(tree.weight, weight), tree.weight), total, depth,
        tree.leaves + 1, gradients, tree.acceptance + acceptance, fine & ~ends, diverged,
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
