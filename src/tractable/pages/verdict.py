"""The sections that say how far a result can be trusted and how it was made: verdict, checks and settings."""

import importlib.metadata
import math
import platform
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tractable.core.check import Check
from tractable.core.words import counted
from tractable.diagnostics.report import Report
from tractable.pages.sections import Section, Table, duration, text
from tractable.posterior.posterior import Posterior

MEANING = {
    "trust": "No check speaks against this result.",
    "caution": "Use this result only as the checks say, and not as a posterior.",
    "reject": "Do not use this result as a posterior. The checks say what to do.",
    "failed": "There is no result.",
}


def overview(posterior: Posterior, facts: dict[str, Any]) -> Section:
    """The verdict with its meaning, and the facts."""
    verdict = posterior.report().verdict
    stopped = " The run was stopped before its end." if posterior.interrupted else ""
    return Section("", [facts], MEANING[verdict] + stopped, verdict=verdict)


def checks(found: Sequence[Check]) -> Table:
    """The checks as a table."""
    heads = ["check", "verdict", "value", "what it means"]
    return Table(heads, [[c.name, c.verdict, c.value, c.sentence] for c in found], heads[3:], "wide checks")


def why(report: Report) -> Section:
    """The checks behind a verdict."""
    return Section("Why", [checks(report.checks)], khat(report.checks))


def khat(found: Sequence[Check]) -> str:
    """Sentences about k-hat, the diagnostic of the importance weights p/q of a fitted q; empty without k-hat."""
    check = next((each for each in found if each.name == "k-hat"), None)
    if check is None or math.isnan(check.value):
        return ""
    if check.value == -math.inf:
        return "k-hat is −∞: the importance weights p/q of q's draws are all equal, so q is the posterior."
    value = text(check.value, ".2f", "−") if math.isfinite(check.value) else "infinite"
    sentence = f"k-hat is {value}: the importance weights p/q of q's draws vary "
    if check.verdict == "trust":
        return sentence + "so little that reweighting the draws corrects the errors of q."
    sentence += (
        "as if their variance were infinite, so q is too narrow in some direction."
        if check.value <= 1
        else "as if their mean were infinite, so q differs much from the posterior."
    )
    return sentence + " With many parameters k-hat is rarely small; predictions may still be good."


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
    groups = {
        "Method": given,
        "Numbers of the run": {
            name.replace("_", " "): value for name, value in posterior.found.items()
            if isinstance(value, int | float | str)
        },
        "Run": run,
        "Wall time": {phase: duration(seconds) for phase, seconds in posterior.seconds.items()},
        "Versions": versions | {"python": platform.python_version()},
    }  # fmt: skip
    parts = [Section(name, [values]) for name, values in groups.items() if values]
    return Section("Settings", parts, layout="settings")
