"""What every method promises, whatever it learns and however.

Groups are made of ten steps and segments of one group, so that tiny runs are cut, killed, resumed and extended.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable import methods
from tractable import run as loop
from tractable.methods.variational import Variational
from tractable.tools.errors import SettingsError

CLOSE = 1e-6  # of rounding
RUNNING = ("drawing", "climbing the bound")  # phases that are saved as they go
CARRIED = 1e-4  # of rounding that a warm-up and trajectories have magnified
_rng = np.random.default_rng(0)
X = _rng.normal(size=(24, 2))
Y = X @ [1.0, -1.0] + 0.5 + _rng.normal(size=24)


class Raised(dist.Normal):
    """A normal whose log density is 2.5 too high."""

    def log_prob(self, value: Any) -> jax.Array:
        return super().log_prob(value) + 2.5


def regression(likelihood: Callable = dist.Normal) -> tr.Model:
    """y ~ N(a + w·x, 1): a scalar and a vector."""
    prior = {"a": dist.Normal(0.0, 2.0), "w": dist.Normal(jnp.zeros(2), 1.0).to_event(1)}
    return tr.Model(prior, lambda params, x: likelihood(params["a"] + x @ params["w"], 1.0))


MODEL, RAISED = regression(), regression(Raised)  # shared, so that they are compiled once


class Killed(Exception):
    """Stands for kill -9: nothing after it is run."""


def check_method(method: Any, *, variant: bool = False) -> None:
    """Hold a method to the contract: tiny runs of a regression with a scalar and a vector parameter.

    Args:
        variant: another setting of a method that has been held to all of it; leaves out float32 and constants added
            to the density, which compile everything again, and extending where steps are automatic.
    """
    with small_groups():
        data = tr.Data(Y, X)
        first = tr.infer(MODEL, data, method, seed=3)
        check_face(first, data)
        check_settings(method)
        check_again(first, method)
        check_order(first, method)
        if not variant:
            check_constant(first, method)
            check_precision(method)
        with tempfile.TemporaryDirectory() as folder:
            check_files(first, method, Path(folder))
            if first.standing is not None or isinstance(method, Variational):
                check_kill(first, method, Path(folder) / "run")
        if first.standing is None or getattr(method, "cycles", 0) or (variant and method.step_size == "auto"):
            return  # a cycle's length follows from draws
        check_extend(first, method)


@contextmanager
def small_groups() -> Iterator[None]:
    """Groups of about ten steps, segments of one group; and compilations that are quick rather than good."""
    with pytest.MonkeyPatch.context() as patch, quick_compilation():
        patch.setattr(loop, "BLOCK", 10)
        patch.setattr(loop, "BUFFER_BYTES", 1)
        yield


@contextmanager
def quick_compilation() -> Iterator[None]:
    """Where programs run for less than they compile."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def numbers(posterior: tr.Posterior) -> np.ndarray:
    return np.asarray(posterior.point if posterior.is_point else posterior.unconstrained)


def check_face(posterior: tr.Posterior, data: tr.Data) -> None:
    """Summaries, predictions and verdict are there, finite and of the right shapes."""
    table = posterior.summary()
    assert list(table.index) == ["a", "w[0]", "w[1]"]
    for tree in (posterior.mean(), posterior.sd()):
        assert {k: np.shape(v) for k, v in tree.items()} == {"a": (), "w": (2,)}
        assert all(np.all(np.isfinite(v)) for v in tree.values())
    drawn = posterior.sample(0, 7)
    assert drawn["a"].shape == (7,) and drawn["w"].shape == (7, 2)
    prediction = posterior.predict(X[:5], draws=50)
    assert prediction.mean.shape == (5,) and np.all(prediction.lower < prediction.upper)
    np.testing.assert_allclose(prediction.sd, np.hypot(prediction.aleatoric, prediction.epistemic), rtol=1e-9)
    scores = posterior.log_predictive(data, draws=50)
    assert scores.shape == (24,) and np.all(np.isfinite(scores))
    report = posterior.report()
    assert report.checks and report.verdict in ("trust", "caution", "reject") and report.verdict in str(report)
    assert all(check.name and check.sentence for check in report.checks)
    draws = posterior.to_arviz()["posterior"]
    assert draws["w"].shape == (posterior.chains, max(posterior.count, 1), 2)
    np.testing.assert_array_equal(np.asarray(draws["a"]), posterior.draws["a"])
    if not posterior.is_point:
        assert numbers(posterior).shape == (posterior.chains, posterior.method.draws, 3)
        assert all(trace.shape == numbers(posterior).shape[:2] for trace in posterior.info.values())


def check_settings(method: Any) -> None:
    """``from_settings`` gives the method back; functions are refused, with a sentence."""
    if callable(getattr(method, "step_size", None)):
        with pytest.raises(SettingsError, match="function"):
            methods.from_settings(method.settings())
    else:
        assert methods.from_settings(method.settings()) == method


