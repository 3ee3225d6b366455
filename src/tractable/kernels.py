"""The public kernels, each in a file of its own that follows one paper.

A kernel is three pure functions: ``init`` makes a first state, ``draw`` makes noise, and ``step`` makes a step.
"""

from tractable.core.sums import Expected, enumerated, observed
from tractable.engine.ascend import ascend
from tractable.evidence.annealed import annealed
from tractable.latent.em import em, online_em
from tractable.mcmc.gibbs import Block, gibbs
from tractable.mcmc.hamiltonian import hmc, nuts
from tractable.mcmc.mala import langevin, mala
from tractable.mcmc.metropolis import Proposal, asymmetric, metropolis
from tractable.mcmc.microcanonical import microcanonical
from tractable.mcmc.random_walk import gaussian, random_walk
from tractable.mcmc.rejection import rejection
from tractable.sgmcmc.preconditioners import fixed, rmsprop
from tractable.sgmcmc.sghmc import sghmc
from tractable.sgmcmc.sgld import sgld

__all__ = [
    "Block", "Expected", "Proposal", "annealed", "ascend", "asymmetric", "em", "enumerated", "fixed", "gaussian",
    "gibbs", "hmc", "langevin", "mala", "metropolis", "microcanonical", "nuts", "observed", "online_em", "random_walk",
    "rejection", "rmsprop", "sghmc", "sgld",
]  # fmt: skip
