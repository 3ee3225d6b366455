"""Nested Laplace against exact answers: normal regression with its noise integrated out, logistic regression."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats

import tractable as tr
from tractable.cli import models as kinds
from tractable.core.errors import ModelError, RunError
from tractable.estimators import BayesianCountRegression, BayesianLinearRegression, BayesianLogisticRegression
from tractable.glm import inla
from tractable.glm.families import SphericalT
from tractable.glm.linear import generalised_linear, with_priors
from tractable.mcmc.hamiltonian_methods import NUTS
from tractable.networks.multi_output import several_linear
from tractable.tables.encoder import Encoder, fit_encoder

pytestmark = pytest.mark.laws

DRAWS = 4000


def table(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Standardised inputs, correlated, and their linear predictor."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) @ (np.eye(columns) + 0.5)
    x = (x - x.mean(0)) / x.std(0)
    return x, x @ rng.normal(size=columns)


X, ETA = table(12, 3)
Y = (ETA + np.random.default_rng(1).normal(size=12)) / 2


def exact(x: np.ndarray, y: np.ndarray, count: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of (intercept, weights, noise): conjugate given the noise, which a grid integrates."""
    rows = np.column_stack([np.ones(len(x)), x])
    prior = np.diag([1 / 5.0**2, *[1 / 2.5**2] * x.shape[1]])
    count = np.broadcast_to(count, len(x))
    logs, means, squares = [], [], []
    grid = np.exp(np.linspace(np.log(0.02), np.log(6), 4000))
    for noise in grid:
        precision = (rows * count[:, None]).T @ rows / noise**2 + prior
        covariance = np.linalg.inv(precision)
        mean = covariance @ (rows.T @ (count * y)) / noise**2
        quadratic = (np.sum(count * y**2) / noise**2 - mean @ precision @ mean) / 2
        logs.append(-count.sum() * np.log(noise) - quadratic - np.linalg.slogdet(precision)[1] / 2 - noise**2 / 2)
        means.append(np.append(mean, noise))
        squares.append(np.append(np.diag(covariance) + mean**2, noise**2))
    weight = np.exp(np.array(logs) - max(logs)) * grid  # of a grid even in log noise
    weight /= weight.sum()
    mean = weight @ np.array(means)
    return mean, np.sqrt(weight @ np.array(squares) - mean**2)


