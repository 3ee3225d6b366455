"""Tables and arrays in files: CSV, Parquet, .npy and .npz, in memory or mapped."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tractable.core.errors import DataError, parsing
from tractable.core.words import counted, listing, tell
from tractable.core.writing import as_written

ARRAYS = (".npz", ".npy")
TEXTS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
USUAL = ("x_train", "x", "data")  # arrays that are meant where nothing is said
NEW = ("x_test",)  # and before these, of new rows

Frame = pd.DataFrame


def as_table(source: object) -> Frame:
    """A table of pandas, polars or Arrow in pandas."""
    found = source.to_pandas() if hasattr(source, "to_pandas") else source  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(found, Frame):
        raise DataError(f"Expected a table, of pandas, polars or Arrow; got {type(source).__name__}.")
    return found


def read_table(path: str | Path, sep: str | None = None, decimal: str | None = None) -> Frame:
    """A CSV file (``.csv`` or ``.tsv``, also with ``.gz``; a header, UTF-8) or a Parquet file as a DataFrame.

    Args:
        path: of the file.
        sep: between the columns of a CSV file; by default a comma or, where the header has none, what it has instead
            of semicolon, tab and bar.
        decimal: of its numbers; a point by default.

    Raises:
        DataError: no such file; another kind of file; an unreadable or empty one; two columns of one name.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}. Expected a .csv or .parquet file.")
    if path.name.lower().endswith(TEXTS):
        frame = _read_csv(path, sep, decimal or ".")
    elif path.suffix.lower() in (".parquet", ".pq"):
        with parsing(f"{path} is not a Parquet file, or is damaged"):
            frame = pd.read_parquet(path, engine="pyarrow")
    else:
        raise DataError(f"Tables are .csv, .tsv or .parquet files; got {path.name}. Convert it to one of them.")
    if frame.empty:
        raise DataError(f"{path} holds no rows under its header; expected at least one.")
    return frame


def csv_columns(path: Path, sep: str | None = None) -> tuple[list[str], dict[str, Any]]:
    """Names of the columns of a CSV file, all different, and what pandas is to know to read it."""
    # As rows, because as a header pandas would rename the second of two equal names.
    how: dict[str, Any] = {"sep": sep or ",", "encoding": "utf-8-sig"}
    first: dict[str, Any] = {"header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
    try:
        names = [str(name) for name in pd.read_csv(path, **first, **how).iloc[0]]
        if sep is None and len(names) == 1 and (found := next((s for s in ";\t|" if s in names[0]), None)):
            how["sep"] = found
            names = [str(name) for name in pd.read_csv(path, **first, **how).iloc[0]]
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty; expected a header and rows.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}. Save it anew in that encoding.") from error
    if "" in names and len(names) > 1:
        raise DataError(
            f"{path} has a column without a name in position {names.index('')} (the first is 0). "
            "Name it, or leave it out if it only numbers the rows."
        )
    distinct(names, str(path))
    return names, how


def _read_csv(path: Path, sep: str | None, decimal: str) -> Frame:
    try:
        how = csv_columns(path, sep)[1]
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header, cut short
            return as_written(pd.read_csv(path, decimal=decimal, low_memory=False, index_col=False, **how))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}. Save it anew in that encoding.") from error
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as CSV: {str(error).strip()}.") from error


