"""The sections of a ladder's page: rows drawn from the model, reconstructions, codes, and the effects of units.

A ladder is a model with one or more layers of latent variables h¹, …, h^L above the visible x.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Canvas

from tractable.core import tree
from tractable.core.errors import DataError
from tractable.core.shared import compiled
from tractable.core.tree import PyTree
from tractable.core.words import counted
from tractable.ladders import encoding as coding
from tractable.ladders.bounds import moments
from tractable.ladders.ladder import Ladder
from tractable.pages import plots
from tractable.pages.plots import drawing, tidy
from tractable.pages.sections import Cell, Picture, Section, Table
from tractable.pages.style import COLOURS, INK
from tractable.posterior.posterior import Posterior

Shape = tuple[int, int] | None
Limits = tuple[float, float]
DRAWN, COLUMNS = 36, 6  # how many rows are drawn from the model, and in how many columns their pictures are shown
AGAIN = 12  # how many rows are reconstructed
MAPPED = 1500  # the largest number of rows whose codes are drawn
TRAVERSED = 10  # the largest size of a top layer for which the effects of its units are shown
STEPS = 9  # how many values of a unit are shown, from −2 to 2 sd
LEAST = 16  # the smallest number of numbers of a row that is shown as a picture
CELL = 44  # the width of a picture in a mosaic, in CSS pixels
OVERLAID = 60  # how many rows one figure of lines shows
PALEST = 246  # the brightest grey, of 255, so that a picture's edges are visible on white


def sections(posterior: Posterior, shape: Shape = None) -> list[Section]:
    """The sections on layers, drawn rows, reconstructions, codes and traversals, as far as each applies."""
    ladder, theta = coding.theta_of(posterior, "report")
    shape = picture(ladder.visible.size, shape)
    data = some_rows(posterior, MAPPED)
    out = [layers(ladder, posterior.found)]
    encoder = posterior.phi is not None
    out.append(drawn_rows(posterior, ladder, data, shape))
    if encoder and data is not None:
        out += [reconstructions(posterior, ladder, data[:AGAIN], shape), *codes(posterior, ladder, data)]
    return out + traversals(ladder, theta, data, shape)


def sentence(posterior: Posterior) -> str:
    """What the model makes of a row, in words."""
    ladder, _ = coding.theta_of(posterior, "report")
    sizes = " and then ".join(counted(layer.size, "latent number") for layer in ladder.layers[1:])
    return f"The model describes each row of {counted(ladder.visible.size, 'number')} by {sizes}."


def picture(size: int, shape: Shape) -> Shape:
    """(height, width) of rows that are pictures; None for other rows."""
    if shape is not None:
        if len(shape) != 2 or math.prod(shape) != size:
            raise DataError(f"shape= must be (height, width), for the {size} numbers of a row; got {shape}.")
        return shape
    side = math.isqrt(size)
    return (side, side) if side * side == size and size >= LEAST else None


def some_rows(posterior: Posterior, most: int) -> np.ndarray | None:
    """At most ``most`` fitted rows, evenly spaced, in random order; None if there are no data."""
    if posterior.data is None:
        return None
    size = posterior.data.size
    index = np.unique(np.linspace(0, size - 1, min(most, size)).astype(int))
    return np.asarray(posterior.data.rows[0][np.random.default_rng(0).permutation(index)])


def pixels(ladder: Ladder, values: np.ndarray) -> np.ndarray:
    """The numbers to draw, (row, n); a categorical unit's probabilities are replaced by its mean level."""
    levels = ladder.visible.family.levels
    if values.shape[-1] == ladder.visible.size:
        return np.asarray(values, float)
    return values.reshape(*values.shape[:-1], -1, levels) @ np.arange(levels)


