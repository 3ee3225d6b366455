"""IVON's precisions 1/σ² are E_q of the loss's curvature, its fixed point is the best mean field, its trace the bound.

A step is checked by exact integrals over its noise ε, which the second step of a pair negates.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Scores, assert_holds, error
from scipy import optimize

import tractable as tr
from tractable.core import model as core
from tractable.core import tree
from tractable.core.batches import Batch
from tractable.core.errors import SettingsError
from tractable.gallery import conjugate
from tractable.networks import ivon as module

pytestmark = pytest.mark.test

RNG = np.random.default_rng(5)
D, N, NOISE, SD = 2, 9, 0.6, 1.4
X = RNG.normal(size=(N, D)) @ np.array([[1.0, 0.7], [0.0, 0.6]])
Y = X @ np.array([0.8, -0.4]) + NOISE * RNG.normal(size=N)
LABELS = (Y > 0).astype(np.int32)
EXACT = conjugate.linear_regression(X, Y, NOISE, SD)
PRECISION = np.linalg.inv(EXACT.covariance)
GAP = 0.5 * (np.log(np.diag(PRECISION)).sum() - np.linalg.slogdet(PRECISION)[1])
FORGET, RATE = 1e-7, 1e-3
PLACE = {"mean": {"w": jnp.array([0.5, -0.2])}, "sd": {"w": jnp.array([0.5, 0.63])}}
BEST = {"mean": {"w": jnp.asarray(EXACT.mean)}, "sd": {"w": jnp.asarray(np.diag(PRECISION) ** -0.5)}}


def regression(labels: bool = False, prior: Any = None) -> core.Model:
    """A linear regression, or a logistic one; with a normal prior or another."""

    def normal(params: dict, x: jax.Array) -> dist.Distribution:
        return dist.Normal(x @ params["w"], NOISE)

    def logistic(params: dict, x: jax.Array) -> dist.Distribution:
        return dist.Bernoulli(logits=x @ params["w"])

    prior = {"w": dist.Normal(jnp.full(D, 0.2), SD)} if prior is None else prior
    where = {"position": {"w": jnp.zeros(D)}} if callable(prior) else {}
    return core.Model(prior, logistic if labels else normal, **where)


def nodes(count: int) -> tuple[jax.Array, jax.Array]:
    """Points (K, D) and shares (K,) that integrate over N(0, I)."""
    points, shares = np.polynomial.hermite_e.hermegauss(count)
    grid = np.stack(np.meshgrid(*[points] * D, indexing="ij"), -1).reshape(-1, D)
    mass = np.prod(np.stack(np.meshgrid(*[shares / shares.sum()] * D, indexing="ij"), -1), -1).ravel()
    return jnp.asarray(grid), jnp.asarray(mass)


def expected(model: core.Model, position: Any, batches: list[Batch], samples: int = 1) -> dict[str, jax.Array]:
    """What a step does in expectation over its noise: the slope, E[∇² loss] + Λ − 1/σ² and the trace."""
    kernel = module.ivon(model, RATE, forget=FORGET, samples=samples)
    first = kernel.init(jax.random.key(0), position)

    def of(eps: jax.Array) -> dict[str, jax.Array]:
        state = first._replace(steps=jnp.array(1), kl=module.kl(model, position))
        out = []
        for batch in batches:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module.tree, "normal_like", lambda *_: {"w": jnp.broadcast_to(-eps, (samples, D))})
                after, info = kernel.step(jax.random.key(0), state, batch)
            before, now = (p["sd"]["w"] ** -2 for p in (position, after.position))
            out.append({
                "slope": after.slope["w"] / (1 - module.MOMENTUM), "gain": (now - before) / FORGET,
                "bound": info.objective,
            })  # fmt: skip
        return jax.tree.map(lambda *parts: sum(parts) / len(parts), *out)

    points, mass = nodes(24)
    return jax.tree.map(lambda a: mass @ a, jax.jit(jax.vmap(of))(points))


def noise_of(seed: int) -> jax.Array:
    """The noise (D,) of a pair of steps whose first has the key ``seed``."""
    return tree.normal_like(jax.random.key(seed), PLACE["mean"], 1)["w"][0]


def cut(y: Any) -> list[Batch]:
    """Three batches of the rows, padded to the largest."""
    batches = []
    for index, (start, end) in enumerate(((0, 3), (3, 6), (6, 9))):
        rows = (jnp.asarray(y[start:end]), jnp.asarray(X[start:end]))
        padded = jax.tree.map(lambda a: jnp.concatenate([a, a[:1]]), rows)
        batches.append(Batch(padded, jnp.array([1.0, 1, 1, 0]), N, index, 3))
    return batches


def whole(y: Any) -> list[Batch]:
    return [core.whole((jnp.asarray(y), jnp.asarray(X)))]


def stein(samples: int = 1) -> Scores:
    """E[ε G/σ] is E_q[∂²(−log p(y|w))/∂wᵢ²], for a loss that is not quadratic, from all rows and from batches."""
    model, scores = regression(labels=True), {}
    points, mass = nodes(40)
    w = PLACE["mean"]["w"] + points * PLACE["sd"]["w"]
    p = jax.nn.sigmoid(w @ X.T)
    curvature = mass @ ((p * (1 - p)) @ X**2)
    for name, batches in {"all rows": whole(LABELS), "batches": cut(LABELS)}.items():
        got = expected(model, PLACE, batches, samples)
        wanted = curvature + 1 / SD**2 - PLACE["sd"]["w"] ** -2
        slope = mass @ ((p - LABELS) @ X)
        scores |= {
            f"{name}, precision": error(got["gain"], wanted, 1e-5),
            f"{name}, slope": error(got["slope"], slope, 1e-8),
        }
    return scores


def test_precisions_move_towards_the_expected_curvature():
    assert_holds(stein() | {f"3 draws, {name}": score for name, score in stein(3).items()})


def test_the_best_mean_field_is_a_fixed_point():
    """At μ and Λᵢᵢ^(−½) nothing moves in expectation, and the trace is log p(y) − ½ (Σ log Λᵢᵢ − log |Λ|)."""
    model = regression(prior={"w": dist.Normal(jnp.zeros(D), SD)})
    for batches in (whole(Y), cut(Y)):
        got = expected(model, BEST, batches)
        assert_holds({
            "precision": error(got["gain"], 0.0, 1e-5), "bound": error(got["bound"], EXACT.log_evidence - GAP, 1e-8),
            "mean": error(got["slope"] + BEST["mean"]["w"] / SD**2, 0.0, 1e-8),
        })  # fmt: skip


def test_a_prior_without_a_closed_form_has_the_same_expectation():
    """A normal prior as a function of the parameters acts through the draws."""
    prior = dist.Normal(jnp.full(D, 0.2), SD)
    closed, open_ = (
        expected(regression(True, given), PLACE, whole(LABELS))
        for given in (None, lambda params: jnp.sum(prior.log_prob(params["w"])))
    )
    pull = (PLACE["mean"]["w"] - 0.2) / SD**2
    assert_holds({
        "precision": error(open_["gain"], closed["gain"], 1e-5), "bound": error(open_["bound"], closed["bound"], 1e-8),
        "slope": error(open_["slope"], closed["slope"] + pull, 1e-8),
    })  # fmt: skip


def test_a_move_is_a_newton_step():
    """With corrected momentum the first move is −α (G + Λ (m − c))/P, shortened to LONGEST."""
    model, batch = regression(True), whole(LABELS)[0]
    kernel = module.ivon(model, RATE, forget=FORGET)
    state = kernel.init(jax.random.key(0), PLACE)
    after = kernel.step(jax.random.key(3), state, batch)[0]
    mean, precision = PLACE["mean"]["w"], PLACE["sd"]["w"] ** -2
    drawn = mean + noise_of(3) / jnp.sqrt(precision)
    slope = (jax.nn.sigmoid(X @ drawn) - LABELS) @ X
    newton = -(slope + (mean - 0.2) / SD**2) / precision
    length = jnp.sqrt(jnp.mean(newton**2 * precision))
    wanted = mean + RATE * newton * min(1, module.LONGEST / length)
    assert length > module.LONGEST
    assert_holds({"move": error(after.position["mean"]["w"], wanted, 1e-12)})


def test_long_steps_are_shortened():
    """A gradient that is a million times too steep moves q by LONGEST α sds, and the climb comes back from there."""
    model = regression(prior={"w": dist.Normal(jnp.zeros(D), SD)})
    steep, batch = core.whole((1e6 * jnp.asarray(Y), jnp.asarray(X))), whole(Y)[0]
    kernel = module.ivon(model, 0.1, forget=0.01)
    state = kernel.init(jax.random.key(0), PLACE)
    after = kernel.step(jax.random.key(3), state, steep)[0]
    move = (after.position["mean"]["w"] - PLACE["mean"]["w"]) / PLACE["sd"]["w"]
    assert_holds({"length": error(jnp.sqrt(jnp.mean(move**2)), 0.1 * module.LONGEST, 1e-9)})

    def on(state: module.State, key: jax.Array) -> tuple[module.State, jax.Array]:
        state = kernel.step(key, state, batch)[0]
        return state, state.position["mean"]["w"]

    path = jax.lax.scan(on, after, jax.random.split(jax.random.key(4), 4000))[1]
    away = (jnp.mean(path[2000:], 0) - EXACT.mean) * np.sqrt(np.diag(PRECISION))
    # A step keeps 99 % of the distance or less, so 2,000 steps hold 10 independent means or more, each within 0.3 sds.
    assert_holds({"mean": error(away, 0.0, 0.3)})


def test_steps_come_in_pairs():
    """The second step of a pair has the noise −ε of the first, and the third has new noise."""
    model, batch = regression(True), whole(LABELS)[0]
    kernel = module.ivon(model, 0.0, forget=FORGET)
    states = [kernel.init(jax.random.key(0), PLACE)]
    for seed in range(3):
        states.append(kernel.step(jax.random.key(seed), states[-1], batch)[0])
    value, momentum, slope = module.partial_log_joint(model).value, module.MOMENTUM, jnp.zeros(D)
    for state, eps in zip(states[1:], (noise_of(0), -noise_of(0), noise_of(2)), strict=True):
        w = {"w": PLACE["mean"]["w"] + PLACE["sd"]["w"] * eps}
        slope = momentum * slope - (1 - momentum) * jax.grad(lambda w: value((), w, batch))(w)["w"]
        assert_holds({"slope": error(state.slope["w"], slope, 1e-6)})


def test_sds_stay_positive():
    """However wrong a draw's curvature is, a step changes an sd by factors of 0.625 to 1.625."""
    model, batch = regression(True, {"w": dist.Normal(jnp.zeros(D), 1e-3)}), whole(LABELS)[0]
    kernel = module.ivon(model, RATE, forget=0.9)
    for sd in (1e-6, 1.0, 1e4):
        position = {"mean": {"w": jnp.full(D, 3.0)}, "sd": {"w": jnp.full(D, sd)}}
        after = kernel.step(jax.random.key(1), kernel.init(jax.random.key(0), position), batch)[0]
        factor = after.position["sd"]["w"] / sd
        assert np.all((factor > 0.624) & (factor < 1.626)), factor


