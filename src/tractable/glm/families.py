"""Families of distributions of y given η, where η is a linear predictor or a network's output."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from numpyro.distributions.transforms import OrderedTransform

from tractable.core.censoring import Weibull
from tractable.core.errors import ModelError
from tractable.core.model import Model, PyTree, Through
from tractable.core.shared import shared
from tractable.core.simulation import WAYS, Way, gamma, mixed_poisson, poisson

# Families that models with several targets may have.
MULTI_OUTPUT = ("normal", "lognormal", "gamma", "weibull", "exponential", "beta")

LARGE = 8.0  # from this argument of the gamma function on, Stirling's series is exact in single precision
DEGREES = 4.0  # degrees of freedom of "student-t": the tails are heavy enough for outliers, and the variance exists
# The smallest dispersion and coefficient of variation that are used. Counts of a smaller dispersion are Poisson up to
# rounding. The smallest spread of "beta" is a tenth of this.
FEWEST = 1e-4


class Family(NamedTuple):
    """A family of distributions of y given η.

    Attributes:
        observe: the function ``(params, η) -> distribution`` of one datum.
        others: the function ``classes -> priors`` that gives the priors of the family's further parameters.
        intercept: whether η has an intercept.
    """

    observe: Callable[..., dist.Distribution | None]
    others: Callable[[int], dict[str, dist.Distribution]] = lambda classes: {}
    intercept: bool = True


class BernoulliLogits(dist.BernoulliLogits):
    """NumPyro's distribution, with log p(y|η) = log σ((2y − 1) η). At η = 0 its derivative is ±½, as it should be.

    JAX's derivative of NumPyro's own formula is 0 or 1 there.
    """

    def log_prob(self, value: ArrayLike) -> jax.Array:
        # The type of y is converted first, since 2y − 1 cannot be −1 in an unsigned type, which pixels may have.
        sign = 2 * jnp.asarray(value, jnp.result_type(value, self.logits)) - 1
        return jax.nn.log_sigmoid(sign * self.logits)


class SphericalT(dist.Distribution):
    """Student's t in D dimensions, the same in all directions: w | s ~ N(0, s² I), s² ~ InverseGamma(ν/2, ν c²/2).

    NumPyro's ``MultivariateStudentT`` needs a D × D matrix; here log p costs O(D).

    Args:
        df: the degrees of freedom ν > 0.
        size: the number of dimensions D.
        scale: the scale c > 0.
    """

    arg_constraints: ClassVar = {"df": dist.constraints.positive, "scale": dist.constraints.positive}
    support = dist.constraints.real_vector  # pyright: ignore[reportAssignmentType]
    reparametrized_params: ClassVar = ["scale"]

    def __init__(self, df: ArrayLike, size: int, scale: ArrayLike, *, validate_args: bool | None = None) -> None:
        self.df, self.scale = df, scale
        super().__init__((), (size,), validate_args=validate_args)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        first, second = jax.random.split(key)
        normal = jax.random.normal(first, (*sample_shape, *self.event_shape))
        spread = self.df / jax.random.chisquare(second, self.df, sample_shape)
        return jnp.asarray(self.scale) * normal * jnp.sqrt(spread)[..., None]

    def log_prob(self, value: ArrayLike) -> jax.Array:
        (size,), square = self.event_shape, jnp.sum(jnp.square(jnp.asarray(value) / self.scale), -1)
        of_shape = (
            gammaln((self.df + size) / 2) - gammaln(jnp.asarray(self.df) / 2) - size / 2 * jnp.log(self.df * jnp.pi)
        )
        return of_shape - size * jnp.log(self.scale) - (self.df + size) / 2 * jnp.log1p(square / self.df)

    @property
    def mean(self) -> jax.Array:
        return jnp.where(jnp.asarray(self.df) > 1, jnp.zeros(self.event_shape), jnp.nan)

    @property
    def variance(self) -> jax.Array:
        df = jnp.asarray(self.df)
        finite = jnp.square(self.scale) * df / jnp.maximum(df - 2, 1e-30)
        return jnp.where(df > 2, finite, jnp.where(df > 1, jnp.inf, jnp.nan)) * jnp.ones(self.event_shape)


class NegativeBinomial(dist.NegativeBinomial2):
    """The negative binomial distribution with mean μ and variance μ + d² μ², where d is the dispersion.

    log p is accurate in single precision down to d = 0.

    r = 1/d²,   log p(y) = y log μ − (y + r) log(1 + μ/r) + [log Γ(r + y) − log Γ(r) − y log r] − log y!
    """

    def __init__(self, log_mean: jax.Array, dispersion: ArrayLike) -> None:
        self.log_mean = log_mean
        size = 1 / jnp.square(jnp.maximum(dispersion, FEWEST))
        super().__init__(jnp.exp(log_mean), size, validate_args=False)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        y = jnp.asarray(value, jnp.result_type(float))
        r: Any = self.concentration
        # A difference of two large log Γ is lost to rounding, but a difference of their series is accurate.
        large = jnp.maximum(r, LARGE)
        series = (large + y - 0.5) * jnp.log1p(y / large) - y + _stirling(large + y) - _stirling(large)
        small = jnp.minimum(r, LARGE)
        rise = jnp.where(r < LARGE, gammaln(small + y) - gammaln(small) - y * jnp.log(small), series)
        return y * self.log_mean - (y + r) * jnp.log1p(self.mean / r) + rise - gammaln(y + 1)


class WithZeros(dist.Distribution):
    """Counts of a base distribution p whose share of zeros is another one.

        P(0) = z,   P(y) = w p(y) for y > 0,   w = (1 − z)/(1 − p(0)),   E[y] = w μ,   Var(y) = w σ² + w (1 − w) μ²
        zero-inflated:  z = π + (1 − π) p(0), so that w = 1 − π    (Lambert 1992)
        hurdle:         z = π                                      (Mullahy 1986)

    μ and σ² are the mean and variance of the base, which is Poisson or ``NegativeBinomial``; π is the probability.
    """

    arg_constraints: ClassVar = {}
    support = dist.constraints.nonnegative_integer  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("base", "probability", "log_zero", "log_weight")
    pytree_aux_fields = ("hurdle",)

    def __init__(self, base: dist.Distribution, probability: ArrayLike, hurdle: bool) -> None:
        self.base, self.probability, self.hurdle = base, probability, hurdle
        mean, size = base.mean, getattr(base, "concentration", None)
        none = (
            -mean if size is None else -size * jnp.log1p(mean / size)
        )  # log p(0) with all digits, unlike ``log_prob``
        log_probability, rest = jnp.log(probability), jnp.log1p(-jnp.asarray(probability))
        self.log_zero = log_probability if hurdle else jnp.logaddexp(log_probability, rest + none)
        # p(0) may round to 1, which leaves no probability for the counts above 0.
        some = jnp.log(-jnp.expm1(jnp.minimum(none, -jnp.finfo(none.dtype).tiny)))
        self.log_weight = rest - some if hurdle else rest
        super().__init__(base.batch_shape, (), validate_args=False)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        y = jnp.asarray(value)
        return jnp.where(y == 0, self.log_zero, self.log_weight + self.base.log_prob(y))

    @property
    def mean(self) -> jax.Array:
        return jnp.exp(self.log_weight) * self.base.mean

    @property
    def variance(self) -> jax.Array:
        weight = jnp.exp(self.log_weight)
        return jnp.maximum(weight * self.base.variance + weight * (1 - weight) * jnp.square(self.base.mean), 0.0)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        shape, (first, *keys) = self.shape(sample_shape), jax.random.split(key, 4)
        is_zero = jax.random.bernoulli(first, self.probability, shape)
        if not self.hurdle:
            return jnp.where(is_zero, 0, self.base.sample(keys[0], sample_shape))
        # A count is the number of events up to time 1 of a process whose rate is fixed for Poisson, else gamma
        # distributed. Given that there is an event, the first one's time, the rate and the later events are drawn.
        mean, size = self.base.mean, getattr(self.base, "concentration", None)
        some = mean if size is None else size * jnp.log1p(mean / size)  # −log p(0)
        passed = -jnp.log1p(jax.random.uniform(keys[0], shape) * jnp.expm1(-some))  # the first event's time × the rate
        later = mean - passed
        if size is not None:
            passed = size * jnp.expm1(passed / size)
            later = (mean - passed) * jax.random.gamma(keys[1], size + 1, shape) / (size + passed)
        return jnp.where(is_zero, 0, 1 + jax.random.poisson(keys[2], jnp.maximum(later, 0.0)))


def _counts_with_zeros(
    generator: np.random.Generator, zeros: np.ndarray, hurdle: np.ndarray, mean: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """Values of ``WithZeros`` by NumPy, as its ``sample`` draws them; Poisson's size is infinite."""
    is_zero, is_poisson, finite = generator.random(zeros.shape) < zeros, np.isinf(size), np.minimum(size, 1e30)
    some = np.where(is_poisson, mean, finite * np.log1p(mean / finite))
    passed = -np.log1p(generator.random(zeros.shape) * np.expm1(-some))
    scaled = finite * np.expm1(passed / finite)
    later = (mean - scaled) * gamma(generator, finite + 1) / (finite + scaled)
    above = 1 + poisson(generator, np.maximum(np.where(is_poisson, mean - passed, later), 0.0))
    return np.where(is_zero, 0, np.where(hurdle > 0, above, mixed_poisson(generator, mean, size)))


