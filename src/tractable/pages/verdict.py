"""The sections that say how far a result can be trusted and how it was made: verdict, checks and settings."""

import importlib.metadata
import platform
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tractable.core.check import Check
from tractable.core.words import counted
from tractable.diagnostics.report import Report
from tractable.pages.sections import Section, Table, duration
from tractable.posterior.posterior import Posterior

MEANING = {
    "trust": "No check speaks against this result.",
    "caution": "Use this result only as the checks say, and not as a posterior.",
    "reject": "Do not use this result as a posterior. The checks say what to do.",
    "failed": "There is no result.",
}
RESERVE = {  # the end of an answer
    "caution": "; but the verdict is caution, so first read how far to trust it",
    "reject": "; but the verdict is reject, so do not rely on it",
}
STOPPED = " The run was stopped before its end."


def checks(found: Sequence[Check]) -> Table:
    """The checks as a table."""
    heads = ["check", "verdict", "value", "what it means"]
    return Table(heads, [[c.name, c.verdict, c.value, c.sentence] for c in found], heads[3:])


def trust(report: Report, facts: dict[str, Any], stopped: bool = False) -> Section:
    """The verdict with its meaning, the facts and the checks."""
    _, judged, basis = report.title.partition(", judged ")
    meaning = MEANING[report.verdict] + (f" The result was judged {basis}." if judged else "") + STOPPED * stopped
    return Section("How far to trust it", [facts, checks(report.checks)], meaning, verdict=report.verdict)


def answer(sentence: str, verdict: str) -> list[Section]:
    """The answer in one sentence, with a reserve if the verdict is not "trust"; nothing without a sentence."""
    whole = f"{sentence.removesuffix('.')}{RESERVE.get(verdict, '')}."
    return [Section("", note=whole)] if sentence else []


def settings(posterior: Posterior) -> Section:
    """Everything needed to repeat the run."""
    given: dict[str, Any] = {}
    for name, value in posterior.settings.items():  # an ensemble's member has settings of its own
        given |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    data = posterior.data
    rows = "none" if data is None else f"{data.size:,} rows"
    if data is not None and data.labels is not None:
        rows = f"{len(data.places):,} rows of {counted(data.size, 'group')}"
    run = {"data": rows, "seed": given.pop("seed"),
           "precision": jnp.result_type(float).name, "device": jax.default_backend()}  # fmt: skip
    versions = {name: importlib.metadata.version(name) for name in ("tractable", "jax", "numpyro", "numpy")}
    numbers = {
        name.replace("_", " "): value for name, value in posterior.found.items() if isinstance(value, int | float | str)
    }
    groups = {
        "Method": given, "Numbers of the run": numbers, "Run": run,
        "Wall time": {phase: duration(seconds) for phase, seconds in posterior.seconds.items()},
        "Versions": versions | {"python": platform.python_version()},
    }  # fmt: skip
    parts = [Section(name, [values]) for name, values in groups.items() if values]
    return Section("Settings", parts, layout="settings")
