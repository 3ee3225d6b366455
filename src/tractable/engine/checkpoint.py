"""Checkpoints that survive a kill, a power cut, a full disk and a flipped bit."""

import hashlib
import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tractable.core.errors import CheckpointError
from tractable.core.sealed import FORMAT, plain, sealed, unsealed
from tractable.core.words import tell
from tractable.core.writing import disk_errors, refuse_links, sync, write_synced

_OWN_ENTRIES = ("step", "arrays", "format", "npz_bytes", "sha256")
_PIECE = 2**22  # bytes hashed or read at a time
_SLACK = 2**20  # bytes for the manifest, the headers and the folder's own entry


def save(folder: str | Path, arrays: Mapping[str, np.ndarray], manifest: dict, *, step: int, keep: int = 2) -> Path:
    """Write ``folder/step-<step>/``: ``arrays.npz`` (no pickles) and ``manifest.json``, whole or not at all.

    Deletes all but the newest ``keep``, and checkpoints of later steps: they belong to an abandoned branch, and
    ``load`` would take them for the newest. Saving a step again replaces it. One run owns a folder at a time.

    Args:
        folder: made if missing.
        arrays: numbers and booleans by name; a key array goes in as its ``key_data``.
        manifest: whatever JSON can hold; ``load`` returns it, tuples as lists.
        step: the absolute step reached, >= 0.
        keep: how many checkpoints stay, >= 1.

    Raises:
        CheckpointError: something cannot be stored, or the disk is full. Earlier checkpoints stay as they are.
    """
    folder, step = Path(folder), int(step)
    if step < 0 or keep < 1:
        raise CheckpointError(f"save(step, keep) needs step >= 0 and keep >= 1; got {step} and {keep}.")
    arrays = {name: _storable(name, array) for name, array in arrays.items()}
    entries = _entries(arrays, manifest, step)
    final = folder / f"step-{step:012d}"
    refuse_links(folder)
    with disk_errors(final):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(".tmp-*"):  # what a killed process left
            own = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path, ignore_errors=True) if own else path.unlink(missing_ok=True)
        needed, free = sum(array.nbytes for array in arrays.values()) + _SLACK, shutil.disk_usage(folder).free
        if free < needed:
            raise CheckpointError(
                f"A checkpoint in {folder} needs {needed} bytes; {free} are free. Free some space or choose another "
                "folder; checkpoints written before are untouched."
            )
        tmp = folder / f".tmp-{final.name}"
        try:
            _write(tmp, arrays, entries)
            _discard(final)
            os.rename(tmp, final)
            sync(folder)
        finally:
            shutil.rmtree(tmp, ignore_errors=True)
        written = _checkpoints(folder)
        later = [path for path in written if _step(path) > step]
        for path in later + written[: len(written) - len(later)][:-keep]:
            _discard(path)
    return final


def load(folder: str | Path) -> tuple[int, dict[str, np.ndarray], dict] | None:
    """Step, arrays and manifest of the newest checkpoint whose checksums all hold; None if the folder has none.

    Warns:
        TractableWarning: newer checkpoints were damaged and skipped; names file and array.

    Raises:
        CheckpointError: all checkpoints are damaged.
    """
    damage = []
    for path in reversed(_checkpoints(Path(folder))):
        try:
            step, arrays, manifest = _read(path)
        except CheckpointError as error:
            damage.append(str(error))
            continue
        if damage:
            tell(
                f"Expected the newest checkpoint whole; got: {' '.join(damage)} The run goes on from the one "
                f"before, at step {step}; the steps since are done again. Check the disk."
            )
        return step, arrays, manifest
    if damage:
        raise CheckpointError(
            f"Expected one whole checkpoint in {folder}; all {len(damage)} are damaged: {' '.join(damage)} "
            "Restore the folder from a copy, or start again in an empty one."
        )
    return None


