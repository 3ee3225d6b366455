"""A column of a table: what kind it is, and how it becomes numbers."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tractable.tools.errors import DataError
from tractable.tools.words import counted, listing, tell

MOST_LEVELS = 100  # of a text column; of more the rarest share one
REST = "any other"  # the level that they share
WORDS = (("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("off", "on"))  # text that is False or True
FORMATS = ("ISO8601", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M", "%d.%m.%Y %H:%M")
CLOCK = r"\d+:[0-5]\d(:[0-5]\d(\.\d+)?)?"  # a duration as text
IDENTIFIER = (
    r"(.*[_\s.-])?(id|uuid|guid|key|index|row|rownames|no|nr|sno|number|serial|record|instant|obs|observation|case)"
    r"|unnamed: \d+|.*[a-z]I[dD]"
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
WAVES = 2  # harmonics of a cycle

Values = Any  # a Series; pandas annotates frame[name] as more than that


@dataclass(frozen=True)
class Column:
    """How one column of the table, or one part of a date, becomes columns of X.

    Attributes:
        name: of the table's column.
        kind: "number", "boolean", "text", "cycle", "presence" of a column that was one value or missing, or "pooled",
            text of many levels, whose effects share a learnt sd: no columns of X but a number of its level.
        mean, sd: of a number's present values in training; of a boolean its share of True, and 1; of pooled text 0 and
            a guess of how its levels' effects spread, in sds of the noise; 0 and 1 otherwise.
        levels: of text, sorted; of a boolean written as text, that for False and that for True.
        shares: of text, how often each level was there in training; of a cycle the means of its waves; of pooled text
            how many rows each level has.
        fill: what a missing value counts as; None where it is refused, or is a level or nothing of its own.
        gaps: share of training rows that lack it; where above 0 the model is told which.
        part: what the numbers are of a date or duration: a name of ``PARTS``; "" of others.
        format: of dates written as text.
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
        """Names of its columns of X."""
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

    def effects(self) -> tuple[list[str], np.ndarray]:
        """What a linear model's weights say of the column in its own units: names, and rows (e, features).

        Of a number what η changes by for one unit; of a boolean from False to True; of text how far each level lies
        from the mean of all levels; of a cycle how far each of its stations lies from the mean of the cycle; of pooled
        text nothing.
        """
        if self.kind == "pooled":
            return [], np.zeros((0, 0))
        if self.kind == "text":
            return [f"{self.title} = {level}" if level != self.absent else level for level in self.levels], contrasts(
                len(self.levels)
            )
        if self.kind == "cycle":
            names, phases = STATIONS[self.part]
            return [f"{self.title} {name}" for name in names], _waves(np.asarray(phases))
        scales = [1 / self.sd] * (self.kind != "presence") + [1.0] * (self.gaps > 0)
        return self.features, np.diag(scales)


def contrasts(levels: int) -> np.ndarray:
    """(K, K − 1) orthonormal columns that sum to zero: weights N(0, s²) are level effects N(0, s²), given their sum.

    No level is the reference: the prior of the effects is the same in whatever order the levels stand.
    """
    whole = np.eye(levels - 1) - (1 - 1 / math.sqrt(levels)) / (levels - 1)
    return np.concatenate([whole, np.full((1, levels - 1), -1 / math.sqrt(levels))])


def lacks(values: Values) -> np.ndarray:
    """Absent, or a number that is not finite."""
    absent = values.isna().to_numpy(bool)
    if values.dtype.kind == "f":
        absent = absent | ~np.isfinite(values.to_numpy(np.float64, na_value=np.nan))
    return absent


def gap(absent: dict[str, np.ndarray]) -> str:
    """The beginning of a sentence about the first column that lacks a value; ``absent`` by column, (n,) each."""
    name, where = next((name, where) for name, where in absent.items() if where.any())
    others = sum(bool(where.any()) for where in absent.values()) - 1
    more = f"; {counted(others, 'more column')} likewise" if others else ""
    return (
        f"Column {name!r} has {counted(int(where.sum()), 'value')} missing or not finite, the first in row "
        f"{int(np.argmax(where))} (the top row is 0){more}."
    )


