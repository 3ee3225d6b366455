"""Stops a run on Ctrl-C and SIGTERM after it has saved its state."""

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

from tractable.core.errors import enough_memory
from tractable.engine.forks import check_unforked

PATIENCE = 1.0  # seconds that a device may take to finish its work after a stop was requested


class _Process:
    signal: int | None = None  # the latest signal received
    savers = 0  # number of nested ``ending`` blocks that still have to save their work
    left: jax.Array | None = None  # the latest result that was waited for; after a stop it may still be unfinished
    code: int | None = None  # exit code of a process that ends without waiting for ``left``


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A context with a function that is true once Ctrl-C or SIGTERM has requested a stop.

    The run is then expected to stop at its next opportunity. A second signal stops it at once.
    """
    request = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield request.is_set
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, frame: FrameType | None) -> None:
        _Process.signal = number
        if request.is_set():
            _Process.code = 128 + number
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(_Process.code)
        request.set()

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield request.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ending(*, leave: bool = True) -> Iterator[None]:
    """A context for work that saves its state when it is stopped.

    After SIGTERM, the outermost such context ends the process with exit code 143, unless ``leave`` is False.
    """
    check_unforked()
    if threading.current_thread() is not threading.main_thread():  # other threads receive no signals
        yield
        return
    outermost = not _Process.savers
    if outermost:
        _Process.signal = None
    _Process.savers += 1
    try:
        with enough_memory():
            yield
    finally:
        _Process.savers -= 1
    if outermost and leave and _Process.signal == signal.SIGTERM:
        _Process.code = exit_code()
        raise SystemExit(_Process.code)


def exit_code() -> int:
    """The exit code of a process that a signal stopped: 128 + the signal's number, as in shells."""
    return 128 + (_Process.signal or signal.SIGINT)


def wait_for(result: jax.Array, stop: Callable[[], bool]) -> bool:
    """Wait for a result; False if it is not ready a second after ``stop()`` became true.

    The wait is a loop in Python, since Python handles no signal while it waits inside JAX. After a stop the loop no
    longer waits for the device, whose work cannot be ended.
    """
    _Process.left = result
    start_time, stop_time = time.monotonic(), None
    while not result.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
        now = time.monotonic()
        if stop_time is None and stop():
            stop_time = now
        if stop_time is not None and now - stop_time > PATIENCE:
            return False
        time.sleep(min(0.005, 0.02 * (now - start_time)))  # so the wait is at most 2 % longer than the work
    return True


@atexit.register
def _leave() -> None:
    """End the process without JAX's own wait for an unfinished result, if the exit code is known.

    Otherwise print that the process waits. The exit code is unknown if a script called ``sys.exit`` itself.
    """
    result: Any = _Process.left
    if result is None or result.is_ready():
        return
    if _Process.code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_Process.code)
    print("Waiting for the steps that were under way when the run was stopped; Ctrl-C ends them.", file=sys.stderr)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would not run during JAX's wait
