"""``calibrate``: does a method recover parameters that the model itself has drawn?"""

import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import Data, Model, PyTree, as_data
from tractable.methods import Method
from tractable.methods.session import sitting
from tractable.results.folder import Saver
from tractable.results.identity import check_resumable, identity
from tractable.sbc import simulate
from tractable.sbc.calibration import Calibration
from tractable.sbc.runs import Problem, Record, no_draws, records
from tractable.tools.errors import RunError, SettingsError, TractableWarning
from tractable.tools.leaves import nested
from tractable.tools.locks import held
from tractable.tools.programs import fingerprint
from tractable.tools.settings import at_least, expect, seeded
from tractable.tools.stopping import ending
from tractable.tools.words import counted, tell

LEAST = 20  # fewest runs: with fewer, even ranks that are all 0 say little


@ending()
def calibrate(
    model: Model,
    method: Method,
    data_like: Data | PyTree,
    *,
    runs: int = 200,
    draws: int = 99,
    quantities: Mapping[str, Callable] | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool | Callable | None = None,
    checkpoint: str | pathlib.Path | None = None,
) -> Calibration:
    """Simulation-based calibration: infer from data that the model has drawn, and rank the true θ* among the draws.

        θ* ~ p(θ),   y ~ p(y | θ*, x),   θ_l ~ method(y),   r = #{l ≤ L: f(θ_l, y) < f(θ*, y)}

    If the method gives the posterior, r is uniform on 0 … L for every f: each parameter, the log likelihood, and the
    user's ``quantities``. Ranks of parameters alone cannot tell a posterior from the prior; ranks of an f that depends
    on y can. Cook, Gelman & Rubin 2006; Talts et al. 2018; Modrák et al. 2023. This tests the method on this model,
    averaged over the prior. It does not test the model on the data at hand: where the prior is much wider than the
    posterior, most runs are far from that posterior.

    Args:
        model: with a prior of proper distributions and a likelihood.
        method: whose posteriors have draws.
        data_like: an example of the data: as many rows are drawn, at the same ``given``, with NaN where its y has NaN.
        runs: n ≥ 20. A mean that is 0.4 sd off is detected in 85 of 100 calibrations with 100 runs, and in all with
            200. One that is 0.2 sd off is detected in 28 of 100 with 100 runs, 54 with 200, and 88 with 400.
        draws: L draws among which θ* is ranked, evenly chosen from a run's draws. A run should have as many nearly
            independent draws; if it has fewer, θ* is ranked among those.
        quantities: further f by name: ``(params, y) -> number``, or ``(params, y, x)`` where the data have ``given``.
        seed: of all randomness. Run i is a pure function of the seed and i, in whatever process it runs.
        n_jobs: number of processes, as joblib counts them, over its backend (``joblib.parallel_config``): loky by
            default, threading, dask. Each compiles once. None means 1 unless such a configuration is set.
        progress: as for ``infer``.
        checkpoint: a folder. Runs are saved there as they end. A calibration that was killed continues, to the same
            ranks; a finished one continues if ``runs`` is larger.

    Returns:
        A Calibration: ``report()``, ``summary()``, ``plot(path)``. Runs that failed are counted and named in its
        report. After Ctrl-C or SIGTERM the finished runs are returned, marked ``interrupted``.

    Raises:
        ModelError: an improper prior, or a callable one without sample(); a likelihood that cannot be drawn from.
        DataError: no rows, rows with weights, or rows not in memory.
        SettingsError: a setting out of range; a method that finds one θ.
        RunError: every run failed, or the calibration was stopped before one had ended.
        CheckpointError: a checkpoint that is damaged or belongs to another calibration.

    >>> import numpyro.distributions as dist
    >>> from tractable.methods import Rejection
    >>> coin = Model({"theta": dist.Beta(2.0, 2.0)}, lambda params: dist.Bernoulli(params["theta"]))
    >>> found = calibrate(coin, Rejection(chains=1, draws=20), np.array([1, 0, 1]), runs=20, draws=19)
    >>> found.ranks.shape, found.names
    ((20, 2), ['theta', 'log likelihood'])
    """
    data = _check(model, method, data_like, runs, draws, quantities, seed)
    named = () if quantities is None else tuple(quantities.items())
    if checkpoint is not None:
        check_resumable(model, data, method)
    problem = Problem(model, method, data, int(seed), int(draws), named)

    def opened() -> Saver | None:
        return None if checkpoint is None else Saver(pathlib.Path(checkpoint), _identity(problem))

    with (
        held(checkpoint),
        sitting(model, data, seed, progress, opened=opened) as session,
        warnings.catch_warnings(action="ignore", category=TractableWarning),
    ):
        done = _resumed(session.resume)
        keep, todo = session.keeper(), [i for i in range(runs) if i not in done]
        stopped = False
        for index, record in records(problem, todo, n_jobs, session.stop):
            if record is None:
                stopped = True
                break
            done[index] = record
            session.say("runs", len(done), runs)
            keep(lambda: _standing(done))
        keep(lambda: _standing(done), at_once=bool(done))
    found = _found(problem, {i: done[i] for i in sorted(done) if i < runs}, runs)
    if checkpoint is not None and not found.interrupted:
        found.save(checkpoint)
    if stopped or found.interrupted:
        tell(f"The calibration was interrupted: {counted(found.runs, 'run')} of {runs} are there.")
    return found


