"""EM's climbs from start to end: on rows in memory, over devices, or on file; saved as they go."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.beliefs.curve import pad_traces
from tractable.core import Batch, PyTree, whole
from tractable.data.placement import OneDevice
from tractable.kernels.em import chunked, em, expected
from tractable.methods.method import Session
from tractable.tools import tree
from tractable.tools.leaves import beneath, restored
from tractable.tools.shared import compiled

SEGMENT = 25  # steps between two returns to the host
ROUNDING, FALLEN = 8, 64  # gains taken as rounding, in units of the objective's last digit: usually, and after a fall


class Reached(NamedTuple):
    """The end points of climbs."""

    theta: PyTree  # leading axis (start,)
    objective: np.ndarray  # (start,) nats, at theta
    trace: np.ndarray  # (start, step), NaN after a climb's end
    interrupted: bool


class Climbing(NamedTuple):
    """The state of climbs; all leaves but the last lead with an axis of starts."""

    states: PyTree
    good: PyTree  # last θ with a finite objective
    gain: jax.Array  # of the last step
    to_come: jax.Array  # nats, by Aitken's extrapolation
    little: jax.Array  # whether to_come is small: twice in a row ends a climb, once may be a plateau
    done: jax.Array
    time: jax.Array  # ()


class ClimbsOnFile(NamedTuple):
    """Climbs on data on file: those that ended, and the current one."""

    ends: list[PyTree]  # θ
    traces: list[np.ndarray]  # nats, at every θ but the last
    values: np.ndarray  # nats, at the end
    theta: PyTree  # of the current climb
    trace: np.ndarray
    before: float  # gain of its last step
    calm: int  # steps in a row with little still to come


class SavedAttempts:
    """Saves and restores climbs whose failed starts are tried again.

    Attributes:
        count: attempts before this one.
        earlier: their end points, or None.
    """

    def __init__(self, session: Session, thetas: PyTree) -> None:
        self.count, self.earlier, self.keep = 0, None, session.keeper()
        self.resume = session.resume
        if self.resume is not None:
            nothing = np.zeros(0)
            earlier = Reached(thetas, nothing, nothing, False) if beneath(self.resume, "attempts/1") else None
            self.count, self.earlier = restored((0, earlier), beneath(self.resume, "attempts"))

    def begun(self, like: Callable[[int], PyTree]) -> PyTree:
        """The saved state of this attempt's climbs; None if there is none.

        Args:
            like: gives the state's structure for a number of values.
        """
        now = {} if self.resume is None else beneath(self.resume, "now")
        self.resume = None
        return restored(like(len(now.get("values", ()))), now) if now else None

    def save(self, now: PyTree, at_once: bool = False) -> None:
        """Save the state of this attempt's climbs, if a save is due."""
        self.keep(lambda: {"attempts": (self.count, self.earlier), "now": now()}, at_once=at_once)

    def again(self, reached: "Reached") -> None:
        """Begin another attempt, saved together with the end points so far."""
        self.count, self.earlier = self.count + 1, reached


def settled(
    gain: jax.Array, before: jax.Array, objective: jax.Array, tolerance: float, size: ArrayLike = 1
) -> tuple[jax.Array, jax.Array]:
    """The gain still to come, and whether it is small: gains that shrink by a factor r add r/(1 − r) times the last.

    ``size`` rows, of about a nat each, are added to the objective, and rounded even where their sum is near 0.
    """
    rate = jnp.clip(gain / jnp.where(before > 0, before, jnp.inf), 0, 0.999)
    rate = jnp.where(before > 0, rate, 0.999)
    to_come = jnp.abs(gain) * rate / (1 - rate)
    scale = jnp.maximum(jnp.abs(objective), 1.0)
    digit = jnp.finfo(jnp.result_type(objective)).eps * jnp.maximum(scale, size)
    # EM falls by rounding only, so after a fall gains of that size are rounding too.
    rounding = jnp.where((gain < 0) | (before < 0), FALLEN, ROUNDING) * digit
    none = jnp.abs(gain) <= rounding  # rounding, from which nothing can be extrapolated
    return jnp.where(none, 0.0, to_come), none | (to_come <= tolerance * scale)


