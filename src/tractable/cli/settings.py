"""Builds methods from ``--method``, ``--set field=value`` and ``--config FILE.toml``."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tractable.core.errors import SettingsError
from tractable.core.settings import fields_of
from tractable.core.words import nearest
from tractable.methods import named


def settings_of(given: Mapping[str, Any], default: dict, saved: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The fields of the method, and the seed of the run.

    ``--set`` overrides ``--method``, which overrides ``--config``. If none of them is given, the method is that of the
    run to resume, whose entries are ``saved``.
    """
    file = {} if given.get("config") is None else read(given["config"])
    fields = dict(map(assignment, given["set_"] or ()))
    seeds = given["seed"], file.pop("seed", None), saved.get("seed"), 0
    seed = next(each for each in seeds if each is not None)
    if saved and not (given["method"] or file or fields):
        return saved["method"], seed
    name = given["method"] or file.get("method") or saved.get("method", {}).get("method")
    base = {"method": name} if name else default
    if named(file.get("method", base["method"])) is not named(base["method"]):
        file = {}  # the file's fields belong to another method
    return base | file | fields, seed


def settings_of_each(names: str, assignments: Sequence[str]) -> list[dict[str, Any]]:
    """The fields of each method in a list of names with commas between them.

    An assignment ``field=value`` is for all methods that have the field; ``method.field=value`` is for one method.
    """
    kinds = [named(name.strip()) for name in names.split(",") if name.strip()]
    if not kinds:
        raise SettingsError("--methods expects names with commas between them, such as map,nuts; got none.")
    chosen: dict[Any, dict[str, Any]] = {kind: {"method": kind.label} for kind in kinds}
    for name, value in map(assignment, assignments):
        owner, _, field = name.rpartition(".")
        owners = {named(owner)} if owner else {kind for kind in kinds if field in fields_of(kind)}
        if not owners & set(kinds):
            near = nearest(field, (each for kind in kinds for each in fields_of(kind)))
            raise SettingsError(f"--set {name}=… is for none of --methods {', '.join(k.label for k in kinds)}.{near}")
        for kind in owners & set(kinds):
            chosen[kind][field] = value
    return [chosen[kind] for kind in kinds]


def assignment(text: str) -> tuple[str, Any]:
    """Split ``field=value``. The value is read as ``none`` or as TOML; if it is neither, it stays text.

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
        raise SettingsError(f"There is no file {path}; --config expects a file of settings in TOML.") from error
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not TOML: {error}. --config expects settings in TOML.") from error
