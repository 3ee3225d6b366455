"""Reads files: the rows to fit and those held out, as a model takes them, and how they became numbers."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from tractable.core.errors import DataError, SettingsError
from tractable.core.model import Data
from tractable.core.shards import last_apart, manifest_of
from tractable.core.words import counted, listing, nearest, tell
from tractable.tables.columns import Column
from tractable.tables.encoder import Encoder, encode, fit_encoder, fit_numbers, unexplained
from tractable.tables.files import Source, places, read_table

SPLIT_SEED = 0  # which rows are held out is a property of the table, not of a run
SCORED = 10_000  # rows of those held out of shards by which predictions are scored: they are in random order
MOST = 100_000  # units of a layer, at most
ROLES = ("weights", "exposure", "censored", "event", "until")  # columns with a part of their own
PACKED = (*ROLES, "exclude", "formula", "shifted", "family", "target")  # what a pack was made with, or cannot have


class Explained(NamedTuple):
    """A table's rows, and how its other columns are to explain the target."""

    encoder: Encoder
    data: Any  # Data, the rows to fit
    held_out: Data | None


def held_out_mask(count: int, share: float) -> np.ndarray:
    """(count,) random mask of the rows held out; at least two rows are fitted."""
    chosen = np.zeros(count, bool)
    chosen[np.random.default_rng(SPLIT_SEED).permutation(count)[: min(round(share * count), count - 2)]] = True
    return chosen


def split(
    frame: pd.DataFrame, target: str, classes: bool, share: float, needed: np.ndarray | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows to fit, rows held out). Rows marked ``needed`` and at least one row of every class are fitted."""
    chosen = held_out_mask(len(frame), share)
    if needed is not None:
        chosen &= ~needed
    if classes:
        labels: Any = frame[target].astype(str)
        chosen &= labels.isin(labels[~chosen].unique()).to_numpy()  # NumPy's isin compares texts pair by pair
    return frame.loc[~chosen], frame.loc[chosen]


def columns_in(text: str, columns: Sequence[str]) -> list[str]:
    """The columns that a text names: one, or several with commas between them.

    >>> columns_in("height, weight", ["height", "weight", "age"]), columns_in("a,b", ["a,b", "c"])
    (['height', 'weight'], ['a,b'])
    """
    parts = [part.strip() for part in text.split(",")]
    return [text] * bool(text) if text in columns or not set(parts) & set(columns) else parts


def read_explained(path: Path, spec: Mapping[str, Any], target: str | None) -> Explained:
    """A table's target, and the other columns that are to explain it; inputs are standardised by the rows to fit."""
    frame = read_table(path, spec["sep"], spec["decimal"])
    formula, missing = spec.get("formula") or "", spec["missing"]
    if target is None and not formula:
        names = ", ".join(map(repr, frame.columns[:12]))
        raise DataError(f"--target is missing: which column of {path} is to be explained? It has {names}.")
    columns: dict[str, Any] = {name: spec[name] or "" for name in ROLES}
    columns |= {"exclude": spec["exclude"], "formula": formula, "pooled": "hidden" not in spec}
    names = columns_in(target or "", [str(name) for name in frame.columns])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the second fit_encoder warns again
        whole = fit_encoder(frame, names, missing, spec["family"], **columns)
    found, names = whole.target, [aim.name for aim in whole.targets]
    if missing != "raise":
        used = frame.columns if whole.formula is None else whole.formula.table.columns
        needed = [name for name in used if name not in spec["exclude"]] if missing == "drop" else names
        # Either bound may be missing.
        bounds = (found.name, found.bound_column) if found.censoring == "upper" else ()
        needed = [name for name in needed if name not in bounds]
        frame = frame.loc[~frame[needed].replace([np.inf, -np.inf], np.nan).isna().any(axis=1)]
    needed = None if whole.formula is None else whole.formula.needed(frame)
    fitted, rest = split(frame, found.name, bool(found.classes), spec["held_out"], needed)
    encoder = fit_encoder(fitted, names, missing, found.family, **columns)
    if found.reason:
        tell(f"{whole.explained} holds {found.reason}: --family {found.family}. Choose another with --family.")
    return Explained(encoder, as_rows(encoder, fitted), as_rows(encoder, rest) if len(rest) else None)


