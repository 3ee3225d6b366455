"""Integrals of exp f(u) over a few numbers u, by quadrature nodes around f's peak."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # imports its parts on first use
from jax.typing import ArrayLike

from tractable.core.small import inverse_root

MOST = 16  # dimensions of u, at most
LITTLE = 1e-3  # first damping, relative to the largest curvature
STEPS = 30  # Newton steps to a peak, at most
GAUSS = {1: 9, 2: 7}  # Gauss-Hermite nodes per dimension; in higher dimensions a Sobol sequence
POINTS = 64  # points of the Sobol sequence, each with its mirror image
FINER = 2  # a finer rule has so many times the nodes per dimension, or ...
MORE = 8  # ... so many times the points


class _At(NamedTuple):
    """The state of Newton's climb to a peak."""

    place: jax.Array  # (k,)
    value: jax.Array  # ()
    slope: jax.Array  # (k,)
    curvature: jax.Array  # (k, k) −∇²f
    tried: jax.Array  # (k,) the place to evaluate next
    left: jax.Array  # () nats to the peak by the quadratic where ``tried`` was chosen; inf after a damped step
    damping: jax.Array  # ()
    done: jax.Array
    steps: jax.Array


@functools.lru_cache(maxsize=64)
def rule(size: int, finer: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Nodes x (J, k) and log weights (J,) with Σ_j c_j g(x_j) ≈ E[g(x)], x ~ N(0, I).

    For k = 1 or 2 a product of Gauss-Hermite rules with m nodes, exact for polynomials of degree 2 m − 1 in each
    dimension; else 64 points of a Sobol sequence and their mirror images, with mean 0 and covariance I exactly.
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
    """Places u_j (J, k) and log weights with  log ∫ exp f(u) du ≈ log Σ_j exp(log w_j + f(u_j)).

    Adaptive quadrature (Naylor & Smith 1982, Liu & Pierce 1994): u_j = û + L x_j with û the peak of f, found by damped
    Newton steps from ``start`` (k,), L Lᵀ = (−∇²f(û))⁻¹ and x_j from ``rule``. Exact for a normal integrand of any
    width; with one node it would be Laplace's approximation.

    Args:
        nodes, log_weights: a ``rule``'s x_j (J, k) and log c_j (J,).
    """
    size = start.shape[0]
    nodes, log_weights = (jnp.asarray(a, start.dtype) for a in (nodes, log_weights))
    place, curvature = _peak(f, start)
    root = _inverse_root(curvature)
    # From the diagonal alone where the curvature is not positive definite.
    diagonal = jnp.maximum(jnp.abs(jnp.diagonal(curvature)), jnp.finfo(curvature.dtype).eps)
    root = jnp.where(jnp.all(jnp.isfinite(root)), root, jnp.diag(1 / jnp.sqrt(diagonal)))
    upper = jnp.swapaxes(root, -1, -2)  # L of (C Cᵀ)⁻¹ = C⁻ᵀ C⁻¹
    places = place + nodes @ upper.T
    log_volume = jnp.sum(jnp.log(jnp.diagonal(upper))) + size * math.log(2 * math.pi) / 2
    return places, log_weights + jnp.sum(jnp.square(nodes), 1) / 2 + log_volume


def _peak(f: Callable[[jax.Array], jax.Array], start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The peak of f, (k,), and −∇²f there, by Newton steps, damped if they do not climb (Levenberg, Marquardt)."""
    size, dtype = len(start), start.dtype
    tolerance = math.sqrt(jnp.finfo(dtype).eps)

    def step(at: _At) -> _At:
        (value, slope), curvature = jax.value_and_grad(f)(at.tried), -jax.hessian(f)(at.tried)
        good = jnp.isfinite(value) & jnp.all(jnp.isfinite(curvature)) & (value >= at.value - tolerance)
        now = (at.tried, value, slope, curvature)
        place, value, slope, curvature = (jnp.where(good, new, old) for new, old in zip(now, at[:4], strict=True))
        softer = jnp.where(at.damping > LITTLE, at.damping / 10, 0.0)
        damping = jnp.where(good, softer, jnp.maximum(10 * at.damping, LITTLE))
        scale = jnp.maximum(jnp.max(jnp.abs(curvature)), jnp.finfo(dtype).tiny)
        root = _inverse_root(curvature + damping * scale * jnp.eye(size, dtype=dtype))
        white = root @ slope
        left = jnp.where(damping > 0, jnp.inf, jnp.sum(jnp.square(white)) / 2)
        done = good & (at.left < tolerance)
        return _At(place, value, slope, curvature, place + root.T @ white, left, damping, done, at.steps + 1)

    zero, nothing = jnp.zeros((), dtype), jnp.zeros((size, size), dtype)
    begun = _At(start, zero - jnp.inf, 0 * start, nothing, start, zero + jnp.inf, zero, jnp.array(False), jnp.array(0))
    at = jax.lax.while_loop(lambda at: (at.steps < STEPS) & ~at.done, step, begun)
    return at.place, at.curvature


def _inverse_root(a: jax.Array) -> jax.Array:
    """C⁻¹ for A = C Cᵀ; NaN if A is not positive definite."""
    return 1 / jnp.sqrt(a) if len(a) == 1 else inverse_root(a)
