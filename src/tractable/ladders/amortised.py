"""The optimisation that all methods for ladders share: learn a ladder and its inference network on minibatches."""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable.core.batches import Plan
from tractable.core.clock import work_time
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.model import Kernel, Model, Objective, PyTree
from tractable.core.rows import Data
from tractable.core.settings import Count
from tractable.core.shared import compiled
from tractable.diagnostics.belief import Belief, Coded, Cost
from tractable.diagnostics.learnt import Learnt
from tractable.engine import run as loop
from tractable.engine.ascend import ascend, evaluate_schedule
from tractable.engine.bound import has_settled, is_flat, signal
from tractable.engine.climb import HELD_OUT_STEPS, Climber, climb, held_out_best
from tractable.engine.drawing import capacity, chain_keys
from tractable.engine.method import Check, Method, Optimiser, Outcome, Program, Rate, Session, plan_batches
from tractable.engine.placement import ONE_DEVICE
from tractable.ladders.bounds import bounds
from tractable.ladders.checks import check_ladder, measure_ladder
from tractable.ladders.ladder import Ladder, ladder_of

FIRST_ROWS = 10_000  # largest number of rows, the first of the data, from which the starting biases are computed
# Largest number of rows from which the report's bounds are computed, and number of draws of h for each of them.
REPORT_ROWS, DRAWS = 1000, 100
SCORE_DRAWS = 10  # number of draws of h per held-out row, in the score that decides when the optimisation ends
LEARNT_PARTS = ("theta", "phi")  # what the posterior keeps; NVIL's ψ only serves to estimate gradients


class Amortising(Program):
    """The program of a compiled run whose position is {θ, φ, …}. The run records no positions: they are too large."""

    def observe(self, state: PyTree) -> jax.Array:
        return jnp.zeros(0)

    def values(self, position: jax.Array) -> jax.Array:
        return position

    def describe(self, position: jax.Array) -> str:
        return "the weights"


class Prepared(NamedTuple):
    """What the compiled loop needs for an optimisation; it runs the steps in ``groups`` groups of equal size."""

    program: Amortising
    plan: Plan
    shape: loop.Shape
    groups: int
    tuned: dict[str, jax.Array]
    keys: jax.Array

    def begin(self, first: PyTree) -> PyTree:
        """The loop's first states, from starting parameters that have a leading axis of length one."""
        return loop.begin(self.program._replace(placement=ONE_DEVICE), self.tuned, None, self.keys, first)


