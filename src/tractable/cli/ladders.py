"""Variational autoencoders and belief networks of a file's rows: their fits, codes and bounds."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.console import Group

from tractable.checks.ladders import held_out_check
from tractable.checks.report import with_checks
from tractable.cli.readers import Arguments, Option, one_of, refusals, share, sizes
from tractable.cli.task import Kind, Request, Result, Task, held_back, parted, posterior_of
from tractable.core import Data
from tractable.data import support
from tractable.data.columns import Column
from tractable.data.encoder import Encoder, fit_numbers
from tractable.data.files import NEW, USUAL, Source, places, read_rows
from tractable.methods import Method
from tractable.methods.amortised import Amortised
from tractable.models.ladder import Ladder
from tractable.models.ladders import hierarchical, latent_gaussian, sigmoid_belief_network
from tractable.models.layers import categorical
from tractable.pages.exhibit import Cell, Exhibit, Table
from tractable.pages.ladders import layers
from tractable.pages.page import write_page
from tractable.pages.terminal import to_terminal
from tractable.results.encoding import Encoded, held_out
from tractable.results.loading import load
from tractable.results.posterior import Posterior
from tractable.tools.errors import DataError, SettingsError
from tractable.tools.words import counted, listing, tell

METHODS = ("autoencoding", "importance-weighted", "nvil", "vimco", "wake-sleep", "reweighted-wake-sleep")
NARROW, FEW, MANY = 100, [100], [400]  # a vae's hidden widths: FEW for rows of fewer than NARROW numbers, else MANY
SCORED = 1000  # at most this many held-out rows are scored
DRAWS = 100  # draws of h for each row's bound
WRITTEN = 50  # codes of up to this many units are written; with more units, the first layer's alone
GAPS = "Use --missing drop, which leaves such rows out, or mend them: no model is fitted to rows with gaps. "
IMPUTE = "Once a model is fitted, posterior.impute(x) in Python fills in what new rows lack."
EXAMPLES = {"vae": "20, the numbers behind a row", "belief-network": "200,200, the units of its hidden layers"}
UNITS = {"vae": ("z", "z{}_"), "belief-network": ("h{}_", "h{}_")}  # column names of codes: for one layer, for several
NOT_OF_LADDERS = {
    "target": "it explains no column, it finds what is behind whole rows; leave --target out.",
    "example": "it takes a file of your own.",
    "prior": "its weights have none: it is fitted by maximum likelihood.",
    "shifted": "it predicts no target; tractable predict gives rows a bound on their log density.",
}


def of_binary_rows(value: str) -> str:
    """Reads --family of a belief network, which has one."""
    if value != "bernoulli":
        raise SettingsError(f"A belief-network's rows are bernoulli; got --family {value}. --model vae has others.")
    return value


def options_of(name: str, family: Option) -> dict[str, Option]:
    """The options that a vae and a belief-network share."""
    return {
        "held_out": Option(share, 0.2),
        "missing": Option(one_of(("raise", "drop"), f"--missing of a {name} is", f" {IMPUTE}"), "raise"),
        "family": family,
        "latent": Option(sizes("latent", "20 or 100,50")),
        "array": Option(),
        "redraw": Option(bool, False),
    }


def read(kind: Kind, arguments: Arguments) -> Task:
    """The task of a file's rows and the model asked for; warnings say how the rows were taken."""
    if arguments.get("table") is None:
        raise DataError(f"--model {kind.name} expects a file: tractable fit FILE --model {kind.name} --latent 20.")
    path, choices = Path(arguments["table"]), kind.ask(arguments)
    if choices["latent"] is None:
        raise SettingsError(f"--model {kind.name} expects --latent, such as --latent {EXAMPLES[kind.name]}.")
    if choices["redraw"] and choices["family"] not in (None, "bernoulli"):
        raise SettingsError(f"--redraw draws binary pixels, of --family bernoulli; got --family {choices['family']}.")
    source = read_rows(path, choices["array"])
    if choices["missing"] == "drop" and (gone := source.gaps).any():
        tell(f"Left out: {counted(int(gone.sum()), 'row')} of {len(gone):,}, with numbers missing or not finite.")
        source = source._replace(values=source.values[~gone])
    source.refuse_gaps(GAPS + IMPUTE)
    n, binary = len(source.values), "hidden" not in kind.options
    if n < 2:
        raise DataError(f"A {kind.name} is learnt from rows that differ: expected two or more; got {n}.")
    family, redraw, divisor = support.likely_family(source, choices["family"], choices["redraw"], binary)
    back = held_back(n, choices["held_out"])
    encoder, source = encoder_of(source, ~back, 0.0 if family == "normal" else divisor)
    choices |= {"family": family, "redraw": redraw, "array": source.array}
    if not binary and choices["hidden"] is None:
        choices["hidden"] = FEW if len(encoder.columns) < NARROW else MANY
    levels = support.levels_of(source) if family == "categorical" else 0
    about = {"shape": list(source.shape), "levels": levels}
    rows, model = rows_of(choices | about, encoder, source), model_of(choices | about, encoder)
    words = f"{counted(int(np.sum(~back)), 'row')} of {counted(len(encoder.columns), 'number')}; {model}"
    return Task.of_file(kind, path, words, choices, about, encoder, model=model, **parted(Data(rows), back))


