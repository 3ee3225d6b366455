"""``tractable calibrate``: does a method recover the parameters that generated simulated data?"""

from pathlib import Path

from tractable.cli import show
from tractable.cli.folders import fresh, may_write
from tractable.cli.speech import end, say
from tractable.cli.task import Task
from tractable.cli.terminal import console, line
from tractable.methods import Method
from tractable.pages.page import write_calibration_page
from tractable.pages.ranks import quantities
from tractable.pages.terminal import to_terminal
from tractable.sbc import calibration


def calibrate(task: Task, method: Method, runs: int, jobs: int, seed: int, out: Path | None, quiet: bool) -> None:
    """Write runs, ranks and page into a folder; the same command continues from the runs already there."""
    if out is not None:
        may_write(out, "calibrate")
    folder = out if out is not None else fresh(f"{task.name}-calibrate")
    if not quiet:
        say(f"{method.label} on {runs} data sets like {task.label}, into {folder}")
    found = calibration.calibrate(
        task.model, method, task.data, runs=runs, seed=seed, n_jobs=jobs, progress=False if quiet else None,
        checkpoint=folder,
    )  # fmt: skip
    page = write_calibration_page(folder, found, title=f"{task.name}: {method.label} on simulated data")
    report = found.report()
    if quiet:
        line(folder)
    else:
        console().print(to_terminal(quantities(found), show.ROWS))
        console().print(show.verdict(report.verdict, report.checks))
        line(f"Report: {page}")
    end(found.interrupted, report.verdict)
