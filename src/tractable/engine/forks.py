"""Refuses to run in a process forked after JAX started: it lacks JAX's threads and would wait for them for ever."""

import os

from tractable.core.errors import RunError


class _Process:
    began = False  # JAX has run something in this process
    forked = False  # JAX had run something in the parent before the fork


def _in_child() -> None:
    _Process.forked = _Process.began


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)


def check_unforked() -> None:
    """To be called before anything runs.

    Raises:
        RunError: the parent of this forked process had already run something.
    """
    if _Process.forked:
        raise RunError(
            "This process was forked from one that had already run something with JAX, whose threads did not come "
            'along, so it would wait for ever. Start processes with multiprocessing.get_context("spawn"), or by joblib.'
        )
    _Process.began = True
