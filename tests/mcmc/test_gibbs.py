"""Gibbs sampling: families against SciPy, scans by enumeration, sweeps by what simulated data leave as it was."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Scores, assert_holds, broken, error, ks, of_p, replicate
from numpyro.distributions import constraints
from scipy import stats

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.model import Data
from tractable.core.sums import draw_function, pick_indices
from tractable.engine.method import from_settings
from tractable.gallery.conjugate import mixture_grid
from tractable.latent.gaussians import Gaussians
from tractable.mcmc import conditionals
from tractable.mcmc import full_conditionals as full
from tractable.mcmc.conditionals import FAMILIES
from tractable.mcmc.gibbs import Block, BlockInfo, State, gibbs, in_turn
from tractable.mcmc.gibbs_method import Gibbs, _switching

pytestmark = pytest.mark.test

COUNT = 20_000
PSI = np.array([[2.0, 0.5], [0.5, 1.0]])
PRECISION = np.array([[2.0, 0.6, 0, 0], [0.6, 1.5, 0, 0], [0, 0, 3.0, -1.0], [0, 0, -1.0, 1.0]])
ALPHA = np.array([0.4, 2.0, 5.0])


# Families: name -> (log density, where derivatives are taken, statistics of draws and their laws).


def _bilinear(x: jax.Array, matrix: np.ndarray) -> jax.Array:
    return jnp.einsum("...ij,ij->...", x, jnp.asarray(matrix))


def _log_det(x: jax.Array) -> jax.Array:
    return jnp.linalg.slogdet(x)[1]


def _first_of_inverse(x: np.ndarray) -> np.ndarray:
    return np.linalg.inv(x)[:, 0, 0] / np.linalg.inv(PSI)[0, 0]


DENSITIES: dict[str, tuple[Callable, Any, dict[str, tuple[Callable, Any]]]] = {
    "gamma": (lambda x: 2.5 * jnp.log(x) - 3 * x, 0.7, {"x": (lambda x: x, stats.gamma(3.5, scale=1 / 3).cdf)}),
    "inverse gamma": (
        lambda x: -4 * jnp.log(x) - 2 / x, 0.7, {"x": (lambda x: x, stats.invgamma(3, scale=2).cdf)}
    ),
    "root of an inverse gamma": (
        lambda x: -7 * jnp.log(x) - 2 / x**2, 0.7, {"x²": (lambda x: x**2, stats.invgamma(3, scale=2).cdf)}
    ),
    "beta": (
        lambda x: -0.5 * jnp.log(x) + 2 * jnp.log1p(-x), 0.2, {"x": (lambda x: x, stats.beta(0.5, 3).cdf)}
    ),
    "Dirichlet": (
        lambda x: jnp.sum((ALPHA - 1) * jnp.log(x)), [0.05, 0.15, 0.8],
        {f"x{k}": (lambda x, k=k: x[:, k], stats.beta(ALPHA[k], ALPHA.sum() - ALPHA[k]).cdf) for k in range(3)},
    ),
    "Wishart": (  # ν = 5, V⁻¹ = Ψ
        lambda x: _log_det(x) - _bilinear(x, PSI) / 2, [[1.0, 0.2], [0.2, 0.5]],
        {"first": (lambda x: x[:, 0, 0] / np.linalg.inv(PSI)[0, 0], stats.chi2(5).cdf),
         "sum": (lambda x: x.sum((1, 2)) / np.linalg.inv(PSI).sum(), stats.chi2(5).cdf)},
    ),
    "inverse Wishart": (  # ν = 5, Ψ
        lambda x: -4 * _log_det(x) - _bilinear(jnp.linalg.inv(x), PSI) / 2, [[1.0, 0.2], [0.2, 0.5]],
        {"first": (_first_of_inverse, stats.chi2(5).cdf),
         "sum": (lambda x: np.linalg.inv(x).sum((1, 2)) / np.linalg.inv(PSI).sum(), stats.chi2(5).cdf)},
    ),
    "normal": (
        lambda x: -0.5 * (x - 1) @ jnp.asarray(PRECISION) @ (x - 1), [0.3, -1.0, 2.0, 0.0],
        {"square": (lambda x: np.einsum("si,ij,sj->s", x - 1, PRECISION, x - 1), stats.chi2(4).cdf),
         **{f"x{i}": (lambda x, i=i: x[:, i], stats.norm(1, np.linalg.inv(PRECISION)[i, i] ** 0.5).cdf)
            for i in range(4)}},
    ),
}  # fmt: skip


def family_law(name: str, family: Any, count: int = COUNT) -> Scores:
    """η found off the mode gives SciPy's draws, and a log density that is f up to a constant."""
    f, at, told = DENSITIES[name]
    x = jnp.asarray(at)

    def drawn(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        eta = family.found(f, x)
        draws = jax.vmap(lambda k: family.drawn(k, eta))(jax.random.split(key, count))
        off = jax.vmap(lambda x: family.log_prob(eta, x) - f(x))(draws[:5])
        return draws, off, family.proper(eta)

    draws, off, proper = jax.jit(drawn)(jax.random.key(3))
    scores = {"log density": error(np.ptp(off), 0, 1e-9), "proper": float(~proper) * 2}
    return scores | {what: ks(of(np.asarray(draws)), cdf) for what, (of, cdf) in told.items()}


@pytest.mark.parametrize("name", DENSITIES)
def test_families(name):
    family = (
        conditionals.normal(*conditionals.covariance_arguments(PRECISION[None])) if name == "normal" else FAMILIES[name]
    )
    assert_holds(family_law(name, family), COUNT)


@pytest.mark.quick
def test_a_pattern_takes_as_many_derivatives_as_its_blocks_are_wide():
    colours, pattern = conditionals.covariance_arguments(PRECISION[None])
    assert colours == (0, 1, 0, 1) and len(pattern) == 16
    assert conditionals.covariance_arguments(np.eye(3)[None]) == ((0, 0, 0), b"")


WRONG_FAMILIES = {
    "no Jacobian of the power": ("root of an inverse gamma", lambda f: f._replace(
        drawn=lambda key, eta: jnp.exp(-0.5 * (jax.random.loggamma(key, eta[0]) - jnp.log(eta[1]))))),
    "a for a − 1": ("beta", lambda f: f._replace(drawn=lambda key, eta: f.drawn(key, (eta[0] + 1, eta[1])))),
    "precision for its root": ("normal", lambda f: f._replace(
        drawn=lambda key, eta: f.drawn(key, (eta[0], eta[1] @ eta[1].T)))),
    "ν one less": ("inverse Wishart", lambda f: f._replace(
        drawn=lambda key, eta: f.drawn(key, (eta[0] - 0.5, eta[1])))),
}  # fmt: skip


@pytest.mark.test("precision for its root")
@pytest.mark.parametrize("wrong", WRONG_FAMILIES)
def test_family_mutants(wrong):
    name, change = WRONG_FAMILIES[wrong]
    family = (
        conditionals.normal(*conditionals.covariance_arguments(PRECISION[None])) if name == "normal" else FAMILIES[name]
    )
    assert broken(family_law(name, change(family)))


# Scans, enumerated: three unknowns of two values whose conditionals are quarters, so that four uniforms are all.

TABLE = np.array([1, 3, 3, 1, 1, 1, 3, 3.0]).reshape(2, 2, 2)
STATES = np.array(list(itertools.product(range(2), repeat=3)))
PI = TABLE.ravel() / TABLE.sum()
U = (np.arange(4) + 0.5) / 4


def coordinate(i: int, summed: tuple[int, ...] = (), seen: Callable = lambda state: state.position) -> Block:
    """x_i given the others, some of them summed out."""
    logs = jnp.log(jnp.moveaxis(jnp.asarray(TABLE.sum(summed, keepdims=True)), i, 0))
    others = [j for j in range(3) if j != i]

    def move(u: jax.Array, state: State) -> tuple[State, BlockInfo]:
        at = [jnp.zeros((), int) if j in summed else seen(state)[j] for j in others]
        new = pick_indices(u[None], logs[:, at[0], at[1]][:, None])[0]
        return State(state.position.at[i].set(new.astype(int)), state.hidden), BlockInfo(jnp.ones(()))

    return Block(lambda key, count, state: jax.random.uniform(key, (count,)), move)


def transitions(blocks: list[Block], random_scan: bool = False, uniforms: int = 3) -> np.ndarray:
    """T (8, 8) of a sweep, over all that its noise can be."""
    kernel = gibbs(blocks, lambda key, position: position, random_scan=random_scan)
    us = np.array(list(itertools.product(U, repeat=uniforms)))
    if random_scan:
        picks = np.array(list(itertools.product(range(len(blocks)), repeat=len(blocks))))
        noise = (np.repeat(picks, len(us), 0), [np.tile(us, (len(picks), 1))] * len(blocks))
    else:
        noise = list(us.T)
        if len(blocks) < uniforms:  # the first is two in turn
            noise = [[noise[0], noise[1]], noise[2]]

    def one(noise: Any, state: jax.Array) -> jax.Array:
        return kernel.step(noise, State(state, state))[0].position

    ends = jax.jit(jax.vmap(jax.vmap(one, (0, None)), (None, 0)))(jax.tree.map(jnp.asarray, noise), jnp.asarray(STATES))
    index = np.asarray(ends) @ [4, 2, 1]
    return np.stack([np.bincount(row, minlength=8) / len(row) for row in index])


def stationary(kernel: np.ndarray) -> Scores:
    return {"π T = π": error(PI @ kernel, PI, 1e-12), "Σ_j T = 1": error(kernel.sum(1), 1, 1e-12)}


def test_the_fixed_scan_is_stationary_and_not_reversible():
    found = transitions([coordinate(i) for i in range(3)])
    assert_holds(stationary(found))
    flow = PI[:, None] * found
    assert np.max(np.abs(flow - flow.T)) > 0.01


def test_the_random_scan_is_reversible():
    found = transitions([coordinate(i) for i in range(3)], random_scan=True)
    flow = PI[:, None] * found
    assert_holds(stationary(found) | {"detailed balance": error(flow, flow.T, 1e-12)})


def test_a_block_with_another_summed_out_stands_before_it():
    """x₀ without x₁, then x₁: one block. The other way round the chain has another target."""
    right = [in_turn([coordinate(0, (1,)), coordinate(1)]), coordinate(2)]
    assert_holds(stationary(transitions(right)))
    wrong = [in_turn([coordinate(1), coordinate(0, (1,))]), coordinate(2)]
    assert broken(stationary(transitions(wrong)))


def test_scan_mutants():
    """All blocks look at where the sweep began."""
    stale = [coordinate(i, seen=lambda state: state.hidden) for i in range(3)]
    assert broken(stationary(transitions(stale)))


def test_picked_is_what_its_probabilities_say():
    logits = jnp.log(jnp.array([[0.1, 0.5], [0.0, 0.25], [0.9, 0.25]]))
    u = jnp.array([[0.0, 0.099, 0.101, 0.9999], [0.0, 0.499, 0.749, 0.751]])
    found = jax.vmap(pick_indices, (1, None))(u, logits)
    assert found.T.tolist() == [[0, 0, 2, 2], [0, 0, 1, 2]]


# Sweeps: θ ~ p(θ), x ~ p(x | θ), and then sweeps given x leave (θ, x) as they were. Geweke 2004; Gandy & Scott 2020.


class Hierarchy:
    """log p of μ ~ N(0, 1), τ² ~ InvGamma(3, 2), θ_j ~ N(μ, τ²)."""

    def __call__(self, p: dict) -> jax.Array:
        found = dist.Normal(0.0, 1.0).log_prob(p["mu"]) + dist.InverseGamma(3.0, 2.0).log_prob(p["var"])
        return found + jnp.sum(dist.Normal(p["mu"], jnp.sqrt(p["var"])).log_prob(p["theta"]))

    def sample(self, key: jax.Array) -> dict:
        a, b, c = jax.random.split(key, 3)
        mu, var = jax.random.normal(a), dist.InverseGamma(3.0, 2.0).sample(b)
        return {"mu": mu, "var": var, "theta": mu + jnp.sqrt(var) * jax.random.normal(c, (3,))}


SCHOOLS = tr.Model(
    Hierarchy(), lambda p: dist.Normal(p["theta"], 0.7).to_event(1),
    {"mu": 0.0, "var": 1.0, "theta": np.zeros(3)},
    {"mu": constraints.real, "var": constraints.positive, "theta": constraints.real},
)  # fmt: skip
COOK = tr.LatentModel(
    {"good": dist.Beta(2.0, 3.0), "mean": dist.Normal(jnp.array([-1.0, 1.0]), 1.0).to_event(1)},
    lambda p: dist.Bernoulli(p["good"]), lambda p, z: dist.Normal(p["mean"][z], 0.8),
)  # fmt: skip
MIXTURE = tr.models.bayesian_gaussian_mixture(2, 2, weight_concentration=1.5, degrees_of_freedom=5.0)
CHAIN = tr.models.hidden_markov(2, centre=0.0, scale=1.0, prior_counts=2.0, steps=6)
KALMAN: dict[str, Any] = {"scale": 1.0, "prior_counts": 4.0, "steps": 3, "features": 1, "floor": 0.0}
TREND = tr.models.linear_gaussian(
    2, transition=[[np.nan, 1], [0, 1]], emission=[[1, 0]], state_noise=[np.nan, 0.0], initial_noise=np.nan, **KALMAN
)
GAPS = np.zeros((5, 3, 1))  # of sequences: numbers that are missing, and steps after the last
GAPS[0, 1] = GAPS[1, 2] = GAPS[2] = np.nan


def from_prior(model: Any, key: jax.Array, rows: int) -> tuple[Any, Any]:
    """θ and x."""
    one, other = jax.random.split(key)
    if model is MIXTURE:
        made = model.conjugate
        params = jax.tree.map(lambda a: a[0], made.sample(one, jax.tree.map(jnp.asarray, made.prior), 1))
    else:
        params = model.sample_prior(one)
    if model is SCHOOLS:
        return params, model.datum(params).sample(other, (rows,))
    x = model.sample(other, params, rows)[0]
    return params, (x + GAPS if model is TREND else x)


def joint_law(model: Any, scan: Any, tuned: Any = None, rows: int = 5, count: int = 4000, sweeps: int = 3) -> Scores:
    """Numbers of θ, and the log likelihood, after sweeps against fresh ones."""

    def statistics(params: Any, x: jax.Array) -> jax.Array:
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])
        return jnp.append(flat, jnp.sum(model.log_likelihoods(params, (x, None))))

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        fresh, begun, move = jax.random.split(key, 3)
        params, x = from_prior(model, begun, rows)
        kernel = scan.kernel(model, (x, None), tuned or {})
        state = kernel.init(move, model.position_of(params))
        noise = kernel.draw(jax.random.fold_in(move, 1), sweeps, state, None)
        state = jax.lax.scan(lambda s, n: (kernel.step(n, s, None)[0], None), state, noise)[0]
        return statistics(model.params(state.position), x), statistics(*from_prior(model, fresh, rows))

    after, fresh = map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(11), count)))
    names = [*model.names, "log likelihood"]
    return {n: of_p(stats.ks_2samp(a, b).pvalue) for n, a, b in zip(names, after.T, fresh.T, strict=True)}


