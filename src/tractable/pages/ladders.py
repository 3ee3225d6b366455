"""The sections of a report that show a ladder at work: rows drawn and given again, codes, and what units stand for."""

import base64
import functools
import io
import math
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator

from tractable.models.ladder import Ladder
from tractable.objectives.moments import moments
from tractable.pages import plots
from tractable.pages.markup import COLOURS, INK, MUTED, grid, section, shown, strip, svg
from tractable.pages.plots import bare, dots
from tractable.results import encoding as coding
from tractable.tools import tree
from tractable.tools.errors import DataError

PyTree = Any
Shape = tuple[int, int] | None
DRAWN, COLUMNS = 36, 6  # rows drawn from the model
AGAIN = 12  # rows given again
MAPPED = 1500  # rows whose codes are drawn
TRAVERSED = 10  # units of the top that are traversed, at most
STEPS = 9  # of a traversal, from −2 to 2 sd
LEAST = 16  # numbers of a row that is a picture
CELL = 44  # CSS pixels of a picture among others
OVERLAID = 60  # rows in one figure of lines
PALEST = 246  # of 255: pictures end where they end


def ladder_sections(posterior: Any, shape: Shape = None) -> str:
    """Layers, climb, rows from the model, rows again, codes and traversals, as far as each is there.

    Args:
        posterior: of a ladder at one θ.
        shape: (height, width) of a row that is a picture; by default square where its numbers are a square, and lines
            elsewhere.
    """
    ladder, theta = coding.theta_of(posterior, "report")
    shape = picture(ladder.visible.size, shape)
    data = rows_shown(posterior, MAPPED)
    parts = [layers_section(posterior, ladder, theta), climb_section(posterior)]
    parts.append(drawn_section(posterior, ladder, data, shape))
    if posterior.phi is not None and data is not None:
        parts += [again_section(posterior, ladder, data[:AGAIN], shape), codes_section(posterior, ladder, data)]
    parts.append(traversal_section(ladder, theta, data, shape))
    return "".join(parts)


def picture(size: int, shape: Shape) -> Shape:
    """(height, width) of rows that are pictures; None where they are not."""
    if shape is not None:
        if len(shape) != 2 or math.prod(shape) != size:
            raise DataError(f"shape= is (height, width) of the {size} numbers of a row; got {shape}.")
        return shape
    side = math.isqrt(size)
    return (side, side) if side * side == size and size >= LEAST else None


def rows_shown(posterior: Any, most: int) -> np.ndarray | None:
    """Some rows learnt from, evenly chosen and in mixed order; None where they are not there."""
    if posterior.data is None:
        return None
    size = posterior.data.size
    index = np.unique(np.linspace(0, size - 1, min(most, size)).astype(int))
    return np.asarray(posterior.data.rows[0][np.random.default_rng(0).permutation(index)])


def pixels(ladder: Ladder, values: np.ndarray) -> np.ndarray:
    """(row, n) numbers to draw: of a categorical unit's probabilities the mean level."""
    levels = ladder.visible.family.levels
    if values.shape[-1] == ladder.visible.size:
        return np.asarray(values, float)
    return values.reshape(*values.shape[:-1], -1, levels) @ np.arange(levels)


