"""Pareto-smoothed importance sampling for many rows of weights at once (Vehtari et al. 2024, arXiv:1507.02646)."""

import math

import numpy as np
from scipy.special import logsumexp

PRIOR = 10  # number of tail values whose information equals that of the prior on k, which has mean 1/2
LEVEL = 0.1  # nats; rounded weights to which no tail can be fitted count as equal if their logs differ by less
NUMBERS = 1 << 19  # about how many numbers are in memory at once


def smooth(log_weights: np.ndarray, efficiency: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Replaces the largest weights of every row by quantiles of a generalised Pareto distribution fitted to them.

    Args:
        log_weights: (r, s), finite; each row may have an arbitrary constant added.
        efficiency: effective draws per draw, in (0, 1].

    Returns:
        (r, s) log weights, whose exponentials sum to one in each row, and (r,) k̂, the fitted tail index. If the
        largest weights of a row are equal up to rounding, nothing is smoothed and k̂ is −∞. If they are fewer than five,
        k̂ is ∞. If nearly all of them are too small to be distinguished from 0, k̂ is NaN.
    """
    size = log_weights.shape[1]
    count = int(3 * math.sqrt(size / efficiency) if size * efficiency > 225 else size / 5)
    grid = 30 + math.isqrt(max(count, 1))
    parts = -(-len(log_weights) * max(size, grid * count) // NUMBERS)
    smooth_parts = [_smooth(rows, count, grid) for rows in np.array_split(log_weights, max(parts, 1))]
    weights, khats = (np.concatenate(arrays) for arrays in zip(*smooth_parts, strict=True))
    return weights, khats


def _smooth(log_weights: np.ndarray, count: int, grid: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooths the ``count`` largest weights of each row, as ``smooth`` does; the fit uses ``grid`` points."""
    out = log_weights - log_weights.max(1, keepdims=True)
    khats = np.full(len(out), np.inf)
    if count >= 5:
        largest = np.argpartition(out, -count - 1, axis=1)[:, -count - 1 :]
        order = np.argsort(np.take_along_axis(out, largest, 1), axis=1)
        largest = np.take_along_axis(largest, order, 1)
        logs = np.take_along_axis(out, largest, 1)
        cut, tail = np.exp(logs[:, :1]), np.exp(logs[:, 1:])
        with np.errstate(all="ignore"):
            k, scale = _fit(tail - cut, grid)
            p = (np.arange(count) + 0.5) / count
            quantiles = np.log(cut + scale[:, None] * np.expm1(-k[:, None] * np.log1p(-p)) / k[:, None])
        equal = logs[:, 1] == logs[:, -1]
        has_fit = np.isfinite(k) & (scale > 0) & ~equal
        new_logs = np.where(has_fit[:, None], np.minimum(quantiles, 0.0), logs[:, 1:])
        np.put_along_axis(out, largest[:, 1:], new_logs, 1)
        nearly = np.isnan(k) & (logs[:, -1] - logs[:, 1] <= LEVEL)
        khats = np.where(equal | nearly, -np.inf, k)
    return out - logsumexp(out, axis=1, keepdims=True), khats


def _fit(x: np.ndarray, grid: int) -> tuple[np.ndarray, np.ndarray]:
    """k and σ of a generalised Pareto distribution, fitted to ascending excesses x (r, m) over a threshold.

    They are the posterior means of Zhang & Stephens (2009), with k shrunk a little towards 1/2. With b = −k/σ, the
    log likelihood at a given b is largest at k(b) = mean log(1 − b x), where it is m (log(−b/k(b)) − k(b) − 1). The
    mean of b is taken over a grid that depends on the lower quartile and the maximum of x. Rounding may leave a lower
    quartile of 0. The smallest positive excess then takes its place if a quarter of x is positive; else k is NaN.
    """
    m = x.shape[1]
    places = 1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    first = np.argmax(x > 0, 1)
    quartile = np.where(first <= 3 * m / 4, np.maximum(int(m / 4 + 0.5) - 1, first), 0)
    b = places / (3 * x[np.arange(len(x)), quartile, None]) + 1 / x[:, -1:]  # (r, grid)
    slopes = np.log1p(-b[:, :, None] * x[:, None]).mean(2)
    profile = m * (np.log(-b / slopes) - slopes - 1)
    weights = np.exp(profile - logsumexp(profile, axis=1, keepdims=True))
    weights *= weights >= 10 * np.finfo(float).eps
    b = np.sum(b * weights, 1) / weights.sum(1)
    k = np.log1p(-b[:, None] * x).mean(1)
    return (m * k + PRIOR / 2) / (m + PRIOR), -k / b
