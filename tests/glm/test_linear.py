"""Each model's log likelihood and prior against scipy.stats; the same arguments, the same Model."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from tractable.core.errors import ModelError
from tractable.core.model import log_density
from tractable.glm import linear
from tractable.glm.families import BernoulliLogits

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3))
WEIGHTS = RNG.normal(size=3)
ETA = 0.4 + X @ WEIGHTS
PARAMS = {"intercept": jnp.array(0.4), "weights": jnp.array(WEIGHTS)}
CLASSES = RNG.integers(0, 2, 7)

EVERY = {
    "normal": lambda: linear.generalised_linear(3, "normal"),
    "bernoulli": lambda: linear.generalised_linear(3, "bernoulli"),
    "categorical": lambda: linear.generalised_linear(3, "categorical", 4),
    "known noise": lambda: linear.bayesian_linear(3, 0.5, 2.0),
    "laplace": lambda: logistic_laplace(1.0),
    "mixture": linear.gaussian_mixture_2d,
}


def logistic_laplace(scale):
    """Logistic regression with Laplace priors, as Welling & Teh 2011 (section 5.2) fit to the a9a data."""
    priors = {"intercept": dist.Laplace(0.0, scale), "weights": dist.Laplace(0.0, scale)}
    return linear.with_priors(linear.generalised_linear(3, "bernoulli"), priors)


def test_normal():
    model = linear.generalised_linear(3, "normal", weight_scale=2.0, intercept_scale=3.0)
    params = {**PARAMS, "noise": jnp.array(0.7)}
    y = RNG.normal(size=7)
    np.testing.assert_allclose(model.log_likelihoods(params, (y, X)), stats.norm.logpdf(y, ETA, 0.7))
    prior = stats.norm.logpdf(WEIGHTS, 0, 2).sum() + stats.norm.logpdf(0.4, 0, 3) + stats.halfnorm.logpdf(0.7)
    np.testing.assert_allclose(model.log_prior(params), prior)


@pytest.mark.test
def test_bernoulli():
    model = linear.generalised_linear(3, "bernoulli")
    expected = stats.bernoulli.logpmf(CLASSES, 1 / (1 + np.exp(-ETA)))
    np.testing.assert_allclose(model.log_likelihoods(PARAMS, (CLASSES, X)), expected)


@pytest.mark.test
def test_bernoulli_far_from_the_boundary_is_finite():
    params = {"intercept": jnp.array(500.0), "weights": jnp.zeros(3)}
    model = linear.generalised_linear(3, "bernoulli")
    np.testing.assert_allclose(model.log_likelihoods(params, (np.array([0]), X[:1])), [-500.0])


@pytest.mark.test
def test_laplace_prior():
    expected = stats.laplace.logpdf(WEIGHTS, 0, 0.5).sum() + stats.laplace.logpdf(0.4, 0, 0.5)
    np.testing.assert_allclose(logistic_laplace(0.5).log_prior(PARAMS), expected)


def test_categorical():
    model = linear.generalised_linear(3, "categorical", 4)
    params = model.sample_prior(jax.random.key(1))
    y = RNG.integers(0, 4, 7)
    eta = np.asarray(params["intercept"]) + X @ np.asarray(params["weights"])
    p = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    expected = [stats.multinomial.logpmf(np.eye(4)[label], 1, q) for label, q in zip(y, p, strict=True)]
    np.testing.assert_allclose(model.log_likelihoods(params, (y, X)), expected)


def test_categorical_prior_is_that_of_independent_normals_but_for_their_mean():
    model = linear.generalised_linear(3, "categorical", 4, weight_scale=1.5, intercept_scale=3.0)
    w, a = (np.asarray(model.sample_prior(jax.random.key(2))[name]) for name in ("weights", "intercept"))
    np.testing.assert_allclose(w.sum(1), 0, atol=1e-12)

    def given_zero_sum(values, sd):
        # the mean's coordinate, Σ/√C, is itself N(0, sd²) and independent
        return stats.norm.logpdf(values, 0, sd).sum() - stats.norm.logpdf(0, 0, sd) * len(values)

    expected = given_zero_sum(w, 1.5) + given_zero_sum(a[None], 3.0)
    np.testing.assert_allclose(model.log_prior({"weights": w, "intercept": a}), expected)


def test_categorical_prior_has_no_special_class():
    model = linear.generalised_linear(3, "categorical", 4)
    params = model.sample_prior(jax.random.key(3))
    order = np.array([2, 0, 3, 1])
    relabelled = {"weights": params["weights"][:, order], "intercept": params["intercept"][order]}
    np.testing.assert_allclose(model.log_prior(relabelled), model.log_prior(params))


@pytest.mark.test
def test_known_noise():
    model = linear.bayesian_linear(3, 0.5, 2.0)
    y = RNG.normal(size=7)
    params = {"weights": jnp.array(WEIGHTS)}
    np.testing.assert_allclose(model.log_likelihoods(params, (y, X)), stats.norm.logpdf(y, X @ WEIGHTS, 0.5))
    np.testing.assert_allclose(model.log_prior(params), stats.norm.logpdf(WEIGHTS, 0, 2).sum())


def test_mixture():
    model = linear.gaussian_mixture_2d()
    params = {"theta": jnp.array([0.3, -1.2])}
    x = np.array([-40.0, -1.0, 0.0, 2.5, 60.0])
    sd = np.sqrt(2)
    expected = np.log(0.5) + np.logaddexp(stats.norm.logpdf(x, 0.3, sd), stats.norm.logpdf(x, 0.3 - 1.2, sd))
    np.testing.assert_allclose(model.log_likelihoods(params, (x, None)), expected)
    prior = stats.norm.logpdf(0.3, 0, np.sqrt(10)) + stats.norm.logpdf(-1.2)
    np.testing.assert_allclose(model.log_prior(params), prior)


@pytest.mark.quick
def test_drawn_mixture_is_a_mixture():
    """Its variance is 2 + ¼ of the squared distance; that of an average of the components, 1 + ¼."""
    n, distance = 200_000, 3.0
    x = linear.draw_mixture(n, (1.0, distance), seed=4)
    np.testing.assert_allclose(x.mean(), 1 + distance / 2, atol=5 * np.sqrt(4.25 / n))
    fourth = 3 * 2**2 + 6 * 2 * (distance / 2) ** 2 + (distance / 2) ** 4
    variance = 2 + distance**2 / 4
    np.testing.assert_allclose(x.var(), variance, atol=5 * np.sqrt((fourth - variance**2) / n))


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_density_and_gradient_are_finite_in_both_precisions(make):
    for precision in (True, False):
        with jax.enable_x64(precision):
            model = make()
            params = model.sample_prior(jax.random.key(0))
            rows = (jnp.ones(4, int), None if "theta" in params else jnp.ones((4, 3)))
            position = model.space.ravel(model.unconstrain(params))
            value, slope = jax.jit(jax.value_and_grad(log_density(model, rows, flat=True)))(position)
            assert value.dtype == position.dtype == jnp.result_type(float)
            assert np.isfinite(value) and np.isfinite(slope).all()
            back = model.constrain(model.space.unravel(position))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), back, params)


@pytest.mark.test
def test_same_arguments_same_model():
    first = linear.generalised_linear(3, "bernoulli")
    assert first is linear.generalised_linear(features=3, family="bernoulli", weight_scale=2.5)
    assert first is not linear.generalised_linear(3, "bernoulli", weight_scale=1.0)
    assert linear.bayesian_linear(3, 1, 1) is linear.bayesian_linear(3, 1.0, 1.0)
    assert linear.gaussian_mixture_2d() is linear.gaussian_mixture_2d()
    with jax.enable_x64(False):
        assert first is not linear.generalised_linear(3, "bernoulli")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: linear.generalised_linear(3, "cauchy"), "family is one of .* got 'cauchy'"),
        (lambda: linear.generalised_linear(3, "categorical"), "classes= is a number, 2 or more.*got None"),
        (lambda: linear.generalised_linear(3, "normal", 2), "categorical and ordered alone; got 2 for 'normal'"),
        (lambda: linear.generalised_linear(0, "normal"), "features must be positive"),
        (lambda: linear.bayesian_linear(3, -1.0, 1.0), "noise_sd must be positive and finite; got -1.0"),
    ],
)
def test_faults(make, sentence):
    with pytest.raises(ModelError, match=sentence):
        make()


@pytest.mark.test
@pytest.mark.parametrize("eta", [-40.0, -1.0, 0.0, 0.5, 40.0])
def test_logits_have_their_density_and_derivative(eta):
    """log p(y|η) and y − σ(η), at η = 0 too, where a density with a |η| in it has neither derivative."""
    for y in (0, 1):
        value, slope = jax.value_and_grad(lambda e: BernoulliLogits(e).log_prob(y))(eta)  # noqa: B023
        np.testing.assert_allclose(value, -np.logaddexp(0.0, -(2 * y - 1) * eta), rtol=1e-12)
        np.testing.assert_allclose(slope, y - 1 / (1 + np.exp(-eta)), atol=1e-12)


def test_equal_priors_by_name_are_one_model():
    assert logistic_laplace(1.0) is logistic_laplace(1.0)


@pytest.mark.test
@pytest.mark.parametrize(
    ("family", "priors", "sentence"),
    [
        ("normal", {"weight": dist.Normal(0.0, 1.0)}, r"no parameter 'weight'; the model has .* Did you mean"),
        ("normal", {"noise": dist.Normal(0.0, 1.0)}, "'noise', Normal, allows negative numbers"),
        ("normal", {"weights": dist.Normal(np.zeros(2), 1.0)}, r"is of shape \(3,\), or of one number; got \(2,\)"),
        ("normal", {"weights": 2.5}, "is a numpyro distribution; got float"),
        ("categorical", {"intercept": dist.Normal(0.0, 1.0)}, "'intercept' is a ZeroSumNormal"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 12 else None,
)
def test_priors_that_cannot_be(family, priors, sentence):
    model = linear.generalised_linear(3, family, 4 if family == "categorical" else None)
    with pytest.raises(ModelError, match=sentence):
        linear.with_priors(model, priors)
