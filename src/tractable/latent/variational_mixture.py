"""A Bayesian mixture of normals: Dirichlet weights, Normal–Wishart means and precisions."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import digamma, gammaln, multigammaln
from jax.typing import ArrayLike

from tractable.core import small
from tractable.core.errors import ModelError
from tractable.core.model import Batch, whole
from tractable.core.numbers import LOG_2PI, Numbers, Real, positive
from tractable.core.shared import recorded
from tractable.core.sums import Sums
from tractable.latent import gaussians, normal_wishart
from tractable.latent.columns import finite, origin_of, rows_of
from tractable.latent.conjugate_variational import Conjugate, ConjugateModel, dirichlet_divergence
from tractable.latent.gaussians import Gaussians, Setting
from tractable.latent.linear_mixture import Moments, cluster_rows
from tractable.latent.normal_wishart import NormalWishart, is_matrix, log_det_lost, second_moment
from tractable.latent.series import on_device


class MixturePosterior(NamedTuple):
    """λ of q(π) Π_k q(μ_k | Λ_k) q(Λ_k), with scikit-learn's names and parametrisation, except for "tied"."""

    concentration: Any  # (K,) of a Dirichlet; for a Dirichlet process (2, K), of the Betas that break the stick
    means: Any  # (K, d) m
    mean_precision: Any  # (K,) β
    degrees_of_freedom: Any  # (K,) ν; tied ()
    covariances: Any  # E[Λ]⁻¹ = C/ν: full (K, d, d), tied (d, d), diagonal (K, d), spherical (K,)


