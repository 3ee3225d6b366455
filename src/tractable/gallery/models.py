"""Built-in examples: a model, its data and, if known, the exact posterior.

Data are drawn with a fixed seed or come with scikit-learn; nothing is downloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpyro.distributions as dist

from tractable.core.model import Data, Model
from tractable.core.numbers import Real
from tractable.core.shared import shared
from tractable.core.words import find
from tractable.gallery import conjugate
from tractable.glm import linear

ALPHA = BETA = 5.0  # the parameters of the coin's Beta prior
NOISE_SD, PRIOR_SD = 2.0, 10.0  # sds of the noise and of the prior in the example "normal-mean"
RESIDUAL_SD, WEIGHT_SD = 0.7, 1.0  # sds of the noise and of the weights in the example "linear-regression"
BIMODAL = 3  # a seed with which the hundred points of the mixture show both components

Moments = dict[str, tuple[np.ndarray, np.ndarray]]
Exact = conjugate.BetaPosterior | conjugate.NormalPosterior | conjugate.LinearPosterior | conjugate.Grid


@dataclass(frozen=True)
class Example:
    """A model with data to fit it to.

    Attributes:
        name: the name that users type.
        title: a description in one line.
        build: ``() -> (model, data to fit, held-out data or None)``; every call returns the same model.
        notes: the point of the example.
        exact: ``() -> {parameter: (posterior mean, posterior sd)}``, float64; None if unknown.
        log_evidence: ``() -> log p(y)``, exact; None if unknown.
        grid: ``() -> conjugate.Grid`` of a posterior in two dimensions; None for other posteriors.
    """

    name: str
    title: str
    build: Callable[[], tuple[Model, Data, Data | None]]
    notes: str
    exact: Callable[[], Moments] | None = None
    log_evidence: Callable[[], float] | None = None
    grid: Callable[[], conjugate.Grid] | None = None


def example(name: str) -> Example:
    """The built-in example with this name.

    Raises:
        DataError: there is no such example; the message lists the names.

    >>> example("beta-bernoulli").title
    'One hundred flips of a coin with a Beta(5, 5) prior'
    """
    return find("example", name, EXAMPLES)


@shared
def coin(alpha: Real, beta: Real) -> Model:
    """θ ~ Beta(α, β), y ~ Bernoulli(θ); its exact posterior is ``conjugate.beta_bernoulli``."""
    conjugate.positive(alpha=alpha, beta=beta)
    return Model({"theta": dist.Beta(alpha, beta)}, lambda params: dist.Bernoulli(params["theta"]))


@shared
def normal_mean(noise_sd: Real, prior_mean: Real, prior_sd: Real) -> Model:
    """μ ~ N(m, s²), y ~ N(μ, σ²); its exact posterior is ``conjugate.normal_mean``."""
    conjugate.positive(noise_sd=noise_sd, prior_sd=prior_sd)
    return Model({"mu": dist.Normal(prior_mean, prior_sd)}, lambda params: dist.Normal(params["mu"], noise_sd))


def flips() -> np.ndarray:
    """One hundred flips of a coin with θ = 0.7, (100,)."""
    return np.random.default_rng(0).binomial(1, 0.7, 100)


def readings() -> np.ndarray:
    """Fifty readings of μ = 3 with noise of sd 2, (50,)."""
    return np.random.default_rng(0).normal(3.0, NOISE_SD, 50)


def mixture() -> np.ndarray:
    """One hundred points of the mixture with θ = (0, 1), (100,)."""
    return linear.draw_mixture(100, seed=BIMODAL)


def _load(name: str, **options: bool) -> Data:
    from sklearn import datasets  # imported here, as the command line always imports this module but rarely loads data

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True, **options)
    return Data(y, x)


def _diabetes() -> Data:
    """The unscaled diabetes data; scikit-learn's own scaling would use the held-out rows too."""
    return _load("diabetes", scaled=False)


