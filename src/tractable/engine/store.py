"""Draws on disk: one zarr v3 array (chain, draw, ...) for each name.

An array is divided into chunks, each a file with its own checksum, a CRC32C.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec

from tractable.core.errors import CheckpointError
from tractable.core.sealed import seal, unseal
from tractable.core.settings import is_whole
from tractable.core.writing import disk_errors, refuse_links, refuse_links_in, sync, write_atomically

Field = tuple[tuple[int, ...], str]  # the shape and dtype of one draw of one chain


@dataclass(frozen=True)
class DrawStore:
    """A folder of draws, made by ``create`` or ``open``; only one run may write to it at a time.

    A chunk is one uncompressed file with ``chunk`` draws of all chains. Appending writes no chunk again, except a last
    chunk that was not full. The attributes of the zarr group hold the number of valid draws. They are replaced
    atomically after the chunks have reached the disk. So draws of an append that was killed are not valid, and the next
    append overwrites them. The attributes also hold the CRC32C of all full chunks. This shows if a chunk's file was
    replaced by another valid chunk.

    Attributes:
        path: the folder of the zarr group; any reader of zarr v3 can open it.
        chains: the number of chains.
        chunk: the number of draws in a file.
        fields: the shape and dtype of one draw of one chain, by name.
    """

    path: Path
    chains: int
    chunk: int
    fields: Mapping[str, Field]

    @staticmethod
    def create(path: str | Path, fields: Mapping[str, Field], *, chains: int, chunk: int) -> "DrawStore":
        """Make an empty store in a folder that does not exist yet.

        Raises:
            CheckpointError: the folder exists, or a field cannot be stored.
        """
        path = Path(path)
        refuse_links(path)
        if path.exists():
            raise CheckpointError(f"{path} exists already. Open it, or choose another folder.")
        fields = {name: (tuple(shape), np.dtype(dtype).str) for name, (shape, dtype) in fields.items()}
        tmp = path.with_name(f".tmp-{path.name}")  # an incomplete store never has the final name
        store = DrawStore(tmp, chains, chunk, fields)
        if problem := _problem(store):
            raise CheckpointError(f"{path} cannot be created: {problem}.")
        refuse_links_in(tmp)
        with disk_errors(path):
            group = zarr.create_group(tmp, zarr_format=3, overwrite=True)
            for name, (shape, dtype) in fields.items():
                group.create_array(
                    name,
                    shape=(chains, 0, *shape),
                    chunks=(chains, chunk, *shape),
                    dtype=dtype,
                    filters=None,
                    compressors=[Crc32cCodec()],
                    chunk_key_encoding={"name": "default", "separator": "."},  # all chunks of a field in one folder
                    dimension_names=("chain", "draw", *(f"{name}_dim_{i}" for i in range(len(shape)))),
                )
            store._commit(0, {name: [] for name in fields})
            os.rename(tmp, path)
            sync(path.parent)
        return replace(store, path=path)

    @staticmethod
    def open(path: str | Path) -> "DrawStore":
        """Open the store in a folder, and check its description against its checksum and its arrays.

        Draws are not checked until they are read.

        Raises:
            CheckpointError: the folder holds no store, or its description is damaged.
        """
        about = _description(Path(path))
        try:
            fields = {name: (tuple(shape), dtype) for name, (shape, dtype) in about["fields"].items()}
            store = DrawStore(Path(path), about["chains"], about["chunk"], fields)
            problem = _problem(store) or (not is_whole(about["count"], 0) and f"{about['count']!r} draws")
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # ``create`` did not write this description
            problem = repr(error)
        if problem:
            raise CheckpointError(f"Expected {path} to describe draws, got: {problem}. Check the path.")
        for name in store.fields:
            store._array(name)
        return store

    @property
    def count(self) -> int:
        """The number of valid draws per chain on disk."""
        return _description(self.path)["count"]

    def append(self, draws: Mapping[str, np.ndarray]) -> None:
        """Add n draws: for every field an array (chain, n, ...) of the field's dtype.

        Raises:
            CheckpointError: an array does not fit, the last chunk is damaged, a file is a link, or the disk is full.
                In all these cases ``count`` does not change.
        """
        refuse_links_in(self.path)
        lengths = {block.shape[1] for block in draws.values() if block.ndim > 1}
        expected = {k: (self.chains, *lengths, *shape, np.dtype(t)) for k, (shape, t) in self.fields.items()}
        actual = {name: (*block.shape, block.dtype) for name, block in draws.items()}
        if len(lengths) != 1 or actual != expected:
            raise CheckpointError(f"Expected draws {expected} with one number of draws; got {actual}.")
        start = self.count
        stop = start + lengths.pop()
        with disk_errors(self.path):
            for name, block in draws.items():
                array = self._array(name)
                if start % self.chunk:
                    self.read(name, start - start % self.chunk, start)  # checks the chunk before it is written again
                self._resize(array, name, start)  # drops the draws of an append that was killed
                self._resize(array, name, stop)
                array[:, start:] = block
                folder = self.path / name
                for path in (*self._files(name, start, stop), folder / "zarr.json", folder):
                    sync(path)
            self._commit(stop, self._sums(stop))

    def truncate(self, count: int) -> None:
        """Delete all draws after the first ``count``, for a run that resumes from there."""
        refuse_links_in(self.path)
        if not 0 <= count <= self.count:
            raise CheckpointError(
                f"{self.path} holds {self.count} draws a chain and cannot be cut to {count}. The checkpoint and the "
                "draws belong to different runs, or draws were lost: start again in an empty folder."
            )
        with disk_errors(self.path):
            known = _description(self.path).get("sums", {})
            self._commit(count, {name: sums[: count // self.chunk] for name, sums in known.items()})
            for name in self.fields:
                self._resize(self._array(name), name, count)
            for leftover in self.path.rglob("*.partial"):  # zarr leaves these files if it is killed while it writes
                leftover.unlink(missing_ok=True)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Read draws start ≤ i < stop of one field, an array (chain, stop − start, ...).

        Raises:
            CheckpointError: a chunk is missing, has the wrong length, or fails its checksum. The error names the file.
        """
        count = self.count
        stop = count if stop is None else stop
        if name not in self.fields or not 0 <= start <= stop <= count:
            raise CheckpointError(
                f"{self.path} holds draws 0 to {count} of {sorted(self.fields)}; got {start} to {stop} of "
                f"{name!r}. Ask for some of these."
            )
        array, (shape, dtype) = self._array(name), self.fields[name]
        expected = self.chains * self.chunk * math.prod(shape) * np.dtype(dtype).itemsize + 4
        # Sizes are checked before memory is allocated. Moreover, zarr would read a missing file as zeros.
        for file in self._files(name, start, stop):
            size = f"{file.stat().st_size} bytes" if file.is_file() else "no file"
            if size != f"{expected} bytes":
                raise self._damaged(file, name, f"expected {expected} bytes, got {size}")
        known = _description(self.path).get("sums", {}).get(name, [])  # [] if an earlier version wrote the store
        draws = np.empty((self.chains, stop - start, *shape), dtype)
        for k, file in enumerate(self._files(name, start, stop), start // self.chunk):
            low, high = max(start, k * self.chunk), min(stop, (k + 1) * self.chunk)
            if k < len(known) and _crc(file) != known[k]:
                raise self._damaged(file, name, "it is not the chunk that was written there")
            try:
                draws[:, low - start : high - start] = array[:, low:high]
            except ValueError as error:
                raise self._damaged(file, name, "its CRC32C does not match") from error
        return draws

    def _array(self, name: str) -> zarr.Array:
        shape, dtype = self.fields[name]
        # Without write_empty_chunks zarr would write no file for a chunk of zeros, and the chunk would seem lost.
        try:
            with zarr.config.set({"array.write_empty_chunks": True}):
                array = zarr.open_array(self.path / name, mode="r+")
            codecs = [type(codec) for codec in getattr(array.metadata, "codecs", ())]
        except Exception as error:  # zarr may raise anything for a damaged file
            raise self._damaged(self.path / name / "zarr.json", name, str(error)) from error
        actual = (array.shape[0], *array.shape[2:], *array.chunks, array.dtype.str, codecs)
        expected = (self.chains, *shape, self.chains, self.chunk, *shape, dtype, [BytesCodec, Crc32cCodec])
        if actual != expected or array.shape[1] < self.count:
            raise self._damaged(self.path / name / "zarr.json", name, f"it describes another array: {actual}")
        return array

    def _files(self, name: str, start: int, stop: int) -> Iterator[Path]:
        """The files of the chunks with draws start ≤ i < stop; a generator, since a forged count could be huge."""
        chunks = range(start // self.chunk, -(-stop // self.chunk)) if start < stop else ()
        rest = ".0" * len(self.fields[name][0])
        return (self.path / name / f"c.0.{k}{rest}" for k in chunks)

    def _resize(self, array: zarr.Array, name: str, length: int) -> None:
        if array.shape[1] != length:  # shrinking an array deletes the files beyond its end
            array.resize((self.chains, length, *self.fields[name][0]))

    def identity(self, count: int) -> str:
        """The SHA-256 of the store's description, and of the checksums of all full chunks of the first ``count`` draws.

        It is "" if an earlier version wrote the store.

        Raises:
            CheckpointError: the description is damaged.
        """
        about = _description(self.path)
        if "sums" not in about:
            return ""
        saved_sums = {name: sums[: count // self.chunk] for name, sums in about["sums"].items()}
        parts = [self.chains, self.chunk, about["fields"], saved_sums]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _sums(self, count: int) -> dict[str, list[int]]:
        """The CRC32C of each full chunk of the first ``count`` draws; known checksums are not read again."""
        known, full, out = _description(self.path).get("sums", {}), count // self.chunk, {}
        for name in self.fields:
            sums = known.get(name, [])[:full]
            new = self._files(name, len(sums) * self.chunk, full * self.chunk)
            out[name] = sums + [_crc(file) for file in new]
        return out

    def _commit(self, count: int, sums: dict[str, list[int]]) -> None:
        """Record in the group's metadata file, zarr.json, that ``count`` draws are valid."""
        about = {"chains": self.chains, "chunk": self.chunk, "fields": dict(self.fields), "count": count, "sums": sums}
        group = {"zarr_format": 3, "node_type": "group", "attributes": seal(about)}
        write_atomically(self.path / "zarr.json", json.dumps(group, indent=1).encode())

    def _damaged(self, file: Path, name: str, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{file}, array '{name}', is damaged ({reason}). Restore it from a copy, or resume from a checkpoint "
            "before the draws in this file."
        )


def _crc(file: Path) -> int:
    """The CRC32C at the end of a chunk's file."""
    with open(file, "rb") as chunk:
        chunk.seek(-4, os.SEEK_END)
        return int.from_bytes(chunk.read(4), "little")


def _description(path: Path) -> dict:
    file = path / "zarr.json"
    if not file.is_file():
        raise CheckpointError(f"Expected a folder of draws in {path}; there is none. Check the path.")
    try:
        about = unseal(json.loads(file.read_bytes())["attributes"])
        for sums in about.get("sums", {}).values():
            if not (isinstance(sums, list) and all(is_whole(crc, 0) for crc in sums)):
                raise ValueError("its checksums are not numbers")
        return about
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged ({error}). Restore it from a copy.") from error


def _problem(store: DrawStore) -> str | None:
    """The fault of a description, or None. Names become folders, so they may not lead to another place on disk."""
    if not (is_whole(store.chains) and is_whole(store.chunk) and store.fields):
        return f"expected chains >= 1, chunk >= 1 and a field; got {store}"
    for name, (shape, dtype) in store.fields.items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            return f"expected a field's name of letters, digits, '_', '.' and '-'; got {name!r}"
        if np.dtype(dtype).kind not in "biufc" or np.dtype(dtype).isbuiltin != 1 or min(shape, default=1) < 1:
            return f"expected numpy's own dtypes and axes of length >= 1 in field {name!r}; got {dtype}, {shape}"
    return None
