"""Rows of which only bounds are known: densities, exact posteriors, scores, tables; and what wrong formulas give."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from commands import run
from scipy import stats

import tractable as tr
from tractable.core.censored import OPEN, as_seen, censored
from tractable.core.censoring import Censored, Weibull, with_censoring
from tractable.core.errors import DataError, ModelError, TractableWarning
from tractable.core.model import log_density
from tractable.diagnostics import censoring
from tractable.diagnostics.calibration import crps_draws
from tractable.glm.linear import generalised_linear
from tractable.posterior.pointwise import Left, transforms
from tractable.tables.encoder import Encoder, encode, fit_encoder

pytestmark = pytest.mark.quick

LAWS = {
    "normal": (lambda: dist.Normal(0.5, 1.5), stats.norm(0.5, 1.5)),
    "lognormal": (lambda: dist.LogNormal(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "weibull": (lambda: Weibull(jnp.asarray(0.5), 1.7), stats.weibull_min(1.7, scale=np.exp(0.5))),
    "exponential": (lambda: dist.Exponential(0.4), stats.expon(scale=2.5)),
    "gamma": (lambda: dist.Gamma(2.0, 3.0), stats.gamma(2.0, scale=1 / 3)),
}


def bounds(law) -> tuple[np.ndarray, np.ndarray]:
    """Rows seen and censored, in the middle and in the tails, and log p of each by SciPy."""
    at = law.ppf([0.001, 0.3, 0.6, 0.999])
    far = law.isf(1e-9)
    rows = [(t, t) for t in at] + [(t, OPEN) for t in (*at, far)] + [(-OPEN, t) for t in at]
    rows += [(at[0], at[2]), (at[1], at[2]), (at[3], far), (at[1], at[1] + 1e-6)]
    exact = [law.logpdf(t) for t in at] + [law.logsf(t) for t in (*at, far)] + [law.logcdf(t) for t in at]
    exact += [np.log(law.cdf(at[2]) - law.cdf(at[0])), np.log(law.cdf(at[2]) - law.cdf(at[1]))]
    exact += [np.log(law.sf(at[3]) - law.sf(far)), law.logpdf(at[1]) + np.log(1e-6)]
    return np.array(rows), np.array(exact)


@pytest.mark.test("normal", "weibull", "gamma")
@pytest.mark.parametrize("name", LAWS)
def test_density(name):
    made, law = LAWS[name]
    rows, exact = bounds(law)
    got = jax.vmap(lambda y: Censored(made()).log_prob(y))(jnp.asarray(rows))
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)
    if name != "gamma":  # whose tails are as good as its cdf
        with jax.enable_x64(False):
            keep = np.arange(len(rows)) < len(rows) - 1  # numbers 1e-6 apart are one
            got = jax.vmap(lambda y: Censored(made()).log_prob(y))(jnp.asarray(rows[keep], jnp.float32))
        np.testing.assert_allclose(got, exact[keep], rtol=2e-4, atol=2e-4)


@pytest.mark.test
def test_slopes_are_finite():
    """Of every kind of row, far from where it lies too: the branches that are not taken are of other numbers."""
    rows = jnp.asarray([(1.0, 1.0), (1.0, OPEN), (-OPEN, 1.0), (0.5, 1.0), (0.0, 1.0)])
    slope = jax.jit(jax.vmap(jax.grad(lambda eta, y: Censored(Weibull(eta, 3.0)).log_prob(y)), (None, 0)))
    curve = jax.jit(jax.vmap(jax.hessian(lambda eta, y: Censored(dist.Normal(eta, 0.1)).log_prob(y)), (None, 0)))
    for eta in (-20.0, 0.0, 20.0):
        assert np.isfinite(slope(jnp.asarray(eta), rows)).all()
        assert np.isfinite(curve(jnp.asarray(eta), rows)).all()
    np.testing.assert_allclose(slope(jnp.asarray(0.3), rows)[2], slope(jnp.asarray(0.3), rows)[4])  # times begin at 0


@pytest.mark.test("weibull", "exponential")
@pytest.mark.parametrize("family", ["normal", "lognormal", "weibull", "exponential"])
def test_without_censoring_it_is_the_plain_family(family):
    g = np.random.default_rng(0)
    x, y = g.normal(size=(20, 2)), np.exp(g.normal(size=20))
    plain = generalised_linear(2, family)
    model = with_censoring(plain)
    assert with_censoring(plain) is model
    params = plain.sample_prior(jax.random.key(0))
    got = model.log_likelihoods(params, (jnp.asarray(censored(y, event=np.ones(20))), jnp.asarray(x)))
    np.testing.assert_allclose(got, plain.log_likelihoods(params, (jnp.asarray(y), jnp.asarray(x))), rtol=1e-12)


# Right-censored times of an exponential law are conjugate.

G = np.random.default_rng(3)
TIMES, ENDS = G.exponential(2.0, 60), G.uniform(0, 4, 60)
EVENT, SEEN = TIMES <= ENDS, np.minimum(TIMES, ENDS)
RATE = tr.Model({"rate": dist.Gamma(2.0, 3.0)}, lambda params: Censored(dist.Exponential(params["rate"])))


def off_conjugate(y: np.ndarray, model: tr.Model = RATE) -> float:
    """How far log p(rate | y) is from Gamma(2 + events, 3 + total time), up to a constant, over rates."""
    density = log_density(model, tr.Data(y).arrays(), jacobian=False)
    rates = np.linspace(0.2, 1.2, 7)
    got = np.array([float(density(model.unconstrain({"rate": jnp.asarray(r)}))) for r in rates])
    exact = stats.gamma.logpdf(rates, 2 + EVENT.sum(), scale=1 / (3 + SEEN.sum()))
    return float(np.ptp(got - exact))


@pytest.mark.laws
def test_exponential_times_are_conjugate():
    assert off_conjugate(censored(SEEN, event=EVENT)) < 1e-6
    assert off_conjugate(censored(SEEN, ~EVENT)) < 1e-6
    assert off_conjugate(censored(SEEN, upper=np.where(EVENT, SEEN, np.nan))) < 1e-6


MUTANTS = {
    "censored rows taken as seen": censored(SEEN, event=np.ones(60)),
    "censored rows left out": censored(SEEN[EVENT], event=EVENT[EVENT]),
    "an event is a censoring": censored(SEEN, EVENT),
    "the other side": censored(SEEN, np.where(EVENT, "none", "left")),
}


@pytest.mark.laws
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rows_are_seen(mutant):
    assert off_conjugate(MUTANTS[mutant]) > 1.0


def table() -> pd.DataFrame:
    """Weibull times of every kind of row: seen, later than, earlier than, between."""
    g = np.random.default_rng(5)
    t, kind = np.exp(0.7) * g.weibull(1.5, 80), g.integers(0, 4, 80)
    lower = np.select([kind == 1, kind == 2, kind == 3], [0.6 * t, np.nan, np.floor(t)], t)
    upper = np.select([kind == 1, kind == 2, kind == 3], [np.nan, 1.5 * t, np.floor(t) + 1], t)
    return pd.DataFrame({"lower": lower, "upper": upper})


@pytest.mark.laws
def test_formula_against_a_grid():
    """Every kind of row at once, by nested Laplace: means and sds within five Monte-Carlo errors of the grid's."""
    rows = table()
    fitted = tr.models.regression('Surv(lower, upper, type="interval2") ~ 1', rows, family="weibull")
    assert fitted.model.names == ["Intercept", "shape"]
    low, high = (a.to_numpy()[:, None, None] for a in (rows["lower"].fillna(0), rows["upper"].fillna(np.inf)))
    eta, shape = np.meshgrid(np.linspace(0.2, 1.4, 241), np.linspace(0.7, 2.7, 241), indexing="ij")
    law = stats.weibull_min(shape, scale=np.exp(eta))
    with np.errstate(divide="ignore"):
        terms = np.where(low == high, law.logpdf(low), np.log(law.sf(low) - law.sf(high)))
    there = rows.mean(axis=1).to_numpy()  # the bound that is known, or the middle
    log_p = terms.sum(0) + stats.norm.logpdf(eta, np.log(there.mean()), 2.5) + stats.lognorm.logpdf(shape, 1.0)
    p = np.exp(log_p - log_p.max())
    posterior = tr.infer(fitted.model, fitted.data, tr.INLA(), progress=False, verify=None)
    told = posterior.summary()
    for name, values in (("Intercept", eta), ("shape", shape)):
        mean = np.average(values, weights=p)
        sd = np.sqrt(np.average((values - mean) ** 2, weights=p))
        assert abs(told.loc[name, "mean"] - mean) < 5 * sd / np.sqrt(2000), name
        assert abs(told.loc[name, "sd"] / sd - 1) < 5 / np.sqrt(4000), name
    pit = posterior.pit(draws=200)
    assert pit.shape == (80,) and np.isfinite(pit).all()
    assert posterior.predict(fitted.rows(rows[:3])).mean.shape == (3,)
    assert posterior.posterior_predictive(draws=5).shape == (1, 5, 80)


