"""Annealed importance sampling from base to target and back: one run for all kinds of target, a pilot for each kind."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs.check import Check
from tractable.core import Kernel, PyTree
from tractable.evidence.settings import Annealing
from tractable.evidence.targets import Target, Targets
from tractable.evidence.weights import Watch, nan_is_nothing, possible
from tractable.kernels.annealed import annealed, next_beta, shares, sigmoidal
from tractable.kernels.mala import mala
from tractable.kernels.random_walk import random_walk
from tractable.methods.metropolis import DENSE
from tractable.tools.errors import RunError

STAGES = 500  # most stages of the pilot for parameters
ROUNDS = 4  # rounds of step-size adaptation in a stage
MOVES = 5  # transitions in a round
CHOSEN = (200, 10_000)  # fewest and most temperatures, where their number is not given
AIMED = {"mala": 0.574, "random-walk": 0.3}  # acceptance aimed at
TEMPERATURES = 100  # default for causes
GAINS = (4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 1.0, 1.0)  # per round of the causes' pilot; can shrink MALA's step 10⁵-fold


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
    forward, acceptance = runs(keys[0])
    log_weights = possible(targets, nan_is_nothing(forward))
    watch.say("forward", 1, 1)
    given, back = None if exact is None or watch.stop() else exact(), None
    if given is not None:
        watch.say("backward", 0, 1)
        back = np.atleast_2d(np.asarray(runs(keys[1], given)[0], np.float64))
        watch.say("backward", 1, 1)
    checks = _way_checks(ladder, acceptance, float(log_weights.var(1).mean()))
    if exact is not None and back is None:
        checks.append(Check("interrupted", 1, "caution", "phases left when the call was stopped: no backward run"))
    return log_weights, back, checks


@functools.partial(jax.jit, static_argnames=("kind", "chains", "transitions"))
def run(
    targets: Targets, ladder: TemperatureLadder, key: jax.Array, exact: PyTree = None, *, kind: str, chains: int,
    transitions: int,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Log weights (N, S), or (S,) for one target, and the mean acceptance at each temperature (T,).

    Forwards from the base, or backwards from ``exact`` draws. For one target these are (S, d), unconstrained; for many,
    one state each (leading axis N), from which all the target's chains start.
    """

    def kernel_of(density: Callable, t: jax.Array) -> Kernel:
        stage = ladder.stage[t]
        return kernel_named(kind, density, ladder.step_sizes[stage], ladder.scales[stage])

    def chain(target: Target, key: jax.Array, own: PyTree) -> tuple[jax.Array, jax.Array]:
        first, key = jax.random.split(key)
        backwards = own is not None
        place = own if backwards and not targets.many else target.flat(own if backwards else target.sample(first))
        ran = annealed(
            key, place, target.log_base, target.log_ratio, kernel_of, ladder.betas, transitions=transitions,
            backwards=backwards,
        )  # fmt: skip
        return ran.log_weight, ran.info.acceptance

    return targets.over(chain, key, chains, exact)


def kernel_named(kind: str, density: Callable, step: jax.Array, scale: jax.Array) -> Kernel:
    """MALA or a random walk, with a step size and a scale for each dimension."""
    return (mala if kind == "mala" else random_walk)(density, step, scale)


def _way_checks(ladder: TemperatureLadder, acceptance: jax.Array, variance: float) -> list[Check]:
    stages = f", in {len(ladder.scales)} stages of the pilot" if len(ladder.scales) < len(ladder.betas) - 1 else ""
    return [
        Check("temperatures", len(ladder.betas) - 1, "trust",
              f"steps between base and target{stages}; variance of log w {variance:.2g}"),
        Check("acceptance", float(np.min(acceptance)), "trust" if np.min(acceptance) >= 0.1 else "caution",
              "least mean over temperatures; chains that stand still learn nothing on the way"),
    ]  # fmt: skip


# Pilots.


def pilot_of_parameters(targets: Targets, settings: Annealing, key: jax.Array, watch: Watch) -> TemperatureLadder:
    """Temperatures, step sizes and covariances, from particles moved from base to target (Del Moral et al. 2006).

    Every stage raises β until the effective number of particles falls to half, resamples, and moves the particles while
    the step size adapts to the acceptance aimed at. Temperatures are then spaced evenly within the stages.
    """
    places, ratios = targets.ran(_begun, jax.random.fold_in(key, 0), count=settings.pilot)
    beta, step = 0.0, first_step(settings.kernel, targets.model.space.size)
    betas, steps, scales = [0.0], [], []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 1))))
    while beta < 1:
        watch.go("pilot", int(100 * beta), 100)
        ratios = possible(targets, nan_is_nothing(ratios))[0]
        if len(betas) > STAGES:
            raise RunError(
                f"The way from the base to the posterior took more than {STAGES} stages, β = {beta:.3g} so far: the "
                "prior is far wider than the data allow. Use a tighter one, or method='importance' with a fitted "
                "posterior."
            )
        new = next_beta(ratios, beta)
        chosen = rng.choice(settings.pilot, settings.pilot, p=shares((new - beta) * ratios))
        places, beta = jnp.asarray(np.asarray(places)[chosen]), new
        scale = _root(np.asarray(places, np.float64))
        for round_ in range(ROUNDS):
            places, ratios, acceptance = targets.ran(
                _moved, jax.random.fold_in(key, 2 + len(betas) * ROUNDS + round_), places, jnp.asarray(beta),
                jnp.asarray(step), jnp.asarray(scale, places.dtype), kind=settings.kernel,
            )  # fmt: skip
            step *= math.exp(2 * (float(acceptance) - AIMED[settings.kernel]))
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
    dtype = jnp.result_type(float)
    return TemperatureLadder(
        jnp.asarray(fine, dtype), jnp.asarray(stage), jnp.asarray(steps, dtype), jnp.asarray(np.stack(scales), dtype)
    )


