"""Mixtures: a datum comes from one of K components, and which one is not seen.

    p(x | θ) = Σ_k π_k p(x | θ_k)

Each factory gives an exact E-step on additive statistics and its closed-form M-step, for ``kernels.em``. Log densities
of exponential families are linear in a few features of x, so the E-step is two matrix products,

    logits = features · coefficientsᵀ   (n, K),      statistics = responsibilitiesᵀ · features   (K, m),

and no triangular solve over the rows.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from tractable.checks.convergence import Check
from tractable.core import Batch
from tractable.kernels.em import Expected, observed
from tractable.latent import LatentModel
from tractable.models.conjugate import LOG_2PI, Real
from tractable.tools.errors import DataError, ModelError
from tractable.tools.small import cholesky, inverse_root

SEEN = 10_000  # rows that a start is made from
COVARIANCES = ("full", "tied", "diagonal", "spherical")


class Gaussians(NamedTuple):
    """θ of a mixture of normals."""

    weights: Any  # (K,) π
    means: Any  # (K, d)
    covariances: Any  # full (K, d, d), tied (d, d), diagonal (K, d), spherical (K,)


class Bernoullis(NamedTuple):
    """θ of a mixture of independent Bernoullis."""

    weights: Any  # (K,) π
    means: Any  # (K, d), probabilities of a 1


class Moments(NamedTuple):
    """Σ_n w_n r_nk T(x_n), x about the centre."""

    count: Any  # (K,), T = 1
    first: Any  # (K, d), T = x
    second: Any  # T = the upper triangle of xxᵀ: full (K, d(d+1)/2), tied (d(d+1)/2,); x²: (K, d); |x|²: (K,)


def gaussian_mixture(
    components: int, features: int, covariance: str = "full", floor: Real = 1e-6, centre: Any = None
) -> LatentModel:
    """A mixture of normals.

        p(x | θ) = Σ_k π_k N(x; μ_k, Σ_k)
        M-step:  N_k = Σ_n w_n r_nk,  π_k = N_k / Σ N_k,  μ_k = Σ w r x / N_k,
                 Σ_k = Σ w r xxᵀ / N_k − μ_k μ_kᵀ + floor · I

    The likelihood is unbounded, Σ_k → 0 on a point: the floor keeps it finite. It is scikit-learn's ``reg_covar``,
    added at every M-step and not a maximum of anything, so with it a step may go down by a little; with floor = 0
    none does.

    Squares are expanded, so rounding grows with (distance/sd)², a component's distance from the origin in its own sds.
    Give the data's mean as ``centre`` and single precision keeps four digits wherever the data as a whole lie.

    Args:
        components: K ≥ 1.
        features: d ≥ 1, columns of x.
        covariance: "full", "tied" (one for all), "diagonal" or "spherical".
        floor: ≥ 0, added to every variance; in the units of x².
        centre: (d,), taken off x before anything is multiplied; 0 by default. Rounded to single precision, so that it
            is the same number in both precisions. Means stay in the user's coordinates.

    Returns:
        A ``LatentModel`` of ``Gaussians``. The same arguments give the same one, which a second fit finds compiled.

    Raises:
        ModelError: a setting out of range. DataError: rows that are not (n, d).

    >>> gaussian_mixture(3, 2).parameters
    17
    """
    _check(components, features)
    if covariance not in COVARIANCES:
        raise ModelError(f"covariance is 'full', 'tied', 'diagonal' or 'spherical'; got {covariance!r}.")
    if not 0 <= floor < math.inf:
        raise ModelError(f"floor is a variance, 0 or more and finite; got {floor}.")
    origin = np.zeros(features, np.float32) if centre is None else np.asarray(centre, np.float32)
    if origin.shape != (features,) or not np.isfinite(origin).all():
        raise ModelError(f"centre has {features} finite numbers, one a column; got {centre}.")
    return _gaussian_mixture(components, features, covariance, float(floor), tuple(origin.tolist()))


@functools.lru_cache(maxsize=128)
def _gaussian_mixture(
    components: int, features: int, covariance: str, floor: float, origin: tuple[float, ...]
) -> LatentModel:
    rows, columns = np.triu_indices(features)
    twice = np.where(rows == columns, 1.0, 2.0)  # x_i x_j stands for x_j x_i as well
    place = np.zeros((features, features), int)
    place[rows, columns] = place[columns, rows] = np.arange(rows.size)
    centre = np.array([origin], np.float32)  # (1, d)

    def clean(theta: Gaussians, x: jax.Array) -> jax.Array:
        x = _rows(x, features)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(theta.means.dtype)
        return (x - centre.astype(x.dtype)).astype(theta.means.dtype)

    def expand(x: jax.Array) -> jax.Array:  # (n, m)
        if covariance in ("full", "tied"):
            second = [x[:, i : i + 1] * x[:, i:] for i in range(features)]
        else:
            second = [x**2 if covariance == "diagonal" else jnp.sum(x**2, axis=1, keepdims=True)]
        return jnp.concatenate([jnp.ones((x.shape[0], 1), x.dtype), x, *second], axis=1)

    def coefficients(theta: Gaussians) -> jax.Array:  # (K, m)
        means = theta.means - centre.astype(theta.means.dtype)
        if covariance in ("full", "tied"):
            root = inverse_root(jnp.broadcast_to(theta.covariances, (components, features, features)))
            precision = jnp.einsum("kij,kil->kjl", root, root, precision="highest")
            linear = jnp.einsum("kij,kj->ki", precision, means, precision="highest")
            half_log_det = jnp.sum(jnp.log(jnp.diagonal(root, axis1=1, axis2=2)), axis=1)
            second = -0.5 * precision[:, rows, columns] * twice[None, :].astype(means.dtype)
        else:
            precision = 1 / theta.covariances.reshape(components, -1)  # (K, d) or (K, 1)
            linear = precision * means
            half_log_det = 0.5 * jnp.sum(jnp.log(jnp.broadcast_to(precision, means.shape)), axis=1)
            second = -0.5 * precision
        constant = (
            jnp.log(theta.weights) + half_log_det - 0.5 * jnp.sum(linear * means, axis=1) - 0.5 * features * LOG_2PI
        )
        return jnp.concatenate([constant[:, None], linear, second], axis=1)

    def moments(sums: jax.Array) -> Moments:
        second = sums[:, 1 + features :]
        if covariance == "tied":
            second = jnp.sum(second, axis=0)
        elif covariance == "spherical":
            second = second[:, 0]
        return Moments(sums[:, 0], sums[:, 1 : 1 + features], second)

    def m_step(statistics: Moments) -> Gaussians:
        count, first, second = jax.tree.map(jnp.asarray, statistics)
        count = count + 10 * jnp.finfo(count.dtype).eps  # an empty component stays finite
        means = first / count[:, None]
        if covariance == "full":
            spread = (second / count[:, None])[:, place] - means[:, :, None] * means[:, None, :]
        elif covariance == "tied":
            between = jnp.einsum("k,ki,kj->ij", count, means, means, precision="highest")
            spread = (second[place] - between) / jnp.sum(count)
        elif covariance == "diagonal":
            spread = second / count[:, None] - means**2
        else:
            spread = (second / count - jnp.sum(means**2, axis=1)) / features
        lift = np.broadcast_to(floor * np.eye(features) if covariance in ("full", "tied") else floor, spread.shape)
        return Gaussians(count / jnp.sum(count), means + centre.astype(means.dtype), spread + lift.astype(spread.dtype))

    def sample(key: jax.Array, theta: Gaussians, n: int) -> tuple[jax.Array, jax.Array]:
        key_component, key_noise = jax.random.split(key)
        k = jax.random.categorical(key_component, jnp.log(theta.weights)[None, :], shape=(n,))
        noise = jax.random.normal(key_noise, (n, features), theta.means.dtype)
        if covariance in ("full", "tied"):
            roots = cholesky(jnp.broadcast_to(theta.covariances, (components, features, features)))
            return theta.means[k] + jnp.einsum("nij,nj->ni", roots[k], noise, precision="highest"), k
        return theta.means[k] + jnp.sqrt(theta.covariances.reshape(components, -1))[k] * noise, k

    def begin(key: jax.Array, rows: Any) -> Gaussians:
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

    def examine(theta: Gaussians, size: int) -> list[Check]:
        return [*_counts_check(theta, size, features + 1), *_floor_checks(theta, size, covariance, floor)]

    unit = np.eye(features) if covariance in ("full", "tied") else np.ones(features if covariance == "diagonal" else ())
    each = unit if covariance == "tied" else np.broadcast_to(unit, (components, *unit.shape))
    position = Gaussians(np.full(components, 1 / components), np.zeros((components, features)), each)
    positive = constraints.positive_definite if covariance in ("full", "tied") else constraints.positive
    return _linear_mixture(
        clean, expand, coefficients, moments, m_step,
        position=position, support=Gaussians(constraints.simplex, constraints.real, positive), sample=sample,
        begin=begin, examine=examine, parameters=_free(components, features, covariance),
        shift=lambda theta, offset: theta._replace(means=theta.means + offset),
        canonical=functools.partial(by_weight, tied=covariance == "tied"),
        permute=functools.partial(permuted, tied=covariance == "tied"),
    )  # fmt: skip


def permuted(theta: Any, order: jax.Array, tied: bool = False) -> Any:
    """The same mixture, its components in another order; a tied covariance is no component's own."""
    own = theta[2:] if tied else [leaf[order] for leaf in theta[2:]]
    return type(theta)(theta.weights[order], theta.means[order], *own)


