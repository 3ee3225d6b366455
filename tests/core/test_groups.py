"""Groups of rows with effects of their own, which every method integrates out."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import tractable as tr
from tractable import objectives
from tractable.core.batches import Members, whole
from tractable.core.errors import DataError, ModelError
from tractable.core.integrals import around, rule
from tractable.core.model import Batch
from tractable.diagnostics.belief import Draws
from tractable.diagnostics.groups import look
from tractable.diagnostics.learnt import Learnt
from tractable.engine.search import nearer
from tractable.pages import parameters, predictive
from tractable.pages.page import usual_facts
from tractable.vi.methods import _likelihood, anchored_likelihood

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(3)
LABELS = np.array(["Bern", "Aarau", "Chur", "Davos", "Genf", "Uri"])
GROUP = RNG.permutation(np.repeat(np.arange(6), [1, 5, 2, 3, 1, 4]))
X = RNG.normal(size=(16, 2))
OWN = RNG.normal(1.0, 1.5, size=6)
Y = OWN[GROUP] + X @ [0.5, -1.0] + RNG.normal(size=16)
PRIOR = {
    "mu": dist.Normal(0.0, 5.0),
    "tau": dist.HalfNormal(2.0),
    "w": dist.Normal(jnp.zeros(2), 1.0).to_event(1),
}
THETA = {"mu": jnp.array(0.7), "tau": jnp.array(1.2), "w": jnp.array([0.4, -0.8])}
CITIES = tr.Model(
    PRIOR,
    lambda p, x: dist.Normal(p["a"] + x @ p["w"], 1.0),
    local=lambda p: {"a": dist.Normal(p["mu"], p["tau"])},
)
DATA = tr.Data(Y, given=X, group=LABELS[GROUP])


def exact_terms(params: dict) -> jax.Array:
    """log p(y_g | θ) of each group in the order of labels, a in closed form: y_g ~ N(μ + X w, I + τ² 1 1ᵀ)."""
    rest, place = Y - X @ params["w"] - params["mu"], np.unique(LABELS[GROUP], return_inverse=True)[1]
    square, total, n = (jax.ops.segment_sum(a, place, 6) for a in (rest**2, rest, jnp.ones(16)))
    spread = 1 + n * params["tau"] ** 2
    return -(square - params["tau"] ** 2 * total**2 / spread + jnp.log(spread) + n * jnp.log(2 * jnp.pi)) / 2


terms = jax.jit(tr.Model.log_likelihoods, static_argnums=0)


def total(params: dict) -> jax.Array:
    return jnp.sum(CITIES.log_likelihoods(params, DATA.arrays()))


def test_normal_groups_are_integrated_exactly():
    for derive in (lambda f: f, jax.grad, jax.hessian):
        found, wanted = (jax.jit(derive(f))(THETA) for f in (total, lambda p: jnp.sum(exact_terms(p))))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("tau", [1e-4, 1e-9, 1e-18, 1e-27])
@pytest.mark.parametrize(
    "prior",
    [
        dist.Normal,
        partial(dist.StudentT, 7.0),
        lambda mu, tau: dist.Normal(mu, tau).expand([1]).to_event(1),
        lambda mu, tau: dist.MultivariateNormal(mu * jnp.ones(1), scale_tril=tau * jnp.eye(1)),
    ],
)
def test_integrals_are_exact_where_the_scale_is_below_rounding(prior, tau):
    """Without spread between groups y ~ N(μ + X w, I), and the derivative by τ is 0; in single precision too."""
    model = tr.Model(
        PRIOR,
        lambda p, x: dist.Normal(jnp.sum(p["a"]) + x @ p["w"], 1.0),
        local=lambda p: {"a": prior(p["mu"], p["tau"])},
    )
    theta = {**THETA, "mu": jnp.array(70.0), "tau": jnp.array(tau)}
    theta, rows = jax.tree.map(lambda a: a.astype(np.float32), (theta, DATA.arrays()))

    def log_likelihood(theta, rows):
        return jnp.sum(model.log_likelihoods(theta, rows))

    found, slopes = jax.jit(jax.value_and_grad(log_likelihood))(theta, rows)
    wanted = stats.norm(70 + X @ np.array([0.4, -0.8])).logpdf(Y).sum()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert abs(slopes["tau"] * theta["tau"]) < 1e-2


def test_rows_of_a_group_lie_anywhere_and_padding_counts_nothing():
    order = np.random.default_rng(0).permutation(16)
    shuffled = tr.Data(Y[order], given=X[order], group=LABELS[GROUP][order])
    y, (x, counts) = DATA.rows
    wider = (
        np.pad(y, ((0, 0), (0, 3)), constant_values=7.0),
        Members(np.pad(x, ((0, 0), (0, 3), (0, 0))), np.pad(counts, ((0, 0), (0, 3)))),
    )
    wanted = terms(CITIES, THETA, DATA.arrays())
    for rows in (shuffled.arrays(), wider):
        np.testing.assert_allclose(terms(CITIES, THETA, rows), wanted, rtol=1e-9)


def test_a_row_of_weight_two_is_the_row_twice_and_of_weight_zero_none():
    weights = np.arange(16) % 3
    often = np.repeat(np.arange(16), weights)
    weighed = tr.Data(Y, given=X, group=GROUP, weights=weights)
    twice = tr.Data(Y[often], given=X[often], group=GROUP[often])
    kept = np.isin(weighed.labels, twice.labels)
    found = terms(CITIES, THETA, weighed.arrays())
    np.testing.assert_allclose(found[kept], terms(CITIES, THETA, twice.arrays()), rtol=1e-9)
    np.testing.assert_allclose(found[~kept], 0.0, atol=1e-9)


def test_batches_of_groups_are_unbiased_and_scaled_by_rows_they_are_not():
    """Each set of two groups of six, all fifteen of them: the mean of the estimates is the whole, to the last digit."""
    target = jax.jit(tr.log_posterior(CITIES))
    position = CITIES.unconstrain(THETA)
    rows = DATA.arrays()
    members = DATA.given.counts.sum(1)

    def estimate(pair: tuple[int, int], size: float) -> jax.Array:
        batch = Batch(jax.tree.map(lambda a: a[jnp.array(pair)], rows), jnp.ones(2), size)
        return target(position, batch)

    pairs = list(itertools.combinations(range(6), 2))
    whole_ = float(target(position, whole(rows)))
    by_groups = np.mean([estimate(pair, 6) for pair in pairs])
    by_rows = np.mean([estimate(pair, 2 * 16 / members[list(pair)].sum()) for pair in pairs])
    assert by_groups == pytest.approx(whole_, rel=1e-10)
    assert abs(by_rows - whole_) > 0.01 * abs(whole_)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_normal_integrand_is_integrated_exactly_in_any_dimension(size: int):
    root = np.tril(np.random.default_rng(size).normal(size=(size, size)), -1) + 2 * np.eye(size)
    target = dist.MultivariateNormal(jnp.full(size, 3.0), scale_tril=jnp.asarray(root))
    places, weights = jax.jit(lambda start: around(lambda u: target.log_prob(u) + 1.7, start, *rule(size)))(
        jnp.zeros(size)
    )
    assert float(jax.nn.logsumexp(weights + target.log_prob(places) + 1.7)) == pytest.approx(1.7, abs=1e-6)
    shares = np.exp(np.asarray(weights + target.log_prob(places)))
    np.testing.assert_allclose(shares @ np.asarray(places), 3.0, atol=1e-5)
    np.testing.assert_allclose(np.cov(np.asarray(places).T, aweights=shares, bias=True), root @ root.T, atol=1e-5)


BUSY = tr.Model(
    {"rate": dist.Gamma(2.0, 1.0), "spread": dist.HalfNormal(1.0)},
    lambda p: dist.Poisson(p["rate"] * p["own"]),
    local=lambda p: {"own": dist.LogNormal(0.0, p["spread"])},
)


def test_counts_and_a_positive_effect_by_brute_force():
    """p(y_g | θ) on a grid of the effect itself, so that its log-determinant is looked at too."""
    y, group = np.array([0, 3, 2, 9, 11, 14, 0]), np.array([0, 0, 1, 2, 2, 2, 3])
    theta = {"rate": jnp.array(2.5), "spread": jnp.array(0.8)}
    found = terms(BUSY, theta, tr.Data(y, group=group).arrays())
    log_own = np.linspace(-9.0, 6.0, 20_001)
    own = np.exp(log_own)
    prior = np.asarray(dist.LogNormal(0.0, 0.8).log_prob(own)) + log_own
    for g in range(4):
        logs = prior + sum(np.asarray(dist.Poisson(2.5 * own).log_prob(value)) for value in y[group == g])
        assert float(found[g]) == pytest.approx(np.log(np.trapezoid(np.exp(logs), log_own)), abs=2e-4)


SHIFTS = tr.Model(
    {"mu": dist.Normal(0.0, 3.0)},
    lambda p, x: dist.Normal(p["a"] + x, 1.0),
    local=lambda p: {"a": dist.Normal(p["mu"], 1.5)},
)
SHIFTED = tr.Data(Y, given=X[:, 0], group=GROUP)


def whole_posterior() -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of (μ, a_0 … a_5) where all of them are one normal vector: the whole model's answer."""
    precision, linear = np.zeros((7, 7)), np.zeros(7)
    precision[0, 0] = 1 / 9
    for g in range(6):
        precision[np.ix_([0, g + 1], [0, g + 1])] += np.array([[1, -1], [-1, 1]]) / 1.5**2
        rest = (Y - X[:, 0])[g == GROUP]
        precision[g + 1, g + 1] += len(rest)
        linear[g + 1] += rest.sum()
    covariance = np.linalg.inv(precision)
    return covariance @ linear, np.sqrt(np.diag(covariance))


