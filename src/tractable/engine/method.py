"""The base of every method: a frozen dataclass of settings, which builds its kernel and judges its result."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import numpy as np
import optax

from tractable.core.check import Check
from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import Kernel, Model, Objective, PyTree, whole
from tractable.core.rows import FAR, Data, Plan
from tractable.core.settings import Settings
from tractable.core.words import nearest
from tractable.diagnostics.belief import Belief, Cost
from tractable.diagnostics.learnt import Learnt
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.session import Session

__all__ = ["Check", "Method", "Outcome", "Program", "Session", "plan_batches"]

Optimiser = Annotated[optax.GradientTransformation, "an optax optimiser, such as optax.adam(0.05)"]


class Outcome(NamedTuple):
    """The result of a method."""

    belief: Belief
    found: dict[str, Any]  # the settings that warm-up chose, and other figures
    seconds: dict[str, float]
    interrupted: bool = False
    run_state: PyTree = None  # the run's state, for methods whose runs can be extended


class Program(NamedTuple):
    """A hashable recipe of a kernel: two runs with equal programs share one compilation."""

    model: Model
    method: "Method"
    streams: bool = False
    remedy: str = "Look for a log or a division that leaves its domain in the model, or take smaller steps."
    placement: OneDevice = ONE_DEVICE  # of its chains and rows

    def __call__(self, rows: PyTree, tuned: PyTree) -> Kernel:
        return self.method.kernel(self.model, rows, tuned)

    def observe(self, state: PyTree) -> jax.Array:
        """The flat position of a state; kernels hold large positions as pytrees."""
        return state.position if isinstance(state.position, jax.Array) else self.model.space.ravel(state.position)

    def values(self, position: jax.Array) -> jax.Array:
        """The user's parameters, flat, at a flat unconstrained position."""
        return self.model.values(position)

    def weigh(self, info: dict[str, jax.Array]) -> Any:
        """The draws' weights, from what the steps recorded; None if all weigh the same."""
        return self.method.weigh(info)

    def describe(self, position: jax.Array) -> str:
        """Names the parameters that are not finite."""
        return f"{not_finite(self.model, position)} (unconstrained)"


def not_finite(model: Model, position: jax.Array) -> str:
    """Names of a position's entries that are not finite, at most three."""
    names = [name for name, x in zip(model.space.names, np.asarray(position), strict=True) if not np.isfinite(x)]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


