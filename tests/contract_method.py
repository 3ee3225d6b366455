"""What every method promises, whatever it learns and however.

Groups are made of ten steps and segments of one group, so that tiny runs are cut, killed, resumed and extended.
"""

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from every_method import RAISED, Case, numbers, regression
from every_method import REGRESSION as MODEL
from jax.sharding import Mesh

import tractable as tr
from tractable import methods
from tractable.core.errors import ModelError, SettingsError
from tractable.diagnostics.belief import values_of
from tractable.engine import run as loop
from tractable.engine import session as sessions
from tractable.engine.abilities import ABILITIES
from tractable.latent import em_climb
from tractable.pages.page import write_page

CLOSE = 1e-6  # of rounding
CARRIED = 1e-4  # of rounding that a warm-up and trajectories have magnified


class Killed(Exception):
    """Stands for kill -9: nothing after it is run."""


def check_method(case: Case, folder: Path, *, variant: bool = False) -> None:
    """Hold a method to the contract on a tiny run.

    Args:
        variant: another setting of a method that has been held to all of it; leaves out what compiles everything
            again: float32, constants added to the density, moments, and extending where steps are automatic.
    """
    with small_groups():
        said: list[tuple] = []
        first = tr.infer(case.model, case.rows, case.method, seed=3, progress=lambda *now: said.append(now))
        check_face(first, case)
        check_settings(case.method)
        check_again(first, case)
        if case.model is MODEL:
            check_order(first, case)
        if case.model is MODEL and not variant:
            check_constant(first, case)
            check_precision(case.method)
        check_doors(first, case, folder)
        check_kill(first, case, said, folder / "killed")
        check_options(first, case, folder, moments=not variant)
        automatic = getattr(case.method, "step_size", None) == "auto"
        if case.method.chained and not getattr(case.method, "cycles", 0) and not (variant and automatic):
            check_extend(first, case)  # a cycle's length follows from draws


@contextmanager
def small_groups() -> Iterator[None]:
    """Groups of about ten steps, segments of one group, all of them saved; and compilations that are quick."""
    with pytest.MonkeyPatch.context() as patch, quick_compilation():
        patch.setattr(loop, "BLOCK", 10)
        patch.setattr(loop, "BUFFER_BYTES", 1)
        patch.setattr(em_climb, "SEGMENT", 4)
        patch.setattr(sessions, "SAVING", np.inf)
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


def same(one: tr.Posterior, other: tr.Posterior, *, traces: bool = True) -> None:
    """Two posteriors say the same, to the last bit."""
    np.testing.assert_array_equal(numbers(one), numbers(other))
    jax.tree.map(np.testing.assert_array_equal, one.phi, other.phi)
    if traces:
        assert one.info.keys() == other.info.keys()
        for name, trace in one.info.items():
            np.testing.assert_array_equal(trace, other.info[name])
    if one.fitted is not None and other.fitted is not None:
        jax.tree.map(np.testing.assert_array_equal, one.fitted.phi, other.fitted.phi)


def check_face(posterior: tr.Posterior, case: Case) -> None:
    """Summaries, predictions and verdict are there, finite where they should be, and of the right shapes."""
    shapes = jax.eval_shape(case.model.example, jax.random.key(0))
    assert list(posterior.summary().index) == case.model.names
    jax.tree.map(
        lambda value, like: np.testing.assert_array_equal(np.shape(value), like.shape), posterior.mean(), shapes
    )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(posterior.mean()))
    drawn = posterior.sample(0, 7)
    jax.tree.map(lambda value, like: np.testing.assert_array_equal(np.shape(value), (7, *like.shape)), drawn, shapes)
    if case.drawn_only:
        with pytest.raises(ModelError, match="cannot be summed out"):
            posterior.log_predictive(case.rows)
    else:
        scores = posterior.log_predictive(case.rows, draws=50)
        assert scores.shape == (case.rows.size,) and np.all(np.isfinite(scores))
    if case.model is MODEL:
        prediction = posterior.predict(case.data[1][:5], draws=50)
        assert prediction.mean.shape == (5,) and np.all(prediction.lower < prediction.upper)
        np.testing.assert_allclose(prediction.sd, np.hypot(prediction.aleatoric, prediction.epistemic), rtol=1e-9)
    report = posterior.report()
    assert report.checks and report.verdict in ("trust", "caution", "reject") and report.verdict in str(report)
    assert all(check.name and check.sentence for check in report.checks)
    data_tree = posterior.to_arviz()["posterior"]
    count = max(posterior.count, 1)
    assert data_tree and all(a.shape[:2] == (posterior.chains, count) for a in data_tree.data_vars.values())
    if not posterior.is_point:
        assert numbers(posterior).shape == (posterior.chains, posterior.method.draws, case.model.space.size)
        of_draws = posterior.curve is None  # a climb's traces are of its steps
        assert not of_draws or all(a.shape == numbers(posterior).shape[:2] for a in posterior.info.values())
    assert all(np.isfinite(part) and part >= 0 for part in posterior.cost) or isinstance(
        posterior.method, tr.DeepEnsemble
    )


