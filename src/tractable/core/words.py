"""The wording of messages, suggestions for misspelt names, and warnings."""

import difflib
import functools
import inspect
import sys
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
# Modules whose lines may lie between a user's line and the place that gives a warning.
BETWEEN = {"tractable", "contextlib", "functools", "beartype", "click", "jax", "joblib", "numpyro", "sklearn", "typer"}


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "row"), counted(1234, "row")
    ('1 row', '1,234 rows')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listing(names: Iterable[object]) -> str:
    """Names in quotes, separated by commas; at most twelve."""
    quoted = [repr(str(name)) for name in names]
    return ", ".join(quoted if len(quoted) <= 12 else [*quoted[:11], f"and {len(quoted) - 11} more"])


def nearest(name: object, names: Iterable[object]) -> str:
    """The end of an error about an unknown name, which suggests the most similar of ``names``; "" if none is similar.

    >>> nearest("drws", ["draws", "thin"]), nearest("x", ["draws", "thin"])
    (" Did you mean 'draws'?", '')
    """
    known = {str(other).lower(): str(other) for other in names}
    similar = difflib.get_close_matches(str(name).lower(), known, n=1)
    return f" Did you mean {known[similar[0]]!r}?" if similar else ""


def find(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry ``name`` of ``known``.

    Raises:
        DataError: there is no such entry; the message lists the names.
    """
    if name not in known:
        raise DataError(f"There is no {kind} {name!r}; expected one of {', '.join(known)}.{nearest(name, known)}")
    return known[name]


def removed(**instead: str) -> Callable[[T], T]:
    """A decorator that stores, for each removed argument, a sentence about what to pass instead."""

    def mark(function: T) -> T:
        vars(function)["removed"] = instead
        return function

    return mark


def check_spelling(
    name: str, given: Iterable[str], signature: inspect.Signature, removed: Mapping[str, str] = NOTHING
) -> None:
    """Raise an ArgumentError about the first argument that the signature lacks, with a remedy if it was removed."""
    known = signature.parameters
    unknown = next((argument for argument in given if argument not in known), "")
    if unknown in removed:
        raise ArgumentError(f"{name.removesuffix('()')}({unknown}=...) was removed in 0.2; {removed[unknown]}")
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        others = [argument for argument in known if argument != "self"]
        raise ArgumentError(f"{name} has no {unknown!r}; it has {', '.join(others)}.{nearest(unknown, others)}")


def spelt(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator: ``function`` raises an ``ArgumentError`` with a suggestion for a misspelt argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        check_spelling(f"{function.__name__}()", kwargs, signature, vars(function).get("removed", NOTHING))
        return function(*args, **kwargs)

    return called


class _SignatureOfInit:
    def __get__(self, instance: object, kind: type) -> inspect.Signature:
        signature = inspect.signature(kind.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class Spelt:
    """Base of classes whose constructors suggest the right spelling of an argument, as ``spelt`` does for functions."""

    _removed: ClassVar[Mapping[str, str]] = NOTHING  # for each removed argument, what to pass instead
    __signature__ = _SignatureOfInit()  # else inspect would show the signature of __new__

    def __new__(cls: type[Self], *args: object, **named: object) -> Self:
        if named:
            check_spelling(cls.__name__, named, inspect.signature(cls), cls._removed)
        return object.__new__(cls)


def tell(sentence: str, category: type[Warning] = TractableWarning) -> None:
    """Issue a warning, which names the line of the user's program that led to it."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame = frame.f_back
    names = frame.f_globals
    where = frame.f_code.co_filename, frame.f_lineno, names.get("__name__")
    warnings.warn_explicit(printable(sentence), category, *where, names.setdefault("__warningregistry__", {}))
