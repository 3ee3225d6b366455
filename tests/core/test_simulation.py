"""Draws by NumPy have the law of the distribution, as draws by JAX have."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import assert_holds, broken, ks, of_p
from scipy import special, stats

from tractable.core.simulation import WAYS, draws_of, parameters_of, simulate, way_of
from tractable.glm import families

pytestmark = pytest.mark.laws

COUNT, ETA, SHAPE, SHARE = 20_000, 0.7, 0.6, 0.3
MEAN, CUTS = np.exp(ETA), np.array([-1.0, 0.2, 1.5])
LOGITS = np.array([0.1, -0.7, 1.2])
SIZE = 1 / SHAPE**2
POISSON, COUNTS = stats.poisson(MEAN), stats.nbinom(SIZE, 1 / (1 + MEAN / SIZE))
M, K = special.expit(ETA), 1 / SHAPE**2 - 1
PARAMETERS = {
    "noise": SHAPE, "variation": SHAPE, "shape": SHAPE, "spread": SHAPE, "dispersion": SHAPE, "extra_zeros": SHARE,
    "zeros": SHARE, "cutpoints": CUTS,
}  # fmt: skip


def with_zeros(base, hurdle):
    """The probabilities of counts from 0."""
    p = base.pmf(np.arange(200))
    some = p / (1 - p[0]) * (np.arange(200) > 0) if hurdle else p
    return SHARE * (np.arange(200) == 0) + (1 - SHARE) * some


# For each family the cdf of numbers, or the probabilities of counts or classes from 0 on.
EXACT = {
    "normal": stats.norm(ETA, SHAPE).cdf,
    "student-t": stats.t(families.DEGREES, ETA, SHAPE).cdf,
    "lognormal": stats.lognorm(SHAPE, scale=MEAN).cdf,
    "gamma": stats.gamma(SIZE, scale=MEAN / SIZE).cdf,
    "weibull": stats.weibull_min(SHAPE, scale=MEAN).cdf,
    "exponential": stats.expon(scale=MEAN).cdf,
    "beta": stats.beta(M * K, (1 - M) * K).cdf,
    "poisson": POISSON.pmf(np.arange(200)),
    "negative-binomial": COUNTS.pmf(np.arange(200)),
    "bernoulli": np.array([1 - M, M]),
    "categorical": special.softmax(LOGITS),
    "ordered": np.diff(special.expit(CUTS - ETA), prepend=0.0, append=1.0),
    "zero-inflated-poisson": with_zeros(POISSON, False),
    "zero-inflated-negative-binomial": with_zeros(COUNTS, False),
    "hurdle-poisson": with_zeros(POISSON, True),
    "hurdle-negative-binomial": with_zeros(COUNTS, True),
}


def law(values, exact):
    if callable(exact):
        return {"law": ks(values, exact)}
    ends = len(exact) - 1 - int(np.argmax(COUNT * np.cumsum(exact[::-1]) >= 10))  # the rare values above count as one
    expected = np.append(exact[:ends], exact[ends:].sum())
    found = np.bincount(np.minimum(values, ends), minlength=ends + 1)
    return {"law": of_p(stats.chisquare(found, COUNT * expected / expected.sum()).pvalue)}


def drawn(distribution, seed=0, count=COUNT):
    way = way_of(distribution)
    assert way is not None
    return simulate(way, np.asarray(parameters_of(way, distribution))[None, None], np.array([3]), seed, count)[0]


@pytest.mark.parametrize("family", families.FAMILIES)
def test_numpy_and_jax_draw_from_every_family(family):
    eta = jnp.asarray(LOGITS if family == "categorical" else ETA)
    distribution = families.FAMILIES[family].observe({k: jnp.asarray(v) for k, v in PARAMETERS.items()}, eta)
    values = drawn(distribution)
    assert_holds(law(values, EXACT[family]))
    by_jax = distribution.sample(jax.random.key(0), (COUNT,))
    assert values.dtype == by_jax.dtype and values.shape == by_jax.shape
    assert_holds(law(np.asarray(by_jax), EXACT[family]))
    np.testing.assert_array_equal(values, drawn(distribution))
    assert np.any(values != drawn(distribution, seed=1)), "another seed"
    spoilt = np.where(np.random.default_rng(0).random(COUNT) < 0.1, 0, values)
    assert broken(law(spoilt, EXACT[family])), "a tenth are 0"


def test_other_distributions_agree():
    exact = {
        dist.HalfNormal(SHAPE): stats.halfnorm(scale=SHAPE).cdf,
        dist.Uniform(-1.0, 2.0): stats.uniform(-1, 3).cdf,
        dist.Exponential(SHAPE): stats.expon(scale=1 / SHAPE).cdf,
        dist.BernoulliProbs(SHARE): np.array([1 - SHARE, SHARE]),
    }
    draws = draws_of(list(exact), COUNT, 0)
    assert draws is not None
    for values, each in zip(draws, exact.values(), strict=True):
        assert_holds(law(values, each))
    covered = {way_of(d) for d in exact} | {
        way_of(kind.observe({k: jnp.asarray(v) for k, v in PARAMETERS.items()}, jnp.asarray(LOGITS)[0]))
        for name, kind in families.FAMILIES.items()
        if name != "categorical"
    }  # fmt: skip
    assert set(WAYS.values()) - covered == {WAYS[dist.CategoricalLogits.sample]}, "it is a family too"
    assert draws_of([dist.Normal(0.0, 1.0), dist.Cauchy(0.0, 1.0)], 3, 0) is None


def test_a_row_is_drawn_as_it_is_among_others():
    rates = np.random.default_rng(0).gamma(1.0, 5.0, (6, 50, 1))
    way = WAYS[dist.Poisson.sample]
    whole = simulate(way, rates, np.arange(6), 4)
    np.testing.assert_array_equal(simulate(way, rates[[4, 2]], np.array([4, 2]), 4), whole[[4, 2]])
    assert np.any(simulate(way, rates[:1], np.array([1]), 4) != whole[0])


def test_numbers_of_a_row_have_parameters_of_their_own():
    values = drawn(dist.Normal(jnp.array([0.0, 100.0]), 0.5).to_event(1), count=400)
    assert values.shape == (400, 2)
    np.testing.assert_allclose(values.mean(0), [0.0, 100.0], atol=6 * 0.5 / 20)
    wide = drawn(dist.Normal(3.0, 0.5).expand([4]).to_event(1), count=400)
    assert wide.shape == (400, 4) and len(np.unique(wide)) == 1600


def test_a_law_of_its_own_has_no_way():
    class Shifted(dist.Normal):
        def sample(self, key, sample_shape=()):
            return 1 + super().sample(key, sample_shape)

    class Same(dist.Normal):
        pass

    assert way_of(Shifted(0.0, 1.0)) is None and way_of([dist.Normal()]) is None
    assert way_of(Same(0.0, 1.0)) is way_of(dist.Normal(0.0, 1.0))


def test_parameters_that_are_no_numbers_end():
    """NumPy's gamma never returns for NaN, and its Poisson refuses large rates."""
    nan, far = jnp.asarray(jnp.nan), jnp.asarray(1e30)
    for kind, count in ((dist.Gamma, 2), (dist.Beta, 2), (dist.StudentT, 3), (dist.Normal, 2), (dist.Weibull, 2)):
        assert np.isnan(simulate(WAYS[kind.sample], np.full((1, 5, count), np.nan), np.array([0]), 0)).all()
    most = jnp.iinfo(jnp.result_type(int)).max
    assert np.all(drawn(dist.Poisson(far, validate_args=False), count=5) >= min(most, 1 << 62))
    assert np.all(drawn(dist.Poisson(nan, validate_args=False), count=5) == -1)
    assert np.all(drawn(families.NegativeBinomial(jnp.log(far), 0.5), count=5) > 1 << 30)