def layers(ladder: Ladder, found: Mapping[str, Any]) -> Section:
    """A table of the model's layers."""
    rows = []
    for i in range(ladder.depth, -1, -1):
        name, layer = ladder.layer_names[i], ladder.layers[i]
        active, cost = (found.get(f"{what} h{i}") if i else None for what in ("active", "cost"))
        rows.append([
            name, Cell(layer.size, ",d"), layer.family.name, Cell(tree.size(ladder.space.shapes[name]), ",d"),
            "" if active is None else Cell(active, ","), "" if cost is None else Cell(float(cost), ".3g"),
        ])  # fmt: skip
    heads = ["layer", "units", "family", "weights", "active", "cost, nats per row"]
    note = (
        "From the top layer down. A unit is active if its mean depends on x. The cost of a layer is its KL divergence, "
        "which the bound on the log likelihood subtracts."
    )
    return Section("Layers", [Table(heads, rows)], note)


def drawn_rows(posterior: Posterior, ladder: Ladder, data: np.ndarray | None, shape: Shape) -> Section:
    """Rows drawn from the model, next to rows of the data."""
    made = coding.generate(posterior, DRAWN if shape else OVERLAID)
    mean, x = pixels(ladder, made.mean), np.asarray(made.x, float)
    sets = {} if data is None else {"data": pixels(ladder, data[: len(mean)])}
    sets |= {"drawn: E[x | h¹]": mean, "drawn: x": x}
    limits = limits_of(sets)
    drawn = [
        lines(rows, limits, caption=name) if shape is None else mosaic(rows, shape, COLUMNS, limits, name, name)
        for name, rows in sets.items()
    ]
    note = "The layers h are drawn from the top down. Shown are the mean of x given h¹, and an x drawn given h¹."
    return Section("Drawn from the model", drawn, note)


def reconstructions(posterior: Posterior, ladder: Ladder, data: np.ndarray, shape: Shape) -> Section:
    """Rows and their reconstructions."""
    again = pixels(ladder, coding.reconstruct(posterior, data, draws=1))
    data = pixels(ladder, data)
    limits = limits_of({"data": data, "again": again})
    if shape is None:
        drawn = [lines(b[None], limits, dotted=a) for a, b in zip(data[:6], again[:6], strict=True)]
        note = "A row (dotted), and its reconstruction (line): the mean of x given one h ~ q(h | x)."
        return Section("Reconstructions", drawn, note)
    both = mosaic(np.concatenate([data, again]), shape, len(data), limits, "rows above, their reconstructions below")
    note = "Above: rows of the data. Below: their reconstructions, the mean of x given one h ~ q(h | x)."
    return Section("Reconstructions", [both], note)


def codes(posterior: Posterior, ladder: Ladder, data: np.ndarray) -> list[Section]:
    """The codes of rows: the means given each row of the highest layer with active units (whose means depend on x)."""
    active = [i for i in range(ladder.depth) if posterior.found.get(f"active h{i + 1}", 1)]
    at = max(active, default=0)
    mean = np.asarray(coding.encode(posterior, data).mean[at], float)
    name, count = f"h{at + 1}", mean.shape[1]
    if count == 1:
        one, note = mean[:, 0], f"The density, mean and middle 90 % of E[{name} | x], the code of a row."
        drawn = plots.marginal(one, one.mean(), tuple(np.quantile(one, [0.05, 0.95])))
        return [Section("Codes", [drawn], note)]
    first, labels, note = mean, (f"{name}[0]", f"{name}[1]"), f"The mean of each unit of {name}, given each row."
    if count > 2:
        left, sizes, _ = np.linalg.svd(mean - mean.mean(0), full_matrices=False)
        share = np.square(sizes[:2]).sum() / max(np.square(sizes).sum(), 1e-300)
        first, labels = left[:, :2] * sizes[:2], ("first component", "second component")
        note = f"The means of {name} given each row: two principal components, {share:.0%} of the variance of {count}."
    return [Section("Codes", [plots.scatter(*first.T, labels)], note)]


