"""Rows of sequences are put in order, and at the steps that their times say."""

import numpy as np
import pandas as pd
import pytest

from tractable.core.errors import DataError, TractableWarning
from tractable.tables.ordered import places

pytestmark = pytest.mark.quick


def test_times_are_steps_of_their_commonest_distance():
    """Two sequences, out of order, with a step missing in each: every row's step counts from its sequence's first."""
    table = pd.DataFrame({"who": list("baabbaab"), "t": [14, 6, 4, 10, 12, 0, 2, 18]})
    with pytest.warns(TractableWarning, match="Steps are 2 apart; the model sums over 1 step"):
        found = places(table, "who", "t")
    assert found.sequence.tolist() == [1, 0, 0, 1, 1, 0, 0, 1] and list(found.names) == ["a", "b"]
    assert found.step.tolist() == [2, 3, 2, 0, 1, 0, 1, 4] and found.unit == "2"


def test_without_times_rows_are_steps():
    found = places(pd.DataFrame({"who": list("abab")}), "who")
    assert found.step.tolist() == [0, 0, 1, 1] and found.unit == ""
    assert places(pd.DataFrame({"x": [3, 1, 2]})).step.tolist() == [0, 1, 2]


def test_times_that_are_not_even_are_ranks():
    table = pd.DataFrame({"t": [2.5, 0.0, 1.0, 7.1]})
    with pytest.warns(TractableWarning, match="not evenly spaced"):
        found = places(table, None, "t")
    assert found.step.tolist() == [2, 0, 1, 3] and found.unit == ""


@pytest.mark.parametrize(
    ("apart", "unit"),
    [
        ("1D", "1 day"),
        ("2D", "2 days"),
        ("1h", "1 hour"),
        ("6h", "6 hours"),
        ("15min", "15 minutes"),
        ("90s", "90 seconds"),
    ],
)
def test_steps_of_dates_are_in_words(apart, unit):
    table = pd.DataFrame({"t": pd.date_range("2024-03-01", periods=5, freq=apart)})
    found = places(table, None, "t")
    assert found.unit == unit and found.step.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("table", "by", "sentence"),
    [
        ({"t": [1, 1, 2]}, None, "'t' is 1 twice; expected one row"),
        ({"who": ["a", "b", "b"], "t": [1, 2, 2]}, "who", "'t' is 2 twice for who b"),
        ({"who": ["a", None, "b"], "t": [1, 2, 3]}, "who", "but has no value in 1 row"),
        ({"t": [1.0, np.nan, 2.0]}, None, "'t' has no time in 1 row"),
        ({"t": ["one"]}, None, "'t' expects numbers or dates; got 'one'"),
        ({"day": [1, 2, 3]}, None, "--time t is not a column of the table"),
    ],
)
def test_places_that_cannot_be_known(table, by, sentence):
    with pytest.raises(DataError, match=sentence):
        places(pd.DataFrame(table), by, "t")
