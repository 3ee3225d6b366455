"""Rows that lie on file: memory maps, and Parquet brought into one."""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from tractable.tools.errors import DataError


def blocks(x: np.ndarray, weight: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(x, weight) of ``size`` rows at a time."""
    for start in range(0, len(x), size):
        yield np.asarray(x[start : start + size], np.float64), np.asarray(weight[start : start + size])


@contextlib.contextmanager
def opened(x: Any, chunk: int) -> Iterator[tuple[Any, list[str] | None]]:
    """Rows, and the columns' names where a file has them; a path as a memory map, anything else as it came."""
    if not isinstance(x, str | pathlib.Path):
        yield x, None
        return
    path = pathlib.Path(x)
    if not path.is_file():
        raise DataError(f"There is no file {path}. fit takes rows, or a path to .npy or .parquet.")
    if path.suffix == ".npy":
        try:
            table = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise DataError(f"{path} is not a .npy file of numbers, or is cut short: {error}.") from error
        yield table, None
    elif path.suffix == ".parquet":
        with tempfile.TemporaryDirectory() as folder:
            yield _unpacked(path, pathlib.Path(folder) / "rows.npy", chunk)
    else:
        raise DataError(f"fit reads .npy and .parquet files; got {path.name}.")


def _unpacked(path: pathlib.Path, into: pathlib.Path, chunk: int) -> tuple[np.ndarray, list[str]]:
    """A Parquet file's columns as one memory-mapped table (n, d), ``chunk`` rows at a time."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as source:
            schema, size = source.schema_arrow, source.metadata.num_rows
            other = [f.name for f in schema if not _is_number(f.type)]
            if other:
                raise DataError(f"Columns {', '.join(other)} of {path.name} are not numbers: encode or drop them.")
            single = all(pyarrow.types.is_float32(f.type) for f in schema)
            dtype = np.float32 if single else np.float64
            if size == 0:
                return np.zeros((0, len(schema)), dtype), schema.names
            table = np.lib.format.open_memmap(into, mode="w+", dtype=dtype, shape=(size, len(schema)))
            start = 0
            for batch in source.iter_batches(batch_size=chunk):
                for i, column in enumerate(batch.columns):
                    table[start : start + len(batch), i] = column.to_numpy(zero_copy_only=False)
                start += len(batch)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file, or is damaged: {error}.") from error
    return table, schema.names


def _is_number(kind: Any) -> bool:
    import pyarrow

    types = pyarrow.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def on_file(x: Any, chunk: int) -> bool:
    """Whether rows are mapped, and more than are looked at at once."""
    return isinstance(x, np.memmap) and x.ndim > 0 and len(x) > chunk


def framed(x: Any, names: list[str] | None) -> Any:
    """Rows with their columns' names."""
    if names is None:
        return x
    import pandas as pd

    return pd.DataFrame(np.asarray(x), columns=pd.Index(names))
