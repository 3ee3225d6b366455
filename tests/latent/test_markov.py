"""Hidden Markov models against every path written out; and against what knows nothing of recursions.

A law takes what it judges and returns scores; wrong ones must break it.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import Scores, assert_holds, broken, error, of_p, z_mean
from scipy import stats
from scipy.special import gammaln

import tractable as tr
from tractable.core.errors import ArgumentError, DataError, ModelError, SettingsError
from tractable.core.model import Batch, whole
from tractable.latent import emissions, markov_chain
from tractable.latent import forward_backward as fb
from tractable.latent.em import em
from tractable.latent.linear_mixture import normalise
from tractable.latent.markov import HiddenMarkov, hidden_markov, shares
from tractable.latent.series import up_to_last

pytestmark = pytest.mark.laws

strict = pytest.mark.usefixtures("strict_ranks")  # priors and bijections are NumPyro's, which promote ranks

RNG = np.random.default_rng(5)
K, T, N = 3, 5, 4
PI = jnp.array([0.5, 0.3, 0.2])
A = jnp.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.3, 0.3, 0.4]])
MEAN, SD = np.array([-1.0, 0.0, 2.0]), np.array([0.5, 1.0, 0.8])
THETA = HiddenMarkov(PI, A, emissions.Normals(jnp.array(MEAN), jnp.array(SD)))
Y = RNG.normal(size=(N, T))
Y[1, 3:] = Y[2, 0] = Y[2, 2] = np.nan  # a short one, and one with gaps
PLAIN = hidden_markov(K, prior_counts=0, floor=0.0)
PATHS = np.array(list(itertools.product(range(K), repeat=T)))  # (243, T)


def listed(y: np.ndarray) -> dict[str, Any]:
    """One sequence, path by path, in NumPy."""
    seen = ~np.isnan(y)
    logs = np.log(PI)[PATHS[:, 0]] + np.log(A)[PATHS[:, :-1], PATHS[:, 1:]].sum(1)
    logs = logs + np.where(seen, stats.norm.logpdf(y, MEAN[PATHS], SD[PATHS]), 0).sum(1)
    total = np.logaddexp.reduce(logs)
    p, last = np.exp(logs - total), int(np.flatnonzero(seen).max())
    smoothed = np.stack([[p[PATHS[:, t] == k].sum() for k in range(K)] for t in range(T)])
    moves = np.zeros((K, K))
    for t in range(last):
        np.add.at(moves, (PATHS[:, t], PATHS[:, t + 1]), p)
    smoothed[last + 1 :] = 0
    return {"log p": total, "smoothed": smoothed, "moves": moves, "path": logs.max(), "p": p, "last": last}


LISTED = [listed(y) for y in Y]


def paths_law(passed: Callable, log_b: Callable = PLAIN.chain.log_b) -> Scores:
    """log p(x), every p(z_t | x) and the sum of every p(z_t, z_{t+1} | x): those of all paths."""
    counted = np.array([[t <= each["last"] for each in LISTED] for t in range(T)], float)

    @jax.jit
    def both(theta: HiddenMarkov) -> tuple:
        found, log_prob = passed(PI, A, log_b(theta, jnp.array(Y)))
        return found.smoothed, fb.moves(A, found, jnp.array(counted[1:])), log_prob

    smoothed, moves, log_prob = both(THETA)
    smoothed = np.transpose(np.asarray(smoothed) * counted[:, None], (2, 0, 1))
    return {
        "log p": error(log_prob, [each["log p"] for each in LISTED], 1e-12),
        "smoothed": error(smoothed, [each["smoothed"] for each in LISTED], 1e-12),
        "moves": error(moves, sum(each["moves"] for each in LISTED), 1e-12),
    }


@pytest.mark.test
@pytest.mark.parametrize("parallel", [False, True])
@strict
def test_all_paths(parallel):
    assert_holds(paths_law(lambda *chain: fb.smooth(*chain, parallel)))


@pytest.mark.test
@strict
def test_one_sequence_is_one_of_many():
    for parallel in (False, True):
        passed = jax.jit(lambda y, way=parallel: fb.smooth(PI, A, PLAIN.chain.log_b(THETA, y), way))
        one, log_prob = passed(Y[:1])
        assert_holds({"log p": error(log_prob, LISTED[0]["log p"], 1e-12)})
        assert_holds({"smoothed": error(one.smoothed, LISTED[0]["smoothed"], 1e-12)})


def without_scales(*chain: jax.Array) -> tuple:
    found, log_prob = fb.smooth(*chain)
    return found, log_prob - jnp.sum(fb.log_b_scaled(chain[2])[1], axis=0)


@pytest.mark.parametrize(
    "law",
    [
        lambda: paths_law(lambda pi, a, b: fb.smooth(pi, a.T, b)),
        lambda: paths_law(lambda pi, a, b: fb.smooth(jnp.ones(K) / K, a, b)),
        lambda: paths_law(without_scales),
        lambda: paths_law(fb.smooth, lambda theta, y: PLAIN.chain.log_b(theta, jnp.nan_to_num(y))),
        lambda: paths_law(lambda pi, a, b: fb.smooth(pi @ a, a, b)),
    ],
    ids=["transposed", "initial forgotten", "scales dropped", "mask ignored", "moved before the first step"],
)
@strict
def test_paths_mutants(law):
    assert broken(law())


@pytest.mark.test
@strict
def test_the_likeliest_path():
    path, value = PLAIN.chain.likeliest_paths(THETA, jnp.array(Y))
    assert_holds({"log p": error(value, [each["path"] for each in LISTED], 1e-12)})
    for found, each in zip(np.asarray(path), LISTED, strict=True):
        cut = each["last"] + 1
        best = PATHS[np.argmax(each["p"])]
        np.testing.assert_array_equal(found, [*best[:cut], *[-1] * (T - cut)])


def drawn_law(draw: Callable) -> Scores:
    """Drawn paths of one sequence with gaps, as often as all paths are likely: Pearson's χ²."""
    uniform = jax.random.uniform(jax.random.key(3), (T, 20_000))
    b, _ = fb.log_b_scaled(PLAIN.chain.log_b(THETA, jnp.array(Y[2:3])))
    filtered, _ = fb.forward(PI, A, b)
    spread = jnp.broadcast_to(filtered[:, :, None], (T, K, 20_000))
    counts = np.bincount(np.ravel_multi_index(np.asarray(draw(uniform, A, spread)), (K,) * T), minlength=K**T)
    wanted = LISTED[2]["p"] * 20_000
    common = wanted > 5
    grouped = [np.append(each[common], each[~common].sum()) for each in (counts, wanted)]
    return {"paths": of_p(stats.chisquare(*grouped).pvalue)}


