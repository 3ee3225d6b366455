"""Causes behind rows of a file: variational autoencoders and belief networks, their codes and their bounds."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType

from tractable.checks.ladders import held_out_check
from tractable.checks.report import with_check
from tractable.cli import arrays
from tractable.cli.arrays import FAMILIES, NEW, USUAL, Encoding
from tractable.cli.models import BELIEF, VAE
from tractable.cli.problem import split
from tractable.cli.speech import counted, tell
from tractable.core import Data
from tractable.methods import Method
from tractable.methods.amortised import Amortised
from tractable.models.belief import sigmoid_belief_network
from tractable.models.deep_gaussian import hierarchical, latent_gaussian
from tractable.models.ladder import Ladder
from tractable.models.layers import categorical
from tractable.pages.exhibit import Cell, Exhibit, Table
from tractable.pages.terminal import to_terminal
from tractable.results.encoding import Encoded, held_out
from tractable.results.loading import load
from tractable.results.posterior import Posterior
from tractable.tools.errors import DataError, SettingsError

DEFAULT_METHOD = {VAE: "autoencoding", BELIEF: "nvil"}
METHODS = "autoencoding, importance-weighted, nvil, vimco, wake-sleep or reweighted-wake-sleep"
NARROW, FEW, MANY = 100, (100,), (400,)  # rows of fewer numbers than that, and a vae's hidden widths
SCORED = 1000  # rows held out that are scored, at most
DRAWS = 100  # of h a row, of bounds
WRITTEN = 50  # units whose codes are written; of more the first layer's alone
GAPS = "Use --missing drop, which leaves such rows out, or mend them: no model is fitted to rows with gaps. "
IMPUTE = "Once a model is fitted, posterior.impute(x) in Python fills in what new rows lack."


@dataclass(frozen=True)
class Asked:
    """What a command line says of a ladder.

    Attributes:
        model: "vae" or "belief-network".
        latent: units of h¹, …, h^L, from the rows on.
        hidden: widths of a vae's deterministic layers; None for the usual.
        family: a name of ``FAMILIES``; None to be told from the numbers.
        array: of an .npz; None for the usual.
        redraw: binary pixels are drawn from grey ones.
        held_out: share of the rows, in [0, 1).
        missing: "raise", or "drop" leaves rows with gaps out.
    """

    model: str
    latent: tuple[int, ...]
    hidden: tuple[int, ...] | None = None
    family: str | None = None
    array: str | None = None
    redraw: bool = False
    held_out: float = 0.2
    missing: str = "raise"

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise DataError(f"--held-out expects a share of the rows in [0, 1); got {self.held_out:g}.")
        if self.missing not in ("raise", "drop"):
            raise SettingsError(f"--missing of a {self.model} is raise or drop; got {self.missing!r}. {IMPUTE}")
        if self.family is not None and self.family not in FAMILIES:
            raise SettingsError(f"--family of a {self.model}'s rows is {', '.join(FAMILIES)}; got {self.family!r}.")
        if self.model == BELIEF and self.family not in (None, "bernoulli"):
            raise SettingsError(f"A {BELIEF}'s rows are bernoulli; got --family {self.family}. --model vae has others.")
        if self.redraw and self.family not in (None, "bernoulli"):
            raise SettingsError(f"--redraw draws binary pixels, of --family bernoulli; got --family {self.family}.")


def asked_of(model: str, said: Mapping[str, Any]) -> Asked:
    """From what was typed.

    Raises:
        SettingsError, DataError: what cannot be.
    """
    if said["latent"] is None:
        example = "20, the numbers behind a row" if model == VAE else "200,200, the units of its hidden layers"
        raise SettingsError(f"--model {model} expects --latent, such as --latent {example}.")
    rest = {name: value for name, value in said.items() if value is not None and name not in ("latent", "hidden")}
    hidden = None if said["hidden"] is None else sizes("hidden", said["hidden"])
    return Asked(model, sizes("latent", said["latent"]), hidden, **rest)


def sizes(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between.

    >>> sizes("latent", "100, 50")
    (100, 50)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise SettingsError(
            f"--{option} expects whole numbers of 1 or more, with commas between them, such as 20 or 100,50; got "
            f"{text!r}."
        )
    return tuple(map(int, parts))


@dataclass(frozen=True, eq=False)
class Problem:
    """A ladder and the rows it is to be behind.

    Attributes:
        name: short, for the run's folder.
        path: of the file.
        asked: what is wanted of them; its array and hidden widths are those used.
        shape: of one row in the file.
        encoding: from rows of the file to those of the model.
        rows: (n, d) that are fitted.
        held_out: (m, d) that no fit sees.
    """

    name: str
    path: Path
    asked: Asked
    shape: tuple[int, ...]
    encoding: Encoding
    rows: np.ndarray
    held_out: np.ndarray

    @property
    def model(self) -> Ladder:
        return model_of(self.asked, self.encoding)

    @property
    def label(self) -> str:
        numbers = counted(self.encoding.size, "number")
        return f"{self.name} ({counted(len(self.rows), 'row')} of {numbers}; {self.model})"

    def spec(self) -> dict[str, Any]:
        """What JSON can hold; enough to go on and to predict."""
        return {
            "file": str(self.path.resolve()),
            **dataclasses.asdict(self.asked),
            "shape": list(self.shape),
            "encoding": self.encoding.to_dict(),
        }


def asked_before(spec: Mapping[str, Any]) -> Asked:
    """What a saved run was asked."""
    saved = {field.name: spec[field.name] for field in dataclasses.fields(Asked)}
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in saved.items()}
    return Asked(**fields)


def from_file(path: Path, asked: Asked) -> Problem:
    """Rows of a file, and the ladder that is asked for; how they are taken is told by warnings.

    Raises:
        DataError: no rows of numbers, gaps that nothing was said of, numbers that the family does not have.
    """
    source = arrays.read(path, asked.array)
    if asked.missing == "drop" and (gone := arrays.gaps(source.values)).any():
        tell(f"Left out: {counted(int(gone.sum()), 'row')} of {len(gone):,}, with numbers missing or not finite.")
        source = source._replace(values=source.values[~gone])
    arrays.refuse_gaps(source, GAPS + IMPUTE)
    n = len(source.values)
    if n < 2:
        raise DataError(f"A {asked.model} is learnt from rows that differ: expected two or more; got {n}.")
    family, redraw, divisor = arrays.family_told(source, asked.family, asked.redraw, asked.model == BELIEF)
    kept = np.zeros(n, bool)
    kept[split(pd.DataFrame(index=range(n)), "", "normal", asked.held_out)[0].index] = True
    encoding, source = arrays.encoding_of(source, kept, family, redraw, divisor)
    rows = encoding.encode(source)
    hidden = (FEW if encoding.size < NARROW else MANY) if asked.hidden is None and asked.model == VAE else asked.hidden
    asked = dataclasses.replace(asked, array=source.array, hidden=hidden)
    name = path.name.split(".")[0] or "rows"
    return Problem(name, path, asked, source.shape, encoding, rows[kept], rows[~kept])


def model_of(asked: Asked, encoding: Encoding) -> Ladder:
    """The ladder of encoded rows."""
    if asked.model == BELIEF:
        return sigmoid_belief_network(encoding.size, asked.latent, redraw=encoding.redraw)
    family = categorical(encoding.levels) if encoding.levels else encoding.family.replace("-", " ")
    noise, widths = "shared" if family == "normal" else None, asked.hidden or ()
    if len(asked.latent) == 1:
        return latent_gaussian(
            encoding.size, asked.latent[0], hidden=widths, family=family, noise=noise, redraw=encoding.redraw
        )
    every = [widths] * len(asked.latent)
    return hierarchical(
        encoding.size, asked.latent, hidden=every, family=family, noise=noise, redraw=encoding.redraw
    )  # fmt: skip


def suits(method: Method, problem: Problem, chosen: bool) -> Method:
    """The method with batches that there are rows for, or a sentence where it does not learn the ladder.

    Args:
        chosen: the batch's size was said, and stays what it is.
    """
    if not isinstance(method, Amortised):
        raise SettingsError(f"--model {problem.asked.model} is learnt by --method {METHODS}; got {method.label}.")
    if not chosen and method.batch_size > len(problem.rows):
        method = dataclasses.replace(method, batch_size=len(problem.rows))
    method.needed(problem.model)
    method.plan(Data(problem.rows))
    return method


def scored(posterior: Posterior, rows: np.ndarray) -> None:
    """Hold rows that were kept back against those learnt from: a check of the report, and a bound among what it found.

    Args:
        rows: (m, d); the first thousand are looked at.
    """
    if not len(rows) or posterior.data is None:
        return
    kept = Data(rows[:SCORED])
    if kept.fingerprint == posterior.data.fingerprint:  # rows that are all alike
        return
    bound = held_out(posterior, kept, samples=DRAWS)
    check = held_out_check(bound.gap, bound.error, bound.rows)
    posterior.judged = with_check(posterior.report(), check)
    posterior.found |= {"held-out bound": bound.held_out, "held-out rows": bound.rows}


def predictions(spec: Mapping[str, Any], run: Path, new: Path, array: str | None) -> pd.DataFrame:
    """For each row of a file mean and sd of what is behind it, and two bounds of its log density, by 100 draws."""
    encoding, asked = Encoding.from_dict(spec["encoding"]), asked_before(spec)
    first = (*NEW, *([asked.array] if asked.array else []), *USUAL)
    source = arrays.read(new, array, first, encoding.names or ())
    arrays.refuse_gaps(source, IMPUTE)
    rows = encoding.encode(source)
    posterior = load(run, model_of(asked, encoding))
    evidence: Any = posterior.log_evidence
    found = evidence(Data(rows), samples=DRAWS)
    bounds = {"elbo": found.elbo - encoding.log_scale, "log_evidence": found.log_evidence - encoding.log_scale}
    return pd.DataFrame(code_columns(asked.model, posterior.encode(rows)) | bounds)


def code_columns(model: str, codes: Encoded) -> dict[str, np.ndarray]:
    """Mean and sd of every unit, layer by layer; of more than 50 units those of the first layer.

    A vae's one layer has the columns z0_mean, z0_sd, z1_mean, …, its several z1_0_mean, …, the layer first; a belief
    network's have h1_0_mean, ….
    """
    layers = len(codes.mean) if sum(mean.shape[1] for mean in codes.mean) <= WRITTEN else 1
    columns: dict[str, np.ndarray] = {}
    for i, (mean, sd) in enumerate(zip(codes.mean[:layers], codes.sd[:layers], strict=True)):
        layer = "h" if model == BELIEF else "z"
        layer += "" if model == VAE and len(codes.mean) == 1 else f"{i + 1}_"
        for j in range(mean.shape[1]):
            columns |= {f"{layer}{j}_mean": mean[:, j], f"{layer}{j}_sd": sd[:, j]}
    return columns


def bounds_table(found: Mapping[str, Any], spec: Mapping[str, Any]) -> RenderableType:
    """Lower bounds of log p(x), on a terminal."""
    encoding = Encoding.from_dict(spec["encoding"])
    rows = []
    named = {
        "ELBO": ("elbo", f"of rows learnt from; {encoding.units}"),
        "bound": ("bound", f"the same, by {found['samples']} draws, which is tighter"),
        "held-out bound": ("held-out bound", f"of {found.get('held-out rows', 0):,} rows kept back, by as many draws"),
    }
    for name, (key, meaning) in named.items():
        if key in found:
            rows.append([name, Cell(found[key] - encoding.log_scale, ".2f"), meaning])
    heads = ["bound", "value", "what it means"]
    return to_terminal(Exhibit("Lower bounds of log p(x), nats a row", [Table(heads, rows, heads[2:])]))
