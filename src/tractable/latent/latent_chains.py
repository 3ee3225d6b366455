"""Markov chains of each datum's z given its x, which go on from E-step to E-step.

Every datum has several chains. Of a chain's state, an E-step hands only the position to the next E-step, because log
densities and gradients depend on θ and are recomputed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.model import Kernel, PyTree
from tractable.latent.latent_draws import (
    Chains,
    DrawInfo,
    Draws,
    Sampler,
    count_rows,
    empty_draws,
    map_chains,
    unbounded_info,
    write,
)
from tractable.latent.latent_space import LatentSpace, latent_space
from tractable.mcmc.hamiltonian import hmc, nuts
from tractable.mcmc.mala import mala
from tractable.mcmc.random_walk import random_walk

# Target acceptance rates of the kernels, for z in one dimension and in more. In one dimension MALA's standard rate,
# 0.574, would need a step ε of 3.4 variances of z. From 4 variances on, a chain in a tail overshoots the bulk for ever.
# As the sd of one datum's z is known only to about 25 %, a step that is meant to be 3.4 variances may be above 4.
TARGET_RATES = {"mala": (0.8, 0.574), "random-walk": (0.44, 0.3), "hmc": (0.8, 0.8), "nuts": (0.8, 0.8)}
LEAPFROGS = 5  # leapfrog steps of a move of HMC
DEPTH = 6  # largest depth of NUTS's trees
CANDIDATES = 32  # number of draws of p(z | θ) from which a chain's starting point is chosen
SHAPE, STEP = 1, 2  # what a warm-up tunes: ε and the scales of the moves, or ε alone
FORGETTING = 0.6  # κ of the Robbins–Monro steps t^−κ in log ε


def by_chains(kernel: str | Callable, latent: Callable, log_joint: Callable, chains: int) -> Sampler:
    """A sampler by Markov chains that go on from E-step to E-step.

    Args:
        kernel: "mala", "random-walk", "hmc", "nuts", or ``log_density -> Kernel`` on flat unconstrained z.
        latent, log_joint: as for ``latent_space``.
        chains: C ≥ 2 chains per datum.
    """
    sampler = ChainSampler(kernel, latent, log_joint, chains)
    return Sampler(sampler.begin, sampler.room, sampler.draw, exact=False)


class ChainSampler(NamedTuple):
    """Several chains of z for each datum."""

    kernel: str | Callable
    latent: Callable
    log_joint: Callable
    chains: int  # C

    def space(self, theta: PyTree, rows: PyTree) -> LatentSpace:
        return latent_space(self.latent, self.log_joint, theta, jax.tree.map(lambda a: a[0], rows))

    def begin(self, key: jax.Array, theta: PyTree, rows: PyTree) -> Chains:
        """Chains that start at draws of p(z | θ), each chosen from ``CANDIDATES`` in proportion to its likelihood.

        A chain that started in a tail might never reach the bulk of p(z | x, θ).
        """
        space, count = self.space(theta, rows), count_rows(rows)

        def one(datum: PyTree, key: jax.Array) -> jax.Array:
            key_sample, key_choice = jax.random.split(key)
            candidates = jax.vmap(lambda k: space.sample(k, theta, datum))(jax.random.split(key_sample, CANDIDATES))
            weights = jax.vmap(lambda u: space.log_weight(theta, datum, u))(candidates)
            weights = jnp.where(jnp.isnan(weights), -jnp.inf, weights)
            return candidates[jax.random.categorical(key_choice, weights)]

        position = map_chains(one)(rows, jax.random.split(key, (count, self.chains)))
        dtype = position.dtype
        step = {"mala": 1.5, "random-walk": 2.0}.get(str(self.kernel), 0.5)
        log_step, scale = jnp.log(jnp.asarray(step, dtype)), jnp.ones((count, space.size), dtype)
        return Chains(position, log_step, scale, jnp.zeros((), dtype))

    def room(self, theta: PyTree, rows: PyTree, most: int) -> Draws:
        """An empty buffer with room for ``most`` draws of every chain."""
        space = self.space(theta, rows)
        shape = jax.eval_shape(lambda: self.begin(jax.random.key(0), theta, rows).position)
        z = jax.eval_shape(map_chains(lambda datum, u: space.constrain(theta, datum, u)), rows, shape)
        return empty_draws(z, most)

    def draw(
        self, key: jax.Array, theta: PyTree, chains: Chains, rows: PyTree, draws: Draws, count: jax.Array | int,
        burn: jax.Array | int, tune: jax.Array | int,
    ) -> tuple[Chains, Draws, DrawInfo]:  # fmt: skip
        """``count`` more draws of every chain; see ``Sampler.draw``."""
        space, places, dtype = self.space(theta, rows), (rows, chains.scale), chains.position.dtype
        origin = jnp.mean(chains.position, axis=1, keepdims=True)  # (n, 1, k)

        def kernel(place: tuple, log_step: jax.Array) -> Kernel:
            datum, scale = place
            return self.make_kernel(lambda u: space.log_density(theta, datum, u), jnp.exp(log_step), scale)

        def init(place: tuple, u: jax.Array) -> Any:
            # A chain goes on from its position; the log density and its gradient are computed at this θ.
            return kernel(place, chains.log_step).init(key, u)

        def step(t: jax.Array, run: Run) -> Run:
            keys = jax.random.split(jax.random.fold_in(key, t), (count_rows(rows), self.chains))

            def move(place: tuple, moving: tuple) -> tuple:
                key, state = moving
                state, info = kernel(place, run.log_step)(key, state, None)
                return state, jnp.asarray(getattr(info, "acceptance", jnp.nan), dtype)

            states, acceptance = map_chains(move)(places, (keys, run.states))
            rate = jnp.mean(acceptance)
            # At a new θ the old ε may be many times too large. Then no chain would move, and neither would θ.
            adapts = (tune > 0) | (t < burn)
            log_step = jnp.where(adapts, self.adapt_step(space, run.log_step, t + 1.0, rate), run.log_step)
            values = map_chains(lambda datum, u: space.constrain(theta, datum, u))(rows, states.position)
            z = write(run.z, values, draws.length + t - burn, (t >= burn) & (tune == 0))
            deviation = jnp.where(t >= burn, states.position - origin, 0)
            first, second = run.first + deviation, run.second + jnp.square(deviation)
            return Run(states, log_step.astype(dtype), z, run.rates + rate, first, second)

        total, zero = burn + count, jnp.zeros_like(chains.position)
        states = map_chains(init)(places, chains.position)
        start = Run(states, chains.log_step, draws.z, jnp.zeros((), dtype), zero, zero)
        run = jax.lax.fori_loop(0, total, step, start)
        rate = run.rates / jnp.maximum(total, 1)
        log_step = jnp.where(tune > 0, run.log_step, self.adapt_step(space, run.log_step, chains.time + 2.0, rate))
        scale = jnp.where(tune == SHAPE, proportions(run, count), chains.scale)
        time = chains.time + jnp.where(tune > 0, 0, 1).astype(dtype)
        length = draws.length + jnp.where(tune > 0, 0, count)
        end = Chains(run.states.position, log_step.astype(dtype), scale, time)
        return end, Draws(run.z, length), unbounded_info(rate, rows)

    def make_kernel(self, log_density: Callable, step: jax.Array, scale: jax.Array) -> Kernel:
        """The named kernel for one datum's z, (k,), or the user's own ``kernel(log_density)``."""
        if callable(self.kernel):
            return self.kernel(log_density)
        if self.kernel == "mala":
            return mala(log_density, step, scale)
        if self.kernel == "random-walk":
            return random_walk(log_density, step, scale)
        if self.kernel == "hmc":
            return hmc(log_density, step, jnp.square(scale), LEAPFROGS)
        return nuts(log_density, step, jnp.square(scale), DEPTH)

    def adapt_step(self, space: LatentSpace, log_step: jax.Array, time: jax.Array, rate: jax.Array) -> jax.Array:
        """log ε after a Robbins–Monro step towards the target acceptance rate; unchanged for a user's own kernel."""
        if callable(self.kernel):
            return log_step
        return log_step + time**-FORGETTING * (rate - TARGET_RATES[self.kernel][space.size > 1])


class Run(NamedTuple):
    """The state of the chains within one E-step."""

    states: Any  # of the kernel, (n, C, ...)
    log_step: jax.Array  # () log ε
    z: PyTree  # (room, n, C, ...) draws so far
    rates: jax.Array  # () Σ_t acceptance
    first: jax.Array  # (n, C, k) Σ_t u, where u is relative to the chains' mean at the start
    second: jax.Array  # (n, C, k) Σ_t u²


def proportions(run: Run, count: jax.Array | int) -> jax.Array:
    """The sds of z over ``count`` steps, (n, k), divided by their geometric mean, since ε has their common size.

    Each sd is taken over all chains of a datum: one chain alone would underestimate it in a direction in which its
    steps are too short.
    """
    first, second = (jnp.mean(total, axis=1) / jnp.maximum(count, 1) for total in (run.first, run.second))
    variance = second - jnp.square(first)
    is_known = jnp.isfinite(variance) & (variance > 0)
    logs = 0.5 * jnp.log(jnp.where(is_known, variance, 1))
    return jnp.exp(logs - jnp.mean(logs))
