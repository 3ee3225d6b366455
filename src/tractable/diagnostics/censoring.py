"""Censored rows, for which only bounds y (n, 2) are known: their distribution, and scores of predictions for them."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.censored import known, middle, seen
from tractable.diagnostics.calibration import crps_draws

STEPS = 1000  # maximum number of iterations of Turnbull's self-consistency algorithm
CLOSE = 1e-6  # iterations stop when no point's probability changes by more than CLOSE / (number of points)


def complete(draws: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    """A row's y (2,); for a censored row, a random choice among the predicted draws (s, 2) between its bounds.

    The values filled in follow the predictive distribution, so that checks for observed rows apply to censored rows
    too. If no draw lies between the bounds, the nearest draw is taken.
    """
    low, high, t = y[0], y[1], draws[:, 0]
    distance = jnp.maximum(low - t, 0) + jnp.maximum(t - high, 0)
    index = jnp.argmin(distance + jnp.where(distance == 0, -jax.random.uniform(key, t.shape), 0.0))
    return jnp.where(low == high, y, draws[index])


def crps(y: np.ndarray, draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The CRPS (n,) of rows known by bounds, for draws (s, n) with weights (s,): less is better (Avati et al. 2020).

        ∫_{−∞}^{a} F(t)² dt + ∫_b^∞ (1 − F(t))² dt,   y between a and b

    CRPS is the continuous ranked probability score. The first integral is 0 if the lower bound a is infinite, the
    second if the upper bound b is. If a = b, y is observed, and the score is that of ``crps_draws``.
    """
    observed, finite_bounds = seen(y), known(y)
    y = np.where(finite_bounds, y, middle(y)[:, None])
    order = np.argsort(draws, 0)
    x, share = np.take_along_axis(draws, order, 0), np.cumsum(weights[order], 0) / weights.sum()
    low, high = y[:, 0], y[:, 1]
    steps = np.diff(np.minimum(np.concatenate([x, low[None]]), low), axis=0, append=low[None])[:-1]
    lower_part = np.sum(
        np.square(share) * np.where(np.arange(len(x))[:, None] < len(x) - 1, steps, np.maximum(low - x[-1], 0)), 0
    )
    edges = np.maximum(np.concatenate([np.minimum(x[:1], high), x]), high)
    upper_part = np.sum(np.square(1 - np.concatenate([np.zeros_like(x[:1]), share[:-1]])) * np.diff(edges, axis=0), 0)
    scores = np.where(finite_bounds[:, 0], lower_part, 0.0) + np.where(finite_bounds[:, 1], upper_part, 0.0)
    if observed.any():
        scores[observed] = crps_draws(y[observed, 0], draws[:, observed], weights)
    return scores


def concordance(y: np.ndarray, predicted: np.ndarray) -> float:
    """Harrell's concordance index: the share of pairs of rows that the predictions put in the right order.

    Only pairs whose order is known count: the upper bound of one row is below the lower bound of the other. A pair of
    equal predictions counts as half. The result is NaN if no pair's order is known (Harrell et al. 1982).
    """
    is_before = y[:, None, 1] < y[None, :, 0]
    order = np.sign(predicted[None, :] - predicted[:, None])
    return float(np.mean((order[is_before] + 1) / 2)) if is_before.any() else float("nan")


def distribution(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The maximum-likelihood distribution of censored rows (n, 2), as points t (m,) and P(y ≤ t) (m,).

    It is Turnbull's estimate, computed by self-consistency. For right-censored rows it is the Kaplan-Meier estimate. An
    interval's probability is put at its upper bound, even if that is infinite.
    """
    low, high = y[:, 0], y[:, 1]
    t = np.unique(np.concatenate([low[seen(y)], high]))  # points that get probability: observed values, upper bounds
    inside = np.where(seen(y)[:, None], t == low[:, None], (t > low[:, None]) & (t <= high[:, None])).astype(float)
    mass = inside.sum(0) / inside.sum()
    for _ in range(STEPS):
        new_mass = np.mean(inside * mass / (inside @ mass)[:, None], 0)
        change, mass = np.abs(new_mass - mass).max(), new_mass
        if change < CLOSE / len(t):
            break
    return t, np.cumsum(mass)
