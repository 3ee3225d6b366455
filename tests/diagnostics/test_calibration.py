"""Measures of calibration against quadrature, brute force and simulation; each wrong formula breaks its law."""

import math

import numpy as np
import pytest
from exact import crps_normal
from montecarlo import assert_holds, binomial, broken, error, ks, uniform_counts, z_mean
from scipy import stats

from tractable.core.errors import DataError, SettingsError
from tractable.diagnostics import calibration as cal

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(7)


def check(law, right, wrong):
    """The law holds of the right one, and breaks for each wrong one."""
    assert_holds(law(right))
    for name, mutant in wrong.items():
        assert broken(law(mutant)), name


# CRPS.


def law_crps_draws(crps):
    """Against all pairs one by one, with weights and ties; and what is expected of few draws is that of many."""
    rng = np.random.default_rng(0)
    y, draws, weights = rng.normal(size=5), rng.normal(size=(7, 5)).round(1), rng.uniform(size=7)
    w = weights / weights.sum()
    between = np.abs(draws[:, None] - draws[None])
    pairs = np.einsum("i,j,ijn->n", w, w, between) / (1 - np.sum(w**2))
    few = rng.normal(1.0, 2.0, (3, 200_000))
    told = crps(np.full(few.shape[1], 0.5), few, None)
    return {
        "brute force": error(crps(y, draws, weights), w @ np.abs(draws - y) - pairs / 2, 1e-10),
        "equal weights": error(crps(y, draws, None), crps(y, draws, np.full(7, 3.0)), 1e-10),
        "fair": z_mean(told, float(crps_normal(0.5, 1.0, 2.0)), float(told.var())),
    }


def test_crps_draws():
    def over_pairs(half=0.5, fair=True, weighted=True):
        def crps(y, draws, weights):
            s = len(draws)
            w = np.full(s, 1 / s) if weights is None or not weighted else weights / weights.sum()
            order = np.argsort(draws, 0)
            x, v = np.take_along_axis(draws, order, 0), w[order]
            pairs = 2 * np.sum(v * (x * (np.cumsum(v, 0) - v) - (np.cumsum(v * x, 0) - v * x)), 0)
            return w @ np.abs(draws - y) - half * pairs / (1 - np.sum(w**2) if fair else 1)

        return crps

    assert_holds(law_crps_draws(over_pairs()))
    wrong = {
        "no ½": over_pairs(half=1.0),
        "pairs with themselves": over_pairs(fair=False),
        "weights ignored": over_pairs(weighted=False),
    }
    check(law_crps_draws, cal.crps_draws, wrong)


def test_crps_of_many_draws_is_that_of_their_distribution():
    y = np.array([-1.0, 0.0, 2.5])
    draws = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)[:, None] * 2 + 0.5
    np.testing.assert_allclose(cal.crps_draws(y, np.repeat(draws, 3, 1)), crps_normal(y, 0.5, 2.0), atol=2e-5)


# Coverage, PIT.

PRIOR, NOISE, SEEN = 1.5, 0.8, 4  # w ~ N(0, PRIOR²), y = x w + N(0, NOISE²)


def predictives(rng, replicates):
    """Exact posterior predictives of lines through the origin, each of its own data: (y*, mean, epistemic sd)."""
    w = rng.normal(0, PRIOR, replicates)
    x = rng.normal(size=(SEEN, replicates))
    y = x * w + NOISE * rng.normal(size=x.shape)
    precision = 1 / PRIOR**2 + np.sum(x**2, 0) / NOISE**2
    new = rng.normal(size=replicates)
    return (
        new * w + NOISE * rng.normal(size=replicates),
        new * np.sum(x * y, 0) / NOISE**2 / precision,
        np.abs(new) / np.sqrt(precision),
    )


def law_coverage(coverage, sd_of):
    """Of intervals at 50, 90 and 99 %, as many hold y* as they say."""
    y, mean, epistemic = predictives(np.random.default_rng(1), 40_000)
    sd = sd_of(epistemic)
    scores = {}
    for level in (0.5, 0.9, 0.99):
        half = stats.norm.isf((1 - level) / 2) * sd
        scores[f"{level}"] = binomial(round(coverage(y, mean - half, mean + half) * len(y)), len(y), level)
    return scores


def total(epistemic):
    return np.hypot(epistemic, NOISE)


def test_coverage():
    assert cal.coverage([1.0, 2.0, 3.0, 4.0], [1.0, 2.5, 0.0, 3.0], [2.0, 3.0, 2.0, 4.0]) == 0.5
    assert_holds(law_coverage(cal.coverage, total))
    for name, sd_of in {
        "epistemic alone": lambda e: e,
        "noise alone": lambda e: np.full_like(e, NOISE),
        "sds added": lambda e: e + NOISE,
    }.items():
        assert broken(law_coverage(cal.coverage, sd_of)), name
    assert broken(law_coverage(lambda y, lower, upper: float(np.mean(lower <= y)), total))
    assert broken(law_coverage(lambda y, lower, upper: float(np.mean((lower <= y) | (y <= upper))), total))


