"""A report as one HTML file that needs nothing else: no network, no script."""

import importlib.metadata
import pathlib
import platform
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import as_data
from tractable.data.encoder import Encoder
from tractable.pages import plots
from tractable.pages.exhibits import (
    SHOWN,
    bias_section,
    figures,
    held_out_section,
    khat_sentence,
    resampled,
    weights_of,
)
from tractable.pages.markup import badge, decimals, described, duration, grid, of, section, shown, strip, typeset, write

MEANING = {
    "trust": "Nothing speaks against using this result.",
    "caution": "Usable, with what the checks say in mind.",
    "reject": "Do not use this before its cause is mended.",
    "failed": "There is no result.",
}


def write_page(
    folder: str | pathlib.Path,
    posterior: Any,
    *,
    title: str,
    held_out: Any = None,
    encoder: Encoder | None = None,
    shifted: Any = None,
    shape: tuple[int, int] | None = None,
) -> pathlib.Path:
    """Write ``report.html``: the verdict, why, the settings, the numbers and figures of a posterior.

    Args:
        folder: made where there is none.
        posterior: from ``infer``.
        title: of the page.
        held_out: Data, or arrays, that inference did not see; predictions of them are judged.
        encoder: of a table; weights are then shown with their columns' names, errors in the target's units.
        shifted: inputs of rows from elsewhere, whose predictions are held against those of ``held_out``.
        shape: (height, width) of rows that are pictures, of a ladder; square where that can be by default.

    Returns:
        The file's path.
    """
    labels = named(posterior.names, encoder)
    parts = [
        section("Why", checks_table(posterior.report().checks), khat_sentence(posterior)),
        section("Parameters", summary_table(posterior, encoder)),
        figures(posterior, labels, shape),
        bias_section(posterior),
        "" if held_out is None else held_out_section(posterior, as_data(held_out), encoder, shifted),
        section("Settings", settings_table(posterior)),
    ]  # fmt: skip
    return write(folder, title, header(posterior, title) + "".join(parts))


def write_comparison_page(folder: str | pathlib.Path, comparison: Any, *, title: str) -> pathlib.Path:
    """Write ``report.html`` of methods side by side: the table, marginals over one another, every method's checks."""
    from tractable.compare import shown as as_text

    table = as_text(comparison.table)
    body = f'<p class="eyebrow">tractable · {len(table)} methods compared</p><h1>{escape(title)}</h1>'
    rows = []
    for label, line in table.iterrows():
        cells = "".join(
            f'<td class="text">{badge(v)}</td>' if k == "verdict" else f"<td>{typeset(v)}</td>" for k, v in line.items()
        )
        rows.append(f'<tr><th scope="row">{escape(str(label))}</th>{cells}</tr>')
    body += section("Side by side", grid(["", *table.columns], rows, "wide", left=("verdict",)), TABLE_NOTE)
    if comparison.failures:
        said = "".join(f"<p><b>{escape(k)}</b> – {escape(str(v))}</p>" for k, v in comparison.failures.items())
        body += section("What failed", said)
    if comparison.posteriors:
        if not weights_of(next(iter(comparison.posteriors.values())).model).any():
            body += section("Marginals", *overlays(comparison))
        body += section("Every method's checks", "".join(details(k, p) for k, p in comparison.posteriors.items()))
    return write(folder, title, body)


TABLE_NOTE = (
    "Distances are from the reference: the largest error of a mean in its standard deviations, and the ratio of "
    "standard deviations furthest from 1. Held-out is the mean log predictive density of a datum, in nats."
)


def header(posterior: Any, title: str) -> str:
    """Title, verdict, and the few numbers that say how large this was."""
    verdict = posterior.report().verdict
    what = "one point" if posterior.is_point else f"{posterior.chains} × {posterior.count:,}"
    kept = "kept" if posterior.is_point else "chains × draws"
    if posterior.unconstrained is None and not posterior.is_point:
        what = "moments only"
    elif posterior.fitted is not None:
        kept, what = "draws of q", f"{posterior.count:,}"
    elif posterior.method.label == "ensemble":
        kept, what = "members" if posterior.count == 1 else "members × draws", what.removesuffix(" × 1")
    facts = {
        "rows of data": f"{posterior.rows:,}",
        "parameters": f"{len(posterior.names):,}",
        kept: what,
        "wall time": duration(sum(posterior.seconds.values())),
    }
    stopped = " The run was stopped before its end." if posterior.interrupted else ""
    return (
        f'<header><p class="eyebrow">tractable · {escape(type(posterior.method).__name__)}</p>'
        f'<h1>{escape(title)}</h1><div class="verdict {verdict}">{badge(verdict, plain=True)}'
        f"<p>{MEANING[verdict]}{stopped}</p></div>{described(facts)}</header>"
    )


