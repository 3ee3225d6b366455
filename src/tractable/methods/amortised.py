"""A ladder and its inference network, climbed together on minibatches."""

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable import run as loop
from tractable.amortised.bounds import bounds
from tractable.core import Kernel, Model
from tractable.kernels.ascend import ascend
from tractable.methods.climbing import settled
from tractable.methods.drawing import capacity, chain_keys
from tractable.methods.method import Check, Method, Outcome, Program, Session, plan_batches
from tractable.models.ladder import Ladder
from tractable.objectives import Objective
from tractable.tools.data import Data, Plan
from tractable.tools.errors import DataError, ModelError, SettingsError

PyTree = Any
FIRST = 10_000  # rows that biases are begun from
LOOKED_AT, DRAWS = 1000, 100  # rows and draws of the bounds in a report


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
        steps = self.epochs * plan.count
        shape = loop.shape(steps, 1, 1, 1)
        shape = shape._replace(capacity=capacity(shape, session, program, 1))
        groups = -(-steps // shape.group)
        tuned = {"steps": jnp.asarray(groups * shape.group, jnp.result_type(float))}
        keys = chain_keys(run_key, 1)
        states = loop.begin(program, tuned, None, keys, jax.tree.map(lambda a: jnp.asarray(a)[None], first))
        result = loop.run(
            program, shape, data, plan, tuned, keys, states, groups=groups, keep=False,
            on_segment=lambda d, i, s, g, m: session.say("climbing", g * shape.group, groups * shape.group),
            stop=session.stop,
        )  # fmt: skip
        climbed = time.perf_counter()
        params = jax.tree.map(lambda a: a[0], result.states.position)
        found = self.looked_at(ladder, params, data, look_key)
        found |= {"steps": result.groups * shape.group, "settled": settled(result.info["objective"])}
        seconds = {"climbing": climbed - began, "weighing": time.perf_counter() - climbed}
        point = np.asarray(ladder.space.ravel(params["theta"]))
        return Outcome(
            None, point, result.info, None, None, found, result.interrupted, seconds,
            phi=jax.tree.map(np.asarray, params["phi"]),
        )  # fmt: skip

    def looked_at(self, ladder: Ladder, params: PyTree, data: Data, key: jax.Array) -> dict[str, Any]:
        """Bounds of some rows that were learnt from, nats a row."""
        some = data.take(slice(0, LOOKED_AT))
        seen = bounds(ladder, {name: params[name] for name in ("theta", "phi")}, some, key, DRAWS)
        found = {
            "elbo": float(seen.elbo.mean()),
            "bound": float(seen.log_evidence.mean()),
            "weights' sample size": float(np.median(seen.ess) / seen.samples),
        }
        return found | {f"cost h{i + 1}": float(cost) for i, cost in enumerate(seen.costs.mean(0))}

    def checks(self, posterior: Any) -> list[Check]:
        found = posterior.found
        return [
            Check(
                "trend", float(not found["settled"]), "trust" if found["settled"] else "caution",
                "0 where the noisy bound of the last half shows no trend upward; more epochs= where it does",
            )
        ]  # fmt: skip
