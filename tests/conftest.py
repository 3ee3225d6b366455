"""The test bed: three tiers, and a world stricter than the user's, so that a silent fault here is a loud one."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import checked
import jax
import matplotlib
import pytest
from tiers import (  # noqa: F401  # pytest finds its hooks here
    keep_programs,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_setup,
    pytest_runtest_teardown,
)

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

# What tests write need not outlive a power cut: waiting for disks takes a tenth of the time of those that save.
os.fsync = lambda descriptor: None

# The hook only sees modules imported after it.
if os.environ.get("TRACTABLE_TYPECHECK", "1") == "1":
    checked.install("tractable")

from tractable.engine import identity, mappings  # noqa: E402  # once the hook above is there

keep_programs()

# Mappings that compiled programs may take (a process has 65,530): looked at between tests, and by runs as theirs are in
# use. The second is out of a test's reach, since a test may say that its second run compiles nothing.
BETWEEN_TESTS, WITHIN = 25_000, 45_000


def pytest_collection_finish() -> None:
    """Tracing makes objects by the million: look for garbage seldom, and never among what was imported."""
    mappings.MOST = WITHIN
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(autouse=True)
def forget_compilations() -> None:
    """Before a test: forget compiled programs if there are many, and for which models they serve.

    A model written again has its own programs: another test's may be a mutant's.
    """
    mappings.make_room(BETWEEN_TESTS)
    identity._first.clear()


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
