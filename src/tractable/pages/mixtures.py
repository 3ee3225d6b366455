"""The report of a mixture of normals: how many components, what they are, and how they lie in the rows."""

import pathlib
from html import escape
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tractable.pages import plots
from tractable.pages.markup import badge, described, duration, grid, of, section, shown, strip, typeset, write
from tractable.pages.page import MEANING, checks_table, settings_table

DRAWN = 1500  # rows of a scatter plot, at most
PAIRED = 4  # columns drawn against each other, at most
MORE = {"held-out": ".3f", "evidence": ",.1f"}  # criteria that are there where they were asked for
LABEL = 18  # characters of a column's name in a figure, at most


class Components(NamedTuple):
    """A mixture in the table's own units, by descending weight."""

    names: list[str]  # of the d columns
    weights: np.ndarray  # (K,)
    errors: np.ndarray  # (K,), standard errors of the weights; NaN where there are none
    means: np.ndarray  # (K, d)
    covariances: np.ndarray  # (K, d, d)

    @property
    def sds(self) -> np.ndarray:
        """(K, d)."""
        return np.sqrt(np.diagonal(self.covariances, axis1=1, axis2=2))

    def frame(self, rows: int) -> pd.DataFrame:
        """A row for each component; ``rows`` of which it explains its weight."""
        count = len(self.weights)
        columns: dict[str, Any] = {
            "component": np.arange(1, count + 1), "weight": self.weights, "standard error": self.errors,
            "rows": self.weights * rows,
        }  # fmt: skip
        columns |= {f"mean of {name}": self.means[:, j] for j, name in enumerate(self.names)}
        columns |= {f"sd of {name}": self.sds[:, j] for j, name in enumerate(self.names)}
        return pd.DataFrame(columns)


def write_mixture_page(
    folder: str | pathlib.Path,
    posterior: Any,
    *,
    title: str,
    table: pd.DataFrame,
    best: int,
    by: str,
    remarks: list[str],
    components: Components,
    rows: np.ndarray,
    likeliest: np.ndarray,
    covariance: str,
    held_out: int = 0,
) -> pathlib.Path:
    """Write ``report.html`` of a mixture that was chosen among several.

    Args:
        folder: made where there is none.
        posterior: of the one chosen, by EM.
        title: of the page.
        table: a row for each K that was tried: components, parameters, log likelihood, BIC, AIC, held-out, starts that
            agree, starts, seconds, verdict.
        best: which row was chosen.
        by: the column that it was chosen by.
        remarks: sentences about the choice.
        components: of the one chosen.
        rows: (n, d) those fitted, in the table's units; NaN where a number is missing.
        likeliest: (n,) component of each, from 0.
        covariance: its form.
        held_out: rows that took no part.

    Returns:
        The file's path.
    """
    parts = [
        section("Why", checks_table(posterior.report().checks)),
        tried_section(table, best, by, remarks, held_out),
        components_section(components, len(rows), covariance),
        rows_section(components, rows, likeliest),
        climbs_section(posterior),
        section("Settings", settings_table(posterior)),
    ]
    facts = {
        "rows of data": f"{len(rows):,}",
        "columns": f"{rows.shape[1]:,}",
        "components": f"{len(components.weights)}" + of(f"{spoken(table['components'].tolist())} tried"),
        "free numbers": f"{table['parameters'].iloc[best]:,}",
        "wall time": duration(float(table["seconds"].to_numpy().sum())),
    }
    verdict = posterior.report().verdict
    stopped = " The run was stopped before its end." if posterior.interrupted else ""
    head = (
        f'<header><p class="eyebrow">tractable · {escape(type(posterior.method).__name__)}</p>'
        f'<h1>{escape(title)}</h1><div class="verdict {verdict}">{badge(verdict, plain=True)}'
        f"<p>{MEANING[verdict]}{stopped}</p></div>{described(facts)}</header>"
    )
    return write(folder, title, head + "".join(parts))


def spoken(tried: list[int]) -> str:
    """Numbers as a reader says them.

    >>> spoken([2, 3, 4, 5]), spoken([2, 5])
    ('2 to 5', '2, 5')
    """
    if len(tried) > 2 and tried == list(range(tried[0], tried[-1] + 1)):
        return f"{tried[0]} to {tried[-1]}"
    return ", ".join(map(str, tried))


