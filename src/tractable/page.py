"""A report as one HTML file that needs nothing else: no network, no script."""

import datetime
import functools
import importlib.metadata
import math
import pathlib
import platform
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable import plots
from tractable.core import Data, Model, as_data
from tractable.report import number
from tractable.tools.errors import DataError
from tractable.tools.tables import Encoder

MEANING = {
    "trust": "Nothing speaks against using this result.",
    "caution": "Usable, with what the checks say in mind.",
    "reject": "Do not use this before its cause is mended.",
    "failed": "There is no result.",
}
SIGNS = {"trust": "M3 8.5l3.3 3.3L13 4.6", "caution": "M8 3v6M8 12.4v.2"}  # else a cross
CROSS = "M4 4l8 8M12 4l-8 8"
SHOWN = 6  # parameters with figures
PAIRED = 4
LINES = 40  # of a chart
TALL = 30  # rows of a table before it scrolls
CORRECTED = 4000  # draws of a marginal with the bias taken off
SEEN = 2000  # held-out rows whose integral transforms are drawn


def write_page(
    folder: str | pathlib.Path,
    posterior: Any,
    *,
    title: str,
    held_out: Any = None,
    encoder: Encoder | None = None,
) -> pathlib.Path:
    """Write ``report.html``: the verdict, why, the settings, the numbers and figures of a posterior.

    Args:
        folder: made where there is none.
        posterior: from ``infer``.
        title: of the page.
        held_out: Data, or arrays, that inference did not see; predictions of them are judged.
        encoder: of a table; weights are then shown with their columns' names, errors in the target's units.

    Returns:
        The file's path.
    """
    labels = named(posterior.names, encoder)
    chosen = interesting(posterior)
    parts = [
        section("Why", checks_table(posterior.report().checks)),
        section("Parameters", summary_table(posterior, encoder)),
        point_section(posterior, labels) if posterior.unconstrained is None else chains_section(posterior, labels, chosen),
        bias_section(posterior),
        "" if held_out is None else held_out_section(posterior, as_data(held_out), encoder),
        section("Settings", settings_table(posterior)),
    ]  # fmt: skip
    return write(folder, title, header(posterior, title) + "".join(parts))


def write_comparison_page(folder: str | pathlib.Path, comparison: Any, *, title: str) -> pathlib.Path:
    """Write ``report.html`` of methods side by side: the table, marginals over one another, every method's checks."""
    from tractable.compare import shown as as_text

    table = as_text(comparison.table)
    body = f'<p class="eyebrow">tractable · {len(table)} methods compared</p><h1>{escape(title)}</h1>'
    rows = []
    for label, row in table.iterrows():
        cells = "".join(
            f'<td class="text">{badge(v)}</td>' if k == "verdict" else f"<td>{typeset(v)}</td>" for k, v in row.items()
        )
        rows.append(f'<tr><th scope="row">{escape(str(label))}</th>{cells}</tr>')
    body += section("Side by side", grid(["", *table.columns], rows, "wide", left=("verdict",)), TABLE_NOTE)
    if comparison.failures:
        said = "".join(f"<p><b>{escape(k)}</b> – {escape(str(v))}</p>" for k, v in comparison.failures.items())
        body += section("What failed", said)
    if comparison.posteriors:
        body += section("Marginals", *overlays(comparison))
        body += section("Every method's checks", "".join(details(k, p) for k, p in comparison.posteriors.items()))
    return write(folder, title, body)


TABLE_NOTE = (
    "Distances are from the reference: the largest error of a mean in its standard deviations, and the ratio of "
    "standard deviations furthest from 1. Held-out is the mean log predictive density of a datum, in nats."
)


def write(folder: str | pathlib.Path, title: str, body: str) -> pathlib.Path:
    """The page around its body."""
    style = pathlib.Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    version, today = importlib.metadata.version("tractable"), datetime.date.today().isoformat()
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style></head>\n<body><main>\n{body}\n"
        f"<footer>Written by tractable {version} on {today}.</footer></main></body></html>\n"
    )
    path = pathlib.Path(folder) / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def header(posterior: Any, title: str) -> str:
    """Title, verdict, and the few numbers that say how large this was."""
    verdict = posterior.report().verdict
    what = "one point" if posterior.is_point else f"{posterior.chains} × {posterior.count:,}"
    if posterior.unconstrained is None and not posterior.is_point:
        what = "moments only"
    facts = {"rows of data": f"{posterior.rows:,}", "parameters": f"{len(posterior.names):,}",
             "kept" if posterior.is_point else "chains × draws": what, "wall time": duration(sum(posterior.seconds.values()))}  # fmt: skip
    cells = "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts.items())
    stopped = " The run was stopped before its end." if posterior.interrupted else ""
    return (
        f'<header><p class="eyebrow">tractable · {escape(type(posterior.method).__name__)}</p>'
        f'<h1>{escape(title)}</h1><div class="verdict {verdict}">{badge(verdict, plain=True)}'
        f'<p>{MEANING[verdict]}{stopped}</p></div><dl class="facts">{cells}</dl></header>'
    )


