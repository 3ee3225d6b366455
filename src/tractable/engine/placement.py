"""Where a run's chains and rows are placed: on one device, the simplest case, or over several (``engine.sharding``)."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tractable.core.rows import Batch, Data, Plan, window, windowed
from tractable.core.tree import PyTree


@jax.tree_util.register_static
class OneDevice:
    """All chains and all rows on one device: the methods that every placement has, where there is nothing to divide.

    Attributes:
        divides_rows: whether sums over rows are taken by shards.
        many_processes: whether devices belong to several processes.
        is_writer: whether this process shows progress and writes files.
        row_devices: over how many devices rows are divided.
        mesh: the ``jax.sharding.Mesh`` of the devices; None on one.
        bits: what else the last bits of a run depend on; a run goes on with a placement of equal ``bits``.
        by_chain, by_buffer, on_all: specifications of arrays by chain, of buffers (draw, chain), of shared arrays.
    """

    divides_rows: bool = False
    many_processes: bool = False
    is_writer: bool = True
    row_devices: int = 1
    mesh: Any = None
    bits: str = "none"
    by_chain: Any = None
    by_buffer: Any = None
    on_all: Any = None

    def rows_of(self, data: Data, plan: Plan | None) -> PyTree:
        """The rows as a program takes them: all of them, or in the order of their batches."""
        return data.arrays() if plan is None else data.windows(plan.width)

    def rows_and_counts(self, data: Data) -> tuple[PyTree, jax.Array | None]:
        """All rows, and how often each counts; None where the rows say so themselves."""
        return data.arrays(), None

    def place_chunk(self, rows: PyTree, counts: np.ndarray) -> tuple[PyTree, jax.Array]:
        """Some rows, and how often each counts."""
        return rows, jax.numpy.asarray(counts)

    def read(self, data: Data, plan: Plan, starts: np.ndarray, capacity: int) -> PyTree:
        """Batches from file that begin at rows ``starts`` (chain, groups, blocks, steps).

        Returns:
            Every leaf (chain, capacity, blocks, steps, rows, ...); groups that are not read are 0.
        """
        missing = capacity - starts.shape[1]

        def pad(a: np.ndarray) -> jax.Array:
            return jax.numpy.asarray(np.concatenate([a, np.zeros((a.shape[0], missing, *a.shape[2:]), a.dtype)], 1))

        return jax.tree.map(pad, data.read(starts, plan.width))

    def window(self, windows: PyTree, plan: Plan, start: jax.Array, rows: jax.Array, index: jax.Array | int) -> Batch:
        """The batch of ``rows`` rows from row ``start`` of what ``rows_of`` placed."""
        return window(windows, plan, start, rows, index)

    def windowed(self, cut: PyTree, plan: Plan, rows: jax.Array, index: jax.Array | int) -> Batch:
        """The batch that ``read`` read."""
        return windowed(cut, plan, rows, index)

    def spread(self, tree: PyTree, *axes: str | None) -> PyTree:
        """Host arrays on the devices, divided along ``axes``; without axes, all of it on every device."""
        return tree

    def cut(self, count: int) -> int:
        """How many of ``count`` rows a device evaluates by itself, at most."""
        return count

    def place(self, tree: PyTree, spec: Any) -> PyTree:
        """Arrays where a program that hands them on by ``spec`` leaves them."""
        return tree

    def share(self, tree: PyTree) -> PyTree:
        """Arrays of this process, on the devices of all processes."""
        return tree

    def collect(self, tree: PyTree) -> PyTree:
        """Arrays on one device of this process."""
        return tree

    def rows_spec(self, streams: bool) -> Any:
        """Specification of rows, or of the batches that a program ``streams`` from file."""
        return None

    def gather(self, number: int) -> np.ndarray:
        """(devices,) the number that each device's process gives; every process waits here for all others."""
        return np.array([number])

    def any_process(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """``stop``, true on all processes once it is true on one."""
        return stop

    def map_devices(self, function: Callable, ins: tuple, outs: PyTree) -> Callable:
        """``function`` on every device, of the parts of its arguments there."""
        return function

    def run(self, function: Callable, *args: PyTree) -> PyTree:
        """``function(*args)`` of arrays that this process holds."""
        return function(*args)

    def each_chain(self, function: Callable, *args: PyTree) -> PyTree:
        """``function`` of every chain; a single chain runs without vmap, so that its slices stay slices."""
        if jax.tree.leaves(args)[0].shape[0] > 1:
            return jax.vmap(function)(*args)
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], args)))

    def map_chains(self, function: Callable, *args: PyTree) -> PyTree:
        """``function`` of every chain, by vmap also where there is one: for work that slices nothing."""
        return jax.vmap(function)(*args)

    def over_chains(self, function: Callable) -> Callable:
        """``function(rows, key, position)`` of one chain as a function of all chains."""
        return jax.vmap(function, in_axes=(None, 0, 0))

    def every(self, is_fine: jax.Array) -> jax.Array:
        """Whether all devices are fine."""
        return is_fine

    def sum_rows(self, function: Callable) -> Callable:
        """``(theta, batch) -> sums`` over the rows of all devices."""
        return function


ONE_DEVICE = OneDevice()
