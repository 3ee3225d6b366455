"""Whether predictions can be trusted where parameters cannot: a network's weights are not identified, its output is.

Two sides are compared by the distributions that they predict for the same rows; one side is held against held-out rows.
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

HELD_OUT = "held-out surprise"  # the check that is made wherever rows are held out
ROWS = 100  # most rows at which two sides are compared
CLOSE = 10_000  # first rows of data on file, from which they are taken
MOST_SCORED = 1000  # most held-out rows scored
DRAWS = 100  # most draws of the weights used, per side
# The total variation between two normals is 0.08 if their means are 0.2 sd apart, 0.11 if their sds are as 4 to 5.
TRUST_UP_TO, REJECT_ABOVE = 0.08, 0.24
LEVEL = 0.9  # probability of the densest region, whose coverage is checked
TIE = 2 / DRAWS  # nats within which densities tie: for data of one class they differ by the left-out draw alone
SIGMAS = 2.58  # standard errors that chance explains, 99 %
COVERED, MISSED = 0.05, 0.15  # error of the coverage, beyond chance, up to which it is trust, and caution
SURPRISE, SURPRISED = 0.1, 0.5  # the same of the surprise, nats a row


class Side(NamedTuple):
    """Draws of the weights, (s, d) unconstrained, and the model through which they predict."""

    model: Model
    positions: np.ndarray

    def some(self, count: int) -> "Side":
        """``count`` of the draws, evenly spaced; repeated in turn where there are fewer."""
        index = np.linspace(0, len(self.positions) - 1, count).round().astype(int)
        if count > len(self.positions):
            index = np.arange(count) % len(self.positions)
        return Side(self.model, np.asarray(self.positions)[index])


class Agreement(NamedTuple):
    """How far apart two predictive distributions are, as a mean over rows."""

    distance: float  # total variation, ½ ∫ |p₁(y | x) − p₂(y | x)| dy, less the distance made by chance
    error: float  # its standard error over rows

    def verdict(self) -> str:
        if self.distance - SIGMAS * self.error > REJECT_ABOVE:
            return "reject"
        return "trust" if self.distance + self.error <= TRUST_UP_TO else "caution"


class Scored(NamedTuple):
    """How well m held-out rows are predicted."""

    log_densities: np.ndarray  # (m,) log p(y* | x)
    expected: np.ndarray  # (m,) their mean if the predictions were right
    variance: np.ndarray  # (m,) their variance if the predictions were right
    covered: np.ndarray  # (m,) the mass of p(y | x) at values denser than y*


def can_be_compared(model: Model, data: Data | None) -> bool:
    """Whether the prediction for a row is one distribution, from which data can be drawn."""
    if data is None or model.likelihood is None or model.local is not None:
        return False
    return isinstance(datum_of(model, data.given), Distribution)


def inputs(data: Data, most: int = ROWS) -> PyTree:
    """The inputs of at most ``most`` rows of the data, evenly spaced; None where predictions take no inputs."""
    if data.given is None:
        return None
    return jax.tree.map(np.asarray, _some_rows(data, most).given)


def _some_rows(data: Data, most: int) -> Data:
    """At most ``most`` rows, evenly spaced; of data on file from the first ones."""
    rows = (data if data.resident else data.take(slice(0, CLOSE))).equally_counted(most)
    return rows.take(np.unique(np.linspace(0, rows.size - 1, min(most, rows.size)).astype(int)))


def agreement(first: Side, second: Side, given: PyTree, seed: int) -> Agreement:
    """The mean total variation between two sides' predictions.

        E_{y ~ (p₁ + p₂)/2} |p₁(y) − p₂(y)| / (p₁(y) + p₂(y)),     p(y) = mean over draws of p(y | θ, x)

    Every draw of the weights makes one y, and is left out of its side's mean for that y. Two sides differ by chance
    even if they are draws of one distribution: that distance, found by dealing all draws anew, is subtracted.
    """
    count = min(DRAWS, len(first.positions), len(second.positions))
    first, second = first.some(count), second.some(count)
    rows = 1 if given is None else len(jax.tree.leaves(given)[0])
    keys = jax.random.split(jax.random.key(seed), rows)
    tables = _crossed(first.model, second.model, first.positions, second.positions, given, keys)
    return _compared(np.asarray(tables, np.float64), np.random.default_rng(seed))


def _compared(tables: np.ndarray, generator: np.random.Generator) -> Agreement:
    """The agreement from log p(y_i | θ_j, x), (row, i, j); the first halves of i and j are the first side's."""
    size = tables.shape[1]
    sides = np.arange(size) < size // 2
    count = size // 2
    parts = count // 2, count - count // 2  # as many of either side, so that the dealt halves differ by chance alone
    dealt = np.concatenate([generator.permutation(np.arange(count) < part) for part in parts])
    found, chance = _distances(tables, sides), _distances(tables, dealt)
    differences = found - chance
    return Agreement(max(0.0, float(differences.mean())), float(differences.std() / np.sqrt(len(differences))))


