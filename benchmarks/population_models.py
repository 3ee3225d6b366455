"""Targets that are models of data: conjugate ones in closed form, others by quadrature over one or two parameters.

Members of a variant differ only in the values of their rows; the number of rows and the priors belong to the variant.
Easy members have data as in a textbook. Hard ones have rare events, nearly separable classes, collinear columns, few
counts, two clusters under a robust likelihood, or groups that hardly differ.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from population_truth import Truth, Variant, by_grid, log_uniform, nowhere
from scipy import optimize, special, stats

import tractable as tr

Numbers = dict[str, Any]
POINT = ("mle",)


def data_of(n: Numbers) -> tr.Data:
    return tr.Data(n["y"], n["x"])


def beta_binomial(a: float, b: float, rows: int = 20) -> Variant:
    """y_i ~ Binomial(n_i, θ), θ ~ Beta(a, b). Easy: θ in 0.1 … 0.9; hard: 0.0003 … 0.1, counts of 0 among them."""

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        theta = log_uniform(rng, 3e-4, 0.1) if hard else rng.uniform(0.1, 0.9)
        tries = 1 + rng.poisson(log_uniform(rng, 0.5, 100.0), rows)
        return {"y": rng.binomial(tries, theta).astype(float), "x": tries.astype(float)}

    model = tr.Model({"theta": dist.Beta(a, b)}, lambda p, x: dist.Binomial(x, probs=p["theta"]))

    def truth(n: Numbers) -> Truth:
        up, down = n["y"].sum(), (n["x"] - n["y"]).sum()
        law = stats.beta(a + up, b + down)
        return Truth(
            mean=np.array([law.mean()]), sd=np.array([law.std()]), peaked=a + up > 1 and b + down > 1,
            likely=up > 0 and down > 0, sample=lambda rng, count: rng.beta(a + up, b + down, (count, 1)),
        )  # fmt: skip

    return Variant("beta-binomial", f"beta({a:g}, {b:g})-binomial", model, draw, data_of, truth, (*POINT, "rejection"))


def gamma_poisson(a: float, b: float, rows: int = 20) -> Variant:
    """y_i ~ Poisson(λ x_i), λ ~ Gamma(a, b). Easy: tens to thousands of counts; hard: a few or none."""

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        exposure = log_uniform(rng, 0.5, 2.0, rows) * (log_uniform(rng, 0.01, 0.3) if hard else log_uniform(rng, 1, 30))
        return {"y": rng.poisson(log_uniform(rng, 0.3, 5.0) * exposure).astype(float), "x": exposure}

    model = tr.Model({"rate": dist.Gamma(a, b)}, lambda p, x: dist.Poisson(p["rate"] * x))

    def truth(n: Numbers) -> Truth:
        shape, rate = a + n["y"].sum(), b + n["x"].sum()
        return Truth(
            mean=np.array([shape / rate]), sd=np.array([np.sqrt(shape) / rate]), peaked=shape > 1,
            likely=n["y"].sum() > 0, sample=lambda rng, count: rng.gamma(shape, 1 / rate, (count, 1)),
        )  # fmt: skip

    return Variant("gamma-Poisson", f"gamma({a:g}, {b:g})-Poisson", model, draw, data_of, truth, (*POINT, "rejection"))


def normal_sample(rows: int) -> Variant:
    """y_i ~ N(μ, v), v ~ InverseGamma(1, 1), μ | v ~ N(0, 100 v). Hard: μ many sds from the origin, or v small."""
    shape, rate, strength = 1.0, 1.0, 0.01

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        sd = log_uniform(rng, 0.05, 20.0) if hard else log_uniform(rng, 0.5, 2.0)
        return {"y": rng.normal(rng.normal() * (10 * sd if hard else sd), sd, rows), "x": None}

    def prior(p: Any) -> Any:
        v = p["variance"]
        return -(shape + 1) * jnp.log(v) - rate / v - 0.5 * jnp.log(v) - 0.5 * strength * jnp.square(p["mu"]) / v

    model = tr.Model(
        prior, lambda p: dist.Normal(p["mu"], jnp.sqrt(p["variance"])), {"mu": 0.0, "variance": 1.0},
        {"mu": constraints.real, "variance": constraints.positive},
    )  # fmt: skip

    def truth(n: Numbers) -> Truth:
        y = n["y"]
        total, mean = strength + rows, y.sum() / (strength + rows)
        a = shape + rows / 2
        b = rate + 0.5 * np.square(y - y.mean()).sum() + 0.5 * strength * rows / total * y.mean() ** 2

        def sample(rng: np.random.Generator, count: int) -> np.ndarray:
            v = b / rng.gamma(a, 1.0, count)
            return np.stack([rng.normal(mean, np.sqrt(v / total)), v], 1)

        middle = b / (a - 1)
        return Truth(
            mean=np.array([mean, middle]),
            sd=np.array([np.sqrt(middle / total), middle / np.sqrt(a - 2)]),
            sample=sample,
        )

    methods = (*POINT, "sgld") if rows > 200 else POINT
    return Variant("normal sample", f"normal sample, {rows} rows", model, draw, data_of, truth, methods)


def linear(rows: int, d: int) -> Variant:
    """y ~ N(xᵀβ, 1), β ~ N(0, 10²). Easy: columns as drawn; hard: nearly collinear, in scales of 0.1 … 10."""

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        x = rng.standard_normal((rows, d))
        if hard:
            share = 1 - log_uniform(rng, 0.001, 0.3)
            x = np.sqrt(share) * rng.standard_normal((rows, 1)) + np.sqrt(1 - share) * x
            x = x * log_uniform(rng, 0.1, 10.0, d)
        return {"y": x @ rng.standard_normal(d) + rng.standard_normal(rows), "x": x}

    model = tr.Model(
        {"beta": dist.Normal(jnp.zeros(d), 10.0)},
        tr.Through(lambda p, x: jnp.dot(x, p["beta"]), lambda p, eta: dist.Normal(eta, 1.0)),
    )

    def truth(n: Numbers) -> Truth:
        covariance = np.linalg.inv(n["x"].T @ n["x"] + np.eye(d) / 100)
        mean = covariance @ (n["x"].T @ n["y"])
        return Truth(
            mean=mean, sd=np.sqrt(np.diag(covariance)),
            sample=lambda rng, count: rng.multivariate_normal(mean, covariance, count),
        )  # fmt: skip

    methods = (*POINT, "bbb", "sgld") if rows > 200 else (*POINT, "bbb")
    return Variant("linear regression", f"linear, {rows} rows, d = {d}", model, draw, data_of, truth, methods)


def separable(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether some w ≠ 0 has (2y − 1) xᵀw ≥ 0 on every row, and > 0 on one: then the likelihood has no maximum."""
    signed = (2 * y - 1)[:, None] * x
    found = optimize.linprog(-signed.sum(0), A_ub=-signed, b_ub=np.zeros(len(y)), bounds=[(-1, 1)] * x.shape[1])
    return bool(-found.fun > 1e-9)


