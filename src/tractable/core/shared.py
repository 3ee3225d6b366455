"""Sharing of compiled programs: factories that return one object for equal arguments, and ``jax.jit`` for models.

Factories also give their objects a recipe, by which a saved folder names the model that it belongs to.
"""

import contextlib
import functools
import importlib
import inspect
import json
import weakref
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from tractable.core import program_files
from tractable.core.errors import CheckpointError, TractableError
from tractable.core.tree import PyTree
from tractable.core.words import check_spelling

# The modules whose functions a saved folder may name. Keys are the module names that are written in folders; they never
# change, so that folders keep their format if code moves. Values are where the modules are now.
FACTORIES = {
    f"tractable.models.{name}": f"tractable.{place}"
    for name, place in {
        "architecture": "networks.architecture",
        "censoring": "core.censoring",
        "factors": "latent.factors",
        "families": "glm.families",
        "formula": "tables.regression",
        "gallery": "gallery.models",
        "ladders": "ladders.ladders",
        "layers": "ladders.layers",
        "linear": "glm.linear",
        "markov": "latent.markov",
        "mixture": "latent.mixture",
        "network": "networks.network",
        "several": "networks.multi_output",
        "state_space": "latent.state_space",
        "table": "tables.models",
        "variational": "latent.conjugate_models",
        "variational_mixture": "latent.variational_mixture",
        "variational_regression": "latent.variational_regression",
    }.items()
}
FEW = 1 << 14  # on at most this many numbers, a program without a long loop takes less time to run than to compile
ONCE = 1 << 17  # the same for a program that is called a few times only
READY = 128  # most programs from files that a function holds in memory
# XLA options on CPUs. COMPILE_FAST takes a quarter of the time to compile, and loops over few numbers run as fast.
# COMPILE_FASTEST takes a tenth and runs at a third of the speed. Both may round differently.
COMPILE_FAST = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}
COMPILE_FASTEST = COMPILE_FAST | {"xla_backend_optimization_level": 0}
P = ParamSpec("P")
T = TypeVar("T")


