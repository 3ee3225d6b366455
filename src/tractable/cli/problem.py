"""What is to be learnt from: a built-in example, or a table of one's own with a linear model or a network."""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tractable.core import Data, Model
from tractable.data import tables
from tractable.methods import Method
from tractable.models import gallery, linear, network
from tractable.models.network import PRIORS
from tractable.pages.held_out import Score, held_out_scores
from tractable.results.posterior import Posterior
from tractable.results.predict import Prediction
from tractable.tools import checkpoint
from tractable.tools.errors import CheckpointError, DataError, SettingsError

RUN = "run.json"
HIDDEN = "50"  # widths of a network's hidden layers
MODELS = ("glm", "mlp")
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
        shifted: inputs of rows from elsewhere, which predictions should be less sure of.
    """

    name: str
    model: Model
    data: Data
    held_out: Data | None
    spec: dict[str, Any]
    encoder: tables.Encoder | None = None
    shifted: np.ndarray | None = None

    @property
    def label(self) -> str:
        rows, count = self.data.size, len(self.model.names)
        return f"{self.name} ({rows:,} rows, {count} parameter{'s' * (count > 1)})"


def from_example(name: str) -> Problem:
    """A built-in example."""
    model, data, held_out = gallery.example(name).build()
    return Problem(name, model, data, held_out, {"example": name})


@dataclass(frozen=True)
class Choices:
    """What a command line says of a table, but for its path and target."""

    held_out: float = 0.2
    missing: str = "raise"
    family: str | None = None
    model: str = "glm"
    hidden: str | None = None
    prior: str | None = None
    shifted: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise DataError(f"--held-out expects a share of the rows in [0, 1); got {self.held_out:g}.")
        if self.missing not in tables.MISSING:
            raise SettingsError(f"--missing is {', '.join(tables.MISSING)}; got {self.missing!r}.")
        if self.model not in MODELS:
            raise SettingsError(
                f"--model is {' or '.join(MODELS)}; got {self.model!r}. tractable fit takes gaussian-mixture, vae "
                "and belief-network too."
            )
        if self.hidden is not None and self.model != "mlp":
            raise SettingsError(f"--hidden is for --model mlp; {self.model} has no hidden layers.")
        if self.prior is not None and self.model != "mlp":
            raise SettingsError(f"--prior is of a network's weights, for --model mlp; got --model {self.model}.")
        if self.shifted is not None and self.held_out == 0:
            raise SettingsError("--shifted is held against held-out rows: give --held-out a share above 0.")

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the hidden layers."""
        text = HIDDEN if self.hidden is None else self.hidden
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise SettingsError(
                f"--hidden expects widths of layers with commas between them, such as 50 or 50,50; got {text!r}."
            )
        return tuple(map(int, parts))

    @property
    def weights_prior(self) -> str | float:
        """Of the network's weights: a name, or the sd of them all."""
        text = PRIORS[0] if self.prior is None else self.prior.strip()
        if text in PRIORS:
            return text
        with contextlib.suppress(ValueError):
            if 0 < float(text) < float("inf"):
                return float(text)
        raise SettingsError(f"--prior expects {', '.join(PRIORS)} or an sd above 0, such as 0.5; got {text!r}.")


def from_table(path: Path, target: str | None, chosen: Choices = Choices()) -> Problem:
    """A table with the model that was chosen for it; inputs standardised by the rows fitted."""
    frame = tables.read_table(path)
    if target is None:
        names = ", ".join(map(repr, frame.columns[:12]))
        raise DataError(f"--target is missing: which column of {path} is to be explained? It has {names}.")
    network_of: dict[str, Any] = {}
    if chosen.model == "mlp":
        network_of = {"hidden": list(chosen.widths), "prior": chosen.weights_prior}
    with typed():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said again by the second fit
            every = tables.fit_encoder(frame, target, chosen.missing, chosen.family)
        if chosen.missing != "raise":
            needed = list(frame.columns) if chosen.missing == "drop" else [target]
            frame = frame.loc[~frame[needed].replace([np.inf, -np.inf], np.nan).isna().any(axis=1)]
        kept, rest = split(frame, target, every.target.family, chosen.held_out)
        encoder = tables.fit_encoder(kept, target, chosen.missing, every.target.family)
        held = as_rows(encoder, rest) if len(rest) else None
        data = as_rows(encoder, kept)
        shifted = None if chosen.shifted is None else inputs(encoder, chosen.shifted)
    spec = {
        "table": str(path.resolve()),
        "target": target,
        "held_out": chosen.held_out,
        "missing": chosen.missing,
        "family": every.target.family,
        "model": chosen.model,
        **network_of,
        "shifted": None if chosen.shifted is None else str(chosen.shifted.resolve()),
        "encoder": encoder.to_dict(),
    }
    name = path.name.split(".")[0] or "table"
    return Problem(name, model_of(encoder, chosen.model, **network_of), data, held, spec, encoder, shifted)


