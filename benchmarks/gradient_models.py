"""Posteriors on simulated data for the comparison of gradients in ``posteriordb.py``; they have no reference draws.

Each function simulates its data with a fixed seed and returns a Problem. Groups are centred (their effects are
parameters) or non-centred (effect = sd × standard normal).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from posteriordb_models import Problem

import tractable as tr

PyTree = Any
HALF = dist.HalfNormal(1.0)


def noise(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normals(count: int, sd: float = 1.0) -> dist.Distribution:
    """The prior of ``count`` independent numbers."""
    return dist.Normal(jnp.zeros(count), sd)


def correlated(rng: np.random.Generator, rows: int, columns: int, correlation: float) -> np.ndarray:
    """(row, column) standard normals; columns that are k apart have the correlation ``correlation``ᵏ."""
    apart = np.abs(np.subtract.outer(np.arange(columns), np.arange(columns)))
    return rng.normal(size=(rows, columns)) @ np.linalg.cholesky(correlation**apart).T


def density(log_density: Callable, example: PyTree, support: PyTree = None) -> Problem:
    return Problem(tr.Model.from_log_density(log_density, example, support), None)


def normal(covariance: np.ndarray) -> Problem:
    """The normal distribution with mean 0."""
    precision = jnp.asarray(np.linalg.inv(covariance))
    return density(lambda p: -0.5 * p["x"] @ precision @ p["x"], {"x": np.zeros(len(covariance))})


def logistic_correlated() -> Problem:
    rng = noise(1)
    x = correlated(rng, 200, 20, 0.95)
    y = rng.random(200) < 1 / (1 + np.exp(-x @ rng.normal(size=20)))
    model = tr.Model({"beta": normals(20, 2.5)}, lambda p, x: dist.Bernoulli(logits=x @ p["beta"]))
    return Problem(model, tr.Data(y.astype(np.int32), x))


def raw_columns(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(row, 4) ones, an age in years, an income in thousands, and a temperature in degrees."""
    return np.column_stack(
        [np.ones(rows), rng.uniform(20, 80, rows), rng.lognormal(4, 0.5, rows), rng.normal(15, 8, rows)]
    )


def poisson_raw() -> Problem:
    rng = noise(2)
    x = raw_columns(rng, 200)
    y = rng.poisson(np.exp(x @ [0.2, 0.01, 0.005, 0.03]))
    model = tr.Model(
        {"beta": normals(4, 20.0)}, lambda p, x: dist.Poisson(jnp.exp(x @ p["beta"])),
        start=lambda key: {"beta": 1e-3 * jax.random.normal(key, (4,))},  # the rates of others overflow
    )  # fmt: skip
    return Problem(model, tr.Data(y, x))


def linear_raw() -> Problem:
    rng = noise(3)
    x = raw_columns(rng, 200)
    y = x @ [100.0, 0.5, 0.2, 1.0] + 10 * rng.normal(size=200)
    prior = {"beta": normals(4, 1000.0), "sigma": dist.HalfNormal(100.0)}
    return Problem(tr.Model(prior, lambda p, x: dist.Normal(x @ p["beta"], p["sigma"])), tr.Data(y, x))


def negative_binomial() -> Problem:
    rng = noise(4)
    x = correlated(rng, 300, 10, 0.9)
    mean = np.exp(1 + x @ rng.normal(0, 0.2, 10))
    y = rng.poisson(rng.gamma(2.0, mean / 2))
    model = tr.Model(
        {"alpha": dist.Normal(0.0, 2.0), "beta": normals(10), "size": dist.HalfNormal(10.0)},
        lambda p, x: dist.NegativeBinomial2(jnp.exp(p["alpha"] + x @ p["beta"]), p["size"]),
    )
    return Problem(model, tr.Data(y, x))


def student_t() -> Problem:
    rng = noise(5)
    x = correlated(rng, 150, 8, 0.8)
    y = x @ rng.normal(size=8) + rng.standard_t(3, 150)
    model = tr.Model(
        {"beta": normals(8, 2.5), "sigma": dist.HalfNormal(2.0), "df": dist.Gamma(2.0, 0.1)},
        lambda p, x: dist.StudentT(p["df"], x @ p["beta"], p["sigma"]),
    )
    return Problem(model, tr.Data(y, x))


