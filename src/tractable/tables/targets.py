"""The target, which is the column to explain: its family, and how it is encoded as y."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tractable.core.censored import censored, known, middle, seen
from tractable.core.errors import DataError
from tractable.core.tree import Numbers
from tractable.core.words import listing, nearest, tell
from tractable.glm.families import MULTI_OUTPUT
from tractable.tables.columns import kind_of, moments, tell_of_equal_levels
from tractable.tables.numerals import Values, are_plain, check_numbers_in_text, text_of

MOST_CLASSES = 100  # the largest number of classes
ROWS_OF_A_CLASS = 3  # more than FEW classes, most of which have fewer rows than this, are refused
SCALE = 5  # whole numbers from 0 with fewer distinct values than this are counts and not grades
FEW = 10  # whole numbers with at most this many distinct values may be grades or classes
MANY_ZEROS = 0.05  # a note is printed if a larger share of the numbers than this is 0, and the others are skewed
SKEWED = 1.0  # positive numbers whose skewness is above this are lognormal
SPREAD = 1.2  # counts whose variance divided by their mean is above this are negative-binomial
CLASS_NAMES = r"(.*[_\s.-])?(class|label|target|species|type|kind|category|group|code)([_\s.-].*)?"

FAMILIES = {  # by family: the values that the target can have
    "normal": "numbers",
    "student-t": "numbers",
    "lognormal": "positive numbers",
    "gamma": "positive numbers",
    "weibull": "positive numbers",
    "exponential": "positive numbers",
    "beta": "numbers between 0 and 1",
    "poisson": "counts: 0, 1, 2, …",
    "negative-binomial": "counts: 0, 1, 2, …",
    "zero-inflated-poisson": "counts: 0, 1, 2, …",
    "zero-inflated-negative-binomial": "counts: 0, 1, 2, …",
    "hurdle-poisson": "counts: 0, 1, 2, …",
    "hurdle-negative-binomial": "counts: 0, 1, 2, …",
    "bernoulli": "two classes",
    "categorical": "classes",
    "ordered": "grades in order",
}
CLASSES = ("bernoulli", "categorical", "ordered")
COUNTS = tuple(name for name, values in FAMILIES.items() if values.startswith("counts"))
PLAIN = ("normal", "student-t")  # families whose η is in the target's own unit
POSITIVE = ("lognormal", "gamma", "weibull", "exponential")
CENSORED = ("normal", "lognormal", "weibull", "exponential")  # families of a censored target


@dataclass(frozen=True)
class Target:
    """How the target becomes y.

    Attributes:
        name: the table's column.
        family: a name of ``FAMILIES``; "none" if there is no target.
        mean, sd: y = (value − mean) / sd. For normal they are the mean and sd of the training values; for Student's t
            the median, and 1.48 times the median absolute deviation; for positive families 0, and the geometric mean
            (lognormal) or the mean; for other families 0 and 1.
        classes: labels in the order of their codes; empty for numbers.
        level: for counts, their mean in training (per unit of exposure), by which every row's rate is multiplied.
        reason: why this family was guessed; empty if the user gave the family, or for ordinary normal numbers.
        censoring: what the column ``bound_column`` holds: a "status" or an "event" (both as in ``censored``), or the
            "upper" bound, in which case the target is the lower bound; "" if no row is censored.
        bound_column: the column that says which rows are censored; "" if none is.
    """

    name: str
    family: str
    mean: float = 0.0
    sd: float = 1.0
    classes: tuple[bool | int | float | str, ...] = ()
    level: float = 1.0
    reason: str = ""
    censoring: str = ""
    bound_column: str = ""

    def bounds(self, values: Values, bound_column: Values) -> np.ndarray:
        """The lower and upper bound of each row's target, (n, 2), in the table's units."""
        numeric = pd.api.types.is_numeric_dtype(values.dtype)
        numbers = values.to_numpy(np.float64, na_value=np.nan) if numeric else values
        other = (
            bound_column.to_numpy(np.float64, na_value=np.nan) if self.censoring == "upper" else bound_column.to_numpy()
        )
        try:
            return censored(numbers, **{self.censoring: other})
        except (DataError, ValueError, TypeError) as error:
            said = {"status": "censored", "event": "event", "upper": "until"}[self.censoring]
            raise DataError(f"The target {self.name!r} with {said}={self.bound_column!r}: {error}") from error


def fit_target(values: Values, family: str | None = None) -> Target:
    """Learn from a training column how to encode a target.

    If ``family`` is None, it is guessed from the values:

    two values                                bernoulli
    other text                                categorical; ordered if the column is an ordered categorical
    whole numbers from 0, or more than 10     negative-binomial; poisson if their variance is about their mean, or less
    different ones from 1
    at most 10 other whole numbers            ordered if they are successive; else categorical
    numbers between 0 and 1                   beta; normal if 0 or 1 is among them
    positive, skewed numbers                  lognormal
    other numbers                             normal

    A few whole numbers have exceptions (``_guess_family``), such as those in a column whose name suggests classes.
    """
    name, kind = str(values.name), kind_of(values)
    if family is not None and family not in FAMILIES:
        raise DataError(f"family is one of {', '.join(FAMILIES)}; got {family!r}.{nearest(family, FAMILIES)}")
    if kind in ("date", "duration"):
        raise DataError(f"The target {name!r} is a {kind}; expected numbers or classes. Turn it into a number of days.")
    if kind == "text":
        check_numbers_in_text(values)
    if values.nunique() == 1:
        only = text_of(values[:1])[0] if kind == "text" else values.iloc[0]
        raise DataError(f"The target {name!r} is {only!r} in every row, so there is nothing to explain.")
    found = ordered_values(values)
    if kind == "text":
        tell_of_equal_levels(name, found)
    reason = ""
    if family is None:
        family, reason = _guess_family(values, kind, found)
    if family in CLASSES:
        if family == "bernoulli" and len(found) != 2:
            raise DataError(f"family='bernoulli' expects two classes; the target {name!r} has {len(found)}.")
        rare = len(found) > FEW and 2 * np.sum(values.value_counts() < ROWS_OF_A_CLASS) > len(found)
        if rare or len(found) > MOST_CLASSES:
            fault = f", most in fewer than {ROWS_OF_A_CLASS} of its {len(values)} rows; a class needs several rows"
            numbers = kind == "text" and bool(are_plain(text_of(values)).all())
            raise DataError(
                f"The target {name!r} has {len(found)} classes; at most {MOST_CLASSES} are supported. "
                f"Its classes are {listing(found[:3])} and so on{fault * bool(rare)}. "
                + "They are numbers written as text: convert the column by pandas.to_numeric." * numbers
                + "Merge rare ones, or choose a target that is a number." * (not numbers)
            )
        if family == "ordered" and kind == "text" and not getattr(values.dtype, "ordered", False):
            tell(
                f"The grades of {name!r} are words and are put in alphabetical order: {' < '.join(found)}. If this is "
                "not their order, number the grades, or make the column an ordered categorical."
            )
        return Target(name, family, classes=tuple(found), reason=reason)
    if kind != "number":
        raise DataError(f"The target {name!r} is {kind}; family={family!r} expects {FAMILIES[family]}.")
    numbers = values.to_numpy(np.float64)
    _check(name, family, numbers)
    if family == "normal":
        return Target(name, family, *moments(name, numbers), reason=reason)
    if family == "student-t":
        return Target(name, family, *robust(name, numbers), reason=reason)
    if family in COUNTS:
        return Target(name, family, level=float(numbers.mean()), reason=reason)
    moments(name, numbers)
    return Target(name, family, sd=_scale(family, numbers), reason=reason)


def robust(name: str, numbers: np.ndarray) -> tuple[float, float]:
    """The median, and a robust estimate of the sd.

    The latter is the median absolute deviation divided by Φ⁻¹(¾), which for normal numbers is their sd. If more than
    half of the deviations are 0, the zeros are left out.
    """
    moments(name, numbers)  # raises an error if all numbers are equal
    middle = float(np.median(numbers))
    away = np.abs(numbers - middle)
    return middle, float(np.median(away) or np.median(away[away > 0])) / 0.67449


def fit_targets(columns: Sequence[Values], family: str | None = None) -> tuple[Target, ...]:
    """Learn from several training columns of numbers how to encode several targets of one family.

    If ``family`` is None, it is the one that the values of all columns suggest, or normal if they suggest different
    families.

    Raises:
        DataError: a column does not hold numbers, or a family is unknown or does not suit a column.
    """
    if family is not None and family not in MULTI_OUTPUT:
        raise DataError(
            f"Several targets must be numbers of one family, {', '.join(MULTI_OUTPUT)}; got {family!r}. "
            "Explain them one by one."
        )
    if family is not None:
        return tuple(fit_target(values, family) for values in columns)
    names = [str(values.name) for values in columns]
    for name, values in zip(names, columns, strict=True):
        if (kind := kind_of(values)) != "number":
            raise DataError(f"Several targets must be numbers, but {name!r} is {kind}; explain it by itself.")
    found = [fit_target(values) for values in columns]
    families = [aim.family for aim in found]
    if families[0] in MULTI_OUTPUT and len(set(families)) == 1:
        return tuple(found)
    reason = "numbers that look " + ", ".join(f"{kind} ({name})" for name, kind in zip(names, families, strict=True))
    return tuple(replace(fit_target(values, "normal"), reason=reason) for values in columns)


def _scale(family: str, numbers: np.ndarray) -> float:
    if family == "lognormal":
        return float(np.exp(np.log(numbers).mean()))
    return float(numbers.mean()) if family in POSITIVE else 1.0


def fit_censored(values: Values, bound_column: Values, censoring: str, family: str | None = None) -> Target:
    """Learn from a training column how to encode a target, if ``bound_column`` says which rows are censored.

    If ``family`` is None, it is guessed from the values:

    positive numbers                          weibull; lognormal if they are skewed and none can be right-censored
    other numbers                             normal
    """
    aim = Target(str(values.name), family or "", censoring=censoring, bound_column=str(bound_column.name))
    if family is not None and family not in CENSORED:
        raise DataError(f"A censored target needs one of the families {', '.join(CENSORED)}; got {family!r}.")
    y = aim.bounds(values, bound_column)
    numbers, there = middle(y), known(y)
    whole, right = seen(y), int(np.sum(~there[:, 1]))
    if not whole.any() and there.all(1).sum() == 0:
        raise DataError(f"The target {aim.name!r} was observed in no row, and its bounds are all on one side.")
    reason = f"{int(whole.sum())} observed and {int((~whole).sum())} censored numbers"
    if family is None and not (numbers > 0).all():
        aim = replace(aim, family="normal", reason=reason)
    elif family is None:
        times = right > 0 or censoring == "event" or _skewness(numbers) <= SKEWED
        aim = replace(aim, family="weibull" if times else "lognormal", reason=f"{reason}, all positive")
    if aim.family != "normal":
        _check(aim.name, aim.family, numbers)
        moments(aim.name, numbers)
        return replace(aim, sd=_scale(aim.family, numbers))
    mean, sd = moments(aim.name, numbers)
    return replace(aim, mean=mean, sd=sd)


def encode_censored(target: Target, values: Values, bound_column: Values) -> np.ndarray:
    """y (n, 2): the bounds in the units of the model, float64."""
    y = target.bounds(values, bound_column)
    _check(target.name, target.family, middle(y))
    return np.where(known(y), (y - target.mean) / target.sd, y)


def _guess_family(values: Values, kind: str, found: list[Any]) -> tuple[str, str]:
    """The family that a column's values suggest, and the reason."""
    dtype, count = values.dtype, len(found)
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered and count > 2:
        return "ordered", f"{count} categories in order"
    if count == 2:
        return "bernoulli", f"two values, {found[0]!r} and {found[1]!r}"
    if kind != "number":
        return "categorical", f"{count} classes"
    numbers = values.to_numpy(np.float64)
    low, high, whole = found[0], found[-1], bool(np.all(numbers == np.floor(numbers)))
    if whole and count <= FEW and re.fullmatch(CLASS_NAMES, str(values.name), re.IGNORECASE):
        return "categorical", f"{count} whole numbers in a column whose name suggests classes"
    if whole and low == 0 and SCALE <= count <= FEW and _ends_high(numbers) and found == list(range(count)):
        return "ordered", f"{count} grades, 0 to {high}, the last as frequent as others, which is unusual for counts"
    if whole and (low == 0 or (low == 1 and (count > FEW or _thin_out(numbers, found)))):
        if numbers.var() > SPREAD * numbers.mean():
            return "negative-binomial", f"counts from {low} to {high}, more spread than Poisson's"
        return "poisson", f"counts from {low} to {high}, spread like Poisson's"
    if whole and count <= FEW:
        if found == list(range(low, high + 1)):
            return "ordered", f"{count} grades, {low} to {high}"
        return "categorical", f"{count} whole numbers that are not successive"
    if low > 0 and high < 1:
        return "beta", f"shares between {low:.3g} and {high:.3g}"
    if low > 0 and _skewness(numbers) > max(SKEWED, 2 * abs(_skewness(np.log(numbers)))):
        return "lognormal", "positive numbers with a long tail to the right"
    zeros = float(np.mean(numbers == 0))
    if low == 0 and zeros > MANY_ZEROS and _skewness(numbers[numbers > 0]) > SKEWED:
        return "normal", (
            f"0 in {100 * zeros:.0f} % of its rows and skewed amounts in the others, and no family suits both: it is "
            "better to explain by one fit whether it is above 0, and by another fit the amounts above 0"
        )
    ends = low >= 0 and high <= 1
    return "normal", f"shares from {low:g} to {high:g}, and beta excludes 0 and 1" * ends  # no note in other cases


