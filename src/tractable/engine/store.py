"""Draws on disk: a zarr v3 array for each name, (chain, draw, ...), each chunk with its own CRC32C."""

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
from tractable.core.sealed import sealed, unsealed
from tractable.core.settings import is_whole
from tractable.core.writing import disk_errors, refuse_links, refuse_links_in, sync, write_atomically

Field = tuple[tuple[int, ...], str]  # shape and dtype of one draw of one chain


@dataclass(frozen=True)
class DrawStore:
    """A folder of draws, made by ``create`` or ``open``; one run writes at a time.

    A chunk is one uncompressed file with ``chunk`` draws of all chains; only an incomplete last chunk is written again.
    Draws count once the group's attributes hold their number; these are replaced atomically after the chunks have
    reached the disk, so an append that was killed leaves nothing that counts, and the next one overwrites it. The
    attributes also hold the CRC32C of all full chunks, so that no other valid chunk can take a chunk's place.

    Attributes:
        path: the zarr group's folder; any zarr v3 reader opens it too.
        chains: chains a draw.
        chunk: draws a file.
        fields: shape and dtype of one draw of one chain, by name.
    """

    path: Path
    chains: int
    chunk: int
    fields: Mapping[str, Field]

    @staticmethod
    def create(path: str | Path, fields: Mapping[str, Field], *, chains: int, chunk: int) -> "DrawStore":
        """An empty store in a folder that does not exist yet.

        Raises:
            CheckpointError: the folder exists, or a field cannot be stored.
        """
        path = Path(path)
        refuse_links(path)
        if path.exists():
            raise CheckpointError(f"{path} exists already. Open it, or choose another folder.")
        fields = {name: (tuple(shape), np.dtype(dtype).str) for name, (shape, dtype) in fields.items()}
        tmp = path.with_name(f".tmp-{path.name}")  # a half-made store never has the final name
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
                    chunk_key_encoding={"name": "default", "separator": "."},  # one folder a field
                    dimension_names=("chain", "draw", *(f"{name}_dim_{i}" for i in range(len(shape)))),
                )
            store._commit(0, {name: [] for name in fields})
            os.rename(tmp, path)
            sync(path.parent)
        return replace(store, path=path)

    @staticmethod
    def open(path: str | Path) -> "DrawStore":
        """The store in a folder, its description checked against its checksum and its arrays.

        Raises:
            CheckpointError: no store, or a damaged description. Draws are checked on read.
        """
        about = _description(Path(path))
        try:
            fields = {name: (tuple(shape), dtype) for name, (shape, dtype) in about["fields"].items()}
            store = DrawStore(Path(path), about["chains"], about["chunk"], fields)
            problem = _problem(store) or (not is_whole(about["count"], 0) and f"{about['count']!r} draws")
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # sealed, but not by ``create``
            problem = repr(error)
        if problem:
            raise CheckpointError(f"Expected {path} to describe draws, got: {problem}. Check the path.")
        for name in store.fields:
            store._array(name)
        return store

    @property
    def count(self) -> int:
        """Number of draws per chain safely on disk."""
        return _description(self.path)["count"]

    def append(self, draws: Mapping[str, np.ndarray]) -> None:
        """Add n draws: for every field an array (chain, n, ...) of the field's dtype.

        Raises:
            CheckpointError: an array does not fit, the last chunk is damaged, a file is a link, or the disk is full;
                ``count`` stays.
        """
        refuse_links_in(self.path)
        lengths = {block.shape[1] for block in draws.values() if block.ndim > 1}
        wanted = {k: (self.chains, *lengths, *shape, np.dtype(t)) for k, (shape, t) in self.fields.items()}
        found = {name: (*block.shape, block.dtype) for name, block in draws.items()}
        if len(lengths) != 1 or found != wanted:
            raise CheckpointError(f"Expected draws {wanted} with one number of draws; got {found}.")
        start = self.count
        stop = start + lengths.pop()
        with disk_errors(self.path):
            for name, block in draws.items():
                array = self._array(name)
                if start % self.chunk:
                    self.read(name, start - start % self.chunk, start)  # is about to be merged with new draws
                self._resize(array, name, start)  # drops what a killed append left
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
                f"{self.path} holds {self.count} draws a chain and cannot be cut to {count}. Checkpoint and "
                "draws belong to different runs, or draws were lost: start again in an empty folder."
            )
        with disk_errors(self.path):
            known = _description(self.path).get("sums", {})
            self._commit(count, {name: sums[: count // self.chunk] for name, sums in known.items()})
            for name in self.fields:
                self._resize(self._array(name), name, count)
            for leftover in self.path.rglob("*.partial"):  # zarr's, from a write that was killed
                leftover.unlink(missing_ok=True)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Draws start ≤ i < stop of one field, shape (chain, stop − start, ...).

        Raises:
            CheckpointError: a chunk is missing, has the wrong length, or fails its CRC; names the file.
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
        # Before memory is claimed; and zarr would read a missing file as zeros.
        for file in self._files(name, start, stop):
            found = file.stat().st_size if file.is_file() else "no file"
            if found != expected:
                raise self._damaged(file, name, f"expected {expected} bytes, found {found}")
        known = _description(self.path).get("sums", {}).get(name, [])  # [] if an earlier version wrote it
        draws = np.empty((self.chains, stop - start, *shape), dtype)
        for k, file in enumerate(self._files(name, start, stop), start // self.chunk):
            low, high = max(start, k * self.chunk), min(stop, (k + 1) * self.chunk)
            if k < len(known) and _crc(file) != known[k]:
                raise self._damaged(file, name, "it is not the chunk that was written there")
            try:
                draws[:, low - start : high - start] = array[:, low:high]
            except ValueError as error:
                raise self._damaged(file, name, "its CRC32C does not hold") from error
        return draws

    def _array(self, name: str) -> zarr.Array:
        shape, dtype = self.fields[name]
        # Without write_empty_chunks a chunk of zeros would have no file, like a lost one.
        try:
            with zarr.config.set({"array.write_empty_chunks": True}):
                array = zarr.open_array(self.path / name, mode="r+")
            codecs = [type(codec) for codec in getattr(array.metadata, "codecs", ())]
        except Exception as error:  # zarr may raise anything for a damaged file
            raise self._damaged(self.path / name / "zarr.json", name, str(error)) from error
        found = (array.shape[0], *array.shape[2:], *array.chunks, array.dtype.str, codecs)
        wanted = (self.chains, *shape, self.chains, self.chunk, *shape, dtype, [BytesCodec, Crc32cCodec])
        if found != wanted or array.shape[1] < self.count:
            raise self._damaged(self.path / name / "zarr.json", name, f"it describes another array: {found}")
        return array

    def _files(self, name: str, start: int, stop: int) -> Iterator[Path]:
        """The files of the chunks with draws start ≤ i < stop; lazily, as a forged count may be huge."""
        chunks = range(start // self.chunk, -(-stop // self.chunk)) if start < stop else ()
        rest = ".0" * len(self.fields[name][0])
        return (self.path / name / f"c.0.{k}{rest}" for k in chunks)

    def _resize(self, array: zarr.Array, name: str, length: int) -> None:
        if array.shape[1] != length:  # shrinking deletes the files past the end
            array.resize((self.chains, length, *self.fields[name][0]))

    def identity(self, count: int) -> str:
        """SHA-256 of the first ``count`` draws' description and full chunks' sums; "" if an earlier version wrote them.

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
        """CRC32C of the full chunks of the first ``count`` draws; known ones are not read again."""
        known, full, found = _description(self.path).get("sums", {}), count // self.chunk, {}
        for name in self.fields:
            sums = known.get(name, [])[:full]
            new = self._files(name, len(sums) * self.chunk, full * self.chunk)
            found[name] = sums + [_crc(file) for file in new]
        return found

    def _commit(self, count: int, sums: dict[str, list[int]]) -> None:
        """Record ``count`` draws in the group's metadata file, zarr.json."""
        about = {"chains": self.chains, "chunk": self.chunk, "fields": dict(self.fields), "count": count, "sums": sums}
        group = {"zarr_format": 3, "node_type": "group", "attributes": sealed(about)}
        write_atomically(self.path / "zarr.json", json.dumps(group, indent=1).encode())

    def _damaged(self, file: Path, name: str, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{file}, array '{name}', is damaged ({reason}). Restore it from a copy, or truncate the draws "
            "to before it and resume from an earlier checkpoint."
        )


def _crc(file: Path) -> int:
    """The CRC32C at the end of a chunk's file."""
    with open(file, "rb") as chunk:
        chunk.seek(-4, os.SEEK_END)
        return int.from_bytes(chunk.read(4), "little")


def _description(path: Path) -> dict:
    file = path / "zarr.json"
    if not file.is_file():
        raise CheckpointError(f"Expected a folder of draws in {path}, found none. Check the path.")
    try:
        about = unsealed(json.loads(file.read_bytes())["attributes"])
        for sums in about.get("sums", {}).values():
            if not (isinstance(sums, list) and all(is_whole(crc, 0) for crc in sums)):
                raise ValueError("its sums are none")
        return about
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged ({error}). Restore it from a copy.") from error


def _problem(store: DrawStore) -> str | None:
    """What is wrong with a description, or None; names become folders, so they may not point elsewhere."""
    if not (is_whole(store.chains) and is_whole(store.chunk) and store.fields):
        return f"needs chains >= 1, chunk >= 1 and a field; got {store}"
    for name, (shape, dtype) in store.fields.items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            return f"a field's name is letters, digits, '_', '.', '-'; got {name!r}"
        if np.dtype(dtype).kind not in "biufc" or np.dtype(dtype).isbuiltin != 1 or min(shape, default=1) < 1:
            return f"field {name!r} needs numbers in numpy's own dtypes and sides >= 1; got {dtype}, {shape}"
    return None
