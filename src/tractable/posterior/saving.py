"""The folder of a run while it lasts: its lock, what is saved to it, and which process writes it."""

import contextlib
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil

from tractable.core.errors import CheckpointError, SettingsError, TractableError
from tractable.core.model import Model, PyTree
from tractable.core.writing import disk_errors, refuse_links
from tractable.engine import checkpoint as files
from tractable.engine.drawing import concatenate_traces
from tractable.engine.leaves import flattened
from tractable.engine.locks import lock
from tractable.engine.method import Method
from tractable.engine.placement import OneDevice
from tractable.engine.session import explain_lost_process
from tractable.posterior.folder import (
    MEMORY_SHARE,
    RESULT,
    check_drawn,
    discard_draws,
    new_store,
    read_draws,
    refuse_others,
    store_of,
)
from tractable.posterior.posterior import Posterior

if TYPE_CHECKING:
    from tractable.engine.store import DrawStore


class Saver:
    """Writes a run to a folder as it goes: its draws to zarr, its state to a checkpoint.

    Args:
        folder: made if missing.
        run: the run's ``identity``; a folder of another run is an error.
        resumable: False to write draws only; a folder with a checkpoint is then an error.

    Attributes:
        resume: the saved state's leaves by path, or None for a new run.
        faults: none that are not raised at once.
    """

    faults: Sequence[CheckpointError] = ()

    def __init__(self, folder: pathlib.Path, run: dict[str, Any], *, resumable: bool = True) -> None:
        self.folder, self.run, self.resumable = folder, run, resumable
        self.step, self.resume = 0, None
        saved = _open_checkpoint(folder, run)
        self.store: DrawStore | None = None
        if saved is None:
            discard_draws(folder)
            if resumable:
                self.save({})  # claims the folder, however soon the run ends
            return
        if not resumable:
            raise CheckpointError(
                f"{folder} holds the checkpoint of a run; pass it as checkpoint=, or choose another folder."
            )
        self.step, leaves, manifest = saved
        self.resume = leaves or None
        if not manifest["streamed"]:
            discard_draws(folder)
        else:
            self.store = store_of(folder)
            check_drawn(self.store, manifest["draws"], manifest.get("drawn", ""))
            self.store.truncate(manifest["draws"])

    def save(self, run_state: PyTree, drawn: dict[str, np.ndarray] | None = None) -> None:
        """Save the run's state, and the draws since the last save, each (chain, draw, ...).

        Raises:
            CheckpointError: they cannot be written; ``partial`` holds the traces of all draws still available.
        """
        before = 0
        try:
            if drawn is not None:
                self.store = new_store(self.folder, drawn) if self.store is None else self.store
                before = self.store.count
                self.store.append(drawn)
            self._save(run_state)
        except CheckpointError as error:
            if drawn is not None:
                error.partial = concatenate_traces(self._still_there(before), drawn)
            raise

    def _still_there(self, count: int) -> dict[str, np.ndarray]:
        """The first ``count`` draws; empty if they cannot be read."""
        try:
            return {n: a[:, :count] for n, a in self.drawn().items()} if count else {}
        except CheckpointError:
            return {}

    def _save(self, run_state: PyTree) -> None:
        if self.resumable:
            self.step += 1
            about = {"identity": self.run, "streamed": self.store is not None}
            count = 0 if self.store is None else self.store.count
            about |= {"draws": count, "drawn": "" if self.store is None else self.store.identity(count)}
            files.save(self.folder / "checkpoint", flattened(run_state), about, step=self.step)

    def drawn(self) -> dict[str, np.ndarray]:
        return {} if self.store is None else read_draws(self.store)

    def inside(self, name: str) -> "Saver":
        refuse_links(self.folder / name)
        return Saver(self.folder / name, self.run | {"part": name}, resumable=self.resumable)


class Leader:
    """The ``Saver`` of the process that writes for others. The first fault is kept, and asks all processes to stop at
    their next visit: raised at once, it would leave the others waiting for this one.

    Attributes:
        faults: the CheckpointError, if there was one; its draws are kept in memory.
    """

    def __init__(self, saver: Saver, faults: list[CheckpointError] | None = None) -> None:
        self.saver, self.step, self.resume = saver, saver.step, saver.resume
        self.faults = [] if faults is None else faults
        self.traces: dict[str, np.ndarray] = {}

    def save(self, run_state: PyTree, drawn: dict[str, np.ndarray] | None = None) -> None:
        if self.faults:
            self.traces = concatenate_traces(self.traces, drawn or {})
            return
        try:
            self.saver.save(run_state, drawn)
        except CheckpointError as error:
            self.faults.append(error)
            self.traces = error.partial or {}

    def drawn(self) -> dict[str, np.ndarray]:
        return self.traces if self.faults else self.saver.drawn()

    def inside(self, name: str) -> "Leader":
        return Leader(self.saver.inside(name), self.faults)


class Follower:
    """The ``Saver`` of a process that another one writes for: it reads what is there, and keeps its draws in memory.

    Attributes:
        resume: leaves of where the run stood, or None.
        faults: none of its own; the process that writes has them.
    """

    faults: Sequence[CheckpointError] = ()

    def __init__(self, folder: pathlib.Path, run: dict[str, Any]) -> None:
        self.folder, self.run = folder, run
        saved = _open_checkpoint(folder, run)
        self.step, self.resume = (0, None) if saved is None else (saved[0], saved[1] or None)
        self.traces: dict[str, np.ndarray] = {}
        if saved is not None and saved[2]["streamed"]:
            self.traces = {n: a[:, : saved[2]["draws"]] for n, a in read_draws(store_of(folder)).items()}

    def save(self, run_state: PyTree, drawn: dict[str, np.ndarray] | None = None) -> None:
        self.traces = concatenate_traces(self.traces, drawn or {})

    def drawn(self) -> dict[str, np.ndarray]:
        return self.traces

    def inside(self, name: str) -> "Follower":
        return Follower(self.folder / name, self.run | {"part": name})