def shared(factory: Callable[P, T]) -> Callable[P, T]:
    """A decorator: ``factory`` returns the same object for equal arguments, by position or by name.

    ``factory`` receives lists and arrays as tuples; all other arguments must be hashable.
    """
    signature = inspect.signature(factory)

    @functools.lru_cache(maxsize=128)
    def make(precision: jnp.dtype, *arguments: object) -> T:
        return factory(*arguments)  # pyright: ignore[reportCallIssue]

    @functools.wraps(factory)
    def lookup(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # An object may hold arrays of the precision in which it was made.
        return make(jnp.result_type(float), *map(_hashable, bound.args))

    return recorded(lookup)


def recorded(factory: Callable[P, T]) -> Callable[P, T]:
    """A decorator: objects that ``factory`` returns have a ``recipe`` if JSON can hold the arguments."""
    signature = inspect.signature(factory)

    @functools.wraps(factory)
    def lookup(*args: P.args, **kwargs: P.kwargs) -> T:
        check_spelling(f"{factory.__name__}()", kwargs, signature, vars(factory).get("removed", {}))
        result = factory(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        with contextlib.suppress(TypeError, ValueError):  # no JSON, or an object without weak references
            arguments = json.loads(json.dumps(bound.arguments, allow_nan=False, default=_written))
            remember(result, lookup, lambda: arguments)
        return result

    _recorded.add(lookup)
    return lookup


def _written(value: Any) -> Any:
    """An argument that JSON cannot hold, as a list or as a recipe."""
    if isinstance(value, np.ndarray | jax.Array) and value.size <= FEW:
        return value.tolist()
    if (written := recipe(value)) is None:
        raise TypeError(f"{type(value).__name__} has no recipe")
    return written


_recorded: set[Callable] = set()  # the only functions that loading a folder may call
_makers: weakref.WeakKeyDictionary[object, tuple[Callable, Callable]] = weakref.WeakKeyDictionary()


def remember(result: T, factory: Callable[..., T], arguments: Callable[[], dict[str, object]]) -> T:
    """Return ``result`` with a ``recipe``: to call ``factory`` with the dict that ``arguments()`` returns."""
    _makers[result] = (factory, arguments)
    return result


def copy_recipe(source: object, result: T) -> T:
    """Return ``result`` with the ``recipe`` of ``source``, if ``source`` has one."""
    return remember(result, *_makers[source]) if source in _makers else result


class Compiled(Generic[T]):
    """``jax.jit`` of a function whose static arguments, such as models, may hold arrays that are to be traced.

    A static argument, or an element of a static tuple, may have a method ``split_arrays()``, which returns the form for
    which the program is compiled, and arrays to trace. Inside the function the form's ``join_arrays(arrays)`` restores
    the argument.

    A program on few numbers takes longer to compile than to run, and is compiled with the XLA options ``if_few``, such
    as COMPILE_FAST or COMPILE_FASTEST. Donated arrays are memory for results, so they do not count here: otherwise a
    longer run could get other options, and results that differ in the last bits. Programs with a ``placement`` that
    divides rows among devices never use ``if_few``: the number of rows on a device depends on the number of devices,
    but results must not, to the last bit.
    """

    def __init__(
        self, function: Callable[..., T], static: tuple[str, ...], donate: tuple[str, ...], if_few: dict[str, Any],
        few: int,
    ) -> None:  # fmt: skip
        functools.update_wrapper(self, function)
        self._signature, self._static, self._room = inspect.signature(function), static, (*static, *donate)

        def program(arrays: dict[str, PyTree], /, **arguments: object) -> T:
            return function(**arguments | {name: _join(arguments[name], each) for name, each in arrays.items()})

        program.__name__, program.__qualname__ = function.__name__, function.__qualname__
        program.__module__ = function.__module__
        self._jit = functools.partial(jax.jit, program, static_argnames=static, donate_argnames=donate)
        self._program, self._plain, self._donate = self._jit(), program, donate
        self._options, self._few = if_few, few
        self._ready: dict[Hashable, Callable | None] = {}  # programs from files; None if a program can have no file

    def __call__(self, *args: object, **kwargs: object) -> T:
        arrays, arguments = self._split(args, kwargs)
        static, leaves, structure = self._flatten(arrays, arguments)
        is_traced = _is_traced(leaves)
        are_few = False
        if self._options and not is_traced and not getattr(arguments.get("placement"), "divides_rows", False):
            given = [arrays, *(argument for name, argument in arguments.items() if name not in self._room)]
            are_few = _are_few(given, self._few)
        if not is_traced and program_files.folder() is not None:
            key = (*static.items(), structure, *map(jax.typeof, leaves), are_few, program_files.settings())
            if key not in self._ready:
                if len(self._ready) >= READY:
                    self._ready.clear()
                self._ready[key] = self._from_file(static, leaves, structure, are_few)
            if (ready := self._ready[key]) is not None:
                return ready(*leaves)
        return (self._if_few if are_few else self._program)(arrays, **arguments)

    def _from_file(self, static: dict[str, Any], leaves: list, structure: PyTree, are_few: bool) -> Callable | None:
        """The program, traced or from its file; None if there can be no file, as of a program with callbacks."""

        def function(*leaves: jax.Array) -> T:
            arrays, traced = jax.tree.unflatten(structure, leaves)
            return self._plain(arrays, **traced, **static)

        function.__name__ = self._plain.__name__
        places = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(structure, leaves))[0]
        donate = [i for i, (path, _) in enumerate(places) if path[0].idx == 1 and path[1].key in self._donate]
        try:
            path = self._file("program", static, leaves, structure, are_few)
            kinds = [jax.typeof(leaf) for leaf in leaves]
            return program_files.program(path, function, kinds, donate, self._known_options if are_few else None)
        except Exception:  # what cannot be described, exported or written again works without a file
            return None

    def _look_up(self, what: str, compute: Callable[[], Any], arrays: dict, arguments: dict[str, Any]) -> Any:
        """The JSON value of ``compute()``, which depends on the program alone, from a file if there can be one."""
        if program_files.folder() is None:
            return compute()
        try:
            path = self._file(what, *self._flatten(arrays, arguments))
        except (LookupError, ImportError):
            return compute()
        return program_files.load_or_compute(path, compute)

    def _flatten(self, arrays: dict[str, PyTree], arguments: dict[str, Any]) -> tuple[dict[str, Any], list, PyTree]:
        """The static arguments, and the leaves and structure of all others."""
        static = {name: value for name, value in arguments.items() if name in self._static}
        traced = {name: value for name, value in arguments.items() if name not in self._static}
        return static, *jax.tree.flatten((arrays, traced))

    def _file(self, what: str, static: dict[str, Any], leaves: list, structure: PyTree, are_few: bool = False) -> Path:
        """The file for what a program is traced from; raises a LookupError if that is not known."""
        if "0x" in str(structure):  # the address of an object that cannot be described
            raise LookupError(str(structure))
        described = {name: program_files.describe(value) for name, value in static.items()}
        kinds = [leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf) for leaf in leaves]
        named = [what, self._plain.__module__, self._plain.__qualname__, described, str(structure), are_few]
        return program_files.file_of([*named, *((str(kind.dtype), kind.shape, kind.weak_type) for kind in kinds)])

    @functools.cached_property
    def _known_options(self) -> dict[str, Any]:
        """The options ``if_few`` that the installed XLA knows."""
        return {k: v for k, v in self._options.items() if k not in _refused_options()}

    @functools.cached_property
    def _if_few(self) -> Callable[..., T]:
        """The program compiled with the options ``if_few``; made when first used."""
        return self._jit(compiler_options=self._known_options)

    def traced(self, *args: object, **kwargs: object) -> ClosedJaxpr:
        arrays, arguments = self._split(args, kwargs)
        return self._program.trace(arrays, **arguments).jaxpr

    def count(self, operations: Callable[[ClosedJaxpr], float], *args: object) -> float:
        """``operations`` of the traced program."""
        return self._look_up(operations.__name__, lambda: operations(self.traced(*args)), *self._split(args, {}))

    def eval_shape(self, *args: object, **kwargs: object) -> Any:
        arrays, arguments = self._split(args, kwargs)

        def compute() -> Any:
            leaves, structure = jax.tree.flatten(self._program.eval_shape(arrays, **arguments))
            return program_files.containers(structure), [(leaf.shape, np.dtype(leaf.dtype).name) for leaf in leaves]

        try:
            structure, kinds = self._look_up("shapes", compute, arrays, arguments)
        except (LookupError, TypeError):  # containers that cannot be described, or keys
            return self._program.eval_shape(arrays, **arguments)
        leaves = [jax.ShapeDtypeStruct(tuple(shape), np.dtype(name)) for shape, name in kinds]
        return jax.tree.unflatten(program_files.with_containers(structure), leaves)

    def _split(self, args: tuple, kwargs: dict[str, object]) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """The arrays of static arguments by name, and all arguments with the static ones' forms."""
        arguments = self._signature.bind(*args, **kwargs).arguments
        parts = {name: _split(arguments[name]) for name in self._static if name in arguments}
        forms = {name: form for name, (form, _) in parts.items()}
        return {name: arrays for name, (_, arrays) in parts.items()}, arguments | forms


