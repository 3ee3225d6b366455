"""Numbers in text and in columns of any type, and errors that report all faults of a table."""

import json
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tractable.core.errors import DataError, TractableWarning
from tractable.tables.encoder import Encoder, encode, fit_encoder, with_numbers
from tractable.tables.files import read_table
from tractable.tables.numerals import Form, plain_column, read_column
from tractable.tables.regression import regression

pytestmark = pytest.mark.quick

X = [1.0, 2.0, 4.0, 3.0, 7.0, 5.0]
Y = [0.5, 1.0, 2.5, 1.0, 4.0, 2.0]
NAN = float("nan")


@pytest.mark.parametrize(
    ("texts", "numbers", "form"),
    [
        (["€1,234.50", "€7.25"], [1234.5, 7.25], ("€", ",", ".")),
        (["1.234,50 €", "7,25 €"], [1234.5, 7.25], ("€", ".", ",")),
        (["EUR 12", "EUR -3"], [12, -3], ("EUR", "", "")),
        (["-$1.5", "$-2", "$ 3"], [-1.5, -2, 3], ("$", "", ".")),
        (["US$1.5", "US$2"], [1.5, 2], ("US$", "", ".")),
        (["10%", "2.5 %"], [10, 2.5], ("%", "", ".")),
        (["−5", "3", "–2.5"], [-5, 3, -2.5], ("", "", ".")),
        (["1\u202f234,5", "12\u00a0000"], [1234.5, 12000], ("", " ", ",")),
        (["1’234.5", "7"], [1234.5, 7], ("", "'", ".")),
        (["1,234,567", "12"], [1234567, 12], ("", ",", "")),
        (["12,34,567", "5.5"], [1234567, 5.5], ("", ",", ".")),
        (["20,5", "1.030,25", "40"], [20.5, 1030.25, 40], ("", ".", ",")),
        (["£1e3", "£2"], [1000, 2], ("£", "", "")),
        ([" ¥5 ", "¥6", None], [5, 6, NAN], ("¥", "", "")),
    ],
)
def test_numbers_in_text_are_read_where_that_is_certain(texts, numbers, form):
    values, found = read_column(pd.Series(texts))
    assert found == Form(*form)
    np.testing.assert_array_equal(values.to_numpy(float), numbers)
    for text, number in zip(texts, numbers, strict=True):  # a single row too, once the form is known
        if text is not None:
            assert read_column(pd.Series([text]), found, known=True)[0].tolist() == [number]


@pytest.mark.parametrize(
    "texts",
    [["1,234", "5,678"], ["€1.234", "€5.678"], ["€5", "$6"], ["€5", "6"], ["5%", "0.05"], ["1.234,5", "1,234.5"],
     ["5", "12"], ["3+", "4"], ["12-3456", "13-4567"], ["10.0.0.1", "10.0.0.2"], ["REF 12", "REF 13"], ["€", "%"],
     ["--5", "3"], ["0,123", "0.123"], ["007 123", "008 124"], ["+1 555 1234", "2"], ["1e", "2"], ["5€%", "6€%"]],
)  # fmt: skip
def test_other_text_stays_text(texts):
    values, found = read_column(pd.Series(texts))
    assert found is None and values.tolist() == texts


@pytest.mark.parametrize(
    ("text", "form"), [("$5", Form("€")), ("1,5", Form("", ",")), ("1.234,5", Form("", ",", ".")), ("1,234", Form())]
)
def test_a_row_in_another_form_is_not_read(text, form):
    assert read_column(pd.Series([text]), form, known=True)[1] is None


def test_a_table_of_money_is_that_of_its_numbers():
    """The same encoder and rows, also of a saved encoder and of single rows, for inputs, targets and formulas."""
    frame = pd.DataFrame({"x": X, "y": Y})
    money = pd.DataFrame({"x": [f"€{x:,.2f}" for x in X], "y": [f"{y:.1f}%" for y in Y]})
    with pytest.warns(TractableWarning) as said:
        encoder = fit_encoder(money, "y")
    assert str(said[0].message) == "Column 'x' was read as numbers: the sign € was removed, and '€1.00' is 1."
    encoder = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    plain = fit_encoder(frame, "y")
    assert encoder.columns == plain.columns and encoder.target == plain.target and "numerals" not in plain.to_dict()
    with pytest.warns(TractableWarning, match="was read as numbers"):
        by_formula = regression("y ~ x", money).encoder
    by_formula = Encoder.from_dict(json.loads(json.dumps(by_formula.to_dict())))
    for each, other in ((encoder, plain), (by_formula, regression("y ~ x", frame).encoder)):
        np.testing.assert_array_equal(encode(each, money).x, encode(other, frame).x)
        np.testing.assert_array_equal(encode(each, money).y, encode(other, frame).y)
        for i in range(len(frame)):
            np.testing.assert_array_equal(encode(each, money[["x"]].iloc[[i]]).x, encode(other, frame.iloc[[i]]).x)
        np.testing.assert_array_equal(encode(each, frame).x, encode(other, frame).x)
    with pytest.raises(DataError, match=r"'x' was number in training but is text here, such as '\$1' in row 0"):
        encode(encoder, pd.DataFrame({"x": ["$1", "$2"]}))


