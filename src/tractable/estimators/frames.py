"""Maps rows to a prior's centre and scale, and results back."""

from typing import NamedTuple

import numpy as np

from tractable.core.errors import DataError
from tractable.latent.variational_mixture import MixturePosterior


class Frame(NamedTuple):
    """x = centre + L x̃ with C₀ = L Lᵀ: in x̃ every table's prior has C₀ = 1, so one program serves all."""

    centre: np.ndarray  # (d,)
    root: np.ndarray  # L, shaped like C₀
    inverse: np.ndarray  # L⁻¹


def framing(centre: np.ndarray, covariance: np.ndarray) -> Frame:
    """The frame in which a prior's C₀ is 1.

    Raises:
        DataError: C₀ is not positive definite.
    """
    try:
        if covariance.ndim < 2 and not np.all(covariance > 0):
            raise np.linalg.LinAlgError
        root = np.linalg.cholesky(covariance) if covariance.ndim == 2 else np.sqrt(covariance)
    except np.linalg.LinAlgError:
        raise DataError(
            "covariance_prior is not positive definite; by default it is the rows' covariance. Is a column constant, "
            "the sum of others, or are there fewer rows than columns? Use a larger reg_covar, fewer columns, or a "
            "covariance_prior of your own."
        ) from None
    inverse = np.linalg.inv(root) if root.ndim == 2 else 1 / root
    return Frame(centre, np.asarray(root), np.asarray(inverse))


def spun(root: np.ndarray, x: np.ndarray) -> np.ndarray:
    """L x for each point, (..., d)."""
    return x @ root.T if root.ndim == 2 else x * root


def spread(root: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """L Σ Lᵀ, for every covariance type's shape."""
    return root @ covariances @ root.T if root.ndim == 2 else covariances * root**2


def inwards(frame: Frame, x: np.ndarray) -> np.ndarray:
    """x̃ of rows x, (n, d)."""
    return spun(frame.inverse, x - frame.centre)


def outwards(frame: Frame, q: MixturePosterior) -> MixturePosterior:
    """The posterior λ for x, from that for x̃."""
    return q._replace(means=frame.centre + spun(frame.root, q.means), covariances=spread(frame.root, q.covariances))


def log_size(frame: Frame) -> float:
    """log |L| = log p(x̃) − log p(x)."""
    root = np.diag(frame.root) if frame.root.ndim == 2 else frame.root
    return float(np.sum(np.log(np.broadcast_to(root, len(frame.centre)))))
