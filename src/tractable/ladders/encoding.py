"""Uses of a fitted ladder: encode rows, generate new ones, reconstruct them, and bound their log densities."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.check import Check
from tractable.core.errors import DataError, SettingsError
from tractable.core.model import Data, PyTree, as_data
from tractable.core.settings import Count, at_least, check_seed, expect
from tractable.core.shared import compiled
from tractable.diagnostics import evidence
from tractable.diagnostics.evidence import Evidence, Sandwich
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.weights import Summed
from tractable.engine import preflight
from tractable.engine.sharding import chunks
from tractable.ladders.bounds import bounds, draws_needed, log_weights, moments, moments_of_codes, numbers
from tractable.ladders.checks import held_out_check, sample_size_check
from tractable.ladders.ladder import Ladder, ladder_of

AVERAGED = 100  # number of draws of another layer over which a layer's moments are averaged, if they depend on it
FITTED_ROWS = 1000  # largest number of fitted rows with which held-out rows are compared


class Encoded(NamedTuple):
    """q(h | x) as tuples over the layers h¹ … h^L. For binary or categorical units the means are probabilities."""

    mean: tuple[np.ndarray, ...]  # (row, n) E[h | x]
    sd: tuple[np.ndarray, ...]  # (row, n)
    draws: tuple[np.ndarray, ...] | None  # (draw, row, n); None if not requested
    averaged: tuple[int, ...]  # number of draws of earlier layers over which mean and sd are averaged; 0 if exact


class Generated(NamedTuple):
    """Rows that were drawn from the model, with the h that they were drawn from."""

    x: np.ndarray  # (row, n)
    mean: np.ndarray  # (row, n) E[x | h¹]; for categorical x the probabilities, (row, n · levels)
    h: tuple[np.ndarray, ...]  # (row, n), h¹ … h^L


class Bound(NamedTuple):
    """The K-sample bounds (see ``log_evidence``) of held-out and of fitted rows, in nats per row."""

    learnt: float  # mean bound of fitted rows
    held_out: float  # mean bound of held-out rows
    gap: float  # learnt − held_out
    error: float  # standard error of the gap, over rows
    rows: int  # number of held-out rows


def _key(what: str, seed: int) -> jax.Array:
    return jax.random.key(check_seed(f"{what}(seed)", seed))


def encode(posterior: Learnt, x: Data | PyTree, *, draws: int = 0, seed: int = 0) -> Encoded:
    """Encode rows x (row, n) by q(h | x): moments of every layer and, if ``draws`` > 0, draws of h, (draw, row, n).

    The moments of a layer are exact where q of that layer depends on x alone. Where it depends on another layer's
    draws, the moments are averages over 100 of these draws (``averaged``). With redraw=True the pixels are drawn from x
    once. Row n's draws depend on the seed and on n only.

    Raises:
        SettingsError: the posterior has no inference network, or draws < 0.
        DataError: rows have another width, lie outside the support of x, or have missing numbers (for those use
            ``impute``).
    """
    ladder, params = network_of(posterior, "encode")
    expect("encode(draws=...)", draws, Annotated[int, at_least(0)])
    rows = rows_of(ladder, params, x, "encode").y
    averaged = draws_needed(ladder, params, jnp.asarray(rows[:1]), AVERAGED)
    width = rows_together(ladder, max(draws, *averaged, 1))
    mean, variance, h = over_rows(
        functools.partial(_encode, ladder, max(averaged) or 1, draws, params, _key("encode", seed)), rows, width
    )
    sd = tuple(np.sqrt(np.maximum(v, 0)) for v in variance)
    return Encoded(tuple(mean), sd, draws_first(h) if draws else None, tuple(averaged))


def generate(posterior: Learnt, n: int, *, seed: int = 0) -> Generated:
    """Draw n new rows x from p(h^L) … p(x | h¹), with their means given h¹, and h. Row i does not depend on n."""
    ladder, theta = theta_of(posterior, "generate")
    expect("generate(n=...)", n, Count)
    make = functools.partial(_generate, ladder, theta, _key("generate", seed))
    return Generated(*over_rows(make, np.zeros((n, 0)), rows_together(ladder, 1)))


def reconstruct(posterior: Learnt, x: Data | PyTree, *, draws: int = 1, seed: int = 0) -> np.ndarray:
    """Average E[x | h] over ``draws`` draws of h ~ q(h | x), (row, n).

    For categorical x these are probabilities, (row, n · levels).
    """
    ladder, params = network_of(posterior, "reconstruct")
    expect("reconstruct(draws=...)", draws, Count)
    rows = rows_of(ladder, params, x, "reconstruct").y
    reconstruct_block = functools.partial(_reconstruct, ladder, draws, params, _key("reconstruct", seed))
    return over_rows(reconstruct_block, rows, rows_together(ladder, draws))


def elbo(posterior: Learnt, data: Data | PyTree, *, samples: int = 100, seed: int = 0) -> np.ndarray:
    """Estimate E_q[log p(x, h) − log q(h | x)] of each row by ``samples`` draws, (row,) in nats.

    Its expectation is at most log p(x).
    """
    return log_evidence(posterior, data, samples=samples, seed=seed).elbo


def log_evidence(
    posterior: Learnt, data: Data | PyTree = None, *, samples: int = 1000, simulated: int = 0, seed: int = 0
) -> Evidence:
    """Estimate log p(x) of each row by importance sampling, log (1/K) Σ_k p(x, h_k) / q(h_k | x) with h_k ~ q(h | x).

    The expectation of the estimate is at most log p(x) and rises to log p(x) with K (Burda, Grosse & Salakhutdinov
    2016, theorem 1). θ is the fitted one, so the fitted rows are likelier than new rows. If all h can be summed over,
    ``exact`` is log p(x). Memory does not grow with rows or draws.

    An upper bound needs an exact draw of p(h | x), which is known only for rows that the model generated: adding the h
    that generated x to the K draws reverses the bound (Grosse, Ghahramani & Adams 2015). With ``simulated`` rows the
    result shows how far apart the two bounds are with this q. On data unlike the model's own rows they may be further
    apart. For normal layers, ``tr.log_evidence(model, rows.x, theta=..., z=rows.h)`` gives both bounds for generated
    rows by annealing, without q.

    Args:
        data: rows; by default the fitted ones.
        samples: K ≥ 1.
        simulated: number of rows to generate for the upper bound; 0 for none.

    Raises:
        SettingsError, DataError: as ``encode``.
    """
    start_time = time.perf_counter()
    ladder, params = network_of(posterior, "log_evidence")
    expect("log_evidence(samples=...)", samples, Count)
    expect("log_evidence(simulated=...)", simulated, Annotated[int, at_least(0)])
    rows = posterior.data if data is None else rows_of(ladder, params, data, "log_evidence")
    if rows is None:
        raise DataError("This posterior was loaded without its data: pass the rows, log_evidence(data).")
    of_rows = bounds(ladder, params, rows, _key("log_evidence", seed), int(samples))
    checks, sandwich = [sample_size_check(float(np.median(of_rows.ess)), of_rows.samples)], None
    if simulated:
        sandwich = _sandwich(ladder, params, simulated, int(samples), seed)
        sentence = f"± {sandwich.error:.1g} nats a row between the bounds, on rows that the model generated"
        checks.append(evidence.gap_check(sandwich.gap, sentence, sandwich.rows))
    estimate = evidence.of_rows(Summed(of_rows.log_evidence, of_rows.error, of_rows.ess), of_rows.samples, checks)
    exact, seconds = _exact(ladder, params, rows), time.perf_counter() - start_time
    return estimate._replace(method="importance", seconds=seconds, elbo=of_rows.elbo, exact=exact, simulated=sandwich)


def _sandwich(ladder: Ladder, params: PyTree, count: int, samples: int, seed: int) -> Sandwich:
    """Lower and upper bounds of log p(x) for ``count`` rows that the model generates.

    The upper bound is E log (w* + Σ_k w_k) / (K + 1) ≥ log p(x) for (x, h*) ~ p and h_k ~ q(h | x), where w* is the
    weight of h*; it holds by Jensen's inequality.
    """
    make_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
    make = functools.partial(_generate, ladder, params["theta"], make_key)
    x, _, h = over_rows(make, np.zeros((count, 0)), rows_together(ladder, 1))
    lower = bounds(ladder, params, Data(x), key, samples).log_evidence
    own = over_rows(lambda _, rows: _own_weights(ladder, params, *rows), (x, h), rows_together(ladder, 1))
    upper = np.logaddexp(lower + math.log(samples), own) - math.log(samples + 1)
    gap = upper - lower
    error = float(gap.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return Sandwich(float(lower.mean()), float(upper.mean()), float(gap.mean()), error, count)


def held_out(posterior: Learnt, data: Data | PyTree, *, samples: int = 100, seed: int = 0) -> Bound:
    """Compare the K-sample bounds of held-out rows with those of up to 1000 fitted rows, in nats per row."""
    new, fitted = as_data(data), posterior.data
    if fitted is None:
        raise DataError("held_out(data) compares rows with the fitted rows: load the posterior with its data.")
    if new.fingerprint == fitted.fingerprint:
        raise DataError("held_out(data) needs rows kept out of the fit; got the fitted rows.")
    some = fitted.take(np.unique(np.linspace(0, fitted.size - 1, min(FITTED_ROWS, fitted.size)).astype(int)))
    before, after = (log_evidence(posterior, rows, samples=samples, seed=seed) for rows in (some, new))
    error = float(np.hypot(np.nan_to_num(before.mean_error), np.nan_to_num(after.mean_error)))
    return Bound(before.mean, after.mean, before.mean - after.mean, error, new.size)


def gap_check(posterior: Learnt, data: Data | PyTree) -> Check:
    """The result of ``held_out`` as a check for a report."""
    bound = held_out(posterior, data)
    return held_out_check(bound.gap, bound.error, bound.rows)


def theta_of(posterior: Learnt, what: str) -> tuple[Ladder, PyTree]:
    """The posterior's ladder and its point estimate of θ; a SettingsError if it has another model, or draws of θ."""
    ladder = ladder_of(posterior.model)
    if ladder is None:
        raise SettingsError(f"{what}(...) is for ladders; this posterior is of a {type(posterior.model).__name__}.")
    if posterior.point is None:
        raise SettingsError(
            f"{what}(...) needs a single θ, and {type(posterior.method).__name__} drew many; learn θ by MAP or "
            "by a method with an inference network (AutoEncoding, NVIL, WakeSleep)."
        )
    return ladder, ladder.space.unravel(jnp.asarray(posterior.point))


