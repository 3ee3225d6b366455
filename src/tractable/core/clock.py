"""The time that work takes: in all, by phase, and how much of it is compiling."""

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import jax

COMPILING, PREPARING = "compiling", "preparing"
_spans: list[tuple[float, float]] = []  # when this process was tracing or compiling; in order, and disjoint
_lock = threading.Lock()


def _listen(event: str, duration_secs: float, **_: object) -> None:
    """Add an event that JAX reports at its end to the spans. Tracing a function includes tracing those it calls."""
    if event.startswith("/jax/core/compile/"):
        with _lock:
            end = time.perf_counter()
            start = end - duration_secs
            while _spans and _spans[-1][1] >= start:
                start = min(start, _spans.pop()[0])
            _spans.append((start, end))


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_time() -> float:
    """The seconds that this process has spent tracing and compiling."""
    with _lock:
        return sum((end - start for start, end in _spans), 0.0)


def work_time() -> float:
    """The reading of a clock that stands still while this process traces or compiles."""
    return time.perf_counter() - compile_time()


class Stopwatch:
    """Measures the time since it was made, or since the process's start, and how much of it was compiling."""

    def __init__(self, *, whole_process: bool = False) -> None:
        self.start = time.perf_counter() - (_age() if whole_process else 0.0)
        self.compiled = 0.0 if whole_process else compile_time()

    def phases(self, known: Mapping[str, float], rest: str = PREPARING) -> dict[str, float]:
        """The seconds so far by phase, which add up to all of them.

        Args:
            known: seconds of phases, measured by ``work_time``, so that none of them includes compiling.
            rest: the name of the phase that gets the time of no known phase.
        """
        total, compiling = time.perf_counter() - self.start, compile_time() - self.compiled
        known = {name: seconds for name, seconds in known.items() if name not in (COMPILING, rest)}
        return {**known, rest: max(total - compiling - sum(known.values()), 0.0), COMPILING: compiling}


def add(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The seconds of two runs, by phase."""
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


def _age() -> float:
    """The seconds since this process started."""
    if sys.platform == "linux":  # psutil reads the time of the machine's start, which Linux tells in whole seconds
        started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
    import psutil

    return time.time() - psutil.Process().create_time()
