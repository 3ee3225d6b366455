"""How many kinds of rows a table holds: mixtures with several K are fitted, of which one is chosen."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.cli.columns import Column
from tractable.cli.mixtures import Problem
from tractable.cli.models import MIXTURE
from tractable.core import Data
from tractable.methods import EM, Method
from tractable.models import bayesian_gaussian_mixture, mixture
from tractable.models.latent import LatentModel
from tractable.select import Selection, select
from tractable.tools.errors import SettingsError

CHUNK = 1 << 14  # rows looked at at once


def suits(method: Method) -> EM:
    """The method, or a sentence where it is not one for mixtures."""
    if isinstance(method, EM):
        return method
    raise SettingsError(f"--model {MIXTURE} is learnt by --method em; got {method.label}.")


def model_of(components: int, features: int, covariance: str, gaps: bool = False) -> LatentModel:
    """The mixture of standardised rows."""
    return (mixture.with_missing if gaps else mixture.gaussian_mixture)(components, features, covariance)


def learn(problem: Problem, method: EM, seed: int, progress: Callable[[str, int, int], None]) -> Selection:
    """A fit for each K, and the one that is chosen; its table in the table's units.

    Raises:
        RunError: where every fit failed.
    """
    asked, d = problem.asked, len(problem.columns)
    missing = "keep" if problem.gaps else "raise"
    found = select(
        lambda k: model_of(k, d, asked.covariance, problem.gaps), Data(problem.rows, missing=missing), problem.tried,
        method, by=asked.choose, held_out=Data(problem.held_out, missing=missing) if len(problem.held_out) else None,
        bound_of=lambda k: bayesian_gaussian_mixture(k, d, asked.covariance, weight_concentration=1.0),
        seed=seed, progress=progress,
    )  # fmt: skip
    # log |d standardised / d x| is the same for every K, so the choice and what is said of it do not change.
    units, rest = scales(problem.rows, problem.columns).sum(), scales(problem.held_out, problem.columns)
    changes = {"log likelihood": -units, "BIC": 2 * units, "AIC": 2 * units, "evidence": -units}
    changes |= {"held-out": -rest.mean()} if len(rest) else {}
    table = found.table.assign(**{name: found.table[name] + change for name, change in changes.items()})
    return dataclasses.replace(found, table=table)


def scales(rows: np.ndarray, columns: Sequence[Column]) -> np.ndarray:
    """log |dx / d standardised| of the numbers there are in each row, (n,)."""
    return np.where(np.isnan(rows), 0, np.log([column.sd for column in columns])).sum(1)


@functools.partial(jax.jit, static_argnames="model")
def _told(model: LatentModel, theta: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return model.log_prob(theta, x), model.responsibilities(theta, x)  # pyright: ignore[reportOptionalCall]


def told(model: LatentModel, theta: Any, rows: np.ndarray, columns: Sequence[Column]) -> tuple[np.ndarray, np.ndarray]:
    """Of standardised rows log p(x) in the table's units (n,), in nats, and the responsibilities (n, K)."""
    n, width, precision = len(rows), max(1, min(CHUNK, len(rows))), jnp.result_type(float)
    theta = jax.tree.map(lambda a: jnp.asarray(a, precision), theta)
    padded = np.concatenate([rows, np.zeros((-n % width, rows.shape[1]))])
    parts = [_told(model, theta, jnp.asarray(padded[i : i + width], precision)) for i in range(0, len(padded), width)]
    density, share = (np.concatenate([np.asarray(p[j], np.float64) for p in parts])[:n] for j in (0, 1))
    return density - scales(rows, columns), share
