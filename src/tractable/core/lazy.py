"""Modules whose names are imported when they are first used: what a program does not use costs it no time."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path


def lazy_names(module: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a module, whose stub (``.pyi``) lists its names by imports.

    Args:
        module: the module's ``__name__``.
        file: the module's ``__file__``; the stub lies beside it.
    """
    nodes = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [(str(node.module), name) for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names]
    origins = {name.asname or name.name: (origin, name.name) for origin, name in imports}

    def get(name: str) -> object:
        if name not in origins:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        origin, original = origins[name]
        if origin == module:  # a module of this package, which has no such attribute before the module is imported
            value = importlib.import_module(f"{origin}.{original}")
        else:
            value = getattr(__import__(origin, fromlist=[original]), original)
        vars(sys.modules[module])[name] = value
        return value

    return get, lambda: list(origins), list(origins)
