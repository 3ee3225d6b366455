"""The way from base to target by temperatures, and back: one run for every kind of target.

Whatever adapts (temperatures, step sizes, covariances) does so in a pilot on particles of its own (``pilots``). It is
fixed before any weight is made: weights of chains that adapt as they go are no longer unbiased. Neal 2001; Grosse,
Ghahramani & Adams 2015 (backwards).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from tractable.beliefs.check import Check
from tractable.core import Kernel
from tractable.evidence.settings import Annealing
from tractable.evidence.targets import Target, Targets
from tractable.evidence.weights import Watch, nan_is_nothing, possible
from tractable.kernels.annealed import annealed
from tractable.kernels.mala import mala
from tractable.kernels.random_walk import random_walk

PyTree = Any


class TemperatureLadder(NamedTuple):
    """What a pilot chose; fixed before any weight is made, so that the weights stay unbiased."""

    betas: jax.Array  # (T + 1,)
    stage: jax.Array  # (T + 1,) of each temperature, 0..K−1
    step_sizes: jax.Array  # (K,)
    scales: jax.Array  # (K, d, d), or (K, d) diagonals


def both_ways(
    targets: Targets, settings: Annealing, ladder: TemperatureLadder, keys: tuple[jax.Array, jax.Array],
    exact: Callable[[], PyTree] | None, watch: Watch,
) -> tuple[np.ndarray, np.ndarray | None, list[Check]]:  # fmt: skip
    """(N, S) log weights forwards from the base and backwards from exact draws, and checks of the way.

    Args:
        keys: of the forward and of the backward run.
        exact: called for the draws once the forward weights are there, gives None where it was interrupted; None
            where there are none.
    """
    runs = functools.partial(run, targets, settings.kernel, settings.chains, settings.transitions, ladder)
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
    targets: Targets, kind: str, chains: int, transitions: int, ladder: TemperatureLadder, key: jax.Array,
    exact: PyTree = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """(N, S) log weights, those of one target (S,), and the mean acceptance at each temperature (T,).

    Forwards from the base, or backwards from ``exact`` draws: (S, d) of one target, unconstrained; of many one state of
    each, leading axis N, from which all its chains come back.
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
    return (mala if kind == "mala" else random_walk)(density, step, scale)


def _way_checks(ladder: TemperatureLadder, acceptance: jax.Array, variance: float) -> list[Check]:
    """Of the temperatures and what moved at them."""
    stages = f", in {len(ladder.scales)} stages of the pilot" if len(ladder.scales) < len(ladder.betas) - 1 else ""
    return [
        Check("temperatures", len(ladder.betas) - 1, "trust",
              f"steps between base and target{stages}; variance of log w {variance:.2g}"),
        Check("acceptance", float(np.min(acceptance)), "trust" if np.min(acceptance) >= 0.1 else "caution",
              "least mean over temperatures; chains that stand still learn nothing on the way"),
    ]  # fmt: skip