def pilot_of_causes(targets: Targets, settings: Annealing, key: jax.Array, watch: Watch) -> TemperatureLadder:
    """Sigmoidal temperatures that all data share, with step sizes adapted, at each temperature, on some of the data.

    Steps are in units of the prior's sds, and shrink about as 1/β where the data are informative.
    """
    few = targets.some(max(1, settings.pilot // settings.chains))
    scale = spread(few, settings.chains, jax.random.fold_in(key, 0))
    temperatures = settings.temperatures or TEMPERATURES
    dtype = jnp.result_type(float)
    steps = np.full(temperatures, first_step(settings.kernel, len(scale)))
    ladder = TemperatureLadder(
        sigmoidal(temperatures).astype(dtype), jnp.maximum(jnp.arange(temperatures + 1) - 1, 0),
        jnp.asarray(steps, dtype), jnp.broadcast_to(scale.astype(dtype), (temperatures, len(scale))),
    )  # fmt: skip
    for round_, gain in enumerate(GAINS):
        watch.go("pilot", round_, len(GAINS))
        static = {"kind": settings.kernel, "chains": settings.chains, "transitions": settings.transitions}
        acceptance = run(few, ladder, jax.random.fold_in(key, 1 + round_), **static)[1]
        steps *= np.exp(gain * (np.asarray(acceptance, np.float64) - AIMED[settings.kernel]))
        ladder = ladder._replace(step_sizes=jnp.asarray(steps, dtype))
    watch.say("pilot", len(GAINS), len(GAINS))
    return ladder


@functools.partial(jax.jit, static_argnames="draws")
def spread(targets: Targets, draws: int, key: jax.Array) -> jax.Array:
    """(d,) sds of the base, unconstrained, over ``draws`` draws for each target."""

    def one(target: Target, key: jax.Array, _: None) -> tuple[jax.Array, tuple]:
        return target.flat(target.sample(key)), ()

    return jnp.maximum(jnp.std(targets.over(one, key, draws)[0], axis=(0, 1)), 1e-12)


def first_step(kind: str, size: int) -> float:
    """The step size that suits a standard normal (Roberts & Rosenthal 2001)."""
    return 2.38 / math.sqrt(size) if kind == "random-walk" else 1.65**2 / size ** (1 / 3)


def _root(places: np.ndarray) -> np.ndarray:
    """Root L of the particles' covariance, shrunk towards its diagonal; in many dimensions their sds alone."""
    count, size = places.shape
    sds = np.maximum(places.std(0), 1e-12 * (1 + np.abs(places.mean(0))))
    if size > DENSE:
        return sds
    weight = count / (count + 2 * size)
    covariance = weight * np.atleast_2d(np.cov(places.T)) + (1 - weight) * np.diag(sds**2)
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:  # after resampling to a few distinct places
        return np.diag(sds)


@functools.partial(jax.jit, static_argnames="count")
def _begun(targets: Targets, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """(S, d) draws from the base of one target, and their log ratios r (S,)."""

    def one(target: Target, key: jax.Array, _: None) -> tuple[tuple[jax.Array, jax.Array], tuple]:
        u = target.flat(target.sample(key))
        return (u, target.log_ratio(u)), ()

    return targets.over(one, key, count)[0]


@functools.partial(jax.jit, static_argnames="kind")
def _moved(
    targets: Targets,
    key: jax.Array,
    places: jax.Array,
    beta: jax.Array,
    step: jax.Array,
    scale: jax.Array,
    *,
    kind: str,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One target's particles after a few transitions at one temperature, their log ratios r, the mean acceptance."""

    def one(target: Target, key: jax.Array, place: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        kernel = kernel_named(kind, lambda u: target.log_base(u) + beta * target.log_ratio(u), step, scale)
        state, info = jax.lax.scan(
            lambda state, key: kernel(key, state), kernel.init(key, place), jax.random.split(key, MOVES)
        )
        return (state.position, target.log_ratio(state.position)), jnp.mean(info.acceptance)

    (places, ratios), acceptance = targets.over(one, key, len(places), places)
    return places, ratios, acceptance
