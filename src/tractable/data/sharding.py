"""What lies over several devices: chains, which know nothing of each other, or rows, which are summed over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tractable.data.rows import Batch
from tractable.tools.errors import SettingsError

PyTree = Any
ROWS = "row"


def over_devices(count: int | None) -> Callable[[PyTree], PyTree]:
    """A function that lays the leading (chain) axis of every leaf over ``count`` devices."""
    if count is None:
        return lambda tree: tree
    mesh = _mesh(count, "chain")

    def lay(tree: PyTree) -> PyTree:
        chains = jax.tree.leaves(tree)[0].shape[0]
        if chains % count:
            raise SettingsError(f"{chains} chains cannot be spread evenly over {count} devices.")
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec("chain")))

    return lay


@dataclass(frozen=True)
class RowsOver:
    """Lays rows over the devices of a mesh of one axis, "row", and sums over them there."""

    mesh: Mesh

    def __call__(self, rows: PyTree, mask: jax.Array | np.ndarray | None = None) -> tuple[PyTree, jax.Array]:
        """Rows (n ≥ 1) and mask (n,), how often each counts, each device holding ⌈n/devices⌉ of them.

        Where n does not divide, the last row is repeated with mask 0: a row of zeros might be no possible datum.
        """
        size = jax.tree.leaves(rows)[0].shape[0]
        mask = np.ones(size) if mask is None else np.asarray(mask)
        lacking = -size % self.mesh.size
        if lacking:
            rows = jax.tree.map(lambda a: np.concatenate([a, np.repeat(np.asarray(a[-1:]), lacking, 0)]), rows)
            mask = np.concatenate([mask, np.zeros(lacking, mask.dtype)])
        laid = jax.device_put((rows, jnp.asarray(mask)), NamedSharding(self.mesh, PartitionSpec(ROWS)))
        return laid[0], laid[1]

    def summed(self, sums: Callable) -> Callable:
        """``(theta, batch) -> sums`` over all rows: every device sums over its own, and only the sums travel."""

        def over_all(theta: PyTree, batch: Batch) -> PyTree:
            def part(theta: PyTree, rows: PyTree, mask: jax.Array) -> PyTree:
                return jax.lax.psum(sums(theta, batch._replace(data=rows, mask=mask)), ROWS)

            laid = PartitionSpec(ROWS)
            # Unchecked, because loops within ``sums`` begin from constants, which are the same on every device.
            return jax.shard_map(
                part, mesh=self.mesh, in_specs=(PartitionSpec(), laid, laid), out_specs=PartitionSpec(),
                check_vma=False,
            )(theta, batch.data, batch.mask)  # fmt: skip

        return over_all


def rows_over(count: int) -> RowsOver:
    """Rows over ``count`` devices; a SettingsError of more devices than there are."""
    return RowsOver(_mesh(count, ROWS))


def _mesh(count: int, axis: str) -> Mesh:
    there = len(jax.devices())
    if not 1 <= count <= there:
        raise SettingsError(f"devices={count}, but JAX sees {there} device{'s' if there > 1 else ''} here.")
    return jax.make_mesh((count,), (axis,), (AxisType.Auto,), devices=jax.devices()[:count])
