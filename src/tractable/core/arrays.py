"""Reads the arrays of a data set from memory, data frames and files, and checks them."""

import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import DataError, parsing
from tractable.core.shards import Rows, Sharded, is_pattern, map_file, matching, of_folder, of_zarr
from tractable.core.tree import Numbers, PyTree

ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")  # one of them is in every folder of zarr
CHUNK = 1 << 16  # rows checked at a time: a memory-mapped array may exceed the memory


def arrays_of(source: PyTree, role: str) -> PyTree:
    """``source`` as a pytree of arrays of numbers, memory-mapped where possible.

    Args:
        source: an array, a pytree of arrays, a data frame, a path, or a list of rows.
        role: the argument's name in errors, such as "y" or "given".
    """
    if isinstance(source, str | pathlib.Path):
        out = _from_file(pathlib.Path(source))
    elif (columns := columns_of(source)) is not None:
        out = columns
    else:
        if isinstance(source, list):  # of rows; a pytree of arrays is a dict or a tuple
            try:
                masked = any(isinstance(row, np.ma.MaskedArray) for row in source)
                source = np.ma.stack(source) if masked else np.asarray(source)
            except ValueError as error:
                raise DataError(f"{role} is a list of rows of unequal lengths; expected one length.") from error
        out = jax.tree.map(lambda a: _from_file(pathlib.Path(a)) if isinstance(a, str | pathlib.Path) else a, source)
    out = jax.tree_util.tree_map_with_path(lambda path, a: _native(a, role + jax.tree_util.keystr(path)), out)
    if not jax.tree.leaves(out):
        raise DataError(f"Expected an array or a pytree of arrays for {role}; got none.")
    for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
        if leaf.dtype.kind not in "fiub":
            verb = {"m": "Divide", "M": "Subtract a date from them and divide"}.get(leaf.dtype.kind)
            remedy = f"{verb} by a unit, such as np.timedelta64(1, 'D'). " if verb else ""
            raise DataError(
                f"{role}{jax.tree_util.keystr(path)} has dtype {leaf.dtype}; expected numbers. {remedy}"
                "To turn the columns of a table into numbers, use fit_encoder and encode of tractable.tables.encoder, "
                "or the command tractable fit."
            )
    return out


def columns_of(source: object) -> dict[str, np.ndarray] | None:
    """The columns of a pandas or polars frame or an Arrow table by name; None for any other object."""
    frame: Any = source
    names = getattr(source, "column_names", None)  # Arrow
    if names is None and hasattr(source, "to_numpy"):
        names = getattr(source, "columns", None)
    return None if names is None else {str(name): np.asarray(frame[name]) for name in names}


def weights_of(source: PyTree, size: int) -> np.ndarray:
    """(size,) float64 weights of the rows; a DataError unless there is one finite number ≥ 0 for each row."""
    leaves = jax.tree.leaves(arrays_of(source, "weights"))
    if len(leaves) != 1 or leaves[0].shape != (size,):
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise DataError(f"Data(weights=...) expects one number a row, shape ({size},); got {shapes}.")
    weights = np.asarray(leaves[0], np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"Data(weights=...) is how often each row counts: expected finite numbers ≥ 0; got {weights[row]:g} in row "
            f"{row}."
        )
    return weights


def wide(named: dict[str, Rows]) -> str:
    """The error message about the first number that does not fit in 32 bits; "" if all numbers do.

    Args:
        named: arrays by their names in the message.
    """
    for name, leaf in named.items():
        if leaf.dtype.itemsize <= 4 or is_sound(leaf):
            continue
        are_integers = leaf.dtype.kind in "iu"
        limits = np.iinfo(f"{leaf.dtype.kind}4") if are_integers else np.finfo(np.float32)
        for start in range(0, len(leaf), CHUNK):
            part = np.asarray(leaf[start : start + CHUNK])
            bad = ((part < limits.min) | (part > limits.max)) & np.isfinite(part)
            if bad.any():
                first = tuple(np.argwhere(bad)[0].tolist())
                row, column = start + first[0], f", column {first[1]}" if len(first) > 1 else ""
                low, high = (f"{n}" if are_integers else f"{n:.3g}" for n in (limits.min, limits.max))
                return (
                    f"{name} holds {part[first]} in row {row}{column}; expected numbers from {low} to {high}, as JAX "
                    f"computes with {leaf.dtype} in 32 bits. Use another unit, replace large codes by 0, 1, 2, …, or "
                    "compute in 64 bits: jax.config.update('jax_enable_x64', True)."
                )
    return ""


