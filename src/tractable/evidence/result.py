"""What is said of an evidence: the estimate, its bounds, and what weights say of both."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tractable.beliefs.check import Check
from tractable.checks.importance import khat
from tractable.checks.report import number
from tractable.kernels.annealed import effective, shares
from tractable.tools.errors import RunError

QUANTILE = 2.5758  # of a normal, 99 % two-sided


class Evidence(NamedTuple):
    """log p(y), or log Z of a log density, and how far to trust it. Prints as a short table.

    Attributes:
        estimate: log p(y), nats.
        standard_error: of the estimate, by the delta method; NaN where there is none (Laplace).
        lower, upper: hold log p(y) with 99 %, if the checks hold. "monte-carlo": the estimate ∓ 2.58 standard errors.
            "annealed": stochastic bounds, each with 99.5 %: the mean over 16 blocks of chains of the log mean weight,
            forwards, less 2.95 standard errors of it (t, 15 degrees of freedom); and of minus the log mean inverse
            weight, backwards, plus as many; the upper one is +∞ without a backward run. "importance": the lower one
            likewise, from the weights before smoothing; the estimate plus 2.58 standard errors. "laplace": NaN.
            At a given θ: the estimate ∓ 2.58 standard errors, and above the bias besides; "annealed" +∞ above, or, with
            z, the backward estimates' sum plus t standard errors from their spread over data; "enumeration" itself.
        verdict: the worst of the checks', "trust", "caution" or "reject".
        checks: what was looked at.
        method: its name.
        seconds: of wall time, compilation included.
        log_weights: (S,), whose log mean is the estimate (before smoothing); Laplace's are those of its normal. At a
            given θ (N, S), whose rows' log means add up to it.
        reverse_log_weights: (S,) or (N, S), of the backward run; None elsewhere.
    """

    estimate: float
    standard_error: float
    lower: float
    upper: float
    verdict: str
    checks: list[Check]
    method: str
    seconds: float
    log_weights: np.ndarray
    reverse_log_weights: np.ndarray | None = None

    def __str__(self) -> str:
        width = max(len(c.name) for c in self.checks)
        error = ", no error bar" if math.isnan(self.standard_error) else f" ± {self.standard_error:.2g}"
        lines = [f"log evidence by {self.method}: {self.verdict}", f"  {self.estimate:.6g} nats{error}"]
        if not math.isnan(self.lower):
            lines.append(f"  between {self.lower:.6g} and {self.upper:.6g} with 99 %, if the checks hold")
        lines += [f"  {c.verdict:7}  {c.name:{width}}  {number(float(c.value)):>9}  {c.sentence}" for c in self.checks]
        return "\n".join(lines)

    __repr__ = __str__


class Watch(NamedTuple):
    """Who is told of progress, and who may stop it."""

    say: Callable[[str, int, int], None]  # (phase, done, of)
    stop: Callable[[], bool]

    def go(self, phase: str, done: int = 0, of: int = 1) -> None:
        """On with a phase; a sentence where the call was interrupted and no weight has been made."""
        if self.stop():
            raise RunError(
                f"log_evidence was interrupted before its weights were made ({phase}: {done} of {of}), so there is "
                "nothing to estimate from. Run it again, with fewer chains or draws if it takes too long."
            )
        self.say(phase, done, of)


def smoothed(log_weights: Any) -> np.ndarray:
    """(S,) log weights with the largest replaced by quantiles of a Pareto tail fitted to them (PSIS).

    As they are where they are equal up to rounding, or not all finite.
    """
    log_weights = np.asarray(log_weights, np.float64)
    if not math.isfinite(khat(log_weights)):
        return log_weights
    from arviz_stats.base.array import array_stats  # a second of imports

    normalised = np.asarray(array_stats.psislw(log_weights.max() - log_weights)[0])  # it takes minus the log weights
    least = int(np.argmin(log_weights))  # one that smoothing leaves as it is: it knows what was taken off
    return normalised + (log_weights[least] - normalised[least])


def nan_is_nothing(log_weights: Any) -> np.ndarray:
    """In float64; NaN counts as impossible."""
    return np.nan_to_num(np.asarray(log_weights, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def any_possible(estimate: float) -> None:
    """A sentence where no draw, or a draw without bound, made the estimate."""
    if not math.isfinite(estimate):
        raise RunError(
            f"The mean weight is e^{estimate}: the log likelihood was finite at no draw, or without bound at one. Are "
            "the data possible under the prior? Look at model.log_likelihoods at a draw of model.sample_prior."
        )


def grade(value: float, trust: float, caution: float) -> str:
    """Small is good."""
    return "trust" if value <= trust else "caution" if value <= caution else "reject"


def weight_checks(log_weights: np.ndarray, good: float) -> list[Check]:
    """Effective number, tail and largest of weights."""
    size, number_of, largest = len(log_weights), effective(log_weights), float(np.max(shares(log_weights)))
    threshold = min(1 - 1 / math.log10(size), 0.7)
    finite = log_weights[np.isfinite(log_weights)]
    # An impossible draw is a weight of 0, which is no matter of the tail.
    floor = finite.min() if len(finite) else 0.0
    tail = khat(np.maximum(log_weights, floor)) if len(finite) > size // 2 else math.inf
    low = "; the mean is that of a few draws, and too low where the peak was not met" if number_of < good else ""
    return [
        Check("ESS", number_of, grade(-number_of, -good, -20.0), f"effective draws of {size}{low}"),
        Check("k-hat", tail, grade(tail, threshold, 0.7),
              f"tail of the weights; their mean can be relied on up to {threshold:.2g}"),
        Check("largest weight", largest, grade(largest, 0.05, 0.2), "share of the sum that one draw carries"),
    ]  # fmt: skip
