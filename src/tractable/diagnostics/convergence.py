"""Convergence diagnostics of many parameters at once: R-hat, effective sample sizes, and Monte-Carlo standard errors.

The definitions are those of Vehtari et al. 2021, arXiv:1903.08008. R-hat is near 1 where chains agree.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.fft import irfft, rfft
from scipy.fft import next_fast_len
from scipy.special import ndtri

NUMBERS = 1 << 20  # about how many numbers are processed at once, to limit memory
FEWEST = 8  # minimum number of draws per chain for a diagnosis


class Diagnosed(NamedTuple):
    """Diagnostics with one value for each parameter, (k,)."""

    rhat: np.ndarray  # rank-normalised split R-hat
    bulk: np.ndarray  # effective sample size for the centre of the distribution
    tail: np.ndarray  # effective sample size for the 5 % or the 95 % quantile, whichever is smaller
    mcse_mean: np.ndarray  # Monte-Carlo standard error of the mean
    mcse_sd: np.ndarray  # Monte-Carlo standard error of the sd
    stuck: int  # number of chains in which some parameter never moves


def diagnose(draws: np.ndarray, fixed: np.ndarray | None = None) -> Diagnosed:
    """R-hat, effective sample sizes and Monte-Carlo standard errors of draws (chain, draw, k).

    If some chain of a parameter does not move, the parameter's R-hat is inf and both its effective sizes are 0.
    ``fixed`` (k,) marks parameters that cannot move; their R-hat is NaN, and so are their effective sizes. With fewer
    than eight draws per chain, R-hat and standard errors are NaN, and effective sizes are 0.
    """
    draws = np.asarray(draws, np.float64)
    count, size = draws.shape[1:]
    if count < FEWEST:
        nothing = np.full(size, np.nan)
        return Diagnosed(nothing, np.zeros_like(nothing), np.zeros_like(nothing), nothing, nothing, 0)
    parts = np.array_split(draws, max(1, -(-draws.size // NUMBERS)), axis=2)
    columns = [_diagnose(np.ascontiguousarray(np.moveaxis(part, 2, 0))) for part in parts if part.shape[2]]
    rhat, bulk, tail, mean, sd = np.concatenate(columns, 1) if columns else np.zeros((5, 0))
    fixed = np.zeros(size, bool) if fixed is None else fixed
    constant = (np.ptp(draws, axis=1) == 0) & ~fixed  # (chain, k)
    stuck = constant.any(0)
    rhat, bulk, tail = (
        np.where(fixed, np.nan, np.where(stuck, if_stuck, a))
        for a, if_stuck in ((rhat, np.inf), (bulk, 0.0), (tail, 0.0))
    )
    return Diagnosed(rhat, bulk, tail, mean, sd, int(constant.any(1).sum()))


def _diagnose(draws: np.ndarray) -> np.ndarray:
    """(5, k) R-hat, both effective sizes and both standard errors of draws (k, chain, draw)."""
    halves = _halves(draws)
    pieces = halves if draws.shape[1] > 1 else _halves(halves)  # R-hat of one chain compares its quarters
    with np.errstate(all="ignore"):
        distance = np.abs(pieces - np.median(pieces, (1, 2), keepdims=True))
        normal = _normal_scores(halves)
        rhat = np.maximum(*(_rhat(_normal_scores(each)) for each in (pieces, distance)))
        quantiles = np.quantile(draws, [0.05, 0.95], axis=(1, 2), keepdims=True)
        tail = np.minimum(*(effective(_halves(draws <= quantile)) for quantile in quantiles))
        square = np.square(draws - draws.mean((1, 2), keepdims=True))
        variance = square.mean((1, 2))
        variance_of_square = np.square(square).mean((1, 2)) - variance**2
        mean = draws.std((1, 2), ddof=1) / np.sqrt(effective(halves))
        # Trajectories that end opposite to their start give independent draws, but the same squares again and again.
        sd = np.sqrt(variance_of_square / effective(_halves(square)) / variance / 4)
        columns = np.stack([rhat, effective(normal), tail, mean, sd])
    return np.where(np.isnan(draws).any((1, 2)), np.nan, columns)


def _halves(draws: np.ndarray) -> np.ndarray:
    """Cuts chains (k, chain, draw) into halves (k, 2 chain, draw // 2), so that R-hat also sees a trend in a chain."""
    half = draws.shape[2] // 2
    return np.concatenate([draws[..., :half], draws[..., -half:]], 1)


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    """Normal quantiles of the draws' ranks among all chains (Blom 1958); equal draws get the mean of their ranks."""
    flat = draws.reshape(len(draws), -1)
    order, place = np.argsort(flat, 1), np.arange(flat.shape[1])
    sorted_draws = np.take_along_axis(flat, order, 1)
    differs = np.diff(sorted_draws, axis=1) != 0
    edge = np.ones((len(flat), 1), bool)
    first_tie = np.maximum.accumulate(np.where(np.hstack([edge, differs]), place, 0), 1)
    last_tie = np.minimum.accumulate(np.where(np.hstack([differs, edge]), place, flat.shape[1])[:, ::-1], 1)[:, ::-1]
    ranks = np.empty(flat.shape)
    np.put_along_axis(ranks, order, (first_tie + last_tie) / 2 + 1, 1)
    return ndtri((ranks - 3 / 8) / (flat.shape[1] + 1 / 4)).reshape(draws.shape)


def _rhat(draws: np.ndarray) -> np.ndarray:
    """R-hat (k,), √((B/W + n − 1)/n): B is n times the variance of the chains' means, W the mean of their variances."""
    count = draws.shape[2]
    between, within = count * draws.mean(2).var(1, ddof=1), draws.var(2, ddof=1).mean(1)
    return np.sqrt((between / within + count - 1) / count)


def effective(draws: np.ndarray) -> np.ndarray:
    """The effective sample size (k,) of m chains of n draws (k, chain, draw): n m / (1 + 2 Σ ρ_t), ≤ n m log₁₀(n m).

    The autocorrelations ρ_t are summed in pairs ρ_2j + ρ_2j+1. The sum ends at the first pair that is not positive, and
    a pair larger than the pair before it is replaced by the pair before it (Geyer 1992).
    """
    draws = np.asarray(draws, np.float64)
    _, chains, count = draws.shape
    means = draws.mean(2, keepdims=True)
    length = next_fast_len(2 * count, real=True)
    spectrum = np.square(np.abs(rfft(draws - means, length, axis=2))).mean(1)
    covariance = irfft(spectrum, length, axis=1)[:, :count] / count  # (k, lag), the mean over chains
    within = covariance[:, :1] * count / (count - 1)
    total = covariance[:, :1] + (means.var(1, ddof=1) if chains > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[:, 0] = 1.0
    max_pairs = (count - 3) // 2
    pairs = rho[:, : 2 * max_pairs + 2].reshape(len(rho), -1, 2).sum(2)
    ends_sum = pairs <= 0
    ends_sum[:, max_pairs] = True
    end = np.argmax(ends_sum, 1)
    counts = np.arange(pairs.shape[1]) < end[:, None]
    even = np.take_along_axis(rho, 2 * end[:, None], 1)[:, 0]
    last_term = np.where((even > 0) | (np.take_along_axis(pairs, end[:, None], 1)[:, 0] >= 0), even, 0.0)
    tau = -1 + 2 * np.sum(np.minimum.accumulate(pairs, 1), 1, where=counts) + last_term
    size = chains * count
    return np.where(np.ptp(draws, (1, 2)) < 1e-15, size, size / np.maximum(tau, 1 / math.log10(size)))
