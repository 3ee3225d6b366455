"""Codes, new rows, rows again, missing numbers and what rows are worth, against sums over all h."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract_method import quick_compilation
from montecarlo import Z, assert_holds, broken, error, of_p
from scipy import stats
from scipy.special import expit, logsumexp

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.diagnostics.belief import Coded, Draws, Point
from tractable.ladders import bounds, imputing
from tractable.ladders import encoding as coding
from tractable.ladders.autoencoding import AutoEncoding
from tractable.ladders.bounds import moments_of_codes
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import categorical, layer, normal_noise, standard_normal, top
from tractable.posterior.posterior import Posterior

pytestmark = pytest.mark.laws

REPLICATES = 200


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Programs here run for less than they compile."""
    with quick_compilation():
        yield


def at_random(ladder: Ladder, scale: float, data=None, seed: int = 0) -> Posterior:
    """A posterior at weights drawn from a normal: laws hold at any."""
    params, generator = ladder.initial(jax.random.key(0)), np.random.default_rng(seed)
    params = jax.tree.map(lambda a: jnp.asarray(scale * generator.normal(size=a.shape)), params)
    point = np.asarray(ladder.space.ravel(params["theta"]))
    found = {"settled": True, "elbo": 0.0, "bound": 0.0, "weights' sample size": 1.0, "samples": 10}
    found |= {f"{what} h{i + 1}": 1 for i in range(ladder.depth) for what in ("cost", "active")}
    return Posterior(ladder, data, AutoEncoding(), 0, Coded(position=point, network=params["phi"]), found)


BELIEF = Ladder([layer(3, 4), layer(2, 3), top(2)], bottom_up([layer(4, 3), layer(3, 2)]))
PIXELS = np.array(list(itertools.product([0.0, 1.0], repeat=4)))  # every x
NET = at_random(BELIEF, 1.5, tr.Data(PIXELS))
CAUSES: Any = BELIEF.causes
H1, H2 = (np.asarray(part, float) for part in CAUSES)


@functools.cache
def exact() -> dict[str, np.ndarray]:
    """log p(x, h), log q(h | x) (x, h), E[x | h] (h, 4), told in numpy."""
    w = jax.tree.map(np.asarray, coding.network_of(NET, "a test")[1])

    def through(params, above):
        return above @ params["layer0"]["weight"] + params["layer0"]["bias"]

    def log_bernoulli(value, logits):
        return np.sum(value * logits - np.logaddexp(0, logits), -1)

    theta, phi = w["theta"], w["phi"]["layers"]
    x_given, h1_given = through(theta["x"], H1), through(theta["h1"], H2)
    log_prior = log_bernoulli(H1, h1_given) + log_bernoulli(H2, theta["h2"]["bias"])
    log_p = log_bernoulli(PIXELS[:, None], x_given[None]) + log_prior[None]
    seen = PIXELS - w["phi"]["centre"]
    q1, q2 = through(phi["h1"], seen), through(phi["h2"], H1)
    log_q = log_bernoulli(H1[None], q1[:, None]) + log_bernoulli(H2, q2)[None]
    return {"log_p": log_p, "log_q": log_q, "mean": expit(x_given), "q1": expit(q1), "q2": expit(q2)}


# Codes.


def encoding(found) -> dict[str, float]:
    """Moments of each layer; of a layer that depends on a drawn one in units of their error."""
    q = np.exp(exact()["log_q"])  # (x, h)
    mean2 = q @ H2
    variance = q @ np.square(exact()["q2"]) - np.square(q @ exact()["q2"])  # of E[h² | h¹]
    (mean, var, spread), (deep, deep_var, deep_spread) = [tuple(map(np.asarray, each)) for each in found]
    draws = 2000
    return {
        "mean h1": error(mean, exact()["q1"], 1e-12),
        "variance h1": error(var, exact()["q1"] * (1 - exact()["q1"]), 1e-12),
        "no error h1": error(spread, 0, 1e-12),
        "mean h2": float(np.max(np.abs(deep - mean2) / np.sqrt(variance / draws))) / Z,
        "variance h2": error(deep_var, deep * (1 - deep), 1e-12),  # Bernoulli's, whatever the draws
        "error h2": float(np.max(np.abs(deep_spread * draws / variance - 1))) / 0.3,
    }


