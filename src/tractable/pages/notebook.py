"""Shows a result in a notebook: the few sections of its page that fit below a cell."""

import functools

import numpy as np

from tractable.comparison import Comparison
from tractable.diagnostics.report import Report
from tractable.pages import parameters, render, verdict
from tractable.pages.comparison import results_table
from tractable.pages.page import usual_facts
from tractable.pages.sections import Figure, Part, Section, Table, table_of
from tractable.posterior.model_comparison import ModelComparison
from tractable.posterior.posterior import Posterior
from tractable.posterior.predict import Prediction

ROWS = 10  # the largest number of rows of a prediction that are shown


def html(result: object) -> str:
    """A result as a piece of HTML, with a style sheet that applies to this piece only."""
    return render.html("", parts_of(result), "", whole=False)


@functools.singledispatch
def parts_of(result: object) -> list[Section]:
    """The sections that a notebook shows of a result; by default only the result's text."""
    return [Section("", [str(result)])]


@parts_of.register
def _(posterior: Posterior) -> list[Section]:
    trust = verdict.trust(posterior.report(), usual_facts(posterior), posterior.interrupted)
    return [trust, parameters.numbers(posterior)]


@parts_of.register(Report)
def _(report: Report) -> list[Section]:
    return [Section(report.title, [verdict.checks(report.checks)])]


@parts_of.register
def _(comparison: Comparison) -> list[Section]:
    failed = [f"{label} failed: {sentence}" for label, sentence in comparison.failures.items()]
    return [results_table(comparison.table), *([Section("", failed)] if failed else [])]


@parts_of.register(ModelComparison)
def _(comparison: ModelComparison) -> list[Section]:
    return [Section("", [table_of(comparison.table.reset_index()), *comparison.remarks])]


@parts_of.register(Prediction)
def _(prediction: Prediction) -> list[Section]:
    if np.ndim(prediction.mean) > 2:
        return [Section("", [f"Predictions of shape {np.shape(prediction.mean)}."])]
    frame = prediction.to_frame()
    table = table_of(frame.head(ROWS).rename_axis("row").reset_index())
    return [Section("", [table, *[f"Rows not shown: {len(frame) - ROWS:,}."] * (len(frame) > ROWS)])]


@parts_of.register(Figure)
@parts_of.register(Table)
@parts_of.register(Section)
def _(part: Part) -> list[Section]:
    return [part if isinstance(part, Section) else Section("", [part])]
