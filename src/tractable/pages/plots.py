"""Figures of a report, as SVG text whose colours and typeface the page decides.

Each figure is small, so that a page can lay them side by side or, on a phone, under one another.
"""

import warnings
from typing import Any

import numpy as np
from arviz_stats.base.array import array_stats
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy import stats

from tractable.pages.markup import BAD, COLOURS, INK, LINE, MUTED, PAPER, svg

PANEL = (3.7, 1.85)  # inches
POINTS = 400  # of a trace, at most
DOTS = 700  # of a scatter plot, at most


def marginal(values: np.ndarray, mean: float, bounds: tuple[float, float], corrected: np.ndarray | None = None) -> str:
    """The density of draws (n,), their mean and interval; dashed, the density with a predicted bias taken off."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        x, height = density(values)
        axes.fill_between(x, height, color=COLOURS[0], alpha=0.16, linewidth=0)
        axes.plot(x, height, color=COLOURS[0])
        top = height.max()
        if corrected is not None:
            beside, narrower = density(corrected)
            axes.plot(beside, narrower, color=INK, dashes=(4, 3), linewidth=0.9)
            top = max(top, narrower.max())
        base = -0.07 * top
        axes.plot(bounds, [base, base], color=INK, linewidth=2)
        axes.plot([mean], [base], "o", color=INK, markerfacecolor=PAPER, markersize=5)
        axes.set_ylim(2 * base, 1.06 * top)
        bare(axes)

    return svg(draw, PANEL, "Marginal density", 2)


def trace(chains: np.ndarray, diverged: np.ndarray | None = None) -> str:
    """Draws (chain, draw) in the order they came, with ticks below where a trajectory diverged."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        count = chains.shape[1]
        at = np.arange(0, count, -(-count // POINTS))
        for chain, colour in reversed(list(zip(chains, COLOURS * len(chains), strict=False))):
            axes.plot(at, chain[at], color=colour, linewidth=0.7, alpha=0.85)
        if diverged is not None and diverged.any():
            where = np.flatnonzero(diverged.any(0))[:POINTS]
            low = axes.get_ylim()[0]
            axes.plot(where, np.full(len(where), low), "|", color=BAD, markersize=7, clip_on=False)
        axes.set_xlim(0, max(count - 1, 1))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.spines["left"].set_visible(False)

    return svg(draw, PANEL, "Trace of the draws of every chain", 34)


def ranks(chains: np.ndarray, effective: float) -> str:
    """How far each chain's share of the pooled ranks runs ahead of an even one.

    Chains that agree stay in the band with probability 0.95: Kolmogorov's, at the effective draws of a chain.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        count, draws = chains.shape
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
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.yaxis.set_major_locator(MaxNLocator(3, symmetric=True))
        axes.spines["left"].set_visible(False)

    return svg(draw, PANEL, "Ranks of every chain among all draws", 34)


def autocorrelation(chain: np.ndarray) -> str:
    """Of one chain (draw,), over lags."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        centred = np.asarray(chain, float) - np.mean(chain)
        lags = min(60, len(centred) - 1)
        products = np.array([centred[: len(centred) - k] @ centred[k:] for k in range(lags + 1)])
        axes.axhline(0, color=LINE, linewidth=0.8)
        axes.vlines(np.arange(lags + 1), 0, products / max(products[0], 1e-300), color=COLOURS[0], linewidth=1.4)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.spines["left"].set_visible(False)

    return svg(draw, PANEL, "Autocorrelation of the chain", 34)


def pairs(values: np.ndarray, labels: list[str], diverged: np.ndarray | None = None) -> str:
    """Draws (n, k) of every two parameters against each other."""

    def draw(figure: Figure) -> None:
        count = len(labels)
        every = slice(None, None, -(-len(values) // DOTS))
        grid = figure.subplots(count, count, sharex="col", squeeze=False)
        for row, column in np.ndindex(count, count):
            axes: Any = grid[row, column]
            axes.xaxis.set_major_locator(MaxNLocator(3))
            axes.yaxis.set_major_locator(MaxNLocator(3))
            if column > row:
                axes.set_visible(False)
            elif column == row:
                x, height = density(values[:, row])
                axes.fill_between(x, height, color=COLOURS[0], alpha=0.16, linewidth=0)
                axes.plot(x, height, color=COLOURS[0])
                axes.set_ylim(0)
                bare(axes)
            else:
                dots(axes, values[every, column], values[every, row], COLOURS[0], 1.7, 0.4)
                if diverged is not None and diverged.any():
                    dots(axes, values[diverged, column], values[diverged, row], BAD, 3, 1)
            axes.tick_params(labelleft=column == 0 < row)
            if row == count - 1:
                axes.set_xlabel(labels[column], color=INK)
            if column == 0 < row:
                axes.set_ylabel(labels[row], color=INK)
        figure.align_labels()

    side = 1.55 * len(labels)
    return svg(draw, (max(side, 4.4), max(0.86 * side, 3.4)), "Draws of every two parameters")


def climb(bound: np.ndarray, steps: float | int) -> str:
    """A noisy bound (n,) that was looked at evenly over ``steps`` steps, and its running mean."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        finite = np.where(np.isfinite(bound), bound, np.nan)
        at = np.linspace(0, steps, len(bound) + 1)[1:]
        width = max(1, len(bound) // 25)
        sums = np.cumsum(np.insert(np.nan_to_num(finite), 0, 0.0))
        counts = np.cumsum(np.insert(np.isfinite(bound).astype(float), 0, 0.0))
        mean = (sums[width:] - sums[:-width]) / np.maximum(counts[width:] - counts[:-width], 1)
        every = -(-len(bound) // (4 * POINTS))
        axes.plot(at[::every], finite[::every], color=COLOURS[0], linewidth=0.6, alpha=0.45)
        axes.plot(at[width - 1 :][::every], mean[::every], color=COLOURS[0], linewidth=1.6)
        # The first steps may be a thousand times lower: the end is what is looked at.
        settled = finite[len(bound) // 4 :]
        low, high = np.nanmin(np.nanquantile(settled, 0.01)), np.nanmax(finite)
        reach = max(high - low, 1e-6 * max(abs(high), 1.0))
        axes.set_ylim(low - 0.25 * reach, high + 0.06 * reach)
        axes.set_xlim(0, steps)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("steps")
        axes.set_ylabel("bound, in nats")
        axes.spines["left"].set_visible(False)

    return svg(draw, (7.2, 2.4), "The bound over the climb")


def forest(labels: list[str], middle: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    """An estimate and its interval a line."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at = np.arange(len(labels))
        axes.axvline(0, color=LINE, linewidth=0.8)
        axes.hlines(at, low, high, color=COLOURS[0], linewidth=1.4)
        axes.plot(middle, at, "o", color=COLOURS[0], markersize=4)
        rows(axes, labels)

    return svg(draw, (7.2, 0.55 + 0.2 * len(labels)), "Estimates and their intervals")


def inflation(labels: list[str], shares: np.ndarray, tolerance: float) -> str:
    """Predicted inflation of every marginal sd, against what is tolerated."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at = np.arange(len(labels))
        within = np.abs(shares) <= tolerance
        known = np.nan_to_num(shares, posinf=np.nan, neginf=np.nan)
        axes.axvspan(-tolerance, tolerance, color=MUTED, alpha=0.13, linewidth=0)
        axes.axvline(0, color=LINE, linewidth=0.8)
        axes.barh(at, np.nan_to_num(known), height=0.55, color=np.where(within, COLOURS[0], COLOURS[1]))
        reach = 1.12 * max(tolerance, np.max(np.nan_to_num(known)))
        axes.set_xlim(min(-0.12 * tolerance, 1.12 * np.min(np.nan_to_num(known))), reach)
        for row in np.flatnonzero(~np.isfinite(shares)):
            axes.text(0, float(row), " unstable", va="center", color=BAD)
        axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.3g} %".replace("-", "−"))
        rows(axes, labels)

    return svg(draw, (7.2, 0.55 + 0.2 * len(labels)), "Predicted inflation of every marginal sd")


def reliability(probability: np.ndarray, happened: np.ndarray) -> str:
    """How often what was given a probability happened, in bins of like number; bars are 90 % Wilson intervals."""

    def draw(figure: Figure) -> None:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
        order = np.argsort(probability, kind="stable")
        bins = [b for b in np.array_split(order, min(10, max(1, len(order) // 10))) if len(b)]
        told = np.array([probability[b].mean() for b in bins])
        seen, sizes = np.array([happened[b].mean() for b in bins]), np.array([len(b) for b in bins])
        z2 = 1.645**2
        centre = (seen + z2 / (2 * sizes)) / (1 + z2 / sizes)
        half = np.sqrt(z2 * (seen * (1 - seen) / sizes + z2 / (4 * sizes**2))) / (1 + z2 / sizes)
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, dashes=(4, 3))
        axes.vlines(told, centre - half, centre + half, color=COLOURS[0], linewidth=1.2)
        axes.plot(told, seen, "o", color=COLOURS[0], markersize=4.5)
        axes.set_ylim(-0.04, 1.04)
        axes.set_ylabel("happened")
        axes.xaxis.set_tick_params(length=0)
        below.hist(probability, np.linspace(0, 1, 21), color=MUTED, alpha=0.5, rwidth=0.8)
        bare(below)
        below.set_xlabel("probability given")
        below.set_xlim(-0.03, 1.03)

    return svg(draw, (3.7, 3.2), "Reliability diagram")


def pit(values: np.ndarray) -> str:
    """The share of the predictive distribution below each number seen; level where it is calibrated."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        bins = 10 if len(values) < 500 else 20
        low, high = stats.binom.ppf([0.025, 0.975], len(values), 1 / bins)
        axes.hist(values, np.linspace(0, 1, bins + 1).tolist(), color=COLOURS[0], alpha=0.5, rwidth=0.92)
        axes.axhline(len(values) / bins, color=INK, linewidth=0.9)
        for edge in (low, high):
            axes.axhline(edge, color=INK, linewidth=0.7, dashes=(4, 3))
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of the prediction below what was seen")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.spines["left"].set_visible(False)

    return svg(draw, (3.7, 2.6), "Histogram of probability integral transforms")


def overlay(named: dict[str, dict[str, Any]], reference: tuple[float, float] | None = None) -> str:
    """One parameter by several methods: densities above, means and intervals below.

    Args:
        named: for each method its ``mean``, ``bounds`` and ``draws`` (n,) or None.
        reference: the mean and sd that are thought exact.
    """

    def draw(figure: Figure) -> None:
        top, axes = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, 0.16 * len(named) + 0.1])
        if reference is not None:
            mean, sd = reference
            axes.axvspan(mean - 1.645 * sd, mean + 1.645 * sd, color=MUTED, alpha=0.13, linewidth=0)
            axes.axvline(mean, color=MUTED, linewidth=0.8, dashes=(4, 3))
            x = mean + sd * np.linspace(-3.2, 3.2, 200)
            top.fill_between(x, stats.norm.pdf(x, mean, sd), color=MUTED, alpha=0.2, linewidth=0)
        for row, (one, colour) in enumerate(zip(named.values(), COLOURS * len(named), strict=False)):
            if one["draws"] is not None:
                top.plot(*density(one["draws"]), color=colour, linewidth=1)
            axes.hlines(row, *one["bounds"], color=colour, linewidth=1.8)
            axes.plot([one["mean"]], [row], "o", color=colour, markersize=4)
        top.set_ylim(0)
        bare(top)
        top.spines["bottom"].set_visible(False)
        top.xaxis.set_tick_params(length=0)
        rows(axes, list(named))
        axes.grid(False)

    return svg(draw, (3.7, 1.6 + 0.19 * len(named)), "A parameter by every method")


def density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel estimate over the middle 99.6 % of finite draws, not smeared beyond their range."""
    finite = np.asarray(values, np.float64)[np.isfinite(values)]
    if len(finite) < 4 or np.ptp(finite) == 0:
        at = finite.mean() if len(finite) else 0.0
        return np.array([at, at, at]), np.array([0.0, 1.0, 0.0])
    low, high = np.quantile(finite, [0.002, 0.998])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, height, _ = array_stats.kde(finite, bound_correction=True, grid_len=256)
    kept = (x >= low) & (x <= high)
    return x[kept], height[kept]


def dots(axes: Any, x: np.ndarray, y: np.ndarray, colour: str, size: float, alpha: float) -> None:
    """Round dots as one path of strokes without length: a tenth of the bytes of markers."""
    ends = np.stack([x, y], -1)[np.isfinite(x) & np.isfinite(y)].repeat(2, 0)
    ends[1::2, 0] += 1e-4 * (np.ptp(ends[:, 0]) if len(ends) else 1)
    path = Path(ends, np.tile([Path.MOVETO, Path.LINETO], len(ends) // 2))
    path.should_simplify = False
    axes.add_patch(PathPatch(path, fill=False, edgecolor=colour, linewidth=size, alpha=alpha, capstyle="round"))
    axes.autoscale_view()


def bare(axes: Any) -> None:
    """Leave only the x axis."""
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))


def rows(axes: Any, labels: list[str]) -> None:
    """A labelled line for each name, the first on top."""
    axes.set_yticks(np.arange(len(labels)), labels, color=INK)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", color=LINE, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def criterion(tried: np.ndarray, values: np.ndarray, best: int, unsound: np.ndarray) -> str:
    """A criterion (k,) against what was tried: the one chosen is filled, unsound ones are crosses off the line."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        sound = ~unsound & np.isfinite(values)
        crossed = unsound & np.isfinite(values)
        axes.plot(tried[sound], values[sound], "o-", color=COLOURS[0], markerfacecolor=PAPER, markersize=4.5)
        axes.plot(tried[crossed], values[crossed], "x", color=BAD, markersize=5.5)
        if np.isfinite(values[best]):
            axes.plot(tried[best], values[best], "o", color=BAD if unsound[best] else COLOURS[0], markersize=8)
        axes.margins(x=0.05, y=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("components")
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", color=LINE, linewidth=0.5, alpha=0.6)

    return svg(draw, (3.7, 2.3), "A criterion against the number of components")


def climbs(traces: np.ndarray) -> str:
    """What climbs (start, step) side by side came to, NaN after a climb's end."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ends, heights = [], []
        for one, colour in zip(traces, COLOURS * len(traces), strict=False):
            finite = np.flatnonzero(np.isfinite(one))
            if not len(finite):
                continue
            axes.plot(finite, one[finite], color=colour, linewidth=1.1, alpha=0.85)
            axes.plot(finite[-1:], one[finite[-1:]], "o", color=colour, markersize=4)
            ends.append(one[finite[-1]])
            heights.append(one[finite[min(2, len(finite) - 1) :]].min())
        # The first steps may be a thousand times lower: the end is what is looked at.
        low, high = min(heights), max(ends)
        reach = max(high - low, 1e-6 * max(abs(high), 1.0))
        axes.set_ylim(high - 1.12 * reach, high + 0.08 * reach)
        axes.set_xlim(0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("steps")
        axes.set_ylabel("nats a row")
        axes.spines["left"].set_visible(False)

    return svg(draw, (7.2, 2.4), "Log likelihood of every start over its steps")


def components(
    values: np.ndarray,
    likeliest: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    covariances: np.ndarray,
    labels: list[str],
) -> str:
    """Rows (n, k) of every two columns, coloured by component, and the ellipses that hold 90 % of each component.

    Args:
        values: NaN where a number is missing.
        likeliest: (n,) component of each row, from 0.
        weights, means, covariances: (K,), (K, k) and (K, k, k).
        labels: of the k columns.
    """
    circle = np.stack([np.cos(turn := np.linspace(0, 2 * np.pi, 73)), np.sin(turn)])
    radius = np.sqrt(stats.chi2.ppf(0.9, 2))
    every = [COLOURS[i % len(COLOURS)] for i in range(len(weights))]

    def ellipse(axes: Any, i: int, at: list[int]) -> None:
        roots, basis = np.linalg.eigh(covariances[i][np.ix_(at, at)])
        x, y = means[i][at][:, None] + basis @ (radius * np.sqrt(np.maximum(roots, 0))[:, None] * circle)
        axes.plot(x, y, color=every[i], linewidth=1.3)
        around = {"boxstyle": "circle,pad=0.12", "facecolor": PAPER, "edgecolor": every[i], "linewidth": 0.8}
        axes.text(*means[i][at], str(i + 1), color=every[i], fontsize=7, ha="center", va="center", bbox=around)

    def densities(axes: Any, column: int) -> None:
        seen = values[np.isfinite(values[:, column]), column]
        bins = int(np.clip(2 * len(seen) ** (1 / 3), 8, 40))
        axes.hist(seen, bins, density=True, color=MUTED, alpha=0.28, linewidth=0)
        for i, colour in enumerate(every):
            sd = float(np.sqrt(covariances[i, column, column]))
            x = means[i, column] + sd * np.linspace(-3.5, 3.5, 120)
            axes.plot(x, weights[i] * stats.norm.pdf(x, means[i, column], sd), color=colour)
        bare(axes)

    def draw(figure: Figure) -> None:
        count = len(labels)
        grid = figure.subplots(count, count, sharex="col", squeeze=False)
        for row, column in np.ndindex(count, count):
            axes: Any = grid[row, column]
            if column > row:
                axes.set_visible(False)
            elif column == row:
                densities(axes, row)
            else:
                for i, colour in enumerate(every):
                    its = likeliest == i
                    if not its.any():
                        continue
                    dots(axes, values[its, column], values[its, row], colour, 2.2, 0.5)
                for i in range(len(every)):
                    ellipse(axes, i, [column, row])
                axes.yaxis.set_major_locator(MaxNLocator(3))
            axes.xaxis.set_major_locator(MaxNLocator(3))
            axes.tick_params(labelleft=column == 0 < row)
            if row == count - 1:
                axes.set_xlabel(labels[column], color=INK)
            if column == 0 < row:
                axes.set_ylabel(labels[row], color=INK)
        figure.align_labels()

    side = 1.75 * len(labels)
    return svg(draw, (max(side, 4.4), max(0.9 * side, 2.6)), "Rows and components in every two columns")
