"""Ctrl-C and SIGTERM, while work goes on."""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax

from tractable.tools.forks import check_unforked

PATIENCE = 1.0  # seconds that a device gets to finish once a stop was asked for


class _Process:
    signal: int | None = None  # the last that was heard
    savers = 0  # who still have to save what there is
    left: jax.Array | None = None  # what was waited for last: nobody does any more, where a stop was asked for
    code: int | None = None  # with which the process is to end without waiting for it


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C and SIGTERM ask a run to stop at a block's edge; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, frame: FrameType | None) -> None:
        _Process.signal = number
        if asked.is_set():
            _Process.code = 128 + number
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(_Process.code)
        asked.set()

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ending(*, leave: bool = True) -> Iterator[None]:
    """Around work that runs programs, and saves what there is when it is stopped: where SIGTERM stopped it, the
    outermost of these then ends the process with exit code 143, unless not to ``leave``."""
    check_unforked()
    if threading.current_thread() is not threading.main_thread():  # which hears no signals
        yield
        return
    outermost = not _Process.savers
    if outermost:
        _Process.signal = None
    _Process.savers += 1
    try:
        yield
    finally:
        _Process.savers -= 1
    if outermost and leave and _Process.signal == signal.SIGTERM:
        _Process.code = exit_code()
        raise SystemExit(_Process.code)


def exit_code() -> int:
    """Of a process that a signal stopped, as shells have it."""
    return 128 + (_Process.signal or signal.SIGINT)


def waited(result: jax.Array, stop: Callable[[], bool]) -> bool:
    """Wait for what is computed; False where ``stop()`` was asked for a second ago, and it is still not there.

    Python hears no signal while it waits in JAX, and nothing ends what a device has begun: it is left alone.
    """
    _Process.left = result
    began, asked = time.monotonic(), None
    while not result.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
        now = time.monotonic()
        if asked is None and stop():
            asked = now
        if asked is not None and now - asked > PATIENCE:
            return False
        time.sleep(min(0.005, 0.02 * (now - began)))  # so that waiting costs a fiftieth at most
    return True


@atexit.register
def _leave() -> None:
    """JAX would wait for what is still computed."""
    left: Any = _Process.left
    if _Process.code is not None and left is not None and not left.is_ready():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_Process.code)