def groups_centred() -> Problem:
    rng = noise(6)
    group = np.repeat(np.arange(60), 20)
    y = (2 + rng.normal(size=60))[group] + 2 * rng.normal(size=1200)

    def prior(p: PyTree) -> jax.Array:
        tops = dist.Normal(0.0, 10.0).log_prob(p["mu"]) + HALF.log_prob(p["tau"]) + HALF.log_prob(p["sigma"] / 2)
        return tops + dist.Normal(p["mu"], p["tau"]).log_prob(p["theta"]).sum()

    model = tr.Model(
        prior, lambda p, x: dist.Normal(p["theta"][x], p["sigma"]),
        {"mu": 0.0, "tau": 1.0, "sigma": 1.0, "theta": np.zeros(60)},
        {"mu": constraints.real, "tau": constraints.positive, "sigma": constraints.positive, "theta": constraints.real},
    )  # fmt: skip
    return Problem(model, tr.Data(y, group))


def groups_non_centred() -> Problem:
    rng = noise(7)
    group = np.repeat(np.arange(150), 4)
    y = rng.random(600) < 1 / (1 + np.exp(-0.5 - 0.5 * rng.normal(size=150)[group]))
    model = tr.Model(
        {"mu": dist.Normal(0.0, 2.0), "tau": HALF, "z": normals(150)},
        lambda p, x: dist.Bernoulli(logits=p["mu"] + p["tau"] * p["z"][x]),
    )
    return Problem(model, tr.Data(y.astype(np.int32), group))


def varying_slopes() -> Problem:
    """Groups of rows with correlated intercepts and slopes of a column that is not centred."""
    rng = noise(8)
    group, x = np.repeat(np.arange(30), 10), rng.uniform(5, 10, 300)
    effects = rng.normal(size=(30, 2)) @ np.array([[1.0, 0.0], [0.3, 0.4]]).T
    y = (1 + effects[group, 0]) + (2 + effects[group, 1]) * x + rng.normal(size=300)

    def likelihood(p: PyTree, x: PyTree) -> dist.Distribution:
        intercept, slope = p["beta"] + p["tau"] * (p["root"] @ p["z"][x["group"]])
        return dist.Normal(intercept + slope * x["x"], p["sigma"])

    prior = {
        "beta": normals(2, 10.0), "tau": dist.HalfNormal(jnp.ones(2)), "sigma": HALF,
        "root": dist.LKJCholesky(2, 2.0), "z": dist.Normal(jnp.zeros((30, 2)), 1.0),
    }  # fmt: skip
    return Problem(tr.Model(prior, likelihood), tr.Data(y, {"group": group, "x": x}))


def crossed() -> Problem:
    rng = noise(9)
    people, items = rng.integers(0, 30, 600), rng.integers(0, 40, 600)
    y = 1 + rng.normal(size=30)[people] + 0.5 * rng.normal(size=40)[items] + rng.normal(size=600)
    prior = {
        "mu": dist.Normal(0.0, 5.0), "tau": dist.HalfNormal(jnp.ones(2)), "sigma": HALF,
        "people": normals(30), "items": normals(40),
    }  # fmt: skip
    model = tr.Model(
        prior,
        lambda p, x: dist.Normal(
            p["mu"] + p["tau"][0] * p["people"][x["people"]] + p["tau"][1] * p["items"][x["items"]], p["sigma"]
        ),
    )
    return Problem(model, tr.Data(y, {"people": people, "items": items}))


def item_response() -> Problem:
    """The two-parameter logistic model of 100 people and 20 items."""
    rng = noise(10)
    slope, hard, able = rng.lognormal(0, 0.4, 20), rng.normal(size=20), rng.normal(size=100)
    y = rng.random((100, 20)) < 1 / (1 + np.exp(-slope * (able[:, None] - hard)))
    person, item = (each.ravel() for each in np.indices((100, 20)))
    model = tr.Model(
        {"able": normals(100), "hard": normals(20, 2.0), "slope": dist.LogNormal(jnp.zeros(20), 0.5)},
        lambda p, x: dist.Bernoulli(logits=p["slope"][x["item"]] * (p["able"][x["person"]] - p["hard"][x["item"]])),
    )
    return Problem(model, tr.Data(y.ravel().astype(np.int32), {"person": person, "item": item}))


def local_level() -> Problem:
    """A random walk that is seen with noise; the levels are parameters."""
    rng = noise(11)
    y = jnp.asarray(np.cumsum(0.5 * rng.normal(size=100)) + rng.normal(size=100))

    def log_density(p: PyTree) -> jax.Array:
        steps = dist.Normal(0.0, p["step"]).log_prob(jnp.diff(p["level"])).sum()
        first, sds = dist.Normal(0.0, 5.0).log_prob(p["level"][0]), HALF.log_prob(jnp.stack([p["step"], p["sd"]]))
        return steps + first + sds.sum() + dist.Normal(p["level"], p["sd"]).log_prob(y).sum()

    return density(
        log_density, {"level": np.zeros(100), "step": 0.5, "sd": 1.0},
        {"level": constraints.real, "step": constraints.positive, "sd": constraints.positive},
    )  # fmt: skip


