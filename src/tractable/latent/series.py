"""Sequences of unequal length as rows of one array, padded with NaN; NaN also marks missing numbers.

Hidden Markov and state-space models share these functions, which make such arrays, check them, loop over their steps,
and compute groups of sequences in parallel.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import DataError, ModelError
from tractable.core.numbers import Numbers, Real
from tractable.core.rows import Data
from tractable.core.settings import expect_whole
from tractable.core.tree import PyTree

CHUNK = 1 << 22  # how many numbers of the sequences are copied to float64 at a time


def sequences(parts: Sequence[Any], given: Sequence[Any] | None = None) -> Data:
    """Sequences of unequal length as ``Data``: one array, padded with NaN.

    Args:
        parts: each sequence's steps, (T_n,) or (T_n, d); NaN marks a missing step or number.
        given: each sequence's inputs, (T_n, …).

    Raises:
        DataError: there are no sequences, their steps differ in shape, or a sequence and its inputs differ in length.

    >>> sequences([[1.0, 2.0, 3.0], [4.0]]).y.tolist()
    [[1.0, 2.0, 3.0], [4.0, nan, nan]]
    """
    y = _pad(parts, "sequences(parts)", np.nan)
    if given is None:
        return Data(y, missing="keep")
    if list(map(len, parts)) != list(map(len, given)):
        raise DataError("sequences(given=...) expects inputs of as many steps as each sequence has.")
    return Data(y, _pad(given, "sequences(given)", 0.0), missing="keep")


def _pad(parts: Sequence[Any], name: str, fill: float) -> np.ndarray:
    arrays = [np.asarray(part, np.float64) for part in parts]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) != 1 or any(array.ndim == 0 or len(array) == 0 for array in arrays):
        got = ", ".join(str(array.shape) for array in arrays[:3]) or "nothing"
        raise DataError(f"{name} expects sequences of one step or more, (T,) or (T, d), of equal d; got {got}.")
    out = np.full((len(arrays), max(map(len, arrays)), *shapes.pop()), fill)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


def expect_sequences(y: Any, features: int | None) -> None:
    """Raise a DataError unless y is (n, T), or (n, T, features)."""
    shape = jnp.shape(y)
    if len(shape) != (2 if features is None else 3) or shape[2:] not in ((), (features,)):
        what = "(n, T)" if features is None else f"(n, T, {features})"
        raise DataError(f"Expected sequences of shape {what}, padded with NaN at their ends; got {shape}.")


def check_settings(sizes: dict[str, int | None], amounts: dict[str, Real]) -> None:
    """Raise a ModelError unless sizes are whole numbers above 0, or None, and amounts are finite and 0 or more."""
    for name, value in sizes.items():
        if value is not None:
            expect_whole(name, value, ModelError)
    for name, value in amounts.items():
        if not 0 <= value < np.inf:
            raise ModelError(f"{name} is 0 or more and finite; got {value}.")


def expect_numbers(name: str, value: Numbers | Real, count: int, least: float = -np.inf) -> tuple[float, ...]:
    """``count`` finite numbers above ``least``; a single number is repeated. Raises ModelError for other values."""
    numbers = np.asarray(value, np.float64).ravel()
    if numbers.size not in (1, count) or not np.isfinite(numbers).all() or not (numbers > least).all():
        what = "positive finite numbers" if least == 0 else "finite numbers"
        raise ModelError(f"{name} expects {what}, either one or {count}, one for each number of a step; got {value}.")
    return tuple(np.broadcast_to(numbers, (count,)).tolist())


def steps_of(rows: PyTree) -> Iterator[np.ndarray]:
    """The steps of all sequences, in chunks of shape (m, d), as float64."""
    y = jax.tree.leaves(rows)[0]
    size = max(1, CHUNK // max(1, int(np.prod(y.shape[1:]))))
    for start in range(0, len(y), size):
        part = np.asarray(y[start : start + size], np.float64)
        yield part.reshape(part.shape[0] * part.shape[1], -1)


def observed_steps(rows: PyTree) -> int:
    """The number of steps of all sequences with at least one observed number."""
    return sum(int(np.sum(~np.isnan(x).all(1))) for x in steps_of(rows))


def on_device(tree: PyTree) -> Any:
    """The pytree with its leaves as JAX arrays, on the device."""
    return jax.tree.map(jnp.asarray, tree)


def in_groups(function: Callable, rows: PyTree, lanes: int) -> PyTree:
    """The results of ``function`` on groups of ``lanes`` sequences, joined along their leading axis n."""
    leaves = jax.tree.leaves(rows)
    count = len(leaves[0])
    if count <= lanes:
        return function(rows)
    groups = -(-count // lanes)

    def split(a: jax.Array) -> jax.Array:
        padding = jnp.broadcast_to(a[:1], (groups * lanes - count, *a.shape[1:]))
        return jnp.concatenate([a, padding]).reshape(groups, lanes, *a.shape[1:])

    results = jax.lax.map(function, jax.tree.map(split, rows))
    return jax.tree.map(lambda a: a.reshape(groups * lanes, *a.shape[2:])[:count], results)


def up_to_last(is_observed: jax.Array) -> jax.Array:
    """An array (T, …) that is 1 up to a sequence's last observed step, and 0 after it."""
    index = jnp.arange(len(is_observed)).reshape(-1, *(1,) * (is_observed.ndim - 1))
    last = jnp.max(jnp.where(is_observed > 0, index, -1), axis=0, keepdims=True)
    return (index <= last).astype(jnp.result_type(float))
