"""Wake–sleep and its reweighted kin: both halves enumerated, over h, over (x, h), and over K draws at once.

Gradients are also told a second time, by hand: of a layer with logits η = aW + b at value v, ∇_W log p = aᵀ(v − σ(η)).
A law takes what it judges as an argument and returns scores; wrong ones must break it.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from montecarlo import Scores, Z, assert_holds, broken, error
from scipy import special

import tractable as tr
from tractable.core import tree
from tractable.core.errors import SettingsError
from tractable.core.model import Batch, Objective
from tractable.ladders import wake_sleep as objectives
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import categorical, layer, top
from tractable.ladders.wake_sleep import reweighted_wake_sleep, wake_sleep
from tractable.ladders.wake_sleep_methods import ReweightedWakeSleep, WakeSleep
from tractable.networks.network import Network

pytestmark = pytest.mark.laws

Params = dict[str, Any]


def slope_at(ladder: Ladder, params: Params, x: Any, h: tuple, dream: Any, batch: Batch, **weights: Any) -> tuple:
    """The slope at given draws."""
    return objectives.slope_at(ladder, params, lambda part: (x, h, dream), batch, **weights)


def belief(visible: int, first: int, second: int, **settings: Any) -> Ladder:
    """x ← h¹ ← h² of Bernoulli units, linear layers, and as linear a q upward."""
    return Ladder(
        [layer(first, visible), layer(second, first), top(second)],
        bottom_up([layer(visible, first), layer(first, second)]),
        **settings,
    )


def spread(ladder: Ladder, seed: int) -> Params:
    """Random θ and φ of size 1, and a centre in (0, 1)."""
    generator = np.random.default_rng(seed)
    params = ladder.initial(jax.random.key(seed))
    params = jax.tree.map(lambda a: jnp.asarray(generator.normal(0, 0.9, a.shape)), params)
    params["phi"]["centre"] = jnp.asarray(generator.uniform(0.2, 0.8, params["phi"]["centre"].shape))
    return params


def states(*sizes: int) -> tuple[jax.Array, ...]:
    """All values of binary layers of these sizes, (2^Σ, size) each."""
    all_of = np.array(list(itertools.product([0.0, 1.0], repeat=sum(sizes))))
    return tuple(jnp.asarray(part) for part in np.split(all_of, np.cumsum(sizes)[:-1], axis=1))


def told(params: Params, x: Any, h: Any) -> tuple[np.ndarray, np.ndarray, Params]:
    """log p(x, h), log q(h | x) and both their gradients, by hand, over a leading axis of (x, h)."""
    params = jax.tree.map(np.asarray, params)
    theta, phi = params["theta"], params["phi"]
    x, first, second = np.asarray(x), np.asarray(h[0]), np.asarray(h[1])

    def of(weights: Params, a: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, Params]:
        eta = a @ weights["layer0"]["weight"] + weights["layer0"]["bias"]
        left = v - special.expit(eta)
        log_p = np.sum(special.log_expit((2 * v - 1) * eta), -1)
        return log_p, {"layer0": {"weight": a[..., :, None] * left[..., None, :], "bias": left}}

    x_p, x_slope = of(theta["x"], first, x)
    first_p, first_slope = of(theta["h1"], second, first)
    bias = theta["h2"]["bias"]
    second_p = np.sum(special.log_expit((2 * second - 1) * bias), -1)
    first_q, first_up = of(phi["layers"]["h1"], x - phi["centre"], first)
    second_q, second_up = of(phi["layers"]["h2"], first, second)
    slope = {
        "theta": {"x": x_slope, "h1": first_slope, "h2": {"bias": second - special.expit(bias)}},
        "phi": {
            "centre": np.zeros((*x.shape[:-1], phi["centre"].size)),
            "layers": {"h1": first_up, "h2": second_up},
        },
    }
    return x_p + first_p + second_p, first_q + second_q, slope


def weighed(weights: Any, slopes: Params) -> Params:
    """Σ_i weights_i slopes_i."""
    return jax.tree.map(lambda a: np.tensordot(np.asarray(weights), np.asarray(a), 1), slopes)


def slope_of(objective: Objective) -> Callable:
    assert objective.slope is not None
    return objective.slope


def among(rows: slice, slopes: Params) -> Params:
    return jax.tree.map(lambda a: a[rows], slopes)


def flat(params: Params) -> np.ndarray:
    return np.asarray(ravel_pytree(params)[0])


# K1: the two halves of wake–sleep, 16 x's and 32 states.

N = 7
SD = 2.0
NET = belief(4, 3, 2, weight_sd=SD)
PARAMS = spread(NET, 3)
X16, *H32 = (np.asarray(a) for a in states(4, 3, 2))
ORDER = np.random.default_rng(0).permutation(512)  # every dream beside data of another kind
PRIOR = jax.tree.map(lambda w: -w / SD**2, PARAMS["theta"])


def one_by_one(at: Callable, x: Any, h: Any, dream: Any) -> tuple[np.ndarray, Params]:
    """Bound and slope of every (x, h) as a batch of one row of N, beside every dream."""

    @jax.jit
    @jax.vmap
    def each(x: jax.Array, h: tuple, dream: tuple) -> tuple:
        dream = jax.tree.map(lambda a: a[None], dream)
        batch = Batch((x[None], None), jnp.ones(1), N)
        return at(NET, PARAMS, x[None], jax.tree.map(lambda a: a[None, None], h), dream, batch)

    value, slope = each(*jax.tree.map(jnp.asarray, (x, tuple(h), dream)))
    return np.asarray(value), jax.tree.map(np.asarray, slope)


def halves(at: Callable) -> Scores:
    """K1: wake θ = N Σ_h q ∇ log p + ∇ log p(θ), for each x; sleep φ = N Σ_{x,h} p ∇ log q."""
    dream = (X16[ORDER], tuple(a[ORDER] for a in H32))
    value, slope = one_by_one(at, X16, H32, dream)
    log_p, log_q, wanted = told(PARAMS, X16, H32)
    q, p = np.exp(log_q), np.exp(log_p)
    prior = float(NET.log_prior(PARAMS["theta"]))
    scores = {"q sums to 1": error(q.reshape(16, 32).sum(1), 1, 1e-12), "p sums to 1": error(p.sum(), 1, 1e-12)}
    for i in range(16):
        rows = slice(32 * i, 32 * i + 32)
        got, by_hand = (weighed(q[rows], among(rows, s["theta"])) for s in (slope, wanted))
        by_hand = jax.tree.map(lambda g, p: N * g + np.asarray(p), by_hand, PRIOR)
        scores[f"θ at {i}"] = error(flat(got), flat(by_hand), 1e-10)
        elbo = q[rows] @ (log_p - log_q)[rows]
        scores[f"bound at {i}"] = error(q[rows] @ value[rows], N * elbo + prior, 1e-10)
    got = weighed(p[ORDER], slope["phi"])
    return scores | {"φ": error(flat(got), flat(weighed(N * p, wanted["phi"])), 1e-10)}


def altered(terms: Callable, awake: bool = False) -> Callable:
    """A telling of its own: the gradient of Σ terms(log p, log q, log q at the dream, wake φ, sleep φ).

    Args:
        awake: dreams are replaced by data with the dream's h.
    """

    def at(ladder, params, x, h, dream, batch, *, wake_phi=0.0, sleep_phi=1.0):
        dream = (x, dream[1]) if awake else dream

        def climbed(params: Params) -> tuple[jax.Array, jax.Array]:
            log_p = tree.total(ladder.log_p(params["theta"], x[None], h))
            log_q = tree.total(ladder.log_q(params, x[None], h))
            asleep = tree.total(ladder.log_q(params, *jax.tree.map(lambda a: a[None], dream)))[0]
            bound = jnp.sum(jnp.log(jnp.mean(jnp.exp(log_p - log_q), 0)))
            sums = jnp.sum(terms(log_p, log_q, asleep, wake_phi, sleep_phi))
            prior = ladder.log_prior(params["theta"])
            return batch.scale * sums + prior, batch.scale * bound + prior

        gradient, bound = jax.grad(climbed, has_aux=True)(params)
        return bound, gradient

    return at


held = jax.lax.stop_gradient


def shares(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    return held(jax.nn.softmax(log_p - log_q, axis=0))


def right(p: Any, q: Any, dream: Any, wake: Any, sleep: Any) -> jax.Array:
    return jnp.sum(shares(p, q) * (p + wake * q), 0) + sleep * dream


HALVES = {
    "the wake's q learns too": lambda p, q, dream, w, s: p[0] + q[0] + dream,
    "φ climbs KL(q ‖ p), at data": lambda p, q, dream, w, s: p[0] + held(p[0] - q[0]) * q[0],
    "p weighed by w": lambda p, q, dream, w, s: held(jnp.exp(p[0] - q[0])) * p[0] + dream,
    "a dream a batch": lambda p, q, dream, w, s: p[0] + dream / N,
}


@pytest.mark.test
def test_both_halves_are_enumerated():
    assert_holds(halves(slope_at))
    assert_holds(halves(altered(right)))  # what the wrong ones are made from
    for name, terms in HALVES.items():
        assert broken(halves(altered(terms))), name
    assert set(broken(halves(altered(right, awake=True)))) == {"φ"}  # asleep at data


# K1, K3: what is drawn. Rows are probabilities of pixels, one of three is padding, N = 6.

CLOUDY = belief(3, 1, 1, redraw=True)
DRAWN = spread(CLOUDY, 8)
ROWS = jnp.asarray(np.random.default_rng(1).uniform(0.1, 0.9, (3, 3)))
BATCH = Batch((ROWS, None), jnp.array([1.0, 1.0, 0.0]), 6)
REPLICATES = 20_000


@functools.cache
def expected(samples: int, wake_phi: float, sleep_phi: float) -> np.ndarray:
    """The mean of the slope over x, h and dreams, by hand."""
    x, *h = (np.asarray(a) for a in states(3, 1, 1))  # 8 × 4
    log_p, log_q, slopes = told(DRAWN, x, h)
    theta = phi = 0.0
    for row in np.asarray(ROWS[:2]):
        chance = np.prod(np.where(x == 1, row, 1 - row), -1).reshape(8, 4)[:, 0]
        for i, c in enumerate(chance):
            rows = slice(4 * i, 4 * i + 4)
            one = among(rows, slopes)
            mean = weighed(mean_shares(log_p[rows], log_q[rows], samples), one)
            theta, phi = theta + c * flat(mean["theta"]), phi + c * flat(mean["phi"])
    asleep = 2 * flat(weighed(np.exp(log_p), slopes["phi"]))
    scale = 6 / 2
    return scale * np.concatenate([wake_phi * phi + sleep_phi * asleep, theta])  # leaves by name: φ comes first


def mean_shares(log_p: np.ndarray, log_q: np.ndarray, samples: int) -> np.ndarray:
    """E Σ_k w̃_k [h_k = h] over draws of K from q, (states,), summed one by one."""
    w, found = np.exp(log_p - log_q), np.zeros(len(log_p))
    for chosen in itertools.product(range(len(log_p)), repeat=samples):
        k = list(chosen)
        np.add.at(found, k, np.exp(log_q[k].sum()) * w[k] / w[k].sum())
    return found


@functools.cache
def replicated(slope: Callable) -> np.ndarray:
    """Slopes of many keys, (REPLICATES, d)."""

    @jax.jit
    @jax.vmap
    def each(key: jax.Array) -> jax.Array:
        return ravel_pytree(slope(key, DRAWN, BATCH, ())[1])[0]

    return np.asarray(each(jax.random.split(jax.random.key(5), REPLICATES)))


def sampled(slope: Callable, samples: int, wake_phi: float, sleep_phi: float) -> Scores:
    """The slope's mean over keys against the enumerated one, a number of θ and φ at a time."""
    found, wanted = replicated(slope), expected(samples, wake_phi, sleep_phi)
    still = found.std(0) == 0  # the centre
    z = np.abs(found.mean(0) - wanted)[~still] / (found.std(0)[~still] / np.sqrt(REPLICATES)) / Z
    return {f"number {i}": float(s) for i, s in enumerate(z)} | {"still": error(found[0, still], wanted[still], 1e-12)}


