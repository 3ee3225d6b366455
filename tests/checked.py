"""beartype, once for functions that are alike: those that a function defines anew at every call."""

from collections.abc import Callable
from typing import Any

import beartype

_checkers: dict[tuple, Callable] = {}


def once(function: Any) -> Any:
    """``beartype.beartype``, which takes 2 ms, remembered by what it looks at.

    jaxtyping gives it not the function but an empty one of its signature, so one checker serves all functions of equal
    name, parameters and annotations. One with defaults, which beartype checks too, gets its own.
    """
    if not hasattr(function, "__code__") or function.__defaults__ or function.__kwdefaults__:
        return beartype.beartype(function)
    key = (function.__module__, function.__qualname__, function.__code__, tuple(function.__annotations__.items()))
    try:
        known = _checkers.get(key)
    except TypeError:  # an annotation that has no hash
        return beartype.beartype(function)
    if known is None:
        known = _checkers[key] = beartype.beartype(function)
    return known