def problem_from(table: Path | None, example: str | None, target: str | None, **choices: Any) -> Problem:
    """The example or the table that was asked for."""
    chosen = Choices(**choices)
    if example is not None and table is None:
        own = ("model", "hidden", "prior", "shifted")
        if any(choices.get(name) not in (None, "glm") for name in own):
            raise SettingsError(
                "--model, --hidden, --prior and --shifted are for a table; an example has a model of its own."
            )
        return from_example(example)
    if table is not None and example is None:
        return from_table(table, target, chosen)
    got = "neither" if table is None else "both"
    raise DataError(f"Expected either a table with --target, or --example; got {got}.")


def missing_of(missing: str | None, drop: bool) -> str | None:
    """What --missing and --drop-missing say together."""
    if drop and missing not in (None, "drop"):
        raise SettingsError(f"--drop-missing and --missing {missing} contradict each other; give one of them.")
    return "drop" if drop else missing


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """Within, the remedies that sentences about tables name are those of a command line."""
    try:
        yield
    except DataError as error:
        text = str(error).replace("missing='drop' when fitting", "--drop-missing")
        raise DataError(text.replace("missing='impute' when fitting", "--missing impute")) from None


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


def model_of(
    encoder: tables.Encoder, model: str = "glm", hidden: Sequence[int] | None = None, prior: str | float = PRIORS[0]
) -> Model:
    """The model of an encoded table: generalised linear ("glm"), or a network with hidden layers ("mlp")."""
    family, features = encoder.target.family, len(encoder.features)
    classes = len(encoder.target.classes) if family == "categorical" else None
    if model == "glm":
        return linear.generalised_linear(features, family, classes)
    return network.neural_network(network.mlp(features, tuple(hidden or ()), classes or 1), family, prior=prior)


def model_in(spec: dict[str, Any]) -> tuple[Model, tables.Encoder]:
    """The model and the encoder of a run that was fitted to a table, without reading the table."""
    encoder = tables.Encoder.from_dict(spec["encoder"])
    model = model_of(encoder, spec.get("model", Choices.model), spec.get("hidden"), spec.get("prior", PRIORS[0]))
    return model, encoder


def suits(method: Method, problem: Problem) -> None:
    """A sentence where a method cannot take the problem's model."""
    if problem.spec.get("model") == "mlp" and method.label == "rejection":
        raise SettingsError(
            f"Rejection waits until a draw from the prior explains the data, which the {len(problem.model.names):,} "
            "numbers of a network never do. Use bbb, ensemble, laplace or nuts."
        )


def default_method(problem: Problem) -> str:
    """What a problem is learnt by where nothing is said."""
    return "bbb" if problem.spec.get("model") == "mlp" else "nuts"


def inputs(encoder: tables.Encoder, path: Path) -> np.ndarray:
    """X of a table's every row, whether or not it holds the target."""
    with typed():
        return tables.encode(encoder, tables.read_table(path).drop(columns=encoder.target.name, errors="ignore")).x


def as_rows(encoder: tables.Encoder, frame: pd.DataFrame) -> Data:
    """The rows of a table as Data."""
    x, y = tables.encode(encoder, frame)
    return Data(y, x)


def problem_of(spec: dict[str, Any]) -> Problem:
    """The problem of a run that was begun before."""
    if "example" in spec:
        return from_example(spec["example"])
    return from_table(Path(spec["table"]), spec["target"], choices_of(spec))


def choices_of(spec: dict[str, Any]) -> Choices:
    """What a run of a table was told; where an older version wrote less, what that version did."""
    hidden, prior, shifted = (spec.get(name) for name in ("hidden", "prior", "shifted"))
    return Choices(
        held_out=spec["held_out"],
        missing=spec.get("missing", "drop" if spec.get("drop") else "raise"),
        family=spec["family"],
        model=spec.get("model", Choices.model),
        hidden=None if hidden is None else ",".join(map(str, hidden)),
        prior=None if prior is None else str(prior),
        shifted=None if shifted is None else Path(shifted),
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


def scores(posterior: Posterior, problem: Problem) -> list[Score]:
    """How well held-out rows are predicted, in the target's own units."""
    if problem.held_out is None:
        return []
    return held_out_scores(posterior, problem.held_out, problem.encoder, problem.shifted).scores


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
