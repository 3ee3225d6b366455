"""The closed forms of a mixture of normals: features, coefficients, statistics, M-step."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.beliefs.check import Check
from tractable.models.columns import about, check_floor, check_sizes, origin_of
from tractable.models.conjugate import LOG_2PI, Numbers, Real
from tractable.models.linear_mixture import Linear, Moments, clustered, counts_check, drawn_components
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
    """Which mixture of normals it is."""

    components: int  # K
    features: int  # d
    covariance: str  # one of COVARIANCES
    floor: float  # of variances
    origin: tuple[float, ...]  # (d,) in single precision: the same number in both

    @property
    def centre(self) -> np.ndarray:
        return np.array([self.origin], np.float32)  # (1, d)


def checked(components: int, features: int, covariance: str, floor: Real, centre: Numbers | None) -> Setting:
    """The setting of arguments, or a sentence where one is out of range."""
    check_sizes(components=components, features=features)
    if covariance not in COVARIANCES:
        raise ModelError(f"covariance is 'full', 'tied', 'diagonal' or 'spherical'; got {covariance!r}.")
    check_floor(floor)
    return Setting(components, features, covariance, float(floor), origin_of(centre, features))


def family(setting: Setting) -> Linear:
    """Mixtures of normals as densities that are linear in 1, x and x's squares."""
    return Linear(
        partial(about, setting.centre), partial(expand, setting.covariance), partial(coefficients, setting),
        partial(moments, setting),
    )  # fmt: skip


def expand(covariance: str, x: jax.Array) -> jax.Array:
    """1, x and what of its squares there is, (n, m)."""
    if is_matrix(covariance):
        second = [x[:, i : i + 1] * x[:, i:] for i in range(x.shape[1])]
    else:
        second = [x**2 if covariance == "diagonal" else jnp.sum(x**2, axis=1, keepdims=True)]
    return jnp.concatenate([jnp.ones((x.shape[0], 1), x.dtype), x, *second], axis=1)


def coefficients(setting: Setting, theta: Gaussians) -> jax.Array:
    """Those of log π_k N(x; μ_k, Σ_k), linear in the features: (K, m)."""
    components, features, covariance, *_ = setting
    means = theta.means - setting.centre.astype(theta.means.dtype)
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


def of_matrices(root: jax.Array, means: jax.Array | np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Coefficients of x, (K, d), and of xxᵀ's upper triangle in −½ (x − m)ᵀ Rᵀ R (x − m), of roots R (K, d, d)."""
    rows, columns = np.triu_indices(means.shape[1])
    twice = np.where(rows == columns, 1.0, 2.0)  # x_i x_j stands for x_j x_i as well
    precision = jnp.einsum("kij,kil->kjl", root, root, precision="highest")
    linear = jnp.einsum("kij,kj->ki", precision, means, precision="highest")
    return linear, -0.5 * precision[:, rows, columns] * twice[None, :].astype(means.dtype)


def moments(setting: Setting, sums: jax.Array) -> Moments:
    """Statistics from Σ r times the features, (K, m)."""
    second = sums[:, 1 + setting.features :]
    if setting.covariance == "tied":
        second = jnp.sum(second, axis=0)
    elif setting.covariance == "spherical":
        second = second[:, 0]
    return Moments(sums[:, 0], sums[:, 1 : 1 + setting.features], second)


def unfolded(triangle: jax.Array, features: int) -> jax.Array:
    """Symmetric matrices (..., d, d) from their upper triangles."""
    rows, columns = np.triu_indices(features)
    place = np.zeros((features, features), int)
    place[rows, columns] = place[columns, rows] = np.arange(rows.size)
    return triangle[..., place]


def m_step(setting: Setting, statistics: Moments) -> Gaussians:
    _, features, covariance, floor, _ = setting
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
    means = means + setting.centre.astype(means.dtype)
    return Gaussians(count / jnp.sum(count), means, spread + lift.astype(spread.dtype))


def sample(setting: Setting, key: jax.Array, theta: Gaussians, n: int) -> tuple[jax.Array, jax.Array]:
    """Rows (n, d) and their components (n,)."""
    components, features, covariance, *_ = setting
    key_component, key_noise = jax.random.split(key)
    k = drawn_components(key_component, theta.weights, n)
    noise = jax.random.normal(key_noise, (n, features), theta.means.dtype)
    if is_matrix(covariance):
        roots = cholesky(jnp.broadcast_to(theta.covariances, (components, features, features)))
        return theta.means[k] + jnp.einsum("nij,nj->ni", roots[k], noise, precision="highest"), k
    return theta.means[k] + jnp.sqrt(theta.covariances.reshape(components, -1))[k] * noise, k


def begin(setting: Setting, key: jax.Array, rows: ArrayLike) -> Gaussians:
    """θ of clusters of rows."""
    components, features, covariance, floor, _ = setting
    x, shares = clustered(key, rows, components)
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


def example(setting: Setting) -> tuple[Gaussians, Gaussians]:
    """A θ, and where its numbers may lie."""
    components, features, covariance, *_ = setting
    matrix = is_matrix(covariance)
    unit = np.eye(features) if matrix else np.ones(features if covariance == "diagonal" else ())
    each = unit if covariance == "tied" else np.broadcast_to(unit, (components, *unit.shape))
    position = Gaussians(np.full(components, 1 / components), np.zeros((components, features)), each)
    positive = constraints.positive_definite if matrix else constraints.positive
    return position, Gaussians(constraints.simplex, constraints.real, positive)


def examine(setting: Setting, theta: Gaussians, size: int) -> list[Check]:
    """What a report should say of a maximum."""
    return [*counts_check(theta, size, setting.features + 1), *_floor_checks(setting, theta, size)]


def _floor_checks(setting: Setting, theta: Gaussians, size: int) -> list[Check]:
    """Components whose least variance the floor holds up."""
    count, floor = np.asarray(theta.weights, np.float64) * size, setting.floor
    given = np.asarray(theta.covariances, np.float64)
    if is_matrix(setting.covariance):
        least = np.broadcast_to(np.linalg.eigvalsh(given)[..., 0], count.shape)
    else:
        least = given.reshape(len(count), -1).min(1)
    at = least <= 4 * floor
    if not at.any():
        return []
    collapsed = np.any(count[at] < 2 * (setting.features + 1))
    what = "collapsed onto few rows, where the likelihood knows no bound" if collapsed else "the floor holds them up"
    verdict = "reject" if collapsed else "caution"
    return [Check("components at the floor", float(at.sum()), verdict, f"of variance, {floor:g}: {what}")]
