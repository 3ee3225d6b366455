"""What results compute from arrays alone, by hand: chunks of rows, shares of draws, reweighed moments."""

import contextlib
import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp

from tractable.core.errors import DataError, TractableWarning
from tractable.core.latent import LatentModel
from tractable.core.model import Data, Model
from tractable.engine.placement import ONE_DEVICE
from tractable.engine.store import DrawStore
from tractable.posterior import chunking, folder, pointwise, posterior, predict, scaling
from tractable.posterior.pointwise import Left
from tractable.posterior.posterior import Posterior

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("count", [1, 6, 7, 8])
def test_chunks_hold_each_row_once(count):
    """Chunks have one shape; the last is filled up with the last row, which then does not count as real."""
    rows = {"x": RNG.normal(size=(count, 2))}
    found, seen = [], []
    for chunk, index, real in predict.chunks(rows, count, 3):
        assert chunk["x"].shape == (3, 2) and index.tolist() == [
            min(i, count - 1) for i in range(len(seen), len(seen) + 3)
        ]
        np.testing.assert_array_equal(chunk["x"], rows["x"][index])
        found.append(chunk["x"][:real])
        seen += index[:real].tolist()
    np.testing.assert_array_equal(np.concatenate(found), rows["x"])
    assert seen == list(range(count))


@pytest.mark.parametrize(("numbers", "sizes"), [(14, [3, 3, 3, 2]), (54, [6, 5])])
def test_blocks_hold_each_draw_once(monkeypatch, numbers, sizes):
    """Of 11 draws of 5 numbers, where so many numbers are held at once."""
    monkeypatch.setattr(chunking, "DRAWS", numbers * 8)
    params, weights = {"a": RNG.normal(size=(11, 3)), "b": RNG.normal(size=(11, 2))}, RNG.random(11)
    blocks = chunking.blocks_of_draws(params, weights, ONE_DEVICE)
    assert [(first, len(w)) for first, _, w in blocks] == list(zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True))
    for name, whole in params.items():
        np.testing.assert_array_equal(np.concatenate([block[name] for _, block, _ in blocks]), whole)
    np.testing.assert_array_equal(np.concatenate([w for *_, w in blocks]), weights)


def test_as_many_rows_as_fit(monkeypatch):
    """The larger of intermediates of the draws side by side and answers kept, in equal chunks."""
    monkeypatch.setattr(chunking, "BYTES", 10_000)
    # Each row takes 100 bytes, and each answer 40.
    monkeypatch.setattr(chunking, "bytes_per_row", lambda *args: (100, np.zeros((1, 5))))
    assert chunking.fitting(len, (), (), 1000) == 100
    assert chunking.fitting(len, (), (), 1000, abreast=4) == 25
    assert chunking.fitting(len, (), (), 1000, answers=50) == 5  # 2,000 bytes a row
    assert chunking.fitting(len, (), (), 130) == 65  # two chunks of one size
    assert chunking.fitting(len, (), (), 7) == 7


def left(log_weights: np.ndarray, khat: np.ndarray) -> Left:
    return Left(np.zeros_like(log_weights), log_weights, khat)


def test_the_place_of_a_row_among_its_replicates():
    """Σ of the shares of replicates below y_n, and a uniform part of those that equal it or lie between its bounds."""
    drawn = RNG.integers(0, 5, (40, 3)).astype(float)
    logs = np.log(RNG.dirichlet(np.ones(40), 3).T)
    y, shares, u = np.array([2.0, 0.0, 4.0]), np.exp(logs), np.random.default_rng(7).random(3)
    wanted = (shares * (drawn < y)).sum(0) + u * (shares * (drawn == y)).sum(0)
    np.testing.assert_allclose(pointwise.transforms(left(logs, np.zeros(3)), drawn, y, 7), wanted)
    bounds = np.array([[1.0, 3.0], [0.0, np.inf], [4.0, 4.0]])
    between = (shares * ((drawn >= bounds[:, 0]) & (drawn <= bounds[:, 1]))).sum(0)
    wanted = (shares * (drawn < bounds[:, 0])).sum(0) + u * between
    np.testing.assert_allclose(pointwise.transforms(left(logs, np.zeros(3)), drawn, bounds, 7), wanted)
    known = pointwise.leave_one_out_transforms(left(logs, np.array([0.1, 2.0, -np.inf])), drawn, y, 7)
    assert np.isnan(known).tolist() == [False, True, False]
    np.testing.assert_array_equal(known[[0, 2]], pointwise.transforms(left(logs, np.zeros(3)), drawn, y, 7)[[0, 2]])
    with pytest.raises(DataError, match="one number each"):
        pointwise.leave_one_out_transforms(left(logs, np.zeros(3)), drawn[..., None], y, 7)


