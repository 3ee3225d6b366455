"""Data, minibatches, and the plan by which a run walks through the rows."""

import functools
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.arrays import CHUNK, arrays_of, check_width, is_sound, unmasked, weights_of, wide
from tractable.core.errors import DataError
from tractable.core.settings import seeded
from tractable.core.shards import Rows, Sharded, roles
from tractable.core.tree import PyTree
from tractable.core.words import Spelt

Labels = Sequence | np.ndarray  # the label of each row's group
FAR = 1 << 30  # from so many rows on, sums of row numbers exceed 32 bits, and the host computes them
RESIDENT = 4 << 30  # most bytes of data that are held in memory by default
SHUFFLE = 20_140  # the seed of the one shuffle of the rows, which belongs to the data and not to a run
SKETCH = 4096  # most groups in a sketch of the data
EVENLY = 10_000  # rows drawn in proportion to unequal weights


class Batch(NamedTuple):
    """Some rows of a data set, and the numbers that scale a sum over them to the whole data set.

    Attributes:
        data: pytree of rows, every leaf (n, ...).
        mask: (n,) how often each row counts: 0 for padding, else 1 or the row's weight.
        size: N, the number of rows of the whole data set. A sum over the batch is multiplied by N/n.
        index: the batch's position in its epoch, in 0..M−1.
        count: M, the number of batches in an epoch.
        rows: the number n of rows where the mask holds weights; None where it holds 0 and 1, so that its sum is n.
        over: the devices (``engine.sharding.OverDevices``) among which the rows are divided. ``data`` and ``mask`` are
            then one device's part, with a leading axis of shards. None where one device has all rows.
        places: (n,) each row's position in the batch, if the rows are divided among devices; None for 0, 1, ….
    """

    data: PyTree
    mask: jax.Array
    size: Any  # an int, or traced
    index: jax.Array | int = 0
    count: int = 1
    rows: Any = None
    over: Any = None
    places: Any = None

    @property
    def scale(self) -> jax.Array:
        """N/n, the factor that makes the batch's sum an unbiased estimate of the data set's sum."""
        return self.size / jnp.maximum(jnp.sum(self.mask) if self.rows is None else self.rows, 1)

    def summed(self, function: Callable, params: PyTree) -> Any:
        """``function(params, batch)``, a sum over the batch's rows, added up over the devices that hold rows."""
        if self.over is None:
            return function(params, self)

        def of(params: PyTree, part: tuple[PyTree, jax.Array, Any]) -> Any:
            return function(params, self._replace(data=part[0], mask=part[1], places=part[2], over=None))

        return self.over.summed(of, params, (self.data, self.mask, self.places))

    def keys(self, key: jax.Array) -> jax.Array:
        """(n,) one key for each row, which depends on the row's position in the batch and not on its device."""
        places = jnp.arange(self.mask.shape[0]) if self.places is None else self.places
        return jax.vmap(jax.random.fold_in, (None, 0))(key, places)

    def counted(self, terms: jax.Array) -> jax.Array:
        """The rows' terms (n, ...), each times how often the row counts; 0 for padding, also where it is NaN."""
        trailing = tuple(range(1, terms.ndim))
        masked = jnp.where(jnp.expand_dims(self.mask > 0, trailing), terms, 0.0)
        if self.rows is None:
            return masked
        return jnp.expand_dims(self.mask, trailing).astype(masked.dtype) * masked


class Weighted(NamedTuple):
    """Rows with weights: data with weights return this in place of (y, given)."""

    y: PyTree
    given: PyTree
    weights: Any  # (n,) ≥ 0


class Members(NamedTuple):
    """The inputs of groups of rows, each group padded to the size of the largest: ``Data.given`` of data with groups.

    Attributes:
        given: pytree of inputs, every leaf (groups, members, ...); None where there are none.
        counts: (groups, members) how often each row counts; 0 for padding.
    """

    given: PyTree
    counts: Any


