"""The placement of a run's chains and rows: here on one device, in ``engine.sharding`` over several devices."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tractable.core.batches import Batch, Plan, batch_of_window, window
from tractable.core.rows import Data
from tractable.core.tree import PyTree


@jax.tree_util.register_static
class OneDevice:
    """The placement of all chains and all rows on one device, and the interface of every other placement.

    On one device nothing is divided, so most methods here return their argument. A specification says along which axes
    of the mesh an array is divided (``jax.sharding.PartitionSpec``).

    Attributes:
        divides_rows: whether sums over rows are taken over the shards of several devices.
        many_processes: whether the devices belong to several processes.
        is_writer: whether this process shows progress and writes files.
        row_devices: the number of devices over which rows are divided.
        mesh: the ``jax.sharding.Mesh`` of the devices; None on one device.
        bits: names the order in which sums are added, on which rounding depends; only a placement of equal ``bits``
            can continue a run.
        by_chain, by_buffer, on_all: specifications of arrays (chain, ...), of buffers (draw, chain, ...), and of arrays
            that every device has in full.
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

    def fingerprint(self) -> str | None:
        """Names this placement in the files of programs, of which there are none for several devices."""
        return "one device" if type(self) is OneDevice else None

    def rows_of(self, data: Data, plan: Plan | None) -> PyTree:
        """The rows as a program takes them: all rows, or with a plan the shuffled rows, of which a batch is a slice."""
        return data.arrays() if plan is None else data.windows(plan.width)

    def rows_and_counts(self, data: Data) -> tuple[PyTree, jax.Array | None]:
        """All rows, and the number of times that each counts; None if the rows themselves hold this number."""
        return data.arrays(), None

    def place_chunk(self, rows: PyTree, counts: np.ndarray) -> tuple[PyTree, jax.Array]:
        """Some rows, and the number of times that each counts, as arrays on the device."""
        return rows, jax.numpy.asarray(counts)

    def read(self, data: Data, plan: Plan, starts: np.ndarray, capacity: int) -> PyTree:
        """Read from file the batches that begin at rows ``starts`` (chain, groups, blocks, steps).

        Returns:
            Arrays (chain, capacity, blocks, steps, rows, ...); the entries of groups beyond ``starts`` are 0.
        """
        missing = capacity - starts.shape[1]

        def pad(a: np.ndarray) -> jax.Array:
            return jax.numpy.asarray(np.concatenate([a, np.zeros((a.shape[0], missing, *a.shape[2:]), a.dtype)], 1))

        return jax.tree.map(pad, data.read(starts, plan.width))

    def window(self, windows: PyTree, plan: Plan, start: jax.Array, rows: jax.Array, index: jax.Array | int) -> Batch:
        """The batch of ``rows`` rows that begins at row ``start`` of the shuffled rows that ``rows_of`` placed."""
        return window(windows, plan, start, rows, index)

    def windowed(self, cut: PyTree, plan: Plan, rows: jax.Array, index: jax.Array | int) -> Batch:
        """The batch with the rows ``cut``, which ``read`` has read from file."""
        return batch_of_window(cut, plan, rows, index)

    def spread(self, tree: PyTree, *axes: str | None) -> PyTree:
        """Put arrays of the host on the devices, divided along ``axes``; without axes, every device has all of them."""
        return tree

    def cut(self, count: int) -> int:
        """The number of rows that one device evaluates if there are ``count`` rows in total."""
        return count

    def place(self, tree: PyTree, spec: Any) -> PyTree:
        """Place arrays as a program returns them with the specification ``spec``: others would need another program."""
        return tree

    def share(self, tree: PyTree) -> PyTree:
        """Put arrays of this process on the devices of all processes."""
        return tree

    def collect(self, tree: PyTree) -> PyTree:
        """Bring arrays together on one device of this process."""
        return tree

    def rows_spec(self, streams: bool) -> Any:
        """The specification of rows, or of batches if a program ``streams`` them from file."""
        return None

    def gather(self, number: int) -> np.ndarray:
        """(devices,) the number that each device's process gives; every process waits here for all other processes."""
        return np.array([number])

    def any_process(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """A function that is true on all processes once ``stop`` is true on one of them."""
        return stop

    def map_devices(self, function: Callable, ins: tuple, outs: PyTree) -> Callable:
        """A function that applies ``function`` on every device to the parts of the arguments on that device.

        ``ins`` and ``outs`` are the specifications of the arguments and of the results.
        """
        return function

    def run(self, function: Callable, *args: PyTree) -> PyTree:
        """The result of ``function(*args)`` for arrays that this process holds."""
        return function(*args)

    def each_chain(self, function: Callable, *args: PyTree) -> PyTree:
        """Apply ``function`` to every chain. A single chain runs without vmap, which would turn slices into gathers."""
        if jax.tree.leaves(args)[0].shape[0] > 1:
            return jax.vmap(function)(*args)
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], args)))

    def map_chains(self, function: Callable, *args: PyTree) -> PyTree:
        """Apply ``function`` to every chain by vmap, a single chain included: for functions without slices."""
        return jax.vmap(function)(*args)

    def over_chains(self, function: Callable) -> Callable:
        """A function of all chains, made from a function ``(rows, key, position)`` of one chain."""
        return jax.vmap(function, in_axes=(None, 0, 0))

    def every(self, is_fine: jax.Array) -> jax.Array:
        """Whether ``is_fine`` is true on all devices."""
        return is_fine

    def sum_rows(self, function: Callable) -> Callable:
        """A function ``(theta, batch) -> sums`` over the rows of all devices; ``function`` takes one device's rows."""
        return function


ONE_DEVICE = OneDevice()