def tried_section(table: pd.DataFrame, best: int, by: str, remarks: list[str], held_out: int) -> str:
    """Every K: its criteria, and which was chosen."""
    more = {name: style for name, style in MORE.items() if name in table and np.isfinite(table[name]).any()}
    heads = ["components", "parameters", "log likelihood", "BIC", "AIC", *more, "starts that agree", "time", "verdict"]
    lines = []
    for i, row in enumerate(table.to_dict("records")):
        cells = [f"{row['parameters']:,}", *(f"{row[c]:,.1f}" for c in ("log likelihood", "BIC", "AIC"))]
        cells += [f"{row[name]:{style}}" for name, style in more.items()]
        cells += [f"{row['starts that agree']} of {row['starts']}", duration(row["seconds"])]
        told = "".join(f"<td>{typeset(c.replace('nan', '–'))}</td>" for c in cells)
        name = f"{row['components']}{of('chosen') if i == best else ''}"
        lines.append(f'<tr><th scope="row">{name}</th>{told}<td class="text">{badge(row["verdict"])}</td></tr>')
    unsound = ~table["verdict"].isin(["trust", "caution"]).to_numpy()
    tried = table["components"].to_numpy()
    drawn, captions = [], []
    if len(table) > 1:
        for column in ("BIC", *more):
            caption = f"<b>{column}</b>, {'less' if column == 'BIC' else 'more'} is better"
            values = table[column].to_numpy(np.float64)
            if np.isfinite(values).sum() > 1:
                drawn.append(plots.criterion(tried, values, best, unsound))
                captions.append(caption)
    note = (
        f"Chosen by {by}. BIC = −2 log L + free numbers · log n and AIC = −2 log L + 2 · free numbers: less is better."
    )
    if "held-out" in more:
        note += f" Held-out is the mean log density, in nats, of {held_out:,} rows that no fit saw: more is better."
    if "evidence" in more:
        note += " Evidence is a lower bound on log p(rows), in nats, by variational Bayes: more is better."
    if unsound.any():
        note += " What is rejected is not chosen; a cross in the figures."
    said = "".join(f"<p>{escape(remark)}</p>" for remark in remarks)
    figures = strip(drawn, captions, "two") if drawn else ""
    return section("How many components", said + figures + grid(heads, lines, "wide", left=("verdict",)), note)


def components_section(components: Components, rows: int, covariance: str) -> str:
    """Weights, means and sds, a column each."""
    count = len(components.weights)
    known = np.isfinite(components.errors).any()
    heads = ["", *(str(k + 1) for k in range(count))]

    def line(name: str, cells: list[str]) -> str:
        return f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'

    lines = [line("weight π", [shown(float(w), ".3f") for w in components.weights])]
    if known:
        lines.append(line("its standard error", [shown(float(e), ".3f") for e in components.errors]))
    lines.append(line("π · rows", [shown(float(w * rows), ",.1f") for w in components.weights]))
    for j, name in enumerate(components.names):
        places = places_of(components.sds[:, j])
        cells = [
            shown(float(m), f",.{places}f") + of(f"± {s:,.{places}f}")
            for m, s in zip(components.means[:, j], components.sds[:, j], strict=True)
        ]
        lines.append(line(name, cells))
    note = f"By weight. Of each column the mean, ± sd, in the table's units; covariances are {covariance}."
    return section("Components", grid(heads, lines), note)


def places_of(sds: np.ndarray) -> int:
    """Places behind the point that show two digits of the smallest sd."""
    least = float(np.min(sds[sds > 0], initial=np.inf))
    return int(np.clip(1 - np.floor(np.log10(least)), 0, 6)) if np.isfinite(least) else 3


def rows_section(components: Components, rows: np.ndarray, likeliest: np.ndarray) -> str:
    """The rows, coloured by their likeliest component, and the components' ellipses."""
    kept = telling(components)
    some = np.linspace(0, len(rows) - 1, min(DRAWN, len(rows))).astype(int)
    drawn = plots.components(
        rows[np.ix_(some, kept)], likeliest[some], components.weights, components.means[:, kept],
        components.covariances[:, kept][:, :, kept], [brief(components.names[j]) for j in kept],
    )  # fmt: skip
    note = "Rows in the colour of their likeliest component"
    note += ", with ellipses that hold 90 % of each; on the diagonal" if len(kept) > 1 else ";"
    note += " the histogram of all, and each component's density by its weight."
    if len(kept) < len(components.names):
        note += f" The {len(kept)} columns of {len(components.names)} in which components differ most."
    if len(some) < len(rows):
        note += f" {len(some):,} rows of {len(rows):,}, evenly chosen."
    return section("Rows and components", f'<figure class="chart pairs">{drawn}</figure>', note)


def brief(name: str) -> str:
    """A name that fits under a small panel."""
    return name if len(name) <= LABEL else f"{name[: LABEL - 1]}…"


def telling(components: Components) -> np.ndarray:
    """The columns, at most ``PAIRED``, of which the components' means explain most of the variance; in their order."""
    weights = components.weights[:, None]
    between = (weights * np.square(components.means - (weights * components.means).sum(0))).sum(0)
    within = (weights * np.square(components.sds)).sum(0)
    share = between / (between + within)
    return np.sort(np.argsort(-share, kind="stable")[:PAIRED])


def climbs_section(posterior: Any) -> str:
    """What EM gained at every step of every start."""
    traces = np.asarray(posterior.info.get("objective", np.zeros((0, 0))), float)
    if traces.size == 0 or np.isfinite(traces).sum() < 2:
        return ""
    drawn = plots.climbs(traces / max(posterior.rows, 1))
    note = (
        "Log likelihood a row, of standardised columns, over the steps of EM: a line a start, a dot where it settled."
    )
    return section("Climb", f'<figure class="chart">{drawn}</figure>', note)
