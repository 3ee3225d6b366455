"""The sections of a report that show figures: chains, estimates, predicted bias, held-out data."""

import functools
import math
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable import plots
from tractable.core import Data, Model
from tractable.markup import described, first_of, grid, of, panels, section, shown, strip
from tractable.tools.errors import DataError
from tractable.tools.tables import Encoder, Target

SHOWN = 6  # parameters with figures
PAIRED = 4
LINES = 40  # of a chart
CORRECTED = 4000  # draws of a marginal with the bias taken off
SEEN = 2000  # held-out rows whose integral transforms are drawn


def point_section(posterior: Any, labels: list[str]) -> str:
    """Estimates with bars, where draws were not kept."""
    table = posterior.summary()
    mean, sd = (np.asarray(table[c], float) for c in ("mean", "sd"))
    far = np.abs(mean) / np.where(sd > 0, sd, 1.0)
    kept = np.sort(np.argsort(-np.nan_to_num(far), kind="stable")[:LINES])
    reach = 1.645 * np.nan_to_num(sd[kept])
    drawn = plots.forest([labels[i] for i in kept], mean[kept], mean[kept] - reach, mean[kept] + reach)
    bars = "Bars reach 1.645 standard errors to both sides: 90 % where the posterior is normal."
    if posterior.is_point and not np.isfinite(sd).any():
        bars = "Standard errors are not known."
    return section(
        "Estimates", f'<figure class="chart">{drawn}</figure>', bars + first_of(kept, mean, "furthest from 0")
    )


def chains_section(posterior: Any, labels: list[str]) -> str:
    """For each interesting parameter its marginal, trace and ranks; then pairs."""
    values, many = np.asarray(posterior.values, float), posterior.chains > 1
    if values.shape[1] < 2:
        return section("Chains", "", "Too few draws to show.")
    weights = np.ones(values.shape[:2]) if posterior.weights is None else posterior.weights
    counted = values[:, weights.min(0) > 0] if np.sum(weights.min(0) > 0) > 1 else values
    diverged = np.asarray(posterior.info.get("divergent", np.zeros(values.shape[:2]))) > 0
    pooled, unbiased = resampled(values, weights), without_bias(posterior, weights)
    table, bulk, chosen, shown_rows = posterior.summary(), posterior.diagnosed.bulk, interesting(posterior), ""
    for i in chosen:
        mean, _, low, high = table.iloc[i, :4]
        corrected = None if unbiased is None else unbiased[:, i]
        last = plots.ranks(counted[:, :, i], bulk[i]) if many else plots.autocorrelation(counted[0, :, i])
        drawn = [
            plots.marginal(pooled[:, i], mean, (low, high), corrected),
            plots.trace(values[:, :, i], diverged),
            last,
        ]
        heads = ["Marginal", "Trace", "Ranks" if many else "Autocorrelation"] if i == chosen[0] else [""] * 3
        shown_rows += f"<h3>{escape(labels[i])}</h3>{strip(drawn, heads)}"
    dashed = "" if unbiased is None else "; dashed, with the predicted bias taken off"
    ticks = "; ticks where a trajectory diverged" if diverged.any() else ""
    note = f"Marginal: density, mean and 90 % interval{dashed}. Trace: one colour a chain{ticks}."
    if many:
        note += " Ranks: how far a chain runs ahead of its even share; inside the band where chains agree."
    out = section("Chains", shown_rows, note + (" Parameters known least come first." if len(labels) > 1 else ""))
    few = chosen[:PAIRED]
    if len(few) > 1:
        flat = diverged.ravel() if np.ptp(weights) == 0 else np.zeros(len(pooled), bool)
        drawn = plots.pairs(pooled[:, few], [labels[i] for i in few], flat)
        out += section("Pairs", f'<figure class="chart pairs">{drawn}</figure>')
    return out


def bias_section(posterior: Any) -> str:
    """The predicted inflation of every marginal sd of a stochastic-gradient sampler."""
    predicted = posterior.predicted_bias if posterior.count else None
    if predicted is None:
        return ""
    shares, tolerance = np.asarray(predicted.inflation, float), posterior.method.bias_tolerance
    size = np.where(np.isfinite(shares), np.abs(shares), np.inf)
    kept = np.sort(np.argsort(-size, kind="stable")[:LINES])
    names = posterior.model.space.names
    drawn = plots.inflation([names[i] for i in kept], shares[kept], tolerance)
    note = (
        f"By how much the step and the gradient's noise are predicted to widen each marginal sd, unconstrained. "
        f"Shaded: the tolerance of {100 * tolerance:g} %."
    )
    return section(
        "Predicted bias", f'<figure class="chart">{drawn}</figure>', note + first_of(kept, shares, "largest")
    )


def held_out_section(posterior: Any, data: Data, encoder: Encoder | None) -> str:
    """How predictions of data that inference did not see turned out."""
    if posterior.count == 0 and not posterior.is_point:
        return section("Held-out data", "", "Without kept draws there are no predictions.")
    target = None if encoder is None else encoder.target
    unit = target.sd if target is not None and target.family == "normal" else 1.0
    density = posterior.log_predictive(data) - math.log(unit)
    error = f"± {np.std(density) / math.sqrt(data.size):.2g} nats"
    facts = {"rows": f"{data.size:,}", "mean log predictive density": shown(float(density.mean()), ".3f") + of(error)}
    try:
        told = posterior.predict(data.given)
    except DataError:  # a datum of several parts
        return section("Held-out data", described(facts))
    y = np.asarray(data.y)
    if told.probabilities is not None:
        return _classes(facts, np.broadcast_to(told.probabilities, (len(y), told.probabilities.shape[-1])), y, target)
    return _numbers(facts, np.broadcast_to(told.mean, y.shape), transforms(posterior, data), y, unit)