def is_sound(leaf: Rows) -> bool:
    """Whether the files' manifest already states that all numbers are finite and fit in 32 bits."""
    return isinstance(leaf, Sharded) and leaf.sound


def check_width(sentence: str) -> None:
    """Raise a DataError with the message of ``wide``, if there is one and JAX computes in 32 bits."""
    if sentence and jnp.result_type(float) == jnp.float32:
        raise DataError(sentence)


def plain_array(a: Numbers, name: str) -> np.ndarray:
    """``a`` as a plain array; a DataError if ``a`` is a masked array that hides any number."""
    if isinstance(a, np.ma.MaskedArray):
        hidden = np.argwhere(np.ma.getmaskarray(a))
        if len(hidden):
            row = f" in row {hidden[0][0]}" if a.ndim else ""
            raise DataError(
                f"{name} is a masked array that hides {len(hidden)} of its {a.size} numbers, the first{row}; expected "
                "an array without a mask. Leave those rows out, or pass a.filled(np.nan) with missing='drop' or 'keep'."
            )
        return a.data
    return a if isinstance(a, np.ndarray) else np.asarray(a)


def _native(a: Numbers, name: str) -> Rows:
    """An array with a byte order and a precision that JAX supports."""
    if isinstance(a, Sharded):
        return a
    a = plain_array(a, name)
    if a.dtype.kind == "f" and a.dtype.itemsize > 8:
        return a.astype(np.float64)
    return a if a.dtype.isnative or a.dtype.kind not in "fiub" else a.astype(a.dtype.newbyteorder("="))


def _from_file(path: pathlib.Path) -> PyTree:
    if is_pattern(path):
        return matching(path)
    if not path.exists():
        raise DataError(
            f"There is no file {path}. Data takes arrays, the path of an .npy, .npz, .parquet, .arrow, .feather or "
            ".zarr file, or shards: a folder or a pattern such as 'shards/*.npy'."
        )
    if path.is_dir():
        is_zarr = path.suffix == ".zarr" or any((path / name).is_file() for name in ZARR_FILES)
        return of_zarr(path) if is_zarr else of_folder(path)
    readers: dict[str, Callable] = {
        ".npy": map_file, ".npz": _npz, ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow
    }  # fmt: skip
    if path.suffix not in readers:
        raise DataError(f"Data reads .npy, .npz, .parquet, .arrow, .feather and .zarr files; got {path.name}.")
    return readers[path.suffix](path)


def _arrow(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Columns of an Arrow or Feather file by name; contiguous, uncompressed columns without nulls are memory-mapped."""
    import pyarrow
    import pyarrow.ipc

    with parsing(f"{path} is not an Arrow or Feather file, or is damaged"), pyarrow.memory_map(str(path)) as file:
        table = pyarrow.ipc.open_file(file).read_all()
        return {name: table[name].combine_chunks().to_numpy() for name in table.column_names}


def _npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of an archive by name; uncompressed ones are memory-mapped after a check of their CRC-32."""
    out = {}
    fault = f"{path} is not an .npz file of numbers, or is damaged"
    with parsing(fault), zipfile.ZipFile(path) as archive, open(path, "rb") as raw, np.errstate(over="raise"):
        if damaged := archive.testzip():  # a memory map bypasses the check that reading does
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
            empty = not np.prod(shape)  # an empty array cannot be mapped
            out[name] = np.empty(shape) if empty else np.memmap(path, dtype, "r", raw.tell(), shape, order)
    return out


def _parquet(path: pathlib.Path) -> dict[str, np.ndarray]:
    import pyarrow.parquet

    with parsing(f"{path} is not a Parquet file, or is damaged"):
        table = pyarrow.parquet.read_table(path, memory_map=True)
        return {name: table[name].to_numpy() for name in table.column_names}