def test_transforms_are_uniform_within_the_bounds():
    """Where the law is right they are uniform; taking bounds for what was seen leaves many too low."""
    g = np.random.default_rng(0)
    t, c = g.exponential(size=3000), g.exponential(size=3000)
    drawn = g.exponential(size=(400, 3000))
    left = Left(np.zeros(drawn.shape), np.full(drawn.shape, -np.log(400.0)), np.zeros(3000))
    y = censored(np.minimum(t, c), event=t <= c)
    assert stats.kstest(transforms(left, drawn, y), "uniform").pvalue > 1e-3
    assert stats.kstest(transforms(left, drawn, y[:, 0]), "uniform").pvalue < 1e-20


def test_scores():
    g = np.random.default_rng(1)
    drawn, weights = g.gamma(2.0, size=(50, 4)), g.random(50)
    y = np.array([[1.0, OPEN], [-OPEN, 1.5], [0.7, 2.2], [9.0, OPEN]])
    got = censoring.crps(y, drawn, weights)
    for n in range(4):
        x, w = drawn[:, n], weights / weights.sum()
        grid = np.sort(np.concatenate([x, [0.0, 30.0], np.clip(y[n], 0, 30)]))
        middles, widths = (grid[1:] + grid[:-1]) / 2, np.diff(grid)
        share = np.array([w[x <= t].sum() for t in middles])
        lower, upper = middles < y[n, 0], middles > y[n, 1]
        expected = np.sum(widths * (share**2 * lower + (1 - share) ** 2 * upper))
        np.testing.assert_allclose(got[n], expected, rtol=1e-9)
    whole = censoring.crps(np.full((4, 2), 2.0), drawn, np.ones(50))
    np.testing.assert_allclose(whole, crps_draws(np.full(4, 2.0), drawn), rtol=1e-9)  # what was seen has the fair score
    rows = censored([1.0, 2.0, 3.0], event=[True, False, True])
    assert censoring.concordance(rows, np.array([1.0, 0.5, 2.0])) == 0.5  # 1 before 2, and before 3
    assert censoring.concordance(rows, np.array([1.0, 1.0, 2.0])) == 0.75


