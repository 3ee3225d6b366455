"""Tables to arrays and back, and every fault's sentence."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from tractable.core.errors import DataError, TractableWarning
from tractable.tables import columns
from tractable.tables import encoder as tables
from tractable.tables.files import read_table

pytestmark = pytest.mark.quick


def table():
    return pd.DataFrame(
        {
            "age": [20, 30, 40, 50],
            "weight": [60.5, 70.0, 80.25, 90.0],
            "smoker": [True, False, False, True],
            "town": ["Bern", "Arles", "Bern", "Cadiz"],
            "ill": ["yes", "no", "no", "yes"],
        }
    )


def test_encode():
    encoder = tables.fit_encoder(table(), "ill")
    assert encoder.features == ["age", "weight", "smoker", "town [1]", "town [2]"]
    assert encoder.target == tables.Target(
        "ill", "bernoulli", classes=("no", "yes"), reason="two values, 'no' and 'yes'"
    )
    x, y, *_ = tables.encode(encoder, table())
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-15)
    np.testing.assert_allclose(x[:, :2].std(0), 1)
    assert x[:, 2].tolist() == [0.5, -0.5, -0.5, 0.5]
    levels = columns.contrasts(3)[[1, 0, 1, 2]]
    np.testing.assert_allclose(x[:, 3:], levels - levels.mean(0), atol=1e-15)
    assert y.dtype == np.int64 and y.tolist() == [1, 0, 0, 1]
    assert tables.decode(encoder, y).tolist() == table()["ill"].tolist()


@pytest.mark.parametrize("levels", [2, 3, 7])
def test_contrasts_prefer_no_level(levels):
    """Level effects Q w of independent weights have one variance, one covariance, and the sum 0."""
    rows = columns.contrasts(levels)
    np.testing.assert_allclose(rows.T @ rows, np.eye(levels - 1), atol=1e-12)
    np.testing.assert_allclose(rows @ rows.T, np.eye(levels) - 1 / levels, atol=1e-12)


def test_effects_give_back_what_was_put_in():
    """Least squares on the encoded rows tells, through ``effects``, the slopes and steps that made y."""
    g = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame(
        {"size": g.normal(50, 7, n), "red": g.choice(["no", "yes"], n), "town": g.choice(list("abc"), n)}
    )
    frame["when"] = pd.date_range("2020-01-01", periods=n, freq="33h").astype(str)
    step = {"a": 2.0, "b": -3.0, "c": 1.0}
    day = pd.to_datetime(frame["when"])
    frame["y"] = (
        3 * frame["size"] + 5.0 * (frame["red"] == "yes") + frame["town"].map(step) + 0.01 * np.arange(n) * 33 / 24
    )
    frame["y"] += np.where(day.dt.day_of_week == 5, 7.0, 0.0) + 4 * np.cos(2 * np.pi * day.dt.hour / 24)
    with pytest.warns(TractableWarning, match="'when' is a date; the model uses its trend, time of year, day of the"):
        encoder = tables.fit_encoder(frame, "y")
    x, y, *_ = tables.encode(encoder, frame)
    weights = np.linalg.lstsq(np.column_stack([np.ones(n), x]), y, rcond=None)[0][1:]
    names, rows = encoder.effects
    told = dict(zip(names, encoder.target.sd * (rows @ weights), strict=True))
    expected = {"size": 3, "red": 5, "town[a]": 2, "town[b]": -3, "town[c]": 1, "when: trend per year": 3.6525}
    expected |= {"when: day of the week[Saturday]": 6, "when: day of the week[Monday]": -1}
    expected |= {"when: time of day[0:00]": 4, "when: time of day[6:00]": 0, "when: time of day[12:00]": -4}
    for name, value in expected.items():
        np.testing.assert_allclose(told[name], value, atol=1e-6, err_msg=name)
    np.testing.assert_allclose([told[f"when: time of year[{month}]"] for month in columns.MONTHS], 0, atol=1e-6)
    saved = tables.Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    np.testing.assert_array_equal(tables.encode(saved, frame.drop(columns="y")).x, x)


def test_durations_as_other_programs_write_them():
    waits = pd.to_timedelta([1, 26, 50, 51], unit="h")
    written = [list(map(str, waits)), [str(w.to_pytimedelta()) for w in waits], [w.isoformat() for w in waits], waits]
    with pytest.warns(TractableWarning, match="'wait' is a duration"):
        rows = [tables.encode(tables.fit_encoder(f, "ill"), f).x for f in (table().assign(wait=w) for w in written)]
    for other in rows[1:]:
        np.testing.assert_array_equal(rows[0], other)


def test_moments_of_a_time_zone_are_told_to_be_in_utc():
    moments = pd.Series(pd.date_range("2021-03-01 03:00", periods=4, freq="31h", tz="Asia/Tokyo"))
    with pytest.warns(TractableWarning, match=r"'when' is a date; .* time of day \(UTC\)\.$"):
        encoder = tables.fit_encoder(table().assign(when=moments), "ill")
    text = [moment.isoformat() for moment in moments]
    x = tables.encode(encoder, table().assign(when=moments)).x
    np.testing.assert_array_equal(tables.encode(encoder, table().assign(when=text)).x, x)
    assert "when: time of day (UTC)[18:00]" in encoder.effects[0]
    with pytest.warns(TractableWarning, match="time of day.$"):
        tables.fit_encoder(table().assign(when=moments.dt.tz_localize(None)), "ill")


def test_how_a_date_is_read_is_told_where_days_and_months_may_be_mistaken():
    with pytest.warns(TractableWarning, match=r"'when' is a date \(month/day/year\)"):
        tables.fit_encoder(table().assign(when=["01/02/2021", "01/03/2021", "01/04/2021", "01/05/2021"]), "ill")


@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_later_dates_may_be_written_from_year_to_day():
    days = pd.date_range("2020-01-01", periods=40, freq="9D")
    frame = pd.DataFrame({
        "day": days.strftime("%m/%d/%Y"), "month": pd.period_range("2010-01", periods=40, freq="M").astype(str),
        "y": np.arange(40) ** 1.5,
    })  # fmt: skip
    encoder = tables.fit_encoder(frame, "y")
    assert [(c.name, c.part) for c in encoder.columns] == [
        ("day", "trend"), ("day", "time of year"), ("day", "day of the week"),
        ("month", "trend"), ("month", "time of year"),
    ]  # fmt: skip
    x = tables.encode(encoder, frame).x
    np.testing.assert_array_equal(tables.encode(encoder, frame.assign(day=days.strftime("%Y-%m-%d"))).x, x)
    with pytest.raises(DataError, match=r"'31.12.2020' is not. Write all rows as 2024-05-31 or in the format %m/%d/%Y"):
        tables.encode(encoder, frame.assign(day=["31.12.2020", *frame["day"][1:]]))


def test_grades_in_words_are_told_in_their_order():
    frame = pd.DataFrame({"x": np.arange(6.0), "y": ["poor", "fair", "good"] * 2})
    with pytest.warns(TractableWarning, match="fair < good < poor"):
        assert tables.fit_encoder(frame, "y", family="ordered").target.classes == ("fair", "good", "poor")
    told = pd.Categorical(frame["y"], ["poor", "fair", "good"], ordered=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables.fit_encoder(frame.assign(y=told), "y")


def test_a_column_of_numbers_with_gaps_in_words_is_no_identifier():
    charges = [f"{i}.5" for i in range(150)] + [" "] * 4
    frame = pd.DataFrame({"charges": charges, "x": np.arange(154.0) ** 2, "y": np.arange(154.0) - 9.5})
    with pytest.raises(DataError, match="'charges' is text, but 150 of its 154 values are numbers"):
        tables.fit_encoder(frame, "y")
    some = ["0", "1", "2", "3+"] * 38 + ["0", "1"]
    assert tables.fit_encoder(frame.assign(charges=some), "y").columns[0].levels == ("0", "1", "2", "3+")
    names = [str(i) for i in range(100)] + [f"PC {i}" for i in range(54)]
    with pytest.warns(TractableWarning, match="'charges' is text .* identifies rows"):
        assert tables.fit_encoder(frame.assign(charges=names), "y").features == ["x"]


def test_columns_that_name_rows_are_left_out():
    frame = table().assign(patient_id=[7, 3, 9, 4])
    with pytest.warns(TractableWarning, match="'patient_id' has a different whole number in every row"):
        assert tables.fit_encoder(frame, "ill") == tables.fit_encoder(table(), "ill")
    grid = table().assign(time=[0, 1, 2, 3])  # a trend, not an identifier
    assert "time" in tables.fit_encoder(grid, "ill").features


@pytest.mark.parametrize("name", ["zip", "Zip Code", "postal_code", "storeId", "store_id", "area.code", "PLZ"])
def test_whole_numbers_that_name_groups_are_levels(name):
    codes = np.array([90210, 1004, 1004, 60601, 90210, 60601, 1004, 90210])
    frame = pd.DataFrame({"x": np.arange(8.0) ** 2, name: codes, "y": np.arange(8.0) - 3})
    with pytest.warns(TractableWarning, match="whole numbers that name groups of rows"):
        encoder = tables.fit_encoder(frame, "y")
    as_text = frame.assign(**{name: [str(code) for code in codes]})
    assert encoder == tables.fit_encoder(as_text, "y") and encoder.columns[1].levels == ("1004", "60601", "90210")
    # Beside a missing value whole numbers are read as floats.
    for later in (frame, as_text, frame.astype({name: float})):
        np.testing.assert_array_equal(tables.encode(encoder, later).x, tables.encode(encoder, as_text).x)
    gaps = frame.assign(**{name: [np.nan, *codes[1:]]})
    with pytest.warns(TractableWarning, match="whole numbers that name groups of rows"):
        assert tables.fit_encoder(gaps, "y", missing="impute").columns[1].levels[:2] == ("1004", "60601")


@pytest.mark.parametrize(
    ("name", "values"),
    [("grid", [1, 1, 2, 2, 3, 3, 4, 4]), ("barcode", [1.5, 1.5, 2, 2, 3, 3, 4, 4]), ("zip", [1, 2, 3, 4, 5, 6, 7, 7]),
     ("code", [1.5, 1.5, 2, 2, 3, 3, 4, 4]), ("valid", [1, 1, 2, 2, 3, 3, 4, 4])],
)  # fmt: skip
def test_amounts_and_numbers_that_seldom_repeat_stay_numbers(name, values):
    frame = pd.DataFrame({"x": np.arange(8.0) ** 2, name: values, "y": np.arange(8.0) - 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tables.fit_encoder(frame, "y").columns[1].kind == "number"


def test_durations_and_text_that_is_boolean():
    frame = table().assign(wait=["0:30", "1:30", "2:30", "12:00"], old=["Yes", "No", "No", "Yes"])
    with pytest.warns(TractableWarning, match="'wait' is a duration; the model uses its days"):
        encoder = tables.fit_encoder(frame, "ill")
    x = dict(zip(encoder.features, tables.encode(encoder, frame).x.T, strict=True))
    hours = np.array([0.5, 1.5, 2.5, 12])
    np.testing.assert_allclose(x["wait: days"], (hours - hours.mean()) / hours.std())
    assert x["old"].tolist() == [0.5, -0.5, -0.5, 0.5]
    with pytest.warns(
        TractableWarning, match="'old' was 'No', 'Yes' in training; the mean of both stands here for 'maybe'"
    ):
        other = tables.encode(encoder, frame.assign(old=["maybe", "yes", "N", "Yes"])).x
    assert other[:, encoder.features.index("old")].tolist() == [0.0, 0.5, -0.5, 0.5]
    with pytest.raises(DataError, match="'wait' was a duration in training"):
        tables.encode(encoder, frame.assign(wait=[1, 2, 3, 4]))


def test_yes_and_no_in_several_words_are_one_boolean():
    frame = table().assign(old=["Yes", "y", "NO", "yes"])
    encoder = tables.fit_encoder(frame, "ill")
    assert encoder.columns[encoder.names.index("old")].levels == ("no", "yes")
    assert tables.encode(encoder, frame).x[:, encoder.features.index("old")].tolist() == [0.25, 0.25, -0.75, 0.25]
    assert len(tables.fit_encoder(frame.assign(old=["yes", "no", "perhaps", "no"]), "ill").features) > len(
        encoder.features
    )


def test_dates_in_two_ways_of_writing_are_a_fault():
    frame = table().assign(when=["2024-05-31", "31/05/2024", "2024-06-01", "12/31/2024"])
    sentence = "'when' holds dates in several formats.* like '2024-05-31', but not '31/05/2024' in row 1"
    with pytest.raises(DataError, match=sentence):
        tables.fit_encoder(frame, "ill")
    assert tables.fit_encoder(frame, "ill", exclude=["when"]) == tables.fit_encoder(table(), "ill")
    addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2"]  # begin like dates
    assert tables.fit_encoder(frame.assign(when=addresses), "ill").columns[-1].kind == "text"


def test_a_column_that_is_the_target_is_told():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "y": rng.normal(size=60), "kind": rng.choice(["a", "b", "c"], 60)})
    frame = frame.assign(
        again=2 - 3 * frame.y, near=frame.y + 1e-3 * frame.x, grade=frame.kind.map({"a": 2, "b": 1, "c": 5})
    )
    with pytest.warns(TractableWarning) as told:
        tables.fit_encoder(frame, "y")
    assert [str(w.message)[:14] for w in told if "determines the target" in str(w.message)] == ["Column 'again'"]
    with pytest.warns(TractableWarning, match="'grade' determines the target 'kind' wherever.*exclude grade"):
        tables.fit_encoder(frame, "kind")


def test_weights_exposure_and_exclusion():
    frame = pd.DataFrame({"x": [1.0, 2.0, 4.0], "hours": [1.0, 2.0, 1.0], "often": [1, 0, 2], "more": [3.0, 1.0, 2.0]})
    frame["count"] = [0, 6, 2]
    encoder = tables.fit_encoder(frame, "count", weights="often", exposure="hours", exclude=["more"])
    assert encoder.features == ["x"] and encoder.target.family == "negative-binomial"
    rows = tables.encode(encoder, frame)
    assert rows.weights.tolist() == [1, 0, 2]
    np.testing.assert_allclose(rows.given["offset"], np.log([2, 4, 2]))  # 8 in 4 hours
    with pytest.raises(DataError, match="lacks 'hours'"):
        tables.encode(encoder, frame[["x"]])
    with pytest.raises(DataError, match="exposure='hours' is for counts; the target 'more' is"):
        tables.fit_encoder(frame, "more", exposure="hours")
    with pytest.raises(DataError, match="'hours' must hold numbers > 0"):
        tables.encode(encoder, frame.assign(hours=0))


def test_training_moments_are_used_later():
    encoder = tables.fit_encoder(table(), "ill")
    x, y, *_ = tables.encode(encoder, table().drop(columns="ill").iloc[:1])
    assert y is None
    np.testing.assert_allclose(x[0, 0], (20 - 35) / math.sqrt(125))


def test_columns_may_come_in_another_order_with_others():
    encoder = tables.fit_encoder(table(), "ill")
    other = table()[["ill", "town", "smoker", "weight", "age"]].assign(more="x")
    np.testing.assert_array_equal(tables.encode(encoder, other).x, tables.encode(encoder, table()).x)


def test_amounts_with_many_zeros_are_told():
    claims = np.where(np.arange(300) % 3 == 0, np.exp(2.0 * norm.ppf((np.arange(300) + 0.5) / 300)), 0.0)
    told = tables.fit_encoder(pd.DataFrame({"x": np.arange(300.0) ** 2, "y": claims}), "y").target
    assert told.family == "normal" and told.reason.startswith("0 in 67 % of its rows and skewed amounts")


def test_students_t_is_told_from_the_middle():
    """One value in nine moves neither centre nor unit, which are a normal's mean and sd."""
    y = np.append(3.0 + 2.0 * norm.ppf((np.arange(80) + 0.5) / 80), [1e6] * 10)
    frame = pd.DataFrame({"x": np.arange(90.0) ** 2, "y": y})
    encoder = tables.fit_encoder(frame, "y", family="student-t")
    assert abs(encoder.target.mean - 3) < 0.4 and 1.9 < encoder.target.sd < 2.6
    np.testing.assert_allclose(tables.decode(encoder, tables.encode(encoder, frame).y), y)
    most = frame.assign(y=[0.0] * 80 + [*range(1, 9), 1e6, 1e9])  # whose median deviation is 0
    assert tables.fit_encoder(most, "y", family="student-t").target.sd == pytest.approx(5.5 / norm.ppf(0.75), rel=1e-4)


