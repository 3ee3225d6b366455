"""Simulation-based calibration: tests whether a method recovers parameters that were drawn from the model's prior.

``calibrate`` makes the runs; ``calibration.calibration`` judges their ranks by the statistics of ``calibration.ranks``.
A method is calibrated if its draws are draws of the posterior, which makes the ranks uniform (docs/decisions/053).
"""

import functools
import math
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.calibration.calibration import Calibration
from tractable.calibration.ranks import choose_draws, rank
from tractable.core.censored import as_seen
from tractable.core.censoring import censors
from tractable.core.errors import DataError, ModelError, RunError, SettingsError, TractableWarning
from tractable.core.model import Data, Model, PyTree, as_data, counted_log_likelihoods, sample_of
from tractable.core.settings import at_least, check_seed, expect
from tractable.core.shared import compiled
from tractable.core.words import counted, tell
from tractable.diagnostics.convergence import diagnose
from tractable.engine import preflight
from tractable.engine.jobs import run_jobs
from tractable.engine.leaves import nest
from tractable.engine.locks import lock
from tractable.engine.programs import fingerprint
from tractable.engine.session import open_session
from tractable.engine.stopping import ending
from tractable.inference import infer
from tractable.methods import Method
from tractable.posterior.posterior import Posterior
from tractable.posterior.run_identity import check_resumable, identity
from tractable.posterior.saving import Saver

FORM = 2  # version of a checkpoint's contents
LEAST = 20  # smallest number of runs that may be requested; 20 runs give the bias of a mean only to ± 0.44 sd


