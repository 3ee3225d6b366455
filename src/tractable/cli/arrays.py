"""Rows of numbers from a file, an array of an .npz or a table's columns, and how a ladder takes them."""

import dataclasses
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tractable.cli.columns import is_number, values_of
from tractable.data import tables
from tractable.tools.errors import DataError
from tractable.tools.words import counted, listing, tell

ARRAYS = (".npz", ".npy")
USUAL = ("x_train", "x", "data")  # arrays that are meant where nothing is said
NEW = ("x_test",)  # and before these, of new rows
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


class Source(NamedTuple):
    """Rows as a file has them.

    Attributes:
        values: (n, d) numbers.
        shape: of one row in the file.
        array: name of the array of an .npz; None elsewhere.
        names: of a table's columns; None of an array.
    """

    values: np.ndarray
    shape: tuple[int, ...]
    array: str | None
    names: list[str] | None


def read(path: Path, array: str | None = None, first: Sequence[str] = USUAL, names: Sequence[str] = ()) -> Source:
    """Rows of an .npz, an .npy, a .csv or a .parquet file.

    Args:
        array: which of an .npz.
        first: arrays that are taken where none is named, the foremost that is there.
        names: of columns a table must have; all columns of numbers by default.

    Raises:
        DataError: a file that is not there or damaged, no such array, text, Python objects, no numbers.
    """
    if path.suffix in ARRAYS:
        name, values = of_file(path, array, first)
        called = f"{path.name}: {name}" if name else path.name
        if values.dtype.kind not in "fiub":
            raise DataError(f"{called} holds {values.dtype}; expected numbers.")
        if values.ndim == 0 or values.size == 0:
            raise DataError(f"{called} has shape {values.shape}; expected rows of numbers, (n, …).")
        return Source(values.reshape(len(values), -1), values.shape[1:], name, None)
    if array is not None:
        raise DataError(f"--array is of an .npz; {path.name} is a table.")
    frame = tables.read_table(path)
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1).reset_index(drop=True)
    kept = list(names) or [name for name in frame.columns if is_number(frame[name])]
    if absent := [name for name in kept if name not in frame]:
        raise DataError(f"The table lacks {listing(absent)}; expected the columns {listing(kept)}.")
    if text := [name for name in kept if not is_number(frame[name])]:
        raise DataError(f"Column {text[0]!r} held numbers when the model was fitted, and does not here.")
    others = [name for name in frame.columns if name not in kept]
    if not kept:
        raise DataError(f"{path} has no column of numbers; got {listing(others)}.")
    if others and not names:
        tell(f"Left out, as they hold no numbers: {listing(others)}.")
    return Source(values_of(frame, kept), (len(kept),), None, kept)


def of_file(path: Path, array: str | None, first: Sequence[str]) -> tuple[str | None, np.ndarray]:
    """Name and values of an array on file; nothing is unpickled."""
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    try:
        with open(path, "rb") as file:
            found: Any = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                if array is not None:
                    raise DataError(f"--array is of an .npz; {path.name} holds one array without a name.")
                return None, found
            name = named(path, found.files, array, first)
            return name, found[name]
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError) as error:
        if "allow_pickle" in str(error) or "pickled" in str(error):
            raise DataError(
                f"{path.name} holds Python objects, which are not read, as reading them may run code; expected arrays "
                "of numbers."
            ) from None
        raise DataError(f"{path} is not an {path.suffix} file, or is damaged: {error}.") from None


def named(path: Path, names: Sequence[str], array: str | None, first: Sequence[str]) -> str:
    """Which of the arrays of a file is meant."""
    if array is not None:
        if array not in names:
            raise DataError(f"{path.name} has no array {array!r}; it has {listing(names)}.")
        return array
    if not names:
        raise DataError(f"{path.name} holds no arrays.")
    usual = [name for name in first if name in names]
    if len(names) > 1 and not usual:
        raise DataError(f"{path.name} has the arrays {listing(names)}: say which is meant, by --array NAME.")
    if len(names) > 1:
        tell(f"Rows are {usual[0]!r} of {path.name}, which has {listing(names)}.")
    return usual[0] if usual else names[0]


def gaps(values: np.ndarray) -> np.ndarray:
    """(n,) whether a row lacks a number."""
    if values.dtype.kind != "f":
        return np.zeros(len(values), bool)
    return np.any(~np.isfinite(values), axis=1)


def refuse_gaps(source: Source, remedy: str) -> None:
    """A sentence about the first number that is missing or not finite."""
    bad = gaps(source.values)
    if not bad.any():
        return
    row = int(np.argmax(bad))
    column = int(np.argmin(np.isfinite(source.values[row])))
    raise DataError(
        f"{counted(int(bad.sum()), 'row')} of {counted(len(bad), 'row')} hold numbers that are missing or not finite, "
        f"the first in row {row}, {place(source, column)} (the top row is 0). {remedy}"
    )


def place(source: Source, column: int) -> str:
    """Of a number in a row."""
    if source.names is not None:
        return f"column {source.names[column]!r}"
    index = np.unravel_index(column, source.shape or (1,))
    return f"at {', '.join(str(int(i)) for i in index)}"


