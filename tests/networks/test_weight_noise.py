"""Noise on the weights of a network has the law of w ~ N(mean, sd²) for every example, however it is drawn.

For a network linear in its weights the outputs are linear in the noise, so that their covariance is J Jᵀ exactly;
with Flipout it is so for each choice of signs, all of which can be enumerated. For one hidden layer of tanh the
moments of the outputs, and with them the gradient of an expected squared error, are one-dimensional integrals.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from montecarlo import C, Scores, Z, assert_holds, broken, error, ks, of_p
from scipy import stats

from tractable.core import tree
from tractable.networks import weight_noise
from tractable.networks.weight_noise import (
    Noise,
    WeightNoise,
    flipout,
    local_reparameterisation,
    shared_draw,
)

pytestmark = pytest.mark.test


def independent_draws(apply: Callable, params: dict, x: jax.Array) -> WeightNoise:
    """A draw of the weights for each example: the reference."""
    return weight_noise._weight_noise(apply, params, x, lambda leaf, uses: leaf._replace(way="own"))


Factory = Callable[..., WeightNoise]
FACTORIES = {
    "shared": shared_draw,
    "independent": independent_draws,
    "local": local_reparameterisation,
    "flipout": flipout,
}
APART = {name: make for name, make in FACTORIES.items() if name != "shared"}  # examples are uncorrelated


def weights_like(shapes: dict, seed: int = 0) -> tuple[dict, dict]:
    """Means and sds of these shapes."""
    generator = np.random.default_rng(seed)
    mean = {name: jnp.asarray(generator.normal(0, 0.7, shape)) for name, shape in shapes.items()}
    sd = {name: jnp.asarray(generator.uniform(0.2, 0.6, shape)) for name, shape in shapes.items()}
    return mean, sd


def inputs(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(7).normal(size=shape))


# Networks, of one example.


def dense(w: dict, x: jax.Array) -> jax.Array:
    return x @ w["w"] + w["b"]


def hidden(activation: Callable) -> Callable:
    return lambda w, x: activation(x @ w["w"] + w["b"]) @ w["v"] + w["c"]


def rows(w: dict, x: jax.Array) -> jax.Array:
    """(T, d) → (T, o): the positions share w and b."""
    return x @ w["w"] + w["b"]


def twice(w: dict, x: jax.Array) -> jax.Array:
    """One matrix in two places; linear in it."""
    return jnp.concatenate([x @ w["w"], w["w"].T @ (2.0 * x[::-1])])


def heads(w: dict, x: jax.Array) -> jax.Array:
    """(h, d) → (h, o): a matrix for each head, and the weights come first."""
    return jax.lax.dot_general(w["w"], x, (((2,), (1,)), ((1,), (0,))))


def convolved(w: dict, x: jax.Array) -> jax.Array:
    """(C, L) → (O, L), two groups of channels."""
    y = jax.lax.conv_general_dilated(x[None], w["k"], (1,), "SAME", feature_group_count=2)[0]
    return y + w["b"][:, None]


def scaled(w: dict, x: jax.Array) -> jax.Array:
    """With a normalised layer and a noise parameter."""
    h = x @ w["w"] + w["b"]
    h = w["scale"] * (h - h.mean()) / jnp.sqrt(1.0 + h.var()) + w["shift"]
    return jnp.append(jax.nn.gelu(h) @ w["v"], jnp.exp(w["log_noise"]))


def nested(w: dict, x: jax.Array) -> dict:
    """Calls, a custom derivative over activations, and several outputs."""
    h = jax.jit(lambda w, x: jax.checkpoint(lambda a, b: jax.nn.relu(b @ a))(w["w"], x) - w["b"])(w, x)
    return {"h": h, "out": jax.nn.softplus(w["v"].T @ h)}


def scanned(w: dict, x: jax.Array) -> jax.Array:
    """A weight in a loop."""
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w["w"]), None), x, length=2)[0] + w["b"]


def mlp() -> tuple[Callable, Any]:
    """Equinox's, as the function of its arrays."""
    network = eqx.nn.MLP(3, 2, 4, 2, activation=jax.nn.gelu, key=jax.random.key(3))
    params, static = eqx.partition(network, eqx.is_inexact_array)
    return lambda params, x: eqx.combine(params, static)(x), params


