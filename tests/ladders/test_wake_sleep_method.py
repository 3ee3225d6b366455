"""Wake–sleep and reweighted wake–sleep as methods: what they refuse, what they report, and that they learn."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import layer, top
from tractable.ladders.wake_sleep_methods import ReweightedWakeSleep, WakeSleep, fell

pytestmark = pytest.mark.quick

LADDER = Ladder([layer(2, 4), layer(2, 2), top(2)], bottom_up([layer(4, 2, hidden=(8,)), layer(2, 2)]))
# Two kinds of rows, that no independent pixels explain.
ROWS = np.repeat(np.array([[1.0, 1, 0, 0], [0.0, 0, 1, 1], [1.0, 0, 0, 0]]), [30, 30, 4], axis=0)


@pytest.fixture(scope="module")
def learnt():
    methods = {
        "wake-sleep": WakeSleep(epochs=1500, batch_size=30, learning_rate=0.03),
        "reweighted": ReweightedWakeSleep(epochs=1500, batch_size=30, learning_rate=0.03, sleep_phi=0.5),
    }
    return {name: tr.infer(LADDER, ROWS, method, seed=2) for name, method in methods.items()}


def log_likelihood(posterior) -> float:
    """Σ log p(x_n | θ) / N, nats, summed over all h."""
    theta = jax.tree.map(jnp.asarray, posterior.mean())
    return float(LADDER.summed_out(theta, jnp.asarray(ROWS)).mean())


@pytest.mark.laws
def test_they_learn(learnt):
    """Beyond independent pixels, towards the rows' own entropy; the bounds are below what is enumerated."""
    share = ROWS.mean(0)
    independent = np.sum(share * np.log(share) + (1 - share) * np.log(1 - share))
    entropy = np.sum(np.array([30, 30, 4]) / 64 * np.log(np.array([30, 30, 4]) / 64))
    for name, posterior in learnt.items():
        found = log_likelihood(posterior)
        assert independent + 0.8 < found < entropy, name
        assert posterior.found["elbo"] < posterior.found["bound"] < found + 0.02
        assert posterior.info["objective"].shape == (1, posterior.found["steps"])
        assert jax.tree.structure(posterior.phi) == jax.tree.structure(LADDER.initial(jax.random.key(0))["phi"])


@pytest.mark.laws
def test_the_report_says_that_no_one_objective_is_climbed(learnt):
    for posterior in learnt.values():
        [said] = [c for c in posterior.report().checks if c.name == "fall"]
        assert "no common objective" in said.sentence
        assert (said.value, said.verdict) in ((0.0, "trust"), (1.0, "caution"))
        assert "trend" in [c.name for c in posterior.report().checks]


def test_fell():
    noise, ramp = np.random.default_rng(0).normal(size=(1, 4000)), np.linspace(0, 1, 4000)[None]
    assert not fell(noise)
    assert not fell(noise + ramp)
    assert fell(noise - ramp)
    assert not fell((noise - ramp)[:, :8])  # too short to tell


@pytest.mark.parametrize(
    "method",
    [
        WakeSleep(epochs=3, batch_size=7, learning_rate=0.1),
        ReweightedWakeSleep(samples=1, wake_phi=0.0, sleep_phi=1.0),
        ReweightedWakeSleep(samples=3, wake_phi=0.5, sleep_phi=0.25, epochs=2),
    ],
)
def test_settings_round_trip(method):
    settings = method.settings()
    label = settings.pop("method")
    assert label == type(method).label
    assert type(method)(**settings) == method


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"samples": 0}, "ReweightedWakeSleep.samples=.*whole number ≥ 1; got 0"),
        ({"samples": True}, "whole number"),
        ({"samples": 1}, "by noise alone.*samples=2"),
        ({"wake_phi": -0.5}, "wake_phi=.*≥ 0; got -0.5"),
        ({"sleep_phi": float("nan")}, "sleep_phi=.*finite number"),
        ({"wake_phi": 0.0}, "make one of them > 0"),
        ({"epochs": 0}, "epochs"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_settings_that_cannot_be(settings, sentence):
    with pytest.raises(SettingsError, match=sentence):
        ReweightedWakeSleep(**settings)


@pytest.mark.test
def test_what_they_refuse():
    coin = tr.Model({"p": dist.Beta(1, 1)}, lambda params: dist.Bernoulli(params["p"]))
    with pytest.raises(ModelError, match="learns ladders"):
        tr.infer(coin, np.array([0, 1]), WakeSleep(batch_size=2))
    with pytest.raises(SettingsError, match="more than the 64 rows"):
        tr.infer(LADDER, ROWS, ReweightedWakeSleep(batch_size=65))
    with pytest.raises((DataError, ModelError), match="without given="):
        tr.infer(LADDER, tr.Data(ROWS, given=ROWS), WakeSleep(batch_size=10))
