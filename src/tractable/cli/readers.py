"""The options of a kind of model, and functions that read the typed values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tractable.tools.errors import DataError, SettingsError
from tractable.tools.words import nearest

Arguments = Mapping[str, Any]  # options by name, as they were typed or saved


class Option(NamedTuple):
    """An option of a kind of model."""

    read: Callable[[Any], Any] = lambda value: value  # typed or saved value to one JSON holds, or an error
    usual: Any = None  # the default


def share(value: float) -> float:
    """Reads --held-out, a share of the rows in [0, 1)."""
    if not 0 <= value < 1:
        raise DataError(f"--held-out expects a share of the rows in [0, 1); got {value:g}.")
    return value


def one_of(names: Iterable[str], words: str, remedy: str = "") -> Callable[[Any], Any]:
    """A reader of one of ``names``; for any other, an error that begins with ``words`` and ends with ``remedy``."""
    names = tuple(names)

    def read(value: str) -> str:
        if value not in names:
            expected = ", ".join(names) if names[2:] else " or ".join(names)
            raise SettingsError(f"{words} {expected}; got {value!r}.{remedy}{nearest(value, names)}")
        return value

    return read


def sizes(option: str, such: str) -> Callable[[Any], list[int]]:
    """A reader of whole numbers with commas between them; its error gives ``such`` as an example.

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
    """Error messages for options that the kind does not take, from the reason for each."""
    return {option: f"--{option} is not for --model {name}: {why}" for option, why in reasons.items()}
