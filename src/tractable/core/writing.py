"""The one place where files are written: whole or not at all, with a CheckpointError if they cannot be."""

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

RUNS = r"[=+\-@\t\r]"  # the start of a cell that a spreadsheet may run
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"  # never run, even with a sign


def refuse_links(path: Path) -> None:
    """A CheckpointError where a path is a link, or no file or folder: what is written there would change another."""
    with disk_errors(path):
        other = path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir()))
    if other:
        what = f"a link to {os.readlink(path)}" if path.is_symlink() else "neither a file nor a folder"
        raise CheckpointError(
            f"Expected to write {path}, which is {what}. Nothing is written through it: delete it, or choose another "
            "place."
        )


def refuse_links_in(folder: Path) -> None:
    """``refuse_links`` of a folder that is written in place, and of all that is in it."""
    refuse_links(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            refuse_links(Path(parent, name))


def write_atomically(path: str | Path, content: bytes | memoryview) -> None:
    """Replace a file by ``content``: after a crash it holds the old bytes or the new, never a mixture.

    Raises:
        CheckpointError: the disk is full, or the folder cannot be written or made, or a link is in the file's place;
            the file is unchanged.
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
    """Write a table atomically: Parquet by that suffix, else CSV with cells that no spreadsheet runs."""
    if Path(path).suffix == ".parquet":
        file = BytesIO()
        table.to_parquet(file, index=index)
        return write_atomically(path, file.getvalue())
    write_atomically(path, csv(table, index=index).encode())


def write_figure(path: str | Path, canvas: "Figure") -> None:
    """Write a figure atomically, in the path suffix's format; PNG without a suffix."""
    path = Path(path) if Path(path).suffix else Path(f"{path}.png")
    file = BytesIO()
    canvas.savefig(file, dpi=150, format=path.suffix[1:])
    write_atomically(path, file.getvalue())


def csv(table: "pd.DataFrame", *, index: bool = True) -> str:
    """CSV with an apostrophe before text that begins with = + - @, a tab or a return; ``plain`` removes it.

    Numbers, and text that reads as one, stay as they are: a sign alone is not run.
    """
    safe, returns = table.copy(deep=False), False
    for place, kind in enumerate(table.dtypes):
        if kind.kind not in "biufcmM":
            column = table.iloc[:, place].astype(object).map(_guarded)
            returns = returns or any(isinstance(cell, str) and "\r" in cell for cell in column)
            safe.isetitem(place, column)
    safe.columns = table.columns.map(_guarded)
    if index:
        safe.index = table.index.map(_guarded).rename(_guarded(table.index.name))
    # pandas quotes text with a return only if it quotes all text.
    return safe.to_csv(index=index, quoting=QUOTE_NONNUMERIC if returns else QUOTE_MINIMAL)


def _guarded(cell: object) -> object:
    runs = isinstance(cell, str) and re.match(f"'*{RUNS}", cell) and not re.match(NUMBER, cell)
    return f"'{cell}" if runs else cell


def plain(cell: object) -> object:
    """A cell as it was before ``csv`` guarded it.

    >>> plain("'=1+1"), plain("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if isinstance(cell, str) and re.match(f"'+{RUNS}", cell) else cell


def as_written(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table read from CSV, with ``csv``'s guarding apostrophes removed."""
    table = table.rename(columns=plain, index=plain)
    for place, kind in enumerate(table.dtypes):
        if kind.kind not in "biufcmM":
            column = table.iloc[:, place]
            if any(isinstance(cell, str) and cell[:1] == "'" for cell in column):
                table.isetitem(place, column.map(plain))
    return table


@contextmanager
def disk_errors(path: Path, but: type[OSError] | tuple = ()) -> Iterator[None]:
    """Turns an OSError while ``path`` is written into a CheckpointError, except those in ``but``."""
    try:
        yield
    except but:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else str(error)
        todo = "Free some space" if full else "Mend that"
        raise CheckpointError(
            f"Expected to write {path}, but {reason}. {todo} or choose another folder; what was saved "
            "before is untouched."
        ) from error


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, to the disk, to survive a power cut."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
