"""Moments of each group's own parameters z, and predictions for rows of groups, from draws of shared parameters θ."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import tree
from tractable.core.errors import DataError, ModelError
from tractable.core.model import Data, Model, PyTree
from tractable.core.rows import Labels, labels_of
from tractable.core.settings import Count, check_seed, expect
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.posterior import pointwise
from tractable.posterior import predict as prediction

PROPOSED = 64  # number of proposals from which each draw of a group's z is chosen
WIDER = 1.2  # sd of the proposals, as a multiple of that of the normal approximation at the maximum of z's density
NUMBERS = 1 << 24  # maximum of draws × proposals × members × groups for groups that are computed together


def local_moments(model: Model, data: Data | None, params: PyTree, weights: np.ndarray, groups: Any = None) -> Any:
    """Mean and sd of each group's own parameters z: a pandas DataFrame with a row for each group's label.

        E[z | y] = E_θ E[z | y_g, θ],     Var[z | y] = E_θ Var[z | y_g, θ] + Var_θ E[z | y_g, θ]

    E_θ and Var_θ are over draws of θ. Moments given θ use the quadrature rule with which the model integrates out z.

    Args:
        model: the model.
        data: the data by group.
        params, weights: draws of θ (s, ...), and their weights.
        groups: labels of the groups; by default all groups.
    """
    import pandas as pd

    all_groups = group_rows(model, data)
    labels = np.atleast_1d(np.asarray(all_groups.labels if groups is None else groups))
    subset = all_groups if groups is None else all_groups.take(_places(all_groups, labels, unknown=False))
    names = tree.names(jax.eval_shape(lambda p: model.given(p).example(jax.random.key(0)), _first(params)))
    mean, sd = _in_chunks(lambda part, _: _moments(model, params, jnp.asarray(weights), part), subset, len(weights))
    columns = pd.MultiIndex.from_product([names, ("mean", "sd")], names=["parameter", None])
    table = np.stack([mean, sd], -1).reshape(len(mean), -1)
    return pd.DataFrame(table, index=pd.Index(labels, name="group"), columns=columns)


def predict(
    posterior: Any, x: PyTree, group: Labels | None, level: float, draws: int, seed: int
) -> prediction.Prediction:
    """The predictive distribution of rows of groups.

    For a group in the data, z is drawn given θ and the group's fitted rows. For a new group, z is drawn from its prior.

    Args:
        posterior: the posterior.
        x: (n, ...) inputs of the rows.
        group: (n,) each row's label; rows with the same new label share one z. None: every row has its own new group.
        level, draws, seed: as for ``Posterior.predict``.
    """
    expect("predict(draws)", draws, Count)
    data = group_rows(posterior.model, posterior.data)
    rows = _requested_rows(data, x, group, "predict")
    params, weights = posterior.spread(draws)
    key = jax.random.key(check_seed("predict(seed)", seed))
    local = _draw_local(posterior.model, data, params, rows.known_groups, key)
    inputs = rows.x, rows.place
    return prediction.predict(_with_local(posterior.model), (params, local), weights, inputs, level=level, seed=seed)


def replicate(
    model: Model, data: Data | None, params: PyTree, x: PyTree, group: Labels | None, seed: int, *, new: bool = False
) -> PyTree:
    """Simulated y* of rows of groups, (s, n, ...): z is drawn as in ``predict``, and y* ~ p(y | x, z, θ_s).

    Args:
        model: the model.
        data: the data by group.
        params: draws of θ (s, ...).
        x, group: as for ``predict``; without both, the fitted rows in their order, with their groups.
        seed: seed of the random numbers.
        new: whether every group is treated as new: z ~ p(z | θ_s), shared by rows with the same label.
    """
    by_group, key = group_rows(model, data), jax.random.key(check_seed("posterior_predictive(seed)", seed))
    if x is None and group is None:
        rows = Rows(by_group.members().given, by_group.places, np.arange(by_group.size))
    else:
        rows = _requested_rows(by_group, x, group, "posterior_predictive")
    # The size is checked before z is drawn.
    pointwise.fits("A predictive", pointwise.length(params), len(rows.place), 1, 4)
    known_groups = np.full(len(rows.known_groups), -1) if new else rows.known_groups
    local = _draw_local(model, by_group, params, known_groups, jax.random.fold_in(key, 1))
    inputs = rows.x, rows.place
    return pointwise.replicate(_with_local(model), (params, local), inputs, len(rows.place), seed)


def transforms(
    model: Model, params: PyTree, log_weights: np.ndarray, data: Data, efficiency: float, groups: int | None, seed: int
) -> np.ndarray:
    """Probability integral transforms Pr(y* < y_i | all other groups) of rows, (n,).

    Row i's whole group is left out, and y* is a row of a new group. The result is NaN for rows of a group that is too
    influential to be left out by reweighting.

    Args:
        model, params, log_weights, data, efficiency: as for ``pointwise.leave_out``.
        groups: the number of groups, evenly spaced; None for all groups.
        seed: seed of the random numbers.
    """
    by_group = group_rows(model, data)
    if groups is not None and groups < by_group.size:
        by_group = by_group.take(np.linspace(0, by_group.size - 1, groups).astype(int))
    y = pointwise.single(by_group.members().y)
    simulated = replicate(model, by_group, params, None, None, seed, new=True)
    left = pointwise.concatenate_chunks(list(pointwise.leave_out(model, params, log_weights, by_group, efficiency)))
    of_rows = pointwise.Left(*(array[..., by_group.places] for array in left))
    return pointwise.leave_one_out_transforms(of_rows, simulated, y, seed)


class Rows(NamedTuple):
    """Requested rows, and their groups."""

    x: PyTree
    place: np.ndarray  # (n,) each row's index among the requested groups
    known_groups: np.ndarray  # (groups,) each requested group's index in the data; −1 for a new group


def _requested_rows(data: Data, x: PyTree, group: Labels | None, caller: str) -> Rows:
    """The rows x with their groups; ``caller`` is the method that error messages name."""
    prediction.check_inputs(data.take(slice(2)).members(), x, f"{caller}(x)")
    x, count = prediction.rows_of(x)
    count = len(group) if x is None and group is not None else count
    labels, place = np.unique(
        np.arange(count) if group is None else labels_of(group, count, f"{caller}(group=...)"), return_inverse=True
    )
    known_groups = np.full(len(labels), -1) if group is None else _places(data, labels, unknown=True)
    return Rows(x, place, known_groups)


def _draw_local(model: Model, data: Data, params: PyTree, known_groups: np.ndarray, key: jax.Array) -> PyTree:
    """Draws z of each requested group, leaves (s, groups, ...).

    z is drawn given the group's fitted rows if the group is in the data, otherwise from the prior.
    """
    local = _from_prior(model, params, jax.random.fold_in(key, 0), len(known_groups))
    if not np.any(known_groups >= 0):
        return local
    subset, subset_key = data.take(known_groups[known_groups >= 0]), jax.random.fold_in(key, 1)
    draws = _in_chunks(
        lambda part, begin: _draw_given_rows(model, params, part, jax.random.fold_in(subset_key, begin)),
        subset,
        pointwise.length(params),
    )
    return jax.tree.map(lambda a, b: _put(np.asarray(a), np.swapaxes(b, 0, 1), known_groups >= 0), local, draws)


def group_rows(model: Model, data: Data | None) -> Data:
    """The data by group; an error if the model or the data have no groups."""
    if model.local is None:
        raise ModelError("This model has no parameters of groups: expected Model(..., local=).")
    if data is None or data.labels is None:
        raise DataError("This posterior was loaded without the data of its groups: use load(path, model, data).")
    return data


@functools.lru_cache(maxsize=32)  # a second prediction then reuses the compiled program
def _with_local(model: Model) -> Model:
    """The model of a row (x, index of its group) given (θ, z of all groups)."""
    likelihood: Any = model.likelihood

    def of_row(both: tuple[PyTree, PyTree], row: tuple[PyTree, jax.Array]) -> PyTree:
        (params, local), (x, place) = both, row
        return likelihood({**params, **jax.tree.map(lambda a: a[place], local)}, *(() if x is None else (x,)))

    return Model(lambda both: jnp.zeros(()), of_row, position=(0.0, 0.0))


def _places(data: Data, labels: np.ndarray, unknown: bool) -> np.ndarray:
    """The groups' indices in the data; −1 for an unknown group, which is an error unless ``unknown`` allows it."""
    index_of: dict = {label: i for i, label in enumerate(np.asarray(data.labels).tolist())}
    indices = np.array([index_of.get(label, -1) for label in labels.tolist()], int)
    if not unknown and np.any(indices < 0):
        raise DataError(f"There is no group {labels.tolist()[np.argmin(indices)]!r} in the data.")
    return indices


