"""What checks compute from numbers alone, against SciPy and by hand."""

import numpy as np
import pytest
from scipy import stats

from tractable.beliefs.check import Check
from tractable.checks import maxima, reweighed, verify
from tractable.checks.reweighed import FREEDOM, Proposal, Reweighed
from tractable.results import predict

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(5)
CENTRE = np.array([1.0, -2.0])
ROOT = np.array([[1.5, 0.0], [-0.6, 0.4]])
PROPOSALS = [Proposal(CENTRE, ROOT, 0.5), Proposal(CENTRE + 3, ROOT, 0.2), Proposal(-CENTRE, 2 * ROOT, 0.3)]


def test_the_density_of_proposals_is_a_mixture_of_ts():
    places = RNG.normal(size=(40, 2)) * 3
    each = [p.share * stats.multivariate_t(p.centre, p.root @ p.root.T, FREEDOM).pdf(places) for p in PROPOSALS]
    found = reweighed._log_proposals(PROPOSALS, places)
    np.testing.assert_allclose(found, np.log(np.sum(each, 0)), rtol=1e-12)
    rounds = np.stack([found, found + 1.0, found - 2.0])
    np.testing.assert_allclose(reweighed._log_mixture(rounds), np.log(np.exp(rounds).mean(0)), rtol=1e-12)


def test_places_are_drawn_by_shares_from_ts():
    """Each proposal has its share, give or take one, and its t's law, coordinate by coordinate and together."""
    far = [PROPOSALS[0]._replace(share=0.3), PROPOSALS[1]._replace(centre=CENTRE + 1e6, share=0.7)]
    count = 400_000
    drawn = reweighed._drawn(np.random.default_rng(1), far, count)
    first = np.all(np.abs(drawn - CENTRE) < 1e5, 1)
    assert abs(first.sum() - 0.3 * count) <= 1 and drawn.shape == (count, 2)
    white = (drawn[first] - CENTRE) @ np.linalg.inv(ROOT).T
    for column in white.T:
        assert stats.kstest(column, stats.t(FREEDOM).cdf).pvalue > 1e-7
    distance = np.sum(white**2, 1) / 2
    assert stats.kstest(distance, stats.f(2, FREEDOM).cdf).pvalue > 1e-7  # both coordinates share their χ²


def test_weighted_moments_and_their_errors():
    """Mean, sd, √Σ w²(x − m)² and ½√Σ w²((x − m)²/v − 1)², as the delta method has them."""
    positions = RNG.normal(size=(500, 2))
    w = RNG.random(500) ** 2
    w /= w.sum()
    found = Reweighed(positions, positions, w, np.log(w), float(1 / np.sum(w**2)), 0.1)
    mean, error, sd, sd_error = found.moments()
    m = np.average(positions, axis=0, weights=w)
    v = np.average((positions - m) ** 2, axis=0, weights=w)
    np.testing.assert_allclose(mean, m, rtol=1e-12)
    np.testing.assert_allclose(sd, np.sqrt(v), rtol=1e-12)
    np.testing.assert_allclose(error, np.sqrt((w**2) @ (positions - m) ** 2), rtol=1e-12)
    np.testing.assert_allclose(sd_error, np.sqrt((w**2) @ ((positions - m) ** 2 / v - 1) ** 2) / 2, rtol=1e-12)


def test_a_t_is_fitted_to_weighted_places():
    """Mean and covariance of the places; few effective ones are mixed with the wide covariance."""
    places, w = RNG.normal(size=(300, 2)) @ ROOT.T + CENTRE, RNG.random(300)
    w /= w.sum()
    mean, root, ess = reweighed._fitted(places, w, 3 * np.eye(2))
    covariance = np.cov(places.T, aweights=w, ddof=0)
    share = ess / (ess + 4)
    assert ess == pytest.approx(1 / np.sum(w**2))
    np.testing.assert_allclose(mean, np.average(places, axis=0, weights=w), rtol=1e-12)
    np.testing.assert_allclose(root @ root.T, share * covariance + (1 - share) * 9 * np.eye(2), rtol=1e-5)


