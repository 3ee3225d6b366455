"""Converts a pytree to a dictionary of arrays, and back.

The keys are paths such as ``states/position/w``. The path of a leaf that is no array ends in its kind, as in
``groups:int``.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import CheckpointError
from tractable.core.tree import PyTree

KINDS = {bool: "bool", int: "int", float: "float"}


def flatten(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves of a pytree as arrays by path; the path of a leaf that is no array ends in ``:kind``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return dict(_to_array("/".join(map(_step, path)), leaf) for path, leaf in leaves)


def restore(like: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """The pytree with the structure of ``like`` and these arrays as leaves.

    Where ``like`` has a JAX array or a ``ShapeDtypeStruct``, the leaf becomes a JAX array. Otherwise it is a NumPy
    array, or the number or text that was written. An empty dictionary in ``like`` takes all arrays whose paths begin
    with the dictionary's path. None in ``like`` takes a leaf if there is one.

    Raises:
        CheckpointError: a leaf is missing.
    """
    known = {_split_kind(name)[0]: name for name in arrays}
    leaves, structure = jax.tree_util.tree_flatten_with_path(like, is_leaf=_open)
    return jax.tree.unflatten(
        structure, [_read("/".join(map(_step, path)), leaf, known, arrays) for path, leaf in leaves]
    )


def beneath(arrays: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """The arrays whose paths begin with ``path``, named by the rest of their paths."""
    return {name.removeprefix(f"{path}/"): a for name, a in arrays.items() if name.startswith(f"{path}/")}


def nest(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The arrays as nested dictionaries: each step of a path is a key."""
    out: dict[str, Any] = {}
    for name, array in arrays.items():
        *steps, last = map(unquote, _split_kind(name)[0].split("/"))
        at = out
        for step in steps:
            at = at.setdefault(step, {})
        at[last] = _value(name, array, None)
    return out


def _open(leaf: PyTree) -> bool:
    """Whether a node of ``like`` is a placeholder: an empty dictionary, or None."""
    return leaf is None or (isinstance(leaf, dict) and not leaf)


def _split_kind(name: str) -> tuple[str, str]:
    """A leaf's path and its kind, which is "" for an array."""
    path, _, kind = name.rpartition(":")
    return (path, kind) if kind in (*KINDS.values(), "text", "key") else (name, "")


def _step(entry: object) -> str:
    """One step of a path: a field's name, a dictionary's key or an index; "/" and ":" in a name are quoted."""
    named = next((getattr(entry, name) for name in ("name", "key", "idx") if hasattr(entry, name)), entry)
    return quote(str(named), safe=" ,.[]()=+")


def _to_array(path: str, leaf: PyTree) -> tuple[str, np.ndarray]:
    if isinstance(leaf, str):
        return f"{path}:text", np.frombuffer(leaf.encode(), np.uint8)
    if type(leaf) in KINDS:
        return f"{path}:{KINDS[type(leaf)]}", np.asarray(leaf)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return f"{path}:key", np.asarray(jax.random.key_data(leaf))
    return path, np.asarray(leaf)


def _read(path: str, like: PyTree, known: dict[str, str], arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(like, dict):
        return nest(beneath(arrays, path))
    if path not in known:
        if like is None:
            return None
        raise CheckpointError(
            f"Expected an array {path!r} in the checkpoint; got none: another version of tractable wrote it. Run anew."
        )
    return _value(known[path], arrays[known[path]], like)


def _value(name: str, array: np.ndarray, like: PyTree) -> Any:
    kind = _split_kind(name)[1]
    if kind == "text":
        return array.tobytes().decode()
    if kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(array))
    if kind:
        return array.item()
    return jax.device_put(array) if isinstance(like, jax.Array | jax.ShapeDtypeStruct) else array
