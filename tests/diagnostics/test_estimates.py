"""What checks compute from numbers alone, against SciPy and by hand."""

import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tractable.core.check import Check
from tractable.core.model import Data, Model
from tractable.diagnostics import (
    climbs,
    maxima,
    networks,
    order,
    pareto,
    report,
    reweighed,
    shape,
    subject,
    tails,
    view,
)
from tractable.diagnostics import modes as mode_checks
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.reweighed import FREEDOM, Proposal, Reweighed
from tractable.diagnostics.shape import _level_variances
from tractable.diagnostics.target import Target
from tractable.engine import preflight
from tractable.ladders import checks as ladders
from tractable.ladders.ladder import Ladder
from tractable.posterior import predict

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
    drawn = reweighed._draw_places(np.random.default_rng(1), far, count)
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
    mean, root, ess = reweighed._fit_normal(places, w, 3 * np.eye(2))
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
    root = subject.root_of(covariance)
    assert root is not None
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-7)
    assert np.all(np.triu(root, 1) == 0)
    assert subject.root_of(np.diag([1.0, 0.0])) is None
    assert subject.root_of(np.diag([1.0, np.nan])) is None


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
    assert ("at infinity" in check.sentence) == (0 < condition < 1e-7)


def test_curvature_without_a_condition_and_agreement_of_starts():
    assert maxima.curvature({}, 0.1) == []
    assert maxima.curvature({"eigenvalue": -1.0}, 0.1)[0].verdict == "reject"
    assert maxima.agreement({"starts that agree": 1}, 1, "0.1 nats", 2.0) == []
    for same, verdict in ((1, "caution"), (2, "trust"), (4, "trust")):
        (check,) = maxima.agreement({"starts that agree": same}, 4, "0.1 nats", 2.5)
        assert (check.value, check.verdict) == (same, verdict) and "of 4 starts ended within 0.1 nats" in check.sentence
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


def learnt(**fields: Any) -> Any:
    """What a check reads of a run, and nothing else."""
    return Mock(spec=Learnt, **fields)


TARGET, ROWS = Mock(spec=Target, model=Mock(spec=Model)), ()


def test_chains_of_a_network_are_judged_by_those_that_stand_still():
    """Agreement of single weights says nothing; three stuck chains of four are three."""
    run = learnt(diagnosed=SimpleNamespace(stuck=3), chains=4, model=SimpleNamespace(network_weights=True))
    (check,) = report.chain_checks(run)
    assert (check.name, check.value, check.verdict) == ("stuck chains", 3, "reject")
    run = learnt(diagnosed=SimpleNamespace(stuck=0), chains=1, model=SimpleNamespace(network_weights=True))
    assert [check.name for check in report.chain_checks(run)] == ["chains"]


def test_errors_of_moved_moments_are_those_of_independent_walkers(monkeypatch):
    """(t, c, k) positions: a walker's mean and mean square are one observation each, and sd(s²)/(2 s²) is that of s."""
    after = np.cumsum(RNG.normal(size=(16, 50, 2)), 0)
    seen = {}
    monkeypatch.setattr(shape.moves, "move", lambda *args: SimpleNamespace(usable=True, after=after))
    monkeypatch.setattr(shape, "values_of", lambda model, places: 3 * places)
    monkeypatch.setattr(shape, "compare_moments", lambda run, *moments: seen.update(found=moments))
    run = learnt(seed=0, is_point=True)
    shape.compare_moved(subject.Subject(run, CENTRE, ROOT), Mock(spec=view.View, size=view.SIZES[0]))
    mean, error, sd, sd_error = seen["found"]
    values = 3 * after
    np.testing.assert_allclose(mean, values.mean((0, 1)))
    np.testing.assert_allclose(sd, values.std((0, 1)))
    np.testing.assert_allclose(error, stats.sem(values.mean(0)))
    squares = ((values - mean) ** 2).mean(0)
    np.testing.assert_allclose(sd_error, stats.sem(squares) / (2 * squares.mean(0)))