ROWS = {  # data that blocks are found on
    "schools": (SCHOOLS, np.random.default_rng(0).normal(size=(5, 3))),
    "cook": (COOK, np.random.default_rng(0).normal(size=5)),
    "mixture": (MIXTURE, np.random.default_rng(0).normal(size=(5, 2))),
    "chain": (CHAIN, np.random.default_rng(0).normal(size=(5, 6))),
    "trend": (TREND, np.random.default_rng(0).normal(size=(5, 3, 1)) + GAPS),
}
KINDS = {
    "schools": {"mu": "normal", "var": "inverse gamma"},
    "cook": {"good": "beta", "mean": "normal"},
    "mixture": {},
    "chain": {
        "initial": "Dirichlet", "transition": "Dirichlet", "emission_mean": "normal",
        "emission_sd": "root of an inverse gamma",
    },
    "trend": {
        "initial_mean": "normal", "initial_noise": "root of an inverse gamma",
        "state_noise": "root of an inverse gamma", "noise": "root of an inverse gamma",
    },
}  # fmt: skip


@pytest.mark.test("cook")
@pytest.mark.parametrize("name", ROWS)
def test_sweeps_leave_simulated_data_as_they_were(name):
    model, rows = ROWS[name]
    scan = Gibbs().scanned(model, Data(rows, missing="keep"))
    assert {e.name: e.part.kind for e in scan.entries if e.part.kind} == KINDS[name]
    assert_holds(joint_law(model, scan), 4000)


