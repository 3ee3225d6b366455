"""Each module imports only from its own floor or a lower one, and leans on nothing private."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

SOURCE = Path(__file__).parents[1] / "src" / "tractable"

# Rooms, from the ground up: a file imports from rooms on its own floor or on lower ones.
FLOORS = {
    1: ["tools"],
    2: ["data"],
    3: ["core"],
    4: ["run", "kernels", "beliefs"],
    5: ["models"],
    6: ["objectives"],
    7: ["checks"],
    8: ["methods"],
    9: ["results"],
    10: ["inference", "evidence", "comparison", "selection", "sbc"],
    11: ["pages", "estimators", "adapters"],
    12: ["cli"],
    13: ["__init__"],
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names}
TOP = 6  # modules at top level, at most
ROOMS = 22  # at most

# What may not be used, and the one top-level name which still may.
FORBIDDEN = {
    "jax._src": None,
    "jax.experimental": None,
    "jaxlib": None,
    "numpyro.infer": "adapters",
}


def violations(source: Path) -> list[str]:
    """A sentence for every broken rule in the package whose folder is `source`."""
    found, blackjax, imports = [], [], {}
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = file.with_suffix("").parts[0]
        floor = FLOOR_OF.get(top)
        reached = imports.setdefault(str(file), set())
        if floor is None:
            found.append(f"{file} has no floor; give {top!r} one in FLOORS.")

        names = list(_used(tree, file))
        imported = {name for name, line, is_import in names if is_import}
        if any(_within(name, "blackjax") for name in imported):
            blackjax.append(str(file))

        for name, line, is_import in names:
            if "host_callback" in name.split("."):
                found.append(f"{file}:{line} uses {name}; callbacks belong between blocks, on the host.")
            for forbidden, allowed in FORBIDDEN.items():
                if _within(name, forbidden) and (allowed is None or top != allowed):
                    where = f" outside {allowed}" if allowed else ""
                    found.append(f"{file}:{line} uses {name}; {forbidden} is not to be used{where}.")
            if is_import and _within(name, "tractable") and floor is not None:
                target = _target(name, source)
                reached.add(_file(name, source))
                above = FLOOR_OF.get(target)
                if above is None:
                    found.append(f"{file}:{line} imports {name}, which has no floor.")
                elif above > floor:
                    found.append(f"{file}:{line} (floor {floor}) imports {name} (floor {above}); imports go down only.")

    if len(blackjax) > 1:
        found.append(f"blackjax is imported by {', '.join(blackjax)}; one file may.")
    found += [
        f"{' and '.join(sorted(files))} import each other; move what both need below them."
        for files in circles(imports)
    ]
    return list(dict.fromkeys(found))


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Sets of files each of which reaches the others by imports, wherever in the file these stand."""
    reach = {file: set(targets) & set(imports) - {file} for file, targets in imports.items()}
    while True:
        wider = {file: targets.union(*(reach[t] for t in targets)) for file, targets in reach.items()}
        if wider == reach:
            break
        reach = wider
    out: list[set[str]] = []
    for file in sorted(reach):
        circle = {other for other in reach[file] if file in reach[other]}
        if circle and circle not in out:
            out.append(circle)
    return out


def _file(name: str, source: Path) -> str:
    """The file that a dotted import reaches, relative to the package's folder."""
    parts = name.split(".")[1:]
    for length in range(len(parts), 0, -1):
        path = source.joinpath(*parts[:length])
        if path.with_suffix(".py").is_file():
            return str(path.with_suffix(".py").relative_to(source))
        if path.is_dir():
            return str((path / "__init__.py").relative_to(source))
    return "__init__.py"


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _target(name: str, source: Path) -> str:
    """The top-level name a dotted import reaches; a name which is no module comes from the package itself."""
    parts = name.split(".")[1:]
    if parts and ((source / parts[0]).is_dir() or (source / f"{parts[0]}.py").is_file()):
        return parts[0]
    return "__init__"


