"""One run over several devices: the placement of its chains and rows, and reproducible sums over rows.

Rows are divided into ``SHARDS`` parts, called shards, whatever the number of devices. Every shard is summed by itself.
The shards' sums are then added in pairs, the pairs' sums in pairs, and so on: first within each device, then over all
devices. A sum of two floats does not depend on their order. So the result is exactly the same on 2, 4 or 8 devices, in
one process or in several. For a single device XLA compiles other programs, whose rounding may differ.
docs/decisions/041 has the experiments.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tractable.core.batches import Batch, PlacedRows, Plan, split_weights
from tractable.core.errors import SettingsError
from tractable.core.rows import SHUFFLE, Data
from tractable.core.tree import PyTree
from tractable.engine.placement import ONE_DEVICE, OneDevice

CHAINS, ROWS = "chain", "row"
BY_ROW, ON_ALL = PartitionSpec(ROWS), PartitionSpec()  # arrays divided along their first axis; undivided arrays
SMALL = 1 << 14  # an array of at most this many numbers is sent to all devices in one message: faster than in slices
# Twice the largest number of devices for rows, so that every device has at least two shards: XLA would compile a loop
# over a single shard to a program that rounds differently.
SHARDS = 16


@jax.tree_util.register_static
@dataclass(frozen=True)
class OverDevices(OneDevice):
    """The placement of chains along a mesh's axis "chain", and of rows along its axis "row".

    Attributes:
        mesh: the mesh, with these two axes.
        divides_rows: whether sums over rows are taken over shards; one device may hold all shards.
        reproducible: whether the shards' sums are added in a fixed order; if not, XLA chooses the order.
    """

    mesh: Mesh
    divides_rows: bool
    reproducible: bool = True

    by_chain: ClassVar[PartitionSpec] = PartitionSpec(CHAINS)
    by_buffer: ClassVar[PartitionSpec] = PartitionSpec(None, CHAINS)
    on_all: ClassVar[PartitionSpec] = PartitionSpec()

    @property
    def shards(self) -> int:
        """The number of shards into which rows are divided."""
        return SHARDS if self.reproducible else self.mesh.shape[ROWS]

    @property
    def row_devices(self) -> int:
        return self.mesh.shape[ROWS]

    @property
    def many_processes(self) -> bool:
        return len({device.process_index for device in self.mesh.devices.flat}) > 1

    @property
    def bits(self) -> str:
        return (
            "over chains" if not self.divides_rows else f"over rows, {'' if self.reproducible else 'not '}reproducible"
        )

    # Where arrays are placed

    def spread(self, tree: PyTree, *axes: str | None) -> PyTree:
        return jax.tree.map(lambda a: _place(a, NamedSharding(self.mesh, PartitionSpec(*axes))), tree)

    def place(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        # A program is compiled again for arrays that are placed in another way, even along an axis of one device.
        axes = [] if self.many_processes else [axis if axis and self.mesh.shape[axis] > 1 else None for axis in spec]
        while axes and axes[-1] is None:
            axes.pop()
        return self.spread(tree, *axes)

    def share(self, tree: PyTree) -> PyTree:
        return self.spread(tree) if self.many_processes else tree

    def rows_of(self, data: Data, plan: Plan | None) -> PyTree:
        if not self.divides_rows:
            return super().rows_of(data, plan)
        if plan is not None:
            return self.windows(data, plan.width)
        return PlacedRows(*self.rows_and_counts(data), data.size, self)

    def rows_and_counts(self, data: Data) -> tuple[PyTree, jax.Array]:
        return self.lay(data.rows, data.weights)

    def place_chunk(self, rows: PyTree, counts: np.ndarray) -> tuple[PyTree, jax.Array]:
        return self.lay(rows, counts)

    def lay(self, rows: PyTree, counts: np.ndarray | None = None) -> tuple[PyTree, jax.Array]:
        """Place n ≥ 1 rows on the devices, in shards of ⌈n/shards⌉ rows, with the number of times that each row counts.

        If the number of shards does not divide n, the last row is repeated with count 0. A row of zeros would not do
        for this, since it might lie outside the support.
        """
        rows = jax.tree.map(np.asarray, rows)
        size = jax.tree.leaves(rows)[0].shape[0]
        missing = -size % self.shards
        counts = np.ones(size) if counts is None else np.asarray(counts)
        if missing:
            rows = jax.tree.map(lambda a: np.concatenate([a, np.repeat(a[-1:], missing, 0)]), rows)
            counts = np.concatenate([counts, np.zeros(missing, counts.dtype)])
        return self.spread((rows, np.asarray(counts, jnp.result_type(float))), ROWS)

    def windows(self, data: Data, width: int) -> PyTree:
        """The rows of ``data.windows``, with row i in shard i mod ``shards``: any batch is a slice of each shard."""
        order = np.random.default_rng(SHUFFLE).permutation(data.size)
        order = np.concatenate([order, order[:width]])
        each = -(-len(order) // self.shards) + 1
        order = np.pad(order, (0, each * self.shards - len(order)), mode="wrap")
        order = order.reshape(each, self.shards).T.ravel()
        return self.spread(data.each(lambda a: np.take(a, order, 0)), ROWS)

    def window(self, windows: PyTree, plan: Plan, start: jax.Array, rows: jax.Array, index: jax.Array | int) -> Batch:
        """The batch as on one device; if rows are divided, its arrays have a leading axis of this device's shards."""
        if not self.divides_rows:
            return super().window(windows, plan, start, rows, index)
        count, width = self.shards_here, -(-plan.width // self.shards)
        mine = jax.lax.axis_index(ROWS) * count + jnp.arange(count)  # the shards of this device
        first = (start - mine + self.shards - 1) // self.shards  # index, in each shard, of its first row in the batch

        def cut(a: jax.Array) -> jax.Array:
            each = a.shape[0] // count
            return jnp.stack([jax.lax.dynamic_slice_in_dim(a, s * each + first[s], width) for s in range(count)])

        data, weights = split_weights(jax.tree.map(cut, windows))
        number = (first[:, None] + jnp.arange(width)) * self.shards + mine[:, None]
        mask = (number < start + rows).astype(jnp.result_type(float))
        mask = mask if weights is None else mask * weights
        return Batch(data, mask, plan.size, index, plan.count, rows.astype(mask.dtype), self, number - start)

    def read(self, data: Data, plan: Plan, starts: np.ndarray, capacity: int) -> PyTree:
        """Read batches as on one device, but every process reads only the parts of its own devices.

        Each shard has consecutive rows of a batch. Rows beyond the end of the batch get count 0.
        """
        if not self.divides_rows:
            return self.spread(super().read(data, plan, starts, capacity), CHAINS)
        width = self.shards * -(-plan.width // self.shards)
        sharding, shape = (
            NamedSharding(self.mesh, self.rows_spec(True)),
            (len(starts), capacity, *starts.shape[2:], width),
        )

        def of_device(place: tuple) -> PyTree:
            rows = data.read(starts[place[0]], width, place[-1])
            missing = capacity - starts.shape[1]
            return jax.tree.map(lambda a: np.pad(a, [(0, 0), (0, missing)] + [(0, 0)] * (a.ndim - 2)), rows)

        places: Any = sharding.addressable_devices_indices_map(shape)
        parts = [jax.device_put(of_device(place), device) for device, place in places.items()]

        def combine(*parts: jax.Array) -> jax.Array:
            return jax.make_array_from_single_device_arrays((*shape, *parts[0].shape[5:]), sharding, list(parts))

        return jax.tree.map(combine, *parts)

    def windowed(self, cut: PyTree, plan: Plan, rows: jax.Array, index: jax.Array | int) -> Batch:
        """This device's part of a batch that ``read`` read from file."""
        if not self.divides_rows:
            return super().windowed(cut, plan, rows, index)
        data, weights = split_weights(self.by_shard(cut))
        width = jax.tree.leaves(data)[0].shape[1]
        mine = jax.lax.axis_index(ROWS) * self.shards_here + jnp.arange(self.shards_here)
        places = mine[:, None] * width + jnp.arange(width)
        mask = (places < rows).astype(jnp.result_type(float))
        mask = mask if weights is None else mask * weights
        return Batch(data, mask, plan.total, index, plan.count, rows.astype(mask.dtype), self, places)

    @property
    def shards_here(self) -> int:
        """The number of shards on one device."""
        return self.shards // self.mesh.shape[ROWS]

    def by_shard(self, tree: PyTree) -> PyTree:
        """This device's part of arrays that ``lay`` placed, as arrays (shard, row, ...)."""
        return jax.tree.map(lambda a: a.reshape(self.shards_here, -1, *a.shape[1:]), tree)

    def rows_spec(self, streams: bool) -> PartitionSpec:
        """The specification of rows, or of streamed batches, which are (chain, groups, blocks, steps, rows, ...)."""
        rows = ROWS if self.divides_rows else None
        return PartitionSpec(CHAINS, None, None, None, rows) if streams else PartitionSpec(rows)

    def cut(self, count: int) -> int:
        """The number of rows that one device evaluates if ``count`` rows are divided over all devices.

        If the run is reproducible, 8 devices are assumed, so that this is the same for any number of devices.
        """
        return -(-count // (SHARDS // 2 if self.reproducible else self.mesh.shape[ROWS]))

    def collect(self, tree: PyTree) -> PyTree:
        """Bring arrays together on one device of this process, so that further results do not depend on the mesh."""
        return jax.tree.map(_collect, tree)

    def run(self, function: Callable, *args: PyTree) -> PyTree:
        return self.collect(function(*self.share(args)))

    # Messages between processes

    @property
    def is_writer(self) -> bool:
        return not self.many_processes or jax.process_index() == 0

    def gather(self, number: int) -> np.ndarray:
        sharding = NamedSharding(self.mesh, PartitionSpec((CHAINS, ROWS)))
        mine = jax.make_array_from_callback((self.mesh.size,), sharding, lambda _: np.full(1, number, np.int32))
        return np.asarray(_on_all(self.mesh)(mine))

    def any_process(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        return (lambda: bool(self.gather(int(stop())).any())) if self.many_processes else stop

    # Functions of every device

    def map_devices(self, function: Callable, ins: tuple, outs: PyTree) -> Callable:
        # JAX's check is off: it rejects loops that begin from constants, which are the same on every device.
        part = jax.shard_map(function, mesh=self.mesh, in_specs=ins, out_specs=outs, check_vma=False)
        return (lambda *args: self.replicate(part(*args))) if self.many_processes else part

    def replicate(self, tree: PyTree) -> PyTree:
        """Copy divided arrays in full to every device, since a process can read its own devices only."""
        undivided = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, undivided), tree)

    def each_chain(self, function: Callable, *args: PyTree) -> PyTree:
        """Apply ``function`` to one chain at a time; with ``vmap``, rounding would depend on the number of chains."""
        chains = jax.tree.leaves(args)[0].shape[0]
        first = jax.tree.leaves(args)
        shapes = jax.eval_shape(function, *jax.tree.map(lambda a: a[0], args))
        # The last chain is repeated once, since XLA compiles a single chain to a program that rounds differently.
        args = jax.tree.map(lambda a: jnp.concatenate([a, a[-1:]]), args)
        out = jax.tree.map(lambda a: jnp.zeros((chains + 1, *a.shape), a.dtype), shapes)

        def one(chain: jax.Array, out: PyTree) -> PyTree:
            now = function(*jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, chain, keepdims=False), args))
            put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=chain, axis=0)
            return jax.tree.map(put, out, now)

        return jax.tree.map(lambda a: a[:chains], jax.lax.fori_loop(0, _opaque(chains, first), one, out))

    def map_chains(self, function: Callable, *args: PyTree) -> PyTree:
        return self.each_chain(function, *args)

    def over_chains(self, function: Callable) -> Callable:
        def of_device(rows: PyTree, keys: jax.Array, positions: PyTree) -> PyTree:
            return self.each_chain(functools.partial(function, rows), keys, positions)

        return self.map_devices(of_device, (self.rows_spec(False), self.by_chain, self.by_chain), self.by_chain)

    def every(self, is_fine: jax.Array) -> jax.Array:
        return jax.lax.pmin(is_fine.astype(int), (CHAINS, ROWS)) == 1

    def summed(self, function: Callable, params: PyTree, parts: PyTree) -> PyTree:
        """Σ ``function(params, part)`` over the shards of all devices.

        Args:
            function: gives a pytree of sums for parameters and one shard. The total can be differentiated only if it is
                a scalar, and only once.
            parts: the shards of this device, with leading axis (shard,).
        """

        @jax.custom_jvp
        def total(params: PyTree) -> PyTree:
            return self._add_shards(jax.lax.map(lambda part: function(params, part), parts))

        @total.defjvp
        def rule(primals: tuple, tangents: tuple) -> tuple:
            # The gradient is computed as one more sum over rows. JAX's own derivative would be wrong: it would count
            # the copy of the sum on every device.
            slope = jax.value_and_grad(function)
            value, gradient = self.summed(slope, primals[0], parts)
            pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(tangents[0]), strict=True)
            return value, sum(jnp.vdot(g, t) for g, t in pairs)

        return total(params)

    def _add_shards(self, sums: PyTree) -> PyTree:
        """The sum of arrays (shard, ...) over the shards of all devices."""
        if not self.reproducible:
            return jax.tree.map(lambda a: jax.lax.psum(jnp.sum(a, 0), ROWS), sums)

        sums, unravel = _as_vectors(jax.tree.map(_sum_pairs, jax.lax.optimization_barrier(sums)))
        sums = [_sum_pairs(self._from_all(a)) if a.size <= SMALL else self._in_slices(a) for a in sums]
        return unravel(jax.lax.optimization_barrier(sums))

    def _from_all(self, a: jax.Array) -> jax.Array:
        """(device, ...) the arrays of all devices over which rows are divided."""
        return a[None] if self.mesh.shape[ROWS] == 1 else jax.lax.all_gather(a, ROWS)

    def _in_slices(self, a: jax.Array) -> jax.Array:
        """The sum of vectors (n,) over devices.

        Each device adds up one slice and sends the result to the other devices. So a device sends about 2 n numbers,
        which is as few as possible.
        """
        devices = self.mesh.shape[ROWS]
        slices = jnp.pad(a, (0, -len(a) % devices)).reshape(devices, -1)
        mine = _sum_pairs(slices if devices == 1 else jax.lax.all_to_all(slices, ROWS, 0, 0, tiled=True))
        return self._from_all(mine).reshape(-1)[: len(a)]

    def by_rows(self, function: Callable, placed: PyTree, others: tuple, count: int) -> PyTree:
        """Apply ``function((rows, *others))`` to every shard, and return the results of all rows on every device.

        Args:
            placed: the rows, as ``lay`` placed them.
            others: further arrays with one entry for each row, leading axis (count,), on every device.
            count: the number of rows, without the rows that ``lay`` added.
        """
        missing = -count % self.shards
        others = jax.tree.map(lambda a: jnp.concatenate([a, jnp.repeat(a[-1:], missing, 0)]), others)

        def mine(each: PyTree) -> PyTree:
            out = jax.lax.map(function, self.by_shard(each))
            return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), out)

        out = self.replicate(self.map_devices(mine, (BY_ROW,), BY_ROW)((placed, *others)))
        return jax.tree.map(lambda a: a[:count], out)

    def sum_rows(self, function: Callable) -> Callable:
        """A function ``(theta, batch) -> sums`` over all rows that ``lay`` placed, for use outside ``map_devices``."""

        def over_all(theta: PyTree, batch: Batch) -> PyTree:
            def part(theta: PyTree, rows: PyTree, counts: jax.Array) -> PyTree:
                shards = self.by_shard((rows, counts))
                sums = jax.lax.map(lambda s: function(theta, batch._replace(data=s[0], mask=s[1])), shards)
                return self._add_shards(sums)

            placed = PartitionSpec(ROWS)
            return self.map_devices(part, (PartitionSpec(), placed, placed), PartitionSpec())(
                theta, batch.data, batch.mask
            )

        return over_all


