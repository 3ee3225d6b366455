"""Rejection sampling draws from exactly the posterior, and notices a bound that is none.

θ ~ Beta(2, 2), s successes and f failures: θ|y ~ Beta(2 + s, 2 + f), w = θ^s (1 − θ)^f, and a proposal is
accepted with probability p(y)/M = B(2 + s, 2 + f)/B(2, 2)/M.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import C, Scores, Z, assert_holds, binomial, ks, replicate
from scipy import special, stats

from tractable.core.model import Kernel
from tractable.kernels import rejection

pytestmark = pytest.mark.laws


def prior(key: jax.Array) -> jax.Array:
    """Beta(2, 2): the median of three uniforms."""
    return jnp.median(jax.random.uniform(key, (3,)))


def weight(s: int, f: int) -> Callable:
    return lambda theta: s * jnp.log(theta) + f * jnp.log1p(-theta)


def log_sup(s: int, f: int) -> float:
    return s * math.log(s / (s + f)) + f * math.log(f / (s + f))


def posterior(make: Callable[..., Kernel], s: int, f: int, count: int = C) -> Scores:
    """θ ~ Beta(2 + s, 2 + f); tries are geometric with p = p(y)/M."""
    kernel = make(prior, weight(s, f), log_sup(s, f))
    state, info = replicate(kernel, jax.random.key(0), jnp.full(count, 0.5), 1)
    share = math.exp(special.betaln(2 + s, 2 + f) - special.betaln(2, 2) - log_sup(s, f))
    tries = np.asarray(info.tries)
    return {
        "θ": ks(state.position, stats.beta(2 + s, 2 + f).cdf),
        "first try": binomial((tries == 1).sum(), count, share),
        "tries": abs(tries.mean() - 1 / share) / math.sqrt((1 - share) / share**2 / count) / Z,
        "bound": 0.0 if np.all(np.asarray(info.excess) <= 1e-9) else math.inf,
        "gave up": float(np.sum(info.gave_up)),
    }


@pytest.mark.test
def test_posterior():
    """θ|y ~ Beta(2 + s, 2 + f), the share accepted p(y)/M."""
    assert_holds(posterior(rejection, 5, 2), C)


def test_two_thousand_flips():
    """N = 2000: the likelihood underflows to 0, its logarithm does not."""
    s, f = 1300, 700
    assert math.exp(log_sup(s, f)) == 0
    assert_holds(posterior(rejection, s, f, 5000), 5000)


def test_steps_of_one_chain_are_independent():
    """Draws of one chain are as independent as those of many."""
    kernel = rejection(prior, weight(5, 2), log_sup(5, 2))

    def step(state, key):
        state, info = kernel(key, state)
        return state, (state.position, info.tries)

    start = kernel.init(jax.random.key(0), jnp.array(0.5))
    _, (x, tries) = jax.lax.scan(step, start, jax.random.split(jax.random.key(1), 20_000))
    x, tries = np.asarray(x), np.asarray(tries)
    scores = {"θ": ks(x, stats.beta(7, 4).cdf)}
    scores["lag 1"] = abs(np.corrcoef(x[1:], x[:-1])[0, 1]) * math.sqrt(len(x)) / Z
    scores["θ, tries"] = abs(np.corrcoef(x, tries)[0, 1]) * math.sqrt(len(x)) / Z
    assert_holds(scores, 20_000)


def test_bound_below_the_supremum_is_noticed():
    """log w > log M: the excess is positive, ``worst`` is the offender, and no draw is given out after it."""
    low = log_sup(5, 2) + math.log(0.7)
    kernel = rejection(prior, weight(5, 2), low)
    state, info = replicate(kernel, jax.random.key(0), jnp.full(50, 0.5), 40)
    worst, excess = np.asarray(state.worst), np.asarray(state.excess)
    assert np.all(excess > 0) and np.all(excess <= -math.log(0.7) + 1e-12)
    np.testing.assert_allclose(weight(5, 2)(worst) - low, excess, atol=1e-12)
    assert np.all(np.abs(worst - 5 / 7) < 0.2)
    assert np.all(np.asarray(info.gave_up) > 0)


@pytest.mark.test
def test_limit():
    """After ``limit`` refusals the draw is given up, says so, and leaves the position."""
    kernel = rejection(prior, lambda theta: -100.0 + 0 * theta, 0.0, width=8, limit=64)
    state, info = kernel(jax.random.key(1), kernel.init(jax.random.key(0), jnp.array(0.25)))
    assert (float(info.gave_up), float(info.tries), float(state.position)) == (1.0, 64.0, 0.25)


@pytest.mark.test
def test_not_a_number_is_refused():
    """A NaN weight counts as log w = −∞."""
    kernel = rejection(prior, lambda theta: jnp.where(theta < 0.5, jnp.nan, 0.0), 0.0)
    state, info = replicate(kernel, jax.random.key(0), jnp.full(5000, 0.5), 1)
    assert np.all(np.asarray(state.position) >= 0.5)
    assert_holds({"accepted": binomial((np.asarray(info.tries) == 1).sum(), 5000, 0.5)}, 5000)
