"""A Bayesian mixture's prior, and its predictive density."""

from typing import NamedTuple

import numpy as np

from tractable.models.variational_mixture import MixturePosterior
from tractable.tools.errors import DataError


class Prior(NamedTuple):
    """The prior's parameters, in the user's units."""

    weight_concentration: float  # α₀
    mean: np.ndarray  # (d,) m₀
    mean_precision: float  # β₀
    degrees_of_freedom: float  # ν₀
    covariance: np.ndarray  # C₀: full and tied (d, d), diag (d,), spherical ()


def varied(off: np.ndarray, weight: np.ndarray, kind: str, lift: float) -> tuple[np.ndarray, int]:
    """The rows' covariance plus ``lift``, in the prior's shape; and in how many directions ``lift`` is most of it."""
    total = weight.sum()
    if not total > 1:
        raise DataError(
            f"sample_weight says how often each row counts, and sums to {total:.4g}: of one row or less there is "
            "no covariance. Make the sum that of the rows, or give covariance_prior."
        )
    if kind in ("full", "tied"):
        found = (weight[:, None] * off).T @ off / (total - 1)
        found = (found + found.T) / 2
        return found + lift * np.eye(len(found)), int(np.sum(np.linalg.eigvalsh(found) <= lift))
    found = weight @ off**2 / (total - 1)
    found = found if kind == "diag" else np.mean(found)
    return np.asarray(found + lift), int(np.sum(found <= lift))


def students(
    q: MixturePosterior, prior: Prior, kind: str, process: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The predictive Student t's weights, centres, squared scales and degrees of freedom; leading axis components."""
    weights, d = shares_of(q.concentration), q.means.shape[1]
    _, means, beta, nu, covariances = q
    if process:  # one more component for all unused ones
        means, beta = np.vstack([means, prior.mean]), np.append(beta, prior.mean_precision)
        if kind != "tied":
            nu = np.append(nu, prior.degrees_of_freedom)
            covariances = np.concatenate([covariances, np.asarray(prior.covariance / prior.degrees_of_freedom)[None]])
    nu = np.broadcast_to(nu, len(means))
    covariances = np.broadcast_to(covariances, (len(means), *np.shape(prior.covariance)))
    free = nu - d + 1 if kind in ("full", "tied") else d * nu if kind == "spherical" else nu
    wider = (1 + 1 / beta) * (nu / free if kind in ("full", "tied") else 1.0)
    return weights, means, covariances * wider.reshape(-1, *[1] * (covariances.ndim - 1)), free


def shares_of(concentration: np.ndarray) -> np.ndarray:
    """E[π]: (K,), or from a process's Betas, (2, K), K + 1 shares, the last for the rest of the stick."""
    if concentration.ndim == 1:
        return concentration / concentration.sum()
    piece, left = concentration / concentration.sum(0)
    return np.append(piece, 1.0) * np.append(1.0, np.cumprod(left))