@pytest.mark.parametrize("target", ["ill", "age", "smoker", "weight"])
def test_encoder_survives_json(target):
    encoder = tables.fit_encoder(table(), target)
    assert tables.Encoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder


@pytest.mark.parametrize(
    ("values", "family", "classes"),
    [
        (np.arange(30) - 9, "normal", ()),
        (np.arange(30) + 5, "normal", ()),
        (np.arange(30) % 11, "negative-binomial", ()),
        (np.arange(30) % 3 * 1.0, "poisson", ()),
        (np.arange(30) % 7 + 3, "ordered", (3, 4, 5, 6, 7, 8, 9)),
        (np.arange(70) % 7, "ordered", (0, 1, 2, 3, 4, 5, 6)),  # no count is as common at its end
        (np.array([1] * 9 + [2, 2, 2, 3, 4, 6, 9, 37]), "negative-binomial", ()),
        (np.repeat(np.arange(7), [20, 16, 12, 8, 6, 5, 4]), "negative-binomial", ()),
        (np.arange(30) % 3 * 10 + 10, "categorical", (10, 20, 30)),
        (np.arange(30) % 3 + 0.5, "normal", ()),
        (np.arange(1, 31) / 31, "beta", ()),
        (np.arange(31) / 31, "normal", ()),
        (np.exp(2.0 * norm.ppf(np.arange(1, 31) / 31)), "lognormal", ()),
        (np.arange(30) % 2 * 1.0, "bernoulli", (0, 1)),
        (np.arange(30) % 2 + 0.5, "bernoulli", (0.5, 1.5)),
        (np.arange(30) % 2 == 0, "bernoulli", (False, True)),
        (np.array(["b", "c", "a"] * 10), "categorical", ("a", "b", "c")),
        (pd.Categorical(["b", "a"] * 15), "bernoulli", ("a", "b")),
        (pd.Categorical([2, 10] * 15), "bernoulli", ("10", "2")),
        (pd.Categorical(["lo", "hi", "mid"] * 10, ["lo", "mid", "hi"], ordered=True), "ordered", ("lo", "mid", "hi")),
        (pd.array([1, 2, 3] * 10, dtype="Int64"), "ordered", (1, 2, 3)),
    ],
)
def test_target(values, family, classes):
    frame = pd.DataFrame({"x": np.arange(float(len(values))) ** 2, "y": values})
    encoder = tables.fit_encoder(frame, "y")
    assert (encoder.target.family, encoder.target.classes) == (family, classes)
    json.dumps(encoder.to_dict())
    y = tables.encode(encoder, frame).y
    decoded = tables.decode(encoder, y)
    if not classes:
        numbers = np.asarray(values, float)
        np.testing.assert_allclose(decoded, numbers, atol=1e-12)
        np.testing.assert_allclose(tables.decode_sd(encoder, y.std()), np.std(numbers))
        if family == "normal":
            np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-12)
        if family == "lognormal":
            np.testing.assert_allclose(np.log(y).mean(), 0, atol=1e-12)
    else:
        assert list(map(str, decoded)) == [str(classes[code]) for code in y]
        assert list(decoded) == [type(classes[0])(value) for value in values]


