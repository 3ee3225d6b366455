"""Rows whose log densities single precision rounds by more than chance moves them: runs on them use double precision.

    error of Σₙ log p(yₙ | θ)  ≈  ε √Σₙ (wₙ cₙ)²,    ε = 2⁻²⁴

c of a count y is y (1 + log(1 + y)), the size of the terms that cancel in its log density; of other numbers max |y|/sd,
how much their distance from a mean is smaller than they are. The same of inputs.

Numbers whose squares single precision cannot hold, below 2⁻⁶⁰ or above 2⁶⁰, need double precision too.
"""

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.scales import moments
from tractable.core.tree import PyTree

EPSILON = 2.0**-24
ERROR = 0.05  # nats above which a run uses double precision
LEAST, MOST = 2.0**-60, 2.0**60  # between these, squares and products of two numbers neither vanish nor overflow
SEEN = 1 << 20  # numbers of an array that are looked at
SINGLE_ONLY = ("tpu", "METAL")  # backends without double precision
BITS = ("in 32 bits", "in 64 bits")
Owner = TypeVar("Owner", bound=type)


def need_double(y: PyTree, given: PyTree = None, weights: np.ndarray | None = None) -> bool:
    """Whether single precision rounds log densities of rows, arrays (n, ...), by more than ``ERROR`` nats, or cannot
    hold their squares.
    """
    if jnp.result_type(float) != jnp.float32 or jax.default_backend() in SINGLE_ONLY:
        return False
    for rows, counts in ((y, True), (given, False)):
        for leaf in map(np.asarray, jax.tree.leaves(rows)):
            if leaf.dtype.kind in "iuf" and leaf.size:
                size = np.abs(np.asarray(leaf[:: -(-leaf.size // SEEN)], np.float64))
                exceeds_range = np.any((size < LEAST) & (size > 0)) or np.any((size > MOST) & np.isfinite(size))
                if exceeds_range or rounding(leaf, weights, counts) > ERROR:
                    return True
    return False


def rounding(leaf: np.ndarray, weights: np.ndarray | None = None, counts: bool = True) -> float:
    """Nats by which single precision rounds the log density of rows (n, ...), roughly; may they be ``counts``?"""
    if leaf.dtype.kind not in "iuf" or not leaf.size:
        return 0.0
    stride = -(-leaf.size // SEEN)
    some = np.asarray(leaf[::stride], np.float64)
    some = some.reshape(len(some), -1)
    some = np.where(np.isfinite(some), some, 0.0)
    each = np.ones(len(some)) if weights is None else np.asarray(weights[::stride], np.float64)
    counted = counts & (some.min(0) >= 0) & np.all(some == np.floor(some), axis=0)
    largest, sd = np.abs(some).max(0), moments(some)[1]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        away = np.where(sd > 0, largest / sd, 1.0)
        terms = np.where(counted, some * (1 + np.log1p(some)), away)
        return EPSILON * float(np.max(np.sqrt(stride * np.sum(np.square(each[:, None] * terms), axis=0))))


def in_double(on: bool) -> AbstractContextManager:
    """A context in which JAX computes in double precision, if ``on``; the user's own setting stays as it is."""
    return jax.enable_x64(True) if on else contextlib.nullcontext()


class CachedProperty:
    """A property that is computed once in single precision and once in double: what it holds is of that precision."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.single, self.double = (f"{name} {bits}" for bits in BITS)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        name, cache = self.single if jnp.result_type(float) == jnp.float32 else self.double, vars(instance)
        if name not in cache:
            cache[name] = self.compute(instance)
        return cache[name]


def as_learnt(owner: Owner) -> Owner:
    """A class whose public methods run in the precision of the run: double where its ``found`` says so."""
    for name, value in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            setattr(owner, name, property(_precise(value.fget)))
        elif isinstance(value, functools.cached_property):
            value.func = _precise(value.func)
        elif callable(value) and not isinstance(value, type):
            setattr(owner, name, _precise(value))
    return owner


def _precise(function: Callable | None) -> Callable:
    assert function is not None, "a property without a getter"

    @functools.wraps(function)
    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        with in_double(bool(getattr(self, "found").get("double", False))):  # noqa: B009
            return function(self, *args, **kwargs)

    return call
