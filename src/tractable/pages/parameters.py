"""The sections on the parameters of any model: their numbers, marginals, chains, and predicted bias."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from tractable.core.model import Model
from tractable.pages import plots
from tractable.pages.sections import Cell, Section, Table, decimals, largest
from tractable.posterior.posterior import Posterior
from tractable.tables.effects import SCALES, effects, parts_of
from tractable.tables.encoder import Encoder, encode
from tractable.tables.targets import PLAIN

SHOWN = 6  # the largest number of parameters with figures
PAIRED = 4  # the largest number of parameters in the figure of pairs
LINES = 40  # the largest number of lines in a chart
CORRECTED = 4000  # the largest number of draws from which the predicted bias is removed for a figure
MANY = 40  # the largest number of a network's weights, or of groups' effects, that are listed one by one
FEWEST = 20  # the smallest number of draws from which a density is drawn
HEADS = {"mcse_mean": "MCSE", "ess_bulk": "bulk ESS", "ess_tail": "tail ESS", "r_hat": "R-hat"}
POINT_HEADS = {"mean": "estimate", "sd": "standard error"}


def kept_by(posterior: Posterior) -> tuple[str, str]:
    """The words for what a run stores (draws, members or a point), and their number."""
    many = f"{posterior.chains} × {posterior.count:,}"
    if posterior.is_point:
        return "result", "one point"
    if not is_drawn(posterior):
        return "chains × draws", "moments only"
    if posterior.fitted is not None:
        return "draws of q", f"{posterior.count:,}"
    if is_ensemble(posterior):
        return ("members × draws", many) if posterior.count > 1 else ("members", str(posterior.chains))
    return "chains × draws", many


def is_drawn(posterior: Posterior) -> bool:
    """Whether there are draws."""
    return posterior.unconstrained is not None


def is_ordered(posterior: Posterior) -> bool:
    """Whether there are chains, in which each draw depends on the previous one."""
    return is_drawn(posterior) and posterior.fitted is None and not posterior.method.independent


def is_ensemble(posterior: Posterior) -> bool:
    """Whether the chains are the members of an ensemble: separate solutions, each with an objective of its own."""
    return "objective 0" in posterior.found


def sections(posterior: Posterior) -> list[Section]:
    """The figures of the parameters, which depend on whether the posterior is a point, chains or independent draws."""
    if not is_drawn(posterior):
        return estimates(posterior)
    return chains(posterior) if is_ordered(posterior) else marginals(posterior)


def listed(model: Model) -> np.ndarray:
    """Whether each of the model's numbers (of its table's view, if it has one) is shown by itself, (m,).

    All are, except the weights of a network and the effects of groups if there are many.
    """
    if model.table is not None and model.table.view is not None:
        return few_groups(model.table.view.names)
    leaves = jax.tree_util.tree_flatten_with_path(jax.eval_shape(model.example, jax.random.key(0)))[0]
    inside = np.concatenate([np.full(leaf.size, is_weight(model, path)) for path, leaf in leaves])
    if model.labels:
        return few_groups(model.names)
    return ~inside if inside.sum() > MANY else np.ones_like(inside)


def few_groups(names: Sequence[str]) -> np.ndarray:
    """Whether each name is no effect of a group; all are true if there are few groups."""
    inside = np.array([name.endswith("]") and "|" in name.split("[")[0] for name in names], bool)
    return ~inside if inside.sum() > MANY else np.ones_like(inside)


def is_weight(model: Model, path: tuple) -> bool:
    """Whether the parameter at this path of the pytree is a network's weights."""
    return bool(model.network_weights) and getattr(path[0], "key", None) in model.network_weights


def summary(posterior: Posterior) -> pd.DataFrame:
    """``posterior.summary()``, without Monte-Carlo columns if the draws form no chain, where these mean nothing."""
    table = posterior.summary()
    return table if is_ordered(posterior) else table.drop(columns=list(HEADS), errors="ignore")


def of_groups(posterior: Posterior) -> list[Section]:
    """A table of the mean and sd of each group's own parameters; nothing for models without groups."""
    data = posterior.data
    known = posterior.is_point or (is_drawn(posterior) and posterior.count > 0)
    if data is None or data.labels is None or not known:
        return []
    moments = posterior.local(data.labels[:MANY])
    form = f".{decimals(moments.to_numpy()[:, 1::2].ravel())}f"
    rows = [[str(label), *(Cell(float(value), form) for value in moments.loc[label])] for label in moments.index]
    heads = ["group", *(" ".join(column) for column in moments.columns)]
    listed = f" Shown are the first {MANY} of {data.size:,}; posterior.local() gives all." if data.size > MANY else ""
    return [Section("Groups", [Table(heads, rows)], f"The parameters of each group, given all rows.{listed}")]


