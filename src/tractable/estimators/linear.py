"""Linear, count and logistic regression with a posterior over the coefficients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpyro.distributions as dist

from tractable.core.causes import base_of
from tractable.core.errors import DataError
from tractable.core.model import Model
from tractable.diagnostics.verify import Verify
from tractable.estimators.base import BayesianClassifier, BayesianRegressor, HeldOut, Learner, Level, RandomState
from tractable.estimators.columns import description, with_names
from tractable.glm.families import with_offset
from tractable.glm.linear import generalised_linear, weight_scale_for, with_priors
from tractable.methods import INLA, NUTS, FullRank, MeanField, Method
from tractable.networks.multi_output import several_linear, side_by_side
from tractable.posterior.posterior import Posterior
from tractable.posterior.predict import Prediction
from tractable.tables.encoder import Encoder
from tractable.vi.quadrature import MOST, MOST_TOGETHER

Priors = Mapping[str, dist.Distribution] | None
Counts = Annotated[
    Literal[
        "negative-binomial", "poisson", "zero-inflated-negative-binomial", "zero-inflated-poisson",
        "hurdle-negative-binomial", "hurdle-poisson",
    ],
    "'negative-binomial' or 'poisson', also after 'zero-inflated-' or 'hurdle-'",
]  # fmt: skip
MOST_FULL = 1000  # where nested Laplace cannot be used, a full-rank normal is fitted up to this many parameters
BATCH, FEW_DRAWS = 256, 400  # rows per batch and posterior draws of the mean field that is fitted beyond MOST_FULL


def _auto(estimator: "Linear") -> Method:
    """The method "auto" for one linear predictor.

    It is ``NUTS`` if the prior of the weights is not normal, ``INLA`` if INLA accepts that many parameters, and else an
    approximation.
    """
    weights = (estimator.priors or {}).get("weights")
    if weights is not None and not isinstance(base_of(weights), dist.Normal | dist.ZeroSumNormal):
        return NUTS()
    return INLA() if _informed_directions(estimator) + 2 <= MOST else _approximate(estimator, 2)


@dataclass(eq=False, repr=False)
class BayesianLinearRegression(BayesianRegressor):
    """Linear regression with a posterior over coefficients and noise.

        y ~ N(a + xᵀw, noise²),   w ~ N(0, weight_scale²),   a ~ N(0, intercept_scale²),   noise ~ HalfNormal(1)

    The priors are for standardised columns and y: a weight of 1 changes y by one sd where x changes by one sd.
    ``predict`` gives exactly xᵀ coef_ + intercept_. With several targets, y of shape (n, K), each target has its own
    weights and noise, as if it were fitted alone. Correlations between the targets' residuals are not modelled, so each
    interval is for its target alone.

    Args:
        weight_scale: > 0, prior sd of a weight. None means 2.5, except for a table of 10 columns or more with fewer
            than five rows for each column in the first fit. There all weights share one sd, which is learnt as in ridge
            regression (``glm.linear.pooled_prior``); with more than 400 columns and more than 400 rows it is 2.5 again.
        intercept_scale: > 0, prior sd of the intercept.
        method: "auto" is ``INLA``, which is exact here; with more than about 5,000 columns and more than about 5,000
            rows it is ``MeanField``, an approximation. Other values are as for ``BayesianMLPRegressor``.
        level, calibration, random_state, verify: as for ``BayesianMLPRegressor``.
        priors: numpyro distributions by parameter, which replace the priors above: "weights" (scalar, or of shape
            (D,)), "intercept", "noise"; for standardised columns and y. If the prior of the weights is not normal,
            "auto" is ``NUTS``.

    Attributes:
        coef_: (D,), or (K, D) for several targets: posterior means, in units of y per unit of x.
        coef_std_: their posterior sds; NaN if the method gives none.
        intercept_: the mean of y at x = 0; (K,) for several targets.
        posterior_, report_, scores_, n_features_in_, feature_names_in_: as for ``BayesianMLPRegressor``. With several
            targets the parameters' names begin with "y0", "y1", ….

    >>> X = np.linspace(0.0, 10.0, 50)[:, None]
    >>> noise = np.random.default_rng(0).normal(0.0, 0.1, 50)
    >>> model = BayesianLinearRegression(random_state=0).fit(X, 3 * X[:, 0] + 1 + noise)
    >>> model.coef_.round(1).tolist()
    [3.0]
    """

    weight_scale: float | None = None
    intercept_scale: float = 5.0
    method: Learner = "auto"
    level: Level = 0.9
    calibration: HeldOut = 0.0
    random_state: RandomState = None
    verify: Verify = "auto"
    priors: Priors = None

    _multi_output: ClassVar[bool] = True

    def _model(self) -> Model:
        count, scales = self._scaling.outputs, (_scale(self, "normal"), self.intercept_scale)
        if count is None:
            model = with_priors(generalised_linear(self._width, "normal", None, *scales), self.priors or {})
            return with_names(self._description(), model)
        model = several_linear([f"y{k}" for k in range(count)], self._width, "normal", *scales)
        if self.priors and model.parts is not None:
            parts = {name: with_priors(part, self.priors) for name, part in model.parts.items()}
            model = side_by_side(parts, "normal")
        return with_names(self._description(), model)

    def _description(self) -> Encoder:
        return description(*self._table, "normal")

    _usual_method = _auto

    def _learn(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, before: Posterior | None) -> None:
        super()._learn(x, y, weight, before)
        scaling = self._scaling
        unit = scaling.spread if scaling.outputs is None else scaling.spread[:, None]
        self.coef_, self.coef_std_ = (moment * unit / scaling.scale for moment in _moments(self, "weights"))
        at_zero = scaling.middle + scaling.spread * _moments(self, "intercept")[0] - self.coef_ @ scaling.centre
        self.intercept_ = float(at_zero) if scaling.outputs is None else at_zero

    def _mean(self, x: np.ndarray, prediction: Prediction | None = None) -> np.ndarray:
        return x @ self.coef_.T + self.intercept_


@dataclass(eq=False, repr=False)
class BayesianCountRegression(BayesianRegressor):
    """Regression of counts with a posterior over the coefficients.

        E[y] = m e^(a + xᵀw),   w ~ N(0, weight_scale²),   a ~ N(0, intercept_scale²),   for standardised columns
        negative-binomial:  Var[y] = E[y] + dispersion² E[y]²,  dispersion ~ HalfNormal(1)
        poisson:            Var[y] = E[y]

    m is the mean of y in the first fit. For counts over unequal exposures use ``models.with_offset``; at the command
    line use ``tractable fit --exposure``.

    Args:
        family: "negative-binomial" or "poisson", also after "zero-inflated-" or "hurdle-" for counts that are 0 for
            reasons of their own (``models.linear.generalised_linear``).
        weight_scale, intercept_scale, level, calibration, random_state, verify: as for ``BayesianLinearRegression``.
        priors: as for ``BayesianLinearRegression``, for "weights", "intercept" and "dispersion".
        method: "auto" chooses as for ``BayesianLinearRegression``; here ``INLA`` is an approximation.

    Attributes:
        coef_: (D,) posterior means, in units of log E[y] per unit of x.
        coef_std_: (D,) posterior sds; NaN if the method gives none.
        intercept_: posterior mean of log E[y] at x = 0.
        posterior_, report_, scores_, n_features_in_, feature_names_in_: as for ``BayesianLinearRegression``.

    >>> X = np.linspace(0.0, 2.0, 80)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1 + X[:, 0]))
    >>> model = BayesianCountRegression("poisson", random_state=0).fit(X, y)
    >>> model.coef_.round(1).tolist()
    [1.0]
    """

    family: Counts = "negative-binomial"
    weight_scale: float | None = None
    intercept_scale: float = 5.0
    method: Learner = "auto"
    level: Level = 0.9
    calibration: HeldOut = 0.0
    random_state: RandomState = None
    verify: Verify = "auto"
    priors: Priors = None
    _scales_y = False

    def _model(self) -> Model:
        model = generalised_linear(self._width, self.family, None, _scale(self, self.family), self.intercept_scale)
        return with_names(self._description(), with_offset(with_priors(model, self.priors or {})))

    def _description(self) -> Encoder:
        return description(*self._table, self.family, level=float(np.exp(self._log_mean)))

    _usual_method = _auto

    def _learn(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, before: Posterior | None) -> None:
        wrong = (y < 0) | (y != np.floor(y))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(f"y must hold counts, 0, 1, 2, …; got {y[row]:g} in row {row}.")
        if before is None:
            self._log_mean = float(np.log(np.average(y, weights=weight))) if np.any(y[weight > 0] > 0) else 0.0
        super()._learn(x, y, weight, before)
        scaling = self._scaling
        self.coef_, self.coef_std_ = (moment / scaling.scale for moment in _moments(self, "weights"))
        intercept = _moments(self, "intercept")[0]
        self.intercept_ = self._log_mean + float(intercept) - float(self.coef_ @ scaling.centre)

    def _inputs(self, x: np.ndarray, count: int) -> Any:
        rows = super()._inputs(x, count)
        return {"x": rows, "offset": np.full(count, self._log_mean, rows.dtype)}


@dataclass(eq=False, repr=False)
class BayesianLogisticRegression(BayesianClassifier):
    """Logistic regression with a posterior over the coefficients, for two classes or more.

        two classes:  y ~ Bernoulli(1 / (1 + e^−(a + xᵀw)))       more:  y ~ Categorical(softmax(a + xᵀW))
        w ~ N(0, weight_scale²),   a ~ N(0, intercept_scale²),   for standardised columns

    With more than two classes, the weights of a column sum to zero over the classes, and so do the intercepts
    (``glm.linear.generalised_linear``).

    Args:
        weight_scale, intercept_scale, random_state, verify: as for ``BayesianLinearRegression``, with one exception:
            for more than two classes and few rows for each column, the default prior sd of the weights is 1.5/√D and
            is not learnt.
        priors: as for ``BayesianLinearRegression``, for "weights" and "intercept". With more than two classes their
            shapes are (D, C) and (C,), and their values sum to zero over the classes.
        method: "auto" is ``INLA``. For more parameters than ``INLA`` accepts it is ``FullRank``, and beyond 1,000
            parameters ``MeanField`` with minibatches.

    Attributes:
        coef_: (1, D), or (C, D) for more than two classes: posterior means, in log odds per unit of x.
        coef_std_: their posterior sds; NaN if the method gives none.
        intercept_: (1,) or (C,), log odds at x = 0.
        classes_: the labels, sorted.
        posterior_, report_, n_features_in_, feature_names_in_: as for ``BayesianLinearRegression``.

    >>> X = np.linspace(-3.0, 3.0, 60)[:, None]
    >>> model = BayesianLogisticRegression(random_state=0).fit(X, X[:, 0] > 0.5)
    >>> model.predict([[-1.0], [2.0]]).tolist()
    [False, True]
    """

    weight_scale: float | None = None
    intercept_scale: float = 5.0
    method: Learner = "auto"
    random_state: RandomState = None
    verify: Verify = "auto"
    priors: Priors = None

    def _model(self) -> Model:
        family, classes = ("bernoulli", None) if len(self.classes_) == 2 else ("categorical", len(self.classes_))
        model = generalised_linear(self._width, family, classes, _scale(self, family), self.intercept_scale)
        return with_names(self._description(), with_priors(model, self.priors or {}))

    def _description(self) -> Encoder:
        family = "bernoulli" if len(self.classes_) == 2 else "categorical"
        return description(*self._table, family, self.classes_.tolist())

    def _usual_method(self) -> Method:
        count = len(self.classes_)
        binary_method = _auto(self)
        if count == 2 or isinstance(binary_method, NUTS):
            return binary_method
        return INLA() if (_informed_directions(self) + 1) * (count - 1) <= MOST_TOGETHER else _approximate(self, count)

    def _learn(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, before: Posterior | None) -> None:
        super()._learn(x, y, weight, before)
        scaling, shape = self._scaling, (self._width, -1)  # one column for two classes
        self.coef_, self.coef_std_ = ((a.reshape(shape) / scaling.scale[:, None]).T for a in _moments(self, "weights"))
        self.intercept_ = np.ravel(_moments(self, "intercept")[0]) - self.coef_ @ scaling.centre


Linear = BayesianLinearRegression | BayesianCountRegression | BayesianLogisticRegression


def _moments(estimator: Linear, name: str) -> list[np.ndarray]:
    """Mean and sd of the parameter ``name``, with a leading axis for several targets."""
    posterior = estimator._posterior
    trees, targets = (posterior.mean(), posterior.sd()), posterior.model.parts
    moments = [tree[name] if targets is None else [tree[target][name] for target in targets] for tree in trees]
    return [np.asarray(moment, np.float64) for moment in moments]


def _scale(estimator: Linear, family: str) -> float | None:
    """The prior sd of an estimator's weights; None if it is learnt."""
    if estimator.weight_scale is not None:
        return estimator.weight_scale
    if "weights" in (estimator.priors or {}):
        return 2.5  # any number will do: ``with_priors`` replaces this prior
    return weight_scale_for(estimator._width, estimator._rows, family)


def _informed_directions(estimator: Linear) -> int:
    """The number of directions of the weights about which the rows have information, for one linear predictor."""
    return min(estimator._width, int(estimator._rows))


def _approximate(estimator: Linear, classes: int) -> Method:
    """``FullRank``, which fits d(d + 3)/2 numbers, for d ≤ 1000 parameters, and else ``MeanField`` with minibatches."""
    size = (estimator._width + 1) * (classes - 1)
    return FullRank() if size <= MOST_FULL else MeanField(batch_size=BATCH, samples=2, draws=FEW_DRAWS)
