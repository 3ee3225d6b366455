"""A table of one's own, as arrays that a model takes; and a model's answers, in the table's terms.

``fit_encoder`` learns from a training table what ``encode`` then does to every table:

    number      (value − mean) / sd
    boolean     0 or 1
    text        one 0/1 column a level, every level: none is special, as priors shrink towards nothing rather
                than towards a reference; and a level never seen is all zeros, which is no other level's code
    missing     with missing="impute" a number is its median, True/False and text the most frequent value; where
                training lacked values, a 0/1 column beside says so, which for text is a level of its own
    target      "normal": standardised; "bernoulli", "categorical": 0..C−1 in sorted order

The encoder is plain numbers and names: ``to_dict`` is JSON.
"""

import math
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow

from tractable.tools.errors import DataError, TractableWarning

MOST_CLASSES = 100  # of a target
MOST_LEVELS = 100  # of a text column; above, it is more likely an identifier
MISSING = ("raise", "drop", "impute")
FEW = 10  # a whole-numbered target with at most so many values is a set of classes
VERSION = 1

Frame = pd.DataFrame
Values = Any  # a Series; pandas annotates frame[name] as more than that


@dataclass(frozen=True)
class Column:
    """How one column of the table becomes columns of X.

    Attributes:
        name: of the table's column.
        kind: "number", "boolean", "text", or "presence" of a column that was one value or missing.
        mean, sd: of a number's present values in training; 0 and 1 otherwise.
        levels: of text, sorted.
        fill: what a missing value counts as; None where it is refused, or is nothing but missing.
        indicator: a further column of X is 1 where the value is missing.
    """

    name: str
    kind: str
    mean: float = 0.0
    sd: float = 1.0
    levels: tuple[str, ...] = ()
    fill: bool | int | float | str | None = None
    indicator: bool = False

    @property
    def features(self) -> list[str]:
        """Names of its columns of X."""
        plain = {"text": [f"{self.name}={level}" for level in self.levels], "presence": []}
        return plain.get(self.kind, [self.name]) + [f"{self.name} is missing"] * self.indicator


@dataclass(frozen=True)
class Target:
    """How the target becomes y.

    Attributes:
        name: of the table's column.
        family: "normal", "bernoulli" or "categorical".
        mean, sd: of a normal target in training; 0 and 1 otherwise.
        classes: labels in the order of their codes; empty for a normal target.
    """

    name: str
    family: str
    mean: float = 0.0
    sd: float = 1.0
    classes: tuple[bool | int | float | str, ...] = ()


@dataclass(frozen=True)
class Encoder:
    """What ``fit_encoder`` learnt.

    Attributes:
        columns: used ones, in the training table's order.
        target: what is explained.
        missing: "raise", "drop" or "impute".
    """

    columns: tuple[Column, ...]
    target: Target
    missing: str = "raise"

    @property
    def features(self) -> list[str]:
        """Names of the D columns of X."""
        return [name for column in self.columns for name in column.features]

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts, for JSON."""
        return {"version": VERSION, **_lists(asdict(self))}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Encoder":
        """The encoder which ``to_dict`` described.

        Raises:
            DataError: another version, or fields missing or unknown.
        """
        if saved.get("version") != VERSION:
            raise DataError(f"This encoder has version {saved.get('version')!r}; expected {VERSION}. Fit it anew.")
        try:
            columns = tuple(Column(**{**c, "levels": tuple(c["levels"])}) for c in saved["columns"])
            target = Target(**{**saved["target"], "classes": tuple(saved["target"]["classes"])})
            return cls(columns, target, saved["missing"])
        except (KeyError, TypeError) as error:
            raise DataError(f"This is not a saved encoder, or it is damaged: {error}. Fit it anew.") from error


class Encoded(NamedTuple):
    x: np.ndarray  # (n, D) float64
    y: np.ndarray | None  # (n,) float64 or, for classes, int64; None where the table has no target


def read_table(path: str | Path) -> Frame:
    """A CSV file (``.csv``, also ``.csv.gz``; commas, a header, UTF-8) or a Parquet file as a DataFrame.

    Empty cells of a CSV file, and NA, NaN, null, None and the like, are missing values.

    Raises:
        DataError: no such file; another kind of file; an unreadable or empty one; two columns of one name.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}. Expected a .csv or .parquet file.")
    if path.name.lower().endswith((".csv", ".csv.gz")):
        frame = _read_csv(path)
    elif path.suffix.lower() in (".parquet", ".pq"):
        try:
            frame = pd.read_parquet(path, engine="pyarrow")
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{path} is not a Parquet file, or is damaged: {error}.") from error
    else:
        raise DataError(f"Tables are .csv or .parquet files; got {path.name}. Convert it to one of them.")
    if frame.empty:
        raise DataError(f"{path} holds no rows under its header; expected at least one.")
    return frame