WAYS[WithZeros.sample] = Way(
    lambda d: (d.probability, float(d.hurdle), d.base.mean, getattr(d.base, "concentration", jnp.inf)),
    _counts_with_zeros,
    whole=True,
)


class Gamma(dist.Gamma):
    """The gamma distribution with mean e^η and coefficient of variation v = sd/mean.

    log p(y) = −k (e^t − 1 − t) − log y + ½ log k − ½ log 2π − s(k),   k = 1/v²,   t = log y − η

    s is the remainder of Stirling's formula for log Γ.
    """

    def __init__(self, eta: jax.Array, variation: ArrayLike) -> None:
        self.eta = eta
        k = 1 / jnp.square(jnp.maximum(variation, FEWEST))
        super().__init__(k, k * jnp.exp(-eta), validate_args=False)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        log_y = jnp.log(jnp.asarray(value))
        k: Any = self.concentration
        t = log_y - self.eta
        large, small = jnp.maximum(k, LARGE), jnp.minimum(k, LARGE)
        series = 0.5 * jnp.log(large / (2 * jnp.pi)) - _stirling(large)
        return (
            -k * (jnp.expm1(t) - t)
            - log_y
            + jnp.where(k < LARGE, small * jnp.log(small) - small - gammaln(small), series)
        )


