"""The public objectives: functions ``value(noise, params, batch) -> scalar`` that methods maximise.

They are log densities and lower bounds, never losses, and their gradients are unbiased estimates.
"""

from tractable.core.model import Objective
from tractable.engine.search import log_joint
from tractable.networks.bayes_by_backprop import bayes_by_backprop, kl_weight, normal_kl
from tractable.vi.elbo import CONTROLS, DECAY, elbo, inclusive

__all__ = [
    "CONTROLS", "DECAY", "Objective", "bayes_by_backprop", "elbo", "inclusive", "kl_weight", "log_joint", "normal_kl"
]  # fmt: skip
