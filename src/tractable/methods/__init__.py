"""Methods: the user's frozen dataclasses, by family; users see them in this order of import."""

# isort: off
from tractable.methods.points import MAP, MLE
from tractable.methods.laplace import Laplace
from tractable.methods.inla import INLA
from tractable.methods.rejection import Rejection
from tractable.methods.metropolis import MALA, RandomWalk
from tractable.methods.hamiltonian import HMC, NUTS
from tractable.methods.gibbs import Gibbs
from tractable.methods.langevin import SGHMC, SGLD
from tractable.methods.variational import FullRank, LowRank, MeanField
from tractable.methods.bayes_by_backprop import BayesByBackprop
from tractable.methods.ensemble import DeepEnsemble
from tractable.methods.maximisation import EM
from tractable.methods.online_em import OnlineEM
from tractable.methods.monte_carlo_em import MonteCarloEM
from tractable.methods.coordinate_ascent import CoordinateAscent
from tractable.methods.autoencoding import AutoEncoding, ImportanceWeighted
from tractable.methods.nvil import NVIL, VIMCO
from tractable.methods.wake_sleep import ReweightedWakeSleep, WakeSleep
from tractable.methods.method import METHODS, Method, from_settings, named
# isort: on

__all__ = [
    "EM", "HMC", "INLA", "MALA", "MAP", "METHODS", "MLE", "NUTS", "NVIL", "SGHMC", "SGLD", "VIMCO", "AutoEncoding",
    "BayesByBackprop", "CoordinateAscent", "DeepEnsemble", "FullRank", "Gibbs", "ImportanceWeighted", "Laplace",
    "LowRank", "MeanField", "Method", "MonteCarloEM", "OnlineEM", "RandomWalk", "Rejection", "ReweightedWakeSleep",
    "WakeSleep", "from_settings", "named",
]  # fmt: skip