def _thin_out(numbers: np.ndarray, found: list[Any]) -> bool:
    """Whether the numbers have gaps and the smallest is by far the most frequent, which suggests counts, not codes."""
    rows = np.unique(numbers, return_counts=True)[1]
    return bool(rows[0] == rows.max() > 2 * rows[-1]) and found != list(range(1, len(found) + 1))


def _ends_high(numbers: np.ndarray) -> bool:
    """Whether the largest value is in ten rows or more, and at least half as frequent as the most frequent one."""
    rows = np.unique(numbers, return_counts=True)[1]
    return bool(rows[-1] >= max(10, rows.max() / 2))


def _check(name: str, family: str, numbers: np.ndarray) -> None:
    good = np.isfinite(numbers)
    if family in COUNTS:
        good = (numbers >= 0) & (numbers == np.floor(numbers))
    elif family in POSITIVE:
        good = numbers > 0
    elif family == "beta":
        good = (numbers > 0) & (numbers < 1)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"family={family!r} expects {FAMILIES[family]}; the target {name!r} is {numbers[row]:g} in row {row} (the "
            "top row is 0). Correct it, or choose another family."
        )


def encode_target(target: Target, values: Values) -> np.ndarray:
    """y (n,): numbers in the units of the model as float64, or codes of classes as int64."""
    kind = kind_of(values)
    if not target.classes:
        if kind != "number":
            name, first = target.name, values.iloc[0]
            raise DataError(f"The target {name!r} was a number in training but is {kind} here, such as {first!r}.")
        numbers = values.to_numpy(np.float64)
        _check(target.name, target.family, numbers)
        return (numbers - target.mean) / target.sd
    textual = isinstance(target.classes[0], str)
    code = {label: i for i, label in enumerate(target.classes)}
    found = text_of(values) if textual else values.tolist()
    unknown = sorted({str(label) for label in found if label not in code})
    if unknown:
        raise DataError(
            f"The target {target.name!r} has classes never seen in training, {listing(unknown)}; expected "
            f"{listing(map(str, target.classes))}. Fit again with these classes, or leave their rows out."
        )
    return np.array([code[label] for label in found], np.int64)