def by_weight(theta: Any, tied: bool = False) -> Any:
    """The same mixture, its components by descending weight."""
    return permuted(theta, jnp.argsort(-theta.weights), tied)


def clustered(key: jax.Array, rows: Any, components: int) -> tuple[np.ndarray, np.ndarray]:
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


def _counts_check(theta: Any, size: int, least: int) -> list[Check]:
    """How many rows a component has to itself."""
    count = float(np.min(np.asarray(theta.weights, np.float64)) * size)
    verdict = "trust" if count >= 2 * least else "caution" if count >= 1 else "reject"
    sentence = f"effective rows of the smallest component; below {2 * least} it describes rows, not a population"
    return [Check("smallest component", count, verdict, sentence)]


def _floor_checks(theta: Gaussians, size: int, covariance: str, floor: float) -> list[Check]:
    """Components whose least variance the floor holds up."""
    count, features = np.asarray(theta.weights, np.float64) * size, theta.means.shape[1]
    given = np.asarray(theta.covariances, np.float64)
    if covariance in ("full", "tied"):
        least = np.broadcast_to(np.linalg.eigvalsh(given)[..., 0], count.shape)
    else:
        least = given.reshape(len(count), -1).min(1)
    at = least <= 4 * floor
    if not at.any():
        return []
    collapsed = np.any(count[at] < 2 * (features + 1))
    what = "collapsed onto few rows, where the likelihood knows no bound" if collapsed else "the floor holds them up"
    verdict = "reject" if collapsed else "caution"
    return [Check("components at the floor", float(at.sum()), verdict, f"of variance, {floor:g}: {what}")]


