"""Columns of tables by hand: levels, groups and targets."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tractable.data import encoder
from tractable.data.columns import MOST_LEVELS, REST, fit_column, spread_of_groups
from tractable.data.shards import Shard, Sharded, last_apart
from tractable.data.targets import Target, encode_censored
from tractable.tools.errors import DataError, TractableWarning

pytestmark = pytest.mark.quick


def test_the_spread_of_groups_is_dersimonian_and_lairds():
    rng = np.random.default_rng(3)
    size, group = 5, np.repeat([0, 1, 2, 4], [3, 5, 4, 6])  # no row of group 3
    z, left = rng.normal(size=18), rng.normal(size=18) + np.array([2.0, -1.0, 0.5, 9.0, -2.0])[group]
    squares = np.array([np.sum(z[group == g] ** 2) for g in range(size)])
    own = np.array([z[group == g] @ left[group == g] / squares[g] if squares[g] else 0.0 for g in range(size)])
    noise = sum(np.sum((left[group == g] - z[group == g] * own[g]) ** 2) for g in range(size)) / (18 - 4)
    wanted = (np.sum(squares * own**2) / noise - 4) / squares.sum()
    found, ratio = spread_of_groups(left, z, group, size)
    np.testing.assert_allclose(found, squares)
    assert ratio == pytest.approx(max(wanted, 0.0), rel=1e-12)
    slopes = np.array([3.0, -3.0, 1.0, 0.0, 5.0])[group]
    assert spread_of_groups(z * slopes + 0.1 * left, z, group, size)[1] > 1


def test_the_rarest_levels_are_one():
    """The most frequent have an effect each; the rest are counted together."""
    counts = {f"level {i:03}": 1 + (i < MOST_LEVELS - 1) * (i + 2) for i in range(MOST_LEVELS + 4)}
    values = pd.Series(np.repeat(list(counts), list(counts.values())))
    with pytest.warns(TractableWarning, match=f"{MOST_LEVELS - 1} most frequent .* of the 5 rarest"):
        (column,) = fit_column(values, False)
    share = dict(zip(column.levels, column.shares, strict=True))
    assert len(share) == MOST_LEVELS and share[REST] == pytest.approx(5 / len(values))
    assert share["level 000"] == pytest.approx(3 / len(values)) and sum(share.values()) == pytest.approx(1)


def files(count):
    """Rows of files that are not there, ten in each."""
    shards = [Shard(Path(f"{i}.npy"), 10) for i in range(count)]
    return Sharded(shards, (2,), np.dtype(np.float32), True, True)


@pytest.mark.parametrize(
    ("count", "share", "last"), [(10, 0.2, 2), (10, 0.24, 2), (10, 0.01, 1), (3, 0.99, 2), (2, 0.5, 1)]
)
def test_the_last_files_are_held_out(count, share, last):
    rows = files(count)
    learnt, out = last_apart(rows, share)
    assert isinstance(learnt, Sharded) and isinstance(out, Sharded)
    assert learnt.shards == rows.shards[:-last] and out.shards == rows.shards[-last:]
    assert learnt.shape == (10 * (count - last), 2) and out.sound and out.shuffled


def test_nothing_is_held_out_of_one_file_or_of_an_array():
    one = files(1)
    assert last_apart(one, 0.5) == (one, None) and last_apart(files(2), 0.0)[1] is None
    array = np.zeros(4)
    assert last_apart(array, 0.5)[0] is array


def test_bounds_are_standardised_where_they_are_known():
    target = Target("y", "normal", 10.0, 4.0, censoring="upper", beside="z")
    y = encode_censored(target, pd.Series([14.0, 2.0, -np.inf]), pd.Series([14.0, np.inf, 12.0]))
    most = float(np.finfo(np.float32).max)  # where there is no bound
    np.testing.assert_allclose(y, [[1.0, 1.0], [-2.0, most], [-most, 0.5]], rtol=1e-6)


def test_which_columns_may_have_gaps():
    """A target never, an input where it is imputed, and either of two bounds, which then is no bound."""
    names = ["x", "y", "z"]
    assert encoder._needed(names, ("y",), "refuse", ("", "")) == names
    assert encoder._needed(names, ("y",), "impute", ("", "")) == ["y"]
    assert encoder._needed(names, ("y", "z"), "impute", ("status", "z")) == ["y", "z"]
    assert encoder._needed(names, ("y", "z"), "refuse", ("upper", "z")) == ["x"]


def test_weights_are_numbers_above_zero():
    table = pd.DataFrame(
        {"w": [1.0, 0.5, 2.0], "zero": [0.0, 1.0, 2.0], "text": ["a", "b", "c"], "gap": [1.0, None, 2.0]}
    )
    assert encoder._positive(table, "w").tolist() == [1.0, 0.5, 2.0]
    assert encoder._positive(table, "zero", True).tolist() == [0.0, 1.0, 2.0]
    for name, zero, sign in (("zero", False, ">"), ("text", True, "≥"), ("gap", True, "≥"), ("text", False, ">")):
        with pytest.raises(DataError, match=f"Column '{name}' says how much a row counts: expected numbers {sign} 0"):
            encoder._positive(table, name, zero)
