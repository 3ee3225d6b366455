"""Log likelihoods, leave-one-out cross-validation and replicated data, for each row and draw.

Rows and draws are processed in blocks, so that memory only needs to hold the result. Leave-one-out cross-validation
uses Pareto-smoothed importance sampling (Vehtari, Gelman and Gabry 2017; Vehtari et al. 2024). Its diagnostic k-hat is
the tail index of the importance weights.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from tractable.core.censoring import itself
from tractable.core.errors import DataError, ModelError, RunError
from tractable.core.model import Data, Model, PyTree, log_density, needed_likelihood, sample_of
from tractable.core.settings import check_seed
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.simulation import Way, parameters_of, simulate, way_of
from tractable.core.tree import row_shapes
from tractable.core.words import counted
from tractable.diagnostics import pareto
from tractable.diagnostics.belief import Fitted
from tractable.diagnostics.importance import NODES, khat_limit
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.sharding import BY_ROW, ON_ALL, ROWS, chunks
from tractable.posterior.chunking import fitting
from tractable.posterior.predict import counted_draws, row_distribution

PADDED = 500  # fewer rows than this are padded to the next power of two, so that few programs need to be compiled
# At most MOST rows are evaluated EACH at a time if a draw has at most SMALL numbers, so that one program serves them.
EACH, MOST, SMALL = 256, 1024, 1000
BLOCK = 128  # draws per call, so that one program serves any number of draws
LIMIT = 1 << 31  # maximum size of a result, in bytes
ABREAST = 16  # number of draws of a block that are computed in parallel
WORK = 2e9  # maximum of rows × draws × parameters for computations that the user did not ask for
MATCHED = 50  # maximum number of rows for which draws are moved
FEWEST = 100  # minimum number of draws for leave-one-out


class Left(NamedTuple):
    """Leave-one-out results for r rows and s draws."""

    log_likelihoods: np.ndarray  # (s, r) log p(y_n | θ_s), without the row's weight
    log_weights: np.ndarray  # (s, r) smoothed log weights of the draws for p(θ | all rows but n); normalised over s
    khat: np.ndarray  # (r,)


@dataclass(frozen=True, eq=False)
class Loo:
    """Leave-one-out expected log predictive density: each row is predicted from all others.

        elpd = Σ_n w_n log p(y_n | y without n)          p = Σ_n w_n log p(y_n | y) − elpd

    A row of weight w_n stands for w_n equal rows: one of them is left out at a time, and its log density counts w_n
    times.

    Attributes:
        elpd: expected log predictive density in nats, summed over all rows; NaN if a k-hat is above the limit.
        se: the standard error of elpd over rows; if only some rows were evaluated, it includes their sampling error.
        p: effective number of parameters; NaN if a k-hat is above the limit.
        khat: the largest k-hat (tail index of the weights); -inf if no row changes the posterior.
        limit: min(1 − 1/log₁₀ S, 0.7), the largest reliable k-hat with S draws.
        index: (m,) indices of the rows evaluated.
        pointwise: (m,) log p(y_n | y without n) of each row evaluated, reliable or not.
        khats: (m,) k-hat of each row evaluated.
        size: N, the number of rows with positive weight.
        labels: (N,) group labels, if each datum is a group that is left out with all of its rows; otherwise None.
        matched: number of rows whose k-hat is below its first value because draws were moved (``moment_matching``).
    """

    elpd: float
    se: float
    p: float
    khat: float
    limit: float
    index: np.ndarray = field(repr=False)
    pointwise: np.ndarray = field(repr=False)
    khats: np.ndarray = field(repr=False)
    size: int
    labels: np.ndarray | None = field(default=None, repr=False)
    matched: int = 0

    @property
    def failed(self) -> np.ndarray:
        """Indices of the rows whose k-hat is above the limit."""
        return self.index[~(self.khats <= self.limit)]

    @property
    def unit(self) -> str:
        """What is left out: a "row" or a "group"."""
        return "row" if self.labels is None else "group"

    def __str__(self) -> str:
        unit, group_note = self.unit, "" if self.labels is None else ", each left out with all of its rows"
        sample_note = "" if len(self.index) == self.size else f", from {len(self.index):,} of them"
        group_note += "" if not self.matched else f"; {counted(self.matched, unit)} by moment matching"
        if not len(self.failed):
            return (
                f"elpd_loo {self.elpd:.1f} ± {self.se:.1f} nats of {counted(self.size, unit)}{sample_note}"
                f"{group_note}; p_loo {self.p:.1f}; k-hat at most {self.khat:.2f}, good up to {self.limit:.2f}"
            )
        failed = self.failed if self.labels is None else self.labels[self.failed]
        names = ", ".join(map(str, failed[:6])) + " …" * (len(failed) > 6)
        return (
            f"elpd_loo is not known: {counted(len(failed), unit)} of {len(self.index):,} ({unit} {names}) cannot be "
            f"left out by reweighting draws, because the posterior depends too much on them; k-hat up to "
            f"{self.khat:.2f}, good up to {self.limit:.2f}. Fit again without these {unit}s and use "
            f"posterior.log_predictive on them, which is too low for a {unit} far from all draws, or hold {unit}s out."
        )


def log_likelihoods(model: Model, params: PyTree, data: Data, placement: OneDevice = ONE_DEVICE) -> np.ndarray:
    """Log likelihoods w_n log p(y_n | x_n, θ_s) of draws (s, ...), (s, n) in nats; 0 for rows of weight 0.

    Raises:
        ModelError: there is no likelihood, or its latent z is not summed out.
        DataError: the result would take more than ``LIMIT`` bytes.
    """
    needed_likelihood(model)
    fits("log_likelihood", length(params), data.size, 1, jnp.result_type(float).itemsize)
    terms = np.concatenate([part for _, part in _likelihoods(model, params, data, placement)], 1)
    return terms if data.weights is None else np.where(data.weights > 0, data.weights * terms, 0.0)


def log_predictive(
    model: Model, params: PyTree, weights: np.ndarray, data: Data, placement: OneDevice = ONE_DEVICE
) -> np.ndarray:
    """The log predictive density log Σ_s w_s p(y_n|θ_s) of each row, (n,), in nats.

    NumPy adds the draws up, so that the program of the log likelihoods serves this too.
    """
    needed_likelihood(model)
    params, weights = counted_draws(params, weights)
    parts = []
    for _, terms in _likelihoods(model, params, data, placement):
        top = np.max(terms, 0)
        top[~np.isfinite(top)] = 0
        terms -= top
        np.exp(terms, out=terms)
        terms *= weights[:, None].astype(terms.dtype)
        with np.errstate(divide="ignore"):  # a row that no draw allows has density 0
            parts.append(top + np.log(terms.sum(0, np.float64)).astype(terms.dtype))
    return np.concatenate(parts)


def totals(model: Model, params: PyTree, data: Data) -> np.ndarray:
    """Sums Σ_n w_n log p(y_n | x_n, θ_s) of draws (s, ...), (s,) float64; rows × draws need not fit into memory."""
    needed_likelihood(model)
    total = np.zeros(length(params))
    for rows, part in _likelihoods(model, params, data):
        weights = np.ones(part.shape[1]) if data.weights is None else data.weights[rows]
        total += np.where(weights > 0, weights * part.astype(np.float64), 0.0).sum(1)
    return total


def replicate(model: Model, params: PyTree, given: PyTree, count: int, seed: int) -> PyTree:
    """Simulates y*_n ~ p(y | x_n, θ_s), one for each row and draw, (s, n, ...) for each part of y.

    The values of a row only depend on the seed, its index and the draws of the parameters.

    Raises:
        ModelError: the likelihood cannot be sampled.
        DataError: the result would take more than ``LIMIT`` bytes.
    """
    needed_likelihood(model)
    theta, x = row_shapes((params, given))
    datum = itself(row_distribution(model, theta, x))
    way = way_of(datum)
    example = jax.ShapeDtypeStruct(datum.shape(), way.dtype) if way else _example(model, theta, x)
    parts = jax.tree.leaves(example)
    if not all(part.size for part in parts):
        raise ModelError("A part of this likelihood is a factor, from which no data can be simulated.")
    fits("A predictive sample", length(params), count, sum(p.size for p in parts), max(p.dtype.itemsize for p in parts))
    seed = check_seed("posterior_predictive(seed)", seed)
    key = 0 if way else jax.random.key(seed)  # NumPy needs no key

    def of_draws(thetas: PyTree, numbers: np.ndarray, chunk: PyTree, index: np.ndarray) -> PyTree:
        return _replicates(model, way, key, thetas, numbers, chunk, index)

    def of_draw(theta: PyTree, chunk: PyTree, index: jax.Array) -> PyTree:
        return _row_values(model, way, 0 if way else jax.random.key(0), theta, chunk, index)

    parts = []
    for rows, part in _by_chunks(of_draws, of_draw, params, given, count):
        if way:
            part = simulate(way, part.swapaxes(0, 1), np.arange(count)[rows], seed).swapaxes(0, 1)
        parts.append(part)
    return jax.tree.map(lambda *a: np.concatenate(a, 1), *parts)


def _example(model: Model, theta: PyTree, x: PyTree) -> PyTree:
    """The shapes of one y simulated by JAX."""
    try:
        return jax.eval_shape(lambda t, x: sample_of(itself(model.datum(t, x)), jax.random.key(0)), theta, x)
    except NotImplementedError as error:
        raise ModelError("This likelihood has no sample(), so that data cannot be simulated from it.") from error


def prior_draws(model: Model, count: int, seed: int) -> PyTree:
    """Draws ``count`` parameters from the prior, (count, ...).

    Raises:
        ModelError: the prior is only a log density, or improper.
    """
    if not model.drawable:
        raise ModelError(
            "This model's prior cannot be drawn from: it is a log density, or improper. Give proper numpyro "
            "distributions, or use posterior.posterior_predictive()."
        )
    key = jax.random.key(check_seed("prior_predictive(seed)", seed))
    return jax.vmap(model.sample_prior)(jax.random.split(key, count))


def derived(model: Model, params: PyTree, most: int | None = None) -> dict[str, np.ndarray]:
    """The model's derived quantities for draws (s, ...), (s, ...) each.

    Args:
        model: the model.
        params: draws of the parameters.
        most: leave out quantities of more than this many numbers per draw; None for all quantities.

    Raises:
        DataError: the result would take more than ``LIMIT`` bytes.
    """
    if model.derived is None:
        return {}
    derived = jax.eval_shape(model.derived, row_shapes(params))
    shapes = {name: a for name, a in derived.items() if most is None or a.size <= most}
    fits("derived()", length(params), 1, sum(a.size for a in shapes.values()), jnp.result_type(float).itemsize)
    derived_block = _derive(model, tuple(shapes), params)
    return {name: np.asarray(derived_block[name]) for name in shapes}


def correction_weights(model: Model, data: Data, fitted: Fitted) -> np.ndarray:
    """Log importance weights log p(y, z) − log q(z) of draws from a fitted q, (s,) (Magnusson et al. 2019)."""
    positions = np.concatenate([] if fitted.positions is None else fitted.positions)
    return np.asarray(_corrections(model, fitted.q, fitted.phi, positions, data.arrays()), np.float64)


def leave_out(model: Model, params: PyTree, log_weights: np.ndarray, data: Data, efficiency: float) -> Iterator[Left]:
    """Leaves out each row in turn; yields the results by chunks of rows.

    Of a row's weight w, at most 1 is left out: for w > 1 one of w equal rows, for w < 1 the whole row.

    Args:
        model, params, data: the model, draws (s, ...) of its parameters, and the rows.
        log_weights: (s,) log weights of the draws, up to a constant; equal for draws of p(θ | y).
        efficiency: effective sample size per draw, at most 1.

    Raises:
        RunError: fewer than ``FEWEST`` draws.
    """
    if length(params) < FEWEST:
        raise RunError(f"Leaving out rows by reweighting needs at least {FEWEST} draws; got {length(params)}.")
    for rows, part in _likelihoods(model, params, data):
        terms = part.T.astype(np.float64)  # (r, s)
        share = 1.0 if data.weights is None else np.minimum(data.weights[rows], 1.0)[:, None]
        ratios = log_weights - share * np.where(np.isfinite(terms), terms, 0.0)
        ratios -= ratios.max(1, keepdims=True)
        # A masked row, for example, has the same density in all draws; then there is nothing to smooth.
        constant = np.ptp(ratios, 1) <= 1e-6 * np.maximum(1.0, np.abs(terms).max(1))
        new_weights, khat = ratios - _log_sum(ratios)[:, None], np.full(len(ratios), -np.inf)
        if not constant.all():
            new_weights[~constant], khat[~constant] = pareto.smooth(ratios[~constant], efficiency)
        khat = np.where(np.isfinite(terms).all(1), khat, np.inf)
        yield Left(terms.T, new_weights.T, khat)


def concatenate_chunks(parts: Sequence[Left]) -> Left:
    """Concatenates the results of chunks of rows."""
    return Left(*(np.concatenate(arrays, -1) for arrays in zip(*parts, strict=True)))


def loo(
    model: Model, params: PyTree, log_weights: np.ndarray, data: Data, efficiency: float = 1.0,
    rows: int | None = None, units: np.ndarray | None = None, match: Callable[[int], tuple[float, float]] | None = None,
) -> Loo:  # fmt: skip
    """Leave-one-out cross-validation from s draws, for at most ``rows`` rows of positive weight.

    Of N rows, m are drawn with equal probability, and elpd = Σ_N w l + N/m Σ_m w (log p(y_n | y without n) − l) with
    l = log p(y_n | y). This is the difference estimator of Magnusson et al. 2020, which is exact if m = N. ``units``,
    (N,) nats, are subtracted from the rows' log densities. ``match(n)`` is (log p(y_n | y without n), k-hat) by another
    method, for rows of weight 1 or more whose k-hat is above its limit. The other arguments are those of ``leave_out``.

    Raises:
        RunError: fewer than ``FEWEST`` draws.
    """
    needed_likelihood(model)
    count = np.ones(data.size) if data.weights is None else data.weights
    positive = np.flatnonzero(count > 0)
    index = positive
    if rows is not None and rows < len(positive):
        index = np.sort(np.random.default_rng(0).choice(positive, rows, replace=False))
    log_shares = log_weights - _log_sum(log_weights)
    parts = [
        (_log_sum((a.log_weights + a.log_likelihoods).T), _log_sum((log_shares[:, None] + a.log_likelihoods).T), a.khat)
        for a in leave_out(model, params, log_weights, data.take(index) if len(index) < data.size else data, efficiency)
    ]
    pointwise, joint, khats = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    weights, size, limit = count[index], len(positive), khat_limit(length(params))
    failed, matched = np.flatnonzero(~(khats <= limit) & (weights >= 1)), 0
    if match is not None:
        work = len(failed) * data.size * length(params) * max(model.space.size, 10)
        for i in failed if len(failed) <= MATCHED and work <= WORK else ():
            log_density, khat = match(int(index[i]))
            if khat < khats[i]:
                pointwise[i], khats[i], matched = log_density, khat, matched + 1
    units = np.zeros(data.size) if units is None else units
    pointwise, joint = pointwise - units[index], joint - units[index]
    losses, scale = weights * (joint - pointwise), size / len(index)
    log_densities, spread = joint, pointwise
    if len(index) < size:  # the standard error over rows is estimated from l, which is computed for all rows
        weights = count[positive]
        spread = log_predictive(model, params, np.exp(log_shares), data.take(positive)).astype(np.float64)
        spread -= units[positive]
        log_densities = spread
    total, p = weights @ log_densities, scale * losses.sum()
    variance = weights @ np.square(spread - np.average(spread, weights=weights))
    variance += size**2 * (1 - 1 / scale) * losses.var() / len(index)
    worst = float(khats.max())
    factor = 1.0 if worst <= limit else math.nan
    elpd, se, p = (factor * float(number) for number in (total - p, math.sqrt(variance), p))
    return Loo(elpd, se, p, worst, limit, index, pointwise, khats, size, data.labels, matched)


def transforms(left: Left, simulated: np.ndarray, y: np.ndarray, seed: int = 0) -> np.ndarray:
    """Leave-one-out probability integral transforms Pr(y* < y_n | y without n) of rows with one number, (n,).

    Ties are broken at random, so that the transforms of counts are uniform too. Likewise, the position of a censored
    row, y (n, 2), between its bounds is random.

    Args:
        left: the leave-one-out results.
        simulated: (s, n) values y* simulated from the draws.
        y: (n,) or (n, 2).
        seed: seed of the random numbers.
    """
    shares = np.exp(left.log_weights)
    low, high = (y, y) if y.ndim == 1 else y.T
    mass_below = np.sum(shares * (simulated < low), 0)
    mass_between = np.sum(shares * ((simulated >= low) & (simulated <= high)), 0)
    return np.clip(mass_below + np.random.default_rng(seed).random(len(y)) * mass_between, 0.0, 1.0)


def single(y: PyTree) -> np.ndarray:
    """y of rows with one number each, (n,), or its bounds (n, 2); a DataError for other rows."""
    parts = jax.tree.leaves(y)
    if len(parts) > 1:
        raise DataError("pit() expects rows of one number each; these rows have several numbers.")
    return np.asarray(parts[0])


def leave_one_out_transforms(left: Left, simulated: PyTree, y: np.ndarray, seed: int) -> np.ndarray:
    """The ``transforms``, with NaN for rows that cannot be left out by reweighting."""
    if np.ndim(simulated) != 2:
        raise DataError("pit() expects rows of one number each; these rows have several numbers.")
    return np.where(left.khat <= khat_limit(len(simulated)), transforms(left, simulated, y, seed), np.nan)


def affordable(model: Model, data: Data | None) -> int:
    """The number of draws, at most 1000, with which all rows can be evaluated quickly, for a page or a comparison.

    0 if the rows cannot be evaluated.
    """
    if data is None or not data.resident or model.likelihood is None:
        return 0
    evaluations = data.size if data.labels is None else NODES * data.given.counts.size
    return int(min(1000, WORK / (max(evaluations, 1) * max(model.space.size, 10))))


def length(params: PyTree) -> int:
    """The number s of draws (s, ...)."""
    return len(jax.tree.leaves(params)[0])


def fits(what: str, draws: int, rows: int, numbers: int, itemsize: int) -> None:
    """Raises a DataError if a result of ``numbers`` numbers per row and draw would exceed ``LIMIT`` bytes."""
    size = draws * rows * numbers * itemsize
    if size > LIMIT:
        most_draws = LIMIT // (rows * numbers * itemsize)
        remedy = f"at most {most_draws:,} draws in all (draws=), or for fewer rows" if most_draws else "fewer rows"
        raise DataError(
            f"{what} of {counted(rows, 'row')} and {counted(draws, 'draw')} takes {size / 2**30:.1f} GiB, more than "
            f"{LIMIT / 2**30:g} GiB: ask for {remedy}, by data.take(...)."
        )


def _likelihoods(
    model: Model, params: PyTree, data: Data, placement: OneDevice = ONE_DEVICE
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields slices of rows, and log p(y_n | x_n, θ_s) of these rows, (s, r)."""

    def of_draws(thetas: PyTree, _: np.ndarray, chunk: PyTree, __: np.ndarray) -> jax.Array:
        return _row_likelihoods(model, placement, thetas, chunk)

    def of_draw(theta: PyTree, chunk: PyTree, _: np.ndarray) -> jax.Array:
        return model.log_likelihoods(theta, chunk)

    return _by_chunks(of_draws, of_draw, params, data.rows, data.size, placement)


