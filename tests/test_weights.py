"""A row of weight 2 is that row twice, and a row of weight 0 is not there: for every method that looks at weights.

A law compares what is learnt from rows with weights to what is learnt from the same rows repeated. It takes ``weigh``,
which makes the data with weights; one that loses or changes the weights breaks it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from montecarlo import Scores, assert_holds, broken, error

import tractable as tr
from tractable.core.batches import Plan, window
from tractable.core.errors import DataError
from tractable.core.model import Batch, whole
from tractable.diagnostics.relabelling import match_components
from tractable.engine import search
from tractable.ladders import pathwise, score
from tractable.ladders.wake_sleep import wake_sleep
from tractable.latent.em import chunked, expected
from tractable.posterior.posterior import Posterior
from tractable.sgmcmc import bias

pytestmark = pytest.mark.laws

TIMES = np.array([2, 0, 1, 3, 1, 1, 0, 2, 1, 1])
_rng = np.random.default_rng(4)
X = _rng.normal(size=(10, 2))
Y = np.where(TIMES > 0, X @ [1.0, -0.5] + _rng.normal(size=10), 40.0)  # a row that is not there may be anywhere
POINTS = np.where(TIMES[:, None] > 0, X + np.where(np.arange(10) % 2, 4.0, -4.0)[:, None], 1e3)
Weigh = Callable[..., tr.Data]

REGRESSION = tr.Model(
    {"w": dist.Normal(jnp.zeros(2), 1.0).to_event(1), "sd": dist.LogNormal(0.0, 1.0)},
    tr.Through(lambda params, x: x @ params["w"], lambda params, eta: dist.Normal(eta, params["sd"])),
)
COINS = tr.LatentModel(
    {"share": dist.Beta(2.0, 2.0), "mean": dist.Normal(jnp.array([-1.0, 1.0]), 1.0).to_event(1)},
    lambda p: dist.Bernoulli(p["share"]),
    lambda p, z: dist.Normal(p["mean"][z], 1.0),
)
START = tr.models.mixture.Gaussians(
    np.array([0.4, 0.6]), np.array([[-3.0, -3.0], [3.0, 4.0]]), np.stack([np.eye(2), 2 * np.eye(2)])
)
MIXTURE = tr.models.gaussian_mixture(2, 2).with_steps(begin=lambda key, rows: START)
BAYESIAN = tr.models.bayesian_gaussian_mixture(2, 2)
SHARES = np.stack([np.arange(10) % 2, (np.arange(10) + 1) % 2], 1) * 0.8 + 0.1


def weighed(y: Any, given: Any, times: np.ndarray, **options: Any) -> tr.Data:
    return tr.Data(y, given, weights=times, **options)


def ignored(y: Any, given: Any, times: np.ndarray, **options: Any) -> tr.Data:
    return tr.Data(y, given, **options)


def present(y: Any, given: Any, times: np.ndarray, **options: Any) -> tr.Data:
    return tr.Data(y, given, weights=times > 0, **options)


def normalised(y: Any, given: Any, times: np.ndarray, **options: Any) -> tr.Data:
    return tr.Data(y, given, weights=times / times.mean(), **options)


def squared(y: Any, given: Any, times: np.ndarray, **options: Any) -> tr.Data:
    return tr.Data(y, given, weights=times**2, **options)


MUTANTS = [ignored, present, normalised, squared]


def repeated(y: Any, given: Any, times: np.ndarray, **options: Any) -> tr.Data:
    y, given = jax.tree.map(lambda a: np.repeat(a, times, 0), (y, given))
    return tr.Data(y, given, **options)


# Densities, whole and by minibatches.


def density_law(weigh: Weigh) -> Scores:
    """log p(θ) + Σ w log p(y|θ) and its gradient: whole, in summands, and on average over all batches."""
    one, other, z = weigh(Y, X, TIMES), repeated(Y, X, TIMES), jnp.array([0.3, -0.2, 0.1])
    density = tr.log_density(REGRESSION, other.arrays(), flat=True)
    wanted, slope = jax.jit(jax.value_and_grad(density))(z)
    rows, posterior = one.arrays(), tr.log_posterior(REGRESSION, flat=True)

    @jax.jit
    def told(z: jax.Array) -> tuple:
        got = jax.value_and_grad(tr.log_density(REGRESSION, rows, flat=True))(z)
        summands = tr.log_density(REGRESSION, rows, flat=True, terms=True)(z)
        by_likelihood = tr.objectives.log_joint(REGRESSION, prior=False, flat=True).value(None, z, whole(rows))
        prior = tr.log_density(REGRESSION, flat=True)(z)
        return *got, jnp.sum(summands), posterior(z, whole(rows)), by_likelihood, prior

    value, gradient, summands, as_batch, by_likelihood, prior = told(z)
    scores = {
        "density": error(value, wanted, 1e-8),
        "slope": error(gradient, slope, 1e-8),
        "summands": error(summands, wanted, 1e-8),
        "whole": error(as_batch, wanted, 1e-8),
        "mle": error(by_likelihood, wanted - prior, 1e-8),
    }
    for n in (3, 4, 5):
        plan = Plan(one.size, n)
        windows = one.windows(plan.width)

        def batch(start: jax.Array, length: jax.Array, plan: Plan = plan, windows: Any = windows) -> jax.Array:
            return jax.grad(posterior)(z, window(windows, plan, start, length, 0))

        small, larger = divmod(plan.size, plan.count)
        lengths = np.array([small + (i < larger) for i in range(plan.count)])
        starts = (np.arange(10)[:, None] + np.append(0, np.cumsum(lengths)[:-1])) % 10
        slopes = jax.jit(jax.vmap(batch))(jnp.asarray(starts.ravel()), jnp.asarray(np.tile(lengths, 10)))
        scores[f"batches of {n}"] = error(jnp.mean(slopes, 0), slope, 1e-8)
    return scores


@pytest.mark.test
def test_density():
    assert_holds(density_law(weighed))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_density_mutants(mutant):
    assert set(broken(density_law(mutant))) == set(density_law(weighed))


def test_a_row_that_is_not_there_may_be_impossible():
    """−∞ times 0 is NaN; and no support is asked of it."""
    coin = tr.Model({"p": dist.Beta(2.0, 2.0)}, lambda params: dist.Bernoulli(params["p"]))
    data = tr.Data(np.array([1, 0, 7, 1]), weights=[1, 1, 0, 2])
    found = tr.infer(coin, data, tr.MAP(), progress=False)
    assert_holds({"mode": error(found.mean()["p"], 4 / 6, 1e-6)})
    short = tr.Model({"top": dist.Gamma(2.0, 1.0)}, lambda params: dist.Uniform(0.0, params["top"]))
    rows = tr.Data(np.array([0.5, 9.0]), weights=[1, 0]).arrays()
    assert np.isfinite(tr.log_density(short, rows)({"top": jnp.array(0.0)}))
    assert np.isfinite(tr.log_posterior(short)({"top": jnp.array(0.0)}, whole(rows)))


# Methods.


class Learnt(NamedTuple):
    """What a method is to learn, and the numbers it learns."""

    model: tr.Model
    y: Any
    given: Any
    method: tr.Method
    numbers: Callable[[Posterior], Any]
    options: dict = {}  # noqa: RUF012
    infer: dict = {}  # noqa: RUF012
    tolerance: float = 1e-6


def point(posterior: Posterior) -> Any:
    return posterior.point, posterior.sd(), posterior.found["objective"]


def variational(posterior: Posterior) -> Any:
    return posterior.fitted.phi, posterior.found["objective"]


def of_draws(posterior: Posterior) -> Any:
    return posterior.found["objective"], [posterior.found[f"lambda {i}"] for i in range(5)]


def beginning() -> tr.LatentModel:
    """The Bayesian mixture, begun at the same λ whatever its rows."""
    q = BAYESIAN.conjugate.m_step(BAYESIAN.conjugate.assigned(Batch(jnp.asarray(POINTS), TIMES * 1.0, 10), SHARES))
    return BAYESIAN.with_steps(first=lambda key, rows: q)


PLAIN = {
    "map": Learnt(REGRESSION, Y, X, tr.MAP(), point),
    "mle": Learnt(REGRESSION, Y, X, tr.MLE(), point),
    "map by adam": Learnt(REGRESSION, Y, X, tr.MAP(optimizer="adam", steps=50), lambda p: p.point),
    "laplace": Learnt(REGRESSION, Y, X, tr.Laplace(draws=2), variational),
    "gauss-newton": Learnt(REGRESSION, Y, X, tr.Laplace(curvature="gauss-newton", draws=2), variational),
    "quadrature": Learnt(REGRESSION, Y, X, tr.FullRank(draws=2), variational, tolerance=1e-4),
    "bbb": Learnt(REGRESSION, Y, X, tr.BayesByBackprop(batch_size=None, epochs=100, draws=2), variational),
    "rejection": Learnt(
        REGRESSION, Y, X, tr.Rejection(chains=1, draws=5), lambda p: (p.unconstrained, p.found["log_bound"])
    ),
    "em": Learnt(MIXTURE, POINTS, None, tr.EM(starts=1), point),
    "em on file": Learnt(MIXTURE, POINTS, None, tr.EM(starts=1, chunk=4), lambda p: p.point, {"resident": False}),
    "em over devices": Learnt(MIXTURE, POINTS, None, tr.EM(starts=1), point, infer={"mesh": 1}),
    "em by gradient": Learnt(COINS, Y.clip(-3, 3), None, tr.EM(starts=2), point, tolerance=1e-4),
    "cavi": Learnt(beginning(), POINTS, None, tr.CoordinateAscent(starts=1, draws=2), of_draws),
}


def learnt_law(case: Learnt, weigh: Weigh) -> Scores:
    """The same numbers from rows with weights as from rows repeated, and the same report."""
    options = {"progress": False, "verify": None} | case.infer
    found = [
        tr.infer(case.model, make(case.y, case.given, TIMES, **case.options), case.method, **options)
        for make in (weigh, repeated)
    ]
    numbers = [ravel_pytree(case.numbers(posterior))[0] for posterior in found]
    scale = 1 + np.abs(numbers[1])
    return {
        "numbers": error(numbers[0] / scale, numbers[1] / scale, case.tolerance),
        "rows": error(found[0].rows, found[1].rows, 1e-9),
        "verdict": float(found[0].report().verdict != found[1].report().verdict) * 2,
    }


@pytest.mark.test("map")
@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
@pytest.mark.parametrize("name", PLAIN)
def test_methods(name):
    assert_holds(learnt_law(PLAIN[name], weighed))
    assert "numbers" in broken(learnt_law(PLAIN[name], ignored))


def online_law(weigh: Weigh) -> Scores:
    """Statistics that follow batches, here of all rows."""
    found = [
        tr.infer(MIXTURE, data, tr.OnlineEM(batch_size=data.size, epochs=20), progress=False)
        for data in (weigh(POINTS, None, TIMES), repeated(POINTS, None, TIMES))
    ]
    return {"θ": error(found[0].point, found[1].point, 1e-6), "sd": error(*(p.sd().means for p in found), 1e-6)}


@pytest.mark.filterwarnings("ignore:The observed information")  # of the mutant's far rows
def test_online():
    assert_holds(online_law(weighed))
    assert set(broken(online_law(ignored))) == {"θ", "sd"}


# What methods are made of.


def statistics_law(weigh: Weigh) -> Scores:
    """Sums of an E-step, whole, by chunks and from file; and the curvature of MAP by chunks of rows."""
    one, other = weigh(POINTS, None, TIMES), repeated(POINTS, None, TIMES)
    theta = jax.tree.map(jnp.asarray, START)
    wanted = MIXTURE.e_step(theta, whole(other.arrays()))
    scores = {}
    for name, got in {
        "whole": MIXTURE.e_step(theta, whole(one.arrays())),
        "chunks": chunked(MIXTURE.e_step, 3)(theta, whole(one.arrays())),
        "file": expected(MIXTURE.e_step, theta, one, 3),
    }.items():
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
        scores[name] = max(error(a, b, 1e-9 * float(1 + jnp.max(jnp.abs(b)))) for a, b in pairs)
    return scores


def curvature_law(weigh: Weigh) -> Scores:
    """−∇² of the log posterior: that of the bias meter, and of points in one piece and by chunks."""
    one, other = weigh(Y, X, TIMES), repeated(Y, X, TIMES)
    z = search.maximum(REGRESSION, other, jnp.zeros(3)).position
    wanted = search.standard_errors(REGRESSION, other, z, True)["information"]
    meter = [bias.measure(REGRESSION, d, Plan(d.size, 4), z, jax.random.key(0)).curvature for d in (one, other)]
    got = search.standard_errors(REGRESSION, one, z, True)["information"]
    return {"points": error(got, wanted, 1e-8), "bias meter": error(meter[0], meter[1], 1e-7)}


@pytest.mark.test
def test_statistics():
    assert_holds(statistics_law(weighed))


@pytest.mark.test("squared")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_statistics_mutants(mutant):
    assert set(broken(statistics_law(mutant))) == {"whole", "chunks", "file"}


def test_curvature(monkeypatch):
    assert_holds(curvature_law(weighed))
    monkeypatch.setattr(search, "CURVED", 3)
    jax.clear_caches()
    assert_holds(curvature_law(weighed))
    assert set(broken(curvature_law(squared))) == {"points", "bias meter"}


@pytest.mark.test
@pytest.mark.parametrize("name", ["autoencoding", "doubly", "vimco", "wake-sleep"])
def test_ladders(name):
    """A batch's gradient is Σ w of its rows' own, at the same draws."""
    deep = tr.models.latent_gaussian(3, 2, hidden=(3,)) if name in ("autoencoding", "doubly") else None
    ladder = tr.models.sigmoid_belief_network(3, hidden=(2,)) if deep is None else deep
    objective = {
        "autoencoding": lambda: pathwise.autoencoding(ladder),
        "doubly": lambda: pathwise.importance_weighted(ladder, samples=2),
        "vimco": lambda: score.vimco(ladder, samples=2),
        "wake-sleep": lambda: wake_sleep(ladder),
    }[name]()
    x, params = jnp.asarray((X[:3] @ np.ones((2, 3)) > 0) * 1.0), ladder.initial(jax.random.key(1))

    @jax.jit
    def slope(batch: Batch) -> jax.Array:
        if objective.slope is None:
            found = jax.grad(objective.value, argnums=1)(jax.random.key(2), params, batch)
        else:
            found = objective.slope(jax.random.key(2), params, batch, objective.first_memory(params))[1]
        return ravel_pytree(found)[0]

    def at(weights: Any) -> jax.Array:
        return slope(Batch((x, None), jnp.asarray(weights, float), 6, rows=3))

    nothing, alone = at([0, 0, 0]), [at(row) for row in np.eye(3)]
    wanted = nothing + sum(w * (each - nothing) for w, each in zip([2.0, 0.5, 0.0], alone, strict=True))
    scores = {"gradient": error(at([2, 0.5, 0]), wanted, 1e-9), "ignored": error(at([1, 1, 0]), wanted, 1e-9)}
    assert set(broken(scores)) == {"ignored"}


@pytest.mark.test
@pytest.mark.parametrize("method", ["monte-carlo", "laplace"])
@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_evidence(method):
    """log ∫ p(θ) Π p(y_n|θ)^w dθ is that of rows repeated, at the same draws."""
    one, other, wrong = (
        tr.log_evidence(REGRESSION, make(Y, X, TIMES), method, progress=False, draws=200).estimate
        for make in (weighed, repeated, ignored)
    )
    assert_holds({"evidence": error(one, other, 1e-4)})
    assert broken({"evidence": error(wrong, other, 1e-4)})


def test_labels():
    """Components of draws are matched by the rows that count."""
    space, swapped = MIXTURE.space, jax.tree.map(lambda a: a[::-1].copy(), START)
    draws = np.stack([space.ravel(MIXTURE.unconstrain(jax.tree.map(jnp.asarray, t))) for t in (START, swapped, START)])
    draws = draws + 0.3 * np.random.default_rng(0).normal(size=draws.shape)
    times = np.where(np.arange(10) % 3 == 0, TIMES, 0)
    wanted = match_components(MIXTURE, repeated(X, None, times).arrays(), draws)
    assert_holds({"draws": error(match_components(MIXTURE, weighed(X, None, times).arrays(), draws), wanted, 1e-9)})
    assert broken({"draws": error(match_components(MIXTURE, ignored(X, None, times).arrays(), draws), wanted, 1e-9)})


@pytest.mark.quick
def test_rows_that_stand_for_rows_of_unlike_weight():
    """They all count once, rows of weight 0 are not among them, and others are in proportion to their weight."""
    data = tr.Data(np.arange(10), weights=TIMES * 0.3)
    counts = np.bincount(data.equally_counted().y, minlength=10)
    assert_holds({"shares": error(counts / counts.sum(), TIMES / TIMES.sum(), 1e-4)})
    few = tr.Data(np.arange(4), weights=[1.0, 2.5, 0.0, 1.5]).equally_counted()
    np.testing.assert_array_equal(np.bincount(few.y), [2000, 5000, 0, 3000])
    np.testing.assert_array_equal(tr.Data(np.arange(3), weights=[2, 0, 2]).equally_counted().y, [0, 2])
    assert tr.Data(np.arange(3)).equally_counted().weights is None


@pytest.mark.test
def test_refusals():
    """What does not look at weights says so before anything runs."""
    hidden = tr.LatentModel(
        {"mu": dist.Normal(5.0, 3.0)}, lambda p: dist.Normal(p["mu"], 1.0), lambda p, z: dist.Normal(z, 1.0)
    )
    data = tr.Data(Y.clip(-3, 3), weights=TIMES)
    with pytest.raises(DataError, match=r"MonteCarloEM takes rows that count once; these data have weights\. Use EM"):
        tr.infer(hidden, data, tr.MonteCarloEM(), progress=False)
    with pytest.raises(DataError, match=r"theta=\.\.\.\) expects data without weights; these data have weights"):
        tr.log_evidence(COINS, data, theta={"share": 0.5, "mean": np.zeros(2)})