def fit(x: np.ndarray, y: np.ndarray, **how: object) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of (intercept, weights, noise) by INLA."""
    model = generalised_linear(x.shape[1], "normal")
    posterior = tr.infer(model, tr.Data(y, given=x, **how), tr.INLA(draws=DRAWS), verify=None)
    mean, sd = posterior.flat_moments
    order = [0, *range(2, 2 + x.shape[1]), 1]  # names are sorted: intercept, noise, weights
    assert posterior.names[0] == "intercept" and posterior.names[1] == "noise"
    return mean[order], sd[order]


def normal_law() -> None:
    """Draws are stratified, and their conditional moments exact: far better than a mean of 4,000 draws, 0.016 sd."""
    (mean, sd), (right, width) = fit(X, Y), exact(X, Y)
    np.testing.assert_allclose((mean - right) / width, 0, atol=0.03)
    np.testing.assert_allclose(sd / width, 1, atol=0.03)


@pytest.mark.test
def test_a_normal_regression_is_exact() -> None:
    normal_law()


@pytest.mark.parametrize("seed", range(3))
def test_many_rows_are_exact_to_a_hundredth(seed: int) -> None:
    x, eta = table(20_000, 6, seed)
    y = eta + 2 * np.random.default_rng(seed).normal(size=len(x))
    y = (y - y.mean()) / y.std()
    (mean, sd), (right, width) = fit(x, y), exact(x, y)
    np.testing.assert_allclose((mean - right)[:-1] / width[:-1], 0, atol=0.01)
    np.testing.assert_allclose(sd[:-1] / width[:-1], 1, atol=0.01)


@pytest.mark.test
@pytest.mark.parametrize("counts", [[1, 0, 1], [1, 1, 1]], ids=["", "the mode is where the climb begins"])
def test_rows_with_one_linear_predictor_are_no_parabola(counts: list[int]) -> None:
    """Rows alike have one curvature at every η, but their likelihood is as skewed as that of others: draws are weighed.

    η = a + w ~ N(0, 5² + 2.5²) given three counts, by a grid.
    """
    data = tr.Data(np.array(counts), given=np.ones((3, 1)))
    posterior = tr.infer(generalised_linear(1, "poisson"), data, tr.INLA(draws=DRAWS), verify=None)
    eta = np.linspace(-12, 5, 20_001)
    logs = sum(counts) * eta - 3 * np.exp(eta) - np.square(eta) / (2 * 31.25)
    weight = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    mean, sd = weight @ eta, np.sqrt(weight @ np.square(eta) - (weight @ eta) ** 2)
    drawn, share = posterior.values[0].sum(1), posterior.belief.weights[0]  # intercept and weight
    found = share @ drawn / share.sum()
    error = 4 * np.sqrt(np.square(share).sum()) / share.sum()
    assert abs(found - mean) < error * sd
    assert abs(eta[np.argmax(logs)] - mean) > 2 * error * sd  # the normal's mean would not do
    assert share @ np.square(drawn - found) / share.sum() == pytest.approx(sd**2, rel=3 * error)


def _without_determinant(patch: pytest.MonkeyPatch) -> None:
    right = inla.Place

    def wrong(u: float, beta: np.ndarray, root: np.ndarray, log_density: float, left: float) -> inla.Place:
        return right(u, beta, root, log_density - float(np.sum(np.log(np.diag(root)))), left)

    patch.setattr(inla, "Place", wrong)


def _without_prior(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inla.quadrature, "other_prior", lambda *_: jnp.zeros(()))


def _one_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inla, "FALL", 0.01)


@pytest.mark.parametrize("mutant", [_without_determinant, _without_prior, _one_place])
def test_mutants_die(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    normal_law()
    jax.clear_caches()
    mutant(monkeypatch)  # type: ignore[operator]
    with pytest.raises(AssertionError):
        normal_law()
    jax.clear_caches()


OTHER = np.column_stack([Y, 0.3 - ETA / 4 + np.random.default_rng(2).normal(size=12)])


def several_law() -> None:
    """Each of two targets is what it is by itself; their names do not lie in the order of y's columns."""
    model = several_linear(("second", "first"), X.shape[1])
    posterior = tr.infer(model, tr.Data(OTHER, given=X), tr.INLA(draws=DRAWS), verify=None, progress=False)
    mean, sd = posterior.mean(), posterior.sd()
    for k, name in enumerate(("second", "first")):
        right, width = exact(X, OTHER[:, k])
        told = [
            np.concatenate([[of[name]["intercept"]], of[name]["weights"], [of[name]["noise"]]]) for of in (mean, sd)
        ]
        np.testing.assert_allclose((told[0] - right) / width, 0, atol=0.03)
        np.testing.assert_allclose(told[1] / width, 1, atol=0.03)


def test_several_targets_are_exact_each() -> None:
    several_law()


def _in_columns_order(patch: pytest.MonkeyPatch) -> None:
    """θ of parts in the order of y's columns, where leaves of a dict lie by name."""

    def part(model: tr.Model, name: str) -> np.ndarray:
        names = list(model.parts or {})
        return names.index(name) * 5 + np.arange(5)

    patch.setattr(tr.Model, "part", part)


def _all_of_the_first(patch: pytest.MonkeyPatch) -> None:
    right = inla.Data
    patch.setattr(inla, "Data", lambda y, *rest, **how: right(OTHER[:, 0], *rest, **how))


@pytest.mark.parametrize("mutant", [_in_columns_order, _all_of_the_first])
def test_mutants_of_several_die(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)  # type: ignore[operator]
    with pytest.raises(AssertionError):
        several_law()


