"""The columns of a table: their kinds, and how they are encoded as numbers."""

import contextlib
import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tractable.core import scales
from tractable.core.errors import DataError
from tractable.core.view import Label
from tractable.core.words import listing, tell
from tractable.tables.numerals import FEW_LEVELS, Values, are_plain, check_numbers_in_text, place_of, text_of

# The largest absolute value that a column's numbers may have; their differences then cannot overflow.
LARGEST = float(np.finfo(np.float64).max) / 4
MOST_LEVELS = 100  # the largest number of levels of text that is not pooled; of more levels, the rarest share one
REST = "any other"  # the level that the rarest levels share
WORDS = (("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("off", "on"))  # pairs that mean False and True
MEANS = {word: value for pair in WORDS for value, word in enumerate(pair)}  # 0 for False, 1 for True
DATED = r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}"  # the start of text that is a date
# Formats of dates in text are tried in the order of ``FORMATS``.
DAYS, CLOCKS = ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y"), ("", " %H:%M", " %H:%M:%S")
FORMATS = ("ISO8601", *(day + clock for clock in CLOCKS for day in DAYS))
CLOCK = r"((-?\d+ days?,? \+?)?\d+:[0-5]\d(:[0-5]\d(\.\d+)?)?|-?\d+ days?|P\d+DT\d+H\d+M[\d.]+S)"  # a duration as text
ZONE = r"(?:Z|\d[+-]\d\d:?\d\d)$"  # the end of a time that is written with its difference from UTC
IDENTIFIER = (  # names that suggest that a column only identifies rows
    r"(.*[_\s.-])?(id|uuid|guid|key|index|row|rownames|no|nr|sno|number|serial|record|instant|obs|observation|case)"
    r"|unnamed: \d+|.*[a-z]I[dD]"
)
# Names of columns whose whole numbers may name groups of rows:
CODE = r"(.*[_\s.-])?(id|code|fips|plz|(zip|post|postal|area)[_\s-]?code|zip)|.*[a-z](I[dD]|Code)"
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
YEAR = 365.25  # days
WAVES = 2  # the number of harmonics that encode a cycle, such as the time of day


@dataclass(frozen=True)
class Column:
    """How one column of the table, or one part of a date, becomes columns of X, the matrix of inputs.

    Attributes:
        name: the name of the table's column.
        kind: "number", "boolean" or "text"; "cycle" for a part of a date that recurs, such as the time of day;
            "presence" if X holds only whether the value is missing, because all other values are equal; or "pooled" for
            text of many levels, whose effects share a learnt sd: the index of the level replaces columns of X.
        mean, sd: for a number, its mean and sd in training; for a boolean, the share of True, and 1; for pooled text, 0
            and a first guess of the sd of its levels' effects, in sds of the noise; else 0 and 1.
        levels: the levels of text, sorted; for a boolean written as text, the word for False and the word for True.
        shares: each level's share of the training rows; for a cycle, the means of its cosines and sines; for pooled
            text, each level's number of rows.
        fill: the value that replaces a missing one; None if missing values raise an error or have a level of their own.
        gaps: the share of training rows that lack a value; if it is above 0, such rows are marked by a column of X, or
            by a level of text.
        part: for a date or duration, the part of it that is encoded, such as "trend" or "time of day"; else "".
        format: the format of dates in text.
    """

    name: str
    kind: str
    mean: float = 0.0
    sd: float = 1.0
    levels: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    fill: bool | int | float | str | None = None
    gaps: float = 0.0
    part: str = ""
    format: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}: {self.part}" if self.part else self.name

    @property
    def features(self) -> list[str]:
        """The names of the columns of X that this column becomes."""
        if self.kind == "pooled":
            return []
        if self.kind == "text":
            return [f"{self.title} [{i}]" for i in range(1, len(self.levels))]
        if self.kind == "cycle":
            return [f"{self.title} {wave} {i}" for i in range(1, WAVES + 1) for wave in ("cos", "sin")]
        own = [] if self.kind == "presence" else [self.title]
        return own + [self.absent] * (self.gaps > 0)

    @property
    def absent(self) -> str:
        return f"{self.title} is missing"

    def effects(self) -> tuple[list[Label], np.ndarray]:
        """The effects of the column in its own units: their names, and a matrix (e, features).

        The matrix times the weights of a linear model gives the effects. The effect of a number is the change in the
        linear predictor η for one unit, that of a date the change in a year, and that of a boolean the change from
        False to True. The effect of a level of text is its difference from the mean of all levels. A cycle has an
        effect for each time in ``STATIONS``: its difference from the cycle's mean. Pooled text has none here, as its
        effects are parameters themselves.
        """
        if self.kind == "pooled":
            return [], np.zeros((0, 0))
        if self.kind == "text":
            levels = ["missing" if level == self.absent else level for level in self.levels]
            return [Label(self.title, level) for level in levels], contrasts(len(levels))
        if self.kind == "cycle":
            names, phases = STATIONS[self.part]
            return [Label(self.title, name) for name in names], _waves(np.asarray(phases))
        scales = [1 / self.sd] * (self.kind != "presence") + [1.0] * (self.gaps > 0)
        if self.part == "trend":
            scales[0] *= YEAR
            return [Label(name) for name in (f"{self.name}: trend per year", *self.features[1:])], np.diag(scales)
        return [Label(name) for name in self.features], np.diag(scales)


