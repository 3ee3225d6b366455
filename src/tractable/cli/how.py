"""How a fit is to run, whatever its model: by which method, from which seed, into which folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tractable.cli.folders import holds_a_run, may_write, read_run
from tractable.cli.readers import Arguments
from tractable.cli.settings import assignment, made, method_of, read
from tractable.methods import Method
from tractable.tools.errors import CheckpointError, SettingsError


@dataclass(frozen=True)
class How:
    """What a command line says about a fit, apart from its model and data."""

    method: str | None
    config: Path | None
    assignments: tuple[str, ...]
    seed: int | None
    out: Path | None
    resume: bool
    quiet: bool
    jobs: int = 1
    mesh: int | str | None = None
    leads: bool = True  # of several processes, this one speaks and writes

    @property
    def progress(self) -> bool | None:
        return False if self.quiet or not self.leads else None

    @property
    def sized(self) -> bool:
        """Whether the command line sets ``batch_size``, the number of rows a step takes."""
        fields = {assignment(text)[0] for text in self.assignments} | set(read(self.config) if self.config else ())
        return "batch_size" in fields


def run_gone_on_with(how: How) -> dict[str, Any]:
    """The saved entries of the run to resume; empty for a new run. A folder that holds another run is an error."""
    if how.resume:
        if how.out is None:
            raise SettingsError("--resume expects --out, the folder of the run to continue.")
        return read_run(how.out)
    if how.out is not None and holds_a_run(how.out):
        raise CheckpointError(f"{how.out} already holds a run. Continue it by --resume, or choose another --out.")
    if how.out is not None and how.leads:
        may_write(how.out, "fit")
    return {}


def method_and_seed(how: How, saved: Arguments, default: str) -> tuple[Method, int]:
    """The method and seed typed; else those of the run to resume; else ``default`` and 0."""
    if saved and how.method is None and how.config is None and not how.assignments:
        method, seed = made(saved["method"]), saved["seed"]
    else:
        named = how.method or saved.get("method", {}).get("method")
        method, seed = method_of(named, how.config, how.assignments, default)
    return method, next(s for s in (how.seed, seed, saved.get("seed"), 0) if s is not None)
