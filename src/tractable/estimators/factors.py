"""Factor analysis and probabilistic principal components, fitted by EM."""

import math
import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

import numpy as np
import scipy.linalg
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from tractable.beliefs.check import Check
from tractable.core import Data
from tractable.estimators.base import Count, RandomState
from tractable.estimators.density import Density, Tolerance
from tractable.methods.maximisation import CHUNK, EM
from tractable.methods.search import INFORMATION
from tractable.models.factors import Loadings, Regression, factor_analysis, probabilistic_pca
from tractable.models.latent import LatentModel
from tractable.results.posterior import Posterior
from tractable.tools.errors import SettingsError, TractableWarning
from tractable.tools.settings import Range, is_number

NOISES = ("diagonal", "isotropic")
ROTATIONS = {"varimax": 1.0, "quartimax": 0.0}  # γ of the orthomax family
Floor = Annotated[float, Range("a variance, above 0 and finite", lambda value: is_number(value, 0))]
FLAT = 1e-9  # share of the largest eigenvalue below which a direction of the information is flat


@dataclass(eq=False, repr=False)
class FactorAnalysis(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Density):
    """Factor analysis: a few latent numbers z behind the columns of x, and each column's own noise.

        z ~ N(0, I_q),   x | z ~ N(μ + W z, Ψ)    ⇒    x ~ N(μ, W Wᵀ + Ψ)

    W is determined up to a rotation of z. Reported is the W whose Wᵀ Ψ⁻¹ W is diagonal, largest first, like
    scikit-learn's; or one that ``rotation`` makes easier to read. The largest entry of every column is positive.

    Args:
        n_components: q, 1 to d; d by default.
        tol, max_iter, chunk_size: as for ``GaussianMixture``.
        noise: "diagonal", or "isotropic": Ψ = σ² I, probabilistic PCA.
        noise_floor: > 0, least noise variance, in the units of x²: without it the likelihood of a fully explained
            column (Heywood case) is unbounded.
        n_init: number of starts, ≥ 1; the best is kept.
        rotation: None, "varimax" (few large entries in each column) or "quartimax" (few in each row).
        random_state: int, RandomState or None, for starts and samples.

    Attributes:
        components_: (q, d), Wᵀ. loadings_: (d, q), W. mean_: (d,) μ.
        noise_variance_: (d,) the diagonal of Ψ; isotropic: σ².
        loglike_: log likelihood at every step of the best start, nats.
        standard_errors_: a tuple (mean, loadings, noise) with None for the loadings, which are determined only up to a
            rotation; from the expected information with the rotations projected out. None if the noise is not
            determined (q too large for d, or a column at the floor) or above 1000 parameters; ``report_`` says so.
        converged_, n_iter_, lower_bound_, posterior_, report_, n_features_in_, feature_names_in_: as for
            ``GaussianMixture``.

    >>> z = np.random.default_rng(0).normal(size=(200, 1))
    >>> X = z @ [[1.0, 2.0, -1.0]] + 0.5 * np.random.default_rng(1).normal(size=(200, 3))
    >>> codes = FactorAnalysis(1, random_state=0).fit_transform(X)
    >>> bool(np.corrcoef(codes[:, 0], z[:, 0])[0, 1] > 0.95)
    True
    """

    n_components: Count | None = None
    _: KW_ONLY
    tol: Tolerance = 1e-6
    noise: Annotated[Literal["diagonal", "isotropic"], f"one of {', '.join(NOISES)}"] = "diagonal"
    noise_floor: Floor = 1e-12
    max_iter: Count = 1000
    n_init: Count = 1
    rotation: Annotated[Literal["varimax", "quartimax"] | None, f"None, {' or '.join(ROTATIONS)}"] = None
    random_state: RandomState = 0
    chunk_size: Count = CHUNK
    _informed = False  # rotations are flat directions of the observed information
    _attributes = Loadings("mean_", "loadings_", "noise_variance_")

    def transform(self, X: object) -> np.ndarray:
        """E[z | x] of each row, (n, q)."""
        return self._mapped("encode", X)

    def get_covariance(self) -> np.ndarray:
        """W Wᵀ + Ψ, (d, d)."""
        return self.loadings_ @ self.loadings_.T + np.diag(self._noises())

    def get_precision(self) -> np.ndarray:
        """(W Wᵀ + Ψ)⁻¹, (d, d), by Woodbury's identity."""
        scaled = self.loadings_ / self._noises()[:, None]  # Ψ⁻¹ W
        inner = np.eye(scaled.shape[1]) + self.loadings_.T @ scaled
        return np.diag(1 / self._noises()) - scaled @ scipy.linalg.solve(inner, scaled.T, assume_a="pos")

    def _noises(self) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.noise_variance_, np.float64), (self.n_features_in_,))

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _rank(self) -> int:
        return self.n_features_in_ if self.n_components is None else int(self.n_components)

    def _model(self, centre: np.ndarray | None = None) -> LatentModel:
        make = probabilistic_pca if self.noise == "isotropic" else factor_analysis
        return make(self.n_features_in_, self._rank(), float(self.noise_floor), centre)

    def _check_rows(self, count: int) -> None:
        if self._rank() > self.n_features_in_:
            raise SettingsError(
                f"n_components counts factors, at most the columns; got {self.n_components} for "
                f"{self.n_features_in_} columns."
            )

    def _inferred(self, model: LatentModel, data: Data, method: EM) -> Posterior:
        # The rotations are known flat directions of the information: no warning about them.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The observed information", TractableWarning)
            found = super()._inferred(model, data, method)
        traces = [trace[np.isfinite(trace)] for trace in found.info["objective"]]
        best = min(traces, key=lambda t: abs(len(t) - found.found["steps"]) + abs(t[-1] - found.found["objective"]))
        self.loglike_ = [float(v) for v in best]
        return found

    def _judged(self, found: Posterior, theta: Loadings, total: float) -> tuple[Loadings | None, list[Check]]:
        errors, least = standard_errors(theta, total, float(self.noise_floor))
        verdict = "trust" if errors is not None else "caution"
        sentence = "smallest eigenvalue of the expected information, of the largest, off the rotations"
        checks = [c for c in found.report().checks if c.name not in ("curvature", "condition")]
        return errors, [*checks, Check("curvature", least, verdict, sentence)]

    def _tell(self, theta: Loadings) -> None:
        super()._tell(theta)
        self.loadings_, self.components_ = theta.loadings, theta.loadings.T
        self.noise_variance_ = theta.noise if np.ndim(theta.noise) else float(theta.noise)

    def _turned(self, theta: Loadings, statistics: Regression | None) -> tuple[Loadings, Regression | None]:
        turn = turned(theta, self.rotation)
        theta = theta._replace(loadings=theta.loadings @ turn)
        if statistics is None:
            return theta, None
        whole = scipy.linalg.block_diag(turn, 1.0)  # acts on z̃ = [z, 1]
        latent, cross, square = statistics
        return theta, Regression(whole.T @ latent @ whole, cross @ whole, square)

    def _statistics(self, theta: Loadings) -> Regression:
        # At a maximum z has mean 0 and covariance I over the rows.
        solution = np.column_stack([theta.loadings, theta.mean])
        noise = np.broadcast_to(theta.noise, theta.mean.shape)
        return Regression(np.eye(solution.shape[1]), solution, noise + np.sum(solution**2, axis=1))


