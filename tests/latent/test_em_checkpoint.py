"""EM that was killed goes on where it stood: the run that was never killed, bit for bit."""

import os
import signal
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from contract_method import Killed, quick_compilation

import tractable as tr
from tractable.core.errors import CheckpointError, TractableWarning
from tractable.engine import checkpoint
from tractable.engine import session as sessions
from tractable.engine.session import Session
from tractable.latent import em_climb
from tractable.latent import em_method as maximisation
from tractable.models import bayesian_gaussian_mixture, gaussian_mixture

RNG = np.random.default_rng(7)
X = np.where(RNG.random((60, 1)) < 0.4, [-1.0, 0.0], [1.0, 0.5]) + RNG.normal(size=(60, 2))
MIXTURE = gaussian_mixture(2, 2)
METHOD = tr.EM(starts=2, steps=30, tolerance=1e-12, chunk=25, errors=False)
BOUND = tr.CoordinateAscent(starts=2, steps=30, tolerance=1e-12, draws=20)

pytestmark = [pytest.mark.laws, pytest.mark.filterwarnings("ignore:The run was interrupted")]


@pytest.fixture(scope="module", autouse=True)
def short_segments():
    """Segments of four steps, each of them saved; programs that run for less than they compile."""
    with pytest.MonkeyPatch.context() as patch, quick_compilation():
        patch.setattr(em_climb, "SEGMENT", 4)
        patch.setattr(sessions, "SAVING", np.inf)
        jax.clear_caches()
        yield


def data_of(where: str, folder: Path) -> tr.Data:
    if where != "file":
        return tr.Data(X)
    np.save(folder / "x.npy", X)
    return tr.Data(folder / "x.npy", resident=False)


def after(count: int, act: Callable) -> Callable:
    """A progress that acts when it is told of so much for the first time."""
    said: list[Any] = []

    def progress(phase: str, done: int, of: int) -> None:
        said.append((phase, done, of))
        if len(said) == count:
            act()

    return progress


def kill() -> None:
    raise Killed


def same(one: tr.Posterior, other: tr.Posterior) -> None:
    for a, b in ((one.point, other.point), (one.unconstrained, other.unconstrained)):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_array_equal(a, b)
    assert one.info.keys() == other.info.keys()
    for name, trace in one.info.items():
        np.testing.assert_array_equal(trace, other.info[name])
    assert one.found.keys() == other.found.keys()
    for name, value in one.found.items():
        np.testing.assert_array_equal(value, other.found[name])