def with_missing(
    components: int, features: int, covariance: str = "full", floor: Real = 1e-6, centre: Any = None
) -> LatentModel:
    """``gaussian_mixture`` for rows in which NaN marks a number that is missing (at random): nothing is imputed.

        r_nk ∝ π_k N(x_o; μ_o, Σ_oo),    E[x | x_o, k] = μ + Σ_·o Σ_oo⁻¹ (x_o − μ_o)
        E[xxᵀ | x_o, k] = E[x] E[x]ᵀ + Σ − Σ_·o Σ_oo⁻¹ Σ_o·

    o are the numbers seen of row n. Exact, by a factorisation a row and component: O(n K d³), and memory O(n K d²), so
    give it to ``chunked``. Ghahramani & Jordan 1994.

    Args and Raises: as for ``gaussian_mixture``, whose ``m_step`` and ``sample`` it has.
    """
    plain = gaussian_mixture(components, features, covariance, floor, centre)
    origin = np.zeros(features, np.float32) if centre is None else np.asarray(centre, np.float32)
    return _with_missing(plain, components, features, covariance, tuple(origin.tolist()))


@functools.lru_cache(maxsize=128)
def _with_missing(
    plain: LatentModel, components: int, features: int, covariance: str, origin: tuple[float, ...]
) -> LatentModel:
    rows, columns = np.triu_indices(features)
    centre = np.array([origin], np.float32)  # (1, d)

    def matrices(theta: Gaussians) -> jax.Array:  # (K, d, d)
        given = theta.covariances
        if covariance in ("full", "tied"):
            return jnp.broadcast_to(given, (components, features, features))
        return given.reshape(components, -1, 1) * jnp.eye(features, dtype=given.dtype)[None]

    def one(x: jax.Array, mean: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """log N(x_o), E[x | x_o] and E[xxᵀ | x_o] of one row and component."""
        seen = ~jnp.isnan(x)
        inner = jnp.where(seen[:, None] & seen[None, :], matrix, jnp.eye(features, dtype=matrix.dtype))
        root = inverse_root(inner)
        off = jnp.where(seen, x - mean, 0)
        white = jnp.matmul(root, off, precision="highest")
        cross = jnp.matmul(root, jnp.where(seen[:, None], matrix, 0), precision="highest")
        log_prob = -0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diagonal(root))) - 0.5 * jnp.sum(seen) * LOG_2PI
        filled = jnp.where(seen, x, mean + white @ cross)
        left = jnp.where(seen[:, None] | seen[None, :], 0, matrix - cross.T @ cross)
        return log_prob, filled, filled[:, None] * filled[None, :] + left

    def conditionals(theta: Gaussians, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        x = _rows(x, features)
        x = (x - centre.astype(x.dtype)).astype(theta.means.dtype)
        means = theta.means - centre.astype(theta.means.dtype)
        every = jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None))
        log_probs, filled, second = every(x, means, matrices(theta))  # (n, K), (n, K, d), (n, K, d, d)
        return log_probs + jnp.log(theta.weights)[None, :], filled, second

    def e_step(theta: Gaussians, batch: Batch) -> Expected:
        logits, filled, second = conditionals(theta, jnp.asarray(observed(batch)))
        share, log_probs = _normalised(logits)
        weights = batch.mask.astype(logits.dtype)
        share = share * weights[:, None]
        first = jnp.einsum("nk,nki->ki", share, filled, precision="highest")
        sums = jnp.einsum("nk,nkij->kij", share, second, precision="highest")
        if covariance in ("full", "tied"):
            sums = sums[:, rows, columns]
            sums = jnp.sum(sums, axis=0) if covariance == "tied" else sums
        else:
            sums = jnp.diagonal(sums, axis1=1, axis2=2)
            sums = jnp.sum(sums, axis=1) if covariance == "spherical" else sums
        return Expected(Moments(jnp.sum(share, axis=0), first, sums), jnp.sum(weights * log_probs))

    return plain.with_steps(
        e_step=e_step,
        log_prob=lambda theta, x: _normalised(conditionals(theta, jnp.asarray(x))[0])[1],
        responsibilities=lambda theta, x: _normalised(conditionals(theta, jnp.asarray(x))[0])[0],
    )


