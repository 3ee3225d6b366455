"""What counts things."""

import numpy as np
import pytest

from tractable.tools.counts import is_count


@pytest.mark.parametrize("value", [1, 7, np.int64(1), np.uint8(200), 10**12])
def test_counts(value):
    assert is_count(value)


@pytest.mark.parametrize("value", [0, -1, True, np.bool_(True), 1.0, np.float32(2), "3", None, [1], np.ones(1, int)])
def test_others(value):
    assert not is_count(value)


def test_least():
    assert is_count(4, 4) and is_count(0, 0) and not is_count(3, 4)
