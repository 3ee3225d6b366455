"""The estimators: scikit-learn's own checks, and the laws that those do not know."""

import dataclasses
import functools
import pickle
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import joblib
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from montecarlo import assert_holds, binomial, broken, error
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import tractable as tr
from tractable.core.errors import DataError, SettingsError
from tractable.core.model import whole
from tractable.engine import preflight
from tractable.estimators import (
    BayesianCountRegression,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    base,
    networks,
    rows,
    updating,
)
from tractable.glm import linear
from tractable.networks.network import mlp, neural_network

# Tables of a few rows, and quick methods on them, are rightly not trusted; only one test is about that.
pytestmark = [pytest.mark.laws, pytest.mark.filterwarnings("ignore:Do not use this posterior")]
SMALL = {"hidden": (3,), "activation": "tanh", "random_state": 0}


COUNTS = "y is made of numbers that are no counts, which a count regression refuses in a sentence"
NEED_COUNTS = {
    name: COUNTS
    for name in (
        "check_n_features_in_after_fitting", "check_regressors_train", "check_regressor_data_not_an_array",
        "check_regressors_no_decision_function", "check_fit_idempotent", "check_fit_check_is_fitted",
        "check_n_features_in",
    )
}  # fmt: skip


@pytest.mark.test("BayesianLinearRegression()-check_fit_score_takes_y")
@parametrize_with_checks(
    [BayesianLinearRegression(), BayesianLogisticRegression(), BayesianCountRegression()],
    expected_failed_checks=lambda estimator: NEED_COUNTS if isinstance(estimator, BayesianCountRegression) else {},
)
def test_scikit_learn_agrees(estimator, check):
    """Every estimator passes with its defaults; two files of their own have the networks."""
    check(estimator)


# Rows and weights.