def bernoulli_mixture(components: int, features: int, prior_counts: Real = 1.0) -> LatentModel:
    """A mixture of independent Bernoullis: what binary columns have in common.

        p(x | θ) = Σ_k π_k Π_i μ_ki^{x_i} (1 − μ_ki)^{1 − x_i},    μ_ki ~ Beta(1 + c, 1 + c)
        M-step:  μ_k = (Σ w r x + c) / (N_k + 2c),  π_k = N_k / Σ N_k

    The M-step finds a posterior mode: give ``em`` this mixture's ``log_prior``. Without prior counts a column that is
    constant in a component would have probability 0, and the next row that differs a likelihood of 0.

    Args:
        components: K ≥ 1.
        features: d ≥ 1, columns of x, each 0 or 1.
        prior_counts: c > 0, ones and zeros imagined in each cell.

    Returns:
        A ``LatentModel`` of ``Bernoullis``.

    Raises:
        ModelError: a setting out of range. DataError: rows that are not (n, d).

    >>> bernoulli_mixture(2, 5).parameters
    11
    """
    _check(components, features)
    if not 0 < prior_counts < math.inf:
        raise ModelError(f"prior_counts is positive and finite; got {prior_counts}.")
    return _bernoulli_mixture(components, features, float(prior_counts))


