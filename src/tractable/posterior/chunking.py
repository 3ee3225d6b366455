"""Cuts rows into chunks and draws into blocks, so that the memory of a computation over both is limited."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tractable.core.tree import PyTree, row_shapes
from tractable.engine.placement import ONE_DEVICE, OneDevice

BYTES = 1 << 25  # maximum number of bytes of a chunk's intermediate results, and of its results
DRAWS = 1 << 28  # maximum size of a block of draws of the parameters, in bytes


def blocks_of_draws(params: PyTree, weights: np.ndarray, placement: OneDevice) -> list[tuple[int, PyTree, Any]]:
    """Blocks of at most ``DRAWS`` bytes: (number of the first draw, draws, weights).

    If one block holds all draws, it stays on the device.
    """
    total = len(weights)
    count = -(-sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(params)) // DRAWS)
    if count <= 1:
        return [(0, *placement.spread((jax.device_put(params), weights)))]
    size = -(-total // min(count, total))
    blocks = (jax.tree.map(lambda a, i=i: a[i : i + size], (params, weights)) for i in range(0, total, size))
    return [(i * size, *placement.spread(block)) for i, block in enumerate(blocks)]


def rows_per_chunk(count: int, bytes_a_row: int, placement: OneDevice) -> int:
    """The number of rows per chunk (and device), so that a chunk takes at most ``BYTES``.

    The chunks have about equal lengths.
    """
    count = placement.cut(count)
    return -(-count // -(-count // max(1, BYTES // bytes_a_row)))


def fitting(
    function: Callable, params: PyTree, rows: PyTree, count: int,
    *, abreast: int = 1, answers: int = 1, placement: OneDevice = ONE_DEVICE,
) -> int:  # fmt: skip
    """The number of rows per chunk, so that evaluations of ``function(theta, rows, index)`` fit into ``BYTES``.

    Args:
        function: the function of one draw of the parameters, the rows of a chunk, and their indices.
        params, rows, count: the draws, the rows, and the number of rows.
        abreast: number of draws whose intermediate results are in memory at the same time.
        answers: number of draws whose results are in memory at the same time.
        placement: the devices.
    """
    activations, out = bytes_per_row(function, params, rows)
    answer = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(out))
    return rows_per_chunk(count, max(abreast * activations, answers * answer), placement)


def bytes_per_row(function: Callable, params: PyTree, rows: PyTree) -> tuple[int, Any]:
    """Bytes of intermediate results of ``function(theta, rows, index)`` per row, and the shapes of one row's results.

    The bytes are the difference between the function's programs for two rows and for one row. Intermediate results that
    only depend on the parameters cancel in this difference.
    """
    theta = row_shapes(params)

    def trace(size: int) -> tuple[int, Any]:
        chunk = row_shapes(rows, size)
        jaxpr, out = jax.make_jaxpr(function, return_shape=True)(theta, chunk, jax.ShapeDtypeStruct((size,), np.int32))
        return _bytes(jaxpr.jaxpr) + sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(chunk)), out

    bytes_of_one, out = trace(1)
    return max(trace(2)[0] - bytes_of_one, 1), out


def _bytes(jaxpr: Any) -> int:
    """Bytes of all intermediate results of a program, including those of the programs inside it."""
    arrays = [v.aval for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "size")]
    inner = (value.jaxpr for eqn in jaxpr.eqns for value in eqn.params.values() if hasattr(value, "jaxpr"))
    return sum(a.size * a.dtype.itemsize for a in arrays) + sum(map(_bytes, inner))