def table(size: int = 12, features: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and whole weights, some of them zero; with rows that are equal, and rows that differ in y alone."""
    rng = np.random.default_rng(1)
    x, y, weight = rng.normal(size=(size, features)), rng.normal(size=size), rng.integers(0, 4, size).astype(float)
    x[4], y[4], x[5] = x[3], y[3], x[3]
    weight[3:6] = 2, 1, 3
    return x, y, weight


def distinct_law(distinct) -> dict[str, float]:
    """Weights are repetitions, in any order, and nothing else of the table is lost."""
    x, y, weight = table()
    times = weight.astype(int)
    order = np.random.default_rng(0).permutation(len(y))
    one = distinct(x[order], y[order], weight[order])
    other = distinct(x.repeat(times, 0), y.repeat(times), np.ones(times.sum()))
    if one.x.shape != other.x.shape:
        return {"rows": np.inf}
    moments = np.column_stack([one.x, one.y, one.y**2]).T @ one.weight
    wanted = np.column_stack([x, y, y**2]).T @ weight
    return {
        "table": max(error(a, b, 1e-300) for a, b in zip(one, other, strict=True)),
        "moments": error(moments, wanted, 1e-12),
        "weight": error(one.weight.sum(), weight.sum(), 1e-12),
    }


def without_merging(x, y, weight):
    order = np.lexsort(np.column_stack([x, y]).T[::-1])
    return rows.Rows(x[order], y[order], weight[order])


def merged_by_x(x, y, weight):
    unique, first, inverse = np.unique(x[weight > 0], axis=0, return_index=True, return_inverse=True)
    return rows.Rows(unique, y[weight > 0][first], np.bincount(inverse.ravel(), weight[weight > 0]))


def unweighted(x, y, weight):
    return rows.distinct(x, y, (weight > 0).astype(float))


def unsorted(x, y, weight):
    found = rows.distinct(x, y, weight)
    order = np.argsort([np.flatnonzero((x == a).all(1) & (y == b))[0] for a, b in zip(found.x, found.y, strict=True)])
    return rows.Rows(*(a[order] for a in found))


@pytest.mark.quick
def test_distinct():
    assert_holds(distinct_law(rows.distinct))


@pytest.mark.quick
@pytest.mark.parametrize("levels", [1, 2, 100])
def test_distinct_rows_are_in_the_order_of_their_values(levels):
    """Whichever column tells rows apart; the first 1,000 say which, and may be wrong about the others."""
    x = np.random.default_rng(levels).integers(0, levels, (1200, 4)).astype(float)
    x[:600, 1] = np.arange(600)
    found = rows.distinct(x, x[:, 0], np.ones(len(x)))
    unique, times = np.unique(x, axis=0, return_counts=True)
    np.testing.assert_array_equal(found.x, unique)
    np.testing.assert_array_equal(found.weight, times)


@pytest.mark.quick
@pytest.mark.parametrize("mutant", [without_merging, merged_by_x, unweighted, unsorted])
def test_distinct_mutants(mutant):
    assert broken(distinct_law(mutant))


def scaling_law(scaling) -> dict[str, float]:
    """As if weights were repetitions; constant columns stay finite."""
    x, y, weight = table()
    x[:, 1] = 0.1 + 0.2  # whose mean is rounded
    kept, times = weight > 0, weight.astype(int)
    by = scaling(rows.Rows(x[kept], y[kept], weight[kept]), True)
    z = by.inputs(x.repeat(times, 0))
    u = by.targets(y.repeat(times))
    return {
        "mean": error(z.mean(0), 0.0, 1e-12),
        "sd": error(z.std(0), [1, 0, 1], 1e-12),
        "constant": error(by.scale[1], 1.0, 1e-300),
        "y": max(error(u.mean(), 0.0, 1e-12), error(u.std(), 1.0, 1e-12)),
    }


def scaled_unweighted(found, targets):
    return rows.scaling(found._replace(weight=np.ones(len(found.y))), targets)


def scaled_by_variance(found, targets):
    by = rows.scaling(found, targets)
    return by._replace(scale=by.scale**2, spread=by.spread**2)


def scaled_by_rounding(found, targets):
    by = rows.scaling(found, targets)
    sd = np.sqrt(np.average((found.x - by.centre) ** 2, axis=0, weights=found.weight))
    return by._replace(scale=np.maximum(sd, 1e-300))


@pytest.mark.quick
def test_scaling():
    assert_holds(scaling_law(rows.scaling))


@pytest.mark.quick
@pytest.mark.parametrize("mutant", [scaled_unweighted, scaled_by_variance, scaled_by_rounding])
def test_scaling_mutants(mutant):
    assert broken(scaling_law(mutant))


@pytest.mark.quick
def test_lengths_are_few_and_near():
    lengths = np.array([rows.length(n) for n in range(1, 5000)])
    asked = np.arange(1, 5000)
    assert np.all(lengths >= asked) and np.all(np.diff(lengths) >= 0)
    assert np.all(lengths[asked > 256] <= 1.125 * asked[asked > 256] + 1)
    assert len(np.unique(lengths)) < 45


class Seen(NamedTuple):
    """What an estimator of a linear model hands to ``infer``."""

    model: tr.Model
    data: tr.Data


def handed_over(monkeypatch, change) -> Seen:
    """The model and data of a fit, where ``change`` has its way with the data."""
    seen = []

    def watched(model, data, *args, **options):
        seen.append(Seen(model, change(data)))
        return tr.infer(model, data, *args, **options)

    monkeypatch.setattr(base, "infer", watched)
    x, y, weight = table()
    BayesianLinearRegression(method=tr.MAP(), random_state=0).fit(x, y, weight)
    return seen[0]


def weighted_law(seen: Seen) -> dict[str, float]:
    """Σ w log p(y|x, θ) of standardised rows against SciPy's normal, padding and all."""
    x, y, weight = table()
    by = rows.scaling(rows.distinct(x, y, weight), True)
    params = {"intercept": 0.3, "weights": np.array([0.5, -1.0, 2.0]), "noise": 0.7}
    rows_and_prior = tr.log_density(seen.model, seen.data.arrays()), tr.log_density(seen.model)
    got, prior = jax.jit(lambda params: [of(seen.model.unconstrain(params)) for of in rows_and_prior])(params)
    terms = stats.norm.logpdf(by.targets(y), 0.3 + by.inputs(x) @ params["weights"], 0.7)
    return {"log likelihood": error(got - prior, weight @ terms, 1e-8)}


def ignorant(data):
    return tr.Data(data.y, given=data.given)


def presence(data):
    return tr.Data(data.y, given=data.given, weights=data.weights > 0)


def crossed(data):
    return tr.Data(data.weights, given=data.given, weights=np.abs(data.y))


def test_weighted(monkeypatch):
    assert_holds(weighted_law(handed_over(monkeypatch, lambda data: data)))


@pytest.mark.parametrize("mutant", [ignorant, presence, crossed])
def test_weighted_mutants(monkeypatch, mutant):
    assert broken(weighted_law(handed_over(monkeypatch, mutant)))


# The posterior of earlier rows as a prior.


@functools.cache
def halves() -> tuple:
    """Rows whose columns are orthogonal in each half, so that the posterior's numbers are independent; and its first
    half's posterior."""
    x = np.tile(np.array([[1.0, 1.0], [1.0, -1.0]]), (6, 1))
    y = x @ [0.5, -1.5] + np.random.default_rng(2).normal(0, 0.5, 12)
    model = linear.bayesian_linear(2, 0.5, 2.0)
    return x, y, model, tr.infer(model, tr.Data(y[:4], given=x[:4]), tr.Laplace(), progress=False)


def filtering_law(updated) -> dict[str, float]:
    """Two halves in turn are all rows at once, where nothing is forgotten."""
    x, y, model, before = halves()
    prior = updated(model, *updating.moments(before))
    density = tr.log_density(prior, (jnp.asarray(y[4:]), jnp.asarray(x[4:])), flat=True)
    curvature, slope = jax.jit(lambda z: (-jax.hessian(density)(z), jax.grad(density)(z)))(jnp.zeros(2))
    precision = x.T @ x / 0.25 + np.eye(2) / 4
    return {
        "precision": error(curvature, precision, 1e-8),
        "mean": error(np.linalg.solve(curvature, slope), np.linalg.solve(precision, x.T @ y / 0.25), 1e-8),
    }


def density_law(updated) -> dict[str, float]:
    """N(m, s²) of every number on the reals, whatever its support."""
    scores = {}
    for family, classes in (("normal", None), ("categorical", 3)):
        model = linear.generalised_linear(2, family, classes)
        rng = np.random.default_rng(3)
        mean, sd = rng.normal(size=model.space.size), rng.uniform(0.5, 2, model.space.size)
        z = rng.normal(size=(5, model.space.size))
        got = jax.jit(jax.vmap(tr.log_density(updated(model, mean, sd), None, flat=True)))(z)
        scores[family] = error(got, stats.norm.logpdf(z, mean, sd).sum(1), 1e-8)
    return scores


def forgetting(model, mean, sd):
    return model


def squared(model, mean, sd):
    return updating.with_normal_priors(model, mean, np.square(sd))


def centred(model, mean, sd):
    return updating.with_normal_priors(model, np.zeros_like(mean), sd)


def counted_twice(model, mean, sd):
    return updating.with_normal_priors(model, mean, sd / np.sqrt(2))


def test_filtering():
    assert_holds(filtering_law(updating.with_normal_priors) | density_law(updating.with_normal_priors))


@pytest.mark.parametrize("mutant", [forgetting, squared, centred, counted_twice])
def test_filtering_mutants(mutant):
    assert broken(filtering_law(mutant))
    assert broken(density_law(mutant))


# Linear regression.


def problem(size: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 2)) * [3.0, 0.01] + [10.0, -5.0]
    return x, x @ [2.0, 100.0] + 7 + rng.normal(0, 2.0, size)