@functools.lru_cache(maxsize=128)
def _bernoulli_mixture(components: int, features: int, prior_counts: float) -> LatentModel:
    def clean(theta: Bernoullis, x: jax.Array) -> jax.Array:
        return _rows(x, features).astype(theta.means.dtype)

    def expand(x: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.ones((x.shape[0], 1), x.dtype), x], axis=1)

    def coefficients(theta: Bernoullis) -> jax.Array:  # (K, 1 + d)
        zero = jnp.log1p(-theta.means)
        constant = jnp.log(theta.weights) + jnp.sum(zero, axis=1)
        return jnp.concatenate([constant[:, None], jnp.log(theta.means) - zero], axis=1)

    def m_step(statistics: Moments) -> Bernoullis:
        count, first = jnp.asarray(statistics.count), jnp.asarray(statistics.first)
        means = (first + prior_counts) / (count[:, None] + 2 * prior_counts)
        count = count + 10 * jnp.finfo(count.dtype).eps
        return Bernoullis(count / jnp.sum(count), means)

    def sample(key: jax.Array, theta: Bernoullis, n: int) -> tuple[jax.Array, jax.Array]:
        key_component, key_x = jax.random.split(key)
        k = jax.random.categorical(key_component, jnp.log(theta.weights)[None, :], shape=(n,))
        return jax.random.bernoulli(key_x, theta.means[k]).astype(theta.means.dtype), k

    def log_prior(theta: Bernoullis) -> jax.Array:
        """Σ log Beta(μ; 1 + c, 1 + c)."""
        normaliser = math.lgamma(2 + 2 * prior_counts) - 2 * math.lgamma(1 + prior_counts)
        return jnp.sum(prior_counts * (jnp.log(theta.means) + jnp.log1p(-theta.means)) + normaliser)

    def moments(sums: jax.Array) -> Moments:
        return Moments(sums[:, 0], sums[:, 1:], ())

    free = components - 1 + components * features
    position = Bernoullis(np.full(components, 1 / components), np.full((components, features), 0.5))
    support = Bernoullis(constraints.simplex, constraints.unit_interval)

    def begin(key: jax.Array, rows: Any) -> Bernoullis:
        x, shares = clustered(key, rows, components)
        dtype = jnp.result_type(float)
        sums = Moments(shares.sum(0), shares.T @ x, np.zeros(0))
        return m_step(jax.tree.map(lambda a: jnp.asarray(a, dtype), sums))

    return _linear_mixture(
        clean, expand, coefficients, moments, m_step,
        position=position, support=support, prior=log_prior, sample=sample, begin=begin,
        examine=functools.partial(_counts_check, least=1), canonical=by_weight, permute=permuted,
        parameters=free,
    )  # fmt: skip


def _linear_mixture(
    clean: Callable,
    expand: Callable,
    coefficients: Callable,
    moments: Callable,
    m_step: Callable,
    **others: Any,
) -> LatentModel:
    """A mixture whose log densities are linear in features of x: two matrix products an E-step."""

    def logits(theta: Any, phi: jax.Array) -> jax.Array:  # (n, K)
        return jnp.matmul(phi, coefficients(theta).T, precision="highest")

    def e_step(theta: Any, batch: Batch) -> Expected:
        x = clean(theta, jnp.asarray(observed(batch)))
        weights = jnp.asarray(batch.mask, x.dtype)
        phi = expand(jnp.where(weights[:, None] > 0, x, 0))  # a row that does not count may hold anything
        share, log_probs = _normalised(logits(theta, phi), weights)
        return Expected(moments(jnp.matmul(share.T, phi, precision="highest")), jnp.sum(weights * log_probs))

    def log_prob(theta: Any, x: Any) -> jax.Array:
        return _normalised(logits(theta, expand(clean(theta, jnp.asarray(x)))))[1]

    def responsibilities(theta: Any, x: Any) -> jax.Array:
        return _normalised(logits(theta, expand(clean(theta, jnp.asarray(x)))))[0]

    return LatentModel.from_steps(e_step, m_step, log_prob, responsibilities=responsibilities, **others)


def _normalised(logits: jax.Array, weights: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """(Weighted) responsibilities (n, K) and log densities (n,), by one exponential a logit."""
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=1))
    powers = jnp.exp(logits - peak[:, None])
    total = jnp.sum(powers, axis=1)
    scale = 1 / total if weights is None else weights / total
    return powers * scale[:, None], peak + jnp.log(total)


def _free(components: int, features: int, covariance: str) -> int:
    """Free numbers of a mixture of normals."""
    triangle = features * (features + 1) // 2
    spread = {
        "full": components * triangle,
        "tied": triangle,
        "diagonal": components * features,
        "spherical": components,
    }
    return components - 1 + components * features + spread[covariance]


def _rows(x: Any, features: int) -> jax.Array:
    if jnp.ndim(x) != 2 or x.shape[1] != features:
        raise DataError(f"Expected rows of {features} numbers, shape (n, {features}); got shape {jnp.shape(x)}.")
    return jnp.asarray(x)


def _check(components: int, features: int) -> None:
    for name, value in {"components": components, "features": features}.items():
        if not isinstance(value, int | np.integer) or value < 1:
            raise ModelError(f"{name} is a whole number, 1 or more; got {value}.")
