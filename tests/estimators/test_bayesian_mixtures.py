"""The believed mixture as an estimator: scikit-learn's optimum, q's own widths, the true bound and predictive."""

import functools
import math
import pickle
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
from montecarlo import Scores, assert_holds, broken, error, ks, z_mean
from sklearn import mixture as sk
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from tractable.core.errors import TractableWarning
from tractable.estimators import BayesianGaussianMixture
from tractable.latent.mixture import Gaussians

pytestmark = pytest.mark.laws

special: Any = scipy.special  # whose types know less than it has
stats: Any = scipy.stats
RNG, CENTRE = np.random.default_rng(0), np.array([1000.0, -2000.0])
X = CENTRE + np.concatenate(
    [
        RNG.normal(size=(40, 2)),
        0.5 * RNG.normal(size=(25, 2)) + [9.0, 4.0],
        RNG.normal(size=(20, 2)) @ [[0.7, 0.4], [0.0, 0.7]] + [-2.0, 9.0],
    ]
)
TWO = X[:65]
DISTRIBUTION, PROCESS = "dirichlet_distribution", "dirichlet_process"
KINDS = ("full", "tied", "diag", "spherical")


@functools.cache
def process(kind: str) -> BayesianGaussianMixture:
    """Six components for two clusters."""
    return BayesianGaussianMixture(6, covariance_type=kind, n_init=8, random_state=0, draws=50).fit(TWO)


@functools.cache
def three() -> BayesianGaussianMixture:
    settings: dict[str, Any] = {"tol": 1e-12, "reg_covar": 0.0, "random_state": 0, "draws": 2000}
    return BayesianGaussianMixture(3, weight_concentration_prior_type=DISTRIBUTION, **settings).fit(X)


@pytest.mark.filterwarnings("ignore:directions at the floor", "ignore:The climb has not")
@parametrize_with_checks([BayesianGaussianMixture()])
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


def fresh(fitted: BayesianGaussianMixture, **settings: Any) -> BayesianGaussianMixture:
    """Of the same settings, not fitted."""
    return BayesianGaussianMixture(**(fitted.get_params() | settings))


# scikit-learn's numbers.


def changed(fitted: BayesianGaussianMixture, **attributes: Any) -> BayesianGaussianMixture:
    """As if it had been told otherwise."""
    other = pickle.loads(pickle.dumps(fitted))
    for name, value in attributes.items():
        setattr(other, name, value)
    return other


@functools.cache
def scikit_learns() -> Any:
    return sk.BayesianGaussianMixture(
        n_components=3, weight_concentration_prior_type=DISTRIBUTION, tol=1e-13, max_iter=2000, reg_covar=0.0,
        n_init=3, random_state=0,
    ).fit(X)  # fmt: skip


def same_law(fitted: BayesianGaussianMixture) -> Scores:
    """One optimum, from starts of their own; components by where they lie."""
    theirs = scikit_learns()
    one, other = np.argsort(fitted.means_[:, 0]), np.argsort(theirs.means_[:, 0])
    names = (
        "weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_", "weight_concentration_",
        "mean_precision_", "degrees_of_freedom_",
    )  # fmt: skip
    priors = ("weight_concentration", "mean_precision", "mean", "degrees_of_freedom", "covariance")
    scores = {name: error(getattr(fitted, name)[one], getattr(theirs, name)[other], 1e-8) for name in names}
    for name in priors:
        attribute = f"{name}_prior_"
        scores[attribute] = error(getattr(fitted, attribute), getattr(theirs, attribute), 1e-10)
    new = X[::3] + np.array([2.0, 1.0])
    return scores | {
        "predict_proba": error(fitted.predict_proba(new)[:, one], theirs.predict_proba(new)[:, other], 1e-8)
    }


def test_scikit_learns_optimum():
    assert three().report_.verdict == "trust" and three().converged_
    assert_holds(same_law(three()))


