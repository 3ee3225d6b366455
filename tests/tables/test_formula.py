"""Regression by a formula: its density against SciPy's, groups against the closed form, and what new rows become."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pyarrow
import pytest
from commands import run
from scipy import stats

import tractable as tr
from tractable.core.errors import ArgumentError, CheckpointError, DataError, ModelError, TractableWarning
from tractable.core.model import log_density
from tractable.glm.inla import learnable_blocks
from tractable.tables.encoder import Encoder, encode
from tractable.tables.regression import Effects, Regression, regression

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(0)
N, SCHOOLS = 40, ["A", "B", "C", "D"]
SCHOOL = RNG.integers(0, 4, N)
X = RNG.normal(3.0, 2.0, N)
Z = RNG.choice(["a", "b", "c"], N)
Y = 1 + 2 * X + 1.5 * (Z == "b") + np.array([-2.0, 0.0, 1.0, 3.0])[SCHOOL] + RNG.normal(size=N)
TABLE = pd.DataFrame({"y": Y, "x": X, "z": Z, "school": np.array(SCHOOLS)[SCHOOL]})
DESIGN = np.stack([np.ones(N), X, Z == "b", Z == "c", X * (Z == "b"), X * (Z == "c")], 1)


@pytest.fixture(scope="module")
def grouped() -> Regression:
    return regression("y ~ x + (1 + x || school)", TABLE)


def posterior_density(fitted: Regression, params: dict) -> float:
    """log p(θ) + log p(y | θ) of the user's parameters."""
    density = log_density(fitted.model, fitted.data.arrays(), jacobian=False)
    return float(density(fitted.model.unconstrain(params)))


@pytest.mark.test
def test_density_is_that_of_the_design_written_by_hand():
    """Interactions and levels; default priors; no group: what ``generalised_linear`` is, in the table's units."""
    fitted = regression("y ~ x*z", TABLE)
    assert fitted.model.names == ["Intercept", "x", "z[b]", "z[c]", "x:z[b]", "x:z[c]", "noise"]
    np.testing.assert_allclose(fitted.data.given, DESIGN)
    beta, noise, s = np.array([0.5, 1.5, -1.0, 2.0, 0.3, -0.2]), 1.3, Y.std()
    wide = 2.5 * s / DESIGN[:, 1:].std(0)
    expected = stats.norm.logpdf(beta[1:], 0, wide).sum() + stats.expon.logpdf(noise, scale=s)
    expected += stats.norm.logpdf(beta[0] + DESIGN[:, 1:].mean(0) @ beta[1:], Y.mean(), 2.5 * s)
    expected += stats.norm.logpdf(Y, DESIGN @ beta, noise).sum()
    got = posterior_density(fitted, {"effects": jnp.array(beta), "noise": jnp.array(noise)})
    np.testing.assert_allclose(got, expected, rtol=1e-10)


FAMILIES = {
    "poisson": lambda eta, y: stats.poisson.logpmf(y, np.exp(eta)),
    "bernoulli": lambda eta, y: stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-eta))),
}


@pytest.mark.test
@pytest.mark.parametrize("family", FAMILIES)
def test_families_and_offset(family: str):
    y = (RNG.poisson(1.0, N) > 0).astype(int) if family == "bernoulli" else RNG.poisson(3.0, N)
    fitted = regression("k ~ 0 + x + offset(log(x + 9))", TABLE.assign(k=y), family=family)
    params = {"effects": jnp.array([0.2])}
    got = fitted.model.log_likelihoods(params, fitted.data.rows)
    np.testing.assert_allclose(got, FAMILIES[family](0.2 * X + np.log(X + 9), y), rtol=1e-9)


@pytest.mark.test
def test_ordered_grades_have_cutpoints_of_a_mean_row():
    grade = pd.cut(Y, 3, labels=["low", "mid", "high"])
    with pytest.warns(TractableWarning, match="3 categories in order: family='ordered'"):
        fitted = regression("grade ~ x", TABLE.assign(grade=grade))
    assert fitted.model.names == ["cutpoints[0]", "cutpoints[1]", "x"]
    params = {"effects": jnp.array([0.7]), "cutpoints": jnp.array([-1.0, 1.0])}
    got = fitted.model.log_likelihoods(params, fitted.data.rows)
    below = 1 / (1 + np.exp(-(np.array([-np.inf, -1.0, 1.0, np.inf])[:, None] - 0.7 * (X - X.mean()))))
    np.testing.assert_allclose(got, np.log(np.diff(below, axis=0)[grade.codes, np.arange(N)]), rtol=1e-9)


