"""Annealed importance sampling: small weighted steps from a base distribution, which can be sampled, to a target.

    log f_β(x) = log p₀(x) + β r(x),    0 = β₀ < β₁ < … < β_T = 1,    r = log(unnormalised target) − log p₀

    forwards    x₀ ~ p₀;    t = 1..T:  log w += (β_t − β_{t−1}) r(x_{t−1}),  x_t ~ T_t(· | x_{t−1})
    backwards   x_T ~ f₁;   t = T..1:  x_{t−1} ~ T_t(· | x_t),  log w += (β_t − β_{t−1}) r(x_{t−1})

T_t leaves f_{β_t} invariant and is reversible, as Metropolis kernels are. Then E[w] = Z forwards and E[1/w] = 1/Z
backwards, exactly and for any schedule; by Jensen E[log w] ≤ log Z forwards and ≥ log Z backwards, so Z is bracketed.
Neal 2001; Grosse, Ghahramani & Adams 2015 (bidirectional Monte Carlo). The weight of a step is taken *before* its
transition: after it, E[w] would not be Z.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.tools.tree import PyTree

HALVINGS = 60  # of the interval that holds the next β
BLOCKS = 16  # blocks of weights, whose means give a bound's standard error


class Annealed(NamedTuple):
    """The result of one run of one chain."""

    log_weight: jax.Array  # () log w
    position: PyTree  # end point: at f₁ forwards, at p₀ backwards
    info: PyTree  # the kernels' own, averaged over the transitions at each β; every leaf (T,), by t


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
    """One chain of annealed importance sampling. ``jax.vmap`` it over keys, positions and, if needed, data.

    For a latent code: ``log_base`` is log p(z), ``log_ratio`` log p(x|z), and Z is p(x).

    Args:
        key: for all randomness after the start.
        position: an exact draw of p₀ forwards, of the target backwards.
        log_base: ``position -> ()``, log p₀, normalised.
        log_ratio: ``position -> ()``, r; NaN counts as −∞.
        kernel_of: ``(log_density, t) -> Kernel`` reversible with respect to the bridge ``log_density`` at β_t; t is
            traced, in 1..T.
        betas: (T + 1,), increasing from 0 to 1.
        transitions: kernel transitions at each β, ≥ 1.
        backwards: go from the target to the base.
    """
    betas = jnp.asarray(betas)
    times = jnp.arange(1, betas.shape[0])

    def gained(t: jax.Array, position: PyTree) -> jax.Array:
        ratio = log_ratio(position)
        return (betas[t] - betas[t - 1]) * jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)

    def moved(t: jax.Array, position: PyTree) -> tuple[PyTree, PyTree]:
        kernel = kernel_of(lambda x: log_base(x) + betas[t] * log_ratio(x), t)
        keys = jax.random.split(jax.random.fold_in(key, t), transitions + 1)
        state = kernel.init(keys[0], position)
        state, infos = jax.lax.scan(lambda state, key: kernel(key, state), state, keys[1:])
        return state.position, jax.tree.map(lambda leaf: jnp.mean(leaf, 0), infos)

    def step(carry: tuple[PyTree, jax.Array], t: jax.Array) -> tuple[tuple[PyTree, jax.Array], PyTree]:
        position, log_weight = carry
        if backwards:
            position, info = moved(t, position)
            return (position, log_weight + gained(t, position)), info
        log_weight = log_weight + gained(t, position)
        position, info = moved(t, position)
        return (position, log_weight), info

    start = (position, jnp.zeros((), jax.eval_shape(gained, times[0], position).dtype))
    (position, log_weight), info = jax.lax.scan(step, start, times, reverse=backwards)
    return Annealed(log_weight, position, info)


def next_beta(log_ratios: ArrayLike, beta: float, share: float = 0.5) -> float:
    """The largest β' ≤ 1 at which the weights e^{(β' − β) r} of draws of f_β keep a share of the effective sample size.

        (Σ w)² / (S Σ w²) ≥ share

    Zhou, Johansen & Aston 2016, with equal weights before. Draws with r = −∞ are left out: any β' > β drops them.

    Args:
        log_ratios: (S,), r at draws of f_β; at least one finite.
        beta: in [0, 1).
        share: in (0, 1).

    >>> next_beta(np.zeros(10), 0.0)
    1.0
    >>> print(round(next_beta(np.array([0.0, -100.0, -100.0, -100.0]), 0.0, 0.5), 3))
    0.019
    """
    ratios = np.asarray(log_ratios, np.float64)
    ratios = ratios[np.isfinite(ratios)]

    def kept(step: float) -> float:
        weights = np.exp(step * (ratios - ratios.max()))
        return float(weights.sum() ** 2 / (len(weights) * np.sum(weights**2)))

    low, high = 0.0, 1.0 - beta
    if kept(high) >= share:
        return 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) >= share else (low, middle)
    return beta + low


def log_mean(log_weights: ArrayLike) -> float:
    """log (1/S) Σ w, (S,) → (); −∞ where every weight is 0."""
    log_weights = np.asarray(log_weights, np.float64)
    top = log_weights.max()
    if not np.isfinite(top):
        return float(top)
    return float(top + np.log(np.mean(np.exp(log_weights - top))))


def relative_error(log_weights: ArrayLike) -> float:
    """sd(w) / (w̄ √S), the standard error of log w̄ by the delta method."""
    share = shares(log_weights)
    return float(math.sqrt(len(share)) * share.std(ddof=1)) if np.all(np.isfinite(share)) else math.inf


def effective(log_weights: ArrayLike) -> float:
    """(Σ w)² / Σ w², the effective sample size of the weights."""
    share = shares(log_weights)
    return float(1 / np.sum(share**2)) if np.all(np.isfinite(share)) else 0.0


def shares(log_weights: ArrayLike) -> np.ndarray:
    """w / Σ w, (S,); NaN where every weight is 0."""
    log_weights = np.asarray(log_weights, np.float64)
    if not np.isfinite(log_weights.max()):
        return np.full(len(log_weights), np.nan)
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def stochastic_bound(log_weights: ArrayLike, share: float = 0.995) -> float:
    """A lower confidence bound for log E[w] at level ``share``, by Student's t over block means (approximate).

    The weights are cut into 16 blocks. The mean of the blocks' log mean weights is at most log E[w] in expectation,
    whatever w's law; the bound is that mean minus the t(15) quantile times its standard error.

    Args:
        log_weights: (S,), S ≥ 32, independent.
    """
    from scipy.stats import t

    means = np.array([log_mean(block) for block in np.array_split(np.asarray(log_weights), BLOCKS)])
    if not np.all(np.isfinite(means)):
        return -math.inf
    return float(means.mean() - t.ppf(share, BLOCKS - 1) * means.std(ddof=1) / math.sqrt(BLOCKS))


class Summed(NamedTuple):
    """The estimate of Σ_n log p(x_n|θ) from log weights (N, S)."""

    estimates: np.ndarray  # (N,) log mean over draws
    errors: np.ndarray  # (N,) standard errors, by the delta method
    effective: np.ndarray  # (N,) effective sample sizes

    @property
    def estimate(self) -> float:
        """The sum over n."""
        return float(self.estimates.sum())

    @property
    def error(self) -> float:
        """The sum's standard error; data are independent, so squares add."""
        return float(np.sqrt(np.sum(self.errors**2)))

    @property
    def bias(self) -> float:
        """−Σ_n var(w)/(2 S w̄²), the bias of the estimate: the terms have one sign and add up."""
        return float(-np.sum(self.errors**2) / 2)


def summed(log_weights: np.ndarray) -> Summed:
    """The estimate from log weights (N, S); every row needs a finite one."""
    top = log_weights.max(1, keepdims=True)
    weights = np.exp(log_weights - top)
    mean, draws = weights.mean(1), weights.shape[1]
    errors = weights.std(1, ddof=1) / (mean * math.sqrt(draws))
    return Summed(top[:, 0] + np.log(mean), errors, draws * mean**2 / np.mean(weights**2, 1))
