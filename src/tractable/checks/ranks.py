"""Ranks of the truth among draws of the posterior: uniform over simulated data where inference is right.

θ* ~ p(θ), y ~ p(y|θ*), θ₁ … θ_L ~ p(θ|y) independent: r = #{f(θ_l, y) < f(θ*, y)} is uniform on 0 … L for any f, ties
broken at random (Cook, Gelman & Rubin 2006; Talts et al. 2018; Modrák et al. 2023, theorem 1).
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import scipy  # whose parts are imported when they are first used
from scipy.special import ndtr

REACH, STEP = 9.0, 0.05  # of the grid that ``shape`` integrates over
ROOT_2PI = math.sqrt(2 * math.pi)
WIDEST = 20.0  # ratio of sds, and bias in sds, at most


def rank(truth: np.ndarray, draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(q,) how many of the draws (L, q) lie below the truth (q,), in 0 … L; among equal ones a place at random."""
    below, equal = np.sum(draws < truth, axis=0), np.sum(draws == truth, axis=0)
    return below + rng.integers(0, equal + 1)


def rescaled(ranks: np.ndarray, draws: int, onto: int, rng: np.random.Generator) -> np.ndarray:
    """Ranks among ``draws`` draws as ranks on 0 … ``onto``; uniform ranks stay uniform.

    ⌊(onto + 1) (r + U) / (draws + 1)⌋ with U uniform on [0, 1): r + U is uniform on [0, draws + 1).
    """
    if draws == onto:
        return ranks
    return np.minimum((onto + 1) * (ranks + rng.random(ranks.shape)) / (draws + 1), onto).astype(int)


def evenly(weights: np.ndarray, count: int) -> np.ndarray:
    """(count,) indices of the draws to keep, of n with ``weights`` (n,): the middle one of each equal part of the sum.

    >>> evenly(np.ones(6), 3).tolist()
    [1, 3, 5]
    """
    reached = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(reached, (np.arange(count) + 0.5) / count, side="right"), len(weights) - 1)


class Band(NamedTuple):
    """Where the empirical distribution of uniform ranks lies at i/(L + 1), i = 1 … L, with a given probability."""

    lower: np.ndarray  # (L,) shares
    upper: np.ndarray
    coverage: float  # probability for all L at once; at least the level asked for


def ecdf(ranks: np.ndarray, draws: int) -> np.ndarray:
    """(L,) share of ranks below i = 1 … L; i/(L + 1) is expected."""
    return np.cumsum(np.bincount(ranks, minlength=draws + 1))[:-1] / len(ranks)


def band(runs: int, draws: int, level: float = 0.95) -> Band:
    """Limits between which the whole ECDF of uniform ranks lies with probability ≥ ``level``.

    At every i the counts whose two tails under Binomial(n, i/(L + 1)) both exceed γ/2, with the largest γ that allows
    the level: simultaneous, exact in finite samples (Säilynoja, Bürkner & Vehtari 2022, section 2).
    """
    tails, low, high = _tails(runs, draws), 0.0, 1.0
    for _ in range(50):  # coverage falls with γ
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(tails > middle / 2, runs, draws) >= level else (low, middle)
    allowed = tails > low / 2
    lower, upper = _ends(allowed)
    return Band(lower / runs, upper / runs, _inside(allowed, runs, draws))


def p_value(ranks: np.ndarray, draws: int) -> float:
    """How often uniform ranks (n,) on 0 … L have an ECDF at least as far out as these, exactly.

    p = P(γ ≤ γ_observed), γ = 2 min_i min(P(X_i ≤ N_i), P(X_i ≥ N_i)), X_i ~ Binomial(n, i/(L + 1)). It is below α
    if and only if the ECDF leaves the band of level 1 − α.
    """
    runs = len(ranks)
    counts, tails = np.rint(runs * ecdf(ranks, draws)).astype(int), _tails(runs, draws)
    furthest = float(np.min(tails[np.arange(draws), counts]))
    outside = 1 - _inside(tails > furthest, runs, draws)
    # Rounding swallows very small values. Exact bounds: the event contains one tail, and is a union of 2 L.
    return float(np.clip(outside, furthest, min(1.0, 2 * draws * furthest)))


@functools.lru_cache(maxsize=4)
def _tails(runs: int, draws: int) -> np.ndarray:
    """(L, n + 1) the lesser of P(X ≤ c) and P(X ≥ c), X ~ Binomial(n, i/(L + 1))."""
    count, at = np.arange(runs + 1), np.arange(1, draws + 1)[:, None] / (draws + 1)
    lower = scipy.stats.binom.cdf(count, runs, at)
    return np.minimum(lower, lower[::-1, ::-1])  # n − c at 1 − z: the two ends tie to the last bit


