"""Models that come with the library."""

from tractable.core.censored import censored
from tractable.core.censoring import Censored, with_censoring
from tractable.gallery import conjugate
from tractable.gallery import models as gallery
from tractable.glm import linear
from tractable.glm.families import with_offset
from tractable.glm.linear import with_priors
from tractable.ladders.ladder import Ladder, Recognition, bottom_up
from tractable.ladders.ladders import hierarchical, latent_gaussian, sigmoid_belief_network
from tractable.ladders.layers import Family, Layer, categorical, layer, normal_noise, standard_normal, top
from tractable.ladders.top_down import top_down
from tractable.latent import conjugate_models as variational
from tractable.latent import factors, mixture
from tractable.latent.conjugate_models import bayesian_gaussian_mixture, bayesian_linear_regression, normal_gamma
from tractable.latent.factors import factor_analysis, probabilistic_pca
from tractable.latent.markov import HiddenMarkov, hidden_markov
from tractable.latent.mixture import bernoulli_mixture, gaussian_mixture
from tractable.latent.series import sequences
from tractable.latent.state_space import LinearGaussian, linear_gaussian
from tractable.networks import network
from tractable.networks.network import mlp, neural_network, scale_mixture
from tractable.tables.regression import Regression, regression

__all__ = [
    "Censored", "Family", "HiddenMarkov", "Ladder", "Layer", "LinearGaussian", "Recognition", "Regression",
    "bayesian_gaussian_mixture", "bayesian_linear_regression", "bernoulli_mixture", "bottom_up", "categorical",
    "censored", "conjugate", "factor_analysis", "factors", "gallery", "gaussian_mixture", "hidden_markov",
    "hierarchical", "latent_gaussian", "layer", "linear", "linear_gaussian", "mixture", "mlp", "network",
    "neural_network", "normal_gamma", "normal_noise", "probabilistic_pca", "regression", "scale_mixture", "sequences",
    "sigmoid_belief_network", "standard_normal", "top", "top_down", "variational", "with_censoring", "with_offset",
    "with_priors",
]  # fmt: skip
