"""Rows × draws: log likelihoods, leave-one-out, replicated data. In blocks, so memory need only hold the answer.

Leave-one-out is Pareto-smoothed importance sampling (Vehtari, Gelman and Gabry 2017; Vehtari et al. 2024).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from tractable.core.censoring import itself
from tractable.core.errors import DataError, ModelError, RunError
from tractable.core.model import Data, Model, PyTree, log_density, needed_likelihood, sample_of
from tractable.core.settings import seeded
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.tree import row_shapes
from tractable.core.words import counted
from tractable.diagnostics import pareto
from tractable.diagnostics.belief import Fitted
from tractable.diagnostics.importance import NODES, khat_limit
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.sharding import BY_ROW, ON_ALL, ROWS, chunks
from tractable.posterior.predict import fitting, log_predictive

PADDED = 500  # fewer rows are padded to the next power of two, so that few programs serve them
BLOCK = 128  # draws per call: one program serves any number of them
LIMIT = 1 << 31  # bytes of an answer, at most
ABREAST = 16  # draws of a block computed in parallel
WORK = 2e9  # rows × draws × parameters to spend without being asked
FEWEST = 100  # draws needed for leave-one-out


class Left(NamedTuple):
    """Leave-one-out results for r rows and s draws."""

    log_likelihoods: np.ndarray  # (s, r) log p(y_n | θ_s), the row counted once
    log_weights: np.ndarray  # (s, r) smoothed, for p(θ | all rows but n); their exp sums to 1 over s
    khat: np.ndarray  # (r,)


@dataclass(frozen=True, eq=False)
class Loo:
    """Leave-one-out expected log predictive density: each row is predicted from all others.

        elpd = Σ_n w_n log p(y_n | y without n)          p = Σ_n w_n log p(y_n | y) − elpd

    A row that counts w_n times is left out once and its density counts w_n times, like w_n separate rows.

    Attributes:
        elpd: nats, summed over all rows; NaN (unknown) if a k-hat is above the limit.
        se: its standard error: over rows, and from subsampling them if only some were evaluated.
        p: effective number of parameters; NaN likewise.
        khat: the largest k-hat; -inf if no row changes the posterior.
        limit: min(1 − 1/log₁₀ S, 0.7), the largest reliable k-hat with S draws.
        index: (m,) the rows evaluated.
        pointwise: (m,) log p(y_n | y without n) of each of them, reliable or not.
        khats: (m,) k-hat of each of them.
        size: N, the number of rows that count.
        labels: (N,) group labels, where a datum is a group, left out with all of its rows.
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

    @property
    def failed(self) -> np.ndarray:
        """Rows whose k-hat is above the limit."""
        return self.index[~(self.khats <= self.limit)]

    @property
    def unit(self) -> str:
        """What is left out: a "row" or a "group"."""
        return "row" if self.labels is None else "group"

    def __str__(self) -> str:
        unit, whole = self.unit, "" if self.labels is None else ", each left out with all of its rows"
        sample_note = "" if len(self.index) == self.size else f", from {len(self.index):,} of them"
        if not len(self.failed):
            return (
                f"elpd_loo {self.elpd:.1f} ± {self.se:.1f} nats of {counted(self.size, unit)}{sample_note}{whole}; "
                f"p_loo {self.p:.1f}; k-hat at most {self.khat:.2f}, good up to {self.limit:.2f}"
            )
        failed = self.failed if self.labels is None else self.labels[self.failed]
        which = ", ".join(map(str, failed[:6])) + " …" * (len(failed) > 6)
        return (
            f"elpd_loo is not known: {counted(len(failed), unit)} of {len(self.index):,} ({unit} {which}) weigh too "
            f"much in the posterior to be left out by reweighing its draws; k-hat up to {self.khat:.2f}, good up to "
            f"{self.limit:.2f}. Fit again without them and ask posterior.log_predictive(those {unit}s), or hold "
            f"{unit}s out."
        )


def log_likelihoods(model: Model, params: PyTree, data: Data, placement: OneDevice = ONE_DEVICE) -> np.ndarray:
    """w_n log p(y_n | x_n, θ_s) of draws (s, ...), (s, n) in nats; 0 for rows of weight 0.

    Raises:
        ModelError: there is no likelihood, or its z is not summed out.
        DataError: the answer would take more than ``LIMIT`` bytes.
    """
    needed_likelihood(model)
    fits("log_likelihood", length(params), data.size, 1, jnp.result_type(float).itemsize)
    terms = np.concatenate([part for _, part in _likelihoods(model, params, data, placement)], 1)
    return terms if data.weights is None else np.where(data.weights > 0, data.weights * terms, 0.0)


