"""Exact sums and integrals over each datum's hidden cause z, for all methods."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import tree
from tractable.core.batches import Batch
from tractable.core.settings import expect_whole
from tractable.core.tree import PyTree


class Expected(NamedTuple):
    """The result of an E-step: sums over rows, so that the results of parts of the data can be added."""

    statistics: PyTree  # Σ_n w_n E[T(x_n, z)]
    log_likelihood: Any  # () Σ_n w_n log p(x_n | θ), in nats


EStep = Callable[[PyTree, Batch], Expected]  # (θ, batch) -> Expected
MStep = Callable[[PyTree], PyTree]  # statistics -> θ
OfRows = Callable[[PyTree, PyTree], jax.Array]  # (θ, rows) -> (n, ...)


class Sums(NamedTuple):
    """Functions that sum or integrate z out exactly; all but ``log_prob`` may be None.

    Attributes:
        log_prob: ``(theta, rows) -> (n,)``, log p(x_n | θ), in nats.
        e_step: ``(theta, batch) -> Expected``.
        responsibilities: ``(theta, rows) -> (n, m)``, p(z | x_n, θ) of a z with m values; (n, T, m) for sequences.
        encode: ``(theta, rows) -> `` means (n, q) and covariance (q, q) of z given x, if z is normal.
        causes: (m, ...) the values of z, if there are few.
        drawn: ``(key, theta, rows) -> z``, draws from p(z | x_n, θ): (n,) indices of values; (n, T) for sequences;
            (n, T, d) for states that are vectors.
        complete: ``(theta, rows, z) -> (n,)``, log p(x_n, z_n | θ) of a z that ``drawn`` returns, in nats.
    """

    log_prob: OfRows
    e_step: EStep | None = None
    responsibilities: OfRows | None = None
    encode: Callable[[PyTree, PyTree], tuple[jax.Array, jax.Array]] | None = None
    causes: PyTree = None
    drawn: Callable[[jax.Array, PyTree, PyTree], jax.Array] | None = None
    complete: Callable[[PyTree, PyTree, jax.Array], jax.Array] | None = None


def accumulate(
    e_step: Callable, theta: PyTree, rows: PyTree, weights: jax.Array | np.ndarray | None = None, chunk: int = 4096
) -> Expected:
    """One E-step over all rows, ``chunk`` rows at a time, so that memory beyond the data is O(chunk).

    The result is that of one E-step on all rows, up to rounding. The sums over chunks are compensated
    (``tree.sum_over``).

    Args:
        e_step: ``(theta, batch) -> Expected``.
        theta: parameters.
        rows: pytree of arrays with n rows.
        weights: (n,), each ≥ 0; all 1 by default.
        chunk: rows at a time, ≥ 1.

    Raises:
        SettingsError: a chunk below 1.
    """
    expect_whole("A chunk", chunk, of=" of rows")
    size = jax.tree.leaves(rows)[0].shape[0]
    weights = jnp.ones(size, dtype_of(theta)) if weights is None else jnp.asarray(weights)
    if chunk >= size:
        return e_step(theta, Batch(rows, weights, size))

    def part(start: jax.Array) -> tuple[Expected, None]:
        # The last chunk starts earlier, so that it is full without padding, and masks rows that were already counted.
        first = jnp.minimum(start, size - chunk)
        here = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, first, chunk), (rows, weights))
        mask = jnp.where(first + jnp.arange(chunk) >= start, here[1], 0)
        return e_step(theta, Batch(here[0], mask, size)), None

    return tree.sum_over(part, jnp.arange(0, size, chunk))[0]


def enumerated(log_joint: Callable, values: PyTree, statistics: Callable | None = None) -> Sums:
    """The exact E-step of any model whose z has few values, by summation over the values.

        log p(x | θ) = log Σ_z p(x, z | θ),    p(z | x, θ) = p(x, z | θ) / p(x | θ)

    Args:
        log_joint: ``(theta, x, z) -> ()``, log p(x, z | θ) of one datum; with inputs x is (y, given).
        values: the m values of z: an array or a pytree of arrays with a leading axis of length m.
        statistics: ``(x, z) -> pytree``, the statistics T of one datum that the M-step needs; by default the indicator
            of the value of z, so that the sums are the expected counts, (m,).

    A datum that is impossible under every value has log evidence −∞ and responsibilities NaN.

    >>> import jax.numpy as jnp
    >>> def log_joint(theta, x, z):  # one of two coins
    ...     return jnp.log(0.5) + jnp.log(jnp.where(x == 1, z, 1 - z))
    >>> coins = enumerated(log_joint, jnp.array([0.25, 0.75]))
    >>> coins.responsibilities(None, jnp.array([1, 0])).round(2).tolist()
    [[0.25, 0.75], [0.75, 0.25]]
    """

    def joint(theta: PyTree, rows: PyTree) -> jax.Array:  # (n, m)
        return jax.vmap(lambda x: jax.vmap(lambda z: log_joint(theta, x, z))(values))(rows)

    def log_prob(theta: PyTree, rows: PyTree) -> jax.Array:
        return jax.nn.logsumexp(joint(theta, rows), axis=1)

    def responsibilities(theta: PyTree, rows: PyTree) -> jax.Array:
        return jax.nn.softmax(joint(theta, rows), axis=1)

    def e_step(theta: PyTree, batch: Batch) -> Expected:
        rows = observed(batch)
        logits = joint(theta, rows)
        counts = batch.mask > 0
        weights = jnp.where(counts, batch.mask, 0).astype(logits.dtype)
        share = jnp.where(counts[:, None], jax.nn.softmax(logits, axis=1), 0) * weights[:, None]
        evidence = jnp.where(counts, jax.nn.logsumexp(logits, axis=1), 0)
        if statistics is None:
            return Expected(jnp.sum(share, axis=0), jnp.sum(weights * evidence))

        terms_of = statistics

        def one(x: PyTree, share: jax.Array) -> PyTree:
            terms = jax.vmap(lambda z: terms_of(x, z))(values)  # (m, ...)
            return jax.tree.map(lambda t: jnp.tensordot(share, jnp.asarray(t, share.dtype), 1), terms)

        sums = jax.tree.map(
            lambda t: jnp.sum(jnp.where(jnp.expand_dims(counts, tuple(range(1, t.ndim))), t, 0), axis=0),
            jax.vmap(one)(rows, share),
        )
        return Expected(sums, jnp.sum(weights * evidence))

    def complete(theta: PyTree, rows: PyTree, z: jax.Array) -> jax.Array:
        return jax.vmap(lambda x, i: log_joint(theta, x, jax.tree.map(lambda v: jnp.asarray(v)[i], values)))(rows, z)

    drawn = draw_function(lambda theta, rows: joint(theta, rows).T)
    return Sums(log_prob, e_step, responsibilities, causes=values, drawn=drawn, complete=complete)


def draw_function(joint: OfRows) -> Callable[[jax.Array, PyTree, PyTree], jax.Array]:
    """``Sums.drawn`` from ``joint``, ``(theta, rows) -> (m, n)``, log p(x_n, z | θ) of every value of z."""

    def drawn(key: jax.Array, theta: PyTree, rows: PyTree) -> jax.Array:
        logits = joint(theta, rows)
        return pick_indices(jax.random.uniform(key, logits.shape[1:], logits.dtype), logits)

    return drawn


def pick_indices(uniform: jax.Array, logits: jax.Array) -> jax.Array:
    """(n,) indices of values with probabilities ∝ exp of logits (m, n), chosen by n numbers uniform on [0, 1)."""
    below = jnp.cumsum(jnp.exp(logits - jnp.max(logits, axis=0, keepdims=True)), axis=0)
    return jnp.sum(below[:-1] <= (uniform * below[-1])[None], axis=0).astype(jnp.int32)


def observed(batch: Batch) -> PyTree:
    """The rows of a batch as functions of a latent model take them: y, or (y, inputs) if ``Data`` has inputs."""
    rows = batch.data
    return rows[0] if isinstance(rows, tuple) and len(rows) == 2 and rows[1] is None else rows


def dtype_of(position: PyTree) -> Any:
    """The floating-point type of a pytree of arrays."""
    return jnp.result_type(float) if not (leaves := jax.tree.leaves(position)) else jnp.result_type(*leaves)
