"""Data in shards: packed in a random order that is uniform, resumed to the same bytes, read like one file."""

import errno
import json
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from commands import fault, run, task_of
from montecarlo import assert_holds, binomial, error, of_p, uniform_counts
from scipy import stats

import tractable as tr
from tractable.core import shards, writing
from tractable.core.batches import Plan, first_rows, place
from tractable.core.errors import CheckpointError, DataError, SettingsError, TractableWarning
from tractable.core.rows import SHUFFLE, Data
from tractable.diagnostics import order
from tractable.engine import bound, search
from tractable.tables import packing, sources
from tractable.tables.encoder import encode, fit_encoder
from tractable.tables.files import read_table

pytestmark = pytest.mark.quick

ROWS, WIDE, PER = 4000, 3, 700
FAR = 5_000_000_000  # rows: beyond 2³²


def numbered(count: int = ROWS, wide: int = WIDE) -> np.ndarray:
    """Rows whose first number is theirs."""
    return np.arange(count * wide, dtype=np.float32).reshape(count, wide)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def small(monkeypatch):
    """Chunks of 500 rows."""
    monkeypatch.setattr(packing, "CHUNK", 500 * 4 * WIDE)
    monkeypatch.setattr(packing, "APPENDED", 1)
    for module in (packing, writing):  # no power is cut here
        monkeypatch.setattr(module, "sync", lambda path: None)


# -- the order ---------------------------------------------------------------------------------------


