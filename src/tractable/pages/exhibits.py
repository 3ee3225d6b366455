"""The sections of a report that show figures: chains, a fitted q, layers, predicted bias, held-out data."""

import functools
import math
from html import escape
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, ExpandedDistribution, Independent, Normal, kl_divergence

from tractable.beliefs import approximations
from tractable.checks import calibration
from tractable.core import Data, Model, Through, is_distribution
from tractable.data.encoder import Encoder, Target
from tractable.models.ladder import Ladder
from tractable.pages import plots
from tractable.pages.ladders import Shape, ladder_sections
from tractable.pages.markup import described, first_of, grid, of, panels, section, shown, strip
from tractable.tools.errors import DataError

SHOWN = 6  # parameters with figures
PAIRED = 4
LINES = 40  # of a chart
CORRECTED = 4000  # draws of a marginal with the bias taken off
SEEN = 2000  # held-out rows whose integral transforms are drawn
DRAWN = 500  # predictive draws of each
TOLD = ("log predictive", "accuracy", "RMSE", "coverage")  # scores with a place of their own on the page
LEVELS = (0.5, 0.9, 0.95)  # of intervals
MANY = 40  # numbers of a network's weights, above which they are told by layers
KL_DRAWS = 200  # of a leaf whose prior is not normal
FEWEST = 20  # draws that make a density


def point_section(posterior: Any, labels: list[str]) -> str:
    """Estimates with bars, where draws were not kept."""
    others = ~weights_of(posterior.model)
    if not others.any():
        return ""
    table, labels = posterior.summary()[others], [label for label, kept in zip(labels, others, strict=True) if kept]
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


def figures(posterior: Any, labels: list[str], shape: Shape = None) -> str:
    """The figures of a posterior's parameters, by what is known of them; the layers of a network; a ladder at work."""
    if isinstance(posterior.model, Ladder) and posterior.is_point:
        return ladder_sections(posterior, shape)
    weights = weights_of(posterior.model)
    out = layers_section(posterior) if weights.any() and not isinstance(posterior.model, Ladder) else ""
    if posterior.unconstrained is None:
        return out + point_section(posterior, labels)
    if posterior.method.label == "ensemble":
        return members_section(posterior) + out + independent_section(posterior, labels)
    if posterior.fitted is not None:
        return climb_section(posterior) + out + independent_section(posterior, labels)
    if posterior.method.independent:
        return out + independent_section(posterior, labels)
    return out + chains_section(posterior, labels)


def chains_section(posterior: Any, labels: list[str]) -> str:
    """For each interesting parameter its marginal, trace and ranks; then pairs."""
    values, many = np.asarray(posterior.values, float), posterior.chains > 1
    if not interesting(posterior):
        return ""
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
    flat = diverged.ravel() if np.ptp(weights) == 0 else np.zeros(len(pooled), bool)
    return out + _pairs(pooled, chosen, labels, flat)


def _pairs(pooled: np.ndarray, chosen: list[int], labels: list[str], diverged: np.ndarray | None = None) -> str:
    few = chosen[:PAIRED]
    if len(few) < 2:
        return ""
    drawn = plots.pairs(pooled[:, few], [labels[i] for i in few], diverged)
    return section("Pairs", f'<figure class="chart pairs">{drawn}</figure>')


def independent_section(posterior: Any, labels: list[str]) -> str:
    """Marginals and pairs of draws without an order: a fitted q's, or those of an ensemble's members."""
    chosen = interesting(posterior)
    values = np.asarray(posterior.values, float)
    pooled = values.reshape(-1, values.shape[-1])
    if not chosen or len(pooled) < FEWEST:
        return ""
    table = posterior.summary()
    drawn = [plots.marginal(pooled[:, i], table.iloc[i, 0], tuple(table.iloc[i, 2:4])) for i in chosen]
    whose = "the members' mixture" if posterior.method.label == "ensemble" else "q"
    note = f"Density, mean and 90 % interval of {whose}."
    if len(chosen) < np.sum(~weights_of(posterior.model)):
        note += f" The first {len(chosen)} parameters."
    heads = [f"<b>{escape(labels[i])}</b>" for i in chosen]
    return section("Marginals", strip(drawn, heads), note) + _pairs(pooled, chosen, labels)


