"""A mixture of normals whose weights, means and precisions are not estimated but believed: Dirichlet, Normal–Wishart.

Expected log densities are linear in the same features of x as log densities are, so that the E-step costs what EM's
does: two matrix products.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.models import gaussians, mixture_weights, normal_wishart
from tractable.models.columns import finite, origin_of, rows_of
from tractable.models.conjugate import LOG_2PI, Numbers, Real, positive
from tractable.models.conjugate_variational import Conjugate
from tractable.models.gaussians import Gaussians, Setting
from tractable.models.linear_mixture import Moments
from tractable.models.normal_wishart import NormalWishart, half_log_det, inverse_root, is_matrix, log_det_lost, second
from tractable.tools.errors import ModelError


class MixturePosterior(NamedTuple):
    """λ of q(π) Π_k q(μ_k | Λ_k) q(Λ_k); scikit-learn's attributes, in its parametrisation, but for what is tied."""

    concentration: Any  # (K,) of a Dirichlet; of a process (2, K), of Betas: the stick's piece, and what is left of it
    means: Any  # (K, d) m
    mean_precision: Any  # (K,) β
    degrees_of_freedom: Any  # (K,) ν; tied ()
    covariances: Any  # E[Λ]⁻¹ = C/ν: full (K, d, d), tied (d, d), diagonal (K, d), spherical (K,)


class Beliefs(NamedTuple):
    """The prior's numbers, and which mixture they are of; hashable, so that equal ones give the same functions."""

    setting: Setting
    process: bool
    alpha: float  # α₀
    mean: tuple[float, ...]  # (d,) m₀
    beta: float  # β₀
    freedom: float  # ν₀
    spread: tuple[float, ...]  # C₀, flat

    @property
    def m0(self) -> np.ndarray:
        return np.array([self.mean])  # (1, d)

    @property
    def c0(self) -> np.ndarray:
        return np.array(self.spread).reshape(_shape(self.setting.covariance, self.setting.features))

    @property
    def tied(self) -> bool:
        return self.setting.covariance == "tied"