def careless(awake: bool = False, imagined: bool = False, sharp: bool = False) -> Callable:
    """Wake–sleep that dreams data, infers h from p(h), or rounds pixels in place of drawing them."""

    def slope(key, params, batch, memory):
        keys = jax.random.split(key, 4)
        x = jnp.round(ROWS) if sharp else CLOUDY.look(keys[0], ROWS)
        h, _ = CLOUDY.drawn(keys[1], params, x, 1)
        dream = CLOUDY.dreamt(keys[2], params["theta"], 3)
        if imagined:
            h = jax.tree.map(lambda a: a[None], CLOUDY.dreamt(keys[3], params["theta"], 3)[1])
        if awake:
            dream = (x, jax.tree.map(lambda a: a[0], CLOUDY.drawn(keys[3], params, x, 1)[0]))
        return *slope_at(CLOUDY, params, x, h, dream, batch), memory

    return slope


def test_what_is_drawn():
    assert_holds(sampled(slope_of(wake_sleep(CLOUDY)), 1, 0.0, 1.0), REPLICATES)
    both = slope_of(reweighted_wake_sleep(CLOUDY, samples=2, wake_phi=0.7, sleep_phi=0.3))
    assert_holds(sampled(both, 2, 0.7, 0.3), REPLICATES)
    for fault in ("awake", "imagined", "sharp"):
        assert broken(sampled(careless(**{fault: True}), 1, 0.0, 1.0)), fault
    assert broken(sampled(both, 2, 0.3, 0.7))  # the weights of φ's halves, the other way
    assert broken(sampled(both, 3, 0.7, 0.3))  # and one draw too few


