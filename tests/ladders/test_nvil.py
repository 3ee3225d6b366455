"""NVIL: every state of small nets enumerated, so that what an estimator means is known exactly.

A law takes ``slope``, shaped like ``slope_at``, and returns scores; a wrong one breaks it.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import Scores, assert_holds, broken, error, z_mean
from scipy import stats

import tractable as tr
from tractable.core.model import Batch
from tractable.ladders import score, variance
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.ladders import sigmoid_belief_network
from tractable.ladders.layers import categorical, layer, standard_normal
from tractable.ladders.nvil_methods import NVIL
from tractable.ladders.pathwise import autoencoding
from tractable.ladders.score import Memory, Reductions, begin_baselines, remember
from tractable.ladders.variance import gradient_variance

pytestmark = pytest.mark.laws

PyTree = Any
EXACT = 1e-10
SIZE = 7  # rows of the data set that a batch stands for
SMALL = sigmoid_belief_network(4, (2, 1), weight_sd=1.3)  # 8 states
NET = sigmoid_belief_network(4, (3, 2), weight_sd=1.3)  # 32 states
LEVELS = sigmoid_belief_network(4, (2, 1), family=categorical(3))  # 27 states
X = jnp.array([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
RAW = Reductions(centre=False, baseline=None, normalise=False, local=False)
ALL = [
    Reductions(c, b, n, local)
    for c, b, n, local in itertools.product((False, True), (None, "layers", "input"), (False, True), (False, True))
]
MEMORY = Memory(jnp.array([-3.2, -0.7]), jnp.array([5.1, 0.2]), jnp.array(0.7))  # one σ̂ above 1, one below
SCALES = np.sqrt(np.array([5.1 / 0.7, 1.0]))


@functools.cache
def weights(ladder: Ladder) -> PyTree:
    """θ and φ with nothing in common, and x seen about a centre."""
    with jax.ensure_compile_time_eval():  # a law that is traced may be the first to ask
        params = ladder.initial(jax.random.key(1))
        leaves, structure = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(2), len(leaves))
        moved = [a + 0.6 * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)


def psi(ladder: Ladder, baseline: str | None, seed: int = 5) -> PyTree:
    """Baselines that say something."""
    begun = begin_baselines(ladder, jax.random.key(3), 3, baseline=baseline or "layers")
    leaves, structure = jax.tree.flatten(begun)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(structure, [a + jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)])


def given(ladder: Ladder, x: jax.Array, h: tuple) -> Callable:
    """A walk that draws nothing."""
    return lambda params: ladder.infer(params, x[None], lambda i, q: h[i])


def slope_at(ladder: Ladder, switches: Reductions, params: PyTree, x: Any, walk: Callable, batch: Batch, memory):
    """NVIL's slope at given draws."""
    return score.slope_at(ladder, switches, params, lambda part: (x, walk), batch, memory)


def rows_of(x: jax.Array, size: int = SIZE) -> Batch:
    return Batch((x, None), jnp.ones(len(x)), size)


def states(ladder: Ladder) -> tuple:
    """Every h, (m, 1, 1, units): one draw of one row."""
    assert ladder.causes is not None
    return tuple(h[:, None, None] for h in ladder.causes)


def terms(ladder: Ladder, params: PyTree, x: jax.Array) -> tuple[list, list]:
    """log p and log q of every state of one row x (1, D), each (m,)."""
    h = tuple(h[:, 0] for h in states(ladder))
    return [p[:, 0] for p in ladder.log_p(params["theta"], x[None], h)], [
        q[:, 0] for q in ladder.log_q(params, x[None], h)
    ]


def elbo(ladder: Ladder, params: PyTree, x: jax.Array) -> jax.Array:
    """In the sum scale of one row (1, D), by enumeration."""
    log_p, log_q = terms(ladder, params, x)
    q = jnp.exp(sum(log_q))
    return SIZE * jnp.sum(q * (sum(log_p) - sum(log_q))) + ladder.log_prior(params["theta"])


def told(log_p: list, log_q: list, local: bool) -> list:
    """l_i as the paper writes it."""
    depth = len(log_q)
    return [sum(log_p[(i - 1 if local else 0) :]) - sum(log_q[(i - 1 if local else 0) :]) for i in range(1, depth + 1)]


