"""Keeps compiled programs from one process to the next, by JAX's persistent compilation cache."""

import contextlib
import hashlib
import mmap
import os
import platform
from pathlib import Path

import platformdirs

from tractable.core.errors import SettingsError

VARIABLE = "TRACTABLE_CACHE"  # the environment variable that names the cache's folder, or is "off"
MOST = 512 << 20  # bytes that the cache's folder may hold when a process begins; beyond that, old files are deleted
INFORMATION = Path("/proc/cpuinfo")  # Linux's description of the processor


def cache(folder: str | Path | None = None) -> Path:
    """Save programs that are compiled from now on, and reuse saved ones: a second process starts in half the time.

    A program is reused if nothing that it was compiled from has changed: its shapes and constants, JAX's version and
    options. Programs of ``infer`` are saved as traced too, so that a later process need not trace them
    (``core.program_files``). Each kind of processor has its own folder, since compiled programs use the processor's own
    instructions. If the folder holds more than 512 MiB, the oldest programs are deleted.

    Args:
        folder: by default the folder that the environment variable ``TRACTABLE_CACHE`` names; if it is not set, a
            folder inside the user's cache folder.

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
    # The folder's name is a hash of the processor's model and instruction sets.
    here = Path(named).expanduser() / f"{about[0]}-{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}"
    try:
        here.mkdir(parents=True, exist_ok=True)
        _prune(here)
    except OSError as error:
        raise SettingsError(f"The cache's folder {here} cannot be written: {error}. Give another folder.") from error
    jax.config.update("jax_compilation_cache_dir", str(here))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return here


def cache_for_commands() -> None:
    """Switch the cache on for the command line, which works without a cache if the folder cannot be written.

    The cache stays off if ``TRACTABLE_CACHE`` is "off", or if JAX's own variable already names a cache.
    """
    if os.environ.get(VARIABLE, "").lower() != "off" and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with contextlib.suppress(SettingsError):
            cache()


def _prune(folder: Path) -> None:
    """Delete files that a killed process left incomplete, and the oldest files if the folder exceeds ``MOST`` bytes.

    The oldest files are deleted until at most three quarters of ``MOST`` remain. The size of an incomplete file is a
    whole number of memory pages, since a file is written page by page. By chance one in four thousand complete files
    has such a size, and is deleted as well.
    """
    found = []
    for path in (*folder.iterdir(), *folder.glob("*/*")):  # programs for a GPU are in a subfolder
        with contextlib.suppress(FileNotFoundError):  # another process may prune at the same time
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
