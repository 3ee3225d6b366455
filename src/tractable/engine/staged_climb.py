"""Stochastic ascent in stages. A stage ends when its noisy bound shows no trend; the climb is saved as it goes.

A stage keeps one learning rate. It is checked after ``WINDOW`` steps, and again whenever its length has doubled. It
ends when its noisy bound shows no trend and the average φ of its last quarter gains nothing on that of the quarter
before. The rate then shrinks. The climb ends when two stages in a row gain no more than the tolerance, or than chance.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import approximations, tree
from tractable.core.model import Objective, PyTree
from tractable.core.rows import SHUFFLE, Data, Plan, place, split_weights, window
from tractable.core.shared import compiled
from tractable.engine import run as loop
from tractable.engine.climb import Climber, HeldOutBest, LoopState
from tractable.engine.drawing import chain_keys
from tractable.engine.leaves import restored
from tractable.engine.method import Program, Session
from tractable.engine.placement import ONE_DEVICE

WINDOW = 200  # steps before a stage is first checked
SHRINK = 0.3  # factor of the learning rate from stage to stage
STAGES = 8
STAGE_SHARE = 0.6  # largest share of the remaining steps that one stage may take
EVALUATED, FEW = 1000, 100  # paired draws of the bound that compare two stages; FEW where φ is large
LARGE = 200_000  # numbers in φ above which it is large
GRADIENTS = 32  # gradient estimates that compare the mean gradient with its noise
SIGMAS = 2.0  # standard errors, in the tests on the noisy bound
DRAWN, HELD_ROWS = 32, 10_000  # draws of q, and most held-out rows read from file, in the held-out score
PATIENCE = 4  # looks in a row at worse held-out predictions after which a climb may end
FEW_NUMBERS = 5_000  # parameters up to which held-out rows choose among states after the first stage alone
SURE = 3.0  # standard errors beyond which a difference is no chance: of held-out scores, of what a run still rises
WIDER, SUITED = 0.1, 1.25  # by how much log σ is moved to see whether σ suits μ, and the factor by which it may not
FLAT = 0.1  # share of what a trace has risen that it may still rise from the third to the fourth quarter of its way
BATCHES = 5  # batch means per half of a trace, which give its standard error


class Climb(Program):
    """A program whose position is φ, the parameters of q, instead of the model's."""

    def observe(self, state: PyTree) -> jax.Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state.position)])

    def values(self, position: jax.Array) -> jax.Array:
        return position

    def describe(self, position: jax.Array) -> str:
        return "parameters of q"


class Ascent(NamedTuple):
    """The state of a climb: enough to continue it exactly. Arrays lead with the starts; no columns means no value yet.

    A stage runs in pieces of h, h, h, h, 2h, 2h, 4h, 4h … groups; it is checked whenever its length has doubled.
    """

    loop: Any  # LoopState: moments are of φ over the current piece; kept is (start, p) φ at the best held-out score
    stage: int
    begun: int  # groups done when the stage began
    sd: Any  # (d,) standard deviations, the unit of steps
    before: np.ndarray  # mean of φ over the piece before
    previous: np.ndarray  # average φ of the stage before, if that was at temperature 1
    gain: float  # nats that the last stage gained on the one before
    error: float
    small: int  # stages in a row without gain
    cut: bool  # whether a stage used up its steps before it settled
    signal: float  # of the gradient, at the starting point
    anchor: dict[str, Any]  # what batches are corrected by, or nothing

    @property
    def groups(self) -> int:
        """Groups done since the beginning."""
        return self.loop.groups

    def on(self, **changes: Any) -> "Ascent":
        """The state with changes of its loop's."""
        return self._replace(loop=self.loop._replace(**changes))


class Climbed(NamedTuple):
    """The result of a climb."""

    phi: PyTree
    found: dict[str, Any]
    traces: dict[str, np.ndarray]  # of the best start
    interrupted: bool


