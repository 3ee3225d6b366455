"""Factor analysis with scikit-learn's interface, fitted by EM."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import scipy.linalg
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from tractable.core.check import Check
from tractable.core.errors import SettingsError
from tractable.core.latent import LatentModel
from tractable.engine.search import INFORMATION
from tractable.estimators.base import RandomState
from tractable.estimators.density import Count, Density, Tolerance
from tractable.latent.factors import Loadings, factor_analysis
from tractable.posterior.posterior import Posterior

ROTATIONS = {"varimax": 1.0, "quartimax": 0.0}  # γ of the orthomax family of rotations
FLOOR = 1e-12  # the smallest noise variance, in the units of x²
FLAT = 1e-9  # an eigenvalue of the information counts as 0 below this share of the largest eigenvalue
INFERRED = "write tr.infer(tr.models.{}, rows, tr.EM({}))."  # what to do in place of passing a removed argument


@dataclass(eq=False, repr=False)
class FactorAnalysis(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Density):
    """Factor analysis: a few latent numbers z explain the columns of x, and each column has its own noise.

        z ~ N(0, I_q),   x | z ~ N(μ + W z, Ψ)    ⇒    x ~ N(μ, W Wᵀ + Ψ)

    The data determine W only up to a rotation of z. By default the estimator reports the W for which Wᵀ Ψ⁻¹ W is
    diagonal with the largest entry first, as scikit-learn does. ``rotation`` asks for a W that is easier to read. The
    entry of each column of W that is largest in absolute value is positive.

    Args:
        n_components: the number q of factors, 1 to d; d by default.
        tol, max_iter: as for ``GaussianMixture``.
        rotation: None, "varimax" (few large entries in each column) or "quartimax" (few in each row).
        random_state: int, RandomState or None, for starts and samples.

    Attributes:
        components_: (q, d), Wᵀ.
        loadings_: (d, q), W.
        mean_: (d,), μ.
        noise_variance_: (d,), the diagonal of Ψ, at least 1e-12. Without this floor the likelihood would be unbounded
            where the factors explain a column fully (a Heywood case).
        loglike_: log likelihood at every step, in nats (units of the natural logarithm).
        standard_errors_: a tuple (mean, loadings, noise), computed from the expected information. The loadings' entry
            is None, because the loadings are determined only up to a rotation. The whole attribute is None if the data
            do not determine the noise (q is too large for d, or a column's noise is at the floor), or above 1000
            columns; ``report_`` says so.
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
    max_iter: Count = 1000
    rotation: Annotated[Literal["varimax", "quartimax"] | None, f"None, {' or '.join(ROTATIONS)}"] = None
    random_state: RandomState = 0
    _removed: ClassVar = {
        "noise": INFERRED.format("probabilistic_pca(d, q)", ""),
        "noise_floor": INFERRED.format("factor_analysis(d, q, floor=floor)", ""),
        "n_init": INFERRED.format("factor_analysis(d, q)", "starts=4"),
        "chunk_size": INFERRED.format("factor_analysis(d, q)", "chunk=1000"),
    }
    _observed_information = False  # it is singular here: rotations of W do not change the likelihood

    def transform(self, X: object) -> np.ndarray:
        """E[z | x] of each row, (n, q)."""
        return self._map_rows("encode", X)

    def get_covariance(self) -> np.ndarray:
        """W Wᵀ + Ψ, (d, d)."""
        theta = self._theta()
        return theta.loadings @ theta.loadings.T + np.diag(theta.noise)

    def get_precision(self) -> np.ndarray:
        """(W Wᵀ + Ψ)⁻¹, (d, d), by Woodbury's identity."""
        theta = self._theta()
        scaled = theta.loadings / theta.noise[:, None]  # Ψ⁻¹ W
        inner = np.eye(scaled.shape[1]) + theta.loadings.T @ scaled
        return np.diag(1 / theta.noise) - scaled @ scipy.linalg.solve(inner, scaled.T, assume_a="pos")

    @property
    def _n_features_out(self) -> int:
        return self.n_features_in_ if self.n_components is None else int(self.n_components)

    def _model(self) -> LatentModel:
        return factor_analysis(self.n_features_in_, self._n_features_out, FLOOR)

    def _check_rows(self, count: int) -> None:
        if self._n_features_out > self.n_features_in_:
            raise SettingsError(
                f"n_components is the number of factors, which is at most the number of columns; got "
                f"{self.n_components} for {self.n_features_in_} columns. Use a smaller n_components."
            )

    def _read(self, posterior: Posterior) -> Loadings:
        theta = super()._read(posterior)
        return theta._replace(loadings=theta.loadings @ find_rotation(theta, self.rotation))

    def _results(self, posterior: Posterior, total: float) -> tuple[Loadings | None, list[Check], dict[str, Any]]:
        _, checks, fields = super()._results(posterior, total)
        errors, least = standard_errors(self._estimate, total)
        verdict = "trust" if errors is not None else "caution"
        sentence = "smallest eigenvalue of the noise's expected information, as a share of the largest"
        checks = [c for c in checks if c.name not in ("curvature", "condition", "standard errors")]
        return errors, [*checks, Check("curvature", least, verdict, sentence)], fields

    def _attributes(self) -> dict[str, Any]:
        theta, trace = self._theta(), self.posterior_.info["objective"][0]
        return {
            "mean_": theta.mean + self._frame.centre, "loadings_": theta.loadings, "components_": theta.loadings.T,
            "noise_variance_": theta.noise, "loglike_": trace[np.isfinite(trace)].tolist(),
        }  # fmt: skip


def standard_errors(theta: Loadings, size: float) -> tuple[Loadings | None, float]:
    """Standard errors of mean and noise from the expected information of n = ``size`` rows.

        information on the noise  n/2 Φ_ij²,   Φ = Ψ⁻¹ − Ψ⁻¹ W (Wᵀ Ψ⁻¹ W)⁻¹ Wᵀ Ψ⁻¹
        variance of the mean      (W Wᵀ + Ψ) / n

    The first is the information on the noise when the loadings are unknown too; rotations of W do not change it.
    Lawley & Maxwell 1971, chapter 5.

    Returns:
        The standard errors, and the smallest eigenvalue of the information as a share of the largest. The information
        is first scaled to a unit diagonal, so that the columns' units do not matter. The errors are None if the
        information is singular, or if a noise variance is at the floor.
    """
    loadings, noise = theta.loadings, theta.noise
    if len(noise) > INFORMATION:
        return None, math.nan
    u, sizes, _ = np.linalg.svd(loadings / np.sqrt(noise)[:, None], full_matrices=False)
    information = (np.eye(len(noise)) - u @ u.T) ** 2  # (Ψ^½ Φ Ψ^½)²
    diagonal = np.diag(information)
    if not np.all(diagonal > FLAT**2) or sizes[-1] <= FLAT * sizes[0]:
        return None, 0.0
    values = np.linalg.eigvalsh(information / np.sqrt(np.outer(diagonal, diagonal)))
    least = float(values[0] / values[-1])
    if least <= FLAT or np.any(noise <= 4 * FLOOR):
        return None, least
    variances = np.sum(loadings**2, axis=1) + noise
    errors = noise * np.sqrt(2 / size * np.diag(np.linalg.inv(information)))
    return Loadings(np.sqrt(variances / size), None, errors), least


def find_rotation(theta: Loadings, rotation: str | None) -> np.ndarray:
    """The orthogonal matrix R, (q, q), for which W R are the reported loadings."""
    scaled = theta.loadings.T @ (theta.loadings / theta.noise[:, None])
    turn = np.linalg.eigh((scaled + scaled.T) / 2)[1][:, ::-1]
    if rotation is not None:
        turn = turn @ orthomax(theta.loadings @ turn, ROTATIONS[rotation])
    loadings = theta.loadings @ turn
    largest = loadings[np.argmax(np.abs(loadings), axis=0), np.arange(loadings.shape[1])]
    return turn * np.where(largest < 0, -1.0, 1.0)


def orthomax(loadings: np.ndarray, gamma: float, steps: int = 500, tolerance: float = 1e-12) -> np.ndarray:
    """The rotation R that maximises Σ_ij Λ_ij⁴ − γ/d Σ_j (Σ_i Λ_ij²)² with Λ = W R. Kaiser 1958 (γ = 1).

    Each step sets R to the polar factor of the criterion's gradient, which maximises the linearised criterion. For
    γ = 0 the criterion is convex, so every step increases it. For γ = 1 the steps increase it in practice.
    """
    d, q = loadings.shape
    turn, before = np.eye(q), 0.0
    for _ in range(steps):
        product = loadings @ turn
        slope = product**3 - (gamma / d) * product * np.sum(product**2, axis=0)
        u, s, v = np.linalg.svd(loadings.T @ slope)
        turn = u @ v
        if s.sum() - before <= tolerance * s.sum():
            break
        before = s.sum()
    return turn
