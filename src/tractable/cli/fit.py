"""What ``fit``, ``report`` and ``predict`` do, for every kind of model."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
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
from tractable.core.errors import CheckpointError, DataError, SettingsError
from tractable.core.settings import Jobs, expect
from tractable.core.writing import write_table
from tractable.engine.abilities import placement_of
from tractable.engine.locks import lock
from tractable.methods import Method
from tractable.pages.comparison import results_table
from tractable.pages.page import sections_of
from tractable.pages.render import write
from tractable.pages.sections import Section
from tractable.pages.terminal import to_terminal


class Asked(NamedTuple):
    """A fit as it was asked for."""

    task: Task
    method: Method
    seed: int
    saved: dict[str, Any]  # the entries of the run to resume; {} for a new run

    @property
    def entries(self) -> dict[str, Any]:
        """What run.json holds."""
        return {"problem": self.task.spec, "method": self.method.settings(), "seed": self.seed}


def fit(given: Arguments, mesh: int | str | None, leads: bool) -> None:
    """Fit a model and leave posterior, page and tables in a folder, which the process that ``leads`` writes."""
    quiet = given["quiet"] or not leads
    with contextlib.ExitStack() as closing:
        asked = agree(lambda: what_is_asked(given, mesh, leads))
        folder = agree(lambda: run_folder(asked, given, leads, closing))  # once every process has read it
        # By configuration, which each kind's own independent fits take: numbers of components, members of an ensemble.
        with joblib.parallel_config(n_jobs=given["jobs"]):
            progress = False if quiet else None
            result = asked.task.kind.learn(asked.task, asked.method, asked.seed, folder, progress)
        agree(lambda: conclude(asked, result, folder, given["quiet"], leads))


def what_is_asked(given: Arguments, mesh: int | str | None, leads: bool) -> Asked:
    """The task and method, as typed or as in the run to resume; an error if a new run may not have its folder."""
    kind, out = models.kind_of(given["model"]), given["out"]
    saved: dict[str, Any] = {}
    if given["resume"]:
        if out is None:
            raise SettingsError("--resume expects --out, the folder of the run to continue.")
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
                raise SettingsError(f"--resume continues the run as it was: leave --{name} out.")
        arguments = saved["problem"]
    expect("fit(--jobs)", given["jobs"], Jobs)
    task = kind.read(arguments)
    notes = saved["problem"].get("notes", given["notes"]) if saved else given["notes"]
    task = replace(task, mesh=mesh, spec=task.spec | {"notes": list(notes)})
    settings, seed = settings_of(given, kind.usual(task), saved)
    method = kind.method(task, settings)
    placement_of(method, task.data, mesh)  # raises where they cannot share the run
    if out is None and mesh is not None and jax.process_count() > 1:
        raise SettingsError("Several processes share one folder, which all must see: name it by --out.")
    return Asked(task, method, seed, saved)


def run_to_resume(folder: Path, model: str) -> tuple[dict[str, Any], Any]:
    """The entries of the run in a folder, and its kind; ``model`` is --model as typed, or the default."""
    saved = folders.read_run(folder)
    if "method" not in saved:
        raise CheckpointError(f"{folder} is a comparison, which cannot be resumed; compare again.")
    kind = models.kind_of(folders.problem_in(folder)["model"])
    if model not in (kind.name, models.DEFAULT):
        raise CheckpointError(f"{folder} is of --model {kind.name}; got --model {model}. Choose another --out.")
    return saved, kind


def run_folder(asked: Asked, given: Arguments, leads: bool, closing: contextlib.ExitStack) -> Path:
    """The run's folder, which this process, if it writes, holds until ``closing``."""
    task, label = asked.task, asked.method.label
    name = label if "target" in task.kind.takes else task.kind.name
    folder = given["out"] or folders.fresh(f"{task.name}-{name}")
    if leads:
        closing.enter_context(lock(folder))
        closing.enter_context(folders.left_only_with_results(folder, new=not asked.saved))
        if not asked.saved:
            folders.write_run(folder, asked.entries)
        if not given["quiet"]:
            say(f"{label} on {task.label}, into {folder}")
    return folder


def conclude(asked: Asked, result: Result, folder: Path, quiet: bool, leads: bool) -> None:
    """Write the page, print tables and verdict (or the folder alone), and exit with the run's code."""
    task, report = asked.task, result.posterior.report()
    if not leads:
        return end(result.interrupted, "")
    folders.write_run(folder, asked.entries)  # again: learning may have added the number of components chosen
    shown = sections_of(result.posterior, notes=task.spec["notes"], **task.kind.page(task, result))
    write(folder, task.kind.title(task, result), shown, type(asked.method).__name__)
    for remark in result.selection.remarks if result.selection else ():
        say(f"Note: {remark}", "yellow")
    facts = Section("The run", shown[0].parts)
    tables = (*in_tables([*shown[2:-1], facts]), verdict(report.verdict, report.checks))
    show_result(quiet, folder, tables, f"{in_words(result.seconds)}. Report: {folder / 'report.html'}")
    end(result.interrupted, report.verdict)


def in_tables(shown: Sequence[Section]) -> Iterator[Any]:
    """Tables of a page, each with its note, as a terminal shows them."""
    for each in shown:
        if (found := to_terminal(each, ROWS, COLUMNS)).renderables:
            yield found
            yield f"{each.note}\n"


def in_words(phases: Mapping[str, float]) -> str:
    """Wall time in seconds, and each phase's part of it."""
    parts = ", ".join(f"{name} {value:.1f}" for name, value in phases.items() if value >= 0.05)
    return f"{sum(phases.values()):.1f} s" + (f" ({parts})" if len(phases) > 1 and parts else "")


def report(folder: Path) -> None:
    """Print the verdict of the run in a folder, or a comparison's table, and where its page is."""
    entries, about = folders.read_run(folder), folders.posterior_in(folder)
    if "methods" in entries:
        shown, last = [to_terminal(results_table(folders.comparison_in(folder)))], ""
        notes = [f"{label} failed: {sentence}" for label, sentence in entries["failures"].items()]
    elif about is not None:
        with folders.sound(folder):
            notes = [f"Note: {note}" for note in entries["problem"].get("notes", ())]
            shown = [verdict(about["verdict"], [Check(**each) for each in about["checks"]])]
            last = f"{in_words(about['seconds'])}. "
    else:
        raise CheckpointError(
            f"The run in {folder} has no result yet; continue it by tractable fit --resume --out {folder}."
        )
    for note in notes:
        say(note, "yellow")
    page = folder / "report.html"
    show_result(False, folder, shown, f"{last}{f'Report: {page}' if page.exists() else 'It has no report.html.'}")


def predict(given: Arguments) -> None:
    """Write a table of predictions for new rows, by the run in a folder."""
    folder, out = given["run"], given["out"]
    spec = folders.problem_in(folder)
    kind = models.kind_of(spec["model"])
    if out.suffix not in (".parquet", ".csv"):
        raise DataError(f"--out expects a .parquet or .csv file; got {out}.")
    models.check_options(kind, {name: given[name] for name in ("array", "calibrate")})
    inputs = given["new"], given["calibrate"], Path(spec["table"]) if "table" in spec else None
    folders.may_replace(out, inputs)
    found = kind.predict(folder, spec, given)
    folders.may_replace(out, inputs, list(map(str, found.columns)))
    write_table(out, found)
    line(f"{len(found)} {kind.row_noun} in {out}")
