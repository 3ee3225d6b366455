"""glm and mlp: models of a built-in example, or of a table's target given its other columns."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from tractable.cli.readers import Arguments, Option, one_of, share, sizes
from tractable.cli.show import ROWS
from tractable.cli.task import Kind, Request, Result, Task, held_back, posterior_of, split
from tractable.core import Data, Model
from tractable.data.encoder import MISSING, Encoder, decode, decode_sd, encode, explains, fit_encoder, unexplained
from tractable.data.files import read_table
from tractable.data.shards import last_apart, manifest_of
from tractable.data.targets import COUNTS
from tractable.methods import Method
from tractable.methods.inla import suited
from tractable.models import gallery, linear, network
from tractable.models.censoring import with_censoring
from tractable.models.families import CLASSES, with_offset
from tractable.models.formula import formula_model
from tractable.models.levels import with_levels
from tractable.models.network import PRIORS
from tractable.models.several import several, several_linear
from tractable.pages import parameters
from tractable.pages.exhibit import Exhibit, largest
from tractable.pages.held_out import held_out_scores, score_table
from tractable.pages.page import write_page
from tractable.pages.terminal import to_terminal
from tractable.results.effects import effects
from tractable.results.loading import load
from tractable.results.predict import Prediction
from tractable.tools.errors import DataError, SettingsError
from tractable.tools.words import counted, tell


def weights_prior(value: str | float) -> str | float:
    """Reads --prior: a name, or the sd of all weights."""
    text = str(value).strip()
    if text in PRIORS:
        return text
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise SettingsError(f"--prior expects {', '.join(PRIORS)} or an sd above 0, such as 0.5; got {text!r}.")


CENSORING = ("censored", "event", "until")
OPTIONS = {
    "held_out": Option(share, 0.2),
    "missing": Option(one_of(MISSING, "--missing is"), "raise"),
    "family": Option(),
    "exclude": Option(list, ()),
    **dict.fromkeys(("weights", "exposure", *CENSORING, "sep", "decimal"), Option()),
    "shifted": Option(lambda path: str(Path(path).resolve())),
}
FORMULA = {"formula": Option()}
VERIFY = {"verify": Option(one_of(("auto", "thorough", "none"), "--verify is"), "auto")}
NETWORK = {"hidden": Option(sizes("hidden", "50 or 50,50"), "50"), "prior": Option(weights_prior, PRIORS[0])}
SCORED = 10_000  # rows of those held out of shards by which predictions are scored: they are in random order
PACKED = ("exclude", "weights", "exposure", "formula", *CENSORING, "shifted", "family")
OWN_MODEL = "--model, --hidden, --prior, --formula and --shifted are for a table; an example has a model of its own."


def read(kind: Kind, arguments: Arguments) -> Task:
    """The task of a built-in example, or of a table; inputs are standardised by the rows to fit."""
    choices = kind.ask(arguments)
    if choices["shifted"] is not None and choices["held_out"] == 0:
        raise SettingsError("--shifted is held against held-out rows: give --held-out a share above 0.")
    table, example = arguments.get("table"), arguments.get("example")
    if (table is None) == (example is None):
        got = "neither" if table is None else "both"
        raise DataError(f"Expected either a table with --target, or --example; got {got}.")
    if example is not None:
        return of_example(kind, example, choices)
    return of_table(kind, Path(str(table)), arguments.get("target"), choices)


def of_example(kind: Kind, name: str, choices: Arguments) -> Task:
    """The task of a built-in example, with its own model."""
    if choices["shifted"] is not None or choices.get("formula"):
        raise SettingsError(OWN_MODEL)
    model, data, held_out = gallery.example(name).build()
    label = f"{name} ({size_of(data, model)})"
    spec = {"example": name} | {option: choices[option] for option in VERIFY if option in choices}
    return Task(kind, name, label, choices, spec, data, held_out, model)


def of_shards(kind: Kind, path: Path, target: str | None, choices: dict[str, Any]) -> Task:
    """A table that ``tractable pack --target`` encoded. Where it is not held in memory whole files are held out."""
    about = manifest_of(path)
    if about is None or about.get("encoder") is None:
        raise DataError(f"{path} is a folder. Expected a .csv or .parquet file, or what tractable pack --target made.")
    encoder = Encoder.from_dict(about["encoder"])
    names = ",".join(aim.name for aim in encoder.targets)
    said = {name: value for name, value in choices.items() if name in PACKED and value not in (None, "", (), [])}
    said |= {} if target in (None, names) else {"target": target}
    if said.pop("family", encoder.target.family) != encoder.target.family:
        said["family"] = choices["family"]
    if said:
        raise DataError(
            f"{path} was packed to explain {names}: leave --{next(iter(said))} out, or pack the table anew."
        )
    choices = choices | {"family": encoder.target.family}
    whole, share = Data(path), choices["held_out"]
    if whole.resident:
        back = held_back(whole.size, share)
        data, held = whole.take(~back), whole.take(back) if back.any() else None
    else:
        cut = [last_apart(leaf, share) for leaf in jax.tree.leaves(whole.rows)]
        tree = jax.tree.structure(whole.rows)
        kept, rest = (jax.tree.unflatten(tree, list(side)) for side in zip(*cut, strict=True))
        weights = None if whole.weights is None else np.split(whole.weights, [len(jax.tree.leaves(kept)[0])])
        data = Data(*kept, weights=None if weights is None else weights[0], resident=False)
        weighed = None if weights is None else weights[1]
        held = Data(*rest, weights=weighed, resident=False) if jax.tree.leaves(rest) else None
        held = None if held is None else held.take(slice(0, SCORED))
    model = model_of(encoder, choices)
    return Task.of_file(
        kind, path, size_of(data, model), choices, {"target": names}, encoder,
        data=data, held_out=held, model=model,
    )  # fmt: skip


def of_table(kind: Kind, path: Path, target: str | None, choices: dict[str, Any]) -> Task:
    """A table's target, and the other columns that are to explain it."""
    if path.is_dir():
        return of_shards(kind, path, target, choices)
    frame = read_table(path, choices["sep"], choices["decimal"])
    formula = choices.get("formula") or ""
    if target is None and not formula:
        names = ", ".join(map(repr, frame.columns[:12]))
        raise DataError(f"--target is missing: which column of {path} is to be explained? It has {names}.")
    missing, shifted = choices["missing"], choices["shifted"]
    columns: dict[str, Any] = {name: choices[name] or "" for name in ("weights", "exposure", *CENSORING)}
    columns |= {"exclude": choices["exclude"], "formula": formula, "pooled": choices.get("hidden") is None}
    names = targets_in(target or "", [str(name) for name in frame.columns])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the second fit_encoder warns again
        whole = fit_encoder(frame, names, missing, choices["family"], **columns)
    found, names = whole.target, [aim.name for aim in whole.targets]
    if missing != "raise":
        used = frame.columns if whole.formula is None else whole.formula.table.columns
        needed = [name for name in used if name not in choices["exclude"]] if missing == "drop" else names
        bounds = (found.name, found.beside) if found.censoring == "upper" else ()  # either bound may be missing
        needed = [name for name in needed if name not in bounds]
        frame = frame.loc[~frame[needed].replace([np.inf, -np.inf], np.nan).isna().any(axis=1)]
    needed = None if whole.formula is None else whole.formula.needed(frame)
    kept, rest = split(frame, found.name, bool(found.classes), choices["held_out"], needed)
    encoder = fit_encoder(kept, names, missing, found.family, **columns)
    if found.reason:
        tell(f"{whole.explained} holds {found.reason}: --family {found.family}. Choose another with --family.")
    if choices.get("hidden") is None and scale_of(encoder) is None:
        tell(
            f"{len(encoder.features)} columns have {encoder.rows:,.0f} rows, fewer than {linear.FEW_ROWS} each: the "
            "weights' prior sd is one for all, and learnt."
        )
    held_out = as_rows(encoder, rest) if len(rest) else None
    data, elsewhere = as_rows(encoder, kept), None if shifted is None else inputs(encoder, Path(shifted), choices)
    choices = choices | {"family": found.family}
    model, about = model_of(encoder, choices), {"target": ",".join(names)}
    return Task.of_file(
        kind, path, f"{size_of(data, model)}, family {found.family}", choices, about, encoder,
        data=data, held_out=held_out, model=model, shifted=elsewhere,
    )  # fmt: skip


