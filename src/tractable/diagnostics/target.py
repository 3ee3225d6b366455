"""The density with which a posterior is compared, evaluated at many positions at once."""

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

BLOCK = 32  # maximum number of positions that are evaluated in one vectorised block
NUMBERS = 1 << 16  # maximum number of coordinates (positions × d) in one call of the compiled program
ROWS = 1 << 17  # a block has fewer positions if it would have more than this many rows × positions
REACH = 8.0  # least distance, in posterior radii √d, beyond which an anchor's correction fades out


class Anchor(NamedTuple):
    """The correction h + g·x − xᵀ C x/2 of the log density of a sample of the rows, near the posterior.

    x are white coordinates, in which the posterior has mean zero and unit covariance (``diagnostics.few``). Beyond
    ``REACH`` the sample serves to find modes, and two parts of the correction remain: the height, because the sums over
    all rows and over a sample differ by hundreds of nats; and what acts along directions that the sample's rows hardly
    inform, such as the effect of a rare category. Without them, the density would be as high there as at its mode.
    """

    centre: Any  # (d,) the posterior's mean
    whiten: Any  # (d, d) x = whiten (z − centre)
    height: Any  # () h
    slope: Any  # (d,) g
    curvature: Any  # (d, d) C
    unseen: Any  # (d, d) the projection onto the directions that the sample hardly informs

    def __call__(self, position: jax.Array) -> jax.Array:
        """The correction at a position (d,)."""
        x = self.whiten @ (position - self.centre)
        unseen = self.unseen @ x
        # The sample's own maximum lies about |g| sds away.
        reach = REACH**2 * x.shape[0] + 16 * jnp.sum((self.slope - self.unseen @ self.slope) ** 2)
        near = 1 / (1 + (jnp.sum((x - unseen) ** 2) / reach) ** 4)
        return self.height + self._change(unseen) + near * self._change(x - unseen)

    def _change(self, x: jax.Array) -> jax.Array:
        return self.slope @ x - x @ self.curvature @ x / 2


class Target(NamedTuple):
    """log p(y, z) of a flat unconstrained position z, up to a constant.

    A target is hashable, so that compiled programs are reused.

    Attributes:
        model: the model.
        prior: whether the density includes the prior; for maximum likelihood it does not.
        jacobian: whether it is the density of z, with the Jacobian, or the density of the constrained parameters.
        anchored: whether the rows given to it are a sample of the rows and an ``Anchor`` (``diagnostics.few``).
    """

    model: Model
    prior: bool = True
    jacobian: bool = True
    anchored: bool = False

    def __call__(self, position: jax.Array, rows: PyTree) -> jax.Array:
        if self.anchored:
            sample, anchor = rows
            return self._replace(anchored=False)(position, sample) + anchor(position)
        if self.prior or rows is None:
            batch = None if rows is None else whole(rows)
            return log_posterior(self.model, flat=True, jacobian=self.jacobian)(position, batch)
        unconstrained = self.model.space.unravel(position)
        params = self.model.constrain(unconstrained)
        value = jnp.sum(counted_log_likelihoods(self.model, params, rows))
        return value + self.model.log_jacobian(unconstrained, params) if self.jacobian else value

    def at(self, rows: PyTree, positions: np.ndarray) -> np.ndarray:
        """Values (n,) at positions (n, d); −inf where the value is not finite."""
        values = np.concatenate([value for value, _ in self._evaluate(rows, positions)], dtype=np.float64)
        return np.where(np.isfinite(values), values, -np.inf)

    def look(self, rows: PyTree, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values (n,) and gradients (n, d) at positions (n, d); −inf and 0 where they are not finite."""
        parts = zip(*self._evaluate(rows, positions), strict=True)
        values, slopes = (np.concatenate(each, dtype=np.float64) for each in parts)
        finite = np.isfinite(values) & np.all(np.isfinite(slopes), 1)
        return np.where(finite, values, -np.inf), np.where(finite[:, None], slopes, 0.0)

    def _evaluate(self, rows: PyTree, positions: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields values (p,) and gradients (p, d) of p positions at a time.

        Every evaluation uses the same program, which is compiled once for a model and its rows.
        """
        count, size = positions.shape
        block, blocks = _block(rows), _blocks(size)
        chunk = block * blocks
        for begin in range(0, count, chunk):
            part = positions[begin : begin + chunk]
            places = np.zeros((chunk, size), jnp.result_type(float))
            places[: len(part)], places[len(part) :] = part, part[-1]
            found = _values_and_slopes(self, rows, places.reshape(blocks, block, size), -(-len(part) // block))
            values, slopes = map(np.asarray, found)
            yield values.reshape(-1)[: len(part)], slopes.reshape(-1, size)[: len(part)]


@compiled("target", if_few=COMPILE_FASTEST)
def _values_and_slopes(
    target: Target, rows: PyTree, blocks: jax.Array, count: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """Values (b, n) and gradients (b, n, d) at positions (b, n, d) of the first ``count`` blocks; zeros in others."""
    value_and_grad = jax.vmap(jax.value_and_grad(target), (0, None))

    def fill(i: jax.Array, results: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        of_block = value_and_grad(jax.lax.dynamic_index_in_dim(blocks, i, keepdims=False), rows)
        return jax.tree.map(lambda a, new: jax.lax.dynamic_update_index_in_dim(a, new, i, 0), results, of_block)

    return jax.lax.fori_loop(0, count, fill, (jnp.zeros(blocks.shape[:2], blocks.dtype), jnp.zeros_like(blocks)))


def _blocks(size: int) -> int:
    """Number of blocks of positions in one call of the compiled program, for positions of ``size`` coordinates."""
    return max(1, min(64, NUMBERS // (BLOCK * size)))


def _block(rows: PyTree) -> int:
    """Number of positions in a block: fewer if there are many rows, because all rows are evaluated for all of them."""
    count = 1 if rows is None else max(1, jax.tree.leaves(rows)[0].shape[0])
    return max(1, min(BLOCK, ROWS // count))


def gradient_work(target: Target, rows: PyTree) -> float:
    """Number of arithmetic operations in one gradient; unlike a run time, it is the same on every device."""
    leaves, tree = jax.tree.flatten(rows)
    return _work(target, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves), tree)


@functools.lru_cache(maxsize=64)
def _work(target: Target, leaves: tuple[jax.ShapeDtypeStruct, ...], tree: Any) -> float:
    """``gradient_work`` for rows of given shapes; the last 64 results are cached."""
    rows, size = jax.tree.unflatten(tree, leaves), target.model.space.size
    places = jax.ShapeDtypeStruct((_blocks(size), _block(rows), size), jnp.result_type(float))
    # The number of blocks is an argument of the program, so its loop over them counts as one iteration.
    return 100.0 + _values_and_slopes.count(operations, target, rows, places, 1) / _block(rows)
