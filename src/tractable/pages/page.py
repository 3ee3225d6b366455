"""Writes the report of any result as one HTML page."""

import pathlib
from collections.abc import Sequence
from typing import Any

from tractable.calibration.calibrate import Calibration
from tractable.comparison import Comparison
from tractable.core.model import Data, PyTree, as_data
from tractable.pages import comparison as comparisons
from tractable.pages import held_out as predictions
from tractable.pages import ladders, networks, parameters, predictive, ranks, verdict
from tractable.pages.render import write
from tractable.pages.sections import Cell, Section, duration
from tractable.posterior.posterior import Posterior
from tractable.tables.encoder import Encoder


def write_page(folder: str | pathlib.Path, posterior: Posterior, *, title: str, **how: Any) -> pathlib.Path:
    """Write ``report.html`` for a posterior: the verdict with its checks, numbers, figures and settings.

    Args:
        folder: the folder to write into; it is made if necessary.
        posterior: the result of ``infer``.
        title: the title of the page.
        how: as for ``sections_of``.

    Returns:
        The file's path.
    """
    return write(folder, title, sections_of(posterior, **how), type(posterior.method).__name__)


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
    """The report of a posterior: the verdict with its checks, the numbers and figures, and last the settings.

    Args:
        posterior: the result of ``infer``.
        held_out: Data, or arrays, that were not used in the fit; the page judges their predictions.
        encoder: the encoder of a table; weights are then shown with the names of their columns, and errors are in the
            target's units.
        shifted: inputs of rows unlike the fitted ones, whose predictions are compared with those of ``held_out``.
        shape: (height, width) if the rows of a ladder (a model with layers of latent variables) are pictures; by
            default square if possible.
        facts: values by name that are shown below the verdict in place of the usual ones.
        sections: sections that replace the parameters' table and figures, for models whose single parameters say
            little.
        notes: sentences on how the rows were read.
    """
    return [
        verdict.overview(posterior, usual_facts(posterior, encoder) if facts is None else facts),
        verdict.why(posterior.report()),
        *([Section("How the rows were read", notes)] if notes else []),
        *(of_parameters(posterior, encoder, shape) if sections is None else sections),
        *parameters.climb(posterior),
        *parameters.bias(posterior),
        *([] if held_out is None else predictions.sections(posterior, as_data(held_out), encoder, shifted)),
        verdict.settings(posterior),
    ]


def write_comparison_page(folder: str | pathlib.Path, comparison: Comparison, *, title: str) -> pathlib.Path:
    """Write ``report.html`` for a comparison: the table, the marginals in one figure, and each method's checks."""
    return write(folder, title, comparisons.sections(comparison), f"methods compared: {len(comparison.table)}")


def write_calibration_page(folder: str | pathlib.Path, calibration: Calibration, *, title: str) -> pathlib.Path:
    """Write ``report.html`` for a calibration: the verdict with its checks, and the ranks of every quantity."""
    return write(folder, title, ranks.sections(calibration), f"{calibration.method} calibrated")


def usual_facts(posterior: Posterior, encoder: Encoder | None = None) -> dict[str, Any]:
    """The facts of a run: numbers of rows, parameters and draws, and the time; for a table also the target's family."""
    shown, count = parameters.kept_by(posterior)
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


def of_parameters(posterior: Posterior, encoder: Encoder | None, shape: ladders.Shape) -> list[Section]:
    """The sections of the parameters, or of a ladder's layers."""
    first = parameters.numbers(posterior)
    if posterior.is_point and hasattr(posterior.model, "recognition"):  # layers of units, at one θ
        return [first, *ladders.sections(posterior, shape)]
    return [
        *parameters.effects_sections(posterior, encoder), first, *parameters.of_groups(posterior),
        *networks.members(posterior),
        *networks.layers(posterior), *parameters.sections(posterior),
        *predictive.sections(posterior, encoder),
    ]  # fmt: skip
