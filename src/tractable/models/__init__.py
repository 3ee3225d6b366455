"""Models that come with the library."""

from typing import TYPE_CHECKING

from tractable.data.censored import censored
from tractable.models import conjugate, factors, linear, mixture, network, variational
from tractable.models.censoring import Censored, with_censoring
from tractable.models.factors import factor_analysis, probabilistic_pca
from tractable.models.families import with_offset
from tractable.models.ladder import Ladder, Recognition, bottom_up
from tractable.models.ladders import hierarchical, latent_gaussian, sigmoid_belief_network
from tractable.models.layers import Family, Layer, categorical, layer, normal_noise, standard_normal, top
from tractable.models.linear import with_priors
from tractable.models.markov import HiddenMarkov, hidden_markov
from tractable.models.mixture import bernoulli_mixture, gaussian_mixture
from tractable.models.network import mlp, neural_network, scale_mixture
from tractable.models.series import sequences
from tractable.models.state_space import LinearGaussian, linear_gaussian
from tractable.models.top_down import top_down
from tractable.models.variational import bayesian_gaussian_mixture, bayesian_linear_regression, normal_gamma

if TYPE_CHECKING:
    from tractable.models.formula import Regression, regression

__all__ = [
    "Censored", "Family", "HiddenMarkov", "Ladder", "Layer", "LinearGaussian", "Recognition", "Regression",
    "bayesian_gaussian_mixture", "bayesian_linear_regression", "bernoulli_mixture", "bottom_up", "categorical",
    "censored", "conjugate", "factor_analysis", "factors", "gaussian_mixture", "hidden_markov", "hierarchical",
    "latent_gaussian", "layer", "linear", "linear_gaussian", "mixture", "mlp", "network", "neural_network",
    "normal_gamma", "normal_noise", "probabilistic_pca", "regression", "scale_mixture", "sequences",
    "sigmoid_belief_network", "standard_normal", "top", "top_down", "variational", "with_censoring", "with_offset",
    "with_priors",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Imports the module that reads tables at first use: pandas takes as long to import as all the rest."""
    if name in ("Regression", "regression"):
        from tractable.models import formula

        return getattr(formula, name)
    raise AttributeError(f"module 'tractable.models' has no attribute '{name}'")
