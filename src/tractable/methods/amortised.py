"""A ladder and its inference network, climbed together on minibatches."""

import functools
import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable import run as loop
from tractable.checks.ladders import judged, sight
from tractable.core import Kernel, Model, Objective
from tractable.data.rows import Data, Plan, place, window
from tractable.kernels.ascend import ascend
from tractable.methods.climbing import settled
from tractable.methods.drawing import capacity, chain_keys
from tractable.methods.method import Check, Method, Outcome, Program, Session, plan_batches
from tractable.models.ladder import Ladder
from tractable.tools import tree
from tractable.tools.errors import DataError, ModelError, SettingsError

PyTree = Any
FIRST = 10_000  # rows that biases are begun from
LOOKED_AT, DRAWS = 1000, 100  # rows and draws of the bounds in a report
LEARNT = ("theta", "phi")  # and not what estimators keep beside them
GRADIENTS = 32  # one step's, whose mean is held against their noise


class Amortising(Program):
    """A kernel whose position is {θ, φ, …}; nothing of it is kept on the way."""

    def observe(self, state: Any) -> jax.Array:
        return jnp.zeros(0)

    def values(self, position: jax.Array) -> jax.Array:
        return position

    def describe(self, position: jax.Array) -> str:
        return "the weights"


@dataclass(frozen=True, kw_only=True)
class Amortised(Method):
    """Common fields of the methods that learn a ladder's θ and its inference network's φ.

    Args:
        epochs: passes over the data; a run ends with a whole block of steps.
        batch_size: rows a step.
        optimizer: "adam", whose rate falls to 0 along half a cosine over the run; or an optax optimiser.
        learning_rate: of "adam", at the start.
    """

    point: ClassVar[bool] = True
    minibatch: ClassVar[bool] = True
    resumable: ClassVar[bool] = True
    pathwise: ClassVar[bool] = False  # differentiates draws of h
    epochs: int = 100
    batch_size: int = 100
    optimizer: Any = "adam"
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        self.check_whole("epochs")
        self.check_whole("batch_size")
        good = self.optimizer == "adam" or isinstance(self.optimizer, optax.GradientTransformation)
        self.check(good, "optimizer", "'adam' or an optax optimiser")
        self.check_positive("learning_rate")

    def plan(self, data: Data | None) -> Plan | None:
        return plan_batches(self, data, self.batch_size)

    def objective(self, ladder: Ladder) -> Objective:
        """What is climbed, of {"theta": θ, "phi": φ} and what ``initial`` adds."""
        raise SettingsError(f"{type(self).__name__} climbs nothing of its own; use AutoEncoding, NVIL or WakeSleep.")

    def needed(self, model: Model) -> Ladder:
        """The ladder, or a sentence where this method cannot learn the model."""
        name = type(self).__name__
        if not isinstance(model, Ladder):
            raise ModelError(
                f"{name} learns ladders, such as tr.models.latent_gaussian and tr.models.sigmoid_belief_network make; "
                f"got {type(model).__name__}."
            )
        if self.pathwise and model.discrete:
            raise ModelError(
                f"{name} differentiates draws of h, and layer {model.discrete[0]} is "
                f"{model.layers[model.discrete[0]].family.name}, whose draws have no derivative. NVIL, VIMCO, "
                "WakeSleep and ReweightedWakeSleep work there; AutoEncoding(relaxation=...) is their biased neighbour."
            )
        return model

    def initial(self, ladder: Ladder, key: jax.Array, rows: Any) -> dict[str, PyTree]:
        """Where the climb begins."""
        return ladder.initial(key, rows)

    def optimiser(self, steps: jax.Array) -> optax.GradientTransformation:
        """Of a run of so many steps."""
        if self.optimizer != "adam":
            return self.optimizer

        def rate(t: Any) -> Any:
            return self.learning_rate * (1 + jnp.cos(jnp.pi * jnp.minimum(t / steps, 1))) / 2

        return optax.adam(rate)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        return ascend(self.objective(self.needed(model)), self.optimiser(tuned["steps"]))

    def learn(self, session: Session) -> Outcome:
        ladder, data = self.needed(session.model), session.data
        plan = plan_batches(self, data, self.batch_size)
        if data.given is not None:
            raise DataError("A ladder looks at no inputs: give Data(x) without given=.")
        began = time.perf_counter()
        start_key, run_key, look_key = jax.random.split(session.key, 3)
        first = self.initial(ladder, start_key, jax.tree.map(lambda a: a[:FIRST], data.rows[0]))
        program = Amortising(ladder, self, not data.resident)
        shape = loop.shape(self.epochs * plan.count, 1, 1, 1)
        shape = shape._replace(capacity=capacity(shape, session, program, 1))
        groups = -(-self.epochs * plan.count // shape.group)
        tuned = {"steps": jnp.asarray(groups * shape.group, jnp.result_type(float))}
        keys = chain_keys(run_key, 1)
        begin = functools.partial(loop.begin, program, tuned, None, keys)
        begun = jax.tree.map(lambda a: jnp.asarray(a)[None], first)
        if session.resume is None:
            at = Standing(0, begin(begun), {})
        else:
            arrays, numbers = session.resume
            at = restored(arrays, numbers, jax.eval_shape(begin, begun))
        saved = at.groups

        def on_segment(_: Any, info: dict, states: Any, done: int, __: Any) -> None:
            nonlocal at, saved
            at = Standing(done, states, joined(at.info, info))
            if done == groups or (done - saved) * session.chunks >= groups:
                kept(session, at)
                saved = done
            session.say("climbing", done * shape.group, groups * shape.group)

        result = loop.run(
            program, shape, data, plan, tuned, keys, at.states, groups=groups, done=at.groups, keep=False, trace=False,
            on_segment=on_segment, stop=session.stop,
        )  # fmt: skip
        if saved < at.groups:
            kept(session, at)
        climbed = time.perf_counter()
        state = jax.tree.map(lambda a: a[0], result.states)
        found = self.looked_at(ladder, state.position, data, look_key)
        found["gradient signal"] = signal(program, plan, data, state, look_key)
        found |= {"steps": result.groups * shape.group, "settled": settled(at.info["objective"])}
        seconds = {"climbing": climbed - began, "weighing": time.perf_counter() - climbed}
        point = np.asarray(ladder.space.ravel(state.position["theta"]))
        return Outcome(
            None, point, at.info, None, None, found, result.interrupted, seconds,
            phi=jax.tree.map(np.asarray, state.position["phi"]),
        )  # fmt: skip

    def looked_at(self, ladder: Ladder, params: PyTree, data: Data, key: jax.Array) -> dict[str, Any]:
        """What the ladder does with some rows that were learnt from, evenly chosen."""
        some = data.take(np.unique(np.linspace(0, data.size - 1, min(LOOKED_AT, data.size)).astype(int)))
        return sight(ladder, {name: params[name] for name in LEARNT}, some, key, DRAWS).found()

    def checks(self, posterior: Any) -> list[Check]:
        return judged(posterior.found, posterior.model.depth)


class Standing(NamedTuple):
    """Where a run stands: enough to go on exactly."""

    groups: int  # done
    states: PyTree  # of position, optimiser and estimator; leading axis (1,)
    info: dict[str, np.ndarray]  # traces so far, (1, step)


def joined(before: dict[str, np.ndarray], now: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Traces of two stretches of a run, end to end."""
    return {name: np.concatenate([before[name], part], 1) if before else part for name, part in now.items()}


def kept(session: Session, at: Standing) -> None:
    """Save where the run stands, where it is saved."""
    if session.save is not None:
        arrays = {f"states.{i:04d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(at.states))}
        arrays |= {f"info.{name}": trace for name, trace in at.info.items()}
        session.save(arrays, {"groups": str(at.groups)}, at.groups)


def restored(arrays: dict[str, np.ndarray], numbers: dict[str, str], like: PyTree) -> Standing:
    """Where a saved run stood; ``like`` has the structure of its states."""
    leaves = [jnp.asarray(arrays[name]) for name in sorted(arrays) if name.startswith("states.")]
    info = {name.removeprefix("info."): trace for name, trace in arrays.items() if name.startswith("info.")}
    return Standing(int(numbers["groups"]), jax.tree.unflatten(jax.tree.structure(like), leaves), info)


def signal(program: Amortising, plan: Plan, data: Data, state: Any, key: jax.Array) -> float:
    """‖E g‖² / tr Cov g of one step's gradient g of θ and φ where a climb ended; of data on file, on a first batch."""
    if not data.resident:
        data = data.take(slice(0, plan.width))
        plan = Plan(data.size, data.size)
    return float(_signal(program, plan, data.windows(plan.width), state, key))


@functools.partial(jax.jit, static_argnames=("program", "plan"))
def _signal(program: Amortising, plan: Plan, rows: PyTree, state: Any, key: jax.Array) -> jax.Array:
    method: Any = program.method
    objective = method.objective(method.needed(program.model))
    params = state.position

    def once(carry: tuple, t: jax.Array) -> tuple[tuple, None]:
        total, square, memory = carry
        batch = window(rows, plan, *place(plan, key, t))
        noise = jax.tree.map(lambda a: a[0], objective.draw(jax.random.fold_in(key, t), 1, params))
        if objective.slope is None:
            gradient = jax.grad(objective.value, argnums=1)(noise, params, batch)
        else:
            _, gradient, memory = objective.slope(noise, params, batch, memory)
        gradient = {name: gradient[name] for name in LEARNT}
        return (jax.tree.map(jnp.add, total, gradient), square + tree.dot(gradient, gradient), memory), None

    memory = objective.remember(params)
    if jax.tree.structure(state.seen) == jax.tree.structure(memory):  # not so once a warm-up is over
        memory = state.seen
    zero = jax.tree.map(jnp.zeros_like, {name: params[name] for name in LEARNT})
    begin = (zero, jnp.zeros((), jnp.result_type(float)), memory)
    (total, square, _), _ = jax.lax.scan(once, begin, jnp.arange(GRADIENTS))
    mean = tree.dot(total, total) / GRADIENTS**2
    noise = (square / GRADIENTS - mean) * GRADIENTS / (GRADIENTS - 1)
    return jnp.maximum(mean - noise / GRADIENTS, 0) / jnp.maximum(noise, jnp.finfo(noise.dtype).tiny)