@pytest.mark.quick
def test_which_devices_run_steps_in_parallel(monkeypatch):
    """Accelerators, where the sequence is long and K numbers for each of T K n fit."""

    def b(*shape: int) -> Any:
        return Mock(spec=jax.Array, shape=shape, size=math.prod(shape))

    n = fb.ROOM // (fb.LONG * 4 * 4)
    for device, parallel in (("cpu", False), ("gpu", True), ("tpu", True)):
        monkeypatch.setattr(jax, "default_backend", lambda device=device: device)
        assert fb.runs_in_parallel(b(fb.LONG, 4, n), None) == parallel
        assert not fb.runs_in_parallel(b(fb.LONG - 1, 4, n), None) and not fb.runs_in_parallel(
            b(fb.LONG, 4, n + 1), None
        )
        assert fb.runs_in_parallel(b(1, 2, 3), True) and not fb.runs_in_parallel(b(fb.LONG, 4, n), False)


@pytest.mark.test
@pytest.mark.parametrize("parallel", [False, True])
def test_an_impossible_step_leaves_other_sequences_alone(parallel):
    """Its sequence has the log probability −∞, no number is NaN, and the sequence beside it is as by itself."""
    transition, log_b = jnp.full((2, 2), 0.5), jnp.asarray(np.random.default_rng(2).normal(size=(4, 2, 2)))
    log_b = log_b.at[2, :, 0].set(-jnp.inf)
    both = jax.jit(fb.smooth, static_argnums=3)(jnp.full(2, 0.5), transition, log_b, parallel)
    alone = jax.jit(fb.smooth, static_argnums=3)(jnp.full(2, 0.5), transition, log_b[:, :, 1], parallel)
    assert both[1][0] == -np.inf and not any(np.any(np.isnan(part)) for part in both[0])
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(both), strict=True):
        np.testing.assert_allclose(other[..., 1], one, rtol=1e-12)
    beta = fb.backward(transition, jnp.exp(log_b), jnp.array([[1.0, 2.0], [1.0, 2.0], [0.0, 2.0], [1.0, 2.0]]), False)
    assert np.all(np.isfinite(beta))


