"""A session holds a method's problem, its random key, and the services it uses while it learns, such as saving."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from tractable.core.errors import CheckpointError, RunError, enough_memory
from tractable.core.model import Model, PyTree
from tractable.core.rows import Data
from tractable.engine.mappings import make_room
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.progress import progress_of
from tractable.engine.stopping import interruptible

PARTS = 64  # how often a run of known length is saved
SAVING = 0.05  # the largest share of its time that a run of unknown length spends on saving


@runtime_checkable
class Saver(Protocol):
    """A folder to which a run is saved while it runs."""

    resume: dict[str, np.ndarray] | None  # arrays of an earlier run's saved state

    @property
    def faults(self) -> Sequence[CheckpointError]:
        """Errors of saving that were not raised when they occurred; the session stops because of them."""
        ...

    def save(self, run_state: PyTree, drawn: dict[str, np.ndarray] | None = None) -> None:
        """Save the run's state, and the traces drawn since the last save, each (chain, draw, ...)."""

    def drawn(self) -> dict[str, np.ndarray]:
        """All traces saved so far."""
        ...

    def inside(self, name: str) -> "Saver":
        """A subfolder, for a run that is part of this one."""
        ...


class Session(NamedTuple):
    """Everything that ``infer`` passes to a method: the problem, the random key, and functions that stop and report."""

    model: Model
    data: Any  # Data or None; most methods raise an error without data
    key: jax.Array
    stop: Callable[[], bool]  # whether the run was asked to stop
    say: Callable[..., None]  # reports progress: (phase, done, of, values={}), ``values`` are a climb's numbers by name
    placement: OneDevice = ONE_DEVICE  # the devices of chains and rows
    saver: Saver | None = None
    moments: bool = False  # keep running moments instead of draws
    held_out: Any = None  # Data or None: held-out rows that decide when a climb ends
    near: tuple[float, ...] | None = None  # unconstrained position (d,) from which the first climb starts

    @property
    def resume(self) -> dict[str, np.ndarray] | None:
        """The arrays of the saved state of an earlier run, or None."""
        return None if self.saver is None else self.saver.resume

    def alone(self) -> "Session":
        """The same session without progress, saving or resuming."""
        return self._replace(say=lambda phase, done, of, values=None: None, saver=None, moments=False)

    def inside(self, name: str) -> "Session":
        """A session for a run that is part of this one and is saved in a subfolder."""
        return self.alone()._replace(saver=None if self.saver is None else self.saver.inside(name))

    def keeper(self, done: int = 0, of: int | None = None) -> Callable:
        """A function ``keep(run_state, done=0, at_once=False)`` that saves ``run_state()``, but not too often.

        ``done`` is how much of the run is done. With ``at_once``, ``keep`` saves in any case.

        Args:
            done: how much of the run was done when it was last saved.
            of: the run's length; the run is saved ``PARTS`` times. None if the length is unknown; saving then takes at
                most a share ``SAVING`` of the time.
        """
        saver, last, due = self.saver, done, 0.0

        def keep(run_state: Callable[[], PyTree], done: int = 0, at_once: bool = False) -> None:
            nonlocal last, due
            start = time.monotonic()
            if saver is None or not (at_once or (start >= due if of is None else (done - last) * PARTS >= of)):
                return
            saver.save(run_state())
            last, end = done, time.monotonic()
            due = end + (end - start) / SAVING

        return keep


class Counter:
    """Counts the evaluations of a search on the host, and reports them as progress towards ``most`` evaluations."""

    def __init__(self, session: Session, phase: str, most: int) -> None:
        self.done, self.say = 0, functools.partial(session.say, phase)
        self.most = most

    def __call__(self, value: float | None = None) -> None:
        self.done += 1
        self.say(min(self.done, self.most), self.most, {} if value is None else {"objective": value})


@contextlib.contextmanager
def open_session(
    model: Model,
    data: Data | None,
    seed: int | None,
    progress: bool | Callable | None,
    placement: OneDevice = ONE_DEVICE,
    saver: Saver | None = None,
    moments: bool = False,
) -> Iterator[Session]:
    """A context with a session that shows progress and stops at Ctrl-C.

    The session stops on all processes of the run once it stops on one of them, or once saving has failed.
    """
    make_room()
    progress = progress if placement.is_writer else False
    with progress_of(progress) as say, interruptible() as stop, explain_lost_process(placement), enough_memory():
        stop = placement.any_process(lambda signal=stop: signal() or (saver is not None and bool(saver.faults)))
        yield Session(model, data, jax.random.key(seed or 0), stop, say, placement, saver, moments)


@contextlib.contextmanager
def explain_lost_process(placement: OneDevice) -> Iterator[None]:
    """A context that turns JAX's error about a lost process of the run into a RunError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not placement.many_processes:
            raise
        raise RunError(
            "Another process of this run has ended, or cannot be reached. Start all processes again with the same "
            f"checkpoint= to continue from the last save. ({str(error).splitlines()[0]})"
        ) from error