@ending()
def calibrate(
    model: Model,
    method: Method,
    data_like: Data | PyTree = None,
    *,
    data: Data | PyTree = None,
    runs: int = 200,
    draws: int = 99,
    quantities: Mapping[str, Callable] | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool | Callable | None = None,
    checkpoint: str | pathlib.Path | None = None,
) -> "Calibration":
    """Simulation-based calibration: infer from data that the model has drawn, and rank the true θ* among the draws.

        θ* ~ p(θ),   y ~ p(y | θ*, x),   θ_l ~ method(y),   r = #{l ≤ L: f(θ_l, y) < f(θ*, y)}

    If the method gives the posterior, r is uniform on 0 … L for each parameter, the log likelihood, and the user's
    ``quantities``. Ranks of parameters alone cannot tell a posterior from the prior; ranks of an f that depends on y
    can. The method is tested on this model, averaged over the prior. The model is not tested on your data. Where the
    prior is much wider than the posterior, most runs are far from the posterior of your data.

    With ``data`` the question is whether the method can be trusted near the posterior of these data (Säilynoja et al.
    2025). θ* is then drawn from the method's own posterior of the data, y, and inference is from both y and new rows:

        θ* ~ method(y),   y′ ~ p(y′ | θ*, x),   θ_l ~ method(y, y′)

    The ranks are uniform if both posteriors are right. The prior may be a log density without ``sample()``. A bias that
    both posteriors share partly cancels.

    Args:
        model: a model with a prior of proper distributions and a likelihood.
        method: a method whose posteriors have draws.
        data_like: an example of the data. As many rows are drawn, at the same ``given``; y is NaN where its y is.
        data: the user's own data, in place of ``data_like``.
        runs: n ≥ 20. With 100 runs, 85 of 100 calibrations detect a mean that is 0.4 sd off; with 200 runs all do. A
            mean that is 0.2 sd off is detected by 28 of 100 with 100 runs, by 54 with 200, and by 88 with 400.
        draws: L, the number of draws among which θ* is ranked, evenly chosen from a run's draws. If a run has fewer
            nearly independent draws than L, θ* is ranked among as many as it has.
        quantities: more functions f by name: ``(params, y) -> number``; ``(params, y, x)`` if the data have ``given``.
        seed: the seed of all randomness. Run i depends on the seed and on i only, not on the process that runs it.
        n_jobs: number of processes, counted as in joblib (−1 means all cores), on the backend that is set by
            ``joblib.parallel_config``: loky by default, threading or dask. Each process compiles once. None means 1
            unless such a configuration is set.
        progress: as for ``infer``.
        checkpoint: a folder, in which runs are saved as they end. A calibration that was killed continues from there,
            with the same ranks; a finished one continues if ``runs`` is larger.

    Returns:
        A Calibration: ``report()``, ``summary()``, ``plot(path)``. Its report counts the runs that failed and gives the
        first error. After Ctrl-C or SIGTERM the finished runs are returned, and ``interrupted`` is True.

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
    seed = check_seed("calibrate(seed=...)", seed)
    near = data is not None
    data = _check(model, method, data_like, data, runs, draws, quantities)
    draws, quantities = int(draws), dict(quantities or {})
    if checkpoint is not None:
        check_resumable(model, data, method)
    settings = {"draws": draws, "form": FORM, "near": near}
    open_folder = functools.partial(_open_folder, checkpoint, model, data, method, seed, quantities, settings)
    functions = tuple(quantities.values())
    with (
        lock(checkpoint),
        open_session(model, data, seed, progress, saver=open_folder()) as session,
        warnings.catch_warnings(action="ignore", category=TractableWarning),
    ):
        source = _draw_truths(model, method, data, seed, runs, functions) if near else None
        work = functools.partial(
            _run, model=model, method=method, data=data, seed=seed, draws=draws, functions=functions, source=source
        )
        results = {int(i): result for i, result in nest(session.resume or {}).items()}
        todo, save = [i for i in range(runs) if i not in results], session.keeper()
        for job in run_jobs(work, todo, n_jobs, "calibrate", session.stop):
            result = job.lost or job.result
            if result is None:  # the run was interrupted
                break
            results[job.index] = result if isinstance(result, str) else np.array(result)
            session.say("runs", len(results), runs)
            save(lambda: results)
        save(lambda: results, at_once=bool(results))
    outcomes = {i: results[i] for i in sorted(results) if i < runs}
    failures = {i: result for i, result in outcomes.items() if isinstance(result, str)}
    index = [i for i in outcomes if i not in failures]
    if not index:
        reason = next((f"run {i}: {text}" for i, text in failures.items()), "it was stopped before any had ended")
        raise RunError(f"No run of the calibration came to its end: {reason}")
    table, names = np.array([outcomes[i] for i in index]), [*model.names, "log likelihood", *quantities]
    calibration = Calibration(
        names, table[:, 1:].astype(int), draws, np.array(index), table[:, 0], failures, type(method).__name__, runs,
        interrupted=len(outcomes) < runs, independent=source.independent if source else math.inf,
    )  # fmt: skip
    if calibration.interrupted:
        tell(f"The calibration was interrupted after {counted(calibration.runs, 'run')} of {runs}.")
    elif checkpoint is not None:
        calibration.save(checkpoint)
    return calibration


def _open_folder(
    checkpoint: str | pathlib.Path | None, model: Model, data: Data, method: Method, seed: int,
    quantities: Mapping[str, Callable], settings: dict[str, int],
) -> Saver | None:  # fmt: skip
    """What saves the runs into the folder ``checkpoint``, if there is one; with other ``settings`` it refuses it."""
    if checkpoint is None:
        return None
    programs = {name: fingerprint(function, *_example(model, data)) for name, function in quantities.items()}
    own = {"calibration": settings | {"quantities": programs}}
    return Saver(pathlib.Path(checkpoint), identity(model, data, method, seed) | own)


def _check(
    model: Model, method: Method, data_like: PyTree, data: PyTree, runs: int, draws: int,
    quantities: Mapping[str, Callable] | None,
) -> Data:  # fmt: skip
    """Check the arguments and return the data; raises an error where a calibration cannot work."""
    if not isinstance(model, Model) or not isinstance(method, Method):
        raise SettingsError(f"calibrate expects a Model and a method such as NUTS(); got {model!r} and {method!r}.")
    if method.point:
        raise SettingsError(
            f"calibrate ranks the truth among draws of a posterior, and {type(method).__name__} gives one θ; use a "
            "method that draws or fits a q, such as NUTS() or Laplace()."
        )
    expect("calibrate(runs=...)", runs, Annotated[int, at_least(LEAST)])
    expect("calibrate(draws=...)", draws, Annotated[int, at_least(9)])
    expect("calibrate(quantities=...)", quantities or {}, Annotated[Mapping, "functions by name"])
    if (data_like is None) == (data is None):
        raise SettingsError("calibrate expects either data_like, an example of the data, or data=, your own data.")
    near, data = data is not None, as_data(data_like if data is None else data)
    if not near and not model.drawable:
        raise ModelError(
            "calibrate draws parameters from the prior, and this prior is improper, or a log density without sample(): "
            "give Model a pytree of proper numpyro distributions, or calibrate near your own data with data=."
        )
    if data.weights is not None or not data.resident or not data.size:
        given_rows = f"{counted(data.size, 'row')}{' on file' * (not data.resident)}"
        raise DataError(
            "calibrate draws each row of data_like once, in memory: expected one row at least, in memory, without "
            f"weights; got {given_rows}{' with weights' * (data.weights is not None)}."
        )
    preflight.check(model, data)
    method.plan(data)
    try:
        like = model.params(jnp.zeros(model.space.size)) if near else None
        jax.eval_shape(functools.partial(_simulate, model), jax.random.key(0), data.given, np.arange(data.size), like)
    except NotImplementedError as error:
        raise ModelError("calibrate draws rows from the likelihood, and its distribution has no sample().") from error
    for name, function in (quantities or {}).items():
        expect(f"calibrate(quantities={{{name!r}: ...}})", function, Annotated[Callable, "a function of params and y"])
        shape = getattr(jax.eval_shape(function, *_example(model, data)), "shape", None)
        if shape is None or math.prod(shape) != 1:
            raise SettingsError(f"calibrate(quantities=...) expects one number from {name!r}; got shape {shape}.")
    return data


def _example(model: Model, data: Data) -> tuple:
    """Example arguments of a quantity: (params, y), or (params, y, x)."""
    return model.example(jax.random.key(0)), *_arguments_of(jax.tree.map(jnp.asarray, data.rows))


def _arguments_of(rows: tuple) -> tuple:
    """The arguments of a quantity from the rows (y, x): only y where there is no x."""
    return rows[:1] if rows[1] is None else rows


def simulate(model: Model, data: Data, key: jax.Array, params: PyTree = None) -> tuple[PyTree, Data]:
    """Draw θ* ~ p(θ) and rows y_n ~ p(y | θ*, x_n) at the inputs of ``data``; values that are NaN there are NaN here.

    θ* is ``params`` if they are given.

    Raises:
        DataError: rows that are not finite, which happens where the prior has parameters at which the likelihood
            overflows.
    """
    params, y = _simulate(model, key, data.given, np.arange(data.size), params)

    def in_form(new: jax.Array, y: np.ndarray) -> np.ndarray:
        """The new numbers in the precision of y, with NaN where y is NaN; they are never truncated to integers."""
        return np.where(np.isnan(y), np.nan, new).astype(y.dtype) if y.dtype.kind == "f" else np.asarray(new)

    y = jax.tree.map(in_form, y, data.y)
    if censors(model, data.given):
        y = as_seen(y, data.y)
    return params, Data(y, data.given, missing="keep" if data.missing == "keep" else "raise", resident=True)


@compiled("model")
def _simulate(
    model: Model, key: jax.Array, given: PyTree, index: jax.Array | np.ndarray, params: PyTree
) -> tuple[PyTree, PyTree]:
    above, below = jax.random.split(key)
    params = model.sample_prior(above) if params is None else params

    def row(x: PyTree, i: jax.Array) -> PyTree:
        return sample_of(model.datum(params, x), jax.random.fold_in(below, i))

    return params, jax.vmap(row)(given, jnp.asarray(index))


class Source(NamedTuple):
    """Positions that were drawn from the posterior of the user's own data."""

    positions: np.ndarray  # (run, d) unconstrained θ* of each run
    independent: float  # number of nearly independent draws from which they were chosen


