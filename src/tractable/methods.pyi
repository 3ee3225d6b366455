"""The public methods: frozen dataclasses of settings."""

from tractable.engine.method import METHODS, Method, from_settings, named
from tractable.glm.inla import INLA
from tractable.ladders.autoencoding import AutoEncoding, ImportanceWeighted
from tractable.ladders.nvil_methods import NVIL, VIMCO
from tractable.ladders.wake_sleep_methods import ReweightedWakeSleep, WakeSleep
from tractable.latent.coordinate_ascent import CoordinateAscent
from tractable.latent.em_method import EM
from tractable.latent.monte_carlo_em_method import MonteCarloEM
from tractable.latent.online_em import OnlineEM
from tractable.mcmc.gibbs_method import Gibbs
from tractable.mcmc.hamiltonian_methods import HMC, NUTS
from tractable.mcmc.metropolis_methods import MALA, RandomWalk
from tractable.mcmc.microcanonical_method import Microcanonical
from tractable.mcmc.rejection_method import Rejection
from tractable.networks.bayes_by_backprop_method import BayesByBackprop
from tractable.networks.ivon_method import IVON
from tractable.points.ensemble import DeepEnsemble
from tractable.points.laplace import Laplace
from tractable.points.points import MAP, MLE
from tractable.sgmcmc.methods import SGHMC, SGLD
from tractable.vi.methods import FullRank, LowRank, MeanField

__all__ = [
    "EM", "HMC", "INLA", "IVON", "MALA", "MAP", "METHODS", "MLE", "NUTS", "NVIL", "SGHMC", "SGLD", "VIMCO",
    "AutoEncoding", "BayesByBackprop", "CoordinateAscent", "DeepEnsemble", "FullRank", "Gibbs", "ImportanceWeighted",
    "Laplace", "LowRank", "MeanField", "Method", "Microcanonical", "MonteCarloEM", "OnlineEM", "RandomWalk",
    "Rejection", "ReweightedWakeSleep", "WakeSleep", "from_settings", "named",
]  # fmt: skip