def contrasts(levels: int) -> np.ndarray:
    """Orthonormal columns that sum to zero, for K levels, (K, K − 1).

    If the weights of these columns are N(0, s²), the effects of the levels are N(0, s²), conditioned to sum to zero. No
    level is the reference, so the prior of the effects does not depend on the levels' order.
    """
    whole = np.eye(levels - 1) - (1 - 1 / math.sqrt(levels)) / (levels - 1)
    return np.concatenate([whole, np.full((1, levels - 1), -1 / math.sqrt(levels))])


def lacks(values: Values) -> np.ndarray:
    """Whether each value is missing, or a number that is not finite, (n,)."""
    absent = values.isna().to_numpy(bool)
    if values.dtype.kind == "f":
        absent = absent | ~np.isfinite(values.to_numpy(np.float64, na_value=np.nan))
    return absent


def kind_of(values: Values) -> str:
    """The kind of a column: "number", "boolean", "text", "date" or "duration". No value may be missing."""
    dtype = values.dtype
    if pd.api.types.is_bool_dtype(dtype) and not isinstance(dtype, pd.CategoricalDtype):
        return "boolean"
    if pd.api.types.is_numeric_dtype(dtype) and dtype.kind in "iuf":
        return "number"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "date"
    if pd.api.types.is_timedelta64_dtype(dtype):
        return "duration"
    if pd.api.types.is_object_dtype(dtype):
        dtype = pd.api.types.infer_dtype(values, skipna=False)
        known = {"boolean": "boolean", "string": "text", "date": "date", "timedelta": "duration"}
        if (dtype := str(dtype).removesuffix("64").replace("datetime", "date")) in known:
            return known[dtype]
    elif isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype):
        return "text"
    first = f", such as {values.iloc[0]!r:.40}" if len(values) else ""
    raise DataError(
        f"Column {str(values.name)!r} holds {dtype}{first}; expected numbers, True/False, text or dates. "
        "Convert it, or leave it out."
    )


def fit_column(values: Values, impute: bool, pooled: bool = False) -> list[Column]:
    """Learn from a training column how to encode it; a date gives one Column for each part that varies.

    The list is empty, and there is a warning, if the column is the same in every row or only identifies the rows. If
    text is not ``pooled`` and has more than ``MOST_LEVELS`` levels, the rarest levels share one level.
    """
    name, gone = str(values.name), lacks(values)
    share = float(gone.mean())
    values = values[~gone]  # missing values get here only if they shall be imputed
    kind, form = ("text", "") if pooled else meaning(values) if len(values) else ("", "")
    if values.nunique() < 2:
        if len(values) and share:
            return [Column(name, "presence", share, gaps=share)]
        same = f"{values.tolist()[0]!r}" if len(values) else "missing"
        tell(f"Column {name!r} is {same} in every row; it is left out.")
        return []
    if kind == "text" and not isinstance(values.dtype, pd.CategoricalDtype):
        check_numbers_in_text(values, few=True)
        _check_dates_in_text(values)
    if reason := _names_rows(values, kind, len(gone)):
        tell(f"Column {name!r} {reason}; it is left out.")
        return []
    if kind in ("date", "duration"):
        return _date_columns(values, kind, form, share, impute)
    return [_fit_one(values, kind, share, impute, pooled)]


