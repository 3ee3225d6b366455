"""Leaves out a row on which the posterior depends too much for reweighting: the draws are moved first.

Affine maps give the draws, again and again, the moments that their weights say the posterior without the row has: the
mean, then also variances, then covariances (Paananen et al. 2021, "Implicitly adaptive importance sampling", algorithm
1). With draws θ_s of a density g, the posterior p up to a constant, the row's likelihood f, weights r_s = p(θ_s)/g(θ_s)
and all maps together T,

    p(y_n | y without n) = ∫ p dθ / ∫ p/f dθ ≈ Σ_s r_s / Σ_s |det T| p(Tθ_s) / (f(Tθ_s) g(θ_s)).

Each integral has draws near what it integrates: θ_s for ∫ p, and Tθ_s for ∫ p/f (Jarzynski 2002, "Targeted free energy
perturbation"). The paper estimates the mean of f instead, over a mixture of moved and other draws, for which it splits
the draws. The larger tail index k-hat of the terms of both sums says whether the result is reliable.
"""

import contextlib
import math
from typing import NamedTuple

import jax
import numpy as np

from tractable.core.model import Data, Model, PyTree, log_density
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics import pareto
from tractable.diagnostics.importance import EQUAL

MOST_PARAMETERS = 100  # a model with more unconstrained parameters is not matched

MOVES = 10  # largest number of moves of one kind
PER_PARAMETER = 10  # covariances are matched with at least this many draws per parameter
ABREAST = 16  # number of draws that are computed in parallel


class Weighted(NamedTuple):
    """Weights of draws, smoothed."""

    shares: np.ndarray  # (s,) they sum to one
    khat: float
    log_total: float  # log Σ_s of the smoothed weights


def leave_out(
    model: Model, data: Data, positions: np.ndarray, log_weights: np.ndarray, efficiency: float, row: int
) -> tuple[float, float]:
    """log p(y_n | y without n) of one row in nats, and k-hat; draws are moved as long as k-hat falls.

    The row counts at least once; of its weight, 1 is left out (``pointwise.leave_out``).

    Args:
        model, data: the model and its rows.
        positions: (s, d) unconstrained draws.
        log_weights: (s,) log r_s, up to a constant.
        efficiency: effective sample size per draw, at most 1.
        row: index of the row.
    """
    rows, own = data.arrays(), jax.tree.map(lambda a: np.asarray(a[row : row + 1]), data.rows)
    log_p, log_f = _densities(model, positions, rows, own)
    log_g = log_p - log_weights
    base = _weigh(log_weights, efficiency)
    found, moved, log_volume = _weigh(log_weights - log_f, efficiency), positions, 0.0
    for kind in ("mean", "variances", "covariances"):
        for _ in range(MOVES * (kind != "covariances" or len(moved) >= PER_PARAMETER * moved.shape[1])):
            matrix, log_determinant = _stretch(kind, moved, found.shares)
            new = (moved - moved.mean(0)) @ matrix.T + found.shares @ moved
            log_p, log_f = _densities(model, new, rows, own)
            weighted = _weigh(log_volume + log_determinant + log_p - log_f - log_g, efficiency)
            if not weighted.khat < found.khat:
                break
            found, moved, log_volume = weighted, new, log_volume + log_determinant
    return base.log_total - found.log_total, max(base.khat, found.khat)


def _stretch(kind: str, draws: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, float]:
    """A matrix (d, d) that gives draws of weights 1/s the moments that they have with other weights; its log |det|."""
    matrix, old, new = np.eye(draws.shape[1]), draws - draws.mean(0), draws - shares @ draws
    if kind == "variances":
        with np.errstate(all="ignore"):  # without finite variances the moved draws are not finite, and not used
            matrix = np.diag(np.sqrt(shares @ np.square(new) / draws.var(0)))
    elif kind == "covariances":
        with contextlib.suppress(np.linalg.LinAlgError):  # a covariance of too few draws is singular
            roots = [np.linalg.cholesky(c) for c in ((shares * new.T) @ new, old.T @ old / len(old))]
            matrix = roots[0] @ np.linalg.inv(roots[1])
    return matrix, float(np.linalg.slogdet(matrix)[1])


def _weigh(log_weights: np.ndarray, efficiency: float) -> Weighted:
    """Smooths weights; k-hat is −∞ if they are equal up to rounding, and ∞ if some are not numbers."""
    if not np.all(log_weights < math.inf):
        return Weighted(np.full(len(log_weights), np.nan), math.inf, math.nan)
    smooth, khat = (each[0] for each in pareto.smooth(log_weights[None], efficiency))
    middle = np.argsort(log_weights)[len(smooth) // 2]  # a draw that is not in the tail, whose weight is as before
    khat = -math.inf if np.ptp(log_weights) <= EQUAL else float(khat)
    return Weighted(np.exp(smooth), khat, float(log_weights[middle] - smooth[middle]))


def _densities(model: Model, positions: np.ndarray, rows: PyTree, own: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """log p(θ | y), up to a constant, and log p(y_n | θ) of one row, at positions (s, d); (s,) each."""
    log_p, log_f = _log_densities(model, positions, rows, own)
    return np.asarray(log_p, np.float64), np.asarray(log_f, np.float64)


@compiled("model", if_few=COMPILE_FASTEST)
def _log_densities(model, positions, rows, own) -> tuple[jax.Array, jax.Array]:
    """The arrays of ``_densities``."""
    target = log_density(model, rows, flat=True)

    def at(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = model.constrain(model.space.unravel(position))
        return target(position), model.log_likelihoods(params, own)[0]

    return jax.lax.map(at, positions, batch_size=ABREAST)
