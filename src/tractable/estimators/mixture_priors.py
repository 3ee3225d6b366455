"""What a Bayesian mixture believes before rows, from an estimator's settings, and predicts after them."""

from typing import Any, NamedTuple

import numpy as np

from tractable.estimators.mixtures import COVARIANCES, shaped
from tractable.models.variational_mixture import MixturePosterior
from tractable.tools.errors import DataError, SettingsError
from tractable.tools.settings import expect_whole, is_number

PROCESSES = {"dirichlet_process": True, "dirichlet_distribution": False}


class Prior(NamedTuple):
    """What is believed beforehand, in the user's units."""

    concentration: float  # α₀
    mean: np.ndarray  # (d,) m₀
    mean_precision: float  # β₀
    freedom: float  # ν₀
    covariance: np.ndarray  # C₀: full and tied (d, d), diag (d,), spherical ()


def check_settings(given: Any) -> None:
    """A sentence about the first of an estimator's settings that is amiss, as far as it needs no rows to be judged."""
    for name in ("n_components", "n_init", "max_iter", "draws"):
        expect_whole(name, getattr(given, name))
    if not isinstance(given.covariance_type, str) or given.covariance_type not in COVARIANCES:
        raise SettingsError(f"covariance_type is one of {', '.join(COVARIANCES)}; got {given.covariance_type!r}.")
    kind = given.weight_concentration_prior_type
    if not isinstance(kind, str) or kind not in PROCESSES:
        raise SettingsError(f"weight_concentration_prior_type is one of {', '.join(PROCESSES)}; got {kind!r}.")
    if not is_number(given.tol, 0):
        raise SettingsError(f"tol is a share of the bound, above 0 and finite; got {given.tol!r}.")
    if not (is_number(given.reg_covar, -1) and given.reg_covar >= 0):
        raise SettingsError(f"reg_covar is a variance, 0 or more and finite; got {given.reg_covar!r}.")
    for name in ("weight_concentration_prior", "mean_precision_prior"):
        value = getattr(given, name)
        if value is not None and not is_number(value, 0):
            raise SettingsError(f"{name} is a number above 0 and finite, or None; got {value!r}.")


def beforehand(given: Any, x: np.ndarray, weight: np.ndarray, centre: np.ndarray) -> tuple[Prior, int]:
    """An estimator's prior, and in how many directions of its default reg_covar is all, or most."""
    d = len(centre)
    mean, freedom = shaped("mean_prior", given.mean_prior, (d,)), given.degrees_of_freedom_prior
    freedom, least = d if freedom is None else freedom, d - 1 if given.covariance_type in ("full", "tied") else 0
    if not is_number(freedom, least):
        raise SettingsError(f"degrees_of_freedom_prior is above {least} and finite, or None; got {freedom!r}.")
    shape = {"diag": (d,), "spherical": ()}.get(given.covariance_type, (d, d))
    covariance, held = shaped("covariance_prior", given.covariance_prior, shape), 0
    if covariance is None:
        covariance, held = varied(x - centre, weight, given.covariance_type, float(given.reg_covar))
    elif len(shape) == 2 and not np.allclose(covariance, covariance.T, rtol=1e-6, atol=0):
        raise SettingsError("covariance_prior needs to be symmetric and positive definite.")
    alpha, beta = given.weight_concentration_prior, given.mean_precision_prior
    prior = Prior(
        float(1 / given.n_components if alpha is None else alpha), centre if mean is None else mean,
        float(1 if beta is None else beta), float(freedom), covariance,
    )  # fmt: skip
    return prior, held


def varied(off: np.ndarray, weight: np.ndarray, kind: str, lift: float) -> tuple[np.ndarray, int]:
    """The rows' covariance in the prior's shape, ``lift`` added, and in how many directions that is all, or most."""
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
    """The predictive density's weights, centres, squared scales and degrees, a leading axis of components."""
    weights, d = shares_of(q.concentration), q.means.shape[1]
    means, beta = q.means, q.mean_precision
    nu, covariances = q.degrees_of_freedom, q.covariances
    if process:  # and all that are not used
        means, beta = np.vstack([means, prior.mean]), np.append(beta, prior.mean_precision)
        if kind != "tied":
            nu = np.append(nu, prior.freedom)
            covariances = np.concatenate([covariances, np.asarray(prior.covariance / prior.freedom)[None]])
    nu = np.broadcast_to(nu, len(means))
    covariances = np.broadcast_to(covariances, (len(means), *np.shape(prior.covariance)))
    free = nu - d + 1 if kind in ("full", "tied") else d * nu if kind == "spherical" else nu
    wider = (1 + 1 / beta) * (nu / free if kind in ("full", "tied") else 1.0)
    return weights, means, covariances * wider.reshape(-1, *[1] * (covariances.ndim - 1)), free


def shares_of(concentration: np.ndarray) -> np.ndarray:
    """E[π]: (K,), or of a process's Betas, (2, K), K + 1 shares, the last of them what is left of the stick."""
    if concentration.ndim == 1:
        return concentration / concentration.sum()
    piece, left = concentration / concentration.sum(0)
    return np.append(piece, 1.0) * np.append(1.0, np.cumprod(left))
