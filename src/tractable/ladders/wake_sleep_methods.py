"""Wake–sleep and reweighted wake–sleep, which learn ladders from data and from dreams, draws (x, h) of the model."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tractable.core.model import Objective
from tractable.core.settings import Count, NotNegative
from tractable.diagnostics.learnt import Learnt
from tractable.engine.bound import has_settled
from tractable.engine.method import Check, Outcome, Rate, Session
from tractable.ladders.amortised import Amortised
from tractable.ladders.ladder import Ladder
from tractable.ladders.wake_sleep import check, reweighted_wake_sleep, wake_sleep


@dataclass(frozen=True, kw_only=True)
class WakeSleep(Amortised):
    """Wake–sleep: θ learns from h inferred for the data, φ from dreams (Hinton, Dayan, Frey & Neal 1995).

    θ and φ maximise no common objective. The report says whether the bound fell at the end.

    Args:
        As for ``Amortised``.
    """

    label: ClassVar[str] = "wake-sleep"
    learning_rate: Rate = 1e-2

    def objective(self, ladder: Ladder) -> Objective:
        return wake_sleep(ladder)

    def learn(self, session: Session) -> Outcome:
        outcome = super().learn(session)
        return outcome._replace(found=outcome.found | {"fell": fell(outcome.belief.info["objective"])})

    def checks(self, posterior: Learnt) -> list[Check]:
        down = posterior.found["fell"]
        sentence = "1 if the noisy bound falls in the last half of the run, which can happen because θ and φ maximise "
        sentence += "no common objective; then lower learning_rate="
        return [*super().checks(posterior), Check("fall", float(down), "caution" if down else "trust", sentence)]


@dataclass(frozen=True, kw_only=True)
class ReweightedWakeSleep(WakeSleep):
    """Reweighted wake–sleep: θ and φ learn from importance-weighted draws of h (Bornschein & Bengio 2015).

    The gradients' bias is O(1/K). φ may also learn from dreams, or from dreams alone.

    Args:
        samples: K draws of h per row and step; at least 2 if wake_phi > 0.
        wake_phi: ≥ 0, weight of φ's gradient from data.
        sleep_phi: ≥ 0, weight of φ's gradient from dreams, one dream per row.
        Other fields as for ``Amortised``.
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
    """Whether the last half of a noisy trace (start, step) shows a downward trend; False if it is too short to tell."""
    return has_settled(trace) and not has_settled(-trace)
