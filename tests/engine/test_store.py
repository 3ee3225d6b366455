"""Draws on disk: appended without touching what is written, read back bit-exact or refused."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import zarr

from tractable.core.errors import CheckpointError
from tractable.engine import checkpoint
from tractable.engine.store import DrawStore

pytestmark = pytest.mark.quick

FIELDS = {"position": ((3,), "float32"), "energy": ((), "float64"), "accepted": ((), "bool")}


def draws_of(start: int, stop: int) -> dict[str, np.ndarray]:
    """Draws start to stop of one fixed sequence of two chains."""
    whole = np.random.default_rng(7).standard_normal((2, 100, 3))[:, start:stop]
    return {
        "position": whole.astype(np.float32),
        "energy": whole[..., 0],
        "accepted": np.zeros(whole.shape[:2], bool),  # a chunk of zeros is a chunk too
    }


def assert_holds(store: DrawStore, count: int) -> None:
    assert store.count == count
    for name, wanted in draws_of(0, count).items():
        got = store.read(name)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert got.tobytes() == wanted.tobytes()


@pytest.fixture
def store(tmp_path: Path) -> DrawStore:
    """25 draws in chunks of 10."""
    store = DrawStore.create(tmp_path / "draws", FIELDS, chains=2, chunk=10)
    store.append(draws_of(0, 10))
    store.append(draws_of(10, 25))
    return store


def test_round_trip(store: DrawStore):
    assert_holds(store, 25)
    assert_holds(DrawStore.open(store.path), 25)
    assert DrawStore.open(store.path) == store
    for start, stop in [(0, 0), (3, 4), (5, 21), (10, 20), (24, 25)]:
        np.testing.assert_array_equal(store.read("position", start, stop), draws_of(start, stop)["position"])


def test_empty(tmp_path: Path):
    store = DrawStore.create(tmp_path / "draws", FIELDS, chains=2, chunk=10)
    assert_holds(store, 0)
    store.append(draws_of(0, 0))
    assert_holds(store, 0)


def test_any_zarr_reader_opens_it(store: DrawStore):
    group = zarr.open_group(store.path, mode="r")
    assert sorted(group.array_keys()) == sorted(FIELDS)
    np.testing.assert_array_equal(group["position"][:], draws_of(0, 25)["position"])
    assert group["position"].metadata.dimension_names == ("chain", "draw", "position_dim_0")


def test_an_append_leaves_full_chunks_alone(store: DrawStore):
    full = [path for path in store.path.glob("*/c.0.*") if path.name.split(".")[2] in "01"]
    assert len(full) == 6
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes()) for path in full}
    store.append(draws_of(25, 47))
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes()) for path in full}
    assert_holds(store, 47)


@pytest.mark.parametrize("count", [0, 4, 10, 13, 20, 25])
def test_truncate_and_resume(store: DrawStore, count: int):
    store.truncate(count)
    assert_holds(store, count)
    assert len(list(store.path.glob("position/c.0.*"))) == -(-count // 10)
    resumed = DrawStore.open(store.path)
    resumed.append(draws_of(count, 40))
    assert_holds(resumed, 40)


def test_cannot_be_cut_to_more_than_it_holds(store: DrawStore):
    with pytest.raises(CheckpointError, match="holds 25 draws a chain and cannot be cut to 26"):
        store.truncate(26)


def test_killed_append_does_not_count(store: DrawStore, monkeypatch: pytest.MonkeyPatch):
    """Everything is written but the number of draws; then the run resumes with other draws."""

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DrawStore, "_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            store.append(draws_of(45, 99))
    assert_holds(DrawStore.open(store.path), 25)
    store.append(draws_of(25, 30))
    assert_holds(store, 30)
    assert len(list(store.path.glob("position/c.0.*"))) == 3


@pytest.mark.parametrize("where", ["chunk", "count"])
def test_disk_full(store: DrawStore, monkeypatch: pytest.MonkeyPatch, where: str):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "chunk":
            patch.setattr(zarr.storage.LocalStore, "set", full)
        else:
            patch.setattr(os, "replace", full)
        with pytest.raises(CheckpointError, match="the disk is full"):
            store.append(draws_of(25, 40))
    assert_holds(store, 25)
    store.append(draws_of(25, 40))
    assert_holds(store, 40)


def test_create_on_a_full_disk_leaves_nothing_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(CheckpointError, match="the disk is full"):
            DrawStore.create(tmp_path / "draws", FIELDS, chains=2, chunk=10)
    assert not (tmp_path / "draws").exists()
    assert_holds(DrawStore.create(tmp_path / "draws", FIELDS, chains=2, chunk=10), 0)
    assert os.listdir(tmp_path) == ["draws"]


def test_every_bit_flip_in_a_chunk_is_found(store: DrawStore):
    rng = np.random.default_rng(3)
    for _ in range(30):
        file = store.path / "position" / f"c.0.{rng.integers(3)}.0"
        sound = file.read_bytes()
        content = bytearray(sound)
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{file.name}, array 'position', is damaged.*resume"):
            store.read("position")
        file.write_bytes(sound)
    assert_holds(store, 25)


def test_other_draws_stay_readable_and_a_cut_mends(store: DrawStore):
    file = store.path / "position" / "c.0.1.0"
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    np.testing.assert_array_equal(store.read("position", 20), draws_of(20, 25)["position"])
    store.truncate(10)
    store.append(draws_of(10, 25))
    assert_holds(store, 25)


def test_an_append_does_not_merge_with_a_damaged_chunk(store: DrawStore):
    file = store.path / "position" / "c.0.2.0"
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="CRC32C"):
        store.append(draws_of(25, 40))
    assert store.count == 25 and file.read_bytes() == content


@pytest.mark.parametrize("length", [None, 0, 3, 100])
def test_missing_or_truncated_chunk(store: DrawStore, length: int | None):
    file = store.path / "accepted" / "c.0.1"
    file.unlink() if length is None else os.truncate(file, length)
    found = "no file" if length is None else length
    with pytest.raises(CheckpointError, match=f"c.0.1, array 'accepted'.*expected 24 bytes, got {found}"):
        store.read("accepted")


def test_bit_flips_in_the_descriptions_are_never_silent(store: DrawStore):
    rng = np.random.default_rng(5)
    detected = 0
    for flip in range(60):
        file = store.path / ("zarr.json" if flip % 2 else "position/zarr.json")
        sound = file.read_bytes()
        content = bytearray(sound)
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        file.write_bytes(content)
        try:
            assert_holds(DrawStore.open(store.path), 25)
        except CheckpointError:
            detected += 1
        file.write_bytes(sound)
    assert detected >= 30


def test_a_forged_description_claims_no_memory_and_no_path(store: DrawStore):
    file = store.path / "zarr.json"
    group = json.loads(file.read_text())
    sound = checkpoint.unseal(group["attributes"])
    for change in (
        {"count": 10**12},
        {"count": -1},
        {"chains": 10**12},
        {"chunk": "10"},
        {"fields": {"../elsewhere": [[3], "<f4"]}},
        {"fields": {"position": [[3], "|O"]}},
        {"fields": [1]},
    ):
        group["attributes"] = checkpoint.seal({**sound, **change})
        file.write_text(json.dumps(group))
        with pytest.raises(CheckpointError):
            DrawStore.open(store.path).read("position")


def test_sentences(store: DrawStore, tmp_path: Path):
    with pytest.raises(CheckpointError, match="exists already"):
        DrawStore.create(store.path, FIELDS, chains=2, chunk=10)
    with pytest.raises(CheckpointError, match="there is none"):
        DrawStore.open(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="numpy's own dtypes"):
        DrawStore.create(tmp_path / "a", {"x": ((), "object")}, chains=2, chunk=10)
    with pytest.raises(CheckpointError, match="a field's name"):
        DrawStore.create(tmp_path / "a", {"../x": ((), "float32")}, chains=2, chunk=10)
    with pytest.raises(CheckpointError, match="got 3 to 26 of 'position'"):
        store.read("position", 3, 26)
    with pytest.raises(CheckpointError, match="of 'speed'"):
        store.read("speed")


@pytest.mark.parametrize(
    "change",
    [
        {"energy": np.zeros((2, 5), np.float32)},
        {"energy": np.zeros((2, 6))},
        {"energy": np.zeros((3, 5))},
        {"energy": np.zeros(5)},
        {"speed": np.zeros((2, 5))},
    ],
)
def test_draws_that_do_not_fit_are_refused(store: DrawStore, change: dict):
    with pytest.raises(CheckpointError, match="Expected draws"):
        store.append({**draws_of(25, 30), **change})
    assert_holds(store, 25)
