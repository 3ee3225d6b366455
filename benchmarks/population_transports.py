"""Targets z = m + A t, t = T(ε) with ε standard normal or a mixture: densities by the Jacobian, moments in closed form.

One model serves all members of a variant: m, A⁻¹ and the numbers of T are passed as the ``given`` of one row of data.
With a constant prior the row's log likelihood is log p(z) itself. With a wide normal prior it is
log p(z) − log N(z; 0, 10²), so that prior times likelihood is p(z) again. Half of the members are hard: their
matrices A have a condition number of up to 1,000 in a random basis, while those of easy members are diagonal and have a
condition number of at most 3; and the numbers of T come from the difficult end of their range.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from population_truth import LEVELS, Truth, Variant, log_uniform, nowhere
from scipy import stats

import tractable as tr

Numbers = dict[str, Any]
WIDE = 10.0  # sd of the proper prior
COMPONENTS = 4  # of mixtures, at most


class Shape(NamedTuple):
    """A distribution of t.

    Attributes:
        numbers: ``(rng, d, hard) -> `` the numbers on which the distribution depends.
        log_density: ``(t (d,), numbers) -> ()``, in JAX, normalised.
        moments: ``(numbers, d) -> (mean (d,), covariance (d, d))`` of t; NaN where they do not exist.
        sample: ``(rng, numbers, n, d) -> (n, d)``.
        axes: whether A is diagonal, because each coordinate of t has a meaning of its own.
        light: whether tails are lighter than those of the wide prior, so that the likelihood is bounded.
    """

    numbers: Callable[[np.random.Generator, int, bool], Numbers]
    log_density: Callable[[jax.Array, Numbers], jax.Array]
    moments: Callable[[Numbers, int], tuple[np.ndarray, np.ndarray]]
    sample: Callable[[np.random.Generator, Numbers, int, int], np.ndarray]
    axes: bool = False
    light: bool = True


def standard(t: jax.Array) -> jax.Array:
    """log N(t; 0, I)."""
    return -0.5 * jnp.sum(jnp.square(t)) - 0.5 * t.size * math.log(2 * math.pi)


# Normal.
NORMAL = Shape(
    lambda rng, d, hard: {},
    lambda t, n: standard(t),
    lambda n, d: (np.zeros(d), np.eye(d)),
    lambda rng, n, count, d: rng.standard_normal((count, d)),
)


# Skewed: t = sinh((asinh ε + g)/δ), Jones and Pewsey's sinh-arcsinh distribution in every coordinate.
def _skew_numbers(rng: np.random.Generator, d: int, hard: bool) -> Numbers:
    g = rng.uniform(0.3, 1.2, d) * rng.choice([-1, 1], d) if hard else rng.uniform(-0.3, 0.3, d)
    return {"g": g, "delta": rng.uniform(0.7, 1.4, d) if hard else rng.uniform(0.9, 1.2, d)}


def _skew_log_density(t: jax.Array, n: Numbers) -> jax.Array:
    s = n["delta"] * jnp.arcsinh(t) - n["g"]
    eps = jnp.sinh(s)
    log_cosh = jnp.logaddexp(s, -s) - math.log(2)
    return standard(eps) + jnp.sum(log_cosh + jnp.log(n["delta"]) - 0.5 * jnp.log1p(jnp.square(t)))


def _skewed(eps: np.ndarray, n: Numbers) -> np.ndarray:
    return np.sinh((np.arcsinh(eps) + n["g"]) / n["delta"])


def _skew_moments(n: Numbers, d: int) -> tuple[np.ndarray, np.ndarray]:
    eps = np.linspace(-14, 14, 20_001)[:, None]
    weights = stats.norm.pdf(eps[:, 0])
    weights /= weights.sum()
    t = _skewed(eps, n)
    mean = weights @ t
    return mean, np.diag(weights @ np.square(t - mean))


SKEW = Shape(
    _skew_numbers,
    _skew_log_density,
    _skew_moments,
    lambda rng, n, count, d: _skewed(rng.standard_normal((count, d)), n),
)


# Banana: t₂ = b ε₂ + c (ε₁² − 1).
def _banana_numbers(rng: np.random.Generator, d: int, hard: bool) -> Numbers:
    return {"b": rng.uniform(0.2, 1.0), "c": log_uniform(rng, 0.5, 3.0) if hard else log_uniform(rng, 0.02, 0.3)}


def _banana_log_density(t: jax.Array, n: Numbers) -> jax.Array:
    eps = t.at[1].set((t[1] - n["c"] * (jnp.square(t[0]) - 1)) / n["b"])
    return standard(eps) - jnp.log(n["b"])


def _banana_moments(n: Numbers, d: int) -> tuple[np.ndarray, np.ndarray]:
    variances = np.ones(d)
    variances[1] = n["b"] ** 2 + 2 * n["c"] ** 2
    return np.zeros(d), np.diag(variances)


def _banana_sample(rng: np.random.Generator, n: Numbers, count: int, d: int) -> np.ndarray:
    t = rng.standard_normal((count, d))
    t[:, 1] = n["b"] * t[:, 1] + n["c"] * (np.square(t[:, 0]) - 1)
    return t


BANANA = Shape(_banana_numbers, _banana_log_density, _banana_moments, _banana_sample)


# Heavy tails: the multivariate t of ν degrees of freedom; it has a second moment if ν > 2.
def _heavy_numbers(rng: np.random.Generator, d: int, hard: bool) -> Numbers:
    return {"nu": rng.choice([1.0, 1.5, 2.0, 2.5, 3.0]) if hard else log_uniform(rng, 4.0, 50.0)}


def _heavy_log_density(t: jax.Array, n: Numbers) -> jax.Array:
    nu, d = n["nu"], t.size
    log_norm = jax.lax.lgamma((nu + d) / 2) - jax.lax.lgamma(nu / 2) - 0.5 * d * jnp.log(nu * math.pi)
    return log_norm - 0.5 * (nu + d) * jnp.log1p(jnp.sum(jnp.square(t)) / nu)


def _heavy_moments(n: Numbers, d: int) -> tuple[np.ndarray, np.ndarray]:
    variance = n["nu"] / (n["nu"] - 2) if n["nu"] > 2 else np.nan
    return np.zeros(d), variance * np.eye(d)


def _heavy_sample(rng: np.random.Generator, n: Numbers, count: int, d: int) -> np.ndarray:
    return rng.standard_normal((count, d)) / np.sqrt(rng.chisquare(n["nu"], (count, 1)) / n["nu"])


HEAVY = Shape(_heavy_numbers, _heavy_log_density, _heavy_moments, _heavy_sample, light=False)


# Mixtures of normals, each with the same sd in every direction.
def _modes_far(rng: np.random.Generator, d: int, hard: bool) -> Numbers:
    return _modes(rng, d, rng.uniform(9.0, 25.0) if hard else rng.uniform(5.0, 9.0), hard)


def _modes_near(rng: np.random.Generator, d: int, hard: bool) -> Numbers:
    return _modes(rng, d, rng.uniform(2.0, 5.0) if hard else rng.uniform(0.3, 2.0), hard)


def _modes(rng: np.random.Generator, d: int, distance: float, hard: bool) -> Numbers:
    """Two to four normals whose neighbours are ``distance`` mean sds apart, with weights of at least 0.1."""
    count = int(rng.integers(2, COMPONENTS + 1)) if hard else 2
    sds = np.ones(COMPONENTS)
    sds[:count] = log_uniform(rng, 0.4, 2.5, count) if hard else log_uniform(rng, 0.8, 1.25, count)
    weights = np.zeros(COMPONENTS)
    weights[:count] = 0.1 + (1 - 0.1 * count) * rng.dirichlet(np.ones(count))
    places = np.zeros((COMPONENTS, d))
    for k in range(1, count):
        direction = rng.standard_normal(d)
        places[k] = places[k - 1] + distance * direction / np.linalg.norm(direction)
    return _mixture(places, sds, weights)


def _spike_numbers(rng: np.random.Generator, d: int, hard: bool) -> Numbers:
    """A narrow normal inside a wide one, whose sd is 1/2 … 1/5 (easy) or 1/5 … 1/100 (hard) of the wide one's."""
    sds, weights, places = np.ones(COMPONENTS), np.zeros(COMPONENTS), np.zeros((COMPONENTS, d))
    sds[1] = log_uniform(rng, 0.01, 0.2) if hard else log_uniform(rng, 0.2, 0.5)
    weights[1] = rng.uniform(0.1, 0.9)
    weights[0] = 1 - weights[1]
    places[1] = rng.standard_normal(d) * rng.uniform(0, 1)
    return _mixture(places, sds, weights)


