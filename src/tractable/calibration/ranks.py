"""Ranks of the truth among draws of the posterior: over simulated data sets they are uniform if inference is right.

If θ* ~ p(θ), y ~ p(y|θ*) and θ₁ … θ_L ~ p(θ|y) are independent, then r = #{f(θ_l, y) < f(θ*, y)} is uniform on 0 … L
for any f, with ties broken at random (Cook, Gelman & Rubin 2006; Talts et al. 2018; Modrák et al. 2023, theorem 1). An
ECDF is the empirical distribution function of such ranks. Where ``runs`` and ``draws`` are numbers, ``runs`` is n, the
number of ranks, and ``draws`` is L.
"""

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy  # the parts of SciPy are imported when they are first used

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

LEVEL = 0.95  # probability of the bands in a plot
WIDEST = 20.0  # largest ratio of sds that ``shape`` finds; the smallest is 1/20


def rank(truth: np.ndarray, draws: np.ndarray, onto: int, rng: np.random.Generator) -> np.ndarray:
    """The ranks (q,) on 0 … ``onto`` of the truth (q,) among draws (S, q); ties are broken at random.

    If S is not ``onto``, r in 0 … S becomes ⌊(onto + 1) (r + U) / (S + 1)⌋ with U uniform on [0, 1), which keeps
    uniform ranks uniform.
    """
    below, equal = np.sum(draws < truth, axis=0), np.sum(draws == truth, axis=0)
    ranks = below + rng.integers(0, equal + 1)
    if len(draws) == onto:
        return ranks
    return np.minimum((onto + 1) * (ranks + rng.random(ranks.shape)) / (len(draws) + 1), onto).astype(int)


def choose_draws(weights: np.ndarray, count: int) -> np.ndarray:
    """Choose ``count`` of n draws with ``weights`` (n,): their indices, evenly spaced in the cumulative weight.

    >>> choose_draws(np.ones(6), 3).tolist()
    [1, 3, 5]
    """
    shares = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(shares, (np.arange(count) + 0.5) / count, side="right"), len(weights) - 1)


def ecdf(ranks: np.ndarray, draws: int) -> np.ndarray:
    """The share of ranks below i = 1 … L, (L,); under uniform ranks i/(L + 1) is expected."""
    return np.cumsum(np.bincount(ranks, minlength=draws + 1))[:-1] / len(ranks)


def largest_gap(ranks: np.ndarray, draws: int) -> float:
    """The largest distance of the ranks' ECDF from the uniform distribution function."""
    return float(np.max(np.abs(ecdf(ranks, draws) - np.arange(1, draws + 1) / (draws + 1))))


