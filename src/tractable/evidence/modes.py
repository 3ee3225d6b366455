"""Modes of targets and what lies around them: where importance sampling draws, and annealing may begin."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import Data, Model
from tractable.evidence.targets import LOG_2PI, Normal, Target, Targets
from tractable.evidence.weights import Mixture
from tractable.kernels.gradient_em import climbed
from tractable.methods.drawing import starts
from tractable.methods.search import laplace_root, maximum
from tractable.tools.errors import ModelError
from tractable.tools.small import cholesky

CURVED = 1000  # parameters up to which a curvature is formed
WIDER = 2.0  # sds of a base which is no prior, in those of the normal approximation
CLIMB = 40  # steps of L-BFGS to a mode of a cause
APART = 0.5  # sds, in the root mean square over numbers, by which modes of a cause differ
MASS = 20.0  # nats of the likeliest mode's mass below which a mode is none


class Mode(NamedTuple):
    position: np.ndarray  # (d,)
    value: float
    root: np.ndarray  # (d, d), lower triangular


def modes_of(model: Model, data: Data | None, key: jax.Array, count: int) -> list[Mode]:
    """The distinct modes that climbs from random starts end at, by the mass of the normal around each, descending."""
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
    """The normal with the moments of the normals around the modes, all counted alike: it is to reach each of them."""
    places = np.stack([mode.position for mode in modes])
    within = np.mean([mode.root @ mode.root.T for mode in modes], 0)
    apart = places - places.mean(0)
    covariance = within + apart.T @ apart / len(modes)
    dtype = jnp.result_type(float)
    return Normal(jnp.asarray(places.mean(0), dtype), jnp.asarray(np.linalg.cholesky(covariance), dtype))


def laplace_value(value: float, root: np.ndarray) -> float:
    """log p(y, ẑ) + (d/2) log 2π − ½ log |Λ|, of Λ⁻¹ = root rootᵀ, root (d, d) lower triangular."""
    return float(value + len(root) * LOG_2PI / 2 + np.sum(np.log(np.diag(root))))


def normal_base(modes: list[Mode]) -> Normal:
    """Where annealing begins without a prior to draw from: a normal around the modes, wider than they are."""
    normal = around(modes)
    return normal._replace(root=WIDER * normal.root)


@functools.partial(jax.jit, static_argnames="count")
def modes_of_causes(targets: Targets, count: int, spread: jax.Array, key: jax.Array) -> tuple[Mixture, jax.Array]:
    """For each of N targets Student t around the distinct modes where climbs from the base end, and their number.

    Climbs are in units of the base's sds ``spread`` (d,). Without a curvature anywhere the number is 0, and q as wide
    as the base, about the highest end.
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
