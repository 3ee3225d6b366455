"""Stochastic gradient ascent in stages, for variational methods.

A stage keeps one learning rate. It is checked after ``WINDOW`` steps or more, and again whenever its length has
doubled. It ends when its noisy bound shows no trend and the average of φ, the parameters of q, over its last quarter
has no better bound than the average over the quarter before. The learning rate then shrinks. The climb ends when each
of two stages in a row gains no more than the tolerance, or no more than chance explains. ``engine.bound`` makes these
comparisons.

A schedule of learning rates takes the place of these rules. Such a climb takes all its steps, whose rates are those of
the schedule, and its stages only measure how much its last part still gains.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable.core import approximations, tree
from tractable.core.batches import split_weights
from tractable.core.model import PyTree
from tractable.core.shared import compiled
from tractable.engine import run as loop
from tractable.engine.ascend import evaluate_schedule
from tractable.engine.bound import SIGMAS, SURE, Bound, evaluation_rows, has_settled
from tractable.engine.climb import Climber, HeldOutBest, LoopState
from tractable.engine.drawing import chain_keys
from tractable.engine.leaves import restore
from tractable.engine.method import Program, Session
from tractable.engine.placement import ONE_DEVICE

WINDOW = 200  # smallest number of steps before a stage is first checked
SHRINK = 0.3  # factor by which the learning rate shrinks from stage to stage
STAGES = 8  # largest number of stages at temperature 1, that is, without tempering of the posterior
STAGE_SHARE = 0.6  # largest share of the remaining steps that one stage may take
SCHEDULED = 3  # number of stages of a climb with a schedule; the last one has a sixth of the steps
# Number of draws of q in a held-out score, and largest number of held-out rows that it reads from file.
DRAWN, HELD_ROWS = 32, 10_000
PATIENCE = 4  # number of clearly worse held-out scores in a row after which a climb may end (docs/decisions/021)
FEW_NUMBERS = 5_000  # with at most this many parameters, held-out rows choose only among states after the first stage
# For the test whether q's sds σ are about the best ones for its means μ (``_suits``): the change of log σ with which a
# derivative is computed, and the largest factor by which −E[(z − μ)·∇log p] / d may differ from 1.
WIDER, SUITED = 0.1, 1.25


class Climb(Program):
    """A program whose position is φ, the parameters of q, instead of the model's parameters."""

    def observe(self, state: PyTree) -> jax.Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state.position)])

    def values(self, position: jax.Array) -> jax.Array:
        return position

    def describe(self, position: jax.Array) -> str:
        return "parameters of q"


class Ascent(NamedTuple):
    """The state of a climb, from which it can be continued exactly.

    The first axis of arrays is that of the starting points. An array without columns stands for a value that does not
    exist yet. A stage runs in pieces of h, h, h, h, 2h, 2h, 4h, 4h … groups of steps, and is checked whenever its
    length has doubled; h is half of ``capacity`` in ``run.Shape``.
    """

    # A LoopState. Its moments are those of φ over the current piece. Its ``peak_states`` are the φ (start, p) of the
    # last state whose held-out score was not clearly worse than the best; None without held-out rows.
    loop: Any
    stage: int  # index of the stage
    begun: int  # groups done when the stage began
    sd: Any  # (d,) standard deviations, which are the unit of steps
    before: np.ndarray  # (start, p) mean of φ over the previous piece
    previous: np.ndarray  # (start, p) average of φ in the previous stage, if its temperature was 1
    gain: float  # gain of the last stage over the one before, in nats (units of the natural logarithm)
    error: float  # standard error of ``gain``
    small: int  # number of stages in a row, up to the last one, without gain
    cut: bool  # whether a stage used up its steps before its bound settled
    anchor: dict[str, Any]  # the method's ``anchor``, the fixed values of its control variates; may be empty

    @property
    def groups(self) -> int:
        """The groups of steps done since the climb began."""
        return self.loop.groups

    def on(self, **changes: Any) -> "Ascent":
        """The state with some fields of its ``loop`` changed."""
        return self._replace(loop=self.loop._replace(**changes))


