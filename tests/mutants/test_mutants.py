"""Formulas that circulate wrong, put in place of the right ones: a law that lets one live proves nothing.

Each mutant is a wrong factory or a patch of the right function, run through the same law with fewer draws.
"""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from laws import test_langevin as langevin_laws
from laws import test_metropolis as metropolis_laws
from laws import test_rejection as rejection_laws
from montecarlo import Scores, broken

from tractable import core
from tractable.core import Batch, Kernel, Model
from tractable.kernels import Proposal, langevin, mala, metropolis, rejection, sgld
from tractable.kernels.gradients import minibatch

COUNT = 20_000
module = importlib.import_module("tractable.kernels.metropolis")  # the package's name is the function


# Stochastic-gradient Langevin dynamics: wrong factories.


def drift_of_epsilon(log_posterior: Callable, step_size: float, **options: Any) -> Kernel:
    """θ' = θ + ε g + N(0, ε): half the temperature."""

    def twice(log_posterior: Callable) -> Callable:
        return lambda x, batch: jax.tree.map(lambda g: 2 * g, minibatch(log_posterior)(x, batch))

    return sgld(log_posterior, step_size, gradient=twice, **options)


def noise_of_two_epsilon(log_posterior: Callable, step_size: float, **options: Any) -> Kernel:
    """N(0, 2ε)."""
    return sgld(log_posterior, step_size, temperature=2.0, **options)


def sd_of_epsilon(log_posterior: Callable, step_size: float, **options: Any) -> Kernel:
    """N(0, ε²)."""
    return sgld(log_posterior, step_size, temperature=step_size, **options)


def sd_two_percent_large(log_posterior: Callable, step_size: float, **options: Any) -> Kernel:
    """1.02 N(0, ε)."""
    return sgld(log_posterior, step_size, temperature=1.02**2, **options)


# The posterior: wrong scales.


def scale_of(factor: Callable) -> Callable:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Batch, "scale", property(lambda b: factor(b.size, jnp.sum(b.mask))))

    return patch


def prior_times(factor: Callable) -> Callable:
    right = core.log_posterior

    def log_posterior(model: Model, **options: Any) -> Callable:
        def of(position: Any, batch: Batch) -> jax.Array:
            prior = right(model, **options)(position, None)
            share = factor(batch.size, jnp.sum(batch.mask))
            return right(model, **options)(position, batch) + (share - 1) * prior

        return of

    return lambda monkeypatch: monkeypatch.setattr(core, "log_posterior", log_posterior)


def log_determinant_times(factor: float) -> Callable:
    right = Model.log_jacobian

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Model, "log_jacobian", lambda *args: factor * right(*args))

    return patch


WRONG_POSTERIORS = {
    "N/n dropped": scale_of(lambda size, rows: 1.0),
    "likelihood + 5 %": scale_of(lambda size, rows: 1.05 * size / rows),
    "prior × n/N": prior_times(lambda size, rows: rows / size),
    "no prior": prior_times(lambda size, rows: 0.0),
}
WRONG_DETERMINANTS = {
    "log-determinant dropped": log_determinant_times(0.0),
    "its sign flipped": log_determinant_times(-1.0),
}


# Metropolis: wrong proposals, ratios and states.


def no_ratio(step_size: float, scale: Any = 1.0) -> Proposal:
    """α = π(θ')/π(θ), though the Langevin proposal is not symmetric."""
    return langevin(step_size, scale)._replace(log_ratio=None)


def inverted_ratio(step_size: float, scale: Any = 1.0) -> Proposal:
    """q(θ'|θ)/q(θ|θ')."""
    right = langevin(step_size, scale)
    return right._replace(log_ratio=lambda *args: -right.log_ratio(*args))


def half_variance(step_size: float, scale: Any = 1.0) -> Proposal:
    """Proposes with N(0, ε/2), corrects for N(0, ε)."""
    right = langevin(step_size, scale)
    return right._replace(draw=lambda *args: jax.tree.map(lambda z: z * 0.5**0.5, right.draw(*args)))


def stale_gradient(log_density: Callable, step_size: float) -> Kernel:
    """Once accepted, θ' is left with the gradient of θ."""
    right = mala(log_density, step_size)

    def step(noise: Any, state: Any, batch: Any = None) -> tuple[Any, Any]:
        new, info = right.step(noise, state, batch)
        return new._replace(gradient=state.gradient), info

    return Kernel(right.init, right.draw, step)


def with_proposal(make: Callable) -> Callable:
    return lambda log_density, step_size: metropolis(log_density, make(step_size))


