"""The base of every method: a frozen dataclass of settings, with functions that run it and check its result."""

import copy
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import jax
import numpy as np

from tractable.core.batches import FAR, Plan
from tractable.core.check import Check
from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import Kernel, Model, Objective, PyTree, whole
from tractable.core.rows import Data
from tractable.core.settings import Positive, Range, Settings
from tractable.core.words import nearest
from tractable.diagnostics.belief import Belief, Cost
from tractable.diagnostics.learnt import Learnt
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.session import Session

__all__ = ["Check", "Method", "Outcome", "Program", "Session", "plan_batches"]

if TYPE_CHECKING:
    import optax  # importing it takes long, and most methods do without


def is_optimiser(value: object) -> bool:
    """Whether ``value`` is an optimiser of optax."""
    from optax import GradientTransformation

    return isinstance(value, GradientTransformation)


Optimiser = Annotated[
    "optax.GradientTransformation", Range("an optax optimiser, such as optax.adam(0.05)", is_optimiser)
]
# A learning rate, or a schedule of it.
Rate = Positive | Annotated[Callable, "a function of the number of steps taken, such as optax.cosine_decay_schedule"]


class Outcome(NamedTuple):
    """The result of a method."""

    belief: Belief
    found: dict[str, Any]  # the settings that warm-up chose, and other results for the report
    seconds: dict[str, float]  # of each phase, by ``work_time``
    interrupted: bool = False
    run_state: PyTree = None  # the run's state, for methods whose runs can be extended


class Program(NamedTuple):
    """A hashable description of a kernel: two runs with equal descriptions share one compiled program."""

    model: Model
    method: "Method"
    streams: bool = False  # whether batches are read from file while the loop runs
    # The advice in the error message if a state is not finite.
    remedy: str = "Look for a log or a division that leaves its domain or a tiny concentration, or take smaller steps."
    placement: OneDevice = ONE_DEVICE  # the devices of the chains and rows

    def __call__(self, rows: PyTree, tuned: PyTree) -> Kernel:
        return self.method.kernel(self.model, rows, tuned)

    def observe(self, state: PyTree) -> jax.Array:
        """The position of a state as a vector; kernels hold large positions as pytrees."""
        return state.position if isinstance(state.position, jax.Array) else self.model.space.ravel(state.position)

    def values(self, position: jax.Array) -> jax.Array:
        """The user's parameters as a vector, at an unconstrained position that is a vector."""
        return self.model.values(position)

    def weigh(self, info: dict[str, jax.Array]) -> Any:
        """The draws' weights, from the info that the steps recorded; None if all draws have equal weights."""
        return self.method.weigh(info)

    def describe(self, position: jax.Array) -> str:
        """The names of the parameters that are not finite, for an error message."""
        return f"{not_finite(self.model, position)} (unconstrained)"


def not_finite(model: Model, position: jax.Array) -> str:
    """The names of a position's entries that are not finite: at most three names, and the number of further ones."""
    names = [name for name, x in zip(model.space.names, np.asarray(position), strict=True) if not np.isfinite(x)]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class Registry(Mapping[str, type]):
    """The classes of all methods by label; a class is imported when it is first asked for."""

    def __init__(self) -> None:
        self.classes: dict[str, type[Method]] = {}  # those that were imported
        self.modules: dict[str, str] = {}  # the modules of the library's methods; ``tractable.methods`` fills it
        self.unlisted: dict[str, str] = {}  # the same for methods that cannot be run, but are in saved folders

    def __getitem__(self, label: str) -> type["Method"]:
        if label not in self.classes:
            importlib.import_module(f"tractable.{(self.modules | self.unlisted)[label]}")
        return self.classes[label]

    def __iter__(self) -> Iterator[str]:
        return (label for label in self.modules | self.classes if label not in self.unlisted)

    def __len__(self) -> int:
        return sum(1 for _ in self)


