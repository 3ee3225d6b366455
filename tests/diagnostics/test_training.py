"""What has not learnt is not trusted: widths that do not suit their means, and runs too short to show a trend."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core import approximations
from tractable.diagnostics import networks
from tractable.engine import staged_climb
from tractable.engine.bound import has_settled, is_flat
from tractable.networks.bayes_by_backprop_method import BayesByBackprop, Found

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3)).astype(np.float32)
NOISE, PRIOR = 0.5, 1.0
Y = X @ np.array([1.0, -0.5, 0.2], np.float32) + 0.3 + NOISE * RNG.normal(size=200).astype(np.float32)
LINEAR = tr.models.neural_network(tr.models.mlp(3, (), 1), noise=NOISE, prior=dist.Normal(0.0, PRIOR))
FIT, HELD_OUT = tr.Data(Y, given=X).split(0.2)


def closed_form():
    """Mean (4,) and sds (4,) of the mean field's optimum, bias first: σ = 1/√Λᵢᵢ."""
    (y, x) = (np.asarray(a, np.float64) for a in FIT.rows)
    design = np.column_stack([np.ones(len(y)), x])
    precision = design.T @ design / NOISE**2 + np.eye(4) / PRIOR**2
    return np.linalg.solve(precision, design.T @ y / NOISE**2), 1 / np.sqrt(np.diag(precision))


def sds(posterior):
    return np.asarray(posterior.belief.q.sd(posterior.belief.phi))


@pytest.mark.laws
@pytest.mark.parametrize("start", ["map", "random"])
@pytest.mark.parametrize("sd", [0.002, 0.02, 0.5])
def test_held_out_rows_choose_among_learnt_widths(sd, start):
    posterior = tr.infer(LINEAR, FIT, tr.BayesByBackprop(sd=sd, start=start), held_out=HELD_OUT, seed=0)
    np.testing.assert_allclose(sds(posterior), closed_form()[1], rtol=0.05)
    assert posterior.report().verdict == "trust"


@pytest.mark.laws
@pytest.mark.parametrize("mutant", ["any state is chosen", "nothing finds the widths"])
def test_widths_are_not_learnt_by_mutants(monkeypatch, mutant):
    monkeypatch.setattr(
        BayesByBackprop, "_spread", lambda self, session, plan, key, mean, log_sd, *_: Found(log_sd, 0, 0.0, False)
    )
    if mutant == "any state is chosen":
        monkeypatch.setattr(staged_climb, "_suits", lambda problem, phis: True)
        monkeypatch.setattr(staged_climb, "SURE", -1e9)
    method = tr.BayesByBackprop(sd=0.002, start="random", steps=400)
    posterior = tr.infer(LINEAR, FIT, method, held_out=HELD_OUT, seed=0)
    assert np.max(np.abs(np.log(sds(posterior) / closed_form()[1]))) > math.log(1.5)
    assert posterior.report().verdict != "trust"


@pytest.fixture(scope="module")
def exact():
    """The optimum itself, as a result of Bayes by Backprop."""
    posterior = tr.infer(LINEAR, FIT, tr.BayesByBackprop(steps=200), seed=0, verify=None)
    mean, sd = closed_form()
    return lambda factors: with_sds(posterior, mean, sd * np.asarray(factors))


def with_sds(posterior, mean, sd):
    phi = {"mean": jnp.asarray(mean, jnp.float32), "rho": approximations.inverse_softplus(jnp.asarray(sd, jnp.float32))}
    q = approximations.mean_field(4)
    draws = np.asarray(approximations.draws_of(q, phi, jax.random.key(0), 200))[None]
    belief = dataclasses.replace(posterior.belief, phi=jax.tree.map(np.asarray, phi), positions=draws)
    return dataclasses.replace(posterior, belief=belief)


@pytest.mark.test
@pytest.mark.parametrize(
    ("factors", "verdict", "where"),
    [
        ((1, 1, 1, 1), "trust", ""),
        ((1.1, 0.9, 1, 1), "trust", ""),
        ((0.3, 1, 1, 1), "caution", "bias"),
        ((1, 3, 3, 3), "reject", "weight"),
        ((0.1, 0.1, 0.1, 0.1), "reject", ""),
        ((10, 10, 10, 10), "reject", ""),
        ((2, 1, 1, 1), "caution", "bias"),
    ],
)
def test_widths_are_judged_in_each_array(exact, factors, verdict, where):
    found = exact(factors)
    (check,) = networks._widths(found, FIT, math.inf, 1.0)
    assert check.verdict == verdict and where in check.sentence
    squares = np.square(np.asarray(factors, float))
    if verdict == "trust":
        assert 0.8 < check.value < 1.25
    elif where:
        part = squares[:1] if where == "bias" else squares[1:]
        assert check.value == pytest.approx(part.mean(), rel=0.25)