@pytest.mark.parametrize("wanted", range(len(view.SIZES)))
def test_verification_is_the_largest_that_can_be_afforded(monkeypatch, wanted):
    """A quarter of the run's gradients, where they cost so much that the least allowance is nothing."""
    size, work = view.SIZES[wanted], 1e9
    monkeypatch.setattr(view, "gradient_work", lambda target, rows: work)
    run = learnt(cost=SimpleNamespace(gradients=1.001 * size.gradients / view.SHARE, densities=0))
    assert view.affordable(run, TARGET, ROWS) == size
    few = learnt(cost=SimpleNamespace(gradients=0.999 * view.SIZES[-1].gradients / view.SHARE, densities=0))
    assert view.affordable(few, TARGET, ROWS) is None
    of_densities = learnt(cost=SimpleNamespace(gradients=0, densities=3.003 * size.gradients / view.SHARE))
    assert view.affordable(of_densities, TARGET, ROWS) == size


def test_cheap_gradients_are_worth_many(monkeypatch):
    run = learnt(cost=SimpleNamespace(gradients=0, densities=0), model=SimpleNamespace(space=SimpleNamespace(size=4)))
    for share, wanted in ((0.99, view.MOST), (1.01, view.MANY)):
        monkeypatch.setattr(view, "gradient_work", lambda t, r, s=share: s * view.WORK / 5 / view.MOST.gradients)
        assert view.affordable(run, TARGET, ROWS) == wanted
    run.model.space.size = view.FEW_NUMBERS
    monkeypatch.setattr(view, "gradient_work", lambda t, r: 0.0)
    assert view.affordable(run, TARGET, ROWS) == view.MANY


def test_a_place_belongs_to_the_mode_whose_t_is_highest_there():
    modes = [climbs.Mode(CENTRE, 1.0, ROOT, 0.0), climbs.Mode(CENTRE + 4, 0.3, 2 * ROOT, 0.0)]
    places = RNG.normal(size=(200, 2)) * 4 + CENTRE + 2
    heights = [
        m.value - stats.multivariate_t(m.position, m.root @ m.root.T, 4).logpdf(m.position)
        + stats.multivariate_t(m.position, m.root @ m.root.T, 4).logpdf(places)
        for m in modes
    ]  # fmt: skip
    found = mode_checks.nearest_modes(modes, places)
    np.testing.assert_array_equal(np.argmax(found, 1), np.argmax(heights, 0))
    assert 20 < found[:, 0].sum() < 180 and np.all(found.sum(1) == 1)


def test_draws_are_taken_evenly_over_their_weights():
    """Of 1,000 places each stands for the middle of its thousandth of the weight."""
    weights = RNG.random((2, 50)) ** 3
    found = subject.even_draws(learnt(weights=weights), 1000)
    np.testing.assert_allclose(np.bincount(found, minlength=100) / 1000, weights.ravel() / weights.sum(), atol=1.1e-3)
    few = subject.even_draws(learnt(weights=np.array([[1.0, 1.0, 2.0]])), 2)
    assert few.tolist() == [0, 2]  # which hold the first quarter of the mass, and three quarters
    every = learnt(weights=None, belief=SimpleNamespace(chains=2), count=50)
    assert subject.even_draws(every, 3).tolist() == [0, 49, 99]


def test_the_last_proposals_stand_at_the_modes():
    modes = [climbs.Mode(CENTRE, 1.0, ROOT, 0.0), climbs.Mode(CENTRE + 4, 0.3, 2 * ROOT, 0.0)]
    before = reweighed._first_proposals(CENTRE, ROOT, modes, 2)
    places = RNG.normal(size=(400, 2))
    found, long = reweighed._next_proposals(np.random.default_rng(0), places, places, -places[:, 0], modes, before)
    assert not long and sum(p.share for p in found) == pytest.approx(1)
    share = 0.5 / next(p.share for p in found)  # 0.5 before all were divided by their sum
    for p, mode in zip(found[-2:], modes, strict=True):
        np.testing.assert_allclose(p.root, 1.2 * mode.root)
        np.testing.assert_array_equal(p.centre, mode.position)
        assert p.share * share == pytest.approx(0.15 / 2)
    for p, mode in zip(before[-2:], modes, strict=True):
        np.testing.assert_allclose(p.root, 1.2 * mode.root)
    assert [np.round(p.root[0, 0] / ROOT[0, 0], 6) for p in before] == [1.5, 5, 25, 1.2, 2.4]
    np.testing.assert_allclose([p.share for p in before], np.array([0.5, 0.15, 0.1, 0.2, 0.2]) / 1.15)