def _fit_one(values: Values, kind: str, gaps: float, impute: bool, pooled: bool = False) -> Column:
    name = str(values.name)
    if kind == "number":
        numbers = values.to_numpy(np.float64)
        mean, sd = moments(name, numbers)
        return Column(name, kind, mean, sd, fill=float(np.median(numbers)) if impute else None, gaps=gaps)
    if kind == "boolean":
        pair = _words(values) if kind_of(values) == "text" else ()
        true = _true(pair, text_of(values)) if pair else values.to_numpy(np.float64)
        fill = bool(np.mean(true) > 0.5) if impute else None
        return Column(name, kind, float(np.mean(true)), levels=pair, fill=fill, gaps=gaps)
    check_numbers_in_text(values)
    found = pd.Series(text_of(values)).value_counts()  # the most frequent first
    tell_of_equal_levels(name, found.index)
    if pooled:
        rows: dict[str, int] = dict(sorted(found.to_dict().items()))
        column = Column(name, "pooled", levels=tuple(rows), shares=tuple(map(float, rows.values())), gaps=gaps)
        if gaps:
            lacking = gaps / (1 - gaps) * len(values)
            return replace(column, levels=(*column.levels, column.absent), shares=(*column.shares, lacking))
        return column
    if len(found) > MOST_LEVELS:
        tell(
            f"Column {name!r} has {len(found)} distinct values; the {MOST_LEVELS - 1} most frequent are levels of "
            f"their own, and {REST!r} is the level of the {len(found) - MOST_LEVELS + 1} rarest."
        )
        rest = int(found.iloc[MOST_LEVELS - 1 :].sum())
        found = pd.concat([found.iloc[: MOST_LEVELS - 1], pd.Series({REST: rest})])
    order = sorted(found.index, key=lambda level: (WEEKDAYS.index(level) if level in WEEKDAYS else -1, level))
    shares = np.array([found[level] for level in order]) / len(values) * (1 - gaps)
    column = Column(name, kind, levels=tuple(order), shares=tuple(shares.tolist()), gaps=gaps)
    if not gaps:
        return replace(column, fill=str(found.idxmax()) if impute else None)
    return replace(column, levels=(*order, column.absent), shares=(*column.shares, gaps))


def _names_rows(values: Values, kind: str, rows: int) -> str:
    """Why a column is left out: it identifies rows; "" if it is an input."""
    distinct = values.nunique()
    if kind == "text" and distinct > max(MOST_LEVELS, len(values) / 2):
        return f"is text with {distinct:,} distinct values in {rows:,} rows, so it identifies rows"
    name = str(values.name)
    named = re.fullmatch(IDENTIFIER, name) or re.fullmatch(IDENTIFIER, name.lower())
    if kind != "number" or distinct < rows or not named:
        return ""
    numbers = values.to_numpy(np.float64)
    whole = bool(np.all(numbers == np.floor(numbers)))
    return "has a different whole number in every row, and its name suggests an identifier" if whole else ""


def of_groups(values: Values) -> Values:
    """A column of numbers as text, if the numbers name groups of rows; any other column is returned unchanged.

    Numbers name groups if they are whole and recur, and the column has a name such as zip or store_id.
    """
    name = str(values.name)
    if not re.fullmatch(CODE, name) and not re.fullmatch(CODE, name.lower()):
        return values
    there = values[~lacks(values)]
    if not len(there) or kind_of(there) != "number" or 2 * there.nunique() > len(there):
        return values
    if not np.all(np.mod(there.to_numpy(np.float64), 1) == 0):
        return values
    tell(
        f"Column {name!r} holds whole numbers that name groups of rows: each is a level, with an effect of its own. "
        "Rename the column if they are amounts."
    )
    return as_levels(values)


