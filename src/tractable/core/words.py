"""Helpers for the wording of messages, and warnings."""

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, ParamSpec, TypeVar

from tractable.core.errors import ArgumentError, DataError, TractableWarning
from tractable.core.shown import printable

P = ParamSpec("P")
T = TypeVar("T")
Self = TypeVar("Self", bound="Spelt")
NOTHING: Mapping[str, str] = MappingProxyType({})


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "row"), counted(1234, "row")
    ('1 row', '1,234 rows')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listing(names: Iterable[object]) -> str:
    """Names in quotes, up to twelve."""
    quoted = [repr(str(name)) for name in names]
    return ", ".join(quoted if len(quoted) <= 12 else [*quoted[:11], f"and {len(quoted) - 11} more"])


def nearest(name: object, names: Iterable[object]) -> str:
    """The end of an error about an unknown name: the most similar of ``names``, or "".

    >>> nearest("drws", ["draws", "thin"]), nearest("x", ["draws", "thin"])
    (" Did you mean 'draws'?", '')
    """
    known = {str(each).lower(): str(each) for each in names}
    found = difflib.get_close_matches(str(name).lower(), known, n=1)
    return f" Did you mean {known[found[0]]!r}?" if found else ""


def find(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry of that name.

    Raises:
        DataError: there is none; the message lists the names.
    """
    if name not in known:
        raise DataError(f"There is no {kind} {name!r}; expected one of {', '.join(known)}.{nearest(name, known)}")
    return known[name]


def removed(**instead: str) -> Callable[[T], T]:
    """A decorator for a function that has lost arguments: what to write in place of each."""

    def mark(function: T) -> T:
        vars(function)["removed"] = instead
        return function

    return mark


def check_spelling(
    name: str, given: Iterable[str], signature: inspect.Signature, removed: Mapping[str, str] = NOTHING
) -> None:
    known = signature.parameters
    strange = next((each for each in given if each not in known), "")
    if strange in removed:
        raise ArgumentError(f"{name.removesuffix('()')}({strange}=...) was removed in 0.2; {removed[strange]}")
    if strange and not any(one.kind is one.VAR_KEYWORD for one in known.values()):
        others = [each for each in known if each != "self"]
        raise ArgumentError(f"{name} has no {strange!r}; it has {', '.join(others)}.{nearest(strange, others)}")


def spelt(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, which raises an ``ArgumentError`` with a suggestion for a misspelt argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        check_spelling(f"{function.__name__}()", kwargs, signature, vars(function).get("removed", NOTHING))
        return function(*args, **kwargs)

    return called


class _OfInit:
    def __get__(self, instance: object, kind: type) -> inspect.Signature:
        signature = inspect.signature(kind.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class Spelt:
    """Base of classes whose errors suggest an argument's right spelling, as ``spelt`` does for functions."""

    removed: ClassVar[Mapping[str, str]] = NOTHING  # of removed arguments: what to write in place of each
    __signature__ = _OfInit()  # else inspect would show __new__'s

    def __new__(cls: type[Self], *args: object, **named: object) -> Self:
        if named:
            check_spelling(cls.__name__, named, inspect.signature(cls), cls.removed)
        return object.__new__(cls)


def tell(sentence: str) -> None:
    """Issue a TractableWarning."""
    warnings.warn(printable(sentence), TractableWarning, stacklevel=3)
