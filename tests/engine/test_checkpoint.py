"""Checkpoints: what comes back is bit-exact or refused, whatever was done to the files."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tractable.core.errors import CheckpointError, TractableWarning
from tractable.core.writing import write_atomically
from tractable.engine import checkpoint
from tractable.engine.checkpoint import differences, fingerprint, load, save

pytestmark = pytest.mark.quick

MANIFEST = {"method": {"name": "sgld", "step_size": 0.1}, "data": "ab12", "best": float("inf")}


def arrays_of(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "state.position": rng.standard_normal((4, 7)),
        "['noise'][0]": rng.standard_normal((3, 5)).astype(np.float32).T,  # Fortran order
        "key": rng.integers(0, 2**32, (4, 2), dtype=np.uint32),
        "accepted": rng.random(11) < 0.5,
        "count": np.asarray(seed),
        "none": np.empty((0, 3)),
        "special": np.array([np.nan, -0.0, np.inf, 5e-324]),
    }


def assert_same(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        assert got[name].tobytes() == array.tobytes(), name


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with checkpoints of steps 1 and 2, their arrays `arrays_of(step)`."""
    for step in (1, 2):
        save(tmp_path, arrays_of(step), {**MANIFEST, "at": step}, step=step)
    return tmp_path


def newest(folder: Path) -> Path:
    return folder / "step-000000000002"


def assert_falls_back(folder: Path, *named: str) -> None:
    with pytest.warns(TractableWarning) as caught:
        step, arrays, _ = load(folder)
    assert step == 1
    assert_same(arrays, arrays_of(1))
    for text in (newest(folder).name, *named):
        assert text in str(caught[0].message)


def test_round_trip(two: Path):
    step, arrays, manifest = load(two)
    assert step == 2
    assert manifest == {**MANIFEST, "at": 2}
    assert_same(arrays, arrays_of(2))
    assert all(array.flags.writeable for array in arrays.values())


def test_the_file_is_an_ordinary_npz(two: Path):
    with np.load(newest(two) / "arrays.npz", allow_pickle=False) as archive:
        assert_same(dict(archive), arrays_of(2))
    about = json.loads((newest(two) / "manifest.json").read_text())["arrays"]["state.position"]
    assert about["shape"] == [4, 7] and about["dtype"] == "<f8" and about["bytes"] == 224


def test_nothing_there(tmp_path: Path):
    assert load(tmp_path) is None
    assert load(tmp_path / "not made yet") is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_keeps_the_newest(tmp_path: Path, keep: int):
    for step in (3, 20, 100, 1000):
        save(tmp_path, arrays_of(step), {}, step=step, keep=keep)
    assert sorted(os.listdir(tmp_path)) == [f"step-{s:012d}" for s in (3, 20, 100, 1000)][-keep:]


def test_a_given_up_branch_goes(tmp_path: Path):
    """A damaged later checkpoint must not crowd out those written after going back."""
    for step in (10, 20):
        save(tmp_path, arrays_of(step), {}, step=step)
    save(tmp_path, arrays_of(11), {}, step=11)
    assert sorted(os.listdir(tmp_path)) == ["step-000000000010", "step-000000000011"]


def test_a_step_saved_again_is_replaced(two: Path):
    save(two, arrays_of(5), MANIFEST, step=2)
    assert_same(load(two)[1], arrays_of(5))
    assert len(os.listdir(two)) == 2


