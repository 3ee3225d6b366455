"""The command line. ``tractable --help`` says what it does."""

import os
import sys
from pathlib import Path


def main() -> None:
    """The program ``tractable``."""
    from tractable.cli.app import app

    remember_compilations()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


def remember_compilations() -> None:
    """Keep compiled programs between commands, in the user's cache folder; where there is none, do without."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return  # the user's own
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "tractable" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_compilation_cache_max_size", 1 << 28)
