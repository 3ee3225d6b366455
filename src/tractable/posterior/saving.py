"""The folder of a run while it goes on: its lock, its saved state and draws, and the process that writes it."""

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
from tractable.engine.leaves import flatten
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
    """Writes a run to a folder while it goes on: its draws to zarr, its state to a checkpoint.

    Args:
        folder: the run's folder, which is made if it does not exist.
        run: the run's ``identity``; a folder of another run is an error.
        resumable: False to write draws only; a folder with a checkpoint is then an error.

    Attributes:
        resume: the arrays of the saved state by their paths, or None for a new run.
        faults: always empty, because errors are raised at once; ``Leader`` collects them.
    """

    faults: Sequence[CheckpointError] = ()

    def __init__(self, folder: pathlib.Path, run: dict[str, Any], *, resumable: bool = True) -> None:
        self.folder, self.run, self.resumable = folder, run, resumable
        self.step, self.resume = 0, None
        checkpoint = _open_checkpoint(folder, run)
        self.store: DrawStore | None = None
        if checkpoint is None:
            discard_draws(folder)
            if resumable:
                self.save({})  # an empty checkpoint marks the folder as this run's, even if the run ends soon
            return
        if not resumable:
            raise CheckpointError(
                f"{folder} holds the checkpoint of a run; pass it as checkpoint=, or choose another folder."
            )
        self.step, leaves, manifest = checkpoint
        self.resume = leaves or None
        if not manifest["streamed"]:
            discard_draws(folder)
        else:
            self.store = store_of(folder)
            check_drawn(self.store, manifest["draws"], manifest.get("drawn", ""))
            self.store.truncate(manifest["draws"])

    def save(self, run_state: PyTree, drawn: dict[str, np.ndarray] | None = None) -> None:
        """Saves the run's state, and the draws since the last save, each (chain, draw, ...).

        Raises:
            CheckpointError: the files cannot be written; the error's ``partial`` holds all draws that are still there.
        """
        count = 0
        try:
            if drawn is not None:
                self.store = new_store(self.folder, drawn) if self.store is None else self.store
                count = self.store.count
                self.store.append(drawn)
            self._save(run_state)
        except CheckpointError as error:
            if drawn is not None:
                error.partial = concatenate_traces(self._read_stored(count), drawn)
            raise

    def _read_stored(self, count: int) -> dict[str, np.ndarray]:
        """The first ``count`` stored draws; empty if they cannot be read."""
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
            files.save(self.folder / "checkpoint", flatten(run_state), about, step=self.step)

    def drawn(self) -> dict[str, np.ndarray]:
        """The traces of all draws saved so far."""
        return {} if self.store is None else read_draws(self.store)

    def inside(self, name: str) -> "Saver":
        """The saver of a part of the run, in the subfolder ``name``."""
        refuse_links(self.folder / name)
        return Saver(self.folder / name, self.run | {"part": name}, resumable=self.resumable)


class Leader:
    """The ``Saver`` of the process that writes for all processes of a run.

    Its first error is not raised at once, because the other processes would then wait for this one for ever. It is
    stored in ``faults``, and all processes stop when they next check it.

    Attributes:
        faults: the first CheckpointError, if there was one; draws are kept in memory after it.
    """

    def __init__(self, saver: Saver, faults: list[CheckpointError] | None = None) -> None:
        self.saver, self.step, self.resume = saver, saver.step, saver.resume
        self.faults = [] if faults is None else faults
        self.traces: dict[str, np.ndarray] = {}

    def save(self, run_state: PyTree, drawn: dict[str, np.ndarray] | None = None) -> None:
        """Saves as ``Saver.save`` does; after an error, draws are only kept in memory."""
        if self.faults:
            self.traces = concatenate_traces(self.traces, drawn or {})
            return
        try:
            self.saver.save(run_state, drawn)
        except CheckpointError as error:
            self.faults.append(error)
            self.traces = error.partial or {}

    def drawn(self) -> dict[str, np.ndarray]:
        """The traces of all draws of the run so far."""
        return self.traces if self.faults else self.saver.drawn()

    def inside(self, name: str) -> "Leader":
        """The saver of a part of the run, in the subfolder ``name``; it has the same ``faults``."""
        return Leader(self.saver.inside(name), self.faults)


