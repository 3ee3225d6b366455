"""What a first answer waits for: imports, and programs that were compiled before."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tractable.core import shared
from tractable.core.errors import SettingsError
from tractable.core.shared import COMPILE_FASTEST, FEW, compiled
from tractable.engine import cache

pytestmark = pytest.mark.laws


def said(code: str, **environment: str) -> list[str]:
    """The words that a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "command", [["--help"], ["report", "nosuch"], ["fit", "nosuch.csv"], ["predict", "no", "a.csv"]]
)
def test_what_needs_no_model_waits_for_no_jax(command: list[str], tmp_path: Path) -> None:
    code = f"""
import sys
from tractable.cli import main
sys.argv = ["tractable", *{command!r}]
try:
    main()
except SystemExit:
    pass
print("heavy:", *({{"jax", "pandas", "scipy", "sklearn"}} & set(sys.modules)))
"""
    assert said(code)[-1] == "heavy:"


def test_infer_waits_for_no_tables_pages_or_other_methods_and_compiles_few_programs() -> None:
    """The number of programs may only fall; HMC has those of NUTS, and they compile faster."""
    heavy = ["arviz_stats", "blackjax", "equinox", "matplotlib", "pandas", "scipy.stats", "sklearn", "xarray", "zarr"]
    heavy += ["joblib", "optax", "tractable.gallery", "tractable.latent", "tractable.points", "tractable.vi"]
    code = f"""
import sys, jax, numpy as np, numpyro.distributions as dist, tractable as tr
from tractable.core import shared
tr.infer, tr.models, tr.NUTS
shared._refused_options()  # asks XLA for its options, by programs of a number
print(*({{*{heavy!r}}} & set(sys.modules)))
model, programs = tr.Model(prior={{"p": dist.Beta(5, 5)}}, likelihood=lambda t: dist.Bernoulli(t["p"])), []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **about: programs.append(about) if event.endswith("backend_compile_duration") else None
)
data = tr.Data(np.tile([1, 0, 1, 1], 25))
posterior = tr.infer(model, data, tr.HMC(warmup=50, draws=50), progress=False)
print("compiled", posterior.count, len(programs), posterior.report().verdict)
print("late", *({{*{heavy!r}}} - {{"blackjax", "optax"}} & set(sys.modules)))  # optax by blackjax
"""
    *early, _, draws, programs, _, late = said(code)
    assert early == [] and draws == "50" and late == "late"
    assert int(programs) <= 24