def check_settings(method: Any) -> None:
    """``from_settings`` gives the method back; functions are refused, with a sentence."""
    if writable(method):
        assert methods.from_settings(method.settings()) == method
    else:
        with pytest.raises(SettingsError, match="function"):
            methods.from_settings(method.settings())


def writable(method: Any) -> bool:
    """Whether a file can hold its settings."""
    return "<function" not in str(method.settings())


def check_again(first: tr.Posterior, case: Case) -> None:
    """The same seed gives the same bits and compiles nothing; another seed does not; data stay as they were."""
    given = jax.tree.map(np.copy, case.data)
    before = loop.traces
    same(tr.infer(case.model, tr.Data(*given), case.method, seed=3), first)
    assert loop.traces == before
    jax.tree.map(np.testing.assert_array_equal, given, case.data)
    if case.method.chained or first.fitted is not None:  # maxima are the same from any start
        assert np.any(numbers(tr.infer(case.model, case.rows, case.method, seed=4)) != numbers(first))


def check_order(first: tr.Posterior, case: Case) -> None:
    """Another order of the rows changes nothing but rounding, where all are looked at."""
    if not case.method.minibatch:
        y, x = case.data
        order = np.random.default_rng(1).permutation(len(y))
        permuted = tr.infer(MODEL, tr.Data(y[order], x[order]), case.method, seed=3)
        np.testing.assert_allclose(numbers(permuted), numbers(first), atol=CARRIED)


def check_constant(first: tr.Posterior, case: Case) -> None:
    """A constant added to the log density changes nothing but rounding."""
    raised = tr.infer(RAISED, case.rows, case.method, seed=3)
    np.testing.assert_allclose(numbers(raised), numbers(first), atol=CARRIED)


@functools.cache
def single() -> tr.Model:
    """The model in float32: made in that mode, and once."""
    return regression()


def check_precision(method: Any) -> None:
    """In float32 everything is float32."""
    from every_method import X, Y

    with jax.enable_x64(False):
        posterior = tr.infer(single(), tr.Data(Y.astype(np.float32), X.astype(np.float32)), method, seed=3)
        assert posterior.values.dtype == np.float32
        if not posterior.is_point:
            assert numbers(posterior).dtype == np.float32
        if posterior.run_state is not None:
            floats = [leaf for leaf in jax.tree.leaves(posterior.run_state.states) if leaf.dtype.kind == "f"]
            assert floats and all(leaf.dtype == np.float32 for leaf in floats)
        if posterior.fitted is not None:
            assert all(leaf.dtype == np.float32 for leaf in posterior.fitted.phi.values())
        assert np.all(np.isfinite(numbers(posterior)))


def check_doors(first: tr.Posterior, case: Case, folder: Path) -> None:
    """Saved and loaded, compared and shown on a page, a posterior says the same; nothing on disk is a pickle."""
    first.save(folder / "saved")
    files = [path for path in (folder / "saved").rglob("*") if path.is_file()]
    assert files and not [path for path in files if path.suffix in (".pkl", ".pickle", ".npy")]
    loaded = tr.load(folder / "saved", case.model, case.rows, method=None if writable(case.method) else case.method)
    same(loaded, first)
    assert loaded.method == case.method and loaded.seed == 3
    assert loaded.summary().equals(first.summary()) and loaded.report() == first.report()
    found = tr.compare(case.model, case.rows, [case.method], seed=3, reference=first)
    assert not found.failures and found.table["verdict"].tolist() == [first.report().verdict]
    assert found.table[["gradients", "densities"]].to_numpy().tolist() == [list(first.cost)] or np.isnan(first.cost[0])
    assert first.report().verdict in write_page(folder / "page", first, title="A page").read_text(encoding="utf-8")