def _draw_truths(model: Model, method: Method, data: Data, seed: int, runs: int, functions: tuple) -> Source:
    """Draw θ* of each run from the method's posterior of ``data``; θ* of run i depends on the seed and on i only."""
    posterior = infer(model, data, method, seed=seed, progress=False, verify=None)
    if posterior.interrupted:
        raise RunError("The calibration was stopped before the posterior of the data was known.")
    values, weights, independent = _quantities_to_rank(posterior, functions, None, data)[1:]
    share = np.cumsum(weights.ravel()) / np.sum(weights)
    chosen = [np.searchsorted(share, np.random.default_rng([seed, i, 1]).random(), "right") for i in range(runs)]
    positions: Any = posterior.unconstrained
    return Source(np.asarray(positions).reshape(len(values), -1)[chosen], independent)


def _run(
    index: int, *, model: Model, method: Method, data: Data, seed: int, draws: int, functions: tuple[Callable, ...],
    source: Source | None,
) -> list[float] | str | None:  # fmt: skip
    """Draw θ* and y, infer, and rank θ* among the draws.

    Returns:
        The number of nearly independent draws and the q ranks on 0 … L. For a run that failed, the error's message; for
        a run that was interrupted, None.
    """
    rng = np.random.default_rng([seed, index])
    try:
        known = None if source is None else model.params(jnp.asarray(source.positions[index]))
        truth, new = simulate(model, data, jax.random.fold_in(jax.random.key(seed), index), known)
        data = new if source is None else _append(data, new)
        posterior = infer(model, data, method, seed=int(rng.integers(1 << 31)), progress=False, verify=None)
    except (RunError, ModelError, DataError) as error:
        return str(error)
    if posterior.interrupted:
        return None
    true, values, weights, effective = _quantities_to_rank(posterior, functions, truth, data)
    if np.isnan(true).any() or np.isnan(values).any():
        return "A quantity is NaN at the true θ or at a draw, and cannot be ranked."
    sample = values[choose_draws(weights.ravel(), int(np.clip(effective, 1, draws)))]
    return [effective, *map(float, rank(true, sample, draws, rng))]


