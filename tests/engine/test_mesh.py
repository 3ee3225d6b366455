"""A run over a mesh: the same bits on any number of devices, in one process or in two; bad meshes get a sentence."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.sharding import Mesh, PartitionSpec

import tractable as tr
from tractable.core.batches import Batch, Plan, window
from tractable.core.errors import CheckpointError, SettingsError, TractableWarning
from tractable.engine import checkpoint, run, sharding
from tractable.engine.drawing import chain_keys
from tractable.engine.method import plan_batches
from tractable.engine.placement import ONE_DEVICE
from tractable.engine.sharding import OverDevices, over
from tractable.glm.linear import generalised_linear
from tractable.ladders.amortised import Amortised, Amortising
from tractable.ladders.ladder import Ladder
from tractable.posterior.run_identity import identity
from tractable.posterior.saving import Saver

pytestmark = pytest.mark.test

RNG = np.random.default_rng(5)
N = 203  # neither 16 nor the batches divide it
X = RNG.normal(size=(N, 3))
Y = X @ [1.0, -1.0, 0.5] + 0.3 * RNG.normal(size=N)
DATA = tr.Data(Y, given=X, weights=RNG.integers(0, 3, N).astype(float))
MODEL = tr.Model(
    {"w": dist.Normal(jnp.zeros(3), 2.0).to_event(1), "s": dist.HalfNormal(1.0)},
    lambda params, x: dist.Normal(x @ params["w"], params["s"]),
)


# Two normals whose statistics have a frame that moves with θ, and its bound.
BLOBS = tr.Data(X + 3.0 * RNG.integers(0, 2, (N, 1)), weights=DATA.weights)
ONLINE = (
    (tr.models.gaussian_mixture(2, 3), tr.OnlineEM(batch_size=40, epochs=8, starts=2)),
    (tr.models.bayesian_gaussian_mixture(2, 3), tr.CoordinateAscent(batch_size=40, epochs=8, starts=2)),
)
PIXELS = (RNG.random((N, 5)) < RNG.random((N, 1))).astype(float)
LADDER = tr.models.sigmoid_belief_network(5, (2, 1))
CODES = tr.models.latent_gaussian(5, 1, hidden=(2,))
LADDERS = (
    (LADDER, tr.NVIL(epochs=6, batch_size=40)),
    (LADDER, tr.ReweightedWakeSleep(epochs=6, batch_size=40, samples=2, sleep_phi=0.5)),
    (CODES, tr.AutoEncoding(epochs=6, batch_size=40, free_bits=0.02)),
)


def mesh(chains: int, rows: int) -> Mesh:
    devices = np.array(jax.devices()[: chains * rows]).reshape(chains, rows)
    return Mesh(devices, ("chain", "row"))


def write_rows(folder: str | Path) -> None:
    """The same rows in two files."""
    for name, array in (("x", X), ("y", Y)):
        for part, rows in enumerate((slice(0, 90), slice(90, N))):
            np.save(f"{folder}/{name}{part}.npy", array[rows])


def on_file(folder: str) -> tr.Data:
    """The rows of ``write_rows``, read as batches need them."""
    return tr.Data(f"{folder}/y*.npy", given=f"{folder}/x*.npy", weights=DATA.weights, resident=False)


def numbers(meshed: Any, method: tr.Method, data: tr.Data = DATA, **options: Any) -> np.ndarray:
    options = {"progress": False} | options
    posterior = tr.infer(MODEL, data, method, seed=3, verify=None, mesh=meshed, **options)
    belief: Any = posterior.belief
    position = getattr(belief, "position", None)
    return np.asarray(posterior.unconstrained if position is None else position)


def climbed(ladder: Ladder, method: Amortised, meshed: Any) -> np.ndarray:
    """Where a ladder's climb ends over a mesh, and its trace; the loop alone, for the report would compile more."""
    data = tr.Data(PIXELS, weights=DATA.weights)
    plan, keys = plan_batches(method, data, method.batch_size), chain_keys(jax.random.key(3), 1)
    placement = ONE_DEVICE if meshed is None else over(meshed, "row")
    program = Amortising(ladder, method, placement=placement)
    shape = run.shape(method.epochs * plan.count, 1, 1, 1)
    tuned = {"steps": jnp.asarray(float(shape.group))}
    first = jax.tree.map(lambda a: a[None], method.initial(ladder, jax.random.key(1), PIXELS))
    begun = run.begin(program._replace(placement=ONE_DEVICE), tuned, None, keys, first)
    ended = run.run(run.Loop(program, shape, plan), data, tuned, keys, run.Start(begun), 1, collect=("info",))
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves((ended.states, ended.info))])


