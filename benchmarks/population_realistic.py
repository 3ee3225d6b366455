"""Posteriors as people have them: regressions, hierarchies, mixtures, change points, survival, item response, series.

Data are simulated from the model with numbers of ordinary size, or are random rows and columns of tables that
scikit-learn brings with it. Half of the members are hard: correlated columns, outliers, a rare category, few events, or
groups that hardly differ. The truth is a long run of NUTS from eight overdispersed starting points (``by_long_run``). A
member whose long runs do not agree has no known truth: it is declined, and counted.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from population_truth import LEVELS, Truth, Variant, log_uniform
from scipy import special

import tractable as tr
from tractable.diagnostics.convergence import diagnose

Numbers = dict[str, Any]
CHAINS, WARMUP, DRAWS = 8, 1500, 4000  # of a long run; a second one has four times as many draws
AGREED, ENOUGH = 1.01, 2000.0  # largest R-hat and least effective draws of a long run
HEAVY = 30.0  # kurtosis of the draws above which a number is judged by its quantiles


def by_long_run(model: tr.Model, data: tr.Data | None) -> Truth | None:
    """Moments and quantiles by long runs of NUTS; None if they do not agree."""
    for draws, target in ((DRAWS, 0.9), (4 * DRAWS, 0.98)):
        method = tr.NUTS(chains=CHAINS, warmup=WARMUP, draws=draws, target=target)
        found = tr.infer(model, data, method, seed=0, progress=False, verify=None)
        seen = diagnose(np.asarray(found.values))
        if seen.rhat.max() < AGREED and min(seen.bulk.min(), seen.tail.min()) > ENOUGH:
            break
    else:
        return None
    flat = np.asarray(found.values, np.float64).reshape(-1, len(found.names))
    mean, sd = flat.mean(0), flat.std(0)
    heavy = np.mean(((flat - mean) / sd) ** 4, 0) > HEAVY
    low, high = np.quantile(flat, [0.16, 0.84], axis=0)
    return Truth(
        mean=mean, sd=np.where(heavy, np.nan, sd), quantiles=np.quantile(flat, LEVELS, axis=0), half=(high - low) / 2,
        sample=lambda rng, n: flat[rng.choice(len(flat), n)],
    )  # fmt: skip


def variant(
    family: str, name: str, model: tr.Model, draw: Callable[[np.random.Generator, bool], Numbers], data: Callable
) -> Variant:
    """A variant whose truth is a long run."""
    return Variant(family, name, model, draw, data, lambda n: by_long_run(model, data(n)))


def rows_of(n: Numbers) -> tr.Data:
    return tr.Data(n["y"], n["x"])


def design(rng: np.random.Generator, rows: int, d: int, hard: bool) -> np.ndarray:
    """Columns of unit scale. Hard: correlated by 0.9, one with heavy tails, and one that is a rare category."""
    share = 0.9 if hard else rng.uniform(0.0, 0.4)
    x = np.sqrt(share) * rng.standard_normal((rows, 1)) + np.sqrt(1 - share) * rng.standard_normal((rows, d))
    if hard:
        x[:, 0] = rng.standard_t(3, rows) / np.sqrt(3)
        x[:, -1] = rng.random(rows) < 4 / rows
    return x


# Regressions: y given η = b + xᵀw. Each has its further parameters, its likelihood, and how y is drawn.
Family = tuple[dict[str, Any], Callable[[Any, Any], Any], Callable[[np.random.Generator, np.ndarray, bool], np.ndarray]]


def noisy(rng: np.random.Generator, eta: np.ndarray, hard: bool) -> np.ndarray:
    y = eta + log_uniform(rng, 0.3, 2.0) * rng.standard_normal(len(eta))
    return y + hard * 8 * (rng.random(len(eta)) < 0.03) * rng.choice([-1, 1], len(eta))


def answers(rng: np.random.Generator, eta: np.ndarray, hard: bool) -> np.ndarray:
    return (rng.random(len(eta)) < special.expit(eta - 2.5 * hard)).astype(int)


def counts(rng: np.random.Generator, eta: np.ndarray, hard: bool) -> np.ndarray:
    return rng.poisson(np.exp(np.clip(0.6 * eta + (-1.5 if hard else 1.0), -10, 5))).astype(float)


def spread_counts(rng: np.random.Generator, eta: np.ndarray, hard: bool) -> np.ndarray:
    shape = 0.5 if hard else 3.0
    return rng.poisson(np.exp(np.clip(0.6 * eta + 1, -10, 5)) * rng.gamma(shape, 1 / shape, len(eta))).astype(float)


def durations(rng: np.random.Generator, eta: np.ndarray, hard: bool) -> np.ndarray:
    shape = 0.7 if hard else 4.0
    return np.maximum(np.exp(np.clip(0.6 * eta, -8, 8)) * rng.gamma(shape, 1 / shape, len(eta)), 1e-4)


def grades(rng: np.random.Generator, eta: np.ndarray, hard: bool) -> np.ndarray:
    cuts = np.array([-0.5, 0.5, 3.0] if hard else [-1.0, 0.0, 1.0])
    return np.sum((eta + rng.logistic(size=len(eta)))[:, None] > cuts, 1)


POSITIVE = dist.HalfNormal(2.0)
FAMILIES: dict[str, Family] = {
    "normal": ({"s": POSITIVE}, lambda p, eta: dist.Normal(eta, p["s"]), noisy),
    "Student's t": ({"s": POSITIVE}, lambda p, eta: dist.StudentT(4.0, eta, p["s"]), noisy),
    "logistic": ({}, lambda p, eta: dist.Bernoulli(logits=eta), answers),
    "Poisson": ({}, lambda p, eta: dist.Poisson(jnp.exp(eta)), counts),
    "negative binomial": (
        {"k": dist.LogNormal(0.5, 1.0)}, lambda p, eta: dist.NegativeBinomial2(jnp.exp(eta), p["k"]), spread_counts,
    ),
    "gamma": ({"k": dist.LogNormal(0.5, 1.0)}, lambda p, eta: dist.Gamma(p["k"], p["k"] * jnp.exp(-eta)), durations),
    "ordered": (
        {"first": dist.Normal(-1.0, 1.0), "gaps": dist.LogNormal(jnp.zeros(2), 0.7).to_event(1)},
        lambda p, eta: dist.OrderedLogistic(eta, p["first"] + jnp.append(0.0, jnp.cumsum(p["gaps"]))), grades,
    ),
}  # fmt: skip


def regression(label: str, rows: int, d: int) -> Variant:
    further, likelihood, draw_y = FAMILIES[label]
    prior: dict[str, Any] = {"w": dist.Normal(jnp.zeros(d), 2.5).to_event(1), **further}
    if label != "ordered":  # its thresholds are intercepts
        prior["b"] = dist.Normal(0.0, 5.0)
    model = tr.Model(prior, lambda p, x: likelihood(p, x @ p["w"] + p.get("b", 0.0)))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        x = design(rng, rows, d, hard)
        return {"y": draw_y(rng, x @ rng.normal(0, 0.7, d), hard), "x": x}

    return variant("regression", f"{label} regression, {rows} × {d}", model, draw, rows_of)


def softmax(rows: int, d: int) -> Variant:
    prior = {"w": dist.Normal(jnp.zeros((d, 2)), 2.5).to_event(2), "b": dist.Normal(jnp.zeros(2), 5.0).to_event(1)}
    model = tr.Model(prior, lambda p, x: dist.Categorical(logits=jnp.append(x @ p["w"] + p["b"], 0.0)))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        x = design(rng, rows, d, hard)
        eta = np.column_stack([x @ rng.normal(0, 1.0, (d, 2)), np.full(rows, 2.0 * hard)])
        return {"y": np.argmax(eta + rng.gumbel(size=eta.shape), 1), "x": x}

    return variant("regression", f"softmax regression, {rows} × {d}", model, draw, rows_of)


@functools.cache
def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A table of scikit-learn's, standardised."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return (x - x.mean(0)) / x.std(0), np.asarray(y, float)


def real_table(name: str, label: str, rows: int, d: int) -> Variant:
    """Random rows and columns of a table. Hard: the columns that are most correlated with a random one."""
    further, likelihood, _ = FAMILIES[label]
    prior = {"w": dist.Normal(jnp.zeros(d), 2.5).to_event(1), "b": dist.Normal(0.0, 5.0), **further}
    model = tr.Model(prior, lambda p, x: likelihood(p, x @ p["w"] + p["b"]))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        x, y = table(name)
        if label == "normal":
            y = (y - y.mean()) / y.std()
        first = rng.integers(x.shape[1])
        likeness = np.abs(np.corrcoef(x.T)[first])
        columns = np.argsort(-likeness)[:d] if hard else rng.choice(x.shape[1], d, replace=False)
        chosen = rng.choice(len(x), rows, replace=False)
        return {"y": y[chosen] if label != "logistic" else (y[chosen] > 0).astype(int), "x": x[chosen][:, columns]}

    return variant("real table", f"{name}, {label}, {rows} × {d}", model, draw, rows_of)


# Hierarchies.
def varying_intercepts(label: str, rows: int, groups: int) -> Variant:
    """η = b + τ z[group] + w x. Hard: groups that hardly differ, or have two rows each and are many."""
    further, likelihood, draw_y = FAMILIES[label]
    prior = {
        "b": dist.Normal(0.0, 5.0), "w": dist.Normal(0.0, 2.5), "tau": dist.HalfNormal(1.5),
        "z": dist.Normal(jnp.zeros(groups), 1.0).to_event(1), **further,
    }  # fmt: skip
    model = tr.Model(
        prior, lambda p, x: likelihood(p, p["b"] + p["tau"] * p["z"][x["group"]] + p["w"] * x["x"]),
    )  # fmt: skip

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        group, x = rng.integers(0, groups, rows), rng.standard_normal(rows)
        effects = (0.1 if hard else log_uniform(rng, 0.3, 1.5)) * rng.standard_normal(groups)
        return {"y": draw_y(rng, effects[group] + 0.5 * x, False), "x": {"group": group, "x": x}}

    return variant("hierarchy", f"{label}, {groups} intercepts, {rows} rows", model, draw, rows_of)


def meta_analysis(studies: int) -> Variant:
    """y_j ~ N(μ + τ z_j, s_j) with a half-Cauchy τ. Hard: studies that agree."""
    prior = {
        "mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(2.0), "z": dist.Normal(jnp.zeros(studies), 1.0).to_event(1),
    }  # fmt: skip
    model = tr.Model(prior, lambda p, x: dist.Normal(p["mu"] + p["tau"] * p["z"][x["study"]], x["error"]))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        error = log_uniform(rng, 0.5, 3.0, studies)
        y = rng.normal(1.0 + (0.1 if hard else 2.0) * rng.standard_normal(studies), error)
        return {"y": y, "x": {"study": np.arange(studies), "error": error}}

    return variant("hierarchy", f"meta-analysis of {studies} studies", model, draw, rows_of)


def item_response(persons: int, items: int) -> Variant:
    """Two-parameter logistic. Hard: items that nearly everyone solves."""
    prior = {
        "ability": dist.Normal(jnp.zeros(persons), 1.0).to_event(1),
        "difficulty": dist.Normal(jnp.zeros(items), 2.0).to_event(1),
        "slope": dist.LogNormal(jnp.zeros(items), 0.5).to_event(1),
    }

    def likelihood(p: Any, x: Any) -> Any:
        return dist.Bernoulli(logits=p["slope"][x["item"]] * (p["ability"][x["person"]] - p["difficulty"][x["item"]]))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        person, item = (a.ravel() for a in np.meshgrid(np.arange(persons), np.arange(items)))
        slope, difficulty = log_uniform(rng, 0.6, 1.8, items), rng.normal(-2.0 if hard else 0.0, 1.0, items)
        chance = special.expit(slope[item] * (rng.standard_normal(persons)[person] - difficulty[item]))
        return {"y": (rng.random(len(item)) < chance).astype(int), "x": {"person": person, "item": item}}

    name = f"{persons} persons, {items} items"
    return variant("item response", name, tr.Model(prior, likelihood), draw, rows_of)


# Mixtures, survival, change points and series.
def mixture(rows: int) -> Variant:
    """Two normals, the first with the lower mean. Hard: means two sds apart, one share of a tenth."""
    prior = {
        "low": dist.Normal(0.0, 3.0), "gap": dist.LogNormal(1.0, 0.7), "share": dist.Beta(2.0, 2.0),
        "s": dist.LogNormal(jnp.zeros(2), 0.5).to_event(1),
    }  # fmt: skip

    def likelihood(p: Any) -> Any:
        shares = dist.Categorical(probs=jnp.stack([p["share"], 1 - p["share"]]))
        return dist.MixtureSameFamily(shares, dist.Normal(p["low"] + jnp.stack([0.0, 1.0]) * p["gap"], p["s"]))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        second = rng.random(rows) < (0.1 if hard else 0.4)
        gap = 2.5 if hard else rng.uniform(3.0, 6.0)
        return {"y": rng.normal(-1 + gap * second, np.where(second, 0.7, 1.0)), "x": None}

    return variant("mixture", f"two ordered normals, {rows} rows", tr.Model(prior, likelihood), draw, rows_of)


class Lifetime(dist.Distribution):
    """Weibull times of rows (time, whether it ended): a time that did not end is a lower bound."""

    support = constraints.independent(constraints.nonnegative, 1)

    def __init__(self, log_scale: Any, shape: Any) -> None:
        self.log_scale, self.shape = log_scale, shape
        super().__init__((), (2,))

    def log_prob(self, value: Any) -> Any:
        log_time, ended = jnp.log(value[..., 0]), value[..., 1]
        power = self.shape * (log_time - self.log_scale)
        return ended * (jnp.log(self.shape) + power - log_time) - jnp.exp(power)


def survival(rows: int, d: int) -> Variant:
    """Hard: four of five times are censored."""
    prior = {
        "w": dist.Normal(jnp.zeros(d), 2.5).to_event(1), "b": dist.Normal(0.0, 5.0), "k": dist.LogNormal(0.0, 0.7),
    }  # fmt: skip
    model = tr.Model(prior, lambda p, x: Lifetime(p["b"] + x @ p["w"], p["k"]))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        x = design(rng, rows, d, False)
        time = np.exp(1 + x @ rng.normal(0, 0.4, d)) * rng.weibull(log_uniform(rng, 0.7, 2.0), rows)
        end = np.quantile(time, 0.2 if hard else 0.8) * rng.uniform(0.8, 1.2, rows)
        return {"y": np.column_stack([np.maximum(np.minimum(time, end), 1e-3), time < end]).astype(float), "x": x}

    return variant("survival", f"Weibull regression, {rows} × {d}", model, draw, rows_of)


class Changing(dist.Distribution):
    """Counts whose rate changes once, after each of the positions but the last with equal probability; summed out."""

    support = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(self, early: Any, late: Any, size: int) -> None:
        self.early, self.late = early, late
        super().__init__((), (size,))

    def log_prob(self, value: Any) -> Any:
        before, after = (dist.Poisson(rate).log_prob(value) for rate in (self.early, self.late))
        first = jnp.cumsum(before, -1)[..., :-1]
        rest = jnp.sum(after, -1, keepdims=True) - jnp.cumsum(after, -1)[..., :-1]
        return jax.nn.logsumexp(first + rest, axis=-1) - jnp.log(value.shape[-1] - 1.0)


def change_point(size: int) -> Variant:
    """Hard: the rate changes by a third, or near an end."""
    prior = {"early": dist.Gamma(2.0, 0.5), "late": dist.Gamma(2.0, 0.5)}
    model = tr.Model(prior, lambda p: Changing(p["early"], p["late"], size))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        early = log_uniform(rng, 1.0, 6.0)
        late, place = early * (1.33 if hard else log_uniform(rng, 1.8, 4.0)), rng.integers(size // 5, size - size // 5)
        return {"y": rng.poisson(np.where(np.arange(size) < place, early, late)).astype(float)[None], "x": None}

    return variant("change point", f"Poisson counts at {size} times", model, draw, rows_of)


def autoregression(size: int) -> Variant:
    """y_t ~ N(c + a₁ y_{t−1} + a₂ y_{t−2} + b t, s). Hard: nearly a random walk."""
    prior = {
        "c": dist.Normal(0.0, 3.0), "a": dist.Normal(jnp.zeros(2), 0.7).to_event(1), "b": dist.Normal(0.0, 1.0),
        "s": POSITIVE,
    }  # fmt: skip
    model = tr.Model(prior, lambda p, x: dist.Normal(p["c"] + x["past"] @ p["a"] + p["b"] * x["time"], p["s"]))

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        a = np.array([0.95, 0.0] if hard else [rng.uniform(0.2, 0.6), rng.uniform(-0.3, 0.2)])
        y = [0.0, 0.0]
        for _ in range(size):
            y.append(0.3 + a @ [y[-1], y[-2]] + 0.7 * rng.standard_normal())
        whole = np.array(y)
        past = np.column_stack([whole[1:-1], whole[:-2]])
        return {"y": whole[2:], "x": {"past": past, "time": np.linspace(-1, 1, size)}}

    return variant("time series", f"autoregression, {size} times", model, draw, rows_of)


def random_walk(size: int) -> Variant:
    """y_t ~ N(level_t, s), a level that walks at random, not centred. Hard: steps far below the noise."""
    prior = {
        "start": dist.Normal(0.0, 3.0), "step": dist.HalfNormal(1.0), "s": POSITIVE,
        "z": dist.Normal(jnp.zeros(size), 1.0).to_event(1),
    }  # fmt: skip
    model = tr.Model(
        prior, lambda p, t: dist.Normal(p["start"] + p["step"] * jnp.cumsum(p["z"])[t.astype(int)], p["s"])
    )

    def draw(rng: np.random.Generator, hard: bool) -> Numbers:
        level = np.cumsum((0.05 if hard else 0.5) * rng.standard_normal(size))
        return {"y": level + 0.7 * rng.standard_normal(size), "x": np.arange(float(size))}

    return variant("time series", f"local level, {size} times", model, draw, rows_of)


@functools.cache
def variants() -> dict[str, Variant]:
    """All variants of this file, by name."""
    every = [
        *(regression(label, rows, d) for label, rows, d in (
            ("normal", 60, 4), ("Student's t", 80, 3), ("logistic", 150, 5), ("Poisson", 100, 4),
            ("negative binomial", 120, 3), ("gamma", 100, 4), ("ordered", 150, 3), ("logistic", 1000, 12),
        )),
        softmax(150, 3), real_table("diabetes", "normal", 120, 5), real_table("diabetes", "Student's t", 60, 8),
        real_table("breast_cancer", "logistic", 150, 3), real_table("wine", "logistic", 100, 4),
        varying_intercepts("normal", 120, 10), varying_intercepts("logistic", 200, 12),
        varying_intercepts("Poisson", 100, 8), varying_intercepts("negative binomial", 150, 10), meta_analysis(9),
        item_response(25, 6), mixture(150), survival(120, 3), change_point(40), autoregression(60), random_walk(30),
    ]  # fmt: skip
    return {each.name: each for each in every}
