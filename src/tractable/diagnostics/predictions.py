"""Checks of predictive distributions, for models such as networks whose parameters are not identified.

Two sides (sets of draws of the weights) are compared by the distributions that they predict for the same rows. The
predictions of one side are checked against held-out rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from tractable.core.censoring import censors, datum_of
from tractable.core.check import Check
from tractable.core.model import Data, Model, PyTree
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.censoring import complete

HELD_OUT = "held-out surprise"  # name of a check that is made whenever rows are held out
ROWS = 100  # maximum number of rows at which two sides are compared
CLOSE = 10_000  # number of first rows from which the ROWS rows are taken, if the data are on file
MOST_SCORED = 1000  # maximum number of held-out rows that are scored
DRAWS = 100  # maximum number of draws of the weights that each side uses
# Limits on the total variation. Between two normals it is 0.08 if their means differ by 0.2 sd, and 0.11 if the ratio
# of their sds is 4/5.
TRUST_UP_TO, REJECT_ABOVE = 0.08, 0.24
LEVEL = 0.9  # probability of the region of highest density whose coverage is checked
# nats; log densities this close are ties. If a simulated y equals the observed y, their log densities usually differ by
# less: one of DRAWS draws is left out, for the simulated y only.
TIE = 2 / DRAWS
SIGMAS = 2.58  # half the width of a 99 % interval, in standard errors
COVERED, MISSED = 0.05, 0.15  # error of the coverage beyond chance: up to COVERED is trust, up to MISSED is caution
# Absolute surprise (unexpected loss of log density) beyond chance, in nats per row: up to SURPRISE is trust, up to
# SURPRISED is caution.
SURPRISE, SURPRISED = 0.1, 0.5


class Side(NamedTuple):
    """Draws (s, d) of a model's unconstrained parameters, and the model, which together make predictions."""

    model: Model
    positions: np.ndarray

    def some(self, count: int) -> "Side":
        """``count`` of the draws, evenly spaced; if there are fewer draws, all are repeated in turn."""
        index = np.linspace(0, len(self.positions) - 1, count).round().astype(int)
        if count > len(self.positions):
            index = np.arange(count) % len(self.positions)
        return Side(self.model, np.asarray(self.positions)[index])


class Agreement(NamedTuple):
    """The mean distance over rows between two predictive distributions."""

    distance: float  # total variation ½ ∫ |p₁(y | x) − p₂(y | x)| dy, minus the distance expected by chance
    error: float  # standard error of the distance, over rows

    def verdict(self) -> str:
        """The verdict: "trust" or "reject" only if the standard error leaves little doubt."""
        if self.distance - SIGMAS * self.error > REJECT_ABOVE:
            return "reject"
        return "trust" if self.distance + self.error <= TRUST_UP_TO else "caution"


class Scored(NamedTuple):
    """Scores of the predictions of m held-out rows."""

    log_densities: np.ndarray  # (m,) log p(y* | x)
    expected: np.ndarray  # (m,) the mean of log p(y | x) for y from the predictive distribution
    variance: np.ndarray  # (m,) its variance
    covered: np.ndarray  # (m,) predictive probability of the y whose density is higher than that of y*


def can_be_compared(model: Model, data: Data | None) -> bool:
    """Whether the model predicts each row by one distribution from which values can be drawn."""
    if data is None or model.likelihood is None or model.local is not None:
        return False
    return isinstance(datum_of(model, data.given), Distribution)


def inputs(data: Data, most: int = ROWS) -> PyTree:
    """The inputs of at most ``most`` rows of the data, evenly spaced; None if predictions take no inputs."""
    if data.given is None:
        return None
    return jax.tree.map(np.asarray, _some_rows(data, most).given)


def _some_rows(data: Data, most: int) -> Data:
    """At most ``most`` rows, evenly spaced; if the data are on file, from the first rows."""
    rows = (data if data.resident else data.take(slice(0, CLOSE))).equally_counted(most)
    return rows.take(np.unique(np.linspace(0, rows.size - 1, min(most, rows.size)).astype(int)))


