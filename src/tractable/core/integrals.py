"""Integrals of exp f(u) over a few numbers u, by adaptive quadrature: nodes placed around the peak of f."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # loads its subpackages on first use
from jax.typing import ArrayLike

from tractable.core.small import inverse_root

MOST = 16  # largest number of dimensions of u
DAMPING = 1e-3  # damping of Newton's method after the first step that descends, relative to the largest curvature
STEPS = 30  # largest number of Newton steps to a peak
GAUSS = {1: 9, 2: 7}  # Gauss-Hermite nodes per dimension; higher dimensions use a Sobol sequence
POINTS = 64  # number of points of the Sobol sequence; the mirror image −x of each point x is a node too
FINER = 2  # a finer rule has this many times as many Gauss-Hermite nodes per dimension
MORE = 8  # a finer rule has this many times as many points of the Sobol sequence


class _Climb(NamedTuple):
    """The state of Newton's method on the way to a peak."""

    place: jax.Array  # (k,)
    value: jax.Array  # ()
    slope: jax.Array  # (k,)
    curvature: jax.Array  # (k, k) −∇²f
    proposal: jax.Array  # (k,) the place to evaluate next
    gain: jax.Array  # () nats that the quadratic model promises at ``proposal``; inf after a damped step
    damping: jax.Array  # ()
    done: jax.Array  # () bool
    steps: jax.Array


@functools.lru_cache(maxsize=64)
def rule(size: int, finer: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Nodes x (J, k) and log weights (J,) with Σ_j c_j g(x_j) ≈ E[g(x)], x ~ N(0, I).

    For k = 1 or 2, the product of Gauss-Hermite rules with m nodes, exact for polynomials of degree 2 m − 1 in each
    dimension. For larger k, 64 points of a Sobol sequence and their mirror images, with exact mean 0 and covariance I.
    """
    if size in GAUSS:
        x, c = np.polynomial.hermite_e.hermegauss(GAUSS[size] * (FINER if finer else 1))
        nodes = np.stack([a.ravel() for a in np.meshgrid(*[x] * size, indexing="ij")], 1)
        weights = functools.reduce(np.multiply.outer, [c / c.sum()] * size).ravel()
        return nodes, np.log(weights)
    count = POINTS * (MORE if finer else 1)
    half = scipy.stats.norm.ppf(scipy.stats.qmc.Sobol(size, seed=1 + finer).random(count))  # pyright: ignore[reportCallIssue]
    half = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / count)).T
    return np.concatenate([half, -half]), np.full(2 * count, -math.log(2 * count))


def around(
    f: Callable[[jax.Array], jax.Array], start: jax.Array, nodes: ArrayLike, log_weights: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """Places u_j (J, k) and log weights (J,) with  log ∫ exp f(u) du ≈ log Σ_j exp(log w_j + f(u_j)).

    Adaptive quadrature (Naylor & Smith 1982, Liu & Pierce 1994): u_j = û + L x_j with û the peak of f, found by damped
    Newton steps from ``start`` (k,), L Lᵀ = (−∇²f(û))⁻¹ and x_j from ``rule``. The sum is exact for a normal integrand
    of any width. With one node it would be Laplace's approximation.

    Args:
        nodes, log_weights: x_j (J, k) and log c_j (J,) of a ``rule``.
    """
    size = start.shape[0]
    nodes, log_weights = (jnp.asarray(a, start.dtype) for a in (nodes, log_weights))
    place, curvature = _peak(f, start)
    root = _inverse_root(curvature)
    # A curvature that is not positive definite is replaced by its diagonal.
    diagonal = jnp.maximum(jnp.abs(jnp.diagonal(curvature)), jnp.finfo(curvature.dtype).eps)
    root = jnp.where(jnp.all(jnp.isfinite(root)), root, jnp.diag(1 / jnp.sqrt(diagonal)))
    upper = jnp.swapaxes(root, -1, -2)  # L = C⁻ᵀ, since −∇²f = C Cᵀ and L Lᵀ = (C Cᵀ)⁻¹; upper triangular
    places = place + nodes @ upper.T
    log_volume = jnp.sum(jnp.log(jnp.diagonal(upper))) + size * math.log(2 * math.pi) / 2
    return places, log_weights + jnp.sum(jnp.square(nodes), 1) / 2 + log_volume


def _peak(f: Callable[[jax.Array], jax.Array], start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The peak of f, (k,), and −∇²f at the peak, by Newton steps; a step that descends is damped (Marquardt 1963)."""
    size, dtype = len(start), start.dtype
    tolerance = math.sqrt(jnp.finfo(dtype).eps)

    def step(at: _Climb) -> _Climb:
        (value, slope), curvature = jax.value_and_grad(f)(at.proposal), -jax.hessian(f)(at.proposal)
        good = jnp.isfinite(value) & jnp.all(jnp.isfinite(curvature)) & (value >= at.value - tolerance)
        proposed = (at.proposal, value, slope, curvature)
        place, value, slope, curvature = (jnp.where(good, new, old) for new, old in zip(proposed, at[:4], strict=True))
        softer = jnp.where(at.damping > DAMPING, at.damping / 10, 0.0)
        damping = jnp.where(good, softer, jnp.maximum(10 * at.damping, DAMPING))
        scale = jnp.maximum(jnp.max(jnp.abs(curvature)), jnp.finfo(dtype).tiny)
        root = _inverse_root(curvature + damping * scale * jnp.eye(size, dtype=dtype))
        white = root @ slope
        gain = jnp.where(damping > 0, jnp.inf, jnp.sum(jnp.square(white)) / 2)
        done = good & (at.gain < tolerance)
        return _Climb(place, value, slope, curvature, place + root.T @ white, gain, damping, done, at.steps + 1)

    zero, flat, never = jnp.zeros((), dtype), jnp.zeros((size, size), dtype), jnp.array(False)
    first = _Climb(start, zero - jnp.inf, 0 * start, flat, start, zero + jnp.inf, zero, never, jnp.array(0))
    last = jax.lax.while_loop(lambda at: (at.steps < STEPS) & ~at.done, step, first)
    return last.place, last.curvature


def _inverse_root(a: jax.Array) -> jax.Array:
    """C⁻¹ for A = C Cᵀ; NaN if A is not positive definite."""
    return 1 / jnp.sqrt(a) if len(a) == 1 else inverse_root(a)
