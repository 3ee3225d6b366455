"""A ladder and its inference network, learnt together on minibatches."""

import functools
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.model import Kernel, Model, Objective, PyTree
from tractable.core.rows import Data, Plan
from tractable.core.settings import Count, Positive
from tractable.core.shared import compiled
from tractable.diagnostics.belief import Belief, Coded, Cost
from tractable.diagnostics.learnt import Learnt
from tractable.engine import run as loop
from tractable.engine.ascend import ascend
from tractable.engine.bound import is_flat, settled, signal
from tractable.engine.climb import HELD_OUT_STEPS, Climber, climb, held_out_best
from tractable.engine.drawing import capacity, chain_keys
from tractable.engine.method import Check, Method, Optimiser, Outcome, Program, Session, plan_batches
from tractable.engine.placement import ONE_DEVICE
from tractable.ladders.bounds import bounds
from tractable.ladders.checks import check_ladder, measure_ladder
from tractable.ladders.ladder import Ladder, ladder_of

FIRST = 10_000  # rows that set the starting biases
LOOKED_AT, DRAWS = 1000, 100  # rows and draws that the report's bounds are computed from
SCORED = 10  # draws per held-out row in the score that ends a climb
LEARNT = ("theta", "phi")  # without parameters of the gradient's estimator


class Amortising(Program):
    """A program whose position is {θ, φ, …}; its trace keeps no positions."""

    def observe(self, state: PyTree) -> jax.Array:
        return jnp.zeros(0)

    def values(self, position: jax.Array) -> jax.Array:
        return position

    def describe(self, position: jax.Array) -> str:
        return "the weights"


class Prepared(NamedTuple):
    """What the loop needs for a climb."""

    program: Amortising
    plan: Plan
    shape: loop.Shape
    groups: int
    tuned: dict[str, jax.Array]
    keys: jax.Array

    def begin(self, first: PyTree) -> PyTree:
        """The loop's first states, from starting parameters with a leading axis of one."""
        return loop.begin(self.program._replace(placement=ONE_DEVICE), self.tuned, None, self.keys, first)


