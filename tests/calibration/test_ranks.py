"""Ranks of the truth against enumeration and simulation; each wrong formula breaks its law."""

import itertools
import math

import numpy as np
import pytest
from montecarlo import Z, assert_holds, binomial, broken, error, of_p, uniform_counts
from scipy import stats

from tractable.calibration import ranks as rk

pytestmark = pytest.mark.quick


def check(law, right, wrong):
    """The law holds of the right one, and breaks for each wrong one."""
    assert_holds(law(right))
    for name, mutant in wrong.items():
        assert broken(law(mutant)), name


def every(runs: int, draws: int) -> np.ndarray:
    """All equally likely ranks of so many runs, (…, n)."""
    return np.array(list(itertools.product(range(draws + 1), repeat=runs)))


# The band and the p-value.

SIZES = ((4, 3), (6, 2), (1, 4), (9, 1))


def law_band(band):
    """Of all rank vectors at least the level has an ECDF that never leaves the band. A level just below that coverage
    has the same band, and one just above it a wider band."""
    scores = {}
    for (runs, draws), level in itertools.product(SIZES, (0.5, 0.8, 0.95)):
        lower, upper = band(runs, draws, level)
        found = np.array([rk.ecdf(r, draws) for r in every(runs, draws)])
        inside = np.all((found >= lower - 1e-12) & (found <= upper + 1e-12), axis=1).mean()
        scores[f"{runs} {draws} {level} least"] = 0.0 if inside >= level - 1e-12 else math.inf
        same, wider = band(runs, draws, inside - 1e-9), band(runs, draws, min(inside + 1e-9, 1.0))
        scores[f"{runs} {draws} {level} same"] = error(np.stack(same), np.stack([lower, upper]), 1e-12)
        grown = inside > 1 - 1e-9 or np.sum(wider[1] - wider[0]) > np.sum(upper - lower)
        scores[f"{runs} {draws} {level} wider"] = 0.0 if grown else math.inf
    return scores


def test_band_holds_as_often_as_it_says():
    def pointwise(runs, draws, level):
        at = np.arange(1, draws + 1) / (draws + 1)
        low, high = stats.binom.interval(level, runs, at)
        return low / runs, high / runs

    def kolmogorov(runs, draws, level):
        at, half = np.arange(1, draws + 1) / (draws + 1), stats.kstwo.ppf(level, runs)
        return at - half, at + half

    check(law_band, rk.band, {"each point by itself": pointwise, "as if ranks were continuous": kolmogorov})


@pytest.mark.parametrize(("runs", "draws"), [(100, 99), (200, 19)], ids=["100-99", "200-19"])
def test_band_holds_in_simulation(runs, draws):
    """Of 20,000 calibrations; with as many a coverage 1 % off is seen. The coverage is 0.95 to 0.953."""
    rng, count = np.random.default_rng(1), 20_000
    counts = rng.multinomial(runs, np.full(draws + 1, 1 / (draws + 1)), count)
    found, (lower, upper) = np.cumsum(counts, 1)[:, :-1] / runs, rk.band(runs, draws, 0.95)
    inside = np.all((found >= lower - 1e-12) & (found <= upper + 1e-12), axis=1).sum()
    assert_holds({"coverage": binomial(inside, count, 0.9515)})


def law_p_value(p_value):
    """P(p ≤ α) = α at every α that p takes, by all rank vectors."""
    scores = {}
    for runs, draws in SIZES:
        p = np.array([p_value(r, draws) for r in every(runs, draws)])
        share = np.array([np.mean(p <= each + 1e-12) for each in p])
        scores[f"{runs} {draws}"] = error(p, share, 1e-9)
    return scores


@pytest.mark.laws
def test_p_value_is_exact():
    def union(ranks, draws):
        counts, at = np.rint(len(ranks) * rk.ecdf(ranks, draws)), np.arange(1, draws + 1) / (draws + 1)
        tails = np.minimum(stats.binom.cdf(counts, len(ranks), at), stats.binom.sf(counts - 1, len(ranks), at))
        return min(1.0, 2 * draws * tails.min())

    def kolmogorov(ranks, draws):
        return stats.kstest((ranks + 0.5) / (draws + 1), "uniform").pvalue

    check(law_p_value, rk.p_value, {"Bonferroni over points": union, "Kolmogorov": kolmogorov})


