"""Makes folders of runs, removes the folders of failed runs, and writes and reads the description of a run."""

import contextlib
import hashlib
import io
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tractable.core import sealed
from tractable.core.errors import CheckpointError, TractableError
from tractable.core.writing import as_written, disk_errors
from tractable.engine.locks import LOCK

if TYPE_CHECKING:
    import pandas as pd

RUN, CALIBRATION, COMPARISON = "run.json", "calibration", "comparison.csv"
NO_RUN = f"{{}} holds no run: it has no {RUN}. Give a folder that tractable fit or tractable compare made."


def holds_a_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return any((folder / name).exists() for name in (RUN, "posterior.json", "draws.zarr"))


def may_write(folder: Path, command: str) -> None:
    """Raise a CheckpointError if a command would overwrite files that are not its own.

    A command may write into a folder that is new, or that holds only hidden files, or that holds an earlier result of
    the same command. Only ``fit --resume`` continues a fit.
    """
    names = sorted(path.name for path in folder.iterdir() if path.name[:1] != ".") if folder.is_dir() else []
    if names and _writer(folder) != command:
        what = f"a run of tractable {_writer(folder)}" if _writer(folder) else f"{names[0]!r}, which no run wrote"
        raise CheckpointError(f"{folder} holds {what}. Choose a new or an empty folder; nothing there was changed.")


def _writer(folder: Path) -> str:
    """The command whose result a folder holds; "" if it holds none."""
    if (folder / RUN).exists():
        return "compare" if "methods" in sealed.read_sealed(folder / RUN)[0] else "fit"
    if holds_a_run(folder):
        return "fit"
    return "calibrate" if (folder / CALIBRATION).is_dir() or (folder / "checkpoint").is_dir() else ""


def may_replace(out: Path, inputs: Iterable[Path | None], columns: Sequence[str] | None = None) -> None:
    """Raise a CheckpointError unless the file ``out`` is new or a table with the same ``columns``.

    ``inputs`` are the files that the command reads; ``out`` may not be one of them, nor a new file in a run's folder.
    ``columns`` are None before they are known; then only these two rules are checked.
    """
    if not out.exists():
        run = next((parent for parent in list(out.absolute().parents)[1:] if holds_a_run(parent)), None)
        if run is not None:
            raise CheckpointError(f"{out} would become a part of the run in {run}. Choose another --out.")
        return
    if any(path is not None and path.exists() and out.samefile(path) for path in inputs):
        raise CheckpointError(f"--out {out} is the file that is read. Choose another name for what is written.")
    if columns is not None and _columns(out) != list(columns):
        raise CheckpointError(
            f"{out} exists and is not an earlier result of this command, so it is left as it is. Delete it if nobody "
            "needs it, or choose another --out."
        )


def _columns(path: Path) -> list[str]:
    """Names of a table's columns; [] if the file is not a table."""
    import pandas as pd
    import pyarrow.parquet

    try:
        if path.suffix == ".parquet":
            return list(pyarrow.parquet.read_schema(path).names)
        return [str(name) for name in as_written(pd.read_csv(path, nrows=0)).columns]
    except (OSError, ValueError):
        return []


def fresh(name: str) -> Path:
    """Make and return the folder runs/NAME, or runs/NAME-2, -3, … if it exists."""
    for number in range(1, 100_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            with disk_errors(folder, but=FileExistsError):
                folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.parent.is_dir():
                break
    raise CheckpointError(f"No folder runs/{name} can be made; choose a folder with --out.")


@contextlib.contextmanager
def remove_failed_run(folder: Path, new: bool) -> Iterator[None]:
    """A context in which a run is fitted; if the run fails before it has a result, its new folder is removed."""
    try:
        yield
    except BaseException:
        if new and folder.is_dir() and {path.name for path in folder.iterdir()} <= {RUN, LOCK}:
            shutil.rmtree(folder)
        raise


def write_run(folder: Path, entries: dict[str, Any]) -> None:
    """Write run.json: all that resume, report and predict need, and the checksum of a comparison's table."""
    table = folder / COMPARISON
    sums = {COMPARISON: hashlib.sha256(table.read_bytes()).hexdigest()} if table.exists() else {}
    sealed.write_sealed(folder / RUN, entries | {"tables": sums})


def read_run(folder: Path) -> dict[str, Any]:
    """The entries of run.json, as ``write_run`` wrote them."""
    if not (folder / RUN).exists():
        raise CheckpointError(NO_RUN.format(folder))
    entries, _ = sealed.read_sealed(folder / RUN)
    with sound(folder / RUN):
        return entries | {"problem": {"model": "glm"} | entries["problem"]}


def comparison_in(folder: Path) -> "pd.DataFrame":
    """The table of a comparison as it was written.

    Raises:
        CheckpointError: the table was changed since.
    """
    import pandas as pd

    content = (folder / COMPARISON).read_bytes()
    with sound(folder / RUN):
        same = read_run(folder)["tables"][COMPARISON] == hashlib.sha256(content).hexdigest()
    if not same:
        raise CheckpointError(
            f"{folder / COMPARISON} is damaged (its checksum is not the one in {RUN}). Restore the folder from a copy, "
            "or run again."
        )
    return as_written(pd.read_csv(io.BytesIO(content), index_col=0))


def problem_in(folder: Path) -> dict[str, Any]:
    """The description of a run's problem; for a formula's posterior that was saved from Python, its encoder."""
    arguments = ((posterior_in(folder) or {}).get("made") or {"arguments": {}})["arguments"]
    if not (folder / RUN).exists() and "encoder" in arguments:
        return {"model": "glm", "encoder": arguments["encoder"]}
    problem = read_run(folder)["problem"]
    if not {"encoder", "example"} & set(problem):
        raise CheckpointError(
            f"{folder} was written by an earlier version of tractable, whose runs on files cannot be read. Fit again "
            "with the settings in its settings.toml."
        )
    return problem


@contextlib.contextmanager
def sound(path: Path) -> Iterator[None]:
    """A context in which a file's entries are read.

    Entries that make no sense raise a CheckpointError, even if the file's checksum is right.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, TractableError):
            raise
        raise CheckpointError(
            f"{path} is damaged, or was changed by hand ({type(error).__name__}: {error}). Restore the folder from a "
            "copy, or run again."
        ) from error


def posterior_in(folder: Path) -> dict[str, Any] | None:
    """The entries of posterior.json in a folder; None if there is none yet."""
    path = folder / "posterior.json"
    return sealed.read_sealed(path)[0] if path.exists() else None
