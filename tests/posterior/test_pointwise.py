"""Rows left out, data replicated and priors raised to powers, against a normal mean whose every answer is known."""

import dataclasses
import functools
import math
import sys
import types

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Z, assert_holds, broken, error, ks, z_mean
from scipy import stats

import tractable as tr
from tractable.core.approximations import inverse_softplus
from tractable.core.errors import DataError, ModelError, RunError, SettingsError, TractableWarning
from tractable.diagnostics.belief import Draws, Fitted, Point
from tractable.gallery import conjugate
from tractable.posterior import chunking, exchange, pointwise, scaling

pytestmark = pytest.mark.test

RNG = np.random.default_rng(5)
NOISE, MEAN, SD, N, CHAINS, COUNT = 0.8, 0.5, 1.5, 40, 4, 1000
Y = 1.2 + NOISE * RNG.normal(size=N)


def normal(noise=NOISE, mean=MEAN, sd=SD):
    return tr.Model({"mu": dist.Normal(mean, sd)}, lambda params: dist.Normal(params["mu"], noise))


MODEL = normal()


def exact(y=Y, noise=NOISE, mean=MEAN, sd=SD):
    return conjugate.normal_mean(y, noise, mean, sd)


def learnt(y=Y, model=MODEL, weights=None, told=None, seed=0):
    """Independent draws of the exact posterior, or of the normal that is told."""
    mean, sd = told or (exact(y).mean, exact(y).sd)
    draws = mean + sd * np.random.default_rng(seed).normal(size=(CHAINS, COUNT, 1))
    return tr.Posterior(model, tr.Data(y, weights=weights), tr.NUTS(), 0, Draws(positions=draws))


@pytest.fixture(scope="module")
def posterior():
    return learnt()


@pytest.fixture(scope="module")
def without():
    """log p(y_n | y without n), exactly."""
    left = [exact(np.delete(Y, n)) for n in range(N)]
    return np.array([stats.norm(p.mean, math.hypot(p.sd, NOISE)).logpdf(Y[n]) for n, p in enumerate(left)])


# log likelihood.


def test_log_likelihood(posterior, monkeypatch):
    found, mu = posterior.log_likelihood(), posterior.draws["mu"]
    assert found.shape == (CHAINS, COUNT, N)
    np.testing.assert_allclose(found, stats.norm(mu[..., None], NOISE).logpdf(Y), rtol=1e-10)
    weights = np.r_[2.0, 0.0, 0.5, np.ones(N - 3)]
    np.testing.assert_allclose(learnt(weights=weights).log_likelihood(), weights * found, rtol=1e-10)
    some = posterior.log_likelihood(tr.Data(Y[:3]), draws=7)
    np.testing.assert_array_equal(some, found[:, np.linspace(0, COUNT - 1, 7).astype(int), :3])
    with monkeypatch.context() as patch:  # however rows are cut
        patch.setattr(chunking, "BYTES", 11 * 8 * CHAINS * COUNT)
        np.testing.assert_array_equal(posterior.log_likelihood(), found)
        np.testing.assert_allclose(
            pointwise.totals(MODEL, posterior.shaped(posterior.values.reshape(-1, 1)), posterior.data),
            found.sum(-1).ravel(),
            rtol=1e-12,
        )


def test_what_would_not_fit_is_refused_before_anything_runs(posterior, monkeypatch):
    monkeypatch.setattr(pointwise, "LIMIT", 1 << 20)
    monkeypatch.setattr(pointwise, "_row_likelihoods", None)
    with pytest.raises(DataError, match=r"40 rows and 4,000 draws takes 0\.0 GiB.*at most 3,276 draws in all"):
        posterior.log_likelihood()
    with pytest.raises(DataError, match="at most 3,276 draws"):
        posterior.posterior_predictive()
    with pytest.warns(TractableWarning, match="leaves log_likelihood out"):
        tree = posterior.to_arviz(groups=["posterior", "log_likelihood"], kind="datatree")
    assert set(tree.children) == {"posterior"} and "at most 3,276" in tree.attrs["left_out"]


# Rows left out.