def kind_of(values: Values) -> str:
    """ "number", "boolean", "text", "date" or "duration"; values are all present."""
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
        known = {"boolean": "boolean", "string": "text", "datetime": "date", "date": "date", "timedelta": "duration"}
        if dtype in known:
            return known[str(dtype)]
    elif isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype):
        return "text"
    raise DataError(
        f"Column {str(values.name)!r} holds {dtype}; expected numbers, True/False, text or dates. "
        "Convert it, or leave it out."
    )


def fit_column(values: Values, impute: bool, pooled: bool = False) -> list[Column]:
    """What a training column's kind is and how it is scaled; of a date one for each part that carries signal.

    None of them, and a warning, where it is the same in every row or only names the rows. Text of many levels is pooled
    where it may be; else the rarest share one.
    """
    name, gone = str(values.name), lacks(values)
    share = float(gone.mean())
    values = values[~gone]  # all of them, unless missing ones are filled in
    kind, form = kind_of(values) if len(values) else "", ""
    if values.nunique() < 2:
        if len(values) and share:
            return [Column(name, "presence", share, gaps=share)]
        same = f"{values.tolist()[0]!r}" if len(values) else "missing"
        tell(f"Column {name!r} is {same} in every row; it is left out.")
        return []
    if kind == "text" and not isinstance(values.dtype, pd.CategoricalDtype):
        kind, form = _meant(values)
    if reason := _names_rows(values, kind, len(gone)):
        tell(f"Column {name!r} {reason}; it is left out.")
        return []
    if kind in ("date", "duration"):
        return _dated(values, kind, form, share, impute)
    return [_fit_one(values, kind, share, impute, pooled)]


def _fit_one(values: Values, kind: str, gaps: float, impute: bool, pooled: bool = False) -> Column:
    name = str(values.name)
    if kind == "number":
        numbers = values.to_numpy(np.float64)
        mean, sd = moments(name, numbers)
        return Column(name, kind, mean, sd, fill=float(np.median(numbers)) if impute else None, gaps=gaps)
    if kind == "boolean":
        pair = _words(values) if kind_of(values) == "text" else ()
        true = np.asarray([text == pair[1] for text in text_of(values)]) if pair else values.to_numpy(np.float64)
        fill = bool(np.mean(true) > 0.5) if impute else None
        return Column(name, kind, float(np.mean(true)), levels=pair, fill=fill, gaps=gaps)
    check_numbers_in_text(values)
    found = pd.Series(text_of(values)).value_counts()  # the most frequent first
    if len(found) > MOST_LEVELS and pooled:
        tell(
            f"Column {name!r} has {len(found):,} distinct values: each has an effect of its own, drawn towards none by "
            f"an sd that they share and that is learnt, as those of (1|{name}) in a formula."
        )
        rows: dict[str, int] = dict(sorted(found.to_dict().items()))
        column = Column(name, "pooled", levels=tuple(rows), shares=tuple(map(float, rows.values())), gaps=gaps)
        if gaps:
            lacking = gaps / (1 - gaps) * len(values)
            return replace(column, levels=(*column.levels, column.absent), shares=(*column.shares, lacking))
        return replace(column, fill=str(found.idxmax()) if impute else None)
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
    """Why a column is an identifier and no input; empty where it is not."""
    distinct = values.nunique()
    if kind == "text" and distinct > max(MOST_LEVELS, len(values) / 2):
        return (
            f"is text with {distinct:,} distinct values in {rows:,} rows, which names rows rather than describes them"
        )
    if kind != "number" or distinct < rows or not _is_identifier(str(values.name)):
        return ""
    numbers = values.to_numpy(np.float64)
    whole = bool(np.all(numbers == np.floor(numbers)))
    return "has another whole number in every row, and the name of an identifier" if whole else ""


def _is_identifier(name: str) -> bool:
    return bool(re.fullmatch(IDENTIFIER, name) or re.fullmatch(IDENTIFIER, name.lower()))


def _words(values: Values) -> tuple[str, ...]:
    """The two values of text that mean False and True, as they are written; () of other text."""
    found = sorted(set(text_of(values)))
    pair = {level.strip().lower(): level for level in found}
    return next(
        (tuple(pair[word] for word in words) for words in WORDS if set(words) == set(pair) and len(found) == 2), ()
    )


