"""The page of a calibration: the verdict, and for each quantity the ranks of the true value among the draws."""

import functools

import numpy as np

from tractable.calibration.calibration import Calibration
from tractable.calibration.ranks import draw_ranks
from tractable.pages.parameters import SHOWN
from tractable.pages.plots import WIDTH
from tractable.pages.sections import Cell, Figure, Section, Table
from tractable.pages.style import COLOURS, MUTED
from tractable.pages.verdict import trust

ROWS = 200  # the largest number of rows of the table
TABLE_NOTE = (
    "The p-value is of a test that the ranks are uniform, by the distance of their ECDF from the uniform one, adjusted "
    "for the number of quantities. The sd ratio is the posterior's sd divided by the right sd, and the bias is in "
    "units of the right sd; both are estimated from the ranks, for normal posteriors, with 95 % intervals."
)
RANKS_NOTE = (
    "Above: a histogram of the ranks of the true value among the draws. It is flat if the method is right, has the "
    "shape ∪ if posteriors are too narrow and ∩ if they are too wide, and slopes if they are biased. If the method is "
    "right, a single bar ends in the grey band with probability 0.95. Below: the ECDF of the ranks minus the uniform "
    "one; if the method is right, it stays in the grey band with probability 0.95."
)


def sections(calibration: Calibration) -> list[Section]:
    """The verdict, the checks and the figures of a calibration."""
    facts = {"simulated data sets": Cell(calibration.runs, ",d"), "draws for each rank": Cell(calibration.draws, ",d")}
    figures = []
    for i in calibration.order[:SHOWN]:
        ranks = calibration.ranks[:, i]
        draw = functools.partial(draw_ranks, ranks=ranks, draws=calibration.draws, colour=COLOURS[0], grey=MUTED)
        figures.append(Figure(draw, (WIDTH, 2.9), "Ranks of the truth among draws", calibration.names[i]))
    found = [Section("Ranks", figures, RANKS_NOTE), quantities(calibration)]
    return [trust(calibration.report(), facts), *found]


def quantities(calibration: Calibration) -> Section:
    """A table with a row for each quantity; if there are very many, for those whose ranks are furthest from uniform."""
    rows, furthest = [], np.sort(calibration.order[:ROWS])
    for name, _, p, ratio, low, high, bias, below, above, verdict in calibration.summary().iloc[furthest].itertuples():
        sd, off = Cell(ratio, ".2f", f"{low:.2f} to {high:.2f}"), Cell(bias, ".2f", f"{below:.2f} to {above:.2f}")
        rows.append([str(name), Cell(p, ".2g"), sd, off, verdict])
    return Section("Quantities", [Table(["quantity", "p-value", "sd ratio", "bias", "verdict"], rows)], TABLE_NOTE)
