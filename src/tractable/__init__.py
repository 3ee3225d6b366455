"""Approximate Bayesian inference in JAX, with posteriors that say how far they can be trusted."""

from tractable import kernels, models, objectives
from tractable.beliefs import approximations
from tractable.checks.report import Report
from tractable.compare import Comparison, compare
from tractable.core import Batch, Data, Kernel, Model, Through, log_density, log_posterior
from tractable.evidence.estimate import Evidence, log_evidence
from tractable.infer import infer
from tractable.kernels import gradients
from tractable.methods import (
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
from tractable.models.latent import LatentModel
from tractable.objectives.variance import gradient_variance
from tractable.results.folder import VERSION as __version__
from tractable.results.loading import load
from tractable.results.posterior import Posterior
from tractable.results.predict import Prediction
from tractable.sbc.calibrate import calibrate
from tractable.sbc.calibration import Calibration
from tractable.select import Selection, select
from tractable.tools import schedules, shown

__all__ = [
    "EM", "HMC", "INLA", "MALA", "MAP", "MLE", "NUTS", "NVIL", "SGHMC", "SGLD", "VIMCO", "AutoEncoding", "Batch",
    "BayesByBackprop", "Calibration", "Comparison", "CoordinateAscent", "Data", "DeepEnsemble", "Evidence",
    "FullRank", "ImportanceWeighted", "Kernel", "Laplace", "LatentModel", "LowRank", "MeanField", "Method", "Model",
    "MonteCarloEM", "OnlineEM", "Posterior", "Prediction", "RandomWalk", "Rejection", "Report", "ReweightedWakeSleep",
    "Selection", "Through", "WakeSleep", "__version__", "approximations", "calibrate", "compare", "gradient_variance",
    "gradients", "infer", "kernels", "load", "log_density", "log_evidence", "log_posterior", "models", "objectives",
    "schedules", "select",
]  # fmt: skip


def _html(result: object) -> str:
    """What a notebook shows; pages, with what they draw by, are imported by those who look."""
    from tractable.pages.notebook import html

    return html(result)


shown.makers[:] = [_html]


def __getattr__(name: str) -> object:
    """``tr.estimators``, imported by those who use it: scikit-learn takes a while."""
    if name == "estimators":
        import importlib

        return importlib.import_module("tractable.estimators")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
