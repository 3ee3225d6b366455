"""Reads tables and arrays from files: CSV, Parquet, .npy and .npz."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tractable.core.errors import DataError, parsing
from tractable.core.words import counted, listing, tell
from tractable.core.writing import as_written
from tractable.tables.numerals import Form, read_numbers

ARRAYS = (".npz", ".npy")
TEXTS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
USUAL = ("x_train", "x", "data")  # names of the arrays of an .npz that are read if the user names none
NEW = ("x_test",)  # for new rows, names that are preferred to those of ``USUAL``

FORMAT = ("sep", "decimal", "thousands", "na_values")  # the arguments of ``read_table`` that say how a CSV is written

Frame = pd.DataFrame
Given = str | None  # an option


def as_table(source: object) -> Frame:
    """A table of pandas, polars or Arrow as a pandas data frame."""
    found = source.to_pandas() if hasattr(source, "to_pandas") else source  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(found, Frame):
        raise DataError(f"Expected a table of pandas, polars or Arrow; got {type(source).__name__}.")
    return found


def read_table(
    path: str | Path, sep: Given = None, decimal: Given = None, thousands: Given = None, na_values: Given = None
) -> Frame:
    """Read a CSV or Parquet file as a DataFrame.

    A CSV file has a header and is text in UTF-8; its name ends with ``.csv`` or ``.tsv``, and may have ``.gz`` added.

    Args:
        path: the path of the file.
        sep: the separator between the columns of a CSV file; by default a comma or, if the header has no comma, the
            first of semicolon, tab and bar that it has.
        decimal: the decimal mark of a CSV file's numbers; a point by default, or a comma if ``thousands`` is a point.
        thousands: what separates thousands in a CSV file's numbers.
        na_values: words of a CSV file that mean a missing value, with commas between them; besides those of pandas,
            such as NA and an empty cell.

    Raises:
        DataError: there is no such file; it is of another kind, unreadable or empty; or two columns have one name.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}. Expected a .csv or .parquet file.")
    if path.name.lower().endswith(TEXTS):
        frame = _read_csv(path, (sep, decimal, thousands, na_values))
        if decimal or thousands:
            # Signs are left to an encoder, which remembers them.
            frame = read_numbers(frame, frame.columns, marks=Form("", thousands or "", decimal or ""), signs=False)[0]
    elif path.suffix.lower() in (".parquet", ".pq"):
        with parsing(f"{path} is not a Parquet file, or is damaged"):
            frame = pd.read_parquet(path, engine="pyarrow")
    else:
        raise DataError(f"Tables are .csv, .tsv or .parquet files; got {path.name}. Convert it to one of them.")
    if frame.empty:
        raise DataError(f"{path} holds no rows under its header; expected at least one.")
    return frame


def csv_columns(
    path: Path, sep: Given = None, decimal: Given = None, thousands: Given = None, na_values: Given = None
) -> tuple[list[str], dict[str, Any]]:
    """The names of the columns of a CSV file, which must differ, and the options with which pandas can read it."""
    # The header is read as a row, because pandas would rename the second of two equal names in a header.
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
    how |= {"decimal": decimal or ",."[thousands != "."], "na_values": na_values.split(",") if na_values else None}
    return names, how


def _read_csv(path: Path, written: Sequence[Given]) -> Frame:
    try:
        how = csv_columns(path, *written)[1]
        with warnings.catch_warnings():
            # pandas warns if it cuts rows that are longer than the header.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return as_written(pd.read_csv(path, low_memory=False, index_col=False, **how))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}. Save it anew in that encoding.") from error
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as CSV: {str(error).strip()}.") from error


