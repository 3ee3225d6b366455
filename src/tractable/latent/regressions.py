"""Linear regressions on the same regressors: each has its own noise, and some of their coefficients are known.

    y_i ~ N(β_i g, s_i²)  for rows i = 1 … m,    β_ij | s_i ~ N(location_ij, s_i² / λ_ij)
    s_i² ~ scaled inverse χ²(c, scale_i²)

The M-step of a linear system (``state_space``) maximises over β and s. It uses expected products of the residuals of
the current coefficients, so that in single precision a small noise variance has a small rounding error.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.small import inverse_root

Leaf = Any  # one member of θ: an array of its learnt entries, or None if all its entries are known


class Residuals(NamedTuple):
    """Weighted sums of expected products of regressors g and residuals ε = y − β g, for the β of the E-step."""

    regressors: Any  # (m, e, e) of g gᵀ, with the weights of each of the m regressions
    cross: Any  # (m, e) of ε gᵀ
    square: Any  # (m,) of ε²
    count: Any  # (m,) the sums of the weights alone
    frame: Any  # (m, e) weight · β, which can be added over sequences as the sums can
    weight: Any  # () total weight of the sequences

    @property
    def beta(self) -> jax.Array:
        return self.frame / jnp.where(self.weight > 0, self.weight, 1)

    def at_coefficients(self, beta: jax.Array) -> "Residuals":
        """The same sums at other coefficients."""
        change = self.beta - beta
        cross = jnp.einsum("mij,mj->mi", self.regressors, change)
        square = self.square + jnp.sum(change * (2 * self.cross + cross), axis=1)
        return self._replace(cross=self.cross + cross, square=square, frame=self.weight * beta)

    def in_frame_of(self, other: "Residuals") -> "Residuals":
        """The same sums at the coefficients of ``other``."""
        return self.at_coefficients(other.beta)


class Regression(NamedTuple):
    """The coefficients and noises that are learnt, and their prior."""

    free: np.ndarray  # (m, e) whether a coefficient is learnt
    noise: np.ndarray  # (m,) known sds, NaN where learnt
    n_tied: int  # the first ``n_tied`` rows share their noises with the ``n_tied`` rows after them
    strength: np.ndarray  # (m, e) λ; 0 for known coefficients, and for all without a prior
    location: np.ndarray  # (m, e)
    counts: float  # c; 0 without prior
    scale: np.ndarray  # (m,)
    floor: float  # ≥ 0, smallest variance allowed

    def maximum(self, sums: Residuals) -> tuple[jax.Array, jax.Array]:
        """The β (m, e) and sds (m,) that maximise Q + log p(θ); their known entries come out with arbitrary values."""
        sums = Residuals(*map(jnp.asarray, sums))
        old, eps = sums.beta, 10 * jnp.finfo(sums.cross.dtype).eps
        free, strength = jnp.asarray(self.free, old.dtype), jnp.asarray(self.strength, old.dtype)
        curvature = sums.regressors * free[:, :, None] * free[:, None, :]
        tiny = eps * jnp.max(jnp.diagonal(curvature, axis1=1, axis2=2), axis=1)[:, None]
        unit = jnp.eye(free.shape[1], dtype=old.dtype)
        root = inverse_root(curvature + unit[None] * (strength + free * tiny + (1 - free))[:, :, None])
        gradient = free * sums.cross - strength * (old - self.location)
        beta = old + jnp.einsum("mji,mjk,mk->mi", root, root, gradient)
        penalty = jnp.sum(strength * (beta - self.location) ** 2, axis=1)
        n_free = self.free.sum(1) if self.counts > 0 else 0
        square = self._add_tied(sums.at_coefficients(beta).square + penalty)
        degrees = self._add_tied(sums.count + n_free)
        if self.counts > 0:
            square, degrees = square + self.counts * self.scale**2, degrees + self.counts + 1
        return beta, jnp.sqrt(jnp.maximum(square / (degrees + eps), self.floor))

    def _add_tied(self, sums: jax.Array) -> jax.Array:
        return sums.at[self.n_tied : 2 * self.n_tied].add(sums[: self.n_tied])

    @property
    def variance_prior(self) -> dist.InverseGamma:
        return dist.InverseGamma(0.5 * self.counts, 0.5 * self.counts * jnp.asarray(self.scale) ** 2)

    def log_prior(self, beta: jax.Array, sds: jax.Array) -> jax.Array:
        """log p of the learnt coefficients and sds."""
        spread = jnp.where(self.free, sds[:, None] / np.sqrt(np.where(self.free, self.strength, 1)), 1)
        total = jnp.sum(jnp.where(self.free, dist.Normal(self.location, spread).log_prob(beta), 0))
        is_learnt = np.isnan(self.noise) & (np.arange(len(sds)) >= self.n_tied)
        sds = jnp.where(is_learnt, sds, 1)
        return total + jnp.sum(jnp.where(is_learnt, self.variance_prior.log_prob(sds**2) + jnp.log(2 * sds), 0))

    def draw(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw of β and sds from the prior; known coefficients come out with arbitrary values."""
        key_noise, key_beta = jax.random.split(key)
        sds = jnp.where(np.isnan(self.noise), jnp.sqrt(self.variance_prior.sample(key_noise)), self.noise)
        sds = sds.at[: self.n_tied].set(sds[self.n_tied : 2 * self.n_tied])
        noise = jax.random.normal(key_beta, self.free.shape, sds.dtype)
        spread = sds[:, None] / np.sqrt(np.where(self.free, self.strength, 1))
        return jnp.asarray(self.location) + spread * noise, sds

    def log_density(self, residual: jax.Array, weights: jax.Array, sds: jax.Array) -> jax.Array:
        """The log density of all residuals (T, m), (); residuals of weight 0 and rows without noise do not count."""
        counted = (weights > 0) & (self.noise != 0)[None]
        spread = jnp.where(self.noise == 0, 1, sds)[None]
        return jnp.sum(jnp.where(counted, dist.Normal(0.0, spread).log_prob(residual), 0))