@pytest.mark.parametrize("power", [-0.5, -1.0, -3.0])
def test_a_valley_falls_as_its_power(monkeypatch, power):
    """Where the height at radius r is c·log r, every valley's slope d log p / d log r is c."""

    def maxima_at(target, rows, at, scale, numbers, point):
        radius = np.abs(at[np.arange(len(numbers)), numbers] - CENTRE[numbers]) / np.array([2.0, 0.5])[numbers]
        return power * np.log(np.maximum(radius, 1)), np.full(len(numbers), tails.FOUND)

    monkeypatch.setattr(tails, "conditional_maxima", maxima_at)
    monkeypatch.setattr(tails, "PLATEAU_DEPTH", np.inf)
    monkeypatch.setattr(tails, "COMMON_RADIUS", np.inf)
    numbers, signs = np.array([0, 1, 0]), np.array([1.0, -1.0, -1.0])
    found = tails.valley_slopes(TARGET, ROWS, CENTRE, np.array([2.0, 0.5]), numbers, signs, False)
    np.testing.assert_allclose(found, power)


def test_networks_move_as_far_as_can_be_afforded(monkeypatch):
    """24 leapfrog steps a trajectory, or 8; none where these are too dear."""
    seen = []

    def move(target, rows, begin, centre, sds, seed, longest):
        seen.append((longest, sds))
        return SimpleNamespace(usable=False, acceptance=0.1)

    model = Mock(spec=Model, space=SimpleNamespace(size=3))
    positions = RNG.normal(size=(4, 30, 3)) + np.array([-5.0, 5.0, -5.0, 5.0])[:, None, None]
    side = SimpleNamespace(model=model, some=lambda count: SimpleNamespace(positions=positions[0]))
    monkeypatch.setattr(networks.moves, "move", move)
    monkeypatch.setattr(networks, "side_of", lambda run: side)
    monkeypatch.setattr(networks, "Target", lambda model: TARGET)
    run = learnt(model=model, belief=SimpleNamespace(positions=positions), method=SimpleNamespace(chained=False))
    data = Mock(spec=Data, resident=True, arrays=lambda: ())
    each = (1 + networks.moves.COUNTED) * networks.moves.BLOCK * networks.WALKERS
    for steps in networks.STEPS:
        (check,) = networks._check_moves(run, data, None, 1.01 * each * steps, 0)
        assert check.verdict == "caution" and seen[-1][0] == steps
        np.testing.assert_allclose(seen[-1][1], np.sqrt(positions.var(1).mean(0)))  # within chains
    assert networks._check_moves(run, data, None, 0.99 * each * networks.STEPS[-1], 0) == []


@pytest.mark.test
def test_the_divergence_takes_as_many_rows_as_fit(monkeypatch):
    monkeypatch.setattr(ladders, "MOST_NUMBERS", 4 * 5 * 8 * 7 + 1)
    monkeypatch.setattr(ladders, "_divergence", lambda ladder, params, x: x)
    layers = [SimpleNamespace(seen=3), SimpleNamespace(seen=2)]
    ladder = Mock(spec=Ladder, causes=(np.zeros((8, 3)), np.zeros((8, 2))), layers=layers)
    assert len(ladders.divergence(ladder, (), jnp.zeros((100, 1)))) == 7
    assert len(ladders.divergence(ladder, (), jnp.zeros((5, 1)))) == 5


@pytest.mark.parametrize(
    ("size", "efficiency", "count"), [(100, 1.0, 20), (1000, 1.0, 94), (4000, 0.25, 379), (1000, 0.2, 200)]
)
def test_the_length_of_a_tail(size, efficiency, count):
    """3 √(n/r) of n weights, or a fifth of them where these are fewer effective than 225 (Vehtari et al. 2024)."""
    weights = RNG.normal(size=(1, size)) ** 2 * 3
    kept = pareto.smooth(weights, efficiency)[0][0] - weights[0]
    apart = np.abs(kept - np.median(kept)) > 1e-9  # all but the tail move by one constant
    apart[np.argmax(weights)] = True  # which stays, where its quantile would be above it
    assert apart.sum() == count and np.all(weights[0][apart].min() > weights[0][~apart])