def distinct(names: list[str], where: str) -> None:
    """Raise a DataError if several columns share a name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has more than one column named {listing(twice)}; rename all but one.")


class Source(NamedTuple):
    """Rows of numbers from a file.

    Attributes:
        values: (n, d) numbers.
        shape: the shape of one row in the file.
        array: the name of the array of an .npz; None for other files.
        names: the names of a table's columns; None for an array.
    """

    values: np.ndarray
    shape: tuple[int, ...]
    array: str | None
    names: list[str] | None

    def place(self, column: int) -> str:
        """Words for the place of a number in a row: "column 'a'", or "at 2, 5"."""
        return f"at {places(self.shape)[column]}" if self.names is None else f"column {self.names[column]!r}"

    def of(self, columns: np.ndarray) -> "Source":
        """The columns of a table for which ``columns`` (d,) is true."""
        names = [name for name, here in zip(self.names or (), columns, strict=True) if here]
        return self._replace(values=self.values[:, columns], shape=(len(names),), names=names)

    @property
    def gaps(self) -> np.ndarray:
        """Whether each row lacks a number, (n,), because it is missing or not finite."""
        return np.any(~np.isfinite(self.values), axis=1)

    def refuse_infinite(self) -> None:
        if np.isinf(self.values).any():
            row, column = map(int, np.argwhere(np.isinf(self.values))[0])
            where = self.place(column)
            raise DataError(f"{where[0].upper()}{where[1:]} is infinite in row {row} (the top row is 0); correct it.")

    def refuse_gaps(self, remedy: str) -> None:
        """Raise a DataError about the first number that is missing or not finite."""
        bad = self.gaps
        if not bad.any():
            return
        row = int(np.argmax(bad))
        column = int(np.argmin(np.isfinite(self.values[row])))
        raise DataError(
            f"Numbers are missing or not finite in {bad.sum():,} of {counted(len(bad), 'row')}, the first in row "
            f"{row}, {self.place(column)} (the top row is 0). {remedy}"
        )


def places(shape: Sequence[int]) -> list[str]:
    """The place of each number in a row of an array, in words.

    >>> places((2, 2))
    ['0, 0', '0, 1', '1, 0', '1, 1']
    """
    return [", ".join(map(str, index)) for index in np.ndindex(*shape or (1,))]


def read_rows(path: Path, array: str | None = None, first: Sequence[str] = USUAL, names: Sequence[str] = ()) -> Source:
    """Read the rows of an .npz, .npy, .csv or .parquet file.

    Args:
        array: the name of the array of an .npz.
        first: names of arrays; if ``array`` is None, the first of them that the file has is read.
        names: the names of the columns of a table to read; all columns of numbers by default.

    Raises:
        DataError: the file holds no rows of numbers.
    """
    if path.suffix not in ARRAYS:
        if array is not None:
            raise DataError(f"array= is for an .npz file; {path.name} is a table. Leave it out.")
        return of_table(read_table(path), path, names)
    name, values = _of_file(path, array, first)
    called = f"{path.name}: {name}" if name else path.name
    if values.dtype.kind not in "fiub":
        raise DataError(f"{called} holds {values.dtype}; expected numbers.")
    if values.ndim == 0 or values.size == 0:
        raise DataError(f"{called} has shape {values.shape}; expected rows of numbers, (n, …).")
    return Source(values.reshape(len(values), -1), values.shape[1:], name, None)


def of_table(frame: Frame, path: Path, names: Sequence[str] = (), purpose: str = "") -> Source:
    """The columns of a table that hold numbers, with NaN for missing ones; True and False do not count as numbers.

    Args:
        path: the path of the table, for error messages.
        names: the columns to take, which the table must have; all columns of numbers by default.
        purpose: words that follow "has no column of numbers" in an error message.
    """
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1).reset_index(drop=True)
    numbers = [name for name in frame.columns if frame[name].dtype.kind in "iuf"]
    chosen, others = list(names) or numbers, [name for name in frame.columns if name not in numbers]
    if absent := [name for name in chosen if name not in frame]:
        raise DataError(f"The table lacks {listing(absent)}; expected the columns {listing(chosen)}.")
    if text := [name for name in chosen if name not in numbers]:
        raise DataError(f"Column {text[0]!r} held numbers when the model was fitted, but does not hold numbers here.")
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
                    raise DataError(f"array= is for an .npz file; {path.name} holds one array without a name.")
                return None, found
            name = _array_name(path, found.files, array, first)
            return name, found[name]
    except DataError:
        raise
    except Exception as error:
        if "allow_pickle" in str(error) or "pickled" in str(error):
            raise DataError(
                f"{path.name} holds Python objects, which are not read, because that could run code; expected arrays "
                "of numbers."
            ) from None
        raise DataError(f"{path} is not an {path.suffix} file, or is damaged: {error}.") from None


def _array_name(path: Path, names: Sequence[str], array: str | None, first: Sequence[str]) -> str:
    """The name of the array of a file that is to be read."""
    if array is not None:
        if array not in names:
            raise DataError(f"{path.name} has no array {array!r}; it has {listing(names)}.")
        return array
    if not names:
        raise DataError(f"{path.name} holds no arrays.")
    usual = [name for name in first if name in names]
    if len(names) > 1 and not usual:
        raise DataError(f"{path.name} has the arrays {listing(names)}: choose one with array='NAME'.")
    if len(names) > 1:
        tell(f"Rows are read from the array {usual[0]!r} of {path.name}, which has {listing(names)}.")
    return usual[0] if usual else names[0]