def _distances(tables: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """(row,) total variation between the draws in ``sides`` and the others."""
    own = np.where(np.eye(len(sides), dtype=bool), -np.inf, tables)
    halves = []
    for side in (sides, ~sides):
        counts = side.sum() - side  # for each y, draws of this side other than the one that made it
        with np.errstate(divide="ignore", invalid="ignore"):
            halves.append(np.logaddexp.reduce(own[:, :, side], axis=2) - np.log(counts))
    total = np.logaddexp(*halves)
    with np.errstate(invalid="ignore"):
        differences = np.abs(np.exp(halves[0] - total) - np.exp(halves[1] - total))
    return np.nanmean(differences, axis=1)


def scored(side: Side, data: Data, seed: int) -> Scored:
    """Scores held-out rows by the prediction averaged over draws, beside data drawn from that prediction."""
    side = side.some(DRAWS)
    index = np.unique(np.linspace(0, data.size - 1, min(MOST_SCORED, data.size)).astype(int))
    rows = data.take(index)
    keys = jax.random.split(jax.random.key(seed), rows.size)
    generator = np.random.default_rng(seed)
    scores, own = [], []
    for first in range(0, rows.size, ROWS):
        part = slice(first, first + ROWS)
        given = jax.tree.map(lambda a, part=part: np.asarray(a[part]), rows.given)
        y = jax.tree.map(lambda a, part=part: np.asarray(a[part]), rows.y)
        at = jnp.asarray(side.positions)
        found = _scores(side.model, at, given, y, keys[part])
        scores.append(np.asarray(found[0], np.float64))
        own.append(np.asarray(found[1], np.float64))
    densities, drawn = np.concatenate(scores), np.concatenate(own)  # (m,), (m, s)
    ties = np.abs(drawn - densities[:, None]) <= TIE
    below = np.mean((drawn > densities[:, None]) & ~ties, 1)
    ties = np.mean(ties, 1)
    return Scored(densities, drawn.mean(1), drawn.var(1), below + ties * generator.random(len(below)))


def log_likelihoods(model: Model, positions: np.ndarray, data: Data) -> np.ndarray:
    """(chain, draw, row) log p(y_n | x_n, θ) at positions (chain, draw, d), for some of the rows."""
    rows = _some_rows(data, ROWS).arrays()
    flat = np.asarray(_row_likelihoods(model, positions.reshape(-1, positions.shape[-1]), rows))
    return flat.reshape(*positions.shape[:2], -1).astype(np.float64)


def held_out_checks(side: Side, data: Data, seed: int) -> list[Check]:
    """Whether held-out rows are as likely as the predictions expect, and lie as often in their densest region."""
    found = scored(side, data, seed)
    count = len(found.log_densities)
    surprise = float(np.mean(found.expected - found.log_densities))
    error = float(np.sqrt(found.variance.sum()) / count)
    excess = abs(surprise) - SIGMAS * error
    sentence = f"nats a row by which {count} held-out rows are less likely than their predictions expect, ± {error:.2g}"
    verdict = "trust" if excess <= SURPRISE else "caution" if excess <= SURPRISED else "reject"
    if verdict != "trust":
        sentence += ": predictions are too " + ("sure" if surprise > 0 else "cautious") + "; calibrate them"
    share = float(np.mean(found.covered <= LEVEL))
    off = abs(share - LEVEL) - SIGMAS * float(np.sqrt(LEVEL * (1 - LEVEL) / count))
    covers = f"share of {count} held-out rows that lie in the densest {100 * LEVEL:g} % of their predictions"
    grade = "trust" if off <= COVERED else "caution" if off <= MISSED else "reject"
    if grade != "trust":
        covers += ": predictions are too " + ("narrow" if share < LEVEL else "wide") + "; calibrate them"
    return [Check(HELD_OUT, surprise, verdict, sentence), Check("held-out coverage", share, grade, covers)]


@compiled("one", "other", if_few=COMPILE_FASTEST)
def _crossed(one: Model, other: Model, first: jax.Array, second: jax.Array, given: PyTree, keys: jax.Array) -> Any:
    """log p(y_i | θ_j, x) of every row, (row, i, j); y_i is drawn from p(y | θ_i, x)."""

    def row(at: tuple[PyTree, jax.Array]) -> jax.Array:
        x, key = at
        here, there = jax.random.split(key)
        drawn = _drawn(one, first, x, here), _drawn(other, second, x, there)
        y = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *drawn)
        return jnp.concatenate([_log_probs(one, first, x, y), _log_probs(other, second, x, y)], 1)

    return jax.lax.map(row, (given, keys), batch_size=10)


