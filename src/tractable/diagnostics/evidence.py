"""The result of an evidence estimate: log p(y), its bounds, and checks of the importance weights behind it.

Log densities and their errors are in nats, the unit of natural logarithms.
"""

import math
from typing import NamedTuple

import numpy as np

from tractable.core.check import Check
from tractable.diagnostics.importance import khat, khat_limit
from tractable.diagnostics.report import lines_of, worst
from tractable.diagnostics.weights import Summed, shares

QUANTILE = 2.5758  # standard normal quantile of a two-sided 99 % interval
NO_ROWS = np.zeros(0)  # stands for a missing array


class Sandwich(NamedTuple):
    """A lower and an upper bound of the mean of log p(x) over rows simulated from the model, in nats per row."""

    lower: float  # mean over rows of log (1/K) Σ_k w_k, with w_k = p(x, h_k)/q(h_k | x) and h_k ~ q(h | x)
    upper: float  # mean of log (1/(K + 1)) (w* + Σ_k w_k); w* is the weight of the h from which x was simulated
    gap: float  # upper − lower
    error: float  # standard error of the gap, over rows
    rows: int  # number of simulated rows


class Evidence(NamedTuple):
    """log p(y), or log Z of a log density, and how far to trust it. Prints as a short table.

    Attributes:
        estimate: log p(y) in nats. For a latent model at a given θ, and for the rows of a ladder (a network of latent
            layers), it is Σ_n log p(x_n|θ).
        standard_error: of the estimate, by the delta method; NaN where there is none (Laplace).
        lower, upper: bounds that contain log p(y) with probability 99 % if the checks hold. By default they are the
            estimate ∓ 2.58 standard errors, and the upper bound is also raised by the bias. Some methods differ:

            - "rejection": the bias is left out.
            - "annealed": stochastic bounds, each with probability 99.5 %, from 16 blocks of chains. The lower bound is
              the mean over blocks of the forward run's log mean weight, minus 2.95 standard errors of this mean
              (Student's t with 15 degrees of freedom). The upper bound is the negative mean of the backward run's log
              mean inverse weight, plus 2.95 standard errors; it is +∞ without a backward run.
            - "annealed" at a given θ: the lower bound is the default one. The upper bound is the sum of the backward
              estimates plus t standard errors, from their variation over the data.
            - "importance" of log p(y): the lower bound also comes from 16 blocks, of the weights before smoothing.
            - "laplace": both are NaN.
            - "enumeration": both are the estimate.
        checks: the checks of the weights and bounds.
        log_weights: (S,) log weights; the estimate is the log of the weights' mean (before smoothing). For Laplace they
            are the weights of its normal. At a given θ they are (N, S), and the estimate is the sum over rows of the
            log mean weights. Empty if only the weights' sums were kept.
        reverse_log_weights: (S,) or (N, S) log weights of the backward run; None without a backward run.
        method: the method's name.
        seconds: wall time, including compilation; 0 if the posterior's own run made the estimate.
        log_evidence, error, effective: (N,) for every row, log p(x_n|θ), its standard error by the delta method (too
            small if ``effective`` is near 1), and the effective sample size of its weights; empty for log p(y).
        elbo: (N,) E log w of a ladder's rows.
        exact: (N,) log p(x_n|θ) of a ladder's rows, if the sum over all h can be computed.
        samples: number of draws for each row.
        simulated: bounds of the mean of log p(x) over rows simulated from a ladder; None if no rows were simulated.
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
        """The worst verdict of the checks: "trust", "caution" or "reject"."""
        return worst(self.checks)

    @property
    def mean(self) -> float:
        """Mean of ``log_evidence``, in nats per row; NaN if there are no rows."""
        return float(self.log_evidence.mean()) if len(self.log_evidence) else math.nan

    @property
    def mean_error(self) -> float:
        """Standard error of ``mean`` as an estimate of the mean over the population of rows: sd/√N; NaN for one row."""
        count = len(self.log_evidence)
        return float(self.log_evidence.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan

    def __str__(self) -> str:
        error = ", no error bar" if math.isnan(self.standard_error) else f" ± {self.standard_error:.2g}"
        lines = [f"log evidence by {self.method}: {self.verdict}", f"  {self.estimate:.6g} nats{error}"]
        if not math.isnan(self.lower):
            lines.append(f"  between {self.lower:.6g} and {self.upper:.6g} with 99 % probability, if the checks hold")
        if rows := len(self.log_evidence):
            lines.append(f"  {self.mean:.4g} ± {self.mean_error:.2g} nats per row over {rows} rows")
        return "\n".join([*lines, *lines_of(self.checks)])

    __repr__ = __str__


def of_rows(
    row_sums: Summed, draws: int, checks: list[Check], good: tuple[float, float] | None = None,
    upper: float | None = None, log_weights: np.ndarray = NO_ROWS, back: np.ndarray | None = None,
) -> Evidence:  # fmt: skip
    """The evidence Σ_n log p(x_n|θ) from each row's log mean of ``draws`` weights.

    Args:
        row_sums: each row's log mean weight, standard error and effective sample size.
        draws: number of weights per row.
        checks: further checks to report.
        good: for trust and for caution, the effective sample size that every row's weights must have at least; None if
            ``checks`` already test it.
        upper: an upper bound to use in place of the one from the estimate's own error.
        log_weights, back: log weights of the run, and of a backward run, for the result.
    """
    estimate, error, bias = row_sums.estimate, row_sums.error, row_sums.bias
    size, smallest = len(row_sums.estimates), float(row_sums.effective.min())
    verdict = "reject" if -bias > 0.1 * size else "trust" if -bias <= max(0.1, error / 2) else "caution"
    sigmas = abs(bias) / error if error > 0 else 0.0
    data = f" over {size} data" if size > 1 else ""
    sentence = f"nats by which the estimate is too low, −Σ var/(2S){data}, if the weights have light tails"
    sentence += f": {sigmas:.2g} standard errors, not corrected for"
    checks = [Check("Jensen bias", bias, verdict, sentence), *checks]
    if good is not None:
        sentence = f"effective sample size of {draws} draws" + (f", smallest of {size} data" if size > 1 else "")
        if smallest < good[0]:
            sentence += "; few draws decide the mean, which is too low if they missed the peak"
        checks = [size_check(smallest, *good, sentence), *checks]
    upper = estimate - bias + QUANTILE * error if upper is None else upper
    return Evidence(
        estimate, error, estimate - QUANTILE * error, upper, checks, log_weights, back,
        log_evidence=row_sums.estimates, error=row_sums.errors, effective=row_sums.effective, samples=draws,
    )  # fmt: skip


def grade(value: float, trust: float, caution: float) -> str:
    """The verdict on a value that should be small: at most ``trust``, at most ``caution``, or larger."""
    return "trust" if value <= trust else "caution" if value <= caution else "reject"


def size_check(size: float, good: float, poor: float, sentence: str, name: str = "ESS") -> Check:
    """Checks an effective sample size of weights: at least ``good`` for trust, at least ``poor`` for caution."""
    return Check(name, size, grade(-size, -good, -poor), sentence)


def gap_check(gap: float | None, sentence: str, rows: int | None = None) -> Check:
    """Checks the gap between two bounds, in nats, or in nats per row if ``rows`` is given.

    ``gap`` is None if there is no upper bound; the verdict is then "caution".
    """
    if gap is None:
        return Check("gap", math.inf, "caution", sentence)
    trust, caution = (1.0, 5.0) if rows is None else (max(0.1, 1 / rows), max(1.0, 5 / rows))
    return Check("gap", gap, grade(gap, trust, caution) if gap >= 0 else "reject", sentence)


def tail_checks(log_weights: np.ndarray) -> list[Check]:
    """Checks of the log weights (S,) of one density: the weights' tail, and the largest weight."""
    threshold, tail = khat_limit(len(log_weights)), tail_index(log_weights)
    largest = float(np.max(shares(log_weights)))
    sentence = f"tail index of the weights, whose mean is reliable up to {threshold:.2g}"
    return [
        Check("k-hat", tail, grade(tail, threshold, 0.7), sentence),
        Check("largest weight", largest, grade(largest, 0.05, 0.2), "largest share of one draw in the sum of weights"),
    ]


def tail_index(log_weights: np.ndarray) -> float:
    """The tail index k̂ of the weights (S,); ∞ if at most half of the weights are above 0.

    A draw at which the density is 0 has weight 0. Such weights say nothing about the upper tail, so each is replaced by
    the smallest positive weight.
    """
    finite = log_weights[np.isfinite(log_weights)]
    return khat(np.maximum(log_weights, finite.min())) if len(finite) > len(log_weights) // 2 else math.inf
