"""Every family sums or integrates to one, is finite where logits are large, and refuses what cannot be."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import C, assert_holds, broken, error, ks, moments

from tractable.core.errors import ModelError
from tractable.ladders import layers
from tractable.ladders.layers import (
    SD_FLOOR,
    categorical,
    family_of,
    layer,
    normal_noise,
    shared_noise,
    standard_normal,
    top,
)
from tractable.ladders.units import ContinuousBernoulliLogits
from tractable.networks.network import Network

pytestmark = pytest.mark.laws

FAMILIES = ["bernoulli", "normal", "continuous bernoulli", "poisson", categorical(3), normal_noise(0.7)]
SLOPES = [-50.0, -1.0, -1e-4, 0.0, 1e-4, 0.04, 0.06, 0.0999, 0.1001, 1.0, 50.0]


def name_of(family):
    return family if isinstance(family, str) else family.name


def grid(family) -> tuple[np.ndarray, np.ndarray]:
    """Values of one unit, and their weights in a sum or an integral; Gauss–Legendre where it is one."""
    name = name_of(family)
    if name.lower() in ("bernoulli", "categorical", "poisson"):
        values = np.arange({"bernoulli": 2, "categorical": 3, "poisson": 200}[name.lower()])
        return values, np.ones(len(values))
    points, weights = np.polynomial.legendre.leggauss(400)
    low, high = (0, 1) if name == "continuous bernoulli" else (-30, 30)
    return (low + high) / 2 + (high - low) / 2 * points, (high - low) / 2 * weights


@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
def test_sums_to_one(family):
    """Of a layer of two units, over all pairs of values; the density of a row of units is their product."""
    made = layer(3, 2, family, hidden=(4,))
    params = made.init(jax.random.key(0))
    above = jnp.asarray([[0.4, -1.0, 2.0]])
    p = made.distribution(params, above)
    values, weights = grid(family)
    first, second = (a.ravel() for a in np.meshgrid(values, values, indexing="ij"))
    pairs = jnp.asarray(np.stack([first, second], -1))[:, None]  # (k, row, unit)
    mass = np.exp(np.asarray(p.log_prob(pairs)))[:, 0] * np.outer(weights, weights).ravel()
    np.testing.assert_allclose(mass.sum(), 1, atol=1e-9)
    assert p.log_prob(pairs).shape == (len(values) ** 2, 1)
    assert p.sample(jax.random.key(1), (7,)).shape == (7, 1, 2)
    assert made.features(pairs).shape == (len(values) ** 2, 1, made.seen)


def test_one_sd_for_all():
    """σ is one number, 1 to begin with; the mean is the network's."""
    made = shared_noise(2, 5)
    params = made.init(jax.random.key(0))
    above = jnp.ones((4, 3, 2))
    p = made.distribution(params | {"noise": jnp.asarray(0.3)}, above).base_dist
    np.testing.assert_allclose(p.scale, SD_FLOOR + math.log1p(math.exp(0.3)), rtol=1e-12)
    np.testing.assert_allclose(p.loc, above @ params["layer0"]["weight"] + params["layer0"]["bias"][None, None])
    np.testing.assert_allclose(made.distribution(params, above).base_dist.scale, 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        made.family.distribution(jnp.asarray([1.0, 2.0, 0.3])).base_dist.loc, [1.0, 2.0], rtol=1e-12
    )


def continuous(kind=ContinuousBernoulliLogits) -> dict[str, float]:
    """Density, mean and variance beside quadrature, draws beside the distribution function, by η."""
    points, weights = np.polynomial.legendre.leggauss(400)
    x, weights = 0.5 + 0.5 * points, 0.5 * weights
    scores = {}
    d = kind(jnp.asarray(SLOPES), validate_args=False)
    with np.errstate(over="ignore"):
        shape = np.exp(np.asarray(SLOPES)[None] * (x[:, None] - (np.asarray(SLOPES) > 0)))  # (k, η), at most 1
    mass = weights @ shape
    mean = weights @ (shape * x[:, None]) / mass
    variance = weights @ (shape * (x[:, None] - mean) ** 2) / mass
    scores["density"] = error(np.exp(d.log_prob(jnp.asarray(x)[:, None])), shape / mass, 1e-9)
    scores["mean"] = error(d.mean, mean, 1e-9)
    scores["variance"] = error(d.variance, variance, 1e-7)
    draws = np.asarray(d.sample(jax.random.key(0), (C,)))
    for i, eta in enumerate(SLOPES):
        safe = eta if eta else 1e-9
        scores[f"ranks at {eta}"] = ks(draws[:, i], lambda t, s=safe: np.expm1(s * t) / np.expm1(s))
        scores |= moments(f"draws at {eta}", draws[:, i], float(mean[i]), float(variance[i]))
    # The variance of squares is not a normal's, for which ``moments`` is made; twice its noise is enough here.
    return {name: score / 2 if "variance" in name and "draws" in name else score for name, score in scores.items()}


def test_continuous_bernoulli():
    assert_holds(continuous(), C)


def test_a_cross_entropy_without_its_constant():
    class Plain(ContinuousBernoulliLogits):
        def log_prob(self, value, intermediates=None):
            return value * self.logits - jax.nn.softplus(self.logits)

    assert set(broken(continuous(Plain))) == {"density"}


