"""A fit of a model that explains something: an example's, or a table's target by its other columns."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from tractable.cli import show
from tractable.cli.folders import fresh, left_only_with_results
from tractable.cli.how import How, method_and_seed
from tractable.cli.problem import Problem, default_method, problem_from, problem_of, scores, suits, write_run
from tractable.cli.speech import end, say
from tractable.infer import infer
from tractable.methods import Method
from tractable.methods.drawing import Drawing
from tractable.methods.variational import Variational
from tractable.pages import parameters
from tractable.pages.exhibit import Exhibit
from tractable.pages.held_out import score_table
from tractable.pages.page import write_page
from tractable.pages.terminal import to_terminal
from tractable.results.loading import load
from tractable.results.posterior import Posterior


def fit(
    table: Path | None,
    example: str | None,
    target: str | None,
    choices: Mapping[str, Any],
    how: How,
    saved: Mapping[str, Any],
) -> None:
    """A posterior in its folder, its page and its tables.

    Args:
        choices: fields of ``problem.Choices``.
        saved: what the run to go on with wrote; empty where none is.
    """
    if saved and table is None and example is None:
        problem = problem_of(saved["problem"])
    else:
        problem = problem_from(table, example, target, **choices)
    method, seed = method_and_seed(how, saved, default_method(problem))
    suits(method, problem)

    folder = how.out if how.out is not None else fresh(f"{problem.name}-{method.label}")
    if not saved:
        write_run(folder, {"problem": problem.spec, "method": method.settings(), "seed": seed})
    if not how.quiet:
        say(f"{method.label} on {problem.label}, into {folder}")
    with left_only_with_results(folder, new=not saved):
        posterior = learn(problem, method, seed, folder, how)
    conclude(posterior, problem, folder, how.quiet)


def learn(problem: Problem, method: Method, seed: int, folder: Path, how: How) -> Posterior:
    """The posterior, which is then in the folder too."""
    at_once = not isinstance(method, Drawing | Variational)  # such a run is not saved as it goes
    about = folder / "posterior.json"
    if not isinstance(method, Drawing) and about.exists() and not json.loads(about.read_text())["interrupted"]:
        return load(folder, problem.model, problem.data)
    posterior = infer(
        problem.model, problem.data, method, seed=seed, progress=how.progress, checkpoint=None if at_once else folder
    )
    if at_once:
        shutil.rmtree(folder / "draws.zarr", ignore_errors=True)  # of a run killed while it was saved
        posterior.save(folder)
    return posterior


def conclude(posterior: Posterior, problem: Problem, folder: Path, quiet: bool) -> None:
    """Page, tables and exit code of a fit."""
    title = f"{problem.name} by {type(posterior.method).__name__}"
    write_page(
        folder, posterior,
        title=title, held_out=problem.held_out, encoder=problem.encoder, shifted=problem.shifted,
    )  # fmt: skip
    report = posterior.report()
    if quiet:
        typer.echo(folder)
    else:
        console = show.console()
        console.print(to_terminal(parameters.numbers(posterior, problem.encoder), show.ROWS))
        if weights := int((~parameters.listed(posterior.model)).sum()):
            console.print(f"{weights:,} weights of the network: see the report.\n")
        if problem.held_out is not None:
            console.print(to_terminal(Exhibit("Held-out rows", [score_table(scores(posterior, problem))])))
        console.print(show.verdict(report.verdict, [c._asdict() for c in report.checks]))
        console.print(f"{show.seconds(posterior.seconds)}. Report: {folder / 'report.html'}", soft_wrap=True)
    end(posterior.interrupted, report.verdict)
