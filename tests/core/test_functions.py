"""Where a function belongs, another value is refused when the model is made, and a distribution is named."""

import jax.numpy as jnp
import numpyro.distributions as dist
import pytest
from beartype.roar import BeartypeException

import tractable as tr
from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel
from tractable.core.model import Through

pytestmark = pytest.mark.test

PRIOR, NORMAL = {"a": dist.Normal(0.0, 1.0)}, dist.Normal(0.0, 1.0)
CASES = {
    "a likelihood": lambda value: tr.Model(PRIOR, value),
    "a likelihood by name": lambda value: tr.Model(prior=PRIOR, likelihood=value),
    "a predictor": lambda value: tr.Model(PRIOR, Through(value, lambda params, eta: NORMAL)),
    "an observation": lambda value: tr.Model(PRIOR, Through(lambda params, x: x, value)),
    "a start": lambda value: tr.Model(PRIOR, lambda params: NORMAL, start=value),
    "derived numbers": lambda value: tr.Model(PRIOR, lambda params: NORMAL, derived=value),
    "a group's own": lambda value: tr.Model(PRIOR, lambda params: NORMAL, local=value),
    "a log density": lambda value: tr.Model.from_log_density(value, jnp.zeros(2)),
    "a latent": lambda value: LatentModel(PRIOR, value, lambda params, z: NORMAL),
    "a latent's likelihood": lambda value: LatentModel(PRIOR, lambda params: dist.Bernoulli(0.5), value),
    "statistics": lambda value: LatentModel(
        PRIOR, lambda params: dist.Bernoulli(0.5), lambda params, z: NORMAL, statistics=value, m_step=lambda *_: PRIOR
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_another_value_is_refused(case):
    with pytest.raises(ModelError, match=r"expects a function.* got a distribution, Normal. Pass lambda"):
        CASES[case](NORMAL)
    for value in ({"y": 1.0}, 3.0):  # which the check of types refuses too, where it is on
        with pytest.raises((ModelError, TypeError, BeartypeException), match=r"expects a function|violates type hint"):
            CASES[case](value)


def test_functions_and_classes_are_taken():
    assert tr.Model(PRIOR, lambda params: NORMAL).likelihood is not None and tr.Model(PRIOR).likelihood is None
    assert tr.Model(dist.Beta(1.0, 1.0), dist.Bernoulli).likelihood is dist.Bernoulli
