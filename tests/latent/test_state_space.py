"""Linear systems against the joint normal of all states and numbers, written out in NumPy.

A law takes what it judges and returns scores; wrong ones must break it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Scores, assert_holds, broken, error, z_mean
from scipy import stats

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.model import Batch, whole
from tractable.latent import kalman
from tractable.latent.em import em
from tractable.latent.state_space import LinearGaussian, linear_gaussian

pytestmark = pytest.mark.laws

strict = pytest.mark.usefixtures("strict_ranks")

RNG = np.random.default_rng(11)
D, P, T = 3, 2, 6
SYSTEM = LinearGaussian(
    jnp.array(RNG.normal(size=D)), jnp.full(D, 1.4), jnp.array(0.4 * RNG.normal(size=(D, D))),
    jnp.array(RNG.normal(size=(D, 1))), jnp.array([0.7, 1.1, 0.4]), jnp.array(RNG.normal(size=(P, D))),
    jnp.array(RNG.normal(size=(P, 1))), jnp.array([0.3, -1.0]), jnp.array([0.7, 1.1]),
)  # fmt: skip
U = jnp.array(RNG.normal(size=(T, 1)))
X = RNG.normal(size=(T, P))
X[1] = X[3, 0] = X[5] = np.nan


def joint(system: LinearGaussian, x: np.ndarray, u: np.ndarray) -> dict[str, Any]:
    """Everything at once: z = M⁻¹(…), x = C z + D u + o + noise, conditioned by the rules of normals."""
    system = jax.tree.map(np.asarray, system)
    steps, d = len(x), len(system.transition)
    drift, level = u @ system.control.T, u @ system.feedthrough.T + system.offset
    blocks = np.zeros((steps, d, steps, d))
    mean = np.zeros((steps, d))
    own = np.zeros((steps, d, steps, d))
    for t in range(steps):
        blocks[t, :, t] = np.eye(d)
        own[t, :, t] = np.diag(system.state_noise if t else system.initial_noise) ** 2
        if t:
            blocks[t, :, t - 1] = -system.transition
        mean[t] = system.transition @ mean[t - 1] + drift[t] if t else system.initial_mean
    flat = np.linalg.inv(blocks.reshape(steps * d, -1))
    prior = flat @ own.reshape(steps * d, -1) @ flat.T
    seen = ~np.isnan(x.ravel())
    shown = np.kron(np.eye(steps), system.emission)[seen]
    spread = shown @ prior @ shown.T + np.diag(np.tile(system.noise**2, steps)[seen])
    off = (x - level).ravel()[seen] - shown @ mean.ravel()
    gain = prior @ shown.T @ np.linalg.inv(spread)
    covariance = (prior - gain @ shown @ prior).reshape(steps, d, steps, d)
    log_p = stats.multivariate_normal(np.zeros(len(off)), spread).logpdf(off) if len(off) else 0.0
    return {"log p": log_p, "mean": mean + (gain @ off).reshape(steps, d), "covariance": covariance}


WANTED = joint(SYSTEM, X, np.asarray(U))


def smoothing_law(smoothed: Callable) -> Scores:
    """log p(x), means, covariances and those of neighbours: those of the joint normal."""
    found, log_prob = jax.jit(smoothed)(SYSTEM, jnp.array(X), U)
    c = WANTED["covariance"]
    return {
        "log p": error(log_prob, WANTED["log p"], 1e-12),
        "mean": error(found.mean, WANTED["mean"], 1e-12),
        "covariance": error(found.covariance, [c[t, :, t] for t in range(T)], 1e-12),
        "cross": error(found.cross[1:], [c[t, :, t - 1] for t in range(1, T)], 1e-12),
    }


@pytest.mark.test
@pytest.mark.parametrize("parallel", [False, True])
@strict
def test_the_joint_normal(parallel):
    assert_holds(smoothing_law(lambda system, x, u: kalman.smooth(system, x, u, parallel)))


@pytest.mark.parametrize(
    "change",
    [
        lambda s, x, b: kalman.smooth(s._replace(transition=s.transition.T), x, b),
        lambda s, x, b: kalman.smooth(s._replace(noise=s.noise**2), x, b),
        lambda s, x, b: kalman.smooth(s, jnp.nan_to_num(x), b),
        lambda s, x, b: kalman.smooth(s, x, jnp.roll(b, -1, 0)),
        lambda s, x, b: kalman.smooth(s._replace(initial_noise=s.state_noise), x, b),
        lambda s, x, b: (filtered_for_smoothed(s, x, b), kalman.log_prob(s, x, b)),
    ],
    ids=["transposed", "sd for variance", "mask ignored", "inputs one step late", "start forgotten", "not smoothed"],
)
@strict
def test_smoothing_mutants(change):
    assert broken(smoothing_law(change))


def filtered_for_smoothed(*args: Any) -> kalman.Smoothed:
    found = kalman.filter_states(*args)
    return kalman.smooth(*args)[0]._replace(mean=found.mean, covariance=found.covariance)


@pytest.mark.test
@strict
def test_slopes_are_the_joint_normals():
    """Autodiff of the pass forward against differences of the joint density."""

    def moved(a: float) -> LinearGaussian:
        return SYSTEM._replace(
            transition=SYSTEM.transition.at[0, 1].add(a), noise=jnp.sqrt(SYSTEM.noise**2 + jnp.array([a, 0.0]))
        )

    slope = jax.jit(jax.grad(lambda a: kalman.log_prob(moved(a), jnp.array(X), U)))(0.0)
    ends = [joint(moved(a), X, np.asarray(U))["log p"] for a in (1e-5, -1e-5)]
    assert_holds({"slope": error(slope, (ends[0] - ends[1]) / 2e-5, 1e-7)})


NOISE = jnp.array(RNG.normal(size=T * D))


def drawing_law(drawn: Callable, system: LinearGaussian = SYSTEM) -> Scores:
    """Drawn states are linear in standard normals: their mean and covariance are the joint normal's, exactly."""
    wanted = joint(system, X, np.asarray(U))

    def flat(noise: jax.Array) -> jax.Array:
        return drawn(noise.reshape(T, D), system, jnp.array(X), U).ravel()

    nothing = jnp.zeros(T * D)
    slope, mean, other = jax.jit(lambda noise: (jax.jacobian(flat)(nothing), flat(nothing), flat(noise)))(NOISE)
    return {
        "mean": error(mean, wanted["mean"].ravel(), 1e-12),
        "covariance": error(slope @ slope.T, wanted["covariance"].reshape(T * D, -1), 1e-11),
        "linear": error(other, mean + slope @ NOISE, 1e-11),
    }


