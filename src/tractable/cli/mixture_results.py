"""What a mixture leaves: its files and page, tables on a terminal, and what it says of new rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from tractable.cli import show
from tractable.cli.columns import Column, encoded, is_number, refuse_infinite, values_of
from tractable.cli.mixture_selection import model_of, told
from tractable.cli.mixtures import Problem
from tractable.data import tables
from tractable.pages.mixtures import MORE, Components, write_mixture_page
from tractable.results.loading import load
from tractable.results.posterior import Posterior
from tractable.select import CRITERIA, Selection
from tractable.tools.errors import DataError
from tractable.tools.words import counted, listing, tell

SHOWN = 8  # components on a terminal


def components(posterior: Posterior, problem: Problem) -> Components:
    """θ in the table's units, and standard errors of the weights."""
    theta, errors = posterior.mean(), posterior.sd()
    mean, sd = (np.array([getattr(c, field) for c in problem.columns]) for field in ("mean", "sd"))
    k, d = theta.means.shape
    spread = np.asarray(theta.covariances, np.float64)
    if problem.asked.covariance in ("full", "tied"):
        spread = np.broadcast_to(spread, (k, d, d))
    else:
        spread = spread.reshape(k, -1, 1) * np.eye(d)
    means = np.asarray(theta.means, np.float64) * sd + mean
    weights, uncertain = (np.asarray(a.weights, np.float64) for a in (theta, errors))
    return Components(problem.names, weights, uncertain, means, spread * np.outer(sd, sd))


def write(found: Selection, problem: Problem, folder: Path) -> None:
    """Posterior, tables and page of the mixture chosen."""
    posterior = found.posterior
    posterior.save(folder)
    shown = components(posterior, problem)
    shown.frame(len(problem.rows)).to_csv(folder / "components.csv", index=False)
    found.table.to_csv(folder / "criterion.csv", index=False)
    model = model_of(len(shown.weights), len(problem.columns), problem.asked.covariance, problem.gaps)
    _, share = told(model, posterior.mean(), problem.rows, problem.columns)
    sd, mean = (np.array([getattr(c, field) for c in problem.columns]) for field in ("sd", "mean"))
    write_mixture_page(
        folder, posterior,
        title=f"{problem.name} by a mixture of {counted(len(shown.weights), 'normal')}",
        table=found.table, best=found.best, by=CRITERIA[problem.asked.choose].column, remarks=found.remarks,
        components=shown, rows=problem.rows * sd + mean, likeliest=share.argmax(1), covariance=problem.asked.covariance,
        held_out=len(problem.held_out),
    )  # fmt: skip


def predictions(spec: dict[str, Any], run: Path, new: Path) -> pd.DataFrame:
    """For each row of a table its log density, its likeliest component and the probability of each."""
    columns = [Column(**column) for column in spec["columns"]]
    names = [column.name for column in columns]
    frame = tables.read_table(new)
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1)
    absent = [name for name in names if name not in frame]
    if absent:
        raise DataError(f"The table lacks {listing(absent)}; expected the columns {listing(names)}.")
    text = [name for name in names if not is_number(frame[name])]
    if text:
        raise DataError(f"Column {text[0]!r} held numbers when the mixture was fitted, and does not here.")
    values = values_of(frame, names)
    refuse_infinite(values, names)
    rows = encoded(columns, frame)
    gaps = np.isnan(rows).any(1)
    if gaps.any():
        tell(f"{counted(int(gaps.sum()), 'row')} with missing values: told by the numbers there are.")
    plain = model_of(spec["chosen"], len(columns), spec["covariance"])
    theta = load(run, plain).mean()
    model = model_of(spec["chosen"], len(columns), spec["covariance"], bool(gaps.any()))
    density, share = told(model, theta, rows, columns)
    told_of = {f"p({k + 1})": share[:, k] for k in range(share.shape[1])}
    return pd.DataFrame({"component": share.argmax(1) + 1, **told_of, "log density": density})


def criterion_table(table: pd.DataFrame, best: int) -> Table:
    """Every K on a terminal."""
    more = {name: style for name, style in MORE.items() if name in table and np.isfinite(table[name]).any()}
    heads = ["parameters", "log likelihood", "BIC", *more, "starts that agree"]
    out = show.table("Components tried", "components", *heads, "verdict", "", numbers=len(heads))
    for i, row in table.reset_index(drop=True).iterrows():
        held = [f"{row[name]:{style}}" for name, style in more.items()]
        word = str(row["verdict"])
        values = (f"{row[name]:,.1f}" for name in ("log likelihood", "BIC"))
        out.add_row(
            str(row["components"]), str(row["parameters"]), *values, *held,
            f"{row['starts that agree']} of {row['starts']}", f"[{show.COLOUR[word]}]{word}[/]",
            "← chosen" if i == best else "",
        )  # fmt: skip
    return out


def components_table(found: Components) -> Table:
    """The components on a terminal: a column each."""
    k = min(len(found.weights), SHOWN)
    more = f", the first {k} of {len(found.weights)}" if k < len(found.weights) else ""
    out = show.table(f"Components: mean (sd) of each column{more}", "", *(str(i + 1) for i in range(k)), numbers=k)
    out.add_row("weight π", *(f"{found.weights[i]:.3f}" for i in range(k)))
    if np.isfinite(found.errors).any():
        out.add_row("its standard error", *(f"{found.errors[i]:.3f}" for i in range(k)))
    for j, name in enumerate(found.names[: show.ROWS]):
        cells = (f"{found.means[i, j]:.3g} ({found.sds[i, j]:.2g})" for i in range(k))
        out.add_row(name, *cells)
    if len(found.names) > show.ROWS:
        out.add_row(f"and {len(found.names) - show.ROWS} more")
    return out
