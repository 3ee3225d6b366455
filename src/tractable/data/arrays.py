"""The arrays that data are made of, from memory, frames and files, and what is said of those that cannot be."""

import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tractable.tools.errors import DataError
from tractable.tools.tree import Numbers

PyTree = Any


def arrays_of(source: PyTree, role: str) -> PyTree:
    """Arrays of numbers, or a sentence about ``role`` ("y", "given"); those of a file stay there where they can."""
    if isinstance(source, str | pathlib.Path):
        out = _from_file(pathlib.Path(source))
    elif (columns := columns_of(source)) is not None:
        out = columns
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
                "fit_encoder and encode of tractable.data.encoder turn tables with other columns into numbers, as the "
                "command tractable fit does."
            )
    return out


def columns_of(source: object) -> dict[str, np.ndarray] | None:
    """A frame of pandas or polars, or a table of Arrow, as a dict of columns; None of anything else."""
    frame: Any = source
    names = getattr(source, "column_names", None)  # Arrow's
    if names is None and hasattr(source, "to_numpy"):
        names = getattr(source, "columns", None)
    return None if names is None else {str(name): np.asarray(frame[name]) for name in names}


def weights_of(source: PyTree, size: int) -> np.ndarray:
    """How often each of ``size`` rows counts, (N,) float64, or a sentence about weights that cannot be."""
    leaves = jax.tree.leaves(arrays_of(source, "weights"))
    if len(leaves) != 1 or leaves[0].shape != (size,):
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise DataError(f"Data(weights=...) expects one number a row, shape ({size},); got {shapes}.")
    weights = np.asarray(leaves[0], np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"Data(weights=...) says how often each row counts: expected finite numbers ≥ 0; got {weights[row]:g} in "
            f"row {row}."
        )
    return weights


def _native(a: Numbers) -> np.ndarray:
    """An array of a byte order and precision that JAX takes."""
    a = a if isinstance(a, np.ndarray) else np.asarray(a)
    if a.dtype.kind == "f" and a.dtype.itemsize > 8:
        return a.astype(np.float64)
    return a if a.dtype.isnative or a.dtype.kind not in "fiub" else a.astype(a.dtype.newbyteorder("="))


def _from_file(path: pathlib.Path) -> PyTree:
    if not path.exists():
        raise DataError(f"There is no file {path}. Data takes arrays or a path to .npy, .npz or .parquet.")
    readers: dict[str, Callable] = {".npy": mapped, ".npz": _npz, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DataError(f"Data reads .npy, .npz and .parquet files; got {path.name}.")
    return readers[path.suffix](path)


def mapped(path: pathlib.Path) -> np.ndarray:
    """An array on file, read where it lies."""
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