def fit(ladder: Ladder, baseline: str, params: PyTree, x: jax.Array) -> Callable:
    """SIZE E_q Σ_i −½ (l_i − c_i − C_i)²/max(1, σ̂_i) as a function of ψ alone; flags are 0 or 1."""
    log_p, log_q = terms(ladder, params, x)
    q = jnp.exp(sum(log_q))
    local, whole = (jnp.stack(told(log_p, log_q, each)) for each in (True, False))
    seen = [x[None] - params["phi"]["centre"][None, None]] * ladder.depth
    if baseline == "layers":
        assert ladder.causes is not None
        below = [ladder.layers[i].features(ladder.causes[i - 1])[:, None] for i in range(1, ladder.depth)]
        seen = [seen[0], *below]

    def of(psi: PyTree, flags: dict[str, Any]) -> jax.Array:
        total = jnp.zeros(())
        for i in range(ladder.depth):
            net = psi[f"c{i + 1}"]
            hidden = jnp.tanh(seen[i][:, 0] @ net["weight"] + net["bias"][None])
            guess = hidden @ net["out"] + net["answer"]
            signal = jnp.where(flags["local"], local[i], whole[i])
            centre = flags["centre"] * MEMORY.mean[i] / MEMORY.weight
            scale = jnp.where(flags["normalise"], SCALES[i], 1.0)
            total += jnp.sum(q * -jnp.square(signal - centre - guess) / 2 / scale)
        return SIZE * total

    return of


def expected(
    slope: Callable, ladder: Ladder, switches: Reductions, params: PyTree, x: jax.Array, memory: Memory
) -> tuple[jax.Array, PyTree]:
    """Mean value and gradient over every state of one row (1, D)."""

    def one(h: tuple) -> tuple[jax.Array, PyTree]:
        return slope(ladder, switches, params, x, given(ladder, x, h), rows_of(x), memory)[:2]

    q = jnp.exp(sum(terms(ladder, params, x)[1]))
    return jax.tree.map(lambda a: jnp.tensordot(q, a, 1), jax.vmap(one)(states(ladder)))


def unbiased(slope: Callable = slope_at, ladder: Ladder = NET, cases: list[Reductions] = ALL) -> Scores:
    """J1: Σ_h q(h) ĝ(h) is the gradient of the enumerated ELBO, layer by layer over max(1, σ̂_i) of φ; and that of
    ψ's least squares."""
    params, scores, rows = weights(ladder), {}, X[:, None]  # each row a batch
    best, wanted = jax.jit(jax.vmap(lambda x: jax.value_and_grad(elbo, 1)(ladder, params, x)))(rows)
    squares = {name: _squares(ladder, name) for name in {c.baseline for c in cases} if name}
    for switches in cases:
        mine, right = dict(params), wanted
        if switches.baseline is not None:
            mine["psi"] = psi(ladder, switches.baseline)
            flags = {name: float(getattr(switches, name)) for name in ("centre", "normalise", "local")}
            right = right | {"psi": squares[switches.baseline](mine["psi"], flags, rows)}
        mean = jax.vmap(lambda x, s=switches, p=mine: expected(slope, ladder, s, p, x, MEMORY))
        # Many cases have most of their operations in common, and are compiled soonest one operation at a time.
        value, got = (jax.jit(mean) if len(cases) == 1 else mean)(rows)
        if switches.normalise:
            for name, scale in zip(("h1", "h2"), SCALES, strict=True):
                got["phi"]["layers"][name] = jax.tree.map(lambda a, s=scale: a * s, got["phi"]["layers"][name])
        scores[f"{tuple(switches)[:4]} value"] = error(value, best, EXACT)
        for part, each in right.items():
            pairs = zip(jax.tree.leaves(got[part]), jax.tree.leaves(each), strict=True)
            scores[f"{tuple(switches)[:4]} {part}"] = max(error(a, b, EXACT) for a, b in pairs)
    return scores


