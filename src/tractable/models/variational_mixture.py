"""A mixture of normals whose weights, means and precisions are not estimated but believed: Dirichlet, Normal–Wishart.

Expected log densities are linear in the same features of x as log densities are, so that the E-step costs what EM's
does: two matrix products.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma

from tractable.core import Batch
from tractable.kernels.em import Expected, observed
from tractable.models import normal_wishart
from tractable.models.conjugate import LOG_2PI, Real, positive
from tractable.models.conjugate_variational import Conjugate, dirichlet_divergence
from tractable.models.mixture import COVARIANCES, Gaussians, Moments, _check, _normalised, _rows
from tractable.models.normal_wishart import NormalWishart, half_log_det, inverse_root, log_det_lost, second
from tractable.tools.errors import ModelError


class MixturePosterior(NamedTuple):
    """λ of q(π) Π_k q(μ_k | Λ_k) q(Λ_k); scikit-learn's attributes, in its parametrisation, but for what is tied."""

    concentration: Any  # (K,) of a Dirichlet; of a process (2, K), of Betas: the stick's piece, and what is left of it
    means: Any  # (K, d) m
    mean_precision: Any  # (K,) β
    degrees_of_freedom: Any  # (K,) ν; tied ()
    covariances: Any  # E[Λ]⁻¹ = C/ν: full (K, d, d), tied (d, d), diagonal (K, d), spherical (K,)


def bayesian_gaussian_mixture(
    components: int,
    features: int,
    covariance: str = "full",
    weight_concentration: Real | None = None,
    process: bool = False,
    mean_prior: Any = None,
    mean_precision: Real = 1.0,
    degrees_of_freedom: Real | None = None,
    covariance_prior: Any = None,
    floor: Real = 0.0,
    centre: Any = None,
) -> Conjugate:
    """A mixture of normals under a conjugate prior, by mean field q(π, μ, Λ) q(z).

        π ~ Dirichlet(α₀, …, α₀), or π_k = v_k Π_{j<k} (1 − v_j) with v_k ~ Beta(1, α₀), for k = 1, 2, …
        x | k ~ N(μ_k, Λ_k⁻¹),   μ_k | Λ_k ~ N(m₀, (β₀ Λ_k)⁻¹)
        full:       Λ_k ~ Wishart(ν₀, C₀⁻¹)          tied: one Λ for all, likewise
        diagonal:   Λ_ki ~ Gamma(ν₀/2, C₀_i/2)       spherical: λ_k ~ Gamma(d ν₀/2, d C₀/2)

        log r_nk = E log π_k + ½ (E log |Λ_k| − d log 2π − d/β_k − ν_k (x − m_k)ᵀ C_k⁻¹ (x − m_k)) + constant
        β_k = β₀ + N_k,  m_k = (β₀ m₀ + Σ r x)/β_k,  ν_k = ν₀ + N_k,  C_k = C₀ + Σ r xxᵀ + β₀ m₀m₀ᵀ − β_k m_k m_kᵀ

    Components that explain nothing return to the prior; with α₀ below 1 they lose their weight as well. Bishop 2006,
    section 10.2 (ν_k by the corrected eq. 10.63); Blei & Jordan 2006, where q(z) alone is cut at K.

    Settings are scikit-learn's ``BayesianGaussianMixture``'s, whose iterates these are for "full", and for any type of
    one column. Elsewhere its formulas are not those of the bound. It gives diagonal and spherical precisions the
    digammas of a Wishart, Σ_i ψ((ν − i)/2), in place of d ψ(ν/2) and d ψ(dν/2). It divides the tied N by K: its means,
    weights and covariances are those here with K ν₀ and K C₀. Its ``lower_bound_`` leaves out constants.

    Args:
        components: K ≥ 1.
        features: d ≥ 1, columns of x.
        covariance: "full", "tied", "diagonal" or "spherical".
        weight_concentration: α₀ > 0; 1/K by default.
        process: a Dirichlet process: pieces of a stick without end, of which K are used.
        mean_prior: m₀, (d,); 0 by default.
        mean_precision: β₀ > 0, the rows that the prior's mean is worth.
        degrees_of_freedom: ν₀, above d − 1 where full or tied, else above 0; d by default.
        covariance_prior: C₀, positive definite, in the units of x²: (d, d) for full and tied, (d,) for diagonal, a
            number for spherical; ones (on the diagonal) by default. The prior guesses a covariance of C₀/ν₀.
        floor: ≥ 0, scikit-learn's ``reg_covar``: C_k gets N_k · floor. With it a step may go down by a little; the
            prior keeps covariances from 0 without.
        centre: (d,), taken off x before anything is multiplied, as for ``gaussian_mixture``; m₀ by default.

    Returns:
        A Conjugate of λ ``MixturePosterior`` and θ ``Gaussians``; the same arguments give the same functions. θ of a
        process has K + 1 components: the last stands for all that are not used, with what is left of the stick, and
        comes from the prior.

    Raises:
        ModelError: a setting out of range. DataError: rows that are not (n, d).

    >>> model = bayesian_gaussian_mixture(3, 2)
    >>> model.mean(model.prior).weights.round(3).tolist()
    [0.333, 0.333, 0.333]
    """
    _check(components, features)
    if covariance not in COVARIANCES:
        raise ModelError(f"covariance is 'full', 'tied', 'diagonal' or 'spherical'; got {covariance!r}.")
    alpha = 1 / components if weight_concentration is None else weight_concentration
    positive(weight_concentration=alpha, mean_precision=mean_precision)
    freedom = features if degrees_of_freedom is None else degrees_of_freedom
    least = features - 1 if covariance in ("full", "tied") else 0
    if not least < freedom < math.inf:
        raise ModelError(f"degrees_of_freedom is above {least} and finite; got {freedom}.")
    if not 0 <= floor < math.inf:
        raise ModelError(f"floor is a variance, 0 or more and finite; got {floor}.")
    m0 = _vector("mean_prior", np.zeros(features) if mean_prior is None else mean_prior, features)
    origin = _vector("centre", m0 if centre is None else centre, features).astype(np.float32)
    c0 = _spread(covariance, features, covariance_prior)
    return _bayesian(
        components, features, covariance, float(alpha), process, tuple(m0.tolist()), float(mean_precision),
        float(freedom), tuple(c0.ravel().tolist()), float(floor), tuple(origin.tolist()),
    )  # fmt: skip


