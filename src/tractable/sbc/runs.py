"""One run of a calibration, and many of them, in this process or in others."""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import joblib
import numpy as np

from tractable.checks.convergence import diagnose
from tractable.checks.ranks import evenly, rank, rescaled
from tractable.core import Data, Model, counted_log_likelihoods
from tractable.inference import infer
from tractable.methods import Method
from tractable.results.posterior import Posterior
from tractable.sbc.simulate import pair
from tractable.tools.errors import DataError, ModelError, RunError, SettingsError, TractableWarning
from tractable.tools.shared import compiled
from tractable.tools.stopping import ending, interruptible

PyTree = Any
LIKELIHOOD = "log likelihood"
APART = 2  # effective draws for each that is ranked: neighbours in a chain are then correlated by e⁻⁴, about
TOGETHER = 1024  # draws whose quantities are found at once, at most
HELD = 1 << 24  # numbers, rows times draws, that are held at once
# What a process's results depend on.
CONFIG = (
    "jax_enable_x64", "jax_threefry_partitionable", "jax_default_prng_impl", "jax_default_matmul_precision",
    "jax_disable_most_optimizations",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problem:
    """What is calibrated. Run i is a pure function of this and i."""

    model: Model
    method: Method
    data: Data
    seed: int
    draws: int  # L, that the truth is ranked among
    quantities: tuple[tuple[str, Callable], ...]  # of the user's, ``(params, y)`` or ``(params, y, x) -> number``

    @property
    def names(self) -> list[str]:
        """Of all q that is ranked: the k parameters, the log likelihood, the user's quantities."""
        return [*self.model.names, LIKELIHOOD, *(name for name, _ in self.quantities)]


class Record(NamedTuple):
    """What a run came to."""

    ranks: np.ndarray | None  # (q,) on 0 … L; None of a run that failed
    effective: float  # draws, the least of the q quantities'
    rhat: float  # the largest; NaN where draws have no order
    failure: str  # its sentence; empty where there is none


def run(problem: Problem, index: int) -> Record | None:
    """Draw θ* and y, infer, and rank θ* among the draws; None where the run was interrupted."""
    model, rng = problem.model, np.random.default_rng([problem.seed, index])
    try:
        truth, data = pair(model, problem.data, jax.random.fold_in(jax.random.key(problem.seed), index))
        posterior = infer(model, data, problem.method, seed=int(rng.integers(1 << 31)), progress=False, verify=None)
        if posterior.interrupted:
            return None
        known, values = looked_at(problem, posterior, truth, data)
    except (RunError, ModelError, DataError) as error:
        return Record(None, np.nan, np.nan, str(error))
    weights = np.ones(values.shape[:2]) if posterior.weights is None else np.asarray(posterior.weights, np.float64)
    effective, rhat = independent(posterior, values, weights)
    flat, weights = values.reshape(-1, values.shape[-1]), weights.ravel()
    count = int(np.clip(effective, 1, problem.draws))
    ranks = rank(known, flat[evenly(weights, count)], rng)
    return Record(rescaled(ranks, count, problem.draws, rng), effective, rhat, "")


def looked_at(problem: Problem, posterior: Posterior, truth: PyTree, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """The q quantities of θ*, (q,), and of every draw, (chain, draw, q)."""
    positions = posterior.unconstrained
    if positions is None or posterior.is_point or not posterior.count:
        raise SettingsError(no_draws(problem.method))
    rows, flat = data.arrays(), positions.reshape(-1, positions.shape[-1])
    functions = tuple(function for _, function in problem.quantities)
    together = int(min(TOGETHER, len(flat), max(1, HELD // max(data.nbytes // 4, 1))))
    truth, every = _looked_at(problem.model, functions, together, truth, flat, rows)
    known, values = np.asarray(truth, np.float64), np.asarray(every, np.float64)
    if np.isnan(known).any() or np.isnan(values).any():
        bad = problem.names[int(np.argmax(np.isnan(known) | np.isnan(values).any(0)))]
        raise RunError(f"{bad} is NaN, of the truth or of a draw, and cannot be ranked.")
    return known, values.reshape(*positions.shape[:2], -1)


def no_draws(method: Method) -> str:
    return (
        f"calibrate ranks the truth among draws of a posterior, and {type(method).__name__} gives one θ; use a method "
        "that draws or fits a q, such as NUTS() or Laplace()."
    )


@compiled("model", "functions", "together")
def _looked_at(
    model: Model, functions: tuple[Callable, ...], together: int, truth: PyTree, positions: jax.Array, rows: PyTree
) -> tuple[jax.Array, jax.Array]:
    y, x = rows

    def of(params: PyTree) -> jax.Array:
        own = [jnp.ravel(leaf) for leaf in jax.tree.leaves(params)]
        inputs = (y,) if x is None else (y, x)
        others = [jnp.reshape(function(params, *inputs), (1,)) for function in functions]
        return jnp.concatenate([*own, jnp.sum(counted_log_likelihoods(model, params, rows))[None], *others])

    return of(truth), jax.lax.map(lambda u: of(model.params(u)), positions, batch_size=together)


def independent(posterior: Posterior, values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """How many nearly independent draws there are, by the worst quantity, and the largest R-hat.

    Half of the bulk or tail ESS of chains, all of draws that have no order; where weights differ, as many as their
    square counts. A quantity that no draw changes says nothing.
    """
    moved = np.ptp(values.reshape(-1, values.shape[-1]), axis=0) > 0
    share = float(np.sum(weights) ** 2 / np.sum(weights**2) / weights.size)
    if posterior.method.independent or posterior.method.exact or posterior.fitted is not None or not moved.any():
        return share * weights.size, float("nan")
    kept = weights.min(0) > 0  # a cycle's exploring part is not a draw
    if share < 1 and kept.any() and np.ptp(weights[:, kept]) == 0:
        values, share = values[:, kept], 1.0
    seen = diagnose(values[..., moved])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nothing but NaN
        effective = float(np.nanmin([seen.bulk, seen.tail]))
        return share * np.nan_to_num(effective) / APART, float(np.nanmax(seen.rhat))


def records(
    problem: Problem, todo: Sequence[int], n_jobs: int | None, stop: Callable[[], bool]
) -> Iterator[tuple[int, Record | None]]:
    """Every run's record with its index, as they come; over processes by joblib where ``n_jobs`` says so."""
    workers: Any = n_jobs
    if joblib.effective_n_jobs(workers) == 1:
        yield from ((index, run(problem, index)) for index in todo if not stop())
        return
    try:
        pool = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    except ValueError as error:
        raise SettingsError(
            "calibrate takes joblib backends that hand results back as they come, and do not fork a process that runs "
            f"JAX: loky, threading, dask; got {error}."
        ) from error
    sent = Sent(problem)
    found: Any = pool(joblib.delayed(_away)(sent, index) for index in todo)
    try:
        for each in found:
            yield each
            if stop():
                return
    except PicklingError as error:
        *_, why = (line for line in str(error.__cause__ or error).splitlines() if line.strip('" '))  # of a traceback
        raise SettingsError(f"This model or method cannot be sent to other processes ({why}); use n_jobs=1.") from error
    finally:
        found.close()  # ends what still runs


class Sent:
    """A problem on its way to other processes, whose runs all find it as one object: a process compiles once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @functools.cached_property
    def packed(self) -> bytes:
        return cloudpickle.dumps(self.problem)

    def __reduce__(self) -> tuple:
        return _received, ({name: jax.config.values[name] for name in CONFIG}, self.packed)


def _received(config: dict[str, Any], packed: bytes) -> Sent:
    for name, value in config.items():  # before arrays are read: their precision depends on it
        if jax.config.values[name] != value:
            jax.config.update(name, value)
    return _unpacked(packed)


@functools.lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Sent:
    warnings.simplefilter("ignore", TractableWarning)
    return Sent(cloudpickle.loads(packed))


def _away(sent: Sent, index: int) -> tuple[int, Record | None]:
    """A run in another process; Ctrl-C, which all processes of a terminal hear, ends it."""
    with ending(leave=False), interruptible() as stop:
        return index, None if stop() else run(sent.problem, index)
