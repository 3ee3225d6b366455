"""The mixture of normals with scikit-learn's interface, fitted by EM."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

import jax
import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from tractable.estimators.base import Count, RandomState, Scored
from tractable.estimators.density import Density, Tolerance
from tractable.methods.maximisation import CHUNK
from tractable.models.latent import LatentModel
from tractable.models.linear_mixture import Frame
from tractable.models.mixture import Gaussians, Moments, gaussian_mixture, with_missing
from tractable.tools.errors import DataError, SettingsError
from tractable.tools.settings import Range, is_number

COVARIANCES = {"full": "full", "tied": "tied", "diag": "diagonal", "spherical": "spherical"}
Covariance = Annotated[Literal["full", "tied", "diag", "spherical"], f"one of {', '.join(COVARIANCES)}"]
Lift = Annotated[float, Range("a variance, 0 or more and finite", lambda value: is_number(value) and value >= 0)]


class Clusters(Scored):
    """Labels of rows, from ``predict_proba``, (n, K)."""

    fit: Callable[..., Any]
    predict_proba: Callable[..., np.ndarray]

    def fit_predict(self, X: object, y: object = None, sample_weight: object = None) -> np.ndarray:
        """``fit`` and then ``predict``."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict(self, X: object) -> np.ndarray:
        """The likeliest component, (n,)."""
        return self.predict_proba(X).argmax(1)