def as_levels(values: Values) -> Values:
    """A column as text that only names levels, even if it holds numbers; missing values stay missing."""
    there = values[~lacks(values)]
    return pd.Series(text_of(there), there.index, dtype="category", name=values.name).reindex(values.index)


def _words(values: Values) -> tuple[str, ...]:
    """The two words that mean False and True, as the column writes them; () if its text means something else.

    If the column has more than two such words, such as Yes, Y and no, the result is no and yes.
    """
    found = sorted(set(text_of(values)))
    pair = {level.strip().lower(): level for level in found}
    if len(found) == 2:
        return next((tuple(pair[word] for word in words) for words in WORDS if set(words) == set(pair)), ())
    return WORDS[0] if {MEANS.get(word) for word in pair} == {0, 1} else ()


def _true(pair: tuple[str, ...], text: list[str]) -> np.ndarray:
    """1 where a word means True, as ``pair[1]`` does; 0 where it means False, as ``pair[0]`` does; else NaN, (n,)."""
    exact = {pair[0]: 0, pair[1]: 1}
    return np.array([exact.get(word, MEANS.get(word.strip().lower(), np.nan)) for word in text], np.float64)


def meaning(values: Values) -> tuple[str, str]:
    """A column's kind, and the format of its dates.

    The kind of text is "boolean", "date" or "duration" if every entry stands for such a value; else "text".
    """
    if kind_of(values) != "text" or isinstance(values.dtype, pd.CategoricalDtype):
        return kind_of(values), ""
    if _words(values):
        return "boolean", ""
    text = pd.Series(text_of(values))
    if text.str.fullmatch(CLOCK).all():
        return "duration", ""
    if text.str.match(DATED).all() or text.str.fullmatch(r"\d{4}-\d{2}").all():
        for form in FORMATS:
            if _dates_in(text, form).notna().all():
                return "date", form
    return "text", ""


def _check_dates_in_text(values: Values) -> None:
    """Raise a DataError if most entries of text are dates, but not in one format."""
    text: Values = pd.Series(text_of(values), values.index)
    dated = text.str.match(DATED)
    if 2 * dated.sum() <= len(text):
        return
    # A table with many formats has few columns of dates, so each format is tried on the whole column.
    fits = [_dates_in(text, form).notna() & dated for form in FORMATS]
    best = max(fits, key=lambda fit: fit.sum()).to_numpy(bool)
    if best.all() or 2 * np.sum(np.any(fits, axis=0)) <= len(text):
        return
    raise DataError(
        f"Column {str(values.name)!r} holds dates in several formats, or other text: {best.sum()} of its {len(text)} "
        f"values are written like {text[best].iloc[0]!r}, but not {place_of(text, ~best)} (the top row is 0). Write "
        "all like 2024-05-31; leave cells empty, or name their words by na_values=, if they mean a missing value; or "
        f"leave the column out by exclude={str(values.name)!r}."
    )


def _dates_in(text: Values, form: str) -> Values:
    """The dates that are written in a format; NaT for other text."""
    return pd.to_datetime(text, format=form, errors="coerce", utc=form == "ISO8601")


