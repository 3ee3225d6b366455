"""Annealed importance sampling from base to target and back, and the pilot run that chooses its temperatures.

Both work for one target, and for many targets (one for each row) at once.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.check import Check
from tractable.core.errors import RunError
from tractable.core.model import Kernel, PyTree
from tractable.diagnostics.weights import shares
from tractable.evidence.annealed import annealed, next_beta
from tractable.evidence.settings import Annealing
from tractable.evidence.targets import Target, Targets
from tractable.evidence.weights import Watch, base_draws, finite_weights
from tractable.mcmc.mala import mala
from tractable.mcmc.metropolis_methods import DENSE
from tractable.mcmc.random_walk import random_walk

STAGES = 500  # maximum number of stages of the pilot
ROUNDS = 4  # number of rounds of step-size adaptation in a stage
MOVES = 5  # number of transitions in a round
CHOSEN = (200, 10_000)  # minimum and maximum number of temperatures, if the user does not give it
AIMED = {"mala": 0.574, "random-walk": 0.3}  # target acceptance probability of each kernel


class TemperatureLadder(NamedTuple):
    """Temperatures and kernel settings that a pilot run chose with its own particles.

    They are fixed before any weight is computed, so that the weights stay unbiased.
    """

    betas: jax.Array  # (T + 1,) inverse temperatures
    stage: jax.Array  # (T + 1,) the pilot's stage of each temperature, 0..K−1
    step_sizes: jax.Array  # (K,)
    scales: jax.Array  # (K, d, d) roots of covariances, or (K, d) sds


def both_ways(
    targets: Targets, settings: Annealing, ladder: TemperatureLadder, keys: tuple[jax.Array, jax.Array],
    exact: Callable[[], PyTree] | None, watch: Watch,
) -> tuple[np.ndarray, np.ndarray | None, list[Check]]:  # fmt: skip
    """Runs chains forwards from the base, and backwards from exact draws of the target.

    See Neal 2001, and Grosse, Ghahramani & Adams 2015.

    Args:
        targets: one target or many.
        settings: the method's settings.
        ladder: the temperatures.
        keys: keys of the forward and the backward run.
        exact: a function that returns the exact draws, called after the forward run; it returns None if it was
            interrupted. ``exact`` is None if there is no backward run.
        watch: reports progress, and says when to stop.

    Returns:
        (N, S) log weights forwards, (N, S) log weights backwards (None without a backward run), and checks of the run.
    """
    static = {"kind": settings.kernel, "chains": settings.chains, "transitions": settings.transitions}
    runs = functools.partial(targets.ran, run, ladder, **static)
    watch.go("forward")
    forward, _, acceptance = runs(keys[0])
    log_weights = finite_weights(targets, forward)
    watch.say("forward", 1, 1)
    exact_draws, back = None if exact is None or watch.stop() else exact(), None
    if exact_draws is not None:
        watch.say("backward", 0, 1)
        back = np.atleast_2d(np.asarray(runs(keys[1], exact_draws)[0], np.float64))
        watch.say("backward", 1, 1)
    stages = f", in {len(ladder.scales)} stages of the pilot" if len(ladder.scales) < len(ladder.betas) - 1 else ""
    variance, smallest = float(log_weights.var(1).mean()), float(np.min(acceptance))
    sentence = f"steps between base and target{stages}; the variance of log w is {variance:.2g}"
    checks = [
        Check("temperatures", len(ladder.betas) - 1, "trust", sentence),
        Check("acceptance", smallest, "trust" if smallest >= 0.1 else "caution",
              "smallest mean acceptance over temperatures; weights are poor if chains seldom move"),
    ]  # fmt: skip
    if exact is not None and back is None:
        checks.append(Check("interrupted", 1, "caution", "phase was left out by the stop: the backward run"))
    return log_weights, back, checks


@functools.partial(jax.jit, static_argnames=("kind", "chains", "transitions"))
def run(
    targets: Targets, ladder: TemperatureLadder, key: jax.Array, places: jax.Array | None = None, *, kind: str,
    chains: int, transitions: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Runs chains forwards from the base, or backwards from unconstrained ``places`` (N, S, d) if they are given.

    Returns:
        Log weights (N, S), end points (N, S, d) and the mean acceptance at each temperature (T,). For one target, the
        arrays have no axis N.
    """

    def kernel_of(density: Callable, t: jax.Array) -> Kernel:
        stage = ladder.stage[t]
        make = mala if kind == "mala" else random_walk
        return make(density, ladder.step_sizes[stage], ladder.scales[stage])

    def chain(target: Target, key: jax.Array, place: jax.Array | None) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        start_key, key = jax.random.split(key)
        start = target.flat(target.sample(start_key)) if place is None else place
        result = annealed(
            key, start, target.log_base, target.log_ratio, kernel_of, ladder.betas, transitions=transitions,
            backwards=place is not None,
        )  # fmt: skip
        return (result.log_weight, result.position), result.info.acceptance

    (log_weights, ends), acceptance = targets.over(chain, key, chains, places, each=True)
    return log_weights, ends, acceptance


