"""Multilayer perceptrons for tables, with a posterior over their weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from tractable.core.model import Model
from tractable.diagnostics.verify import Verify
from tractable.estimators.base import BayesianClassifier, BayesianRegressor, HeldOut, Learner, Level, RandomState
from tractable.methods import BayesByBackprop, Method
from tractable.networks.multi_output import multi_output_likelihood
from tractable.networks.network import mlp, neural_network
from tractable.tables.fit import network_method

OUTPUTS = {"normal": 1, "student-t": 1, "heteroscedastic": 2}  # how many outputs the network has for each target
Likelihood = Annotated[Literal["normal", "student-t", "heteroscedastic"], f"one of {', '.join(OUTPUTS)}"]


def _auto(estimator: "BayesianMLPRegressor | BayesianMLPClassifier") -> Method:
    """The method "auto": Bayes by Backprop for a learnt sd and for updates; else as ``tr.fit`` chooses."""
    if getattr(estimator, "likelihood", "") == "heteroscedastic" or estimator._updates:
        return BayesByBackprop()
    return network_method(estimator._model().space.size, estimator._rows)


@dataclass(eq=False, repr=False)
class BayesianMLPRegressor(BayesianRegressor):
    """A multilayer perceptron for regression, with a posterior over its weights.

        y ~ p(y | f_w(x)),   w ~ prior,   f_w: hₗ = σ(hₗ₋₁ Wₗ + bₗ)

    The columns of X and y are standardised inside the estimator; results are in y's units. For several targets, y of
    shape (n, K), one network has K outputs and each target has its own noise. Predictions are then (n, K) and
    intervals (n, K, 2).

    Args:
        hidden: widths of the hidden layers, each ≥ 1; () for a linear map.
        activation: σ: "relu", "gelu", "silu", "elu", "tanh", "sigmoid", "identity", or a function of arrays.
        likelihood: "normal", "student-t" (4 degrees of freedom, for outliers) or "heteroscedastic", where the network
            also gives the sd at x.
        prior: prior of the weights. "scaled" is N(0, 1/fan_in), where fan_in counts a layer's inputs. "relevance" is
            the same normal times learnt scales: one for each column in the first layer, and one for each further array
            of weights. A number is the prior's sd. Other values are as for ``models.neural_network``.
        method: "auto" is ``HMC(chains=2, warmup=300, draws=300, leapfrogs=30)`` for a network of up to 5,000 weights if
            rows times weights are at most one million. For larger tables and networks, for "heteroscedastic", whose
            chains may stay where the noise is far too large, and in ``partial_fit``, which needs one mode, "auto" is
            ``BayesByBackprop()``. Other values are "bbb", "sgld", "nuts", "map", "meanfield", "fullrank", "laplace" or
            "ensemble" with its default settings; or a method with its own settings, such as ``tr.NUTS(chains=2)``.
            With "heteroscedastic", chains that begin at trained networks, ``tr.HMC(chains=4, warmup=300, draws=300,
            leapfrogs=30, start=tr.MAP(optimizer="adam"))``, predicted six UCI tables better than "auto", but most
            results were rejected, since the chains differed.
        level: the probability with which an interval contains y, in (0, 1).
        calibration: share of the rows, in [0, 1), held out of the fit to calibrate intervals; 0 holds out none.
        held_out: share of the rows, in [0, 1), held out of the fit. Training stops when the prediction of these rows no
            longer improves, and the report says how well they are predicted.
        random_state: int, RandomState or None, for all randomness of the fit.
        verify: how thoroughly the fit is checked before its verdict can be "trust", as for ``infer``.

    Attributes:
        posterior_: the Posterior, for standardised columns. Its methods raise an error where a result would have
            units; ``posterior_.standardised`` gives these results in standardised units.
        report_: how far to trust the fit.
        scores_: |y − mean|/sd of the calibration rows, sorted; None without calibration.
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
    method: Learner = "auto"
    level: Level = 0.9
    calibration: HeldOut = 0.0
    held_out: HeldOut = 0.0
    random_state: RandomState = None
    verify: Verify = "auto"

    _multi_output: ClassVar[bool] = True

    def _model(self) -> Model:
        count = self._scaling.outputs
        outputs = OUTPUTS[self.likelihood] * (count or 1)
        network = mlp(self._width, self.hidden, outputs, self.activation)
        likelihood, extra = multi_output_likelihood(self.likelihood, count) if count else (self.likelihood, None)
        return replace(neural_network(network, likelihood, prior=self.prior, extra=extra), shared=True)

    _usual_method = _auto


@dataclass(eq=False, repr=False)
class BayesianMLPClassifier(BayesianClassifier):
    """A multilayer perceptron for classification, with a posterior over its weights.

        two classes:  y ~ Bernoulli(1 / (1 + e^−f_w(x)))       more:  y ~ Categorical(softmax(f_w(x))),   w ~ prior

    Predicted probabilities are averaged over the posterior, E[p(y|x, w)]. Far from the data draws of w disagree, so
    the averaged probabilities are less extreme there.

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
    method: Learner = "auto"
    held_out: HeldOut = 0.0
    random_state: RandomState = None
    verify: Verify = "auto"

    def _model(self) -> Model:
        family, outputs = ("bernoulli", 1) if len(self.classes_) == 2 else ("categorical", len(self.classes_))
        network = mlp(self._width, self.hidden, outputs, self.activation)
        return replace(neural_network(network, family, prior=self.prior), shared=True)

    _usual_method = _auto