@pytest.mark.laws
@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_kill_while_writing(two: Path, call: str):
    """A process that dies before the rename leaves a leftover, which the next save removes."""
    code = (
        "import os, sys, numpy as np\n"
        "from tractable.engine.checkpoint import save\n"
        f"os.{call} = lambda *args: os._exit(9)\n"
        "save(sys.argv[1], {'x': np.ones(3)}, {}, step=3)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(checkpoint.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code, str(two)], env=env, check=False).returncode == 9
    assert any(name.startswith(".tmp-") for name in os.listdir(two))
    step, arrays, _ = load(two)
    assert step == 2
    assert_same(arrays, arrays_of(2))
    save(two, arrays_of(3), {}, step=3)
    assert sorted(os.listdir(two)) == ["step-000000000002", "step-000000000003"]


def test_interrupted_rename_cleans_up(two: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(two, arrays_of(3), {}, step=3)
    assert sorted(os.listdir(two)) == ["step-000000000001", "step-000000000002"]


def test_bit_flips_are_never_silent(two: Path, tmp_path_factory: pytest.TempPathFactory):
    rng = np.random.default_rng(20240607)
    detected = 0
    for flip in range(60):
        folder = shutil.copytree(two, tmp_path_factory.mktemp("flipped") / "run")
        path = newest(folder) / ("arrays.npz" if flip % 2 else "manifest.json")
        content = bytearray(path.read_bytes())
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step, arrays, manifest = load(folder)
        assert step == (1 if caught else 2)
        assert manifest == {**MANIFEST, "at": step}
        assert_same(arrays, arrays_of(step))
        detected += bool(caught)
    assert detected >= 30  # the rest fell on bytes that nobody reads: zip dates, JSON white space


@pytest.mark.parametrize("name", ["arrays.npz", "manifest.json"])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_truncated(two: Path, name: str, share: float):
    path = newest(two) / name
    length = path.stat().st_size
    os.truncate(path, int(share * length))
    named = (f"expected {length} bytes, got {int(share * length)}",) if name == "arrays.npz" else ()
    assert_falls_back(two, name, *named)


@pytest.mark.parametrize("name", ["arrays.npz", "manifest.json"])
def test_missing(two: Path, name: str):
    (newest(two) / name).unlink()
    assert_falls_back(two, name)


def test_damaged_array_is_named(two: Path):
    path = newest(two) / "arrays.npz"
    content = bytearray(path.read_bytes())
    content[content.index(arrays_of(2)["state.position"].tobytes()) + 3] ^= 16
    path.write_bytes(content)
    assert_falls_back(two, "arrays.npz, array 'state.position'")


def test_all_damaged(two: Path):
    for path in two.glob("*/arrays.npz"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"all 2 are damaged.*step-000000000002.*step-000000000001"):
        load(two)


def rewrite(folder: Path, change) -> None:
    """Change the newest manifest and seal it again, as a forger would."""
    path = newest(folder) / "manifest.json"
    entries = checkpoint.unseal(json.loads(path.read_text()))
    change(entries)
    path.write_text(json.dumps(checkpoint.seal(entries)))


@pytest.mark.parametrize(
    "claim",
    [
        {"bytes": 8 * 10**12, "shape": [10**12]},
        {"shape": [10**12]},
        {"shape": [-4, -7]},
        {"shape": [4, "7"]},
        {"dtype": "|O"},
        {"dtype": "no such"},
        {"bytes": None},
    ],
)
def test_a_forged_manifest_claims_no_memory(two: Path, claim: dict):
    rewrite(two, lambda entries: entries["arrays"]["state.position"].update(claim))
    assert_falls_back(two)


def test_a_forged_npz_claims_no_memory(two: Path):
    """The .npy header inside says 10¹² floats; nobody allocates what it says."""
    path = newest(two) / "arrays.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    with zipfile.ZipFile(path, "w") as archive:
        for name in arrays_of(2):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + bytes([118, 0]) + header.ljust(118))
    rewrite(two, lambda entries: entries.update(npz_bytes=path.stat().st_size))
    assert_falls_back(two, "arrays.npz")


def test_a_compressed_bomb_is_refused(two: Path):
    path = newest(two) / "arrays.npz"
    np.savez_compressed(path, allow_pickle=False, **{**arrays_of(2), "state.position": np.zeros(10**6)})
    rewrite(two, lambda entries: entries.update(npz_bytes=path.stat().st_size))
    assert_falls_back(two, "arrays.npz")


def test_names_are_no_paths(tmp_path: Path):
    save(tmp_path / "run", {"../../outside": np.ones(2)}, {}, step=0)
    assert_same(load(tmp_path / "run")[1], {"../../outside": np.ones(2)})
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(
    "array",
    [np.array([{}]), np.array(["a"]), np.zeros(2, ml_dtypes.bfloat16), np.zeros(2, [("a", "f4")])],
    ids=["object", "string", "bfloat16", "record"],
)
def test_refuses_what_npz_would_not_give_back(two: Path, array: np.ndarray):
    with pytest.raises(CheckpointError, match=r"'x' has dtype .*Convert"):
        save(two, {"x": array}, {}, step=3)
    assert load(two)[0] == 2


def test_refuses_names_and_entries_that_collide(tmp_path: Path):
    for name in ("file", "allow_pickle", "", "a\0b"):
        with pytest.raises(CheckpointError, match="another"):
            save(tmp_path, {name: np.ones(1)}, {}, step=0)
    with pytest.raises(CheckpointError, match=r"\['step'\]"):
        save(tmp_path, {}, {"step": 3}, step=0)
    with pytest.raises(CheckpointError, match="JSON"):
        save(tmp_path, {}, {"x": np.float32(1)}, step=0)
    with pytest.raises(CheckpointError, match="keep >= 1"):
        save(tmp_path, {}, {}, step=0, keep=0)


def test_too_little_space(two: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 5, 5))
    with pytest.raises(CheckpointError, match=r"needs [0-9]+ bytes; 5 are free"):
        save(two, arrays_of(3), {}, step=3)
    assert load(two)[0] == 2


