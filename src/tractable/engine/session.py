"""A session: the problem, the key, and the services that a method uses while it learns, such as saving and progress."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from tractable.core.errors import CheckpointError, RunError
from tractable.core.model import Model, PyTree
from tractable.core.rows import Data
from tractable.engine.mappings import make_room
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.progress import progress_of
from tractable.engine.stopping import interruptible

PARTS = 64  # saves of a run of known length
SAVING = 0.05  # largest share of a run's time spent saving it, where its length is unknown


@runtime_checkable
class Saver(Protocol):
    """A folder that a run is saved to while it runs."""

    resume: dict[str, np.ndarray] | None  # leaves of an earlier run's saved state

    @property
    def faults(self) -> Sequence[CheckpointError]:
        """Errors of saving that were not raised at once."""
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
    """What ``infer`` passes to a method: the problem, the key, and the host's hooks."""

    model: Model
    data: Any  # Data or None; most methods raise without data
    key: jax.Array
    stop: Callable[[], bool]
    say: Callable[..., None]  # (phase, done, of, values={}), the values of the curve by name
    placement: OneDevice = ONE_DEVICE  # of chains and rows
    saver: Saver | None = None
    moments: bool = False  # keep running moments instead of draws
    held_out: Any = None  # Data or None: held-out rows that decide when a climb ends
    near: tuple[float, ...] | None = None  # unconstrained position (d,) where the first climb starts

    @property
    def resume(self) -> dict[str, np.ndarray] | None:
        """Leaves of the saved state of an earlier run, or None."""
        return None if self.saver is None else self.saver.resume

    def alone(self) -> "Session":
        """The same session without progress, saving or resuming."""
        return self._replace(say=lambda phase, done, of, values=None: None, saver=None, moments=False)

    def inside(self, name: str) -> "Session":
        """A session for a run that is part of this one, saved in a subfolder."""
        return self.alone()._replace(saver=None if self.saver is None else self.saver.inside(name))

    def keeper(self, done: int = 0, of: int | None = None) -> Callable:
        """A function ``keep(run_state, done=0, at_once=False)`` that saves ``run_state()``, but not too often.

        Args:
            done: how much of the run was done when it was last saved.
            of: the run's length; it is saved after every 64th of it. None if unknown; saving then takes at most a
                twentieth of the time.
        """
        saver, last, due = self.saver, done, 0.0

        def keep(run_state: Callable[[], PyTree], done: int = 0, at_once: bool = False) -> None:
            nonlocal last, due
            began = time.monotonic()
            if saver is None or not (at_once or (began >= due if of is None else (done - last) * PARTS >= of)):
                return
            saver.save(run_state())
            last, ended = done, time.monotonic()
            due = ended + (ended - began) / SAVING

        return keep


class Counter:
    """Counts the evaluations of a search on the host, and shows them as progress towards ``most``."""

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
    """A session that shows progress, stops at Ctrl-C, and stops on all processes where it stops on one."""
    make_room()
    shown = progress if placement.is_writer else False
    with progress_of(shown) as say, interruptible() as stop, explain_lost_process(placement):
        stop = placement.any_process(lambda asked=stop: asked() or (saver is not None and bool(saver.faults)))
        yield Session(model, data, jax.random.key(seed or 0), stop, say, placement, saver, moments)


@contextlib.contextmanager
def explain_lost_process(placement: OneDevice) -> Iterator[None]:
    """Turn JAX's error into a RunError where another process of the run has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not placement.many_processes:
            raise
        raise RunError(
            "Another process of this run has ended, or cannot be reached. Start all of them again with the same "
            f"checkpoint= to go on from the last save. ({str(error).splitlines()[0]})"
        ) from error