def in_two_tellings(fitted: Regression, data: tr.Data) -> float:
    """log p(θ, y) less what Bayes' rule says of it with the groups' effects integrated out; 0 where both agree.

    p(β, sd, u, y) = p(β, sd) N(y; Xβ, noise² I + Z S Zᵀ) p(u | β, sd, y),  the last a normal in closed form.
    """
    beta, sds, noise = np.array([0.5, 1.5]), np.array([1.2, 0.4]), 1.1
    u = np.random.default_rng(1).normal(size=(2, 5))
    params = {"effects": jnp.concatenate([beta, sds, u.ravel()]), "noise": jnp.array(noise)}
    density = log_density(fitted.model, data.arrays(), jacobian=False)
    whole = float(density(fitted.model.unconstrain(params)))
    s, one_hot = Y.std(), np.eye(5)[SCHOOL]
    z = np.concatenate([one_hot, one_hot * X[:, None]], 1)
    prior = np.repeat(sds**2, 5)
    precision = np.diag(1 / prior) + z.T @ z / noise**2
    left = Y - beta[0] - beta[1] * X
    given = stats.multivariate_normal(np.linalg.solve(precision, z.T @ left) / noise**2, np.linalg.inv(precision))
    told = stats.multivariate_normal(cov=noise**2 * np.eye(N) + (z * prior) @ z.T).logpdf(left)
    told += given.logpdf(u.ravel()) + stats.expon.logpdf(noise, scale=s)
    told += stats.norm.logpdf(beta[0] + X.mean() * beta[1], Y.mean(), 2.5 * s)
    told += stats.norm.logpdf(beta[1], 0, 2.5 * s / X.std())
    told += stats.halfnorm.logpdf(sds, scale=2.5 * s / np.array([1, X.std()])).sum()
    return whole - told


def test_groups_agree_with_the_closed_form(grouped: Regression):
    assert abs(in_two_tellings(grouped, grouped.data)) < 1e-8


def shifted(given: dict) -> dict:
    return given | {"group": given["group"] + (given["group"] % 5 < 3)}