def _squares(ladder: Ladder, baseline: str) -> Callable:
    params = weights(ladder)
    return jax.jit(
        jax.vmap(lambda psi, flags, x: jax.grad(fit(ladder, baseline, params, x))(psi, flags), (None, None, 0))
    )


def test_every_combination_of_switches_is_unbiased():
    assert_holds(unbiased())


@pytest.mark.test
def test_layers_of_several_levels_are_unbiased():
    assert_holds(unbiased(ladder=LEVELS, cases=[Reductions()]))


def wrong_sign(*args) -> tuple:
    value, gradient, memory = slope_at(*args)
    return value, gradient | {"phi": jax.tree.map(jnp.negative, gradient["phi"])}, memory


def without_score(ladder: Ladder, switches: Reductions, params: PyTree, x: Any, walk: Callable, batch: Batch, memory):
    """The ELBO's own derivative at given draws, without ∇ log q times a signal."""
    _, gradient, after = slope_at(ladder, switches, params, x, walk, batch, memory)

    def bound(params: PyTree) -> jax.Array:
        h, q = walk(params)
        log_q = sum(q_i.log_prob(h_i) for q_i, h_i in zip(q, h, strict=True))
        return SIZE * jnp.sum(sum(ladder.log_p(params["theta"], x[None], h)) - log_q)

    value, other = jax.value_and_grad(bound)(params)
    return value + ladder.log_prior(params["theta"]), gradient | {"phi": other["phi"]}, after


@pytest.mark.parametrize("slope", [wrong_sign, without_score])
def test_wrong_slopes_are_caught(slope):
    caught = broken(unbiased(slope, cases=[Reductions()]))
    assert [name for name in caught if name.endswith("phi")] and not any("theta" in name for name in caught)


def test_a_local_signal_without_the_layers_prior_is_caught(monkeypatch):
    right = score.signals
    monkeypatch.setattr(
        score, "signals", lambda log_p, log_q, *, local: right(log_p, log_q, local=local).at[1].add(-log_p[1])
    )
    scores = unbiased(cases=[RAW._replace(local=True)])
    assert {name.split()[-1] for name in broken(scores)} == {"phi"}
    assert max(scores.values()) > 1e8  # a bias of 0.01 and more: no rounding


@pytest.mark.test
def test_a_baseline_that_sees_its_own_layer_is_caught(monkeypatch):
    right = score.baseline_inputs

    def own(ladder, params, x, h, baseline):
        first = right(ladder, params, x, h, baseline)[0]
        return [first, jnp.pad(h[1].astype(first.dtype), ((0, 0), (0, 0), (0, 1)))]

    monkeypatch.setattr(score, "baseline_inputs", own)
    assert any(name.endswith("phi") for name in broken(unbiased(cases=[Reductions()])))


def two_rows(slope: Callable, switches: Reductions, memory: Memory) -> PyTree:
    """The mean gradient over all states of both rows of X together."""
    params = weights(SMALL) | {"psi": psi(SMALL, "layers")}

    def one(pair: jax.Array) -> PyTree:
        assert SMALL.causes is not None
        h = tuple(h[pair][None] for h in SMALL.causes)  # (1, 2, units)
        return slope(SMALL, switches, params, X, given(SMALL, X, h), rows_of(X), memory)[1]

    q = [jnp.exp(sum(terms(SMALL, params, x[None])[1])) for x in X]
    first, second = jnp.meshgrid(jnp.arange(8), jnp.arange(8), indexing="ij")
    gradients = jax.vmap(one)(jnp.stack([first.ravel(), second.ravel()], 1))
    return jax.tree.map(lambda a: jnp.tensordot((q[0][:, None] * q[1][None]).ravel(), a, 1), gradients)


def same_batch(ladder: Ladder, switches: Reductions, params: PyTree, x: Any, walk: Callable, batch: Batch, memory):
    """c and σ̂ of the very batch they are taken off."""
    here = slope_at(ladder, switches._replace(decay=0.0), params, x, walk, batch, remember(ladder, params))[2]
    return slope_at(ladder, switches, params, x, walk, batch, here)