def orders(deal: Any, shuffle: Any, seeds: range, chunk: int = 2, rows: int = 4, count: int = 2) -> np.ndarray:
    """(seed, rows) the orders in which a few rows come, told anew: deal every chunk, then shuffle every shard."""
    found = []
    for seed in seeds:
        which = np.concatenate([deal(seed, c, chunk, count) for c in range(rows // chunk)])
        told = [np.flatnonzero(which == shard) for shard in range(count)]
        found.append(np.concatenate([here[shuffle(seed, i, len(here))] for i, here in enumerate(told)]))
    return np.array(found)


def law_of_order(deal: Any, shuffle: Any) -> dict[str, float]:
    """All 24 orders of four rows are equally likely."""
    found = orders(deal, shuffle, range(2000)) @ [64, 16, 4, 1]
    counts = np.unique(found, return_counts=True)[1]
    return {"orders": uniform_counts(np.pad(counts, (0, 24 - len(counts))))}


def test_every_order_is_equally_likely():
    assert_holds(law_of_order(packing.dealt, packing.shuffled))


@pytest.mark.parametrize(
    ("deal", "shuffle"),
    [
        (lambda seed, c, n, count: np.full(n, c), packing.shuffled),  # a chunk is a shard
        (packing.dealt, lambda seed, i, n: np.arange(n)),  # shards as they were dealt
        (lambda seed, c, n, count: packing.dealt(seed, 0, n, count), packing.shuffled),  # every chunk alike
        (lambda seed, c, n, count: np.arange(n) % count, packing.shuffled),  # in turn
    ],
)
def test_wrong_orders_are_seen(deal, shuffle):
    assert max(law_of_order(deal, shuffle).values()) > 1


def test_neighbours_of_the_source_are_no_neighbours(tmp_path, small):
    """Positions are uniform, neighbours are strangers, and rows a chunk apart too; the files hold what is told here."""
    tr.pack(numbered(), tmp_path / "out", rows_per_shard=PER, seed=3, progress=False)
    data = Data(tmp_path / "out", resident=False)
    found = (np.asarray(data.y)[:, 0] // WIDE).astype(int)
    told = orders(packing.dealt, packing.shuffled, range(3, 4), 500, ROWS, round(ROWS / PER))[0]
    np.testing.assert_array_equal(found, told)
    table = np.histogram2d(np.arange(ROWS), found, bins=10)[0]
    shard = np.searchsorted(data.y.ends, np.argsort(found), "right")
    near, apart = np.abs(np.diff(found)) <= 20, shard[500:] == shard[:-500]
    counts = np.diff([0, *data.y.ends])
    assert len(set(counts)) > 1
    assert_holds(
        {
            "positions": of_p(stats.chi2.sf(np.sum((table - 40) ** 2 / 40), 81)),
            "neighbours": binomial(near.sum(), near.size, 2 * 20 / ROWS),
            "a chunk apart": binomial(apart.sum(), apart.size, np.sum((counts / ROWS) ** 2)),
        }
    )


# -- killed and started again ------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_killed_anywhere_it_ends_in_the_same_bytes(tmp_path, small):
    """Stopped at every report of progress, also amid a row: it goes on, and packs the same."""
    np.save(tmp_path / "a.npy", numbered())
    whole, calls = tmp_path / "whole", []
    tr.pack(tmp_path / "a.npy", whole, rows_per_shard=PER, progress=lambda *said: calls.append(said))
    wanted = files(whole)
    assert {phase for phase, *_ in calls} == {"scattering", "shuffling"} and len(calls) == 8 + 6
    assert not (whole / packing.WORK).exists()
    out = tmp_path / "out"
    for after in range(len(calls)):
        left = iter(range(after))

        def kill(*_: object, left=left) -> None:
            if next(left, None) is None:
                raise Killed

        with pytest.raises(Killed):
            tr.pack(tmp_path / "a.npy", out, rows_per_shard=PER, progress=kill)
        if calls[after][0] == "scattering":
            with open(out / packing.WORK / f"{5:05d}", "ab") as bucket:
                bucket.write(b"half a row")
        tr.pack(tmp_path / "a.npy", out, rows_per_shard=PER, progress=False)
        assert files(out) == wanted, f"after {after} reports"
        packing.shutil.rmtree(out)
    tr.pack(tmp_path / "a.npy", whole, rows_per_shard=PER, progress=kill)  # is there already
    assert files(whole) == wanted


def test_a_full_disk_is_told_and_gone_on_from(tmp_path, small, monkeypatch):
    source, out = numbered(), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(packing.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10))
        with pytest.raises(CheckpointError, match=r"need about 48,000 bytes in .*; 10 are free"):
            tr.pack(source, out, rows_per_shard=PER)
    with monkeypatch.context() as patch:

        def full(_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(packing, "sync", full)
        with pytest.raises(CheckpointError, match="the disk is full"):
            tr.pack(source, out, rows_per_shard=PER)
    tr.pack(source, out, rows_per_shard=PER)
    np.testing.assert_array_equal(np.sort(np.asarray(Data(out).y)[:, 0]), source[:, 0])


# -- what is read -----------------------------------------------------------------------------------


def unequal(folder: Path, whole: np.ndarray, cuts: tuple[int, ...] = (7, 7, 1500, 2999)) -> str:
    """Shards part-1 to part-5, of unequal lengths, one of them empty; the pattern that names them."""
    folder.mkdir(exist_ok=True)
    for i, part in enumerate(np.split(whole, cuts)):
        np.save(folder / f"part-{8 + i}.npy", part)  # 8, 9, 10 …: not in the order of letters
    return str(folder / "part-*.npy")


INDEXES = [
    slice(None), slice(3, 20), slice(1400, 3100), slice(None, 5), slice(-9, None), slice(0, 4000, 97), slice(9, 9),
    slice(9, 2), slice(4000, 5000), 7, -1, (1500, 2), (slice(1490, 1510), 1), (slice(None, 3), slice(1, None)),
    [3, 2999, 3],
    np.array([[5], [3998]]),
    np.array([-1, 0]), np.arange(4000) % 977 == 0, np.zeros(0, int), np.int64(12), slice(3000, 10, -100),
]  # fmt: skip


def test_rows_of_several_files_are_an_array(tmp_path):
    """Sliced, indexed, masked and whole, as NumPy does it with one array; in the natural order of the files' names."""
    whole = numbered()
    found: Any = Data(unequal(tmp_path / "s", whole), resident=False).y
    assert (found.shape, found.dtype, found.nbytes, len(found)) == (whole.shape, whole.dtype, whole.nbytes, len(whole))
    for index in INDEXES:
        np.testing.assert_array_equal(found[index], whole[index], err_msg=str(index))
    np.testing.assert_array_equal(np.asarray(found), whole)
    with pytest.raises(IndexError):
        found[[4000]]


@pytest.mark.test
def test_batches_of_shards_are_those_of_one_file_and_of_memory(tmp_path):
    """Bit for bit, round the end too; each of two processes reads its part of every batch."""
    rows = {"x": np.random.default_rng(0).normal(size=(ROWS, 2)), "n": np.arange(ROWS)}
    shuffled = {name: a[np.random.default_rng(SHUFFLE).permutation(ROWS)] for name, a in rows.items()}
    patterns = {name: unequal(tmp_path / name, a) for name, a in shuffled.items()}
    np.savez(tmp_path / "one.npz", **shuffled)
    parts, one = Data(patterns, resident=False), Data(tmp_path / "one.npz", resident=False)
    assert parts.fingerprint == one.fingerprint and isinstance(parts.y["x"], shards.Sharded)
    starts = np.array([[0, 5, 1480], [2990, 3999, 3950]])
    read = parts.read(starts, 60)
    jax.tree.map(np.testing.assert_array_equal, read, one.read(starts, 60))
    windows = Data(rows).windows(60)
    for at, start in np.ndenumerate(starts):
        jax.tree.map(lambda a, w, at=at, s=start: np.testing.assert_array_equal(a[at], w[s : s + 60]), read, windows)
    halves = [parts.read(starts, 60, part) for part in (slice(0, 25), slice(25, 60))]
    jax.tree.map(lambda a, *b: np.testing.assert_array_equal(a, np.concatenate(b, 2)), read, *halves)
    jax.tree.map(np.testing.assert_array_equal, parts.take(slice(5, 9)).rows, one.take(slice(5, 9)).rows)
    jax.tree.map(np.testing.assert_array_equal, Data(patterns).rows, one.rows)  # few are held in memory


def test_a_process_maps_only_what_it_reads(tmp_path):
    data = Data(unequal(tmp_path / "s", numbered()), resident=False)
    y: Any = data.y
    y._mapped.clear()  # of the look for numbers that are not finite
    data.read(np.array([1490]), 40, slice(0, 10))
    assert [y.shards[i].path.name for i in y._mapped] == ["part-10.npy"]
    data.read(np.array([1490]), 40, slice(10, 40))
    assert [y.shards[i].path.name for i in y._mapped] == ["part-10.npy", "part-11.npy"]


def test_few_files_are_mapped_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MAPPED", 2)
    found: Any = Data(unequal(tmp_path / "s", numbered()), resident=False).y
    np.testing.assert_array_equal(np.asarray(found), numbered())
    assert len(found._mapped) == 2


# -- rows beyond 2³¹ -----------------------------------------------------------------------------------


def far_starts(plan: Plan, key: jax.Array, t: np.ndarray) -> tuple[list[int], list[int]]:
    words, rows, _ = jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda t: place(plan, key, t)))(jnp.asarray(t)))
    small, larger = divmod(plan.size, plan.count)
    told = [
        (((int(a) << 32) | int(b)) % plan.size + int(c) * small + min(int(c), larger)) % plan.size for a, b, c in words
    ]
    np.testing.assert_array_equal(first_rows(plan, words), told)  # in whole numbers of any size
    return told, rows.tolist()


@pytest.mark.test
def test_far_plans_visit_every_row_once_an_epoch():
    """Blocks follow one another round five milliards of rows, from another offset and in another order each time."""
    plan, offsets = Plan(FAR, 10**8 + 7), []
    starts, rows = far_starts(plan, jax.random.key(1), np.arange(2 * plan.count))
    for epoch in range(2):
        cut = slice(epoch * plan.count, (epoch + 1) * plan.count)
        there = sorted(zip(starts[cut], rows[cut], strict=True))
        for (start, n), (after, _) in zip(there, [*there[1:], (there[0][0] + FAR, 0)], strict=True):
            assert start + n == after
        assert starts[cut] != sorted(starts[cut])
        offsets.append(there[0][0])
    assert offsets[0] != offsets[1]


@pytest.mark.test
def test_independent_far_batches_are_uniform():
    starts, _ = far_starts(Plan(FAR, 10, True), jax.random.key(0), np.arange(4000))
    assert_holds({"start": of_p(stats.kstest(np.array(starts) / FAR, "uniform").pvalue)})
    assert max(starts) > 2**32


@pytest.fixture(scope="module")
def sparse(tmp_path_factory) -> Path:
    """Five milliard rows, zeros but for a few; they take no room on disk."""
    path = tmp_path_factory.mktemp("far") / "far.npy"
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.int8, shape=(FAR,))
    rows[2**31 - 1 : 2**31 + 2], rows[2**32 - 1 : 2**32 + 2], rows[-2:], rows[:2] = 1, 2, 3, 4
    del rows
    if path.stat().st_blocks * 512 > FAR // 2:
        pytest.skip("this disk keeps holes in files as zeros")
    return path