def climb_section(posterior: Any) -> str:
    """The noisy bound on the way up, where it was kept."""
    bound = np.asarray(posterior.fitted.trace.get("bound", ()), float).ravel()
    if np.sum(np.isfinite(bound)) < 2:
        return ""
    drawn = plots.climb(bound, posterior.found.get("steps", len(bound)))
    note = "The noisy bound on log p(y) at every step that was looked at, and its running mean. The first are cut off."
    return section("Climb", f'<figure class="chart">{drawn}</figure>', note)


def khat_sentence(posterior: Any) -> str:
    """What k-hat says of this q; empty where it was not computed."""
    found = next((check for check in posterior.report().checks if check.name == "k-hat"), None)
    if found is None or math.isnan(found.value):
        return ""
    value = found.value
    if value == -math.inf:
        return "k-hat is −∞: the weights p/q of q's draws are all equal, so q is the posterior."
    told = f"k-hat is {shown(value, '.2f')}" if math.isfinite(value) else "k-hat is infinite"
    if found.verdict == "trust":
        told += ": the weights p/q of q's draws vary little enough that reweighting them mends what q gets wrong."
    elif value <= 1:
        told += ": the weights p/q of q's draws vary as if they had no finite variance: q is too narrow somewhere."
    else:
        told += ": the weights p/q of q's draws vary as if they had not even a mean: q and the posterior differ."
    many = (
        " In many dimensions it is seldom small; predictions may be good all the same."
        if found.verdict != "trust"
        else ""
    )
    return told + many


def members_section(posterior: Any) -> str:
    """An ensemble's members, and how high each climbed."""
    rows = []
    for i in range(posterior.chains):
        objective = posterior.found.get(f"objective {i}", math.nan)
        rows.append(f'<tr><th scope="row">{i + 1}</th><td>{shown(float(objective), ",.2f")}</td></tr>')
    note = (
        "Solutions from starts of their own, each with the same say in predictions. How far they differ in what they "
        "predict is what the ensemble knows of its ignorance; the spread of one parameter says little."
    )
    return section("Members", grid(["member", "log posterior density, in nats"], rows), note)


# Networks.


def weights_of(model: Model) -> np.ndarray:
    """Which of the k numbers are weights of a network too large to be told number by number, (k,) of booleans."""
    found: Any = model.likelihood
    network = isinstance(found, Through) and model.start is not None and isinstance(model.prior, dict)
    leaves = jax.tree_util.tree_flatten_with_path(jax.eval_shape(model.example, jax.random.key(0)))[0]
    ladder = isinstance(model, Ladder)
    inside = np.concatenate([np.full(leaf.size, ladder or (network and _of_weights(path))) for path, leaf in leaves])
    return inside if inside.sum() > MANY else np.zeros_like(inside)


def _of_weights(path: tuple) -> bool:
    return getattr(path[0], "key", None) == "weights"


class Leaf(NamedTuple):
    """An array of a network's weights: how many numbers, what is known of them, and KL(q ‖ prior) in nats or NaN."""

    name: str
    size: int
    mean: float  # mean |μ|
    sd: float  # mean σ
    ratio: float  # mean |μ|/σ
    kl: float


def leaves_of(posterior: Any) -> list[Leaf]:
    """A network's weights, array by array."""
    model = posterior.model
    mean, sd = (np.asarray(a, np.float64) for a in posterior._moments)
    fitted: Any = posterior.fitted
    bijectors = model.bijectors
    priors = jax.tree.leaves(model.prior, is_leaf=is_distribution)
    unconstrained = jax.tree.leaves(model.space.shapes)
    paths = jax.tree_util.tree_flatten_with_path(jax.eval_shape(model.example, jax.random.key(0)))[0]
    out, at, free = [], 0, 0
    for i, (path, leaf) in enumerate(paths):
        here, there = slice(at, at + leaf.size), slice(free, free + unconstrained[i].size)
        at, free = here.stop, there.stop
        if not _of_weights(path):
            continue
        kl = math.nan
        if fitted is not None and fitted.family == "mean field":
            phi = jax.tree.map(jnp.asarray, fitted.phi)
            q, shape = approximations.of(fitted.family, phi), unconstrained[i].shape
            mu, sigma = (jnp.reshape(moment(phi)[there], shape) for moment in (q.mean, q.sd))
            kl = float(divergence(mu, sigma, priors[i], bijectors[i], model.unbounded[i]))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(mean[here]) / sd[here]
        name = jax.tree_util.keystr(path[1:], simple=True, separator=".") or "weights"
        size, spread = float(np.mean(np.abs(mean[here]))), float(np.mean(sd[here]))
        out.append(Leaf(name, leaf.size, size, spread, float(np.mean(ratio)), kl))
    return out