def test_statistics_of_the_same_batch_take_one_over_b_of_the_slope_away():
    """J4, exactly: B = 2 rows, all 64 pairs of states."""
    centre, both = RAW._replace(centre=True), RAW._replace(centre=True, normalise=True)
    raw, lagged, same, scaled = jax.jit(
        lambda: (
            two_rows(slope_at, RAW, MEMORY),
            two_rows(slope_at, centre, MEMORY),
            two_rows(same_batch, centre, MEMORY),
            two_rows(same_batch, both, MEMORY),
        )
    )()
    wanted = {
        "lagged": error(SMALL.space.ravel(lagged["theta"]), SMALL.space.ravel(raw["theta"]), EXACT),
        **{
            f"{name} {path}": error(got, share * right, EXACT)
            for name, share, mine in (("lagged", 1.0, lagged), ("half", 0.5, same))
            for path, got, right in zip(
                "abcdefgh", jax.tree.leaves(mine["phi"]), jax.tree.leaves(raw["phi"]), strict=False
            )
        },
    }
    assert_holds(wanted)
    flat = [np.concatenate([np.ravel(a) for a in jax.tree.leaves(g["phi"])]) for g in (raw, scaled)]
    along = flat[0] @ flat[1] / (flat[0] @ flat[0])
    assert np.max(np.abs(flat[1] - along * flat[0])) > 1e-3 * np.max(np.abs(flat[0]))  # not even a multiple


@functools.cache
def variances() -> dict[str, float]:
    """J2: tr Cov of φ's gradient at one row, exactly. Of it centring leaves 0.22, local signals 0.88, both 0.21."""
    params, x = weights(NET), X[:1]
    log_p, log_q = terms(NET, params, x)
    q = jnp.exp(sum(log_q))
    means = {local: jnp.stack(told(log_p, log_q, local)) @ q for local in (False, True)}

    def variance(switches: Reductions) -> jax.Array:
        memory = Memory(means[switches.local], jnp.ones(2), jnp.ones(()))

        def one(h: tuple) -> jax.Array:
            slope = slope_at(NET, switches, params, x, given(NET, x, h), rows_of(x), memory)[1]["phi"]["layers"]
            return jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(slope)])

        gradients = jax.vmap(one)(states(NET))
        return q @ jnp.sum(jnp.square(gradients - (q @ gradients)[None]), 1)

    cases = {
        "raw": RAW,
        "centred": RAW._replace(centre=True),
        "local": RAW._replace(local=True),
        "local, centred": RAW._replace(centre=True, local=True),
    }
    return {name: float(jax.jit(lambda s=s: variance(s))()) for name, s in cases.items()}


def test_centring_lowers_the_variance_and_local_signals_may_not():
    found = variances()
    print({name: value / found["raw"] for name, value in found.items()})
    assert found["centred"] < found["raw"]
    assert found["local, centred"] < found["raw"]


def exact_posterior(params: PyTree) -> PyTree:
    """Of a net of single units, φ that makes q the posterior: log p(x | 1) − log p(x | 0) is linear in x."""
    theta = params["theta"]
    w1, b1 = theta["h1"]["layer0"]["weight"], theta["h1"]["layer0"]["bias"]  # (1, 1), (1,)
    w, b = theta["x"]["layer0"]["weight"], theta["x"]["layer0"]["bias"]  # (1, D), (D,)
    prior = jax.nn.sigmoid(theta["h2"]["bias"])  # (1,)
    on = jax.nn.sigmoid(b1 + w1[0])
    off = jax.nn.sigmoid(b1)
    mixed = prior * on + (1 - prior) * off  # p(h¹ = 1)
    first = jnp.log(mixed / (1 - mixed)) - jnp.sum(jax.nn.softplus(b + w[0]) - jax.nn.softplus(b))
    gap = [jnp.log(on / off), jnp.log((1 - on) / (1 - off))]  # log p(h¹ | h² = 1) − log p(h¹ | h² = 0), h¹ = 1 and 0
    layers = {
        "h1": {"layer0": {"weight": w.T, "bias": first}},
        "h2": {"layer0": {"weight": (gap[0] - gap[1])[None], "bias": theta["h2"]["bias"] + gap[1]}},
    }
    return {"theta": theta, "phi": {"centre": jnp.zeros_like(b), "layers": layers}}