def _meant(values: Values) -> tuple[str, str]:
    """What text stands for: "boolean", "date" and its format, "duration", or else "text"."""
    if _words(values):
        return "boolean", ""
    text = pd.Series(text_of(values))
    if text.str.fullmatch(CLOCK).all():
        return "duration", ""
    if text.str.match(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}").all():
        for form in FORMATS:
            if pd.to_datetime(text, format=form, errors="coerce", utc=form == "ISO8601").notna().all():
                return "date", form
    return "text", ""


def _dated(values: Values, kind: str, form: str, gaps: float, impute: bool) -> list[Column]:
    """Columns of the parts of a date that vary and repeat: its trend, and the cycles that the rows go round."""
    times, name = moment_of(values, kind, form), str(values.name)
    parts = ["days"] if kind == "duration" else ["trend"]
    if kind == "date":
        span = (times.max() - times.min()).total_seconds() / 86400
        whole = bool((times == times.dt.normalize()).all())
        parts += ["time of year"] * (span >= 300) + ["day of the week"] * (span >= 14) + ["time of day"] * (not whole)
    columns = []
    for part in parts:
        derived = part_of(times, part)
        if derived.nunique() < 2:
            continue
        if part in STATIONS:
            means = tuple(_waves(derived.to_numpy(np.float64)).mean(0).tolist())
            fill = 0.0 if impute else None  # the middle of the cycle, in ``encode_column``
            columns.append(Column(name, "cycle", shares=means, fill=fill, part=part, format=form))
            continue
        fitted = _fit_one(derived.rename(name), "text" if part == "day of the week" else "number", 0.0, impute)
        columns.append(replace(fitted, part=part, format=form, gaps=gaps if part in ("trend", "days") else 0.0))
    if columns:
        listed = ", ".join(column.part for column in columns)
        tell(f"Column {name!r} is a {kind}; the model sees its {listed}.")
    return columns


def moment_of(values: Values, kind: str, form: str) -> Values:
    """Dates or durations as pandas has them; dates without a zone, those with one as UTC."""
    if kind == "duration":
        text = pd.Series(text_of(values), index=values.index) if kind_of(values) == "text" else values
        long = text.where(text.str.count(":") == 2, text + ":00") if kind_of(values) == "text" else text
        return pd.to_timedelta(long)
    if kind_of(values) == "text":
        times = pd.to_datetime(pd.Series(text_of(values), index=values.index), format=form, utc=form == "ISO8601")
    else:
        times = pd.to_datetime(values)
    return times.dt.tz_convert("UTC").dt.tz_localize(None) if times.dt.tz is not None else times


def part_of(times: Values, part: str) -> Values:
    """A part of dates or durations: days, names of weekdays, or the phase of a cycle in [0, 1)."""
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
    """(n, 2 WAVES): cos and sin of each harmonic."""
    angles = 2 * np.pi * np.outer(phases, np.arange(1, WAVES + 1))
    return np.stack([np.cos(angles), np.sin(angles)], -1).reshape(len(phases), -1)


STATIONS = {  # of cycles: where effects are told
    "time of year": (MONTHS, (np.arange(12) + 0.5) / 12),
    "time of day": (tuple(f"{hour}:00" for hour in range(0, 24, 3)), np.arange(0, 24, 3) / 24),
}


def check_numbers_in_text(values: Values) -> None:
    """Numbers that one stray entry has turned into text are a fault to be told, not a hundred levels."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return
    stray = np.isnan(np.asarray(pd.to_numeric(values, errors="coerce"), np.float64))
    if 0 < stray.sum() < len(stray) / 2:
        first = int(np.argmax(stray))
        raise DataError(
            f"Column {str(values.name)!r} is text, but {len(stray) - stray.sum()} of its {len(stray)} values "
            f"are numbers; the first that is not is {values.tolist()[first]!r}, in row {values.index[first]} "
            "(the top row is 0). Mend it, or leave the cell empty if it stands for a missing value; or make "
            "the column categorical if the numbers are only names."
        )


def standardised(name: str, numbers: np.ndarray) -> Column | None:
    """A column of numbers by their mean and sd; NaN is left out. None where there are none, or all are the same."""
    present = numbers[~np.isnan(numbers)]
    if not len(present) or present.min() == present.max():
        return None
    return Column(name, "number", *moments(name, present))


def moments(name: str, numbers: np.ndarray) -> tuple[float, float]:
    """Mean and sd of a column's numbers; a DataError where they are so large or so close that there is no sd."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = float(numbers.mean()), float(numbers.std())
    if not (0 < sd < math.inf):
        raise DataError(f"Column {name!r} cannot be standardised: its standard deviation is {sd}. Rescale it.")
    return mean, sd


