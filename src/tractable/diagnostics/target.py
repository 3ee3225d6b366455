"""The density with which a posterior is compared, evaluated at many places at once."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core.model import Model, PyTree, counted_log_likelihoods, log_posterior, whole
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.operations import operations

BLOCK = 32  # most places evaluated side by side
NUMBERS = 1 << 16  # most coordinates (places × d) in one call of the compiled program
ROWS = 1 << 17  # most rows × places evaluated side by side, if that is more than a place
REACH = 8.0  # posterior radii to which an anchor's correction holds


class Anchor(NamedTuple):
    """What a sample's log density lacks where x are white coordinates of the posterior: h + g·x − xᵀ C x/2."""

    centre: Any  # (d,)
    whiten: Any  # (d, d) x = whiten (z − centre)
    height: Any  # () h
    slope: Any  # (d,) g
    curvature: Any  # (d, d) C

    def __call__(self, position: jax.Array) -> jax.Array:
        """It fades out beyond ``REACH``: far away a sample serves to look for other modes only."""
        x = self.whiten @ (position - self.centre)
        near = 1 / (1 + (jnp.sum(x**2) / (REACH**2 * x.shape[0])) ** 4)
        return near * (self.height + self.slope @ x - x @ self.curvature @ x / 2)


class Target(NamedTuple):
    """log p(y, z) of a flat unconstrained position z, up to a constant; hashable, so that compiled programs are reused.

    Attributes:
        prior: whether the prior is part of it: maximum likelihood has none.
        jacobian: whether it is the density of z, with the Jacobian, or the user's own density at z.
        anchored: whether its rows are a sample and its ``Anchor`` (``diagnostics.few``).
    """

    model: Model
    prior: bool = True
    jacobian: bool = True
    anchored: bool = False

    def __call__(self, position: jax.Array, rows: PyTree) -> jax.Array:
        if self.anchored:
            some, anchor = rows
            return self._replace(anchored=False)(position, some) + anchor(position)
        if self.prior or rows is None:
            batch = None if rows is None else whole(rows)
            return log_posterior(self.model, flat=True, jacobian=self.jacobian)(position, batch)
        unconstrained = self.model.space.unravel(position)
        params = self.model.constrain(unconstrained)
        value = jnp.sum(counted_log_likelihoods(self.model, params, rows))
        return value + self.model.log_jacobian(unconstrained, params) if self.jacobian else value

    def at(self, rows: PyTree, positions: np.ndarray) -> np.ndarray:
        """(n,) at (n, d) positions; −inf where it is not a number."""
        values = np.concatenate([np.asarray(v, np.float64).reshape(-1) for v, _ in self._found(rows, positions)])
        return np.where(np.isfinite(values), values, -np.inf)[: len(positions)]

    def look(self, rows: PyTree, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values (n,) and slopes (n, d) at (n, d) positions; −inf and 0 where they are not numbers."""
        count, size = positions.shape
        found = list(self._found(rows, positions))
        values = np.concatenate([np.asarray(v, np.float64).reshape(-1) for v, _ in found])[:count]
        slopes = np.concatenate([np.asarray(s, np.float64).reshape(-1, size) for _, s in found])[:count]
        good = np.isfinite(values) & np.all(np.isfinite(slopes), 1)
        return np.where(good, values, -np.inf), np.where(good[:, None], slopes, 0.0)

    def _found(self, rows: PyTree, positions: np.ndarray) -> Iterator[tuple[jax.Array, jax.Array]]:
        """Values and slopes, part by part, the last one filled up with its last position.

        Every evaluation goes through this one program, which is compiled once for a model and its rows.
        """
        count, size = positions.shape
        rows_at_once, blocks = _block(rows), _blocks(size)
        many = rows_at_once * blocks
        for begin in range(0, count, many):
            part = positions[begin : begin + many]
            places = np.zeros((many, size), jnp.result_type(float))
            places[: len(part)], places[len(part) :] = part, part[-1]
            yield _values_and_slopes(
                self, rows, places.reshape(blocks, rows_at_once, size), -(-len(part) // rows_at_once)
            )


@compiled("target", if_few=COMPILE_FASTEST)
def _values_and_slopes(
    target: Target, rows: PyTree, blocks: jax.Array, count: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """Values (b, n) and slopes (b, n, d) at places (b, n, d) of the first ``count`` blocks; zeros of the others."""
    look = jax.vmap(jax.value_and_grad(target), (0, None))

    def one(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        seen = look(jax.lax.dynamic_index_in_dim(blocks, i, keepdims=False), rows)
        return jax.tree.map(lambda all_, new: jax.lax.dynamic_update_index_in_dim(all_, new, i, 0), found, seen)

    return jax.lax.fori_loop(0, count, one, (jnp.zeros(blocks.shape[:2], blocks.dtype), jnp.zeros_like(blocks)))


def _blocks(size: int) -> int:
    """Most blocks of places in one call of the compiled program."""
    return max(1, min(64, NUMBERS // (BLOCK * size)))


def _block(rows: PyTree) -> int:
    """Places evaluated side by side: fewer where rows are many, since a block is evaluated whole."""
    count = 1 if rows is None else max(1, jax.tree.leaves(rows)[0].shape[0])
    return max(1, min(BLOCK, ROWS // count))


def gradient_work(target: Target, rows: PyTree) -> float:
    """Operations in one gradient: the same under any load and on every device."""
    leaves, tree = jax.tree.flatten(rows)
    return _work(target, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves), tree)


@functools.lru_cache(maxsize=64)
def _work(target: Target, leaves: tuple[jax.ShapeDtypeStruct, ...], tree: Any) -> float:
    rows, size = jax.tree.unflatten(tree, leaves), target.model.space.size
    places = jax.ShapeDtypeStruct((_blocks(size), _block(rows), size), jnp.result_type(float))
    # The number of blocks is unknown to the program: its loop over them counts as one turn.
    return 100.0 + operations(_values_and_slopes.traced(target, rows, places, 1)) / _block(rows)
