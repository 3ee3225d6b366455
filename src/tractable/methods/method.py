"""What every method is: a frozen dataclass of settings that knows the kernel to build and how to be judged."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import numpy as np
import optax

from tractable.beliefs.belief import Belief, Cost
from tractable.beliefs.check import Check
from tractable.checks.learnt import Learnt
from tractable.core import Kernel, Model, Objective, whole
from tractable.data.rows import Data, Plan
from tractable.methods.session import Session
from tractable.tools.errors import ModelError, SettingsError
from tractable.tools.settings import Settings
from tractable.tools.words import nearest

__all__ = ["Check", "Method", "Outcome", "Program", "Session", "plan_batches"]

PyTree = Any
Optimiser = Annotated[optax.GradientTransformation, "an optax optimiser, such as optax.adam(0.05)"]


class Outcome(NamedTuple):
    """What a method learnt."""

    belief: Belief
    found: dict[str, Any]  # what warm-up chose, and other numbers worth keeping
    seconds: dict[str, float]
    interrupted: bool = False
    standing: PyTree = None  # where a run stands that may be extended


class Program(NamedTuple):
    """A kernel's recipe, hashable: two runs with equal programs share one compilation."""

    model: Model
    method: "Method"
    streams: bool = False
    remedy: str = "Look for a log or a division that leaves its domain in the model."

    def __call__(self, rows: PyTree, tuned: PyTree) -> Kernel:
        return self.method.kernel(self.model, rows, tuned)

    def observe(self, state: PyTree) -> jax.Array:
        """The flat position of a state; large ones are pytrees in a kernel."""
        return state.position if isinstance(state.position, jax.Array) else self.model.space.ravel(state.position)

    def values(self, position: jax.Array) -> jax.Array:
        """The user's parameters of a flat unconstrained position, flat."""
        return self.model.values(position)

    def weigh(self, info: dict[str, jax.Array]) -> Any:
        """How much draws count, by what their steps say; None where all count alike."""
        return self.method.weigh(info)

    def describe(self, position: jax.Array) -> str:
        """The parameters of the numbers that are not finite."""
        return f"{not_finite(self.model, position)} (unconstrained)"


def not_finite(model: Model, position: jax.Array) -> str:
    """Names of the numbers of a position which are not finite."""
    names = [name for name, x in zip(model.space.names, np.asarray(position), strict=True) if not np.isfinite(x)]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


