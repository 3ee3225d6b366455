"""A model's identity: a hash of the programs that JAX traces from the model's functions.

Models of equal identity share compiled programs. A saved result recognises its model by the identity.
"""

import contextlib
import contextvars
import functools
import hashlib
import json
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import Members
from tractable.core.latent import LatentModel
from tractable.core.model import Batch, Data, Model, PyTree
from tractable.core.priors import in_order
from tractable.engine.programs import Trace, structure_of, trace

# For each identity, the first model that had it and still exists. Its compiled programs serve all equal models.
_first: weakref.WeakValueDictionary[str, Model] = weakref.WeakValueDictionary()
# The traces and identities of models. They are fixed at a model's first use, as are its compiled programs.
_densities: weakref.WeakKeyDictionary[Model, dict[tuple, Trace]] = weakref.WeakKeyDictionary()
_identities: weakref.WeakKeyDictionary[Model, dict[tuple, str | None]] = weakref.WeakKeyDictionary()
# The models whose identities hold at present; None outside ``identified``.
_current: contextvars.ContextVar[list[Model] | None] = contextvars.ContextVar("current", default=None)


def share_programs(model: Model, kinds: PyTree, count: int = 0) -> None:
    """Let the programs that were compiled for an earlier, equal model serve this one.

    Models are equal if JAX traces the same programs from all their functions, for rows of these kinds. The earlier
    model is traced again, since global variables that its functions read may have changed: a program that is compiled
    now, for other shapes, would read the new values. A model that JAX cannot trace, or that calls back to Python, has
    its own programs.

    Args:
        kinds: shape and dtype of a row's arrays, from ``kinds_of``.
        count: the number of rows, on which the EM steps of a latent model may depend.
    """
    model = getattr(model, "origin", None) or model
    count = 1 if type(model) is Model else count
    for part in (model.parts or {}).values():
        share_programs(part, (jax.ShapeDtypeStruct((), kinds[0].dtype), kinds[1]))
    key, known = (count, *_key(kinds)), _identities.setdefault(model, {})
    if is_new := key not in known:
        known[key] = _identity(model, kinds, count)
    same = known[key]
    first = model.representative or (model if same is None else _first.setdefault(same, model))
    if first is not model and (same is None or _identity(first, kinds, count) != same):
        first = model
        if same is not None:
            _first[same] = model
    vars(model)["representative"] = first
    if (models := _current.get()) is not None:
        identify = functools.cache(functools.partial(_identity, first, kinds, count))
        is_known = is_new or first is not model
        vars(first).setdefault("identities", {}).setdefault(key, (lambda: same) if is_known else identify)
        models.append(first)


@contextlib.contextmanager
def identified() -> Iterator[None]:
    """A context in which programs of the models that ``share_programs`` gets may come from files.

    A file is found by what the model's functions compute. Global variables that they read may change at any time, so
    the identity of a model holds for one such context. A context within another one is part of that one.
    """
    if _current.get() is not None:
        yield
        return
    models: list[Model] = []
    before = _current.set(models)
    try:
        yield
    finally:
        _current.reset(before)
        for model in models:
            vars(model).pop("identities", None)


def _identity(model: Model, kinds: PyTree, count: int) -> str | None:
    """The SHA-256 of everything that the model's functions compute; None if JAX cannot trace all of it."""
    if type(model) not in (Model, LatentModel):
        return None
    position, batch = _example(model, kinds)
    rows = jax.tree.map(lambda kind: jax.ShapeDtypeStruct((count, *kind.shape), kind.dtype), kinds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user sees these warnings when a program is traced to run
            key = jax.eval_shape(lambda: jax.random.key(0))
            params = jax.eval_shape(model.params, position)
            traces = [trace(model.traced, position, batch), trace(model.computed, params, key, rows)]
            _densities.setdefault(model, {}).setdefault(_key(kinds), traces[0])
    except Exception:  # a user's function may raise anything; the preflight check reports it to the user
        return None
    if any(each.calls_back for each in traces):
        return None
    fields = [in_order(getattr(model, name)) for name in ("prior", "likelihood", "support", "start")]
    parts = [type(model).__name__, position.dtype.name, structure_of(fields), structure_of((params, rows)), *traces]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def density_trace(model: Model, kinds: PyTree) -> Trace:
    """The trace of a model's log posterior for rows of these kinds. The model is traced only once."""
    key, known = _key(kinds), _densities.setdefault(model, {})
    if key not in known:
        known[key] = trace(model.traced, *_example(model, kinds))
    return known[key]


def _key(kinds: PyTree) -> tuple:
    return str(kinds), jnp.result_type(float)


def kinds_of(data: Data | None) -> PyTree:
    """The shape and dtype of one row, for each of the data's arrays; None without data.

    A model's trace depends on nothing else of the data.
    """
    if data is None:
        return None
    kind = jax.dtypes.canonicalize_dtype
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], kind(a.dtype)), data.rows)


def kinds_to_json(rows: PyTree) -> Any:
    """The result of ``kinds_of`` in a form that JSON can hold; {} if it has containers of a user's own class."""
    if isinstance(rows, Members):
        parts = [kinds_to_json(part) for part in rows]
        return {"members": parts} if {} not in parts else {}
    if isinstance(rows, dict):
        entries = {name: kinds_to_json(part) for name, part in rows.items()}
        has_known_parts = {} not in entries.values() and all(isinstance(name, str) for name in rows)
        return {"dict": entries} if has_known_parts else {}
    if type(rows) in (tuple, list):
        parts = [kinds_to_json(part) for part in rows]
        return {type(rows).__name__: parts} if {} not in parts else {}
    if isinstance(rows, jax.ShapeDtypeStruct):
        return {"shape": list(rows.shape), "dtype": rows.dtype.name}
    return None if rows is None else {}


def kinds_from_json(saved: Any) -> PyTree:
    """The kinds from which ``kinds_to_json`` made its result.

    Raises:
        KeyError, TypeError, ValueError: ``saved`` is no result of ``kinds_to_json``.
    """
    if saved is None:
        return None
    if "shape" in saved:
        return jax.ShapeDtypeStruct(tuple(map(int, saved["shape"])), np.dtype(saved["dtype"]))
    ((how, parts),) = saved.items()
    if how == "dict":
        return {name: kinds_from_json(part) for name, part in parts.items()}
    made = {"tuple": tuple, "list": list, "members": lambda parts: Members(*parts)}[how]
    return made([kinds_from_json(part) for part in parts])


def _example(model: Model, rows: PyTree) -> tuple[np.ndarray, Batch | None]:
    """A position and a batch of two rows for tracing a model. They are NumPy arrays, so nothing is compiled."""
    batch: Batch | None = None
    if rows is not None:
        rows = jax.tree.map(lambda kind: np.zeros((2, *kind.shape), kind.dtype), rows)
        mask: Any = np.ones(2, jnp.result_type(float))
        batch = Batch(rows, mask, 2)
    return np.zeros(model.space.size, jnp.result_type(float)), batch
