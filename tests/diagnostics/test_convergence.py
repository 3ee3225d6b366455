"""R-hat, effective sizes and Pareto-smoothed weights: by ArviZ's code, one number at a time, and by exact answers."""

import itertools
import math
import warnings

import numpy as np
import pytest
from arviz_stats.base.array import array_stats
from scipy import stats

from tractable.diagnostics import convergence, pareto

pytestmark = pytest.mark.quick

NAMES = ("rhat", "bulk", "tail", "mcse_mean", "mcse_sd")


def by_arviz(draws: np.ndarray) -> list[np.ndarray]:
    over = {"chain_axis": 0, "draw_axis": 1}
    half = draws.shape[1] // 2
    apart = draws if len(draws) > 1 else np.concatenate([draws[:, :half], draws[:, -half:]])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        sizes = [array_stats.ess(draws, method="bulk", **over)]
        sizes += [array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **over)]
        return [array_stats.rhat(apart, **over), *sizes, array_stats.mcse(draws, method="mean", **over)]


def autoregressive(rng: np.random.Generator, chains: int, count: int, slopes: np.ndarray) -> np.ndarray:
    """(chain, draw, k) stationary chains x_t = a x_{t−1} + e_t of unit variance."""
    x = rng.standard_normal((chains, count, len(slopes)))
    x[:, 1:] *= np.sqrt(1 - slopes**2)
    for t in range(1, count):
        x[:, t] += slopes * x[:, t - 1]
    return x


@pytest.mark.parametrize(("chains", "count"), list(itertools.product((1, 2, 5), (8, 9, 11, 50, 401))))
def test_diagnostics_are_those_of_arviz(chains, count):
    rng = np.random.default_rng(chains * count)
    draws = autoregressive(rng, chains, count, np.array([-0.95, -0.5, 0.0, 0.6, 0.99, 0.3, 0.3]))
    draws[..., 4] += 3 * rng.standard_normal((chains, 1))
    draws[..., 5] = np.round(draws[..., 5])
    draws[0, 3, 6] = np.nan
    found = convergence.diagnose(draws)
    for name, wanted in zip(NAMES[:-1], by_arviz(draws), strict=True):  # the error of an sd has a law of its own
        moves = np.ptp(draws, axis=1).all(0)  # what does not move is told otherwise
        np.testing.assert_allclose(getattr(found, name)[moves], wanted[moves], rtol=1e-9, err_msg=name)
    assert all(np.isnan(getattr(found, name)[6]) for name in NAMES)


def test_many_numbers_are_diagnosed_in_parts(monkeypatch):
    draws = autoregressive(np.random.default_rng(0), 4, 60, np.linspace(-0.9, 0.9, 37))
    whole = convergence.diagnose(draws)
    monkeypatch.setattr(convergence, "NUMBERS", 1000)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(convergence.diagnose(draws), name), getattr(whole, name))
    assert convergence.diagnose(draws[..., :0]).rhat.shape == (0,)


@pytest.mark.parametrize("slope", [-0.6, 0.0, 0.8, 0.95])
def test_effective_draws_of_autoregressive_chains(slope):
    """n (1 − a)/(1 + a) for a mean; its logarithm within 4.5 standard errors over 40 sets of chains."""
    chains, count, sets = 4, 2000, 40
    draws = autoregressive(np.random.default_rng(7), chains, count, np.full(sets, slope))
    found = np.log(convergence.effective(np.moveaxis(draws, 2, 0)) / (chains * count) * (1 + slope) / (1 - slope))
    # Geyer's truncation leaves a bias of some per cent.
    assert abs(found.mean()) < 0.05 + 4.5 * found.std(ddof=1) / math.sqrt(sets)


@pytest.mark.parametrize("slope", [-0.9, -0.5, 0.7])
def test_errors_are_the_spread_of_means_and_sds(slope):
    """With a = −0.9 a mean is known better than from independent draws, but an sd worse.

    Effective sizes of means are at most n log₁₀ n, so the error of a mean is then too large.
    """
    sets = 400
    draws = autoregressive(np.random.default_rng(3), 4, 500, np.full(sets, slope))
    found = convergence.diagnose(draws)
    pairs = [(found.mcse_sd, draws.std((0, 1))), (found.mcse_mean, draws.mean((0, 1)))]
    for errors, of_sets in pairs[: 1 if slope < -0.5 else 2]:
        assert np.median(errors) / of_sets.std(ddof=1) == pytest.approx(1, abs=4.5 / math.sqrt(2 * sets) + 0.06)


