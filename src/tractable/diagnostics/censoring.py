"""Censored rows, of which only bounds y (n, 2) are known: their distribution, and scores of predictions for them."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.censored import known, middle, seen
from tractable.diagnostics.calibration import crps_draws

STEPS = 1000  # most iterations of self-consistency
CLOSE = 1e-6  # iterations stop when no mass changes by more than this over their number


def completed(drawn: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    """A row's y (2,); where only bounds are known, a random one of the predicted draws (s, 2) that lie between them.

    Values that were not seen then follow the predictions' law, so checks for observed rows apply to censored ones. If
    no draw lies between the bounds, the nearest one is taken.
    """
    low, high, t = y[0], y[1], drawn[:, 0]
    beyond = jnp.maximum(low - t, 0) + jnp.maximum(t - high, 0)
    chosen = jnp.argmin(beyond + jnp.where(beyond == 0, -jax.random.uniform(key, t.shape), 0.0))
    return jnp.where(low == high, y, drawn[chosen])


def crps(y: np.ndarray, draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n,) the CRPS of y known by its bounds, for draws (s, n) with weights (s,): less is better (Avati et al. 2020).

        ∫_{−∞}^{a} F(t)² dt + ∫_b^∞ (1 − F(t))² dt,   y between a and b

    The first integral is 0 where a is open, the second where b is. Where a = b it is the usual CRPS.
    """
    whole, there = seen(y), known(y)
    y = np.where(there, y, middle(y)[:, None])
    order = np.argsort(draws, 0)
    x, share = np.take_along_axis(draws, order, 0), np.cumsum(weights[order], 0) / weights.sum()
    low, high = y[:, 0], y[:, 1]
    up = np.diff(np.minimum(np.concatenate([x, low[None]]), low), axis=0, append=low[None])[:-1]
    below = np.sum(
        np.square(share) * np.where(np.arange(len(x))[:, None] < len(x) - 1, up, np.maximum(low - x[-1], 0)), 0
    )
    edges = np.maximum(np.concatenate([np.minimum(x[:1], high), x]), high)
    above = np.sum(np.square(1 - np.concatenate([np.zeros_like(x[:1]), share[:-1]])) * np.diff(edges, axis=0), 0)
    bounded = np.where(there[:, 0], below, 0.0) + np.where(there[:, 1], above, 0.0)
    out = bounded
    if whole.any():
        out[whole] = crps_draws(y[whole, 0], draws[:, whole], weights)
    return out


def concordance(y: np.ndarray, predicted: np.ndarray) -> float:
    """The share of pairs of known order whose predictions are in that order, ties half (Harrell et al. 1982).

    The order is known where the upper bound of one row is below the other's lower bound. NaN if no pair's order is.
    """
    before = y[:, None, 1] < y[None, :, 0]
    order = np.sign(predicted[None, :] - predicted[:, None])
    return float(np.mean((order[before] + 1) / 2)) if before.any() else float("nan")


def distribution(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(t (m,), P(y ≤ t)) of the maximum-likelihood distribution of rows (n, 2): Turnbull's, by self-consistency.

    For right-censored rows it is Kaplan and Meier's. An interval's mass is put at its upper end, even an infinite one.
    """
    low, high = y[:, 0], y[:, 1]
    at = np.unique(np.concatenate([low[seen(y)], high]))  # where mass is put: observed values and upper bounds
    inside = np.where(seen(y)[:, None], at == low[:, None], (at > low[:, None]) & (at <= high[:, None])).astype(float)
    mass = inside.sum(0) / inside.sum()
    for _ in range(STEPS):
        new = np.mean(inside * mass / (inside @ mass)[:, None], 0)
        moved, mass = np.abs(new - mass).max(), new
        if moved < CLOSE / len(at):
            break
    return at, np.cumsum(mass)
