"""Data that knows its size, where its rows live, and which rows batch t of a run holds.

Batch t is a pure function of (key, t), so a resumed run needs no iterator state. An epoch cuts the
N rows into M blocks whose sizes differ by at most one, starting at a random offset, and visits them
in a random order: every row once. Blocks are contiguous rows of a copy shuffled once, because
gathering random rows from memory costs several times a gradient. What randomness remains between
epochs is the offset and the order; neighbours in the shuffled copy stay neighbours.
"""

import hashlib
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.tools.errors import DataError

PyTree = Any
CHUNK = 1 << 16  # rows read at a time from a file
RESIDENT = 4 << 30  # bytes: larger data are read batch by batch
SHUFFLE = 20_140  # the seed of the one-off shuffle: a property of the data, not of a run


class Batch(NamedTuple):
    """Rows of a data set, and what is needed to scale a sum over them.

    Attributes:
        data: pytree of rows, every leaf (n, ...).
        mask: (n,), 1 for a row that counts and 0 for padding.
        size: N, the rows of the whole data set.
        index: i in 0..M−1, the batch's place in its epoch.
        count: M, the batches of an epoch.
    """

    data: PyTree
    mask: jax.Array
    size: Any  # an int, or traced
    index: jax.Array | int = 0
    count: int = 1

    @property
    def scale(self) -> jax.Array:
        """N/n, which makes the batch's sum an unbiased estimate of the data set's."""
        return self.size / jnp.maximum(jnp.sum(self.mask), 1)


def whole(rows: PyTree) -> Batch:
    """All rows as one batch."""
    size = jax.tree.leaves(rows)[0].shape[0]
    return Batch(rows, jnp.ones(size), size)