@pytest.mark.test
@pytest.mark.parametrize(("allowed", "work"), [(1.0, 1.0), (math.inf, 4 * networks.AT_ONCE)], ids=["work", "memory"])
def test_widths_are_judged_by_some_rows_alike(exact, monkeypatch, allowed, work):
    """The rows that stand for all count for as many, also if it is memory that allows no more."""
    asked, look = [], networks.Target.look
    monkeypatch.setattr(networks.Target, "look", lambda *given: asked.append(len(given[1][0])) or look(*given))
    many = tr.Data(np.tile(FIT.y, 10), given=np.tile(FIT.given, (10, 1)))  # they want a tenth of the variance
    (check,) = networks._widths(exact((1, 1, 1, 1)), many, allowed, work)
    assert asked[0] < many.size and (work == 1 or asked[0] == many.size // 4)
    assert check.value == pytest.approx(10, rel=0.25) and check.verdict == "reject"


@pytest.mark.laws
def test_error_bars_of_a_network_do_not_hang_on_where_they_began():
    x = np.linspace(-2, 2, 150)[:, None].astype("f")
    y = np.sin(2 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=150)
    net = tr.models.neural_network(tr.models.mlp(1, (8,), 1))
    fit, held_out = tr.Data(y, given=x).split(0.2)
    seen = np.append(np.linspace(-1.9, 1.9, 50), 8.0)[:, None].astype("f")
    inside, beyond = [], []
    for seed, sd in enumerate((0.005, 0.02, 0.1)):
        posterior = tr.infer(net, fit, tr.BayesByBackprop(sd=sd), held_out=held_out, seed=seed, verify=None)
        spread = np.asarray(posterior.predict(seen).epistemic)
        inside.append(np.median(spread[:-1]))
        beyond.append(spread[-1])
        assert posterior.found["held-out best"] > 0
    assert np.all(np.abs(inside / np.median(inside) - 1) < 0.25)
    assert max(beyond) / min(beyond) < 1.5


@pytest.mark.laws
def test_a_large_network_that_has_not_learnt_is_rejected():
    x = np.random.default_rng(0).normal(size=(600, 8)).astype("f")
    y = np.tanh(x[:, 0]) * x[:, 1] + 0.3 * np.random.default_rng(1).normal(size=600)
    net = tr.models.neural_network(tr.models.mlp(8, (100, 100), 1))
    fit, held_out = tr.Data(y, given=x).split(0.2)
    posterior = tr.infer(net, fit, tr.BayesByBackprop(epochs=5), held_out=held_out, seed=0)
    checks = {check.name: check for check in posterior.report().checks}
    assert checks["widths"].verdict == "reject" and "not trained" in checks["widths"].sentence


def trace_of(rate, steps, pace, noise=0.5, seed=0):
    way = np.cumsum(pace) / pace.sum()
    return (10 * (1 - np.exp(-rate * way)) + noise * np.random.default_rng(seed).normal(size=steps))[None]


@pytest.mark.quick
@pytest.mark.parametrize("steps", [2, 10, 50, 200, 1000, 5000])
@pytest.mark.parametrize("paced", ["even", "cosine"])
def test_a_run_that_still_rises_is_never_flat(steps, paced):
    pace = np.ones(steps) if paced == "even" else 1 + np.cos(np.pi * np.arange(steps) / steps)
    for rate in (0.01, 0.5, 1.0, 2.0):
        for seed in range(20):
            assert not is_flat(trace_of(rate, steps, pace, seed=seed), pace)
    assert not is_flat(np.random.default_rng(0).normal(size=(1, steps)), pace)  # noise alone shows nothing


@pytest.mark.quick
def test_a_run_that_has_risen_is_flat():
    for steps in (1000, 5000):
        for pace in (np.ones(steps), 1 + np.cos(np.pi * np.arange(steps) / steps)):
            assert all(is_flat(trace_of(8.0, steps, pace, seed=seed), pace) for seed in range(20))


@pytest.mark.quick
def test_noise_alone_hides_a_trend():
    """Why a trend that is not seen does not suffice."""
    pace = 1 + np.cos(np.pi * np.arange(50) / 50)
    assert sum(has_settled(trace_of(0.5, 50, pace, seed=seed)) for seed in range(50)) > 25


def ladders():
    bits = (np.random.default_rng(0).random((500, 20)) < 0.3).astype(np.float32)
    few = np.random.default_rng(1).normal(size=(5, 20)).astype(np.float32)
    belief_network = tr.models.sigmoid_belief_network(20, (10,))
    coder = tr.models.latent_gaussian(20, 2, hidden=(50,), family="normal", noise="shared")
    return {
        "nvil": (belief_network, bits, tr.NVIL(epochs=2)),
        "vimco": (belief_network, bits, tr.VIMCO(epochs=2)),
        "wake-sleep": (belief_network, bits, tr.WakeSleep(epochs=2)),
        "reweighted": (belief_network, bits, tr.ReweightedWakeSleep(epochs=2)),
        "five rows": (coder, few, tr.AutoEncoding()),
        "five rows, briefly": (coder, few, tr.AutoEncoding(epochs=2)),
        "warmed up": (coder, np.tile(few, (20, 1)), tr.AutoEncoding(epochs=4, warmup=2)),
    }


@pytest.mark.laws
@pytest.mark.parametrize("name", ladders())
def test_a_short_run_of_a_ladder_is_not_trusted(name):
    ladder, x, method = ladders()[name]
    assert tr.infer(ladder, tr.Data(x), method, seed=0).report().verdict != "trust"


@pytest.mark.test
def test_held_out_rows_do_not_make_a_short_run_one_to_trust():
    ladder, x, method = ladders()["nvil"]
    posterior = tr.infer(ladder, tr.Data(x[:400]), method, seed=0, held_out=tr.Data(x[400:]))
    assert posterior.report().verdict != "trust"
