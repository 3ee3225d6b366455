"""Families of y: densities against SciPy's, far out and close to their limits; offsets; ordered grades."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import special, stats

import tractable as tr
from tractable.core.errors import ModelError
from tractable.glm import linear
from tractable.glm.families import FAMILIES, Beta, Gamma, NegativeBinomial, OrderedLogits, with_offset
from tractable.tables.regression import regression

pytestmark = pytest.mark.laws

ETA = np.array([-3.0, 0.0, 2.0, 6.0])
COUNTS = np.array([0.0, 1.0, 7.0, 400.0])


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("dispersion", [0.003, 0.05, 0.35, 0.4, 1.0, 5.0])
def test_negative_binomial(single, dispersion):
    """NumPyro's own is 0.002 nats off in single precision, in every row, where the dispersion is 0.003."""
    eta, y = (a.ravel() for a in np.meshgrid(ETA, COUNTS))
    r = 1 / dispersion**2
    exact = stats.nbinom.logpmf(y, r, r / (r + np.exp(eta)))
    with jax.enable_x64(not single):
        got = NegativeBinomial(jnp.asarray(eta), jnp.asarray(dispersion)).log_prob(jnp.asarray(y))
    np.testing.assert_allclose(got, exact, rtol=3e-6 if single else 1e-8, atol=1e-3 if single else 1e-6)


