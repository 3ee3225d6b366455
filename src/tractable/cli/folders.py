"""Folders of runs: which are taken, which are new, and which are left."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path


def holds_a_run(folder: Path) -> bool:
    """Whether a folder is another run's already."""
    return any((folder / name).exists() for name in ("run.json", "posterior.json", "draws.zarr"))


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
    """Within, a run is learnt; where it fails before anything was, its new folder goes."""
    try:
        yield
    except BaseException:
        if new and {path.name for path in folder.iterdir()} <= {"run.json"}:
            shutil.rmtree(folder)
        raise
