"""The page of a comparison of methods: their table, their marginals in one figure, and each method's checks."""

import functools

import pandas as pd

from tractable.comparison import FORMS, Comparison, interesting, overlay
from tractable.pages.parameters import SHOWN, listed
from tractable.pages.sections import Cell, Figure, Section, Table
from tractable.pages.style import COLOURS, MUTED
from tractable.pages.verdict import checks, settings

LESS_NEEDED = ["se_loo", "p_loo", "k-hat"]  # columns that are left out, so that the verdict fits on a screen
NOTE = (
    "Distances are from the reference: the largest error of a mean, in standard deviations of the reference, and the "
    "ratio of standard deviations that is furthest from 1. Held-out is the mean log predictive density of a datum, in "
    "nats (units of the natural logarithm). elpd_loo is the sum of the log predictive densities of all rows, each "
    "predicted from the other rows; it has no value where k-hat, a diagnostic of its importance weights, is above its "
    "limit, which is at most 0.7."
)


def sections(comparison: Comparison) -> list[Section]:
    """The comparison's table, its failures, the marginals, and each method's checks."""
    out = [results_table(comparison.table)]
    if comparison.failures:
        out.append(Section("Methods that failed", [Table(["", "why"], list(comparison.failures.items()), ["why"])]))
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
    """The table of results, with a row for each method."""
    filled = table.drop(columns=LESS_NEEDED, errors="ignore").dropna(axis=1, how="all")
    lines = [
        [str(label), *(v if isinstance(v, str) else Cell(v, FORMS.get(str(k))) for k, v in line.items())]
        for label, line in filled.iterrows()
    ]
    return Section("Side by side", [Table(["method", *filled.columns], lines, layout="wide")], NOTE)


def marginals(comparison: Comparison) -> list[Section]:
    """Figures of the parameters on which the methods differ most; none for networks."""
    first, count = next(iter(comparison.posteriors.values())), len(comparison.others)
    if not listed(first.model).all():
        return []
    drawn = []
    for i in sorted(interesting(comparison, SHOWN)):
        draw = functools.partial(overlay, comparison=comparison, index=i, colours=COLOURS, grey=MUTED)
        drawn.append(Figure(draw, (3.7, 1.6 + 0.19 * count), "A parameter by every method", caption=first.names[i]))
    note = "Densities, means and 90 % intervals of each method"
    note += "." if comparison.reference is None else ", and in grey those of the reference."
    return [Section("Marginals", drawn, note, "panels two")]