def targets_in(text: str, columns: Sequence[str]) -> list[str]:
    """The columns that --target names: one, or several with commas between them.

    >>> targets_in("height, weight", ["height", "weight", "age"]), targets_in("a,b", ["a,b", "c"])
    (['height', 'weight'], ['a,b'])
    """
    parts = [part.strip() for part in text.split(",")]
    return [text] * bool(text) if text in columns or not set(parts) & set(columns) else parts


def size_of(data: Data, model: Model) -> str:
    """How many rows and parameters, in words."""
    return f"{data.size:,} rows, {counted(len(model.names), 'parameter')}"


def model_of(encoder: Encoder, choices: Arguments) -> Model:
    """The model of an encoded table: generalised linear, or a network if hidden layers were asked for."""
    if encoder.formula is not None:
        return formula_model(encoder)
    family, features, classes = encoder.target.family, len(encoder.features), len(encoder.target.classes)
    names = [aim.name for aim in encoder.targets]
    if choices.get("hidden") is None and encoder.others:
        model = several_linear(names, features, family, scale_of(encoder))
    elif choices.get("hidden") is None:
        number = classes if family in CLASSES else None
        model = linear.generalised_linear(features, family, number, scale_of(encoder))
    else:
        family = "categorical" if family in CLASSES else family  # networks have no ordered family
        outputs = classes if family == "categorical" else len(names)
        mlp = network.mlp(features, tuple(choices["hidden"]), outputs)
        if encoder.others and family != "normal":
            raise SettingsError(
                f"--model mlp explains several targets as normal; got {family!r}. Say --family normal, or one --target."
            )
        likelihood, extra = several(family, len(names)) if encoder.others else (family, None)
        model = network.neural_network(mlp, likelihood, prior=choices.get("prior") or PRIORS[0], extra=extra)
    model = with_censoring(model) if encoder.target.censoring else model
    model = with_offset(model) if family in COUNTS else model
    if encoder.levels:
        pooled = [column for column in encoder.columns if column.kind == "pooled"]
        rows, spreads = [np.array([*column.shares, 0.0]) for column in pooled], [column.sd for column in pooled]
        model = with_levels(model, encoder.levels, rows, spreads)
    return model