def z_of_the_prior(model: Any) -> Any:
    """The cook, whose z is drawn without a look at x."""

    def weights(theta: dict, rows: jax.Array) -> jax.Array:
        return jnp.log(jnp.stack([1 - theta["good"], theta["good"]]))[:, None] + 0 * rows[None]

    return model.with_steps(drawn=draw_function(weights))


@pytest.mark.laws
def test_sweep_mutants():
    """A z that does not look at x, and a θ that does not look at z."""
    scan = Gibbs().scanned(COOK, Data(ROWS["cook"][1]))
    assert broken(joint_law(z_of_the_prior(COOK), scan, sweeps=1))
    assert broken(joint_law(COOK.with_steps(complete=lambda theta, rows, z: 0.0 * rows), scan, sweeps=1))


@pytest.mark.laws
def test_a_path_mutant():
    """States drawn for numbers in another order."""
    sums: Any = TREND.sums
    turned = TREND.with_steps(drawn=lambda key, theta, rows: sums.drawn(key, theta, rows[:, ::-1]))
    scan = Gibbs().scanned(TREND, Data(ROWS["trend"][1], missing="keep"))
    assert broken(joint_law(turned, scan, count=2000, sweeps=1))


# Beside what knows nothing of Gibbs.

RATINGS = np.array([3.1, 4.4, 8.3, 7.7, 5.9, 9.0, 4.0, 6.6, 3.5, 8.8])
MOODS = tr.LatentModel(
    {"good": dist.Beta(2.0, 2.0), "mean": dist.Normal(jnp.array([4.0, 8.0]), 0.7).to_event(1)},
    lambda p: dist.Bernoulli(p["good"]), lambda p, z: dist.Normal(p["mean"][z], 1.0),
)  # fmt: skip


