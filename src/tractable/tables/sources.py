"""Reads arrays and tables that are too large for memory, some rows at a time; each column has one type throughout."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from pyarrow import dataset

from tractable.core.arrays import arrays_of
from tractable.core.errors import DataError, parsing
from tractable.core.shards import Rows, is_pattern
from tractable.core.tree import PyTree
from tractable.core.words import listing, tell
from tractable.core.writing import as_written
from tractable.tables.columns import Values
from tractable.tables.files import TEXTS, Frame, csv_columns
from tractable.tables.numerals import BARE, Form, read_numbers

TABLES = (*TEXTS, ".parquet", ".pq", ".arrow", ".feather")
FRAME = 1 << 16  # how many rows of a table are read at a time

Say = Callable[[str, int, int], None]  # a function of (phase, number done, number in all)


@dataclass(frozen=True)
class Source:
    """Rows that can be read in order, any number of times.

    Attributes:
        size: the number of rows; 0 for a table that was not read yet.
        about: names, sizes and times of the files, which show whether two sources are the same.
        read: ``(first, count) -> parts``: an iterator over parts of ``count`` rows from row ``first`` on; the last part
            may have fewer rows.
    """

    size: int
    about: dict[str, Any]
    read: Callable[[int, int], Iterator[Any]]


def is_table(source: object) -> bool:
    """Whether a source is a table in a file."""
    return isinstance(source, str | Path) and str(source).lower().endswith(TABLES) and not is_pattern(source)


def of_arrays(source: PyTree) -> tuple[Source, dict[str, Rows]]:
    """The source of arrays in memory or on file, and the arrays by name; a single array has the name "".

    The parts of the source are dicts of arrays.
    """
    found = arrays_of(source, "source")
    named = found if isinstance(found, dict) else {"": found}
    if not all(isinstance(name, str) and hasattr(a, "dtype") for name, a in named.items()):
        raise DataError("tr.pack expects an array, or a dict of arrays by name; got nested arrays.")
    lengths = {name: len(a) if a.ndim else None for name, a in named.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        found_lengths = ", ".join(f"{name or 'array'}: {'a scalar' if n is None else n}" for name, n in lengths.items())
        raise DataError(f"All arrays to pack need the same number of rows; got {found_lengths}.")
    size = next(iter(lengths.values())) or 0

    def read(first: int, count: int) -> Iterator[dict[str, np.ndarray]]:
        for start in range(first, size, count):
            yield {name: np.asarray(a[start : start + count]) for name, a in named.items()}

    paths = [leaf for leaf in jax.tree.leaves(source) if isinstance(leaf, str | Path)]
    arrays = {name: [str(a.dtype), list(a.shape)] for name, a in named.items()}
    about = {"files": [identity(Path(path)) for path in paths], "arrays": arrays}
    if not paths:  # an array in memory has no file, so its checksum shows whether it is the same
        about["crc32"] = checksum(part for part in read(0, FRAME))
    return Source(size, about, read), named


def identity(path: Path) -> list[Any]:
    """The name, the size in bytes and the time of a file; for a folder or a pattern only its name."""
    if not path.is_file():
        return [path.name, 0, 0]
    known = path.stat()
    return [path.name, known.st_size, known.st_mtime_ns]


def checksum(parts: Iterator[dict[str, np.ndarray]]) -> int:
    """CRC-32 of arrays."""
    value = 0
    for part in parts:
        for a in part.values():
            value = zlib.crc32(np.ascontiguousarray(a).data, value)
    return value


def of_table(path: Path, written: Mapping[str, str | None] | None = None) -> Source:
    """The source of a CSV, Parquet, Arrow or Feather file, whose parts are data frames.

    The types of the columns of a CSV file are not known yet. ``written`` says how it is written, as for ``read_table``.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist. Expected a .csv, .parquet, .arrow or .feather file.")
    about, name = {"files": [identity(path)]}, path.name.lower()
    if name.endswith(TEXTS):
        return Source(0, about, _csv(path, written or {}, None))
    parquet = name.endswith((".parquet", ".pq"))
    fault = f"{path} is not {'a Parquet' if parquet else 'an Arrow or Feather'} file, or is damaged"
    with parsing(fault):
        rows = dataset.dataset(path, format="parquet" if parquet else "ipc")
        size = rows.count_rows()

    def read(count: int) -> Iterator[Frame]:
        with parsing(fault):
            # Without these settings, more than one batch would be read ahead into memory.
            for batch in rows.to_batches(batch_size=count, batch_readahead=0, fragment_readahead=0):
                yield batch.to_pandas()

    return Source(_some(path, size), about, lambda first, count: _cut(read(count), first, count))


