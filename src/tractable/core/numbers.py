"""Types of numbers, the constant log 2π, and a check of positive numbers."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from tractable.core.errors import ModelError

Real = float | int
Number = jax.Array | Real
Numbers = ArrayLike | Sequence[Any]
LOG_2PI = float(np.log(2 * np.pi))


def positive(**values: Real) -> None:
    """Raise a ModelError about the first value that is not positive and finite."""
    for name, value in values.items():
        if not 0 < value < np.inf:
            raise ModelError(f"{name} must be positive and finite; got {value}.")
