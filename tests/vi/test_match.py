"""Batch and match: each iteration solves its problem, normals are exact, and a low rank keeps the sds."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from scipy import linalg, optimize

import tractable as tr
from tractable.vi import match as matching
from tractable.vi import methods
from tractable.vi.match import Matched, match, nearest_of_low_rank

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(11)


def normal(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, covariance and precision of a normal with a condition number near 10⁴."""
    axes = linalg.qr(RNG.normal(size=(size, size)))[0]
    variances = np.geomspace(1e-2, 1e2, size)
    return RNG.normal(size=size), (axes * variances) @ axes.T, (axes / variances) @ axes.T


def density_of(mean: np.ndarray, precision: np.ndarray) -> Callable:
    return lambda z: (-((z - mean) @ precision * (z - mean)).sum(1) / 2, -(z - mean) @ precision)


def go(density: Callable, mean: np.ndarray, root: np.ndarray, stop: Callable = lambda: False) -> Matched | None:
    return match(density, mean, root, np.random.default_rng(3), stop)


def skewed(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log p and scores of numbers that are skewed, and depend on each other."""
    first, size = z[:, :1], z.shape[1]
    values = (3 * z - np.exp(z)).sum(1) - 0.2 * (first[:, 0] * z[:, 1:].sum(1)) ** 2 / size
    common = -0.4 * first[:, 0] * z[:, 1:].sum(1) / size
    cross = np.hstack([(common * z[:, 1:].sum(1))[:, None], np.repeat((common * first[:, 0])[:, None], size - 1, 1)])
    return values, 3 - np.exp(z) + cross


@pytest.mark.parametrize("size", [2, 5, 40])
def test_an_iteration_minimises_what_it_says(size: int, monkeypatch) -> None:
    """The gradient of the objective in μ' and Σ' is 0 at the result of the first iteration, where λ = 32 d."""
    monkeypatch.setattr(matching, "BLOCKS", (1,))
    mean, root = RNG.normal(size=size), np.linalg.cholesky(normal(size)[1] / 100)
    found = go(skewed, mean, root)
    assert found is not None
    draws = mean + np.random.default_rng(3).standard_normal((matching.DRAWS, size)) @ root.T
    strength, scores = matching.DRAWS * size, skewed(draws)[1]

    def objective(centre: jax.Array, precision: jax.Array) -> jax.Array:
        gap = scores + (draws - centre) @ precision
        distance = jnp.mean(jnp.sum(gap * jnp.linalg.solve(precision, gap.T).T, 1))
        kl = jnp.trace(precision @ root @ root.T) - jnp.linalg.slogdet(precision)[1]
        return strength * distance / 2 + (kl + (centre - mean) @ precision @ (centre - mean)) / 2

    with jax.enable_x64(True):
        centre, precision = jnp.asarray(found.mean), jnp.linalg.inv(jnp.asarray(found.covariance))
        slopes = jax.grad(objective, (0, 1))(centre, precision)
        sd = np.sqrt(np.diag(found.covariance))
        units = sd, 1 / np.outer(sd, sd)
        moved = jax.grad(objective, (0, 1))(centre + 0.01 * sd, precision * 1.01)
        for slope, other, unit in zip(slopes, moved, units, strict=True):
            here, there = (np.abs((s + s.T) / 2 * unit).max() for s in (slope, other))
            assert here < 1e-6 * there


@pytest.mark.test
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_normal_is_exact_in_few_gradients(size: int) -> None:
    mean, covariance, precision = normal(size)
    found = go(density_of(mean, precision), mean + 0.5, np.diag(precision) ** -0.5 * np.eye(size))
    assert found is not None and found.movement <= matching.STILL
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((found.mean - mean) / sd, 0, atol=0.02)
    np.testing.assert_allclose(found.covariance / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.04)
    exact = go(density_of(mean, precision), mean, np.linalg.cholesky(covariance))
    assert exact is not None and len(exact.bounds) == 8
    np.testing.assert_allclose(exact.covariance / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=1e-9)
    evidence = np.linalg.slogdet(2 * np.pi * covariance)[1] / 2  # log ∫ p, for a density whose maximum is 1
    np.testing.assert_allclose(exact.bounds.mean(), evidence, atol=5 * np.sqrt(size / 2 / (8 * matching.DRAWS)))


def test_what_is_not_finite_has_no_match() -> None:
    edge = lambda z: (np.full(len(z), np.nan), np.where(z < 0.5, np.nan, 1.0))  # noqa: E731
    assert go(edge, np.zeros(2), np.eye(2)) is None
    assert go(skewed, np.zeros(2), np.eye(2), stop=lambda: True) is None
    assert go(lambda z: (np.exp(z).sum(1), 1e200 * z), np.zeros(2), np.eye(2)) is None


def test_the_nearest_of_low_rank() -> None:
    """Its KL is stationary, and it has the same variances; a covariance of this form is found again."""
    factor, unique = RNG.normal(size=(30, 4)), RNG.uniform(0.2, 2.0, 30)
    low = np.diag(unique) + factor @ factor.T
    found, columns = nearest_of_low_rank(low, 4)
    np.testing.assert_allclose(np.diag(found) + columns @ columns.T, low, atol=0.02 * low.max())
    covariance = normal(30)[1]
    found, columns = nearest_of_low_rank(covariance, 4)
    np.testing.assert_allclose(found + np.square(columns).sum(1), np.diag(covariance), rtol=1e-6)
    sd = np.sqrt(np.diag(covariance))

    def divergence(unique: jax.Array, columns: jax.Array) -> jax.Array:
        near = jnp.diag(unique) + columns @ columns.T
        return (jnp.trace(jnp.linalg.solve(near, covariance)) + jnp.linalg.slogdet(near)[1]) / 2

    with jax.enable_x64(True):
        slope = jax.jit(jax.value_and_grad(lambda x: divergence(jnp.exp(x[0]) * sd**2, x[1:].T * sd[:, None])))

        def downhill(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = slope(x.reshape(5, 30))
            return float(value), np.asarray(gradient).ravel()

        here = np.vstack([np.log(found / sd**2), (columns / sd[:, None]).T]).ravel()
        least = optimize.minimize(downhill, here, jac=True, method="L-BFGS-B").fun
        flat = np.vstack([np.zeros(30), np.zeros((4, 30))]).ravel()
        assert least - 1e-6 <= downhill(here)[0] < least + 0.2 < downhill(flat)[0] - 1
    whole, all_columns = nearest_of_low_rank(covariance, 30)
    np.testing.assert_allclose(np.diag(whole) + all_columns @ all_columns.T, covariance, atol=1e-4 * covariance.max())


def model_of(mean: np.ndarray, precision: np.ndarray) -> tr.Model:
    return tr.Model.from_log_density(lambda z: -(z - mean) @ precision @ (z - mean) / 2, jnp.zeros(len(mean)))


@pytest.mark.test
def test_sds_are_right_where_the_bound_has_them_too_small() -> None:
    """Thirty numbers whose correlations need more than five columns."""
    mean, covariance, precision = normal(30)
    model, sd = model_of(mean, precision), np.sqrt(np.diag(covariance))
    matched = tr.infer(model, None, tr.LowRank(), seed=0, progress=False)
    assert matched.report().verdict == "trust" and matched.found["solver"] == "match"
    assert matched.cost.gradients == matched.found["evaluations"] <= 32 * sum(matching.BLOCKS)
    np.testing.assert_allclose(np.std(matched.draws[0], 0) / sd, 1, atol=0.06)  # 5.4 errors of 4,000 draws' sd
    assert len(matched.curve.steps) == matched.found["evaluations"] / 32
    climbed = tr.infer(model, None, tr.LowRank(solver="stochastic"), seed=0, progress=False)
    assert climbed.report().verdict == "reject" and np.min(np.std(climbed.draws[0], 0) / sd) < 0.8


BETA = {"w": dist.Normal(0.0, 2.0).expand([3]).to_event(1)}
X = RNG.normal(size=(60, 3))
DATA = tr.Data((X.sum(1) > 0).astype(int), X)
CLIMBS = {
    "batches": tr.LowRank(batch_size=20),
    "forward": tr.LowRank(divergence="forward"),
    "a random start": tr.LowRank(start="random"),
    "an optimiser": tr.LowRank(optimizer=optax.adam(0.01), solver="auto"),
    "a schedule": tr.LowRank(learning_rate=optax.constant_schedule(0.1), steps=400),
    "draws": tr.LowRank(solver="stochastic"),
}


@pytest.mark.parametrize("case", CLIMBS)
def test_what_climbs(case: str) -> None:
    model = tr.Model(BETA, lambda p, x: dist.Bernoulli(logits=x @ p["w"]))
    posterior = tr.infer(model, DATA, CLIMBS[case], seed=0, progress=False, verify=None)
    assert "movement" not in posterior.found


UNSETTLED = [Matched(np.zeros(3), np.eye(3), movement, np.zeros(8)) for movement in (0.3, np.nan)]


@pytest.mark.parametrize("found", [None, *UNSETTLED])
def test_where_nothing_settles_it_climbs(found: Matched | None, monkeypatch) -> None:
    monkeypatch.setattr(methods, "match", lambda *_: found)
    model = model_of(*(normal(3)[k] for k in (0, 2)))
    posterior = tr.infer(model, None, tr.LowRank(), seed=0, progress=False, verify=None)
    assert "movement" not in posterior.found and posterior.found["steps"] > 0
