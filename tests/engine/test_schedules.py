"""Schedules of learning rates: each step has the schedule's rate, all steps are taken, and faults are sentences."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from every_method import PIXELS, REGRESSION, VAE, X, Y

import tractable as tr
from tractable.core.errors import SettingsError
from tractable.core.tree import PyTree
from tractable.engine.ascend import evaluate_schedule

pytestmark = pytest.mark.test

DATA = tr.Data(Y, X)
COSINE = optax.cosine_decay_schedule(0.1, 800)
METHODS: dict[str, Callable[..., Any]] = {
    "mean field": lambda **more: tr.MeanField(**more, solver="stochastic", samples=4, draws=45),
    "Bayes by Backprop": lambda **more: tr.BayesByBackprop(
        **more, batch_size=None, samples=2, start="random", draws=45
    ),
    "IVON": lambda **more: tr.IVON(**more, batch_size=None, start="random", draws=45),
}


def climb(method: Any, rate: float, steps: int = 6) -> list[PyTree]:
    """The means of q after each of the first steps of a method's kernel; the rate of the stage is ``rate``."""
    tuned = {"learning_rate": jnp.asarray(rate), "temperature": jnp.asarray(1.0), "sd": jnp.full(3, 0.5)}
    kernel = method.kernel(REGRESSION, DATA.arrays(), tuned)
    state = kernel.init(jax.random.key(0), jax.tree.map(lambda a: a[0], method.positions(
        REGRESSION, jnp.zeros((1, 3)), jnp.full((1, 3), 0.5))))  # fmt: skip
    means, step = [], jax.jit(kernel.step)
    for key in jax.random.split(jax.random.key(1), steps):
        noise = jax.tree.map(lambda a: a[0], kernel.draw(key, 1, state, None))
        state, _ = step(noise, state, None)
        means.append(state.position["mean"])  # the precisions of IVON have a rate of their own
    return means


@pytest.mark.parametrize("name", METHODS)
def test_a_step_has_the_rate_of_its_schedule(name):
    """A constant schedule is its number; where a schedule is 0, nothing moves."""
    number = climb(METHODS[name](learning_rate=0.05), 0.05)
    constant = climb(METHODS[name](learning_rate=lambda t: 0.05 + 0.0 * t), 1.0)
    halted = climb(METHODS[name](learning_rate=lambda t: jnp.where(t < 3, 0.05, 0.0)), 1.0)
    for i, (a, b, c) in enumerate(zip(number, constant, halted, strict=True)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), a, b)
        same = jax.tree.map(lambda x, y: np.allclose(x, y, rtol=1e-5), a, c)
        assert all(jax.tree.leaves(same)) == (i < 3)
    jax.tree.map(np.testing.assert_array_equal, halted[2], halted[5])


