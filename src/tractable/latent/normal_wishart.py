"""Distributions of the means and precisions of K normals: Normal–Wishart for matrices, Normal–Gamma otherwise.

    μ_k | Λ_k ~ N(m_k, (β_k Λ_k)⁻¹),    C = ν E[Λ]⁻¹
    full:      Λ_k ~ Wishart(ν_k, C_k⁻¹)               tied:       Λ ~ Wishart(ν, C⁻¹), one for all k
    diagonal:  Λ_ki ~ Gamma(ν_k/2, C_ki/2), Λ_k diag   spherical:  λ_k ~ Gamma(d ν_k/2, d C_k/2), Λ_k = λ_k I

A Gamma's parameters are shape and rate. Given N rows of a component, ν becomes ν + N, for every kind. Bishop 2006,
appendix B.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln, multigammaln

from tractable.core.small import cholesky, inverse
from tractable.core.small import inverse_root as root_of
from tractable.latent.conjugate_variational import gamma_divergence

Array = TypeVar("Array", jax.Array, np.ndarray)


class NormalWishart(NamedTuple):
    """λ for K normals in d dimensions. Functions take its kind, one of ``mixture.COVARIANCES``, as an argument."""

    means: Any  # (K, d) m
    mean_precision: Any  # (K,) β
    degrees_of_freedom: Any  # (K,) ν; tied ()
    covariances: Any  # E[Λ]⁻¹ = C/ν: full (K, d, d), tied (d, d), diagonal (K, d), spherical (K,)


def is_matrix(kind: str) -> bool:
    """Whether a precision of this kind is a matrix."""
    return kind in ("full", "tied")


def inverse_root(q: NormalWishart, kind: str) -> jax.Array:
    """L⁻¹, where E[Λ]⁻¹ = L Lᵀ, (K, d, d) or tied (1, d, d); for other kinds 1/sd, (K, d)."""
    components, features = jnp.shape(q.means)
    covariances = jnp.asarray(q.covariances)
    if is_matrix(kind):
        return root_of(covariances.reshape(-1, features, features))
    return jnp.broadcast_to(1 / jnp.sqrt(covariances.reshape(components, -1)), (components, features))


def half_log_det(root: jax.Array) -> jax.Array:
    """½ log |E Λ|, (K,) or tied (1,)."""
    return jnp.sum(jnp.log(jnp.diagonal(root, axis1=1, axis2=2) if root.ndim == 3 else root), axis=1)


def log_det_lost(nu: jax.Array, kind: str, features: int) -> jax.Array:
    """½ (E log |Λ| − log |E Λ|) ≤ 0, in the shape of ν."""
    if is_matrix(kind):
        halves = 0.5 * (jnp.expand_dims(nu, -1) - _counting(features, nu, jnp.ndim(nu) + 1))
        return 0.5 * (jnp.sum(digamma(halves), axis=-1) - features * jnp.log(nu / 2))
    shape = _half(kind, features) * nu
    return 0.5 * features * (digamma(shape) - jnp.log(shape))


def divergence(q: NormalWishart, prior: NormalWishart, kind: str) -> jax.Array:
    """KL(q ‖ prior) of means and precisions, (), in nats (natural logarithms); both have the same shapes."""
    q, prior = (NormalWishart(*map(jnp.asarray, leaves)) for leaves in (q, prior))
    features, root = q.means.shape[1], inverse_root(q, kind)
    white = _whiten(root, q.means - prior.means)
    ratio = prior.mean_precision / q.mean_precision
    of_means = features * (ratio - 1 - jnp.log(ratio)) + prior.mean_precision * jnp.sum(white**2, axis=1)
    nu, nu0 = q.degrees_of_freedom, prior.degrees_of_freedom
    if not is_matrix(kind):
        like = (-1, *[1] * (q.covariances.ndim - 1))
        a, a0 = (_half(kind, features) * freedom.reshape(like) for freedom in (nu, nu0))
        return 0.5 * jnp.sum(of_means) + jnp.sum(gamma_divergence(a, a * q.covariances, a0, a0 * prior.covariances))
    scale0 = jnp.reshape(nu0, (-1, 1, 1)) * prior.covariances.reshape(root.shape)  # C₀
    trace = jnp.sum(jnp.einsum("kij,kjl->kil", root, scale0, precision="highest") * root, axis=(1, 2))  # tr C₀ E Λ
    digammas = 2 * log_det_lost(nu, kind, features) + features * jnp.log(nu / 2)  # Σ_i ψ((ν − i)/2)
    # log |C|/|C₀|
    log_ratio = features * jnp.log(nu / nu0) - 2 * half_log_det(root) + 2 * half_log_det(inverse_root(prior, kind))
    of_precisions = 0.5 * ((nu - nu0) * digammas + nu0 * log_ratio - features * nu + trace)
    of_precisions = of_precisions - multigammaln(nu / 2, features) + multigammaln(nu0 / 2, features)
    return 0.5 * jnp.sum(of_means) + jnp.sum(of_precisions)


def sample(key: jax.Array, q: NormalWishart, kind: str, n: int) -> tuple[jax.Array, jax.Array]:
    """n independent means (n, K, d) and covariances Λ⁻¹, (n, ...)."""
    key_spread, key_lower, key_mean = jax.random.split(key, 3)
    components, features = q.means.shape
    nu, dtype = jnp.atleast_1d(q.degrees_of_freedom), q.means.dtype
    noise = jax.random.normal(key_mean, (n, components, features), dtype)
    if is_matrix(kind):
        # Bartlett: with C = G Gᵀ, Λ = G⁻ᵀ A Aᵀ G⁻¹, so that H = G A⁻ᵀ is a root of Λ⁻¹.
        halves = 0.5 * (nu[:, None] - _counting(features, nu, 2))
        chi = jnp.sqrt(2 * jax.random.gamma(key_spread, halves, (n, *halves.shape), dtype))
        lower = jnp.tril(jax.random.normal(key_lower, (n, nu.size, features, features), dtype), -1)
        lower = lower + chi[..., None] * np.eye(features)[None, None].astype(dtype)
        scale = nu[:, None, None] * q.covariances.reshape(-1, features, features)
        root = jnp.broadcast_to(jnp.swapaxes(cholesky(scale), 1, 2)[None], lower.shape)
        root = jnp.swapaxes(jnp.matmul(inverse(lower), root, precision="highest"), 2, 3)
        covariances = jnp.einsum("nkij,nklj->nkil", root, root, precision="highest")
        covariances = covariances[:, 0] if kind == "tied" else covariances
        root = jnp.broadcast_to(root, (*noise.shape, features))
        step = jnp.einsum("nkij,nkj->nki", root, noise, precision="highest")
    else:
        shape = _half(kind, features) * nu.reshape(-1, *[1] * (q.covariances.ndim - 1))
        gammas = jax.random.gamma(key_spread, shape, (n, *q.covariances.shape), dtype)
        covariances = (shape * q.covariances)[None] / gammas
        step = jnp.sqrt(covariances.reshape(n, components, -1)) * noise
    return q.means[None] + step / jnp.sqrt(q.mean_precision)[None, :, None], covariances


def predictive_log_prob(q: NormalWishart, kind: str, x: jax.Array) -> jax.Array:
    """log ∫ N(x; μ_k, Λ_k⁻¹) q(μ_k, Λ_k), (n, K), nats: log densities of Student t distributions.

    Their degrees of freedom are ν − d + 1 for full and tied, d ν for spherical, and ν for each column for diagonal.
    """
    features, root = q.means.shape[1], inverse_root(q, kind)
    widening = 1 + 1 / q.mean_precision  # (K,) factor of the variance, since the mean is uncertain
    nu = jnp.broadcast_to(q.degrees_of_freedom, widening.shape)
    squares = _whiten(root, x[:, None, :] - q.means[None]) ** 2 / widening[None, :, None]  # (n, K, d)
    log_det = half_log_det(root) - 0.5 * features * jnp.log(widening)
    if is_matrix(kind):
        free = nu - features + 1
        of_scale = log_det + 0.5 * features * jnp.log(free / nu)
        return _student(jnp.sum(squares, axis=2) * (free / nu)[None], free[None], features) + of_scale[None]
    if kind == "diagonal":
        return jnp.sum(_student(squares, nu[None, :, None], 1), axis=2) + log_det[None]
    return _student(jnp.sum(squares, axis=2), features * nu[None], features) + log_det[None]


def second_moment(mean: Array, kind: str) -> Array:
    """m mᵀ, m² or |m|²/d for each of the means (K, d), in the shape of the kind's C."""
    if is_matrix(kind):
        return mean[:, :, None] * mean[:, None, :]
    return mean**2 if kind == "diagonal" else (mean**2).mean(1)  # pyright: ignore[reportReturnType]