def test_distribution_is_kaplan_and_meiers():
    y = censored(SEEN, event=EVENT)
    at, share = censoring.distribution(y)
    exact = stats.ecdf(stats.CensoredData.right_censored(SEEN, ~EVENT)).cdf
    grid = np.linspace(0.05, SEEN[EVENT].max(), 30)
    np.testing.assert_allclose(share[np.searchsorted(at, grid, side="right") - 1], exact.evaluate(grid), atol=1e-4)


@pytest.mark.test
def test_completed_rows_have_the_law_of_what_is_predicted():
    """A bound is replaced by what is predicted beyond it, so that all rows together have that law."""
    g = np.random.default_rng(2)
    t, c = g.exponential(size=2000), g.exponential(size=2000)
    y = censored(np.minimum(t, c), event=t <= c)
    drawn = np.repeat(g.exponential(size=(2000, 300, 1)), 2, -1)
    found = np.asarray(jax.vmap(censoring.complete)(drawn, y, jax.random.split(jax.random.key(0), 2000)))
    assert np.all(found[:, 0] == found[:, 1]) and np.all((found[:, 0] >= y[:, 0]) & (found[:, 0] <= y[:, 1]))
    assert stats.kstest(found[:, 0], "expon").pvalue > 1e-3
    assert as_seen(found, y)[:, 1].tolist() == y[:, 1].tolist()


