"""The estimators' tables: distinct rows with weights, standardised and padded to one of a few lengths."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import DataError
from tractable.core.rows import Data
from tractable.core.scales import moments
from tractable.core.tree import PyTree
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.sharding import OverDevices

LEAST = 64  # how many rows the smallest compiled table has
FINE = 8  # how many lengths of tables there are between two successive powers of two, above 256 rows
MERGED = 1 << 16  # with up to this many rows, equal rows are merged and tables are padded
SAMPLED = 1000  # how many rows, from the first on, are examined to see which columns distinguish rows


class Rows(NamedTuple):
    """Distinct rows sorted by their values, and their weights."""

    x: np.ndarray  # (n, D)
    y: np.ndarray  # (n,), or (n, K) for several outputs
    weight: np.ndarray  # (n,), > 0


class Scaling(NamedTuple):
    """The standardisation x → (x − centre)/scale and y → (y − middle)/spread; a constant column has scale 1."""

    centre: np.ndarray  # (D,)
    scale: np.ndarray  # (D,)
    middle: Any = 0.0  # a number, or (K,) for several outputs
    spread: Any = 1.0

    @property
    def outputs(self) -> int | None:
        """K for several outputs; None if y is (n,)."""
        return len(self.middle) if np.ndim(self.middle) else None

    def inputs(self, x: np.ndarray) -> np.ndarray:
        return (x - self.centre) / self.scale

    def targets(self, y: np.ndarray) -> np.ndarray:
        return (y - self.middle) / self.spread


def distinct(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Rows:
    """Merge equal rows into one with their summed weight, and drop rows of weight zero.

    A likelihood depends neither on the order of the rows nor on whether a row is repeated or has weight 2. Tables that
    differ only in this way become equal here. So every method, even a stochastic one, gives them the same fit to the
    last digit.

    >>> distinct(np.array([[2.0], [1.0], [2.0]]), np.array([0.0, 0.0, 0.0]), np.array([1.0, 3.0, 1.0])).weight
    array([3., 2.])
    """
    counts = weight > 0
    table = np.column_stack([x, y])
    table, weight = table if counts.all() else table[counts], weight[counts]
    table += 0.0  # turns −0 into 0, so that the two compare equal
    order, new = _in_order(table)
    table, weight = table[order], weight[order]
    table = table if new.all() else table[new]  # tables may be large, so they are copied only where needed
    targets = table[:, x.shape[1] :].reshape(-1, *y.shape[1:])
    return Rows(table[:, : x.shape[1]], targets, np.bincount(np.cumsum(new) - 1, weight))


def _in_order(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows by their values.

    To sort by every column would take longer than most fits. So the function first sorts by the columns up to the first
    column in which most rows differ. It then sorts only the rows that are still equal, by the other columns.

    Returns:
        (n,) the order of the rows, as by ``np.lexsort``; (n,) whether each sorted row differs from the row before it.
    """
    varied = [len(np.unique(column)) > len(column) / 2 for column in table[:SAMPLED].T]
    first = 1 + (varied.index(True) if any(varied) else len(varied) - 1)
    order = np.lexsort(table[:, :first].T[::-1])
    new = np.append(True, np.any(table[order[1:], :first] != table[order[:-1], :first], axis=1))
    tied = np.flatnonzero(~(new & np.append(new[1:], True)))
    if len(tied) and first < table.shape[1]:
        by = np.lexsort((*table[order[tied], first:].T[::-1], np.cumsum(new)[tied]))
        order[tied] = order[tied[by]]
        later = tied[~new[tied]]
        new[later] = np.any(table[order[later]] != table[order[later - 1]], axis=1)
    return order, new


