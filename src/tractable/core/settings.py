"""Settings with ranges: a field's type states its range, in the words of the error for a value outside it."""

import dataclasses
import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np

from tractable.core.errors import SettingsError, TractableError
from tractable.core.words import Spelt


class Range(NamedTuple):
    """The values allowed, for ``Annotated[type, Range(...)]``."""

    expected: str  # the words after "expects" in an error
    holds: Callable[[Any], Any]


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
# In single precision JAX cuts seeds to 32 bits: larger ones would equal smaller ones.
SEEDS = Range(f"a whole number from 0 to {2**32 - 1}", lambda value: is_whole(value, 0) and value < 2**32)
Seed = Annotated[int, SEEDS]


@dataclass(frozen=True, kw_only=True)
class Settings(Spelt):
    """Base of dataclasses that check their fields against the ranges in the fields' types.

        class Sampler(Settings):
            draws: Count = 1000
            thin: Count | Literal["auto"] = "auto"

    NumPy scalars become Python numbers and strings, which print and are saved plainly. For a rule between fields,
    write a ``__post_init__`` that calls this class's first, and then ``check``.

    Raises:
        SettingsError: "Sampler(thin=...) expects a whole number ≥ 1 or 'auto'; got 0."
    """

    subject: ClassVar[str] = ""  # the name in errors, in place of the class's
    __no_type_check__ = True  # else a run-time type checker would raise its own error before ours

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
            if allowed := range_of(field.type):
                self.check(allowed.holds(getattr(self, field.name)), field.name, allowed.expected)

    def check(self, good: object, field: str, expected: str) -> None:
        """Raises a SettingsError about ``field`` unless ``good``."""
        if not good:
            what = f"{self.subject or type(self).__name__}({field}=...)"
            raise SettingsError(f"{what} expects {expected}; got {getattr(self, field)!r}.")


def fields_of(kind: type) -> dict[str, str]:
    """What each field with a range expects, such as {"draws": "a whole number ≥ 1"}."""
    found = {field.name: range_of(field.type) for field in dataclasses.fields(kind)}
    return {name: allowed.expected for name, allowed in found.items() if allowed}


def expect(what: str, value: object, hint: object, error: type[TractableError] = SettingsError) -> None:
    """Raises "{what} expects {range}; got {value}." unless ``value`` is in the range of the type ``hint``."""
    allowed = range_of(hint)
    if allowed and not allowed.holds(value):
        raise error(f"{what} expects {allowed.expected}; got {value!r}.")


def seeded(what: str, seed: object) -> int:
    """The seed as a Python int; raises "{what} expects a whole number from 0 to 4294967295; got {seed}."."""
    expect(what, seed, Seed)
    return int(seed)  # pyright: ignore[reportArgumentType]


def expect_whole(what: str, value: object, error: type[TractableError] = SettingsError, of: str = "") -> None:
    """Raises "{what} is a whole number{of}, 1 or more; got {value}." unless it is."""
    if not is_whole(value):
        raise error(f"{what} is a whole number{of}, 1 or more; got {value!r}.")


def range_of(hint: object) -> Range | None:
    """The range that a type states, or None.

    ``Annotated[type, Range(...)]``, ``Literal[...]``, ``bool``, ``None`` and unions state one; ``Annotated[type,
    "words"]`` gives a range its own words, or allows all instances of any other type under these words.
    """
    ranges = _alternatives(hint)
    if not ranges:
        return None
    *first, last = (one.expected for one in ranges)
    if not first:
        return ranges[0]
    comma = "," if last == "None" and " " in first[-1] else ""
    return Range(f"{', '.join(first)}{comma} or {last}", lambda value: any(one.holds(value) for one in ranges))


def _alternatives(hint: object) -> list[Range]:
    """The ranges of a union's members; [] if a member states none."""
    kind, members = get_origin(hint), get_args(hint)
    if kind is Annotated:
        of, note = members[:2]
        if isinstance(note, Range):
            return [note]
        inner = range_of(of)
        holds = inner.holds if inner else lambda value: isinstance(value, of)
        return [Range(note, holds)] if isinstance(note, str) else []
    if kind is Literal:
        return [_only(value) for value in members]
    if kind in (Union, types.UnionType):
        parts = [_alternatives(member) for member in members]
        return [one for part in parts for one in part] if all(parts) else []
    if hint is bool:
        return [Range("True or False", lambda value: isinstance(value, bool))]
    return [_only(None)] if hint is types.NoneType else []


def _only(choice: object) -> Range:
    return Range(repr(choice), lambda value: isinstance(value, type(choice)) and value == choice)
