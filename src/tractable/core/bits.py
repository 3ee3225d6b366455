"""Decides whether a run needs double precision, and runs code in the chosen precision.

Single precision rounds the log density of the rows with an error of about

    ε √Σₙ (wₙ cₙ)²,    ε = 2⁻²⁴

For a count y, c = y (1 + log(1 + y)), the size of the terms that cancel in its log density. For other numbers, and for
inputs, c = max |y| / sd, the size of the numbers relative to their differences. A run uses double precision if the
error is large, or if the squares of some numbers overflow or vanish in single precision.
"""

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import enough_memory
from tractable.core.scales import moments
from tractable.core.tree import PyTree

EPSILON = 2.0**-24
ERROR = 0.05  # largest rounding error in single precision, in nats (units of the natural logarithm)
LEAST, MOST = 2.0**-60, 2.0**60  # between these, squares and products of two numbers neither vanish nor overflow
SAMPLE = 1 << 20  # at most about this many numbers of an array are examined
SINGLE_ONLY = ("tpu", "METAL")  # backends without double precision
Owner = TypeVar("Owner", bound=type)


def need_double(y: PyTree, given: PyTree = None, weights: np.ndarray | None = None) -> bool:
    """Whether a run on these rows, pytrees of arrays (n, ...), needs double precision."""
    if jnp.result_type(float) != jnp.float32 or jax.default_backend() in SINGLE_ONLY:
        return False
    for rows, counts in ((y, True), (given, False)):
        for leaf in map(np.asarray, jax.tree.leaves(rows)):
            if leaf.dtype.kind in "iuf" and leaf.size:
                size = np.abs(np.asarray(leaf[:: -(-leaf.size // SAMPLE)], np.float64))
                exceeds_range = np.any((size < LEAST) & (size > 0)) or np.any((size > MOST) & np.isfinite(size))
                if exceeds_range or rounding(leaf, weights, counts) > ERROR:
                    return True
    return False


def rounding(leaf: np.ndarray, weights: np.ndarray | None = None, counts: bool = True) -> float:
    """The approximate error, in nats, of the log density of rows (n, ...) in single precision.

    Args:
        counts: whether columns of whole numbers ≥ 0 are counts.
    """
    if leaf.dtype.kind not in "iuf" or not leaf.size:
        return 0.0
    stride = -(-leaf.size // SAMPLE)
    rows = np.asarray(leaf[::stride], np.float64)
    rows = rows.reshape(len(rows), -1)
    rows = np.where(np.isfinite(rows), rows, 0.0)
    row_weights = np.ones(len(rows)) if weights is None else np.asarray(weights[::stride], np.float64)
    are_counts = counts & (rows.min(0) >= 0) & np.all(rows == np.floor(rows), axis=0)
    largest, sd = np.abs(rows).max(0), moments(rows)[1]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        relative_size = np.where(sd > 0, largest / sd, 1.0)
        terms = np.where(are_counts, rows * (1 + np.log1p(rows)), relative_size)
        return EPSILON * float(np.max(np.sqrt(stride * np.sum(np.square(row_weights[:, None] * terms), axis=0))))


def in_double(on: bool) -> AbstractContextManager:
    """A context in which JAX computes in double precision if ``on``; otherwise the user's setting holds."""
    return jax.enable_x64(True) if on else contextlib.nullcontext()


class CachedProperty:
    """A cached property with one value for each precision, as a value may hold arrays of that precision."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.single, self.double = f"_{name} in 32 bits", f"_{name} in 64 bits"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        name, cache = self.single if jnp.result_type(float) == jnp.float32 else self.double, vars(instance)
        if name not in cache:
            cache[name] = self.compute(instance)
        return cache[name]


def as_learnt(owner: Owner) -> Owner:
    """A class decorator: public methods and properties run in double precision if ``self.found["double"]`` is true."""
    for name, value in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, property) and value.fget:
            setattr(owner, name, property(_precise(value.fget)))
        elif isinstance(value, functools.cached_property):
            value.func = _precise(value.func)
        elif callable(value) and not isinstance(value, type):
            setattr(owner, name, _precise(value))
    return owner


def _precise(function: Callable) -> Callable:
    """The method, run in the precision of the run."""

    @functools.wraps(function)
    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        with enough_memory(), in_double(bool(getattr(self, "found").get("double", False))):  # noqa: B009
            return function(self, *args, **kwargs)

    return call
