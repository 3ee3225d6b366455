"""Renders sections as one HTML file that needs no other file, no network and no script."""

import base64
import datetime
import functools
import importlib.metadata
import io
import pathlib
import re
import warnings
from collections.abc import Sequence
from html import escape
from typing import Any

import jinja2
import matplotlib
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.image import imsave

from tractable.core.writing import write_atomically
from tractable.pages.sections import ROWS, Figure, Part, Picture, Section, Value, cell, text
from tractable.pages.style import MATPLOTLIB, STAND_IN
from tractable.pages.terms import explainer

HERE = pathlib.Path(__file__).parent
SIGNS = {"trust": "M3 8.5l3.3 3.3L13 4.6", "caution": "M8 3v6M8 12.4v.2"}  # SVG paths; other verdicts have a cross
CROSS = "M4 4l8 8M12 4l-8 8"


def write(folder: str | pathlib.Path, title: str, sections: Sequence[Section], by: str) -> pathlib.Path:
    """Write ``report.html`` with the sections into a folder, which is made if necessary; return the file's path."""
    path = pathlib.Path(folder) / "report.html"
    write_atomically(path, html(title, sections, by).encode())
    return path


def html(title: str, sections: Sequence[Section], by: str, whole: bool = True) -> str:
    """A page of HTML; if not ``whole``, only the sections, with a style sheet that applies to them only."""
    style = (HERE / "page.css").read_text(encoding="utf-8")
    if not whole:
        style = "@scope (.tractable) {\n" + re.sub(r"(?m)^( *)(:root|body) \{", r"\1:scope {", style) + "}\n"
    return _template().render(
        title=title, by=by, sections=sections, whole=whole, style=Markup(style), explain=explainer(),
        version=importlib.metadata.version("tractable"), today=datetime.date.today().isoformat(),
    )  # fmt: skip


@functools.cache
def _template() -> jinja2.Template:
    places = jinja2.Environment(autoescape=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    places.filters |= {"shown": lambda cell: shown(cell.value, cell.form), "cell": cell, "svg": svg, "png": png}
    places.filters["kind"] = lambda part: type(part).__name__
    places.globals |= {"signs": SIGNS, "cross": CROSS, "most": ROWS}
    return places.from_string((HERE / "page.html.jinja").read_text(encoding="utf-8"))


def shown(value: Value, form: str | None = None) -> str:
    """A value as text, with a true minus sign."""
    return text(value, form, "−")


def draw_figures(parts: Sequence[Part]) -> list[Any]:
    """The parts with figures that were drawn, so that writing them takes no time."""

    def draw(part: Part) -> Part:
        if isinstance(part, Section):
            return part._replace(parts=draw_figures(part.parts))
        return part._replace(svg=svg(part)) if isinstance(part, Figure) else part

    return list(map(draw, parts))


def svg(figure: Figure) -> Markup:
    """A figure as an SVG element without links, ids of its own or fixed colours."""
    if figure.svg:
        return Markup(figure.svg)
    out = io.StringIO()
    with matplotlib.rc_context(MATPLOTLIB), warnings.catch_warnings():
        # matplotlib warns of characters that its own font lacks; the font of the page may have them.
        warnings.simplefilter("ignore")
        canvas = Canvas(figsize=figure.size, layout="constrained")
        figure.draw(canvas)
        for axes in canvas.axes:
            axes.set_facecolor("none")
        canvas.patch.set_facecolor("none")
        # ``savefig`` would draw everything twice, the first time to find the layout.
        if engine := canvas.get_layout_engine():
            engine.execute(canvas)
            canvas.set_layout_engine("none")
        nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
        FigureCanvasSVG(canvas).print_svg(out, metadata=nothing)
    drawn = out.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    for pattern, instead in (
        (r"(?s)<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", ""),
        (r'<g id="[^"]*"', "<g"),
        (r"(\d\.\d\d)\d+", r"\1"),
        (r"font-family: [^;\"]*", "font-family: var(--sans)"),
        (r"font: ((?:bold |700 )?[\d.]+px)[^;\"]*", r"font: \1 var(--sans)"),
        (r'xlink:href="', 'href="'),
    ):
        drawn = re.sub(pattern, instead, drawn)
    for name, colour in STAND_IN.items():
        drawn = drawn.replace(colour, f"var(--{name})")
    box = re.search(r'viewBox="([^"]*)"', drawn)
    head = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-label="{escape(figure.title)}">'
    return Markup(head + re.sub(r"\s*\n\s*", " ", drawn[drawn.index(">") + 1 :]))


def png(picture: Picture) -> str:
    """A picture as a PNG in base64."""
    file = io.BytesIO()
    imsave(file, picture.pixels, format="png")
    return base64.b64encode(file.getvalue()).decode()