def test_whole_numbers_under_a_name_of_classes():
    frame = pd.DataFrame({"x": np.arange(30.0), "species": np.arange(30) % 3})
    assert tables.fit_encoder(frame, "species").target.classes == (0, 1, 2)


def test_shares_that_reach_their_ends_are_told():
    frame = pd.DataFrame({"x": np.arange(31.0) ** 2, "y": np.arange(31) / 30})
    assert tables.fit_encoder(frame, "y").target.reason == "shares from 0 to 1, and beta excludes 0 and 1"


def test_family_overrules():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [1, 2, 3]})
    assert tables.fit_encoder(frame, "y").target.family == "ordered"
    assert tables.fit_encoder(frame, "y", family="categorical").target.family == "categorical"
    assert tables.fit_encoder(frame, "y", family="normal").target.family == "normal"


def test_decode_takes_any_shape():
    encoder = tables.fit_encoder(table(), "ill")
    assert tables.decode(encoder, [[0, 1], [1, 1]]).tolist() == [["no", "yes"], ["yes", "yes"]]


def test_nullable_and_object_columns():
    frame = table()
    frame["age"] = frame["age"].astype("Int64")
    frame["smoker"] = frame["smoker"].astype("boolean")
    frame["town"] = frame["town"].astype(object)
    frame["weight"] = frame["weight"].astype("Float64")
    encoder = tables.fit_encoder(table(), "ill")
    assert tables.fit_encoder(frame, "ill") == encoder
    np.testing.assert_array_equal(tables.encode(encoder, frame).x, tables.encode(encoder, table()).x)


