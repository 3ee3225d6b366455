"""What climbs have in common that are saved as they go: loops in stretches, and searches on the host that listen."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tractable import run as loop
from tractable.data.rows import Data, Plan
from tractable.methods.drawing import joined
from tractable.methods.session import Session
from tractable.tools.leaves import beneath, restored

PyTree = Any
HEARD = 1 << 24  # numbers that a search remembers, at most


class Stretch(NamedTuple):
    """Where a loop stands whose positions are not kept: enough to go on exactly."""

    groups: int  # done
    states: PyTree
    info: dict[str, np.ndarray]  # traces so far, (start, step)
    moments: loop.Moments | None = None  # since the last cut


def stretched(
    session: Session,
    phase: str,
    program: Callable,
    shape: loop.Shape,
    data: Data | None,
    plan: Plan | None,
    tuned: PyTree,
    keys: jax.Array,
    begin: Callable[[], PyTree],
    cuts: Sequence[int],
) -> tuple[Stretch, bool]:
    """A loop to the last of ``cuts``, saved as it goes, and whether it was interrupted.

    Args:
        begin: first states.
        cuts: numbers of groups, ascending; running moments begin anew at each.
    """
    if session.resume is None:
        at = Stretch(0, begin(), {})
    else:
        moments = loop.some_moments() if beneath(session.resume, "moments") else None
        at = restored(Stretch(0, jax.eval_shape(begin), {}, moments), session.resume)
    keep, interrupted = session.keeper(at.groups, cuts[-1]), False

    def on_segment(_: np.ndarray | None, info: dict, states: PyTree, done: int, moments: loop.Moments | None) -> None:
        nonlocal at
        at = Stretch(done, states, joined(at.info, info), moments)
        keep(lambda: at, done)
        session.say(phase, done * shape.group, cuts[-1] * shape.group)

    for before, cut in zip((0, *cuts), cuts, strict=False):
        if at.groups >= cut and cut != cuts[-1]:
            continue
        result = loop.run(
            program, shape, data, plan, tuned, keys, at.states, groups=cut, done=at.groups,
            moments=None if at.groups == before else at.moments, keep=False, trace=False,
            on_segment=on_segment, stop=session.stop,
        )  # fmt: skip
        interrupted = result.interrupted
        if interrupted:
            break
    keep(lambda: at, at.groups, at_once=True)
    return at, interrupted


class Journal:
    """What a deterministic search on the host asked, and heard: a run that goes on hears it again before it asks anew.

    So a search by a library that cannot be stopped half-way is saved as it goes. Past 2²⁴ numbers nothing more is
    written down, and what is missing is asked again.
    """

    def __init__(self, session: Session, phase: str, of: int) -> None:
        self.say = lambda: session.say(phase, min(self.count, of), of)
        self.heard = [] if session.resume is None else list(session.resume.get("heard", ()))
        self.count, self.keep = 0, session.keeper()

    def __call__(self, ask: Callable[[], tuple[float, np.ndarray]]) -> tuple[float, np.ndarray]:
        """A value and its gradient (d,)."""
        self.count += 1
        if self.count <= len(self.heard):
            value, *gradient = np.split(self.heard[self.count - 1], [1])
            return float(value[0]), gradient[0]
        value, gradient = ask()
        if self.count == len(self.heard) + 1 and self.count * (1 + len(gradient)) <= HEARD:
            self.heard.append(np.append(value, gradient))
            self.keep(self.standing)
        self.say()
        return value, gradient

    def standing(self) -> dict[str, np.ndarray]:
        return {"heard": np.stack(self.heard)} if self.heard else {}

    def close(self) -> None:
        """Save all of it."""
        self.keep(self.standing, at_once=True)