@functools.cache
def exact_pooled() -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of (intercept, weights, noise) where the weights share a scale; y is normal given it and the noise.

    w | s ~ N(0, s²),  s² ~ InverseGamma(1/2, c²/2),  c = 0.3/√D,  both on a grid.
    """
    n, size = X.shape
    rows = np.column_stack([np.ones(n), X])
    logs, means, squares = [], [], []
    noises, scales = np.exp(np.linspace(np.log(0.05), np.log(5), 120)), np.exp(np.linspace(-5, 5, 160))
    for noise in noises:
        for s in scales:
            prior = np.append(25.0, np.full(size, s**2))
            covariance = noise**2 * np.eye(n) + (rows * prior) @ rows.T
            gain = prior[:, None] * rows.T @ np.linalg.inv(covariance)
            mean = gain @ Y
            own = prior - np.einsum("dn,nd->d", gain, rows * prior)
            quadratic = Y @ np.linalg.solve(covariance, Y)
            inverse_gamma = stats.invgamma(0.5, scale=0.09 / (2 * size)).logpdf(s**2) + 2 * np.log(s)
            logs.append(
                -np.linalg.slogdet(covariance)[1] / 2 - quadratic / 2 - noise**2 / 2 + np.log(noise) + inverse_gamma
            )
            means.append(np.append(mean, noise))
            squares.append(np.append(own + mean**2, noise**2))
    weight = np.exp(np.array(logs) - max(logs))
    weight /= weight.sum()
    mean = weight @ np.array(means)
    return mean, np.sqrt(weight @ np.array(squares) - mean**2)


def pooled_law() -> None:
    """Two grids, of noise and scale: what draws of 4,000 say, 0.016 sd of a mean."""
    model = generalised_linear(X.shape[1], "normal", None, None)
    posterior = tr.infer(model, tr.Data(Y, given=X), tr.INLA(draws=DRAWS), verify=None, progress=False)
    mean, sd = (values[[0, 2, 3, 4, 1]] for values in posterior.flat_moments)
    right, width = exact_pooled()
    np.testing.assert_allclose((mean - right) / width, 0, atol=0.08)
    np.testing.assert_allclose(sd / width, 1, atol=0.06)


def test_weights_that_share_a_scale() -> None:
    pooled_law()


def _without_evidence(patch: pytest.MonkeyPatch) -> None:
    """Scales weighted by their prior alone."""
    patch.setattr(inla, "_evidence", lambda places: 0.0)


def _another_width(patch: pytest.MonkeyPatch) -> None:
    right = inla._with_normal_prior

    def wider(model: tr.Model) -> tuple:
        made, pool = right(model)
        return made, pool and pool._replace(scale=10 * pool.scale)

    patch.setattr(inla, "_with_normal_prior", wider)


def _one_scale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inla, "FALL_POOLED", 0.01)


@pytest.mark.parametrize("mutant", [_without_evidence, _another_width, _one_scale])
def test_mutants_of_pooling_die(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)  # type: ignore[operator]
    with pytest.raises((AssertionError, RunError)):
        pooled_law()


def test_weights_of_classes_and_counts_that_share_a_scale() -> None:
    """Against NUTS on the same model, whose weights have a Cauchy prior in three dimensions."""
    rng = np.random.default_rng(3)
    x, eta = table(40, 3)
    for family, y in (
        ("bernoulli", rng.random(40) < 1 / (1 + np.exp(-eta))),
        ("poisson", rng.poisson(np.exp(eta / 3))),
    ):
        model, data = generalised_linear(3, family, None, None), tr.Data(y.astype(int), given=x)
        one = tr.infer(model, data, tr.INLA(draws=DRAWS), verify=None, progress=False)
        other = tr.infer(model, data, tr.NUTS(draws=2000), verify=None, progress=False)
        (mean, sd), (right, width) = one.flat_moments, other.flat_moments
        assert one.found["khat"] < 0.7
        np.testing.assert_allclose((mean - right) / width, 0, atol=0.12)
        np.testing.assert_allclose(sd / width, 1, atol=0.12)


def test_a_scale_is_learnt_where_columns_have_few_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 10))
    y = x[:, 0] + rng.normal(size=48)
    few = BayesianLinearRegression(random_state=0, verify=None).fit(x, y)
    assert type(few.posterior_.model.prior["weights"]) is SphericalT
    more = BayesianLinearRegression(random_state=0, verify=None).fit(x, y, sample_weight=np.full(48, 2.0))
    fixed = BayesianLinearRegression(weight_scale=2.5, random_state=0, verify=None).fit(x, y)
    assert all(type(of.posterior_.model.prior["weights"]) is dist.Normal for of in (more, fixed))
    with pytest.raises(ModelError, match="weight_scale"):
        BayesianLinearRegression(weight_scale=0.0, random_state=0).fit(x, y)
    assert np.linalg.norm(few.coef_[1:]) < np.linalg.norm(fixed.coef_[1:])  # drawn towards 0


@pytest.mark.test
def test_a_table_of_many_columns_says_so_to_its_model() -> None:
    """The encoder keeps how many rows there were, so that a saved run's model is made again as it was."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(49, 10)), columns=[*"abcdefghij"]).assign(y=rng.normal(size=49))
    for rows, kind in ((frame, SphericalT), (pd.concat([frame, frame[:1]]), dist.Normal)):
        again = Encoder.from_dict(json.loads(json.dumps(fit_encoder(rows, "y").to_dict())))
        assert type(kinds.model_of(again, {}).prior["weights"]) is kind