def divergence(mean: jax.Array, sd: jax.Array, prior: Distribution, bijection: Any, unbounded: bool) -> jax.Array:
    """KL(N(mean, sd²) ‖ prior) in nats, over the unconstrained numbers of one parameter.

    In closed form where the prior is normal, else by ``KL_DRAWS`` draws.
    """
    base: Any = prior
    while isinstance(base, Independent | ExpandedDistribution):
        base = base.base_dist
    q = Normal(mean, sd)
    if isinstance(base, Normal) and unbounded:
        loc, scale = (jnp.broadcast_to(jnp.asarray(a), mean.shape) for a in (base.loc, base.scale))
        return jnp.sum(kl_divergence(q, Normal(loc, scale)))
    draws: Any = q.sample(jax.random.key(0), (KL_DRAWS,))

    def log_prior(z: jax.Array) -> jax.Array:
        value = bijection(z)
        return jnp.sum(prior.log_prob(value)) + jnp.sum(bijection.log_abs_det_jacobian(z, value))

    return jnp.mean(jnp.sum(q.log_prob(draws).reshape(KL_DRAWS, -1), 1) - jax.vmap(log_prior)(draws))


def layers_section(posterior: Any) -> str:
    """What is known of a network's weights, layer by layer."""
    found = leaves_of(posterior)
    known = not all(math.isnan(leaf.kl) for leaf in found)
    rows = []
    for leaf in found:
        values = [leaf.mean, leaf.sd, leaf.ratio, *([leaf.kl, leaf.kl / leaf.size] if known else [])]
        cells = "".join(f"<td>{shown(v, '.3g' if abs(v) < 1000 else ',.0f')}</td>" for v in values)
        rows.append(f'<tr><th scope="row">{escape(leaf.name)}</th><td>{leaf.size:,}</td>{cells}</tr>')
    heads = ["weights", "count", "mean |μ|", "mean σ", "mean |μ|/σ"]
    note = (
        "Single weights mean little: hidden units can be exchanged. σ is how far members differ."
        if posterior.method.label == "ensemble"
        else "Single weights mean little: hidden units can be exchanged. |μ|/σ is low where the data said little."
    )
    if known:
        heads += ["KL from prior", "a weight"]
        note += " KL(q ‖ prior), in nats, is what was learnt: the price that the bound pays."
    return section("Layers", grid(heads, rows, "wide"), note)


def bias_section(posterior: Any) -> str:
    """The predicted inflation of every marginal sd of a stochastic-gradient sampler."""
    predicted = posterior.predicted_bias if posterior.count else None
    if predicted is None:
        return ""
    shares, tolerance = np.asarray(predicted.inflation, float), posterior.method.bias_tolerance
    size = np.where(np.isfinite(shares), np.abs(shares), np.inf)
    weights = weights_of(posterior.model)
    order = np.argsort(-size, kind="stable")
    if weights.any() and len(weights) == len(shares):
        order = order[~weights[order]]
    kept = np.sort(order[:LINES])
    if not len(kept):
        return ""
    names = posterior.model.space.names
    drawn = plots.inflation([names[i] for i in kept], shares[kept], tolerance)
    note = (
        f"By how much the step and the gradient's noise are predicted to widen each marginal sd, unconstrained. "
        f"Shaded: the tolerance of {100 * tolerance:g} %."
    )
    return section(
        "Predicted bias", f'<figure class="chart">{drawn}</figure>', note + first_of(kept, shares, "largest")
    )


class Score(NamedTuple):
    """A number about predictions, and what it means."""

    name: str
    value: float
    meaning: str


class HeldOut(NamedTuple):
    """How predictions of rows that inference did not see turned out."""

    scores: list[Score]
    y: np.ndarray | None  # None of a datum of several parts
    probabilities: np.ndarray | None  # (n, classes)
    below: np.ndarray | None  # of numbers: the share of each row's prediction below what was seen