@pytest.mark.test
@strict
def test_drawn_paths():
    assert_holds(drawn_law(fb.draw_path))
    assert broken(drawn_law(lambda u, a, filtered: fb.draw_path(u, jnp.ones((K, K)) / K, filtered)))
    assert broken(drawn_law(lambda u, a, filtered: fb.draw_path(u, a.T, filtered)))


@jax.jit
def e_step(theta: HiddenMarkov, rows: jax.Array, weights: jax.Array) -> Any:
    return PLAIN.e_step(theta, Batch(rows, weights, len(rows)))


@pytest.mark.test
@strict
def test_equal_rows_are_a_mixture():
    """No memory: every step is a draw from one mixture, to the last digits."""
    theta = THETA._replace(transition=jnp.broadcast_to(PI, (K, K)))
    mixture = tr.models.gaussian_mixture(K, 1, floor=0.0)
    rows = Y[~np.isnan(Y)][:, None]
    of_mixture = tr.models.mixture.Gaussians(PI, jnp.array(MEAN)[:, None], jnp.array(SD**2)[:, None, None])
    found = e_step(theta, Y, np.ones(N))
    wanted = jax.jit(lambda theta: mixture.e_step(theta, whole(jnp.array(rows))))(of_mixture)
    assert_holds({
        "log p": error(found.log_likelihood, wanted.log_likelihood, 1e-13),
        "shares": error(found.statistics.emission.count[:, 0], wanted.statistics.count, 1e-13),
    })  # fmt: skip


@strict
def test_padding_order_and_groups_do_not_matter():
    """Filled up further, in another order, one by one, or a hundred times: the same sums."""
    found = e_step(THETA, Y, np.ones(N))
    wider = np.concatenate([Y, np.full((N, 3), np.nan)], 1)
    many = e_step(THETA, np.tile(Y, (100, 1)), np.ones(100 * N))
    weighed = e_step(THETA, Y, np.array([1.0, 2.0, 0.0, 1.0]))
    repeated = e_step(THETA, Y[[0, 1, 1, 3]], np.ones(N))
    for other in (e_step(THETA, wider, np.ones(N)), e_step(THETA, Y[::-1], np.ones(N))):
        assert_holds(alike(other, found, 1e-12))
    assert_holds(alike(jax.tree.map(lambda a: a / 100, many), found, 1e-11))
    assert_holds(alike(weighed, repeated, 1e-12))
    log_prob = jax.jit(PLAIN.log_prob)(THETA, np.tile(Y, (100, 1)))
    np.testing.assert_allclose(log_prob, np.tile(found_logs(), 100), rtol=1e-13)


def found_logs() -> np.ndarray:
    return np.array([each["log p"] for each in LISTED])


def alike(a: Any, b: Any, tolerance: float) -> Scores:
    pairs = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True)
    return {
        jax.tree_util.keystr(path): error(x, y, tolerance * max(1.0, float(np.abs(y).max()))) for (path, x), y in pairs
    }


def pieces_law(monkeypatch: Any, rows: np.ndarray, name: str = "", wrong: Callable | None = None) -> Scores:
    """Pieces of two steps, the last filled up: the E-step of the whole sequences."""
    weights = np.arange(1.0, 1 + len(rows))
    with monkeypatch.context() as patch:
        patch.setattr(markov_chain, "LONG", 0)
        patch.setattr(markov_chain, "PIECE", 2 * K * len(rows))
        patch.setattr(jax, "default_backend", lambda: "cpu")  # others take sequences whole
        if wrong is not None:
            patch.setattr(fb, name, functools.partial(wrong, getattr(fb, name)))
        found = jax.jit(lambda theta: PLAIN.e_step(theta, Batch(jnp.array(rows), weights, len(rows))))(THETA)
    return alike(found, e_step(THETA, rows, weights), 1e-12)


@pytest.mark.test
@strict
def test_pieces_are_the_whole(monkeypatch):
    assert_holds(pieces_law(monkeypatch, Y))
    assert_holds(pieces_law(monkeypatch, Y[:1]))
    assert broken(pieces_law(monkeypatch, Y, "smooth", lambda passed, pi, a, b, *_: passed(pi, a, b)))  # back anew
    assert broken(pieces_law(monkeypatch, Y, "forward", lambda forward, _, a, b, *way: forward(PI, a, b, *way)))
    assert broken(pieces_law(monkeypatch, Y, "_expand", lambda expand, a, rank: 0 * expand(a, rank)))


