"""NUTS with the warm-ups of other libraries, on the log density of a Problem.

A run is a function of a seed. It returns draws (chain, draw, d) and the number of gradients, those of the warm-up
included. All runs have 4 chains with 1,000 steps of warm-up and 1,000 draws, from the starting points that our chains
would have.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from posteriordb_models import Problem

import tractable as tr
from tractable.engine.drawing import starts

CHAINS, STEPS = 4, 1000
TARGET = 0.8  # acceptance probability of all warm-ups
Run = Callable[[int], tuple[np.ndarray, float]]


def flat_density(problem: Problem) -> Callable[[jax.Array], jax.Array]:
    rows = None if problem.data is None else problem.data.arrays()
    return tr.log_density(problem.model, rows, flat=True)


def first_points(problem: Problem, seed: int) -> jax.Array:
    return starts(problem.model, problem.data, jax.random.key(seed), CHAINS)


def stan(problem: Problem) -> Run:
    """Stan's windowed warm-up by BlackJAX; its mass matrix is dense for the posteriors for which ours is."""
    import blackjax

    density = flat_density(problem)

    def chain(key: jax.Array, start: jax.Array) -> tuple:
        warm, run = jax.random.split(key)
        adaptation = blackjax.window_adaptation(
            blackjax.nuts, density, is_mass_matrix_diagonal=not problem.nuts.get("dense", False),
            target_acceptance_rate=TARGET, adaptation_info_fn=lambda state, info, _: info.num_integration_steps,
        )  # fmt: skip
        (state, parameters), spent = adaptation.run(warm, start, num_steps=STEPS)
        step = blackjax.nuts(density, **parameters).step

        def once(state: Any, key: jax.Array) -> tuple:
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        positions, more = jax.lax.scan(once, state, jax.random.split(run, STEPS))[1]
        return positions, spent.sum() + more.sum()

    chains = jax.jit(jax.vmap(chain))

    def run(seed: int) -> tuple[np.ndarray, float]:
        keys = jax.random.split(jax.random.key(seed + 1), CHAINS)
        positions, gradients = chains(keys, first_points(problem, seed))
        return np.asarray(positions), float(gradients.sum())

    return run


def nutpie(problem: Problem, low_rank: bool = False) -> Run:
    """The warm-up of nutpie, with its diagonal or its low-rank mass matrix."""
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    size, density = problem.model.space.size, jax.value_and_grad(flat_density(problem))
    value_and_gradient = jax.jit(lambda position: jnp.append(*density(position)))  # one array takes less time than two

    def evaluate(position: np.ndarray) -> tuple[float, np.ndarray]:
        both = np.asarray(value_and_gradient(position))
        return float(both[0]), both[1:]

    def run(seed: int) -> tuple[np.ndarray, float]:
        points = itertools.cycle(np.asarray(first_points(problem, seed)))
        model = from_pyfunc(
            size, lambda: evaluate, lambda *seeds: lambda position: {"x": position}, ["float64"], [(size,)], ["x"],
            make_initial_point_fn=lambda seed: next(points),
        )  # fmt: skip
        trace = nutpie.sample(
            model, draws=STEPS, tune=STEPS, chains=CHAINS, cores=1, seed=seed, progress_bar=False, save_warmup=True,
            target_accept=TARGET, low_rank_modified_mass_matrix=low_rank,
        )  # fmt: skip
        gradients = trace.warmup_sample_stats.n_steps.sum() + trace.sample_stats.n_steps.sum()
        return trace.posterior.x.values, float(gradients)

    return run