def check_again(first: tr.Posterior, method: Any) -> None:
    """The same seed gives the same bits and compiles nothing; another seed does not; data stay as they were."""
    y, x = Y.copy(), X.copy()
    before = loop.traces
    again = tr.infer(MODEL, tr.Data(y, x), method, seed=3)
    assert loop.traces == before
    np.testing.assert_array_equal(numbers(again), numbers(first))
    for name, trace in first.info.items():
        np.testing.assert_array_equal(again.info[name], trace)
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(x, X)
    if not first.is_point:
        assert np.any(numbers(tr.infer(MODEL, tr.Data(y, x), method, seed=4)) != numbers(first))


def check_order(first: tr.Posterior, method: Any) -> None:
    """Another order of the rows changes nothing but rounding, where all are looked at."""
    if not method.minibatch:
        order = np.random.default_rng(1).permutation(len(Y))
        permuted = tr.infer(MODEL, tr.Data(Y[order], X[order]), method, seed=3)
        np.testing.assert_allclose(numbers(permuted), numbers(first), atol=CARRIED)


def check_constant(first: tr.Posterior, method: Any) -> None:
    """A constant added to the log density changes nothing but rounding."""
    raised = tr.infer(RAISED, tr.Data(Y, X), method, seed=3)
    np.testing.assert_allclose(numbers(raised), numbers(first), atol=CARRIED)


@functools.cache
def single() -> tr.Model:
    """The model in float32: made in that mode, and once."""
    return regression()


def check_precision(method: Any) -> None:
    """In float32 everything is float32."""
    with jax.enable_x64(False):
        posterior = tr.infer(single(), tr.Data(Y.astype(np.float32), X.astype(np.float32)), method, seed=3)
        assert posterior.values.dtype == np.float32
        if not posterior.is_point:
            assert numbers(posterior).dtype == np.float32
        if posterior.standing is not None:
            floats = [leaf for leaf in jax.tree.leaves(posterior.standing.states) if leaf.dtype.kind == "f"]
            assert floats and all(leaf.dtype == np.float32 for leaf in floats)
        if posterior.fitted is not None:
            assert all(leaf.dtype == np.float32 for leaf in posterior.fitted.phi.values())
        assert np.all(np.isfinite(numbers(posterior)))


def check_files(first: tr.Posterior, method: Any, folder: Path) -> None:
    """Saved and loaded, a posterior says the same; nothing on disk is a pickle."""
    first.save(folder / "saved")
    files = [path for path in (folder / "saved").rglob("*") if path.is_file()]
    assert files and not [path for path in files if path.suffix in (".pkl", ".pickle", ".npy")]
    if callable(getattr(method, "step_size", None)):
        return  # a schedule cannot be written down
    loaded = tr.load(folder / "saved", MODEL, tr.Data(Y, X))
    np.testing.assert_array_equal(numbers(loaded), numbers(first))
    assert loaded.method == method and loaded.seed == 3
    assert loaded.summary().equals(first.summary())


def check_kill(first: tr.Posterior, method: Any, folder: Path) -> None:
    """Killed half-way and resumed, a run is the one that was not, bit for bit."""

    def progress(phase: str, done: int, of: int) -> None:
        if phase in RUNNING and 2 * done >= of:
            raise Killed

    with pytest.raises(Killed):
        tr.infer(MODEL, tr.Data(Y, X), method, seed=3, checkpoint=folder, progress=progress)
    seen: list[tuple] = []
    resumed = tr.infer(
        MODEL, tr.Data(Y, X), method, seed=3, checkpoint=folder, progress=lambda *said: seen.append(said)
    )
    assert seen and all(phase in RUNNING for phase, _, _ in seen), seen  # no second warm-up
    assert 4 * seen[0][1] > seen[0][2], seen  # it went on, and did not start again
    np.testing.assert_array_equal(numbers(resumed), numbers(first))
    for name, trace in first.info.items():
        np.testing.assert_array_equal(resumed.info[name], trace)
    if first.fitted is not None and resumed.fitted is not None:
        np.testing.assert_array_equal(resumed.fitted.trace["bound"], first.fitted.trace["bound"])
    finished = tr.infer(MODEL, tr.Data(Y, X), method, seed=3, checkpoint=folder)  # nothing is left to do
    np.testing.assert_array_equal(numbers(finished), numbers(first))


def check_extend(first: tr.Posterior, method: Any) -> None:
    """``extend(n)`` is what would have been drawn at once."""
    at_once = tr.infer(MODEL, tr.Data(Y, X), dataclasses.replace(method, draws=method.draws + 13), seed=3)
    extended = first.extend(6).extend(4).extend(3)  # the second may find its draws already there
    assert extended.count == at_once.count == method.draws + 13
    np.testing.assert_array_equal(numbers(extended), numbers(at_once))
    np.testing.assert_array_equal(numbers(extended)[:, : first.count], numbers(first))
    for name, trace in at_once.info.items():
        np.testing.assert_array_equal(extended.info[name], trace)
