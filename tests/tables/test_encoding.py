"""Tables become arrays and arrays batches, each part by hand."""

import numpy as np
import pandas as pd
import pytest

from tractable.core.errors import DataError, TractableWarning
from tractable.core.model import Data
from tractable.tables import columns, encoder, files, ordered, support, targets
from tractable.tables.columns import MOST_LEVELS, REST, encode_column, fit_column
from tractable.tables.encoder import decode, decode_sd, encode, fit_encoder

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(23)
TIMES = pd.Series(pd.to_datetime(["1970-01-01 00:00", "1971-01-02 06:00", "2024-12-31 18:00", "2024-02-29 12:00"]))


def test_parts_of_dates():
    phases = {part: columns.part_of(TIMES, part).tolist() for part in ("trend", "day of the week", "time of day")}
    assert phases["trend"] == [0.0, 366.25, 20088.75, 19782.5]
    assert phases["day of the week"] == ["Thursday", "Saturday", "Tuesday", "Thursday"]
    assert phases["time of day"] == [0.0, 0.25, 0.75, 0.5]
    np.testing.assert_allclose(columns.part_of(TIMES, "time of year"), (np.array([1, 2, 366, 60]) - 0.5) / 366)
    assert columns.part_of(pd.Series(pd.to_timedelta(["36 h", "0 s"])), "days").tolist() == [1.5, 0.0]


def test_a_cycle_is_its_waves_about_their_means():
    phases = RNG.random(50)
    waves = columns._waves(phases)
    wanted = [f(2 * np.pi * k * phases) for k in range(1, columns.WAVES + 1) for f in (np.cos, np.sin)]
    np.testing.assert_allclose(waves, np.stack(wanted, 1))
    dates = pd.Series(pd.to_datetime("2024-01-01") + pd.to_timedelta(RNG.integers(0, 3000, 50), "D"), name="day")
    with pytest.warns(TractableWarning, match="the model uses its trend"):
        found = {column.part: column for column in fit_column(dates, False)}
    cycle = encode_column(found["time of year"], dates)
    np.testing.assert_allclose(cycle.mean(0), 0, atol=1e-12)
    own = columns._waves(columns.part_of(dates, "time of year").to_numpy())
    np.testing.assert_allclose(cycle, own - own.mean(0), atol=1e-12)


@pytest.mark.parametrize("gaps", [0, 30])
def test_levels_of_pooled_text_count_their_rows(gaps):
    names = [f"shop {i:02}" for i in range(MOST_LEVELS + 1)]
    values = pd.Series([*np.repeat(names, np.arange(len(names)) + 1), *[None] * gaps], name="shop")
    (column,) = fit_column(values, False, pooled=True)
    counts = dict(zip(column.levels, column.shares, strict=True))
    assert [counts[name] for name in names] == list(range(1, len(names) + 1))
    assert counts.get(column.absent, 0) == pytest.approx(gaps)
    assert column.features == [] and column.effects()[1].shape == (0, 0)


def test_shares_of_levels_are_of_all_rows():
    values = pd.Series(["a"] * 6 + ["b"] * 2 + [None] * 2, name="kind")
    (column,) = fit_column(values, True)
    shares = dict(zip(column.levels, column.shares, strict=True))
    assert shares["a"] == pytest.approx(0.6) and sum(shares.values()) == pytest.approx(1)
    long = pd.Series(np.repeat([f"{i:03}" for i in range(MOST_LEVELS + 3)], 2).tolist() + [None] * 10, name="code x")
    with pytest.warns(TractableWarning, match="most frequent"):
        (column,) = fit_column(long, True)
    shares = dict(zip(column.levels, column.shares, strict=True))
    assert shares[REST] == pytest.approx(8 / len(long)) and sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(("distinct", "text"), [(10, True), (11, False)])
def test_codes_that_repeat_name_groups(distinct, text):
    """Under such a name whole numbers of which at most half are distinct are text."""
    values = pd.Series(np.arange(20) % distinct, name="zip")
    if text:
        with pytest.warns(TractableWarning, match="'zip' holds whole numbers that name groups"):
            assert columns.kind_of(columns.of_groups(values)) == "text"
    else:
        assert columns.of_groups(values) is values
    assert columns.of_groups(values.rename("age")).name == "age"


@pytest.mark.parametrize(
    ("last", "commonest", "high"), [(10, 20, True), (10, 21, False), (9, 9, False), (30, 30, True)]
)
def test_grades_may_end_high(last, commonest, high):
    assert targets._ends_high(np.repeat([1.0, 2.0, 3.0], [5, commonest, last])) == high


