"""Approximate Bayesian inference in JAX, with posteriors that say how far they can be trusted."""

from tractable import estimators, kernels, models, objectives
from tractable.calibration.calibrate import calibrate
from tractable.calibration.calibration import Calibration
from tractable.comparison import Comparison, compare
from tractable.core import approximations, errors, schedules
from tractable.core.latent import LatentModel
from tractable.core.model import Batch, Data, Kernel, Model, Through, log_density, log_posterior
from tractable.diagnostics.report import Report
from tractable.engine.cache import cache
from tractable.evidence.estimate import Evidence, log_evidence
from tractable.inference import infer
from tractable.ladders.variance import gradient_variance
from tractable.methods import (
    EM,
    HMC,
    INLA,
    IVON,
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
    Microcanonical,
    MonteCarloEM,
    OnlineEM,
    RandomWalk,
    Rejection,
    ReweightedWakeSleep,
    WakeSleep,
)
from tractable.posterior.loading import load
from tractable.posterior.model_comparison import ModelComparison, compare_models
from tractable.posterior.posterior import Posterior
from tractable.posterior.predict import Prediction
from tractable.posterior.run_identity import __version__
from tractable.selection import Selection, select
from tractable.sgmcmc import gradients
from tractable.tables.fit import fit
from tractable.tables.packing import pack
from tractable.verdict import judge

__all__ = [
    "EM", "HMC", "INLA", "IVON", "MALA", "MAP", "MLE", "NUTS", "NVIL", "SGHMC", "SGLD", "VIMCO", "AutoEncoding",
    "Batch", "BayesByBackprop", "Calibration", "Comparison", "CoordinateAscent", "Data", "DeepEnsemble", "Evidence",
    "FullRank", "Gibbs", "ImportanceWeighted", "Kernel", "Laplace", "LatentModel", "LowRank", "MeanField", "Method",
    "Microcanonical", "Model", "ModelComparison", "MonteCarloEM", "OnlineEM", "Posterior", "Prediction", "RandomWalk",
    "Rejection", "Report", "ReweightedWakeSleep", "Selection", "Through", "WakeSleep", "__version__", "approximations",
    "cache", "calibrate", "compare", "compare_models", "errors", "estimators", "fit", "gradient_variance", "gradients",
    "infer", "judge", "kernels", "load", "log_density", "log_evidence", "log_posterior", "models", "objectives",
    "pack", "schedules", "select",
]  # fmt: skip