METHODS = Registry()
ALIASES = {"metropolis": "random-walk", "rwm": "random-walk", "mean-field": "meanfield", "full-rank": "fullrank",
           "mams": "microcanonical", "mclmc": "microcanonical"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """The base of every method: its settings, which are validated when made, printable, and compared by value.

    ``settings()`` writes the fields for a configuration file and ``from_settings`` reads them.
    """

    label: ClassVar[str] = ""
    point: ClassVar[bool] = False  # learns a single θ
    independent: ClassVar[bool] = False  # draws independent samples
    exact: ClassVar[bool] = False  # draws from the exact posterior
    follows: ClassVar[bool] = True  # its draws follow the model's density, if its chains agree
    chained: ClassVar[bool] = False  # draws chains, which can be streamed, extended, and spread over devices
    cross_check_method: ClassVar[str] = "nuts"  # the method that a thorough verification compares with
    long: ClassVar[bool] = False  # whether compiling a step with all optimisations takes longer than a run on few rows
    climbs: ClassVar[bool] = False  # climbs from a starting point; run again if verification finds a better start
    # Settings that no compiled program reads: they are passed to programs as arguments, or used on the host only.
    outside: ClassVar[tuple[str, ...]] = ()
    verified: ClassVar[bool] = False  # gives a result that can be verified against the density of θ

    def __post_init__(self) -> None:
        super().__post_init__()
        rate, optimizer = (getattr(self, name, "") for name in ("learning_rate", "optimizer"))
        expected = (
            "a number where optimizer= is an optimiser of optax; give it the schedule, as in optax.adam(schedule)"
        )
        self.check(not callable(rate) or isinstance(optimizer, str), "learning_rate", expected)

    @property
    def advice(self) -> str:
        """What to do if means or sds are wrong."""
        return "use another method, such as NUTS"

    def __init_subclass__(cls) -> None:
        """Registers a subclass that has a label, so that users can name it."""
        if "label" in vars(cls):
            METHODS.classes[cls.label] = cls

    def split_arrays(self) -> tuple["Method", tuple]:
        """The method for which programs are compiled: its ``outside`` settings are None (see ``core.shared``).

        A schedule stays, since programs call it.
        """
        form = copy.copy(self)
        for name in self.outside:
            if not callable(getattr(self, name)):
                object.__setattr__(form, name, None)
        return form, ()

    def settings(self) -> dict[str, Any]:
        """The method's name and its fields, as plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"method": self.label} | {name: _plain(value) for name, value in fields.items()}

    def describe(self, belief: Belief) -> str:
        """The result in a few words."""
        return belief.describe()

    @property
    def minibatch(self) -> bool:
        """Whether a step uses a batch of rows."""
        return getattr(self, "batch_size", None) is not None

    def needed(self, model: Model) -> Any:
        """The model in the form that this method needs; raises ModelError if the method cannot learn the model."""
        if self.minibatch and (why := getattr(model.prior, "why", None)):
            raise ModelError(
                f"{type(self).__name__} takes minibatches of rows. {why} Use NUTS(), or MAP() without batches."
            )
        return model

    def plan(self, data: Data | None) -> Plan | None:
        """The plan of minibatches; None if every step uses all rows."""
        size = getattr(self, "batch_size", None)
        return None if size is None else plan_batches(self, data, size)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        """The kernel of one step, built with the values that warm-up tuned."""
        raise SettingsError(f"{type(self).__name__} has no kernel of its own.")

    def learn(self, session: Session) -> Outcome:
        """Run the method and return its result."""
        raise SettingsError(f"{type(self).__name__} cannot be run; choose one of tractable's methods.")

    def checks(self, posterior: Learnt) -> list[Check]:
        """The checks that decide whether the result can be trusted."""
        return []

    def otherwise(self, posterior: Learnt) -> "tuple[Method, Check] | None":
        """The method to run next if this method's result was rejected, with a check that explains the choice.

        The check's verdict is "reject" if the next method would take too long to be run without being asked for. The
        result is None if there is no next method.
        """
        return None

    def row_space_posterior(self, posterior: Learnt) -> Learnt | None:
        """A posterior of fewer parameters that can be verified in place of this one; None if there is none.

        Given the parameters of the smaller posterior, the remaining ones of this posterior are drawn exactly.
        """
        return None

    def bytes_kept(self, model: Model) -> int:
        """The bytes of the draws that a run keeps in memory; 0 for methods that keep few draws."""
        return 0

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        """The cost of the run, in evaluations of the log density on all rows."""
        return Cost(found["evaluations"] * self.share(data), 0.0)

    @property
    def sums_rows(self) -> bool:
        """Whether every step needs the rows only through sums over them; the rows may then lie on several devices."""
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
        """Continue until each chain has ``draws`` kept draws: the same draws as in a single run of that length."""
        raise SettingsError(f"{type(self).__name__} has no chains to extend.")

    def weigh(self, info: Mapping[str, jax.Array | np.ndarray]) -> Any:
        """The draws' weights; None if all draws have equal weights."""
        return None


def _plain(value: object) -> Any:
    """A setting as a value that a configuration file can hold."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if type(value) is tuple:
        return list(value)
    return getattr(value, "settings", lambda: repr(value))()


def on_all_rows(objective: Objective, rows: PyTree) -> Objective:
    """The objective on all rows at every step, whatever batch it gets; ``rows`` are ``Data.arrays()``, or None."""
    value, batch = objective.value, None if rows is None else whole(rows)
    return objective._replace(value=lambda noise, params, _: value(noise, params, batch))


def plan_batches(method: "Method", data: Data | None, batch_size: int, independent: bool = False) -> Plan:
    """A plan of minibatches of ``batch_size`` rows.

    The method's default batch size may exceed the number of rows; a batch then has all rows.

    Raises:
        SettingsError: there are no data, a batch has more rows than the data, or an epoch has too many batches.
    """
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
            f"{name}(batch_size={batch_size}) makes {plan.count} batches an epoch of {data.size} rows; expected at "
            f"most {FAR - 1}: take a larger batch_size."
        )
    return plan


def named(name: str) -> type[Method]:
    """The class of the method with a name such as "nuts" or "metropolis"."""
    label = ALIASES.get(name.lower(), name.lower())
    if label not in METHODS:
        near = nearest(name, (*METHODS, *ALIASES))
        raise SettingsError(f"There is no method {name!r}; there are {', '.join(sorted(METHODS))}.{near}")
    return METHODS[label]


def as_method(value: Any) -> Any:
    """The method with a name or with settings, as a configuration file holds it; other values stay as they are."""
    return from_settings(value) if isinstance(value, dict) else named(value)() if isinstance(value, str) else value


def from_settings(settings: dict[str, Any]) -> Method:
    """The method that ``settings`` describe.

    Raises:
        SettingsError: a setting was a function, which a configuration file cannot hold.
    """
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