@pytest.mark.parametrize(("where", "calls"), [("memory", 5), ("file", 3), ("file", 11), ("bound", 5)])
def test_killed_and_resumed(where, calls, tmp_path):
    model, method = (bayesian_gaussian_mixture(2, 2), BOUND) if where == "bound" else (MIXTURE, METHOD)
    data, folder, seen = data_of(where, tmp_path), tmp_path / "run", []
    unbroken = tr.infer(model, data, method, seed=3)
    with pytest.raises(Killed):
        tr.infer(model, data, method, seed=3, checkpoint=folder, progress=after(calls, kill))
    resumed = tr.infer(model, data, method, seed=3, checkpoint=folder, progress=lambda *now: seen.append(now))
    same(resumed, unbroken)
    first, of = seen[0][1:3]
    assert first >= calls and first > 1 and of == seen[-1][2], seen[0]  # it went on
    finished = tr.infer(model, data, method, seed=3, checkpoint=folder, progress=lambda *now: seen.append(now))
    same(finished, unbroken)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_interrupted_and_resumed(where, tmp_path):
    data, folder = data_of(where, tmp_path), tmp_path / "run"
    unbroken = tr.infer(MIXTURE, data, METHOD, seed=3)
    interrupt = after(3, lambda: os.kill(os.getpid(), signal.SIGINT))
    stopped = tr.infer(MIXTURE, data, METHOD, seed=3, checkpoint=folder, progress=interrupt)
    assert stopped.interrupted and stopped.found["steps"] < unbroken.found["steps"]
    resumed = tr.infer(MIXTURE, data, METHOD, seed=3, checkpoint=folder)
    assert not resumed.interrupted
    same(resumed, unbroken)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_killed_in_a_second_attempt(where, tmp_path, monkeypatch):
    """The starts that began again do so after a kill as well, and those that stay are there."""
    monkeypatch.setattr(maximisation, "is_sound", lambda model, reached, size: np.array([True, False]))
    data, folder = data_of(where, tmp_path), tmp_path / "run"
    told: list[tuple] = []
    unbroken = tr.infer(MIXTURE, data, METHOD, seed=3, progress=lambda *now: told.append(now))
    with pytest.raises(Killed):
        tr.infer(MIXTURE, data, METHOD, seed=3, checkpoint=folder, progress=after(len(told) // 2, kill))
    saved = checkpoint.load(folder / "checkpoint")
    assert saved is not None and saved[1]["attempts/0:int"] == 1
    left: list[tuple] = []
    resumed = tr.infer(MIXTURE, data, METHOD, seed=3, checkpoint=folder, progress=lambda *now: left.append(now))
    same(resumed, unbroken)
    assert len(left) < 0.7 * len(told)


def test_damage(tmp_path):
    """Of the newest: the one before is gone on with. Of all: a sentence."""
    unbroken = tr.infer(MIXTURE, tr.Data(X), METHOD, seed=3)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        tr.infer(MIXTURE, tr.Data(X), METHOD, seed=3, checkpoint=folder, progress=after(4, kill))

    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-100])

    *before, newest = sorted((folder / "checkpoint").glob("step-*/arrays.npz"))
    assert len(before) == 1
    damage(newest)
    with pytest.warns(TractableWarning, match="continues from the one\\s+before"), pytest.raises(Killed):
        tr.infer(MIXTURE, tr.Data(X), METHOD, seed=3, checkpoint=folder, progress=after(2, kill))
    same(tr.infer(MIXTURE, tr.Data(X), METHOD, seed=3, checkpoint=folder), unbroken)
    for path in (folder / "checkpoint").glob("step-*/arrays.npz"):
        damage(path)
    with pytest.raises(CheckpointError, match="all 2 are damaged"):
        tr.infer(MIXTURE, tr.Data(X), METHOD, seed=3, checkpoint=folder)


def test_another_run(tmp_path):
    folder = tmp_path / "run"
    tr.infer(MIXTURE, tr.Data(X), METHOD, checkpoint=folder)
    for sentence, data, method, seed in (
        ("seed: saved 0, now 1", X, METHOD, 1),
        ("data: saved", X + 1, METHOD, 0),
        ("method.method: saved 'em', now 'cavi'", X, BOUND, 0),
    ):
        model = bayesian_gaussian_mixture(2, 2) if method is BOUND else MIXTURE
        with pytest.raises(CheckpointError, match=sentence):
            tr.infer(model, tr.Data(data), method, seed=seed, checkpoint=folder)


def test_saving_takes_a_share(monkeypatch):
    """However fast the segments, no more than a twentieth of the time is spent on saving."""
    clock, saves = [0.0], []
    monkeypatch.setattr(sessions, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(sessions, "SAVING", 0.05)

    def save(run_state: Any, drawn: Any = None) -> None:
        saves.append(clock[0])
        clock[0] += 1.0

    saver: Any = types.SimpleNamespace(save=save)
    session = Session(MIXTURE, tr.Data(X), jax.random.key(0), lambda: False, lambda *now: None, None, saver)
    keep = session.keeper()
    for _ in range(400):
        keep(dict)
        clock[0] += 0.25
    assert 4 <= len(saves) <= 6 and np.all(np.diff(saves) >= 20)
    keep(dict, at_once=True)
    assert len(saves) in (6, 7)
