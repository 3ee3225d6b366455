"""The library's errors: each message says what was expected, what came, and what to do."""

import contextlib
from collections.abc import Iterator
from typing import Any

from tractable.core.shown import printable


class TractableError(Exception):
    """Anything this library raises on purpose; control characters in what it quotes are shown, not sent."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class ModelError(TractableError, ValueError):
    """The model cannot be used as it stands: a shape, a support, a non-finite density."""


class DataError(TractableError, ValueError):
    """The data cannot be used as they stand: empty, not finite, of unequal lengths."""


class SettingsError(TractableError, ValueError):
    """A method's field is out of range, or the method does not fit the model."""


class ArgumentError(SettingsError, TypeError):
    """A function or method has no argument of that name."""


class RunError(TractableError, RuntimeError):
    """A run could not go on; ``partial`` holds its result so far, if there is one."""

    def __init__(self, message: str, partial=None):
        super().__init__(message)
        self.partial = partial


class CheckpointError(TractableError, RuntimeError):
    """A saved run is damaged, belongs to another model, data set or configuration, or cannot be written.

    If a run's folder could no longer be written, ``partial`` holds its result so far, if there is one.
    """

    partial: Any = None


class TractableWarning(UserWarning):
    """The run went on, but its result should be read with the message in mind."""


@contextlib.contextmanager
def parsing(fault: str) -> Iterator[None]:
    """A DataError that begins with the fault for whatever the parsers of files that may be anybody's raise."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{fault}: {error}.") from error