def test_moments_of_codes():
    params = coding.network_of(NET, "a test")[1]

    def told(mutant=None):
        found = [list(each) for each in moments_of_codes(BELIEF, params, jnp.asarray(PIXELS), jax.random.key(1), 2000)]
        if mutant is not None:
            mutant(found)
        return encoding(found)

    def at_the_mean(found):  # E[h² | E h¹]
        bias, weight = (np.asarray(params["phi"]["layers"]["h2"]["layer0"][n]) for n in ("bias", "weight"))
        found[1][0] = expit(exact()["q1"] @ weight + bias)
        found[1][1] = found[1][0] * (1 - found[1][0])

    def within_only(found):
        found[1][1] = found[1][1] - 1999 * found[1][2]

    def not_of_the_mean(found):
        found[1][2] = found[1][2] * 2000

    assert_holds(told())
    for mutant, name in ((at_the_mean, "mean h2"), (within_only, "variance h2"), (not_of_the_mean, "error h2")):
        assert name in broken(told(mutant)), mutant


def test_encode():
    whole = NET.encode(PIXELS, draws=3000, seed=2)
    assert whole.averaged == (0, coding.AVERAGED) and whole.draws is not None
    assert [a.shape for a in whole.mean] == [a.shape for a in whole.sd] == [(16, 3), (16, 2)]
    np.testing.assert_allclose(whole.sd[1] ** 2, whole.mean[1] * (1 - whole.mean[1]), atol=1e-12)
    some = NET.encode(PIXELS[:5], draws=3000, seed=2)  # a row is what it is whatever stands beside it
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), some.mean, tuple(m[:5] for m in whole.mean))
    assert some.draws is not None
    np.testing.assert_array_equal(some.draws[0], whole.draws[0][:, :5])
    codes = np.concatenate(whole.draws, -1)  # (draw, x, 5)
    states = codes @ (2 ** np.arange(5)[::-1])
    order = np.concatenate([H1, H2], 1) @ (2 ** np.arange(5)[::-1])
    scores = {}
    for i in (0, 7, 15):
        counts = np.bincount(states[:, i].astype(int), minlength=32)[order.astype(int)]
        scores[f"draws of row {i}"] = chi_squared(counts, np.exp(exact()["log_q"][i]))
    assert_holds(scores)


def chi_squared(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's, of cells that are expected five times or more and the rest as one."""
    expected = probabilities / probabilities.sum() * counts.sum()
    cell = np.where(expected >= 5, np.arange(len(expected)), len(expected))
    cell = np.unique(cell, return_inverse=True)[1]
    return of_p(stats.chisquare(np.bincount(cell, counts), np.bincount(cell, expected)).pvalue)


def test_parts_of_rows_are_the_whole(monkeypatch):
    def asked():
        bound = NET.log_evidence(PIXELS, samples=200)
        return NET.encode(PIXELS, draws=2), NET.reconstruct(PIXELS), NET.generate(16), bound.log_evidence, bound.elbo

    before = asked()
    monkeypatch.setattr(coding, "numbers", lambda: 5000)
    monkeypatch.setattr(bounds, "numbers", lambda: 5000)
    assert coding.rows_together(BELIEF, 100) < 16
    after = asked()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), before, after)


# New rows, and rows again.


@pytest.mark.test
def test_generate():
    made = NET.generate(20_000, seed=3)
    assert made.x.shape == made.mean.shape == (20_000, 4) and [h.shape[1] for h in made.h] == [3, 2]
    index, order = (
        np.asarray(np.concatenate(h, 1) @ (2 ** np.arange(5)[::-1]), int) for h in (made.h, (H1, H2))
    )  # each h as a number
    mean = exact()["mean"][np.argsort(order)]
    counts = np.bincount(made.x.astype(int) @ np.array([8, 4, 2, 1]), minlength=16)
    prior = np.exp(logsumexp(exact()["log_p"], axis=0))
    joint = np.bincount(index, minlength=32)[order]
    scores = {
        "x": chi_squared(counts, np.exp(logsumexp(exact()["log_p"], axis=1))),
        "h": chi_squared(joint, prior),
        "mean": error(made.mean, mean[index], 1e-12),
    }
    assert_holds(scores)
    np.testing.assert_array_equal(NET.generate(5, seed=3).x, made.x[:5])
    assert np.any(NET.generate(5, seed=4).mean != made.mean[:5])