def test_scikit_learns_optimum_mutants():
    right = three()
    nu = right.degrees_of_freedom_[:, None, None]
    count = right.mean_precision_ - 1
    for wrong in (
        {"covariances_": right.covariances_ * nu},  # C for C/ν
        {"covariances_": right.covariances_ * nu / (nu - 3)},  # E[Λ⁻¹] for E[Λ]⁻¹
        {"weights_": count / count.sum()},  # without the prior's counts
        {"means_": right.means_ - right._frame.centre},
        {"covariance_prior_": np.cov(X.T, bias=True)},
        {"precisions_cholesky_": np.linalg.cholesky(right.precisions_)},
    ):
        assert broken(same_law(changed(right, **wrong))), list(wrong)


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS)
def test_priors_are_scikit_learns(kind):
    """Those that are made from the rows; weighted as if repeated."""
    weight = np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
    estimator = BayesianGaussianMixture(2, covariance_type=kind, reg_covar=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs = sk.BayesianGaussianMixture(n_components=2, covariance_type=kind, max_iter=1, random_state=0)
        theirs = theirs.fit(X.repeat(weight.astype(int), 0))
    estimator.n_features_in_ = 2
    plan = estimator._plan(X, weight)
    assert not plan.checks
    wanted = {name: getattr(theirs, f"{name.removesuffix('_prior')}_prior_") for name in plan.prior}
    assert_holds({name: error(plan.prior[name], wanted[name], 1e-9) for name in wanted})


# What q says, in closed form.


def evidence(x: np.ndarray, m0: np.ndarray, beta: float, nu: float, c0: np.ndarray) -> float:
    """log p(x) of one normal under Normal–Wishart; Murphy 2007, eq. 266."""
    n, d = x.shape
    off = x.mean(0) - m0
    c = c0 + n * np.cov(x.T, bias=True) + beta * n / (beta + n) * np.outer(off, off)
    return (
        -0.5 * n * d * math.log(math.pi)
        + special.multigammaln((nu + n) / 2, d)
        - special.multigammaln(nu / 2, d)
        + 0.5 * nu * np.linalg.slogdet(c0)[1]
        - 0.5 * (nu + n) * np.linalg.slogdet(c)[1]
        + 0.5 * d * math.log(beta / (beta + n))
    )


def test_the_bound_of_one_component_is_the_evidence():
    """Of rows in units of their own, far from the prior's mean; and one row more is the predictive density."""
    m0, c0 = CENTRE + np.array([3.0, -2.0]), np.array([[2.0, 0.5], [0.5, 1.0]])
    settings: dict[str, Any] = {
        "mean_prior": m0, "mean_precision_prior": 0.7, "degrees_of_freedom_prior": 4.0, "covariance_prior": c0,
    }  # fmt: skip
    fitted = BayesianGaussianMixture(weight_concentration_prior_type=DISTRIBUTION, draws=1, **settings).fit(X)
    wanted = evidence(X, m0, 0.7, 4.0, c0)
    row = X[:1] + np.array([1.0, 2.0])
    assert_holds(
        {
            "bound": error(fitted.lower_bound_, wanted / len(X), 1e-9),
            "told": error(fitted.posterior_.found["elbo"], wanted, 1e-7),
            "next": error(
                fitted.score_samples(row), evidence(np.vstack([X, row]), m0, 0.7, 4.0, c0) - wanted, 1e-8
            ),
        }
    )  # fmt: skip


def students(fitted: BayesianGaussianMixture) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], np.ndarray]:
    """Weights, centres, squared scales and degrees of freedom of a process; the rest of the stick has the prior's."""
    (a, b), nu0, d = fitted.weight_concentration_, fitted.degrees_of_freedom_prior_, fitted.n_features_in_
    weights, left = [], 1.0
    for piece in a / (a + b):
        weights.append(left * piece)
        left *= 1 - piece
    means = np.vstack([fitted.means_, fitted.mean_prior_])
    beta = np.append(fitted.mean_precision_, fitted.mean_precision_prior_)
    if fitted.covariance_type == "tied":
        nu, spreads = np.full(len(beta), fitted.degrees_of_freedom_), [fitted.covariances_] * len(beta)
    else:
        nu = np.append(fitted.degrees_of_freedom_, nu0)
        spreads = [*fitted.covariances_, fitted.covariance_prior_ / nu0]
    matrices = fitted.covariance_type in ("full", "tied")
    free = nu - d + 1 if matrices else d * nu if fitted.covariance_type == "spherical" else nu
    scales = [s * (1 + 1 / b) * (n / f if matrices else 1) for s, b, n, f in zip(spreads, beta, nu, free, strict=True)]
    return np.array([*weights, left]), means, scales, free


def predictive(fitted: BayesianGaussianMixture, x: np.ndarray) -> np.ndarray:
    """SciPy's Student t's, component by component."""
    terms = []
    for weight, mean, scale, free in zip(*students(fitted), strict=True):
        if fitted.covariance_type == "diag":
            density = stats.t(free, mean, np.sqrt(scale)).logpdf(x).sum(1)
        else:
            density = stats.multivariate_t(mean, scale * (np.eye(2) if np.ndim(scale) == 0 else 1), free).logpdf(x)
        terms.append(np.log(weight) + density)
    return special.logsumexp(terms, axis=0)


