"""One family of errors: each message says what was expected, what was got, and what to do."""

from typing import Any


class TractableError(Exception):
    """Anything this library raises on purpose."""


class ModelError(TractableError, ValueError):
    """The model cannot be used as it stands: a shape, a support, a non-finite density."""


class DataError(TractableError, ValueError):
    """The data cannot be used as they stand: empty, not finite, of unequal lengths."""


class SettingsError(TractableError, ValueError):
    """A method's field is out of range, or the method does not fit the model."""


class ArgumentError(SettingsError, TypeError):
    """An argument that a function or a method does not have."""


class RunError(TractableError, RuntimeError):
    """A run could not go on; what it had reached travels in ``partial`` where there is something."""

    def __init__(self, message: str, partial=None):
        super().__init__(message)
        self.partial = partial


class CheckpointError(TractableError, RuntimeError):
    """A saved run is damaged, belongs to another model, data set or configuration, or cannot be written.

    What a run had learnt when its folder could no longer be written is in ``partial``, where there is something.
    """

    partial: Any = None


class TractableWarning(UserWarning):
    """The run went on, and its result should be read with what the message says in mind."""