def _date_columns(values: Values, kind: str, form: str, gaps: float, impute: bool) -> list[Column]:
    """Columns for the parts of a date that vary: its trend (days since 1970), and the cycles that the rows cover."""
    times, name = moment_of(values, kind, form), str(values.name)
    parts = ["days"] if kind == "duration" else ["trend"]
    if kind == "date":
        span = (times.max() - times.min()).total_seconds() / 86400
        whole = bool((times == times.dt.normalize()).all())
        weekly = span >= 14 and not (times.dt.day == 1).all()  # dates on the first of a month stand for months
        text = pd.Series(text_of(values)) if kind_of(values) == "text" else None
        zoned = pd.to_datetime(values).dt.tz is not None if text is None else text.str.contains(ZONE).any()
        hours = "time of day (UTC)" if zoned else "time of day"
        parts += ["time of year"] * (span >= 300) + ["day of the week"] * weekly + [hours] * (not whole)
    columns = []
    for part in parts:
        derived = part_of(times, part)
        if derived.nunique() < 2:
            continue
        if part in STATIONS:
            means = tuple(_waves(derived.to_numpy(np.float64)).mean(0).tolist())
            fill = 0.0 if impute else None  # a missing value is encoded as zeros, the cycle's mean
            columns.append(Column(name, "cycle", shares=means, fill=fill, part=part, format=form))
            continue
        fitted = _fit_one(derived.rename(name), "text" if part == "day of the week" else "number", 0.0, impute)
        columns.append(replace(fitted, part=part, format=form, gaps=gaps if part in ("trend", "days") else 0.0))
    if columns:
        listed = ", ".join(column.part for column in columns)
        order = " (month/day/year)" * form.startswith("%m")
        tell(f"Column {name!r} is a {kind}{order}; the model uses its {listed}.")
    return columns


def moment_of(values: Values, kind: str, form: str) -> Values:
    """Dates or durations in pandas' types; dates with a time zone become UTC."""
    if kind == "duration":
        text = pd.Series(text_of(values), index=values.index) if kind_of(values) == "text" else values
        long = text.where(text.str.count(":") != 1, text + ":00") if kind_of(values) == "text" else text
        return pd.to_timedelta(long)
    if kind_of(values) == "text":
        times = pd.to_datetime(pd.Series(text_of(values), index=values.index), format=form, utc=form == "ISO8601")
    else:
        times = pd.to_datetime(values)
    return times.dt.tz_convert("UTC").dt.tz_localize(None) if times.dt.tz is not None else times


def part_of(times: Values, part: str) -> Values:
    """One part of dates or durations: a number of days, a weekday's name, or the phase of a cycle in [0, 1)."""
    if part == "days":
        return times.dt.total_seconds() / 86400
    if part == "trend":
        return (times - pd.Timestamp(0)).dt.total_seconds() / 86400
    if part == "day of the week":
        return times.dt.day_of_week.map(dict(enumerate(WEEKDAYS)))
    if part == "time of year":
        return (times.dt.day_of_year - 0.5) / 366
    return (times - times.dt.normalize()).dt.total_seconds() / 86400


def _waves(phases: np.ndarray) -> np.ndarray:
    """The cos and sin of each harmonic at phases (n,) from 0 to 1, (n, 2 WAVES)."""
    angles = 2 * np.pi * np.outer(phases, np.arange(1, WAVES + 1))
    return np.stack([np.cos(angles), np.sin(angles)], -1).reshape(len(phases), -1)


HOURS = (tuple(f"{hour}:00" for hour in range(0, 24, 3)), np.arange(0, 24, 3) / 24)
STATIONS = {  # the names and phases of the times in a cycle at which its effect is reported
    "time of year": (MONTHS, (np.arange(12) + 0.5) / 12), "time of day": HOURS, "time of day (UTC)": HOURS,
}  # fmt: skip


def tells(values: Values, target: Values) -> bool:
    """Whether a column determines the target wherever both are known, as a copy in other units or words does."""
    there = ~(lacks(values) | lacks(target))
    values, target = values[there], target[there]
    kinds, count = {kind_of(values), kind_of(target)} if there.any() else set(), target.nunique()
    if kinds == {"number"} and count > FEW_LEVELS:
        both = np.stack([np.asarray(a, np.float64) for a in (values, target)], 1)
        mean, sd = scales.moments(both)
        return bool(np.all(sd > 0) and np.mean(np.prod((both - mean) / sd, 1)) ** 2 > 1 - 1e-12)
    one = values.nunique() == count == len(pd.DataFrame({0: list(values), 1: list(target)}).drop_duplicates())
    return one and 2 <= count <= len(target) / 5


