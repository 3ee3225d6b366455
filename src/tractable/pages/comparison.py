"""Methods side by side: the table, marginals over one another, every method's checks."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from scipy import stats

from tractable.compare import FORMS, Comparison, interesting
from tractable.pages.exhibit import Cell, Exhibit, Table
from tractable.pages.parameters import SHOWN, is_drawn, listed, resampled
from tractable.pages.plots import bare, density, drawing, rows
from tractable.pages.style import COLOURS, MUTED
from tractable.pages.verdict import checks, settings

NOTE = (
    "Distances are from the reference: the largest error of a mean in its standard deviations, and the ratio of "
    "standard deviations furthest from 1. Held-out is the mean log predictive density of a datum, in nats."
)


def exhibits(comparison: Comparison) -> list[Exhibit]:
    """Every exhibit of a comparison."""
    out = [results_table(comparison.table)]
    if comparison.failures:
        out.append(Exhibit("What failed", [Table(["", "why"], list(comparison.failures.items()), ["why"])]))
    if comparison.posteriors:
        out += marginals(comparison)
        each = [
            Exhibit(label, [checks(posterior.report().checks), settings(posterior)._replace(title="")], "",
                    "folded", posterior.report().verdict)
            for label, posterior in comparison.posteriors.items()
        ]  # fmt: skip
        out.append(Exhibit("Every method's checks", each))
    return out


def results_table(table: pd.DataFrame) -> Exhibit:
    """A row for each method; columns without a number are left out."""
    kept = table.dropna(axis=1, how="all")
    lines = [
        [str(label), *(v if isinstance(v, str) else Cell(v, FORMS.get(str(k))) for k, v in line.items())]
        for label, line in kept.iterrows()
    ]
    return Exhibit("Side by side", [Table(["method", *kept.columns], lines, layout="wide")], NOTE)


Known = tuple[
    float, tuple[float, float], np.ndarray | None
]  # of a parameter: mean, interval, and draws if there are any


def marginals(comparison: Comparison) -> list[Exhibit]:
    """Panels of the parameters on which methods differ most; none of networks."""
    reference, first = comparison.reference, next(iter(comparison.posteriors.values()))
    if not listed(first.model).all():
        return []
    others = {k: p for k, p in comparison.posteriors.items() if reference is None or p is not reference.posterior}
    tables = {k: p.summary() for k, p in others.items()}
    drawn = []
    for i in sorted(interesting(comparison, SHOWN)):
        known = {}
        for label, posterior in others.items():
            mean, sd = tables[label].iloc[i, :2]
            bounds, draws = (mean - 1.645 * np.nan_to_num(sd), mean + 1.645 * np.nan_to_num(sd)), None
            if is_drawn(posterior):
                weights = np.ones(posterior.values.shape[:2]) if posterior.weights is None else posterior.weights
                bounds = tuple(tables[label].iloc[i, 2:4])
                draws = resampled(posterior.values[:, :, i : i + 1], weights)[:, 0]
            known[label] = (mean, bounds, draws)
        exact = None if reference is None else (float(reference.mean[i]), float(reference.sd[i]))
        drawn.append(overlay(known, exact, caption=first.names[i]))
    note = "Densities, means and 90 % intervals" + (
        "." if reference is None else "; in grey, a normal of the reference's mean and sd, and its 90 % interval."
    )
    return [Exhibit("Marginals", drawn, note, "panels two")]


@drawing("A parameter by every method", lambda known, *_: (3.7, 1.6 + 0.19 * len(known)))
def overlay(canvas: Canvas, known: dict[str, Known], reference: tuple[float, float] | None = None) -> None:
    """One parameter by several methods: densities above, means and intervals below; in grey the reference."""
    top, axes = canvas.subplots(2, 1, sharex=True, height_ratios=[1.3, 0.16 * len(known) + 0.1])
    if reference is not None:
        mean, sd = reference
        axes.axvspan(mean - 1.645 * sd, mean + 1.645 * sd, color=MUTED, alpha=0.13, linewidth=0)
        axes.axvline(mean, color=MUTED, linewidth=0.8, dashes=(4, 3))
        x = mean + sd * np.linspace(-3.2, 3.2, 200)
        top.fill_between(x, stats.norm.pdf(x, mean, sd), color=MUTED, alpha=0.2, linewidth=0)
    for row, ((mean, bounds, draws), colour) in enumerate(zip(known.values(), COLOURS * len(known), strict=False)):
        if draws is not None:
            top.plot(*density(draws), color=colour, linewidth=1)
        axes.hlines(row, *bounds, color=colour, linewidth=1.8)
        axes.plot([mean], [row], "o", color=colour, markersize=4)
    top.set_ylim(0)
    bare(top)
    top.spines["bottom"].set_visible(False)
    top.xaxis.set_tick_params(length=0)
    rows(axes, list(known))
    axes.grid(False)
