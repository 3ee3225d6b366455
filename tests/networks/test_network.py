"""Networks: every likelihood against scipy, every prior by hand, starts by their laws, faults by their sentences."""

import json
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Scores, Z, assert_holds, broken, error, ks, moments
from numpyro.distributions.transforms import biject_to
from scipy import integrate, special, stats

import tractable as tr
from tractable.core.errors import ModelError, SettingsError
from tractable.core.shared import made_again, recipe
from tractable.models import mlp, neural_network, scale_mixture
from tractable.networks import network

pytestmark = pytest.mark.laws

EXACT = 1e-9
RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3))
COUNT = 20_000
FEW = 5000
NARROW = np.exp(-6.0)
SHAPES = {"normal": 1, "student-t": 1, "heteroscedastic": 2, "categorical": 4, "bernoulli": 1, "poisson": 1}
ROWS = {
    name: {"categorical": np.array([0, 1, 3, 2, 1]), "bernoulli": np.array([0, 1, 1, 0, 1]),
           "poisson": np.array([0, 1, 3, 2, 7])}.get(name, np.linspace(-1, 2, 5))
    for name in SHAPES
}  # fmt: skip


def begun(thing: Any, key: Any) -> Any:
    """Where a model or a network begins."""
    return thing.start(key)


def forward(weights: Any, x: np.ndarray) -> np.ndarray:
    """A perceptron with a hidden ReLU layer, written again: (N, D) -> (N, outputs)."""
    first, second = weights["layer0"], weights["layer1"]
    hidden = np.maximum(x @ np.asarray(first["weight"]) + np.asarray(first["bias"]), 0)
    return hidden @ np.asarray(second["weight"]) + np.asarray(second["bias"])


def expected(likelihood: str, output: np.ndarray, y: np.ndarray, noise: float, df: float) -> np.ndarray:
    """log p(y | output) by scipy: (N,)."""
    f = output[:, 0]
    if likelihood == "normal":
        return stats.norm.logpdf(y, f, noise)
    if likelihood == "student-t":
        return stats.t.logpdf(y, df, f, noise)
    if likelihood == "heteroscedastic":
        return stats.norm.logpdf(y, f, np.logaddexp(0, output[:, 1]) + 1e-3)
    if likelihood == "categorical":
        return (output - special.logsumexp(output, 1, keepdims=True))[np.arange(len(y)), y]
    if likelihood == "bernoulli":
        return stats.bernoulli.logpmf(y, special.expit(f))
    return stats.poisson.logpmf(y, np.exp(f))


# Likelihoods.


def likelihood_law(of: Callable) -> Scores:
    scores = {}
    for name, width in SHAPES.items():
        output = 1.5 * np.random.default_rng(1).normal(size=(5, width))
        got = jax.jit(jax.vmap(lambda o, y, n=name: of(n, o, 0.7, 3.0).log_prob(y)))(output, ROWS[name])
        wanted = expected(name, output, ROWS[name], 0.7, 3.0)
        scores[name] = error(got, wanted, EXACT) if got.shape == wanted.shape else np.inf
    return scores


WRONG_LIKELIHOODS = {
    ("normal", "a variance for an sd"): lambda o, s, df: dist.Normal(o[0], s**2),
    ("normal", "a number left a vector"): lambda o, s, df: dist.Normal(o, s),
    ("student-t", "df of the default"): lambda o, s, df: dist.StudentT(4.0, o[0], s),
    ("student-t", "a normal"): lambda o, s, df: dist.Normal(o[0], s),
    ("heteroscedastic", "exp"): lambda o, s, df: dist.Normal(o[0], jnp.exp(o[1])),
    ("heteroscedastic", "no floor"): lambda o, s, df: dist.Normal(o[0], jax.nn.softplus(o[1])),
    ("heteroscedastic", "swapped"): lambda o, s, df: dist.Normal(o[1], jax.nn.softplus(o[0]) + 1e-3),
    ("categorical", "sigmoids"): lambda o, s, df: dist.CategoricalProbs(jax.nn.sigmoid(o) / jax.nn.sigmoid(o).sum()),
    ("bernoulli", "opposite sign"): lambda o, s, df: dist.BernoulliLogits(-o[0]),
    ("poisson", "softplus"): lambda o, s, df: dist.Poisson(jax.nn.softplus(o[0])),
}


@pytest.mark.test
def test_likelihoods():
    assert_holds(likelihood_law(lambda n, o, s, df: network._of(n, o, {"noise": s}, df)))


@pytest.mark.parametrize("mutant", WRONG_LIKELIHOODS, ids=" ".join)
def test_wrong_likelihoods_are_caught(mutant):
    wrong = WRONG_LIKELIHOODS[mutant]
    right = network._of
    scores = likelihood_law(lambda n, o, s, df: wrong(o, s, df) if n == mutant[0] else right(n, o, {"noise": s}, df))
    assert set(broken(scores)) == {mutant[0]}


