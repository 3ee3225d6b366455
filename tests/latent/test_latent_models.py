"""Latent models: what is summed out, drawn and differentiated, against sums written out.

A law takes what it judges and returns scores; wrong ones must break it.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from montecarlo import Scores, assert_holds, broken, error, z_mean
from numpyro.distributions import constraints

import tractable as tr
from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel, Marginal
from tractable.core.model import log_density, whole
from tractable.latent.em import em
from tractable.latent.gradient_em import (
    CompleteData,
    by_enumeration,
    climb_by_lbfgs,
    expected_log_joint,
    gradient_m_step,
)

pytestmark = [pytest.mark.laws, pytest.mark.usefixtures("strict_ranks")]

RNG = np.random.default_rng(3)
PARAMS = {"good": jnp.array(0.6), "mean": jnp.array([4.0, 8.0]), "sd": jnp.array(1.2)}
PRIOR = {
    "good": dist.Beta(2.0, 2.0),
    "mean": dist.Normal(jnp.array([4.0, 7.0]), 2.0).to_event(1),
    "sd": dist.LogNormal(0.0, 1.0),
}


def mood(p: Any) -> dist.Distribution:
    return dist.Bernoulli(p["good"])


def rating(p: Any, z: Any) -> dist.Distribution:
    return dist.Normal(p["mean"][z], p["sd"])


COOK = LatentModel(PRIOR, mood, rating)
X = np.array([3.1, 4.4, 8.3, 7.7, 5.9, 9.0, 4.0, 6.6])


def terms(params: Any, x: Any) -> jax.Array:
    """log p(z) + log p(x | z) of every row and mood, (n, 2)."""
    shares = jnp.stack([jnp.log1p(-params["good"]), jnp.log(params["good"])])
    off = (x[:, None] - params["mean"][None, :]) / params["sd"]
    return shares[None, :] - 0.5 * off**2 - jnp.log(params["sd"]) - 0.5 * jnp.log(2 * jnp.pi)


def summing_law(log_prob: Callable, responsibilities: Callable) -> Scores:
    """log p(x | θ) and p(z | x, θ), by sums."""
    each = terms(PARAMS, X)
    return {
        "evidence": error(log_prob(PARAMS, X), jax.nn.logsumexp(each, axis=1), 1e-12),
        "posterior": error(responsibilities(PARAMS, X), jax.nn.softmax(each, axis=1), 1e-12),
        "rows sum": error(jnp.sum(responsibilities(PARAMS, X), axis=1), 1.0, 1e-12),
    }


@pytest.mark.test
def test_z_is_summed_out():
    assert_holds(summing_law(COOK.log_prob, COOK.responsibilities))


@pytest.mark.parametrize(
    ("log_prob", "responsibilities"),
    [
        (lambda p, x: jax.nn.logsumexp(terms(p, x) - terms(p, x)[:, :1], axis=1), COOK.responsibilities),
        (lambda p, x: jnp.max(terms(p, x), axis=1), COOK.responsibilities),  # the likeliest z for all of them
        (lambda p, x: jnp.mean(terms(p, x), axis=1), COOK.responsibilities),  # E log for log E
        (COOK.log_prob, lambda p, x: jax.nn.softmax(terms(p, x), axis=0)),
        (COOK.log_prob, lambda p, x: jax.nn.softmax(terms({**p, "good": jnp.array(0.5)}, x), axis=1)),
    ],
    ids=["relative", "likeliest", "mean of logs", "over rows", "without p(z)"],
)
def test_wrong_sums_are_caught(log_prob, responsibilities):
    assert broken(summing_law(log_prob, responsibilities))


def test_it_is_a_model_like_any_other():
    rows = tr.Data(X).arrays()
    by_hand = tr.Model(
        PRIOR,
        lambda p: dist.MixtureSameFamily(
            dist.Categorical(jnp.stack([1 - p["good"], p["good"]])), dist.Normal(p["mean"], p["sd"])
        ),
    )
    where = jnp.array([0.3, -0.2, 1.1, 0.4])
    ours, theirs = (jax.jit(jax.value_and_grad(log_density(m, rows, flat=True)))(where) for m in (COOK, by_hand))
    scores = {"value": error(ours[0], theirs[0], 1e-10), "slope": error(ours[1], theirs[1], 1e-10)}

    @jax.jit
    def told(params: Any) -> tuple:
        marginal, mixed = COOK.datum(params), by_hand.datum(params)
        assert isinstance(marginal, Marginal)
        both = [(d.log_prob(5.0), d.mean, d.variance) for d in (marginal, mixed)]
        return *both, marginal.sample(jax.random.key(0), (20_000,))

    ours, theirs, drawn = told(PARAMS)
    scores |= {name: error(ours[i], theirs[i], 1e-12) for i, name in enumerate(("density", "mean", "variance"))}
    scores["drawn"] = z_mean(np.asarray(drawn), float(theirs[1]), float(theirs[2]))
    assert_holds(scores)


def test_ancestors_come_first():
    x, z = COOK.sample(jax.random.key(1), PARAMS, 40_000)
    assert_holds(
        {
            "moods": z_mean(np.asarray(z, float), 0.6, 0.24),
            "good": z_mean(np.asarray(x)[np.asarray(z) == 1], 8.0, 1.44),
            "bad": z_mean(np.asarray(x)[np.asarray(z) == 0], 4.0, 1.44),
        }
    )


def fisher_law(e_step: Callable) -> Scores:
    """∇ log p(x | θ) = E_z ∇ log p(x, z | θ), by autodiff of both sides."""

    @jax.jit
    def both(params: Any) -> tuple:
        known = e_step(params, whole(jnp.array(X))).statistics
        slope = jax.grad(expected_log_joint(COOK.log_joint, known))(params)
        return slope, jax.grad(lambda p: jnp.sum(jax.nn.logsumexp(terms(p, X), axis=1)))(params)

    slope, right = both(PARAMS)
    return {name: error(slope[name], right[name], 1e-10) for name in PARAMS}


def steps(causes: Any = COOK.causes) -> Callable:
    return by_enumeration(COOK.log_prob, COOK.responsibilities, causes)


@pytest.mark.test
def test_fishers_identity():
    assert_holds(fisher_law(steps()))
    assert broken(fisher_law(steps(COOK.causes[::-1])))
    old = by_enumeration(COOK.log_prob, lambda p, x: jnp.full((len(x), 2), 0.5), COOK.causes)
    assert broken(fisher_law(old))


def louis_law(sign: float = -1.0, centred: bool = True) -> Scores:
    """−∇² log p(x) = E[−∇² log p(x, z)] − Cov[∇ log p(x, z)], row by row (Louis 1982)."""
    flat, back = ravel_pytree(PARAMS)

    def joint(u: Any, x: Any) -> Any:
        return terms(back(u), x[None])[0]

    def of_row(x: Any) -> Any:
        share = jax.nn.softmax(joint(flat, x))
        scores = jax.jacobian(joint)(flat, x)
        mean = share @ scores if centred else jnp.zeros(4)
        spread = jnp.einsum("k,ki,kj->ij", share, scores - mean[None], scores - mean[None])
        return -jnp.einsum("k,kij->ij", share, jax.hessian(joint)(flat, x)) + sign * spread

    total = jax.jit(jax.vmap(of_row))(jnp.array(X)).sum(0)
    right = -jax.jit(jax.hessian(lambda u: jnp.sum(COOK.log_prob(back(u), jnp.array(X)))))(flat)
    return {"information": error(total, right, 1e-9)}


@pytest.mark.test
def test_the_observed_information_is_louis():
    assert_holds(louis_law())
    assert broken(louis_law(sign=1.0))
    assert broken(louis_law(centred=False))


def gradient_law(make: Callable) -> Scores:
    """An M-step by gradient finds the closed form's, with weights and a prior."""
    weights = jnp.array([1.0, 2.0, 0.0, 1.0, 1.0, 3.0, 1.0, 0.5])
    rows = jnp.array(X).at[2].set(jnp.nan)  # counts nothing
    r = jax.nn.softmax(terms(PARAMS, jnp.where(jnp.isnan(rows), 0.0, rows)), axis=1)
    known = CompleteData(PARAMS, rows, weights, COOK.causes, r)
    model = LatentModel({"good": PRIOR["good"], "mean": PRIOR["mean"]}, mood, lambda p, z: rating({**p, "sd": 1.0}, z))
    known = known._replace(theta={"good": PARAMS["good"], "mean": PARAMS["mean"]})
    found = make(model)(known)
    share = r * weights[:, None]
    count = share.sum(0)
    filled = jnp.where(weights > 0, rows, 0.0)
    mean = (share.T @ filled + jnp.array([4.0, 7.0]) / 4) / (count + 0.25)
    good = (count[1] + 1) / (count.sum() + 2)
    return {"mean": error(found["mean"], mean, 1e-6), "good": error(found["good"], good, 1e-6)}


