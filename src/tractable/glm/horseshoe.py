"""The horseshoe prior, with which most effects are close to 0 and a few are as large as the rows show."""

import functools
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform
from scipy.special import erf, erfc

from tractable.core.errors import ModelError
from tractable.core.model import Model, Through
from tractable.core.view import Label

FARTHEST, STEP = 60.0, 0.125  # the largest |log x| of the table of the horseshoe's distribution, and its step
SCALE = Label("scale of weights")  # the name of τ
SMALLEST = 1e-25  # |x| below it counts as equal to it, because the density has a pole at 0


class Curve(NamedTuple):
    """A cubic spline on equal steps; beyond the steps it is constant."""

    first: float
    step: float
    coefficients: np.ndarray  # (4, steps), of the cubes first

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The spline and its derivative at x."""
        size = self.coefficients.shape[1]
        steps = jnp.clip((x - self.first) / self.step, 0.0, size)
        i = jnp.clip(jnp.floor(steps), 0, size - 1).astype(int)
        a, b, c, d = (jnp.asarray(row, x.dtype)[i] for row in self.coefficients)
        t = (steps - i) * self.step
        return ((a * t + b) * t + c) * t + d, (3 * a * t + 2 * b) * t + c


@functools.cache
def curves() -> tuple[Curve, Curve]:
    """The horseshoe's distribution: log x − κ as a function of κ, and κ − log x as a function of log x.

    κ is the logit of P(|w/τ| < x). With λ = e^s, P(|w/τ| < x) is ∫ erf(x / λ√2) / (π cosh s) ds; the trapezoid rule is
    exact to rounding, because the integrand is smooth and falls exponentially.
    """
    from scipy.interpolate import CubicHermiteSpline  # imported here, because the import is slow

    s = np.arange(-90.0, 90.0, 0.05)
    mass = 0.05 / (np.pi * np.cosh(s))
    logs = np.arange(-FARTHEST, FARTHEST + STEP, STEP)
    ratio = np.exp(logs[:, None] - s) / np.sqrt(2)
    inside, outside = erf(ratio) @ mass, erfc(ratio) @ mass
    density = (ratio * np.exp(-(ratio**2)) * 2 / np.sqrt(np.pi)) @ mass  # dP / d log x
    logits, slope = np.log(inside) - np.log(outside), density / (inside * outside)  # dκ / d log x
    there = CubicHermiteSpline(logs, logits - logs, slope - 1)
    grid = np.arange(np.ceil(logits[0]), np.floor(logits[-1]), STEP)
    x = np.interp(grid, logits, logs)
    for _ in range(4):  # Newton's method for κ(log x) = grid
        x = x - (there(x) + x - grid) / (there(x, 1) + 1)
    back = CubicHermiteSpline(grid, x - grid, 1 / (there(x, 1) + 1) - 1)
    return Curve(grid[0], STEP, back.c), Curve(logs[0], STEP, there.c)


def log_density(x: jax.Array) -> jax.Array:
    """The log density of the horseshoe with τ = 1 at each x ≠ 0."""
    logs = jnp.log(jnp.maximum(jnp.abs(x), SMALLEST))
    offset, slope = curves()[1](logs)
    logits = logs + offset
    return jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits) + jnp.log1p(slope) - logs - jnp.log(2.0)


class _FromNormals(Transform):
    """From (log τ, z) to (τ, w): w_j = τ Q(z_j), where Q(z) has the horseshoe's distribution if z ~ N(0, 1)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        scale, z = jnp.exp(x[..., :1]), x[..., 1:]
        far = jnp.maximum(jnp.abs(z), SMALLEST)
        # The logit of P(|N(0, 1)| < |z|); erf keeps its digits near 0, log_ndtr far from 0.
        above = jnp.log(2.0) + log_ndtr(-far)
        inside = jax.scipy.special.erf(far / jnp.sqrt(2.0).astype(z.dtype))
        logits = jnp.log(inside) - above
        return jnp.concatenate([scale, scale * jnp.sign(z) * jnp.exp(logits + curves()[0](logits)[0])], -1)

    def _inverse(self, y: jax.Array) -> jax.Array:
        scale, x = y[..., :1], y[..., 1:] / y[..., :1]
        logs = jnp.log(jnp.maximum(jnp.abs(x), SMALLEST))
        logits = logs + curves()[1](logs)[0]
        # P(|N(0, 1)| < z) = sigmoid(κ); of small z by its inside, of large z by its outside.
        inside, outside = jax.nn.sigmoid(logits), jax.nn.sigmoid(-logits)
        z = jnp.where(logits < 0, jax.scipy.special.erfinv(inside) * jnp.sqrt(2.0), -dist.Normal().icdf(outside / 2))
        return jnp.concatenate([jnp.log(scale), jnp.sign(x) * z.astype(y.dtype)], -1)

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> jax.Array:
        logs, z, each = x[..., 0], x[..., 1:], y[..., 1:] / y[..., :1]
        return logs * x.shape[-1] + jnp.sum(dist.Normal().log_prob(z) - log_density(each), -1)

    def tree_flatten(self) -> tuple:
        return (), ((), {})