METHODS: dict[str, type["Method"]] = {}  # by label, in the order of import
ALIASES = {"metropolis": "random-walk", "rwm": "random-walk", "mean-field": "meanfield", "full-rank": "fullrank"}


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """A method's settings: validated when made, printable, and compared by value.

    ``settings()`` writes the fields for a configuration file and ``from_settings`` reads them.
    """

    label: ClassVar[str] = ""
    point: ClassVar[bool] = False  # learns a single θ
    independent: ClassVar[bool] = False  # its draws are independent
    exact: ClassVar[bool] = False  # its draws come from the exact posterior
    chained: ClassVar[bool] = False  # draws chains, which can be streamed, extended, and spread over devices
    cross_check_method: ClassVar[str] = "nuts"  # the method that a thorough verification compares with
    climbs: ClassVar[bool] = False  # climbs from a starting point; is rerun where verification finds a better one
    outside: ClassVar[
        tuple[str, ...]
    ] = ()  # settings that no compiled program reads: passed as arguments, or used on the host only
    verified: ClassVar[bool] = False  # its result can be verified against the density of θ

    def __init_subclass__(cls) -> None:
        """Registers a subclass that has a label, so that users can name it."""
        if "label" in vars(cls):
            METHODS[cls.label] = cls

    def split_arrays(self) -> tuple["Method", tuple]:
        """The method that programs are compiled for: ``outside`` settings are None (``core.shared``)."""
        form = copy.copy(self)
        for name in self.outside:
            object.__setattr__(form, name, None)
        return form, ()

    def settings(self) -> dict[str, Any]:
        """The method's name and its fields, as plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"method": self.label} | {name: _plain(value) for name, value in fields.items()}

    @property
    def minibatch(self) -> bool:
        """Whether a step uses a batch of rows."""
        return getattr(self, "batch_size", None) is not None

    def needed(self, model: Model) -> Any:
        """The model in the form this method needs; raises ModelError where the method cannot learn the model."""
        if self.minibatch and (why := getattr(model.prior, "why", None)):
            raise ModelError(
                f"{type(self).__name__} takes minibatches of rows. {why} Use NUTS(), or MAP() without batches."
            )
        return model

    def plan(self, data: Data | None) -> Plan | None:
        """The plan of minibatches; None where every step uses all rows."""
        size = getattr(self, "batch_size", None)
        return None if size is None else plan_batches(self, data, size)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        """The kernel, with the values that warm-up tuned."""
        raise SettingsError(f"{type(self).__name__} has no kernel of its own.")

    def learn(self, session: Session) -> Outcome:
        """Run the method."""
        raise SettingsError(f"{type(self).__name__} cannot be run; choose one of tractable's methods.")

    def checks(self, posterior: Learnt) -> list[Check]:
        """Checks that decide whether the result can be trusted."""
        return []

    def otherwise(self, posterior: Learnt) -> "tuple[Method, Check] | None":
        """Of a result that was rejected, the method to turn to, and a check that says why or why not.

        The check is of verdict "reject" where that method would take too long to be run unasked; None where nothing
        else is to be tried.
        """
        return None

    def row_space_posterior(self, posterior: Learnt) -> Learnt | None:
        """The posterior of fewer numbers on which this one's verdict depends, where there is one: its other numbers are
        drawn given those, exactly."""
        return None

    def bytes_kept(self, model: Model) -> int:
        """Bytes of the draws that a run keeps in memory; 0 for methods that keep few."""
        return 0

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        """The evaluations that the run made."""
        return Cost(found["evaluations"] * self.share(data), 0.0)

    @property
    def sums_rows(self) -> bool:
        """Whether every step sums over all rows, which may then lie on several devices."""
        return False

    def share(self, data: Data | None) -> float:
        """The share of the rows that one evaluation uses."""
        plan = self.plan(data)
        return 1.0 if plan is None else plan.width / plan.size

    def predicted_bias(self, posterior: Learnt) -> Any:
        """The bias of each marginal sd that the method predicts (``sgmcmc.bias.Predicted``), or None."""
        return None

    def predictive(self, model: Model, belief: Belief) -> Model:
        """The model that makes the predictions."""
        return model

    def extended(self, session: Session, belief: Belief, run_state: PyTree, draws: int) -> Outcome:
        """Continue to ``draws`` kept draws a chain in all: the draws are those of one run of that length."""
        raise SettingsError(f"{type(self).__name__} has no chains to extend.")

    def weigh(self, info: Mapping[str, jax.Array | np.ndarray]) -> Any:
        """The draws' weights; None if all weigh the same."""
        return None


def _plain(value: Any) -> Any:
    """A setting as a value that a configuration file can hold."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if type(value) is tuple:
        return list(value)
    return getattr(value, "label", repr(value))


def on_all_rows(objective: Objective, rows: PyTree) -> Objective:
    """The objective on all of ``rows`` (``core.arrays()``, None without data) at every step, whatever the batch."""
    value, batch = objective.value, None if rows is None else whole(rows)
    return objective._replace(value=lambda noise, params, _: value(noise, params, batch))


def plan_batches(method: "Method", data: Data | None, batch_size: int, independent: bool = False) -> Plan:
    """A plan of minibatches; raises if there are none to take. The default batch size is cut to the rows there are."""
    name = type(method).__name__
    if data is None:
        raise SettingsError(f"{name} takes minibatches of data, and there are none; use MALA or NUTS on a log density.")
    if batch_size > data.size and batch_size != type(method).__dataclass_fields__["batch_size"].default:
        raise SettingsError(
            f"{name}(batch_size={batch_size}) is more than the {data.size} rows there are; use at most {data.size}."
        )
    plan = Plan(data.size, min(batch_size, data.size), independent)
    if plan.count >= FAR:
        raise SettingsError(
            f"{name}(batch_size={batch_size}) makes {plan.count} batches an epoch of {data.size} rows; at most "
            f"{FAR - 1} are counted: take larger ones."
        )
    return plan


def named(name: str) -> type[Method]:
    """The method class for a name such as "nuts" or "metropolis"."""
    label = ALIASES.get(name.lower(), name.lower())
    if label not in METHODS:
        near = nearest(name, (*METHODS, *ALIASES))
        raise SettingsError(f"There is no method {name!r}; there are {', '.join(METHODS)}.{near}")
    return METHODS[label]


def from_settings(settings: dict[str, Any]) -> Method:
    """The method that ``settings`` describe. Raises SettingsError for functions, which a file cannot hold."""
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