def numbers(posterior: Posterior) -> Section:
    """A table of the parameters."""
    if posterior.unconstrained is not None and posterior.count == 0:
        return Section("Parameters", ["The run was stopped before its first draw."])
    table, by_name = summary(posterior), listed(posterior.model)
    by_name = np.append(by_name, np.ones(len(table) - len(by_name), bool))  # derived quantities are listed too
    table, inside = table.loc[by_name], int(np.sum(~by_name))
    of_network = "weights of a network, which are shown by layer below"
    what = of_network if posterior.model.network_weights else "effects of groups"
    notes = [f"There are also {inside:,} {what}." if len(table) else f"There are {inside:,} {what}."] * bool(inside)
    if not len(table):
        return Section("Parameters", notes)
    sizes = np.asarray(table["sd" if np.isfinite(table["sd"]).any() else "mean"], float)
    places, enough = decimals(np.abs(sizes)), 100 * posterior.chains
    forms = {"mcse_mean": f".{places + 1}f", "ess_bulk": ",.0f", "ess_tail": ",.0f", "r_hat": ".3f"}

    def cell(value: float, column: str, own: str | None) -> Cell:
        poor = value > 1.01 if column == "r_hat" else column.startswith("ess") and value < enough
        form = own if own is None and column == "mcse_mean" else forms.get(column, own)
        return Cell(float(value), form, poor=bool(poor))

    rows = []
    for name, values in table.to_dict("index").items():
        # An sd that is too small for the common number of places gets a format of its own.
        own = None if values["sd"] < 10.0**-places else f".{places}f"
        rows.append([Cell(str(name)), *(cell(value, str(column), own) for column, value in values.items())])
    heads = HEADS | (POINT_HEADS if posterior.is_point else {})
    columns = ["parameter", *(heads.get(str(c), str(c)) for c in table.columns)]
    shown = Table(columns, rows, layout="" if posterior.is_point else "wide")
    note = "Numbers are in the units of the table; the intercept is for a row of mean inputs."
    note = "" if posterior.view is None else note
    return Section("Parameters", [shown, *notes], note)


def effects_table(effects: pd.DataFrame, encoder: Encoder) -> Section:
    """A table of each input's effect, in the table's units."""
    family = encoder.target.family
    unit = f"units of {encoder.target.name}" if family in PLAIN else f"the {SCALES[family]}"
    if encoder.others:
        unit = "units of its target" if family == "normal" else unit
    elif family == "categorical" and encoder.formula is not None:
        unit = f"{unit} against {encoder.target.classes[0]}"

    def row(name: str, values: dict) -> list[Cell]:
        size = values["sd"] if values["sd"] > 0 else abs(values["mean"])  # NaN > 0 is false
        form = f".{max(0, 1 - math.floor(math.log10(size))) if size > 0 else 2}f"
        return [Cell(name), *(Cell(float(value), form) for value in values.values())]

    rows = [row(str(name), values) for name, values in effects.to_dict("index").items()]
    other = "the mean of all levels" if encoder.formula is None else "the level that is not listed"
    note = f"The effect of one more unit, of True instead of False, or of a level compared with {other}; in "
    return Section("Effects", [Table(["input", *map(str, effects.columns)], rows)], f"{note}{unit}.")


def effects_sections(posterior: Posterior, encoder: Encoder | None) -> list[Section]:
    """The effects as a table, and as a figure in which the effects of numeric inputs are those of one sd."""
    table = effects(posterior, encoder)
    if table is None or encoder is None:
        return []
    shown = [effects_table(table, encoder)]
    if "5%" in table:
        if encoder.formula is not None:
            rows = encode(encoder, encoder.formula.table)
            sds, spread = dict(zip(encoder.features, rows.x.std(0), strict=True)), np.asarray(rows.y).std(0)
        else:
            numeric = [column.effects() for column in encoder.columns if column.kind == "number"]
            sds, spread = {str(names[0]): 1 / float(rows[0, 0]) for names, rows in numeric}, encoder.units[0]
        parts, spans = parts_of(encoder), np.ones(len(table))
        for i, name in enumerate(map(str, table.index)):
            part = next(part for part in parts if name.startswith(part))
            spans[i] = sds.get(name.removeprefix(part), 1.0)
            if encoder.others and encoder.target.family == "normal":  # each target has units of its own
                spans[i] /= np.atleast_1d(spread)[parts.index(part)]
        middle, low, high = (spans * table[c].to_numpy() for c in ("mean", "5%", "95%"))
        chosen, fewer = largest(np.abs(middle) / np.maximum(high - low, 1e-300), LINES, "furthest from 0")
        drawn = plots.forest([str(table.index[i]) for i in chosen], middle[chosen], low[chosen], high[chosen])
        note = "To compare inputs, the effect of a number is shown for one more sd; the other effects are as in the "
        note += "table. Bars hold the middle 90 %."
        if encoder.others and encoder.target.family == "normal":
            note += " All effects are in sds of their target."
        shown.append(Section("", [drawn], note + fewer, "chart"))
    return shown