class _ScaleAndWeights(constraints.ParameterFreeConstraint):
    """The support of (τ, w): τ > 0, and real numbers."""

    event_dim = 1

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.all(jnp.isfinite(x), -1) & (x[..., 0] > 0)


biject_to.register(_ScaleAndWeights, lambda constraint: _FromNormals())


class Horseshoe(dist.Distribution):
    """The prior of the scale τ and D weights, (1 + D,): most weights are close to 0, and a few may be large.

        w_j | τ, λ_j ~ N(0, τ² λ_j²),   λ_j ~ HalfCauchy(1),   τ ~ HalfCauchy(scale)

    The λ_j are integrated out: w_j/τ has the density e^u E₁(u) / √(2π³) with u = (w_j/τ)²/2, a pole at 0 and the tails
    of a Cauchy distribution (Carvalho, Polson & Scott 2010). Methods move in log τ and in normal scores z_j of w_j/τ,
    whose prior is N(0, 1), so there is neither a pole nor a funnel in their coordinates.

    Args:
        features: D ≥ 1.
        scale: the median of τ, > 0.
    """

    arg_constraints: ClassVar = {}
    pytree_aux_fields = ("features", "scale")

    def __init__(self, features: int, scale: float, *, validate_args: bool | None = None) -> None:
        self.features, self.scale = features, scale
        super().__init__((), (1 + features,), validate_args=validate_args)

    @property
    def support(self) -> Any:
        return _ScaleAndWeights()

    def log_prob(self, value: ArrayLike) -> jax.Array:
        value = jnp.asarray(value)
        scale = value[..., 0]
        each = log_density(value[..., 1:] / value[..., :1]) - jnp.log(value[..., :1])
        return dist.HalfCauchy(self.scale).log_prob(scale) + jnp.sum(each, -1)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        first, second = jax.random.split(key)
        logs = jnp.log(dist.HalfCauchy(self.scale).sample(first, (*sample_shape, 1)))
        return _FromNormals()(jnp.concatenate([logs, jax.random.normal(second, (*sample_shape, self.features))], -1))


def scale_for(features: int, rows: float) -> float:
    """The default ``scale`` of a horseshoe: p₀/(D − p₀)/√n, if p₀ of D weights are expected to be large.

    It is the τ with which about p₀ weights escape from shrinkage (Piironen & Vehtari 2017), for inputs and noise of sd
    1; p₀ is a tenth of D, and at least 1.
    """
    expected = min(max(1.0, features / 10), features / 2)
    return expected / (features - expected) / float(np.sqrt(max(rows, 1.0)))


def with_horseshoe(model: Model, scale: float) -> Model:
    """The model with a horseshoe prior of its weights.

    Args:
        model: a model of one linear predictor, such as ``generalised_linear(D, family)``.
        scale: the median of the weights' common scale τ.

    Returns:
        A Model with a parameter ``sparse``, (1 + D,), in place of ``weights``: τ, and the weights.

    Raises:
        ModelError: the model has no weights of one linear predictor.
    """
    through, weights = model.through, model.prior.get("weights") if type(model.prior) is dict else None
    if through is None or weights is None or len(weights.shape()) != 1:
        raise ModelError("A horseshoe prior is for the weights of one linear predictor; this model has none.")
    predictor = through.predictor

    def predict(params: dict[str, Any], given: Any) -> jax.Array:
        return predictor(params | {"weights": params["sparse"][1:]}, given)

    features = weights.shape()[0]
    prior = {name: each for name, each in model.prior.items() if name != "weights"}
    labels = [SCALE, *(Label("weights", str(i)) for i in range(features))]
    return replace(
        model,
        prior=prior | {"sparse": Horseshoe(features, scale)},
        likelihood=Through(predict, through.observe),
        labels=dict(model.labels or {}) | {"sparse": labels},
    )
