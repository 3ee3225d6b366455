"""Maxima of smooth functions on the host, by SciPy's L-BFGS."""

from collections.abc import Callable
from typing import Any

import numpy as np

TOO_FAR = 1e6  # a step went too far if its value is below the first value f by more than this many times 1 + |f|
Slope = tuple[float, np.ndarray]


def lbfgs(
    uphill: Callable[[np.ndarray], Slope],
    start: np.ndarray,
    stop: Callable[[], bool],
    bounds: list | None = None,
    **options: float | int,
) -> Any:
    """Maximise ``uphill`` from ``start`` by SciPy's L-BFGS, and return SciPy's result.

    SciPy minimises, so the result's ``fun`` and ``jac`` are minus the value and minus its gradient. A further attribute
    of the result, ``trace``, holds the values of ``uphill`` after each iteration.

    A step can go too far: to a value that is not finite, or to a value far below the first (see ``TOO_FAR``). SciPy
    then gets a number a little worse than the first value, with a gradient of zero. If it got a huge number, its line
    search would conclude that the step should be 0, and would end the climb.

    Args:
        uphill: gives the value at a position (d,), and the gradient (d,).
        stop: called after every iteration; the climb ends if it returns true.
        bounds: bounds of each coordinate, as ``scipy.optimize.minimize`` takes them.
        options: further options of SciPy's L-BFGS-B, such as ``maxiter`` and ``gtol``.
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
