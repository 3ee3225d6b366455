"""Arrays that lie in files: one file, or several that follow one another and are mapped when they are first read."""

import bisect
import glob
import hashlib
import itertools
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from tractable.core.errors import CheckpointError, DataError, parsing
from tractable.core.sealed import read_sealed

MANIFEST = "manifest.json"
KIND = "tractable shards"
MAPPED = 256  # files mapped at once: a process may have a thousand open
PIECE = 1 << 22  # bytes hashed at a time


class Shard(NamedTuple):
    """A file of rows."""

    path: Path
    rows: int
    sha256: str | None = None  # of the whole file; None where nobody noted it


class Sharded:
    """Rows of several files as one array (n, ...), in the order of the files.

    Only headers are read at first. A file is mapped, and held against its checksum where there is one, when a row of it
    is read: a process opens the files that hold its rows, and no others. It is sliced, indexed by rows and turned into
    an array like a memory map; the row numbers are of 64 bits.

    Attributes:
        sound: every number is finite and within 32 bits, as whoever wrote the files found.
        shuffled: the rows are in random order.
    """

    def __init__(
        self, shards: Sequence[Shard], shape: tuple[int, ...], dtype: np.dtype, sound: bool = False,
        shuffled: bool = False,
    ):  # fmt: skip
        self.shards = tuple(shards)
        self.ends = list(itertools.accumulate(shard.rows for shard in self.shards))
        self.shape: tuple[int, ...] = (self.ends[-1], *shape)
        self.dtype = np.dtype(np.float64) if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("=")
        self.ndim = len(self.shape)
        self.sound, self.shuffled = sound, shuffled
        self._mapped: OrderedDict[int, Any] = OrderedDict()
        self._checked: set[int] = set()

    def __reduce__(self) -> tuple:
        return Sharded, (self.shards, self.shape[1:], self.dtype, self.sound, self.shuffled)

    def __repr__(self) -> str:
        return f"Sharded({self.shape[0]} rows in {len(self.shards)} files, {self.dtype}{list(self.shape)})"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            rows, rest = index[:1], index[1:]
            found = self[rows[0]] if rows else self[:]
            return found[rest if isinstance(rows[0], int | np.integer) else (slice(None), *rest)] if rest else found
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._run(start, max(start, stop)) if step == 1 else self._rows(np.arange(start, stop, step))
        rows = np.asarray(index)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of {rows.shape} for {len(self)} rows")
            rows = np.flatnonzero(rows)
        elif rows.dtype.kind not in "iu" and rows.size:
            raise IndexError(f"rows are numbered by integers; got {rows.dtype}")
        return self._rows(rows.astype(np.int64))

    def _run(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop): where one file has them all, as they lie there."""
        i = bisect.bisect_right(self.ends, start)
        if start < stop <= self.ends[i]:
            begins = self.ends[i] - self.shards[i].rows
            return np.asarray(self.part(i)[start - begins : stop - begins], self.dtype)
        out, at = np.empty((stop - start, *self.shape[1:]), self.dtype), start
        while at < stop:
            begins, ends = self.ends[i] - self.shards[i].rows, min(stop, self.ends[i])
            out[at - start : ends - start] = self.part(i)[at - begins : ends - begins]
            i, at = i + 1, ends
        return out

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        flat = np.where(rows < 0, rows + len(self), rows).ravel()
        if flat.size and not (flat.min() >= 0 and flat.max() < len(self)):
            raise IndexError(f"row {rows.ravel()[0]} of {len(self)}")
        out, which = np.empty((flat.size, *self.shape[1:]), self.dtype), np.searchsorted(self.ends, flat, "right")
        for i in np.unique(which):
            here = np.flatnonzero(which == i)
            part, local = self.part(int(i)), flat[here] - (self.ends[i] - self.shards[i].rows)
            out[here] = part[local] if isinstance(part, np.ndarray) else part.oindex[local]
        return out.reshape(*rows.shape, *self.shape[1:])

    def part(self, i: int) -> Any:
        """The rows of file ``i``, mapped; a DataError if it is not what it was."""
        if i in self._mapped:
            self._mapped.move_to_end(i)
            return self._mapped[i]
        shard = self.shards[i]
        if shard.sha256 is not None and i not in self._checked:
            if not shard.path.is_file() or hashed(shard.path) != shard.sha256:
                raise DataError(
                    f"{shard.path} is not what was packed: its checksum does not hold. Restore it from a copy, or pack "
                    "the source again."
                )
            self._checked.add(i)
        found = np.asarray(mapped(shard.path)) if shard.path.suffix == ".npy" else zarr_array(shard.path)
        if found.shape != (shard.rows, *self.shape[1:]):
            raise DataError(f"{shard.path} has changed: it held rows {shard.rows}, and now has shape {found.shape}.")
        self._mapped[i] = found
        if len(self._mapped) > MAPPED:
            self._mapped.popitem(last=False)
        return found


Rows = np.ndarray | Sharded


def mapped(path: Path) -> np.ndarray:
    """An array on file, read where it lies."""
    fault = f"{path} is not a .npy file of numbers, or is cut short"
    with parsing(fault), np.errstate(over="raise"):  # of a shape that is no shape
        return np.load(path, mmap_mode="r", allow_pickle=False)


def zarr_array(path: Path) -> Any:
    """An array or a group in a zarr folder, or a sentence."""
    import zarr

    with parsing(f"{path} is not a zarr array or group, or is damaged"):
        return zarr.open(path, mode="r")


def of_zarr(path: Path) -> Any:
    """The array of a zarr folder, or a dict of those of a group, read as they are needed."""
    found = zarr_array(path)
    if not hasattr(found, "dtype"):
        names = sorted(name for name, _ in found.arrays())
        if not names:
            raise DataError(f"{path} is a zarr group without arrays; expected one at least.")
        return {name: of_zarr(path / name) for name in names}
    if not found.shape or found.dtype.kind not in "fiub":
        raise DataError(f"{path} holds {found.dtype}, shape {found.shape}; expected rows of numbers.")
    return Sharded([Shard(path, found.shape[0])], found.shape[1:], found.dtype)


def hashed(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def naturally(path: Path) -> list[Any]:
    """The key that sorts part-2 before part-10.

    >>> sorted(map(Path, ["b-10.npy", "b-2.npy", "a.npy"]), key=naturally)[1].name
    'b-2.npy'
    """
    return [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in re.split(r"(\d+)", str(path))]


def is_pattern(path: str | Path) -> bool:
    """Whether a path names several files, by \\*, ? or [...]; a file of that very name comes first."""
    return glob.has_magic(str(path)) and not Path(path).exists()


def matching(pattern: str | Path) -> Rows:
    """The .npy files that a pattern such as "shards/\\*.npy" matches as one array, numbers in their names in order."""
    paths = sorted(map(Path, glob.glob(str(pattern))), key=naturally)
    if not paths:
        raise DataError(f"No file matches {pattern}. Expected .npy files, such as those that tr.pack writes.")
    if other := [path for path in paths if path.suffix != ".npy"]:
        raise DataError(f"{pattern} matches {other[0].name}; expected .npy files alone: end it with *.npy, or tr.pack.")
    folders = {path.parent for path in paths}
    packed_in = {folder: of_folder(folder) for folder in folders if manifest_of(folder) is not None}
    if len(folders) == 1 and packed_in:  # the folder knows more of them, if it is all of them
        whole = packed_in[paths[0].parent]
        if isinstance(whole, Sharded) and [shard.path for shard in whole.shards] == paths:
            return whole
    return of_files(paths)


def of_files(paths: Sequence[Path]) -> Sharded:
    """Files of rows, one behind the other; a sentence about the first that is unlike the first."""
    heads = [(path, *header(path)) for path in paths]
    first = heads[0]
    for path, shape, dtype in heads:
        if (shape[1:], dtype) != (first[1][1:], first[2]):
            raise DataError(
                f"{path} holds rows of shape {shape[1:]} and type {dtype}; those of {first[0]} have shape "
                f"{first[1][1:]} and type {first[2]}. Expected one shape and type: leave it out, or convert it."
            )
    there = [Shard(path, shape[0]) for path, shape, _ in heads if shape[0]]
    if not there:
        raise DataError(f"{paths[0]} and what follows it hold no rows; expected at least one.")
    return Sharded(there, first[1][1:], first[2])


def header(path: Path) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of a .npy file, whose length is what they say; its rows are not read."""
    try:
        with open(path, "rb") as file, np.errstate(over="raise"):
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"it is of version {version}")
            first = version == (1, 0)
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            wanted = file.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize
    except Exception as error:
        raise DataError(f"{path} is not a .npy file of numbers, or is cut short: {error}.") from error
    if not shape or dtype.kind not in "fiub" or (fortran and len(shape) > 1):
        what = "in Fortran's order" if fortran else f"of type {dtype}, shape {shape}"
        raise DataError(f"{path} holds an array {what}; expected rows of numbers, one behind the other.")
    if path.stat().st_size < wanted:
        raise DataError(f"{path} is cut short: its header says {wanted} bytes, and it has {path.stat().st_size}.")
    return shape, dtype


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """What ``pack`` wrote about a folder of shards; None of any other; a DataError of one that is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        about, contents = read_sealed(path)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    return about if about.get("kind") == KIND and contents is not None else None


def of_folder(folder: Path) -> Any:
    """What a packed folder holds: an array, or a dict of arrays by name. Sizes and headers are checked here."""
    about = manifest_of(folder)
    if about is None:
        inner = manifest_of(folder.parent)
        if inner is not None and folder.name in inner["arrays"]:  # one array of several
            return _array(folder.parent, inner, folder.name)
        if found := sorted(folder.glob("*.npy"), key=naturally):
            return of_files(found)
        raise DataError(
            f"{folder} is a folder without {MANIFEST} or .npy files. Expected shards, such as tr.pack writes."
        )
    arrays = {name: _array(folder, about, name) for name in about["arrays"]}
    return arrays[""] if list(arrays) == [""] else arrays


def roles(folder: Path) -> tuple[Any, Any, Any] | None:
    """(y, given, weights) of a table that was packed with its encoder; None of any other folder."""
    about = manifest_of(folder)
    if about is None or about.get("encoder") is None:
        return None
    arrays = {name: _array(folder, about, name) for name in about["arrays"]}
    y, weights = arrays.pop("y"), arrays.pop("weights", None)
    return y, arrays["x"] if list(arrays) == ["x"] else arrays, weights


def last_apart(rows: Rows, share: float) -> tuple[Rows, Rows | None]:
    """Rows without the last files, and those files, which hold about ``share`` of them; None where there is but one.

    Files that ``pack`` wrote are random parts of the rows.
    """
    if not isinstance(rows, Sharded) or len(rows.shards) < 2 or share == 0:
        return rows, None
    last = min(max(1, round(share * len(rows.shards))), len(rows.shards) - 1)
    halves = (rows.shards[:-last], rows.shards[-last:])
    first, rest = (Sharded(half, rows.shape[1:], rows.dtype, rows.sound, rows.shuffled) for half in halves)
    return first, rest


def _array(folder: Path, about: dict[str, Any], name: str) -> Sharded:
    own = about["arrays"][name]
    shape, dtype = tuple(own["shape"]), np.dtype(own["dtype"])
    shards = [Shard(folder / name / each["name"], each["rows"], each["sha256"][name]) for each in about["shards"]]
    for shard in shards:
        if not shard.path.is_file():
            raise DataError(f"{shard.path} is missing, which {folder / MANIFEST} names. Restore it, or pack again.")
        found = header(shard.path)
        if found != ((shard.rows, *shape), dtype):
            raise DataError(
                f"{shard.path} holds {found[1]}{list(found[0])}; {folder / MANIFEST} says {dtype}"
                f"{[shard.rows, *shape]}. Restore it, or pack again."
            )
    return Sharded(shards, shape, dtype, own["sound"], True)
