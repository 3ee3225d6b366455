"""Rows over devices: laid evenly, summed where they lie; a run has the same bits over any number of devices."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Scores, assert_holds, broken, error

import tractable as tr
from tractable.core.errors import SettingsError
from tractable.core.model import Batch
from tractable.core.sums import Expected
from tractable.engine.sharding import OverDevices, over
from tractable.latent import em_climb
from tractable.latent.em import chunked, expected
from tractable.latent.mixture import Gaussians
from tractable.models import bayesian_gaussian_mixture, gaussian_mixture

pytestmark = pytest.mark.test

RNG = np.random.default_rng(3)
N = 91  # neither 4 nor 3 divides it
X = np.where(RNG.random((N, 1)) < 0.4, [-2.0, 0.0], [1.5, 1.0]) + RNG.normal(size=(N, 2))
MIXTURE = gaussian_mixture(2, 2)
E_STEP = jax.jit(MIXTURE.e_step)
THETA = Gaussians(jnp.array([0.4, 0.6]), jnp.array([[-1.0, 0.0], [1.0, 0.5]]), jnp.stack([jnp.eye(2)] * 2))
HERE = jax.devices()


def same(a: Any, b: Any, name: str, tolerance: float = 1e-9) -> Scores:
    """Leaf by leaf, relative to the largest number where that exceeds one."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True)
    return {
        f"{name} {jax.tree_util.keystr(path)}": error(x, y, tolerance * max(1.0, float(np.abs(np.asarray(y)).max())))
        for (path, x), y in pairs
    }


def rows_over(count: int) -> OverDevices:
    """Rows over devices; added in XLA's order where no fixed one covers the devices."""
    return over(count, "row", reproducible=count in (1, 2, 4, 8))


def sums_law(spread_over: Callable, count: int) -> Scores:
    """The E-step over devices is the whole one: whole and by chunks, with weights and without, y alone and (y, x)."""
    scores: Scores = {}
    weights = RNG.integers(0, 3, N).astype(float)
    for name, mask in (("plain", None), ("weighted", weights)):
        whole = E_STEP(THETA, Batch((X, None), jnp.ones(N) if mask is None else jnp.array(mask), N))
        for chunk in (5, 1000):
            spread = spread_over(count)
            rows, laid = spread.lay((X, None), mask)
            e_step = jax.jit(spread.sum_rows(chunked(MIXTURE.e_step, chunk)))
            scores |= same(e_step(THETA, Batch(rows, laid, N)), whole, f"{name} {chunk}")
    file = expected(
        spread_over(count).sum_rows(MIXTURE.e_step), THETA, tr.Data(X), chunk=30, place=spread_over(count).lay
    )
    return scores | same(file, E_STEP(THETA, Batch((X, None), jnp.ones(N), N)), "file")


class Counted(OverDevices):
    """The rows that fill up count as well."""

    def lay(self, rows, counts=None):
        laid, counts = super().lay(rows, counts)
        return laid, jnp.maximum(counts, (jnp.arange(len(counts)) >= N).astype(float))


class Alone(OverDevices):
    """Every device keeps its own sums."""

    def sum_rows(self, function):
        right = super().sum_rows(function)
        return lambda theta, batch: jax.tree.map(lambda a: a / self.mesh.size, right(theta, batch))