def test_negative_binomial_ends_at_poisson():
    got = NegativeBinomial(jnp.asarray(ETA), jnp.asarray(0.0)).log_prob(jnp.asarray(COUNTS))
    np.testing.assert_allclose(got, stats.poisson.logpmf(COUNTS, np.exp(ETA)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("variation", [0.01, 0.3, 0.36, 1.0, 3.0])
def test_gamma(single, variation):
    z = np.array([-2.0, -0.1, 0.0, 1.0, 2.5])
    eta = np.array([5.0, 0.0, -3.0, 1.0, 2.0])
    y = np.exp(eta + variation * z)
    k = 1 / variation**2
    exact = stats.gamma.logpdf(y, k, scale=np.exp(eta) / k)
    with jax.enable_x64(not single):
        got = Gamma(jnp.asarray(eta), jnp.asarray(variation)).log_prob(jnp.asarray(y))
    np.testing.assert_allclose(got, exact, rtol=1e-3 if single else 1e-7, atol=2e-3 if single else 1e-6)


@pytest.mark.test("0.9-0.5-True")
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("mean", [1e-6, 1e-4, 0.03, 0.5, 0.995, 0.9999])
@pytest.mark.parametrize("spread", [2e-4, 1e-3, 0.02, 0.3, 0.9])
def test_beta(single, mean, spread):
    """NumPyro's own is tens of nats off in single precision where shares lie close together."""
    eta = special.logit(mean)
    with jax.enable_x64(not single):
        eta = float(jnp.asarray(eta))  # as rounded
        fn = Beta(jnp.asarray(eta), jnp.asarray(spread))
        m, k = special.expit(eta), 1 / float(jnp.asarray(spread)) ** 2 - 1
        levels = np.array([0.02, 0.3, 0.5, 0.8, 0.98])
        y = np.asarray(jnp.asarray(stats.beta.ppf(levels, m * k, special.expit(-eta) * k)))  # as rounded
        inside = (y > 1e-30) & (y < 1)
        got = np.asarray(fn.log_prob(jnp.asarray(np.where(inside, y, 0.5))))[inside]
    # In single precision m has the digits of a sum of two floats, which the density feels in sds.
    exact = stats.beta.logpdf(y.astype(np.float64), m * k, special.expit(-eta) * k)[inside]
    sd = spread * np.sqrt(m * (1 - m))
    coarse = 2e-3 + 3e-7 / sd if single else 1e-6
    np.testing.assert_allclose(got, exact, rtol=2e-5 if single else 1e-8, atol=coarse)


def test_ordered():
    """Every grade, and a tail where the difference of two sigmoids is 0."""
    cuts = np.array([-2.0, -0.5, 1.0])
    eta, k = (a.ravel() for a in np.meshgrid([-1.0, 0.2, 3.0], np.arange(4)))
    ends = np.concatenate([[-np.inf], cuts, [np.inf]])
    exact = np.log(special.expit(ends[k + 1] - eta) - special.expit(ends[k] - eta))
    got = jax.vmap(lambda e, y: OrderedLogits(e, jnp.asarray(cuts)).log_prob(y))(jnp.asarray(eta), jnp.asarray(k))
    np.testing.assert_allclose(got, exact, rtol=1e-6)
    far = float(OrderedLogits(jnp.asarray(-60.0), jnp.asarray(cuts)).log_prob(jnp.asarray(2)))
    np.testing.assert_allclose(far, -59.5 + np.log1p(-np.exp(-1.5)), rtol=1e-6)  # e^{-(c + 60)} differences


@pytest.mark.parametrize("family", ["student-t", "lognormal", "gamma", "beta", "poisson", "negative-binomial"])
def test_a_linear_model_learns_what_drew_the_data(family):
    """Laplace's normal around the truth: the weights that drew 3,000 rows are within 5 of its sds."""
    g = np.random.default_rng(3)
    x, truth = g.normal(size=(3000, 2)), np.array([0.4, -0.3])
    model = linear.generalised_linear(2, family)
    others = {"gamma": "variation", "beta": "spread", "negative-binomial": "dispersion"}
    others |= {"student-t": "noise", "lognormal": "noise"}
    params = {"weights": jnp.asarray(truth), "intercept": jnp.asarray(0.5)}
    params |= {others[family]: jnp.asarray(0.4)} if family in others else {}
    keys = jax.random.split(jax.random.key(0), len(x))
    y = jax.vmap(lambda row, key: model.datum(params, row).sample(key))(jnp.asarray(x), keys)
    posterior = tr.infer(model, tr.Data(np.asarray(y), given=x), tr.INLA(draws=500), progress=False, verify=None)
    mean, sd = posterior.mean(), posterior.sd()
    for name, value in params.items():
        assert np.all(np.abs(np.asarray(mean[name]) - np.asarray(value)) < 5 * np.asarray(sd[name])), name
        assert np.all(np.asarray(sd[name]) < 0.1)


def test_outliers_move_no_effect_by_students_t():
    """Of 300 rows 30 are a thousand off: the effects are those that the others tell."""
    g = np.random.default_rng(0)
    x = g.normal(size=(300, 2))
    y = 1 + x @ [2.0, -1.0] + g.normal(size=300)
    y[::10] += 1000.0
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})
    told = {}
    for family in ("normal", "student-t"):
        rows = regression("y ~ a + b", frame, family=family)
        told[family] = tr.infer(rows.model, rows.data, tr.INLA(), progress=False).summary(derived=False)
    close, far = (np.abs(told[family]["mean"][["a", "b"]] - [2.0, -1.0]) for family in ("student-t", "normal"))
    assert np.all(close < 4 * told["student-t"]["sd"][["a", "b"]]) and np.all(close < 0.4) and far.max() > 2


@pytest.mark.test
def test_offset():
    """An offset of log 2 doubles the rate: rows of twice the exposure say what two rows say."""
    model = linear.generalised_linear(1, "poisson")
    shifted = with_offset(model)
    assert with_offset(model) is shifted
    params = {"weights": jnp.ones(1), "intercept": jnp.asarray(0.3)}
    given = {"x": jnp.asarray([0.5]), "offset": jnp.log(2.0)}
    np.testing.assert_allclose(shifted.datum(params, given).mean, 2 * model.datum(params, given["x"]).mean, rtol=1e-6)
    with pytest.raises(ModelError, match="is a Through"):
        with_offset(tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["a"], 1.0)))


@pytest.mark.quick
def test_the_encoder_and_the_models_know_the_same_families():
    from tractable.tables import targets

    assert set(targets.FAMILIES) == set(FAMILIES)
