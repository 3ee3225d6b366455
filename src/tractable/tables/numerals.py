"""Numbers that a table holds as text, such as "€1,234.50", or as Python objects."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tractable.core.errors import DataError
from tractable.core.words import tell

Frame = pd.DataFrame
Values = Any  # a pandas Series; pandas' own annotation of frame[name] allows other types too

FEW_LEVELS = 20  # text with at most this many distinct numbers may also hold entries such as 3+; all are then levels
CODES = "AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|ILS|INR|JPY|KRW|MXN|NOK|NZD|PLN|RON|SEK|SGD|THB|TRY|USD|ZAR"
SIGN = rf"[A-Z]{{0,3}}[$€£¥¢₹₩₽₺₪₫฿₴]|{CODES}|kr|zł|%"
DIGITS = r"(?:[1-9]\d{0,2}(?:([,.' ])\d{2,3})(?:\5\d{2,3})*(?:[.,]\d*)?|\d*[.,]?\d+|\d+[.,])(?:[eE][-+]?\d+)?"
# A number in text: a minus, a sign before or after the digits, and digits with separators.
NUMBER = re.compile(rf"([-+]?) ?({SIGN})? ?([-+]?) ?({DIGITS}) ?({SIGN})?")
MARKS = str.maketrans("’−–", "'--")  # other characters for the same marks
Written = tuple[str, str]  # a number in text: its sign, and its digits with their separators and a minus


class Form(NamedTuple):
    """How a column writes its numbers as text; a mark is "" if no value has it."""

    sign: str = ""
    thousands: str = ""
    decimal: str = ""


BARE = Form()


def text_of(values: Iterable[Any]) -> list[str]:
    """Values as strings; 1 and 1.0 both become "1"."""
    return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values]


def are_plain(texts: Iterable[Any]) -> np.ndarray:
    """Whether each text is a number as pandas reads it, (n,)."""
    return ~np.isnan(np.asarray(pd.to_numeric(pd.Series(list(texts), dtype=object), errors="coerce"), np.float64))


def parts_of(text: str) -> Written | None:
    """The parts of a number in text; None if the text is something else.

    >>> parts_of("−€1,234.50"), parts_of("5 %"), parts_of("12 months")
    (('€', '-1,234.50'), ('%', '5'), None)
    """
    found = NUMBER.fullmatch(re.sub(r"\s", " ", text).strip().translate(MARKS))
    if found is None or (found[1] and found[3]) or (found[2] and found[6]):
        return None
    return found[2] or found[6] or "", (found[1] + found[3]).strip("+") + found[4]


def readings(written: Sequence[Written], form: Form = BARE) -> list[tuple[np.ndarray, Form]]:
    """The different ways to read all numbers, each with its values (n,) and form; there is one if they are certain.

    >>> [(float(numbers[0]), form.thousands) for numbers, form in readings([("", "1,234")])]
    [(1234.0, ','), (1.234, '')]
    """
    found: list[tuple[np.ndarray, Form]] = []
    for thousands, decimal in itertools.product(form.thousands or ",.' ", form.decimal or ".,"):
        t, d, size = re.escape(thousands), re.escape(decimal), "{2,3}" if thousands == "," else "{3}"  # 12,34,567 too
        pattern = re.compile(rf"-?([1-9]\d{{0,2}}({t}\d{size})*{t}\d{{3}}|\d*)({d}\d*)?([eE][-+]?\d+)?")
        if thousands == decimal or not all(pattern.fullmatch(digits) for _, digits in written):
            continue
        numbers = np.array([float(digits.replace(thousands, "").replace(decimal, ".")) for _, digits in written])
        if not any(np.array_equal(numbers, other) for other, _ in found):
            used = [mark * any(mark in digits for _, digits in written) for mark in (thousands, decimal)]
            found.append((numbers, Form(written[0][0], *used)))
    return found


def read_column(values: Values, form: Form = BARE, known: bool = False) -> tuple[Values, Form | None]:
    """A column of text as numbers, and their form; the column itself and None if its reading is not certain.

    It is certain if all values have the same sign or none, and their separators can be read in one way. Text that holds
    only plain numbers stays text, unless marks are known, because such numbers are often names.

    Args:
        form: the marks that are known.
        known: whether these are the marks of earlier rows; a value may then lack the sign.
    """
    there = values[~values.isna()]
    text = not isinstance(values.dtype, pd.CategoricalDtype) and len(there) and isinstance(there.iloc[0], str)
    if not text or parts_of(there.iloc[0]) is None or pd.api.types.infer_dtype(there) != "string":
        return values, None
    codes, texts = pd.factorize(there)
    written = [part for each in texts if (part := parts_of(each))]
    signs = {sign for sign, _ in written} if not known else {sign or form.sign for sign, _ in written} | {form.sign}
    plain = not known and form == BARE and bool(are_plain(texts).all())
    found = [] if plain or len(written) < len(texts) or len(signs) > 1 else readings(written, form)
    if len(found) != 1:
        return values, None
    numbers = pd.Series(np.nan, values.index, name=values.name)
    numbers[there.index] = found[0][0][codes]
    return numbers, found[0][1]


def read_numbers(
    frame: Frame, names: Iterable[str], forms: Mapping[str, Form] | None = None, marks: Form = BARE, signs: bool = True
) -> tuple[Frame, dict[str, Form]]:
    """The table with text of some columns read as numbers, and the forms of these columns; a note says so.

    Args:
        names: the columns to read.
        forms: the forms of earlier rows of the same columns; there is then no note.
        marks: the marks that the user gave.
        signs: whether numbers with signs are read too.
    """
    numbers, found = {}, {}
    for name in names:
        values, form = read_column(frame[name], marks if forms is None else forms[name], forms is not None)
        if form is None or (form.sign and not signs):
            continue
        numbers[name], found[name] = values, form
        if forms is None:
            place = next((i for i, t in enumerate(frame[name]) if isinstance(t, str) and not t.isdecimal()), 0)
            removed = f"the sign {form.sign} was removed, and " * bool(form.sign)
            text, number = frame[name].iloc[place], values.iloc[place]
            tell(f"Column {name!r} was read as numbers: {removed}{text!r} is {number:.15g}.")
    return frame.assign(**numbers), found


def plain_column(values: Values) -> Values:
    """A column with a usual type of NumPy for its values, of whatever type of pandas, Arrow or Python they are.

    Numbers, also objects such as Decimal, become float64, or int64 if they are whole and none is missing. True/False
    with gaps, and text, become objects. Numbers and text in one column become text. Periods become dates.
    """
    usual = isinstance(values.dtype, np.dtype) and values.dtype.kind != "O"
    if usual or isinstance(values.dtype, pd.CategoricalDtype | pd.DatetimeTZDtype):
        return values
    gone = values.isna()
    values = values.astype(object).where(~gone, None).infer_objects()
    if isinstance(values.dtype, pd.PeriodDtype):
        return values.dt.to_timestamp()
    number = [isinstance(each, Real | Decimal) and not isinstance(each, bool) for each in values[~gone]]
    if values.dtype != object or not any(number):
        return values
    if all(number):
        return values.astype(np.float64)
    mixed = all(each or isinstance(value, str) for each, value in zip(number, values[~gone], strict=True))
    return values.where(gone, text_of(values)) if mixed else values


def place_of(values: Values, wrong: np.ndarray) -> str:
    """The values that ``wrong`` (n,) marks, with their rows, in words; at most three different ones.

    >>> place_of(pd.Series(["5", "?", "?", "-"]), np.array([False, True, True, True]))
    "'?' in row 1, '-' in row 3 and 1 more"
    """
    shown = values[wrong].drop_duplicates().iloc[:3]
    more = int(np.sum(wrong)) - len(shown)
    return ", ".join(f"{value!r:.40} in row {row}" for row, value in shown.items()) + f" and {more} more" * (more > 0)


def check_numbers_in_text(values: Values, few: bool = False) -> None:
    """Raise a DataError if a text column seems to hold numbers, and say why they cannot be read as numbers.

    A few other entries (up to three different ones if ``few``), or different signs and separators, may have turned the
    column into text.
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        return
    texts: Values = pd.Series(text_of(values), values.index)
    plain = are_plain(texts)
    written = {text: part for text in texts.unique() if (part := parts_of(text))}
    number = plain | texts.isin(list(written)).to_numpy(bool)
    stray: Values = texts[~number]
    # If a column has a few distinct numbers and text such as "3+" or "65 and over", all of them are levels.
    levels = len(stray) > 0 and stray.str.contains(r"\d").all() and texts[number].nunique() <= FEW_LEVELS
    if plain.all() or 2 * number.sum() <= len(texts) or levels or (few and stray.nunique() > 3):
        return
    faults, words = [], list(stray.unique())
    found = readings(list(written.values())) if not plain[number].all() else [(np.zeros(0), BARE)]
    if words:
        named = repr(words[0] if len(words) == 1 else words[:10])
        faults.append(
            f"{number.sum()} of its {len(texts)} values are numbers; not {place_of(texts, ~number)}: leave such "
            f"cells empty, or read the table with na_values={named}, if they mean a missing value; else correct them, "
            "or make the column categorical if the numbers are only names"
        )
    signs = {sign: text for text, (sign, _) in reversed(written.items())}
    if len(signs) > 1:
        shown = place_of(texts, texts.isin(list(signs.values())).to_numpy(bool))
        faults.append(f"its numbers differ in their signs: {shown}; write all in one unit, with one sign or none")
    if len(found) > 1:
        text, *each = next(row for row in zip(written, found[0][0], found[1][0], strict=True) if row[1] != row[2])
        mark = "," if "," in text else "."
        faults.append(
            f"{text!r} is {each[0]:.15g} or {each[1]:.15g}, as {mark!r} may separate thousands or be the decimal mark; "
            f"read the table with thousands={mark!r} or decimal={mark!r}, or write plain numbers"
        )
    elif not found:
        first = next(iter(written))
        other = next((text for text in written if not readings([written[first], written[text]])), list(written)[-1])
        faults.append(f"{first!r} and {other!r} write separators in different ways; write all numbers in one way")
    if faults:
        raise DataError(f"Column {str(values.name)!r} is text, but {'. Also, '.join(faults)} (the top row is 0).")
