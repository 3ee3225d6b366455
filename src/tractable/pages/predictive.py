"""Predictive checks: whether replicated data look like the fitted rows, and how well left-out rows are predicted."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure as Canvas

from tractable.core.censored import known
from tractable.core.censoring import censors, datum_of
from tractable.core.errors import TractableError
from tractable.core.words import counted
from tractable.diagnostics.censoring import distribution
from tractable.pages.held_out import pit
from tractable.pages.parameters import few_groups, listed_mask
from tractable.pages.plots import drawing, short, tidy
from tractable.pages.sections import Cell, Figure, Part, Section, Table
from tractable.pages.style import COLOURS, INK
from tractable.posterior import groups
from tractable.posterior.pointwise import FEWEST, Loo, affordable, replicate
from tractable.posterior.posterior import Posterior
from tractable.posterior.predict import classes_of
from tractable.posterior.scaling import SENSITIVE, prior_moves
from tractable.tables.encoder import Encoder

ROWS, DRAWN = 500, 500  # the largest numbers of rows and of draws that are used
CLASSES = 30  # the largest number of classes in the table
NAMED = 6  # the largest number of parameters that are named as sensitive to the prior
BAND = (0.05, 0.95)  # the quantiles of the replicated data sets that bound the band of a figure

NOTE = (
    "Rows and replicated data: the share of rows up to each value. Line: the rows (of censored rows an estimate from "
    "their bounds: Kaplan-Meier, Turnbull). Band: the middle 90 % of data sets drawn from the posterior."
)
LEFT_OUT = (
    " Rows in their predictions: the share of each row's prediction, from all other rows, that lies below the row. It "
    "is flat if the model is right."
)
GROUPED = " The rows of a group are correlated, which the dashed lines do not allow for."


class Seen(NamedTuple):
    """Observed rows of one number each, and replicated data for them."""

    y: np.ndarray  # (n,) the observed numbers, or (n, 2) their bounds
    drawn: np.ndarray  # (s, n) the replicated numbers
    classes: bool  # whether the numbers are codes of classes


def sections(posterior: Posterior, encoder: Encoder | None = None) -> list[Section]:
    """Facts of leave-one-out prediction, and for rows of one number a figure; nothing without rows."""
    if posterior.data is None or posterior.phi is not None or not (posterior.is_point or posterior.count):
        return []
    if affordable(posterior.model, posterior.data) < FEWEST:
        return []
    loo = None  # stays None if leave-one-out does not apply
    with contextlib.suppress(TractableError):
        loo = posterior.loo(draws=affordable(posterior.model, posterior.data), rows=2 * ROWS)
    facts = {} if loo is None else leave_one_out(loo)
    if (moved := prior_sensitivity(posterior)) is not None:
        facts["sensitive to the prior"] = moved
    shown = replications(posterior, encoder)
    drawn = sum(isinstance(part, Figure) for part in shown)
    note = NOTE * (drawn > 0) + LEFT_OUT * (drawn > 1) + GROUPED * (drawn > 1 and posterior.model.local is not None)
    return [Section("Predictive checks", [*([facts] if facts else []), *shown], note)] if shown or facts else []


def leave_one_out(loo: Loo) -> dict[str, Any]:
    """Facts of leave-one-out prediction."""
    worst = Cell(loo.khat, ".2f", f"good up to {loo.limit:.2f}", poor=bool(len(loo.failed)))
    if len(loo.failed):
        many = f"{counted(len(loo.failed), loo.unit)} of {len(loo.index):,}"
        reason = f"{many} cannot be left out: too much influence on the posterior"
        return {"elpd_loo": Cell("not known", aside=reason), "largest k-hat": worst}
    return {
        "elpd_loo": Cell(loo.elpd, ",.1f", f"± {loo.se:.1f} nats, leaving out each {loo.unit}"),
        "p_loo": Cell(loo.p, ".1f", "effective number of parameters"),
        "largest k-hat": worst,
    }


def prior_sensitivity(posterior: Posterior) -> Cell | None:
    """The parameters whose marginals change most if the prior is raised to a power; None if unknown.

    The numbers are the distances of ``posterior.scaling.power_scaled``.
    """
    shown = listed_mask(posterior.model) if posterior.view is None else few_groups(posterior.names)
    if posterior.is_point or posterior.chains * posterior.count < FEWEST or not shown.any():
        return None
    names = np.array(posterior.names)[shown]
    distances = prior_moves(posterior.model, *posterior.spread(2 * DRAWN))[shown]
    order = np.argsort(-distances, kind="stable")
    order = order[distances[order] >= SENSITIVE]
    first = ", ".join(f"{names[i]} {distances[i]:.2f}" for i in order[:NAMED]) + " …" * (len(order) > NAMED)
    return Cell(first or "none", aside=f"change by power scaling of the prior, listed if at least {SENSITIVE:g}")


def replications(posterior: Posterior, encoder: Encoder | None) -> list[Part]:
    """A table of the shares of classes, or figures of numbers, in the rows and in replicated data."""
    aims = () if encoder is None else encoder.targets
    try:
        seen = replicate_rows(posterior, len(aims) > 1)
    except TractableError:
        return []
    if seen is None:
        return []
    parts: list[Part] = []
    if seen.classes:
        return [*parts, shares(seen, aims[0].classes if aims else ())]
    below, multi_output = left_out_transforms(posterior), len(aims) > 1
    for k in range(max(len(aims), 1)):
        y, drawn = (seen.y[:, k], seen.drawn[..., k]) if multi_output else (seen.y, seen.drawn)
        mean, sd, name = (aims[k].mean, aims[k].sd, aims[k].name) if aims else (0.0, 1.0, "y")
        y = mean + sd * y if y.ndim == 1 else np.where(known(y), mean + sd * y, y)
        parts.append(cumulative(y, mean + sd * drawn, name, caption="Rows and replicated data"))
        if below is not None:
            one = below[:, k] if multi_output else below
            parts.append(pit(one[np.isfinite(one)], caption="Rows in their predictions"))
    return parts


def shares(seen: Seen, classes: Sequence[Any]) -> Table:
    """A table of the share of each class in the rows and in replicated data."""
    count = len(classes) or int(max(seen.y.max(), seen.drawn.max())) + 1
    each = np.arange(min(count, CLASSES))
    found, ends = (seen.y[:, None] == each).mean(0), np.quantile((seen.drawn[:, :, None] == each).mean(1), BAND, axis=0)
    names = [str(name) for name in classes or each]
    rows = [
        [name, *(Cell(float(v), ".3f") for v in values)] for name, *values in zip(names, found, *ends, strict=False)
    ]
    return Table(["class", "share of rows", "replicated 5%", "replicated 95%"], rows)


def replicate_rows(posterior: Posterior, multi_output: bool = False) -> Seen | None:
    """Observed rows and replicated ones; None for rows of many numbers.

    With ``multi_output`` there are multi_output targets: y is (n, K), and drawn is (s, n, K).
    """
    data: Any = posterior.data
    by_group = posterior.model.local is not None
    if by_group:  # take as many groups as hold about ``ROWS`` rows
        many = max(1, data.size * ROWS // max(len(data.places), 1))
        data = data.take(_even_places(data.size, many)) if many < data.size else data
    rows, model = (data.members(), posterior.model.member) if by_group else (data, posterior.model)
    parts = jax.tree.leaves(rows.y)
    if len(parts) > 1 or (parts[0].ndim > 1 and not multi_output and not censors(model, rows.given)):
        return None
    if not by_group and (data.size > ROWS or data.weights is not None):
        rows = data.equally_counted(ROWS)  # rows of unequal weight are repeated according to their weights
        rows = rows.take(_even_places(rows.size, ROWS)) if rows.size > ROWS else rows
    equal = not posterior.is_point and posterior.weights is None
    params = posterior.spread(DRAWN)[0] if equal else posterior.sample(posterior.seed or 0, DRAWN)
    if by_group:
        drawn = groups.replicate(posterior.model, data, params, None, None, 0)
    else:
        drawn = replicate(posterior.predictive, params, rows.given, rows.size, 0)
    y = np.asarray(jax.tree.leaves(rows.y)[0])
    return Seen(y, np.asarray(drawn), classes_of(datum_of(model, rows.given)) is not None)


def _even_places(size: int, count: int) -> np.ndarray:
    return np.linspace(0, size - 1, count).astype(int)


def left_out_transforms(posterior: Posterior) -> np.ndarray | None:
    """The probability integral transforms of leave-one-out predictions, or None if they cannot be computed."""
    try:
        found = posterior.pit(draws=DRAWN, rows=ROWS)
    except TractableError:
        return None
    return found if np.isfinite(found).any() else None


@drawing("Distribution of the rows beside that of replicated ones", 2.6)
def cumulative(canvas: Canvas, y: np.ndarray, drawn: np.ndarray, name: str) -> None:
    """Draw the ECDF (empirical distribution function) of the rows (n,) over a band of those of replicated data."""
    axes = canvas.subplots()
    numbers = y if y.ndim == 1 else y[known(y)]
    # The axis ends at quantiles, because a single outlier would shrink the rest of the figure.
    ends = np.stack([np.quantile(each, [0.003, 0.997]) for each in (numbers, drawn)])
    if y.ndim == 2:
        ends[1] = np.clip(ends[1], None, numbers.max())  # beyond the largest known number nothing is known
    grid = np.linspace(ends[:, 0].min(), ends[:, 1].max(), 161)
    reached = np.stack([np.searchsorted(np.sort(one), grid, side="right") for one in drawn]) / len(y)
    axes.fill_between(grid, *np.quantile(reached, BAND, axis=0), color=COLOURS[0], alpha=0.3, linewidth=0)
    at, share = (np.sort(y), np.arange(1, len(y) + 1) / len(y)) if y.ndim == 1 else distribution(y)
    found = np.concatenate([[0.0], share])[np.searchsorted(at, grid, side="right")]
    axes.plot(grid, found, color=INK, linewidth=1.1)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(short(name))
    axes.set_ylabel("share of rows up to it")
    tidy(axes)
