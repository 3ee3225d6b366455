"""What each row says of each draw: log likelihoods, rows left out, data replicated. In blocks: memory holds the answer.

Leave-one-out is Pareto-smoothed importance sampling by ArviZ (Vehtari, Gelman and Gabry 2017; Vehtari et al. 2024).
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs.belief import Fitted
from tractable.checks.importance import khat_limit
from tractable.core import Data, Model, log_density, needed_likelihood
from tractable.methods.variational import NODES
from tractable.models.causes import sample_of
from tractable.models.censoring import itself
from tractable.results.predict import chunks, fitting, log_predictive
from tractable.tools.errors import DataError, ModelError, RunError
from tractable.tools.settings import seeded
from tractable.tools.shared import ROUGHLY, compiled
from tractable.tools.words import counted

PyTree = Any
ALIKE = 500  # rows to which fewer are filled up: one program for all of them
BLOCK = 128  # draws of a call: one program serves any number of them
LIMIT = 1 << 31  # bytes of an answer
ABREAST = 16  # of them side by side
WORK = 2e9  # rows × draws × parameters of a look beside a run
FEWEST = 100  # draws that tell how a row's weights are spread


class Left(NamedTuple):
    """Each of r rows left out of a posterior of s draws."""

    log_likelihoods: np.ndarray  # (s, r) log p(y_n | θ_s) of the row counted once
    log_weights: np.ndarray  # (s, r) smoothed, of p(θ_s | all rows but n); exp of them sums to 1
    khat: np.ndarray  # (r,)


@dataclass(frozen=True, eq=False)
class Loo:
    """Expected log predictive density of a new row, each row predicted from all others.

        elpd = Σ_n w_n log p(y_n | y without n)          p = Σ_n w_n log p(y_n | y) − elpd

    A row that counts w_n times is left out once and its density counts w_n times, as if it were there so often.

    Attributes:
        elpd: nats, all rows together; NaN where a k-hat is above the limit: the sum is then not known.
        se: its standard error: over rows, and from looking at some of them where that was so.
        p: effective number of parameters; NaN likewise.
        khat: the largest; -inf where no row moves the posterior.
        limit: min(1 − 1/log₁₀ S, 0.7), up to which S draws can be relied on.
        index: (m,) the rows that were looked at.
        pointwise: (m,) log p(y_n | y without n) of each of them, also where it cannot be relied on.
        khats: (m,) of each of them.
        size: N, all rows that count.
        labels: (N,) of groups, where a datum is a group and is left out with all of its rows.
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
        looked = "" if len(self.index) == self.size else f", from {len(self.index):,} of them"
        if not len(self.failed):
            return (
                f"elpd_loo {self.elpd:.1f} ± {self.se:.1f} nats of {counted(self.size, unit)}{looked}{whole}; "
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


def log_likelihoods(model: Model, params: PyTree, data: Data) -> np.ndarray:
    """w_n log p(y_n | x_n, θ_s) of draws (s, ...), (s, n) in nats; 0 where a row does not count.

    Raises:
        ModelError: no likelihood, or one whose z is not summed out.
        DataError: it would take more than ``LIMIT`` bytes.
    """
    needed_likelihood(model)
    fits("log_likelihood", length(params), data.size, 1, jnp.result_type(float).itemsize)
    terms = np.concatenate([part for _, part in _likelihoods(model, params, data)], 1)
    return terms if data.weights is None else np.where(data.weights > 0, data.weights * terms, 0.0)


def totals(model: Model, params: PyTree, data: Data) -> np.ndarray:
    """Σ_n w_n log p(y_n | x_n, θ_s) of draws (s, ...), (s,) float64, of rows that need not fit in memory."""
    needed_likelihood(model)
    total = np.zeros(length(params))
    for where, part in _likelihoods(model, params, data):
        weights = np.ones(part.shape[1]) if data.weights is None else data.weights[where]
        total += np.where(weights > 0, weights * part.astype(np.float64), 0.0).sum(1)
    return total


def replicated(model: Model, params: PyTree, given: PyTree, count: int, seed: int) -> PyTree:
    """y*_n ~ p(y | x_n, θ_s), a datum a row and draw: (s, n, ...) for each part of it, from seed, s and n alone."""
    needed_likelihood(model)
    theta, x = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape[1:], jax.dtypes.canonicalize_dtype(a.dtype)), (params, given)
    )
    try:
        example = jax.eval_shape(lambda t, x, k: sample_of(itself(model.datum(t, x)), k), theta, x, jax.random.key(0))
    except NotImplementedError as error:
        raise ModelError("This likelihood has no sample(), so it replicates no data.") from error
    parts = jax.tree.leaves(example)
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
        ModelError: a prior that is only a log density, or is none.
    """
    if not model.drawable:
        raise ModelError(
            "This model's prior cannot be drawn from: it is a log density, or improper. Give proper numpyro "
            "distributions, or look at posterior.posterior_predictive()."
        )
    return jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(seeded("prior_predictive(seed)", seed)), count))


def derived(model: Model, params: PyTree, most: int | None = None) -> dict[str, np.ndarray]:
    """What the model derives from draws (s, ...) of its parameters, (s, ...) each; arrays of at most ``most`` numbers.

    Raises:
        DataError: it would take more than ``LIMIT`` bytes.
    """
    if model.derived is None:
        return {}
    theta = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], jax.dtypes.canonicalize_dtype(a.dtype)), params)
    shapes = {name: a for name, a in jax.eval_shape(model.derived, theta).items() if most is None or a.size <= most}
    fits("derived()", length(params), 1, sum(a.size for a in shapes.values()), jnp.result_type(float).itemsize)
    told = _derived(model, tuple(shapes), params)
    return {name: np.asarray(told[name]) for name in shapes}


def corrected(model: Model, data: Data, fitted: Fitted) -> np.ndarray:
    """log p(y, z) − log q(z) of a q's own draws, (s,): they weigh so in p(θ | y) (Magnusson et al. 2019)."""
    positions = np.concatenate([] if fitted.positions is None else fitted.positions)
    return np.asarray(_corrections(model, fitted.q, fitted.phi, positions, data.arrays()), np.float64)