SINGULAR = SYSTEM._replace(state_noise=jnp.arange(3.0))


@pytest.mark.test("singular")
@pytest.mark.parametrize("system", [SYSTEM, SINGULAR], ids=["any", "singular"])
@strict
def test_drawn_states(system):
    assert_holds(drawing_law(kalman.draw_states, system))


@pytest.mark.test("noise of the start")
@pytest.mark.parametrize(
    "change",
    [
        lambda n, s, x, b: kalman.draw_states(n, s._replace(state_noise=s.initial_noise), x, b),
        lambda n, s, x, b: kalman.draw_states(n, s, x, jnp.roll(b, -1, 0)),
        lambda n, s, x, b: kalman.draw_states(n, s, jnp.nan_to_num(x), b),
        lambda n, s, x, b: kalman.smooth(s, x, b)[0].mean + 0.5 * n,
    ],
    ids=["noise of the start", "inputs one step late", "mask ignored", "states by themselves"],
)
@strict
def test_drawing_mutants(change):
    assert broken(drawing_law(change))


def unstable_law(drawn: Callable) -> Scores:
    """z_t = 1.2 z_{t−1} + noise seen with noise, 300 steps: draws are those of a band precision, solved in NumPy."""
    a, steps = 1.2, 300
    none, one = np.zeros((1, 0)), np.ones(1)
    parts = ([0.0], one, [[a]], none, one, [one], none, [0.0], one)
    system = LinearGaussian(*map(jnp.array, parts))
    x, noise = np.random.default_rng(0).normal(size=(2, steps, 1))
    precision = np.diag(np.full(steps, 2 + a**2)) - a * (np.eye(steps, k=1) + np.eye(steps, k=-1))
    precision[-1, -1] = 2
    mean = np.linalg.solve(precision, x)
    found = jax.jit(lambda noise: drawn(noise, system, jnp.array(x), jnp.zeros((steps, 0))))(noise)
    # Backward in turn, z is a triangular root of the covariance times the noise.
    root = np.linalg.cholesky(np.linalg.inv(precision)[::-1, ::-1])[::-1, ::-1]
    return {"draw": error(found, mean + root @ noise, 1e-10)}


