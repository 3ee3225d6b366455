"""Annealed importance sampling from base to target and back: one run and one pilot for all kinds of target."""

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

STAGES = 500  # most stages of the pilot for parameters
ROUNDS = 4  # rounds of step-size adaptation in a stage
MOVES = 5  # transitions in a round
CHOSEN = (200, 10_000)  # fewest and most temperatures, where their number is not given
AIMED = {"mala": 0.574, "random-walk": 0.3}  # acceptance aimed at


class TemperatureLadder(NamedTuple):
    """What a pilot run chose with its own particles; fixed before any weight is made, so the weights stay unbiased."""

    betas: jax.Array  # (T + 1,)
    stage: jax.Array  # (T + 1,) of each temperature, 0..K−1
    step_sizes: jax.Array  # (K,)
    scales: jax.Array  # (K, d, d), or (K, d) diagonals


def both_ways(
    targets: Targets, settings: Annealing, ladder: TemperatureLadder, keys: tuple[jax.Array, jax.Array],
    exact: Callable[[], PyTree] | None, watch: Watch,
) -> tuple[np.ndarray, np.ndarray | None, list[Check]]:  # fmt: skip
    """(N, S) log weights forwards from the base and backwards from exact draws, and checks of the run (Neal 2001).

    ``exact`` is called after the forward run and gives the exact draws, or None if it was interrupted. Without such
    draws ``exact`` itself is None (Grosse, Ghahramani & Adams 2015).
    """
    static = {"kind": settings.kernel, "chains": settings.chains, "transitions": settings.transitions}
    runs = functools.partial(targets.ran, run, ladder, **static)
    watch.go("forward")
    forward, _, acceptance = runs(keys[0])
    log_weights = finite_weights(targets, forward)
    watch.say("forward", 1, 1)
    given, back = None if exact is None or watch.stop() else exact(), None
    if given is not None:
        watch.say("backward", 0, 1)
        back = np.atleast_2d(np.asarray(runs(keys[1], given)[0], np.float64))
        watch.say("backward", 1, 1)
    stages = f", in {len(ladder.scales)} stages of the pilot" if len(ladder.scales) < len(ladder.betas) - 1 else ""
    said, least = f"steps between base and target{stages}; variance of log w", float(np.min(acceptance))
    checks = [
        Check("temperatures", len(ladder.betas) - 1, "trust", f"{said} {float(log_weights.var(1).mean()):.2g}"),
        Check("acceptance", least, "trust" if least >= 0.1 else "caution",
              "least mean over temperatures; chains that stand still learn nothing on the way"),
    ]  # fmt: skip
    if exact is not None and back is None:
        checks.append(Check("interrupted", 1, "caution", "phases left when the call was stopped: no backward run"))
    return log_weights, back, checks


@functools.partial(jax.jit, static_argnames=("kind", "chains", "transitions"))
def run(
    targets: Targets, ladder: TemperatureLadder, key: jax.Array, places: jax.Array | None = None, *, kind: str,
    chains: int, transitions: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Log weights (N, S), end points (N, S, d) and the mean acceptance at each temperature (T,).

    Forwards from the base, or backwards from unconstrained ``places`` (N, S, d). Arrays of one target are without N.
    """

    def kernel_of(density: Callable, t: jax.Array) -> Kernel:
        stage = ladder.stage[t]
        make = mala if kind == "mala" else random_walk
        return make(density, ladder.step_sizes[stage], ladder.scales[stage])

    def chain(target: Target, key: jax.Array, place: jax.Array | None) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        first, key = jax.random.split(key)
        start = target.flat(target.sample(first)) if place is None else place
        ran = annealed(
            key, start, target.log_base, target.log_ratio, kernel_of, ladder.betas, transitions=transitions,
            backwards=place is not None,
        )  # fmt: skip
        return (ran.log_weight, ran.position), ran.info.acceptance

    (log_weights, ends), acceptance = targets.over(chain, key, chains, places, each=True)
    return log_weights, ends, acceptance


# The pilot.


def pilot(targets: Targets, settings: Annealing, key: jax.Array, watch: Watch) -> TemperatureLadder:
    """Temperatures, step sizes and covariances, from particles moved from base to target (Del Moral et al. 2006).

    Every stage raises β until the effective number of particles falls to half, resamples, and moves the particles while
    the step size adapts to the acceptance aimed at. Temperatures are then spaced evenly within the stages. Of many
    targets some have particles, and share one ladder: the target whose particles thin out first raises β.
    """
    count = settings.pilot
    if targets.many:
        targets, count = targets.some(max(1, settings.pilot // settings.chains)), settings.chains
    places, ratios = targets.ran(base_draws, jax.random.fold_in(key, 0), count=count)
    # The step size that suits a standard normal (Roberts & Rosenthal 2001).
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
                f"The way from the base to the posterior took more than {STAGES} stages, β = {beta:.3g} so far: the "
                "prior is far wider than the data allow. Use a tighter one, or method='importance' with a fitted "
                "posterior."
            )
        new = min(next_beta(row, beta) for row in ratios)
        chosen = np.stack([rng.choice(count, count, p=shares((new - beta) * row)) for row in ratios])
        drawn = np.take_along_axis(np.asarray(places).reshape(*chosen.shape, -1), chosen[:, :, None], 1)
        places, beta, scale = jnp.asarray(drawn.reshape(places.shape)), new, _root(drawn.astype(np.float64))
        for round_ in range(ROUNDS):
            # One step back from β, to β − 1: the weight is the log ratio of where the particle ends.
            step_back = TemperatureLadder(
                jnp.array([beta - 1, beta], dtype), jnp.zeros(2, int), jnp.array([step], dtype),
                jnp.asarray(scale[None], dtype),
            )  # fmt: skip
            ratios, places, acceptance = targets.ran(
                run, step_back, jax.random.fold_in(key, 2 + len(betas) * ROUNDS + round_), places,
                kind=settings.kernel, chains=count, transitions=MOVES,
            )  # fmt: skip
            step *= math.exp(2 * (float(acceptance[0]) - AIMED[settings.kernel]))
        betas.append(beta)
        steps.append(step)
        scales.append(scale)
    watch.say("pilot", 100, 100)
    stages = len(steps)
    # A stage has a variance of log w of about 1; m steps within it divide that by m. Chains lag behind, hence 6.
    wanted = settings.temperatures or min(max(6 * stages**2, CHOSEN[0]), CHOSEN[1])
    each = max(1, -(-wanted // stages))
    fine = np.interp(np.arange(stages * each + 1) / each, np.arange(stages + 1), betas)
    stage = np.maximum(np.arange(stages * each + 1) - 1, 0) // each
    return TemperatureLadder(
        jnp.asarray(fine, dtype), jnp.asarray(stage), jnp.asarray(steps, dtype), jnp.asarray(np.stack(scales), dtype)
    )


def _root(places: np.ndarray) -> np.ndarray:
    """Root L of the covariance of every target's particles (N, S, d), averaged over targets and shrunk to its diagonal.

    In many dimensions their sds alone, (d,).
    """
    targets, count, size = places.shape
    sds = np.maximum(np.sqrt(places.var(1).mean(0)), 1e-12 * (1 + np.abs(places.mean((0, 1)))))
    if size > DENSE:
        return sds
    weight = targets * count / (targets * count + 2 * size)
    covariance = np.mean([np.cov(each.T).reshape(size, size) for each in places], 0)
    return np.linalg.cholesky(weight * covariance + (1 - weight) * np.diag(sds**2))