MUTANTS = {
    "the next group": shifted,
    "another term's groups": lambda given: given | {"group": given["group"][:, ::-1]},
    "rows out of step": lambda given: given | {"group": np.roll(given["group"], 1, 0)},
    "no slope": lambda given: given | {"z": np.ones_like(given["z"])},
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_group_is_seen(grouped: Regression, mutant: str):
    given = MUTANTS[mutant](grouped.data.given)
    assert abs(in_two_tellings(grouped, tr.Data(grouped.data.y, given))) > 0.1


@pytest.mark.parametrize("rows", ["few", "many"])
def test_coordinates_are_a_bijection_and_their_jacobian(rows: str):
    """Where groups' rows say little all effects are non-centred, where they say much all seen are centred."""
    noise = {"few": 50.0, "many": 0.01}[rows]
    table = TABLE.assign(y=TABLE["y"] + noise * np.random.default_rng(2).normal(size=N))
    model = regression("y ~ x + (1 + x || school)", table).model
    plan = model.prior["effects"].plan
    assert plan.centred[0].tolist() == [rows == "many"] * 4 + [False]
    params = model.sample_prior(jax.random.key(3))
    position = model.position_of(params)
    np.testing.assert_allclose(model.params(position)["effects"], params["effects"], rtol=1e-8)
    unconstrained = model.unconstrain(params)
    expected = np.linalg.slogdet(jax.jacrev(model.values)(position))[1]
    np.testing.assert_allclose(model.log_jacobian(unconstrained, params), expected, rtol=1e-9)


def test_prior_draws_are_of_the_prior(grouped: Regression):
    """Each draw's intercept of a mean row, slope, sd and u/sd is standardised by its prior: uniform ranks."""
    prior = grouped.model.prior["effects"]
    drawn = np.asarray(prior.sample(jax.random.key(4), (4000,)))
    s = Y.std()
    centre = (drawn[:, 0] + X.mean() * drawn[:, 1] - Y.mean()) / (2.5 * s)
    ratio = drawn[:, 4] / drawn[:, 2]
    for standard in (centre, drawn[:, 1] * X.std() / (2.5 * s), ratio):
        assert stats.kstest(standard, "norm").pvalue > 1e-6
    assert stats.kstest(drawn[:, 2] / (2.5 * s), "halfnorm").pvalue > 1e-6


def test_nuts_against_quadrature():
    """A random intercept: β and u are integrated out in closed form, sd and noise over a grid."""
    fitted = regression("y ~ x + (1|school)", TABLE)
    posterior = tr.infer(fitted.model, fitted.data, tr.NUTS(draws=500, warmup=300), verify=None, progress=False)
    told = posterior.summary().loc[["x", "1|school[A]", "sd(1|school)"]]
    s = Y.std()
    # In the intercept of a mean row, slope and the four effects.
    a = np.concatenate([np.ones((N, 1)), (X - X.mean())[:, None], np.eye(4)[SCHOOL]], 1)
    log_weights, means, squares = [], [], []
    sds, noises = np.exp(np.linspace(-2.5, 3.5, 80)), np.exp(np.linspace(-0.7, 0.7, 40))
    for sd in sds:
        prior = np.array([(2.5 * s) ** 2, (2.5 * s / X.std()) ** 2, *[sd**2] * 4])
        for noise in noises:
            precision = np.diag(1 / prior) + a.T @ a / noise**2
            factor = np.linalg.cholesky(precision)
            mean = np.linalg.solve(precision, a.T @ (Y - Y.mean()) / noise**2)
            log = 0.5 * mean @ precision @ mean - np.log(np.diag(factor)).sum() - 0.5 * np.log(prior).sum()
            log -= N * np.log(noise) + 0.5 * np.sum((Y - Y.mean()) ** 2) / noise**2
            log += stats.halfnorm.logpdf(sd, scale=2.5 * s) + stats.expon.logpdf(noise, scale=s) + np.log(sd * noise)
            log_weights.append(log)
            means.append([mean[1], mean[2], sd])
            variance = np.diag(np.linalg.inv(precision))
            squares.append([variance[1] + mean[1] ** 2, variance[2] + mean[2] ** 2, sd**2])
    weights = np.exp(np.array(log_weights) - np.max(log_weights))
    mean, square = (np.average(each, axis=0, weights=weights) for each in (means, squares))
    exact = np.sqrt(square - mean**2)
    tolerance = 4.5 * told["mcse_mean"]
    assert np.all(np.abs(told["mean"] - mean) < tolerance), (told["mean"], mean)
    np.testing.assert_allclose(told["sd"][:2], exact[:2], rtol=0.25)
    named = posterior.to_arviz(groups=["posterior"], draws=2)["posterior"]["sd(1|school)"]
    np.testing.assert_array_equal(named, posterior.values[:, [0, 499], posterior.names.index("sd(1|school)")])
    new = TABLE.head(2).assign(school=["A", "Z"])
    with pytest.warns(TractableWarning, match="'Z'"):
        found = posterior.predict(fitted.rows(new.drop(columns="y")))
    assert found.epistemic[1] > 2 * found.epistemic[0]  # of a school never seen


@pytest.mark.test
def test_rows_are_those_of_training_and_of_a_saved_encoder():
    """What splines and scales learnt holds for other rows, and survives JSON to the last bit."""
    fitted = regression("y ~ bs(x, df=5) + scale(x):z + (0 + z | school)", TABLE)
    again = Encoder.from_dict(json.loads(json.dumps(fitted.encoder.to_dict())))
    some = TABLE.iloc[[3, 17]].drop(columns="y")
    for rows in (fitted.rows(some), encode(again, some).given):
        for name, values in rows.items():
            np.testing.assert_array_equal(values, fitted.data.given[name][[3, 17]])
    basis = fitted.data.given["x"][:, 1:6]
    assert fitted.encoder.features[:3] == ["Intercept", "bs(x, df=5)[0]", "bs(x, df=5)[1]"]
    # A cubic with two knots inside: it holds any cubic of x.
    cubic = np.stack([np.ones(N), X, X**2, X**3], 1)
    fit = np.linalg.lstsq(np.column_stack([np.ones(N), basis]), cubic, rcond=None)[0]
    np.testing.assert_allclose(np.column_stack([np.ones(N), basis]) @ fit, cubic, atol=1e-8)
    assert [term.name for term in fitted.encoder.formula.terms] == ["z[a]|school", "z[b]|school", "z[c]|school"]


@pytest.mark.quick
def test_splines_and_polynomials_outside_of_training_are_told(recwarn):
    fitted = regression("y ~ bs(x, df=5) + poly(w, 2) + school", TABLE.assign(w=np.arange(N) % 7))
    new = TABLE.iloc[:3].assign(w=[0, 3, 6], x=[X.min(), X.max(), 3.0])
    encode(fitted.encoder, new)
    assert not recwarn.list
    with pytest.warns(
        TractableWarning, match=r"In 2 rows 'x' lies outside of .* training: bs\(x, df=5\) is extrapolated"
    ):
        encode(fitted.encoder, new.assign(x=[X.min() - 0.1, X.max() + 1, 3.0]))
    with pytest.warns(TractableWarning, match=r"In 1 row 'w' lies outside of the 0 to 6 of training: poly\(w, 2\)"):
        encode(fitted.encoder, new.assign(w=[0, 3, 7]))


@pytest.mark.test
def test_priors_by_name():
    priors = {"z": dist.Normal(1.0, 0.5), "z[c]": dist.Laplace(0.0, 2.0), "sd(1|school)": dist.HalfCauchy(1.0)}
    plain = regression("y ~ x + z + (1|school)", TABLE).model
    own = regression("y ~ x + z + (1|school)", TABLE, priors=priors | {"noise": dist.HalfNormal(3.0)}).model
    params = plain.sample_prior(jax.random.key(5))
    b, c, sd, s = *np.asarray(params["effects"])[2:5], Y.std()
    expected = stats.norm.logpdf(b, 1, 0.5) + stats.laplace.logpdf(c, 0, 2) + stats.halfcauchy.logpdf(sd)
    expected -= stats.norm.logpdf([b, c], 0, 2.5 * s / np.array([(Z == "b").std(), (Z == "c").std()])).sum()
    expected -= stats.halfnorm.logpdf(sd, scale=2.5 * s)
    expected += stats.halfnorm.logpdf(params["noise"], scale=3) - stats.expon.logpdf(params["noise"], scale=s)
    np.testing.assert_allclose(own.log_prior(params) - plain.log_prior(params), expected, rtol=1e-9)


def test_many_groups_stay_numbers_of_groups():
    """10⁴ groups × 10⁵ rows: a one-hot matrix of them would be 8 GB."""
    group = np.random.default_rng(6).integers(0, 10_000, 100_000)
    table = pd.DataFrame({"y": np.random.default_rng(7).normal(size=len(group)), "g": group})
    fitted = regression("y ~ 1 + (1|g)", table)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(fitted.data.rows)) < 3e6
    u = fitted.model.sample_prior(jax.random.key(8))
    effects = np.asarray(u["effects"])
    got = fitted.model.log_likelihoods(u, fitted.data.rows)
    place = np.unique(group, return_inverse=True)[1]
    np.testing.assert_allclose(got, stats.norm.logpdf(table["y"], effects[0] + effects[2 + place], u["noise"]))