def checks_table(checks: Any) -> str:
    rows = [
        f'<tr><td class="text">{badge(c.verdict)}</td><th scope="row">{escape(c.name)}</th>'
        f'<td>{shown(c.value)}</td><td class="text">{escape(c.sentence)}</td></tr>'
        for c in checks
    ]
    return grid(["verdict", "check", "value", "what it means"], rows, "wide checks", left=("verdict", "check", "what it means"))


def settings_table(posterior: Any) -> str:
    """What would be needed to do it again."""
    versions = {p: importlib.metadata.version(p) for p in ("tractable", "jax", "numpyro", "numpy")}
    given = posterior.settings
    run = {"data": "none" if posterior.data is None else f"{posterior.rows:,} rows", "seed": given.pop("seed"),
           "precision": jnp.result_type(float).name, "device": jax.default_backend()}  # fmt: skip
    found = {k.replace("_", " "): v for k, v in posterior.found.items() if isinstance(v, int | float | str)}
    blocks = {
        "Method": given, "Found on the way": found, "Run": run,
        "Wall time": {k: duration(v) for k, v in posterior.seconds.items()},
        "Versions": versions | {"python": platform.python_version()},
    }  # fmt: skip
    lists = [
        f"<section><h3>{name}</h3><dl>"
        + "".join(f"<dt>{escape(str(k))}</dt><dd>{shown(v)}</dd>" for k, v in fields.items())
        + "</dl></section>"
        for name, fields in blocks.items()
        if fields
    ]
    return f'<div class="settings">{"".join(lists)}</div>'


def summary_table(posterior: Any, encoder: Encoder | None) -> str:
    table = posterior.summary()
    sd = np.asarray(table["sd"], float)
    places = decimals(sd if np.isfinite(sd).any() else np.abs(np.asarray(table["mean"], float)))
    heads = {"mcse_mean": "MCSE", "ess_bulk": "bulk ESS", "ess_tail": "tail ESS", "r_hat": "R-hat"}
    if posterior.is_point:
        heads |= {"mean": "estimate", "sd": "standard error"}

    def cell(column: str, value: float) -> str:
        poor = column == "r_hat" and value > 1.01 or column.startswith("ess") and value < 100 * posterior.chains
        if column == "mcse_mean":
            text = shown(value, f".{places + 1}f")
        elif column == "r_hat":
            text = shown(value, ".3f")
        else:
            text = shown(value, ",.0f" if column.startswith("ess") else f".{places}f", places)
        return f'<td class="flag">{text}</td>' if poor else f"<td>{text}</td>"

    rows = []
    for name, (_, values) in zip(posterior.names, table.iterrows(), strict=True):
        cells = "".join(cell(str(c), float(v)) for c, v in values.items())
        rows.append(f'<tr><th scope="row">{escape(name)}{of(feature(name, encoder))}</th>{cells}</tr>')
    return grid(["parameter", *(heads.get(str(c), str(c)) for c in table.columns)], rows, "wide")


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
    return section("Estimates", f'<figure class="chart">{drawn}</figure>', bars + first_of(kept, mean, "furthest from 0"))


