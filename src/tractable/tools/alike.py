"""Finds what was written twice, as by a notebook's cell run again: programs compiled for one serve the other."""

import functools
import hashlib
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tractable.tools.tree import PyTree

MOST = 1 << 16  # bytes of an array that are compared, as they are again and again
INSTALLED = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
PLAIN = (type(None), bool, int, str, bytes, type(...), types.CodeType)
T = TypeVar("T")


class Unsure(Exception):
    """Nothing tells what a value consists of."""


def first_alike(made: T, parts: Callable[[T], PyTree], when_used: Hashable | None) -> T:
    """The first object that consists, now, of what ``made`` did when it was first used; ``made`` if there is none.

    Args:
        parts: what objects like ``made`` consist of.
        when_used: the ``contents`` of those parts of ``made``; None if they cannot be told.
    """
    if when_used is None:
        return made
    first = _first.setdefault(when_used, made)
    if first is not made and told(parts(first)) != when_used:  # what it captured has changed since
        first = _first[when_used] = made
    return first


_first: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()


def told(value: object) -> Hashable | None:
    """``contents``; None if they cannot be told."""
    try:
        found = contents(value)
        hash(found)
    except (Unsure, TypeError, ValueError):  # a part has no hash, or an empty cell
        return None
    return found


def contents(value: object, above: tuple[int, ...] = ()) -> Hashable:
    """What a value consists of: values for which JAX traces different programs differ in it.

    Of a function these are its code, its defaults, what it captured and the globals that it names, each by contents; of
    arrays and distributions their numbers. A module, a class or a function of an installed package is itself.

    Raises:
        Unsure: an object that might change unseen, a large array, or a function that names itself.
    """
    if id(value) in above or isinstance(value, Tracer):
        raise Unsure
    inside = functools.partial(contents, above=(*above, id(value)))
    if type(value) in PLAIN:
        return type(value), value
    if type(value) in (float, complex):
        return type(value), repr(value)  # which tells −0 from 0
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _numbers(value)
    if _installed(value):
        return value
    if isinstance(value, dict | types.MappingProxyType) and type(value) in (dict, types.MappingProxyType):
        return type(value), tuple((inside(key), inside(each)) for key, each in value.items())
    if isinstance(value, functools.partial) and _installed(type(value)):
        return type(value), inside(value.func), inside(value.args), inside(value.keywords)
    if isinstance(value, types.FunctionType):
        captured = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = value.__defaults__, value.__kwdefaults__, captured, _globals(value)
        # Names are looked up again when the function is traced, so functions of two modules are two.
        return value.__code__, id(value.__globals__), inside(parts)
    if type(value) is tuple or type(value) is list:
        return type(value), tuple(map(inside, value))
    if type(value).__module__ == "builtins" or not _installed(type(value)):
        raise Unsure
    children, structure = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
    if children and children[0] is value:
        raise Unsure
    return structure, tuple(map(inside, children))


def _numbers(array: np.ndarray | np.generic | jax.Array) -> Hashable:
    if jnp.issubdtype(array.dtype, jax.dtypes.extended) or array.dtype.hasobject or array.nbytes > MOST:
        raise Unsure
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
    return type(array), str(array.dtype), array.shape, getattr(array, "weak_type", False), digest


def _installed(value: object) -> bool:
    """Whether a value is a module of Python or of an installed package, or what such a module defines by name."""
    if isinstance(value, types.ModuleType):
        file = getattr(value, "__file__", None) or ""
        ours = value.__name__.partition(".")[0] == __name__.partition(".")[0]
        return ours or value.__name__ in sys.builtin_module_names or file.startswith(INSTALLED)
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    defined = module is not None and getattr(module, str(getattr(value, "__name__", None)), None) is value
    return defined and _installed(module)


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function names, by name; its attributes' names are taken for such too."""
    if (module := sys.modules.get(function.__module__)) is not None and _installed(module):
        return {}
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return {name: function.__globals__[name] for name in sorted(names & function.__globals__.keys())}
