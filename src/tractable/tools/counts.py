"""What can count draws, rows, units: one rule, so that no setting takes True or refuses NumPy's integers."""

from typing import Any

import numpy as np


def is_count(value: Any, least: int = 1) -> bool:
    """Whether ``value`` is an integer, Python's or NumPy's and no bool, of at least ``least``."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)