@pytest.mark.test
def test_weights_count_rows() -> None:
    count = np.array([1, 2, 0, 3, 1, 1, 2, 1, 0, 1, 1, 2])
    (mean, sd), (right, width) = fit(X, Y, weights=count.astype(float)), exact(X, Y, count)
    np.testing.assert_allclose((mean - right) / width, 0, atol=0.03)
    np.testing.assert_allclose(sd / width, 1, atol=0.03)


@pytest.mark.test
def test_logistic_draws_are_weighed() -> None:
    """With one of twelve in its class the posterior is skewed: the weights mend a mean that is a fifth of an sd off."""
    x, y = X[:, :1], (np.arange(12) == 3).astype(int)
    model = generalised_linear(1, "bernoulli")
    posterior = tr.infer(model, tr.Data(y, given=x), tr.INLA(), verify=None)
    a, w = np.meshgrid(np.linspace(-12, 12, 400), np.linspace(-12, 12, 400), indexing="ij")
    eta = a[..., None] + w[..., None] * x[:, 0]
    log_p = np.sum(-np.logaddexp(0, (1 - 2 * y) * eta), -1) + stats.norm(0, 5).logpdf(a) + stats.norm(0, 2.5).logpdf(w)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    right = np.array([np.sum(p * a), np.sum(p * w)])
    width = np.sqrt([np.sum(p * (a - right[0]) ** 2), np.sum(p * (w - right[1]) ** 2)])
    mean, sd = posterior.flat_moments
    np.testing.assert_allclose((mean - right) / width, 0, atol=0.1)
    np.testing.assert_allclose(sd / width, 1, atol=0.1)
    flat = posterior.values.reshape(-1, 2)
    assert np.abs((flat.mean(0) - right) / width).max() > 0.1  # unweighed


@pytest.mark.parametrize("spread", [False, True], ids=["poisson", "more spread"])
def test_counts_are_trusted_by_default(spread: bool) -> None:
    """A t drawn from in place of normals that were right had weights worth 2,800 of 4,000 draws, and k-hats to 0.98.

    The looks at its draws took their weights for equal: seven of twelve such tables were not trusted, all right.
    """
    for seed in range(3):
        rng = np.random.default_rng(100 + 2 * seed + spread)
        x = rng.normal(size=(300, 6))
        rate = np.exp(x @ [0.4, -0.25, 0.0, 0.15, 0.1, 0.0]) * (rng.gamma(1.5, 1 / 1.5, 300) if spread else 1.0)
        found = BayesianCountRegression(random_state=2 * seed + spread).fit(x, rng.poisson(rate))
        assert found.report_.verdict == "trust", found.report_
        if spread:
            weights = found.posterior_.weights
            assert weights.sum() ** 2 / np.sum(weights**2) > 3500


@pytest.mark.test
def test_what_it_cannot_learn_is_said() -> None:
    coin = tr.Model({"p": dist.Beta(1.0, 1.0)}, lambda params: dist.Bernoulli(params["p"]))
    laplace = with_priors(generalised_linear(3, "bernoulli"), {"weights": dist.Laplace(0.0, 1.0)})
    for model, data in (
        (coin, tr.Data(np.array([0, 1]))),
        (laplace, tr.Data((ETA > 0).astype(int), given=X)),
    ):
        with pytest.raises(ModelError, match="INLA expects a likelihood that goes Through a linear predictor"):
            tr.infer(model, data, tr.INLA())


def test_estimators_are_exact_by_default() -> None:
    """One-hot columns beside numbers, the case in which a climbed q had a fifth of the right sd."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(3000, 3)), np.eye(6)[rng.integers(0, 6, 3000)]])
    y = x @ rng.normal(size=9) * 10 + 50 * rng.normal(size=3000)
    found = BayesianLinearRegression(random_state=0).fit(x, y)
    scaled = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    mean, sd = exact(*scaled)
    np.testing.assert_allclose(found.coef_std_ / (sd[1:-1] * y.std() / x.std(0)), 1, atol=0.02)
    np.testing.assert_allclose((found.coef_ * x.std(0) / y.std() - mean[1:-1]) / sd[1:-1], 0, atol=0.03)
    assert found.report_.verdict == "trust"


def test_weights_that_leave_fewer_draws_than_parameters() -> None:
    """Sixty columns that separate five classes: the t is then fitted to all draws, since few weigh anything."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 60)), np.arange(60) % 5
    model = generalised_linear(60, "categorical", 5)
    found = tr.infer(model, tr.Data(y, given=x), tr.INLA(instead=None), verify=None, progress=False)
    assert np.all(np.isfinite(found.unconstrained)) and found.found["khat"] > 1


