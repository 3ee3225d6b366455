"""Frames: coordinates in which rows are centred and a prior's covariance is 1."""

from typing import NamedTuple, TypeVar

import numpy as np

from tractable.core.errors import DataError
from tractable.latent.mixture import Gaussians
from tractable.latent.variational_mixture import MixturePosterior

Moments = TypeVar("Moments", Gaussians, MixturePosterior)


class Frame(NamedTuple):
    """The map x = centre + L x̃ with C₀ = L Lᵀ, where C₀ is the prior's covariance.

    In the coordinates x̃ the prior's covariance is 1 (the identity), whatever the table. One compiled program therefore
    serves all tables. L and C₀ have the shape of the covariance type: (d, d), (d,) or a number.
    """

    centre: np.ndarray  # (d,)
    root: np.ndarray  # L
    inverse: np.ndarray  # L⁻¹


def prior_frame(centre: np.ndarray, covariance: np.ndarray) -> Frame:
    """The frame in which the prior's covariance C₀ is 1.

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
            "is a column the sum of others, or are there fewer rows than columns? Use a larger reg_covar, fewer "
            "columns, or a covariance_prior of your own."
        ) from None
    inverse = np.linalg.inv(root) if root.ndim == 2 else 1 / root
    return Frame(centre, np.asarray(root), np.asarray(inverse))


def map_points(root: np.ndarray, x: np.ndarray) -> np.ndarray:
    """L x for each point x, (..., d)."""
    return x @ root.T if root.ndim == 2 else x * root


def map_moments(root: np.ndarray, theta: Moments) -> Moments:
    """θ or q with its means μ replaced by L μ and its covariances Σ by L Σ Lᵀ, for the shape of every covariance type.

    L is ``root``.
    """
    covariances = theta.covariances
    covariances = root @ covariances @ root.T if root.ndim == 2 else covariances * root**2
    return theta._replace(means=map_points(root, theta.means), covariances=covariances)


def to_frame(frame: Frame, x: np.ndarray) -> np.ndarray:
    """The coordinates x̃ of rows x, (n, d)."""
    return map_points(frame.inverse, x - frame.centre)


def from_frame(frame: Frame, q: MixturePosterior) -> MixturePosterior:
    """The posterior's parameters for x, computed from those for x̃."""
    q = map_moments(frame.root, q)
    return q._replace(means=frame.centre + q.means)


def log_size(frame: Frame) -> float:
    """log |L|, which equals log p(x̃) − log p(x)."""
    root = np.diag(frame.root) if frame.root.ndim == 2 else frame.root
    return float(np.sum(np.log(np.broadcast_to(root, len(frame.centre)))))
