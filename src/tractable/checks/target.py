"""The density that a posterior is held against, evaluated at many places at once."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import Model, counted_log_likelihoods, log_posterior, whole

PyTree = Any
BLOCK = 32  # places in one call of the compiled program
ROWS = 1 << 20  # rows, times places, looked at at once


class Target(NamedTuple):
    """log p(y, z) of a flat unconstrained position z, up to a constant; hashable, so a compilation is found again.

    Attributes:
        prior: whether the prior is part of it: maximum likelihood has none.
        jacobian: whether it is a density of z, or the user's density at z.
    """

    model: Model
    prior: bool = True
    jacobian: bool = True

    def __call__(self, position: jax.Array, rows: PyTree) -> jax.Array:
        if self.prior or rows is None:
            batch = None if rows is None else whole(rows)
            return log_posterior(self.model, flat=True, jacobian=self.jacobian)(position, batch)
        unconstrained = self.model.space.unravel(position)
        params = self.model.constrain(unconstrained)
        value = jnp.sum(counted_log_likelihoods(self.model, params, rows))
        return value + self.model.log_jacobian(unconstrained, params) if self.jacobian else value

    def at(self, rows: PyTree, positions: np.ndarray) -> np.ndarray:
        """(n,) at (n, d) positions; −inf where it is not a number."""
        return self.look(rows, positions)[0]

    def look(self, rows: PyTree, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values (n,) and slopes (n, d) at (n, d) positions; −inf and 0 where they are not numbers.

        All that is looked at goes through this one program, which is compiled once for a model and its rows.
        """
        count, size = positions.shape
        padded = np.concatenate([positions, np.repeat(positions[:1], -count % BLOCK, 0)]).astype(jnp.result_type(float))
        found = [_values_and_slopes(self, rows, block) for block in padded.reshape(-1, BLOCK, size)]
        values = np.concatenate([np.asarray(v, np.float64) for v, _ in found])[:count]
        slopes = np.concatenate([np.asarray(s, np.float64) for _, s in found])[:count]
        good = np.isfinite(values) & np.all(np.isfinite(slopes), 1)
        return np.where(good, values, -np.inf), np.where(good[:, None], slopes, 0.0)


@functools.partial(jax.jit, static_argnames="target")
def _values_and_slopes(target: Target, rows: PyTree, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    look = jax.value_and_grad(target)
    return jax.lax.map(lambda z: look(z, rows), positions, batch_size=_at_once(rows))


def _at_once(rows: PyTree) -> int:
    """Places whose rows are in memory at once."""
    count = 1 if rows is None else max(1, jax.tree.leaves(rows)[0].shape[0])
    return max(1, min(BLOCK, ROWS // count))


def gradient_work(target: Target, rows: PyTree) -> float:
    """Operations in one gradient, as the compiler counts them: the same whatever the load."""
    places = jax.ShapeDtypeStruct((BLOCK, target.model.space.size), jnp.result_type(float))
    counted: Any = _values_and_slopes.lower(target, rows, places).cost_analysis() or {}
    return 100.0 + (counted.get("flops", 0.0) + 10 * counted.get("transcendentals", 0.0)) / _at_once(rows)
