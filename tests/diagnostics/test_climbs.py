"""Climbs, modes and the noise of steps, each part by hand."""

import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from tractable.core.model import Data, Model
from tractable.diagnostics import climbs, moves, predictions, reweighed, shape, tails, view
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.reweighed import Reweighed
from tractable.diagnostics.target import Target
from tractable.sgmcmc import bias
from tractable.sgmcmc.bias import Measured

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(17)
TARGET, ROWS = Mock(spec=Target, model=Mock(spec=Model, prior_is_callable=False, drawable=True), prior=True), ()
ROOT = np.array([[1.5, 0.0], [-0.6, 0.4]])


def test_directions_do_not_depend_on_distance():
    """The highest of each direction first, however far out it is; then each one's next."""
    x = np.array([[9.0, 9.0], [1.0, 0.0], [100.0, 1.0], [0.0, 0.1], [0.0, 5.0], [9.0, 9.0]])
    found = climbs._best_per_direction(x, np.array([1, 2, 3, 4]), np.array([3.0, 4.0, 1.0, 2.0]), 4)
    assert found.tolist() == [2, 4, 1, 3]


def test_the_mass_of_a_mode_is_that_of_its_normal():
    covariance = ROOT @ ROOT.T
    mode = climbs._normal(np.array([1.0, 2.0]), -3.0, np.linalg.inv(covariance))
    assert mode is not None
    np.testing.assert_allclose(mode.root, ROOT, atol=1e-12)
    assert mode.log_mass == pytest.approx(-3 - stats.multivariate_normal(cov=covariance).logpdf([0, 0]))
    assert climbs._normal(np.zeros(2), 0.0, np.diag([1.0, -1e-3])) is None
    assert climbs._normal(np.zeros(2), 0.0, np.diag([1.0, np.nan])) is None


def test_modes_are_the_ends_that_differ():
    """Log p = −|x − m|²/2 + log share around each of three modes: ends in one place are one mode, the largest first."""
    centres, shares = np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]]), np.log([0.2, 0.7, 0.1])

    def look(rows, z):
        away = z[:, None] - centres
        each = shares - np.sum(away**2, 2) / 2
        nearest = np.argmax(each, 1)
        return each.max(1), -away[np.arange(len(z)), nearest]

    target = Mock(spec=Target, look=look, at=lambda rows, z: look(rows, z)[0])
    positions = np.concatenate([centres + 1e-6, centres[[0, 1]] - 0.02, [[20.0, 20.0]]])  # of two the higher is chosen
    to_come = np.array([0.0, 0, 0, 0, 0, 5.0])  # the last climb did not end
    ends = climbs.Ends(positions, look(ROWS, positions)[0], to_come)
    found = climbs.modes(target, ROWS, ends, np.eye(2))
    np.testing.assert_allclose([m.position for m in found], centres[[1, 0, 2]], atol=1e-5)
    np.testing.assert_allclose([m.log_mass for m in found], shares[[1, 0, 2]] + math.log(2 * math.pi), atol=1e-5)
    assert climbs.climbs_at(ends, found).tolist() == [2, 2, 1]
    values = np.array([1.0, 5.0, 3.0, 4.0, 2.0, 0.0])
    assert climbs.places_met(ends._replace(values=values), np.eye(2)).tolist() == [3, 1, 2, 3, 1, 5]


def test_a_step_that_gains_too_little_is_not_taken():
    """On −a x²/2, a near 2, the first step ends as high on the other side: it gains too little of its promise."""
    a, begin = 2 - 1e-5, np.array([[0.4, 0.0]])
    target = Mock(spec=Target, look=lambda rows, z: (-a * np.sum(z**2, 1) / 2, -a * z))
    ends = climbs.climb(target, ROWS, begin, np.zeros(2), np.eye(2), steps=1)
    np.testing.assert_array_equal(ends.positions, begin)
    np.testing.assert_allclose(climbs.climb(target, ROWS, begin, np.zeros(2), np.eye(2)).positions, 0, atol=1e-4)


def test_steps_along_which_the_density_curves_upwards_are_not_kept():
    memory = climbs.Memory.empty(3, 2)
    step = 1e-4 * np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    turn = np.array([[1.0, 0.5], [0.0, -1.0], [1e-12, -1e-12]]) * 1e-4
    memory.keep(np.arange(3), step, turn)
    assert np.flatnonzero(memory.steps.any((1, 2))).tolist() == [0]
    np.testing.assert_array_equal(memory.steps[0, -1], step[0])
    np.testing.assert_array_equal(memory.turns[0, -1], turn[0])