@strict
def test_long_sequences_neither_vanish_nor_overflow():
    """A thousand steps, both ways, and with densities a thousand nats lower."""
    x = jnp.array(RNG.normal(size=(1, 1000)))
    logs = PLAIN.chain.log_b(THETA, x)
    low = fb.log_prob(PI, A, logs - 1000)
    assert np.isfinite(float(low))
    assert_holds({"shift": error(low + 1e6, fb.log_prob(PI, A, logs), 1e-6)})
    in_parallel = jax.jit(lambda logs: fb.smooth(PI, A, logs, True)[1])(logs)
    assert_holds({"parallel": error(in_parallel, fb.log_prob(PI, A, logs), 1e-8)})


# Families: those that come with the library, each with a prior.

AROUND = {"scale": [1.0, 2.0], "floor": 0.0}
FAMILIES = {
    "normal": (hidden_markov(2, "normal", 2, centre=[0.5, 1.0], **AROUND), RNG.normal(size=(6, 4, 2))),
    "multivariate-normal": (
        hidden_markov(2, "multivariate-normal", 2, centre=0.5, **AROUND), RNG.normal(size=(6, 4, 2))
    ),
    "poisson": (hidden_markov(2, "poisson", centre=3.0), RNG.poisson(3.0, (6, 4)).astype(float)),
    "bernoulli": (hidden_markov(2, "bernoulli", 2), RNG.integers(0, 2, (6, 4, 2)).astype(float)),
    "categorical": (hidden_markov(2, "categorical", classes=3), RNG.integers(0, 3, (6, 4)).astype(float)),
}  # fmt: skip
for _name, (_, _rows) in FAMILIES.items():
    _rows[0, 1] = _rows[1, 2:] = np.nan
    if _name in ("normal", "bernoulli"):
        _rows[2, 1, 0] = np.nan  # one of a step's numbers
every = pytest.mark.parametrize("name", FAMILIES)


def some_theta(model: Any) -> Any:
    return model.params(0.7 * jax.random.normal(jax.random.key(2), (model.space.size,)))


def smoothed(model: Any, theta: Any, rows: jax.Array) -> tuple:
    """The rows in the emission's layout, p(z_t | x), and the counts of π and A."""
    emission = model.chain.emission
    x = emission.arrange(rows)
    passes, log_prob = fb.smooth(theta.initial, theta.transition, emission.log_density(theta.emission, x))
    counted = up_to_last(emission.is_observed(x)) * jnp.ones(log_prob.shape)
    first = passes.smoothed[0].reshape(len(theta.initial), -1).sum(1)
    return x, passes.smoothed * counted[:, None], first, fb.moves(theta.transition, passes, counted[1:])


def expected_log_joint(model: Any, theta: Any, rows: jax.Array) -> Callable:
    """``θ' -> Q(θ'; θ)``, from the smoothed states at θ."""
    _, share, first, moves = smoothed(model, theta, rows)

    def q(theta: HiddenMarkov) -> jax.Array:
        steps = jnp.sum(jnp.where(share > 0, share * model.chain.log_b(theta, rows), 0))
        return steps + jnp.sum(first * jnp.log(theta.initial)) + jnp.sum(moves * jnp.log(theta.transition))

    return q


@pytest.mark.test("poisson", "normal")
@every
def test_fishers_identity(name):
    """∇ log p(x | θ) = ∇ Q(θ'; θ) at θ' = θ: autodiff of the forward pass against smoothed states."""
    model, rows = FAMILIES[name][0], jnp.array(FAMILIES[name][1])

    @jax.jit
    def slopes(theta: Any) -> tuple:
        u = model.position_of(theta)
        q = expected_log_joint(model, model.params(u), rows)
        of_log_p = jax.grad(lambda u: jnp.sum(model.log_prob(model.params(u), rows)))(u)
        return of_log_p, jax.grad(lambda u: q(model.params(u)))(u)

    assert_holds({"slope": error(*slopes(some_theta(model)), 1e-11)})


