"""Plots of ranks: their histogram, and the difference between their ECDF and a uniform one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy  # whose parts are imported when they are first used

from tractable.checks.ranks import band, ecdf

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

BINS, FULL = 20, 5  # most bars, and fewest ranks a bar
LEVEL = 0.95  # of the ECDF's simultaneous band, and of each bar's limits


def panel(canvas: "FigureBase", ranks: np.ndarray, draws: int, colour: str = "#0072B2", grey: str = "0.5") -> None:
    """Above: the histogram with each bar's 95 % limits. Below: the ECDF minus a uniform one, with a joint band."""
    runs = len(ranks)
    most = max(2, min(BINS, runs // FULL))
    bins = max((b for b in range(1, most + 1) if (draws + 1) % b == 0), default=1)  # equal ones, of ranks 0 … L
    top, bottom = canvas.subplots(2, 1, sharex=True)
    bars(top, np.bincount(ranks * bins // (draws + 1), minlength=bins), runs, colour, grey)
    at, limits = np.arange(1, draws + 1) / (draws + 1), band(runs, draws, LEVEL)
    steps: Sequence[float] = np.concatenate([[0], at, [1]]).tolist()
    low, high, found = (
        np.concatenate([[0], share - at, [0]]) for share in (limits.lower, limits.upper, ecdf(ranks, draws))
    )
    bottom.fill_between(steps, low, high, color=grey, alpha=0.18, linewidth=0)
    bottom.axhline(0, color=grey, linewidth=0.8)
    bottom.plot(steps, found, color=colour, linewidth=1.3)
    bottom.set(xlim=(0, 1), xlabel="rank / L", ylabel="ECDF − even")


def bars(axes, counts: np.ndarray, runs: int, colour: str, grey: str) -> None:
    """A histogram of ranks, with the band of a uniform one."""
    bins = len(counts)
    low, high = scipy.stats.binom.interval(LEVEL, runs, 1 / bins)
    axes.axhspan(low, high, color=grey, alpha=0.18, linewidth=0)
    axes.axhline(runs / bins, color=grey, linewidth=0.8)
    axes.bar((np.arange(bins) + 0.5) / bins, counts, width=0.92 / bins, color=colour)
    axes.set(ylabel="runs")
