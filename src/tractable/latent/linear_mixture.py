"""What all mixtures share, whatever the densities of their components."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core import tree
from tractable.core.check import Check
from tractable.core.errors import DataError
from tractable.core.latent import LatentModel
from tractable.core.model import Batch, PyTree
from tractable.core.small import inverse
from tractable.core.sums import Expected, MStep, OfRows, accumulate, draw_function, observed

Theta = TypeVar("Theta", bound=Any)  # with weights (K,), means (K, d), and perhaps covariances
START_ROWS = 10_000  # largest number of rows from which a starting point is made
# Rows that an E-step takes at a time: their intermediate arrays stay in the cache, which makes it three times as fast
# (docs/decisions/038).
BLOCK = 4096


class Frame(NamedTuple):
    """Coordinates of each component: y = L⁻¹ (x − m), in which the component's rows have about mean 0 and sd 1."""

    means: Any  # (K, d) m, minus the model's centre
    roots: Any  # L, roots of covariances, full (K, d, d) or tied (1, d, d); or sds, diagonal (K, d) or spherical (K, 1)


class Moments(NamedTuple):
    """Statistics Σ_n w_n r_nk T(y_n), where y_n is x_n, or x_n in the component's frame."""

    count: Any  # (K,), T = 1
    first: Any  # (K, d), T = y
    second: Any = ()  # T = y yᵀ: full (K, d, d), tied (d, d); y²: (K, d); |y|²: (K,)
    frame: Any = ()  # the Frame times Σ_n w_n, so that it can be summed over batches like the statistics

    def in_frame_of(self, other: "Moments") -> "Moments":
        """The same statistics in the frame of ``other``, so that statistics computed at different θ can be added.

        y' = A y + b,    A = L'⁻¹ L,    b = L'⁻¹ (m − m')
        """
        if not isinstance(self.frame, Frame):
            return self
        total, other_total = jnp.sum(self.count), jnp.sum(other.count)
        own_frame = jax.tree.map(lambda leaf: leaf / jnp.where(total > 0, total, 1), self.frame)
        other_frame = jax.tree.map(lambda leaf: leaf / other_total, other.frame)
        count, shift = jnp.asarray(self.count), own_frame.means - other_frame.means
        if own_frame.roots.ndim == 3:
            inverses = inverse(other_frame.roots)
            turn, shift = jnp.matmul(inverses, own_frame.roots, precision="highest"), multiply(inverses, shift)
            first = multiply(turn, self.first)
            second = congruence(turn, self.second.reshape(-1, *turn.shape[1:])).reshape(self.second.shape)
            cross = first[:, :, None] * shift[:, None, :]
            correction = cross + jnp.swapaxes(cross, 1, 2)
            correction = correction + count[:, None, None] * shift[:, :, None] * shift[:, None, :]
            correction = jnp.sum(correction, axis=0) if second.ndim == 2 else correction
        else:
            turn, shift = own_frame.roots / other_frame.roots, shift / other_frame.roots
            first = turn * self.first
            correction = 2 * first * shift + count[:, None] * shift**2
            correction = jnp.sum(correction, axis=1) if self.second.ndim == 1 else correction
            second = self.second * (turn[:, 0] if self.second.ndim == 1 else turn) ** 2
        frame = jax.tree.map(lambda leaf: total * leaf, other_frame)
        result = Moments(count, first + count[:, None] * shift, second + correction, frame)
        return tree.where(other_total > 0, result, self)


def multiply(matrices: jax.Array, vectors: jax.Array) -> jax.Array:
    """A_k v_k, (K, d), for A (1 or K, d, d) and v (K, d)."""
    return jnp.sum(matrices * vectors[:, None, :], axis=2)


def congruence(matrices: jax.Array, inner: jax.Array) -> jax.Array:
    """A V Aᵀ, for A (1 or K, d, d)."""
    return jnp.matmul(
        jnp.matmul(matrices, inner, precision="highest"), jnp.swapaxes(matrices, 1, 2), precision="highest"
    )


