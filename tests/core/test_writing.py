"""Files are written whole or not at all, and no cell of a table is a program."""

import io
import os
import resource

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from tractable.core import writing
from tractable.core.errors import CheckpointError
from tractable.core.writing import csv, write_atomically, write_figure, write_table
from tractable.pages import render
from tractable.tables.files import read_table

pytestmark = pytest.mark.quick

NASTY = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\rx", "'=1", "''@x", "'tis", "plain", "", "a=b"]


@pytest.fixture
def small(tmp_path):
    """A folder in which no file grows past 64 KiB; the kernel says so by an error, as a full disk does."""
    import signal

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_what_was_there(small):
    (small / "report.html").write_text("the old one")
    (small / "x.csv").write_text("old")
    table = pd.DataFrame({"x": np.random.default_rng(1).normal(size=20_000)})
    canvas = Figure(figsize=(8, 8))
    canvas.add_subplot().imshow(np.random.default_rng(1).normal(size=(400, 400)))
    for write in (
        lambda: write_atomically(small / "report.html", bytes(100_000)),
        lambda: render.write(small, "t" * 100_000, [], "me"),
        lambda: write_table(small / "x.csv", table),
        lambda: write_table(small / "x.parquet", table),
        lambda: write_figure(small / "x.png", canvas),
    ):
        with pytest.raises(CheckpointError, match="Expected to write"):
            write()
    assert {p.name: p.read_text() for p in small.iterdir()} == {"report.html": "the old one", "x.csv": "old"}


def test_a_full_disk_is_called_one(tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "sync", full)
    with pytest.raises(CheckpointError, match=r"the disk is full\. Free some space"):
        write_atomically(tmp_path / "a", b"content")
    assert not list(tmp_path.iterdir())


def test_names_as_long_as_the_disk_takes(tmp_path):
    write_atomically(tmp_path / ("n" * 255), b"content")
    assert [len(p.name) for p in tmp_path.iterdir()] == [255]
    with pytest.raises(CheckpointError, match="too long"):
        write_atomically(tmp_path / ("n" * 300), b"content")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        write_atomically(tmp_path / "a", b"content")
    tmp_path.chmod(0o700)


def test_no_cell_is_a_program_and_all_are_read_back(tmp_path):
    table = pd.DataFrame({"=name": NASTY, "@kind": pd.Categorical(NASTY), "n": np.arange(12.0) - 6})
    text = csv(table, index=False)
    cells = [c for line in pd.read_csv(io.StringIO(text, newline=""), header=None, dtype=str).values for c in line[:2]]
    assert not [c for c in cells if isinstance(c, str) and c[:1] in "=+-@\t\r"]
    write_table(tmp_path / "t.csv", table)
    again = read_table(tmp_path / "t.csv")
    assert list(again) == ["=name", "@kind", "n"] and list(again["n"]) == list(table["n"])
    for name in ("=name", "@kind"):
        assert list(again[name].fillna("")) == NASTY


def test_signs_of_numbers_stay(tmp_path):
    write_table(tmp_path / "t.csv", pd.DataFrame({"class": ["-1", "+1", "-.5e-3"]}, index=["=a", "b", "c"]), index=True)
    assert (tmp_path / "t.csv").read_text() == ",class\n'=a,-1\nb,+1\nc,-.5e-3\n"