def standardise(name: str, numbers: np.ndarray) -> Column | None:
    """A column of numbers with the mean and sd of those that are not NaN; None if there are none or all are equal."""
    present = numbers[~np.isnan(numbers)]
    if not len(present) or present.min() == present.max():
        return None
    return Column(name, "number", *moments(name, present))


def moments(name: str, numbers: np.ndarray) -> tuple[float, float]:
    """The mean and sd of a column's numbers.

    Raises:
        DataError: the sd is 0, or differences of the numbers may overflow.
    """
    mean, sd = (float(moment[0]) for moment in scales.moments(numbers[:, None]))
    if not sd > 0 or np.abs(numbers).max() > LARGEST:
        raise DataError(
            f"Column {name!r} cannot be standardised: its numbers go up to {np.abs(numbers).max():.3g}, and their "
            f"standard deviation is {sd:.3g}. Rescale it."
        )
    return mean, sd


def encode_column(column: Column, values: Values) -> np.ndarray:
    """The columns of X that encode a column's values, (n, columns), centred by the means of the training rows."""
    if column.kind == "pooled":
        return np.zeros((len(values), 0))
    gone = lacks(values)
    if column.kind == "presence":
        return gone[:, None] - column.mean
    present = values[~gone]
    if column.part and len(present):
        kind = "duration" if column.part == "days" else "date"
        if kind_of(present) not in (kind, "text"):
            raise DataError(f"Column {column.name!r} was a {kind} in training but is {kind_of(present)} here.")
        present = part_of(_moment_again(column, present, kind), column.part)
    if column.kind == "text":
        return _encode_text(column, present, gone)
    if column.kind == "cycle":
        waves = np.zeros((len(values), 2 * WAVES))
        waves[~gone] = _waves(present.to_numpy(np.float64)) - np.asarray(column.shares)
        return waves
    numbers = np.full(len(values), 0.0 if column.fill is None else float(column.fill))
    numbers[~gone] = _encode_numbers(column, present)
    scaled = ((numbers - column.mean) / column.sd)[:, None]
    return np.concatenate([scaled, gone[:, None] - column.gaps], 1) if column.gaps else scaled


def _moment_again(column: Column, values: Values, kind: str) -> Values:
    """``moment_of`` of new rows, whose dates are in the format of training or in ISO 8601 (year-month-day)."""
    forms = dict.fromkeys((column.format or "ISO8601", "ISO8601")) if kind == "date" else ("",)
    for form in forms:
        with contextlib.suppress(ValueError):
            return moment_of(values, kind, form)
    first = next(iter(forms))
    strange = next((value for value in values if not _is_moment(value, kind, first)), values.iloc[0])
    like = "2024-05-31" if kind == "date" else "1:30 or 2 days"
    like += f" or in the format {column.format}, as in training" * (column.format not in ("", "ISO8601"))
    raise DataError(
        f"Column {column.name!r} was a {kind} in training; {str(strange)!r} is not. Write all rows as {like}."
    )


def _is_moment(value: object, kind: str, form: str) -> bool:
    try:
        moment_of(pd.Series([value]), kind, form)
    except ValueError:
        return False
    return True


def tell_of_equal_levels(name: str, levels: Iterable[str]) -> None:
    """Warn about levels that differ only by case, spaces or forms of letters, because they are often meant as one."""
    spellings: dict[str, list[str]] = {}
    for level in levels:
        spellings.setdefault(" ".join(unicodedata.normalize("NFKC", level).split()).casefold(), []).append(level)
    if doubles := [each for each in spellings.values() if len(each) > 1]:
        tell(
            f"Column {name!r} has levels that differ only by case or spaces, such as {listing(doubles[0])}: each is "
            "a level of its own. If they are the same level, write them in the same way."
        )


def many_levels(values: Values) -> bool:
    """Whether a column is text of more than ``MOST_LEVELS`` levels, each of which has an effect only if pooled."""
    there = values[~lacks(values)]
    return len(there) > 0 and there.nunique() > MOST_LEVELS and meaning(there)[0] == "text"


