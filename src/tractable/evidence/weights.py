"""Computes log importance weights of draws, from the base or from a proposal that is nearer to the target."""

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
        """Reports a phase before the weights exist; raises a RunError if the call was interrupted."""
        if self.stop():
            raise RunError(
                f"log_evidence was interrupted before its weights were made ({phase}: {done} of {of}), so that there "
                "is no estimate. Run it again, with fewer chains or draws if it takes too long."
            )
        self.say(phase, done, of)


def weigh(
    targets: Targets, key: jax.Array, draws: int, watch: Watch, propose: Propose | None = None, q: PyTree = None,
    work: int = 1,
) -> np.ndarray:  # fmt: skip
    """The log weights (N, draws) that ``log_weights`` computes, in float64; reports progress."""
    watch.go("draws")
    raw_weights = targets.ran(log_weights, q, key, draws=draws, propose=propose, work=work)
    watch.say("draws", 1, 1)
    return finite_weights(targets, raw_weights)


@functools.partial(jax.jit, static_argnames="count")
def base_draws(targets: Targets, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Unconstrained draws of the base (N, count, d), and their log ratios r (N, count); no axis N for one target."""

    def draw(target: Target, key: jax.Array, _: None) -> tuple[tuple[jax.Array, jax.Array], tuple]:
        u = target.flat(target.sample(key))
        return (u, target.log_ratio(u)), ()

    return targets.over(draw, key, count)[0]


@functools.partial(jax.jit, static_argnames=("draws", "propose", "work"))
def log_weights(
    targets: Targets, q: PyTree, key: jax.Array, draws: int, propose: Propose | None = None, work: int = 1
) -> jax.Array:
    """Log weights of draws from the base or from ``propose``: (N, draws), or (draws,) for one target.

    Args:
        targets: one target or many.
        q: parameters of the proposal; if there are many targets, with leading axis N.
        key: key of the draws.
        draws: number of draws for each target.
        propose: ``(q, key) -> (u, log q(u))``; None for draws from the base.
        work: for many targets, the memory of a draw as a multiple of that of one evaluation of the density.
    """

    def log_weight(target: Target, key: jax.Array, own: PyTree) -> tuple[jax.Array, tuple]:
        if propose is None:
            return target.log_likelihood(target.sample(key)), ()
        u, log_q = propose(own if targets.many else q, key)
        return target.log_base(u) + target.log_ratio(u) - log_q, ()

    return targets.over(log_weight, key, draws, q if targets.many else None, work)[0]


def finite_weights(targets: Targets, log_weights: Numbers) -> np.ndarray:
    """Log weights (N, S) in float64, with −∞ in place of NaN; N = 1 for the weights (S,) of one target.

    Raises:
        RunError: all log weights of some target are −∞, or some are +∞.
    """
    log_weights = np.atleast_2d(np.asarray(log_weights, np.float64))
    log_weights = np.nan_to_num(log_weights, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    largest = log_weights.max(1)
    impossible = np.flatnonzero(~np.isfinite(largest))
    if not len(impossible):
        return log_weights
    if targets.many:
        raise RunError(
            f"The log likelihood of {len(impossible)} of {len(largest)} rows (the first is row {impossible[0]}) was "
            "finite at no draw of z, or +∞ at one. Check that the rows are possible under theta; if they are, use more "
            "draws or method='annealed'."
        )
    raise RunError(
        f"The mean weight is e^{largest[0]}: the log likelihood was finite at no draw, or +∞ at one. Check that "
        "the data are possible under the prior, with model.log_likelihoods at a draw of model.sample_prior."
    )


def smooth_tail(log_weights: Numbers) -> np.ndarray:
    """Pareto-smoothed log weights (S,): the largest are replaced by quantiles of a fitted generalised Pareto tail.

    If k-hat is not finite, because weights are equal or some are 0, they are not smoothed.
    """
    log_weights = np.asarray(log_weights, np.float64)
    if not math.isfinite(khat(log_weights)):
        return log_weights
    normalised = pareto.smooth(log_weights[None])[0][0]
    # Smoothing leaves the smallest weight as it is, so that it shows the constant by which all were normalised.
    smallest = int(np.argmin(log_weights))
    return normalised + (log_weights[smallest] - normalised[smallest])
