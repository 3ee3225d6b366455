"""Options of a kind of model, and how what was typed for them is read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tractable.tools.errors import DataError, SettingsError

Arguments = Mapping[str, Any]  # options by name, as they were typed or saved


class Option(NamedTuple):
    """An option of a kind of model."""

    read: Callable[[Any], Any] = lambda value: value  # from what was typed or saved to what JSON holds, or a sentence
    usual: Any = None  # where nothing is said


def share(value: float) -> float:
    """--held-out."""
    if not 0 <= value < 1:
        raise DataError(f"--held-out expects a share of the rows in [0, 1); got {value:g}.")
    return value


def one_of(names: Iterable[str], words: str, remedy: str = "") -> Callable[[Any], Any]:
    """Reads one of some names; ``words`` begin the sentence about another, ``remedy`` ends it."""
    names = tuple(names)

    def read(value: str) -> str:
        if value not in names:
            expected = ", ".join(names) if names[2:] else " or ".join(names)
            raise SettingsError(f"{words} {expected}; got {value!r}.{remedy}")
        return value

    return read


def sizes(option: str, such: str) -> Callable[[Any], list[int]]:
    """Reads whole numbers with commas between, such as ``such``.

    >>> sizes("latent", "20 or 100,50")("100, 50")
    [100, 50]
    """

    def read(value: str | Sequence[int]) -> list[int]:
        if not isinstance(value, str):
            return list(value)
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise SettingsError(
                f"--{option} expects whole numbers of 1 or more, with commas between them, such as {such}; got "
                f"{value!r}."
            )
        return list(map(int, parts))

    return read


def refusals(name: str, reasons: Mapping[str, str]) -> dict[str, str]:
    """Sentences about options that are not the kind's."""
    return {option: f"--{option} is not for --model {name}: {why}" for option, why in reasons.items()}
