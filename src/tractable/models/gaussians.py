"""The closed forms of a mixture of normals, of whole rows and of rows with gaps."""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.beliefs.check import Check
from tractable.core import Batch
from tractable.kernels.em import Expected, observed
from tractable.models import linear_mixture
from tractable.models.columns import about, check_sizes, origin_of
from tractable.models.conjugate import LOG_2PI, Numbers, Real
from tractable.models.latent import LatentModel
from tractable.models.linear_mixture import Linear, Moments
from tractable.models.normal_wishart import half_log_det, is_matrix
from tractable.tools.errors import ModelError
from tractable.tools.small import cholesky, inverse_root

COVARIANCES = ("full", "tied", "diagonal", "spherical")


class Gaussians(NamedTuple):
    """θ of a mixture of normals."""

    weights: Any  # (K,) π
    means: Any  # (K, d)
    covariances: Any  # full (K, d, d), tied (d, d), diagonal (K, d), spherical (K,)


class Setting(NamedTuple):
    """Which mixture of normals it is, and its closed forms."""

    components: int  # K
    features: int  # d
    covariance: str  # one of COVARIANCES
    floor: float  # of variances
    origin: tuple[float, ...]  # (d,) in single precision: the same number in both

    @property
    def centre(self) -> np.ndarray:
        return np.array([self.origin], np.float32)  # (1, d)

    @property
    def family(self) -> Linear:
        """As densities that are linear in 1, x and x's squares."""
        return Linear(partial(about, self.centre), partial(expand, self.covariance), self.coefficients, self.moments)

    @lru_cache(maxsize=128)  # noqa: B019
    def mixture(self) -> LatentModel:
        """The same one for equal settings."""
        position, support = self.example()
        tied = self.covariance == "tied"
        return self.family.model(
            self.m_step, position, support=support, sample=self.sample, begin=self.begin,
            examine=self.examine, shift=lambda theta, offset: theta._replace(means=theta.means + offset),
            canonical=partial(linear_mixture.by_weight, tied=tied), permute=partial(linear_mixture.permuted, tied=tied),
        )  # fmt: skip

    @lru_cache(maxsize=128)  # noqa: B019
    def mixture_of_gaps(self) -> LatentModel:
        """Of rows in which NaN marks what is missing."""
        return self.mixture().with_steps(
            e_step=self.e_step_of_gaps,
            log_prob=lambda theta, x: self.shares(theta, x)[1],
            responsibilities=lambda theta, x: self.shares(theta, x)[0],
        )

    def coefficients(self, theta: Gaussians) -> jax.Array:
        """Those of log π_k N(x; μ_k, Σ_k), linear in the features: (K, m)."""
        components, features, covariance, *_ = self
        means = theta.means - self.centre.astype(theta.means.dtype)
        if is_matrix(covariance):
            root = inverse_root(jnp.broadcast_to(theta.covariances, (components, features, features)))
            linear, second = of_matrices(root, means)
            log_det = half_log_det(root)
        else:
            precision = 1 / theta.covariances.reshape(components, -1)  # (K, d) or (K, 1)
            linear, second = precision * means, -0.5 * precision
            log_det = 0.5 * jnp.sum(jnp.log(jnp.broadcast_to(precision, means.shape)), axis=1)
        constant = jnp.log(theta.weights) + log_det - 0.5 * jnp.sum(linear * means, axis=1) - 0.5 * features * LOG_2PI
        return jnp.concatenate([constant[:, None], linear, second], axis=1)

    def moments(self, sums: jax.Array) -> Moments:
        """Statistics from Σ r times the features, (K, m)."""
        second = sums[:, 1 + self.features :]
        if self.covariance == "tied":
            second = jnp.sum(second, axis=0)
        elif self.covariance == "spherical":
            second = second[:, 0]
        return Moments(sums[:, 0], sums[:, 1 : 1 + self.features], second)

    def m_step(self, statistics: Moments) -> Gaussians:
        _, features, covariance, floor, _ = self
        count, first, second = jax.tree.map(jnp.asarray, statistics)
        count = count + 10 * jnp.finfo(count.dtype).eps  # an empty component stays finite
        means = first / count[:, None]
        if covariance == "full":
            spread = unfolded(second / count[:, None], features) - means[:, :, None] * means[:, None, :]
        elif covariance == "tied":
            between = jnp.einsum("k,ki,kj->ij", count, means, means, precision="highest")
            spread = (unfolded(second, features) - between) / jnp.sum(count)
        elif covariance == "diagonal":
            spread = second / count[:, None] - means**2
        else:
            spread = (second / count - jnp.sum(means**2, axis=1)) / features
        lift = np.broadcast_to(floor * np.eye(features) if is_matrix(covariance) else floor, spread.shape)
        means = means + self.centre.astype(means.dtype)
        return Gaussians(count / jnp.sum(count), means, spread + lift.astype(spread.dtype))

    def sample(self, key: jax.Array, theta: Gaussians, n: int) -> tuple[jax.Array, jax.Array]:
        """Rows (n, d) and their components (n,)."""
        components, features, covariance, *_ = self
        key_component, key_noise = jax.random.split(key)
        k = linear_mixture.drawn_components(key_component, theta.weights, n)
        noise = jax.random.normal(key_noise, (n, features), theta.means.dtype)
        if is_matrix(covariance):
            roots = cholesky(jnp.broadcast_to(theta.covariances, (components, features, features)))
            return theta.means[k] + jnp.einsum("nij,nj->ni", roots[k], noise, precision="highest"), k
        return theta.means[k] + jnp.sqrt(theta.covariances.reshape(components, -1))[k] * noise, k

    def begin(self, key: jax.Array, rows: ArrayLike) -> Gaussians:
        """θ of clusters of rows."""
        components, features, covariance, floor, _ = self
        x, shares = linear_mixture.clustered(key, rows, components)
        count = shares.sum(0)
        means = shares.T @ x / count[:, None]
        # Clusters of few rows have no covariance of their own yet: all begin with the one within clusters.
        off = x - shares @ means
        within = off.T @ off / len(x) + floor * np.eye(features)
        within[np.diag_indices(features)] += 1e-3 * x.var(0)
        spread = {"full": within, "tied": within, "diagonal": np.diag(within), "spherical": np.diag(within).mean()}
        like = (components,) if covariance == "spherical" else (components, *np.shape(spread[covariance]))
        shape = np.shape(within) if covariance == "tied" else like
        return Gaussians(count / len(x), means, np.broadcast_to(spread[covariance], shape))

    def example(self) -> tuple[Gaussians, Gaussians]:
        """A θ, and where its numbers may lie."""
        components, features, covariance, *_ = self
        matrix = is_matrix(covariance)
        unit = np.eye(features) if matrix else np.ones(features if covariance == "diagonal" else ())
        each = unit if covariance == "tied" else np.broadcast_to(unit, (components, *unit.shape))
        position = Gaussians(np.full(components, 1 / components), np.zeros((components, features)), each)
        positive = constraints.positive_definite if matrix else constraints.positive
        return position, Gaussians(constraints.simplex, constraints.real, positive)

    def examine(self, theta: Gaussians, size: int) -> list[Check]:
        """What a report should say of a maximum."""
        return [*linear_mixture.counts_check(theta, size, self.features + 1), *self._floor_checks(theta, size)]

    def _floor_checks(self, theta: Gaussians, size: int) -> list[Check]:
        """Components whose least variance the floor holds up."""
        count, floor = np.asarray(theta.weights, np.float64) * size, self.floor
        given = np.asarray(theta.covariances, np.float64)
        if is_matrix(self.covariance):
            least = np.broadcast_to(np.linalg.eigvalsh(given)[..., 0], count.shape)
        else:
            least = given.reshape(len(count), -1).min(1)
        at = least <= 4 * floor
        if not at.any():
            return []
        if np.any(count[at] < 2 * (self.features + 1)):
            verdict, what = "reject", "collapsed onto few rows, where the likelihood knows no bound"
        else:
            verdict, what = "caution", "the floor holds them up"
        return [Check("components at the floor", float(at.sum()), verdict, f"of variance, {floor:g}: {what}")]

    def conditionals(self, theta: Gaussians, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """log π_k N(x_o; μ_k, Σ_k) (n, K), E[x | x_o, k] (n, K, d), E[xxᵀ | x_o, k] (n, K, d, d), about the centre."""
        components, features, covariance, *_ = self
        x = about(self.centre, x, theta.means.dtype)
        means, given = theta.means - self.centre.astype(theta.means.dtype), theta.covariances
        if is_matrix(covariance):
            matrices = jnp.broadcast_to(given, (components, features, features))
        else:
            matrices = given.reshape(components, -1, 1) * jnp.eye(features, dtype=given.dtype)[None]
        every = jax.vmap(jax.vmap(conditional, (None, 0, 0)), (0, None, None))
        log_probs, filled, second = every(x, means, matrices)
        return log_probs + jnp.log(theta.weights)[None, :], filled, second

    def shares(self, theta: Gaussians, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Responsibilities (n, K) and log densities (n,) of rows with gaps."""
        return linear_mixture.normalised(self.conditionals(theta, jnp.asarray(x))[0])

    def e_step_of_gaps(self, theta: Gaussians, batch: Batch) -> Expected:
        """Sums over rows in which NaN marks what is missing."""
        logits, filled, second = self.conditionals(theta, jnp.asarray(observed(batch)))
        share, log_probs = linear_mixture.normalised(logits)
        weights = batch.mask.astype(logits.dtype)
        share = share * weights[:, None]
        first = jnp.einsum("nk,nki->ki", share, filled, precision="highest")
        sums = jnp.einsum("nk,nkij->kij", share, second, precision="highest")
        if is_matrix(self.covariance):
            rows, columns = np.triu_indices(self.features)
            sums = sums[:, rows, columns]
            sums = jnp.sum(sums, axis=0) if self.covariance == "tied" else sums
        else:
            sums = jnp.diagonal(sums, axis1=1, axis2=2)
            sums = jnp.sum(sums, axis=1) if self.covariance == "spherical" else sums
        return Expected(Moments(jnp.sum(share, axis=0), first, sums), jnp.sum(weights * log_probs))


def checked(components: int, features: int, covariance: str, floor: Real, centre: Numbers | None) -> Setting:
    """The setting of arguments, or a sentence where one is out of range."""
    check_sizes(components=components, features=features)
    if covariance not in COVARIANCES:
        raise ModelError(f"covariance is 'full', 'tied', 'diagonal' or 'spherical'; got {covariance!r}.")
    if not 0 <= floor < np.inf:
        raise ModelError(f"floor is a variance, 0 or more and finite; got {floor}.")
    return Setting(components, features, covariance, float(floor), origin_of(centre, features))


def expand(covariance: str, x: jax.Array) -> jax.Array:
    """1, x and what of its squares there is, (n, m)."""
    if is_matrix(covariance):
        second = [x[:, i : i + 1] * x[:, i:] for i in range(x.shape[1])]
    else:
        second = [x**2 if covariance == "diagonal" else jnp.sum(x**2, axis=1, keepdims=True)]
    return jnp.concatenate([jnp.ones((x.shape[0], 1), x.dtype), x, *second], axis=1)


def of_matrices(root: jax.Array, means: jax.Array | np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Coefficients of x, (K, d), and of xxᵀ's upper triangle in −½ (x − m)ᵀ Rᵀ R (x − m), of roots R (K, d, d)."""
    rows, columns = np.triu_indices(means.shape[1])
    twice = np.where(rows == columns, 1.0, 2.0)  # x_i x_j stands for x_j x_i as well
    precision = jnp.einsum("kij,kil->kjl", root, root, precision="highest")
    linear = jnp.einsum("kij,kj->ki", precision, means, precision="highest")
    return linear, -0.5 * precision[:, rows, columns] * twice[None, :].astype(means.dtype)


def unfolded(triangle: jax.Array, features: int) -> jax.Array:
    """Symmetric matrices (..., d, d) from their upper triangles."""
    rows, columns = np.triu_indices(features)
    place = np.zeros((features, features), int)
    place[rows, columns] = place[columns, rows] = np.arange(rows.size)
    return triangle[..., place]


def conditional(x: jax.Array, mean: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log N(x_o), E[x | x_o] and E[xxᵀ | x_o] of one row (d,) and component."""
    present = ~jnp.isnan(x)
    inner = jnp.where(present[:, None] & present[None, :], matrix, jnp.eye(x.size, dtype=matrix.dtype))
    root = inverse_root(inner)
    off = jnp.where(present, x - mean, 0)
    white = jnp.matmul(root, off, precision="highest")
    cross = jnp.matmul(root, jnp.where(present[:, None], matrix, 0), precision="highest")
    log_prob = -0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diagonal(root))) - 0.5 * jnp.sum(present) * LOG_2PI
    filled = jnp.where(present, x, mean + white @ cross)
    left = jnp.where(present[:, None] | present[None, :], 0, matrix - cross.T @ cross)
    return log_prob, filled, filled[:, None] * filled[None, :] + left
