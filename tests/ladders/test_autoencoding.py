"""Linear-Gaussian ladders, of which everything is known: bounds, posteriors, and every estimator's mean gradient.

Told again here: the density of x, the posterior of h, and the bound as a sum over Gauss–Hermite nodes of (ε¹, …, ε^L),
whose derivative is the gradient that estimators should have on average.

    z ~ N(0, I),  x ~ N(Wz + μ, σ²I):   p(z | x) = N(M⁻¹Wᵀ(x − μ), σ²M⁻¹),   M = WᵀW + σ²I     (Tipping & Bishop 1999)
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact import probabilistic_pca_maximum
from jax.flatten_util import ravel_pytree
from montecarlo import Scores, Z, assert_holds, broken, error, ks, of_p, z_variance
from scipy import stats

import tractable as tr
from tractable.core.approximations import inverse_softplus
from tractable.core.model import Batch, Objective
from tractable.ladders import pathwise
from tractable.ladders.autoencoding import AutoEncoding
from tractable.ladders.bounds import log_weights
from tractable.ladders.ladder import Ladder
from tractable.ladders.ladders import hierarchical, latent_gaussian
from tractable.ladders.layers import SD_FLOOR, normal_noise
from tractable.latent.factors import Loadings, probabilistic_pca

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(3)
D, Q, N = 5, 2, 12
X = RNG.normal(size=(N, Q)) @ RNG.normal(size=(Q, D)) * [1.5, 1, 1, 0.7, 0.5] + 0.4 * RNG.normal(size=(N, D)) + 1.0
BEST = probabilistic_pca_maximum(X, Q)
EVIDENCE = np.asarray(probabilistic_pca(D, Q).log_prob(jax.tree.map(jnp.asarray, BEST), jnp.asarray(X)))
COUNT = 20_000
FORMS = [("reparameterised", "sampled"), ("reparameterised", "closed"), ("path", "sampled")]
Make = Callable[..., Objective]


def flat(tree: Any) -> jax.Array:
    return ravel_pytree(tree)[0]


def rho(sd: Any) -> jax.Array:
    """ρ of a layer's sd = floor + softplus(ρ)."""
    return inverse_softplus(jnp.asarray(sd) - SD_FLOOR)


def linear(weight: Any, mean: Any, sd: Any) -> dict:
    """A "normal" layer, h ~ N(above · weight + mean, sd²), weight (m, n)."""
    weight, mean = jnp.asarray(weight), jnp.asarray(mean)
    spread = jnp.broadcast_to(rho(sd), mean.shape)
    return {"layer0": {"weight": jnp.hstack([weight, 0 * weight]), "bias": jnp.concatenate([mean, spread])}}


def whole(x: Any, mask: Any = None, size: int | None = None) -> Batch:
    x = jnp.asarray(x)
    return Batch((x, None), jnp.ones(len(x)) if mask is None else jnp.asarray(mask), size or len(x))


def pca_ladder(q: int = Q, d: int = D) -> Ladder:
    return latent_gaussian(d, q, hidden=(), family="normal", noise="shared")


def pca_params(theta: Loadings, centre: Any) -> dict:
    """θ, and the inference network that is the posterior but for its off-diagonal covariance.

    Of normals with a diagonal covariance the nearest in KL(q ‖ p) has the posterior's means and 1/Λᵢᵢ.
    """
    w, mean, sd = np.asarray(theta.loadings), np.asarray(theta.mean), math.sqrt(float(theta.noise))
    inner = w.T @ w + sd**2 * np.eye(w.shape[1])
    encoder = w @ np.linalg.inv(inner)  # (d, q)
    q_sd = sd / np.sqrt(np.diag(inner))
    x = {"layer0": {"weight": jnp.asarray(w.T), "bias": jnp.asarray(mean)}, "noise": rho(sd)}
    return {
        "theta": {"x": x, "h1": {}},
        "phi": {"centre": jnp.asarray(centre), "layers": {"h1": linear(encoder, (centre - mean) @ encoder, q_sd)}},
    }


def slope(objective: Objective, noise: Any, params: Any, batch: Batch, memory: Any = None) -> tuple:
    """(value, gradient, memory) as ``ascend`` has them."""
    if objective.slope is None:
        return *jax.value_and_grad(objective.value, argnums=1)(noise, params, batch), ()
    return objective.slope(noise, params, batch, objective.first_memory(params) if memory is None else memory)