@pytest.mark.test
@strict
def test_an_unstable_system_is_drawn_too():
    def about_a_simulated_path(noise: jax.Array, system: LinearGaussian, x: jax.Array, u: jax.Array) -> jax.Array:
        """Durbin & Koopman 2002: the digits of z are lost to a path that runs away."""
        z = jax.lax.scan(lambda z, n: (1.2 * z + n, 1.2 * z + n), jnp.zeros(1), noise)[1]
        return z + kalman.smooth(system, x - z - noise[::-1], u)[0].mean

    assert_holds(unstable_law(kalman.draw_states))
    assert broken(unstable_law(about_a_simulated_path))


# The models.

GIVEN = RNG.normal(size=(5, T, 1))
AROUND: dict[str, Any] = {"centre": 0.3, "scale": 1.5, "floor": 0.0}
MODELS: dict[str, tuple[Any, bool]] = {
    "default": (linear_gaussian(2, 3, **AROUND), False),
    "own start": (linear_gaussian(1, initial_noise=np.nan, transition=[[1.0]], offset=0.0, **AROUND), False),
    "inputs": (linear_gaussian(1, 2, inputs=1, initial_mean=0.5, initial_noise=2.0, **AROUND), True),
    "trend": (
        linear_gaussian(
            2, transition=[[1.0, 1.0], [0, np.nan]], emission=[[1, 0]], offset=0.0, state_noise=[np.nan, 0.3], **AROUND
        ),
        False,
    ),
    "flat": (linear_gaussian(2, 2, emission=np.eye(2)), False),
}  # fmt: skip
every = pytest.mark.parametrize("name", MODELS)


def rows_of(name: str) -> Any:
    model, given = MODELS[name]
    p = model.layout.features
    y = np.random.default_rng(3).normal(size=(5, T) if p is None else (5, T, p))
    y[0, 4:] = y[1, 2] = np.nan
    if p is not None:
        y[2, 1, 0] = np.nan
    return (jnp.array(y), jnp.array(GIVEN)) if given else jnp.array(y)


def some_theta(model: Any, seed: int = 2) -> Any:
    return model.params(0.4 * jax.random.normal(jax.random.key(seed), (model.space.size,)))


@pytest.mark.test("own start", "flat", "trend", "default")
@every
def test_log_prob_of_models(name):
    """Sequences of models against the joint normal of their matrices, as ``system`` tells them."""
    model, _ = MODELS[name]
    theta, rows = some_theta(model), rows_of(name)
    y, u = rows if isinstance(rows, tuple) else (rows, np.zeros((5, T, 0)))
    y, u = np.asarray(y).reshape(5, T, -1), np.asarray(u)
    wanted = [joint(model.system(theta), one, given) for one, given in zip(y, u, strict=True)]
    log_p, states = jax.jit(lambda theta: (model.log_prob(theta, rows), model.smoothed(theta, rows)[0]))(theta)
    assert_holds({
        "log p": error(log_p, [each["log p"] for each in wanted], 1e-8),
        "states": error(states, [each["mean"] for each in wanted], 1e-8),
    })  # fmt: skip