class Dropped(OverDevices):
    """What does not divide is left out."""

    def lay(self, rows, counts=None):
        laid, counts = super().lay(rows, counts)
        return laid, counts * (jnp.arange(len(counts)) < N // self.shards * self.shards)


def test_one_device_is_a_mesh_too():
    assert_holds(sums_law(rows_over, 1))


def test_too_many():
    with pytest.raises(SettingsError, match="JAX sees"):
        rows_over(len(HERE) + 1)
    with pytest.raises(SettingsError, match="JAX sees"):
        tr.infer(MIXTURE, tr.Data(X), tr.EM(), mesh=len(HERE) + 1)


HIDDEN = tr.LatentModel(
    {"middle": dist.Normal(0.0, 1.0)},
    lambda params: dist.Normal(params["middle"], 1.0),
    lambda params, z: dist.Normal(z, 1.0).expand([2]).to_event(1),
)


@pytest.mark.parametrize("method", [tr.MonteCarloEM(), tr.MAP()], ids=lambda m: m.label)
def test_methods_of_one_device_say_so(method, tmp_path):
    model = HIDDEN if method.label == "monte-carlo-em" else MIXTURE
    with pytest.raises(SettingsError, match=f"{type(method).__name__} runs with its rows on one device"):
        tr.infer(model, tr.Data(X), method, mesh=1, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def gathered(program: str) -> list[int]:
    """Of every collective of a compiled program, how many numbers a device holds once it is done."""
    shapes = re.findall(r"= f64\[([\d,]*)\]\S* (?:all-gather|all-reduce|all-to-all|collective-permute)", program)
    return [int(np.prod([int(n) for n in shape.split(",")])) for shape in shapes]


def four() -> None:
    """What is looked at where there are four devices."""
    import tempfile
    import warnings
    from pathlib import Path

    import numpyro.distributions as dist

    warnings.simplefilter("ignore")
    assert len(jax.devices()) == 4
    assert_holds(sums_law(rows_over, 4) | sums_law(rows_over, 3))
    for wrong in (Counted, Alone, Dropped):
        assert broken(sums_law(lambda count, wrong=wrong: wrong(rows_over(count).mesh, True), 4)), wrong

    # Rows that fill up are rows that were there: a likelihood may know no zero.
    def logs(theta: Any, batch: Batch) -> Expected:
        return Expected(jnp.sum(batch.mask), jnp.sum(batch.mask * jnp.log(batch.data[0])))

    rows, mask = rows_over(4).lay((np.array([2.0, 3.0]), None))
    found = rows_over(4).sum_rows(logs)(THETA, Batch(rows, mask, 2))
    assert_holds({"log": error(found.log_likelihood, np.log(6), 1e-12), "count": error(found.statistics, 2, 1e-12)})

    # Only sums travel: no device ever holds all rows.
    spread = rows_over(4)
    rows, mask = spread.lay((X, None))
    assert {s.data.shape for s in rows[0].addressable_shards} == {(24, 2)} and len(rows[0].sharding.device_set) == 4
    step = jax.jit(spread.sum_rows(chunked(MIXTURE.e_step, 7))).lower(THETA, Batch(rows, mask, N))
    sums = sum(np.size(leaf) for leaf in jax.tree.leaves(E_STEP(THETA, Batch((X, None), jnp.ones(N), N))))
    assert set(gathered(step.compile().as_text() or "")) == {4 * sums}

    seen: list[Any] = []
    right = em_climb.segment

    def watched(method, model, spread, size, rows, mask, now, last):
        seen.append(None if mask is None else (rows[0].sharding, mask.sharding))
        return right(method, model, spread, size, rows, mask, now, last)

    em_climb.segment = watched
    cook = tr.LatentModel(
        {"good": dist.Beta(2.0, 2.0), "mean": dist.Normal(jnp.array([4.0, 7.0]), 2.0).to_event(1)},
        lambda p: dist.Bernoulli(p["good"]), lambda p, z: dist.Normal(p["mean"][z], 1.0),
    )  # fmt: skip
    scores: Scores = {}
    for name, model, data, method in (
        ("closed", gaussian_mixture(3, 2), X, tr.EM(starts=2, steps=60, chunk=10)),
        ("by gradient", cook, X[:, 0] + 5, tr.EM(starts=2, steps=20)),
        ("bound", bayesian_gaussian_mixture(2, 2), X, tr.CoordinateAscent(starts=2, steps=40)),
    ):
        seen.clear()
        one, many = (tr.infer(model, tr.Data(data), method, seed=1, mesh=count) for count in (None, 4))
        if name != "by gradient":  # the bits of two devices are those of four
            two = tr.infer(model, tr.Data(data), method, seed=1, mesh=2)
            seen = seen[: len(seen) // 3 * 2]
            assert two.found["objective"] == many.found["objective"], name
            pairs = zip(jax.tree.leaves(two.mean()), jax.tree.leaves(many.mean()), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs), name
        assert all(a is None for a in seen[: len(seen) // 2])
        laid = [a for a in seen if a is not None]
        assert laid and all(len(sharding.device_set) == 4 for pair in laid for sharding in pair)
        assert all(not sharding.is_fully_replicated for pair in laid for sharding in pair)
        scores |= same(many.found["objective"], one.found["objective"], f"{name} objective")
        traces = [np.nan_to_num(p.info["objective"]) for p in (many, one)] if "objective" in one.info else [0, 0]
        scores |= same(traces[0], traces[1], f"{name} trace")
        scores |= same(many.mean(), one.mean(), name, 1e-9 if name == "closed" else 1e-7)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", X)
        one, many = (
            tr.infer(
                MIXTURE, tr.Data(Path(folder) / "x.npy", resident=False), tr.EM(starts=1, steps=15, chunk=25),
                mesh=count,
            )
            for count in (None, 4)
        )  # fmt: skip
        scores |= same(many.mean(), one.mean(), "on file")
    assert_holds(scores)
    print("same")


@pytest.mark.laws
def test_four_devices():
    quick = os.environ.get("XLA_FLAGS", "")
    flags = {"XLA_FLAGS": f"{quick} --xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    program = (
        "import sys, jax; sys.path[:0] = sys.argv[1:]; jax.config.update('jax_enable_x64', True); "
        "jax.config.update('jax_disable_most_optimizations', True); import test_sharding; test_sharding.four()"
    )
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-c", program, here, os.path.dirname(here)],
        env={**os.environ, **flags}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.stdout.endswith("same\n"), done.stderr[-3000:]
