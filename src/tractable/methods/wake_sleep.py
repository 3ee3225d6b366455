"""Ladders of discrete layers, learnt awake and in dreams."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tractable.checks.learnt import Learnt
from tractable.core import Objective
from tractable.methods.amortised import Amortised
from tractable.methods.climbing import settled
from tractable.methods.method import Check, Outcome, Session
from tractable.models.ladder import Ladder
from tractable.objectives.wake_sleep import check, reweighted_wake_sleep, wake_sleep
from tractable.tools.settings import Count, NotNegative, Positive


@dataclass(frozen=True, kw_only=True)
class WakeSleep(Amortised):
    """Wake–sleep: θ learns from h inferred at data, φ from dreams (Hinton, Dayan, Frey & Neal 1995).

    There is no one objective that both climb. The report says where the bound fell at the end.

    Args:
        As for ``Amortised``.
    """

    label: ClassVar[str] = "wake-sleep"
    learning_rate: Positive = 1e-2

    def objective(self, ladder: Ladder) -> Objective:
        return wake_sleep(ladder)

    def learn(self, session: Session) -> Outcome:
        outcome = super().learn(session)
        return outcome._replace(found=outcome.found | {"fell": fell(outcome.belief.info["objective"])})

    def checks(self, posterior: Learnt) -> list[Check]:
        down = posterior.found["fell"]
        sentence = "1 where the noisy bound of the last half falls: θ and φ climb no one objective, so it may; lower "
        sentence += "learning_rate="
        return [*super().checks(posterior), Check("fall", float(down), "caution" if down else "trust", sentence)]


@dataclass(frozen=True, kw_only=True)
class ReweightedWakeSleep(WakeSleep):
    """Reweighted wake–sleep: θ and φ learn from h inferred at data and weighted (Bornschein & Bengio 2015).

    The gradients' bias is O(1/K). φ may learn from dreams besides, or from them alone.

    Args:
        samples: K draws of h a row and step; 2 or more where wake_phi > 0.
        wake_phi: ≥ 0, weight of what φ learns at data.
        sleep_phi: ≥ 0, weight of what φ learns from dreams, one a row.
        Others as for ``Amortised``.
    """

    label: ClassVar[str] = "reweighted-wake-sleep"
    samples: Count = 5
    wake_phi: NotNegative = 1.0
    sleep_phi: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(type(self).__name__, self.samples, self.wake_phi, self.sleep_phi)

    def objective(self, ladder: Ladder) -> Objective:
        return reweighted_wake_sleep(ladder, samples=self.samples, wake_phi=self.wake_phi, sleep_phi=self.sleep_phi)


def fell(trace: np.ndarray) -> bool:
    """Whether the last half of a noisy trace (start, step) shows a trend downward; no of one too short to tell."""
    return settled(trace) and not settled(-trace)
