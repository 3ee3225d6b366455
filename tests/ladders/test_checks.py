"""What a ladder's report looks at is what it says: distances, units that say something, signal, verdicts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract_method import quick_compilation
from montecarlo import Z, assert_holds, broken, error
from scipy.special import expit, logsumexp

import tractable as tr
from tractable.core.batches import Plan
from tractable.core.model import Objective
from tractable.engine.ascend import State
from tractable.ladders import amortised
from tractable.ladders import checks as ladders
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import layer, standard_normal, top

pytestmark = pytest.mark.test


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Programs here run for less than they compile."""
    with quick_compilation():
        yield


def at(ladder, scale=1.5):
    params = ladder.initial(jax.random.key(0))
    return jax.tree.map(lambda a: jnp.asarray(scale * np.random.default_rng(1).normal(size=a.shape)), params)


# How far q is from p(h | x).

PAIR = Ladder([layer(2, 2), top(2)], bottom_up([layer(2, 2)]))
STATES = np.array([[0.0, 0], [0, 1], [1, 0], [1, 1]])


def posterior_network():
    """x_i sees h_i alone, so that p(h | x) is a product of two sigmoids, which one linear layer holds."""
    weights, biases, prior = np.array([1.3, -2.0]), np.array([0.4, 0.1]), np.array([0.3, -0.8])
    # log p(x = 1 | h = 1)/p(x = 1 | h = 0), and the same of x = 0
    on, off = (np.log(expit(s * (weights + biases)) / expit(s * biases)) for s in (1, -1))
    theta = {"x": {"layer0": {"weight": jnp.diag(weights), "bias": biases}}, "h1": {"bias": prior}}
    network = {"layer0": {"weight": jnp.diag(on - off), "bias": prior + off}}
    return jax.tree.map(jnp.asarray, {"theta": theta, "phi": {"centre": np.zeros(2), "layers": {"h1": network}}})


def numpy_divergence(params, kind=lambda q, p: np.sum(np.exp(q) * (q - p), 1), normalised=True):
    """KL(q ‖ p(h | x)), (x,), told in numpy."""
    theta, phi = params["theta"], params["phi"]["layers"]["h1"]["layer0"]

    def bernoulli(value, eta):
        return np.sum(value * eta - np.logaddexp(0, eta), -1)

    eta = STATES @ np.asarray(theta["x"]["layer0"]["weight"]) + np.asarray(theta["x"]["layer0"]["bias"])
    log_p = bernoulli(STATES[:, None], eta[None]) + bernoulli(STATES, np.asarray(theta["h1"]["bias"]))[None]
    log_p = log_p - logsumexp(log_p, axis=1, keepdims=True) if normalised else log_p
    seen = STATES - np.asarray(params["phi"]["centre"])
    q = bernoulli(STATES[None], (seen @ np.asarray(phi["weight"]) + np.asarray(phi["bias"]))[:, None])
    return kind(q, log_p)


def test_divergence():
    def law(of):
        return {
            "of q = p(h | x)": error(of(posterior_network()), 0, 1e-10),
            "told again": error(of(at(PAIR)), numpy_divergence(at(PAIR)), 1e-10),
        }

    assert_holds(law(lambda params: ladders.divergence(PAIR, params, jnp.asarray(STATES))))
    for mutant in (
        lambda params: numpy_divergence(params, lambda q, p: np.sum(np.exp(p) * (p - q), 1)),
        lambda params: numpy_divergence(params, normalised=False),
        lambda params: numpy_divergence(params, lambda q, p: np.sum(q - p, 1)),
    ):
        assert "told again" in broken(law(mutant))


def test_what_the_elbo_loses_is_the_divergence():
    """ELBO = log p(x) − KL: of a q that is the posterior, bound and ELBO are one number whatever is drawn."""
    data = tr.Data(STATES)
    exact = ladders.measure_ladder(PAIR, posterior_network(), data, jax.random.key(0), 50)
    log_p = np.asarray(PAIR.log_likelihoods(posterior_network()["theta"], (jnp.asarray(STATES), None))).mean()
    assert_holds({"elbo": error(exact["elbo"], log_p, 1e-10), "bound": error(exact["bound"], log_p, 1e-10)})
    assert exact["q against the posterior"] == pytest.approx(0, abs=1e-10)
    assert exact["weights' sample size"] == pytest.approx(1)


# Units that say something.


