"""Columns of tables by hand: levels, groups and targets."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tractable.core import censored
from tractable.core.errors import DataError, TractableWarning
from tractable.core.shards import Shard, Sharded, last_apart
from tractable.tables import columns, encoder, numerals
from tractable.tables.columns import MOST_LEVELS, REST, Column, encode_column, fit_column, spread_of_groups
from tractable.tables.formula import Formula
from tractable.tables.targets import Target, encode_censored, fit_censored

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
    target = Target("y", "normal", 10.0, 4.0, censoring="upper", bound_column="z")
    y = encode_censored(target, pd.Series([14.0, 2.0, -np.inf]), pd.Series([14.0, np.inf, 12.0]))
    most = float(np.finfo(np.float32).max)  # where there is no bound
    np.testing.assert_allclose(y, [[1.0, 1.0], [-2.0, most], [-most, 0.5]], rtol=1e-6)


def test_which_columns_may_have_gaps():
    """A target never, an input where it is imputed, and either of two bounds, which then is no bound."""
    names = ["x", "y", "z"]
    assert encoder._complete_columns(names, ("y",), "refuse", ("", "")) == names
    assert encoder._complete_columns(names, ("y",), "impute", ("", "")) == ["y"]
    assert encoder._complete_columns(names, ("y", "z"), "impute", ("status", "z")) == ["y", "z"]
    assert encoder._complete_columns(names, ("y", "z"), "refuse", ("upper", "z")) == ["x"]


def test_weights_are_numbers_above_zero():
    table = pd.DataFrame(
        {"w": [1.0, 0.5, 2.0], "zero": [0.0, 1.0, 2.0], "text": ["a", "b", "c"], "gap": [1.0, None, 2.0]}
    )
    assert encoder._positive(table, "w").tolist() == [1.0, 0.5, 2.0]
    assert encoder._positive(table, "zero", True).tolist() == [0.0, 1.0, 2.0]
    for name, zero, sign in (("zero", False, ">"), ("text", True, "≥"), ("gap", True, "≥"), ("text", False, ">")):
        with pytest.raises(DataError, match=f"Column '{name}' must hold numbers {sign} 0"):
            encoder._positive(table, name, zero)


def test_an_unknown_bound_takes_no_part_in_the_middle():
    y = np.array([[2.0, 5.0], [-np.inf, 3.0], [4.0, np.inf], [7.0, 7.0]])
    assert censored.middle(y).tolist() == [3.5, 3.0, 4.0, 7.0]
    np.testing.assert_array_equal(censored.middle(y[:, 0]), y[:, 0])
    assert censored.seen(y).tolist() == [False, False, False, True]


def test_a_censored_time_that_is_no_time_is_named():
    times, seen = pd.Series([2.0, -1.0, 3.0], name="weeks"), pd.Series([1, 0, 1], name="seen")
    with pytest.raises(DataError, match=r"'weeks'.*-1"):
        fit_censored(times, seen, "event", "weibull")


def test_the_first_strange_date_is_named():
    """Of later rows; those before it are dates, as in training."""
    with pytest.warns(TractableWarning, match="is a date"):
        column, *_ = fit_column(pd.Series(["2024-05-31", "2024-06-02", "2024-07-01"], name="day"), False)
    with pytest.raises(DataError, match="'soon' is not"):
        encode_column(column, pd.Series(["2024-08-01", "soon", "never"], name="day"))


def test_effects_of_groups_follow_each_other():
    """Each term has one effect a group and one for groups to come; the next begins after them."""
    table = pd.DataFrame({"y": np.arange(8.0), "x": np.arange(8) % 3, "g": list("aabbccdd"), "h": list("uvuvuvuv")})
    terms = Formula("y ~ x + (1 + x|g) + (1|h)", table).terms
    assert [(term.name, term.start, len(term.groups)) for term in terms] == [
        ("1|g", 0, 5), ("x|g", 5, 5), ("1|h", 10, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("levels", [2, 3, 7])
def test_waves_of_levels_sum_to_zero_and_are_orthonormal(levels):
    """(levels, levels − 1) with Cᵀ C = I and columns that sum to 0: no level is another's reference."""
    contrasts = columns.contrasts(levels)
    np.testing.assert_allclose(contrasts.T @ contrasts, np.eye(levels - 1), atol=1e-12)
    np.testing.assert_allclose(contrasts.sum(0), 0, atol=1e-12)


def test_features_of_a_column_with_gaps():
    """A number's own, and whether it is missing; of a column that only some rows have, the latter alone."""
    column = Column("dose", "number", gaps=0.25, sd=4.0)
    assert column.features == ["dose", "dose is missing"]
    names, scales = column.effects()
    assert names == column.features and scales.tolist() == [[0.25, 0.0], [0.0, 1.0]]
    assert dataclasses.replace(column, gaps=0.0).features == ["dose"]


def test_a_column_that_says_the_target_in_other_words():
    """One to one and at least five rows a level; with fewer it may be chance."""
    target = pd.Series([0, 1, 2] * 5)
    words = target.map({0: "low", 1: "mid", 2: "high"})
    assert columns.tells(words, target) and not columns.tells(words[:14], target[:14])
    assert not columns.tells(words.where(target.index > 0, "high"), target)


@pytest.mark.parametrize(
    ("dressed", "stray", "sentence"),
    [
        (3, 2, "9 of its 11 values are numbers; not 'none' in row 3 and 1 more.*'1,200' is 1200 or 1.2"),
        (3, 0, "'1,200' is 1200 or 1.2"),
        (2, 2, "8 of its 10 values are numbers; not 'none' in row 2"),
    ],
)
def test_numbers_in_another_dress(dressed, stray, sentence):
    """Most entries are numbers, and some of them have a comma that can mean two things."""
    values = pd.Series(["1,200"] * dressed + ["none"] * stray + ["5"] * 6, name="total")
    with pytest.raises(DataError, match=f"'total' is text, but .*{sentence}"):
        numerals.check_numbers_in_text(values)