def bayesian_gaussian_mixture(
    components: int,
    features: int,
    covariance: str = "full",
    weight_concentration: Real | None = None,
    process: bool = False,
    mean_prior: Numbers | None = None,
    mean_precision: Real = 1.0,
    degrees_of_freedom: Real | None = None,
    covariance_prior: Numbers | None = None,
    floor: Real = 0.0,
    centre: Numbers | None = None,
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
    setting = gaussians.checked(components, features, covariance, floor, centre)
    alpha = 1 / components if weight_concentration is None else weight_concentration
    positive(weight_concentration=alpha, mean_precision=mean_precision)
    freedom = features if degrees_of_freedom is None else degrees_of_freedom
    least = features - 1 if is_matrix(covariance) else 0
    if not least < freedom < math.inf:
        raise ModelError(f"degrees_of_freedom is above {least} and finite; got {freedom}.")
    m0 = finite("mean_prior", np.zeros(features) if mean_prior is None else mean_prior, features)
    if centre is None:
        setting = setting._replace(origin=origin_of(m0, features))
    c0 = _spread(covariance, features, covariance_prior)
    return _bayesian(
        Beliefs(
            setting, process, float(alpha), tuple(m0.tolist()), float(mean_precision), float(freedom),
            tuple(c0.ravel().tolist()),
        )
    )  # fmt: skip


@functools.lru_cache(maxsize=128)
def _bayesian(beliefs: Beliefs) -> Conjugate:
    def of(function: Callable) -> Callable:
        return functools.partial(function, beliefs)

    family = gaussians.family(beliefs.setting)._replace(coefficients=of(coefficients))
    return Conjugate(
        family.e_step, of(m_step), of(divergence), of(sample), of(mean), of(predictive_log_prob),
        prior_of(beliefs), family.responsibilities, family.statistics,
    )  # fmt: skip


def prior_of(beliefs: Beliefs) -> MixturePosterior:
    """λ from before any data."""
    components, freedom = beliefs.setting.components, beliefs.freedom
    each, guess = np.ones(components), beliefs.c0 / freedom
    return MixturePosterior(
        mixture_weights.before(components, beliefs.alpha, beliefs.process),
        np.tile(beliefs.m0, (components, 1)),
        beliefs.beta * each,
        np.array(freedom) if beliefs.tied else freedom * each,
        guess if beliefs.tied else np.tile(guess, (components, *[1] * guess.ndim)),
    )


def coefficients(beliefs: Beliefs, q: MixturePosterior) -> jax.Array:
    """E of log π_k N(x; μ_k, Λ_k⁻¹), linear in features of x: (K, m)."""
    q, (components, features, covariance, *_) = on_device(q), beliefs.setting
    means, root = q.means - beliefs.setting.centre.astype(q.means.dtype), inverse_root(normals(q), covariance)
    if is_matrix(covariance):
        root = jnp.broadcast_to(root, (components, features, features))
        linear, square = gaussians.of_matrices(root, means)
    else:
        linear = root**2 * means
        square = -0.5 * root[:, : features if covariance == "diagonal" else 1] ** 2
    constant = (
        mixture_weights.expected_log(q.concentration, beliefs.process)
        + half_log_det(root)
        + log_det_lost(q.degrees_of_freedom, covariance, features)
        - 0.5 * (features / q.mean_precision + features * LOG_2PI + jnp.sum(linear * means, axis=1))
    )
    return jnp.concatenate([constant[:, None], linear, square], axis=1)


def m_step(beliefs: Beliefs, statistics: Moments) -> MixturePosterior:
    setting, beta = beliefs.setting, beliefs.beta
    count, first, squares = map(jnp.asarray, statistics)
    dtype, off = first.dtype, beliefs.m0 - setting.centre  # the prior's mean, about the centre
    total = beta + count  # (K,)
    means = jnp.divide(beta * off.astype(dtype) + first, total[:, None])
    return MixturePosterior(
        mixture_weights.after(count, beliefs.alpha, beliefs.process),
        means + setting.centre.astype(dtype),
        total,
        *precisions(beliefs, count, squares, means, off),
    )


def precisions(
    beliefs: Beliefs, count: jax.Array, squares: jax.Array, means: jax.Array, off: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """ν and C/ν of an M-step; its means and the prior's, ``off``, are about the centre."""
    (components, features, covariance, floor, _), c0, tied = beliefs.setting, beliefs.c0, beliefs.tied
    dtype, beta = means.dtype, beliefs.beta
    back = second(means, covariance)  # (K, ...)
    back = (beta + count).reshape(-1, *[1] * (back.ndim - 1)) * back
    if is_matrix(covariance):
        squares = gaussians.unfolded(squares, features)
    elif covariance == "spherical":
        squares = squares / features
    here = (c0 + beta * (components if tied else 1) * second(off, covariance)[0]).astype(dtype)
    size = jnp.sum(count) if tied else count
    like, ones = jnp.shape(size) + (1,) * c0.ndim, (1,) * jnp.ndim(size)
    lift = floor * np.broadcast_to(np.eye(features) if is_matrix(covariance) else 1.0, c0.shape)
    scale = here.reshape(ones + c0.shape) + squares - (jnp.sum(back, axis=0) if tied else back)
    scale = scale + size.reshape(like) * lift.astype(dtype).reshape(ones + c0.shape)
    nu = beliefs.freedom + size
    return nu, scale / nu.reshape(like)


def divergence(beliefs: Beliefs, q: MixturePosterior) -> jax.Array:
    prior = prior_of(beliefs)
    given, before = (jnp.asarray(p.concentration, jnp.result_type(q.means)) for p in (q, prior))
    of_weights = mixture_weights.divergence(given, before, beliefs.process)
    return of_weights + normal_wishart.divergence(normals(q), normals(prior), beliefs.setting.covariance)


def extended(beliefs: Beliefs, q: MixturePosterior) -> NormalWishart:
    """With the component that stands for those not used."""
    q, prior = on_device(q), prior_of(beliefs)
    if not beliefs.process:
        return normals(q)

    def join(here: jax.Array, there: np.ndarray) -> jax.Array:
        return jnp.concatenate([here, there[:1].astype(here.dtype)])

    shared_by_all = q.degrees_of_freedom, q.covariances
    return NormalWishart(
        join(q.means, prior.means),
        join(q.mean_precision, prior.mean_precision),
        *(shared_by_all if beliefs.tied else map(join, shared_by_all, (prior.degrees_of_freedom, prior.covariances))),
    )


def mean(beliefs: Beliefs, q: MixturePosterior) -> Gaussians:
    q, given = on_device(q), extended(beliefs, q)
    return Gaussians(mixture_weights.expected(q.concentration, beliefs.process), given.means, given.covariances)


def sample(beliefs: Beliefs, key: jax.Array, q: MixturePosterior, n: int) -> Gaussians:
    key_weights, key_normals = jax.random.split(key)
    dtype, concentration = jnp.result_type(q.means), jnp.asarray(q.concentration)
    weights = mixture_weights.sample(key_weights, concentration, beliefs.process, n, dtype)
    return Gaussians(weights, *normal_wishart.sample(key_normals, extended(beliefs, q), beliefs.setting.covariance, n))


def predictive_log_prob(beliefs: Beliefs, q: MixturePosterior, x: ArrayLike) -> jax.Array:
    given, x = extended(beliefs, q), rows_of(x, beliefs.setting.features)
    terms = normal_wishart.predictive_log_prob(given, beliefs.setting.covariance, x.astype(given.means.dtype))
    weights = mixture_weights.expected(on_device(q).concentration, beliefs.process)
    return jax.nn.logsumexp(terms + jnp.log(weights)[None, :], axis=1)


def on_device(q: MixturePosterior) -> MixturePosterior:
    return MixturePosterior(*map(jnp.asarray, q))


def normals(q: MixturePosterior) -> NormalWishart:
    """λ without the weights."""
    return NormalWishart(*q[1:])


def _shape(covariance: str, features: int) -> tuple[int, ...]:
    """Of one component's C."""
    return {"diagonal": (features,), "spherical": ()}.get(covariance, (features, features))


def _spread(covariance: str, features: int, value: Numbers | None) -> np.ndarray:
    """C₀ in the shape of one component's."""
    shape = _shape(covariance, features)
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
