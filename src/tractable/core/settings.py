"""Settings whose types state the ranges of their values, in the words of the error for a value out of range."""

import dataclasses
import itertools
import math
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np

from tractable.core.errors import SettingsError, TractableError
from tractable.core.words import Spelt


class Range(NamedTuple):
    """A range of values, for ``Annotated[type, Range(...)]``."""

    expected: str  # the words after "expects" in an error
    holds: Callable[[Any], Any]  # ``value -> `` whether the value is in the range

    def __repr__(self) -> str:  # signatures and ``help`` show it
        return self.expected


def is_whole(value: object, least: int = 1) -> bool:
    """Whether ``value`` is an integer (Python's or NumPy's, no bool) ≥ ``least``."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def is_number(value: Any, above: float | int = -math.inf) -> bool:
    """Whether ``value`` is a finite number (Python's or NumPy's, no bool) > ``above``."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and bool(above < value < math.inf)


def at_least(least: int) -> Range:
    """Whole numbers ≥ ``least``."""
    return Range(f"a whole number ≥ {least}", lambda value: is_whole(value, least))


def between(low: float | int, high: float | int, *, closed: bool = False) -> Range:
    """Numbers in (low, high), or with ``closed`` in (low, high]."""
    words = f"a number in ({low}, {high}{']' if closed else ')'}"
    return Range(words, lambda value: is_number(value) and (low < value < high or (closed and value == high)))


Count = Annotated[int, at_least(1)]
Positive = Annotated[float | int, Range("a positive finite number", lambda value: is_number(value, 0))]
NotNegative = Annotated[float | int, Range("a finite number ≥ 0", lambda value: is_number(value) and value >= 0)]
Share = Annotated[float | int, between(0, 1)]
JOBS = Range("a number of processes, or -1 for all cores", lambda value: is_whole(value, -999) and value != 0)
Jobs = Annotated[int, JOBS]
# In single precision JAX uses the lower 32 bits of a seed, so that two larger seeds could be equal.
SEEDS = Range(f"a whole number from 0 to {2**32 - 1}", lambda value: is_whole(value, 0) and value < 2**32)
Seed = Annotated[int, SEEDS]


@dataclass(frozen=True, kw_only=True)
class Settings(Spelt):
    """Base of dataclasses whose fields are checked against the ranges that the fields' types state.

        class Sampler(Settings):
            draws: Count = 1000
            thin: Count | Literal["auto"] = "auto"

    NumPy scalars become Python numbers and strings, which are printed and saved plainly. For a rule about several
    fields, write a ``__post_init__`` that calls ``super().__post_init__()`` and then ``check``.

    Raises:
        SettingsError: "Sampler(thin=...) expects a whole number ≥ 1 or 'auto'; got 0."
    """

    subject: ClassVar[str] = ""  # the name in errors, by default that of the class
    __no_type_check__ = True  # else a run-time type checker would raise its error first

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
            if allowed := range_of(field.type):
                self.check(allowed.holds(getattr(self, field.name)), field.name, allowed.expected)

    def check(self, good: object, field: str, expected: str) -> None:
        """Raise a SettingsError about ``field`` unless ``good``."""
        if not good:
            name = f"{self.subject or type(self).__name__}({field}=...)"
            raise SettingsError(f"{name} expects {expected}; got {getattr(self, field)!r}.")


def fields_of(kind: type) -> dict[str, str]:
    """The range of each field that has one, in words, such as {"draws": "a whole number ≥ 1"}."""
    ranges = {field.name: range_of(field.type) for field in dataclasses.fields(kind)}
    return {name: allowed.expected for name, allowed in ranges.items() if allowed}


def expect(what: str, value: object, hint: object, error: type[TractableError] = SettingsError) -> None:
    """Raise "{what} expects {range}; got {value}." unless ``value`` is in the range of the type ``hint``."""
    allowed = range_of(hint)
    if allowed and not allowed.holds(value):
        raise error(f"{what} expects {allowed.expected}; got {value!r}.")


def members(what: str, given: object, good: Callable[[Any], Any], expected: str) -> list:
    """The members of a list; a SettingsError unless there is one at least, and each is ``good``."""
    values = list(given) if isinstance(given, Iterable) else []
    bad = next((f"{value!r} as member {i}" for i, value in enumerate(values) if not good(value)), None)
    if bad or not values:
        raise SettingsError(f"{what} expects {expected}; got {bad or repr(given)}.")
    return values


def check_seed(what: str, seed: object) -> int:
    """The seed as a Python int; a SettingsError unless it is a whole number from 0 to 4294967295."""
    expect(what, seed, Seed)
    return int(seed)  # pyright: ignore[reportArgumentType]


def expect_whole(what: str, value: object, error: type[TractableError] = SettingsError, of: str = "") -> None:
    """Raise "{what} is a whole number{of}, 1 or more; got {value}." unless ``value`` is such a number."""
    if not is_whole(value):
        raise error(f"{what} is a whole number{of}, 1 or more; got {value!r}.")


def range_of(hint: object) -> Range | None:
    """The range that a type states, or None.

    ``Annotated[type, Range(...)]``, ``Literal[...]``, ``bool``, ``None`` and unions of these state a range.
    ``Annotated[type, "words"]`` describes the range of ``type`` in other words; for a type without a range it allows
    all instances.
    """
    ranges = _alternatives(hint)
    if not ranges:
        return None
    *first, last = (allowed.expected for allowed in ranges)
    if not first:
        return ranges[0]
    comma = "," if last == "None" and " " in first[-1] else ""
    return Range(f"{', '.join(first)}{comma} or {last}", lambda value: any(r.holds(value) for r in ranges))


def _alternatives(hint: object) -> list[Range]:
    """The ranges of a union's members; [] if a member states no range."""
    kind, members = get_origin(hint), get_args(hint)
    if kind is Annotated:
        base, note = members[:2]
        if isinstance(note, Range):
            return [note]
        inner = range_of(base)
        holds = inner.holds if inner else lambda value: isinstance(value, base)
        return [Range(note, holds)] if isinstance(note, str) else []
    if kind is Literal:
        return [_single_value(value) for value in members]
    if kind in (Union, types.UnionType):
        parts = [_alternatives(member) for member in members]
        return list(itertools.chain(*parts)) if all(parts) else []
    if hint is bool:
        return [Range("True or False", lambda value: isinstance(value, bool))]
    return [_single_value(None)] if hint is types.NoneType else []


def _single_value(choice: object) -> Range:
    return Range(repr(choice), lambda value: isinstance(value, type(choice)) and value == choice)