class Climbed(NamedTuple):
    """The result of a climb."""

    phi: PyTree  # parameters of q, at the best starting point
    found: dict[str, Any]  # results for the report
    traces: dict[str, np.ndarray]  # traces of the climb from the best starting point
    interrupted: bool


class Problem(NamedTuple):
    """Everything that is fixed during a climb; ``tuned`` is fixed only during a stage."""

    method: Any  # Variational
    climber: Climber
    bound: Bound
    tuned: dict[str, jax.Array]
    like: PyTree  # shapes of one φ
    scheduled: bool  # whether a schedule gives the learning rates
    keep: Callable = lambda run_state, done=0, at_once=False: None  # saves the climb's state

    @property
    def session(self) -> Session:
        return self.climber.session

    @property
    def group(self) -> int:
        """The number of steps in a group."""
        return self.climber.shape.group

    def states(self, phis: PyTree) -> PyTree:
        """The first states of climbs that begin at ``phis``, with a leading axis of starting points."""
        alone = self.climber.program._replace(placement=ONE_DEVICE)
        return loop.begin(alone, self.tuned, self.bound.batches()[1], self.climber.keys, phis)

    def vector(self, phis: PyTree) -> np.ndarray:
        """(start, p) the φ of all starting points as vectors."""
        return np.concatenate([np.asarray(a).reshape(len(a), math.prod(a.shape[1:])) for a in jax.tree.leaves(phis)], 1)

    def tree(self, vectors: np.ndarray) -> PyTree:
        """The inverse of ``vector``; both use NumPy, so nothing is compiled."""
        leaves, structure = jax.tree.flatten(self.like)
        parts = np.split(vectors, np.cumsum([leaf.size for leaf in leaves])[:-1], 1)
        shaped = [np.reshape(a, (len(a), *leaf.shape)) for a, leaf in zip(parts, leaves, strict=True)]
        return jax.device_put(jax.tree.unflatten(structure, shaped))


