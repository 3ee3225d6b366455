"""A table as the estimators learn it: distinct rows with weights, standardised, in few different lengths."""

from typing import Any, NamedTuple

import numpy as np

from tractable.tools.errors import DataError

LEAST = 64  # rows of the smallest table that is compiled for
FINE = 8  # lengths between one power of two and the next, from a few hundred rows


class Rows(NamedTuple):
    """Rows that differ, in the order of their values, and how much each counts."""

    x: np.ndarray  # (n, D)
    y: np.ndarray  # (n,)
    weight: np.ndarray  # (n,), > 0


class Scaling(NamedTuple):
    """x → (x − centre)/scale and y → (y − middle)/spread; a constant column has scale 1."""

    centre: np.ndarray  # (D,)
    scale: np.ndarray  # (D,)
    middle: float = 0.0
    spread: float = 1.0

    def inputs(self, x: np.ndarray) -> np.ndarray:
        return (x - self.centre) / self.scale

    def targets(self, y: np.ndarray) -> np.ndarray:
        return (y - self.middle) / self.spread


def distinct(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Rows:
    """Equal rows as one row of their summed weight; rows of weight zero are gone.

    A likelihood does not see the order of rows, nor a row repeated from a row that counts twice. Brought to this form
    those tables are equal, so that every method, a stochastic one too, gives them the same fit to the last digit.

    >>> distinct(np.array([[2.0], [1.0], [2.0]]), np.array([0.0, 0.0, 0.0]), np.array([1.0, 3.0, 1.0])).weight
    array([3., 2.])
    """
    kept = weight > 0
    table, weight = np.column_stack([x, y])[kept] + 0.0, weight[kept]  # −0 is 0
    order = np.lexsort(table.T[::-1])
    table, weight = table[order], weight[order]
    new = np.append(True, np.any(table[1:] != table[:-1], axis=1))
    return Rows(table[new, :-1], table[new, -1], np.bincount(np.cumsum(new) - 1, weight))


def scaling(rows: Rows, targets: bool) -> Scaling:
    """Means and sds of the columns and, where it is a measurement, of y."""
    centre, scale = _moments(rows.x, rows.weight)
    scale = np.where(scale > 0, scale, 1.0)
    if not targets:
        return Scaling(centre, scale)
    middle, spread = _moments(rows.y[:, None], rows.weight)
    if not spread[0] > 0:
        raise DataError(
            f"y has one value, {rows.y[0]:g}, in n_samples = {len(rows.y)} distinct rows: there is nothing to explain "
            "and no scale to standardise by. Give rows whose y differ."
        )
    return Scaling(centre, scale, float(middle[0]), float(spread[0]))


def _moments(columns: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = np.average(columns, axis=0, weights=weight)
    sd = np.sqrt(np.average(np.square(columns - mean), axis=0, weights=weight))
    constant = np.ptp(columns, axis=0) == 0  # whose computed sd is rounding
    return mean, np.where(constant, 0.0, sd)


def length(count: int) -> int:
    """Rows to compile for, at least ``count``: 64, 128, 256, and from there at most an eighth more than asked for.

    >>> [length(n) for n in (1, 65, 256, 257, 1000)]
    [64, 128, 256, 288, 1024]
    """
    if count <= 4 * LEAST:
        return max(LEAST, 1 << (count - 1).bit_length())
    step = (1 << (count - 1).bit_length()) // (2 * FINE)
    return -(-count // step) * step


def padded(array: np.ndarray, count: int, fill: Any = None) -> np.ndarray:
    """(count, ...): ``array``, then its first row again, or ``fill``."""
    tail = np.broadcast_to(
        array[:1] if fill is None else np.asarray(fill, array.dtype), (count - len(array), *array.shape[1:])
    )
    return np.concatenate([array, tail])
