"""A posterior's density by a sample of its rows, which near the posterior is that of all rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import Weighted
from tractable.core.model import Data
from tractable.core.tree import PyTree
from tractable.diagnostics.target import Anchor, Target

STEP = 0.5  # posterior sds over which a curvature is measured


def sampled(
    target: Target, data: Data | None, rows: PyTree, centre: np.ndarray, root: np.ndarray, count: int, seed: int
) -> PyTree:
    """``count`` of the rows, each for as many as it stands for, and their anchor: the rows of an anchored ``target``.

    Near its maximum a log-likelihood of N rows is quadratic but for terms of the order N^(−1/2). The sample's is given
    the value, slope and curvature of all rows at ``centre``; only the small terms are then estimated from it, as in
    Bardenet, Doucet & Holmes (2017). Far away, where a sample serves to look for other modes, it goes uncorrected.
    """
    assert data is not None  # there are rows
    chosen = np.sort(np.random.default_rng(seed).choice(data.size, count, replace=False))
    taken = data.take(chosen)
    counts = np.ones(count) if taken.weights is None else np.asarray(taken.weights)
    y, given = jax.tree.map(jax.device_put, taken.rows)
    few = Weighted(y, given, jnp.asarray(counts * (data.size / count), jnp.result_type(float)))
    there, here = (_at(target, these, centre, root) for these in (rows, few))
    anchor = centre, np.linalg.inv(root), *(a - b for a, b in zip(there, here, strict=True))
    return few, Anchor(*(jnp.asarray(a, jnp.result_type(float)) for a in anchor))


def _at(target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    """Value, slope and curvature at a place, in white coordinates; steps along these never leave the posterior."""
    values, slopes = target.look(rows, np.concatenate([centre[None], centre + STEP * root.T]))
    slopes = slopes @ root
    curvature = (slopes[0] - slopes[1:]) / STEP
    return values[0], slopes[0], (curvature + curvature.T) / 2