def estimates(posterior: Posterior) -> list[Section]:
    """A figure of estimates with intervals, for posteriors without draws."""
    others = listed(posterior.model)
    if not others.any():
        return []
    table = posterior.summary(derived=False)[others]
    labels = list(map(str, table.index))
    mean, sd = (np.asarray(table[c], float) for c in ("mean", "sd"))
    shown, fewer = largest(np.nan_to_num(np.abs(mean) / np.where(sd > 0, sd, 1.0)), LINES, "furthest from 0")
    half = 1.645 * np.nan_to_num(sd[shown])
    drawn = plots.forest([labels[i] for i in shown], mean[shown], mean[shown] - half, mean[shown] + half)
    note = "Bars extend 1.645 standard errors to both sides, which is a 90 % interval if the posterior is normal."
    if posterior.is_point and not np.isfinite(sd).any():
        note = "Standard errors are not known."
    return [Section("Estimates", [drawn], note + fewer, "chart")]


def chains(posterior: Posterior) -> list[Section]:
    """Figures of the marginal, the trace and the ranks of each interesting parameter; then pairs of parameters."""
    read, many, chosen = posterior.readings, posterior.chains > 1, interesting(posterior)
    if not chosen:
        return []
    values, labels = np.asarray(posterior.values if read.values is None else read.values, float), read.names
    if values.shape[1] < 2 or read.diagnosed is None:
        return [Section("Chains", note="Too few draws to show.")]
    weights = np.ones(values.shape[:2]) if posterior.weights is None else posterior.weights
    counted = values[:, weights.min(0) > 0] if np.sum(weights.min(0) > 0) > 1 else values
    diverged = np.asarray(posterior.info.get("divergent", np.zeros(values.shape[:2]))) > 0
    pooled, unbiased = resampled(values, weights), without_bias(posterior, weights)
    table, bulk = posterior.summary(), read.diagnosed.bulk
    parts = []
    for i in chosen:
        mean, _, low, high = table.iloc[i, :4]
        less_biased, heads = None if unbiased is None else unbiased[:, i], i == chosen[0]
        drawn = [
            plots.marginal(pooled[:, i], mean, (low, high), less_biased, caption="Marginal" * heads),
            plots.trace(values[:, :, i], diverged, caption="Trace" * heads),
            plots.ranks(counted[:, :, i], bulk[i], caption="Ranks" * heads)
            if many
            else plots.autocorrelation(counted[0, :, i], caption="Autocorrelation" * heads),
        ]
        parts.append(Section(labels[i], drawn, layout="panels"))
    dashed = "" if unbiased is None else "; dashed: the density without the predicted bias"
    ticks = "; ticks show where a trajectory diverged" if diverged.any() else ""
    note = f"Marginal: density, mean and 90 % interval{dashed}. Trace: one colour for each chain{ticks}."
    if many:
        note += " Ranks: the ECDF (empirical distribution function) of a chain's ranks among all draws, minus the "
        note += "uniform one; if the chains agree, it stays in the band."
    note += " The parameters with the poorest diagnostics come first." if len(labels) > 1 else ""
    flat = diverged.ravel() if np.ptp(weights) == 0 else np.zeros(len(pooled), bool)
    return [Section("Chains", parts, note), *pairs(pooled, chosen, labels, flat)]


def marginals(posterior: Posterior) -> list[Section]:
    """Figures of marginals and pairs, for draws without an order: those of a fitted q or of an ensemble's members."""
    chosen, labels = interesting(posterior), posterior.readings.names
    if not chosen or posterior.readings.values is None:
        return []
    pooled = np.asarray(posterior.readings.values, float).reshape(-1, len(labels))
    if len(pooled) < FEWEST:
        return []
    table = posterior.summary()
    drawn = [
        plots.marginal(pooled[:, i], table.iloc[i, 0], tuple(table.iloc[i, 2:4]), caption=labels[i]) for i in chosen
    ]
    whose = "the members' mixture" if is_ensemble(posterior) else "q" if posterior.fitted is not None else "the draws"
    note = f"Density, mean and 90 % interval of {whose}."
    if len(chosen) < np.sum(listed(posterior.model)):
        note += f" Only the first {len(chosen)} parameters are shown."
    return [Section("Marginals", drawn, note, "panels"), *pairs(pooled, chosen, labels)]