def read_shards(path: Path, spec: Mapping[str, Any], target: str | None) -> Explained:
    """A table that ``tractable pack --target`` encoded. Where it is not in memory, whole files are held out."""
    about = manifest_of(path)
    if about is None or about.get("encoder") is None:
        raise DataError(f"{path} is a folder. Expected a .csv or .parquet file, or what tractable pack --target made.")
    encoder, share = Encoder.from_dict(about["encoder"]), spec["held_out"]
    names = ",".join(aim.name for aim in encoder.targets)
    known = {"target": names, "family": encoder.target.family}
    for name, value in {**spec, "target": target}.items():
        if name in PACKED and value not in (None, "", (), [], known.get(name)):
            raise DataError(f"{path} was packed to explain {names}: leave --{name} out, or pack the table anew.")
    whole = Data(path)
    if whole.resident:
        back = held_out_mask(whole.size, share)
        return Explained(encoder, *part_rows(whole, back))
    parts, structure = [last_apart(leaf, share) for leaf in jax.tree.leaves(whole.rows)], jax.tree.structure(whole.rows)
    sides = [jax.tree.unflatten(structure, list(side)) for side in zip(*parts, strict=True)]
    cut = [len(jax.tree.leaves(sides[0])[0])]
    weights = (None, None) if whole.weights is None else np.split(whole.weights, cut)
    fitted, rest = (
        Data(*rows, weights=each, resident=False) if jax.tree.leaves(rows) else None
        for rows, each in zip(sides, weights, strict=True)
    )
    return Explained(encoder, fitted, None if rest is None else rest.take(slice(0, SCORED)))


def part_rows(rows: Data, back: np.ndarray) -> tuple[Data, Data | None]:
    """The rows to fit, and those held ``back``."""
    return rows.take(~back), rows.take(back) if back.any() else None


def as_rows(encoder: Encoder, frame: pd.DataFrame) -> Data:
    """A table's rows as the model's data."""
    rows = encode(encoder, frame)
    return Data(rows.y, rows.given, weights=rows.weights)


def inputs(encoder: Encoder, path: Path, spec: Mapping[str, Any]) -> Any:
    """The model's inputs for every row of a table, which need not hold the target."""
    frame = read_table(path, spec.get("sep"), spec.get("decimal"))
    return encode(encoder, unexplained(encoder, frame)).given


def drop_columns(frame: pd.DataFrame, exclude: Sequence[str]) -> pd.DataFrame:
    """The table without the columns named by --exclude."""
    if absent := [name for name in exclude if name not in frame]:
        raise DataError(f"--exclude {absent[0]} is not a column of the table; it has {listing(frame.columns)}.")
    return frame.drop(columns=[*exclude])


def drop_gaps(source: Source, missing: str | None, remedy: str) -> Source:
    """The rows to learn from: numbers that are missing are refused, or left out with their rows, or stay ("exact").

    None keeps rows without any number too, as the steps of a sequence.
    """
    if missing in (None, "exact"):
        source.refuse_infinite()
        gone = source.gaps & np.isnan(source.values).all(1) if missing else np.zeros(len(source.values), bool)
    else:
        gone = source.gaps
    if missing == "raise":
        source.refuse_gaps(f"Use --missing drop, which leaves such rows out. {remedy}")
    if gone.any():
        tell(f"Left out: {counted(int(gone.sum()), 'row')} of {len(gone):,}, with numbers missing or not finite.")
    return source._replace(values=source.values[~gone])


def encoder_of(source: Source, fitted: np.ndarray, divisor: float) -> tuple[Encoder, Source]:
    """Scales numbers by a divisor; if 0, standardises by the rows ``fitted`` and drops a table's constant columns."""
    names, shape = (places(source.shape), source.shape) if source.names is None else (source.names, None)
    if divisor:
        return Encoder(tuple(Column(name, "number", sd=divisor) for name in names), shape=shape), source
    encoder, differs = fit_numbers(source.values[fitted], names, shape)
    if not differs.any():
        raise DataError("No column of numbers differs between the rows fitted, so there is nothing to learn from.")
    if source.names is not None and not differs.all():
        tell(f"Left out, being the same in every row that is fitted: {listing(source.of(~differs).names or ())}.")
        source = source.of(differs)
    return encoder, source


# Readers of typed or saved values.


def share(value: float) -> float:
    """Reads --held-out, a share of the rows in [0, 1)."""
    if not 0 <= value < 1:
        raise DataError(f"--held-out expects a share of the rows in [0, 1); got {value:g}.")
    return value


def one_of(names: Iterable[str], words: str) -> Callable[[Any], str]:
    """A reader of one of ``names``; for any other, an error that begins with ``words``."""
    names = tuple(names)

    def read(value: str) -> str:
        if value not in names:
            raise SettingsError(f"{words} {', '.join(names)}; got {value!r}.{nearest(value, names)}")
        return value

    return read


def whole_numbers(option: str, such: str) -> Callable[[Any], list[int]]:
    """A reader of whole numbers and ranges with commas between them; its error gives ``such`` as an example.

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
                f"--{option} expects whole numbers from 1 to {MOST:,} with commas between them, such as {such}; got "
                f"{value!r}."
            )
        return [number for each in ranges for number in each] or [int(number) for number in value]

    return read