def complete_law(name: str, complete: Callable) -> Scores:
    """log p(x, z | θ), a quadratic of z: its integral is p(x | θ), its top E[z | x], seen from any z."""
    model, rows = MODELS[name][0], rows_of(name)
    theta, d = some_theta(model), len(model.layout.known.transition)
    states, one = T * d, jnp.array(RNG.normal(size=(5, T, d)))

    @jax.jit
    def looked(theta: Any) -> tuple:
        def of(z: jax.Array) -> jax.Array:
            return complete(model, theta, rows, z.reshape(5, T, d))

        slope, curve = jax.jacobian(of)(one.ravel()), jax.hessian(lambda z: jnp.sum(of(z)))(one.ravel())
        return of(one.ravel()), slope, curve, model.log_prob(theta, rows), model.smoothed(theta, rows)[0]

    value, slope, curve, log_p, smoothed = map(np.asarray, looked(theta))
    out = {"log p": [], "states": []}
    for n in range(5):
        mine = slice(n * states, (n + 1) * states)
        inside = np.flatnonzero(np.diag(curve)[mine])  # states after the last step do not count
        precision, g = -curve[mine, mine][np.ix_(inside, inside)], slope[n, mine][inside]
        step = np.linalg.solve(precision, g)
        volume = 0.5 * (len(inside) * np.log(2 * np.pi) - np.linalg.slogdet(precision)[1])
        out["log p"].append(value[n] + 0.5 * g @ step + volume - log_p[n])
        out["states"].append(np.asarray(one[n]).ravel()[inside] + step - smoothed[n].ravel()[inside])
    return {name: error(np.concatenate([np.ravel(each) for each in found]), 0, 1e-8) for name, found in out.items()}


@every
def test_the_density_with_states(name):
    assert_holds(complete_law(name, lambda model, *args: model.sums.complete(*args)))


@pytest.mark.parametrize(
    "change",
    [
        lambda model, theta, rows, z: model.sums.complete(theta, jnp.nan_to_num(rows), z),
        lambda model, theta, rows, z: model.sums.complete(theta._replace(noise=theta.noise**2), rows, z),
        lambda model, theta, rows, z: model.sums.complete(theta, rows, z[:, ::-1]),
        lambda model, theta, rows, z: model.sums.complete(theta, rows, z) + dist.Normal(0.0, 1.0).log_prob(z[:, 0, 0]),
    ],
    ids=["mask ignored", "variance for sd", "backward", "the start twice"],
)  # fmt: skip
def test_density_mutants(change):
    assert broken(complete_law("default", change))


@pytest.mark.test
def test_states_that_theta_determines_are_not_drawn():
    """A row without noise whose coefficients are learnt: given z they could not move."""
    trend: dict[str, Any] = {"transition": [[1, 1], [0, 1]], "emission": [[1, 0]], "state_noise": [np.nan, 0.0]}
    assert linear_gaussian(2, initial_noise=np.nan, **trend).sums.drawn is not None
    assert linear_gaussian(2, **trend).sums.drawn is None  # the slope's mean is learnt
    known = linear_gaussian(2, 2, state_noise=[1.0, 0.0], initial_mean=0.0, initial_noise=1.0)
    assert known.sums.drawn is None


@jax.jit
def normal(off: jax.Array, spread: jax.Array, covariance: jax.Array) -> jax.Array:
    """E log N of a vector of mean off and covariance spread."""
    inverse = jnp.linalg.inv(covariance)
    return -0.5 * (jnp.linalg.slogdet(2 * jnp.pi * covariance)[1] + jnp.sum(inverse * (jnp.outer(off, off) + spread)))