WHOLE = [1, 2, 4, 3, 7, 5]
TYPES = {
    **{str(kind): pd.Series(WHOLE, dtype=kind) for kind in (
        "int8", "uint8", "int64", "uint64", "float16", "float32", "float64", "Int8", "UInt64", "Int64", "Float32",
        "Float64", "int32[pyarrow]", "uint8[pyarrow]", "double[pyarrow]", "float[pyarrow]", "Sparse[int]",
        "Sparse[float]", object,
    )},
    "decimal": pd.Series([Decimal(x) for x in WHOLE]),
    "decimal[pyarrow]": pd.Series([Decimal(x) for x in WHOLE], dtype=pd.ArrowDtype(pa.decimal128(5, 2))),
    "scalars of NumPy": pd.Series([np.float32(1), np.int8(2), np.int64(4), 3.0, np.uint8(7), 5], dtype=object),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("target", [False, True])
def test_numbers_of_every_type_are_numbers(name, target):
    frame, usual = pd.DataFrame({"x": TYPES[name], "y": Y}), pd.DataFrame({"x": WHOLE, "y": Y})
    aim = "x" if target else "y"
    encoder, other = fit_encoder(frame, aim), fit_encoder(usual, aim)
    assert encoder == other
    for each in (frame, usual):
        np.testing.assert_array_equal(encode(encoder, each).x, encode(other, usual).x)
    np.testing.assert_array_equal(encode(encoder, frame).y, encode(other, usual).y)


GAPS = {
    "float": [1.0, NAN, 4.0, 3.0, 7.0, 5.0],
    "None among numbers": pd.Series([1, None, 4, 3, 7, 5], dtype=object),
    "NA among objects": pd.Series([1, pd.NA, 4, 3, 7, 5], dtype=object),
    "NaT among objects": pd.Series([1, pd.NaT, 4, 3, 7, 5], dtype=object),
    "decimal": pd.Series([Decimal(1), None, Decimal(4), Decimal(3), Decimal(7), Decimal("5")]),
    "Int64": pd.array([1, None, 4, 3, 7, 5], dtype="Int64"),
    "Float64": pd.array([1, None, 4, 3, 7, 5], dtype="Float64"),
    "Arrow": pd.array([1, None, 4, 3, 7, 5], dtype="int64[pyarrow]"),
    "sparse": pd.array([1, NAN, 4, 3, 7, 5], dtype="Sparse[float]"),
    "money": ["€1", None, "€4", "€3", "€7", "€5"],
}


@pytest.mark.filterwarnings("ignore:Column 'x' was read as numbers")
@pytest.mark.parametrize("name", GAPS)
def test_gaps_of_every_kind_are_gaps(name):
    frame, usual = pd.DataFrame({"x": GAPS[name], "y": Y}), pd.DataFrame({"x": GAPS["float"], "y": Y})
    encoder, other = fit_encoder(frame, "y", "impute"), fit_encoder(usual, "y", "impute")
    assert encoder.columns == other.columns
    np.testing.assert_array_equal(encode(encoder, frame).x, encode(other, usual).x)
    with pytest.raises(DataError, match="'x' has 1 value missing or not finite, the first in row 1"):
        fit_encoder(frame, "y")


DAYS = pd.date_range("2024-01-01", periods=6).to_series(index=range(6))
ALIKE = {
    "True/False": ([True, False, True, True, False, True], ["bool", "boolean", object, "bool[pyarrow]"]),
    "text": (list("abcabc"), [object, "str", "string", "string[python]", "string[pyarrow]", "category",
                              pd.ArrowDtype(pa.string()), pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))]),
    "dates": (list(DAYS), ["datetime64[ns]", "datetime64[s]", object, "timestamp[ns][pyarrow]", "date32[pyarrow]"]),
    "durations": (list(DAYS - DAYS[0]), ["timedelta64[ns]", object, "duration[ns][pyarrow]"]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Column 'x' is a d")
@pytest.mark.parametrize("kind", ALIKE)
def test_other_kinds_have_one_meaning_in_every_type(kind):
    values, types = ALIKE[kind]
    for missing in (False, True):
        found = []
        for dtype in types:
            x = pd.Series([None if missing and i == 2 else v for i, v in enumerate(values)], dtype=object)
            if missing and dtype == "bool":
                continue
            frame = pd.DataFrame({"x": x.astype(dtype), "y": Y})
            encoder = fit_encoder(frame, "y", "impute" if missing else "raise")
            found.append((encoder.columns, encode(encoder, frame).x.tolist()))
        assert all(each == found[0] for each in found[1:])


def test_columns_of_two_kinds():
    assert plain_column(pd.Series([1, 2.5, "n/a", None])).tolist() == ["1", "2.5", "n/a", None]
    assert plain_column(pd.period_range("2024-01", periods=2, freq="M").to_series()).dtype.kind == "M"
    for strange in ([[1], [2]], [1j, 2j], [True, 2], [b"a", b"b"]):
        frame = pd.DataFrame({"x": pd.Series(strange, dtype=object), "y": [1.0, 2.0]})
        with pytest.raises(DataError, match=r"'x' holds .*, such as"):
            fit_encoder(frame, "y")


def messy() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "gap": [1, None, 3, 4, 5, 6.5],
            "words": ["1.5", "unknown", "3.5", "-", "5", "7"],
            "money": ["€1", "$2", "€3", "€4", "€5", "€6"],
            "when": ["2024-05-31", "31/05/2024", "2024-06-01", "2024-06-02", "2024-06-03", "2024-06-04"],
            "far": [1, 2, np.inf, 4, 5, 6],
            "lists": [[1]] * 6,
            "fine": X,
            "y": ["1.5", "?", "2.5", "3", "4", "5"],
        }
    )