def climb_in_stages(method: Any, session: Session) -> Climbed:
    """Climb a method's objective from its starting points, or continue from ``session.resume`` if that is given."""
    start_key, run_key = jax.random.split(session.key)
    problem, at = _prepare(method, session, start_key, run_key)
    most = -(-method.most(problem.climber.plan) // problem.group)
    problem = problem._replace(keep=session.keeper(at.groups, most))
    cut = SHRINK if method.optimizer in ("adam", "newton") else 1.0
    first = 1.0 if callable(method.learning_rate) else method.learning_rate  # programs call a schedule themselves
    stages = [(first, t) for t in method.tempering]  # (learning rate, temperature)
    stages += [(first * cut**k, 1.0) for k in range(SCHEDULED if problem.scheduled else STAGES)]
    while True:
        rate, temperature = stages[at.stage]
        tuned = {"learning_rate": number(rate), "temperature": number(temperature), "sd": jax.device_put(at.sd)}
        tuned |= {"anchor": jax.device_put(at.anchor)} if at.anchor else {}
        problem = problem._replace(tuned=tuned)
        is_last = problem.scheduled and at.stage == len(stages) - 1
        at, interrupted = _stage(problem, at, most, 1.0 if is_last else STAGE_SHARE)
        averaged = _average(problem, at)
        if interrupted or _has_passed_peak(at):
            return _choose(problem, at, averaged, interrupted)
        at = _compare(problem, at, averaged, temperature)
        if (at.small == 2 and not problem.scheduled) or at.groups >= most or at.stage == len(stages):
            return _choose(problem, at, at.previous if at.previous.size else averaged, False)
        problem.keep(lambda at=at: at, at.groups, at_once=True)


def _prepare(method: Any, session: Session, start_key: jax.Array, run_key: jax.Array) -> tuple[Problem, Ascent]:
    """The fixed parts of a climb, and its first state or the state that was saved."""
    model, data, plan = session.model, session.data, method.plan(session.data)
    if callable(method.learning_rate):
        evaluate_schedule(f"{type(method).__name__}(learning_rate=...)", method.learning_rate, method.most(plan))
    program = Climb(model, method, plan is not None and not data.resident, placement=session.placement)
    rows = None if data is None or plan is not None else data.arrays()
    bound_data = data if data is None or plan is None else evaluation_rows(data, plan)
    bound = Bound(program._replace(placement=ONE_DEVICE), plan, bound_data, rows, run_key)
    keys = chain_keys(run_key, method.starts)
    tuned = {"learning_rate": number(1.0), "temperature": number(1.0)}
    wide = jax.ShapeDtypeStruct((method.starts, model.space.size), number(0.0).dtype)
    shapes = jax.eval_shape(functools.partial(method.positions, model), wide, wide)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), shapes)
    shape = method.shape(model, data, plan, shapes)
    climber = Climber(session, "climbing the bound", program, shape, plan, keys, method.long)
    scheduled = callable(method.learning_rate) or has_schedule(method.optimizer, like)
    problem = Problem(method, climber, bound, tuned, like, scheduled)
    if session.resume is not None:
        sd = jax.ShapeDtypeStruct((model.space.size,), wide.dtype)
        states = jax.eval_shape(lambda t, p: problem._replace(tuned=t).states(p), tuned | {"sd": sd}, shapes)
        nothing = np.zeros((method.starts, 0))
        like = _first(problem, states, nothing[0], nothing, {}).on(moments=loop.some_moments())
        if session.held_out is not None:
            like = like.on(peak=HeldOutBest.of(nothing[0]), peak_states=nothing)
        return problem, restore(like, session.resume)
    means, sds = method.begin(session, start_key)
    positions = method.positions(model, means, sds)
    tuned["sd"], anchor = sds[0], method.anchor(session, means, sds)
    tuned |= {"anchor": anchor} if anchor else {}
    states = problem._replace(tuned=tuned).states(positions)
    first = _first(problem, states, np.asarray(sds[0]), np.zeros((method.starts, 0)), anchor)
    if session.held_out is None:
        return problem, first
    phis = problem.vector(positions)
    return problem, first.on(peak=HeldOutBest.of(_held_out_scores(problem, phis)), peak_states=phis)


def _first(problem: Problem, states: PyTree, sd: np.ndarray, nothing: np.ndarray, anchor: dict[str, Any]) -> Ascent:
    """The state of a climb before its first step."""
    return Ascent(
        LoopState(0, states, {"objective": nothing}, _no_moments(problem)), stage=0, begun=0, sd=sd, before=nothing,
        previous=nothing, gain=math.inf, error=0.0, small=0, cut=False, anchor=anchor,
    )  # fmt: skip


def _no_moments(problem: Problem) -> loop.Moments:
    """Empty running moments of φ."""
    starts, size = problem.method.starts, tree.size(problem.like)
    dtype = jax.tree.leaves(problem.like)[0].dtype
    zeros = np.zeros((starts, size), dtype)
    return loop.Moments(*jax.device_put((np.zeros(starts, jnp.result_type(float)), zeros, zeros)))


def next_check(done: int, half: int) -> int:
    """The end of the piece after ``done`` groups of a stage: the first of h, 2h, 3h, 4h, 6h, 8h … above ``done``."""
    ends = (end for k in itertools.count() for end in ((half << k, 3 * half << k >> 1) if k else (half,)))
    return next(end for end in ends if end > done)


