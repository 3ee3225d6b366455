"""Defines ``Kind``, a kind of model as ``--model`` names it, and ``Task``, one model of a kind with its data."""

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
from tractable.tables.fit import held_out_mask
from tractable.tables.ordered import Places

Arguments = Mapping[str, Any]  # the values of options by name, as the user typed them or a run saved them


class Option(NamedTuple):
    """An option of a kind of model."""

    # From a typed or saved value to a value that JSON can hold; it raises an error for a bad value.
    read: Callable[[Any], Any] = lambda value: value
    usual: Any = None  # the default


HELD_OUT_SHARE = {"held_out": Option(reading.share, 0.2)}


@dataclass(frozen=True, eq=False)
class Task:
    """A model to learn from rows of a file, or a built-in example."""

    kind: "Kind"
    name: str  # a short name, for the run's folder
    label: str  # a description of the data in words
    # For JSON: the kind's options, and what was found when the file was read. --resume and predict need only this.
    spec: dict[str, Any]
    data: Data  # the rows to fit
    held_out: Data | None  # rows that the fit does not use
    model: Any = None  # a Model; None if one of several models is to be chosen
    encoder: Any = None  # an Encoder that maps the file's rows to those of the model; None for an example
    shifted: np.ndarray | None = None  # inputs of rows unlike the fitted ones, whose predictions should be less certain
    mesh: int | str | None = None  # the number of devices that share the run, or "auto"


class Result(NamedTuple):
    """The result of a fit."""

    posterior: Posterior
    selection: Any = None  # a Selection if one of several models was chosen

    @property
    def interrupted(self) -> bool:
        return (self.selection or self.posterior).interrupted

    @property
    def seconds(self) -> dict[str, float]:
        """The time of the fit by phase; a selection's fits may run at the same time, and have none in common."""
        return {} if self.selection else self.posterior.seconds