def _append(data: Data, new: Data) -> Data:
    """The rows of ``data``, and after them those of ``new``."""
    y, given = jax.tree.map(lambda *parts: np.concatenate(parts), (data.y, data.given), (new.y, new.given))
    return Data(y, given, missing=data.missing, resident=True)


def _quantities_to_rank(
    posterior: Posterior, functions: tuple, truth: PyTree, data: Data
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The quantities of θ* (q,) and of all draws (S, q), the draws' weights, and their nearly independent number.

    Without ``truth`` the quantities of θ* are those of the first draw.
    """
    positions: Any = posterior.unconstrained
    flat = positions.reshape(-1, positions.shape[-1])
    truth = posterior.model.params(jnp.asarray(flat[0])) if truth is None else truth
    found = _quantities(posterior.model, functions, truth, flat, data.arrays())
    true, values = (np.asarray(a, np.float64) for a in found)
    chains = positions.shape[:2]
    weights = np.ones(chains) if posterior.weights is None else np.asarray(posterior.weights, np.float64)
    return true, values, weights, count_independent(posterior, values.reshape(*chains, -1), weights)


@compiled("model", "functions")
def _quantities(
    model: Model, functions: tuple[Callable, ...], truth: PyTree, positions: jax.Array, rows: tuple
) -> tuple[jax.Array, jax.Array]:
    """The q quantities at θ*, (q,), and at the unconstrained ``positions`` (S, d), (S, q)."""

    def values_at(params: PyTree) -> jax.Array:
        parameters = [jnp.ravel(leaf) for leaf in jax.tree.leaves(params)]
        likelihood = jnp.sum(counted_log_likelihoods(model, params, rows))
        others = [jnp.reshape(function(params, *_arguments_of(rows)), (1,)) for function in functions]
        return jnp.concatenate([*parameters, likelihood[None], *others])

    size = sum(leaf.size for leaf in jax.tree.leaves(rows))
    width = min(len(positions), 1024, max(1, (1 << 24) // size))  # draws in memory at once
    return values_at(truth), jax.lax.map(lambda u: values_at(model.params(u)), positions, batch_size=width)


def count_independent(posterior: Posterior, values: np.ndarray, weights: np.ndarray) -> float:
    """The number of nearly independent draws, for the worst of the quantities (chain, draw, q).

    If draws are independent, their number is (Σw)²/Σw². For chains this is multiplied by ESS / (2 · number of draws),
    with the smaller of bulk and tail ESS (effective sample size). If a chain is thinned to that many draws, neighbours
    have a correlation of about e⁻⁴. A quantity that is the same for all draws is left out.
    """
    # In cyclical SGMCMC, draws from the exploring part of a cycle have weight 0; they do not count.
    counts = weights.any(0)
    values, weights = values[:, counts], weights[:, counts]
    share = float(np.sum(weights) ** 2 / np.sum(weights**2) / weights.size)
    method, varies = posterior.method, np.ptp(values, axis=(0, 1)) > 0
    if method.independent or method.exact or posterior.fitted is not None or not varies.any():
        return share * weights.size
    sizes = diagnose(values[..., varies])
    return share * float(np.nan_to_num(np.nanmin([sizes.bulk, sizes.tail]))) / 2
