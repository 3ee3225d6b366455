"""Checks of a model and its data before anything runs."""

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from numpyro.distributions import Distribution

from tractable.core import tree
from tractable.core.batches import Batch, whole
from tractable.core.causes import base_of
from tractable.core.errors import DataError, ModelError
from tractable.core.model import Model, PyTree, counted_log_likelihoods, is_distribution, log_posterior
from tractable.core.rows import CHUNK, Data
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.tree import row_shapes
from tractable.core.words import listing, nearest
from tractable.engine.identity import kinds_of, share_programs

SHOWN = 12  # largest number of a row's numbers that an error message shows


@compiled("model", if_few=COMPILE_FASTEST)
def value_and_slope(model: Model, position: jax.Array, batch: Batch | None) -> tuple[jax.Array, jax.Array]:
    """The log posterior at a position, and its gradient there."""
    return jax.value_and_grad(log_posterior(model, flat=True))(position, batch)


def check(model: Model, data: Data | None) -> None:
    """Raise a ModelError or DataError for the first fault of a model, of its data, or of the two together."""
    share_programs(model, kinds_of(data), 0 if data is None else data.size)
    model, data = check_shapes(model, data)
    if data is not None and data.size:
        _check_indices(model, data)
        _check_support(model, data)
        model.check_rows(data)


def check_shapes(model: Model, data: Data | None) -> tuple[Model, Data | None]:
    """The part of ``check`` that looks at no number of the data; returns the model and the data of single rows."""
    if data is None and model.likelihood is not None:
        raise DataError("This model has a likelihood, so it needs data: infer(model, Data(y), ...).")
    if data is not None and model.likelihood is None:
        raise ModelError("This model has no likelihood, so it cannot use data: infer(model, None, ...).")
    if data is not None and (model.local is None) != (data.labels is None):
        raise DataError(
            "This model has local=, which are parameters for each group of rows: give Data(y, group=...)."
            if data.labels is None
            else "These data have group=, but this model has no parameters for each group: give Model(..., local=...)."
        )
    if data is not None and data.labels is not None:
        model, data = (model.representative or model).member, data.members()
    has_data, precision = data is not None, jnp.result_type(float)
    if data is None or data.size == 0:
        _check_shapes(model, has_data, (), None, precision)
        return model, data
    leaves, structure = jax.tree.flatten(row_shapes(data.rows))
    _check_shapes(model, has_data, tuple(leaves), structure, precision)
    return model, data


@functools.lru_cache(maxsize=64)
def _check_shapes(
    model: Model, has_data: bool, leaves: tuple[jax.ShapeDtypeStruct, ...], structure: Any, precision: Any
) -> None:
    """Make the checks that need only shapes. They run once for all data of one shape, since tracing a model is slow.

    Args:
        leaves, structure: the flattened shapes of one row; no leaves if the data are empty.
        precision: the type of real numbers, on which the types of results depend.
    """
    params = jax.eval_shape(model.example, jax.random.key(0))
    with naming("The prior" if has_data else "The log density", params):
        prior = jax.eval_shape(model.log_prior, params)
    _check_scalar(prior, "The prior" if has_data else "The log density")
    if leaves:
        _check_likelihood(model, params, jax.tree.unflatten(structure, leaves))


@contextlib.contextmanager
def naming(subject: str, params: PyTree, x: PyTree = None) -> Iterator[None]:
    """A context that turns a function's ``KeyError`` into a ModelError with the names of parameters and inputs.

    It does so only if the missing name is neither a parameter nor an input.
    """
    try:
        yield
    except KeyError as error:
        name, known = error.args[0], [tree.keys(each) for each in (params, x)]
        if not isinstance(name, str) or name in known[0] + known[1]:
            raise
        has = " and ".join(
            f"the {what} {listing(each)}" for what, each in zip(("parameters", "inputs"), known, strict=True) if each
        )
        raise ModelError(
            f"{subject} asks for {name!r}; there are {has or 'no names'}.{nearest(name, known[0] + known[1])}"
        ) from error


def _check_scalar(result: PyTree, subject: str) -> None:
    leaves = jax.tree.leaves(result)
    if len(leaves) != 1 or leaves[0].shape != ():
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ModelError(
            f"{subject} should return one number for one position; got shape {shapes}. Did you forget .sum()?"
        )
    if not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        raise ModelError(f"{subject} should return a real number; got {leaves[0].dtype}.")
    if leaves[0].dtype in (jnp.bfloat16, jnp.float16):
        raise ModelError(
            f"{subject} is computed in {leaves[0].dtype}, which is too coarse to tell two positions apart. "
            "Use half precision only inside networks and return float32."
        )