@pytest.mark.parametrize("likelihood", SHAPES)
def test_model_by_hand(likelihood):
    """The whole density: prior, likelihood and forward pass."""
    net = mlp(3, 4, SHAPES[likelihood])
    model = neural_network(net, likelihood, df=3)
    params = {"weights": jax.tree.map(lambda a: a + 0.1, net.params)}
    noise = 0.6 if likelihood in ("normal", "student-t") else 1.0
    if noise < 1:
        params["noise"] = jnp.asarray(noise)
    assert params.keys() == model.prior.keys()
    got = jax.jit(model.log_likelihoods)(params, (jnp.asarray(ROWS[likelihood]), jnp.asarray(X)))
    output = forward(params["weights"], X)
    np.testing.assert_allclose(got, expected(likelihood, output, ROWS[likelihood], noise, 3.0), atol=EXACT)
    prior = stats.halfnorm.logpdf(noise) if "noise" in params else 0.0
    for layer, fan_in in (("layer0", 3), ("layer1", 4)):
        prior += stats.norm.logpdf(np.asarray(params["weights"][layer]["weight"]), 0, fan_in**-0.5).sum()
        prior += stats.norm.logpdf(np.asarray(params["weights"][layer]["bias"]), 0, 1).sum()
    np.testing.assert_allclose(model.log_prior(params), prior, atol=EXACT)


@pytest.mark.test
def test_vectors_are_one_datum():
    model = neural_network(mlp(3, (), 2), noise=0.5)
    params = model.sample_prior(jax.random.key(0))
    layer, y = params["weights"]["layer0"], RNG.normal(size=(5, 2))
    got = jax.jit(model.log_likelihoods)(params, (jnp.asarray(y), jnp.asarray(X)))
    wanted = stats.norm.logpdf(y, X @ np.asarray(layer["weight"]) + np.asarray(layer["bias"]), 0.5).sum(1)
    np.testing.assert_allclose(got, wanted, atol=EXACT)


@pytest.mark.test
def test_likelihood_of_the_users_own():
    model = neural_network(
        mlp(3, (), 1), lambda o, extra: dist.Gumbel(o[0], extra["width"]), extra={"width": dist.LogNormal(0, 1)}
    )
    params = model.sample_prior(jax.random.key(0))
    layer, y = params["weights"]["layer0"], np.linspace(-1, 1, 5)
    got = jax.jit(model.log_likelihoods)(params, (jnp.asarray(y), jnp.asarray(X)))
    eta = (X @ np.asarray(layer["weight"]) + np.asarray(layer["bias"]))[:, 0]
    np.testing.assert_allclose(got, stats.gumbel_r.logpdf(y, eta, float(params["width"])), atol=EXACT)


# The scale mixture.


def mixture_law(make: Callable) -> Scores:
    share, wide, narrow = 0.3, 1.5, 0.1
    prior = make(share, wide, narrow)
    w = np.array([-3.0, -0.2, 0.0, 0.05, 1.0, 8.0])
    wanted = special.logsumexp(
        [np.log(share) + stats.norm.logpdf(w, 0, wide), np.log1p(-share) + stats.norm.logpdf(w, 0, narrow)], axis=0
    )
    total = sum(
        integrate.quad(lambda v: float(jnp.exp(prior.log_prob(v))), a, b, epsabs=1e-12)[0]
        for a, b in ((-15, -1), (-1, 0), (0, 1), (1, 15))
    )
    spike = make(0.5, 1.0, NARROW)
    far = np.array([-1e3, -15.0, 15.0, 1e3])
    variance = share * wide**2 + (1 - share) * narrow**2
    draws = prior.sample(jax.random.key(0), (COUNT,))
    tails = np.array([float(spike.log_prob(v)) for v in far])
    slopes = np.asarray(jax.vmap(jax.grad(lambda v: jnp.sum(spike.log_prob(v))))(jnp.asarray(far)))
    return {
        "density": error(prior.log_prob(jnp.asarray(w)), wanted, EXACT),
        "total": error(total, 1.0, 1e-8),
        # There the narrow component is nothing.
        "tails": np.nan_to_num(error(tails, np.log(0.5) + stats.norm.logpdf(far), EXACT), nan=np.inf),
        "slopes": np.nan_to_num(error(slopes, -far, EXACT), nan=np.inf),
        "mean": error(prior.mean, 0.0, EXACT),
        "variance": error(prior.variance, variance, EXACT),
        "draws": ks(draws, lambda v: share * stats.norm.cdf(v, 0, wide) + (1 - share) * stats.norm.cdf(v, 0, narrow)),
    }


class Naive(network.ScaleMixture):
    def log_prob(self, value, intermediates=None):
        density = lambda sd: jnp.exp(dist.Normal(0, sd).log_prob(value))  # noqa: E731
        return jnp.log(self.share * density(self.wide) + (1 - self.share) * density(self.narrow))


class Lopsided(network.ScaleMixture):
    def log_prob(self, value, intermediates=None):
        wide, narrow = dist.Normal(0, self.wide).log_prob(value), dist.Normal(0, self.narrow).log_prob(value)
        return jnp.logaddexp(jnp.log(self.share) + wide, jnp.log(self.share) + narrow)


