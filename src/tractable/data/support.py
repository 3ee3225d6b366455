"""Which numbers the families of rows have, and what rows of numbers look like."""

from collections.abc import Sequence

import numpy as np

from tractable.data.files import Source
from tractable.tools.errors import DataError
from tractable.tools.words import tell

WHITE = 255  # the brightest of 256 levels
FAMILIES = ("bernoulli", "continuous-bernoulli", "normal", "categorical", "poisson")
LEVELS = 256  # of a categorical number, at most
HOLDS = {
    "bernoulli": "0 and 1",
    "continuous-bernoulli": "numbers from 0 to 1",
    "normal": "finite numbers",
    "categorical": f"whole numbers from 0 to at most {LEVELS - 1}",
    "poisson": "counts: 0, 1, 2, …",
}


def check_support(source: Source, values: np.ndarray, family: str, levels: int = LEVELS) -> None:
    """A sentence about the first number that a family does not have."""
    if family == "normal":
        return
    if family == "bernoulli":
        good = (values == 0) | (values == 1)
    elif family == "continuous-bernoulli":
        good = (values >= 0) & (values <= 1)
    else:
        good = (values >= 0) & (values == np.floor(values)) & (values < (levels if family == "categorical" else np.inf))
    if good.all():
        return
    row, column = map(int, np.argwhere(~good)[0])
    value = values[row, column]
    holds = f"whole numbers from 0 to {levels - 1}" if family == "categorical" else HOLDS[family]
    remedy = "choose another family="
    if family == "bernoulli" and ((values >= 0) & (values <= 1)).all():
        remedy = "grey pixels are for family='continuous-bernoulli', or redraw=True, which draws binary ones from them"
    raise DataError(f"{family} is of {holds}; row {row}, {source.place(column)}, is {value:.4g}: {remedy}.")


def levels_of(source: Source) -> int:
    """Of rows of categorical numbers, counted from 0: two at least."""
    check_support(source, source.values, "categorical")
    return max(2, int(source.values.max()) + 1)


def is_whole(values: np.ndarray) -> bool:
    """Whether all numbers are whole."""
    return values.dtype.kind in "iub" or bool(np.all(values == np.floor(values)))


def brightest(source: Source) -> float:
    """What divides pixels that are whole numbers up to 255; 1 where there are none."""
    values = source.values
    if source.names is not None or values.dtype.kind == "b" or values.min() < 0 or not is_whole(values):
        return 1.0
    most = float(values.max())
    if not 1 < most <= WHITE:
        return 1.0
    return float(WHITE) if most > WHITE // 2 else most


def likely_family(source: Source, asked: str | None, redraw: bool, binary: bool) -> tuple[str, bool, float]:
    """(family, redraw, divisor): what was asked for, or what the numbers look like, which is then said."""
    values, pixels = source.values, asked in (None, "bernoulli", "continuous-bernoulli")
    divisor = brightest(source) if pixels else 1.0
    if divisor != 1:
        tell(f"Whole numbers from 0 to {int(values.max())} are divided by {divisor:g}.")
    if asked is not None or redraw:
        return asked or "bernoulli", redraw, divisor
    if ((values == 0) | (values == divisor)).all():
        return "bernoulli", False, divisor
    grey = values.min() >= 0 and values.max() <= divisor
    if binary and grey:
        tell("Grey pixels are taken as probabilities, from which binary ones are drawn at every visit (redraw=True).")
    elif not binary:
        what, family = ("from 0 to 1", "continuous-bernoulli") if grey else ("of any size", "normal")
        tell(f"Rows hold numbers {what}, and are taken as {family}; family= says otherwise.")
        return family, False, divisor
    return "bernoulli", bool(grey), divisor  # which numbers that are not grey fail to be


def picture(shape: Sequence[int]) -> tuple[int, int] | None:
    """(height, width) that a row of the file is drawn as: colours beside each other; None where it is no picture."""
    if len(shape) == 2:
        return int(shape[0]), int(shape[1])
    if len(shape) == 3:
        a, b, c = map(int, shape)
        return (a, b * c) if c <= 4 else (a * b, c)
    return None