def law_pit(pit):
    """Uniform by the cdf; of draws exchangeable with y every rank is equally likely."""
    rng = np.random.default_rng(2)
    y, mean, epistemic = predictives(rng, 20_000)
    draws = mean + total(epistemic) * rng.normal(size=(9, len(y)))
    told = pit(y, draws)
    return {
        "cdf": ks(pit(y, stats.norm(mean, total(epistemic)).cdf), stats.uniform.cdf),
        "draws": uniform_counts(np.histogram(told, 10, (0.0, 1.0))[0]),
        "values": error(pit(np.array([0.0, 5.0, 2.0]), np.array([[1.0] * 3, [2.0] * 3])), [1 / 6, 5 / 6, 2 / 3], 1e-12),
    }


def test_pit():
    def of(rank):
        return lambda y, f: f(y) if callable(f) else rank(y, f)

    wrong = {
        "no margins": of(lambda y, x: np.mean(x <= y, 0)),
        "upside down": of(lambda y, x: (np.sum(x > y, 0) + 0.5) / (len(x) + 1)),
        "normal by moments": of(lambda y, x: stats.norm.cdf((y - x.mean(0)) / x.std(0))),
    }
    check(law_pit, cal.pit, wrong)


def test_errors():
    np.testing.assert_allclose(cal.rmse([1.0, 2.0], [4.0, 6.0]), math.sqrt(12.5))
    with pytest.raises(DataError, match=r"\(2,\) and \(2, 1\)"):
        cal.rmse([1.0, 2.0], [[1.0], [2.0]])
    score = cal.log_score(np.log([0.5, 0.25, 0.125]))
    np.testing.assert_allclose(score, (-2 * math.log(2), math.log(2) / math.sqrt(3)))
    assert math.isnan(cal.log_score([1.0]).error)


# Classes.

TABLE = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.45, 0.55], [0.5, 0.5]])
LABELS = np.array([0, 1, 1, 1, 0])


def law_classes(measures):
    """A table by hand: bins (0.5, 0.75] and (0.75, 1] of four, and the top probability ½ in (0.25, 0.5]."""
    ece, brier, accuracy = measures
    return {
        # Bins: {0.5}: right 1; {0.7, 0.55}: mean 0.625, right 1; {0.9, 0.8}: mean 0.85, right ½.
        "ece": error(ece(TABLE, LABELS, 4), (0.5 + 2 * 0.375 + 2 * 0.35) / 5, 1e-12),
        "brier": error(brier(TABLE, LABELS), 2 * (0.01 + 0.64 + 0.09 + 0.2025 + 0.25) / 5, 1e-12),
        "accuracy": error(accuracy(TABLE, LABELS), 0.8, 1e-12),
    }


def test_classes_by_hand():
    assert_holds(law_classes((cal.ece, cal.brier, cal.accuracy)))

    def mean_over_bins(p, y, bins):
        told = cal.reliability(p, y, bins)
        return float(np.nanmean(np.abs(told.accuracy - told.confidence)))

    def signed(p, y, bins):
        told = cal.reliability(p, y, bins)
        return float(np.nansum(told.count * (told.accuracy - told.confidence)) / len(y))

    def midpoints(p, y, bins):
        told = cal.reliability(p, y, bins)
        gap = np.abs(told.accuracy - (np.arange(bins) + 0.5) / bins)
        return float(np.nansum(told.count * gap) / len(y))

    for ece in (mean_over_bins, signed, midpoints):
        assert set(broken(law_classes((ece, cal.brier, cal.accuracy)))) == {"ece"}, ece.__name__
    one_class = lambda p, y: float(np.mean((p[:, 1] - y) ** 2))  # noqa: E731
    assert set(broken(law_classes((cal.ece, one_class, cal.accuracy)))) == {"brier"}
    told = cal.reliability(TABLE, LABELS, 4)
    np.testing.assert_array_equal(told.count, [0, 1, 2, 2])
    np.testing.assert_allclose(told.confidence, [np.nan, 0.5, 0.625, 0.85])
    np.testing.assert_allclose(told.accuracy, [np.nan, 1.0, 1.0, 0.5])


def law_ece(ece):
    """Labels drawn from the probabilities told: every bin's gap is a mean of n_m zero-mean terms.

    Σ n_m |gap_m| / n has, by the normal limit, mean Σ σ_m √(2/π) / n and variance (1 − 2/π) Σ σ_m² / n², with
    σ_m² = Σ p (1 − p) over the rows of the bin.
    """
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.full(4, 0.7), 60_000)
    labels = (rng.uniform(size=(len(p), 1)) > np.cumsum(p, 1)[:, :-1]).sum(1)
    top = p.max(1)
    where = np.ceil(top * 10).astype(int)
    spread = np.sqrt(np.bincount(where, top * (1 - top)))
    mean = spread.sum() * math.sqrt(2 / math.pi) / len(p)
    sd = math.sqrt((1 - 2 / math.pi) * np.sum(spread**2)) / len(p)
    return {"calibrated": abs(ece(p, labels, 10) - mean) / sd / 5.33}


