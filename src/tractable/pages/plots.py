"""Small figures, which a page shows next to each other or, on a phone, one below another."""

import functools
import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from tractable.pages.sections import Figure
from tractable.pages.style import BAD, COLOURS, INK, LINE, PAPER

WIDTH = 3.7  # of a figure, in inches: the width of a phone
POINTS = 400  # the largest number of points in a trace
NOISY = 0.02  # a climb counts as noisy if the objective falls in a larger share of the steps than this
BINS = 512  # of the histogram that is smoothed to a density
QUARTER = 0.31864  # quantile 0.625 of a standard normal: a quarter of its mass lies within ± this
DOTS = 700  # the largest number of dots in a scatter plot
Draw = Callable[..., None]


def drawing(title: str, height: float | Callable[..., float] = 1.85) -> Callable[[Draw], Callable[..., Figure]]:
    """A decorator that turns a function which draws on an empty canvas into a function that returns a Figure.

    The new function takes the same arguments except the canvas. The height is in inches.
    """

    def decorate(draw: Draw) -> Callable[..., Figure]:
        @functools.wraps(draw)
        def figure(*args: Any, caption: str = "", **options: Any) -> Figure:
            tall = height(*args, **options) if callable(height) else height
            return Figure(lambda canvas: draw(canvas, *args, **options), (WIDTH, tall), title, caption)

        return figure

    return decorate


@drawing("Marginal density")
def marginal(canvas: Canvas, values: np.ndarray, mean: float, bounds: tuple[float, float]) -> None:
    """Draw the density of draws (n,), their mean and interval."""
    axes = canvas.subplots()
    x, height = density(values)
    axes.fill_between(x, height, color=COLOURS[0], alpha=0.16, linewidth=0)
    axes.plot(x, height, color=COLOURS[0])
    base = -0.07 * height.max()
    axes.plot(bounds, [base, base], color=INK, linewidth=2)
    axes.plot([mean], [base], "o", color=INK, markerfacecolor=PAPER, markersize=5)
    axes.set_ylim(2 * base, 1.06 * height.max())
    bare(axes)


