"""The test bed: stricter than the world, so that a silent fault here is a loud one."""

import gc
import importlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checked
import jax
import matplotlib
import pytest

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

# What tests write need not outlive a power cut: waiting for disks takes a tenth of the time of those that save.
os.fsync = lambda descriptor: None

# The hook only sees modules imported after it.
if os.environ.get("TRACTABLE_TYPECHECK", "1") == "1":
    checked.install("tractable")

from tractable.tools import alike, cache, mappings  # noqa: E402  # once the hook above is there

# Modules, workers, runs and processes that tests start have most of their programs in common: compiled once, a program
# is found by all of them, in the checkout and not in the cache of whoever runs the tests.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache.cache(Path(__file__).parents[1] / ".cache"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


# Few tests, or of few shapes, that take a minute and more: whoever takes them last lets the other worker wait.
LONGEST = (
    "test_estimators.py", "test_examples.py", "test_methods_contract.py", "test_readme.py", "test_sharding.py",
    "test_docs.py", "test_wake_sleep.py", "test_code_importance.py", "test_coordinate_ascent_method.py",
)  # fmt: skip


# Mappings that compiled programs may take (a process has 65,530): looked at between tests, and by runs as theirs are in
# use. The second is out of a test's reach, since a test may say that its second run compiles nothing.
BETWEEN_TESTS, WITHIN = 25_000, 45_000


# Where JAX keeps each program's text, in an MLIR context of 1.3 MB with an entry in a table that every operation of
# every later lowering is looked up in: with two thousand programs alive a lowering takes three times as long. Compiled
# programs do not need it. JAX offers no public way to drop it, and names may differ in other versions of JAX.
TEXTS = [
    getattr(importlib.import_module(f"jax._src.{module}"), name, None)
    for module, name in (("pjit", "_pjit_lower"), ("interpreters.pxla", "_cached_lowering_to_hlo"))
]

# JAX makes a context for each program, a third of the time that lowering a small one takes: the programs of a test
# share one, in each thread.
LOWERING = importlib.import_module("jax._src.interpreters.mlir")
new_context = LOWERING.make_ir_context
CONTEXTS: dict[int, Any] = {}


def context_of_this_test() -> Any:
    """The MLIR context of this test's programs."""
    thread = threading.get_ident()
    if thread not in CONTEXTS:
        CONTEXTS[thread] = new_context()
    return CONTEXTS[thread]


LOWERING.make_ir_context = context_of_this_test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, then those of most tests."""
    count = Counter(item.path for item in items)
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (rank.get(item.path.name, len(rank)), -count[item.path], item.path))


def pytest_collection_finish() -> None:
    """Tracing makes objects by the million: look for garbage seldom, and never among what was imported."""
    mappings.MOST = WITHIN
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(autouse=True)
def forget_compilations() -> None:
    """Before a test: forget programs' texts, compiled programs if there are many, and for which models they serve.

    Modules have hundreds in common, so seldom. A model written again has its own: another test's may be a mutant's.
    """
    for texts in TEXTS:
        if texts is not None:
            texts.cache_clear()
    CONTEXTS.clear()
    mappings.make_room(BETWEEN_TESTS)
    alike._first.clear()


@pytest.fixture(autouse=True)
def optimised(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked ``computes`` get the optimisations that JAX_DISABLE_MOST_OPTIMIZATIONS=1 spares the others."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", before and not request.node.get_closest_marker("computes"))
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def key() -> jax.Array:
    """A typed key."""
    return jax.random.key(0)


@pytest.fixture
def strict_ranks() -> Iterator[None]:
    """Arrays of unlike rank may not meet: `(n,)` against `(n, 1)` raises.

    Not on everywhere, because NumPyro's Beta, Dirichlet, MultivariateNormal and mixtures promote ranks
    themselves. BlackJAX, Optax and Equinox do not. Tests of our own kernels take it with
    `pytestmark = pytest.mark.usefixtures("strict_ranks")` and a density written in plain JAX.
    """
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="session")
def data_dir_or_none() -> Path | None:
    """The folder of data sets too large to ship, named by TRACTABLE_DATA; None where there is none."""
    named = os.environ.get("TRACTABLE_DATA")
    return Path(named) if named and Path(named).is_dir() else None


@pytest.fixture(scope="session")
def data_dir(data_dir_or_none: Path | None) -> Path:
    """As `data_dir_or_none`, but a test which cannot do without is skipped."""
    if data_dir_or_none is None:
        pytest.skip("needs data sets: set TRACTABLE_DATA to the folder which holds them")
    return data_dir_or_none