class OrderedLogits(dist.OrderedLogistic):
    """The ordered logistic distribution P(y ≤ k) = σ(cₖ − η), with log p(y) accurate far out in both tails.

    log (σ(b) − σ(a)) = log σ(b) + log σ(−a) + log(1 − e^(a − b))
    """

    def __init__(self, eta: jax.Array, cutpoints: jax.Array) -> None:
        self.eta, self.cuts = eta, cutpoints
        super().__init__(eta, cutpoints, validate_args=False)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        k = jnp.asarray(value, int)
        last = self.cuts.shape[-1]
        above = jnp.take(self.cuts, jnp.clip(k, 0, last - 1)) - self.eta
        below = jnp.take(self.cuts, jnp.clip(k - 1, 0, last - 1)) - self.eta
        inside = (k > 0) & (k < last)
        width = jnp.where(inside, jnp.log(-jnp.expm1(jnp.where(inside, below - above, -1.0))), 0.0)
        upper = jnp.where(k < last, jax.nn.log_sigmoid(above), 0.0)
        return upper + jnp.where(k > 0, jax.nn.log_sigmoid(-below), 0.0) + width


class Beta(dist.Beta):
    """The beta distribution with mean m = σ(η) and variance v² m (1 − m), where v is the spread.

    log p(y) = −k KL(m, y) − log y (1 − y) + ½ log k m (1 − m) − ½ log 2π + s(k) − s(a) − s(b),
    KL(m, y) = −m f((y − m)/m) − (1 − m) f((m − y)/(1 − m)),   f(x) = log(1 + x) − x,   s as for ``Gamma``

    Its usual parameters are a = m k and b = (1 − m) k, with k = 1/v² − 1. If the data are close together, k is so large
    that differences of log Γ are lost to rounding in single precision.
    """

    def __init__(self, eta: jax.Array, spread: ArrayLike) -> None:
        self.share, self.rest = jax.nn.sigmoid(eta), jax.nn.sigmoid(-eta)
        self.size = jnp.square(1 / jnp.maximum(spread, FEWEST / 10)) - 1
        super().__init__(self.size * self.share, self.size * self.rest, validate_args=False)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        y, m, rest, k = jnp.asarray(value), self.share, self.rest, self.size
        # y − m, as a difference of numbers near 0 even if m and y are near 1, so that rounding errors are small.
        offset = jnp.where(m > 0.5, rest - (1 - y), y - m)
        up, down, log_y, log_rest = offset / m, -offset / rest, jnp.log(y), jnp.log1p(-y)

        def ratio(x: jax.Array, far: jax.Array) -> jax.Array:  # log (1 + x); ``far`` is its value if x is large
            return jnp.where(jnp.abs(x) < 0.5, jnp.log1p(jnp.clip(x, -0.5, 0.5)), far)

        fit = m * (ratio(up, log_y - jnp.log(m)) - up) + rest * (ratio(down, log_rest - jnp.log(rest)) - down)
        level = jnp.log(k * m * rest / (2 * jnp.pi)) / 2 - log_y - log_rest
        return k * fit + level + _remainder(k) - _remainder(k * m) - _remainder(k * rest)


