"""A sitting of inference: the problem, the key, and what the host offers a method while it learns."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from tractable.core import Model
from tractable.methods.signal import interruptible
from tractable.tools.progress import progress_of

PyTree = Any


class Session(NamedTuple):
    """What ``infer`` hands a method: the problem, the key, and the host's hooks."""

    model: Model
    data: Any  # Data, or None
    key: jax.Array
    stop: Callable[[], bool]
    say: Callable[[str, int, int], None]  # (phase, done, of)
    shard: Callable[[PyTree], PyTree]  # lays the chain axis over devices
    resume: Any = None  # a saved Standing
    save: Callable | None = None  # called with every segment
    keep: str = "draws"  # "draws", "moments" or "elsewhere"
    chunks: int = 64  # parts in which a run is saved


@contextlib.contextmanager
def sitting(
    model: Model,
    data: Any,
    seed: int | None,
    progress: bool | Callable | None,
    shard: Callable,
    saver: Callable | None = None,
    moments: bool = False,
) -> Iterator[tuple[Session, Any]]:
    """A session in which progress is shown and Ctrl-C is heard; ``saver()`` opens the folder it is saved to."""
    with progress_of(progress) as bar, interruptible() as stop:
        kept = None if saver is None else saver()
        session = Session(
            model, data, jax.random.key(seed or 0), stop, bar.say, shard,
            resume=None if kept is None else kept.standing,
            save=None if kept is None else kept.save,
            keep="moments" if moments else "draws" if kept is None else "elsewhere",
        )  # fmt: skip
        yield session, kept
