"""The same arguments give the same object, so that what was compiled for it is found again."""

import contextlib
import functools
import importlib
import inspect
import json
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.tools.errors import CheckpointError

HOME = "tractable."
P = ParamSpec("P")
T = TypeVar("T")


def shared(factory: Callable[P, T]) -> Callable[P, T]:
    """``factory``, which gives the same arguments, however they are passed, the same object.

    Lists and arrays come to it as tuples; all else is hashable.
    """
    signature = inspect.signature(factory)

    @functools.lru_cache(maxsize=128)
    def made(precision: jnp.dtype, *arguments: object) -> T:
        return factory(*arguments)  # pyright: ignore[reportCallIssue]

    @functools.wraps(factory)
    def lookup(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # What holds arrays belongs to the precision in force when it was made.
        found = made(jnp.result_type(float), *map(_hashable, bound.args))
        with contextlib.suppress(TypeError):  # a function or a tuple is not remembered
            _makers.setdefault(found, (factory, {name: _hashable(value) for name, value in bound.arguments.items()}))
        return found

    return lookup


_makers: weakref.WeakKeyDictionary[object, tuple[Callable, dict[str, object]]] = weakref.WeakKeyDictionary()


def recipe(made: object) -> dict[str, object] | None:
    """By which of this library's functions and from what something was made, as JSON can hold it; None if unknown."""
    factory, arguments = _makers.get(made, (None, {}))
    if factory is None or not factory.__module__.startswith(HOME) or "<" in factory.__qualname__:
        return None
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return {"module": factory.__module__, "name": factory.__qualname__, "arguments": arguments}


def made_again(recipe: Mapping[str, Any]) -> object:
    """What a ``recipe`` of this library's functions makes."""
    if not recipe["module"].startswith(HOME):
        raise CheckpointError(f"This was made by {recipe['module']}, which is no part of tractable: give the model.")
    return getattr(importlib.import_module(recipe["module"]), recipe["name"])(**recipe["arguments"])


def _hashable(value: object) -> object:
    if isinstance(value, np.ndarray | jax.Array):
        value = value.tolist()
    return tuple(map(_hashable, value)) if type(value) in (list, tuple) else value  # pyright: ignore
