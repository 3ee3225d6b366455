"""The commands ``fit``, ``report`` and ``predict``, for every kind of model."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import joblib

from tractable.cli import folders, models
from tractable.cli.joining import agree
from tractable.cli.settings import settings_of
from tractable.cli.task import Arguments, Result, Task
from tractable.cli.terminal import COLUMNS, ROWS, end, line, say, show_result, verdict
from tractable.core.check import Check
from tractable.core.clock import PREPARING, Stopwatch
from tractable.core.errors import CheckpointError, DataError, SettingsError
from tractable.core.settings import Jobs, expect
from tractable.core.writing import write_table
from tractable.engine.abilities import placement_of
from tractable.engine.locks import lock
from tractable.methods import Method
from tractable.pages.comparison import results_table
from tractable.pages.page import sections_of, usual_facts
from tractable.pages.render import draw_figures, write
from tractable.pages.sections import Section, duration
from tractable.pages.terminal import to_terminal
from tractable.pages.verdict import settings

SHOWING = "showing"  # the phase of the page, and of the tables for the terminal


class Request(NamedTuple):
    """A fit that the user asks for."""

    task: Task
    method: Method
    seed: int
    saved: dict[str, Any]  # the entries of the run to resume; {} for a new run

    @property
    def entries(self) -> dict[str, Any]:
        """The entries of run.json."""
        return {"problem": self.task.spec, "method": self.method.settings(), "seed": self.seed}


def fit(given: Arguments, mesh: int | str | None, leads: bool) -> None:
    """Fit a model and write posterior, page and tables into a folder; only the process with ``leads`` true writes."""
    quiet, watch = given["quiet"] or not leads, Stopwatch(whole_process=True)
    seconds = watch.phases({}, "importing")
    with contextlib.ExitStack() as stack:
        request = agree(lambda: read_request(given, mesh, leads))
        folder = agree(lambda: run_folder(request, given, leads, stack))  # after every process has read the request
        seconds = watch.phases(seconds, "reading")
        # All independent fits of a kind (for each number of components, for each member of an ensemble) use this
        # configuration.
        with joblib.parallel_config(n_jobs=given["jobs"]):
            progress = False if quiet else None
            result = request.task.kind.learn(request.task, request.method, request.seed, folder, progress)
        seconds = watch.phases(seconds | result.seconds, "fitting" if result.selection else PREPARING)
        agree(lambda: conclude(request, result, folder, given["quiet"], leads, lambda: watch.phases(seconds, SHOWING)))


def read_request(given: Arguments, mesh: int | str | None, leads: bool) -> Request:
    """The task and method, from the options or from the run to resume.

    Raises:
        CheckpointError: a new run may not be written into the folder.
    """
    kind, out = models.kind_of(given["model"]), given["out"]
    saved: dict[str, Any] = {}
    if given["resume"]:
        if out is None:
            raise SettingsError("--resume expects --out with the folder of the run to continue.")
        saved, kind = run_to_resume(out, given["model"])
    elif out is not None and folders.holds_a_run(out):
        raise CheckpointError(f"{out} already holds a run. Continue it by --resume, or choose another --out.")
    elif out is not None and leads:
        folders.may_write(out, "fit")
    models.check_options(kind, given)
    arguments = given
    if saved and given["table"] is None and given["example"] is None:
        for name in kind.options:
            if name not in ("held_out", "missing") and given[name]:
                option = name.replace("_", "-")
                raise SettingsError(f"--resume continues the run with its own options: leave --{option} out.")
        arguments = saved["problem"]
    expect("fit(--jobs)", given["jobs"], Jobs)
    task = kind.read(arguments)
    notes = saved["problem"].get("notes", given["notes"]) if saved else given["notes"]
    task = replace(task, mesh=mesh, spec=task.spec | {"notes": list(notes)})
    settings, seed = settings_of(given, kind.usual(task), saved)
    method = kind.method(task, settings)
    placement_of(method, task.data, mesh)  # raises an error if the devices cannot share this run
    if out is None and mesh is not None and jax.process_count() > 1:
        raise SettingsError("Several processes share one folder, which all must be able to read: name it with --out.")
    return Request(task, method, seed, saved)


def run_to_resume(folder: Path, model: str) -> tuple[dict[str, Any], Any]:
    """The entries of the run in a folder, and its kind; ``model`` is the value of --model, or the default."""
    saved = folders.read_run(folder)
    if "method" not in saved:
        raise CheckpointError(f"{folder} holds a comparison, which cannot be resumed; compare again.")
    kind = models.kind_of(folders.problem_in(folder)["model"])
    if model not in (kind.name, models.DEFAULT):
        raise CheckpointError(
            f"{folder} holds a run of --model {kind.name}; got --model {model}. Choose another --out."
        )
    return saved, kind


def run_folder(request: Request, given: Arguments, leads: bool, stack: contextlib.ExitStack) -> Path:
    """The run's folder; the process with ``leads`` true locks it until ``stack`` is closed."""
    task, label = request.task, request.method.label
    name = label if "target" in task.kind.takes else task.kind.name
    folder = given["out"] or folders.fresh(f"{task.name}-{name}")
    if leads:
        stack.enter_context(lock(folder))
        stack.enter_context(folders.remove_failed_run(folder, new=not request.saved))
        if not request.saved:
            folders.write_run(folder, request.entries)
        if not given["quiet"]:
            say(f"{label} on {task.label}, into {folder}")
    return folder