@functools.cache
def flat_fit() -> BayesianLinearRegression:
    return BayesianLinearRegression(weight_scale=1e3, intercept_scale=1e3, random_state=0).fit(*problem())


def test_coefficients_are_those_of_least_squares():
    x, y = problem()
    model, design = flat_fit(), np.column_stack([np.ones(400), x])
    wanted, residue, *_ = np.linalg.lstsq(design, y, rcond=None)
    sds = np.sqrt(residue[0] / 397 * np.diag(np.linalg.inv(design.T @ design)))
    assert_holds(
        {
            "intercept": error(model.intercept_ / wanted[0], 1.0, 1e-4),
            "coef": error(model.coef_ / wanted[1:], 1.0, 1e-4),
            "coef sd": error(model.coef_std_ / sds[1:], 1.0, 0.01),  # n and not n − 3, and the noise's own prior
            "predict": error(model.predict(x), design @ [model.intercept_, *model.coef_], 1e-9),
        }
    )


def test_sd_is_of_a_new_datum():
    x, y = problem()
    mean, sd = flat_fit().predict(x, return_std=True)
    design = np.column_stack([np.ones(400), x])
    residue = np.sqrt(np.sum((y - mean) ** 2) / 397)
    leverage = np.sum(design @ np.linalg.inv(design.T @ design) * design, 1)
    assert_holds({"sd": error(sd / (residue * np.sqrt(1 + leverage)), 1.0, 0.02)})
    lower, upper = flat_fit().predict_interval(x, 0.5).T
    assert_holds({"interval": error((upper - lower) / (2 * 0.6745 * sd), 1.0, 0.2)})


def test_units_come_back():
    """x → a x + b and y → c y + d move predictions with them, and coefficients by c/a."""
    x, y = problem(60)
    first = BayesianLinearRegression(random_state=0).fit(x, y)
    second = BayesianLinearRegression(random_state=0).fit(x * [4, 0.5] + [1, 2], -8 * y + 3)
    there = x * [4, 0.5] + [1, 2]
    assert_holds(
        {
            "coef": error(second.coef_ / first.coef_, [-2.0, -16.0], 1e-5),
            "coef sd": error(second.coef_std_ / first.coef_std_, [2.0, 16.0], 1e-4),
            "predict": error(second.predict(there), -8 * first.predict(x) + 3, 1e-3),
        }
    )


def test_a_second_fit_compiles_nothing(caplog):
    model = BayesianLinearRegression(random_state=0).fit(*problem(60))
    model.predict(problem(30)[0], return_std=True)
    with jax.log_compiles():
        fitted = clone(model).fit(*problem(50, seed=5))
        fitted.predict(problem(20)[0], return_std=True)
        assert not [r.message for r in caplog.records if "Compiling" in r.message]
        jax.jit(lambda a: a + 1)(jnp.zeros(7))
        assert [r.message for r in caplog.records if "Compiling" in r.message]  # it would have been seen


