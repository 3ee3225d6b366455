"""The likelihood of censored data: the density of an observed y, or the probability that y is between its bounds."""

import functools
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.core.censored import OPEN
from tractable.core.errors import ModelError
from tractable.core.model import Model, PyTree, Through
from tractable.core.shared import shared
from tractable.core.tree import row_shapes

NARROW = 1e-3  # if the log tails at an interval's two ends differ by less, density × width is used: it rounds less
FAR = 80.0  # log hazards are clipped to this, since the exponential of larger ones overflows in single precision


class Weibull(dist.Weibull):
    """NumPyro's Weibull with log scale η and shape k:  z = k (log y − η),   log p(y) = log k + z − e^z − log y.

    Equivalently log y = η + w/k with e^w ~ Exponential(1). R's survreg reports η and 1/k, lifelines e^η and k.
    """

    def __init__(self, eta: jax.Array, shape: ArrayLike) -> None:
        self.eta, self.power = eta, jnp.asarray(shape)
        super().__init__(jnp.exp(eta), self.power, validate_args=False)

    def z(self, value: ArrayLike) -> jax.Array:
        return jnp.minimum(self.power * (jnp.log(jnp.asarray(value)) - self.eta), FAR)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        z = self.z(value)
        return jnp.log(self.power) + z - jnp.exp(z) - jnp.log(jnp.asarray(value))


@functools.singledispatch
def log_tails(distribution: dist.Distribution, value: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """(log P(y ≤ value), log P(y > value)) of a continuous distribution, computed from its ``cdf``.

    For a distribution whose log tails can be computed more accurately, register a function of your own.
    """
    below = distribution.cdf(value)
    return jnp.log(below), jnp.log1p(-below)


@log_tails.register
def _(distribution: dist.Normal, value: ArrayLike) -> tuple[jax.Array, jax.Array]:
    z = (jnp.asarray(value) - jnp.asarray(distribution.loc)) / jnp.asarray(distribution.scale)
    return log_ndtr(z), log_ndtr(-z)


@log_tails.register
def _(distribution: dist.LogNormal, value: ArrayLike) -> tuple[jax.Array, jax.Array]:
    z = (jnp.log(jnp.asarray(value)) - distribution.loc) / distribution.scale
    return log_ndtr(z), log_ndtr(-z)


@log_tails.register
def _(distribution: Weibull, value: ArrayLike) -> tuple[jax.Array, jax.Array]:
    return _tails_of_hazard(jnp.exp(distribution.z(value)))


@log_tails.register
def _(distribution: dist.Exponential, value: ArrayLike) -> tuple[jax.Array, jax.Array]:
    return _tails_of_hazard(distribution.rate * value)


def _tails_of_hazard(hazard: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Both log tails, from the cumulative hazard −log P(y > value)."""
    hazard = jnp.asarray(hazard)
    return jnp.log(-jnp.expm1(-jnp.maximum(hazard, 1e-37))), -hazard


class _Bounds(constraints.Constraint):
    """Pairs lower ≤ upper whose bounds, where they exist, lie in the support of y."""

    event_dim = 1

    def __init__(self, support: constraints.Constraint | None) -> None:
        self.support = constraints.real if support is None else support

    def __call__(self, x: jax.Array) -> jax.Array:
        low, high = x[..., 0], x[..., 1]
        inside = jnp.where(low == high, self.support(low), (high >= OPEN) | self.support(high))
        return inside & (low <= high) & ((low > -OPEN) | (high < OPEN))

    def __repr__(self) -> str:
        return f"lower ≤ upper, {self.support}"

    def tree_flatten(self) -> tuple:
        return (self.support,), (("support",), {})


class Censored(dist.Distribution):
    """Bounds a ≤ b, (2,), of one y with distribution ``base``, as ``core.censored.censored`` returns them.

        log p(a, b) = log f(a) if a = b, else log P(a < y < b):
        right-censored log (1 − F(a)), left-censored log F(b), interval-censored log (F(b) − F(a))

    with density f and distribution function F.

    A lower bound outside the support, such as 0 for a time, counts as no bound. The likelihood is right if the
    censoring is non-informative: the bounds are all that it reveals about y (Klein & Moeschberger 2003, section 3.5). A
    draw is a pair of equal bounds, an observed y. Mean and variance are those of y itself, as predictions are of y.
    """

    arg_constraints: ClassVar = {}
    pytree_data_fields = ("base",)

    def __init__(self, base: dist.Distribution) -> None:
        self.base = base
        super().__init__(base.batch_shape, (2,), validate_args=False)

    @property
    def support(self) -> Any:
        return _Bounds(self.base.support)

    @property
    def mean(self) -> jax.Array:
        return self.base.mean

    @property
    def variance(self) -> jax.Array:
        return self.base.variance

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        drawn = self.base.sample(key, sample_shape)
        return jnp.stack([drawn, drawn], -1)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        value = jnp.asarray(value, jnp.result_type(value, float))
        low, high = value[..., 0], value[..., 1]
        support: Any = self.base.support
        below, above = (low > -OPEN) & support(low), high < OPEN  # which bounds exist
        # The other bound replaces a missing one, so that no derivative is taken at infinity.
        a = jnp.where(below, low, jnp.where(above, high, 1.0))
        b = jnp.where(above, high, a)
        (less_a, more_a), (less_b, more_b) = log_tails(self.base, a), log_tails(self.base, b)
        log_mass = jnp.where(
            above, jnp.where(below, self._between(a, b, more_a, less_b, less_a, more_b), less_b), more_a
        )
        log_mass = jnp.where(low == high, self.base.log_prob(a), log_mass)
        return jnp.where(below | above, log_mass, 0.0)

    def _between(self, a, b, more_a, less_b, less_a, more_b) -> jax.Array:
        """log P(a < y < b), computed as a difference of two probabilities of the smaller tail."""
        upper = more_a < less_b
        most = jnp.where(upper, more_a, less_b)
        gap = most - jnp.where(upper, more_b, less_a)
        has_width = b > a
        narrow = self.base.log_prob((a + b) / 2) + jnp.log(jnp.where(has_width, b - a, 1.0))
        wide = has_width & (gap > NARROW)
        return jnp.where(wide, most + jnp.log(-jnp.expm1(-jnp.where(wide, gap, 1.0))), narrow)


@shared
def with_censoring(model: Model) -> Model:
    """The same model for censored data, ``censored(y, …)`` of shape (n, 2).

    Equal arguments return the same object. Predictions are of the uncensored y.

    Raises:
        ModelError: the likelihood is not a ``Through``; let your ``likelihood`` return ``models.Censored(...)`` of its
            distribution.
    """
    through = model.through
    if through is None:
        raise ModelError(
            "with_censoring expects a model whose likelihood is a Through of a predictor; got another likelihood. Let "
            "the likelihood return tr.models.Censored(d) in place of its distribution d."
        )
    observe = through.observe
    return replace(model, likelihood=Through(through.predictor, lambda params, eta: Censored(observe(params, eta))))


def censors(model: Model, given: PyTree) -> bool:
    """Whether the rows of the model's data are bounds of y, and not y itself."""
    return isinstance(datum_of(model, given), Censored)


def datum_of(model: Model, given: PyTree) -> Any:
    """The distribution of one row, with shapes in place of numbers."""
    theta = jax.eval_shape(model.example, jax.random.key(0))
    return jax.eval_shape(model.datum, theta, row_shapes(given))


def itself(datum: PyTree) -> PyTree:
    """The distribution of the uncensored y: the base of a ``Censored``, or any other distribution as it is."""
    return datum.base if isinstance(datum, Censored) else datum
