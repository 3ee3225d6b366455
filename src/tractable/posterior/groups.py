"""Groups' own parameters z, and predictions of groups' rows, from draws of the shared parameters θ."""

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
from tractable.core.settings import Count, expect, seeded
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.posterior import pointwise
from tractable.posterior import predict as prediction

PROPOSED = 64  # proposals for each draw of a group's z, of which one is picked
WIDER = 1.2  # proposal's sds relative to those of the normal approximation at the peak
NUMBERS = 1 << 24  # numbers of groups' proposals held in memory at once


def local_moments(model: Model, data: Data | None, params: PyTree, weights: np.ndarray, groups: Any = None) -> Any:
    """Mean and sd of each group's own parameters z: a pandas DataFrame with a row for each group's label.

        E[z | y] = E_θ E[z | y_g, θ],     Var[z | y] = E_θ Var[z | y_g, θ] + Var_θ E[z | y_g, θ]

    The outer moments are over draws of θ, the inner ones by the quadrature nodes that integrate z out.

    Args:
        params, weights: draws of θ (s, ...), and their weights.
        groups: labels; by default all.
    """
    import pandas as pd

    known = grouped(model, data)
    labels = np.atleast_1d(np.asarray(known.labels if groups is None else groups))
    some = known if groups is None else known.take(_places(known, labels, unknown=False))
    names = tree.names(jax.eval_shape(lambda p: model.given(p).example(jax.random.key(0)), _first(params)))
    mean, sd = _in_chunks(lambda part, _: _moments(model, params, jnp.asarray(weights), part), some, len(weights))
    columns = pd.MultiIndex.from_product([names, ("mean", "sd")], names=["parameter", None])
    table = np.stack([mean, sd], -1).reshape(len(mean), -1)
    return pd.DataFrame(table, index=pd.Index(labels, name="group"), columns=columns)


def predict(
    posterior: Any, x: PyTree, group: Labels | None, level: float, draws: int, seed: int
) -> prediction.Prediction:
    """The predictive distribution of groups' rows: z is drawn given θ and the group's fitted rows, or for a new group
    from its prior.

    Args:
        group: each row's label; rows with the same new label share its z. None: every row has a new group.
    """
    expect("predict(draws)", draws, Count)
    known = grouped(posterior.model, posterior.data)
    rows = _asked(known, x, group, "predict")
    params, weights = posterior.spread(draws)
    own = _own(posterior.model, known, params, rows.known_groups, jax.random.key(seeded("predict(seed)", seed)))
    both = rows.x, rows.place
    return prediction.predict(_looked_up(posterior.model), (params, own), weights, both, level=level, seed=seed)


def replicated(
    model: Model, data: Data | None, params: PyTree, x: PyTree, group: Labels | None, seed: int, *, new: bool = False
) -> PyTree:
    """y* of groups' rows, (s, n, ...): z as for ``predict``, y* ~ p(y | x, z, θ_s).

    Args:
        x, group: as for ``predict``; without both, the fitted rows in their order, with their groups.
        new: treat every group as new: z ~ p(z | θ_s), shared by rows with one label.
    """
    known, key = grouped(model, data), jax.random.key(seeded("posterior_predictive(seed)", seed))
    if x is None and group is None:
        rows = Rows(known.members().given, known.places, np.arange(known.size))
    else:
        rows = _asked(known, x, group, "posterior_predictive")
    pointwise.fits("A predictive", pointwise.length(params), len(rows.place), 1, 4)  # before z is drawn
    known_groups = np.full(len(rows.known_groups), -1) if new else rows.known_groups
    own = _own(model, known, params, known_groups, jax.random.fold_in(key, 1))
    both = rows.x, rows.place
    return pointwise.replicated(_looked_up(model), (params, own), both, len(rows.place), seed)


def transforms(
    model: Model, params: PyTree, log_weights: np.ndarray, data: Data, efficiency: float, groups: int | None, seed: int
) -> np.ndarray:
    """Pr(y* < y_i | all other groups) of each row i, (n,): y* is a row of a new group, i's whole group is left out.

    NaN for rows of a group that is too influential to be left out by reweighing.

    Args:
        groups: how many groups, evenly spaced; None for all.
        Others: as for ``pointwise.left_out``.
    """
    known = grouped(model, data)
    if groups is not None and groups < known.size:
        known = known.take(np.linspace(0, known.size - 1, groups).astype(int))
    y = pointwise.single(known.members().y)
    drawn = replicated(model, known, params, None, None, seed, new=True)
    left = pointwise.concatenate_chunks(list(pointwise.left_out(model, params, log_weights, known, efficiency)))
    of_rows = pointwise.Left(*(each[..., known.places] for each in left))
    return pointwise.placed(of_rows, drawn, y, seed)


class Rows(NamedTuple):
    """Requested rows, and their groups."""

    x: PyTree
    place: np.ndarray  # (n,) each row's index among the requested groups
    known_groups: np.ndarray  # (groups,) each requested group's index in the data; −1 for a new one


def _asked(known: Data, x: PyTree, group: Labels | None, what: str) -> Rows:
    prediction.check_inputs(known.take([0]).members().given, x, f"{what}(x)")
    x, count = prediction.rows_of(x)
    count = len(group) if x is None and group is not None else count
    labels, place = np.unique(
        np.arange(count) if group is None else labels_of(group, count, f"{what}(group=...)"), return_inverse=True
    )
    known_groups = np.full(len(labels), -1) if group is None else _places(known, labels, unknown=True)
    return Rows(x, place, known_groups)


