"""Ranges of settings: what passes, what does not and in which words; and that every method's field states one."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from tractable.core.errors import ModelError, SettingsError
from tractable.core.settings import (
    Count,
    NotNegative,
    Positive,
    Range,
    Settings,
    Share,
    at_least,
    between,
    expect,
    expect_whole,
    fields_of,
    is_number,
    is_whole,
    range_of,
)
from tractable.evidence import settings as evidence
from tractable.methods import METHODS

pytestmark = pytest.mark.quick

HALF_OPEN = Annotated[float, between(0.5, 1, closed=True)]
EVEN = Annotated[int, Range("an even number", lambda value: is_whole(value) and value % 2 == 0)]


@pytest.mark.parametrize("value", [1, 7, np.int64(1), np.uint8(200), 10**400])
def test_whole_numbers(value):
    assert is_whole(value)


@pytest.mark.parametrize("value", [0, -1, True, np.bool_(True), 1.0, np.float32(2), "3", None, [1], np.ones(1, int)])
def test_what_is_no_whole_number(value):
    assert not is_whole(value)


def test_least():
    assert is_whole(4, 4) and is_whole(0, 0) and not is_whole(3, 4)


@pytest.mark.parametrize("value", [0, -1.5, np.float32(2), np.int64(3), 10**400])
def test_numbers(value):
    assert is_number(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, np.bool_(False), "1", None, 1j, [1.0]])
def test_what_is_no_number(value):
    assert not is_number(value)


# hint, words, what passes, what fails
RANGES: dict[str, tuple[Any, str, list, list]] = {
    "count": (Count, "a whole number ≥ 1", [1, np.int32(5)], [0, True, 2.0, "1", None, math.nan]),
    "at least": (Annotated[int, at_least(0)], "a whole number ≥ 0", [0, 3], [-1, False, 0.0]),
    "positive": (Positive, "a positive finite number", [1, 1e-9], [0, -1.0, math.inf, math.nan, True, "1", None]),
    "not negative": (NotNegative, "a finite number ≥ 0", [0, 0.0, 2], [-1e-9, math.inf, math.nan, False]),
    "share": (Share, "a number in (0, 1)", [0.5, 1e-9], [0, 1, 0.0, 1.0, math.nan, True, "0.5"]),
    "half open": (HALF_OPEN, "a number in (0.5, 1]", [0.6, 1, 1.0], [0.5, 1.01, True, math.nan]),
    "one of": (Literal["mode", "random"], "'mode' or 'random'", ["mode", np.str_("random")], ["Mode", None, 1]),
    "one of three": (Literal[None, "a", "b"], "None, 'a' or 'b'", [None, "a", "b"], ["c", 0, False]),
    "switch": (bool, "True or False", [True, False], [0, 1, "no", None, np.ones(2, bool)]),
    "own words": (EVEN, "an even number", [2, 4], [1, 0, 2.0]),
    "any of a kind": (Annotated[Fraction, "a fraction"], "a fraction", [Fraction(1, 2)], [0.5, None]),
    "words for choices": (Annotated[Literal["a"], "'a', alone"], "'a', alone", ["a"], ["b", None]),
    "function": (Annotated[Callable, "a function t -> ε"], "a function t -> ε", [abs, lambda t: t], ["abs", 1]),
    "or None": (Count | None, "a whole number ≥ 1, or None", [1, None], [0, "none", False]),
    "choice or None": (Literal["a"] | None, "'a' or None", ["a", None], ["b", 0]),
    "or a word": (Count | Literal["auto"], "a whole number ≥ 1 or 'auto'", [3, "auto"], [0, "all", None, True]),
    "any of three": (
        Positive | Literal["auto"] | Annotated[Callable, "a schedule"],
        "a positive finite number, 'auto' or a schedule", [0.1, "auto", abs], [0.0, "fast", None, True],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_ranges(name):
    hint, words, passing, failing = RANGES[name]
    for value in passing:
        expect("x", value, hint)
    for value in failing:
        with pytest.raises(SettingsError) as caught:
            expect("x", value, hint)
        assert str(caught.value) == f"x expects {words}; got {value!r}."


@pytest.mark.parametrize("hint", [int, Any, str | None, Count | str, Annotated[int, 3], "int"])
def test_a_type_may_state_no_range(hint):
    assert range_of(hint) is None
    expect("x", object(), hint)


def test_other_errors_and_other_words():
    with pytest.raises(ModelError, match=r"features expects a whole number ≥ 1; got 0\."):
        expect("features", 0, Count, ModelError)
    with pytest.raises(SettingsError, match=r"A chunk is a whole number of rows, 1 or more; got True\."):
        expect_whole("A chunk", True, of=" of rows")
    with pytest.raises(ModelError, match=r"features is a whole number, 1 or more; got 0\.5\."):
        expect_whole("features", 0.5, ModelError)
    expect_whole("features", np.int64(3))


@dataclass(frozen=True, kw_only=True)
class Sampler(Settings):
    draws: Count = 10
    rate: Positive = 0.1
    start: Literal["mode", "random"] = "mode"
    note: Any = None


@dataclass(frozen=True, kw_only=True)
class Tuned(Sampler):
    draws: Count | Literal["auto"] = "auto"  # pyright: ignore
    level: Share = 0.9


def test_fields():
    assert fields_of(Sampler) == {
        "draws": "a whole number ≥ 1", "rate": "a positive finite number", "start": "'mode' or 'random'"
    }  # fmt: skip
    with pytest.raises(SettingsError, match=r"^Sampler\(draws=\.\.\.\) expects a whole number ≥ 1; got 0\.$"):
        Sampler(draws=0)
    with pytest.raises(SettingsError, match=r"Sampler\(draws=\.\.\.\)"):
        dataclasses.replace(Sampler(), draws=True)
    assert Sampler(note=object()).draws == 10


def test_a_subclass_says_its_own_ranges():
    assert list(fields_of(Tuned)) == ["draws", "rate", "start", "level"]
    assert Tuned().draws == "auto" and Tuned(draws=3).draws == 3
    with pytest.raises(SettingsError, match=r"Tuned\(draws=\.\.\.\) expects a whole number ≥ 1 or 'auto'; got 'all'"):
        Tuned(draws="all")  # pyright: ignore
    with pytest.raises(SettingsError, match=r"Tuned\(rate=\.\.\.\)"):
        Tuned(rate=-1.0)


def test_numpy_s_numbers_become_python_s():
    """So that they print, are equal and are saved as the numbers that they are."""
    made = Sampler(draws=np.int64(3), rate=np.float32(0.5), start=np.str_("random"))  # pyright: ignore
    assert made == Sampler(draws=3, rate=0.5, start="random")
    assert [type(value) for value in (made.draws, made.rate, made.start)] == [int, float, str]


@pytest.mark.parametrize("label", METHODS)
def test_every_field_of_every_method_states_its_range(label):
    kind = METHODS[label]
    assert list(fields_of(kind)) == [field.name for field in dataclasses.fields(kind)]
    for name, expected in fields_of(kind).items():
        with pytest.raises(SettingsError) as caught:
            kind(**{name: object()})
        assert str(caught.value).startswith(f"{kind.__name__}({name}=...) expects {expected}; got <object")


@pytest.mark.parametrize("kind", evidence.METHODS.values())
def test_every_setting_of_the_evidence_states_its_range(kind):
    for name, expected in fields_of(kind).items():
        with pytest.raises(SettingsError) as caught:
            kind(**{name: object()})
        assert str(caught.value).startswith(f"log_evidence({name}=...) expects {expected}; got <object")
    assert list(fields_of(kind)) == [field.name for field in dataclasses.fields(kind)]
