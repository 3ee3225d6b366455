"""EM as a method: where it ends, what it says of that, and what it refuses."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact import probabilistic_pca_maximum
from montecarlo import assert_holds, error
from sklearn.datasets import load_iris

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.latent import factors, linear_mixture, mixture
from tractable.latent.em_climb import remaining_gain
from tractable.latent.em_method import _gain_to_come
from tractable.models import bernoulli_mixture, factor_analysis, gaussian_mixture

pytestmark = pytest.mark.laws

IRIS = np.asarray(load_iris().data)
X = np.array([3.1, 4.4, 8.3, 7.7, 5.9, 9.0, 4.0, 6.6, 3.5, 8.8, 4.9, 7.1])


def cook(**steps: Any) -> tr.LatentModel:
    """Two moods; sd known, so that both halves have a closed form."""
    prior = {"good": dist.Beta(2.0, 2.0), "mean": dist.Normal(jnp.array([4.0, 7.0]), 2.0).to_event(1)}
    return tr.LatentModel(
        prior, lambda p: dist.Bernoulli(p["good"]), lambda p, z: dist.Normal(p["mean"][z], 1.0), **steps
    )


def m_step(sums: Any) -> Any:
    count, total = sums
    return {
        "good": (count[1] + 1) / (jnp.sum(count) + 2),
        "mean": (total + jnp.array([4.0, 7.0]) / 4) / (count + 0.25),
    }


def statistics(x: Any, z: Any) -> Any:
    mood = jnp.stack([1 - z, z]).astype(float)
    return mood, mood * x


BY_GRADIENT, CLOSED = cook(), cook(statistics=statistics, m_step=m_step)


def ends(posterior: tr.Posterior, name: str) -> np.ndarray:
    return np.sort(np.ravel(posterior.mean()[name]))


@pytest.fixture(scope="module")
def fitted() -> tr.Posterior:
    return tr.infer(CLOSED, tr.Data(X), tr.EM(tolerance=1e-12), seed=1)


def test_it_ends_at_the_mode(fitted):
    mode = tr.infer(CLOSED, tr.Data(X), tr.MAP(starts=4), seed=0, verify=None)  # whatever its standard errors are
    by_gradient = tr.infer(BY_GRADIENT, tr.Data(X), tr.EM(tolerance=1e-12), seed=1)
    scores = {}
    for name in ("good", "mean"):
        scores |= {
            name: error(ends(fitted, name), ends(mode, name), 1e-5),
            f"{name} by gradient": error(ends(by_gradient, name), ends(mode, name), 1e-5),
        }
    scores["objective"] = error(fitted.found["objective"], mode.found["objective"], 1e-8)
    scores["errors"] = error(np.sort(fitted.sd()["mean"]), np.sort(mode.sd()["mean"]), 1e-4)
    assert_holds(scores)


def test_the_likelihood_alone():
    flat = tr.infer(BY_GRADIENT, tr.Data(X), tr.EM(prior=False, tolerance=1e-12), seed=1)
    likeliest = tr.infer(BY_GRADIENT, tr.Data(X), tr.MLE(starts=4))
    assert_holds({"maximum": error(flat.found["objective"], likeliest.found["objective"], 1e-8)})
    # A closed-form M-step of the posterior does not climb the likelihood, and the report says so.
    wrong = tr.infer(CLOSED, tr.Data(X), tr.EM(prior=False, steps=40), seed=1)
    assert wrong.found["fall"] > 1e-6
    assert {c.name: c.verdict for c in wrong.report().checks}["largest fall"] == "caution"


def test_the_report_says_how_far_it_came(fitted):
    report = fitted.report()
    assert report.verdict == "trust"
    short = tr.infer(CLOSED, tr.Data(X), tr.EM(steps=2, starts=1), seed=1)
    checks = {c.name: c for c in short.report().checks}
    assert checks["gain to come"].verdict == "caution"
    assert short.found["steps"] == 2


@pytest.mark.test
def test_gains_are_extrapolated():
    """Of a geometric climb the rest is known exactly."""
    gains = 3.0 * 0.8 ** np.arange(10)
    assert_holds({"rest": error(_gain_to_come(gains, -100.0, 60), gains[-1] * 0.8 / 0.2, 1e-10)})
    to_come, done = remaining_gain(jnp.array(gains[-1]), jnp.array(gains[-2]), jnp.array(-100.0), 1e-6)
    assert_holds({"rest": error(to_come, gains[-1] * 4, 1e-10)})
    assert not done
    assert remaining_gain(jnp.array(1e-9), jnp.array(2e-9), jnp.array(-100.0), 1e-6)[1]
    # Rows whose nats cancel are rounded all the same; and after a fall, more is.
    digit = float(np.finfo(np.float64).eps) * 300
    cases = ((7 * digit, 8 * digit, True), (20 * digit, 30 * digit, False), (60 * digit, -digit, True))
    for gain, before, little in cases:
        assert remaining_gain(jnp.array(gain), jnp.array(before), jnp.array(-0.2), 0.0, 300)[1] == little
        assert (_gain_to_come(np.array([before, gain]), -0.2, 300) == 0) == little
        assert not remaining_gain(jnp.array(gain), jnp.array(before), jnp.array(-0.2), 0.0)[1]
    # A gain that grows is no end, however small: EM leaves a saddle slowly.
    assert not remaining_gain(jnp.array(2e-6), jnp.array(1e-6), jnp.array(-100.0), 1e-6)[1]


def test_starts_that_agree():
    posterior = tr.infer(gaussian_mixture(3, 4), tr.Data(IRIS), tr.EM(starts=6), seed=0)
    found = posterior.found
    assert 1 <= found["starts that agree"] <= 6
    trace = posterior.info["objective"]
    assert trace.shape[0] == 6
    for row in trace:
        assert np.all(np.diff(row[np.isfinite(row)]) > -1e-4)  # the floor is not a maximum of anything
    assert np.nanmax(trace) <= found["objective"] + 1e-4


def test_where_the_rows_lie_changes_nothing():
    """Far from the origin, in single precision: EM looks at rows about their mean."""
    far = 1e4
    near_by, away = (
        tr.infer(gaussian_mixture(2, 4), tr.Data((IRIS + shift).astype(np.float32)), tr.EM(starts=2), seed=0)
        for shift in (0.0, far)
    )
    assert_holds(
        {
            "objective": error(near_by.found["objective"], away.found["objective"], 2.0),
            "weights": error(near_by.mean().weights, away.mean().weights, 2e-2),
            "means": error(near_by.mean().means + far, away.mean().means, 2e-2),
        }
    )


def test_rows_on_file(tmp_path):
    np.save(tmp_path / "x.npy", IRIS)
    method = tr.EM(starts=2, steps=6, tolerance=1e-12, chunk=64)
    model = gaussian_mixture(2, 4, floor=1e-3)
    there = tr.infer(model, tr.Data(tmp_path / "x.npy", resident=False), method, seed=0)
    # Centring moves single digits only; the starts are of the same rows.
    here = tr.infer(model.with_steps(shift=None), tr.Data(IRIS), method, seed=0)
    assert_holds({"objective": error(there.found["objective"], here.found["objective"], 1e-6)})
    with pytest.raises(DataError, match="needs all rows in memory"):
        np.save(tmp_path / "y.npy", X)
        tr.infer(BY_GRADIENT, tr.Data(tmp_path / "y.npy", resident=False), method)


def test_collapsed_components_begin_again():
    x = np.concatenate([np.random.default_rng(0).normal(size=(60, 2)), np.full((2, 2), 30.0)])
    posterior = tr.infer(gaussian_mixture(2, 2), tr.Data(x), tr.EM(), seed=0)
    names = {c.name: c.verdict for c in posterior.report().checks}
    # Two equal rows far off draw a component onto them from every start: it is noticed, not praised.
    assert posterior.found["degenerate starts"] == 4
    assert names["components at the floor"] == "reject"
    assert posterior.report().verdict == "reject"


def test_a_sound_start_is_preferred():
    """The collapsed maximum is higher; a start that found the other one is what comes back."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(-3, 1, (80, 2)), rng.normal(3, 1, (80, 2)), np.full((2, 2), 9.0)])
    posterior = tr.infer(gaussian_mixture(2, 2), tr.Data(x), tr.EM(starts=8), seed=3)
    if posterior.found["degenerate starts"] < 8:
        assert posterior.mean().weights.min() > 0.3