class Averaged(network.ScaleMixture):
    def sample(self, key, sample_shape=()):
        normal = jax.random.normal(key, (2, *sample_shape))
        return self.share * self.wide * normal[0] + (1 - self.share) * self.narrow * normal[1]


WRONG_MIXTURES = {
    "naive": (Naive, {"tails", "slopes"}),
    "share twice": (Lopsided, {"density", "total"}),
    "averaged draws": (Averaged, {"draws"}),
    "share of the narrow": (lambda p, a, b: network.ScaleMixture(1 - p, a, b), {"density", "draws", "variance"}),
    "variances as sds": (lambda p, a, b: network.ScaleMixture(p, a**2, b**2), {"density", "draws", "variance"}),
}


def test_scale_mixture():
    assert_holds(mixture_law(scale_mixture), COUNT)


@pytest.mark.parametrize("name", WRONG_MIXTURES)
def test_wrong_mixtures_are_caught(name):
    make, breaks = WRONG_MIXTURES[name]
    assert breaks <= set(broken(mixture_law(make)))


def test_scale_mixture_is_a_distribution_like_others():
    prior = scale_mixture(0.25, 2.0, 0.1)
    assert prior is scale_mixture(0.25, 2, 0.1)
    many = prior.expand((3, 2))
    assert many.shape() == (3, 2) and jnp.shape(many.sample(jax.random.key(0))) == (3, 2)
    assert float(scale_mixture().log_prob(15.0)) == pytest.approx(-114.11, abs=0.005)
    of = jax.jit(lambda d, w: d.log_prob(w))
    value = jnp.ones((3, 2))
    np.testing.assert_allclose(of(many, value), np.full((3, 2), prior.log_prob(1.0)), atol=EXACT)
    leaves, treedef = jax.tree.flatten(prior)
    assert jax.tree.structure(jax.tree.unflatten(treedef, leaves)) == treedef
    model = neural_network(mlp(3, 2, 1), prior=prior)
    assert model is neural_network(mlp(3, 2, 1), prior=scale_mixture(0.25, 2.0, 0.1))
    assert biject_to(many.support)(0.3) == 0.3


# Priors.


def sds(model: tr.Model) -> dict[str, float]:
    """The sd of every leaf's normal prior."""
    leaves = jax.tree_util.tree_flatten_with_path(model.prior["weights"], is_leaf=lambda d: hasattr(d, "log_prob"))[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): float(np.sqrt(np.ravel(d.variance)[0]))
        for path, d in leaves
    }


def scaled_law(factory: Callable) -> Scores:
    """Under the scaled prior a ReLU network's output has the variance 2 at |x|² = D, whatever its shape."""
    scores = {}
    for middle in ((3,), (40,), (20, 5)):
        net = mlp(6, middle, 1)
        sd, rng = sds(factory(net)), np.random.default_rng(1)
        h = np.tile(np.sqrt(6) * X[0, [0, 1, 2, 0, 1, 2]] / np.sqrt(2 * (X[0] ** 2).sum()), (FEW, 1))
        for i, name in enumerate(net.params):
            shape = net.params[name]["weight"].shape
            weight = sd[f"{name}.weight"] * rng.normal(size=(FEW, *shape))
            h = np.einsum("ni,nio->no", h, weight) + sd[f"{name}.bias"] * rng.normal(size=(FEW, shape[1]))
            h = np.maximum(h, 0) if i < len(middle) else h
        squares = h[:, 0] ** 2
        scores[str(middle)] = abs(squares.mean() - 2) / (squares.std() / np.sqrt(FEW)) / Z
    return scores


WRONG_SCALES = {
    "one for all": lambda net: neural_network(net, prior=1.0),
    "outputs for inputs": lambda net: neural_network(
        net, prior=lambda path, shape: dist.Normal(0, shape[-1] ** -0.5 if len(shape) > 1 else 1.0)
    ),
    "He's gain": lambda net: neural_network(
        net, prior=lambda path, shape: dist.Normal(0, (2 / shape[0]) ** 0.5 if len(shape) > 1 else 1.0)
    ),
    "biases too": lambda net: neural_network(net, prior=lambda path, shape: dist.Normal(0, shape[0] ** -0.5)),
}


def test_scaled_prior():
    assert_holds(scaled_law(neural_network), FEW)


@pytest.mark.parametrize("name", WRONG_SCALES)
def test_wrong_scales_are_caught(name):
    assert broken(scaled_law(WRONG_SCALES[name]))


