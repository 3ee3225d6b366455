"""Rows that densities are learnt from: equal ones merged, starts that weights are seen in, columns' means."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from tractable.data.rows import Data
from tractable.estimators import rows as tables
from tractable.models.linear_mixture import SEEN
from tractable.tools.errors import DataError

MERGED = 1 << 16  # rows up to which equal ones become one, and lengths are made few


def merged(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that count, equal ones as one of their summed weight, in the order of their values; many as they are.

    So that a row repeated and a row that counts twice begin and end alike, to the last digit.
    """
    kept = weight > 0
    x, weight = x[kept], weight[kept]
    if len(x) > MERGED:
        return x, weight
    found = tables.distinct(np.where(np.isnan(x), np.inf, x), np.zeros(len(x)), weight)
    return np.where(np.isinf(found.x), np.nan, found.x), found.weight


def as_rows(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Rows that all count alike, for a start: those of unlike weight in its proportion, evenly."""
    if not np.ptp(weight) > 0:
        return x
    reached = np.cumsum(weight) / weight.sum()
    return x[np.minimum(np.searchsorted(reached, (np.arange(SEEN) + 0.5) / SEEN), len(x) - 1)]


def in_few_lengths(x: np.ndarray, weight: np.ndarray, missing: str = "raise") -> Data:
    """Data of rows (x, w) in the current precision: few lengths, few compilations."""
    count = tables.length(len(x)) if len(x) <= MERGED else len(x)
    dtype = jnp.result_type(float)
    return Data(
        tables.padded(x.astype(dtype), count),
        given=tables.padded(weight.astype(dtype), count, 0.0),
        missing=missing,
        resident=True,
    )


def middle(parts: Any, features: int) -> np.ndarray:
    """Means of the columns, (d,), of parts (x, weight); NaN is not there.

    Raises:
        DataError: a column without a number.
    """
    total, count = np.zeros(features), np.zeros(features)
    for x, weight in parts:
        seen = ~np.isnan(x)
        total += weight @ np.where(seen, x, 0.0)
        count += weight @ seen
    if not np.all(count > 0):
        raise DataError(f"Column {int(np.argmin(count > 0))} of X has no number at all; drop it.")
    return total / count
