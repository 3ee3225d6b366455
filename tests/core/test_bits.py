"""Rows that single precision cannot tell apart, and what is cached for each precision."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core.bits import CachedProperty, in_double, need_double, rounding
from tractable.core.priors import exceeds_single

pytestmark = pytest.mark.quick
RNG = np.random.default_rng(0)
NEEDED = {
    "counts of a million": RNG.poisson(1e6, 200).astype(float),
    "whole counts of a billion": RNG.poisson(1e9, 200),
    "an offset": 1e5 + RNG.normal(size=200),
    "a large offset": -1e8 + RNG.normal(size=200),
    "a year in seconds": 1.7e9 + RNG.uniform(0, 1e3, 200),
    "one column of several": np.column_stack([RNG.normal(size=200), 1e6 + RNG.normal(size=200)]),
    "many moderate counts": RNG.poisson(3000, 500_000),
    "few large counts among small": np.r_[np.zeros(1000), 1e7],
    "squares that overflow": 1e30 * RNG.normal(size=200),
    "numbers that single precision has not": 1e-300 * RNG.normal(size=200),
    "one square that vanishes": np.append(RNG.random(1000) + 0.1, 1e-25),
}
NOT = {
    "standard": RNG.normal(size=200),
    "counts": RNG.poisson(100, 10_000),
    "years": RNG.integers(1900, 2020, 1000).astype(float),
    "classes": RNG.integers(0, 10, 100_000),
    "bits": RNG.random(1000) < 0.5,
    "a constant": np.full(100, 1e9 + 0.5),
    "large and wide": 1e15 * RNG.normal(size=200),
    "small": np.append(0.0, 1e-15 * (1 + RNG.random(200))),
    "words": np.array(["a", "b"]),
    "nothing": np.zeros((0, 3)),
    "with gaps": np.where(RNG.random(200) < 0.1, np.nan, RNG.normal(size=200)),
}


@pytest.fixture(autouse=True)
def in_single():
    """The other tests compute in double precision throughout."""
    with jax.enable_x64(False):
        yield


@pytest.mark.parametrize("name", NEEDED)
def test_rows_that_need_double_precision(name):
    assert need_double({"y": NEEDED[name]}, (np.zeros(len(NEEDED[name])),))


@pytest.mark.parametrize("name", NOT)
def test_rows_that_do_not(name):
    assert not need_double(NOT[name])


def test_whole_numbers_count_on_the_left_alone():
    ids, offset = np.arange(1e6, 1e6 + 200), np.log(1e5) + np.zeros(200)
    assert need_double(ids) and not need_double(NOT["standard"], {"id": ids[:, None], "offset": offset})
    assert need_double(NOT["standard"], {"time": 1e9 + RNG.normal(size=200)})


def test_a_row_that_counts_often_needs_it():
    y = NOT["standard"]
    assert need_double(y, None, np.full(200, 1e9)) and not need_double(y, None, np.full(200, 100.0))
    weights = np.arange(200.0)
    assert rounding(y, 1e3 * weights) == pytest.approx(1e3 * rounding(y, weights))


def test_the_error_is_that_of_single_precision():
    """Within a factor of ten, of Σ y η − exp η − log y! summed in 32 bits, against 64."""
    for scale in (1e4, 1e6, 1e8):
        y = np.round(scale * np.exp(0.1 * RNG.normal(size=300)))
        eta = np.log(scale) + 1e-3 * RNG.normal(size=(50, 1))
        exact = y * eta - np.exp(eta)
        single = y.astype("f") * eta.astype("f") - np.exp(eta.astype("f"))
        error = np.std(single.sum(1, dtype=np.float64) - exact.sum(1))
        assert 0.1 < rounding(y) / error < 10, scale


def test_in_double_leaves_the_users_setting_as_it_is():
    with in_double(True):
        assert jnp.result_type(float) == jnp.float64
        with in_double(False):
            assert jnp.result_type(float) == jnp.float64
    assert jnp.result_type(float) == jnp.float32 and not jax.config.jax_enable_x64
    with in_double(True):
        assert not need_double(NEEDED["an offset"])  # it is there already


def test_a_cached_property_is_of_one_precision():
    class Owner:
        asked = 0

        @CachedProperty
        def number(self):
            """A number."""
            self.asked += 1
            return np.zeros(1, jnp.result_type(float))

    owner = Owner()
    assert owner.number is owner.number and owner.number.dtype == np.float32
    with in_double(True):
        assert owner.number is owner.number and owner.number.dtype == np.float64
    assert owner.number.dtype == np.float32 and owner.asked == 2
    assert Owner.number.__doc__ == "A number."


POINTED = {
    "Dirichlet": lambda a: dist.Dirichlet(jnp.array([1.0, a, 1.0])),
    "Beta": lambda a: dist.Beta(3.0, a),
    "Gamma": lambda a: dist.Gamma(a, a),
    "InverseGamma": lambda a: dist.InverseGamma(a, 1.0),
    "many": lambda a: dist.Beta(a, a).expand([3]).to_event(1),
}


@pytest.mark.laws
@pytest.mark.parametrize("name", POINTED)
def test_a_prior_with_mass_below_single_precision_needs_double(name):
    with jax.enable_x64(False):
        assert exceeds_single({"m": dist.Normal(0.0, 1.0), "p": POINTED[name](0.05)})
        assert not exceeds_single({"m": dist.Normal(0.0, 1e-9), "p": POINTED[name](0.5)})
    with jax.enable_x64(True):
        assert not exceeds_single({"p": POINTED[name](0.05)})


@pytest.mark.laws
@pytest.mark.parametrize("method", [tr.MeanField(steps=300), tr.FullRank(steps=300), tr.MAP(), tr.Laplace()])
def test_a_pointed_dirichlet_is_learnt(method):
    """In single precision the climbs ended in NaN, and the error blamed the model."""
    model = tr.Model({"p": dist.Dirichlet(jnp.full(30, 0.05))}, lambda params: dist.Categorical(probs=params["p"]))
    with jax.enable_x64(False):
        found = tr.infer(model, np.arange(60) % 3, method, verify=None)
    assert found.found["double"] and np.all(np.isfinite(found.mean()["p"]))