def scale_of(encoder: Encoder) -> float | None:
    """The prior sd of a linear model's weights; None where it is learnt."""
    if encoder.levels or encoder.formula is not None:  # such models have scales of their own
        return 2.5
    return linear.weight_scale_for(len(encoder.features), encoder.rows, encoder.target.family)


def model_in(spec: Arguments) -> tuple[Model, Encoder]:
    """The model and encoder of a run on a table, from its saved spec alone."""
    encoder = Encoder.from_dict(spec["encoder"])
    return model_of(encoder, spec), encoder


def inputs(encoder: Encoder, path: Path, choices: Arguments) -> Any:
    """The model's inputs for every row of a table, which need not hold the target."""
    frame = read_table(path, choices.get("sep"), choices.get("decimal"))
    return encode(encoder, unexplained(encoder, frame)).given


def as_rows(encoder: Encoder, frame: pd.DataFrame) -> Data:
    """A table's rows as the model's data."""
    rows = encode(encoder, frame)
    return Data(rows.y, rows.given, weights=rows.weights)


def learn(task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
    """Fit the model, or load its finished fit."""
    return Result(posterior_of(task, method, seed, folder, progress, task.choices.get("verify", "auto")))


def page(folder: Path, task: Task, result: Result) -> None:
    """Write the report."""
    title = f"{task.name} by {type(result.posterior.method).__name__}"
    held = {"held_out": task.held_out, "encoder": task.encoder, "shifted": task.shifted, "notes": task.spec["notes"]}
    write_page(folder, result.posterior, title=title, **held)


def tables(task: Task, result: Result) -> Iterator[Any]:
    """Effects, parameters and scores of held-out rows."""
    posterior = result.posterior
    told = effects(posterior, task.encoder)
    if told is not None:
        far = np.abs(told["mean"].to_numpy()) / np.maximum(np.nan_to_num(told["sd"].to_numpy()), 1e-300)
        kept, fewer = largest(far, ROWS, "furthest from 0")
        yield to_terminal(parameters.effects_table(told.iloc[kept], task.encoder))
        if fewer:
            yield f"{fewer.strip()}\n"
    # The effects stand for the weights: no need to list both.
    names = None if told is None else list(told.index)
    numbers = parameters.numbers(posterior, task.encoder, told=names)
    yield to_terminal(numbers, ROWS)
    if numbers.note:
        yield f"{numbers.note}\n"
    if others := int((~parameters.listed(posterior.model)).sum()):
        what = "effects of groups" if posterior.model.labels else "weights of the network"
        yield f"{others:,} {what}: see the report.\n"
    if task.held_out is not None:
        found = held_out_scores(posterior, task.held_out, task.encoder, task.shifted)
        yield to_terminal(Exhibit("Held-out rows", [score_table(found.scores)]))
        if found.misfit:
            yield f"[yellow]Note: {found.misfit}[/yellow]\n"


def predict(run: Path, spec: Arguments, new: Path, request: Request) -> pd.DataFrame:
    """Predictions of the target for each row of a table."""
    if "example" in spec:
        raise DataError(f"{run} is of the example {spec['example']!r}; predict expects a run of a table.")
    encoder = Encoder.from_dict(spec["encoder"])
    # A formula's model is loaded from the folder, with the priors that it was given.
    model = model_of(encoder, spec) if encoder.formula is None else None
    posterior, x, kept_out = load(run, model), inputs(encoder, new, spec), None
    if request.calibrate is not None:
        frame = read_table(request.calibrate, spec.get("sep"), spec.get("decimal"))
        if encoder.target.censoring:
            raise DataError("--calibrate measures errors, and of rows that are censored there are none; leave it out.")
        if not explains(encoder, frame):
            raise DataError(
                f"--calibrate needs rows with the target {encoder.explained}; {request.calibrate} lacks it."
            )
        kept_out = as_rows(encoder, frame)
    return predictions(encoder, posterior.predict(x, request.level, calibrate=kept_out))


def predictions(encoder: Encoder, prediction: Prediction) -> pd.DataFrame:
    """One row for each predicted row, in the table's units and classes."""
    if prediction.probabilities is None:
        units: dict[str, Callable] = {
            "mean": decode, "sd": decode_sd, "aleatoric": decode_sd,
            "epistemic": decode_sd, "lower": decode, "upper": decode,
        }  # fmt: skip
        told = {name: of(encoder, getattr(prediction, name)) for name, of in units.items()}
        if encoder.others:  # the columns of one target side by side
            told = {
                f"{name}({aim.name})": values[:, k]
                for k, aim in enumerate(encoder.targets)
                for name, values in told.items()
            }
        return pd.DataFrame(told)
    chances = np.asarray(prediction.probabilities, np.float64)
    likeliest = chances.argmax(-1)
    # With two classes there is one column: p and 1 − p have the same sd.
    epistemic = prediction.epistemic
    if epistemic.ndim == 2:
        epistemic = np.take_along_axis(epistemic, likeliest[:, None], 1)[:, 0]
    columns = {encoder.target.name: decode(encoder, likeliest)}
    columns |= {f"p({label})": chances[:, i] for i, label in enumerate(encoder.target.classes)}
    return pd.DataFrame(columns | {"epistemic": epistemic})


def usual(task: Task) -> str | None:
    """Nested Laplace for a table whose weights it can integrate: exact if y is normal, else with a correction."""
    return "inla" if task.encoder is not None and any(suited(task.model, task.data)) else None


GLM = Kind(
    "glm", "nuts", OPTIONS | FORMULA | VERIFY,
    {
        "hidden": "--hidden is for --model mlp; glm has no hidden layers.",
        "prior": "--prior is of a network's weights, for --model mlp; got --model glm.",
    },
    read, learn, page, tables, predict, side_by_side="map,mala,nuts,sgld", calibrates=True,
    usual=usual,
)  # fmt: skip
MLP = dataclasses.replace(
    GLM, name="mlp", method="bbb", options=OPTIONS | NETWORK, refusals={"example": OWN_MODEL},
    unsuitable={
        "rejection": "Rejection waits until a draw from the prior explains the data, which the many numbers of a "
        "network never do. Use bbb, ensemble, laplace or nuts."
    },
    side_by_side="map,bbb,ensemble", has_reference=False,
)  # fmt: skip
