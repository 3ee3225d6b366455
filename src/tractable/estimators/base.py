"""What the estimators have in common: from a table to a posterior and back to the user's units."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from tractable.checks.calibration import split_conformal
from tractable.checks.report import Report
from tractable.core import Data, Model
from tractable.estimators import rows as tables
from tractable.estimators.rows import Rows, Scaling
from tractable.estimators.updating import moments, updated
from tractable.infer import infer
from tractable.methods import Method, named
from tractable.results.posterior import Posterior
from tractable.results.predict import Prediction
from tractable.tools.errors import DataError, SettingsError

DRAWS = 1000  # of the parameters, at most, that a prediction averages over
UNKEPT = ("model", "data", "standing")  # of a posterior, in a pickle


class Bayesian(BaseEstimator):
    """The base of the estimators; ``_model`` is all that a subclass must say."""

    method: Any
    random_state: Any
    n_features_in_: int
    posterior_: Posterior
    _scaling: Scaling

    def _model(self) -> Model:
        """The model of standardised inputs."""
        raise NotImplementedError

    @property
    def report_(self) -> Report:
        """How far the fit can be trusted: a verdict, and the checks that made it."""
        check_is_fitted(self, "posterior_")
        return self.posterior_.report()

    def _learn(self, rows: Rows, before: Posterior | None = None) -> None:
        """Set ``posterior_``; with the posterior of earlier rows its moments are the prior."""
        model = self._model()
        prior = model if before is None else updated(model, *moments(before))
        count = tables.length(len(rows.y))
        # Row counts are padded to one of few, so that few programs are compiled; added rows weigh nothing.
        y, weights = tables.padded(self._targets(rows.y), count), tables.padded(rows.weight, count, 0.0)
        data = Data(y, given=self._inputs(rows.x, count), weights=weights)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        fitted = infer(prior, data, self._method(count), seed=seed, progress=False)
        # The report is made with the rows at hand; the posterior is kept without them, and with the first prior.
        self.posterior_ = dataclasses.replace(fitted, model=model, data=None, standing=None, judged=fitted.report())

    def _method(self, count: int) -> Method:
        if not isinstance(self.method, str | Method):
            raise SettingsError(f"method is a name such as 'nuts', or a method such as NUTS(); got {self.method!r}.")
        method: Any = named(self.method)() if isinstance(self.method, str) else self.method
        # A search over tables of several sizes should not fail at the smallest.
        if isinstance(getattr(method, "batch_size", None), int) and method.batch_size > count:
            method = dataclasses.replace(method, batch_size=count)
        return method

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """What the model explains: y in the model's units, or classes 0, 1, …"""
        return self._scaling.targets(y).astype(jnp.result_type(float))

    def _inputs(self, x: np.ndarray, count: int) -> np.ndarray:
        return tables.padded(self._scaling.inputs(x).astype(jnp.result_type(float)), count)

    def _checked(self, x: Any) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        return np.asarray(validate_data(self, x, reset=False, dtype=np.float64))

    def _told(self, x: np.ndarray, level: float = 0.9) -> Prediction:
        """The predictive distribution at checked rows, standardised."""
        told = self.posterior_.predict(self._inputs(x, tables.length(len(x))), level, draws=DRAWS)
        return jax.tree.map(lambda a: a[: len(x)], told)

    def _weights(self, sample_weight: Any, x: np.ndarray) -> np.ndarray:
        weight = np.asarray(_check_sample_weight(sample_weight, x, dtype=np.float64))
        if np.any(weight < 0):
            raise DataError(f"sample_weight says how often a row counts: expected numbers ≥ 0; got {weight.min():g}.")
        if not np.any(weight > 0):
            raise DataError("Every sample_weight is zero, which leaves no row to learn from.")
        return weight

    def __getstate__(self) -> dict[str, Any]:
        # A model is functions, which no pickle holds: it is made again from the settings.
        state: dict[str, Any] = {**super().__getstate__()}  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
        posterior = state.get("posterior_")
        if posterior is not None:
            fields = {f.name: getattr(posterior, f.name) for f in dataclasses.fields(posterior)}
            state["posterior_"] = {name: value for name, value in fields.items() if name not in UNKEPT}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        kept = self.__dict__.get("posterior_")
        if isinstance(kept, dict):
            self.posterior_ = Posterior(self._model(), None, **kept)