def held_out_scores(posterior: Any, data: Data, encoder: Encoder | None = None, shifted: Any = None) -> HeldOut:
    """Scores of held-out rows, in the target's own units, from one prediction of them.

    Args:
        posterior: with draws, or a point.
        data: rows kept out of the fit.
        encoder: of a table; its unit is the scores'.
        shifted: inputs of rows from elsewhere: how well predictive uncertainty tells them from ``data``.
    """
    target = None if encoder is None else encoder.target
    unit = target.sd if target is not None and target.family == "normal" else 1.0
    # A density in other units is another number: p(y) = p(standardised y) / sd.
    log = calibration.log_score(np.asarray(posterior.log_predictive(data), np.float64) - math.log(unit))
    scores = [Score("log predictive", log.mean, f"± {log.error:.2g}; mean log predictive density of a row, in nats")]
    try:
        told = posterior.predict(data.given)
    except DataError:  # a datum of several parts
        return HeldOut(scores, None, None, None)
    y = np.asarray(data.y)
    if told.probabilities is not None:
        p = np.broadcast_to(told.probabilities, (len(y), told.probabilities.shape[-1]))
        p, codes, below, doubt = np.asarray(p, np.float64), y.astype(int), None, told.entropy
        scores += [
            Score("accuracy", calibration.accuracy(p, codes), "share of rows whose likeliest class is theirs"),
            Score("ECE", calibration.ece(p, codes), "gap between confidence and accuracy; less is better"),
            Score("Brier", calibration.brier(p, codes), "squared error of the probabilities, 0 to 2; less is better"),
        ]  # fmt: skip
    else:
        p, doubt = None, told.sd
        mean, lower, upper = (unit * np.broadcast_to(a, y.shape) for a in (told.mean, told.lower, told.upper))
        below, crps = transforms(posterior, data)
        scores += [
            Score("RMSE", calibration.rmse(unit * y, mean), "root of the mean squared error of the predictive mean"),
            Score("CRPS", unit * float(np.mean(crps)), "distance of the prediction from what was seen; less is better"),
            *(Score(f"coverage {100 * a:g} %", _covered(below, a), "share of rows inside") for a in LEVELS),
            Score("sharpness", calibration.sharpness(lower, upper).width, "mean width of the 90 % interval"),
        ]  # fmt: skip
    if shifted is not None:
        other = posterior.predict(shifted)
        elsewhere = other.sd if other.entropy is None else other.entropy
        what = "sd" if other.entropy is None else "entropy"
        value = calibration.auroc(doubt, elsewhere)
        scores.append(
            Score("AUROC shifted", value, f"chance that a shifted row has more {what}; 0.5 where blind to it")
        )
    return HeldOut(scores, y, p, below)


def _covered(below: np.ndarray, level: float) -> float:
    return float(np.mean(np.abs(below - 0.5) <= level / 2))


def held_out_section(posterior: Any, data: Data, encoder: Encoder | None, shifted: Any = None) -> str:
    """How predictions of data that inference did not see turned out."""
    if posterior.count == 0 and not posterior.is_point:
        return section("Held-out data", "", "Without kept draws there are no predictions.")
    found = held_out_scores(posterior, data, encoder, shifted)
    target = None if encoder is None else encoder.target
    by_name = {score.name: score for score in found.scores}
    log = by_name["log predictive"]
    error = log.meaning.partition(";")[0]
    facts = {"rows": f"{data.size:,}", "mean log predictive density": shown(log.value, ".3f") + of(f"{error} nats")}
    if found.y is None:
        return section("Held-out data", described(facts))
    table = _score_table([s for s in found.scores if not s.name.startswith(TOLD)])
    if found.probabilities is not None:
        return _classes(facts, found.probabilities, found.y, target, table)
    unit = target.sd if target is not None and target.family == "normal" else 1.0
    below = np.zeros(0) if found.below is None else found.below
    facts["RMSE"] = shown(by_name["RMSE"].value) + of(f"sd of the data {shown(unit * float(found.y.std()))}")
    return _numbers(facts, below, table)


def _score_table(scores: list[Score]) -> str:
    rows = [
        f'<tr><th scope="row">{escape(s.name)}</th><td>{shown(s.value)}</td>'
        f'<td class="text">{escape(s.meaning)}</td></tr>'
        for s in scores
    ]
    return "<h3>Scores</h3>" + grid(["score", "value", "what it means"], rows, left=("what it means",))


