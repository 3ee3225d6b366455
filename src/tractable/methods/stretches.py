"""What climbs have in common that are saved as they go: loops in stretches, and searches on the host that listen."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tractable import run as loop
from tractable.beliefs.check import Check
from tractable.data.rows import Data, Plan
from tractable.methods.drawing import joined
from tractable.methods.session import Session
from tractable.tools.leaves import beneath, restored

PyTree = Any
HEARD = 1 << 24  # numbers that a search remembers, at most
LOOKS = 50  # at rows held out, in a run
PATIENCE = 8  # looks that found them predicted worse, after which a climb ends


HELD = "held-out best"  # steps after which rows held out were predicted best, as ``found`` calls it


class Peak(NamedTuple):
    """What a climb predicts rows held out by: the last of where it did no worse than best."""

    highest: np.ndarray  # (m,) nats of every row, where their mean was highest
    rows: np.ndarray  # (m,) likewise, of what is kept
    groups: int  # done then
    looks: int  # since then

    @classmethod
    def of(cls, rows: np.ndarray) -> "Peak":
        """A climb that has not begun."""
        return cls(rows, rows, 0, 0)

    def after(self, rows: np.ndarray, groups: int) -> tuple["Peak", bool]:
        """After one more look, and whether what was looked at is to be kept.

        It is unless worse than the best by more than the standard error of their difference over rows: noise would
        often choose an early step.
        """
        highest = rows if rows.mean() > self.highest.mean() else self.highest
        lost = highest - rows
        if lost.mean() <= lost.std() / np.sqrt(len(lost)):
            return Peak(highest, rows, groups, 0), True
        return self._replace(highest=highest, looks=self.looks + 1), False

    def found(self, group: int) -> dict[str, Any]:
        """What is told of it; a group is so many steps."""
        return {"held-out score": float(self.rows.mean()), HELD: int(self.groups) * group}


class Stretch(NamedTuple):
    """Where a loop stands whose positions are not kept: enough to go on exactly."""

    groups: int  # done
    states: PyTree
    info: dict[str, np.ndarray]  # traces so far, (start, step)
    moments: loop.Moments | None = None  # since the last cut
    peak: Peak | None = None  # of rows held out, where there are some
    kept: PyTree = None  # states there
    seen: int = 0  # groups done when these were last looked at

    def found(self, group: int) -> dict[str, Any]:
        """What is told of rows held out."""
        return {} if self.peak is None else self.peak.found(group)


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
    score: Callable[[PyTree], np.ndarray] | None = None,
) -> tuple[Stretch, bool]:
    """A loop to the last of ``cuts``, saved as it goes, and whether it was interrupted.

    Args:
        begin: first states.
        cuts: numbers of groups, ascending; running moments begin anew at each.
        score: of states, (m,) nats of rows held out. They are looked at fifty times; eight looks in a row that find
            them predicted worse than before end the run, and the states come back that did best.
    """
    if score is not None:
        cuts = np.unique(np.ceil(np.linspace(0, cuts[-1], LOOKS + 1)[1:]).astype(int)).tolist()
    if session.resume is None:
        at = Stretch(0, begin(), {})
        if score is not None:
            at = at._replace(peak=Peak.of(score(at.states)), kept=at.states)
    else:
        moments = loop.some_moments() if beneath(session.resume, "moments") else None
        states = jax.eval_shape(begin)
        watched = (None, None) if score is None else (Peak.of(np.zeros(0)), states)
        at = restored(Stretch(0, states, {}, moments, *watched), session.resume)
    keep, interrupted = session.keeper(at.groups, cuts[-1]), False

    def on_segment(_: np.ndarray | None, info: dict, states: PyTree, done: int, moments: loop.Moments | None) -> None:
        nonlocal at
        at = at._replace(groups=done, states=states, info=joined(at.info, info), moments=moments)
        keep(lambda: at, done)
        session.say(phase, done * shape.group, cuts[-1] * shape.group)

    for before, cut in zip((0, *cuts), cuts, strict=False):
        if at.peak is not None and at.peak.looks >= PATIENCE:
            break
        if at.groups > cut or (at.groups == cut and cut != cuts[-1] and (score is None or at.seen >= cut)):
            continue
        result = loop.run(
            program, shape, data, plan, tuned, keys, at.states, groups=cut, done=at.groups,
            moments=None if at.groups == before else at.moments, keep=False, trace=False,
            on_segment=on_segment, stop=session.stop,
        )  # fmt: skip
        interrupted = result.interrupted
        if interrupted:
            break
        if score is not None and at.peak is not None:
            peak, good = at.peak.after(score(at.states), at.groups)
            at = at._replace(peak=peak, kept=at.states if good else at.kept, seen=cut)
    keep(lambda: at, at.groups, at_once=True)
    return at if at.peak is None else at._replace(states=at.kept), interrupted


def held_out_best(found: dict[str, Any], verdict: str = "trust", means: str = "") -> Check:
    """Where rows held out ended a climb."""
    said = f"steps after which rows held out were predicted best, {found['held-out score']:.4g} nats a row{means}"
    return Check(HELD, found[HELD], verdict, said)


class Journal:
    """What a deterministic search on the host asked, and heard: a run that goes on hears it again before it asks anew.

    So a search by a library that cannot be stopped half-way is saved as it goes. Past 2²⁴ numbers nothing more is
    written down, and what is missing is asked again.
    """

    def __init__(self, session: Session, phase: str, of: int) -> None:
        self.say = lambda: session.say(phase, min(self.count, of), of)
        saved = session.resume or {}
        lengths = saved.get("lengths", np.zeros(0, int))
        self.heard = np.split(saved["heard"], np.cumsum(lengths)[:-1]) if len(lengths) else []
        self.count, self.keep = 0, session.keeper()

    def __call__(self, ask: Callable[[], tuple[float, np.ndarray]]) -> tuple[float, np.ndarray]:
        """A value and its gradient, or other numbers, (d,)."""
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
        if not self.heard:
            return {}
        return {"heard": np.concatenate(self.heard), "lengths": np.array([len(each) for each in self.heard])}

    def close(self) -> None:
        """Save all of it."""
        self.keep(self.standing, at_once=True)