def distinct(names: list[str], where: str) -> None:
    """A sentence about columns that share a name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has more than one column named {listing(twice)}; rename all but one.")


class Source(NamedTuple):
    """Rows of numbers as a file has them.

    Attributes:
        values: (n, d) numbers.
        shape: of one row in the file.
        array: name of the array of an .npz; None elsewhere.
        names: of a table's columns; None of an array.
    """

    values: np.ndarray
    shape: tuple[int, ...]
    array: str | None
    names: list[str] | None

    def place(self, column: int) -> str:
        """Of a number in a row: "column 'a'", or "at 2, 5"."""
        return f"at {places(self.shape)[column]}" if self.names is None else f"column {self.names[column]!r}"

    def of(self, columns: np.ndarray) -> "Source":
        """The columns of a table at which ``columns`` is true, (d,)."""
        names = [name for name, here in zip(self.names or (), columns, strict=True) if here]
        return self._replace(values=self.values[:, columns], shape=(len(names),), names=names)

    @property
    def gaps(self) -> np.ndarray:
        """(n,) whether a row lacks a number: it is missing or not finite."""
        return np.any(~np.isfinite(self.values), axis=1)

    def refuse_infinite(self) -> None:
        if np.isinf(self.values).any():
            row, column = map(int, np.argwhere(np.isinf(self.values))[0])
            where = self.place(column)
            raise DataError(f"{where[0].upper()}{where[1:]} is infinite in row {row} (the top row is 0); mend it.")

    def refuse_gaps(self, remedy: str) -> None:
        """A sentence about the first number that is missing or not finite."""
        bad = self.gaps
        if not bad.any():
            return
        row = int(np.argmax(bad))
        column = int(np.argmin(np.isfinite(self.values[row])))
        raise DataError(
            f"{counted(int(bad.sum()), 'row')} of {counted(len(bad), 'row')} hold numbers that are missing or not "
            f"finite, the first in row {row}, {self.place(column)} (the top row is 0). {remedy}"
        )


def places(shape: Sequence[int]) -> list[str]:
    """Where in a row of an array each of its numbers is.

    >>> places((2, 2))
    ['0, 0', '0, 1', '1, 0', '1, 1']
    """
    return [", ".join(map(str, index)) for index in np.ndindex(*shape or (1,))]


def read_rows(path: Path, array: str | None = None, first: Sequence[str] = USUAL, names: Sequence[str] = ()) -> Source:
    """Rows of an .npz, an .npy, a .csv or a .parquet file; a DataError of a file that holds none.

    Args:
        array: which of an .npz.
        first: arrays that are taken where none is named, the foremost that is there.
        names: of columns a table must have; all columns of numbers by default.
    """
    if path.suffix not in ARRAYS:
        if array is not None:
            raise DataError(f"array= is of an .npz; {path.name} is a table.")
        return of_table(read_table(path), path, names)
    name, values = _of_file(path, array, first)
    called = f"{path.name}: {name}" if name else path.name
    if values.dtype.kind not in "fiub":
        raise DataError(f"{called} holds {values.dtype}; expected numbers.")
    if values.ndim == 0 or values.size == 0:
        raise DataError(f"{called} has shape {values.shape}; expected rows of numbers, (n, …).")
    return Source(values.reshape(len(values), -1), values.shape[1:], name, None)


def of_table(frame: Frame, path: Path, names: Sequence[str] = (), purpose: str = "") -> Source:
    """The columns of a table that hold numbers, NaN where there is none; True and False are no numbers.

    Args:
        path: of the table, for sentences.
        names: columns that it must have, and which are taken; all of numbers by default.
        purpose: ends a sentence about a table that has none.
    """
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1).reset_index(drop=True)
    numbers = [name for name in frame.columns if frame[name].dtype.kind in "iuf"]
    chosen, others = list(names) or numbers, [name for name in frame.columns if name not in numbers]
    if absent := [name for name in chosen if name not in frame]:
        raise DataError(f"The table lacks {listing(absent)}; expected the columns {listing(chosen)}.")
    if text := [name for name in chosen if name not in numbers]:
        raise DataError(f"Column {text[0]!r} held numbers when the model was fitted, and does not here.")
    if not chosen:
        raise DataError(f"{path} has no column of numbers{purpose}; got {listing(others)}.")
    if others and not names:
        tell(f"Left out, as they hold no numbers: {listing(others)}.")
    values = np.stack([frame[name].to_numpy(np.float64, na_value=np.nan) for name in chosen], 1)
    return Source(values, (len(chosen),), None, chosen)


def _of_file(path: Path, array: str | None, first: Sequence[str]) -> tuple[str | None, np.ndarray]:
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    try:
        with open(path, "rb") as file:
            found: Any = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                if array is not None:
                    raise DataError(f"array= is of an .npz; {path.name} holds one array without a name.")
                return None, found
            name = _named(path, found.files, array, first)
            return name, found[name]
    except DataError:
        raise
    except Exception as error:
        if "allow_pickle" in str(error) or "pickled" in str(error):
            raise DataError(
                f"{path.name} holds Python objects, which are not read, as reading them may run code; expected arrays "
                "of numbers."
            ) from None
        raise DataError(f"{path} is not an {path.suffix} file, or is damaged: {error}.") from None


def _named(path: Path, names: Sequence[str], array: str | None, first: Sequence[str]) -> str:
    """Which of the arrays of a file is meant."""
    if array is not None:
        if array not in names:
            raise DataError(f"{path.name} has no array {array!r}; it has {listing(names)}.")
        return array
    if not names:
        raise DataError(f"{path.name} holds no arrays.")
    usual = [name for name in first if name in names]
    if len(names) > 1 and not usual:
        raise DataError(f"{path.name} has the arrays {listing(names)}: say which is meant, by array='NAME'.")
    if len(names) > 1:
        tell(f"Rows are {usual[0]!r} of {path.name}, which has {listing(names)}.")
    return usual[0] if usual else names[0]