def test_each_kind_of_prior():
    net = mlp(4, (9,), 1)
    scaled = {"layer0.bias": 1.0, "layer0.weight": 0.5, "layer1.bias": 1.0, "layer1.weight": 1 / 3}
    assert sds(neural_network(net)) == pytest.approx(scaled)
    assert sds(neural_network(net, prior=0.3)) == pytest.approx(dict.fromkeys(scaled, 0.3))
    assert sds(neural_network(net, prior=dist.Laplace(0.0, 0.5))) == pytest.approx(dict.fromkeys(scaled, 0.5**0.5))
    by_path = neural_network(net, prior=lambda path, shape: dist.Normal(0, 2.0 if path.endswith("bias") else 0.1))
    assert sds(by_path) == pytest.approx({n: 2.0 if "bias" in n else 0.1 for n in scaled})
    given = jax.tree.map(lambda a: dist.Normal(jnp.zeros(a.shape), 1.0 + a.ndim), net.params)
    assert sds(neural_network(net, prior=given)) == pytest.approx({n: 2.0 if "bias" in n else 3.0 for n in scaled})


def test_fan_in_follows_the_layout():
    dense = eqx.nn.MLP(4, 1, 9, 1, key=jax.random.key(0))
    found = sds(neural_network(dense))
    assert found["layers.0.weight"] == pytest.approx(0.5) and found["layers.1.weight"] == pytest.approx(1 / 3)
    assert found["layers.0.bias"] == 1.0
    convolution = eqx.nn.Conv2d(2, 5, (3, 3), key=jax.random.key(0))  # weight (5, 2, 3, 3), bias (5, 1, 1)
    found = sds(neural_network(convolution))
    assert found["weight"] == pytest.approx(18**-0.5) and found["bias"] == 1.0


# Scales that are learnt.


def relevance_law(model: tr.Model) -> Scores:
    """The density of a 3-4-1 perceptron by hand: f(x; s · v), v under the scaled prior, s of each input at first."""
    params = model.sample_prior(jax.random.key(5))
    v, s = (jax.tree.map(np.asarray, params[name]) for name in ("weights", "scales"))
    w = {n: {k: v[n][k] * (s[n][k][:, None] if s[n][k].ndim else s[n][k]) for k in v[n]} for n in v}
    noise = float(params["noise"])
    prior = stats.halfnorm.logpdf(noise)
    for layer, fan_in in (("layer0", 3), ("layer1", 4)):
        prior += (
            stats.norm.logpdf(v[layer]["weight"], 0, fan_in**-0.5).sum() + stats.norm.logpdf(v[layer]["bias"]).sum()
        )
        prior += sum(stats.halfnorm.logpdf(s[layer][k], scale=2).sum() for k in ("weight", "bias"))
    got = model.log_likelihoods(params, (jnp.asarray(ROWS["normal"]), jnp.asarray(X)))
    return {
        "inputs": error(s["layer0"]["weight"].size, 3, EXACT),
        "others": error(sum(s[n][k].size for n in s for k in s[n]), 6, EXACT),
        "likelihood": error(got, expected("normal", forward(w, X), ROWS["normal"], noise, 0.0), EXACT),
        "prior": error(model.log_prior(params), prior, EXACT),
    }


def relevant() -> tr.Model:
    """A new model each time, so that none remembers how another was computed."""
    net = mlp(3, (4,), 1)
    return neural_network((net.params, net.apply), prior="relevance", example=net.example)


def test_relevance():
    assert_holds(relevance_law(relevant()), 1)
    assert_holds(relevance_law(neural_network(mlp(3, (4,), 1), prior="relevance")), 1)


@pytest.mark.parametrize(
    ("name", "wrong", "caught"),
    [
        ("_scale_weight", lambda axis, scale, weight: weight, "likelihood"),
        (
            "_scale_weight",
            lambda axis, scale, weight: scale**2 * weight if jnp.ndim(scale) == 0 else weight,
            "likelihood",
        ),
        ("_scale_weight", lambda axis, scale, weight: jnp.max(scale) * weight, "likelihood"),
        ("SCALE", 1.0, "prior"),
    ],
    ids=["none", "squared", "one for all inputs", "narrower"],
)
def test_wrong_relevances_are_caught(monkeypatch, name, wrong, caught):
    monkeypatch.setattr(network, name, wrong)
    assert set(broken(relevance_law(relevant()))) == {caught}


def test_where_scales_go():
    """By the layout of the weights, where x is known; at 1, where methods begin, the network is the scaled one's."""
    module = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))
    told, untold = (neural_network(module, prior="relevance", example=example) for example in (X[0], None))
    assert [layer.weight.shape() for layer in told.prior["scales"].layers] == [(3,), ()]
    assert [layer.weight.shape() for layer in untold.prior["scales"].layers] == [(), ()]
    scaled, rows = neural_network(module), (jnp.asarray(ROWS["normal"]), jnp.asarray(X))
    start = begun(told, jax.random.key(1))
    assert all(np.all(np.asarray(leaf) == 1) for leaf in jax.tree.leaves(start["scales"]))
    plain = {"weights": start["weights"], "noise": start["noise"]}
    np.testing.assert_allclose(told.log_likelihoods(start, rows), scaled.log_likelihoods(plain, rows), atol=EXACT)
    # W @ x: a scale of each input runs over the second axis.
    times = jnp.asarray([0.0, 1.0, 3.0])
    scales = eqx.tree_at(lambda m: m.layers[0].weight, start["scales"], times)
    weights = eqx.tree_at(lambda m: m.layers[0].weight, start["weights"], replace_fn=lambda w: w * times)
    np.testing.assert_allclose(
        told.log_likelihoods(start | {"scales": scales}, rows),
        scaled.log_likelihoods(plain | {"weights": weights}, rows), atol=EXACT,
    )  # fmt: skip