def chains_section(posterior: Any, labels: list[str], chosen: list[int]) -> str:
    """For each interesting parameter its marginal, trace and ranks; then pairs."""
    values = np.asarray(posterior.values, float)
    if values.shape[1] < 2:
        return ""
    weights = np.ones(values.shape[:2]) if posterior.weights is None else posterior.weights
    counted = values[:, weights.min(0) > 0] if (weights.min(0) > 0).sum() > 1 else values
    diverged = posterior.info.get("divergent")
    diverged = None if diverged is None else np.asarray(diverged) > 0
    pooled = resampled(values, weights)
    right = without_bias(posterior, weights)
    bulk, rows = posterior.diagnosed.bulk, ""
    table = posterior.summary()
    for n, i in enumerate(chosen):
        last = plots.ranks(counted[:, :, i], bulk[i]) if posterior.chains > 1 else plots.autocorrelation(counted[0, :, i])
        panels = [
            plots.marginal(pooled[:, i], table.iloc[i, 0], tuple(table.iloc[i, 2:4]), None if right is None else right[:, i]),
            plots.trace(values[:, :, i], diverged),
            last,
        ]  # fmt: skip
        heads = ("Marginal", "Trace", "Ranks" if posterior.chains > 1 else "Autocorrelation")
        rows += f"<h3>{escape(labels[i])}</h3>" + row(panels, heads if n == 0 else ("",) * 3)
    note = "Marginal: density, mean and 90 % interval" + ("" if right is None else "; dashed, with the predicted bias taken off")
    note += ". Trace: one colour a chain" + ("; ticks where a trajectory diverged" if diverged is not None and diverged.any() else "") + "."
    note += " Ranks: how far a chain runs ahead of its even share; inside the band where chains agree." if posterior.chains > 1 else ""
    out = section("Chains", rows, note + " Parameters known least come first." * (len(values[0, 0]) > 1))
    few = chosen[:PAIRED]
    if len(few) > 1:
        flat = None if diverged is None else diverged.reshape(-1)
        drawn = plots.pairs(values.reshape(-1, values.shape[-1])[:, few] if posterior.weights is None else pooled[:, few],
                            [labels[i] for i in few], flat if posterior.weights is None else None)  # fmt: skip
        out += section("Pairs", f'<figure class="chart pairs">{drawn}</figure>')
    return out


def bias_section(posterior: Any) -> str:
    """The predicted inflation of every marginal sd of a stochastic-gradient sampler."""
    predicted = posterior.predicted_bias
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
    return section("Predicted bias", f'<figure class="chart">{drawn}</figure>', note + first_of(kept, shares, "largest"))


def held_out_section(posterior: Any, data: Data, encoder: Encoder | None) -> str:
    """How predictions of data that inference did not see turned out."""
    if posterior.unconstrained is None and not posterior.is_point:
        return ""
    facts = {"rows": f"{data.size:,}"}
    target = None if encoder is None else encoder.target
    unit = target.sd if target is not None and target.family == "normal" else 1.0
    density = posterior.log_predictive(data) - math.log(unit)
    error = np.std(density) / math.sqrt(max(data.size, 1))
    facts["mean log predictive density"] = f"{shown(float(density.mean()), '.3f')}{of(f'± {error:.2g} nats')}"
    try:
        told = posterior.predict(data.given)
        y = np.asarray(data.y, float)
    except (DataError, TypeError, ValueError):
        return section("Held-out data", described(facts))
    if told.probabilities is not None:
        probability = np.broadcast_to(told.probabilities, (data.size, told.probabilities.shape[-1]))
        codes = y.astype(int)
        facts["accuracy"] = f"{100 * np.mean(probability.argmax(-1) == codes):.1f} %"
        facts["commonest class"] = f"{100 * np.bincount(codes).max() / data.size:.1f} %"
        seen = np.eye(probability.shape[-1])[codes]
        two = probability.shape[-1] == 2
        drawn = plots.reliability(*((a[:, 1] if two else a.ravel()) for a in (probability, seen)))
        which = "of class 1" if two else "of every class"
        if two and target is not None and target.classes:
            which = f"of {target.classes[1]}"
        note = f"How often it happened against the probability {which} given; on the line where predictions are calibrated."
        return section("Held-out data", described(facts) + panels([drawn], [note]))
    mean = np.broadcast_to(told.mean, y.shape)
    facts["RMSE"] = f"{shown(unit * float(np.sqrt(np.mean((y - mean) ** 2))))}{of(f'sd of the data {shown(unit * float(y.std()))}')}"
    below = transforms(posterior, data)
    rows = []
    for level in (0.5, 0.9, 0.95):
        inside = float(np.mean(np.abs(below - 0.5) <= level / 2))
        spread = math.sqrt(level * (1 - level) / max(below.size, 1))
        rows.append(f'<tr><th scope="row">{100 * level:g} %</th><td>{100 * inside:.1f} %</td><td>± {100 * spread:.1f}</td></tr>')
    table = "<h3>Coverage</h3>" + grid(["interval", "held", "error expected"], rows)
    note = "Where what was seen fell within its prediction: level, and mostly in the band, where predictions are calibrated."
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