def searched(caplog, model, settings: list[dict]) -> list[str]:
    """What is compiled for further settings, on folds of other lengths, after a first fit; and that they matter."""
    x, y = problem(60)
    told = [model.fit(x, y).predict(x)]
    caplog.clear()
    with jax.log_compiles():
        for size, setting in zip(range(50, 60), settings, strict=False):
            other = clone(model).set_params(**setting).fit(x[:size], y[:size])
            told.append(other.predict(x))
            other.score(x[size:], y[size:])
    assert all(np.abs(one - told[0]).max() > 1e-3 for one in told[1:])
    return [r.message for r in caplog.records if "Compiling" in r.message]


STEPPING = tr.SGLD(chains=1, draws=20, warmup=20, batch_size=10, step_size=1e-4, start="random")
QUICK = tr.BayesByBackprop(steps=200, epochs=20, tolerance=0.5, draws=50, batch_size=20)


def test_a_search_over_numbers_compiles_once(caplog):
    """Priors' sds, rates and tolerances are arguments of the programs; so are the numbers of equal, fresh priors."""
    model = BayesianMLPRegressor(**SMALL, prior=dist.Normal(0.0, 1.0), method=QUICK, verify=None)
    faster = dataclasses.replace(QUICK, learning_rate=0.01, tolerance=0.3, sd=0.03)
    settings = [{}, {"prior": dist.Normal(0.5, 0.1)}, {"method": faster}]
    assert not searched(caplog, model, settings)


@pytest.mark.parametrize("method", [tr.Laplace(draws=50), tr.MAP(), STEPPING])
def test_a_search_compiles_once_with(caplog, method):
    model = BayesianMLPRegressor(**SMALL, prior=1.0, method=method, verify=None)
    assert not searched(caplog, model, [{"prior": 0.3}, {"prior": 2}])


def test_numbers_of_a_shared_model_are_its_own():
    """A program that serves several priors gives each what a program of its own gives."""
    x, y = problem(60)
    batch = whole((y, x))
    for sd in (0.2, 1.0):
        alone = neural_network(mlp(2, (3,), 1, "tanh"), prior=sd)
        at = np.linspace(-1.0, 1.0, alone.space.size)
        mine, theirs = (
            preflight.value_and_slope(m, at, batch) for m in (dataclasses.replace(alone, shared=True), alone)
        )
        np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-12)
        np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-9)


@pytest.mark.computes
def test_calibrated_intervals_cover():
    """Heavy noise under a normal likelihood: calibrated on rows held out, intervals hold their level all the same."""
    rng = np.random.default_rng(4)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size, 1))
        return x, x[:, 0] + rng.standard_t(1.5, size)

    model = BayesianLinearRegression(calibration=0.5, method="laplace", random_state=0).fit(*draw(4000))
    x, y = draw(20_000)
    scores = {}
    for level in (0.5, 0.9):
        lower, upper = model.predict_interval(x, level).T
        inside = int(np.sum((lower <= y) & (y <= upper)))
        spread = np.sqrt(level * (1 - level) * (1 / 20_000 + 1 / 2001))  # of fresh rows, and of the rows held out
        scores[f"{level}"] = abs(inside / 20_000 - level) / spread / 5.33
    assert_holds(scores)
    assert len(model.scores_) == 2000
    model.scores_ = None  # the model's own word, of normal noise
    lower, upper = model.predict_interval(x, 0.5).T
    assert binomial(int(np.sum((lower <= y) & (y <= upper))), 20_000, 0.5) > 1


def test_calibrate_takes_the_order_statistic():
    x, y = problem(100)
    model = BayesianLinearRegression(method="laplace", random_state=0).fit(x, y)
    held = problem(19, seed=9)
    model.calibrate(*held)
    mean, sd = model.predict(x, return_std=True)
    scores = np.sort(np.abs(held[1] - model.predict(held[0])) / model.predict(held[0], return_std=True)[1])
    wanted = np.column_stack([mean - scores[17] * sd, mean + scores[17] * sd])  # ⌈20 · 0.9⌉ = 18th
    # The mean by draws here, that of the coefficients there.
    assert_holds({"interval": error(model.predict_interval(x, 0.9), wanted, 0.1)})
    with pytest.raises(ValueError, match="needs at least 99 rows"):
        model.predict_interval(x, 0.99)


