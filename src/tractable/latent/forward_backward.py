"""Forward–backward: the states of a hidden Markov chain are summed out, maximised over, or drawn.

    z_1 ~ π,    z_t ~ A[z_{t−1}],    x_t has density b_t(k) where z_t = k
    α_t = p(z_t | x_1 … x_t) ∝ (α_{t−1} A) b_t,    c_t = p(x_t | x_1 … x_{t−1}),    log p(x) = Σ_t log c_t
    β_t = A (b_{t+1} β_{t+1}) / c_{t+1},    p(z_t = i | x) = α_t(i) β_t(i)
    p(z_t = i, z_{t+1} = j | x) = α_t(i) A_ij b_{t+1}(j) β_{t+1}(j) / c_{t+1}

Each step is divided by its c_t, and its densities by the largest of them, so that long sequences do not underflow. A
missing step has b_t = 1: it is summed over. Arrays are (T, K) for one sequence, or (T, K, n) for several. The axis of
sequences is last because a processor computes neighbours on the last axis together. Baum et al. 1970; Rabiner 1989,
section III.

On a CPU the steps run one after another, 20 ns each for five states. On an accelerator, products of the steps' matrices
are computed in parallel, in log T rounds (Särkkä & García-Fernández 2021); on few cores that would be slower
(docs/decisions/040).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.tree import PyTree

UNROLLED = 16  # states up to which a step's sums are unrolled, which is faster than products of small matrices
LONG = 256  # number of steps from which an accelerator runs them in parallel
ROOM = 1 << 28  # largest number of entries of all the steps' matrices for which the steps run in parallel


class Passes(NamedTuple):
    """The results of both passes, (T, K, …)."""

    filtered: jax.Array  # α
    smoothed: jax.Array  # α β, p(z_t | x)
    ratio: jax.Array  # b β / c: p(z_t, z_{t+1} | x) = α_t A ratio_{t+1}


def log_b_scaled(log_b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The densities b of each step divided by their largest, (T, K, …), and the log of that largest, (T, …)."""
    # Every scale gives the same result, so this one needs no derivative.
    largest = jax.lax.stop_gradient(jnp.max(log_b, axis=1))
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    if log_b.ndim > 2:
        return jnp.exp(log_b - largest[:, None]), largest
    # For one sequence, steps become the last axis, along which a processor computes exponentials together.
    return jax.lax.optimization_barrier(jnp.exp(log_b.T - largest[None])).T, largest