def test_a_fit_of_a_table_compiles_few_programs(tmp_path: Path) -> None:
    """The number of programs may only fall: what is computed once is computed by NumPy."""
    generator = np.random.default_rng(0)
    x, group = generator.normal(size=(300, 2)).round(3), generator.integers(0, 3, 300)
    y = generator.negative_binomial(2, 2 / (2 + np.exp(1 + 0.5 * x[:, 0] + 0.3 * group)))
    rows = [f"{a},{b if b < 1.5 else ''},{'abc'[g]},{n}" for (a, b), g, n in zip(x, group, y, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,group,y", *rows]))
    code = f"""
import sys, jax
from tractable.cli import main
from tractable.core import shared
shared._refused_options()  # asks XLA for its options, by programs of a number
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **about: programs.append(about) if event.endswith("backend_compile_duration") else None
)
table, out = {str(tmp_path / "table.csv")!r}, {str(tmp_path / "out")!r}
sys.argv = ["tractable", "fit", table, "--target", "y", "--missing", "impute", "--out", out]
try:
    main()
except SystemExit:
    pass
print("programs", len(programs))
"""
    words = said(code, XDG_CACHE_HOME=str(tmp_path))
    assert "negative-binomial" in " ".join(words) and (tmp_path / "out" / "report.html").exists()
    assert int(words[-1]) <= 15


@pytest.mark.test
def test_options_that_xla_no_longer_knows_are_left_out(monkeypatch) -> None:
    """JAX 0.12 refuses one that 0.11.0 has, and with it every program that asked for it."""
    monkeypatch.setattr(shared, "COMPILE_FASTEST", COMPILE_FASTEST | {"xla_cpu_no_such_option": True})
    shared._refused_options.cache_clear()
    try:
        assert "xla_cpu_no_such_option" in shared._refused_options()
        assert "xla_backend_optimization_level" not in shared._refused_options()
        asked = compiled(if_few=shared.COMPILE_FASTEST)(lambda x: x + 1)
        assert float(asked(jnp.ones(()))) == 2
    finally:
        shared._refused_options.cache_clear()


def test_functions_are_not_hidden_by_files() -> None:
    code = "import tractable.inference, tractable.comparison, tractable.selection, tractable as tr;"
    assert (
        said(code + "print(*(callable(f) for f in (tr.infer, tr.compare, tr.select, tr.load, tr.calibrate)))")
        == ["True"] * 5
    )


def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    code = f"""
import jax, jax.numpy as jnp, tractable as tr
from collections import Counter
seen = Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rsplit("/", 1)[-1]]))
tr.cache({str(tmp_path)!r})
jax.jit(lambda x: jnp.sin(x) * 2)(1.0)
print(seen["cache_hits"], seen["cache_misses"])
"""
    first, second = said(code), said(code)
    assert int(first[0]) == 0 and int(first[1]) > 0, "all was new"
    assert second == [first[1], "0"], "and all was found"


@pytest.mark.quick
def test_what_was_written_first_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age in range(10):
        path = tmp_path / str(age)
        path.write_bytes(bytes(100))
        os.utime(path, (age, age))
    monkeypatch.setattr(cache, "MOST", 1000)
    cache._prune(tmp_path)
    assert len(list(tmp_path.iterdir())) == 10, "all may stay"
    monkeypatch.setattr(cache, "MOST", 800)
    cache._prune(tmp_path)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [4, 5, 6, 7, 8, 9]


@pytest.mark.quick
def test_what_was_cut_short_by_a_kill_is_deleted(tmp_path: Path) -> None:
    for size in (0, 1, mmap.PAGESIZE - 1, mmap.PAGESIZE, 3 * mmap.PAGESIZE):
        (tmp_path / str(size)).write_bytes(bytes(size))
    cache._prune(tmp_path)
    assert {int(path.name) for path in tmp_path.iterdir()} == {1, mmap.PAGESIZE - 1}


@pytest.mark.quick
def test_a_folder_in_the_cache_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA keeps what it measured on a GPU in one; a folder takes whole pages too."""
    inner = tmp_path / "xla_gpu_per_fusion_autotune_cache_dir"
    inner.mkdir()
    for age, path in enumerate((inner / "first", inner / "second", tmp_path / "third")):
        path.write_bytes(bytes(100))
        os.utime(path, (age, age))
    monkeypatch.setattr(cache, "MOST", 299)
    cache._prune(tmp_path)
    assert {path.name for path in tmp_path.rglob("*")} == {inner.name, "second", "third"}


@pytest.mark.quick
def test_a_cache_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be written"):
        cache.cache(tmp_path / "file" / "below")


@pytest.mark.test
def test_programs_over_few_numbers_give_what_others_do() -> None:
    """Below ``FEW`` numbers other options, and the same answer; traced as part of another program, none."""

    @compiled("power", if_few=COMPILE_FASTEST)
    def sums(power: int, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.exp(-(x**power)))

    for size in (10, FEW + 1):
        x = jnp.linspace(0.0, 3.0, size)
        np.testing.assert_allclose(sums(2, x), np.sum(np.exp(-(np.asarray(x) ** 2))), rtol=1e-12)
    twice = jax.jit(jax.vmap(lambda x: sums(2, x)))(jnp.ones((2, 3)))
    np.testing.assert_allclose(twice, 3 * np.exp(-1.0), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(lambda x: sums(2, x))(jnp.ones(1)), -2 * np.exp(-1.0), rtol=1e-12)
    assert sums._if_few._cache_size() == 1, "the long array was compiled in full"


@pytest.mark.parametrize(
    "name", ["approximations", "errors", "gradients", "kernels", "models", "objectives", "schedules"]
)
def test_public_modules_are_there_at_once(name: str) -> None:
    """In a process that has used nothing else yet."""
    assert said(f"import tractable as tr\nprint(tr.{name}.__name__)")[0].startswith("tractable.")
