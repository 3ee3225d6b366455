"""Correlated effects of groups: their density, prior and names against exact answers, and a simulated table."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats

import tractable as tr
from tractable.core.errors import DataError, ModelError, TractableWarning
from tractable.core.model import log_density
from tractable.tables.effects import effects
from tractable.tables.encoder import Encoder
from tractable.tables.regression import Regression, made_from, regression

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(0)
N, CLINICS = 60, 4
CLINIC = np.arange(N) % CLINICS
DOSE, AGE = RNG.normal(2.0, 1.5, N), RNG.normal(50.0, 10.0, N)
Y = 1 + DOSE + np.array([-2.0, 0.0, 1.0, 3.0])[CLINIC] * (1 - 0.3 * DOSE) + RNG.normal(size=N)
TABLE = pd.DataFrame({"y": Y, "dose": DOSE, "age": AGE, "clinic": np.array(list("ABCD"))[CLINIC]})
ONE = "clinic: correlation[intercept, dose]"
TRUE = np.random.default_rng(6).multivariate_normal([0, 0], [[1.0, -0.56], [-0.56, 0.64]], 100)  # of ``simulated``
THREE = ["[dose, age]", "[intercept, dose]", "[intercept, age]"]  # the lower triangle, with the intercept last


def effects_of(fitted: Regression, numbers: dict[str, float]) -> np.ndarray:
    """A vector of effects with some numbers by name, and 0 elsewhere."""
    names = fitted.model.labels["effects"]
    out = np.zeros(len(names))
    out[[names.index(name) for name in numbers]] = list(numbers.values())
    return out


@pytest.mark.test
@pytest.mark.parametrize("concentration", [1.0, 2.5])
@pytest.mark.parametrize("slopes", [["dose"], ["dose", "age"]])
def test_density_is_the_multivariate_normal(slopes: list[str], concentration: float):
    """Prior of (u, Ω) at given sds: N(u; 0, diag(s) Ω diag(s)) and the LKJ density, det(Ω)^(η−1) over its integral."""
    size = 1 + len(slopes)
    priors = {"clinic: correlation": dist.LKJ(size, concentration)} if concentration != 1 else None
    text = f"(1 + {' + '.join(slopes)} | clinic)"
    fitted, apart = (
        regression(f"y ~ {t}", TABLE, priors=p) for t, p in ((text, priors), (text.replace("|", "||"), None))
    )
    terms = ["1", *slopes]
    sds = dict(zip(terms, [1.3, 0.4, 0.02], strict=False))
    rho = dict(zip(THREE, [0.5, -0.7, -0.1], strict=True)) if size == 3 else {"[intercept, dose]": -0.7}
    u = {f"{t}|clinic[{g}]": float(RNG.normal()) * sds[t] for t in terms for g in [*"ABCD", "new"]}
    common = {f"sd({t}|clinic)": sds[t] for t in terms} | u
    told = effects_of(fitted, common | {f"clinic: correlation{pair}": value for pair, value in rho.items()})
    got = fitted.model.prior["effects"].log_prob(told) - apart.model.prior["effects"].log_prob(
        effects_of(apart, common)
    )
    omega = np.eye(size)
    for pair, value in rho.items():
        i, j = ([t.replace("intercept", "1") for t in terms].index(name.replace("intercept", "1"))
                for name in pair.strip("[]").split(", "))  # fmt: skip
        omega[i, j] = omega[j, i] = value
    s = np.array([sds[t] for t in terms])
    rows = np.array([[u[f"{t}|clinic[{g}]"] for t in terms] for g in [*"ABCD", "new"]])
    expected = stats.multivariate_normal(cov=omega * np.outer(s, s)).logpdf(rows).sum()
    expected -= stats.norm.logpdf(rows, 0, s).sum()
    expected += (concentration - 1) * np.linalg.slogdet(omega)[1] - log_integral(size, concentration)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def log_integral(size: int, concentration: float) -> float:
    """log ∫ det(Ω)^(η−1) dΩ over all correlation matrices, on a grid.

    For two terms Ω has one number. For three, with correlations a, b of the first and a partial correlation c of the
    others, det(Ω) = (1 − a²)(1 − b²)(1 − c²) and dΩ = √((1 − a²)(1 − b²)) da db dc.
    """
    grid = np.linspace(-1, 1, 200_001)
    room = np.maximum(1 - grid**2, 0.0)
    one = np.trapezoid(room ** (concentration - 1), grid)
    return float(
        np.log(one) if size == 2 else np.log(one) + 2 * np.log(np.trapezoid(room ** (concentration - 0.5), grid))
    )


@pytest.mark.parametrize("concentration", [1.0, 3.0])
@pytest.mark.parametrize("size", [2, 3])
def test_prior_draws_have_the_marginal_of_lkj(size: int, concentration: float):
    """Each correlation is 2b − 1, b ~ Beta(η − 1 + K/2, η − 1 + K/2); u given its sd and Ω is normal."""
    slopes = ["dose", "age"][: size - 1]
    text, priors = f"y ~ (1 + {' + '.join(slopes)} | clinic)", {"clinic: correlation": dist.LKJ(size, concentration)}
    model = regression(text, TABLE, priors=priors if concentration != 1 else None).model
    drawn = np.asarray(model.prior["effects"].sample(jax.random.key(1), (4000,)))
    names = model.labels["effects"]
    shape = concentration - 1 + size / 2
    for name in [name for name in names if "correlation" in name]:
        b = (1 + drawn[:, names.index(name)]) / 2
        assert stats.kstest(b, stats.beta(shape, shape).cdf).pvalue > 1e-6
    of = {name: drawn[:, names.index(name)] for name in names}
    for group in ("A", "new"):
        intercept, slope = (of[f"{t}|clinic[{group}]"] / of[f"sd({t}|clinic)"] for t in ("1", "dose"))
        assert stats.kstest(intercept, "norm").pvalue > 1e-6
        innovation = (slope - of[ONE] * intercept) / np.sqrt(1 - of[ONE] ** 2)
        assert stats.kstest(innovation, "norm").pvalue > 1e-6
        assert abs(stats.spearmanr(innovation, intercept).statistic) < 4.5 / np.sqrt(4000)


@pytest.mark.parametrize("noise", [50.0, 1.0, 0.01])
def test_coordinates_are_a_bijection_and_their_jacobian(noise: float):
    """With groups that are centred, non-centred, or centred in one term only."""
    table = TABLE.assign(y=Y + noise * np.random.default_rng(2).normal(size=N))
    model = regression("y ~ dose + (1 + dose + age | clinic) + (1 || clinic)", table).model
    params = model.sample_prior(jax.random.key(3))
    position = model.position_of(params)
    np.testing.assert_allclose(model.params(position)["effects"], params["effects"], rtol=1e-6, atol=1e-9)
    unconstrained = model.unconstrain(params)
    expected = np.linalg.slogdet(jax.jacrev(model.values)(position))[1]
    np.testing.assert_allclose(model.log_jacobian(unconstrained, params), expected, rtol=1e-8)
    assert bool(model.prior["effects"].support(params["effects"]))
    names = model.labels["effects"]
    wrong = params["effects"].at[names.index(ONE)].set(1.5)
    assert not bool(model.prior["effects"].support(wrong))


def test_bars_without_correlations_are_one_model():
    """``||`` and two terms of one factor: independent effects, to the last digit."""
    texts = ("(1 + dose || clinic)", "(1 | clinic) + (0 + dose | clinic)", "(0 + dose | clinic) + (1 | clinic)")
    fitted = [regression(f"y ~ dose + {text}", TABLE) for text in texts]
    densities, names = [], [sorted(each.model.names) for each in fitted]
    for each in fitted[:2]:
        params = fitted[0].model.sample_prior(jax.random.key(4))
        density = log_density(each.model, each.data.arrays())
        densities.append(float(density(each.model.unconstrain(params))))
    assert densities[0] == densities[1] and names[0] == names[1] == names[2]
    assert not any("correlation" in name for name in names[0])


def best_linear(
    y: np.ndarray, x: np.ndarray, z: np.ndarray, prior: tuple, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """β by generalised least squares with a normal prior, and u by best linear prediction.

    V = noise² I + Z G Zᵀ,   β = (Xᵀ V⁻¹ X + P)⁻¹ (Xᵀ V⁻¹ y + P m),   u = G Zᵀ V⁻¹ (y − X β)
    """
    mean, precision, g = prior
    inverse = np.linalg.inv(noise**2 * np.eye(len(y)) + z @ g @ z.T)
    beta = np.linalg.solve(x.T @ inverse @ x + precision, x.T @ inverse @ y + precision @ mean)
    return beta, g @ z.T @ inverse @ (y - x @ beta)


def test_effects_given_the_variances_are_the_best_linear_ones():
    """The density is quadratic in (β, u) at given sds, correlation and noise: its peak by one Newton step."""
    fitted = regression("y ~ dose + (1 + dose | clinic)", TABLE)
    sds, rho, noise = np.array([1.7, 0.6]), -0.8, 1.1
    start = effects_of(fitted, {"sd(1|clinic)": sds[0], "sd(dose|clinic)": sds[1], ONE: rho})
    names = fitted.model.labels["effects"]
    free = np.array([i for i, name in enumerate(names) if "sd(" not in name and "correlation" not in name])
    density = log_density(fitted.model, fitted.data.arrays(), jacobian=False)

    def at(values: jax.Array) -> jax.Array:
        params = {"effects": jnp.asarray(start).at[free].set(values), "noise": jnp.array(noise)}
        return density(fitted.model.unconstrain(params))

    zero = jnp.zeros(len(free))
    peak = np.linalg.solve(-jax.jit(jax.hessian(at))(zero), jax.jit(jax.grad(at))(zero))
    x, one_hot, s = np.column_stack([np.ones(N), DOSE]), np.eye(CLINICS)[CLINIC], Y.std()
    g = np.kron(np.outer(sds, sds) * np.array([[1, rho], [rho, 1]]), np.eye(CLINICS))
    z = np.concatenate([one_hot, one_hot * DOSE[:, None]], 1)
    # The prior is of the intercept of a mean row, a + mean(dose) b, and of b.
    rows = np.array([[1.0, DOSE.mean()], [0.0, 1.0]])
    scale = 2.5 * s / np.array([1.0, DOSE.std()])
    precision = rows.T @ np.diag(1 / scale**2) @ rows
    mean = np.linalg.solve(rows, np.array([Y.mean(), 0.0]))
    beta, u = best_linear(Y, x, z, (mean, precision, g), noise)
    expected = effects_of(fitted, dict(zip(["Intercept", "dose"], beta, strict=True)) | dict(
        zip([f"{t}|clinic[{c}]" for t in ("1", "dose") for c in "ABCD"], u, strict=True)))  # fmt: skip
    np.testing.assert_allclose(peak, expected[free], atol=1e-8)
    wrong = best_linear(Y, x, z, (mean, precision, g * np.kron(np.eye(2), np.eye(CLINICS))), noise)[1]
    assert np.abs(wrong - u).max() > 0.01  # the law sees a correlation that is left out


@pytest.fixture(scope="module")
def simulated() -> tuple[Regression, tr.Posterior]:
    """A hundred clinics of eight rows whose intercepts and slopes have the correlation −0.7."""
    rng = np.random.default_rng(5)
    clinic = np.repeat(np.arange(100), 8)
    dose = rng.normal(size=clinic.size)
    y = 2 + TRUE[clinic, 0] + (0.5 + TRUE[clinic, 1]) * dose + rng.normal(0, 1.0, clinic.size)
    table = pd.DataFrame({"y": y, "dose": dose, "clinic": [f"c{i:03d}" for i in clinic]})
    fitted = regression("y ~ dose + (1 + dose | clinic)", table)
    return fitted, tr.infer(
        fitted.model, fitted.data, tr.NUTS(draws=250, warmup=250), seed=0, progress=False, verify=None
    )


@pytest.mark.computes
def test_a_correlation_is_recovered_and_told_by_name(simulated):
    fitted, posterior = simulated
    told = posterior.summary(level=0.99)
    true = {ONE: -0.7, "sd(1|clinic)": 1.0, "sd(dose|clinic)": 0.8, "Intercept": 2.0, "dose": 0.5, "noise": 1.0}
    for name, value in true.items():
        low, high = told.loc[name, ["0.5%", "99.5%"]]
        assert low < value < high, (name, low, high)
    # Of eight rows a group's own intercept and slope are known to about 0.35.
    u = posterior.mean()["effects"][[fitted.model.labels["effects"].index(f"1|clinic[c{i:03d}]") for i in range(100)]]
    assert np.sqrt(np.mean((np.asarray(u) - TRUE[:, 0]) ** 2)) < 0.45
    assert told.loc[ONE, "sd"] < 0.15 and told["r_hat"].max() < 1.05
    found = effects(posterior, fitted.encoder)
    assert found is not None and list(found.index) == ["dose", "sd(1|clinic)", "sd(dose|clinic)", ONE]
    drawn = posterior.to_arviz(groups=["posterior"])["posterior"]["clinic: correlation"]
    assert drawn.sizes["clinic: correlation_level"] == 1
    np.testing.assert_allclose(
        float(drawn.sel({"clinic: correlation_level": "intercept, dose"}).mean()), told.loc[ONE, "mean"], rtol=1e-5
    )


@pytest.mark.computes
def test_a_missing_clinic_is_the_population_and_a_new_one_a_draw(simulated):
    """η is β₀ + β₁ d for None; for a new name Var(η) is that of β₀ + β₁ d plus E[s₀² + 2 ρ s₀ s₁ d + s₁² d²]."""
    _, posterior = simulated
    draws = {n: np.ravel(posterior.values[..., i]) for i, n in enumerate(posterior.names)}
    dose = np.array([-2.0, 0.0, 2.0])
    common = draws["Intercept"][:, None] + draws["dose"][:, None] * dose
    found = posterior.predict(pd.DataFrame({"dose": dose, "clinic": [None] * 3}))
    np.testing.assert_allclose(found.mean, common.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.epistemic, common.std(0), rtol=1e-3)
    with pytest.warns(TractableWarning, match="'Ulm': their effects are drawn"):
        found = posterior.predict(pd.DataFrame({"dose": dose, "clinic": ["Ulm"] * 3}))
    s0, s1, rho = draws["sd(1|clinic)"], draws["sd(dose|clinic)"], draws[ONE]
    between = np.mean([s0**2 + 2 * rho * s0 * s1 * d + s1**2 * d**2 for d in dose], axis=1)
    ratio = found.epistemic / np.sqrt(common.var(0) + between)
    # The sd of a sd from n normal draws is 1/√(2n); 500 of the 1,000 draws are taken to be independent.
    assert np.all(np.abs(np.log(ratio)) < 4.5 / np.sqrt(2 * 500)), ratio
    apart = np.sqrt(common.var(0) + np.mean([s0**2 + s1**2 * d**2 for d in dose], axis=1))
    assert np.abs(np.log(found.epistemic / apart)).max() > 4.5 / np.sqrt(1000)  # drawn together, not one by one


def test_names_of_levels_and_classes():
    """Levels of text within a name have no brackets; each class has correlations of its own."""
    table = TABLE.assign(drug=np.array(list("pqr"))[np.arange(N) // 4 % 3], k=np.arange(N) // 2 % 3)
    names = regression("y ~ (1 + drug | clinic)", table).encoder.formula.correlations
    assert names == [
        f"clinic: correlation[{pair}]" for pair in ("drug=q, drug=r", "intercept, drug=q", "intercept, drug=r")
    ]
    own = {"2.clinic: correlation": dist.LKJ(2, 4.0)}
    model = regression("k ~ (1 + dose | clinic)", table, family="categorical", priors=own).model
    assert [name for name in model.names if "correlation" in name] == [f"1.{ONE}", f"2.{ONE}"]
    assert [model.prior[c]["effects"].plan.correlations[0].concentration for c in "12"] == [1.0, 4.0]


@pytest.mark.test
def test_a_saved_formula_keeps_its_bars():
    priors = {"clinic: correlation": dist.LKJ(2, 2.0)}
    for text in ("y ~ (1 + dose | clinic)", "y ~ (1 + dose || clinic)"):
        encoder = regression(text, TABLE).encoder
        again = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
        assert again.formula.correlations == encoder.formula.correlations == [ONE] * ("||" not in text)
    written = {"clinic: correlation": ("LKJ", {"concentration": 2.0, "dimension": 2})}
    model = made_from(regression("y ~ (1 + dose | clinic)", TABLE, priors=priors).encoder.to_dict(), written)
    assert float(model.prior["effects"].plan.correlations[0].concentration) == 2.0


SENTENCES = {
    "y ~ (dose ||| clinic)": (None, DataError, "cannot be read"),
    "y ~ (1 + dose | clinic)": (dist.LKJ(3, 1.0), ModelError, r"expects dist.LKJ\(2, concentration\)"),
    "y ~ (1 + dose || clinic)": (dist.LKJ(2, 1.0), ModelError, "no such parameter"),
    "y ~ (1 + age | clinic)": (dist.Uniform(-1, 1), ModelError, r"expects dist.LKJ\(2, concentration\)"),
}


@pytest.mark.quick
@pytest.mark.parametrize("text", SENTENCES)
def test_sentences(text: str):
    prior, error, match = SENTENCES[text]
    with pytest.raises(error, match=match):
        regression(text, TABLE, priors=None if prior is None else {"clinic: correlation": prior})