def moods_by_quadrature() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means and sds of (good, mean 0, mean 1), and p(z = 1 | x) of every row, on a grid."""
    good = (np.arange(60) + 0.5) / 60
    low, high = np.linspace(1.5, 6.5, 81), np.linspace(5.5, 10.5, 81)
    g, a, b = np.meshgrid(good, low, high, indexing="ij")
    log_p = stats.beta(2, 2).logpdf(g) + stats.norm(4, 0.7).logpdf(a) + stats.norm(8, 0.7).logpdf(b)
    first = [stats.norm.pdf(x, b, 1.0) * g for x in RATINGS]
    total = [f + stats.norm.pdf(x, a, 1.0) * (1 - g) for f, x in zip(first, RATINGS, strict=True)]
    p = np.exp(log_p + np.sum(np.log(total), axis=0))
    p /= p.sum()
    means = np.array([np.sum(p * v) for v in (g, a, b)])
    sds = np.sqrt([np.sum(p * (v - m) ** 2) for v, m in zip((g, a, b), means, strict=True)])
    return means, sds, np.array([np.sum(p * f / t) for f, t in zip(first, total, strict=True)])


MEANS, SDS, SHARES = moods_by_quadrature()
METHODS = {
    "found": Gibbs(draws=4000, warmup=100),
    "random walk, collapsed": Gibbs(
        {"mean": tr.RandomWalk(thin=4)}, draws=4000, warmup=400, collapse=True, scan="random"
    ),
}


@pytest.mark.laws
@pytest.mark.parametrize("name", METHODS)
def test_the_cook(name):
    """Means within the Monte-Carlo error of a grid's, and moods of every row as they are."""
    posterior = tr.infer(MOODS, RATINGS, METHODS[name], seed=2, verify=None)
    table = posterior.summary()
    off = np.abs(table["mean"].to_numpy() - MEANS) / (5.33 * table["mcse_mean"].to_numpy() + 1e-4)
    worth = table["ess_bulk"].to_numpy()
    spread = np.abs(table["sd"].to_numpy() / SDS - 1) / (5.33 * np.sqrt(2 / worth))
    shares = np.abs(posterior.allocations(draws=1000)[:, 1] - SHARES) / (5.33 * 0.5 / np.sqrt(min(1000, worth.min())))
    assert_holds({"mean": off.max(), "sd": spread.max(), "moods": shares.max()})
    off = np.mean(posterior.paths(draws=1000) - SHARES, axis=0)
    assert_holds({"drawn moods": np.abs(off).max() / (5.33 * 0.5 / np.sqrt(min(1000, worth.min())))})
    assert worth.min() > 300
    report = {check.name: check for check in posterior.report().checks}
    assert report["exact draws"].verdict == "trust" and ("normal" in report["exact draws"].sentence) == (
        "walk" not in name
    )
    assert ("acceptance mean" in report) == ("walk" in name)