def test_rows_beyond_32_bits(sparse, tmp_path):
    """Read where they are, alone and as the last of three files, and sketched for a mode."""
    data = Data(sparse)
    assert (data.size, data.resident) == (FAR, False)
    starts = np.array([2**31 - 2, 2**32 - 1, FAR - 2])
    wanted = [[0, 1, 1, 1, 0], [2, 2, 2, 0, 0], [3, 3, 4, 4, 0]]
    np.testing.assert_array_equal(data.read(starts, 5)[0], wanted)
    np.save(tmp_path / "0.npy", np.full(3, 9, np.int8))
    (tmp_path / "1.npy").symlink_to(sparse)
    (tmp_path / "2.npy").symlink_to(sparse)
    both = Data(str(tmp_path / "*.npy"))
    assert both.size == 2 * FAR + 3
    np.testing.assert_array_equal(both.read(FAR + 3 + starts[:2], 5)[0], wanted[:2])
    np.testing.assert_array_equal(both.read(starts[2:] + FAR + 3, 5)[0], [[3, 3, 9, 9, 9]])
    np.testing.assert_array_equal(both.take([2 * FAR + 2, FAR + 3]).y, [3, 4])


def test_what_is_too_much_is_refused(sparse):
    with pytest.raises(DataError, match=r"5000000000 rows; in memory, or in groups, at most 2\*\*30"):
        Data(sparse, resident=True)
    with pytest.raises(SettingsError, match="batches an epoch"):
        tr.SGLD(batch_size=2).plan(Data(sparse))