def q_of(model: Any, theta: Any, rows: Any) -> Callable:
    """Q by its gradient alone, Fisher's identity: E of complete-data log density, from smoothed moments in NumPy."""
    layout, here = model.layout, model.system(theta)
    x, u = map(np.asarray, layout.split(rows))
    found = [joint(here, one, given) for one, given in zip(x, u, strict=True)]

    def q(new: Any) -> jax.Array:
        w, total = layout.system(new), jnp.zeros(())
        a, c, first, q, r = w.transition, w.emission, w.initial_noise**2, w.state_noise**2, w.noise**2
        for one, given, s in zip(x, u, found, strict=True):
            mean, spread = s["mean"], s["covariance"]
            last = np.flatnonzero(~np.isnan(one).all(1)).max()
            total = total + normal(mean[0] - w.initial_mean, spread[0, :, 0], jnp.diag(first))
            for t in range(T):
                there = ~np.isnan(one[t])
                if there.any():
                    off = one[t] - c @ mean[t] - w.feedthrough @ given[t] - w.offset
                    own = (c @ spread[t, :, t] @ c.T)[np.ix_(there, there)]
                    total = total + normal(off[there], own, jnp.diag(r[there]))
                if 0 < t <= last:
                    off = mean[t] - a @ mean[t - 1] - w.control @ given[t]
                    cross = spread[t, :, t - 1] @ a.T
                    own = spread[t, :, t] - cross - cross.T + a @ spread[t - 1, :, t - 1] @ a.T
                    total = total + normal(off, own, jnp.diag(q))
        return total

    return q


@pytest.mark.test("flat", "own start")
@every
def test_fishers_identity(name):
    """∇ log p(x | θ) is that of Q at θ: autodiff of the filter against smoothed moments."""
    model, rows = MODELS[name][0], rows_of(name)
    u = model.position_of(some_theta(model))
    slope = jax.jit(jax.grad(lambda u: jnp.sum(model.log_prob(model.params(u), rows))))(u)
    q = q_of(model, model.params(u), rows)
    assert_holds({"slope": error(slope, jax.grad(lambda u: q(model.params(u)))(u), 1e-9)})


def summit(name: str, change: Callable = lambda theta: theta) -> Scores:
    """The M-step is where Q + log p(θ) has no slope."""
    model, rows = MODELS[name][0], rows_of(name)
    theta = some_theta(model)
    q = q_of(model, theta, rows)
    best = jax.jit(
        lambda theta: model.position_of(change(model.m_step(model.e_step(theta, whole(rows)).statistics)))
    )(theta)  # fmt: skip
    of_prior = jax.jit(jax.grad(lambda u: model.log_prior(model.params(u))))(best)
    return {"slope": error(jax.grad(lambda u: q(model.params(u)))(best) + of_prior, 0, 1e-8)}


@every
def test_the_m_step_is_a_maximum(name):
    assert_holds(summit(name))
    if name == "default":
        assert broken(summit(name, lambda theta: jax.tree.map(lambda a: 1.001 * a, theta)))


@pytest.mark.test("flat", "trend", "own start")
@every
def test_no_step_goes_down(name):
    model, rows = MODELS[name][0], rows_of(name)
    kernel = em(model.e_step, model.m_step, model.log_prior)
    state = kernel.init(jax.random.key(0), some_theta(model))
    objective = np.asarray(
        jax.jit(lambda s: jax.lax.scan(lambda s, _: kernel.step(jnp.zeros(0), s, whole(rows)), s, length=60)[1])(state)
        .objective
    )  # fmt: skip
    assert np.isfinite(objective).all() and objective[-1] > objective[0]
    assert np.all(np.diff(objective) >= -1e-11 * np.abs(objective[1:]))