def test_moments_by_power_scaling(monkeypatch):
    """Slopes in log₂ α of the mean and sd of numbers weighted by p^(α − 1), in sds; a constant component moves none."""
    monkeypatch.setattr(scaling, "smooth", lambda logs: (logs - logsumexp(logs, axis=1, keepdims=True), None))
    values, low, high = RNG.normal(3.0, 2.0, (2, 500)), *scaling.POWERS
    values[1] = 7.0
    component = -(values[0] ** 2) / 4
    found = scaling._changes(values, component)
    ends = []
    for power in (low, high):
        w = np.exp((power - 1) * component)
        mean = np.average(values[0], weights=w)
        ends.append((mean, math.sqrt(np.average((values[0] - mean) ** 2, weights=w))))
    slopes = (np.array(ends[1]) - np.array(ends[0])) / np.log2(high / low) / values[0].std()
    np.testing.assert_allclose(found[0, 1:], slopes, rtol=1e-10)
    assert found.shape == (2, 3) and found[0, 0] > 0.02 and not found[1].any()
    assert not scaling._changes(values, np.full(500, 1e6)).any()


def test_which_of_prior_and_data_moves_a_number(monkeypatch):
    of = {"prior": np.array([[0.06, 0.1, 0.2], [0.06, 0.0, 0.0], [0.01, 0.0, 0.0]])}
    of["likelihood"] = np.array([[0.07, -0.1, -0.2], [0.01, 0.9, 0.9], [0.3, 0.0, 0.0]])
    monkeypatch.setattr(scaling, "log_priors", lambda *args: "prior")
    monkeypatch.setattr(scaling, "totals", lambda *args: "likelihood")
    monkeypatch.setattr(scaling, "_changes", lambda values, component: of[component])
    model: Any = Mock(spec=Model, likelihood=len)
    draws, equal = {"a": RNG.normal(size=(200, 3))}, np.full(200, 1 / 200)
    table = scaling.power_scaled(model, draws, equal, ["a", "b", "c"], Mock(spec=Data))
    assert table["diagnosis"].tolist() == ["prior and data disagree", "prior stronger than data", ""]
    assert table["mean by likelihood"].tolist() == [-0.1, 0.9, 0.0] and table["sd by prior"].tolist() == [0.2, 0.0, 0.0]


@pytest.mark.parametrize("most", [4, 100])
def test_draws_spread_over_chains_and_time(most):
    """Evenly over those that have weight, whose weights then sum to one."""
    values, weights = np.arange(24.0).reshape(2, 12, 1), RNG.random((2, 12))
    weights[0, :3] = 0.0
    run: Any = SimpleNamespace(values=values, names=["a"], weights=weights, shaped=lambda flat: flat, found={})
    draws, shares = Posterior.spread(run, most)
    order = [(c, t) for t in range(12) for c in range(2) if weights[c, t] > 0]
    some = order if most > 21 else [order[i] for i in (0, 6, 13, 20)]
    assert draws.ravel().tolist() == [12.0 * c + t for c, t in some]
    wanted = np.array([weights[place] for place in some])
    np.testing.assert_allclose(shares, wanted / wanted.sum())


@pytest.mark.test
def test_draws_of_a_latent_model_are_the_model_s_arrays(monkeypatch):
    monkeypatch.setattr(posterior, "latent_model", lambda model: model)
    latent = Mock(spec=LatentModel)
    run: Any = SimpleNamespace(model=latent, spread=lambda draws: ({"a": np.ones(draws)}, np.full(draws, 1 / draws)))
    model, params, weights = Posterior._of_z(run, "encode", 5)
    assert model is latent and isinstance(params["a"], jax.Array) and params["a"].shape == weights.shape == (5,)


def test_bounds_where_shares_meet_a_level():
    """Half of the mass lies from the second to the fourth of five: both bounds are samples, not the next."""
    samples, shares = np.array([[4.0, 1.0, 2.0, 3.0, 5.0]]), np.array([0.25, 0.125, 0.125, 0.25, 0.25])
    lower, upper = predict._bounds(samples, shares, 0.5)
    assert (lower.tolist(), upper.tolist()) == ([2.0], [4.0])