def conclude(
    request: Request, result: Result, folder: Path, quiet: bool, leads: bool, seconds: Callable[[], dict[str, float]]
) -> None:
    """Write the page, print tables and verdict (or the folder alone), and exit with the run's code.

    ``seconds`` gives the time since the process's start by phase.
    """
    task, posterior, report = request.task, result.posterior, result.posterior.report()
    if not leads:
        return end(result.interrupted, "")
    # The run's description is written again, because ``learn`` may have added the chosen number of components.
    folders.write_run(folder, request.entries)
    page = task.kind.page(task, result)
    facts = page.setdefault("facts", usual_facts(posterior, page.get("encoder")))
    sections = draw_figures(sections_of(posterior, notes=task.spec["notes"], **page))
    # A page cannot say how long its own writing takes: its time ends here, when all is computed and drawn.
    posterior.seconds = seconds()
    facts["wall time"] = duration(sum(posterior.seconds.values()))
    sections[-1] = settings(posterior)
    write(folder, task.kind.title(task, result), sections, type(request.method).__name__)
    folders.write_run(folder, request.entries | {"seconds": posterior.seconds})
    for remark in result.selection.remarks if result.selection else ():
        say(f"Note: {remark}", "yellow")
    tables = (*terminal_tables(sections[:-1]), verdict(*report))
    show_result(quiet, folder, tables, f"{describe_time(seconds())}. Report: {folder / 'report.html'}")
    end(result.interrupted, report.verdict)


def terminal_tables(sections: Sequence[Section]) -> Iterator[Any]:
    """The tables of a page, each with its note, as a terminal shows them."""
    for section in sections:
        if section.verdict:  # the verdict comes last, with its checks
            section = Section("The run", section.parts[:1])
        if (group := to_terminal(section, ROWS, COLUMNS)).renderables:
            yield group
        if group.renderables or not section.title:
            yield f"{section.note}\n"


def describe_time(phases: Mapping[str, float]) -> str:
    """The time in seconds, in all and by phase."""
    parts = ", ".join(f"{name} {value:.1f}" for name, value in phases.items() if value >= 0.05)
    return f"{sum(phases.values()):.1f} s" + (f" ({parts})" if len(phases) > 1 and parts else "")


def report(folder: Path) -> None:
    """Print the verdict of the run in a folder, or a comparison's table, and the path of its page."""
    entries, about = folders.read_run(folder), folders.posterior_in(folder)
    if "methods" in entries:
        parts, last = [to_terminal(results_table(folders.comparison_in(folder)))], ""
        notes = [f"{label} failed: {sentence}" for label, sentence in entries["failures"].items()]
    elif about is not None:
        with folders.sound(folder):
            notes = [f"Note: {note}" for note in entries["problem"].get("notes", ())]
            parts = [verdict(about["verdict"], [Check(**each) for each in about["checks"]], about["title"])]
            last = f"{describe_time(entries.get('seconds', about['seconds']))}. "
    else:
        raise CheckpointError(
            f"The run in {folder} has no result yet; continue it with tractable fit --resume --out {folder}."
        )
    for note in notes:
        say(note, "yellow")
    page = folder / "report.html"
    at = f"Report: {page}" if page.exists() else "The folder has no report.html."
    show_result(False, folder, parts, f"{last}{at}")


def predict(given: Arguments) -> None:
    """Write a table of predictions for new rows from the run in a folder."""
    folder, out = given["run"], given["out"]
    spec = folders.problem_in(folder)
    kind = models.kind_of(spec["model"])
    if out.suffix not in (".parquet", ".csv"):
        raise DataError(f"--out expects a .parquet or .csv file; got {out}.")
    models.check_options(kind, {name: given[name] for name in ("array", "calibrate")})
    inputs = given["new"], given["calibrate"], Path(spec["table"]) if "table" in spec else None
    folders.may_replace(out, inputs)
    table = kind.predict(folder, spec, given)
    folders.may_replace(out, inputs, list(map(str, table.columns)))
    write_table(out, table)
    line(f"{len(table)} {kind.row_noun} in {out}")
