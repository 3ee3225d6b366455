"""Drops compiled programs from memory before a process has too many memory mappings.

Every compiled program holds memory mappings. Linux allows a process 65,530, and kills it silently beyond that.
"""

import gc
import time
from pathlib import Path

import jax

MAPS = Path("/proc/self/maps")  # Linux's list of a process's mappings; on other systems nothing is counted
MOST = 5_000  # number of new mappings above which compiled programs are dropped: about forty fits of new models
SECONDS = 1.0  # time between two counts. To count a thousand mappings takes 1 ms; a second of work adds a few hundred.


class _Left:
    count = 0  # number of mappings that remained when programs were last dropped
    counted = -SECONDS  # time of the last count, in seconds of ``time.monotonic``


def mappings() -> int:
    """How many mappings this process has; 0 if the system does not say."""
    return MAPS.read_bytes().count(b"\n") if MAPS.exists() else 0


def make_room(most: int | None = None) -> None:
    """Drop compiled programs if there are more than ``most`` new mappings (by default ``MOST``). Called before a run.

    JAX keeps even the programs of deleted models. Each new model is compiled, which takes a hundred mappings and twenty
    megabytes, so a thousand fits of new models would end the process. A dropped program is compiled again when it is
    needed, and gives exactly the same results.
    """
    if time.monotonic() < _Left.counted + SECONDS:
        return
    _Left.counted = time.monotonic()
    if mappings() > (MOST if most is None else most) + _Left.count:
        jax.clear_caches()
        gc.collect()
        _Left.count = mappings()