# -- rows in a file's order ----------------------------------------------------------------------------


def on_file(folder: Path, rows: np.ndarray) -> Data:
    np.save(folder / "rows.npy", rows)
    return Data(folder / "rows.npy", resident=False)


def test_the_noise_of_windows_is_told(tmp_path):
    """Rows with a part in common by fifties: 1 + (n − 1)ρ times the noise, of windows wider than are read too."""
    rng = np.random.default_rng(0)
    for share, width, size in ((0.2, 50, 100_000), (0.05, 50, 100_000), (0.5, 1000, 300_000)):
        part = np.repeat(rng.normal(size=size // width), width)
        rows = np.sqrt(share) * part + np.sqrt(1 - share) * rng.normal(size=size)
        ratio, name = order.noise_of_windows(on_file(tmp_path, rows), width)
        alike = 6 / np.pi * np.arcsin(share / 2)  # of ranks
        wanted = 1 + (width - 1) * alike
        assert name == "y"
        assert_holds({f"{share}": error(ratio, wanted, 5.33 * wanted * np.sqrt(2 / (order.WINDOWS - 1)))})


def test_rows_in_random_order_are_not_told_of(tmp_path):
    """Of sixty columns, of heavy tails, of few values and of one, nothing is said; sorted, each is named."""
    rng = np.random.default_rng(1)
    rows = np.concatenate(
        [rng.standard_cauchy((20_000, 57)), rng.random((20_000, 2)) < [0.001, 0.3], np.ones((20_000, 1))], 1
    )
    assert order.noise_of_windows(on_file(tmp_path, rows), 100)[1] == ""
    assert order.noise_of_windows(on_file(tmp_path, rows[:150]), 100)[1] == ""  # one window
    for column in (3, 58):
        ordered = rows[np.argsort(rows[:, column])]
        ratio, name = order.noise_of_windows(on_file(tmp_path, ordered), 100)
        assert name == f"column {column} of y" and 50 < ratio < 101


@pytest.mark.laws
def test_the_report_tells_of_a_sorted_file_and_not_of_a_packed_one(tmp_path, monkeypatch):
    """A climb by batches ends on all rows of the file, some at a time, as it does in memory."""
    monkeypatch.setattr(search, "CURVED", 1000)
    flips = np.sort(np.random.default_rng(0).random(4000) < 0.3).astype(np.float64)
    model = tr.Model({"theta": dist.Beta(5.0, 5.0)}, lambda p: dist.Bernoulli(probs=p["theta"]))
    data = on_file(tmp_path, flips)
    ends = [search.total_of(model, jnp.array([0.3]), each) for each in (data, Data(flips))]
    assert_holds({"total": error(ends[0][0], ends[1][0], 1e-9), "gradient": error(ends[0][1], ends[1][1], 1e-9)})
    tr.pack(tmp_path / "rows.npy", tmp_path / "out", rows_per_shard=900)
    method = tr.MAP(optimizer="adam", batch_size=50, steps=100)
    told = tr.infer(model, data, method, verify=None, progress=False).report()
    check = next(check for check in told.checks if check.name == "order of rows")
    assert check.verdict == "caution" and 25 < check.value < 51 and "tr.pack" in check.sentence
    packed, held = Data(tmp_path / "out", resident=False), Data(flips)
    assert packed.shuffled and not data.shuffled
    for quiet in (packed, held, None):
        assert order.order_check(quiet, Plan(4000, 50)) == []
    assert order.order_check(data, tr.NUTS().plan(data)) == []  # takes no batches


# -- tables -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Rows sorted by y; the codes begin as numbers and end as words, the whole numbers end with a point.

    Codes of parts by themselves would be other words: 01 is the number 1.
    """
    rng = np.random.default_rng(0)
    size, y = 500, np.sort(rng.normal(size=500))
    code = np.where(np.arange(size) < 200, rng.choice(["01", "02"], size), rng.choice(["b", "c"], size))
    count = np.where(np.arange(size) < 300, rng.integers(0, 9, size), rng.normal(size=size))
    return pd.DataFrame({"count": count, "code": code, "weight": rng.integers(1, 4, size), "y": y})


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False, row_group_size=170)
    else:
        frame.to_feather(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".feather"])
def test_a_table_is_packed_as_its_encoder_says(tmp_path, frame, suffix, monkeypatch):
    """Read by hundreds it is encoded as the whole table is; y, what is given and weights keep together."""
    monkeypatch.setattr(packing, "FRAME", 100)
    monkeypatch.setattr(sources, "FRAME", 100)
    path = write(frame, tmp_path / f"t{suffix}")
    out = tr.pack(path, tmp_path / "out", target="y", weights="weight", rows_per_shard=90)
    encoder = fit_encoder(frame, "y", weights="weight")
    wanted, data = encode(encoder, frame), Data(out, resident=False)
    assert shards.manifest_of(out)["encoder"] == encoder.to_dict()
    back = np.argsort(np.asarray(data.y))
    np.testing.assert_array_equal(np.asarray(data.y)[back], wanted.y)
    np.testing.assert_array_equal(np.asarray(data.given)[back], wanted.x)
    np.testing.assert_array_equal(data.weights[back], wanted.weights)
    assert data.y.dtype == np.float64 and data.shuffled and len(data.y.shards) > 3
    assert not np.array_equal(back, np.arange(len(back)))


@pytest.mark.filterwarnings("ignore:Column")
@pytest.mark.parametrize("target", ["y", None])
def test_a_table_is_packed_as_it_is_written(tmp_path, monkeypatch, target):
    """Thousands, decimal marks and words for gaps are read as ``read_table`` reads them, in each part of the file."""
    monkeypatch.setattr(packing, "FRAME", 100)
    monkeypatch.setattr(sources, "FRAME", 100)
    rng, size = np.random.default_rng(0), 400
    pay = np.where(np.arange(size) < 150, rng.integers(1, 999, size), rng.integers(1000, 9_999_999, size))
    frame = pd.DataFrame({"pay": [f"{each:,}".replace(",", ".") for each in pay]})
    frame["share"] = [f"{each:.2f}".replace(".", ",") for each in rng.random(size)]
    frame["age"] = [str(each) if each > 20 else "unknown" for each in rng.integers(18, 90, size)]
    frame["y"] = [f"{each:.9f}".replace(".", ",") for each in rng.normal(size=size)]
    frame.to_csv(tmp_path / "t.csv", sep=";", index=False)
    written = {"sep": ";", "thousands": ".", "decimal": ",", "na_values": "unknown"}
    table = read_table(tmp_path / "t.csv", **written)
    assert list(table["pay"]) == pay.tolist() and table["age"].isna().any()
    how = {"columns": [*table]} if target is None else {"target": "y", "missing": "impute"}
    out = tr.pack(tmp_path / "t.csv", tmp_path / "out", rows_per_shard=90, **written, **how)
    data = Data(out, resident=False, missing="raise" if target else "keep")
    if target is None:
        found, wanted = np.asarray(data.y), table.to_numpy(float)
        np.testing.assert_array_equal(found[np.argsort(found[:, 3])], wanted[np.argsort(wanted[:, 3])])
        return
    encoder = fit_encoder(table, "y", "impute")
    wanted = encode(encoder, table)
    assert shards.manifest_of(out)["encoder"]["columns"] == encoder.to_dict()["columns"]
    back = np.argsort(np.asarray(data.y))
    np.testing.assert_array_equal(np.asarray(data.given)[back], wanted.x[np.argsort(wanted.y)])


def test_an_encoder_of_many_rows_is_learnt_from_some_of_them(tmp_path, monkeypatch):
    """Any row as likely as any other: of a thousand rows a hundred, whose mean is the table's within chance."""
    monkeypatch.setattr(packing, "LEARNT", 100)
    monkeypatch.setattr(packing, "FRAME", 50)
    x = np.sort(np.random.default_rng(0).normal(size=1000))
    out = tr.pack(write(pd.DataFrame({"x": x, "y": -(x**3)}), tmp_path / "t.parquet"), tmp_path / "out", target="y")
    learnt = shards.manifest_of(out)["encoder"]["columns"][0]
    z = learnt["mean"] / np.sqrt(x.var() / 100 * 0.9)
    assert learnt["mean"] != pytest.approx(x.mean(), abs=1e-6)
    assert_holds({"mean": abs(z) / 5.33, "sd": error(learnt["sd"], x.std(), 5.33 / np.sqrt(200))})


def test_columns_of_numbers_are_one_array(tmp_path, frame):
    path = write(frame, tmp_path / "t.csv")
    with pytest.warns(TractableWarning, match="Left out, as they hold no numbers: 'code'"):
        tr.pack(path, tmp_path / "all")
    assert shards.manifest_of(tmp_path / "all")["columns"] == ["count", "weight", "y"]
    found = np.asarray(Data(tr.pack(path, tmp_path / "two", columns=["y", "weight"])).y)
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], frame[["y", "weight"]])


