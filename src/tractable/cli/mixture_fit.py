"""A fit of mixtures to a table: several, of which one is chosen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from tractable.cli import mixture_results, mixture_selection, mixtures, show
from tractable.cli.folders import fresh, holds_a_run, left_only_with_results
from tractable.cli.how import How
from tractable.cli.models import MIXTURE
from tractable.cli.problem import write_run
from tractable.cli.settings import method_of
from tractable.cli.speech import end, say
from tractable.pages.exhibit import Exhibit
from tractable.pages.mixtures import components, tried_table
from tractable.pages.terminal import to_terminal
from tractable.tools.errors import CheckpointError, DataError
from tractable.tools.progress import progress_of


def fit(table: Path | None, asked: Mapping[str, Any], how: How) -> None:
    """Mixtures of normals of a table's numbers: one is chosen, and left in the folder with its page.

    Args:
        asked: fields of ``mixtures.Asked``; None where nothing was said.
    """
    if table is None:
        raise DataError(f"--model {MIXTURE} expects a table: tractable fit TABLE --model {MIXTURE}.")
    wanted = mixtures.Asked(**{name: value for name, value in asked.items() if value is not None})
    named, kept_seed = method_of(how.method, how.config, how.assignments, "em")
    em = mixture_selection.suits(named)
    seed = int(next(s for s in (how.seed, kept_seed, 0) if s is not None))
    if how.out is not None and holds_a_run(how.out):
        raise CheckpointError(f"{how.out} already holds a run. Choose another --out.")
    problem = mixtures.from_table(table, wanted)

    folder = how.out if how.out is not None else fresh(f"{problem.name}-{MIXTURE}")
    about = {"problem": problem.spec(), "method": em.settings(), "seed": seed}
    write_run(folder, about)
    if not how.quiet:
        say(f"mixtures of normals on {problem.label}, into {folder}")
    with left_only_with_results(folder), progress_of(how.progress) as bar:
        found = mixture_selection.learn(problem, em, seed, bar.say)
    write_run(folder, about | {"problem": problem.spec(found.chosen.components)})
    mixture_results.write(found, problem, folder)
    conclude(found, problem, folder, how.quiet)


def conclude(found: mixture_selection.Found, problem: mixtures.Problem, folder: Path, quiet: bool) -> None:
    """Tables and exit code of a fit."""
    report = found.posterior.report()
    for remark in found.remarks:
        say(f"Note: {remark}", "yellow")
    if quiet:
        typer.echo(folder)
    else:
        console = show.console()
        console.print(to_terminal(Exhibit("Components tried", [tried_table(found.table, found.best)])))
        shown = components(mixture_results.components(found.posterior, problem), len(problem.rows), "")
        console.print(to_terminal(shown, show.ROWS, show.COLUMNS))
        checks = [c._asdict() | {"value": float(c.value)} for c in report.checks]
        console.print(show.verdict(report.verdict, checks))
        console.print(f"{found.table['seconds'].sum():.1f} s. Report: {folder / 'report.html'}", soft_wrap=True)
    end(found.interrupted, report.verdict)
