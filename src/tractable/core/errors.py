"""The library's errors: each message says what was expected, what was given, and what to do."""

import contextlib
from collections.abc import Iterator
from typing import Any

from tractable.core.shown import printable

__all__ = [
    "ArgumentError", "CheckpointError", "DataError", "ModelError", "RunError", "SettingsError", "TractableError",
    "TractableWarning",
]  # fmt: skip


class TractableError(Exception):
    """Base of all errors that the library raises on purpose; control characters in a message are escaped."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class ModelError(TractableError, ValueError):
    """The model cannot be used: a shape or a support is wrong, or the density is not finite."""


class DataError(TractableError, ValueError):
    """The data cannot be used: they are empty, not finite, or of unequal lengths."""


class SettingsError(TractableError, ValueError):
    """A setting is out of its range, or the method cannot be used with the model."""


class ArgumentError(SettingsError, TypeError):
    """A function or method has no argument of that name."""


class RunError(TractableError, RuntimeError):
    """A run could not continue; ``partial`` holds its result so far, if there is one."""

    def __init__(self, message: str, partial=None):
        super().__init__(message)
        self.partial = partial


class CheckpointError(TractableError, RuntimeError):
    """A saved run is damaged, belongs to another model, data set or configuration, or cannot be written.

    After a failure to write, ``partial`` holds the run's result so far, if there is one.
    """

    partial: Any = None


class TractableWarning(UserWarning):
    """The run continued, but the message limits what its result means."""


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """A context in which a failure to allocate memory becomes a RunError, which says how much was asked for."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not str(error).startswith("RESOURCE_EXHAUSTED"):  # JAX's error
            raise
        raise RunError(
            f"Memory is too small: {error} Use fewer parameters, draws or chains, or minibatches."
        ) from error


@contextlib.contextmanager
def parsing(fault: str, remedy: str = "") -> Iterator[None]:
    """A context that turns every error of a parser, or of a user's function, into a DataError: fault, cause, remedy.

    A MemoryError is one too, as a damaged file may claim any size.
    """
    try:
        yield
    except TractableError:
        raise
    except Exception as error:
        raise DataError(f"{fault}: {error}. {remedy}".rstrip()) from error