def test_missing_rows_are_dropped():
    frame = table().astype({"smoker": object})
    frame.loc[1, "weight"] = np.nan
    frame.loc[2, "smoker"] = None
    frame = pd.concat([frame, table()], ignore_index=True)
    encoder = tables.fit_encoder(frame, "ill", missing="drop")
    kept = [True, False, False, True, True, True, True, True]
    x, y, *_ = tables.encode(encoder, frame)
    assert len(x) == len(y) == 6
    np.testing.assert_array_equal(x, tables.encode(encoder, frame[kept]).x)


def holes():
    """Of each kind a column with a hole, one that is one value or missing, and one with holes only later."""
    return pd.DataFrame(
        {
            "age": [20.0, np.nan, 40.0, 60.0, 90.0, np.inf],
            "smoker": pd.Series([True, None, False, True, True, True], dtype=object),
            "town": ["Bern", "Arles", None, "Bern", "Bern", "Arles"],
            "rare": ["x", None, None, None, None, "x"],
            "later": ["b", "a", "b", "a", "b", "b"],
            "height": [1, 2, 3, 4, 5, 9],
            "ill": ["yes", "no", "no", None, "yes", "no"],
        }
    )


def test_missing_inputs_are_filled_in_and_told():
    frame = holes()
    encoder = tables.fit_encoder(frame, "ill", missing="impute")
    assert encoder.features == [
        "age", "age is missing", "smoker", "smoker is missing", "town [1]", "town [2]", "rare is missing", "later [1]",
        "height",
    ]  # fmt: skip
    x, y, *_ = tables.encode(encoder, frame)
    assert y.tolist() == [1, 0, 0, 1, 0]
    # Without the row that has no target, present ages are 20, 40, 90: their median is 40, their mean 50.
    np.testing.assert_allclose(x[:, 0], (np.array([20, 40, 40, 90, 40]) - 50) / np.std([20, 40, 90]), atol=1e-15)
    np.testing.assert_allclose(x[:, 1], np.array([0, 1, 0, 0, 1]) - 0.4)
    np.testing.assert_allclose(x[:, 2], np.array([1, 1, 0, 1, 1]) - 0.75)  # of those who said
    np.testing.assert_allclose(x[:, 3], np.array([0, 1, 0, 0, 0]) - 0.2)
    towns = columns.contrasts(3)[[1, 0, 2, 1, 0]]  # missing is the last level
    np.testing.assert_allclose(x[:, 4:6], towns - towns.mean(0), atol=1e-15)
    np.testing.assert_allclose(x[:, 6], np.array([0, 1, 1, 1, 0]) - 0.6)
    assert "town[missing]" in encoder.effects[0]
    assert tables.Encoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder


