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
from tractable.core.sealed import FORMAT, plain, seal, unseal
from tractable.core.words import tell
from tractable.core.writing import disk_errors, refuse_links, sync, write_synced

_OWN_ENTRIES = ("step", "arrays", "format", "npz_bytes", "sha256")  # entries that a caller's manifest may not have
_PIECE = 2**22  # bytes that are hashed or read at a time
_SLACK = 2**20  # bytes that a checkpoint needs beside its arrays: for the manifest, the headers and the folder


def save(folder: str | Path, arrays: Mapping[str, np.ndarray], manifest: dict, *, step: int, keep: int = 2) -> Path:
    """Write the checkpoint ``folder/step-<step>/`` completely, or not at all if something fails.

    A checkpoint is a file ``arrays.npz`` (without pickles) and a file ``manifest.json``. Saving deletes all older
    checkpoints except the newest ``keep``. It also deletes checkpoints of later steps: they belong to a run that was
    abandoned, and ``load`` would take them for the newest ones. Saving a step again replaces its checkpoint. Only one
    run may write to a folder at a time.

    Args:
        folder: made if missing.
        arrays: numbers and booleans by name; convert an array of keys with ``jax.random.key_data`` first.
        manifest: anything that JSON can hold; ``load`` returns it, with lists in place of tuples.
        step: the number of steps done since the run began, >= 0.
        keep: how many checkpoints stay, this one included, >= 1.

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
        for path in folder.glob(".tmp-*"):  # a killed process left these
            is_folder = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path, ignore_errors=True) if is_folder else path.unlink(missing_ok=True)
        needed, free = sum(array.nbytes for array in arrays.values()) + _SLACK, shutil.disk_usage(folder).free
        if free < needed:
            raise CheckpointError(
                f"A checkpoint in {folder} needs {needed} bytes; {free} are free. Free some space or choose another "
                "folder; the earlier checkpoints are unchanged."
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
    """The step, arrays and manifest of the newest undamaged checkpoint; None if the folder has no checkpoint.

    A checkpoint is undamaged if all its checksums match.

    Warns:
        TractableWarning: newer checkpoints were damaged and skipped; the warning names the file and the array.

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
                f"Expected an undamaged newest checkpoint; got: {' '.join(damage)} The run continues from the one "
                f"before, at step {step}, and repeats the steps since. Check the disk."
            )
        return step, arrays, manifest
    if damage:
        raise CheckpointError(
            f"Expected one undamaged checkpoint in {folder}; all {len(damage)} are damaged: {' '.join(damage)} "
            "Restore the folder from a copy, or start again in an empty one."
        )
    return None


def differences(saved: Mapping, now: Mapping) -> list[str]:
    """The differences between two manifests, one line for each; dots join the names of nested entries.

    >>> differences({"method": {"step_size": 0.1}}, {"method": {"step_size": 0.2}})
    ['method.step_size: saved 0.1, now 0.2']
    """
    return list(_differences(plain(saved), plain(now), ""))


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of the arrays' sorted names, dtypes, shapes and bytes.

    Only a few rows are read at a time, so an array may be a memory map of a file larger than memory.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.hasobject:
            raise CheckpointError(f"Expected an array of numbers; '{name}' has dtype {array.dtype}. Convert it first.")
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        array = np.atleast_1d(array)
        rows = max(1, _PIECE // max(1, array[:1].nbytes))
        for start in range(0, len(array), rows):
            digest.update(_bytes_of(np.ascontiguousarray(array[start : start + rows])).data)
    return digest.hexdigest()


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")
    # Objects would need pickle, and bfloat16 and similar dtypes would come back from a .npz file as raw bytes.
    if array.dtype.kind not in "biufc" or array.dtype.isbuiltin != 1:
        raise CheckpointError(
            f"A checkpoint holds numbers and booleans in numpy's own dtypes; '{name}' has dtype "
            f"{array.dtype}. Convert it first (bfloat16 to float32, a key to its key_data)."
        )
    if not name.isprintable() or name in ("", "file", "allow_pickle"):  # the last two are arguments of np.savez
        raise CheckpointError(f"An array cannot be saved under the name {name!r}. Choose another one.")
    return array


def _entries(arrays: dict[str, np.ndarray], manifest: dict, step: int) -> dict:
    if taken := sorted(set(manifest) & set(_OWN_ENTRIES)):
        raise CheckpointError(f"A checkpoint uses the names {taken} itself, so the manifest may not. Rename them.")
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
    entries = seal({**entries, "npz_bytes": npz.stat().st_size})
    write_synced(tmp / "manifest.json", json.dumps(entries, indent=1).encode())
    sync(tmp)


def _discard(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, since a partly deleted folder must not have a checkpoint's name."""
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
    # Anybody may have changed these files. Any error while they are parsed therefore means that they are damaged.
    try:
        entries = unseal(json.loads((path / "manifest.json").read_bytes()))
        if entries["format"] != FORMAT or entries["step"] != _step(path):
            raise ValueError(f"it states format {entries['format']} and step {entries['step']}")
        where = str(npz)
        length = npz.stat().st_size
        if length != entries["npz_bytes"]:
            raise ValueError(f"expected {entries['npz_bytes']} bytes, got {length}")
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
    """Read one array. Memory is allocated only after the file's length is checked; the .npy header is not parsed."""
    dtype, shape, size = np.dtype(about["dtype"]), tuple(about["shape"]), about["bytes"]
    member = archive.getinfo(f"{name}.npy")
    if dtype.kind not in "biufc" or min(shape, default=0) < 0 or size != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the manifest claims {size} bytes for shape {shape} of {dtype}")
    if member.compress_type != zipfile.ZIP_STORED or not size < member.file_size <= length:
        raise ValueError(f"its header claims {member.file_size} bytes; expected more than {size}, and at most {length}")
    array = np.empty(shape, dtype)
    target, filled = _bytes_of(array), 0
    with archive.open(member) as stream:
        stream.read(member.file_size - size)
        while piece := stream.read(min(_PIECE, size - filled)):
            target[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
    if filled != size or fingerprint({name: array}) != about["sha256"]:
        raise ValueError("its checksum does not match")
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