def test_more_columns_than_rows() -> None:
    """Directions that the rows say nothing about keep the prior's sd."""
    rng = np.random.default_rng(0)
    found = BayesianLinearRegression(2.5, random_state=0, verify=None)
    found.fit(rng.normal(size=(20, 200)), rng.normal(size=20))
    assert np.all(np.isfinite(found.coef_)) and np.all(found.coef_std_ > 0)


THREE = np.array([0, 2, 1, 0, 0, 2, 1, 2, 0, 1, 2, 2])


def test_ordered_grades_are_climbed_together() -> None:
    """Against a grid over both cutpoints and the weight of twelve rows, whose posterior is no normal one."""
    model = generalised_linear(1, "ordered", 3)
    x = X[:, :1]
    posterior = tr.infer(model, tr.Data(THREE, given=x), tr.INLA(), verify=None)
    first, step, w = np.meshgrid(
        np.linspace(-8, 6, 120), np.linspace(-6, 3.5, 120), np.linspace(-9, 9, 120), indexing="ij"
    )
    cuts = [first, first + np.exp(step)]
    # A normal before the ordering: its log-determinant is the step, log(c₂ − c₁).
    log_p = stats.norm(-np.log(2), 2.5).logpdf(first) + stats.norm(0, 1).logpdf(step) + stats.norm(0, 2.5).logpdf(w)
    for k in range(3):
        above, below = (1 / (1 + np.exp(w[..., None] * x[k == THREE, 0] - c[..., None])) for c in cuts)
        shares = (above, below - above, 1 - below)[k]
        log_p = log_p + np.log(np.maximum(shares, 1e-300)).sum(-1)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    values = np.stack([cuts[0], cuts[1], w])
    right = np.sum(p * values, (1, 2, 3))
    width = np.sqrt(np.sum(p * values**2, (1, 2, 3)) - right**2)
    mean, sd = posterior.flat_moments
    assert posterior.names == ["cutpoints[0]", "cutpoints[1]", "weights[0]"]
    np.testing.assert_allclose((mean - right) / width, 0, atol=0.1)
    np.testing.assert_allclose(sd / width, 1, atol=0.1)
    told = posterior.predict(x)
    np.testing.assert_allclose(told.probabilities.sum(1), 1, rtol=1e-5)
    assert told.probabilities.shape == (12, 3) and np.all(np.isfinite(told.epistemic))


def test_a_step_too_far_is_halved() -> None:
    """Ten grades, few rows in the outer ones: a full Newton step takes cutpoints where the curvature is no number."""
    rng = np.random.default_rng(50)
    x = rng.normal(size=300).round(3)
    grades = np.round(1 + x + rng.normal(size=300)).astype(int)
    assert np.bincount(grades - grades.min()).min() == 1
    with jax.enable_x64(False):
        model = generalised_linear(1, "ordered", int(np.ptp(grades)) + 1)
        data = tr.Data((grades - grades.min()).astype(np.int32), given=x[:, None].astype(np.float32))
        posterior = tr.infer(model, data, tr.INLA(), verify=None)
    assert posterior.report().verdict != "reject" and np.all(np.isfinite(posterior.flat_moments))


def test_several_classes_are_climbed_together() -> None:
    """Against draws of a wide t about the maximum, weighed by the density written out."""
    model, rows = generalised_linear(1, "categorical", 3), 40
    x, y = np.tile(X[:, :1], (4, 1))[:rows], np.tile(THREE, 4)[:rows]
    posterior = tr.infer(model, tr.Data(y, given=x), tr.INLA(), verify=None)
    rng = np.random.default_rng(0)
    middle = rng.standard_t(4, (200_000, 4)) * [0.8, 0.8, 0.9, 0.9]
    proposed = stats.t(4).logpdf(middle / [0.8, 0.8, 0.9, 0.9]).sum(1)
    # Three numbers of sum 0: coordinates in an orthonormal basis of their plane are independent normals.
    basis = np.linalg.qr(np.array([[1.0, 1, 1], [1, -1, 0], [1, 1, -2]]).T)[0][:, 1:]
    a, w = middle[:, :2] @ basis.T, middle[:, 2:] @ basis.T
    eta = a[:, None] + w[:, None] * x[None]
    log_p = np.take_along_axis(eta, y[None, :, None], 2)[..., 0].sum(1) - np.logaddexp.reduce(eta, 2).sum(1)
    log_p += stats.norm(0, 5).logpdf(middle[:, :2]).sum(1) + stats.norm(0, 2.5).logpdf(middle[:, 2:]).sum(1)
    p = np.exp(log_p - proposed - (log_p - proposed).max())
    p /= p.sum()
    assert 1 / np.sum(p**2) > 3_000
    values = np.concatenate([a, w], 1)
    right = p @ values
    width = np.sqrt(p @ values**2 - right**2)
    mean, sd = posterior.flat_moments
    np.testing.assert_allclose((mean - right) / width, 0, atol=0.1)
    np.testing.assert_allclose(sd / width, 1, atol=0.07)