def pilot(targets: Targets, settings: Annealing, key: jax.Array, watch: Watch) -> TemperatureLadder:
    """Chooses temperatures, step sizes and covariances by a sequential Monte Carlo run (Del Moral et al. 2006).

    Particles move from the base to the target in stages. Each stage raises β until the effective number of particles
    falls to half, and resamples the particles. Then it moves them, while the step size adapts to the target acceptance
    probability. Temperatures are finally spaced evenly within the stages.

    If there are many targets, only some of them get particles, and all targets share one ladder. At each stage the
    smallest of these targets' next β is then taken.
    """
    count = settings.pilot
    if targets.many:
        targets, count = targets.some(max(1, settings.pilot // settings.chains)), settings.chains
    places, ratios = targets.ran(base_draws, jax.random.fold_in(key, 0), count=count)
    # The first step size is optimal for a standard normal target (Roberts & Rosenthal 2001).
    size, dtype = places.shape[-1], jnp.result_type(float)
    step = 2.38 / math.sqrt(size) if settings.kernel == "random-walk" else 1.65**2 / size ** (1 / 3)
    beta = 0.0
    betas, steps, scales = [0.0], [], []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 1))))
    while beta < 1:
        watch.go("pilot", int(100 * beta), 100)
        ratios = finite_weights(targets, ratios)
        if len(betas) > STAGES:
            raise RunError(
                f"The pilot run needs more than {STAGES} stages from the base to the posterior, and is at β = "
                f"{beta:.3g}: the prior is far wider than the posterior. Use a narrower prior, or "
                "method='importance' with a fitted posterior."
            )
        new_beta = min(next_beta(row, beta) for row in ratios)
        index = np.stack([rng.choice(count, count, p=shares((new_beta - beta) * row)) for row in ratios])
        particles = np.take_along_axis(np.asarray(places).reshape(*index.shape, -1), index[:, :, None], 1)
        places, scale = jnp.asarray(particles.reshape(places.shape)), _root(particles.astype(np.float64))
        beta = new_beta
        for i in range(ROUNDS):
            # A backward ``run`` with the temperatures β − 1 and β moves the particles at β. The log weight of its one
            # step is the log ratio at the particle's end point.
            one_step = TemperatureLadder(
                jnp.array([beta - 1, beta], dtype), jnp.zeros(2, int), jnp.array([step], dtype),
                jnp.asarray(scale[None], dtype),
            )  # fmt: skip
            ratios, places, acceptance = targets.ran(
                run, one_step, jax.random.fold_in(key, 2 + len(betas) * ROUNDS + i), places,
                kind=settings.kernel, chains=count, transitions=MOVES,
            )  # fmt: skip
            step *= math.exp(2 * (float(acceptance[0]) - AIMED[settings.kernel]))
        betas.append(beta)
        steps.append(step)
        scales.append(scale)
    watch.say("pilot", 100, 100)
    stages = len(steps)
    # In one step, a stage adds about 1 to the variance of log w; m steps divide this by m. The factor 6 allows for
    # chains that have not reached equilibrium.
    total = settings.temperatures or min(max(6 * stages**2, CHOSEN[0]), CHOSEN[1])
    per_stage = max(1, -(-total // stages))
    fine = np.interp(np.arange(stages * per_stage + 1) / per_stage, np.arange(stages + 1), betas)
    stage = np.maximum(np.arange(stages * per_stage + 1) - 1, 0) // per_stage
    return TemperatureLadder(
        jnp.asarray(fine, dtype), jnp.asarray(stage), jnp.asarray(steps, dtype), jnp.asarray(np.stack(scales), dtype)
    )


def _root(places: np.ndarray) -> np.ndarray:
    """The Cholesky factor (d, d) of the particles' covariance, for particles (N, S, d) of N targets.

    The covariance is averaged over targets, and shrunk towards its diagonal. In more than ``DENSE`` dimensions the
    result is only the sds (d,).
    """
    targets, count, size = places.shape
    sds = np.maximum(np.sqrt(places.var(1).mean(0)), 1e-12 * (1 + np.abs(places.mean((0, 1)))))
    if size > DENSE:
        return sds
    weight = targets * count / (targets * count + 2 * size)
    covariance = np.mean([np.cov(of_target.T).reshape(size, size) for of_target in places], 0)
    return np.linalg.cholesky(weight * covariance + (1 - weight) * np.diag(sds**2))
