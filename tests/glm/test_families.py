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
from tractable.glm.families import FAMILIES, PARAMETERS, Beta, Gamma, NegativeBinomial, OrderedLogits, with_offset
from tractable.tables.regression import regression

pytestmark = pytest.mark.laws

ETA = np.array([-3.0, 0.0, 2.0, 6.0])
COUNTS = np.array([0.0, 1.0, 7.0, 400.0])


def test_no_parameter_lacks_a_name():
    """No column's effect may be called as a parameter, so their names are listed."""
    names = set().union(*(family.others(2) for family in FAMILIES.values()))
    assert names < PARAMETERS and {"intercept", "weights"} <= PARAMETERS


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


BASES = {
    "poisson": lambda mu, d: (stats.poisson(mu), {}),
    "negative-binomial": lambda mu, d: (stats.nbinom(1 / d**2, 1 / (1 + d**2 * mu)), {"dispersion": jnp.asarray(d)}),
}
WITH_ZEROS = {f"{kind}-{base}": base for base in BASES for kind in ("zero-inflated", "hurdle")}


def exact_zeros(family: str, mean: float, share: float, dispersion: float = 0.7) -> tuple:
    """P(0), the weight of base counts above 0, the base, and the family's parameters, from SciPy."""
    base, params = BASES[WITH_ZEROS[family]](mean, dispersion)
    if family.startswith("hurdle"):
        return share, (1 - share) / -np.expm1(base.logpmf(0)), base, params | {"zeros": jnp.asarray(share)}
    return share + (1 - share) * base.pmf(0), 1 - share, base, params | {"extra_zeros": jnp.asarray(share)}


