"""Measures the sensitivity of a posterior to its prior and likelihood, by power scaling (Kallioinen et al. 2024)."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy import special

from tractable.core.errors import RunError
from tractable.core.model import Data, Model, PyTree
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.pareto import smooth
from tractable.posterior.pointwise import length, totals

POWERS = (0.99, 1.01)  # powers α at which the posterior is evaluated
SENSITIVE = 0.05  # a parameter counts as sensitive if its distance (see ``power_scaled``) is at least this
FEWEST = 100  # minimum number of draws


def power_scaled(model: Model, params: PyTree, weights: np.ndarray, names: Sequence[str], data: Data | None) -> Any:
    """The sensitivity of each parameter's posterior to α at α = 1, in p(θ)^α p(y | θ) and in p(θ) p(y | θ)^α.

    At α = 0.99 and 1.01, draws are reweighted by p(θ)^(α − 1) or p(y | θ)^(α − 1), with Pareto smoothing. p(θ) is the
    density of the user's parameters. Weighted draws are first resampled by weight.

    Returns:
        A pandas DataFrame, one row per parameter, with the columns
            prior, likelihood            distance: slope in |log₂ α| of the square root of the cumulative Jensen-Shannon
                                         divergence between the marginals; 0 if the marginal does not change;
            mean by prior, by likelihood slope of the posterior mean in log₂ α, in posterior sds;
            sd by prior, by likelihood   slope of the posterior sd in log₂ α, in posterior sds;
            diagnosis                    "prior and data disagree" if both distances are at least 0.05, "prior
                                         stronger than data" if only the prior's distance is, otherwise "".
        Without data, the columns of the likelihood are NaN.

    Raises:
        RunError: fewer than 100 draws.
    """
    import pandas as pd

    from tractable.posterior.summary import Summary

    if length(params) < FEWEST:
        raise RunError(f"Power scaling needs at least {FEWEST} draws of the parameters; got {length(params)}.")
    params, values = _equally_weighted(params, weights)
    prior = _changes(values, log_priors(model, params))
    likelihood = np.full_like(prior, np.nan)
    if data is not None and model.likelihood is not None:
        likelihood = _changes(values, totals(model, params, data))
    columns = {"prior": prior[:, 0], "likelihood": likelihood[:, 0]}
    for i, moment in enumerate(("mean", "sd"), 1):
        columns |= {f"{moment} by prior": prior[:, i], f"{moment} by likelihood": likelihood[:, i]}
    by_prior, by_data = prior[:, 0] >= SENSITIVE, likelihood[:, 0] >= SENSITIVE
    words = np.where(by_prior, np.where(by_data, "prior and data disagree", "prior stronger than data"), "")
    return Summary(columns | {"diagnosis": words}, index=pd.Index(names, name="parameter"))


def prior_moves(model: Model, params: PyTree, weights: np.ndarray) -> np.ndarray:
    """The column "prior" of ``power_scaled``, (k,)."""
    params, values = _equally_weighted(params, weights)
    return _changes(values, log_priors(model, params))[:, 0]


def _equally_weighted(params: PyTree, weights: np.ndarray) -> tuple[PyTree, np.ndarray]:
    """Equally weighted draws, and the k numbers of their parameters, (k, s)."""
    if np.ptp(weights) > 0:
        index = np.random.default_rng(0).choice(len(weights), len(weights), p=weights)
        params = jax.tree.map(lambda a: np.asarray(a)[index], params)
    return params, np.concatenate([np.reshape(a, (length(params), -1)) for a in jax.tree.leaves(params)], 1).T


def log_priors(model: Model, params: PyTree) -> np.ndarray:
    """log p(θ_s) of draws of the user's parameters, an array with the draws' leading axes."""
    shapes = jax.eval_shape(model.example, jax.random.key(0))
    leading = {
        np.shape(a)[: np.ndim(a) - len(s.shape)] for a, s in zip(*map(jax.tree.leaves, (params, shapes)), strict=True)
    }
    axes = leading.pop()
    flat = jax.tree.map(lambda a, s: np.reshape(a, (-1, *s.shape)), params, shapes)
    return np.asarray(_log_priors(model, flat), np.float64).reshape(axes)


def _changes(values: np.ndarray, component: np.ndarray) -> np.ndarray:
    """The distance, and the slopes of mean and sd (in sds), of each parameter when a component is power-scaled.

    Args:
        values: (k, s) the draws of the k numbers of the parameters.
        component: (s,) the log prior or the log likelihood of the draws.

    Returns:
        (k, 3).
    """
    if np.ptp(component) <= 1e-9 * max(1.0, float(np.abs(component).max())):  # scaling a constant changes nothing
        return np.zeros((len(values), 3))
    logs, _ = smooth((np.array(POWERS)[:, None] - 1) * component)
    lower, upper = np.exp(logs)
    centre, sd = values.mean(1), values.std(1)
    moments = []
    for weights in (lower, upper):
        mean = centre + (values - centre[:, None]) @ weights
        moments.append((mean, np.sqrt(np.square(values - mean[:, None]) @ weights)))
    width = np.log2(POWERS[1] / POWERS[0])
    constant = sd <= 1e-12 * np.abs(centre)  # the posterior of a constant does not change
    slopes = [
        np.where(constant, 0.0, (b - a) / width / np.where(constant, 1.0, sd)) for a, b in zip(*moments, strict=True)
    ]
    distances = [
        0.0 if is_constant else (_distance(v, upper) + _distance(v, lower)) / width
        for v, is_constant in zip(values, constant, strict=True)
    ]
    return np.stack([np.array(distances), *slopes], 1)


def _distance(values: np.ndarray, weights: np.ndarray) -> float:
    """The square root of the cumulative Jensen-Shannon divergence between draws (s,) and the same draws with weights.

    With the distribution functions P and Q of both, and M = (P + Q)/2, the divergence is
    ∫ P log₂(P/M) + Q log₂(Q/M) dx / ∫ P + Q dx (Nguyen & Vreeken 2015). It is not symmetric in the sign of x, and the
    larger one counts (Kallioinen et al. 2024).
    """
    order = np.argsort(values)
    gaps, size = np.diff(values[order]), len(values)
    p = np.arange(1, size) / size
    q = np.minimum(np.cumsum(weights[order])[:-1], 1.0)

    def divergence(p: np.ndarray, q: np.ndarray) -> float:
        middle = (p + q) / 2
        nats = special.rel_entr(p, middle) + special.rel_entr(q, middle)
        return float(gaps @ np.maximum(nats, 0.0) / np.log(2) / (gaps @ (p + q)))  # rounding makes some negative

    return math.sqrt(max(divergence(p, q), divergence(1 - p, 1 - q)))


@compiled("model", if_few=COMPILE_FASTEST)
def _log_priors(model: Model, params: PyTree) -> jax.Array:
    """log p(θ_s) of draws (s, ...)."""
    return jax.lax.map(model.log_prior, params, batch_size=64)
