"""A layer of binary units: density, slopes and curvature, of any number of units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tractable.ladders.units import FACTORS, BinaryUnits, sum_softplus

pytestmark = pytest.mark.laws

SIZES = (1, FACTORS - 1, FACTORS, FACTORS + 1, 784)  # products of all, of none, with a rest


def logits(n: int, dtype: type) -> jax.Array:
    """Ordinary ones, none at all, and units that are all but certain."""
    eta = 3 * jax.random.normal(jax.random.key(n), (6, n), dtype)
    return eta.at[0].set(0).at[1, ::2].set(100).at[2, ::3].set(-100)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("n", SIZES)
def test_density_and_slope(n, dtype):
    """Σ_i log σ((2h_i − 1) η_i) to the rounding of its sum, and h − σ(η) exactly, η = 0 and ±100 included."""
    eta = logits(n, dtype)
    h = jax.random.bernoulli(jax.random.key(0), 0.5, eta.shape)
    value, slope = jax.vmap(jax.value_and_grad(lambda e, h: BinaryUnits(e).log_prob(h)))(eta, h.astype(jnp.uint8))
    exact, wide = np.asarray(h, float), np.asarray(eta, float)
    near = 8 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(value, -np.logaddexp(0, (1 - 2 * exact) * wide).sum(-1), rtol=near, atol=near * n)
    np.testing.assert_allclose(slope, exact - 1 / (1 + np.exp(-wide)), atol=near)


def test_curvature():
    """The second derivative is σ(1 − σ), at t = 0 too; the third, at 0, is none."""
    t = jnp.asarray([-100.0, -1.0, 0.0, 2.0, 100.0])
    sigma = jax.nn.sigmoid(t)
    np.testing.assert_allclose(jax.hessian(sum_softplus)(t), jnp.diag(sigma * (1 - sigma)), atol=1e-12)
    assert float(jax.grad(jax.grad(jax.grad(lambda t: sum_softplus(t[None]))))(0.0)) == 0


@pytest.mark.test
def test_ends_of_the_line():
    """η = ±∞ are certain units; a NaN stays one."""
    eta = jnp.asarray([jnp.inf, -jnp.inf])
    units = BinaryUnits(eta)
    assert float(units.log_prob(jnp.asarray([1, 0]))) == 0
    assert float(units.log_prob(jnp.asarray([0, 0]))) == -np.inf
    assert np.isnan(sum_softplus(jnp.asarray([jnp.nan, 0.0])))
