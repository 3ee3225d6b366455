"""Variational Bayes in closed form: coordinate ascent on q(θ) q(z) for conjugate-exponential models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

from tractable.core.latent import LatentModel
from tractable.core.model import Model, PyTree
from tractable.core.numbers import LOG_2PI, Number
from tractable.core.sums import OfRows

Self = TypeVar("Self", bound="ConjugateModel")
NODES = 257  # points at which the trapezoid rule evaluates an integral over a log precision


@dataclass(frozen=True, eq=False)
class Conjugate:
    """The closed-form functions of a model with approximate posterior q(θ; λ). They are pure, and callers compile them.

        log p(x) ≥ ELBO(λ) = Σ_n w_n log Σ_z exp E_q(θ;λ)[log p(x_n, z | θ)] − KL(q(θ; λ) ‖ p(θ))

    Given q(θ), the optimal q(z) is a softmax of expected log densities; given q(z), the optimal q(θ) is the prior with
    expected statistics added. These are an E-step and an M-step on additive statistics, with λ in place of θ. So
    ``em(e_step, m_step, log_prior=lambda λ: -divergence(λ))`` is coordinate ascent, whose ELBO (the bound above) never
    falls, and ``online_em`` on the same steps is stochastic variational inference by natural gradients. q is narrower
    than the posterior where θ and z depend on each other. Attias 1999; Hoffman, Blei, Wang & Paisley 2013.

    Attributes:
        e_step: ``(lambda, batch) -> Expected``: sums over rows weighted by the batch's mask, and the ELBO's first term
            Σ_n w_n log Σ_z exp E_q[log p(x_n, z | θ)], in nats (natural logarithms).
        m_step: ``statistics -> lambda``, the λ of the optimal q(θ) given these statistics.
        divergence: ``lambda -> ()``, KL(q(θ; λ) ‖ p(θ)) ≥ 0, nats.
        sample: ``(key, lambda, n) -> θ`` with a leading axis of n, independent draws from q(θ; λ).
        mean: ``lambda -> θ``, the means under q; for a covariance, the inverse of the mean of its precision instead.
        predictive_log_prob: ``(lambda, x) -> (n,)``, log ∫ p(x_n | θ) q(θ; λ) dθ, nats.
        prior: the prior's λ, in NumPy's float64. For a mixture it is no starting point: all its components are equal,
            and would stay equal.
        responsibilities: ``(lambda, x) -> (n, K)``, q(z), for mixtures.
        assigned: ``(batch, responsibilities (n, K)) -> statistics``, to start from a guess of each row's component.
        given: ``(key, batch, z (n,)) -> θ``, a draw from p(θ | x, z); None where the optimal q(θ) for a known z is not
            this posterior.
    """

    e_step: Callable
    m_step: Callable
    divergence: Callable
    sample: Callable
    mean: Callable
    predictive_log_prob: Callable
    prior: Any
    responsibilities: Callable | None = None
    assigned: Callable | None = None
    given: Callable | None = None


class ConjugateModel(LatentModel):
    """A latent model whose q(θ; λ) has a closed form. It has a prior density too, so that any method can learn it.

    Attributes:
        conjugate: the closed-form functions, a ``Conjugate``.
        first: ``(key, rows) -> λ``, a starting point; by default the prior's λ.
    """

    conjugate: Conjugate
    own = ("conjugate", "first")
    first: Callable[[jax.Array, PyTree], PyTree]

    @classmethod
    def of(
        cls: type[Self], conjugate: Conjugate, log_prob: OfRows, position: PyTree, support: PyTree, log_prior: Callable,
        first: Callable | None = None, **others: Any,
    ) -> Self:  # fmt: skip
        """The model with these closed-form functions and densities.

        Args:
            log_prob: ``(θ, rows) -> (n,)``, log p(x_n | θ), nats.
            log_prior: ``θ -> ()``.
            position, support, others: as for ``LatentModel.from_steps``.
        """
        self = cls.from_steps(None, None, log_prob, position, support=support, prior=log_prior, **others)
        self.conjugate, self.first = conjugate, first or (lambda key, rows: conjugate.prior)
        return self


def conjugate_model(model: Model) -> ConjugateModel | None:
    """The model if its q(θ) has a closed form, else None."""
    return model if isinstance(model, ConjugateModel) else None


def gamma_divergence(shape: Number, rate: Number, prior_shape: Number, prior_rate: Number) -> jax.Array:
    """KL(Gamma(a, b) ‖ Gamma(a₀, b₀)), nats, elementwise.

    (a − a₀) ψ(a) − log Γ(a) + log Γ(a₀) + a₀ log(b/b₀) + a (b₀/b − 1)
    """
    return (
        (shape - prior_shape) * digamma(shape)
        - gammaln(shape)
        + gammaln(prior_shape)
        + prior_shape * jnp.log(rate / prior_rate)
        + shape * (prior_rate / rate - 1)
    )


def dirichlet_divergence(concentration: jax.Array, prior: jax.Array) -> jax.Array:
    """KL(Dirichlet(α) ‖ Dirichlet(α₀)), nats, over the last axis; with two entries, KL of Betas."""
    total = jnp.sum(concentration, axis=-1)
    expected = digamma(concentration) - jnp.expand_dims(digamma(total), -1)  # E log π
    normalisers = gammaln(total) - gammaln(jnp.sum(prior, axis=-1))
    return normalisers + jnp.sum(gammaln(prior) - gammaln(concentration) + (concentration - prior) * expected, axis=-1)


def log_normal_of_unknown_precision(distance: jax.Array, variance: jax.Array, shape: Number, rate: Number) -> jax.Array:
    """log ∫ N(distance; 0, variance + 1/τ) Gamma(τ; shape, rate) dτ, nats; a Student t if the variance is 0.

    By the trapezoid rule in log τ, whose error is below 1e-9 for a shape of ½ or more.

    Args:
        distance: (n,), each number minus its mean.
        variance: (n,), ≥ 0, added to the noise variance 1/τ.
        shape: (), a.
        rate: (), b.
    """
    # The integrand is below e⁻⁴⁰ times its peak at points more than ``reach`` to the left of the peak, or more than
    # log(1 + reach) to the right of it.
    reach = 40 / shape + 9 / jnp.sqrt(shape)
    high = jnp.log(shape / rate) + jnp.log1p(reach)
    low = jnp.log(shape) - jnp.log(rate + distance**2 / 2) - reach  # a row far from the mean moves the peak to the left
    step = (high - low) / (NODES - 1)
    u = low[:, None] + step[:, None] * jnp.arange(NODES, dtype=distance.dtype)[None, :]  # (n, NODES)
    log_variance = jnp.logaddexp(jnp.log(variance)[:, None], -u)
    terms = (
        shape * jnp.log(rate)
        - gammaln(shape)
        + shape * u
        - rate * jnp.exp(u)
        - 0.5 * (LOG_2PI + log_variance + (distance**2)[:, None] * jnp.exp(-log_variance))
    )
    return jax.nn.logsumexp(terms, axis=1) + jnp.log(step)