def test_prior_draws_are_mirrored_at_their_median(monkeypatch):
    drawn = RNG.normal(3.0, 1.0, (50, 2))
    drawn[7, 0] = np.inf
    monkeypatch.setattr(climbs, "_from_prior", lambda *args: drawn)
    monkeypatch.setattr(climbs.jax.random, "key", lambda seed: seed)
    model = SimpleNamespace(prior_is_callable=False)
    away, mirrored = climbs._distant_points(model, np.random.default_rng(0), np.zeros(2), np.eye(2), 50, 0)
    np.testing.assert_array_equal(away, drawn)
    middle = np.median(np.where(np.isfinite(drawn), drawn, 0), 0)
    np.testing.assert_allclose(mirrored, 2 * middle - away)


@pytest.mark.parametrize("whole", [False, True])
def test_noise_that_leaves_the_posterior_alone(whole):
    """S Sᵀ = ε P − (ε²/4) P (V + H) P, P = scale scaleᵀ; none where ε is too large."""
    if whole:
        h, v, scale = np.diag([2.0, 3.0]) + 0.5, np.diag([5.0, 1.0]) - 0.2, ROOT
        p, eps = scale @ scale.T, 0.1
        found = bias.reduced_noise(Measured(curvature=h, noise=v), eps, scale)
        assert found is not None
        np.testing.assert_allclose(found @ found.T, eps * p - eps**2 / 4 * p @ (v + h) @ p, rtol=1e-10)
    else:
        h, v, scale, eps = np.array([2.0, 3.0]), np.array([5.0, 1.0]), np.array([0.5, 2.0]), 0.1
        found = bias.reduced_noise(Measured(curvature=h, noise=v), eps, scale)
        assert found is not None
        np.testing.assert_allclose(found**2, eps * scale**2 - eps**2 / 4 * scale**4 * (v + h), rtol=1e-10)
    assert bias.reduced_noise(Measured(curvature=h, noise=v), 10.0, scale) is None


@pytest.mark.parametrize(("size", "followed"), [(tails.NARROW, True), (tails.NARROW + 1, False)])
def test_valleys_of_few_parameters_are_followed(monkeypatch, size, followed):
    monkeypatch.setattr(tails, "slowest", lambda *args: (-5.0, True))
    monkeypatch.setattr(tails, "valley", lambda *args: -0.2)
    check = tails.check(TARGET, ROWS, np.zeros(size), np.eye(size), True, 0)
    assert (check.value, check.verdict) == ((-0.2, "reject") if followed else (-5.0, "trust"))


@pytest.mark.parametrize("freedom", [1.5, 2.2, 8.0])
def test_a_variance_that_has_no_end(freedom):
    """Where density falls as r^−(ν + 1), x² p(log x) of the furthest falls with the slope 2 − ν: it ends for ν > 2."""
    count = 200_000
    proposal = stats.t(0.7)
    x = proposal.ppf((np.arange(count) + 0.5) / count)[:, None]  # places that lie further out than the mass
    w = (stats.t(freedom).pdf(x) / proposal.pdf(x))[:, 0]
    w /= w.sum()
    found = Reweighed(x, x, w, np.log(w), float(1 / np.sum(w**2)), 0.1)
    assert found.endless(np.array([True])) == (freedom < 2.3) and reweighed.FALLING == -0.3


def test_a_sample_of_rows_that_is_large_enough(monkeypatch):
    """A power of two of rows, at most half of them, and 2¹⁴ at least."""
    monkeypatch.setattr(view, "gradient_work", lambda target, rows: view.WORK)
    model = Mock(spec=Model, prior_is_callable=False, local=None, space=SimpleNamespace(size=3))
    for rows, wanted in ((1 << 15, 1 << 14), ((1 << 15) - 1, None), (1 << 17, 1 << 16)):
        cost = SimpleNamespace(gradients=1e9, densities=0)
        run = Mock(spec=Learnt, model=model, data=Mock(spec=Data, size=rows), cost=cost)
        few = view.affordable_on_few(run, TARGET, ROWS)
        assert (few and few.count) == wanted and (few is None or few.size == view.SIZES[0])


