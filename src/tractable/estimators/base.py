"""The estimators' common base: from a table to a posterior, and back to the user's units."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from tractable.core.bits import in_double, need_double
from tractable.core.errors import DataError, SettingsError, TractableWarning
from tractable.core.model import Data, Model
from tractable.core.settings import Range, Seed, is_number, is_whole, range_of
from tractable.core.words import Spelt
from tractable.diagnostics.calibration import split_conformal
from tractable.diagnostics.report import Report, number
from tractable.diagnostics.verify import Verify
from tractable.estimators import rows as tables
from tractable.estimators.rows import Scaling
from tractable.estimators.updating import moments, updated
from tractable.inference import infer
from tractable.methods import Method, named
from tractable.posterior.posterior import Posterior
from tractable.posterior.predict import Prediction
from tractable.posterior.standardised import Standardised, as_standardised

DRAWS = 1000  # posterior draws that a prediction averages over, at most
BLOCK = 1 << 16  # rows scaled at once
# Checks whose rejection means that the run was too short.
UNFINISHED = ("R-hat", "R-hat of means", "bulk ESS", "tail ESS", "effective draws", "trend", "gain to come", "gradient",
              "left to climb", "ended early", "steps", "further", "L-BFGS adds")  # fmt: skip
UNKEPT = ("model", "data", "standing")  # fields of a posterior that a pickle leaves out

# Ranges of settings, in the words of the errors.
Count = Annotated[int, Range("a whole number, 1 or more", is_whole)]
Learner = Annotated[str | Method, "a name such as 'nuts', or a method such as NUTS()"]
Level = Annotated[float, Range("a number in (0, 1)", lambda value: is_number(value, 0) and value < 1)]
HeldOut = Annotated[float, Range("a share of rows, in [0, 1)", lambda value: is_number(value) and 0 <= value < 1)]
RandomState = Seed | Annotated[np.random.RandomState, "a NumPy RandomState"] | None


class Bayesian(Spelt, BaseEstimator):
    """Base of the estimators: dataclasses whose fields are the settings. Subclasses define the model."""

    __no_type_check__ = True  # else a run-time type checker would raise its own error before ours
    _model: Callable[[], Model]  # on standardised inputs
    _streams: ClassVar[int] = 1  # random streams: one for the fit
    _double: bool = False  # whether the fit computed in double precision
    _scaled: Any = False  # whether the model is of standardised columns
    random_state: RandomState
    n_features_in_: int
    posterior_: Posterior
    _scaling: Scaling
    _rows: float  # of the first fit, each as often as its weight says

    @property
    def report_(self) -> Report:
        """How far the fit can be trusted: a verdict, and the checks behind it."""
        check_is_fitted(self, "posterior_")
        return self.posterior_.report()

    def _keep(self, posterior: Posterior) -> None:
        """Set ``posterior_``, which says so where its model's units are not the user's."""
        self.posterior_ = as_standardised(posterior) if self._scaled else posterior

    @property
    def _inside(self) -> Posterior:
        """The posterior, in the units of its model."""
        posterior = self.posterior_
        return posterior.standardised if isinstance(posterior, Standardised) else posterior

    def _check_settings(self) -> None:
        """Raises a SettingsError about the first setting outside its field's range."""
        settings: Any = self
        for field in dataclasses.fields(settings):
            allowed, value = range_of(field.type), getattr(self, field.name)
            if allowed and not allowed.holds(value):
                raise SettingsError(f"{field.name} is {allowed.expected}; got {value!r}.")

    def _inferred(
        self, model: Model, data: Data, method: Method, verify: str | None = "auto", held_out: Data | None = None
    ) -> Posterior:
        seed = self._seeds()[0]
        return infer(model, data, method, seed=seed, progress=False, verify=verify, held_out=held_out)

    def _seeds(self) -> list[int]:
        return check_random_state(self.random_state).randint(np.iinfo(np.int32).max, size=self._streams).tolist()

    def _checked(self, x: object, *, reset: bool = False, **options: Any) -> np.ndarray:
        """A table as finite numbers (n, d), float64 by default. Columns must be those fitted, unless ``reset``."""
        if not reset:
            check_is_fitted(self, "posterior_")
        table: Any = x
        return np.asarray(validate_data(self, table, reset=reset, **{"dtype": np.float64, **options}))

    def _weights(self, sample_weight: object, x: np.ndarray) -> np.ndarray:
        weight = np.asarray(_check_sample_weight(sample_weight, x, dtype=np.float64))
        if np.any(weight < 0):
            raise DataError(f"sample_weight says how often a row counts: expected numbers ≥ 0; got {weight.min():g}.")
        if not np.any(weight > 0):
            raise DataError("Every sample_weight is zero, which leaves no row to learn from.")
        return weight

    def __getstate__(self) -> dict[str, Any]:
        # A model holds functions, which cannot be pickled: it is made again from the settings.
        state: dict[str, Any] = {**super().__getstate__()}  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
        posterior = state.get("posterior_")
        if posterior is not None:
            fields = {f.name: getattr(posterior, f.name) for f in dataclasses.fields(posterior)}
            state["posterior_"] = {name: value for name, value in fields.items() if name not in UNKEPT}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        fitted = self.__dict__.get("posterior_")
        if isinstance(fitted, dict):
            with in_double(self._double):
                self._keep(Posterior(self._model(), None, **fitted))


