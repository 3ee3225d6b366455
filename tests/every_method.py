"""Every method, each on a small model that it can learn: what the contract runs, and what numbers are held to."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import tractable as tr

_rng = np.random.default_rng(0)
X = _rng.normal(size=(24, 2))
Y = X @ [1.0, -1.0] + 0.5 + _rng.normal(size=24)
POINTS = np.where(np.random.default_rng(7).random((60, 1)) < 0.4, [-1.0, 0.0], [1.0, 0.5])
POINTS = POINTS + np.random.default_rng(8).normal(size=(60, 2))
PIXELS = (np.random.default_rng(0).random((30, 5)) > 0.4).astype(float)
RATINGS = np.array([3.1, 4.4, 8.3, 7.7, 5.9, 9.0, 4.0, 6.6, 3.5, 8.8, 4.9, 7.1])


class Raised(dist.Normal):
    """A normal whose log density is 2.5 too high."""

    def log_prob(self, value: Any) -> jax.Array:
        return super().log_prob(value) + 2.5


def regression(likelihood: Callable = dist.Normal) -> tr.Model:
    """y ~ N(a + w·x, 1): a scalar and a vector."""
    prior = {"a": dist.Normal(0.0, 2.0), "w": dist.Normal(jnp.zeros(2), 1.0).to_event(1)}
    return tr.Model(prior, lambda params, x: likelihood(params["a"] + x @ params["w"], 1.0))


def cook() -> tr.LatentModel:
    """Two moods that no one tells; sd known."""
    prior = {"good": dist.Beta(2.0, 2.0), "mean": dist.Normal(jnp.array([4.0, 7.0]), 2.0).to_event(1)}
    return tr.LatentModel(prior, lambda p: dist.Bernoulli(p["good"]), lambda p, z: dist.Normal(p["mean"][z], 1.0))


def hidden() -> tr.LatentModel:
    """z ~ N(μ, 1), x ~ N(z, 1): a z that can only be drawn."""
    return tr.LatentModel(
        {"mu": dist.Normal(5.0, 3.0)}, lambda p: dist.Normal(p["mu"], 1.0), lambda p, z: dist.Normal(z, 1.0)
    )


class Case(NamedTuple):
    """A method and what it learns."""

    model: tr.Model
    data: tuple[np.ndarray, ...]  # ``tr.Data``'s arguments
    method: tr.Method
    drawn_only: bool = False  # z can be drawn, not summed out

    @property
    def rows(self) -> tr.Data:
        return tr.Data(*self.data)


REGRESSION, RAISED = regression(), regression(Raised)  # shared, so that they are compiled once
MIXTURE, BAYESIAN = tr.models.gaussian_mixture(2, 2), tr.models.bayesian_gaussian_mixture(2, 2)
COOK, HIDDEN = cook(), hidden()
VAE, NET = tr.models.latent_gaussian(5, 2, hidden=(4,)), tr.models.sigmoid_belief_network(5, hidden=(3, 2))

EXACT = {"chains": 2, "draws": 45, "warmup": 60}
NOISY = {**EXACT, "thin": 2, "batch_size": 8}
CLIMB = {"draws": 45, "samples": 4, "steps": 400, "solver": "stochastic"}
DEEP = {"epochs": 30, "batch_size": 10}
ON_ROWS = {
    "mle": tr.MLE(),
    "map": tr.MAP(starts=2),
    "map adam": tr.MAP(optimizer="adam", steps=60),
    "map adam minibatch": tr.MAP(optimizer="adam", batch_size=8, steps=60),
    "rejection": tr.Rejection(chains=2, draws=45),
    "random-walk": tr.RandomWalk(**EXACT),
    "mala": tr.MALA(**EXACT, thin=2),
    "hmc": tr.HMC(**EXACT, leapfrogs=4),
    "nuts": tr.NUTS(**EXACT),
    "microcanonical": tr.Microcanonical(**EXACT),
    "microcanonical unadjusted": tr.Microcanonical(**EXACT, adjusted=False),
    "gibbs": tr.Gibbs(**EXACT),
    "sgld": tr.SGLD(**NOISY),
    "sgld constant": tr.SGLD(**NOISY, step_size=0.01, preconditioner="dense"),
    "sgld polynomial": tr.SGLD(**NOISY, step_size=tr.schedules.polynomial(0.1, 20.0)),
    "sgld rmsprop": tr.SGLD(**NOISY, preconditioner="rmsprop"),
    "sgld cycles": tr.SGLD(**NOISY, cycles=3),
    "sgld control variates": tr.SGLD(**NOISY, gradient="control_variates"),
    "sgld correct": tr.SGLD(**NOISY, step_size=0.005, correct=True),
    "sghmc": tr.SGHMC(**NOISY),
    "laplace": tr.Laplace(draws=45),
    "laplace diagonal": tr.Laplace(draws=45, structure="diagonal", optimizer="adam", steps=60),
    "meanfield": tr.MeanField(**CLIMB),
    "meanfield score": tr.MeanField(**CLIMB, gradient="score", control="fitted", start="random", starts=2),
    "meanfield forward": tr.MeanField(**CLIMB, divergence="forward", batch_size=8, tempering=(4.0,)),
    "fullrank": tr.FullRank(**CLIMB, gradient="path"),
    "lowrank": tr.LowRank(**CLIMB, rank=1),
    "bbb": tr.BayesByBackprop(draws=45, batch_size=8, epochs=80),
    "bbb geometric": tr.BayesByBackprop(draws=45, batch_size=8, epochs=80, kl_weights="geometric", start="map"),
    "ivon": tr.IVON(draws=45, batch_size=8, epochs=80),
    "ensemble": tr.DeepEnsemble(size=2, member=tr.MAP(starts=2)),
    "ensemble of chains": tr.DeepEnsemble(size=2, member=tr.SGLD(**NOISY, step_size=0.01)),
}
GLM = tr.models.linear.generalised_linear(2, "normal")
CASES = {
    "inla": Case(GLM, (Y, X), tr.INLA(draws=90)),
    **{name: Case(REGRESSION, (Y, X), method) for name, method in ON_ROWS.items()},
    "gibbs of allocations": Case(COOK, (RATINGS,), tr.Gibbs({"good": "exact", "mean": tr.MALA(thin=2)}, **EXACT)),
    "em": Case(MIXTURE, (POINTS,), tr.EM(starts=2, steps=30)),
    "em by gradient": Case(COOK, (RATINGS,), tr.EM(starts=2, steps=30)),
    "online-em": Case(MIXTURE, (POINTS,), tr.OnlineEM(batch_size=15, epochs=10)),
    "monte-carlo-em": Case(HIDDEN, (RATINGS,), tr.MonteCarloEM(draws=8, most=32, warmup=20, steps=10), True),
    "monte-carlo-em by values": Case(COOK, (RATINGS,), tr.MonteCarloEM(draws=8, most=32, steps=6, starts=1)),
    "cavi": Case(BAYESIAN, (POINTS,), tr.CoordinateAscent(starts=2, steps=30, draws=45)),
    "cavi minibatch": Case(BAYESIAN, (POINTS,), tr.CoordinateAscent(starts=1, batch_size=15, epochs=8, draws=45)),
    "autoencoding": Case(VAE, (PIXELS,), tr.AutoEncoding(**DEEP)),
    "importance-weighted": Case(VAE, (PIXELS,), tr.ImportanceWeighted(**DEEP)),
    "nvil": Case(NET, (PIXELS,), tr.NVIL(**DEEP)),
    "vimco": Case(NET, (PIXELS,), tr.VIMCO(**DEEP)),
    "wake-sleep": Case(NET, (PIXELS,), tr.WakeSleep(**DEEP)),
    "reweighted-wake-sleep": Case(NET, (PIXELS,), tr.ReweightedWakeSleep(**DEEP)),
}


def numbers(posterior: tr.Posterior) -> np.ndarray:
    """What was learnt, as one array."""
    return np.asarray(posterior.point if posterior.is_point else posterior.unconstrained)
