"""Predictions, their variance's parts and intervals from draws of the parameters; memory does not grow with rows."""

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
from tractable.core.errors import DataError, ModelError, SettingsError, TractableError
from tractable.core.model import Data, Model, as_data, needed_likelihood
from tractable.core.settings import Share, expect, seeded
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.shown import as_html
from tractable.core.tree import Numbers, PyTree, row_shapes
from tractable.core.words import nearest, tell
from tractable.diagnostics.calibration import entropy, split_conformal
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.preflight import naming
from tractable.engine.sharding import BY_ROW, ON_ALL, chunks

BYTES = 1 << 25  # bytes of a chunk of rows: one draw's activations, or what is kept of all draws
DRAWS = 1 << 28  # bytes of parameters on the device at once
LEAST = 1e-30  # share of the largest weight below which a draw is left out: in single precision it might weigh 0
SAMPLES = 1000  # at least this many data are drawn for an interval
Pair = tuple[PyTree, np.ndarray | jax.Array]  # draws and their weights, or rows and their indices


class Prediction(NamedTuple):
    """The predictive distribution at n inputs, averaged over the posterior.

    For classes ``mean`` to ``upper`` describe the class indicators: ``mean`` is then the probabilities, (n, classes),
    or (n,) for two classes coded 0 and 1. If the likelihood has no variance in some draw, aleatoric = sd = inf; if it
    has no mean either, the mean is NaN, all sds are inf, and a ``TractableWarning`` says so. The interval is valid in
    both cases.
    """

    mean: np.ndarray  # (n, ...) E[y*]
    sd: np.ndarray  # total: √(aleatoric² + epistemic²)
    aleatoric: np.ndarray  # √E[Var(y*|θ)]: noise that more data do not remove
    epistemic: np.ndarray  # √Var(E[y*|θ]): uncertainty about θ, which more data reduce
    lower: np.ndarray  # equal-tailed interval of y* (of the probability, for classes)
    upper: np.ndarray
    probabilities: np.ndarray | None = None  # (n, classes)
    entropy: np.ndarray | None = None  # for classes, (n,): entropy of the averaged probabilities, nats
    mutual_information: np.ndarray | None = None  # for classes, (n,): its epistemic part, nats; ≤ entropy
    _repr_html_ = as_html


class _Task(NamedTuple):
    """What is predicted of each row."""

    model: Model
    kind: str  # of a datum: "number", "classes" or "binary"
    samples: int  # data drawn for each draw of the parameters, for intervals


class _Sums(NamedTuple):
    """Running sums over draws for a chunk of r rows; on the device, or zeros on the host."""

    weight: Any  # ()
    mean: Any  # (r, ...)
    squares: Any  # (r, ...) Σ w (mean_s − mean)²
    variance: Any  # (r, ...) Σ w Var(y*|θ_s)
    entropy: Any  # (r, ...) Σ w H(p_s)