class Beliefs(NamedTuple):
    """The mixture's setting, the prior's parameters, and the functions from which a ``Conjugate`` is made."""

    setting: Setting
    process: bool  # whether the weights have a Dirichlet process as prior
    alpha: float  # α₀
    mean_prior: tuple[float, ...]  # (d,) m₀
    beta: float  # β₀
    freedom: float  # ν₀
    spread: tuple[float, ...]  # the entries of C₀

    @property
    def m0(self) -> np.ndarray:
        """m₀, (1, d)."""
        return np.array([self.mean_prior])

    @property
    def c0(self) -> np.ndarray:
        """C₀, in the shape of one component's C."""
        return np.array(self.spread).reshape(_shape(self.setting.covariance, self.setting.features))

    @property
    def tied(self) -> bool:
        return self.setting.covariance == "tied"

    @functools.lru_cache(maxsize=128)  # noqa: B019
    def model(self) -> ConjugateModel:
        """The model; equal ``Beliefs`` give the same object."""
        setting, prior = self.setting, self.prior()
        family = setting.family(self.constant)
        forms = Conjugate(
            family.e_step, self.m_step, self.divergence, self.sample, self.mean, self.predictive_log_prob, prior,
            family.responsibilities, setting.statistics, None if self.process or setting.floor else self.given,
        )  # fmt: skip
        plain = gaussians.setting_of(
            setting.components + self.process, setting.features, setting.covariance, 0.0, self.mean_prior
        ).mixture()
        sums = plain.sums or Sums(plain.summed_out)

        def begin(key: jax.Array, rows: np.ndarray | jax.Array) -> MixturePosterior:
            x, shares = cluster_rows(key, rows, setting.components)
            dtype = jnp.result_type(float)
            sums = setting.statistics(whole(jnp.asarray(x, dtype)), jnp.asarray(shares, dtype))
            return self.m_step(jax.tree.map(lambda s: s * (len(rows) / len(x)), sums))

        return ConjugateModel.of(
            forms, plain.summed_out, plain.position, plain.support,
            functools.partial(log_mixture_prior, prior, setting.covariance, self.process), begin,
            responsibilities=plain.responsibilities, sample=plain.sampler, drawn=sums.drawn, complete=sums.complete,
            permute=None if self.process else plain.symmetry.permute,
        )  # fmt: skip

    def given(self, key: jax.Array, batch: Batch, z: jax.Array) -> Gaussians:
        """A draw of θ from p(θ | x, z): for a known z, the optimal q(θ) is this posterior."""
        shares = jax.nn.one_hot(z, self.setting.components, dtype=jnp.result_type(float))
        q = self.m_step(self.setting.statistics(batch, shares))
        return jax.tree.map(lambda a: a[0], self.sample(key, q, 1))

    def prior(self) -> MixturePosterior:
        """The prior's λ."""
        components, freedom = self.setting.components, self.freedom
        ones, guess = np.ones(components), self.c0 / freedom
        return MixturePosterior(
            np.stack([ones, self.alpha * ones]) if self.process else self.alpha * ones,
            np.tile(self.m0, (components, 1)),
            self.beta * ones,
            np.array(freedom) if self.tied else freedom * ones,
            guess if self.tied else np.tile(guess, (components, *[1] * guess.ndim)),
        )

    def constant(self, q: MixturePosterior) -> jax.Array:
        """The part of E log π_k N(x; μ_k, Λ_k⁻¹) that does not depend on x or the frame, (K,)."""
        q, (_, features, covariance, *_) = on_device(q), self.setting
        lost = log_det_lost(q.degrees_of_freedom, covariance, features)
        if self.process:
            total = digamma(jnp.sum(q.concentration, axis=0))
            piece, rest = digamma(q.concentration[0]) - total, digamma(q.concentration[1]) - total
            log_weights = piece + jnp.append(0, jnp.cumsum(rest)[:-1])  # E log π
        else:
            log_weights = digamma(q.concentration) - digamma(jnp.sum(q.concentration))
        return log_weights + lost - 0.5 * features * (1 / q.mean_precision + LOG_2PI)

    def m_step(self, statistics: Moments) -> MixturePosterior:
        setting, beta = self.setting, self.beta
        count, (row_means, *spread) = jnp.asarray(statistics.count), setting.spreads(statistics)
        total = beta + count  # (K,)
        m0 = (self.m0 - setting.centre).astype(row_means.dtype)  # the prior's mean minus the centre
        distance = row_means - m0
        means = m0 + (count / total)[:, None] * distance + setting.centre.astype(row_means.dtype)
        return MixturePosterior(
            self.counted(count), means, total, *self.precisions(count, setting.covariances(*spread), distance)
        )

    def counted(self, count: jax.Array) -> jax.Array:
        """The concentration given N_k rows of each component."""
        if not self.process:
            return self.alpha + count
        later = jnp.append(jnp.cumsum(count[::-1])[::-1][1:], 0)  # Σ_{j>k} N_j
        return jnp.stack([1 + count, self.alpha + later])

    def expected_weights(self, concentration: jax.Array) -> jax.Array:
        """E π, (K,); for a process (K + 1,), whose last entry is the rest of the stick."""
        shares = concentration / jnp.sum(concentration, axis=0, keepdims=self.process)
        return break_stick(shares[:1], shares[1:])[0] if self.process else shares

    def precisions(self, count: jax.Array, spread: jax.Array, distance: jax.Array) -> tuple[jax.Array, jax.Array]:
        """ν and C/ν of an M-step, from the components' counts, covariances about their means, and distances from m₀.

        C = C₀ + Σ r (x − x̄)(x − x̄)ᵀ + β₀ N/(β₀ + N) (x̄ − m₀)(x̄ − m₀)ᵀ
        """
        pull = second_moment(distance, self.setting.covariance)  # (K, ...)
        pull = (self.beta * count / (self.beta + count)).reshape(-1, *[1] * (pull.ndim - 1)) * pull
        pull, size = (jnp.sum(pull, axis=0), jnp.sum(count)) if self.tied else (pull, count)
        c0 = jnp.asarray(self.c0, distance.dtype)
        like = jnp.shape(size) + (1,) * c0.ndim
        scale = c0[(None,) * jnp.ndim(size)] + size.reshape(like) * spread + pull
        nu = self.freedom + size
        return nu, scale / nu.reshape(like)

    def divergence(self, q: MixturePosterior) -> jax.Array:
        prior = self.prior()
        pair = [jnp.asarray(p.concentration, jnp.result_type(q.means)) for p in (q, prior)]
        pair = [concentration.T for concentration in pair] if self.process else pair  # Betas, or one Dirichlet
        of_weights = jnp.sum(dirichlet_divergence(*pair))
        return of_weights + normal_wishart.divergence(normals(q), normals(prior), self.setting.covariance)

    def extended(self, q: MixturePosterior) -> NormalWishart:
        """λ of the normals; for a process, with one more component, which stands for all unused ones."""
        q, prior = on_device(q), self.prior()
        if not self.process:
            return normals(q)

        def join(learnt: jax.Array, unused: np.ndarray) -> jax.Array:
            return jnp.concatenate([learnt, unused[:1].astype(learnt.dtype)])

        shared_by_all = q.degrees_of_freedom, q.covariances
        return NormalWishart(
            join(q.means, prior.means),
            join(q.mean_precision, prior.mean_precision),
            *(shared_by_all if self.tied else map(join, shared_by_all, (prior.degrees_of_freedom, prior.covariances))),
        )

    def mean(self, q: MixturePosterior) -> Gaussians:
        q, components = on_device(q), self.extended(q)
        return Gaussians(self.expected_weights(q.concentration), components.means, components.covariances)

    def sample(self, key: jax.Array, q: MixturePosterior, n: int) -> Gaussians:
        key_weights, key_normals = jax.random.split(key)
        dtype, concentration = jnp.result_type(q.means), jnp.asarray(q.concentration)
        if self.process:
            pairs = jax.random.dirichlet(key_weights, concentration.T, (n, concentration.shape[1]), dtype)
            weights = break_stick(pairs[..., 0], pairs[..., 1])
        else:
            weights = jax.random.dirichlet(key_weights, concentration, (n,), dtype)
        return Gaussians(weights, *normal_wishart.sample(key_normals, self.extended(q), self.setting.covariance, n))

    def predictive_log_prob(self, q: MixturePosterior, x: ArrayLike) -> jax.Array:
        components, x = self.extended(q), rows_of(x, self.setting.features)
        x = x.astype(components.means.dtype)
        terms = normal_wishart.predictive_log_prob(components, self.setting.covariance, x)
        weights = self.expected_weights(on_device(q).concentration)
        return jax.nn.logsumexp(terms + jnp.log(weights)[None, :], axis=1)


