"""Reads data's arrays from memory, frames and files, and checks them."""

import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import DataError, parsing
from tractable.core.shards import Rows, Sharded, is_pattern, mapped, matching, of_folder, of_zarr
from tractable.core.tree import Numbers, PyTree

CHUNK = 1 << 16  # rows checked at once, as arrays may be memory-mapped


def arrays_of(source: PyTree, role: str) -> PyTree:
    """``source`` as arrays of numbers, memory-mapped where possible; errors name its ``role`` ("y", "given")."""
    if isinstance(source, str | pathlib.Path):
        out = _from_file(pathlib.Path(source))
    elif (columns := columns_of(source)) is not None:
        out = columns
    else:
        if isinstance(source, list):  # rows of numbers; a pytree of arrays comes as a dict or a tuple
            try:
                masked = any(isinstance(row, np.ma.MaskedArray) for row in source)
                source = np.ma.stack(source) if masked else np.asarray(source)
            except ValueError as error:
                raise DataError(f"{role} is a list of rows of unequal lengths; every row needs the same.") from error
        out = jax.tree.map(lambda a: _from_file(pathlib.Path(a)) if isinstance(a, str | pathlib.Path) else a, source)
    out = jax.tree_util.tree_map_with_path(lambda path, a: _native(a, role + jax.tree_util.keystr(path)), out)
    if not jax.tree.leaves(out):
        raise DataError(f"Expected an array or a pytree of arrays for {role}; got none.")
    for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
        if leaf.dtype.kind not in "fiub":
            since = {"m": "Divide", "M": "Subtract a date from them and divide"}.get(leaf.dtype.kind)
            numbers = f"{since} by a unit, such as np.timedelta64(1, 'D'). " if since else ""
            raise DataError(
                f"{role}{jax.tree_util.keystr(path)} has dtype {leaf.dtype}; expected numbers. {numbers}"
                "fit_encoder and encode of tractable.tables.encoder turn tables with other columns into numbers, as "
                "the command tractable fit does."
            )
    return out


def columns_of(source: object) -> dict[str, np.ndarray] | None:
    """The columns of a pandas or polars frame or an Arrow table, by name; None for anything else."""
    frame: Any = source
    names = getattr(source, "column_names", None)  # Arrow
    if names is None and hasattr(source, "to_numpy"):
        names = getattr(source, "columns", None)
    return None if names is None else {str(name): np.asarray(frame[name]) for name in names}


def weights_of(source: PyTree, size: int) -> np.ndarray:
    """(N,) float64 how often each of ``size`` rows counts; a DataError unless finite and ≥ 0."""
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


def wide(named: dict[str, Rows]) -> str:
    """A sentence about the first number of arrays by name that 32 bits do not hold; empty where they hold all."""
    for name, leaf in named.items():
        if leaf.dtype.itemsize <= 4 or is_sound(leaf):
            continue
        whole = leaf.dtype.kind in "iu"
        limits = np.iinfo(f"{leaf.dtype.kind}4") if whole else np.finfo(np.float32)
        for start in range(0, len(leaf), CHUNK):
            part = np.asarray(leaf[start : start + CHUNK])
            bad = ((part < limits.min) | (part > limits.max)) & np.isfinite(part)
            if bad.any():
                first = tuple(np.argwhere(bad)[0].tolist())
                row, column = start + first[0], f", column {first[1]}" if len(first) > 1 else ""
                low, high = (f"{n}" if whole else f"{n:.3g}" for n in (limits.min, limits.max))
                return (
                    f"{name} holds {part[first]} in row {row}{column}; numbers of type {leaf.dtype} are computed with "
                    f"in 32 bits, {low} to {high}. Give them in another unit, or as codes counted from 0, or "
                    "keep 64 bits: jax.config.update('jax_enable_x64', True)."
                )
    return ""


def is_sound(leaf: Rows) -> bool:
    """Whether all numbers are known to be finite, and to fit 32 bits, without a look at them."""
    return isinstance(leaf, Sharded) and leaf.sound


def check_width(sentence: str) -> None:
    """Raises ``wide``'s message if JAX computes in 32 bits."""
    if sentence and jnp.result_type(float) == jnp.float32:
        raise DataError(sentence)


def unmasked(a: Numbers, name: str) -> np.ndarray:
    """The array; a DataError if it is a masked array that hides any number."""
    if isinstance(a, np.ma.MaskedArray):
        hidden = np.argwhere(np.ma.getmaskarray(a))
        if len(hidden):
            row = f" in row {hidden[0][0]}" if a.ndim else ""
            raise DataError(
                f"{name} is a masked array that hides {len(hidden)} of its {a.size} numbers, the first{row}. Leave "
                "those rows out, or give a.filled(np.nan), with which missing='drop' or 'keep' does as it says."
            )
        return a.data
    return a if isinstance(a, np.ndarray) else np.asarray(a)


def _native(a: Numbers, name: str) -> Rows:
    """An array of a byte order and precision that JAX takes."""
    if isinstance(a, Sharded):
        return a
    a = unmasked(a, name)
    if a.dtype.kind == "f" and a.dtype.itemsize > 8:
        return a.astype(np.float64)
    return a if a.dtype.isnative or a.dtype.kind not in "fiub" else a.astype(a.dtype.newbyteorder("="))


def _from_file(path: pathlib.Path) -> PyTree:
    if is_pattern(path):
        return matching(path)
    if not path.exists():
        raise DataError(
            f"There is no file {path}. Data takes arrays or a path to .npy, .npz or .parquet, to .arrow, .feather or "
            ".zarr, or to shards: a folder or a pattern such as 'shards/*.npy'."
        )
    if path.is_dir():
        return of_zarr(path) if is_zarr(path) else of_folder(path)
    readers: dict[str, Callable] = {
        ".npy": mapped, ".npz": _npz, ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow
    }  # fmt: skip
    if path.suffix not in readers:
        raise DataError(f"Data reads .npy, .npz and .parquet files; got {path.name}. Or .arrow, .feather and .zarr.")
    return readers[path.suffix](path)


def is_zarr(path: pathlib.Path) -> bool:
    """Whether a folder is a zarr array or group."""
    return path.suffix == ".zarr" or any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def _arrow(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Columns of an Arrow or Feather file, mapped where they lie in one piece, uncompressed and without gaps."""
    import pyarrow
    import pyarrow.ipc

    with parsing(f"{path} is not an Arrow or Feather file, or is damaged"), pyarrow.memory_map(str(path)) as file:
        table = pyarrow.ipc.open_file(file).read_all()
        return {name: table[name].combine_chunks().to_numpy() for name in table.column_names}


def _npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """An archive's arrays; those stored uncompressed are memory-mapped once their CRC-32 is checked."""
    out = {}
    fault = f"{path} is not an .npz file of numbers, or is damaged"
    with parsing(fault), zipfile.ZipFile(path) as archive, open(path, "rb") as raw, np.errstate(over="raise"):
        if damaged := archive.testzip():  # memory maps bypass the archive's own check
            raise ValueError(f"the checksum of {damaged} does not hold")
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
            empty = not np.prod(shape)  # an empty array cannot be mapped
            out[name] = np.empty(shape) if empty else np.memmap(path, dtype, "r", at, shape, order)
    return out


def _parquet(path: pathlib.Path) -> dict[str, np.ndarray]:
    import pyarrow.parquet

    with parsing(f"{path} is not a Parquet file, or is damaged"):
        table = pyarrow.parquet.read_table(path, memory_map=True)
        return {name: table[name].to_numpy() for name in table.column_names}