@pytest.mark.test
def test_under_the_posterior_every_draw_says_log_p():
    """J5: the signals are log p(x), and layer 2's own is log p(h¹): nothing is left for a baseline to do."""
    net = sigmoid_belief_network(4, (1, 1))
    params = exact_posterior(weights(net))

    @jax.jit
    def both(x: jax.Array) -> tuple:
        log_p, log_q = terms(net, params, x[None])
        own = score.signals(*(jnp.stack(a)[:, :, None] for a in (log_p, log_q)), local=True)[..., 0]
        evidence = net.summed_out(params["theta"], x[None])[0]
        marginal = jax.nn.logsumexp((log_p[1] + log_p[2]).reshape(2, 2), axis=1)  # of h¹
        return own, evidence, marginal, score.signals(
            *(jnp.stack(a)[:, :, None] for a in (log_p, log_q)), local=False
        )  # fmt: skip

    for x in X:
        own, evidence, marginal, other = both(x)
        assert_holds(
            {
                "first": error(own[0], evidence, EXACT),
                "second": error(own[1].reshape(2, 2), marginal[:, None], EXACT),
                "global": error(other, evidence, EXACT),
            }
        )
    wrong = terms(net, weights(net), X[:1])
    assert np.ptp(sum(wrong[0]) - sum(wrong[1])) > 0.1


def leaking(ladder: Ladder, switches: Reductions, params: PyTree, x: Any, walk: Callable, batch: Batch, memory):
    """The least squares of the baseline climbed by everything that is in it."""
    value, gradient, after = slope_at(ladder, switches, params, x, walk, batch, memory)

    def squares(params: PyTree) -> jax.Array:
        h, q = walk(params)
        log_q = [q_i.log_prob(h_i) for q_i, h_i in zip(q, h, strict=True)]
        log_p = ladder.log_p(params["theta"], x[None], h)
        signal = score.signals(jnp.stack(log_p), jnp.stack(log_q), local=switches.local)
        guess = score.baselines(params["psi"], score.baseline_inputs(ladder, params, x, h, "layers"), signal.shape)
        return -jnp.sum(jnp.square(signal - guess)) / 2

    extra = jax.grad(squares)(params)
    return value, jax.tree.map(jnp.add, gradient, extra | {"psi": jax.tree.map(jnp.zeros_like, extra["psi"])}), after


def nothing_leaks(slope: Callable = slope_at) -> Scores:
    """J6: what ψ is tells θ nothing, and φ only through the number that weighs ∇ log q."""
    switches, x = Reductions(), jnp.concatenate([X, X[:1]])
    assert NET.causes is not None
    h = tuple(h[jnp.array([[3, 17, 30], [8, 21, 0]])] for h in NET.causes)  # two draws of three rows
    params = weights(NET)

    @jax.jit
    def at(psi: PyTree) -> tuple[PyTree, PyTree]:
        mine = params | {"psi": psi}
        walk = given(NET, x, h)
        gradient = slope(NET, switches, mine, x, walk, rows_of(x), MEMORY)[1]
        log_p = NET.log_p(params["theta"], x[None], h)
        signal = told(log_p, NET.log_q(params, x[None], h), True)
        guess = score.baselines(psi, score.baseline_inputs(NET, mine, x, h, "layers"), (2, 2, 3))

        def weighed(phi: PyTree) -> jax.Array:
            total = jnp.zeros(())
            for i, log_q in enumerate(NET.log_q({"theta": params["theta"], "phi": phi}, x[None], h)):
                weight = (signal[i] - guess[i] - MEMORY.mean[i] / MEMORY.weight) / SCALES[i]
                total += jnp.sum(weight * log_q) / 2
            return SIZE / 3 * total

        return gradient, jax.grad(weighed)(params["phi"])

    (one, wanted), (two, _) = at(psi(NET, "layers")), at(psi(NET, "layers", 6))
    moved = [np.max(np.abs(a - b)) for a, b in zip(*map(jax.tree.leaves, (one["phi"], two["phi"])), strict=True)]
    assert max(moved) > 0.1
    pairs = zip(jax.tree.leaves(one["phi"]), jax.tree.leaves(wanted), strict=True)
    return {
        "θ": float(not np.array_equal(NET.space.ravel(one["theta"]), NET.space.ravel(two["theta"]))) * 2,
        "θ with no baseline": error(
            NET.space.ravel(one["theta"]),
            NET.space.ravel(slope(NET, RAW, params, x, given(NET, x, h), rows_of(x), MEMORY)[1]["theta"]),
            EXACT,
        )
        if slope is slope_at
        else 0.0,
        "φ": max(error(a, b, EXACT) for a, b in pairs),
    }


