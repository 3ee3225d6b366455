"""Approximates the posterior density of many rows by that of a sample of the rows, corrected near the posterior."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import Weighted
from tractable.core.model import Data
from tractable.core.tree import PyTree
from tractable.diagnostics.target import Anchor, Target

STEP = 0.5  # posterior sds over which gradients are compared to measure a curvature
UNSEEN = 0.5  # least share of all rows' information in a direction that a sample lacks if it hardly informs it


def sample_rows(
    target: Target, data: Data | None, rows: PyTree, centre: np.ndarray, root: np.ndarray, count: int, seed: int
) -> PyTree:
    """A weighted sample of ``count`` rows, and its ``Anchor`` (a correction of its log density).

    A ``Target`` with ``anchored=True`` takes this pair as its rows.

    Near its maximum, the log likelihood of N rows is quadratic up to terms of order N^(−1/2). The anchor corrects the
    sample's log density so that it has the value, gradient and curvature of all rows at ``centre``. The sample then
    estimates only the small terms that are left, as in Bardenet, Doucet & Holmes (2017). Far from the posterior the
    sample only serves to search for other modes, and most of the correction fades out (``Anchor``).
    """
    assert data is not None  # callers sample only where there are rows
    indices = np.sort(np.random.default_rng(seed).choice(data.size, count, replace=False))
    subset = data.take(indices)
    counts = np.ones(count) if subset.weights is None else np.asarray(subset.weights)
    y, given = jax.tree.map(jax.device_put, subset.rows)
    sample = Weighted(y, given, jnp.asarray(counts * (data.size / count), jnp.result_type(float)))
    of_all, of_sample = (_expand(target, part, centre, root) for part in (rows, sample))
    height, slope, curvature = (a - b for a, b in zip(of_all, of_sample, strict=True))
    lacking, basis = np.linalg.eigh(curvature)
    unseen = basis[:, lacking > UNSEEN]
    anchor = centre, np.linalg.inv(root), height, slope, curvature, unseen @ unseen.T
    return sample, Anchor(*(jnp.asarray(a, jnp.result_type(float)) for a in anchor))


def _expand(target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    """Value, gradient and curvature at ``centre``, in coordinates in which the posterior has unit covariance.

    The curvature is measured by steps of half a posterior sd along these coordinates.
    """
    values, slopes = target.look(rows, np.concatenate([centre[None], centre + STEP * root.T]))
    slopes = slopes @ root
    curvature = (slopes[0] - slopes[1:]) / STEP
    return values[0], slopes[0], (curvature + curvature.T) / 2
