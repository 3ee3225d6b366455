"""Formulas that circulate wrong, put in place of the right ones: a law that lets one live proves nothing.

A mutant is a number, which a law's one program takes as an argument, or else a wrong factory or a patch of the right
function, run through the same law with fewer draws.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mcmc import test_metropolis as metropolis_laws
from mcmc import test_rejection as rejection_laws
from montecarlo import Scores, broken
from sgmcmc import test_langevin as langevin_laws

from tractable.core import model as core
from tractable.core.model import Batch, Kernel, Model
from tractable.kernels import Proposal, langevin, mala, metropolis, rejection, sgld
from tractable.sgmcmc.gradients import minibatch

pytestmark = pytest.mark.laws

COUNT = 20_000
module = importlib.import_module("tractable.mcmc.metropolis")  # the package's name is the function


# Stochastic-gradient Langevin dynamics and its posterior: wrong numbers, all of them arguments of one program a law.


class Fault(NamedTuple):
    """What a right formula is multiplied by, as arrays with an entry for each mutant."""

    drift: Any = 1.0  # (ε/2) ∇log p
    noise: Any = 1.0  # ε, the variance
    noise_by_step: Any = 0.0  # its power of ε: N(0, ε²) has 1
    likelihood: Any = 1.0  # N/n Σ log p(y|θ)
    likelihood_by_rows: Any = 0.0  # its power of n/N: N/n dropped has 1
    prior: Any = 1.0
    prior_by_rows: Any = 0.0
    determinant: Any = 1.0


FAULTS = {
    "right": Fault(),
    "drift ε": Fault(drift=2.0),  # θ' = θ + ε g + N(0, ε): half the temperature
    "noise 2ε": Fault(noise=2.0),
    "sd ε": Fault(noise_by_step=1.0),
    "sd + 2 %": Fault(noise=1.02**2),
    "N/n dropped": Fault(likelihood_by_rows=1.0),
    "likelihood + 5 %": Fault(likelihood=1.05),
    "prior × n/N": Fault(prior_by_rows=1.0),
    "no prior": Fault(prior=0.0),
    "log-determinant dropped": Fault(determinant=0.0),
    "its sign flipped": Fault(determinant=-1.0),
}
OF_SGLD = ("drift ε", "noise 2ε", "sd ε", "sd + 2 %")
OF_POSTERIOR = ("N/n dropped", "likelihood + 5 %", "prior × n/N", "no prior")
OF_DETERMINANT = ("log-determinant dropped", "its sign flipped")


@contextmanager
def faulty(fault: Fault) -> Iterator[Callable]:
    """While a program is traced: the library with these factors, and a factory of SGLD with them."""
    scale, determinant, posterior = Batch.scale.fget, Model.log_jacobian, core.log_posterior

    def log_posterior(model: Model, **options: Any) -> Callable:
        def of(position: Any, batch: Batch) -> jax.Array:
            prior = posterior(model, **options)(position, None)
            factor = fault.prior * (jnp.sum(batch.mask) / batch.size) ** fault.prior_by_rows
            return posterior(model, **options)(position, batch) + (factor - 1) * prior

        return of

    def wrong_scale(batch: Batch) -> jax.Array:
        share = jnp.sum(batch.mask) / batch.size
        return fault.likelihood * share**fault.likelihood_by_rows * scale(batch)

    def make(log_posterior: Callable, step_size: float, **options: Any) -> Kernel:
        def estimate(log_posterior: Callable) -> Callable:
            slope = minibatch(log_posterior)
            return lambda x, batch: jax.tree.map(lambda g: fault.drift * g, slope(x, batch))

        heat = fault.noise * step_size**fault.noise_by_step
        return sgld(log_posterior, step_size, temperature=heat, gradient=estimate, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "scale", property(wrong_scale))
        patch.setattr(Model, "log_jacobian", lambda *args: fault.determinant * determinant(*args))
        patch.setattr(core, "log_posterior", log_posterior)
        yield make


def of_each(program: Callable, names: tuple[str, ...]) -> dict[str, Any]:
    """What ``program(make)`` gives under each fault, computed at once."""
    faults = jax.tree.map(lambda *numbers: jnp.array(numbers), *(FAULTS[name] for name in names))

    def under(fault: Fault) -> Any:
        with faulty(fault) as make:
            return program(make)

    found = jax.jit(jax.vmap(under))(faults)
    return {name: jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), found) for i, name in enumerate(names)}


ARMS = langevin_laws.ARMS[::2]
# law: (its program, its scores, what it must tell from the right one)
LAWS: dict[str, tuple[Callable, Callable[[Any], Scores], tuple[str, ...]]] = {
    "drift": (langevin_laws.drift_steps, langevin_laws.drift_scores, OF_SGLD[:1]),
    "diffusion": (
        lambda make: langevin_laws.diffusion_draws(make, 200_000), langevin_laws.diffusion_scores, OF_SGLD[1:],
    ),
    "stationary": (
        lambda make: [langevin_laws.stationary_ends(make, COUNT, i, arm) for i, arm in enumerate(ARMS)],
        lambda ends: langevin_laws.stationary_scores(ends, ARMS),
        (*OF_SGLD[:3], *OF_POSTERIOR),
    ),
    "subsets": (
        lambda make: langevin_laws.subset_slopes(minibatch, 2), langevin_laws.subset_scores,
        (*OF_POSTERIOR, *OF_DETERMINANT),
    ),
    "coin": (lambda make: langevin_laws.coin_ends(make, COUNT), langevin_laws.coin_scores, OF_DETERMINANT),
    "density": (
        lambda make: langevin_laws.coin_density_values(), langevin_laws.coin_density_scores, OF_DETERMINANT,
    ),
}  # fmt: skip


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


def invariance(make: Callable = mala, step_size: float = 4.0, steps: int = 10) -> Scores:
    return metropolis_laws.invariance(make, step_size, steps, COUNT)


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


# name: (patch, law)
MUTANTS = {
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
RIGHT = {"invariance": invariance, "rejection": lambda: rejection_laws.posterior(rejection, 5, 2, COUNT)}


@pytest.mark.test
@pytest.mark.parametrize("law", LAWS)
def test_wrong_numbers_are_caught(law):
    """The law raises the alarm at each of them, and with as many draws not at the right ones."""
    program, score, names = LAWS[law]
    killers = {name: broken(score(found)) for name, found in of_each(program, ("right", *names)).items()}
    print(killers)
    assert not killers.pop("right")
    assert not [name for name, alarms in killers.items() if not alarms], "these live"


@pytest.mark.parametrize("name", MUTANTS)
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
