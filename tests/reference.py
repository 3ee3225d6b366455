"""The site's page with a line for every public name and option, from docstrings and the command line's help."""

import dataclasses
import functools
import inspect
import re
from types import FunctionType, ModuleType
from typing import Any

import typer

import tractable as tr
from tractable.cli.app import app
from tractable.core.bits import CachedProperty

SHELL: Any = typer.main.get_command(app)
PARTS = (tr.models, tr.estimators, tr.objectives, tr.approximations, tr.kernels, tr.gradients, tr.schedules, tr.errors)
HEAD = """# Names and options

A line for each public function, method and value, for what a value has and says of itself, and for each option of the
command line, from docstrings and help.
`help(tr.NUTS)` shows a docstring whole: equation, fields, ranges, errors and source.
"""


def first(it: Any) -> str:
    """The first sentence of a docstring."""
    told = " ".join((inspect.getdoc(it) or "").split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[^.][a-z0-9)`”])\. (?=[A-Z`])", told)[0].rstrip(".:;")


def public(of: ModuleType) -> dict[str, Any]:
    """What a module exports, or what it defines where it lists nothing; no values."""
    names = getattr(of, "__all__", None) or [name for name in vars(of) if not name.startswith("_")]
    own = {name: getattr(of, name) for name in names}
    if not hasattr(of, "__all__"):
        own = {name: it for name, it in own.items() if getattr(it, "__module__", None) == of.__name__}
    return {name: it for name, it in sorted(own.items()) if isinstance(it, ModuleType) or callable(it)}


def members(of: type) -> dict[str, Any]:
    """Methods and properties that say what they are."""
    kinds = (FunctionType, classmethod, property, functools.cached_property, CachedProperty)
    own = {name: it for name, it in inspect.getmembers_static(of) if isinstance(it, kinds) and not name.startswith("_")}
    return {name: it for name, it in own.items() if inspect.getdoc(it)}


def fields(of: type) -> dict[str, str]:
    """What a class says of its fields, beside each, or under "Args:" (of dataclasses) and "Attributes:"."""
    each = re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(of), re.MULTILINE)
    for title in ["Args", "Attributes"] if dataclasses.is_dataclass(of) else ["Attributes"]:
        under = re.search(rf"^{title}:\n((?:    .*\n?|\n(?=    ))+)", inspect.getdoc(of) or "", re.MULTILINE)
        each += re.findall(r"^    (\w[\w, ]*): (.*(?:\n      .*)*)", under[1], re.MULTILINE) if under else []
    told = {name: " ".join(sentence.split()) for name, sentence in each}
    return {name.replace(", ", "`, `"): text.replace("``", "`").rstrip(".;:") for name, text in told.items()}


def is_of_scikit_learn(of: type, name: str) -> bool:
    """Whether scikit-learn defines a name that an estimator has, such as ``get_params``."""
    owner = next((each for each in of.__mro__ if name in vars(each)), of)
    return any(each.__module__.startswith("sklearn") for each in (owner, type(vars(owner).get(name))))


def of_estimators() -> list[str]:
    """A line for each setting, attribute and method of the estimators, and which of them have it if not all do."""
    kinds, owners = {n: it for n, it in public(tr.estimators).items() if isinstance(it, type)}, {}
    for kind, it in kinds.items():
        own = {name: text for name, text in fields(it).items() if not text.startswith("as for")}
        own |= {name: first(value) for name, value in members(it).items() if not is_of_scikit_learn(it, name)}
        for line in own.items():
            owners.setdefault(line, []).append(kind)
    return [
        f"- `{name}`{'' if len(of) == len(kinds) else ' of ' + ', '.join(f'`{kind}`' for kind in of)}: {ended(text)}"
        for (name, text), of in sorted(owners.items())
    ]


def listed(names: dict[str, Any]) -> list[str]:
    return [f"- `{name}`: {ended(first(it))}" for name, it in names.items()]


def ended(sentence: str) -> str:
    return sentence if sentence.endswith(("?", "…")) else f"{sentence}."


def is_method(it: Any) -> bool:
    return isinstance(it, type) and issubclass(it, tr.Method)


def option(one: Any) -> str:
    names = ", ".join(f"`{name}`" for name in one.opts) if one.param_type_name == "option" else f"`{one.name.upper()}`"
    told = " ".join(str(one.help or "").split()).replace("\\[", "[").rstrip(".")
    default = (
        isinstance(one.default, str | int | float) and not isinstance(one.default, bool) and "[default" not in told
    )
    told += f" [default: {one.default}]" if default else ""
    return f"- {names}: {told if told.endswith(']') else ended(told)}"


def text() -> str:
    own = public(tr)
    functions = {name: it for name, it in own.items() if inspect.isfunction(it)}
    methods = {name: it for name, it in own.items() if is_method(it)}
    values = {name: it for name, it in own.items() if isinstance(it, type) and not is_method(it)}
    lines = [HEAD, "## Functions", "", *listed(functions), "", "## Methods", "", *listed(methods)]
    lines += ["", "## Values", "", *listed(values)]
    for name, value in values.items():
        if fields(value) or members(value):
            lines += ["", f"### Of {'an' if name[0] == 'E' else 'a'} `{name}`", ""]
            lines += [f"- `{name}`: {sentence}." for name, sentence in fields(value).items()] + listed(members(value))
    for part in PARTS:
        lines += ["", f"## `tr.{part.__name__.rpartition('.')[2]}`", "", f"{first(part)}.", "", *listed(public(part))]
        if part is tr.estimators:
            lines += ["", "### Of an estimator", "", "What scikit-learn's own estimators have, they have too.", ""]
            lines += of_estimators()
    lines += ["", "## The command line"]
    for name, command in SHELL.commands.items():
        lines += ["", f"### `tractable {name}`", "", f"{first(command.callback)}.", ""]
        lines += [option(each) for each in command.params if not getattr(each, "hidden", False)]
    return "\n".join(lines) + "\n"