class Problem(NamedTuple):
    """What is fixed during a climb; ``tuned`` is fixed during a stage."""

    method: Any  # Variational
    climber: Climber
    bound: "Bound"
    tuned: dict[str, jax.Array]
    like: PyTree  # one φ
    keep: Callable = lambda run_state, done=0, at_once=False: None  # saves the climb's state

    @property
    def session(self) -> Session:
        return self.climber.session

    @property
    def plan(self) -> Plan | None:
        return self.climber.plan

    @property
    def keys(self) -> jax.Array:
        return self.climber.keys

    @property
    def group(self) -> int:
        """Steps in a group."""
        return self.climber.shape.group

    def states(self, phis: PyTree) -> PyTree:
        """The first states of climbs that begin at φ, with a leading axis of starts."""
        alone = self.climber.program._replace(placement=ONE_DEVICE)
        return loop.begin(alone, self.tuned, self.bound.within()[1], self.keys, phis)

    def vector(self, phis: PyTree) -> np.ndarray:
        """φ with a leading axis of starts, as vectors (start, p)."""
        return np.concatenate([np.asarray(a).reshape(len(a), math.prod(a.shape[1:])) for a in jax.tree.leaves(phis)], 1)

    def tree(self, vectors: np.ndarray) -> PyTree:
        """The way back; like ``vector`` by NumPy, which has nothing to compile."""
        leaves, structure = jax.tree.flatten(self.like)
        parts = np.split(vectors, np.cumsum([leaf.size for leaf in leaves])[:-1], 1)
        shaped = [np.reshape(a, (len(a), *leaf.shape)) for a, leaf in zip(parts, leaves, strict=True)]
        return jax.device_put(jax.tree.unflatten(structure, shaped))


def climb_in_stages(method: Any, session: Session) -> Climbed:
    """Climb a method's objective from its starting points, or continue from ``session.resume`` if that is given."""
    start_key, run_key = jax.random.split(session.key)
    problem, at = _begun(method, session, start_key, run_key)
    most = -(-method.most(problem.plan) // problem.group)
    problem = problem._replace(keep=session.keeper(at.groups, most))
    cut = SHRINK if method.optimizer == "adam" else 1.0
    stages = [(method.learning_rate, t) for t in method.tempering]  # (learning rate, temperature)
    stages += [(method.learning_rate * cut**k, 1.0) for k in range(STAGES)]
    while True:
        rate, temperature = stages[at.stage]
        tuned = {"learning_rate": number(rate), "temperature": number(temperature), "sd": jax.device_put(at.sd)}
        tuned |= {"anchor": jax.device_put(at.anchor)} if at.anchor else {}
        problem = problem._replace(tuned=tuned)
        at, interrupted = _stage(problem, at, most)
        averaged = _average(problem, at)
        if interrupted or _over(at):
            return _chosen(problem, at, averaged, interrupted)
        at = _compared(problem, at, averaged, temperature)
        if at.small == 2 or at.groups >= most or at.stage == len(stages):
            return _chosen(problem, at, at.previous if at.previous.size else averaged, False)
        problem.keep(lambda at=at: at, at.groups, at_once=True)


def _begun(method: Any, session: Session, start_key: jax.Array, run_key: jax.Array) -> tuple[Problem, Ascent]:
    model, data, plan = session.model, session.data, method.plan(session.data)
    program = Climb(model, method, plan is not None and not data.resident, placement=session.placement)
    rows = None if data is None or plan is not None else data.arrays()
    judged = data if data is None or plan is None else judged_on(data, plan)
    bound = Bound(program._replace(placement=ONE_DEVICE), plan, judged, rows, run_key)
    keys = chain_keys(run_key, method.starts)
    tuned = {"learning_rate": number(method.learning_rate), "temperature": number(1.0)}
    wide = jax.ShapeDtypeStruct((method.starts, model.space.size), number(0.0).dtype)
    shapes = jax.eval_shape(functools.partial(method.positions, model), wide, wide)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), shapes)
    climber = Climber(session, "climbing the bound", program, method.shape(model, data, plan, shapes), plan, keys)
    problem = Problem(method, climber, bound, tuned, like)
    if session.resume is not None:
        sd = jax.ShapeDtypeStruct((model.space.size,), wide.dtype)
        states = jax.eval_shape(lambda t, p: problem._replace(tuned=t).states(p), tuned | {"sd": sd}, shapes)
        nothing = np.zeros((method.starts, 0))
        like = _first(problem, states, nothing[0], nothing, 0.0, {}).on(moments=loop.some_moments())
        if session.held_out is not None:
            like = like.on(peak=HeldOutBest.of(nothing[0]), peak_states=nothing)
        return problem, restored(like, session.resume)
    means, sds = method.begin(session, start_key)
    positions = method.positions(model, means, sds)
    tuned["sd"], anchor = sds[0], method.anchor(session, means, sds)
    tuned |= {"anchor": anchor} if anchor else {}
    signal = bound.signal(tuned, jax.tree.map(lambda a: a[0], positions))
    states = problem._replace(tuned=tuned).states(positions)
    first = _first(problem, states, np.asarray(sds[0]), np.zeros((method.starts, 0)), signal, anchor)
    if session.held_out is None:
        return problem, first
    begun = problem.vector(positions)
    return problem, first.on(peak=HeldOutBest.of(_predicted(problem, begun)), peak_states=begun)


