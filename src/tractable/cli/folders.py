"""Folders of runs: which are taken, which are new, which are left, and what a run was asked to do."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tractable.tools import checkpoint
from tractable.tools.errors import CheckpointError

RUN = "run.json"


def holds_a_run(folder: Path) -> bool:
    """Whether a folder is another run's already."""
    return any((folder / name).exists() for name in (RUN, "posterior.json", "draws.zarr"))


def fresh(name: str) -> Path:
    """runs/NAME, or with the first number that makes it new; made."""
    for number in range(1, 100_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise RuntimeError(f"runs/ holds 100,000 folders named {name}.")


@contextlib.contextmanager
def left_only_with_results(folder: Path, new: bool = True) -> Iterator[None]:
    """Within, a run is learnt; where it fails before it has a result, its new folder is removed."""
    try:
        yield
    except BaseException:
        if new and {path.name for path in folder.iterdir()} <= {RUN}:
            shutil.rmtree(folder)
        raise


def write_run(folder: Path, entries: dict[str, Any]) -> None:
    """Leave in a folder what its run is of: enough to go on, to report and to predict."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(folder / RUN, json.dumps(entries, indent=1).encode())


def read_run(folder: Path) -> dict[str, Any]:
    """What ``write_run`` wrote."""
    try:
        return json.loads((folder / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} is no run: expected {RUN} in it. Runs are made by tractable fit and tractable compare."
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder / RUN} is damaged: {error}. Fit anew.") from error


def described(folder: Path) -> dict[str, Any] | None:
    """What is known of the posterior in a folder; None where there is none yet."""
    path = folder / "posterior.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