def over(mesh: Mesh | int | str, axis: str, reproducible: bool = True, chains: int | None = None) -> OverDevices:
    """The placement of a run over devices.

    Args:
        mesh: a number of devices, all along ``axis``; "auto" for all devices; or a ``jax.sharding.Mesh`` whose axes are
            "chain", "row" or both.
        axis: the axis that a method uses if ``mesh`` is a number or "auto", "chain" or "row".
        reproducible: whether sums over rows are added in a fixed order.
        chains: the number of chains; the number of devices along "chain" must divide it. With ``mesh`` "auto", the
            greatest common divisor of the numbers of chains and of all devices is taken.

    Raises:
        SettingsError: ``mesh`` has more devices than JAX, or other axes; ``reproducible`` is True and the number of
            devices for rows is not 1, 2, 4 or 8; the chains cannot be spread evenly; or a process has no device in the
            mesh.
    """
    if not isinstance(mesh, Mesh):
        mesh = _of_count(mesh, axis, chains)
    if not set(mesh.axis_names) <= {CHAINS, ROWS}:
        raise SettingsError(f"mesh= expects a mesh whose axes are 'chain' and 'row'; got {mesh.axis_names}.")
    named = dict(mesh.shape)
    devices = mesh.devices if mesh.axis_names != (ROWS, CHAINS) else mesh.devices.T
    shape = (named.get(CHAINS, 1), named.get(ROWS, 1))
    if reproducible and (shape[1] & (shape[1] - 1) or 2 * shape[1] > SHARDS):
        raise SettingsError(
            f"Reproducible sums need rows on 1, 2, 4 or {SHARDS // 2} devices; got {shape[1]}. reproducible=False "
            "takes any number of devices, and XLA then chooses the order of the sums."
        )
    if chains is not None and chains % shape[0]:
        near = math.gcd(chains, shape[0])
        raise SettingsError(f"{chains} chains cannot be spread evenly over {shape[0]} devices; use {near} of them.")
    present = len({device.process_index for device in devices.flat})
    if present < jax.process_count():
        raise SettingsError(
            f"Expected a mesh with devices of every process; got devices of {present} of the {jax.process_count()} "
            "processes. Give mesh='auto' with chains= a multiple of the number of devices, or start fewer processes."
        )
    both = Mesh(devices.reshape(shape), (CHAINS, ROWS), axis_types=(AxisType.Auto,) * 2)
    return OverDevices(both, ROWS in named, reproducible)


