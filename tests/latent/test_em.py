"""EM: it climbs, stops where the gradient is zero, and is the same by chunks, from file and by weights.

A law takes what it judges as an argument and returns scores; wrong ones must break it. What concerns the formulas of
a mixture is in ``test_mixture.py``.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import check_kernel
from exact import probabilistic_pca_maximum
from montecarlo import Scores, assert_holds, broken, error, z_mean
from scipy import stats
from sklearn.decomposition import FactorAnalysis

from tractable.core import schedules
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.model import Batch, Data, Kernel, whole
from tractable.core.sums import Expected, accumulate, enumerated
from tractable.latent import factors, mixture
from tractable.latent.em import OnlineState, chunked, em, expected, online_em
from tractable.latent.factors import Loadings
from tractable.latent.mixture import Bernoullis, Gaussians

pytestmark = [pytest.mark.test, pytest.mark.usefixtures("strict_ranks")]

RNG = np.random.default_rng(11)
K, D, N = 2, 2, 90
X = np.where(RNG.random((N, 1)) < 0.4, [-1.5, 0.0], [1.0, 1.0]) + RNG.normal(size=(N, D))
COUNTS = RNG.integers(0, 4, N).astype(float)
FULL = mixture.gaussian_mixture(K, D, floor=0.0)
START = Gaussians(
    jnp.array([0.5, 0.5]), jnp.array([[-1.0, -0.5], [0.5, 1.5]]), jnp.array([[[1.0, 0.2], [0.2, 1.5]], np.eye(D)])
)
BITS = (RNG.random((N, 3)) < np.where(RNG.random((N, 1)) < 0.5, [0.9, 0.2, 0.6], [0.2, 0.7, 0.3])).astype(float)
COINS = Bernoullis(jnp.array([0.4, 0.6]), jnp.array([[0.6, 0.5, 0.3], [0.3, 0.4, 0.6]]))
PAIR = mixture.bernoulli_mixture(2, 3, 2.0)
NOTHING = jnp.zeros(0)


def iterated(kernel: Kernel, theta: Any, batch: Batch, steps: int) -> tuple[Any, Any]:
    @jax.jit
    def go(theta: Any) -> Any:
        state = kernel.init(jax.random.key(0), theta)
        return jax.lax.scan(lambda state, _: kernel.step(NOTHING, state, batch), state, length=steps)

    return go(theta)


def scores_of(a: Any, b: Any, tolerance: float, name: str = "") -> Scores:
    """Leaf by leaf, relative to the largest number of the leaf where that exceeds one."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True)
    return {
        f"{name} {jax.tree_util.keystr(path)}": error(x, y, tolerance * max(1.0, float(np.abs(y).max())))
        for (path, x), y in pairs
    }


# Batch EM.


@pytest.mark.parametrize("kind", mixture.COVARIANCES)
def test_no_step_goes_down(kind):
    """Twenty random starts, 300 steps each; without a floor EM is a bound maximised."""
    made = mixture.gaussian_mixture(K, D, kind, floor=0.0)
    kernel = em(made.e_step, made.m_step)
    cov = {"full": np.stack([np.eye(D)] * K), "tied": np.eye(D), "diagonal": np.ones((K, D)), "spherical": np.ones(K)}

    def climb(means: jax.Array) -> tuple[Any, Any]:
        state = kernel.init(jax.random.key(0), Gaussians(jnp.full(K, 1 / K), means, jnp.array(cov[kind])))
        batch = whole(jnp.array(X))
        return jax.lax.scan(lambda state, _: kernel.step(NOTHING, state, batch), state, length=300)

    state, info = jax.jit(jax.vmap(climb))(jnp.array(RNG.normal(size=(20, K, D))))
    objective = np.asarray(info.objective)
    assert np.isfinite(objective).all()
    assert np.all(np.diff(objective, axis=1) >= -1e-12 * np.abs(objective[:, 1:]))
    np.testing.assert_allclose(info.gain[:, 1:], np.diff(objective, axis=1), atol=1e-12)
    np.testing.assert_array_equal(info.gain[:, 0], 0)
    assert np.all(objective[:, -1] > objective[:, 0])
    np.testing.assert_array_equal(state.objective, objective[:, -1])