def logistic(rows: int, d: int, scale: float) -> Variant:
    """y ~ Bernoulli(σ(xᵀw)), w ~ N(0, scale²), d = 1 (a slope) or 2 (and an intercept).

    Easy: slopes around 1. Hard: rare events (an intercept of −5 … −2), or slopes of 3 … 20, which nearly separate.
    """

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        w = rng.standard_normal(d)
        if hard and d == 2 and rng.random() < 0.5:
            w[0] = -rng.uniform(2.0, 5.0)
        elif hard:
            w[-1] = rng.choice([-1, 1]) * log_uniform(rng, 3.0, 20.0)
        x = rng.standard_normal((rows, d))
        if d == 2:
            x[:, 0] = 1
        return {"y": (rng.random(rows) < special.expit(x @ w)).astype(float), "x": x}

    predictor = tr.Through(lambda p, x: jnp.dot(x, p["w"]), lambda p, eta: dist.Bernoulli(logits=eta))
    model = tr.Model({"w": dist.Normal(jnp.zeros(d), scale)}, predictor)

    def truth(n: Numbers) -> Truth:
        def log_density(w: np.ndarray) -> np.ndarray:
            eta = w @ n["x"].T
            return eta @ n["y"] - np.logaddexp(0, eta).sum(1) - 0.5 * np.square(w / scale).sum(1)

        return by_grid(log_density, lambda w: w, [(-8 * scale, 8 * scale)] * d, likely=not separable(n["x"], n["y"]))

    methods = (*POINT, "bbb") + (("sgld",) if rows > 200 else ("rejection",))
    name = f"logistic, {rows} rows, d = {d}, prior sd {scale:g}"
    return Variant("logistic regression", name, model, draw, data_of, truth, methods)


