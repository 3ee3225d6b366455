"""Small figures, which a page shows next to each other or, on a phone, one below another."""

import functools
import re
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy import stats

from tractable.core.curve import Curve
from tractable.pages.sections import Figure
from tractable.pages.style import BAD, COLOURS, INK, LINE, MUTED, PAPER

PANEL, WIDE = (3.7, 1.85), 7.2  # the size of a panel, and the width of a wide figure, in inches
POINTS = 400  # the largest number of points in a trace
NOISY = 0.02  # a climb counts as noisy if the objective falls in a larger share of the steps than this
DOTS = 700  # the largest number of dots in a scatter plot
Size = tuple[float, float]
Draw = Callable[..., None]


def drawing(
    title: str, size: Size | Callable[..., Size] = PANEL, margin: int = 0
) -> Callable[[Draw], Callable[..., Figure]]:
    """A decorator that turns a function which draws on an empty canvas into a function that returns a Figure.

    The new function takes the same arguments except the canvas.
    """

    def decorate(draw: Draw) -> Callable[..., Figure]:
        @functools.wraps(draw)
        def figure(*args: Any, caption: str = "", **options: Any) -> Figure:
            inches = size(*args, **options) if callable(size) else size
            return Figure(lambda canvas: draw(canvas, *args, **options), inches, title, margin, caption)

        return figure

    return decorate


def lines_tall(labels: list[str], *_: Any) -> Size:
    """The size of a figure that has a line for each label."""
    return WIDE, 0.55 + 0.2 * len(labels)


@drawing("Marginal density", margin=2)
def marginal(
    canvas: Canvas, values: np.ndarray, mean: float, bounds: tuple[float, float], corrected: np.ndarray | None = None
) -> None:
    """Draw the density of draws (n,), their mean and interval.

    ``corrected`` are draws from which a predicted bias was removed; their density is a dashed line.
    """
    axes = canvas.subplots()
    top = filled(axes, values)
    if corrected is not None:
        x, height = density(corrected)
        axes.plot(x, height, color=INK, dashes=(4, 3), linewidth=0.9)
        top = max(top, height.max())
    base = -0.07 * top
    axes.plot(bounds, [base, base], color=INK, linewidth=2)
    axes.plot([mean], [base], "o", color=INK, markerfacecolor=PAPER, markersize=5)
    axes.set_ylim(2 * base, 1.06 * top)
    bare(axes)


