"""Networks for tables: multilayer perceptrons whose weights have a posterior."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from tractable.core.model import Model
from tractable.diagnostics.verify import Verify
from tractable.estimators.base import BayesianClassifier, BayesianRegressor, HeldOut, Learner, Level, RandomState
from tractable.networks.multi_output import multi_output_likelihood
from tractable.networks.network import mlp, neural_network

METHOD = "bbb"  # the default
OUTPUTS = {"normal": 1, "student-t": 1, "heteroscedastic": 2}  # the network's outputs for each target
Likelihood = Annotated[Literal["normal", "student-t", "heteroscedastic"], f"one of {', '.join(OUTPUTS)}"]


@dataclass(eq=False, repr=False)
class BayesianMLPRegressor(BayesianRegressor):
    """A multilayer perceptron with a posterior over its weights, for numbers.

        y ~ p(y | f_w(x)),   w ~ prior,   f_w: hₗ = σ(hₗ₋₁ Wₗ + bₗ)

    Columns of X and y are standardised inside; results are in y's units. For several targets, y (n, K), one network has
    K outputs, each target with its own noise: predictions (n, K), intervals (n, K, 2).

    Args:
        hidden: widths of the hidden layers, each ≥ 1; () for a linear map.
        activation: σ: "relu", "gelu", "silu", "elu", "tanh", "sigmoid", "identity", or a function of arrays.
        likelihood: "normal", "student-t" (4 degrees of freedom, for outliers) or "heteroscedastic", where the network
            also gives the sd at x.
        prior: of the weights: "scaled", N(0, 1/fan_in); "relevance", that times learnt scales, one for each column; an
            sd; or as for ``models.neural_network``.
        method: "bbb", "sgld", "nuts", "map", "meanfield", "fullrank", "laplace", "ensemble" with their defaults; or a
            method with its own settings, such as ``tr.NUTS(chains=2)``.
        level: of intervals, in (0, 1).
        calibration: share of the rows, in [0, 1), held out of the fit to calibrate intervals; 0 holds out none.
        held_out: share of the rows, in [0, 1), held out of the fit: training stops when it predicts them no better,
            and the report says how well they are predicted.
        random_state: int, RandomState or None, for all randomness of the fit.
        verify: how thoroughly the fit is checked again before its verdict is trust, as for ``infer``.

    Attributes:
        posterior_: the Posterior, of standardised columns: it refuses what has units, which ``posterior_.standardised``
            gives as they are.
        report_: how far to trust the fit.
        scores_: |y − mean|/sd of the calibration rows, sorted, or None.
        n_features_in_, feature_names_in_: number and names of the fitted columns.

    >>> import numpy as np, tractable as tr
    >>> X = np.linspace(-2.0, 2.0, 40)[:, None]
    >>> y = np.sin(X[:, 0]) + np.random.default_rng(0).normal(0.0, 0.3, 40)
    >>> model = BayesianMLPRegressor((8,), "tanh", method=tr.Laplace(), random_state=0).fit(X, y)
    >>> model.predict([[0.0], [1.5]]).shape
    (2,)
    """

    hidden: Sequence[int] = (50,)
    activation: str | Callable = "relu"
    likelihood: Likelihood = "normal"
    prior: object = "scaled"
    method: Learner = METHOD
    level: Level = 0.9
    calibration: HeldOut = 0.0
    held_out: HeldOut = 0.0
    random_state: RandomState = None
    verify: Verify = "auto"

    _multi_output: ClassVar[bool] = True

    def _model(self) -> Model:
        count = self._scaling.outputs
        outputs = OUTPUTS[self.likelihood] * (count or 1)
        network = mlp(self.n_features_in_, self.hidden, outputs, self.activation)
        likelihood, extra = (
            (self.likelihood, None) if count is None else multi_output_likelihood(self.likelihood, count)
        )
        return replace(neural_network(network, likelihood, prior=self.prior, extra=extra), shared=True)


@dataclass(eq=False, repr=False)
class BayesianMLPClassifier(BayesianClassifier):
    """A multilayer perceptron with a posterior over its weights, for classes.

        two classes:  y ~ Bernoulli(1 / (1 + e^−f_w(x)))       more:  y ~ Categorical(softmax(f_w(x))),   w ~ prior

    Probabilities are averaged over w, E[p(y|x, w)]: far from the data, where weights disagree, they are less extreme.

    Args:
        hidden, activation, prior, method, held_out, random_state, verify: as for ``BayesianMLPRegressor``.

    Attributes:
        classes_: the labels, sorted.
        posterior_, report_, n_features_in_, feature_names_in_: as for ``BayesianMLPRegressor``.

    >>> import numpy as np, tractable as tr
    >>> X = np.linspace(-2.0, 2.0, 40)[:, None]
    >>> y = np.where(np.abs(X[:, 0]) < 1, "in", "out")
    >>> model = BayesianMLPClassifier(hidden=(8,), method=tr.Laplace(), random_state=0).fit(X, y)
    >>> model.predict([[0.0], [1.9]]).tolist()
    ['in', 'out']
    """

    hidden: Sequence[int] = (50,)
    activation: str | Callable = "relu"
    prior: object = "scaled"
    method: Learner = METHOD
    held_out: HeldOut = 0.0
    random_state: RandomState = None
    verify: Verify = "auto"

    def _model(self) -> Model:
        family, outputs = ("bernoulli", 1) if len(self.classes_) == 2 else ("categorical", len(self.classes_))
        network = mlp(self.n_features_in_, self.hidden, outputs, self.activation)
        return replace(neural_network(network, family, prior=self.prior), shared=True)