# K2: q as a table over the eight x of three pixels, one hidden unit of four values.


def table(x: jax.Array) -> jax.Array:
    """The place of x in the table; x comes about its mean."""
    return jnp.sum((x > 0) * jnp.array([4, 2, 1]))


TABLE = Network({"eta": jnp.zeros((8, 4))}, lambda params, x: params["eta"][table(x)], start=None)
FOUR = categorical(4)
LISTED = Ladder([layer(4, 3), top(1, FOUR)], bottom_up([layer(3, 1, FOUR, network=TABLE)]))
X8 = jnp.asarray(np.array(list(itertools.product([0.0, 1.0], repeat=3))))


def dreamt_out(at: Callable) -> Scores:
    """K2: φ where the sleep half ends is log p(h | x), and there the wake half is ∇ log p(x), that of EM."""
    params = spread(LISTED, 4)
    x, h = jnp.repeat(X8, 4, 0), (jnp.tile(jnp.arange(4), 8)[:, None],)
    p = jnp.exp(tree.total(LISTED.log_p(params["theta"], x, h)))  # (32,)
    batch = Batch((x[:1], None), jnp.ones(1), 1)

    def both(params: Params, i: jax.Array) -> Params:
        """Data i beside dream i."""
        one = jax.tree.map(lambda a: a[i][None], (x, h))
        return at(LISTED, params, one[0], jax.tree.map(lambda a: a[None], one[1]), one, batch)[1]

    def asleep(params: Params) -> jax.Array:
        slopes = jax.vmap(both, (None, 0))(params, jnp.arange(32))
        return jnp.tensordot(p, slopes["phi"]["layers"]["h1"]["eta"], 1)  # (8, 4)

    @jax.jit
    def ended(params: Params) -> tuple[jax.Array, jax.Array, Params]:
        each = jnp.sum(p.reshape(8, 4), 1)[:, None]  # rare x would be slow to learn

        def step(eta: jax.Array, _: None) -> tuple[jax.Array, None]:
            phi = params["phi"] | {"layers": {"h1": {"eta": eta}}}
            return eta + 2 * asleep(params | {"phi": phi}) / each, None

        eta = jax.lax.scan(step, params["phi"]["layers"]["h1"]["eta"], length=2000)[0]
        found = params | {"phi": params["phi"] | {"layers": {"h1": {"eta": eta}}}}
        q = jax.nn.softmax(eta)
        slopes = jax.vmap(both, (None, 0))(found, jnp.arange(32))
        awake = jax.tree.map(lambda a: jnp.tensordot(q.reshape(-1), a, 1), slopes["theta"])
        return q, asleep(found), awake

    q, left, awake = ended(params)
    exact = jax.jit(jax.grad(lambda theta: jnp.sum(LISTED.summed_out(theta, X8))))(params["theta"])
    return {
        "q": error(q, LISTED.responsibilities(params["theta"], X8), 1e-10),
        "slope": error(left, 0, 1e-12),
        "θ": error(flat(awake), flat(exact), 1e-9),
    }


