"""Data: every row once an epoch, batches a function of (key, t), files as arrays, faults in sentences."""

import collections
import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from montecarlo import assert_holds, error, uniform_counts

from tractable.core import rows as module
from tractable.core.batches import Plan, batch_of_window, permute, place, whole, window
from tractable.core.errors import DataError
from tractable.core.rows import Data, as_data

pytestmark = pytest.mark.quick

SIZES = [
    (1, 1), (2, 1), (5, 5), (5, 7), (7, 2), (7, 3), (10, 3), (12, 4), (13, 12), (100, 7), (101, 10), (997, 31)
]  # fmt: skip


def places(plan: Plan, key: jax.Array, t: Any) -> tuple[np.ndarray, ...]:
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda t: place(plan, key, t)))(jnp.asarray(t)))


@pytest.mark.test
@pytest.mark.parametrize(("size", "rows"), SIZES)
def test_every_row_once_an_epoch(size, rows):
    """Blocks of one epoch partition the rows; their sizes differ by at most one and never exceed n."""
    plan = Plan(size, rows)
    assert plan.count == math.ceil(size / rows) and plan.width <= rows
    starts, lengths, index = places(plan, jax.random.key(size), np.arange(4 * plan.count))
    for epoch in range(4):
        cut = slice(epoch * plan.count, (epoch + 1) * plan.count)
        seen = [(s + i) % size for s, n in zip(starts[cut], lengths[cut], strict=True) for i in range(int(n))]
        assert sorted(seen) == list(range(size))
        np.testing.assert_array_equal(index[cut], np.arange(plan.count))
    assert lengths.max() - lengths.min() <= 1
    assert lengths.max() == plan.width


@pytest.mark.laws
def test_epochs_differ():
    """Offset and order are drawn afresh for every epoch and every key."""
    plan = Plan(1000, 10)
    starts, _, _ = places(plan, jax.random.key(0), np.arange(300))
    others, _, _ = places(plan, jax.random.key(1), np.arange(300))
    a, b, c, d = starts[:100], starts[100:200], starts[200:], others[:100]
    for x, y in [(a, b), (b, c), (a, c), (a, d)]:
        assert len(set(x % 10) | set(y % 10)) == 2 or np.mean(x == y) < 0.1
        assert np.mean((x - x[0]) % 1000 == (y - y[0]) % 1000) < 0.1  # another order, not another offset


@pytest.mark.test
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 12, 16, 17, 100, 121, 1000, 4096, 65_537])
def test_permutation(count):
    """π is a bijection of 0..count−1 for every key."""
    for seed in range(3):
        values = _permutation(jax.random.key(seed), count)
        np.testing.assert_array_equal(np.sort(values), np.arange(count))


@pytest.mark.test
def test_permutation_of_a_million():
    """Also where the round function comes within a block of 2³¹, as it does with this key."""
    values = _permutation(jax.random.key(593), 1_000_000)
    np.testing.assert_array_equal(np.sort(values), np.arange(1_000_000))


@pytest.mark.test("2")
@pytest.mark.parametrize("count", [2, 5, 10])
def test_permutation_is_roughly_uniform(count):
    """π(i) is uniform, and so are the ordered pairs π(0), π(1)."""
    values = np.asarray(jax.vmap(lambda k: _all(k, count))(jax.random.split(jax.random.key(0), 20_000)))
    scores = {f"π({i})": uniform_counts(np.bincount(values[:, i], minlength=count)) for i in range(count)}
    couples = np.bincount(values[:, 0] * count + values[:, 1], minlength=count**2).reshape(count, count)
    assert np.all(np.diag(couples) == 0)
    scores["pairs"] = uniform_counts(couples[~np.eye(count, dtype=bool)])
    assert_holds(scores)


def _all(key: jax.Array, count: int) -> jax.Array:
    return jax.vmap(lambda i: permute(jax.random.bits(key, (8,)), i, count))(jnp.arange(count))


def _permutation(key: jax.Array, count: int) -> np.ndarray:
    return np.asarray(jax.jit(_all, static_argnums=1)(key, count))


@pytest.mark.test("True")
@pytest.mark.parametrize("independent", [False, True])
def test_batch_is_a_function_of_key_and_time(independent):
    """One at a time, backwards, compiled or not, the batches are the same."""
    plan, key = Plan(53, 5, independent), jax.random.key(3)
    t = np.arange(2 * plan.count)
    forwards = np.stack(places(plan, key, t))
    np.testing.assert_array_equal(np.stack(places(plan, key, t[::-1]))[:, ::-1], forwards)
    assert [int(x) for x in place(plan, key, jnp.array(13))] == list(forwards[:, 13])