def law_of_loo(found, without):
    """Each row within the error of its importance weights, their sum within the sum of these."""
    odds = np.exp(-stats.norm(learnt().draws["mu"].ravel()[:, None], NOISE).logpdf(Y))
    errors = odds.std(0) / odds.mean(0) / math.sqrt(CHAINS * COUNT)
    return {
        "rows": float(np.max(np.abs(found.pointwise - without) / errors)) / Z,
        "elpd": error(found.elpd, without.sum(), Z * errors.sum()),
        "se": error(found.se, math.sqrt(N * without.var()), 0.05),
        "k-hat": found.khat / found.limit,
    }


def test_loo(posterior, without):
    found = posterior.loo()
    assert_holds(law_of_loo(found, without))
    assert found.limit == 0.7 and not len(found.failed) and "elpd_loo -" in str(found)
    lppd = posterior.log_predictive(posterior.data, draws=4000)
    np.testing.assert_allclose(found.p, lppd.sum() - found.elpd, rtol=1e-8)
    assert broken(law_of_loo(dataclasses.replace(found, pointwise=lppd, elpd=lppd.sum()), without)), "nothing left out"
    # A look at some of the rows knows the effective number of parameters roughly, and the rest exactly.
    some = posterior.loo(rows=20)
    assert len(some.index) == 20 and "from 20 of them" in str(some)
    assert abs(some.elpd - found.elpd) < Z * math.sqrt(N**2 / 20) * np.std(found.pointwise - lppd)
    assert 0.9 * found.se < some.se < 1.3 * found.se


@pytest.mark.laws
def test_arviz_says_the_same(posterior):
    tree, found = posterior.to_arviz(kind="datatree"), posterior.loo()
    theirs = arviz_stats.loo(tree, reff=posterior._leaving(4000)[-1], pointwise=True)
    np.testing.assert_allclose([found.elpd, found.se, found.p], [theirs.elpd, theirs.se, theirs.p], rtol=1e-6)
    np.testing.assert_allclose(found.khats, theirs.pareto_k.values, atol=1e-6)
    ours, psense = posterior.sensitivity(), arviz_stats.psense_summary(tree, round_to=8)
    np.testing.assert_allclose(ours.loc["mu", ["prior", "likelihood"]].astype(float),
                               psense.loc["mu", ["prior", "likelihood"]].astype(float), rtol=1e-3)  # fmt: skip


def test_a_row_of_weight_three_is_left_out_as_one_of_three_rows():
    counts = np.r_[3, 0, 2, np.ones(9, int)]
    rows = np.repeat(Y[:12], counts)
    weighted, repeated = learnt(Y[:12], weights=counts, told=(1.0, 0.2)).loo(), learnt(rows, told=(1.0, 0.2)).loo()
    for name in ("elpd", "se", "p", "khat"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-8)
    assert weighted.size == 11


def test_a_row_that_counts_half_is_left_out_as_it_counts():
    """Precision and sum of the mean's posterior, less half a row."""
    precision, total = 1 / SD**2 + 0.5 * N / NOISE**2, MEAN / SD**2 + 0.5 * Y.sum() / NOISE**2
    halves = learnt(weights=np.full(N, 0.5), told=(total / precision, precision**-0.5)).loo()
    less = precision - 0.5 / NOISE**2
    wanted = stats.norm((total - 0.5 * Y / NOISE**2) / less, np.sqrt(1 / less + NOISE**2)).logpdf(Y)
    np.testing.assert_allclose(halves.pointwise, wanted, atol=0.05)
    np.testing.assert_allclose(halves.elpd, 0.5 * halves.pointwise.sum(), rtol=1e-10)


def test_rows_of_which_too_much_hangs_are_refused(monkeypatch):
    monkeypatch.setattr(pointwise, "MATCHED", 0)
    y = np.r_[Y[:10], 30.0]
    outlying = learnt(y)
    found = outlying.loo()
    assert np.isnan([found.elpd, found.se, found.p]).all() and found.khat > found.limit
    assert found.failed.tolist() == [10] and "1 row of 11 (row 10)" in str(found)
    below = outlying.pit()
    assert np.isnan(below[10]) and np.all((below[:10] >= 0) & (below[:10] <= 1))


