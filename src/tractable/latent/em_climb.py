"""EM's climbs, on rows in memory or on file, on one device or many; they are saved on the way.

A climb is the steps of EM from one start, a starting θ, to its end. All climbs run side by side. In memory a compiled
loop takes ``SEGMENT`` steps between two returns to Python; on file a step is one pass over the file.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core import tree
from tractable.core.curve import pad_traces
from tractable.core.model import Batch, Model, PyTree, whole
from tractable.core.shared import compiled
from tractable.engine.leaves import beneath, restore
from tractable.engine.method import Session
from tractable.engine.placement import OneDevice
from tractable.latent.em import chunked, em, expected

SEGMENT = 25  # steps between two returns to Python
# A gain of at most so many units in the last digit of the objective counts as a rounding error: FALLEN units if this
# step or the step before lowered the objective, otherwise ROUNDING units (docs/decisions/039).
ROUNDING, FALLEN = 8, 64


class Reached(NamedTuple):
    """The end points of climbs."""

    theta: PyTree  # with a leading axis of starts
    objective: np.ndarray  # (start,) at theta, in nats (natural logarithms)
    trace: np.ndarray  # (start, step), NaN after a climb's end
    interrupted: bool


class Climbing(NamedTuple):
    """The state of climbs; all leaves except ``time`` have a leading axis of starts."""

    states: PyTree  # of the kernel ``em``
    good: PyTree  # the last θ with a finite objective
    gain: jax.Array  # of the last step
    to_come: jax.Array  # nats still to gain, by Aitken's extrapolation
    little: jax.Array  # whether to_come is small; a climb ends if it is small twice in a row, as once may be chance
    done: jax.Array  # whether the climb has ended
    time: jax.Array  # () steps so far


class SavedAttempts:
    """Saves and restores climbs, from all starts, and then from failed starts again in further attempts.

    Attributes:
        count: the number of attempts before this one.
        earlier: the end points of those attempts, or None.
    """

    def __init__(self, session: Session, thetas: PyTree) -> None:
        self.count, self.earlier, self.keep = 0, None, session.keeper()
        self.resume = session.resume
        if self.resume is not None:
            nothing = np.zeros(0)
            earlier = Reached(thetas, nothing, nothing, False) if beneath(self.resume, "attempts/1") else None
            self.count, self.earlier = restore((0, earlier), beneath(self.resume, "attempts"))

    def restore(self, like: PyTree) -> PyTree:
        """The saved state of this attempt's climbs, with the structure of ``like``; None if there is none."""
        leaves = {} if self.resume is None else beneath(self.resume, "now")
        self.resume = None
        return restore(like, leaves) if leaves else None

    def save(self, state: PyTree, at_once: bool = False) -> None:
        """Save the state of this attempt's climbs, if a save is due."""
        self.keep(lambda: {"attempts": (self.count, self.earlier), "now": state()}, at_once=at_once)

    def again(self, reached: "Reached") -> None:
        """Begin another attempt, saved together with the end points so far."""
        self.count, self.earlier = self.count + 1, reached


def remaining_gain(
    gain: jax.Array, before: jax.Array, objective: jax.Array, tolerance: float, size: ArrayLike = 1
) -> tuple[jax.Array, jax.Array]:
    """The gain still to come, and whether it is small.

    Gains that shrink by a factor r at every step will add r/(1 − r) times the last one. The objective is a sum over
    ``size`` rows of about a nat each, so it has these terms' rounding errors even if the sum is near 0.
    """
    rate = jnp.clip(gain / jnp.where(before > 0, before, jnp.inf), 0, 0.999)
    rate = jnp.where(before > 0, rate, 0.999)
    to_come = jnp.abs(gain) * rate / (1 - rate)
    scale = jnp.maximum(jnp.abs(objective), 1.0)
    digit = jnp.finfo(jnp.result_type(objective)).eps * jnp.maximum(scale, size)
    # EM lowers the objective only by rounding errors. After a fall, gains of its size are rounding errors too.
    rounding = jnp.where((gain < 0) | (before < 0), FALLEN, ROUNDING) * digit
    is_rounding = jnp.abs(gain) <= rounding  # nothing can be extrapolated from such a gain
    return jnp.where(is_rounding, 0.0, to_come), is_rounding | (to_come <= tolerance * scale)