def agreement(first: Side, second: Side, given: PyTree, seed: int) -> Agreement:
    """The mean total variation between the predictions of two sides.

        E_{y ~ (p₁ + p₂)/2} |p₁(y) − p₂(y)| / (p₁(y) + p₂(y)),     p(y) = mean over draws of p(y | θ, x)

    One y is drawn from every draw of the weights. That draw is left out of its side's mean p(y). Two sides differ by
    chance even if all draws are from the same distribution. This distance is measured between random halves of all
    draws, and subtracted.
    """
    count = min(DRAWS, len(first.positions), len(second.positions))
    first, second = first.some(count), second.some(count)
    rows = 1 if given is None else len(jax.tree.leaves(given)[0])
    keys = jax.random.split(jax.random.key(seed), rows)
    tables = _cross_tables(first.model, second.model, first.positions, second.positions, given, keys)
    return _agreement(np.asarray(tables, np.float64), np.random.default_rng(seed))


def _agreement(tables: np.ndarray, generator: np.random.Generator) -> Agreement:
    """The agreement from log p(y_i | θ_j, x), (row, i, j); the first half of each axis i and j is the first side."""
    size = tables.shape[1]
    sides = np.arange(size) < size // 2
    count = size // 2
    parts = count // 2, count - count // 2  # each random half has as many draws of one side as of the other
    halves = np.concatenate([generator.permutation(np.arange(count) < part) for part in parts])
    differences = _distances(tables, sides) - _distances(tables, halves)
    return Agreement(max(0.0, float(differences.mean())), float(differences.std() / np.sqrt(len(differences))))


def _distances(tables: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """(row,) total variation between the predictions of the draws in ``sides`` and those of all other draws."""
    left_out = np.where(np.eye(len(sides), dtype=bool), -np.inf, tables)
    halves = []
    for side in (sides, ~sides):
        counts = side.sum() - side  # for each y, the number of this side's draws other than the one that made this y
        with np.errstate(divide="ignore", invalid="ignore"):
            halves.append(np.logaddexp.reduce(left_out[:, :, side], axis=2) - np.log(counts))
    total = np.logaddexp(*halves)
    with np.errstate(invalid="ignore"):
        differences = np.abs(np.exp(halves[0] - total) - np.exp(halves[1] - total))
    return np.nanmean(differences, axis=1)


def score_rows(side: Side, data: Data, seed: int) -> Scored:
    """Scores held-out rows by the prediction averaged over draws, and compares them with values simulated from it."""
    side = side.some(DRAWS)
    index = np.unique(np.linspace(0, data.size - 1, min(MOST_SCORED, data.size)).astype(int))
    rows = data.take(index)
    keys = jax.random.split(jax.random.key(seed), rows.size)
    generator = np.random.default_rng(seed)
    scores, simulated = [], []
    for first in range(0, rows.size, ROWS):
        part = slice(first, first + ROWS)
        given = jax.tree.map(lambda a, part=part: np.asarray(a[part]), rows.given)
        y = jax.tree.map(lambda a, part=part: np.asarray(a[part]), rows.y)
        of_rows, of_simulated = _scores(side.model, jnp.asarray(side.positions), given, y, keys[part])
        scores.append(np.asarray(of_rows, np.float64))
        simulated.append(np.asarray(of_simulated, np.float64))
    densities, others = np.concatenate(scores), np.concatenate(simulated)  # (m,), (m, s)
    ties = np.abs(others - densities[:, None]) <= TIE
    denser = np.mean((others > densities[:, None]) & ~ties, 1)
    ties = np.mean(ties, 1)
    return Scored(densities, others.mean(1), others.var(1), denser + ties * generator.random(len(denser)))


def log_likelihoods(model: Model, positions: np.ndarray, data: Data) -> np.ndarray:
    """(chain, draw, row) log p(y_n | x_n, θ) at positions (chain, draw, d), for at most 100 of the rows."""
    rows = _some_rows(data, ROWS).arrays()
    flat = np.asarray(_row_likelihoods(model, positions.reshape(-1, positions.shape[-1]), rows))
    return flat.reshape(*positions.shape[:2], -1).astype(np.float64)


def held_out_checks(side: Side, data: Data, seed: int) -> list[Check]:
    """Checks the log density of held-out rows, and how often they lie in their predictions' region of highest density.

    Both are compared with what the predictive distributions themselves expect.
    """
    scores = score_rows(side, data, seed)
    count = len(scores.log_densities)
    surprise = float(np.mean(scores.expected - scores.log_densities))
    error = float(np.sqrt(scores.variance.sum()) / count)
    excess = abs(surprise) - SIGMAS * error
    sentence = f"nats per row by which {count} held-out rows are less likely than predictions expect, ± {error:.2g}"
    verdict = "trust" if excess <= SURPRISE else "caution" if excess <= SURPRISED else "reject"
    if verdict != "trust":
        sentence += ": predictions are too " + ("certain" if surprise > 0 else "cautious") + "; calibrate them"
    checks = [Check(HELD_OUT, surprise, verdict, sentence)]
    share = float(np.mean(scores.covered <= LEVEL))
    excess = abs(share - LEVEL) - SIGMAS * float(np.sqrt(LEVEL * (1 - LEVEL) / count))
    sentence = f"share of {count} held-out rows in the {100 * LEVEL:g} % region of highest predictive density"
    verdict = "trust" if excess <= COVERED else "caution" if excess <= MISSED else "reject"
    if verdict != "trust":
        sentence += ": predictions are too " + ("narrow" if share < LEVEL else "wide") + "; calibrate them"
    return [*checks, Check("held-out coverage", share, verdict, sentence)]


@compiled("one", "other", if_few=COMPILE_FASTEST)
def _cross_tables(one: Model, other: Model, first: jax.Array, second: jax.Array, given: PyTree, keys: jax.Array) -> Any:
    """log p(y_i | θ_j, x) of every row, (row, i, j), with y_i drawn from p(y | θ_i, x) for the draws of both sides."""

    def row(x_and_key: tuple[PyTree, jax.Array]) -> jax.Array:
        x, key = x_and_key
        first_key, second_key = jax.random.split(key)
        simulated = _simulate(one, first, x, first_key), _simulate(other, second, x, second_key)
        y = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *simulated)
        return jnp.concatenate([_log_probs(one, first, x, y), _log_probs(other, second, x, y)], 1)

    return jax.lax.map(row, (given, keys), batch_size=10)


