"""Sensitivity of a posterior to its prior and likelihood, by power scaling (Kallioinen et al. 2024)."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tractable.core.errors import RunError
from tractable.core.model import Data, Model, PyTree
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.posterior.pointwise import length, totals

POWERS = (0.99, 1.01)
SENSITIVE = 0.05  # distance from which a number counts as sensitive
FEWEST = 100  # draws needed


def power_scaled(model: Model, params: PyTree, weights: np.ndarray, names: Sequence[str], data: Data | None) -> Any:
    """Sensitivity of each number's posterior to α at α = 1, in p(θ)^α p(y | θ) and in p(θ) p(y | θ)^α.

    Draws are reweighed by p(θ)^(α − 1) or p(y | θ)^(α − 1), Pareto-smoothed by ArviZ, at α = 0.99 and 1.01. p(θ) is the
    density of the user's parameters. Weighted draws are first resampled by weight.

    Returns:
        A pandas DataFrame, one row per number, with the columns
            prior, likelihood            distance: slope in |log₂ α| of the square root of the cumulative Jensen-Shannon
                                         divergence between the marginals, 0 if nothing moves;
            mean by prior, by likelihood slope of the posterior mean in log₂ α, in posterior sds;
            sd by prior, by likelihood   slope of the posterior sd in log₂ α, in posterior sds;
            diagnosis                    "prior and data disagree" if both distances are at least 0.05, "prior
                                         stronger than data" if only the prior's is, else "".
        Without data the likelihood's are NaN.

    Raises:
        RunError: fewer than 100 draws.
    """
    import pandas as pd

    from tractable.posterior.summary import Summary

    if length(params) < FEWEST:
        raise RunError(f"Power scaling reweighs draws of the parameters, {FEWEST} at least; got {length(params)}.")
    params, values = _equally_weighted(params, weights)
    nothing = np.full((len(values), 3), np.nan)
    prior = _moved(values, log_priors(model, params))
    likelihood = nothing if data is None or model.likelihood is None else _moved(values, totals(model, params, data))
    columns = {"prior": prior[:, 0], "likelihood": likelihood[:, 0]}
    for i, what in enumerate(("mean", "sd"), 1):
        columns |= {f"{what} by prior": prior[:, i], f"{what} by likelihood": likelihood[:, i]}
    moved, by_data = prior[:, 0] >= SENSITIVE, likelihood[:, 0] >= SENSITIVE
    words = np.where(moved, np.where(by_data, "prior and data disagree", "prior stronger than data"), "")
    return Summary(columns | {"diagnosis": words}, index=pd.Index(names, name="parameter"))


def prior_moves(model: Model, params: PyTree, weights: np.ndarray) -> np.ndarray:
    """(k,) the column "prior" of ``power_scaled``."""
    params, values = _equally_weighted(params, weights)
    return _moved(values, log_priors(model, params))[:, 0]


def _equally_weighted(params: PyTree, weights: np.ndarray) -> tuple[PyTree, np.ndarray]:
    """Equally weighted draws, and their k numbers, (k, s)."""
    if np.ptp(weights) > 0:
        index = np.random.default_rng(0).choice(len(weights), len(weights), p=weights)
        params = jax.tree.map(lambda a: np.asarray(a)[index], params)
    return params, np.concatenate([np.reshape(a, (length(params), -1)) for a in jax.tree.leaves(params)], 1).T


def log_priors(model: Model, params: PyTree) -> np.ndarray:
    """log p(θ_s) of draws of the user's parameters, shaped like the draws' leading axes."""
    shapes = jax.eval_shape(model.example, jax.random.key(0))
    leading = {
        np.shape(a)[: np.ndim(a) - len(s.shape)] for a, s in zip(*map(jax.tree.leaves, (params, shapes)), strict=True)
    }
    axes = leading.pop()
    flat = jax.tree.map(lambda a, s: np.reshape(a, (-1, *s.shape)), params, shapes)
    return np.asarray(_log_priors(model, flat), np.float64).reshape(axes)


def _moved(values: np.ndarray, component: np.ndarray) -> np.ndarray:
    """(k, 3) distance, and slopes of mean and sd in sds, for numbers (k, s) as the component (s,) is power-scaled."""
    if np.ptp(component) <= 1e-9 * max(1.0, float(np.abs(component).max())):  # constant: scaling it moves nothing
        return np.zeros((len(values), 3))
    from arviz_stats.base.array import array_stats  # a second of imports

    stats: Any = array_stats  # its types say less than it takes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of few draws in the tail
        logs = [_smoothed(stats, component, alpha) for alpha in POWERS]
    lower, upper = (np.exp(each - each.max()) / np.exp(each - each.max()).sum() for each in logs)
    middle, sd = values.mean(1), values.std(1)
    ends = []
    for weights in (lower, upper):
        mean = middle + (values - middle[:, None]) @ weights
        ends.append((mean, np.sqrt(np.square(values - mean[:, None]) @ weights)))
    reach = np.log2(POWERS[1] / POWERS[0])
    still = sd <= 1e-12 * np.abs(middle)  # a number that does not vary does not move
    slopes = [np.where(still, 0.0, (b - a) / reach / np.where(still, 1.0, sd)) for a, b in zip(*ends, strict=True)]
    far = [
        0.0 if same else float(stats.power_scale_sense(v[None], lower[None], upper[None], *POWERS))
        for v, same in zip(values, still, strict=True)
    ]
    return np.stack([np.array(far), *slopes], 1)


def _smoothed(stats: Any, component: np.ndarray, power: float) -> np.ndarray:
    """log weights (s,) of draws for a component scaled to a power; a tail of equal weights needs no smoothing."""
    try:
        return stats.power_scale_lw(component, alpha=power)
    except ValueError:
        return (power - 1) * component


@compiled("model", if_few=COMPILE_FASTEST)
def _log_priors(model: Model, params: PyTree) -> jax.Array:
    return jax.lax.map(model.log_prior, params, batch_size=64)
