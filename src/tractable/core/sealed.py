"""JSON files sealed with the SHA-256 of their entries and of other files, so that reading detects damage."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tractable.core.errors import CheckpointError
from tractable.core.writing import disk_errors, write_atomically

FORMAT = 1


def seal(entries: Mapping) -> dict:
    """``entries`` as JSON reads them back, with their SHA-256 as an additional entry."""
    entries = plain(entries)
    return {**entries, "sha256": _sum_of(entries)}


def unseal(entries: dict) -> dict:
    """The entries without their SHA-256; a ValueError if they differ from those that were sealed."""
    if not isinstance(entries, dict) or "sha256" not in entries:
        raise ValueError("it has no checksum")
    entries = dict(entries)
    if entries.pop("sha256") != _sum_of(entries):
        raise ValueError("its checksum does not match")
    return entries


def write_sealed(path: Path, entries: Mapping, files: Iterable[str] = ()) -> None:
    """Write entries as JSON, atomically, with their checksum and those of ``files``, which the folder already holds."""
    with disk_errors(path):
        sums = {name: hashlib.sha256((path.parent / name).read_bytes()).hexdigest() for name in files}
    about = seal({**entries, "sealed": FORMAT, "files": sums})
    write_atomically(path, json.dumps(about, indent=1).encode())


def read_sealed(path: Path) -> tuple[dict[str, Any], dict[str, bytes] | None]:
    """The entries and the contents of the files that ``write_sealed`` sealed; no contents (None) without a seal.

    Raises:
        CheckpointError: a file is damaged, changed by hand, missing, or written by a later version.
    """
    where = path
    try:
        entries = json.loads(path.read_bytes())
        if not isinstance(entries, dict):
            raise ValueError("expected entries by name")
        if not {"sha256", "sealed", "files"} & set(entries):  # written by an earlier version
            return entries, None
        entries = unseal(entries)
        version, sums, contents = entries.pop("sealed"), entries.pop("files"), {}
        if version != FORMAT:
            raise CheckpointError(
                f"{path} was written by a later version of tractable, in form {version}; expected form {FORMAT}. Read "
                "the file with that version."
            )
        for name, expected in sums.items():
            where = path.parent / name
            if not where.resolve().is_relative_to(path.parent.resolve()):  # forged, or a link out of the folder
                raise ValueError(f"{path.name} names a file outside its folder")
            contents[name] = where.read_bytes()
            if hashlib.sha256(contents[name]).hexdigest() != expected:
                raise ValueError(f"it has changed since {path.name} was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{where} is damaged, or was changed by hand ({error}). Restore the folder from a copy, or run again."
        ) from error
    return entries, contents


def plain(entries: Mapping) -> dict:
    """``entries`` as JSON reads them back: tuples become lists, keys strings."""
    try:
        return json.loads(json.dumps(entries))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"A manifest holds numbers, strings, lists and dicts, as JSON does; got another object: {error}."
        ) from error


def _sum_of(entries: dict) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
