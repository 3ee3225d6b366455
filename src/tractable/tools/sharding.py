"""Chains over devices."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tractable.tools.errors import SettingsError

PyTree = Any


def over_devices(count: int | None) -> Callable[[PyTree], PyTree]:
    """A function that lays the leading (chain) axis of every leaf over ``count`` devices."""
    if count is None:
        return lambda tree: tree
    there = len(jax.devices())
    if not 1 <= count <= there:
        raise SettingsError(f"devices={count}, but JAX sees {there} device{'s' if there > 1 else ''} here.")
    mesh = jax.make_mesh((count,), ("chain",), (AxisType.Auto,), devices=jax.devices()[:count])

    def lay(tree: PyTree) -> PyTree:
        chains = jax.tree.leaves(tree)[0].shape[0]
        if chains % count:
            raise SettingsError(f"{chains} chains cannot be spread evenly over {count} devices.")
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec("chain")))

    return lay