SCHEDULED = {
    "by the method": {"learning_rate": COSINE},
    "in an optimiser": {"optimizer": optax.chain(optax.clip_by_global_norm(1e3), optax.adam(COSINE))},
    "in the state": {"optimizer": optax.inject_hyperparams(optax.adam)(learning_rate=COSINE)},
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_schedule_takes_all_steps_and_finds_the_best_mean_field(name):
    """Without a schedule the same climb ends early, once its stages gain nothing."""
    given = {"solver": "stochastic", "steps": 4000, "draws": 45, "start": "random"}
    late = optax.cosine_decay_schedule(0.1, 4000)
    settings = jax.tree.map(lambda value: late if value is COSINE else value, SCHEDULED[name])
    found = tr.infer(REGRESSION, DATA, tr.MeanField(**given, **settings), seed=0, verify=None)
    assert found.found["steps"] == 4000 and not found.found["cut"]
    assert [check.verdict for check in found.report().checks if check.name == "bound's gain"] == ["trust"]
    precision = np.eye(3) / [4.0, 1.0, 1.0]
    design = np.c_[np.ones(len(Y)), X]
    precision += design.T @ design
    mean, sd = np.linalg.solve(precision, design.T @ Y), 1 / np.sqrt(np.diag(precision))
    phi = found.fitted.phi
    np.testing.assert_allclose(phi["mean"], mean, atol=0.1 * sd.max())
    np.testing.assert_allclose(np.asarray(found.fitted.q.sd(phi)), sd, rtol=0.1)


def test_without_a_schedule_a_climb_ends_early():
    for more in ({}, {"optimizer": optax.adam(0.01)}):
        method = tr.MeanField(solver="stochastic", steps=40_000, draws=45, **more)
        assert tr.infer(REGRESSION, DATA, method, seed=0, verify=None).found["steps"] < 40_000


@pytest.mark.parametrize("name", METHODS)
def test_a_climb_with_a_schedule_resumes(name, tmp_path):
    method = METHODS[name](learning_rate=COSINE, steps=800)

    def progress(phase: str, done: int, of: int) -> None:
        if phase == "climbing the bound" and done > 300:
            raise KeyboardInterrupt

    whole = tr.infer(REGRESSION, DATA, method, seed=0, verify=None)
    with pytest.raises(KeyboardInterrupt):
        tr.infer(REGRESSION, DATA, method, seed=0, verify=None, checkpoint=tmp_path / "run", progress=progress)
    resumed = tr.infer(REGRESSION, DATA, method, seed=0, verify=None, checkpoint=tmp_path / "run")
    assert resumed.found["steps"] == whole.found["steps"] == 800
    np.testing.assert_array_equal(resumed.unconstrained, whole.unconstrained)
    other = METHODS[name](learning_rate=optax.cosine_decay_schedule(0.05, 800), steps=800)
    with pytest.raises(tr.errors.CheckpointError, match="functions"):
        tr.infer(REGRESSION, DATA, other, seed=0, verify=None, checkpoint=tmp_path / "run")


def test_a_saved_posterior_asks_for_its_schedule(tmp_path):
    method = METHODS["mean field"](learning_rate=COSINE, steps=400)
    found = tr.infer(REGRESSION, DATA, method, seed=0, verify=None)
    found.save(tmp_path / "run")
    with pytest.raises(SettingsError, match=r"MeanField\(learning_rate=...\) was a function.* give method= again"):
        tr.load(tmp_path / "run", REGRESSION, DATA)
    assert tr.load(tmp_path / "run", REGRESSION, DATA, method=method).method == method


def test_a_ladder_has_the_rates_of_a_schedule():
    halted = tr.AutoEncoding(epochs=20, batch_size=10, learning_rate=lambda t: jnp.where(t < 1, 1e-3, 0.0))
    curves = [
        tr.infer(VAE, tr.Data(PIXELS), method, seed=0, verify=None).point
        for method in (halted, tr.AutoEncoding(epochs=40, batch_size=10, learning_rate=halted.learning_rate))
    ]
    np.testing.assert_array_equal(curves[0], curves[1])


BAD = {
    "negative": (lambda t: 0.1 - 1e-3 * t, r"got -0.0\d+ after 10\d steps"),
    "infinite": (lambda t: 0.1 / t, "got inf after 0 steps"),
    "no scalar": (lambda t: jnp.full(2, 0.1) * t, r"got shape \(2,\)"),
    "no number": (lambda t: jnp.log(-1.0 - t), "got nan after 0 steps"),
    "by Python": (lambda t: 0.1 if t < 5 else 0.01, "got TracerBoolConversionError"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_schedules_are_refused(name):
    schedule, got = BAD[name]
    with pytest.raises(SettingsError, match=r"F\(\) expects a schedule whose rate at each of the 1000 steps .* " + got):
        evaluate_schedule("F()", schedule, 1000)


def test_bad_schedules_are_refused_before_a_run():
    heard = []
    for model, data, method in (
        (REGRESSION, DATA, METHODS["IVON"](learning_rate=BAD["negative"][0], steps=200)),
        (VAE, tr.Data(PIXELS), tr.AutoEncoding(epochs=100, batch_size=10, learning_rate=BAD["negative"][0])),
    ):
        with pytest.raises(SettingsError, match=r"\(learning_rate=...\) expects a schedule"):
            tr.infer(model, data, method, progress=lambda *now: heard.append(now))
    assert not heard
    for kind in (tr.MeanField, tr.BayesByBackprop, tr.NVIL):
        with pytest.raises(SettingsError, match=r"\(learning_rate=...\) expects a number where optimizer= .*adam\(sch"):
            kind(learning_rate=COSINE, optimizer=optax.adam(0.1))
        with pytest.raises(SettingsError, match=r"expects a positive finite number.* function of the number of steps"):
            kind(learning_rate=-1.0)


def test_rates_are_those_of_evenly_spaced_times():
    np.testing.assert_allclose(evaluate_schedule("F()", lambda t: 1.0 * t, 5), np.arange(5))
    found = evaluate_schedule("F()", optax.constant_schedule(0.1), 10**6)
    assert found.shape == (1000,) and np.allclose(found, 0.1)