def test_a_formula_s_offset_and_the_exposure_add_up():
    frame = pd.DataFrame(
        {"n": RNG.poisson(4, 30), "x": RNG.normal(size=30), "z": RNG.normal(size=30), "t": RNG.random(30)}
    )
    with_both = fit_encoder(frame, "", formula="n ~ x + offset(z)", exposure="t")
    np.testing.assert_allclose(encode(with_both, frame).offset, np.log(frame["t"]) + frame["z"])
    alone = fit_encoder(frame, "", formula="n ~ x", exposure="t")
    np.testing.assert_allclose(encode(alone, frame).offset, np.log(frame["t"]))
    assert encode(fit_encoder(frame, "", formula="n ~ x"), frame).offset is None


def test_targets_of_a_formula_are_not_scaled_and_those_of_a_table_are():
    frame = pd.DataFrame({"y": RNG.normal(50, 7, 40), "w": RNG.normal(-3, 2, 40), "x": RNG.normal(size=40)})
    np.testing.assert_allclose(encode(fit_encoder(frame, "", formula="y ~ x"), frame).y, frame["y"])
    several = fit_encoder(frame, ["y", "w"])
    y = encode(several, frame).y
    assert y is not None
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(y.std(0), 1, rtol=1e-6)
    np.testing.assert_allclose(decode(several, y), frame[["y", "w"]])
    np.testing.assert_allclose(decode_sd(several, np.ones(2)), frame[["y", "w"]].std(ddof=0))
    rows = RNG.normal(4.0, 3.0, (20, 2))
    of_numbers, _ = encoder.fit_numbers(rows, ["a", "b"], None)
    np.testing.assert_allclose(of_numbers.standardise(rows), (rows - rows.mean(0)) / rows.std(0))
    np.testing.assert_allclose(of_numbers.restore(of_numbers.standardise(rows)), rows)


def test_gaps_of_a_formula_s_booleans_are_filled_by_the_majority():
    frame = pd.DataFrame({"y": RNG.normal(size=9), "b": [True, False, True, True, None, False, True, True, False]})
    design = fit_encoder(frame, "", formula="y ~ b", missing="impute")
    x = encode(design, frame).x
    assert x[4, 1] == 1 and x[:, 1].sum() == 6