@pytest.mark.test
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize(("size", "rows"), [(1, 1), (4, 4), (6, 4), (7, 2), (7, 3), (8, 3)])
def test_unbiased(monkeypatch, size, rows, independent):
    """The average of (N/n) Σ_batch over all offsets and blocks is Σ over all rows."""
    data = Data(np.random.default_rng(0).normal(size=size))
    plan = Plan(size, rows, independent)
    windows = data.windows(plan.width)

    def total(offset: jax.Array, t: jax.Array) -> jax.Array:
        words = jnp.concatenate([jnp.arange(8, dtype=jnp.uint32), jnp.stack([offset, 0]).astype(jnp.uint32)])
        monkeypatch.setattr(jax.random, "bits", lambda *_, **__: words)
        monkeypatch.setattr(jax.random, "randint", lambda *_, **__: offset)
        batch = window(windows, plan, *place(plan, jax.random.key(0), t))
        assert (batch.size, batch.count) == (size, plan.count)
        return batch.scale * jnp.sum(batch.mask * batch.data[0])

    blocks = jax.vmap(total, (None, 0))
    sums = jax.jit(jax.vmap(blocks, (0, None)))(jnp.arange(size), jnp.arange(plan.count))
    assert_holds({"sum": error(np.mean(sums), data.y.sum(), 1e-12)})


@pytest.mark.test
def test_independent_batches_are_uniform():
    """Where each batch is placed afresh, its first row is uniform."""
    starts, lengths, _ = places(Plan(10, 3, True), jax.random.key(0), np.arange(20_000))
    assert set(lengths) == {3}
    assert_holds({"start": uniform_counts(np.bincount(starts, minlength=10))})


@pytest.mark.test
@pytest.mark.parametrize("independent", [False, True])
def test_no_array_of_all_rows(independent):
    """Placing a batch among 10⁹ rows forms no array longer than the key's salts."""
    jaxpr = jax.make_jaxpr(lambda k, t: place(Plan(10**9, 1, independent), k, t))(jax.random.key(0), 5)
    assert _largest(jaxpr.jaxpr) <= 64


def _largest(jaxpr: Any) -> int:
    largest = max((int(np.prod(v.aval.shape)) for e in jaxpr.eqns for v in e.outvars), default=0)
    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                largest = max(largest, _largest(inner))
    return largest


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=50), "b": rng.integers(0, 9, 50), "c": rng.normal(size=50).astype("f4")}


