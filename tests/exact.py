"""Answers in closed form with which several tests compare."""

from typing import Any

import numpy as np
from scipy import stats

from tractable.latent.factors import Loadings


def probabilistic_pca_maximum(x: np.ndarray, rank: int, weights: np.ndarray | None = None) -> Loadings:
    """The maximum-likelihood θ of probabilistic PCA: W = U_q (Λ_q − σ² I)^½, σ² the mean of the other eigenvalues.

    Tipping & Bishop 1999, eqs. 7 and 8. In each column of W the entry of largest size is positive.
    """
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True, aweights=weights))
    values, vectors = values[::-1], vectors[:, ::-1]
    noise = values[rank:].mean()
    loadings = vectors[:, :rank] * np.sqrt(np.maximum(values[:rank] - noise, 0))
    signs = np.sign(loadings[np.argmax(np.abs(loadings), axis=0), np.arange(rank)])
    return Loadings(np.average(x, axis=0, weights=weights), loadings * signs, noise)


def crps_normal(y: np.ndarray | float, mean: float, sd: float) -> Any:
    """The continuous ranked probability score of a normal forecast (Gneiting et al. 2005, eq. 5)."""
    z = (np.asarray(y) - mean) / sd
    return sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5)
