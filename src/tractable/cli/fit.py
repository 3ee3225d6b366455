"""What ``fit``, ``report`` and ``predict`` do, for every kind of model."""

import contextlib
import dataclasses
from pathlib import Path

import jax
import joblib

from tractable.beliefs.check import Check
from tractable.cli import folders, kinds, show
from tractable.cli.how import How, method_and_seed, run_gone_on_with
from tractable.cli.joining import agreed
from tractable.cli.readers import Arguments
from tractable.cli.speech import end, noted, say
from tractable.cli.task import Request, Result, Task
from tractable.cli.terminal import console, line
from tractable.methods import Method
from tractable.methods.abilities import devices_of
from tractable.pages.comparison import results_table
from tractable.pages.terminal import to_terminal
from tractable.tools.errors import CheckpointError, DataError, SettingsError
from tractable.tools.locks import held
from tractable.tools.settings import Jobs, expect
from tractable.tools.writing import write_table


def fit(model: str, arguments: Arguments, how: How) -> None:
    """Fit a model of the kind ``model`` and leave posterior, page and tables in its folder."""
    with contextlib.ExitStack() as closing:
        task, method, seed, saved = agreed(lambda: asked(model, arguments, how))
        folder = agreed(lambda: opened(task, method, seed, saved, how, closing))  # once all have looked at it
        # By configuration, which each kind's own independent fits take: numbers of components, members of an ensemble.
        with joblib.parallel_config(n_jobs=how.jobs):
            result = task.kind.learn(task, method, seed, folder, how.progress)
        agreed(lambda: conclude(task, method, seed, result, folder, how))


def asked(model: str, arguments: Arguments, how: How) -> tuple[Task, Method, int, Arguments]:
    """The task, method and seed, and the entries of the run gone on with."""
    kind = kinds.named(model)
    kinds.check_options(kind, {"resume": how.resume, "mesh": how.mesh})
    saved = run_gone_on_with(how)
    kind = kinds.kind_gone_on_with(how.out, saved, model) if saved else kind
    kinds.check_options(kind, arguments)
    if saved and arguments["table"] is None and arguments["example"] is None:
        own = [name for name in kind.options if name not in ("held_out", "missing") and arguments[name]]
        if own:
            raise SettingsError(f"--resume continues the run as it was: leave --{own[0]} out.")
        arguments = saved["problem"]
    expect("fit(--jobs)", how.jobs, Jobs)
    task, told = noted(lambda: kind.read(kind, arguments))
    told = saved["problem"].get("notes", told) if saved else told
    task = dataclasses.replace(task, mesh=how.mesh, spec=task.spec | {"notes": told})
    method, seed = method_and_seed(how, saved, kind.usual(task) or kind.method)
    method = kind.adapted_method(task, method, how.sized)
    devices_of(method, task.data, how.mesh)  # raises where they cannot share the run
    if how.out is None and how.mesh is not None and jax.process_count() > 1:
        raise SettingsError("Several processes share one folder, which all must see: name it by --out.")
    return task, method, seed, saved


def opened(task: Task, method: Method, seed: int, saved: Arguments, how: How, closing: contextlib.ExitStack) -> Path:
    """The run's folder, which this process, if it writes, holds until ``closing``."""
    folder = how.out if how.out is not None else folders.fresh(f"{task.name}-{task.kind.folder or method.label}")
    if how.leads:
        closing.enter_context(held(folder))
        closing.enter_context(folders.left_only_with_results(folder, new=not saved))
        if not saved:
            folders.write_run(folder, {"problem": task.spec, "method": method.settings(), "seed": seed})
        if not how.quiet:
            say(f"{task.kind.learner or method.label} on {task.label}, into {folder}")
    return folder


def conclude(task: Task, method: Method, seed: int, result: Result, folder: Path, how: How) -> None:
    """Write the page, print tables and verdict (or the folder alone), and exit with the run's code."""
    report, selection = result.posterior.report(), result.selection
    interrupted = selection.interrupted if selection else result.posterior.interrupted
    if not how.leads:
        return end(interrupted, "")
    # Again: learning may have added to the task, such as the number of components chosen.
    folders.write_run(folder, {"problem": task.spec, "method": method.settings(), "seed": seed})
    task.kind.page(folder, task, result)
    for remark in selection.remarks if selection else ():
        say(f"Note: {remark}", "yellow")
    if how.quiet:
        line(folder)
    else:
        for each in task.kind.tables(task, result):
            console().print(each)
        console().print(show.verdict(report.verdict, report.checks))
        line(f"{show.seconds(result.seconds)}. Report: {folder / 'report.html'}")
    end(interrupted, report.verdict)


def report(folder: Path) -> None:
    """Print the tables and verdict of the run in a folder, and where its page is."""
    entries, about = folders.read_run(folder), folders.posterior_in(folder)
    if "methods" in entries and (folder / "comparison.csv").exists():
        table = folders.table_in(folder, "comparison.csv", 0)
        console().print(to_terminal(results_table(table)))
        for label, sentence in entries["failures"].items():
            line(f"{label} failed: {sentence}")
    elif about is not None:
        with folders.sound(folder):
            kind = kinds.named(entries["problem"]["model"])
            for told in entries["problem"].get("notes", ()):
                say(f"Note: {told}", "yellow")
            shown = [*kind.saved_tables(folder, entries["problem"], about)]
            shown.append(show.verdict(about["verdict"], [Check(**each) for each in about["checks"]]))
            seconds = show.seconds(about["seconds"])
        for each in shown:
            console().print(each)
        line(f"{seconds}.")
    else:
        raise CheckpointError(
            f"The run in {folder} has no result yet; continue it by tractable fit --resume --out {folder}."
        )
    page = folder / "report.html"
    line(f"Report: {page}" if page.exists() else "It has no report.html.")


def predict(folder: Path, new: Path, out: Path, request: Request) -> None:
    """Write a table of predictions for new rows, by the run in a folder."""
    with folders.sound(folder):
        spec = folders.problem_in(folder)
        kind = kinds.named(spec["model"])
    if out.suffix not in (".parquet", ".csv"):
        raise DataError(f"--out expects a .parquet or .csv file; got {out}.")
    if request.array is not None and "array" not in kind.options:
        takers = [each.name for each in kinds.KINDS.values() if "array" in each.options]
        raise DataError(f"--array is of an .npz, which runs of {' and '.join(takers)} take; got {new}.")
    if request.calibrate is not None and not kind.calibrates:
        raise DataError(f"--calibrate is for intervals of a number; a {kind.noun or kind.name} gives none.")
    inputs = new, request.calibrate, Path(spec["table"]) if "table" in spec else None
    folders.may_replace(out, inputs)
    found = kind.predict(folder, spec, new, request)
    folders.may_replace(out, inputs, list(map(str, found.columns)))
    write_table(out, found)
    line(f"{len(found)} {kind.row_noun} in {out}")