def test_logistic_units():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 2)) * [5.0, 1.0] + [100.0, 0.0]
    y = rng.random(200) < 1 / (1 + np.exp(-(x[:, 0] - 100) / 5 - x[:, 1]))
    model = BayesianLogisticRegression(method="laplace", random_state=0).fit(x, np.where(y, "yes", "no"))
    assert model.classes_.tolist() == ["no", "yes"] and model.coef_.shape == (1, 2) and model.intercept_.shape == (1,)
    # Probabilities averaged over a narrow posterior are nearly those at its mean.
    plugged = 1 / (1 + np.exp(-(x @ model.coef_[0] + model.intercept_)))
    assert_holds({"probability": error(model.predict_proba(x)[:, 1], plugged, 0.03)})
    assert np.array_equal(model.predict(x), model.classes_[model.predict_proba(x).argmax(1)])
    three = BayesianLogisticRegression(method="laplace", random_state=0).fit(x, np.digitize(x[:, 1], [-0.5, 0.5]))
    assert three.coef_.shape == (3, 2)
    assert_holds({"sum": error(three.coef_.sum(0), 0.0, 1e-8), "intercept": error(three.intercept_.sum(), 0.0, 1e-8)})


# As scikit-learn's.


@pytest.mark.parametrize(
    "method",
    [
        tr.BayesByBackprop(steps=400),
        tr.SGLD(chains=1, draws=50, warmup=50, thin=1, step_size=1e-4, start="random", preconditioner=None),
        "laplace",
    ],
)
def test_weights_are_repetitions_for_every_method(method):
    x, y, weight = table()
    times = weight.astype(int)
    one = BayesianMLPRegressor(**SMALL, method=method).fit(x, y, weight)
    other = BayesianMLPRegressor(**SMALL, method=method).fit(x.repeat(times, 0)[::-1], y.repeat(times)[::-1])
    assert np.array_equal(one.predict(x), other.predict(x))
    assert not np.array_equal(one.predict(x), BayesianMLPRegressor(**SMALL, method=method).fit(x, y).predict(x))


@pytest.mark.parametrize("method", ["laplace", "map", tr.NUTS(chains=2, draws=20, warmup=50)])
def test_pickles_come_back(method):
    x, y, _ = table(30)
    model = BayesianMLPRegressor(**SMALL, method=method, calibration=0.5).fit(x, y)
    back = pickle.loads(pickle.dumps(model))
    assert np.array_equal(back.predict(x), model.predict(x))
    assert np.array_equal(back.predict_interval(x, 0.8), model.predict_interval(x, 0.8))
    assert str(back.report_) == str(model.report_)
    if method == "laplace":
        assert np.array_equal(back.partial_fit(x, y).predict(x), model.partial_fit(x, y).predict(x))


def test_partial_fit_goes_on():
    x, y = problem(300)
    whole = BayesianLinearRegression(method="laplace", random_state=0).fit(x, y)
    parts = BayesianLinearRegression(method="laplace", random_state=0).partial_fit(x[:100], y[:100])
    first = parts.coef_std_
    parts.partial_fit(x[100:], y[100:])
    # The columns are nearly uncorrelated, so that little is forgotten.
    assert_holds(
        {
            "coef": error(parts.coef_, whole.coef_, 0.3 * whole.coef_std_.max()),
            "coef sd": error(parts.coef_std_ / whole.coef_std_, 1.0, 0.1),
            "noise": error(parts.posterior_.standardised.mean()["noise"] * parts._scaling.spread, 2.0, 0.4),
        }
    )
    assert np.all(parts.coef_std_ < 0.7 * first)
    with pytest.raises(ValueError, match="features"):
        parts.partial_fit(x[:, :1], y)


def test_partial_fit_of_classes():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(90, 2))
    y = np.digitize(x[:, 0], [-0.5, 0.5])
    model = BayesianMLPClassifier(**SMALL, method="laplace")
    model.partial_fit(x[y < 2], y[y < 2], classes=[0, 1, 2])
    assert model.predict_proba(x).shape == (90, 3)
    model.partial_fit(x, y)
    assert model.score(x, y) > 0.85
    with pytest.raises(ValueError, match=r"lacks: \[7\]"):
        model.partial_fit(x[:2], [0, 7])
    with pytest.raises(ValueError, match="in the first call"):
        model.partial_fit(x, y, classes=[0, 1])
    with pytest.raises(ValueError, match="without sds"):
        point = BayesianMLPClassifier(hidden=(400,), method=tr.MAP(steps=5), random_state=0)
        point.partial_fit(x, y).partial_fit(x, y)


def test_it_goes_where_estimators_go():
    x, y = problem(60)
    frame = pd.DataFrame(x, columns=["size", "age"])
    search = GridSearchCV(
        make_pipeline(StandardScaler(), BayesianLinearRegression(method="laplace")),
        {"bayesianlinearregression__weight_scale": [1e-3, 2.5]},
        cv=2,
    ).fit(frame, y)
    assert search.best_params_ == {"bayesianlinearregression__weight_scale": 2.5}
    model = BayesianLinearRegression(method="laplace", random_state=np.random.RandomState(0))
    assert cross_val_score(model, frame, y, cv=2).min() > 0.5
    assert model.fit(frame, y).feature_names_in_.tolist() == ["size", "age"]
    assert "Laplace" in str(model.report_)
    with pytest.warns(UserWarning, match="feature names"):
        model.predict(x)