@pytest.mark.test
def test_predictions_by_a_likelihood_s_own_law():
    """E[y*] = Σ w E[y* | θ]; Var[y*] = Σ w Var[y* | θ] + Σ w (E[y* | θ] − E[y*])²; bounds are of draws by weight."""
    a, weights, x, rows = RNG.normal(size=200), RNG.dirichlet(np.ones(200)), np.arange(3.0), np.array([2.0, 4.0])

    def own(params, x, rows):
        return dist.Normal(params["a"] * x + rows.mean(), 0.5 + x)

    found = predict.ahead(own, {"a": a}, weights, x, rows, level=0.8, seed=1)
    means = a[:, None] * x + 3
    mean, between = weights @ means, weights @ (means - weights @ means) ** 2
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found.aleatoric, 0.5 + x, rtol=1e-6)
    np.testing.assert_allclose(found.epistemic, np.sqrt(between), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.sd, np.sqrt((0.5 + x) ** 2 + between), rtol=1e-6)
    grid = np.linspace(-20, 25, 20_001)
    for i in range(3):
        below = weights @ stats.norm.cdf((grid[None] - means[:, i, None]) / (0.5 + x[i]))
        wanted = np.interp([0.1, 0.9], below, grid)
        np.testing.assert_allclose([found.lower[i], found.upper[i]], wanted, atol=0.35 * (0.5 + x[i]))


@pytest.mark.parametrize("rows", [None, 12])
@pytest.mark.parametrize("weighted", [False, True])
def test_leave_one_out_by_some_of_the_rows(monkeypatch, rows, weighted):
    """The difference estimator, Σ w l + N/m Σ_m w (log p(y_n | y without n) − l), and its variance.

    N (1 − m/N) N var_m/m is that of which rows were drawn, Σ w (l − mean)² that of which rows there are.
    """
    size, draws = 40, 200
    terms = RNG.normal(-1.0, 0.3, (draws, size))
    w = RNG.integers(0, 3, size).astype(float) if weighted else np.ones(size)
    data, log_weights = Data(np.arange(float(size)), weights=w if weighted else None), np.full(draws, -math.log(draws))

    def one_by_one(model, params, log_weights, data, efficiency):
        at = data.y.astype(int)
        yield Left(terms[:, at], -terms[:, at] - np.log(np.exp(-terms[:, at]).sum(0)), np.full(len(at), 0.2))

    monkeypatch.setattr(pointwise, "leave_out", one_by_one)
    l_all = np.log(np.exp(terms).mean(0))
    monkeypatch.setattr(pointwise, "log_predictive", lambda model, params, shares, data: l_all[data.y.astype(int)])
    found = pointwise.loo(
        Mock(spec=Model, likelihood=len, local=None), {"a": np.zeros(draws)}, log_weights, data, 1.0, rows
    )
    counting = np.flatnonzero(w > 0)
    n, m = len(counting), len(found.index)
    assert m == (n if rows is None else rows) and set(found.index) <= set(counting) and found.size == n
    left = -np.log(np.exp(-terms).mean(0))
    losses = (w * (l_all - left))[found.index]
    np.testing.assert_allclose(found.pointwise, left[found.index])
    assert found.p == pytest.approx(n / m * losses.sum())
    assert found.elpd == pytest.approx(w @ l_all - found.p)
    spread = (l_all if m < n else left)[counting]
    variance = w[counting] @ (spread - np.average(spread, weights=w[counting])) ** 2
    variance += n**2 * (1 - m / n) * losses.var() / m
    assert found.se == pytest.approx(math.sqrt(variance))


def test_draws_that_are_affordable(monkeypatch):
    """A number's looks at all rows; a group is looked at from each node of its integral, for each of its places."""
    monkeypatch.setattr(pointwise, "WORK", 1000 * 50 * 20)
    model = Mock(spec=Model, likelihood=len, space=SimpleNamespace(size=20))
    rows: Any = {"size": 100, "resident": True, "labels": None}
    assert pointwise.affordable(model, Mock(spec=Data, **rows)) == 500
    assert pointwise.affordable(model, Mock(spec=Data, **(rows | {"size": 10}))) == 1000
    given = SimpleNamespace(counts=np.ones((25, 4)))
    grouped = Mock(spec=Data, **(rows | {"labels": np.arange(25), "given": given}))
    assert pointwise.affordable(model, grouped) == 500 // pointwise.NODES
    assert pointwise.affordable(model, None) == 0


@pytest.mark.parametrize(("available", "stride"), [(1 << 30, 1), (2 * 100 * 3 * 4, 2), (500, 10)])
def test_draws_that_exceed_memory_are_thinned_evenly(monkeypatch, tmp_path, available, stride):
    """Half of the available memory may be taken, by draws in 32 bits."""
    store = DrawStore.create(tmp_path / "draws", {"position": ((3,), "float32")}, chains=2, chunk=30)
    draws = np.arange(600.0, dtype=np.float32).reshape(2, 100, 3)
    store.append({"position": draws})
    monkeypatch.setattr(folder.psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    warning = f"only one draw in {stride} is used"
    seen = contextlib.nullcontext() if stride == 1 else pytest.warns(TractableWarning, match=warning)
    with seen:
        np.testing.assert_array_equal(folder.read_draws(store)["position"], draws[:, ::stride])
