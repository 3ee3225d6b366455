"""Measures how good predictions are: scores, coverage of intervals, calibration, and conformal intervals."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import xlogy

from tractable.core.errors import DataError, SettingsError
from tractable.core.settings import expect_whole
from tractable.core.tree import Numbers


def crps_draws(y: Numbers, draws: Numbers, weights: Numbers | None = None) -> np.ndarray:
    """The continuous ranked probability score of a forecast that is given by draws, in the units of y; less is better.

        CRPS = E|X − y| − ½ E|X − X'|  ≈  Σᵢ wᵢ |xᵢ − y| − ½ Σ_{i≠j} wᵢ wⱼ |xᵢ − xⱼ| / (1 − Σᵢ wᵢ²)

    The second sum is over pairs of different draws. The score of equally weighted independent draws is therefore an
    unbiased estimate of the score of their distribution, for any number of draws (a "fair" score: Ferro 2014, eq. 8).
    A fair score may be negative. The draws are sorted, so that the time is O(s log s).

    Args:
        y: (n, ...), the shape of the result.
        draws: (s, n, ...), s ≥ 2.
        weights: (s,), ≥ 0; equal by default.

    Raises:
        DataError: shapes that do not fit, fewer than two draws of positive weight, or a negative weight.

    >>> print(crps_draws([0.0], [[-1.0], [1.0]]))
    [0.]
    """
    y, draws = np.asarray(y, np.float64), np.asarray(draws, np.float64)
    weights = _normalise(weights, draws, y.shape)
    if np.count_nonzero(weights) < 2:
        raise DataError("crps_draws needs at least two draws of positive weight: one draw has no spread.")
    x = draws - y  # centring keeps rounding errors small in the differences of cumulative sums below
    order = np.argsort(x, axis=0)
    x, w = np.take_along_axis(x, order, 0), weights[order]
    # Σ_{i<j} wᵢ wⱼ (xⱼ − xᵢ) over sorted draws: each draw is compared with all draws below it.
    mass_below, sums = np.cumsum(w, 0) - w, np.cumsum(w * x, 0) - w * x
    pairs = np.sum(w * (x * mass_below - sums), axis=0)
    return np.asarray(np.sum(w * np.abs(x), axis=0) - pairs / (1 - np.sum(weights**2)))


def coverage(y: Numbers, lower: Numbers, upper: Numbers) -> float:
    """The share of the y in [lower, upper], bounds included; for calibrated intervals it is their nominal level."""
    return float(np.mean((np.asarray(lower) <= y) & (y <= np.asarray(upper))))


def pit(y: Numbers, forecast: Numbers | Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The probability integral transform F(y), (n, ...); it is uniform on (0, 1) if forecasts are calibrated.

        u = F(y),   or from s draws   u = (#{x < y} + ½ #{x = y} + ½) / (s + 1)

    If y and the draws (s, n, ...) are exchangeable, the rank of y is uniform over 0..s. Then u takes s + 1 values with
    equal probability. See Gneiting, Balabdaoui & Raftery 2007, and Talts et al. 2018.
    """
    y = np.asarray(y, np.float64)
    if callable(forecast):
        return np.asarray(forecast(y), np.float64)
    draws = np.asarray(forecast, np.float64)
    _normalise(None, draws, y.shape)
    rank = np.sum(draws < y, axis=0) + 0.5 * np.sum(draws == y, axis=0)
    return np.asarray((rank + 0.5) / (len(draws) + 1))


def rmse(y: Numbers, mean: Numbers) -> float:
    """The root-mean-square error √(mean (y − mean)²), in the units of y; less is better.

    Raises:
        DataError: shapes that differ, such as (n,) and (n, 1).
    """
    y, mean = np.asarray(y, np.float64), np.asarray(mean, np.float64)
    if y.shape != mean.shape:
        raise DataError(f"rmse expects y and mean of the same shape; got {y.shape} and {mean.shape}.")
    return float(np.sqrt(np.mean(np.square(y - mean))))


class LogScore(NamedTuple):
    """A mean log predictive density, and its standard error."""

    mean: float  # nats per row (a nat is the unit of natural logarithms); more is better
    error: float  # standard error of the mean over rows; NaN for one row


