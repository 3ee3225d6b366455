"""What is to be learnt from: a built-in example, or a table of one's own with a generalised linear model."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tractable import gallery
from tractable.core import Data, Model
from tractable.models import linear
from tractable.posterior import Posterior
from tractable.predict import Prediction
from tractable.tools import checkpoint, tables
from tractable.tools.errors import CheckpointError, DataError

RUN = "run.json"
SPLIT_SEED = 0  # which rows are held out is a property of the table, not of a run


@dataclass(frozen=True, eq=False)
class Problem:
    """A model and its data.

    Attributes:
        name: short, for the run's folder.
        model, data: as for ``infer``.
        held_out: rows that no method sees; None where there are none.
        spec: what JSON can hold and ``problem_of`` makes this from again.
        encoder: of a table.
    """

    name: str
    model: Model
    data: Data
    held_out: Data | None
    spec: dict[str, Any]
    encoder: tables.Encoder | None = None

    @property
    def label(self) -> str:
        rows, count = self.data.size, len(self.model.names)
        return f"{self.name} ({rows:,} rows, {count} parameter{'s' * (count > 1)})"


def from_example(name: str) -> Problem:
    """A built-in example."""
    model, data, held_out = gallery.example(name).build()
    return Problem(name, model, data, held_out, {"example": name})


def from_table(
    path: Path, target: str | None, *, held_out: float = 0.2, drop: bool = False, family: str | None = None
) -> Problem:
    """A table with the generalised linear model that fits its target; inputs standardised by the rows fitted."""
    frame = tables.read_table(path)
    if target is None:
        names = ", ".join(map(repr, frame.columns[:12]))
        raise DataError(f"--target is missing: which column of {path} is to be explained? It has {names}.")
    if not 0 <= held_out < 1:
        raise DataError(f"--held-out expects a share of the rows in [0, 1); got {held_out:g}.")
    missing = "drop" if drop else "raise"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said again by the second fit
            every = tables.fit_encoder(frame, target, missing, family)
    except DataError as error:
        raise DataError(str(error).replace("missing='drop' when fitting", "--drop-missing")) from None
    frame = frame.replace([np.inf, -np.inf], np.nan).dropna() if drop else frame
    kept, rest = split(frame, target, every.target.family, held_out)
    encoder = tables.fit_encoder(kept, target, missing, every.target.family)
    spec = {
        "table": str(path.resolve()),
        "target": target,
        "held_out": held_out,
        "drop": drop,
        "family": every.target.family,
        "encoder": encoder.to_dict(),
    }
    name = path.name.split(".")[0] or "table"
    held = as_rows(encoder, rest) if len(rest) else None
    return Problem(name, model_of(encoder), as_rows(encoder, kept), held, spec, encoder)


def split(frame: pd.DataFrame, target: str, family: str, share: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows to fit, rows held out). Of every class at least one row is fitted."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(frame))
    chosen = np.zeros(len(frame), bool)
    chosen[order[: min(round(share * len(frame)), len(frame) - 2)]] = True
    if family != "normal":
        labels = frame[target].astype(str).to_numpy()
        unseen = ~np.isin(labels, labels[~chosen])
        chosen &= ~unseen
    return frame.loc[~chosen], frame.loc[chosen]


def model_of(encoder: tables.Encoder) -> Model:
    """The generalised linear model of an encoded table."""
    family = encoder.target.family
    classes = len(encoder.target.classes) if family == "categorical" else None
    return linear.generalised_linear(len(encoder.features), family, classes)


def as_rows(encoder: tables.Encoder, frame: pd.DataFrame) -> Data:
    """The rows of a table as Data."""
    x, y = tables.encode(encoder, frame)
    return Data(y, x)


def problem_of(spec: dict[str, Any]) -> Problem:
    """The problem of a run that was begun before."""
    if "example" in spec:
        return from_example(spec["example"])
    return from_table(
        Path(spec["table"]), spec["target"], held_out=spec["held_out"], drop=spec["drop"], family=spec["family"]
    )


def write_run(folder: Path, entries: dict[str, Any]) -> None:
    """What a folder is of: enough to go on, to report and to predict."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(folder / RUN, json.dumps(entries, indent=1).encode())


def read_run(folder: Path) -> dict[str, Any]:
    """What ``write_run`` wrote."""
    try:
        return json.loads((folder / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} is no run: expected {RUN} in it. Runs are made by tractable fit and tractable compare."
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder / RUN} is damaged: {error}. Fit anew.") from error


class Score(NamedTuple):
    name: str
    value: float
    meaning: str


def scores(posterior: Posterior, problem: Problem) -> list[Score]:
    """How well held-out rows are predicted, in the target's own units."""
    data, encoder = problem.held_out, problem.encoder
    if data is None:
        return []
    unit = encoder.target.sd if encoder is not None and encoder.target.family == "normal" else 1.0
    # A density in other units is another number: p(y) = p(standardised y) / sd.
    density = float(np.mean(posterior.log_predictive(data), dtype=np.float64) - np.log(unit))
    out = [Score("log predictive", density, "mean log predictive density of a row, in nats")]
    prediction, y = posterior.predict(data.given), np.asarray(data.y)
    if prediction.probabilities is not None:
        right = float(np.mean(prediction.probabilities.argmax(-1) == y))
        return [*out, Score("accuracy", right, f"share of {data.size} rows whose likeliest class is theirs")]
    error = float(unit * np.sqrt(np.mean(np.square(prediction.mean - y))))
    inside = float(np.mean((prediction.lower <= y) & (y <= prediction.upper)))
    return [
        *out,
        Score("RMSE", error, "root of the mean squared error of the predictive mean"),
        Score("coverage", inside, "share of rows inside their 90 % interval"),
    ]


def predictions(encoder: tables.Encoder, prediction: Prediction) -> pd.DataFrame:
    """A row for each row predicted, in the table's own terms."""
    if prediction.probabilities is None:
        units: dict[str, Callable] = {
            "mean": tables.decode, "sd": tables.decode_sd, "aleatoric": tables.decode_sd,
            "epistemic": tables.decode_sd, "lower": tables.decode, "upper": tables.decode,
        }  # fmt: skip
        return pd.DataFrame({name: of(encoder, getattr(prediction, name)) for name, of in units.items()})
    chances = np.asarray(prediction.probabilities, np.float64)
    likeliest = chances.argmax(-1)
    # For two classes the sd of p and of 1 − p is one number.
    epistemic = prediction.epistemic
    if epistemic.ndim == 2:
        epistemic = np.take_along_axis(epistemic, likeliest[:, None], 1)[:, 0]
    columns = {encoder.target.name: tables.decode(encoder, likeliest)}
    columns |= {f"p({label})": chances[:, i] for i, label in enumerate(encoder.target.classes)}
    return pd.DataFrame(columns | {"epistemic": epistemic})
