"""The estimators' common base: it leads from a table to a posterior, and back to the user's units."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_X_y, validate_data

from tractable.core.arrays import columns_of
from tractable.core.bits import in_double, need_double
from tractable.core.errors import DataError, SettingsError, TractableWarning
from tractable.core.model import Data, Model
from tractable.core.settings import Range, Seed, Share, is_number, members, range_of
from tractable.core.words import Spelt, tell
from tractable.diagnostics.calibration import split_conformal
from tractable.diagnostics.report import Report, number
from tractable.diagnostics.verify import Verify
from tractable.engine.method import as_method
from tractable.estimators import rows as tables
from tractable.estimators.columns import encode_rows, mixed_columns
from tractable.estimators.rows import Scaling
from tractable.estimators.updating import moments, with_normal_priors
from tractable.inference import infer
from tractable.methods import Method
from tractable.posterior.posterior import Posterior
from tractable.posterior.predict import Prediction
from tractable.posterior.standardised import Standardised, as_standardised
from tractable.tables.encoder import Encoder
from tractable.tables.models import view_of

DRAWS = 1000  # the largest number of posterior draws that a prediction averages over
BLOCK = 1 << 16  # how many rows are scaled at a time
# The checks whose verdict "reject" means that the run was too short.
UNFINISHED = ("R-hat", "R-hat of means", "bulk ESS", "tail ESS", "effective draws", "trend", "gain to come", "gradient",
              "left to climb", "ended early", "steps", "further", "L-BFGS adds")  # fmt: skip

# The ranges of the settings, in the words of error messages.
Learner = Annotated[str | Method, "a name such as 'nuts', or a method such as NUTS()"]
Level = Share
HeldOut = Annotated[float, Range("a share of rows, in [0, 1)", lambda value: is_number(value) and 0 <= value < 1)]
RandomState = Seed | Annotated[np.random.RandomState, "a NumPy RandomState"] | None


class Bayesian(Spelt, BaseEstimator):
    """Base of the estimators: dataclasses whose fields are the settings. Subclasses define the model."""

    __no_type_check__ = True  # without this, a run-time type checker would raise its own error before this package does
    _model: Callable[[], Model]  # the model, for standardised inputs
    _description: Callable[[], Encoder] | None = None  # the columns and the target of a linear model
    _streams: ClassVar[int] = 1  # how many random seeds there are: one for the fit
    _double: bool = False  # whether the fit computed in double precision
    _scales_columns: Any = False  # whether the model is for standardised columns
    random_state: RandomState
    n_features_in_: int
    posterior_: Posterior
    _scaling: Scaling
    _rows: float  # the number of rows of the first fit, each counted as often as its weight says

    @property
    def report_(self) -> Report:
        """How far the fit can be trusted: a verdict, and the checks behind it."""
        check_is_fitted(self, "posterior_")
        return self.posterior_.report()

    def _keep(self, posterior: Posterior) -> None:
        """Set ``posterior_``, as a ``Standardised`` posterior if its model is for standardised columns."""
        view = None if self._description is None else view_of(self._description(), posterior.model)
        self.posterior_ = as_standardised(posterior, view) if self._scales_columns else posterior

    @property
    def _posterior(self) -> Posterior:
        """The posterior in the units of its model."""
        posterior = self.posterior_
        return posterior.standardised if isinstance(posterior, Standardised) else posterior

    def _check_settings(self) -> None:
        """Raise a SettingsError about the first setting that lies outside the range of its field."""
        settings: Any = self
        for field in dataclasses.fields(settings):
            allowed, value = range_of(field.type), getattr(self, field.name)
            if allowed and not allowed.holds(value):
                raise SettingsError(f"{field.name} is {allowed.expected}; got {value!r}.")

    def _infer(
        self, model: Model, data: Data, method: Method, verify: str | None = "auto", held_out: Data | None = None
    ) -> Posterior:
        seed = self._seeds()[0]
        return infer(model, data, method, seed=seed, progress=False, verify=verify, held_out=held_out)

    def _seeds(self) -> list[int]:
        """``_streams`` seeds from ``random_state``."""
        return check_random_state(self.random_state).randint(np.iinfo(np.int32).max, size=self._streams).tolist()

    def _check_table(self, x: object, *, reset: bool = False, **options: Any) -> np.ndarray:
        """The table as an array of finite numbers (n, d), float64 by default.

        Its columns must be those of the fit, unless ``reset`` is true.
        """
        if not reset:
            check_is_fitted(self, "posterior_")
        table: Any = x
        return np.asarray(validate_data(self, table, reset=reset, **{"dtype": np.float64, **options}))

    def _weights(self, sample_weight: object, x: np.ndarray) -> np.ndarray:
        weight = np.asarray(_check_sample_weight(sample_weight, x, dtype=np.float64))
        if np.any(weight < 0):
            raise DataError(f"sample_weight says how often a row counts: expected numbers ≥ 0; got {weight.min():g}.")
        if not np.any(weight > 0):
            raise DataError("Every sample_weight is zero, so no row is left. Give some rows a weight above 0.")
        return weight

    def __getstate__(self) -> dict[str, Any]:
        # A model holds functions, which cannot be pickled. So ``__setstate__`` makes the model again from the settings.
        state: dict[str, Any] = {**super().__getstate__()}  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
        posterior = state.get("posterior_")
        if posterior is not None:
            fields = {f.name: getattr(posterior, f.name) for f in dataclasses.fields(Posterior)}
            state["posterior_"] = {name: value for name, value in fields.items() if name not in ("model", "data")}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        fields = self.__dict__.get("posterior_")
        if isinstance(fields, dict):
            with in_double(self._double):
                self._keep(Posterior(self._model(), None, **fields))


class Scored:
    """A mixin for estimators whose ``score_samples`` gives log densities, (n,)."""

    score_samples: Callable[..., np.ndarray]

    def score(self, X: object, y: object = None) -> float:
        """The mean of ``score_samples``, in nats (units of the natural logarithm) per row."""
        return float(np.mean(self.score_samples(X)))


class Explaining(Bayesian):
    """Base of estimators of p(y | x), with settings ``method``, ``random_state`` and ``verify``."""

    method: Learner
    verify: Verify
    _numeric_y: ClassVar[bool]  # whether y holds numbers; if not, it holds classes
    _multi_output: ClassVar[bool] = False  # whether y may be (n, K)
    _scales_columns = True
    _scales_y: ClassVar[bool] = True  # whether y is standardised, if it holds numbers
    _fit: Callable[..., Any]  # (X, y, sample_weight, posterior of earlier rows or None) -> self
    _columns: Encoder | None = None  # the encoder of a data frame with text or dates
    _updates: bool = False  # whether the latest call was of ``partial_fit``
    _usual_method: Callable[..., Method]  # the method "auto"
    feature_names_in_: np.ndarray

    @property
    def _table(self) -> tuple[Encoder | None, np.ndarray | None, Scaling]:
        """What is known about the columns: their encoder, their names and their scaling."""
        return self._columns, getattr(self, "feature_names_in_", None), self._scaling

    @property
    def _width(self) -> int:
        """The number of columns of numbers that the model explains y by."""
        return len(self._scaling.centre)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._multi_output
        return tags

    def fit(self, X: object, y: object, sample_weight: object = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, D), an array of numbers, or a data frame, whose columns may also hold True/False, text, dates and
                durations; these are encoded as by ``tractable.fit``.
            y: (n,) numbers, or (n, K) if the estimator takes several outputs; or labels of at least two classes.
            sample_weight: (n,), ≥ 0, how often each row counts: Σ wᵢ log p(yᵢ|xᵢ, θ). With every method, weight 0 gives
                exactly the same fit as leaving the row out, and a whole-number weight the same fit as repeating the
                row. Rows held out by ``calibration`` or ``held_out`` are an exception: a row of weight 2 is held out or
                not, while of two equal rows one alone may be held out.

        Returns:
            The estimator.

        Raises:
            ValueError: NaN, shapes that do not match, a constant y, or settings out of range.

        Warns:
            ConvergenceWarning: the run was too short. TractableWarning: for another reason, which the message gives,
                the posterior should not be used.
        """
        self._updates = False
        return self._fit(X, y, sample_weight, None)

    def partial_fit(self, X: object, y: object, sample_weight: object = None) -> Any:
        """Learn from more rows, with the posterior of the earlier rows as the prior.

            p(θ) ← ∏ⱼ N(θⱼ; mⱼ, sⱼ²)       m, s: mean and sd of the earlier posterior's unconstrained parameters

        This is assumed-density filtering. Every call forgets the correlations of the earlier posterior. If
        parameters are correlated, independent priors make later fits cautious. A few calls with many rows each lose the
        least. A network that several chains learnt is refused, because its chains may lie in different modes: ``fit``
        learns small networks so by default. The scaling stays that of the first call's rows. The second call compiles
        new programs, as its prior has another form; later calls use them again for tables of about the same length.
        Intervals are calibrated on held-out rows of the last call.

        Args: as for ``fit``.
        """
        self._updates = True
        return self._fit(X, y, sample_weight, getattr(self, "posterior_", None))

    def _validate(
        self, x: object, y: object, sample_weight: object, first: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Check the settings, x, y and weights; return x, y and weights as arrays."""
        self._check_settings()
        self._columns = mixed_columns(x) if first else self._columns
        how = {"dtype": np.float64, "y_numeric": self._numeric_y, "multi_output": self._multi_output}
        table: Any = (x, y)
        if self._columns is None:
            table = validate_data(self, *table, reset=first, **how)
        else:
            table = check_X_y(encode_rows(self._columns, x), y, **how)
            self.feature_names_in_ = np.array(list(columns_of(x) or ()), object) if first else self.feature_names_in_
            self.n_features_in_ = len(self.feature_names_in_)
        rows, targets = np.asarray(table[0]), np.asarray(table[1], np.float64 if self._numeric_y else None)
        return rows, targets, self._weights(sample_weight, rows)

    def _check_table(self, x: object, *, reset: bool = False, **options: Any) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        return super()._check_table(x, **options) if self._columns is None else encode_rows(self._columns, x)

    def _learn(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, before: Posterior | None) -> None:
        """Learn from rows and set ``posterior_``.

        If ``before`` is the posterior of earlier rows, normals with its moments are the prior.
        """
        is_held_out = self._held_out_rows("held_out", weight)
        rows = tables.distinct(x, y, np.where(is_held_out, 0.0, weight))
        if before is None:
            self._scaling = tables.scaling(rows, self._numeric_y and self._scales_y)
            if self._columns is not None:  # the encoder has scaled the columns
                width = rows.x.shape[1]
                self._scaling = self._scaling._replace(centre=np.zeros(width), scale=np.ones(width))
            self._rows = float(rows.weight.sum())
            self._double = need_double(self._targets(rows.y), weights=rows.weight)
        elif np.shape(self._scaling.middle) != rows.y.shape[1:]:
            first = f"{self._scaling.outputs} outputs" if self._scaling.outputs else "one output"
            raise DataError(f"y had {first} per row in the first call; got shape {y.shape}. Give as many outputs.")
        with in_double(self._double):
            model, count = self._model(), tables.length(len(rows.y))
            prior = model if before is None else with_normal_priors(model, *moments(before))
            dtype = jnp.result_type(float) if self._numeric_y else int
            # Tables are padded to one of a few lengths, so that few programs are compiled; padding rows have weight 0.
            targets = tables.pad_rows(self._targets(rows.y).astype(dtype), count)
            weights = tables.pad_rows(rows.weight, count, 0.0)
            data = Data(targets, given=self._inputs(rows.x, count), weights=weights)
            held_out = None
            if is_held_out.any():
                out = x[is_held_out], y[is_held_out]
                held_out = Data(self._targets(out[1]).astype(dtype), given=self._inputs(out[0], len(out[0])))
            fit = self._infer(prior, data, limit_batch_size(self._choose_method(), count), self.verify, held_out)
            # The report needs the rows, so it is made now. The posterior is kept without the rows, and with the prior
            # of the settings, even if the fit used an earlier posterior as its prior.
            numbers, report = fit.found | ({"double": True} if self._double else {}), fit.report()
            self._keep(dataclasses.replace(fit, model=model, data=None, run_state=None, judged=report, found=numbers))
        warn_of(self.report_)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """y in the model's units."""
        return self._scaling.targets(y) if self._numeric_y else y

    def _choose_method(self) -> Method:
        """The method; a name other than "auto" stands for the method with its default settings."""
        return self._usual_method() if self.method == "auto" else as_method(self.method)

    def _held_out_rows(self, setting: str, weight: np.ndarray) -> np.ndarray:
        """A random mask (n,) of the rows to hold out.

        The setting named ``setting`` is their share of the rows with weight > 0; their number is rounded up.
        """
        share, mask, candidates = getattr(self, setting, 0.0), np.zeros(len(weight), bool), np.flatnonzero(weight)
        if not share:
            return mask
        order = check_random_state(self.random_state).permutation(candidates)
        mask[order[: int(np.ceil(share * len(candidates)))]] = True
        if mask.sum() == len(candidates):
            raise DataError(
                f"{setting}={share} of n_samples = {len(candidates)} leaves no row to fit. Use a smaller share."
            )
        return mask

    def _inputs(self, x: np.ndarray, count: int) -> Any:
        """The model's inputs for rows, padded to ``count`` rows."""
        dtype, blocks = jnp.result_type(float), tables.row_blocks(BLOCK, x)
        inputs = [self._scaling.inputs(block).astype(dtype) for (block,) in blocks]
        return tables.pad_rows(np.concatenate(inputs) if inputs else x.astype(dtype), count)

    def _predictive(self, x: np.ndarray, level: float = 0.9) -> Prediction:
        """The predictive distribution in standardised units, at rows that were checked before."""
        with in_double(self._double):
            prediction = self._posterior.predict(self._inputs(x, tables.length(len(x))), level, draws=DRAWS)
        return jax.tree.map(lambda a: a[: len(x)], prediction)


class BayesianRegressor(RegressorMixin, Explaining):
    """Base of regressors: the fit, predictive means and sds, and intervals."""

    level: Level
    calibration: HeldOut
    scores_: np.ndarray | None
    _numeric_y = True

    def _fit(self, x: object, y: object, sample_weight: object, before: Posterior | None) -> Any:
        x, y, weight = self._validate(x, y, sample_weight, before is None)
        held_out = self._held_out_rows("calibration", weight)
        self._learn(x, y, np.where(held_out, 0.0, weight), before)
        self.scores_ = self._scores(x[held_out], y[held_out]) if np.any(held_out) else None
        return self

    def predict(self, X: object, return_std: bool = False, quantiles: Sequence[float] | None = None) -> Any:
        """The predictive mean, in y's units.

        Args:
            X: (n, D).
            return_std: also return the predictive sd, √(aleatoric² + epistemic²): the noise of y and the uncertainty
                of the parameters together.
            quantiles: numbers in (0, 1): return these quantiles of the predictive distribution in place of the mean;
                after calibration, they are ends of calibrated intervals.

        Returns:
            (n,), or (n, K) for several outputs; with ``return_std`` a pair of such arrays; with ``quantiles``
                (..., Q), in the order of ``quantiles``.

        Raises:
            ValueError: a quantile is outside (0, 1), or ``quantiles`` and ``return_std`` are given together.
        """
        x = self._check_table(X)
        if quantiles is not None:
            return self._quantiles(x, quantiles, return_std)
        if not return_std:
            return self._mean(x)
        prediction = self._predictive(x, self.level)
        return self._mean(x, prediction), self._scaling.spread * prediction.sd

    def _quantiles(self, x: np.ndarray, quantiles: Sequence[float], return_std: bool) -> np.ndarray:
        share: Any = range_of(Share)
        if return_std:
            raise SettingsError("predict takes quantiles= without return_std=True: leave one of them out.")
        probs = np.asarray(members("quantiles=", quantiles, share.holds, "a list of numbers in (0, 1)"), np.float64)
        # A quantile is an end of an equal-tailed interval; the median is taken as an end of an interval of level 1e-9.
        levels = np.maximum(np.abs(1 - 2 * probs), 1e-9).round(9).tolist()
        intervals = {level: self._interval(x, level) for level in dict.fromkeys(levels)}
        return np.stack([intervals[level][..., int(q > 0.5)] for q, level in zip(probs, levels, strict=True)], -1)

    def _mean(self, x: np.ndarray, prediction: Prediction | None = None) -> np.ndarray:
        """The predictive mean at checked rows, (n,) or (n, K), in y's units.

        ``prediction`` is the predictive distribution of these rows, if it was computed before.
        """
        prediction = self._predictive(x, self.level) if prediction is None else prediction
        return self._scaling.middle + self._scaling.spread * prediction.mean

    def predict_interval(self, X: object, level: float | None = None) -> np.ndarray:
        """Intervals that hold a new y with probability ``level``.

        Without calibration, this is the equal-tailed interval of the predictive distribution, which is only as good as
        the model and the method. After ``calibrate``, or with ``calibration`` > 0, it is mean ± q sd, where q comes
        from rows held out of the fit (split conformal prediction). Such an interval holds a new y with probability at
        least ``level`` under any model, if new rows are exchangeable with the held-out rows. The probability is an
        average over rows; it need not hold at each x.

        Args:
            X: (n, D).
            level: in (0, 1); by default the estimator's ``level``.

        Returns:
            (n, 2): lower and upper end; (n, K, 2) for several outputs, where each interval is for its output alone.

        Raises:
            ValueError: the level is out of range, or too high for the number of held-out rows.
        """
        return self._interval(self._check_table(X), float(self.level if level is None else level))

    def _interval(self, x: np.ndarray, level: float) -> np.ndarray:
        prediction = self._predictive(x, level)
        lower, upper = prediction.lower, prediction.upper
        if self.scores_ is not None:
            half = split_conformal(self.scores_, level) * prediction.sd
            lower, upper = prediction.mean - half, prediction.mean + half
        middle, spread = self._scaling.middle, self._scaling.spread
        return np.stack([middle + spread * end for end in (lower, upper)], -1)

    def calibrate(self, X: object, y: object) -> Any:
        """Calibrate ``predict_interval`` by the errors |y − mean|/sd of rows that were not used in the fit.

        Args:
            X: (n, D).
            y: (n,), or (n, K) for several outputs; n must be at least level/(1 − level), which is 9 for a level of 0.9.

        Returns:
            The estimator.
        """
        check_is_fitted(self, "posterior_")
        x, y, _ = self._validate(X, y, None, first=False)
        self.scores_ = self._scores(x, y)
        return self

    def _scores(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        prediction = self._predictive(x, self.level)
        return np.sort(np.abs(self._scaling.targets(y) - prediction.mean) / prediction.sd, axis=0)


class BayesianClassifier(ClassifierMixin, Explaining):
    """Base of classifiers: the fit, averaged probabilities, and the most probable class."""

    classes_: np.ndarray
    _numeric_y = False

    def partial_fit(self, X: object, y: object, classes: object = None, sample_weight: object = None) -> Any:
        """Learn from more rows, with the posterior of the earlier rows as the prior, as for a regressor.

        Args:
            X, y, sample_weight: as for ``fit``.
            classes: in the first call, all classes that this and later calls will have; by default the classes of the
                first call's y.
        """
        self._updates = True
        return self._fit(X, y, sample_weight, getattr(self, "posterior_", None), classes)

    def _fit(
        self, x: object, y: object, sample_weight: object, before: Posterior | None, classes: object = None
    ) -> Any:
        x, y, weight = self._validate(x, y, sample_weight, before is None)
        check_classification_targets(y)
        labels = None if classes is None else np.unique(np.asarray(classes))
        if before is None:
            # Rows of weight 0 do not count, nor do classes that only such rows have.
            self.classes_ = np.unique(y[weight > 0]) if labels is None else labels
            if len(self.classes_) < 2:
                raise DataError(
                    f"y has one class, {self.classes_.tolist()[0]!r}: a classifier needs rows of at least two classes, "
                    "among the rows with sample_weight > 0."
                )
        elif labels is not None and not np.array_equal(labels, self.classes_):
            raise DataError(
                f"classes was {self.classes_} in the first call and is {labels} now. Give the same classes."
            )
        unknown = np.setdiff1d(y[weight > 0], self.classes_)
        if len(unknown):
            raise DataError(f"y has classes that the first call lacks: {unknown}. Give all of them there, as classes=.")
        codes = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        self._learn(x, codes.astype(np.float64), weight, before)
        return self

    def predict_proba(self, X: object) -> np.ndarray:
        """Probabilities averaged over the posterior, (n, C), in the order of ``classes_``."""
        p = np.asarray(self._predictive(self._check_table(X)).probabilities, np.float64)
        return p / p.sum(1, keepdims=True)

    def predict_log_proba(self, X: object) -> np.ndarray:
        """The natural logarithms of ``predict_proba``, (n, C)."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: object) -> np.ndarray:
        """The most probable class, (n,); the first of them if several are equally probable."""
        codes = self.predict_proba(X).argmax(1)  # before ``classes_`` is read, as it raises if there was no fit
        return self.classes_[codes]


def warn_of(report: Report) -> None:
    """Warn once, as scikit-learn does, if the verdict is "reject", and say why."""
    if report.verdict != "reject":
        return
    poor = [check for check in report.checks if check.verdict == "reject"]
    unfinished = any(check.name in UNFINISHED for check in poor)
    reasons = "; ".join(f"{check.name} {number(float(check.value))}, {check.sentence}" for check in poor)
    category = ConvergenceWarning if unfinished else TractableWarning
    tell(f"Do not use this posterior: {reasons}. report_ has every check.", category)


def limit_batch_size(method: Method, count: int) -> Method:
    """The method with ``batch_size`` at most ``count``, the number of rows.

    Without this limit, fits to tables of several sizes, as in cross-validation, would fail at the smallest table.
    """
    size = getattr(method, "batch_size", None)
    return dataclasses.replace(method, batch_size=count) if isinstance(size, int) and size > count else method