def test_npy(tmp_path, arrays):
    np.save(tmp_path / "a.npy", arrays["a"])
    data = Data(tmp_path / "a.npy", given=str(tmp_path / "a.npy"))
    assert isinstance(data.y, np.memmap)
    np.testing.assert_array_equal(data.y, arrays["a"])
    np.testing.assert_array_equal(data.given, arrays["a"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, arrays, save):
    arrays["fortran"] = np.asfortranarray(np.random.default_rng(1).normal(size=(50, 3)))
    save(tmp_path / "all.npz", **arrays)
    data = Data(tmp_path / "all.npz")
    assert set(data.y) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(data.y[name], array)
        assert data.y[name].dtype == array.dtype
        assert isinstance(data.y[name], np.memmap) == (save is np.savez)


def test_parquet_and_frames(tmp_path, arrays):
    pyarrow.parquet.write_table(pyarrow.table(arrays), tmp_path / "all.parquet")
    for data in (Data(tmp_path / "all.parquet"), Data(pd.DataFrame(arrays))):
        assert set(data.y) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(data.y[name], array)


@pytest.mark.test
def test_windows_and_files_agree(tmp_path):
    """Rows cut from a file in the shuffled order are the slices of the shuffled copy, round the end too."""
    size, plan = 23, Plan(23, 5)
    data = Data({"a": np.arange(size), "b": np.random.default_rng(0).normal(size=(size, 2))})
    order = np.random.default_rng(module.SHUFFLE).permutation(size)
    np.savez(tmp_path / "shuffled.npz", **{k: v[order] for k, v in data.y.items()})
    on_disk = Data(tmp_path / "shuffled.npz", resident=False)
    starts, rows, index = places(plan, jax.random.key(0), np.arange(2 * size))
    read = on_disk.read(starts, plan.width)
    assert read[0]["b"].shape == (2 * size, plan.width, 2)
    for i in range(2 * size):
        a = window(data.windows(plan.width), plan, *(jnp.asarray(x[i]) for x in (starts, rows, index)))
        b = batch_of_window(jax.tree.map(lambda x, i=i: x[i], read), plan, jnp.asarray(rows[i]), jnp.asarray(index[i]))
        jax.tree.map(np.testing.assert_array_equal, a, b)
    assert on_disk.read(starts.reshape(2, -1), plan.width)[0]["a"].shape == (2, size, plan.width)


def test_windows_hold_every_row_once():
    data = Data(np.arange(11))
    rows = np.asarray(data.windows(4)[0])
    np.testing.assert_array_equal(np.sort(rows[:11]), np.arange(11))
    np.testing.assert_array_equal(rows[11:], rows[:4])
    assert data.windows(4)[0] is data.windows(4)[0]


@pytest.mark.test
def test_whole_take_split():
    data = Data(np.arange(10.0), given=np.arange(20).reshape(10, 2))
    batch = whole(data.arrays())
    assert (batch.size, float(batch.scale), batch.mask.shape) == (10, 1.0, (10,))
    np.testing.assert_array_equal(data.take(np.arange(10) > 7).y, [8, 9])
    np.testing.assert_array_equal(data.take([3, 1]).given, [[6, 7], [2, 3]])
    rest, held = data.split(0.3)
    assert (len(rest), len(held)) == (7, 3)
    assert sorted([*rest.y, *held.y]) == list(range(10))
    np.testing.assert_array_equal(data.split(0.3)[1].y, held.y)
    assert as_data(data) is data and as_data([1, 2]).size == 2


@pytest.mark.test
def test_weights_go_with_their_rows(tmp_path):
    """Taken, dropped, shuffled, cut from memory or file, every row keeps its own weight, and padding has none."""
    y, w = np.arange(23.0), np.arange(23) % 4 / 2
    data, plan = Data(y, weights=w), Plan(23, 5)
    assert data.total == w.sum() and Data(y).total == 23 and "of total weight 16.5" in repr(data)
    np.testing.assert_array_equal(data.take([3, 8, 1]).weights, w[[3, 8, 1]])
    np.testing.assert_array_equal(data.take(y < 1).weights, [0])  # a part of the data may count for nothing
    assert all(np.array_equal(part.weights, w[part.y.astype(int)]) for part in data.split(0.3))
    np.testing.assert_array_equal(Data(np.where(y == 2, np.nan, y), weights=w, missing="drop").weights, np.delete(w, 2))
    rows = data.arrays()
    np.testing.assert_array_equal(rows.weights, w)
    assert (whole(rows).data[1], float(whole(rows).scale)) == (None, 1.0)
    order = np.random.default_rng(module.SHUFFLE).permutation(23)
    np.save(tmp_path / "y.npy", y[order])
    np.save(tmp_path / "w.npy", w[order])
    on_disk = Data(tmp_path / "y.npy", weights=tmp_path / "w.npy", resident=False)
    starts, lengths, index = places(plan, jax.random.key(0), np.arange(46))
    read = on_disk.read(starts, plan.width)
    for i in range(46):
        here = (jnp.asarray(x[i]) for x in (starts, lengths, index))
        a = window(data.windows(plan.width), plan, *here)
        b = batch_of_window(
            jax.tree.map(lambda x, i=i: x[i], read), plan, jnp.asarray(lengths[i]), jnp.asarray(index[i])
        )
        jax.tree.map(np.testing.assert_array_equal, a, b)
        wanted = np.where(np.arange(plan.width) < lengths[i], w[np.asarray(a.data[0]).astype(int)], 0)
        np.testing.assert_array_equal(a.mask, wanted)
        assert_holds({"scale": error(a.scale, 23 / lengths[i], 1e-12)})


def test_drop():
    """missing='drop' leaves out every row with a number that is not finite, from all arrays."""
    y, x = np.arange(6.0), np.ones((6, 2))
    y[1], x[4, 0], x[4, 1] = np.nan, np.inf, np.nan
    data = Data({"a": y, "k": np.arange(6)}, given=x, missing="drop")
    np.testing.assert_array_equal(data.y["k"], [0, 2, 3, 5])
    assert data.given.shape == (4, 2)


def test_empty_on_request():
    assert Data(np.empty(0), allow_empty=True).size == 0


def test_fingerprint():
    """It sees one bit, a name, a type, a shape and the order; it does not see where the rows live."""
    y = np.random.default_rng(0).normal(size=200_000)
    flipped = y.copy()
    flipped.view(np.uint64)[123_456] ^= 1
    different = [
        y, flipped, y.astype("f4"), y.view(np.int64), y.reshape(-1, 2), y[::-1], {"a": y}, {"b": y}, y[:-1]
    ]  # fmt: skip
    prints = [Data(each).fingerprint for each in different] + [Data(y, given=y).fingerprint]
    assert len(set(prints)) == len(prints)
    assert Data(y.copy()).fingerprint == prints[0]
    assert Data(np.repeat(y, 2)[::2]).fingerprint == prints[0]
    ones = np.ones(len(y))
    assert len({Data(y, weights=w).fingerprint for w in (None, ones, 2 * ones, ones.cumsum())}) == 4


def test_fingerprint_of_a_file(tmp_path, arrays):
    np.savez(tmp_path / "all.npz", **arrays)
    assert Data(tmp_path / "all.npz").fingerprint == Data(arrays).fingerprint


def _nan(shape: tuple, *where: tuple) -> np.ndarray:
    out = np.zeros(shape)
    for index in where:
        out[index] = np.nan
    return out


Point = collections.namedtuple("Point", "x")
FAULTS = {
    "NaN": (
        lambda p: Data(_nan((9, 4), (3, 2), (7, 1))),
        r"y holds 2 numbers that are not finite, the first \(nan\) in row 3, column 2\. .*missing='drop'",
    ),
    "one NaN": (lambda p: Data(_nan((9,), (5,))), r"y holds 1 number that is not .* in row 5\. "),
    "NaN in a far chunk": (lambda p: Data(_nan((200_000,), (150_000,))), r"in row 150000\."),
    "NaN in given": (
        lambda p: Data(np.zeros(3), {"age": _nan((3,), (1,))}),
        r"given\['age'\] holds 1 number .* row 1",
    ),
    "infinite": (lambda p: Data([1.0, math.inf]), r"\(inf\) in row 1"),
    "all dropped": (lambda p: Data([math.nan], missing="drop"), "no rows once"),
    "empty": (lambda p: Data(np.empty((0, 3))), "no rows: expected at least one.*allow_empty=True"),
    "nothing": (lambda p: Data({}), "Expected an array or a pytree of arrays for y; got none"),
    "unequal": (
        lambda p: Data({"a": np.zeros(3)}, np.zeros(4)),
        r"same number of rows; got y\['a'\]: 3, given: 4",
    ),
    "scalar": (lambda p: Data(3.0), "same number of rows; got y: a scalar"),
    "strings": (lambda p: Data(np.array(["a", "b"])), r"y has dtype <U1; expected numbers"),
    "objects": (lambda p: Data(Point(np.array([1, None]))), r"y\.x has dtype object; expected numbers"),
    "dates": (lambda p: Data(np.array(["2020-01-01"], "M8[D]")), "datetime64.*Subtract a date.*fit_encoder and encode"),
    "durations": (
        lambda p: Data([1.0], np.array([7], "m8[s]")),
        r"given has dtype timedelta64\[s\]; .* Divide by",
    ),
    "masked": (
        lambda p: Data({"a": np.ma.masked_array([[1, 2], [3, 4]], [[0, 0], [1, 0]])}),
        r"y\['a'\] is a masked array that hides 1 of its 4 numbers, the first in row 1; .*filled",
    ),
    "masked rows": (lambda p: Data([np.ma.masked_array([1.0, 2.0], [0, 1])] * 2), "hides 2 of its 4 numbers"),
    "masked groups": (lambda p: Data([1.0, 2.0], group=np.ma.masked_array([1, 2], [0, 1])), "group is a masked array"),
    "complex": (lambda p: Data(np.array([1j])), "complex128; expected numbers"),
    "strings in a frame": (lambda p: Data(pd.DataFrame({"a": ["x"]})), r"y\['a'\] .*expected numbers"),
    "missing file": (lambda p: Data(p / "no.npy"), r"no file .*no\.npy"),
    "suffix": (lambda p: Data(_touch(p / "a.csv")), r"reads \.npy, \.npz, \.parquet, .* files; got a\.csv"),
    "damaged npy": (lambda p: Data(_touch(p / "a.npy")), r"a\.npy is not a \.npy file of numbers"),
    "damaged npz": (lambda p: Data(_touch(p / "a.npz")), r"a\.npz is not an \.npz file of numbers"),
    "damaged parquet": (lambda p: Data(_touch(p / "a.parquet")), r"a\.parquet is not a Parquet file"),
    "cut short": (lambda p: Data(_cut(p / "a.npy")), r"a\.npy is not a \.npy file of numbers, or is cut"),
    "pickle": (lambda p: Data(_objects(p / "a.npz")), r"a\.npz"),
    "pickled npy": (lambda p: Data(_object(p / "a.npy")), r"a\.npy is not a \.npy file of numbers"),
    "strings in a file": (lambda p: Data(_table(p / "a.parquet")), r"y\['a'\] .*expected numbers"),
    "missing=": (lambda p: Data([1], missing="skip"), "is 'raise', 'drop' or 'keep'; got 'skip'"),
    "fraction": (lambda p: Data([1, 2]).split(1.0), r"fraction in \(0, 1\); got 1\.0"),
    "weights for other rows": (
        lambda p: Data([1, 2, 3], weights=[1, 1]),
        r"weights=\.\.\.\) expects one number a row, shape \(3,\); got \(2,\)",
    ),
    "columns of weights": (
        lambda p: Data([1, 2], weights={"a": np.ones(2), "b": np.ones(2)}),
        r"one number a row, shape \(2,\); got \(2,\), \(2,\)",
    ),
    "negative weight": (lambda p: Data([1, 2], weights=[1, -1]), "finite numbers ≥ 0; got -1 in row 1"),
    "weight that is none": (lambda p: Data([1, 2], weights=[np.nan, 1]), "finite numbers ≥ 0; got nan in row 0"),
    "infinite weight": (lambda p: Data([1, 2], weights=[1, np.inf]), "finite numbers ≥ 0; got inf in row 1"),
    "no weight": (lambda p: Data([1, 2], weights=[0, 0]), "Every weight of Data is zero.*allow_empty=True"),
    "no weight left": (
        lambda p: Data([1.0, math.nan], weights=[0, 1], missing="drop"),
        "Every weight of Data is zero",
    ),
    "weights in words": (lambda p: Data([1], weights=["one"]), "weights has dtype <U3; expected numbers"),
    "not resident": (lambda p: Data([1, 2], resident=False).arrays(), "all 2 rows.*minibatches"),
}


LIMITS = {  # the largest and the smallest that 32 bits hold, and what they do not
    "int64": ([-(2**31), 2**31 - 1], [2**31, 2**32, 2**40, -(2**31) - 1]),
    "uint64": ([0, 2**32 - 1], [2**32, 2**63]),
    "float64": ([3.4028234e38, -3.4028234e38, 1e-38], [3.5e38, 1e300, -1e300]),
}


@pytest.mark.parametrize("dtype", LIMITS)
def test_no_number_is_cut_to_32_bits(tmp_path, dtype):
    """In single precision 2³² would be counted as 0 and 1e300 as infinite; in double they are kept."""
    held, beyond = LIMITS[dtype]
    with jax.enable_x64(False):
        np.testing.assert_allclose(np.asarray(Data(np.array(held, dtype)).arrays()[0]), np.array(held, dtype), 1e-6)
    for number in beyond:
        column = np.zeros((70_000, 2), dtype)
        column[69_998, 1] = number
        np.save(tmp_path / "a.npy", column)
        kept = Data(np.zeros(70_000), {"a": column})
        assert np.asarray(kept.arrays()[1]["a"])[69_998, 1] == column[69_998, 1]
        sentence = r"in row 69998, column 1; expected numbers from \S+ to \S+, as JAX computes with \w+ in 32 bits"
        with jax.enable_x64(False):
            attempts = {
                Data: (tmp_path / "a.npy",), partial(Data, np.zeros(70_000)): ({"a": column},),
                kept.arrays: (), kept.windows: (10,), kept.read: (np.array([3]), 10),
            }  # fmt: skip
            for attempt, given in attempts.items():
                with pytest.raises(DataError, match=sentence):
                    attempt(*given)
    with jax.enable_x64(False), pytest.raises(DataError, match=r"weights holds 1e.300 in row 1;"):
        Data([1.0, 2.0], weights=[1.0, 1e300])


def _touch(path: Path) -> Path:
    path.write_bytes(b"no such format")
    return path


def _cut(path: Path) -> Path:
    np.save(path, np.zeros(1000))
    path.write_bytes(path.read_bytes()[:4000])
    return path


def _objects(path: Path) -> Path:
    np.savez(path, a=np.array([1, None]))
    return path


def _object(path: Path) -> Path:
    np.save(path, np.array([1, None]))
    return path


def _table(path: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"a": ["x", "y"]}), path)
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(tmp_path, fault):
    """What was expected, what was got, where."""
    attempt, sentence = FAULTS[fault]
    with pytest.raises(DataError, match=sentence):
        attempt(tmp_path)