@drawing("Trace of the draws of every chain", margin=34)
def trace(canvas: Canvas, chains: np.ndarray, diverged: np.ndarray | None = None) -> None:
    """Draw the draws (chain, draw) in order, with ticks below them where a trajectory diverged."""
    axes, count = canvas.subplots(), chains.shape[1]
    at = np.arange(0, count, -(-count // POINTS))
    for chain, colour in reversed(list(zip(chains, COLOURS * len(chains), strict=False))):
        axes.plot(at, chain[at], color=colour, linewidth=0.7, alpha=0.85)
    if diverged is not None and diverged.any():
        where = np.flatnonzero(diverged.any(0))[:POINTS]
        low = axes.get_ylim()[0]
        axes.plot(where, np.full(len(where), low), "|", color=BAD, markersize=7, clip_on=False)
    axes.set_xlim(0, max(count - 1, 1))
    tidy(axes, whole=True)


@drawing("Ranks of every chain among all draws", margin=34)
def ranks(canvas: Canvas, chains: np.ndarray, effective: float) -> None:
    """Draw for each chain the ECDF (empirical distribution function) of its ranks among all draws, minus uniform.

    If the chains agree, all stay in the band with probability 0.95. The band is Kolmogorov's for a chain's number of
    effective draws.
    """
    axes, (count, draws) = canvas.subplots(), chains.shape
    ranked = stats.rankdata(chains, axis=None).reshape(chains.shape) / chains.size
    half = stats.kstwobign.ppf(1 - 0.05 / count) * np.sqrt((1 - 1 / count) / max(effective / count, 1))
    axes.axhspan(-half, half, color=MUTED, alpha=0.13, linewidth=0)
    axes.axhline(0, color=LINE, linewidth=0.8)
    grid = np.linspace(0, 1, 101)
    for chain, colour in zip(ranked, COLOURS * count, strict=False):
        share = np.searchsorted(np.sort(chain), grid, side="right") / draws
        axes.plot(grid, share - grid, color=colour, linewidth=1)
    axes.set_xlim(0, 1)
    axes.margins(y=0.15)
    tidy(axes)
    axes.xaxis.set_major_formatter(PercentFormatter(1))


@drawing("Autocorrelation of the chain", margin=34)
def autocorrelation(canvas: Canvas, chain: np.ndarray) -> None:
    """Draw a chain's autocorrelation at up to 60 lags."""
    axes, centred = canvas.subplots(), np.asarray(chain, float) - np.mean(chain)
    lags = min(60, len(centred) - 1)
    products = np.array([centred[: len(centred) - k] @ centred[k:] for k in range(lags + 1)])
    axes.axhline(0, color=LINE, linewidth=0.8)
    axes.vlines(np.arange(lags + 1), 0, products / max(products[0], 1e-300), color=COLOURS[0], linewidth=1.4)
    tidy(axes)


@drawing("Draws of every pair of parameters", lambda values, labels, *_: squares(1.55, 0.86, len(labels)))
def pairs(canvas: Canvas, values: np.ndarray, labels: list[str], diverged: np.ndarray | None = None) -> None:
    """Draw a triangle of scatter plots, with densities on the diagonal."""
    every = slice(None, None, -(-len(values) // DOTS))

    def alone(axes: Axes, i: int) -> None:
        filled(axes, values[:, i])
        axes.set_ylim(0)

    def pair(axes: Axes, i: int, j: int) -> None:
        dots(axes, values[every, i], values[every, j], COLOURS[0], 1.7, 0.4)
        if diverged is not None and diverged.any():
            dots(axes, values[diverged, i], values[diverged, j], BAD, 3, 1)

    triangle(canvas, labels, alone, pair)


def squares(side: float, height: float, count: int) -> Size:
    """The size of a triangle of panels."""
    return max(side * count, 4.4), max(height * side * count, 3.4 if count > 1 else 2.6)


def triangle(
    canvas: Canvas, labels: list[str], alone: Callable[[Axes, int], None], pair: Callable[[Axes, int, int], None]
) -> None:
    """Draw a triangle of panels.

    ``alone`` draws one column in a panel of the diagonal; ``pair`` draws two columns (x, y) in a panel below it.
    """
    count = len(labels)
    grid = canvas.subplots(count, count, sharex="col", squeeze=False)
    for row, column in np.ndindex(count, count):
        axes: Any = grid[row, column]
        axes.xaxis.set_major_locator(MaxNLocator(3))
        if column > row:
            axes.set_visible(False)
        elif column == row:
            alone(axes, row)
            bare(axes)
        else:
            pair(axes, column, row)
            axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.tick_params(labelleft=column == 0 < row)
        if row == count - 1:
            axes.set_xlabel(folded(labels[column], 20), color=INK)
        if column == 0 < row:
            axes.set_ylabel(folded(labels[row], 17), color=INK)
    canvas.align_labels()


def folded(label: str, width: int) -> str:
    """A label in at most three lines of ``width`` letters; of "parameter · column" only the column is shown."""
    name = label.split(" · ")[-1]
    lines = textwrap.fill(re.sub("([_=])", r"\1 ", name), width, max_lines=3, placeholder="…")
    return re.sub("([_=]) ", r"\1", lines)


@drawing("The climb of every start over its steps", (WIDE, 2.4))
def climb(canvas: Canvas, curve: Curve, unit: str, size: int | float) -> None:
    """Draw the objective divided by ``size``, a line for each start, and the scores of held-out rows.

    A noisy line is drawn with its running mean.
    """
    panels, lows, highs = canvas.subplots(1, 1 + (len(curve.held_out) > 1), squeeze=False)[0], [], []
    for one, colour in zip(curve.objective / size, COLOURS * len(curve.objective), strict=False):
        at, heights = curve.steps[np.isfinite(one)], one[np.isfinite(one)]
        if not len(heights):
            continue
        every = -(-len(heights) // (4 * POINTS))
        noisy = np.mean(np.diff(heights) < 0) > NOISY
        panels[0].plot(
            at[::every], heights[::every], color=colour, linewidth=0.6 if noisy else 1.1, alpha=0.45 + 0.4 * (not noisy)
        )
        if noisy:
            width = max(1, len(heights) // 25)
            means = np.convolve(heights, np.full(width, 1 / width), "valid")
            panels[0].plot(at[width - 1 :][::every], means[::every], color=colour, linewidth=1.6)
        else:
            panels[0].plot(at[-1:], heights[-1:], "o", color=colour, markersize=4)
        settled = heights[min(max(len(heights) // 4, 2), len(heights) - 1) :]
        lows.append(np.quantile(settled, 0.01 if noisy else 0))
        highs.append(heights.max() if noisy else heights[-1])
    # The axis leaves out the first steps, where the objective may be a thousand times lower.
    height = max(max(highs) - min(lows), 1e-6 * max(abs(max(highs)), 1.0))
    panels[0].set_ylim(min(lows) - 0.2 * height, max(highs) + 0.08 * height)
    for axes, what in zip(panels, (f"objective, nats{unit}", "held-out rows, nats per row"), strict=False):
        axes.set_xlim(0, curve.steps[-1])
        tidy(axes, 6, 4, whole=True)
        axes.set_xlabel("steps")
        axes.set_ylabel(what)
    if len(panels) > 1:
        panels[1].plot(curve.held_out_steps, curve.held_out, ".-", color=COLOURS[1], linewidth=1.1)


@drawing("Estimates and their intervals", lines_tall)
def forest(canvas: Canvas, labels: list[str], middle: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw intervals with their middles, on a line for each label."""
    axes, at = canvas.subplots(), np.arange(len(labels))
    axes.axvline(0, color=LINE, linewidth=0.8)
    axes.hlines(at, low, high, color=COLOURS[0], linewidth=1.4)
    axes.plot(middle, at, "o", color=COLOURS[0], markersize=4)
    rows(axes, labels)


@drawing("Predicted inflation of every marginal sd", lines_tall)
def inflation(canvas: Canvas, labels: list[str], shares: np.ndarray, tolerance: float) -> None:
    """Draw bars of the predicted inflation, with the tolerance shaded."""
    axes, at = canvas.subplots(), np.arange(len(labels))
    within = np.abs(shares) <= tolerance
    known = np.nan_to_num(np.where(np.isfinite(shares), shares, np.nan))
    axes.axvspan(-tolerance, tolerance, color=MUTED, alpha=0.13, linewidth=0)
    axes.axvline(0, color=LINE, linewidth=0.8)
    axes.barh(at, known, height=0.55, color=np.where(within, COLOURS[0], COLOURS[1]))
    axes.set_xlim(min(-0.12 * tolerance, 1.12 * np.min(known)), 1.12 * max(tolerance, np.max(known)))
    for row in np.flatnonzero(~np.isfinite(shares)):
        axes.text(0, float(row), " unstable", va="center", color=BAD)
    axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.3g} %".replace("-", "−"))
    rows(axes, labels)


def density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel density estimate over the middle 99.6 % of the finite draws, with no mass beyond their range."""
    from arviz_stats.base.array import array_stats  # imported here, as the import takes a second

    finite = np.asarray(values, np.float64)[np.isfinite(values)]
    if len(finite) < 4 or np.ptp(finite) == 0:
        at = finite.mean() if len(finite) else 0.0
        return np.array([at, at, at]), np.array([0.0, 1.0, 0.0])
    low, high = np.quantile(finite, [0.002, 0.998])
    # A single draw far out in a heavy tail would leave almost no point of the grid in the middle.
    near = finite[np.abs(finite - (low + high) / 2) <= high - low]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, height, _ = array_stats.kde(near, bound_correction=True, grid_len=256)
    inside = (x >= low) & (x <= high)
    return x[inside], height[inside]


def filled(axes: Axes, values: np.ndarray) -> float:
    """Draw the density of ``values`` and return its largest height."""
    x, height = density(values)
    axes.fill_between(x, height, color=COLOURS[0], alpha=0.16, linewidth=0)
    axes.plot(x, height, color=COLOURS[0])
    return float(height.max())


def dots(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, size: float, alpha: float) -> None:
    """Draw round dots as one path of strokes without length, which takes a tenth of the bytes of markers."""
    ends = np.stack([x, y], -1)[np.isfinite(x) & np.isfinite(y)].repeat(2, 0)
    ends[1::2, 0] += 1e-4 * (np.ptp(ends[:, 0]) if len(ends) else 1)
    path = Path(ends, np.tile([Path.MOVETO, Path.LINETO], len(ends) // 2))
    path.should_simplify = False
    axes.add_patch(PathPatch(path, fill=False, edgecolor=colour, linewidth=size, alpha=alpha, capstyle="round"))
    axes.autoscale_view()


def tidy(axes: Axes, x: int = 5, y: int = 3, *, whole: bool = False) -> None:
    """Set about ``x`` and ``y`` ticks, at whole numbers on the x axis if ``whole``, and remove the line on the left."""
    axes.xaxis.set_major_locator(MaxNLocator(x, integer=whole))
    axes.yaxis.set_major_locator(MaxNLocator(y))
    axes.spines["left"].set_visible(False)


def bare(axes: Axes) -> None:
    """Remove the vertical scale of the axes."""
    tidy(axes, 4)
    axes.set_yticks([])


def rows(axes: Axes, labels: list[str]) -> None:
    """Give each label a row of the axes, with the first on top."""
    axes.set_yticks(np.arange(len(labels)), labels, color=INK)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", color=LINE, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)
