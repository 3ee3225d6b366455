"""The pieces a report is made of: HTML, and SVG whose colours and typeface the page decides."""

import datetime
import importlib.metadata
import io
import math
import pathlib
import re
import warnings
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tractable.checks.report import number

# Colours that nobody draws with, each replaced by the page's own of that name: one figure serves light and dark.
NAMES = ["ink", "muted", "line", "paper", "trust", "caution", "reject", *(f"c{i}" for i in range(8))]
STAND_IN = {name: f"#0a0b{i + 16:02x}" for i, name in enumerate(NAMES)}
INK, MUTED, LINE, PAPER = (STAND_IN[n] for n in NAMES[:4])
BAD = STAND_IN["reject"]
COLOURS = [STAND_IN[f"c{i}"] for i in range(8)]
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "tractable", "font.family": "sans-serif", "font.size": 8.5,
    "text.color": INK, "axes.edgecolor": LINE, "axes.linewidth": 0.8, "axes.labelcolor": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "xtick.color": LINE, "ytick.color": LINE,
    "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED, "xtick.major.size": 3, "ytick.major.size": 0,
    "xtick.major.width": 0.8, "lines.linewidth": 1.2, "lines.solid_capstyle": "round",
    "axes.formatter.limits": (-4, 5), "axes.formatter.useoffset": False, "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
}  # fmt: skip

SIGNS = {"trust": "M3 8.5l3.3 3.3L13 4.6", "caution": "M8 3v6M8 12.4v.2"}  # else a cross
CROSS = "M4 4l8 8M12 4l-8 8"
TALL = 30  # rows of a table before it scrolls


def write(folder: str | pathlib.Path, title: str, body: str) -> pathlib.Path:
    """The page around its body."""
    style = pathlib.Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    version, today = importlib.metadata.version("tractable"), datetime.date.today().isoformat()
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style></head>\n<body><main>\n{body}\n"
        f"<footer>Written by tractable {version} on {today}.</footer></main></body></html>\n"
    )
    path = pathlib.Path(folder) / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def first_of(kept: np.ndarray, every: np.ndarray, which: str) -> str:
    return "" if len(kept) == len(every) else f" The {len(kept)} {which} of {len(every):,}."


def section(name: str, body: str, note: str = "") -> str:
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{name}</h2>{said}{body}</section>"


def panels(drawn: list[str], captions: list[str]) -> str:
    figures = [f"<figure>{d}<figcaption>{c}</figcaption></figure>" for d, c in zip(drawn, captions, strict=True)]
    return f'<div class="panels two">{"".join(figures)}</div>'


def strip(drawn: list[str], heads: list[str], kind: str = "") -> str:
    figures = [
        f"<figure>{f'<figcaption>{h}</figcaption>' if h else ''}{d}</figure>" for d, h in zip(drawn, heads, strict=True)
    ]
    return f'<div class="panels {kind}">{"".join(figures)}</div>'


def grid(heads: list[str], rows: list[str], kind: str = "", left: tuple[str, ...] = ()) -> str:
    top = "".join(f'<th scope="col"{" class=text" if h in left else ""}>{escape(h)}</th>' for h in heads)
    tall = " tall" if len(rows) > TALL else ""
    return (
        f'<div class="scroll{tall}" tabindex="0"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def described(facts: dict[str, str]) -> str:
    return '<dl class="facts">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts.items()) + "</dl>"


def badge(verdict: str, plain: bool = False) -> str:
    """The verdict, told by its word, its sign and its colour."""
    sign = SIGNS.get(verdict, CROSS)
    stroke = 'fill="none" stroke="currentColor" stroke-width="2.4" stroke-linecap="round"'
    drawn = f'<svg viewBox="0 0 16 16" aria-hidden="true"><path d="{sign}" {stroke}/></svg>'
    return f'<span class="badge {"" if plain else escape(str(verdict))}">{drawn}{escape(str(verdict))}</span>'


def of(text: str) -> str:
    return f'<span class="of">{escape(text)}</span>' if text else ""


def shown(value: Any, form: str | None = None) -> str:
    """A value for HTML: numbers in the digits that mean something, – where there is none."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(shown(v) for v in value) or "none"
    if isinstance(value, bool | np.bool_ | str):
        return escape(str(value).lower() if not isinstance(value, str) else value)
    if not math.isfinite(value):
        return "–"
    text = number(float(value)) if form is None else format(value, form)
    return typeset(text if float(text.replace(",", "")) else text.removeprefix("-"))


def typeset(text: Any) -> str:
    return escape(str(text).replace("-", "−") if str(text)[:1] in "-0123456789" else str(text))


def decimals(sizes: np.ndarray) -> int:
    """Places behind the point that show two digits of a small size."""
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return int(np.clip(1 - math.floor(math.log10(np.quantile(sizes, 0.1) / 2)), 0, 6)) if len(sizes) else 3


def duration(seconds: float | int) -> str:
    if not math.isfinite(seconds) or seconds >= 3600:
        return f"{seconds / 3600:.1f} h" if math.isfinite(seconds) else "–"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def svg(draw: Any, size: tuple[float, float], title: str, flush: int = 0) -> str:
    """``draw(figure)`` as an SVG element without links, ids of its own or fixed colours.

    ``flush`` is a left margin in points, the same for all panels of a column; without one it fits the labels.
    """
    out = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that matplotlib's font lacks, the page's may have
        figure = Figure(figsize=size, layout=None if flush else "constrained")
        if flush:
            figure.subplots_adjust(left=flush / 72 / size[0], right=0.995, bottom=20 / 72 / size[1], top=0.98)
        figure.set_facecolor("none")
        draw(figure)
        for axes in figure.axes:
            axes.set_facecolor("none")
        nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 var(--sans)", text)
    text = re.sub(r'xlink:href="', 'href="', text)
    for name, colour in STAND_IN.items():
        text = text.replace(colour, f"var(--{name})")
    box = re.search(r'viewBox="([^"]*)"', text)
    head = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-label="{escape(title)}">'
    return head + re.sub(r"\s*\n\s*", " ", text[text.index(">") + 1 :])