def stochastic_volatility() -> Problem:
    rng = noise(12)
    states = [0.0]
    for _ in range(199):
        states.append(0.95 * states[-1] + 0.25 * rng.normal())
    y = jnp.asarray(np.exp(0.5 * (-1 + np.array(states))) * rng.normal(size=200))

    def log_density(p: PyTree) -> jax.Array:
        first = p["z"][0] / jnp.sqrt(1 - p["phi"] ** 2)

        def step(state: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = p["phi"] * state + z
            return state, state

        states = p["mu"] + p["sd"] * jnp.append(first, jax.lax.scan(step, first, p["z"][1:])[1])
        prior = (
            dist.Normal(0.0, 1.0).log_prob(p["z"]).sum()
            + dist.Normal(0.0, 5.0).log_prob(p["mu"])
            + HALF.log_prob(p["sd"])
            + dist.Beta(20.0, 1.5).log_prob(p["phi"])
        )
        return prior + dist.Normal(0.0, jnp.exp(0.5 * states)).log_prob(y).sum()

    return density(
        log_density, {"z": np.zeros(200), "mu": -1.0, "sd": 0.2, "phi": 0.9},
        {"z": constraints.real, "mu": constraints.real, "sd": constraints.positive, "phi": constraints.unit_interval},
    )  # fmt: skip


def gaussian_process() -> Problem:
    """Counts whose log rate is a Gaussian process of whitened latent values."""
    rng = noise(13)
    x = np.sort(rng.uniform(0, 10, 60))
    y, squares = jnp.asarray(rng.poisson(np.exp(1 + np.sin(x)))), jnp.asarray(np.subtract.outer(x, x) ** 2)

    def log_density(p: PyTree) -> jax.Array:
        kernel = jnp.exp(-0.5 * squares / p["length"] ** 2) + 1e-6 * jnp.eye(60)
        rate = p["mu"] + p["sd"] * jnp.linalg.cholesky(kernel) @ p["z"]
        prior = (
            dist.Normal(0.0, 1.0).log_prob(p["z"]).sum()
            + dist.Normal(0.0, 2.0).log_prob(p["mu"])
            + HALF.log_prob(p["sd"])
            + dist.InverseGamma(5.0, 5.0).log_prob(p["length"])
        )
        return prior + dist.Poisson(jnp.exp(rate)).log_prob(y).sum()

    return density(
        log_density, {"z": np.zeros(60), "mu": 0.0, "sd": 1.0, "length": 1.0},
        {"z": constraints.real, "mu": constraints.real, "sd": constraints.positive, "length": constraints.positive},
    )  # fmt: skip


def horseshoe() -> Problem:
    rng = noise(14)
    x = correlated(rng, 100, 30, 0.5)
    y = x @ np.append([3.0, -2.0, 1.0], np.zeros(27)) + rng.normal(size=100)
    prior = {
        "z": normals(30), "local": dist.HalfCauchy(jnp.ones(30)), "all": dist.HalfCauchy(0.1), "sigma": HALF,
    }  # fmt: skip
    model = tr.Model(prior, lambda p, x: dist.Normal(x @ (p["all"] * p["local"] * p["z"]), p["sigma"]))
    return Problem(model, tr.Data(y, x))


def mixture() -> Problem:
    rng = noise(15)
    kind = rng.choice(3, 300, p=[0.2, 0.3, 0.5])
    y = np.array([-3.0, 0.0, 3.0])[kind] + np.array([0.5, 1.0, 1.5])[kind] * rng.normal(size=300)

    def prior(p: PyTree) -> jax.Array:
        weights = dist.Dirichlet(jnp.full(3, 2.0)).log_prob(p["weights"])
        sds = dist.LogNormal(0.0, 0.5).log_prob(p["sd"]).sum()
        return weights + sds + dist.Normal(0.0, 5.0).log_prob(p["mu"]).sum()

    model = tr.Model(
        prior,
        lambda p: dist.MixtureSameFamily(dist.Categorical(probs=p["weights"]), dist.Normal(p["mu"], p["sd"])),
        {"mu": np.array([-2.0, 0.0, 2.0]), "sd": np.ones(3), "weights": np.full(3, 1 / 3)},
        {"mu": constraints.ordered_vector, "sd": constraints.positive, "weights": constraints.simplex},
    )
    return Problem(model, tr.Data(y))


def ordinal() -> Problem:
    rng = noise(16)
    x = correlated(rng, 300, 6, 0.8)
    y = np.digitize(x @ rng.normal(size=6) + rng.logistic(size=300), [-2.0, -0.5, 0.5, 2.0])

    def prior(p: PyTree) -> jax.Array:
        return dist.Normal(0.0, 2.5).log_prob(p["beta"]).sum() + dist.Normal(0.0, 5.0).log_prob(p["cuts"]).sum()

    model = tr.Model(
        prior, lambda p, x: dist.OrderedLogistic(x @ p["beta"], p["cuts"]),
        {"beta": np.zeros(6), "cuts": np.array([-1.0, -0.3, 0.3, 1.0])},
        {"beta": constraints.real, "cuts": constraints.ordered_vector},
    )  # fmt: skip
    return Problem(model, tr.Data(y, x))


def survival() -> Problem:
    """Weibull times that a study's end at 2 censors."""
    rng = noise(17)
    x = correlated(rng, 300, 5, 0.6)
    times = np.exp(x @ rng.normal(0, 0.5, 5)) * rng.weibull(1.5, 300)
    seen, times = jnp.asarray(times < 2.0), jnp.asarray(np.minimum(times, 2.0))

    def log_density(p: PyTree) -> jax.Array:
        scaled = jnp.log(times) - p["alpha"] - jnp.asarray(x) @ p["beta"]
        hazard = jnp.exp(p["shape"] * scaled)
        prior = dist.Normal(0.0, 2.0).log_prob(jnp.append(p["beta"], p["alpha"])).sum()
        prior += dist.Gamma(2.0, 1.0).log_prob(p["shape"])
        return prior - hazard.sum() + jnp.sum(seen * (jnp.log(p["shape"]) + p["shape"] * scaled))

    return density(
        log_density, {"alpha": 0.0, "beta": np.zeros(5), "shape": 1.0},
        {"alpha": constraints.real, "beta": constraints.real, "shape": constraints.positive},
    )  # fmt: skip


def growth_curve() -> Problem:
    """A logistic curve of which the data show the beginning only."""
    rng = noise(18)
    times = np.linspace(0, 10, 40)
    y = 100 / (1 + np.exp(-0.5 * (times - 9))) + rng.normal(size=40)
    prior = {
        "top": dist.LogNormal(4.0, 1.0), "rate": dist.LogNormal(-1.0, 1.0), "middle": dist.Normal(5.0, 5.0),
        "sigma": dist.HalfNormal(5.0),
    }  # fmt: skip
    model = tr.Model(
        prior, lambda p, x: dist.Normal(p["top"] / (1 + jnp.exp(-p["rate"] * (x - p["middle"]))), p["sigma"])
    )
    return Problem(model, tr.Data(y, times))


def stiff_normal(size: int) -> Problem:
    """A normal distribution with variances from 1 to 1e4 along random directions."""
    directions = np.linalg.qr(noise(19).normal(size=(size, size)))[0]
    return normal((directions * np.geomspace(1, 1e4, size)) @ directions.T)


def factor_normal() -> Problem:
    """A normal distribution of 500 numbers with 10 common factors."""
    rng = noise(20)
    loadings = rng.normal(size=(500, 10))
    return normal(loadings @ loadings.T + np.diag(rng.uniform(0.1, 1.0, 500)))


def funnel() -> Problem:
    def log_density(p: PyTree) -> jax.Array:
        return dist.Normal(0.0, 3.0).log_prob(p["v"]) + dist.Normal(0.0, jnp.exp(p["v"] / 2)).log_prob(p["x"]).sum()

    return density(log_density, {"v": 0.0, "x": np.zeros(9)})


def banana() -> Problem:
    def log_density(p: PyTree) -> jax.Array:
        return dist.Normal(0.0, 1.0).log_prob(p["x"]) + dist.Normal(p["x"] ** 2, 1.0).log_prob(p["y"])

    return density(log_density, {"x": 0.0, "y": 0.0})


MODELS: dict[str, Callable[[], Problem]] = {
    each.__name__: each
    for each in (
        logistic_correlated, poisson_raw, linear_raw, negative_binomial, student_t, groups_centred, groups_non_centred,
        varying_slopes, crossed, item_response, local_level, stochastic_volatility, gaussian_process, horseshoe,
        mixture, ordinal, survival, growth_curve, factor_normal, funnel, banana,
    )
} | {"stiff_normal_50": lambda: stiff_normal(50), "stiff_normal_250": lambda: stiff_normal(250)}  # fmt: skip
