"""Proposal densities near a target, from which draws are made: a fitted q, or Student t's around the target's modes."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from tractable.core import approximations
from tractable.core.errors import ModelError
from tractable.core.model import Data, Model
from tractable.core.small import cholesky, inverse
from tractable.engine.drawing import starts
from tractable.engine.search import laplace_root, maximum
from tractable.evidence.targets import Target, Targets
from tractable.latent.gradient_em import climb_by_lbfgs

Propose = Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]
CURVED = 1000  # maximum number of parameters for which a curvature is computed
CLIMB = 40  # number of L-BFGS steps to a mode of one row's z
DISTINCT = 0.5  # sds (root mean square over coordinates) by which two modes of one row's z must differ
MASS = 20.0  # nats; a mode whose log mass is this far below the largest is left out
LOG_2PI = math.log(2 * math.pi)


class Mixture(NamedTuple):
    """A mixture of Student t's, Σ_k ρ_k t_ν(û_k, Λ_k⁻¹)."""

    mean: jax.Array  # (K, d) û_k
    factor: jax.Array  # (K, d, d) Cholesky factors L of Λ_k = L Lᵀ
    share: jax.Array  # (K,) ρ_k, 0 for a component that is left out
    degrees: jax.Array  # () degrees of freedom ν

    def sample(self, key: jax.Array) -> jax.Array:
        """A draw u (d,)."""
        roots = jnp.swapaxes(inverse(self.factor), 1, 2)  # R of Λ⁻¹ = R Rᵀ
        component_key, key = jax.random.split(key)
        k = jax.random.categorical(component_key, jnp.log(self.share))
        return self.mean[k] + roots[k] @ student_white(key, self.mean.shape[1], self.degrees)

    def log_prob(self, u: jax.Array) -> jax.Array:
        """The log density at u (d,)."""
        white = jnp.einsum("kji,kj->ki", self.factor, u[None] - self.mean)
        volumes = -jnp.sum(jnp.log(jnp.diagonal(self.factor, axis1=1, axis2=2)), 1)
        terms = jax.vmap(student_log_prob, (0, 0, None))(white, volumes, self.degrees)
        return jax.nn.logsumexp(terms, b=self.share)