def _mixture(places: np.ndarray, sds: np.ndarray, weights: np.ndarray) -> Numbers:
    return {"places": places, "sds": sds, "weights": weights, "logs": np.log(np.maximum(weights, 1e-30))}


def _mixture_log_density(t: jax.Array, n: Numbers) -> jax.Array:
    # An absent component has a log weight so low that it adds nothing to the density.
    logs = jnp.where(n["weights"] > 0, n["logs"], -1e9)
    squares = jnp.sum(jnp.square((t - n["places"]) / n["sds"][:, None]), 1)
    return jax.nn.logsumexp(logs - 0.5 * squares - t.size * jnp.log(n["sds"]) - 0.5 * t.size * math.log(2 * math.pi))


def _mixture_moments(n: Numbers, d: int) -> tuple[np.ndarray, np.ndarray]:
    mean = n["weights"] @ n["places"]
    away = n["places"] - mean
    return mean, (n["weights"] @ np.square(n["sds"])) * np.eye(d) + (n["weights"][:, None] * away).T @ away


def _mixture_sample(rng: np.random.Generator, n: Numbers, count: int, d: int) -> np.ndarray:
    which = rng.choice(COMPONENTS, count, p=n["weights"])
    return n["places"][which] + n["sds"][which, None] * rng.standard_normal((count, d))


