"""Weights of draws from the base or from proposals nearer to the target, and the modes that these lie around."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from tractable.beliefs import approximations
from tractable.checks import pareto
from tractable.checks.importance import khat
from tractable.core import Data, Model
from tractable.evidence.targets import LOG_2PI, Normal, Target, Targets
from tractable.kernels.gradient_em import climbed
from tractable.methods.drawing import starts
from tractable.methods.search import laplace_root, maximum
from tractable.tools.errors import ModelError, RunError
from tractable.tools.small import cholesky, inverse
from tractable.tools.tree import Numbers, PyTree

Propose = Callable[[Any, Any, jax.Array], tuple[jax.Array, jax.Array]]
CURVED = 1000  # most parameters for which a curvature is formed
WIDER = 2.0  # sd of a base that replaces the prior, over that of the normal approximation
CLIMB = 40  # L-BFGS steps to a mode of a cause
APART = 0.5  # sds, root mean square over coordinates, by which distinct modes of a cause differ
MASS = 20.0  # nats below the largest mass at which a mode no longer counts


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
    targets: Targets, key: jax.Array, draws: int, watch: Watch, propose: Propose | None = None, own: PyTree = None,
    phi: PyTree = None, work: int = 1,
) -> np.ndarray:  # fmt: skip
    """(N, draws) log weights, see ``log_weights``."""
    watch.go("draws")
    found = nan_is_nothing(targets.ran(log_weights, own, phi, key, draws=draws, propose=propose, work=work))
    watch.say("draws", 1, 1)
    return found


@functools.partial(jax.jit, static_argnames=("draws", "propose", "work"))
def log_weights(
    targets: Targets, own: PyTree, phi: PyTree, key: jax.Array, draws: int, propose: Propose | None = None,
    work: int = 1,
) -> jax.Array:  # fmt: skip
    """(N, draws), or (draws,) for one target: log weights of draws from the base or from ``propose``.

    ``propose`` is ``(own, φ, key) -> (u, log q(u))``; ``own`` has an entry for each target, ``phi`` is shared by all.
    """

    def one(target: Target, key: jax.Array, own: PyTree) -> tuple[jax.Array, tuple]:
        if propose is None:
            return target.log_likelihood(target.sample(key)), ()
        u, log_q = propose(own, phi, key)
        return target.log_base(u) + target.log_ratio(u) - log_q, ()

    return targets.over(one, key, draws, own, work)[0]


def nan_is_nothing(log_weights: Numbers) -> np.ndarray:
    """Log weights (N, S) in float64, with N = 1 for those (S,) of one target; NaN becomes −∞, impossible."""
    log_weights = np.atleast_2d(np.asarray(log_weights, np.float64))
    return np.nan_to_num(log_weights, nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def possible(targets: Targets, log_weights: np.ndarray) -> np.ndarray:
    """The log weights (N, S) unchanged; raises if for some target no weight is finite, or one is +∞."""
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


# Proposals.


@functools.cache
def fitted(family: str) -> Propose:
    """The proposal of a q in ``approximations``, by the name of its family."""

    def propose(_: None, phi: approximations.Phi, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        q = approximations.of(family, phi)
        u = q.sample(phi, jax.random.normal(key, (q.noise,), phi["mean"].dtype))
        return u, q.log_prob(phi, u)

    return propose


class StudentT(NamedTuple):
    """t_ν(mean, root rootᵀ)."""

    degrees: jax.Array  # () ν
    mean: jax.Array  # (d,)
    root: jax.Array  # (d, d), lower triangular


class Mixture(NamedTuple):
    """Σ_k ρ_k t_ν(û_k, Λ_k⁻¹)."""

    mean: jax.Array  # (K, d) û_k
    factor: jax.Array  # (K, d, d) L of Λ_k = L Lᵀ
    share: jax.Array  # (K,) ρ_k, 0 for a place that is left out


def student(_: None, q: StudentT, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """u = μ + L ε √(ν/χ²_ν) and its log density."""
    white = student_white(key, len(q.mean), q.degrees)
    return q.mean + q.root @ white, student_log_prob(white, jnp.sum(jnp.log(jnp.diag(q.root))), q.degrees)


def students(q: Mixture, degrees: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A draw u from the mixture, and the mixture's log density there."""
    roots = jnp.swapaxes(inverse(q.factor), 1, 2)  # R of Λ⁻¹ = R Rᵀ
    which, key = jax.random.split(key)
    k = jax.random.categorical(which, jnp.log(q.share))
    u = q.mean[k] + roots[k] @ student_white(key, q.mean.shape[1], degrees)
    white = jnp.einsum("kji,kj->ki", q.factor, u[None] - q.mean)
    volumes = -jnp.sum(jnp.log(jnp.diagonal(q.factor, axis1=1, axis2=2)), 1)
    terms = jax.vmap(student_log_prob, (0, 0, None))(white, volumes, degrees)
    return u, jax.nn.logsumexp(terms, b=q.share)


def student_white(key: jax.Array, size: int, degrees: jax.Array) -> jax.Array:
    """ε √(ν/χ²_ν), (size,), in the dtype of ν."""
    key_normal, key_wide = jax.random.split(key)
    eps = jax.random.normal(key_normal, (size,), degrees.dtype)
    return eps / jnp.sqrt(2 * jax.random.gamma(key_wide, degrees / 2, dtype=degrees.dtype) / degrees)


