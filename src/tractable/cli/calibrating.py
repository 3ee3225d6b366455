"""``tractable calibrate``: does a method recover the parameters that generated simulated data?"""

from pathlib import Path

import typer

from tractable.cli import show
from tractable.cli.folders import fresh, holds_a_run
from tractable.cli.speech import end, say
from tractable.cli.task import Task
from tractable.methods import Method
from tractable.pages.page import write_calibration_page
from tractable.pages.ranks import quantities
from tractable.pages.terminal import to_terminal
from tractable.sbc.calibrate import calibrate as calibrated
from tractable.tools.errors import CheckpointError
from tractable.tools.progress import progress_of


def calibrate(task: Task, method: Method, runs: int, jobs: int, seed: int, out: Path | None, quiet: bool) -> None:
    """Write runs, ranks and page into a folder; the same command continues from the runs already there."""
    if out is not None and holds_a_run(out):
        raise CheckpointError(f"{out} holds a run of fit or compare; choose another --out.")
    folder = out if out is not None else fresh(f"{task.name}-calibrate")
    if not quiet:
        say(f"{method.label} on {runs} data sets like {task.label}, into {folder}")
    with progress_of(False if quiet else None) as heard:
        found = calibrated(
            task.model, method, task.data, runs=runs, n_jobs=jobs, seed=seed, checkpoint=folder, progress=heard
        )
    page = write_calibration_page(folder, found, title=f"{task.name}: {method.label} on simulated data")
    report = found.report()
    if quiet:
        typer.echo(folder)
    else:
        show.console().print(to_terminal(quantities(found), show.ROWS))
        show.console().print(show.verdict(report.verdict, report.checks))
        show.console().print(f"Report: {page}", soft_wrap=True)
    end(found.interrupted, report.verdict)