def decode_target(target: Target, y: Numbers) -> np.ndarray:
    """Encoded targets of any shape, in the table's units or as its class labels."""
    if not target.classes:
        return np.asarray(np.asarray(y, np.float64) * target.sd + target.mean)
    codes = np.asarray(y)
    if codes.dtype.kind not in "iub" or np.any((codes < 0) | (codes >= len(target.classes))):
        raise DataError(f"Expected codes of classes, whole numbers in 0..{len(target.classes) - 1}; got {codes}.")
    labels = np.array(target.classes, dtype=object if isinstance(target.classes[0], str) else None)
    return np.asarray(labels[codes.astype(np.int64)])


def ordered_values(values: Values) -> list[Any]:
    """The distinct values in order, as Python's own types, which JSON can hold."""
    if kind_of(values) == "text":
        found = set(text_of(values))
        if isinstance(values.dtype, pd.CategoricalDtype) and values.dtype.ordered:
            levels = [str(level) for level in values.cat.categories]
            if absent := [level for level in levels if level not in found]:
                tell(
                    f"No row has the grade {listing(absent)} of {values.name!r}, which is a declared category: only "
                    "the prior and the neighbouring grades determine its probability. Remove it if it cannot occur."
                )
            return levels
        return sorted(found)
    plain = {value.item() if hasattr(value, "item") else value for value in values.unique()}
    whole = all(float(value).is_integer() for value in plain)
    return sorted(int(value) if whole and isinstance(value, float) else value for value in plain)


def _skewness(numbers: np.ndarray) -> float:
    """The mean cubed distance from the mean, in sds; 0 if all numbers are equal."""
    off = numbers - np.mean(numbers)
    return float(np.mean(off**3) / (np.mean(off**2) ** 1.5 or 1.0))