def traversals(ladder: Ladder, theta: PyTree, data: np.ndarray | None, shape: Shape) -> list[Section]:
    """The effect of each unit of a small normal top layer: it goes from −2 to 2 sd, with the others at their means."""
    top, normal = ladder.layers[-1], all(layer.family.name == "Normal" for layer in ladder.layers[1:])
    if not normal or top.size > TRAVERSED:
        return []
    steps = np.linspace(-2, 2, STEPS)
    mean = pixels(ladder, np.asarray(traverse(ladder, theta, jnp.asarray(steps))))  # (unit, step, n)
    sets = {"traversed": mean.reshape(-1, mean.shape[-1])}
    limits = limits_of(sets if data is None else sets | {"data": pixels(ladder, data)})
    name, what = f"h{ladder.depth}", "Each line of pictures" if shape is not None else "Each figure"
    note = f"{what} shows the mean of x for one unit of {name} from −2 to 2 sd, with the other units at their means"
    note += " and each layer below at its mean." if ladder.depth > 1 else "."
    if shape is not None:
        return [Section("Traversals", [mosaic(sets["traversed"], shape, STEPS, limits, f"traversals of {name}")], note)]
    drawn = [lines(rows, limits, ordered=True, caption=f"{name}[{i}]") for i, rows in enumerate(mean)]
    return [Section("Traversals", drawn, note + " Darker lines are for higher values of the unit.")]


@compiled("ladder")
def traverse(ladder: Ladder, theta: PyTree, steps: jax.Array) -> jax.Array:
    """E[x | h^L], (unit, step, n), with every layer in between at its mean."""
    top = ladder.layers[-1]
    mean, variance = moments(top.distribution(theta[ladder.layer_names[-1]], None))
    moved = steps[None, :, None] * (jnp.eye(top.size) * jnp.sqrt(variance)[None])[:, None]  # (unit, step, unit)
    value = mean[None, None] + moved
    for layer, below, name in zip(ladder.layers[:0:-1], ladder.layers[-2::-1], ladder.layer_names[-2::-1], strict=True):
        value = moments(below.distribution(theta[name], layer.features(value)))[0]
    return value


def limits_of(sets: Mapping[str, np.ndarray]) -> Limits:
    """The values that are drawn palest and darkest.

    They are 0 and 1 if all values lie between these, and else the 0.5 % and 99.5 % quantiles of the values.
    """
    values = np.concatenate([np.ravel(rows) for rows in sets.values()])
    if values.min() >= 0 and values.max() <= 1:
        return 0.0, 1.0
    low, high = (float(v) for v in np.quantile(values, [0.005, 0.995]))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def mosaic(
    rows: np.ndarray, shape: tuple[int, int], columns: int, limits: Limits, title: str, caption: str = ""
) -> Picture:
    """Rows (row, n) as pictures next to each other, dark where values are high."""
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
    return Picture(out, columns * CELL, title, caption)


@drawing("Rows as lines")
def lines(
    canvas: Canvas, rows: np.ndarray, limits: Limits, *, ordered: bool = False, dotted: np.ndarray | None = None
) -> None:
    """Draw rows (row, n) as lines, from pale to dark if ``ordered``, and the row ``dotted`` (n,) as a dotted line."""
    axes, height = canvas.subplots(), limits[1] - limits[0]
    shades = np.linspace(0.15, 1.0, len(rows)) if ordered else np.full(len(rows), min(1.0, 8 / len(rows)))
    if dotted is not None:
        axes.plot(np.arange(len(dotted)), dotted, color=INK, linewidth=0.9, dashes=(1, 1.5))
    for row, shade in zip(rows, shades, strict=True):
        axes.plot(np.arange(len(row)), row, color=COLOURS[0], linewidth=0.9, alpha=float(shade))
    axes.set_ylim(limits[0] - 0.06 * height, limits[1] + 0.06 * height)
    axes.set_xlim(-0.2, rows.shape[1] - 0.8)
    tidy(axes, 6, whole=True)