def test_missing_numbers():
    x = IRIS.copy()
    x[np.random.default_rng(1).random(x.shape) < 0.05] = np.nan
    with pytest.raises(DataError, match="not finite"):
        tr.Data(x)
    kept = tr.Data(x, missing="keep")
    found = tr.infer(mixture.with_missing(3, 4), kept, tr.EM(starts=2), seed=0)
    whole = tr.infer(gaussian_mixture(3, 4), tr.Data(IRIS), tr.EM(starts=2), seed=0)
    weights = [np.sort(p.mean().weights) for p in (found, whole)]
    assert np.abs(weights[0] - weights[1]).max() < 0.05
    with pytest.raises(DataError, match=r"with_missing"):
        tr.infer(gaussian_mixture(3, 4), kept, tr.EM(starts=2))
    with pytest.raises(DataError, match="not finite"):
        tr.Data(np.where(np.isnan(x), np.inf, x), missing="keep")


def test_other_models():
    data = (IRIS.mean(0) < IRIS).astype(float)
    coins = tr.infer(bernoulli_mixture(2, 4), tr.Data(data), tr.EM(starts=3), seed=0)
    assert coins.found["fall"] < 1e-9  # its prior belongs to what is climbed
    assert coins.report().verdict == "trust"
    ours = tr.infer(factor_analysis(4, 1), tr.Data(IRIS), tr.EM(starts=2, tolerance=1e-9), seed=0)
    assert ours.found["starts that agree"] == 2
    closed = probabilistic_pca_maximum(IRIS, 2)
    ppca = tr.infer(factors.probabilistic_pca(4, 2), tr.Data(IRIS), tr.EM(starts=1, tolerance=1e-10), seed=0)
    assert_holds({"noise": error(ppca.mean().noise, closed.noise, 1e-4)})


