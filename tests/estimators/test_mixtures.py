"""Mixtures and factors as estimators: scikit-learn's numbers from equal starts, its own checks, and what it lacks."""

import functools
import pickle
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from montecarlo import Scores, assert_holds, broken, error, z_mean
from scipy import stats
from sklearn import decomposition
from sklearn import mixture as sk
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tractable.core.errors import RunError, TractableWarning
from tractable.estimators import FactorAnalysis, GaussianMixture, factors, mixtures
from tractable.latent.factors import Loadings
from tractable.latent.mixture import Gaussians

pytestmark = pytest.mark.laws

KINDS = list(mixtures.COVARIANCES)
RNG, CENTRE = np.random.default_rng(0), np.array([50.0, -20.0])
X = np.concatenate([RNG.normal(size=(60, 2)), 0.7 * RNG.normal(size=(40, 2)) + [3.0, 2.0]]) + CENTRE
START: dict[str, Any] = {"weights_init": [0.4, 0.6], "means_init": [[52.0, -19.0], [50.0, -21.0]]}
PRECISIONS = {
    "full": np.array([[[1.0, 0.2], [0.2, 0.5]], [[2.0, 0.0], [0.0, 3.0]]]),
    "tied": np.array([[1.0, 0.2], [0.2, 0.5]]),
    "diag": np.array([[1.0, 2.0], [2.0, 0.5]]),
    "spherical": np.array([1.0, 2.0]),
}
NAMES = ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_")


def started(kind: str, **others: Any) -> dict[str, Any]:
    return {**START, "precisions_init": PRECISIONS[kind], "covariance_type": kind, **others}


@pytest.mark.test("FactorAnalysis*")
@pytest.mark.filterwarnings("ignore:The observed information", "ignore:components at the floor")
@pytest.mark.filterwarnings("ignore:columns at the floor", "ignore:The climb has not", "ignore:ended early")
@parametrize_with_checks([GaussianMixture(), FactorAnalysis()])
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


# scikit-learn's numbers.