def test_ece_of_calibrated_labels_is_noise():
    assert_holds(law_ece(cal.ece))

    def sharpened(p, y, bins):
        return cal.ece(p**1.1 / np.sum(p**1.1, 1, keepdims=True), y, bins)

    def labels_shifted(p, y, bins):
        return cal.ece(p, (y + (np.arange(len(y)) % 20 == 0)) % 4, bins)

    assert broken(law_ece(sharpened)) and broken(law_ece(labels_shifted))


def test_entropy():
    np.testing.assert_allclose(cal.entropy([[0.25] * 4, [1.0, 0, 0, 0]]), [math.log(4), 0])


def law_auroc(auroc):
    """All pairs one by one, ties among them; and a shift of normals, whose AUROC is Φ(δ/√2)."""
    rng = np.random.default_rng(5)
    inside, outside = rng.integers(0, 6, 40), rng.integers(2, 9, 30)
    gap = outside[:, None] - inside
    many = auroc(rng.normal(size=200_000), rng.normal(1.0, 1.0, 200_000))
    return {
        "pairs": error(auroc(inside, outside), np.mean((gap > 0) + 0.5 * (gap == 0)), 1e-12),
        "normals": abs(many - stats.norm.cdf(math.sqrt(0.5))) / (1 / math.sqrt(200_000)) / 5.33,
        "apart": error(auroc([0.0, 1.0], [2.0, 3.0]), 1, 1e-12),
    }


def test_auroc():
    wrong = {
        "ties lost": lambda a, b: np.mean(np.asarray(b)[:, None] > np.asarray(a)) if len(a) < 100 else cal.auroc(a, b),
        "the other way": lambda a, b: cal.auroc(b, a),
    }
    check(law_auroc, cal.auroc, wrong)


# Conformal.


def law_conformal(quantile):
    """Of continuous scores P(new ≤ q) = ⌈(n + 1) level⌉/(n + 1) exactly, whatever they are."""
    rng = np.random.default_rng(6)
    scores = {}
    for n, level in ((9, 0.9), (14, 0.5), (20, 0.77)):
        kept = rng.exponential(size=(n, 40_000))
        inside = np.sum(rng.exponential(size=40_000) <= quantile(kept, level))
        wanted = math.ceil(round((n + 1) * level, 9)) / (n + 1)
        scores[f"{n} at {level}"] = binomial(int(inside), 40_000, wanted)
        scores[f"{n} at {level} at least"] = float(wanted < level) * 2
    return scores


def test_conformal():
    def at(rank):
        return lambda s, level: np.sort(s, 0)[int(min(max(rank(len(s), level), 1), len(s))) - 1]

    wrong = {
        "no +1": at(lambda n, level: math.ceil(n * level)),
        "level/2": at(lambda n, level: math.ceil((n + 1) * level / 2)),
        "two-sided": at(lambda n, level: math.ceil((n + 1) * (1 + level) / 2)),
        "rounded down": at(lambda n, level: math.floor((n + 1) * level)),
        "numpy's": lambda s, level: np.quantile(s, level, axis=0),
        "one more": at(lambda n, level: math.ceil((n + 1) * level) + 1),
    }
    check(law_conformal, cal.split_conformal, wrong)


def test_conformal_says_how_many_rows_a_level_needs():
    for level, least in ((0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (0.97, 33)):
        assert cal.split_conformal(np.arange(least), level) == least - 1
        with pytest.raises(DataError, match=f"needs at least {least} rows .* got {least - 1}.*infinite"):
            cal.split_conformal(np.arange(least - 1), level)
    with pytest.raises(SettingsError, match="in \\(0, 1\\); got 1"):
        cal.split_conformal(np.arange(9), 1.0)
    with pytest.raises(DataError, match="NaN"):
        cal.split_conformal([1.0, np.nan], 0.5)


def test_faults():
    for call, sentence in (
        (lambda: cal.crps_draws([0.0], [[1.0]]), "two draws"),
        (lambda: cal.crps_draws([0.0, 1.0], [[1.0], [2.0]]), r"shape \(s, 2\)"),
        (lambda: cal.crps_draws([0.0], [[1.0], [2.0]], [1.0, -1.0]), "Expected 2 weights"),
        (lambda: cal.ece(TABLE, LABELS[:, None]), r"labels \(n,\)"),
        (lambda: cal.brier(TABLE, LABELS + 1), r"0\.\.1; got 1 to 2"),
        (lambda: cal.brier(TABLE, LABELS + 0.5), "whole numbers"),
        (lambda: cal.accuracy(2 * TABLE, LABELS), "sum to 1 .* row 0"),
        (lambda: cal.accuracy(TABLE * [[1], [1], [np.nan], [1], [1]], LABELS), "row 2"),
        (lambda: cal.auroc([], [1.0]), "0 score_in"),
        (lambda: cal.auroc([np.nan], [1.0]), "NaN"),
    ):
        with pytest.raises(DataError, match=sentence):
            call()
    with pytest.raises(SettingsError, match="1 or more; got 0"):
        cal.ece(TABLE, LABELS, 0)