@pytest.mark.parametrize("cuts", [[0.0], [-0.5, 0.5]], ids=["two", "three"])
def test_classes_are_learnt_by_nested_laplace(cuts: list[float]) -> None:
    found = BayesianLogisticRegression(random_state=0, verify=None).fit(X, np.digitize(ETA, cuts))
    assert isinstance(found.posterior_.method, tr.INLA)


class Killed(Exception):
    """Stands for kill -9: nothing after it is run."""


def test_a_rejected_result_is_learnt_by_nuts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Separable classes, their weights skewed: a normal that nothing corrects is rejected, and NUTS takes its place.

    Killed while NUTS draws, the run goes on to the same bits.
    """
    x = np.linspace(-1.5, 1.5, 8)[:, None]
    y = (x[:, 0] > 0).astype(int)
    grid = np.linspace(-25, 25, 1201)
    a, w = np.meshgrid(grid, grid, indexing="ij")
    eta = a[..., None] + w[..., None] * x[:, 0]
    log_p = np.sum(y * eta - np.logaddexp(0, eta), -1) - (a / 5) ** 2 / 2 - (w / 2.5) ** 2 / 2
    p = np.exp(log_p - log_p.max())
    mean = np.array([np.sum(p * a), np.sum(p * w)]) / p.sum()
    sd = np.sqrt(np.array([np.sum(p * (a - mean[0]) ** 2), np.sum(p * (w - mean[1]) ** 2)]) / p.sum())
    monkeypatch.setattr(inla, "WEIGHED", 0.0)  # in two numbers importance weights would put the normal right
    model, data = generalised_linear(1, "bernoulli"), tr.Data(y, given=x)

    kept = tr.infer(model, data, tr.INLA(instead=None))
    assert isinstance(kept.method, tr.INLA) and kept.report().verdict == "reject"
    assert not any("instead" in check.name or "first" in check.name for check in kept.report().checks)
    assert np.max(np.abs(kept.flat_moments[0] - mean) / sd) > 0.2
    with monkeypatch.context() as patch:
        patch.setattr(inla, "ALLOWED", 0.0)
        _, check = tr.INLA().otherwise(kept) or pytest.fail("nothing is said of NUTS")
        assert check.verdict == "reject" and "--method nuts --set dense=true" in check.sentence

    monkeypatch.setattr(inla, "NUTS", lambda dense: NUTS(dense=dense, warmup=500, draws=1000))
    posterior = tr.infer(model, data, tr.INLA())
    report = posterior.report()
    assert isinstance(posterior.method, NUTS) and report.verdict == "trust"
    first = next(check for check in report.checks if check.name == "INLA first")
    assert "means and sds" in first.sentence and first.verdict == "trust"
    own = posterior.method.cost(posterior.belief, posterior.found, data).gradients
    assert posterior.cost.gradients == own + kept.cost.gradients
    seen = posterior.diagnosed
    assert np.all(np.abs(posterior.flat_moments[0] - mean) < 5.33 * seen.mcse_mean)
    assert np.all(np.abs(posterior.flat_moments[1] - sd) < 5.33 * seen.mcse_sd)

    def killed(phase: str, done: int, of: int) -> None:
        if phase == "drawing" and 100 < done < of:
            raise Killed

    with pytest.raises(Killed):
        tr.infer(model, data, tr.INLA(), checkpoint=tmp_path, progress=killed)
    phases: set[str] = set()
    again = tr.infer(model, data, tr.INLA(), checkpoint=tmp_path, progress=lambda *now: phases.add(now[0]))
    np.testing.assert_array_equal(again.unconstrained, posterior.unconstrained)
    assert "drawing" in phases and "warm-up" not in phases
    np.testing.assert_array_equal(tr.load(tmp_path, model, data).unconstrained, posterior.unconstrained)