def _whiten(root: jax.Array, deviation: jax.Array) -> jax.Array:
    """(E Λ)^½ times ``deviation``, (..., K, d)."""
    if root.ndim == 2:
        return root.reshape((1,) * (deviation.ndim - 2) + root.shape) * deviation
    return jnp.einsum("kij,...kj->...ki", jnp.broadcast_to(root, (deviation.shape[-2], *root.shape[1:])), deviation,
                      precision="highest")  # fmt: skip


def _half(kind: str, features: int) -> float:
    """The shape of a precision's Gamma distribution, divided by ν."""
    return 0.5 * (features if kind == "spherical" else 1)


def _counting(features: int, like: jax.Array, rank: int) -> jax.Array:
    """0 … d − 1 along the last of ``rank`` axes."""
    return jnp.arange(features, dtype=like.dtype).reshape((1,) * (rank - 1) + (-1,))


def _student(square: jax.Array, free: jax.Array, dimensions: int) -> jax.Array:
    """Log density, nats, of a Student t of unit scale at the squared distance ``square`` from its mean."""
    return (
        gammaln((free + dimensions) / 2)
        - gammaln(free / 2)
        - 0.5 * dimensions * jnp.log(np.pi * free)
        - 0.5 * (free + dimensions) * jnp.log1p(square / free)
    )
