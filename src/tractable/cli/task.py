"""What a command line is to learn: the kinds of model, and a task of one kind."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
    label: str  # what is learnt from, in words
    choices: Arguments  # values of the kind's options
    spec: dict[str, Any]  # what JSON can hold; the task is read again from it, and rows to predict are encoded by it
    data: Data  # rows to fit
    held_out: Data | None  # rows that no method takes part of
    model: Any = None  # a Model; None where it is chosen among several
    encoder: Any = None  # an Encoder, from rows of the file to those of the model; None of an example
    shifted: np.ndarray | None = None  # inputs of rows from elsewhere, which predictions should be less sure of

    @classmethod
    def of_file(
        cls, kind: "Kind", path: Path, words: str, choices: Arguments, about: Arguments, encoder: Encoder, **parts: Any
    ) -> "Task":
        """Of rows of a file; ``about`` is what JSON holds of it beside the choices, ``parts`` are the other fields."""
        name = path.name.split(".")[0] or "table"
        spec = {"table": str(path.resolve()), "model": kind.name, **choices, **about, "encoder": encoder.to_dict()}
        return cls(kind, name, f"{name} ({words})", choices, spec, encoder=encoder, **parts)


class Result(NamedTuple):
    """What a fit came to."""

    posterior: Posterior
    selection: Selection | None = None  # where the model was chosen among several

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
    method: str  # what learns it where nothing is said, unless
    options: Mapping[str, Option]  # those that it takes
    refusals: Mapping[str, str]  # sentences about options that it does not take
    read: Callable[["Kind", Arguments], Task]  # from what was typed, or from a saved spec
    learn: Callable[[Task, Method, int, Path, bool | None], Result]  # seed, folder, progress; then in the folder too
    page: Callable[[Path, Task, Result], Any]  # writes the report into a folder
    tables: Callable[[Task, Result], Iterable[Any]]  # what a terminal shows of a fit before the verdict,
    predict: Callable[[Path, Arguments, Path, "Request"], pd.DataFrame]  # (folder, spec, new, …): a row for each
    saved_tables: Callable[[Path, Arguments, Arguments], Iterable[Any]] = lambda folder, spec, about: ()  # of a folder
    row_noun: str = "predictions"  # what those rows are
    methods: tuple[str, ...] = ()  # names of those that learn it; empty for any but the
    unsuitable: Mapping[str, str] = field(default_factory=dict)  # with sentences about why they cannot
    adapt: Callable[[Task, Any, bool], Method] = lambda task, method, sized: method  # ``sized``: its batches were given
    side_by_side: str | None = None  # methods that compare puts side by side; None where it takes no such models
    has_reference: bool = True  # moments of its parameters mean something, and are held against those of a reference
    calibrates: bool = False  # its predictions have intervals, which other rows can calibrate
    noun: str = ""  # it, in a sentence; its name by default
    folder: str = ""  # how the run's folder ends; the method's name by default
    usual: Callable[[Task], str | None] = lambda task: None  # knows a better one for the task
    learner: str = ""  # what is said to learn; the method's name by default

    def ask(self, arguments: Arguments) -> dict[str, Any]:
        """The kind's options from what was typed or saved; what is None or absent is the usual."""
        said = {name: arguments.get(name) for name in self.options}
        said = {name: self.options[name].usual if value is None else value for name, value in said.items()}
        return {name: None if value is None else self.options[name].read(value) for name, value in said.items()}

    def adapted_method(self, task: Task, method: Method, sized: bool) -> Method:
        """The method, adapted to the task, or a sentence where it cannot learn it."""
        if self.methods and method.label not in self.methods:
            names = f"{', '.join(self.methods[:-1])} or {self.methods[-1]}" if self.methods[1:] else self.methods[0]
            raise SettingsError(f"--model {self.name} is learnt by --method {names}; got {method.label}.")
        if method.label in self.unsuitable:
            raise SettingsError(self.unsuitable[method.label])
        return self.adapt(task, method, sized)


class Request(NamedTuple):
    """What a command line says of predictions."""

    level: float
    calibrate: Path | None
    array: str | None


def held_back(count: int, share: float) -> np.ndarray:
    """(count,) which rows are held out, at random; two at least are not."""
    chosen = np.zeros(count, bool)
    chosen[np.random.default_rng(SPLIT_SEED).permutation(count)[: min(round(share * count), count - 2)]] = True
    return chosen


def parted(rows: Data, back: np.ndarray) -> dict[str, Data | None]:
    """A task's rows to fit and, where there are any, those held out."""
    return {"data": rows.take(~back), "held_out": rows.take(back) if back.any() else None}


def split(
    frame: pd.DataFrame, target: str, classes: bool, share: float, needed: np.ndarray | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows to fit, rows held out). Of every class at least one row is fitted, and so are those that are needed."""
    chosen = held_back(len(frame), share)
    if needed is not None:
        chosen &= ~needed
    if classes:
        labels = frame[target].astype(str).to_numpy()
        unseen = ~np.isin(labels, labels[~chosen])
        chosen &= ~unseen
    return frame.loc[~chosen], frame.loc[chosen]


def posterior_of(
    task: Task, method: Method, seed: int, folder: Path, progress: bool | None, verify: str = "auto"
) -> Posterior:
    """The posterior of the run in a folder: as it stands where it is done, from its checkpoint, or from the start."""
    about, saved = folders.posterior_in(folder), folders.read_run(folder)
    same = saved["method"] == method.settings() and saved["seed"] == seed
    how = None if verify == "none" else verify
    # A network is judged by the rows its scores are of: they show whether predictions that fits agree on are right.
    later = bool(task.model.network_weights) and task.held_out is not None
    if about is not None and not about["interrupted"] and same:
        found = load(folder, task.model, task.data)
    else:
        first = None if later else how
        found = infer(task.model, task.data, method, seed=seed, progress=progress, checkpoint=folder, verify=first)
    if not later or found.interrupted or any(check.name == HELD_OUT for check in found.report().checks):
        return found
    found = found.verify(how, held_out=task.held_out)
    found.write(folder, streamed=method.chained)
    return found