def test_how_sure_an_error_must_be():
    """An error surely above 1 rejects, one surely below is trusted, and what lies between is neither."""
    one = shape.Compared(1.0, 0.1, "x", 0.0, 1.0)
    margin, slack = shape.REJECT_MARGIN * 0.1, shape.TRUST_MARGIN * 0.1
    cases = {
        1.001 + margin: "reject", 0.999 + margin: "caution", 1.001 - slack: "caution", 0.999 - slack: "trust",
    }  # fmt: skip
    for error, verdict in cases.items():
        assert one._replace(error=error).verdict == verdict
    assert one._replace(error=0.99, lenient=True).verdict == "trust"
    assert one._replace(error=0.1, doubtful=True).verdict == "caution"


def test_quantiles_are_compared_in_half_widths():
    """Draws moved by a half-width's fifth are at the limit, 1; the slope dq/dp is the reported posterior's own."""
    values = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None]
    half = (np.quantile(values, 0.84) - np.quantile(values, 0.16)) / 2
    run = learnt(
        model=SimpleNamespace(fixed=np.zeros(1, bool)), weights=None, names=["x"], values=values[None] + half / 5,
        method=SimpleNamespace(chained=False), count=4000,
    )  # fmt: skip
    found = shape.compare_quantiles(run, values, None, 1000.0)
    assert (
        found.error == pytest.approx(0.2 / shape.MEANS_OFF, rel=1e-6)
        and found.tails
        and found.ratio == pytest.approx(1)
    )
    levels, before, after = np.array([[0.05, 0.5, 0.95], [0.02, 0.47, 0.92], [0.08, 0.53, 0.98]])
    slope = np.sqrt(levels * (1 - levels)) * (stats.norm.ppf(after) - stats.norm.ppf(before)) / 0.06
    wanted = slope.max() * math.sqrt(1 / 4000 + 1 / 1000) / shape.MEANS_OFF
    assert found.chance == pytest.approx(wanted, rel=0.02)


def test_the_mean_that_is_further_off_is_named():
    """|difference of means| / 0.2 sd against |log ratio of sds| / log 1.25; its own error stands beside the larger."""
    run = learnt(
        flat_moments=(np.array([0.0, 5.0, 1.0]), np.array([1.0, 2.0, 1.0])), names=["a", "b", "c"],
        model=SimpleNamespace(fixed=np.array([False, False, True])),
    )  # fmt: skip
    mean, sd, error, sd_error = np.array([0.1, 5.3, 9.0]), np.array([1.0, 3.0, 1.0]), np.full(3, 0.01), np.full(3, 0.02)
    found = shape.compare_moments(run, mean, error, sd, sd_error)
    assert found is not None and found.name == "b" and found.means == pytest.approx(0.1)
    assert found.ratio == pytest.approx(2 / 3) and found.error == pytest.approx(math.log(1.5) / math.log(1.25))
    assert found.chance == pytest.approx(0.02 / math.log(1.25))
    further = shape.compare_moments(run, np.array([2.0, 5.3, 9.0]), error, sd, sd_error)
    assert further is not None and further.error == pytest.approx(2 / 0.2) and further.name == "a"
    assert further.chance == pytest.approx(0.01 / 0.2)
    assert shape.compare_moments(run, mean, error, sd, np.full(3, 1.0)) is None


def test_the_first_step_of_a_climb_is_the_slope_but_no_longer_than_one_sd():
    """On log p = −|x|²/2, x in the posterior's sds: within one sd it ends at the mode, from further it goes one."""
    target = Mock(spec=Target, look=lambda rows, z: (-np.sum(((z - CENTRE) / 2) ** 2, 1) / 2, -(z - CENTRE) / 4))
    begin = CENTRE + 2 * np.array([[0.3, 0.4], [3.0, 4.0], [0.0, -0.9]])
    ends = climbs.climb(target, ROWS, begin, CENTRE, 2 * np.eye(2), steps=1)
    np.testing.assert_allclose((ends.positions - CENTRE) / 2, [[0, 0], [2.4, 3.2], [0, 0]], atol=1e-12)
    np.testing.assert_allclose(ends.values, [0, -8, 0], atol=1e-12)
    np.testing.assert_allclose(
        climbs.climb(target, ROWS, begin, CENTRE, 2 * np.eye(2)).positions, CENTRE[None] + np.zeros((3, 2)), atol=1e-6
    )