def by_gradient(model: LatentModel, prior: bool = True, jacobian: bool = False) -> Callable:
    def log_prior(p: Any) -> Any:
        value = model.log_prior(p)
        return value + model.log_jacobian(model.unconstrain(p), p) if jacobian else value

    space = model.space
    return gradient_m_step(
        functools.partial(expected_log_joint, model.log_joint), log_prior if prior else None,
        lambda u: model.constrain(space.unravel(u)), lambda p: space.ravel(model.unconstrain(p)), 40,
    )  # fmt: skip


def test_an_m_step_by_gradient_is_the_closed_form():
    assert_holds(gradient_law(by_gradient))
    assert broken(gradient_law(lambda m: by_gradient(m, prior=False)))
    assert broken(gradient_law(lambda m: by_gradient(m, jacobian=True)))


@pytest.mark.test
def test_no_climb_ends_below_its_start():
    def cliff(u: Any) -> Any:  # NaN beyond a step of 0.5: L-BFGS runs into it
        return jnp.where(jnp.abs(u[0]) < 0.5, 10 * u[0], jnp.nan)

    end = climb_by_lbfgs(cliff, jnp.array([0.1]), 5)
    assert np.isfinite(cliff(end)) and cliff(end) >= cliff(jnp.array([0.1]))


