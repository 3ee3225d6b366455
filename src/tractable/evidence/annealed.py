"""Annealed importance sampling: small weighted steps from a base distribution, which can be sampled, to a target.

    log f_β(x) = log p₀(x) + β r(x),    0 = β₀ < β₁ < … < β_T = 1,    r = log(unnormalised target) − log p₀

    forwards    x₀ ~ p₀;    t = 1..T:  log w += (β_t − β_{t−1}) r(x_{t−1}),  x_t ~ T_t(· | x_{t−1})
    backwards   x_T ~ f₁;   t = T..1:  x_{t−1} ~ T_t(· | x_t),  log w += (β_t − β_{t−1}) r(x_{t−1})

T_t leaves f_{β_t} invariant and is reversible, as Metropolis kernels are. Then E[w] = Z forwards and E[1/w] = 1/Z
backwards, exactly and for every schedule. By Jensen's inequality, E[log w] is at most log Z forwards, and at least
log Z backwards, so that Z lies between two bounds. See Neal 2001, and Grosse, Ghahramani & Adams 2015 (bidirectional
Monte Carlo). The weight of a step is taken *before* its transition; after the transition, E[w] would not be Z.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core.tree import PyTree

HALVINGS = 60  # number of bisection steps in the search for the next β


class Annealed(NamedTuple):
    """The result of one run of one chain."""

    log_weight: jax.Array  # () log w
    position: PyTree  # end point: a draw of f₁ (about) forwards, of p₀ backwards
    info: PyTree  # the kernels' info, averaged over the transitions at each β; leaves (T,)


def annealed(
    key: jax.Array,
    position: PyTree,
    log_base: Callable[[PyTree], jax.Array],
    log_ratio: Callable[[PyTree], jax.Array],
    kernel_of: Callable[..., Any],
    betas: jax.Array,
    *,
    transitions: int = 1,
    backwards: bool = False,
) -> Annealed:
    """Runs one chain of annealed importance sampling.

    Use ``jax.vmap`` to run many chains over keys, positions and, if needed, data. For a latent z given x, ``log_base``
    is log p(z), ``log_ratio`` is log p(x|z), and Z is p(x).

    Args:
        key: key of all randomness after the start.
        position: the start: an exact draw of p₀ forwards, of the target backwards.
        log_base: ``position -> ()``, log p₀, normalised.
        log_ratio: ``position -> ()``, r; NaN counts as −∞.
        kernel_of: ``(log_density, t) -> Kernel``, a kernel that is reversible with respect to ``log_density``, which is
            log f at β_t; t is traced, in 1..T.
        betas: (T + 1,), increasing from 0 to 1.
        transitions: number of kernel transitions at each β, ≥ 1.
        backwards: whether to go from the target to the base.
    """
    betas = jnp.asarray(betas)
    times = jnp.arange(1, betas.shape[0])

    def increment(t: jax.Array, position: PyTree) -> jax.Array:
        ratio = log_ratio(position)
        return (betas[t] - betas[t - 1]) * jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)

    def move(t: jax.Array, position: PyTree) -> tuple[PyTree, PyTree]:
        kernel = kernel_of(lambda x: log_base(x) + betas[t] * log_ratio(x), t)
        keys = jax.random.split(jax.random.fold_in(key, t), transitions + 1)
        state = kernel.init(keys[0], position)
        state, infos = jax.lax.scan(lambda state, key: kernel(key, state), state, keys[1:])
        return state.position, jax.tree.map(lambda leaf: jnp.mean(leaf, 0), infos)

    def step(carry: tuple[PyTree, jax.Array], t: jax.Array) -> tuple[tuple[PyTree, jax.Array], PyTree]:
        position, log_weight = carry
        if backwards:
            position, info = move(t, position)
            return (position, log_weight + increment(t, position)), info
        log_weight = log_weight + increment(t, position)
        position, info = move(t, position)
        return (position, log_weight), info

    start = (position, jnp.zeros((), jax.eval_shape(increment, times[0], position).dtype))
    (position, log_weight), info = jax.lax.scan(step, start, times, reverse=backwards)
    return Annealed(log_weight, position, info)


def next_beta(log_ratios: ArrayLike, beta: float, share: float = 0.5) -> float:
    """The largest β' ≤ 1 at which weights w = e^{(β' − β) r} of S draws of f_β have a given effective sample size.

        (Σ w)² / (S Σ w²) ≥ share

    Before the step the draws have equal weights (Zhou, Johansen & Aston 2016). Draws with r = −∞ are left out, because
    their weight is 0 at every β' > β.

    Args:
        log_ratios: (S,), r at draws of f_β; at least one is finite.
        beta: β, in [0, 1).
        share: the effective sample size divided by S, in (0, 1).

    >>> next_beta(np.zeros(10), 0.0)
    1.0
    >>> print(round(next_beta(np.array([0.0, -100.0, -100.0, -100.0]), 0.0, 0.5), 3))
    0.019
    """
    ratios = np.asarray(log_ratios, np.float64)
    ratios = ratios[np.isfinite(ratios)]

    def effective_share(step: float) -> float:
        weights = np.exp(step * (ratios - ratios.max()))
        return float(weights.sum() ** 2 / (len(weights) * np.sum(weights**2)))

    low, high = 0.0, 1.0 - beta
    if effective_share(high) >= share:
        return 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if effective_share(middle) >= share else (low, middle)
    return beta + low