def differences(saved: Mapping, now: Mapping) -> list[str]:
    """The differences between two manifests, a line each, nested names joined by dots.

    >>> differences({"method": {"step_size": 0.1}}, {"method": {"step_size": 0.2}})
    ['method.step_size: saved 0.1, now 0.2']
    """
    return list(_differences(plain(saved), plain(now), ""))


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names (sorted), dtypes, shapes and bytes; reads some rows at a time, for memory maps."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.hasobject:
            raise CheckpointError(f"Expected an array of numbers; '{name}' has dtype {array.dtype}.")
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        array = np.atleast_1d(array)
        rows = max(1, _PIECE // max(1, array[:1].nbytes))
        for start in range(0, len(array), rows):
            digest.update(_bytes_of(np.ascontiguousarray(array[start : start + rows])).data)
    return digest.hexdigest()


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")
    # Objects would need pickle; bfloat16 and similar dtypes come back from .npz as raw bytes.
    if array.dtype.kind not in "biufc" or array.dtype.isbuiltin != 1:
        raise CheckpointError(
            f"A checkpoint holds numbers and booleans in numpy's own dtypes; '{name}' has dtype "
            f"{array.dtype}. Convert it first (bfloat16 to float32, a key to its key_data)."
        )
    if not name.isprintable() or name in ("", "file", "allow_pickle"):  # np.savez's own arguments
        raise CheckpointError(f"An array cannot be saved under the name {name!r}. Choose another one.")
    return array


def _entries(arrays: dict[str, np.ndarray], manifest: dict, step: int) -> dict:
    if taken := sorted(set(manifest) & set(_OWN_ENTRIES)):
        raise CheckpointError(f"The manifest's entries {taken} are the checkpoint's own. Rename them.")
    about = {
        name: {"sha256": fingerprint({name: a}), "shape": list(a.shape), "dtype": a.dtype.str, "bytes": a.nbytes}
        for name, a in arrays.items()
    }
    return {**plain(manifest), "step": step, "arrays": about, "format": FORMAT}


def _write(tmp: Path, arrays: dict[str, np.ndarray], entries: dict) -> None:
    tmp.mkdir()
    npz = tmp / "arrays.npz"
    with open(npz, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    sync(npz)
    entries = sealed({**entries, "npz_bytes": npz.stat().st_size})
    write_synced(tmp / "manifest.json", json.dumps(entries, indent=1).encode())
    sync(tmp)


def _discard(path: Path) -> None:
    """Delete a checkpoint, renamed first: a half-deleted one must not have a checkpoint's name."""
    if os.path.lexists(path):
        grave = path.with_name(f".tmp-old-{path.name}")
        os.rename(path, grave)
        shutil.rmtree(grave, ignore_errors=True)


def _checkpoints(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-[0-9]{12,18}", path.name)]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _read(path: Path) -> tuple[int, dict[str, np.ndarray], dict]:
    npz, where = path / "arrays.npz", str(path / "manifest.json")
    arrays: dict[str, np.ndarray] = {}
    # The files may be anybody's: any error in parsing them means that they are not as written.
    try:
        entries = unsealed(json.loads((path / "manifest.json").read_bytes()))
        if entries["format"] != FORMAT or entries["step"] != _step(path):
            raise ValueError(f"it says format {entries['format']}, step {entries['step']}")
        where = str(npz)
        length = npz.stat().st_size
        if length != entries["npz_bytes"]:
            raise ValueError(f"expected {entries['npz_bytes']} bytes, found {length}")
        if sum(about["bytes"] for about in entries["arrays"].values()) > length:
            raise ValueError(f"the manifest claims more than the file's {length} bytes")
        with zipfile.ZipFile(npz) as archive:
            for name, about in entries["arrays"].items():
                where = f"{npz}, array '{name}'"
                arrays[name] = _read_array(archive, name, about, length)
    except MemoryError:
        raise
    except Exception as error:
        raise CheckpointError(f"{where} is damaged ({error or type(error).__name__}).") from error
    manifest = {name: entry for name, entry in entries.items() if name not in _OWN_ENTRIES}
    return entries["step"], arrays, manifest


def _read_array(archive: zipfile.ZipFile, name: str, about: dict, length: int) -> np.ndarray:
    """One array. Memory is claimed only after the file's length is checked; the .npy header is not parsed."""
    dtype, shape, size = np.dtype(about["dtype"]), tuple(about["shape"]), about["bytes"]
    member = archive.getinfo(f"{name}.npy")
    if dtype.kind not in "biufc" or min(shape, default=0) < 0 or size != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the manifest claims {size} bytes for shape {shape} of {dtype}")
    if member.compress_type != zipfile.ZIP_STORED or not size < member.file_size <= length:
        raise ValueError(f"its header claims {member.file_size} bytes; expected {size} of {length}")
    array = np.empty(shape, dtype)
    target, filled = _bytes_of(array), 0
    with archive.open(member) as stream:
        stream.read(member.file_size - size)
        while piece := stream.read(min(_PIECE, size - filled)):
            target[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
    if filled != size or fingerprint({name: array}) != about["sha256"]:
        raise ValueError("its checksum does not hold")
    return array


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _differences(saved: dict, now: dict, prefix: str) -> Iterator[str]:
    for key in sorted({**saved, **now}):
        old, new = saved.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif _text(saved, key) != _text(now, key):
            yield f"{prefix}{key}: {_text(saved, key, 'saved ')}, now {_text(now, key)}"


def _text(entries: dict[str, Any], key: str, prefix: str = "") -> str:
    return f"{prefix}{entries[key]!r}" if key in entries else "not saved" if prefix else "missing"
