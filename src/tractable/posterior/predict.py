"""Predictions from draws of the parameters, with the parts of their variance and with intervals.

Rows are processed in chunks, so that memory does not grow with the number of rows. "Aleatoric" uncertainty is the noise
of the data given the parameters; "epistemic" uncertainty is the uncertainty about the parameters.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import xlogy
from numpyro.distributions import Distribution

from tractable.core.arrays import arrays_of, check_width, wide
from tractable.core.censoring import itself
from tractable.core.errors import DataError, ModelError, SettingsError, parsing
from tractable.core.model import Data, Model, as_data, needed_likelihood
from tractable.core.settings import Share, check_seed, expect
from tractable.core.shared import COMPILE_FASTEST, ONCE, compiled
from tractable.core.shown import as_html
from tractable.core.simulation import MOST_PARAMETERS, Way, parameters_of, simulate, way_of
from tractable.core.tree import Numbers, PyTree, row_shapes
from tractable.core.words import nearest, tell
from tractable.diagnostics.calibration import entropy, split_conformal
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.preflight import naming
from tractable.engine.sharding import BY_ROW, ON_ALL, chunks
from tractable.posterior.chunking import blocks_of_draws, bytes_per_row, rows_per_chunk

LEAST = 1e-30  # a draw with less than this share of the largest weight is left out: in single precision it may be 0
# What to do if the whole data set is one row, whose numbers depend on each other.
JOINT = (
    "All fitted data are one row. To predict more of it given what it holds, as for a Gaussian process or a series, "
    "give the likelihood a method predict(params, x, (y, given))."
)
SAMPLES = 1000  # minimum number of values simulated for an interval
Pair = tuple[PyTree, np.ndarray | jax.Array]  # draws and their weights, or rows and their indices


class Prediction(NamedTuple):
    """The predictive distribution at n inputs, averaged over the posterior.

    For classes, ``mean`` to ``upper`` describe the class indicators: ``mean`` is then the probabilities, (n, classes),
    or (n,) for two classes coded 0 and 1. If the likelihood has no finite variance in some draw, aleatoric = sd = inf.
    If it has no mean either, the mean is NaN, all sds are inf, and a ``TractableWarning`` says so. The interval is
    valid in both cases.
    """

    mean: np.ndarray  # (n, ...) E[y*]
    sd: np.ndarray  # total sd, √(aleatoric² + epistemic²)
    aleatoric: np.ndarray  # √E[Var(y*|θ)]: noise that more data do not reduce
    epistemic: np.ndarray  # √Var(E[y*|θ]): uncertainty about θ, which more data reduce
    lower: np.ndarray  # lower bound of an equal-tailed interval of y* (for classes, of the probability)
    upper: np.ndarray  # upper bound
    probabilities: np.ndarray | None = None  # (n, classes)
    entropy: np.ndarray | None = None  # for classes, (n,): entropy of the averaged probabilities, in nats
    mutual_information: np.ndarray | None = None  # for classes, (n,): epistemic part of the entropy, in nats
    labels: tuple[Any, ...] | None = None  # the classes, or the names of several targets, of the table that was fitted
    _repr_html_ = as_html

    def to_frame(self) -> Any:
        """The prediction as a pandas DataFrame with a row for each predicted row.

        For numbers the columns are ``mean``, ``sd``, ``aleatoric``, ``epistemic``, ``lower`` and ``upper``; with
        several targets, these for each target, such as ``mean(height)``. For classes they are ``class``, the most
        probable one, its probability and those of the others, such as ``p(yes)``, and the class's ``epistemic``.
        """
        import pandas as pd

        if self.probabilities is None:
            each = {name: np.asarray(getattr(self, name)) for name in self._fields[:6]}
            if np.ndim(self.mean) == 1:
                return pd.DataFrame(each)
            labels = self.labels or tuple(map(str, range(np.shape(self.mean)[1])))
            return pd.DataFrame(
                {f"{name}({label})": a[:, k] for k, label in enumerate(labels) for name, a in each.items()}
            )
        shares = np.asarray(self.probabilities, np.float64)
        best, labels = shares.argmax(-1), self.labels or tuple(range(shares.shape[1]))
        classes = np.array(labels, object if isinstance(labels[0], str) else None)
        # With two classes, ``epistemic`` is (n,), because p and 1 − p have the same sd.
        own = self.epistemic if self.epistemic.ndim == 1 else np.take_along_axis(self.epistemic, best[:, None], 1)[:, 0]
        each = {f"p({label})": shares[:, k] for k, label in enumerate(labels)}
        return pd.DataFrame({"class": classes[best], **each, "epistemic": own})


class _Task(NamedTuple):
    """The prediction that is computed for each row."""

    model: Model
    kind: str  # kind of y: "number", "classes" or "binary"
    samples: int  # number of values of y simulated for each draw of the parameters, for intervals
    way: Way | None = None  # how NumPy simulates y; None for JAX, and for classes


class _Sums(NamedTuple):
    """Running sums over draws for a chunk of r rows, on the device."""

    weight: Any  # () sum of the weights
    mean: Any  # (r, ...) weighted mean of E[y*|θ_s]
    squares: Any  # (r, ...) Σ w (mean_s − mean)²
    variance: Any  # (r, ...) Σ w Var(y*|θ_s)
    entropy: Any  # (r, ...) Σ w H(p_s)


def predict(
    model: Model, params: PyTree, weights: np.ndarray, x: PyTree = None, *, level: float = 0.9, seed: int = 0,
    calibrate: Data | PyTree = None, placement: OneDevice = ONE_DEVICE,
) -> Prediction:  # fmt: skip
    """The predictive distribution at inputs x (n, ...) from weighted draws of the parameters (s, ...).

        Var(y*) = E[Var(y*|θ)] + Var(E[y*|θ])         total = aleatoric + epistemic
        H(E[p]) = E[H(p)] + I(y*; θ)                  for classes, in nats

    The interval of a number comes from at least 1000 values simulated from the likelihood, equally many for each draw
    of the parameters. With ``calibrate`` it is mean ± q sd instead, with q the ⌈(m + 1) level⌉-th smallest of the m
    scores |y − mean|/sd (split conformal prediction). The values simulated for row n only depend on the seed and n. The
    other arguments are those of ``Posterior.predict``. The results are NumPy arrays.

    Raises:
        SettingsError: the level is out of range, or ``calibrate`` is given for classes.
        DataError: the likelihood has several distributions; there are no rows; arrays differ in length; or there are
            too few rows to calibrate with.
        ModelError: the likelihood has no mean or variance in closed form.
    """
    needed_likelihood(model)
    expect("predict(level=...)", level, Share)
    seed = check_seed("predict(seed)", seed)
    rows, count = rows_of(x)
    params, weights = counted_draws(params, weights)
    kind, way = _kind(model, params, rows)
    if calibrate is not None and kind != "number":
        raise SettingsError(
            "predict(calibrate=...) is for numbers; this likelihood predicts classes, and intervals of their "
            "probabilities. Leave it out, and use tractable.diagnostics.calibration.reliability."
        )
    draws = params, weights
    if calibrate is not None:
        task = _Task(model, kind, 0, way)
        factor = _reach(task, draws, as_data(calibrate), level, placement)
        prediction = _predictions(task, draws, rows, count, level, seed, placement)
        half = factor * _divisor(prediction.sd)
        return prediction._replace(lower=prediction.mean - half, upper=prediction.mean + half)
    # If there are few draws of the parameters, or a point estimate, several values are simulated for each.
    task = _Task(model, kind, -(-SAMPLES // len(weights)) if kind == "number" else 1, way)
    return _predictions(task, draws, rows, count, level, seed, placement)


def ahead(
    law: Callable, params: PyTree, weights: np.ndarray, x: PyTree, rows: PyTree, *, level: float = 0.9, seed: int = 0
) -> Prediction:
    """Predicts all x together, by a likelihood's own method ``predict(params, x, rows)``.

    Args:
        law: gives the distribution of y* at x given θ and the fitted rows; its mean is (n, ...).
        params, weights: draws of θ (s, ...), and their weights.
        x: the inputs.
        rows: the fitted rows (y, given), (N, ...) each.
        level, seed: as for ``predict``.
    """
    expect("predict(level=...)", level, Share)
    seed = check_seed("predict(seed)", seed)
    params, weights = counted_draws(params, weights)
    count = -(-SAMPLES // len(weights))  # number of values simulated for each draw

    @jax.jit
    def moments_and_draws(params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
        def predict_draw(draw: tuple[PyTree, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            d = law(draw[0], x, rows)
            return d.mean, d.variance, d.sample(jax.random.fold_in(jax.random.key(seed), draw[1]), (count,))

        return jax.lax.map(predict_draw, (params, jnp.arange(len(weights))))

    got = "no x" if x is None else f"x of type {type(x).__name__} and shape {getattr(x, 'shape', 'unknown')}"
    fault = f"This likelihood predicts by its own method predict(params, x, rows), which failed for {got}"
    with parsing(fault, "Give predict the x that this method takes, such as the places of the new values."):
        means, variances, values = map(np.asarray, moments_and_draws(params, jax.tree.map(jnp.asarray, rows)))
    mean, aleatoric = np.tensordot(weights, means, 1), np.tensordot(weights, variances, 1)
    epistemic = np.tensordot(weights, np.square(means - mean), 1)
    samples = np.moveaxis(values.reshape(-1, *mean.shape), 0, -1).copy()
    lower, upper = _bounds(samples, np.repeat(weights, count), level)
    return Prediction(mean, np.sqrt(aleatoric + epistemic), np.sqrt(aleatoric), np.sqrt(epistemic), lower, upper)


def _predictions(
    task: _Task, draws: tuple[PyTree, np.ndarray], rows: PyTree, count: int, level: float, seed: int,
    placement: OneDevice,
) -> Prediction:  # fmt: skip
    """Predictions of rows from weighted draws of the parameters; intervals are NaN if ``task.samples`` is 0."""
    kind, (params, weights) = task.kind, draws
    activations, (shape, _) = bytes_per_row(functools.partial(_datum, task.model, kind), params, rows)
    samples = shape.size * shape.dtype.itemsize * len(weights) * max(task.samples, MOST_PARAMETERS)
    width = rows_per_chunk(count, max(activations, samples), placement)
    blocks, key = blocks_of_draws(params, weights, placement), placement.spread(jax.random.key(seed))
    shares = np.repeat(weights, task.samples)

    def start_chunks() -> Iterator[tuple[_Sums, list, np.ndarray]]:
        for chunk, index, real in chunks(rows, count, width, placement):
            zeros = np.zeros((len(index), *shape.shape[1:]), jnp.result_type(float))
            sums = _Sums(np.zeros((), zeros.dtype), zeros, zeros, zeros, zeros[..., 0] if kind == "classes" else zeros)
            samples = []
            for first, thetas, block in blocks:
                sums, block_samples = _predict(task, placement, sums, (thetas, block), first, (chunk, index), key)
                samples.append(block_samples)
            yield sums, samples, index[:real]

    # A chunk's samples are sorted on the host while the device computes the next chunk.
    pairs = itertools.pairwise(itertools.chain(start_chunks(), [None]))
    parts = [_finish_chunk(task, *chunk, shares, level, seed) for chunk, _ in pairs if chunk is not None]
    # mean, Var(E), E[Var], E[H], lower and upper of all rows
    mean, squares, variance, mean_entropy, lower, upper = (np.concatenate(a) for a in zip(*parts, strict=True))
    if kind == "number":
        overflow = np.isinf(mean) | np.isinf(lower) | np.isinf(upper)
        mean, squares, variance = _without_moments(mean, squares, variance, np.isfinite(lower) & np.isfinite(upper))
        if overflow.any():
            tell(
                f"{np.count_nonzero(overflow)} of {overflow.size} predictions are too large to compute, the first in "
                f"row {int(np.argwhere(overflow)[0][0])} (rows count from 0): inputs lie too far from the fitted ones."
            )
    prediction = Prediction(mean, np.sqrt(variance + squares), np.sqrt(variance), np.sqrt(squares), lower, upper)
    if kind == "number":
        return prediction
    probabilities = mean if kind == "classes" else np.stack([1 - mean, mean], -1)
    total = entropy(probabilities).astype(mean.dtype)
    # H(E[p]) ≥ E[H(p)] ≥ 0 holds up to rounding errors, which are cut off.
    return prediction._replace(
        probabilities=probabilities, entropy=total, mutual_information=np.clip(total - mean_entropy, 0, total)
    )


def _kind(model: Model, params: PyTree, rows: PyTree) -> tuple[str, Way | None]:
    """The kind of y, "number", "classes" or "binary", and for numbers their ``Way``; an error if y has no moments."""
    shapes = row_shapes(params), row_shapes(rows)
    example = row_distribution(model, *shapes)
    if not isinstance(example, Distribution):
        raise DataError("predict expects a likelihood of one distribution; this likelihood returns several.")
    if (classes := classes_of(example)) is not None:
        return classes, None
    try:
        jax.eval_shape(functools.partial(_moments, model), *shapes)
    except NotImplementedError as error:
        kind = type(getattr(example, "fn", example)).__name__
        raise ModelError(
            f"predict needs the mean and the variance of y, and {kind} does not have them in closed form."
        ) from error
    return "number", way_of(itself(example))


def classes_of(datum: Distribution) -> str | None:
    """The kind of classes that a distribution is over: "classes" for 0..C−1, "binary" for 0 or 1, None for numbers."""
    if isinstance(datum, dist.CategoricalProbs | dist.CategoricalLogits):  # includes OrderedLogistic
        return "classes"
    return "binary" if isinstance(datum, dist.BernoulliProbs | dist.BernoulliLogits) else None


def row_distribution(model: Model, params: PyTree, x: PyTree) -> PyTree:
    """The distribution of y, from shapes alone; a DataError if the likelihood does not accept such a row."""
    rows = "rows without inputs" if x is None else f"a row of shape {_shapes(x)}"
    remedy = "Give rows like those to which the model was fitted; leave x out if the model takes no inputs."
    with parsing(f"The likelihood does not accept {rows}", remedy), naming("The likelihood", params, x):
        return jax.eval_shape(model.datum, params, x)


def _shapes(x: PyTree) -> str:
    """The shape of a row as text, or the shapes of its parts with their names."""
    return ", ".join(
        f"{jax.tree_util.keystr(path, simple=True, separator='.')} {leaf.shape}".strip()
        for path, leaf in jax.tree_util.tree_flatten_with_path(x)[0]
    )


def check_inputs(data: Data, x: PyTree, what: str) -> None:
    """Raises a DataError unless rows x (n, ...) have the shapes of the fitted rows; None means no inputs."""
    learnt, hint = data.given, f" {JOINT}" * (data.size == 1)
    if learnt is not None and not hasattr(learnt, "shape"):  # the form of ``given``, such as {'age': …, 'dose': …}
        hint = f" Give arrays of n rows as {jax.tree.map(lambda _: ..., learnt)}.".replace("Ellipsis", "…") + hint
    if learnt is None and x is not None:
        fault = "expects no inputs, because the model was fitted without inputs: leave them out"
        raise DataError(f"{what} {fault}.{hint}")
    expected, got = (None if r is None else _shapes(row_shapes(r)) for r in (learnt, x if x is None else rows_of(x)[0]))
    if expected == got:
        return
    if got is None:
        raise DataError(f"{what} expects inputs like the fitted rows, of shape {expected}; got none.{hint}")
    lacking = [name for name in learnt if name not in x] if isinstance(learnt, dict) and isinstance(x, dict) else []
    hint = (nearest(lacking[0], x or ()) if lacking else "") or hint
    raise DataError(f"{what} expects rows like the fitted ones, of shape {expected}; got {got}.{hint}")


def _moments(model: Model, theta: PyTree, x: PyTree) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of y at x, given θ."""
    d: Any = itself(model.datum(theta, x))
    return d.mean, d.variance


