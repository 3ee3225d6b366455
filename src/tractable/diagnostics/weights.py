"""Numbers of importance weights, of which only the logarithms are known: their mean, its error, and bounds."""

import math
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

BLOCKS = 16  # blocks of weights, whose means give a bound's standard error


def log_mean(log_weights: ArrayLike) -> float:
    """log (1/S) Σ w, (S,) → (); −∞ where every weight is 0."""
    log_weights = np.asarray(log_weights, np.float64)
    top = log_weights.max()
    if not np.isfinite(top):
        return float(top)
    return float(top + np.log(np.mean(np.exp(log_weights - top))))


def relative_error(log_weights: ArrayLike) -> float:
    """sd(w) / (w̄ √S), the standard error of log w̄ by the delta method."""
    share = shares(log_weights)
    return float(math.sqrt(len(share)) * share.std(ddof=1)) if np.all(np.isfinite(share)) else math.inf


def effective(log_weights: ArrayLike) -> float:
    """(Σ w)² / Σ w², the effective sample size of the weights."""
    share = shares(log_weights)
    return float(1 / np.sum(share**2)) if np.all(np.isfinite(share)) else 0.0


def shares(log_weights: ArrayLike) -> np.ndarray:
    """w / Σ w, (S,); NaN where every weight is 0."""
    log_weights = np.asarray(log_weights, np.float64)
    if not np.isfinite(log_weights.max()):
        return np.full(len(log_weights), np.nan)
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def stochastic_bound(log_weights: ArrayLike, share: float = 0.995) -> float:
    """A lower confidence bound for log E[w] at level ``share``, by Student's t over block means (approximate).

    The weights are cut into 16 blocks. The mean of the blocks' log mean weights is at most log E[w] in expectation,
    whatever w's law; the bound is that mean minus the t(15) quantile times its standard error.

    Args:
        log_weights: (S,), S ≥ 32, independent.
    """
    from scipy.stats import t

    means = np.array([log_mean(block) for block in np.array_split(np.asarray(log_weights), BLOCKS)])
    if not np.all(np.isfinite(means)):
        return -math.inf
    return float(means.mean() - t.ppf(share, BLOCKS - 1) * means.std(ddof=1) / math.sqrt(BLOCKS))


class Summed(NamedTuple):
    """The estimate of Σ_n log p(x_n|θ) from log weights (N, S)."""

    estimates: np.ndarray  # (N,) log mean over draws
    errors: np.ndarray  # (N,) standard errors, by the delta method
    effective: np.ndarray  # (N,) effective sample sizes

    @property
    def estimate(self) -> float:
        """The sum over n."""
        return float(self.estimates.sum())

    @property
    def error(self) -> float:
        """The sum's standard error; data are independent, so squares add."""
        return float(np.sqrt(np.sum(self.errors**2)))

    @property
    def bias(self) -> float:
        """−Σ_n var(w)/(2 S w̄²), the bias of the estimate: the terms have one sign and add up."""
        return float(-np.sum(self.errors**2) / 2)


def summed(log_weights: np.ndarray) -> Summed:
    """The estimate from log weights (N, S); every row needs a finite one."""
    top = log_weights.max(1, keepdims=True)
    weights = np.exp(log_weights - top)
    mean, draws = weights.mean(1), weights.shape[1]
    errors = weights.std(1, ddof=1) / (mean * math.sqrt(draws))
    return Summed(top[:, 0] + np.log(mean), errors, draws * mean**2 / np.mean(weights**2, 1))
