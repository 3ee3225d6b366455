"""The covariance of linear response: exact for normals, the derivative of a mean field's means for others."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import optimize

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.vi import linear_response

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(3)
KEY = jax.random.key(5)


def covariance(model: tr.Model, mean: np.ndarray, sd: np.ndarray, data: tr.Data | None = None) -> np.ndarray:
    root = linear_response.root_of_covariance(model, data, mean, sd, KEY)
    assert root is not None and np.array_equal(root, np.tril(root))
    return root @ root.T


@pytest.mark.test
def test_a_normals_covariance_is_exact() -> None:
    root = RNG.normal(size=(6, 6)) * np.geomspace(1, 100, 6)[:, None]
    precision, centre = np.linalg.inv(root @ root.T), RNG.normal(size=6)
    model = tr.Model.from_log_density(lambda z: -(z - centre) @ precision @ (z - centre) / 2, jnp.zeros(6))
    found = covariance(model, centre, np.diag(precision) ** -0.5)
    np.testing.assert_allclose(found / np.outer(*2 * [np.diag(found) ** 0.5]),
                               root @ root.T / np.outer(*2 * [np.diag(found) ** 0.5]), atol=1e-6)  # fmt: skip


def skewed(z: jax.Array) -> jax.Array:
    """Two numbers that depend on each other, each of them skewed."""
    return 3 * z[0] - jnp.exp(z[0] + 0.8 * z[1]) - z[1] ** 2 / 2 - 0.3 * z[0] * z[1]


def test_the_means_move_as_it_says() -> None:
    """Dμ/dt of the mean field of log p + tᵀz, whose bound is maximised anew over the same fixed draws."""
    half = np.asarray(jax.random.normal(KEY, (linear_response.PAIRS, 2)))
    eps = np.concatenate([half, -half])

    def bound(phi: jax.Array, tilt: jax.Array) -> jax.Array:
        z = phi[:2] + jnp.exp(phi[2:]) * eps
        return -jnp.mean(jax.vmap(skewed)(z) + z @ tilt) - jnp.sum(phi[2:])

    slope = jax.jit(jax.value_and_grad(bound))

    def best(tilt: np.ndarray) -> np.ndarray:
        found = optimize.minimize(
            lambda phi: [np.asarray(a, float) for a in slope(phi, tilt)], np.zeros(4), jac=True, method="BFGS",
            options={"gtol": 1e-10},
        )  # fmt: skip
        return found.x

    phi, step = best(np.zeros(2)), 1e-3
    moves = [(best(step * e) - best(-step * e))[:2] / (2 * step) for e in np.eye(2)]
    found = covariance(tr.Model.from_log_density(skewed, jnp.zeros(2)), phi[:2], np.exp(phi[2:]))
    np.testing.assert_allclose(found, np.array(moves), atol=2e-4)
    by_means_alone = np.linalg.inv(jax.hessian(lambda mean: bound(jnp.append(mean, phi[2:]), jnp.zeros(2)))(phi[:2]))
    assert np.abs(by_means_alone - found).max() > 0.01  # what is wrong if sds were taken to stay as they are


def regression(correlation: float) -> tuple[tr.Model, tr.Data]:
    x = RNG.normal(size=(300, 4)) @ np.linalg.cholesky(np.full((4, 4), correlation) + (1 - correlation) * np.eye(4)).T
    y = RNG.random(300) < 1 / (1 + np.exp(-x @ np.array([1.0, -1.0, 0.5, 0.0])))
    prior = {"w": dist.Normal(0.0, 2.0).expand([4]).to_event(1)}
    return tr.Model(prior, lambda p, x: dist.Bernoulli(logits=x @ p["w"])), tr.Data(y.astype(int), x)


@pytest.mark.test
@pytest.mark.parametrize("solver", ["stochastic", "auto"])
def test_correlated_columns_are_trusted(solver: str) -> None:
    model, data = regression(0.9)
    plain, better = (
        tr.infer(model, data, tr.MeanField(solver=solver, linear_response=each), seed=1, progress=False)
        for each in (False, True)
    )
    exact = tr.infer(model, data, tr.NUTS(draws=2000), seed=1, progress=False)
    assert plain.report().verdict == "reject" and "linear_response=True" in str(plain.report())
    assert better.report().verdict == "trust"
    ratios = [each.sd()["w"] / exact.sd()["w"] for each in (plain, better)]
    assert np.all(ratios[0] < 0.7) and np.all(np.abs(ratios[1] - 1) < 0.1)
    assert better.cost.gradients == plain.cost.gradients + linear_response.gradients(4)


def test_where_the_bound_has_no_maximum_there_is_no_covariance() -> None:
    """Between two modes the density's curvature has the wrong sign."""
    model = tr.Model.from_log_density(lambda z: jnp.logaddexp(-((z[0] - 4) ** 2), -((z[0] + 4) ** 2)), jnp.zeros(1))
    assert linear_response.root_of_covariance(model, None, np.zeros(1), np.ones(1), KEY) is None
    edge = tr.Model.from_log_density(lambda z: jnp.sum(jnp.sqrt(z) - z**2), jnp.ones(1))  # NaN below 0
    assert linear_response.root_of_covariance(edge, None, np.zeros(1), np.ones(1), KEY) is None


@pytest.mark.test
def test_what_it_cannot_do_is_said_before_a_run() -> None:
    with pytest.raises(SettingsError, match=r"linear_response=...\) expects divergence='reverse'"):
        tr.MeanField(linear_response=True, divergence="forward")
    wide = tr.Model({"w": dist.Normal(0.0, 1.0).expand([201])})
    with pytest.raises(ModelError, match="expects at most 200 parameters; got 201"):
        tr.infer(wide, None, tr.MeanField(linear_response=True))
    model, _ = regression(0.0)
    on_file = tr.Data(np.ones(20, int), np.ones((20, 4)), resident=False)
    with pytest.raises(DataError, match="expects rows in memory"):
        tr.infer(model, on_file, tr.MeanField(linear_response=True, batch_size=5))
