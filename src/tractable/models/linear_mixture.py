"""Mixtures whose log densities are linear in a few features of x: what exponential families have in common."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from tractable.beliefs.check import Check
from tractable.core import Batch
from tractable.kernels.em import Expected, MStep, observed
from tractable.models.latent import LatentModel
from tractable.tools.errors import DataError

PyTree = Any
Theta = TypeVar("Theta", bound=Any)  # with weights (K,), means (K, d), and perhaps covariances
SEEN = 10_000  # rows that a start is made from


class Moments(NamedTuple):
    """Σ_n w_n r_nk T(x_n), x about the centre."""

    count: Any  # (K,), T = 1
    first: Any  # (K, d), T = x
    second: Any  # T = the upper triangle of xxᵀ: full (K, d(d+1)/2), tied (d(d+1)/2,); x²: (K, d); |x|²: (K,)


class Linear(NamedTuple):
    """A family of densities whose logarithms are linear in features of x, so that the E-step is two matrix products:

        logits = features · coefficientsᵀ   (n, K),      statistics = responsibilitiesᵀ · features   (K, m)

    Attributes:
        clean: ``(x, dtype) -> x``, rows as they are looked at.
        expand: ``x -> features (n, m)``.
        coefficients: ``theta -> (K, m)``, those of log π_k p(x | θ_k), or of its expectation.
        moments: ``sums of features (K, m) -> statistics``.
    """

    clean: Callable[[Any, Any], jax.Array]
    expand: Callable[[jax.Array], jax.Array]
    coefficients: Callable[[Any], jax.Array]
    moments: Callable[[jax.Array], Moments]

    def model(self, m_step: MStep, position: PyTree, **others: Any) -> LatentModel:
        """A mixture of this family; the rest as for ``LatentModel.from_steps``."""
        return LatentModel.from_steps(
            self.e_step, m_step, self.log_prob, position, responsibilities=self.responsibilities, **others
        )

    def e_step(self, theta: PyTree, batch: Batch) -> Expected:
        weights = jnp.asarray(batch.mask, jnp.result_type(theta.means))
        phi, share, log_probs = self._shares(theta, observed(batch), weights)
        return Expected(self._summed(share, phi), jnp.sum(weights * log_probs))

    def log_prob(self, theta: PyTree, x: ArrayLike) -> jax.Array:
        """log Σ_k of every row, (n,), nats."""
        return self._shares(theta, x)[2]

    def responsibilities(self, theta: PyTree, x: ArrayLike) -> jax.Array:
        """(n, K)."""
        return self._shares(theta, x)[1]

    def statistics(self, batch: Batch, responsibilities: ArrayLike) -> Moments:
        """Those of a guess, (n, K), of which row belongs to which component."""
        share = jnp.asarray(responsibilities, jnp.result_type(float))
        weights = jnp.asarray(batch.mask, share.dtype)
        return self._summed(weights[:, None] * share, self._features(observed(batch), share.dtype, weights))

    def _shares(self, theta: PyTree, rows: ArrayLike, weights: jax.Array | None = None) -> tuple[jax.Array, ...]:
        """Features (n, m), (weighted) responsibilities (n, K) and log densities (n,)."""
        phi = self._features(rows, jnp.result_type(theta.means), weights)
        logits = jnp.matmul(phi, self.coefficients(theta).T, precision="highest")
        return phi, *normalised(logits, weights)

    def _features(self, rows: ArrayLike, dtype: DTypeLike, weights: jax.Array | None) -> jax.Array:
        x = self.clean(rows, dtype)
        if weights is not None:
            x = jnp.where(weights[:, None] > 0, x, 0)  # a row that does not count may hold anything
        return self.expand(x)

    def _summed(self, share: jax.Array, phi: jax.Array) -> Moments:
        return self.moments(jnp.matmul(share.T, phi, precision="highest"))


def normalised(logits: jax.Array, weights: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """(Weighted) responsibilities (n, K) and log densities (n,), by one exponential a logit."""
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=1))
    powers = jnp.exp(logits - peak[:, None])
    total = jnp.sum(powers, axis=1)
    scale = 1 / total if weights is None else weights / total
    return powers * scale[:, None], peak + jnp.log(total)


def drawn_components(key: jax.Array, weights: jax.Array, n: int) -> jax.Array:
    """Which component each of n rows comes from, (n,)."""
    return jax.random.categorical(key, jnp.log(weights)[None, :], shape=(n,))


def permuted(theta: Theta, order: jax.Array, tied: bool = False) -> Theta:
    """The same mixture, its components in another order; a tied covariance is no component's own."""
    own = theta[2:] if tied else [leaf[order] for leaf in theta[2:]]
    return type(theta)(theta.weights[order], theta.means[order], *own)


def by_weight(theta: Theta, tied: bool = False) -> Theta:
    """The same mixture, its components by descending weight."""
    return permuted(theta, jnp.argsort(-theta.weights), tied)


def clustered(key: jax.Array, rows: ArrayLike, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, at most ``SEEN`` of them and without gaps, and which of K k-means++ centres each is nearest to, (n, K).

    In units of each column's sd. A missing number is its column's mean.

    Raises:
        DataError: fewer rows than components; numbers that are infinite.
    """
    from sklearn.cluster import kmeans_plusplus

    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    x = np.asarray(rows, np.float64)
    if len(x) < components:
        raise DataError(f"A mixture of {components} components needs as many rows at least; got {len(x)}.")
    if len(x) > SEEN:
        x = x[generator.choice(len(x), SEEN, replace=False)]
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
    nearest[chosen] = np.arange(components)  # so that of equal rows none is left without
    return x, np.eye(components)[nearest]


def counts_check(theta: PyTree, size: int, least: int) -> list[Check]:
    """How many rows a component has to itself."""
    count = float(np.min(np.asarray(theta.weights, np.float64)) * size)
    verdict = "trust" if count >= 2 * least else "caution" if count >= 1 else "reject"
    sentence = f"effective rows of the smallest component; below {2 * least} it describes rows, not a population"
    return [Check("smallest component", count, verdict, sentence)]
