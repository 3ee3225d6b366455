"""Rows that densities are learnt from: equal ones merged, columns' means; and θ, to the device and back."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.data.rows import Data
from tractable.estimators import rows as tables
from tractable.models.latent import LatentModel
from tractable.tools.errors import DataError

PyTree = Any
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


def in_few_lengths(x: np.ndarray, weight: np.ndarray, missing: str = "raise") -> Data:
    """Weighted rows as data in the current precision; padded to few lengths, so that few programs are compiled."""
    count = tables.length(len(x)) if len(x) <= MERGED else len(x)
    padded = tables.padded(x.astype(jnp.result_type(float)), count)
    return Data(padded, weights=tables.padded(weight, count, 0.0), missing=missing, resident=True)


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


def moved(model: LatentModel, theta: PyTree, offset: np.ndarray) -> PyTree:
    """θ of rows to which ``offset`` is added."""
    return model.shifted(theta, offset)


def finite(theta: PyTree) -> bool:
    """Whether every number of θ is finite."""
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(theta))


def as_floats(theta: PyTree) -> PyTree:
    """On the device, in the current precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), theta)


def as_doubles(theta: PyTree) -> PyTree:
    """On the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), theta)


@functools.lru_cache(maxsize=128)
def compiled(forms: Any, step: str) -> Callable:
    """A step of a model, or another closed form, compiled once."""
    return jax.jit(getattr(forms, step))
