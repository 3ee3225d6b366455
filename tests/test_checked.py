"""The import hook puts beartype on functions and methods, and leaves what it cannot check."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation
from checked import Finder

pytestmark = pytest.mark.quick

FILE = """
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from decimal import Decimal


class Named(Protocol):
    def other(self) -> "Named": ...


class Box:
    @property
    def size(self) -> int:
        return "large"

    @staticmethod
    def like(other: "Box") -> str:
        return "a box"


def half(x: int, *, of: float | None = None) -> float:
    def closure(y: int) -> int:
        return y

    return closure(x / 2)


def unseen(x: "Decimal", y: "list[Decimal]") -> "Decimal | None":
    return x
"""


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "boxes.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [Finder("boxes"), *sys.meta_path])
    import boxes  # pyright: ignore[reportMissingImports]

    yield boxes
    del sys.modules["boxes"]


def test_wrong_classes_raise(boxes):
    assert boxes.half(3) == 1.5 and boxes.Box.like(boxes.Box()) == "a box"
    for call in (lambda: boxes.half("a"), lambda: boxes.half(3, of="a"), lambda: boxes.Box.like(3)):
        with pytest.raises(BeartypeCallHintViolation):
            call()
    with pytest.raises(BeartypeCallHintViolation):
        print(boxes.Box().size)


def test_names_for_type_checkers_alone_are_not_looked_for(boxes):
    assert boxes.unseen(3, 4) == 3


@pytest.mark.skipif(os.environ.get("TRACTABLE_TYPECHECK") == "0", reason="the hook is off")
def test_the_package_is_checked():
    import tractable as tr

    with pytest.raises(BeartypeCallHintViolation):
        tr.Data(np.zeros(9)).split("a half")
