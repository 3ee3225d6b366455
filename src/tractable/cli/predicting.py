"""Predictions of new rows by a run, and the file they are left in."""

from pathlib import Path
from typing import Any

import pandas as pd
import typer

from tractable.cli import ladders, mixture_results, models
from tractable.cli.problem import as_rows, inputs, model_in, predictions, typed
from tractable.data.tables import read_table
from tractable.results.loading import load
from tractable.tools.errors import DataError


def of_target(run: Path, spec: dict[str, Any], new: Path, level: float, calibrate: Path | None) -> pd.DataFrame:
    """The target of each row of a table, by a run that explained it."""
    model, encoder = model_in(spec)
    posterior, x, kept_out = load(run, model), inputs(encoder, new), None
    if calibrate is not None:
        frame = read_table(calibrate)
        if encoder.target.name not in frame:
            raise DataError(f"--calibrate needs rows with the target {encoder.target.name!r}; {calibrate} lacks it.")
        with typed():
            kept_out = as_rows(encoder, frame)
    return predictions(encoder, posterior.predict(x, level, calibrate=kept_out))


def of_rows(run: Path, spec: dict[str, Any], new: Path, array: str | None) -> pd.DataFrame:
    """What is behind each row, and its log density, by a run that explained no column."""
    if spec["model"] == models.MIXTURE:
        return mixture_results.predictions(spec, run, new)
    return ladders.predictions(spec, run, new, array)


def leave(found: pd.DataFrame, out: Path, what: str = "predictions") -> None:
    """Write a table of predictions."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        found.to_csv(out, index=False)
    else:
        found.to_parquet(out, index=False)
    typer.echo(f"{len(found)} {what} in {out}")
