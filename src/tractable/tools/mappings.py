"""Compiled programs hold memory mappings, of which Linux gives a process 65,530: past them it ends without a word."""

import gc
import time
from pathlib import Path

import jax

MAPS = Path("/proc/self/maps")  # Linux's; elsewhere nothing is counted
MOST = 10_000  # by which they may grow before programs are forgotten: some eighty fits of fresh models
SECONDS = 1.0  # between counts, which take 1 ms a thousand mappings: no second adds more than some hundred


class _Left:
    count = 0  # mappings that were there when programs were last forgotten
    counted = -SECONDS  # when they were last counted


def mappings() -> int:
    """How many this process has; 0 where the system does not say."""
    return MAPS.read_bytes().count(b"\n") if MAPS.exists() else 0


def make_room() -> None:
    """Before a run: forget compiled programs once there are many, as JAX keeps those of models that are gone.

    A model of one's own is compiled for as it is made, a hundred mappings and twenty megabytes each: a thousand fits
    of fresh models would end the process. What is asked for again is compiled again, to the same bits.
    """
    if time.monotonic() < _Left.counted + SECONDS:
        return
    _Left.counted = time.monotonic()
    if mappings() > MOST + _Left.count:
        jax.clear_caches()
        gc.collect()
        _Left.count = mappings()