NEAR = Shape(_modes_near, _mixture_log_density, _mixture_moments, _mixture_sample)
FAR = Shape(_modes_far, _mixture_log_density, _mixture_moments, _mixture_sample)
SPIKE = Shape(_spike_numbers, _mixture_log_density, _mixture_moments, _mixture_sample)


# Plateau: uniform on (−1, 1) plus a logistic of scale s; its density is σ((t+1)/s) σ((1−t)/s) (1 − e^(−2/s))/2.
def _plateau_log_density(t: jax.Array, n: Numbers) -> jax.Array:
    s = n["s"]
    edges = -jax.nn.softplus(-(t + 1) / s) - jax.nn.softplus((t - 1) / s)
    return jnp.sum(edges + jnp.log(-jnp.expm1(-2 / s)) - math.log(2))


def _plateau_moments(n: Numbers, d: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(d), np.diag(1 / 3 + math.pi**2 * np.square(n["s"]) / 3)


PLATEAU = Shape(
    lambda rng, d, hard: {"s": log_uniform(rng, 0.01, 0.1, d) if hard else log_uniform(rng, 0.1, 0.5, d)},
    _plateau_log_density,
    _plateau_moments,
    lambda rng, n, count, d: rng.uniform(-1, 1, (count, d)) + rng.logistic(size=(count, d)) * n["s"],
    light=False,
)


# Funnel: v ~ N(0, w²), the others N(0, e^v).
def _funnel_log_density(t: jax.Array, n: Numbers) -> jax.Array:
    v, rest = t[0], t[1:]
    return standard(t[:1] / n["w"]) - jnp.log(n["w"]) + standard(rest * jnp.exp(-v / 2)) - 0.5 * rest.size * v


def _funnel_moments(n: Numbers, d: int) -> tuple[np.ndarray, np.ndarray]:
    variances = np.full(d, np.exp(n["w"] ** 2 / 2))
    variances[0] = n["w"] ** 2
    return np.zeros(d), np.diag(variances)


def _funnel_sample(rng: np.random.Generator, n: Numbers, count: int, d: int) -> np.ndarray:
    t = rng.standard_normal((count, d))
    t[:, 0] *= n["w"]
    t[:, 1:] *= np.exp(t[:, :1] / 2)
    return t


FUNNEL = Shape(
    lambda rng, d, hard: {"w": rng.uniform(1.0, 3.0) if hard else rng.uniform(0.1, 1.0)},
    _funnel_log_density,
    _funnel_moments,
    _funnel_sample,
    axes=True,
    light=False,
)


def placed(rng: np.random.Generator, d: int, hard: bool, axes: bool, wide: bool) -> Numbers:
    """m, A and its inverse: an overall scale of 0.1 … 10 (0.1 … 2 under the prior), m some sds from the origin."""
    scale = log_uniform(rng, 0.1, 2.0 if wide else 10.0)
    spread = np.exp(rng.uniform(-0.5, 0.5, d) * math.log(log_uniform(rng, 3.0, 1000.0) if hard and d > 1 else 3.0))
    basis = np.eye(d)
    if hard and not axes:
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    a = scale * basis * spread
    return {"m": rng.standard_normal(d) * min(3.0, 2 * scale), "A": a, "inverse": np.linalg.inv(a),
            "log_det": float(np.linalg.slogdet(a)[1])}  # fmt: skip


def transport(family: str, shape: Shape, d: int, *, wide: bool = False, rejected: bool = False) -> Variant:
    """The variant of a distribution in d dimensions, with a constant or a wide prior."""

    def likelihood(params: Any, x: Numbers) -> dist.Distribution:
        z = params["z"]
        value = shape.log_density(x["inverse"] @ (z - x["m"]), x) - x["log_det"]
        if wide:
            value = value - standard(z / WIDE) + d * math.log(WIDE)
        return dist.Unit(value)

    if wide:
        model = tr.Model({"z": dist.Normal(jnp.zeros(d), WIDE)}, likelihood)
    else:
        model = tr.Model(lambda params: jnp.zeros(()), likelihood, {"z": np.zeros(d)})

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        return placed(rng, d, hard, shape.axes, wide) | shape.numbers(rng, d, hard)

    def truth(n: Numbers) -> Truth:
        mean, covariance = shape.moments(n, d)

        def sample(rng: np.random.Generator, count: int) -> np.ndarray:
            return n["m"] + shape.sample(rng, n, count, d) @ n["A"].T

        exists = np.all(np.isfinite(covariance))
        sd = np.sqrt(np.sum((n["A"] @ covariance) * n["A"], 1)) if exists else np.full(d, np.nan)
        centre = n["m"] + n["A"] @ mean
        if "nu" not in n:
            return Truth(mean=centre, sd=sd, sample=sample)
        # A linear map of a multivariate t has marginals that are t, of the map's rows' lengths.
        lengths, law = np.linalg.norm(n["A"], axis=1), stats.t(n["nu"])
        quantiles = centre + np.outer(law.ppf(LEVELS), lengths)
        return Truth(mean=centre, sd=sd, quantiles=quantiles, half=law.ppf(0.84) * lengths, sample=sample)

    methods = ("rejection",) if wide and rejected and shape.light else ()
    name = f"{family}, d = {d}" + (", wide prior" if wide else "")
    return Variant(family, name, model, draw, as_row, truth, methods)


def as_row(n: Numbers) -> tr.Data:
    """One row of data, whose input is a member's numbers."""
    kept = {key: np.asarray(value, np.float64)[None] for key, value in n.items() if key != "A"}
    return tr.Data(np.zeros((1, 0)), kept)


# Distributions on half-lines and on (0, 1), whose parameters the methods transform to an unconstrained space.
def gammas(d: int = 3) -> Variant:
    """x_i ~ Gamma(a_i, b_i): shapes of 2 … 50, or of 0.3 … 2, whose density may have no maximum."""

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        shapes = log_uniform(rng, 0.3, 2.0, d) if hard else log_uniform(rng, 2.0, 50.0, d)
        return {"a": shapes, "b": log_uniform(rng, 0.1, 10.0, d)}

    def likelihood(params: Any, x: Numbers) -> dist.Distribution:
        return dist.Unit(jnp.sum(dist.Gamma(x["a"], x["b"]).log_prob(params["x"])))

    model = tr.Model(lambda params: jnp.zeros(()), likelihood, {"x": np.ones(d)}, {"x": constraints.positive})

    def truth(n: Numbers) -> Truth:
        return Truth(
            mean=n["a"] / n["b"], sd=np.sqrt(n["a"]) / n["b"], peaked=bool(np.all(n["a"] > 1)),
            sample=lambda rng, count: rng.gamma(n["a"], 1 / n["b"], (count, d)),
        )  # fmt: skip

    return Variant("half-lines", f"gammas, d = {d}", model, draw, as_row, truth)


def betas(d: int = 3) -> Variant:
    """x_i ~ Beta(a_i, b_i): shapes of 2 … 50, or of 0.5 … 2."""

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        low, high = (0.5, 2.0) if hard else (2.0, 50.0)
        return {"a": log_uniform(rng, low, high, d), "b": log_uniform(rng, low, high, d)}

    def likelihood(params: Any, x: Numbers) -> dist.Distribution:
        return dist.Unit(jnp.sum(dist.Beta(x["a"], x["b"]).log_prob(params["x"])))

    model = tr.Model(lambda params: jnp.zeros(()), likelihood, {"x": np.full(d, 0.5)}, {"x": constraints.unit_interval})

    def truth(n: Numbers) -> Truth:
        law = stats.beta(n["a"], n["b"])
        return Truth(
            mean=law.mean(), sd=law.std(), peaked=bool(np.all(n["a"] > 1) and np.all(n["b"] > 1)),
            sample=lambda rng, count: rng.beta(n["a"], n["b"], (count, d)),
        )  # fmt: skip

    return Variant("half-lines", f"betas, d = {d}", model, draw, as_row, truth)


def rays() -> Variant:
    """Densities with an infinite integral, with log density a u₁ − k log(1 + e^(b u₁)) − p log(1 + u₁²) − (u₂/s)²/2.

    The kinds are: a ray along which it rises for ever, a half-line on which it is constant, an unused parameter (these
    three have no single maximum), or tails that fall too slowly (p ≤ 1/2; this kind has a maximum).
    """

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        kind = rng.choice(["slow", "flat"]) if hard else rng.choice(["ray", "half"])
        return {
            "a": rng.choice([-1, 1]) * log_uniform(rng, 0.05, 2.0) if kind == "ray" else 0.0,
            "k": rng.uniform(0.5, 10) if kind == "half" else 0.0,
            "b": rng.choice([-1, 1]) * log_uniform(rng, 0.3, 3.0),
            "p": rng.uniform(0.1, 0.5) if kind == "slow" else 0.0,
            "s": log_uniform(rng, 0.1, 10.0),
        }

    def likelihood(params: Any, x: Numbers) -> dist.Distribution:
        u, v = params["u"][0], params["u"][1] / x["s"]
        tail = x["k"] * jax.nn.softplus(x["b"] * u) + x["p"] * jnp.log1p(jnp.square(u))
        return dist.Unit(x["a"] * u - tail - 0.5 * jnp.square(v))

    model = tr.Model(lambda params: jnp.zeros(()), likelihood, {"u": np.zeros(2)})
    return Variant("improper", "rays", model, draw, as_row, lambda n: nowhere(2, peaked=n["p"] > 0))


def variants() -> list[Variant]:
    """All variants of this file."""
    return [
        transport("normal", NORMAL, 1, wide=True, rejected=True), transport("normal", NORMAL, 10),
        transport("normal", NORMAL, 30, wide=True), transport("normal", NORMAL, 100),
        transport("skewed", SKEW, 1, wide=True), transport("skewed", SKEW, 3), transport("skewed", SKEW, 20, wide=True),
        transport("banana", BANANA, 2), transport("banana", BANANA, 10, wide=True),
        transport("heavy-tailed", HEAVY, 1), transport("heavy-tailed", HEAVY, 4, wide=True),
        transport("heavy-tailed", HEAVY, 20),
        transport("modes within reach", NEAR, 1, wide=True, rejected=True), transport("modes within reach", NEAR, 2),
        transport("modes within reach", NEAR, 10, wide=True),
        transport("modes far apart", FAR, 1, wide=True), transport("modes far apart", FAR, 2),
        transport("modes far apart", FAR, 5, wide=True), transport("modes far apart", FAR, 20),
        transport("spike in a slab", SPIKE, 1, wide=True, rejected=True), transport("spike in a slab", SPIKE, 2),
        transport("spike in a slab", SPIKE, 5, wide=True),
        transport("plateau", PLATEAU, 1, wide=True), transport("plateau", PLATEAU, 3),
        transport("plateau", PLATEAU, 10),
        transport("funnel", FUNNEL, 2, wide=True), transport("funnel", FUNNEL, 10), transport("funnel", FUNNEL, 50),
        gammas(), betas(), rays(),
    ]  # fmt: skip