@compiled("model", if_few=COMPILE_FASTEST)
def _scores(
    model: Model, positions: jax.Array, given: PyTree, y: PyTree, keys: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(row,) log p(y | x) of every row; (row, draw) that of a y made by each draw, predicted by the other draws."""
    count = positions.shape[0]
    censored = censors(model, given)

    def row(at: tuple[PyTree, PyTree, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, seen, key = at
        drawn = _drawn(model, positions, x, key)
        if censored:
            seen = complete(drawn, seen, jax.random.fold_in(key, 1))
        own = _log_probs(model, positions, x, drawn)
        own = jnp.where(jnp.eye(count, dtype=bool), -jnp.inf, own)
        one = jax.tree.map(lambda a: a[None], seen)
        score = jax.nn.logsumexp(_log_probs(model, positions, x, one)[0]) - jnp.log(count)
        return score, jax.nn.logsumexp(own, axis=1) - jnp.log(max(count - 1, 1))

    return jax.lax.map(row, (given, y, keys), batch_size=10)


@compiled("model", if_few=COMPILE_FASTEST)
def _row_likelihoods(model: Model, positions: jax.Array, rows: PyTree) -> jax.Array:
    return jax.lax.map(lambda z: model.log_likelihoods(model.params(z), rows), positions, batch_size=10)


def _drawn(model: Model, positions: jax.Array, x: PyTree, key: jax.Array) -> PyTree:
    """A datum from every draw, (draw, ...)."""
    keys = jax.random.split(key, positions.shape[0])
    return jax.vmap(lambda z, k: model.datum(model.params(z), x).sample(k))(positions, keys)


def _log_probs(model: Model, positions: jax.Array, x: PyTree, y: PyTree) -> jax.Array:
    """log p(y_i | θ_j, x), (i, j)."""

    def of(position: jax.Array) -> jax.Array:
        datum: Any = model.datum(model.params(position), x)
        return jax.vmap(lambda one: jnp.sum(datum.log_prob(one)))(y)

    return jax.vmap(of, out_axes=1)(positions)