def same_law(make: type, kind: str, steps: int = 10) -> Scores:
    """Ten steps from one start, of both; and densities and criteria at the parameters reached."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ours = make(2, max_iter=steps, tol=1e-14, **started(kind)).fit(X)
        theirs = sk.GaussianMixture(2, max_iter=steps, tol=0, **started(kind)).fit(X)
    scores = {name: error(getattr(ours, name), getattr(theirs, name), 1e-8) for name in NAMES}
    for name in NAMES:
        setattr(theirs, name, getattr(ours, name))
    new = X[::3] + np.array([0.5, -1.0])
    return scores | {
        "score_samples": error(ours.score_samples(new), theirs.score_samples(new), 1e-10),
        "score": error(ours.score(new), theirs.score(new), 1e-10),
        "predict_proba": error(ours.predict_proba(new), theirs.predict_proba(new), 1e-10),
        "predict": error(ours.predict(new), theirs.predict(new), 1e-10),
        "bic": error(ours.bic(new), theirs.bic(new), 1e-9),
        "aic": error(ours.aic(new), theirs.aic(new), 1e-9),
        "lower bound": error(ours.lower_bound_, theirs.score(X), 1e-10),
        "steps": error(ours.n_iter_, steps, 0.5),
    }


class PrecisionsForCovariances(GaussianMixture):
    def _initial_values(self):
        return super()._initial_values()._replace(covariances=np.asarray(self.precisions_init))


class LowerRoots(GaussianMixture):
    def _attributes(self):
        found = super()._attributes()
        return found | {"precisions_cholesky_": np.linalg.cholesky(found["precisions_"])}


class Uncentred(GaussianMixture):
    def _attributes(self):
        found = super()._attributes()
        return found | {"means_": found["means_"] - self._frame.centre}


class EveryWeightFree(GaussianMixture):
    def aic(self, X):
        return super().aic(X) + 2


class Startless(GaussianMixture):
    def _initial_values(self):
        return super()._initial_values()._replace(weights=None)


@pytest.mark.parametrize("kind", KINDS)
def test_scikit_learns_numbers(kind):
    assert_holds(same_law(GaussianMixture, kind))


@pytest.mark.parametrize("mutant", [PrecisionsForCovariances, LowerRoots, Uncentred, EveryWeightFree, Startless])
def test_scikit_learns_numbers_mutants(mutant):
    assert broken(same_law(mutant, "full"))


def test_one_component_is_the_sample():
    fitted = GaussianMixture(1, reg_covar=0.0).fit(X)
    assert_holds(
        {
            "mean": error(fitted.means_[0], X.mean(0), 1e-10),
            "covariance": error(fitted.covariances_[0], np.cov(X.T, bias=True), 1e-10),
            "mean's error": error(fitted.standard_errors_.means[0], X.std(0) / 10, 1e-8),
            "score": error(
                fitted.score(X), stats.multivariate_normal(X.mean(0), np.cov(X.T, bias=True)).logpdf(X).mean(), 1e-10
            ),
        }
    )


# Standard errors.


def log_likelihood(free: np.ndarray) -> float:
    """Of π_1, two means and two variances (spherical)."""
    share, means, variances = free[0], free[1:5].reshape(2, 2), free[5:7]
    each = [
        np.log(p) + stats.norm.logpdf(X, m, np.sqrt(v)).sum(1)
        for p, m, v in zip((share, 1 - share), means, variances, strict=True)
    ]
    return float(np.logaddexp(*each).sum())


def hessian(function: Any, at: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """By central differences."""
    steps = step * np.eye(len(at))
    return np.array(
        [
            [
                (function(at + a + b) - function(at + a - b) - function(at - a + b) + function(at - a - b))
                / (4 * step**2)
                for b in steps
            ]
            for a in steps
        ]
    )


@functools.cache
def converged() -> GaussianMixture:
    return GaussianMixture(2, tol=1e-13, reg_covar=0.0, **started("spherical")).fit(X)


def errors_law(errors: Gaussians) -> Scores:
    fitted = converged()
    at = np.concatenate([fitted.weights_[:1], fitted.means_.ravel(), fitted.covariances_])
    wanted = np.sqrt(np.diag(np.linalg.inv(-hessian(log_likelihood, at))))
    got = np.concatenate([np.asarray(errors.weights), np.ravel(errors.means), np.asarray(errors.covariances)])
    return {"errors": error(got / np.concatenate([wanted[:1], wanted]), 1.0, 1e-4)}


def test_standard_errors():
    assert converged().converged_ and converged().report_.verdict == "trust"
    assert_holds(errors_law(converged().standard_errors_))


def test_standard_errors_mutants():
    right, fitted = converged().standard_errors_, converged()
    count = 100 * fitted.weights_
    assert broken(errors_law(Gaussians(*(e**2 for e in right))))  # variances
    assert broken(errors_law(Gaussians(*(10 * e for e in right))))  # of one datum
    # As if which component a row comes from were seen.
    known = Gaussians(
        np.sqrt(fitted.weights_ * (1 - fitted.weights_) / 100),
        np.sqrt(fitted.covariances_ / count)[:, None] * np.ones((2, 2)),
        fitted.covariances_ / np.sqrt(count),
    )
    assert broken(errors_law(known))


# Weights.

WEIGHT = np.random.default_rng(1).integers(0, 4, 100).astype(float)


def weights_law(merged: Any) -> Scores:
    """Whole weights are repetitions and zero is absence, in any order, to the last digit; halves are halves."""
    plain: dict[str, Any] = {"n_components": 2, "random_state": 0, "covariance_type": "diag"}
    order, times = np.random.default_rng(2).permutation(100), WEIGHT.astype(int)
    rows, weight = merged(X[order], WEIGHT[order])
    one = GaussianMixture(**plain).fit(rows, sample_weight=weight)
    other = GaussianMixture(**plain).fit(X.repeat(times, 0))
    half = GaussianMixture(**plain).fit(X, sample_weight=WEIGHT / 2)
    return {
        "means": error(one.means_, other.means_, 1e-300),
        "covariances": error(one.covariances_, other.covariances_, 1e-300),
        "score": error(one.score_samples(X), other.score_samples(X), 1e-300),
        "lower bound": error(one.lower_bound_, other.lower_bound_, 1e-300),
        "errors": error(one.standard_errors_.means, other.standard_errors_.means, 1e-300),
        "half": error(half.means_, other.means_, 1e-3),  # EM's last steps may be other
        "half's errors": error(half.standard_errors_.means / other.standard_errors_.means, np.sqrt(2), 1e-2),
    }


def test_weights():
    assert_holds(weights_law(lambda x, weight: (x, weight)))


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_weights_mutants(exponent):
    assert broken(weights_law(lambda x, weight: (x, weight**exponent)))


# As scikit-learn's.


@pytest.mark.test
def test_pickles_come_back():
    fitted = converged()
    back = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(back.predict_proba(X), fitted.predict_proba(X))
    assert str(back.report_) == str(fitted.report_)
    assert np.array_equal(back.standard_errors_.means, fitted.standard_errors_.means)
    assert np.array_equal(back.posterior_.mean().means, fitted.posterior_.mean().means)


@pytest.mark.test
def test_posterior_is_in_the_users_coordinates():
    fitted = converged()
    theta = fitted.posterior_.mean()
    assert_holds(
        {
            "means": error(theta.means, fitted.means_, 1e-10),
            "density": error(fitted.posterior_.log_predictive(X), fitted.score_samples(X), 1e-8),
        }
    )


def test_samples():
    fitted = converged()
    x, labels = fitted.sample(20_000)
    assert x.shape == (20_000, 2) and labels.dtype.kind == "i"
    ones = x[labels == 1]
    assert_holds(
        {
            "share": z_mean(labels, fitted.weights_[1], fitted.weights_[0] * fitted.weights_[1]),
            "mean": z_mean(ones[:, 1], fitted.means_[1, 1], fitted.covariances_[1]),
            "square": z_mean(
                (ones[:, 0] - fitted.means_[1, 0]) ** 2, fitted.covariances_[1], 2 * fitted.covariances_[1] ** 2
            ),
        }
    )
    seeded = pickle.loads(pickle.dumps(fitted)).set_params(random_state=5)
    assert np.array_equal(seeded.sample(3)[0], seeded.sample(3)[0])


@pytest.mark.test
def test_warm_start_goes_on():
    settings = started("full", warm_start=True, max_iter=5, tol=1e-14)
    parts, whole = GaussianMixture(2, **settings), GaussianMixture(2, **settings).set_params(max_iter=10)
    for estimator, times in ((parts, 2), (whole, 1)):
        for _ in range(times):
            with pytest.warns(ConvergenceWarning):
                estimator.fit(X)
    assert_holds({name: error(getattr(parts, name), getattr(whole, name), 1e-9) for name in NAMES})


def test_a_second_fit_compiles_nothing(caplog):
    settings = started("full", random_state=0)
    GaussianMixture(2, **settings).fit(X).predict(X)
    with jax.log_compiles():
        fresh = GaussianMixture(2, **settings).set_params(means_init=[[51.0, -20.0], [53.0, -18.0]])
        fresh.fit(X[:97] + 1.0, sample_weight=WEIGHT[:97] + 1).predict(X[:70])
        assert not [r.message for r in caplog.records if "Compiling" in r.message]
        jax.jit(lambda a: a + 1)(jnp.zeros(7))
        assert [r.message for r in caplog.records if "Compiling" in r.message]  # it would have been seen


def test_it_goes_where_estimators_go():
    frame = pd.DataFrame(X, columns=["size", "age"])
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GaussianMixture(random_state=0, covariance_type="spherical")),
        {"gaussianmixture__n_components": [1, 2]},
        cv=2,
    ).fit(frame)
    assert search.best_params_ == {"gaussianmixture__n_components": 2}
    fitted = GaussianMixture(2, random_state=0, covariance_type="spherical").fit(frame)
    assert fitted.feature_names_in_.tolist() == ["size", "age"]
    again = clone(fitted).fit(frame)
    assert np.array_equal(again.means_, fitted.means_)
    assert np.array_equal(clone(fitted).fit_predict(frame), fitted.predict(frame))
    with pytest.warns(UserWarning, match="feature names"):
        fitted.predict(X)


# Faults.


@pytest.mark.quick
@pytest.mark.parametrize(
    ("settings", "x", "weight", "sentence"),
    [
        ({}, np.zeros((0, 2)), None, "0 sample"),
        ({"n_components": 4}, X[:3], None, "n_components = 4 needs at least as many distinct rows .* n_samples = 3"),
        ({"n_components": 2}, np.ones((5, 2)), None, "n_samples = 1\\. Give"),
        ({"n_components": 3}, X[:4], [1, 1, 0, 0], "n_samples = 2\\. Give"),
        ({}, [[1.0, np.nan], [2.0, 3.0]], None, "NaN"),
        ({}, X, -np.ones(100), "numbers ≥ 0; got -1"),
        ({}, X, np.zeros(100), "(?i)zero"),
        ({"n_components": 0}, X, None, "n_components is a whole number ≥ 1; got 0"),
        ({"n_components": 1.5}, X, None, "n_components is a whole number"),
        ({"covariance_type": "diagonal"}, X, None, "covariance_type is one of full, tied, diag, spherical"),
        ({"tol": 0}, X, None, "tol is a share"),
        ({"reg_covar": -1.0}, X, None, "reg_covar is a variance"),
        ({"max_iter": 0}, X, None, "max_iter is a whole number"),
        ({"n_init": True}, X, None, "n_init is a whole number"),
        ({"n_components": 2, "means_init": [[1.0]]}, X, None, r"means_init must be finite numbers of shape \(2, 2\)"),
        ({"n_components": 2, "weights_init": [0.5, 0.6]}, X, None, "with sum 1"),
        ({"precisions_init": [[[1.0, 2.0], [2.0, 1.0]]]}, X, None, "symmetric and positive definite"),
        ({"precisions_init": [-1.0], "covariance_type": "spherical"}, X, None, "must be positive"),
    ],
)
def test_errors_are_sentences(settings, x, weight, sentence):
    estimator = GaussianMixture(**settings)
    with pytest.raises(ValueError, match=sentence):
        estimator.fit(x, sample_weight=weight)
    for call in (lambda: estimator.report_, lambda: estimator.predict(X), lambda: estimator.sample()):
        with pytest.raises(NotFittedError):
            call()


@pytest.mark.test
def test_too_few_steps_are_said_once():
    with pytest.warns() as caught:
        fitted = GaussianMixture(2, max_iter=2, **started("full")).fit(X)
    assert [w.category for w in caught] == [ConvergenceWarning]
    assert "2 steps" in str(caught[0].message)
    assert not fitted.converged_ and fitted.n_iter_ == 2


def test_a_component_that_collapses():
    """Twenty equal rows: the likelihood has no bound there but the floor's."""
    rows = np.concatenate([X[:44], np.tile(X[:1] + 30.0, (20, 1))])
    with pytest.warns(TractableWarning) as caught:
        fitted = GaussianMixture(2, random_state=0).fit(rows)
    assert any("floor" in str(w.message) for w in caught)
    assert fitted.report_.verdict in ("caution", "reject")
    assert "components at the floor" in str(fitted.report_)
    # Without a floor the climb ends where the numbers do, or at rounding's own variance: the compiler decides.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = GaussianMixture(2, reg_covar=0.0, n_init=1, random_state=0).fit(rows)
    ended = {w.category for w in caught} == {ConvergenceWarning, TractableWarning}
    assert fitted.report_.verdict == "reject"
    assert ended == ("ended early" in str(fitted.report_)) == (not fitted.converged_)
    with pytest.raises(RunError, match="None of"):
        GaussianMixture(reg_covar=0.0).fit(np.ones((20, 2)))


