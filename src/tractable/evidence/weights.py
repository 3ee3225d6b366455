"""Log weights of draws from the base or from proposals nearer to the target."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from tractable.core.errors import RunError
from tractable.core.tree import Numbers, PyTree
from tractable.diagnostics import pareto
from tractable.diagnostics.importance import khat
from tractable.evidence.proposals import Propose
from tractable.evidence.targets import Target, Targets


class Watch(NamedTuple):
    """Functions that report progress, and that say whether to stop."""

    say: Callable[[str, int, int], None]  # (phase, done, of)
    stop: Callable[[], bool]

    def go(self, phase: str, done: int = 0, of: int = 1) -> None:
        """Report a phase; raises if the call was interrupted, since there are no weights yet."""
        if self.stop():
            raise RunError(
                f"log_evidence was interrupted before its weights were made ({phase}: {done} of {of}), so there is "
                "nothing to estimate from. Run it again, with fewer chains or draws if it takes too long."
            )
        self.say(phase, done, of)


def weigh(
    targets: Targets, key: jax.Array, draws: int, watch: Watch, propose: Propose | None = None, q: PyTree = None,
    work: int = 1,
) -> np.ndarray:  # fmt: skip
    """(N, draws) log weights, see ``log_weights``."""
    watch.go("draws")
    found = targets.ran(log_weights, q, key, draws=draws, propose=propose, work=work)
    watch.say("draws", 1, 1)
    return finite_weights(targets, found)


@functools.partial(jax.jit, static_argnames="count")
def base_draws(targets: Targets, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Draws of the base (N, count, d), unconstrained, and their log ratios r (N, count); without N of one target."""

    def one(target: Target, key: jax.Array, _: None) -> tuple[tuple[jax.Array, jax.Array], tuple]:
        u = target.flat(target.sample(key))
        return (u, target.log_ratio(u)), ()

    return targets.over(one, key, count)[0]


@functools.partial(jax.jit, static_argnames=("draws", "propose", "work"))
def log_weights(
    targets: Targets, q: PyTree, key: jax.Array, draws: int, propose: Propose | None = None, work: int = 1
) -> jax.Array:
    """(N, draws), or (draws,) for one target: log weights of draws from the base or from ``propose``.

    ``propose`` is ``(q, key) -> (u, log q(u))``; of many targets each has its own q (leading axis N).
    """

    def one(target: Target, key: jax.Array, own: PyTree) -> tuple[jax.Array, tuple]:
        if propose is None:
            return target.log_likelihood(target.sample(key)), ()
        u, log_q = propose(own if targets.many else q, key)
        return target.log_base(u) + target.log_ratio(u) - log_q, ()

    return targets.over(one, key, draws, q if targets.many else None, work)[0]


def finite_weights(targets: Targets, log_weights: Numbers) -> np.ndarray:
    """Log weights (N, S) in float64, where NaN is −∞, impossible; N = 1 for those (S,) of one target.

    Raises:
        RunError: no weight of some target is finite, or one is +∞.
    """
    log_weights = np.atleast_2d(np.asarray(log_weights, np.float64))
    log_weights = np.nan_to_num(log_weights, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    largest = log_weights.max(1)
    impossible = np.flatnonzero(~np.isfinite(largest))
    if not len(impossible):
        return log_weights
    if targets.many:
        raise RunError(
            f"No draw of z can have made row {impossible[0]}, nor {len(impossible) - 1} more: its log likelihood was "
            "finite at none, or without bound at one. Is it possible under theta? More draws, or method='annealed'?"
        )
    raise RunError(
        f"The mean weight is e^{largest[0]}: the log likelihood was finite at no draw, or without bound at one. Are "
        "the data possible under the prior? Look at model.log_likelihoods at a draw of model.sample_prior."
    )


def smoothed(log_weights: Numbers) -> np.ndarray:
    """(S,) log weights; the largest become quantiles of a fitted Pareto tail (PSIS) if all are finite and unequal."""
    log_weights = np.asarray(log_weights, np.float64)
    if not math.isfinite(khat(log_weights)):
        return log_weights
    normalised = pareto.smooth(log_weights[None])[0][0]
    least = int(np.argmin(log_weights))  # smoothing leaves it as it is, so it shows the constant taken off
    return normalised + (log_weights[least] - normalised[least])
