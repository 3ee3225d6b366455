"""Batches of rows, and the plan by which a run walks through the rows."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.tree import PyTree

FAR = 1 << 30  # from this many rows on, a sum of two row numbers may exceed 32 bits, so the host computes it


class Batch(NamedTuple):
    """Some rows of a data set, and the numbers that scale a sum over them to the whole data set.

    Attributes:
        data: pytree of rows, every leaf (n, ...).
        mask: (n,) how often each row counts: 0 for padding, else 1 or the row's weight.
        size: N, the number of rows of the whole data set. A sum over the batch is multiplied by N/n.
        index: the batch's position in its epoch, in 0..M−1.
        count: M, the number of batches in an epoch.
        rows: the number n of rows if the mask holds weights; None if it holds 0 and 1, so that its sum is n.
        over: the devices (``engine.sharding.OverDevices``) among which the rows are divided. ``data`` and ``mask`` are
            then one device's part, with a leading axis of shards. None where one device has all rows.
        places: (n,) each row's position in the batch, if the rows are divided among devices; None for 0, 1, ….
    """

    data: PyTree
    mask: jax.Array
    size: Any  # an int, or traced
    index: jax.Array | int = 0
    count: int = 1
    rows: Any = None
    over: Any = None
    places: Any = None

    @property
    def scale(self) -> jax.Array:
        """N/n, the factor that makes the batch's sum an unbiased estimate of the data set's sum."""
        return self.size / jnp.maximum(jnp.sum(self.mask) if self.rows is None else self.rows, 1)

    def summed(self, function: Callable, params: PyTree) -> Any:
        """``function(params, batch)``, a sum over the batch's rows, added up over the devices that hold rows."""
        if self.over is None:
            return function(params, self)

        def of(params: PyTree, part: tuple[PyTree, jax.Array, Any]) -> Any:
            return function(params, self._replace(data=part[0], mask=part[1], places=part[2], over=None))

        return self.over.summed(of, params, (self.data, self.mask, self.places))

    def keys(self, key: jax.Array) -> jax.Array:
        """(n,) one key for each row, which depends on the row's position in the batch and not on its device."""
        places = jnp.arange(self.mask.shape[0]) if self.places is None else self.places
        return jax.vmap(jax.random.fold_in, (None, 0))(key, places)

    def counted(self, terms: jax.Array) -> jax.Array:
        """The rows' terms (n, ...), each times how often the row counts; 0 for padding, even if its term is NaN."""
        trailing = tuple(range(1, terms.ndim))
        masked = jnp.where(jnp.expand_dims(self.mask > 0, trailing), terms, 0.0)
        if self.rows is None:
            return masked
        return jnp.expand_dims(self.mask, trailing).astype(masked.dtype) * masked


class Weighted(NamedTuple):
    """Rows with their weights: ``Data`` with weights returns this in place of (y, given)."""

    y: PyTree
    given: PyTree
    weights: Any  # (n,) ≥ 0


class Members(NamedTuple):
    """The inputs of groups of rows, each group padded to the size of the largest: ``Data.given`` of data with groups.

    Attributes:
        given: pytree of inputs, every leaf (groups, members, ...); None where there are none.
        counts: (groups, members) how often each row counts; 0 for padding.
    """

    given: PyTree
    counts: Any


def split_weights(rows: PyTree) -> tuple[PyTree, Any]:
    """(rows, weights); the weights are None where every row counts once."""
    return ((rows.y, rows.given), rows.weights) if isinstance(rows, Weighted) else (rows, None)


def whole(rows: PyTree) -> Batch:
    """All rows as one batch."""
    if isinstance(rows, PlacedRows):
        data, counts = rows.over.by_shard((rows.rows, rows.counts))
        return Batch(data, counts, rows.size, rows=rows.size, over=rows.over)
    rows, weights = split_weights(rows)
    size = jax.tree.leaves(rows)[0].shape[0]
    return Batch(rows, jnp.ones(size), size) if weights is None else Batch(rows, weights, size, rows=size)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows", "counts"], meta_fields=["size", "over"])
@dataclass(frozen=True)
class PlacedRows:
    """All rows, divided among devices: ``engine.sharding.OverDevices.placed_rows`` returns this in place of (y, given).

    Attributes:
        rows: (y, given), every leaf (shards × rows of a shard, ...).
        counts: (shards × rows of a shard,) how often a row counts; 0 for padding.
        size: N.
        over: the devices.
    """

    rows: PyTree
    counts: Any
    size: int
    over: Any