@pytest.mark.parametrize("share", [0.02, 0.4, 0.9])
@pytest.mark.parametrize("mean", [1e-3, 0.8, 30.0])
@pytest.mark.parametrize("family", WITH_ZEROS)
def test_zeros_of_their_own(family, mean, share):
    """The probabilities are SciPy's and sum to 1; mean and variance are their moments."""
    zero, weight, base, params = exact_zeros(family, mean, share)
    y = np.arange(2000)
    exact = np.where(y == 0, zero, weight * base.pmf(y))
    law = FAMILIES[family].observe(params, jnp.log(mean))
    got = np.exp(law.log_prob(jnp.asarray(y)))
    np.testing.assert_allclose(got, exact, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(got.sum(), 1, rtol=1e-9)
    np.testing.assert_allclose(law.mean, exact @ y, rtol=1e-7)
    np.testing.assert_allclose(law.variance, exact @ (y - exact @ y) ** 2, rtol=1e-6)


@pytest.mark.parametrize("mean", [0.05, 2.0, 40.0])
@pytest.mark.parametrize("family", WITH_ZEROS)
def test_draws_have_the_probabilities_of_zeros_and_counts(family, mean):
    """χ² of 20,000 draws, in bins with at least twenty expected draws."""
    zero, weight, base, params = exact_zeros(family, mean, 0.3)
    law = FAMILIES[family].observe(params, jnp.log(mean))
    drawn = np.asarray(law.sample(jax.random.key(0), (20_000,)))
    y = np.arange(2000)
    exact = 20_000 * np.where(y == 0, zero, weight * base.pmf(y))
    seen, ends = np.bincount(drawn, minlength=2000), [0]
    while ends[-1] < 2000 and exact[ends[-1] :].sum() >= 40:
        ends.append(ends[-1] + 1 + int(np.searchsorted(np.cumsum(exact[ends[-1] :]), 20)))
    expected, found = (np.add.reduceat(a, ends[:-1]) for a in (exact, seen))
    assert len(found) > 2 or mean < 1
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-5


@pytest.mark.parametrize("family", WITH_ZEROS)
def test_without_zeros_of_its_own_a_family_is_its_base(family):
    """Zero-inflated with π = 0, hurdle with π = p(0): density, mean and variance of the base."""
    eta, y = jnp.asarray([-2.0, 0.3, 3.0]), jnp.asarray([[0.0], [1.0], [7.0], [400.0]])
    _, params = BASES[WITH_ZEROS[family]](1.0, 0.7)
    base = FAMILIES[WITH_ZEROS[family]].observe(params, eta)
    hurdle = family.startswith("hurdle")
    share = {"zeros": jnp.exp(base.log_prob(jnp.zeros(3)))} if hurdle else {"extra_zeros": jnp.zeros(3)}
    law = FAMILIES[family].observe(params | share, eta)
    np.testing.assert_allclose(law.log_prob(y), base.log_prob(y), rtol=1e-9)
    np.testing.assert_allclose(law.mean, base.mean, rtol=1e-9)
    np.testing.assert_allclose(law.variance, base.variance, rtol=1e-9)


@pytest.mark.parametrize("eta", [-20.0, 0.0, 9.0, 13.0])
@pytest.mark.parametrize("family", WITH_ZEROS)
def test_zeros_in_single_precision(family, eta):
    """In single precision these families lose no digit that their base does not; values and slopes are finite."""
    mean = float(np.exp(eta))
    name = "zeros" if family.startswith("hurdle") else "extra_zeros"
    with jax.enable_x64(False):
        others = {"dispersion": jnp.float32(0.1), name: jnp.float32(0.3)}

        def law(eta: jax.Array, share: jax.Array, of: str = family) -> dist.Distribution:
            return FAMILIES[of].observe(others | {name: share}, eta)

        for y in sorted({0.0, 1.0, float(np.ceil(mean))}):
            value = lambda eta, share, y=y: law(eta, share).log_prob(jnp.float32(y))  # noqa: E731
            got, slopes = jax.value_and_grad(value, (0, 1))(jnp.float32(eta), jnp.float32(0.3))
            assert np.isfinite(got) and np.all(np.isfinite(slopes)), (y, got, slopes)
            zero, weight, _, _ = exact_zeros(family, mean, float(jnp.float32(0.3)), float(jnp.float32(0.1)))
            if y > 0:
                base = law(jnp.float32(eta), jnp.float32(0.3), WITH_ZEROS[family]).log_prob(jnp.float32(y))
                np.testing.assert_allclose(got, base + np.log(weight), rtol=5e-7, atol=2e-6)
            else:
                np.testing.assert_allclose(got, np.log(zero), rtol=2e-5, atol=1e-6)


@pytest.mark.computes
@pytest.mark.parametrize("family", WITH_ZEROS)
def test_zeros_are_learnt_and_predict_better(family):
    """2,000 rows recover what drew them; 1,000 held-out rows are more probable than under the base family."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=3000)
    _, _, _, others = exact_zeros(family, 1.0, 0.35)
    law = FAMILIES[family].observe(others, jnp.asarray(1.0 + 0.5 * x))
    table = pd.DataFrame({"y": np.asarray(law.sample(jax.random.key(1))), "x": x})
    scores = {}
    for each in (family, WITH_ZEROS[family]):
        fitted = regression("y ~ x", table[:2000], family=each)
        posterior = tr.infer(fitted.model, fitted.data, tr.Laplace(), seed=0, progress=False, verify=None)
        rows = tr.Data(table["y"][2000:].to_numpy(float), fitted.rows(table[2000:]))
        scores[each] = np.asarray(fitted.model.log_likelihoods(posterior.mean(), rows.rows))
        if each == family:
            found = posterior.summary()
            for name, value in {"Intercept": 1.0, "x": 0.5, **others}.items():
                assert abs(found.loc[name, "mean"] - float(value)) < 5 * found.loc[name, "sd"], name
            assert found["sd"].max() < 0.1
            predicted = posterior.predict(table[2000:2020])
            np.testing.assert_allclose(predicted.mean, np.asarray(law.mean)[2000:2020], rtol=0.25)
            np.testing.assert_allclose(predicted.aleatoric, np.sqrt(law.variance)[2000:2020], rtol=0.3)
            assert np.all(predicted.lower == 0)  # of 35 % zeros
    gain = scores[family] - scores[WITH_ZEROS[family]]
    assert gain.mean() > 4 * gain.std() / np.sqrt(len(gain)), gain.mean()


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
