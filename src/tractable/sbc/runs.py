"""Runs of a calibration."""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.checks.convergence import diagnose
from tractable.checks.ranks import evenly, rank, rescaled
from tractable.core import Data, Model, PyTree, counted_log_likelihoods
from tractable.inference import infer
from tractable.methods import Method
from tractable.results.posterior import Posterior
from tractable.sbc.simulate import pair
from tractable.tools.errors import DataError, ModelError, RunError, SettingsError
from tractable.tools.jobs import finished
from tractable.tools.shared import compiled

LIKELIHOOD = "log likelihood"
APART = 2  # effective draws for each ranked one: neighbours in a chain are then correlated by about e⁻⁴
TOGETHER = 1024  # most draws whose quantities are computed at once
HELD = 1 << 24  # most numbers (rows × draws) in memory at once


@dataclass(frozen=True, eq=False)
class Problem:
    """A calibration's inputs. Run i is a pure function of these and i."""

    model: Model
    method: Method
    data: Data
    seed: int
    draws: int  # L, among which the truth is ranked
    quantities: tuple[tuple[str, Callable], ...]  # the user's, ``(params, y)`` or ``(params, y, x) -> number``

    @property
    def names(self) -> list[str]:
        """Names of all q quantities: the k parameters, the log likelihood, the user's quantities."""
        return [*self.model.names, LIKELIHOOD, *(name for name, _ in self.quantities)]


class Record(NamedTuple):
    """The result of a run."""

    ranks: np.ndarray | None  # (q,) on 0 … L; None if the run failed
    effective: float  # effective draws, the least over the q quantities
    rhat: float  # the largest R-hat; NaN where draws have no order
    failure: str  # the error's sentence; empty if the run did not fail


def run(index: int, **given: Any) -> Record | None:
    """Draw θ* and y, infer, and rank θ* among the draws; None where the run was interrupted.

    Args:
        given: the fields of a ``Problem``.
    """
    problem = Problem(**given)
    model, rng = problem.model, np.random.default_rng([problem.seed, index])
    try:
        truth, data = pair(model, problem.data, jax.random.fold_in(jax.random.key(problem.seed), index))
        posterior = infer(model, data, problem.method, seed=int(rng.integers(1 << 31)), progress=False, verify=None)
        if posterior.interrupted:
            return None
        known, values = quantities_at(problem, posterior, truth, data)
    except (RunError, ModelError, DataError) as error:
        return Record(None, np.nan, np.nan, str(error))
    weights = np.ones(values.shape[:2]) if posterior.weights is None else np.asarray(posterior.weights, np.float64)
    effective, rhat = independent(posterior, values, weights)
    flat, weights = values.reshape(-1, values.shape[-1]), weights.ravel()
    count = int(np.clip(effective, 1, problem.draws))
    ranks = rank(known, flat[evenly(weights, count)], rng)
    return Record(rescaled(ranks, count, problem.draws, rng), effective, rhat, "")


def quantities_at(problem: Problem, posterior: Posterior, truth: PyTree, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """The q quantities at θ*, (q,), and at every draw, (chain, draw, q)."""
    positions = posterior.unconstrained
    if positions is None or posterior.is_point or not posterior.count:
        raise SettingsError(no_draws(problem.method))
    rows, flat = data.arrays(), positions.reshape(-1, positions.shape[-1])
    functions = tuple(function for _, function in problem.quantities)
    together = int(min(TOGETHER, len(flat), max(1, HELD // max(data.nbytes // 4, 1))))
    truth, every = _quantities(problem.model, functions, together, truth, flat, rows)
    known, values = np.asarray(truth, np.float64), np.asarray(every, np.float64)
    if np.isnan(known).any() or np.isnan(values).any():
        bad = problem.names[int(np.argmax(np.isnan(known) | np.isnan(values).any(0)))]
        raise RunError(f"{bad} is NaN, of the truth or of a draw, and cannot be ranked.")
    return known, values.reshape(*positions.shape[:2], -1)


def no_draws(method: Method) -> str:
    """The error message for a method that gives a single θ."""
    return (
        f"calibrate ranks the truth among draws of a posterior, and {type(method).__name__} gives one θ; use a method "
        "that draws or fits a q, such as NUTS() or Laplace()."
    )


@compiled("model", "functions", "together")
def _quantities(
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
    """The number of nearly independent draws, by the worst quantity, and the largest R-hat.

    For chains half the bulk or tail ESS; for draws without an order all of them; for unequal weights times
    (Σw)²/(S Σw²). A quantity that is the same for all draws does not count.
    """
    moved = np.ptp(values.reshape(-1, values.shape[-1]), axis=0) > 0
    share = float(np.sum(weights) ** 2 / np.sum(weights**2) / weights.size)
    if posterior.method.independent or posterior.method.exact or posterior.fitted is not None or not moved.any():
        return share * weights.size, float("nan")
    kept = weights.min(0) > 0  # weight 0: the exploring part of a cycle, which gives no draws
    if share < 1 and kept.any() and np.ptp(weights[:, kept]) == 0:
        values, share = values[:, kept], 1.0
    seen = diagnose(values[..., moved])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where all values are NaN
        effective = float(np.nanmin([seen.bulk, seen.tail]))
        return share * np.nan_to_num(effective) / APART, float(np.nanmax(seen.rhat))


def records(
    problem: Problem, todo: Sequence[int], n_jobs: int | None, stop: Callable[[], bool]
) -> Iterator[tuple[int, Record | None]]:
    """Every run's index and record, in the order they finish; in several processes if ``n_jobs`` says so."""
    work = functools.partial(run, **{field.name: getattr(problem, field.name) for field in fields(problem)})
    for ended in finished(work, todo, n_jobs, "calibrate", stop):
        yield ended.index, Record(None, np.nan, np.nan, ended.lost) if ended.lost else ended.result