def climb(method: Any, model: Model, session: Session, thetas: PyTree, attempts: SavedAttempts) -> Reached:
    """Climb from every start to its end, side by side, on rows in memory or on file."""
    advance, objectives = (_in_memory if session.data.resident else _on_file)(method, model, session)
    states = jax.vmap(lambda theta: method.kernel(model, None, None).init(session.key, theta))(thetas)
    zero = jnp.zeros(jax.tree.leaves(thetas)[0].shape[0], states.objective.dtype)
    climbs = Climbing(states, thetas, zero, zero + jnp.inf, zero > 0, zero > 0, jnp.array(0))
    traces, is_stopped = [], False
    if not session.data.resident:
        climbs = _with_objective(climbs, np.asarray(zero, np.float64))
    saved = attempts.restore((climbs, np.zeros(0)))
    if saved is not None:
        climbs, traces = saved[0], [saved[1]]

    def run_state() -> PyTree:
        return climbs, np.concatenate(traces, 1)

    while not is_stopped and int(climbs.time) < method.steps and not bool(jnp.all(climbs.done)):
        climbs, trace = advance(climbs)
        traces.append(np.asarray(trace))
        is_stopped = session.stop()
        attempts.save(run_state, at_once=is_stopped)
        newest = traces[-1][:, 0]
        best = float(np.max(newest, where=np.isfinite(newest), initial=-np.inf))
        session.say("climbing", int(climbs.time), method.steps, {"objective": best})
    attempts.save(run_state, at_once=True)
    trace = np.concatenate(traces, 1)[:, : int(climbs.time)]
    theta = climbs.states.position
    values = objectives(theta)
    # The last step may have led to a θ without a finite objective.
    theta = _each_where(jnp.isfinite(values), theta, climbs.good)
    finite = [row[np.isfinite(row)] for row in trace]
    last = np.array([row[-1] if len(row) else np.nan for row in finite])
    values = np.where(np.isfinite(values), values, last).astype(np.float64)
    return Reached(session.placement.collect(theta), values, trace, is_stopped)


def _with_objective(climbs: Climbing, values: np.ndarray) -> Climbing:
    """The state with objectives in double precision, as passes over a file sum them."""
    return climbs._replace(states=climbs.states._replace(objective=values))


def _in_memory(method: Any, model: Model, session: Session) -> tuple[Callable, Callable]:
    """For rows in memory: ``climbs -> (climbs, trace)`` takes up to SEGMENT steps; and ``thetas -> objectives``."""
    placement, size, steps = session.placement, session.data.size, jnp.array(method.steps)
    rows, mask = placement.rows_and_counts(session.data)
    method = dataclasses.replace(method, steps=1, starts=1)  # fields that the compiled program does not use
    return (
        lambda climbs: segment(method, model, placement, size, rows, mask, climbs, steps),
        lambda thetas: _objectives(method, model, placement, size, rows, mask, thetas),
    )


def _on_file(method: Any, model: Model, session: Session) -> tuple[Callable, Callable]:
    """As ``_in_memory``, for rows on file: a step is one pass over the file for all starts, in double precision."""
    e_step, m_step = method.halves(model)
    e_steps, m_steps = jax.vmap(session.placement.sum_rows(e_step), (0, None)), jax.jit(jax.vmap(m_step))
    prior, judge = method.log_prior(model), jax.jit(functools.partial(_judge, tolerance=method.tolerance))

    def read(thetas: PyTree) -> tuple[np.ndarray, PyTree]:
        sums = expected(e_steps, thetas, session.data, method.chunk, place=session.placement.place_chunk)
        priors = 0.0 if prior is None else np.asarray(jax.vmap(prior)(thetas), np.float64)
        return np.asarray(sums.log_likelihood) + priors, sums.statistics

    def advance(climbs: Climbing) -> tuple[Climbing, np.ndarray]:
        states = climbs.states
        values, statistics = read(states.position)
        gain = values - states.objective if int(climbs.time) else np.zeros_like(values)
        theta = jax.tree.map(lambda new, old: new.astype(old.dtype), m_steps(statistics), states.position)
        next_states = states._replace(position=theta, time=states.time + 1, objective=values)
        judged, _ = judge(climbs, next_states, gain, values, total=session.data.total)
        trace = np.where(climbs.done, np.nan, values)[:, None]
        return _with_objective(judged, np.where(climbs.done, states.objective, values)), trace

    return advance, lambda thetas: read(thetas)[0]