class Scored:
    """For estimators whose ``score_samples`` gives log densities, (n,)."""

    score_samples: Callable[..., np.ndarray]

    def score(self, X: object, y: object = None) -> float:
        """The mean of ``score_samples``, nats a row."""
        return float(np.mean(self.score_samples(X)))


class Explaining(Bayesian):
    """Estimators of p(y | x), with settings ``method``, ``random_state`` and ``verify``."""

    method: Learner
    verify: Verify
    _measured: ClassVar[bool]  # whether y is numbers, not classes
    _multi_output: ClassVar[bool] = False  # whether y may be (n, K)
    _scaled = True
    _standardised: ClassVar[bool] = True  # whether y is standardised, if numbers
    _fit: Callable[..., Any]  # (X, y, sample_weight, posterior of earlier rows or None) -> self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._multi_output
        return tags

    def fit(self, X: object, y: object, sample_weight: object = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, D), an array or a frame of numbers.
            y: (n,) numbers, or (n, K) where the estimator takes several outputs; or labels of at least two classes.
            sample_weight: (n,), ≥ 0, how often each row counts: Σ wᵢ log p(yᵢ|xᵢ, θ). For every method, weight 0
                equals leaving the row out and a whole number equals repeating it, exactly, unless rows are set
                aside (``calibration``, ``held_out``), which are chosen one by one.

        Returns:
            The estimator.

        Raises:
            ValueError: NaN, shapes that do not match, a constant y, or settings out of range.

        Warns:
            ConvergenceWarning: the run was too short. TractableWarning: the posterior should not be used for another
                reason, which the message gives.
        """
        return self._fit(X, y, sample_weight, None)

    def partial_fit(self, X: object, y: object, sample_weight: object = None) -> Any:
        """Learn from more rows: the posterior of earlier ones becomes the prior.

            p(θ) ← ∏ⱼ N(θⱼ; mⱼ, sⱼ²)       m, s: mean and sd of the earlier posterior, on the reals

        This is assumed-density filtering: every call forgets correlations, and of a posterior with several modes (a
        network's symmetries, explored by NUTS or an ensemble) keeps only mean and sd. Where parameters are correlated,
        the sds alone make later fits cautious. Few calls with many rows lose least. The scaling stays that of the first
        rows; every call compiles anew; intervals are calibrated on held-out rows of the last call.

        Args: as for ``fit``.
        """
        return self._fit(X, y, sample_weight, getattr(self, "posterior_", None))

    def _validated(
        self, x: object, y: object, sample_weight: object, first: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, y and weights, checked."""
        self._check_settings()
        table: Any = (x, y)
        table = validate_data(
            self, *table, reset=first, dtype=np.float64, y_numeric=self._measured, multi_output=self._multi_output
        )
        found, targets = np.asarray(table[0]), np.asarray(table[1], np.float64 if self._measured else None)
        return found, targets, self._weights(sample_weight, found)

    def _learn(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, before: Posterior | None) -> None:
        """Set ``posterior_``; the moments of ``before``, the posterior of earlier rows, are the prior."""
        back = self._kept_out("held_out", weight)
        rows = tables.distinct(x, y, np.where(back, 0.0, weight))
        if before is None:
            self._scaling = tables.scaling(rows, self._measured and self._standardised)
            self._rows = float(rows.weight.sum())
            self._double = need_double(self._targets(rows.y), weights=rows.weight)
        elif np.shape(self._scaling.middle) != rows.y.shape[1:]:
            first = f"{self._scaling.outputs} outputs" if self._scaling.outputs else "one output"
            raise DataError(f"y had {first} a row in the first call; got y of shape {y.shape}. Give as many.")
        with in_double(self._double):
            model, count = self._model(), tables.length(len(rows.y))
            prior = model if before is None else updated(model, *moments(before))
            dtype = jnp.result_type(float) if self._measured else int
            # Tables are padded to one of a few lengths, so that few programs are compiled; padding rows weigh 0.
            targets = tables.padded(self._targets(rows.y).astype(dtype), count)
            weights = tables.padded(rows.weight, count, 0.0)
            data = Data(targets, given=self._inputs(rows.x, count), weights=weights)
            held_out = None
            if back.any():
                held_out = Data(self._targets(y[back]).astype(dtype), given=self._inputs(x[back], int(back.sum())))
            fitted = self._inferred(prior, data, lowered(self._chosen(), count), self.verify, held_out)
            # The report is made while the rows are at hand; the posterior is kept without them, with the first prior.
            found = fitted.found | ({"double": True} if self._double else {})
            report = fitted.report()
            self._keep(dataclasses.replace(fitted, model=model, data=None, run_state=None, judged=report, found=found))
        warn_of(self.report_)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """y in the model's units."""
        return self._scaling.targets(y) if self._measured else y

    def _chosen(self) -> Method:
        """The method; a name means its default settings."""
        method: Any = named(self.method)() if isinstance(self.method, str) else self.method
        return method

    def _kept_out(self, setting: str, weight: np.ndarray) -> np.ndarray:
        """(n,) random mask of the rows kept out: the share ``setting`` of those with weight > 0, rounded up."""
        share, back, candidates = getattr(self, setting, 0.0), np.zeros(len(weight), bool), np.flatnonzero(weight)
        if not share:
            return back
        chosen = check_random_state(self.random_state).permutation(candidates)
        back[chosen[: int(np.ceil(share * len(candidates)))]] = True
        if back.sum() == len(candidates):
            raise DataError(f"{setting}={share} of n_samples = {len(candidates)} leaves no row to learn from.")
        return back

    def _inputs(self, x: np.ndarray, count: int) -> Any:
        """The model's inputs for rows, padded to ``count`` rows."""
        dtype, blocks = jnp.result_type(float), tables.some_at_a_time(BLOCK, x)
        scaled = [self._scaling.inputs(block).astype(dtype) for (block,) in blocks]
        return tables.padded(np.concatenate(scaled) if scaled else x.astype(dtype), count)

    def _predictive(self, x: np.ndarray, level: float = 0.9) -> Prediction:
        """The predictive distribution at checked rows, in standardised units."""
        with in_double(self._double):
            prediction = self._inside.predict(self._inputs(x, tables.length(len(x))), level, draws=DRAWS)
        return jax.tree.map(lambda a: a[: len(x)], prediction)


class BayesianRegressor(RegressorMixin, Explaining):
    """Base of regressors: fit, predictive means and sds, intervals."""

    level: Level
    calibration: HeldOut
    scores_: np.ndarray | None
    _measured = True

    def _fit(self, x: object, y: object, sample_weight: object, before: Posterior | None) -> Any:
        x, y, weight = self._validated(x, y, sample_weight, before is None)
        held_out = self._kept_out("calibration", weight)
        self._learn(x, y, np.where(held_out, 0.0, weight), before)
        self.scores_ = self._scores(x[held_out], y[held_out]) if np.any(held_out) else None
        return self

    def predict(self, X: object, return_std: bool = False, quantiles: Sequence[float] | None = None) -> Any:
        """The predictive mean, in y's units.

        Args:
            X: (n, D).
            return_std: also return the predictive sd, √(aleatoric² + epistemic²).
            quantiles: in (0, 1): return these quantiles of the predictive distribution in place of the mean; after
                calibration, ends of calibrated intervals.

        Returns:
            (n,), or (n, K) for several outputs; with ``return_std`` a pair of them; with ``quantiles`` (..., Q), in the
                order given.

        Raises:
            ValueError: quantiles outside (0, 1), or given together with ``return_std``.
        """
        x = self._checked(X)
        if quantiles is not None:
            return self._quantiles(x, quantiles, return_std)
        if not return_std:
            return self._mean(x)
        prediction = self._predictive(x, self.level)
        return self._mean(x, prediction), self._scaling.spread * prediction.sd

    def _quantiles(self, x: np.ndarray, quantiles: Sequence[float], return_std: bool) -> np.ndarray:
        wanted = np.asarray(quantiles, np.float64)
        if return_std or wanted.ndim != 1 or not len(wanted) or not np.all((wanted > 0) & (wanted < 1)):
            raise SettingsError(
                f"quantiles= is a list of numbers in (0, 1), without return_std; got {quantiles!r}"
                f"{' and return_std=True' if return_std else ''}."
            )
        # A quantile is an end of an equal-tailed interval; the median an end of one of level 1e-9.
        levels = np.maximum(np.abs(1 - 2 * wanted), 1e-9)
        found = {level: self._interval(x, float(level)) for level in dict.fromkeys(levels.round(9).tolist())}
        ends = zip(wanted, levels.round(9).tolist(), strict=True)
        return np.stack([found[level][..., int(q > 0.5)] for q, level in ends], -1)

    def _mean(self, x: np.ndarray, prediction: Prediction | None = None) -> np.ndarray:
        """(n,) or (n, K), the predictive mean at checked rows, in y's units; ``told``: their prediction, if made."""
        prediction = self._predictive(x, self.level) if prediction is None else prediction
        return self._scaling.middle + self._scaling.spread * prediction.mean

    def predict_interval(self, X: object, level: float | None = None) -> np.ndarray:
        """Intervals that hold a new y with probability ``level``.

        Without calibration: the equal-tailed interval of the predictive distribution, as good as the model and method.
        After ``calibrate``, or with ``calibration`` > 0: mean ± q sd with q from rows kept out of the fit (split
        conformal). Whatever the model, it then holds a new y with probability at least ``level``, if new rows are
        exchangeable with those kept out; on average over rows, not at each x.

        Args:
            X: (n, D).
            level: in (0, 1); by default the estimator's.

        Returns:
            (n, 2): lower, upper; (n, K, 2) for several outputs, each interval for its output alone.

        Raises:
            ValueError: a level out of range, or too high for the rows kept out.
        """
        return self._interval(self._checked(X), float(self.level if level is None else level))

    def _interval(self, x: np.ndarray, level: float) -> np.ndarray:
        prediction = self._predictive(x, level)
        lower, upper = prediction.lower, prediction.upper
        if self.scores_ is not None:
            half = split_conformal(self.scores_, level) * prediction.sd
            lower, upper = prediction.mean - half, prediction.mean + half
        middle, spread = self._scaling.middle, self._scaling.spread
        return np.stack([middle + spread * end for end in (lower, upper)], -1)

    def calibrate(self, X: object, y: object) -> Any:
        """Calibrate ``predict_interval`` by the errors |y − mean|/sd of rows that took no part in the fit.

        Args:
            X: (n, D).
            y: (n,), or (n, K) for several outputs; n ≥ level/(1 − level), 9 for a level of 0.9.

        Returns:
            The estimator.
        """
        check_is_fitted(self, "posterior_")
        x, y, _ = self._validated(X, y, None, first=False)
        self.scores_ = self._scores(x, y)
        return self

    def _scores(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        prediction = self._predictive(x, self.level)
        return np.sort(np.abs(self._scaling.targets(y) - prediction.mean) / prediction.sd, axis=0)


class BayesianClassifier(ClassifierMixin, Explaining):
    """Base of classifiers: fit, averaged probabilities, the likeliest class."""

    classes_: np.ndarray
    _measured = False

    def partial_fit(self, X: object, y: object, classes: object = None, sample_weight: object = None) -> Any:
        """Learn from more rows: the posterior of earlier ones becomes the prior, as for a regressor.

        Args:
            classes: in the first call, all classes that will ever come; by default those of its y.
            Others: as for ``fit``.
        """
        return self._fit(X, y, sample_weight, getattr(self, "posterior_", None), classes)

    def _fit(
        self, x: object, y: object, sample_weight: object, before: Posterior | None, classes: object = None
    ) -> Any:
        x, y, weight = self._validated(x, y, sample_weight, before is None)
        check_classification_targets(y)
        listed = None if classes is None else np.unique(np.asarray(classes))
        if before is None:
            # Rows of weight 0, and classes that only they have, do not count.
            self.classes_ = np.unique(y[weight > 0]) if listed is None else listed
            if len(self.classes_) < 2:
                raise DataError(
                    f"y has one class, {self.classes_.tolist()[0]!r}: a classifier needs rows of two classes at least, "
                    "counted where sample_weight > 0."
                )
        elif listed is not None and not np.array_equal(listed, self.classes_):
            raise DataError(f"classes was {self.classes_} in the first call and is {listed} now.")
        unknown = np.setdiff1d(y[weight > 0], self.classes_)
        if len(unknown):
            raise DataError(f"y has classes that classes= of the first call lacks: {unknown}; it has {self.classes_}.")
        codes = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        self._learn(x, codes.astype(np.float64), weight, before)
        return self

    def predict_proba(self, X: object) -> np.ndarray:
        """Probabilities averaged over the posterior, (n, C), in the order of ``classes_``."""
        p = np.asarray(self._predictive(self._checked(X)).probabilities, np.float64)
        return p / p.sum(1, keepdims=True)

    def predict_log_proba(self, X: object) -> np.ndarray:
        """Logarithms of ``predict_proba``, (n, C), in nats."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: object) -> np.ndarray:
        """The likeliest class, (n,); the first if several are equally likely."""
        likeliest = self.predict_proba(X).argmax(1)  # first: raises if not fitted
        return self.classes_[likeliest]


def warn_of(report: Report, stacklevel: int = 5) -> None:
    """Warn once, as scikit-learn does, if the verdict is reject, and say why."""
    if report.verdict != "reject":
        return
    poor = [check for check in report.checks if check.verdict == "reject"]
    unfinished = any(check.name in UNFINISHED for check in poor)
    reasons = "; ".join(f"{check.name} {number(float(check.value))}, {check.sentence}" for check in poor)
    warnings.warn(
        f"Do not use this posterior: {reasons}. report_ has every check.",
        ConvergenceWarning if unfinished else TractableWarning,
        stacklevel=stacklevel,
    )


def lowered(method: Method, count: int) -> Method:
    """The method with ``batch_size`` at most ``count``, the number of rows.

    So that a search over tables of several sizes does not fail at the smallest.
    """
    size = getattr(method, "batch_size", None)
    return dataclasses.replace(method, batch_size=count) if isinstance(size, int) and size > count else method
