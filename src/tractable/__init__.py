"""Approximate Bayesian inference in JAX, with posteriors that say how far they can be trusted."""

from tractable import gradients, kernels, models, objectives
from tractable.compare import Comparison, compare
from tractable.core import Batch, Data, Kernel, Model, log_density, log_posterior
from tractable.infer import infer
from tractable.methods import HMC, MALA, MAP, MLE, NUTS, SGHMC, SGLD, Method, RandomWalk, Rejection
from tractable.posterior import Posterior
from tractable.predict import Prediction
from tractable.report import Report
from tractable.saving import VERSION as __version__
from tractable.saving import load
from tractable.tools import schedules

__all__ = [
    "HMC", "MALA", "MAP", "MLE", "NUTS", "SGHMC", "SGLD", "Batch", "Comparison", "Data", "Kernel", "Method", "Model",
    "Posterior", "Prediction", "RandomWalk", "Rejection", "Report", "__version__", "compare", "gradients", "infer",
    "kernels", "load", "log_density", "log_posterior", "models", "objectives", "schedules",
]  # fmt: skip