SENTENCES = {
    "y ~ w": "'w' is not a column",
    "y ~ x +": "cannot be read",
    "log(y) ~ x": "one column before its ~",
    "y ~ x | school": "outside brackets",
    "y ~ system(x)": "calls 'system'; it may call only",
    "y ~ logg(x)": "Did you mean 'log'",
    "y ~ x + (1|exp(x))": "expected columns of the table",
    "mvbind(y) | cens(z) ~ x": "write several targets as 'mvbind",
    "mvbind(y, z) ~ x": "Several targets must be numbers, but 'z' is text",
    "mvbind(y, x) ~ y": "explains 'y' by itself",
    "mvbind(y, x) ~ x": "explains 'x' by itself",
}


@pytest.mark.quick
@pytest.mark.parametrize("formula", SENTENCES)
def test_sentences_of_formulas(formula: str):
    with pytest.raises(DataError, match=SENTENCES[formula].replace("(", r"\(")):
        regression(formula, TABLE)


@pytest.mark.quick
@pytest.mark.parametrize("when", [["2021-03-01", "2021-03-02"], pd.to_datetime(["2021-03-01", "2021-03-02"])])
def test_dates_in_a_formula_are_refused(when):
    table = pd.DataFrame({"y": np.arange(8) - 0.5, "when": list(when) * 4})
    with pytest.raises(DataError, match="'when' is a date, and a formula takes numbers"):
        regression("y ~ when", table)
    assert regression("y ~ (1|when)", table).data.size == 8


