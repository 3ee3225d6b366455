"""What stands for beartype in the tests checks as beartype does."""

from typing import Any

import jaxtyping
import pytest
from checked import once


def defined(kind: Any, result: Any = None) -> Any:
    """A function that is made anew, as closures are."""

    @jaxtyping.jaxtyped(typechecker=once)
    def closure(x: kind, *more: int) -> kind:
        return x if result is None else result

    return closure


def test_each_is_checked_though_one_is_remembered():
    for _ in range(3):
        assert defined(int)(1, 2) == 1
        for wrong, given in ((defined(int), ("a",)), (defined(int), (1, "a")), (defined(int, "a"), (1,))):
            with pytest.raises(jaxtyping.TypeCheckError):
                wrong(*given)
    assert defined(str)("a") == "a"  # the same code, other annotations
    with pytest.raises(jaxtyping.TypeCheckError):
        defined(str)(1)


def test_closures_are_remembered():
    def made(default: list[int]):
        def closure(x: list[int]) -> int | None: ...

        def other(x: list[int] = default) -> int | None: ...

        return closure, other

    one, two = made([1]), made([2])
    assert once(one[0]) is once(two[0])
    assert once(one[1]) is not once(two[1])