def test_rows_to_predict_for_are_filled_in_as_training_was():
    encoder = tables.fit_encoder(holes(), "ill", missing="impute")
    nothing = pd.DataFrame({name: [np.nan] for name in holes().columns if name != "ill"})
    x, y, *_ = tables.encode(encoder, nothing)
    assert y is None
    column = dict(zip(encoder.features, x[0], strict=True))
    np.testing.assert_allclose([column["age is missing"], column["smoker is missing"]], [0.6, 0.8])
    like = pd.DataFrame({**nothing, "later": ["b"]})  # never missing in training: the most frequent
    np.testing.assert_array_equal(tables.encode(encoder, like).x, x)
    heights = np.array([1, 2, 3, 5, 9])
    np.testing.assert_allclose(column["height"], (3 - heights.mean()) / heights.std())
    # Without a hole the answer is that of an encoder which does not impute.
    plain, imputing = (tables.fit_encoder(table(), "ill", missing=m) for m in ("raise", "impute"))
    assert imputing.features == plain.features
    np.testing.assert_array_equal(tables.encode(imputing, table()).x, tables.encode(plain, table()).x)


def test_a_column_without_any_value_is_left_out():
    with pytest.warns(TractableWarning, match="'age' is missing in every row; it is left out"):
        encoder = tables.fit_encoder(table().assign(age=np.nan), "ill", missing="impute")
    assert "age" not in [column.name for column in encoder.columns]