def add_types(source: Source, path: Path, written: Mapping[str, str | None], say: Say) -> Source:
    """The source with its number of rows and the types of its columns.

    A CSV file is read once for this, because a single part of it may suggest another type.
    """
    if source.size:
        return source
    size, kinds = 0, {}
    for frame in source.read(0, FRAME):
        size += len(frame)
        for name, column in frame.items():
            kinds[str(name)] = _wider(kinds.get(str(name)), column)
        say("reading", size, size)
    return replace(source, size=_some(path, size), read=_csv(path, written, kinds))


def _wider(known: str | None, column: Values) -> str:
    """The type that can hold all parts of a column: int64, uint64, float64, bool or else text."""
    if column.isna().all():
        now = "float64"
    elif pd.api.types.is_bool_dtype(column.dtype):
        now = "bool"
    else:
        now = {"i": "int64", "u": "uint64", "f": "float64"}.get(column.dtype.kind, "str")
    if known in (None, now):
        return now
    return "float64" if {known, now} <= {"int64", "uint64", "float64"} else "str"


def _csv(
    path: Path, written: Mapping[str, str | None], kinds: dict[str, str] | None
) -> Callable[[int, int], Iterator[Frame]]:
    marks = Form("", written.get("thousands") or "", written.get("decimal") or "")
    # If the user gave marks, columns of numbers may hold text such as 1,234, so pandas must not convert them.
    fixed = kinds if kinds is None or marks == BARE else {name: kind for name, kind in kinds.items() if kind == "str"}

    def read(first: int, count: int) -> Iterator[Frame]:
        names, how = csv_columns(path, **written)
        try:
            past = (lambda i: 0 < i <= first) if first else None  # the header, row 0, is not skipped
            given: dict[str, Any] = {"dtype": fixed, "skiprows": past, "chunksize": count, "index_col": False, **how}
            reader: Any = pd.read_csv(path, low_memory=False, **given)
            with reader:
                for frame in reader:
                    frame = as_written(frame.set_axis(names, axis=1).reset_index(drop=True))
                    yield frame if marks == BARE else _with_numbers(frame, kinds or {}, marks)
        except DataError:
            raise
        except Exception as error:  # a file may come from anybody, and parsers raise many kinds of errors
            raise DataError(f"{path} cannot be read as CSV: {str(error).strip()}.") from error

    return read


def _with_numbers(frame: Frame, kinds: dict[str, str], marks: Form) -> Frame:
    """The data frame with the numbers of its text, except in columns that hold other text in other parts."""
    names = [name for name in frame.columns if kinds.get(name) != "str"]
    frame = read_numbers(frame, names, dict.fromkeys(names, marks))[0]
    return frame.astype({name: kinds[name] for name in names if name in kinds})


def _cut(frames: Iterator[Frame], first: int, count: int) -> Iterator[Frame]:
    """Data frames of ``count`` rows from row ``first`` on, made from frames of any length."""
    rest, skipped = pd.DataFrame(), first
    for frame in frames:
        frame, skipped = frame.iloc[skipped:], max(0, skipped - len(frame))
        rest = pd.concat([rest, frame], ignore_index=True) if len(rest) else frame.reset_index(drop=True)
        while len(rest) >= count:
            yield rest.iloc[:count]
            rest = rest.iloc[count:].reset_index(drop=True)
    if len(rest):
        yield rest


def _some(path: Path, size: int) -> int:
    if not size:
        raise DataError(f"{path} holds no rows; expected at least one.")
    return size


def numbers_of(frame: Frame, names: Sequence[str], dtype: np.dtype) -> np.ndarray:
    """The columns of a data frame as an array (n, d), with NaN for missing numbers."""
    return np.stack([frame[name].to_numpy(dtype, na_value=np.nan) for name in names], 1)


def columns_of_numbers(frame: Frame, path: Path, names: Sequence[str] | None) -> tuple[list[str], np.dtype]:
    """The columns to pack without a target, and their common type.

    They are the columns named by ``names``, or by default all columns of numbers.
    """
    kinds = {str(name): frame[name].dtype for name in frame.columns}
    numbers = [name for name, kind in kinds.items() if kind.kind in "iuf"]
    if names is not None and (absent := [name for name in names if name not in kinds]):
        raise DataError(f"{path} lacks {listing(absent)}; it has the columns {listing(kinds)}.")
    chosen = numbers if names is None else list(names)
    if text := [name for name in chosen if name not in numbers]:
        raise DataError(f"{path.name} has no numbers in {listing(text)}; give target=, and other values are encoded.")
    if not chosen:
        raise DataError(f"{path} has no column of numbers; got {listing(kinds)}.")
    if names is None and len(chosen) < len(kinds):
        tell(f"Left out, as they hold no numbers: {listing(name for name in kinds if name not in chosen)}.")
    single = all(kinds[name] == np.float32 for name in chosen)
    return chosen, np.dtype(np.float32 if single else np.float64)
