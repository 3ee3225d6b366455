"""A process forked after JAX began has none of JAX's threads: its first program would wait for them for ever."""

import os

from tractable.tools.errors import RunError


class _Process:
    began = False  # something was run in this process
    forked = False  # in the one that it was forked from


def _in_child() -> None:
    _Process.forked = _Process.began


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)


def check_unforked() -> None:
    """Before anything is run.

    Raises:
        RunError: in a process that was forked from one in which something had been run.
    """
    if _Process.forked:
        raise RunError(
            "This process was forked from one that had already run something with JAX, whose threads did not come "
            'along, so it would wait for ever. Start processes with multiprocessing.get_context("spawn"), or by joblib.'
        )
    _Process.began = True