def test_rows_to_predict_for_are_never_dropped():
    encoder = tables.fit_encoder(table(), "ill", missing="drop")
    frame = table().drop(columns="ill")
    frame.loc[2, "weight"] = np.inf
    with pytest.raises(DataError, match="'weight' has 1 value missing or not finite, the first in row 2"):
        tables.encode(encoder, frame)


def test_constant_column_is_left_out():
    with pytest.warns(TractableWarning, match="'year' is 1999 in every row; it is left out"):
        encoder = tables.fit_encoder(table().assign(year=1999), "ill")
    assert encoder == tables.fit_encoder(table(), "ill")


def test_unknown_level():
    encoder = tables.fit_encoder(table(), "ill")
    frame = table().assign(town=["Bern", "Delft", "Delft", "Arles"])
    with pytest.warns(TractableWarning, match="'town' has values never seen in training, 'Delft': .*'Arles'"):
        x = tables.encode(encoder, frame).x
    np.testing.assert_allclose(x[1, 3:], -columns.contrasts(3)[[1, 0, 1, 2]].mean(0), atol=1e-15)  # the mean of levels


def test_whole_numbers_as_levels_are_written_alike():
    frame = table().assign(town=pd.Categorical([1, 2, 1, 3]))
    encoder = tables.fit_encoder(frame, "ill")
    later = table().assign(town=[1.0, 2.0, 1.0, 3.0])
    np.testing.assert_array_equal(tables.encode(encoder, later).x, tables.encode(encoder, frame).x)


def _with(**columns):
    return table().assign(**columns)


