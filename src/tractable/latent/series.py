"""Sequences of unequal length as rows: one array, padded with NaN, which also marks missing numbers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import DataError
from tractable.core.rows import Data
from tractable.core.tree import PyTree

CHUNK = 1 << 22  # numbers checked at a time


def sequences(parts: Sequence[Any], given: Sequence[Any] | None = None) -> Data:
    """Sequences of unequal length as ``Data``: one array, padded with NaN.

    Args:
        parts: each sequence's steps, (T_n,) or (T_n, d); NaN marks a missing step or number.
        given: each sequence's inputs, (T_n, …).

    Raises:
        DataError: no sequences, steps of different shapes, or inputs of another length.

    >>> sequences([[1.0, 2.0, 3.0], [4.0]]).y.tolist()
    [[1.0, 2.0, 3.0], [4.0, nan, nan]]
    """
    y = _filled(parts, "sequences(parts)", np.nan)
    if given is None:
        return Data(y, missing="keep")
    lengths = [[len(part) for part in each] for each in (parts, given)]
    if lengths[0] != lengths[1]:
        raise DataError("sequences(given=...) expects as many steps of inputs as each sequence has.")
    return Data(y, _filled(given, "sequences(given)", 0.0), missing="keep")


def _filled(parts: Sequence[Any], name: str, fill: float) -> np.ndarray:
    arrays = [np.asarray(part, np.float64) for part in parts]
    shapes = {each.shape[1:] for each in arrays}
    if len(shapes) != 1 or any(each.ndim == 0 or len(each) == 0 for each in arrays):
        got = ", ".join(str(each.shape) for each in arrays[:3]) or "nothing"
        raise DataError(f"{name} expects sequences of one step or more, (T,) or (T, d), of equal d; got {got}.")
    out = np.full((len(arrays), max(map(len, arrays)), *shapes.pop()), fill)
    for row, each in zip(out, arrays, strict=True):
        row[: len(each)] = each
    return out


def steps_of(rows: PyTree) -> Iterator[np.ndarray]:
    """All steps, in chunks (m, d)."""
    y = jax.tree.leaves(rows)[0]
    each = max(1, CHUNK // max(1, int(np.prod(y.shape[1:]))))
    for start in range(0, len(y), each):
        part = np.asarray(y[start : start + each], np.float64)
        yield part.reshape(part.shape[0] * part.shape[1], -1)


def observed_steps(rows: PyTree) -> int:
    """The number of observed steps."""
    return sum(int(np.sum(~np.isnan(x).all(1))) for x in steps_of(rows))


def arrays(theta: PyTree) -> Any:
    """A pytree's leaves on the device."""
    return jax.tree.map(jnp.asarray, theta)


def in_groups(function: Callable, rows: PyTree, lanes: int) -> PyTree:
    """``function`` applied to groups of ``lanes`` sequences; the results again have leading axis n."""
    leaves = jax.tree.leaves(rows)
    count = len(leaves[0])
    if count <= lanes:
        return function(rows)
    groups = -(-count // lanes)

    def padded(a: jax.Array) -> jax.Array:
        more = jnp.broadcast_to(a[:1], (groups * lanes - count, *a.shape[1:]))
        return jnp.concatenate([a, more]).reshape(groups, lanes, *a.shape[1:])

    found = jax.lax.map(function, jax.tree.map(padded, rows))
    return jax.tree.map(lambda a: a.reshape(groups * lanes, *a.shape[2:])[:count], found)


def after(there: jax.Array) -> jax.Array:
    """(T, …) 1 up to the last observed step, 0 after it."""
    index = jnp.arange(len(there)).reshape(-1, *(1,) * (there.ndim - 1))
    last = jnp.max(jnp.where(there > 0, index, -1), axis=0, keepdims=True)
    return (index <= last).astype(jnp.result_type(float))
