"""Data: the rows that a model explains, in memory or on file."""

import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.arrays import CHUNK, arrays_of, check_width, is_sound, plain_array, weights_of, wide
from tractable.core.batches import FAR, Members, PlacedRows, Weighted
from tractable.core.errors import DataError
from tractable.core.settings import check_seed
from tractable.core.shards import Rows, Sharded, roles
from tractable.core.tree import PyTree
from tractable.core.words import Spelt

Labels = Sequence | np.ndarray  # the label of each row's group
RESIDENT = 4 << 30  # largest number of bytes of data that are held in memory by default
SHUFFLE = 20_140  # the seed of the one shuffle of the rows, which belongs to the data and not to a run
SKETCH = 4096  # largest number of groups that ``Data.sketched`` returns
EVENLY = 10_000  # number of rows that ``Data.equally_counted`` chooses in proportion to unequal weights


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
            neighbours. A datum is then a whole group: N (the attribute ``size``) and the size of a batch count groups.
            Every group takes as much memory as the largest group.
        missing: "raise" refuses rows with NaN or infinite numbers; "drop" leaves these rows out; "keep" accepts NaN,
            for models of missing numbers (``latent.mixture.with_missing``), and refuses infinite numbers.
        allow_empty: accept N = 0, for which the posterior is the prior.
        resident: whether to hold the rows in memory; by default if they take less than 4 GiB. Otherwise minibatch
            methods read each batch from the file as a run of neighbouring rows. The rows of the file should then be in
            random order, as ``tr.pack`` writes them; the report says if they are not.

    Attributes:
        y, given: the rows as arrays.
        rows: (y, given).
        size: N, the number of rows, or of groups.
        weights: (N,) how often each row counts; None if every row counts once.
        labels: (N,) the groups' labels; None without groups.
        numbers: (N, largest group) the numbers of each group's rows, -1 for padding; None without groups.
        missing, resident: as given; ``resident`` is False if the rows take 4 GiB or more.
        nbytes: the bytes of the rows and weights.

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
        self._wide = wide(_arrays_by_name(rows) | weights_by_name)
        check_width(self._wide)
        self.labels: np.ndarray | None = None
        self.numbers: np.ndarray | None = None
        if groups is not None:
            rows, self.labels, self.numbers = gather_rows(rows, self.weights, groups)
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
        """The rows of all groups as Data without groups, in their original order."""
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
        """Σ_n w_n; N if every row counts once."""
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

        If the weights differ, ``count`` rows are chosen in proportion to their weights, so a row may be chosen twice.
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
        """At most ``count`` random groups, with weights so that sums over them estimate sums over all groups.

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
        order = np.random.default_rng(check_seed("split(seed)", seed)).permutation(self.size)
        cut = self.size - max(1, round(fraction * self.size))
        return self.take(np.sort(order[:cut])), self.take(np.sort(order[cut:]))

    def arrays(self) -> PyTree:
        """All rows on the device in their original order: (y, given), or ``Weighted`` if the data have weights."""
        if not self.resident:
            raise DataError(
                f"This method looks at all {self.size} rows at every step, {self.nbytes / 2**30:.1f} GiB. Use a method "
                "that takes minibatches, such as SGLD, or Data(..., resident=True) if memory allows."
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
        """The rows in shuffled order on the device, then the first ``width`` again, so that every batch is a slice."""
        kind = width, jnp.result_type(float).name
        if kind not in self._shuffled:
            order = np.random.default_rng(SHUFFLE).permutation(self.size)
            order = np.concatenate([order, order[:width]])
            with jax.ensure_compile_time_eval():  # what is kept must be no tracer, if a function is being traced
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
    labels = plain_array(source, "group")
    if labels.shape != (size,):
        raise DataError(f"{what} expects one label a row, shape ({size},); got {labels.shape}.")
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        first = np.argmin(np.isfinite(labels))
        raise DataError(f"{what} expects a label for every row; that of row {first} is {labels[first]}.")
    return labels.astype(str) if labels.dtype.kind == "O" else labels


def gather_rows(rows: PyTree, weights: np.ndarray | None, groups: np.ndarray) -> tuple[PyTree, np.ndarray, np.ndarray]:
    """Rows by group, every leaf (groups, members, ...); the sorted labels; and row numbers (groups, members).

    Row numbers are −1 for padding. Padding repeats a group's first row, which has a finite density, and counts 0 times.
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


def as_data(data: Data | PyTree) -> Data:
    """``data`` itself if it is ``Data``, else ``Data(data)``."""
    return data if isinstance(data, Data) else Data(data)


def arrays_for(data: Data | PyTree) -> PyTree:
    """Rows as ``Data.arrays`` returns them, of Data, of rows in that form, or of arrays of y alone."""
    if isinstance(data, tuple | PlacedRows):
        return data
    return (data, None) if isinstance(data, jax.Array) else as_data(data).arrays()


def _arrays_by_name(rows: PyTree) -> dict[str, Rows]:
    """Arrays by the names that messages use, such as y['a']."""
    leaves = jax.tree_util.tree_flatten_with_path(rows)[0]
    return {("y" if path[0].idx == 0 else "given") + jax.tree_util.keystr(path[1:]): leaf for path, leaf in leaves}


def _common_length(rows: PyTree) -> int:
    lengths = {name: leaf.shape[:1] for name, leaf in _arrays_by_name(rows).items()}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        listing = ", ".join(f"{name}: {shape[0] if shape else 'a scalar'}" for name, shape in lengths.items())
        raise DataError(f"All arrays of Data need the same number of rows; got {listing}.")
    return next(iter(lengths.values()))[0]


def _not_finite(rows: PyTree, size: int, gaps: bool) -> tuple[str, np.ndarray]:
    """A message about the first number that is not finite, and a mask (N,) of rows with such numbers.

    If ``gaps``, NaN is allowed and only infinite numbers count.
    """
    bad, sentence = np.zeros(0, bool), ""
    for name, leaf in _arrays_by_name(rows).items():
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