def test_inputs_that_matter_are_told():
    """Of three inputs the second alone moves y: its scale is the largest in nearly all draws."""
    x = np.random.default_rng(1).normal(size=(100, 3))
    y = np.sin(2 * x[:, 1]) + 0.1 * np.random.default_rng(2).normal(size=100)
    model = neural_network(mlp(3, (10,), 1, activation="tanh"), noise=0.1, prior="relevance")
    posterior = tr.infer(model, tr.Data(y, given=x), tr.HMC(chains=2, draws=200, warmup=300, leapfrogs=30), seed=0)
    scales = np.asarray(posterior.draws["scales"]["layer0"]["weight"]).reshape(-1, 3)
    assert np.mean(scales.argmax(1) == 1) > 0.95
    assert np.all(np.median(scales[:, [0, 2]], axis=0) < np.median(scales[:, 1]) / 5)


# Starts.


def start_law(net: network.Network) -> Scores:
    """He's starts: N(0, 2/fan_in) for weights, 0 for biases."""
    draws = jax.vmap(lambda k: begun(net, k))(jax.random.split(jax.random.key(2), 500))
    scores = {}
    for name, fan_in in (("layer0", 8), ("layer1", 5)):
        scores |= moments(name, np.ravel(draws[name]["weight"]), 0.0, 2 / fan_in)
        scores[f"{name} bias"] = error(draws[name]["bias"], 0.0, EXACT)
    return scores


def test_starts():
    assert_holds(start_law(mlp(8, (5,), 3)), 500 * 15)


@pytest.mark.parametrize("name", ["half", "outputs", "biases"])
def test_wrong_starts_are_caught(name):
    net = mlp(8, (5,), 3)

    def wrong(key):
        start = begun(net, key)
        if name == "half":
            return jax.tree.map(lambda a: a / 2**0.5, start)
        if name == "outputs":
            return jax.tree.map(lambda a: a * (a.shape[0] / a.shape[-1]) ** 0.5, start)
        return jax.tree.map(lambda a: a + (a.ndim == 1) * jax.random.normal(key, a.shape), start)

    assert broken(start_law(network.Network(net.params, net.apply, start=wrong)))


@pytest.mark.test
def test_a_pairs_weights_start_as_its_example_does():
    example = {"w": 3 * RNG.normal(size=(30, 20)), "b": np.zeros(7), "scale": np.ones(4)}
    model = neural_network((example, lambda p, x: p["b"][0] + x), noise=1.0)
    starts = [begun(model, k)["weights"] for k in jax.random.split(jax.random.key(0), 10)]
    for start in starts:
        assert np.all(start["b"] == 0) and np.all(start["scale"] == 1)
    drawn = np.ravel([s["w"] for s in starts])
    assert_holds(moments("w", drawn, example["w"].mean(), example["w"].var()), drawn.size)
    assert not np.allclose(starts[0]["w"], starts[1]["w"])


@pytest.mark.parametrize("likelihood", SHAPES)
def test_starts_have_a_finite_density(likelihood):
    model = neural_network(mlp(3, (4,), SHAPES[likelihood]), likelihood)
    rows = (jnp.asarray(ROWS[likelihood]), jnp.asarray(X))
    density = jax.jit(jax.value_and_grad(tr.log_density(model, rows)))
    for seed in range(3):
        start = begun(model, jax.random.key(seed))
        assert jax.tree.structure(start) == jax.tree.structure(model.sample_prior(jax.random.key(0)))
        if "noise" in start:
            assert np.exp(-1) <= start["noise"] <= np.exp(1)
        value, slope = density(model.unconstrain(start))
        assert np.isfinite(value) and all(np.isfinite(s).all() for s in jax.tree.leaves(slope))


# Doors.


def test_one_network_by_three_doors():
    net = mlp(3, (4,), 1)
    module = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))
    ours = neural_network(net)
    pair = neural_network((net.params, net.apply))
    theirs = neural_network(module)
    params = ours.sample_prior(jax.random.key(3))
    weights = params["weights"]
    arrays, _ = eqx.partition(module, eqx.is_inexact_array)
    moved = eqx.tree_at(
        lambda m: [leaf for layer in m.layers for leaf in (layer.weight, layer.bias)],
        arrays,
        [leaf for n in ("layer0", "layer1") for leaf in (weights[n]["weight"].T, weights[n]["bias"])],
    )
    rows = (jnp.asarray(ROWS["normal"]), jnp.asarray(X))
    wanted = ours.log_likelihoods(params, rows)
    np.testing.assert_allclose(pair.log_likelihoods(params, rows), wanted, atol=EXACT)
    transposed = {"weights": moved, "noise": params["noise"]}
    np.testing.assert_allclose(theirs.log_likelihoods(transposed, rows), wanted, atol=EXACT)
    np.testing.assert_allclose(theirs.log_prior(transposed), ours.log_prior(params), atol=EXACT)
    assert theirs.names[:2] == ["noise", "weights.layers.0.weight[0, 0]"]