def _stage(problem: Problem, at: Ascent, most: int, share: float) -> tuple[Ascent, bool]:
    """Run one stage until it ends or is interrupted, and return its state and whether it was interrupted.

    It takes at most ``share`` of the steps that remain, and with a schedule no fewer.
    """
    session, shape = problem.session, problem.climber.shape
    limit = at.begun + max(1, math.ceil(share * (most - at.begun)))
    half = max(1, shape.capacity // 2)
    while at.groups < limit:
        end = min(limit, at.begun + next_check(at.groups - at.begun, half))

        def keep(now: LoopState, at: Ascent = at, end: int = end) -> None:
            if now.groups < end:  # the end of a piece is saved only after it is checked
                problem.keep(lambda: at._replace(loop=now), now.groups)

        state, interrupted = problem.climber.advance(at.loop, problem.tuned, end, most, keep)
        at = at._replace(loop=state)
        if interrupted or session.stop():
            if at.groups < end:
                problem.keep(lambda at=at: at, at_once=True)
            return at, True
        if session.held_out is not None:
            at = _score_held_out(problem, at)
            if _has_passed_peak(at):
                return at, False
        parts, after = (at.groups - at.begun) // half, np.asarray(at.loop.moments.mean)
        history = at.loop.info["objective"][:, at.begun * shape.stored :]
        has_doubled = parts > 1 and parts & (parts - 1) == 0
        if has_doubled and not problem.scheduled and has_settled(history):
            gain, error = problem.bound.gain(problem.tuned, problem.tree, at.before, after)
            if not gain > max(problem.method.tolerance, SIGMAS * error):
                return at, False
        if at.groups < limit:
            at = at.on(moments=_no_moments(problem))._replace(before=after)
            problem.keep(lambda at=at: at, at.groups)
    return at._replace(cut=not problem.scheduled), False


def _average(problem: Problem, at: Ascent) -> np.ndarray:
    """(start, p) mean of φ over the last two pieces, or over as much of them as has been run."""
    moments = at.loop.moments
    if moments is None or not np.all(np.asarray(moments.count)):
        return at.before if at.before.size else problem.vector(at.loop.states.position)
    after = np.asarray(moments.mean)
    return (at.before + after) / 2 if at.before.size else after


def _compare(problem: Problem, at: Ascent, averaged: np.ndarray, temperature: float) -> Ascent:
    """The state at the beginning of the next stage, with the gain of this stage over the previous one."""
    tolerance = problem.method.tolerance
    if at.previous.size:
        gain, error = problem.bound.gain(problem.tuned, problem.tree, at.previous, averaged)
        chance = max(tolerance, SIGMAS * error)
        at = at._replace(gain=gain, error=error, small=at.small + 1 if abs(gain) <= chance else 0)
        # The stage made the bound worse: return to the previous stage's φ, and take smaller steps.
        if gain < -chance and not problem.scheduled:
            averaged = at.previous
            at = at.on(states=problem.states(problem.tree(averaged)))
    nothing = np.zeros((len(averaged), 0))
    return at.on(moments=_no_moments(problem))._replace(
        stage=at.stage + 1, begun=at.groups, before=nothing, previous=averaged if temperature == 1.0 else nothing
    )


def _choose(problem: Problem, at: Ascent, averaged: np.ndarray, interrupted: bool) -> Climbed:
    """The result: φ at the best starting point; if rows are held out, the φ that predicted them best."""
    phis = problem.tree(averaged if at.loop.peak_states is None else at.loop.peak_states)
    values = problem.bound.values(problem.tuned, phis)
    best = int(np.argmax(values.mean(1)))
    phi, more = jax.tree.map(lambda a: a[best], phis), {}
    if not interrupted:
        phi, more = problem.method.finish(problem, phi, at.groups * problem.group)
    found = {
        "objective": float(values[best].mean()),
        "gain": at.gain,
        "gain error": at.error,
        "steps": at.groups * problem.group,
        "cut": bool(at.cut),
        "agreement": float(values[best].mean() - values.mean(1).min()),
    } | more
    found |= at.loop.found(problem.group)
    traces = at.loop.traces(problem.group)
    was_stopped = interrupted or problem.session.stop()
    return Climbed(phi, found, traces | {"objective": traces["objective"][best : best + 1]}, was_stopped)


def _score_held_out(problem: Problem, at: Ascent) -> Ascent:
    """The state after the mean φ of the last piece has been scored on the held-out rows.

    The held-out rows choose only among states whose σ suits μ, that is, whose σ is about the best one for their μ. With
    a smaller σ, predictions would not be those of the posterior. σ suits μ after the first stage. With many parameters
    the first stage is long, so its own states count too, once ``_suits`` finds that σ suits μ.
    """
    phis, peak = np.asarray(at.loop.moments.mean), at.loop.peak
    few = problem.session.model.space.size <= FEW_NUMBERS
    begins = peak.groups == 0 or (at.stage == 0 and (few or not _suits(problem, phis)))
    peak, good = peak.after(_held_out_scores(problem, phis), at.groups, SURE, begins)
    return at.on(peak=peak, peak_states=phis if good else at.loop.peak_states)


def _suits(problem: Problem, phis: np.ndarray) -> bool:
    """Whether q has about the standard deviations σ that maximise the bound at its means μ.

    At the best σ, −E[(z − μ)·∇ log p] / d = 1. For any σ the left side is 1 − (∂ bound / ∂ log σ) / d. The derivative
    is computed as a difference on common random numbers.
    """
    if problem.method.divergence == "forward":
        return True  # the test does not apply: this objective is not the bound
    tree = problem.tree(phis)
    wider, less_wide = (
        problem.bound.values(problem.tuned, approximations.widen(tree, math.exp(by))) for by in (WIDER, -WIDER)
    )
    share = 1 - (wider - less_wide).mean(1) / (2 * WIDER) / problem.session.model.space.size
    return bool(np.all(np.abs(np.log(np.maximum(share, 1e-30))) < math.log(SUITED)))


def _has_passed_peak(at: Ascent) -> bool:
    """Whether the climb may end because the predictions of the held-out rows no longer improve.

    It may end once at least ``PATIENCE`` clearly worse scores have followed the last score that was not clearly worse
    than the best, and the climb has taken at least twice as many steps as it had at that score.
    """
    peak = at.loop.peak
    return peak is not None and peak.scorings >= PATIENCE and at.groups >= 2 * peak.groups


def _held_out_scores(problem: Problem, phis: np.ndarray) -> np.ndarray:
    """(m,) log E_q p(y* | x, θ) of each held-out row, for the starting point that predicts these rows best."""
    model, held_out = problem.session.model, problem.session.held_out
    scored = held_out if held_out.resident else held_out.take(slice(0, HELD_ROWS))
    rows, key, scores = scored.arrays(), problem.bound.key, []
    for i in range(len(phis)):
        phi = problem.method.flat(model, jax.tree.map(lambda a, i=i: a[i], problem.tree(phis)))
        scores.append(np.asarray(_score(problem.climber.program, phi, rows, key), np.float64))
    return max(scores, key=np.sum)


@compiled("program")
def _score(program: Climb, phi: PyTree, rows: PyTree, key: jax.Array) -> jax.Array:
    model, method = program.model, program.method
    q = method.family(model.space.size)  # pyright: ignore[reportAttributeAccessIssue]
    eps = jax.random.normal(key, (DRAWN, q.noise), phi["mean"].dtype)
    unweighted, weights = split_weights(rows)

    def one(eps: jax.Array) -> jax.Array:
        return model.log_likelihoods(model.params(q.sample(phi, eps)), unweighted)

    log_scores = jax.nn.logsumexp(jax.lax.map(one, eps), axis=0) - math.log(DRAWN)
    return log_scores if weights is None else weights * log_scores


def has_schedule(optimizer: optax.GradientTransformation | str, like: PyTree) -> bool:
    """Whether an optax optimiser has a schedule of learning rates, for which its state counts steps.

    Args:
        optimizer: the optimiser, or the name of one that has no schedule.
        like: shapes of the parameters.
    """
    if isinstance(optimizer, str):
        return False
    kinds = optax.ScaleByScheduleState, optax.schedules.InjectStatefulHyperparamsState
    parts = jax.tree.leaves(jax.eval_shape(optimizer.init, like), is_leaf=lambda part: isinstance(part, kinds))
    return any(isinstance(part, kinds) for part in parts)


def number(value: float) -> jax.Array:
    """A float of JAX's default precision."""
    return jnp.asarray(value, jnp.result_type(float))
