"""Compiled programs hold memory mappings; Linux gives a process 65,530 and kills it silently beyond that."""

import gc
import time
from pathlib import Path

import jax

MAPS = Path("/proc/self/maps")  # Linux; elsewhere nothing is counted
MOST = 5_000  # mappings gained before compiled programs are dropped: some forty fits of fresh models
SECONDS = 1.0  # between counts, which take 1 ms a thousand mappings: no second adds more than some hundred


class _Left:
    count = 0  # mappings that were there when programs were last forgotten
    counted = -SECONDS  # when they were last counted


def mappings() -> int:
    """How many mappings this process has; 0 if the system does not say."""
    return MAPS.read_bytes().count(b"\n") if MAPS.exists() else 0


def make_room(most: int | None = None) -> None:
    """Before a run: drop compiled programs past ``most`` mappings (``MOST``): JAX keeps even those of deleted models.

    Each fresh model is compiled anew and takes a hundred mappings and twenty megabytes, so a thousand fits of fresh
    models would end the process. Dropped programs are compiled again on use, to the same bits.
    """
    if time.monotonic() < _Left.counted + SECONDS:
        return
    _Left.counted = time.monotonic()
    if mappings() > (MOST if most is None else most) + _Left.count:
        jax.clear_caches()
        gc.collect()
        _Left.count = mappings()