def _own(model: Model, known: Data, params: PyTree, known_groups: np.ndarray, key: jax.Array) -> PyTree:
    """z of each requested group, leaves (s, groups, ...): given its fitted rows if it is known, else from the prior."""
    own = _from_prior(model, params, jax.random.fold_in(key, 0), len(known_groups))
    if not np.any(known_groups >= 0):
        return own
    some, of_known = known.take(known_groups[known_groups >= 0]), jax.random.fold_in(key, 1)
    drawn = _in_chunks(
        lambda part, begin: _drawn(model, params, part, jax.random.fold_in(of_known, begin)),
        some,
        pointwise.length(params),
    )
    return jax.tree.map(lambda fresh, of: _put(np.asarray(fresh), np.swapaxes(of, 0, 1), known_groups >= 0), own, drawn)


def grouped(model: Model, data: Data | None) -> Data:
    """The data by group; an error if the model or data have no groups."""
    if model.local is None:
        raise ModelError("This model has nothing that is a group's own: expected Model(..., local=).")
    if data is None or data.labels is None:
        raise DataError("This posterior came without the data of its groups: load(path, model, data).")
    return data


@functools.lru_cache(maxsize=32)  # a second prediction then reuses the compiled program
def _looked_up(model: Model) -> Model:
    """The model of a row (x, its group's index) given (θ, z of all groups)."""
    likelihood: Any = model.likelihood

    def of_row(both: tuple[PyTree, PyTree], row: tuple[PyTree, jax.Array]) -> PyTree:
        (params, own), (x, place) = both, row
        return likelihood({**params, **jax.tree.map(lambda a: a[place], own)}, *(() if x is None else (x,)))

    return Model(lambda both: jnp.zeros(()), of_row, position=(0.0, 0.0))


def _places(data: Data, labels: np.ndarray, unknown: bool) -> np.ndarray:
    """Groups' indices in the data; an unknown group is −1, or an error unless ``unknown``."""
    of: dict = {label: i for i, label in enumerate(np.asarray(data.labels).tolist())}
    found = np.array([of.get(label, -1) for label in labels.tolist()], int)
    if not unknown and np.any(found < 0):
        raise DataError(f"There is no group {labels.tolist()[np.argmin(found)]!r} in the data.")
    return found


def _first(params: PyTree) -> PyTree:
    return jax.tree.map(lambda a: a[0], params)


def _put(into: np.ndarray, what: np.ndarray, where: np.ndarray) -> np.ndarray:
    """A copy of ``into`` (s, groups, ...) with the values ``what`` for the groups ``where``."""
    into = into.copy()
    into[:, where] = what
    return into


def _in_chunks(function: Callable, data: Data, draws: int) -> Any:
    """``function(rows, first)`` for blocks of groups, concatenated; memory does not grow with the number of groups."""
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
    """(groups, k) mean and sd of each group's z."""

    def of_group(own: Model, places: jax.Array, logs: jax.Array) -> tuple[jax.Array, jax.Array]:
        shares, values = jax.nn.softmax(logs), jax.vmap(own.values)(places)
        mean = shares @ values
        return mean, shares @ jnp.square(values - mean)

    def add(carry: tuple, draw: tuple[PyTree, jax.Array]) -> tuple[tuple, None]:
        (mean, square, within, total), (theta, w) = carry, draw
        means, variances = model.over_groups(of_group, theta, rows)
        total = total + w
        new = mean + w / total * (means - mean)
        return (new, square + w * (means - mean) * (means - new), within + w * variances, total), None

    zeros = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype),
        jax.eval_shape(lambda p: model.over_groups(of_group, _first(p), rows)[0], params),
    )
    w = weights.astype(zeros.dtype)
    mean, square, within, total = jax.lax.scan(add, (zeros, zeros, zeros, jnp.zeros((), w.dtype)), (params, w))[0]
    return mean, jnp.sqrt((square + within) / total)


@compiled("model", if_few=COMPILE_FASTEST)
def _drawn(model: Model, params: PyTree, rows: PyTree, key: jax.Array) -> PyTree:
    """z ~ p(z | y_g, θ_s), leaves (groups, s, ...): one of 64 proposals around the peak by weight (Rubin 1987)."""

    def one(theta: PyTree, key: jax.Array) -> PyTree:
        proposed, taken = jax.random.split(key)

        def nodes(g: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = jax.random.normal(jax.random.fold_in(proposed, g), (PROPOSED, model.given(theta).space.size))
            log_ratio = (1 - WIDER**2) * jnp.square(x) / 2 + math.log(WIDER)
            return WIDER * x, jnp.sum(log_ratio, 1) - math.log(PROPOSED)

        def of_group(own: Model, places: jax.Array, logs: jax.Array) -> tuple[PyTree, jax.Array]:
            return jax.vmap(own.params)(places), logs

        values, logs = model.over_groups(of_group, theta, rows, nodes)
        which = jax.random.categorical(taken, logs)  # (groups,)
        return jax.tree.map(lambda a: jax.vmap(lambda of, j: of[j])(a, which), values)

    drawn = jax.lax.map(lambda now: one(*now), (params, jax.random.split(key, len(jax.tree.leaves(params)[0]))))
    return jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), drawn)


@compiled("model", "count", if_few=COMPILE_FASTEST)
def _from_prior(model: Model, params: PyTree, key: jax.Array, count: int) -> PyTree:
    """z ~ p(z | θ_s) for ``count`` groups, leaves (s, count, ...)."""
    keys = jax.random.split(key, (len(jax.tree.leaves(params)[0]), count))
    return jax.vmap(lambda p, ks: jax.vmap(model.given(p).sample_prior)(ks))(params, keys)