def test_constant_columns_are_harmless():
    x, y = problem(60)
    with_constant = np.column_stack([x, np.full(60, 0.3)])
    model = BayesianLinearRegression(method="laplace", random_state=0).fit(with_constant, y)
    plain = BayesianLinearRegression(method="laplace", random_state=0).fit(x, y)
    # The column is zero inside, its weight the prior's: it moves nothing.
    assert_holds({"predict": error(model.predict(with_constant), plain.predict(x), 0.1)})
    assert_holds({"weight": error(model.coef_[2], 0.0, 0.5 * model.coef_std_[2])})


@pytest.mark.test
@pytest.mark.parametrize(
    ("estimator", "y", "weight", "sentence"),
    [
        (BayesianLinearRegression(), [3.0, 3.0, 3.0], None, "y has one value, 3, in n_samples = 1|y has one value, 3"),
        (BayesianLogisticRegression(), ["a", "a", "a"], None, "y has one class, 'a':"),
        (BayesianLogisticRegression(), ["a", "a", "b"], [1, 1, 0], "y has one class"),
        (BayesianLinearRegression(), [1.0, 2.0, 3.0], [1, -1, 1], "numbers ≥ 0; got -1"),
        (BayesianLinearRegression(), [1.0, 2.0, 3.0], [0, 0, 0], "(?i)zero"),
        (BayesianLinearRegression(), [1.0, 2.0, np.nan], None, "NaN"),
        (BayesianLinearRegression(method="no-such"), [1.0, 2.0, 3.0], None, "There is no method 'no-such'"),
        (BayesianLinearRegression(method=3), [1.0, 2.0, 3.0], None, "method is a name such as"),
        (BayesianLinearRegression(level=1.0), [1.0, 2.0, 3.0], None, r"level is a number in \(0, 1\)"),
        (BayesianLinearRegression(calibration=1.0), [1.0, 2.0, 3.0], None, "calibration is a share"),
        (BayesianLinearRegression(calibration=0.99), [1.0, 2.0, 3.0], None, "leaves no row to fit"),
        (BayesianMLPRegressor(likelihood="poisson"), [1.0, 2.0, 3.0], None, "likelihood is one of normal"),
        (BayesianMLPRegressor(hidden=(0,)), [1.0, 2.0, 3.0], None, r"hidden\[\d\] is a whole number of units"),
        (BayesianLogisticRegression(), [0.1, 0.2, 0.7], None, "Unknown label type"),
    ],
)
def test_errors_are_sentences(estimator, y, weight, sentence):
    x = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 5.0]])
    with pytest.raises(ValueError, match=sentence):
        estimator.fit(x, y, weight)
    with pytest.raises(NotFittedError):
        _ = estimator.report_


def test_estimators_are_found_without_being_imported():
    code = "import sys, tractable as tr; assert 'sklearn' not in sys.modules; print(tr.estimators.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "tractable.estimators", done.stderr
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tr.nonsense