def test_dicts_keep_together_and_zarr_is_read(tmp_path):
    import zarr

    x, y = numbered(200), np.arange(200)
    zarr.save_array(str(tmp_path / "x.zarr"), x)
    read = Data(tmp_path / "x.zarr", resident=False).read(np.array([198]), 4)[0]
    np.testing.assert_array_equal(read[0], x[[198, 199, 0, 1]])
    out = tr.pack({"x": tmp_path / "x.zarr", "y": y}, tmp_path / "out", rows_per_shard=60)
    data = Data(out / "y", out / "x", resident=False)
    np.testing.assert_array_equal(np.asarray(data.given), x[np.asarray(data.y)])
    assert data.shuffled and set(Data(out).y) == {"x", "y"}
    frame = pd.DataFrame({"a": np.arange(5.0), "b": np.arange(5)})
    frame.to_feather(tmp_path / "t.feather")
    np.testing.assert_array_equal(Data(tmp_path / "t.feather").y["b"], frame.b)


def test_numbers_that_are_not_finite_are_found_in_shards(tmp_path):
    rows = numbered()
    rows[77, 1] = np.nan
    tr.pack(rows, tmp_path / "out", rows_per_shard=PER)
    with pytest.raises(DataError, match="y holds 1 number that is not finite"):
        Data(tmp_path / "out", resident=False)


