"""Tables for the estimators: distinct rows with weights, standardised, padded to one of a few lengths."""

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

LEAST = 64  # rows of the smallest table to compile for
FINE = 8  # lengths per power of two, from a few hundred rows on
MERGED = 1 << 16  # up to this many rows, equal ones are merged and tables are padded
SEEN = 1000  # rows examined for which columns tell rows apart


class Rows(NamedTuple):
    """Distinct rows sorted by their values, and their weights."""

    x: np.ndarray  # (n, D)
    y: np.ndarray  # (n,), or (n, K) for several outputs
    weight: np.ndarray  # (n,), > 0


class Scaling(NamedTuple):
    """x → (x − centre)/scale and y → (y − middle)/spread; a constant column has scale 1."""

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
    """Merges equal rows into one with their summed weight, and drops rows of weight zero.

    A likelihood does not depend on the rows' order, nor on whether a row is repeated or counts twice. In this form
    such tables are equal, so every method, even a stochastic one, fits them alike to the last digit.

    >>> distinct(np.array([[2.0], [1.0], [2.0]]), np.array([0.0, 0.0, 0.0]), np.array([1.0, 3.0, 1.0])).weight
    array([3., 2.])
    """
    counts = weight > 0
    table = np.column_stack([x, y])
    table, weight = table if counts.all() else table[counts], weight[counts]
    table += 0.0  # −0 is 0
    order, new = _in_order(table)
    table, weight = table[order], weight[order]
    table = table if new.all() else table[new]  # tables may be large: no copy without need
    targets = table[:, x.shape[1] :].reshape(-1, *y.shape[1:])
    return Rows(table[:, : x.shape[1]], targets, np.bincount(np.cumsum(new) - 1, weight))


def _in_order(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) the order of rows by their values, as by ``np.lexsort``; (n,) which sorted rows differ from the one before.

    Sorting by every column takes longer than most fits. It sorts by the columns up to the first that tells most rows
    apart, and by the others only among rows still equal.
    """
    distinct = [len(np.unique(column)) > len(column) / 2 for column in table[:SEEN].T]
    first = 1 + (distinct.index(True) if any(distinct) else len(distinct) - 1)
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
    """Means and sds of the columns of x and, if ``targets``, of y."""
    centre, scale = moments(rows.x, rows.weight)
    scale = np.where(scale > 0, scale, 1.0)
    if not targets:
        return Scaling(centre, scale)
    middle, spread = moments(rows.y.reshape(len(rows.y), -1), rows.weight)
    if not np.all(spread > 0):
        which = int(np.argmin(spread))
        name, value = "y" if rows.y.ndim == 1 else f"Output {which} of y", rows.y.reshape(len(rows.y), -1)[0, which]
        raise DataError(
            f"{name} has one value, {value:g}, in n_samples = {len(rows.y)} distinct rows: there is nothing to explain "
            "and no scale to standardise by. Give rows whose y differ."
        )
    if rows.y.ndim > 1:
        return Scaling(centre, scale, middle, spread)
    return Scaling(centre, scale, float(middle[0]), float(spread[0]))


def length(count: int) -> int:
    """Rows to compile for, ≥ ``count``: 64, 128, 256, and beyond that at most an eighth more than ``count``.

    >>> [length(n) for n in (1, 65, 256, 257, 1000)]
    [64, 128, 256, 288, 1024]
    """
    if count <= 4 * LEAST:
        return max(LEAST, 1 << (count - 1).bit_length())
    step = (1 << (count - 1).bit_length()) // (2 * FINE)
    return -(-count // step) * step


def padded(array: np.ndarray, count: int, fill: float | None = None) -> np.ndarray:
    """(count, ...): ``array`` padded with its first row, or with ``fill``."""
    tail = array[:1] if fill is None else np.asarray(fill, array.dtype)
    return np.concatenate([array, np.broadcast_to(tail, (count - len(array), *array.shape[1:]))])


def mapped(function: Callable, parts: Iterable[tuple[np.ndarray, ...]]) -> np.ndarray:
    """A compiled function applied to each part's rows, padded to few lengths: (n, ...) in float64."""
    out = []
    for part in parts:
        count = length(len(part[0]))
        found = function(*(jnp.asarray(padded(array, count)) for array in part))
        out.append(np.asarray(found, np.float64)[: len(part[0])])
    return np.concatenate(out)


def some_at_a_time(width: int, *arrays: np.ndarray) -> Iterable[tuple[np.ndarray, ...]]:
    """Successive blocks of ``width`` rows of each array."""
    return (tuple(a[start : start + width] for a in arrays) for start in range(0, len(arrays[0]), width))


def merged(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows with weight > 0; up to ``MERGED`` of them also merged and sorted as by ``distinct``.

    A repeated row and a row that counts twice then give the same fit, to the last digit.
    """
    positive = weight > 0
    if np.sum(positive) > MERGED:
        return x[positive], weight[positive]
    found = distinct(x, np.zeros(len(x)), weight)
    return found.x, found.weight


def in_few_lengths(x: np.ndarray, weight: np.ndarray) -> Data:
    """Weighted rows as Data in the current precision, padded to few lengths, so that few programs are compiled."""
    count = length(len(x)) if len(x) <= MERGED else len(x)
    return Data(padded(x.astype(jnp.result_type(float)), count), weights=padded(weight, count, 0.0), resident=True)


def middle(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted means of the columns, (d,)."""
    return weight @ x / weight.sum()


def finite(theta: PyTree) -> bool:
    """Whether every number of θ is finite."""
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(theta))


def as_floats(theta: PyTree) -> PyTree:
    """θ on the device, in the current precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), theta)


def as_doubles(theta: PyTree) -> PyTree:
    """θ on the host, in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), theta)


@functools.lru_cache(maxsize=128)
def compiled(forms: object, step: str, placement: OneDevice = ONE_DEVICE) -> Callable:
    """A model's function by name, compiled once; over a mesh one of (θ, rows), each device of its own rows."""
    function = getattr(forms, step)
    if not isinstance(placement, OverDevices):
        return jax.jit(function)

    def of_all(theta: PyTree, placed_rows: PyTree, count: int) -> PyTree:
        return placement.by_rows(lambda each: function(theta, each[0]), placed_rows, (), count)

    program = jax.jit(of_all, static_argnames="count")
    return lambda theta, rows: placement.run(functools.partial(program, count=len(rows)), theta, placement.lay(rows)[0])
