"""The mixture of normals with scikit-learn's interface, fitted by EM; and the base class of all mixtures."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike

from tractable.core.errors import DataError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.settings import Count, Range, is_number
from tractable.estimators.base import RandomState
from tractable.estimators.density import Density, Tolerance
from tractable.latent.mixture import Gaussians, gaussian_mixture

COVARIANCES = {"full": "full", "tied": "tied", "diag": "diagonal", "spherical": "spherical"}
Covariance = Annotated[Literal["full", "tied", "diag", "spherical"], f"one of {', '.join(COVARIANCES)}"]
Lift = Annotated[float, Range("a variance, 0 or more and finite", lambda value: is_number(value) and value >= 0)]


@dataclass(eq=False, repr=False)
class Mixture(Density):
    """Base of mixtures of normals: their common settings, and the methods that label rows."""

    n_components: Count = 1
    _: KW_ONLY
    covariance_type: Covariance = "full"
    tol: Tolerance = 1e-6
    reg_covar: Lift = 1e-6
    max_iter: Count = 1000
    n_init: Count = 4
    random_state: RandomState = None
    warm_start: bool = False

    def fit_predict(self, X: object, y: object = None, sample_weight: object = None) -> np.ndarray:
        """``fit`` and then ``predict``."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict(self, X: object) -> np.ndarray:
        """The most probable component of each row, (n,)."""
        return self.predict_proba(X).argmax(1)

    def predict_proba(self, X: object) -> np.ndarray:
        """p(k | x), (n, K).

        A Bayesian mixture gives q(z = k) instead, the softmax of E log π_k N(x; μ_k, Λ_k⁻¹).
        """
        return self._map_rows("responsibilities", X)

    def _check_rows(self, count: int) -> None:
        if count < self.n_components:
            raise DataError(
                f"A mixture of n_components = {self.n_components} needs at least as many distinct rows of weight above "
                f"0; got n_samples = {count}. Give more rows, or fewer components."
            )

    @property
    def _matrices(self) -> bool:
        return self.covariance_type in ("full", "tied")

    def _precisions(self, covariances: np.ndarray) -> dict[str, np.ndarray]:
        """Σ⁻¹ and its root U with Σ⁻¹ = U Uᵀ, which is the transposed inverse of Σ's Cholesky factor.

        For diagonal and spherical covariances U is the square root of 1/Σ.
        """
        if not self._matrices:
            return {"precisions_": 1 / covariances, "precisions_cholesky_": 1 / np.sqrt(covariances)}
        try:
            roots = np.triu(np.swapaxes(np.linalg.inv(np.linalg.cholesky(covariances)), -1, -2))
        except np.linalg.LinAlgError:
            raise DataError(
                "A covariance is not positive definite to floating-point accuracy: a component collapsed. Use a larger "
                "reg_covar, fewer components, or columns of similar scale."
            ) from None
        return {"precisions_": roots @ np.swapaxes(roots, -1, -2), "precisions_cholesky_": roots}