class BayesianRegressor(RegressorMixin, Bayesian):
    """Numbers: fit, predictive means and sds, intervals."""

    level: Any
    calibration: Any
    scores_: np.ndarray | None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, D), an array or a frame of numbers.
            y: (n,).
            sample_weight: (n,), ≥ 0, how often each row counts: Σ wᵢ log p(yᵢ|xᵢ, θ). Zero is as if the row were not
                there, a whole number as if it were there so often, exactly and for every method.

        Returns:
            The estimator.

        Raises:
            ValueError: NaN, shapes that do not fit, a y of one value, settings out of range; in a sentence.
        """
        return self._fit(X, y, sample_weight, None)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Learn from more rows: the posterior of earlier ones becomes the prior.

            p(θ) ← ∏ⱼ N(θⱼ; mⱼ, sⱼ²)       m, s: mean and sd of the earlier posterior, on the reals

        Assumed-density filtering: correlations are forgotten at every call, and where a posterior has several modes
        (the symmetries of a network, explored by NUTS or an ensemble) so is all but their middle and width. Each number
        takes one sd with it, so that forgetting makes later fits cautious where parameters are correlated. Many
        rows in few calls lose least. The scaling stays that of the first rows; every call compiles anew; rows held
        out to calibrate are those of the last call.

        Args: as for ``fit``.
        """
        return self._fit(X, y, sample_weight, getattr(self, "posterior_", None))

    def _fit(self, x: Any, y: Any, sample_weight: Any, before: Posterior | None) -> Any:
        x, y = validate_data(self, x, y, reset=before is None, dtype=np.float64, y_numeric=True)
        y = np.asarray(y, np.float64)
        weight = self._weights(sample_weight, x)
        if not (isinstance(self.level, int | float) and 0 < self.level < 1):
            raise SettingsError(f"level is of intervals, a number in (0, 1); got {self.level!r}.")
        held = self._held_out(weight)
        rows = tables.distinct(x, y, np.where(held, 0.0, weight))
        if before is None:
            self._scaling = tables.scaling(rows, True)
        self._learn(rows, before)
        self.scores_ = None
        if np.any(held):
            self.scores_ = self._scores(x[held], y[held])
        return self

    def _held_out(self, weight: np.ndarray) -> np.ndarray:
        """(n,) which rows calibrate and are not learnt from."""
        if not (isinstance(self.calibration, int | float) and 0 <= self.calibration < 1):
            raise SettingsError(f"calibration is a share of rows, in [0, 1); got {self.calibration!r}.")
        held, candidates = np.zeros(len(weight), bool), np.flatnonzero(weight)
        if not self.calibration:
            return held
        chosen = check_random_state(self.random_state).permutation(candidates)
        held[chosen[: int(np.ceil(self.calibration * len(candidates)))]] = True
        if held.sum() == len(candidates):
            raise DataError(
                f"calibration={self.calibration} of n_samples = {len(candidates)} leaves no row to learn from."
            )
        return held

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean, in y's units.

        Args:
            X: (n, D).
            return_std: the predictive sd as well: √(aleatoric² + epistemic²).

        Returns:
            (n,), or a pair of them.
        """
        x = self._checked(X)
        if not return_std:
            return self._mean(x)
        told = self._told(x, self.level)
        return self._mean(x, told), self._scaling.spread * told.sd

    def _mean(self, x: np.ndarray, told: Prediction | None = None) -> np.ndarray:
        """(n,) the predictive mean at checked rows, in y's units; ``told`` of them already, or not."""
        told = self._told(x, self.level) if told is None else told
        return self._scaling.middle + self._scaling.spread * told.mean

    def predict_interval(self, X: Any, level: float | None = None) -> np.ndarray:
        """Intervals that hold a new y with probability ``level``.

        Uncalibrated, the equal-tailed interval of the predictive distribution: as good as the model and the method.
        After ``calibrate``, or with ``calibration`` > 0, mean ± q sd with q from rows kept out of the fit (split
        conformal): it then holds a new y with probability at least ``level`` whatever the model, over rows exchangeable
        with those kept out; on average over rows, not at each x.

        Args:
            X: (n, D).
            level: in (0, 1); that of the estimator by default.

        Returns:
            (n, 2): lower, upper.

        Raises:
            ValueError: a level out of range, or too high for the rows kept out.
        """
        level = float(self.level if level is None else level)
        told = self._told(self._checked(X), level)
        lower, upper = told.lower, told.upper
        if self.scores_ is not None:
            half = split_conformal(self.scores_, level) * told.sd
            lower, upper = told.mean - half, told.mean + half
        return self._scaling.middle + self._scaling.spread * np.column_stack([lower, upper])

    def calibrate(self, X: Any, y: Any) -> Any:
        """Measure the errors |y − mean|/sd of rows that took no part in the fit; ``predict_interval`` then uses them.

        Args:
            X: (n, D).
            y: (n,); n ≥ level/(1 − level), 9 for a level of 0.9.

        Returns:
            The estimator.
        """
        check_is_fitted(self, "posterior_")
        x, y = validate_data(self, X, y, reset=False, dtype=np.float64, y_numeric=True)
        self.scores_ = self._scores(np.asarray(x), np.asarray(y, np.float64))
        return self

    def _scores(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        told = self._told(x, self.level)
        return np.sort(np.abs(self._scaling.targets(y) - told.mean) / told.sd)


class BayesianClassifier(ClassifierMixin, Bayesian):
    """Classes: fit, averaged probabilities, the likeliest class."""

    classes_: np.ndarray

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, D), an array or a frame of numbers.
            y: (n,) labels, of two classes at least.
            sample_weight: (n,), ≥ 0, how often each row counts: Σ wᵢ log p(yᵢ|xᵢ, θ). Zero is as if the row were not
                there, a whole number as if it were there so often, exactly and for every method.

        Returns:
            The estimator.

        Raises:
            ValueError: NaN, shapes that do not fit, a single class, settings out of range; in a sentence.
        """
        return self._fit(X, y, sample_weight, None, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Learn from more rows: the posterior of earlier ones becomes the prior.

            p(θ) ← ∏ⱼ N(θⱼ; mⱼ, sⱼ²)       m, s: mean and sd of the earlier posterior, on the reals

        Assumed-density filtering: correlations are forgotten at every call, and where a posterior has several modes
        (the symmetries of a network, explored by NUTS or an ensemble) so is all but their middle and width. Each number
        takes one sd with it, so that forgetting makes later fits cautious where parameters are correlated. Many
        rows in few calls lose least. The scaling stays that of the first rows; every call compiles anew.

        Args:
            classes: all that will ever come, in the first call; by default those of its y.
            Others as for ``fit``.
        """
        return self._fit(X, y, sample_weight, getattr(self, "posterior_", None), classes)

    def _fit(self, x: Any, y: Any, sample_weight: Any, before: Posterior | None, classes: Any) -> Any:
        x, y = validate_data(self, x, y, reset=before is None, dtype=np.float64)
        check_classification_targets(y)
        weight, y = self._weights(sample_weight, x), np.asarray(y)
        if before is None:
            # Rows that count nothing are not there, and neither is a class that only they have.
            self.classes_ = np.unique(y[weight > 0] if classes is None else np.asarray(classes))
            if len(self.classes_) < 2:
                raise DataError(
                    f"y has one class, {self.classes_[0]!r}: a classifier needs rows of two classes at least, "
                    "counted where sample_weight > 0."
                )
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise DataError(f"classes was {self.classes_} in the first call and is {np.unique(classes)} now.")
        unknown = np.setdiff1d(y[weight > 0], self.classes_)
        if len(unknown):
            raise DataError(f"y has classes that classes= of the first call lacks: {unknown}; it has {self.classes_}.")
        codes = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        rows = tables.distinct(x, codes.astype(np.float64), weight)
        if before is None:
            self._scaling = tables.scaling(rows, False)
        self._learn(rows, before)
        return self

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(int)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities averaged over the posterior, (n, C), in the order of ``classes_``."""
        p = np.asarray(self._told(self._checked(X)).probabilities, np.float64)
        return p / p.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms, (n, C), in nats."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class, (n,); of equally likely ones the first."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]