def _standardise(data: Data, by: Data, outputs: bool = True) -> Data:
    def of(values: np.ndarray, by: np.ndarray) -> np.ndarray:
        return (values - by.mean(axis=0)) / by.std(axis=0)

    return Data(of(data.y, by.y) if outputs else data.y, of(data.given, by.given))


def _held_out(data: Data, outputs: bool = False) -> tuple[Data, Data]:
    """Four fifths of the rows to fit, and one fifth held out.

    The inputs, and the outputs if ``outputs``, are standardised with mean and sd of the rows to fit.
    """
    train, rest = data.split(0.2)
    return _standardise(train, train, outputs), _standardise(rest, train, outputs)


def _exact_answers(parameter: str, posterior: Callable[[], Exact]) -> dict[str, Callable]:
    """An example's ``exact`` and ``log_evidence``, from the exact posterior of its one parameter."""

    def exact() -> Moments:
        result = posterior()
        return {parameter: (np.asarray(result.mean), np.asarray(result.sd))}

    def log_evidence() -> float:
        result = posterior()
        return result.log_mass if isinstance(result, conjugate.Grid) else result.log_evidence

    return {"exact": exact, "log_evidence": log_evidence}


def _regression() -> conjugate.LinearPosterior:
    data = _standardise(_diabetes(), _diabetes())
    return conjugate.linear_regression(data.given, data.y, RESIDUAL_SD, WEIGHT_SD)


def _grid() -> conjugate.Grid:
    return conjugate.mixture_grid(mixture())


EXAMPLES = {
    each.name: each
    for each in (
        Example(
            "beta-bernoulli",
            "One hundred flips of a coin with a Beta(5, 5) prior",
            lambda: (coin(ALPHA, BETA), Data(flips()), None),
            "The posterior is a Beta; every method can be compared with it.",
            **_exact_answers("theta", lambda: conjugate.beta_bernoulli(flips(), ALPHA, BETA)),
        ),
        Example(
            "normal-mean",
            "The mean of fifty readings with known noise",
            lambda: (normal_mean(NOISE_SD, 0.0, PRIOR_SD), Data(readings()), None),
            "The posterior is normal, so Laplace and variational inference are exact here.",
            **_exact_answers("mu", lambda: conjugate.normal_mean(readings(), NOISE_SD, 0.0, PRIOR_SD)),
        ),
        Example(
            "linear-regression",
            "Linear regression with known noise, diabetes data (442 × 10)",
            lambda: (linear.bayesian_linear(10, RESIDUAL_SD, WEIGHT_SD), _standardise(_diabetes(), _diabetes()), None),
            "Two blood measurements have a correlation of 0.9, so mean-field understates the sds of their weights.",
            **_exact_answers("weights", _regression),
        ),
        Example(
            "gaussian-mixture",
            "A mixture of two normals whose means share a parameter, with two modes (Welling & Teh 2011)",
            lambda: (linear.gaussian_mixture_2d(), Data(mixture()), None),
            "The modes lie near (0, 1) and (1, −1); a method that stays in one mode reports half the answer.",
            grid=_grid,
            **_exact_answers("theta", _grid),
        ),
        Example(
            "breast-cancer",
            "Logistic regression, breast cancer data (569 × 30, a fifth held out)",
            lambda: (linear.generalised_linear(30, "bernoulli"), *_held_out(_load("breast_cancer"))),
            "The classes are nearly separable, so the prior decides how certain the predictions are.",
        ),
        Example(
            "wine",
            "Softmax regression with three classes, wine data (178 × 13, a fifth held out)",
            lambda: (linear.generalised_linear(13, "categorical", 3), *_held_out(_load("wine"))),
            "The classes are separable: without a prior the weights would grow without end.",
        ),
        Example(
            "diabetes",
            "Linear regression with learnt noise, diabetes data (442 × 10, a fifth held out)",
            lambda: (linear.generalised_linear(10, "normal"), *_held_out(_diabetes(), outputs=True)),
            "The noise sd is positive: methods work with its logarithm and return it on its own scale.",
        ),
    )
}
