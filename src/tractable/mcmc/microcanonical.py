"""The kernel of microcanonical Langevin Monte Carlo, whose particle has a constant speed.

Target: exactly π with an accept step (Robnik, Cohn-Gordon & Seljak 2025), and π with a bias of second order in the step
size without (Robnik, De Luca, Silverstein & Seljak 2023; Robnik & Seljak 2024).

With the inverse mass matrix L Lᵀ, a direction u on the unit sphere in d ≥ 2 dimensions, and the time of HMC,

    dθ = √(d − 1) L u dt,   du = (I − u uᵀ) Lᵀ∇log π(θ) / √(d − 1) dt.

A leapfrog step of size ε turns u for half a step, moves θ, and turns u again. A turn with a constant force of direction
e and strength δ adds u to e tanh δ as special relativity adds velocities. It shrinks areas on the sphere by
(cosh δ + e·u sinh δ)^(d − 1), whose logarithm counts as kinetic energy.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import noise, scaling
from tractable.core.errors import ModelError
from tractable.core.model import Kernel, PyTree
from tractable.mcmc.hamiltonian import DIVERGENT, Info, Point, kernel_on_vectors, point_at, root_of


class End(NamedTuple):
    """An end of a trajectory."""

    position: jax.Array  # (d,)
    direction: jax.Array  # (d,) u
    force: jax.Array  # (d,) Lᵀ∇log π


class Trajectory(NamedTuple):
    """A trajectory, and what the errors of its steps add up to."""

    end: End  # its newest end
    point: Point
    steps: jax.Array  # () leapfrog steps done
    error: jax.Array  # () sum of the energy errors
    squares: jax.Array  # () sum of their squares; an error counts as 1000 at most
    acceptance: jax.Array  # () sum of the acceptance probabilities of single steps


def microcanonical(
    log_density: Callable, step_size: float | jax.Array, inverse_mass: PyTree, length: float | int = 2.0,
    adjusted: bool = True, most: int = 1023,
) -> Kernel:  # fmt: skip
    """The kernel of microcanonical Langevin Monte Carlo.

    Each trajectory begins in a uniform direction. In the info, ``energy`` is the mean square of the energy errors of
    the trajectory's steps, divided by d.

    Args:
        log_density: ``position -> ()``, for positions that are vectors (d,) or pytrees of d ≥ 2 numbers.
        step_size: the leapfrog's step size, > 0, in the time of HMC.
        inverse_mass: (d,) or (d, d); ideally the posterior variances or covariance. A ``scaling.LowRank`` is its root.
        length: the mean time of a trajectory. Times are uniform between 0 and twice this number, so that no trajectory
            returns to its start on a target whose period is the trajectory's length.
        adjusted: accept or reject the end of a trajectory. If False, every end is accepted unless it diverged, and
            each step refreshes a part of the direction, so that the direction is forgotten within ``length``.
        most: largest number of leapfrog steps of a trajectory.
    """
    root = root_of(inverse_mass)

    def draw(key: jax.Array, count: int, state: Point) -> tuple:
        key_direction, key_accept, key_time, key_steps = jax.random.split(key, 4)
        directions = noise.normal(key_direction, (count, *state.position.shape), state.position.dtype)
        accept = noise.log_uniform(key_accept, (count,), state.log_density.dtype)
        times = jax.random.uniform(key_time, (count,), state.log_density.dtype, maxval=2 * length)
        return directions, accept, times, jax.random.split(key_steps, count)

    def step(random: tuple, state: Point, evaluate: Callable) -> tuple[Point, Info]:
        normal, log_u, time, key = random
        if (size := normal.size) < 2:
            raise ModelError("Microcanonical dynamics has no directions to choose from in one dimension. Use NUTS().")
        wanted = jnp.clip(jnp.ceil(time / step_size), 1, most)
        zero = jnp.zeros_like(state.log_density)
        share = jnp.sqrt(jnp.expm1(2 * step_size / length) / size)

        def leap(now: Trajectory) -> Trajectory:
            end, point, error = leapfrog(evaluate, root, step_size, now.end, now.point)
            error = jnp.where(jnp.isfinite(error), error, jnp.inf)
            if not adjusted:
                fresh = noise.normal(jax.random.fold_in(key, now.steps), normal.shape, normal.dtype)
                end = end._replace(direction=_unit(end.direction + share * fresh))
            return Trajectory(
                end, point, now.steps + 1, now.error + error, now.squares + jnp.minimum(error, DIVERGENT) ** 2,
                now.acceptance + jnp.exp(jnp.minimum(-error, 0)),
            )  # fmt: skip

        first = End(state.position, _unit(normal), scaling.transpose_multiply(root, state.gradient))
        begin = Trajectory(first, state, jnp.array(0), zero, zero, zero)
        last = jax.lax.while_loop(lambda now: (now.steps < wanted) & (now.error < DIVERGENT), leap, begin)
        divergent, steps = ~(last.error < DIVERGENT), last.steps.astype(zero.dtype)
        accepted = log_u < -last.error if adjusted else ~divergent
        state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), last.point, state)
        acceptance = jnp.exp(jnp.minimum(-last.error, 0)) if adjusted else last.acceptance / steps
        saturated = (wanted >= most).astype(zero.dtype)
        energy = last.squares / (steps * size)
        return state, Info(acceptance, divergent.astype(zero.dtype), energy, steps, saturated)

    return kernel_on_vectors(log_density, draw, step)


def leapfrog(
    evaluate: Callable, root: PyTree, step_size: float | jax.Array, end: End, point: Point
) -> tuple[End, Point, jax.Array]:
    """The end of a trajectory one step later, the point there, and the step's energy error.

    The step maps (θ, u) to (θ', u') in a way that can be reversed, and the error is −log of π(θ')/π(θ) times the factor
    by which the step changes volumes.
    """
    direction, first = turn(end.direction, end.force, 0.5 * step_size)
    velocity = jnp.sqrt(direction.size - 1.0) * scaling.multiply(root, direction)
    reached = point_at(evaluate, end.position + step_size * velocity)
    force = scaling.transpose_multiply(root, reached.gradient)
    direction, second = turn(direction, force, 0.5 * step_size)
    error = point.log_density - reached.log_density + first + second
    return End(reached.position, direction, force), reached, error


def turn(direction: jax.Array, force: jax.Array, time: float | jax.Array) -> tuple[jax.Array, jax.Array]:
    """The direction after a constant force acted for some time, and the kinetic energy that it gained.

    tanh and the logarithm of cosh stay finite for any force that is.
    """
    size, norm = direction.size, jnp.linalg.norm(force)
    unit = force / jnp.where(norm > 0, norm, 1)
    strength = time * norm / jnp.sqrt(size - 1.0)
    along, speed = direction @ unit, jnp.tanh(strength)
    across = (direction - along * unit) / jnp.cosh(strength)
    log_cosh = jnp.logaddexp(strength, -strength) - jnp.log(2.0)
    return _unit(across + (along + speed) * unit), (size - 1) * (log_cosh + jnp.log1p(along * speed))


def variance_ratios(step_size: float, curvatures: np.ndarray) -> np.ndarray:
    """The stationary variances of the unadjusted kernel on a normal target, divided by the target's, up to order ε².

        1 + ε² (λ_i/12 + d/(d + 2) (λ_i − λ̄)/6)

    Args:
        step_size: ε.
        curvatures: λ (d,), the inverse variances along the eigenvectors in the coordinates L⁻¹θ; λ̄ is their mean.
    """
    share = len(curvatures) / (len(curvatures) + 2)
    return 1 + step_size**2 * (curvatures / 12 + share * (curvatures - curvatures.mean()) / 6)


def _unit(vector: jax.Array) -> jax.Array:
    return vector / jnp.linalg.norm(vector)