def test_a_chain_elsewhere_and_one_too_wide_are_told():
    draws = np.random.default_rng(1).standard_normal((4, 500, 3))
    draws[0, :, 0] += 2.0
    draws[0, :, 1] *= 4.0  # equal means: only the folded ranks see it
    rhat = convergence.diagnose(draws).rhat
    assert rhat[0] > 1.1 and rhat[1] > 1.05 and rhat[2] < 1.01


@pytest.mark.parametrize(("size", "efficiency"), [(25, 1.0), (200, 1.0), (1000, 0.2), (1000, 1.0), (4001, 0.5)])
def test_smoothed_weights_are_those_of_arviz(size, efficiency):
    rng = np.random.default_rng(size)
    logs = rng.standard_t(3, (30, size)) * rng.uniform(0.1, 5.0, (30, 1))
    weights, khats = pareto.smooth(logs, efficiency)
    wanted, shapes = array_stats.psislw(-logs, r_eff=efficiency)
    np.testing.assert_allclose(weights, wanted, atol=1e-11)
    np.testing.assert_allclose(khats, shapes, atol=1e-11)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_khat_is_the_shape_of_a_pareto_tail(k):
    """Of 20,000 Pareto weights; the prior of ten values draws the 424 in the tail towards 1/2."""
    draws = stats.genpareto(k).rvs((50, 20_000), random_state=5)
    found = pareto.smooth(np.log(draws))[1]
    count = int(3 * math.sqrt(20_000))
    wanted = (count * k + 5) / (count + 10)
    assert abs(found.mean() - wanted) < 0.02 + 4.5 * found.std(ddof=1) / math.sqrt(50)


def test_one_weight_beside_equal_ones_is_no_light_tail():
    """Nearly all of the tail is equal to the cut: what a quarter of it shows may not be taken for its shape."""
    equal, rounded = np.zeros((2, 1000))
    rounded += np.round(np.random.default_rng(0).normal(size=1000) * 1e-3, 2)
    for logs in (equal, rounded):
        logs[-1] = 3.0
        assert not pareto.smooth(logs[None])[1][0] <= 0.7


@pytest.mark.parametrize("size, step", [(1, 1e-3), (2, 3e-2), (2, 5e-2), (3, 2e-2)])
def test_rounded_weights_have_no_heavier_tail(size: int, step: float) -> None:
    """Of a q that is too wide the largest weights are nearly equal: rounding leaves few values, or a quartile of 0."""
    squares = np.sum(np.random.default_rng(0).standard_normal((10, size, 10_000)) ** 2, 1)
    exact, rounded = (pareto.smooth(-0.15 * each)[1] for each in (squares, np.round(squares / step) * step))
    assert np.all(exact < -0.5) and np.all(rounded < exact + 0.15)


def test_rows_are_smoothed_in_parts(monkeypatch):
    logs = np.random.default_rng(2).normal(size=(23, 300))
    whole = pareto.smooth(logs)
    monkeypatch.setattr(pareto, "NUMBERS", 4000)
    for part, wanted in zip(pareto.smooth(logs), whole, strict=True):
        np.testing.assert_array_equal(part, wanted)


def test_level_and_short_tails_are_left():
    level = np.concatenate([np.full(900, 5.0), -np.arange(100.0)])
    weights, khat = pareto.smooth(level[None])
    assert khat == -np.inf
    np.testing.assert_allclose(weights[0] - weights[0, 0], level - 5)
    weights, khat = pareto.smooth(np.log(np.arange(1.0, 21.0))[None])
    assert khat == np.inf
    np.testing.assert_allclose(np.exp(weights[0]), np.arange(1.0, 21.0) / 210)
    # All but one vanish beside it: no tail can be told from 0.
    weights, khat = pareto.smooth(np.append(np.linspace(-2000, -1900, 99), 0.0)[None])
    assert np.isnan(khat) and np.exp(weights[0, -1]) == 1