class Kind:
    """A kind of model: its options, how its rows are read, how it learns, its page and its predictions.

    ``models.KINDS`` lists the kinds. A subclass defines these methods:

    - ``read(given)``: the Task of typed options or of a saved spec; its warnings say how rows were read.
    - ``page(task, result)``: arguments of ``sections_of``.
    - ``predict(folder, spec, given)``: from the run in a folder, a row of predictions for each row of the file ``new``.
    """

    name: str  # the kind's name as a value of --model
    usual_method: str  # the name of the default method
    methods: tuple[str, ...] = ()  # the methods that can learn this kind; () for all
    options: Mapping[str, Option]
    takes = frozenset({"table"})  # further options, which are not part of a run's description
    compared = ""  # the default methods of compare; "" if compare and calibrate do not accept this kind
    has_reference = True  # whether compare measures moments of the parameters against a reference
    row_noun = "predictions"  # the word for the rows of ``predict``
    read: Callable[[Arguments], Task]
    page: Callable[[Task, Result], dict[str, Any]]
    predict: Callable[[Path, dict[str, Any], Arguments], pd.DataFrame]

    def ask(self, given: Arguments) -> dict[str, Any]:
        """The values of the kind's options, typed or saved; the default where a value is None or absent."""
        values = {name: given.get(name) for name in self.options}
        values = {name: self.options[name].usual if value is None else value for name, value in values.items()}
        return {name: None if value is None else self.options[name].read(value) for name, value in values.items()}

    def usual(self, task: Task) -> dict[str, Any]:
        """The fields of the default method for a task; a field that is absent is chosen by ``method``."""
        return {"method": self.usual_method}

    def method(self, task: Task, settings: Arguments) -> Method:
        """The method with these settings.

        Raises:
            SettingsError: the method cannot learn this kind of model.
        """
        method = from_settings(dict(settings))
        if self.methods and method.label not in self.methods:
            raise SettingsError(
                f"--model {self.name} expects --method {' or '.join(self.methods)}; got {method.label}."
            )
        return method

    def learn(self, task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
        """The posterior of the run in a folder.

        It is loaded if the run is finished; if not, the run is resumed from its checkpoint, or started.
        """
        about, saved = folders.posterior_in(folder), folders.read_run(folder)
        same = saved["method"] == method.settings() and saved["seed"] == seed
        verify = task.spec.get("verify", "auto")
        verify = None if verify == "none" else verify
        # Repeated fits of a network may agree on wrong predictions; only held-out rows show this. So a network is
        # verified after the fit, with its held-out rows.
        later = bool(task.model.network_weights) and task.held_out is not None
        if about is not None and not about["interrupted"] and same:
            posterior = replace(load(folder, task.model, task.data), seconds={})  # this process spends no time on it
        else:
            options: Any = {"seed": seed, "progress": progress, "checkpoint": folder, "mesh": task.mesh}
            posterior = infer(task.model, task.data, method, verify=None if later else verify, **options)
        if not later or posterior.interrupted or any(check.name == HELD_OUT for check in posterior.report().checks):
            return Result(posterior)
        posterior = posterior.verify(verify, held_out=task.held_out)
        if jax.process_index() == 0:
            posterior.write(folder, streamed=method.chained)
        return Result(posterior)

    def title(self, task: Task, result: Result) -> str:
        """The page's title."""
        return f"{task.name} by {type(result.posterior.method).__name__}"


class OfRows(Kind):
    """A kind that models whole rows of numbers, or sequences of rows, without a target.

    A subclass also defines these methods:

    - ``source(path, spec, array, encoder)``: a file's rows (with an encoder, only its columns), and the rows' places in
      sequences, or None.
    - ``model(spec, encoder)``: the model.
    - ``columns(posterior, task, order)``: the columns of the predictions, by name.
    """

    unit = "row"  # the word for one datum
    fewest = 0  # if there are fewer data than this, none is held out
    gaps = True  # whether new rows may lack numbers
    remedy = ""  # a sentence that says what to do about rows that lack numbers
    source: Callable[..., tuple[Source, Places | None]]
    model: Callable[..., Any]
    columns: Callable[..., dict[str, Any]]

    def recognise(self, source: Source, spec: Arguments) -> tuple[dict[str, Any], float]:
        """What the model needs to know about the rows, such as the family; and a number by which the rows are divided.

        A divisor of 0 means that the rows are standardised.
        """
        return {"family": "normal"}, 0.0

    def rows(self, spec: Arguments, encoder: Encoder, source: Source, order: Places | None) -> np.ndarray:
        """The model's data, (n, …)."""
        rows = encoder.standardise(source.values)
        return rows if order is None else order.placed_rows(rows)

    def read(self, given: Arguments) -> Task:
        if given.get("table") is None:
            raise DataError(f"--model {self.name} expects a file: tractable fit FILE --model {self.name}.")
        path, spec = Path(given["table"]), self.ask(given)
        source, order = self.source(path, spec, spec.get("array"), None)
        source = reading.drop_gaps(source, spec.get("missing"), self.remedy)
        facts, divisor = self.recognise(source, spec)
        count = len(source.values) if order is None else len(order.names)
        if count < 2 > self.fewest:
            raise DataError(f"--model {self.name} needs two rows or more to learn from; got {count}.")
        mask = held_out_mask(count, spec["held_out"]) if count >= self.fewest else np.zeros(count, bool)
        encoder, source = reading.encoder_of(source, ~(mask if order is None else mask[order.sequence]), divisor)
        spec = {"table": str(path.resolve()), "model": self.name, **spec, **facts, "encoder": encoder.to_dict()}
        spec["unit"] = None if order is None else order.unit
        rows, label = self.rows(spec, encoder, source, order), path.name.split(".")[0] or "table"
        data = Data(rows, missing="keep" if order is not None or np.isnan(rows).any() else "raise")
        words = f"{counted(int(np.sum(~mask)), self.unit)} of {counted(len(encoder.columns), 'number')}"
        return Task(
            self, label, f"{label} ({words}, {spec['family']})", spec, *reading.part_rows(data, mask), encoder=encoder
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
    """A kind of latent-variable models whose number of components or states is chosen by a criterion.

    A subclass also defines these methods:

    - ``describe(posterior, task)``: θ in the table's units.
    - ``files(description, task)``: the tables for the folder, by name.
    - ``page_sections(description, task, posterior)``: the sections of the page on the components or states.
    """

    usual_method, methods = "em", ("em",)
    tries = "components"  # the option that lists the numbers to try
    bound: Callable[..., Model]  # for --choose evidence: (task, k) -> a model that gives a bound on the evidence
    describe: Callable[..., Any]
    files: Callable[..., dict[str, pd.DataFrame]]
    page_sections: Callable[..., Any]

    def read(self, given: Arguments) -> Task:
        task = super().read(given)
        if task.spec["choose"] == "held-out" and task.held_out is None:
            raise SettingsError(
                f"--choose held-out needs held-out {self.unit}s: give --held-out a share above 0"
                f"{f', and {self.fewest} {self.unit}s or more' * bool(self.fewest)}."
            )
        most, has_numbers = max(task.spec[self.tries]), ~np.isnan(flat_rows(task.data.y)).all(1)
        if most > has_numbers.sum():
            raise DataError(
                f"--{self.tries} asks for up to {most} with {counted(int(has_numbers.sum()), 'row')} to fit: each "
                f"{self.tries[:-1]} needs at least one row. Ask for fewer {self.tries}, or set --held-out 0."
            )
        task.spec["chosen"] = None
        return task

    def learn(self, task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
        """Fit a model of each size to try, and choose one of them; the criteria are in the table's units."""
        spec, encoder = task.spec, task.encoder
        selection = select(
            lambda k: self.model(spec | {"chosen": k}, encoder), task.data, sorted(set(spec[self.tries])), method,
            by=spec["choose"], held_out=task.held_out, bound_of=lambda k: self.bound(task, k), seed=seed,
            progress=progress, checkpoint=folder / "fits", noun=self.tries[:-1],
        )  # fmt: skip
        # Change to the table's units. log |d standardised / d x| is the same for every model, so the choice stays.
        units = encoder.log_scales(flat_rows(task.data.y)).sum()
        changes = {"log likelihood": -units, "BIC": 2 * units, "AIC": 2 * units, "evidence": -units}
        if task.held_out is not None:
            changes["held-out"] = -encoder.log_scales(flat_rows(task.held_out.y)).sum() / task.held_out.size
        table = selection.table.assign(**{name: selection.table[name] + change for name, change in changes.items()})
        selection.posterior.write(folder)
        for name, frame in self.files(self.describe(selection.posterior, task), task).items():
            write_table(folder / name, frame)
        write_table(folder / "criterion.csv", table)
        spec["chosen"] = selection.components
        return Result(selection.posterior, replace(selection, table=table))

    def page(self, task: Task, result: Result) -> dict[str, Any]:
        found, count = self.describe(result.posterior, task), 0 if task.held_out is None else task.held_out.size
        shown = self.page_sections(found, task, result.posterior)
        sections = pages.sections(result.selection, found.answer, shown, self.tries, count)
        return {"facts": pages.facts(result.selection, task.data.y, self.tries), "sections": sections}

    def title(self, task: Task, result: Result) -> str:
        return f"{task.name} by a {self.name} of {counted(result.selection.components, self.tries[:-1])}"


def flat_rows(y: np.ndarray) -> np.ndarray:
    """Rows, or the rows of sequences, as an array (n, d)."""
    return y.reshape(-1, y.shape[-1])
