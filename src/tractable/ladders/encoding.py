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
from tractable.core.settings import Count, at_least, expect, seeded
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

AVERAGED = 100  # draws for the moments of a layer that depends on a drawn layer
HELD_AGAINST = 1000  # fitted rows to compare held-out rows with


class Encoded(NamedTuple):
    """q(h | x): tuples over the layers h¹ … h^L; the mean of binary or categorical units is their probabilities."""

    mean: tuple[np.ndarray, ...]  # (row, n) E[h | x]
    sd: tuple[np.ndarray, ...]  # (row, n)
    draws: tuple[np.ndarray, ...] | None  # (draw, row, n); None if not requested
    averaged: tuple[int, ...]  # draws of earlier layers behind mean and sd; 0 if exact


class Generated(NamedTuple):
    """Rows from the model."""

    x: np.ndarray  # (row, n)
    mean: np.ndarray  # (row, n) E[x | h¹]; for categorical x the probabilities, (row, n · levels)
    h: tuple[np.ndarray, ...]  # (row, n), h¹ … h^L


class Bound(NamedTuple):
    """Bounds of held-out and of fitted rows, nats per row."""

    learnt: float  # K-sample bound of fitted rows
    held_out: float
    gap: float  # learnt − held_out
    error: float  # standard error of the gap, over rows
    rows: int  # number of held-out rows


def _key(what: str, seed: int) -> jax.Array:
    return jax.random.key(seeded(f"{what}(seed)", seed))


def encode(posterior: Learnt, x: Data | PyTree, *, draws: int = 0, seed: int = 0) -> Encoded:
    """q(h | x) of rows x (row, n): moments of every layer and, if ``draws`` > 0, draws of h, (draw, row, n).

    A layer that depends on x alone has exact moments; one that depends on a drawn layer averages over 100 draws of it
    (``averaged``). With redraw=True the pixels are drawn from x once. Row n's draws depend on the seed and n only.

    Raises:
        SettingsError: the posterior has no inference network, or draws < 0.
        DataError: rows have another width, lie outside the support of x, or have gaps (for those use ``impute``).
    """
    ladder, params = network_of(posterior, "encode")
    expect("encode(draws=...)", draws, Annotated[int, at_least(0)])
    rows = rows_of(ladder, params, x, "encode").y
    averaged = draws_needed(ladder, params, jnp.asarray(rows[:1]), AVERAGED)
    width = rows_together(ladder, max(draws, *averaged, 1))
    mean, variance, drawn = over_rows(
        functools.partial(_encoded, ladder, max(averaged) or 1, draws, params, _key("encode", seed)), rows, width
    )
    return Encoded(
        tuple(mean), tuple(np.sqrt(np.maximum(v, 0)) for v in variance), draws_first(drawn) if draws else None,
        tuple(averaged),
    )  # fmt: skip


def generate(posterior: Learnt, n: int, *, seed: int = 0) -> Generated:
    """n new rows x drawn from p(h^L) … p(x | h¹), their means given h¹, and h. Row i does not depend on n."""
    ladder, theta = theta_of(posterior, "generate")
    expect("generate(n=...)", n, Count)
    made = over_rows(
        functools.partial(_generated, ladder, theta, _key("generate", seed)), np.zeros((n, 0)), rows_together(ladder, 1)
    )
    return Generated(*made)


def reconstruct(posterior: Learnt, x: Data | PyTree, *, draws: int = 1, seed: int = 0) -> np.ndarray:
    """E[x | h] averaged over ``draws`` of h ~ q(h | x), (row, n); categorical x: probabilities, (row, n · levels)."""
    ladder, params = network_of(posterior, "reconstruct")
    expect("reconstruct(draws=...)", draws, Count)
    rows = rows_of(ladder, params, x, "reconstruct").y
    again = functools.partial(_reconstructed, ladder, draws, params, _key("reconstruct", seed))
    return over_rows(again, rows, rows_together(ladder, draws))


def elbo(posterior: Learnt, data: Data | PyTree, *, samples: int = 100, seed: int = 0) -> np.ndarray:
    """E_q[log p(x, h) − log q(h | x)] of each row by ``samples`` draws, (row,), nats; ≤ log p(x) in expectation."""
    return log_evidence(posterior, data, samples=samples, seed=seed).elbo