@drawing("Trace of the draws of every chain")
def trace(canvas: Canvas, chains: np.ndarray, diverged: np.ndarray) -> None:
    """Draw the draws (chain, draw) in order, with ticks below them where a trajectory diverged."""
    axes, count = canvas.subplots(), chains.shape[1]
    at = np.arange(0, count, -(-count // POINTS))
    for chain, colour in reversed(list(zip(chains, itertools.cycle(COLOURS), strict=False))):
        axes.plot(at, chain[at], color=colour, linewidth=0.7, alpha=0.85)
    if diverged.any():
        where = np.flatnonzero(diverged.any(0))[:POINTS]
        axes.plot(where, np.full(len(where), axes.get_ylim()[0]), "|", color=BAD, markersize=7, clip_on=False)
    axes.set_xlim(0, max(count - 1, 1))
    tidy(axes, whole=True)


@drawing("Two columns against each other", 2.5)
def scatter(
    canvas: Canvas, x: np.ndarray, y: np.ndarray, labels: tuple[str, str], marked: np.ndarray | None = None
) -> None:
    """Draw dots at x and y (n,); the ``marked`` ones stand out."""
    axes, every = canvas.subplots(), slice(None, None, -(-len(x) // DOTS))
    dots(axes, x[every], y[every], COLOURS[0], 2.0, 0.45)
    if marked is not None and marked.any():
        dots(axes, x[marked], y[marked], BAD, 3, 1)
    axes.set_xlabel(short(labels[0]))
    axes.set_ylabel(short(labels[1]))
    tidy(axes, 4, 4)


@drawing("An objective over the steps of every start", 2.3)
def climb(canvas: Canvas, steps: np.ndarray, lines: np.ndarray, label: str, marked: int | None = None) -> None:
    """Draw each of the lines (start, step) over the steps (step,); a noisy line is drawn with its running mean.

    A dashed vertical line is drawn at the number of steps ``marked``, if that is given.
    """
    axes, settled = canvas.subplots(), []
    if marked is not None:
        axes.axvline(marked, color=INK, linewidth=0.8, linestyle="--")
    for one, colour in zip(lines, itertools.cycle(COLOURS), strict=False):
        at, heights = steps[np.isfinite(one)], one[np.isfinite(one)]
        if not len(heights):
            continue
        noisy, every = np.mean(np.diff(heights) < 0) > NOISY, slice(None, None, -(-len(heights) // (4 * POINTS)))
        axes.plot(at[every], heights[every], color=colour, linewidth=0.6 if noisy else 1.2, alpha=0.45 if noisy else 1)
        if noisy:
            width = max(1, len(heights) // 25)
            means = np.convolve(heights, np.full(width, 1 / width), "valid")
            axes.plot(at[width - 1 :][every], means[every], color=colour, linewidth=1.6)
        settled.append(heights[min(max(len(heights) // 4, 2), len(heights) - 1) :])
    # The axis leaves out the first steps, where the objective may be a thousand times lower.
    low, high = np.quantile(np.concatenate(settled), [0.01, 1])
    room = max(high - low, 1e-6 * max(abs(high), 1.0))
    axes.set_ylim(low - 0.2 * room, high + 0.1 * room)
    axes.set_xlabel("steps")
    axes.set_ylabel(label)
    tidy(axes, 4, 4, whole=True)


@drawing("Estimates and their intervals", lambda labels, *_: 0.5 + 0.2 * len(labels))
def forest(canvas: Canvas, labels: Sequence[str], intervals: np.ndarray, bold: Sequence[bool]) -> None:
    """Draw intervals (n, 3), each a middle with two ends, on a line for each label; a line of NaN has only a label."""
    axes, at = canvas.subplots(), np.arange(len(labels))
    middle, low, high = intervals.T
    axes.axvline(0, color=LINE, linewidth=0.8)
    axes.hlines(at, low, high, color=COLOURS[0], linewidth=1.4)
    axes.plot(middle, at, "o", color=COLOURS[0], markersize=4)
    axes.set_yticks(at, [short(label, 24) for label in labels], color=INK)
    for tick, is_bold in zip(axes.get_yticklabels(), bold, strict=True):
        tick.set_fontweight("bold" if is_bold else "normal")
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", color=LINE, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4))


@drawing("An effect over time", 2.1)
def curve(canvas: Canvas, x: Sequence[str] | np.ndarray, middle: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw an effect (n,) and its band over the times x, which are numbers or names."""
    axes, at = canvas.subplots(), np.arange(len(x)) if isinstance(x[0], str) else np.asarray(x)
    axes.axhline(0, color=LINE, linewidth=0.8)
    axes.fill_between(at, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axes.plot(at, middle, color=COLOURS[0])
    axes.margins(x=0.02)
    tidy(axes, whole=True)
    if isinstance(x[0], str):
        every = -(-len(x) // 8)
        axes.set_xticks(at[::every], [name[:3] if name[0].isalpha() else name for name in x[::every]])


def short(label: str, width: int = 34) -> str:
    """A label in at most two lines of ``width`` letters."""
    return textwrap.fill(label, width, max_lines=2, placeholder="…") if len(label) > width else label


def density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel density estimate over the middle 99.6 % of the finite draws, with no mass beyond their range.

    Its width is that of the rule for a normal (Scott 1992), with the sd at which the shortest interval with a quarter
    of the draws would be that of a normal: the width of a mode, whatever lies between modes. Mass beyond the range is
    reflected.
    """
    finite = np.sort(np.asarray(values, np.float64)[np.isfinite(values)])
    low, high = np.quantile(finite, [0.002, 0.998]) if len(finite) else (0.0, 0.0)
    # A single draw far out in a heavy tail would leave almost no point of the grid in the middle.
    near = finite[np.abs(finite - (low + high) / 2) <= high - low]
    if len(near) < 4 or np.ptp(near) == 0:
        at = near.mean() if len(near) else low
        return np.array([at, at, at]), np.array([0.0, 1.0, 0.0])
    edges = np.linspace(near[0], near[-1], BINS + 1)
    counts, step = np.histogram(near, edges)[0], edges[1] - edges[0]
    quarter = -(-len(near) // 4)
    shortest = np.min(near[quarter:] - near[:-quarter])
    width = max(1.06 * shortest / (2 * QUARTER) * len(near) ** -0.2, step)
    reach = min(BINS, math.ceil(4 * width / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / width) ** 2)
    height = np.convolve(np.pad(counts, reach, mode="symmetric"), kernel / kernel.sum(), "valid") / counts.sum() / step
    x = (edges[1:] + edges[:-1]) / 2
    inside = (x >= low) & (x <= high)
    return x[inside], height[inside]


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