def test_a_p_value_below_the_level_is_an_ecdf_out_of_the_band():
    rng, runs, draws = np.random.default_rng(2), 50, 19
    for level in (0.5, 0.9):
        lower, upper = rk.band(runs, draws, level)
        for _ in range(200):
            r = rng.integers(0, draws + 1, runs)
            found = rk.ecdf(r, draws)
            out = np.any((found < lower - 1e-12) | (found > upper + 1e-12))
            assert out == (rk.p_value(r, draws) <= 1 - level)


def test_very_small_p_values():
    """The least there is, all ranks at one end: two of the (L + 1)ⁿ rank vectors; bounds where 1 − P has no digits."""
    np.testing.assert_allclose(rk.p_value(np.zeros(3, int), 99), 2e-6, rtol=1e-6)
    for runs in (20, 100):
        assert 100.0**-runs <= rk.p_value(np.full(runs, 99), 99) * (1 + 1e-9) <= 200 * 100.0**-runs
    assert 0 <= rk.p_value(np.zeros(5000, int), 99) < rk.p_value(np.arange(5000) % 90, 99) < 1e-20


# Ranks.


def law_rank(rank):
    """Uniform where the truth is one draw more, whether numbers are many or two; 50,000 runs."""
    rng, runs, draws = np.random.default_rng(3), 50_000, 4
    scores = {}
    for name, drawn in (
        ("continuous", rng.normal(size=(runs, draws + 1))),
        ("coin", rng.integers(0, 2, (runs, draws + 1)).astype(float)),
        ("constant", np.zeros((runs, draws + 1))),
    ):
        got = rank(drawn[:, 0], drawn[:, 1:].T, draws, rng)
        scores[name] = uniform_counts(np.bincount(got, minlength=draws + 1))
        scores[f"{name} range"] = 0.0 if got.min() >= 0 and got.max() <= draws else math.inf
    return scores


def test_ranks_are_uniform_with_ties():
    def half(truth, draws, onto, rng):
        return np.sum(draws < truth, 0) + np.sum(draws == truth, 0) // 2

    def short(truth, draws, onto, rng):
        equal = np.sum(draws == truth, 0)
        return np.sum(draws < truth, 0) + rng.integers(0, np.maximum(equal, 1))

    wrong = {
        "below": lambda truth, draws, onto, rng: np.sum(draws < truth, 0),
        "at most": lambda truth, draws, onto, rng: np.sum(draws <= truth, 0),
        "the middle of ties": half,
        "not the last of ties": short,
    }
    check(law_rank, rk.rank, wrong)
    got = rk.rank(np.array([0.5, 9.0]), np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]), 3, np.random.default_rng(0))
    assert got.tolist() == [1, 3]


def law_few(rank):
    """Ranks among few draws, and among many, are uniform on the ranks that are asked for."""
    rng, runs = np.random.default_rng(4), 60_000
    scores = {}
    for draws, onto in ((3, 9), (9, 3), (6, 99)):
        drawn = rng.normal(size=(draws + 1, runs))
        got = rank(drawn[0], drawn[1:], onto, rng)
        scores[f"{draws} to {onto}"] = uniform_counts(np.bincount(got, minlength=onto + 1))
        scores[f"{draws} to {onto} range"] = 0.0 if got.min() >= 0 and got.max() <= onto else math.inf
    return scores


def test_ranks_of_few_draws_stay_uniform():
    def below(truth, draws):
        return np.sum(draws < truth, 0)

    wrong = {
        "stretched": lambda t, d, onto, rng: np.rint(below(t, d) * onto / len(d)).astype(int),
        "one short": lambda t, d, onto, rng: (onto * (below(t, d) + rng.random(t.shape)) / (len(d) + 1)).astype(int),
    }
    check(law_few, rk.rank, wrong)