def averaged(model: tr.Model, method: tr.Method, meshed: Any, data: tr.Data = BLOBS, **options: Any) -> np.ndarray:
    """Where online EM ends, and its objective."""
    found = tr.infer(model, data, method, seed=3, verify=None, mesh=meshed, progress=False, **options)
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves((found.mean(), found.found["objective"]))])


def predicted(meshed: Any) -> dict[str, np.ndarray]:
    """Of enough rows for several chunks: numbers and their intervals, classes, log densities."""
    rows = tr.Data(np.resize(Y, 3001), given=np.resize(X, (3001, 3)))
    of_number, of_class = (tr.infer(model, data, tr.Laplace(), seed=3, verify=None) for model, data in (
        (MODEL, DATA), (generalised_linear(3, "bernoulli"), tr.Data((Y > 0).astype(int), given=X)),
    ))  # fmt: skip
    told, held = of_number.predict(rows.given, mesh=meshed, draws=200), tr.Data(Y, given=X + 0.01)
    return {
        "mean": told.mean, "upper": told.upper,
        "calibrated": np.asarray(of_number.predict(rows.given, mesh=meshed, draws=50, calibrate=held).upper),
        "classes": np.asarray(of_class.predict(rows.given, mesh=meshed, draws=200).entropy),
        "density": of_number.log_predictive(rows, mesh=meshed, draws=200),
        "pointwise": of_number.log_likelihood(rows, mesh=meshed, draws=50),
    }  # fmt: skip


CAUSES = tr.LatentModel(
    {"mu": dist.Normal(0.0, 3.0), "s": dist.HalfNormal(1.0)},
    latent=lambda params: dist.Normal(params["mu"], 1.0),
    likelihood=lambda params, z: dist.StudentT(4.0, z, params["s"]),
)
MOODS = tr.models.gaussian_mixture(2, 3)


def evidence(meshed: Any, ways: tuple = ("monte-carlo", "importance", "annealed", "sum")) -> dict[str, np.ndarray]:
    """Log weights of the parameters, of rows with counts, and of each row's z, which are summed out or drawn."""
    theta, few = {"mu": jnp.asarray(0.1), "s": jnp.asarray(0.7)}, {"chains": 32, "temperatures": 20, "pilot": 64}
    moods = jax.tree.map(jnp.asarray, MOODS.example(jax.random.key(1)))
    asked = {
        "monte-carlo": (MODEL, DATA, {"draws": 200}),
        "annealed": (MODEL, DATA, few | {"reverse": False}),
        "importance": (CAUSES, Y, {"draws": 100, "theta": theta}),
        "annealed rows": (CAUSES, Y, few | {"theta": theta}),
        "sum": (MOODS, X, {"theta": moods}),
    }
    return {
        name: tr.log_evidence(model, rows, method, progress=False, mesh=meshed, **more).log_weights
        for name, (model, rows, more) in asked.items() if name.split()[0] in ways
        for method in [None if name == "sum" else name.split()[0]]
    }  # fmt: skip