def spread_of_groups(left: np.ndarray, z: np.ndarray, group: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """Σ z² of each of ``size`` groups, and an estimate of τ²/noise² ≥ 0.

    Within group g, the slope of the residuals ``left`` on z is b_g. τ² is the variance of the slopes between the G
    groups, and noise² the variance of what the slopes leave unexplained. τ² is estimated from

        E Σ S_g b_g² = G + τ² Σ S_g,   S_g = Σ z² / noise²     (DerSimonian & Laird 1986)
    """
    squares = np.bincount(group, z * z, size)
    has_slope = squares > 0
    own = np.divide(np.bincount(group, z * left, size), squares, out=np.zeros(size), where=has_slope)
    free = len(left) - has_slope.sum()
    noise = np.sum(np.square(left - z * own[group])) / free if free > 0 else np.inf
    ratio = (np.sum(squares * own**2) / noise - has_slope.sum()) / squares.sum() if noise > 0 else np.inf
    return squares, max(ratio, 0.0)


def level_of(column: Column, values: Values) -> np.ndarray:
    """The index of each row's level in a pooled column, (n,).

    It is K, the number of levels, for a level that was not in training, and −1 for a missing one, unless missing values
    have a level of their own.
    """
    gone = lacks(values)
    codes, text = np.full(len(gone), -1), text_of(values[~gone])
    if column.gaps:
        codes[gone] = column.levels.index(column.absent)
    found = pd.Index(column.levels).get_indexer(pd.Index(text))
    if unknown := sorted({level for level, code in zip(text, found, strict=True) if code < 0}):
        tell(
            f"Column {column.name!r} has values never seen in training, {listing(unknown)}: their effects are drawn "
            "from the levels' distribution."
        )
    codes[~gone] = np.where(found < 0, len(column.levels), found)
    return codes


def _encode_text(column: Column, present: Values, gone: np.ndarray) -> np.ndarray:
    rows = contrasts(len(column.levels))
    # The last row is for a value that is none of the levels.
    rows = np.concatenate([rows, np.zeros((1, rows.shape[1]))])
    index, text = pd.Index(column.levels), text_of(present)
    codes = np.full(len(gone), len(column.levels))
    if column.gaps or column.fill is not None:
        codes[gone] = column.levels.index(column.absent if column.gaps else str(column.fill))
    found = index.get_indexer(text)  # −1 for unknown levels
    unknown = sorted({level for level, code in zip(text, found, strict=True) if code < 0})
    if unknown and REST not in column.levels:
        tell(
            f"Column {column.name!r} has values never seen in training, {listing(unknown)}: they count "
            f"as the mean of {listing(column.levels)}."
        )
    none = column.levels.index(REST) if REST in column.levels else len(column.levels)
    codes[~gone] = np.where(found < 0, none, found)
    return rows[codes] - np.asarray(column.shares) @ rows[:-1]


def _encode_numbers(column: Column, present: Values) -> np.ndarray:
    kind = kind_of(present) if len(present) else column.kind
    if column.levels and kind == "text":
        text = text_of(present)
        true = _true(column.levels, text)
        if wrong := sorted({word for word, value in zip(text, true, strict=True) if np.isnan(value)}):
            tell(
                f"Column {column.name!r} was {listing(column.levels)} in training; the mean of both stands here for "
                f"{listing(wrong)}."
            )
        return np.where(np.isnan(true), column.mean, true)
    if kind == "text" or kind == "date" or (column.kind == "number" and kind == "boolean"):
        wrong = ~are_plain(present) if kind == "text" else np.ones(len(present), bool)
        raise DataError(
            f"Column {column.name!r} was {column.kind} in training but is {kind} here, such as "
            f"{place_of(present, wrong if wrong.any() else ~wrong)} (the top row is 0). Write it as in training."
        )
    numbers = present.to_numpy(np.float64)
    if column.kind == "boolean" and not np.isin(numbers, (0, 1)).all():
        wrong = numbers[~np.isin(numbers, (0, 1))][0]
        raise DataError(f"Column {column.name!r} was True/False in training; got {wrong:g} here.")
    return numbers