def _first(params: PyTree) -> PyTree:
    """The first of the draws (s, ...)."""
    return jax.tree.map(lambda a: a[0], params)


def _put(array: np.ndarray, values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """A copy of ``array`` (s, all groups, ...) with other ``values`` (s, groups, ...) for some of the groups."""
    array = array.copy()
    array[:, groups] = values
    return array


def _in_chunks(function: Callable, data: Data, draws: int) -> Any:
    """Applies ``function(rows, index of the first group)`` to blocks of groups, and concatenates the results.

    The memory does not grow with the number of groups. The last block is filled up with copies of its first group, so
    that all blocks have the same shape.
    """
    rows = data.y, data.given
    groups, members = rows[1].counts.shape
    width = min(groups, max(1, NUMBERS // (draws * PROPOSED * members)))
    parts = []
    for begin in range(0, groups, width):
        part = jax.tree.map(lambda a, b=begin: a[b : b + width], rows)
        real = len(part[1].counts)
        full = jax.tree.map(lambda a, n=width - real: np.concatenate([a, np.repeat(a[:1], n, 0)]), part)
        parts.append(jax.tree.map(lambda a, n=real: np.asarray(a)[:n], function(full, begin)))
    return jax.tree.map(lambda *a: np.concatenate(a), *parts)


@compiled("model", if_few=COMPILE_FASTEST)
def _moments(model: Model, params: PyTree, weights: jax.Array, rows: PyTree) -> tuple[jax.Array, jax.Array]:
    """Mean and sd of each group's z, (groups, k) each."""

    def of_group(z: PyTree, logs: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = jnp.concatenate([leaf.reshape(len(logs), -1) for leaf in jax.tree.leaves(z)], 1)
        shares = jax.nn.softmax(logs)
        mean = shares @ values
        return mean, shares @ jnp.square(values - mean)

    def add(carry: tuple, draw: tuple[PyTree, jax.Array]) -> tuple[tuple, None]:
        (mean, square, variance, total), (theta, w) = carry, draw
        means, variances = model.over_groups(of_group, theta, rows)
        total = total + w
        new_mean = mean + w / total * (means - mean)
        return (new_mean, square + w * (means - mean) * (means - new_mean), variance + w * variances, total), None

    zeros = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype),
        jax.eval_shape(lambda p: model.over_groups(of_group, _first(p), rows)[0], params),
    )
    w = weights.astype(zeros.dtype)
    mean, square, variance, total = jax.lax.scan(add, (zeros, zeros, zeros, jnp.zeros((), w.dtype)), (params, w))[0]
    return mean, jnp.sqrt((square + variance) / total)


@compiled("model", if_few=COMPILE_FASTEST)
def _draw_given_rows(model: Model, params: PyTree, rows: PyTree, key: jax.Array) -> PyTree:
    """Draws z ~ p(z | y_g, θ_s), leaves (groups, s, ...), by sampling importance resampling (Rubin 1987).

    Each draw is chosen by weight from 64 proposals around the maximum of z's density.
    """

    def draw(theta: PyTree, key: jax.Array) -> PyTree:
        proposal_key, choice_key = jax.random.split(key)

        def nodes(g: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = jax.random.normal(jax.random.fold_in(proposal_key, g), (PROPOSED, model.given(theta).space.size))
            log_ratio = (1 - WIDER**2) * jnp.square(x) / 2 + math.log(WIDER)
            return WIDER * x, jnp.sum(log_ratio, 1) - math.log(PROPOSED)

        values, logs = model.over_groups(lambda z, logs: (z, logs), theta, rows, nodes)
        index = jax.random.categorical(choice_key, logs)  # (groups,)
        return jax.tree.map(lambda a: jax.vmap(lambda proposals, j: proposals[j])(a, index), values)

    keys = jax.random.split(key, len(jax.tree.leaves(params)[0]))
    draws = jax.lax.map(lambda pair: draw(*pair), (params, keys))
    return jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), draws)


@compiled("model", "count", if_few=COMPILE_FASTEST)
def _from_prior(model: Model, params: PyTree, key: jax.Array, count: int) -> PyTree:
    """Draws z ~ p(z | θ_s) for ``count`` groups, leaves (s, count, ...)."""
    keys = jax.random.split(key, (len(jax.tree.leaves(params)[0]), count))
    return jax.vmap(lambda p, ks: jax.vmap(model.given(p).sample_prior)(ks))(params, keys)