def quickly(there: bool, function: Callable, *args: Any) -> Any:
    """``function(*args)``, compiled quickly if so: for what need not have the bits of what every pass of XLA makes."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", before or there)
    try:
        return function(*args)
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def ladders_law() -> dict[str, tuple[bool, float]]:
    """Of each method of ladders, whether 2 and 4 devices give equal bits, and how far no mesh is from them."""
    found = {}
    for ladder, method in LADDERS:
        quick = ladder is not CODES
        two, four, alone = (quickly(quick or count is None, climbed, ladder, method, count) for count in (2, 4, None))
        far = float(np.max(np.abs(two - alone) / np.maximum(1, np.abs(alone))))
        found[method.label] = np.array_equal(two, four), far
    return found


def went_on() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """An extended run, over other devices than it began on, and one that was as long at once; scores of a mixture."""
    walk, options = tr.RandomWalk(draws=20, warmup=50, chains=2), {"seed": 3, "verify": None, "progress": False}
    begun = tr.infer(MODEL, DATA, walk, mesh=mesh(2, 4), **options)
    longer = begun.extend(15, mesh=mesh(1, 2), verify=None, progress=False)
    whole = tr.infer(MODEL, DATA, replace(walk, draws=35), mesh=mesh(2, 4), **options)
    mixture = tr.estimators.GaussianMixture(2, random_state=0).fit(X)
    return {
        "extended": (longer.unconstrained, whole.unconstrained),
        "scores": (mixture.score_samples(X, mesh=2), mixture.score_samples(X, mesh=8)),
    }


def of_device(self: Batch, key: jax.Array) -> jax.Array:
    """A mutant of ``Batch.keys``: keys of the device, and of a row's place on it."""
    there = self.places is not None
    key = jax.random.fold_in(key, jax.lax.axis_index("row")) if there else key
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(self.mask.shape[0]))


def eight() -> None:
    """What is looked at where there are eight devices."""
    warnings.simplefilter("ignore")
    assert len(jax.devices()) == 8
    # Every pass of XLA for one method of each kind of loop: chains, noisy chains, climbs, ladders. The others' sums
    # take the same road, and are compiled quickly.
    for fully, method, meshes in (
        (True, tr.NUTS(draws=20, warmup=30, chains=2), (mesh(2, 4), mesh(1, 2))),
        (False, tr.NUTS(draws=20, warmup=30, chains=4), (2, 4)),
        (False, tr.MALA(draws=20, warmup=50, chains=2), (mesh(1, 2), mesh(2, 4))),
        (False, tr.RandomWalk(draws=20, warmup=50, chains=2), (mesh(1, 2), mesh(2, 4))),
        (True, tr.SGLD(draws=20, warmup=50, chains=2, batch_size=50), (mesh(1, 2), mesh(2, 4))),
        (True, tr.MeanField(batch_size=40, steps=600), (2, 8)),
        (False, tr.MAP(optimizer="adam", steps=100), (2, 8)),
    ):
        first, *others = (quickly(not fully, numbers, each, method) for each in meshes)
        for each, other in zip(meshes[1:], others, strict=True):
            np.testing.assert_array_equal(other, first, err_msg=f"{method.label} over {each}")

    walk = tr.SGLD(draws=20, warmup=50, chains=2, batch_size=50)
    with tempfile.TemporaryDirectory() as folder:
        write_rows(folder)
        rows = on_file(folder)
        first, *others = (quickly(True, numbers, each, walk, rows) for each in (mesh(1, 2), mesh(2, 4), None))
        np.testing.assert_array_equal(others[0], first)
        np.testing.assert_allclose(others[1], first, atol=1e-9)  # all rows, each counted as it is without a mesh
    for name, (same, far) in ladders_law().items():
        assert same and far < 1e-9, (name, same, far)
    jax.config.update("jax_disable_most_optimizations", True)  # from here on
    for model, method in ONLINE:
        two, four, alone = (averaged(model, method, count) for count in (2, 4, None))
        np.testing.assert_array_equal(two, four, method.label)
        np.testing.assert_allclose(two, alone, rtol=1e-9, err_msg=method.label)
    two, four, alone = (predicted(count) for count in (2, 4, None))
    for name, told in two.items():
        np.testing.assert_array_equal(told, four[name], name)
        np.testing.assert_allclose(told, alone[name], rtol=1e-9, err_msg=name)
    two, eight, alone = (evidence(count) for count in (2, 8, None))
    for name, told in two.items():
        np.testing.assert_array_equal(told, eight[name], name)
        np.testing.assert_allclose(told, alone[name], rtol=1e-6, err_msg=name)
    for name, (there, elsewhere) in went_on().items():
        np.testing.assert_array_equal(there, elsewhere, name)
    right, Batch.keys = Batch.keys, of_device
    ladder, other = CODES, replace(LADDERS[2][1], learning_rate=0.02)  # for which no program is compiled yet
    assert not np.array_equal(*(climbed(ladder, other, count) for count in (2, 4)))
    Batch.keys = right

    # A sum in an order of the devices' own is not the same: the law would see it.
    rows = RNG.normal(size=(8 * sharding.SHARDS, 1000)).astype(np.float32)

    def added(count: int, reproducible: bool) -> np.ndarray:
        lying = over(count, "row", reproducible)
        split, whole = (PartitionSpec("row"),), PartitionSpec()
        mine = lying.map_devices(
            lambda a: lying._add_shards(a.reshape(lying.shards_here, -1, 1000).sum(1)), split, whole
        )
        return np.asarray(jax.jit(mine)(lying.spread(rows, "row")))

    first = added(1, True)
    for small in (0, 1 << 20):  # in slices, and all at once
        sharding.SMALL = small
        assert all(np.array_equal(added(count, True), first) for count in (2, 4, 8))
    assert not all(np.array_equal(added(count, False), first) for count in (2, 4, 8))
    np.testing.assert_allclose(added(3, False) if len(rows) % 3 == 0 else added(8, False), first, atol=1e-4)

    # Saved on four devices, resumed on two.
    with tempfile.TemporaryDirectory() as folder:
        walk = tr.RandomWalk(draws=60, warmup=50, chains=4)
        whole = numbers(4, walk)
        said: list[int] = []

        def stop(phase: str, done: int, of: int) -> None:
            said.append(done)
            if phase == "drawing" and done >= 20:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            numbers(4, walk, checkpoint=Path(folder) / "run", progress=stop)
        np.testing.assert_array_equal(numbers(2, walk, checkpoint=Path(folder) / "run"), whole)
    print("same")


