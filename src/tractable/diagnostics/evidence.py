"""An estimate of log p(y): the number, its bounds, and verdicts from its weights."""

import math
from typing import NamedTuple

import numpy as np

from tractable.core.check import Check
from tractable.diagnostics.importance import khat, khat_limit
from tractable.diagnostics.report import lines_of, worst
from tractable.diagnostics.weights import Summed, shares

QUANTILE = 2.5758  # of a normal, 99 % two-sided
NO_ROWS = np.zeros(0)


class Sandwich(NamedTuple):
    """Two bounds around the mean of log p(x), for rows simulated from the model itself, nats a row."""

    lower: float  # log (1/K) Σ_k w_k, h_k ~ q(h | x)
    upper: float  # log (1/(K + 1)) (w* + Σ_k w_k), w* the weight of the h that made x
    gap: float  # upper − lower
    error: float  # standard error of the gap, over rows
    rows: int


class Evidence(NamedTuple):
    """log p(y), or log Z of a log density, and how far to trust it. Prints as a short table.

    Attributes:
        estimate: log p(y), nats; for a latent model at a given θ and for a ladder's rows, Σ_n log p(x_n|θ).
        standard_error: of the estimate, by the delta method; NaN where there is none (Laplace).
        lower, upper: contain log p(y) with 99 %, if the checks hold: the estimate ∓ 2.58 standard errors, the upper
            bound raised by the bias. "rejection": without the bias. "annealed": stochastic bounds, each with 99.5 %,
            from 16 blocks of chains: the mean forward log mean weight less 2.95 of its standard errors (t, 15 degrees
            of freedom), and minus the mean backward log mean inverse weight plus 2.95 of its own; +∞ without a backward
            run. At a given θ its lower bound is as above, and its upper one the backward estimates' sum plus t standard
            errors from their spread over data. "importance" of log p(y): the lower bound from blocks too, of the
            weights before smoothing. "laplace": NaN. "enumeration": both are the estimate.
        checks: of the weights and bounds.
        log_weights: (S,), whose log mean is the estimate (before smoothing); for Laplace those of its normal. At a
            given θ (N, S), whose rows' log means add up to the estimate. Empty where weights were summed as they came.
        reverse_log_weights: (S,) or (N, S), of the backward run; None without one.
        method: its name.
        seconds: wall time, compilation included; 0 where the run itself made the estimate.
        log_evidence, error, effective: (N,) for every row log p(x_n|θ), its standard error by the delta method (too
            small where ``effective`` is near 1), and the effective number of its weights; empty for log p(y).
        elbo: (N,) E log w, of a ladder's rows.
        exact: (N,) log p(x_n|θ) of a ladder's rows, where all h can be summed over.
        samples: draws for each row.
        simulated: bounds around log p(x) on rows simulated from a ladder; None where none were simulated.
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
        """The checks' worst verdict: "trust", "caution" or "reject"."""
        return worst(self.checks)

    @property
    def mean(self) -> float:
        """Mean of ``log_evidence``, nats a row."""
        return float(self.log_evidence.mean()) if len(self.log_evidence) else math.nan

    @property
    def mean_error(self) -> float:
        """Standard error of ``mean``, as an estimate for the population of rows: sd/√N; NaN for one row."""
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


def of_rows(
    found: Summed, draws: int, checks: list[Check], good: tuple[float, float] | None = None, upper: float | None = None,
    log_weights: np.ndarray = NO_ROWS, back: np.ndarray | None = None,
) -> Evidence:  # fmt: skip
    """Σ_n log p(x_n|θ) from each row's sum of ``draws`` weights.

    Args:
        good: the least effective numbers of every row's weights for trust and for caution; None where ``checks``
            already test them.
        upper: an upper bound to use in place of the one from the estimate's own error.
    """
    estimate, error, bias = found.estimate, found.error, found.bias
    size, least = len(found.estimates), float(found.effective.min())
    graded = "reject" if -bias > 0.1 * size else "trust" if -bias <= max(0.1, error / 2) else "caution"
    sigmas = abs(bias) / error if error > 0 else 0.0
    over = f" over {size} data" if size > 1 else ""
    said = f"nats by which the estimate is too low, −Σ var/(2S){over}, if the weights are tame: {sigmas:.2g} "
    checks = [Check("Jensen bias", bias, graded, f"{said}standard errors, not corrected for"), *checks]
    if good is not None:
        seen = f"effective draws of {draws}" + (f", least of {size} data" if size > 1 else "")
        if least < good[0]:
            seen += "; the mean is that of a few draws, and too low where the peak was not met"
        checks = [size_check(least, *good, seen), *checks]
    upper = estimate - bias + QUANTILE * error if upper is None else upper
    return Evidence(
        estimate, error, estimate - QUANTILE * error, upper, checks, log_weights, back,
        log_evidence=found.estimates, error=found.errors, effective=found.effective, samples=draws,
    )  # fmt: skip


def grade(value: float, trust: float, caution: float) -> str:
    """The verdict on a value that should be small."""
    return "trust" if value <= trust else "caution" if value <= caution else "reject"


def size_check(found: float, good: float, poor: float, sentence: str, name: str = "ESS") -> Check:
    """Checks an effective number of weights: at least ``good`` for trust, at least ``poor`` for caution."""
    return Check(name, found, grade(-found, -good, -poor), sentence)


def gap_check(gap: float | None, sentence: str, rows: int | None = None) -> Check:
    """Checks the gap between two bounds, in nats, or nats a row if ``rows`` is given; None without an upper bound."""
    if gap is None:
        return Check("gap", math.inf, "caution", sentence)
    trust, caution = (1.0, 5.0) if rows is None else (max(0.1, 1 / rows), max(1.0, 5 / rows))
    return Check("gap", gap, grade(gap, trust, caution) if gap >= 0 else "reject", sentence)


def tail_checks(log_weights: np.ndarray) -> list[Check]:
    """Checks the weights (S,) of one density: their tail and the largest."""
    threshold, tail = khat_limit(len(log_weights)), tail_index(log_weights)
    largest, said = float(np.max(shares(log_weights))), "tail of the weights; their mean can be relied on up to"
    return [
        Check("k-hat", tail, grade(tail, threshold, 0.7), f"{said} {threshold:.2g}"),
        Check("largest weight", largest, grade(largest, 0.05, 0.2), "share of the sum that one draw carries"),
    ]


def tail_index(log_weights: np.ndarray) -> float:
    """k̂ of the possible weights among (S,); ∞ where at most half are.

    An impossible draw has weight 0, which says nothing about the upper tail.
    """
    finite = log_weights[np.isfinite(log_weights)]
    return khat(np.maximum(log_weights, finite.min())) if len(finite) > len(log_weights) // 2 else math.inf
