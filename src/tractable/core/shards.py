"""Arrays in files: one file, or several whose rows follow one another; a file is mapped when a row is first read."""

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
MAPPED = 256  # largest number of files mapped at a time; a process may have about a thousand files open


class Shard(NamedTuple):
    """A file of rows."""

    path: Path
    rows: int
    sha256: str | None = None  # checksum of the file; None if unknown


class Sharded:
    """Rows of several files as one array (n, ...), in the order of the files.

    Only headers are read at first. A file is mapped when one of its rows is first read, after a check of its checksum
    if that is known; a process thus opens only the files that hold its rows. Slices, row numbers (of 64 bits) and masks
    select rows as they do for a memory map.

    Attributes:
        sound: whether every number is finite and fits in 32 bits, as checked when the files were written.
        shuffled: whether the rows are in random order.
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
            first, *rest = index or (slice(None),)
            entries = tuple(rest) if isinstance(first, int | np.integer) else (slice(None), *rest)
            return self[first][entries] if rest else self[first]
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._slice(start, max(start, stop)) if step == 1 else self._rows(np.arange(start, stop, step))
        rows = np.asarray(index)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of {rows.shape} for {len(self)} rows")
            rows = np.flatnonzero(rows)
        elif rows.dtype.kind not in "iu" and rows.size:
            raise IndexError(f"rows are numbered by integers; got {rows.dtype}")
        return self._rows(rows.astype(np.int64))

    def _slice(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop), without a copy if they are in one file."""
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
        """The rows of file ``i``, mapped; a DataError if the file has changed."""
        if i in self._mapped:
            self._mapped.move_to_end(i)
            return self._mapped[i]
        shard = self.shards[i]
        if shard.sha256 is not None and i not in self._checked:
            if not shard.path.is_file() or hash_file(shard.path) != shard.sha256:
                raise DataError(
                    f"{shard.path} has changed since it was packed: its checksum does not match. Restore it from a "
                    "copy, or pack the source again."
                )
            self._checked.add(i)
        rows = np.asarray(map_file(shard.path)) if shard.path.suffix == ".npy" else zarr_array(shard.path)
        expected = (shard.rows, *self.shape[1:])
        if rows.shape != expected:
            raise DataError(f"{shard.path} has changed: expected shape {expected}; got {rows.shape}. Restore it.")
        self._mapped[i] = rows
        if len(self._mapped) > MAPPED:
            self._mapped.popitem(last=False)
        return rows


Rows = np.ndarray | Sharded


def map_file(path: Path) -> np.ndarray:
    """The array of a .npy file, memory-mapped."""
    fault = f"{path} is not a .npy file of numbers, or is cut short"
    with parsing(fault), np.errstate(over="raise"):  # a damaged shape may overflow
        return np.load(path, mmap_mode="r", allow_pickle=False)


def zarr_array(path: Path) -> Any:
    """The array or the group of a zarr folder; a DataError if there is none."""
    import zarr

    with parsing(f"{path} is not a zarr array or group, or is damaged"):
        return zarr.open(path, mode="r")


def of_zarr(path: Path) -> Any:
    """The array of a zarr folder, or a dict of the arrays of a group by name; rows are read when they are needed."""
    array = zarr_array(path)
    if not hasattr(array, "dtype"):
        names = sorted(name for name, _ in array.arrays())
        if not names:
            raise DataError(f"{path} is a zarr group without arrays; expected one at least.")
        return {name: of_zarr(path / name) for name in names}
    if not array.shape or array.dtype.kind not in "fiub":
        raise DataError(f"{path} holds {array.dtype}, shape {array.shape}; expected rows of numbers.")
    return Sharded([Shard(path, array.shape[0])], array.shape[1:], array.dtype)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def naturally(path: Path) -> list[Any]:
    """A sort key by which part-2 comes before part-10.

    >>> sorted(map(Path, ["b-10.npy", "b-2.npy", "a.npy"]), key=naturally)[1].name
    'b-2.npy'
    """
    return [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in re.split(r"(\d+)", str(path))]


def is_pattern(path: str | Path) -> bool:
    """Whether a path is a pattern with \\*, ? or [...], and not the name of a file that exists."""
    return glob.has_magic(str(path)) and not Path(path).exists()


def matching(pattern: str | Path) -> Rows:
    """The .npy files that match a pattern such as "shards/\\*.npy", as one array; part-2 comes before part-10."""
    paths = sorted(map(Path, glob.glob(str(pattern))), key=naturally)
    if not paths:
        raise DataError(f"No file matches {pattern}. Expected .npy files, such as those that tr.pack writes.")
    if other := [path for path in paths if path.suffix != ".npy"]:
        raise DataError(f"{pattern} matches {other[0].name}; expected .npy files only: end the pattern with *.npy.")
    folder = paths[0].parent
    packed = None if manifest_of(folder) is None else of_folder(folder)
    if isinstance(packed, Sharded) and [shard.path for shard in packed.shards] == paths:
        return packed  # with the checksums of the manifest
    return of_files(paths)


