"""NUTS agrees with the reference posteriors of posteriordb, and so does our R-hat with theirs.

The models are those of ``benchmarks/posteriordb_models.py``; ``benchmarks/posteriordb.py`` prints the table for all of
them and for every method.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from montecarlo import Z, assert_holds

import tractable as tr
from tractable.diagnostics.convergence import diagnose

pytestmark = pytest.mark.quick

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FAST = ["eight_schools_non_centred", "garch", "low_dim_gauss_mix", "mesquite"]


@pytest.fixture(scope="module")
def models():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import posteriordb_models

        yield posteriordb_models
    finally:
        sys.path.remove(str(BENCHMARKS))


def _place(data_dir: Path, models, name: str) -> Path:
    place = data_dir / "posteriordb" / models.MODELS[name][0]
    if not place.is_dir():
        pytest.skip(f"needs posteriordb/{place.name} in TRACTABLE_DATA")
    return place


@pytest.mark.parametrize("name", FAST)
def test_nuts_agrees_with_the_reference(data_dir, models, name):
    place = _place(data_dir, models, name)
    reference, problem = models.read_reference(place), models.load(name, place)
    posterior = tr.infer(problem.model, problem.data, tr.NUTS(draws=1000, warmup=1000, **problem.nuts), progress=False)
    values = problem.values(posterior.draws)
    seen, flat = diagnose(values), values.reshape(-1, len(reference.names))
    z_mean = (flat.mean(0) - reference.mean) / np.hypot(seen.mcse_mean, reference.mcse_mean)
    z_sd = (flat.std(0) - reference.sd) / np.hypot(seen.mcse_sd, reference.mcse_sd)
    scores = {f"mean of {n}": abs(z) / Z for n, z in zip(reference.names, z_mean, strict=True)}
    scores |= {f"sd of {n}": abs(z) / Z for n, z in zip(reference.names, z_sd, strict=True)}
    assert_holds(scores, len(flat))


@pytest.mark.parametrize("name", FAST)
def test_rhat_of_the_stored_draws_is_that_of_the_whole_run(data_dir, models, name):
    """Ten chains of 100 nearly independent draws: R-hat is 1 within its own noise, as the long run's is."""
    place = _place(data_dir, models, name)
    reference = models.read_reference(place)
    draws = reference.draws.reshape(10, 100, -1)
    seen = diagnose(draws)
    assert np.all(np.abs(seen.rhat - reference.rhat) < 0.05)
    # The same number by a slow, separate telling: rank-normalised and folded split R-hat, Vehtari et al. 2021.
    for k in range(draws.shape[2]):
        np.testing.assert_allclose(seen.rhat[k], _rhat(draws[..., k]), rtol=1e-6)


def _rhat(x: np.ndarray) -> float:
    from scipy import stats

    def of(x: np.ndarray) -> float:
        split = x.reshape(2 * len(x), -1)
        z = stats.norm.ppf((stats.rankdata(split).reshape(split.shape) - 0.375) / (split.size + 0.25))
        count = z.shape[1]
        within, between = z.var(axis=1, ddof=1).mean(), count * z.mean(axis=1).var(ddof=1)
        return float(np.sqrt(((count - 1) / count * within + between / count) / within))

    return max(of(x), of(np.abs(x - np.median(x))))
