"""Reads files into the rows to fit and the held-out rows of a model, with the encoder that turned them into numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from tractable.core.errors import DataError, SettingsError
from tractable.core.model import Data
from tractable.core.shards import last_apart, manifest_of
from tractable.core.words import counted, listing, nearest, tell
from tractable.tables.columns import Column
from tractable.tables.encoder import Encoder, fit_numbers
from tractable.tables.files import FORMAT, Source, places, read_table
from tractable.tables.fit import ROLES, Explained, explain, held_out_mask
from tractable.tables.models import inputs_of
from tractable.tables.numerals import Form

SCORED = 10_000  # largest number of held-out rows of shards that are scored: the first ones, as the order is random
MOST = 100_000  # the largest whole number that an option such as --hidden accepts
# Options that a packed table fixes or excludes:
PACKED = (*ROLES, "exclude", "pool", "formula", "shifted", "family", "target")


def columns_in(text: str, columns: Sequence[str]) -> list[str]:
    """The columns that a text names: one column, or several with commas between them.

    >>> columns_in("height, weight", ["height", "weight", "age"]), columns_in("a,b", ["a,b", "c"])
    (['height', 'weight'], ['a,b'])
    """
    parts = [part.strip() for part in text.split(",")]
    return [text] * bool(text) if text in columns or not set(parts) & set(columns) else parts


def names_in(texts: Iterable[str], frame: pd.DataFrame) -> list[str]:
    """The columns of a table that an option names, which may be given several times, each with one or more columns."""
    columns = [str(name) for name in frame.columns]
    return [name for text in texts for name in columns_in(text, columns)]


def read(path: Path, spec: Mapping[str, Any]) -> pd.DataFrame:
    """Read a table as the options of a run say, which may be of an earlier version."""
    return read_table(path, **{name: spec.get(name) for name in FORMAT})


def read_explained(path: Path, spec: Mapping[str, Any], target: str | None) -> Explained:
    """Read a table whose other columns explain a target; the inputs are standardised by the rows to fit."""
    frame = read(path, spec)
    formula, missing = spec.get("formula") or "", spec["missing"]
    if target is None and not formula:
        names = ", ".join(map(repr, frame.columns[:12]))
        raise DataError(f"--target is missing: which column of {path} shall be explained? Its columns are {names}.")
    columns: dict[str, Any] = {name: spec[name] or "" for name in ROLES}
    columns |= {"exclude": names_in(spec["exclude"], frame), "formula": formula, "pool": pool_of(spec, frame)}
    names = columns_in(target or "", [str(name) for name in frame.columns])
    marks = Form("", spec.get("thousands") or "", spec.get("decimal") or "")
    found = explain(frame, names, spec["held_out"], missing, spec["family"], columns, marks)
    if found.reason:
        family = found.encoder.target.family
        tell(f"{found.encoder.explained} holds {found.reason}: --family {family}. Choose another with --family.")
    return found


def pool_of(spec: Mapping[str, Any], frame: pd.DataFrame) -> list[str] | None:
    """The columns that --pool names; None if the default shall choose them."""
    if spec.get("pool") is None:
        return [] if "hidden" in spec or spec.get("formula") else None
    return [] if spec["pool"] == ["none"] and "none" not in frame else names_in(spec["pool"], frame)


def read_shards(path: Path, spec: Mapping[str, Any], target: str | None) -> Explained:
    """Read a table that ``tractable pack --target`` encoded.

    If the table is too large for memory, the held-out rows are all rows of some of its files.
    """
    about = manifest_of(path)
    if about is None or about.get("encoder") is None:
        raise DataError(
            f"{path} is a folder. Expected a .csv or .parquet file, or a folder that tractable pack --target made."
        )
    encoder, share = Encoder.from_dict(about["encoder"]), spec["held_out"]
    names = ",".join(aim.name for aim in encoder.targets)
    known = {"target": names, "family": encoder.target.family}
    for name, value in {**spec, "target": target}.items():
        if name in PACKED and value not in (None, "", (), [], known.get(name)):
            raise DataError(f"{path} was packed to explain {names}: leave --{name} out, or pack the table anew.")
    data = Data(path)
    if data.resident:
        return Explained(encoder, *part_rows(data, held_out_mask(data.size, share)))
    parts, structure = [last_apart(leaf, share) for leaf in jax.tree.leaves(data.rows)], jax.tree.structure(data.rows)
    sides = [jax.tree.unflatten(structure, list(side)) for side in zip(*parts, strict=True)]
    fitted = [len(jax.tree.leaves(sides[0])[0])]
    weights = (None, None) if data.weights is None else np.split(data.weights, fitted)
    train, rest = (
        Data(*rows, weights=each, resident=False) if jax.tree.leaves(rows) else None
        for rows, each in zip(sides, weights, strict=True)
    )
    return Explained(encoder, train, None if rest is None else rest.take(slice(0, SCORED)))


def part_rows(rows: Data, mask: np.ndarray) -> tuple[Data, Data | None]:
    """The rows to fit, and the held-out rows, which ``mask`` marks."""
    return rows.take(~mask), rows.take(mask) if mask.any() else None


def inputs(encoder: Encoder, path: Path, spec: Mapping[str, Any]) -> Any:
    """The model's inputs for every row of a table, which need not hold the target."""
    return inputs_of(encoder, read(path, spec))