def test_one_gradient_step_of_em_never_falls():
    m_step = by_gradient(COOK)
    kernel = em(steps(), m_step, COOK.log_prior)
    state, seen = kernel.init(jax.random.key(0), PARAMS), []
    go = jax.jit(lambda s: kernel.step(jnp.zeros(0), s, whole(jnp.array(X))))
    for _ in range(15):
        state, info = go(state)
        seen.append(float(info.objective))
    assert np.all(np.diff(seen) >= -1e-10)
    assert seen[-1] > seen[0]


def test_inputs_reach_both_halves():
    experts = LatentModel(
        {"slope": dist.Normal(jnp.zeros(2), 1.0).to_event(1), "gate": dist.Normal(0.0, 1.0)},
        lambda p, x: dist.Bernoulli(logits=p["gate"] * x),
        lambda p, z, x: dist.Normal(p["slope"][z] * x, 0.5),
        causes=jnp.arange(2),
    )
    x = np.linspace(-1, 1, 6)
    y = 0.7 * x
    params = {"slope": jnp.array([1.0, -1.0]), "gate": jnp.array(2.0)}
    gate = jax.nn.sigmoid(2.0 * x)
    by_hand = jnp.logaddexp(
        jnp.log(1 - gate) + dist.Normal(x, 0.5).log_prob(y), jnp.log(gate) + dist.Normal(-x, 0.5).log_prob(y)
    )
    assert_holds({"rows": error(experts.log_likelihoods(params, (jnp.array(y), jnp.array(x))), by_hand, 1e-12)})
    posterior = tr.infer(experts, tr.Data(y, x), tr.EM(starts=2, steps=20), seed=0)
    assert posterior.found["fall"] <= 1e-9
    assert posterior.predict(x, draws=1).mean.shape == (6,)