def totals(model: Model, params: PyTree, data: Data) -> np.ndarray:
    """Σ_n w_n log p(y_n | x_n, θ_s) of draws (s, ...), (s,) float64; rows × draws need not fit in memory."""
    needed_likelihood(model)
    total = np.zeros(length(params))
    for where, part in _likelihoods(model, params, data):
        weights = np.ones(part.shape[1]) if data.weights is None else data.weights[where]
        total += np.where(weights > 0, weights * part.astype(np.float64), 0.0).sum(1)
    return total


def replicated(model: Model, params: PyTree, given: PyTree, count: int, seed: int) -> PyTree:
    """y*_n ~ p(y | x_n, θ_s), one datum per row and draw, (s, n, ...) each part; depends on seed, s and n alone."""
    needed_likelihood(model)
    theta, x = row_shapes((params, given))
    try:
        example = jax.eval_shape(lambda t, x, k: sample_of(itself(model.datum(t, x)), k), theta, x, jax.random.key(0))
    except NotImplementedError as error:
        raise ModelError("This likelihood has no sample(), so it replicates no data.") from error
    parts = jax.tree.leaves(example)
    if not all(part.size for part in parts):
        raise ModelError("A part of this likelihood is a factor, which has no data to replicate.")
    fits("A predictive", length(params), count, sum(p.size for p in parts), max(p.dtype.itemsize for p in parts))
    key = jax.random.key(seeded("posterior_predictive(seed)", seed))

    def of(thetas: PyTree, numbers: np.ndarray, chunk: PyTree, index: np.ndarray) -> PyTree:
        return _replicates(model, key, thetas, numbers, chunk, index)

    def one(theta: PyTree, chunk: PyTree, index: jax.Array) -> PyTree:
        return _row_samples(model, jax.random.key(0), theta, chunk, index)

    parts = [part for _, part in _by_chunks(of, one, params, given, count)]
    return jax.tree.map(lambda *a: np.concatenate(a, 1), *parts)


def prior_draws(model: Model, count: int, seed: int) -> PyTree:
    """``count`` draws of the parameters from their priors, (count, ...).

    Raises:
        ModelError: the prior is only a log density, or improper.
    """
    if not model.drawable:
        raise ModelError(
            "This model's prior cannot be drawn from: it is a log density, or improper. Give proper numpyro "
            "distributions, or look at posterior.posterior_predictive()."
        )
    return jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(seeded("prior_predictive(seed)", seed)), count))


def derived(model: Model, params: PyTree, most: int | None = None) -> dict[str, np.ndarray]:
    """The model's derived quantities for draws (s, ...), (s, ...) each; those of at most ``most`` numbers per draw.

    Raises:
        DataError: the answer would take more than ``LIMIT`` bytes.
    """
    if model.derived is None:
        return {}
    derived = jax.eval_shape(model.derived, row_shapes(params))
    shapes = {name: a for name, a in derived.items() if most is None or a.size <= most}
    fits("derived()", length(params), 1, sum(a.size for a in shapes.values()), jnp.result_type(float).itemsize)
    derived_block = _derived(model, tuple(shapes), params)
    return {name: np.asarray(derived_block[name]) for name in shapes}


def corrected(model: Model, data: Data, fitted: Fitted) -> np.ndarray:
    """log p(y, z) − log q(z) of q's own draws, (s,): their log importance weights (Magnusson et al. 2019)."""
    positions = np.concatenate([] if fitted.positions is None else fitted.positions)
    return np.asarray(_corrections(model, fitted.q, fitted.phi, positions, data.arrays()), np.float64)


def left_out(model: Model, params: PyTree, log_weights: np.ndarray, data: Data, efficiency: float) -> Iterator[Left]:
    """Leaves each row out in turn, by chunks of rows.

    A row of weight w > 1 is left out once, a row of weight w < 1 with its whole weight.

    Args:
        log_weights: (s,) the draws', up to a constant; equal for draws of p(θ | y).
        efficiency: effective sample size per draw, at most 1.
    """
    if length(params) < FEWEST:
        raise RunError(f"Rows are left out by reweighing draws, {FEWEST} at least; got {length(params)}.")
    for where, part in _likelihoods(model, params, data):
        terms = part.T.astype(np.float64)  # (r, s)
        once = 1.0 if data.weights is None else np.minimum(data.weights[where], 1.0)[:, None]
        ratios = log_weights - once * np.where(np.isfinite(terms), terms, 0.0)
        ratios -= ratios.max(1, keepdims=True)
        level = np.ptp(ratios, 1) <= 1e-6 * np.maximum(1.0, np.abs(terms).max(1))  # masked rows: nothing to smooth
        smoothed, khat = ratios - _log_sum(ratios)[:, None], np.full(len(ratios), -np.inf)
        if not level.all():
            smoothed[~level], khat[~level] = pareto.smooth(ratios[~level], efficiency)
        khat = np.where(np.isfinite(terms).all(1), khat, np.inf)
        yield Left(terms.T, smoothed.T, khat)