def test_sleep_ends_in_the_posterior_and_wake_is_then_em():
    assert_holds(dreamt_out(slope_at))
    assert broken(dreamt_out(altered(lambda p, q, dream, w, s: p[0] + 0.9 * q[0] * held(q[0]) + dream)))
    assert broken(dreamt_out(altered(lambda p, q, dream, w, s: p[0] + dream * held(q[0]))))


# K3: K draws of a chain of two hidden units, 4^K of them, and a q that can be the posterior.

CHAIN = belief(3, 1, 1)
SEEN = jnp.array([1.0, 0.0, 1.0])
STATES = states(1, 1)
SMALL = 0.02


def invert(params: Params) -> Params:
    """φ of the exact posterior of a chain: h² does not see x beyond h¹, whose log-odds are linear in x."""
    params = jax.tree.map(np.asarray, params)
    theta = params["theta"]
    below, between, above = theta["x"]["layer0"], theta["h1"]["layer0"], theta["h2"]["bias"]

    def log_sigmoid(sign: Any, eta: Any) -> Any:
        return special.log_expit(sign * np.asarray(eta))

    w, b = between["weight"][0, 0], between["bias"][0]
    signs = np.array([-1, 1])
    joint = np.stack([log_sigmoid(s, b + w * np.arange(2)) + log_sigmoid(signs, above[0]) for s in signs])  # (h¹, h²)
    first = special.logsumexp(joint, 1)
    odds = joint[:, 1] - joint[:, 0]
    rest = np.sum(log_sigmoid(-1, below["weight"][0] + below["bias"]) - log_sigmoid(-1, below["bias"]))
    slope = below["weight"][0]
    centre = params["phi"]["centre"]
    layers = {
        "h1": {"layer0": {"weight": slope[:, None], "bias": np.array([first[1] - first[0] + rest + slope @ centre])}},
        "h2": {"layer0": {"weight": np.array([[odds[1] - odds[0]]]), "bias": odds[:1]}},
    }
    return jax.tree.map(jnp.asarray, params | {"phi": {"centre": centre, "layers": layers}})