def residuals(beta: jax.Array, y: jax.Array, g: jax.Array, weights: jax.Array, latent: tuple) -> Residuals:
    """The ``Residuals`` of one sequence, whose total weight is 1.

    Args:
        y, g, weights: expected targets (T, m), expected regressors (T, e), and weights (T, m).
        latent: a pair that describes the first l regressors, which are latent: a matrix (m, l) of how targets depend on
            them directly, not through β; and their covariances (T, l, l). All other regressors are known exactly.
    """
    picks, covariance = latent
    count, residual = picks.shape[1], y - g @ beta.T
    spread = jnp.einsum("tm,tij->mij", weights, covariance)
    loading = picks - beta[:, :count]  # ε = loading · latent regressors + known terms
    shared = jnp.einsum("mi,mij->mj", loading, spread)
    regressors = jnp.einsum("tm,ti,tj->mij", weights, g, g).at[:, :count, :count].add(spread)
    cross = ((weights * residual).T @ g).at[:, :count].add(shared)
    square = jnp.sum(weights * residual**2, axis=0) + jnp.sum(shared * loading, axis=1)
    return Residuals(regressors, cross, square, jnp.sum(weights, axis=0), beta, jnp.ones((), beta.dtype))


def fill(known: np.ndarray, leaf: Leaf) -> jax.Array:
    """The matrix with its known entries, and with its learnt entries from the leaf."""
    free, dtype = np.isnan(known), jnp.result_type(float)
    if free.all() and leaf is not None:
        return jnp.asarray(leaf, dtype)
    matrix = jnp.asarray(np.nan_to_num(known), dtype)
    return matrix if leaf is None else matrix.at[np.nonzero(free)].set(jnp.asarray(leaf, dtype))


def learnt_entries(known: np.ndarray | None, matrix: jax.Array | np.ndarray) -> Leaf:
    """The leaf of a matrix: the matrix if all entries are learnt, None if none is, else a vector of them row by row."""
    free = np.isnan(0.0 if known is None else known)
    if not free.any():
        return None
    return matrix if free.all() else matrix[np.nonzero(free)]