def concatenate_chunks(parts: Sequence[Left]) -> Left:
    """Concatenates chunks of rows."""
    return Left(*(np.concatenate(each, -1) for each in zip(*parts, strict=True)))


def loo(
    model: Model, params: PyTree, log_weights: np.ndarray, data: Data, efficiency: float = 1.0, rows: int | None = None
) -> Loo:
    """Leave-one-out from s draws, by at most ``rows`` of the rows that count; other arguments as for ``left_out``.

    Of N rows, m are drawn with equal probability, and elpd = Σ_N w l + N/m Σ_m w (log p(y_n | y without n) − l) with
    l = log p(y_n | y): the difference estimator of Magnusson et al. 2020, exact if m = N.

    Raises:
        RunError: fewer than ``FEWEST`` draws.
    """
    needed_likelihood(model)
    count = np.ones(data.size) if data.weights is None else data.weights
    counting = np.flatnonzero(count > 0)
    index = counting
    if rows is not None and rows < len(counting):
        index = np.sort(np.random.default_rng(0).choice(counting, rows, replace=False))
    shares = log_weights - _log_sum(log_weights)
    parts = [
        (_log_sum((a.log_weights + a.log_likelihoods).T), _log_sum((shares[:, None] + a.log_likelihoods).T), a.khat)
        for a in left_out(model, params, log_weights, data if len(index) == data.size else data.take(index), efficiency)
    ]
    pointwise, joint, khats = (np.concatenate(each) for each in zip(*parts, strict=True))
    weights, size = count[index], len(counting)
    losses, scale = weights * (joint - pointwise), size / len(index)
    every, spread = joint, pointwise
    if len(index) < size:  # the se over rows is estimated from l, which is known for all rows
        weights = count[counting]
        every = spread = log_predictive(model, params, np.exp(shares), data.take(counting)).astype(np.float64)
    everything, p = weights @ every, scale * losses.sum()
    variance = weights @ np.square(spread - np.average(spread, weights=weights))
    variance += size**2 * (1 - 1 / scale) * losses.var() / len(index)
    limit, worst = khat_limit(length(params)), float(khats.max())
    known = 1.0 if worst <= limit else math.nan
    elpd, se, p = (known * float(each) for each in (everything - p, math.sqrt(variance), p))
    return Loo(elpd, se, p, worst, limit, index, pointwise, khats, size, data.labels)


def transforms(left: Left, drawn: np.ndarray, y: np.ndarray, seed: int = 0) -> np.ndarray:
    """Pr(y* < y_n | y without n) of single numbers, (n,); ties are broken at random, so counts are uniform too.

    For censored rows, y (n, 2), the place between the bounds is random likewise.

    Args:
        drawn: (s, n) data replicated from the draws.
    """
    shares = np.exp(left.log_weights)
    low, high = (y, y) if y.ndim == 1 else y.T
    below = np.sum(shares * (drawn < low), 0)
    within = np.random.default_rng(seed).random(len(y)) * np.sum(shares * ((drawn >= low) & (drawn <= high)), 0)
    return np.clip(below + within, 0.0, 1.0)


def single(y: PyTree) -> np.ndarray:
    """y of rows of one number each, (n,), or its bounds (n, 2); a DataError for other rows."""
    parts = jax.tree.leaves(y)
    if len(parts) > 1:
        raise DataError("pit() is of rows of one number each; these hold several.")
    return np.asarray(parts[0])


def placed(left: Left, drawn: PyTree, y: np.ndarray, seed: int) -> np.ndarray:
    """``transforms``, with NaN for rows that cannot be left out by reweighing."""
    if np.ndim(drawn) != 2:
        raise DataError("pit() is of rows of one number each; these hold several.")
    return np.where(left.khat <= khat_limit(len(drawn)), transforms(left, drawn, y, seed), np.nan)


# Memory: draws by blocks, rows by chunks.


def affordable(model: Model, data: Data | None) -> int:
    """Draws, at most 1000, for which all rows can be evaluated without being asked, on a page or in a comparison."""
    if data is None or not data.resident or model.likelihood is None:
        return 0
    evaluations = data.size if data.labels is None else NODES * data.given.counts.size
    return int(min(1000, WORK / (max(evaluations, 1) * max(model.space.size, 10))))


def length(params: PyTree) -> int:
    """The number s of draws (s, ...)."""
    return len(jax.tree.leaves(params)[0])


