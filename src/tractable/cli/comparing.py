"""``tractable compare``: methods side by side on one problem, against its exact answer or a reference run."""

import math
from collections.abc import Sequence
from pathlib import Path

import typer
from scipy.interpolate import CubicSpline
from scipy.stats import beta

from tractable.cli.folders import fresh, write_run
from tractable.cli.settings import methods_of
from tractable.cli.speech import FAULT, end, say
from tractable.cli.task import Task
from tractable.cli.terminal import console, line
from tractable.comparison import Comparison
from tractable.comparison import compare as side_by_side
from tractable.methods import Method
from tractable.models.gallery import EXAMPLES
from tractable.pages.comparison import results_table
from tractable.pages.page import write_comparison_page
from tractable.pages.terminal import to_terminal
from tractable.tools.locks import held
from tractable.tools.progress import progress_of
from tractable.tools.writing import write_table


def compare(
    task: Task, methods: str | None, assignments: Sequence[str], seed: int, out: Path | None, quiet: bool, jobs: int = 1
) -> None:
    """Run several methods and write a table, a page and a figure into a folder."""
    chosen = methods_of(str(task.kind.side_by_side) if methods is None else methods, assignments)
    chosen = [task.kind.adapted_method(task, each, True) for each in chosen]
    folder = out if out is not None else fresh(f"{task.name}-compare")
    with held(folder):
        _compare(task, chosen, seed, folder, quiet, jobs)


def _compare(task: Task, chosen: list[Method], seed: int, folder: Path, quiet: bool, jobs: int) -> None:
    if not quiet:
        say(f"{', '.join(m.label for m in chosen)} on {task.label}, into {folder}")
    # The exact answer, else (None) a run of NUTS. Moments of a network's weights mean nothing: their distances are NaN.
    reference = exact(task) if task.kind.has_reference else dict.fromkeys(task.model.names, (math.nan, math.inf))
    with progress_of(False if quiet else None) as heard:
        found = side_by_side(
            task.model, task.data, chosen, seed=seed, held_out=task.held_out, reference=reference, progress=heard,
            n_jobs=jobs, on_result=None if quiet else lambda label, found: say(f"{label}: {found.report().verdict}"),
        )  # fmt: skip
    settings = [method.settings() for method in chosen]
    write_table(folder / "comparison.csv", found.table, index=True)
    write_run(folder, {"problem": task.spec, "methods": settings, "seed": seed, "failures": found.failures})
    if found.posteriors:
        write_comparison_page(folder, found, title=f"{task.name}: methods side by side")
        if task.kind.has_reference:
            found.plot(folder / "marginals.png")
    conclude(found, folder, quiet)


def conclude(found: Comparison, folder: Path, quiet: bool) -> None:
    """Print the comparison, or its folder alone, and exit with its code."""
    if quiet:
        line(folder)
    else:
        console().print(to_terminal(results_table(found.table)))
    for label, sentence in found.failures.items():
        say(f"{label} failed: {sentence}", "red")
    if not quiet and found.posteriors:
        line(f"Report: {folder / 'report.html'}")
    end(found.interrupted, "")
    if not found.posteriors:
        raise typer.Exit(FAULT)


def exact(task: Task) -> dict[str, tuple] | None:
    """The exact answer of an example, with marginal densities where they are known; else None."""
    known = EXAMPLES.get(task.spec.get("example", ""))
    if known is None or known.exact is None:
        return None
    moments = known.exact()
    if known.name == "beta-bernoulli":  # mean and sd determine a Beta
        mean, sd = moments["theta"]
        total = mean * (1 - mean) / sd**2 - 1
        return {"theta": (mean, sd, lambda theta: beta.pdf(theta, mean * total, (1 - mean) * total))}
    if known.grid is not None:
        grid = known.grid()
        first, second = (axis[1] - axis[0] for axis in (grid.first, grid.second))
        marginals = [
            CubicSpline(grid.first, grid.density.sum(1) * second),
            CubicSpline(grid.second, grid.density.sum(0) * first),
        ]
        ((parameter, (mean, sd)),) = moments.items()
        return {parameter: (mean, sd, marginals)}
    return moments