def forward(
    initial: jax.Array, transition: jax.Array, b: jax.Array, parallel: bool | None = None
) -> tuple[jax.Array, jax.Array]:
    """α (T, K, …) and c (T, …). If no state can emit a step, both are 0 from that step on.

    Args:
        initial: (K,) π; transition: (K, K) A, its rows sum to 1.
        b: (T, K, …) densities, up to a factor per step.
        parallel: whether to multiply the steps' matrices in parallel; by default device and size decide.
    """
    first = jnp.broadcast_to(_expand(initial, b.ndim - 1), b.shape[1:])
    if runs_in_parallel(b, parallel):
        steps = _expand(transition[None], b.ndim + 1) * b[:, None]  # (T, K, K, …)
        steps = steps.at[0].set(jnp.broadcast_to((first * b[0])[None], steps.shape[1:]))
        logs = jnp.zeros((len(steps), *b.shape[2:]), b.dtype)
        joint = jax.lax.associative_scan(_scaled_product, (steps, logs))[0][:, 0]
        total = jnp.sum(joint, axis=1)
        filtered = joint / jnp.where(total > 0, total, 1)[:, None]
        prediction = jnp.einsum("ti...,ij->tj...", filtered[:-1], transition, precision="highest")
        return filtered, jnp.sum(jnp.concatenate([first[None], prediction]) * b, axis=1)

    def step(prediction: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        filtered, scale = _condition(prediction, b)
        return _multiply(filtered, transition), (filtered, scale)

    return jax.lax.scan(step, first.astype(b.dtype), b)[1]


def backward(
    transition: jax.Array, b: jax.Array, scale: jax.Array, parallel: bool | None = None, last: jax.Array | None = None
) -> jax.Array:
    """β (T, K, …), scaled so that Σ_k α_t(k) β_t(k) = 1, with b and c (``scale``) as in ``forward``.

    β_T is ``last``, by default 1.
    """
    ratio = b / jnp.where(scale > 0, scale, 1)[:, None]
    if last is None and runs_in_parallel(b, parallel):
        # β is the row sums of the product of A diag(b/c) from each step to the end; the division by c scales it.
        steps = _expand(transition[None], ratio.ndim + 1) * ratio[1:][:, None]
        logs = jnp.zeros((len(steps), *ratio.shape[2:]), ratio.dtype)
        products, logs = jax.lax.associative_scan(
            lambda later, earlier: _scaled_product(earlier, later), (steps, logs), reverse=True
        )
        beta = jnp.sum(products, axis=2) * jnp.exp(logs)[:, None]
        return jnp.concatenate([beta, jnp.ones_like(ratio[:1])])

    def step(beta: jax.Array, ratio: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _multiply(ratio * beta, transition.T), beta

    return jax.lax.scan(step, jnp.ones_like(b[0]) if last is None else last, ratio, reverse=True)[1]


def smooth(
    initial: jax.Array, transition: jax.Array, log_b: jax.Array, parallel: bool | None = None,
    last: jax.Array | None = None,
) -> tuple:  # fmt: skip
    """The ``Passes`` for log densities (T, K, …), and log p(x), (…); ``last`` as in ``backward``."""
    b, largest = log_b_scaled(log_b)
    filtered, scale = forward(initial, transition, b, parallel)
    beta = backward(transition, b, scale, parallel, last)
    ratio = b * beta / jnp.where(scale > 0, scale, 1)[:, None]
    return Passes(filtered, filtered * beta, ratio), jnp.sum(jnp.log(scale) + largest, axis=0)


def smooth_in_pieces(
    initial: jax.Array, transition: jax.Array, log_b: Callable, pieces: PyTree, sums_of_piece: Callable
) -> tuple:
    """Sums over all pieces, p(z_1 | x), and log p(x), by passes over pieces: consecutive steps that fit a CPU's cache.

    The backward pass recomputes the α of each piece from the piece's start. So besides the data only one piece is in
    memory (docs/decisions/040).

    Args:
        log_b: ``piece -> `` log densities of the piece's steps.
        pieces: a pytree with a leading axis of pieces.
        sums_of_piece: ``(piece, Passes, crossing) -> sums``; ``crossing`` (K, K, …) is p(z_t, z_{t+1} | x) of the
            piece's last step and the next piece's first.
    """

    def forth(prediction: jax.Array, piece: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        b, largest = log_b_scaled(log_b(piece))
        filtered, scale = forward(prediction, transition, b, False)
        return _multiply(filtered[-1], transition), (prediction, jnp.sum(jnp.log(scale) + largest, axis=0))

    def back(later: tuple[jax.Array, jax.Array], entry: tuple) -> tuple[tuple, tuple]:
        piece, prediction = entry
        passes = smooth(prediction, transition, log_b(piece), False, later[0])[0]
        crossing = _expand(transition, 1 + passes.ratio[0].ndim) * passes.filtered[-1][:, None] * later[1][None]
        ends = _multiply(passes.ratio[0], transition.T), passes.ratio[0]
        return ends, (sums_of_piece(piece, passes, crossing), passes.smoothed[0])

    shape = jax.eval_shape(log_b, jax.tree.map(lambda a: a[0], pieces))
    start = jnp.broadcast_to(_expand(initial, len(shape.shape) - 1), shape.shape[1:]).astype(shape.dtype)
    predictions, logs = jax.lax.scan(forth, start, pieces)[1]
    ends = jnp.ones_like(start), jnp.zeros_like(start)
    sums, first = jax.lax.scan(back, ends, (pieces, predictions), reverse=True)[1]
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), sums), first[0], jnp.sum(logs, axis=0)


@jax.custom_jvp
def log_prob(initial: jax.Array, transition: jax.Array, log_b: jax.Array) -> jax.Array:
    """log p(x) (…), in nats (natural logarithms), with z summed out, from log densities log b (T, K, …).

    Its gradient comes from Fisher's identity, by one backward pass.
    """
    b, largest = log_b_scaled(log_b)
    return jnp.sum(jnp.log(forward(initial, transition, b)[1]) + largest, axis=0)


@log_prob.defjvp
def _slope(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (initial, transition, log_b), (d_initial, d_transition, d_log_b) = primals, tangents
    (filtered, smoothed, ratio), value = smooth(initial, transition, log_b)
    of_steps = jnp.sum(smoothed * d_log_b, axis=(0, 1))
    of_first = jnp.sum(_expand(d_initial, log_b.ndim - 1) * ratio[0], axis=0)
    of_moves = jnp.sum(jnp.einsum("ti...,ij->tj...", filtered[:-1], d_transition) * ratio[1:], axis=(0, 1))
    return value, of_steps + of_first + of_moves


def moves(transition: jax.Array, passes: Passes, counted: jax.Array) -> jax.Array:
    """Σ_t p(z_t = i, z_{t+1} = j | x) over all sequences, (K, K).

    Args:
        counted: (T − 1, …) weight of each transition.
    """
    weighed = passes.ratio[1:] * counted[:, None]
    if weighed.ndim == 2:
        return transition * jnp.matmul(passes.filtered[:-1].T, weighed, precision="highest")
    counts = jnp.einsum("tin,tjn->tij", passes.filtered[:-1], weighed, precision="highest")
    return transition * jnp.sum(counts, axis=0)


def viterbi(initial: jax.Array, transition: jax.Array, log_b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The likeliest path of states 0 … K − 1, (T, …), and log p(x, path), (…). Among ties it takes the lowest state."""
    log_a = _expand(jnp.log(transition), log_b.ndim)

    def step(best: jax.Array, log_b: jax.Array) -> tuple[jax.Array, jax.Array]:
        candidates = best[:, None] + log_a
        return jnp.max(candidates, axis=0) + log_b, jnp.argmax(candidates, axis=0).astype(jnp.int32)

    def back(state: jax.Array, came_from: jax.Array) -> tuple[jax.Array, jax.Array]:
        previous_state = jnp.take_along_axis(came_from, state[None], axis=0)[0]
        return previous_state, previous_state

    best, came_from = jax.lax.scan(step, _expand(jnp.log(initial), log_b.ndim - 1) + log_b[0], log_b[1:])
    last = jnp.argmax(best, axis=0).astype(jnp.int32)
    path = jax.lax.scan(back, last, came_from, reverse=True)[1]
    return jnp.concatenate([path, last[None]]), jnp.max(best, axis=0)


def draw_path(uniform: jax.Array, transition: jax.Array, filtered: jax.Array) -> jax.Array:
    """A draw of a path from p(z | x), (T, …): the last state from α_T, then each state before it (Chib 1996).

        z_t = i with probability ∝ α_t(i) A[i, z_{t+1}]

    Args:
        uniform: (T, …) uniform draws on [0, 1), the only randomness.
        filtered: (T, K, …) α, from ``forward``.
    """

    def pick(shares: jax.Array, uniform: jax.Array) -> jax.Array:
        below = jnp.cumsum(shares, axis=0)
        return jnp.sum(below[:-1] <= (uniform * below[-1])[None], axis=0).astype(jnp.int32)

    def step(state: jax.Array, entry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        uniform, filtered = entry
        previous_state = pick(filtered * jnp.moveaxis(transition.T[state], -1, 0), uniform)
        return previous_state, previous_state

    last = pick(filtered[-1], uniform[-1])
    path = jax.lax.scan(step, last, (uniform[:-1], filtered[:-1]), reverse=True)[1]
    return jnp.concatenate([path, last[None]])


def runs_in_parallel(b: jax.Array, parallel: bool | None) -> bool:
    """Whether the steps run in parallel: ``parallel`` if given, otherwise decided by device and size."""
    if parallel is not None:
        return parallel
    return jax.default_backend() != "cpu" and b.shape[0] >= LONG and b.size * b.shape[1] <= ROOM


def _condition(prediction: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """α_t and c_t from p(z_t | x_1 … x_{t−1}) and the step's densities."""
    joint = prediction * b
    scale = jnp.sum(joint, axis=0)
    return joint / jnp.where(scale > 0, scale, 1)[None], scale


def _multiply(vector: jax.Array, matrix: jax.Array) -> jax.Array:
    """Σ_i v_i M_ij, (K, …)."""
    if len(matrix) > UNROLLED:
        return jnp.einsum("i...,ij->j...", vector, matrix, precision="highest")
    terms = [_expand(row, vector.ndim) * v[None] for row, v in zip(matrix, vector, strict=True)]
    return functools.reduce(jnp.add, terms)


def _expand(array: jax.Array, rank: int) -> jax.Array:
    """The array with axes of length 1 appended up to ``rank`` axes."""
    return array.reshape(array.shape + (1,) * (rank - array.ndim))


def _scaled_product(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The product A B of every step divided by its largest entry, and the log scale."""
    both = jnp.einsum("tij...,tjk...->tik...", a[0], b[0], precision="highest")
    largest = jnp.max(both, axis=(1, 2))
    largest = jnp.where(largest > 0, largest, 1)
    return both / largest[:, None, None], a[1] + b[1] + jnp.log(largest)