def over_rows(mesh: Mesh | int | str | None) -> OneDevice:
    """The placement of rows in a computation that has no chains; without a mesh all rows are on one device.

    Raises:
        SettingsError: as for ``over``, or the mesh has no axis "row".
    """
    placement = ONE_DEVICE if mesh is None else over(mesh, ROWS)
    if mesh is None or placement.divides_rows:
        return placement
    raise SettingsError("Expected a mesh with the axis 'row'; got one with the axis 'chain' alone. Give mesh=N.")


def _of_count(count: object, axis: str, chains: int | None) -> Mesh:
    """The mesh with one axis of ``count`` devices, or of as many as "auto" means."""
    devices = jax.devices()
    if count == "auto" and axis == CHAINS:
        count = len(devices) if chains is None else math.gcd(chains, len(devices))
    elif count == "auto":
        count = min(SHARDS // 2, 1 << (len(devices).bit_length() - 1))
    if not isinstance(count, int | np.integer) or isinstance(count, bool):
        raise SettingsError(
            f"mesh= expects a number of devices, 'auto', or a jax.sharding.Mesh with the axes 'chain' and 'row'; "
            f"got {count!r}."
        )
    if not 1 <= count <= len(devices):
        raise SettingsError(
            f"mesh={count}, but JAX sees {len(devices)} device{'s' if len(devices) > 1 else ''} here. JAX divides a "
            f"CPU into several devices if the environment variable XLA_FLAGS is "
            f"--xla_force_host_platform_device_count={max(count, 2)}."
        )
    return jax.make_mesh((int(count),), (axis,), (AxisType.Auto,), devices=devices[: int(count)])


def _place(a: jax.Array | np.ndarray, where: NamedSharding) -> jax.Array:
    """An array placed on a mesh. Every process gives the full array, and each device takes its part."""
    if isinstance(a, jax.Array) and (a.sharding == where or not a.is_fully_addressable):
        return a  # it is there already
    if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        data = _place(jax.random.key_data(a), where)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(a))
    host = np.asarray(a)  # dividing an array that is on a device would need a program for each shape
    if where.is_fully_addressable:
        return jax.device_put(host, where)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])