def _datum(model: Model, kind: str, theta: PyTree, rows: PyTree, index: jax.Array) -> tuple:
    """Mean and variance of each row's y; for classes, the probabilities twice."""

    def moments(x: PyTree, _: jax.Array) -> tuple[jax.Array, jax.Array]:
        if kind == "number":
            return _moments(model, theta, x)
        d: Any = model.datum(theta, x)
        return d.probs, d.probs

    return jax.vmap(moments)(rows, index)


@compiled("task", "placement", if_few=COMPILE_FASTEST, few=ONCE)
def _predict(
    task: _Task, placement: OneDevice, sums: _Sums, draws: Pair, first: int | jax.Array, rows: Pair,
    key: jax.Array,
) -> tuple[_Sums, jax.Array]:  # fmt: skip
    """Adds draws to the sums of a chunk of rows; also returns samples for intervals, (r, draws, samples, ...).

    If NumPy simulates y, the parameters that it needs are returned in place of the samples.

    Args:
        task: the prediction.
        placement: the devices.
        sums: the sums over earlier draws.
        draws: parameters and their weights.
        first: number of the first of these draws among all draws.
        rows: inputs, and the rows' indices.
        key: key of the samples.
    """
    placed_sums = _Sums(ON_ALL, *[BY_ROW] * 4)
    add = functools.partial(_add_draws, task)
    inputs = (placed_sums, (ON_ALL, ON_ALL), ON_ALL, (BY_ROW, BY_ROW), ON_ALL)
    return placement.map_devices(add, inputs, (placed_sums, BY_ROW))(sums, draws, first, rows, key)


