"""Arms of a density, of which one maximum tells nothing: the second bar of a cross and its kind."""

from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tractable as tr
from tractable.core.approximations import of_root
from tractable.core.model import Model
from tractable.diagnostics import arms, climbs
from tractable.diagnostics.belief import Fitted
from tractable.diagnostics.target import Target
from tractable.posterior.posterior import Posterior

pytestmark = pytest.mark.test


def bars(widths: np.ndarray, shares: np.ndarray, turn: np.ndarray) -> Model:
    """A mixture of normals with the mean 0: a row of ``widths`` (k, d) has the sds of one, ``turn`` (d, d) its axes."""
    shift = np.log(shares) - np.sum(np.log(widths), 1)
    at = jnp.asarray(widths)
    return Model.from_log_density(
        lambda z: jax.nn.logsumexp(shift - jnp.sum(((turn.T @ z) / at) ** 2, 1) / 2), jnp.zeros(widths.shape[1])
    )


def posterior_of(model: Model, draws: np.ndarray, root: np.ndarray, method: tr.Method) -> Posterior:
    phi = of_root(jnp.zeros(len(root)), jnp.asarray(root, float))
    belief = Fitted(positions=draws[None], family="full rank", phi=jax.tree.map(np.asarray, phi), log_weights=None)
    found = {"gain": 0.0, "gain error": 0.0, "steps": 1000, "evaluations": 1000}
    return Posterior(model, None, method, 0, belief, found)


def cross(size: int, count: int, thin: float) -> np.ndarray:
    """(count, size) sds of bars along the first axes."""
    return np.where(np.eye(size)[:count] > 0, 1.0, thin)


def rotation(size: int) -> np.ndarray:
    return stats.ortho_group(size, seed=size).rvs()


CASES = {
    "cross": (cross(2, 2, 0.05), np.ones(2) / 2, np.eye(2)),
    "turned": (cross(2, 2, 0.02), np.ones(2) / 2, rotation(2)),
    "of other lengths": (np.array([[1.0, 0.05], [0.05, 3.0]]), np.array([0.8, 0.2]), np.eye(2)),
    "three of five": (cross(5, 3, 0.05), np.array([0.6, 0.3, 0.1]), rotation(5)),
    "planes": (np.array([[1.0, 1.0, 0.05, 0.05], [0.05, 0.05, 1.0, 1.0]]), np.ones(2) / 2, np.eye(4)),
    "two of twenty": (cross(20, 2, 0.1), np.ones(2) / 2, np.eye(20)),
}


@pytest.mark.test("cross", "two of twenty")
@pytest.mark.parametrize("case", CASES)
def test_draws_in_one_bar_are_rejected(case):
    """Exact draws of the first bar alone, whose normal is q: they match the density wherever they are."""
    widths, shares, turn = CASES[case]
    root = np.linalg.cholesky(turn @ np.diag(widths[0] ** 2) @ turn.T)
    draws = np.random.default_rng(1).standard_normal((4000, len(turn))) @ root.T
    checks = posterior_of(bars(widths, shares, turn), draws, root, tr.FullRank()).verify().report().checks
    assert any(c.name in ("means and sds", "modes") and c.verdict == "reject" for c in checks)


def test_the_arm_of_a_cross_is_its_other_bar():
    """Around a point of the second bar, the normal is this bar's, exactly."""
    widths, shares, turn = CASES["turned"]
    target = Target(bars(widths, shares, turn))
    covariances = [turn @ np.diag(w**2) @ turn.T for w in widths]
    root = np.linalg.cholesky(covariances[0])
    point = turn @ np.array([0.001, 1.2])
    path = climbs.Path(np.stack([np.zeros(2), point]), target.at(None, np.stack([np.zeros(2), point])))
    (arm,) = arms.find_arms(target, None, path, np.zeros(2), root, [])
    np.testing.assert_allclose(arm.root @ arm.root.T, covariances[1], rtol=0.01, atol=1e-4)
    np.testing.assert_allclose(arm.position, 0, atol=0.02)


def test_a_normal_has_no_arms():
    """Points of its climbs never exceed the normal itself, and an arm without a finite curvature is left out."""
    target = Mock(spec=Target, at=lambda rows, z: -np.sum(z**2, 1) / 2, look=lambda rows, z: (z[:, 0], np.nan * z))
    points = np.random.default_rng(0).standard_normal((50, 2))
    path = climbs.Path(points, target.at(None, points))
    assert not arms.find_arms(target, None, path, np.zeros(2), np.eye(2), [])
    higher = path._replace(values=path.values + 20 * (points[:, 0] > 0))
    assert not arms.find_arms(target, None, higher, np.zeros(2), np.eye(2), [])
    assert not arms.find_arms(target, None, path, np.zeros(51), np.eye(51), [])


def test_where_the_density_hardly_bends_an_arm_is_as_long_as_the_way():
    """Log p = −|z₁| − z₂²/2 has no curvature along z₁: the sd there is one to two distances from the centre."""

    def look(rows, z):
        return -np.abs(z[:, 0]) - z[:, 1] ** 2 / 2, np.stack([-np.sign(z[:, 0]), -z[:, 1]], 1)

    target = Mock(spec=Target, look=look, at=lambda rows, z: look(rows, z)[0])
    arm = arms._arm(target, None, np.array([9.0, 0.5]), -9.125, np.zeros(2), np.eye(2))
    assert arm is not None and 9 <= arm.root[0, 0] <= 20
    assert arm.root[1, 1] == pytest.approx(1) and abs(arm.position[1]) < 1e-6


@pytest.mark.parametrize("twist", [3.0, 1e3, 1e5, 1e9])
def test_an_indefinite_curvature_has_a_normal_or_none(twist):
    """Log p = −twist z₁ z₂ − (z₁² + z₂²)/2 is a saddle: rounding must not make its covariance indefinite."""
    precision = np.array([[1.0, twist, 0.3], [twist, 1.0, 0.0], [0.3, 0.0, 1e-7]])

    def look(rows, z):
        return -np.einsum("ni,ij,nj->n", z, precision, z) / 2, -z @ precision

    target = Mock(spec=Target, look=look, at=lambda rows, z: look(rows, z)[0])
    arm = arms._arm(target, None, np.array([1.0, 2.0, -1.0]), 0.0, np.zeros(3), np.diag([1e-3, 1.0, 1e3]))
    assert (arm is None) == (twist > 1e6)
    if arm is not None:
        assert np.all(np.isfinite(arm.root)) and np.all(np.diag(arm.root) > 0)
        assert np.isfinite(arms._normal_at(arm, np.ones((1, 3)))).all()