def layers_section(posterior: Any, ladder: Ladder, theta: PyTree) -> str:
    """What the layers are, and what they do."""
    found, rows = posterior.found, []
    for i, (name, layer) in reversed(list(enumerate(zip(ladder.layer_names, ladder.layers, strict=True)))):
        active, cost = found.get(f"active h{i}") if i else None, found.get(f"cost h{i}") if i else None
        cells = [f"{layer.size:,}", escape(layer.family.name), f"{tree.size(theta[name]):,}"]
        cells += ["" if active is None else f"{active:,}", "" if cost is None else shown(float(cost), ".3g")]
        rows.append(f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    note = (
        "From the top down. A unit is active where its mean depends on x; the cost is what the bound pays for a layer."
    )
    return section("Layers", grid(["layer", "units", "family", "weights", "active", "cost, nats a row"], rows), note)


def climb_section(posterior: Any) -> str:
    """The noisy bound a row, on the way up."""
    bound = np.asarray(posterior.info.get("objective", ()), float).ravel() / max(posterior.rows, 1)
    if posterior.phi is None or np.isfinite(bound).sum() < 2:
        return ""
    drawn = plots.climb(bound, posterior.found.get("steps", len(bound)))
    return section(
        "Climb", f'<figure class="chart">{drawn}</figure>', "What was climbed, a row, noisy; its running mean."
    )


def drawn_section(posterior: Any, ladder: Ladder, data: np.ndarray | None, shape: Shape) -> str:
    """Rows from the model beside rows of data."""
    made = coding.generate(posterior, DRAWN if shape else OVERLAID)
    mean, x = pixels(ladder, made.mean), np.asarray(made.x, float)
    sets = {} if data is None else {"data": pixels(ladder, data[: len(mean)])}
    sets |= {"drawn: E[x | h¹]": mean, "drawn: x": x}
    low, high = spread(sets)
    if shape is None:
        drawn = [lines(rows, (low, high)) for rows in sets.values()]
    else:
        drawn = [mosaic(rows, shape, COLUMNS, (low, high), name) for name, rows in sets.items()]
    note = "h from the top down; then the mean of x given h¹, and x drawn from it."
    return section("Drawn from the model", strip(drawn, [f"<b>{name}</b>" for name in sets]), note)


def again_section(posterior: Any, ladder: Ladder, data: np.ndarray, shape: Shape) -> str:
    """Rows, and what is left of them after a code."""
    again = pixels(ladder, coding.reconstruct(posterior, data, draws=1))
    data = pixels(ladder, data)
    limits = spread({"data": data, "again": again})
    if shape is None:
        drawn = strip([pair(a, b, limits) for a, b in zip(data[:6], again[:6], strict=True)], [""] * len(data[:6]))
        return section("Rows again", drawn, "A row, dotted, and its mean given one h ~ q(h | x).")
    both = mosaic(np.concatenate([data, again]), shape, len(data), limits, "rows above, given again below")
    return section(
        "Rows again", f"<figure>{both}</figure>", "Above rows of data; below their mean given one h ~ q(h | x)."
    )


def codes_section(posterior: Any, ladder: Ladder, data: np.ndarray) -> str:
    """Where rows lie in the space of the top layer that says anything."""
    active = [i for i in range(ladder.depth) if posterior.found.get(f"active h{i + 1}", 1)]
    at = max(active, default=0)
    mean = np.asarray(coding.encode(posterior, data).mean[at], float)
    name, count = f"h{at + 1}", mean.shape[1]
    if count == 1:
        drawn, note = histogram(mean[:, 0], f"E[{name} | x]"), f"The mean of {name}, its one unit, over rows."
    elif count == 2:
        drawn, note = scatter(mean, [f"{name}[0]", f"{name}[1]"]), f"The mean of {name} given each row."
    else:
        centred = mean - mean.mean(0)
        left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
        share = np.square(sizes[:2]).sum() / max(np.square(sizes).sum(), 1e-300)
        drawn = scatter(left[:, :2] * sizes[:2], ["first component", "second component"])
        note = f"The means of {name} given each row: two principal components, {share:.0%} of the variance of {count}."
    return section("Codes", f'<figure class="chart">{drawn}</figure>', note)


def traversal_section(ladder: Ladder, theta: PyTree, data: np.ndarray | None, shape: Shape) -> str:
    """What each unit of a small normal top stands for: one moved from −2 to 2 sd, the others at their mean."""
    top, normal = ladder.layers[-1], all(layer.family.name == "Normal" for layer in ladder.layers[1:])
    if not normal or top.size > TRAVERSED:
        return ""
    steps = np.linspace(-2, 2, STEPS)
    mean = pixels(ladder, np.asarray(_traversed(ladder, theta, jnp.asarray(steps))))  # (unit, step, n)
    sets = {"traversed": mean.reshape(-1, mean.shape[-1])}
    limits = spread(sets if data is None else sets | {"data": pixels(ladder, data)})
    names = f"h{ladder.depth}"
    note = f"A line for each unit of {names}, from −2 to 2 sd of it, the others at their mean"
    note += "; layers between at theirs." if ladder.depth > 1 else "."
    if shape is not None:
        whole = mosaic(sets["traversed"], shape, STEPS, limits, f"traversals of {names}")
        return section("Traversals", f"<figure>{whole}</figure>", note)
    drawn = [lines(rows, limits, ordered=True) for rows in mean]
    heads = [f"<b>{names}[{i}]</b>" for i in range(len(mean))]
    return section("Traversals", strip(drawn, heads), note.replace("A line", "A figure") + " Darker is higher.")


@functools.partial(jax.jit, static_argnames="ladder")
def _traversed(ladder: Ladder, theta: PyTree, steps: jax.Array) -> jax.Array:
    """E[x | h^L] with every layer between at its mean, (unit, step, n)."""
    top = ladder.layers[-1]
    mean, variance = moments(top.distribution(theta[ladder.layer_names[-1]], None))
    moved = steps[None, :, None] * (jnp.eye(top.size) * jnp.sqrt(variance)[None])[:, None]  # (unit, step, unit)
    value = mean[None, None] + moved
    for layer, below, name in zip(ladder.layers[:0:-1], ladder.layers[-2::-1], ladder.layer_names[-2::-1], strict=True):
        value = moments(below.distribution(theta[name], layer.features(value)))[0]
    return value


# Figures.


def spread(sets: dict[str, np.ndarray]) -> tuple[float, float]:
    """The numbers that are drawn palest and darkest: of numbers in [0, 1] those, else all but the outermost."""
    values = np.concatenate([np.ravel(rows) for rows in sets.values()])
    if values.min() >= 0 and values.max() <= 1:
        return 0.0, 1.0
    low, high = (float(v) for v in np.quantile(values, [0.005, 0.995]))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def mosaic(rows: np.ndarray, shape: tuple[int, int], columns: int, limits: tuple[float, float], title: str) -> str:
    """Rows (row, n) as pictures side by side, ink where they are high; a PNG within the page."""
    height, width = shape
    low, high = limits
    ink = np.clip((np.asarray(rows, float) - low) / (high - low), 0, 1).reshape(-1, height, width)
    gap = max(1, width // 12)
    lines = -(-len(ink) // columns)
    out = np.zeros((lines * (height + gap) - gap, columns * (width + gap) - gap, 4), np.uint8)
    for i, one in enumerate(ink):
        y, x = (i // columns) * (height + gap), (i % columns) * (width + gap)
        out[y : y + height, x : x + width, :3] = np.round(PALEST * (1 - one))[..., None]
        out[y : y + height, x : x + width, 3] = 255
    file = io.BytesIO()
    imsave(file, out, format="png")
    source = base64.b64encode(file.getvalue()).decode()
    style = f"width:{columns * CELL}px;max-width:100%;image-rendering:pixelated;display:block"
    return f'<img alt="{escape(title)}" style="{style}" src="data:image/png;base64,{source}">'


def lines(rows: np.ndarray, limits: tuple[float, float], *, ordered: bool = False) -> str:
    """Rows (row, n) as lines over their numbers; ordered ones from pale to dark."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        shades = np.linspace(0.15, 1.0, len(rows)) if ordered else np.full(len(rows), min(1.0, 8 / len(rows)))
        for row, shade in zip(rows, shades, strict=True):
            axes.plot(np.arange(len(row)), row, color=COLOURS[0], linewidth=0.9, alpha=float(shade))
        framed(axes, rows.shape[1], limits)

    return svg(draw, plots.PANEL, "Rows as lines", 34)


def pair(row: np.ndarray, again: np.ndarray, limits: tuple[float, float]) -> str:
    """A row, dotted, and it given again."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(np.arange(len(row)), row, color=INK, linewidth=0.9, dashes=(1, 1.5))
        axes.plot(np.arange(len(row)), again, color=COLOURS[0], linewidth=1.2)
        framed(axes, len(row), limits)

    return svg(draw, plots.PANEL, "A row and the same given again", 34)


def framed(axes: Any, count: int, limits: tuple[float, float]) -> None:
    reach = limits[1] - limits[0]
    axes.set_ylim(limits[0] - 0.06 * reach, limits[1] + 0.06 * reach)
    axes.set_xlim(-0.2, count - 0.8)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.spines["left"].set_visible(False)


def scatter(values: np.ndarray, labels: list[str]) -> str:
    """Rows (row, 2) as dots."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        dots(axes, values[:, 0], values[:, 1], COLOURS[0], 2.6, 0.5)
        axes.margins(0.04)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_locator(MaxNLocator(5))

    return svg(draw, (7.2, 4.0), "Codes of rows")


def histogram(values: np.ndarray, label: str) -> str:
    """Of one number a row."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.hist(values, 40, color=MUTED, alpha=0.5, linewidth=0)
        axes.set_xlabel(label)
        bare(axes)

    return svg(draw, (7.2, 2.2), "Codes of rows")
