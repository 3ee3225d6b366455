"""The same arguments give the same object, so that what was compiled for it is found again."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

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
        return made(jnp.result_type(float), *map(_hashable, bound.args))

    return lookup


def _hashable(value: object) -> object:
    if isinstance(value, np.ndarray | jax.Array):
        value = value.tolist()
    return tuple(map(_hashable, value)) if type(value) in (list, tuple) else value  # pyright: ignore
