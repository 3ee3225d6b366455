"""Refuses to run in a process that was forked after JAX started.

A forked process has no copy of JAX's threads, and would wait for them for ever.
"""

import os

from tractable.core.errors import RunError


class _Process:
    has_run = False  # JAX has run something in this process
    is_late_fork = False  # JAX had run something in the parent before this process was forked


def _in_child() -> None:
    _Process.is_late_fork = _Process.has_run


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)


def check_unforked() -> None:
    """Raise an error in a process that was forked after JAX started. To be called before JAX runs anything.

    Raises:
        RunError: this process was forked from one that had already run something with JAX.
    """
    if _Process.is_late_fork:
        raise RunError(
            "This process was forked from one that had already run something with JAX. JAX's threads were not forked, "
            'so this process would wait for ever. Start processes with multiprocessing.get_context("spawn") or joblib.'
        )
    _Process.has_run = True