def test_activations():
    for name, function in {"tanh": np.tanh, "relu": lambda a: np.maximum(a, 0), "identity": lambda a: a}.items():
        net = mlp(3, (4, 2), 1, activation=name)
        h = X
        for i in range(3):
            layer = net.params[f"layer{i}"]
            h = h @ np.asarray(layer["weight"]) + np.asarray(layer["bias"])
            h = function(h) if i < 2 else h
        np.testing.assert_allclose(jax.vmap(lambda x, n=net: n.apply(n.params, x))(jnp.asarray(X)), h, atol=EXACT)
    assert mlp(3, 4, 1, jnp.tanh).apply(mlp(3, 4, 1, jnp.tanh).params, X[0]).shape == (1,)


def test_the_same_arguments_give_the_same_model():
    assert mlp(3, (4,), 1) is mlp(3, [4], outputs=1) and mlp(3, (4,), 1) is not mlp(3, (4,), 1, "tanh")
    assert neural_network(mlp(3, (4,), 1)) is neural_network(mlp(3, 4, 1), "normal", noise=None, df=4)
    assert neural_network(mlp(3, (4,), 1)) is not neural_network(mlp(3, 4, 1), prior=1.0)
    assert mlp(3, (4,), 1).params["layer0"]["weight"].dtype == jnp.float64
    with jax.enable_x64(False):
        assert mlp(3, (4,), 1).params["layer0"]["weight"].dtype == jnp.float32
        model = neural_network(mlp(3, (4,), 1))
        assert {a.dtype for a in jax.tree.leaves(begun(model, jax.random.key(0)))} == {np.dtype("float32")}
    assert model is not neural_network(mlp(3, (4,), 1))


def test_switched_off_dropout_and_plain_sequences_pass():
    keys = jax.random.split(jax.random.key(0), 2)
    layers = [eqx.nn.Linear(3, 2, key=keys[0]), eqx.nn.LayerNorm(2), eqx.nn.Dropout(0.5, inference=True),
              eqx.nn.Lambda(jax.nn.relu), eqx.nn.Linear(2, 1, key=keys[1])]  # fmt: skip
    model = neural_network(eqx.nn.Sequential(layers), example=X[0])
    start = begun(model, jax.random.key(0))
    assert np.all(start["weights"].layers[1].weight == 1)
    assert np.isfinite(model.log_likelihoods(start, (jnp.asarray(ROWS["normal"]), jnp.asarray(X)))).all()


# Faults.