class Family(NamedTuple):
    """A family of mixtures, whose densities and statistics use the same *features*, arrays computed from the rows.

    Attributes:
        clean: ``(rows, dtype) -> x``, which checks, centres and casts rows.
        logits: ``(theta, x) -> (logits (K, n), features)``, log π_k p(x | θ_k), or its expectation. The axis of rows
            is last, because a processor computes neighbours on the last axis together.
        summed: ``(theta, responsibilities (K, n), features) -> statistics``.
    """

    clean: Callable[[Any, Any], jax.Array]
    logits: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]
    summed: Callable[[Any, jax.Array, jax.Array], Moments]

    def model(self, m_step: MStep, position: PyTree, **others: Any) -> LatentModel:
        """A mixture of this family; the arguments are as for ``LatentModel.from_steps``."""
        return LatentModel.from_steps(
            self.e_step, m_step, self.log_prob, position, responsibilities=self.responsibilities,
            drawn=draw_function(self.joint), complete=complete_by(self.joint), **others,
        )  # fmt: skip

    def joint(self, theta: PyTree, rows: ArrayLike) -> jax.Array:
        """log π_k p(x_n | θ_k), (K, n)."""
        return self.logits(theta, self.clean(rows, jnp.result_type(theta.means)))[0]

    def e_step(self, theta: PyTree, batch: Batch) -> Expected:
        return accumulate(self._of_block, theta, observed(batch), batch.mask, BLOCK)

    def _of_block(self, theta: PyTree, batch: Batch) -> Expected:
        weights = jnp.asarray(batch.mask, jnp.result_type(theta.means))
        features, share, log_probs = self._shares(theta, batch.data, weights)
        return Expected(self.summed(theta, share, features), jnp.sum(weights * log_probs))

    def log_prob(self, theta: PyTree, x: ArrayLike) -> jax.Array:
        """log p(x_n | θ) = log Σ_k π_k p(x_n | θ_k), (n,), in nats (natural logarithms)."""
        return self._shares(theta, x)[2]

    def responsibilities(self, theta: PyTree, x: ArrayLike) -> jax.Array:
        """p(k | x_n, θ), (n, K)."""
        return self._shares(theta, x)[1].T

    def _shares(self, theta: PyTree, rows: ArrayLike, weights: jax.Array | None = None) -> tuple[jax.Array, ...]:
        """Features of rows, their responsibilities (K, n), times weights if these are given, and log densities (n,)."""
        x = self.clean(rows, jnp.result_type(theta.means))
        if weights is not None:
            x = jnp.where(weights[:, None] > 0, x, 0)  # a row of weight 0 may hold NaN
        logits, features = self.logits(theta, x)
        return features, *normalise(logits, weights)


def normalise(logits: jax.Array, weights: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Responsibilities (K, n), times weights if given, and log densities (n,), by one exponential per logit (K, n)."""
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=0))
    powers = jnp.exp(logits - peak[None])
    total = jnp.sum(powers, axis=0)
    scale = 1 / total if weights is None else weights / total
    return powers * scale[None], peak + jnp.log(total)


def complete_by(joint: OfRows) -> Callable[[PyTree, PyTree, jax.Array], jax.Array]:
    """log p(x_n, z_n | θ) of a mixture, as ``Sums.complete``; ``joint`` gives log π_k p(x_n | θ_k), (K, n)."""
    return lambda theta, rows, z: jnp.take_along_axis(joint(theta, rows), z[None], axis=0)[0]


def draw_components(key: jax.Array, weights: jax.Array, n: int) -> jax.Array:
    """A random component for each of n rows, (n,)."""
    return jax.random.categorical(key, jnp.log(weights)[None, :], shape=(n,))


def permute(theta: Theta, order: jax.Array, tied: bool = False) -> Theta:
    """The same mixture with its components in another order; a tied covariance is not reordered."""
    own = theta[2:] if tied else [leaf[order] for leaf in theta[2:]]
    return type(theta)(theta.weights[order], theta.means[order], *own)


def by_weight(theta: Theta, tied: bool = False) -> Theta:
    """The same mixture with its components sorted by descending weight."""
    return permute(theta, jnp.argsort(-theta.weights), tied)


def cluster_rows(key: jax.Array, rows: ArrayLike, components: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``START_ROWS`` rows, and the nearest of K k-means++ centres to each row, one-hot (n, K).

    Distances are in units of each column's sd. Missing numbers are replaced by their columns' means.

    Raises:
        DataError: there are fewer rows than components, a column has no numbers, or a number is infinite.
    """
    from sklearn.cluster import kmeans_plusplus

    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    x = np.asarray(rows, np.float64)
    if len(x) < components:
        raise DataError(f"A mixture of {components} components needs at least as many rows; got {len(x)}.")
    if len(x) > START_ROWS:
        x = x[generator.choice(len(x), START_ROWS, replace=False)]
    if np.isinf(x).any():
        raise DataError("The rows hold infinite numbers; a mixture expects finite ones.")
    gaps = np.isnan(x)
    if gaps.any():
        if gaps.all(0).any():
            raise DataError(f"Column {int(np.argmax(gaps.all(0)))} of the rows has no number at all; drop it.")
        x = np.where(gaps, np.nanmean(x, axis=0), x)
    spread = x.std(0)
    scaled = (x - x.mean(0)) / np.where(spread > 0, spread, 1)
    centres, chosen = kmeans_plusplus(scaled, components, random_state=int(generator.integers(2**31)))
    squares = np.stack([np.square(scaled - c).sum(1) for c in centres], 1)
    nearest = squares.argmin(1)
    nearest[chosen] = np.arange(components)  # so that equal rows leave no component empty
    return x, np.eye(components)[nearest]


def counts_check(theta: PyTree, size: int, least: int) -> list[Check]:
    """The check of the smallest component's number of rows."""
    count = float(np.min(np.asarray(theta.weights, np.float64)) * size)
    verdict = "trust" if count >= 2 * least else "caution" if count >= 1 else "reject"
    sentence = f"effective rows of the smallest component; below {2 * least}, it describes these rows, not a population"
    return [Check("smallest component", count, verdict, sentence)]
