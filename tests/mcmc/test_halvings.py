"""NUTS whose steps are halved leaves targets of two scales as they are, is reversible, and counts what it costs."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import assert_holds, binomial, ks, moments, replicate
from scipy import stats

import tractable as tr
from tractable.kernels import nuts
from tractable.mcmc import hamiltonian
from tractable.posterior import verification

pytestmark = pytest.mark.laws

C = 4000
NARROW = 0.2
DENSE = jnp.array([[1.0, 0.5], [0.5, 2.0]])


def spike(x: jax.Array) -> jax.Array:
    """The mixture of N(0, 1) and N(0, NARROW²) in equal shares."""
    return jnp.logaddexp(-0.5 * x[0] ** 2, -0.5 * (x[0] / NARROW) ** 2 - math.log(NARROW))


def funnel(x: jax.Array) -> jax.Array:
    """v ~ N(0, 4) and x ~ N(0, e^v)."""
    return -(x[0] ** 2) / 8 - 0.5 * x[1] ** 2 * jnp.exp(-x[0]) - 0.5 * x[0]


def interval(x: jax.Array) -> jax.Array:
    """The uniform density on (0, 1)."""
    return jnp.where((x[0] > 0) & (x[0] < 1), 0 * x[0], -jnp.inf)


@pytest.mark.parametrize("most_work", [hamiltonian.MOST_WORK, 3])
def test_a_spike_stays_a_spike(most_work, monkeypatch):
    """Steps of 2.5 in a spike of width 0.2, in one dimension. Without the check on the way back this fails.

    With a low bound on a trajectory's gradients, many trajectories end at the bound.
    """
    monkeypatch.setattr(hamiltonian, "MOST_WORK", most_work)
    key_normal, key_part, key = jax.random.split(jax.random.key(0), 3)
    widths = jnp.where(jax.random.bernoulli(key_part, shape=(2 * C, 1)), 1.0, NARROW)
    start = widths * jax.random.normal(key_normal, (2 * C, 1))
    state, info = replicate(nuts(spike, 2.5, jnp.ones(1), 3, 5), key, start, 5)
    x = np.asarray(state.position)[:, 0]
    far = float(stats.norm.sf(3 * NARROW) + stats.norm.sf(3))
    scores = {
        "cdf": ks(x, lambda t: 0.5 * stats.norm.cdf(t) + 0.5 * stats.norm.cdf(t / NARROW)),
        "far": binomial(int(np.sum(np.abs(x) > 3 * NARROW)), 2 * C, far),
    }
    assert_holds(scores, 2 * C)
    assert float(info.divergent.mean()) < 0.001
    assert float(info.gradients.mean()) > 14  # steps were halved: a trajectory has at most 7 of them
    assert most_work > 3 or float(np.mean(info.gradients > 8 * most_work)) > 0.1


def test_a_funnel_stays_a_funnel():
    """v ~ N(0, 4) and x e^{−v/2} ~ N(0, 1), three transitions on, with a dense mass matrix."""
    key_start, key = jax.random.split(jax.random.key(1))
    normals = jax.random.normal(key_start, (C, 2))
    v = 2 * normals[:, 0]
    start = jnp.stack([v, normals[:, 1] * jnp.exp(v / 2)], 1)
    state, info = replicate(nuts(funnel, 2.0, DENSE, 3, 6), key, start, 3)
    v, x = np.asarray(state.position, float).T
    scores = {"cdf v": ks(v / 2, stats.norm.cdf), "cdf x": ks(x * np.exp(-v / 2), stats.norm.cdf)}
    scores |= moments("v", v, 0.0, 4.0) | moments("x", x * np.exp(-v / 2), 0.0, 1.0)
    assert_holds(scores, C)
    assert float(info.divergent.mean()) < 0.005


def test_walls_are_divergences_and_leave_a_uniform_as_it_is():
    """No step is small enough for a wall, so trajectories end there and the draws stay uniform."""
    key_start, key = jax.random.split(jax.random.key(2))
    start = jax.random.uniform(key_start, (C, 1))
    state, info = replicate(nuts(interval, 0.3, jnp.ones(1), 4, 4), key, start, 3)
    assert_holds({"cdf": ks(np.asarray(state.position)[:, 0], stats.uniform.cdf)}, C)
    assert float(info.divergent.mean()) > 0.1


def test_an_error_without_bound_halves_nothing():
    start = jax.random.normal(jax.random.key(3), (100, 2))
    plain, info = replicate(nuts(funnel, 0.5, jnp.ones(2), 5), jax.random.key(4), start, 3)
    state, other = replicate(nuts(funnel, 0.5, jnp.ones(2), 5, 6, math.inf), jax.random.key(4), start, 3)
    np.testing.assert_allclose(state.position, plain.position, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(other.gradients, info.gradients)


def test_every_gradient_counts():
    """Those of failed attempts and of the way back are among ``info.gradients``."""
    calls = []

    def counted(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: calls.append(1))
        return funnel(x)

    kernel = nuts(counted, 2.0, jnp.ones(2), 4, 7)
    state = kernel.init(jax.random.key(5), jnp.array([-3.0, 0.1]))
    step = jax.jit(lambda key, state: kernel(key, state, None))
    total = 0.0
    for i in range(20):
        state, info = step(jax.random.key(i), state)
        total += float(info.gradients)
    jax.effects_barrier()
    assert len(calls) == 1 + total


@pytest.mark.computes
def test_a_run_with_divergences_is_followed_by_one_that_halves_steps():
    """A funnel in two dimensions."""

    def density(z):
        return -(z["v"] ** 2) / 18 - 0.5 * (z["x"] / jnp.exp(z["v"] / 2)) ** 2 - 0.5 * z["v"]

    plain = tr.NUTS(draws=300, warmup=300)
    model = tr.Model.from_log_density(density, {"v": jnp.zeros(()), "x": jnp.zeros(())})
    posterior = tr.infer(model, None, plain, seed=0, progress=False)
    assert posterior.method == dataclasses.replace(plain, max_halvings=10)
    first = next(check for check in posterior.report().checks if check.name == "first run")
    assert first.value > 0
    assert "halves steps" in first.sentence
    assert posterior.info["divergent"].sum() == 0
    assert posterior.report().verdict != "trust"  # energies mix slowly, and 300 draws are few
    assert posterior.found["gradients before"] > 0

    # The choice, by what the first run saw.
    def choice(method=plain, share=0.02, **changes):
        divergent = np.zeros_like(posterior.info["divergent"])
        divergent[:, : round(share * divergent.shape[1])] = 1
        belief = dataclasses.replace(posterior.belief, info=posterior.info | {"divergent": divergent})
        return method.otherwise(dataclasses.replace(posterior, belief=belief, verification=(), **changes))

    method, _ = choice() or pytest.fail("many divergences lead to no second run")
    assert method == posterior.method
    assert choice(share=0.0) is None
    assert choice(tr.NUTS(max_halvings=0)) is None
    assert choice(tr.NUTS(max_halvings=3)) is None
    assert choice(tr.HMC()) is None
    assert choice(seconds={"drawing": 60.0}) is None


def test_a_second_run_that_does_not_end_leaves_the_first(monkeypatch):
    """The forecast of a second run may be wrong a thousandfold; after PATIENCE seconds the first result is returned."""
    monkeypatch.setattr(verification, "PATIENCE", 0.0)

    def density(z):
        return -(z["v"] ** 2) / 18 - 0.5 * (z["x"] / jnp.exp(z["v"] / 2)) ** 2 - 0.5 * z["v"]

    model = tr.Model.from_log_density(density, {"v": jnp.zeros(()), "x": jnp.zeros(())})
    plain = tr.NUTS(draws=300, warmup=300)
    posterior = tr.infer(model, None, plain, seed=0, progress=False)
    assert posterior.method == plain
    assert not posterior.interrupted
    report = posterior.report()
    ended = next(check for check in report.checks if check.name == "NUTS instead")
    assert (ended.verdict, "had not ended after 0 seconds" in ended.sentence) == ("caution", True)
    assert report.verdict != "trust"
    assert posterior.count == 300