@pytest.mark.parametrize("kind", KINDS)
def test_predictive_densities(kind):
    fitted, new = process(kind), np.concatenate([TWO[::5] + 1.0, X[-4:], CENTRE[None] + 40.0])
    assert_holds({"density": error(fitted.score_samples(new), predictive(fitted, new), 1e-9)})
    # Plugged-in expectations, as scikit-learn has them, are another thing.
    plugged = process("full").weights_, process("full").means_, process("full").covariances_
    normal = special.logsumexp(
        [np.log(w) + stats.multivariate_normal(m, c).logpdf(new) for w, m, c in zip(*plugged, strict=True)], axis=0
    )
    assert broken({"density": error(normal, predictive(process("full"), new), 1e-9)})
    shares = fitted.predict_proba(new)
    assert shares.shape == (len(new), 6)
    assert_holds({"shares": error(shares.sum(1), 1.0, 1e-10)})


def samples_law(fitted: BayesianGaussianMixture, x: np.ndarray, labels: np.ndarray) -> Scores:
    """Shares, a column of the largest component, and E[q/p] = 1 under p for any density q: here a narrow one."""
    weights, means, scales, free = students(fitted)
    big = int(np.argmax(weights))
    column = (x[labels == big, 0] - means[big, 0]) / np.sqrt(np.ravel(scales[big])[0])
    narrow = stats.multivariate_normal(fitted.means_[big], 0.5 * np.cov(TWO[:40].T)).logpdf(x)
    ratio = np.exp(narrow - fitted.score_samples(x))
    return {
        "share": z_mean(labels == big, weights[big], weights[big] * (1 - weights[big])),
        "column": ks(column, stats.t(free[big]).cdf),
        "ratio": z_mean(ratio, 1.0, ratio.var()),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_of_the_predictive_density(kind):
    fitted = process(kind)
    x, labels = fitted.sample(4000)
    assert x.shape == (4000, 2) and labels.max() <= 6 and labels.dtype.kind == "i"
    assert_holds(samples_law(fitted, x, labels))
    assert np.array_equal(fitted.sample(3)[0], fitted.sample(3)[0])
    centres = students(fitted)[1][labels]
    assert broken(samples_law(fitted, centres + 1.3 * (x - centres), labels))
    assert broken(samples_law(fitted, x + 0.5, labels))
    assert broken(samples_law(fitted, x, np.where(labels == labels[0], (labels[0] + 1) % 6, labels[0])))


def widths_law(draws: Gaussians, errors: Gaussians) -> Scores:
    """π_k ~ Beta, μ_ki ~ t, Σ_k,ii ~ inverse Gamma; and sds within what 2000 draws tell of them."""
    fitted, scores = three(), {}
    a, beta, nu = fitted.weight_concentration_, fitted.mean_precision_, fitted.degrees_of_freedom_
    scale = fitted.covariances_ * nu[:, None, None]
    for k in range(3):
        share = stats.beta(a[k], a.sum() - a[k])
        scores |= {
            f"π{k}": ks(draws.weights[:, k], share.cdf),
            f"sd π{k}": error(errors.weights[k] / share.std(), 1, 0.1),
        }
        for i in range(2):
            free = nu[k] - 1  # ν − d + 1
            mean = stats.t(free, fitted.means_[k, i], np.sqrt(scale[k, i, i] / (beta[k] * free)))
            variance = stats.invgamma(free / 2, scale=scale[k, i, i] / 2)
            scores |= {
                f"μ{k}{i}": ks(draws.means[:, k, i], mean.cdf),
                f"sd μ{k}{i}": error(errors.means[k, i] / mean.std(), 1, 0.1),
                f"Σ{k}{i}": ks(draws.covariances[:, k, i, i], variance.cdf),
                f"sd Σ{k}{i}": error(errors.covariances[k, i, i] / variance.std(), 1, 0.15),
            }
    return scores


def test_standard_errors_are_those_of_q():
    fitted = three()
    draws = jax.tree.map(lambda leaf: leaf[0], fitted.posterior_.draws)
    errors = fitted.standard_errors_
    assert isinstance(draws, Gaussians)
    assert_holds(widths_law(draws, errors))
    assert_holds({n: error(getattr(errors, n), np.std(getattr(draws, n), axis=0), 1e-8) for n in draws._fields})
    assert broken(widths_law(draws, Gaussians(*(e**2 for e in errors))))  # variances
    assert broken(widths_law(draws, Gaussians(*(e / math.sqrt(len(X)) for e in errors))))
    assert broken(widths_law(draws._replace(means=draws.means - fitted._frame.centre), errors))
    assert broken(widths_law(draws._replace(covariances=draws.covariances * 2), errors))


# Components that nothing needs.


@pytest.mark.parametrize("kind", KINDS)
def test_superfluous_components_lose_their_weight(kind):
    fitted = process(kind)
    order = np.argsort(-fitted.weights_)
    assert_holds({"two": error(np.sort(fitted.weights_)[-2:], [25 / 65, 40 / 65], 0.01)})
    assert fitted.weights_[order[2:]].max() < 0.01
    assert "2  of 6 explain a row or more" in str(fitted.report_)
    labels = fitted.predict(TWO)
    assert set(labels[:40]) == {order[0]} and set(labels[40:]) == {order[1]}
    flat: Any = fitted.posterior_.unconstrained
    assert fitted.standard_errors_.means.shape == (6, 2) and np.isfinite(flat).all()


def test_the_draws_of_a_process_hold_the_rest_of_the_stick():
    draws: Any = process("full").posterior_.draws
    assert draws.weights.shape == (1, 50, 7) and draws.weights[..., -1].min() > 0
    assert_holds({"stick": error(draws.weights.sum(-1), 1.0, 1e-8)})


# Weights.


def weights_law(exponent: float) -> Scores:
    weight = np.random.default_rng(2).integers(0, 4, len(TWO)).astype(float)
    order = np.random.default_rng(3).permutation(len(TWO))
    settings: dict[str, Any] = {"covariance_type": "diag", "n_init": 8, "random_state": 0, "draws": 50}
    one = BayesianGaussianMixture(6, **settings).fit(TWO[order], sample_weight=weight[order] ** exponent)
    other = BayesianGaussianMixture(6, **settings).fit(TWO.repeat(weight.astype(int), 0))
    names = ("weights_", "means_", "covariances_", "lower_bound_", "covariance_prior_", "mean_prior_")
    return {name: error(getattr(one, name), getattr(other, name), 1e-300) for name in names} | {
        "errors": error(one.standard_errors_.means, other.standard_errors_.means, 1e-300)
    }


def test_weights_are_repetitions():
    assert_holds(weights_law(1.0))
    assert broken(weights_law(0.0)) and broken(weights_law(0.5))


# As scikit-learn's.


def test_units_do_not_matter():
    """Columns turned and stretched are the same fit: the prior goes with them."""
    turn = np.array([[1e3, 2e2], [0.0, 1e-2]])
    fitted = fresh(three()).fit((X - CENTRE) @ turn.T)
    one, other = np.argsort(fitted.weights_), np.argsort(three().weights_)
    means = (three().means_ - CENTRE) @ turn.T
    stretch = np.outer(*[np.sqrt(np.diag(fitted.covariance_prior_))] * 2)
    assert_holds(
        {
            "weights": error(fitted.weights_[one], three().weights_[other], 1e-8),
            "means": error((fitted.means_[one] - means[other]) / np.sqrt(np.diag(stretch)), 0.0, 1e-8),
            "covariances": error(
                (fitted.covariances_[one] - (turn @ three().covariances_ @ turn.T)[other]) / stretch, 0.0, 1e-8
            ),
            "bound": error(fitted.lower_bound_, three().lower_bound_ - np.linalg.slogdet(turn)[1], 1e-8),
        }
    )


def test_it_comes_back_and_goes_on():
    fitted = process("full")
    back = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(back.score_samples(X), fitted.score_samples(X))
    assert np.array_equal(back.predict_proba(X), fitted.predict_proba(X))
    assert str(back.report_) == str(fitted.report_)
    assert np.array_equal(back.posterior_.mean().means, fitted.posterior_.mean().means)
    again = fresh(fitted).fit(TWO)
    assert np.array_equal(again.means_, fitted.means_)
    # From where it ended there is nothing left to climb; other rows are another frame.
    warm = back.set_params(warm_start=True).fit(TWO)
    assert warm.n_iter_ < 0.5 * again.n_iter_
    assert_holds({"warm": error(warm.lower_bound_, again.lower_bound_, 1e-6)})
    assert np.array_equal(warm.fit(TWO[::2] + 0.5).predict(TWO), again.predict(TWO))


def test_a_second_fit_compiles_nothing(caplog):
    """Though its prior is another's."""
    fitted = process("full")
    fitted.predict(TWO)
    with jax.log_compiles():
        fresh(fitted).fit(0.1 * TWO[:65] + 7.0).predict(TWO)
        assert not [r.message for r in caplog.records if "Compiling" in r.message]
        jax.jit(lambda a: a + 1)(jnp.zeros(9))
        assert [r.message for r in caplog.records if "Compiling" in r.message]  # it would have been seen


@pytest.mark.filterwarnings("ignore:The climb has not")
def test_it_goes_where_estimators_go():
    frame = pd.DataFrame(X, columns=["size", "age"])
    search = GridSearchCV(
        BayesianGaussianMixture(6, random_state=0, draws=10), {"covariance_type": ["full", "spherical"]}, cv=2
    ).fit(frame)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all() and search.best_score_ == scores.max()
    fitted = search.best_estimator_
    assert fitted.feature_names_in_.tolist() == ["size", "age"]
    assert np.array_equal(fresh(fitted).fit_predict(frame), fitted.predict(frame))
    with pytest.warns(UserWarning, match="feature names"):
        fitted.predict(X)


# Faults.


@pytest.mark.quick
@pytest.mark.parametrize(
    ("settings", "x", "weight", "sentence"),
    [
        ({"n_components": 4}, X[:3], None, "n_components = 4 needs at least as many distinct rows .* n_samples = 3"),
        ({}, [[1.0, np.nan], [2.0, 3.0]], None, "NaN"),
        ({}, X, -np.ones(len(X)), "numbers ≥ 0; got -1"),
        ({}, X, np.full(len(X), 1 / len(X)), "sums to 1: one row or less"),
        ({"n_components": 0}, X, None, "n_components is a whole number ≥ 1; got 0"),
        ({"draws": 0}, X, None, "draws is a whole number"),
        ({"covariance_type": "diagonal"}, X, None, "covariance_type is one of full, tied, diag, spherical"),
        ({"weight_concentration_prior_type": "beta"}, X, None, "one of dirichlet_process, dirichlet_distribution"),
        ({"weight_concentration_prior": 0}, X, None, "weight_concentration_prior is a number above 0"),
        ({"mean_precision_prior": "a"}, X, None, "mean_precision_prior is a number above 0"),
        ({"tol": 0}, X, None, "tol is a share"),
        ({"reg_covar": -0.5}, X, None, "reg_covar is a variance"),
        ({"degrees_of_freedom_prior": 1.0}, X, None, "degrees_of_freedom is above 1"),
        ({"mean_prior": [1.0]}, X, None, "mean_prior expects 2 finite numbers, one for each column"),
        ({"covariance_prior": np.ones((2, 2))}, X, None, "covariance_prior is not positive definite"),
        ({"covariance_prior": [[1.0, 0.5], [0.0, 1.0]]}, X, None, "symmetric"),
        ({"covariance_prior": -1.0, "covariance_type": "spherical"}, X, None, "not positive definite"),
        ({"reg_covar": 0.0}, np.column_stack([X[:, 0], np.ones(len(X))]), None, "Is a column constant"),
    ],
)
def test_errors_are_sentences(settings, x, weight, sentence):
    estimator = BayesianGaussianMixture(**settings)
    with pytest.raises(ValueError, match=sentence):
        estimator.fit(x, sample_weight=weight)
    for call in (lambda: estimator.report_, lambda: estimator.predict(X), lambda: estimator.sample()):
        with pytest.raises(NotFittedError):
            call()


@pytest.mark.test
def test_what_fails_leaves_the_last_fit():
    fitted = pickle.loads(pickle.dumps(process("full")))
    with pytest.raises(ValueError, match="degrees_of_freedom is above"):
        fitted.set_params(degrees_of_freedom_prior=-1).fit(X * 2)
    assert np.array_equal(fitted.score_samples(X), process("full").score_samples(X))


@pytest.mark.test
def test_constant_columns_are_said():
    with pytest.warns(TractableWarning, match="directions at the floor, 1: in which the rows vary by less"):
        fitted = fresh(process("full")).fit(np.column_stack([TWO[:, 0], np.full(len(TWO), 0.3)]))
    assert fitted.report_.verdict == "caution" and "directions at the floor" in str(fitted.report_)
    assert_holds({"mean": error(fitted.means_[:, 1], 0.3, 1e-10)})


@pytest.mark.test
def test_too_few_steps_are_said():
    with pytest.warns(ConvergenceWarning, match="in 2 steps, of max_iter=2"):
        fitted = fresh(process("full"), max_iter=2).fit(TWO)
    assert not fitted.converged_ and fitted.n_iter_ == 2
