"""A lock that lets only one run at a time write to a folder; its file names the owner."""

import contextlib
import json
import os
import platform
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tractable.core.errors import CheckpointError
from tractable.core.words import tell
from tractable.core.writing import disk_errors, refuse_links

LOCK = ".lock"  # name of the file in the run's folder; it exists while the run lasts
_mine = threading.local()  # its attribute ``folders`` is the set of folders that this thread has locked
_open: set[int] = set()  # descriptors of the lock files that this process has open


@contextlib.contextmanager
def lock(folder: str | Path | None) -> Iterator[None]:
    """A context in which only this thread writes to ``folder``, which is made if missing; None needs no lock.

    The lock is the operating system's lock on a file. It ends with the process, even if the process is killed. A thread
    may nest ``lock`` on the same folder. The file names the lock's owner and the time at which the lock was taken.

    Raises:
        CheckpointError: another thread, process or host has locked the folder, or the folder cannot be written.

    Warns:
        TractableWarning: the owner's process ended without unlocking; this process takes the lock over.
    """
    if folder is None:
        yield
        return
    folder, mine = Path(folder), _mine.__dict__.setdefault("folders", set())
    with disk_errors(folder):
        parts = [folder.absolute(), *folder.absolute().parents]
        within = next((i for i, part in enumerate(parts) if part.resolve() in mine), 0)
        for part in parts[:within]:  # a run's folder may be reached by a link, but a folder inside it may not
            refuse_links(part)
        folder.mkdir(parents=True, exist_ok=True)
        known = folder.resolve()
    if known in mine:
        yield
        return
    path = known / LOCK
    with disk_errors(path):
        descriptor = _take(path)
    mine.add(known)
    try:
        yield
    finally:
        mine.discard(known)
        if descriptor in _open:  # otherwise the lock belongs to the parent of this forked process
            with contextlib.suppress(OSError):  # the folder may be gone
                if _same(path, descriptor):
                    path.unlink()
            _open.discard(descriptor)
            os.close(descriptor)


def _take(path: Path) -> int:
    """Lock the file, write this process into it as its owner, and return the file's descriptor."""
    while True:
        refuse_links(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            _refuse_others(path, descriptor)
            locked = _lock(descriptor)
            if locked is False or (locked is None and _lives(_owner(descriptor))):
                raise CheckpointError(
                    f"{path.parent} is written by another run: {_words(_owner(descriptor))}. Wait for it, or choose "
                    "another folder."
                )
            if not _same(path, descriptor):  # its owner deleted the file after it was opened here
                os.close(descriptor)
                continue
            if before := _owner(descriptor):
                if before.get("host") != _host():
                    raise CheckpointError(
                        f"{path.parent} is written by a run on another host: {_words(before)}. Wait for it; if it has "
                        f"ended, delete {path}, or choose another folder."
                    )
                tell(f"{path.parent} was left by a run that has gone ({_words(before)}); its lock is taken over.")
            os.ftruncate(descriptor, 0)
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            os.pwrite(descriptor, json.dumps({"process": os.getpid(), "host": _host(), "since": since}).encode(), 0)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        _open.add(descriptor)
        return descriptor


def _refuse_others(path: Path, descriptor: int) -> None:
    """Raise a CheckpointError if the file is no lock: if it has other content, or a second name (a hard link)."""
    # A power cut can leave a file of zero bytes.
    about, text = os.fstat(descriptor), os.pread(descriptor, 4096, 0).strip(b"\0 \n")
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or (text and not _owner(descriptor)):
        raise CheckpointError(
            f"{path} is no lock of a run, so it was not changed. Delete it if nobody needs it, or choose another "
            "folder."
        )


def _same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> dict[str, object]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except (ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _words(owner: dict[str, object]) -> str:
    if not owner:
        return "its process is not known yet"
    here = " (this one)" if (owner.get("process"), owner.get("host")) == (os.getpid(), _host()) else ""
    return f"process {owner.get('process')}{here} on {owner.get('host')}, since {owner.get('since')} UTC"


def _lives(owner: dict[str, object]) -> bool:
    """Whether the owner is a running process of this host. This matters only if the file system has no locks."""
    pid = owner.get("process")
    return owner.get("host") == _host() and isinstance(pid, int) and psutil.pid_exists(pid)


def _host() -> str:
    return platform.node()


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        os.lseek(descriptor, 2**20, os.SEEK_SET)  # Lock a byte behind the text, which other processes must read.
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(descriptor: int) -> bool | None:
        """Whether this process now has the lock; None if the file system has no locks, as on some clusters."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


def _in_child() -> None:
    """Forget all locks in a forked process: they belong to its parent and end with the parent."""
    for descriptor in _open:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()
    _mine.__dict__.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
