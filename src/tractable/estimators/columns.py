"""Data frames with text and dates in estimators, and a linear model's numbers in the user's names and units."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tractable.core.arrays import columns_of
from tractable.core.errors import DataError
from tractable.core.model import Model
from tractable.estimators.rows import Scaling
from tractable.tables.columns import Column, fit_column, kind_of, lacks
from tractable.tables.encoder import Encoder, encode
from tractable.tables.faults import describe_gaps
from tractable.tables.files import as_table
from tractable.tables.models import labels_of, with_labels
from tractable.tables.targets import Target


def mixed_columns(table: object) -> Encoder | None:
    """The encoder of a data frame that has columns of text or dates; None for numbers and True/False alone.

    Raises:
        DataError: values are missing, or no column is left to learn from.
    """
    if columns_of(table) is None:
        return None
    frame = as_table(table)
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1).reset_index(drop=True)
    absent = {name: lacks(frame[name]) for name in frame.columns}
    kinds = {kind_of(frame[name][~absent[name]]) for name in frame.columns if not absent[name].all()}
    if kinds <= {"number", "boolean"}:
        return None
    if faults := [describe_gaps(frame[name], where) for name, where in absent.items() if where.any()]:
        remedy = "Fill them in, or use tractable.fit(table, target, missing='impute'), which does so."
        raise DataError("\n".join([*faults, remedy]))
    columns = tuple(column for name in frame.columns for column in fit_column(frame[name], impute=False))
    if not columns:
        raise DataError("Every column of X is constant or identifies the rows: there is nothing to learn from.")
    return Encoder(columns)


def encode_rows(encoder: Encoder, table: object) -> np.ndarray:
    """The rows of a data frame as numbers (n, D)."""
    if columns_of(table) is None:
        raise DataError(
            f"X was a data frame with the columns {', '.join(map(repr, dict.fromkeys(encoder.names)))} in the fit; "
            f"expected such a frame, got {type(table).__name__}."
        )
    return encode(encoder, as_table(table)).x


def description(
    columns: Encoder | None, names: Sequence[str] | np.ndarray | None, scaling: Scaling, family: str,
    classes: Sequence = (), level: float = 1.0,
) -> Encoder:  # fmt: skip
    """An encoder that describes an estimator's columns and target as those of a table."""
    if columns is None:
        names = [f"x{i}" for i in range(len(scaling.centre))] if names is None else names
        moments = zip(names, scaling.centre.tolist(), scaling.scale.tolist(), strict=True)
        columns = Encoder(tuple(Column(str(name), "number", mean, sd) for name, mean, sd in moments))
    units = zip(np.atleast_1d(scaling.middle).tolist(), np.atleast_1d(scaling.spread).tolist(), strict=True)
    aims = [Target(f"y{k}", family, mean, sd, tuple(classes), level) for k, (mean, sd) in enumerate(units)]
    return replace(columns, target=aims[0], others=tuple(aims[1:]))


def with_names(encoder: Encoder, model: Model) -> Model:
    """The model with the columns' names for its weights; equal names give the same ``Model``."""
    labels = labels_of(encoder, model)
    return with_labels(model, list(labels), list(labels.values()))