@functools.lru_cache(maxsize=128)
def _bayesian(
    components: int,
    features: int,
    covariance: str,
    alpha: float,
    process: bool,
    mean: tuple[float, ...],
    beta: float,
    freedom: float,
    spread: tuple[float, ...],
    floor: float,
    origin: tuple[float, ...],
) -> Conjugate:
    matrix, tied = normal_wishart.is_matrix(covariance), covariance == "tied"
    rows, columns = np.triu_indices(features)
    twice = np.where(rows == columns, 1.0, 2.0)  # x_i x_j stands for x_j x_i as well
    place = np.zeros((features, features), int)
    place[rows, columns] = place[columns, rows] = np.arange(rows.size)
    centre, m0, each = np.array([origin], np.float32), np.array([mean]), np.ones(components)  # (1, d) twice, (K,)
    c0 = np.array(spread).reshape({"diagonal": (features,), "spherical": ()}.get(covariance, (features, features)))
    prior = MixturePosterior(
        np.stack([each, alpha * each]) if process else alpha * each,
        np.tile(m0, (components, 1)),
        beta * each,
        np.array(freedom) if tied else freedom * each,
        c0 / freedom if tied else np.tile(c0 / freedom, (components, *[1] * c0.ndim)),
    )

    def log_weights(concentration: jax.Array) -> jax.Array:
        """E log π, (K,)."""
        if not process:
            return digamma(concentration) - digamma(jnp.sum(concentration))
        whole = digamma(jnp.sum(concentration, axis=0))
        piece, left = digamma(concentration[0]) - whole, digamma(concentration[1]) - whole
        return piece + jnp.append(0, jnp.cumsum(left)[:-1])

    def coefficients(q: MixturePosterior) -> jax.Array:
        """E of log π_k N(x; μ_k, Λ_k⁻¹), linear in features of x: (K, m)."""
        means, root = q.means - centre.astype(q.means.dtype), inverse_root(normals(q), covariance)
        if matrix:
            root = jnp.broadcast_to(root, (components, features, features))
            precision = jnp.einsum("kij,kil->kjl", root, root, precision="highest")
            linear = jnp.einsum("kij,kj->ki", precision, means, precision="highest")
            square = -0.5 * precision[:, rows, columns] * twice[None, :].astype(means.dtype)
        else:
            linear = root**2 * means
            square = -0.5 * root[:, : features if covariance == "diagonal" else 1] ** 2
        constant = (
            log_weights(q.concentration)
            + half_log_det(root)
            + log_det_lost(q.degrees_of_freedom, covariance, features)
            - 0.5 * (features / q.mean_precision + features * LOG_2PI + jnp.sum(linear * means, axis=1))
        )
        return jnp.concatenate([constant[:, None], linear, square], axis=1)

    # The features and their sums are those of ``mixture.gaussian_mixture``.

    def expand(x: Any, dtype: Any, weights: jax.Array | None = None) -> jax.Array:  # (n, m)
        x = _rows(x, features)
        x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(dtype)
        x = (x - centre.astype(x.dtype)).astype(dtype)
        if weights is not None:
            x = jnp.where(weights[:, None] > 0, x, 0)  # a row that does not count may hold anything
        if matrix:
            squares = [x[:, i : i + 1] * x[:, i:] for i in range(features)]
        else:
            squares = [x**2 if covariance == "diagonal" else jnp.sum(x**2, axis=1, keepdims=True)]
        return jnp.concatenate([jnp.ones((x.shape[0], 1), x.dtype), x, *squares], axis=1)

    def moments(share: jax.Array, phi: jax.Array) -> Moments:
        sums = jnp.matmul(share.T, phi, precision="highest")  # (K, m)
        squares = sums[:, 1 + features :]
        squares = jnp.sum(squares, axis=0) if tied else (squares[:, 0] if covariance == "spherical" else squares)
        return Moments(sums[:, 0], sums[:, 1 : 1 + features], squares)

    def logits(q: MixturePosterior, phi: jax.Array) -> jax.Array:  # (n, K)
        return jnp.matmul(phi, coefficients(q).T, precision="highest")

    def e_step(q: MixturePosterior, batch: Batch) -> Expected:
        q = MixturePosterior(*map(jnp.asarray, q))
        weights = jnp.asarray(batch.mask, q.means.dtype)
        phi = expand(observed(batch), q.means.dtype, weights)
        share, log_sums = _normalised(logits(q, phi), weights)
        return Expected(moments(share, phi), jnp.sum(weights * log_sums))

    def responsibilities(q: MixturePosterior, x: Any) -> jax.Array:
        q = MixturePosterior(*map(jnp.asarray, q))
        return _normalised(logits(q, expand(x, q.means.dtype)))[0]

    def assigned(batch: Batch, responsibilities: Any) -> Moments:
        share = jnp.asarray(responsibilities, jnp.result_type(float))
        weights = jnp.asarray(batch.mask, share.dtype)
        return moments(weights[:, None] * share, expand(observed(batch), share.dtype, weights))

    def m_step(statistics: Moments) -> MixturePosterior:
        count, first, squares = map(jnp.asarray, statistics)
        dtype, off = first.dtype, m0 - centre  # the prior's mean, about the centre
        total = beta + count  # (K,)
        means = (beta * off.astype(dtype) + first) / total[:, None]
        back = second(means, covariance)  # (K, ...)
        back = total.reshape(-1, *[1] * (back.ndim - 1)) * back
        if matrix:
            squares = squares[..., place]
        elif covariance == "spherical":
            squares = squares / features
        here = (c0 + beta * (components if tied else 1) * second(off, covariance)[0]).astype(dtype)
        seen = jnp.sum(count) if tied else count
        like = jnp.shape(seen) + (1,) * c0.ndim
        lift = floor * np.broadcast_to(np.eye(features) if matrix else 1.0, c0.shape)
        scale = here.reshape((1,) * jnp.ndim(seen) + c0.shape) + squares - (jnp.sum(back, axis=0) if tied else back)
        scale = scale + seen.reshape(like) * lift.astype(dtype).reshape((1,) * jnp.ndim(seen) + c0.shape)
        nu = freedom + seen
        if process:
            after = jnp.append(jnp.cumsum(count[::-1])[::-1][1:], 0)  # Σ_{j>k} N_j
            concentration = jnp.stack([1 + count, alpha + after])
        else:
            concentration = alpha + count
        return MixturePosterior(concentration, means + centre.astype(dtype), total, nu, scale / nu.reshape(like))

    def divergence(q: MixturePosterior) -> jax.Array:
        given, before = (jnp.asarray(p.concentration, jnp.result_type(q.means)) for p in (q, prior))
        of_weights = dirichlet_divergence(*((given.T, before.T) if process else (given, before)))  # Betas, or one
        return jnp.sum(of_weights) + normal_wishart.divergence(normals(q), normals(prior), covariance)

    def extended(q: MixturePosterior) -> NormalWishart:
        """With the component that stands for those not used."""
        q = MixturePosterior(*map(jnp.asarray, q))
        if not process:
            return normals(q)

        def join(here: jax.Array, there: np.ndarray) -> jax.Array:
            return jnp.concatenate([here, there[:1].astype(here.dtype)])

        shared_by_all = q.degrees_of_freedom, q.covariances
        return NormalWishart(
            join(q.means, prior.means),
            join(q.mean_precision, prior.mean_precision),
            *(shared_by_all if tied else map(join, shared_by_all, (prior.degrees_of_freedom, prior.covariances))),
        )

    def broken(pieces: jax.Array, left: jax.Array) -> jax.Array:
        """v_k Π_{j<k} (1 − v_j), and what is left of the stick: (n, K + 1) of (n, K) twice."""
        one = jnp.ones((pieces.shape[0], 1), pieces.dtype)
        return jnp.concatenate([pieces, one], axis=1) * jnp.concatenate([one, jnp.cumprod(left, axis=1)], axis=1)

    def mean_weights(q: MixturePosterior) -> jax.Array:
        shares = q.concentration / jnp.sum(q.concentration, axis=0, keepdims=process)
        return broken(shares[:1], shares[1:])[0] if process else shares

    def mean_of(q: MixturePosterior) -> Gaussians:
        q, given = MixturePosterior(*map(jnp.asarray, q)), extended(q)
        return Gaussians(mean_weights(q), given.means, given.covariances)

    def sample(key: jax.Array, q: MixturePosterior, n: int) -> Gaussians:
        key_weights, key_normals = jax.random.split(key)
        dtype, concentration = jnp.result_type(q.means), jnp.asarray(q.concentration)
        if process:
            pairs = jax.random.dirichlet(key_weights, concentration.T, (n, components), dtype)
            weights = broken(pairs[..., 0], pairs[..., 1])
        else:
            weights = jax.random.dirichlet(key_weights, concentration, (n,), dtype)
        return Gaussians(weights, *normal_wishart.sample(key_normals, extended(q), covariance, n))

    def predictive_log_prob(q: MixturePosterior, x: Any) -> jax.Array:
        given, x = extended(q), _rows(x, features)
        terms = normal_wishart.predictive_log_prob(given, covariance, x.astype(given.means.dtype))
        weights = mean_weights(MixturePosterior(*map(jnp.asarray, q)))
        return jax.nn.logsumexp(terms + jnp.log(weights)[None, :], axis=1)

    return Conjugate(
        e_step, m_step, divergence, sample, mean_of, predictive_log_prob, prior, responsibilities, assigned
    )


def normals(q: MixturePosterior) -> NormalWishart:
    """λ without the weights."""
    return NormalWishart(*q[1:])


def _vector(name: str, value: Any, features: int) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.shape != (features,) or not np.isfinite(array).all():
        raise ModelError(f"{name} has {features} finite numbers, one a column; got {value}.")
    return array


def _spread(covariance: str, features: int, value: Any) -> np.ndarray:
    """C₀ in the shape of one component's."""
    shape = {"diagonal": (features,), "spherical": ()}.get(covariance, (features, features))
    if value is None:
        return np.eye(features) if len(shape) == 2 else np.ones(shape)
    array = np.asarray(value, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ModelError(f"covariance_prior of {covariance!r} is finite, of shape {shape}; got {value}.")
    if len(shape) == 2:
        if not np.allclose(array, array.T, rtol=1e-6, atol=0) or np.linalg.eigvalsh(array)[0] <= 0:
            raise ModelError(f"covariance_prior needs to be symmetric and positive definite; got {value}.")
        return (array + array.T) / 2
    if not (array > 0).all():
        raise ModelError(f"covariance_prior needs to be positive; got {value}.")
    return array