def test_several_causes_are_enumerated_together():
    pair = LatentModel(
        {"p": dist.Beta(1.0, 1.0)},
        lambda p: {"a": dist.Bernoulli(p["p"]), "b": dist.Categorical(jnp.array([0.2, 0.3, 0.5]))},
        lambda p, z: dist.Normal(1.0 * z["a"] + 2.0 * z["b"], 1.0),
    )
    assert jax.tree.map(len, pair.causes) == {"a": 6, "b": 6}
    p = {"p": jnp.array(0.3)}
    total = sum(
        pa * pb * np.exp(dist.Normal(1.0 * a + 2.0 * b, 1.0).log_prob(1.5))
        for a, pa in enumerate((0.7, 0.3))
        for b, pb in enumerate((0.2, 0.3, 0.5))
    )
    assert_holds({"sum": error(pair.log_prob(p, jnp.array([1.5]))[0], np.log(total), 1e-12)})


@pytest.mark.test
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LatentModel(PRIOR, lambda p: 0.5, rating), "should return the distribution of z; got float"),
        (lambda: LatentModel(PRIOR, lambda p, x: mood(p), rating), "give causes="),
        (lambda: LatentModel(PRIOR, mood, rating, m_step=lambda s: s), "go together"),
        (lambda: LatentModel(PRIOR, lambda p: dist.Bernoulli(jnp.full(3, 0.5)), rating), "has shape (3,)"),
        (lambda: LatentModel(PRIOR, lambda p: [dist.Bernoulli(0.5)] * 14, rating), "16384 values"),
        (lambda: COOK.with_steps(foo=None), "has no foo"),
        (lambda: LatentModel(PRIOR, mood, rating, causes=[0, 1, 1]), "lists a value of z twice, in rows 1 and 2"),
        (
            lambda: LatentModel(PRIOR, mood, rating, causes={"a": jnp.array([0, 1, 0]), "b": jnp.zeros((3, 2))}),
            "lists a value of z twice, in rows 0 and 2",
        ),
        (lambda: LatentModel(PRIOR, mood, rating, causes=(jnp.zeros(2), jnp.zeros(3))), "one leading axis"),
    ],
)
def test_faults_are_sentences(make, sentence):
    with pytest.raises(ModelError) as caught:
        make()
    assert sentence in str(caught.value)


def test_a_continuous_z_is_not_summed_out():
    code = LatentModel(
        {"m": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["m"], 1.0), lambda p, z: dist.Normal(z, 1.0)
    )
    assert code.causes is None and code.log_prob is None
    with pytest.raises(ModelError, match="MonteCarloEM, which draws z"):
        code.log_likelihoods({"m": 0.0}, (jnp.array([0.1]), None))
    with pytest.raises(ModelError, match="MonteCarloEM"):
        tr.infer(code, tr.Data(X), tr.EM())
    exact = code.with_steps(log_prob=lambda p, x: dist.Normal(p["m"], jnp.sqrt(2.0)).log_prob(x))
    found = tr.infer(exact, tr.Data(X), tr.MAP()).mean()["m"]
    assert_holds({"map": error(found, X.sum() / 2 / (len(X) / 2 + 1), 1e-6)})


@pytest.mark.test
def test_steps_of_ones_own():
    """A normal with unknown mean, whose z is nothing at all: EM finds the mean at once."""
    own = LatentModel.from_steps(
        lambda p, batch: tr.kernels.Expected(
            jnp.stack([jnp.sum(batch.mask * batch.data[0]), jnp.sum(batch.mask)]),
            jnp.sum(batch.mask * dist.Normal(p["m"], p["s"]).log_prob(batch.data[0])),
        ),
        lambda s: {"m": s[0] / s[1], "s": jnp.ones(())},
        lambda p, x: dist.Normal(p["m"], p["s"]).log_prob(x),
        {"m": 0.0, "s": 1.0},
        support={"m": constraints.real, "s": constraints.positive},
        begin=lambda key, rows: {"m": jax.random.normal(key), "s": 1.0},
    )
    posterior = tr.infer(own, tr.Data(X), tr.EM(starts=2))
    assert_holds({"mean": error(posterior.mean()["m"], X.mean(), 1e-10)})