def test_reconstruct():
    q = np.exp(exact()["log_q"])
    wanted = q @ exact()["mean"]
    variance = q @ np.square(exact()["mean"]) - np.square(wanted)
    again = NET.reconstruct(PIXELS, draws=2000, seed=5)
    assert_holds({"E[x | h]": float(np.max(np.abs(again - wanted) / np.sqrt(variance / 2000))) / Z})
    assert not broken({"one draw is one mean": error(NET.reconstruct(PIXELS[:1]), wanted[:1], 1.0)})
    assert NET.reconstruct(PIXELS[:2], draws=1).shape == (2, 4)


# Missing numbers.


def imputation(complete, seen, row) -> dict[str, float]:
    """E[x_m | x_o], and the law of all that is missing, each a mean of independent estimates."""
    keys = jax.random.split(jax.random.key(7), REPLICATES)
    complete = functools.partial(complete, BELIEF, (50, 400, 3), coding.network_of(NET, "a test")[1])
    mean, draws, _, effective = jax.jit(jax.vmap(complete, in_axes=(0, None, None)))(
        keys, jnp.where(jnp.asarray(seen), jnp.asarray(row), 0.0), jnp.asarray(seen)
    )
    agree = np.all(PIXELS[:, seen] == np.asarray(row)[seen], axis=1)
    posterior = np.where(agree, np.exp(logsumexp(exact()["log_p"], axis=1)), 0)
    posterior /= posterior.sum()
    told = np.asarray(draws).astype(int) @ [8, 4, 2, 1]  # (replicate, draw)
    shares = np.stack([np.mean(told == i, axis=1) for i in np.flatnonzero(agree)], 1)
    scores = {"seen": error(np.asarray(mean)[:, seen], np.asarray(row)[seen], 1e-12)}
    scores["weights"] = 0.0 if np.all((effective >= 1 - 1e-9) & (effective <= 400)) else np.inf
    for name, values, wanted in (
        ("mean", np.asarray(mean)[:, ~seen], (posterior @ PIXELS)[~seen]),
        ("draws", shares, posterior[agree]),
    ):
        z = (values.mean(0) - wanted) / (values.std(0, ddof=1) / np.sqrt(REPLICATES))
        scores[name] = float(np.max(np.abs(z))) / Z
    return scores


def mutated(weights):
    """Weights that forget something."""

    def weighed(ladder, params, key, filled, x, seen):
        h, log_w = WEIGHED(ladder, params, key, filled, x, seen)
        p, *above = ladder.generative(params["theta"], h)
        prior = sum(p_i.log_prob(h_i) for p_i, h_i in zip(above, h, strict=True))
        known = jnp.sum(jnp.where(seen[None, None], p.base_dist.log_prob(x[None]), 0.0), -1)
        terms = {"w": log_w[None], "known": known, "prior": prior}
        terms["completed"] = jnp.sum(p.base_dist.log_prob(filled[None]), -1)
        terms["zeros"] = jnp.sum(p.base_dist.log_prob(jnp.where(seen, x[0], 0)[None, None]), -1)
        return h, weights(terms)[0]

    return weighed


WEIGHED = imputing.weigh_proposals
MUTANTS = {
    "not weighed": lambda t: 0 * t["w"],
    "completions as if seen": lambda t: t["w"] - t["known"] + t["completed"],
    "gaps as zeros": lambda t: t["w"] - t["known"] + t["zeros"],
    "without the prior": lambda t: t["w"] - t["prior"],
    "without the proposal": lambda t: t["known"] + t["prior"],
    "as if all came from the model": lambda t: t["known"],
}
ROW, SEEN = [1.0, 0.0, 1.0, 0.0], np.array([True, False, True, False])


def test_impute_is_exact():
    assert_holds(imputation(imputing.complete_row, SEEN, ROW))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_impute_catches(mutant, monkeypatch):
    monkeypatch.setattr(imputing, "weigh_proposals", mutated(MUTANTS[mutant]))
    assert {"mean", "draws"} & set(broken(imputation(imputing.complete_row, SEEN, ROW)))


