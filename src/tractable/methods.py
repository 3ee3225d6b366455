"""The public methods: frozen dataclasses of settings. ``methods.pyi`` lists them; each is imported at its first use."""

from tractable.core.lazy import lazy_names
from tractable.engine.method import METHODS

# The modules of all methods, by the methods' labels; users see lists of methods in this order.
METHODS.modules.update({
    "map": "points.points", "mle": "points.points", "laplace": "points.laplace", "inla": "glm.inla",
    "rejection": "mcmc.rejection_method", "random-walk": "mcmc.metropolis_methods", "mala": "mcmc.metropolis_methods",
    "hmc": "mcmc.hamiltonian_methods", "nuts": "mcmc.hamiltonian_methods",
    "microcanonical": "mcmc.microcanonical_method", "gibbs": "mcmc.gibbs_method",
    "sgld": "sgmcmc.methods", "sghmc": "sgmcmc.methods", "meanfield": "vi.methods", "fullrank": "vi.methods",
    "lowrank": "vi.methods", "bbb": "networks.bayes_by_backprop_method", "ivon": "networks.ivon_method",
    "ensemble": "points.ensemble",
    "em": "latent.em_method", "online-em": "latent.online_em", "monte-carlo-em": "latent.monte_carlo_em_method",
    "cavi": "latent.coordinate_ascent", "autoencoding": "ladders.autoencoding",
    "importance-weighted": "ladders.autoencoding", "nvil": "ladders.nvil_methods", "vimco": "ladders.nvil_methods",
    "wake-sleep": "ladders.wake_sleep_methods", "reweighted-wake-sleep": "ladders.wake_sleep_methods",
})  # fmt: skip
METHODS.unlisted["given"] = "mcmc.given_draws"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
