"""Writes the report of any result as one HTML page."""

import pathlib
from collections.abc import Sequence
from typing import Any

from tractable.calibration.calibration import Calibration
from tractable.comparison import Comparison
from tractable.core.model import Data, PyTree, as_data
from tractable.pages import comparison as comparisons
from tractable.pages import effects, ladders, networks, parameters, predictive, ranks, verdict
from tractable.pages import held_out as predictions
from tractable.pages.render import write
from tractable.pages.sections import Cell, Section, duration
from tractable.posterior.posterior import Posterior
from tractable.tables.encoder import Encoder


def write_page(folder: str | pathlib.Path, posterior: Posterior, *, title: str = "", **how: Any) -> pathlib.Path:
    """Write ``report.html`` for a posterior: the answer, what it shows, how far to trust it, and its parameters.

    Args:
        folder: the folder to write into; it is made if necessary.
        posterior: the result of ``infer``.
        title: the title of the page; for a table, by default what was predicted from what.
        how: as for ``sections_of``.

    Returns:
        The file's path.
    """
    encoder, method = how.get("encoder"), type(posterior.method).__name__
    title = title or (f"A model by {method}" if encoder is None else effects.title_of(encoder))
    return write(folder, title, sections_of(posterior, **how), method)


def sections_of(
    posterior: Posterior,
    *,
    held_out: Data | PyTree = None,
    encoder: Encoder | None = None,
    shifted: PyTree = None,
    shape: tuple[int, int] | None = None,
    facts: dict[str, Any] | None = None,
    sections: Sequence[Section] | None = None,
    notes: Sequence[str] = (),
) -> list[Section]:
    """The report of a posterior: the answer, what it shows, how far to trust it, its parameters, and the settings.

    Without a table, the verdict comes before what the posterior shows.

    Args:
        posterior: the result of ``infer``.
        held_out: Data, or arrays, that were not used in the fit; the page judges their predictions.
        encoder: the encoder of a table; the page then shows the effects of its columns.
        shifted: inputs of rows unlike the fitted ones, whose predictions are compared with those of ``held_out``.
        shape: (height, width) if the rows of a ladder (a model with layers of latent variables) are pictures; by
            default square if possible.
        facts: values by name that are shown below the verdict in place of the usual ones.
        sections: the answer, as a section without a title, and sections that replace the parameters' table and
            figures, for models whose single parameters say little.
        notes: sentences on how the rows were read.
    """
    report, groups, found = posterior.report(), effects.effects_of(posterior, encoder), None
    if held_out is not None and (posterior.count or posterior.is_point):
        found = predictions.held_out_scores(posterior, as_data(held_out), encoder, shifted)
    is_ladder = posterior.is_point and hasattr(posterior.model, "recognition")  # layers of units, at one θ
    own, theirs, answer = list(sections or ()), [], ""
    if own and not own[0].title:
        answer = own.pop(0).note
    if sections is None and is_ladder:
        own, theirs = ladders.sections(posterior, shape), [parameters.numbers(posterior)]
        answer = ladders.sentence(posterior)
    elif sections is None:
        own = predictive.sections(posterior, encoder)
        theirs = [parameters.numbers(posterior), *parameters.of_groups(posterior), *networks.members(posterior),
                  *networks.layers(posterior), *parameters.figures(posterior)]  # fmt: skip
        if encoder is None:
            answer = parameters.sentence(posterior)
        else:
            answer = effects.sentence(groups, encoder) or predictions.sentence(found, encoder)
    shows = [*effects.sections(groups, encoder), *(predictions.sections(found, encoder) if found else []), *own]
    facts = usual_facts(posterior, encoder) if facts is None else facts
    trust = [verdict.trust(report, facts, posterior.interrupted)]
    return [
        *verdict.answer(answer, report.verdict),
        *(trust + shows if encoder is None else shows + trust),
        *([Section("How the rows were read", notes)] if notes else []),
        *theirs,
        *parameters.climb(posterior),
        verdict.settings(posterior),
    ]


def write_comparison_page(folder: str | pathlib.Path, comparison: Comparison, *, title: str) -> pathlib.Path:
    """Write ``report.html`` for a comparison: its table, its marginals in figures, and each method's checks."""
    return write(folder, title, comparisons.sections(comparison), f"methods compared: {len(comparison.table)}")


def write_calibration_page(folder: str | pathlib.Path, calibration: Calibration, *, title: str) -> pathlib.Path:
    """Write ``report.html`` for a calibration: the verdict with its checks, and the ranks of every quantity."""
    return write(folder, title, ranks.sections(calibration), f"{calibration.method} calibrated")


def usual_facts(posterior: Posterior, encoder: Encoder | None = None) -> dict[str, Any]:
    """The facts of a run: numbers of rows, parameters and draws, and the time; for a table also the target's family."""
    shown, count = parameters.describe_draws(posterior)
    data = posterior.data
    weighed = "" if data is None or data.weights is None else f"count as {posterior.rows:,.6g} by their weights"
    facts = {"rows of data": Cell(0 if data is None else data.size, ",d", weighed)}
    if data is not None and data.labels is not None:
        facts = {"rows of data": Cell(len(data.places), ",d"), "groups": Cell(data.size, ",d")}
    families = [] if encoder is None else [aim.family for aim in encoder.targets if aim.family != "none"]
    facts |= {"family": ", ".join(dict.fromkeys(families))} if families else {}
    return {
        **facts,
        "parameters": Cell(len(posterior.names), ",d"),
        shown: count,
        **({} if posterior.curve is None else {"climb": str(posterior.curve)}),
        "wall time": duration(sum(posterior.seconds.values())),
    }