METHODS = {
    "meanfield": tr.MeanField(batch_size=3, start="random", samples=8, steps=1000),
    "bbb": tr.BayesByBackprop(batch_size=3, start="random", samples=8, learning_rate=0.02, sd=0.5),
    "ivon": tr.IVON(batch_size=3, start="random", samples=8, sd=0.5),
    "sgld": tr.SGLD(batch_size=3, chains=2, draws=4000, warmup=400, bias_tolerance=0.02),
}


@pytest.fixture(scope="module", params=METHODS)
def learnt(request: pytest.FixtureRequest) -> tr.Posterior:
    return tr.infer(SHIFTS, SHIFTED, METHODS[request.param], verify=None, progress=False)


def test_every_method_has_the_whole_models_answer(learnt):
    """Climbs end within 0.02 nats, ½ (δ/sd)² of them the mean's; chains know it by their effective draws."""
    mean, sd = whole_posterior()
    error = 5 / np.sqrt(np.nanmin(learnt.diagnosed.bulk)) if learnt.method.chained else 0.2
    assert learnt.mean()["mu"] == pytest.approx(mean[0], abs=error * sd[0])
    assert learnt.sd()["mu"] == pytest.approx(sd[0], rel=error)
    local = learnt.local(draws=1000)
    share = np.abs(mean_slopes()) * sd[0] / sd[1:]  # sds of a local mean for one of μ
    np.testing.assert_array_less(np.abs(local["a", "mean"] - mean[1:]) / sd[1:], error * share + 1e-6)
    np.testing.assert_allclose(local["a", "sd"], sd[1:], rtol=2 * error * np.max(share**2))