def pairs(
    pooled: np.ndarray, chosen: list[int], labels: list[str], diverged: np.ndarray | None = None
) -> list[Section]:
    """Scatter plots of every pair of the first ``PAIRED`` chosen parameters."""
    few = chosen[:PAIRED]
    if len(few) < 2:
        return []
    drawn = plots.pairs(pooled[:, few], [labels[i] for i in few], diverged)
    return [Section("Pairs", [drawn], layout="chart pairs")]


def climb(posterior: Posterior) -> list[Section]:
    """The figure of the objective over the steps, for methods that maximise an objective."""
    curve = posterior.curve
    if curve is None or np.isfinite(curve.objective).sum() < 2:
        return []
    note = "The objective over the steps, with a line for each start. If the objective is noisy, a thick line is its "
    note += "running mean; otherwise a dot is its last value."
    if len(curve.held_out) > 1:
        note += " On the right: the mean log predictive density of rows that were not used in the fit."
    unit, size = (" per row", posterior.rows) if posterior.rows else ("", 1)
    return [Section("Climb", [plots.climb(curve, unit, size)], note, "chart")]


def bias(posterior: Posterior) -> list[Section]:
    """The figure of the predicted inflation of every marginal sd, for stochastic-gradient samplers."""
    predicted = posterior.predicted_bias if posterior.count else None
    if predicted is None:
        return []
    shares, names = np.asarray(predicted.inflation, float), np.array(posterior.model.space.names)
    shown = listed(posterior.model) if posterior.view is None else few_groups(posterior.names)
    if len(shown) == len(shares):
        shares, names = shares[shown], names[shown]
    if not len(shares):
        return []
    chosen, fewer = largest(np.where(np.isfinite(shares), np.abs(shares), np.inf), LINES)
    tolerance = posterior.settings["bias_tolerance"]
    note = (
        "The step size and the noise of the gradient inflate the marginal sds of unconstrained parameters; shown is "
        f"the inflation that theory predicts. Shaded: the tolerance of {100 * tolerance:g} %.{fewer}"
    )
    return [
        Section("Predicted bias", [plots.inflation(names[chosen].tolist(), shares[chosen], tolerance)], note, "chart")
    ]


def interesting(posterior: Posterior) -> list[int]:
    """The indices of the parameters with figures; a network's weights are not among them.

    First come those with the poorest R-hat or numbers of effective draws, and then the first of the other parameters.
    """
    first = np.flatnonzero(listed(posterior.model)).tolist()
    seen, enough = posterior.readings.diagnosed, 100 * posterior.chains
    if not is_ordered(posterior) or seen is None:
        return first[:SHOWN]
    least = np.nan_to_num(np.minimum(seen.bulk, seen.tail) / enough, nan=0.0)
    trouble = np.maximum(1 / np.maximum(least, 1e-6), 100 * (np.nan_to_num(seen.rhat, nan=1.0, posinf=1e6) - 1))
    worst = [i for i in np.argsort(-trouble, kind="stable").tolist() if i in set(first)]
    poor = max(2, int(np.sum(trouble > 1)))
    return list(dict.fromkeys(worst[:poor] + first))[:SHOWN]


def resampled(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted draws (chain, draw, k), resampled as draws (n, k) of equal weight."""
    flat, mass = values.reshape(-1, values.shape[-1]), weights.ravel()
    if np.ptp(mass) == 0:
        return flat
    at = (np.arange(len(flat)) + 0.5) / len(flat)
    return flat[np.minimum(np.searchsorted(np.cumsum(mass) / mass.sum(), at), len(flat) - 1)]


def without_bias(posterior: Posterior, weights: np.ndarray) -> np.ndarray | None:
    """Draws (n, k) that are shrunk towards their unconstrained mean by the predicted inflation."""
    predicted = posterior.predicted_bias
    if predicted is None or not np.all(np.isfinite(predicted.inflation)):
        return None
    flat = resampled(np.asarray(posterior.unconstrained, float), weights)
    flat = flat[:: -(-len(flat) // CORRECTED)]
    centre = flat.mean(0)
    moved = jnp.asarray(centre + (flat - centre) / (1 + predicted.inflation))
    values = np.asarray(jax.vmap(posterior.model.values)(moved))
    return values if posterior.view is None else posterior.view.values(values)
