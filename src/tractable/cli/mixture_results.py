"""What a mixture leaves: its files and page, and what it says of new rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tractable.cli.columns import Column, encoded, is_number, refuse_infinite, values_of
from tractable.cli.mixture_selection import Found, model_of, told
from tractable.cli.mixtures import CHOICES, Problem
from tractable.cli.speech import counted, listing, tell
from tractable.data import tables
from tractable.pages import mixtures
from tractable.pages.page import write_page
from tractable.results.loading import load
from tractable.results.posterior import Posterior
from tractable.tools.errors import DataError


def components(posterior: Posterior, problem: Problem) -> mixtures.Components:
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
    return mixtures.Components(problem.names, weights, uncertain, means, spread * np.outer(sd, sd))


def write(found: Found, problem: Problem, folder: Path) -> None:
    """Posterior, tables and page of the mixture chosen."""
    posterior = found.posterior
    posterior.save(folder)
    shown = components(posterior, problem)
    shown.frame(len(problem.rows)).to_csv(folder / "components.csv", index=False)
    found.table.to_csv(folder / "criterion.csv", index=False)
    model = model_of(len(shown.weights), len(problem.columns), problem.asked.covariance, problem.gaps)
    _, share = told(model, posterior.mean(), problem.rows, problem.columns)
    sd, mean = (np.array([getattr(c, field) for c in problem.columns]) for field in ("sd", "mean"))
    choice = mixtures.Choice(
        found.table, found.best, CHOICES[problem.asked.choose].column, found.remarks, shown, problem.rows * sd + mean,
        share.argmax(1), problem.asked.covariance, len(problem.held_out),
    )  # fmt: skip
    write_page(
        folder, posterior, title=f"{problem.name} by a mixture of {counted(len(shown.weights), 'normal')}",
        facts=mixtures.facts(choice), exhibits=mixtures.exhibits(posterior, choice),
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
