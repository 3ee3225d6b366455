"""Expectation–maximisation on additive expected statistics.

    E:  S = Σ_n w_n E[T(x_n, z) | x_n, θ]        M:  θ' = argmax Q(·; S),  Q = Σ_n w_n E[log p(x_n, z | ·) | x_n, θ]

EM climbs to a stationary point of Σ_n w_n log p(x_n | θ). The M-step maximises a lower bound that equals this objective
at the present θ, so no step lowers the objective. Dempster, Laird & Rubin 1977. An E-step gives *sums* over rows. The
sums of chunks, files and devices add up to those of all rows, and online EM averages the sums of minibatches (Cappé &
Moulines 2009).

An E-step is ``(theta, batch) -> Expected``, its sums weighted by ``batch.mask`` (0 or 1, or any weight ≥ 0); an M-step
is ``statistics -> theta``. EM does not apply where z cannot be summed or integrated out given θ.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tractable.core import schedules, tree
from tractable.core.batches import narrow
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.model import Batch, Data, Kernel, PyTree, as_data
from tractable.core.settings import expect_whole
from tractable.core.sums import Expected, accumulate, dtype_of


class State(NamedTuple):
    """θ, and the objective before the last step."""

    position: PyTree  # θ
    time: jax.Array  # () steps taken
    objective: jax.Array  # () at the position before the last step; 0 before the first step


class Info(NamedTuple):
    """The trace of one step of EM."""

    objective: jax.Array  # () Σ w log p(x|θ) (+ log p(θ)) before the step, in nats (natural logarithms)
    gain: jax.Array  # () the objective minus that of the step before; 0 in the first step


class OnlineState(NamedTuple):
    """θ, and the running statistics that give it."""

    position: PyTree  # θ
    time: jax.Array  # () batches so far
    statistics: PyTree  # running average of the batches' sums, scaled to the whole data


class OnlineInfo(NamedTuple):
    """The trace of one batch."""

    objective: jax.Array  # () N/n Σ log p(x|θ) (+ log p(θ)) of the batch, nats, at the position before the step
    step_size: jax.Array  # () γ_t


def em(e_step: Callable, m_step: Callable, log_prior: Callable | None = None) -> Kernel:
    """Batch EM: every step uses all rows.

        θ' = m_step(S(θ))

    The objective never falls if ``m_step`` is the exact maximum of Q (+ log p(θ)).

    Args:
        e_step: ``(theta, batch) -> Expected``; ``chunked(e_step, size)`` bounds its memory.
        m_step: ``statistics -> theta``.
        log_prior: ``theta -> ()``, added to the objective; give it if the M-step maximises Q + log p(θ).

    Returns:
        A kernel without noise. Its batch is the whole data: ``whole(rows)``, or rows with weights as their mask.
    """

    def init(key: jax.Array, position: PyTree) -> State:
        return State(position, jnp.array(0), jnp.zeros((), dtype_of(position)))

    def step(noise: PyTree, state: State, batch: Batch | None) -> tuple[State, Info]:
        sums = e_step(state.position, _expect_batch(batch))
        objective = _objective(sums.log_likelihood, log_prior, state.position)
        gain = jnp.where(state.time > 0, objective - state.objective, 0).astype(objective.dtype)
        position = _in_dtypes_of(m_step(sums.statistics), state.position)
        return State(position, state.time + 1, objective), Info(objective, gain)

    return Kernel(init, _no_noise, step)


def online_em(
    e_step: Callable, m_step: Callable, step_size: float | schedules.Schedule | None = None, patience: int = 5, *,
    example: Batch, log_prior: Callable | None = None,
) -> Kernel:  # fmt: skip
    """Online EM: statistics are averaged over minibatches, and an M-step makes θ from the average.

        S ← (1 − γ_t) S + γ_t (N/n) s̄_t(θ),    θ ← m_step(S) from batch ``patience`` on

    s̄_t is the batch's sum. Some statistics are expressed in coordinates that depend on θ; their method
    ``in_frame_of(other)`` expresses S in the newest coordinates. γ_0 is 1: before the first batch there is nothing to
    average with. With γ = 1 and all rows in the batch this is batch EM; otherwise a step may lower the objective. Cappé
    & Moulines 2009, eqs. 9 and 10.

    Args:
        e_step: ``(theta, batch) -> Expected``.
        m_step: ``statistics -> theta``.
        step_size: γ in (0, 1], or a schedule ``t -> γ_t``; (1 + t)^−0.6 by default. For θ to converge, Σ γ_t must
            diverge and Σ γ_t² must converge: ``schedules.polynomial(t0**κ, t0, κ)`` is (1 + t/t0)^−κ.
        patience: ≥ 1, batches before the first M-step: the statistics of few rows may have no maximum.
        example: a batch of arrays or of ``jax.ShapeDtypeStruct``; its shapes determine those of the statistics.
        log_prior: as for ``em``.

    Raises:
        SettingsError: γ is outside (0, 1], or patience is below 1.
    """
    expect_whole("online_em(patience=...)", patience, of=" of batches")
    if step_size is None:
        step_size = schedules.polynomial(1.0, 1.0, 0.6)
    gamma = step_size if callable(step_size) else lambda t: jnp.asarray(step_size, jnp.result_type(float))
    second = gamma(jnp.array(1))  # weight of the second batch, the first that is averaged with another
    if not isinstance(second, Tracer) and not 0 < second <= 1:
        raise SettingsError(f"online_em(step_size=...) is in (0, 1], the share of the newest batch; got {second:.3g}.")

    def init(key: jax.Array, position: PyTree) -> OnlineState:
        shapes = jax.eval_shape(e_step, position, example).statistics
        return OnlineState(position, jnp.array(0), jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))

    def step(noise: PyTree, state: OnlineState, batch: Batch | None) -> tuple[OnlineState, OnlineInfo]:
        batch = _expect_batch(batch)
        sums = batch.summed(e_step, state.position)
        share = jnp.where(state.time > 0, gamma(state.time), 1.0)
        statistics = jax.tree.map(
            lambda old, new: ((1 - share) * old + share * batch.scale * new).astype(new.dtype),
            _in_newest_frame(state.statistics, sums.statistics),
            sums.statistics,
        )
        position = _in_dtypes_of(m_step(statistics), state.position)
        position = tree.where(state.time + 1 >= patience, position, state.position)
        objective = _objective(batch.scale * sums.log_likelihood, log_prior, state.position)
        return OnlineState(position, state.time + 1, statistics), OnlineInfo(objective, share.astype(objective.dtype))

    return Kernel(init, _no_noise, step)


def chunked(e_step: Callable, chunk: int = 4096) -> Callable:
    """The same E-step, by ``accumulate`` over ``chunk`` rows at a time, in memory O(chunk)."""
    expect_whole("A chunk", chunk, of=" of rows")
    return lambda theta, batch: accumulate(e_step, theta, batch.data, batch.mask, chunk)


def expected(
    e_step: Callable, theta: PyTree, data: Data | Any, chunk: int = 1 << 16,
    weights: jax.Array | np.ndarray | None = None, place: Callable = lambda rows, mask: (rows, jnp.asarray(mask)),
) -> Expected:  # fmt: skip
    """One E-step over rows on file or in NumPy arrays, chunk by chunk; NumPy adds the chunks' sums in float64.

    It takes one pass over the file, and memory O(chunk). A chunk is read while JAX computes the chunk before.

    Args:
        e_step: ``(theta, batch) -> Expected``; the same function is compiled only once.
        theta: parameters. The sums are float64, so an M-step on them may give θ in float64; cast it to single
            precision if you want that.
        data: ``Data``, for example of a memory-mapped file, or arrays.
        chunk: rows at a time, ≥ 1.
        weights: (N,), each ≥ 0; by default the data's weights.
        place: ``(rows, mask) -> (rows, mask)``, which places a chunk on devices for the E-step.

    Returns:
        An ``Expected`` of NumPy arrays in float64.

    Raises:
        SettingsError: the chunk is below 1. DataError: there are no rows, or the weights are not (N,).
    """
    expect_whole("A chunk", chunk, of=" of rows")
    data = as_data(data)
    weights = data.weights if weights is None else weights
    if weights is not None and np.shape(weights) != (data.size,):
        raise DataError(f"expected(weights=...) expects weights of shape ({data.size},); got {np.shape(weights)}.")
    if data.size == 0:
        raise DataError("EM learns from rows: these data have none.")
    chunk = min(chunk, data.size)
    compiled, dtype = jax.jit(e_step), np.dtype(dtype_of(theta))
    total, working = None, None  # NumPy adds a chunk's sums while JAX computes those of the next chunk
    for start in range(0, data.size, chunk):
        stop = min(start + chunk, data.size)
        # The last chunk is filled up with rows before ``start``, of mask 0: so all chunks have the same shape, and the
        # E-step is compiled only once.
        rows = jax.tree.map(lambda a, stop=stop: np.asarray(a[stop - chunk : stop]), data.rows)
        mask = np.zeros(chunk, dtype)
        mask[chunk - (stop - start) :] = 1 if weights is None else np.asarray(weights[start:stop])
        rows, mask = place(rows, mask)
        started = compiled(theta, Batch(rows, mask, narrow(data.size)))
        total, working = _add_in_numpy(total, working), started
    return _add_in_numpy(total, working)


def _no_noise(key: jax.Array, count: int, state: PyTree, batch: Batch | None = None) -> jax.Array:
    """Noise without numbers, (count, 0): kernels with noise return ``count`` blocks of it, but EM draws nothing."""
    return jnp.zeros((count, 0))


def _expect_batch(batch: Batch | None) -> Batch:
    if batch is None:
        raise DataError("EM needs rows at every step: give a batch, such as whole(rows).")
    return batch


def _objective(log_likelihood: jax.Array, log_prior: Callable | None, theta: PyTree) -> jax.Array:
    value = log_likelihood if log_prior is None else log_likelihood + log_prior(theta)
    return jnp.asarray(value, dtype_of(theta))


def _in_newest_frame(old: PyTree, new: PyTree) -> PyTree:
    """The old statistics; those whose coordinates depend on θ are expressed in the coordinates of the new ones."""

    def has_frame(statistics: Any) -> bool:
        return hasattr(statistics, "in_frame_of")

    return jax.tree.map(lambda a, b: a.in_frame_of(b) if has_frame(a) else a, old, new, is_leaf=has_frame)


def _in_dtypes_of(new: PyTree, old: PyTree) -> PyTree:
    """The M-step's θ in the dtypes of the old θ; raises ModelError if structure or shapes differ."""
    shapes = [(jax.tree.structure(t), [jnp.shape(leaf) for leaf in jax.tree.leaves(t)]) for t in (new, old)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "m_step(statistics) must return parameters like those that EM started from, "
            f"{shapes[1][0]} of shapes {shapes[1][1]}; got {shapes[0][0]} of shapes {shapes[0][1]}."
        )
    return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, old)


def _add_in_numpy(total: PyTree, term: PyTree) -> PyTree:
    """The sum as NumPy arrays in float64; a total or term of None counts as 0."""
    if term is None:
        return total
    term = jax.tree.map(lambda a: np.asarray(a, np.float64), term)
    return term if total is None else jax.tree.map(np.add, total, term)