@functools.cache
def step_and_slope(name: str) -> tuple[Any, Callable]:
    """Where the M-step ends, and the slope of Q + log p(θ) there and elsewhere."""
    model, rows = FAMILIES[name][0], jnp.array(FAMILIES[name][1])
    theta = some_theta(model)

    @jax.jit
    def slope(at: Any) -> jax.Array:
        q = expected_log_joint(model, theta, rows)
        return jax.grad(lambda u: q(model.params(u)) + model.log_prior(model.params(u)))(model.position_of(at))

    return jax.jit(lambda theta: model.m_step(model.e_step(theta, whole(rows)).statistics))(theta), slope


def summit(name: str, change: Callable = lambda theta: theta) -> Scores:
    """The M-step is where Q + log p(θ) has no slope."""
    best, slope = step_and_slope(name)
    return {"slope": error(slope(change(best)), 0, 1e-9)}


@every
def test_the_m_step_is_a_maximum(name):
    assert_holds(summit(name))
    assert broken(summit(name, lambda theta: jax.tree.map(lambda a: 1.001 * a, theta)))
    assert broken(summit(name, lambda theta: theta._replace(transition=theta.transition.T / theta.transition.sum(0))))


@pytest.mark.test("bernoulli", "poisson")
@every
def test_no_step_goes_down(name):
    model, rows = FAMILIES[name][0], jnp.array(FAMILIES[name][1])
    kernel = em(model.e_step, model.m_step, model.log_prior)
    batch = whole(rows)
    thetas = jax.tree.map(
        lambda *a: jnp.stack(a), *[model.chain.begin(jax.random.key(i), np.array(rows)) for i in range(3)]
    )

    def climb(theta: Any) -> Any:
        state = kernel.init(jax.random.key(0), theta)
        return jax.lax.scan(lambda s, _: kernel.step(jnp.zeros(0), s, batch), state, length=60)[1]

    objective = np.asarray(jax.jit(jax.vmap(climb))(thetas).objective)
    assert np.isfinite(objective).all() and np.all(objective[:, -1] > objective[:, 0])
    assert np.all(np.diff(objective, axis=1) >= -1e-11 * np.abs(objective[:, 1:]))


@every
def test_priors_are_those_of_scipy(name):
    """Densities term by term, and draws whose scores have mean zero."""
    model = FAMILIES[name][0]
    theta = jax.tree.map(np.asarray, some_theta(model))
    wanted = sum(stats.dirichlet.logpdf(row / row.sum(), [2.0, 2.0]) for row in [theta.initial, *theta.transition])
    e = theta.emission
    if name == "normal":
        v, scale = e.sd**2, np.array([[1.0, 2.0]])
        wanted += stats.norm.logpdf(e.mean, [[0.5, 1.0]], e.sd).sum()
        wanted += (stats.invgamma.logpdf(v, 0.5, scale=0.5 * scale**2) + np.log(2 * e.sd)).sum()
    elif name == "multivariate-normal":
        for m, c in zip(e.mean, e.covariance, strict=True):
            wanted += stats.multivariate_normal.logpdf(m, [0.5, 0.5], c) + stats.invwishart.logpdf(
                c, 3, np.diag([1.0, 4.0])
            )
    elif name == "poisson":
        wanted += stats.gamma.logpdf(e.rate, 2, scale=3).sum()
    elif name == "bernoulli":
        wanted += stats.beta.logpdf(e.probs, 2, 2).sum()
    else:
        wanted += sum(stats.dirichlet.logpdf(p, [2.0] * 3) for p in e.probs)
    assert_holds({"density": error(jax.jit(model.log_prior)(theta), wanted, 1e-10)})

    def log_prior(u: jax.Array) -> jax.Array:
        tree = model.space.unravel(u)
        params = model.constrain(tree)
        return model.log_prior(params) + model.log_jacobian(tree, params)

    scores = jax.vmap(lambda key: jax.grad(log_prior)(model.position_of(model.sample_prior(key))))
    scores = np.asarray(jax.jit(scores)(jax.random.split(jax.random.key(9), 4000)))
    assert_holds({f"score {i}": z_mean(s, 0.0, s.var()) for i, s in enumerate(scores.T)})


