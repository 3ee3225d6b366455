"""Page of a calibration: the verdict, and the truth's ranks among draws, quantity by quantity."""

import functools

import numpy as np

from tractable.calibration.calibrate import Calibration
from tractable.calibration.ranks import draw_ranks
from tractable.pages.parameters import SHOWN
from tractable.pages.sections import Cell, Figure, Section, Table
from tractable.pages.style import COLOURS, MUTED
from tractable.pages.verdict import MEANING, why

ROWS = 200  # most rows of the table
TABLE_NOTE = (
    "The p-value is of the ECDF's distance from a uniform one, adjusted for the number of quantities. The sd ratio and "
    "the bias, in right sds, are of the normal error that explains the ranks, with 95 % intervals."
)
RANKS_NOTE = (
    "Above, how often the truth had which rank among the draws: uniform where the method is right, ∪ where posteriors "
    "are too narrow, ∩ too wide, a slope where they are biased; 95 % of single bars end in the grey band. Below, the "
    "ECDF of the ranks minus a uniform one, which a right method keeps in the grey band with probability 0.95."
)


def sections(calibration: Calibration) -> list[Section]:
    """The verdict, the checks and the figures of a calibration."""
    report, figures = calibration.report(), []
    facts = {
        "simulated data sets": Cell(calibration.runs, ",d"),
        "draws that are ranked": Cell(calibration.draws, ",d"),
    }
    for i in calibration.order[:SHOWN]:
        ranks = calibration.ranks[:, i]
        draw = functools.partial(draw_ranks, ranks=ranks, draws=calibration.draws, colour=COLOURS[0], grey=MUTED)
        figures.append(Figure(draw, (3.7, 2.9), "Ranks of the truth among draws", caption=calibration.names[i]))
    return [
        Section("", [facts], MEANING[report.verdict], verdict=report.verdict),
        why(report),
        quantities(calibration),
        Section("Ranks", figures, RANKS_NOTE, "panels two"),
    ]


def quantities(calibration: Calibration) -> Section:
    """A row for each quantity; if there are very many, for those furthest from uniform."""
    rows, furthest = [], np.sort(calibration.order[:ROWS])
    for name, _, p, ratio, low, high, bias, below, above, verdict in calibration.summary().iloc[furthest].itertuples():
        sd, off = Cell(ratio, ".2f", f"{low:.2f} to {high:.2f}"), Cell(bias, ".2f", f"{below:.2f} to {above:.2f}")
        rows.append([str(name), Cell(p, ".2g"), sd, off, verdict])
    return Section("Quantities", [Table(["", "p", "sd ratio", "bias", "verdict"], rows, layout="wide")], TABLE_NOTE)