def encoder_of(source: Source, kept: np.ndarray, divisor: float) -> tuple[Encoder, Source]:
    """Scales all numbers by a divisor; if 0, standardises by the rows ``kept`` and drops a table's constant columns."""
    names, shape = (places(source.shape), source.shape) if source.names is None else (source.names, None)
    if divisor:
        return Encoder(tuple(Column(name, "number", sd=divisor) for name in names), shape=shape), source
    encoder, differs = fit_numbers(source.values[kept], names, shape)
    if not differs.any():
        raise DataError("No number differs between the rows fitted, so there is nothing to learn from.")
    if source.names is not None and not differs.all():
        tell(f"Left out, being the same in every row that is fitted: {listing(source.of(~differs).names or ())}.")
        source = source.of(differs)
    tell("Columns are standardised by the mean and sd of the rows fitted.")
    return encoder, source


def rows_of(spec: Arguments, encoder: Encoder, source: Source) -> np.ndarray:
    """(n, d) the model's rows; a DataError if their width or numbers do not suit the model."""
    width, family = source.values.shape[1], spec["family"]
    if width != len(encoder.columns):
        raise DataError(
            f"Rows here have {counted(width, 'number')}; those the run was fitted to have {len(encoder.columns):,}."
        )
    rows = encoder.standardise(source.values)
    support.check_support(source, rows, "continuous-bernoulli" if spec["redraw"] else family, spec["levels"])
    return rows.astype(np.int32 if family == "categorical" else jnp.result_type(float))


def log_scale(spec: Arguments, encoder: Encoder) -> float:
    """How much lower log densities are in the file's units; 0 for pixels, whose densities are of numbers in [0, 1]."""
    return float(np.log(encoder.scale[1]).sum()) if spec["family"] == "normal" else 0.0


def units(spec: Arguments, encoder: Encoder) -> str:
    """What the log densities are of, in words."""
    if spec["family"] in ("bernoulli", "categorical", "poisson"):
        return "log probabilities of rows"
    divided = spec["family"] != "normal" and encoder.columns[0].sd != 1
    return "log densities of pixels in [0, 1]" if divided else "log densities in the file's units"


def model_of(spec: Arguments, encoder: Encoder) -> Ladder:
    """The model of encoded rows: binary units; or, where hidden widths are given, normal units behind a network."""
    latent, size, family = tuple(spec["latent"]), len(encoder.columns), spec["family"]
    if spec.get("hidden") is None:
        return sigmoid_belief_network(size, latent, redraw=spec["redraw"])
    noise, widths = "shared" if family == "normal" else None, tuple(spec["hidden"])
    family = categorical(spec["levels"]) if spec["levels"] else family.replace("-", " ")
    common: dict[str, Any] = {"family": family, "noise": noise, "redraw": spec["redraw"]}
    if len(latent) == 1:
        return latent_gaussian(size, latent[0], hidden=widths, **common)
    return hierarchical(size, latent, hidden=[widths] * len(latent), **common)


def adapt(task: Task, method: Amortised, sized: bool) -> Method:
    """The method, its batches no larger than the data; an error if it cannot fit the model."""
    if not sized and method.batch_size > task.data.size:
        method = dataclasses.replace(method, batch_size=task.data.size)
    method.needed(task.model)
    method.plan(task.data)
    return method