def _check(
    model: object, method: object, data_like: PyTree, runs: int, draws: int, quantities: object, seed: int
) -> Data:
    """The data; raises where the settings cannot work."""
    if not isinstance(model, Model):
        raise SettingsError(f"calibrate expects a Model; got {type(model).__name__}.")
    if not isinstance(method, Method):
        raise SettingsError(f"calibrate expects a method such as NUTS() after the model; got {method!r}.")
    if method.point:
        raise SettingsError(no_draws(method))
    expect("calibrate(runs=...)", runs, Annotated[int, at_least(LEAST)])
    expect("calibrate(draws=...)", draws, Annotated[int, at_least(9)])
    seeded("calibrate(seed=...)", seed)
    if quantities is not None and not (
        isinstance(quantities, Mapping) and all(isinstance(n, str) and callable(f) for n, f in quantities.items())
    ):
        raise SettingsError(f"calibrate(quantities=...) expects functions by name; got {quantities!r}.")
    if data_like is None:
        raise SettingsError("calibrate expects data_like, whose rows say how many are drawn and at which inputs.")
    data = as_data(data_like)
    simulate.check(model, data)
    method.plan(data)
    for name, function in (quantities or {}).items():
        shape = getattr(jax.eval_shape(function, *_arguments(model, data)), "shape", None)
        if shape is None or np.prod(shape) != 1:
            raise SettingsError(f"calibrate(quantities=...) expects one number of {name!r}; got shape {shape}.")
    return data


def _arguments(model: Model, data: Data) -> tuple:
    """Example arguments for a quantity."""
    y, x = jax.tree.map(jnp.asarray, data.rows)
    params = model.example(jax.random.key(0))
    return (params, y) if x is None else (params, y, x)


def _identity(problem: Problem) -> dict[str, Any]:
    """What distinguishes this calibration from others; the number of runs does not count."""
    example = _arguments(problem.model, problem.data)
    programs = {name: fingerprint(function, *example) for name, function in problem.quantities}
    about = {"draws": problem.draws, "quantities": programs}
    return identity(problem.model, problem.data, problem.method, problem.seed) | {"calibration": about}


def _standing(done: dict[int, Record]) -> PyTree:
    """All records as arrays, for a checkpoint."""
    ended = {i: r for i, r in done.items() if r.ranks is not None}
    return {
        "index": np.array(list(ended), int),
        "ranks": np.array([r.ranks for r in ended.values()], int),
        "effective": np.array([r.effective for r in ended.values()], float),
        "rhat": np.array([r.rhat for r in ended.values()], float),
        "failures": {str(i): r.failure for i, r in done.items() if r.ranks is None},
    }


def _resumed(leaves: dict[str, np.ndarray] | None) -> dict[int, Record]:
    """The records in a checkpoint."""
    if leaves is None:
        return {}
    saved = nested(leaves)
    ended = zip(*(saved[name] for name in ("index", "ranks", "effective", "rhat")), strict=True)
    done = {int(i): Record(ranks, float(e), float(rhat), "") for i, ranks, e, rhat in ended}
    return done | {int(i): Record(None, np.nan, np.nan, why) for i, why in saved.get("failures", {}).items()}


def _found(problem: Problem, done: dict[int, Record], asked: int) -> Calibration:
    standing = _standing(done)
    failures = {int(i): why for i, why in standing.pop("failures").items()}
    if not len(standing["index"]):
        why = f"the first: {next(iter(failures.values()))}" if failures else "it was stopped before the first had ended"
        raise RunError(f"No run of the calibration came to its end; {why}")
    name = type(problem.method).__name__
    return Calibration(
        problem.names, draws=problem.draws, failures=failures, method=name, asked=asked,
        interrupted=len(done) < asked, **standing,
    )  # fmt: skip