def student_log_prob(white: jax.Array, log_volume: jax.Array, degrees: jax.Array) -> jax.Array:
    """log t_ν of μ + L white, white (d,), where log_volume is log |L|."""
    size = len(white)
    half = (degrees + size) / 2
    constant = gammaln(half) - gammaln(degrees / 2) - size / 2 * jnp.log(degrees * jnp.pi) - log_volume
    return constant - half * jnp.log1p(jnp.sum(jnp.square(white)) / degrees)


# Modes, and what lies around them.


class Mode(NamedTuple):
    """A mode of the unconstrained density, with the root of its inverse curvature."""

    position: np.ndarray  # (d,)
    value: float
    root: np.ndarray  # (d, d), lower triangular


def modes_of(model: Model, data: Data | None, key: jax.Array, count: int) -> list[Mode]:
    """The distinct modes at which climbs from random starts end, largest mass (by Laplace) first."""
    size = model.space.size
    if size > CURVED:
        raise ModelError(
            f"The curvature of {size} parameters is not formed, at most {CURVED}; use method='annealed' on a prior "
            "that can be drawn from, or method='importance' with posterior=infer(model, data, MeanField())."
        )
    found: list[Mode] = []
    for start in starts(model, data, key, count):
        climbed = maximum(model, data, start, jacobian=True)
        if not (np.all(np.isfinite(climbed.position)) and math.isfinite(climbed.value)):
            continue
        root = laplace_root(model, data, climbed.position)
        if root is None or any(_same(climbed.position, mode) for mode in found):
            continue
        found.append(Mode(np.asarray(climbed.position, np.float64), float(climbed.value), root))
    if not found:
        raise ModelError(
            f"No climb of {count} ended at a mode with a curvature: a ridge, a saddle or a density without bound. Give "
            "the flat direction a proper prior, or posterior= an approximation that was fitted (importance)."
        )
    return sorted(found, key=lambda mode: -laplace_value(mode.value, mode.root))


def _same(position: np.ndarray, mode: Mode) -> bool:
    away = np.linalg.solve(mode.root, position - mode.position)
    return float(np.linalg.norm(away)) < 0.05 * math.sqrt(len(position))


def around(modes: list[Mode]) -> Normal:
    """The normal with the moments of an equal mixture of the modes' normals, so that it reaches every mode."""
    places = np.stack([mode.position for mode in modes])
    within = np.mean([mode.root @ mode.root.T for mode in modes], 0)
    apart = places - places.mean(0)
    covariance = within + apart.T @ apart / len(modes)
    dtype = jnp.result_type(float)
    return Normal(jnp.asarray(places.mean(0), dtype), jnp.asarray(np.linalg.cholesky(covariance), dtype))


def laplace_value(value: float, root: np.ndarray) -> float:
    """log p(y, ẑ) + (d/2) log 2π − ½ log |Λ|, where Λ⁻¹ = root rootᵀ, root (d, d) lower triangular."""
    return float(value + len(root) * LOG_2PI / 2 + np.sum(np.log(np.diag(root))))


@functools.partial(jax.jit, static_argnames="count")
def modes_of_causes(targets: Targets, spread: jax.Array, key: jax.Array, *, count: int) -> tuple[Mixture, jax.Array]:
    """For each of N targets, Student t's around the distinct modes at which climbs from the base end, and their number.

    Climbs are in units of the base's sds ``spread`` (d,). If no end has a curvature, the number is 0 and q is as wide
    as the base, around the highest end.
    """
    size = len(spread)

    def one(target: Target, key: jax.Array, _: None) -> tuple[Mixture, jax.Array]:
        def density(v: jax.Array) -> jax.Array:
            return target.log_base(spread * v) + target.log_ratio(spread * v)

        def climb(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            begin = target.flat(target.sample(key)) / spread
            end = climbed(density, begin, CLIMB)
            return end, density(end), cholesky(-jax.hessian(density)(end))

        ends, values, factors = jax.vmap(climb)(jax.random.split(key, count))  # (K, d), (K,), (K, d, d)
        mass = values + size * LOG_2PI / 2 - jnp.sum(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)), 1)
        mass = jnp.where(jnp.isfinite(mass) & jnp.all(jnp.isfinite(ends), axis=1), mass, -jnp.inf)
        off = jnp.einsum("kji,klj->kli", factors, ends[None] - ends[:, None])  # (k, l, d): l from k, in sds of k
        near = jnp.sum(jnp.square(off), 2) < APART**2 * size
        earlier = jnp.tril(jnp.ones((count, count), bool), -1).T  # k before l
        found = jnp.isfinite(mass) & (mass >= jnp.max(mass) - MASS)
        kept = found & ~jnp.any(near & earlier & found[:, None], axis=0)
        modes = jnp.sum(kept)
        alone = jnp.arange(count) == jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
        share = jnp.where(modes > 0, jax.nn.softmax(jnp.where(kept, mass, -jnp.inf)), alone.astype(mass.dtype))
        factors = jnp.where((kept & (modes > 0))[:, None, None], factors, jnp.eye(size, dtype=factors.dtype))
        places = jnp.where(jnp.isfinite(ends), ends, 0) * spread
        return Mixture(places, factors / spread[:, None], share), modes

    return targets.each(one, key, draws=count * size)