def _add_draws(
    task: _Task, sums: _Sums, draws: Pair, first: int | jax.Array, rows: Pair, key: jax.Array
) -> tuple[_Sums, jax.Array]:
    """``_predict`` for the rows of one device."""
    (model, kind, count, way), (params, weights) = task, draws

    def add(sums: _Sums, draw: tuple) -> tuple[_Sums, jax.Array]:
        theta, w, number = draw
        stream = jax.random.fold_in(key, number)

        def predict_row(x: PyTree, row: np.ndarray | jax.Array) -> tuple[jax.Array, ...]:
            d: Any = itself(model.datum(theta, x))
            if kind == "number":
                values = parameters_of(way, d) if way else d.sample(jax.random.fold_in(stream, row), (count,))
                return d.mean, d.variance, jnp.zeros_like(d.mean), jnp.asarray(values)
            p = d.probs
            classes = p if kind == "classes" else jnp.stack([p, 1 - p], -1)
            return p, p * (1 - p), -jnp.sum(xlogy(classes, classes), -1), p[None]

        means, variances, entropies, samples = jax.vmap(predict_row)(*rows)
        # West's update of mean and variance is accurate for means far from zero, and does not store the draws' means.
        weight = sums.weight + w
        mean = sums.mean + w / weight * (means - sums.mean)
        squares = sums.squares + w * (means - sums.mean) * (means - mean)
        return _Sums(weight, mean, squares, sums.variance + w * variances, sums.entropy + w * entropies), samples

    weights = weights.astype(sums.weight.dtype)
    numbers = first + jnp.arange(weights.shape[0])
    sums, samples = jax.lax.scan(add, sums, (params, weights, numbers))  # (draws, r, count, ...)
    return sums, jnp.moveaxis(samples, 0, 1)