def network_of(posterior: Learnt, what: str) -> tuple[Ladder, dict[str, PyTree]]:
    """The posterior's ladder and {θ, φ}; a SettingsError if there is no inference network."""
    ladder, theta = theta_of(posterior, what)
    if posterior.phi is None:
        raise SettingsError(
            f"{what}(...) needs an inference network, and {type(posterior.method).__name__} learnt none; "
            "AutoEncoding, ImportanceWeighted, NVIL, VIMCO, WakeSleep and ReweightedWakeSleep learn one."
        )
    return ladder, {"theta": theta, "phi": jax.tree.map(jnp.asarray, posterior.phi)}


def visible(ladder: Ladder, params: PyTree) -> Any:
    """The shape (1, n) and dtype of a row that the ladder generates."""
    return jax.eval_shape(lambda p: ladder.dreamt(jax.random.key(0), p["theta"], 1)[0], params)


def check_width(ladder: Ladder, params: PyTree, x: np.ndarray, what: str) -> None:
    """Raises a DataError unless x has the shape of the ladder's rows."""
    row, shape = visible(ladder, params).shape[1:], np.shape(x)
    if shape[1:] != row or len(shape) != 1 + len(row):
        hint = f"; for a single row pass x[None], of shape {(1, *row)}" if shape == row else ""
        raise DataError(f"{what}(x) expects rows of shape (n, {', '.join(map(str, row))}); got shape {shape}{hint}.")