def _used(tree: ast.Module, file: Path) -> Iterator[tuple[str, int, bool]]:
    """Every dotted name, with its line: the imported ones, then those reached through them as attributes."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, True
                bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = ("tractable", *file.parts[:-1])
                package = package[: len(package) - node.level + 1]
                module = ".".join((*package, module) if module else package)
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno, True
                bound[alias.asname or alias.name] = f"{module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, *rest = ast.unparse(node).split(".")
            if head in bound:
                yield ".".join((bound[head], *rest)), node.lineno, False


@pytest.mark.laws
def test_floors():
    assert SOURCE.is_dir(), f"expected the package at {SOURCE}; there is none"
    found = violations(SOURCE)
    assert not found, "\n" + "\n".join(found)


def test_the_house_is_small():
    """Few modules at top level, few rooms, each with a floor."""
    modules = {path.stem for path in SOURCE.glob("*.py")}
    rooms = modules | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert len(modules) <= TOP, sorted(modules)
    assert len(rooms) <= ROOMS, sorted(rooms)
    assert rooms == set(FLOOR_OF)


# What may only fall: lines, parameters typed Any, and labels compared where a method should be asked.
CEILINGS = {"lines": 49_450, "Any": 70, "labels": 3}

# Outside beliefs nothing asks of what kind a method or model is, but for these; the number may only fall.
KINDS = {
    "inference.py": (2, "the door: its arguments are what they should be"),
    "comparison.py": (2, "a door"),
    "estimators/base.py": (1, "a door"),
    "evidence/estimate.py": (1, "a door"),
    "evidence/problem.py": (1, "a door"),
    "estimators/ladders.py": (2, "a method by name, or itself"),
    "methods/ensemble.py": (
        4,
        "a member by name, by settings or itself; it is no ensemble; one that draws has one chain",
    ),
    "sbc/calibration.py": (2, "a door"),
    "models/conjugate_variational.py": (1, "conjugate_model"),
    "models/ladder.py": (1, "ladder_of"),
    "models/latent.py": (1, "latent_model"),
}


def counted(source: Path) -> dict[str, int]:
    """What is counted, of a package."""
    found = dict.fromkeys(CEILINGS, 0)
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found["lines"] += text.count("\n")
        found["labels"] += len(re.findall(r"\.label\s*(?:==|!=|in\b)", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                found["Any"] += sum(isinstance(a.annotation, ast.Name) and a.annotation.id == "Any" for a in every)
    return found


def kinds_asked(source: Path) -> dict[str, int]:
    """How often each file outside beliefs asks of what kind a method or model is."""
    asks = re.compile(
        r"isinstance\((?:[^()]|\([^()]*\))*\b(?:method|model|member|ladder)\b"
        r"|isinstance\((?:[^()]|\([^()]*\))*, [^()]*\b(?:Method|Model|LatentModel|ConjugateModel|Ladder|MAP|Drawing)\b"
    )
    files = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    found = {name: len(asks.findall(text)) for name, text in files.items() if not name.startswith("beliefs/")}
    return {name: count for name, count in found.items() if count}


@pytest.mark.laws
def test_what_may_only_fall():
    found = counted(SOURCE)
    assert all(found[name] <= ceiling for name, ceiling in CEILINGS.items()), found


def test_nothing_asks_of_what_kind_a_method_or_model_is():
    found = kinds_asked(SOURCE)
    assert found == {name: count for name, (count, _) in KINDS.items()}


def test_a_question_of_kind_is_caught(tmp_path):
    _write(
        tmp_path,
        {
            "pages/page.py": "isinstance(posterior.method, NUTS)\nisinstance(x, Ladder)",
            "beliefs/a.py": "isinstance(model, B)",
        },
    )
    assert kinds_asked(tmp_path) == {"pages/page.py": 2}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"core.py": "from tractable.kernels import sgld"}, "imports tractable.kernels"),
        ({"core.py": "import tractable.run"}, "core.py:1 (floor 3) imports tractable.run (floor 4)"),
        ({"core.py": "from tractable import run"}, "imports tractable.run (floor 4)"),
        ({"core.py": "from . import run"}, "imports tractable.run (floor 4)"),
        ({"core.py": "def f():\n    from .run import go"}, "core.py:2 (floor 3) imports tractable.run.go"),
        ({"data/rows.py": "from ..run import go"}, "imports tractable.run.go (floor 4)"),
        ({"data/__init__.py": "from ..run import go"}, "imports tractable.run.go (floor 4)"),
        ({"cli/__init__.py": "import tractable"}, "imports tractable (floor 13)"),
        ({"run.py": "from tractable import Model"}, "imports tractable.Model (floor 13)"),
        ({"utils.py": ""}, "utils.py has no floor"),
        (
            {"utils.py": "", "core.py": "from .utils import f"},
            "imports tractable.utils.f, which has no floor",
        ),
        ({"core.py": "from jax._src import core"}, "jax._src is not to be used"),
        ({"core.py": "import jax.experimental.shard_map"}, "jax.experimental is not to be used"),
        ({"core.py": "from jax import experimental"}, "jax.experimental is not to be used"),
        ({"core.py": "import jax as j\nj.experimental.io_callback"}, "core.py:2 uses jax.experimental"),
        ({"core.py": "from jaxlib import xla_client"}, "jaxlib is not to be used"),
        ({"core.py": "from jax import host_callback"}, "callbacks belong between blocks"),
        ({"run.py": "from numpyro.infer import NUTS"}, "numpyro.infer is not to be used outside adapters"),
        (
            {"run.py": "import numpyro\nnumpyro.infer.NUTS"},
            "numpyro.infer is not to be used outside adapters",
        ),
        ({"run.py": "import blackjax", "kernels/nuts.py": "from blackjax import nuts"}, "one file may"),
        (
            {
                "kernels/nuts.py": "from tractable.kernels import sgld",
                "kernels/sgld.py": "def f():\n    from . import nuts",
            },
            "kernels/nuts.py and kernels/sgld.py import each other",
        ),
    ],
)
def test_each_violation_is_caught(tmp_path, files, sentence):
    _write(tmp_path, {"run.py": "", "kernels/sgld.py": "", **files})
    found = violations(tmp_path)
    assert any(sentence in line for line in found), found


def test_what_is_allowed_passes(tmp_path):
    _write(
        tmp_path,
        {
            "__init__.py": "from tractable.cli import main\nfrom . import core, kernels",
            "core.py": "import jax\nfrom numpyro import distributions\nfrom .tools import f\njax.numpy.sum",
            "tools/tree.py": "from tractable.tools import schedules",
            "tools/schedules.py": "",
            "kernels/__init__.py": "from .nuts import nuts",
            "kernels/nuts.py": "import blackjax\nimport blackjax.mcmc\nfrom ..core import Kernel",
            "cli/__init__.py": "from ..adapters import numpyro\ndef main(): ...",
            "adapters/numpyro.py": "from numpyro.infer import log_density",
        },
    )
    assert violations(tmp_path) == []


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