def test_constant_columns_are_held_by_the_floor():
    with pytest.warns(TractableWarning, match="floor"):
        fitted = GaussianMixture(2, random_state=0, covariance_type="diag").fit(
            np.column_stack([X[:, 0], np.full(100, 0.3)])
        )
    assert_holds(
        {"variance": error(fitted.covariances_[:, 1], 1e-6, 1e-12), "mean": error(fitted.means_[:, 1], 0.3, 1e-10)}
    )
    assert fitted.report_.verdict == "caution"


# Factors.

LOADINGS = np.random.default_rng(5).normal(size=(5, 2))
Y = (
    np.random.default_rng(6).normal(size=(300, 2)) @ LOADINGS.T
    + np.random.default_rng(7).normal(size=(300, 5)) * [0.5, 0.8, 1.0, 0.6, 0.9]
    + np.arange(5) * 10.0
)


@functools.cache
def factored() -> FactorAnalysis:
    return FactorAnalysis(2, tol=1e-12, max_iter=5000).fit(Y)


def factor_law(fitted: FactorAnalysis) -> Scores:
    """scikit-learn's maximum; codes by conditioning, densities by SciPy, at the parameters reached."""
    theirs = decomposition.FactorAnalysis(2, tol=1e-12, max_iter=20_000, svd_method="lapack").fit(Y)
    dense = fitted.get_covariance()
    cross = np.linalg.solve(dense, fitted.loadings_)  # Cov[x]⁻¹ Cov[x, z]
    signs = np.sign(np.sum(fitted.components_ * theirs.components_, axis=1))[:, None]
    return {
        "components": error(fitted.components_ * signs, theirs.components_, 1e-4),
        "noise": error(fitted.noise_variance_, theirs.noise_variance_, 1e-4),
        "mean": error(fitted.mean_, Y.mean(0), 1e-8),
        "covariance": error(dense, theirs.get_covariance(), 1e-4),
        "score": error(fitted.score(Y), theirs.score(Y), 1e-9),
        "trace": error(fitted.loglike_[-1] / 300, fitted.lower_bound_, 1e-9),
        "score_samples": error(fitted.score_samples(Y), stats.multivariate_normal(fitted.mean_, dense).logpdf(Y), 1e-9),
        "codes": error(fitted.transform(Y), (Y - fitted.mean_) @ cross, 1e-9),
        "precision": error(fitted.get_precision() @ dense, np.eye(5), 1e-9),
    }


