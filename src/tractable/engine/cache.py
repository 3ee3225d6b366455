"""Keeps compiled programs from one process to the next, by JAX's persistent compilation cache."""

import contextlib
import hashlib
import mmap
import os
import platform
from pathlib import Path

import platformdirs

from tractable.core.errors import SettingsError

VARIABLE = "TRACTABLE_CACHE"  # an environment variable: a folder, or "off"
MOST = 512 << 20  # bytes that the cache's folder may hold when a process begins
INFORMATION = Path("/proc/cpuinfo")


def cache(folder: str | Path | None = None) -> Path:
    """Saves programs compiled from now on and reuses saved ones: a second process starts in half the time.

    A program is reused if nothing it was compiled from has changed: its shapes and constants, JAX's version and
    options. Each kind of processor has its own folder, since programs use its instructions. Above 512 MiB the oldest
    programs are deleted.

    Args:
        folder: by default the environment's ``TRACTABLE_CACHE``, or one in the user's cache folder.

    Returns:
        The folder for this kind of processor.

    Raises:
        SettingsError: the folder cannot be written.
    """
    import jax

    named = folder or os.environ.get(VARIABLE) or platformdirs.user_cache_dir("tractable")
    about = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = INFORMATION.read_text().splitlines()
        about += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    # A name for this kind of processor, from its model and instruction sets.
    here = Path(named).expanduser() / f"{about[0]}-{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}"
    try:
        here.mkdir(parents=True, exist_ok=True)
        _prune(here)
    except OSError as error:
        raise SettingsError(f"The cache's folder {here} cannot be written: {error}. Give cache a folder.") from error
    jax.config.update("jax_compilation_cache_dir", str(here))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return here


def cache_for_commands() -> None:
    """The command line's ``cache``, unless the environment says "off" or names JAX's own, or it cannot be written."""
    if os.environ.get(VARIABLE, "").lower() != "off" and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with contextlib.suppress(SettingsError):
            cache()


def _prune(folder: Path) -> None:
    """Delete what was written first, to three quarters of what may be there, and what was being written at a kill.

    A file is written by whole pages: cut short, it has a whole number of them, as one in four thousand others have.
    """
    found = []
    for path in (*folder.iterdir(), *folder.glob("*/*")):  # XLA has a folder of its own for a GPU
        with contextlib.suppress(FileNotFoundError):  # another process prunes too
            about = path.stat()
            if path.is_dir():
                continue
            if about.st_size % mmap.PAGESIZE == 0 and path.parent == folder:
                path.unlink()
            else:
                found.append((about.st_mtime, about.st_size, path))
    there = sum(size for _, size, _ in found)
    for _, size, path in sorted(found) if there > MOST else []:
        if there <= 0.75 * MOST:
            break
        path.unlink(missing_ok=True)
        there -= size
