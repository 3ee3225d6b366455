"""A fingerprint of what a function computes: equal programs have equal ones, wherever their constants are held."""

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

VERSION = "2"  # of the hashing; fingerprints of different versions cannot be compared
CALLBACKS = ("pure_callback", "io_callback")


class Trace(NamedTuple):
    """What JAX's trace of a function tells of it.

    Attributes:
        fingerprint: SHA-256 of the program.
        calls_back: whether the program calls Python functions, whose contents JAX does not see.
        structure: the containers of the result, and their names.
    """

    fingerprint: str
    calls_back: bool
    structure: str


def fingerprint(function: Callable, *example: object) -> str:
    """The fingerprint of ``trace``."""
    return trace(function, *example).fingerprint


@jax.default_matmul_precision(None)
def trace(function: Callable, *example: object) -> Trace:
    """Identifies ``function`` as JAX traces it, and its gradient in the first argument if it has custom rules.

    It covers equations in order, shapes, dtypes and every constant, also of nested programs (``jit``, ``scan``,
    ``cond``). A custom gradient (``custom_vjp``) is no part of a program until it is used: hence the gradient. What a
    callback to Python computes cannot be seen (``calls_back``), and JAX's default precision of products does not count.
    """
    program, result = jax.make_jaxpr(function, return_shape=True)(*example)
    parts, primitives = [_digest(program, {})], {*_primitives(program)}
    if any(name.startswith("custom_") for name in primitives):
        slope = jax.grad(lambda first, *rest: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(function(first, *rest))))
        try:
            parts.append(_digest(jax.make_jaxpr(slope)(*example), {}))
        except (TypeError, ValueError, NotImplementedError):  # such as a loop of unknown length: it has no gradient
            parts.append("none")
    found = f"{VERSION}:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"
    return Trace(found, bool(primitives & {*CALLBACKS}), structure_of(result))


def structure_of(value: PyTree) -> str:
    """The containers of a pytree, and what they hold besides arrays; without memory addresses."""
    return _without_addresses(jax.tree.structure(value))


def _digest(program: ClosedJaxpr | Jaxpr, seen: dict[int, str]) -> str:
    """One program's digest; ``seen`` holds earlier ones, as nested programs are shared."""
    if id(program) not in seen:
        # From JAX 0.11 on the two are one class, of programs that hold their constants.
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
    """A parameter or a constant as JSON can hold it, without memory addresses of functions and objects."""
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
    """Names of a program's operations, including nested programs'."""
    if isinstance(program, ClosedJaxpr | Jaxpr):
        for equation in program.eqns:
            yield equation.primitive.name
            yield from _primitives(list(equation.params.values()))
    elif isinstance(program, tuple | list):
        for part in program:
            yield from _primitives(part)