METHODS: dict[str, type["Method"]] = {}  # by label, as they are imported
ALIASES = {
    "metropolis": "random-walk",
    "rwm": "random-walk",
    "mean-field": "meanfield",
    "full-rank": "fullrank",
}


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """Settings of a way to learn; validated when made, printable, and equal when alike.

    ``settings()`` and ``from_settings`` carry the fields to and from a configuration file.
    """

    label: ClassVar[str] = ""
    point: ClassVar[bool] = False  # learns one θ
    independent: ClassVar[bool] = False  # its draws have no order
    exact: ClassVar[bool] = False  # every draw is one of the posterior
    chained: ClassVar[bool] = False  # draws chains: they can be streamed, extended, and laid over devices
    beside: ClassVar[str] = "nuts"  # the method that a thorough look holds its result against
    climbs: ClassVar[bool] = False  # from a place: one from which it ends better is begun at again
    outside: ClassVar[
        tuple[str, ...]
    ] = ()  # settings that no compiled program reads: they are arguments, or the host's
    verified: ClassVar[bool] = False  # learns a posterior of θ, or a point, that can be held against the density

    def __init_subclass__(cls) -> None:
        """A method with a label of its own can be named from then on."""
        if "label" in vars(cls):
            METHODS[cls.label] = cls

    def apart(self) -> tuple["Method", tuple]:
        """What of it programs are compiled for: nothing stands where a setting is ``outside`` (``tools.shared``)."""
        form = copy.copy(self)
        for name in self.outside:
            object.__setattr__(form, name, None)
        return form, ()

    def settings(self) -> dict[str, Any]:
        """The fields as plain values, with the method's name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"method": self.label} | {name: _plain(value) for name, value in fields.items()}

    @property
    def minibatch(self) -> bool:
        """Whether a step looks at a batch of rows."""
        return getattr(self, "batch_size", None) is not None

    def needed(self, model: Model) -> Any:
        """The model as this method takes it, or a sentence where it cannot learn it."""
        if self.minibatch and (why := getattr(model.prior, "why", None)):
            raise ModelError(
                f"{type(self).__name__} takes minibatches of rows. {why} Use NUTS(), or MAP() without batches."
            )
        return model

    def plan(self, data: Data | None) -> Plan | None:
        """How the data are visited; None where every step sees them all."""
        size = getattr(self, "batch_size", None)
        return None if size is None else plan_batches(self, data, size)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        """The kernel, once warm-up has tuned it."""
        raise SettingsError(f"{type(self).__name__} has no kernel of its own.")

    def learn(self, session: Session) -> Outcome:
        """Run the method."""
        raise SettingsError(f"{type(self).__name__} cannot be run; choose one of tractable's methods.")

    def checks(self, posterior: Learnt) -> list[Check]:
        """What is looked at before the result is trusted."""
        return []

    def bytes_kept(self, model: Model) -> int:
        """Of the draws that a run keeps in memory, where it keeps many."""
        return 0

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        """What the run that ended so has evaluated."""
        return Cost(found["evaluations"] * self.share(data), 0.0)

    @property
    def sums_rows(self) -> bool:
        """Whether all rows are summed over at every step, on however many devices they lie."""
        return False

    def share(self, data: Data | None) -> float:
        """Of the rows, what one evaluation looks at."""
        plan = self.plan(data)
        return 1.0 if plan is None else plan.width / plan.size

    def predicted_bias(self, posterior: Learnt) -> Any:
        """What the method itself is known to do to every marginal sd (``checks.bias.Predicted``); None if nothing."""
        return None

    def predictive(self, model: Model, belief: Belief) -> Model:
        """The model through which predictions go."""
        return model

    def extended(self, session: Session, belief: Belief, standing: PyTree, draws: int) -> Outcome:
        """So many kept draws a chain in all, as if they had been asked for at once."""
        raise SettingsError(f"{type(self).__name__} has no chains to extend.")

    def weigh(self, info: Mapping[str, jax.Array | np.ndarray]) -> Any:
        """Weights of draws, where they do not count alike."""
        return None


def _plain(value: Any) -> Any:
    """What a configuration file can hold of a setting."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if type(value) is tuple:
        return list(value)
    return getattr(value, "label", repr(value))


def on_all_rows(objective: Objective, rows: PyTree) -> Objective:
    """The same objective of ``data.arrays()`` at every step, whatever batch comes; None where there are no data."""
    value, batch = objective.value, None if rows is None else whole(rows)
    return objective._replace(value=lambda noise, params, _: value(noise, params, batch))


def plan_batches(method: "Method", data: Data | None, batch_size: int, independent: bool = False) -> Plan:
    """A plan, after the sentences about batches that cannot be; a default takes as many rows as there are."""
    name = type(method).__name__
    if data is None:
        raise SettingsError(f"{name} takes minibatches of data, and there are none; use MALA or NUTS on a log density.")
    if batch_size > data.size and batch_size != type(method).__dataclass_fields__["batch_size"].default:
        raise SettingsError(
            f"{name}(batch_size={batch_size}) is more than the {data.size} rows there are; use at most {data.size}."
        )
    return Plan(data.size, min(batch_size, data.size), independent)


def named(name: str) -> type[Method]:
    """The method of a name such as "nuts" or "metropolis"."""
    label = ALIASES.get(name.lower(), name.lower())
    if label not in METHODS:
        near = nearest(name, (*METHODS, *ALIASES))
        raise SettingsError(f"There is no method {name!r}; there are {', '.join(METHODS)}.{near}")
    return METHODS[label]


def from_settings(settings: dict[str, Any]) -> Method:
    """The method that ``settings`` describe; fields that a file cannot hold (functions) are refused."""
    settings = dict(settings)
    kind = named(settings.pop("method", ""))
    settings = {
        name: None if value == "none" else tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
    }
    for name, value in settings.items():
        if isinstance(value, str) and (value.startswith("<") or "<function" in value):
            raise SettingsError(
                f"{kind.__name__}({name}=...) was a function, which a file cannot hold: give method= again."
            )
    return kind(**settings)