def test_an_approximation_is_corrected_by_its_own_weights(without):
    """A q half as wide again leaves rows out as the posterior does; taken for the posterior, it does not."""
    p = exact()
    wide = {"mean": np.array([p.mean]), "rho": np.asarray(inverse_softplus(jnp.array([1.5 * p.sd])))}
    draws = p.mean + 1.5 * p.sd * np.random.default_rng(1).normal(size=(1, CHAINS * COUNT, 1))
    found = {}
    for name, weights in (("corrected", np.zeros(1000)), ("not", None)):
        q = Fitted(positions=draws, family="mean field", phi=wide, log_weights=weights)
        found[name] = tr.Posterior(MODEL, tr.Data(Y), tr.MeanField(), 0, q).loo()
    assert_holds(law_of_loo(found["corrected"], without))
    assert broken(law_of_loo(found["not"], without))


# Replicated data.


def law_of_replicates(drawn, mean, sd):
    """Rows (s, n) of one draw share its mean: variances and covariances of y* = μ + noise."""
    centred = drawn.mean(1)
    return {
        "mean": z_mean(centred, mean, sd**2 + NOISE**2 / N),
        "between": error(centred.var(), sd**2 + NOISE**2 / N, Z * (sd**2 + NOISE**2 / N) * math.sqrt(2 / len(drawn))),
        "within": error(drawn.var(1, ddof=1).mean(), NOISE**2, Z * NOISE**2 * math.sqrt(2 / drawn.size)),
    }


@pytest.mark.laws
def test_replicated_data(posterior):
    before = posterior.prior_predictive(draws=2000)
    assert before.shape == (2000, N)
    assert_holds(law_of_replicates(before, MEAN, SD))
    p, after = exact(), posterior.posterior_predictive()
    assert after.shape == (CHAINS, COUNT, N)
    assert_holds(law_of_replicates(after.reshape(-1, N), p.mean, p.sd))
    shuffled = np.random.default_rng(0).permuted(before, axis=0)
    assert broken(law_of_replicates(shuffled, MEAN, SD)), "every row of another mean"
    assert broken(law_of_replicates(before, MEAN, 1.3 * SD)), "another prior"


# Integral transforms.


def transforms(noise):
    """Of 600 rows whose noise is 0.8, told that it is ``noise``."""
    y = 1.2 + NOISE * np.random.default_rng(8).normal(size=600)
    p = exact(y, noise)
    return learnt(y, normal(noise), told=(p.mean, p.sd)).pit()


@pytest.mark.laws
def test_pit_is_uniform_where_the_noise_is_right():
    law = {"uniform": ks(transforms(NOISE), stats.uniform.cdf)}
    assert_holds(law)
    assert broken({"too wide": ks(transforms(2 * NOISE), stats.uniform.cdf)})
    assert broken({"too narrow": ks(transforms(0.5 * NOISE), stats.uniform.cdf)})


@pytest.mark.laws
def test_pit_of_counts_is_uniform():
    y = np.random.default_rng(3).geometric(0.4, 600) - 1
    model = tr.Model({"p": dist.Beta(2.0, 1.0)}, lambda params: dist.Geometric(params["p"]))
    p = np.random.default_rng(4).beta(2 + 600, 1 + y.sum(), (CHAINS, COUNT, 1))
    posterior = tr.Posterior(model, tr.Data(y), tr.NUTS(), 0, Draws(positions=np.log(p / (1 - p))))
    assert_holds({"uniform": ks(posterior.pit(), stats.uniform.cdf)})


# Power scaling.