def checks_table(checks: Any) -> str:
    rows = [
        f'<tr><td class="text">{badge(c.verdict)}</td><th scope="row">{escape(c.name)}</th>'
        f'<td>{shown(c.value)}</td><td class="text">{escape(c.sentence)}</td></tr>'
        for c in checks
    ]
    return grid(
        ["verdict", "check", "value", "what it means"], rows, "wide checks", left=("verdict", "check", "what it means")
    )


def settings_table(posterior: Any) -> str:
    """What would be needed to do it again."""
    versions = {p: importlib.metadata.version(p) for p in ("tractable", "jax", "numpyro", "numpy")}
    given: dict[str, Any] = {}
    for name, value in posterior.settings.items():  # an ensemble's member has settings of its own
        given |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
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


def told(posterior: Any) -> Any:
    """``posterior.summary()`` without what means nothing here: Monte-Carlo columns of draws that are no chain."""
    table = posterior.summary()
    if posterior.fitted is None and not posterior.method.independent:
        return table
    return table.drop(columns=["mcse_mean", "ess_bulk", "ess_tail", "r_hat"], errors="ignore")


def summary_table(posterior: Any, encoder: Encoder | None) -> str:
    if posterior.unconstrained is not None and posterior.count == 0:
        return "<p>The run was stopped before its first draw.</p>"
    weights = weights_of(posterior.model)
    table = told(posterior)[~weights]
    note = f"<p>And {weights.sum():,} weights of a network, layer by layer below.</p>" if weights.any() else ""
    if not len(table):
        return note.replace("And ", "")
    sizes = np.asarray(table["sd" if np.isfinite(table["sd"]).any() else "mean"], float)
    places, enough = decimals(np.abs(sizes)), 100 * posterior.chains
    heads = {"mcse_mean": "MCSE", "ess_bulk": "bulk ESS", "ess_tail": "tail ESS", "r_hat": "R-hat"}
    forms = {"mcse_mean": f".{places + 1}f", "ess_bulk": ",.0f", "ess_tail": ",.0f", "r_hat": ".3f"}
    if posterior.is_point:
        heads |= {"mean": "estimate", "sd": "standard error"}
    rows = []
    for name, values in table.iterrows():
        name = str(name)
        cells = ""
        own = None if values["sd"] < 10.0**-places else f".{places}f"  # a number on a scale of its own
        for column, value in values.items():
            poor = value > 1.01 if column == "r_hat" else str(column).startswith("ess") and value < enough
            form = own if own is None and column == "mcse_mean" else forms.get(str(column), own)
            cells += f"<td{' class=flag' if poor else ''}>{shown(float(value), form)}</td>"
        rows.append(f'<tr><th scope="row">{escape(name)}{of(feature(name, encoder))}</th>{cells}</tr>')
    columns = [heads.get(str(c), str(c)) for c in table.columns]
    return grid(["parameter", *columns], rows, "" if posterior.is_point else "wide") + note


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
                bounds, draws = (
                    tuple(tables[label].iloc[i, 2:4]),
                    resampled(posterior.values[:, :, i : i + 1], weights)[:, 0],
                )
            lines[label] = {"mean": mean, "bounds": bounds, "draws": draws}
        known = None if reference is None else (float(reference.mean[i]), float(reference.sd[i]))
        drawn.append(plots.overlay(lines, known))
        heads.append(f"<b>{escape(names[i])}</b>")
    note = "Densities, means and 90 % intervals" + (
        "." if reference is None else "; in grey, a normal of the reference's mean and sd, and its 90 % interval."
    )
    return strip(drawn, heads, "two"), note


def details(label: str, posterior: Any) -> str:
    report = posterior.report()
    return (
        f"<details><summary>{escape(label)}{badge(report.verdict)}</summary>{checks_table(report.checks)}"
        f"{settings_table(posterior)}</details>"
    )


def feature(name: str, encoder: Encoder | None) -> str:
    """The column that a linear model's weight or an input's learnt scale belongs to; empty where it is none."""
    if encoder is None or not name.startswith(("weights[", "scales.")) or "[" not in name:
        return ""
    first, *others = name[name.index("[") + 1 : -1].split(", ")
    classes = [str(encoder.target.classes[int(c)]) for c in others if encoder.target.classes]
    return ", ".join([encoder.features[int(first)], *classes]) if int(first) < len(encoder.features) else ""


def named(names: list[str], encoder: Encoder | None) -> list[str]:
    return [f"{name} · {what}" if (what := feature(name, encoder)) else name for name in names]