@dataclass(frozen=True)
class Encoding:
    """How rows of a file become those of a model: (value / divisor − mean) / sd.

    Attributes:
        family: a name of ``FAMILIES``.
        redraw: binary pixels are drawn from the rows.
        size: d, numbers in a row of the model.
        divisor: > 0.
        levels: of a categorical number; 0 elsewhere.
        names: of a table's columns that are used; None of an array.
        mean, sd: (d,), of normal rows; None elsewhere.
    """

    family: str
    redraw: bool
    size: int
    divisor: float = 1.0
    levels: int = 0
    names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    sd: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Encoding":
        """What ``to_dict`` described."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in saved.items()}
        return cls(**fields)

    @property
    def log_scale(self) -> float:
        """log |∂ numbers of the file / ∂ those of the model| of a row, by which its log density is lower."""
        return float(np.log(self.sd).sum()) if self.sd is not None else 0.0

    @property
    def units(self) -> str:
        """Of what densities are."""
        if self.family in ("bernoulli", "categorical", "poisson"):
            return "log probabilities of rows"
        return "log densities of pixels in [0, 1]" if self.divisor != 1 else "log densities in the file's units"

    def encode(self, source: Source) -> np.ndarray:
        """(n, d) rows of the model.

        Raises:
            DataError: rows of another width, or numbers that the family does not have.
        """
        values = source.values
        if values.shape[1] != self.size:
            raise DataError(
                f"Rows here have {counted(values.shape[1], 'number')}; those the run was fitted to have {self.size:,}."
            )
        if self.family == "categorical":
            check_support(source, values, self.family, self.levels)
            return values.astype(np.int32)
        precision = jnp.result_type(float)
        if self.sd is not None:
            return ((values - np.asarray(self.mean)) / np.asarray(self.sd)).astype(precision)
        scaled = values / self.divisor if self.divisor != 1 else values
        check_support(source, scaled, "continuous-bernoulli" if self.redraw else self.family)
        return scaled.astype(precision)


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
    remedy = "choose another --family"
    if family == "bernoulli" and ((values >= 0) & (values <= 1)).all():
        remedy = "grey pixels are for --family continuous-bernoulli, or --redraw, which draws binary ones from them"
    raise DataError(f"{family} is of {holds}; row {row}, {place(source, column)}, is {value:.4g}: {remedy}.")


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


def family_told(source: Source, asked: str | None, redraw: bool, binary: bool) -> tuple[str, bool, float]:
    """(family, redraw, divisor): what was asked for, or what the numbers look like, which is then said.

    Args:
        binary: the model's rows are binary, whatever they look like.
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
        tell("Grey pixels are taken as probabilities, from which binary ones are drawn at every visit (--redraw).")
    elif not binary:
        what, family = ("from 0 to 1", "continuous-bernoulli") if grey else ("of any size", "normal")
        tell(f"Rows hold numbers {what}, and are taken as {family}; --family says otherwise.")
        return family, False, divisor
    return "bernoulli", bool(grey), divisor  # which numbers that are not grey fail to be


def encoding_of(source: Source, kept: np.ndarray, family: str, redraw: bool, divisor: float) -> tuple[Encoding, Source]:
    """How rows are taken, by those fitted, and the source without columns that nothing can be learnt from.

    Args:
        kept: (n,) rows that are fitted.
    """
    names = None if source.names is None else tuple(source.names)
    common: dict[str, Any] = {"family": family, "redraw": redraw, "divisor": divisor}
    if family == "categorical":
        check_support(source, source.values, family)
        levels = max(2, int(source.values.max()) + 1)
        return Encoding(**common, size=source.values.shape[1], levels=levels, names=names), source
    if family != "normal":
        return Encoding(**common, size=source.values.shape[1], names=names), source
    mean, sd, same = moments(source, kept)
    if names is not None and same.any():
        alike = listing([names[i] for i in np.flatnonzero(same)])
        tell(f"Left out, being the same in every row that is fitted: {alike}.")
        names = tuple(names[i] for i in np.flatnonzero(~same))
        source = Source(source.values[:, ~same], (len(names),), None, list(names))
        mean, sd, same = mean[~same], sd[~same], same[~same]
    sd = np.where(same, 1.0, sd)
    tell("Columns are standardised by the mean and sd of the rows fitted.")
    common |= {"mean": tuple(mean.tolist()), "sd": tuple(sd.tolist())}
    return Encoding(**common, size=source.values.shape[1], names=names), source


def moments(source: Source, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and sd (d,) of the rows that are fitted, and where these are all alike."""
    values = np.asarray(source.values[kept], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd, same = np.mean(values, axis=0), np.std(values, axis=0), np.ptp(values, axis=0) == 0
    if same.all():
        raise DataError("No number differs between the rows fitted, so there is nothing to learn from.")
    bad = ~same & ~(np.isfinite(sd) & (sd > 0))
    if bad.any():
        raise DataError(f"Numbers of {place(source, int(np.argmax(bad)))} cannot be standardised. Rescale them.")
    return mean, sd, same


def picture(shape: Sequence[int]) -> tuple[int, int] | None:
    """(height, width) that a row of the file is drawn as: colours beside each other; None where it is no picture."""
    if len(shape) == 2:
        return int(shape[0]), int(shape[1])
    if len(shape) == 3:
        a, b, c = map(int, shape)
        return (a, b * c) if c <= 4 else (a * b, c)
    return None