def mean_slopes() -> np.ndarray:
    """d E[a_g | μ, y] / dμ."""
    return 1 / (1 + 1.5**2 * np.bincount(GROUP))


def test_rows_of_known_and_of_new_groups_are_predicted(learnt):
    mean, sd = whole_posterior()
    drawn = 5 / np.sqrt(1000)
    off = 5 / np.sqrt(np.nanmin(learnt.diagnosed.bulk)) if learnt.method.chained else 0.2
    told = learnt.predict(np.array([0.5, 0.5, -1.0, 0.5]), group=np.array([0, 4, 4, 17]))
    new = np.sqrt(1 + 1.5**2 + sd[0] ** 2)
    wanted = np.array([mean[1] + 0.5, mean[5] + 0.5, mean[5] - 1.0, mean[0] + 0.5])
    spread = np.array([np.sqrt(1 + sd[1] ** 2), *[np.sqrt(1 + sd[5] ** 2)] * 2, new])
    np.testing.assert_array_less(np.abs(told.mean - wanted), (drawn + off) * spread)
    np.testing.assert_allclose(told.sd, spread, rtol=drawn + off * sd[0])


def test_a_saved_posterior_tells_locals_and_a_stopped_run_goes_on(tmp_path):
    method: tr.Method = METHODS["sgld"]

    def stop(phase: str, done: int, of: int) -> None:
        if phase == "drawing" and 0 < done < of:
            raise RuntimeError("the machine is gone")

    unbroken = tr.infer(SHIFTS, SHIFTED, method, verify=None, checkpoint=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="gone"):
        tr.infer(SHIFTS, SHIFTED, method, verify=None, checkpoint=tmp_path / "broken", progress=stop)
    again = tr.infer(SHIFTS, SHIFTED, method, verify=None, checkpoint=tmp_path / "broken")
    np.testing.assert_array_equal(again.values, unbroken.values)
    read = tr.load(tmp_path / "whole", SHIFTS, SHIFTED)
    np.testing.assert_array_equal(read.local([4, 1]), unbroken.local([4, 1]))
    with pytest.raises(DataError, match="was loaded without the data of its groups"):
        tr.load(tmp_path / "whole", SHIFTS).local()