def test_a_long_tail_is_told_from_a_short_one():
    """A kurtosis above 15 is long; places count by their share of such numbers' variances."""
    short = RNG.normal(size=2000)
    long = short.copy()
    long[:4] = 40.0
    values, w = np.stack([short, long], 1), np.full(2000, 1 / 2000)
    found = Reweighed(values, values, w, np.log(w), 2000.0, 0.1)
    assert found.long.tolist() == [False, True]
    outward = reweighed._outward(values, w)
    share = (long - long.mean()) ** 2
    np.testing.assert_allclose(outward, share / share.sum(), rtol=1e-10)
    assert reweighed._outward(values[:, :1], w) is None


@pytest.mark.parametrize(("power", "tolerance"), [(2.5, 0.025), (3.0, 0.002), (4.0, 0.005)])
def test_what_lies_beyond_all_places_of_a_power_tail(power, tolerance):
    """Of p(x > c) = c^−α, x up to the largest place, ∫ x² beyond is c^(2 − α) of the whole: 8, 1.4 and 0.2 %."""
    count = 200_000
    x = (1 - (np.arange(count) + 0.5) / count) ** (-1 / power)
    beyond = x.max() ** (2 - power)
    found = reweighed._beyond(x, np.full(count, 1 / count))
    assert found == pytest.approx(beyond / (1 - beyond), abs=tolerance)


def test_a_root_is_that_of_the_covariance():
    covariance = ROOT @ ROOT.T
    found = verify._rooted(CENTRE, covariance)
    assert found is not None
    centre, root = found
    np.testing.assert_array_equal(centre, CENTRE)
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-7)
    assert np.all(np.triu(root, 1) == 0)
    assert verify._rooted(CENTRE, np.diag([1.0, 0.0])) is None
    assert verify._rooted(CENTRE, np.diag([1.0, np.nan])) is None


@pytest.mark.parametrize(
    ("least", "condition", "verdict"),
    [
        (2.0, 0.5, "trust"),
        (1e-9, 1e-8, "caution"),  # single precision cannot tell it from 0
        (1e-9, 2e-7, "trust"),
        (-1e-9, -1e-6, "caution"),  # a flat ridge, and rounding
        (-0.1, -1e-3, "reject"),
        (0.0, 0.0, "caution"),
    ],
)
def test_curvature_at_a_maximum(least, condition, verdict):
    (check,) = maxima.curvature({"eigenvalue": least, "condition": condition}, 1e-5)
    assert isinstance(check, Check) and check.verdict == verdict and check.value == least
    assert ("recedes" in check.sentence) == (0 < condition < 1e-7)


def test_curvature_without_a_condition_and_agreement_of_starts():
    assert maxima.curvature({}, 0.1) == []
    assert maxima.curvature({"eigenvalue": -1.0}, 0.1)[0].verdict == "reject"
    assert maxima.agreement({"starts that agree": 1}, 1, "0.1 nats", 2.0) == []
    for same, verdict in ((1, "caution"), (2, "trust"), (4, "trust")):
        (check,) = maxima.agreement({"starts that agree": same}, 4, "0.1 nats", 2.5)
        assert (check.value, check.verdict) == (same, verdict) and "of 4 within 0.1 nats" in check.sentence
        assert "2.5 below" in check.sentence


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("equal", [True, False])
def test_bounds_are_the_smallest_samples_with_their_share_below(level, equal):
    """The q-quantile is the smallest sample of which at least the share q lies at or below."""
    samples, shares = RNG.normal(size=(3, 2, 41)), np.full(41, 1 / 41) if equal else RNG.random(41)
    shares = shares / shares.sum()
    lower, upper = predict._bounds(samples.copy(), shares, level)
    assert lower.shape == upper.shape == (3, 2)
    for at in np.ndindex(3, 2):
        values = samples[at]
        for q, found in (((1 - level) / 2, lower[at]), ((1 + level) / 2, upper[at])):
            reached = [x for x in values if shares[values <= x].sum() >= q - 1e-12]
            assert found == min(reached)


def test_bounds_of_no_draws_are_unknown():
    lower, upper = predict._bounds(np.zeros((2, 0)), np.zeros(0), 0.9)
    assert np.isnan(lower).all() and np.isnan(upper).all() and lower.shape == (2,)
