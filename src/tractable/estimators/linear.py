"""Linear and logistic regression with a posterior over the coefficients."""

from typing import Any

import numpy as np

from tractable.core import Model
from tractable.estimators.base import BayesianClassifier, BayesianRegressor
from tractable.models.linear import generalised_linear
from tractable.results.posterior import Posterior

METHOD = "fullrank"  # by default: by quadrature where η is one number, and so without noise


class BayesianLinearRegression(BayesianRegressor):
    """Linear regression with a posterior over coefficients and noise.

        y ~ N(a + xᵀw, noise²),   w ~ N(0, weight_scale²),   a ~ N(0, intercept_scale²),   noise ~ HalfNormal(1)

    of standardised columns and y: a weight of 1 is one sd of y for one sd of x. ``predict`` gives xᵀ coef_ + intercept_
    exactly.

    Args:
        weight_scale: > 0, prior sd of a weight.
        intercept_scale: > 0, prior sd of the intercept.
        method: as for ``BayesianMLPRegressor``.
        level: of intervals, in (0, 1).
        calibration: share of the rows, in [0, 1), held out of the fit to calibrate intervals; 0 holds out none.
        random_state: int, RandomState or None, of all randomness of the fit.

    Attributes:
        coef_: (D,) posterior means, units of y by units of x.
        coef_std_: (D,) posterior sds; NaN where the method has none.
        intercept_: of y at x = 0.
        posterior_: the Posterior, of standardised numbers.
        report_: how far to trust it.
        scores_: |y − mean|/sd of the rows that calibrate, sorted, or None.
        n_features_in_, feature_names_in_: of the rows fitted.

    >>> X = np.linspace(0.0, 10.0, 50)[:, None]
    >>> noise = np.random.default_rng(0).normal(0.0, 0.1, 50)
    >>> model = BayesianLinearRegression(random_state=0).fit(X, 3 * X[:, 0] + 1 + noise)
    >>> model.coef_.round(1).tolist()
    [3.0]
    """

    def __init__(
        self,
        weight_scale: Any = 2.5,
        intercept_scale: Any = 5.0,
        method: Any = METHOD,
        level: Any = 0.9,
        calibration: Any = 0.0,
        random_state: Any = None,
    ) -> None:
        self.weight_scale = weight_scale
        self.intercept_scale = intercept_scale
        self.method = method
        self.level = level
        self.calibration = calibration
        self.random_state = random_state

    def _model(self) -> Model:
        return generalised_linear(
            self.n_features_in_, "normal", weight_scale=self.weight_scale, intercept_scale=self.intercept_scale
        )

    def _learn(self, rows: Any, before: Posterior | None = None) -> None:
        super()._learn(rows, before)
        mean, sd, by = self.posterior_.mean(), self.posterior_.sd(), self._scaling
        self.coef_ = np.asarray(mean["weights"], np.float64) * by.spread / by.scale
        self.coef_std_ = np.asarray(sd["weights"], np.float64) * by.spread / by.scale
        self.intercept_ = by.middle + by.spread * float(mean["intercept"]) - float(self.coef_ @ by.centre)

    def _mean(self, x: np.ndarray, told: Any = None) -> np.ndarray:
        return x @ self.coef_ + self.intercept_


class BayesianLogisticRegression(BayesianClassifier):
    """Logistic regression with a posterior over the coefficients, for two classes or more.

        two classes:  y ~ Bernoulli(1 / (1 + e^−(a + xᵀw)))       more:  y ~ Categorical(softmax(a + xᵀW))
        w ~ N(0, weight_scale²),   a ~ N(0, intercept_scale²),   of standardised columns

    With more than two classes weights and intercepts sum to zero over the classes (``models.generalised_linear``).

    Args:
        weight_scale: > 0, prior sd of a weight.
        intercept_scale: > 0, prior sd of the intercept.
        method: as for ``BayesianMLPRegressor``.
        random_state: int, RandomState or None, of all randomness of the fit.

    Attributes:
        coef_: (1, D), or (C, D) of more than two classes: posterior means, log odds by units of x.
        coef_std_: their posterior sds; NaN where the method has none.
        intercept_: (1,) or (C,), log odds at x = 0.
        classes_: the labels, sorted.
        posterior_, report_, n_features_in_, feature_names_in_: as for ``BayesianLinearRegression``.

    >>> X = np.linspace(-3.0, 3.0, 60)[:, None]
    >>> model = BayesianLogisticRegression(random_state=0).fit(X, X[:, 0] > 0.5)
    >>> model.predict([[-1.0], [2.0]]).tolist()
    [False, True]
    """

    def __init__(
        self,
        weight_scale: Any = 2.5,
        intercept_scale: Any = 5.0,
        method: Any = METHOD,
        random_state: Any = None,
    ) -> None:
        self.weight_scale = weight_scale
        self.intercept_scale = intercept_scale
        self.method = method
        self.random_state = random_state

    def _model(self) -> Model:
        count = len(self.classes_)
        return generalised_linear(
            self.n_features_in_,
            "bernoulli" if count == 2 else "categorical",
            None if count == 2 else count,
            self.weight_scale,
            self.intercept_scale,
        )

    def _learn(self, rows: Any, before: Posterior | None = None) -> None:
        super()._learn(rows, before)
        mean, sd, by = self.posterior_.mean(), self.posterior_.sd(), self._scaling
        shape = (self.n_features_in_, -1)  # one column for two classes
        self.coef_ = (np.asarray(mean["weights"], np.float64).reshape(shape) / by.scale[:, None]).T
        self.coef_std_ = (np.asarray(sd["weights"], np.float64).reshape(shape) / by.scale[:, None]).T
        self.intercept_ = np.ravel(np.asarray(mean["intercept"], np.float64)) - self.coef_ @ by.centre