@pytest.mark.laws
def test_paths_drawn_and_summed_out():
    """A level that is seen with noise: sweeps and NUTS, to which there are no paths, find one posterior."""
    rng = np.random.default_rng(3)
    level = tr.models.linear_gaussian(1, transition=[[1.0]], offset=0.0, scale=2.0)
    parts = [np.cumsum(rng.normal(size=n)) + rng.normal(size=n) for n in (40, 25)]
    parts[0][10:14] = np.nan
    rows = tr.models.sequences(parts)
    swept = tr.infer(level, rows, Gibbs(draws=2000, warmup=100), seed=1, verify=None)
    moved = tr.infer(level, rows, tr.NUTS(draws=1000, warmup=300), seed=1, verify=None)
    one, other = swept.summary(), moved.summary()
    error_of = np.hypot(one["mcse_mean"], other["mcse_mean"])
    off = np.abs(one["mean"] - other["mean"]) / (5.33 * error_of)
    worth = np.sqrt(1 / one["ess_bulk"] + 1 / other["ess_bulk"])
    spread = np.abs(np.log(one["sd"] / other["sd"])) / (5.33 * worth)
    assert_holds({"mean": off.max(), "sd": spread.max()})
    assert one["ess_bulk"].min() > 200
    assert {check.name: check.verdict for check in swept.report().checks}["exact draws"] == "trust"
    theta = jax.tree.map(jnp.asarray, swept.spread(200)[0])
    means, covariances = map(np.asarray, jax.jit(jax.vmap(lambda theta: level.smoothed(theta, rows.y)))(theta))
    off = np.sum(swept.paths(draws=200, seed=4) - means, axis=0) / np.sqrt(covariances[..., 0].sum(0))
    assert_holds({"paths": np.abs(off).max() / 5.33})
    with pytest.raises(ModelError, match="paths"):
        swept.allocations()


