"""What an estimate of log p(y) says: the number, its bounds, and verdicts by the weights it was made of."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tractable.beliefs.check import Check
from tractable.checks.importance import khat, khat_limit
from tractable.checks.report import lines_of, worst
from tractable.kernels.annealed import Summed, effective, shares

QUANTILE = 2.5758  # of a normal, 99 % two-sided
NO_ROWS = np.zeros(0)


class Sandwich(NamedTuple):
    """The mean of log p(x) between two bounds, of rows that the model itself made, nats a row."""

    lower: float  # log (1/K) Σ_k w_k, h_k ~ q(h | x)
    upper: float  # log (1/(K + 1)) (w* + Σ_k w_k), w* of the h that x came from
    gap: float  # upper − lower
    error: float  # standard error of the gap, over rows
    rows: int


class Evidence(NamedTuple):
    """log p(y), or log Z of a log density, and how far to trust it. Prints as a short table.

    Attributes:
        estimate: log p(y), nats; Σ_n log p(x_n|θ) of a latent model at a given θ and of a ladder's rows.
        standard_error: of the estimate, by the delta method; NaN where there is none (Laplace).
        lower, upper: hold log p(y) with 99 %, if the checks hold. "monte-carlo", "rejection": the estimate ∓ 2.58
            standard errors. "annealed": stochastic bounds, each with 99.5 %: the mean over 16 blocks of chains of the
            log mean weight, forwards, less 2.95 standard errors of it (t, 15 degrees of freedom); and of minus the log
            mean inverse weight, backwards, plus as many; the upper one is +∞ without a backward run. "importance": the
            lower one likewise, from the weights before smoothing; the estimate plus 2.58 standard errors. "laplace":
            NaN. At a given θ: the estimate ∓ 2.58 standard errors, and above the bias besides; "annealed" +∞ above, or,
            with z, the backward estimates' sum plus t standard errors from their spread over data; "enumeration": the
            estimate itself.
        checks: what was looked at.
        log_weights: (S,), whose log mean is the estimate (before smoothing); Laplace's are those of its normal. At a
            given θ (N, S), whose rows' log means add up to it. Empty where weights were summed as they came.
        reverse_log_weights: (S,) or (N, S), of the backward run; None elsewhere.
        method: its name.
        seconds: of wall time, compilation included; 0 where a run estimates it on its way.
        log_evidence, error, effective: (N,) log p(x_n|θ) of every row, its standard error by the delta method (too
            small where ``effective`` is near 1), and the effective number of its weights; empty of parameters.
        elbo: (N,) E log w, of a ladder's rows.
        exact: (N,) log p(x_n|θ) of a ladder's rows, where all h can be summed over.
        samples: draws for each row.
        simulated: how far a ladder's bound is from log p(x), where rows were made to see it.
    """

    estimate: float
    standard_error: float
    lower: float
    upper: float
    checks: list[Check]
    log_weights: np.ndarray = NO_ROWS
    reverse_log_weights: np.ndarray | None = None
    method: str = ""
    seconds: float = 0.0
    log_evidence: np.ndarray = NO_ROWS
    error: np.ndarray = NO_ROWS
    effective: np.ndarray = NO_ROWS
    elbo: np.ndarray = NO_ROWS
    exact: np.ndarray | None = None
    samples: int = 0
    simulated: Sandwich | None = None

    @property
    def verdict(self) -> str:
        """The worst of the checks', "trust", "caution" or "reject"."""
        return worst(self.checks)

    @property
    def mean(self) -> float:
        """Of ``log_evidence``, nats a row."""
        return float(self.log_evidence.mean()) if len(self.log_evidence) else math.nan

    @property
    def mean_error(self) -> float:
        """Of ``mean``, as an estimate of that of all rows that these were drawn from: sd/√N; NaN for one row."""
        count = len(self.log_evidence)
        return float(self.log_evidence.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan

    def __str__(self) -> str:
        error = ", no error bar" if math.isnan(self.standard_error) else f" ± {self.standard_error:.2g}"
        lines = [f"log evidence by {self.method}: {self.verdict}", f"  {self.estimate:.6g} nats{error}"]
        if not math.isnan(self.lower):
            lines.append(f"  between {self.lower:.6g} and {self.upper:.6g} with 99 %, if the checks hold")
        if rows := len(self.log_evidence):
            lines.append(f"  {self.mean:.4g} ± {self.mean_error:.2g} nats a row over {rows} rows")
        return "\n".join([*lines, *lines_of(self.checks)])

    __repr__ = __str__


@dataclass(frozen=True)
class EvidenceOf:
    """How a posterior estimates log p: called it gives an ``Evidence``, unpacked (estimate, standard error)."""

    estimated: Callable[..., Evidence]

    def __call__(self, *args: Any, **settings: Any) -> Evidence:
        return self.estimated(*args, **settings)

    def __iter__(self) -> Iterator[float]:
        found = self.estimated()
        return iter((found.estimate, found.standard_error))


def of_rows(
    found: Summed, draws: int, checks: list[Check], good: float | None = None, upper: float | None = None,
    log_weights: np.ndarray = NO_ROWS, back: np.ndarray | None = None,
) -> Evidence:  # fmt: skip
    """Σ_n log p(x_n|θ) from what ``draws`` weights of every row come to.

    Args:
        good: the effective number that every row's weights should have; None where ``checks`` look at it.
        upper: bound of another kind than from the estimate's own error.
    """
    estimate, error, bias = found.estimate, found.error, found.bias
    size, least = len(found.estimates), float(found.effective.min())
    graded = "reject" if -bias > 0.1 * size else "trust" if -bias <= max(0.1, error / 2) else "caution"
    sigmas = abs(bias) / error if error > 0 else 0.0
    low = f"nats by which the sum is low, −Σ var/(2S) over {size} data, were the weights tame: {sigmas:.2g} standard "
    checks = [Check("Jensen bias", bias, graded, f"{low}errors, and not taken off"), *checks]
    if good is not None:
        seen = f"effective draws of {draws}, least of {size} data"
        checks = [size_check(least, good, 0.2 * good, seen), *checks]
    upper = estimate - bias + QUANTILE * error if upper is None else upper
    return Evidence(
        estimate, error, estimate - QUANTILE * error, upper, checks, log_weights, back,
        log_evidence=found.estimates, error=found.errors, effective=found.effective, samples=draws,
    )  # fmt: skip


def grade(value: float, trust: float, caution: float) -> str:
    """Small is good."""
    return "trust" if value <= trust else "caution" if value <= caution else "reject"


def size_check(found: float, good: float, poor: float, sentence: str, name: str = "ESS") -> Check:
    """An effective number of weights, of which many are good."""
    return Check(name, found, grade(-found, -good, -poor), sentence)


def gap_check(gap: float | None, sentence: str, rows: int | None = None) -> Check:
    """Between an upper and a lower bound, in nats; nats a row where there are ``rows``. None without an upper one."""
    if gap is None:
        return Check("gap", math.inf, "caution", sentence)
    trust, caution = (1.0, 5.0) if rows is None else (max(0.1, 1 / rows), max(1.0, 5 / rows))
    return Check("gap", gap, grade(gap, trust, caution) if gap >= 0 else "reject", sentence)


def weight_checks(log_weights: np.ndarray, good: float) -> list[Check]:
    """Effective number, tail and largest of the weights (S,) of one density."""
    size, number_of, largest = len(log_weights), effective(log_weights), float(np.max(shares(log_weights)))
    threshold = khat_limit(size)
    finite = log_weights[np.isfinite(log_weights)]
    # An impossible draw is a weight of 0, which is no matter of the tail.
    floor = finite.min() if len(finite) else 0.0
    tail = khat(np.maximum(log_weights, floor)) if len(finite) > size // 2 else math.inf
    low = "; the mean is that of a few draws, and too low where the peak was not met" if number_of < good else ""
    return [
        size_check(number_of, good, 20.0, f"effective draws of {size}{low}"),
        Check("k-hat", tail, grade(tail, threshold, 0.7),
              f"tail of the weights; their mean can be relied on up to {threshold:.2g}"),
        Check("largest weight", largest, grade(largest, 0.05, 0.2), "share of the sum that one draw carries"),
    ]  # fmt: skip