def fixed_point(m_step: Callable) -> Scores:
    """Where EM stops, the log likelihood has no slope: a law that knows nothing of EM."""
    state, info = iterated(em(FULL.e_step, m_step), START, whole(jnp.array(X)), 3000)

    def log_likelihood(free: Gaussians) -> jax.Array:
        return jnp.sum(FULL.log_prob(free._replace(weights=jax.nn.softmax(free.weights)), jnp.array(X)))

    theta = state.position
    slope = jax.jit(jax.grad(log_likelihood))(theta._replace(weights=jnp.log(theta.weights)))
    return {
        **{name: error(getattr(slope, name), 0, 1e-8 * N) for name in Gaussians._fields},
        "at rest": error(info.gain[-1], 0, 1e-10),
    }


def test_fixed_point():
    assert_holds(fixed_point(FULL.m_step))


@pytest.mark.laws
@pytest.mark.parametrize(
    "change",
    [
        lambda theta, s: theta._replace(weights=(theta.weights + 0.01) / (1 + 0.01 * K)),
        lambda theta, s: theta._replace(covariances=theta.covariances * (s.count / (s.count - 1))[:, None, None]),
        lambda theta, s: theta._replace(means=0.99 * theta.means),
    ],
    ids=["weights shrunk", "N_k − 1", "means shrunk"],
)
def test_fixed_point_mutants(change):
    assert broken(fixed_point(lambda s: change(FULL.m_step(s), s)))


def weighted_law(e_step: Callable) -> Scores:
    """A weight is a row repeated; a weight of 0 is a row left out; sums of parts are the whole."""
    rows = np.repeat(X, COUNTS.astype(int), axis=0)
    repeated = e_step(START, whole(jnp.array(rows)))
    weighted = e_step(START, Batch(jnp.array(X), jnp.array(COUNTS), N))
    parts = [e_step(START, whole(jnp.array(part))) for part in np.array_split(rows, 3)]
    twice = e_step(START, Batch(jnp.array(X), jnp.array(2 * COUNTS), N))
    return {
        **scores_of(weighted, repeated, 1e-10, "repeated"),
        **scores_of(jax.tree.map(lambda *leaves: sum(leaves), *parts), repeated, 1e-10, "parts"),
        **scores_of(twice, jax.tree.map(lambda a: 2 * a, repeated), 1e-10, "twice"),
    }


def mean_for_sum(theta: Any, batch: Batch) -> Expected:
    return jax.tree.map(lambda s: s / jnp.sum(batch.mask), FULL.e_step(theta, batch))


def mask_of_zeros_and_ones(theta: Any, batch: Batch) -> Expected:
    return FULL.e_step(theta, batch._replace(mask=(batch.mask > 0).astype(float)))


@pytest.mark.laws
def test_weights_are_rows_repeated():
    assert_holds(weighted_law(FULL.e_step))
    assert broken(weighted_law(mean_for_sum))
    assert broken(weighted_law(mask_of_zeros_and_ones))
    assert broken(weighted_law(lambda theta, batch: FULL.e_step(theta, batch._replace(mask=jnp.ones_like(batch.mask)))))


# By chunks, and from file.


def chunks_law(accumulate: Callable) -> Scores:
    """Ragged, full and larger than the data; with weights and without."""
    scores, bare = {}, FULL.e_step(START, whole(jnp.array(X)))
    weighted = FULL.e_step(START, Batch(jnp.array(X), jnp.array(COUNTS), N))
    for chunk in (7, 30, 1000):
        scores |= scores_of(accumulate(FULL.e_step, START, jnp.array(X), None, chunk), bare, 1e-12, f"{chunk}")
        found = accumulate(FULL.e_step, START, jnp.array(X), jnp.array(COUNTS), chunk)
        scores |= scores_of(found, weighted, 1e-12, f"{chunk} weighted")
    return scores


def last_chunk_counted_again(e_step: Callable, theta: Any, rows: jax.Array, weights: Any, chunk: int) -> Expected:
    """The overlap of the last chunk is not taken off."""
    weights = jnp.ones(len(rows)) if weights is None else weights
    chunk = min(chunk, len(rows))
    firsts = [min(start, len(rows) - chunk) for start in range(0, len(rows), chunk)]
    parts = [e_step(theta, Batch(rows[f : f + chunk], weights[f : f + chunk], len(rows))) for f in firsts]
    return jax.tree.map(lambda *leaves: sum(leaves), *parts)