def test_means_of_two_modes():
    """Welling and Teh's mixture with z drawn: sweeps from draws of a grid's posterior stay there."""
    generator = np.random.default_rng(5)
    x = np.where(generator.random(30) < 0.5, 0.0, 1.0) + np.sqrt(2) * generator.normal(size=30)
    grid = mixture_grid(x, ((-4, 5), (-6, 6)), 241)
    model = tr.LatentModel(
        {"first": dist.Normal(0.0, 10**0.5), "second": dist.Normal(0.0, 1.0)},
        lambda p: dist.Bernoulli(0.5), lambda p, z: dist.Normal(p["first"] + p["second"] * z, 2**0.5),
    )  # fmt: skip
    scan = Gibbs().scanned(model, Data(x))
    assert [(e.name, e.part.leaves) for e in scan.entries] == [("z", ()), ("first", (0, 1))]
    count, step = 8000, np.diff(grid.first[:2])[0]
    mass = (grid.density / grid.density.sum()).ravel()
    at = np.unravel_index(generator.choice(mass.size, count, p=mass), grid.density.shape)
    jitter = step * (generator.random((2, count)) - 0.5)  # between the places of the grid
    start = np.stack([grid.first[at[0]], grid.second[at[1]]], 1) + jitter.T
    kernel = scan.kernel(model, (jnp.asarray(x), None), {})
    after = np.asarray(replicate(kernel, jax.random.key(0), jnp.asarray(start), 5)[0].position)
    moved = np.corrcoef(start.T, after.T)[0, 2]
    z = (after.mean(0) - grid.mean) / (grid.sd / np.sqrt(count)) / 5.33
    spread = (after.std(0) / grid.sd - 1) * np.sqrt(count / 4) / 5.33
    assert_holds({"mean": np.abs(z).max(), "sd": np.abs(spread).max()}, count)
    assert abs(moved) < 0.9