@pytest.mark.quick
def test_tables_of_other_libraries():
    table = pd.DataFrame({"y": np.arange(8) - 0.5, "x": [1.0, 4.0] * 4, "z": ["a", "b", "b", "c"] * 2})
    expected, got = (regression("y ~ x + z", each).data.given for each in (table, pyarrow.Table.from_pandas(table)))
    np.testing.assert_array_equal(expected, got)
    with pytest.raises(DataError, match="Expected a table of pandas, polars or Arrow; got dict"):
        regression("y ~ x", {"y": [1.0], "x": [2.0]})
    with pytest.raises(ArgumentError, match="Did you mean 'family'"):
        regression("y ~ x", table, famliy="normal")  # pyright: ignore[reportCallIssue]


BAD_PRIORS = {
    "misspelt": ({"sd(1|scool)": dist.HalfNormal(1.0)}, r"Did you mean 'sd\(1\|school\)'"),
    "negative sd": ({"sd(1|school)": dist.Normal(0.0, 1.0)}, "expects numbers above 0"),
    "positive effect": ({"x": dist.HalfNormal(1.0)}, "expects any numbers"),
    "negative noise": ({"noise": dist.Normal(0.0, 1.0)}, "support of Exponential"),
    "several numbers": ({"x": dist.Normal(jnp.zeros(2), 1.0)}, "a distribution of one number"),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", BAD_PRIORS)
def test_sentences_of_priors(case: str):
    priors, match = BAD_PRIORS[case]
    with pytest.raises(ModelError, match=match):
        regression("y ~ x + (1|school)", TABLE, priors=priors)


@pytest.mark.quick
def test_a_level_never_seen_is_refused():
    fitted = regression("y ~ z", TABLE)
    with pytest.raises(DataError, match=r"levels \(q\)"):
        fitted.rows(pd.DataFrame({"z": ["a", "q"]}))


def test_command_line(tmp_path):
    """A run predicts from its folder, where its table is gone, and its page tells effects by name."""
    path, folder, out = tmp_path / "t.csv", tmp_path / "run", tmp_path / "p.csv"
    TABLE.to_csv(path, index=False)
    options = ("--method", "laplace", "--verify", "none", "--held-out", 0, "--quiet", "--out", folder)
    done = run("fit", path, "--formula", "y ~ poly(x, 2) + z + (1|school)", *options)
    assert done.exit_code in (0, 3), done.output
    new = tmp_path / "new.csv"
    TABLE.drop(columns="y").to_csv(new, index=False)
    path.unlink()
    assert run("predict", folder, new, "--out", out).exit_code == 0
    assert np.corrcoef(pd.read_csv(out)["mean"], Y)[0, 1] > 0.95
    page = (folder / "report.html").read_text()
    assert "sd(1|school)" in page and "poly(x, 2)[0]" in page


def exact(priors: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of (effects, noise): normal given the noise, over which a grid sums; x of DESIGN, means and sds of
    the priors of the intercept of a mean row and of the other effects."""
    shift = np.eye(6)
    shift[0] -= np.append(0.0, DESIGN[:, 1:].mean(0)) @ shift  # effects of those whose intercept is a mean row's
    rows, (loc, scale), s = DESIGN @ shift, priors, Y.std()
    logs, means, squares = [], [], []
    grid = np.exp(np.linspace(-1.5, 3.5, 4000))
    for noise in grid:
        precision = np.diag(1 / scale**2) + rows.T @ rows / noise**2
        covariance = np.linalg.inv(precision)
        mean = covariance @ (loc / scale**2 + rows.T @ Y / noise**2)
        told = mean @ precision @ mean / 2 - np.linalg.slogdet(precision)[1] / 2
        logs.append(told - Y @ Y / noise**2 / 2 - N * np.log(noise) + np.log(noise) - noise / s)
        means.append(np.append(shift @ mean, noise))
        squares.append(np.append(np.diag(shift @ covariance @ shift.T), 0.0) + means[-1] ** 2)
    weight = np.exp(np.array(logs) - max(logs))
    mean, square = (np.average(each, axis=0, weights=weight) for each in (means, squares))
    return mean, np.sqrt(square - mean**2)


OWN = {"x": dist.Normal(1.0, 0.2), "Intercept": dist.Normal(3.0, 0.5)}


def nested_laplace_law(fitted: Regression, own: bool) -> None:
    posterior = tr.infer(fitted.model, fitted.data, tr.INLA(), verify=None, progress=False)
    s = Y.std()
    loc, scale = np.append(Y.mean(), np.zeros(5)), 2.5 * s / np.append(1.0, DESIGN[:, 1:].std(0))
    if own:
        loc[:2], scale[:2] = (3.0, 1.0), (0.5, 0.2)
    mean, sd = posterior.flat_moments
    right, width = exact((loc, scale))
    np.testing.assert_allclose((mean - right) / width, 0, atol=0.03)
    np.testing.assert_allclose(sd / width, 1, atol=0.03)


@pytest.mark.parametrize("own", [False, True])
def test_nested_laplace_is_exact(own: bool):
    """Of normal targets and no groups, with default priors and with normal ones of one's own."""
    nested_laplace_law(regression("y ~ x*z", TABLE, priors=OWN if own else None), own)


COORDINATES = {
    "means of default priors": lambda centre, scale: (0 * centre, scale),
    "sds of others": lambda centre, scale: (centre, scale[::-1].copy()),
}


@pytest.mark.parametrize("mutant", COORDINATES)
def test_a_wrong_prior_of_coordinates_is_seen(mutant: str):
    fitted = regression("y ~ x*z", TABLE, priors=OWN)
    plan = fitted.model.prior["effects"].plan
    wrong = Effects(plan._replace(normal=COORDINATES[mutant](*plan.normal)))
    model = replace(fitted.model, prior=fitted.model.prior | {"effects": wrong})
    with pytest.raises(AssertionError):
        nested_laplace_law(fitted._replace(model=model), own=True)


@pytest.mark.test
@pytest.mark.parametrize(
    "formula, family, priors, taken",
    [
        ("y ~ x", "normal", {"x": dist.Laplace(0.0, 1.0)}, False),
        ("y ~ x + (1|school)", "normal", {}, False),
        ("k ~ x + offset(log(x + 9))", "poisson", {}, True),
        ("grade ~ x", "ordered", {}, True),
    ],
)
def test_which_formulas_nested_laplace_takes(formula: str, family: str, priors: dict, taken: bool):
    table = TABLE.assign(k=RNG.poisson(3.0, N), grade=np.digitize(Y, [3.0, 9.0]))
    fitted = regression(formula, table, family=family, priors=priors)
    assert any(learnable_blocks(fitted.model, fitted.data)) == taken


def test_command_line_without_groups(tmp_path):
    """The same default as of a table without a formula."""
    path, folder = tmp_path / "t.csv", tmp_path / "run"
    TABLE.to_csv(path, index=False)
    done = run("fit", path, "--formula", "y ~ x", "--verify", "none", "--held-out", 0, "--quiet", "--out", folder)
    assert done.exit_code in (0, 3), done.output
    assert 'method = "inla"' in (folder / "settings.toml").read_text()


def test_a_saved_posterior_predicts_tables(tmp_path):
    """Without the model or the table; priors come back too, as the coordinates of effects depend on them."""
    priors = {"x": dist.Normal(1.0, 0.2), "noise": dist.HalfNormal(3.0)}
    fitted = regression("y ~ x + z", TABLE, priors=priors)
    posterior = tr.infer(fitted.model, fitted.data, tr.INLA(draws=200), verify=None, progress=False)
    posterior.save(tmp_path / "saved")
    new = TABLE.drop(columns=["y", "school"]).iloc[5:8]
    again, right = tr.load(tmp_path / "saved"), posterior.predict(fitted.rows(new))
    np.testing.assert_array_equal(again.values, posterior.values)
    for told in (again.predict(new), posterior.predict(new), posterior.predict(TABLE.iloc[5:8])):
        np.testing.assert_array_equal(told.mean, right.mean)
    new.to_csv(tmp_path / "new.csv", index=False)
    assert run("predict", tmp_path / "saved", tmp_path / "new.csv", "--out", tmp_path / "p.csv").exit_code == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["mean"], right.mean)


def test_a_prior_that_cannot_be_written_asks_for_the_model(tmp_path):
    mixed = dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), dist.Normal(jnp.zeros(2), jnp.array([1.0, 9.0])))
    fitted = regression("y ~ x", TABLE, priors={"x": mixed})
    tr.infer(fitted.model, fitted.data, tr.Laplace(), verify=None, progress=False).save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="load\\(path, model\\)"):
        tr.load(tmp_path / "saved")
    new = TABLE.drop(columns="y").head(2)
    assert tr.load(tmp_path / "saved", fitted.model).predict(new).mean.shape == (2,)