FAULTS = {
    "no target": (lambda: tables.fit_encoder(table(), "sick"), "'sick' is not a column.*'age', 'weight'"),
    "nothing else": (lambda: tables.fit_encoder(table()[["ill"]], "ill"), "no column except the target 'ill'"),
    "no rows": (lambda: tables.fit_encoder(table().iloc[:0], "ill"), "holds no rows"),
    "missing=": (lambda: tables.fit_encoder(table(), "ill", "mean"), "'raise', 'drop' or 'impute'; got 'mean'"),
    "family=": (lambda: tables.fit_encoder(table(), "ill", family="t"), "got 't'"),
    "constant target": (lambda: tables.fit_encoder(_with(ill="no"), "ill"), "'ill' is 'no' in every row"),
    "text as normal": (
        lambda: tables.fit_encoder(table(), "ill", family="normal"),
        "'ill' is text; family='normal' expects numbers",
    ),
    "three as bernoulli": (
        lambda: tables.fit_encoder(table(), "town", family="bernoulli"),
        "expects two classes; the target 'town' has 3",
    ),
    "NaN": (
        lambda: tables.fit_encoder(_with(weight=[1.0, np.nan, np.inf, 2.0], age=[1, 2, 3, np.nan]), "ill"),
        "(?s)'age' has 1 value missing.*, the first in row 3.*'weight' has 2 values .*; 1 are infinite.*='drop'",
    ),
    "NaN in target": (
        lambda: tables.fit_encoder(_with(ill=["yes", None, None, "no"]), "ill"),
        "'ill' has 2 values missing or not finite, the first in row 1",
    ),
    "none left": (
        lambda: tables.fit_encoder(_with(age=np.nan), "ill", missing="drop"),
        "No row is left.*'age' lacks the most values, 4 of 4",
    ),
    "date as target": (
        lambda: tables.fit_encoder(_with(age=pd.date_range("2020", periods=4)), "age"),
        "The target 'age' is a date; expected numbers or classes",
    ),
    "no count": (lambda: tables.fit_encoder(table(), "weight", family="poisson"), "expects counts.*is 60.5 in row 0"),
    "lists": (lambda: tables.fit_encoder(_with(age=[[1], [2], [3], [4]]), "ill"), "'age' holds mixed"),
    "complex": (lambda: tables.fit_encoder(_with(age=[1j, 2j, 3j, 4j]), "ill"), "'age' holds complex128"),
    "stray text": (
        lambda: tables.fit_encoder(_with(age=["20", "30", "?", "40"]), "ill"),
        r"'age' is text, but 3 of its 4 values are numbers; not '\?' in row 2.*na_values='\?'",
    ),
    "stray text in target": (
        lambda: tables.fit_encoder(_with(ill=["1.5", "2.5", "-", "3.5"]), "ill"),
        "'ill' is text, but 3 of its 4 values are numbers",
    ),
    "decimal comma": (
        lambda: tables.fit_encoder(_with(age=["20,5", "30", "1.030", "1,030.25"]), "ill"),
        "'age' is text, but '20,5' and '1,030.25' write separators in different ways",
    ),
    "thousands": (
        lambda: tables.fit_encoder(_with(age=["2,000", "1,300", "15", "4,100"]), "ill"),
        "'2,000' is 2000 or 2, as ',' may separate thousands.*thousands=',' or decimal=','",
    ),
    "percent": (
        lambda: tables.fit_encoder(_with(ill=["20.5%", "3%", "15 %", "0.04"]), "ill"),
        "signs: '20.5%' in row 0, '0.04' in row 3",
    ),
    "currency": (
        lambda: tables.fit_encoder(_with(age=["$20", "$3.50", "$15", "4"]), "ill"), r"signs: '\$20' in row 0, '4' in"
    ),
    "excluded": (lambda: tables.fit_encoder(table(), "ill", exclude=["wieght"]), "Did you mean 'weight'"),
    "no such family": (lambda: tables.fit_encoder(table(), "ill", family="bernouli"), "Did you mean 'bernoulli'"),
    "too large": (lambda: tables.fit_encoder(_with(age=[1e308, -1e308, 1e308, 0]), "ill"), "'age' cannot be"),
    "same names": (
        lambda: tables.fit_encoder(table().rename(columns={"weight": "age"}), "ill"),
        "more than one column named 'age'",
    ),
    "column gone": (
        lambda: tables.encode(tables.fit_encoder(table(), "ill"), table()[["age", "ill"]]),
        "lacks 'weight', 'smoker', 'town'; expected the columns 'age', 'weight'.*got 'age', 'ill'",
    ),
    "number turned text": (
        lambda: tables.encode(tables.fit_encoder(table(), "ill"), _with(age=["a", "b", "c", "d"])),
        "'age' was number in training but is text here",
    ),
    "boolean turned number": (
        lambda: tables.encode(tables.fit_encoder(table(), "ill"), _with(smoker=[0, 1, 2, 0])),
        "'smoker' was True/False in training; got 2 here",
    ),
    "number target turned text": (
        lambda: tables.encode(
            tables.fit_encoder(table(), "weight"), _with(weight=["light", "light", "heavy", "heavy"])
        ),
        "'weight' was a number in training but is text here",
    ),
    "unknown class": (
        lambda: tables.encode(tables.fit_encoder(table(), "ill"), _with(ill=["yes", "no", "maybe", "no"])),
        "'ill' has classes never seen in training, 'maybe'; expected 'no', 'yes'",
    ),
    "code out of range": (lambda: tables.decode(tables.fit_encoder(table(), "ill"), [0, 2]), "numbers in 0"),
    "code not whole": (lambda: tables.decode(tables.fit_encoder(table(), "ill"), [0.5]), "whole numbers"),
    "sd of classes": (lambda: tables.decode_sd(tables.fit_encoder(table(), "ill"), 1.0), "'ill' has classes, which"),
    "old version": (lambda: tables.Encoder.from_dict({"version": 0}), "version 0; expected 2"),
    "damaged": (lambda: tables.Encoder.from_dict({"version": 2, "columns": []}), "not a saved encoder"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "sentence"), FAULTS.values(), ids=FAULTS)