def predict(
    model: Model,
    params: PyTree,
    weights: np.ndarray,
    x: PyTree = None,
    *,
    level: float = 0.9,
    seed: int = 0,
    calibrate: Data | PyTree = None,
    placement: OneDevice = ONE_DEVICE,
) -> Prediction:
    """The predictive distribution at inputs x (n, ...) from weighted draws of the parameters (s, ...).

        Var(y*) = E[Var(y*|θ)] + Var(E[y*|θ])         total = aleatoric + epistemic
        H(E[p]) = E[H(p)] + I(y*; θ)                  for classes, in nats

    A number's interval is taken from at least 1000 data drawn from the likelihood, evenly over the draws of the
    parameters; or with ``calibrate`` it is mean ± q sd, q the ⌈(m + 1) level⌉-th smallest of the m scores |y − mean|/sd
    (split conformal). Row n's draws depend on the seed and n alone. Arguments as for ``Posterior.predict``; arrays on
    the host.

    Raises:
        SettingsError: the level is out of range, or ``calibrate`` is given for classes.
        DataError: the likelihood has several distributions; there are no rows, or arrays differ in length; there are
            too few rows to calibrate with.
        ModelError: the likelihood has no mean or variance in closed form.
    """
    needed_likelihood(model)
    expect("predict(level=...)", level, Share)
    seed = seeded("predict(seed)", seed)
    rows, count = rows_of(x)
    params, weights = _counted(params, weights)
    kind = _kind(model, params, rows)
    if calibrate is not None and kind != "number":
        raise SettingsError(
            "predict(calibrate=...) is for numbers; this likelihood is of classes, whose intervals are of "
            "probabilities. Leave it out, and look at tractable.diagnostics.calibration.reliability."
        )
    draws = params, weights
    if calibrate is not None:
        task = _Task(model, kind, 0)
        reach = _reach(task, draws, as_data(calibrate), level, placement)
        prediction = _predictions(task, draws, rows, count, level, seed, placement)
        half = reach * _divisor(prediction.sd)
        return prediction._replace(lower=prediction.mean - half, upper=prediction.mean + half)
    # With few draws of the parameters, or a point, each gives several data.
    task = _Task(model, kind, -(-SAMPLES // len(weights)) if kind == "number" else 1)
    return _predictions(task, draws, rows, count, level, seed, placement)


def ahead(
    own: Callable, params: PyTree, weights: np.ndarray, x: PyTree, rows: PyTree, *, level: float = 0.9, seed: int = 0
) -> Prediction:
    """``predict`` by a likelihood's own ``predict(params, x, rows)``, of all x together.

    Args:
        own: gives the distribution of y* at x given θ and the fitted rows; its mean is (n, ...).
        rows: (y, given), (N, ...) each.
    """
    expect("predict(level=...)", level, Share)
    seed = seeded("predict(seed)", seed)
    params, weights = _counted(params, weights)
    each = -(-SAMPLES // len(weights))

    @jax.jit
    def moments_and_draws(params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
        def one(draw: tuple[PyTree, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            d = own(draw[0], x, rows)
            return d.mean, d.variance, d.sample(jax.random.fold_in(jax.random.key(seed), draw[1]), (each,))

        return jax.lax.map(one, (params, jnp.arange(len(weights))))

    means, variances, drawn = map(np.asarray, moments_and_draws(params, jax.tree.map(jnp.asarray, rows)))
    mean, within = np.tensordot(weights, means, 1), np.tensordot(weights, variances, 1)
    between = np.tensordot(weights, np.square(means - mean), 1)
    samples = np.moveaxis(drawn.reshape(-1, *mean.shape), 0, -1).copy()
    bounds = _bounds(samples, np.repeat(weights, each), level)
    return Prediction(mean, np.sqrt(within + between), np.sqrt(within), np.sqrt(between), *bounds)


def _predictions(
    task: _Task, draws: tuple[PyTree, np.ndarray], rows: PyTree, count: int, level: float, seed: int,
    placement: OneDevice,
) -> Prediction:  # fmt: skip
    """Predictions of rows from weighted draws of the parameters; intervals are NaN where no data are drawn."""
    kind, (params, weights) = task.kind, draws
    activations, (shape, _) = _per_row(functools.partial(_datum, task.model, kind), params, rows)
    samples = shape.size * shape.dtype.itemsize * len(weights) * task.samples
    width = _width(count, max(activations, samples), placement)
    blocks, key = _blocks(params, weights, placement), placement.spread(jax.random.key(seed))
    shares = np.repeat(weights, task.samples)

    def launched() -> Iterator[tuple[_Sums, list, int]]:
        for chunk, index, real in chunks(rows, count, width, placement):
            zeros = np.zeros((len(index), *shape.shape[1:]), jnp.result_type(float))
            sums = _Sums(np.zeros((), zeros.dtype), zeros, zeros, zeros, zeros[..., 0] if kind == "classes" else zeros)
            drawn = []
            for first, thetas, block in blocks:
                sums, more = _predict(task, placement, sums, (thetas, block), first, (chunk, index), key)
                drawn.append(more)
            yield sums, drawn, real

    # A chunk is sorted while the one after it is computed.
    pairs = itertools.pairwise(itertools.chain(launched(), [None]))
    done = [_finished(*chunk, shares, level) for chunk, _ in pairs if chunk is not None]
    # mean, Var(E), E[Var], E[H], lower and upper of all rows
    mean, squares, variance, within, lower, upper = (np.concatenate(parts) for parts in zip(*done, strict=True))
    if kind == "number":
        lost = np.isinf(mean) | np.isinf(lower) | np.isinf(upper)
        mean, squares, variance = _without_moments(mean, squares, variance, np.isfinite(lower) & np.isfinite(upper))
        if lost.any():
            tell(
                f"{np.count_nonzero(lost)} of {lost.size} predictions are too large for a number, the first of row "
                f"{int(np.argwhere(lost)[0][0])} (the first is 0): inputs lie too far from those learnt from."
            )
    prediction = Prediction(mean, np.sqrt(variance + squares), np.sqrt(variance), np.sqrt(squares), lower, upper)
    if kind == "number":
        return prediction
    probabilities = mean if kind == "classes" else np.stack([1 - mean, mean], -1)
    total = entropy(probabilities).astype(mean.dtype)
    # H(E[p]) ≥ E[H(p)] ≥ 0, apart from rounding.
    return prediction._replace(
        probabilities=probabilities, entropy=total, mutual_information=np.clip(total - within, 0, total)
    )


def _kind(model: Model, params: PyTree, rows: PyTree) -> str:
    """A datum's kind, "number", "classes" or "binary"; an error if it cannot be predicted."""
    shapes = row_shapes(params), row_shapes(rows)
    example = _described(model, *shapes)
    if not isinstance(example, Distribution):
        raise DataError("predict handles a likelihood of one distribution; this one returns several.")
    if (classes := classes_of(example)) is not None:
        return classes
    try:
        jax.eval_shape(functools.partial(_moments, model), *shapes)
    except NotImplementedError as error:
        kind = type(getattr(example, "fn", example)).__name__
        raise ModelError(
            f"predict needs the mean and the variance of a datum, and {kind} does not know them in closed form."
        ) from error
    return "number"


def classes_of(datum: Distribution) -> str | None:
    """ "classes" for a datum in 0..C−1, "binary" for 0 or 1, None for a number."""
    if isinstance(datum, dist.CategoricalProbs | dist.CategoricalLogits):  # includes OrderedLogistic
        return "classes"
    return "binary" if isinstance(datum, dist.BernoulliProbs | dist.BernoulliLogits) else None


def _described(model: Model, params: PyTree, x: PyTree) -> PyTree:
    """The distribution of a datum, from shapes alone; a DataError if the likelihood does not take such a row."""
    try:
        with naming("The likelihood", params, x):
            return jax.eval_shape(model.datum, params, x)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, TractableError):
            raise
        raise DataError(
            f"The likelihood does not take {'no inputs' if x is None else f'a row of shape {_said(x)}'}: {error} "
            "Expected rows like those that the model was learnt from, and x left out where it looks at none."
        ) from error


def _said(x: PyTree) -> str:
    """The shape of a row, or those of its parts by name."""
    return ", ".join(
        f"{jax.tree_util.keystr(path, simple=True, separator='.')} {leaf.shape}".strip()
        for path, leaf in jax.tree_util.tree_flatten_with_path(x)[0]
    )


def check_inputs(learnt: PyTree, x: PyTree, what: str) -> None:
    """Raises a DataError unless rows x (n, ...) have the shapes of the fitted ones; None means no inputs."""
    if x is None and learnt is not None:
        raise DataError(f"{what} expects inputs: rows like those learnt from, of shape {_said(row_shapes(learnt))}.")
    if learnt is None or x is None:
        if x is not None:
            raise DataError(f"{what} expects no inputs, as the model learnt from none: leave them out.")
        return
    x = rows_of(x)[0]
    expected, got = (_said(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], bool), r)) for r in (learnt, x))
    if expected != got:
        lacking = [name for name in learnt if name not in x] if isinstance(learnt, dict) and isinstance(x, dict) else []
        said = nearest(lacking[0], x) if lacking else ""
        raise DataError(f"{what} expects rows like those learnt from, of shape {expected}; got {got}.{said}")


def _moments(model: Model, theta: PyTree, x: PyTree) -> tuple[jax.Array, jax.Array]:
    d: Any = itself(model.datum(theta, x))
    return d.mean, d.variance


def _datum(model: Model, kind: str, theta: PyTree, rows: PyTree, index: jax.Array) -> tuple:
    """Mean and variance of each row's datum, or its probabilities twice."""

    def one(x: PyTree, _: jax.Array) -> tuple[jax.Array, jax.Array]:
        if kind == "number":
            return _moments(model, theta, x)
        d: Any = model.datum(theta, x)
        return d.probs, d.probs

    return jax.vmap(one)(rows, index)


@compiled("task", "placement", if_few=COMPILE_FASTEST)
def _predict(
    task: _Task, placement: OneDevice, sums: _Sums, draws: Pair, first: int | jax.Array, rows: Pair,
    key: jax.Array,
) -> tuple[_Sums, jax.Array]:  # fmt: skip
    """Adds draws to the sums of a chunk of rows; also returns samples for intervals, (r, ..., draws × samples).

    Args:
        draws: parameters and their weights; the first one is draw number ``first`` of all.
        rows: inputs, and the rows' indices.
    """
    placed_sums = _Sums(ON_ALL, *[BY_ROW] * 4)
    add = functools.partial(_add_draws, task)
    inputs = (placed_sums, (ON_ALL, ON_ALL), ON_ALL, (BY_ROW, BY_ROW), ON_ALL)
    return placement.map_devices(add, inputs, (placed_sums, BY_ROW))(sums, draws, first, rows, key)


def _add_draws(
    task: _Task, sums: _Sums, draws: Pair, first: int | jax.Array, rows: Pair, key: jax.Array
) -> tuple[_Sums, jax.Array]:
    """``_predict`` for the rows of one device."""
    (model, kind, each), (params, weights) = task, draws

    def add(sums: _Sums, draw: tuple) -> tuple[_Sums, jax.Array]:
        theta, w, number = draw
        stream = jax.random.fold_in(key, number)

        def one(x: PyTree, row: np.ndarray | jax.Array) -> tuple[jax.Array, ...]:
            d: Any = itself(model.datum(theta, x))
            if kind == "number":
                return d.mean, d.variance, jnp.zeros_like(d.mean), d.sample(jax.random.fold_in(stream, row), (each,))
            p = d.probs
            both = p if kind == "classes" else jnp.stack([p, 1 - p], -1)
            return p, p * (1 - p), -jnp.sum(xlogy(both, both), -1), p[None]

        means, variances, entropies, samples = jax.vmap(one)(*rows)
        # West's update: accurate for means far from zero, and stores no draw's mean.
        weight = sums.weight + w
        mean = sums.mean + w / weight * (means - sums.mean)
        squares = sums.squares + w * (means - sums.mean) * (means - mean)
        return _Sums(weight, mean, squares, sums.variance + w * variances, sums.entropy + w * entropies), samples

    weights = weights.astype(sums.weight.dtype)
    numbers = first + jnp.arange(weights.shape[0])
    sums, samples = jax.lax.scan(add, sums, (params, weights, numbers))  # (draws, r, each, ...)
    samples = jnp.moveaxis(samples, (0, 2), (-2, -1))
    return sums, samples.reshape(*samples.shape[:-2], len(weights) * samples.shape[-1])


def _finished(sums: _Sums, drawn: list, real: int, shares: np.ndarray, level: float) -> tuple:
    samples = np.concatenate([np.asarray(a)[:real] for a in drawn], -1)  # a copy, to be sorted
    moments = (np.asarray(a)[:real] for a in sums[1:])
    return *moments, *_bounds(samples, shares, level)


def _bounds(samples: np.ndarray, shares: np.ndarray, level: float) -> list[np.ndarray]:
    """Two quantiles of samples (..., S), sorted in place: the smallest sample with at least the share q at or below."""
    if not len(shares):
        return [np.full(samples.shape[:-1], np.nan)] * 2
    levels = (1 - level) / 2, (1 + level) / 2
    if np.all(shares == shares[0]):  # equal weights: several times faster
        samples.sort(-1)
        size = samples.shape[-1]
        return [samples[..., min(max(math.ceil(q * size - 1e-6), 1), size) - 1].copy() for q in levels]
    order = np.argsort(samples, -1)
    mass = np.cumsum(shares[order], -1)
    where = [np.argmax(mass >= (q - 1e-9) * mass[..., -1:], -1)[..., None] for q in levels]
    return [np.take_along_axis(samples, np.take_along_axis(order, i, -1), -1)[..., 0] for i in where]


def _without_moments(mean, squares, variance, drawn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NaN for a mean and inf for a variance that do not exist, if finite data were drawn: else θ is at fault."""
    none = drawn & ~np.isfinite(mean)
    squares, variance = (np.where(none | (drawn & np.isnan(a)), np.inf, a) for a in (squares, variance))
    if none.any():
        tell(
            f"The likelihood has no mean at {np.count_nonzero(none)} of {none.size} predictions: mean is NaN there, "
            "and sd infinite. The interval holds; its middle is the better forecast."
        )
    return np.where(none, np.nan, mean), squares, variance


def _reach(
    task: _Task, draws: tuple[PyTree, np.ndarray], held_out: Data, level: float, placement: OneDevice
) -> np.ndarray:
    """q of the interval mean ± q sd, from rows that took no part in the fit."""
    prediction = _predictions(task, draws, *rows_of(held_out.given), level, 0, placement)
    y = held_out.y
    if not isinstance(y, np.ndarray) or y.shape[1:] != prediction.mean.shape[1:]:
        if isinstance(y, np.ndarray) and y.shape[1:] == (2,):
            raise DataError("predict(calibrate=...) measures errors, and of rows that are censored there are none.")
        raise DataError(
            f"predict(calibrate=...) expects y with rows of shape {prediction.mean.shape[1:]}; got "
            f"{getattr(y, 'shape', type(y).__name__)}."
        )
    return split_conformal(np.abs(y - prediction.mean) / _divisor(prediction.sd), level).astype(prediction.sd.dtype)


def _divisor(sd: np.ndarray) -> np.ndarray:
    if not np.all((sd > 0) & np.isfinite(sd)):
        raise DataError(
            "predict(calibrate=...) measures errors in predictive sds, and some are zero or not finite. Give the "
            "likelihood noise of finite variance, or leave calibrate out."
        )
    return sd


def log_predictive(
    model: Model, params: PyTree, weights: np.ndarray, data: Data, placement: OneDevice = ONE_DEVICE
) -> np.ndarray:
    """log Σ_s w_s p(y_n|θ_s) of each row, (n,), in nats; by chunks of rows, one draw at a time."""
    needed_likelihood(model)
    params, weights = _counted(params, weights)
    rows, count = rows_of(data.rows)
    width = fitting(lambda theta, rows, _: model.log_likelihoods(theta, rows), params, rows, count, placement=placement)
    blocks = _blocks(params, np.log(weights), placement)
    done = []
    for chunk, index, real in chunks(rows, count, width, placement):
        total = np.full(len(index), -np.inf, jnp.result_type(float))
        for _, thetas, block in blocks:
            total = _log_predictive(model, placement, total, thetas, block, chunk)
        done.append(np.asarray(total)[:real])
    return np.concatenate(done)


@compiled("model", "placement", if_few=COMPILE_FASTEST)
def _log_predictive(model, placement, total, params, log_weights, rows) -> jax.Array:
    def add_draws(total: jax.Array, params: PyTree, log_weights: jax.Array, rows: PyTree) -> jax.Array:
        def add(total: jax.Array, draw: tuple) -> tuple[jax.Array, None]:
            theta, log_weight = draw
            return jnp.logaddexp(total, log_weight + model.log_likelihoods(theta, rows)), None

        return jax.lax.scan(add, total, (params, log_weights.astype(total.dtype)))[0]

    inputs = (BY_ROW, ON_ALL, ON_ALL, BY_ROW)
    return placement.map_devices(add_draws, inputs, BY_ROW)(total, params, log_weights, rows)


# Memory: rows by chunks, draws by blocks.


def rows_of(x: PyTree) -> tuple[PyTree, int]:
    """x as arrays of one length (possibly memory-mapped), and that length; None counts as one row."""
    if x is None:
        return None, 1
    x = arrays_of(x, "x")
    lengths = {a.shape[:1] for a in jax.tree.leaves(x)}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        raise DataError(
            "Rows to predict are arrays of one length, at least 1; got shapes "
            f"{', '.join(str(a.shape) for a in jax.tree.leaves(x)) or 'of none'}."
        )
    check_width(wide({f"x{jax.tree_util.keystr(path)}": a for path, a in jax.tree_util.tree_flatten_with_path(x)[0]}))
    return x, lengths.pop()[0]


def _counted(params: PyTree, weights: Numbers) -> tuple[PyTree, np.ndarray]:
    weights = np.asarray(weights, np.float64)
    counts = weights > LEAST * weights.max(initial=0.0)
    if not counts.all():  # 0 · inf is NaN
        params, weights = jax.tree.map(lambda a: np.asarray(a)[counts], params), weights[counts]
    return params, weights / weights.sum()


def _blocks(params: PyTree, weights: np.ndarray, placement: OneDevice) -> list[tuple[int, PyTree, Any]]:
    """(first, draws, weights), blocks of at most ``DRAWS`` bytes; if one block holds all, it stays on the device."""
    total = len(weights)
    count = -(-sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(params)) // DRAWS)
    if count <= 1:
        return [(0, *placement.spread((jax.device_put(params), weights)))]
    size = -(-total // min(count, total))
    blocks = (jax.tree.map(lambda a, i=i: a[i : i + size], (params, weights)) for i in range(0, total, size))
    return [(i * size, *placement.spread(block)) for i, block in enumerate(blocks)]


def _width(count: int, bytes_a_row: int, placement: OneDevice) -> int:
    """Rows per chunk (and device) within ``BYTES``, with chunks of about equal size."""
    count = placement.cut(count)
    return -(-count // -(-count // max(1, BYTES // bytes_a_row)))


def fitting(
    function: Callable, params: PyTree, rows: PyTree, count: int,
    *, abreast: int = 1, answers: int = 1, placement: OneDevice = ONE_DEVICE,
) -> int:  # fmt: skip
    """Rows per chunk, so that ``function(theta, rows, index)`` of ``abreast`` draws and ``answers`` answers fit."""
    activations, out = _per_row(function, params, rows)
    answer = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(out))
    return _width(count, max(abreast * activations, answers * answer), placement)


def _per_row(function: Callable, params: PyTree, rows: PyTree) -> tuple[int, Any]:
    """Bytes of intermediates of ``function(theta, rows, index)`` per row, and the shapes it returns for one row.

    From its traces for two rows and for one: intermediates of the parameters alone cancel in the difference.
    """
    theta = row_shapes(params)

    def made(size: int) -> tuple[int, Any]:
        chunk = row_shapes(rows, size)
        traced, out = jax.make_jaxpr(function, return_shape=True)(theta, chunk, jax.ShapeDtypeStruct((size,), np.int32))
        return _bytes(traced.jaxpr) + sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(chunk)), out

    one, out = made(1)
    return max(made(2)[0] - one, 1), out


def _bytes(jaxpr: Any) -> int:
    own = sum(v.aval.size * v.aval.dtype.itemsize for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "size"))
    inner = (value.jaxpr for eqn in jaxpr.eqns for value in eqn.params.values() if hasattr(value, "jaxpr"))
    return own + sum(map(_bytes, inner))