@pytest.mark.test
def test_missing_values_are_filled_in():
    """Numbers by the median; text by a level of its own where training lacked it, else by the most frequent."""
    table = TABLE.copy()
    table.loc[[3, 8], "x"] = np.nan
    table.loc[[5, 6], "z"] = None
    table.loc[0, "y"] = np.nan
    table["year"] = np.where(SCHOOL == 2, np.nan, SCHOOL)  # numbers that name groups
    formula = "y ~ x + z + scale(x) + (1|school) + (1|year)"
    with pytest.raises(DataError, match="missing"):
        regression(formula, table)
    fitted = regression(formula, table, missing="impute")
    by_hand = table.drop(index=0).reset_index(drop=True)
    by_hand["x"] = by_hand["x"].fillna(by_hand["x"].median())
    by_hand["z"] = by_hand["z"].fillna("missing")
    by_hand["year"] = by_hand["year"].map(lambda each: "missing" if np.isnan(each) else str(int(each)))
    right = regression(formula, by_hand)
    assert fitted.model.names == right.model.names and "z[missing]" in right.model.names
    jax.tree.map(np.testing.assert_array_equal, fitted.data.rows, right.data.rows)
    again = Encoder.from_dict(json.loads(json.dumps(fitted.encoder.to_dict())))
    new = pd.DataFrame({"x": [np.nan, 1.0], "z": ["b", None], "school": ["A", None], "year": [1.0, np.nan]})
    # A school was never missing in training: for a row without one all effects of schools are 0.
    whole = new.assign(x=[by_hand["x"].median(), 1.0], z=["b", "missing"], school=["A", None], year=["1", "missing"])
    assert right.rows(whole)["z"].tolist() == [[1.0, 1.0], [0.0, 1.0]]
    jax.tree.map(np.testing.assert_array_equal, encode(again, new).given, right.rows(whole))