def climb_in_memory(method: Any, model: Any, session: Session, thetas: PyTree, attempts: SavedAttempts) -> Reached:
    """Climb from every start to its end, side by side."""
    placement = session.placement
    rows, mask = placement.rows_and_counts(session.data)
    size, steps = session.data.size, method.steps
    method = dataclasses.replace(method, steps=1, starts=1)  # fields that the compiled program does not use
    states = jax.vmap(lambda theta: method.kernel(model, None, None).init(session.key, theta))(thetas)
    count = jax.tree.leaves(thetas)[0].shape[0]
    zero = jnp.zeros(count, states.objective.dtype)
    now, traces, stopped = Climbing(states, thetas, zero, zero + jnp.inf, zero > 0, zero > 0, jnp.array(0)), [], False
    begun = attempts.begun(lambda _: (now, np.zeros(0)))
    if begun is not None:
        now, traces = begun[0], [begun[1]]

    def standing() -> PyTree:
        return now, np.concatenate(traces, 1)

    while not stopped and int(now.time) < steps and not bool(jnp.all(now.done)):
        now, trace = segment(method, model, placement, size, rows, mask, now, jnp.array(steps))
        traces.append(np.asarray(trace))
        stopped = session.stop()
        attempts.save(standing, at_once=stopped)
        session.say("climbing", int(now.time), steps, {"objective": float(np.nanmax(traces[-1][:, 0]))})
    attempts.save(standing, at_once=True)
    trace = np.concatenate(traces, 1)[:, : int(now.time)]
    theta = now.states.position
    values = _objectives(method, model, placement, size, rows, mask, theta)
    theta = _each_where(jnp.isfinite(values), theta, now.good)  # the last step may have become non-finite
    finite = [row[np.isfinite(row)] for row in trace]
    last = np.array([row[-1] if len(row) else np.nan for row in finite])
    return Reached(
        placement.collect(theta), np.where(np.isfinite(values), values, last).astype(np.float64), trace, stopped
    )


_each_where = jax.jit(jax.vmap(tree.where))


@compiled("method", "model", "placement", "size")
def segment(
    method: Any,
    model: Any,
    placement: OneDevice,
    size: int,
    rows: PyTree,
    mask: jax.Array | None,
    now: Climbing,
    last: jax.Array,
) -> tuple[Climbing, jax.Array]:
    """Step until ``last`` or until every climb has settled: the state, and the objectives (start, SEGMENT)."""
    kernel = em(_e_step(method, model, placement), method.halves(model)[1], method.log_prior(model))
    batch = whole(rows) if mask is None else Batch(rows, mask, size)
    count, total = now.done.shape[0], jnp.sum(batch.counted(jnp.ones_like(batch.mask)))
    trace = jnp.full((SEGMENT, count), jnp.nan, now.gain.dtype)

    def going(carry: tuple) -> jax.Array:
        now, _, i = carry
        return (i < SEGMENT) & (now.time < last) & ~jnp.all(now.done)

    def step(carry: tuple) -> tuple:
        now, trace, i = carry
        states, info = jax.vmap(lambda s: kernel.step(jnp.zeros(0), s, batch))(now.states)
        fine = jax.vmap(tree.all_finite)(states.position) & jnp.isfinite(info.objective)
        to_come, little = settled(info.gain, now.gain, info.objective, method.tolerance, total)
        little = little & (now.time > 1)
        ended = little & now.little
        live = ~now.done
        trace = trace.at[i].set(jnp.where(live, info.objective, jnp.nan))
        keep = live & fine
        good = jax.vmap(tree.where)(keep, now.states.position, now.good)
        now = Climbing(
            jax.vmap(tree.where)(keep, states, now.states),
            good,
            jnp.where(live, info.gain, now.gain),
            jnp.where(live, to_come, now.to_come),
            little,
            now.done | ~fine | ended,
            now.time + 1,
        )
        return now, trace, i + 1

    now, trace, _ = jax.lax.while_loop(going, step, (now, trace, jnp.array(0)))
    return now, trace.T