@recorded
def bayesian_gaussian_mixture(
    components: int, features: int, covariance: str = "full", *, process: bool = False,
    weight_concentration: Real | None = None, mean_prior: Numbers | None = None, mean_precision: Real = 1.0,
    degrees_of_freedom: Real | None = None, covariance_prior: Numbers | None = None, floor: Real = 0.0,
    centre: Numbers | None = None,
) -> ConjugateModel:  # fmt: skip
    """A mixture of normals under a conjugate prior, or a Dirichlet process, by mean field q(π, μ, Λ) q(z).

        π ~ Dirichlet(α₀, …, α₀), or π_k = v_k Π_{j<k} (1 − v_j) with v_k ~ Beta(1, α₀), for k = 1, 2, …
        x | k ~ N(μ_k, Λ_k⁻¹),   μ_k | Λ_k ~ N(m₀, (β₀ Λ_k)⁻¹)
        full:       Λ_k ~ Wishart(ν₀, C₀⁻¹)          tied: the same, one Λ for all
        diagonal:   Λ_ki ~ Gamma(ν₀/2, C₀_i/2)       spherical: λ_k ~ Gamma(d ν₀/2, d C₀/2)

        log r_nk = E log π_k + ½ (E log |Λ_k| − d log 2π − d/β_k − ν_k (x − m_k)ᵀ C_k⁻¹ (x − m_k)) + constant
        β_k = β₀ + N_k,  m_k = (β₀ m₀ + Σ r x)/β_k,  ν_k = ν₀ + N_k,  C_k = C₀ + Σ r xxᵀ + β₀ m₀m₀ᵀ − β_k m_k m_kᵀ

    Components that explain no rows return to the prior; with α₀ below 1 they lose their weight too. Bishop 2006,
    section 10.2 (ν_k by the corrected eq. 10.63); Blei & Jordan 2006, where only q(z) is truncated at K.

    The settings are those of scikit-learn's ``BayesianGaussianMixture``. For "full", and for every type with one
    column, its iterates are the same as here. Otherwise scikit-learn's steps do not maximise the lower bound on the log
    evidence (ELBO). It gives diagonal and spherical precisions the digammas of a Wishart, Σ_i ψ((ν − i)/2), instead of
    d ψ(ν/2) and d ψ(dν/2). For "tied" it divides N by K, so that its means, weights and covariances are those of this
    model with K ν₀ and K C₀. Its ``lower_bound_`` omits constants.

    Priors are in the units of x: standardise columns, or set ``mean_prior`` and ``covariance_prior``.

    Args: ``components``, ``features``, ``covariance`` and ``centre`` (m₀ by default) as for ``gaussian_mixture``, and
        process: True for a Dirichlet process, whose weights are pieces of a stick, infinitely many; K of them are used.
        weight_concentration: α₀ > 0; 1/K by default.
        mean_prior: m₀, (d,); 0 by default.
        mean_precision: β₀ > 0, the number of rows that the prior's mean is worth.
        degrees_of_freedom: ν₀, above d − 1 for full and tied, else above 0; d by default.
        covariance_prior: C₀, positive definite, in the units of x²: (d, d) for full and tied, (d,) for diagonal, a
            number for spherical; ones (on the diagonal) by default. The prior guesses a covariance of C₀/ν₀.
        floor: ≥ 0, scikit-learn's ``reg_covar``: adds N_k · floor to C_k. With it the ELBO may fall a little in a step.
            It is 0 by default, as the prior already keeps covariances above 0.

    Returns:
        A ConjugateModel with λ ``MixturePosterior`` and θ ``Gaussians``; the same arguments give the same object. The θ
        of a process has K + 1 components. The last one stands for all unused ones: its weight is the rest of the stick,
        and its mean and covariance come from the prior.

    Raises:
        ModelError: a setting is out of range. DataError: rows are not (n, d).

    >>> made = bayesian_gaussian_mixture(3, 2).conjugate
    >>> made.mean(made.prior).weights.round(3).tolist()
    [0.333, 0.333, 0.333]
    """
    setting = gaussians.setting_of(components, features, covariance, floor, centre)
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
    return Beliefs(
        setting, process, float(alpha), tuple(m0.tolist()), float(mean_precision), float(freedom),
        tuple(c0.ravel().tolist()),
    ).model()  # fmt: skip