def drop_columns(frame: pd.DataFrame, exclude: Sequence[str]) -> pd.DataFrame:
    """The table without the columns named by --exclude."""
    names = names_in(exclude, frame)
    if absent := [name for name in names if name not in frame]:
        raise DataError(f"--exclude {absent[0]} is not a column of the table; it has {listing(frame.columns)}.")
    return frame.drop(columns=names)


def drop_gaps(source: Source, missing: str | None, remedy: str) -> Source:
    """The rows to learn from, according to --missing.

    "raise" raises an error for missing numbers, "drop" leaves out their rows, and "exact" keeps rows that have at
    least one number. None keeps all rows, also those without any number, because they are the steps of a sequence.
    """
    if missing in (None, "exact"):
        source.refuse_infinite()
        dropped_rows = source.gaps & np.isnan(source.values).all(1) if missing else np.zeros(len(source.values), bool)
    else:
        dropped_rows = source.gaps
    if missing == "raise":
        source.refuse_gaps(f"Use --missing drop, which leaves such rows out. {remedy}")
    if count := int(dropped_rows.sum()):
        tell(f"Left out: {counted(count, 'row')} of {len(dropped_rows):,}, with numbers missing or not finite.")
    return source._replace(values=source.values[~dropped_rows])


def encoder_of(source: Source, to_fit: np.ndarray, divisor: float) -> tuple[Encoder, Source]:
    """The encoder of rows of numbers, and the rows with the columns that the encoder knows.

    It divides the numbers by ``divisor``. If that is 0, it standardises them by the rows that ``to_fit`` marks, and
    drops columns of a table that are constant in these rows.
    """
    names, shape = (places(source.shape), source.shape) if source.names is None else (source.names, None)
    if divisor:
        return Encoder(tuple(Column(name, "number", sd=divisor) for name in names), shape=shape), source
    encoder, differs = fit_numbers(source.values[to_fit], names, shape)
    if not differs.any():
        raise DataError("Every column of numbers is constant in the rows to fit, so there is nothing to learn from.")
    if source.names is not None and not differs.all():
        tell(f"Columns left out, as they are constant in the rows to fit: {listing(source.of(~differs).names or ())}.")
        source = source.of(differs)
    return encoder, source


# Functions that read typed or saved values.


def share(value: float) -> float:
    """Read --held-out, a share of the rows in [0, 1)."""
    if not 0 <= value < 1:
        raise DataError(f"--held-out expects a share of the rows in [0, 1); got {value:g}.")
    return value


def one_of(names: Iterable[str], words: str) -> Callable[[Any], str]:
    """A function that reads one of ``names``; for another value it raises an error that begins with ``words``."""
    names = tuple(names)

    def read(value: str) -> str:
        if value not in names:
            raise SettingsError(f"{words} {', '.join(names)}; got {value!r}.{nearest(value, names)}")
        return value

    return read


def whole_numbers(option: str, example: str) -> Callable[[Any], list[int]]:
    """A function that reads whole numbers and ranges with commas between them; its error shows ``example``.

    >>> whole_numbers("latent", "20 or 100,50")("100, 50"), whole_numbers("states", "2..5")("2..4,9")
    ([100, 50], [2, 3, 4, 9])
    """

    def read(value: str | Sequence[int]) -> list[int]:
        parts = [part.partition("..") for part in value.split(",")] if isinstance(value, str) else []
        try:
            ranges = [range(int(low), int(high if dots else low) + 1) for low, dots, high in parts]
        except ValueError:
            ranges = [range(0)]
        if not all(ranges) or any(each[0] < 1 or each[-1] > MOST for each in ranges):
            raise SettingsError(
                f"--{option} expects whole numbers from 1 to {MOST:,} with commas between them, such as {example}; got "
                f"{value!r}."
            )
        return [number for each in ranges for number in each] or [int(number) for number in value]

    return read
