"""Builds a method from ``--method``, ``--set field=value`` and ``--config FILE.toml``."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tractable import methods
from tractable.methods import Method
from tractable.tools.errors import SettingsError
from tractable.tools.settings import fields_of
from tractable.tools.words import nearest


def method_of(
    name: str | None, config: Path | None, assignments: Sequence[str], default: str = "nuts"
) -> tuple[Method, int | None]:
    """The method, and the seed if the file has one. ``assignments`` override ``name``, which overrides the file."""
    settings = {} if config is None else read(config)
    seed = settings.pop("seed", None)
    if name is not None:
        given = settings.get("method")
        if given is not None and methods.named(given) is not methods.named(name):
            settings = {}  # the file's fields belong to another method
        settings["method"] = name
    settings.setdefault("method", default)
    for field, value in map(assignment, assignments):
        settings[field] = value
    return made(settings), seed


def methods_of(names: str, assignments: Sequence[str]) -> list[Method]:
    """The methods in a comma list. ``field=value`` is for all that have the field, ``method.field=value`` for one."""
    kinds = [methods.named(name.strip()) for name in names.split(",") if name.strip()]
    if not kinds:
        raise SettingsError("--methods expects names with commas between them, such as map,nuts; got none.")
    chosen: list[dict[str, Any]] = [{"method": kind.label} for kind in kinds]
    for name, value in map(assignment, assignments):
        owner, _, field = name.rpartition(".")
        wanted = methods.named(owner) if owner else None
        takers = [
            settings
            for kind, settings in zip(kinds, chosen, strict=True)
            if (kind is wanted if owner else field in fields_of(kind))
        ]
        if not takers:
            raise SettingsError(
                f"--set {name}=… is for none of the methods {', '.join(k.label for k in kinds)}: "
                f"{'none of them is that method' if owner else 'none of them has that field'}."
                f"{'' if owner else nearest(field, (each for kind in kinds for each in fields_of(kind)))}"
            )
        for settings in takers:
            settings[field] = value
    return [made(settings) for settings in chosen]


def made(settings: dict[str, Any]) -> Method:
    """``methods.from_settings``, with an error for a field that is a function, which no command line can give."""
    kind = methods.named(str(settings["method"]))
    for name, value in settings.items():
        if "Proposal" in fields_of(kind).get(name, "") and value is not None:
            raise SettingsError(f"{name} of {kind.__name__} is a function: a command line cannot hold it; use Python.")
    return methods.from_settings(settings)


def assignment(text: str) -> tuple[str, Any]:
    """Splits ``field=value``. The value is read as TOML, or ``none``, or else kept as text.

    >>> assignment("draws=500"), assignment("thin=auto"), assignment("preconditioner=none")
    (('draws', 500), ('thin', 'auto'), ('preconditioner', None))
    """
    field, sign, value = text.partition("=")
    field, value = field.strip().replace("-", "_"), value.strip()
    if not (sign and field and value):
        raise SettingsError(f"--set expects field=value, such as draws=500; got {text!r}.")
    if value.lower() in ("none", "true", "false"):
        return field, {"none": None, "true": True, "false": False}[value.lower()]
    try:
        return field, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return field, value


def read(path: Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"There is no file {path}; --config expects settings in TOML.") from error
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not TOML: {error}.") from error
