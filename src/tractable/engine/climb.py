"""The climb that all stochastic maximisers share: a compiled loop, saved as it goes, that held-out rows may end."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tractable.core.check import Check
from tractable.core.curve import SCORES
from tractable.core.rows import Plan
from tractable.core.tree import PyTree
from tractable.engine import run as loop
from tractable.engine.drawing import concatenate_traces
from tractable.engine.leaves import beneath, restored
from tractable.engine.session import Session

SCORINGS = 50  # looks at the held-out rows in a run
PATIENCE = 8  # looks in a row at worse held-out predictions after which a climb ends


HELD_OUT_STEPS = "held-out best"  # key in ``found``: steps after which the held-out rows were predicted best


class HeldOutBest(NamedTuple):
    """The best held-out score of a climb, and the last state whose score is not clearly worse."""

    highest: np.ndarray  # (m,) nats of every row, at the highest mean so far
    rows: np.ndarray  # (m,) nats of every row, at the kept state
    groups: int  # done at the kept state
    scorings: int  # since the kept state
    scores: np.ndarray  # (look, 2) groups done, and the mean score

    @classmethod
    def of(cls, rows: np.ndarray) -> "HeldOutBest":
        """The best before the first step."""
        return cls(rows, rows, 0, 0, np.zeros((0, 2)))

    def after(
        self, rows: np.ndarray, groups: int, sigmas: float = 1.0, begins: bool = False
    ) -> tuple["HeldOutBest", bool]:
        """The best after one more look, and whether to keep the new state.

        It is kept unless its score is below the best by more than ``sigmas`` standard errors of their difference over
        rows: otherwise noise would often choose an early step. With ``begins``, earlier states do not count.
        """
        scores = np.concatenate([self.scores, [[groups, rows.mean()]]])
        highest = rows if begins or rows.mean() > self.highest.mean() else self.highest
        lost = highest - rows
        if lost.mean() <= sigmas * lost.std() / np.sqrt(len(lost)):
            return HeldOutBest(highest, rows, groups, 0, scores), True
        return self._replace(highest=highest, scorings=self.scorings + 1, scores=scores), False

    def found(self, group: int) -> dict[str, Any]:
        """Figures for the report; ``group`` is the number of steps in a group."""
        return {"held-out score": float(self.rows.mean()), HELD_OUT_STEPS: int(self.groups) * group}


class LoopState(NamedTuple):
    """The state of a loop that keeps no positions: enough to continue it exactly."""

    groups: int  # done
    states: PyTree
    info: dict[str, np.ndarray]  # traces so far, (start, step)
    moments: loop.Moments | None = None  # of positions since the last cut
    peak: HeldOutBest | None = None  # of the held-out score, where rows are held out
    peak_states: PyTree = None  # states at the peak, or what stands for them
    seen: int = 0  # groups done at the last look at held-out rows

    def found(self, group: int) -> dict[str, Any]:
        """The held-out figures for the report, if rows are held out."""
        return {} if self.peak is None else self.peak.found(group)

    def traces(self, group: int) -> dict[str, np.ndarray]:
        """The traces of the climb, for ``Curve.of``."""
        return self.info if self.peak is None else self.info | {SCORES: self.peak.scores * [group, 1]}

    def latest(self) -> dict[str, float]:
        """The newest values of the curve, for progress: the objective of the best start, and the held-out score."""
        values = {}
        if "objective" in self.info:
            recent = self.info["objective"][:, -50:].mean(1)
            values["objective"] = float(recent.max())
        if self.peak is not None and len(self.peak.scores):
            values["held-out score"] = float(self.peak.scores[-1, 1])
        return values


class Climber(NamedTuple):
    """What is fixed while a compiled loop climbs."""

    session: Session
    phase: str
    program: Callable
    shape: loop.Shape
    plan: Plan | None
    keys: jax.Array

    def advance(
        self, at: LoopState, tuned: PyTree, end: int, of: int, keep: Callable[[LoopState], None]
    ) -> tuple[LoopState, bool]:
        """Run to ``end`` groups of at most ``of``: the state, and whether the run was interrupted.

        Args:
            keep: called with the state at every visit of the host; saves it.
        """

        def on_segment(
            _: np.ndarray | None, info: dict, states: PyTree, done: int, moments: loop.Moments | None
        ) -> None:
            nonlocal at
            at = at._replace(groups=done, states=states, info=concatenate_traces(at.info, info), moments=moments)
            keep(at)
            self.session.say(self.phase, done * self.shape.group, of * self.shape.group, at.latest())

        result = loop.run(
            loop.Loop(self.program, self.shape, self.plan), self.session.data, tuned, self.keys,
            loop.Start(at.states, at.groups, at.moments), end, loop.Host(on_segment, self.session.stop), (),
        )  # fmt: skip
        return at, result.interrupted


def climb(
    climber: Climber,
    tuned: PyTree,
    begin: Callable[[], PyTree],
    cuts: Sequence[int],
    score: Callable[[PyTree], np.ndarray] | None = None,
) -> tuple[LoopState, bool]:
    """Run a loop to the last of ``cuts``, saving as it goes: its state, and whether it was interrupted.

    Args:
        begin: makes the first states.
        cuts: numbers of groups, ascending; running moments start afresh at each.
        score: gives the held-out rows' scores (m,), nats, for states. It is called fifty times; eight worse scores in
            a row end the run, and the best states are returned.
    """
    session = climber.session
    if score is not None:
        cuts = np.unique(np.ceil(np.linspace(0, cuts[-1], SCORINGS + 1)[1:]).astype(int)).tolist()
    if session.resume is None:
        at = LoopState(0, begin(), {})
        if score is not None:
            at = at._replace(peak=HeldOutBest.of(score(at.states)), peak_states=at.states)
    else:
        moments = loop.some_moments() if beneath(session.resume, "moments") else None
        states = jax.eval_shape(begin)
        watched = (None, None) if score is None else (HeldOutBest.of(np.zeros(0)), states)
        at = restored(LoopState(0, states, {}, moments, *watched), session.resume)
    keep, interrupted = session.keeper(at.groups, cuts[-1]), False
    for before, cut in zip((0, *cuts), cuts, strict=False):
        if at.peak is not None and at.peak.scorings >= PATIENCE:
            break
        if at.groups > cut or (at.groups == cut and cut != cuts[-1] and (score is None or at.seen >= cut)):
            continue
        at = at._replace(moments=None if at.groups == before else at.moments)
        at, interrupted = climber.advance(at, tuned, cut, cuts[-1], lambda at: keep(lambda: at, at.groups))
        if interrupted:
            break
        if score is not None and at.peak is not None:
            peak, good = at.peak.after(score(at.states), at.groups)
            at = at._replace(peak=peak, peak_states=at.states if good else at.peak_states, seen=cut)
    keep(lambda: at, at.groups, at_once=True)
    return at if at.peak is None else at._replace(states=at.peak_states), interrupted


def held_out_best(found: dict[str, Any], verdict: str = "trust", means: str = "") -> Check:
    """The check that says where held-out rows ended a climb."""
    said = f"steps after which held-out rows were predicted best, {found['held-out score']:.4g} nats a row{means}"
    return Check(HELD_OUT_STEPS, found[HELD_OUT_STEPS], verdict, said)
