"""Keeps traced programs in files, so that later processes need not trace them again.

A file holds a program as StableHLO (``jax.export``), and the containers of its results as JSON. Its name is a hash of
everything that the program was traced from: what the model's functions compute, the method's settings, the shapes of
all arguments, JAX's settings, the versions of JAX and numpyro, and the library's source files. It cannot see functions
of the library that were replaced in memory: set the environment variable ``TRACTABLE_PROGRAMS`` to "off" for that.
Files are in a subfolder of JAX's compilation cache, which keeps the compiled form of the same programs; without this
cache there are no files.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax

from tractable.core.errors import CheckpointError
from tractable.core.settings import Settings
from tractable.core.tree import PyTree
from tractable.core.words import tell
from tractable.core.writing import write_atomically

VARIABLE = "TRACTABLE_PROGRAMS"  # the environment variable that is "off" if there are to be no files
FIRST_LINE = b"tractable program 1"
CONFIG = (
    "jax_enable_x64", "jax_threefry_partitionable", "jax_default_prng_impl", "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_debug_nans", "jax_debug_infs", "jax_disable_jit",
)  # fmt: skip
loads = 0  # how many programs this process has read or written


def folder() -> Path | None:
    """The folder of the files; None without JAX's compilation cache on a disk, or on other devices than one CPU."""
    config: Any = jax.config
    cache = config.jax_compilation_cache_dir
    if not cache or "://" in cache or not config.jax_enable_compilation_cache or config.jax_disable_jit:
        return None
    on_one_cpu = jax.default_backend() == "cpu" and jax.device_count() == 1
    return Path(cache, "programs") if on_one_cpu and os.environ.get(VARIABLE, "").lower() != "off" else None


def settings() -> tuple:
    """The settings of JAX that change traced programs, and of which each thread has its own."""
    return tuple(getattr(jax.config, name, None) for name in CONFIG)


