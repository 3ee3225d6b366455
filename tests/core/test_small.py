"""Factors of small matrices against NumPy's, their derivatives, and what becomes of bad ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import assert_holds, error

from tractable.core.small import cholesky, inverse, inverse_root

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("size", [1, 2, 5, 17])
def test_factors(size):
    root = RNG.normal(size=(3, 4, size, size))
    matrices = root @ np.swapaxes(root, -1, -2) + 0.1 * np.eye(size)
    lower = jax.jit(cholesky)(jnp.array(matrices))
    right = np.linalg.cholesky(matrices)
    assert_holds(
        {
            "factor": error(lower, right, 1e-10),
            "inverse": error(inverse(lower), np.linalg.inv(right), 1e-9 * np.abs(np.linalg.inv(right)).max()),
            "triangle": error(jnp.triu(lower, 1), 0.0, 1e-15),
        }
    )


def test_derivatives():
    matrix = jnp.array([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.7]])

    def ours(a):
        return jnp.sum(jnp.sin(inverse_root(a)))

    def theirs(a):
        lower = jnp.linalg.cholesky(a)
        return jnp.sum(jnp.sin(jax.scipy.linalg.solve_triangular(lower, jnp.eye(3), lower=True)))

    step = jnp.array([[0.3, 0.1, 0.2], [0.1, -0.5, 0.4], [0.2, 0.4, 0.1]])

    def second(f):
        return jax.jvp(lambda a: jax.jvp(f, (a,), (step,))[1], (matrix,), (step,))[1]

    assert_holds(
        {
            "slope": error(jax.jvp(ours, (matrix,), (step,))[1], jax.jvp(theirs, (matrix,), (step,))[1], 1e-10),
            "gradient": error(jax.grad(ours)(matrix), jax.grad(theirs)(matrix), 1e-10),
            "curvature": error(second(ours), second(theirs), 1e-9),
        }
    )


@pytest.mark.test
def test_what_is_not_positive_definite_is_nan():
    bad = jnp.array([[[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.0], [0.0, 4.0]]])
    found = cholesky(bad)
    assert jnp.isnan(found[0]).any()
    assert_holds({"the other": error(found[1], [[1.0, 0.0], [0.0, 2.0]], 1e-12)})