def log_evidence(
    posterior: Learnt, data: Data | PyTree = None, *, samples: int = 1000, simulated: int = 0, seed: int = 0
) -> Evidence:
    """log (1/K) Σ_k p(x, h_k) / q(h_k | x) of each row, h_k ~ q(h | x); memory does not grow with rows or draws.

    Its expectation is at most log p(x) and rises to it with K (Burda, Grosse & Salakhutdinov 2016, theorem 1). θ is the
    fitted one, under which fitted rows are likelier than others. If all h can be summed over, ``exact`` is log p(x).

    An upper bound needs an exact draw of p(h | x), which is known only for rows that the model generated: adding the h
    that generated x to the K draws reverses the bound (Grosse, Ghahramani & Adams 2015). ``simulated`` such rows show
    how far apart the two bounds are with this q; on data unlike the model's own rows they may be further apart. For
    normal layers, ``tr.log_evidence(model, rows.x, theta=..., z=rows.h)`` of generated rows bounds by annealing both
    ways, without q.

    Args:
        data: rows; by default the fitted ones.
        samples: K ≥ 1.
        simulated: rows to generate for the upper bound; 0 for none.

    Raises:
        SettingsError, DataError: as ``encode``.
    """
    began = time.perf_counter()
    ladder, params = network_of(posterior, "log_evidence")
    expect("log_evidence(samples=...)", samples, Count)
    expect("log_evidence(simulated=...)", simulated, Annotated[int, at_least(0)])
    rows = posterior.data if data is None else rows_of(ladder, params, data, "log_evidence")
    if rows is None:
        raise DataError("This posterior was loaded without its data: log_evidence(data).")
    found = bounds(ladder, params, rows, _key("log_evidence", seed), int(samples))
    checks, sandwich = [sample_size_check(float(np.median(found.ess)), found.samples)], None
    if simulated:
        sandwich = _sandwich(ladder, params, simulated, int(samples), seed)
        said = f"± {sandwich.error:.1g} nats a row between the bounds, on rows of the model's own"
        checks.append(evidence.gap_check(sandwich.gap, said, sandwich.rows))
    weighed = evidence.of_rows(Summed(found.log_evidence, found.error, found.ess), found.samples, checks)
    exact, seconds = _exact(ladder, params, rows), time.perf_counter() - began
    return weighed._replace(method="importance", seconds=seconds, elbo=found.elbo, exact=exact, simulated=sandwich)


