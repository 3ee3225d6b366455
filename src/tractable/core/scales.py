"""Means and sds of numbers of any size that 64 bits can hold."""

import numpy as np


def moments(columns: np.ndarray, weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of each column of (n, d), whose rows have weights (n,).

    Each column is first divided by the power of two above its largest number, which needs no rounding. Without the
    division, squares of numbers above 1e154 would be infinite, and squares of numbers below 1e-162 would be 0. The sd
    of equal numbers is 0.

    >>> mean, sd = moments(np.array([[1e300, 2e-300], [3e300, 4e-300]]))
    >>> mean.tolist(), sd.tolist()
    ([2e+300, 3e-300], [1e+300, 1e-300])
    """
    exponent = np.frexp(np.abs(columns).max(0))[1]
    unit = np.ldexp(columns, -exponent)
    share = None if weight is None else weight / weight.max()
    mean = np.average(unit, axis=0, weights=share)
    squares = unit - mean
    np.square(squares, out=squares)
    sd = np.sqrt(np.average(squares, axis=0, weights=share))
    equal = np.ptp(unit, axis=0) == 0  # the computed sd of these columns is rounding error
    return np.ldexp(mean, exponent), np.where(equal, 0.0, np.ldexp(sd, exponent))
