"""The test bed: stricter than the world, so that a silent fault here is a loud one."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jaxtyping
import matplotlib
import pytest

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

# The hook only sees modules imported after it.
if os.environ.get("TRACTABLE_TYPECHECK", "1") == "1":
    jaxtyping.install_import_hook("tractable", "beartype.beartype")


def pytest_collection_finish() -> None:
    """Tracing makes objects by the million: imports are no longer looked through for garbage, and the rest seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="module", autouse=True)
def forget_compilations() -> Iterator[None]:
    """Every compiled program holds memory mappings, of which a process has 65,530: forget them after each module."""
    yield
    jax.clear_caches()
    gc.collect()


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