def _open_checkpoint(folder: pathlib.Path, manifest: dict[str, Any]) -> tuple[int, dict[str, np.ndarray], dict] | None:
    """The newest checkpoint in a run's folder, which is made if missing; another run's folder is an error."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    saved = files.load(folder / "checkpoint")
    if saved is None:
        if (folder / RESULT).exists():
            raise CheckpointError(f"{folder} holds the result of another run; choose another folder.")
        refuse_others(folder)
        return None
    # Runs of earlier versions do not say over what mesh they were.
    before = {name: value for name, value in manifest.items() if name == "mesh"} | saved[2]["identity"]
    different = files.differences(before, manifest)
    if different:
        raise CheckpointError(
            f"{folder} holds another run, which cannot be continued: "
            + "; ".join(different)
            + ". Choose another folder, or the arguments of that run."
        )
    return saved


class RunFolder(NamedTuple):
    """The folder of a run, locked for this process; without a path, of a run that is not saved."""

    path: pathlib.Path | None
    placement: OneDevice
    saver: Saver | Leader | Follower | None

    def check(self, posterior: Posterior) -> None:
        """Raise on all processes what kept one from writing while the run lasted; ``partial`` holds the posterior."""
        if self.saver is not None:
            self._raise_anywhere(self.saver.faults, posterior)

    def write(self, posterior: Posterior, *, streamed: bool) -> None:
        """Write the posterior on the process that writes; a fault is raised on all.

        Args:
            streamed: whether the run saved the draws as it went.
        """
        if self.path is None or self.saver is None:
            return
        faults = list(self.saver.faults)
        try:
            if not faults and self.placement.is_writer:
                posterior.write(self.path, streamed=streamed)
        except CheckpointError as error:
            faults = [error]
        self._raise_anywhere(faults, posterior)

    def _raise_anywhere(self, faults: Sequence[CheckpointError], posterior: Posterior) -> None:
        anywhere = bool(faults)
        if self.placement.many_processes:
            with explain_lost_process(self.placement):
                anywhere = self.placement.gather(len(faults)).any()
        if anywhere:
            sentence = "The process that writes the run's folder cannot go on writing it; its own message says why."
            fault = faults[0] if faults else CheckpointError(sentence)
            fault.partial = posterior
            raise fault


@contextlib.contextmanager
def open_folder(
    path: pathlib.Path | None, run: dict[str, Any], placement: OneDevice, model: Model, method: Method, resumable: bool
) -> Iterator[RunFolder]:
    """Lock a run's folder and read what is saved there; nothing is written before all processes could.

    Args:
        path: made if missing; None for a run that is not saved.
        run: the run's ``identity``.
        resumable: False to save draws only.

    Raises:
        CheckpointError: the folder belongs to another run, or cannot be written.
        SettingsError: the draws do not fit on the disk.
    """
    if path is None:
        yield RunFolder(path, placement, None)
        return
    saver, fault = None, None
    with contextlib.ExitStack() as stack:
        try:
            if placement.is_writer:
                stack.enter_context(lock(path))
                check_room(model, method, path)
                saver = Saver(path, run, resumable=resumable)
        except TractableError as error:
            fault = error
        yield RunFolder(path, placement, _agree(path, run, placement, saver, fault))


def _agree(
    path: pathlib.Path, run: dict[str, Any], placement: OneDevice, saver: Saver | None, fault: TractableError | None
) -> Saver | Leader | Follower | None:
    """The saver of this process, once all processes could open the folder."""
    if placement.many_processes and placement.gather(int(fault is not None)).any() and fault is None:
        fault = CheckpointError(f"The process that writes {path} cannot open it; its own message says why.")
    if fault is not None:
        raise fault
    if not placement.many_processes:
        return saver
    shared = Follower(path, run) if saver is None else Leader(saver)
    if len(set(placement.gather(shared.step))) > 1:
        raise CheckpointError(f"{path} is not one folder for all processes: expected a path that they share.")
    return shared


def check_room(model: Model, method: Method, folder: pathlib.Path | None) -> None:
    """Check that memory, or the folder's disk, has room for the draws; those of a run being continued count as free."""
    needed, free = method.bytes_kept(model), psutil.virtual_memory().available
    room, where, instead = MEMORY_SHARE * free, "", "draws=FOLDER to stream them"
    if folder is not None:
        there = sum(path.stat().st_size for path in folder.glob("draws.zarr/*/*") if path.is_file())
        room = free = shutil.disk_usage(folder).free + there
        where, instead = f"the disk of {folder} has ", "a folder on another disk"
    if needed > room:
        asked = method.settings()
        raise SettingsError(
            f"{asked['chains']} chains of {asked['draws']} draws of {model.space.size} numbers need "
            f"{needed / 2**30:.1f} GiB; {where}{free / 2**30:.1f} GiB {'are ' * (not where)}free. Use thin=, fewer "
            f"draws, draws='moments', or {instead}."
        )