def law_of_scaling(table, draws, mean=MEAN, sd=SD):
    """d E[μ]/d log₂ α = ln 2 dE/dα, with E = (α m₀/τ² + Σy/σ²)/(α/τ² + n/σ²), and the same of the likelihood."""
    own, seen = 1 / sd**2, N / NOISE**2
    pull = math.log(2) * own * seen * (mean - Y.mean()) / (own + seen) ** 2  # of the prior; the likelihood's is −pull
    width = 1 / math.sqrt(own + seen)
    z = (draws - draws.mean()) / draws.std()
    scores = {}
    for name, sign, power in (
        ("prior", 1, stats.norm(mean, sd).logpdf(draws)),
        ("likelihood", -1, stats.norm(draws[:, None], NOISE).logpdf(Y).sum(1)),
    ):
        noise = math.log(2) * np.std(z * (power - power.mean())) / math.sqrt(len(z))
        scores[name] = error(table.loc["mu", f"mean by {name}"], sign * pull / width, Z * noise)
        share = (own if sign > 0 else seen) / (own + seen)  # sd(α)² = 1/(α own + seen)
        spread = np.std(z**2 * (power - power.mean())) / math.sqrt(len(z))
        scores[f"sd by {name}"] = error(table.loc["mu", f"sd by {name}"], -0.5 * math.log(2) * share, Z * spread)
    return scores


def test_power_scaling(posterior):
    table, draws = posterior.sensitivity(), posterior.draws["mu"].ravel()
    assert all(name in repr(table) for name in table.columns)
    assert_holds(law_of_scaling(table, draws))
    assert broken(law_of_scaling(-table.drop(columns="diagnosis"), draws)), "the other way"
    assert table.loc["mu", "diagnosis"] == "" and table.loc["mu", "prior"] < 0.05 < table.loc["mu", "likelihood"]


@pytest.mark.parametrize("size", [2, 100, 4000])
def test_the_distance_of_weights_that_are_equal_to_rounding_is_zero(size):
    rng = np.random.default_rng(size)
    for tilt in 10.0 ** np.linspace(-18, -6, 49):
        values = rng.normal(size=size)
        weights = np.exp(tilt * rng.normal(size=size))
        distance = scaling._distance(values, weights / weights.sum())
        assert 0 <= distance < 3e-8 + 3 * tilt


def test_a_prior_that_disagrees_is_told():
    far = normal(mean=4.0, sd=0.2)
    p = exact(mean=4.0, sd=0.2)
    table = learnt(model=far, told=(p.mean, p.sd)).sensitivity()
    assert table.loc["mu", "diagnosis"] == "prior and data disagree"
    assert_holds(law_of_scaling(table, learnt(told=(p.mean, p.sd)).draws["mu"].ravel(), 4.0, 0.2))
    strong = normal(mean=1.2, sd=0.01)
    alone = tr.Posterior(strong, None, tr.NUTS(), 0, learnt(told=(1.2, 0.01)).belief).sensitivity()
    assert alone.loc["mu", "diagnosis"] == "prior stronger than data" and np.isnan(alone.loc["mu", "likelihood"])


def test_weighted_draws_are_drawn_again_by_weight(posterior):
    """Draws of a wider normal, weighed to be the posterior's."""
    p = exact()
    wide = learnt(told=(p.mean, 2 * p.sd))
    mu = wide.draws["mu"]
    weights = stats.norm(p.mean, p.sd).pdf(mu) / stats.norm(p.mean, 2 * p.sd).pdf(mu)
    weighed = tr.Posterior(MODEL, wide.data, tr.NUTS(), 0, dataclasses.replace(wide.belief, weights=weights))
    found, wanted = (each.sensitivity()[["prior", "likelihood"]] for each in (weighed, posterior))
    np.testing.assert_allclose(found, wanted, rtol=0.15)
    np.testing.assert_allclose(weighed.loo().elpd, posterior.loo().elpd, atol=0.05)


def test_a_flat_prior_moves_nothing():
    flat = tr.Model({"mu": dist.Uniform(-9.0, 9.0)}, MODEL.likelihood)
    table = tr.Posterior(flat, tr.Data(Y), tr.NUTS(), 0, learnt(told=(0.0, 0.02)).belief).sensitivity()
    assert table.loc["mu", "prior"] == 0 and table.loc["mu", "likelihood"] > 0.05


# ArviZ.


