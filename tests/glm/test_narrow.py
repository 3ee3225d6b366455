"""More columns than rows: the weights in the rows' span, and what is left of the prior, against exact answers."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import tractable as tr
from tractable.core.model import Model, Through
from tractable.estimators import BayesianLogisticRegression
from tractable.glm import inla, narrow
from tractable.glm.families import SphericalT
from tractable.glm.linear import generalised_linear, weight_scale_for, with_priors
from tractable.networks.multi_output import several_linear

pytestmark = pytest.mark.laws

ROWS, COLUMNS, DRAWS = 10, 25, 4000
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, COLUMNS)) @ (np.eye(COLUMNS) + 0.3)
Y = X[:, 0] + RNG.normal(size=ROWS)
Y = (Y - Y.mean()) / Y.std()
PLACE, SCALE = np.linspace(-0.5, 0.5, COLUMNS), np.linspace(0.2, 1.0, COLUMNS)
# The intercept, every weight, and η at three new rows, which looks at all covariances of the weights.
SEEN = np.concatenate([np.eye(COLUMNS + 1), RNG.normal(size=(3, COLUMNS + 1))])


@functools.cache
def exact(pooled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of SEEN of (intercept, weights), by a grid over the noise and, if pooled, over the scale's factor.

    w ~ N(PLACE, SCALE²), or pooled w | s ~ N(0, s² 0.09/D), log s on a grid with s² ~ InverseGamma(½, ½).
    """
    place, scale = (np.zeros(COLUMNS), np.full(COLUMNS, 0.3 / np.sqrt(COLUMNS))) if pooled else (PLACE, SCALE)
    rows = np.column_stack([np.ones(ROWS), X])
    logs, means, squares = [], [], []
    for noise in np.exp(np.linspace(np.log(0.02), np.log(5), 120)):
        for s in np.exp(np.linspace(-5, 6, 160)) if pooled else [1.0]:
            prior = np.append(25.0, np.square(s * scale))
            covariance = noise**2 * np.eye(ROWS) + (rows * prior) @ rows.T
            gain = prior[:, None] * rows.T @ np.linalg.inv(covariance)
            away = Y - X @ place
            mean = np.append(0.0, place) + gain @ away
            left = np.diag(prior) - gain @ (rows * prior)
            log = -np.linalg.slogdet(covariance)[1] / 2 - away @ np.linalg.solve(covariance, away) / 2
            log += -(noise**2) / 2 + np.log(noise)
            logs.append(log + (stats.invgamma.logpdf(s**2, 0.5, scale=0.5) + 2 * np.log(s) if pooled else 0.0))
            means.append(SEEN @ mean)
            squares.append(np.einsum("kd,de,ke->k", SEEN, left, SEEN) + means[-1] ** 2)
    weight = np.exp(np.array(logs) - max(logs))
    weight /= weight.sum()
    mean = weight @ np.array(means)
    return mean, np.sqrt(weight @ np.array(squares) - mean**2)


def seen(posterior: Any) -> tuple[np.ndarray, np.ndarray]:
    draws = posterior.draws
    flat = np.column_stack([np.ravel(draws["intercept"]), draws["weights"].reshape(-1, COLUMNS)]) @ SEEN.T
    return flat.mean(0), flat.std(0)


def law(pooled: bool) -> None:
    """Draws are 4,000 and independent: 0.016 sd of a mean, 0.011 of an sd, more where tails are a t's."""
    model = generalised_linear(COLUMNS, "normal", None, None)
    if not pooled:
        model = with_priors(generalised_linear(COLUMNS, "normal"), {"weights": dist.Normal(PLACE, SCALE)})
    data = tr.Data(Y, given=X)
    assert narrow.narrow_model(model, data) is not None
    posterior = tr.infer(model, data, tr.INLA(draws=DRAWS), verify=None, progress=False)
    (mean, sd), (right, width) = seen(posterior), exact(pooled)
    np.testing.assert_allclose((mean - right) / width, 0, atol=0.09)
    np.testing.assert_allclose(sd / width, 1, atol=0.09 if pooled else 0.06)


@pytest.mark.parametrize("pooled", [False, True])
def test_weights_are_those_of_the_whole_table(pooled: bool) -> None:
    law(pooled)


Widened = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def _widened(patch: pytest.MonkeyPatch, change: Callable[[narrow.Narrow, Widened], Widened]) -> None:
    right = narrow.narrow_model

    def wrong(*args: Any) -> narrow.Narrow | None:
        found = right(*args)
        return found and found._replace(widened=change(found, found.widened))

    patch.setattr(inla, "narrow_model", wrong)


