"""``Kind``, a kind of model as ``--model`` names it, and ``Task``, one model of a kind with its data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from tractable.cli import folders, reading
from tractable.core.errors import DataError, SettingsError
from tractable.core.model import Data, Model
from tractable.core.words import counted
from tractable.core.writing import write_table
from tractable.diagnostics.predictions import HELD_OUT
from tractable.inference import infer
from tractable.methods import Method, from_settings
from tractable.pages import mixtures as pages
from tractable.posterior.loading import load
from tractable.posterior.posterior import Posterior
from tractable.selection import select
from tractable.tables.encoder import Encoder
from tractable.tables.files import Source
from tractable.tables.ordered import Places

Arguments = Mapping[str, Any]  # options by name, as they were typed or saved


class Option(NamedTuple):
    """An option of a kind of model."""

    read: Callable[[Any], Any] = lambda value: value  # typed or saved value to one JSON holds, or an error
    usual: Any = None  # the default


@dataclass(frozen=True, eq=False)
class Task:
    """A model to learn from rows of a file, or a built-in example."""

    kind: "Kind"
    name: str  # short, for the run's folder
    label: str  # the data in words
    spec: dict[str, Any]  # JSON: the kind's options and what reading the file found; all that --resume and predict need
    data: Data  # rows to fit
    held_out: Data | None  # rows that the fit never sees
    model: Any = None  # a Model; None where one of several is to be chosen
    encoder: Any = None  # an Encoder, from the file's rows to the model's; None for an example
    shifted: np.ndarray | None = None  # inputs of rows from elsewhere, which predictions should be less sure of
    mesh: int | str | None = None  # devices that share the run


class Result(NamedTuple):
    """The result of a fit."""

    posterior: Posterior
    selection: Any = None  # a Selection where one of several models was chosen

    @property
    def interrupted(self) -> bool:
        return (self.selection or self.posterior).interrupted

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time by phase."""
        if self.selection is None:
            return self.posterior.seconds
        return {"fits": float(self.selection.table["seconds"].to_numpy().sum())}


