"""Folders that two runs want, that cannot be written, or that are gone: a sentence, and nothing is lost."""

import dataclasses
import errno
import io
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import numpyro.distributions as dist
import pytest
from commands import fault
from contract_method import quick_compilation

import tractable as tr
from tractable.core import writing
from tractable.core.errors import CheckpointError, SettingsError
from tractable.engine import store
from tractable.engine.locks import LOCK
from tractable.pages.page import write_page

pytestmark = pytest.mark.laws

Y = 0.7 + np.random.default_rng(3).normal(size=20)
MODEL = tr.Model({"mu": dist.Normal(0.0, 2.0)}, lambda params: dist.Normal(params["mu"], 1.0))
WALK = tr.RandomWalk(chains=2, draws=20_000, warmup=0, thin=1, preconditioner=None)
OUT = ("checkpoint", "draws")


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Programs here run for less than they compile."""
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def draws():
    return tr.infer(MODEL, Y, WALK, verify=None).values


def run(folder, door="checkpoint", **options):
    return tr.infer(MODEL, Y, WALK, verify=None, **{door: folder, **options})


def during(work):
    """A ``progress`` that does ``work`` once, when some draws are there."""
    done = []

    def say(phase, count, of):
        if phase == "drawing" and 0 < count < of and not done:
            done.append(True)
            work()

    return say


@pytest.mark.parametrize("door", OUT)
def test_a_second_run_leaves_the_first_alone(tmp_path, door, draws):
    raised = []

    def second():
        for other in (*OUT, None):
            try:
                run(tmp_path / "run", other) if other else first.save(tmp_path / "run")
            except CheckpointError as error:
                raised.append(str(error))

    def elsewhere():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    first = run(tmp_path / "before", "draws")
    found = run(tmp_path / "run", door, progress=during(elsewhere))
    assert len(raised) == 3 and all("written by another run: process" in each for each in raised)
    np.testing.assert_array_equal(found.values, draws)
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.test
@pytest.mark.parametrize("door", OUT)
def test_what_no_run_wrote_is_not_deleted(tmp_path, door):
    for name in ("folder", "link", "file", "damaged"):
        (tmp_path / name).mkdir()
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis").write_text("years")
    shutil.copytree(own, tmp_path / "folder" / "draws.zarr")
    (tmp_path / "link" / "draws.zarr").symlink_to(own)
    (tmp_path / "file" / "draws.zarr").write_text("x")
    shutil.copytree(own, tmp_path / "damaged" / "draws.zarr")
    (tmp_path / "damaged" / "draws.zarr" / "zarr.json").write_text("{}")
    for name in ("folder", "link", "file", "damaged"):
        with pytest.raises(CheckpointError, match=r"draws\.zarr is in the way.*not deleted"):
            run(tmp_path / name, door)
        assert os.path.lexists(tmp_path / name / "draws.zarr")
    assert (own / "thesis").read_text() == (tmp_path / "folder" / "draws.zarr" / "thesis").read_text() == "years"


@pytest.mark.test
@pytest.mark.parametrize("door", OUT)
def test_a_folder_deleted_while_it_is_written(tmp_path, door, draws):
    """What was in memory alone is in ``partial``: the draws since the last that were saved."""
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path / "run", door, progress=during(lambda: shutil.rmtree(tmp_path / "run")))
    found = caught.value.partial.values[:, :, 0]
    whole = "".join(map(repr, draws[0, :, 0].tolist()))
    assert found.shape[0] == 2 and found.shape[1] > 0
    assert "".join(map(repr, found[0].tolist())) in whole
    assert caught.value.partial.interrupted


def full_after(monkeypatch, count):
    """A disk that takes ``count`` more commits of draws."""
    left, commit = [count], store.DrawStore._commit

    def limited(self, *args):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        commit(self, *args)

    monkeypatch.setattr(store.DrawStore, "_commit", limited)


@pytest.mark.parametrize("door", OUT)
def test_a_disk_that_fills_keeps_the_draws(tmp_path, door, draws, monkeypatch):
    full_after(monkeypatch, 3)
    with pytest.raises(CheckpointError, match=r"the disk is full\. Free some space") as caught:
        run(tmp_path / "run", door)
    found = caught.value.partial.values
    assert 0 < found.shape[1] < 20_000
    np.testing.assert_array_equal(found, draws[:, : found.shape[1]])
    monkeypatch.undo()
    if door == "checkpoint":
        np.testing.assert_array_equal(run(tmp_path / "run").values, draws)


@pytest.mark.parametrize("door", OUT)
def test_a_result_that_cannot_be_written_is_in_partial(tmp_path, door, draws):
    blocked = tmp_path / "run" / "settings.toml"
    with pytest.raises(CheckpointError, match=r"settings\.toml") as caught:
        run(tmp_path / "run", door, progress=during(lambda: (blocked / "inside").mkdir(parents=True)))
    np.testing.assert_array_equal(caught.value.partial.values, draws)


def test_folders_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    kept = run(tmp_path / "kept", "draws")
    for folder in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / ("n" * 300)):
        for write in (lambda f: run(f), lambda f: run(f, "draws"), kept.save):
            with pytest.raises(CheckpointError, match="Expected to write"):
                write(folder)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "kept"}


def closed(monkeypatch, folder, number):
    """A folder in which nothing can be made or changed, whoever asks: for root, permissions do not bind."""
    for module, name in ((os, "open"), (os, "mkdir"), (os, "replace"), (os, "rename"), (io, "open")):
        kept = getattr(module, name)

        def refusing(path, *args, kept=kept, name=name, **options):
            how = [*args, *options.values()]
            writes = name != "open" or any(
                flag & (os.O_CREAT | os.O_RDWR) if isinstance(flag, int) else "w" in str(flag) for flag in how
            )
            if writes and not isinstance(path, int) and os.path.abspath(path).startswith(str(folder)):
                raise OSError(number, os.strerror(number), str(path))
            return kept(path, *args, **options)

        monkeypatch.setattr(module, name, refusing)


def test_folders_that_are_closed(tmp_path, monkeypatch):
    """Every door that writes says so, and leaves nothing half-made: no traceback, whatever is written."""
    (tmp_path / "closed").mkdir()
    shut, short = tmp_path / "closed" / "new", dataclasses.replace(WALK, draws=50)
    kept = tr.infer(MODEL, Y, short, verify=None)
    compared = tr.compare(MODEL, Y, [tr.MAP()], progress=False, reference={"mu": (0.7, 0.2)})
    ranked = {"runs": 20, "draws": 9, "progress": False}
    sampler = tr.Rejection(chains=1, draws=20)
    calibration = tr.calibrate(MODEL, sampler, Y[:2], **ranked)
    table = tmp_path / "t.csv"
    np.savetxt(table, np.random.default_rng(0).normal(size=(12, 2)), delimiter=",", header="a,b", comments="")
    doors = {
        "checkpoint": lambda: run(shut),
        "draws": lambda: run(shut, "draws"),
        "save": lambda: kept.save(shut),
        "page": lambda: write_page(shut, kept, title="a"),
        "picture": lambda: compared.plot(shut / "a.png"),
        "table": lambda: writing.write_table(shut / "a.parquet", compared.table),
        "calibration": lambda: calibration.save(shut),
        "ranks": lambda: calibration.plot(shut / "a.png"),
        "calibrate": lambda: tr.calibrate(MODEL, sampler, Y[:2], checkpoint=shut, **ranked),
    }
    why = os.strerror(errno.EROFS)
    with monkeypatch.context() as patch:
        closed(patch, tmp_path / "closed", errno.EROFS)
        for name, door in doors.items():
            with pytest.raises(CheckpointError, match=rf"Expected to write .*{why}.* Remove the cause, or choose"):
                door()
                pytest.fail(name)
        told = [
            fault("fit", table, "--target", "b", "--out", shut, "--quiet"),
            fault("compare", table, "--target", "b", "--methods", "map", "--out", shut, "--quiet"),
            fault("calibrate", "--example", "beta-bernoulli", "--method", "rejection", "--runs", "20", "--out", shut),
        ]
        patch.chdir(tmp_path / "closed")
        told.append(fault("fit", table, "--target", "b", "--quiet"))  # into runs/
    assert all(why in " ".join(each.split()) for each in told), told
    assert not list((tmp_path / "closed").iterdir())


@pytest.mark.test
@pytest.mark.parametrize("door", OUT)
def test_more_draws_than_the_disk_holds(tmp_path, door):
    many = tr.RandomWalk(chains=2, draws=10**15, warmup=0, thin=1, preconditioner=None)
    with pytest.raises(SettingsError, match=r"GiB; the disk of .* has .* GiB free"):
        tr.infer(MODEL, Y, many, **{door: tmp_path / "run"})


CLI = """
import sys
from tractable.cli import app
import tractable.core.writing as writing
from pathlib import Path
write = writing.write_synced
def full(path, content):
    if len(content) > 30_000:
        path.write_bytes(content[:10])
        raise OSError(28, "No space left on device")
    write(path, content)
writing.write_synced = full
sys.argv = ["tractable", *sys.argv[1:]]
from tractable.cli.app import app
app()
"""


def test_commands_say_it_and_end_with_2(tmp_path):
    """The report, of more than 30,000 bytes, meets a full disk: no file of that name is left, and the result is."""
    words = ["fit", "--example", "beta-bernoulli", "--set", "draws=200", "--out", str(tmp_path / "run")]
    ended = subprocess.run([sys.executable, "-c", CLI, *words], capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert "the disk is full" in ended.stderr and "Traceback" not in ended.stderr
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert "posterior.json" in left and not {LOCK, "report.html"} & left
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / ("n" * 300)):
        ended = subprocess.run([sys.executable, "-c", CLI, *words[:-1], str(out)], capture_output=True, text=True)
        assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
