"""The values that each family of rows can have, and guesses of the family from a file's rows."""

from collections.abc import Sequence

import numpy as np

from tractable.core.errors import DataError
from tractable.core.words import tell
from tractable.tables.files import Source

WHITE = 255  # the largest of 256 grey levels
FAMILIES = ("bernoulli", "continuous-bernoulli", "normal", "categorical", "poisson")
LEVELS = 256  # the largest number of values of a categorical number
HOLDS = {  # the values that rows of each family have
    "bernoulli": "0 and 1",
    "continuous-bernoulli": "numbers from 0 to 1",
    "normal": "finite numbers",
    "categorical": f"whole numbers from 0 to at most {LEVELS - 1}",
    "poisson": "counts: 0, 1, 2, …",
}


def check_support(source: Source, values: np.ndarray, family: str, levels: int = LEVELS) -> None:
    """Raise a DataError about the first number that lies outside the family's support."""
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
        remedy = "use family='continuous-bernoulli' for grey pixels, or redraw=True, which draws binary ones from them"
    raise DataError(f"{family} expects {holds}; row {row}, {source.place(column)}, is {value:.4g}: {remedy}.")


def levels_of(source: Source) -> int:
    """The number of values 0, 1, … that categorical rows have; at least 2."""
    check_support(source, source.values, "categorical")
    return max(2, int(source.values.max()) + 1)


def is_whole(values: np.ndarray) -> bool:
    """Whether all numbers are whole."""
    return values.dtype.kind in "iub" or bool(np.all(values == np.floor(values)))


def brightest(source: Source) -> float:
    """The divisor that maps pixels, whole numbers of up to 255, to [0, 1]; 1 if the rows are not such pixels."""
    values = source.values
    if source.names is not None or values.dtype.kind == "b" or values.min() < 0 or not is_whole(values):
        return 1.0
    most = float(values.max())
    if not 1 < most <= WHITE:
        return 1.0
    return float(WHITE) if most > WHITE // 2 else most


def likely_family(source: Source, asked: str | None, redraw: bool, binary: bool) -> tuple[str, bool, float]:
    """The family of the rows, whether binary pixels are redrawn from grey ones, and the divisor of the pixels.

    They are those that the user asked for, or guesses from the numbers; a warning announces a guess. ``binary`` says
    whether the rows of the model are binary.
    """
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
        tell("Grey pixels are taken as probabilities, from which binary ones are drawn at every use (redraw=True).")
    elif not binary:
        what, family = ("from 0 to 1", "continuous-bernoulli") if grey else ("of any size", "normal")
        tell(f"Rows hold numbers {what}, and are taken as {family}; choose another family with family=.")
        return family, False, divisor
    return "bernoulli", bool(grey), divisor  # ``check_support`` then raises an error for numbers that are not grey


def picture(shape: Sequence[int]) -> tuple[int, int] | None:
    """(height, width) of a row as a picture, with its colours next to each other; None if rows are not pictures."""
    if len(shape) == 2:
        return int(shape[0]), int(shape[1])
    if len(shape) == 3:
        a, b, c = map(int, shape)
        return (a, b * c) if c <= 4 else (a * b, c)
    return None