def _check_likelihood(model: Model, params: PyTree, row: tuple[PyTree, PyTree]) -> None:
    y, x = row
    try:
        with naming("The likelihood", params, x):
            distributions = jax.eval_shape(model.described, params, x)
    except TypeError as error:
        given = "likelihood(params, x)" if x is not None else "likelihood(params)"
        raise ModelError(
            f"The likelihood could not be called as {given}: {error}. It is called like this since the data have "
            f"{'inputs' if x is not None else 'no inputs'} (given=)."
        ) from error
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    for leaf in leaves:
        if not isinstance(leaf, Distribution):
            raise ModelError(
                "The likelihood should return the distribution of one datum, such as dist.Normal(mean, sd); got "
                f"{type(leaf).__name__} of shape {getattr(leaf, 'shape', '')}."
            )
    if structure != jax.tree.structure(y):
        raise ModelError(
            f"The likelihood's distributions and the data's y differ in structure: expected {jax.tree.structure(y)} "
            f"as in y; got {structure}. Return one distribution for each array of y."
        )
    for leaf, value in zip(leaves, jax.tree.leaves(y), strict=True):
        if leaf.event_shape and leaf.shape() != value.shape:
            raise ModelError(
                f"The likelihood is a distribution of values of shape {leaf.shape()}, but one row of y has shape "
                f"{value.shape}. Change the data's columns or the size of the model's output."
            )
        base = type(base_of(leaf)).__name__
        if base.startswith("Categorical") and not jnp.issubdtype(value.dtype, jnp.integer):
            raise DataError(
                f"{base} expects classes 0, 1, 2, …; y holds numbers of type {value.dtype}. Give y.astype(int) if they "
                "are classes; otherwise choose another likelihood."
            )

    def terms(params: PyTree, y: PyTree, x: PyTree) -> PyTree:
        datum = model.described(params, x)
        return jax.tree.map(lambda d, value: d.log_prob(value), datum, y, is_leaf=is_distribution)

    for path, leaf in jax.tree_util.tree_flatten_with_path(jax.eval_shape(terms, params, y, x))[0]:
        if leaf.shape != ():
            name = "y" + jax.tree_util.keystr(path)
            raise ModelError(
                f"The log likelihood of one datum should be one number; that of {name} has shape {leaf.shape}. "
                f"One row of {name} has shape {jax.tree.leaves(y)[0].shape}. If it is one datum of several numbers, "
                "use .to_event(). If it should be a single number, flatten data of shape (N, 1) to (N,), and let the "
                "likelihood return one distribution instead of a batch of them."
            )
        _check_scalar(leaf, "The log likelihood of one datum")


def _check_indices(model: Model, data: Data) -> None:
    """Check that the rows' whole numbers are not too large where the likelihood takes them as places in a parameter.

    JAX takes the last place instead of one beyond the end, without an error. NumPy raises one, so the likelihood is
    traced with arrays of NumPy. This finds ``params["z"][x["group"]]``, but not places in a result of JAX.
    """
    x = data.rows[1]
    if not data.resident or x is None:
        return
    params = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), jax.eval_shape(model.example, jax.random.key(0)))
    for path, leaf in jax.tree_util.tree_flatten_with_path(x)[0]:
        if not np.issubdtype(leaf.dtype, np.integer) or leaf[0].size > SHOWN:
            continue
        for row in np.unique(np.argmax(np.reshape(leaf, (len(leaf), -1)), 0)).tolist():  # the largest of each column
            largest = jax.tree.map(lambda a, row=row: np.asarray(a[row]), x)
            try:
                with np.errstate(all="ignore"):
                    jax.eval_shape(functools.partial(model.described, params, largest))
            except IndexError as error:
                raise DataError(
                    f"Row {row} of x{jax.tree_util.keystr(path)}, {leaf[row]}, is a place beyond the end of a "
                    f"parameter in the likelihood: {error}. Number groups 0, 1, 2, …, and give the parameter a number "
                    "for each; if the last one is meant, write jnp.take(parameter, place, mode='clip')."
                ) from error
            except Exception:  # arrays of NumPy cannot do all that those of JAX can
                break