def test_a_row_for_a_message():
    """All numbers of a short row; of a longer one the first outside the support, or as many as a short one has."""
    base: Any = SimpleNamespace(support=lambda row: row >= 0)
    row = np.arange(float(preflight.SHOWN))
    assert preflight._show_row(base, row) == str(row.tolist())
    longer = np.arange(preflight.SHOWN + 1.0)
    assert preflight._show_row(base, longer).startswith("0, 1, 2") and preflight._show_row(base, longer).endswith(
        "11, …"
    )
    longer[[3, 7]] = -2.5
    assert preflight._show_row(base, longer) == "with 2 of its 13 numbers outside (the first is -2.5, in column 3)"


def test_rows_in_random_order_are_as_noisy_as_random_batches():
    """So are too few windows to compare; sorted rows are noisier by far, and their column is named."""
    rows = RNG.normal(size=(4000, 2))
    assert order.noise_of_windows(Data(rows), 40) == (1.0, "") and order.noise_of_windows(Data(rows), 3000) == (1.0, "")
    rows[:, 1] = np.sort(rows[:, 1])
    ratio, name = order.noise_of_windows(Data(rows), 40)
    assert name == "column 1 of y" and 35 < ratio <= 40.5  # n rows that are all but equal


@pytest.mark.parametrize(
    ("value", "verdict"), [(400.0, "trust"), (399.9, "caution"), (80.0, "caution"), (79.9, "reject")]
)
@pytest.mark.parametrize("tail", [False, True])
def test_effective_draws_are_counted_by_chain(value, verdict, tail):
    """A hundred a chain are enough, fewer than twenty too few; the least of all parameters counts."""
    enough, least = np.array([1000.0, 900.0]), np.array([1000.0, value])
    seen = SimpleNamespace(
        rhat=np.array([1.0, 1.005]), stuck=0, bulk=enough if tail else least, tail=least if tail else enough
    )
    run = learnt(diagnosed=seen, chains=4, model=SimpleNamespace(network_weights=False), names=["a", "b"])
    rhat, *others = report.chain_checks(run)
    assert (rhat.verdict, rhat.value) == ("trust", 1.005) and "at b" in rhat.sentence
    assert [check.verdict for check in others] == (["trust", verdict] if tail else [verdict, "trust"])
    assert others[tail].value == value and "at b" in others[tail].sentence


def test_the_gradients_that_verification_takes():
    """60 a climb, two a screened place, and in each of four rounds a third of one for a density."""
    assert view.Size(2, 30, 600, 9).gradients == pytest.approx(120 + 60 + 800)


def test_a_level_is_as_uncertain_as_its_weights_make_it():
    """The variance of the mass below a quantile, over repeated samples from a proposal with short tails."""
    generator, sd, repeats, p = np.random.default_rng(0), 1.3, 2000, np.array([[0.05], [0.5], [0.95]])
    quantiles = stats.norm(0, sd).ppf(p)
    places = generator.normal(size=(repeats, 400))
    weights = np.exp(stats.norm(0, sd).logpdf(places) - stats.norm.logpdf(places))
    weights /= weights.sum(1, keepdims=True)
    below = np.sum(weights * (places <= quantiles[:, :, None]), -1)  # (3, repeats)
    claimed = np.mean(
        [_level_variances(x[:, None], w, quantiles, p)[:, 0] for x, w in zip(places, weights, strict=True)], 0
    )
    np.testing.assert_allclose(claimed, below.var(1), rtol=0.2)
    assert claimed[0] > 1.5 * 0.05 * 0.95 * np.mean(np.sum(weights**2, 1))  # far out it is more than p(1 − p)/ESS