def log_normal(d: Any, h: jax.Array) -> jax.Array:
    """log density of independent normals, told again; d has loc and scale."""
    terms = -0.5 * ((h - d.loc) / d.scale) ** 2 - jnp.log(d.scale) - 0.5 * math.log(2 * math.pi)
    return jnp.sum(terms, -1)


@functools.cache
def nodes(count: int, dims: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (k, dims) and shares (k,) that integrate over N(0, I)."""
    points, shares = np.polynomial.hermite_e.hermegauss(count)
    grid = np.stack(np.meshgrid(*[points] * dims, indexing="ij"), -1).reshape(-1, dims)
    mass = np.prod(np.stack(np.meshgrid(*[shares / shares.sum()] * dims, indexing="ij"), -1), -1).ravel()
    return grid, mass


def told_log_w(ladder: Ladder, params: dict, x: jax.Array, eps: list[jax.Array]) -> jax.Array:
    """log w (k, n) of h = loc + scale ε, ε of each layer (k, n, units)."""
    h, q = ladder.infer(params, x[None], lambda i, q: q.base_dist.loc + q.base_dist.scale * eps[i])
    p = [d.base_dist for d in ladder.generative(params["theta"], h)]
    down = sum(log_normal(d, value) for d, value in zip(p, (x[None], *h), strict=True))
    return down - sum(log_normal(d.base_dist, value) for d, value in zip(q, h, strict=True))


def reference(ladder: Ladder, params: dict, x: jax.Array, samples: int = 1, count: int = 40) -> jax.Array:
    """Σ_n of the exact K-sample bound; every hidden layer has one unit."""
    points, shares = nodes(count, samples * ladder.depth)
    eps = points.reshape(-1, samples, ladder.depth)

    def one(k: int) -> jax.Array:
        each = [jnp.broadcast_to(eps[:, k, i, None, None], (len(eps), len(x), 1)) for i in range(ladder.depth)]
        return told_log_w(ladder, params, x, each)

    log_w = jnp.stack([one(k) for k in range(samples)])
    return jnp.sum(shares @ (jax.nn.logsumexp(log_w, axis=0) - math.log(samples)))


def from_mean(name: str, draws: np.ndarray, wanted: np.ndarray) -> Scores:
    """Each coordinate of independent vectors against its mean, and all at once; those without noise must be exact."""
    away, sd = draws.mean(0) - wanted, draws.std(0, ddof=1)
    noisy = sd > 1e-10 * max(1.0, float(np.abs(draws).max()))
    z = np.abs(away[noisy]) * math.sqrt(len(draws)) / sd[noisy]
    scaled = draws[:, noisy] / sd[noisy]
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(scaled.T)))
    kept = values > 1e-4 * values[-1]  # in the others the nodes' own error would count
    square = len(draws) * float(np.sum((vectors.T @ (away[noisy] / sd[noisy]))[kept] ** 2 / values[kept]))
    return {
        f"{name}: z": float(z.max()) / Z,
        f"{name}: T²": of_p(float(stats.chi2(int(kept.sum())).sf(square))),
        f"{name}: without noise": error(away[~noisy], 0.0, 1e-8) if not noisy.all() else 0.0,
    }


def somewhere(ladder: Ladder, seed: int = 0) -> dict:
    """Parameters at which nothing is zero but the centre; sds stay well away from 0, so that few draws show a mean."""
    params = ladder.initial(jax.random.key(seed))
    leaves, structure = jax.tree.flatten({"theta": params["theta"], "layers": params["phi"]["layers"]})
    rng = np.random.default_rng(seed)
    moved = jax.tree.unflatten(structure, [0.4 * a + 0.25 * rng.normal(size=a.shape) for a in leaves])
    return {"theta": moved["theta"], "phi": {"centre": params["phi"]["centre"], "layers": moved["layers"]}}


SMALL = {
    "one": latent_gaussian(2, 1, hidden=(), family="normal", noise="shared"),
    "bottom-up": hierarchical(2, (1, 1), hidden=((), ()), family="normal", noise="shared"),
    "top-down": hierarchical(2, (1, 1), hidden=((), (2,)), family="normal", noise="shared", inference="top-down"),
}
ROWS = jnp.asarray([[0.3, -0.8], [1.2, 0.1]])


# Laws, of ``autoencoding``.


def evidence(make: Make = pathwise.autoencoding) -> Scores:
    """Where q is the posterior, the bound of every draw is log p(x); a rotated W leaves the gap of a diagonal q."""
    scores, ladder = {}, pca_ladder()
    params = pca_params(BEST, X.mean(0))
    for gradient in ("reparameterised", "path"):
        value = jax.jit(make(ladder, samples=3, gradient=gradient, kl="sampled").value)
        for count in (N, 3):  # the other rows are padding
            got = [value(jax.random.key(s), params, whole(X, jnp.arange(N) < count)) for s in range(3)]
            scores[f"{gradient}: {count} rows"] = error(got, EVIDENCE[:count].sum() * N / count, 1e-8)
    angle = 0.6
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    turned = BEST._replace(loadings=BEST.loadings @ turn)
    precision = (turned.loadings.T @ turned.loadings + BEST.noise * np.eye(Q)) / BEST.noise
    gap = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
    assert gap > 0.05, gap
    objective, params = make(ladder, kl="sampled"), pca_params(turned, X.mean(0))
    many = jax.jit(jax.vmap(lambda key: objective.value(key, params, whole(X))))
    got = np.asarray(many(jax.random.split(jax.random.key(1), COUNT)))
    away = got.mean() - (EVIDENCE.sum() - N * gap)
    scores["rotated: gap"] = abs(away) * math.sqrt(COUNT) / got.std() / Z
    return scores


def two_levels() -> tuple[dict[str, tuple[Ladder, dict]], np.ndarray]:
    """Both inference networks at the exact posterior of a linear ladder, and log p(x).

    h² ~ N(0, I),  h¹ ~ N(D h², diag φ²),  x ~ N(W h¹ + μ, ψ²I),  W of orthogonal columns: units go in pairs.
    """
    rng = np.random.default_rng(8)
    w = np.linalg.qr(rng.normal(size=(D, 2)))[0] * [1.4, 0.8]  # (d, 2)
    length, tie, sd, noise, mean = np.array([1.4, 0.8]), np.array([0.9, -0.6]), np.array([0.5, 0.7]), 0.6, X.mean(0)
    theta = {
        "x": {"layer0": {"weight": jnp.asarray(w.T), "bias": jnp.asarray(mean)}, "noise": rho(noise)},
        "h1": linear(np.diag(tie), np.zeros(2), sd),
        "h2": {},
    }
    prior, seen = tie**2 + sd**2, (noise / length) ** 2  # variances of h¹, and of what x says of it
    below = 1 / (1 / prior + 1 / seen)
    above = 1 / (1 + tie**2 / sd**2)
    upward = {
        "h1": linear(w * (below / noise**2), np.zeros(2), np.sqrt(below)),
        "h2": linear(np.diag(above * tie / sd**2), np.zeros(2), np.sqrt(above)),
    }
    total = sd**2 + seen
    whole_above = 1 / (1 + tie**2 / total)
    downward = {
        "h1": {"up": {}, "head": linear(w / length**2, np.zeros(2), np.sqrt(seen))},
        "h2": {
            "up": {},
            "head": linear(w / length**2 * (whole_above * tie / total), np.zeros(2), np.sqrt(whole_above)),
        },
    }
    made = {}
    for inference, layers in (("bottom-up", upward), ("top-down", downward)):
        ladder = hierarchical(D, (2, 2), hidden=((), ()), family="normal", noise="shared", inference=inference)
        made[inference] = ladder, {"theta": theta, "phi": {"centre": jnp.asarray(mean), "layers": layers}}
    covariance = w @ np.diag(prior) @ w.T + noise**2 * np.eye(D)
    return made, stats.multivariate_normal(mean, covariance).logpdf(X)


def exact_ladders(make: Make = pathwise.autoencoding) -> Scores:
    """At the posterior log w of every draw is log p(x), both ways of inference; and φ's path gradient is 0."""
    made, wanted = two_levels()
    scores = {}
    for name, (ladder, params) in made.items():
        objective = make(ladder, kl="sampled", gradient="path")

        @jax.jit
        def both(key: jax.Array, ladder: Any = ladder, params: Any = params, objective: Any = objective) -> tuple:
            h, q = ladder.drawn(key, params, jnp.asarray(X), 4)
            value, gradient, _ = slope(objective, key, params, whole(X))
            return log_weights(ladder, params, jnp.asarray(X), h, q)[0], value, gradient["phi"]["layers"]

        log_w, value, gradient = both(jax.random.key(0))
        scores[f"{name}: log w"] = error(log_w - wanted, 0, 1e-8)
        scores[f"{name}: bound"] = error(value, wanted.sum(), 1e-8)
        scores[f"{name}: no noise"] = error(flat(gradient), 0.0, 1e-10)
    return scores


def levels(costs: Callable = pathwise.unit_costs) -> Scores:
    """What each unit of each level pays in closed form is what its draws pay on average; from the top down."""
    ladder = hierarchical(2, (2, 2), hidden=((), (3,)), family="normal", inference="top-down")
    params, scores = somewhere(ladder, 2), {}

    @jax.jit
    @jax.vmap
    def both(key: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        h, q = ladder.drawn(key, params, ROWS, 1)
        p = ladder.generative(params["theta"], h)[1:]
        each = list(zip(q, q, p, h, strict=True))
        return [(costs(*args, True), costs(*args, False)) for args in each]

    for i, (closed, drawn) in enumerate(both(jax.random.split(jax.random.key(0), COUNT))):
        away = np.asarray(drawn - closed).reshape(COUNT, -1)
        z = away.mean(0) * math.sqrt(COUNT) / away.std(0)
        scores[f"h{i + 1}"] = float(np.abs(z).max()) / Z
        wanted = 2 if i == 1 else 1  # KL(q(h² | x) ‖ p(h²)) of a row has no noise
        assert np.ptp(np.asarray(closed), axis=0).max() > 1e-3 or wanted == 2
    return scores


def gradients(make: Make = pathwise.autoencoding, cases: Any = tuple(SMALL), forms: Any = tuple(FORMS)) -> Scores:
    """The mean gradient of every form is that of the bound, θ and φ; so is the mean value."""
    scores = {}
    for case in cases:
        ladder, params = SMALL[case], somewhere(SMALL[case])
        value, wanted = jax.jit(jax.value_and_grad(lambda p, ladder=ladder: reference(ladder, p, ROWS)))(params)
        wanted = np.append(flat(wanted), value)
        objectives = {(g, kl): make(ladder, samples=2, gradient=g, kl=kl) for g, kl in forms}

        @jax.jit
        @jax.vmap
        def many(key: jax.Array, objectives: Any = objectives, params: Any = params) -> list[jax.Array]:
            each = [slope(o, key, params, whole(ROWS)) for o in objectives.values()]
            return [jnp.append(flat(gradient), value) for value, gradient, _ in each]

        keys = jax.random.split(jax.random.key(5), COUNT)
        for form, got in zip(objectives, many(keys), strict=True):
            scores |= from_mean(f"{case}, {form}", np.asarray(got), wanted)
            print(case, form, "trace of covariance", float(np.asarray(got)[:, :-1].var(0).sum()))
    return scores


def prices(make: Make = pathwise.autoencoding) -> Scores:
    """β, free nats and warm-up change what is climbed as their formula says, and not what is reported."""
    ladder, params, key, scores = pca_ladder(), somewhere(pca_ladder(), 4), jax.random.key(9), {}
    batch = whole(X[:5], jnp.array([1, 1, 1, 1, 0]), N)

    def kl(params: dict) -> jax.Array:
        """(4, q) KL(N(m, s²) ‖ N(0, 1)), told again."""
        q = ladder.infer(params, jnp.asarray(X[:4]), lambda i, q: q.base_dist.loc)[1][0].base_dist
        return 0.5 * (q.scale**2 + q.loc**2 - 1) - jnp.log(q.scale)

    def formula(params: dict, weight: float, free: float) -> jax.Array:
        likelihood = make(ladder).value(key, params, batch) + N / 4 * jnp.sum(kl(params))
        return likelihood - weight * N * jnp.sum(jnp.maximum(free, jnp.mean(kl(params), 0)))

    plain = make(ladder).value(key, params, batch)
    middle = float(jnp.mean(kl(params), 0).mean())  # between the two units' own
    cases = [
        (dict(beta=3.0), None, 3.0, 0.0),
        (dict(free_bits=middle), None, 1.0, middle),
        (dict(free_bits=100.0, beta=0.5), None, 0.5, 100.0),
        (dict(warmup=10, beta=2.0), 0, 0.0, 0.0),
        (dict(warmup=10, beta=2.0), 4, 0.8, 0.0),
        (dict(warmup=10, free_bits=middle), 12, 1.0, middle),
    ]  # fmt: skip
    derivative = jax.jit(jax.grad(formula))
    for settings, step, weight, free in cases:
        memory = None if step is None else jnp.asarray(step, jnp.int32)
        told, got, after = jax.jit(functools.partial(slope, make(ladder, **settings)))(key, params, batch, memory)
        wanted = derivative(params, weight, free)
        scores[f"{settings}, {step}"] = error(flat(got), flat(wanted), 1e-9)
        scores[f"{settings}, {step}: told"] = error(told, plain, 1e-10)
        if step is not None:
            scores[f"{settings}, {step}: counted"] = error(after, step + 1, 1e-3)
    return scores


def padding(make: Make = pathwise.autoencoding) -> Scores:
    """What a row that does not count holds moves nothing."""
    scores = {}
    mask = jnp.array([1, 1, 0])
    for name, settings in (("plain", {}), ("free", {"free_bits": 0.3, "kl": "sampled"})):
        objective = make(SMALL["bottom-up"], samples=2, **settings)
        params = somewhere(SMALL["bottom-up"])
        of = jax.jit(lambda x, o=objective, p=params: slope(o, jax.random.key(0), p, whole(x, mask, 7))[:2])
        both = [of(jnp.vstack([ROWS, jnp.asarray(row)])) for row in ([[0.0, 0.0]], [[30.0, -50.0]])]
        scores[name] = error(flat(both[0]), flat(both[1]), 1e-12)
    return scores


def uniform(z: Any) -> Scores:
    """z (rows, units) is standard normal, that is, the ranks Φ(z) are uniform."""
    z = np.asarray(z)
    each = {f"ranks of unit {j}": ks(z[:, j], stats.norm.cdf) for j in range(z.shape[1])}
    return each | {f"spread of unit {j}": z_variance(z[:, j], 0.0, 1.0) for j in range(z.shape[1])}


def calibration(scale: float = 1.0) -> Scores:
    """(x, h) dreamt from the model: the ranks of h in q(h | x) are uniform (Talts et al. 2018). scale: a wrong sd."""
    ladder = pca_ladder()
    params = pca_params(BEST, X.mean(0))
    x, (h,) = ladder.dreamt(jax.random.key(11), params["theta"], COUNT)
    q = ladder.infer(params, x, lambda i, q: q.base_dist.loc)[1][0].base_dist
    return uniform((h - q.loc) / (q.scale * scale))


# They hold.


@pytest.mark.test
def test_evidence():
    assert_holds(evidence())


@pytest.mark.test
def test_exact_ladders():
    assert_holds(exact_ladders())


@pytest.mark.test
def test_levels():
    assert_holds(levels(), COUNT)


@pytest.mark.test("one")
@pytest.mark.parametrize("case", SMALL)
def test_gradients(case):
    assert_holds(gradients(cases=[case]), COUNT)


@pytest.mark.test
def test_prices():
    assert_holds(prices())


@pytest.mark.test
def test_padding():
    assert_holds(padding())


@pytest.mark.test
def test_calibration():
    assert_holds(calibration(), COUNT)
    assert broken(calibration(0.95))


# Wrong formulas that circulate do not.


def with_costs(wrong: Callable) -> Callable:
    """``unit_costs`` with its closed form changed."""

    def costs(q: Any, density: Any, p: Any, h: Any, closed: bool) -> jax.Array:
        right = pathwise.unit_costs(q, density, p, h, closed)
        return wrong(right, q.base_dist, p.base_dist) if closed else right

    return costs


WRONG_KL = {
    "sign": lambda kl, q, p: -kl,
    "no half": lambda kl, q, p: 2 * kl,
    "no log σ": lambda kl, q, p: kl + jnp.log(q.scale) - jnp.log(p.scale),
    "other way": lambda kl, q, p: dist.kl_divergence(p, q),
    "variance for sd": lambda kl, q, p: kl + 0.5 * (q.scale - q.scale**2) / p.scale**2,
}


@pytest.mark.parametrize("name", WRONG_KL)
def test_wrong_closed_forms(name):
    found = broken(levels(with_costs(WRONG_KL[name])))
    assert "h1" in found, found


def test_a_density_without_its_log_det(monkeypatch):
    right = pathwise.unit_costs
    monkeypatch.setattr(
        pathwise, "unit_costs", lambda q, d, p, h, closed: right(q, d, p, h, closed) + jnp.log(d.base_dist.scale)
    )
    assert broken(evidence())


def test_a_score_that_was_not_cut(monkeypatch):
    def live(ladder: Ladder, params: Any, x: Any, h: tuple) -> list:
        return ladder.infer(params, x[None], lambda i, q: h[i])[1]

    monkeypatch.setattr(pathwise, "_fixed_q", live)
    found = broken(exact_ladders())
    assert "top-down: no noise" in found and "bottom-up: no noise" in found


def test_a_closed_form_whose_condition_is_drawn_later(monkeypatch):
    """KL(q(h¹ | x) ‖ p(h¹ | h²)) at an h² that was drawn from h¹."""
    monkeypatch.setattr(pathwise, "closed_layers", lambda ladder: frozenset(range(ladder.depth)))
    found = broken(gradients(cases=["bottom-up"], forms=[("reparameterised", "closed")]))
    assert any("z" in name for name in found), found


def test_a_price_of_the_padding():
    def careless(ladder: Ladder, **settings: Any) -> Objective:
        made = pathwise.autoencoding(ladder, **settings)

        def value(noise: Any, params: Any, batch: Batch) -> jax.Array:
            return made.value(noise, params, batch._replace(mask=jnp.ones_like(batch.mask)))

        return Objective(pathwise.keys, value)

    assert broken(padding(careless))


# Trained.


def fitted(family: Any, noise: Any, rows: np.ndarray, latent: int) -> tuple[Any, Ladder]:
    ladder = latent_gaussian(rows.shape[1], latent, hidden=(), family=family, noise=noise)
    method = AutoEncoding(epochs=2500, batch_size=len(rows), learning_rate=0.03, gradient="path", kl="sampled")
    return tr.infer(ladder, tr.Data(rows), method, seed=2, progress=False), ladder


def data(count: int = 400) -> np.ndarray:
    rng = np.random.default_rng(1)
    directions = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    return rng.normal(size=(count, 6)) * [2.0, 1.4, 1.0, 0.45, 0.4, 0.35] @ directions.T + 0.5


def closed_form(rows: np.ndarray, w: np.ndarray, mean: np.ndarray, noise: float) -> float:
    return float(stats.multivariate_normal(mean, w @ w.T + noise * np.eye(len(mean))).logpdf(rows).mean())


@pytest.mark.parametrize(("family", "noise"), [("normal", "shared"), (normal_noise(0.5), None)])
def test_trained(family, noise):
    """Linear VAEs end where probabilistic PCA does; units that a given σ has no room for are given up."""
    rows = data()
    latent = 3 if noise else 5
    posterior, ladder = fitted(family, noise, rows, latent)
    theta = jax.tree.map(np.asarray, ladder.space.unravel(jnp.asarray(posterior.point)))
    w, mean = theta["x"]["layer0"]["weight"].T, theta["x"]["layer0"]["bias"]
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    variance = values[:3].mean() if noise else 0.25
    best = (vectors * np.sqrt(np.maximum(values - variance, 0)))[:, np.argsort(-values)[:latent]]
    wanted = closed_form(rows, best, rows.mean(0), variance)
    sd = SD_FLOOR + float(np.logaddexp(0, theta["x"]["noise"])) if noise else 0.5
    got, target = w @ w.T + sd**2 * np.eye(6), best @ best.T + variance * np.eye(6)
    params = {"theta": theta, "phi": posterior.phi}
    h, q = ladder.drawn(jax.random.key(0), params, jnp.asarray(rows), 400)
    log_w = np.asarray(log_weights(ladder, params, jnp.asarray(rows), h, q)[0])
    bound = float(log_w.mean())
    spread = float(log_w.mean(1).std() / math.sqrt(400))
    cost = np.asarray(pathwise.unit_costs(q[0], q[0], ladder.generative(theta, h)[1], h[0], True)).mean((0, 1))
    print(f"bound {bound:.5f} ± {spread:.1g} of {wanted:.5f}; KL by unit {cost.round(4)}, sd {sd:.4f}")
    assert abs(bound - wanted) < 1e-3 + 4 * spread
    assert wanted - closed_form(rows, w, mean, sd**2) < 1e-3
    assert np.linalg.norm(got - target) < 0.02 * np.linalg.norm(target)
    superfluous = np.sort(cost)[: latent - 3]
    assert np.all(superfluous < 1e-3) and np.sort(cost)[latent - 3] > 0.5
    # What is dreamt is inferred: h's ranks are uniform.
    x, (dreamt,) = ladder.dreamt(jax.random.key(1), theta, COUNT)
    away = ladder.infer(params, x, lambda i, q: q.base_dist.loc)[1][0].base_dist
    ranks = uniform((dreamt - away.loc) / away.scale)
    assert_holds({name: score for name, score in ranks.items() if "ranks" in name}, COUNT)


@pytest.mark.quick
def test_no_case_is_forgotten():
    """Every estimator of the bound is among those whose mean was looked at."""
    every = set(itertools.product(get_args(pathwise.Gradient), get_args(pathwise.KL)))
    assert every - {("path", "closed")} == set(FORMS)