def fits(what: str, draws: int, rows: int, numbers: int, itemsize: int) -> None:
    """A DataError if an answer of ``numbers`` per row and draw would exceed ``LIMIT``."""
    size = draws * rows * numbers * itemsize
    if size > LIMIT:
        fewer = LIMIT // (rows * numbers * itemsize)
        raise DataError(
            f"{what} of {counted(rows, 'row')} and {counted(draws, 'draw')} takes {size / 2**30:.1f} GiB, more than "
            f"{LIMIT / 2**30:g} GiB: ask for "
            + (
                f"at most {fewer:,} draws in all (draws=), or for fewer rows."
                if fewer
                else "fewer rows: data.take(...)."
            )
        )


def _likelihoods(
    model: Model, params: PyTree, data: Data, placement: OneDevice = ONE_DEVICE
) -> Iterator[tuple[slice, np.ndarray]]:
    def of(thetas: PyTree, _: np.ndarray, chunk: PyTree, __: np.ndarray) -> jax.Array:
        return _row_likelihoods(model, placement, thetas, chunk)

    def one(theta: PyTree, chunk: PyTree, _: np.ndarray) -> jax.Array:
        return model.log_likelihoods(theta, chunk)

    return _by_chunks(of, one, params, data.rows, data.size, placement)


def _by_chunks(
    of: Callable, one: Callable, params: PyTree, rows: PyTree, count: int, placement: OneDevice = ONE_DEVICE
) -> Iterator[tuple[slice, PyTree]]:
    """(slice of rows, ``of(thetas, numbers, chunk, index)`` there, (s, r, ...)); ``one``: ``of`` for a single draw."""
    draws = length(params)
    padded = max(count, min(PADDED, 1 << (count - 1).bit_length()))
    width = fitting(one, params, rows, padded, abreast=ABREAST, answers=draws, placement=placement)
    if width < PADDED and width < padded and not placement.divides_rows:
        width = fitting(one, params, rows, count, abreast=ABREAST, answers=draws)
    start = 0
    for chunk, index, real in chunks(rows, count, width, placement):
        parts = []
        for first in range(0, draws, BLOCK):
            numbers = np.minimum(np.arange(first, first + BLOCK), draws - 1)  # the last block is padded
            thetas = jax.tree.map(lambda a, at=numbers: np.asarray(a)[at], params)
            thetas, numbers = placement.spread((thetas, numbers.astype(np.int32)))
            parts.append(jax.tree.map(np.asarray, of(thetas, numbers, chunk, index)))
        whole = jax.tree.map(lambda *a, real=real: np.concatenate(a)[:draws, :real], *parts)
        yield slice(start, start + real), whole
        start += real


def _row_samples(model: Model, stream: jax.Array, theta: PyTree, chunk: PyTree, index: jax.Array) -> PyTree:
    def row(x: PyTree, number: jax.Array) -> PyTree:
        return sample_of(itself(model.datum(theta, x)), jax.random.fold_in(stream, number))

    return jax.vmap(row)(chunk, index)


@compiled("model", if_few=COMPILE_FASTEST)
def _replicates(model, key, thetas, numbers, chunk, index) -> PyTree:
    def draw(at: tuple[PyTree, jax.Array]) -> PyTree:
        return _row_samples(model, jax.random.fold_in(key, at[1]), at[0], chunk, index)

    return jax.lax.map(draw, (thetas, numbers), batch_size=ABREAST)


@compiled("model", "names", if_few=COMPILE_FASTEST)
def _derived(model: Model, names: tuple[str, ...], params: PyTree) -> dict[str, jax.Array]:
    def one(theta: PyTree) -> dict[str, jax.Array]:
        found = {} if model.derived is None else model.derived(theta)
        return {name: jnp.asarray(found[name]) for name in names}

    return jax.lax.map(one, params, batch_size=ABREAST)


@compiled("model", "placement", if_few=COMPILE_FASTEST)
def _row_likelihoods(model: Model, placement: OneDevice, thetas: PyTree, chunk: PyTree) -> jax.Array:
    def of_device(thetas: PyTree, chunk: PyTree) -> jax.Array:
        return jax.lax.map(lambda theta: model.log_likelihoods(theta, chunk), thetas, batch_size=ABREAST)

    return placement.map_devices(of_device, (ON_ALL, BY_ROW), PartitionSpec(None, ROWS))(thetas, chunk)


@compiled("model", "q", if_few=COMPILE_FASTEST)
def _corrections(model, q, phi, positions, rows) -> jax.Array:
    target = log_density(model, rows, flat=True)
    return jax.lax.map(lambda z: target(z) - q.log_prob(phi, z), positions, batch_size=ABREAST)


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """log Σ exp over the last axis."""
    with np.errstate(invalid="ignore"):  # invalid weights, whose k-hat is infinite
        return np.asarray(np.logaddexp.reduce(logs, axis=-1))