def check_kill(first: tr.Posterior, case: Case, said: list[tuple], folder: Path) -> None:
    """Killed half-way and resumed, a run is the one that was not, bit for bit; loops go on where they were."""
    phase = said[-1][0]  # the last is the one that is saved as it goes
    count = sum(now[0] == phase for now in said)
    calls = iter(range(count))

    def progress(now: str, done: int, of: int) -> None:
        if now == phase and next(calls) >= (count - 1) // 2:
            raise Killed

    with pytest.raises(Killed):
        tr.infer(case.model, case.rows, case.method, seed=3, checkpoint=folder, progress=progress)
    seen: list[tuple] = []
    again = functools.partial(tr.infer, case.model, case.rows, case.method, seed=3, checkpoint=folder)
    resumed = again(progress=lambda *now: seen.append(now))
    assert seen and all(now[0] == phase for now in seen), seen  # no second warm-up
    start = next(now[1] for now in said if now[0] == phase)
    point = isinstance(case.method, tr.MAP) and case.method.optimizer == "lbfgs"
    on_host = point or isinstance(case.method, tr.INLA)  # a search on the host starts again
    assert count < 3 or (seen[0][1] > start) != on_host, (said, seen)
    same(resumed, first)
    same(again(), first)  # nothing is left to do


def check_options(first: tr.Posterior, case: Case, folder: Path, *, moments: bool) -> None:
    """Every option of ``infer`` is taken, or refused in the sentence of the table."""
    options: dict[str, dict[str, Any]] = {
        "draws=FOLDER": {"draws": folder / "draws"},
        "draws='moments'": {"draws": "moments"},
        "mesh over chains": {"mesh": Mesh(np.array(jax.devices()[:1] * 2), ("chain",))},
        "mesh over rows": {"mesh": Mesh(np.array(jax.devices()[:1]), ("row",))},
    }
    for ability, option in options.items():
        can, sentence = ABILITIES[ability]
        if not can(case.method):
            with pytest.raises(SettingsError) as caught:
                tr.infer(case.model, case.rows, case.method, seed=3, **option)
            assert str(caught.value) == sentence.format(name=type(case.method).__name__)
        elif "mesh" in option:
            continue  # tests/engine/test_mesh.py runs those that can
        elif option["draws"] != "moments":
            streamed = tr.infer(case.model, case.rows, case.method, seed=3, **option)
            same(streamed, first)
            if writable(case.method):
                same(tr.load(folder / "draws", case.model), first)
        elif moments:
            averaged = tr.infer(case.model, case.rows, case.method, seed=3, **option)
            drawn = np.concatenate([first.unconstrained, first.run_state.surplus["position"]], 1)  # whole blocks
            values = values_of(case.model, drawn).reshape(-1, len(case.model.names))
            assert np.all(averaged.belief.counts == drawn.shape[1]) and averaged.report().checks
            assert list(averaged.summary()) == ["mean", "sd"]
            np.testing.assert_allclose(averaged.flat_moments, [values.mean(0), values.std(0)], atol=CLOSE)
            averaged.save(folder / "moments")
            if writable(case.method):
                loaded = tr.load(folder / "moments", case.model)
                np.testing.assert_array_equal(loaded.flat_moments, averaged.flat_moments)
    if not ABILITIES["extend()"].can(case.method):
        with pytest.raises(SettingsError) as caught:
            first.extend(3)
        assert str(caught.value) == ABILITIES["extend()"].sentence.format(name=type(case.method).__name__)


def check_extend(first: tr.Posterior, case: Case) -> None:
    """``extend(n)`` is what would have been drawn at once."""
    longer = dataclasses.replace(case.method, draws=case.method.draws + 13)
    at_once = tr.infer(case.model, case.rows, longer, seed=3)
    extended = first.extend(6).extend(4).extend(3)  # the second may find its draws already there
    assert extended.count == at_once.count == case.method.draws + 13
    same(extended, at_once)
    np.testing.assert_array_equal(numbers(extended)[:, : first.count], numbers(first))