def test_baselines_learn_without_a_word_to_theta_or_phi():
    assert_holds(nothing_leaks())
    assert set(broken(nothing_leaks(leaking))) == {"θ", "φ"}


@pytest.mark.test
def test_rows_that_are_padding_count_for_nothing():
    params = weights(NET) | {"psi": psi(NET, "layers")}
    padded = jnp.concatenate([X, jnp.ones((2, 4))])
    mask = jnp.array([1.0, 1.0, 0.0, 0.0])
    assert NET.causes is not None
    h = tuple(h[jnp.array([[3, 17, 30, 2]])] for h in NET.causes)
    short = tuple(h[:, :2] for h in h)
    switches = Reductions()

    @jax.jit
    def both(params: PyTree) -> tuple:
        whole = slope_at(NET, switches, params, X, given(NET, X, short), rows_of(X), MEMORY)
        batch = Batch((padded, None), mask, SIZE)
        return whole, slope_at(NET, switches, params, padded, given(NET, padded, h), batch, MEMORY)

    one, two = both(params)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.test
def test_the_memory_is_of_earlier_batches():
    params = weights(NET)
    assert NET.causes is not None
    h = tuple(h[jnp.array([[3, 17]])] for h in NET.causes)
    memory = remember(NET, params)
    assert memory.centre().tolist() == [0, 0] and memory.scale().tolist() == [1, 1]
    switches = Reductions(baseline=None, decay=0.8)
    signal = np.stack(told(NET.log_p(params["theta"], X[None], h), NET.log_q(params, X[None], h), True))[:, 0]
    after = jax.jit(lambda memory: slope_at(NET, switches, params, X, given(NET, X, h), rows_of(X), memory)[2])
    for _ in range(3):
        memory = after(memory)
        np.testing.assert_allclose(memory.centre(), signal.mean(1), rtol=1e-12)
        np.testing.assert_allclose(memory.scale(), np.maximum(1, signal.std(1)), rtol=1e-12)
    np.testing.assert_allclose(memory.weight, 1 - 0.8**3, rtol=1e-12)


def test_normal_layers_have_the_slope_that_goes_through_their_draws():
    """Nothing is asked of a layer but log p and log q: the mean agrees with that of differentiated draws."""
    down = [layer(2, 3, "bernoulli"), layer(1, 2, "normal"), standard_normal(1)]
    ladder = Ladder(down, bottom_up([layer(3, 2, "normal"), layer(2, 1, "normal")]))
    params, batch = weights(ladder), rows_of(X[:, :3], 2)
    score_slope = score.nvil(ladder, baseline=None, normalise=False, samples=3, leave_one_out=True).slope
    assert score_slope is not None

    @jax.jit
    def both(keys: jax.Array) -> list:
        def one(key: jax.Array) -> list:
            mine = score_slope(key, params, batch, remember(ladder, params))[1]
            theirs = jax.grad(autoencoding(ladder, samples=3).value, 1)(key, params, batch)
            return [a - b for a, b in zip(jax.tree.leaves(mine["phi"]), jax.tree.leaves(theirs["phi"]), strict=True)]

        return jax.lax.map(one, keys, batch_size=2000)

    gaps = [np.asarray(g).reshape(20_000, -1) for g in both(jax.random.split(jax.random.key(8), 20_000))]
    columns = [c for g in gaps for c in g.T if c.std() > 0]
    assert_holds({str(i): z_mean(c, 0.0, float(c.var())) for i, c in enumerate(columns)}, 20_000)


