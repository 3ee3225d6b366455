"""What is packed is read in order, in parts of any size."""

import numpy as np
import pandas as pd
import pytest

from tractable.core.errors import DataError
from tractable.tables import sources

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_arrays_are_read_in_parts(rows):
    x, y = np.arange(2.0 * rows).reshape(rows, 2), np.arange(rows)
    source, named = sources.of_arrays({"x": x, "y": y})
    assert source.size == rows and list(named) == ["x", "y"]
    for first in range(rows + 1):
        parts = list(source.read(first, 3))
        assert [len(part["y"]) for part in parts] == [min(3, rows - i) for i in range(first, rows, 3)]
        np.testing.assert_array_equal(np.concatenate([p["x"] for p in parts]) if parts else x[:0], x[first:])


def test_arrays_of_other_lengths_are_refused():
    with pytest.raises(DataError, match="the same number of rows; got x: 3, y: 2"):
        sources.of_arrays({"x": np.zeros((3, 1)), "y": np.zeros(2)})


@pytest.mark.parametrize("lengths", [[7], [2, 3, 2], [1] * 7, [0, 7, 0], [4, 0, 3]])
def test_frames_are_cut_to_one_length(lengths):
    whole, ends = pd.DataFrame({"a": range(7)}), np.cumsum(lengths)
    cut = list(sources._cut(iter([whole[end - n : end] for n, end in zip(lengths, ends, strict=True)]), 0, 3))
    assert [list(frame["a"]) for frame in cut] == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(list(frame.index) == list(range(len(frame))) for frame in cut)
