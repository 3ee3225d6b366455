"""Maxima of smooth functions on the host, by SciPy's L-BFGS."""

from collections.abc import Callable
from typing import Any

import numpy as np

TOO_FAR = 1e6  # a step to a value lower than the first by this many times its size went too far
Slope = tuple[float, np.ndarray]


def lbfgs(
    uphill: Callable[[np.ndarray], Slope],
    start: np.ndarray,
    stop: Callable[[], bool],
    bounds: list | None = None,
    **options: float | int,
) -> Any:
    """Climb ``uphill``, which gives a value and its gradient (d,), from ``start``: SciPy's result, of minus the value.

    The result's ``trace`` holds the values after each iteration.

    A value that is not finite, or lower than the first one by a factor of a million, counts as lower than that one, but
    of its order: from a huge number the line search would conclude that the step should be 0, and end the climb.

    Args:
        stop: called after every iteration; true ends the climb where it is.
        bounds: as SciPy takes them.
        options: SciPy's, as ``maxiter`` and ``gtol``.
    """
    import scipy.optimize

    first: float | None = None

    def downhill(position: np.ndarray) -> Slope:
        nonlocal first
        value, gradient = uphill(position)
        first = -value if first is None else first
        if -value <= first + TOO_FAR * (1 + abs(first)) and np.all(np.isfinite(gradient)):
            return -value, -gradient
        return first + 1 + abs(first), np.zeros_like(gradient)

    trace: list[float] = []

    def after_iteration(intermediate_result: Any) -> None:
        trace.append(-float(intermediate_result.fun))
        if stop():
            raise StopIteration

    result = scipy.optimize.minimize(
        downhill, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=after_iteration,
        options={"maxcor": 20, **options},
    )  # fmt: skip
    result.trace = np.array(trace)
    return result