def _ends(allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last count that is allowed at each i; the allowed ones are an interval."""
    return allowed.argmax(1), allowed.shape[1] - 1 - allowed[:, ::-1].argmax(1)


def _inside(allowed: np.ndarray, runs: int, draws: int) -> float:
    """P(all L counts of uniform ranks are allowed).

    Counts of n uniform ranks are a Poisson process given that its total is n, and its increments are independent.
    """
    if not allowed.any(1).all():
        return 0.0
    step = scipy.stats.poisson.pmf(np.arange(runs + 1), runs / (draws + 1))
    reached, offset = np.ones(1), 0
    for low, high in zip(*_ends(allowed), strict=True):
        moved = np.convolve(reached, step[: high - offset + 1])  # its counts begin at ``offset``
        reached, offset = moved[low - offset : high - offset + 1], int(low)
    last = step[runs - offset - np.arange(len(reached))]
    return float(np.sum(reached * last) / scipy.stats.poisson.pmf(runs, runs))


class Shape(NamedTuple):
    """The normal error that explains the ranks best, with standard errors."""

    sd_ratio: float  # sd of the draws over the right posterior's; below 1 too narrow, ∪
    sd_error: float  # of log sd_ratio
    bias: float  # mean of the draws minus the right mean, in the right posterior's sds; above 0 too high
    bias_error: float
    even_error: float  # of log sd_ratio if ranks were uniform, by which it is tested

    def off(self, errors: float | int) -> tuple[bool, bool]:
        """Whether the sd, and the bias, are off by more than ``errors`` standard errors."""
        sd_error = min(self.sd_error, self.even_error)  # where nearly all ranks are 0 or L, s itself is hardly known
        return abs(math.log(self.sd_ratio)) > errors * sd_error, abs(self.bias) > errors * self.bias_error


def shape(ranks: np.ndarray, draws: int) -> Shape:
    """How wide and how far off a normal posterior would have to be for such ranks, by maximum likelihood.

        P(r) = ∫ Binomial(r; L, Φ(v)) s φ(b + s v) dv,    draws ~ N(b, s²) where N(0, 1) is right

    b = 0 and s = 1 give uniform ranks; s is in 0.05 … 20, |b| ≤ 20. If the error varies from data set to data set, b is
    the average bias, and a varying bias lowers s.
    """
    shares = np.bincount(ranks, minlength=draws + 1) / len(ranks)

    def cost(at: np.ndarray) -> tuple[float, np.ndarray]:
        p, slope = _probabilities(at[0], at[1], draws)
        return float(-shares @ np.log(p)), -(slope / p) @ shares

    most = math.log(WIDEST)
    found = scipy.optimize.minimize(cost, np.zeros(2), jac=True, bounds=[(-WIDEST, WIDEST), (-most, most)])
    bias, log_ratio = map(float, found.x)
    bias_error, sd_error = _errors(bias, log_ratio, draws) / math.sqrt(len(ranks))
    even = _errors(0.0, 0.0, draws)[1] / math.sqrt(len(ranks))
    return Shape(math.exp(log_ratio), float(sd_error), bias, float(bias_error), float(even))


def _errors(b: float, log_s: float, draws: int) -> np.ndarray:
    """(2,) standard errors of b and log s by one rank: the roots of the inverse information's diagonal."""
    p, slope = _probabilities(b, log_s, draws)
    return np.sqrt(np.maximum(np.diag(np.linalg.pinv((slope / p) @ slope.T)), 0))


def _probabilities(b: float, log_s: float, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """P(r), (L + 1,), and its derivatives by b and log s, (2, L + 1)."""
    (v, likelihood), s = _binomials(draws), math.exp(log_s)
    w = b + s * v
    density = s * STEP * np.exp(-(w**2) / 2) / ROOT_2PI
    p, by_b, by_s = (likelihood @ np.stack([density, -density * w, density * (1 - w * s * v)], 1)).T
    ends = np.array([b - s * REACH, b + s * REACH])  # beyond the grid Φ(v) is 0 or 1, and so is every draw's side
    edges = np.exp(-(ends**2) / 2) / ROOT_2PI
    for r, sign, end, edge in ((0, 1, ends[0], edges[0]), (draws, -1, ends[1], edges[1])):
        p[r] += ndtr(sign * end)
        by_b[r] += sign * edge
        by_s[r] -= edge * s * REACH
    return np.maximum(p, 1e-300), np.stack([by_b, by_s])


@functools.lru_cache(maxsize=4)
def _binomials(draws: int) -> tuple[np.ndarray, np.ndarray]:
    """A grid v (m,), and Binomial(r; L, Φ(v)) on it, (L + 1, m)."""
    v = np.arange(-REACH + STEP / 2, REACH, STEP)
    return v, scipy.stats.binom.pmf(np.arange(draws + 1)[:, None], draws, ndtr(v))