# Tables.


def stays() -> pd.DataFrame:
    g = np.random.default_rng(4)
    age = g.normal(60, 10, 60)
    t, c = np.exp(2 + 0.03 * (age - 60)) * g.weibull(1.5, 60), g.uniform(3, 20, 60)
    left = np.where(t <= c, "no", "yes")
    return pd.DataFrame({"age": age, "days": np.minimum(t, c), "left": left, "home": (t <= c).astype(int)})


@pytest.mark.parametrize("how", [{"censored": "left", "exclude": ["home"]}, {"event": "home", "exclude": ["left"]}])
def test_encoder(how):
    frame = stays()
    encoder = fit_encoder(frame, "days", **how)
    assert encoder.features == ["age"] and encoder.target.family == "weibull"
    y = encode(encoder, frame).y
    event, days = frame["home"].to_numpy() == 1, frame["days"].to_numpy()
    np.testing.assert_allclose(y[:, 0] * encoder.target.sd, days)
    np.testing.assert_allclose(y[:, 1], np.where(event, y[:, 0], OPEN))
    saved = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    np.testing.assert_array_equal(encode(saved, frame).y, y)
    assert encode(saved, frame[["age"]]).y is None


@pytest.mark.parametrize("left", ["days | cens(left)", "censored(days, left)", "Surv(days, home)"])
def test_formulas_say_the_same(left):
    with pytest.warns(TractableWarning, match="47 observed and 13 censored numbers, all positive: family='wei"):
        fitted = tr.models.regression(f"{left} ~ age", stays())
    np.testing.assert_array_equal(fitted.data.y, censored(stays()["days"], event=stays()["home"]))


FAULTS = {
    "Give only one of censored=, event= and until=": {"censored": "left", "event": "home"},
    "'gone' is not a column": {"censored": "gone"},
    "expects 'none', 'right' or 'left', or 0, 1 and −1; got": {"censored": "age"},
    "A censored target needs one of the families normal, lognormal, weibull": {"censored": "left", "family": "poisson"},
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_faults(sentence):
    with pytest.raises(DataError, match=sentence):
        fit_encoder(stays(), "days", **FAULTS[sentence])


@pytest.mark.test
def test_more_faults():
    with pytest.raises(DataError, match="the lower bound is above the upper one: 3"):
        censored([3.0], upper=[2.0])
    with pytest.raises(DataError, match="y has no bound"):
        censored([np.nan], upper=[np.inf])
    with pytest.raises(DataError, match=r"In row 1 .* y is not finite"):
        censored([1.0, np.nan], event=[1, 0])
    with pytest.raises(DataError, match="cannot be read: write 'days"):
        tr.models.regression("cens(days, left, home) ~ age", stays())
    with pytest.raises(ModelError, match="is a Through of a predictor"):
        with_censoring(RATE)
    with pytest.raises(DataError, match=r"Row 0 of y, \[3.0, 2.0\], lies outside"):
        tr.infer(RATE, tr.Data(np.array([[3.0, 2.0]])), tr.MAP(), progress=False)


@pytest.mark.laws
def test_from_the_command_line(tmp_path):
    stays().to_csv(tmp_path / "stays.csv", index=False)
    told = run("fit", tmp_path / "stays.csv", "--target", "days", "--event", "home", "--exclude", "left", "--verify",
               "none", "--out", tmp_path / "run")  # fmt: skip
    assert "--family weibull" in told.output and "concordance" in told.output
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Kaplan-Meier" in page and "concordance" in page
    stays()[["age"]].to_csv(tmp_path / "new.csv", index=False)
    run("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    predicted = pd.read_csv(tmp_path / "p.csv")
    assert np.all(predicted["lower"] < predicted["mean"]) and np.all(predicted["mean"] < predicted["upper"])
