"""HMC and NUTS leave a correlated normal as it is: exact draws stay exact draws."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import Z, assert_holds, ks, moments, replicate
from scipy import stats

from tractable.kernels import hmc, nuts

pytestmark = pytest.mark.test

C = 4000
MEAN = jnp.array([1.0, -2.0, 0.5])
LOWER = jnp.array([[1.0, 0.0, 0.0], [0.9, 0.5, 0.0], [-0.4, 0.3, 2.0]])
DENSE = jnp.array([[0.8, 0.3, 0.0], [0.3, 1.5, 0.1], [0.0, 0.1, 3.0]])


def log_density(x: jax.Array) -> jax.Array:
    white = jax.scipy.linalg.solve_triangular(LOWER, x - MEAN, lower=True)
    return -0.5 * jnp.sum(white**2)


KERNELS = {
    "hmc": hmc(log_density, 0.35, jnp.array([1.0, 1.0, 4.0]), 5),
    "hmc dense": hmc(log_density, 0.35, DENSE, 5),
    "hmc jittered": hmc(log_density, 0.35, jnp.array([1.0, 1.0, 4.0]), 5, jitter=0.3),
    "nuts": nuts(log_density, 0.35, jnp.array([1.0, 1.0, 4.0]), 6),
    "nuts dense": nuts(log_density, 0.35, DENSE, 6),
}


def compare_with_normal(positions):
    """Scores of positions (n, 3) that should be exact draws of N(m, L Lᵀ): L⁻¹(θ − m) ~ N(0, I)."""
    white = np.linalg.solve(np.asarray(LOWER), np.asarray(positions - MEAN).T)
    scores = {"norm": ks(np.sum(white**2, axis=0), stats.chi2(3).cdf)}
    for i in range(3):
        scores |= moments(f"white {i}", white[i], 0.0, 1.0)
        scores[f"cdf {i}"] = ks(white[i], stats.norm.cdf)
        for j in range(i):
            scores[f"correlation {i}, {j}"] = abs(np.mean(white[i] * white[j])) * math.sqrt(len(positions)) / Z
    return scores


@pytest.mark.test("hmc dense", "hmc jittered")
@pytest.mark.parametrize("name", KERNELS)
def test_normal(name):
    """θ ~ N(m, L Lᵀ) ⇒ L⁻¹(θ' − m) ~ N(0, I), three transitions on."""
    key_start, key = jax.random.split(jax.random.key(0))
    start = MEAN + jax.random.normal(key_start, (C, 3)) @ LOWER.T
    state, info = replicate(KERNELS[name], key, start, 3)
    moved = float(jnp.mean(jnp.abs(state.position - start)))
    assert_holds(compare_with_normal(state.position), C)
    assert moved > 0.3
    assert float(info.divergent.sum()) == 0
    assert 0.6 < float(info.acceptance.mean()) < 0.999
    assert 1 <= float(info.gradients.mean()) <= 63


def test_energy_error_is_of_second_order():
    """One leapfrog step of size s is MALA's with ε = s²: acceptance 1 − O(s³), so halving s shrinks it."""
    start = MEAN + jax.random.normal(jax.random.key(1), (C, 3)) @ LOWER.T
    refused = []
    for size in (0.3, 0.15):
        _, info = replicate(hmc(log_density, size, jnp.ones(3), 1), jax.random.key(2), start, 1)
        refused.append(1 - float(info.acceptance.mean()))
    ratio = refused[0] / refused[1]
    print(f"refused {refused}, ratio {ratio:.2f}")
    assert 6 < ratio < 10.7


@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_a_period_is_broken_by_jitter(jitter):
    """Ten leapfrogs of size 2 sin(π/10) turn N(0, 1) once round: θ' = θ; of jittered sizes E[cos(10 φ)] is left."""
    start = jax.random.normal(jax.random.key(3), (C, 1))
    kernel = hmc(lambda x: -0.5 * jnp.sum(x**2), 2 * math.sin(math.pi / 10), jnp.ones(1), 10, jitter)
    state, info = replicate(kernel, jax.random.key(4), start, 1)
    sizes = 2 * math.sin(math.pi / 10) * np.linspace(1 - jitter, 1 + jitter, 10_001)
    expected = float(np.mean(np.cos(10 * np.arccos(1 - sizes**2 / 2))))
    correlation = float(np.corrcoef(np.asarray(start)[:, 0], np.asarray(state.position)[:, 0])[0, 1])
    assert info.acceptance.mean() > 0.95
    assert abs(correlation - expected) < (0.04 if jitter else 1e-3)
