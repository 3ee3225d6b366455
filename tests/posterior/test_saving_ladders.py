"""A ladder that was learnt is saved, loaded and gone on with, bit for bit."""

import json

import jax
import numpy as np
import pytest
from contract_method import Killed, small_groups

import tractable as tr
from tractable.core.errors import CheckpointError, TractableWarning
from tractable.ladders.autoencoding import AutoEncoding
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import layer, standard_normal

pytestmark = pytest.mark.laws

X = (np.random.default_rng(0).random((30, 5)) > 0.4).astype(float)
METHOD = AutoEncoding(epochs=30, batch_size=10)


def ladder(hidden=(4,), activation="tanh", visible=()):
    below = [layer(5, 2, "normal", hidden=hidden, activation=activation), layer(2, 2, "normal")]
    return Ladder([layer(2, 5, hidden=visible), layer(2, 2, "normal"), standard_normal(2)], bottom_up(below))


LADDER = ladder()


@pytest.fixture(scope="module", autouse=True)
def quick():
    with small_groups():
        yield


@pytest.fixture(scope="module")
def learnt():
    return tr.infer(LADDER, tr.Data(X), METHOD, seed=3, progress=False)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def numbers(posterior):
    return posterior.point, posterior.phi, posterior.encode(X, draws=2), posterior.generate(3), posterior.reconstruct(X)


def test_saved_and_loaded(learnt, tmp_path):
    learnt.save(tmp_path / "a")
    assert not [p for p in (tmp_path / "a").rglob("*") if p.suffix in (".pkl", ".pickle", ".npy")]
    loaded = tr.load(tmp_path / "a", LADDER, tr.Data(X), method=METHOD)
    same(numbers(loaded), numbers(learnt))
    assert loaded.report() == learnt.report() and loaded.seed == 3
    same(tr.load(tmp_path / "a", LADDER, method=METHOD).encode(X), learnt.encode(X))  # without its data
    with pytest.raises(CheckpointError, match="already holds draws"):
        learnt.save(tmp_path / "a")


@pytest.mark.test("other2-network of centre, layers.h1.layer0.bias, .* and 3 more; that of")
@pytest.mark.parametrize(
    ("other", "match"),
    [
        (ladder(hidden=(3,)), r"layers.h1.layer0.bias has shape \(4,\); that of the ladder given has \(3,\)"),
        (ladder(activation="relu"), "computes something else"),
        (ladder(hidden=()), r"network of centre, layers.h1.layer0.bias, .* and 3 more; that of"),
        (ladder(visible=(2,)), "another model"),
    ],
)
def test_another_ladder_is_refused(learnt, tmp_path, other, match):
    learnt.save(tmp_path / "a")
    with pytest.raises(CheckpointError, match=match):
        tr.load(tmp_path / "a", other, tr.Data(X), method=METHOD)


@pytest.mark.test
def test_arrays_are_named_by_their_place(learnt, tmp_path):
    learnt.save(tmp_path / "a")
    manifest = json.loads(next((tmp_path / "a" / "network").rglob("manifest.json")).read_text())
    assert {"centre", "layers.h1.layer0.weight", "layers.h2.layer0.bias"} <= set(manifest["arrays"])


def test_a_killed_run_goes_on(learnt, tmp_path):
    def progress(phase, done, of):
        if 2 * done >= of:
            raise Killed

    with pytest.raises(Killed):
        tr.infer(LADDER, tr.Data(X), METHOD, seed=3, checkpoint=tmp_path / "run", progress=progress)
    seen: list[tuple] = []
    resumed = tr.infer(
        LADDER, tr.Data(X), METHOD, seed=3, checkpoint=tmp_path / "run", progress=lambda *said: seen.append(said)
    )
    assert 2 * seen[0][1] > seen[0][2], "it went on, and did not start again"
    same(numbers(resumed), numbers(learnt))
    same(resumed.info, learnt.info)
    assert resumed.found == learnt.found
    finished = tr.infer(LADDER, tr.Data(X), METHOD, seed=3, checkpoint=tmp_path / "run")  # nothing is left to do
    same(numbers(finished), numbers(learnt))
    same(finished.info, learnt.info)
    same(numbers(tr.load(tmp_path / "run", LADDER, tr.Data(X), method=METHOD)), numbers(learnt))
    for other, change in ((ladder(activation="relu"), METHOD), (LADDER, AutoEncoding(epochs=30, batch_size=15))):
        with pytest.raises(CheckpointError, match=r"another run.*(inference network|batch_size)"):
            tr.infer(other, tr.Data(X), change, seed=3, checkpoint=tmp_path / "run")


def test_an_interrupted_run_is_kept(learnt, tmp_path, monkeypatch):
    from contextlib import contextmanager

    asked = iter([False, False, True])

    @contextmanager
    def twice():
        yield lambda: next(asked, True)

    with monkeypatch.context() as patch:
        patch.setattr("tractable.engine.session.interruptible", twice)
        with pytest.warns(TractableWarning, match="interrupted"):
            part = tr.infer(LADDER, tr.Data(X), METHOD, seed=3, checkpoint=tmp_path / "run", progress=False)
    assert part.interrupted and 0 < part.info["objective"].shape[1] < learnt.info["objective"].shape[1]
    assert any(check.name == "interrupted" for check in part.report().checks)
    same(numbers(tr.infer(LADDER, tr.Data(X), METHOD, seed=3, checkpoint=tmp_path / "run")), numbers(learnt))
