"""Summaries of importance weights that are given by their logarithms: the mean, its error, and bounds."""

import math
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

BLOCKS = 16  # number of blocks of weights; the variation of their means gives a bound's standard error


def log_mean(log_weights: ArrayLike) -> float:
    """The log of the mean weight, log (1/S) Σ w, from log weights (S,); −∞ if every weight is 0."""
    log_weights = np.asarray(log_weights, np.float64)
    top = log_weights.max()
    if not np.isfinite(top):
        return float(top)
    return float(top + np.log(np.mean(np.exp(log_weights - top))))


def relative_error(log_weights: ArrayLike) -> float:
    """The standard error of the log mean weight by the delta method, sd(w) / (w̄ √S); ∞ if every weight is 0."""
    share = shares(log_weights)
    return float(math.sqrt(len(share)) * share.std(ddof=1)) if np.all(np.isfinite(share)) else math.inf


def effective(log_weights: ArrayLike) -> float:
    """The effective sample size of the weights, (Σ w)² / Σ w²; 0 if every weight is 0."""
    share = shares(log_weights)
    return float(1 / np.sum(share**2)) if np.all(np.isfinite(share)) else 0.0


def shares(log_weights: ArrayLike) -> np.ndarray:
    """Each weight's share in the sum, w / Σ w, (S,); NaN if every weight is 0."""
    log_weights = np.asarray(log_weights, np.float64)
    if not np.isfinite(log_weights.max()):
        return np.full(len(log_weights), np.nan)
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def stochastic_bound(log_weights: ArrayLike, share: float = 0.995) -> float:
    """An approximate lower confidence bound for log E[w] at level ``share``, by Student's t over block means.

    The weights are cut into 16 blocks. For every distribution of w, the mean of the blocks' log mean weights is at most
    log E[w] in expectation. The bound is this mean minus its standard error times the quantile of Student's t with 15
    degrees of freedom.

    Args:
        log_weights: (S,), S ≥ 32, independent.
        share: level of the bound.
    """
    from scipy.stats import t

    means = np.array([log_mean(block) for block in np.array_split(np.asarray(log_weights), BLOCKS)])
    if not np.all(np.isfinite(means)):
        return -math.inf
    return float(means.mean() - t.ppf(share, BLOCKS - 1) * means.std(ddof=1) / math.sqrt(BLOCKS))


class Summed(NamedTuple):
    """The estimate of Σ_n log p(x_n|θ) from log weights (N, S)."""

    estimates: np.ndarray  # (N,) log mean weight over draws
    errors: np.ndarray  # (N,) standard errors, by the delta method
    effective: np.ndarray  # (N,) effective sample sizes

    @property
    def estimate(self) -> float:
        """The sum of the estimates over n."""
        return float(self.estimates.sum())

    @property
    def error(self) -> float:
        """The standard error of the sum; the errors of different data are independent, so that variances add up."""
        return float(np.sqrt(np.sum(self.errors**2)))

    @property
    def bias(self) -> float:
        """The bias of the estimate, −Σ_n var(w)/(2 S w̄²); all terms have the same sign, so that they add up."""
        return float(-np.sum(self.errors**2) / 2)


def sum_up(log_weights: np.ndarray) -> Summed:
    """The estimate from log weights (N, S); every row needs at least one finite log weight."""
    top = log_weights.max(1, keepdims=True)
    weights = np.exp(log_weights - top)
    mean, draws = weights.mean(1), weights.shape[1]
    errors = weights.std(1, ddof=1) / (mean * math.sqrt(draws))
    return Summed(top[:, 0] + np.log(mean), errors, draws * mean**2 / np.mean(weights**2, 1))