@pytest.mark.laws
def test_every_group_is_there_with_names_of_its_axes():
    x, weights = RNG.normal(size=(N, 2)), RNG.uniform(0.5, 2, N)
    model = tr.Model({"x": dist.Normal(jnp.zeros(2), 1.0)}, lambda params, x: dist.Normal(x @ params["x"], 1.0))
    info = {"divergent": np.zeros((2, 50)), "energy": RNG.normal(size=(2, 50))}
    draws = Draws(positions=RNG.normal(size=(2, 50, 2)), info=info)
    posterior = tr.Posterior(model, tr.Data(Y, x, weights=weights), tr.NUTS(), 0, draws)
    tree = posterior.to_arviz(draws=10, dims={"x": ["feature"]}, coords={"feature": ["age", "height"]})
    kept = np.linspace(0, 49, 10).astype(int)
    groups = tree.children if hasattr(tree, "children") else tree.groups()  # ArviZ before version 1 has no trees
    shapes = {name: {k: v.shape for k, v in tree[name].data_vars.items()} for name in groups}
    assert shapes == {
        "posterior": {"x": (2, 10, 2)},
        "sample_stats": {"diverging": (2, 10), "energy": (2, 10)},
        "log_likelihood": {"y": (2, 10, N)},
        "log_prior": {"log_prior": (2, 10)},
        "posterior_predictive": {"y": (2, 10, N)},
        "prior": {"x": (1, 10, 2)},
        "prior_predictive": {"y": (1, 10, N)},
        "observed_data": {"y": (N,)},
        "constant_data": {"x": (N, 2), "weights": (N,)},
    }
    assert tree["posterior"]["x"].dims == ("chain", "draw", "feature")
    assert tree["constant_data"]["x"].dims == ("row", "feature") and not tree.attrs
    assert tree["posterior"]["x"].sel(feature="height").shape == (2, 10)
    np.testing.assert_array_equal(tree["posterior"]["x"], posterior.draws["x"][:, kept])
    np.testing.assert_array_equal(tree["log_likelihood"]["y"], posterior.log_likelihood(draws=10))
    np.testing.assert_allclose(tree["log_prior"]["log_prior"],
                               stats.norm.logpdf(posterior.draws["x"][:, kept]).sum(-1))  # fmt: skip
    # The prior's data come from the prior's draws.
    drawn = np.asarray(tree["prior_predictive"]["y"] - np.asarray(tree["prior"]["x"][0]) @ x.T)
    assert abs(drawn.std() - 1) < Z / math.sqrt(2 * drawn.size)


@pytest.mark.test
def test_labelled_numbers_are_a_variable_a_term():
    labels = {"effects": ["x", "z[b]", "z[c]", "sd(1|g)"]}
    model = tr.Model({"effects": dist.Normal(jnp.zeros(4), 1.0), "noise": dist.HalfNormal(1.0)}, labels=labels)
    posterior = tr.Posterior(model, None, tr.NUTS(), 0, Draws(positions=RNG.normal(size=(2, 20, 5))))
    tree = posterior.to_arviz(groups=["posterior", "prior"], draws=10)
    for group, chains in {"posterior": 2, "prior": 1}.items():
        shapes = {name: variable.shape[2:] for name, variable in tree[group].data_vars.items()}
        assert shapes == {"x": (), "z": (2,), "sd(1|g)": (), "noise": ()} and tree[group]["x"].shape[0] == chains
    every = posterior.to_arviz(groups=["posterior"])["posterior"]
    np.testing.assert_array_equal(every["z"].sel(z_level="c"), posterior.draws["effects"][..., 2])


@pytest.mark.test
def test_an_older_arviz_gets_inference_data(monkeypatch, posterior):
    ask = functools.partial(posterior.to_arviz, groups=["posterior"])
    with pytest.raises(SettingsError, match=r"kind=.* expects 'datatree' or 'inferencedata'; got 'dict'"):
        ask(kind="dict")
    monkeypatch.setattr(exchange, "version", lambda _: "1.0.0")
    assert set(ask().children) == {"posterior"}
    with pytest.raises(SettingsError, match="before version 1"):
        ask(kind="inferencedata")
    monkeypatch.setattr(exchange, "version", lambda _: "0.23.4")
    monkeypatch.setitem(sys.modules, "arviz", types.SimpleNamespace(InferenceData=dict))
    found = ask()
    assert set(found) == {"attrs", "posterior"}
    np.testing.assert_array_equal(found["posterior"]["mu"], posterior.draws["mu"])
    assert set(ask(kind="datatree").children) == {"posterior"}