def test_factors():
    assert_holds(factor_law(factored()))
    assert factored().report_.verdict == "trust" and factored().converged_


@pytest.mark.parametrize(
    "wrong",
    [
        {"loadings_": np.eye(5, 2)},
        {"components_": factors.orthomax},
        {"noise_variance_": np.ones(5)},
        {"mean_": np.zeros(5)},
    ],
)
def test_factors_mutants(wrong):
    mutant = pickle.loads(pickle.dumps(factored()))
    for name, value in wrong.items():
        setattr(mutant, name, mutant.components_[::-1] if callable(value) else value)
    assert broken(factor_law(mutant))


def expected_errors() -> np.ndarray:
    """Of the noise, by differences of n E log p(x | θ) over x of the fitted covariance."""
    fitted = factored()
    truth = fitted.get_covariance()

    def average(free: np.ndarray) -> float:
        w, noise = free[:10].reshape(5, 2), free[10:]
        dense = w @ w.T + np.diag(noise)
        return -150.0 * (np.linalg.slogdet(dense)[1] + np.trace(np.linalg.solve(dense, truth)))

    at = np.concatenate([fitted.loadings_.ravel(), fitted.noise_variance_])
    information = -hessian(average, at, 1e-3)
    return np.sqrt(np.diag(np.linalg.pinv(information, rcond=1e-4, hermitian=True))[10:])