def test_a_small_step_changes_precisions_as_the_authors_do():
    """σ⁻² changes by 1 + x + x²/2, up to terms in x³."""
    model, batch = regression(True), whole(LABELS)[0]
    for forget in (1e-2, 1e-1):
        kernel = module.ivon(model, RATE, forget=forget)
        state = kernel.init(jax.random.key(0), PLACE)
        after = kernel.step(jax.random.key(3), state, batch)[0]
        mean, sd, eps = PLACE["mean"]["w"], PLACE["sd"]["w"], noise_of(3)
        slope = (jax.nn.sigmoid(X @ (mean + sd * eps)) - LABELS) @ X
        x = forget * (eps * slope / sd + 1 / SD**2 - sd**-2) * sd**2
        wanted = (1 + x + x**2 / 2) * sd**-2
        assert np.all(np.abs(after.position["sd"]["w"] ** -2 / wanted - 1) < np.abs(x) ** 3)


def best_bound(model: core.Model, y: Any) -> Callable:
    """A function that gives the sds and means of the best mean field of a logistic regression, by quadrature."""
    points, mass = nodes(40)
    log_p = jax.vmap(tr.log_posterior(model, flat=True), (0, None))

    @jax.jit
    @jax.value_and_grad
    def minus_bound(phi: jax.Array) -> jax.Array:
        return -mass @ log_p(phi[:D] + points * jnp.exp(phi[D:]), whole(y)[0]) - jnp.sum(phi[D:])

    return lambda: optimize.minimize(minus_bound, np.zeros(2 * D), jac=True, method="BFGS", options={"gtol": 1e-8}).x