def band(runs: int, draws: int, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper limits (L,) between which the ECDF of uniform ranks lies at all i with probability ≥ ``level``.

    At every i the band has the counts whose two tail probabilities under Binomial(n, i/(L + 1)) both exceed γ/2, with
    the largest γ that gives the level. The band is simultaneous and exact in finite samples (Säilynoja, Bürkner &
    Vehtari 2022, section 2). An ECDF leaves the band if and only if ``p_value`` ≤ 1 − level. (ArviZ's band is simulated
    for numbers without ties, and comes without a p-value.)
    """
    tails, low, high = _tails(runs, draws), 0.0, 1.0
    for _ in range(50):  # the coverage falls with γ
        middle = (low + high) / 2
        low, high = (middle, high) if _coverage(tails > middle / 2, runs, draws) >= level else (low, middle)
    lower, upper = _ends(tails > low / 2)
    return lower / runs, upper / runs


def p_value(ranks: np.ndarray, draws: int) -> float:
    """The exact probability that uniform ranks on 0 … L have an ECDF at least as far from uniform as ``ranks`` (n,).

    p = P(γ ≤ γ_observed) with γ = 2 min_i min(P(X_i ≤ N_i), P(X_i ≥ N_i)), X_i ~ Binomial(n, i/(L + 1)), where N_i is
    the number of ranks below i.
    """
    runs = len(ranks)
    counts, tails = np.rint(runs * ecdf(ranks, draws)).astype(int), _tails(runs, draws)
    furthest = float(np.min(tails[np.arange(draws), counts]))
    outside = 1 - _coverage(tails > furthest, runs, draws)
    # Very small values are lost to rounding, so p is clipped to exact bounds: it is at least one tail's probability,
    # and at most the sum of 2 L such probabilities.
    return float(np.clip(outside, furthest, min(1.0, 2 * draws * furthest)))


@functools.lru_cache(maxsize=4)
def _tails(runs: int, draws: int) -> np.ndarray:
    """The smaller of P(X ≤ c) and P(X ≥ c) for X ~ Binomial(n, i/(L + 1)) and every i and c, (L, n + 1)."""
    count, at = np.arange(runs + 1), np.arange(1, draws + 1)[:, None] / (draws + 1)
    lower = scipy.stats.binom.cdf(count, runs, at)
    return np.minimum(lower, lower[::-1, ::-1])  # P(X ≥ c) by symmetry, so that both tails agree to the last bit


def _ends(allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last count that is allowed at each i; the allowed counts are an interval."""
    return allowed.argmax(1), allowed.shape[1] - 1 - allowed[:, ::-1].argmax(1)


def _coverage(allowed: np.ndarray, runs: int, draws: int) -> float:
    """The probability that all L counts of uniform ranks are allowed.

    The counts of n uniform ranks are those of a Poisson process given that its total is n. The increments of a Poisson
    process are independent, so its distribution is propagated from i to i + 1 by convolution.
    """
    if not allowed.any(1).all():
        return 0.0
    step = scipy.stats.poisson.pmf(np.arange(runs + 1), runs / (draws + 1))
    mass, offset = np.ones(1), 0
    for low, high in zip(*_ends(allowed), strict=True):
        sums = np.convolve(mass, step[: high - offset + 1])  # entry j is the probability of the count offset + j
        mass, offset = sums[low - offset : high - offset + 1], int(low)
    last = step[runs - offset - np.arange(len(mass))]
    return float(np.sum(mass * last) / scipy.stats.poisson.pmf(runs, runs))


class Shape(NamedTuple):
    """The bias and sd that would explain the ranks if the posterior were N(0, 1) and the draws came from N(b, s²)."""

    sd_ratio: float  # s; below 1 the draws are too narrow, and the histogram of ranks has the form ∪
    sd_error: float  # standard error of log s
    bias: float  # b, in sds of the right posterior; above 0 the draws are too high
    bias_error: float  # standard error of b


def shape(ranks: np.ndarray, draws: int) -> Shape:
    """Find the sd s and the bias b of a normal posterior that would give such ranks, from their first two moments.

        E r/L = Φ(h),    E r(r − 1)/(L(L − 1)) = Φ(h) − 2 T(h, a),    h = −b/√(1 + s²),    a = s/√(2 + s²)

    T is Owen's function (Owen 1956). The two moments are the probabilities that one draw, and that two draws, are below
    the truth, whatever L is. s is limited to 0.05 … 20. Standard errors are by the jackknife. If the bias differs
    between data sets, b is its average, and its variation lowers s.
    """
    pairs = np.stack([ranks / draws, ranks * (ranks - 1.0) / (draws * (draws - 1))])
    total, others = pairs.sum(1, keepdims=True), max(1, len(ranks) - 1)
    # The moments over all runs; then, for the jackknife, over all runs except one, with each run left out in turn.
    one, two = np.concatenate([total / len(ranks), (total - pairs) / others], 1)
    edge = 0.5 / pairs.size / draws
    h = scipy.special.ndtri(np.clip(one, edge, 1 - edge))
    low, high = (np.full_like(h, s / math.sqrt(2 + s**2)) for s in (1 / WIDEST, WIDEST))
    for _ in range(50):  # T rises with a
        a = (low + high) / 2
        below = scipy.special.owens_t(h, a) < (one - two) / 2
        low, high = np.where(below, a, low), np.where(below, high, a)
    s = np.sqrt(2 / (1 - low**2)) * low
    estimates = np.stack([np.log(s), -h * np.sqrt(1 + s**2)])
    sd_error, bias_error = np.std(estimates[:, 1:], axis=1) * math.sqrt(others)
    return Shape(float(s[0]), float(sd_error), float(estimates[1, 0]), float(bias_error))


def draw_ranks(canvas: "FigureBase", ranks: np.ndarray, draws: int, colour: str = "#0072B2", grey: str = "0.5") -> None:
    """Draw the histogram with 95 % limits of each bar, and below it the ECDF minus i/(L + 1) with a joint 95 % band."""
    runs, at = len(ranks), np.arange(1, draws + 1) / (draws + 1)
    # Bars of equal width, at most 20, with an expected count of at least five each.
    bins = max((b for b in range(1, min(20, runs // 5) + 1) if (draws + 1) % b == 0), default=1)
    top, bottom = canvas.subplots(2, 1, sharex=True)
    top.axhspan(*scipy.stats.binom.interval(LEVEL, runs, 1 / bins), color=grey, alpha=0.18, linewidth=0)
    top.hist((ranks + 0.5) / (draws + 1), np.linspace(0, 1, bins + 1).tolist(), rwidth=0.92, color=colour)
    top.set(ylabel="runs")
    lower, upper = band(runs, draws)
    bottom.fill_between(at, lower - at, upper - at, color=grey, alpha=0.18, linewidth=0)
    bottom.plot(at, ecdf(ranks, draws) - at, color=colour, linewidth=1.3)
    bottom.set(xlim=(0, 1), xlabel="rank / L", ylabel="ECDF − uniform")