@pytest.mark.test("normal")
@pytest.mark.parametrize("name", ["normal", "multivariate-normal"])
def test_sums_about_other_means(name):
    """Told about others' means, statistics are as if they had been made there."""
    model, rows = FAMILIES[name][0], jnp.array(FAMILIES[name][1])
    theta, other = some_theta(model), model.params(jnp.linspace(-1, 1, model.space.size))

    @jax.jit
    def sums(theta: Any) -> list:
        x, share, *_ = smoothed(model, theta, rows)
        return [model.chain.emission.sums(t.emission, x, share, jnp.array(6.0)) for t in (theta, other)]

    here, there = sums(theta)
    assert_holds(alike(here.in_frame_of(there), there, 1e-11))


def test_states_are_told_by_their_share_of_time():
    power = np.linalg.matrix_power(np.asarray(A), 200)
    assert_holds({"shares": error(shares(THETA), power[0], 1e-12)})
    told = PLAIN.symmetry.canonical(THETA)
    assert np.all(np.diff(shares(told)) <= 0)
    assert_holds({"the same model": error(PLAIN.log_prob(told, Y), PLAIN.log_prob(THETA, Y), 1e-12)})


def ahead_law(rows: np.ndarray) -> Scores:
    """Mean and variance of the next two steps, from all paths of the sequence filled up with what comes."""
    found = PLAIN.ahead(THETA, 2, (jnp.array(rows), None))
    scores = {}
    for n, y in enumerate(rows):
        cut = int(np.flatnonzero(~np.isnan(y)).max()) + 1
        filtered = PLAIN.filtered(THETA, jnp.array(y[None, :cut]))[0, -1]
        for h in range(2):
            p = np.asarray(filtered) @ np.linalg.matrix_power(np.asarray(A), h + 1)
            mean = p @ MEAN
            scores[f"mean {n} {h}"] = error(found.mean[n, h], mean, 1e-12)
            scores[f"variance {n} {h}"] = error(found.variance[n, h], p @ (SD**2 + MEAN**2) - mean**2, 1e-12)
    drawn = np.asarray(found.sample(jax.random.key(1), (4000,)))  # (s, n, h)
    for index in np.ndindex(*found.mean.shape):
        scores[f"drawn {index}"] = z_mean(drawn[:, *index], float(found.mean[index]), float(found.variance[index]))
    return scores


def test_what_comes_next():
    assert_holds(ahead_law(Y))
    filtered = np.asarray(PLAIN.filtered(THETA, Y))
    np.testing.assert_allclose(filtered[0, -1], LISTED[0]["smoothed"][-1], atol=1e-12)


# The whole.


@pytest.fixture(scope="module")
def cooked() -> tuple:
    """Ratings of twenty cooks over thirty days, some days off."""
    model = hidden_markov(2, centre=5.0, scale=2.0)
    truth = HiddenMarkov(
        jnp.array([0.6, 0.4]),
        jnp.array([[0.9, 0.1], [0.2, 0.8]]),
        emissions.Normals(jnp.array([6.5, 4.0]), jnp.array([0.8, 1.0])),
    )
    y = np.array(model.simulate(jax.random.key(7), truth, 20, 30)[0])
    y[RNG.random(y.shape) < 0.1] = np.nan
    data = tr.models.sequences([row[: 30 - i % 5] for i, row in enumerate(y)])
    return model, truth, data, tr.infer(model, data, tr.EM(starts=3), seed=0)


def test_em_finds_the_cooks(cooked):
    model, truth, data, posterior = cooked
    assert posterior.report().verdict == "trust", posterior.report()
    for got, wanted, sd in zip(*map(jax.tree.leaves, (posterior.mean(), truth, posterior.sd())), strict=True):
        assert np.all(np.abs(got - wanted) < 4 * sd)
    assert posterior.found["observations"] == np.sum(~np.isnan(data.y))
    told = posterior.predict(3)
    assert told.mean.shape == (20, 3) and np.all(told.lower < told.mean) and np.all(told.mean < told.upper)
    assert np.all(model.paths(posterior.mean(), data.y)[4, 26:] == -1)


def test_bic_counts_steps(cooked):
    _, _, data, _ = cooked
    found = tr.select(lambda k: hidden_markov(k, centre=5.0, scale=2.0), data, [1, 2], tr.EM(starts=2))
    assert found.components == 2
    row = found.table.iloc[1]
    assert row["BIC"] == pytest.approx(-2 * row["log likelihood"] + 7 * np.log(np.sum(~np.isnan(data.y))))