@pytest.mark.parametrize("batch_size", [None, 3])
def test_it_learns_the_best_mean_field(batch_size):
    """The maximum of the bound, by quadrature: means within 0.14 sd (0.01 nats, the tolerance), sds within 3 %."""
    model = regression(labels=True)
    best = best_bound(model, LABELS)()
    posterior = tr.infer(
        model, tr.Data(LABELS, given=X), tr.IVON(batch_size=batch_size, start="random", sd=0.3), progress=False
    )
    phi = posterior.fitted.phi
    sd = np.log1p(np.exp(phi["rho"]))
    np.testing.assert_allclose(phi["mean"], best[:D], atol=0.14 * np.exp(best[D:]).min())
    np.testing.assert_allclose(sd, np.exp(best[D:]), rtol=0.03)


def test_faults_are_sentences():
    for settings in ({"forget": 1.0}, {"noise": "local"}, {"kl_weights": "geometric"}, {"optimizer": "adam"}):
        with pytest.raises(SettingsError, match=f"IVON\\({next(iter(settings))}"):
            tr.IVON(**settings)


def test_sds_forget_as_the_batches_are_noisy():
    """Without forget= a step has the weight 1/(LEAST + EPOCHS N/n)."""
    model = regression(labels=True)
    for batch, times in ((whole(LABELS)[0], 1), (cut(LABELS)[0], 3)):
        moved = []
        for forget in (None, 1 / (module.LEAST + module.EPOCHS[0] * times)):
            kernel = module.ivon(model, RATE, forget=forget)
            state = kernel.step(jax.random.key(1), kernel.init(jax.random.key(0), PLACE), batch)[0]
            moved.append(state.position["sd"]["w"])
        np.testing.assert_allclose(*moved, rtol=1e-12)
        assert np.all(moved[0] != PLACE["sd"]["w"])


def test_a_noise_that_goes_to_zero_is_no_fault():
    """Of constant data a network learns a noise near 0; the climb stays finite."""
    x = np.linspace(-2, 2, 40, dtype=np.float32)[:, None]
    model = tr.models.neural_network(tr.models.mlp(1, (3,), 1))
    posterior = tr.infer(model, tr.Data(np.full(40, 3.0), given=x), tr.IVON(steps=4000), verify=None, progress=False)
    assert np.all(np.isfinite(posterior.fitted.phi["mean"]))


@pytest.mark.laws
def test_its_bound_on_a_small_network_is_that_of_bayes_by_backprop():
    """The two end within 3 nats on this curve. With a learning rate of 0.1 in place of 0.5, IVON ended 8 nats lower."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1300, 1))
    y = np.sin(3 * x[:, 0]) + rng.normal(0, 0.1, 1300)
    model, data = tr.models.neural_network(tr.models.mlp(1, (20,), 1)), tr.Data(y[:300], given=x[:300])
    bounds = [
        tr.infer(model, data, method, verify=None, progress=False).found["objective"]
        for method in (tr.IVON(), tr.BayesByBackprop())
    ]
    assert bounds[0] > bounds[1] - 3