def _stirling(z: jax.Array) -> jax.Array:
    """The remainder log Γ(z) − (z − ½) log z + z − ½ log 2π of Stirling's formula, for z ≥ 8."""
    square = 1 / jnp.square(z)
    return (1 / 12 - square * (1 / 360 - square / 1260)) / z


def _remainder(z: jax.Array) -> jax.Array:
    """The remainder of Stirling's formula, for z > 0."""
    large, small = jnp.maximum(z, LARGE), jnp.minimum(z, LARGE)
    exact = gammaln(small) - (small - 0.5) * jnp.log(small) + small - 0.5 * jnp.log(2 * jnp.pi)
    return jnp.where(z < LARGE, exact, _stirling(large))


def _cutpoints(classes: int) -> dict[str, dist.Distribution]:
    """The prior of the cutpoints of K classes.

    The first is near −log(K − 1), the log odds of the lowest class if all classes are equally likely. Each further
    cutpoint is about 1 above the one before.
    """
    first = jnp.zeros(classes - 1).at[0].set(-jnp.log(classes - 1.0))
    scale = jnp.ones(classes - 1).at[0].set(2.5)
    return {"cutpoints": dist.TransformedDistribution(dist.Normal(first, scale).to_event(1), OrderedTransform())}


NOISE: Callable[[int], dict[str, dist.Distribution]] = lambda classes: {"noise": dist.HalfNormal(1.0)}  # noqa: E731
FAMILIES = {
    "normal": Family(lambda params, eta: dist.Normal(eta, params["noise"]), NOISE),
    "student-t": Family(lambda params, eta: dist.StudentT(DEGREES, eta, params["noise"]), NOISE),
    "lognormal": Family(lambda params, eta: dist.LogNormal(eta, params["noise"]), NOISE),
    "gamma": Family(
        lambda params, eta: Gamma(eta, params["variation"]), lambda classes: {"variation": dist.HalfNormal(1.0)}
    ),
    "weibull": Family(
        lambda params, eta: Weibull(eta, params["shape"]), lambda classes: {"shape": dist.LogNormal(0.0, 1.0)}
    ),
    "exponential": Family(lambda params, eta: Weibull(eta, 1.0)),
    "beta": Family(lambda params, eta: Beta(eta, params["spread"]), lambda classes: {"spread": dist.Uniform(0.0, 1.0)}),
    "poisson": Family(lambda params, eta: dist.Poisson(jnp.exp(eta))),
    "negative-binomial": Family(
        lambda params, eta: NegativeBinomial(eta, params["dispersion"]),
        lambda classes: {"dispersion": dist.HalfNormal(1.0)},
    ),
    "bernoulli": Family(lambda params, eta: BernoulliLogits(eta)),
    "categorical": Family(lambda params, eta: dist.Categorical(logits=eta)),
    "ordered": Family(lambda params, eta: OrderedLogits(eta, params["cutpoints"]), _cutpoints, intercept=False),
}


def _with_zeros(base: Family, name: str, hurdle: bool) -> Family:
    """The family of ``WithZeros`` of a base, whose probability is the parameter ``name``."""
    return Family(
        lambda params, eta: WithZeros(base.observe(params, eta), params[name], hurdle),
        lambda classes: base.others(classes) | {name: dist.Uniform(0.0, 1.0)},
    )


for _base in ("poisson", "negative-binomial"):
    FAMILIES[f"zero-inflated-{_base}"] = _with_zeros(FAMILIES[_base], "extra_zeros", hurdle=False)
    FAMILIES[f"hurdle-{_base}"] = _with_zeros(FAMILIES[_base], "zeros", hurdle=True)
CLASSES = ("categorical", "ordered")  # families that need a number of classes
# The names of a linear model's parameters, which no effect of a column may have.
PARAMETERS = frozenset({
    "cutpoints", "dispersion", "extra_zeros", "intercept", "levels", "noise", "scale", "scales", "shape", "sparse",
    "spread", "variation", "weights", "zeros",
})  # fmt: skip


@shared
def with_offset(model: Model) -> Model:
    """The model with a known term added to η; its data have given = ``{"x": …, "offset": …}``.

        η = offset + the model's own predictor at x

    For counts with an exposure, the offset is the log exposure. The same model gives the same ``Model``.

    Raises:
        ModelError: the model's likelihood is not a ``Through``, so it has no predictor.
    """
    through = model.through
    if through is None:
        raise ModelError("with_offset expects a likelihood that is a Through(predictor, observe); got another one.")
    predictor, observe = through.predictor, through.observe

    def shifted(params: PyTree, given: dict[str, Any]) -> jax.Array:
        return given["offset"] + predictor(params, given["x"])

    return replace(model, likelihood=Through(shifted, observe))