@dataclass(eq=False, repr=False)
class GaussianMixture(Mixture):
    """A mixture of normals, fitted by EM from several starts.

        p(x | θ) = Σ_k π_k N(x; μ_k, Σ_k),    M-step: Σ_k = Σ w r xxᵀ / N_k − μ_k μ_kᵀ + reg_covar · I

    From equal starts the estimator reproduces scikit-learn's results; it adds weighted rows, standard errors and a
    report. Rows are centred inside the estimator, but not scaled. For batches or rows on file, use ``tr.infer`` with
    ``tr.models.gaussian_mixture``, or ``tr.models.mixture.with_missing`` for rows with missing numbers.

    Args:
        n_components: K ≥ 1.
        covariance_type: "full", "tied" (one for all), "diag" or "spherical".
        tol: > 0; EM stops when the gain still to come, by extrapolation, is below this share of the log likelihood.
        reg_covar: ≥ 0, added to every variance at every step, in the units of x².
        max_iter: the largest number of steps, ≥ 1.
        n_init: number of starts, ≥ 1, by k-means++. The best result is kept; a result with a collapsed component is
            kept only if all results have one.
        weights_init: (K,), ≥ 0, with sum 1: starting weights.
        means_init: (K, d), starting means; then there is one start, with equal weights unless weights_init is given.
        precisions_init: starting inverse covariances, of the shape of ``covariances_``.
        random_state: int, RandomState or None, for starts and samples.
        warm_start: whether to start from the result of the last fit.

    Attributes:
        weights_: (K,), the components' shares.
        means_: (K, d).
        covariances_, precisions_: full (K, d, d), tied (d, d), diag (K, d), spherical (K,).
        precisions_cholesky_: of the same shape: U with precision = U Uᵀ; square roots for "diag" and "spherical".
        standard_errors_: a tuple of the standard errors of weights, means and covariances, of their shapes. They come
            from the observed information, as if reg_covar were 0. None if the information is not positive definite or
            was not computed (more than 1000 parameters, or very many rows); ``report_`` says which.
        converged_, n_iter_: whether the best start's climb converged, and how many steps it took.
        lower_bound_: log likelihood per row, in nats (units of the natural logarithm).
        posterior_, report_: the estimate as a Posterior, and how far to trust it.
        n_features_in_, feature_names_in_: number and names of the fitted columns.

    >>> X = np.random.default_rng(0).normal(size=(40, 2)) + np.repeat([[0.0, 0.0], [6.0, 2.0]], 20, axis=0)
    >>> mixture = GaussianMixture(2, covariance_type="tied", random_state=0).fit(X)
    >>> bool(mixture.predict([[0, 1]])[0] == mixture.predict([[2, 3]])[0])
    True
    """

    _: KW_ONLY
    weights_init: ArrayLike | None = None
    means_init: ArrayLike | None = None
    precisions_init: ArrayLike | None = None
    _removed: ClassVar = {
        "chunk_size": "write tr.infer(tr.models.gaussian_mixture(K, d), tr.Data(path), tr.EM()) for rows on file.",
        "missing": 'write tr.infer(tr.models.mixture.with_missing(K, d), tr.Data(x, missing="keep"), tr.EM()).',
    }

    def bic(self, X: object) -> float:
        """The Bayesian information criterion, as in scikit-learn; smaller is better.

        It is −2 Σ log p(x) + p log n with p free parameters.
        """
        scores = self.score_samples(X)
        return float(-2 * scores.sum() + self._model().parameters * math.log(len(scores)))

    def aic(self, X: object) -> float:
        """Akaike's information criterion, as in scikit-learn; smaller is better.

        It is −2 Σ log p(x) + 2 p with p free parameters.
        """
        return float(-2 * self.score_samples(X).sum() + 2 * self._model().parameters)

    def _model(self) -> LatentModel:
        kind = COVARIANCES[self.covariance_type]
        return gaussian_mixture(int(self.n_components), self.n_features_in_, kind, float(self.reg_covar))

    def _check_rows(self, count: int) -> None:
        super()._check_rows(count)
        self._initial_values()  # checks shapes before anything runs

    def _initial_values(self) -> Gaussians:
        """The user's starting values, in the user's units; None for each value that the user did not give."""
        example = self._model().position
        weights = array_of_shape("weights_init", self.weights_init, example.weights.shape)
        means = array_of_shape("means_init", self.means_init, example.means.shape)
        precisions = array_of_shape("precisions_init", self.precisions_init, example.covariances.shape)
        if weights is not None and (np.any(weights < 0) or not abs(weights.sum() - 1) < 1e-6):
            raise SettingsError(f"weights_init must be numbers ≥ 0 with sum 1; got {weights}.")
        if precisions is None:
            return Gaussians(weights, means, None)
        if not self._matrices:
            good = np.all(precisions > 0)
        else:
            symmetric = np.allclose(precisions, np.swapaxes(precisions, -1, -2))
            good = symmetric and np.linalg.eigvalsh(precisions).min() > 0
        if not good:
            kind = "symmetric and positive definite" if self._matrices else "positive"
            raise SettingsError(f"precisions_init must be {kind}; got {precisions}.")
        return Gaussians(weights, means, np.linalg.inv(precisions) if self._matrices else 1 / precisions)

    def _beginning(self, model: LatentModel, centre: np.ndarray) -> tuple[Callable, int]:
        values, k = self._initial_values(), int(self.n_components)
        clustering: Any = model.steps.begin
        if self.warm_start and hasattr(self, "posterior_"):
            last = model.shifted(self._theta(), self._frame.centre)
            if [leaf.shape for leaf in last] == [leaf.shape for leaf in model.position]:
                values = last
        if values.means is not None:
            # Weights from k-means++ would belong to other components than the user's means do.
            weights = np.full(k, 1 / k) if values.weights is None else values.weights
            values = values._replace(weights=weights, means=values.means - centre)

        def begin(key: jax.Array, rows: np.ndarray) -> Gaussians:
            return Gaussians(*(m if v is None else v for v, m in zip(values, clustering(key, rows), strict=True)))

        return begin, 1 if k == 1 or values.means is not None else int(self.n_init)

    def _attributes(self) -> dict[str, Any]:
        theta = self._model().shifted(self._theta(), self._frame.centre)
        named = {"weights_": theta.weights, "means_": theta.means, "covariances_": theta.covariances}
        return named | self._precisions(theta.covariances)


def array_of_shape(name: str, value: object, shape: tuple[int, ...]) -> np.ndarray | None:
    """The setting ``name`` as an array of finite numbers of this shape; None stays None."""
    if value is None:
        return None
    array = np.asarray(value).astype(np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise SettingsError(f"{name} must be finite numbers of shape {shape}; got shape {array.shape}.")
    return array
