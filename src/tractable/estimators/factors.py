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
from tractable.estimators.base import Count, RandomState
from tractable.estimators.density import Density, Tolerance
from tractable.latent.factors import Loadings, factor_analysis
from tractable.posterior.posterior import Posterior

ROTATIONS = {"varimax": 1.0, "quartimax": 0.0}  # γ of the orthomax family
FLOOR = 1e-12  # least noise variance
FLAT = 1e-9  # share of the largest eigenvalue below which a direction of the information is flat
INFERRED = "write tr.infer(tr.models.{}, rows, tr.EM({}))."


@dataclass(eq=False, repr=False)
class FactorAnalysis(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Density):
    """Factor analysis: a few latent numbers z behind the columns of x, and each column's own noise.

        z ~ N(0, I_q),   x | z ~ N(μ + W z, Ψ)    ⇒    x ~ N(μ, W Wᵀ + Ψ)

    W is determined up to a rotation of z. Reported is the W whose Wᵀ Ψ⁻¹ W is diagonal, largest first, like
    scikit-learn's; or one that ``rotation`` makes easier to read. The largest entry of every column is positive.

    Args:
        n_components: q, 1 to d; d by default.
        tol, max_iter: as for ``GaussianMixture``.
        rotation: None, "varimax" (few large entries in each column) or "quartimax" (few in each row).
        random_state: int, RandomState or None, for starts and samples.

    Attributes:
        components_: (q, d), Wᵀ. loadings_: (d, q), W. mean_: (d,) μ.
        noise_variance_: (d,) the diagonal of Ψ, at least 1e-12: without a floor the likelihood of a fully explained
            column (Heywood case) is unbounded.
        loglike_: log likelihood at every step, nats.
        standard_errors_: a tuple (mean, loadings, noise) with None for the loadings, which are determined only up to a
            rotation; from the expected information. None if the noise is not determined (q too large for d, or a
            column at the floor) or above 1000 columns; ``report_`` says so.
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
    removed: ClassVar = {
        "noise": INFERRED.format("probabilistic_pca(d, q)", ""),
        "noise_floor": INFERRED.format("factor_analysis(d, q, floor=floor)", ""),
        "n_init": INFERRED.format("factor_analysis(d, q)", "starts=4"),
        "chunk_size": INFERRED.format("factor_analysis(d, q)", "chunk=1000"),
    }
    _informed = False  # rotations are flat directions of the observed information

    def transform(self, X: object) -> np.ndarray:
        """E[z | x] of each row, (n, q)."""
        return self._mapped("encode", X)

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
                f"n_components counts factors, at most the columns; got {self.n_components} for "
                f"{self.n_features_in_} columns."
            )

    def _read(self, found: Posterior) -> Loadings:
        theta = super()._read(found)
        return theta._replace(loadings=theta.loadings @ find_rotation(theta, self.rotation))

    def _results(self, found: Posterior, total: float) -> tuple[Loadings | None, list[Check], dict[str, Any]]:
        _, checks, fields = super()._results(found, total)
        errors, least = standard_errors(self._learnt, total)
        verdict = "trust" if errors is not None else "caution"
        sentence = "smallest eigenvalue of the noise's expected information, of the largest"
        checks = [c for c in checks if c.name not in ("curvature", "condition", "standard errors")]
        return errors, [*checks, Check("curvature", least, verdict, sentence)], fields

    def _attributes(self) -> dict[str, Any]:
        theta, trace = self._theta(), self.posterior_.info["objective"][0]
        return {
            "mean_": theta.mean + self._frame.centre, "loadings_": theta.loadings, "components_": theta.loadings.T,
            "noise_variance_": theta.noise, "loglike_": trace[np.isfinite(trace)].tolist(),
        }  # fmt: skip


def standard_errors(theta: Loadings, size: float) -> tuple[Loadings | None, float]:
    """Standard errors of mean and noise by ``size`` rows' expected information, and its smallest eigenvalue.

        n/2 Φ_ij²,   Φ = Ψ⁻¹ − Ψ⁻¹ W (Wᵀ Ψ⁻¹ W)⁻¹ Wᵀ Ψ⁻¹;    for the mean  (W Wᵀ + Ψ) / n

    This is the information on the noise where the loadings are unknown too; rotations of W do not change it. The
    eigenvalue is of the information scaled to a unit diagonal, so that the columns' units do not matter. Errors are
    None if it is flat in some direction, or a noise is at the floor. Lawley & Maxwell 1971, chapter 5.
    """
    loadings, noise = theta.loadings, theta.noise
    if len(noise) > INFORMATION:
        return None, math.nan
    u, sizes, _ = np.linalg.svd(loadings / np.sqrt(noise)[:, None], full_matrices=False)
    left = (np.eye(len(noise)) - u @ u.T) ** 2  # (Ψ^½ Φ Ψ^½)²
    own = np.diag(left)
    if not np.all(own > FLAT**2) or sizes[-1] <= FLAT * sizes[0]:
        return None, 0.0
    values = np.linalg.eigvalsh(left / np.sqrt(np.outer(own, own)))
    least = float(values[0] / values[-1])
    if least <= FLAT or np.any(noise <= 4 * FLOOR):
        return None, least
    variances = np.sum(loadings**2, axis=1) + noise
    errors = noise * np.sqrt(2 / size * np.diag(np.linalg.inv(left)))
    return Loadings(np.sqrt(variances / size), None, errors), least


def find_rotation(theta: Loadings, rotation: str | None) -> np.ndarray:
    """R, orthogonal (q, q), such that W R are the reported loadings."""
    scaled = theta.loadings.T @ (theta.loadings / theta.noise[:, None])
    turn = np.linalg.eigh((scaled + scaled.T) / 2)[1][:, ::-1]
    if rotation is not None:
        turn = turn @ orthomax(theta.loadings @ turn, ROTATIONS[rotation])
    loadings = theta.loadings @ turn
    largest = loadings[np.argmax(np.abs(loadings), axis=0), np.arange(loadings.shape[1])]
    return turn * np.where(largest < 0, -1.0, 1.0)


def orthomax(loadings: np.ndarray, gamma: float, steps: int = 500, tolerance: float = 1e-12) -> np.ndarray:
    """R that maximises Σ_ij Λ_ij⁴ − γ/d Σ_j (Σ_i Λ_ij²)², Λ = W R, by iterated polar factors. Kaiser 1958 (γ = 1).

    Each step takes the gradient's polar factor, which maximises the linearised criterion: it climbs for γ = 0, where
    the criterion is convex, and in practice for γ = 1.
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