@pytest.mark.quick
def test_two_classes_as_text_are_bernoulli():
    table = TABLE.assign(passed=np.where(Y > 7, "yes", "no"))
    with pytest.warns(TractableWarning, match="two values, 'no' and 'yes': family='bernoulli'"):
        fitted = regression("passed ~ x", table)
    np.testing.assert_array_equal(fitted.data.y, Y > 7)


def test_several_targets_are_a_formula_each():
    """The density of both is the product of each one's; ``predict`` tells both from a table, in y's order."""
    table = TABLE.assign(a=np.exp(Y / 10))
    both = regression("mvbind(y, a) ~ x + (1|school)", table, family="normal", priors={"a.noise": dist.HalfNormal(1.0)})
    apart = [
        regression(f"{name} ~ x + (1|school)", table, family="normal", priors=priors)
        for name, priors in (("y", {}), ("a", {"noise": dist.HalfNormal(1.0)}))
    ]
    params = {
        name: {key: jnp.asarray(value) for key, value in one.model.sample_prior(jax.random.key(i)).items()}
        for i, (name, one) in enumerate(zip("ya", apart, strict=True))
    }
    each = [posterior_density(one, params[name]) for name, one in zip("ya", apart, strict=True)]
    np.testing.assert_allclose(posterior_density(both, params), sum(each), rtol=1e-9)
    assert both.model.names[:4] == ["a.Intercept", "a.x", "a.sd(1|school)", "a.1|school[A]"]
    assert not learnable_blocks(both.model, both.data)
    again = Encoder.from_dict(json.loads(json.dumps(both.encoder.to_dict())))
    np.testing.assert_array_equal(encode(again, table).y, np.column_stack([Y, table["a"]]))


@pytest.mark.quick
def test_targets_that_look_unlike_are_normal():
    with pytest.warns(TractableWarning, match=r"'y', 'k' holds numbers that look normal \(y\), poisson \(k\)"):
        fitted = regression("mvbind(y, k) ~ x", TABLE.assign(k=RNG.permutation(N) % 2 + RNG.permutation(N) % 3))
    assert [aim.family for aim in fitted.encoder.targets] == ["normal"] * 2
    with pytest.raises(DataError, match=r"numbers of one family, normal, lognormal, .*; got 'poisson'"):
        regression("mvbind(y, x) ~ z", TABLE, family="poisson")


GRADES = np.array(["one", "three", "two"])
GRADE = GRADES[np.argmax(RNG.gumbel([0.0, 1.0, 0.5], size=(N, 3)), 1)]


