"""Measures how well a distribution q approximates the posterior, by the importance weights p(y, z)/q(z) of its draws.

The diagnostic k-hat (k̂) is the tail index of the weights' distribution: a generalised Pareto distribution is fitted to
the largest weights, and k̂ is its shape. A large k̂ means that few draws decide every weighted mean.
"""

import math
from typing import NamedTuple

import jax
import numpy as np

from tractable.core.approximations import Approximation
from tractable.core.batches import Members
from tractable.core.check import Check
from tractable.core.model import Model, PyTree, log_posterior, whole
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.tree import Numbers
from tractable.diagnostics import pareto
from tractable.diagnostics.weights import log_mean

WEIGHED = 1000  # number of draws whose importance weights are computed at the end of a run
ROWS_WEIGHED = 1 << 28  # weights are computed only if rows × draws × parameters / 64 is at most this
NODES = 10  # about how many times each row is evaluated for a group's integral

EQUAL = 0.1  # nats; log weights whose range is at most this count as equal
KHAT_USED = 0.7  # largest k̂ at which weights may be used


class Weighed(NamedTuple):
    """Diagnostics of S log weights."""

    khat: float  # shape of the weights' generalised Pareto tail (Vehtari et al. 2024); −inf if all weights are equal
    threshold: float  # min(1 − 1/log₁₀ S, 0.7), the largest k̂ at which S draws are reliable
    elbo: float  # evidence lower bound, the mean log weight
    error: float  # standard error of the elbo
    bound: float  # log mean weight, the S-sample bound on log p(y)


def weigh(log_weights: Numbers) -> Weighed:
    """k̂ and bounds from log weights log p(y, z_s) − log q(z_s), z_s ~ q, (S,)."""
    log_weights = np.asarray(log_weights, np.float64)
    size = len(log_weights)
    elbo, sd = float(log_weights.mean()), float(log_weights.std(ddof=1))
    return Weighed(khat(log_weights), khat_limit(size), elbo, sd / math.sqrt(size), log_mean(log_weights))


def khat_limit(size: int) -> float:
    """The largest k̂ at which importance sampling with ``size`` draws is reliable."""
    return min(1 - 1 / math.log10(size), KHAT_USED)


def khat(log_weights: Numbers) -> float:
    """k̂ of Pareto-smoothed importance sampling; inf if some log weight is not finite.

    It is −inf if all weights are equal up to rounding, because q is then the posterior.
    """
    log_weights = np.asarray(log_weights, np.float64)
    if not np.all(np.isfinite(log_weights)):
        return float("inf")
    # A log density of 10³ nats in single precision has rounding errors of 10⁻⁴, and sums have larger ones. A smaller
    # range of the log weights is rounding, not a tail.
    if np.ptp(log_weights) <= max(EQUAL, 1e-6 * float(np.abs(log_weights).max())):
        return float("-inf")
    return float(pareto.smooth(log_weights[None])[1][0])


def khat_check(weighed: Weighed) -> Check:
    """The check of k̂: "trust" up to its threshold, else "caution"."""
    if weighed.khat <= weighed.threshold:
        verdict, meaning = "trust", "reweighting q would change little"
    elif weighed.khat <= 1:
        verdict, meaning = "caution", "q misses tails of the posterior: intervals may be too narrow, and means wrong"
    else:
        verdict, meaning = "caution", "q and the posterior differ in shape: rely on no sd or interval without a check"
    sentence = f"tail index of the weights p/q, good up to {weighed.threshold:.2g}; {meaning}"
    return Check("k-hat", weighed.khat, verdict, sentence)


def log_weights(model: Model, data: Data | None, q: Approximation, phi: PyTree, key: jax.Array) -> np.ndarray | None:
    """Log weights log p(y, z) − log q(z) at independent draws of q, (S,); None if they take too much work."""
    size = 1 if data is None else data.size
    if data is not None and isinstance(data.given, Members):
        size = NODES * data.given.counts.size
    if data is not None and (not data.resident or size * WEIGHED * model.space.size > ROWS_WEIGHED * 64):
        return None
    rows = None if data is None else data.arrays()
    return np.asarray(_weights(model, q, rows, phi, key), np.float64)


@compiled("model", "q", if_few=COMPILE_FASTEST)
def _weights(model: Model, q: Approximation, rows: PyTree, phi: PyTree, key: jax.Array) -> jax.Array:
    """Log weights (S,) at ``WEIGHED`` independent draws of q."""
    target = log_posterior(model, flat=True)
    batch = None if rows is None else whole(rows)
    eps = jax.random.normal(key, (WEIGHED, q.noise), phi["mean"].dtype)

    def log_weight(eps: jax.Array) -> jax.Array:
        z = q.sample(phi, eps)
        return target(z, batch) - q.log_prob(phi, z)

    return jax.lax.map(log_weight, eps, batch_size=16)
