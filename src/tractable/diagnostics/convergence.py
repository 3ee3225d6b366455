"""Whether chains agree, and how much they know (Vehtari et al. 2021, arXiv:1903.08008), of many numbers at once."""

import math
from typing import NamedTuple

import numpy as np
from numpy.fft import irfft, rfft
from scipy.fft import next_fast_len
from scipy.special import ndtri

NUMBERS = 1 << 20  # draws looked at together, about
FEWEST = 8  # draws a chain


class Diagnosed(NamedTuple):
    """One value for each parameter, (k,)."""

    rhat: np.ndarray  # rank-normalised split R-hat
    bulk: np.ndarray  # effective draws for the centre
    tail: np.ndarray  # effective draws for the 5 % or the 95 % quantile, whichever has fewer
    mcse_mean: np.ndarray
    mcse_sd: np.ndarray
    stuck: int  # chains that never move in some parameter


def diagnose(draws: np.ndarray, fixed: np.ndarray | None = None) -> Diagnosed:
    """R-hat, effective draws and Monte-Carlo standard errors of draws (chain, draw, k).

    A chain that does not move has no effective draws: R-hat is then inf, and both effective sizes are 0. Of numbers
    that are ``fixed``, (k,), and so cannot move, both are NaN.
    """
    draws = np.asarray(draws, np.float64)
    count, size = draws.shape[1:]
    if count < FEWEST:
        nothing = np.full(size, np.nan)
        return Diagnosed(nothing, np.zeros_like(nothing), np.zeros_like(nothing), nothing, nothing, 0)
    parts = np.array_split(draws, max(1, -(-draws.size // NUMBERS)), axis=2)
    found = [_diagnosed(np.ascontiguousarray(np.moveaxis(part, 2, 0))) for part in parts if part.shape[2]]
    rhat, bulk, tail, mean, sd = np.concatenate(found, 1) if found else np.zeros((5, 0))
    fixed = np.zeros(size, bool) if fixed is None else fixed
    constant = (np.ptp(draws, axis=1) == 0) & ~fixed  # (chain, k)
    stuck = constant.any(0)
    rhat, bulk, tail = (
        np.where(fixed, np.nan, np.where(stuck, still, a)) for a, still in ((rhat, np.inf), (bulk, 0.0), (tail, 0.0))
    )
    return Diagnosed(rhat, bulk, tail, mean, sd, int(constant.any(1).sum()))


def _diagnosed(draws: np.ndarray) -> np.ndarray:
    """(5, k) R-hat, both effective sizes and both standard errors of draws (k, chain, draw)."""
    halves = _halves(draws)
    split = halves if draws.shape[1] > 1 else _halves(halves)  # R-hat of one chain compares its quarters
    with np.errstate(all="ignore"):
        away = np.abs(split - np.median(split, (1, 2), keepdims=True))
        normal = _normal_scores(halves)
        rhat = np.maximum(*(_rhat(_normal_scores(each)) for each in (split, away)))
        ends = np.quantile(draws, [0.05, 0.95], axis=(1, 2), keepdims=True)
        tail = np.minimum(*(effective(_halves(draws <= end)) for end in ends))
        own = effective(halves)
        square = np.square(draws - draws.mean((1, 2), keepdims=True))
        variance = square.mean((1, 2))
        of_square = np.square(square).mean((1, 2)) - variance**2
        mean, sd = draws.std((1, 2), ddof=1) / np.sqrt(own), np.sqrt(of_square / own / variance / 4)
        columns = np.stack([rhat, effective(normal), tail, mean, sd])
    return np.where(np.isnan(draws).any((1, 2)), np.nan, columns)


def _halves(draws: np.ndarray) -> np.ndarray:
    """(k, chain, draw) as (k, 2 chain, draw // 2): a trend sets a chain's halves apart."""
    half = draws.shape[2] // 2
    return np.concatenate([draws[..., :half], draws[..., -half:]], 1)


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks among all chains' draws, equal draws sharing the mean of theirs (Blom 1958)."""
    flat = draws.reshape(len(draws), -1)
    order, place = np.argsort(flat, 1), np.arange(flat.shape[1])
    ordered = np.take_along_axis(flat, order, 1)
    new = np.diff(ordered, axis=1) != 0
    edge = np.ones((len(flat), 1), bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, new]), place, 0), 1)
    last = np.minimum.accumulate(np.where(np.hstack([new, edge]), place, flat.shape[1])[:, ::-1], 1)[:, ::-1]
    ranks = np.empty(flat.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, 1)
    return ndtri((ranks - 3 / 8) / (flat.shape[1] + 1 / 4)).reshape(draws.shape)


def _rhat(draws: np.ndarray) -> np.ndarray:
    """√((B/W + n − 1)/n), (k,): B is n times the variance of the chains' means, W the mean of their variances."""
    count = draws.shape[2]
    between, within = count * draws.mean(2).var(1, ddof=1), draws.var(2, ddof=1).mean(1)
    return np.sqrt((between / within + count - 1) / count)


def effective(draws: np.ndarray) -> np.ndarray:
    """Effective draws, (k,), of chains (k, chain, draw): n m / (1 + 2 Σ ρ_t), at most n m log₁₀ n m.

    Sums of neighbouring autocorrelations ρ_2j + ρ_2j+1 count until one is not positive, and none for more than the
    one before it (Geyer 1992).
    """
    draws = np.asarray(draws, np.float64)
    _, chains, count = draws.shape
    means = draws.mean(2, keepdims=True)
    room = next_fast_len(2 * count, real=True)
    spectrum = np.square(np.abs(rfft(draws - means, room, axis=2))).mean(1)
    covariance = irfft(spectrum, room, axis=1)[:, :count] / count  # (k, lag), the mean over chains
    within = covariance[:, :1] * count / (count - 1)
    total = covariance[:, :1] + (means.var(1, ddof=1) if chains > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[:, 0] = 1.0
    most = (count - 3) // 2
    pairs = rho[:, : 2 * most + 2].reshape(len(rho), -1, 2).sum(2)
    ended = pairs <= 0
    ended[:, most] = True
    end = np.argmax(ended, 1)
    counted = np.arange(pairs.shape[1]) < end[:, None]
    even = np.take_along_axis(rho, 2 * end[:, None], 1)[:, 0]
    last = np.where((even > 0) | (np.take_along_axis(pairs, end[:, None], 1)[:, 0] >= 0), even, 0.0)
    tau = -1 + 2 * np.sum(np.minimum.accumulate(pairs, 1), 1, where=counted) + last
    size = chains * count
    return np.where(np.ptp(draws, (1, 2)) < 1e-15, size, size / np.maximum(tau, 1 / math.log10(size)))
