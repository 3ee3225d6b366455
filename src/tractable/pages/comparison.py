"""Methods side by side: the table, overlaid marginals, every method's checks."""

import functools

import pandas as pd

from tractable.comparison import FORMS, Comparison, interesting, overlay
from tractable.pages.parameters import SHOWN, listed
from tractable.pages.sections import Cell, Figure, Section, Table
from tractable.pages.style import COLOURS, MUTED
from tractable.pages.verdict import checks, settings

LESS_NEEDED = ["se_loo", "p_loo", "k-hat"]  # columns of a comparison that would push the verdict off a screen or page
NOTE = (
    "Distances are from the reference: the largest error of a mean in its standard deviations, and the ratio of "
    "standard deviations furthest from 1. Held-out is the mean log predictive density of a datum, in nats; elpd_loo is "
    "that of all rows, each predicted from the others, and not known where k-hat is above its limit, at most 0.7."
)


def sections(comparison: Comparison) -> list[Section]:
    """The comparison's table, its failures, the marginals side by side, and each method's checks."""
    out = [results_table(comparison.table)]
    if comparison.failures:
        out.append(Section("What failed", [Table(["", "why"], list(comparison.failures.items()), ["why"])]))
    if comparison.posteriors:
        out += marginals(comparison)
        each = [
            Section(label, [checks(posterior.report().checks), settings(posterior)._replace(title="")], "",
                    "folded", posterior.report().verdict)
            for label, posterior in comparison.posteriors.items()
        ]  # fmt: skip
        out.append(Section("Every method's checks", each))
    return out


def results_table(table: pd.DataFrame) -> Section:
    """The table of results, a line for each method."""
    filled = table.drop(columns=LESS_NEEDED, errors="ignore").dropna(axis=1, how="all")
    lines = [
        [str(label), *(v if isinstance(v, str) else Cell(v, FORMS.get(str(k))) for k, v in line.items())]
        for label, line in filled.iterrows()
    ]
    return Section("Side by side", [Table(["method", *filled.columns], lines, layout="wide")], NOTE)


def marginals(comparison: Comparison) -> list[Section]:
    """Panels of the parameters on which methods differ most; none for networks."""
    first, count = next(iter(comparison.posteriors.values())), len(comparison.others)
    if not listed(first.model).all():
        return []
    drawn = []
    for i in sorted(interesting(comparison, SHOWN)):
        draw = functools.partial(overlay, comparison=comparison, index=i, colours=COLOURS, grey=MUTED)
        drawn.append(Figure(draw, (3.7, 1.6 + 0.19 * count), "A parameter by every method", caption=first.names[i]))
    note = "Densities, means and 90 % intervals"
    note += "." if comparison.reference is None else "; in grey those of the reference."
    return [Section("Marginals", drawn, note, "panels two")]
