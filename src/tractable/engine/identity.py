"""A model's identity, what JAX traces of it: equal models share programs, and a result belongs to its model."""

import hashlib
import json
import warnings
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.latent import LatentModel
from tractable.core.model import Batch, Data, Model, PyTree
from tractable.core.rows import Members
from tractable.engine.programs import Trace, structure_of, trace

# By the identity of its first use, the first living model, whose compiled programs serve all equal ones.
_first: weakref.WeakValueDictionary[str, Model] = weakref.WeakValueDictionary()
# What was traced of a model: like its compiled programs, what it stands for is fixed when it is first used.
_densities: weakref.WeakKeyDictionary[Model, dict[tuple, Trace]] = weakref.WeakKeyDictionary()
_identities: weakref.WeakKeyDictionary[Model, dict[tuple, str | None]] = weakref.WeakKeyDictionary()


def share_programs(model: Model, kinds: PyTree, count: int = 0) -> None:
    """Let the programs compiled for an earlier, equal model serve this one.

    Models are equal if JAX traces the same from all their functions, on rows such as the data's. The earlier model is
    traced again: what its functions read may have changed, and a program for other shapes would read it as it is now.
    A model that JAX cannot trace, or that calls Python, has programs of its own.

    Args:
        kinds: of a row, from ``kinds_of``.
        count: how many rows there are, on which a latent model's steps may depend.
    """
    model = getattr(model, "origin", None) or model
    count = 1 if type(model) is Model else count
    for part in (model.parts or {}).values():
        share_programs(part, (jax.ShapeDtypeStruct((), kinds[0].dtype), kinds[1]))
    key, known = (count, *_key(kinds)), _identities.setdefault(model, {})
    if key not in known:
        known[key] = _identity(model, kinds, count)
    same = known[key]
    first = model.representative or (model if same is None else _first.setdefault(same, model))
    if first is not model and (same is None or _identity(first, kinds, count) != same):
        first = model
        if same is not None:
            _first[same] = model
    vars(model)["representative"] = first


def _identity(model: Model, kinds: PyTree, count: int) -> str | None:
    """SHA-256 of all that programs compute by a model's functions; None if JAX does not see them whole."""
    if type(model) not in (Model, LatentModel):
        return None
    position, batch = _example(model, kinds)
    rows = jax.tree.map(lambda kind: jax.ShapeDtypeStruct((count, *kind.shape), kind.dtype), kinds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are raised where a program is traced
            key = jax.eval_shape(lambda: jax.random.key(0))
            params = jax.eval_shape(model.params, position)
            found = [trace(model.traced, position, batch), trace(model.computed, params, key, rows)]
    except Exception:  # a user's function may raise anything; checks say so in a sentence
        return None
    if any(each.calls_back for each in found):
        return None
    given = [getattr(model, name) for name in ("prior", "likelihood", "support", "start")]
    parts = [type(model).__name__, position.dtype.name, structure_of(given), structure_of((params, rows)), *found]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def density_trace(model: Model, kinds: PyTree) -> Trace:
    """The trace of a model's log posterior on rows of these kinds, constants included; it is traced once."""
    key, known = _key(kinds), _densities.setdefault(model, {})
    if key not in known:
        known[key] = trace(model.traced, *_example(model, kinds))
    return known[key]


def _key(kinds: PyTree) -> tuple:
    return str(kinds), jnp.result_type(float)


def kinds_of(data: Data | None) -> PyTree:
    """Shape and dtype of a row of each of the data's arrays, all that a model's trace depends on; None without data."""
    if data is None:
        return None
    kind = jax.dtypes.canonicalize_dtype
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], kind(a.dtype)), data.rows)


def saved_kinds(rows: PyTree) -> Any:
    """``kinds_of`` for JSON; {} where it holds containers of the user's own, which cannot be made again."""
    if isinstance(rows, Members):
        parts = [saved_kinds(part) for part in rows]
        return {"members": parts} if {} not in parts else {}
    if isinstance(rows, dict):
        found = {name: saved_kinds(part) for name, part in rows.items()}
        known = {} not in found.values() and all(isinstance(name, str) for name in rows)
        return {"dict": found} if known else {}
    if type(rows) in (tuple, list):
        parts = [saved_kinds(part) for part in rows]
        return {type(rows).__name__: parts} if {} not in parts else {}
    if isinstance(rows, jax.ShapeDtypeStruct):
        return {"shape": list(rows.shape), "dtype": rows.dtype.name}
    return None if rows is None else {}


def loaded_kinds(saved: Any) -> PyTree:
    """What ``saved_kinds`` was given; a KeyError, TypeError or ValueError where it is nothing of the kind."""
    if saved is None:
        return None
    if "shape" in saved:
        return jax.ShapeDtypeStruct(tuple(map(int, saved["shape"])), np.dtype(saved["dtype"]))
    ((how, parts),) = saved.items()
    if how == "dict":
        return {name: loaded_kinds(part) for name, part in parts.items()}
    made = {"tuple": tuple, "list": list, "members": lambda parts: Members(*parts)}[how]
    return made([loaded_kinds(part) for part in parts])


def _example(model: Model, rows: PyTree) -> tuple[np.ndarray, Batch | None]:
    """A position and a batch of two rows, to trace a model with; NumPy's, which have nothing to compile."""
    batch: Batch | None = None
    if rows is not None:
        rows = jax.tree.map(lambda kind: np.zeros((2, *kind.shape), kind.dtype), rows)
        mask: Any = np.ones(2, jnp.result_type(float))
        batch = Batch(rows, mask, 2)
    return np.zeros(model.space.size, jnp.result_type(float)), batch