@pytest.mark.parametrize("call", ["savez", "write_bytes", "fsync"])
def test_disk_full(two: Path, monkeypatch: pytest.MonkeyPatch, call: str):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr({"savez": np, "write_bytes": Path, "fsync": os}[call], call, full)
        with pytest.raises(CheckpointError, match=r"the disk is full. Free some space"):
            save(two, arrays_of(3), {}, step=3)
    assert sorted(os.listdir(two)) == ["step-000000000001", "step-000000000002"]
    assert load(two)[0] == 2


def test_write_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match=re.escape(f"{path}, but the disk is full")):
        write_atomically(path, b"newer")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_differences():
    saved = {"method": {"step_size": 0.1, "name": "sgld", "sides": [1, 2]}, "seed": 1, "gone": None}
    now = {"method": {"step_size": 0.2, "name": "sgld", "sides": (1, 2)}, "seed": {"a": 1}, "more": "x"}
    assert differences(saved, now) == [
        "gone: saved None, now missing",
        "method.step_size: saved 0.1, now 0.2",
        "more: not saved, now 'x'",
        "seed: saved 1, now {'a': 1}",
    ]
    assert differences(saved, saved) == []
    assert differences({"a": float("nan")}, {"a": float("nan")}) == []


def test_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x = np.arange(60.0).reshape(20, 3)
    first = fingerprint({"x": x, "y": np.ones(3)})
    assert first == fingerprint({"y": np.ones(3), "x": np.asfortranarray(x)})
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(checkpoint, "_PIECE", 100)  # four rows at a time
    assert first == fingerprint({"x": np.load(tmp_path / "x.npy", mmap_mode="r"), "y": np.ones(3)})
    others = [
        {"x": x.reshape(3, 20), "y": np.ones(3)},
        {"x": x.view(np.int64), "y": np.ones(3)},
        {"x": np.ones(3), "y": x},
        {"x": x},
        {"x": x + np.eye(20, 3) * 1e-15, "y": np.ones(3)},
    ]
    assert len({first, *map(fingerprint, others)}) == 6
    with pytest.raises(CheckpointError, match="'x' has dtype object"):
        fingerprint({"x": np.array([{}])})