def factor_errors_law(errors: Loadings) -> Scores:
    return {
        "noise": error(errors.noise / expected_errors(), 1.0, 1e-3),
        "mean": error(errors.mean, np.sqrt(np.diag(factored().get_covariance()) / 300), 1e-10),
    }


def test_factor_errors():
    fitted, right = factored(), factored().standard_errors_
    assert right.loadings is None
    assert_holds(factor_errors_law(right))
    residual = np.sqrt(2 / 300) * fitted.noise_variance_  # as if z were seen
    assert broken(factor_errors_law(right._replace(noise=residual)))
    assert broken(factor_errors_law(right._replace(mean=np.sqrt(fitted.noise_variance_ / 300))))


@pytest.mark.quick
def test_factor_errors_do_not_depend_on_units_and_need_every_factor():
    theta = Loadings(np.zeros(5), LOADINGS, np.arange(1.0, 6.0))
    scale = np.array([1e-3, 1.0, 1e3, 1.0, 1e6])
    right, least = factors.standard_errors(theta, 300.0)
    far, other = factors.standard_errors(
        Loadings(np.zeros(5), scale[:, None] * LOADINGS, scale**2 * theta.noise), 300.0
    )
    assert_holds({"noise": error(far.noise / scale**2 / right.noise, 1.0, 1e-9), "least": error(other, least, 1e-9)})
    nothing = LOADINGS * [1.0, 0.0]  # a factor without loadings, whose noise cannot be told from the others'
    assert factors.standard_errors(theta._replace(loadings=nothing), 300.0) == (None, 0.0)
    assert factors.standard_errors(theta._replace(noise=np.array([1e-12, 1, 1, 1, 1])), 300.0)[0] is None