def log_score(log_densities: Numbers) -> LogScore:
    """The mean log predictive density of the rows, (1/n) Σ log p(y_n | D), and its standard error sd/√n.

    >>> log_score([-1.0, -3.0])
    LogScore(mean=-2.0, error=1.0)
    """
    values = np.asarray(log_densities, np.float64).ravel()
    error = float(np.std(values, ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan
    return LogScore(float(np.mean(values)), error)


def accuracy(probabilities: Numbers, labels: Numbers) -> float:
    """The share of rows whose label is their most probable class; among equally probable classes the first is taken."""
    probabilities, labels = _check_classes(probabilities, labels)
    return float(np.mean(probabilities.argmax(-1) == labels))


def brier(probabilities: Numbers, labels: Numbers) -> float:
    """The Brier score (1/n) Σₙ Σ_c (p_nc − 1[c = y_n])², in [0, 2]; less is better (Brier 1950).

    For two classes, the common form (1/n) Σₙ (p_n1 − y_n)² is half of this score.

    >>> brier([[0.75, 0.25], [0.5, 0.5]], [0, 0])
    0.3125
    """
    probabilities, labels = _check_classes(probabilities, labels)
    truth = np.eye(probabilities.shape[1])[labels]
    return float(np.mean(np.sum(np.square(probabilities - truth), axis=-1)))


class Reliability(NamedTuple):
    """Confidence and accuracy of the rows in each bin of confidence, (bins,)."""

    confidence: np.ndarray  # mean probability of the most probable class; NaN for an empty bin
    accuracy: np.ndarray  # share of rows whose most probable class was right; NaN for an empty bin
    count: np.ndarray  # number of rows in the bin


def reliability(probabilities: Numbers, labels: Numbers, bins: int = 15) -> Reliability:
    """How often the most probable class was right, in bins of its probability (Guo et al. 2017).

    Bin m of M holds the rows whose largest class probability (the confidence) lies in ((m − 1)/M, m/M].

    Args:
        probabilities: (n, C), rows that sum to 1.
        labels: (n,) in 0..C−1.
        bins: M ≥ 1.

    Raises:
        DataError: shapes that do not fit, labels out of range, or rows that do not sum to 1.
    """
    expect_whole("bins", bins)
    probabilities, labels = _check_classes(probabilities, labels)
    top = probabilities.max(-1)
    right = probabilities.argmax(-1) == labels
    row_bin = np.clip(np.ceil(top * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(row_bin, minlength=bins)
    with np.errstate(invalid="ignore"):
        return Reliability(np.bincount(row_bin, top, bins) / count, np.bincount(row_bin, right, bins) / count, count)


def ece(probabilities: Numbers, labels: Numbers, bins: int = 15) -> float:
    """Expected calibration error of the most probable class, Σ_m (n_m/n) |accuracy_m − confidence_m|; less is better.

    See Guo et al. 2017, eq. 3. The bins are those of ``reliability``. Even if predictions are calibrated, the error of
    n rows is of order √(bins/n). Compare only values that were computed with the same n.
    """
    confidence, accuracy, count = reliability(probabilities, labels, bins)
    gap = np.abs(accuracy - confidence)
    return float(np.sum(np.where(count > 0, count * gap, 0.0)) / count.sum())


def entropy(probabilities: Numbers) -> np.ndarray:
    """The entropy −Σ_c p_c log p_c over the last axis, in nats: 0 if one class is certain, log C if all are equal."""
    p = np.asarray(probabilities, np.float64)
    return np.asarray(-np.sum(xlogy(p, p), axis=-1) + 0.0)  # adding 0 turns −0 into 0


def auroc(score_in: Numbers, score_out: Numbers) -> float:
    """The area under the ROC curve, P(score_out > score_in) + ½ P(score_out = score_in) (Hanley & McNeil 1982).

    The scores, such as entropies, are those of rows from inside and from outside the training distribution. The area is
    ½ if the score cannot tell the two kinds of rows apart, and 1 if every row from outside has the higher score.

    >>> auroc([0.1, 0.2], [0.2, 0.9])
    0.875
    """
    inside, outside = (np.array(a, np.float64).ravel() for a in (score_in, score_out))
    if not inside.size or not outside.size:
        raise DataError(f"auroc needs rows of both kinds; got {inside.size} score_in and {outside.size} score_out.")
    if np.isnan(inside).any() or np.isnan(outside).any():
        raise DataError("auroc cannot rank scores that are NaN; leave out those rows.")
    inside.sort()
    ranks_low, ranks_high = (np.searchsorted(inside, outside, side) for side in ("left", "right"))
    return float((ranks_low.sum() + ranks_high.sum()) / (2 * inside.size * outside.size))


def split_conformal(scores: Numbers, level: float) -> np.ndarray:
    """The score that a new row stays below with probability ``level``, by split conformal prediction.

    The result (...) is the ⌈(n + 1) level⌉-th smallest of the scores (n, ...) of n held-out rows. The probability that
    a new row's score is at most this value is at least ``level``. If no two scores are equal, it is at most
    level + 1/(n + 1). The probability refers to held-out and new rows that are exchangeable; it is not conditional on
    the inputs. It holds for every model. See Vovk, Gammerman & Shafer 2005, and Lei et al. 2018, theorem 2.

    Raises:
        SettingsError: a level outside (0, 1).
        DataError: scores that are NaN, or fewer than level/(1 − level) scores: only an infinite interval then covers.

    >>> print(split_conformal(np.arange(1.0, 10.0), 0.9))
    9.0
    """
    if not 0 < level < 1:
        raise SettingsError(f"split_conformal(level=...) expects a number in (0, 1); got {level}.")
    scores = np.asarray(scores, np.float64)
    if np.isnan(scores).any():
        raise DataError("split_conformal cannot rank scores that are NaN; leave out those rows.")
    rank = _rank(len(scores), level)
    if rank > len(scores):
        least = next(n for n in range(1, math.ceil(2 / (1 - level)) + 2) if _rank(n, level) <= n)
        raise DataError(
            f"split_conformal at level {level:g} needs at least {least} rows kept out of the fit; got {len(scores)}. "
            "With fewer rows, only an infinite interval covers: keep out more rows, or lower the level."
        )
    return np.asarray(np.partition(scores, rank - 1, axis=0)[rank - 1])


def _rank(size: int, level: float) -> int:
    """⌈(n + 1) level⌉, safe from rounding: 10 · 0.9 must give 9, even if the product is slightly above 9 in binary."""
    return math.ceil((size + 1) * level - 1e-9)


def _normalise(weights: Numbers | None, draws: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The weights (s,) of the draws, scaled to sum to 1; equal weights by default. Wrong shapes raise DataError."""
    if draws.ndim == 0 or draws.shape[1:] != shape or not len(draws):
        raise DataError(f"Expected draws of shape (s, {', '.join(map(str, shape))}), s ≥ 1; got {draws.shape}.")
    if weights is None:
        return np.full(len(draws), 1 / len(draws))
    weights = np.asarray(weights, np.float64)
    if weights.shape != (len(draws),) or not np.all(weights >= 0) or not weights.sum() > 0:
        raise DataError(f"Expected {len(draws)} weights, one for each draw, that are ≥ 0 and not all 0; got {weights}.")
    return weights / weights.sum()


def _check_classes(probabilities: Numbers, labels: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities (n, C) and labels (n,) as arrays; raises DataError if they are not valid."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels)
    if p.ndim != 2 or y.shape != p.shape[:1] or not len(y):
        raise DataError(f"Expected probabilities (n, C) and labels (n,); got {p.shape} and {y.shape}.")
    sums_to_one = np.abs(p.sum(-1) - 1) < 1e-3
    if not np.all(sums_to_one):
        i = int(np.argmin(sums_to_one))
        raise DataError(f"Probabilities should sum to 1 over classes; those of row {i} sum to {p[i].sum():.6g}.")
    codes = y.astype(int)
    if np.any(codes != y) or codes.min() < 0 or codes.max() >= p.shape[1]:
        raise DataError(f"Labels should be whole numbers in 0..{p.shape[1] - 1}; got {y.min()} to {y.max()}.")
    return p, codes