ONE_LAYER = {"w": (3, 2), "b": (2,)}
TWO_LAYERS = {"w": (3, 4), "b": (4,), "v": (4, 2), "c": (2,)}
NETWORKS = {
    "dense": (dense, ONE_LAYER, (3,)),
    "relu": (hidden(jax.nn.relu), TWO_LAYERS, (3,)),
    "gelu": (hidden(jax.nn.gelu), TWO_LAYERS, (3,)),
    "rows": (rows, ONE_LAYER, (4, 3)),
    "twice": (twice, {"w": (3, 3)}, (3,)),
    "heads": (heads, {"w": (2, 2, 3)}, (2, 3)),
    "convolved": (convolved, {"k": (4, 1, 3), "b": (4,)}, (2, 5)),
    "scaled": (scaled, {"w": (3, 4), "b": (4,), "scale": (4,), "shift": (4,), "v": (4, 2), "log_noise": ()}, (3,)),
    "nested": (nested, {"w": (3, 4), "b": (4,), "v": (4, 2)}, (3,)),
    "scanned": (scanned, {"w": (3, 3), "b": (3,)}, (3,)),
}
LINEAR = ("dense", "rows", "twice", "heads", "convolved")


def first(noise: Noise) -> Noise:
    """The noise of one evaluation."""
    return jax.tree.map(lambda a: a[0], noise)


def drawn(network: WeightNoise, size: int, seed: int = 0) -> Noise:
    return first(network.draw(jax.random.key(seed), 1, size))


# Laws: make(apply, params, x) -> WeightNoise.


def without_noise(make: Factory, networks: tuple = tuple(NETWORKS)) -> Scores:
    """sd = 0 gives apply(mean, x), the gradient by the mean included; that by sd is finite."""
    scores = {}
    for name in networks:
        apply, shapes, shape = NETWORKS[name]
        mean, _ = weights_like(shapes)
        x = inputs(3, *shape).at[1].set(0.0)  # zeros: the other way to no variance
        network = make(apply, mean, x[0])
        noise, nothing = drawn(network, 3), jax.tree.map(jnp.zeros_like, mean)

        def total(outputs: Any) -> jax.Array:
            return tree.total(jax.tree.map(lambda leaf: jnp.sum(jnp.sin(leaf)), outputs))

        def plain(mean: Any, x: Any, apply: Callable = apply) -> Any:
            return jax.vmap(apply, (None, 0))(mean, x)

        @jax.jit
        def both(mean: Any, sd: Any, x: Any, network: WeightNoise = network, noise: Noise = noise) -> tuple:
            gradients = jax.grad(lambda *a: total(network.call(noise, *a)), (0, 1, 2))(mean, sd, x)
            return network.call(noise, mean, sd, x), gradients

        got, (by_mean, by_sd, by_x) = both(mean, nothing, x)
        wanted_mean, wanted_x = jax.jit(jax.grad(lambda *a: total(plain(*a)), (0, 1)))(mean, x)
        scores[f"{name}: outputs"] = error(ravel_pytree(got)[0], ravel_pytree(jax.jit(plain)(mean, x))[0], 1e-12)
        scores[f"{name}: by mean"] = error(ravel_pytree(by_mean)[0], ravel_pytree(wanted_mean)[0], 1e-10)
        scores[f"{name}: by x"] = error(by_x, wanted_x, 1e-10)
        scores[f"{name}: by sd"] = 0.0 if bool(jnp.all(jnp.isfinite(ravel_pytree(by_sd)[0]))) else np.inf
    return scores


def noise_is_white(make: Factory, size: int = 2) -> Scores:
    """All of the noise has mean 0 and covariance I, normals are normal, signs are ±1."""
    mean, _ = weights_like({"w": (2, 2), "b": (2,)})  # square: equal keys would show
    network = make(dense, mean, jnp.zeros(2))
    noise = network.draw(jax.random.key(5), C, size)
    flat = np.concatenate([np.asarray(leaf).reshape(C, -1) for leaf in jax.tree.leaves(noise)], 1)
    fourth = np.mean(flat**4, 0)  # 3 of normals, 1 of signs
    normal = np.asarray(ravel_pytree(first(Noise(noise.batch, noise.example, {})))[0]).size
    covariance = flat.T @ flat / C
    scores = {
        "mean": np.max(np.abs(flat.mean(0))) * np.sqrt(C) / Z,
        "covariance": np.max(np.abs(covariance - np.diag(np.diag(covariance)))) * np.sqrt(C) / Z,
        "variance": np.max(np.abs(np.diag(covariance)[:normal] - 1)) * np.sqrt(C / 2) / Z,
        "fourth moment": np.max(np.abs(fourth[:normal] - 3)) * np.sqrt(C / 96) / Z,
        "cdf": ks(flat[:, :normal].ravel()[::5], stats.norm.cdf),
    }
    if noise.signs:
        scores["signs"] = error(np.abs(flat[:, normal:]), 1.0, 1e-15)
    return scores