def _by_chunks(
    of_draws: Callable, of_draw: Callable, params: PyTree, rows: PyTree, count: int,
    placement: OneDevice = ONE_DEVICE,
) -> Iterator[tuple[slice, PyTree]]:  # fmt: skip
    """Yields slices of rows, and the results of a function for all draws and these rows, (s, r, ...).

    Args:
        of_draws: the function ``of_draws(thetas, numbers, chunk, index)`` for a block of draws and a chunk of rows.
        of_draw: the same function for a single draw; it serves to estimate the memory.
        params: draws (s, ...).
        rows, count: the rows, and their number.
        placement: the devices.
    """
    draws = length(params)
    size = sum(np.size(a) for a in jax.tree.leaves(params)) // draws
    padded = max(count, min(PADDED, 1 << (count - 1).bit_length())) if count > MOST or size > SMALL else EACH
    width = fitting(of_draw, params, rows, padded, abreast=ABREAST, answers=draws, placement=placement)
    if width < PADDED and width < padded and not placement.divides_rows:
        width = fitting(of_draw, params, rows, count, abreast=ABREAST, answers=draws)
    start = 0
    for chunk, index, real in chunks(rows, count, width, placement):
        parts = []
        for first in range(0, draws, BLOCK):
            numbers = np.minimum(np.arange(first, first + BLOCK), draws - 1)  # the last block is padded
            thetas = jax.tree.map(lambda a, at=numbers: np.asarray(a)[at], params)
            thetas, numbers = placement.spread((thetas, numbers.astype(np.int32)))
            parts.append(jax.tree.map(np.asarray, of_draws(thetas, numbers, chunk, index)))
        yield slice(start, start + real), jax.tree.map(lambda *a, n=real: np.concatenate(a)[:draws, :n], *parts)
        start += real


