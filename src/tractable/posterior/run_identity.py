"""The identity of a run, as JSON entries: runs with the same identity give the same results."""

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import Data, Kernel, Model, PyTree
from tractable.engine.identity import density_trace, kinds_of
from tractable.engine.method import Method, is_optimiser
from tractable.engine.programs import fingerprint, trace
from tractable.ladders.ladder import Ladder, ladder_of
from tractable.mcmc.metropolis import Point, Proposal

__version__ = "0.2.0"  # the only place: pyproject.toml reads it
UNKNOWN = "cannot be traced"  # first words of an entry for a function without a fingerprint


def identity(
    model: Model, data: Data | None, method: Method, seed: int, held_out: Data | None = None
) -> dict[str, Any]:
    """Versions, dtype, seed, and fingerprints of data, model and method; equal identities mean equal results."""
    products: str | None = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    return (
        {
            "tractable": __version__,
            "jax": jax.__version__,
            "partitionable keys": bool(getattr(jax.config, "jax_threefry_partitionable", True)),
            "dtype": jnp.result_type(float).name,
            "seed": seed,
            "data": "none" if data is None else data.fingerprint,
            "model": density_trace(model, kinds_of(data)).fingerprint,
            "method": json.loads(re.sub(r" at 0x[0-9a-f]+", "", json.dumps(method.settings()))),
        }
        | ({} if not (computed := functions(method, model, data)) else {"functions": computed})
        | ({} if held_out is None else {"held_out": held_out.fingerprint})
        | ({} if products in (None, "highest", "float32") else {"matrix products": products})
        | network_fingerprint(model)
    )


def functions(method: PyTree, model: Model, data: Data | None) -> dict[str, str]:
    """By field, the fingerprint (SHA-256) of each function in a method's settings, or why the function has none.

    A fingerprint covers a function's constants. The functions' names would not be enough: two optimisers with different
    rates, or two schedules from one factory, have the same name.
    """
    entries = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if dataclasses.is_dataclass(value):  # a method inside a method
            entries |= {f"{field.name}.{name}": entry for name, entry in functions(value, model, data).items()}
        elif callable(value) or (isinstance(value, tuple) and any(map(callable, value))):
            entries[field.name] = _fingerprint(value, model, data)
    return entries


def check_resumable(model: Model, data: Data | None, method: Method) -> None:
    """Raises an error if the model, or a function in the settings, has no fingerprint.

    A run could then be resumed with another function, and nobody would notice.
    """
    if density_trace(model, kinds_of(data)).calls_back:
        raise ModelError(
            "checkpoint= expects a model that JAX can trace completely; this model calls Python (pure_callback or "
            "io_callback), so that a run could be resumed with another function unnoticed. Write it in jax.numpy, or "
            "leave checkpoint= out."
        )
    for name, entry in functions(method, model, data).items():
        if entry.startswith(UNKNOWN):
            raise SettingsError(
                "checkpoint= expects functions that JAX can trace completely, so that no run is resumed with another "
                f"function unnoticed; {type(method).__name__}({name}=...) {entry}. Write it in jax.numpy, or leave "
                "checkpoint= out."
            )


def _fingerprint(value: PyTree, model: Model, data: Data | None) -> str:
    """The fingerprint of a setting's functions, from the first of the possible ``_calls`` that succeeds."""
    reason = ""
    for call, *example in _calls(value, model, data):
        try:
            traced = trace(call, *example)
        except Exception as error:  # a user's function may raise any error if it is called with unsuitable arguments
            reason = reason or f"{type(error).__name__}: {str(error).split(chr(10))[0]}"
        else:
            calls = f"{UNKNOWN}: it calls Python (pure_callback or io_callback)"
            return calls if traced.calls_back else traced.fingerprint
    return f"{UNKNOWN} ({reason})"


def _calls(value: PyTree, model: Model, data: Data | None) -> Iterator[tuple]:
    """Yields a function of arrays, followed by example arrays, for each way in which a setting may be called.

    A setting may be an optimiser, a proposal, a schedule, a kernel or a bound.
    """
    key, position = jax.random.key(0), jnp.zeros(model.space.size)
    if is_optimiser(value):
        from optax import with_extra_args_support

        step = with_extra_args_support(value)

        def update(gradient: PyTree) -> tuple:  # calls init too, because rates may be part of the state
            extra: dict[str, Any] = {"value": jnp.zeros(()), "grad": gradient}
            extra["value_fn"] = lambda params: sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))
            return step.update(gradient, step.init(gradient), gradient, **extra)

        yield update, position
        yield update, model.space.unravel(position)
        if (ladder := ladder_of(model)) is not None:
            yield update, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes_of(ladder))
        return
    if isinstance(value, Proposal):

        def propose(key: jax.Array, position: jax.Array) -> tuple:
            noise = value.draw(key, 2, position)
            first_noise, start = jax.tree.map(lambda z: z[0], noise), Point(position, jnp.zeros(()), position)
            end = start._replace(position=value.move(first_noise, start))
            return noise, end.position, () if value.log_ratio is None else value.log_ratio(first_noise, start, end)

        yield propose, key, position
        return
    yield value, jnp.array(0)  # as a schedule
    yield lambda key, z: _run_kernel(value(lambda z: -jnp.sum(jnp.square(z))), key, z), key, jnp.zeros(2)
    if data is not None:
        params = jax.eval_shape(model.example, key)
        y, x = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], jnp.asarray(a[:1]).dtype), data.rows)
        yield value, params, y if x is None else (y, x)


def _run_kernel(kernel: Kernel, key: jax.Array, position: jax.Array) -> tuple:
    """A kernel's initial state, and the result of its first step."""
    state = kernel.init(key, position)
    return state, kernel(key, state)


def network_fingerprint(model: Model) -> dict[str, str]:
    """The fingerprint (SHA-256) of a ladder's log q(h | x) with its constants; {} for other models.

    A ladder is a network of latent layers h; q is its inference network.
    """
    ladder = ladder_of(model)
    if ladder is None:
        return {}
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = shapes_of(ladder)
    x, h = jax.eval_shape(lambda k, p: ladder.dreamt(k, p["theta"], 2), key, params)
    h = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), h)
    return {"inference network": fingerprint(lambda p, x, h: ladder.log_q(p, x[None], h), params, x, h)}


def shapes_of(ladder: Ladder) -> dict[str, PyTree]:
    """Shapes and dtypes of a ladder's θ and φ."""
    return jax.eval_shape(lambda key: ladder.initial(key), jax.eval_shape(lambda: jax.random.key(0)))
