"""The sections on the parameters of any model: their numbers, marginals, chains, and predicted bias."""

from collections.abc import Sequence

import jax
import numpy as np
import pandas as pd

from tractable.core.model import Model
from tractable.pages import plots
from tractable.pages.sections import Cell, Section, Table, decimals, text
from tractable.posterior.posterior import Posterior

SHOWN = 6  # the largest number of parameters with figures
PAIRED = 4  # the largest number of parameters in the figure of pairs
MANY = 40  # the largest number of a network's weights, or of groups' effects, that are listed one by one
FEWEST = 20  # the smallest number of draws from which a density is drawn
HEADS = {"mcse_mean": "MCSE", "ess_bulk": "bulk ESS", "ess_tail": "tail ESS", "r_hat": "R-hat"}
POINT_HEADS = {"mean": "estimate", "sd": "standard error"}


def describe_draws(posterior: Posterior) -> tuple[str, str]:
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


def listed_mask(model: Model) -> np.ndarray:
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
    table, by_name = summary(posterior), listed_mask(posterior.model)
    by_name = np.append(by_name, np.ones(len(table) - len(by_name), bool))  # derived quantities are listed too
    table, inside = table.loc[by_name], int(np.sum(~by_name))
    of_network = "weights of a network, which are shown by layer"
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
    note = "Numbers are in the units of the table; the intercept is for a row of mean inputs."
    note = "" if posterior.view is None else note
    return Section("Parameters", [Table(columns, rows), *notes], note)


def sentence(posterior: Posterior) -> str:
    """The first parameter in words, for models without a table; empty if single parameters say little."""
    if not listed_mask(posterior.model)[0] or not (posterior.is_point or posterior.count or not is_drawn(posterior)):
        return ""
    name, values = next(iter(posterior.summary(derived=False).to_dict("index").items()))
    places = f".{decimals(np.array([values['sd']]))}f" if values["sd"] > 0 else None
    mean, *ends = (text(values[key], places, "−") for key in ("mean", "5%", "95%") if key in values)
    return f"{name} is about {mean}" + (f" (90 % of the posterior: {ends[0]} to {ends[1]})." if ends else ".")


def figures(posterior: Posterior) -> list[Section]:
    """Figures of some parameters: marginals; for chains also traces and ranks; and pairs."""
    read, chosen = posterior.readings, interesting(posterior)
    if not chosen or read.values is None or read.diagnosed is None or np.prod(read.values.shape[:2]) < FEWEST:
        return []
    values, ordered = np.asarray(read.values, float), is_ordered(posterior)
    weights = np.ones(values.shape[:2]) if posterior.weights is None else posterior.weights
    diverged = np.asarray(posterior.info.get("divergent", np.zeros(values.shape[:2]))) > 0
    pooled, table, drawn = resample(values, weights), posterior.summary(), []
    for i in chosen:
        mean, _, low, high = table.iloc[i, :4]
        drawn.append(plots.marginal(pooled[:, i], mean, (low, high), caption=read.names[i]))
        if ordered:
            drawn.append(plots.trace(values[:, :, i], diverged, caption="Trace"))
    whose = "the members' mixture" if is_ensemble(posterior) else "q" if posterior.fitted is not None else "the draws"
    note = f"Density, mean and 90 % interval of {whose}."
    if ordered:
        note += " Trace: one colour for each chain" + ("; ticks show divergences." if diverged.any() else ".")
        note += " Parameters with the poorest diagnostics come first."
    flat = diverged.ravel() if np.ptp(weights) == 0 else np.zeros(len(pooled), bool)
    first = chosen[:PAIRED]
    pairs = [
        plots.scatter(pooled[:, i], pooled[:, j], (read.names[i], read.names[j]), flat)
        for at, i in enumerate(first) for j in first[at + 1 :]
    ]  # fmt: skip
    return [Section("Marginals", drawn, note), *([Section("Pairs", pairs)] if pairs else [])]


def climb(posterior: Posterior) -> list[Section]:
    """The figures of the objective and of held-out scores over the steps, for methods that maximise an objective."""
    curve = posterior.curve
    if curve is None or np.isfinite(curve.objective).sum() < 2:
        return []
    note = "The objective over the steps, with a line for each start; a thick line is the running mean of a noisy one."
    unit, size = (" per row", posterior.rows) if posterior.rows else ("", 1)
    stored = posterior.found.get("held-out best")
    drawn = [plots.climb(curve.steps, curve.objective / size, f"objective, nats{unit}", stored)]
    if len(curve.held_out) > 1:
        drawn.append(plots.climb(curve.held_out_steps, curve.held_out[None], "held-out rows, nats per row", stored))
        note += (
            f" The result is the state after {stored:,} steps (dashed), the last whose held-out score is not clearly "
        )
        note += "below the best."
    return [Section("Climb", drawn, note)]


def interesting(posterior: Posterior) -> list[int]:
    """The indices of the parameters with figures; a network's weights are not among them.

    First come those with the poorest R-hat or numbers of effective draws, and then the first of the other parameters.
    """
    first = np.flatnonzero(listed_mask(posterior.model)).tolist()
    seen, enough = posterior.readings.diagnosed, 100 * posterior.chains
    if not is_ordered(posterior) or seen is None:
        return first[:SHOWN]
    least = np.nan_to_num(np.minimum(seen.bulk, seen.tail) / enough, nan=0.0)
    trouble = np.maximum(1 / np.maximum(least, 1e-6), 100 * (np.nan_to_num(seen.rhat, nan=1.0, posinf=1e6) - 1))
    worst = [i for i in np.argsort(-trouble, kind="stable").tolist() if i in set(first)]
    poor = max(2, int(np.sum(trouble > 1)))
    return list(dict.fromkeys(worst[:poor] + first))[:SHOWN]


def resample(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted draws (chain, draw, k), resampled as draws (n, k) of equal weight."""
    flat, mass = values.reshape(-1, values.shape[-1]), weights.ravel()
    if np.ptp(mass) == 0:
        return flat
    at = (np.arange(len(flat)) + 0.5) / len(flat)
    return flat[np.minimum(np.searchsorted(np.cumsum(mass) / mass.sum(), at), len(flat) - 1)]