def test_counts_are_told_by_their_rate():
    """Against the maximum likelihood of many rows, where the prior is nothing, and its exact observed information."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 2)) * [1, 3] + [0, 5]
    y = rng.poisson(np.exp(0.5 + x @ [0.4, -0.1]))
    model = BayesianCountRegression("poisson", random_state=0, verify=None).fit(x, y)
    rows, beta = np.column_stack([np.ones(len(x)), x]), np.zeros(3)
    for _ in range(20):
        rate = np.exp(rows @ beta)
        information = (rows * rate[:, None]).T @ rows
        beta = beta + np.linalg.solve(information, rows.T @ (y - rate))
    sd = np.sqrt(np.diag(np.linalg.inv(information)))[1:]
    np.testing.assert_allclose((model.coef_ - beta[1:]) / sd, 0, atol=0.1)
    np.testing.assert_allclose(model.coef_std_ / sd, 1, atol=0.02)
    np.testing.assert_allclose(model.predict(x[:5]), np.exp(rows[:5] @ beta), rtol=0.02)
    low, middle, high = model.predict(x[:5], quantiles=[0.05, 0.5, 0.95]).T
    assert np.all(low <= middle) and np.all(middle <= high) and np.all(low < high)
    with pytest.raises(DataError, match=r"y must hold counts, 0, 1, 2, …; got 0.5 in row 1"):
        model.fit(x[:3], [1, 0.5, 2])
    with pytest.raises(SettingsError, match=r"quantiles= expects a list of numbers in \(0, 1\); got 1.0 as member 1"):
        model.predict(x[:5], quantiles=[0.5, 1.0])


def test_quantiles_are_the_predictive_ones():
    table, y = problem(60)
    x = pd.DataFrame(table, columns=pd.Index(["a", "b"]))  # whose names are not lost on the way
    model = BayesianLinearRegression(random_state=0, verify=None).fit(x, y)
    mean, sd = model.predict(x[:4], return_std=True)
    told = model.predict(x[:4], quantiles=[0.1, 0.5, 0.9])
    # Quantiles of a thousand draws a row, and a Student t of sixty rows.
    np.testing.assert_allclose((told - mean[:, None]) / sd[:, None], [[-1.29, 0, 1.29]] * 4, atol=0.25)
    np.testing.assert_array_equal(told[:, [0, 2]], model.predict_interval(x[:4], 0.8))


def two_outputs() -> tuple[np.ndarray, np.ndarray]:
    """x (60, 2), and two outputs of unlike size and noise."""
    x, y = problem(60)
    return x, np.column_stack([y, 3 - 50 * x[:, 1] + np.random.default_rng(1).normal(0, 0.05, 60)])


def of_several(x: np.ndarray, y: np.ndarray, quick: dict) -> dict[str, float]:
    """Linear maps share nothing, so that outputs told together are told as they are one by one."""
    together = BayesianMLPRegressor(**quick).fit(x, y)
    mean, sd = together.predict(x, return_std=True)
    out = {}
    for k in range(2):
        alone, apart = BayesianMLPRegressor(**quick).fit(x, y[:, k]).predict(x, return_std=True)
        out |= {
            f"mean {k}": error(mean[:, k], alone, 1e-2 * y[:, k].std()),
            f"sd {k}": error(sd[:, k] / apart, 1.0, 0.02),
        }
    return out


LINEAR = {"hidden": (), "method": tr.MAP(), "verify": None, "random_state": 0}


def test_several_outputs():
    x, y = two_outputs()
    assert_holds(of_several(x, y, LINEAR))
    model = BayesianMLPRegressor(**LINEAR, calibration=0.3).fit(x, y)
    told, ends = model.predict(x, quantiles=[0.1, 0.5, 0.9]), model.predict_interval(x, 0.8)
    assert told.shape == (60, 2, 3)
    assert model.scores_.shape == (18, 2)
    np.testing.assert_array_equal(told[..., [0, 2]], ends)
    assert model.score(x, y) > 0.7
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    with pytest.raises(ValueError, match="Output 1 of y has one value, 2"):
        model.fit(x, np.column_stack([y[:, 0], np.full(60, 2.0)]))
    with pytest.raises(ValueError, match="had 2 outputs per row in the first call"):
        BayesianMLPRegressor(**LINEAR).fit(x, y).partial_fit(x, y[:, 0])


def test_several_outputs_mutant(monkeypatch):
    """One noise for all outputs."""
    one = networks.multi_output_likelihood("normal", 2)[0], {"noise": dist.HalfNormal(1.0)}
    monkeypatch.setattr(networks, "multi_output_likelihood", lambda likelihood, count: one)
    assert broken(of_several(*two_outputs(), LINEAR))


def test_several_targets_of_a_linear_regression():
    """The first is told as it is alone, to the last digit but of rounding; the second in its own units."""
    x, y = two_outputs()
    weight = np.linspace(0.5, 2.0, 60)
    quick = {"random_state": 0, "verify": None}
    model = BayesianLinearRegression(**quick).fit(x, y, weight)
    alone = BayesianLinearRegression(**quick).fit(x, y[:, 0], weight)
    np.testing.assert_allclose(model.coef_[0], alone.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.coef_std_[0], alone.coef_std_, rtol=1e-6)
    root = np.sqrt(weight)[:, None]
    design = np.column_stack([x, np.ones(60)])
    least = np.linalg.lstsq(design * root, y * root, rcond=None)[0]
    noise = np.sqrt(np.average((y - design @ least) ** 2, axis=0, weights=weight))
    mean, sd = model.predict(x, return_std=True)
    assert_holds(
        {
            "coef": error(model.coef_ / least[:2].T, 1.0, 0.05),
            "mean": error((mean - design @ least) / noise, 0.0, 0.1),
            "sd": error(sd / noise, 1.0, 0.15),
        }
    )
    np.testing.assert_allclose(mean, x @ model.coef_.T + model.intercept_, rtol=1e-9)
    assert model.predict_interval(x[:5]).shape == (5, 2, 2)
    assert model.predict(x[:5], quantiles=[0.1, 0.5, 0.9]).shape == (5, 2, 3)
    width = model.coef_std_
    model.partial_fit(x, y, weight)
    np.testing.assert_allclose(model.coef_std_ / width, np.sqrt(0.5), rtol=0.1)
    with pytest.raises(ValueError, match="had 2 outputs per row in the first call"):
        model.partial_fit(x, y[:, 0])


def test_later_rows_compile_nothing(caplog):
    """The earlier posterior's numbers are arguments: the third call of ``partial_fit`` has the second's programs."""
    model = BayesianLinearRegression(random_state=0, verify=None)
    told = []
    for seed in range(3):
        x, y = problem(60, seed=seed)
        caplog.clear()
        with jax.log_compiles():
            told.append(model.partial_fit(np.column_stack([x, x**2, x**3]), y).coef_)  # of a shape of its own
        compiled = [r.message for r in caplog.records if "Compiling" in r.message]
        assert bool(compiled) == (seed < 2), compiled
    assert np.abs(told[2] - told[1]).max() > 1e-3


def test_a_search_over_widths_compiles_each_once(caplog):
    model = BayesianMLPRegressor(**SMALL, prior=1.0, method=tr.MAP(steps=50), verify=None)
    x, y = problem(60)
    for hidden in ((2,), (3,)):
        clone(model).set_params(hidden=hidden).fit(x, y).predict(x)
    assert not searched(caplog, model, [{"hidden": (2,)}, {"hidden": (3,), "prior": 0.3}])


@pytest.mark.parametrize("likelihood", ["student-t", "heteroscedastic"])
def test_several_outputs_of_other_likelihoods(likelihood):
    """Each output's noise is its own: the intervals of both hold what they say, in units a hundred times apart."""
    x, y = two_outputs()
    model = BayesianMLPRegressor(**LINEAR, likelihood=likelihood).fit(x, y)
    lower, upper = np.moveaxis(model.predict_interval(x, 0.8), -1, 0)
    hits = np.sum((lower < y) & (y < upper), 0)
    assert_holds({f"output {k}": binomial(int(hits[k]), 60, 0.8) for k in range(2)})


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_a_search_over_processes_finds_the_same(backend):
    x, y = problem(60)
    scores = []
    for jobs in (1, 2):
        with joblib.parallel_config(backend=backend):
            search = GridSearchCV(
                BayesianLinearRegression(verify=None, random_state=0), {"weight_scale": [1e-3, 2.5]}, cv=2, n_jobs=jobs
            )
            scores.append(search.fit(x, y).cv_results_["mean_test_score"])
    np.testing.assert_allclose(*scores, rtol=1e-6)


