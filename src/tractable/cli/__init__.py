"""The command line. ``tractable --help`` says what it does."""

import gc
import os
import sys


def main() -> None:
    """The program ``tractable``."""
    # Python searches for garbage after each 700 new objects, which took a tenth of a command's time, and found little.
    gc.set_threshold(300_000)
    from tractable.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]  (for terminals of few signs)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as end:
        if end.code == 1:  # rich and click end so where the output's reader has closed the pipe; no command does
            end.code = 0
        raise
    finally:
        end_output()
        gc.freeze()  # else Python searches all objects for garbage as it ends, which takes longer than many a command


def end_output() -> None:
    """Write what is left of the output; drop it if its reader, such as ``head``, has closed the pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