def standard_errors(theta: Loadings, size: float, floor: float) -> tuple[Loadings | None, float]:
    """Standard errors of mean and noise by ``size`` rows' expected information, and its smallest eigenvalue.

        J_ab = n/2 tr(C⁻¹ ∂_a C C⁻¹ ∂_b C),   C = W Wᵀ + Ψ;    for the mean  C / n

    Rotations of W, q(q − 1)/2 directions, change neither C nor the noise: the noise's errors come from J's
    pseudo-inverse, and the smallest eigenvalue leaves them out. Errors are None if more directions are flat, or a
    noise is at the floor.
    """
    loadings, noise = theta.loadings, np.asarray(theta.noise)
    d, q = loadings.shape
    if d * q + noise.size > INFORMATION:
        return None, math.nan
    covariance = loadings @ loadings.T + np.diag(np.broadcast_to(noise, d))
    precision = np.linalg.inv(covariance)
    reach = precision @ loadings  # (d, q), C⁻¹ W
    inner = loadings.T @ reach  # (q, q)
    both = np.einsum("kj,il->ijkl", reach, reach) + np.einsum("jl,ik->ijkl", inner, precision)
    mixed = np.einsum("ik,il->kli", precision, reach)  # J of W_kl with ψ_i
    square = precision**2
    if noise.ndim == 0:
        mixed, square = mixed.sum(2, keepdims=True), square.sum(keepdims=True)
    cross = mixed.reshape(d * q, -1)
    information = size * np.block([[both.reshape(d * q, d * q), cross], [cross.T, square / 2]])
    # Scaled to a unit diagonal, so that the columns' units do not matter.
    own = np.diag(information)
    if not np.all(own > 0):
        return None, 0.0
    scale = 1 / np.sqrt(own)
    values, vectors = np.linalg.eigh(scale[:, None] * information * scale[None, :])
    flat = q * (q - 1) // 2
    least = float(values[flat] / values[-1])
    if least <= FLAT or np.any(noise <= 4 * floor):
        return None, least
    kept = vectors[:, flat:] / np.sqrt(values[flat:])
    # A scaled pseudo-inverse is a generalised inverse, and all of these agree on what is determined.
    spread = scale**2 * np.sum(kept**2, axis=1)
    errors = np.sqrt(spread[d * q :]).reshape(noise.shape)
    return Loadings(np.sqrt(np.diag(covariance) / size), None, errors), least


def turned(theta: Loadings, rotation: str | None) -> np.ndarray:
    """R, orthogonal (q, q), such that W R are the reported loadings."""
    scaled = theta.loadings.T @ (theta.loadings / np.broadcast_to(theta.noise, len(theta.loadings))[:, None])
    turn = np.linalg.eigh((scaled + scaled.T) / 2)[1][:, ::-1]
    if rotation is not None:
        turn = turn @ orthomax(theta.loadings @ turn, ROTATIONS[rotation])
    told = theta.loadings @ turn
    largest = told[np.argmax(np.abs(told), axis=0), np.arange(told.shape[1])]
    return turn * np.where(largest < 0, -1.0, 1.0)


def orthomax(loadings: np.ndarray, gamma: float, steps: int = 500, tolerance: float = 1e-12) -> np.ndarray:
    """R that maximises Σ_ij Λ_ij⁴ − γ/d Σ_j (Σ_i Λ_ij²)², Λ = W R, by iterated polar factors. Kaiser 1958 (γ = 1).

    Each step takes the gradient's polar factor, which maximises the linearised criterion: it climbs for γ = 0, where
    the criterion is convex, and in practice for γ = 1.
    """
    d, q = loadings.shape
    turn, before = np.eye(q), 0.0
    for _ in range(steps):
        told = loadings @ turn
        slope = told**3 - (gamma / d) * told * np.sum(told**2, axis=0)
        u, s, v = np.linalg.svd(loadings.T @ slope)
        turn = u @ v
        if s.sum() - before <= tolerance * s.sum():
            break
        before = s.sum()
    return turn