EXACT = invert(spread(CHAIN, 11))
AWAY = spread(CHAIN, 12)["phi"]["layers"]


def beside(step: float) -> Params:
    """φ a step away from the posterior's."""
    layers = jax.tree.map(lambda a, d: a + step * d, EXACT["phi"]["layers"], AWAY)
    return EXACT | {"phi": EXACT["phi"] | {"layers": layers}}


PLACES = {"posterior": 0.0, "half": SMALL / 2, "near": SMALL, "far": 1.0}


@functools.cache
def summed_up(at: Callable, samples: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """E of the slopes of θ and of φ over all K draws of q, for each place of φ."""
    index = jnp.asarray(np.array(list(itertools.product(range(4), repeat=samples))))  # (4^K, K)
    batch = Batch((SEEN[None], None), jnp.ones(1), 1)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def everywhere(params: Params, index: jax.Array) -> Params:
        def one(k: jax.Array) -> Params:
            h = jax.tree.map(lambda a: a[k][:, None], STATES)  # (K, 1, 1)
            dream = SEEN[None], jax.tree.map(lambda a: a[0], h)
            slope = at(CHAIN, params, SEEN[None], h, dream, batch, wake_phi=1.0, sleep_phi=0.0)[1]
            chance = jnp.exp(jnp.sum(tree.total(CHAIN.log_q(params, SEEN[None, None], h))))
            return jax.tree.map(lambda a: chance * a, slope)

        return jax.tree.map(lambda a: jnp.sum(a, 0), jax.vmap(one)(index))

    found = everywhere(jax.tree.map(lambda *a: jnp.stack(a), *map(beside, PLACES.values())), index)
    of = {name: jax.tree.map(lambda a, i=i: a[i], found) for i, name in enumerate(PLACES)}
    return {name: flat(s["theta"]) for name, s in of.items()}, {name: flat(s["phi"]) for name, s in of.items()}


def by_hand(place: str, samples: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The same, told a second time; None for ∇ log p(x) and E_p(h | x) ∇ log q, which it stands for."""
    params = beside(PLACES[place])
    log_p, log_q, slopes = told(params, np.tile(SEEN, (4, 1)), STATES)
    shares = special.softmax(log_p) if samples is None else mean_shares(log_p, log_q, samples)
    found = weighed(shares, slopes)
    return flat(found["theta"]), flat(found["phi"])


@functools.cache
def slope_of_bound(samples: int) -> np.ndarray:
    """∇_θ E log (1/K) Σ w, enumerated and differentiated, far from the posterior."""
    params, x = beside(PLACES["far"]), jnp.tile(SEEN[None], (4, 1))
    log_q = tree.total(CHAIN.log_q(params, x, STATES))
    index = jnp.asarray(np.array(list(itertools.product(range(4), repeat=samples))))

    @jax.jit
    @jax.grad
    def bound(theta: Params) -> jax.Array:
        log_w = tree.total(CHAIN.log_p(theta, x, STATES)) - log_q
        return jnp.sum(jnp.exp(jnp.sum(log_q[index], 1)) * jax.nn.logsumexp(log_w[index] - np.log(samples), axis=1))

    return flat(bound(params["theta"]))


def counted(at: Callable, samples: int) -> Scores:
    """K3: θ's half is the gradient of the K-sample bound, both are the enumerated ones."""
    theta, phi = summed_up(at, samples)
    scores = {f"θ of {samples} is the bound's": error(theta["far"], slope_of_bound(samples), 1e-10)}
    for place in PLACES:
        wanted = by_hand(place, samples)
        scores[f"θ of {samples}, {place}"] = error(theta[place], wanted[0], 1e-10)
        scores[f"φ of {samples}, {place}"] = error(phi[place], wanted[1], 1e-10)
    return scores


def biased(at: Callable) -> Scores:
    """K3: no bias at the posterior; beside it c/K but for the square of the distance; and it falls with K."""
    scores = {}
    for half, name in enumerate("θφ"):
        bias = {
            (samples, place): summed_up(at, samples)[half][place] - by_hand(place, None)[half]
            for samples in (1, 2, 3)
            for place in PLACES
        }
        scores[f"{name} at the posterior"] = error(bias[2, "posterior"], 0, 1e-10)
        far = [np.linalg.norm(bias[samples, "far"]) for samples in (1, 2, 3)]
        scores[f"{name} falls"] = max(far[1] / far[0], far[2] / far[1])
        for samples in (2, 3):
            left = {
                place: np.linalg.norm(samples * bias[samples, place] - bias[1, place]) / np.linalg.norm(bias[1, place])
                for place in ("near", "half")
            }
            scores[f"{name}: 1/{samples}"] = left["near"] / 0.05
            scores[f"{name}: 1/{samples}, nearer"] = abs(left["half"] / left["near"] / 0.5 - 1) / 0.1
    return scores


REWEIGHTED = {
    "weights not normalised": lambda p, q, dream, w, s: jnp.mean(held(jnp.exp(p - q)) * (p + w * q), 0),
    "equal weights": lambda p, q, dream, w, s: jnp.mean(p + w * q, 0),
    "a gradient through the weights": lambda p, q, dream, w, s: jnp.sum(jax.nn.softmax(p - q, axis=0) * (p + w * q), 0),
    "φ climbs KL(q ‖ p)": lambda p, q, dream, w, s: jnp.sum(shares(p, q) * p, 0) + w * jnp.mean(held(p - q) * q, 0),
}


def test_weights_and_their_bias():
    assert np.allclose(by_hand("posterior", None)[1], 0, atol=1e-12)  # q is the posterior there
    for samples in (1, 2, 3):
        assert_holds(counted(slope_at, samples))
    assert_holds(biased(slope_at))
    assert_holds(counted(altered(right), 2))  # what the wrong ones are made from
    for name, terms in REWEIGHTED.items():
        assert broken(counted(altered(terms), 2)), name


# Padding, and what the weights of the halves do.


@pytest.mark.test
def test_padding_counts_for_nothing():
    """Rows that are masked, and the draws and dreams beside them, change neither the bound nor a slope."""
    rng = np.random.default_rng(2)
    x, h, dream = (rng.integers(0, 2, s).astype(float) for s in ((5, 4), (3, 5, 5), (5, 9)))
    h, dream = (h[..., :3], h[..., 3:]), (dream[:, :4], (dream[:, 4:7], dream[:, 7:]))

    @jax.jit
    def slope(x: jax.Array, h: tuple, dream: tuple, mask: jax.Array) -> tuple:
        return slope_at(NET, PARAMS, x, h, dream, Batch((x, None), mask, 20), wake_phi=0.5, sleep_phi=2.0)

    def of(rows: Any, mask: Any) -> np.ndarray:
        some = x[rows], tuple(a[:, rows] for a in h), jax.tree.map(lambda a: a[rows], dream)
        return flat(slope(*jax.tree.map(jnp.asarray, some), jnp.asarray(mask)))

    seen = [0, 1, 3]
    assert_holds({"padded": error(of(slice(None), [1.0, 1, 0, 1, 0]), of(seen, np.ones(3)), 1e-11)})
    assert broken({"counted": error(of(slice(None), [1.0] * 5), of(seen, np.ones(3)), 1e-11)})


def test_wake_sleep_is_reweighted_with_one_draw_and_dreams_alone():
    batch = Batch((jnp.asarray(X16[::32]), None), jnp.ones(16), 16)
    one = wake_sleep(NET), reweighted_wake_sleep(NET, samples=1, wake_phi=0.0, sleep_phi=1.0)

    @jax.jit
    def all_of(key: jax.Array) -> tuple:
        return *(slope_of(o)(key, PARAMS, batch, ())[:2] for o in one), one[0].value(key, PARAMS, batch)

    first, second, value = all_of(jax.random.key(3))
    np.testing.assert_array_equal(flat(first), flat(second))
    assert value == first[0]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"samples": 0}, "whole number ≥ 1; got 0"),
        ({"samples": 1}, "by noise alone"),
        ({"samples": 1, "wake_phi": 0.1, "sleep_phi": 1.0}, "by noise alone"),
        ({"wake_phi": -1.0}, "finite number ≥ 0; got -1.0"),
        ({"sleep_phi": float("inf")}, "finite number ≥ 0; got inf"),
        ({"wake_phi": 0.0}, "make one of them > 0"),
    ],
)
def test_settings_that_cannot_be(settings, sentence):
    with pytest.raises(SettingsError, match=sentence):
        reweighted_wake_sleep(NET, **settings)