@pytest.mark.parametrize("width", [1, 7, 20])
def test_rows_are_read_round_the_end(width):
    data, starts = Data(np.arange(7.0)), np.array([[0, 5], [6, 3]])
    found = data.read(starts, width)[0]
    np.testing.assert_array_equal(found, (starts[..., None] + np.arange(width)) % 7)
    part = data.read(starts, width, slice(width // 2, width))[0]
    np.testing.assert_array_equal(part, found[..., width // 2 :])


@pytest.mark.parametrize(("fraction", "out"), [(0.25, 5), (0.01, 1), (0.9, 18)])
def test_a_split_holds_each_row_once(fraction, out):
    kept, other = Data(np.arange(20.0)).split(fraction, seed=3)
    assert (kept.size, other.size) == (20 - out, out)
    assert sorted([*kept.y, *other.y]) == list(range(20)) and np.all(np.diff(kept.y) > 0)
    assert not np.array_equal(other.y, Data(np.arange(20.0)).split(fraction, seed=4)[1].y) or out == 1


def test_rows_that_stand_for_weighted_ones():
    """Evenly in proportion to weight: of four, two are the row that weighs half."""
    data = Data(np.array([1.0, 2.0, 3.0, 4.0]), weights=np.array([1.0, 2.0, 0.0, 1.0]))
    assert data.equally_counted(4).y.tolist() == [1, 2, 2, 4] and data.equally_counted(2).y.tolist() == [1, 2]
    assert Data(np.arange(3.0), weights=np.array([2.0, 0.0, 2.0])).equally_counted(50).y.tolist() == [0, 2]


def test_rows_of_groups_side_by_side():
    """Groups in order of their labels, rows in the order of the table; the first row fills up the shorter ones."""
    data = Data(np.arange(6.0), group=np.array(["b", "a", "b", "b", "a", "c"]))
    y = np.asarray(data.y)
    counts = np.asarray(data.given.counts)
    assert [row[counts[i] > 0].tolist() for i, row in enumerate(y)] == [[1, 4], [0, 2, 3], [5]]
    assert y.shape == (3, 3) and y[2].tolist() == [5, 5, 5]


def test_which_array_is_meant():
    path = files.Path("x.npz")
    assert files._array_name(path, ["a"], None, ()) == "a" and files._array_name(path, ["a", "b"], "b", ()) == "b"
    with pytest.raises(DataError, match="has the arrays 'a', 'b': choose one with"):
        files._array_name(path, ["a", "b"], None, ("x_train",))
    with pytest.warns(TractableWarning, match="Rows are read from the array 'b'"):
        assert files._array_name(path, ["a", "b"], None, ("c", "b")) == "b"


def test_steps_that_times_would_leave_empty():
    """A step of a day over thirty years leaves too many empty; the longest sequence has its last step's number."""
    table = pd.DataFrame({"t": [0.0, 1.0, 2.0, 3.0 + 1e6]})
    with pytest.warns(TractableWarning, match="too many steps empty"):
        assert ordered.places(table, None, "t", "1").step.tolist() == [0, 1, 2, 3]
    with pytest.warns(TractableWarning, match="sums over 5 steps without a row"):
        found = ordered.places(pd.DataFrame({"t": [0.0, 1.0, 2.0, 8.0]}), None, "t")
    assert found.longest == 9 and found.placed_rows(np.ones((4, 2))).shape == (1, 9, 2)


@pytest.mark.parametrize(
    ("shape", "picture"), [((5, 7), (5, 7)), ((5, 7, 3), (5, 21)), ((3, 5, 7), (15, 7)), ((9,), None)]
)
def test_pictures(shape, picture):
    assert support.picture(shape) == picture


@pytest.mark.parametrize(("scale", "copy"), [(1.0, True), (1e-3, True), (1.0, False)])
def test_a_column_that_is_the_target_in_other_units(scale, copy):
    """Exactly linear in it, however small the numbers are."""
    target = pd.Series(scale * RNG.normal(size=40))
    values = 3 * target - 2 * scale if copy else target + scale * 0.01 * RNG.normal(size=40)
    assert columns.tells(values, target) == copy and not columns.tells(0 * target, target)


@pytest.mark.parametrize("absent", ["low", "mid", "high", "top"])
def test_a_declared_grade_that_no_row_has_stays_a_grade(absent):
    grades = ["low", "mid", "high", "top"]
    kept = [grade for grade in grades if grade != absent]
    values = pd.Series(pd.Categorical(kept * 5, grades, ordered=True), name="grade")
    with pytest.warns(TractableWarning, match=f"No row has the grade '{absent}' of 'grade'"):
        aim = targets.fit_target(values)
    assert (aim.family, aim.classes) == ("ordered", tuple(grades))
    assert targets.encode_target(aim, values).tolist() == [grades.index(grade) for grade in kept] * 5
    later = pd.Series(pd.Categorical([absent], grades, ordered=True), name="grade")
    assert targets.encode_target(aim, later).tolist() == [grades.index(absent)]
    with pytest.raises(DataError, match="'low' in every row"):
        targets.fit_target(pd.Series(pd.Categorical(["low"] * 5, grades, ordered=True), name="grade"))


@pytest.mark.parametrize(
    "other", ["red ", " red", "Red", "RED", "red\t", "red\u00a0", "ｒｅｄ", "ReD  ", "red\n", "rEd"]
)
@pytest.mark.parametrize("door", ["an input", "a target", "a group", "a formula's input", "pooled"])
def test_levels_that_differ_by_case_or_spaces_are_told_of(door, other):
    words = pd.Series(["red", other, "blue", "green"] * 10, name="colour")
    frame = pd.DataFrame({"colour": words, "x": RNG.normal(size=40)})
    with pytest.warns(TractableWarning, match="'colour' has levels that differ only by case or spaces"):
        if door == "an input":
            (column,) = fit_column(words, False)
            assert len(column.levels) == 4  # as they are written
        elif door == "a target":
            assert len(targets.fit_target(words).classes) == 4
        elif door == "pooled":
            fit_column(words, False, pooled=True)
        else:
            fit_encoder(frame, "", formula="x ~ (1|colour)" if door == "a group" else "x ~ colour")


def test_levels_that_differ_otherwise_are_not(recwarn):
    fit_column(pd.Series(["red", "rod", "reed", "red-ish", "red wine"] * 5, name="colour"), False)
    assert not [w for w in recwarn if "differ only by case" in str(w.message)]