def _finish_chunk(
    task: _Task, sums: _Sums, samples: list, index: np.ndarray, shares: np.ndarray, level: float, seed: int
) -> tuple:
    """The sums and the interval's bounds of a chunk's rows ``index``; its other rows are padding."""
    real = len(index)
    values = np.concatenate([np.asarray(a)[:real] for a in samples], 1)  # a copy, as ``_bounds`` sorts it in place
    if task.way:
        values = simulate(task.way, values, index, seed, task.samples)
    else:
        values = values.reshape(real, -1, *values.shape[3:])
    moments = (np.asarray(a)[:real] for a in sums[1:])
    return *moments, *_bounds(np.moveaxis(values, 1, -1).copy(), shares, level)


def _bounds(samples: np.ndarray, shares: np.ndarray, level: float) -> list[np.ndarray]:
    """The bounds of an equal-tailed interval, as two quantiles of weighted samples (..., S).

    A quantile q is the smallest sample such that samples up to it have at least the share q of the weight. The samples
    may be sorted in place.
    """
    if not len(shares):
        return [np.full(samples.shape[:-1], np.nan)] * 2
    levels = (1 - level) / 2, (1 + level) / 2
    if np.all(shares == shares[0]):  # for equal weights this is several times faster
        samples.sort(-1)
        size = samples.shape[-1]
        return [samples[..., min(max(math.ceil(q * size - 1e-6), 1), size) - 1].copy() for q in levels]
    order = np.argsort(samples, -1)
    mass = np.cumsum(shares[order], -1)
    indices = [np.argmax(mass >= (q - 1e-9) * mass[..., -1:], -1)[..., None] for q in levels]
    return [np.take_along_axis(samples, np.take_along_axis(order, i, -1), -1)[..., 0] for i in indices]