def last_chunk_dropped(e_step: Callable, theta: Any, rows: jax.Array, weights: Any, chunk: int) -> Expected:
    kept = max(len(rows) // chunk, 1) * chunk
    return accumulate(e_step, theta, rows[:kept], None if weights is None else weights[:kept], chunk)


@pytest.mark.laws
def test_chunks():
    assert_holds(chunks_law(accumulate))
    assert_holds(chunks_law(lambda e_step, theta, rows, weights, chunk: expected(e_step, theta, rows, chunk, weights)))
    assert broken(chunks_law(last_chunk_counted_again))
    assert broken(chunks_law(last_chunk_dropped))


def test_a_chunked_kernel_goes_where_the_whole_one_goes():
    batch = Batch(jnp.array(X), jnp.array(COUNTS), N)
    one, _ = iterated(em(FULL.e_step, FULL.m_step), START, batch, 30)
    two, _ = iterated(em(chunked(FULL.e_step, 16), FULL.m_step), START, batch, 30)
    assert_holds(scores_of(two.position, one.position, 1e-10))


def test_from_file(tmp_path):
    """A memory-mapped file, chunk by chunk: batch EM."""
    np.save(tmp_path / "x.npy", X)
    data = Data(tmp_path / "x.npy", resident=False)
    theta = START
    for _ in range(10):
        found = expected(FULL.e_step, theta, data, chunk=32)
        assert all(isinstance(leaf, np.ndarray | np.float64) for leaf in jax.tree.leaves(found))
        theta = FULL.m_step(found.statistics)
    wanted, _ = iterated(em(FULL.e_step, FULL.m_step), START, whole(jnp.array(X)), 10)
    assert_holds(scores_of(theta, wanted.position, 1e-10))


def test_single_precision_by_chunks():
    """Sums over thousands of chunks lose no digits: compensated, they are those of float64 added."""
    x = jnp.array(RNG.normal(size=(20_000, 1)) + 5, jnp.float32)

    def e_step(theta: Any, batch: Batch) -> Expected:
        return Expected(jnp.sum(batch.mask[:, None] * batch.data, axis=0), jnp.sum(batch.mask))

    found = accumulate(e_step, jnp.zeros(1, jnp.float32), x, chunk=1)
    exact = np.sum(np.asarray(x, np.float64))
    assert found.statistics.dtype == jnp.float32
    naive = np.cumsum(np.asarray(x))[-1]
    assert abs(float(found.statistics[0]) - exact) <= 2**-23 * exact < abs(naive - exact)


# Online.


def steps_by_hand(online: Callable) -> Scores:
    """Five minibatches against the recursion written out; statistics stand for the whole data."""
    gamma, patience, theta = 0.3, 3, COINS
    batches = [Batch(jnp.array(BITS[i : i + 10]), jnp.ones(10).at[8:].set(0), N) for i in range(0, 50, 10)]
    kernel = online(PAIR.e_step, PAIR.m_step, gamma, patience, example=batches[0], log_prior=PAIR.log_prior)
    state = kernel.init(jax.random.key(0), COINS)
    statistics, scores = None, {}
    for t, batch in enumerate(batches):
        found = PAIR.e_step(theta, batch)
        objective = N / 8 * found.log_likelihood + stats.beta.logpdf(theta.means, 3, 3).sum()
        new = jax.tree.map(lambda s: N / 8 * s, found.statistics)
        statistics = new if t == 0 else jax.tree.map(lambda a, b: (1 - gamma) * a + gamma * b, statistics, new)
        theta = PAIR.m_step(statistics) if t + 1 >= patience else theta
        state, info = kernel.step(NOTHING, state, batch)
        scores |= scores_of(state.position, theta, 1e-10, f"{t}")
        scores |= scores_of(state.statistics, statistics, 1e-10, f"{t}")
        scores[f"{t} counts"] = error(jnp.sum(state.statistics.count), N, 1e-9)
        scores[f"{t} objective"] = error(info.objective, objective, 1e-9)
    return scores


def wrong_online(
    scale: Callable = lambda batch: batch.scale,
    mix: Callable = lambda old, new, gamma: (1 - gamma) * old + gamma * new,
    wait: bool = True,
    first: float = 1.0,
) -> Callable:
    """``online_em`` told again, with something to get wrong."""

    def factory(e_step, m_step, step_size, patience, *, example, log_prior=None):
        right = online_em(e_step, m_step, step_size, patience, example=example, log_prior=log_prior)

        def step(noise, state, batch):
            found = e_step(state.position, batch)
            gamma = jnp.where(state.time > 0, step_size, first)
            new = jax.tree.map(lambda s: scale(batch) * s, found.statistics)
            statistics = jax.tree.map(lambda a, b: mix(a, b, gamma), state.statistics, new)
            _, info = right.step(noise, state, batch)
            moved = (state.time + 1 >= patience) if wait else True
            position = jax.tree.map(lambda a, b: jnp.where(moved, a, b), m_step(statistics), state.position)
            return OnlineState(position, state.time + 1, statistics), info

        return Kernel(right.init, right.draw, step)

    return factory


def test_online_steps():
    assert_holds(steps_by_hand(online_em))
    assert_holds(steps_by_hand(wrong_online()))  # told again without an error


@pytest.mark.laws
@pytest.mark.parametrize(
    "online",
    [
        wrong_online(scale=lambda batch: 1.0),
        wrong_online(scale=lambda batch: batch.size / batch.mask.size),
        wrong_online(mix=lambda old, new, gamma: gamma * old + (1 - gamma) * new),
        wrong_online(mix=lambda old, new, gamma: old + gamma * new),
        wrong_online(wait=False),
        wrong_online(first=0.3),
    ],
    ids=["no N/n", "padding counted in n", "γ swapped", "nothing forgotten", "no patience", "first batch shrunk"],
)
def test_online_mutants(online):
    assert broken(steps_by_hand(online))


def test_online_with_everything_in_the_batch_is_batch_em():
    batch = whole(jnp.array(BITS))
    one, _ = iterated(em(PAIR.e_step, PAIR.m_step, PAIR.log_prior), COINS, batch, 20)
    two, _ = iterated(online_em(PAIR.e_step, PAIR.m_step, 1.0, 1, example=batch), COINS, batch, 20)
    assert_holds(scores_of(two.position, one.position, 1e-13))


@pytest.mark.laws
def test_online_reaches_batch_em():
    """Two epochs of 50 rows a batch, against 100 passes: within 1 % of the log likelihood, in nats a row."""
    key_x, key_order = jax.random.split(jax.random.key(4))
    truth = Gaussians(
        jnp.array([0.3, 0.7]), jnp.array([[-2.0, 1.0], [1.0, 0.0]]), jnp.array([np.eye(D), [[1.0, 0.6], [0.6, 0.8]]])
    )
    made = mixture.gaussian_mixture(K, D)
    x, _ = made.sample(key_x, truth, 4000)
    start = START._replace(means=jnp.array([[-0.5, 0.0], [0.5, 0.0]]))
    batches = jnp.concatenate([jax.random.permutation(k, x) for k in jax.random.split(key_order)]).reshape(-1, 50, D)
    kernel = online_em(made.e_step, made.m_step, example=whole(batches[0]))

    @jax.jit
    def go(batches: jax.Array) -> Any:
        state = kernel.init(jax.random.key(0), start)
        return jax.lax.scan(lambda s, rows: kernel.step(NOTHING, s, Batch(rows, jnp.ones(50), 4000)), state, batches)[0]

    state, _ = iterated(em(made.e_step, made.m_step), start, whole(x), 100)
    best, found = (float(jnp.mean(made.log_prob(s.position, x))) for s in (state, go(batches)))
    first = float(jnp.mean(made.log_prob(start, x)))
    assert first < best - 0.05 * abs(best)  # there was something to learn
    assert abs(found - best) < 0.01 * abs(best), (first, found, best)


# Contract.


def kernel_of(make: Callable) -> Callable:
    return lambda dtype: (make(), jax.tree.map(lambda a: a.astype(dtype), START))


CONTRACT_BATCH = Batch((jnp.array(X[:7]), None), jnp.ones(7).at[5:].set(0), N)
EM_KERNELS = {
    "em": lambda: em(FULL.e_step, FULL.m_step),
    "em with a prior": lambda: em(FULL.e_step, FULL.m_step, lambda theta: -jnp.sum(theta.means**2)),
    "em by chunks": lambda: em(chunked(FULL.e_step, 3), FULL.m_step),
    "online_em": lambda: online_em(FULL.e_step, FULL.m_step, patience=2, example=CONTRACT_BATCH),
    "online_em at a constant": lambda: online_em(FULL.e_step, FULL.m_step, 0.5, 1, example=CONTRACT_BATCH),
}


@pytest.mark.test("em")
@pytest.mark.parametrize("name", EM_KERNELS)
def test_contract(name):
    check_kernel(kernel_of(EM_KERNELS[name]), CONTRACT_BATCH)


# Any z that takes few values.

MOODS = jnp.array([0, 1, 2])


def cook(theta: dict, x: jax.Array, z: jax.Array) -> jax.Array:
    """A cook's mood decides how good a dish is; the mood is not seen."""
    off = (x - theta["quality"][z]) / theta["sd"]
    return (
        jnp.log(theta["moods"][z]) - 0.5 * jnp.sum(off**2) - x.size * (jnp.log(theta["sd"]) + 0.5 * np.log(2 * np.pi))
    )


def cook_statistics(x: jax.Array, z: jax.Array) -> dict:
    mood = (z == MOODS).astype(float)
    return {"mood": mood, "rating": mood * jnp.sum(x), "square": jnp.sum(x**2), "plates": mood * x.size}


def cook_m_step(s: dict) -> dict:
    quality = s["rating"] / s["plates"]
    variance = (s["square"] - jnp.sum(s["plates"] * quality**2)) / jnp.sum(s["plates"])
    return {"moods": s["mood"] / jnp.sum(s["mood"]), "quality": quality, "sd": jnp.sqrt(variance)}


def test_enumerated():
    """Three plates a day: responsibilities and evidence by SciPy, Fisher's identity, EM that climbs to a flat place."""
    mood = RNG.choice(3, 80, p=[0.5, 0.3, 0.2])
    ratings = jnp.array(np.array([1.0, 3.0, 5.0])[mood, None] + 0.8 * RNG.normal(size=(80, 3)))
    theta = {"moods": jnp.array([0.3, 0.3, 0.4]), "quality": jnp.array([0.5, 2.0, 4.0]), "sd": jnp.array(1.3)}
    cooks = enumerated(cook, MOODS, cook_statistics)
    terms = np.log(theta["moods"]) + np.stack(
        [stats.norm.logpdf(ratings, q, 1.3).sum(1) for q in np.asarray(theta["quality"])], 1
    )
    evidence = np.log(np.exp(terms).sum(1))
    r = np.exp(terms - evidence[:, None])
    counts = jnp.array(RNG.integers(0, 3, 80), float)

    @jax.jit
    def told(theta: dict) -> tuple:
        slope = jax.grad(lambda t: jnp.sum(counts * cooks.log_prob(t, ratings)))(theta)
        each = jax.vmap(lambda x: jax.vmap(lambda z: jax.grad(cook)(theta, x, z))(MOODS))(ratings)
        fisher = jax.tree.map(lambda g: jnp.tensordot(jnp.asarray(r) * counts[:, None], g, 2), each)
        both = cooks.log_prob(theta, ratings), cooks.responsibilities(theta, ratings)
        counted = enumerated(cook, MOODS).e_step(theta, Batch(ratings, counts, 80)).statistics
        return cooks.e_step(theta, Batch((ratings, None), counts, 80)), slope, fisher, *both, counted

    found, slope, fisher, log_prob, responsibilities, counted = told(theta)
    assert_holds(
        {
            "evidence": error(log_prob, evidence, 1e-10),
            "responsibilities": error(responsibilities, r, 1e-10),
            "log likelihood": error(found.log_likelihood, np.sum(counts * evidence), 1e-9),
            "moods": error(found.statistics["mood"], np.sum(counts[:, None] * r, 0), 1e-10),
            "ratings": error(found.statistics["rating"], (counts * ratings.sum(1)) @ r, 1e-9),
            "square": error(found.statistics["square"], jnp.sum(counts[:, None] * ratings**2), 1e-9),
            **scores_of(slope, fisher, 1e-10, "Fisher"),
            "expected counts": error(counted, counts @ r, 1e-10),
        }
    )
    state, info = iterated(em(cooks.e_step, cook_m_step), theta, whole(ratings), 300)
    assert np.all(np.diff(info.objective) >= -1e-10)
    flat = jax.jit(jax.grad(lambda t: jnp.sum(cooks.log_prob(t, ratings))))(state.position)
    assert_holds({"quality": error(flat["quality"], 0, 1e-7), "sd": error(flat["sd"], 0, 1e-7)})
    assert np.allclose(state.position["quality"], [1, 3, 5], atol=0.5)


def test_enumerated_rows_that_do_not_count():
    theta = {"moods": jnp.array([0.3, 0.3, 0.4]), "quality": jnp.array([0.5, 2.0, 4.0]), "sd": jnp.array(1.3)}
    cooks = enumerated(cook, MOODS, cook_statistics)
    good, bad = np.array([[1.0, 2.0]]), np.array([[1.0, 2.0], [np.nan, 1.0]])
    e_step = jax.jit(lambda rows, weights: cooks.e_step(theta, Batch(rows, weights, 1)))
    one, two = e_step(good, np.ones(1)), e_step(bad, np.array([1.0, 0.0]))
    assert_holds(scores_of(two, one, 1e-12))


# Factors.

Q, P = 2, 5
LOADINGS = RNG.normal(size=(P, Q)) * 1.5
ROWS = RNG.normal(size=(200, Q)) @ LOADINGS.T + RNG.normal(size=(200, P)) * np.array([0.5, 1.0, 0.7, 1.2, 0.9]) + 2.0
FACTOR_START = Loadings(jnp.zeros(P), jnp.array(RNG.normal(size=(P, Q))), jnp.ones(P))


def covariance_of(theta: Loadings) -> np.ndarray:
    return np.asarray(theta.loadings @ theta.loadings.T) + np.diag(np.broadcast_to(theta.noise, P))


def closed_form(maximum: Callable) -> Scores:
    """Probabilistic PCA: the log likelihood at the maximum, its slope there, and EM's covariance."""
    made, top = factors.probabilistic_pca(P, Q), maximum(ROWS, Q)
    values = np.linalg.eigvalsh(np.cov(ROWS.T, bias=True))[::-1]
    noise = values[Q:].mean()
    best = -0.5 * len(ROWS) * (P * np.log(2 * np.pi) + np.log(values[:Q]).sum() + (P - Q) * np.log(noise) + P)
    top = Loadings(*map(jnp.asarray, top))
    slope = jax.grad(lambda theta: jnp.sum(made.log_prob(theta, ROWS)))(top)
    start = FACTOR_START._replace(noise=jnp.array(1.0))
    state, info = iterated(em(made.e_step, made.m_step), start, whole(jnp.array(ROWS)), 2000)
    return {
        "log likelihood": error(jnp.sum(made.log_prob(top, ROWS)), best, 1e-8 * len(ROWS)),
        "slope": max(error(leaf, 0, 1e-8 * len(ROWS)) for leaf in slope),
        "EM's covariance": error(covariance_of(state.position), covariance_of(top), 1e-6),
        "EM's mean": error(state.position.mean, ROWS.mean(0), 1e-6),
        "EM's log likelihood": error(info.objective[-1], best, 1e-6),
        "falls": error(np.minimum(np.diff(info.objective), 0), 0, 1e-12 * abs(best)),
    }


def wrong_maximum(divisor: Callable, keep_noise: bool) -> Callable:
    def maximum(x: np.ndarray, rank: int) -> Loadings:
        values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
        values, vectors = values[::-1], vectors[:, ::-1]
        noise = values[rank:].sum() / divisor(x.shape[1], rank)
        return Loadings(x.mean(0), vectors[:, :rank] * np.sqrt(values[:rank] - noise * (not keep_noise)), noise)

    return maximum


def test_probabilistic_pca():
    assert_holds(closed_form(probabilistic_pca_maximum))
    assert broken(closed_form(wrong_maximum(lambda d, q: d, False)))  # discarded variance over d
    assert broken(closed_form(wrong_maximum(lambda d, q: d - q, True)))  # plain PCA: the noise not taken off
    weights = RNG.integers(0, 3, len(ROWS))
    one = probabilistic_pca_maximum(ROWS, Q, weights)
    assert_holds(scores_of(one, probabilistic_pca_maximum(np.repeat(ROWS, weights, axis=0), Q), 1e-9))


def factor_law(make: Callable) -> Scores:
    """Densities by SciPy; codes by conditioning; the step is exact, and ends where scikit-learn's ends."""
    made: LatentModel = make(P, Q)
    theta = FACTOR_START._replace(mean=jnp.arange(P) / 2.0, noise=jnp.linspace(0.5, 1.5, P))
    dense: Any = covariance_of(theta)
    log_prob = stats.multivariate_normal.logpdf(ROWS, np.asarray(theta.mean), dense)
    gain = np.asarray(theta.loadings).T @ np.linalg.inv(dense)
    means, covariance = (ROWS - np.asarray(theta.mean)) @ gain.T, np.eye(Q) - gain @ np.asarray(theta.loadings)
    counts = jnp.array(RNG.integers(0, 3, len(ROWS)), float)

    def bound(new: Loadings) -> jax.Array:  # Σ w E log p(x, z), but for what does not depend on θ
        off = ROWS - new.mean[None, :] - means @ new.loadings.T
        wave = jnp.diagonal(new.loadings @ covariance @ new.loadings.T)
        return -0.5 * jnp.sum(
            counts[:, None] * ((off**2 + wave[None, :]) / new.noise[None, :] + jnp.log(new.noise)[None])
        )

    found = made.e_step(theta, Batch(jnp.array(ROWS), counts, len(ROWS)))
    slope = jax.grad(bound)(made.m_step(found.statistics))
    codes, spread = made.encode(theta, ROWS)
    marginal = jax.grad(lambda t: jnp.sum(counts * made.log_prob(t, ROWS)))(theta)
    scores = {
        "log prob": error(made.log_prob(theta, ROWS), log_prob, 1e-9),
        "codes": error(codes, means, 1e-10),
        "codes' covariance": error(spread, covariance, 1e-10),
        "log likelihood": error(found.log_likelihood, np.sum(counts * log_prob), 1e-8),
        **scores_of(slope, jax.tree.map(jnp.zeros_like, slope), 1e-8, "M-step"),
        **scores_of(marginal, jax.grad(bound)(theta), 1e-10, "Fisher"),
    }
    theirs = FactorAnalysis(Q, tol=1e-12, max_iter=20_000, svd_method="lapack").fit(ROWS)
    state, info = iterated(em(made.e_step, made.m_step), FACTOR_START, whole(jnp.array(ROWS)), 3000)
    return {
        **scores,
        "scikit-learn's density": error(made.log_prob(state.position, ROWS).mean(), theirs.score(ROWS), 1e-7),
        "scikit-learn's covariance": error(covariance_of(state.position), theirs.get_covariance(), 1e-3),
        "falls": error(np.minimum(np.diff(info.objective), 0), 0, 1e-12 * abs(float(info.objective[-1]))),
    }


def point_codes(*args: Any) -> LatentModel:
    """E[z zᵀ] without the covariance of z: the mean code taken for z."""
    right = factors.factor_analysis(*args)

    def e_step(theta: Loadings, batch: Batch) -> Expected:
        found = right.e_step(theta, batch)
        spread = jnp.zeros((Q + 1, Q + 1)).at[:Q, :Q].set(jnp.sum(batch.mask) * right.encode(theta, batch.data)[1])
        regression = found.statistics
        return Expected(regression._replace(latent=regression.latent - spread), found.log_likelihood)

    return right.with_steps(e_step=e_step)


def no_regression_left(*args: Any) -> LatentModel:
    """ψ = diag S, the part that the factors explain left in."""
    right = factors.factor_analysis(*args)

    def m_step(s: Any) -> Loadings:
        new = right.m_step(s)
        return new._replace(noise=s.square / s.latent[Q, Q] - new.mean**2)

    return right.with_steps(m_step=m_step)


@pytest.mark.laws
def test_factor_analysis():
    assert_holds(factor_law(factors.factor_analysis))
    assert broken(factor_law(point_codes))
    assert broken(factor_law(no_regression_left))


@pytest.mark.laws
@pytest.mark.parametrize("make", [factors.factor_analysis, factors.probabilistic_pca])
def test_factors_weigh_chunk_and_centre(make):
    noise = jnp.array(0.8) if make is factors.probabilistic_pca else jnp.linspace(0.5, 1.5, P)
    made, theta = make(P, Q), FACTOR_START._replace(noise=noise)
    counts = RNG.integers(0, 3, len(ROWS))
    batch = Batch(jnp.array(ROWS), jnp.array(counts, float), len(ROWS))
    one = made.e_step(theta, batch)
    repeated = made.e_step(theta, whole(jnp.array(np.repeat(ROWS, counts, axis=0))))
    moved = make(P, Q, centre=np.arange(P) - 2.0)
    scores = scores_of(repeated, one, 1e-10, "repeated")
    scores |= scores_of(chunked(made.e_step, 64)(theta, batch), one, 1e-10, "chunked")
    scores |= scores_of(
        moved.m_step(moved.e_step(theta, batch).statistics), made.m_step(one.statistics), 1e-9, "centred"
    )
    assert_holds(scores)

    far = ROWS + 1e3
    single = jax.tree.map(lambda a: a.astype(jnp.float32), theta._replace(mean=theta.mean + 1e3))
    centred = make(P, Q, centre=far.mean(0))
    exact, _ = iterated(em(made.e_step, made.m_step), theta, whole(jnp.array(ROWS)), 10)
    found, _ = iterated(em(centred.e_step, centred.m_step), single, whole(jnp.array(far, jnp.float32)), 10)
    np.testing.assert_allclose(covariance_of(found.position), covariance_of(exact.position), atol=3e-3)


@pytest.mark.parametrize("make", [factors.factor_analysis, factors.probabilistic_pca])
def test_factors_sample(make):
    noise = jnp.array(0.8) if make is factors.probabilistic_pca else jnp.linspace(0.5, 1.5, P)
    theta = FACTOR_START._replace(mean=jnp.arange(P) / 2.0, noise=noise)
    x, z = make(P, Q).sample(jax.random.key(1), theta, 20_000)
    off = np.linalg.solve(np.linalg.cholesky(covariance_of(theta)), (np.asarray(x) - np.asarray(theta.mean)).T)
    rest = (np.asarray(x) - np.asarray(theta.mean) - np.asarray(z) @ np.asarray(theta.loadings).T) / np.sqrt(noise)
    scores = {"mean": z_mean(off, 0, 1), "variance": z_mean(off**2, 1, 2), "given z": z_mean(rest**2, 1, 2)}
    for i in range(P):
        for j in range(i):
            scores[f"{i} with {j}"] = z_mean(off[i] * off[j], 0, 1)
    assert_holds(scores, 20_000)


# Mistakes.


def begun() -> Any:
    return em(FULL.e_step, FULL.m_step).init(jax.random.key(0), START)


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda: online_em(FULL.e_step, FULL.m_step, 1.5, example=CONTRACT_BATCH), SettingsError, r"\(0, 1\].*got 1.5"),
        (lambda: online_em(FULL.e_step, FULL.m_step, 0.0, example=CONTRACT_BATCH), SettingsError, "got 0"),
        (lambda: online_em(FULL.e_step, FULL.m_step, patience=0, example=CONTRACT_BATCH), SettingsError, "1 or more"),
        (lambda: chunked(FULL.e_step, 0), SettingsError, "chunk is a whole number of rows"),
        (lambda: expected(FULL.e_step, START, X, weights=np.ones(3)), DataError, r"shape \(90,\); got \(3,\)"),
        (lambda: expected(FULL.e_step, START, Data(X[:0], allow_empty=True)), DataError, "have none"),
        (lambda: em(FULL.e_step, FULL.m_step).step(NOTHING, begun(), None), DataError, "give a batch"),
        (lambda: em(FULL.e_step, lambda s: s.count).step(NOTHING, begun(), CONTRACT_BATCH), ModelError, "like those"),
        (lambda: online_em(FULL.e_step, FULL.m_step, schedules.polynomial(3.0, 1.0, 0.6), example=CONTRACT_BATCH),
         SettingsError, r"\(0, 1\].*got 1.9"),
        (lambda: factors.factor_analysis(3, 4), ModelError, "1 to 3"),
        (lambda: factors.factor_analysis(0, 1), ModelError, "features is a whole number"),
        (lambda: factors.probabilistic_pca(3, 1, floor=0.0), ModelError, "floor is a variance"),
        (lambda: factors.probabilistic_pca(3, 1, centre=[0.0]), ModelError, "centre expects 3"),
        (lambda: factors.factor_analysis(3, 1).log_prob(FACTOR_START, ROWS), DataError, "rows of 3 numbers"),
    ],
)  # fmt: skip
def test_mistakes(call, kind, sentence):
    with pytest.raises(kind, match=sentence):
        call()


def test_schedules_fit():
    """(1 + t/t0)^−κ as the docstring says, and the kernel reports it."""
    schedule = schedules.polynomial(10**0.7, 10.0, 0.7)
    batch = whole(jnp.array(X))
    _, info = iterated(online_em(FULL.e_step, FULL.m_step, schedule, 1, example=batch), START, batch, 5)
    np.testing.assert_allclose(info.step_size, (1 + np.arange(5) / 10) ** -0.7, rtol=1e-12)