class _Still(np.random.Generator):
    """Noise that is always 0."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def standard_normal(self, *args: Any, **kwargs: Any) -> Any:
        return 0.0 * super().standard_normal(*args, **kwargs)


def _nothing_left(patch: pytest.MonkeyPatch) -> None:
    """Without what the rows do not see."""
    _widened(patch, lambda _, widened: lambda rng, positions: widened(_Still(), positions))


def _not_orthogonal(patch: pytest.MonkeyPatch) -> None:
    """What is left of the prior is added in the rows' span too."""
    right = np.einsum
    patch.setattr(
        narrow.np, "einsum", lambda how, *a, **k: (0.0 if how == "dr,sd...->sr..." else 1.0) * right(how, *a, **k)
    )


def _another_scale(patch: pytest.MonkeyPatch) -> None:
    right = narrow._place
    patch.setattr(narrow, "_place", lambda prior: (right(prior)[0], 1.5 * np.asarray(right(prior)[1])))


def _as_a_priori(patch: pytest.MonkeyPatch) -> None:
    """What is left of a t as if nothing were known of its scale."""

    class Wrong(_Still):
        def standard_normal(self, *args: Any, **kwargs: Any) -> Any:
            return np.random.Generator.standard_normal(self, *args, **kwargs)

        def chisquare(self, df: float, size: Any = None) -> Any:
            return super().chisquare(1.0, size)

    _widened(patch, lambda _, widened: lambda rng, positions: widened(Wrong(), positions))


