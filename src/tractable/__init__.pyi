"""Approximate Bayesian inference in JAX, with posteriors that say how far they can be trusted."""

from . import estimators, kernels, models, objectives
from .calibration.calibrate import Calibration, calibrate
from .comparison import Comparison, compare
from .core import approximations, errors, schedules
from .core.latent import LatentModel
from .core.model import Batch, Data, Kernel, Model, Through, log_density, log_posterior
from .diagnostics.report import Report
from .engine.cache import cache
from .evidence.estimate import Evidence, log_evidence
from .inference import infer
from .ladders.variance import gradient_variance
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
from .posterior.loading import load
from .posterior.posterior import Posterior
from .posterior.predict import Prediction
from .posterior.run_identity import __version__
from .selection import Selection, select
from .sgmcmc import gradients
from .tables.fit import fit
from .tables.packing import pack

__all__ = [
    "EM", "HMC", "INLA", "MALA", "MAP", "MLE", "NUTS", "NVIL", "SGHMC", "SGLD", "VIMCO", "AutoEncoding", "Batch",
    "BayesByBackprop", "Calibration", "Comparison", "CoordinateAscent", "Data", "DeepEnsemble", "Evidence",
    "FullRank", "Gibbs", "ImportanceWeighted", "Kernel", "Laplace", "LatentModel", "LowRank", "MeanField", "Method",
    "Model", "MonteCarloEM", "OnlineEM", "Posterior", "Prediction", "RandomWalk", "Rejection", "Report",
    "ReweightedWakeSleep", "Selection", "Through", "WakeSleep", "__version__", "approximations", "cache", "calibrate",
    "compare", "errors", "estimators", "fit", "gradient_variance", "gradients", "infer", "kernels", "load",
    "log_density", "log_evidence", "log_posterior", "models", "objectives", "pack", "schedules", "select",
]  # fmt: skip