def test_faults(make, sentence):
    with pytest.raises(DataError, match=sentence):
        make()


def test_numbers_without_a_target():
    """Columns by the numbers there are; one that is the same keeps its place in an array, and none in a table."""
    rows = np.array([[1.0, 7.0, np.nan], [3.0, 7.0, 2.0], [5.0, 7.0, 4.0]])
    table, differs = tables.fit_numbers(rows, ["a", "b", "c"])
    assert differs.tolist() == [True, False, True] and table.names == ["a", "c"] and table.target == tables.NOTHING
    x = table.standardise(rows[:, differs])
    np.testing.assert_allclose(x, [[-np.sqrt(1.5), np.nan], [0, -1], [np.sqrt(1.5), 1]], atol=1e-15)
    np.testing.assert_allclose(table.restore(x), rows[:, differs])
    a = np.log(np.std([1, 3, 5]))  # of c the sd is 1
    np.testing.assert_allclose(table.log_scales(x), [a, a, a])
    array, _ = tables.fit_numbers(rows, ["0", "1", "2"], shape=(3,))
    np.testing.assert_allclose(array.standardise(rows)[:, 1], 0)
    for encoder in (table, array):
        assert tables.Encoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
    assert array.to_dict()["columns"][1] == {"name": "1", "kind": "number", "mean": 7.0}  # what is usual is not written


def test_many_levels_and_classes():
    names = [f"n{i}" for i in range(101)]
    frame = pd.DataFrame({"x": np.arange(101.0), "name": names})
    with pytest.warns(TractableWarning, match="101 distinct values in 101 rows"), pytest.raises(DataError):
        tables.fit_encoder(frame, "x")
    often = pd.concat([frame, frame, frame.iloc[:99]], ignore_index=True)
    with pytest.warns(TractableWarning, match="'any other' is the level of the 2 rarest"):
        encoder = tables.fit_encoder(often, "x")
    rare = tables.encode(encoder, often.iloc[[99, 100]].assign(name=["n100", "new"])).x
    np.testing.assert_array_equal(rare[0], rare[1])
    with pytest.raises(DataError, match="'name' has 101 classes; at most 100"):
        tables.fit_encoder(frame, "name")


def test_all_columns_constant():
    frame = pd.DataFrame({"x": [1.0, 1.0], "y": [0, 1]})
    with pytest.warns(TractableWarning), pytest.raises(DataError, match="Every input column is constant"):
        tables.fit_encoder(frame, "y")


def test_a_row_keeps_its_number_when_others_are_dropped():
    frame = _with(age=[None, "20", "30", "?"], town=["a", "b", "c", "d"])
    with pytest.raises(DataError, match=r"not '\?' in row 3"):
        tables.fit_encoder(frame, "ill", missing="drop")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_read(tmp_path, name):
    path = tmp_path / name
    table().to_parquet(path) if name.endswith("parquet") else table().to_csv(path, index=False)
    frame = read_table(path)
    assert tables.fit_encoder(frame, "ill") == tables.fit_encoder(table(), "ill")


def test_read_with_a_byte_order_mark(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n", encoding="utf-8-sig")
    assert read_table(tmp_path / "t.csv").columns.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.xlsx", b"", "are .csv, .tsv or .parquet files; got t.xlsx"),
        ("t.csv", b"", "is empty; expected a header and rows"),
        ("t.csv", b"a,b\n", "holds no rows under its header"),
        ("t.csv", b"a,a\n1,2\n", "more than one column named 'a'"),
        ("t.csv", b",a\n0,2\n", "column without a name in position 0"),
        ("t.csv", b"a,b\n1,2,3\n", "cannot be read as CSV"),
        ("t.csv", b"a,b\n1,2\n1,2,3,4\n", "cannot be read as CSV"),
        ("t.csv", b'a,b\n1,"2\n', "cannot be read as CSV"),
        ("t.csv", b"a,b\n\xff\xfe,2\n", "is not text in UTF-8"),
        ("t.csv.gz", b"a,b\n1,2\n", "cannot be read as CSV"),
        ("t.parquet", b"a,b\n1,2\n", "is not a Parquet file, or is damaged"),
    ],
)
def test_unreadable(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        read_table(tmp_path / name)


def test_no_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv does not exist. Expected a \.csv or \.parquet file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_what_separates_columns_is_found(mark, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"a{mark}b\n1{mark}2.5\n", encoding="utf-8")
    assert read_table(path).to_dict("list") == {"a": [1], "b": [2.5]}
