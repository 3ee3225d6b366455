"""Checks of rows (n, d), and rows minus a centre: near 0, numbers in single precision have smaller rounding errors."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from tractable.core.errors import DataError, ModelError
from tractable.core.numbers import Numbers
from tractable.core.settings import expect_whole


def rows_of(x: ArrayLike, features: int) -> jax.Array:
    """The rows as an array; raises DataError unless their shape is (n, d)."""
    shape = jnp.shape(x)
    if len(shape) != 2 or shape[1] != features:
        raise DataError(f"Expected rows of {features} numbers, shape (n, {features}); got shape {shape}.")
    return jnp.asarray(x)


def minus_centre(centre: np.ndarray, x: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """Rows (n, d) minus the centre (1, d), subtracted in the rows' own precision if they are floats."""
    x = rows_of(x, centre.shape[1])
    x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(dtype)
    return (x - centre.astype(x.dtype)).astype(dtype)


def origin_of(centre: Numbers | None, features: int) -> tuple[float, ...]:
    """The centre as a hashable tuple (d,), 0 by default.

    It is rounded to single precision, so that models in single and in double precision use the same centre.
    """
    return tuple(finite("centre", np.zeros(features) if centre is None else centre, features, np.float32).tolist())


def finite(name: str, value: Numbers, features: int, dtype: DTypeLike = np.float64) -> np.ndarray:
    """``value`` as an array (d,) of finite numbers; raises ModelError for anything else."""
    array = np.asarray(value, dtype)
    if array.shape != (features,) or not np.isfinite(array).all():
        raise ModelError(f"{name} expects {features} finite numbers, one for each column; got {value}.")
    return array


def check_sizes(**sizes: int) -> None:
    """Raises ModelError unless every size is a whole number above 0."""
    for name, value in sizes.items():
        expect_whole(name, value, ModelError)