def _classes(facts: dict[str, str], probability: np.ndarray, y: np.ndarray, target: Target | None) -> str:
    codes, two = y.astype(int), probability.shape[1] == 2
    facts["accuracy"] = f"{100 * np.mean(probability.argmax(-1) == codes):.1f} %"
    facts["commonest class"] = f"{100 * np.bincount(codes).max() / len(codes):.1f} %"
    seen = np.eye(probability.shape[1])[codes]
    drawn = plots.reliability(*((a[:, 1] if two else a.ravel()) for a in (probability, seen)))
    which = (
        f"of {target.classes[1] if target is not None and target.classes else 'class 1'}" if two else "of every class"
    )
    note = f"How often it happened against the probability given {which}; on the line where predictions are calibrated."
    return section("Held-out data", described(facts) + panels([drawn], [escape(note)]))


def _numbers(facts: dict[str, str], mean: np.ndarray, below: np.ndarray, y: np.ndarray, unit: float) -> str:
    spread = f"sd of the data {shown(unit * float(y.std()))}"
    facts["RMSE"] = shown(unit * float(np.sqrt(np.mean((y - mean) ** 2)))) + of(spread)
    rows = []
    for level in (0.5, 0.9, 0.95):
        held, error = np.mean(np.abs(below - 0.5) <= level / 2), math.sqrt(level * (1 - level) / below.size)
        cells = f"<td>{100 * held:.1f} %</td><td>± {100 * error:.1f}</td>"
        rows.append(f'<tr><th scope="row">{100 * level:g} %</th>{cells}</tr>')
    table = "<h3>Coverage</h3>" + grid(["interval", "held", "error expected"], rows)
    note = "Where in its prediction each number fell: level, and mostly between the dashed lines, where calibrated."
    return section("Held-out data", described(facts) + panels([plots.pit(below.ravel()), table], [note, ""]))


def transforms(posterior: Any, data: Data) -> np.ndarray:
    """The share of predictive draws below each number seen, ties by half: uniform where calibrated."""
    first = data if data.size <= SEEN else data.take(np.linspace(0, data.size - 1, SEEN).astype(int))
    params, weights = posterior.spread(SEEN // 4)
    params = jax.tree.map(jnp.asarray, params)
    if len(weights) == 1:
        params, weights = jax.tree.map(lambda a: jnp.repeat(a, SEEN // 4, 0), params), np.full(SEEN // 4, 4 / SEEN)
    return np.asarray(_transforms(posterior.model, params, jnp.asarray(weights), jax.tree.map(jnp.asarray, first.rows)))


@functools.partial(jax.jit, static_argnames="model")
def _transforms(model: Model, params: Any, weights: jax.Array, rows: Any) -> jax.Array:
    def of_row(row: Any) -> jax.Array:
        (y, x), key = row
        drawn = jax.vmap(lambda theta, k: model.datum(theta, x).sample(k))(params, jax.random.split(key, weights.size))
        return jnp.tensordot(weights, (drawn < y) + 0.5 * (drawn == y), 1)

    keys = jax.random.split(jax.random.key(0), jax.tree.leaves(rows)[0].shape[0])
    return jax.lax.map(of_row, (rows, keys), batch_size=256)


def interesting(posterior: Any) -> list[int]:
    """The parameters that are known least, by R-hat and effective draws, then the first."""
    first = list(range(len(posterior.names)))
    if posterior.unconstrained is None:
        return first[:SHOWN]
    seen, enough = posterior.diagnosed, 100 * posterior.chains
    least = np.nan_to_num(np.minimum(seen.bulk, seen.tail) / enough, nan=0.0)
    trouble = np.maximum(1 / np.maximum(least, 1e-6), 100 * (np.nan_to_num(seen.rhat, nan=1.0, posinf=1e6) - 1))
    worst = np.argsort(-trouble, kind="stable").tolist()
    poor = max(2, int(np.sum(trouble > 1)))
    return list(dict.fromkeys(worst[:poor] + first))[:SHOWN]


def resampled(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Draws (chain, draw, k) as (n, k) of equal weight."""
    flat, mass = values.reshape(-1, values.shape[-1]), weights.ravel()
    if np.ptp(mass) == 0:
        return flat
    at = (np.arange(len(flat)) + 0.5) / len(flat)
    return flat[np.minimum(np.searchsorted(np.cumsum(mass) / mass.sum(), at), len(flat) - 1)]


def without_bias(posterior: Any, weights: np.ndarray) -> np.ndarray | None:
    """Draws (n, k) drawn in about their unconstrained mean by the predicted inflation."""
    predicted = posterior.predicted_bias
    if predicted is None or not np.all(np.isfinite(predicted.inflation)):
        return None
    flat = resampled(np.asarray(posterior.unconstrained, float), weights)
    flat = flat[:: -(-len(flat) // CORRECTED)]
    centre = flat.mean(0)
    moved = jnp.asarray(centre + (flat - centre) / (1 + predicted.inflation))
    return np.asarray(jax.vmap(posterior.model.values)(moved))