# Over chains, over rows, and long enough to be stopped.
ALL = (
    tr.NUTS(draws=20, warmup=30, chains=2), tr.MAP(optimizer="adam", steps=100),
    tr.RandomWalk(draws=300, warmup=50, chains=2),
)  # fmt: skip
FROM_FILE = tr.MAP(optimizer="adam", batch_size=50, steps=100)


def stopped(process: int, runs: Path) -> None:
    """A run that process 1 alone is asked to stop, which both leave saved."""
    (runs / f"id{process}").write_text(str(os.getpid()))

    def stop(phase: str, done: int, of: int) -> None:  # only process 0 hears of progress
        if phase == "drawing" and (runs / "id1").exists():  # once: a second signal ends a process at once
            os.kill(int((runs / "id1").read_text()), signal.SIGTERM)
            (runs / "id1").unlink()
            time.sleep(0.2)

    if process == 0:
        with pytest.warns(TractableWarning, match="was interrupted"):
            numbers("auto", ALL[2], checkpoint=runs / "run2", progress=stop)
        return
    with pytest.raises(SystemExit) as left:
        numbers("auto", ALL[2], checkpoint=runs / "run2")
    assert left.value.code == 143


def unwritten(process: int, runs: Path) -> None:
    """A run whose disk is full for process 0: both end, each with its draws."""
    right, left = checkpoint.save, iter(range(2))  # the folder is claimed, and the first draws saved

    def full(*args: Any, **options: Any) -> Path:
        if next(left, None) is None:
            raise CheckpointError("No space is left.")
        return right(*args, **options)

    checkpoint.save = full if process == 0 else right
    sentence = "No space" if process == 0 else "its own message says why"
    with pytest.raises(CheckpointError, match=sentence) as told:
        numbers("auto", ALL[2], checkpoint=runs / "full")
    checkpoint.save = right
    assert 0 < told.value.partial.count < 300
    np.save(runs / f"full-{process}.npy", told.value.partial.unconstrained)


