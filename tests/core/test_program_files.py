"""A program comes from its file only if everything that it was traced from is the same."""

import collections
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.experimental.compilation_cache import compilation_cache

import tractable as tr
from tractable.core import program_files
from tractable.core.batches import whole
from tractable.core.errors import TractableWarning
from tractable.core.shared import compiled
from tractable.engine.identity import identified, kinds_of, share_programs
from tractable.engine.preflight import value_and_slope

pytestmark = pytest.mark.test

DATA = tr.Data(np.array([0.3, 1.2, -0.4]), given=np.array([1.0, 2.0, 3.0]))
GLOBAL = {"scale": 1.0}


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a cache that is empty at first."""
    before = jax.config.values["jax_compilation_cache_dir"]
    monkeypatch.setenv("TRACTABLE_PROGRAMS", "on")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.reset_cache()
    forget_programs()
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()
    forget_programs()


def forget_programs() -> None:
    """Forget the programs in memory, as a new process would have none."""
    value_and_slope._ready.clear()
    jax.clear_caches()


def slope(model: tr.Model, data: tr.Data | None = DATA) -> tuple[np.ndarray, np.ndarray]:
    """Log posterior and gradient of a model by the program that may come from a file."""
    with identified():
        share_programs(model, kinds_of(data))
        batch = None if data is None else whole(data.first(1000))
        value, gradient = value_and_slope(model, 0.3 * np.ones(model.space.size, np.float32), batch)
    return np.asarray(value), np.asarray(gradient)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def location(constant: float) -> tr.Model:
    return tr.Model(
        {"theta": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["theta"] + constant * x, 1.0)
    )


def of_prior(constant: float) -> tr.Model:
    return tr.Model({"theta": dist.Gamma(2.0, constant)}, lambda params, x: dist.Normal(params["theta"], x))


def of_default(constant: float) -> tr.Model:
    def likelihood(params: Any, x: Any, by: float = constant) -> Any:
        return dist.StudentT(3.0, params["theta"] * by, x)

    return tr.Model({"theta": dist.Normal(0.0, 1.0)}, likelihood)


def of_array(constant: float) -> tr.Model:
    table = np.array([0.0, 1.0, constant], np.float32)

    def likelihood(params: Any, x: Any) -> Any:
        return dist.Normal(params["theta"], jnp.asarray(table)[x.astype(int) - 1] + 1)

    return tr.Model({"theta": dist.Normal(0.0, 1.0)}, likelihood)


def of_partial(constant: float) -> tr.Model:
    def likelihood(constant: float, params: Any, x: Any) -> Any:
        return dist.Laplace(params["theta"] * constant, x)

    return tr.Model({"theta": dist.Normal(0.0, 1.0)}, functools.partial(likelihood, constant))


def of_object(constant: float) -> tr.Model:
    class Likelihood:
        def __call__(self, params: Any, x: Any) -> Any:
            return dist.Normal(params["theta"], x * constant)

    return tr.Model({"theta": dist.Normal(0.0, 1.0)}, Likelihood())


def of_support(constant: float) -> tr.Model:
    return tr.Model(
        lambda params: -jnp.log(constant) - params["x"], position={"x": 0.5 * constant},
        support={"x": dist.constraints.interval(0.0, constant)},
    )  # fmt: skip


def of_custom_gradient(constant: float) -> tr.Model:
    @jax.custom_vjp
    def flat(x: jax.Array) -> jax.Array:
        return x

    flat.defvjp(lambda x: (x, None), lambda _, g: (g * constant,))
    return tr.Model({"theta": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(flat(params["theta"]), x))


def of_one_dtype(constant: float) -> tr.Model:
    """The constant matters only where the rows are whole numbers."""

    def likelihood(params: Any, x: Any) -> Any:
        return dist.Normal(params["theta"], constant if jnp.issubdtype(x.dtype, jnp.integer) else 1.0)

    return tr.Model({"theta": dist.Normal(0.0, 1.0)}, likelihood)


WRITERS = [
    location, of_prior, of_default, of_array, of_partial, of_object, of_support, of_custom_gradient,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS, ids=lambda f: f.__name__)
def test_a_changed_constant_never_meets_anothers_program(write: Callable[[float], tr.Model], folder: Path) -> None:
    data = None if write is of_support else DATA
    results = {constant: slope(write(constant), data) for constant in (2.0, 3.0)}
    names = files(folder).keys()
    assert len(names) == 2, "one file a constant"
    assert not np.array_equal(results[2.0][1], results[3.0][1]) or write is of_support
    for constant, (value, gradient) in results.items():
        forget_programs()
        again = slope(write(constant), data)
        np.testing.assert_array_equal(again[0], value)
        np.testing.assert_array_equal(again[1], gradient)
    assert files(folder).keys() == names, "each found its own"


def test_a_constant_that_matters_for_one_dtype(folder: Path) -> None:
    whole_numbers = tr.Data(DATA.rows[0], given=np.array([1, 2, 3]))
    for constant in (2.0, 3.0):
        slope(of_one_dtype(constant))
    assert len(files(folder)) == 1, "for floating-point rows both compute the same"
    first, second = (slope(of_one_dtype(constant), whole_numbers) for constant in (2.0, 3.0))
    assert first[0] != second[0]
    assert len(files(folder)) == 3


def test_a_global_variable_that_changes_between_two_runs(folder: Path) -> None:
    """The model is the same object: in memory its programs are fixed at its first use, in files never mixed up."""
    model = tr.Model(
        {"theta": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["theta"], x * GLOBAL["scale"])
    )
    other_rows = tr.Data(np.array([0.3, 1.2]), given=np.array([1.0, 2.0]))
    expected = {}
    try:
        slope(model)
        GLOBAL["scale"] = 5.0
        changed = slope(model, other_rows)
        for scale in (1.0, 5.0):
            forget_programs()
            GLOBAL["scale"] = scale
            fresh = tr.Model(model.prior, lambda params, x: dist.Normal(params["theta"], x * GLOBAL["scale"]))
            expected[scale] = slope(fresh, other_rows)
    finally:
        GLOBAL["scale"] = 1.0
    np.testing.assert_array_equal(changed[0], expected[5.0][0])
    assert expected[1.0][0] != expected[5.0][0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1], lambda content: b"", lambda content: b"PK\x03\x04 something else\n\n\n",
        lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
        lambda content: content.replace(b"program 1", b"program 0", 1),
    ],
)  # fmt: skip
def test_damaged_and_foreign_files_are_ignored_with_one_line(damage: Callable[[bytes], bytes], folder: Path) -> None:
    before = slope(location(2.0))
    ((name, content),) = files(folder).items()
    (folder / name).write_bytes(damage(content))
    forget_programs()
    with pytest.warns(TractableWarning, match="is no traced program, or it is damaged") as caught:
        after = slope(location(2.0))
    assert len(caught) == 1
    np.testing.assert_array_equal(before[1], after[1])
    assert program_files._read(folder / name) is not None, "it is written again"


def test_a_folder_that_cannot_be_written_changes_nothing(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    assert np.all(np.isfinite(slope(location(2.0))[1]))


def test_outside_a_run_no_model_has_files(folder: Path) -> None:
    model = location(2.0)
    share_programs(model, kinds_of(DATA))
    value_and_slope(model, np.ones(1, np.float32), whole(DATA.first(10)))
    assert not files(folder)
    assert model.fingerprint() is None


def test_models_that_call_python_have_no_files(folder: Path) -> None:
    def likelihood(params: Any, x: Any) -> Any:
        kind = jax.ShapeDtypeStruct((), jnp.float32)
        scale = jax.pure_callback(lambda x: np.float32(x), kind, jax.lax.stop_gradient(x), vmap_method="sequential")
        return dist.Normal(params["theta"], scale)

    slope(tr.Model({"theta": dist.Normal(0.0, 1.0)}, likelihood))
    assert not files(folder)


def test_containers_of_results(folder: Path) -> None:
    """Known containers come back from a file; a user's own class has no file."""

    @compiled("kind")
    def program(kind: str, x: jax.Array) -> Any:
        own = Pair(x, 2 * x) if kind == "own" else tr.schedules if kind == "none" else whole((x, None))
        return {"a": [x, (x + 1, None)], "own": own, "key": jax.random.key(1)}

    for kind, count in (("library", 1), ("own", 1)):
        expected = program(kind, jnp.ones(2))
        program._ready.clear()
        jax.clear_caches()
        found = program(kind, jnp.ones(2))
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert len(files(folder)) == count
        np.testing.assert_array_equal(jax.random.key_data(found["key"]), jax.random.key_data(expected["key"]))


