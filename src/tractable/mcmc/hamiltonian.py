"""Kernels of Hamiltonian Monte Carlo and of the No-U-Turn sampler, which wrap BlackJAX's.

Target: exactly π. Duane et al. 1987, Neal 2011; Hoffman & Gelman 2014. They are the first choice if gradients on all
rows are affordable. No other file imports BlackJAX.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.model import Batch, Kernel, PyTree


class Info(NamedTuple):
    """The trace of one trajectory."""

    acceptance: jax.Array  # () mean acceptance probability over the trajectory
    divergent: jax.Array  # () 1 if the energy error exceeded 1000, otherwise 0
    energy: jax.Array  # () energy of the new state
    gradients: jax.Array  # () number of leapfrog steps
    saturated: jax.Array  # () 1 if the tree reached its largest depth, otherwise 0


def hmc(
    log_density: Callable, step_size: float | jax.Array, inverse_mass: jax.Array, leapfrogs: int = 10,
    jitter: float | int = 0,
) -> Kernel:  # fmt: skip
    """The kernel of HMC with a fixed number of leapfrog steps.

    Args:
        log_density: ``position -> ()``.
        step_size: the leapfrog's step size, > 0. It is not Langevin's ε: one leapfrog step of size s is MALA with
            ε = s².
        inverse_mass: (d,) or (d, d); ideally the posterior variances or covariance.
        leapfrogs: the number of steps in a trajectory, ≥ 1.
        jitter: in [0, 1); the step size of each trajectory is uniform within this share of ``step_size``. Without
            jitter, a trajectory returns to its start on a target whose period is the trajectory's length (Neal 2011,
            section 3.2).
    """
    import blackjax

    kernel = blackjax.hmc.build_kernel()

    def step(key: jax.Array, state: PyTree, batch: Batch | None = None) -> tuple[Any, Info]:
        size = step_size
        if jitter:
            key, key_size = jax.random.split(key)
            size = step_size * jax.random.uniform(key_size, (), minval=1 - jitter, maxval=1 + jitter)
        state, info = kernel(key, state, log_density, size, inverse_mass, leapfrogs)
        zero = jnp.zeros_like(info.energy)
        divergent = info.is_divergent.astype(zero.dtype)
        return state, Info(info.acceptance_rate, divergent, info.energy, zero + leapfrogs, zero)

    return _kernel(blackjax.hmc.init, step, log_density)


def nuts(log_density: Callable, step_size: float | jax.Array, inverse_mass: jax.Array, max_depth: int = 10) -> Kernel:
    """The kernel of the No-U-Turn sampler with multinomial trajectories.

    Args:
        log_density: ``position -> ()``.
        step_size: the leapfrog's step size, > 0.
        inverse_mass: (d,) or (d, d); ideally the posterior variances or covariance.
        max_depth: largest number of doublings of the trajectory; a draw takes at most 2^max_depth − 1 gradients.
    """
    import blackjax

    kernel = blackjax.nuts.build_kernel()

    def step(key: jax.Array, state: PyTree, batch: Batch | None = None) -> tuple[Any, Info]:
        state, info = kernel(key, state, log_density, step_size, inverse_mass, max_depth)
        kind = info.energy.dtype
        return state, Info(
            info.acceptance_rate.astype(kind),
            info.is_divergent.astype(kind),
            info.energy,
            info.num_integration_steps.astype(kind),
            (info.num_trajectory_expansions >= max_depth).astype(kind),
        )

    return _kernel(blackjax.nuts.init, step, log_density)


def _kernel(start: Callable, step: Callable, log_density: Callable) -> Kernel:
    def draw(key: jax.Array, count: int, state: PyTree, batch: Batch | None = None) -> jax.Array:
        return jax.random.split(key, count)  # the noise is a key, since the length of a trajectory is not known yet

    return Kernel(lambda key, position: start(position, log_density), draw, step)


class Adaptation(NamedTuple):
    """Settings of a warm-up."""

    algorithm: str  # "hmc" or "nuts"
    length: int  # number of leapfrog steps of HMC, or largest number of doublings of NUTS
    steps: int  # number of warm-up steps
    target: float  # the mean acceptance probability to reach
    dense: bool  # adapt a full mass matrix instead of a diagonal one


def warm_up(
    settings: Adaptation, log_density: Callable, key: jax.Array, position: PyTree, first: tuple[jax.Array, jax.Array]
) -> tuple[PyTree, jax.Array, jax.Array]:
    """Run Stan's windowed warm-up of one chain, and return its position, step size and inverse mass matrix.

    ``first`` is the step size and the inverse mass matrix of the first step. Each chain gets its own copy. If chains
    shared these arrays, ``vmap`` would trace the warm-up twice, since they differ between chains from the second step
    on.
    """
    import blackjax

    length: Any = {"num_integration_steps" if settings.algorithm == "hmc" else "max_num_doublings": settings.length}
    adaptation: Any = blackjax.window_adaptation(
        getattr(blackjax, settings.algorithm),
        log_density,
        is_mass_matrix_diagonal=not settings.dense,
        target_acceptance_rate=settings.target,
        adaptation_info_fn=lambda *_: (),
        initial_step_size=first[0],  # pyright: ignore[reportArgumentType]
        initial_inverse_mass_matrix=first[1],
        **length,
    )
    (state, parameters), _ = adaptation.run(key, position, settings.steps)
    return state.position, parameters["step_size"], parameters["inverse_mass_matrix"]