@dataclass(frozen=True, kw_only=True)
class Amortised(Method):
    """The common fields of methods that learn a ladder's θ and its inference network's φ.

    Args:
        epochs: passes over the data; a run ends with a whole block of steps.
        batch_size: rows per step.
        optimizer: "adam", whose learning rate falls to 0 along half a cosine over the run; or an optax optimiser.
        learning_rate: Adam's, at the start.
    """

    point: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True
    pathwise: ClassVar[bool] = False  # differentiates draws of h
    epochs: Count = 100
    batch_size: Count = 100
    optimizer: Literal["adam"] | Optimiser = "adam"
    learning_rate: Positive = 1e-3

    def objective(self, ladder: Ladder) -> Objective:
        """The objective, a function of {"theta": θ, "phi": φ} and of the parameters that ``initial`` adds."""
        raise SettingsError(f"{type(self).__name__} climbs nothing of its own; use AutoEncoding, NVIL or WakeSleep.")

    def needed(self, model: Model) -> Ladder:
        """The ladder; raises ModelError where this method cannot learn the model."""
        name, ladder = type(self).__name__, ladder_of(model)
        if ladder is None:
            raise ModelError(
                f"{name} learns ladders, such as tr.models.latent_gaussian and tr.models.sigmoid_belief_network make; "
                f"got {type(model).__name__}."
            )
        if self.pathwise and ladder.discrete:
            raise ModelError(
                f"{name} differentiates draws of h, and layer {ladder.discrete[0]} is "
                f"{ladder.layers[ladder.discrete[0]].family.name}, whose draws have no derivative. NVIL, VIMCO, "
                "WakeSleep and ReweightedWakeSleep work there."
            )
        return ladder

    def initial(self, ladder: Ladder, key: jax.Array, rows: PyTree) -> dict[str, PyTree]:
        """The climb's starting parameters."""
        return ladder.initial(key, rows)

    def optimiser(self, steps: jax.Array) -> optax.GradientTransformation:
        """The optimiser for a run of ``steps`` steps."""
        if self.optimizer != "adam":
            return self.optimizer
        return optax.adam(lambda t: self.learning_rate * (1 + jnp.cos(jnp.pi * jnp.minimum(t / steps, 1))) / 2)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        return ascend(self.objective(self.needed(model)), self.optimiser(tuned["steps"]))

    def prepare(self, session: Session, key: jax.Array) -> "Prepared":
        """What the loop needs for a climb over all epochs."""
        plan = plan_batches(self, session.data, self.batch_size)
        ladder, streams = self.needed(session.model), not session.data.resident
        program = Amortising(ladder, self, streams, placement=session.placement)
        shape = loop.shape(self.epochs * plan.count, 1, 1, 1)
        shape = shape._replace(capacity=capacity(shape, session, program, 1))
        groups = -(-self.epochs * plan.count // shape.group)
        tuned = {"steps": jnp.asarray(groups * shape.group, jnp.result_type(float))}
        return Prepared(program, plan, shape, groups, tuned, chain_keys(key, 1))

    def learn(self, session: Session) -> Outcome:
        ladder, data = self.needed(session.model), session.data
        start_key, run_key, look_key = jax.random.split(session.key, 3)
        program, plan, shape, groups, tuned, keys = prepared = self.prepare(session, run_key)
        if data.given is not None:
            raise DataError("A ladder takes no inputs: give Data(x) without given=.")
        began = time.perf_counter()
        first = self.initial(ladder, start_key, data.take(slice(0, FIRST)).equally_counted().rows[0])
        first = jax.device_put(jax.tree.map(lambda a: np.asarray(a)[None], first))
        at, interrupted = climb(
            Climber(session, "climbing", program, shape, plan, keys), tuned, lambda: prepared.begin(first), [groups],
            None if session.held_out is None else functools.partial(self._score, ladder, session.held_out, look_key),
        )  # fmt: skip
        climbed = time.perf_counter()
        state = jax.device_put(jax.tree.map(lambda a: np.asarray(a)[0], at.states))
        learnt = {name: state.position[name] for name in LEARNT}
        found = measure_ladder(ladder, learnt, some_rows(data), look_key, DRAWS)
        found["gradient signal"] = signal_at_end(program._replace(placement=ONE_DEVICE), plan, data, state, look_key)
        found |= {"steps": at.groups * shape.group, "settled": self._settled(at.info["objective"])}
        found |= at.found(shape.group)
        seconds = {"climbing": climbed - began, "weighing": time.perf_counter() - climbed}
        point = np.asarray(ladder.space.ravel(state.position["theta"]))
        network = jax.tree.map(np.asarray, state.position["phi"])
        return Outcome(Coded(position=point, info=at.traces(shape.group), network=network), found, seconds, interrupted)

    def _settled(self, trace: np.ndarray) -> bool:
        """Whether a trace (1, step) of a whole run no longer rises. A few steps, or small ones, cannot show it."""
        steps = trace.shape[1]
        pace = 1 + np.cos(np.pi * np.arange(steps) / steps) if self.optimizer == "adam" else np.ones(steps)
        return settled(trace) and is_flat(trace, pace)

    def _score(self, ladder: Ladder, held_out: Data, key: jax.Array, states: PyTree) -> np.ndarray:
        """(m,) ELBO of the held-out rows in nats, at most a thousand of them."""
        params = {name: jax.tree.map(lambda a: a[0], states.position[name]) for name in LEARNT}
        return np.asarray(bounds(ladder, params, some_rows(held_out), key, SCORED).elbo, np.float64)

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        return Cost(found["steps"] * self.share(data) * getattr(self, "samples", 1), 0.0)

    def checks(self, posterior: Learnt) -> list[Check]:
        ladder: Any = posterior.model
        out = check_ladder(posterior.found, ladder.depth)
        found = posterior.found
        if HELD_OUT_STEPS not in found:
            return out
        stopped = found[HELD_OUT_STEPS] < found["steps"]  # later states predicted worse, so that it need not climb on
        return [held_out_best(found), *[check for check in out if check.name != "trend" or not stopped]]


def some_rows(data: Data) -> Data:
    """At most a thousand rows of weight 1 that represent the data."""
    index = np.unique(np.linspace(0, data.size - 1, min(LOOKED_AT, data.size)).astype(int))
    return data.take(index).equally_counted(LOOKED_AT)


def signal_at_end(program: Amortising, plan: Plan, data: Data, state: PyTree, key: jax.Array) -> float:
    """The gradient's signal, for θ and φ, at the climb's end point; for data on file, on the first batch."""
    if not data.resident:
        data = data.take(slice(0, plan.width))
        plan = Plan(data.size, data.size)
    return float(_signal(program, plan, data.windows(plan.width), state, key))


@compiled("program", "plan")
def _signal(program: Amortising, plan: Plan, rows: PyTree, state: PyTree, key: jax.Array) -> jax.Array:
    method: Any = program.method
    objective, params = method.objective(method.needed(program.model)), state.position
    memory = objective.remember(params)
    if jax.tree.structure(state.seen) == jax.tree.structure(memory):  # they differ if beta was warmed up
        memory = state.seen
    return signal(objective, plan, rows, params, memory, key, lambda tree: {name: tree[name] for name in LEARNT})