def rows_of(ladder: Ladder, params: PyTree, x: Data | PyTree, what: str) -> Data:
    """The rows x as Data; a DataError unless they have the ladder's width and lie in the support of x."""
    data = as_data(x)
    check_width(ladder, params, data.y, what)
    preflight.check(ladder, data)
    return data


def _exact(ladder: Ladder, params: PyTree, data: Data) -> np.ndarray | None:
    """log p(x) of each row, by summing over all h; None if h takes too many values."""
    if ladder.causes is None:
        return None
    count = jax.tree.leaves(ladder.causes)[0].shape[0]
    density = functools.partial(_summed_out, ladder, params["theta"])
    return over_rows(density, np.asarray(data.rows[0]), rows_together(ladder, count))


# Rows are processed in blocks of one shape, so that one compiled program serves all blocks.


def rows_together(ladder: Ladder, draws: int) -> int:
    """The number of rows in a block, such that ``draws`` draws of their layers fit in memory."""
    return max(1, numbers() // (draws * sum(layer.seen for layer in ladder.layers)))


def over_rows(function: Callable, rows: PyTree, width: int) -> Any:
    """Apply ``function(index (w,), rows (w, …))`` to all rows, ``width`` rows at a time."""
    count, parts = len(jax.tree.leaves(rows)[0]), []
    for chunk, index, real in chunks(rows, count, min(width, count)):
        part = function(jnp.asarray(index), jax.tree.map(jnp.asarray, chunk))
        parts.append(jax.tree.map(lambda a, n=real: np.asarray(a)[:n], part))
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def draws_first(draws: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Transpose each array from (row, draw, n) to (draw, row, n)."""
    return tuple(np.swapaxes(a, 0, 1) for a in draws)


def each_row(function: Callable, key: jax.Array, index: jax.Array, *rows: Any) -> Any:
    """Apply ``function(key, row)`` to each row, with a key of its own made from ``key`` and the row's index."""
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(index)
    return jax.vmap(function)(keys, *rows)


@compiled("ladder", "averaged", "draws")
def _encode(
    ladder: Ladder, averaged: int, draws: int, params: PyTree, key: jax.Array, index: jax.Array, rows: jax.Array
) -> tuple:
    def one(key: jax.Array, x: jax.Array) -> tuple:
        look_key, draw_key, moment_key = jax.random.split(key, 3)
        x = ladder.look(look_key, x[None])
        codes = moments_of_codes(ladder, params, x, moment_key, averaged)
        h = jax.tree.map(lambda a: a[:, 0], ladder.drawn(draw_key, params, x, draws)[0]) if draws else ()
        return [mean[0] for mean, _, _ in codes], [variance[0] for _, variance, _ in codes], h

    return each_row(one, key, index, rows)


@compiled("ladder")
def _own_weights(ladder: Ladder, params: PyTree, x: jax.Array, h: tuple) -> jax.Array:
    """log w of the h that generated each row, (row,)."""
    h = jax.tree.map(lambda a: a[None], h)
    _, q = ladder.infer(params, jax.tree.map(lambda a: a[None], x), lambda i, _: h[i])
    return log_weights(ladder, params, x, h, q)[0][0]


@compiled("ladder")
def _generate(ladder: Ladder, theta: PyTree, key: jax.Array, index: jax.Array, rows: jax.Array) -> tuple:
    def one(key: jax.Array) -> tuple:
        x, h = ladder.dreamt(key, theta, 1)
        mean = moments(ladder.generative(theta, h)[0])[0]
        return jax.tree.map(lambda a: a[0], (x, mean, h))

    return each_row(one, key, index)


@compiled("ladder", "draws")
def _reconstruct(
    ladder: Ladder, draws: int, params: PyTree, key: jax.Array, index: jax.Array, rows: jax.Array
) -> jax.Array:
    def one(key: jax.Array, x: jax.Array) -> jax.Array:
        look_key, draw_key = jax.random.split(key)
        h, _ = ladder.drawn(draw_key, params, ladder.look(look_key, x[None]), draws)
        return jnp.mean(moments(ladder.generative(params["theta"], h)[0])[0], axis=0)[0]

    return each_row(one, key, index, rows)


@compiled("ladder")
def _summed_out(ladder: Ladder, theta: PyTree, index: jax.Array, rows: jax.Array) -> jax.Array:
    return ladder.log_likelihoods(theta, (rows, None))