class Plan(NamedTuple):
    """How a run walks through N rows: at most ``batch_size`` a step, by epochs or independently.

    ``independent`` draws each batch's place afresh; the gradient noise is then white, which a
    correction for it needs. Batches of one epoch are negatively correlated, which is the better
    choice everywhere else.
    """

    size: int
    batch_size: int
    independent: bool = False

    @property
    def count(self) -> int:
        """M, the batches of an epoch."""
        return -(-self.size // self.batch_size)

    @property
    def width(self) -> int:
        """n, the rows of the largest batch: blocks are balanced, so it is ⌈N/M⌉."""
        return -(-self.size // self.count)


def place(plan: Plan, key: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where batch t lies: (first row, rows that count, index in its epoch), in O(1) whatever N is."""
    if plan.independent:
        start = jax.random.randint(jax.random.fold_in(key, t), (), 0, plan.size)
        return start, jnp.array(plan.width), t % plan.count
    epoch, index = t // plan.count, t % plan.count
    # One call of the generator an epoch: this runs at every step, beside a gradient of some tens of microseconds.
    words = jax.random.bits(jax.random.fold_in(key, epoch), (10,), jnp.uint32)
    # A sum of two residues, because 2³² is no multiple of N: the offset's bias is the square of one's.
    offset = ((words[8] % plan.size + words[9] % plan.size) % plan.size).astype(jnp.int32)
    block = permuted(words[:8], index, plan.count)
    small, larger = divmod(plan.size, plan.count)
    start = (offset + block * small + jnp.minimum(block, larger)) % plan.size
    return start, small + (block < larger), index


def permuted(salts: jax.Array, index: jax.Array, count: int) -> jax.Array:
    """π(index) for a pseudo-random permutation π of 0..count−1 that eight random words choose.

    A Feistel network on Z_a × Z_b with ab ≥ count, walked along its cycle until it lands inside:
    no array of length ``count`` is ever formed.
    """
    if count == 1:
        return jnp.zeros_like(index)
    a = int(np.ceil(np.sqrt(count)))
    b = -(-count // a)

    def mix(x: jax.Array, salt: jax.Array) -> jax.Array:
        x = (x.astype(jnp.uint32) + jnp.uint32(1)) * jnp.uint32(0x9E3779B1) ^ salt
        x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
        return ((x ^ (x >> 16)) >> 2).astype(jnp.int32)  # so that a sum with it stays in int32

    def rounds(x: jax.Array) -> jax.Array:
        left, right = x // b, x % b
        for r in range(4):
            left = (left + mix(right, salts[2 * r])) % a
            right = (right + mix(left, salts[2 * r + 1])) % b
        return left * b + right

    return jax.lax.while_loop(lambda x: x >= count, rounds, rounds(jnp.asarray(index, jnp.int32)))


class Data:
    """The rows that a model explains, ``y``, and what it may look at while doing so, ``given``.

    Args:
        y: array or pytree of arrays with N rows each, or a path: ``.npy`` and uncompressed ``.npz``
            are memory-mapped, ``.parquet`` becomes a dict of columns.
        given: the same for inputs; passed to ``likelihood(params, x)`` row by row.
        missing: "raise" refuses rows with NaN or infinite numbers, "drop" leaves them out; "keep" keeps NaN (not
            infinite numbers), for models that know what a missing number is (``models.mixture.with_missing``).
        allow_empty: accept N = 0, whose posterior is the prior.
        resident: hold the rows in memory. By default below 4 GiB; above, minibatch methods read
            their batches from the file, which should then be in random order.

    Raises:
        DataError: empty data, rows of unequal number, numbers that are not finite.

    >>> Data([1, 0, 1]).size
    3
    """

    def __init__(
        self,
        y: Any,
        given: Any = None,
        *,
        missing: str = "raise",
        allow_empty: bool = False,
        resident: bool | None = None,
    ):
        if missing not in ("raise", "drop", "keep"):
            raise DataError(f"Data(missing=...) is 'raise', 'drop' or 'keep'; got {missing!r}.")
        rows = (_arrays(y, "y"), None if given is None else _arrays(given, "given"))
        self.size = _common_length(rows)
        if self.size == 0 and not allow_empty:
            raise DataError("Data holds no rows: expected at least one. Pass allow_empty=True to sample the prior.")
        if self.size >= 1 << 30:
            raise DataError(f"Data holds {self.size} rows; at most 2**30 are supported. Split the data.")
        bad = _not_finite(rows, self.size, missing == "keep")
        if bad and missing != "drop":
            raise DataError(bad.sentence)
        if bad:
            rows = jax.tree.map(lambda a: np.asarray(a)[~bad.rows], rows)
            self.size = _common_length(rows)
            if self.size == 0:
                raise DataError("Data holds no rows once those that are not finite are dropped.")
        self.rows = rows
        self.missing = missing
        self.nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(rows))
        self.resident = self.nbytes <= RESIDENT if resident is None else resident
        self._shuffled: dict[int, PyTree] = {}
        self._fingerprint: str | None = None

    def __repr__(self) -> str:
        shapes = jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", self.rows)
        return f"Data({self.size} rows, y={shapes[0]}, given={shapes[1]})"

    def __len__(self) -> int:
        return self.size

    @property
    def y(self) -> PyTree:
        return self.rows[0]

    @property
    def given(self) -> PyTree:
        return self.rows[1]

    def take(self, index: Any) -> "Data":
        """The rows at ``index`` (an array of integers, a mask or a slice) as Data."""
        y, given = jax.tree.map(lambda a: np.asarray(a[index]), self.rows)
        return Data(y, given, missing=self.missing)

    def split(self, fraction: float, seed: int = 0) -> tuple["Data", "Data"]:
        """Two random parts, the second of about ``fraction`` of the rows."""
        if not 0 < fraction < 1:
            raise DataError(f"split(fraction) needs a fraction in (0, 1); got {fraction}.")
        order = np.random.default_rng(seed).permutation(self.size)
        cut = self.size - max(1, round(fraction * self.size))
        return self.take(np.sort(order[:cut])), self.take(np.sort(order[cut:]))

    def arrays(self) -> PyTree:
        """All rows on the device, in the order given."""
        if not self.resident:
            raise DataError(
                f"This method looks at all {self.size} rows at every step, {self.nbytes / 2**30:.1f} GiB. "
                "Use one that takes minibatches (SGLD, SGHMC), or Data(..., resident=True) if memory allows."
            )
        return jax.tree.map(jnp.asarray, self.rows)

    def windows(self, width: int) -> PyTree:
        """The rows in shuffled order on the device, the first ``width`` repeated at the end.

        So that any ``width`` rows, taken round the end, are one contiguous slice.
        """
        if width not in self._shuffled:
            order = np.random.default_rng(SHUFFLE).permutation(self.size)
            order = np.concatenate([order, order[:width]])
            self._shuffled = {width: jax.tree.map(lambda a: jnp.asarray(np.take(a, order, 0)), self.rows)}
        return self._shuffled[width]

    def read(self, starts: np.ndarray, width: int) -> PyTree:
        """Rows [start, start + width) round the end for every start, from file: (len(starts), width, ...)."""

        def of(a: np.ndarray) -> np.ndarray:
            out = np.empty((*starts.shape, width, *a.shape[1:]), a.dtype)
            for where in np.ndindex(*starts.shape):
                start = int(starts[where])
                first = a[start : start + width]
                out[where][: len(first)] = first
                out[where][len(first) :] = a[: width - len(first)]
            return out

        return jax.tree.map(of, self.rows)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over names, shapes, types and bytes, read in chunks."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for path, leaf in jax.tree_util.tree_flatten_with_path(self.rows)[0]:
                digest.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}".encode())
                for first in range(0, len(leaf), CHUNK):
                    digest.update(np.ascontiguousarray(leaf[first : first + CHUNK]).data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def window(windows: PyTree, plan: Plan, start: jax.Array, rows: jax.Array, index: jax.Array | int) -> Batch:
    """The batch that ``place`` put at ``start``, as a slice of ``Data.windows``."""
    data = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, plan.width), windows)
    return Batch(data, _mask(plan, rows), plan.size, index, plan.count)


def windowed(data: PyTree, plan: Plan, rows: jax.Array, index: jax.Array | int) -> Batch:
    """The same from rows that ``Data.read`` has already cut out."""
    return Batch(data, _mask(plan, rows), plan.size, index, plan.count)


def _mask(plan: Plan, rows: jax.Array) -> jax.Array:
    if plan.size % plan.count == 0 or plan.independent:  # all batches are full
        return jnp.ones(plan.width)
    return (jnp.arange(plan.width) < rows).astype(jnp.result_type(float))


def as_data(data: Any) -> Data:
    """``data`` itself, or arrays made into Data."""
    return data if isinstance(data, Data) else Data(data)


def _arrays(source: Any, role: str) -> PyTree:
    if isinstance(source, str | pathlib.Path):
        out = _from_file(pathlib.Path(source))
    elif hasattr(source, "to_numpy") and hasattr(source, "columns"):  # a frame is a dict of columns
        out = {str(name): np.asarray(source[name]) for name in source.columns}
    else:
        if isinstance(source, list):  # rows of numbers; a pytree of arrays comes as a dict or a tuple
            try:
                source = np.asarray(source)
            except ValueError as error:
                raise DataError(f"{role} is a list of rows of unequal lengths; every row needs the same.") from error
        out = jax.tree.map(_native, source)
    if not jax.tree.leaves(out):
        raise DataError(f"Data got nothing for {role}: expected an array or a pytree of arrays.")
    for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
        if leaf.dtype.kind not in "fiub":
            raise DataError(
                f"{role}{jax.tree_util.keystr(path)} has dtype {leaf.dtype}; expected numbers. "
                "Encode text and dates first (tractable fit does it for tables)."
            )
    return out


def _native(a: Any) -> np.ndarray:
    """An array of a byte order and precision that JAX takes."""
    a = a if isinstance(a, np.ndarray) else np.asarray(a)
    if a.dtype.kind == "f" and a.dtype.itemsize > 8:
        return a.astype(np.float64)
    return a if a.dtype.isnative or a.dtype.kind not in "fiub" else a.astype(a.dtype.newbyteorder("="))


def _from_file(path: pathlib.Path) -> PyTree:
    if not path.exists():
        raise DataError(f"There is no file {path}. Data takes arrays or a path to .npy, .npz or .parquet.")
    readers: dict[str, Callable] = {".npy": _npy, ".npz": _npz, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DataError(f"Data reads .npy, .npz and .parquet files; got {path.name}.")
    return readers[path.suffix](path)


def _npy(path: pathlib.Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} is not a .npy file of numbers, or is cut short: {error}.") from error


def _npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Members that are stored uncompressed are mapped where they lie in the archive."""
    out = {}
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as raw:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if info.compress_type != zipfile.ZIP_STORED:
                    with np.load(path, allow_pickle=False) as loaded:
                        out[name] = loaded[name]
                    continue
                raw.seek(info.header_offset + 26)
                lengths = int.from_bytes(raw.read(2), "little") + int.from_bytes(raw.read(2), "little")
                raw.seek(info.header_offset + 30 + lengths)
                version = np.lib.format.read_magic(raw)
                read = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")
                shape, fortran, dtype = read(raw)
                if dtype.hasobject:
                    raise DataError(f"{path}: {name} holds Python objects; expected numbers.")
                order = "F" if fortran else "C"
                at = raw.tell()
                empty = not np.prod(shape)  # which cannot be mapped
                out[name] = np.empty(shape) if empty else np.memmap(path, dtype, "r", at, shape, order)
    except (zipfile.BadZipFile, ValueError, OSError, KeyError) as error:
        raise DataError(f"{path} is not an .npz file of numbers, or is damaged: {error}.") from error
    return out


def _parquet(path: pathlib.Path) -> dict[str, np.ndarray]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file, or is damaged: {error}.") from error
    return {name: table[name].to_numpy() for name in table.column_names}


def _common_length(rows: PyTree) -> int:
    lengths = {
        ("y" if path[0].idx == 0 else "given") + jax.tree_util.keystr(path[1:]): leaf.shape[:1]
        for path, leaf in jax.tree_util.tree_flatten_with_path(rows)[0]
    }
    if len(set(lengths.values())) != 1 or () in lengths.values():
        listing = ", ".join(f"{name}: {shape[0] if shape else 'a scalar'}" for name, shape in lengths.items())
        raise DataError(f"All arrays of Data need the same number of rows; got {listing}.")
    return next(iter(lengths.values()))[0]


class _Bad(NamedTuple):
    sentence: str
    rows: np.ndarray


def _not_finite(rows: PyTree, size: int, gaps: bool = False) -> _Bad | None:
    bad, sentence = np.zeros(size, bool), ""
    for path, leaf in jax.tree_util.tree_flatten_with_path(rows)[0]:
        if leaf.dtype.kind != "f":
            continue
        name = ("y" if path[0].idx == 0 else "given") + jax.tree_util.keystr(path[1:])
        count, first = 0, None
        for start in range(0, size, CHUNK):
            part = leaf[start : start + CHUNK]
            finite = ~np.isinf(part) if gaps else np.isfinite(part)
            if finite.all():
                continue
            where = np.argwhere(~finite)
            count += len(where)
            bad[start + where[:, 0]] = True
            if first is None:
                first = [int(where[0][0]) + start, *map(int, where[0][1:])]
        if first is not None and not sentence:
            column = f", column {first[1]}" if len(first) > 1 else ""
            value = leaf[tuple(first)]
            sentence = (
                f"{name} holds {count} {'numbers that are' if count > 1 else 'number that is'} not "
                f"finite, the first ({value}) in row {first[0]}{column}. Mend or impute them, "
                "or leave those rows out with Data(..., missing='drop')."
            )
    return _Bad(sentence, bad) if sentence else None