def test_draws_are_relabelled(cooked):
    """Draws in either order come back in one."""
    model, _, data, _ = cooked
    posterior = tr.infer(model, data, tr.MAP(starts=1), seed=0)
    nuts = tr.infer(model, data, tr.RandomWalk(chains=2, draws=40, warmup=40, thin=1), seed=0, verify=None)
    flat = np.tile(np.asarray(posterior.point), (2, 40, 1))
    flipped = model.position_of(model.symmetry.permute(model.params(jnp.array(posterior.point)), jnp.array([1, 0])))
    flat[1] = np.asarray(flipped)
    mixed = dataclasses.replace(nuts, belief=dataclasses.replace(nuts.belief, positions=flat))
    same = mixed.relabelled()
    np.testing.assert_allclose(same.sd().emission.mean, 0, atol=1e-6)
    assert mixed.sd().emission.mean.min() > 0.5


def test_evidence_of_one_state():
    """With one state numbers are independent: the evidence of a normal and its conjugate prior, in closed form."""
    y = np.random.default_rng(0).normal(5.3, 1.5, (4, 6))
    y[0, 4:] = y[1, 2] = np.nan
    found = tr.log_evidence(hidden_markov(1, centre=5.0, scale=2.0), tr.Data(y, missing="keep"))
    x, c = y[~np.isnan(y)], 1.0
    n, spread = len(x), ((x - x.mean()) ** 2).sum() + c * len(x) / (c + len(x)) * (x.mean() - 5.0) ** 2
    exact = gammaln(0.5 * (c + n)) - gammaln(0.5 * c) + 0.5 * np.log(c / (c + n)) + 0.5 * c * np.log(c * 4)
    exact = exact - 0.5 * (c + n) * np.log(c * 4 + spread) - 0.5 * n * np.log(np.pi)
    assert abs(found.estimate - exact) < 4.5 * found.standard_error
    assert not any(check.name in ("base", "normalisation") for check in found.checks)


HALVES = tr.Data(np.full((1, 1, 2), [1, np.nan]), missing="keep")


@pytest.mark.test
@pytest.mark.parametrize(
    ("call", "what", "sentence"),
    [
        (lambda: hidden_markov(0), ModelError, "states is a whole number"),
        (lambda: hidden_markov(2, "beta"), ModelError, "; got 'beta'"),
        (lambda: hidden_markov(2, "categorical"), ModelError, "classes= is the number"),
        (lambda: hidden_markov(2, "multivariate-normal"), ModelError, "give features="),
        (lambda: hidden_markov(2, prior_counts=-1), ModelError, "prior_counts is 0 or more"),
        (lambda: hidden_markov(2, scale=[1.0, 2.0]), ModelError, "scale expects positive finite numbers"),
        (lambda: hidden_markov(2, prior={}), ArgumentError, "was removed"),
        (lambda: tr.models.sequences([]), DataError, "got nothing"),
        (lambda: tr.models.sequences([[1.0], [[2.0]]]), DataError, "of equal d"),
        (lambda: tr.models.sequences([[1.0]], [[1.0, 2.0]]), DataError, "inputs of as many steps"),
        (lambda: tr.infer(PLAIN, tr.Data(np.ones(3)), tr.EM()), DataError, "Expected sequences of shape"),
        (lambda: tr.infer(hidden_markov(2, "poisson"), tr.Data(-np.ones((2, 3))), tr.MAP()), DataError, "got -1"),
        (lambda: tr.infer(hidden_markov(2, "bernoulli"), tr.Data(np.full((2, 3), 2)), tr.EM()), DataError, "emit 0 or"),
        (lambda: tr.infer(hidden_markov(2, "multivariate-normal", 2), HALVES, tr.EM()), DataError, "or not at all"),
        (lambda: PLAIN.ahead(THETA, jnp.ones((4, 2)), (jnp.array(Y), None)), SettingsError, "how many steps ahead"),
    ],
)  # fmt: skip
def test_sentences(call, what, sentence):
    with pytest.raises(what, match=sentence.replace("(", r"\(")):
        call()


def test_one_step_is_a_mixture():
    """The smallest sequence there is, by the mixture's own normaliser."""
    logits = np.log(np.asarray(PI))[:, None] + stats.norm.logpdf(Y[:, 0][None], MEAN[:, None], SD[:, None])
    kept = ~np.isnan(Y[:, 0])
    _, wanted = normalise(jnp.array(logits[:, kept]))
    assert_holds({"one step": error(PLAIN.log_prob(THETA, Y[kept][:, :1]), wanted, 1e-13)})