def split_weights(rows: PyTree) -> tuple[PyTree, Any]:
    """(rows, weights); the weights are None where every row counts once."""
    return ((rows.y, rows.given), rows.weights) if isinstance(rows, Weighted) else (rows, None)


def whole(rows: PyTree) -> Batch:
    """All rows as one batch."""
    if isinstance(rows, PlacedRows):
        data, counts = rows.over.by_shard((rows.rows, rows.counts))
        return Batch(data, counts, rows.size, rows=rows.size, over=rows.over)
    rows, weights = split_weights(rows)
    size = jax.tree.leaves(rows)[0].shape[0]
    return Batch(rows, jnp.ones(size), size) if weights is None else Batch(rows, weights, size, rows=size)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows", "counts"], meta_fields=["size", "over"])
@dataclass(frozen=True)
class PlacedRows:
    """All rows, divided among devices: ``engine.sharding.OverDevices.placed_rows`` returns this in place of (y, given).

    Attributes:
        rows: (y, given), every leaf (shards × rows of a shard, ...).
        counts: (shards × rows of a shard,) how often a row counts; 0 for padding.
        size: N.
        over: the mesh.
    """

    rows: PyTree
    counts: Any
    size: int
    over: Any


class Plan(NamedTuple):
    """How a run draws batches of N rows: at most ``batch_size`` rows a step, by epochs or independently.

    The rows are shuffled once. An epoch cuts them, from a random offset, into M contiguous blocks whose sizes differ by
    at most one, and visits the blocks in a random order. The batches of an epoch are therefore negatively correlated,
    which lowers the noise of their sum. With ``independent`` each batch begins at a new random row. The gradient noise
    is then white, as a correction for the noise requires.
    """

    size: int
    batch_size: int
    independent: bool = False

    @property
    def count(self) -> int:
        """M, the number of batches in an epoch."""
        return -(-self.size // self.batch_size)

    @property
    def width(self) -> int:
        """n, the number of rows in the largest batch: ⌈N/M⌉, since the blocks are balanced."""
        return -(-self.size // self.count)

    @property
    def far(self) -> bool:
        """Whether row numbers exceed 32 bits; ``place`` then returns words, and ``first_rows`` the row numbers."""
        return self.size >= FAR

    @property
    def total(self) -> int | float:
        """N as compiled programs take it (``narrow``)."""
        return narrow(self.size)


def narrow(size: int) -> int | float:
    """A count of rows that fits in 32 bits: an int below 2³⁰, else a float."""
    return float(size) if size >= FAR else size


def place(plan: Plan, key: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Batch t of a run: (first row, number of rows, index in its epoch), in O(1) for every N.

    If the plan is ``far``, three words of 32 bits take the place of the first row; ``first_rows`` combines them.
    """
    if plan.independent:
        key = jax.random.fold_in(key, t)
        if plan.far:
            words = jax.random.bits(key, (2,), jnp.uint32)
            return jnp.concatenate([words, jnp.zeros(1, jnp.uint32)]), jnp.array(plan.width), t % plan.count
        start = jax.random.randint(key, (), 0, plan.size)
        return start, jnp.array(plan.width), t % plan.count
    epoch, index = t // plan.count, t % plan.count
    # A single call of the generator, since this runs at every step, and a gradient may take only tens of microseconds.
    words = jax.random.bits(jax.random.fold_in(key, epoch), (10,), jnp.uint32)
    block = permuted(words[:8], index, plan.count)
    small, larger = divmod(plan.size, plan.count)
    rows = small + (block < larger)
    if plan.far:
        return jnp.concatenate([words[8:], block[None].astype(jnp.uint32)]), rows, index
    # 2³² is no multiple of N, so a residue is not exactly uniform. The sum of two residues has one's bias squared.
    offset = ((words[8] % plan.size + words[9] % plan.size) % plan.size).astype(jnp.int32)
    start = (offset + block * small + jnp.minimum(block, larger)) % plan.size
    return start, rows, index


def first_rows(plan: Plan, starts: jax.Array | np.ndarray) -> np.ndarray:
    """The first row of each batch, 64-bit integers (...), from what ``place`` returned: words (..., 3) if ``far``."""
    if not plan.far:
        return np.asarray(starts)
    high, low, block = np.moveaxis(np.asarray(starts).astype(np.uint64), -1, 0)
    # 2⁶⁴ is no multiple of N, but the probabilities of two rows differ by a factor of 1 + N/2⁶⁴ at most.
    offset = (((high << np.uint64(32)) | low) % np.uint64(plan.size)).astype(np.int64)
    small, larger = divmod(plan.size, plan.count)
    block = block.astype(np.int64)
    return (offset + block * small + np.minimum(block, larger)) % plan.size


def permuted(salts: jax.Array, index: jax.Array, count: int) -> jax.Array:
    """π(index), where eight random words choose the pseudo-random permutation π of 0..count−1.

    A Feistel network on Z_a × Z_b with ab ≥ count, applied until the result is below ``count``: no array is needed.
    """
    if count == 1:
        return jnp.zeros_like(index)
    a = int(np.ceil(np.sqrt(count)))
    b = -(-count // a)

    def mix(x: jax.Array, salt: jax.Array) -> jax.Array:
        x = (x.astype(jnp.uint32) + jnp.uint32(1)) * jnp.uint32(0x9E3779B1) ^ salt
        x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
        return ((x ^ (x >> 16)) >> 2).astype(jnp.int32)  # shifted by 2, so that a sum with it stays in int32

    def rounds(x: jax.Array) -> jax.Array:
        left, right = x // b, x % b
        for r in range(4):
            left = (left + mix(right, salts[2 * r])) % a
            right = (right + mix(left, salts[2 * r + 1])) % b
        return left * b + right

    return jax.lax.while_loop(lambda x: x >= count, rounds, rounds(jnp.asarray(index, jnp.int32)))


class Data(Spelt):
    """The rows that a model explains, ``y``, and the inputs that explain them, ``given``.

    Args:
        y: array or pytree of arrays with N rows each, or a path. ``.npy`` and uncompressed ``.npz`` are memory-mapped;
            ``.parquet``, ``.arrow`` and ``.feather`` become dicts of columns; ``.zarr`` is read in parts. A pattern
            such as "shards/*.npy" means the rows of these files, in the natural order of their names. A folder that
            ``tr.pack`` wrote means the rows in it. Leaves of a pytree may be paths too.
        given: the same for inputs; passed to ``likelihood(params, x)`` row by row.
        weights: (N,) numbers ≥ 0, or a path to them: how often each row counts in Σ_n w_n log p(y_n|θ). A row of weight
            2 counts as two rows, a row of weight 0 as none. By default every row counts once. Minibatches draw all rows
            equally often, and a prediction for a row does not depend on the row's weight.
        group: (N,) the label or number of each row's group, for a model with ``local``; the rows of a group need not be
            neighbours. A datum is then a whole group: ``size``, the N of a sum and the n of a batch count groups.
            Every group takes as much memory as the largest.
        missing: "raise" refuses rows with NaN or infinite numbers; "drop" leaves these rows out; "keep" accepts NaN,
            for models of missing numbers (``latent.mixture.with_missing``), and refuses infinite numbers.
        allow_empty: accept N = 0, for which the posterior is the prior.
        resident: whether to hold the rows in memory; by default if they take less than 4 GiB. Otherwise minibatch
            methods read each batch from the file as a run of neighbouring rows. The rows of the file should then be in
            random order, as ``tr.pack`` writes them; the report says if they are not.

    Raises:
        DataError: the data are empty; arrays differ in length; numbers are not finite, are masked, or exceed 32 bits
            while JAX computes in 32 bits; weights are negative or all zero.

    >>> Data([1, 0, 1]).size
    3
    >>> Data([1, 0, 1], weights=[2, 0.5, 0]).total
    2.5
    >>> Data([1, 0, 1], group=["b", "a", "b"])
    Data(2 groups of at most 2 rows, y=int64[2, 2], given=None)
    """

    def __init__(
        self,
        y: PyTree,
        given: PyTree = None,
        *,
        weights: PyTree = None,
        missing: str = "raise",
        allow_empty: bool = False,
        resident: bool | None = None,
        group: Labels | None = None,
    ):
        if missing not in ("raise", "drop", "keep"):
            raise DataError(f"Data(missing=...) is 'raise', 'drop' or 'keep'; got {missing!r}.")
        packed = roles(pathlib.Path(y)) if given is None and isinstance(y, str | pathlib.Path) else None
        if packed is not None:
            y, given, weights = (*packed[:2], packed[2] if weights is None else weights)
        rows = (arrays_of(y, "y"), None if given is None else arrays_of(given, "given"))
        self.size = _common_length(rows)
        if self.size == 0 and not allow_empty:
            raise DataError("Data holds no rows: expected at least one. Pass allow_empty=True to sample the prior.")
        few = self.size < FAR and sum(a.nbytes for a in jax.tree.leaves(rows)) <= RESIDENT
        self.resident = few if resident is None else resident
        if self.size >= FAR and (self.resident or group is not None):
            raise DataError(
                f"Data holds {self.size} rows; in memory, or in groups, at most 2**30 are supported. Split the data, "
                "or leave them on file: Data(..., resident=False)."
            )
        if self.resident:
            rows = jax.tree.map(lambda a: a[:] if isinstance(a, Sharded) else a, rows)
        self.weights = None if weights is None else weights_of(weights, self.size)
        groups = None if group is None else labels_of(group, self.size)
        wrong, bad = _not_finite(rows, self.size, missing == "keep")
        if wrong and missing != "drop":
            raise DataError(wrong)
        if wrong:
            rows = jax.tree.map(lambda a: np.asarray(a)[~bad], rows)
            self.weights = None if self.weights is None else self.weights[~bad]
            groups = None if groups is None else groups[~bad]
            self.size = _common_length(rows)
            if self.size == 0:
                raise DataError("Data holds no rows once those that are not finite are dropped.")
        if self.weights is not None and not np.any(self.weights > 0) and not allow_empty:
            raise DataError(
                "Every weight of Data is zero, so that no row counts: expected one weight above zero at least. Pass "
                "allow_empty=True to sample the prior."
            )
        weights_by_name = {} if self.weights is None else {"weights": self.weights}
        self._wide = wide(_named(rows) | weights_by_name)
        check_width(self._wide)
        self.labels: np.ndarray | None = None
        self.numbers: np.ndarray | None = None
        if groups is not None:
            rows, self.labels, self.numbers = gathered(rows, self.weights, groups)
            self.size, self.weights = len(self.labels), None
        self.rows = rows
        self.missing = missing
        self.nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves((rows, self.weights)))
        self.resident = self.resident and (resident is not None or self.nbytes <= RESIDENT)
        self._shuffled: dict[tuple[int, str], PyTree] = {}
        self._fingerprint: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The attributes without shuffled copies of the rows, for another process."""
        return vars(self) | {"_shuffled": {}}

    def __repr__(self) -> str:
        shapes = jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", self.rows)
        weight = "" if self.weights is None else f" of total weight {self.total:g}"
        if isinstance(self.given, Members):
            most, shapes = self.given.counts.shape[1], (shapes[0], shapes[1].given)
            return f"Data({self.size} groups{weight} of at most {most} rows, y={shapes[0]}, given={shapes[1]})"
        return f"Data({self.size} rows{weight}, y={shapes[0]}, given={shapes[1]})"

    def __len__(self) -> int:
        return self.size

    @property
    def y(self) -> PyTree:
        return self.rows[0]

    @property
    def shuffled(self) -> bool:
        """Whether batches hold rows in random order: of data in memory, or of a folder that ``tr.pack`` wrote."""
        return self.resident or all(isinstance(a, Sharded) and a.shuffled for a in jax.tree.leaves(self.rows))

    @property
    def given(self) -> PyTree:
        """The inputs of each row; ``Members`` if the data have groups."""
        return self.rows[1]

    def members(self) -> "Data":
        """The rows of all groups as single data, in their original order."""
        if self.numbers is None:
            return self
        where = np.unravel_index(self._in_order(self.numbers), self.numbers.shape)
        return Data(*jax.tree.map(lambda a: a[where], (self.y, self.given.given)), missing=self.missing)

    @property
    def places(self) -> np.ndarray:
        """(n,) the group of each row of ``members()``, as an index into ``labels``."""
        numbers = np.arange(self.size)[:, None] if self.numbers is None else self.numbers
        return self._in_order(numbers) // numbers.shape[1]

    @staticmethod
    def _in_order(numbers: np.ndarray) -> np.ndarray:
        """(n,) the flat indices of rows in ``numbers`` (groups, members), sorted by row number."""
        flat = numbers.ravel()
        return np.argsort(flat, kind="stable")[np.count_nonzero(flat < 0) :]

    @property
    def total(self) -> int | float:
        """Σ_n w_n; N where every row counts once."""
        return self.size if self.weights is None else float(np.sum(self.weights))

    def take(self, index: np.ndarray | jax.Array | list | slice) -> "Data":
        """The rows at ``index`` (an array of integers, a mask or a slice) as Data."""
        y, given = jax.tree.map(lambda a: np.asarray(a[index]), self.rows)
        subset = Data(y, given, missing=self.missing)
        subset.weights = None if self.weights is None else self.weights[index]  # may all be zero
        if self.labels is not None and self.numbers is not None:
            subset.labels, subset.numbers = self.labels[index], self.numbers[index]
        return subset

    def equally_counted(self, count: int = EVENLY) -> "Data":
        """Rows that all count once, from which a method finds a starting point; rows of weight zero are left out.

        Where weights differ, ``count`` rows are chosen in proportion to their weights.
        """
        if self.weights is None:
            return self
        counting = self.weights > 0
        indices = np.flatnonzero(counting if counting.any() else ~counting)
        weights = self.weights[indices]
        if np.ptp(weights) > 0:
            cumulative = np.cumsum(weights) / weights.sum()
            evenly = np.searchsorted(cumulative, (np.arange(count) + 0.5) / count)
            indices = indices[np.minimum(evenly, len(indices) - 1)]
        return Data(*jax.tree.map(lambda a: np.asarray(a[indices]), self.rows), missing=self.missing)

    def sketched(self, count: int = SKETCH) -> "Data":
        """At most ``count`` random groups, weighted so that their sum estimates the sum over all groups.

        A run uses them to find a starting point and the curvature. Data without groups are returned as they are.
        """
        if self.labels is None or self.size <= count:
            return self
        some = self.take(np.sort(np.random.default_rng(SHUFFLE).permutation(self.size)[:count]))
        some.weights = np.full(count, self.size / count) * (1 if some.weights is None else some.weights)
        return some

    def split(self, fraction: float, seed: int = 0) -> tuple["Data", "Data"]:
        """Two random parts, the second of about ``fraction`` of the rows."""
        if not 0 < fraction < 1:
            raise DataError(f"split(fraction) needs a fraction in (0, 1); got {fraction}.")
        order = np.random.default_rng(seeded("split(seed)", seed)).permutation(self.size)
        cut = self.size - max(1, round(fraction * self.size))
        return self.take(np.sort(order[:cut])), self.take(np.sort(order[cut:]))

    def arrays(self) -> PyTree:
        """All rows on the device in their original order: (y, given), or ``Weighted`` if the data have weights."""
        if not self.resident:
            raise DataError(
                f"This method looks at all {self.size} rows at every step, {self.nbytes / 2**30:.1f} GiB. "
                "Use one that takes minibatches (SGLD, SGHMC), or Data(..., resident=True) if memory allows."
            )
        return self.first()

    def first(self, count: int | None = None) -> PyTree:
        """The first ``count`` rows, or all, on the device in the form of ``arrays``; also for data on file."""
        return self.each(lambda a: jax.device_put(a[:count]))  # jnp.asarray would compile a program

    def each(self, change: Callable) -> PyTree:
        """The rows with ``change`` applied to every array: (y, given), or ``Weighted`` of data with weights."""
        check_width(self._wide)  # again: 64 bits may have been turned off since
        rows = jax.tree.map(change, self.rows)
        return rows if self.weights is None else Weighted(rows[0], rows[1], change(self.weights))

    def windows(self, width: int) -> PyTree:
        """The rows in shuffled order on the device, with the first ``width`` repeated, so that a batch is a slice."""
        kind = width, jnp.result_type(float).name
        if kind not in self._shuffled:
            order = np.random.default_rng(SHUFFLE).permutation(self.size)
            order = np.concatenate([order, order[:width]])
            self._shuffled = {kind: self.each(lambda a: jax.device_put(np.take(a, order, 0)))}
        return self._shuffled[kind]

    def read(self, starts: np.ndarray, width: int, part: slice = slice(None)) -> PyTree:
        """Rows [start, start + width) for every start, read from file, (len(starts), width, ...).

        After the last row the first one follows. With several processes, each reads only its ``part`` of every batch.
        """
        first, stop, _ = part.indices(width)

        def of(a: Rows) -> np.ndarray:
            out = np.empty((*starts.shape, stop - first, *a.shape[1:]), a.dtype)
            for where in np.ndindex(*starts.shape):
                start, done = (int(starts[where]) + first) % max(self.size, 1), 0
                while done < stop - first:  # after the last row the first one follows
                    piece = a[start : start + stop - first - done]
                    out[where][done : done + len(piece)] = piece
                    start, done = 0, done + len(piece)
            return out

        return self.each(of)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of names, shapes, types and bytes, read in chunks."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            weights = [] if self.weights is None else [("weights", self.weights)]
            named = [(jax.tree_util.keystr(p), leaf) for p, leaf in jax.tree_util.tree_flatten_with_path(self.rows)[0]]
            for name, leaf in named + weights:
                digest.update(f"{name} {leaf.shape} {leaf.dtype}".encode())
                for first in range(0, len(leaf), CHUNK):
                    digest.update(np.ascontiguousarray(leaf[first : first + CHUNK]).data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def labels_of(source: Labels, size: int, what: str = "Data(group=...)") -> np.ndarray:
    """The group label of each of ``size`` rows; a DataError for missing labels or a wrong number of them."""
    labels = unmasked(source, "group")
    if labels.shape != (size,):
        raise DataError(f"{what} expects one label a row, shape ({size},); got {labels.shape}.")
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        first = np.argmin(np.isfinite(labels))
        raise DataError(f"{what} expects a label for every row; that of row {first} is {labels[first]}.")
    return labels.astype(str) if labels.dtype.kind == "O" else labels


def gathered(rows: PyTree, weights: np.ndarray | None, groups: np.ndarray) -> tuple[PyTree, np.ndarray, np.ndarray]:
    """Rows by group, every leaf (groups, members, ...); the sorted labels; the rows' numbers, −1 for padding.

    Padding repeats a group's first row, which has a finite density, and counts 0 times.
    """
    labels, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    most, count = int(sizes.max(initial=0)), len(groups)
    room = most * len(labels) / max(count, 1) * sum(leaf.nbytes for leaf in jax.tree.leaves(rows))
    if room > RESIDENT:
        raise DataError(
            f"The largest of {len(labels)} groups holds {most} rows, and every group takes as much memory as the "
            f"largest: {room / 2**30:.1f} GiB in all. Expected groups of similar size: split the largest group, or "
            "keep a random part of its rows and give these rows weights= that make up for the others."
        )
    order = np.argsort(index, kind="stable")
    first = np.cumsum(sizes) - sizes
    member = np.arange(most)
    there = member < sizes[:, None]
    where = order[np.where(there, first[:, None] + member, first[:, None])]
    counts = there.astype(np.float64) if weights is None else np.where(there, weights[where], 0.0)
    y, given = jax.tree.map(lambda a: np.asarray(a)[where], rows)
    return (y, Members(given, counts)), labels, np.where(there, where, -1).astype(np.int32)


def window(windows: PyTree, plan: Plan, start: jax.Array, rows: jax.Array, index: jax.Array | int) -> Batch:
    """The batch that begins at ``start`` (from ``place``), as a slice of ``Data.windows``."""
    data = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, plan.width), windows)
    return windowed(data, plan, rows, index)


def windowed(data: PyTree, plan: Plan, rows: jax.Array, index: jax.Array | int) -> Batch:
    """The batch of rows that ``Data.read`` returned."""
    data, weights = split_weights(data)
    if plan.size % plan.count == 0 or plan.independent:  # all batches are full
        mask = jnp.ones(plan.width)
    else:
        mask = (jnp.arange(plan.width) < rows).astype(jnp.result_type(float))
    if weights is None:
        return Batch(data, mask, plan.total, index, plan.count)
    return Batch(data, mask * weights, plan.total, index, plan.count, jnp.sum(mask))


def as_data(data: Data | PyTree) -> Data:
    """``data`` itself if it is ``Data``, else ``Data(data)``."""
    return data if isinstance(data, Data) else Data(data)


def _named(rows: PyTree) -> dict[str, Rows]:
    """Arrays by the names that messages use, such as y['a']."""
    leaves = jax.tree_util.tree_flatten_with_path(rows)[0]
    return {("y" if path[0].idx == 0 else "given") + jax.tree_util.keystr(path[1:]): leaf for path, leaf in leaves}


def _common_length(rows: PyTree) -> int:
    lengths = {name: leaf.shape[:1] for name, leaf in _named(rows).items()}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        listing = ", ".join(f"{name}: {shape[0] if shape else 'a scalar'}" for name, shape in lengths.items())
        raise DataError(f"All arrays of Data need the same number of rows; got {listing}.")
    return next(iter(lengths.values()))[0]


def _not_finite(rows: PyTree, size: int, gaps: bool) -> tuple[str, np.ndarray]:
    """A message about the first number that is not finite, and a mask (N,) of rows with such numbers.

    If ``gaps``, NaN is allowed and only infinite numbers count.
    """
    bad, sentence = np.zeros(0, bool), ""
    for name, leaf in _named(rows).items():
        count, first = 0, []
        for start in range(0, size if leaf.dtype.kind == "f" and not is_sound(leaf) else 0, CHUNK):
            part = leaf[start : start + CHUNK]
            where = np.argwhere(np.isinf(part) if gaps else ~np.isfinite(part))
            where[:, 0] += start
            count += len(where)
            bad = np.zeros(size, bool) if len(where) and not bad.size else bad  # made only when needed
            bad[where[:, 0]] = True
            first = first or where[:1].ravel().tolist()
        if count and not sentence:
            column = f", column {first[1]}" if len(first) > 1 else ""
            sentence = (
                f"{name} holds {count} {'numbers that are' if count > 1 else 'number that is'} not "
                f"finite, the first ({leaf[tuple(first)]}) in row {first[0]}{column}. Correct or impute them, "
                "or leave those rows out with Data(..., missing='drop')."
            )
    return sentence, bad