def _check_support(model: Model, data: Data) -> None:
    """Check that every row lies in the likelihood's support; the unconstrained parameters are 0 for this."""
    position = np.zeros(model.space.size, jnp.result_type(float))
    for start in range(0, data.size, CHUNK):
        rows = jax.tree.map(lambda a, s=start: a[s : s + CHUNK], data.rows)
        inside = np.asarray(_inside(model, position, rows))
        if data.weights is not None:  # a row of weight 0 may hold any value
            inside = inside | (data.weights[start : start + CHUNK] == 0)
        if not inside.all():
            index = int(np.argmin(inside))
            row = jax.tree.map(lambda a, i=index: np.asarray(a[i]), rows[0])
            params = model.params(jnp.asarray(position))
            distribution = jax.tree.leaves(
                model.described(params, jax.tree.map(lambda a, i=index: a[i], rows[1])), is_leaf=is_distribution
            )[0]
            outside: Any = getattr(model, "outside", None)
            remedy = "Recode the data or change the likelihood." if outside is None else outside()
            base = base_of(distribution)
            raise DataError(
                f"Row {start + index} of y, {_show_row(base, row)}, lies outside the support of the likelihood's "
                f"{type(base).__name__} ({base.support}). {remedy}"
            )


def _show_row(base: Any, row: PyTree) -> str:
    """A row for an error message. Of a long row only one number is shown: the first that is outside the support."""
    if sum(np.size(leaf) for leaf in jax.tree.leaves(row)) <= SHOWN:
        return str(jax.tree.map(lambda a: a.tolist(), row))
    outside = np.zeros(0) if not isinstance(row, np.ndarray) else ~np.asarray(base.support(row))
    if outside.shape != np.shape(row) or not outside.any():
        leaves = [float(v) for leaf in jax.tree.leaves(row) for v in np.ravel(leaf)[:SHOWN]]
        return f"{', '.join(f'{v:g}' for v in leaves[:SHOWN])}, …"
    where = tuple(int(i) for i in np.argwhere(outside)[0])
    column = where[0] if len(where) == 1 else where
    return f"with {outside.sum()} of its {row.size} numbers outside (the first is {row[where]:g}, in column {column})"


@compiled("model", if_few=COMPILE_FASTEST)
def _inside(model: Model, position: ArrayLike, rows: PyTree) -> jax.Array:
    params = model.params(jnp.asarray(position))

    def one(row: tuple[PyTree, PyTree]) -> jax.Array:
        y, x = row
        datum = model.described(params, x)
        checks = jax.tree.map(
            lambda d, v: jnp.all(d.support(v)) if _has_fixed_bounds(d) else jnp.array(True),
            datum,
            y,
            is_leaf=is_distribution,
        )
        return jnp.all(jnp.stack(jax.tree.leaves(checks)))

    return jax.vmap(one)(rows)


def _has_fixed_bounds(distribution: Distribution) -> bool:
    """Whether the support does not depend on the parameters; other supports are checked through the density."""
    distribution = base_of(distribution)
    # In numpyro a support that depends on parameters is a property. In these classes it is a property, but fixed.
    names = ("BernoulliProbs", "BernoulliLogits", "Poisson", "CategoricalProbs", "CategoricalLogits", "Censored")
    support = inspect.getattr_static(type(distribution), "support", None)
    return type(distribution).__name__ in names or not isinstance(support, property)


def explain(model: Model, position: jax.Array, data: Data | None) -> str:
    """A sentence that says which term of the log density is not finite at an unconstrained position."""
    unconstrained = model.space.unravel(position)
    params = model.constrain(unconstrained)
    shown = ", ".join(
        f"{name} = {value:.4g}" for name, value in zip(tree.names(params)[:4], model.values(position)[:4], strict=False)
    )
    start = f"No starting position with a finite log density was found; the last one tried was {shown}. "
    prior = float(model.log_prior(params))
    if not np.isfinite(prior):
        what = "log density" if data is None else "log prior"
        return start + f"The {what} there is {prior}: check it for a log or a division that leaves its domain."
    jacobian = float(model.log_jacobian(unconstrained, params))
    if not np.isfinite(jacobian):
        return start + f"The change of variables there has log-determinant {jacobian}: check the priors' supports."
    if data is not None:
        terms = np.asarray(counted_log_likelihoods(model, params, data.first(CHUNK)))
        bad = np.flatnonzero(~np.isfinite(terms))
        if len(bad):
            return start + (
                f"The log likelihood there is not finite for {len(bad)} of {len(terms)} rows; the first is row "
                f"{bad[0]} ({terms[bad[0]]}). Is this datum possible under the model? Compute log densities directly, "
                "never as the log of a density."
            )
    value, slope = value_and_slope(model, position, None if data is None else whole(data.first()))
    return start + f"The log density there is {float(value):.6g} and its gradient is {np.asarray(slope)[:4]}."