_each_where = jax.jit(jax.vmap(tree.where))


def _judge(
    climbs: Climbing, states: PyTree, gain: jax.Array, objective: jax.Array, tolerance: float, total: float | jax.Array
) -> tuple[Climbing, jax.Array]:
    """The climbs after a step to ``states``, and the objectives before the step, NaN for climbs that have ended."""
    is_finite = jax.vmap(tree.all_finite)(states.position) & jnp.isfinite(objective)
    to_come, is_small = remaining_gain(gain, climbs.gain, objective, tolerance, total)
    is_small = is_small & (climbs.time > 1)
    is_running = ~climbs.done
    keep = is_running & is_finite
    next_climbs = Climbing(
        jax.vmap(tree.where)(keep, states, climbs.states),
        jax.vmap(tree.where)(keep, climbs.states.position, climbs.good),
        jnp.where(is_running, gain, climbs.gain),
        jnp.where(is_running, to_come, climbs.to_come),
        is_small,
        climbs.done | ~is_finite | (is_small & climbs.little),
        climbs.time + 1,
    )
    return next_climbs, jnp.where(is_running, objective, jnp.nan)


@compiled("method", "model", "placement", "size")
def segment(
    method: Any, model: Model, placement: OneDevice, size: int, rows: PyTree, mask: jax.Array | None, climbs: Climbing,
    last: jax.Array,
) -> tuple[Climbing, jax.Array]:  # fmt: skip
    """The state after SEGMENT steps, or earlier if step ``last`` or the end of all climbs comes first.

    The second result is the objectives (start, step).
    """
    kernel = em(_e_step(method, model, placement), method.halves(model)[1], method.log_prior(model))
    batch = whole(rows) if mask is None else Batch(rows, mask, size)
    count, total = climbs.done.shape[0], jnp.sum(batch.counted(jnp.ones_like(batch.mask)))
    trace = jnp.full((SEGMENT, count), jnp.nan, climbs.gain.dtype)

    def continues(carry: tuple) -> jax.Array:
        climbs, _, i = carry
        return (i < SEGMENT) & (climbs.time < last) & ~jnp.all(climbs.done)

    def step(carry: tuple) -> tuple:
        climbs, trace, i = carry
        states, info = jax.vmap(lambda s: kernel.step(jnp.zeros(0), s, batch))(climbs.states)
        climbs, values = _judge(climbs, states, info.gain, info.objective, method.tolerance, total)
        return climbs, trace.at[i].set(values), i + 1

    climbs, trace, _ = jax.lax.while_loop(continues, step, (climbs, trace, jnp.array(0)))
    return climbs, trace.T


@compiled("method", "model", "placement", "size")
def _objectives(
    method: Any, model: Model, placement: OneDevice, size: int, rows: PyTree, mask: jax.Array | None, thetas: PyTree
) -> jax.Array:
    """The objective that EM maximises, at every θ, (start,)."""
    e_step, prior = _e_step(method, model, placement), method.log_prior(model)
    batch = whole(rows) if mask is None else Batch(rows, mask, size)

    def one(theta: PyTree) -> jax.Array:
        value = e_step(theta, batch).log_likelihood
        return value if prior is None else value + prior(theta)

    return jax.vmap(one)(thetas)


def _e_step(method: Any, model: Model, placement: OneDevice) -> Callable:
    """The E-step of all rows. Sums in closed form are taken chunk by chunk, on each device over its own rows.

    Without a closed form, the statistics are the rows with their responsibilities. The M-step's objective, Q(θ), is a
    sum over these rows, which the compiler divides over the devices.
    """
    e_step = method.halves(model)[0]
    return placement.sum_rows(chunked(e_step, method.chunk)) if method.exact(model) else e_step


def with_retries(reached: Reached, again: Reached, use_new: np.ndarray) -> Reached:
    """The climbs of a second attempt, ``again``, for the starts where ``use_new`` is True; elsewhere ``reached``."""

    def pick(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(jnp.asarray(use_new).reshape(-1, *[1] * (old.ndim - 1)), new, old)

    theta = jax.tree.map(pick, reached.theta, again.theta)
    traces = [new if use else old for use, old, new in zip(use_new, reached.trace, again.trace, strict=True)]
    objective = np.where(use_new, again.objective, reached.objective)
    return Reached(theta, objective, pad_traces(traces), again.interrupted)