class Kind:
    """A kind of model: what it takes, and how it is read, learnt, shown and predicts. ``models.KINDS`` lists them.

    A subclass has ``read(given)``, the Task of typed options or of a saved spec, whose warnings say how rows were read;
    ``page(task, result)``, arguments of ``sections_of``; and ``predict(folder, spec, given)``, a row for each of the
    file ``new``, by the run in a folder.
    """

    name: str  # as --model names it
    usual_method: str
    methods: tuple[str, ...] = ()  # those that learn it, if not all do
    options: Mapping[str, Option]
    takes = frozenset({"table"})  # further options, which are no part of a run's description
    compared = ""  # the methods that compare takes by default; compare and calibrate take no kind without them
    has_reference = True  # moments of its parameters mean something: compare measures them against a reference
    row_noun = "predictions"  # what the rows of ``predict`` are called
    read: Callable[[Arguments], Task]
    page: Callable[[Task, Result], dict[str, Any]]
    predict: Callable[[Path, dict[str, Any], Arguments], pd.DataFrame]

    def ask(self, given: Arguments) -> dict[str, Any]:
        """Values of the kind's options, typed or saved; the default where the value is None or absent."""
        asked = {name: given.get(name) for name in self.options}
        asked = {name: self.options[name].usual if value is None else value for name, value in asked.items()}
        return {name: None if value is None else self.options[name].read(value) for name, value in asked.items()}

    def usual(self, task: Task) -> str:
        """The default method for a task."""
        return self.usual_method

    def method(self, task: Task, settings: Arguments) -> Method:
        """The method of these settings; a SettingsError if it cannot learn this kind."""
        method = from_settings(dict(settings))
        if self.methods and method.label not in self.methods:
            raise SettingsError(
                f"--model {self.name} is learnt by --method {', '.join(self.methods)}; got {method.label}."
            )
        return method

    def learn(self, task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
        """The posterior of the run in a folder: loaded if it is done, else resumed from its checkpoint or started."""
        about, saved = folders.posterior_in(folder), folders.read_run(folder)
        same = saved["method"] == method.settings() and saved["seed"] == seed
        how = task.spec.get("verify", "auto")
        how = None if how == "none" else how
        # A network is judged on held-out rows: they say whether predictions on which repeated fits agree are right.
        later = bool(task.model.network_weights) and task.held_out is not None
        if about is not None and not about["interrupted"] and same:
            found = load(folder, task.model, task.data)
        else:
            options: Any = {"seed": seed, "progress": progress, "checkpoint": folder, "mesh": task.mesh}
            found = infer(task.model, task.data, method, verify=None if later else how, **options)
        if not later or found.interrupted or any(check.name == HELD_OUT for check in found.report().checks):
            return Result(found)
        found = found.verify(how, held_out=task.held_out)
        if jax.process_index() == 0:
            found.write(folder, streamed=method.chained)
        return Result(found)

    def title(self, task: Task, result: Result) -> str:
        """The page's title."""
        return f"{task.name} by {type(result.posterior.method).__name__}"


class OfRows(Kind):
    """A model of whole rows of numbers, or of sequences of them, of which no column is explained by the others.

    A subclass has ``source(path, spec, array, encoder)``, a file's rows, with an encoder the columns that it knows, and
    where they are in sequences, or None; ``model(spec, encoder)``; and ``columns(posterior, task, order)``, those of
    predictions by name.
    """

    unit = "row"  # a datum
    fewest = 0  # with fewer data, none is held out
    gaps = True  # whether new rows may lack numbers
    remedy = ""  # of rows that lack numbers, as a sentence
    source: Callable[..., tuple[Source, Places | None]]
    model: Callable[..., Any]
    columns: Callable[..., dict[str, Any]]

    def recognise(self, source: Source, spec: Arguments) -> tuple[dict[str, Any], float]:
        """The family, and what else the model needs to know of the rows; and their divisor, 0 to standardise."""
        return {"family": "normal"}, 0.0

    def rows(self, spec: Arguments, encoder: Encoder, source: Source, order: Places | None) -> np.ndarray:
        """(n, …) the model's data."""
        rows = encoder.standardise(source.values)
        return rows if order is None else order.placed_rows(rows)

    def read(self, given: Arguments) -> Task:
        if given.get("table") is None:
            raise DataError(f"--model {self.name} expects a file: tractable fit FILE --model {self.name}.")
        path, spec = Path(given["table"]), self.ask(given)
        source, order = self.source(path, spec, spec.get("array"), None)
        source = reading.drop_gaps(source, spec.get("missing"), self.remedy)
        found, divisor = self.recognise(source, spec)
        count = len(source.values) if order is None else len(order.names)
        if count < 2 > self.fewest:
            raise DataError(f"A {self.name} is learnt from rows that differ: expected two or more; got {count}.")
        back = reading.held_out_mask(count, spec["held_out"]) if count >= self.fewest else np.zeros(count, bool)
        encoder, source = reading.encoder_of(source, ~(back if order is None else back[order.sequence]), divisor)
        spec = {"table": str(path.resolve()), "model": self.name, **spec, **found, "encoder": encoder.to_dict()}
        spec["unit"] = None if order is None else order.unit
        rows, label = self.rows(spec, encoder, source, order), path.name.split(".")[0] or "table"
        data = Data(rows, missing="keep" if order is not None or np.isnan(rows).any() else "raise")
        words = f"{counted(int(np.sum(~back)), self.unit)} of {counted(len(encoder.columns), 'number')}"
        return Task(
            self, label, f"{label} ({words}, {spec['family']})", spec, *reading.part_rows(data, back), encoder=encoder
        )

    def predict(self, folder: Path, spec: dict[str, Any], given: Arguments) -> pd.DataFrame:
        spec |= self.ask(spec)
        encoder = Encoder.from_dict(spec["encoder"])
        source, order = self.source(given["new"], spec, given["array"], encoder)
        source.refuse_infinite() if self.gaps else source.refuse_gaps(self.remedy)
        data = Data(self.rows(spec, encoder, source, order), missing="keep")
        task = Task(self, "", "", spec, data, None, self.model(spec, encoder), encoder)
        return pd.DataFrame(self.columns(load(folder, task.model), task, order))


class Chosen(OfRows):
    """A latent-variable model with a number of components or states, which is chosen by a criterion.

    A subclass also has ``describe(posterior, task)``, θ in the table's units; ``files(described, task)``, tables by
    name for the folder; and ``page_sections(described, task, selection, back)``, what a page shows, of ``back`` data
    held out.
    """

    usual_method, methods = "em", ("em",)
    tries = "components"  # the option with the numbers to try
    bound: Callable[..., Model]  # (task, k) -> a model whose evidence is bounded, where --choose takes evidence
    describe: Callable[..., Any]
    files: Callable[..., dict[str, pd.DataFrame]]
    page_sections: Callable[..., Any]

    def read(self, given: Arguments) -> Task:
        task = super().read(given)
        if task.spec["choose"] == "held-out" and task.held_out is None:
            raise SettingsError(
                f"--choose held-out looks at {self.unit}s held out: give --held-out a share above 0"
                f"{f', and {self.fewest} {self.unit}s or more' * bool(self.fewest)}."
            )
        most, seen = max(task.spec[self.tries]), ~np.isnan(flat_rows(task.data.y)).all(1)
        if most > seen.sum():
            raise DataError(
                f"--{self.tries} asks for up to {most}, of {counted(int(seen.sum()), 'row')} to fit: each needs a row "
                "at least. Ask for fewer, or set --held-out 0."
            )
        task.spec["chosen"] = None
        return task

    def learn(self, task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
        """Fit a model of each size and choose one; the criteria are in the table's units."""
        spec, encoder = task.spec, task.encoder
        found = select(
            lambda k: self.model(spec | {"chosen": k}, encoder), task.data, sorted(set(spec[self.tries])), method,
            by=spec["choose"], held_out=task.held_out, bound_of=lambda k: self.bound(task, k), seed=seed,
            progress=progress, checkpoint=folder / "fits", noun=self.tries[:-1],
        )  # fmt: skip
        # log |d standardised / d x| is the same for every size, so the choice is that of the standardised units.
        units = encoder.log_scales(flat_rows(task.data.y)).sum()
        changes = {"log likelihood": -units, "BIC": 2 * units, "AIC": 2 * units, "evidence": -units}
        if task.held_out is not None:
            changes["held-out"] = -encoder.log_scales(flat_rows(task.held_out.y)).sum() / task.held_out.size
        table = found.table.assign(**{name: found.table[name] + change for name, change in changes.items()})
        found.posterior.write(folder)
        for name, frame in self.files(self.describe(found.posterior, task), task).items():
            write_table(folder / name, frame)
        write_table(folder / "criterion.csv", table)
        spec["chosen"] = found.components
        return Result(found.posterior, replace(found, table=table))

    def page(self, task: Task, result: Result) -> dict[str, Any]:
        back = 0 if task.held_out is None else task.held_out.size
        drawn = self.page_sections(self.describe(result.posterior, task), task, result.selection, back)
        return {"facts": pages.facts(result.selection, task.data.y, self.tries), "sections": drawn}

    def title(self, task: Task, result: Result) -> str:
        return f"{task.name} by a {self.name} of {counted(result.selection.components, self.tries[:-1])}"


def flat_rows(y: np.ndarray) -> np.ndarray:
    """Rows (n, d), also of sequences."""
    return y.reshape(-1, y.shape[-1])