def encode_column(column: Column, values: Values) -> np.ndarray:
    """(n, columns of X that it makes), centred by the training rows."""
    if column.kind == "pooled":
        return np.zeros((len(values), 0))
    gone = lacks(values)
    if column.kind == "presence":
        return gone[:, None] - column.mean
    present = values[~gone]
    if column.part and len(present):
        kind = "duration" if column.part == "days" else "date"
        if kind_of(present) not in (kind, "text"):
            raise DataError(f"Column {column.name!r} was a {kind} in training and is {kind_of(present)} here.")
        try:
            present = part_of(moment_of(present, kind, column.format or "ISO8601"), column.part)
        except ValueError as error:
            raise DataError(f"Column {column.name!r} was a {kind} in training, and here is not: {error}.") from error
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


def many_levels(values: Values) -> bool:
    """Whether a column is text of more levels than have an effect each unless they are pooled."""
    there = values[~lacks(values)]
    return len(there) > 0 and kind_of(there) == "text" and there.nunique() > MOST_LEVELS


def spread_of_groups(left: np.ndarray, z: np.ndarray, group: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """Σ z² of each of ``size`` groups, and τ²/noise², how much their slopes b_g in ``left`` differ, ≥ 0.

    E Σ S_g b_g² = G + τ² Σ S_g,   S_g = Σ z² / noise²     (DerSimonian & Laird 1986)
    """
    squares = np.bincount(group, z * z, size)
    told = squares > 0
    own = np.divide(np.bincount(group, z * left, size), squares, out=np.zeros(size), where=told)
    free = len(left) - told.sum()
    noise = np.sum(np.square(left - z * own[group])) / free if free > 0 else np.inf
    ratio = (np.sum(squares * own**2) / noise - told.sum()) / squares.sum() if noise > 0 else np.inf
    return squares, max(ratio, 0.0)


def level_of(column: Column, values: Values) -> np.ndarray:
    """(n,) which of a pooled column's levels each row has; as many as there are, of a level never seen."""
    gone = lacks(values)
    codes, text = np.full(len(gone), len(column.levels)), text_of(values[~gone])
    if column.gaps or column.fill is not None:
        codes[gone] = column.levels.index(column.absent if column.gaps else str(column.fill))
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
    rows = np.concatenate([rows, np.zeros((1, rows.shape[1]))])  # the last for what is none of the levels
    index, text = pd.Index(column.levels), text_of(present)
    codes = np.full(len(gone), len(column.levels))
    if column.gaps or column.fill is not None:
        codes[gone] = column.levels.index(column.absent if column.gaps else str(column.fill))
    found = index.get_indexer(text)  # −1 where unknown
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
        if wrong := sorted(set(text) - set(column.levels)):
            raise DataError(
                f"Column {column.name!r} was {listing(column.levels)} in training; got {listing(wrong)} here."
            )
        return np.array([level == column.levels[1] for level in text], np.float64)
    if kind == "text" or kind == "date" or (column.kind == "number" and kind == "boolean"):
        raise DataError(f"Column {column.name!r} was {column.kind} in training and is {kind} here.")
    numbers = present.to_numpy(np.float64)
    if column.kind == "boolean" and not np.isin(numbers, (0, 1)).all():
        wrong = numbers[~np.isin(numbers, (0, 1))][0]
        raise DataError(f"Column {column.name!r} was True/False in training; got {wrong:g} here.")
    return numbers


def text_of(values: Iterable[Any]) -> list[str]:
    """As strings, a whole number written alike whether it is held as 1 or as 1.0."""
    return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values]
