"""Six threads at once learn what each would have learnt alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from every_method import CASES, numbers

import tractable as tr

pytestmark = pytest.mark.laws

NAMES = ("map", "map adam", "laplace", "rejection", "random-walk", "inla")


def learnt(name: str) -> tuple[np.ndarray, str]:
    case = CASES[name]
    posterior = tr.infer(case.model, case.rows, case.method, seed=3, progress=False)
    return numbers(posterior), posterior.report().verdict


def test_threads_equal_serial_runs():
    """Methods beside each other, and one method beside itself, to the last bit."""
    with ThreadPoolExecutor(6) as threads:
        together = dict(zip(NAMES, threads.map(learnt, NAMES), strict=True))
        twins = list(threads.map(learnt, ["random-walk"] * 3))
    for name in NAMES:
        values, verdict = learnt(name)
        np.testing.assert_array_equal(together[name][0], values)
        assert together[name][1] == verdict
    for values, _ in twins:
        np.testing.assert_array_equal(values, together["random-walk"][0])