def of_process(process: int, folder: str) -> None:
    """What each of two processes runs, and process 2 by itself on as many devices."""
    warnings.simplefilter("ignore")
    assert (len(jax.devices()), jax.process_count()) == (2, 1 if process == 2 else 2)
    runs = Path(folder)
    if process == 2:
        for number, method in enumerate(ALL):
            np.save(runs / f"{number}-2.npy", numbers("auto", method))
        np.save(runs / "file-2.npy", numbers(mesh(1, 2), FROM_FILE, on_file(folder)))
        np.savez(runs / "evidence-2.npz", **evidence(2, ("monte-carlo", "importance")))
        return
    stopped(process, runs)
    unwritten(process, runs)
    for number, method in enumerate(ALL):
        found = numbers("auto", method, checkpoint=runs / f"run{number}")
        np.save(runs / f"{number}-{process}.npy", found)
    np.save(runs / f"file-{process}.npy", numbers(mesh(1, 2), FROM_FILE, on_file(folder)))
    np.savez(runs / f"evidence-{process}.npz", **evidence(2, ("monte-carlo", "importance")))
    np.testing.assert_array_equal(numbers("auto", ALL[0], checkpoint=runs / "run0"), np.load(runs / "0-0.npy"))
    print("done", flush=True)


def another(call: str, devices: int = 1, first: str = "pass") -> subprocess.Popen:
    """Another Python with as many devices, which does something first and runs a function of this file."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    few = jax.config.read("jax_disable_most_optimizations")
    program = (
        "import sys, jax; sys.path[:0] = sys.argv[1:]; jax.config.update('jax_enable_x64', True); "
        f"jax.config.update('jax_disable_most_optimizations', {few}); {first}; import test_mesh; test_mesh.{call}"
    )
    here = os.path.dirname(__file__)
    return subprocess.Popen(
        [sys.executable, "-c", program, here, os.path.dirname(here)], env={**os.environ, "XLA_FLAGS": flags},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.laws
@pytest.mark.computes
def test_bits_do_not_depend_on_the_number_of_devices():
    out, errors = another("eight()", 8).communicate(timeout=600)
    assert out.endswith("same\n"), errors[-3000:]


@pytest.mark.laws
def test_two_processes_have_the_bits_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    write_rows(tmp_path)
    running = []
    for process in range(2):
        join = f"jax.distributed.initialize('127.0.0.1:{port}', 2, {process}, heartbeat_timeout_seconds=20)"
        running.append(another(f"of_process({process}, {str(tmp_path)!r})", first=join))
    try:
        said = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(out.endswith("done\n") for out, _ in said), [errors[-2000:] for _, errors in said]
    errors = another(f"of_process(2, {str(tmp_path)!r})", 2).communicate(timeout=300)[1]
    for name in (*range(len(ALL)), "file"):
        first, second, alone = (np.load(tmp_path / f"{name}-{process}.npy") for process in range(3))
        np.testing.assert_array_equal(first, alone, errors[-2000:])
        np.testing.assert_array_equal(second, alone)
    np.testing.assert_array_equal(*(np.load(tmp_path / f"full-{process}.npy") for process in range(2)))
    first, second, alone = (np.load(tmp_path / f"evidence-{process}.npz") for process in range(3))
    for name in alone:
        np.testing.assert_array_equal(first[name], alone[name], name)
        np.testing.assert_array_equal(second[name], alone[name], name)


@pytest.mark.parametrize(
    ("meshed", "sentence"),
    [
        (0, "JAX sees"),
        (len(jax.devices()) + 1, "JAX sees"),
        ("all", "a number of devices, 'auto'"),
        (True, "a number of devices, 'auto'"),
        (Mesh(np.array(jax.devices()[:1]), ("model",)), "axes are 'chain' and 'row'"),
    ],
)
def test_bad_meshes(meshed, sentence):
    with pytest.raises(SettingsError, match=sentence):
        numbers(meshed, tr.NUTS())


@pytest.mark.quick
def test_batches_from_file_go_round_its_end(tmp_path):
    write_rows(tmp_path)
    starts = np.array([[3], [N - 2]])
    y = on_file(str(tmp_path)).read(starts, 2 * N, slice(N - 5, 2 * N)).y
    np.testing.assert_array_equal(y, Y[(starts[..., None] + np.arange(N - 5, 2 * N)) % N])


@pytest.mark.laws
def test_what_is_not_of_rows_by_themselves_lies_on_one_device():
    chains = Mesh(np.array(jax.devices()[:1]), ("chain",))
    found = tr.infer(MODEL, DATA, tr.MAP(), verify=None, progress=False)
    with pytest.raises(SettingsError, match="got one with the axis 'chain' alone"):
        found.predict(X, mesh=chains)
    np.testing.assert_allclose(found.predict(X, mesh=1).mean, found.predict(X).mean, rtol=1e-9)
    of_groups = tr.Model(
        {"m": dist.Normal(0.0, 1.0)},
        lambda p: dist.Normal(p["a"], 1.0),
        local=lambda p: {"a": dist.Normal(p["m"], 1.0)},
    )
    grouped = tr.infer(of_groups, tr.Data(Y, group=np.arange(N) % 9), tr.MAP(), verify=None, progress=False)
    for ask in (grouped.predict, lambda mesh: grouped.log_predictive(Y, mesh=mesh), grouped.log_likelihood):
        with pytest.raises(SettingsError, match="without groups"):
            ask(mesh=1)


def test_rows_need_rows():
    rows = Mesh(np.array(jax.devices()[:1]), ("row",))
    with pytest.raises(SettingsError, match="got no data"):
        tr.infer(tr.Model.from_log_density(lambda x: -(x**2), jnp.zeros(())), None, tr.NUTS(), mesh=rows)


@pytest.mark.laws
def test_a_run_goes_on_over_the_kind_of_mesh_that_it_began_over(tmp_path):
    """No mesh, chains alone, rows in a fixed order and rows in any order have four kinds of last bits."""
    one, walk = np.array(jax.devices()[:1]), tr.NUTS(draws=4, warmup=4, chains=1)
    rows, both = Mesh(one, ("row",)), Mesh(one.reshape(1, 1), ("chain", "row"))

    def refused(begun: str, meshed: Any, **options: Any) -> str:
        folder = tmp_path / begun
        Saver(folder, identity(MODEL, DATA, walk, 3) | {"mesh": begun})  # a run that has just begun
        with pytest.raises(CheckpointError, match="holds another run") as caught:
            numbers(meshed, walk, checkpoint=folder, **options)
        return str(caught.value)

    assert "mesh: saved 'none', now 'over chains'" in refused("none", 1)
    assert "mesh: saved 'none', now 'over rows, reproducible'" in refused("none", rows)
    assert "mesh: saved 'over chains', now 'none'" in refused("over chains", None)
    assert "mesh: saved 'over chains', now 'over rows, reproducible'" in refused("over chains", both)
    begun, now = "over rows, reproducible", "now 'over rows, not reproducible'"
    assert now in refused(begun, rows, reproducible=False)
    assert "now 'none'" in refused(begun, None)

    # What ``infer`` records is what it asks for; folders that record nothing go on as they did.
    whole = numbers(rows, walk, checkpoint=tmp_path / "rows")
    np.testing.assert_array_equal(numbers(both, walk, checkpoint=tmp_path / "rows"), whole)
    with pytest.raises(CheckpointError, match="mesh: saved 'over rows, reproducible', now 'none'"):
        numbers(None, walk, checkpoint=tmp_path / "rows")
    Saver(tmp_path / "old", identity(MODEL, DATA, walk, 3))
    np.testing.assert_array_equal(numbers(rows, walk, checkpoint=tmp_path / "old"), whole)


@pytest.mark.quick
def test_chains_are_spread_evenly():
    meshed = Mesh(np.array(jax.devices() * 4)[:4].reshape(4, 1), ("chain", "row"))
    with pytest.raises(SettingsError, match="3 chains cannot be spread evenly over 4 devices"):
        over(meshed, "chain", chains=3)
    assert over(meshed, "chain", chains=8).mesh.shape["chain"] == 4


def test_a_mean_field_by_quadrature_says_that_its_mesh_does_nothing():
    linear = generalised_linear(3, "normal")
    with pytest.warns(TractableWarning, match="mesh= has no effect.*solver='stochastic'"):
        over_one = tr.infer(linear, tr.Data(Y, given=X), tr.MeanField(), mesh=1, verify=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = tr.infer(linear, tr.Data(Y, given=X), tr.MeanField(), verify=None)
    np.testing.assert_array_equal(over_one.unconstrained, plain.unconstrained)


@pytest.mark.quick
def test_rows_of_which_no_order_is_fixed():
    with pytest.raises(SettingsError, match="1, 2, 4 or 8 devices"):
        over(Mesh(np.array(jax.devices() * 3)[:3], ("row",)), "row")
    assert over(Mesh(np.array(jax.devices() * 3)[:3], ("row",)), "row", reproducible=False).shards == 3


def test_windows_are_those_of_one_device():
    """A batch over a mesh holds the rows that it holds on one device, each once, at every start."""
    lying, data = over(1, "row"), tr.Data(np.arange(37.0), weights=np.arange(37) % 3)
    for size in (5, 16, 37):
        plan = Plan(37, size)
        laid, plain = lying.windows(data, plan.width), data.windows(plan.width)

        def cut(start: Any, laid: Any, plan: Plan = plan) -> Any:
            return lying.window(laid, plan, start, jnp.array(plan.width), 0)

        split = jax.jit(lying.map_devices(cut, (PartitionSpec(), PartitionSpec("row")), PartitionSpec()))
        for start in (0, 1, 15, 36):
            many = split(jnp.array(start), laid)
            one = window(plain, plan, jnp.array(start), jnp.array(plan.width), 0)
            pairs = [sorted(zip(np.ravel(b.data[0]), np.ravel(b.mask), strict=True)) for b in (many, one)]
            assert [p for p in pairs[0] if p[1]] == [p for p in pairs[1] if p[1]]
            assert float(many.scale) == float(one.scale)


def unequal(right: OverDevices) -> list[bool]:
    """Whether a mutant's gradient differs from the right one."""
    parts = jnp.asarray(RNG.normal(size=(right.shards_here, 7)))

    def gradient(lying: OverDevices) -> np.ndarray:
        def value(theta: jax.Array) -> jax.Array:
            return lying.summed(lambda t, part: jnp.sum(jnp.sin(t * part)), theta, parts)

        return np.asarray(
            jax.jit(lying.map_devices(lambda t: jax.grad(value)(t), (PartitionSpec(),), PartitionSpec()))(
                jnp.array(0.3)
            )
        )

    exact = float(np.sum(np.asarray(parts) * np.cos(0.3 * np.asarray(parts))))
    np.testing.assert_allclose(gradient(right), exact, rtol=1e-12)

    class OneShard(OverDevices):
        def _add_shards(self, sums):
            return jax.tree.map(lambda a: a[0], sums)

    class Doubled(OverDevices):
        def summed(self, function, params, parts):
            return jax.tree.map(lambda a: 2 * a, super().summed(function, params, parts))

    return [not np.allclose(gradient(wrong(right.mesh, True)), exact, rtol=1e-9) for wrong in (OneShard, Doubled)]


def test_gradients_of_sums_over_shards():
    assert all(unequal(over(1, "row")))