class Plan(NamedTuple):
    """How a run draws batches of N rows: at most ``batch_size`` rows a step, by epochs or independently.

    The rows are shuffled once. An epoch cuts them, from a random offset, into M contiguous blocks whose sizes differ by
    at most one, and visits the blocks in a random order. The batches of an epoch are therefore negatively correlated,
    which lowers the noise of their sum. With ``independent`` each batch begins at a new random row. The noise
    of the gradient is then independent from step to step, as SGLD's correction for that noise requires.
    """

    size: int
    batch_size: int
    independent: bool = False

    @property
    def count(self) -> int:
        """M, the number of batches in an epoch."""
        return -(-self.size // self.batch_size)

    @property
    def width(self) -> int:
        """n, the number of rows in the largest batch: ⌈N/M⌉, since the blocks are balanced."""
        return -(-self.size // self.count)

    @property
    def far(self) -> bool:
        """Whether row numbers exceed 32 bits; ``place`` then returns words, and ``first_rows`` the row numbers."""
        return self.size >= FAR

    @property
    def total(self) -> int | float:
        """N as compiled programs take it (``narrow``)."""
        return narrow(self.size)


def narrow(size: int) -> int | float:
    """A count of rows that fits in 32 bits: an int below 2³⁰, else a float."""
    return float(size) if size >= FAR else size


def place(plan: Plan, key: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Batch t of a run: (first row, number of rows, index in its epoch), in O(1) for every N.

    If the plan is ``far``, three words of 32 bits take the place of the first row; ``first_rows`` combines them.
    """
    if plan.independent:
        key = jax.random.fold_in(key, t)
        if plan.far:
            words = jax.random.bits(key, (2,), jnp.uint32)
            return jnp.concatenate([words, jnp.zeros(1, jnp.uint32)]), jnp.array(plan.width), t % plan.count
        start = jax.random.randint(key, (), 0, plan.size)
        return start, jnp.array(plan.width), t % plan.count
    epoch, index = t // plan.count, t % plan.count
    # A single call of the generator, since this runs at every step, and a gradient may take only tens of microseconds.
    words = jax.random.bits(jax.random.fold_in(key, epoch), (10,), jnp.uint32)
    block = permute(words[:8], index, plan.count)
    small, larger = divmod(plan.size, plan.count)
    rows = small + (block < larger)
    if plan.far:
        return jnp.concatenate([words[8:], block[None].astype(jnp.uint32)]), rows, index
    # 2³² is no multiple of N, so a residue is not exactly uniform. A sum of two is closer, as its bias is the square.
    offset = ((words[8] % plan.size + words[9] % plan.size) % plan.size).astype(jnp.int32)
    start = (offset + block * small + jnp.minimum(block, larger)) % plan.size
    return start, rows, index


def first_rows(plan: Plan, starts: jax.Array | np.ndarray) -> np.ndarray:
    """The first row of each batch, 64-bit integers (...), from what ``place`` returned: words (..., 3) if ``far``."""
    if not plan.far:
        return np.asarray(starts)
    high, low, block = np.moveaxis(np.asarray(starts).astype(np.uint64), -1, 0)
    # 2⁶⁴ is no multiple of N, but the probabilities of two rows differ by a factor of 1 + N/2⁶⁴ at most.
    offset = (((high << np.uint64(32)) | low) % np.uint64(plan.size)).astype(np.int64)
    small, larger = divmod(plan.size, plan.count)
    block = block.astype(np.int64)
    return (offset + block * small + np.minimum(block, larger)) % plan.size


def permute(salts: jax.Array, index: jax.Array, count: int) -> jax.Array:
    """π(index), where eight random words choose the pseudo-random permutation π of 0..count−1.

    A Feistel network on Z_a × Z_b with ab ≥ count, applied until the result is below ``count``: no array is needed.
    """
    if count == 1:
        return jnp.zeros_like(index)
    a = int(np.ceil(np.sqrt(count)))
    b = -(-count // a)

    def mix(x: jax.Array, salt: jax.Array) -> jax.Array:
        x = (x.astype(jnp.uint32) + jnp.uint32(1)) * jnp.uint32(0x9E3779B1) ^ salt
        x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
        return ((x ^ (x >> 16)) >> 2).astype(jnp.int32)  # shifted by 2, so that a sum with it stays in int32

    def rounds(x: jax.Array) -> jax.Array:
        left, right = x // b, x % b
        for r in range(4):
            left = (left + mix(right, salts[2 * r])) % a
            right = (right + mix(left, salts[2 * r + 1])) % b
        return left * b + right

    return jax.lax.while_loop(lambda x: x >= count, rounds, rounds(jnp.asarray(index, jnp.int32)))


def window(windows: PyTree, plan: Plan, start: jax.Array, rows: jax.Array, index: jax.Array | int) -> Batch:
    """The batch that begins at ``start`` (from ``place``): a slice of ``windows``, which ``Data.windows`` returned."""
    data = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, plan.width), windows)
    return batch_of_window(data, plan, rows, index)


def batch_of_window(data: PyTree, plan: Plan, rows: jax.Array, index: jax.Array | int) -> Batch:
    """The batch of rows that ``Data.read`` returned."""
    data, weights = split_weights(data)
    if plan.size % plan.count == 0 or plan.independent:  # all batches are full
        mask = jnp.ones(plan.width)
    else:
        mask = (jnp.arange(plan.width) < rows).astype(jnp.result_type(float))
    if weights is None:
        return Batch(data, mask, plan.total, index, plan.count)
    return Batch(data, mask * weights, plan.total, index, plan.count, jnp.sum(mask))