def test_a_class_that_its_module_does_not_have_is_not_described() -> None:
    """As the info of Gibbs, whose fields are known when it runs."""
    made, hidden = (collections.namedtuple(name, "first") for name in ("Made", "Info"))
    made.__module__ = "tractable.mcmc.gibbs"
    hidden.__module__ = "tractable.mcmc.hamiltonian"  # which has another class of this name
    for value in (made(1), hidden(1), {"a": [made(1)]}):
        with pytest.raises(LookupError):
            program_files.containers(jax.tree.structure(value))


def test_settings_of_jax_are_part_of_the_name(folder: Path) -> None:
    slope(location(2.0))
    with jax.default_matmul_precision("bfloat16"):
        slope(location(2.0))
    with jax.enable_x64(not jax.config.values["jax_enable_x64"]):
        slope(location(2.0))
    assert len(files(folder)) == 3


CODE = """
import sys, jax, numpy as np, numpyro.distributions as dist, tractable as tr
model = tr.Model(
    {"mu": dist.Normal(0, 5), "tau": dist.HalfCauchy(5), "z": dist.StudentT(4, 0, 1).expand([8]).to_event(1)},
    lambda t, x: dist.Normal(t["mu"] + t["tau"] * t["z"][x["school"]], x["sd"]))
sd = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
data = tr.Data(np.arange(8.0) + float(sys.argv[1]), given={"school": np.arange(8), "sd": sd})
posterior = tr.infer(model, data, tr.NUTS(draws=60, warmup=60, chains=2), progress=False)
print(np.asarray(posterior.draws["z"]).tobytes().hex()[:2000], posterior.report().verdict)
"""


@pytest.mark.laws
def test_a_second_process_writes_nothing_and_draws_the_same(tmp_path: Path) -> None:
    """Also with another order of Python's sets, and with other numbers of the same shapes."""

    def run(hash_seed: str, programs: str = "on", numbers: str = "0") -> str:
        cached = {
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", "PYTHONHASHSEED": hash_seed,
            "TRACTABLE_PROGRAMS": programs,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", CODE, numbers], env=os.environ | cached, capture_output=True, text=True, check=True
        )
        return done.stdout

    def there() -> set[str]:
        return {str(path) for path in tmp_path.rglob("*") if not path.name.endswith("-atime")}

    first = run("1")
    written = there()
    assert len(files(tmp_path / "programs")) >= 8
    assert run("2") == first
    assert run("3", numbers="1") != first
    assert there() == written, "neither a program nor its compiled form was written again"
    assert run("1", programs="off") == first, "the same draws as without files, to the last bit"


def test_the_name_covers_the_librarys_sources() -> None:
    assert len([*program_files._sources()]) > 200