def test_what_stands_out_of_its_shell_by_its_quartiles():
    """In interquartile ranges above the shell's median: 1.5 above a median of 0 is more than 1.9 above one of 1."""
    size = climbs.SHELL
    half, widths = size // 2, np.repeat([1.0, 9.0], size)
    heights = np.repeat([0.0, 1.0, 0.0, 1.0], [half, half, half + 1, half - 1])  # so that both have the range 1
    heights[[size - 1, 2 * size - 1]] = 1.9, 1.5
    normals = np.random.default_rng(0).standard_normal((2 * size, 3), np.float32)
    x = widths[:, None] * normals
    radii = np.sum(x.astype(float) ** 2, 1)
    x, radii = x[np.argsort(radii)], np.sort(radii)
    target = Mock(
        spec=Target, at=lambda rows, z: heights[np.searchsorted(radii, np.sum(z**2, 1) - 1e-9)] - np.sum(z**2, 1) / 2
    )
    found = climbs._shell_outliers(target, ROWS, normals, np.zeros(3), np.eye(3), widths, 1)
    np.testing.assert_allclose(found, x[[2 * size - 1]], rtol=1e-6)


@pytest.mark.parametrize(("share", "flat"), [(1.5, True), (2.5, False)])
def test_a_mode_that_is_all_but_a_ridge_has_no_normal(share, flat):
    """The least eigenvalue of the scaled curvature is held against the largest, here 2."""
    away = share * climbs.FLAT
    curved = np.array([[1.0, 1 - away], [1 - away, 1.0]]) * np.outer([3.0, 0.1], [3.0, 0.1])
    assert (climbs._normal(np.zeros(2), 0.0, curved) is None) == flat


@pytest.mark.parametrize("moments", ["trust", "caution", "reject", None])
def test_heavy_tails_are_compared_by_quantiles(monkeypatch, moments):
    """The worse of both; light tails and points need no quantiles."""
    by = {word: shape.Compared(error, 0.0, "x", 0.0, 1.0) for word, error in {"trust": 0.5, "reject": 2.0}.items()}
    by["caution"] = by["trust"]._replace(doubtful=True)
    seen = []
    monkeypatch.setattr(shape, "compare_quantiles", lambda *args: seen.append(args) or by["caution"])
    compared = None if moments is None else by[moments]
    values, heavy = RNG.normal(size=(9, 1)), RNG.standard_t(1.2, (1, 2000, 1))
    for draws, point, heard in (
        (heavy, False, True),
        (RNG.normal(size=heavy.shape), False, moments is None),
        (heavy, True, False),
    ):
        run = Mock(spec=Learnt, values=draws, names=["x"], weights=None, is_point=point, count=2000)
        run.model, run.belief = SimpleNamespace(fixed=np.zeros(1, bool)), SimpleNamespace(chains=1)
        seen.clear()
        found = shape.compare_tails(run, compared, values, 50.0)
        assert len(seen) == heard and (not heard or (seen[0][0] is run and seen[0][1] is values and seen[0][3] == 50.0))
        wanted = ("reject" if moments == "reject" else "caution") if heard else moments
        assert (found and found.verdict) == wanted


@pytest.mark.parametrize("most", [1, 4, 100])
def test_inputs_are_those_of_rows_evenly_spaced(most):
    rows = Data(np.zeros(31), given=np.arange(31.0))
    wanted = {1: [0], 4: [0, 10, 20, 30], 100: list(range(31))}[most]
    assert predictions.inputs(rows, most).tolist() == wanted and predictions.inputs(Data(np.zeros(31))) is None


@pytest.mark.parametrize("size", [0.05, 0.1])
def test_moves_keep_the_energy(size):
    """Leapfrog's error on a normal is of the order ε² a trajectory: of short steps all are accepted, and draws stay."""
    x = RNG.normal(size=(500, 3))

    def look(x):
        return -np.sum(x**2, 1) / 2, -x

    positions, (last, value, slope), rate = moves._run_block(look, (x, *look(x)), size, 20, np.random.default_rng(0))
    assert rate > 1 - size**2 and positions.shape == (moves.BLOCK, 500, 3)
    np.testing.assert_array_equal(positions[-1], last)
    np.testing.assert_allclose(value, look(last)[0])
    np.testing.assert_allclose(slope, -last)
    assert np.all(np.abs(last.mean(0)) < 5.33 / np.sqrt(500)) and np.all(
        np.abs(last.var(0) - 1) < 5.33 * np.sqrt(2 / 500)
    )