def left_out(model: Model, params: PyTree, log_weights: np.ndarray, data: Data, efficiency: float) -> Iterator[Left]:
    """Every row left out in turn, rows by chunks.

    A row of weight w > 1 is left out once, one of w < 1 as much as it counts.

    Args:
        log_weights: (s,) of the draws, up to a constant; equal for draws of p(θ | y).
        efficiency: effective draws a draw, at most 1.
    """
    if length(params) < FEWEST:
        raise RunError(f"Rows are left out by reweighing draws, {FEWEST} at least; got {length(params)}.")
    from arviz_stats.base.array import array_stats  # a second of imports

    smooth: Any = array_stats.psislw  # its types say less than it takes
    for where, part in _likelihoods(model, params, data):
        terms = part.T.astype(np.float64)  # (r, s)
        once = 1.0 if data.weights is None else np.minimum(data.weights[where], 1.0)[:, None]
        ratios = log_weights - once * np.where(np.isfinite(terms), terms, 0.0)
        ratios -= ratios.max(1, keepdims=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it speaks of few draws, as the infinite k-hat does
            smoothed, khat = smooth(-ratios, r_eff=efficiency, axis=-1)  # it takes minus the log weights
        level = np.ptp(ratios, 1) <= 1e-6 * np.maximum(1.0, np.abs(terms).max(1))
        khat = np.where(np.isfinite(terms).all(1), np.where(level, -np.inf, khat), np.inf)
        yield Left(terms.T, np.where(level[:, None], ratios - _log_sum(ratios)[:, None], smoothed).T, khat)


def joined(parts: Sequence[Left]) -> Left:
    """Chunks of rows, as one."""
    return Left(*(np.concatenate(each, -1) for each in zip(*parts, strict=True)))


def loo(
    model: Model, params: PyTree, log_weights: np.ndarray, data: Data, efficiency: float = 1.0, rows: int | None = None
) -> Loo:
    """Leave-one-out of s draws, from at most ``rows`` of the rows that count; arguments as of ``left_out``.

    Of N rows m are drawn alike, and elpd = Σ_N w l + N/m Σ_m w (log p(y_n | y without n) − l), l = log p(y_n | y):
    the difference estimator of Magnusson et al. 2020, which is exact where m = N.

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
    pointwise, together, khats = (np.concatenate(each) for each in zip(*parts, strict=True))
    weights, size = count[index], len(counting)
    losses, scale = weights * (together - pointwise), size / len(index)
    every, spread = together, pointwise
    if len(index) < size:  # rows vary as they do where none is left out
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
    """Pr(y* < y_n | y without n) of single numbers, (n,); ties are broken at random, so that counts are uniform too.

    So is the place of a row between its bounds, y (n, 2), where these are all that is known of it.

    Args:
        drawn: (s, n) data replicated from the draws.
    """
    shares = np.exp(left.log_weights)
    low, high = (y, y) if y.ndim == 1 else y.T
    below = np.sum(shares * (drawn < low), 0)
    within = np.random.default_rng(seed).random(len(y)) * np.sum(shares * ((drawn >= low) & (drawn <= high)), 0)
    return np.clip(below + within, 0.0, 1.0)


def single(y: PyTree) -> np.ndarray:
    """The numbers of rows that are one number each, (n,), or (n, 2) bounds of it; else a sentence."""
    parts = jax.tree.leaves(y)
    if len(parts) > 1:
        raise DataError("pit() is of rows of one number each; these hold several.")
    return np.asarray(parts[0])


def placed(left: Left, drawn: PyTree, y: np.ndarray, seed: int) -> np.ndarray:
    """The same, NaN of rows that cannot be left out by reweighing."""
    if np.ndim(drawn) != 2:
        raise DataError("pit() is of rows of one number each; these hold several.")
    return np.where(left.khat <= khat_limit(len(drawn)), transforms(left, drawn, y, seed), np.nan)


# What fits: draws by blocks, rows by chunks.


def affordable(model: Model, data: Data | None) -> int:
    """Draws, at most 1000, at which all rows can be looked at unasked: on a page, in a comparison."""
    if data is None or not data.resident or model.likelihood is None:
        return 0
    looks = data.size if data.labels is None else NODES * data.given.counts.size
    return int(min(1000, WORK / (max(looks, 1) * max(model.space.size, 10))))


def length(params: PyTree) -> int:
    """s of draws (s, ...)."""
    return len(jax.tree.leaves(params)[0])


def fits(what: str, draws: int, rows: int, numbers: int, itemsize: int) -> None:
    """A sentence where an answer of so many numbers a row and draw would not fit."""
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


def _likelihoods(model: Model, params: PyTree, data: Data) -> Iterator[tuple[slice, np.ndarray]]:
    def of(thetas: PyTree, _: np.ndarray, chunk: PyTree, __: np.ndarray) -> jax.Array:
        return _row_likelihoods(model, thetas, chunk)

    return _by_chunks(of, lambda theta, chunk, _: model.log_likelihoods(theta, chunk), params, data.rows, data.size)


def _by_chunks(of: Callable, one: Callable, params: PyTree, rows: PyTree, count: int) -> Iterator[tuple[slice, PyTree]]:
    """(which rows, ``of(thetas, numbers, chunk, index)`` at them, (s, r, ...)); ``one`` is that of one draw."""
    draws = length(params)
    width = fitting(one, params, rows, max(count, ALIKE), abreast=ABREAST, kept=draws)
    if width < ALIKE:
        width = fitting(one, params, rows, count, abreast=ABREAST, kept=draws)
    for chunk, index, real in chunks(rows, count, width):
        parts = []
        for first in range(0, draws, BLOCK):
            numbers = np.minimum(np.arange(first, first + BLOCK), draws - 1)  # the last block is filled
            thetas = jax.tree.map(lambda a, at=numbers: np.asarray(a)[at], params)
            told = of(thetas, numbers.astype(np.int32), chunk, index)
            parts.append(jax.tree.map(np.asarray, told))
        start = int(index[0])
        whole = jax.tree.map(lambda *a, real=real: np.concatenate(a)[:draws, :real], *parts)
        yield slice(start, start + real), whole


def _row_samples(model: Model, stream: jax.Array, theta: PyTree, chunk: PyTree, index: jax.Array) -> PyTree:
    def row(x: PyTree, number: jax.Array) -> PyTree:
        return sample_of(itself(model.datum(theta, x)), jax.random.fold_in(stream, number))

    return jax.vmap(row)(chunk, index)


@compiled("model", if_few=ROUGHLY)
def _replicates(model, key, thetas, numbers, chunk, index) -> PyTree:
    def draw(at: tuple[PyTree, jax.Array]) -> PyTree:
        return _row_samples(model, jax.random.fold_in(key, at[1]), at[0], chunk, index)

    return jax.lax.map(draw, (thetas, numbers), batch_size=ABREAST)


@compiled("model", "names", if_few=ROUGHLY)
def _derived(model: Model, names: tuple[str, ...], params: PyTree) -> dict[str, jax.Array]:
    def one(theta: PyTree) -> dict[str, jax.Array]:
        found = {} if model.derived is None else model.derived(theta)
        return {name: jnp.asarray(found[name]) for name in names}

    return jax.lax.map(one, params, batch_size=ABREAST)


@compiled("model", if_few=ROUGHLY)
def _row_likelihoods(model: Model, thetas: PyTree, chunk: PyTree) -> jax.Array:
    return jax.lax.map(lambda theta: model.log_likelihoods(theta, chunk), thetas, batch_size=ABREAST)


@compiled("model", "q", if_few=ROUGHLY)
def _corrections(model, q, phi, positions, rows) -> jax.Array:
    target = log_density(model, rows, flat=True)
    return jax.lax.map(lambda z: target(z) - q.log_prob(phi, z), positions, batch_size=ABREAST)


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """log Σ exp over the last axis."""
    with np.errstate(invalid="ignore"):  # of weights that are none, as an infinite k-hat says
        return np.asarray(np.logaddexp.reduce(logs, axis=-1))
