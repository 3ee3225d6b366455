"""The weights φ of an inference network on disk, as arrays named by their place in it; no pickles."""

import hashlib
import pathlib
import re
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from tractable.core import Model
from tractable.models.ladder import Ladder, ladder_of
from tractable.tools import checkpoint as files
from tractable.tools import tree
from tractable.tools.errors import CheckpointError

PyTree = Any
FOLDER = "network"


def save_network(ladder: Model, phi: PyTree, folder: pathlib.Path) -> None:
    arrays = {tree.path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(phi)[0]}
    files.save(folder / FOLDER, arrays, network_fingerprint(ladder), step=0)


def load_network(model: Model, folder: pathlib.Path) -> PyTree:
    """φ in the ladder's own structure, None where none was saved; a CheckpointError of another network's."""
    if not (folder / FOLDER).exists():
        return None
    saved = files.load(folder / FOLDER)
    if saved is None:
        raise CheckpointError(f"{folder / FOLDER} holds nothing; learn anew.")
    ladder = ladder_of(model)
    if ladder is None:
        raise CheckpointError(
            f"{folder} holds a ladder's inference network; the model given is {type(model).__name__}."
        )
    _, arrays, manifest = saved
    wanted, structure = jax.tree_util.tree_flatten_with_path(_shapes(ladder)["phi"])
    names = [tree.path_name(path) for path, _ in wanted]
    if set(names) != set(arrays):
        raise CheckpointError(
            f"{folder} holds an inference network of {_few(sorted(arrays))}; that of the ladder given has "
            f"{_few(names)}."
        )
    for name, (_, leaf) in zip(names, wanted, strict=True):
        if arrays[name].shape != leaf.shape:
            raise CheckpointError(
                f"{folder} holds an inference network whose {name} has shape {arrays[name].shape}; that of the ladder "
                f"given has {leaf.shape}. Give the ladder it was learnt with."
            )
    if manifest != network_fingerprint(ladder):
        raise CheckpointError(
            f"{folder} holds an inference network of the same sizes that computes something else (another activation, "
            "family or precision?). Give the ladder it was learnt with."
        )
    return jax.tree.unflatten(structure, [arrays[name] for name in names])


def network_fingerprint(model: Model) -> dict[str, str]:
    """SHA-256 of a ladder's log q(h | x) as JAX sees it, constants included; nothing of other models."""
    ladder = ladder_of(model)
    if ladder is None:
        return {}
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = _shapes(ladder)
    x, h = jax.eval_shape(lambda k, p: ladder.dreamt(k, p["theta"], 2), key, params)
    h = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), h)
    return {"inference network": digest(jax.make_jaxpr(lambda p, x, h: ladder.log_q(p, x[None], h))(params, x, h))}


def digest(jaxpr: ClosedJaxpr) -> str:
    """SHA-256 of a program and its constants; addresses of functions are left out."""
    found = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(jaxpr)).encode())
    for constant in jaxpr.consts:
        found.update(np.asarray(constant).tobytes())
    return found.hexdigest()


def _shapes(ladder: Ladder) -> dict[str, PyTree]:
    return jax.eval_shape(lambda key: ladder.initial(key), jax.eval_shape(lambda: jax.random.key(0)))


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
