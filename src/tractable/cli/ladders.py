"""Causes behind rows of a file: variational autoencoders and belief networks, their codes and their bounds."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from tractable.checks.ladders import held_out_check
from tractable.checks.report import with_check
from tractable.cli import arrays, explained, show
from tractable.cli.arrays import FAMILIES, NEW, USUAL, Encoding
from tractable.cli.task import Kind, Learnt, Option, Task, Wanted, one_of, refusals, share, sizes, split
from tractable.core import Data
from tractable.methods import Method
from tractable.models.belief import sigmoid_belief_network
from tractable.models.deep_gaussian import hierarchical, latent_gaussian
from tractable.models.ladder import Ladder
from tractable.models.layers import categorical
from tractable.pages.page import write_page
from tractable.results.encoding import Encoded, held_out
from tractable.results.folder import describe
from tractable.results.loading import load
from tractable.results.posterior import Posterior
from tractable.tools.errors import DataError, SettingsError
from tractable.tools.words import counted, tell

METHODS = ("autoencoding", "importance-weighted", "nvil", "vimco", "wake-sleep", "reweighted-wake-sleep")
NARROW, FEW, MANY = 100, [100], [400]  # rows of fewer numbers than that, and a vae's hidden widths
SCORED = 1000  # rows held out that are scored, at most
DRAWS = 100  # of h a row, of bounds
WRITTEN = 50  # units whose codes are written; of more the first layer's alone
GAPS = "Use --missing drop, which leaves such rows out, or mend them: no model is fitted to rows with gaps. "
IMPUTE = "Once a model is fitted, posterior.impute(x) in Python fills in what new rows lack."
EXAMPLES = {
    "vae": "20, the numbers behind a row",
    "belief-network": "200,200, the units of its hidden layers",
}
UNITS = {"vae": ("z", "z{}_"), "belief-network": ("h{}_", "h{}_")}  # columns of one layer's codes, of several
NOT_OF_LADDERS = {
    "target": "it explains no column, it finds what is behind whole rows; leave --target out.",
    "example": "it is of a file of your own.",
    "prior": "its weights have none; they are climbed to a maximum.",
    "shifted": "it predicts no target; tractable predict gives rows a bound on their log density.",
}


def whether_missing(name: str) -> Option:
    """--missing."""

    def read(value: str) -> str:
        if value not in ("raise", "drop"):
            raise SettingsError(f"--missing of a {name} is raise or drop; got {value!r}. {IMPUTE}")
        return value

    return Option(read, "raise")


def of_binary_rows(value: str) -> str:
    """--family of a belief network."""
    if value != "bernoulli":
        raise SettingsError(f"A belief-network's rows are bernoulli; got --family {value}. --model vae has others.")
    return value


def options_of(name: str, family: Option) -> dict[str, Option]:
    """Those of both kinds."""
    return {
        "held_out": Option(share, 0.2),
        "missing": whether_missing(name),
        "family": family,
        "latent": Option(sizes("latent", "20 or 100,50")),
        "array": Option(),
        "redraw": Option(bool, False),
    }


def read(kind: Kind, given: Mapping[str, Any]) -> Task:
    """Rows of a file, and the ladder that is asked for; how they are taken is told by warnings.

    Raises:
        DataError: no rows of numbers, gaps that nothing was said of, numbers that the family does not have.
    """
    path = given.get("table")
    if path is None:
        raise DataError(f"--model {kind.name} expects a file: tractable fit FILE --model {kind.name} --latent 20.")
    asked = kind.ask(given)
    if asked["latent"] is None:
        raise SettingsError(f"--model {kind.name} expects --latent, such as --latent {EXAMPLES[kind.name]}.")
    if asked["redraw"] and asked["family"] not in (None, "bernoulli"):
        raise SettingsError(f"--redraw draws binary pixels, of --family bernoulli; got --family {asked['family']}.")
    source = arrays.read(path, asked["array"])
    if asked["missing"] == "drop" and (gone := arrays.gaps(source.values)).any():
        tell(f"Left out: {counted(int(gone.sum()), 'row')} of {len(gone):,}, with numbers missing or not finite.")
        source = source._replace(values=source.values[~gone])
    arrays.refuse_gaps(source, GAPS + IMPUTE)
    n = len(source.values)
    if n < 2:
        raise DataError(f"A {kind.name} is learnt from rows that differ: expected two or more; got {n}.")
    binary = "hidden" not in kind.options
    family, redraw, divisor = arrays.family_told(source, asked["family"], asked["redraw"], binary)
    kept = np.zeros(n, bool)
    kept[split(pd.DataFrame(index=range(n)), "", "normal", asked["held_out"])[0].index] = True
    encoding, source = arrays.encoding_of(source, kept, family, redraw, divisor)
    rows = encoding.encode(source)
    asked["array"] = source.array
    if not binary and asked["hidden"] is None:
        asked["hidden"] = FEW if encoding.size < NARROW else MANY
    name, model = path.name.split(".")[0] or "rows", model_of(asked, encoding)
    label = f"{name} ({counted(int(kept.sum()), 'row')} of {counted(encoding.size, 'number')}; {model})"
    spec = {
        "file": str(path.resolve()), "model": kind.name, **asked, "shape": list(source.shape),
        "encoding": encoding.to_dict(),
    }  # fmt: skip
    rest = None if kept.all() else Data(rows[~kept])
    return Task(kind, name, label, asked, spec, Data(rows[kept]), rest, model, encoding, shape=source.shape)


def model_of(asked: Mapping[str, Any], encoding: Encoding) -> Ladder:
    """The ladder of encoded rows: of binary units, or with widths of deterministic layers between, of normal ones."""
    latent = tuple(asked["latent"])
    if asked.get("hidden") is None:
        return sigmoid_belief_network(encoding.size, latent, redraw=encoding.redraw)
    family = categorical(encoding.levels) if encoding.levels else encoding.family.replace("-", " ")
    noise, widths = "shared" if family == "normal" else None, tuple(asked["hidden"])
    common: dict[str, Any] = {"family": family, "noise": noise, "redraw": encoding.redraw}
    if len(latent) == 1:
        return latent_gaussian(encoding.size, latent[0], hidden=widths, **common)
    return hierarchical(encoding.size, latent, hidden=[widths] * len(latent), **common)


def suits(task: Task, method: Any, sized: bool) -> Method:
    """The method with batches that there are rows for, or a sentence where it does not learn the ladder."""
    if not sized and method.batch_size > task.data.size:
        method = dataclasses.replace(method, batch_size=task.data.size)
    method.needed(task.model)
    method.plan(task.data)
    return method


def learn(task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Learnt:
    """A ladder and its inference network, held against the rows that were kept back."""
    posterior = explained.gone_on_with(task, method, seed, folder, progress)
    if task.held_out is not None and "held-out bound" not in posterior.found:
        scored(posterior, task.held_out)
        describe(posterior, folder)
    return Learnt(posterior, posterior.seconds)


def scored(posterior: Posterior, rows: Data) -> None:
    """Hold rows that were kept back against those learnt from: a check of the report, and a bound among what it found.

    Args:
        rows: the first thousand are looked at.
    """
    kept = Data(rows.y[:SCORED])
    if posterior.data is None or kept.fingerprint == posterior.data.fingerprint:  # rows that are all alike
        return
    bound = held_out(posterior, kept, samples=DRAWS)
    check = held_out_check(bound.gap, bound.error, bound.rows)
    posterior.judged = with_check(posterior.report(), check)
    posterior.found |= {"held-out bound": bound.held_out, "held-out rows": bound.rows}


def page(folder: Path, task: Task, learnt: Learnt) -> None:
    """The report."""
    title = f"{task.name} by {type(learnt.posterior.method).__name__}"
    write_page(folder, learnt.posterior, title=title, shape=arrays.picture(task.shape))


def predict(run: Path, spec: Mapping[str, Any], new: Path, wanted: Wanted) -> pd.DataFrame:
    """For each row of a file mean and sd of what is behind it, and two bounds of its log density, by 100 draws."""
    encoding = Encoding.from_dict(spec["encoding"])
    first = (*NEW, *([spec["array"]] if spec["array"] else []), *USUAL)
    source = arrays.read(new, wanted.array, first, encoding.names or ())
    arrays.refuse_gaps(source, IMPUTE)
    rows = encoding.encode(source)
    posterior = load(run, model_of(spec, encoding))
    evidence: Any = posterior.log_evidence
    found = evidence(Data(rows), samples=DRAWS)
    bounds = {"elbo": found.elbo - encoding.log_scale, "log_evidence": found.log_evidence - encoding.log_scale}
    return pd.DataFrame(code_columns(spec["model"], posterior.encode(rows)) | bounds)


def code_columns(model: str, codes: Encoded) -> dict[str, np.ndarray]:
    """Mean and sd of every unit, layer by layer; of more than 50 units those of the first layer.

    A vae's one layer has the columns z0_mean, z0_sd, z1_mean, …, its several z1_0_mean, …, the layer first; a belief
    network's have h1_0_mean, ….
    """
    layers = len(codes.mean) if sum(mean.shape[1] for mean in codes.mean) <= WRITTEN else 1
    columns: dict[str, np.ndarray] = {}
    for i, (mean, sd) in enumerate(zip(codes.mean[:layers], codes.sd[:layers], strict=True)):
        unit = UNITS[model][len(codes.mean) > 1].format(i + 1)
        for j in range(mean.shape[1]):
            columns |= {f"{unit}{j}_mean": mean[:, j], f"{unit}{j}_sd": sd[:, j]}
    return columns


def shown(task: Task, learnt: Learnt) -> Iterator[Any]:
    """Layers and bounds."""
    model: Any = task.model
    yield layers_table(model, learnt.posterior.found)
    yield bounds_table(learnt.posterior.found, task.spec)


def layers_table(ladder: Ladder, found: Mapping[str, Any]) -> Table:
    """The layers of a ladder that was learnt, on a terminal: from the top down."""
    out = show.table("Layers", "", "units", "active", "cost, nats a row", "family", numbers=3)
    for i in range(ladder.depth, -1, -1):
        told = (f"{found[f'active h{i}']:,}", f"{found[f'cost h{i}']:.3g}") if i else ("", "")
        layer = ladder.layers[i]
        out.add_row(ladder.layer_names[i], f"{layer.size:,}", *told, layer.family.name)
    return out


def bounds_table(found: Mapping[str, Any], spec: Mapping[str, Any]) -> Table:
    """Lower bounds of log p(x), on a terminal."""
    encoding = Encoding.from_dict(spec["encoding"])
    out = show.table("Lower bounds of log p(x), nats a row", "", "value", "", numbers=1)
    named = {
        "ELBO": ("elbo", f"of rows learnt from; {encoding.units}"),
        "bound": ("bound", f"the same, by {found['samples']} draws, which is tighter"),
        "held-out bound": ("held-out bound", f"of {found.get('held-out rows', 0):,} rows kept back, by as many draws"),
    }
    for name, (key, meaning) in named.items():
        if key in found:
            out.add_row(name, f"{found[key] - encoding.log_scale:.2f}", meaning)
    return out


VAE = Kind(
    "vae", "autoencoding",
    options_of("vae", Option(one_of(FAMILIES, "--family of a vae's rows is")))
    | {"hidden": Option(sizes("hidden", "20 or 100,50"))},
    refusals("vae", NOT_OF_LADDERS),
    read, learn, page, shown, lambda folder, spec, about: [bounds_table(about["found"], spec)], predict,
    predicted="rows of codes and bounds", methods=METHODS, suits=suits, noun="vae", folder="vae",
)  # fmt: skip
BELIEF = dataclasses.replace(
    VAE, name="belief-network", method="nvil", options=options_of("belief-network", Option(of_binary_rows)),
    refused=refusals(
        "belief-network",
        NOT_OF_LADDERS | {"hidden": "it has no deterministic layers; --latent lists its layers of hidden units."},
    ),
    noun="belief-network", folder="belief-network",
)  # fmt: skip