class Follower:
    """The ``Saver`` of a process that does not write: it reads the saved state, and keeps its draws in memory.

    Attributes:
        resume: the arrays of the saved state by their paths, or None for a new run.
        faults: always empty; the process that writes, the ``Leader``, collects errors.
    """

    faults: Sequence[CheckpointError] = ()

    def __init__(self, folder: pathlib.Path, run: dict[str, Any]) -> None:
        self.folder, self.run = folder, run
        checkpoint = _open_checkpoint(folder, run)
        self.step, self.resume = (0, None) if checkpoint is None else (checkpoint[0], checkpoint[1] or None)
        self.traces: dict[str, np.ndarray] = {}
        if checkpoint is not None and checkpoint[2]["streamed"]:
            self.traces = {n: a[:, : checkpoint[2]["draws"]] for n, a in read_draws(store_of(folder)).items()}

    def save(self, run_state: PyTree, drawn: dict[str, np.ndarray] | None = None) -> None:
        """Keeps the draws in memory; the process that writes saves them."""
        self.traces = concatenate_traces(self.traces, drawn or {})

    def drawn(self) -> dict[str, np.ndarray]:
        """The traces of all draws of the run so far."""
        return self.traces

    def inside(self, name: str) -> "Follower":
        """The saver of a part of the run, in the subfolder ``name``."""
        return Follower(self.folder / name, self.run | {"part": name})


def _open_checkpoint(folder: pathlib.Path, manifest: dict[str, Any]) -> tuple[int, dict[str, np.ndarray], dict] | None:
    """The newest checkpoint in a run's folder, which is made if it does not exist; another run's folder is an error."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    checkpoint = files.load(folder / "checkpoint")
    if checkpoint is None:
        if (folder / RESULT).exists():
            raise CheckpointError(f"{folder} holds the result of another run; choose another folder.")
        refuse_others(folder)
        return None
    # Checkpoints of earlier versions do not name the mesh of devices; their mesh is taken to be the present one.
    saved_manifest = {name: value for name, value in manifest.items() if name == "mesh"} | checkpoint[2]["identity"]
    differences = files.differences(saved_manifest, manifest)
    if differences:
        raise CheckpointError(
            f"{folder} holds another run, which cannot be continued: "
            + "; ".join(differences)
            + ". Choose another folder, or the arguments of that run."
        )
    return checkpoint


class RunFolder(NamedTuple):
    """The folder of a run, locked for this process; the path is None if the run is not saved."""

    path: pathlib.Path | None
    placement: OneDevice
    saver: Saver | Leader | Follower | None

    def check(self, posterior: Posterior) -> None:
        """Raises on all processes the error, if there was one, of the process that wrote during the run.

        The error's ``partial`` holds the posterior.
        """
        if self.saver is not None:
            self._raise_anywhere(self.saver.faults, posterior)

    def write(self, posterior: Posterior, *, streamed: bool) -> None:
        """Writes the posterior, on the process that writes; an error is raised on all processes.

        Args:
            posterior: the run's result.
            streamed: whether the run has already saved the draws.
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
        """Raises an error on every process if one of the processes has ``faults``."""
        has_fault = bool(faults)
        if self.placement.many_processes:
            with explain_lost_process(self.placement):
                has_fault = self.placement.gather(len(faults)).any()
        if has_fault:
            sentence = "The process that writes the run's folder can no longer write it; its own message says why."
            fault = faults[0] if faults else CheckpointError(sentence)
            fault.partial = posterior
            raise fault


@contextlib.contextmanager
def open_folder(
    path: pathlib.Path | None, run: dict[str, Any], placement: OneDevice, model: Model, method: Method, resumable: bool
) -> Iterator[RunFolder]:
    """Locks a run's folder and reads the saved state; the run starts only if all processes could open the folder.

    Args:
        path: the folder, which is made if it does not exist; None for a run that is not saved.
        run: the run's ``identity``.
        placement: the devices and processes of the run.
        model, method: the model and the method, for the size of the draws.
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
    """The saver of this process, if all processes could open the folder; otherwise an error on all of them."""
    if placement.many_processes and placement.gather(int(fault is not None)).any() and fault is None:
        fault = CheckpointError(f"The process that writes {path} cannot open it; its own message says why.")
    if fault is not None:
        raise fault
    if not placement.many_processes:
        return saver
    shared = Follower(path, run) if saver is None else Leader(saver)
    if len(set(placement.gather(shared.step))) > 1:
        raise CheckpointError(f"{path} is not the same folder on all processes: expected a path that they share.")
    return shared


def check_room(model: Model, method: Method, folder: pathlib.Path | None) -> None:
    """Raises a SettingsError if memory, or the folder's disk, has no room for the draws.

    On disk, the draws of a run that is continued count as free space.
    """
    size, free = method.bytes_kept(model), psutil.virtual_memory().available
    room, disk, remedy = MEMORY_SHARE * free, "", "draws=FOLDER to stream them"
    if folder is not None:
        stored = sum(path.stat().st_size for path in folder.glob("draws.zarr/*/*") if path.is_file())
        room = free = shutil.disk_usage(folder).free + stored
        disk, remedy = f"the disk of {folder} has ", "a folder on another disk"
    if size > room:
        settings = method.settings()
        raise SettingsError(
            f"{settings['chains']} chains of {settings['draws']} draws of {model.space.size} numbers need "
            f"{size / 2**30:.1f} GiB; {disk}{free / 2**30:.1f} GiB {'are ' * (not disk)}free. Use thin=, fewer "
            f"draws, draws='moments', or {remedy}."
        )