@functools.cache
def _on_all(mesh: Mesh) -> Callable:
    return jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _collect(a: jax.Array) -> jax.Array:
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_collect(jax.random.key_data(a)), impl=jax.random.key_impl(a))
    return jnp.asarray(np.asarray(a))


def _sum_pairs(a: jax.Array) -> jax.Array:
    """The sum of an array (2^k, ...) over its first axis, added in pairs, then the pairs' sums in pairs, and so on."""
    while a.shape[0] > 1:
        a = a[0::2] + a[1::2]
    return a[0]


def _as_vectors(tree: PyTree) -> tuple[list[jax.Array], Callable]:
    """The leaves of each dtype as one vector, so that few messages are sent; and a function that undoes this."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = sorted({str(leaf.dtype) for leaf in leaves})
    places = [[i for i, leaf in enumerate(leaves) if str(leaf.dtype) == kind] for kind in kinds]

    def unravel(vectors: list[jax.Array]) -> PyTree:
        new: list[Any] = [None] * len(leaves)
        for vector, where in zip(vectors, places, strict=True):
            ends = np.cumsum([leaves[i].size for i in where])[:-1]
            for i, part in zip(where, jnp.split(vector, ends), strict=True):
                new[i] = part.reshape(leaves[i].shape)
        return jax.tree.unflatten(structure, new)

    return [jnp.concatenate([jnp.ravel(leaves[i]) for i in where]) for where in places], unravel


def _opaque(count: int, arrays: list[jax.Array]) -> jax.Array:
    """``count`` as a value that XLA does not know when it compiles.

    If XLA knew that a loop has length one, it would compile the loop to a program that rounds differently.
    """
    floats = [a for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    unknown = jnp.zeros((), jnp.int32) if not floats else jnp.sum(jnp.isnan(floats[0]).astype(jnp.int32))
    return jnp.minimum(count, count + unknown)


def chunks(
    rows: PyTree, count: int, width: int, placement: OneDevice = ONE_DEVICE
) -> Iterator[tuple[PyTree, np.ndarray, int]]:
    """Yield chunks of rows as (rows, their indices, number of rows without padding). All chunks have the same shape.

    The last chunk is padded with the last row. ``width`` is the number of rows for each device of a mesh, so each
    device runs the same program for any number of devices.
    """
    width *= placement.row_devices
    for start in range(0, count, width):
        index = np.minimum(np.arange(start, start + width), count - 1).astype(np.int32)
        real = min(width, count - start)
        if real == width:
            chunk = jax.tree.map(lambda a, i=start: a[i : i + width], rows)
        else:
            chunk = jax.tree.map(lambda a, i=index: np.asarray(a)[i], rows)
        yield placement.spread(chunk, ROWS), index, real
