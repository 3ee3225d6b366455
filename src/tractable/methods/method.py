"""What every method is: a frozen dataclass of settings that knows the kernel to build and how to be judged."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from tractable.checks.convergence import Check
from tractable.core import Kernel, Model
from tractable.run import Moments
from tractable.tools.counts import is_count
from tractable.tools.data import Data, Plan
from tractable.tools.errors import SettingsError

__all__ = ["Check", "Fitted", "Method", "Outcome", "Program", "Session", "Standing", "plan_batches"]

PyTree = Any


class Session(NamedTuple):
    """What ``infer`` hands a method: the problem, the key, and the host's hooks."""

    model: Model
    data: Any  # Data, or None
    key: jax.Array
    stop: Callable[[], bool]
    say: Callable[[str, int, int], None]  # (phase, done, of)
    shard: Callable[[PyTree], PyTree]  # lays the chain axis over devices
    resume: Any = None  # a saved Standing
    save: Callable | None = None  # called with every segment
    keep: str = "draws"  # "draws", "moments" or "elsewhere"
    chunks: int = 64  # parts in which a run is saved


class Standing(NamedTuple):
    """Where a drawing run stands: enough to go on exactly."""

    groups: int
    keys: jax.Array
    states: PyTree
    tuned: dict[str, jax.Array]
    thin: int
    block: int
    moments: Moments | None
    found: dict[str, Any]


class Fitted(NamedTuple):
    """A q that was fitted."""

    family: str  # a name of ``approximations.of``
    phi: dict[str, np.ndarray]
    log_weights: np.ndarray | None  # (S,) log p(y, z) − log q(z) of its own draws
    trace: dict[str, np.ndarray]  # of the climb


class Outcome(NamedTuple):
    """What a method learnt."""

    draws: np.ndarray | None  # (chain, draw, d), unconstrained
    point: np.ndarray | None  # (d,), unconstrained
    info: dict[str, np.ndarray]
    weights: np.ndarray | None  # (chain, draw), of draws that do not count alike
    standing: Standing | None
    found: dict[str, Any]  # what warm-up chose, and other numbers worth keeping
    interrupted: bool
    seconds: dict[str, float]
    fitted: Fitted | None = None
    phi: PyTree = None  # of an inference network


class Program(NamedTuple):
    """A kernel's recipe, hashable: two runs with equal programs share one compilation."""

    model: Model
    method: "Method"
    streams: bool = False
    remedy: str = "Look for a log or a division that leaves its domain in the model."

    def __call__(self, rows: PyTree, tuned: PyTree) -> Kernel:
        return self.method.kernel(self.model, rows, tuned)

    def observe(self, state: Any) -> jax.Array:
        """The flat position of a state; large ones are pytrees in a kernel."""
        return state.position if isinstance(state.position, jax.Array) else self.model.space.ravel(state.position)

    def values(self, position: jax.Array) -> jax.Array:
        """The user's parameters of a flat unconstrained position, flat."""
        return self.model.values(position)

    def describe(self, position: jax.Array) -> str:
        """The parameters of the numbers that are not finite."""
        bad = ~np.isfinite(np.asarray(position))
        names = [name for name, is_bad in zip(self.model.space.names, bad, strict=True) if is_bad]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return f"{shown} (unconstrained)"


@dataclass(frozen=True, kw_only=True)
class Method:
    """Settings of a way to learn; validated when made, printable, and equal when alike.

    ``settings()`` and ``from_settings`` carry the fields to and from a configuration file.
    """

    label: ClassVar[str] = ""
    minibatch: ClassVar[bool] = False
    point: ClassVar[bool] = False  # learns one θ
    independent: ClassVar[bool] = False  # its draws have no order

    def settings(self) -> dict[str, Any]:
        """The fields as plain values, with the method's name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"method": self.label} | {name: _plain(value) for name, value in fields.items()}

    def plan(self, data: Data | None) -> Plan | None:
        """How the data are visited; None where every step sees them all."""
        return None

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        """The kernel, once warm-up has tuned it."""
        raise SettingsError(f"{type(self).__name__} has no kernel of its own.")

    def learn(self, session: Session) -> Outcome:
        """Run the method."""
        raise SettingsError(f"{type(self).__name__} cannot be run; choose one of tractable's methods.")

    def checks(self, posterior: Any) -> list[Check]:
        """What is looked at before the result is trusted."""
        return []

    def predictive(self, model: Model, fitted: Fitted) -> Model:
        """The model through which a fitted q predicts."""
        return model

    def weigh(self, info: dict[str, np.ndarray]) -> np.ndarray | None:
        """Weights of draws, where they do not count alike."""
        return None

    def check(self, good: Any, field: str, expected: str) -> None:
        """Raise the sentence of a field that is out of range."""
        if not good:
            raise SettingsError(f"{type(self).__name__}({field}=...) expects {expected}; got {getattr(self, field)!r}.")

    def check_whole(self, field: str, least: int = 1) -> None:
        self.check(is_count(getattr(self, field), least), field, f"a whole number ≥ {least}")

    def check_positive(self, field: str) -> None:
        value = getattr(self, field)
        good = isinstance(value, int | float) and math.isfinite(value) and value > 0
        self.check(good, field, "a positive finite number")

    def check_between(self, field: str, low: float | int, high: float | int) -> None:
        value = getattr(self, field)
        self.check(isinstance(value, int | float) and low < value < high, field, f"a number in ({low}, {high})")


def _plain(value: Any) -> Any:
    """What a configuration file can hold of a setting."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return list(value) if isinstance(value, tuple) else getattr(value, "label", repr(value))


def plan_batches(method: Any, data: Data | None, batch_size: int, independent: bool = False) -> Plan:
    """A plan, after the sentences about batches that cannot be."""
    name = type(method).__name__
    if data is None:
        raise SettingsError(f"{name} takes minibatches of data, and there are none; use MALA or NUTS on a log density.")
    if batch_size > data.size:
        raise SettingsError(
            f"{name}(batch_size={batch_size}) is more than the {data.size} rows there are; use at most {data.size}."
        )
    return Plan(data.size, batch_size, independent)