@pytest.mark.laws
def test_arviz_takes_what_is_made_for_it(posterior):
    """The plots and statistics of the installed ArviZ take it, before and after its version 1."""
    az = pytest.importorskip("arviz", reason="ArviZ is optional")
    pytest.importorskip("matplotlib").use("agg")
    found = posterior.to_arviz()
    summary, loo = az.summary(found, var_names=["mu"]), az.loo(found)
    np.testing.assert_allclose(float(summary["mean"].iloc[0]), posterior.mean()["mu"], atol=0.01)
    np.testing.assert_allclose(loo.elpd if hasattr(loo, "elpd") else loo["elpd_loo"], posterior.loo().elpd, rtol=1e-3)
    for plot in ("trace", "forest", "rank", "autocorr", "ess", "mcse"):
        getattr(az, f"plot_{plot}")(found)


def test_what_does_not_apply_has_a_sentence(posterior):
    density = tr.Model.from_log_density(lambda p: -0.5 * jnp.sum(p["a"] ** 2), {"a": jnp.zeros(2)})
    alone = tr.Posterior(density, None, tr.NUTS(), 0, Draws(positions=RNG.normal(size=(2, 200, 2))))
    tree = alone.to_arviz(kind="datatree")
    assert set(tree.children) == {"posterior", "log_prior"}
    assert "prior: This model's prior cannot be drawn from" in tree.attrs["left_out"]
    with pytest.raises(DataError, match="was fitted to none"):
        alone.loo()
    begun = tr.Posterior(MODEL, posterior.data, tr.NUTS(), 0, Draws(positions=np.zeros((2, 0, 1))))
    for ask in (begun.loo, begun.log_likelihood, begun.posterior_predictive, begun.sensitivity):
        with pytest.raises(RunError, match="before its first draw"):
            ask()
    point = tr.Posterior(MODEL, posterior.data, tr.MAP(), 0, Point(position=np.array([1.0])))
    assert point.log_likelihood().shape == (1, 1, N) and point.posterior_predictive().shape == (1, 1, N)
    with pytest.raises(RunError, match="a point estimate has none"):
        point.loo()
    with pytest.raises(RunError, match="at least 100 draws; got 50"):
        posterior.loo(draws=50)
    with pytest.raises(SettingsError, match="got 'priors'"):
        posterior.to_arviz(groups=["priors"])
    two = tr.Model(MODEL.prior, lambda params: (dist.Normal(params["mu"], 1.0), dist.Normal(0.0, 1.0)))
    both = tr.Posterior(two, tr.Data((Y, Y)), tr.NUTS(), 0, posterior.belief)
    assert [a.shape for a in both.posterior_predictive(draws=5)] == [(CHAINS, 5, N)] * 2
    with pytest.raises(DataError, match="one number each"):
        both.pit()


@pytest.mark.laws
def test_a_latent_model_leaves_out_what_cannot_be_summed_out():
    model = tr.LatentModel(
        {"mu": dist.Normal(0.0, 1.0)},
        lambda params: dist.Normal(params["mu"], 1.0),
        lambda params, z: dist.Normal(z, NOISE),
    )
    hidden = tr.Posterior(model, tr.Data(Y), tr.NUTS(), 0, learnt().belief)
    with pytest.raises(ModelError, match="cannot be summed out"):
        hidden.log_likelihood()
    drawn = hidden.posterior_predictive(draws=500)
    assert abs(drawn.var() / (1 + NOISE**2 + exact().sd ** 2) - 1) < 0.1
    assert "log_likelihood" not in hidden.to_arviz(groups=["log_likelihood", "observed_data"], kind="datatree").children