def test_padding_weights_and_groups_do_not_matter():
    model, rows = MODELS["default"][0], np.asarray(rows_of("default"))
    theta = some_theta(model)
    e_step = jax.jit(lambda theta, rows, weights: model.e_step(theta, Batch(rows, weights, 5)))
    found = e_step(theta, rows, np.ones(5))
    wider = e_step(theta, np.concatenate([rows, np.full((5, 2, 3), np.nan)], 1), np.ones(5))
    weighed = e_step(theta, rows, np.array([1.0, 2.0, 0.0, 1.0, 1.0]))
    repeated = e_step(theta, rows[[0, 1, 1, 3, 4]], np.ones(5))
    for one, two in ((wider, found), (weighed, repeated)):
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
        assert_holds({str(i): error(a, b, 1e-10 * max(1.0, float(np.abs(b).max()))) for i, (a, b) in enumerate(pairs)})


def test_sums_about_other_coefficients():
    """Told about others' coefficients, sums are as if they had been made there, of the same states."""
    model, rows = MODELS["default"][0], rows_of("default")
    e_step = jax.jit(lambda theta: model.e_step(theta, whole(rows)).statistics)
    sums, other = e_step(some_theta(model)), e_step(some_theta(model, 5))
    moved = sums.in_frame_of(other)
    for a, b in zip(jax.tree.leaves(moved.in_frame_of(sums)), jax.tree.leaves(sums), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    found, wanted = jax.tree.leaves(model.m_step(moved)), jax.tree.leaves(model.m_step(sums))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("name", ["default", "own start", "trend"])
def test_draws_of_the_prior_have_scores_of_mean_zero(name):
    model = MODELS[name][0]

    def log_prior(u: jax.Array) -> jax.Array:
        tree = model.space.unravel(u)
        params = model.constrain(tree)
        return model.log_prior(params) + model.log_jacobian(tree, params)

    keys = jax.random.split(jax.random.key(9), 4000)
    scores = jax.vmap(lambda key: jax.grad(log_prior)(model.position_of(model.sample_prior(key))))
    scores = np.asarray(jax.jit(scores)(keys))
    assert_holds({f"score {i}": z_mean(s, 0.0, s.var()) for i, s in enumerate(scores.T)})


def ahead_law(name: str) -> Scores:
    """Mean and variance of the next two steps: as if they were steps of the sequence that are missing."""
    model, given = MODELS[name]
    theta, rows = some_theta(model), rows_of(name)
    y, u = rows if given else (rows, None)
    later = jnp.array(RNG.normal(size=(5, 2, 1)))

    @jax.jit
    def told(theta: Any) -> tuple:
        ahead = model.ahead(theta, later if given else 2, (y, u))
        return ahead.mean, ahead.variance

    found, smoothed, scores, system = told(theta), jax.jit(model.smoothed), {}, model.system(theta)
    for n in range(5):
        cut = int(np.flatnonzero(~np.isnan(np.asarray(y[n]).reshape(T, -1)).all(1)).max()) + 1
        wider = np.concatenate([y[n : n + 1, :cut], np.full((1, T + 2 - cut, *y.shape[2:]), np.nan)], 1)
        both = None
        if given:
            both = np.concatenate([u[n : n + 1, :cut], later[n : n + 1], np.zeros((1, T - cut, *u.shape[2:]))], 1)
        mean, covariance = smoothed(theta, wider if both is None else (wider, both))
        for h in range(2):
            level = system.offset if both is None else system.offset + system.feedthrough @ both[0, cut + h]
            wanted = level + system.emission @ mean[0, cut + h]
            spread = np.diag(system.emission @ covariance[0, cut + h] @ system.emission.T) + system.noise**2
            scores[f"mean {n} {h}"] = error(np.ravel(found[0][n, h]), wanted, 1e-9)
            scores[f"variance {n} {h}"] = error(np.ravel(found[1][n, h]), spread, 1e-9)
    return scores


@pytest.mark.parametrize("name", ["default", "inputs", "trend"])
def test_what_comes_next(name):
    assert_holds(ahead_law(name))


def test_em_finds_a_system():
    """A factor that two series follow: found within its standard errors, trusted, told ahead."""
    truth = linear_gaussian(1, 2, transition=[[0.8]], emission=[[1.0], [0.5]], offset=[2.0, -1.0], state_noise=0.5,
                            noise=[0.3, 0.4])  # fmt: skip
    y = np.array(truth.simulate(jax.random.key(1), LinearGaussian(np.zeros(1), *[None] * 8), 30, 40)[0])
    y[RNG.random(y.shape) < 0.1] = np.nan
    model: Any = linear_gaussian(1, 2)
    data = tr.Data(y, missing="keep")
    posterior = tr.infer(model, data, tr.EM(starts=2), seed=0)
    assert posterior.report().verdict == "trust", posterior.report()
    mean, sd = posterior.mean(), posterior.sd()
    for name, wanted in {
        "transition": [[0.8]], "state_noise": [0.5], "emission": [0.5], "noise": [0.3, 0.4], "offset": [2.0, -1.0]
    }.items():  # fmt: skip
        assert np.all(np.abs(getattr(mean, name) - np.array(wanted)) < 4 * getattr(sd, name)), name
    told = posterior.predict(3)
    assert told.mean.shape == (30, 3, 2) and np.all(told.lower < told.upper)
    assert model.drawn_paths(jax.random.key(0), mean, y).shape == (30, 40, 1)


NILE = [
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180, 799, 958, 1140,
    1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833, 701, 916, 692, 1020, 1050, 969,
    831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759, 781, 865,
    845, 944, 984, 897, 822, 1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890, 744, 749, 838, 1050,
    918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
]  # fmt: skip


def test_the_nile():
    """Annual flow at Aswan, 1871 to 1970, as a random walk seen with noise: Durbin & Koopman 2012, section 2.10."""
    model = linear_gaussian(1, transition=[[1.0]], offset=0.0, initial_mean=0.0, initial_noise=1e7**0.5)
    found = tr.infer(model, tr.models.sequences([NILE]), tr.MAP(), seed=0)
    mean = found.mean()
    assert abs(mean.noise[0] ** 2 / 15_099 - 1) < 1e-3 and abs(mean.state_noise[0] ** 2 / 1469.1 - 1) < 1e-3
    assert found.report().verdict == "trust"


def ahead(x: Any) -> Any:
    model = MODELS["default"][0]
    return model.ahead(some_theta(model), x, (rows_of("default"), None))


@pytest.mark.test
@pytest.mark.parametrize(
    ("call", "what", "sentence"),
    [
        (lambda: linear_gaussian(0), ModelError, "latent is a whole number"),
        (lambda: linear_gaussian(2), ModelError, "emission= must say how 1 numbers depend on 2 states"),
        (lambda: linear_gaussian(2, 2, transition=np.eye(3)), ModelError, "transition is a matrix of shape (2, 2)"),
        (lambda: linear_gaussian(2, 2, noise="full"), ModelError, "Covariances were removed"),
        (lambda: linear_gaussian(2, 2, state_noise=[-1.0, 1.0]), ModelError, "has sds"),
        (lambda: linear_gaussian(1, initial="own"), ModelError, "initial_mean= and initial_noise= say"),
        (lambda: linear_gaussian(1, scale=-1.0), ModelError, "scale expects positive finite numbers"),
        (lambda: linear_gaussian(1, prior_counts=-1.0), ModelError, "prior_counts is 0 or more"),
        (lambda: linear_gaussian(1, inputs=-1), ModelError, "inputs is a whole number"),
        (lambda: tr.infer(linear_gaussian(1), tr.Data(np.ones(3)), tr.EM()), DataError, "Expected sequences of shape"),
        (lambda: tr.infer(linear_gaussian(1, inputs=1), tr.Data(np.ones((2, 3))), tr.EM()), DataError, "got none"),
        (lambda: ahead(jnp.ones((4, 2))), SettingsError, "how many steps ahead"),
    ],
)  # fmt: skip
def test_sentences(call, what, sentence):
    with pytest.raises(what, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        call()