@pytest.mark.laws
def test_active_units():
    """E[h | x] = W x with Var x = 1: units of variance 0.0121, 0.0081 and 0; of h², noise alone does not count."""
    x = np.concatenate([np.ones((30, 1)), -np.ones((30, 1))])
    ladder = Ladder(
        [layer(3, 1, "normal"), layer(2, 3, "normal"), standard_normal(2)],
        bottom_up([layer(1, 3, "normal"), layer(3, 2, "normal")]),
    )
    params = jax.tree.map(jnp.zeros_like, ladder.initial(jax.random.key(0)))
    network = params["phi"]["layers"]
    network["h1"]["layer0"]["weight"] = jnp.zeros((1, 6)).at[0, :3].set(jnp.array([0.11, 0.09, 0.0]))
    # h² sees the unit of h¹ that is noise: its mean differs from row to row by chance only.
    network["h2"]["layer0"]["weight"] = jnp.zeros((3, 4)).at[2, 0].set(0.5)
    several = [ladders.active_units(ladder, params, jnp.asarray(x), jax.random.key(i), 400) for i in range(3)]
    assert several == [[1, 0]] * 3
    noisy = np.asarray(ladders._spreads(ladder, 4, params, jnp.asarray(x), jax.random.key(0))[1])
    means = ladder.drawn(jax.random.key(0), params, jnp.asarray(x), 4)[1][1].mean.mean(0)
    assert np.var(np.asarray(means)[:, 0]) > ladders.ACTIVE, "what is not taken off would count"
    assert noisy[0] < np.var(np.asarray(means)[:, 0]) and noisy[1] == 0


# The signal of a gradient.


class Slope:
    """A method whose gradient is μ + σ ε."""

    def __init__(self, signal: float, size: int) -> None:
        self.mean, self.size = float(np.sqrt(signal)), size

    def needed(self, model):
        return model

    def objective(self, ladder) -> Objective:
        def draw(key, count, params):
            return jax.random.normal(key, (count, self.size))

        return Objective(
            draw, lambda noise, params, batch: jnp.sum((noise + self.mean) * params["theta"]) + 0 * batch.scale
        )


@pytest.mark.parametrize("signal", [0.0, 0.02, 3.0])
def test_signal(signal):
    """μ² / σ² of many numbers; the noise of the mean of 32 gradients is not taken for a slope."""
    size, data = 20_000, tr.Data(np.zeros((6, 1)))
    method: Any = Slope(signal, size)
    program = amortised.Amortising(PAIR, method)
    state = State({"theta": jnp.zeros(size), "phi": jnp.zeros(0)}, (), ())
    got = amortised.signal_at_end(program, Plan(6, 3), data, state, jax.random.key(4))
    spread = np.sqrt((2 / 32**2 + 4 * signal / 32) / size)  # of ‖mean g‖² / size, and a little for the noise's own
    assert abs(got - signal) < Z * (spread + 0.01 * signal)
    assert got < 0.01 or signal, "1/32 where it is not taken off"


# Verdicts.

GOOD = {
    "settled": True, "elbo": -20.5, "bound": -20.0, "samples": 100, "weights' sample size": 0.5, "steps": 10,
    "cost h1": 4.0, "cost h2": 1.0, "active h1": 7, "active h2": 2, "gradient signal": 0.1,
}  # fmt: skip


def verdicts(**changed):
    return {check.name: check for check in ladders.check_ladder(GOOD | changed, 2)}


@pytest.mark.quick
def test_verdicts():
    assert all(check.verdict == "trust" and check.sentence for check in verdicts().values())
    assert set(verdicts()) >= {"trend", "bound gap", "weights' sample size", "active h1", "cost h2", "gradient signal"}
    assert verdicts()["bound gap"].value == 0.5
    assert verdicts(settled=False)["trend"].verdict == "caution"
    assert verdicts(elbo=-22.0)["bound gap"].verdict == "caution"
    few, one = verdicts(**{"weights' sample size": 0.05}), verdicts(**{"weights' sample size": 0.012})
    assert few["weights' sample size"].verdict == "caution" and "0.4 nats" in few["weights' sample size"].sentence
    assert one["weights' sample size"].verdict == "reject"
    unused = verdicts(**{"active h2": 0})
    assert unused["active h2"].verdict == "caution" and "not used" in unused["active h2"].sentence
    assert unused["active h1"].verdict == "trust"
    for gone in ({"cost h1": 0.03, "cost h2": 0.01}, {"active h1": 0, "active h2": 0}):
        found = verdicts(**gone)
        assert found["active h1"].verdict == "reject" and "warmup=" in found["active h1"].sentence
        assert "free_bits=" in found["active h1"].sentence
    assert verdicts(**{"q against the posterior": 1.5})["q against the posterior"].verdict == "caution"
    assert ladders.held_out_check(0.2, 0.1, 9).verdict == "trust"
    assert ladders.held_out_check(0.4, 0.1, 9).verdict == "caution"
