"""The same arguments give the same object, so that what was compiled for it is found again."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax.numpy as jnp

P = ParamSpec("P")
T = TypeVar("T")


def shared(factory: Callable[P, T]) -> Callable[P, T]:
    """``factory``, which gives the same arguments, however they are passed, the same object; all are hashable."""
    signature = inspect.signature(factory)

    @functools.lru_cache(maxsize=128)
    def made(precision: jnp.dtype, *arguments: object) -> T:
        return factory(*arguments)  # pyright: ignore[reportCallIssue]

    @functools.wraps(factory)
    def lookup(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # What holds arrays belongs to the precision in force when it was made.
        return made(jnp.result_type(float), *bound.args)

    return lookup
