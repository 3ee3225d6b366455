"""What can be said of rows of which only bounds are known, y (n, 2): their distribution, and scores of predictions."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.checks.calibration import crps_draws
from tractable.data.censored import known, middle, seen

STEPS = 1000  # of self-consistency, at most
CLOSE = 1e-6  # of a mass, below which it moves no more


def completed(drawn: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    """A row's y (2,), or in place of bounds one of what is predicted (s, 2) that lies between them, taken at random.

    So what was not seen has the law that predictions give it, and what is asked of all rows can be asked of these. The
    draw nearest to the bounds where none lies between them.
    """
    low, high, t = y[0], y[1], drawn[:, 0]
    beyond = jnp.maximum(low - t, 0) + jnp.maximum(t - high, 0)
    chosen = jnp.argmin(beyond + jnp.where(beyond == 0, -jax.random.uniform(key, t.shape), 0.0))
    return jnp.where(low == high, y, drawn[chosen])


def crps(y: np.ndarray, draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n,) the CRPS of what is known, of draws (s, n) with weights (s,): less is better (Avati et al. 2020).

        ∫_{−∞}^{a} F(t)² dt + ∫_b^∞ (1 − F(t))² dt,   y between a and b

    of which the first is 0 where a is open, the second where b is, and which is the CRPS where a = b.
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
    """The share of pairs known to be in order whose predictions are in that order, ties half (Harrell et al. 1982).

    A pair is known to be in order where the upper bound of one is below the lower bound of the other; NaN of none.
    """
    before = y[:, None, 1] < y[None, :, 0]
    order = np.sign(predicted[None, :] - predicted[:, None])
    return float(np.mean((order[before] + 1) / 2)) if before.any() else float("nan")


def distribution(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(t (m,), P(y ≤ t)) of the likeliest law of rows (n, 2): Turnbull's, by self-consistency.

    Of right-censored rows Kaplan and Meier's. Mass beyond the last bound, and within an interval, stands at its end.
    """
    low, high = y[:, 0], y[:, 1]
    at = np.unique(np.concatenate([low[seen(y)], high]))  # masses: what was seen, and upper ends
    inside = np.where(seen(y)[:, None], at == low[:, None], (at > low[:, None]) & (at <= high[:, None])).astype(float)
    mass = inside.sum(0) / inside.sum()
    for _ in range(STEPS):
        new = np.mean(inside * mass / (inside @ mass)[:, None], 0)
        moved, mass = np.abs(new - mass).max(), new
        if moved < CLOSE / len(at):
            break
    return at, np.cumsum(mass)