def overlays(comparison: Any) -> tuple[str, str]:
    """Panels of the parameters on which methods differ most, and their caption."""
    from tractable.compare import interesting as differing

    reference = comparison.reference
    others = {k: p for k, p in comparison.posteriors.items() if reference is None or p is not reference.posterior}
    names = next(iter(comparison.posteriors.values())).names
    tables = {k: p.summary() for k, p in others.items()}
    drawn, heads = [], []
    for i in sorted(differing(comparison, SHOWN)):
        lines = {}
        for label, posterior in others.items():
            mean, sd = tables[label].iloc[i, :2]
            bounds, draws = (mean - 1.645 * np.nan_to_num(sd), mean + 1.645 * np.nan_to_num(sd)), None
            if posterior.unconstrained is not None:
                weights = np.ones(posterior.values.shape[:2]) if posterior.weights is None else posterior.weights
                bounds, draws = tuple(tables[label].iloc[i, 2:4]), resampled(posterior.values[:, :, i : i + 1], weights)[:, 0]
            lines[label] = {"mean": mean, "bounds": bounds, "draws": draws}
        known = None if reference is None else (float(reference.mean[i]), float(reference.sd[i]))
        drawn.append(plots.overlay(lines, known))
        heads.append(f"<b>{escape(names[i])}</b>")
    note = "Densities, means and 90 % intervals" + (
        "." if reference is None else "; in grey, a normal of the reference's mean and sd, and its 90 % interval."
    )
    return panels(drawn, heads), note


def details(label: str, posterior: Any) -> str:
    report = posterior.report()
    return (
        f"<details><summary>{escape(label)}{badge(report.verdict)}</summary>{checks_table(report.checks)}"
        f"{settings_table(posterior)}</details>"
    )


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


def feature(name: str, encoder: Encoder | None) -> str:
    """The column that a weight belongs to; empty where it is none."""
    if encoder is None or not name.startswith("weights["):
        return ""
    first, *others = name[8:-1].split(", ")
    classes = [str(encoder.target.classes[int(c)]) for c in others if encoder.target.classes]
    return ", ".join([encoder.features[int(first)], *classes]) if int(first) < len(encoder.features) else ""


def named(names: list[str], encoder: Encoder | None) -> list[str]:
    return [f"{name} · {what}" if (what := feature(name, encoder)) else name for name in names]


def first_of(kept: np.ndarray, every: np.ndarray, which: str) -> str:
    return "" if len(kept) == len(every) else f" The {len(kept)} {which} of {len(every):,}."


def section(name: str, body: str, note: str = "") -> str:
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{name}</h2>{said}{body}</section>"


def panels(drawn: list[str], captions: list[str]) -> str:
    figures = [f"<figure>{d}<figcaption>{c}</figcaption></figure>" for d, c in zip(drawn, captions, strict=True)]
    return f'<div class="panels two">{"".join(figures)}</div>'


def row(drawn: list[str], heads: tuple[str, ...]) -> str:
    figures = [f"<figure><figcaption>{h}</figcaption>{d}</figure>" for d, h in zip(drawn, heads, strict=True)]
    return f'<div class="panels">{"".join(figures)}</div>'


def grid(heads: list[str], rows: list[str], kind: str = "", left: tuple[str, ...] = ()) -> str:
    top = "".join(f'<th scope="col"{" class=text" if h in left else ""}>{escape(h)}</th>' for h in heads)
    tall = " tall" if len(rows) > TALL else ""
    return (
        f'<div class="scroll{tall}" tabindex="0"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def described(facts: dict[str, str]) -> str:
    return '<dl class="facts">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts.items()) + "</dl>"


def badge(verdict: str, plain: bool = False) -> str:
    """The verdict, told by its word, its sign and its colour."""
    sign = SIGNS.get(verdict, CROSS)
    drawn = f'<svg viewBox="0 0 16 16" aria-hidden="true"><path d="{sign}" fill="none" stroke="currentColor" stroke-width="2.4" stroke-linecap="round"/></svg>'
    return f'<span class="badge {"" if plain else escape(str(verdict))}">{drawn}{escape(str(verdict))}</span>'


def of(text: str) -> str:
    return f'<span class="of">{escape(text)}</span>' if text else ""


def shown(value: Any, form: str | None = None, places: int = 0) -> str:
    """A value for HTML: numbers in the digits that mean something, – where there is none."""
    if value is None:
        return "none"
    if isinstance(value, bool | np.bool_ | str):
        return escape(str(value).lower() if not isinstance(value, str) else value)
    if not math.isfinite(value):
        return "–"
    if form is None or (places and 0 < abs(value) < 10.0**-places):
        return typeset(number(float(value)) if form is None else f"{value:.2g}")
    return typeset(format(value, form))


def typeset(text: Any) -> str:
    return escape(str(text).replace("-", "−") if str(text)[:1] in "-0123456789" else str(text))


def decimals(sizes: np.ndarray) -> int:
    """Places behind the point that show two digits of a typical size."""
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return int(np.clip(1 - math.floor(math.log10(np.median(sizes))), 0, 6)) if len(sizes) else 3


def duration(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds >= 3600:
        return f"{seconds / 3600:.1f} h" if math.isfinite(seconds) else "–"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