@pytest.mark.test
def test_the_value_is_the_bound_that_the_slope_climbs():
    objective, params, batch = score.nvil(SMALL, baseline=None, samples=2), weights(SMALL), rows_of(X)
    noise = jax.tree.map(lambda a: a[0], objective.draw(jax.random.key(4), 1, params))
    assert objective.slope is not None
    bound = jax.jit(objective.slope)(noise, params, batch, remember(SMALL, params))[0]
    assert float(jax.jit(objective.value)(noise, params, batch)) == pytest.approx(float(bound), rel=1e-12)


@pytest.mark.test
def test_the_measured_variances_are_the_enumerated_ones(monkeypatch):
    """Of one row and of fixed c: every pair's ½|g − g′|² has the mean that all states together say."""
    seen, measured = [], variance._estimates
    monkeypatch.setattr(variance, "_estimates", lambda *args: seen.append(measured(*args)) or seen[0])
    chosen = {"raw": RAW, "local": RAW._replace(local=True)}
    params = weights(NET)
    found = gradient_variance(
        NET, params, tr.Data(np.asarray(X[:1])), key=jax.random.key(0), draws=4000, rows=1, switches=chosen
    )
    exact = variances()
    for i, name in enumerate(chosen):
        total, spread = found.variance[i].sum() * SIZE**2, np.sqrt((found.error[i] ** 2).sum()) * SIZE**2
        assert abs(total - exact[name]) < 5.33 * spread * np.sqrt(2)  # layers' errors may go together
    slope = jax.grad(elbo, 1)(NET, params, X[:1])["phi"]["layers"]
    wanted = [sum(float(jnp.sum(jnp.square(a))) for a in jax.tree.leaves(slope[n])) / SIZE**2 for n in ("h1", "h2")]
    assert np.all(np.abs(found.signal - np.array(wanted)[None]) < 5.33 * found.signal_error)
    assert "raw" in str(found) and "h2" in str(found)
    # Means over pairs and their standard errors; |g + g'|² ≥ 0 bounds g·g' below by half of ½|g − g'|².
    halves, crosses = (np.asarray(a, float) for a in seen[0])
    assert len(halves) == 2000 and np.all(crosses >= -halves / 2 * (1 + 1e-9)) and np.any(crosses < -halves / 4)
    moments = halves.mean(0), stats.sem(halves), crosses.mean(0), stats.sem(crosses)
    for one, other in zip((found.variance, found.error, found.signal, found.signal_error), moments, strict=True):
        np.testing.assert_allclose(one, other)
    monkeypatch.setattr(variance, "_estimates", lambda *args: np.ones((2, 2, 1, 2)))
    gradient_variance(NET, params, tr.Data(np.asarray(X)), key=jax.random.key(0), draws=4, switches={"raw": RAW})


@pytest.mark.filterwarnings("ignore:The observed information")  # hidden units may change places and signs
def test_a_trained_net_is_as_likely_as_direct_maximum_likelihood_makes_it():
    """J7: 16 states, weighted by repetition; KL(p_data ‖ p_θ) within 0.01 nat."""
    counts = np.random.default_rng(4).multinomial(160, np.random.default_rng(5).dirichlet(np.full(16, 0.7)))
    every = ((np.arange(16)[:, None] >> np.arange(4)[None]) & 1).astype(float)
    net = sigmoid_belief_network(4, (2,), between=(8,))
    data = tr.Data(np.repeat(every, counts, 0))

    def divergence(posterior: tr.Posterior) -> float:
        assert posterior.point is not None
        log_p = np.asarray(net.summed_out(net.space.unravel(jnp.asarray(posterior.point)), jnp.asarray(every)))
        p = counts / counts.sum()
        return float(np.sum(p[p > 0] * (np.log(p[p > 0]) - log_p[p > 0])))

    direct = divergence(tr.infer(net, data, tr.MAP(steps=300)))
    learnt = divergence(tr.infer(net, data, NVIL(epochs=1500, batch_size=160, learning_rate=0.03)))
    print(f"KL: direct {direct:.4f}, NVIL {learnt:.4f}")
    assert learnt < direct + 0.01
