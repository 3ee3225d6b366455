"""Models whose posterior ``CoordinateAscent`` knows in closed form, given z: the pure functions, as models.

Each is a ``LatentModel`` with the density of its prior, so that any method runs on it, and carries in ``conjugate`` the
closed forms of q(θ; λ).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln, multigammaln
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.core import Model, whole
from tractable.kernels.em import OfRows
from tractable.models import variational_mixture, variational_regression
from tractable.models.conjugate_variational import Conjugate, Normal
from tractable.models.conjugate_variational import normal_gamma as pair
from tractable.models.latent import LatentModel
from tractable.models.mixture import Gaussians, clustered, gaussian_mixture
from tractable.models.variational_mixture import MixturePosterior
from tractable.models.variational_regression import Regression
from tractable.tools.shared import shared
from tractable.tools.small import inverse_root

Self = TypeVar("Self", bound="ConjugateModel")


class ConjugateModel(LatentModel):
    """A latent model with a closed-form q(θ; λ).

    Attributes:
        conjugate: its closed forms.
        first: ``(key, rows) -> λ`` to begin from; the prior's by default.
    """

    conjugate: Conjugate
    own = ("conjugate", "first")
    first: Callable[[jax.Array, Any], Any]

    @classmethod
    def of(
        cls: type[Self], conjugate: Conjugate, log_prob: OfRows, position: Any, support: Any, log_prior: Callable,
        first: Callable | None = None, **others: Any,
    ) -> Self:  # fmt: skip
        """The model of closed forms and densities.

        Args:
            log_prob: ``(θ, rows) -> (n,)``, log p(x_n | θ), nats.
            log_prior: ``θ -> ()``.
            position, support, others: as for ``LatentModel.from_steps``.
        """
        self = cls.from_steps(None, None, log_prob, position, support=support, prior=log_prior, **others)
        self.conjugate, self.first = conjugate, first or (lambda key, rows: conjugate.prior)
        return self


@shared
def normal_gamma(mean: float = 0.0, strength: float = 1.0, shape: float = 1.0, rate: float = 1.0) -> ConjugateModel:
    """One normal sample with unknown mean and precision.

        x ~ N(μ, 1/τ),   μ | τ ~ N(μ₀, 1/(λ₀ τ)),   τ ~ Gamma(a₀, b₀)

    Args and Raises: as for ``conjugate_variational.normal_gamma``. θ has ``mean`` and ``precision``.

    >>> normal_gamma().names
    ['mean', 'precision']
    """
    mean, strength, shape, rate = map(float, (mean, strength, shape, rate))
    conjugate = pair(mean, strength, shape, rate)

    def log_prior(theta: Normal) -> jax.Array:
        of_mean = dist.Normal(mean, 1 / jnp.sqrt(strength * theta.precision)).log_prob(theta.mean)
        return jnp.asarray(of_mean + dist.Gamma(shape, rate).log_prob(theta.precision))

    def log_prob(theta: Normal, x: ArrayLike) -> jax.Array:
        return dist.Normal(theta.mean, 1 / jnp.sqrt(theta.precision)).log_prob(x)

    def sample(key: jax.Array, theta: Normal, n: int) -> tuple[jax.Array, jax.Array]:
        return theta.mean + jax.random.normal(key, (n,)) / jnp.sqrt(theta.precision), jnp.zeros((n, 0))

    position, support = Normal(np.array(mean), np.array(shape / rate)), Normal(constraints.real, constraints.positive)
    return ConjugateModel.of(conjugate, log_prob, position, support, log_prior, sample=sample)


def bayesian_linear_regression(
    features: int, prior_precision: Any = 1.0, shape: float = 1.0, rate: float = 1.0, scaled: bool = False
) -> ConjugateModel:
    """Linear regression whose noise, and if wished the size of whose weights, is learnt.

        y ~ N(xᵀw, 1/τ),   τ ~ Gamma(a₀, b₀),   w ~ N(0, I/α),   α a number or ~ Gamma(c₀, d₀)

    Args and Raises: as for ``variational_regression.linear_regression_unknown_noise``. θ has ``weights``,
    ``noise_precision`` and, where it is learnt, ``weight_precision``. Data are ``Data(y, given=x)``.

    >>> bayesian_linear_regression(2).names
    ['weights[0]', 'weights[1]', 'noise_precision']
    """
    size = prior_precision if not isinstance(prior_precision, list) else tuple(prior_precision)
    return _regression(features, size, float(shape), float(rate), scaled)


@functools.lru_cache(maxsize=128)
def _regression(features: int, size: Any, shape: float, rate: float, scaled: bool) -> ConjugateModel:
    conjugate = variational_regression.linear_regression_unknown_noise(features, size, shape, rate, scaled)
    learnt = isinstance(size, tuple)

    def log_prior(theta: Regression) -> jax.Array:
        alpha = theta.weight_precision if learnt else size
        precision = alpha * theta.noise_precision if scaled else alpha
        value = dist.Gamma(shape, rate).log_prob(theta.noise_precision)
        value = value + jnp.sum(dist.Normal(0.0, 1 / jnp.sqrt(precision)).log_prob(theta.weights))
        return jnp.asarray(value + dist.Gamma(*size).log_prob(alpha) if learnt else value)

    def likelihood(theta: Regression, x: Any) -> dist.Distribution:
        return dist.Normal(x @ theta.weights, 1 / jnp.sqrt(theta.noise_precision))

    def log_prob(theta: Regression, rows: Any) -> jax.Array:
        return jnp.asarray(likelihood(theta, rows[1]).log_prob(rows[0]))

    position = Regression(np.zeros(features), np.ones(()), np.ones(()) if learnt else ())
    support = Regression(constraints.real, constraints.positive, constraints.positive if learnt else ())
    model = ConjugateModel.of(conjugate, log_prob, position, support, log_prior)
    Model.__init__(model, model.prior, likelihood, position, support)  # with moments, so that it predicts
    return model


def bayesian_gaussian_mixture(
    components: int, features: int, covariance: str = "full", *, process: bool = False, **settings: Any
) -> ConjugateModel:
    """A mixture of normals under a conjugate prior, Dirichlet and Normal–Wishart, or a Dirichlet process.

    Args and Raises: as for ``variational_mixture.bayesian_gaussian_mixture``, whose priors are in the units of x:
    standardise columns, or set ``mean_prior`` and ``covariance_prior``. θ is ``Gaussians``.

    >>> len(bayesian_gaussian_mixture(2, 1).names)
    6
    """
    conjugate = variational_mixture.bayesian_gaussian_mixture(
        components, features, covariance, process=process, **settings
    )
    return _mixture(conjugate, components, features, covariance, process)


@functools.lru_cache(maxsize=128)
def _mixture(conjugate: Conjugate, components: int, features: int, covariance: str, process: bool) -> ConjugateModel:
    prior: MixturePosterior = conjugate.prior
    assigned: Any = conjugate.assigned
    plain = gaussian_mixture(components + process, features, covariance, 0.0, prior.means[0])

    def begin(key: jax.Array, rows: Any) -> MixturePosterior:
        x, shares = clustered(key, rows, components)
        dtype = jnp.result_type(float)
        sums = assigned(whole(jnp.asarray(x, dtype)), jnp.asarray(shares, dtype))
        return conjugate.m_step(jax.tree.map(lambda s: s * (len(rows) / len(x)), sums))

    return ConjugateModel.of(
        conjugate, plain.summed_out, plain.position, plain.support,
        functools.partial(log_mixture_prior, prior, covariance, process), begin,
        responsibilities=plain.responsibilities, sample=plain.sampler,
        permute=None if process else plain.symmetry.permute,
    )  # fmt: skip


def log_mixture_prior(prior: MixturePosterior, kind: str, process: bool, theta: Gaussians) -> jax.Array:
    """log p(π) + Σ_k log p(μ_k | Σ_k) + log p(Σ_k), a density of the weights and of the *covariances*, nats.

    Σ ~ inverse Wishart(ν₀, C₀) where it is a matrix, else inverse gammas.
    """
    features = theta.means.shape[1]
    nu, beta = float(np.ravel(prior.degrees_of_freedom)[0]), float(prior.mean_precision[0])
    each = np.asarray(prior.covariances) if kind == "tied" else np.asarray(prior.covariances)[0]
    scale, off = nu * each, theta.means - prior.means[0]
    weights = theta.weights
    if process:
        # π_k = v_k (what is left): Betas of v_k, and the Jacobian of the pieces.
        left = 1 - jnp.concatenate([jnp.zeros(1), jnp.cumsum(weights)[:-2]])
        alpha = float(prior.concentration[1, 0])
        value = jnp.sum(dist.Beta(1.0, alpha).log_prob(weights[:-1] / left) - jnp.log(left))
    else:
        value = dist.Dirichlet(jnp.asarray(prior.concentration)).log_prob(weights)
    if kind in ("full", "tied"):
        root = inverse_root(theta.covariances.reshape(-1, features, features))
        log_det = -2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=1, axis2=2)), axis=1)
        trace = jnp.einsum("kij,jl,kil->k", root, jnp.asarray(scale), root, precision="highest")
        value = value + jnp.sum(
            0.5 * nu * (np.linalg.slogdet(scale)[1] - features * math.log(2))
            - multigammaln(0.5 * nu, features)
            - 0.5 * (nu + features + 1) * log_det
            - 0.5 * trace
        )
        roots = jnp.broadcast_to(root, (len(off), features, features))
        white = jnp.einsum("kij,kj->ki", roots, off, precision="highest")
        spread = jnp.broadcast_to(log_det, (len(off),))
    else:
        a, b = (0.5 * (features if kind == "spherical" else 1) * v for v in (nu, scale))
        value = value + jnp.sum(
            a * np.log(b) - gammaln(a) - (a + 1) * jnp.log(theta.covariances) - b / theta.covariances
        )
        variances = jnp.broadcast_to(theta.covariances.reshape(len(off), -1), off.shape)
        white, spread = off / jnp.sqrt(variances), jnp.sum(jnp.log(variances), axis=1)
    of_means = features * math.log(beta / (2 * math.pi)) - spread - beta * jnp.sum(white**2, axis=1)
    return jnp.asarray(value + 0.5 * jnp.sum(of_means))


def conjugate_model(model: Model) -> ConjugateModel | None:
    """The model, where its q(θ) is known in closed form; else None."""
    return model if isinstance(model, ConjugateModel) else None
