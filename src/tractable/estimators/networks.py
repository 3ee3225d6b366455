"""Networks for tables: multilayer perceptrons whose weights have a posterior."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from sklearn.utils import Tags

from tractable.checks.verify import Verify
from tractable.core import Model
from tractable.estimators.base import BayesianClassifier, BayesianRegressor, HeldOut, Learner, Level, RandomState
from tractable.models.network import mlp, neural_network
from tractable.models.several import several

METHOD = "bbb"  # by default
OUTPUTS = {"normal": 1, "student-t": 1, "heteroscedastic": 2}  # of a regressor's network, for each number that it tells
Likelihood = Annotated[Literal["normal", "student-t", "heteroscedastic"], f"one of {', '.join(OUTPUTS)}"]


@dataclass(eq=False, repr=False)
class BayesianMLPRegressor(BayesianRegressor):
    """A multilayer perceptron with a posterior over its weights, for numbers.

        y ~ p(y | f_w(x)),   w ~ prior,   f_w: hₗ = σ(hₗ₋₁ Wₗ + bₗ)

    Columns of X and y are standardised inside; what comes back is in y's units. Of several outputs, y (n, K), each is
    told with a noise of its own by one network of K outputs: predictions (n, K), intervals (n, K, 2).

    Args:
        hidden: widths of the hidden layers, each ≥ 1; () for a linear map.
        activation: σ: "relu", "gelu", "silu", "elu", "tanh", "sigmoid", "identity", or a function of arrays.
        likelihood: "normal", "student-t" (4 degrees of freedom, for outliers) or "heteroscedastic", whose network
            also says the sd at x.
        prior: of the weights: "scaled", N(0, 1/fan_in); "relevance", that times scales which are learnt, one for each
            column; an sd; or as for ``models.neural_network``.
        method: "bbb", "sgld", "nuts", "map", "meanfield", "fullrank", "laplace", "ensemble", with their defaults; or a
            method with settings of its own, such as ``tr.NUTS(chains=2)``.
        level: of intervals, in (0, 1).
        calibration: share of the rows, in [0, 1), held out of the fit to calibrate intervals; 0 holds out none.
        held_out: share of the rows, in [0, 1), kept out of the fit: a climb by steps ends when it predicts them no
            better, and the report says how they are predicted.
        random_state: int, RandomState or None, of all randomness of the fit.
        verify: how much the fit is looked at again before it is called one to trust, as for ``infer``.

    Attributes:
        posterior_: the Posterior, of standardised numbers.
        report_: how far to trust it.
        scores_: |y − mean|/sd of the rows that calibrate, sorted, or None.
        n_features_in_, feature_names_in_: of the rows fitted.

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

    _several: ClassVar[bool] = True

    def _model(self) -> Model:
        count = self._scaling.outputs
        outputs = OUTPUTS[self.likelihood] * (count or 1)
        network = mlp(self.n_features_in_, self.hidden, outputs, self.activation)
        likelihood, extra = (self.likelihood, None) if count is None else several(self.likelihood, count)
        return replace(neural_network(network, likelihood, prior=self.prior, extra=extra), shared=True)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@dataclass(eq=False, repr=False)
class BayesianMLPClassifier(BayesianClassifier):
    """A multilayer perceptron with a posterior over its weights, for classes.

        two classes:  y ~ Bernoulli(1 / (1 + e^−f_w(x)))       more:  y ~ Categorical(softmax(f_w(x))),   w ~ prior

    Probabilities are averaged over w, E[p(y|x, w)]: far from the data, where weights disagree, they move to the middle.

    Args:
        hidden, activation, prior, method, held_out, random_state, verify: as for ``BayesianMLPRegressor``.

    Attributes:
        classes_: the labels, sorted.
        posterior_, report_, n_features_in_, feature_names_in_: as there.

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