def compiled(
    *static: str, donate: tuple[str, ...] = (), if_few: dict[str, Any] | None = None, few: int = FEW
) -> Callable[[Callable[..., T]], Compiled[T]]:
    """A decorator that turns a function into a ``Compiled`` with the named static arguments.

    A program that is called a few times only can have a larger limit ``few`` of numbers, such as ONCE.
    """
    return lambda function: Compiled(function, static, donate, if_few or {}, few)


@functools.cache
def _refused_options() -> frozenset[str]:
    """The options in COMPILE_FASTEST that the installed XLA refuses: new releases of XLA drop some options."""

    def accepts(**options: object) -> bool:
        try:
            jax.jit(lambda: 0, compiler_options=options).lower().compile()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    if accepts(**COMPILE_FASTEST):
        return frozenset()
    return frozenset(name for name, value in COMPILE_FASTEST.items() if not accepts(**{name: value}))


def _is_traced(leaves: list) -> bool:
    """Whether one of the leaves is traced, or whether operations on other numbers are traced now."""
    return any(isinstance(leaf, Tracer) for leaf in (jax.lax.stop_gradient(0.0), *leaves))


def _are_few(arrays: PyTree, few: int) -> bool:
    """Whether arrays on a CPU hold at most ``few`` numbers; False on an accelerator, where the options do not apply."""
    return jax.default_backend() == "cpu" and sum(np.size(leaf) for leaf in jax.tree.leaves(arrays)) <= few


def _split(value: Any) -> tuple[Any, PyTree]:
    """The form of a static argument, for which a program is compiled, and its arrays."""
    leaves, structure = jax.tree.flatten(value, is_leaf=_no_tuple)
    parts = [leaf.split_arrays() if hasattr(leaf, "split_arrays") else (leaf, ()) for leaf in leaves]
    return jax.tree.unflatten(structure, [form for form, _ in parts]), [arrays for _, arrays in parts]


def _join(form: Any, arrays: PyTree) -> Any:
    """The inverse of ``_split``."""
    leaves, structure = jax.tree.flatten(form, is_leaf=_no_tuple)
    parts = zip(leaves, arrays, strict=True)
    return jax.tree.unflatten(structure, [leaf.join_arrays(each) if each else leaf for leaf, each in parts])


def _no_tuple(value: object) -> bool:
    return not isinstance(value, tuple)


def recipe(result: object) -> dict[str, object] | None:
    """The library's function that made an object, and its arguments, as JSON can hold them; None if unknown."""
    if result not in _makers:
        return None
    factory, given = _makers[result]
    module = next((name for name, place in FACTORIES.items() if place == factory.__module__), None)
    if module is None or "<" in factory.__qualname__:
        return None
    try:
        json.dumps(arguments := given(), allow_nan=False)
    except (TypeError, ValueError):
        return None
    return {"module": module, "name": factory.__qualname__, "arguments": arguments}


def made_again(recipe: Mapping[str, Any]) -> object:
    """The model of a ``recipe``, made again.

    Raises:
        CheckpointError: the recipe is damaged, or names a function that is not ``recorded``.
    """
    try:
        module, name = recipe["module"], recipe["name"]
        factory = getattr(importlib.import_module(FACTORIES[module]), name) if module in FACTORIES else None
        if factory is None or factory not in _recorded:
            raise CheckpointError(
                f"{module}.{name} made this model; expected a function of tractable's models. Pass the model: "
                "load(path, model)."
            )
        given = recipe["arguments"].items()
        return factory(**{k: made_again(v) if isinstance(v, dict) and "module" in v else v for k, v in given})
    except TractableError:
        raise
    except Exception as error:  # a forged recipe may raise anything
        raise CheckpointError(f"The model cannot be made again: {error}. Pass it: load(path, model).") from error


def _hashable(value: object) -> object:
    if isinstance(value, np.ndarray | jax.Array):
        value = value.tolist()
    return tuple(map(_hashable, value)) if type(value) in (list, tuple) else value  # pyright: ignore