def students(q: Mixture, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A draw from a mixture of Student t's, and its log density."""
    u = q.sample(key)
    return u, q.log_prob(u)


@functools.cache
def proposal_of(family: str) -> Propose:
    """The proposal function of a q from ``core.approximations``, by the name of its family."""

    def propose(phi: approximations.Phi, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        q = approximations.of(family, phi)
        u = q.sample(phi, jax.random.normal(key, (q.noise,), phi["mean"].dtype))
        return u, q.log_prob(phi, u)

    return propose


def student_white(key: jax.Array, size: int, degrees: jax.Array) -> jax.Array:
    """A draw ε √(ν/χ²_ν) of the standard multivariate t, (size,), in the dtype of ν."""
    normal_key, gamma_key = jax.random.split(key)
    eps = jax.random.normal(normal_key, (size,), degrees.dtype)
    return eps / jnp.sqrt(2 * jax.random.gamma(gamma_key, degrees / 2, dtype=degrees.dtype) / degrees)


def student_log_prob(white: jax.Array, log_volume: jax.Array, degrees: jax.Array) -> jax.Array:
    """The log density of a multivariate t at μ + L x, where x (d,) is ``white`` and log |L| is ``log_volume``."""
    size = len(white)
    half = (degrees + size) / 2
    constant = gammaln(half) - gammaln(degrees / 2) - size / 2 * jnp.log(degrees * jnp.pi) - log_volume
    return constant - half * jnp.log1p(jnp.sum(jnp.square(white)) / degrees)


class Mode(NamedTuple):
    """A mode of the unconstrained density, with the Cholesky factor of its inverse curvature."""

    position: np.ndarray  # (d,)
    value: float  # log density at the mode
    root: np.ndarray  # (d, d), lower triangular


def modes_of(model: Model, data: Data | None, key: jax.Array, count: int) -> list[Mode]:
    """The distinct modes at which optimisations from random starts end; that of largest mass (by Laplace) is first."""
    size = model.space.size
    if size > CURVED:
        raise ModelError(
            f"A curvature is computed for at most {CURVED} parameters; got {size}. Use method='annealed' with a prior "
            "that can be drawn from, or method='importance' with posterior=infer(model, data, MeanField())."
        )
    modes: list[Mode] = []
    for start in starts(model, data, key, count):
        end = maximum(model, data, start, jacobian=True)
        if not (np.all(np.isfinite(end.position)) and math.isfinite(end.value)):
            continue
        root = laplace_root(model, data, end.position)
        if root is None:
            continue
        distances = [np.linalg.norm(np.linalg.solve(mode.root, end.position - mode.position)) for mode in modes]
        if all(distance >= 0.05 * math.sqrt(size) for distance in distances):
            modes.append(Mode(np.asarray(end.position, np.float64), float(end.value), root))
    if not modes:
        raise ModelError(
            f"None of {count} optimisations ended at a mode with a positive definite curvature: they ended at a ridge, "
            "a saddle, or on an unbounded density. Give the flat direction a proper prior; or use method='importance' "
            "with posterior= a fitted approximation."
        )
    return sorted(modes, key=lambda mode: -laplace_value(mode.value, mode.root))


def students_at(modes: list[Mode], degrees: float) -> Mixture:
    """Student t's around the modes, each with its share of the mass by Laplace's approximation."""
    mass = np.array([laplace_value(mode.value, mode.root) for mode in modes])
    share = np.exp(mass - mass.max())
    factors = [np.linalg.cholesky(np.linalg.inv(mode.root @ mode.root.T)) for mode in modes]
    parts = [mode.position for mode in modes], factors, share / share.sum(), degrees
    return Mixture(*(jnp.asarray(np.array(part), jnp.result_type(float)) for part in parts))


def laplace_value(value: float, root: np.ndarray) -> float:
    """Laplace's approximation log p(y, ẑ) + (d/2) log 2π − ½ log |Λ|, with Λ⁻¹ = root rootᵀ, root (d, d) triangular."""
    return float(value + len(root) * LOG_2PI / 2 + np.sum(np.log(np.diag(root))))


@functools.partial(jax.jit, static_argnames="count")
def modes_of_causes(
    targets: Targets, spread: jax.Array, degrees: jax.Array, key: jax.Array, *, count: int
) -> tuple[Mixture, jax.Array]:
    """For each of N targets, Student t's around the modes, and the number of modes.

    The modes are the distinct ends of ``count`` optimisations that start at draws of the base. Their coordinates are in
    units of the base's sds ``spread`` (d,). If no end has a positive definite curvature, the number is 0, and the t is
    as wide as the base, around the highest end.
    """
    size = len(spread)

    def mixture(target: Target, key: jax.Array, _: None) -> tuple[Mixture, jax.Array]:
        def density(v: jax.Array) -> jax.Array:
            return target.log_base(spread * v) + target.log_ratio(spread * v)

        def climb(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            begin = target.flat(target.sample(key)) / spread
            end = climb_by_lbfgs(density, begin, CLIMB)
            return end, density(end), cholesky(-jax.hessian(density)(end))

        ends, values, factors = jax.vmap(climb)(jax.random.split(key, count))  # (K, d), (K,), (K, d, d)
        mass = values + size * LOG_2PI / 2 - jnp.sum(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)), 1)
        mass = jnp.where(jnp.isfinite(mass) & jnp.all(jnp.isfinite(ends), axis=1), mass, -jnp.inf)
        # (k, l, d): the difference of ends l and k, in sds of mode k.
        difference = jnp.einsum("kji,klj->kli", factors, ends[None] - ends[:, None])
        is_close = jnp.sum(jnp.square(difference), 2) < DISTINCT**2 * size
        is_earlier = jnp.tril(jnp.ones((count, count), bool), -1).T  # k < l
        counts = jnp.isfinite(mass) & (mass >= jnp.max(mass) - MASS)
        distinct = counts & ~jnp.any(is_close & is_earlier & counts[:, None], axis=0)
        modes = jnp.sum(distinct)
        highest = jnp.arange(count) == jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
        share = jnp.where(modes > 0, jax.nn.softmax(jnp.where(distinct, mass, -jnp.inf)), highest.astype(mass.dtype))
        factors = jnp.where((distinct & (modes > 0))[:, None, None], factors, jnp.eye(size, dtype=factors.dtype))
        places = jnp.where(jnp.isfinite(ends), ends, 0) * spread
        return Mixture(places, factors / spread[:, None], share, degrees), modes

    return targets.each(mixture, key, draws=count * size)
