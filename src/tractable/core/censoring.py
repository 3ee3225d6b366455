"""Censored data: the density of y where y was observed, its mass between bounds where only bounds are known."""

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

NARROW = 1e-3  # log ratio of the tails at an interval's ends below which density × width is more accurate
FAR = 80.0  # log hazard above which its exponential would overflow


class Weibull(dist.Weibull):
    """NumPyro's Weibull with log scale η and shape k:  z = k (log y − η),   log p(y) = log k + z − e^z − log y.

    log y = η + w/k, with e^w ~ Exponential(1): R's survreg has η and 1/k, lifelines e^η and k.
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
    """(log P(y ≤ value), log P(y > value)) of a continuous distribution, from its ``cdf``, and as accurate as that.

    Register your own function for a distribution whose log tails are known more accurately.
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
    return _of_hazard(jnp.exp(distribution.z(value)))


@log_tails.register
def _(distribution: dist.Exponential, value: ArrayLike) -> tuple[jax.Array, jax.Array]:
    return _of_hazard(distribution.rate * value)


def _of_hazard(total: ArrayLike) -> tuple[jax.Array, jax.Array]:
    total = jnp.asarray(total)
    return jnp.log(-jnp.expm1(-jnp.maximum(total, 1e-37))), -total


class _Bounds(constraints.Constraint):
    """Two numbers, the second no smaller; finite ones lie in the support."""

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
    """Bounds a ≤ b, (2,), of one y with distribution ``base`` (``core.censored`` makes them).

        log p(a, b) = log f(a) where a = b, else log P(a < y < b):
        right-censored log S(a), left-censored log F(b), interval-censored log (F(b) − F(a)) from the nearer tail

    A lower bound outside the support, as 0 for a time, counts as no bound. This is right if the censoring says nothing
    more about y than the bounds (non-informative censoring; Klein & Moeschberger 2003, section 3.5). A draw is an
    observed y, given twice; mean and variance are those of y itself, which predictions are about.
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
        # A missing bound is replaced by the other one, so that no derivative is taken at infinity.
        a = jnp.where(below, low, jnp.where(above, high, 1.0))
        b = jnp.where(above, high, a)
        (less_a, more_a), (less_b, more_b) = log_tails(self.base, a), log_tails(self.base, b)
        log_mass = jnp.where(
            above, jnp.where(below, self._between(a, b, more_a, less_b, less_a, more_b), less_b), more_a
        )
        log_mass = jnp.where(low == high, self.base.log_prob(a), log_mass)
        return jnp.where(below | above, log_mass, 0.0)

    def _between(self, a, b, more_a, less_b, less_a, more_b) -> jax.Array:
        """log P(a < y < b) as a difference of the smaller tail's masses."""
        upper = more_a < less_b
        most = jnp.where(upper, more_a, less_b)
        gap = most - jnp.where(upper, more_b, less_a)
        has_width = b > a
        narrow = self.base.log_prob((a + b) / 2) + jnp.log(jnp.where(has_width, b - a, 1.0))
        wide = has_width & (gap > NARROW)
        return jnp.where(wide, most + jnp.log(-jnp.expm1(-jnp.where(wide, gap, 1.0))), narrow)


@shared
def with_censoring(model: Model) -> Model:
    """The model for censored data ``censored(y, …)``, (n, 2), of the same y.

    The same model gives the same ``Model``. Predictions are of the uncensored y.

    Raises:
        ModelError: the likelihood does not go ``Through`` a predictor; let your ``likelihood`` return
            ``models.Censored(...)`` of its distribution.
    """
    through = model.through
    if through is None:
        raise ModelError(
            "with_censoring expects a model whose likelihood goes Through a predictor; this one does not. Let its "
            "likelihood return tr.models.Censored(...) of the distribution that it returns."
        )
    observe = through.observe
    return replace(model, likelihood=Through(through.predictor, lambda params, eta: Censored(observe(params, eta))))


def censors(model: Model, given: PyTree) -> bool:
    """Whether the model's rows are bounds of y."""
    return isinstance(datum_of(model, given), Censored)


def datum_of(model: Model, given: PyTree) -> Any:
    """The distribution of one row, by shapes alone."""
    theta = jax.eval_shape(model.example, jax.random.key(0))
    return jax.eval_shape(model.datum, theta, row_shapes(given))


def itself(datum: PyTree) -> PyTree:
    """The distribution of y behind a Censored one; any other distribution itself."""
    return datum.base if isinstance(datum, Censored) else datum
