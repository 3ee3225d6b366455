"""Built-in examples: a model, its data and, where there is one, the exact answer.

Data are drawn from a fixed seed or come with scikit-learn; nothing is downloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpyro.distributions as dist
from sklearn import datasets

from tractable.core import Data, Model
from tractable.models import conjugate, linear
from tractable.tools.errors import DataError
from tractable.tools.shared import shared

ALPHA = BETA = 5.0  # of the coin's prior
NOISE_SD, PRIOR_SD = 2.0, 10.0  # of the normal mean
RESIDUAL_SD, WEIGHT_SD = 0.7, 1.0  # of the linear regression
BIMODAL = 3  # a seed whose hundred points show both components

Moments = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Example:
    """A model with data to fit it to.

    Attributes:
        name: as typed.
        title: one line.
        build: ``() -> (model, data to fit, data held out or None)``; the same model at every call.
        exact: ``() -> {parameter: (posterior mean, posterior sd)}``, float64; None where it is not known.
        log_evidence: ``() -> log p(y)``, exact; None where it is not known.
        grid: ``() -> conjugate.Grid`` of a posterior in two dimensions; None elsewhere.
        notes: what to look at.
    """

    name: str
    title: str
    build: Callable[[], tuple[Model, Data, Data | None]]
    exact: Callable[[], Moments] | None = None
    log_evidence: Callable[[], float] | None = None
    grid: Callable[[], conjugate.Grid] | None = None
    notes: str = ""


def example(name: str) -> Example:
    """The built-in example of that name.

    Raises:
        DataError: no such example; the sentence lists those there are.

    >>> example("beta-bernoulli").title
    'One hundred flips of a coin with a Beta(5, 5) prior'
    """
    if name not in EXAMPLES:
        raise DataError(f"There is no example {name!r}; expected one of {', '.join(EXAMPLES)}.")
    return EXAMPLES[name]


@shared
def coin(alpha: conjugate.Real, beta: conjugate.Real) -> Model:
    """θ ~ Beta(α, β), y ~ Bernoulli(θ); its exact posterior is ``conjugate.beta_bernoulli``."""
    conjugate.positive(alpha=alpha, beta=beta)
    return Model({"theta": dist.Beta(alpha, beta)}, lambda params: dist.Bernoulli(params["theta"]))


@shared
def normal_mean(noise_sd: conjugate.Real, prior_mean: conjugate.Real, prior_sd: conjugate.Real) -> Model:
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


def _coin() -> tuple[Model, Data, None]:
    return coin(ALPHA, BETA), Data(flips()), None


def _exact_coin() -> conjugate.BetaPosterior:
    return conjugate.beta_bernoulli(flips(), ALPHA, BETA)


def _normal_mean() -> tuple[Model, Data, None]:
    return normal_mean(NOISE_SD, 0.0, PRIOR_SD), Data(readings()), None


def _exact_normal_mean() -> conjugate.NormalPosterior:
    return conjugate.normal_mean(readings(), NOISE_SD, 0.0, PRIOR_SD)


def _regression() -> tuple[Model, Data, None]:
    x, y = _loaded(datasets.load_diabetes, scaled=False)
    data = Data(_standardised(y, y), _standardised(x, x))
    return linear.bayesian_linear(x.shape[1], RESIDUAL_SD, WEIGHT_SD), data, None


def _exact_regression() -> conjugate.LinearPosterior:
    _, data, _ = _regression()
    return conjugate.linear_regression(data.given, data.y, RESIDUAL_SD, WEIGHT_SD)


def _mixture() -> tuple[Model, Data, None]:
    return linear.gaussian_mixture_2d(), Data(mixture()), None


def _mixture_grid() -> conjugate.Grid:
    return conjugate.mixture_grid(mixture())


def _breast_cancer() -> tuple[Model, Data, Data]:
    train, held_out = _held_out(*_loaded(datasets.load_breast_cancer))
    return linear.generalised_linear(30, "bernoulli"), train, held_out


def _wine() -> tuple[Model, Data, Data]:
    train, held_out = _held_out(*_loaded(datasets.load_wine))
    return linear.generalised_linear(13, "categorical", 3), train, held_out


def _diabetes() -> tuple[Model, Data, Data]:
    x, y = _loaded(datasets.load_diabetes, scaled=False)
    train, held_out = _held_out(x, y)
    held_out = Data(_standardised(held_out.y, train.y), held_out.given)
    return (linear.generalised_linear(10, "normal"), Data(_standardised(train.y, train.y), train.given), held_out)


def _loaded(loader: Callable, **options: bool) -> tuple[np.ndarray, np.ndarray]:
    x, y = loader(return_X_y=True, **options)
    return x, y


def _held_out(x: np.ndarray, y: np.ndarray) -> tuple[Data, Data]:
    """Four fifths and one fifth, both standardised by the first: the second is not looked at."""
    train, rest = Data(y, x).split(0.2)
    return (
        Data(train.y, _standardised(train.given, train.given)),
        Data(rest.y, _standardised(rest.given, train.given)),
    )


def _standardised(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    return (values - by.mean(axis=0)) / by.std(axis=0)


def _moments(name: str, posterior: Callable) -> Callable[[], Moments]:
    def exact() -> Moments:
        found = posterior()
        return {name: (np.asarray(found.mean), np.asarray(found.sd))}

    return exact


EXAMPLES = {
    each.name: each
    for each in (
        Example(
            "beta-bernoulli",
            "One hundred flips of a coin with a Beta(5, 5) prior",
            _coin,
            _moments("theta", _exact_coin),
            lambda: _exact_coin().log_evidence,
            notes="The posterior is a Beta; every method can be held against it.",
        ),
        Example(
            "normal-mean",
            "The mean of fifty readings with known noise",
            _normal_mean,
            _moments("mu", _exact_normal_mean),
            lambda: _exact_normal_mean().log_evidence,
            notes="The posterior is normal, so Laplace and variational inference are exact here.",
        ),
        Example(
            "linear-regression",
            "Linear regression with known noise, diabetes data (442 × 10)",
            _regression,
            _moments("weights", _exact_regression),
            lambda: _exact_regression().log_evidence,
            notes="Two blood measurements correlate at 0.9: mean-field understates the sd of their weights.",
        ),
        Example(
            "gaussian-mixture",
            "A mixture of two normals with tied means, two modes (Welling & Teh 2011)",
            _mixture,
            _moments("theta", _mixture_grid),
            lambda: _mixture_grid().log_mass,
            _mixture_grid,
            notes="The modes lie near (0, 1) and (1, −1); methods that stay in one report half the answer.",
        ),
        Example(
            "breast-cancer",
            "Logistic regression, breast cancer data (569 × 30, a fifth held out)",
            _breast_cancer,
            notes="Nearly separable: the prior decides how sure the predictions are.",
        ),
        Example(
            "wine",
            "Softmax regression with three classes, wine data (178 × 13, a fifth held out)",
            _wine,
            notes="Separable: without a prior the weights would grow without end.",
        ),
        Example(
            "diabetes",
            "Linear regression with learnt noise, diabetes data (442 × 10, a fifth held out)",
            _diabetes,
            notes="The noise is positive: it is moved on the log scale and comes back as it is.",
        ),
    )
}
