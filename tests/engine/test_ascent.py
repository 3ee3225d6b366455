"""L-BFGS climbs also where a step leaves the numbers that a computer has."""

import warnings

import numpy as np
import pytest

from tractable.engine.ascent import lbfgs

pytestmark = pytest.mark.quick

# Concave functions of a vector, maximum at MIDDLE, with the ends of their domains; a first step may leave them.
MIDDLE = np.array([30.0, 28.0])


def poisson(z):
    with np.errstate(over="ignore"):
        return np.sum(np.exp(MIDDLE) * z - np.exp(z)), np.exp(MIDDLE) - np.exp(z)


def exponential_rate(z):
    """Nearly a straight line, until it overflows."""
    with np.errstate(over="ignore"):
        return np.sum(42 * z - 42 * np.exp(10 * (z - MIDDLE))), 42 - 420 * np.exp(10 * (z - MIDDLE))


def logarithm(z):
    """−∞ beyond a wall near the maximum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        room = MIDDLE + 1 - z
        return np.sum(1e3 * np.log(room) + 1e3 * z), 1e3 - 1e3 / room


@pytest.mark.parametrize("function", [poisson, exponential_rate, logarithm])
@pytest.mark.parametrize("start", [[0.0, 5.0], [-40.0, 20.0], [29.0, 27.0]])
def test_a_climb_goes_on_after_a_step_too_far(function, start):
    found = lbfgs(function, np.array(start), lambda: False, maxiter=500, ftol=1e-15, gtol=1e-8)
    wanted = MIDDLE - np.log(10) / 10 if function is exponential_rate else MIDDLE
    np.testing.assert_allclose(found.x, wanted, atol=1e-4)


def test_stop_ends_a_climb_where_it_is():
    asked = iter([False, False, True])
    found = lbfgs(lambda z: (-np.sum((z - MIDDLE) ** 4), -4 * (z - MIDDLE) ** 3), np.zeros(2), lambda: next(asked))
    assert found.nit == 3 and np.max(np.abs(found.x - MIDDLE)) > 1e-3