@dataclass(frozen=True, kw_only=True)
class Amortised(Method):
    """The common fields of methods that learn a ladder's θ and its inference network's φ.

    Args:
        epochs: passes over the data; the number of steps is rounded up to whole groups of steps of the compiled loop.
        batch_size: rows per step.
        optimizer: "adam", whose learning rate falls to 0 along half a cosine over the run; or an optax optimiser.
        learning_rate: Adam's learning rate at the start; or a schedule, a function of the number of steps taken that
            returns a rate ≥ 0, such as ``optax.exponential_decay(1e-3, 1000, 0.9)``, in place of the cosine.
    """

    point: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True
    pathwise: ClassVar[bool] = False  # whether the method differentiates draws of h
    epochs: Count = 100
    batch_size: Count = 100
    optimizer: Literal["adam"] | Optimiser = "adam"
    learning_rate: Rate = 1e-3

    def objective(self, ladder: Ladder) -> Objective:
        """The objective, a function of {"theta": θ, "phi": φ} and of the parameters that ``initial`` adds."""
        raise SettingsError(f"{type(self).__name__} has no objective of its own; use AutoEncoding, NVIL or WakeSleep.")

    def needed(self, model: Model) -> Ladder:
        """The model as a ladder; raises ModelError where this method cannot learn the model."""
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
        """The starting parameters of the optimisation, made from the first rows of the data."""
        return ladder.initial(key, rows)

    def optimiser(self, steps: jax.Array) -> optax.GradientTransformation:
        """The optimiser for a run of ``steps`` steps."""
        if self.optimizer != "adam":
            return self.optimizer
        if callable(rate := self.learning_rate):
            return optax.adam(rate)
        return optax.adam(lambda t: rate * (1 + jnp.cos(jnp.pi * jnp.minimum(t / steps, 1))) / 2)

    def rates(self, steps: int) -> np.ndarray:
        """(steps,) in some unit, the learning rates of a run of ``steps`` steps."""
        if callable(self.learning_rate):
            return evaluate_schedule(f"{type(self).__name__}(learning_rate=...)", self.learning_rate, steps, steps)
        return 1 + np.cos(np.pi * np.arange(steps) / steps) if self.optimizer == "adam" else np.ones(steps)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        return ascend(self.objective(self.needed(model)), self.optimiser(tuned["steps"]))

    def prepare(self, session: Session, key: jax.Array) -> "Prepared":
        """Prepare what the loop needs for an optimisation over all epochs."""
        plan = plan_batches(self, session.data, self.batch_size)
        ladder, streams = self.needed(session.model), not session.data.resident
        program = Amortising(ladder, self, streams, placement=session.placement)
        shape = loop.shape(self.epochs * plan.count, 1, 1, 1)
        shape = shape._replace(capacity=capacity(shape, session, program, 1))
        groups = -(-self.epochs * plan.count // shape.group)
        self.rates(groups * shape.group)  # raises an error about a schedule before anything is run
        tuned = {"steps": jnp.asarray(groups * shape.group, jnp.result_type(float))}
        return Prepared(program, plan, shape, groups, tuned, chain_keys(key, 1))

    def learn(self, session: Session) -> Outcome:
        ladder, data = self.needed(session.model), session.data
        start_key, run_key, look_key = jax.random.split(session.key, 3)
        program, plan, shape, groups, tuned, keys = prepared = self.prepare(session, run_key)
        if data.given is not None:
            raise DataError("A ladder takes no inputs: give Data(x) without given=.")
        start_time = work_time()
        first = self.initial(ladder, start_key, data.take(slice(0, FIRST_ROWS)).equally_counted().rows[0])
        first = jax.device_put(jax.tree.map(lambda a: np.asarray(a)[None], first))
        at, interrupted = climb(
            Climber(session, "climbing", program, shape, plan, keys), tuned, lambda: prepared.begin(first), [groups],
            None if session.held_out is None else functools.partial(self._score, ladder, session.held_out, look_key),
        )  # fmt: skip
        end_time = work_time()
        state = jax.device_put(jax.tree.map(lambda a: np.asarray(a)[0], at.states))
        params = {name: state.position[name] for name in LEARNT_PARTS}
        figures = measure_ladder(ladder, params, some_rows(data), look_key, DRAWS)
        figures["gradient signal"] = signal_at_end(program._replace(placement=ONE_DEVICE), plan, data, state, look_key)
        figures |= {"steps": at.groups * shape.group, "settled": self._has_settled(at.info["objective"])}
        figures |= at.found(shape.group)
        seconds = {"climbing": end_time - start_time, "weighing": work_time() - end_time}
        point = np.asarray(ladder.space.ravel(state.position["theta"]))
        network = jax.tree.map(np.asarray, state.position["phi"])
        belief = Coded(position=point, info=at.traces(shape.group), network=network)
        return Outcome(belief, figures, seconds, interrupted)

    def _has_settled(self, trace: np.ndarray) -> bool:
        """Whether the bound's trace (1, step) shows that it no longer rises; False where the run is too short to tell.

        ``is_flat`` weights each step by its learning rate, because small steps alone would also make a trace flat.
        """
        return has_settled(trace) and is_flat(trace, self.rates(trace.shape[1]))

    def _score(self, ladder: Ladder, held_out: Data, key: jax.Array, states: PyTree) -> np.ndarray:
        """(m,) ELBO in nats of each held-out row, for at most a thousand rows."""
        params = {name: jax.tree.map(lambda a: a[0], states.position[name]) for name in LEARNT_PARTS}
        return np.asarray(bounds(ladder, params, some_rows(held_out), key, SCORE_DRAWS).elbo, np.float64)

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        return Cost(found["steps"] * self.share(data) * getattr(self, "samples", 1), 0.0)

    def checks(self, posterior: Learnt) -> list[Check]:
        ladder: Any = posterior.model
        out = check_ladder(posterior.found, ladder.depth)
        found = posterior.found
        if HELD_OUT_STEPS not in found:
            return out
        # Where an earlier state predicted the held-out rows best, it does not matter whether the bound still rises.
        early = found[HELD_OUT_STEPS] < found["steps"]
        return [held_out_best(found), *[check for check in out if check.name != "trend" or not early]]


def some_rows(data: Data) -> Data:
    """At most a thousand rows, evenly spaced in the data and each of weight 1, that represent the data."""
    index = np.unique(np.linspace(0, data.size - 1, min(REPORT_ROWS, data.size)).astype(int))
    return data.take(index).equally_counted(REPORT_ROWS)


def signal_at_end(program: Amortising, plan: Plan, data: Data, state: PyTree, key: jax.Array) -> float:
    """The gradient's signal ‖E g‖² / tr Cov g, for θ and φ, at the end of the optimisation.

    For data on file it is measured on the first batch alone.
    """
    if not data.resident:
        data = data.take(slice(0, plan.width))
        plan = Plan(data.size, data.size)
    return float(_signal(program, plan, data.windows(plan.width), state, key))


@compiled("program", "plan")
def _signal(program: Amortising, plan: Plan, rows: PyTree, state: PyTree, key: jax.Array) -> jax.Array:
    method: Any = program.method
    objective, params = method.objective(method.needed(program.model)), state.position
    memory = objective.first_memory(params)
    # This objective has no warm-up, so it may have no use for the step number that ``state.seen`` is after a warm-up.
    if jax.tree.structure(state.seen) == jax.tree.structure(memory):
        memory = state.seen
    return signal(objective, plan, rows, params, memory, key, lambda tree: {name: tree[name] for name in LEARNT_PARTS})