def test_continuous_bernoulli_slopes():
    """dx/dη of a draw is −(dF/dη)/p, at 0 too; d log p/dη = x − mean, all finite and in single precision as well."""

    @jax.jit
    def told(eta: jax.Array) -> dict:
        def each(function: Callable) -> tuple[jax.Array, jax.Array]:
            return jax.vmap(jax.value_and_grad(lambda e: function(ContinuousBernoulliLogits(e))))(eta)

        return {
            "sample": each(lambda law: law.sample(jax.random.key(2))),
            "log p": each(lambda law: law.log_prob(jnp.asarray(0.3, eta.dtype))),
            "mean": each(lambda law: law.mean),
            "variance": each(lambda law: law.variance),
        }

    log_p = jax.jit(lambda e, value: ContinuousBernoulliLogits(e).log_prob(value))
    for dtype, near in ((jnp.float64, 1e-6), (jnp.float32, 3e-3)):
        found = told(jnp.asarray(SLOPES, dtype))
        x, along = (np.asarray(a, float) for a in found["sample"])

        def cdf(e: float, t: float) -> float:
            return t if abs(e) < 1e-7 else math.expm1(e * t) / math.expm1(e)

        for e, value, got in zip(SLOPES, x, along, strict=True):
            step = 1e-3
            density = math.exp(float(log_p(e, value)))
            wanted = -(cdf(e + step, value) - cdf(e - step, value)) / (2 * step) / density
            np.testing.assert_allclose(got, wanted, atol=near + 1e-4 * abs(wanted))
        np.testing.assert_allclose(found["log p"][1], 0.3 - found["mean"][0], atol=near)
        for of in ("mean", "variance"):
            assert np.all(np.isfinite(found[of][1])), of


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("family", ["bernoulli", "continuous bernoulli", "normal", categorical(3)], ids=name_of)
def test_large_logits(family, dtype):
    """At η = ±100 (and ±1000) log p and its slope are finite, and right where the answer is known."""
    kind = family_of(family)
    eta = jnp.asarray([-1000.0, -100.0, 0.0, 100.0, 1000.0, 0.0], dtype)
    units = {"bernoulli": 6, "continuous bernoulli": 6, "normal": 3, "Categorical": 2}[name_of(family)]
    for value in (0, 1):
        h = jnp.full(units, value, jnp.int32 if kind.levels > 2 else dtype)
        log_p, slope = jax.value_and_grad(lambda e, h=h: kind.distribution(e).log_prob(h))(eta)
        assert np.isfinite(log_p) and np.all(np.isfinite(slope)), (family, value)
    if kind is layers.bernoulli:
        unit = jax.vmap(lambda e: kind.distribution(e[None]).log_prob(jnp.ones(1, dtype)))(eta)
        np.testing.assert_allclose(unit[:5], [-1000, -100, -math.log(2), 0, 0], atol=1e-6)


def test_starts():
    """A top begins as a fair coin, or as N(0, 1); a standard normal learns nothing."""
    for family, wanted in (("bernoulli", math.log(0.5)), ("normal", -0.5 * math.log(2 * math.pi))):
        made = top(3, family)
        p = made.distribution(made.init(jax.random.key(0)), None)
        np.testing.assert_allclose(p.log_prob(jnp.zeros(3)), 3 * wanted, rtol=1e-9)
    assert standard_normal(2).init(jax.random.key(0)) == {}


@pytest.mark.quick
def test_one_family_for_one_argument():
    assert normal_noise(0.5) is normal_noise(0.5) and categorical(3) is categorical(levels=3)


@pytest.mark.test
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: layer(3, 0), "1 unit or more; got size=0"),
        (lambda: layer(0, 3), "features is a whole number of units"),
        (lambda: layer(3, 2, "gamma"), "'bernoulli', 'normal'.*got 'gamma'"),
        (lambda: layer(3, 2, hidden=(0,)), r"hidden\[\d\] is a whole number of units"),
        (lambda: layer(3, 2, activation="swoosh"), "activation is one of"),
        (lambda: categorical(1), "whole number, 2 or more; got 1"),
        (lambda: normal_noise(0.0), "positive finite number; got 0.0"),
        (lambda: shared_noise(2, 0), "1 unit or more"),
        (lambda: top(True), "got size=True"),
        (
            lambda: layer(3, 2, "normal", network=Network({"w": jnp.ones((3, 2))}, lambda p, x: x @ p["w"])),
            "2 Normal units take 4 numbers; the layer's network returns shape",
        ),
        (
            lambda: layer(4, 2, network=Network({"w": jnp.ones((3, 2))}, lambda p, x: x @ p["w"])),
            "could not be called with the 4 numbers",
        ),
    ],
)
def test_sentences(make, words):
    with pytest.raises(ModelError, match=words):
        make()


@pytest.mark.test
def test_a_network_of_ones_own():
    net = Network({"w": 0.1 * jnp.ones((3, 2))}, lambda p, x: jnp.sin(x @ p["w"]))
    made = layer(3, 2, network=net)
    p = made.distribution(made.init(jax.random.key(0)), jnp.ones((5, 4, 3)))
    np.testing.assert_allclose(p.base_dist.logits, np.full((5, 4, 2), math.sin(0.3)))


@pytest.mark.parametrize("dtype", [np.uint8, bool, np.int64, np.float32])
def test_pixels_of_any_type(dtype):
    pixels = jnp.asarray(np.array([[0, 1]]).astype(dtype))
    wanted = -math.log1p(math.exp(1)) - math.log1p(math.exp(-2))
    for family in ("bernoulli", "continuous bernoulli"):
        made = family_of(family)
        assert made.features(pixels).dtype == jnp.result_type(float)
        got = made.distribution(jnp.asarray([[1.0, 2.0]])).log_prob(pixels)
        if family == "bernoulli":
            np.testing.assert_allclose(got, [wanted], rtol=1e-6)
        assert np.all(np.isfinite(got))
