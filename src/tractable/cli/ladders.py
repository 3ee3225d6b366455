"""The kinds of model with deep latent layers: variational autoencoders and sigmoid belief networks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from tractable import models as library
from tractable.cli.reading import one_of, whole_numbers
from tractable.cli.task import HELD_OUT_SHARE, Arguments, OfRows, Option, Result, Task
from tractable.core.errors import DataError, SettingsError
from tractable.core.model import Data
from tractable.core.words import counted
from tractable.diagnostics.report import with_checks
from tractable.ladders.checks import held_out_check
from tractable.ladders.encoding import Encoded, held_out
from tractable.methods import Method
from tractable.pages.page import usual_facts
from tractable.pages.sections import Cell
from tractable.posterior.posterior import Posterior
from tractable.tables import support
from tractable.tables.encoder import Encoder
from tractable.tables.files import NEW, USUAL, Source, read_rows
from tractable.tables.ordered import Places

# Largest number of held-out rows whose bounds are computed; number of latent draws from which each bound is computed.
SCORED, DRAWS = 1000, 100
WRITTEN = 50  # with at most this many latent units, predictions hold all layers; with more, only the first layer


class Autoencoder(OfRows):
    """Variational autoencoders for a file's rows."""

    name, usual_method, row_noun, gaps = "vae", "autoencoding", "rows of codes and bounds", False
    methods = ("autoencoding", "importance-weighted", "nvil", "vimco", "wake-sleep", "reweighted-wake-sleep")
    remedy = "Once a model is fitted, posterior.impute(x) in Python fills in the missing numbers of new rows."
    units = ("z", "z{}_")  # names of latent units: with one layer, and with several layers
    options = HELD_OUT_SHARE | {
        "missing": Option(one_of(("raise", "drop"), "--missing of rows of numbers is"), "raise"),
        "family": Option(one_of(support.FAMILIES, "--family of a vae's rows is")),
        "latent": Option(whole_numbers("latent", "20, or 200,200 for several layers")),
        "array": Option(),
        "redraw": Option(bool, False),
        "hidden": Option(whole_numbers("hidden", "20 or 100,50")),
    }

    def source(self, path: Path, spec: Arguments, array: str | None, encoder: Encoder | None) -> tuple[Source, Any]:
        first = USUAL if encoder is None else (*NEW, *filter(None, [spec["array"]]), *USUAL)
        names = () if encoder is None or encoder.shape is not None else encoder.names
        return read_rows(path, array, first, names), None

    def recognise(self, source: Source, spec: Arguments) -> tuple[dict[str, Any], float]:
        wish, redraw = spec["family"], spec["redraw"]
        if redraw and wish not in (None, "bernoulli"):
            raise SettingsError(f"--redraw draws binary pixels, which are of --family bernoulli; got --family {wish}.")
        family, redraw, divisor = support.likely_family(source, wish, redraw, "hidden" not in self.options)
        levels = support.levels_of(source) if family == "categorical" else 0
        facts = {"family": family, "redraw": redraw, "array": source.array, "shape": list(source.shape)}
        return facts | {"levels": levels}, 0.0 if family == "normal" else divisor

    def read(self, given: Arguments) -> Task:
        if given.get("table") is not None and given.get("latent") is None:
            raise SettingsError(f"--model {self.name} expects --latent, such as 20, or 200,200 for several layers.")
        task = super().read(given)
        return replace(task, model=self.model(task.spec, task.encoder))

    def rows(self, spec: Arguments, encoder: Encoder, source: Source, order: Places | None) -> np.ndarray:
        width, family = source.values.shape[1], spec["family"]
        if width != len(encoder.columns):
            raise DataError(
                f"Each row has {counted(width, 'number')}; expected {len(encoder.columns):,}, as in the fitted rows."
            )
        rows = encoder.standardise(source.values)
        support.check_support(source, rows, "continuous-bernoulli" if spec["redraw"] else family, spec["levels"])
        return rows.astype(np.int32 if family == "categorical" else jnp.result_type(float))

    def model(self, spec: Arguments, encoder: Encoder) -> Any:
        """A model with one or several layers of normal latent units, which networks decode."""
        latent, size, family = tuple(spec["latent"]), len(encoder.columns), spec["family"]
        widths = tuple(spec["hidden"] or ([100] if size < 100 else [400]))
        noise = "shared" if family == "normal" else None
        family = library.categorical(spec["levels"]) if spec["levels"] else family.replace("-", " ")
        common: dict[str, Any] = {"family": family, "noise": noise, "redraw": spec["redraw"]}
        if len(latent) == 1:
            return library.latent_gaussian(size, latent[0], hidden=widths, **common)
        return library.hierarchical(size, latent, hidden=[widths] * len(latent), **common)

    def method(self, task: Task, settings: Arguments) -> Method:
        """The method; unless the user set it, its batch size is at most the number of rows."""
        method: Any = super().method(task, settings)
        fits = "batch_size" in settings or method.batch_size <= task.data.size
        return method if fits else replace(method, batch_size=task.data.size)

    def learn(self, task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
        """Fit a model and its inference network, and compare the bounds of held-out rows with those of fitted rows."""
        posterior = super().learn(task, method, seed, folder, progress).posterior
        if task.held_out is not None and "held-out bound" not in posterior.found:
            bound = held_out(posterior, Data(task.held_out.y[:SCORED]), samples=DRAWS)
            check = held_out_check(bound.gap, bound.error, bound.rows)
            posterior.judged = with_checks(posterior.report(), [check])
            posterior.found |= {"held-out bound": bound.held_out, "held-out rows": bound.rows}
            posterior.write(folder)
        return Result(posterior)

    def page(self, task: Task, result: Result) -> dict[str, Any]:
        numbers, lower = result.posterior.found, log_scale(task)
        sd, normal = task.encoder.columns[0].sd, task.spec["family"] == "normal"
        unit = "the file's units" if normal or sd == 1 else f"units of {sd:g}"
        bounds = {
            "ELBO": Cell(numbers["elbo"] - lower, ".2f", f"nats per fitted row, in {unit}"),
            "bound": Cell(numbers["bound"] - lower, ".2f", f"a tighter bound, from {numbers['samples']} draws per row"),
        }
        if "held-out bound" in numbers:
            rows = f"the same for {numbers['held-out rows']:,} held-out rows"
            bounds["held-out bound"] = Cell(numbers["held-out bound"] - lower, ".2f", rows)
        return {"facts": usual_facts(result.posterior) | bounds, "shape": support.picture(task.spec["shape"])}

    def columns(self, posterior: Posterior, task: Task, order: Places | None) -> dict[str, Any]:
        """The mean and sd of each latent unit, and two lower bounds of the row's log density from 100 draws."""
        rows, lower = Data(task.data.y), log_scale(task)
        bounds: Any = posterior.log_evidence(rows, samples=DRAWS)
        codes = code_columns(self.units, posterior.encode(rows.y))
        return codes | {"elbo": bounds.elbo - lower, "log_evidence": bounds.log_evidence - lower}


class BeliefNetwork(Autoencoder):
    """Sigmoid belief networks for binary rows."""

    name, usual_method, units = "belief-network", "nvil", ("h{}_", "h{}_")
    options = {name: option for name, option in Autoencoder.options.items() if name != "hidden"} | {
        "family": Option(one_of(("bernoulli",), "--family of a belief-network's rows is"))
    }

    def model(self, spec: Arguments, encoder: Encoder) -> Any:
        return library.sigmoid_belief_network(len(encoder.columns), tuple(spec["latent"]), redraw=spec["redraw"])


def log_scale(task: Task) -> float:
    """By how much log densities are lower in the file's units than in the model's units.

    It is 0 for pixels, whose densities are for numbers in [0, 1].
    """
    return float(np.log(task.encoder.scale[1]).sum()) if task.spec["family"] == "normal" else 0.0


def code_columns(names: tuple[str, str], codes: Encoded) -> dict[str, np.ndarray]:
    """Columns with the mean and sd of each latent unit, named by layer and unit: z0_mean, z1_0_mean or h1_0_mean.

    If there are more than ``WRITTEN`` units, only those of the first layer have columns.
    """
    layers = len(codes.mean) if sum(mean.shape[1] for mean in codes.mean) <= WRITTEN else 1
    columns: dict[str, np.ndarray] = {}
    for i, (mean, sd) in enumerate(zip(codes.mean[:layers], codes.sd[:layers], strict=True)):
        unit = names[len(codes.mean) > 1].format(i + 1)
        for j in range(mean.shape[1]):
            columns |= {f"{unit}{j}_mean": mean[:, j], f"{unit}{j}_sd": sd[:, j]}
    return columns