def _without_moments(mean, squares, variance, is_finite) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sets means that do not exist to NaN, and variances that do not exist to inf.

    They do not exist if they are not finite although the simulated values are (``is_finite``). If the simulated values
    are not finite either, the parameters θ are the reason, and nothing is changed.
    """
    missing = is_finite & ~np.isfinite(mean)
    squares, variance = (np.where(missing | (is_finite & np.isnan(a)), np.inf, a) for a in (squares, variance))
    if missing.any():
        tell(
            f"The likelihood has no mean at {np.count_nonzero(missing)} of {missing.size} predictions: mean is NaN "
            "there, and sd infinite. The interval is valid; its middle is the better forecast."
        )
    return np.where(missing, np.nan, mean), squares, variance


def _reach(
    task: _Task, draws: tuple[PyTree, np.ndarray], held_out: Data, level: float, placement: OneDevice
) -> np.ndarray:
    """The factor q of the interval mean ± q sd, from rows that took no part in the fit."""
    prediction = _predictions(task, draws, *rows_of(held_out.given), level, 0, placement)
    y = held_out.y
    if not isinstance(y, np.ndarray) or y.shape[1:] != prediction.mean.shape[1:]:
        if isinstance(y, np.ndarray) and y.shape[1:] == (2,):
            raise DataError(
                "predict(calibrate=...) measures errors of predictions, and the errors of censored rows are not known: "
                "give rows that are not censored, or leave calibrate out."
            )
        raise DataError(
            f"predict(calibrate=...) expects y with rows of shape {prediction.mean.shape[1:]}; got "
            f"{getattr(y, 'shape', type(y).__name__)}."
        )
    return split_conformal(np.abs(y - prediction.mean) / _divisor(prediction.sd), level).astype(prediction.sd.dtype)


def _divisor(sd: np.ndarray) -> np.ndarray:
    """The predictive sds; a DataError unless all are positive and finite, so that errors can be divided by them."""
    if not np.all((sd > 0) & np.isfinite(sd)):
        raise DataError(
            "predict(calibrate=...) divides errors by predictive sds, and some are zero or not finite. Give the "
            "likelihood noise of finite variance, or leave calibrate out."
        )
    return sd


def rows_of(x: PyTree) -> tuple[PyTree, int]:
    """x as arrays of equal length (possibly memory-mapped), and that length; None counts as one row."""
    if x is None:
        return None, 1
    x = arrays_of(x, "x")
    lengths = {a.shape[:1] for a in jax.tree.leaves(x)}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        raise DataError(
            "Rows to predict should be arrays of equal length, at least 1; got shapes "
            f"{', '.join(str(a.shape) for a in jax.tree.leaves(x)) or 'of no arrays'}."
        )
    check_width(wide({f"x{jax.tree_util.keystr(path)}": a for path, a in jax.tree_util.tree_flatten_with_path(x)[0]}))
    return x, lengths.pop()[0]


def counted_draws(params: PyTree, weights: Numbers) -> tuple[PyTree, np.ndarray]:
    """The draws whose weights are not negligible, and these weights, which sum to 1."""
    weights = np.asarray(weights, np.float64)
    counts = weights > LEAST * weights.max(initial=0.0)
    if not counts.all():  # a weight of 0 would turn an infinite value into NaN
        params, weights = jax.tree.map(lambda a: np.asarray(a)[counts], params), weights[counts]
    return params, weights / weights.sum()