@compiled("method", "model", "placement", "size")
def _objectives(
    method: Any, model: Any, placement: OneDevice, size: int, rows: PyTree, mask: jax.Array | None, thetas: PyTree
) -> jax.Array:
    """The climbed objective at every θ, (start,)."""
    e_step, prior = _e_step(method, model, placement), method.log_prior(model)
    batch = whole(rows) if mask is None else Batch(rows, mask, size)

    def one(theta: PyTree) -> jax.Array:
        value = e_step(theta, batch).log_likelihood
        return value if prior is None else value + prior(theta)

    return jax.vmap(one)(thetas)


def _e_step(method: Any, model: Any, placement: OneDevice) -> Callable:
    """The E-step of all rows. Closed-form sums go chunk by chunk, on each device over its own rows."""
    e_step = method.halves(model)[0]
    if not method.exact(model):
        return e_step  # its statistics are the rows and their shares; the compiler sums their Q on each device
    return placement.sum_rows(chunked(e_step, method.chunk))


def climb_on_file(method: Any, model: Any, session: Session, thetas: PyTree, attempts: SavedAttempts) -> Reached:
    """Climb from one start after another; every step is one pass over the file, summed in double precision."""
    prior, count = method.log_prior(model), jax.tree.leaves(thetas)[0].shape[0]
    e_step, m_step = method.halves(model)
    e_step = session.placement.sum_rows(e_step)
    improve = jax.jit(m_step)
    starts = [jax.tree.map(lambda a, i=start: a[i], thetas) for start in range(count)]
    nothing, stopped = np.zeros(0), False
    first = ClimbsOnFile([], [], nothing, starts[0], nothing, 0.0, 0)
    now = attempts.begun(lambda ended: first._replace(ends=starts[:ended], traces=[nothing] * ended)) or first
    while len(now.ends) < count:
        found = expected(e_step, now.theta, session.data, method.chunk, place=session.placement.place_chunk)
        value = float(found.log_likelihood) + (0.0 if prior is None else float(prior(now.theta)))
        stopped = session.stop()
        attempts.save(lambda now=now: now, at_once=stopped)  # a resumed run repeats a pass that was not saved
        trace = np.append(now.trace, value)
        gain = float(value - trace[-2]) if len(trace) > 1 else 0.0
        last = [jnp.asarray(v) for v in (gain, now.before, value)]
        little = len(trace) > 2 and bool(settled(*last, method.tolerance, session.data.total)[1])
        calm = now.calm + 1 if little else 0
        if stopped or calm > 1 or len(trace) > method.steps or not math.isfinite(value):
            ended = ([*now.ends, now.theta], [*now.traces, trace[:-1]], np.append(now.values, value))
            now = ClimbsOnFile(*ended, starts[min(len(ended[0]), count - 1)], nothing, 0.0, 0)
            if stopped:
                break
            continue
        improved = improve(found.statistics)
        theta = jax.tree.map(lambda new, old: new.astype(old.dtype), improved, now.theta)
        now = now._replace(theta=theta, trace=trace, before=gain, calm=calm)
        done = len(now.ends) * method.steps + len(trace)
        session.say("climbing", done, count * method.steps, {"objective": value})
    if not stopped:
        attempts.save(lambda: now, at_once=True)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *now.ends)
    return Reached(stacked, now.values, pad_traces(now.traces), stopped)


def with_retries(reached: Reached, again: Reached, taken: np.ndarray) -> Reached:
    """Climbs with the starts in ``taken`` replaced by those of a second attempt."""

    def pick(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(jnp.asarray(taken).reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return Reached(
        jax.tree.map(pick, reached.theta, again.theta),
        np.where(taken, again.objective, reached.objective),
        pad_traces(
            [new if new_one else old for new_one, old, new in zip(taken, reached.trace, again.trace, strict=True)]
        ),
        again.interrupted,
    )