def test_one_error_has_all_faults_of_a_table():
    with pytest.raises(DataError) as error:
        fit_encoder(messy(), "y", exclude=["non"], weights="wieght")
    lines = str(error.value).split("\n")
    assert lines[0] == "The table cannot be used as it is:" and len(lines) == 10
    for line, words in zip(
        lines[1:9],
        ["'non', 'wieght' is not a column", "'gap' has 1 value missing", "not 'unknown' in row 1, '-' in row 3",
         "'€1' in row 0, '$2' in row 1", "'31/05/2024' in row 1", "; 1 are infinite", "'lists' holds mixed",
         "not '?' in row 1"],
        strict=True,
    ):  # fmt: skip
        assert words in line
    assert "na_values=['unknown', '-']" in lines[3] and "missing='impute'" in lines[9]
    with pytest.raises(DataError, match=r"(?s)'gap' has 1 .*'words' is text.*'far' has 1 .*target|'y' is text"):
        regression("y ~ gap + words + far + fine", messy())
    many = pd.DataFrame({f"x{i}": [1.0, NAN] for i in range(30)} | {"y": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"(?s)'x9' has.*faults of 20 more columns"):
        fit_encoder(many, "y")


def test_the_remedies_of_the_error_succeed(tmp_path):
    frame = messy().drop(columns=["lists", "money", "when"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = read_table(tmp_path / "t.csv", na_values="unknown,-,?")
    encoder = fit_encoder(table, "y", "impute")
    assert [column.kind for column in encoder.columns] == ["number"] * 4 and not encoder.target.classes


def test_one_error_has_all_faults_of_rows_to_predict():
    frame = pd.DataFrame({"a": X, "b": X[::-1], "c": [True, False] * 3, "d": X, "y": Y})
    for encoder in (fit_encoder(frame, "y"), regression("y ~ a + b + d", frame).encoder):
        rows = pd.DataFrame({"a": ["lots", "2"], "b": [1.0, NAN], "c": [3, 0]})
        with pytest.raises(DataError) as error:
            encode(encoder, rows)
        lines = str(error.value).split("\n")
        assert (
            "lacks 'd'" in lines[1] and "was number in training but is text here, such as 'lots' in row 0" in lines[2]
        )
        assert "'b' has 1 value missing" in lines[3]
        assert ("True/False in training; got 3" in lines[4]) == (encoder.formula is None)


@pytest.mark.parametrize(
    ("how", "number"),
    [({"thousands": ","}, 1234.0), ({"decimal": ","}, 1.234), ({"thousands": ",", "decimal": "."}, 1234.0)],
)
def test_a_file_is_read_with_its_marks(tmp_path, how, number):
    (tmp_path / "t.csv").write_text("a;b;c\n1,234;€1,234;x\n5,678;€5,678;x\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = read_table(tmp_path / "t.csv", ";", **how)
        marks = Form("", how.get("thousands", ""), how.get("decimal", ""))
        read, numerals = with_numbers(table, [], "", [], marks)
    assert table["a"][0] == read["b"][0] == number and table["c"].tolist() == ["x", "x"]
    assert table["b"][0] == "€1,234" and numerals[:2] == ("b", "€")
    (tmp_path / "t.csv").write_text("a;b\n1.234;7.000.000\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_table(tmp_path / "t.csv", ";", thousands=".").iloc[0].tolist() == [1234, 7_000_000]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([f"n{i}" for i in range(80)], "has 80 classes.*'n0', 'n1'.* of its 80 rows; a class needs several rows"),
        ([f"n{i}" for i in range(40)] * 2, "has 40 classes.*a class needs several rows"),
        ([f"{i}.5" for i in range(80)], "numbers written as text"),
        ([*"ab"] * 30 + [f"n{i}" for i in range(20)], "has 22 classes"),
    ],
)
def test_a_target_of_classes_with_few_rows_is_refused(values, sentence):
    frame = pd.DataFrame({"x": np.arange(80.0) ** 2, "y": values})
    with pytest.raises(DataError, match=sentence):
        fit_encoder(frame, "y")
    few = frame.assign(y=[f"n{i % 20}" for i in range(80)])
    assert len(fit_encoder(few, "y").target.classes) == 20
