"""Laws of ``start``: chains begin at the results of another method, each at a run of its own."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.engine.method import from_settings
from tractable.engine.session import open_session

pytestmark = pytest.mark.test

HMC: Any = tr.HMC
FAR = tr.Model({"theta": dist.Normal(jnp.array([1000.0, -3000.0]), 1.0)})


def first_points(method: tr.NUTS, seed: int = 0) -> np.ndarray:
    with open_session(method.needed(FAR), None, seed, False) as session:
        return np.asarray(method.begin(session, method.starts(session, session.key))[0])


@pytest.mark.parametrize("kind", [tr.NUTS, tr.HMC, tr.Microcanonical])
def test_chains_begin_where_a_method_ends(kind):
    assert np.max(np.abs(first_points(kind(chains=2)))) < 2
    at_maximum = first_points(kind(chains=2, start=tr.MAP()))
    np.testing.assert_allclose(at_maximum, [[1000.0, -3000.0]] * 2, rtol=1e-5)
    run = kind(chains=2, warmup=0, draws=1)
    first, plain = (
        tr.infer(FAR, None, one, verify=None, progress=False) for one in (replace(run, start=tr.MAP()), run)
    )
    assert np.max(np.abs(np.asarray(first.belief.positions) - [1000.0, -3000.0])) < 10
    assert np.max(np.abs(np.asarray(plain.belief.positions))) < 2900
    assert first.cost.gradients >= np.sum(first.info["gradients"]) + 2  # the climbs count


@pytest.mark.parametrize("start", [tr.NUTS(chains=1, warmup=50, draws=3), tr.Laplace(), tr.DeepEnsemble(size=2)])
def test_every_chain_begins_at_a_run_of_its_own(start):
    points = first_points(tr.HMC(chains=3, start=start))
    assert points.shape == (3, 2)
    distance = np.abs(points[:, None] - points[None]).max(-1)[np.triu_indices(3, 1)]
    assert np.all(distance > 1e-3) == (start.label != "ensemble"), points  # draws differ, maxima do not
    assert np.max(np.abs(points - [1000.0, -3000.0])) < 6
    np.testing.assert_array_equal(points, first_points(tr.HMC(chains=3, start=start)))


@pytest.mark.laws
@pytest.mark.parametrize("start", ["map", "laplace"])
def test_chains_that_begin_at_maxima_of_two_modes_are_not_trusted(start):
    def density(x: jax.Array) -> jax.Array:
        return jnp.logaddexp(-0.5 * jnp.sum(x**2), -0.5 * jnp.sum((x - 20) ** 2))

    model = tr.Model.from_log_density(density, jnp.zeros(2))
    posterior = tr.infer(model, None, HMC(start=start), seed=0, progress=False)
    assert posterior.report().verdict == "reject"


def test_a_start_is_named_or_described_as_in_a_file():
    assert HMC(start="map").start == tr.MAP()
    method = tr.HMC(chains=2, start=tr.MAP(optimizer="adam", steps=7))
    assert method.settings()["start"]["steps"] == 7
    assert from_settings(method.settings()) == method
    assert from_settings(tr.NUTS().settings()) == tr.NUTS()


def test_mistakes():
    with pytest.raises(tr.errors.SettingsError, match="expects a method such as MAP"):
        HMC(start=3)
    with pytest.raises(tr.errors.SettingsError, match="Did you mean 'map'"):
        HMC(start="mpa")
    with pytest.raises(tr.errors.ModelError, match="EM learns a LatentModel"):
        tr.infer(FAR, None, tr.HMC(start=tr.EM()), progress=False)