@pytest.mark.test
def test_weights_of_completions_are_those_of_a_mixture_of_proposals():
    """w = p(x_o | h) p(h) / (0.8 q(h | completed x) + 0.2 p(h)), h drawn for each of the completions."""
    params, x = coding.network_of(NET, "a test")[1], jnp.asarray(ROW)[None]
    filled = jnp.asarray(PIXELS)
    weighed = jax.jit(imputing.weigh_proposals, static_argnums=0)
    h, log_w = weighed(BELIEF, params, jax.random.key(3), filled, x, jnp.asarray(SEEN))
    place = [
        int(np.flatnonzero(np.all(a == H1, 1) & np.all(b == H2, 1))[0]) for a, b in zip(h[0][0], h[1][0], strict=True)
    ]
    log_p, log_q = exact()["log_p"], exact()["log_q"][np.arange(16), place]
    agree = np.all(PIXELS[:, SEEN] == np.array(ROW)[SEEN], 1)
    of_seen = logsumexp(log_p[agree], axis=0)[place]  # log p(x_o, h)
    log_prior = logsumexp(log_p, axis=0)[place]
    wanted = of_seen - np.log(0.8 * np.exp(log_q) + 0.2 * np.exp(log_prior))
    np.testing.assert_allclose(log_w, wanted, rtol=1e-9)


@pytest.mark.test
def test_impute_of_normal_rows():
    """x = W h + ε: E[x_m | x_o] of a multivariate normal."""
    ladder = Ladder([layer(1, 3, normal_noise(0.7)), standard_normal(1)], bottom_up([layer(3, 1, "normal")]))
    net = at_random(ladder, 0.8)
    weight, bias = (np.asarray(coding.theta_of(net, "")[1]["x"]["layer0"][n]) for n in ("weight", "bias"))
    covariance, row = weight.T @ weight + 0.49 * np.eye(3), np.array([0.5, np.nan, -0.4])
    wanted = bias[1] + covariance[1, [0, 2]] @ np.linalg.solve(covariance[np.ix_([0, 2], [0, 2])], (row - bias)[[0, 2]])
    found = net.impute(np.tile(row, (REPLICATES, 1)), draws=3, samples=400, steps=2)
    assert found.draws.shape == (3, REPLICATES, 3) and found.h[0].shape == (3, REPLICATES, 1)
    values = found.mean[:, 1]
    assert_holds({"mean": abs(values.mean() - wanted) / (values.std(ddof=1) / np.sqrt(REPLICATES)) / Z})
    np.testing.assert_array_equal(found.draws[:, :, [0, 2]], np.broadcast_to(row[[0, 2]], (3, REPLICATES, 2)))


@pytest.mark.test
def test_categorical_rows():
    ladder = Ladder([layer(2, 3, categorical(4)), standard_normal(2)], bottom_up([layer(12, 2, "normal")]))
    net, x = at_random(ladder, 1.0), np.array([[0, 3, 1], [2, 2, 0]])
    assert net.reconstruct(x).shape == (2, 12) and net.encode(x).averaged == (0,)
    np.testing.assert_allclose(net.generate(3).mean.reshape(3, 3, 4).sum(-1), 1.0)
    gaps = np.array([[0, np.nan, 1], [2, 2, np.nan]])
    found = net.impute(gaps, draws=4, samples=50, steps=1)
    assert found.mean.shape == (2, 3) and set(np.unique(found.draws)) <= {0, 1, 2, 3}
    np.testing.assert_array_equal(found.mean[:, 0], [0, 2])


# What rows are worth.