def break_stick(pieces: jax.Array, rest: jax.Array) -> jax.Array:
    """Weights v_k Π_{j<k} (1 − v_j), and last the rest of the stick, (n, K + 1), from v and 1 − v, (n, K) each."""
    one = jnp.ones((pieces.shape[0], 1), pieces.dtype)
    return jnp.concatenate([pieces, one], axis=1) * jnp.concatenate([one, jnp.cumprod(rest, axis=1)], axis=1)


def normals(q: MixturePosterior) -> NormalWishart:
    """λ without its part for the weights."""
    return NormalWishart(*q[1:])


def _shape(covariance: str, features: int) -> tuple[int, ...]:
    """The shape of one component's C."""
    return {"diagonal": (features,), "spherical": ()}.get(covariance, (features, features))


def _spread(covariance: str, features: int, value: Numbers | None) -> np.ndarray:
    """C₀ in the shape of one component's C; raises ModelError for an invalid one."""
    shape = _shape(covariance, features)
    if value is None:
        return np.eye(features) if len(shape) == 2 else np.ones(shape)
    array = np.asarray(value, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ModelError(f"covariance_prior of {covariance!r} must be finite, of shape {shape}; got {value}.")
    if len(shape) == 2:
        if not np.allclose(array, array.T, rtol=1e-6, atol=0) or np.linalg.eigvalsh(array)[0] <= 0:
            raise ModelError(f"covariance_prior needs to be symmetric and positive definite; got {value}.")
        return (array + array.T) / 2
    if not (array > 0).all():
        raise ModelError(f"covariance_prior needs to be positive; got {value}.")
    return array


def log_mixture_prior(prior: MixturePosterior, kind: str, process: bool, theta: Gaussians) -> jax.Array:
    """log p(π) + Σ_k log p(μ_k | Σ_k) + log p(Σ_k), a density of the weights and of the *covariances*, in nats.

    Σ ~ inverse Wishart(ν₀, C₀) if it is a matrix, else inverse gammas.
    """
    features = theta.means.shape[1]
    nu, beta = float(np.ravel(prior.degrees_of_freedom)[0]), float(prior.mean_precision[0])
    guess = np.asarray(prior.covariances) if kind == "tied" else np.asarray(prior.covariances)[0]
    scale, deviation = nu * guess, theta.means - prior.means[0]
    weights = theta.weights
    if process:
        # π_k = v_k · rest_k, where rest_k is the rest of the stick: the Beta densities of v_k, and the Jacobian.
        rest = 1 - jnp.concatenate([jnp.zeros(1), jnp.cumsum(weights)[:-2]])
        alpha = float(prior.concentration[1, 0])
        value = jnp.sum(dist.Beta(1.0, alpha).log_prob(weights[:-1] / rest) - jnp.log(rest))
    else:
        value = dist.Dirichlet(jnp.asarray(prior.concentration)).log_prob(weights)
    if is_matrix(kind):
        root = small.inverse_root(theta.covariances.reshape(-1, features, features))
        log_det = -2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=1, axis2=2)), axis=1)
        trace = jnp.einsum("kij,jl,kil->k", root, jnp.asarray(scale), root, precision="highest")
        value = value + jnp.sum(
            0.5 * nu * (np.linalg.slogdet(scale)[1] - features * math.log(2))
            - multigammaln(0.5 * nu, features)
            - 0.5 * (nu + features + 1) * log_det
            - 0.5 * trace
        )
        roots = jnp.broadcast_to(root, (len(deviation), features, features))
        white = jnp.einsum("kij,kj->ki", roots, deviation, precision="highest")
        spread = jnp.broadcast_to(log_det, (len(deviation),))
    else:
        a, b = (0.5 * (features if kind == "spherical" else 1) * v for v in (nu, scale))
        value = value + jnp.sum(
            a * np.log(b) - gammaln(a) - (a + 1) * jnp.log(theta.covariances) - b / theta.covariances
        )
        variances = jnp.broadcast_to(theta.covariances.reshape(len(deviation), -1), deviation.shape)
        white, spread = deviation / jnp.sqrt(variances), jnp.sum(jnp.log(variances), axis=1)
    of_means = features * math.log(beta / (2 * math.pi)) - spread - beta * jnp.sum(white**2, axis=1)
    return jnp.asarray(value + 0.5 * jnp.sum(of_means))