def of_files(paths: Sequence[Path]) -> Sharded:
    """The rows of .npy files as one array; a DataError about the first file of another shape or type."""
    heads = [(path, *header(path)) for path in paths]
    first = heads[0]
    for path, shape, dtype in heads:
        if (shape[1:], dtype) != (first[1][1:], first[2]):
            raise DataError(
                f"{path} holds rows of shape {shape[1:]} and type {dtype}; expected shape {first[1][1:]} and type "
                f"{first[2]}, as in {first[0]}. Leave the file out, or convert it."
            )
    shards = [Shard(path, shape[0]) for path, shape, _ in heads if shape[0]]
    if not shards:
        raise DataError(f"{paths[0]} and the files that follow hold no rows; expected at least one.")
    return Sharded(shards, first[1][1:], first[2])


def header(path: Path) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and type of a .npy file, from its header; a DataError if the file is too short for them."""
    fault = f"{path} is not a .npy file of numbers, or is cut short"
    with parsing(fault), open(path, "rb") as file, np.errstate(over="raise"):
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"it has version {version}")
        read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, fortran, dtype = read(file)
        length = file.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not shape or dtype.kind not in "fiub" or (fortran and len(shape) > 1):
        kind = "in Fortran's order" if fortran else f"of type {dtype}, shape {shape}"
        raise DataError(f"{path} holds an array {kind}; expected rows of numbers in C order.")
    if path.stat().st_size < length:
        raise DataError(f"{path} is cut short: expected {length} bytes by its header; got {path.stat().st_size}.")
    return shape, dtype


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The manifest that ``pack`` wrote into a folder of shards; None for another folder.

    Raises:
        DataError: the manifest is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        about, contents = read_sealed(path)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    return about if about.get("kind") == KIND and contents is not None else None


def of_folder(folder: Path) -> Any:
    """The array of a packed folder, or a dict of its arrays by name, after a check of the files' headers."""
    about = manifest_of(folder)
    if about is None:
        parent = manifest_of(folder.parent)
        if parent is not None and folder.name in parent["arrays"]:  # one of the packed arrays
            return _array(folder.parent, parent, folder.name)
        if files := sorted(folder.glob("*.npy"), key=naturally):
            return of_files(files)
        raise DataError(
            f"{folder} is a folder without {MANIFEST} or .npy files. Expected shards, such as those that tr.pack "
            "writes."
        )
    arrays = {name: _array(folder, about, name) for name in about["arrays"]}
    return arrays[""] if list(arrays) == [""] else arrays


def roles(folder: Path) -> tuple[Any, Any, Any] | None:
    """(y, given, weights) of a table that was packed with its encoder; None for another folder."""
    about = manifest_of(folder)
    if about is None or about.get("encoder") is None:
        return None
    arrays = {name: _array(folder, about, name) for name in about["arrays"]}
    y, weights = arrays.pop("y"), arrays.pop("weights", None)
    return y, arrays["x"] if list(arrays) == ["x"] else arrays, weights


def last_apart(rows: Rows, share: float) -> tuple[Rows, Rows | None]:
    """The rows of all but the last files, and those of the last files, about ``share`` of all; or (all rows, None).

    All rows come back if they are not in several files, or if ``share`` is 0. The last files are a random part of the
    rows if ``pack`` wrote them.
    """
    if not isinstance(rows, Sharded) or len(rows.shards) < 2 or share == 0:
        return rows, None
    last = min(max(1, round(share * len(rows.shards))), len(rows.shards) - 1)
    parts = (rows.shards[:-last], rows.shards[-last:])
    first, rest = (Sharded(part, rows.shape[1:], rows.dtype, rows.sound, rows.shuffled) for part in parts)
    return first, rest


def _array(folder: Path, about: dict[str, Any], name: str) -> Sharded:
    """The array ``name`` of a packed folder with manifest ``about``."""
    array = about["arrays"][name]
    shape, dtype = tuple(array["shape"]), np.dtype(array["dtype"])
    shards = [Shard(folder / name / file["name"], file["rows"], file["sha256"][name]) for file in about["shards"]]
    for shard in shards:
        if not shard.path.is_file():
            raise DataError(f"{shard.path} is missing, which {folder / MANIFEST} names. Restore it, or pack again.")
        head = header(shard.path)
        if head != ((shard.rows, *shape), dtype):
            raise DataError(
                f"{shard.path} holds {head[1]}{list(head[0])}; expected {dtype}{[shard.rows, *shape]}, as in "
                f"{folder / MANIFEST}. Restore it, or pack again."
            )
    return Sharded(shards, shape, dtype, array["sound"], True)
