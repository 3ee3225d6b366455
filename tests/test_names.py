"""What a user sees of a public name: its help and its signature."""

import inspect
import pydoc
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import reference

import tractable as tr
from tractable.adapters import flax, numpyro

pytestmark = pytest.mark.quick

ADDRESS = re.compile(r"<function|<lambda|object at 0x")


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public function and class, by its full name."""
    for part in (tr, *reference.PARTS, flax, numpyro):
        for name, it in reference.public(part).items():
            if not isinstance(it, ModuleType):
                yield f"{part.__name__}.{name}", it


def addresses(it: Any) -> list[str]:
    """The lines of a name's help and signature that show a function's address; not those of Python's own attributes."""
    lines = pydoc.plain(pydoc.render_doc(it)).splitlines()
    if callable(it) and not (isinstance(it, type) and issubclass(it, Exception)):
        lines.append(str(inspect.signature(it)))
    return [line for line in lines if ADDRESS.search(line) and not re.match(r"[ |]*_\w+ = ", line)]


def test_help_is_in_words():
    names = dict(public_names())
    assert len(names) > 150 and not {name: found for name, it in names.items() if (found := addresses(it))}


def test_an_address_is_seen():
    def slip(gradient=lambda x: x):
        """A function with a default that has no words."""

    assert addresses(slip)