# K4: end to end, against maximum likelihood by enumeration.

LEARNER = Ladder(
    [layer(3, 4), layer(2, 3), top(2)],
    bottom_up([layer(4, 3, hidden=(16,)), layer(3, 2, hidden=(16,))]),
    weight_sd=5.0,
)
GENERATOR = np.random.default_rng(6)
COUNTS = np.round(200 * GENERATOR.dirichlet(np.full(16, 0.5))).astype(int)
EACH = np.array(list(itertools.product([0.0, 1.0], repeat=4)))


def kl(posterior: Any) -> float:
    """KL(p_data ‖ p_θ), nats."""
    theta = jax.tree.map(jnp.asarray, posterior.mean())
    log_p = np.asarray(LEARNER.summed_out(theta, jnp.asarray(EACH)))
    assert abs(np.exp(log_p).sum() - 1) < 1e-5
    seen = COUNTS / COUNTS.sum()
    return float(np.sum(special.xlogy(seen, seen) - seen * log_p))


def test_learns_what_maximum_likelihood_does():
    """K4; on the way there is no promise that any one number rises."""
    data = tr.Data(np.repeat(EACH, COUNTS, axis=0))
    best = kl(tr.infer(LEARNER, data, tr.MAP(starts=5), seed=0))
    for method in (WakeSleep, ReweightedWakeSleep):
        found = kl(tr.infer(LEARNER, data, method(epochs=2500, batch_size=len(data), learning_rate=0.05), seed=1))
        print(f"{method.__name__}: {found:.4f} nats; maximum likelihood {best:.4f}")
        assert found < best + 0.02