@pytest.mark.test
def test_bounds_do_not_depend_on_the_parts_in_which_rows_are_looked_at(monkeypatch):
    params, data = coding.network_of(NET, "a test")[1], tr.Data(PIXELS)
    whole = bounds.bounds(BELIEF, params, data, jax.random.key(5), 3)
    monkeypatch.setattr(bounds, "numbers", lambda: 5 * 3 * 9)  # five rows of three draws of nine numbers
    for one, other in zip(
        jax.tree.leaves(bounds.bounds(BELIEF, params, data, jax.random.key(5), 3)), jax.tree.leaves(whole), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_evidence():
    log_p, log_q = exact()["log_p"], exact()["log_q"]
    wanted = logsumexp(log_p, axis=1)
    bound = np.sum(np.exp(log_q) * (log_p - log_q), axis=1)
    found = NET.log_evidence(samples=20_000)
    mean_weight = np.exp(found.log_evidence - wanted)  # 1 in expectation
    scores = {
        "exact": error(found.exact, wanted, 1e-10),
        "evidence": float(np.max(np.abs(mean_weight - 1) / found.error)) / Z,
        "mean": error(found.mean, found.log_evidence.mean(), 1e-12),
        "error": error(found.mean_error, found.log_evidence.std(ddof=1) / 4, 1e-12),
        "elbo below": float(np.max(found.elbo - wanted) > 0) * np.inf if np.max(found.elbo - wanted) > 0 else 0.0,
        "lower": 0.0 if found.lower < found.estimate and found.lower <= wanted.sum() else np.inf,
        "estimate": error(found.estimate, found.log_evidence.sum(), 1e-9),
    }
    variance = np.sum(np.exp(log_q) * np.square(log_p - log_q), axis=1) - np.square(bound)
    of_elbo = NET.elbo(PIXELS, samples=5000)
    scores["elbo"] = float(np.max(np.abs(of_elbo - bound) / np.sqrt(variance / 5000))) / Z
    assert_holds(scores)
    one = NET.log_evidence(PIXELS, samples=1, seed=3)
    np.testing.assert_allclose(one.log_evidence, one.elbo, atol=1e-12)
    np.testing.assert_array_equal(NET.log_predictive(PIXELS, draws=7), NET.log_evidence(PIXELS, samples=7).log_evidence)


def sandwiching(own) -> dict[str, float]:
    """The gap of one draw and of many, against sums over x, the h it came from, and h drawn under q."""
    log_p, log_q = exact()["log_p"], exact()["log_q"]
    log_w = log_p - log_q
    share = np.exp(log_p)[:, :, None] * np.exp(log_q)[:, None, :]  # (x, h*, h)
    gap = np.logaddexp(log_w[:, :, None], log_w[:, None, :]) - np.log(2) - log_w[:, None, :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "_own_weights", own)
        one, many = (NET.log_evidence(PIXELS, samples=k, simulated=n).simulated for k, n in ((1, 4000), (20_000, 200)))
    truth = float(np.sum(np.exp(log_p) * logsumexp(log_p, axis=1, keepdims=True)))  # E log p(x)
    spread = np.sqrt(np.sum(np.exp(log_p) * np.square(logsumexp(log_p, axis=1, keepdims=True) - truth)) / 200)
    return {
        "one": abs(one.gap - np.sum(share * gap)) / one.error / Z,
        "many": 0.0 if 0 <= many.gap <= 0.1 else np.inf,
        "truth": abs((many.lower + many.upper) / 2 - truth) / (spread + 0.1) / Z,
    }


def test_a_sandwich_of_rows_of_its_own():
    right = coding._own_weights
    assert_holds(sandwiching(right))

    def of_any_h(ladder, params, x, h):
        return right(ladder, params, x, jax.tree.map(lambda a: jnp.roll(a, 1, axis=0), h))

    def without_q(ladder, params, x, h):
        return sum(ladder.log_p(params["theta"], x, h))

    for wrong in (of_any_h, without_q):
        assert broken(sandwiching(wrong)), wrong.__name__
    assert NET.log_evidence(PIXELS, samples=2).simulated is None
    assert "on rows that the model generated" in repr(NET.log_evidence(PIXELS, samples=2, simulated=3))
    with pytest.raises(SettingsError, match=r"simulated=...\) expects a whole number ≥ 0"):
        NET.log_evidence(PIXELS, simulated=-1)


def test_annealing_layers():
    """Σ log p(x | θ) of a ladder whose every layer is normal and linear, in closed form, from below and above."""
    layers = [layer(2, 3, family=normal_noise(1.0)), layer(2, 2, family=normal_noise(0.7)), standard_normal(2)]
    ladder = Ladder(layers, bottom_up([layer(3, 2, family="normal"), layer(2, 2, family="normal")]))
    theta = ladder.initial(jax.random.key(2))["theta"]
    x, h = ladder.sample(jax.random.key(1), theta, 16)
    w1, w2 = (np.asarray(theta[name]["layer0"]["weight"]) for name in ("x", "h1"))
    assert not any(np.any(theta[name]["layer0"]["bias"]) for name in ("x", "h1"))
    covariance = w1.T @ (w2.T @ w2 + 0.49 * np.eye(2)) @ w1 + np.eye(3)
    truth = np.sum(stats.multivariate_normal(np.zeros(3), covariance).logpdf(np.asarray(x)))
    found = tr.log_evidence(ladder, np.asarray(x), theta=theta, z=h, chains=32, temperatures=80)
    assert found.lower <= truth <= found.upper and found.upper - found.lower < 16
    assert abs(found.estimate - truth) < Z * found.standard_error < 5
    with pytest.raises(ModelError, match=r"z is discrete \(Bernoulli units of layer 1, Bernoulli units of layer 2\)"):
        tr.log_evidence(BELIEF, PIXELS, theta=coding.theta_of(NET, "a test")[1], method="annealed")


@pytest.mark.test
def test_held_out():
    """Rows that the ladder itself dreams are as likely as others of its; noise is not."""
    x = NET.generate(400, seed=11).x.astype(float)
    net = at_random(BELIEF, 1.5, tr.Data(x[:200]))
    same = net.report(held_out=x[200:])
    assert same.checks[-1].name == "held-out gap" and same.checks[-1].verdict == "trust"
    rare = PIXELS[np.argsort(logsumexp(exact()["log_p"], axis=1))[:3]]
    other = net.report(held_out=np.tile(rare, (60, 1)))
    assert other.checks[-1].verdict == other.verdict == "caution" and "overfitted" in other.checks[-1].sentence
    assert net.report().checks == same.checks[:-1], "the report itself is as it was"
    with pytest.raises(DataError, match="got the fitted rows"):
        coding.held_out(net, x[:200])


# Sentences.


@pytest.mark.test
@pytest.mark.parametrize(
    ("ask", "kind", "match"),
    [
        (lambda: NET.encode(PIXELS[:, :3]), DataError, r"rows of shape \(n, 4\); got shape \(16, 3\)"),
        (lambda: NET.encode(PIXELS[0]), DataError, r"for a single row pass x\[None\], of shape \(1, 4\)"),
        (lambda: NET.encode(0.5 * PIXELS), DataError, "binarise them"),
        (lambda: NET.encode(np.where(PIXELS == 1, np.nan, 0)), DataError, "not finite"),
        (lambda: NET.encode(PIXELS, draws=-1), SettingsError, r"encode\(draws=...\) expects a whole number ≥ 0"),
        (lambda: NET.elbo(PIXELS, samples=0), SettingsError, r"samples=...\) expects a whole number ≥ 1; got 0"),
        (lambda: NET.encode(PIXELS, seed=2**32), SettingsError, r"encode\(seed\) expects a whole number from 0"),
        (lambda: NET.generate(2, seed=-1), SettingsError, r"generate\(seed\) expects a whole number from 0"),
        (lambda: NET.reconstruct(PIXELS, seed=2**32), SettingsError, r"reconstruct\(seed\) expects"),
        (lambda: NET.log_evidence(seed=2**32), SettingsError, r"log_evidence\(seed\) expects"),
        (lambda: NET.impute(PIXELS, seed=2**32), SettingsError, r"impute\(seed\) expects"),
        (lambda: NET.impute(np.ma.masked_array(PIXELS, PIXELS == 1)), DataError, "x is a masked array that hides"),
        (lambda: NET.log_evidence(PIXELS[:, :2]), DataError, r"\(n, 4\)"),
        (lambda: NET.generate(0), SettingsError, "≥ 1; got 0"),
        (lambda: NET.impute(PIXELS[:, :3]), DataError, r"impute\(x\) expects rows of shape \(n, 4\)"),
        (lambda: NET.impute(np.where(PIXELS == 1, np.nan, 0.5)), DataError, "outside the support"),
        (lambda: NET.predict(PIXELS), DataError, r"generate\(n\).*reconstruct\(x\)"),
    ],
)
def test_sentences(ask, kind, match):
    with pytest.raises(kind, match=match):
        ask()


@pytest.mark.test
def test_sentences_of_other_posteriors():
    normal = tr.Model({"mu": tr.models.linear.dist.Normal(0.0, 1.0)}, None)
    other = Posterior(normal, None, tr.MAP(), 0, Point(position=np.zeros(1)))
    for ask in (lambda: other.encode(PIXELS), lambda: other.generate(2), lambda: other.elbo(PIXELS)):
        with pytest.raises(SettingsError, match="is for ladders; this posterior is of a Model"):
            ask()
    without = Posterior(BELIEF, tr.Data(PIXELS), tr.MAP(), 0, Point(position=NET.point))
    assert without.generate(2).x.shape == (2, 4)
    with pytest.raises(SettingsError, match="MAP learnt none; AutoEncoding"):
        without.reconstruct(PIXELS)
    many = Posterior(BELIEF, tr.Data(PIXELS), tr.NUTS(), 0, Draws(positions=np.zeros((1, 2, BELIEF.space.size))))
    with pytest.raises(SettingsError, match="single θ, and NUTS drew many"):
        many.generate(2)
