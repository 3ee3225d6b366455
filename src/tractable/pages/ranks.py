"""Page of a calibration: the verdict, and the truth's ranks among draws, quantity by quantity."""

import functools

import numpy as np

from tractable.pages.exhibit import Cell, Exhibit, Figure, Table
from tractable.pages.parameters import SHOWN
from tractable.pages.style import COLOURS, MUTED
from tractable.pages.verdict import MEANING, checks
from tractable.sbc.calibration import Calibration
from tractable.sbc.panels import panel

ROWS = 200  # most rows of the table
TABLE_NOTE = (
    "The p-value is that of the ECDF's distance from an even one, adjusted for the number of quantities. The sd ratio "
    "and the bias, in right sds, are those of the normal error that explains the ranks best, with 95 % intervals."
)
RANKS_NOTE = (
    "Above, how often the truth had which rank among the draws: even where the method is right, ∪ where its posteriors "
    "are too narrow, ∩ where they are too wide, a slope where they are biased; in grey the limits that hold 95 % of "
    "single bars. Below, how far the distribution of ranks runs ahead of an even one; that of a right method stays in "
    "the grey band everywhere with probability 0.95."
)


def exhibits(calibration: Calibration) -> list[Exhibit]:
    """The verdict, the checks and the figures of a calibration."""
    found = calibration.report()
    stopped = " It was stopped before its end." if calibration.interrupted else ""
    facts = {
        "simulated data sets": Cell(calibration.runs, ",d"),
        "failed": Cell(len(calibration.failures), ",d", poor=bool(calibration.failures)),
        "draws that are ranked": Cell(calibration.draws, ",d"),
        "quantities": Cell(len(calibration.names), ",d"),
    }
    return [
        Exhibit("", [facts], MEANING[found.verdict] + stopped, verdict=found.verdict),
        Exhibit("Why", [checks(found.checks)]),
        quantities(calibration),
        pictures(calibration),
    ]


def quantities(calibration: Calibration) -> Exhibit:
    """A row for each quantity; if there are very many, for those furthest from uniform."""
    frame, kept = calibration.summary(), np.sort(calibration.order[:ROWS])
    lines = []
    for name, line in frame.iloc[kept].iterrows():
        ratio, low, high = (float(line[c]) for c in ("sd ratio", "sd ratio low", "sd ratio high"))
        bias, below, above = (float(line[c]) for c in ("bias", "bias low", "bias high"))
        lines.append([
            str(name), Cell(float(line["adjusted p"]), ".2g"), Cell(ratio, ".2f", f"{low:.2f} to {high:.2f}"),
            Cell(bias, ".2f", f"{below:.2f} to {above:.2f}"), str(line["verdict"]),
        ])  # fmt: skip
    more = "" if len(kept) == len(frame) else f" The {len(kept)} furthest from uniform of {len(frame):,}."
    return Exhibit(
        "Quantities", [Table(["", "p", "sd ratio", "bias", "verdict"], lines, layout="wide")], TABLE_NOTE + more
    )


def pictures(calibration: Calibration) -> Exhibit:
    """Histograms and ECDFs of the quantities that are furthest from uniform."""
    drawn = []
    for i in calibration.order[:SHOWN]:
        draw = functools.partial(
            panel, ranks=calibration.ranks[:, i], draws=calibration.draws, colour=COLOURS[0], grey=MUTED
        )
        drawn.append(Figure(draw, (3.7, 2.9), "Ranks of the truth among draws", caption=calibration.names[i]))
    return Exhibit("Ranks", drawn, RANKS_NOTE, "panels two")