def _row_values(
    model: Model, way: Way | None, stream: ArrayLike, theta: PyTree, chunk: PyTree, index: jax.Array
) -> PyTree:
    """y simulated for each row of a chunk, given θ; row n uses the key ``fold_in(stream, n)``.

    If NumPy has a ``way`` to simulate y, the values are the parameters that it needs.
    """

    def row(x: PyTree, number: jax.Array) -> PyTree:
        datum = itself(model.datum(theta, x))
        return parameters_of(way, datum) if way else sample_of(datum, jax.random.fold_in(stream, number))

    return jax.vmap(row)(chunk, index)


@compiled("model", "way", if_few=COMPILE_FASTEST)
def _replicates(model, way, key, thetas, numbers, chunk, index) -> PyTree:
    """The ``_row_values`` of each draw θ and a chunk of rows, (s, r, ...); ``numbers`` are the draws' indices."""

    def draw(pair: tuple[PyTree, jax.Array]) -> PyTree:
        theta, number = pair
        return _row_values(model, way, key if way else jax.random.fold_in(key, number), theta, chunk, index)

    return jax.lax.map(draw, (thetas, numbers), batch_size=ABREAST)


@compiled("model", "names", if_few=COMPILE_FASTEST)
def _derive(model: Model, names: tuple[str, ...], params: PyTree) -> dict[str, jax.Array]:
    """The derived quantities of these names, for draws (s, ...)."""

    def derive(theta: PyTree) -> dict[str, jax.Array]:
        arrays = {} if model.derived is None else model.derived(theta)
        return {name: jnp.asarray(arrays[name]) for name in names}

    return jax.lax.map(derive, params, batch_size=ABREAST)


@compiled("model", "placement", if_few=COMPILE_FASTEST)
def _row_likelihoods(model: Model, placement: OneDevice, thetas: PyTree, chunk: PyTree) -> jax.Array:
    """log p(y_n | x_n, θ_s) of a block of draws and a chunk of rows, (s, r)."""

    def of_device(thetas: PyTree, chunk: PyTree) -> jax.Array:
        return jax.lax.map(lambda theta: model.log_likelihoods(theta, chunk), thetas, batch_size=ABREAST)

    return placement.map_devices(of_device, (ON_ALL, BY_ROW), PartitionSpec(None, ROWS))(thetas, chunk)


@compiled("model", "q", if_few=COMPILE_FASTEST)
def _corrections(model, q, phi, positions, rows) -> jax.Array:
    """log p(y, z) − log q(z) at positions (s, d)."""
    target = log_density(model, rows, flat=True)
    return jax.lax.map(lambda z: target(z) - q.log_prob(phi, z), positions, batch_size=ABREAST)


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """log Σ exp over the last axis."""
    with np.errstate(invalid="ignore"):  # weights that are NaN get an infinite k-hat
        return np.asarray(np.logaddexp.reduce(logs, axis=-1))
