"""Several linear regressions on the same regressors, with some coefficients known.

    y_i ~ N(β_i g, s_i²)  for rows i = 1 … m  (or y ~ N(β g, Σ)),    β_ij | s_i ~ N(0, s_i² / λ_j)
    s_i² ~ scaled inverse χ²(c, scale_i²)  (Σ ~ inverse Wishart(c + m, c diag scale²))

For the M-step of a linear system. It uses sums of expected residuals about the current coefficients, so that a small
noise keeps its digits in single precision.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from tractable.models.emissions import inverse_wishart_draw, inverse_wishart_log_prob
from tractable.tools.small import cholesky, inverse_root

Leaf = Any  # an array of θ, or None if all of it is known


class Residuals(NamedTuple):
    """Σ w E[·] of regressors g and residuals ε = y − β g, at the β they were computed with."""

    regressors: Any  # (m or 1, e, e) g gᵀ, per row i or one for all
    cross: Any  # (m, e) ε gᵀ
    square: Any  # (m,) ε²; (m, m) ε εᵀ if the noise is a covariance
    count: Any  # (m,); () if the noise is a covariance
    frame: Any  # (m, e) weight · β
    weight: Any  # () total weight of the sequences

    def in_frame_of(self, other: "Residuals") -> "Residuals":
        """The same sums at the coefficients of ``other``."""
        off = self.frame / jnp.where(self.weight > 0, self.weight, 1) - other.frame / other.weight  # β − β'
        moved = jnp.einsum("mij,mj->mi", jnp.broadcast_to(self.regressors, (len(off), *self.regressors.shape[1:])), off)
        if self.square.ndim == 1:
            more = jnp.sum(off * (2 * self.cross + moved), axis=1)
        else:
            across = jnp.matmul(self.cross, off.T, precision="highest")
            more = across + across.T + jnp.matmul(moved, off.T, precision="highest")
        told = self._replace(
            cross=self.cross + moved, square=self.square + more, frame=self.weight * other.frame / other.weight
        )
        return jax.tree.map(lambda a, b: jnp.where(self.weight > 0, a, b), told, self)


@dataclass(frozen=True)
class Regression:
    """The regressions' settings: which coefficients and noises are learnt.

    Attributes:
        known: (m, e) known coefficients, NaN where learnt.
        noise: variances (m,), NaN where learnt; "full", a learnt covariance; or a known covariance (m, m).
        prior: (e,) λ, with ``counts`` c and ``scale`` (m,); None for a flat prior.
        floor: ≥ 0, least variance.
    """

    known: np.ndarray
    noise: np.ndarray | str
    prior: np.ndarray | None
    scale: np.ndarray | None
    counts: float
    floor: float

    @property
    def free(self) -> np.ndarray:
        return np.isnan(self.known)

    @property
    def full(self) -> bool:
        """Whether the noise is a covariance, known or not, instead of variances."""
        return isinstance(self.noise, str) or self.noise.ndim == 2

    @property
    def learns_noise(self) -> bool:
        return isinstance(self.noise, str) or bool(np.isnan(self.noise).any())

    @property
    def noiseless(self) -> np.ndarray:
        """Whether a row is known to have no noise, (m,); of a singular covariance all are."""
        if isinstance(self.noise, str):
            return np.zeros(len(self.known), bool)
        singular = np.linalg.matrix_rank(self.noise) < len(self.noise) if self.full else self.noise == 0
        return np.broadcast_to(singular, len(self.known))

    def log_density(self, off: jax.Array, counts: jax.Array, leaf: Leaf) -> jax.Array:
        """log p of residuals off (..., m) where counts (..., m) is not 0, (...,); rows without noise leave out."""
        variance = self.variance(leaf)
        if not self.full:
            sds = jnp.sqrt(jnp.where(self.noiseless, 1, variance))
            return jnp.sum(jnp.where((counts > 0) & ~self.noiseless, dist.Normal(0.0, sds).log_prob(off), 0), -1)
        if self.noiseless.any():
            return jnp.zeros(off.shape[:-1], off.dtype)
        root = inverse_root(variance)
        white = jnp.matmul(off, root.T, precision="highest")
        each = dist.Normal(0.0, 1.0).log_prob(white) + jnp.log(jnp.diagonal(root))
        return jnp.sum(jnp.where(counts > 0, each, 0), -1)

    def coefficients(self, leaves: list[tuple[slice, Leaf]]) -> jax.Array:
        """β (m, e), from pairs of columns and the leaf of θ that fills them."""
        parts = [filled(self.known[:, columns], leaf) for columns, leaf in leaves]
        return jnp.concatenate(parts, axis=1)

    def variance(self, leaf: Leaf) -> jax.Array:
        """The noise's variances (m,), or covariance (m, m)."""
        if not self.full:
            return filled(self._variances(), None if leaf is None else jnp.asarray(leaf) ** 2)
        return jnp.asarray(self.noise if leaf is None else leaf, jnp.result_type(float))

    def _variances(self) -> np.ndarray:
        """Variances (m,), NaN where learnt."""
        return np.asarray(self.noise, np.float64)

    def covariance(self, leaf: Leaf) -> jax.Array:
        """The noise's covariance (m, m)."""
        found = self.variance(leaf)
        return jnp.diag(found) if found.ndim == 1 else found

    def example(self) -> tuple[Leaf, Any]:
        """An example leaf of the noise, and its support; None for a known noise."""
        if not self.learns_noise:
            return None, None
        if self.full:
            return np.eye(len(self.known)), constraints.positive_definite
        return np.ones(int(np.isnan(self.noise).sum())), constraints.positive

    def as_leaf(self, sds: np.ndarray) -> Leaf:
        """The noise leaf for sds (m,)."""
        if not self.learns_noise:
            return None
        return np.diag(sds**2) if self.full else sds[np.isnan(self.noise)]

    def maximum(self, sums: Residuals) -> tuple[jax.Array, Leaf]:
        """β (m, e) and the noise leaf that maximise Q + log p(θ)."""
        regressors, cross, square, count, frame, weight = jax.tree.map(jnp.asarray, sums)
        before = frame / jnp.where(weight > 0, weight, 1)
        free = jnp.asarray(self.free, cross.dtype)
        ridge = free * (0.0 if self.prior is None else jnp.asarray(self.prior, cross.dtype)[None])  # (m, e)
        tiny = 10 * jnp.finfo(cross.dtype).eps * jnp.max(jnp.diagonal(regressors, axis1=1, axis2=2), axis=1)[:, None]
        inside = regressors * free[:, :, None] * free[:, None, :]
        unit = jnp.eye(free.shape[1], dtype=cross.dtype)[None]
        inside = inside + unit * (ridge + free * tiny + (1 - free))[:, :, None]
        root = inverse_root(inside)
        towards = free * cross - ridge * before
        solved = jnp.einsum("mij,mj->mi", root, towards, precision="highest")
        change = jnp.einsum("mji,mj->mi", root, solved, precision="highest")
        after = before + change
        if not self.learns_noise:
            return after, None
        told = Residuals(regressors, cross, square, count, frame, weight).in_frame_of(
            Residuals(regressors, cross, square, count, after, jnp.ones((), cross.dtype))
        )
        return after, self._noise(told.square, count, after, ridge)

    def _noise(self, square: jax.Array, count: jax.Array, coefficients: jax.Array, ridge: jax.Array) -> jax.Array:
        rows, c = len(coefficients), self.counts
        tiny = 10 * jnp.finfo(square.dtype).eps
        if not self.full:
            degrees = count + tiny
            if self.prior is not None:
                scale, free = jnp.asarray(self.scale, square.dtype), jnp.asarray(self.free.sum(1), square.dtype)
                square = square + jnp.sum(ridge * coefficients**2, axis=1) + c * scale**2
                degrees = degrees + free + c + 1
            return taken(self._variances(), jnp.sqrt(jnp.maximum(square / degrees, self.floor)))
        degrees = count + tiny
        if self.prior is not None:
            shrunk = jnp.matmul(coefficients * ridge, coefficients.T, precision="highest")
            square = square + shrunk + c * jnp.diag(jnp.asarray(self.scale, square.dtype) ** 2)
            degrees = degrees + int(self.free[0].sum()) + c + 2 * rows + 1
        return 0.5 * (square + square.T) / degrees + self.floor * jnp.eye(rows, dtype=square.dtype)

    def log_prior(self, coefficients: jax.Array, leaf: Leaf) -> jax.Array:
        """log p of the learnt coefficients and noise; 0 for a flat prior."""
        if self.prior is None or self.scale is None:
            return jnp.zeros((), coefficients.dtype)
        free, weight = jnp.asarray(self.free), jnp.asarray(self.prior, coefficients.dtype)[None]
        variance = self.variance(leaf)
        if not self.full:
            sds = jnp.sqrt(jnp.where(free, variance[:, None] / weight, 1))
            found = jnp.sum(jnp.where(free, dist.Normal(0.0, sds).log_prob(coefficients), 0))
        else:
            root = inverse_root(variance)
            z = jnp.matmul(root, coefficients, precision="highest") * jnp.sqrt(weight)
            log_det = jnp.sum(jnp.log(jnp.diagonal(root)))
            rows = len(coefficients)
            each = log_det + 0.5 * rows * jnp.log(weight[0] / (2 * np.pi)) - 0.5 * jnp.sum(z**2, axis=0)
            found = jnp.sum(jnp.where(free[0], each, 0))
        if not self.learns_noise:
            return found
        scale, c = jnp.asarray(self.scale, coefficients.dtype), self.counts
        if self.full:
            return found + inverse_wishart_log_prob(variance, c, scale)
        learnt = jnp.isnan(jnp.asarray(self.noise))
        variance = jnp.where(learnt, variance, 1)
        each = dist.InverseGamma(0.5 * c, 0.5 * c * scale**2).log_prob(variance) + jnp.log(2 * jnp.sqrt(variance))
        return found + jnp.sum(jnp.where(learnt, each, 0))

    def draw(self, key: jax.Array) -> tuple[jax.Array, Leaf]:
        """A draw of β and the noise leaf from the prior."""
        key_noise, key_beta = jax.random.split(key)
        scale, c = jnp.asarray(self.scale, jnp.result_type(float)), self.counts
        leaf = None
        if self.learns_noise and self.full:
            leaf = inverse_wishart_draw(key_noise, c, scale, ())
        elif self.learns_noise:
            leaf = taken(self._variances(), jnp.sqrt(dist.InverseGamma(0.5 * c, 0.5 * c * scale**2).sample(key_noise)))
        variance = self.variance(leaf)
        root = cholesky(variance) if self.full else jnp.diag(jnp.sqrt(variance))
        noise = jax.random.normal(key_beta, self.known.shape, scale.dtype)
        drawn = jnp.matmul(root, noise, precision="highest") / jnp.sqrt(jnp.asarray(self.prior))[None]
        return jnp.where(self.free, drawn, jnp.nan_to_num(self.known)), leaf


def filled(known: np.ndarray, leaf: Leaf) -> jax.Array:
    """The matrix with known entries, and learnt ones from the leaf."""
    free, dtype = np.isnan(known), jnp.result_type(float)
    if free.all() and leaf is not None:
        return jnp.asarray(leaf, dtype).reshape(known.shape)
    whole = jnp.asarray(np.nan_to_num(known), dtype)
    return whole if leaf is None else whole.at[np.nonzero(free)].set(jnp.asarray(leaf, dtype))


def taken(known: np.ndarray, whole: jax.Array | np.ndarray, shape: tuple[int, ...] | None = None) -> Leaf:
    """The leaf of a matrix: the matrix, a vector of its learnt entries row by row, or None if all are known."""
    free = np.isnan(known)
    if not free.size or not free.any():
        return None
    return whole.reshape(known.shape if shape is None else shape) if free.all() else whole[np.nonzero(free)]
