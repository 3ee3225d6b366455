"""The numbers of a posterior as a user reads them: of its parameters, or in the names and units of a table."""

from typing import Any, NamedTuple

import numpy as np

from tractable.core.view import View
from tractable.diagnostics.belief import weighted_quantiles
from tractable.diagnostics.convergence import Diagnosed
from tractable.diagnostics.learnt import Learnt


class Readings(NamedTuple):
    """m numbers of a posterior with their moments and draws."""

    names: list[str]
    mean: np.ndarray  # (m,)
    sd: np.ndarray  # (m,)
    values: np.ndarray | None = None  # (chain, draw, m); None if no draws were kept
    diagnosed: Diagnosed | None = None  # None if no draws were kept


def readings_of(posterior: Learnt, view: View | None) -> Readings:
    """The parameters, or what a table's view makes of them."""
    has_draws, (mean, sd) = posterior.unconstrained is not None and posterior.count > 0, posterior.flat_moments
    if view is None:
        found = Readings(posterior.names, mean, sd)
        return found._replace(values=posterior.values, diagnosed=posterior.diagnosed) if has_draws else found
    names: list[str] = [*view.names]
    mean, sd = view.values(mean), view.sds(sd)
    if not has_draws:
        return Readings(names, mean, sd)
    values = view.values(posterior.values)
    sd = np.where(np.isnan(sd), moments_of(values, posterior.weights, mean)[1], sd)
    return Readings(names, mean, sd, values, diagnostics_of(posterior, values))


def diagnostics_of(posterior: Learnt, values: np.ndarray) -> Diagnosed:
    """The diagnostics of values (chain, draw, m); a value that never changes has no R-hat."""
    return posterior.diagnose(values, np.ptp(values, axis=(0, 1)) == 0)


def moments_of(
    values: np.ndarray, weights: np.ndarray | None, mean: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (unless it is known) and sd (m,) of values (chain, draw, m) with weights (chain, draw)."""
    flat, weights = values.reshape(-1, values.shape[-1]), None if weights is None else weights.ravel()
    mean = np.average(flat, axis=0, weights=weights) if mean is None else mean
    return mean, np.sqrt(np.average(np.square(flat - mean), axis=0, weights=weights))


def as_table(readings: Readings, level: float, weights: np.ndarray | None) -> Any:
    """A pandas DataFrame with a row for each number, as ``Posterior.summary`` describes it."""
    import pandas as pd

    table, index = {"mean": readings.mean, "sd": readings.sd}, pd.Index(readings.names, name="parameter")
    if readings.values is None or readings.diagnosed is None:
        return pd.DataFrame(table, index=index)
    low, high = (1 - level) / 2, (1 + level) / 2
    flat, diagnosed = readings.values.reshape(-1, len(index)), readings.diagnosed
    bounds = weighted_quantiles(flat, [low, high], None if weights is None else weights.ravel())
    table |= {
        f"{100 * low:g}%": bounds[0], f"{100 * high:g}%": bounds[1], "mcse_mean": diagnosed.mcse_mean,
        "ess_bulk": diagnosed.bulk, "ess_tail": diagnosed.tail, "r_hat": diagnosed.rhat,
    }  # fmt: skip
    return pd.DataFrame(table, index=index)