@dataclass(eq=False, repr=False)
class GaussianMixture(Clusters, Density):
    """A mixture of normals, by EM from several starts.

        p(x | θ) = Σ_k π_k N(x; μ_k, Σ_k),    M-step: Σ_k = Σ w r xxᵀ / N_k − μ_k μ_kᵀ + reg_covar · I

    From equal starts it reproduces scikit-learn's results; it adds weighted rows, missing numbers, standard errors,
    batches, rows on file and a report. Rows are centred inside, not scaled.

    Args:
        n_components: K ≥ 1.
        covariance_type: "full", "tied" (one for all), "diag" or "spherical".
        tol: > 0; a climb ends when its extrapolated further gain is below this share of the log likelihood.
        reg_covar: ≥ 0, added to every variance at every step, in the units of x².
        max_iter: steps at most, ≥ 1.
        n_init: number of starts, ≥ 1, by k-means++; the best is kept, a collapsed one only if all collapsed.
        weights_init: (K,), ≥ 0, with sum 1: starting weights.
        means_init: (K, d), starting means; then there is one start, with equal weights unless weights_init is given.
        precisions_init: starting inverse covariances, shaped as ``covariances_``.
        random_state: int, RandomState or None, for starts and samples.
        warm_start: start where the last fit ended.
        missing: "raise", or "exact": NaN marks numbers missing at random, which are integrated out, not imputed.
        chunk_size: rows processed at a time, ≥ 1: memory beside the rows is O(n_init · chunk_size).

    Attributes:
        weights_: (K,). means_: (K, d).
        covariances_, precisions_: full (K, d, d), tied (d, d), diag (K, d), spherical (K,).
        precisions_cholesky_: likewise, U with precision = U Uᵀ; square roots if diagonal.
        standard_errors_: of weights, means and covariances, a tuple of arrays shaped like them, from the observed
            information, as if reg_covar were 0. None if that is not positive definite or was not computed (rows on
            file, partial_fit, more than 1000 parameters); ``report_`` says which.
        converged_, n_iter_: the best start's.
        lower_bound_: log likelihood per row, nats.
        posterior_, report_: the estimate as a Posterior, and how far to trust it.
        n_features_in_, feature_names_in_: number and names of the fitted columns.

    >>> X = np.random.default_rng(0).normal(size=(40, 2)) + np.repeat([[0.0, 0.0], [6.0, 2.0]], 20, axis=0)
    >>> mixture = GaussianMixture(2, covariance_type="tied", random_state=0).fit(X)
    >>> bool(mixture.predict([[0, 1]])[0] == mixture.predict([[2, 3]])[0])
    True
    """

    n_components: Count = 1
    _: KW_ONLY
    covariance_type: Covariance = "full"
    tol: Tolerance = 1e-6
    reg_covar: Lift = 1e-6
    max_iter: Count = 1000
    n_init: Count = 4
    weights_init: ArrayLike | None = None
    means_init: ArrayLike | None = None
    precisions_init: ArrayLike | None = None
    random_state: RandomState = None
    warm_start: bool = False
    missing: Literal["raise", "exact"] = "raise"
    chunk_size: Count = CHUNK
    _attributes = Gaussians("weights_", "means_", "covariances_")

    def predict_proba(self, X: object) -> np.ndarray:
        """p(k | x), (n, K)."""
        return self._mapped("responsibilities", X)

    def bic(self, X: object) -> float:
        """−2 Σ log p(x) + p log n with p free parameters, as scikit-learn's; smaller is better."""
        each = self.score_samples(X)
        return float(-2 * each.sum() + self._free() * math.log(len(each)))

    def aic(self, X: object) -> float:
        """−2 Σ log p(x) + 2 p with p free parameters, as scikit-learn's; smaller is better."""
        return float(-2 * self.score_samples(X).sum() + 2 * self._free())

    def _free(self) -> int:
        return int(self._model().parameters or 0)

    def _model(self, centre: np.ndarray | None = None) -> LatentModel:
        make, kind = with_missing if self.missing == "exact" else gaussian_mixture, COVARIANCES[self.covariance_type]
        return make(int(self.n_components), self.n_features_in_, kind, float(self.reg_covar), centre)

    def _check_rows(self, count: int) -> None:
        if count < self.n_components:
            raise DataError(
                f"A mixture of n_components = {self.n_components} needs as many distinct rows of weight above 0; got "
                f"n_samples = {count}. Give more rows, or fewer components."
            )
        self._given()  # checks shapes before anything runs

    def _given(self) -> Gaussians:
        """The starting values given, in the user's coordinates; None for those not given."""
        k, d = int(self.n_components), self.n_features_in_
        weights = shaped("weights_init", self.weights_init, (k,))
        means = shaped("means_init", self.means_init, (k, d))
        shape = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}[self.covariance_type]
        precisions = shaped("precisions_init", self.precisions_init, shape)
        if weights is not None and (np.any(weights < 0) or not abs(weights.sum() - 1) < 1e-6):
            raise SettingsError(f"weights_init is of numbers ≥ 0 whose sum is 1; got {weights}.")
        if precisions is None:
            return Gaussians(weights, means, None)
        if self.covariance_type in ("full", "tied"):
            symmetric = np.allclose(precisions, np.swapaxes(precisions, -1, -2))
            if not symmetric or np.linalg.eigvalsh(precisions).min() <= 0:
                raise SettingsError("precisions_init needs to be symmetric and positive definite.")
            return Gaussians(weights, means, np.linalg.inv(precisions))
        if np.any(precisions <= 0):
            raise SettingsError(f"precisions_init needs to be positive; got {precisions}.")
        return Gaussians(weights, means, 1 / precisions)

    def _beginning(self, model: LatentModel, origin: np.ndarray) -> tuple[Callable, int]:
        given, plain = self._given(), super()._beginning(model, origin)
        k = int(self.n_components)
        if self.warm_start and hasattr(self, "posterior_"):
            theta = self._theta()
            if [np.shape(leaf) for leaf in theta] == [np.shape(leaf) for leaf in model.position]:
                given = Gaussians(theta.weights, theta.means + self._centre, theta.covariances)
        if given.means is not None:
            # Weights from k-means++ would belong to other components than the given means.
            given = given._replace(
                weights=np.full(k, 1 / k) if given.weights is None else given.weights, means=given.means - origin
            )

        def begin(key: jax.Array, rows: np.ndarray) -> Gaussians:
            if all(part is not None for part in given):
                return given
            made = plain[0](key, rows)
            return Gaussians(*(m if g is None else g for g, m in zip(given, made, strict=True)))

        return begin, 1 if k == 1 or given.means is not None else plain[1]

    def _tell(self, theta: Gaussians) -> None:
        super()._tell(theta)
        self.precisions_cholesky_, self.precisions_ = precision_roots(theta.covariances, self.covariance_type)

    def _statistics(self, theta: Gaussians) -> Moments:
        weights, means, covariances = theta
        d, floor = means.shape[1], float(self.reg_covar)
        if self.covariance_type in ("full", "tied"):
            roots = np.linalg.cholesky(covariances)
            back = np.linalg.inv(roots)
            second = np.eye(d) - floor * back @ np.swapaxes(back, -1, -2)
            second = second * (weights.sum() if self.covariance_type == "tied" else weights[:, None, None])
            roots = roots.reshape(-1, d, d)
        else:
            roots = np.sqrt(covariances.reshape(len(weights), -1))
            second = weights[:, None] * (1 - floor / roots**2)
            second = d * second[:, 0] if self.covariance_type == "spherical" else second
        return Moments(weights, np.zeros_like(means), second, Frame(means, roots))

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "exact"
        return tags


def precision_roots(covariances: np.ndarray, covariance_type: str) -> tuple[np.ndarray, np.ndarray]:
    """U and U Uᵀ = Σ⁻¹, U the transposed inverse of Σ's Cholesky factor; square roots if diagonal."""
    if covariance_type in ("diag", "spherical"):
        return 1 / np.sqrt(covariances), 1 / covariances
    try:
        factors = np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        raise DataError(
            "A covariance is not positive definite to this precision: a component collapsed. Use a larger reg_covar, "
            "fewer components, or columns of like scale."
        ) from None
    eye = np.eye(covariances.shape[-1])
    every = factors.reshape(-1, *eye.shape)
    roots = np.stack([scipy.linalg.solve_triangular(f, eye, lower=True).T for f in every]).reshape(covariances.shape)
    return roots, roots @ np.swapaxes(roots, -1, -2)


def shaped(name: str, value: object, shape: tuple[int, ...]) -> np.ndarray | None:
    """A setting as an array of finite numbers of that shape; None stays None."""
    if value is None:
        return None
    array = np.asarray(value).astype(np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise SettingsError(f"{name} is of finite numbers, shape {shape}; got shape {array.shape}.")
    return array
