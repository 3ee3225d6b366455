"""The page of a comparison of methods: their table, their marginals in one figure, and each method's checks."""

import functools

import pandas as pd

from tractable.comparison import FORMS, Comparison, interesting, overlay
from tractable.core.words import counted
from tractable.pages.parameters import SHOWN, listed_mask
from tractable.pages.plots import WIDTH
from tractable.pages.sections import Cell, Figure, Section, Table
from tractable.pages.style import COLOURS, MUTED
from tractable.pages.verdict import checks, settings

LESS_NEEDED = ["se_loo", "p_loo", "k-hat"]  # columns that are left out, so that the verdict fits on a screen
NOTE = (
    "Distances are from the reference: the largest error of a mean, in sds of the reference, and the ratio of sds that "
    "is furthest from 1. Held-out is the mean log predictive density of a datum, in nats. elpd_loo has no value where "
    "k-hat is above its limit, which is at most 0.7."
)


def sections(comparison: Comparison) -> list[Section]:
    """The comparison's table, its failures, the marginals, and each method's checks."""
    verdicts = [posterior.report().verdict for posterior in comparison.posteriors.values()]
    said = f"{counted(len(comparison.table), 'method')} compared: {verdicts.count('trust')} with the verdict trust, "
    said += f"{verdicts.count('caution')} with caution, {verdicts.count('reject')} with reject."
    out = [Section("", note=said), results_table(comparison.table)]
    if comparison.failures:
        out.append(Section("Methods that failed", [Table(["", "why"], list(comparison.failures.items()), ["why"])]))
    each = [
        Section(label, [checks(posterior.report().checks), settings(posterior)._replace(title="")], "",
                "folded", posterior.report().verdict)
        for label, posterior in comparison.posteriors.items()
    ]  # fmt: skip
    return [*out, *marginals(comparison), Section("Every method's checks", each)] if each else out


def results_table(table: pd.DataFrame) -> Section:
    """The table of results, with a row for each method."""
    filled = table.drop(columns=LESS_NEEDED, errors="ignore").dropna(axis=1, how="all")
    lines = [
        [str(label), *(v if isinstance(v, str) else Cell(v, FORMS.get(str(k))) for k, v in line.items())]
        for label, line in filled.iterrows()
    ]
    return Section("Side by side", [Table(["method", *filled.columns], lines)], NOTE)


def marginals(comparison: Comparison) -> list[Section]:
    """Figures of the parameters on which the methods differ most; none for networks."""
    first, height = next(iter(comparison.posteriors.values())), 1.6 + 0.19 * len(comparison.others)
    if not listed_mask(first.model).all():
        return []
    drawn = []
    for i in sorted(interesting(comparison, SHOWN)):
        draw = functools.partial(overlay, comparison=comparison, index=i, colours=COLOURS, grey=MUTED)
        drawn.append(Figure(draw, (WIDTH, height), "A parameter by every method", first.names[i]))
    note = "Densities, means and 90 % intervals of each method"
    note += "." if comparison.reference is None else ", and in grey those of the reference."
    return [Section("Marginals", drawn, note)]
