"""A fit of a ladder to rows of a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from tractable.cli import ladders, show
from tractable.cli.arrays import picture
from tractable.cli.folders import fresh, left_only_with_results
from tractable.cli.how import How, method_and_seed
from tractable.cli.problem import write_run
from tractable.cli.settings import assignment, read
from tractable.cli.speech import end, say
from tractable.core import Data
from tractable.infer import infer
from tractable.pages.ladders import layers
from tractable.pages.page import write_page
from tractable.pages.terminal import to_terminal
from tractable.results.posterior import Posterior
from tractable.tools.errors import DataError, SettingsError


def fit(file: Path | None, model: str, said: Mapping[str, Any], how: How, saved: Mapping[str, Any]) -> None:
    """A ladder and its inference network in a folder, with page and tables.

    Args:
        model: "vae" or "belief-network".
        said: fields of ``ladders.Asked`` as they were typed; None where nothing was.
        saved: what the run to go on with wrote; empty where none is.
    """
    problem = problem_of(file, model, said, saved)
    method, seed = method_and_seed(how, saved, ladders.DEFAULT_METHOD[model])
    method = ladders.suits(method, problem, sized(how))

    folder = how.out if how.out is not None else fresh(f"{problem.name}-{model}")
    if not saved:
        write_run(folder, {"problem": problem.spec(), "method": method.settings(), "seed": seed})
    if not how.quiet:
        say(f"{method.label} on {problem.label}, into {folder}")
    with left_only_with_results(folder, new=not saved):
        posterior = infer(
            problem.model, Data(problem.rows), method, seed=seed, progress=how.progress, checkpoint=folder
        )
    ladders.scored(posterior, problem.held_out)
    posterior.write(folder)
    conclude(posterior, problem, folder, how.quiet)


def problem_of(file: Path | None, model: str, said: Mapping[str, Any], saved: Mapping[str, Any]) -> ladders.Problem:
    """Of the file that was given; else of the run to go on with."""
    if file is not None:
        return ladders.from_file(file, ladders.asked_of(model, said))
    if not saved:
        raise DataError(f"--model {model} expects a file: tractable fit FILE --model {model} --latent 20.")
    for option in ("latent", "hidden", "family", "array", "redraw"):
        if said[option]:
            raise SettingsError(f"--resume goes on with the run as it was: leave --{option} out.")
    spec = saved["problem"]
    return ladders.from_file(Path(spec["file"]), ladders.asked_before(spec))


def sized(how: How) -> bool:
    """Whether it was said how many rows a step takes."""
    fields = {assignment(text)[0] for text in how.assignments} | set(read(how.config) if how.config else ())
    return "batch_size" in fields


def conclude(posterior: Posterior, problem: ladders.Problem, folder: Path, quiet: bool) -> None:
    """Page, tables and exit code of a fit."""
    title = f"{problem.name} by {type(posterior.method).__name__}"
    write_page(folder, posterior, title=title, shape=picture(problem.shape))
    report = posterior.report()
    if quiet:
        typer.echo(folder)
    else:
        console = show.console()
        console.print(to_terminal(layers(problem.model, posterior.found)))
        console.print(ladders.bounds_table(posterior.found, problem.spec()))
        checks = [c._asdict() | {"value": float(c.value)} for c in report.checks]
        console.print(show.verdict(report.verdict, checks))
        console.print(f"{show.seconds(posterior.seconds)}. Report: {folder / 'report.html'}", soft_wrap=True)
    end(posterior.interrupted, report.verdict)
