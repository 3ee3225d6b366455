"""Writes files atomically: a file is replaced entirely or, with a CheckpointError, not at all."""

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from csv import QUOTE_MINIMAL, QUOTE_NONNUMERIC
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from tractable.core.errors import CheckpointError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

RUNS = r"[=+\-@\t\r]"  # first characters of a cell that a spreadsheet may run as a formula
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"  # a number: never run, even if it begins with a sign


def refuse_links(path: Path) -> None:
    """Raise a CheckpointError if a path is a link or a special file, as writing there would change another file."""
    with disk_errors(path):
        other = path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir()))
    if other:
        kind = f"a link to {os.readlink(path)}" if path.is_symlink() else "neither a file nor a folder"
        raise CheckpointError(
            f"Expected to write {path}, which is {kind}. Nothing is written through it: delete it, or choose another "
            "place."
        )


def refuse_links_in(folder: Path) -> None:
    """``refuse_links`` for a folder and for all files and folders within."""
    refuse_links(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            refuse_links(Path(parent, name))


def write_atomically(path: str | Path, content: bytes | memoryview) -> None:
    """Replace a file by ``content``; after a crash it holds the old bytes or the new bytes, never a mixture.

    Raises:
        CheckpointError: the disk is full, the folder cannot be written or made, or the path is a link; the file is
            unchanged.
    """
    path = Path(path)
    refuse_links(path)
    tmp = path.with_name(f".tmp-{secrets.token_hex(8)}")  # threads may write one file at once
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_synced(tmp, content)
            os.replace(tmp, path)
            sync(path.parent)
        finally:
            tmp.unlink(missing_ok=True)


def write_synced(path: Path, content: bytes | memoryview) -> None:
    """Write a file and force it to the disk."""
    path.write_bytes(content)
    sync(path)


def write_table(path: str | Path, table: "pd.DataFrame", *, index: bool = False) -> None:
    """Write a table atomically: as Parquet if the suffix is .parquet, else as CSV with no cell that a program runs."""
    if Path(path).suffix == ".parquet":
        file = BytesIO()
        table.to_parquet(file, index=index)
        return write_atomically(path, file.getvalue())
    write_atomically(path, csv(table, index=index).encode())


def write_figure(path: str | Path, canvas: "Figure") -> None:
    """Write a figure atomically, in the format of the path's suffix; PNG without a suffix."""
    path = Path(path) if Path(path).suffix else Path(f"{path}.png")
    file = BytesIO()
    canvas.savefig(file, dpi=150, format=path.suffix[1:])
    write_atomically(path, file.getvalue())


def csv(table: "pd.DataFrame", *, index: bool = True) -> str:
    """CSV with an apostrophe before text that begins with = + - @, a tab or a return; ``plain`` removes the apostrophe.

    Numbers, and text that reads as a number, stay as they are.
    """
    safe, returns = table.copy(deep=False), False
    for place, kind in enumerate(table.dtypes):
        if kind.kind not in "biufcmM":
            column = table.iloc[:, place].astype(object).map(_guard_cell)
            returns = returns or any(isinstance(cell, str) and "\r" in cell for cell in column)
            safe.isetitem(place, column)
    safe.columns = table.columns.map(_guard_cell)
    if index:
        safe.index = table.index.map(_guard_cell).rename(_guard_cell(table.index.name))
    # pandas quotes text that has a carriage return only if it quotes all texts.
    return safe.to_csv(index=index, quoting=QUOTE_NONNUMERIC if returns else QUOTE_MINIMAL)


def _guard_cell(cell: object) -> object:
    """A cell with an apostrophe before it, if a spreadsheet may run it."""
    runs = isinstance(cell, str) and re.match(f"'*{RUNS}", cell) and not re.match(NUMBER, cell)
    return f"'{cell}" if runs else cell


def plain(cell: object) -> object:
    """A cell without the apostrophe that ``csv`` added.

    >>> plain("'=1+1"), plain("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if isinstance(cell, str) and re.match(f"'+{RUNS}", cell) else cell


def as_written(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table read from CSV, without the apostrophes that ``csv`` added."""
    table = table.rename(columns=plain, index=plain)
    for place, kind in enumerate(table.dtypes):
        if kind.kind not in "biufcmM":
            column = table.iloc[:, place]
            if any(isinstance(cell, str) and cell[:1] == "'" for cell in column):
                table.isetitem(place, column.map(plain))
    return table


@contextmanager
def disk_errors(path: Path, but: type[OSError] | tuple = ()) -> Iterator[None]:
    """A context that turns an OSError while ``path`` is written into a CheckpointError, except the types ``but``."""
    try:
        yield
    except but:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else str(error)
        remedy = "Free some space" if full else "Remove the cause"
        raise CheckpointError(
            f"Expected to write {path}, but {reason}. {remedy}, or choose another folder; files saved before are "
            "unchanged."
        ) from error


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, to the disk, so that it survives a power cut."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
