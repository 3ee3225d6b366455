"""The climb that all stochastic maximisers share: a compiled loop whose state is saved while it runs.

Rows may be held out. The climb then ends when its predictions of these rows no longer improve. The loop counts its
steps in groups of a fixed size, which ``run.Shape`` explains.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tractable.core.batches import Plan
from tractable.core.check import Check
from tractable.core.curve import SCORES
from tractable.core.tree import PyTree
from tractable.engine import run as loop
from tractable.engine.drawing import concatenate_traces
from tractable.engine.leaves import beneath, restore
from tractable.engine.session import Session

SCORINGS = 50  # how often a run of full length predicts the held-out rows (docs/decisions/021)
PATIENCE = 8  # a climb ends after this many clearly worse held-out scores in a row (docs/decisions/021)


# The key, in the results for the report, of the number of steps after which the held-out rows were predicted best.
HELD_OUT_STEPS = "held-out best"


class HeldOutBest(NamedTuple):
    """The best held-out score of a climb, and the score of the kept state: the last state that is not clearly worse.

    The score of a row is the log of its predictive density, in nats (units of the natural logarithm).
    """

    highest: np.ndarray  # (m,) score of every row, at the state with the highest mean score so far
    rows: np.ndarray  # (m,) score of every row, at the kept state
    groups: int  # groups of steps done at the kept state
    scorings: int  # how often rows have been scored since the kept state
    scores: np.ndarray  # (scoring, 2) groups of steps done, and the mean score

    @classmethod
    def of(cls, rows: np.ndarray) -> "HeldOutBest":
        """The best score before the first step, when only one state has been scored."""
        return cls(rows, rows, 0, 0, np.zeros((0, 2)))

    def after(
        self, rows: np.ndarray, groups: int, sigmas: float = 1.0, begins: bool = False
    ) -> tuple["HeldOutBest", bool]:
        """The best score after the rows are scored once more, and whether to keep the new state.

        The new state is kept unless its mean score is below the highest mean score by more than ``sigmas`` standard
        errors of the difference. If only the state with the highest score were kept, noise would often choose an early
        step.

        Args:
            rows: (m,) scores at the new state.
            groups: groups of steps done at the new state.
            begins: forget the scores of earlier states.
        """
        scores = np.concatenate([self.scores, [[groups, rows.mean()]]])
        highest = rows if begins or rows.mean() > self.highest.mean() else self.highest
        lost = highest - rows
        if lost.mean() <= sigmas * lost.std() / np.sqrt(len(lost)):
            return HeldOutBest(highest, rows, groups, 0, scores), True
        return self._replace(highest=highest, scorings=self.scorings + 1, scores=scores), False

    def found(self, group: int) -> dict[str, Any]:
        """The results for the report; ``group`` is the number of steps in a group."""
        return {"held-out score": float(self.rows.mean()), HELD_OUT_STEPS: int(self.groups) * group}


class LoopState(NamedTuple):
    """The state of a climb: all that is needed to continue it exactly.

    Running moments are means and variances of the positions. A cut is a number of groups at which they begin anew.
    """

    groups: int  # groups of steps done
    states: PyTree  # states of the kernel, with leading axis (start,)
    info: dict[str, np.ndarray]  # traces so far, (start, step)
    moments: loop.Moments | None = None  # running moments of the positions since the last cut
    peak: HeldOutBest | None = None  # the best held-out score, if rows are held out
    peak_states: PyTree = None  # the kept states of ``peak``, or arrays from which a method makes them
    seen: int = 0  # groups of steps done when the held-out rows were last scored

    def found(self, group: int) -> dict[str, Any]:
        """The held-out results for the report; empty if no rows are held out."""
        return {} if self.peak is None else self.peak.found(group)

    def traces(self, group: int) -> dict[str, np.ndarray]:
        """The traces of the climb and of its held-out scores, for ``Curve.of``."""
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
    """Everything that stays fixed while a compiled loop climbs."""

    session: Session
    phase: str
    program: Callable
    shape: loop.Shape
    plan: Plan | None
    keys: jax.Array
    long: bool = False  # of the loop

    def advance(
        self, at: LoopState, tuned: PyTree, end: int, of: int, keep: Callable[[LoopState], None]
    ) -> tuple[LoopState, bool]:
        """Run until ``end`` groups are done, and return the state and whether the run was interrupted.

        Args:
            of: the number of groups of the whole climb, for progress.
            keep: saves the state; called whenever the compiled loop hands its results back to Python.
        """

        def on_segment(
            _: np.ndarray | None, info: dict, states: PyTree, done: int, moments: loop.Moments | None
        ) -> None:
            nonlocal at
            at = at._replace(groups=done, states=states, info=concatenate_traces(at.info, info), moments=moments)
            keep(at)
            self.session.say(self.phase, done * self.shape.group, of * self.shape.group, at.latest())

        result = loop.run(
            loop.Loop(self.program, self.shape, self.plan, self.long), self.session.data, tuned, self.keys,
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
    """Run and save a loop up to the last of ``cuts``, and return its state and whether it was interrupted.

    Args:
        begin: makes the first states.
        cuts: numbers of groups, in ascending order; the running moments begin anew at each.
        score: gives the scores (m,) of the held-out rows for given states. It is called up to ``SCORINGS`` times.
            ``PATIENCE`` clearly worse scores in a row end the run, and the kept states are returned.
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
        at = restore(LoopState(0, states, {}, moments, *watched), session.resume)
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
    """The check that reports after how many steps the held-out rows were predicted best."""
    said = f"steps after which held-out rows were predicted best, {found['held-out score']:.4g} nats a row{means}"
    return Check(HELD_OUT_STEPS, found[HELD_OUT_STEPS], verdict, said)