# -- what is refused -----------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path) -> Path:
    np.save(tmp_path / "a.npy", numbered())
    return tr.pack(tmp_path / "a.npy", tmp_path / "out", rows_per_shard=PER)


def test_damage_is_told_when_a_shard_is_read(packed):
    """A flipped bit when its shard is first read, a cut or missing file and another manifest at once."""
    third = packed / "00002.npy"
    content = bytearray(third.read_bytes())
    content[-5] ^= 1
    third.write_bytes(content)
    data = Data(packed, resident=False)
    data.read(np.array([0]), 5)
    with pytest.raises(DataError, match=r"00002\.npy has changed since it was packed: its checksum does not match"):
        data.read(np.array([len(data) // 2 - 300]), 600)
    third.write_bytes(content[:-9])
    with pytest.raises(DataError, match=r"00002\.npy is cut short"):
        Data(packed)
    third.unlink()
    with pytest.raises(DataError, match=r"00002\.npy is missing, which .*manifest\.json names"):
        Data(packed)
    manifest = packed / shards.MANIFEST
    manifest.write_text(manifest.read_text().replace('"rows": 4000', '"rows": 4001'))
    with pytest.raises(DataError, match="is damaged, or was changed by hand"):
        Data(packed)


def test_shards_unlike_the_first_are_named(tmp_path):
    pattern = unequal(tmp_path / "s", numbered())
    np.save(tmp_path / "s" / "part-11.npy", numbered(9, 5))
    with pytest.raises(DataError, match=r"part-11\.npy holds rows of shape \(5,\) and type float32; expected .*part-8"):
        Data(pattern)
    np.save(tmp_path / "s" / "part-11.npy", numbered(9).astype(np.float64))
    with pytest.raises(DataError, match=r"part-11\.npy holds rows .* type float64"):
        Data(pattern)


def other(folder: Path) -> Path:
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    return folder / "mine"


FAULTS = {
    "another source": (lambda p: tr.pack(numbered(9), p / "out"), "holds shards of a.npy that were packed with"),
    "another seed": (lambda p: tr.pack(p / "a.npy", p / "out", seed=1, rows_per_shard=PER), "packed with other"),
    "another folder": (lambda p: tr.pack(p / "a.npy", other(p)), "holds 'notes.txt', which is not part of a pack"),
    "a file": (lambda p: tr.pack(p / "a.npy", p / "a.npy"), "is a file; expected a folder"),
    "no source": (lambda p: tr.pack(p / "b.npy", p / "new"), "There is no file"),
    "no table": (lambda p: tr.pack(p / "b.parquet", p / "new"), "does not exist. Expected a .csv"),
    "no pattern": (lambda p: Data(str(p / "none-*.npy")), "No file matches .*none-"),
    "other files": (lambda p: Data(str(p / "out" / "*")), "matches manifest.json; expected .npy files only"),
    "a target of an array": (lambda p: tr.pack(p / "a.npy", p / "new", target="y"), "are for a table"),
    "encoding of nothing": (lambda p: tr.pack(p / "a.npy", p / "new", family="normal"), r"pack\(family=...\) is for"),
    "no rows": (lambda p: tr.pack(p / "a.npy", p / "new", rows_per_shard=0), "expects at least 1"),
    "unequal": (lambda p: tr.pack({"x": np.zeros(3), "y": np.zeros(4)}, p / "n"), "rows; got x: 3, y: 4"),
    "a bad name": (lambda p: tr.pack({"../x": np.zeros(3)}, p / "new"), "names a folder of shards"),
    "a folder of nothing": (lambda p: Data(other(p)), r"is a folder without manifest\.json or \.npy files"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_refused(packed, name):
    before = files(packed)
    act, sentence = FAULTS[name]
    with pytest.raises(DataError, match=sentence):
        act(packed.parent)
    assert files(packed) == before


# -- the command ---------------------------------------------------------------------------------------


def test_a_bound_of_rows_on_file_is_judged_by_rows_that_count_as_all(tmp_path, monkeypatch):
    """Each row judged on counts for those left out; by a batch that stood for itself stages ended too early."""
    monkeypatch.setattr(bound, "EVALUATED", 20)
    rows, weights = np.random.default_rng(3).normal(size=5000).astype(np.float32), np.arange(5000) % 3
    np.save(tmp_path / "y.npy", rows)
    plan = Plan(5000, 50)
    for counts in (None, weights):
        data = tr.Data(tmp_path / "y.npy", weights=counts, resident=False)
        judged = bound.evaluation_rows(data, plan)
        assert 850 < judged.size <= 1000 and judged.resident  # 1,000 drawn, some twice
        wanted = np.average(rows, weights=counts) * data.total
        spread = 5000 * np.std(rows * (1 if counts is None else counts)) / np.sqrt(judged.size)
        assert_holds({"total": error(judged.total, data.total, 0.1 * data.total),
                      "sum": error(np.sum(judged.weights * judged.y), wanted, 5.33 * spread)})  # fmt: skip
    whole = tr.Data(rows)
    assert bound.evaluation_rows(whole, plan) is whole


@pytest.mark.test
def test_the_command_packs_and_fit_reads_it(tmp_path, frame, monkeypatch):
    path, out = write(frame, tmp_path / "t.csv"), tmp_path / "shards"
    frame.assign(more=1.5, other=2.5).to_csv(path, sep=";", index=False)
    words = ("--exclude", "weight,more", "--exclude", "other", "--sep", ";", "--rows-per-shard", 90)
    result = run("pack", path, "--out", out, "--target", "y", *words)
    assert result.exit_code == 0 and "500 rows in random order, 6 shards" in result.output, result.output
    task = task_of({"model": "glm", "table": str(out), "target": "y"})
    assert (task.data.size, task.held_out.size, task.spec["target"], task.data.resident) == (400, 100, "y", True)
    assert task.encoder.features == ["count", *(f"code [{i}]" for i in (1, 2, 3))]
    monkeypatch.setattr("tractable.core.rows.RESIDENT", 8000)
    far = task_of({"model": "glm", "table": str(out), "target": "y"})
    assert not far.data.resident and far.data.shuffled and far.data.size + far.held_out.size == 500
    assert far.held_out.size == json.loads((out / "manifest.json").read_text())["shards"][-1]["rows"]
    assert "was packed to explain y: leave --target out" in fault("fit", out, "--target", "count")
    assert "is a folder. Expected a .csv or .parquet file, or a folder that tractable pack" in fault(
        "fit", tmp_path, "-q"
    )
    assert "does not exist" in fault("pack", tmp_path / "no.csv", "--out", tmp_path / "new")