@compiled("model", if_few=COMPILE_FASTEST)
def _scores(
    model: Model, positions: jax.Array, given: PyTree, y: PyTree, keys: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log densities of observed and of simulated values under the predictions averaged over draws.

    Returns:
        (row,) log p(y | x) of every row's y, and (row, draw) that of a y simulated from each draw of the weights. The
        draw from which y was simulated is left out of the average for that y.
    """
    count = positions.shape[0]
    censored = censors(model, given)

    def row(values: tuple[PyTree, PyTree, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, observed, key = values
        simulated = _simulate(model, positions, x, key)
        if censored:
            observed = complete(simulated, observed, jax.random.fold_in(key, 1))
        logs = _log_probs(model, positions, x, simulated)
        logs = jnp.where(jnp.eye(count, dtype=bool), -jnp.inf, logs)
        single = jax.tree.map(lambda a: a[None], observed)
        score = jax.nn.logsumexp(_log_probs(model, positions, x, single)[0]) - jnp.log(count)
        return score, jax.nn.logsumexp(logs, axis=1) - jnp.log(max(count - 1, 1))

    return jax.lax.map(row, (given, y, keys), batch_size=10)


@compiled("model", if_few=COMPILE_FASTEST)
def _row_likelihoods(model: Model, positions: jax.Array, rows: PyTree) -> jax.Array:
    """(s, row) log likelihoods of the rows at positions (s, d)."""
    return jax.lax.map(lambda z: model.log_likelihoods(model.params(z), rows), positions, batch_size=10)


def _simulate(model: Model, positions: jax.Array, x: PyTree, key: jax.Array) -> PyTree:
    """One value y simulated from every draw of the parameters, (draw, ...)."""
    keys = jax.random.split(key, positions.shape[0])
    return jax.vmap(lambda z, k: model.datum(model.params(z), x).sample(k))(positions, keys)


def _log_probs(model: Model, positions: jax.Array, x: PyTree, y: PyTree) -> jax.Array:
    """log p(y_i | θ_j, x), (i, j)."""

    def log_probs(position: jax.Array) -> jax.Array:
        datum: Any = model.datum(model.params(position), x)
        return jax.vmap(lambda value: jnp.sum(datum.log_prob(value)))(y)

    return jax.vmap(log_probs, out_axes=1)(positions)
