"""The commands ``compare`` and ``calibrate``, which make several fits.

``compare`` fits several methods to one problem. ``calibrate`` fits one method to many simulated data sets.
"""

import math
from typing import Any

import typer
from scipy.interpolate import CubicSpline
from scipy.stats import beta

from tractable.calibration import calibrate as calibration
from tractable.cli import models
from tractable.cli.folders import fresh, write_run
from tractable.cli.settings import settings_of, settings_of_each
from tractable.cli.task import Arguments, Task
from tractable.cli.terminal import FAULT, ROWS, end, say, show_result, verdict
from tractable.comparison import compare as compare_methods
from tractable.core.writing import write_table
from tractable.engine.locks import lock
from tractable.engine.progress import progress_of
from tractable.gallery.models import EXAMPLES
from tractable.pages.comparison import results_table
from tractable.pages.page import write_calibration_page, write_comparison_page
from tractable.pages.ranks import quantities
from tractable.pages.terminal import to_terminal


def compare(given: Arguments) -> None:
    """Run several methods and write a table, a page and a figure into a folder."""
    quiet, kind = given["quiet"], models.comparable_kind(given)
    task = kind.read(given)
    settings = settings_of_each(given["methods"] or kind.compared, given["set_"] or ())
    methods = [kind.method(task, each) for each in settings]
    folder, seed = given["out"] or fresh(f"{task.name}-compare"), given["seed"] or 0
    # The reference is the exact answer if it is known, and else (None) a run of NUTS. Moments of a network's weights
    # mean nothing, so the distances from them are made NaN.
    reference = exact(task) if kind.has_reference else dict.fromkeys(task.model.names, (math.nan, math.inf))
    with lock(folder), progress_of(False if quiet else None) as listener:
        if not quiet:
            say(f"{', '.join(method.label for method in methods)} on {task.label}, into {folder}")
        comparison = compare_methods(
            task.model, task.data, methods, seed=seed, held_out=task.held_out, reference=reference, progress=listener,
            n_jobs=given["jobs"],
            on_result=None if quiet else lambda label, one: say(f"{label}: {one.report().verdict}"),
        )  # fmt: skip
        write_table(folder / "comparison.csv", comparison.table, index=True)
        about = {"problem": task.spec, "methods": [method.settings() for method in methods], "seed": seed}
        write_run(folder, about | {"failures": comparison.failures})
        if comparison.posteriors:
            write_comparison_page(folder, comparison, title=f"{task.name}: methods compared")
            if kind.has_reference:
                comparison.plot(folder / "marginals.png")
    last = f"Report: {folder / 'report.html'}" if comparison.posteriors else "No method has a result."
    show_result(quiet, folder, [to_terminal(results_table(comparison.table))], last)
    for label, sentence in comparison.failures.items():
        say(f"{label} failed: {sentence}", "red")
    end(comparison.interrupted, "")
    if not comparison.posteriors:
        raise typer.Exit(FAULT)


def exact(task: Task) -> dict[str, tuple] | None:
    """The exact answer of an example, with marginal densities if they are known; None if there is no exact answer."""
    known = EXAMPLES.get(task.spec.get("example", ""))
    if known is None or known.exact is None:
        return None
    moments = known.exact()
    ((parameter, (mean, sd)),) = moments.items()
    if known.name == "beta-bernoulli":  # mean and sd determine a Beta
        total = mean * (1 - mean) / sd**2 - 1
        return {parameter: (mean, sd, lambda theta: beta.pdf(theta, mean * total, (1 - mean) * total))}
    if known.grid is None:
        return moments
    grid: Any = known.grid()
    steps = [axis[1] - axis[0] for axis in (grid.first, grid.second)]
    marginals = [
        CubicSpline(grid.first, grid.density.sum(1) * steps[1]),
        CubicSpline(grid.second, grid.density.sum(0) * steps[0]),
    ]
    return {parameter: (mean, sd, marginals)}


def calibrate(given: Arguments) -> None:
    """Write runs, ranks and a page into a folder; the same command continues from the runs that the folder holds."""
    quiet, kind = given["quiet"], models.comparable_kind(given)
    task = kind.read({**given, "held_out": 0.0})
    settings, seed = settings_of(given, kind.usual(task), {})
    method = kind.method(task, settings)
    folder = given["out"] or fresh(f"{task.name}-calibrate")
    if not quiet:
        say(f"{method.label} on {given['runs']} data sets like {task.label}, into {folder}")
    data_like, data = (None, task.data) if given["posterior"] else (task.data, None)
    result = calibration.calibrate(
        task.model, method, data_like, data=data, runs=given["runs"], seed=seed, n_jobs=given["jobs"],
        progress=False if quiet else None, checkpoint=folder,
    )  # fmt: skip
    page = write_calibration_page(folder, result, title=f"{task.name}: {method.label} on simulated data")
    report = result.report()
    tables = [to_terminal(quantities(result), ROWS), verdict(*report)]
    show_result(quiet, folder, tables, f"Report: {page}")
    end(result.interrupted, report.verdict)