def covariance(network: WeightNoise, mean: Any, sd: Any, x: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Mean (m,) and covariance (m, m) of all outputs given the signs, and over the signs; exact for linear networks.

    Returns:
        covariances, one for each choice of signs or of some of them, (choices, m, m), and the means (choices, m).
    """
    noise = drawn(network, len(x))
    signs, unravel_signs = ravel_pytree(noise.signs)
    normals, unravel = ravel_pytree((noise.batch, noise.example))
    if signs.size <= 10:
        choices = 2.0 * jnp.asarray([[i >> j & 1 for j in range(signs.size)] for i in range(2**signs.size)]) - 1
    else:
        choices = jnp.sign(jnp.asarray(np.random.default_rng(1).normal(size=(16, signs.size))))

    def outputs(normals: jax.Array, signs: jax.Array) -> jax.Array:
        batch, example = unravel(normals)
        return ravel_pytree(network.call(Noise(batch, example, unravel_signs(signs)), mean, sd, x))[0]

    @jax.jit
    @jax.vmap
    def moments(signs: jax.Array) -> tuple[jax.Array, jax.Array]:
        slope = jax.jacobian(outputs)(jnp.zeros_like(normals), signs)
        return slope @ slope.T, outputs(jnp.zeros_like(normals), signs)

    of_choice, means = moments(choices.reshape(len(choices), -1))
    return np.asarray(of_choice), np.asarray(means)


def direct(apply: Callable, mean: Any, sd: Any, x: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """The same of one w for all examples, from the weights themselves."""
    flat, unravel = ravel_pytree(mean)
    slope = jax.jit(jax.jacobian(lambda w: ravel_pytree(jax.vmap(apply, (None, 0))(unravel(w), x))[0]))(flat)
    return np.asarray((slope * ravel_pytree(sd)[0] ** 2) @ slope.T), np.asarray(slope @ flat)


def one_example(make: Factory, networks: tuple = LINEAR) -> Scores:
    """Within an example, mean and covariance of the outputs are those of a draw of w, given any signs."""
    scores = {}
    for name in networks:
        apply, shapes, shape = NETWORKS[name]
        mean, sd = weights_like(shapes)
        x = inputs(2, *shape)
        got, means = covariance(make(apply, mean, x[0]), mean, sd, x)
        wanted, wanted_mean = direct(apply, mean, sd, x)
        size = len(wanted) // 2  # of an example's outputs
        scores[f"{name}: mean"] = error(means, wanted_mean[None], 1e-10)
        for n in range(2):
            block = slice(n * size, (n + 1) * size)
            scores[f"{name}: covariance {n}"] = error(got[:, block, block], wanted[None, block, block], 1e-10)
    return scores


def examples_apart(make: Factory) -> Scores:
    """Between examples a dense layer's outputs are uncorrelated, over the signs; one example's are exact."""
    apply, shapes, shape = dense, {"w": (2, 2), "b": (2,)}, (2,)  # eight signs for two examples
    mean, sd = weights_like(shapes)
    x = inputs(2, *shape)
    got, _ = covariance(make(apply, mean, jnp.zeros(shape)), mean, sd, x)
    return {"between": error(got.mean(0)[:2, 2:], 0.0, 1e-12)}


def perturbed(name: str, w: jax.Array, s: jax.Array, r: jax.Array) -> jax.Array:
    """ΔW ∘ s rᵀ of one example, s by what a weight takes in and r by what it gives out."""
    if name == "heads":  # w (o, h, d), s (h, d), r (o,)
        return w * r[:, None, None] * s
    if name == "convolved":  # w (o, 1, positions), s (2,), r (o,): two outputs for each channel
        return w * (r * jnp.repeat(s, 2))[:, None, None]
    return w * s[:, None] * r


def flipout_as_written(make: Factory) -> Scores:
    """Flipout gives what each example's own perturbed weights give."""
    scores = {}
    for name in ("dense", "rows", "heads", "convolved"):
        apply, shapes, shape = NETWORKS[name]
        mean, sd = weights_like(shapes)
        x = inputs(3, *shape)
        network = make(apply, mean, x[0])
        noise = drawn(network, 3)
        wanted = []
        for n in range(3):
            w = {leaf: mean[leaf] + sd[leaf] * noise.example[leaf][n] for leaf in noise.example}
            for leaf, (s, r) in noise.signs.items():
                w[leaf] = mean[leaf] + perturbed(name, sd[leaf] * noise.batch[leaf], s[n], r[n])
            wanted.append(apply(w, x[n]))
        scores[name] = error(network.call(noise, mean, sd, x), jnp.stack(wanted), 1e-12)
    return scores


NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


def tanh_moments(mean: dict, sd: dict, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Exact mean (n, k) and covariance (n, k, k) of the outputs of one hidden layer of tanh.

    f_k = Σ_j v_jk t_j + c_k,   t_j = tanh(a_j),   a_j ~ N(x·m_j, x²·s_j²) independent over j
    """
    centre = x @ mean["w"] + mean["b"]
    spread = jnp.sqrt(x**2 @ sd["w"] ** 2 + sd["b"] ** 2)  # (n, j)
    t = jnp.tanh(centre[:, :, None] + spread[:, :, None] * NODES)
    first, second = t @ NODE_WEIGHTS, t**2 @ NODE_WEIGHTS
    outer = jnp.einsum("jk,jl,nj->nkl", mean["v"], mean["v"], second - first**2)
    own = second @ sd["v"] ** 2 + sd["c"] ** 2
    return first @ mean["v"] + mean["c"], outer + own[:, :, None] * jnp.eye(own.shape[1])


def same_law(x: np.ndarray, y: np.ndarray) -> float:
    """Kolmogorov–Smirnov of two samples."""
    result: Any = stats.ks_2samp(x, y)
    return of_p(result.pvalue)


def hidden_layer(make: Factory, count: int = C) -> Scores:
    """Mean, covariance and distribution of an example's outputs with a hidden layer of tanh."""
    apply = hidden(jnp.tanh)
    mean, sd = weights_like(TWO_LAYERS)
    x = inputs(2, 3)
    network = make(apply, mean, x[0])

    def outputs(make_key: int, network: WeightNoise) -> np.ndarray:
        noise = network.draw(jax.random.key(make_key), count, 2)
        return np.asarray(jax.jit(jax.vmap(lambda z: network.call(z, mean, sd, x)))(noise))  # (count, n, k)

    got = outputs(1, network)
    wanted_mean, wanted = (np.asarray(a) for a in tanh_moments(mean, sd, x))
    centred = got - wanted_mean
    products = np.einsum("cnk,cnl->cnkl", centred, centred)
    truth = outputs(2, independent_draws(apply, mean, x[0]))
    return {
        "mean": np.max(np.abs(centred.mean(0)) / (centred.std(0) / np.sqrt(count))) / Z,
        "covariance": np.max(np.abs(products.mean(0) - wanted) / (products.std(0) / np.sqrt(count))) / Z,
        "distribution": same_law(got[:, 0, 0], truth[:, 0, 0]),
        "distribution of the sum": same_law(got[:, 1].sum(1), truth[:, 1].sum(1)),
    }


BATCH = 6


def gradients(make: Factory, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gradients by (mean, sd) of a minibatch's squared error, (count, P), and their exact expectation (P,).

    Σ_n Σ_k E[(f_k − y)²] = Σ_n Σ_k (E f_k − y)² + Var f_k
    """
    mean, sd = weights_like(TWO_LAYERS)
    x, y = inputs(BATCH, 3), inputs(BATCH, 2) + 1.0
    network = make(hidden(jnp.tanh), mean, x[0])

    def expected(q: tuple) -> jax.Array:
        mean, sd = q
        centre, spread = tanh_moments(mean, sd, x)
        return jnp.sum((centre - y) ** 2) + jnp.sum(jnp.trace(spread, axis1=1, axis2=2))

    @jax.jit
    @jax.vmap
    def sampled(noise: Noise) -> jax.Array:
        return ravel_pytree(jax.grad(lambda q: jnp.sum((network.call(noise, *q, x) - y) ** 2))((mean, sd)))[0]

    got = sampled(network.draw(jax.random.key(3), count, BATCH))
    return np.asarray(got), np.asarray(ravel_pytree(jax.grad(expected)((mean, sd)))[0])


def unbiased_gradient(make: Factory, count: int = C // 2) -> Scores:
    """By every coordinate, and by Hotelling's T²."""
    got, wanted = gradients(make, count)
    off = got.mean(0) - wanted
    t2 = count * off @ np.linalg.pinv(np.cov(got.T), hermitian=True) @ off
    return {
        "each": np.max(np.abs(off) / (got.std(0) / np.sqrt(count) + 1e-12)) / Z,
        "all": of_p(float(stats.chi2.sf(t2, len(off)))),
    }


LAWS = (without_noise, noise_is_white, one_example, hidden_layer, unbiased_gradient)


@pytest.mark.test("without_noise-shared", "noise_is_white-local", "noise_is_white-independent", "one_example-shared")
@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_holds(law, make):
    plain = law is without_noise and make in (shared_draw, independent_draws)  # these change no equation
    assert_holds(law(make, networks=("dense", "scaled")) if plain else law(make))


@pytest.mark.parametrize("make", APART.values(), ids=APART)
def test_examples_are_uncorrelated(make):
    assert_holds(examples_apart(make))


def test_flipout_is_as_written():
    assert_holds(flipout_as_written(flipout))


# Wrong ones.


def wrapped(make: Factory, call: Callable) -> Factory:
    """``make`` with another ``call(right call, noise, mean, sd, x)``."""

    def made(apply: Callable, params: Any, x: Any) -> WeightNoise:
        network = make(apply, params, x)
        return network._replace(call=lambda *args: call(network.call, *args))

    return made


def one_for_all(call: Callable, noise: Noise, mean: Any, sd: Any, x: Any) -> Any:
    """The noise of the first example for all."""
    example, signs = jax.tree.map(lambda a: jnp.broadcast_to(a[:1], a.shape), (noise.example, noise.signs))
    return call(Noise(noise.batch, example, signs), mean, sd, x)


def not_squared(call: Callable, noise: Noise, mean: Any, sd: Any, x: Any) -> Any:
    """Variance x²·S of the products."""
    return call(noise, mean, {k: jnp.sqrt(s) if s.ndim > 1 else s for k, s in sd.items()}, x)


def bias_is_fixed(call: Callable, noise: Noise, mean: Any, sd: Any, x: Any) -> Any:
    return call(noise, mean, {k: s if s.ndim > 1 else 0.0 * s for k, s in sd.items()}, x)


def no_gradient_of_sd(call: Callable, noise: Noise, mean: Any, sd: Any, x: Any) -> Any:
    return call(noise, mean, jax.lax.stop_gradient(sd), x)


def no_output_signs(call: Callable, noise: Noise, mean: Any, sd: Any, x: Any) -> Any:
    """(x_n ∘ s_n)·ΔW alone: two examples' outputs are then correlated alike, in whichever way."""
    signs = {name: (s, jnp.ones_like(r)) for name, (s, r) in noise.signs.items()}
    return call(noise._replace(signs=signs), mean, sd, x)


def each_position(apply: Callable, params: Any, x: Any) -> WeightNoise:
    """Local reparameterisation of (T, d) @ W as if each position had weights of its own."""
    network = local_reparameterisation(apply, params, x[0])
    positions = len(x)

    def call(noise: Noise, mean: Any, sd: Any, x: Any) -> Any:
        y = network.call(noise, mean, sd, x.reshape(-1, x.shape[-1]))
        return y.reshape(-1, positions, y.shape[-1])

    return network._replace(draw=lambda key, count, size: network.draw(key, count, size * positions), call=call)


def each_use(apply: Callable, params: Any, x: Any) -> WeightNoise:
    """Local reparameterisation of a weight used twice as if it were two."""

    def untied(w: dict, x: jax.Array) -> jax.Array:
        return jnp.concatenate([x @ w["one"], w["two"].T @ (2.0 * x[::-1])])

    network = local_reparameterisation(untied, {"one": params["w"], "two": params["w"]}, x)

    def call(noise: Noise, mean: Any, sd: Any, x: Any) -> Any:
        return network.call(noise, {k: mean["w"] for k in ("one", "two")}, {k: sd["w"] for k in ("one", "two")}, x)

    return network._replace(call=call)


def unguarded(apply: Callable, params: Any, x: Any) -> WeightNoise:
    """√variance without care at 0."""

    def call(noise: Noise, mean: Any, sd: Any, x: Any) -> Any:
        return x @ mean["w"] + mean["b"] + jnp.sqrt(x**2 @ sd["w"] ** 2 + sd["b"] ** 2) * noise.example["b"]

    return local_reparameterisation(apply, params, x)._replace(call=call)


def coarse(make: Factory) -> Factory:
    """Uniform noise of the right variance in place of normals."""

    def made(apply: Callable, params: Any, x: Any) -> WeightNoise:
        network = make(apply, params, x)

        def draw(key: jax.Array, count: int, size: int) -> Noise:
            noise = network.draw(key, count, size)
            batch, example = jax.tree.map(
                lambda a: (jax.scipy.special.ndtr(a) - 0.5) * 12**0.5, (noise.batch, noise.example)
            )
            return Noise(batch, example, noise.signs)

        return network._replace(draw=draw)

    return made


LOCAL, FLIPOUT = local_reparameterisation, flipout
MUTANTS = {
    "variance of sd, not sd²": (one_example, wrapped(LOCAL, not_squared), {"networks": ("dense",)}),
    "bias's variance dropped": (one_example, wrapped(LOCAL, bias_is_fixed), {"networks": ("dense",)}),
    "bias's variance dropped, Flipout": (one_example, wrapped(FLIPOUT, bias_is_fixed), {"networks": ("dense",)}),
    "one ε for the batch": (examples_apart, wrapped(LOCAL, one_for_all), {}),
    "one sign vector for the batch": (examples_apart, wrapped(FLIPOUT, one_for_all), {}),
    "no output signs": (flipout_as_written, wrapped(FLIPOUT, no_output_signs), {}),
    "one w for the batch": (examples_apart, shared_draw, {}),
    "positions drawn apart": (one_example, each_position, {"networks": ("rows",)}),
    "uses drawn apart": (one_example, each_use, {"networks": ("twice",)}),
    "√0 unguarded": (without_noise, unguarded, {"networks": ("dense",)}),
    "variance of sd, not sd², two layers": (hidden_layer, wrapped(LOCAL, not_squared), {}),
    "bias's variance dropped, two layers": (unbiased_gradient, wrapped(FLIPOUT, bias_is_fixed), {"count": 10_000}),
    "sd has no gradient": (unbiased_gradient, wrapped(LOCAL, no_gradient_of_sd), {"count": 10_000}),
    "uniform noise": (noise_is_white, coarse(LOCAL), {}),
}


@pytest.mark.test("one sign vector for the batch", "uses drawn apart", "one ε for the batch")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name):
    law, make, options = MUTANTS[name]
    assert broken(law(make, **options))


@pytest.mark.laws
def test_gradient_varies_less():
    """Σ of variances of the minibatch's gradient, over that of one shared draw."""
    variance = {name: gradients(make, 20_000)[0].var(0).sum() for name, make in FACTORIES.items()}
    ratios = {name: value / variance["shared"] for name, value in variance.items()}
    print({name: round(float(ratio), 3) for name, ratio in ratios.items()})
    assert ratios["local"] < 0.8 * ratios["flipout"]
    assert ratios["flipout"] < 0.8
    assert ratios["local"] < 0.9 * ratios["independent"]


# What was transformed, and what was not.

REPORTS = {
    # network: leaves shared by local reparameterisation, by Flipout, each with words of the reason
    "dense": ({}, {}),
    "gelu": ({}, {}),
    "rows": ({"w": "several positions"}, {}),
    "twice": ({"w": "2 times"}, {"w": "2 times"}),
    "heads": ({}, {}),
    "convolved": ({"k": "convolved"}, {}),
    "scaled": ({"log_noise": "exp"}, {"log_noise": "exp"}),
    "nested": ({}, {}),
    "scanned": ({"w": "scan"}, {"w": "scan"}),
}


@pytest.mark.parametrize("name", REPORTS)
def test_says_what_is_shared_and_why(name):
    apply, shapes, shape = NETWORKS[name]
    params = {leaf: jax.ShapeDtypeStruct(s, jnp.float64) for leaf, s in shapes.items()}
    x = jax.ShapeDtypeStruct(shape, jnp.float64)
    for make, reasons in zip((LOCAL, FLIPOUT), REPORTS[name], strict=True):
        network = make(apply, params, x)
        assert network.shared.keys() == reasons.keys()
        assert all(words in network.shared[leaf] for leaf, words in reasons.items())
        assert sorted((*network.transformed, *network.shared)) == sorted(shapes)
    assert shared_draw(apply, params, x).transformed == ()
    assert independent_draws(apply, params, x).shared == {}


@pytest.mark.parametrize(
    ("apply", "words"),
    [
        (lambda w, x: x, "not used"),
        (lambda w, x: w["w"], "output"),
        (lambda w, x: x @ w["w"] + 0.0 * w["w"].sum(), "2 times"),
        (lambda w, x: x @ (w["w"] @ jnp.ones((2, 2))), "without an activation"),
        (lambda w, x: jnp.tile(x, 2) @ jnp.broadcast_to(w["w"], (2, 3, 2)).reshape(6, 2), "repeated"),
        (lambda w, x: x.sum() + w["w"][0], "slice"),
        (lambda w, x: x.sum() / w["w"], "div"),
    ],
)
def test_other_uses_share(apply, words):
    for make in (LOCAL, FLIPOUT):
        network = make(apply, {"w": jnp.zeros((3, 2))}, jnp.zeros(3))
        assert words in network.shared["w"] and network.transformed == ()


def test_filters_of_batch_groups_share():
    def apply(w: dict, x: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w["k"], (1,), "SAME", batch_group_count=2)

    network = flipout(apply, {"k": jnp.zeros((4, 3, 1))}, jnp.zeros((2, 3, 5)))
    assert "plain convolution" in network.shared["k"]


@pytest.mark.laws
def test_equinox_network():
    apply, params = mlp()
    sd = jax.tree.map(lambda a: 0.1 + 0.0 * a, params)
    x = inputs(3, 3)
    for make in (LOCAL, FLIPOUT):
        network = make(apply, params, x[0])
        assert network.transformed == tuple(f"layers.{i}.{leaf}" for i in range(3) for leaf in ("weight", "bias"))
        noise = drawn(network, 3)
        plain = jax.vmap(apply, (None, 0))(params, x)
        assert error(network.call(noise, params, jax.tree.map(jnp.zeros_like, sd), x), plain, 1e-12) <= 1
        assert error(network.call(noise, params, sd, x), plain, 1e-3) > 1


@pytest.mark.laws
def test_custom_derivative_is_kept():
    """A straight-through rounding between two layers: its derivative is said to be 1."""

    @jax.custom_vjp
    def rounded(h: jax.Array) -> jax.Array:
        return jnp.round(h)

    rounded.defvjp(lambda h: (rounded(h), None), lambda _, g: (g,))
    apply, x = hidden(rounded), inputs(2, 3)
    mean, _ = weights_like(TWO_LAYERS)
    nothing = jax.tree.map(jnp.zeros_like, mean)
    wanted = jax.grad(lambda w: jnp.sum(jax.vmap(apply, (None, 0))(w, x)))(mean)
    assert float(jnp.abs(wanted["w"]).max()) > 0
    for make in FACTORIES.values():
        network = make(apply, mean, x[0])
        noise = drawn(network, 2)
        got = jax.grad(lambda w: jnp.sum(network.call(noise, w, nothing, x)))(mean)  # noqa: B023
        assert error(ravel_pytree(got)[0], ravel_pytree(wanted)[0], 1e-10) <= 1


@pytest.mark.laws
def test_batch_is_one_matrix_product():
    """No contraction over a matrix for each example: the weights stay (3, 4) and (4, 2)."""
    mean, sd = weights_like(TWO_LAYERS)
    x = inputs(5, 3)
    for make, products in ((LOCAL, 4), (FLIPOUT, 4), (shared_draw, 2)):
        network = make(hidden(jnp.tanh), mean, x[0])
        jaxpr = jax.make_jaxpr(network.call)(drawn(network, 5), mean, sd, x).jaxpr
        dots = [eqn for eqn in jaxpr.eqns if eqn.primitive is weight_noise.primitives.dot_general_p]
        assert len(dots) == products
        assert all(eqn.params["dimension_numbers"][1] == ((), ()) for eqn in dots)