def test_classes_are_log_odds_against_the_first():
    fitted = regression("grade ~ x + (1|school)", TABLE.assign(grade=GRADE), family="categorical")
    names = fitted.model.names
    assert names[:4] == ["three.Intercept", "three.x", "three.sd(1|school)", "three.1|school[A]"]
    assert names[8:10] == ["two.Intercept", "two.x"]
    params = fitted.model.sample_prior(jax.random.key(0))
    v = {name: np.asarray(params[name]["effects"], np.float64) for name in ("three", "two")}
    eta = np.stack([np.zeros(N), *(v[c][0] + v[c][1] * X + v[c][3:][SCHOOL] for c in ("three", "two"))], 1)
    eta -= np.logaddexp.reduce(eta, axis=1, keepdims=True)
    got = fitted.model.log_likelihoods(params, fitted.data.rows)
    np.testing.assert_allclose(got, eta[np.arange(N), np.searchsorted(GRADES, GRADE)], rtol=1e-8)
    prior = sum(
        stats.norm.logpdf(v[c][0] + X.mean() * v[c][1], 0, 2.5) + stats.norm.logpdf(v[c][1], 0, 2.5 / X.std())
        + stats.halfnorm.logpdf(v[c][2], scale=2.5) + stats.norm.logpdf(v[c][3:], 0, v[c][2]).sum()
        for c in ("three", "two")
    )  # fmt: skip
    np.testing.assert_allclose(float(fitted.model.log_prior(params)), prior, rtol=1e-9)


def test_classes_by_nested_laplace_against_a_grid(tmp_path):
    """Two intercepts, whose density a grid sums; a folder gives back probabilities of classes."""
    table = TABLE.assign(grade=GRADE)
    with pytest.warns(TractableWarning, match="3 classes: family='categorical'"):
        fitted = regression("grade ~ 1", table)
    posterior = tr.infer(fitted.model, fitted.data, tr.INLA(), verify=None, progress=False)
    counts = np.array([np.sum(label == GRADE) for label in GRADES])
    at = np.linspace(-6.0, 6.0, 601)
    a, b = np.meshgrid(at, at, indexing="ij")
    log = counts[1] * a + counts[2] * b - N * np.logaddexp(np.logaddexp(0.0, a), b) - (a**2 + b**2) / (2 * 2.5**2)
    mass = np.exp(log - log.max())
    mass /= mass.sum()
    mean, sd = posterior.flat_moments
    for k, axis in enumerate((a, b)):
        right = np.sum(mass * axis)
        width = np.sqrt(np.sum(mass * (axis - right) ** 2))
        assert abs(mean[k] - right) < 0.1 * width and abs(sd[k] / width - 1) < 0.1
    expected = [np.sum(mass * p) for p in np.exp(np.stack([0 * a, a, b]) - np.logaddexp(np.logaddexp(0.0, a), b))]
    posterior.save(tmp_path / "run")
    told = tr.load(tmp_path / "run").predict(table.drop(columns="grade")).probabilities
    np.testing.assert_allclose(told, np.tile(expected, (N, 1)), atol=0.01)


def test_command_line_of_several(tmp_path):
    """Both targets in the table's units, by --target and by formula alike; the page tells each."""
    path, out = tmp_path / "t.csv", tmp_path / "p.csv"
    table = pd.DataFrame({"y": Y, "b": 100 - 3 * X + RNG.normal(size=N), "x": X})
    table.to_csv(path, index=False)
    design = np.column_stack([np.ones(N), X])
    least = design @ np.linalg.lstsq(design, table[["y", "b"]], rcond=None)[0]
    for i, what in enumerate((("--target", "y, b"), ("--formula", "mvbind(y, b) ~ x"))):
        folder = tmp_path / f"run{i}"
        done = run("fit", path, *what, "--verify", "none", "--held-out", 0.1 * (1 - i), "--quiet", "--out", folder)
        assert done.exit_code in (0, 3), done.output
        assert 'method = "inla"' in (folder / "settings.toml").read_text()
        assert run("predict", folder, path, "--out", out).exit_code == 0
        told = pd.read_csv(out)
        assert list(told.columns[[1, 2, 7]]) == ["mean(y)", "sd(y)", "mean(b)"]
        np.testing.assert_allclose(told[["mean(y)", "mean(b)"]], least, atol=1.5)
        page = (folder / "report.html").read_text()
        assert "b.x" in page and ("RMSE b" in page) == (i == 0)
    done = run("fit", path, "--target", "y,q", "--out", tmp_path / "r")
    assert done.exit_code == 2 and "'q' is not a column" in done.output