def describe(value: object) -> Any:
    """An argument of a program as JSON: equal descriptions belong to arguments for which equal programs are traced.

    Raises:
        LookupError: the argument holds something of which that cannot be known.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    fingerprint = getattr(value, "fingerprint", None)
    if fingerprint is not None and (found := fingerprint()) is not None:
        return [kind, found]
    if kind.startswith(("builtins:", "tractable.")):
        if isinstance(value, tuple):
            return [kind, *map(describe, value)]
        if isinstance(value, Settings):
            return [kind, *(describe(getattr(value, field.name)) for field in dataclasses.fields(value))]
    raise LookupError(kind)


def program(
    path: Path, function: Callable[..., PyTree], kinds: Sequence[object], donate: Sequence[int], options: dict | None
) -> Callable[..., PyTree]:
    """The compiled program of ``function(*leaves)``, traced in this process only if there is no file of it.

    Args:
        path: the file, from ``file_of``.
        kinds: the shapes and dtypes of the leaves.
        donate: the indices of the leaves whose memory is used again for results.
        options: XLA's options for compiling.

    Raises:
        Exception: the program cannot be exported or its results not described, as those of a user's own class.
    """
    global loads
    import jax.export

    loads += 1
    if (found := _read(path)) is not None:
        exported = jax.export.deserialize(bytearray(found.program))
    else:
        structures = []

        def flat(*leaves: jax.Array) -> list:
            values, structure = jax.tree.flatten(function(*leaves))
            structures.append(structure)
            return values

        exported = jax.export.export(jax.jit(flat, donate_argnums=donate))(*kinds)
        found = _Found(containers(structures[0]), bytes(exported.serialize()))
        _write(path, found)
    structure = with_containers(found.value)

    def run(*leaves: jax.Array) -> Any:
        return exported.call(*leaves)

    run.__name__ = run.__qualname__ = getattr(function, "__name__", "run")
    # Compiled here, not at its first call: that would compile it again for arguments that are its own results.
    compiled = jax.jit(run, donate_argnums=donate, compiler_options=options).lower(*kinds).compile()
    return lambda *leaves: jax.tree.unflatten(structure, compiled(*leaves))


def load_or_compute(path: Path, compute: Callable[[], Any]) -> Any:
    """The JSON value of ``compute()``, which runs only if there is no file of it."""
    if (found := _read(path)) is None:
        found = _Found(compute(), b"")
        _write(path, found)
    return found.value


class _Found(NamedTuple):
    """The content of a file."""

    value: Any  # a JSON value; of a program, the containers of its results
    program: bytes


def file_of(identity: object) -> Path:
    """The file of a program.

    Args:
        identity: describes everything but JAX's settings that the program is traced from, as JSON.

    Raises:
        LookupError, ImportError: a version or the library's source files cannot be found.
    """
    where = folder()
    assert where is not None
    versions = [metadata.version(name) for name in ("jax", "jaxlib", "numpyro")]
    traced_by = [_library(), versions, jax.default_backend()]
    config = [(name, repr(value)) for name, value in sorted(jax.config.values.items()) if "cache" not in name]
    described = json.dumps([traced_by, config, [repr(value) for value in settings()], identity])
    return where / hashlib.sha256(described.encode()).hexdigest()


@functools.cache
def _library() -> str:
    """A hash of the sizes and times of the library's source files, since programs are traced from them.

    Raises:
        LookupError: there are no such files, as in a zip archive.
    """
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in _sources()]
    if not stats:
        raise LookupError("source files")
    return hashlib.sha256(repr(sorted(stats)).encode()).hexdigest()


def _sources() -> Iterator[Path]:
    for parent, _, names in os.walk(Path(__file__).parents[1]):
        yield from (Path(parent, name) for name in names if name.endswith(".py"))


def _read(path: Path) -> _Found | None:
    """The content of a file; None if there is no file, or if it is damaged."""
    try:
        first, digest, content = path.read_bytes().split(b"\n", 2)
    except OSError:
        return None
    except ValueError:
        first = digest = content = b""
    if first != FIRST_LINE or digest != hashlib.sha256(content).hexdigest().encode():
        tell(f"The file {path} is no traced program, or it is damaged. It is ignored and written again.")
        return None
    value, program = content.split(b"\n", 1)
    return _Found(json.loads(value), program)


def _write(path: Path, found: _Found) -> None:
    """Write a file; without room or permission the next process traces the program again."""
    content = json.dumps(found.value).encode() + b"\n" + found.program
    digest = hashlib.sha256(content).hexdigest().encode()
    with contextlib.suppress(CheckpointError):
        write_atomically(path, b"\n".join([FIRST_LINE, digest, content]))


def containers(structure: PyTree) -> Any:
    """The containers of a pytree as JSON: tuples, lists, dicts, None, and the library's own named tuples.

    Raises:
        LookupError: there is another container, or a class that its module does not have by name.
    """

    def as_json(value: PyTree) -> Any:
        kind = type(value)
        if kind is int:
            return 0
        if value is None:
            return ["none"]
        if kind is dict and all(type(name) is str for name in value):
            return ["dict", {name: as_json(part) for name, part in value.items()}]
        parts = [as_json(part) for part in value] if isinstance(value, tuple | list) else []
        if kind in (tuple, list):
            return [kind.__name__, parts]
        by_name = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
        if isinstance(value, tuple) and by_name is kind and kind.__module__.startswith("tractable."):
            return ["named", parts, kind.__module__, kind.__name__]
        raise LookupError(kind.__qualname__)

    return as_json(jax.tree.unflatten(structure, range(structure.num_leaves)))


def with_containers(saved: PyTree) -> PyTree:
    """The structure of a pytree from the result of ``containers``."""

    def example(saved: PyTree) -> Any:
        if saved == 0:
            return 0
        kind, *rest = saved
        if kind == "none":
            return None
        if kind == "dict":
            return {name: example(part) for name, part in rest[0].items()}
        parts = [example(part) for part in rest[0]]
        if kind == "named":
            return getattr(importlib.import_module(rest[1]), rest[2])(*parts)
        return tuple(parts) if kind == "tuple" else parts

    return jax.tree.structure(example(saved))