def fit_encoder(frame: Frame, target: str, missing: str = "raise", family: str | None = None) -> Encoder:
    """Learn from a training table how to turn tables into arrays.

    The target is "normal" where it is a number, unless it has two distinct values ("bernoulli"), or at most
    ten which are all whole ("categorical"). True/False and text are classes.

    Args:
        frame: the training table; every column but the target is an input.
        target: the column to explain.
        missing: "raise" refuses rows with missing values, "drop" leaves them out, "impute" fills inputs in (see
            above) and leaves out rows without a target.
        family: overrules what is said above about the target.

    Raises:
        DataError: with the column, and where it helps the row, that cannot be used, and the remedy.

    A column which is the same in every row says nothing about the target: it is left out with a
    TractableWarning.

    >>> table = pd.DataFrame({"height": [1.0, 3.0], "colour": ["red", "blue"], "ripe": ["no", "yes"]})
    >>> encoder = fit_encoder(table, "ripe")
    >>> encoder.features, encoder.target.classes
    (['height', 'colour=blue', 'colour=red'], ('no', 'yes'))
    >>> encode(encoder, table).x.tolist()
    [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    if missing not in MISSING:
        raise DataError(f"missing is 'raise', 'drop' or 'impute'; got {missing!r}.")
    frame = _named(frame)
    if target not in frame:
        raise DataError(f"The target {target!r} is not a column of the table; got {_listing(frame.columns)}.")
    if len(frame.columns) == 1:
        raise DataError(f"The table has no column but the target {target!r}; expected inputs beside it.")
    frame = _present(frame, _needed(list(frame.columns), target, missing), missing)
    aim = _fit_target(frame[target], family)
    fitted = (_fit_column(frame[name], missing == "impute") for name in frame.columns if name != target)
    columns = tuple(column for column in fitted if column is not None)
    if not columns:
        raise DataError("Every input column is the same in all rows, so there is nothing to learn from.")
    return Encoder(columns, aim, missing)


def encode(encoder: Encoder, frame: Frame) -> Encoded:
    """X and, where the table holds the target, y.

    Rows with missing values are left out where the encoder says "drop" and the table holds the target, and rows
    without a target where it says "impute"; ``complete`` tells which stay. A table to predict for keeps every row:
    missing values are then filled in by an encoder that imputes, and refused by any other.

    Args:
        encoder: from ``fit_encoder``.
        frame: a table with the encoder's columns; others are ignored.

    Raises:
        DataError: columns missing or of another kind, missing values, a class never seen.

    A level never seen in training is encoded as none of the known ones, with a TractableWarning.
    """
    frame = _named(frame)
    wanted = _wanted(encoder, frame)
    explained = encoder.target.name in frame
    needed = _needed(wanted, encoder.target.name, encoder.missing)
    frame = _present(frame, needed, encoder.missing if explained else "raise")
    x = np.concatenate([_encode_column(column, frame[column.name]) for column in encoder.columns], axis=1)
    return Encoded(x, _encode_target(encoder.target, frame[encoder.target.name]) if explained else None)


def complete(encoder: Encoder, frame: Frame) -> np.ndarray:
    """Which rows have a value in every column where ``encode`` needs one, (n,) of booleans."""
    frame = _named(frame)
    needed = _needed(_wanted(encoder, frame), encoder.target.name, encoder.missing)
    return ~np.any([np.zeros(len(frame), bool), *(_missing(frame[name]) for name in needed)], axis=0)


def decode(encoder: Encoder, y: Any) -> np.ndarray:
    """Encoded targets in the table's own terms: its units, or its class labels.

    Args:
        encoder: from ``fit_encoder``.
        y: any shape; standardised values, such as a predictive mean or quantile, or codes of classes.
    """
    target = encoder.target
    if target.family == "normal":
        return np.asarray(np.asarray(y, np.float64) * target.sd + target.mean)
    codes = np.asarray(y)
    if codes.dtype.kind not in "iub" or np.any((codes < 0) | (codes >= len(target.classes))):
        raise DataError(f"Expected codes of classes, whole numbers in 0..{len(target.classes) - 1}; got {codes}.")
    return np.asarray(_labels(target)[codes.astype(np.int64)])


def decode_sd(encoder: Encoder, sd: Any) -> np.ndarray:
    """Standard deviations of a normal target in the table's units.

    Args:
        encoder: from ``fit_encoder``.
        sd: any shape; of standardised values.
    """
    if encoder.target.family != "normal":
        raise DataError(
            f"{encoder.target.name!r} is a set of classes: they have probabilities, not a standard deviation."
        )
    return np.asarray(np.asarray(sd, np.float64) * encoder.target.sd)


def _read_csv(path: Path) -> Frame:
    try:
        # As rows, because as a header pandas would rename the second of two equal names.
        head = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        names = [str(name) for name in head.iloc[0]]
        if "" in names and len(names) > 1:
            raise DataError(
                f"{path} has a column without a name in position {names.index('')} (the first is 0). "
                "Name it, or leave it out if it only numbers the rows."
            )
        _distinct(names, str(path))
        if len(names) == 1 and (found := next((s for s in (";", "\t", "|") if s in names[0]), None)):
            raise DataError(f"{path} seems to be separated by {found!r}; expected commas.")
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header, cut short
            return pd.read_csv(path, encoding="utf-8-sig", low_memory=False, index_col=False)
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty; expected a header and rows.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}. Save it anew in that encoding.") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as CSV: {str(error).strip()}.") from error


def _named(frame: Frame) -> Frame:
    """The table with strings for column names, all different, and rows numbered from 0."""
    names = [str(name) for name in frame.columns]
    _distinct(names, "The table")
    if not len(frame):
        raise DataError("The table holds no rows; expected at least one.")
    return frame.set_axis(names, axis=1).reset_index(drop=True)


def _distinct(names: list[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has more than one column named {_listing(twice)}; rename all but one.")


def _wanted(encoder: Encoder, frame: Frame) -> list[str]:
    wanted = [column.name for column in encoder.columns]
    absent = [name for name in wanted if name not in frame]
    if absent:
        raise DataError(
            f"The table lacks {_listing(absent)}; expected the columns {_listing(wanted)}, "
            f"got {_listing(frame.columns)}."
        )
    return wanted + [encoder.target.name] * (encoder.target.name in frame)


def _needed(names: list[str], target: str, missing: str) -> list[str]:
    """Columns in which a value may not be missing."""
    return [name for name in names if name == target or missing != "impute"]


def _missing(values: Values) -> np.ndarray:
    """Absent, or a number that is not finite."""
    absent = values.isna().to_numpy(bool)
    if values.dtype.kind == "f":
        absent = absent | ~np.isfinite(values.to_numpy(np.float64, na_value=np.nan))
    return absent


def _present(frame: Frame, names: list[str], missing: str) -> Frame:
    """The rows with a value in every named column, or a sentence about the first that lacks one."""
    absent = {name: _missing(frame[name]) for name in names}
    gone = np.any([np.zeros(len(frame), bool), *absent.values()], axis=0)
    if not gone.any():
        return frame
    if missing == "raise":
        name, where = next((name, where) for name, where in absent.items() if where.any())
        count = int(where.sum())
        others = sum(bool(where.any()) for where in absent.values()) - 1
        more = f"; {others} more column{'s' * (others > 1)} likewise" if others else ""
        raise DataError(
            f"Column {name!r} has {count} value{'s' * (count > 1)} missing or not finite, the "
            f"first in row {int(np.argmax(where))} (the top row is 0){more}. Fill them in, have inputs imputed "
            "(missing='impute' when fitting), or leave out such rows (missing='drop' when fitting) or the column."
        )
    if gone.all():
        worst = max(absent, key=lambda name: absent[name].sum())
        raise DataError(
            f"No row is left once those with missing values are left out; column {worst!r} lacks the most, "
            f"{absent[worst].sum()} of {len(frame)}. Leave that column out, or fill it in."
        )
    return frame.loc[~gone]


def _kind(values: Values) -> str:
    """ "number", "boolean" or "text"; values are all present."""
    dtype = values.dtype
    if pd.api.types.is_bool_dtype(dtype) and not isinstance(dtype, pd.CategoricalDtype):
        return "boolean"
    if pd.api.types.is_numeric_dtype(dtype) and dtype.kind in "iuf":
        return "number"
    if pd.api.types.is_object_dtype(dtype):
        dtype = pd.api.types.infer_dtype(values, skipna=False)
        if dtype in ("boolean", "string"):
            return "boolean" if dtype == "boolean" else "text"
    elif isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype):
        return "text"
    remedy = "Turn dates into numbers, such as days since a first one." if "date" in str(dtype) else ""
    raise DataError(
        f"Column {str(values.name)!r} holds {dtype}; expected numbers, True/False or text. "
        f"{remedy or 'Convert it, or leave it out.'}"
    )


def _fit_column(values: Values, impute: bool) -> Column | None:
    name, gone = str(values.name), _missing(values)
    values = values[~gone]  # all of them, unless missing ones are filled in
    kind = _kind(values) if len(values) else ""
    if values.nunique() < 2:
        if len(values) and gone.any():
            return Column(name, "presence", indicator=True)
        same = f"{values.tolist()[0]!r}" if len(values) else "missing"
        warnings.warn(f"Column {name!r} is {same} in every row; it is left out.", TractableWarning, stacklevel=3)
        return None
    fill, indicator = _fill(values, kind) if impute else None, bool(gone.any())
    if kind == "number":
        return Column(name, kind, *_moments(values), fill=fill, indicator=indicator)
    if kind == "boolean":
        return Column(name, kind, fill=fill, indicator=indicator)
    levels = tuple(sorted(set(_text(values))))
    _check_numbers_in_text(values)
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"Column {name!r} is text with {len(levels)} distinct values in {len(values)} rows; at most "
            f"{MOST_LEVELS} are supported. Leave it out if it only names the rows, or merge its rare values."
        )
    return Column(name, kind, levels=levels, fill=None if indicator else fill, indicator=indicator)


def _fill(values: Values, kind: str) -> Any:
    """What stands for a missing value: the median of numbers, the most frequent of others (the first of several)."""
    from sklearn.impute import SimpleImputer  # here, for those who need it: it takes a while

    if kind == "text":
        column, strategy = np.array(_text(values), object), "most_frequent"
    else:
        column = values.to_numpy(np.float64)
        strategy = "median" if kind == "number" else "most_frequent"
    imputer: Any = SimpleImputer(strategy=strategy).fit(column[:, None])
    found = imputer.statistics_[0]
    return str(found) if kind == "text" else bool(found) if kind == "boolean" else float(found)


def _check_numbers_in_text(values: Values) -> None:
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


def _fit_target(values: Values, family: str | None) -> Target:
    name, kind = str(values.name), _kind(values)
    if kind == "text":
        _check_numbers_in_text(values)
    distinct = sorted(_plain(values))
    if family not in (None, "normal", "bernoulli", "categorical"):
        raise DataError(f"family is 'normal', 'bernoulli' or 'categorical'; got {family!r}.")
    if len(distinct) == 1:
        raise DataError(f"The target {name!r} is {distinct[0]!r} in every row, so there is nothing to explain.")
    if family is None:
        whole = kind != "number" or all(float(value).is_integer() for value in distinct)
        if len(distinct) == 2:
            family = "bernoulli"
        else:
            family = "categorical" if whole and (kind != "number" or len(distinct) <= FEW) else "normal"
    if family == "normal":
        if kind != "number":
            raise DataError(f"The target {name!r} is {kind}; family='normal' expects numbers.")
        return Target(name, family, *_moments(values))
    if family == "bernoulli" and len(distinct) != 2:
        raise DataError(f"family='bernoulli' expects two classes; the target {name!r} has {len(distinct)}.")
    if len(distinct) > MOST_CLASSES:
        raise DataError(
            f"The target {name!r} has {len(distinct)} classes; at most {MOST_CLASSES} are supported. "
            "Merge rare ones, or choose a target that is a number."
        )
    return Target(name, family, classes=tuple(distinct))


def _moments(values: Values) -> tuple[float, float]:
    numbers = values.to_numpy(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = float(numbers.mean()), float(numbers.std())
    if not (0 < sd < math.inf):
        raise DataError(
            f"Column {str(values.name)!r} cannot be standardised: its standard deviation is {sd}. Rescale it."
        )
    return mean, sd


def _encode_column(column: Column, values: Values) -> np.ndarray:
    """(n, columns of X that it makes)."""
    gone = _missing(values)
    blocks = [] if column.kind == "presence" else [_encode_present(column, values, gone)]
    return np.concatenate([*blocks, *([gone[:, None]] * column.indicator)], axis=1).astype(np.float64)


def _encode_present(column: Column, values: Values, gone: np.ndarray) -> np.ndarray:
    present = values[~gone]
    kind = _kind(present) if len(present) else column.kind
    if column.kind == "text":
        text = _text(present)
        codes = np.full(len(values), -1 if column.fill is None else column.levels.index(str(column.fill)))
        codes[~gone] = pd.Index(column.levels).get_indexer(text)  # −1 where unknown
        unknown = sorted({level for level, code in zip(text, codes[~gone], strict=True) if code < 0})
        if unknown:
            warnings.warn(
                f"Column {column.name!r} has values never seen in training, {_listing(unknown)}: they count "
                f"as none of {_listing(column.levels)}.",
                TractableWarning,
                stacklevel=4,
            )
        return codes[:, None] == np.arange(len(column.levels))
    if kind == "text" or (column.kind == "number" and kind == "boolean"):
        raise DataError(f"Column {column.name!r} was {column.kind} in training and is {kind} here.")
    numbers = np.full(len(values), 0.0 if column.fill is None else float(column.fill))
    numbers[~gone] = present.to_numpy(np.float64)
    if column.kind == "boolean" and not np.isin(numbers, (0, 1)).all():
        wrong = numbers[~np.isin(numbers, (0, 1))][0]
        raise DataError(f"Column {column.name!r} was True/False in training; got {wrong:g} here.")
    return ((numbers - column.mean) / column.sd)[:, None]


def _encode_target(target: Target, values: Values) -> np.ndarray:
    kind = _kind(values)
    if target.family == "normal":
        if kind != "number":
            raise DataError(f"The target {target.name!r} was a number in training and is {kind} here.")
        return (values.to_numpy(np.float64) - target.mean) / target.sd
    textual = isinstance(target.classes[0], str)
    code = {label: i for i, label in enumerate(target.classes)}
    found = _text(values) if textual else values.tolist()
    unknown = sorted({str(label) for label in found if label not in code})
    if unknown:
        raise DataError(
            f"The target {target.name!r} has classes never seen in training, {_listing(unknown)}; expected "
            f"{_listing(map(str, target.classes))}. Fit anew with them, or leave those rows out."
        )
    return np.array([code[label] for label in found], np.int64)


def _labels(target: Target) -> np.ndarray:
    textual = isinstance(target.classes[0], str)
    return np.array(target.classes, dtype=object if textual else None)


def _plain(values: Values) -> set[Any]:
    """Distinct values as Python's own, so that they are JSON."""
    if _kind(values) == "text":
        return set(_text(values))
    found = {value.item() if hasattr(value, "item") else value for value in values.unique()}
    whole = all(float(value).is_integer() for value in found)
    return {int(value) if whole and isinstance(value, float) else value for value in found}


def _text(values: Iterable[Any]) -> list[str]:
    """As strings, a whole number written alike whether it is held as 1 or as 1.0."""
    return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values]


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _listing(names: Iterable[str]) -> str:
    names = [repr(str(name)) for name in names]
    shown = names if len(names) <= 12 else [*names[:11], f"and {len(names) - 11} more"]
    return ", ".join(shown)