@pytest.mark.parametrize("kind", ["diagonal", "tied"])
def test_components_come_by_weight(kind):
    """Of K! equal maxima one is told. A tied covariance has a diagonal one's shape here, and stays."""
    model = gaussian_mixture(3, 3, kind)
    own = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    spread = own if kind == "diagonal" else own @ own.T + jnp.eye(3)
    theta = mixture.Gaussians(jnp.array([0.2, 0.3, 0.5]), 10 * own, spread)
    other = model.symmetry.canonical(theta)
    x = np.random.default_rng(1).normal(40, 30, (20, 3))
    assert_holds(
        {
            "density": error(model.log_prob(other, x), model.log_prob(theta, x), 1e-10),
            "weights": error(other.weights, [0.5, 0.3, 0.2], 1e-15),
        }
    )
    wrong = linear_mixture.by_weight(theta, tied=kind != "tied")
    assert not np.allclose(model.log_prob(wrong, x), model.log_prob(theta, x))
    fitted = tr.infer(gaussian_mixture(3, 4, kind), tr.Data(IRIS), tr.EM(starts=2, errors=False), seed=0)
    assert np.all(np.diff(fitted.mean().weights) <= 0)
    assert "covariance" not in fitted.found


def test_it_is_saved_and_loaded(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    back = tr.load(tmp_path / "run", CLOSED, tr.Data(X))
    assert back.method == fitted.method
    assert back.report().verdict == fitted.report().verdict
    assert back.is_point
    assert np.array_equal(back.mean()["mean"], fitted.mean()["mean"])


def test_equal_seeds_give_equal_results(fitted):
    again = tr.infer(CLOSED, tr.Data(X), tr.EM(tolerance=1e-12), seed=1)
    assert np.array_equal(again.point, fitted.point)


def test_several_chunks_are_one():
    one, many = (
        tr.infer(gaussian_mixture(2, 4), tr.Data(IRIS), tr.EM(starts=2, chunk=chunk, steps=5), seed=0)
        for chunk in (1 << 14, 37)
    )
    assert_holds({"means": error(one.mean().means, many.mean().means, 1e-9)})


@pytest.mark.quick
@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("starts", 0, "a whole number ≥ 1"),
        ("steps", -1, "a whole number ≥ 1"),
        ("inner", 0, "a whole number ≥ 1"),
        ("tolerance", -1.0, "a positive finite number"),
    ],
)
def test_settings_out_of_range(field, value, sentence):
    with pytest.raises(SettingsError, match=sentence):
        dataclasses.replace(tr.EM(), **{field: value})


@pytest.mark.test
def test_models_without_a_z():
    plain = tr.Model({"theta": dist.Beta(1, 1)}, lambda p: dist.Bernoulli(p["theta"]))
    with pytest.raises(ModelError, match="learns a LatentModel"):
        tr.infer(plain, tr.Data([1, 0, 1]), tr.EM())


@pytest.mark.test
@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (IRIS[:2], "needs at least as many rows; got 2"),
        (IRIS[:, :3], r"shape \(n, 4\)|shape \(4,\)"),
        (np.zeros((0, 4)), "no rows"),
    ],
)
def test_rows_that_do_not_do(rows, sentence):
    with pytest.raises((DataError, ModelError), match=sentence):
        tr.infer(gaussian_mixture(3, 4), tr.Data(rows), tr.EM())


def test_constant_columns_and_equal_rows():
    x = np.column_stack([IRIS[:, 0], np.full(150, 2.0)])
    posterior = tr.infer(gaussian_mixture(2, 2), tr.Data(x), tr.EM(starts=2), seed=0)
    checks = {c.name: c for c in posterior.report().checks}
    assert checks["components at the floor"].verdict == "caution"  # only the floor keeps their variances from 0
    same = tr.infer(gaussian_mixture(2, 2), tr.Data(np.full((20, 2), 3.0)), tr.EM(starts=2), seed=0)
    assert np.isfinite(same.found["objective"])
    assert same.report().verdict != "trust"