SQUARE = eqx.nn.Linear(3, 3, key=jax.random.key(0))
FAULTS = {
    "batch statistics": lambda: neural_network(eqx.nn.Sequential([SQUARE, eqx.nn.BatchNorm(3, "b", mode="ema")])),
    "dropout": lambda: neural_network(eqx.nn.Sequential([SQUARE, eqx.nn.Dropout(0.5)])),
    "not a network": lambda: neural_network(lambda x: x),
    "likelihood": lambda: neural_network(mlp(3, 2, 1), "gaussian"),
    "noise": lambda: neural_network(mlp(3, 2, 1), "bernoulli", noise=1.0),
    "negative noise": lambda: neural_network(mlp(3, 2, 1), noise=-1.0),
    "extra": lambda: neural_network(mlp(3, 2, 1), extra={"a": dist.Normal(0, 1)}),
    "weights": lambda: neural_network(mlp(3, 2, 1), lambda o, e: o, extra={"weights": dist.Normal(0, 1)}),
    "scales": lambda: neural_network(
        mlp(3, 2, 1), lambda o, e: o, prior="relevance", extra={"scales": dist.Normal(0, 1)}
    ),
    "two outputs": lambda: neural_network(mlp(3, 2, 2), "bernoulli"),
    "one class": lambda: neural_network(mlp(3, 2, 1), "categorical"),
    "no scale": lambda: neural_network(mlp(3, 2, 1), "heteroscedastic"),
    "module's outputs": lambda: neural_network(SQUARE, "poisson", example=X[0]),
    "module's inputs": lambda: neural_network(SQUARE, example=X[0, :2]),
    "prior's name": lambda: neural_network(mlp(3, 2, 1), prior="wide"),
    "prior's sd": lambda: neural_network(mlp(3, 2, 1), prior=0.0),
    "prior's type": lambda: neural_network(mlp(3, 2, 1), prior=[1.0]),
    "prior's shape": lambda: neural_network(mlp(3, 2, 1), prior=dist.Normal(jnp.zeros(3), 1.0)),
    "leaf's shape": lambda: neural_network(mlp(3, 2, 1), prior=lambda p, s: dist.Normal(jnp.zeros(7), 1.0)),
    "leaf's type": lambda: neural_network(mlp(3, 2, 1), prior=lambda p, s: 1.0),
    "structure": lambda: neural_network(mlp(3, 2, 1), prior={"layer0": dist.Normal(0, 1)}),
    "integers": lambda: neural_network(({"w": np.arange(3)}, lambda p, x: x)),
    "not finite": lambda: neural_network(({"w": np.array([1.0, np.nan])}, lambda p, x: x)),
    "no weights": lambda: neural_network(({}, lambda p, x: x)),
    "width": lambda: mlp(3, (0,), 1),
    "activation": lambda: mlp(3, 2, 1, "swoosh"),
    "share": lambda: scale_mixture(1.0),
    "order": lambda: scale_mixture(0.5, 0.1, 1.0),
}
SENTENCES = {
    "batch statistics": "BatchNorm layer, which keeps a state.*one datum at a time. Use LayerNorm",
    "dropout": "Dropout layer that drops units at random.*inference_mode",
    "not a network": r"expects mlp\(...\).*got function",
    "likelihood": "one of normal, student-t.*'gaussian'",
    "noise": "noise= is for likelihood='normal' and 'student-t'",
    "negative noise": "noise must be positive and finite; got -1.0",
    "extra": "'normal' takes none",
    "weights": "'weights' names the network's own",
    "scales": "'scales' names the network's own",
    "two outputs": r"'bernoulli' needs .* shape \(\) or \(1,\), a logit; got \(2,\)",
    "one class": r"C ≥ 2 classes; got \(1,\)",
    "no scale": r"\(2,\), a mean and a raw scale; got \(1,\)",
    "module's outputs": r"'poisson' needs .*; got \(3,\)",
    "module's inputs": r"could not be applied to one input of shape \(2,\), without a batch axis",
    "prior's name": "prior is 'scaled', 'relevance', an sd.*'wide'",
    "prior's sd": "prior must be positive and finite; got 0.0",
    "prior's type": "pytree of distributions; got list",
    "prior's shape": r"of one number, of shape \(\); got Normal of shape \(3,\)",
    "leaf's shape": r"'layer0.bias' has shape \(7,\); expected \(2,\)",
    "leaf's type": "'layer0.bias' is float; expected a distribution",
    "structure": "A pytree of priors has the structure of the weights",
    "integers": "'w' has dtype int64; expected real numbers",
    "not finite": "'w' is not finite",
    "no weights": "hold no array",
    "width": r"hidden\[\d\] is a whole number of units.*got 0",
    "activation": "one of relu.*got 'swoosh'",
    "share": "between 0 and 1; got 1.0",
    "order": "narrow is the smaller sd",
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name):
    with warnings.catch_warnings(), pytest.raises(ModelError, match=SENTENCES[name]):
        warnings.simplefilter("ignore")  # Equinox's about BatchNorm
        FAULTS[name]()


@pytest.mark.test
@pytest.mark.parametrize(
    ("model", "data", "sentence"),
    [
        (lambda: neural_network(mlp(3, 2, 1)), lambda: tr.Data(X[:, 0], given=X[:, :2]),
         r"takes one input of shape \(3,\); got a row of shape \(2,\)"),
        (lambda: neural_network(mlp(3, 2, 1)), lambda: tr.Data(X[:, 0]), r"needs inputs: pass Data\(y, given=x\)"),
        (lambda: neural_network(SQUARE, "bernoulli"), lambda: tr.Data(ROWS["bernoulli"], given=X),
         r"'bernoulli' needs .*; got \(3,\)"),
        (lambda: neural_network(SQUARE), lambda: tr.Data(X, given=X[:, :2]), r"input of shape \(2,\), without a batch"),
    ],
    ids=["inputs", "no inputs", "module's outputs", "module's inputs"],
)  # fmt: skip
def test_infer_says_what_does_not_fit(model, data, sentence):
    with pytest.raises(ModelError, match=sentence):
        tr.infer(model(), data(), tr.MAP())


# Runs.


@pytest.mark.parametrize(
    "method",
    [tr.MAP(steps=200), tr.NUTS(chains=2, draws=20, warmup=20)],
    ids=["map", "nuts"],
)
def test_methods_run(method):
    x = np.random.default_rng(3).normal(size=(20, 1))
    data = tr.Data(np.sin(2 * x[:, 0]), given=x)
    model = neural_network(mlp(1, (2,), 1, activation="tanh"), noise=0.3)
    posterior = tr.infer(model, data, method)
    assert np.isfinite(np.asarray(posterior.unconstrained if method.label == "nuts" else posterior.point)).all()
    assert "weights.layer1.weight[1, 0]" in model.names
    if method.label == "map":
        density = tr.log_density(model, data.arrays(), flat=True)
        start = model.space.ravel(model.unconstrain(begun(model, jax.random.key(0))))
        assert density(jnp.asarray(posterior.point)) > density(start)


@pytest.mark.quick
def test_without_flax_it_says_so(monkeypatch):
    import sys

    from tractable.adapters.flax import from_nnx

    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(SettingsError, match="needs Flax, which is not installed"):
        from_nnx(object())


