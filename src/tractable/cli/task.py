"""``Kind``, a kind of model as ``--model`` names it, and ``Task``, one model of a kind with its data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from tractable.checks.predictions import HELD_OUT
from tractable.cli import folders
from tractable.cli.readers import Arguments, Option
from tractable.core import Data
from tractable.data.encoder import Encoder
from tractable.inference import infer
from tractable.methods import Method
from tractable.results.loading import load
from tractable.results.posterior import Posterior
from tractable.selection import Selection
from tractable.tools.errors import SettingsError

SPLIT_SEED = 0  # which rows are held out is a property of the table, not of a run


@dataclass(frozen=True, eq=False)
class Task:
    """A model to learn from rows of a file, or a built-in example."""

    kind: "Kind"
    name: str  # short, for the run's folder
    label: str  # the data in words
    choices: Arguments  # values of the kind's options
    spec: dict[str, Any]  # JSON; rebuilds the task on --resume, and holds the encoder for rows to predict
    data: Data  # rows to fit
    held_out: Data | None  # rows that the fit never sees
    model: Any = None  # a Model; None where one of several is to be chosen
    encoder: Any = None  # an Encoder, from the file's rows to the model's; None for an example
    shifted: np.ndarray | None = None  # inputs of rows from elsewhere, which predictions should be less sure of
    mesh: int | str | None = None  # devices that share the run

    @classmethod
    def of_file(
        cls, kind: "Kind", path: Path, words: str, choices: Arguments, about: Arguments, encoder: Encoder, **parts: Any
    ) -> "Task":
        """A task on a file's rows; ``about`` joins the choices in ``spec``, ``parts`` are the other fields."""
        name = path.name.split(".")[0] or "table"
        spec = {"table": str(path.resolve()), "model": kind.name, **choices, **about, "encoder": encoder.to_dict()}
        return cls(kind, name, f"{name} ({words})", choices, spec, encoder=encoder, **parts)


class Result(NamedTuple):
    """The result of a fit."""

    posterior: Posterior
    selection: Selection | None = None  # where one of several models was chosen

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time by phase."""
        if self.selection is None:
            return self.posterior.seconds
        return {"fits": float(self.selection.table["seconds"].to_numpy().sum())}


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of model, as ``--model`` names it."""

    name: str
    method: str  # default method, where ``usual`` knows no better one
    options: Mapping[str, Option]  # the options it takes
    refusals: Mapping[str, str]  # error messages for options that it does not take
    read: Callable[["Kind", Arguments], Task]  # from typed options or a saved spec
    learn: Callable[[Task, Method, int, Path, bool | None], Result]  # (task, method, seed, folder, progress)
    page: Callable[[Path, Task, Result], Any]  # writes the report into a folder
    tables: Callable[[Task, Result], Iterable[Any]]  # what a terminal shows before the verdict
    predict: Callable[[Path, Arguments, Path, "Request"], pd.DataFrame]  # (folder, spec, new, …)
    saved_tables: Callable[[Path, Arguments, Arguments], Iterable[Any]] = lambda folder, spec, about: ()  # for report
    row_noun: str = "predictions"  # what the rows of ``predict`` are called
    methods: tuple[str, ...] = ()  # methods that can fit it; empty: all but ``unsuitable``
    unsuitable: Mapping[str, str] = field(default_factory=dict)  # methods that cannot, and why
    adapt: Callable[[Task, Any, bool], Method] = lambda task, method, sized: method  # sized: batch_size was given
    side_by_side: str | None = None  # compare's default methods; None where compare does not take this kind
    has_reference: bool = True  # moments of its parameters mean something: compare holds them against a reference
    calibrates: bool = False  # its predictions have intervals, which --calibrate can correct
    noun: str = ""  # the kind's name in a sentence; ``name`` if empty
    folder: str = ""  # end of the run's folder's name; the method's name if empty
    usual: Callable[[Task], str | None] = lambda task: None  # a better method for this task
    learner: str = ""  # named in "… on <data>"; the method's name if empty

    def ask(self, arguments: Arguments) -> dict[str, Any]:
        """Values of the kind's options, typed or saved; the default where the value is None or absent."""
        said = {name: arguments.get(name) for name in self.options}
        said = {name: self.options[name].usual if value is None else value for name, value in said.items()}
        return {name: None if value is None else self.options[name].read(value) for name, value in said.items()}

    def adapted_method(self, task: Task, method: Method, sized: bool) -> Method:
        """The method adapted to the task; a SettingsError if it cannot fit this kind."""
        if self.methods and method.label not in self.methods:
            names = f"{', '.join(self.methods[:-1])} or {self.methods[-1]}" if self.methods[1:] else self.methods[0]
            raise SettingsError(f"--model {self.name} is learnt by --method {names}; got {method.label}.")
        if method.label in self.unsuitable:
            raise SettingsError(self.unsuitable[method.label])
        return self.adapt(task, method, sized)


class Request(NamedTuple):
    """What a command line says about predictions."""

    level: float
    calibrate: Path | None
    array: str | None


def held_back(count: int, share: float) -> np.ndarray:
    """(count,) random mask of the rows held out; at least two rows are kept to fit."""
    chosen = np.zeros(count, bool)
    chosen[np.random.default_rng(SPLIT_SEED).permutation(count)[: min(round(share * count), count - 2)]] = True
    return chosen


def parted(rows: Data, back: np.ndarray) -> dict[str, Data | None]:
    """``data``, the rows to fit, and ``held_out``, the rest or None, as arguments of a Task."""
    return {"data": rows.take(~back), "held_out": rows.take(back) if back.any() else None}


def split(
    frame: pd.DataFrame, target: str, classes: bool, share: float, needed: np.ndarray | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows to fit, rows held out). Rows marked ``needed`` and at least one row of every class are fitted."""
    chosen = held_back(len(frame), share)
    if needed is not None:
        chosen &= ~needed
    if classes:
        labels: Any = frame[target].astype(str)
        chosen &= labels.isin(labels[~chosen].unique()).to_numpy()  # NumPy's isin compares texts pair by pair
    return frame.loc[~chosen], frame.loc[chosen]


def posterior_of(
    task: Task, method: Method, seed: int, folder: Path, progress: bool | None, verify: str = "auto"
) -> Posterior:
    """The posterior of the run in a folder: loaded if it is done, else resumed from its checkpoint or started."""
    about, saved = folders.posterior_in(folder), folders.read_run(folder)
    same = saved["method"] == method.settings() and saved["seed"] == seed
    how = None if verify == "none" else verify
    # A network is judged on held-out rows: they show whether the predictions on which repeated fits agree are right.
    later = bool(task.model.network_weights) and task.held_out is not None
    if about is not None and not about["interrupted"] and same:
        found = load(folder, task.model, task.data)
    else:
        first = None if later else how
        options: Any = {"seed": seed, "progress": progress, "checkpoint": folder, "verify": first, "mesh": task.mesh}
        found = infer(task.model, task.data, method, **options)
    if not later or found.interrupted or any(check.name == HELD_OUT for check in found.report().checks):
        return found
    found = found.verify(how, held_out=task.held_out)
    if jax.process_index() == 0:
        found.write(folder, streamed=method.chained)
    return found
