"""A fingerprint of the program that a function computes.

Equal programs have equal fingerprints, even if one has its constants in a closure and the other in a literal.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from tractable.core.tree import PyTree

VERSION = "2"  # version of the hashing; fingerprints of different versions cannot be compared
CALLBACKS = ("pure_callback", "io_callback")  # JAX's operations that call Python


class Trace(NamedTuple):
    """What JAX's trace of a function shows.

    Attributes:
        fingerprint: SHA-256 of the program.
        calls_back: whether the program calls Python functions, whose code is no part of the trace.
        structure: the containers of the result, with their names.
    """

    fingerprint: str
    calls_back: bool
    structure: str


def fingerprint(function: Callable, *example: object) -> str:
    """The fingerprint of a function, as in the result of ``trace``."""
    return trace(function, *example).fingerprint


@jax.default_matmul_precision(None)
def trace(function: Callable, *example: object) -> Trace:
    """Trace ``function`` with JAX and hash its program.

    The hash covers the equations in order, all shapes and dtypes, and every constant. Nested programs (``jit``,
    ``scan``, ``cond``) are included. If the function has a custom gradient (``custom_vjp``), the gradient's program
    with respect to the first argument is hashed too, since the function's own program does not contain it. The hash
    does not cover what a callback to Python computes (see ``calls_back``), nor JAX's default precision of products.
    """
    program, result = jax.make_jaxpr(function, return_shape=True)(*example)
    parts, primitives = [_digest(program, {})], {*_primitives(program)}
    if any(name.startswith("custom_") for name in primitives):
        slope = jax.grad(lambda first, *rest: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(function(first, *rest))))
        try:
            parts.append(_digest(jax.make_jaxpr(slope)(*example), {}))
        except (TypeError, ValueError, NotImplementedError):  # there is no gradient, as of a loop of unknown length
            parts.append("none")
    digest = f"{VERSION}:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"
    return Trace(digest, bool(primitives & {*CALLBACKS}), structure_of(result))


def structure_of(value: PyTree) -> str:
    """The containers of a pytree, with everything in them that is no array, but without memory addresses."""
    return _without_addresses(jax.tree.structure(value))


def _digest(program: ClosedJaxpr | Jaxpr, seen: dict[int, str]) -> str:
    """The hash of one program. ``seen`` holds the hashes of earlier programs by id, since they may be nested again."""
    if id(program) not in seen:
        # From JAX 0.11 on, ``ClosedJaxpr`` and ``Jaxpr`` are one class, whose programs hold their constants.
        jaxpr, constants = getattr(program, "jaxpr", program), getattr(program, "consts", [])
        places: dict[Any, int] = {}

        def variable_json(variable: Var | Literal) -> list:
            if isinstance(variable, Literal):
                return [_as_json(np.asarray(variable.val), seen), str(variable.aval)]
            return [places.setdefault(variable, len(places)), str(variable.aval)]

        parts: list[Any] = [[variable_json(v) for v in jaxpr.constvars], [variable_json(v) for v in jaxpr.invars]]
        for equation in jaxpr.eqns:
            ends = [[variable_json(v) for v in equation.invars], [variable_json(v) for v in equation.outvars]]
            parts.append([equation.primitive.name, *ends, _as_json(equation.params, seen)])
        parts += [[variable_json(v) for v in jaxpr.outvars], [_as_json(constant, seen) for constant in constants]]
        seen[id(program)] = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return seen[id(program)]


def _as_json(value: object, seen: dict[int, str]) -> Any:
    """A parameter or a constant as JSON can hold it, without the memory addresses of functions and objects."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return _digest(value, seen)
    if isinstance(value, Mapping):
        return [[str(key), _as_json(value[key], seen)] for key in sorted(value, key=str)]
    if isinstance(value, tuple | list):
        return [_as_json(part, seen) for part in value]
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return [str(value.dtype), _as_json(jax.random.key_data(value), seen)]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        return [str(array.dtype), np.shape(value), hashlib.sha256(array.tobytes()).hexdigest()]
    if callable(value) and not isinstance(value, type):
        return [type(value).__name__, getattr(value, "__name__", "")]
    return _without_addresses(value)


def _without_addresses(value: object) -> str:
    return re.sub(r"0x[0-9a-f]+", "", repr(value))


def _primitives(program: object) -> Iterator[str]:
    """The names of a program's operations, those of nested programs included."""
    if isinstance(program, ClosedJaxpr | Jaxpr):
        for equation in program.eqns:
            yield equation.primitive.name
            yield from _primitives(list(equation.params.values()))
    elif isinstance(program, tuple | list):
        for part in program:
            yield from _primitives(part)