def poisson_regression(rows: int) -> Variant:
    """y ~ Poisson(exp(w₀ + w₁ x)), w ~ N(0, 2²). Easy: counts around 3; hard: below 0.2, or slopes of ±1.5."""

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        x = np.stack([np.ones(rows), rng.standard_normal(rows)], 1)
        w = (
            np.array([rng.uniform(-4, -1.5), rng.normal() * 1.5])
            if hard
            else np.array([1.0, 0.4]) * rng.normal(1, 0.5, 2)
        )
        return {"y": rng.poisson(np.exp(x @ w)).astype(float), "x": x}

    model = tr.Model({"w": dist.Normal(jnp.zeros(2), 2.0)}, lambda p, x: dist.Poisson(jnp.exp(jnp.dot(x, p["w"]))))

    def truth(n: Numbers) -> Truth:
        def log_density(w: np.ndarray) -> np.ndarray:
            eta = w @ n["x"].T
            return eta @ n["y"] - np.exp(eta).sum(1) - 0.125 * np.square(w).sum(1)

        # Unless a second row has a count above 0, slope and intercept can go to infinity together.
        likely = np.count_nonzero(n["y"]) > 0 and not one_sided(n)
        return by_grid(log_density, lambda w: w, [(-16.0, 16.0)] * 2, likely=likely)

    return Variant("Poisson regression", f"Poisson, {rows} rows", model, draw, data_of, truth, (*POINT, "rejection"))


def one_sided(n: Numbers) -> bool:
    """Whether all counts lie at the largest or the smallest x: then rates elsewhere go to 0 along a ray."""
    x, seen = n["x"][:, 1], n["x"][n["y"] > 0, 1]
    return bool(np.all(seen == x.max()) or np.all(seen == x.min()))