def scaling(rows: Rows, targets: bool) -> Scaling:
    """The means and sds of the columns of x and, if ``targets``, of y."""
    centre, scale = moments(rows.x, rows.weight)
    scale = np.where(scale > 0, scale, 1.0)
    if not targets:
        return Scaling(centre, scale)
    middle, spread = moments(rows.y.reshape(len(rows.y), -1), rows.weight)
    if not np.all(spread > 0):
        which = int(np.argmin(spread))
        name, value = "y" if rows.y.ndim == 1 else f"Output {which} of y", rows.y.reshape(len(rows.y), -1)[0, which]
        raise DataError(
            f"{name} has one value, {value:g}, in all n_samples = {len(rows.y)} distinct rows: there is nothing to "
            "explain and no scale to standardise by. Give rows whose y differ."
        )
    if rows.y.ndim > 1:
        return Scaling(centre, scale, middle, spread)
    return Scaling(centre, scale, float(middle[0]), float(spread[0]))


def length(count: int) -> int:
    """The number of rows to compile for, ≥ ``count``: 64, 128, 256, and then at most an eighth more than ``count``.

    >>> [length(n) for n in (1, 65, 256, 257, 1000)]
    [64, 128, 256, 288, 1024]
    """
    if count <= 4 * LEAST:
        return max(LEAST, 1 << (count - 1).bit_length())
    step = (1 << (count - 1).bit_length()) // (2 * FINE)
    return -(-count // step) * step


def pad_rows(array: np.ndarray, count: int, fill: float | None = None) -> np.ndarray:
    """The array padded to ``count`` rows with its first row, or with ``fill``."""
    tail = array[:1] if fill is None else np.asarray(fill, array.dtype)
    return np.concatenate([array, np.broadcast_to(tail, (count - len(array), *array.shape[1:]))])


def map_parts(function: Callable, parts: Iterable[tuple[np.ndarray, ...]]) -> np.ndarray:
    """Apply a compiled function to the rows of each part, padded to one of a few lengths: (n, ...) in float64."""
    out = []
    for part in parts:
        count = length(len(part[0]))
        values = function(*(jnp.asarray(pad_rows(array, count)) for array in part))
        out.append(np.asarray(values, np.float64)[: len(part[0])])
    return np.concatenate(out)


def row_blocks(width: int, *arrays: np.ndarray) -> Iterable[tuple[np.ndarray, ...]]:
    """Successive blocks of ``width`` rows of each array."""
    return (tuple(a[start : start + width] for a in arrays) for start in range(0, len(arrays[0]), width))


def merge_equal_rows(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop rows of weight 0; if at most ``MERGED`` rows remain, also merge and sort them as ``distinct`` does.

    A repeated row and a row of weight 2 then give the same fit, to the last digit.
    """
    positive = weight > 0
    if np.sum(positive) > MERGED:
        return x[positive], weight[positive]
    rows = distinct(x, np.zeros(len(x)), weight)
    return rows.x, rows.weight


def as_padded_data(x: np.ndarray, weight: np.ndarray) -> Data:
    """Weighted rows as Data in the current precision.

    Tables of up to ``MERGED`` rows are padded to one of a few lengths, so that few programs are compiled.
    """
    count = length(len(x)) if len(x) <= MERGED else len(x)
    return Data(pad_rows(x.astype(jnp.result_type(float)), count), weights=pad_rows(weight, count, 0.0), resident=True)


def as_floats(theta: PyTree) -> PyTree:
    """θ on the device, in the current precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), theta)


def as_doubles(theta: PyTree) -> PyTree:
    """θ on the host, in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), theta)


@functools.lru_cache(maxsize=128)
def program(forms: object, step: str, placement: OneDevice = ONE_DEVICE) -> Callable:
    """Compile the function ``step`` of a model, once.

    On several devices the result is a function of (θ, rows), in which each device evaluates its own rows.
    """
    function = getattr(forms, step)
    if not isinstance(placement, OverDevices):
        return jax.jit(function)

    def of_all(theta: PyTree, placed_rows: PyTree, count: int) -> PyTree:
        return placement.by_rows(lambda each: function(theta, each[0]), placed_rows, (), count)

    run = jax.jit(of_all, static_argnames="count")
    return lambda theta, rows: placement.run(functools.partial(run, count=len(rows)), theta, placement.lay(rows)[0])