def test_factor_errors_where_noise_is_not_determined():
    fitted = FactorAnalysis(4, max_iter=20, tol=1e-3).fit(Y)
    assert fitted.standard_errors_ is None
    assert fitted.report_.verdict == "caution"


@pytest.mark.test
def test_rotations():
    """Varimax and quartimax are stationary, above where they began, and leave the density alone."""
    plain = factored()
    scores = {}
    for name, gamma in factors.ROTATIONS.items():

        def criterion(loadings, gamma=gamma):
            return np.sum(loadings**4) - gamma / len(loadings) * np.sum(np.sum(loadings**2, axis=0) ** 2)

        told = plain.loadings_ @ factors.find_rotation(plain._theta(), name)
        turn = lambda angle: np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])  # noqa: E731
        best = max(criterion(told @ turn(a)) for a in np.linspace(0, np.pi, 2001))
        scores[name] = error(criterion(told), best, 1e-6)
        scores[f"{name} density"] = error(told @ told.T, plain.loadings_ @ plain.loadings_.T, 1e-10)
        assert criterion(told) > criterion(plain.loadings_)
    inner = plain.loadings_.T @ (plain.loadings_ / np.asarray(plain.noise_variance_)[:, None])
    scores["diagonal"] = error(inner[0, 1], 0.0, 1e-10)
    assert inner[0, 0] > inner[1, 1]
    assert_holds(scores)


def test_factors_go_where_transformers_go():
    fitted = factored()
    back = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(back.transform(Y), fitted.transform(Y))
    frame = pd.DataFrame(Y, columns=list("abcde"))
    told = clone(fitted).set_output(transform="pandas").fit_transform(frame)
    assert told.columns.tolist() == ["factoranalysis0", "factoranalysis1"]
    assert_holds({"codes": error(told.to_numpy(), fitted.transform(Y), 1e-9)})
    x, z = fitted.sample(4000)
    assert z.shape == (4000, 2)
    residual = x - fitted.mean_ - z @ fitted.components_
    assert_holds(
        {f"noise {i}": z_mean(residual[:, i] ** 2, v, 2 * v**2) for i, v in enumerate(fitted.noise_variance_)}
        | {"code": z_mean(z[:, 0] * z[:, 1], 0.0, 1.0)}
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n_components": 6}, "at most the number of columns; got 6 for 5"),
        ({"n_components": 0}, "n_components is a whole number"),
        ({"rotation": "oblimin"}, "rotation is None, varimax or quartimax"),
    ],
)
def test_errors_of_factors_are_sentences(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        FactorAnalysis(**settings).fit(Y)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "argument"), [(kind, name) for kind in (GaussianMixture, FactorAnalysis) for name in kind._removed]
)
def test_removed_arguments_say_what_to_write(kind, argument):
    with pytest.raises(TypeError, match=rf"{argument}=\.\.\.\) was removed in 0.2; write tr.infer\("):
        kind(**{argument: 1})
