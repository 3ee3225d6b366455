"""Models that come with the library."""

from tractable.models import conjugate, factors, linear, mixture, network, variational
from tractable.models.factors import factor_analysis, probabilistic_pca
from tractable.models.mixture import bernoulli_mixture, gaussian_mixture
from tractable.models.network import mlp, neural_network, scale_mixture
from tractable.models.variational import bayesian_gaussian_mixture, bayesian_linear_regression, normal_gamma

__all__ = [
    "bayesian_gaussian_mixture", "bayesian_linear_regression", "bernoulli_mixture", "conjugate", "factor_analysis",
    "factors", "gaussian_mixture", "linear", "mixture", "mlp", "network", "neural_network", "normal_gamma",
    "probabilistic_pca", "scale_mixture", "variational",
]  # fmt: skip