def learn(task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
    """Fit a model and its inference network, and score the held-out rows."""
    posterior = posterior_of(task, method, seed, folder, progress)
    if task.held_out is not None and "held-out bound" not in posterior.found:
        scored(posterior, task.held_out)
        posterior.write(folder)
    return Result(posterior)


def scored(posterior: Posterior, rows: Data) -> None:
    """Give the posterior a bound of held-out rows, and its report a check against the fitted rows' bound."""
    kept = Data(rows.y[:SCORED])
    if posterior.data is None or kept.fingerprint == posterior.data.fingerprint:  # the same rows
        return
    bound = held_out(posterior, kept, samples=DRAWS)
    check = held_out_check(bound.gap, bound.error, bound.rows)
    posterior.judged = with_checks(posterior.report(), [check])
    posterior.found |= {"held-out bound": bound.held_out, "held-out rows": bound.rows}


def page(folder: Path, task: Task, result: Result) -> None:
    """Write the report."""
    title = f"{task.name} by {type(result.posterior.method).__name__}"
    shape, told = support.picture(task.spec["shape"]), task.spec["notes"]
    write_page(folder, result.posterior, title=title, shape=shape, notes=told)


def predict(run: Path, spec: Arguments, new: Path, request: Request) -> pd.DataFrame:
    """For each row of a file: mean and sd of its hidden units, and two bounds of its log density by 100 draws."""
    encoder = Encoder.from_dict(spec["encoder"])
    first = (*NEW, *([spec["array"]] if spec["array"] else []), *USUAL)
    source = read_rows(new, request.array, first, encoder.names if encoder.shape is None else ())
    source.refuse_gaps(IMPUTE)
    rows, lower = rows_of(spec, encoder, source), log_scale(spec, encoder)
    posterior = load(run, model_of(spec, encoder))
    found: Any = posterior.log_evidence(Data(rows), samples=DRAWS)
    bounds = {"elbo": found.elbo - lower, "log_evidence": found.log_evidence - lower}
    return pd.DataFrame(code_columns(spec["model"], posterior.encode(rows)) | bounds)


def code_columns(model: str, codes: Encoded) -> dict[str, np.ndarray]:
    """Mean and sd of each unit by layer: z0_mean, z1_0_mean or h1_0_mean; above ``WRITTEN`` units the first layer's."""
    layers = len(codes.mean) if sum(mean.shape[1] for mean in codes.mean) <= WRITTEN else 1
    columns: dict[str, np.ndarray] = {}
    for i, (mean, sd) in enumerate(zip(codes.mean[:layers], codes.sd[:layers], strict=True)):
        unit = UNITS[model][len(codes.mean) > 1].format(i + 1)
        for j in range(mean.shape[1]):
            columns |= {f"{unit}{j}_mean": mean[:, j], f"{unit}{j}_sd": sd[:, j]}
    return columns


def tables(task: Task, result: Result) -> Iterator[Any]:
    """The model's layers and its bounds."""
    yield to_terminal(layers(task.model, result.posterior.found))
    yield bounds_table(result.posterior.found, task.spec)


def bounds_table(found: Arguments, spec: Arguments) -> Group:
    """The lower bounds of log p(x), each with its meaning."""
    encoder = Encoder.from_dict(spec["encoder"])
    named = {
        "ELBO": ("elbo", f"of rows learnt from; {units(spec, encoder)}"),
        "bound": ("bound", f"the same, by {found['samples']} draws, which is tighter"),
        "held-out bound": ("held-out bound", f"of {found.get('held-out rows', 0):,} rows kept back, by as many draws"),
    }
    lower, heads = log_scale(spec, encoder), ["bound", "value", "what it means"]
    rows = [[name, Cell(found[key] - lower, ".2f"), meaning] for name, (key, meaning) in named.items() if key in found]
    return to_terminal(Exhibit("Lower bounds of log p(x), nats a row", [Table(heads, rows, heads[2:])]))


VAE = Kind(
    "vae", "autoencoding",
    options_of("vae", Option(one_of(support.FAMILIES, "--family of a vae's rows is")))
    | {"hidden": Option(sizes("hidden", "20 or 100,50"))},
    refusals("vae", NOT_OF_LADDERS),
    read, learn, page, tables, predict, lambda folder, spec, about: [bounds_table(about["found"], spec)],
    row_noun="rows of codes and bounds", methods=METHODS, adapt=adapt, folder="vae",
)  # fmt: skip
BELIEF = dataclasses.replace(
    VAE, name="belief-network", method="nvil", options=options_of("belief-network", Option(of_binary_rows)),
    refusals=refusals(
        "belief-network",
        NOT_OF_LADDERS | {"hidden": "it has no deterministic layers; --latent lists its layers of hidden units."},
    ),
    folder="belief-network",
)  # fmt: skip