@pytest.mark.test
def test_integrals_that_are_not_known_are_no_reason_to_trust():
    """A spread of fifty on the logit scale and answers all alike: far from normal in three numbers at once."""
    three = tr.Model(
        {"mu": dist.Normal(0.0, 1.0)},
        lambda p, x: dist.Bernoulli(logits=p["mu"] + p["a"] @ x),
        local=lambda p: {"a": dist.Normal(jnp.zeros(3), 50.0).to_event(1)},
    )
    inputs = np.random.default_rng(1).normal(size=(80, 3))
    answers = tr.Data(np.arange(80) % 2, given=inputs, group=np.arange(80) // 2)
    for model, data, trusted in ((three, answers, False), (SHIFTS, SHIFTED, True)):
        belief = Draws(positions=np.linspace(-1, 1, 8).reshape(1, 8, 1))
        (check,) = look(Learnt(model, data, None, 0, belief))
        assert check.name == "group integrals" and (check.verdict == "trust") == trusted


WRONG = {
    "name": (
        lambda: tr.Model(PRIOR, OF_ROW, local=lambda p: {"a": dist.Normal(p["nu"], 1)}),
        "asks for 'nu'; expected one of",
    ),
    "twice": (
        lambda: tr.Model(PRIOR, OF_ROW, local=lambda p: {"mu": dist.Normal(0, 1)}),
        "'mu' is in the prior and in local",
    ),
    "no dict": (lambda: tr.Model(PRIOR, OF_ROW, local=lambda p: dist.Normal(0, 1)), "a dict of distributions"),
    "discrete": (lambda: tr.Model(PRIOR, OF_ROW, local=lambda p: {"a": dist.Poisson(1.0)}), "is discrete"),
    "many": (lambda: tr.Model(PRIOR, OF_ROW, local=lambda p: {"a": dist.Normal(jnp.zeros(20), 1)}), "at most 16"),
    "no groups": (lambda: tr.infer(CITIES, tr.Data(Y, given=X), tr.MAP()), r"give Data\(y, group=...\)"),
    "no local": (lambda: tr.infer(tr.Model(PRIOR, OF_ROW), DATA, tr.MAP()), "no parameters for each group"),
    "labels": (lambda: tr.Data(Y, group=GROUP[:3]), r"one label a row, shape \(16,\); got \(3,\)"),
    "no label": (lambda: tr.Data(Y, group=np.where(GROUP > 2, np.nan, GROUP)), "is nan"),
    "likelihood": (lambda: tr.infer(tr.Model(PRIOR, OF_B, local=OWN_A), DATA, tr.MAP()), "asks for 'b'"),
    "one datum": (lambda: CITIES.datum(THETA, DATA.given), "A datum of this model is a group"),
}
OF_ROW, OWN_A = CITIES.likelihood, CITIES.local


def OF_B(p: dict, x: jax.Array) -> dist.Distribution:
    return dist.Normal(p["b"], 1.0)


@pytest.mark.test
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_groups_is_said(what):
    made, sentence = WRONG[what]
    with pytest.raises((DataError, ModelError), match=sentence):
        made()


# Data replicated, and groups left out: everything is normal, so that all of it is known.

RESTS = Y - X[:, 0]
DRAWS = 4000


@pytest.fixture(scope="module")
def exact() -> tr.Posterior:
    """Independent draws of μ, and nothing learnt."""
    mean, sd = whole_posterior()
    positions = mean[0] + sd[0] * np.random.default_rng(11).standard_normal((1, DRAWS, 1))
    data = tr.Data(Y, given=X[:, 0], group=LABELS[GROUP])
    return tr.Posterior(SHIFTS, data, tr.NUTS(), 0, Draws(positions=positions))


def without(g: int) -> tuple[float, float]:
    """Mean and variance of μ given all groups but g."""
    size, kept = np.bincount(GROUP), np.arange(6) != g
    precisions = 1 / (1.5**2 + 1 / size)
    variance = 1 / (1 / 9 + precisions[kept].sum())
    return variance * (precisions * np.bincount(GROUP, RESTS) / size)[kept].sum(), variance


def assert_normal(drawn: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Means, and all covariances, of draws (s, n) of one normal law."""
    sds, count = np.sqrt(np.diag(covariance)), len(drawn)
    error = covariance**2 + np.outer(sds, sds) ** 2
    np.testing.assert_array_less(np.abs(drawn.mean(0) - mean), 5.33 * sds / np.sqrt(count))
    np.testing.assert_array_less(np.abs(np.cov(drawn.T) - covariance), 5.33 * np.sqrt(error / count))


def shared(of_group: float, of_all: float) -> np.ndarray:
    """Covariance of rows that share their group's variance, and that of all."""
    return np.eye(16) + of_group * (GROUP[:, None] == GROUP) + of_all


@pytest.mark.test
def test_rows_are_replicated_in_their_groups_as_the_whole_model_says(exact):
    mean, sd = whole_posterior()
    slopes, within = mean_slopes()[GROUP], 1 / (1 / 1.5**2 + np.bincount(GROUP))  # Var[a_g | μ, y]
    known = np.eye(16) + (GROUP[:, None] == GROUP) * within[GROUP] + sd[0] ** 2 * np.outer(slopes, slopes)
    drawn = exact.posterior_predictive(seed=1)[0]
    assert_normal(drawn, mean[1 + GROUP] + X[:, 0], known)
    new = exact.posterior_predictive(X[:, 0], group=np.char.add("new ", LABELS[GROUP]), seed=1)[0]
    assert_normal(new, mean[0] + X[:, 0], shared(1.5**2, sd[0] ** 2))
    assert_normal(exact.prior_predictive(draws=DRAWS), X[:, 0], shared(1.5**2, 9.0))
    with pytest.raises(AssertionError):  # groups that were taken for new ones
        assert_normal(new, mean[1 + GROUP] + X[:, 0], known)


@pytest.mark.test
def test_a_group_is_left_out_with_all_of_its_rows(exact):
    """Against the closed form, within the error of so many draws reweighed by 1 / p(y_g | μ)."""
    found, below = exact.loo(), exact.pit(draws=DRAWS)
    assert found.unit == "group" and "6 groups, each left out with all of its rows" in str(found)
    logs = exact.log_likelihood()[0].astype(np.float64)
    weights = np.exp(logs.min(0) - logs)
    unlike = weights.var(0) / weights.mean(0) ** 2
    for place, label in enumerate(exact.data.labels):
        g = int(np.flatnonzero(label == LABELS)[0])
        own, (mean, variance) = g == GROUP, without(g)
        law = stats.multivariate_normal(X[own, 0] + mean, shared(1.5**2, variance)[np.ix_(own, own)])
        error = 5.33 * np.sqrt(unlike[place] / DRAWS) + 1e-4
        assert found.pointwise[place] == pytest.approx(law.logpdf(Y[own]), abs=error)
        rows = stats.norm.cdf(RESTS[own], mean, np.sqrt(1 + 1.5**2 + variance))
        spread = np.sqrt(rows * (1 - rows) * (1 + unlike[place]) / DRAWS)
        np.testing.assert_array_less(np.abs(below[own] - rows), 5.33 * spread + 1e-3)
    assert found.elpd == pytest.approx(found.pointwise.sum())
    assert exact.pit(draws=DRAWS, rows=2).shape == (np.isin(LABELS[GROUP], ["Aarau", "Uri"]).sum(),)


def test_arviz_has_rows_in_their_order_and_densities_by_group(exact):
    tree = exact.to_arviz(draws=5)
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "group")
    assert list(tree["log_likelihood"]["group"].values) == sorted(LABELS)
    np.testing.assert_array_equal(tree["observed_data"]["y"], Y)
    np.testing.assert_array_equal(tree["constant_data"]["x"], X[:, 0])
    np.testing.assert_array_equal(tree["constant_data"]["group_of_row"], LABELS[GROUP])
    assert tree["posterior_predictive"]["y"].shape == (1, 5, 16) and "left_out" not in tree.attrs


@pytest.mark.test
def test_a_page_tells_groups_and_their_rows(exact):
    mean, sd = whole_posterior()
    (told,) = parameters.of_groups(exact)
    rows = [[cell.value for cell in row] for row in told.parts[0].cells]
    order = np.argsort(LABELS)
    assert [row[0] for row in rows] == sorted(LABELS)
    error = 5.33 * sd[0] * mean_slopes()[order] / np.sqrt(100)
    np.testing.assert_array_less(np.abs(np.array([row[1] for row in rows]) - mean[1:][order]), error)
    np.testing.assert_allclose([row[2] for row in rows], sd[1:][order], rtol=0.1)  # a part of it by 100 draws of μ
    assert usual_facts(exact)["groups"].value == 6 and usual_facts(exact)["rows of data"].value == 16
    seen = predictive.replicate_rows(exact)
    np.testing.assert_array_equal(seen.y, Y)
    off = 5.33 * np.sqrt(2.0 / len(seen.drawn))  # Var[y* | y] is below 2
    np.testing.assert_array_less(np.abs(seen.drawn.mean(0) - mean[1 + GROUP] - X[:, 0]), off)


@pytest.mark.quick
def test_a_bound_that_is_not_known_is_no_reason_to_trust(exact):
    for error, verdict in ((0.01, "trust"), (0.6, "caution")):
        learnt = replace(exact, found={"gain": 0.0, "gain error": error})
        assert tr.MeanField(batch_size=3).checks(learnt)[0].verdict == verdict


@pytest.mark.quick
def test_rows_come_back_in_their_order_whatever_they_weigh():
    weighed = tr.Data(Y, given=X, group=GROUP, weights=np.arange(16) % 3)
    np.testing.assert_array_equal(weighed.members().y, Y)
    np.testing.assert_array_equal(weighed.labels[weighed.places], GROUP)
    some = weighed.take([4, 1])
    np.testing.assert_array_equal(some.members().y, Y[np.isin(GROUP, [4, 1])])
    np.testing.assert_array_equal(some.labels[some.places], GROUP[np.isin(GROUP, [4, 1])])


def test_batches_corrected_at_an_anchor_are_unbiased_and_differ_by_little():
    """Each set of two groups of six, all fifteen, at an sd or so from the anchor."""
    rows, plain = DATA.arrays(), jax.jit(tr.log_posterior(CITIES, flat=True))
    corrected = jax.jit(lambda z, batch: plain(z, None) + corrected_at(THETA)(z, batch, batch.scale))
    near = CITIES.position_of(THETA) + 0.1 * np.array([1.0, -1.0, 1.0, -1.0])
    pairs = map(jnp.array, itertools.combinations(range(6), 2))
    batches = [Batch(jax.tree.map(lambda a, at=pair: a[at], rows), jnp.ones(2), 6) for pair in pairs]
    told, noisy = (np.array([target(near, batch) for batch in batches]) for target in (corrected, plain))
    assert told.mean() == pytest.approx(float(plain(near, whole(rows))), rel=1e-6)
    assert told.std() < 0.1 * noisy.std()


def corrected_at(theta: dict) -> Callable:
    place = CITIES.position_of(theta)
    value, slope = _likelihood(CITIES, place, whole(DATA.arrays()))
    return anchored_likelihood(CITIES, {"place": place, "value": value, "slope": slope})


@pytest.mark.parametrize("kl_weights", ["uniform", "geometric"])
def test_an_epoch_of_corrected_batches_is_the_whole_bound(kl_weights: str):
    """Of four and of two groups, for one draw of the weights: Blundell's costs sum to the whole, corrected or not."""
    made = partial(objectives.bayes_by_backprop, CITIES, kl_weights=kl_weights)
    mean = CITIES.unconstrain(THETA)
    phi = {"mean": mean, "rho": jax.tree.map(lambda a: jnp.full(a.shape, -2.0), mean)}
    noise = jax.tree.map(lambda a: a[0], made().draw(jax.random.key(0), 1, phi))
    rows, cuts = DATA.arrays(), [slice(0, 4), slice(4, 6)]
    batches = [
        Batch(jax.tree.map(lambda a, at=cut: a[at], rows), jnp.ones(cut.stop - cut.start), 6, index, 2)
        for index, cut in enumerate(cuts)
    ]
    wanted = _values(made(), noise, phi, [whole(rows)]).mean()
    assert _values(made(likelihood=corrected_at(THETA)), noise, phi, batches).mean() == pytest.approx(wanted, rel=1e-6)

    def by_size(z: jax.Array, batch: Batch, times: jax.Array) -> jax.Array:
        return corrected_at(THETA)(z, batch, batch.scale)

    if kl_weights == "uniform":  # with N/n in place of M a batch of two counts more than its share
        values = _values(made(likelihood=by_size), noise, phi, batches)
        assert abs(values.mean() - wanted) > 1e-3 * abs(wanted)


def _values(objective: Any, noise: Any, phi: dict, batches: list[Batch]) -> np.ndarray:
    return np.array([jax.jit(lambda *at, batch=batch: objective.value(*at, batch))(noise, phi) for batch in batches])


@pytest.mark.parametrize(("make", "off"), [(partial(tr.MeanField, steps=2000), 0.05), (tr.BayesByBackprop, 0.1)])
def test_a_climb_by_corrected_batches_is_exact_and_goes_on_after_a_stop(tmp_path, make: Callable, off: float):
    """Forty groups of three, μ normal in closed form: what is left of the error is the draws' that q's moments need.

    Eight draws a step for the first method, one for the other.
    """
    rng = np.random.default_rng(4)
    group, x = np.repeat(np.arange(40), 3), rng.normal(size=120)
    y = rng.normal(1.0, 1.5, 40)[group] + x + rng.normal(size=120)
    data, method = tr.Data(y, given=x, group=group), make(batch_size=8, draws=100)
    precision = 40 / (1.5**2 + 1 / 3)
    variance = 1 / (1 / 9 + precision)

    def stop(phase: str, done: int, of: int) -> None:
        if phase == "climbing the bound" and done > 4:
            raise RuntimeError("the machine is gone")

    unbroken = tr.infer(SHIFTS, data, method, verify=None)
    assert unbroken.mean()["mu"] == pytest.approx(variance * precision * np.mean(y - x), abs=off * variance**0.5)
    assert unbroken.sd()["mu"] == pytest.approx(variance**0.5, rel=0.04)
    with pytest.raises(RuntimeError, match="gone"):
        tr.infer(SHIFTS, data, method, verify=None, checkpoint=tmp_path, progress=stop)
    again = tr.infer(SHIFTS, data, method, verify=None, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.values, unbroken.values)


@pytest.mark.test
def test_three_looks_at_all_groups_mend_a_mode_by_some():
    """log p(μ | y) is quadratic: by a curvature 1.3 times the right one each look leaves 1 − 1/1.3 of the way."""
    mean, sd = whole_posterior()
    ended = nearer(SHIFTS, SHIFTED, np.array([mean[0] + 5 * sd[0]]), np.array([[sd[0] / 1.3**0.5]]))
    assert (ended[0] - mean[0]) / sd[0] == pytest.approx(5 * (1 - 1 / 1.3) ** 3, rel=0.01)
