"""Simulates from the model: θ* from the prior, y from the likelihood at the inputs of given data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from tractable.checks import preflight
from tractable.core import Data, Model, PyTree, is_distribution, sample_of
from tractable.data.censored import as_seen
from tractable.models.censoring import censors
from tractable.tools.errors import DataError, ModelError
from tractable.tools.priors import is_improper
from tractable.tools.shared import compiled


def check(model: Model, data: Data) -> None:
    """Raise a ModelError or DataError if rows like these cannot be drawn."""
    if model.prior_is_callable and not model.drawable:
        raise ModelError(
            "calibrate draws parameters from the prior, and a callable log density cannot be drawn from: give Model a "
            "pytree of numpyro distributions, or the density a sample(key)."
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(model.prior, is_leaf=is_distribution)[0]:
        if is_improper(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ModelError(
                f"calibrate draws parameters from the prior, and that of {name!r} is improper: give it a proper prior."
            )
    if data.weights is not None:
        raise DataError(
            "calibrate draws every row once, and a row that counts w times is no draw of the model: give Data without "
            "weights; rows that were seen twice, twice."
        )
    if not data.resident:
        raise DataError(
            f"calibrate draws data sets like this one in memory, {data.nbytes / 2**30:.1f} GiB each; use fewer rows, "
            "or Data(..., resident=True) if memory allows."
        )
    if data.size == 0:
        raise DataError("calibrate draws rows like those of data_like, and it has none: give one row at least.")
    preflight.check(model, data)
    try:
        jax.eval_shape(functools.partial(_drawn, model), jax.random.key(0), data.given, np.arange(data.size))
    except NotImplementedError as error:
        raise ModelError("calibrate draws rows from the likelihood, and its distribution has no sample().") from error


def pair(model: Model, data: Data, key: jax.Array) -> tuple[PyTree, Data]:
    """θ* ~ p(θ) and rows y_n ~ p(y | θ*, x_n) at the inputs of ``data``; values missing there are missing here.

    Raises:
        DataError: rows that are not finite: the prior reaches where the likelihood overflows.
    """
    params, y = _drawn(model, key, data.given, np.arange(data.size))
    missing = "keep" if data.missing == "keep" else "raise"
    y = jax.tree.map(_like, y, data.y)
    if censors(model, data.given):
        y = as_seen(y, data.y)
    return params, Data(y, data.given, missing=missing, resident=True)


@compiled("model")
def _drawn(model: Model, key: jax.Array, given: PyTree, index: jax.Array | np.ndarray) -> tuple[PyTree, PyTree]:
    above, below = jax.random.split(key)
    params = model.sample_prior(above)

    def row(x: PyTree, i: jax.Array) -> PyTree:
        distributions: PyTree | Distribution = model.datum(params, x)
        return sample_of(distributions, jax.random.fold_in(below, i))

    return params, jax.vmap(row)(given, jnp.asarray(index))


def _like(drawn: jax.Array, seen: np.ndarray) -> np.ndarray:
    """Drawn numbers in the precision of the data, NaN where the data are NaN; never truncated to integers."""
    out = np.asarray(drawn)
    if seen.dtype.kind != "f":
        return out
    return np.where(np.isnan(seen), np.nan, out).astype(seen.dtype)