@pytest.mark.laws
def test_a_belief_network():
    """Three hidden units of a belief network at once: p(h | x) by enumeration in NumPy."""
    weights = np.array([[1.0, -2.0, 0.5], [0.5, 1.5, -1.0]])
    model = tr.LatentModel(
        {"bias": dist.Normal(jnp.zeros(2), 1.0).to_event(1)},
        lambda p: [dist.Bernoulli(0.3), dist.Bernoulli(0.5), dist.Bernoulli(0.8)],
        lambda p, h: dist.Bernoulli(logits=p["bias"] + jnp.asarray(weights) @ jnp.stack(h).astype(float)).to_event(1),
    )
    x, bias, count = np.array([1, 0]), np.array([0.2, -0.4]), 20_000
    h = np.array(list(itertools.product([0, 1], repeat=3)))
    eta = bias + h @ weights.T
    p = np.prod(np.where(h == 1, [0.3, 0.5, 0.8], [0.7, 0.5, 0.2]), 1) * np.prod(
        np.where(x == 1, 1 / (1 + np.exp(-eta)), 1 / (1 + np.exp(eta))), 1
    )
    drawn = model.sums.drawn(jax.random.key(0), {"bias": jnp.asarray(bias)}, jnp.broadcast_to(x, (count, 2)))
    counts = np.bincount(np.asarray(drawn), minlength=8)
    assert_holds({"p(h | x)": of_p(stats.chisquare(counts, count * p / p.sum()).pvalue)}, count)


# What is not conjugate, and what cannot be.


