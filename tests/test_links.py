"""Nothing is written through a link that somebody planted, nor into a file that is not the run's own."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from tractable.core import sealed
from tractable.core.errors import TractableError
from tractable.core.writing import write_atomically, write_figure, write_table
from tractable.engine import checkpoint
from tractable.engine.locks import LOCK, lock
from tractable.engine.store import DrawStore
from tractable.posterior.saving import Saver
from tractable.tables.packing import JOURNAL, WORK, pack

pytestmark = pytest.mark.quick

ROWS = np.arange(300.0).reshape(100, 3)
FIELDS, TABLE = {"position": ((3,), "float64")}, pd.DataFrame([1])


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """All that is in a folder, with the contents of files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def hold(folder: Path) -> None:
    with lock(folder):
        pass


def hold_a_part(folder: Path) -> None:
    with lock(folder), lock(folder / "fits" / "3-components"):
        pass


def save(folder: Path) -> None:
    checkpoint.save(folder / "checkpoint", {"a": ROWS}, {}, step=1)


def create(folder: Path) -> None:
    DrawStore.create(folder / "draws.zarr", FIELDS, chains=2, chunk=10)


def append(folder: Path) -> None:
    DrawStore.open(folder / "draws.zarr").append({"position": np.ones((2, 5, 3))})


def pack_rows(folder: Path) -> None:
    pack(ROWS, folder, rows_per_shard=20, progress=False)


def to(target: str) -> Callable[[Path, Path], None]:
    """A symbolic link to a file or folder of the other's, or to one that is not there yet."""
    return lambda path, other: path.symlink_to(other / target)


def second_name(path: Path, other: Path) -> None:
    os.link(other / "thesis.txt", path)


def somebody_s(path: Path, other: Path) -> None:
    path.write_text("a list of locks to buy\n")


def pipe(path: Path, other: Path) -> None:
    os.mkfifo(path)


REFUSED = {
    "a lock that links to a file": (".lock", to("thesis.txt"), hold),
    "a lock that links to a file to be": (".lock", to("new.txt"), hold),
    "a lock that links to a folder": (".lock", to("work"), hold),
    "a lock that is another file's second name": (".lock", second_name, hold),
    "a lock with somebody's text": (".lock", somebody_s, hold),
    "a lock that is a pipe": (".lock", pipe, hold),
    "a part of a run that links elsewhere": ("fits", to("work"), hold_a_part),
    "a checkpoint that links to a folder": ("checkpoint", to("work"), save),
    "a checkpoint that links to a folder to be": ("checkpoint", to("new"), save),
    "draws that link to a folder": ("draws.zarr", to("work"), create),
    "draws that link to a folder to be": ("draws.zarr", to("new"), create),
    "draws being made that link to a folder": (".tmp-draws.zarr", to("work"), create),
    "a shard's folder, being packed, that links elsewhere": (WORK, to("work"), pack_rows),
    "a shard that links to a file": ("00000.npy", to("thesis.txt"), pack_rows),
    "a shard being written that links to a file": (".tmp-00000.npy", to("thesis.txt"), pack_rows),
    "a summary that links to a file": ("s.csv", to("thesis.txt"), lambda f: write_table(f / "s.csv", TABLE)),
    "a figure that links to a file": ("f.png", to("thesis.txt"), lambda f: write_figure(f / "f.png", Figure())),
    "a result that links to a file": ("p.json", to("thesis.txt"), lambda f: sealed.write_sealed(f / "p.json", {})),
    "a page that links to a page to be": ("r.html", to("new.html"), lambda f: write_atomically(f / "r.html", b"")),
    "a page that is a pipe": ("r.html", pipe, lambda f: write_atomically(f / "r.html", b"")),
    "a part of a run's state that links elsewhere": ("a", to("work"), lambda f: Saver(f, {}).inside("a")),
}  # fmt: skip


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Somebody's folder, with names in it that a run would clear away."""
    other = tmp_path / "other"
    for name in ("work/.tmp-a/b.txt", "work/step-000000000001/c.txt", "work/step-000000000009/c.txt", "thesis.txt"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text(f"the only copy of {name}")
    return other


@pytest.mark.parametrize("case", REFUSED)
def test_planted_links_are_refused(case, tmp_path, other):
    name, plant, write = REFUSED[case]
    folder, before = tmp_path / "run", tree(other)
    folder.mkdir()
    plant(folder / name, other)
    with pytest.raises(TractableError, match=r"a link to|neither a file|no lock of a run|which is not part of a pack"):
        write(folder)
    assert tree(other) == before and os.path.lexists(folder / name)


@pytest.mark.parametrize("name", [".tmp-step-000000000001", ".tmp-x", "step-000000000001", "step-000000000007"])
def test_links_among_checkpoints_are_cleared_and_not_followed(name, tmp_path, other):
    before = tree(other)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / name).symlink_to(other / "work")
    save(tmp_path)
    save(tmp_path)
    assert tree(other) == before and [p.name for p in (tmp_path / "checkpoint").iterdir()] == ["step-000000000001"]


@pytest.mark.parametrize("name", ["zarr.json", "position", "position/zarr.json", "position/c.0.0.0"])
def test_links_among_draws_are_refused_and_read(name, tmp_path, other):
    """Draws on a larger disk may be read through a link; none are added or cut."""
    create(tmp_path)
    append(tmp_path)
    (tmp_path / "draws.zarr" / name).rename(other / "moved")
    (tmp_path / "draws.zarr" / name).symlink_to(other / "moved")
    before = tree(other)
    for write in (append, lambda folder: DrawStore.open(folder / "draws.zarr").truncate(0)):
        with pytest.raises(TractableError, match="a link to"):
            write(tmp_path)
    assert tree(other) == before and DrawStore.open(tmp_path / "draws.zarr").read("position").shape == (2, 5, 3)


def test_links_among_what_is_being_packed_are_refused(tmp_path, other):
    """A pack that was killed goes on, unless a bucket has become a link."""
    folder, before = tmp_path / "shards", tree(other)
    (folder / WORK).mkdir(parents=True)
    (folder / WORK / "00000").symlink_to(other / "thesis.txt")
    (folder / WORK / JOURNAL).symlink_to(other / "thesis.txt")
    with pytest.raises(TractableError, match="a link to"):
        pack_rows(folder)
    assert tree(other) == before


def test_a_folder_may_be_reached_by_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    hold_a_part(tmp_path / "run")
    save(tmp_path / "run")
    create(tmp_path / "run")
    append(tmp_path / "run")
    write_atomically(tmp_path / "run" / "page.html", b"")
    pack_rows(tmp_path / "run" / "shards")
    assert {"checkpoint", "draws.zarr", "page.html", "shards", "fits"} == {
        p.name for p in (tmp_path / "disk").iterdir()
    }


def test_a_lock_that_a_killed_run_left_is_ours(tmp_path):
    (tmp_path / LOCK).write_text("")
    hold(tmp_path)
    assert not list(tmp_path.iterdir())
