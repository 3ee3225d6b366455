"""A sitting of inference: the problem, the key, and what the host offers a method while it learns."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from tractable.core import Model
from tractable.data.rows import Data
from tractable.tools.mappings import make_room
from tractable.tools.progress import progress_of
from tractable.tools.stopping import interruptible

PyTree = Any
PARTS = 64  # in which a run of known length is saved
SAVING = 0.05  # of the time that a run of unknown length takes, what saving it may take at most


class Saver(Protocol):
    """A folder that a run is saved to as it goes."""

    resume: dict[str, np.ndarray] | None  # leaves of where a run before stood

    def save(self, standing: PyTree, drawn: dict[str, np.ndarray] | None = None) -> None:
        """Where the run stands, and what was drawn since the last time, each (chain, draw, ...)."""

    def drawn(self) -> dict[str, np.ndarray]:
        """All that was drawn."""
        ...

    def inside(self, name: str) -> "Saver":
        """A folder within, for a run that is part of this one."""
        ...


class Session(NamedTuple):
    """What ``infer`` hands a method: the problem, the key, and the host's hooks."""

    model: Model
    data: Any  # Data, or None, which most methods refuse
    key: jax.Array
    stop: Callable[[], bool]
    say: Callable[[str, int, int], None]  # (phase, done, of)
    shard: Callable[[PyTree], PyTree]  # lays the chain axis over devices
    saver: Saver | None = None
    moments: bool = False  # running moments are kept in place of draws
    held_out: Any = None  # Data by which climbs end, or None
    near: tuple[float, ...] | None = None  # an unconstrained position (d,) that the first climb begins at

    @property
    def resume(self) -> dict[str, np.ndarray] | None:
        """Leaves of where a run before this one stood."""
        return None if self.saver is None else self.saver.resume

    def alone(self) -> "Session":
        """The same, of which nothing is said, saved or resumed."""
        return self._replace(say=lambda phase, done, of: None, saver=None, moments=False)

    def inside(self, name: str) -> "Session":
        """Of a run that is part of this one, and is saved within its folder."""
        return self.alone()._replace(saver=None if self.saver is None else self.saver.inside(name))

    def keeper(self, done: int = 0, of: int | None = None) -> Callable:
        """``keep(standing, done=0, at_once=False)`` saves ``standing()``, where a run is saved, and not too often.

        Args:
            done: how much of the run was done when it was last saved.
            of: its length, of which every 64th part is saved; None where it is not known, and saving takes no more
                than a twentieth of the time.
        """
        saver, last, due = self.saver, done, 0.0

        def keep(standing: Callable[[], PyTree], done: int = 0, at_once: bool = False) -> None:
            nonlocal last, due
            began = time.monotonic()
            if saver is None or not (at_once or (began >= due if of is None else (done - last) * PARTS >= of)):
                return
            saver.save(standing())
            last, ended = done, time.monotonic()
            due = ended + (ended - began) / SAVING

        return keep


@contextlib.contextmanager
def sitting(
    model: Model,
    data: Data | None,
    seed: int | None,
    progress: bool | Callable | None,
    shard: Callable = lambda tree: tree,
    opened: Callable[[], Saver | None] = lambda: None,
    moments: bool = False,
) -> Iterator[Session]:
    """A session in which progress is shown and Ctrl-C is heard; ``opened()`` is the folder that it is saved to."""
    make_room()
    with progress_of(progress) as say, interruptible() as stop:
        yield Session(model, data, jax.random.key(seed or 0), stop, say, shard, opened(), moments)
