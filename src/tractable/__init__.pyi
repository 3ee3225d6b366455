"""Approximate Bayesian inference in JAX, with posteriors that say how far they can be trusted."""

from . import estimators, kernels, models, objectives
from .beliefs import approximations
from .checks.report import Report
from .comparison import Comparison, compare
from .core import Batch, Data, Kernel, Model, Through, log_density, log_posterior
from .data.packing import pack
from .evidence.estimate import Evidence, log_evidence
from .inference import infer
from .kernels import gradients
from .methods import (
    EM,
    HMC,
    INLA,
    MALA,
    MAP,
    MLE,
    NUTS,
    NVIL,
    SGHMC,
    SGLD,
    VIMCO,
    AutoEncoding,
    BayesByBackprop,
    CoordinateAscent,
    DeepEnsemble,
    FullRank,
    Gibbs,
    ImportanceWeighted,
    Laplace,
    LowRank,
    MeanField,
    Method,
    MonteCarloEM,
    OnlineEM,
    RandomWalk,
    Rejection,
    ReweightedWakeSleep,
    WakeSleep,
)
from .models.latent import LatentModel
from .objectives.variance import gradient_variance
from .results.identity import __version__
from .results.loading import load
from .results.posterior import Posterior
from .results.predict import Prediction
from .sbc.calibration import Calibration, calibrate
from .selection import Selection, select
from .tools import schedules
from .tools.cache import cache

__all__ = [
    "EM", "HMC", "INLA", "MALA", "MAP", "MLE", "NUTS", "NVIL", "SGHMC", "SGLD", "VIMCO", "AutoEncoding", "Batch",
    "BayesByBackprop", "Calibration", "Comparison", "CoordinateAscent", "Data", "DeepEnsemble", "Evidence",
    "FullRank", "Gibbs", "ImportanceWeighted", "Kernel", "Laplace", "LatentModel", "LowRank", "MeanField", "Method",
    "Model", "MonteCarloEM", "OnlineEM", "Posterior", "Prediction", "RandomWalk", "Rejection", "Report",
    "ReweightedWakeSleep", "Selection", "Through", "WakeSleep", "__version__", "approximations", "cache", "calibrate",
    "compare", "estimators", "gradient_variance", "gradients", "infer", "kernels", "load", "log_density",
    "log_evidence", "log_posterior", "models", "objectives", "pack", "schedules", "select",
]  # fmt: skip