def _first(
    problem: Problem, states: PyTree, sd: np.ndarray, nothing: np.ndarray, signal: float, anchor: dict[str, Any]
) -> Ascent:
    """The state of a climb before its first step."""
    return Ascent(
        LoopState(0, states, {"objective": nothing}, _no_moments(problem)), stage=0, begun=0, sd=sd, before=nothing,
        previous=nothing, gain=math.inf, error=0.0, small=0, cut=False, signal=signal, anchor=anchor,
    )  # fmt: skip


def _no_moments(problem: Problem) -> loop.Moments:
    starts, size = problem.method.starts, tree.size(problem.like)
    dtype = jax.tree.leaves(problem.like)[0].dtype
    zeros = np.zeros((starts, size), dtype)
    return loop.Moments(*jax.device_put((np.zeros(starts, jnp.result_type(float)), zeros, zeros)))


def next_check(done: int, half: int) -> int:
    """The end of the piece that holds group ``done`` of a stage: the first of h, 2h, 3h, 4h, 6h, 8h … beyond it."""
    ends = (end for k in itertools.count() for end in ((half << k, 3 * half << k >> 1) if k else (half,)))
    return next(end for end in ends if end > done)


def _stage(problem: Problem, at: Ascent, most: int) -> tuple[Ascent, bool]:
    """Run one stage to its end, or until interrupted: its state, and whether it was interrupted."""
    session, shape = problem.session, problem.climber.shape
    room = at.begun + max(1, math.ceil(STAGE_SHARE * (most - at.begun)))  # the remaining groups are for smaller steps
    half = max(1, shape.capacity // 2)
    while at.groups < room:
        end = min(room, at.begun + next_check(at.groups - at.begun, half))

        def keep(now: LoopState, at: Ascent = at, end: int = end) -> None:
            if now.groups < end:  # never save the end of a piece that was not checked
                problem.keep(lambda: at._replace(loop=now), now.groups)

        state, interrupted = problem.climber.advance(at.loop, problem.tuned, end, most, keep)
        at = at._replace(loop=state)
        if interrupted or session.stop():
            if at.groups < end:
                problem.keep(lambda at=at: at, at_once=True)
            return at, True
        if session.held_out is not None:
            at = _look_at_held_out(problem, at)
            if _over(at):
                return at, False
        parts, after = (at.groups - at.begun) // half, np.asarray(at.loop.moments.mean)
        history = at.loop.info["objective"][:, at.begun * shape.stored :]
        is_doubled = parts > 1 and parts & (parts - 1) == 0
        gains = functools.partial(problem.bound.gains, problem.tuned, problem.tree, at.before, after)
        if is_doubled and settled(history) and not gains(problem.method.tolerance):
            return at, False
        if at.groups < room:
            at = at.on(moments=_no_moments(problem))._replace(before=after)
            problem.keep(lambda at=at: at, at.groups)
    return at._replace(cut=True), False


def _average(problem: Problem, at: Ascent) -> np.ndarray:
    """(start, p) mean of φ over the last two pieces, as far as they go."""
    moments = at.loop.moments
    if moments is None or not np.all(np.asarray(moments.count)):
        return at.before if at.before.size else problem.vector(at.loop.states.position)
    after = np.asarray(moments.mean)
    return (at.before + after) / 2 if at.before.size else after


def _compared(problem: Problem, at: Ascent, averaged: np.ndarray, temperature: float) -> Ascent:
    """The state at the next stage's beginning, with what this stage gained on the one before."""
    tolerance = problem.method.tolerance
    if at.previous.size:
        gain, error = problem.bound.gain(problem.tuned, problem.tree, at.previous, averaged)
        chance = max(tolerance, SIGMAS * error)
        at = at._replace(gain=gain, error=error, small=at.small + 1 if abs(gain) <= chance else 0)
        if gain < -chance:  # it drifted off: return, and take smaller steps
            averaged = at.previous
            at = at.on(states=problem.states(problem.tree(averaged)))
    nothing = np.zeros((len(averaged), 0))
    return at.on(moments=_no_moments(problem))._replace(
        stage=at.stage + 1, begun=at.groups, before=nothing, previous=averaged if temperature == 1.0 else nothing
    )


def _chosen(problem: Problem, at: Ascent, averaged: np.ndarray, interrupted: bool) -> Climbed:
    """The best start's φ, and figures about the climb; with held-out rows, the φ that predicted them best."""
    pair = problem.tree(averaged if at.loop.peak_states is None else at.loop.peak_states)
    values = problem.bound.values(problem.tuned, pair)
    best = int(np.argmax(values.mean(1)))
    phi, more = jax.tree.map(lambda a: a[best], pair), {}
    if not interrupted:
        phi, more = problem.method.closed(problem, phi, at.groups * problem.group)
    found = {
        "objective": float(values[best].mean()),
        "gain": at.gain,
        "gain error": at.error,
        "steps": at.groups * problem.group,
        "cut": bool(at.cut),
        "agreement": float(values[best].mean() - values.mean(1).min()),
        "signal at start": at.signal,
        "signal": problem.bound.signal(problem.tuned, phi),
    } | more
    found |= at.loop.found(problem.group)
    traces = at.loop.traces(problem.group)
    over = interrupted or problem.session.stop()
    return Climbed(phi, found, traces | {"objective": traces["objective"][best : best + 1]}, over)


def _look_at_held_out(problem: Problem, at: Ascent) -> Ascent:
    """The state after a look at the held-out rows, which the mean φ of the last piece predicts.

    They choose among states whose σ suits μ: where it is too narrow, predictions say nothing of the posterior's. These
    are the states after the first stage; where weights are many it takes long, and those on its way count too.
    """
    now, peak = np.asarray(at.loop.moments.mean), at.loop.peak
    few = problem.session.model.space.size <= FEW_NUMBERS
    begins = peak.groups == 0 or (at.stage == 0 and (few or not _suits(problem, now)))
    peak, good = peak.after(_predicted(problem, now), at.groups, SURE, begins)
    return at.on(peak=peak, peak_states=now if good else at.loop.peak_states)


def _suits(problem: Problem, phis: np.ndarray) -> bool:
    """Whether q is as wide as the bound wants it, for its means: −E[(z − μ)·∇ log p] / d = 1 at the optimum.

    That is 1 − ∂ bound/∂ log σ / d, by differences on common random numbers.
    """
    if problem.method.divergence == "forward":
        return True  # its objective is no function of q's width alone
    tree = problem.tree(phis)
    wider, less_wide = (
        problem.bound.values(problem.tuned, approximations.widen(tree, math.exp(by))) for by in (WIDER, -WIDER)
    )
    share = 1 - (wider - less_wide).mean(1) / (2 * WIDER) / problem.session.model.space.size
    return bool(np.all(np.abs(np.log(np.maximum(share, 1e-30))) < math.log(SUITED)))


def _over(at: Ascent) -> bool:
    """Whether the climb has gone twice as far as the φ that predicts the held-out rows best."""
    peak = at.loop.peak
    return peak is not None and peak.scorings >= PATIENCE and at.groups >= 2 * peak.groups


def _predicted(problem: Problem, phis: np.ndarray) -> np.ndarray:
    """(m,) log p(y* | x) of held-out rows, p averaged over draws of q, at the start that predicts best."""
    model, held_out = problem.session.model, problem.session.held_out
    seen = held_out if held_out.resident else held_out.take(slice(0, HELD_ROWS))
    each = [jax.tree.map(lambda a, i=i: a[i], problem.tree(phis)) for i in range(len(phis))]
    rows, key = seen.arrays(), problem.bound.key
    scores = [
        np.asarray(_score(problem.climber.program, problem.method.flat(model, phi), rows, key), np.float64)
        for phi in each
    ]
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


def judged_on(data: Data, plan: Plan) -> Data:
    """Rows in memory that stand for rows on file where the bound is judged: some at random, each counting for more."""
    if data.resident:
        return data
    most = max(plan.width, loop.BUFFER_BYTES * data.size // max(data.nbytes, 1))
    drawn = np.random.default_rng(SHUFFLE).integers(0, data.size, min(most, EVALUATED * plan.width))
    some = data.take(np.unique(drawn))
    some.weights = np.full(some.size, data.size / some.size) * (1 if some.weights is None else some.weights)
    return some


class Bound(NamedTuple):
    """Evaluates the bound apart from the climb, on its own noise and batches."""

    program: Climb
    plan: Plan | None
    data: Any  # Data, or None
    rows: PyTree
    key: jax.Array

    def within(self) -> tuple[Plan | None, PyTree]:
        """Plan and rows in memory; for data on file, those of ``judged_on``."""
        if self.plan is None:
            return None, self.rows
        plan = Plan(self.data.size, min(self.plan.batch_size, self.data.size), self.plan.independent)
        return plan, self.data.windows(plan.width)

    def values(self, tuned: PyTree, phis: PyTree) -> np.ndarray:
        """(start, draw) noisy bounds of every start's φ, on random numbers that are the same in every call."""
        plan, rows = self.within()
        return np.asarray(_values(self.program, plan, tuned, rows, phis, self.key), np.float64)

    def gain(self, tuned: PyTree, unravel: Callable, before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
        """The gain of ``after`` (start, p) on ``before`` at the start that gains most surely, and its error."""
        values, values_before = (
            self.values(tuned, unravel(phis)) for phis in (after, before)
        )  # one program for all looks
        gains = values - values_before
        errors = gains.std(1, ddof=1) / math.sqrt(gains.shape[1])
        worst = int(np.argmax(gains.mean(1) - SIGMAS * errors))
        return float(gains[worst].mean()), float(errors[worst])

    def gains(self, tuned: PyTree, unravel: Callable, before: np.ndarray, after: np.ndarray, tolerance: float) -> bool:
        """Whether ``after`` gains more than the tolerance and more than chance."""
        gain, error = self.gain(tuned, unravel, before, after)
        return gain > max(tolerance, SIGMAS * error)

    def signal(self, tuned: PyTree, phi: PyTree) -> float:
        """‖E g‖² / tr Cov g of one step's gradient estimate."""
        plan, rows = self.within()
        return float(_signal(self.program, plan, tuned, rows, phi, self.key))


def number(value: float) -> jax.Array:
    """A float of JAX's default precision."""
    return jnp.asarray(value, jnp.result_type(float))


def settled(history: np.ndarray) -> bool:
    """Whether the last half of a noisy trace (start, window) shows no upward trend.

    The means of its two halves then differ by less than ``SIGMAS`` standard errors. The errors come from batch means,
    which allow for dependence between neighbouring steps.
    """
    tail = history[:, history.shape[1] // 2 :]
    half = tail.shape[1] // 2
    if half < BATCHES:
        return False
    gain, error = _rise(tail[:, :half], tail[:, -half:])
    return bool(np.all(gain <= SIGMAS * error))


def is_flat(history: np.ndarray, pace: np.ndarray) -> bool:
    """Whether a noisy trace (start, step) shows that it has stopped rising, and not only that noise hides its rise.

    A run is divided into quarters of its way; ``pace`` (step,) is the length of each step.
    What it rose from the third part to the fourth is less than a tenth of what it rose from the first tenth to these,
    both beyond chance. An exponential approach is then at 96 % of its way.
    """
    way = np.cumsum(pace) / np.sum(pace)
    begin, middle, last = (history[:, (low < way) & (way <= high)] for low, high in ((0, 0.1), (0.5, 0.75), (0.75, 1)))
    if min(begin.shape[1] * BATCHES, middle.shape[1], last.shape[1]) < BATCHES:
        return False
    gain, error = _rise(middle, last)
    risen = middle.mean(1) + gain / 2 - begin.mean(1)
    unsure = error * math.sqrt(1 + middle.shape[1] / begin.shape[1])  # by the later noise: the first part rises
    return bool(np.all(gain + SURE * error <= FLAT * (risen - SURE * unsure)))


def _rise(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start,) difference of the means of two parts (start, step) of a trace, and its standard error by batch means."""

    def squared(x: np.ndarray) -> np.ndarray:
        width = x.shape[1] // BATCHES
        means = x[:, : width * BATCHES].reshape(len(x), BATCHES, width).mean(2)
        return means.var(1, ddof=1) / BATCHES

    return last.mean(1) - first.mean(1), np.sqrt(squared(first) + squared(last))


@compiled("program", "plan")
def _values(program: Climb, plan: Plan | None, tuned: PyTree, rows: PyTree, phis: PyTree, key: jax.Array) -> jax.Array:
    method: Any = program.method
    objective = method.objective(program.model, rows, tuned)
    first = jax.tree.map(lambda a: a[0], phis)

    def once(t: jax.Array) -> jax.Array:
        batch = None if plan is None else window(rows, plan, *place(plan, key, t))
        noise = jax.tree.map(lambda a: a[0], objective.draw(jax.random.fold_in(key, t), 1, first))
        return jax.vmap(lambda phi: objective.value(noise, phi, batch))(phis)

    return jax.lax.map(once, jnp.arange(EVALUATED if tree.size(first) <= LARGE else FEW)).T


@compiled("program", "plan")
def _signal(program: Climb, plan: Plan | None, tuned: PyTree, rows: PyTree, phi: PyTree, key: jax.Array) -> jax.Array:
    method: Any = program.method
    objective = method.objective(program.model, rows, tuned)
    return signal(objective, plan, rows, phi, objective.remember(phi), key)


def signal(
    objective: Objective, plan: Plan | None, rows: PyTree, params: PyTree, memory: PyTree, key: jax.Array,
    of: Callable[[PyTree], PyTree] = lambda params: params,
) -> jax.Array:  # fmt: skip
    """‖E g‖² / tr Cov g of one step's gradient estimate, from 32 estimates.

    Args:
        memory: the gradient estimator's state.
        of: picks the part of a gradient to measure.
    """

    def once(carry: tuple, t: jax.Array) -> tuple[tuple, None]:
        total, square, memory = carry
        batch = None if plan is None else window(rows, plan, *place(plan, key, t))
        noise = jax.tree.map(lambda a: a[0], objective.draw(jax.random.fold_in(key, t), 1, params))
        if objective.slope is None:
            gradient = jax.grad(objective.value, argnums=1)(noise, params, batch)
        else:
            _, gradient, memory = objective.slope(noise, params, batch, memory)
        gradient = of(gradient)
        return (jax.tree.map(jnp.add, total, gradient), square + tree.dot(gradient, gradient), memory), None

    nothing = jax.tree.map(jnp.zeros_like, of(params))
    start = (nothing, jnp.zeros((), jax.tree.leaves(nothing)[0].dtype), memory)
    (total, square, _), _ = jax.lax.scan(once, start, jnp.arange(GRADIENTS))
    mean = tree.dot(total, total) / GRADIENTS**2
    noise = (square / GRADIENTS - mean) * GRADIENTS / (GRADIENTS - 1)
    return jnp.maximum(mean - noise / GRADIENTS, 0) / jnp.maximum(noise, jnp.finfo(noise.dtype).tiny)