def robust(rows: int) -> Variant:
    """y ~ t₂(μ, s), μ ~ N(0, 10²), log s ~ N(0, 1). Easy: one cluster; hard: two, 4 … 12 apart: often two modes."""

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        y = rng.normal(rng.normal() * 3, log_uniform(rng, 0.3, 2.0), rows)
        if hard:
            y[: rng.integers(rows // 3, rows // 2 + 1)] += rng.uniform(4, 12)
        return {"y": y, "x": None}

    model = tr.Model(
        {"mu": dist.Normal(0.0, 10.0), "s": dist.LogNormal(0.0, 1.0)}, lambda p: dist.StudentT(2.0, p["mu"], p["s"])
    )

    def truth(n: Numbers) -> Truth:
        def log_density(u: np.ndarray) -> np.ndarray:
            z = (n["y"] - u[:, :1]) / np.exp(u[:, 1:])
            terms = -1.5 * np.log1p(np.square(z) / 2) - u[:, 1:]
            return terms.sum(1) - 0.005 * np.square(u[:, 0]) - 0.5 * np.square(u[:, 1])

        return by_grid(log_density, lambda u: np.stack([u[:, 0], np.exp(u[:, 1])], 1), [(-30.0, 40.0), (-6.0, 5.0)])

    return Variant("robust location", f"robust, {rows} rows", model, draw, data_of, truth, ("rejection",))


def switching(rows: int) -> Variant:
    """y ~ ½ N(μ₁, 1) + ½ N(μ₂, 1), μ ~ N(0, 5²): exchanging the labels changes nothing, so the posterior is symmetric.

    Easy: the two means are 0 … 2 apart; hard: 2 … 6.
    """

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        apart = rng.uniform(2, 6) if hard else rng.uniform(0, 2)
        return {"y": rng.normal(rng.normal() + apart * rng.choice([-0.5, 0.5], rows), 1.0), "x": None}

    half = dist.Categorical(probs=jnp.full(2, 0.5))
    model = tr.Model(
        {"mu": dist.Normal(jnp.zeros(2), 5.0)}, lambda p: dist.MixtureSameFamily(half, dist.Normal(p["mu"], 1.0))
    )

    def truth(n: Numbers) -> Truth:
        def log_density(u: np.ndarray) -> np.ndarray:
            one, two = (-0.5 * np.square(n["y"] - u[:, i, None]) for i in range(2))
            return np.logaddexp(one, two).sum(1) - 0.02 * np.square(u).sum(1)

        return by_grid(log_density, lambda u: u, [(-25.0, 25.0)] * 2)

    return Variant("label switching", f"switching, {rows} rows", model, draw, data_of, truth, ())


def groups(centred: bool, count: int = 8, *, flat: bool = False) -> Variant:
    """y_j ~ N(θ_j, s_j), θ_j ~ N(μ, τ), μ ~ N(0, 5²), τ ~ HalfNormal(5); given τ all else is normal; τ by quadrature.

    Easy: τ is 1 … 3 times the errors; hard: 0.03 … 1 times, which is a funnel if θ is centred. ``flat``: log τ has a
    constant prior instead, and there is no posterior, because the mass near τ = 0 is infinite.
    """

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        errors = log_uniform(rng, 0.5, 3.0) * log_uniform(rng, 0.6, 1.7, count)
        tau = errors.mean() * (log_uniform(rng, 0.03, 1.0) if hard else log_uniform(rng, 1.0, 3.0))
        y = rng.normal(rng.normal() * 3 + tau * rng.standard_normal(count), errors)
        return {"y": y, "x": {"group": np.arange(count), "error": errors}}

    if centred:

        def prior(p: Any) -> Any:
            scale = -jnp.log(p["tau"]) if flat else dist.HalfNormal(5.0).log_prob(p["tau"])
            effects = dist.Normal(p["mu"], p["tau"]).log_prob(p["theta"]).sum()
            return scale + dist.Normal(0.0, 5.0).log_prob(p["mu"]) + effects

        model = tr.Model(
            prior, lambda p, x: dist.Normal(p["theta"][x["group"]], x["error"]),
            {"mu": 0.0, "tau": 1.0, "theta": np.zeros(count)},
            {"mu": constraints.real, "tau": constraints.positive, "theta": constraints.real},
        )  # fmt: skip
    else:
        model = tr.Model(
            {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfNormal(5.0), "z": dist.Normal(jnp.zeros(count), 1.0)},
            lambda p, x: dist.Normal(p["mu"] + p["tau"] * p["z"][x["group"]], x["error"]),
        )

    def truth(n: Numbers) -> Truth:
        if flat:
            return nowhere(count + 2)
        y, s2 = n["y"], np.square(n["x"]["error"])
        log_tau = np.linspace(-14, 4, 20_001)
        tau = np.exp(log_tau)[:, None]
        spread = s2 + tau**2  # (τ, j) of y_j about μ
        variance = 1 / (1 / 25 + (1 / spread).sum(1))  # of μ
        mean = variance * (y / spread).sum(1)
        logs = 0.5 * np.log(variance) + 0.5 * np.square(mean) / variance - 0.02 * tau[:, 0] ** 2 + log_tau
        logs -= 0.5 * (np.log(spread) + np.square(y) / spread).sum(1)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        m, v = mean[:, None], variance[:, None]
        if centred:
            pull = s2 / spread
            at, within = (1 - pull) * y + pull * m, s2 * tau**2 / spread + np.square(pull) * v
        else:
            at, within = tau * (y - m) / spread, s2 / spread + np.square(tau / spread) * v
        means = np.column_stack([mean, tau, at])
        variances = np.column_stack([variance, np.zeros_like(tau), within])
        centre = weights @ means
        sd = np.sqrt(weights @ (variances + np.square(means - centre)))

        def sample(rng: np.random.Generator, size: int) -> np.ndarray:
            where = rng.choice(len(tau), size, p=weights)
            mu = rng.normal(mean[where], np.sqrt(variance[where]))
            given = spread[where]
            z = rng.normal(tau[where] * (y - mu[:, None]) / given, np.sqrt(s2 / given))
            return np.column_stack([mu, tau[where], mu[:, None] + tau[where] * z if centred else z])

        return Truth(mean=centre, sd=sd, sample=sample, peaked=not centred and inside(y, s2))

    family = "improper" if flat else "hierarchy"
    name = "groups, log τ flat" if flat else f"groups, {'centred' if centred else 'non-centred'}"
    return Variant(family, name, model, draw, data_of, truth)


def inside(y: np.ndarray, s2: np.ndarray) -> bool:
    """Whether the joint mode of (μ, τ, z) has τ > 0: on a grid of τ, the profile over μ and z has its peak above 0."""
    tau2 = np.square(np.linspace(0, 15, 3001))[:, None]
    spread = s2 + tau2
    mu = (y / spread).sum(1) / (1 / 25 + (1 / spread).sum(1))
    profile = -0.5 * (np.square(y - mu[:, None]) / spread).sum(1) - 0.02 * mu**2 - 0.02 * tau2[:, 0]
    return int(np.argmax(profile)) > 0


def no_maximum(rows: int) -> Variant:
    """Logistic regression on separable classes with a constant prior: there is neither a posterior nor a maximum.

    Easy: the classes lie far apart; hard: a narrow gap.
    """

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        x = np.stack([np.ones(rows), rng.standard_normal(rows)], 1)
        cut = rng.uniform(-1, 1)
        x[:, 1] += np.sign(x[:, 1] - cut) * (log_uniform(rng, 0.001, 0.05) if hard else log_uniform(rng, 0.1, 2.0))
        return {"y": (x[:, 1] > cut).astype(float), "x": x}

    predictor = tr.Through(lambda p, x: jnp.dot(x, p["w"]), lambda p, eta: dist.Bernoulli(logits=eta))
    model = tr.Model(lambda p: jnp.zeros(()), predictor, {"w": np.zeros(2)})
    return Variant("improper", f"separable, {rows} rows", model, draw, data_of, lambda n: nowhere(2), POINT)


def variants() -> list[Variant]:
    """All variants of this file."""
    return [
        beta_binomial(1.0, 1.0), beta_binomial(0.5, 0.5), gamma_poisson(2.0, 1.0), gamma_poisson(0.5, 0.5),
        normal_sample(5), normal_sample(400), linear(60, 3), linear(400, 15),
        logistic(30, 1, 2.5), logistic(40, 2, 2.5), logistic(40, 2, 10.0), logistic(400, 2, 2.5),
        poisson_regression(15), poisson_regression(40), robust(10), robust(20), switching(10), switching(30),
        groups(True), groups(False), groups(True, flat=True), no_maximum(40),
    ]  # fmt: skip