@pytest.mark.laws
def test_what_only_looks_conjugate_is_not_drawn_as_if_it_were():
    """A logistic regression's weights are nearly normal, a half-Cauchy's scale nearly gamma: neither is found."""
    x = np.random.default_rng(0).normal(size=(400, 2))
    y = (np.random.default_rng(1).random(400) < 0.5).astype(int)
    model = tr.Model(
        {"w": dist.Normal(jnp.zeros(2), 1.0).to_event(1), "scale": dist.HalfCauchy(1.0)},
        lambda p, x: dist.Bernoulli(logits=x @ p["w"] * p["scale"]),
    )
    scan = Gibbs().scanned(model, Data(y, x))
    assert [(entry.name, entry.by) for entry in scan.entries] == [("scale_w", tr.NUTS())]
    with pytest.raises(SettingsError, match="asks for exact draws of 'w', whose conditional density is none"):
        tr.infer(model, Data(y, x), Gibbs({"w": "exact"}))


@pytest.mark.laws
def test_a_report_sees_a_block_that_is_not_conjugate(monkeypatch):
    """Had it been drawn as normal all the same."""
    posterior = tr.infer(MOODS, RATINGS, Gibbs(draws=50, warmup=20), verify=None)
    right = Gibbs.scanned

    def wrong(self: Gibbs, model: Any, data: Any) -> Any:
        scan = right(self, model, data)
        gamma = [e._replace(part=full.Part(e.part.leaves, "gamma")) if e.name == "good" else e for e in scan.entries]
        return dataclasses.replace(scan, entries=tuple(gamma))  # of a probability

    monkeypatch.setattr(Gibbs, "scanned", wrong)
    assert {check.name: check.verdict for check in posterior.method.checks(posterior)}["exact draws"] == "reject"


@pytest.mark.laws
def test_labels_that_switch_are_told():
    theta = Gaussians(jnp.array([0.3, 0.7]), jnp.array([[-2.0], [2.0]]), jnp.ones((2, 1, 1)))
    model = tr.models.bayesian_gaussian_mixture(2, 1)
    other = model.symmetry.permute(theta, jnp.array([1, 0]))
    positions = np.stack([np.asarray(model.position_of(t)) for t in (theta, theta, other, theta)])
    rows = (jnp.array([[-2.1], [-1.9], [2.0], [2.2], [1.8]]), None)
    check = _switching(model, rows, positions[None])
    assert check.value in (0.25, 0.75) and check.verdict == "caution" and "relabelled()" in check.sentence
    assert _switching(model, rows, positions[None, :2]).verdict == "trust"


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ({"mode": "exact"}, "names 'mode'; this model has 'good', 'mean', 'z'"),
        ({"z": tr.NUTS()}, "z by itself"),
        ({"good": tr.MAP()}, "NUTS\\(\\), HMC\\(\\), MALA\\(\\) or RandomWalk\\(\\) for every block"),
        ({"good": "exact", ("good", "mean"): "nuts"}, "every name in one block"),
    ],
)
def test_sentences_about_blocks(blocks, sentence):
    with pytest.raises(SettingsError, match=sentence):
        tr.infer(MOODS, RATINGS, Gibbs(blocks))


def test_sentences_about_rows():
    with pytest.raises(DataError, match="expects data without weights"):
        tr.infer(MOODS, Data(RATINGS, weights=np.full(10, 2.0)), Gibbs())
    hidden = tr.LatentModel(
        {"mu": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["mu"], 1.0), lambda p, z: dist.Normal(z, 1.0)
    )
    with pytest.raises(ModelError, match="a model whose z is continuous"):
        tr.infer(hidden, RATINGS, Gibbs())


@pytest.mark.quick
def test_blocks_are_written_as_one_line():
    method = Gibbs({"z": "exact", ("a", "b"): tr.NUTS(target=0.9), "c": "random-walk"}, collapse=True)
    written = method.settings()
    assert written["blocks"] == "z: exact; a, b: nuts target=0.9; c: random-walk"
    assert from_settings(written) == method == Gibbs(written["blocks"], collapse=True)