def _sandwich(ladder: Ladder, params: PyTree, count: int, samples: int, seed: int) -> Sandwich:
    """Lower and upper bound: E log (w* + Σ_k w_k) / (K + 1) ≥ log p(x) for (x, h*) ~ p, h_k ~ q(h | x), by Jensen."""
    make_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
    make = functools.partial(_generated, ladder, params["theta"], make_key)
    x, _, h = over_rows(make, np.zeros((count, 0)), rows_together(ladder, 1))
    found = bounds(ladder, params, Data(x), key, samples)
    own = over_rows(lambda _, rows: _own_weights(ladder, params, *rows), (x, h), rows_together(ladder, 1))
    lower = found.log_evidence
    upper = np.logaddexp(lower + math.log(samples), own) - math.log(samples + 1)
    gap = upper - lower
    error = float(gap.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return Sandwich(float(lower.mean()), float(upper.mean()), float(gap.mean()), error, count)


def held_out(posterior: Learnt, data: Data | PyTree, *, samples: int = 100, seed: int = 0) -> Bound:
    """K-sample bounds of held-out rows, and of up to 1000 fitted rows, nats per row."""
    held_out = as_data(data)
    learnt = posterior.data
    if learnt is None:
        raise DataError("held_out(data) holds rows against those learnt from: load the posterior with its data.")
    if held_out.fingerprint == learnt.fingerprint:
        raise DataError("held_out(data) needs rows kept out of the fit; got those that were fitted.")
    some = learnt.take(np.unique(np.linspace(0, learnt.size - 1, min(HELD_AGAINST, learnt.size)).astype(int)))
    mine, theirs = (log_evidence(posterior, rows, samples=samples, seed=seed) for rows in (some, held_out))
    error = float(np.hypot(np.nan_to_num(mine.mean_error), np.nan_to_num(theirs.mean_error)))
    return Bound(mine.mean, theirs.mean, mine.mean - theirs.mean, error, held_out.size)


def gap_check(posterior: Learnt, data: Data | PyTree) -> Check:
    """``held_out`` as a check of a report."""
    found = held_out(posterior, data)
    return held_out_check(found.gap, found.error, found.rows)


def theta_of(posterior: Learnt, what: str) -> tuple[Ladder, PyTree]:
    """The ladder and its one θ; a SettingsError if the posterior has another model, or many θ."""
    ladder = ladder_of(posterior.model)
    if ladder is None:
        raise SettingsError(f"{what}(...) is of ladders; this posterior is of a {type(posterior.model).__name__}.")
    if posterior.point is None:
        raise SettingsError(
            f"{what}(...) takes a ladder at one θ, and {type(posterior.method).__name__} drew many; learn it by MAP or "
            "a method with an inference network (AutoEncoding, NVIL, WakeSleep)."
        )
    return ladder, ladder.space.unravel(jnp.asarray(posterior.point))


def network_of(posterior: Learnt, what: str) -> tuple[Ladder, dict[str, PyTree]]:
    """The ladder and {θ, φ}; a SettingsError if there is no inference network."""
    ladder, theta = theta_of(posterior, what)
    if posterior.phi is None:
        raise SettingsError(
            f"{what}(...) looks through an inference network, and {type(posterior.method).__name__} learnt none; "
            "AutoEncoding, ImportanceWeighted, NVIL, VIMCO, WakeSleep and ReweightedWakeSleep do."
        )
    return ladder, {"theta": theta, "phi": jax.tree.map(jnp.asarray, posterior.phi)}


def visible(ladder: Ladder, params: PyTree) -> Any:
    """Shape (1, n) and dtype of a row that the ladder generates."""
    return jax.eval_shape(lambda p: ladder.dreamt(jax.random.key(0), p["theta"], 1)[0], params)


def check_width(ladder: Ladder, params: PyTree, x: np.ndarray, what: str) -> None:
    """Raises a DataError unless x has the shape of the ladder's rows."""
    wanted, got = visible(ladder, params).shape[1:], np.shape(x)
    if got[1:] != wanted or len(got) != 1 + len(wanted):
        one = f"; one row is x[None], of shape {(1, *wanted)}" if got == wanted else ""
        raise DataError(f"{what}(x) expects rows of shape (n, {', '.join(map(str, wanted))}); got shape {got}{one}.")


def rows_of(ladder: Ladder, params: PyTree, x: Data | PyTree, what: str) -> Data:
    """Rows x as Data; a DataError unless they have the ladder's width and support."""
    data = as_data(x)
    check_width(ladder, params, data.y, what)
    preflight.check(ladder, data)
    return data


def _exact(ladder: Ladder, params: PyTree, data: Data) -> np.ndarray | None:
    """log p(x) of each row by summing over all h; None if that is not possible."""
    if ladder.causes is None:
        return None
    count = jax.tree.leaves(ladder.causes)[0].shape[0]
    summed = functools.partial(_summed_out, ladder, params["theta"])
    return over_rows(summed, np.asarray(data.rows[0]), rows_together(ladder, count))


# Rows go by blocks of one shape, so that one program serves them all.


def rows_together(ladder: Ladder, draws: int) -> int:
    """Rows per block such that ``draws`` of their layers fit in memory."""
    return max(1, numbers() // (draws * sum(layer.seen for layer in ladder.layers)))


def over_rows(function: Callable, rows: PyTree, width: int) -> Any:
    """``function(index (w,), rows (w, …))`` applied to all rows, ``width`` at a time."""
    count, parts = len(jax.tree.leaves(rows)[0]), []
    for chunk, index, real in chunks(rows, count, min(width, count)):
        part = function(jnp.asarray(index), jax.tree.map(jnp.asarray, chunk))
        parts.append(jax.tree.map(lambda a, n=real: np.asarray(a)[:n], part))
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def draws_first(drawn: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """(row, draw, n) to (draw, row, n)."""
    return tuple(np.swapaxes(a, 0, 1) for a in drawn)


def each_row(function: Callable, key: jax.Array, index: jax.Array, *rows: Any) -> Any:
    """``function(key, row)`` for each row with its own key, from ``key`` and the row's index."""
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(index)
    return jax.vmap(function)(keys, *rows)


@compiled("ladder", "averaged", "draws")
def _encoded(
    ladder: Ladder, averaged: int, draws: int, params: PyTree, key: jax.Array, index: jax.Array, rows: jax.Array
) -> tuple:
    def one(key: jax.Array, x: jax.Array) -> tuple:
        look_key, draw_key, moment_key = jax.random.split(key, 3)
        x = ladder.look(look_key, x[None])
        codes = moments_of_codes(ladder, params, x, moment_key, averaged)
        drawn = jax.tree.map(lambda a: a[:, 0], ladder.drawn(draw_key, params, x, draws)[0]) if draws else ()
        return [mean[0] for mean, _, _ in codes], [variance[0] for _, variance, _ in codes], drawn

    return each_row(one, key, index, rows)


@compiled("ladder")
def _own_weights(ladder: Ladder, params: PyTree, x: jax.Array, h: tuple) -> jax.Array:
    """log w of each row's own h, (row,)."""
    h = jax.tree.map(lambda a: a[None], h)
    _, q = ladder.infer(params, jax.tree.map(lambda a: a[None], x), lambda i, _: h[i])
    return log_weights(ladder, params, x, h, q)[0][0]


@compiled("ladder")
def _generated(ladder: Ladder, theta: PyTree, key: jax.Array, index: jax.Array, rows: jax.Array) -> tuple:

    def one(key: jax.Array) -> tuple:
        x, h = ladder.dreamt(key, theta, 1)
        mean = moments(ladder.generative(theta, h)[0])[0]
        return jax.tree.map(lambda a: a[0], (x, mean, h))

    return each_row(one, key, index)


@compiled("ladder", "draws")
def _reconstructed(
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