@pytest.mark.quick
def test_flax():
    nnx = pytest.importorskip("flax.nnx", reason="Flax is not among the dependencies")
    from tractable.adapters.flax import from_nnx

    class Perceptron(nnx.Module):
        def __init__(self, rngs, middle=None):
            self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)])
            self.middle = middle

        def __call__(self, x):
            x = self.layers[0](x)
            return self.layers[1](nnx.relu(x if self.middle is None else self.middle(x)))

    module = Perceptron(nnx.Rngs(0))
    found = from_nnx(module, example=X[0])
    model = neural_network(found)
    assert model is neural_network(found)
    start = begun(model, jax.random.key(0))
    layers = start["weights"]["layers"]
    weights = {f"layer{i}": {"weight": layers[i]["kernel"], "bias": layers[i]["bias"]} for i in range(2)}
    rows = (jnp.asarray(ROWS["normal"]), jnp.asarray(X))
    wanted = stats.norm.logpdf(ROWS["normal"], forward(weights, X)[:, 0], float(start["noise"]))
    np.testing.assert_allclose(model.log_likelihoods(start, rows), wanted, atol=1e-5)
    np.testing.assert_allclose(found.apply(found.params, X[0]), module(X[0]), atol=1e-5)
    assert "weights.layers.0.kernel[2, 3]" in model.names
    assert sds(model)["layers.0.kernel"] == pytest.approx(3**-0.5)
    norm = Perceptron(nnx.Rngs(0), nnx.BatchNorm(4, rngs=nnx.Rngs(0)))
    with pytest.raises(ModelError, match=r"'middle' \(BatchNorm\) uses statistics of a batch"):
        from_nnx(norm)
    norm.eval()
    assert from_nnx(norm).params["middle"]["scale"].shape == (4,)
    with pytest.raises(ModelError, match=r"'middle' \(Dropout\) drops units at random"):
        from_nnx(Perceptron(nnx.Rngs(0), nnx.Dropout(0.5, rngs=nnx.Rngs(0))))
    with pytest.raises(ModelError, match=r"expects a flax.nnx.Module; got int"):
        from_nnx(3)


@pytest.mark.test
@pytest.mark.parametrize("example", [np.zeros(4, np.float32), jnp.ones(4)])
def test_a_model_with_an_example_is_made_again(example):
    """A folder holds an array as a list: it is one row of four numbers, and no list of four inputs."""
    written = json.loads(json.dumps(recipe(neural_network(mlp(4, (3,), 2), "categorical", example=example))))
    again: Any = made_again(written)
    assert again.space.size == 4 * 3 + 3 + 3 * 2 + 2 and recipe(again) == written


COLLINEAR = np.random.default_rng(3).normal(size=(60, 2))[:, [0, 1, 0]]
WAVE = np.sin(2 * COLLINEAR[:, 0]) + 0.1 * np.random.default_rng(4).normal(size=60)
POINTS = {
    "MAP": tr.MAP(steps=30), "MLE": tr.MLE(steps=30), "Adam": tr.MAP(optimizer="adam", batch_size=20, steps=30),
    "ensemble": tr.DeepEnsemble(size=3, member=tr.MAP(steps=30)),
}  # fmt: skip


@pytest.mark.test
@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("likelihood", ["normal", "categorical"])
def test_points_of_a_network_say_nothing_of_columns_or_of_curvature(name, likelihood):
    """Warnings are errors here. Inputs are collinear; the report is about training and predictions."""
    labels = likelihood == "categorical"
    net = neural_network(mlp(3, (5,), 2 if labels else 1), likelihood)
    fitted = tr.infer(net, tr.Data((WAVE > 0).astype(int) if labels else WAVE, given=COLLINEAR), POINTS[name], seed=0)
    report = fitted.report()
    assert report.verdict == "caution" and "curvature" not in str(report)
    assert not any(word in str(report) for word in ("collinear", "observed information", "chain"))
    if name == "ensemble":
        assert repr(fitted).startswith("Posterior(3 members by DeepEnsemble")
    else:
        assert "raise steps=, or give held_out=" in str(report)


@pytest.mark.test
def test_collinear_columns_of_a_linear_model_are_still_said():
    line = tr.Model({"w": dist.Normal(jnp.zeros(3), 1.0).to_event(1)}, lambda p, x: dist.Normal(x @ p["w"], 0.1))
    with pytest.warns(UserWarning, match="collinear columns"):
        tr.infer(line, tr.Data(WAVE, given=COLLINEAR), tr.MLE(), seed=0, verify=None)


@pytest.mark.test
def test_members_with_draws_are_said_with_them():
    member = tr.BayesByBackprop(batch_size=None, steps=200, start="random", draws=7)
    net = neural_network(mlp(3, (2,), 1), noise=0.1)
    fitted = tr.infer(net, tr.Data(WAVE, given=COLLINEAR), tr.DeepEnsemble(size=2, member=member), verify=None)
    assert repr(fitted).startswith("Posterior(2 members of 7 draws by DeepEnsemble")