@pytest.mark.parametrize(
    ("mutant", "pooled"),
    [(_nothing_left, False), (_not_orthogonal, False), (_another_scale, False), (_another_scale, True),
     (_as_a_priori, True), (_nothing_left, True)],
)  # fmt: skip
def test_mutants_die(mutant: Callable, pooled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        law(pooled)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "categorical", "pooled"])
def test_the_narrow_model_is_the_whole_one(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside nested Laplace in all columns; the same approximation, so that only draws differ."""
    classes = 3 if family == "categorical" else None
    scale = None if family == "pooled" else 0.3
    model = generalised_linear(COLUMNS, "bernoulli" if family == "pooled" else family, classes, scale)
    data = tr.Data(np.arange(ROWS) % (classes or 2), given=X)

    def fitted() -> tuple[np.ndarray, np.ndarray, float]:
        """Means and sds of the angles of all numbers, which exist whatever the tails; and 1 / effective draws."""
        found = tr.infer(model, data, tr.INLA(draws=4 * DRAWS, instead=None), verify=None, progress=False)
        values = np.arctan(np.asarray(found.unconstrained)[0] / 0.3)
        weights = np.ones(len(values)) if found.weights is None else found.weights[0]
        weights = weights / weights.sum()
        mean = weights @ values
        return mean, np.sqrt(weights @ np.square(values - mean)), float(np.sum(weights**2))

    mean, sd, share = fitted()
    monkeypatch.setattr(inla, "narrow_model", lambda *_: None)
    right, width, of_right = fitted()
    error = np.sqrt(share + of_right)
    np.testing.assert_allclose((mean - right) / width / error, 0, atol=5)
    np.testing.assert_allclose((sd / width - 1) / error, 0, atol=5)


@pytest.mark.test
def test_several_targets_are_narrow_each() -> None:
    model = several_linear(["a", "b"], COLUMNS, "normal", 0.4, 5.0)
    posterior = tr.infer(
        model, tr.Data(np.column_stack([Y, -Y]), given=X), tr.INLA(draws=DRAWS), verify=None, progress=False
    )
    mean, sd = posterior.mean(), posterior.sd()
    np.testing.assert_allclose(mean["a"]["weights"], -mean["b"]["weights"], atol=0.09 * 0.4)
    np.testing.assert_allclose(sd["a"]["weights"] / sd["b"]["weights"], 1, atol=0.08)


@pytest.mark.test
def test_a_parameter_that_rows_see_otherwise_is_left_alone() -> None:
    """A norm of the weights beside their product with x: no projection gives the same η."""
    prior = {"weights": dist.Normal(jnp.zeros(COLUMNS), 1.0)}

    def model_of(predictor: Callable) -> Model:
        return Model(prior, Through(predictor, lambda p, eta: dist.Normal(eta, 1.0)))

    data = tr.Data(Y, given=X)
    assert narrow.narrow_model(model_of(lambda p, x: x @ p["weights"]), data) is not None
    assert narrow.narrow_model(model_of(lambda p, x: x @ p["weights"] + p["weights"].sum() ** 2), data) is None
    noisy = Through(lambda p, x: x @ p["weights"], lambda p, eta: dist.Normal(eta, 1 + jnp.abs(p["weights"]).mean()))
    assert narrow.narrow_model(Model(prior, noisy), data) is None
    assert narrow.narrow_model(generalised_linear(ROWS, "normal"), tr.Data(Y, given=X[:, :ROWS])) is None
    assert narrow.narrow_model(model_of(lambda p, x: 0.0 * x @ p["weights"]), data) is None


def test_programs_of_wide_tables_are_shared() -> None:
    """A second table of this size compiles nothing."""
    model, compiled = generalised_linear(COLUMNS, "normal", None, 0.5), []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        compiled.extend([event] if event.endswith("backend_compile_duration") else [])

    def fit(y: np.ndarray, x: np.ndarray) -> None:
        tr.infer(model, tr.Data(y, given=x), tr.INLA(draws=100), verify=None, progress=False)

    fit(Y, X)
    jax.monitoring.register_event_duration_secs_listener(listen)
    fit(Y[::-1].copy(), X[::-1] * 1.1)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled


def test_a_wide_table_of_classes_predicts() -> None:
    """Ten times as many columns as rows, of which one tells the class: better than guessing, and no NaN."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(160, 3))
    x = np.repeat(shared, 100, 1) + rng.normal(size=(160, 300))
    y = np.argmax(shared + 0.2 * rng.gumbel(size=shared.shape), 1)
    found = BayesianLogisticRegression(random_state=0, verify=None).fit(x[:40], y[:40])
    assert found.posterior_.method.label == "inla"
    p = found.predict_proba(x[40:])
    assert np.all(np.isfinite(p))
    assert -np.mean(np.log(p[np.arange(120), y[40:]])) < 0.8 * np.log(3)


@pytest.mark.quick
def test_scales_by_default() -> None:
    assert weight_scale_for(5000, 300.0, "normal") is None
    assert weight_scale_for(5000, 300.0, "categorical") == pytest.approx(1.5 / np.sqrt(5000))
    assert weight_scale_for(5000, 25_000.0, "categorical") == 2.5
    assert weight_scale_for(5000, 2000.0, "normal") == 2.5  # too many directions for the grid of a scale
    assert weight_scale_for(9, 3.0, "categorical") == 2.5


@pytest.mark.test
def test_the_spherical_t() -> None:
    """Against SciPy's t in D dimensions; draws have its radius."""
    prior = SphericalT(3.0, 4, 0.5)
    value = np.array([0.3, -0.2, 1.0, 0.1])
    right = stats.multivariate_t.logpdf(value, shape=0.25 * np.eye(4), df=3)
    assert float(prior.log_prob(value)) == pytest.approx(float(right), rel=1e-5)
    draws = np.asarray(prior.sample(jax.random.key(0), (4000,)))
    # |w|²/(4 c²) is F distributed with 4 and 3 degrees of freedom.
    assert stats.kstest(np.square(draws / 0.5).sum(1) / 4, stats.f(4, 3).cdf).pvalue > 1e-4
    assert np.all(np.isnan(SphericalT(1.0, 2, 1.0).mean))
    np.testing.assert_allclose(prior.variance, 0.75)
    assert np.all(np.isinf(SphericalT(2.0, 2, 1.0).variance))


def test_what_the_rows_tell_of_is_verified():
    """A wide table with normal noise is looked at in the rows' span; sds that are too narrow there are rejected."""
    x = np.random.default_rng(3).normal(size=(40, 260))
    y = x @ np.random.default_rng(4).normal(size=260) / 16 + 0.5 * np.random.default_rng(5).normal(size=40)
    fitted = tr.infer(generalised_linear(260, "normal", weight_scale=None), tr.Data(y, given=x), tr.INLA())
    report = fitted.report()
    assert report.verdict != "reject" and any(check.name == "rows' span" for check in report.checks), report
    positions = np.asarray(fitted.unconstrained)
    middle = positions.mean(1, keepdims=True)
    narrow = replace(fitted.belief, positions=middle + 0.5 * (positions - middle))
    assert replace(fitted, belief=narrow, verification=(), judged=None).verify().report().verdict == "reject"
