"""Stops work in good order on Ctrl-C and SIGTERM."""

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

from tractable.engine.forks import check_unforked

PATIENCE = 1.0  # seconds that a device gets to finish after a stop was asked for


class _Process:
    signal: int | None = None  # the last one received
    savers = 0  # nested ``ending`` blocks that still have to save their work
    left: jax.Array | None = None  # the last result waited for; abandoned after a stop
    code: int | None = None  # exit code, for ending the process without waiting for ``left``


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C and SIGTERM ask a run to stop at the end of a block; a second one stops it at once."""
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
    """Surrounds work that saves its state when stopped. After SIGTERM, the outermost block ends the process with exit
    code 143, unless ``leave`` is False."""
    check_unforked()
    if threading.current_thread() is not threading.main_thread():  # other threads receive no signals
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
    """The exit code of a process stopped by a signal, 128 + its number, as in shells."""
    return 128 + (_Process.signal or signal.SIGINT)


def waited(result: jax.Array, stop: Callable[[], bool]) -> bool:
    """Waits for a result; False if it is not ready a second after ``stop()`` became true.

    Python handles no signal while it waits inside JAX, and a device's work cannot be ended: it is abandoned.
    """
    _Process.left = result
    began, asked = time.monotonic(), None
    while not result.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
        now = time.monotonic()
        if asked is None and stop():
            asked = now
        if asked is not None and now - asked > PATIENCE:
            return False
        time.sleep(min(0.005, 0.02 * (now - began)))  # the wait overshoots by a fiftieth at most
    return True


@atexit.register
def _leave() -> None:
    """Exits without JAX's own wait for an abandoned computation, where the exit code is known; else says what is waited
    for, since Python does not tell what a script gave ``sys.exit``."""
    left: Any = _Process.left
    if left is None or left.is_ready():
        return
    if _Process.code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_Process.code)
    print("Waiting for the steps that were under way when the run was stopped; Ctrl-C ends them.", file=sys.stderr)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # inside JAX's wait Python would not hear it
