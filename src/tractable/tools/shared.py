"""The same arguments give the same object, so that what was compiled for it is found again."""

import contextlib
import functools
import importlib
import inspect
import itertools
import json
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tractable.tools.errors import CheckpointError, TractableError

PyTree = Any
HOME = "tractable.models."  # whose functions folders may name
FEW = 1 << 14  # numbers that a program without a long loop goes through in less time than it takes to compile
# Options of XLA on processors; both may round otherwise. PLAINLY compiles in half the time, and loops are up to a
# quarter slower; ROUGHLY compiles in a fifth of the time, and runs at a third of the speed.
PLAINLY = {"xla_cpu_use_fusion_emitters": False}
ROUGHLY = PLAINLY | {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}
P = ParamSpec("P")
T = TypeVar("T")


def shared(factory: Callable[P, T]) -> Callable[P, T]:
    """``factory``, which gives the same arguments, however they are passed, the same object.

    Lists and arrays come to it as tuples; all else is hashable.
    """
    signature = inspect.signature(factory)

    @functools.lru_cache(maxsize=128)
    def made(precision: jnp.dtype, *arguments: object) -> T:
        return factory(*arguments)  # pyright: ignore[reportCallIssue]

    @functools.wraps(factory)
    def lookup(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # What holds arrays belongs to the precision in force when it was made.
        found = made(jnp.result_type(float), *map(_hashable, bound.args))
        with contextlib.suppress(TypeError):  # a function or a tuple is not remembered
            _makers.setdefault(found, (factory, {name: _hashable(value) for name, value in bound.arguments.items()}))
        return found

    return maker(lookup)


def maker(factory: Callable[P, T]) -> Callable[P, T]:
    """``factory``, one of those that a folder may ask for by name: no other function is called for a file."""
    _asked_for.add(factory)
    return factory


_asked_for: set[Callable] = set()
_makers: weakref.WeakKeyDictionary[object, tuple[Callable, Any]] = weakref.WeakKeyDictionary()


def remember(made: T, factory: Callable[..., T], arguments: Callable[[], dict[str, object]]) -> T:
    """``made``, with a ``recipe`` by which ``factory`` makes it anew: its arguments are written down when asked for."""
    _makers[made] = (factory, arguments)
    return made


class Compiled(Generic[T]):
    """``jax.jit`` of a function, to which what its static arguments hold apart is handed as arguments.

    A static argument with an ``apart()``, or a part of a tuple, says what of it a program is compiled for, and the
    numbers that are not: these come as arrays, and ``whole(numbers)`` puts both together where the function is traced.

    A program that runs once takes longer to compile than to run where its arrays are small: XLA then takes the options
    ``if_few``, of which this file has two.
    """

    def __init__(
        self, function: Callable[..., T], static: tuple[str, ...], donate: tuple[str, ...], if_few: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, function)
        self._signature, self._static = inspect.signature(function), static

        def program(numbers: dict[str, PyTree], /, **arguments: object) -> T:
            return function(**arguments | {name: whole_of(arguments[name], held) for name, held in numbers.items()})

        program.__name__ = function.__name__
        made = functools.partial(jax.jit, program, static_argnames=static, donate_argnames=donate)
        self._program = made()
        self._if_few = made(compiler_options=if_few) if if_few else None

    def __call__(self, *args: object, **kwargs: object) -> T:
        numbers, arguments = self._taken_apart(args, kwargs)
        given = [numbers, *(argument for name, argument in arguments.items() if name not in self._static)]
        program = self._if_few if self._if_few is not None and _are_few(given) else self._program
        return program(numbers, **arguments)

    def lower(self, *args: object, **kwargs: object) -> Any:
        numbers, arguments = self._taken_apart(args, kwargs)
        return self._program.lower(numbers, **arguments)

    def eval_shape(self, *args: object, **kwargs: object) -> Any:
        numbers, arguments = self._taken_apart(args, kwargs)
        return self._program.eval_shape(numbers, **arguments)

    def _taken_apart(self, args: tuple, kwargs: dict[str, object]) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """The numbers of static arguments, by name, and all arguments without them."""
        arguments = self._signature.bind(*args, **kwargs).arguments
        parts = {name: apart(arguments[name]) for name in self._static if name in arguments}
        forms = {name: form for name, (form, _) in parts.items()}
        return {name: numbers for name, (_, numbers) in parts.items()}, arguments | forms


def compiled(
    *static: str, donate: tuple[str, ...] = (), if_few: dict[str, Any] | None = None
) -> Callable[[Callable[..., T]], Compiled[T]]:
    """A decorator: compiled once for the named arguments, but for what they hold apart; see ``Compiled``."""
    return lambda function: Compiled(function, static, donate, if_few or {})


def _are_few(arrays: PyTree) -> bool:
    """Whether these are few numbers on a processor, and nothing is traced: options are for whole programs."""
    leaves = jax.tree.leaves(arrays)
    if jax.default_backend() != "cpu" or any(isinstance(leaf, Tracer) for leaf in (jnp.asarray(0.0), *leaves)):
        return False
    return sum(np.size(leaf) for leaf in leaves) <= FEW


def apart(value: Any) -> tuple[Any, PyTree]:
    """What of a static argument a program is compiled for, and the numbers that are its arguments."""
    if isinstance(value, tuple):
        parts = [apart(part) for part in value]
        forms = (form for form, _ in parts)
        return type(value)(*forms) if hasattr(value, "_fields") else tuple(forms), [those for _, those in parts]
    return value.apart() if hasattr(value, "apart") else (value, ())


def whole_of(form: Any, numbers: PyTree) -> Any:
    """What ``apart`` took apart."""
    if isinstance(form, tuple):
        parts = itertools.starmap(whole_of, zip(form, numbers, strict=True))
        return type(form)(*parts) if hasattr(form, "_fields") else tuple(parts)
    return form.whole(numbers) if hasattr(form, "whole") else form


def recipe(made: object) -> dict[str, object] | None:
    """By which of this library's functions and from what something was made, as JSON can hold it; None if unknown."""
    factory, arguments = _makers.get(made, (None, {}))
    if factory is None or not factory.__module__.startswith(HOME) or "<" in factory.__qualname__:
        return None
    try:
        arguments = arguments() if callable(arguments) else arguments
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return {"module": factory.__module__, "name": factory.__qualname__, "arguments": arguments}


def made_again(recipe: Mapping[str, Any]) -> object:
    """What a ``recipe`` of this library's models makes.

    Raises:
        CheckpointError: it names another function than those that make models, or is damaged.
    """
    try:
        module, name = recipe["module"], recipe["name"]
        factory = getattr(importlib.import_module(module), name) if module.startswith(HOME) else None
        if factory is None or factory not in _asked_for:
            raise CheckpointError(f"This was made by {module}.{name}, no maker of tractable's models: give the model.")
        return factory(**recipe["arguments"])
    except TractableError:
        raise
    except Exception as error:  # whatever a recipe that no run wrote leads to
        raise CheckpointError(f"The model cannot be made again ({error}): give it, load(path, model).") from error


def _hashable(value: object) -> object:
    if isinstance(value, np.ndarray | jax.Array):
        value = value.tolist()
    return tuple(map(_hashable, value)) if type(value) in (list, tuple) else value  # pyright: ignore