def test_draws_are_chosen_evenly_by_weight():
    assert rk.choose_draws(np.ones(100), 100).tolist() == list(range(100))
    assert rk.choose_draws(np.ones(10), 3).tolist() == [1, 5, 8]
    chosen = rk.choose_draws(np.array([0.0, 3.0, 0.0, 1.0]), 4)
    assert chosen.tolist() == [1, 1, 1, 3]
    rng = np.random.default_rng(5)
    weights = rng.random(50)
    counts = np.bincount(rk.choose_draws(weights, 1000), minlength=50)
    assert np.all(np.abs(counts - 1000 * weights / weights.sum()) <= 1)


# Shapes.


def ranked(ratio, bias, runs, draws, seed):
    """Ranks where N(0, 1) is right and the draws are N(bias, ratio²)."""
    rng = np.random.default_rng(seed)
    return np.sum(bias + ratio * rng.normal(size=(draws, runs)) < rng.normal(size=runs), axis=0)


TRUTHS = ((1.0, 0.0), (0.7, 0.0), (1.6, 0.0), (1.0, 0.5), (0.5, -0.4), (2.5, 1.0), (0.15, 0.0))


def law_shape(shape):
    """The ratio and the bias come back, to their standard errors; 4,000 runs, few draws and many."""
    scores = {}
    for (ratio, bias), draws in itertools.product(TRUTHS, (7, 99)):
        got = shape(ranked(ratio, bias, 4000, draws, 11), draws)
        scores[f"{ratio} {draws} sd"] = abs(math.log(got.sd_ratio / ratio)) / got.sd_error / Z
        scores[f"{bias} {draws} bias"] = abs(got.bias - bias) / got.bias_error / Z
        scores[f"{ratio} {bias} {draws} known"] = max(got.sd_error, got.bias_error) / 0.3
    return scores


def test_shapes_are_found():
    def by_scores(ranks, draws, sign=1.0, shift=0.5):
        w = stats.norm.ppf((ranks + shift) / (draws + 2 * shift))
        s, n = 1 / w.std(), len(ranks)
        return rk.Shape(s, 1 / math.sqrt(2 * n), -sign * w.mean() * s, s / math.sqrt(n))

    wrong = {
        "the ratio's inverse": lambda r, draws: (lambda s: s._replace(sd_ratio=1 / s.sd_ratio))(rk.shape(r, draws)),
        "the other side": lambda r, draws: (lambda s: s._replace(bias=-s.bias))(rk.shape(r, draws)),
        "normal scores of few draws": by_scores,
    }
    check(law_shape, rk.shape, wrong)


def test_standard_errors_of_shapes_are_their_spread():
    """100 calibrations of 100 runs: the variance of standardised estimates is 1."""
    found = [rk.shape(ranked(0.8, 0.3, 100, 19, seed), 19) for seed in range(100)]
    ratio, log_error, bias, error_ = np.array(found).T
    for z in ((np.log(ratio / 0.8)) / log_error, (bias - 0.3) / error_):
        assert_holds({"spread": of_p(2 * min(stats.chi2.sf(z @ z, 100), stats.chi2.cdf(z @ z, 100)))})


def test_shapes_at_the_edge():
    for r in (np.zeros(50, int), np.full(50, 99), np.repeat([0, 99], 25), np.full(50, 50), np.array([3])):
        assert np.all(np.isfinite(rk.shape(r, 99)))
    assert rk.shape(np.zeros(50, int), 99).bias > 3 and rk.shape(np.full(50, 99), 99).bias < -3
    assert rk.shape(np.repeat([0, 99], 25), 99).sd_ratio == pytest.approx(1 / rk.WIDEST)
    assert rk.shape(np.full(50, 50), 99).sd_ratio == pytest.approx(rk.WIDEST)


@pytest.mark.parametrize("draws", [9, 99])
def test_uniform_ranks_have_the_right_shape(draws):
    """Where every rank was seen once, s is 1 and b is 0."""
    found = rk.shape(np.arange(draws + 1), draws)
    assert found.sd_ratio == pytest.approx(1, abs=1e-9) and found.bias == pytest.approx(0, abs=1e-9)
