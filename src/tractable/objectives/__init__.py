"""Objectives: ``value(noise, params, batch) -> scalar`` whose gradient is an unbiased uphill direction.

Up is better: these are log densities and bounds, never losses.
"""

from tractable.core import Objective
from tractable.objectives.bayes_by_backprop import bayes_by_backprop, kl_weight, normal_kl
from tractable.objectives.elbo import CONTROLS, DECAY, elbo, inclusive, log_joint

__all__ = [
    "CONTROLS", "DECAY", "Objective", "bayes_by_backprop", "elbo", "inclusive", "kl_weight", "log_joint", "normal_kl"
]  # fmt: skip
