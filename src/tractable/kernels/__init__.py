"""Kernels: one paper per file; each kernel is two pure functions, to draw noise and to step, and a first state."""

from tractable.kernels.annealed import annealed
from tractable.kernels.ascend import ascend
from tractable.kernels.em import Expected, em, online_em
from tractable.kernels.gibbs import Block, gibbs
from tractable.kernels.hamiltonian import hmc, nuts
from tractable.kernels.mala import langevin, mala
from tractable.kernels.metropolis import Proposal, asymmetric, metropolis
from tractable.kernels.preconditioners import fixed, rmsprop
from tractable.kernels.random_walk import gaussian, random_walk
from tractable.kernels.rejection import rejection
from tractable.kernels.sghmc import sghmc
from tractable.kernels.sgld import sgld

__all__ = [
    "Block", "Expected", "Proposal", "annealed", "ascend", "asymmetric", "em", "fixed", "gaussian", "gibbs", "hmc",
    "langevin", "mala", "metropolis", "nuts", "online_em", "random_walk", "rejection", "rmsprop", "sghmc", "sgld",
]  # fmt: skip