def always_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unadjusted Langevin."""
    monkeypatch.setattr(module, "log_accept_ratio", lambda *_: jnp.full((), jnp.inf))


def never_mind_the_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "log_accept_ratio", lambda _, noise, a, b: jnp.sum(b.terms - a.terms))


# Rejection: wrong bounds.


def bound_too_low(sample: Callable, log_weight: Callable, log_bound: float) -> Kernel:
    """M = 0.7 sup w, and nobody looks."""
    low = log_bound + jnp.log(0.7)
    return rejection(sample, lambda x: jnp.minimum(log_weight(x), low), low)


def bound_ignored(sample: Callable, log_weight: Callable, log_bound: float) -> Kernel:
    """Everything is accepted: the prior."""
    return rejection(sample, lambda x: 0.0 * log_weight(x), 0.0)


def subsets() -> Scores:
    return langevin_laws.subsets(minibatch, 2)


def stationary(make: Callable = sgld) -> Scores:
    return langevin_laws.stationary(make, COUNT, langevin_laws.ARMS[::2])


def invariance(make: Callable = mala, step_size: float = 4.0, steps: int = 10) -> Scores:
    return metropolis_laws.invariance(make, step_size, steps, COUNT)


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


# name: (patch, law)
FACTORIES = {
    "drift ε: drift": (nothing, lambda: langevin_laws.drift(drift_of_epsilon)),
    "drift ε: stationary": (nothing, lambda: stationary(drift_of_epsilon)),
    "noise 2ε: diffusion": (nothing, lambda: langevin_laws.diffusion(noise_of_two_epsilon, 200_000)),
    "noise 2ε: stationary": (nothing, lambda: stationary(noise_of_two_epsilon)),
    "sd ε: diffusion": (nothing, lambda: langevin_laws.diffusion(sd_of_epsilon, 200_000)),
    "sd ε: stationary": (nothing, lambda: stationary(sd_of_epsilon)),
    "sd + 2 %: diffusion": (nothing, lambda: langevin_laws.diffusion(sd_two_percent_large, 200_000)),
    "no q ratio: antisymmetry": (nothing, lambda: metropolis_laws.antisymmetry(no_ratio, 0.7)),
    "no q ratio: invariance": (nothing, lambda: invariance(with_proposal(no_ratio))),
    "inverted ratio: antisymmetry": (nothing, lambda: metropolis_laws.antisymmetry(inverted_ratio, 0.7)),
    "inverted ratio: invariance": (nothing, lambda: invariance(with_proposal(inverted_ratio))),
    "half variance: invariance": (nothing, lambda: invariance(with_proposal(half_variance))),
    "stale gradient: invariance": (nothing, lambda: invariance(stale_gradient)),
    "always accepts: balance": (always_accepts, metropolis_laws.detailed_balance),
    "always accepts: invariance": (always_accepts, invariance),
    "symmetric: balance": (never_mind_the_proposal, metropolis_laws.detailed_balance),
    "bound too low": (nothing, lambda: rejection_laws.posterior(bound_too_low, 5, 2, COUNT)),
    "bound ignored": (nothing, lambda: rejection_laws.posterior(bound_ignored, 5, 2, COUNT)),
}
POSTERIORS = {
    f"{name}: {law.__name__}": (patch, law) for name, patch in WRONG_POSTERIORS.items() for law in (subsets, stationary)
}
DETERMINANTS = {
    f"{name}: {law_name}": (patch, law)
    for name, patch in WRONG_DETERMINANTS.items()
    for law_name, law in {
        "density": langevin_laws.coin_density,
        "subsets": subsets,
        "coin": lambda: langevin_laws.coin(COUNT),
    }.items()
}
MUTANTS = FACTORIES | POSTERIORS | DETERMINANTS
RIGHT = {
    "diffusion": lambda: langevin_laws.diffusion(sgld, 200_000),
    "stationary": stationary,
    "invariance": invariance,
    "rejection": lambda: rejection_laws.posterior(rejection, 5, 2, COUNT),
    "coin": lambda: langevin_laws.coin(COUNT),
}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MUTANTS if "stationary" in name]


@pytest.mark.parametrize("name", [*(name for name in MUTANTS if "stationary" not in name), *SLOW])
def test_mutant_is_killed(monkeypatch, name):
    """The law raises the alarm."""
    patch, law = MUTANTS[name]
    patch(monkeypatch)
    killers = broken(law())
    print(f"{name}: {killers}")
    assert killers, f"{name} lives"


@pytest.mark.parametrize("name", RIGHT)
def test_right_one_lives(name):
    """With as many replicates, and nothing wrong, it does not."""
    assert not broken(RIGHT[name]())