def _classes(facts: dict[str, str], probability: np.ndarray, y: np.ndarray, target: Target | None, table: str) -> str:
    codes, two = y.astype(int), probability.shape[1] == 2
    facts["accuracy"] = f"{100 * np.mean(probability.argmax(-1) == codes):.1f} %"
    facts["commonest class"] = f"{100 * np.bincount(codes).max() / len(codes):.1f} %"
    seen = np.eye(probability.shape[1])[codes]
    drawn = plots.reliability(*((a[:, 1] if two else a.ravel()) for a in (probability, seen)))
    which = (
        f"of {target.classes[1] if target is not None and target.classes else 'class 1'}" if two else "of every class"
    )
    note = f"How often it happened against the probability given {which}; on the line where predictions are calibrated."
    return section("Held-out data", described(facts) + panels([drawn], [escape(note)]) + table)


def _numbers(facts: dict[str, str], below: np.ndarray, table: str) -> str:
    rows = []
    for level in LEVELS:
        error = math.sqrt(level * (1 - level) / below.size)
        cells = f"<td>{100 * _covered(below, level):.1f} %</td><td>± {100 * error:.1f}</td>"
        rows.append(f'<tr><th scope="row">{100 * level:g} %</th>{cells}</tr>')
    coverage = "<h3>Coverage</h3>" + grid(["interval", "held", "error expected"], rows)
    note = "Where in its prediction each number fell: level, and mostly between the dashed lines, where calibrated."
    return section("Held-out data", described(facts) + panels([plots.pit(below.ravel()), coverage], [note, ""]) + table)


def transforms(posterior: Any, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Of at most ``SEEN`` rows, evenly chosen: the share of predictive draws below what was seen, and the CRPS.

    The shares, ties by half, are uniform where predictions are calibrated.
    """
    first = data if data.size <= SEEN else data.take(np.linspace(0, data.size - 1, SEEN).astype(int))
    params, weights = posterior.spread(DRAWN)
    each = -(-DRAWN // len(weights))  # of a point, or of few draws, several data each
    params, rows = (jax.tree.map(jnp.asarray, a) for a in (params, first.rows))
    drawn = np.asarray(_drawn(posterior.predictive, each, params, rows), np.float64)
    weights, y = np.repeat(weights, each) / each, np.asarray(first.y)
    below = np.tensordot(weights, (drawn < y) + 0.5 * (drawn == y), 1)
    return below, calibration.crps_draws(y, drawn, weights)


@functools.partial(jax.jit, static_argnames=("model", "each"))
def _drawn(model: Model, each: int, params: Any, rows: Any) -> jax.Array:
    """(s × each, n, ...) data of every row, ``each`` from every draw of the parameters."""
    n = jax.tree.leaves(rows)[0].shape[0]

    def of_draw(draw: Any) -> jax.Array:
        theta, key = draw

        def sample(x: Any, k: jax.Array) -> jax.Array:
            return model.datum(theta, x).sample(k, (each,))

        return jax.vmap(sample, out_axes=1)(rows[1], jax.random.split(key, n))

    keys = jax.random.split(jax.random.key(0), jax.tree.leaves(params)[0].shape[0])
    drawn = jax.lax.map(of_draw, (params, keys), batch_size=16)  # (s, each, n, ...)
    return drawn.reshape(-1, *drawn.shape[2:])


def interesting(posterior: Any) -> list[int]:
    """The parameters that are known least, by R-hat and effective draws, then the first; not a network's weights."""
    first = np.flatnonzero(~weights_of(posterior.model)).tolist()
    if posterior.unconstrained is None or posterior.fitted is not None or posterior.method.independent:
        return first[:SHOWN]
    seen, enough = posterior.diagnosed, 100 * posterior.chains
    least = np.nan_to_num(np.minimum(seen.bulk, seen.tail) / enough, nan=0.0)
    trouble = np.maximum(1 / np.maximum(least, 1e-6), 100 * (np.nan_to_num(seen.rhat, nan=1.0, posinf=1e6) - 1))
    worst = [i for i in np.argsort(-trouble, kind="stable").tolist() if i in set(first)]
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
