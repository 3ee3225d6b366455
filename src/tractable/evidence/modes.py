"""Modes of a posterior and the normals around them: where importance sampling draws, and where annealing may begin."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import Data, Model
from tractable.methods.drawing import starts
from tractable.methods.points import laplace_root, maximum
from tractable.tools.errors import ModelError

LOG_2PI = math.log(2 * math.pi)
CURVED = 1000  # parameters up to which a curvature is formed
WIDER = 2.0  # sds of a base which is no prior, in those of the normal approximation


class Mode(NamedTuple):
    """A mode of the unconstrained density, with the root of its inverse curvature."""

    position: np.ndarray  # (d,)
    value: float
    root: np.ndarray  # (d, d), lower triangular


class Normal(NamedTuple):
    """N(mean, root rootᵀ)."""

    mean: jax.Array  # (d,)
    root: jax.Array  # (d, d), lower triangular


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
    """Whether a climb ended within a twentieth of an sd of a mode."""
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