@pytest.mark.filterwarnings("default:Do not use this posterior")
def test_a_fit_that_is_not_to_be_trusted_says_so():
    x, y = problem(60)
    with pytest.warns(ConvergenceWarning, match="Do not use this posterior: R-hat"):
        BayesianLinearRegression(method=tr.NUTS(draws=5, warmup=1, chains=2), random_state=0).fit(x, y)


def test_priors_by_name():
    """A prior a thousand times narrower than the data's own say holds the weights; one of Laplace is learnt by NUTS."""
    x, y = problem(60)
    held = {"weights": dist.Normal(0.0, 1e-3)}
    model = BayesianLinearRegression(priors=held, random_state=0, verify=None).fit(x, y)
    assert np.abs(model.coef_ * x.std(0) / y.std()).max() < 5e-3
    assert clone(model).fit(x, y).posterior_.model is model.posterior_.model
    other = BayesianLinearRegression(priors={"weights": dist.Laplace(0.0, 1.0)})
    other.n_features_in_ = 2
    assert isinstance(other._choose_method(), tr.NUTS)


def test_chains_of_a_network_are_no_prior_of_more_rows():
    x = np.random.default_rng(0).normal(size=(30, 2))
    model = BayesianMLPRegressor(hidden=(2,), method=tr.HMC(chains=2, warmup=10, draws=10), verify=None)
    model.fit(x, x[:, 0])
    with pytest.raises(SettingsError, match="HMC drew the weights of a network in several chains"):
        model.partial_fit(x, x[:, 0])


@pytest.mark.parametrize(
    ("settings", "rows", "call", "expected"),
    [
        ({}, 500, "fit", "hmc"),
        ({}, 20_000, "fit", "bbb"),  # a step of HMC takes a gradient of all rows
        ({"hidden": (200, 200)}, 50, "fit", "bbb"),  # each draw has 42,201 weights
        ({"likelihood": "heteroscedastic"}, 500, "fit", "bbb"),
        ({}, 500, "partial_fit", "bbb"),
        ({"method": "map"}, 500, "fit", "map"),
    ],
)
def test_a_network_is_learnt_by_what_suits_its_size(monkeypatch, settings, rows, call, expected):
    class Chosen(Exception):
        pass

    def stop(model, data, method, **_):
        raise Chosen(method.label)

    monkeypatch.setattr("tractable.estimators.base.infer", stop)
    x = np.random.default_rng(0).normal(size=(rows, 5))
    estimators = [BayesianMLPRegressor(**settings)]
    if "likelihood" not in settings:
        estimators.append(BayesianMLPClassifier(**settings))
    for estimator in estimators:
        y = x[:, 0] if isinstance(estimator, BayesianMLPRegressor) else x[:, 0] > 0
        with pytest.raises(Chosen, match=expected):
            getattr(estimator, call)(x, y)
