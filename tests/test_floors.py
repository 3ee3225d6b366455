"""Each module imports only from its own floor or a lower one, and leans on nothing private."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tractable"

FLOORS = {
    1: ["tools"],
    2: ["core"],
    3: [
        "objectives",
        "approximations",
        "quadrature",
        "gradients",
        "kernels",
        "models",
        "checks",
        "weight_noise",
        "latent",
        "amortised",
    ],
    4: [
        "run",
        "methods",
        "posterior",
        "predict",
        "infer",
        "saving",
        "compare",
        "report",
        "page",
        "mixture_page",
        "ladder_page",
        "coding",
        "imputing",
        "network_files",
        "plots",
        "markup",
        "exhibits",
        "preflight",
        "relabelling",
        "modes",
        "annealing",
        "codes",
        "code_importance",
        "evidence",
        "evidence_settings",
        "evidence_result",
        "importance_evidence",
        "annealed_evidence",
        "code_evidence",
    ],
    5: ["estimators", "adapters", "cli", "gallery"],
    6: ["__init__"],
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names}

# What may not be used, and the one top-level name which still may.
FORBIDDEN = {
    "jax._src": None,
    "jax.experimental": None,
    "jaxlib": None,
    "numpyro.infer": "adapters",
}


def violations(source: Path) -> list[str]:
    """A sentence for every broken rule in the package whose folder is `source`."""
    found, blackjax = [], []
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = file.with_suffix("").parts[0]
        floor = FLOOR_OF.get(top)
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
                above = FLOOR_OF.get(target)
                if above is None:
                    found.append(f"{file}:{line} imports {name}, which has no floor.")
                elif above > floor:
                    found.append(f"{file}:{line} (floor {floor}) imports {name} (floor {above}); imports go down only.")

    if len(blackjax) > 1:
        found.append(f"blackjax is imported by {', '.join(blackjax)}; one file may.")
    return list(dict.fromkeys(found))


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


def test_floors():
    assert SOURCE.is_dir(), f"expected the package at {SOURCE}; there is none"
    found = violations(SOURCE)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"core.py": "from tractable.kernels import sgld"}, "imports tractable.kernels"),
        ({"core.py": "import tractable.run"}, "core.py:1 (floor 2) imports tractable.run (floor 4)"),
        ({"core.py": "from tractable import run"}, "imports tractable.run (floor 4)"),
        ({"core.py": "from . import run"}, "imports tractable.run (floor 4)"),
        ({"core.py": "def f():\n    from .run import go"}, "core.py:2 (floor 2) imports tractable.run.go"),
        ({"kernels/sgld.py": "from ..run import go"}, "imports tractable.run.go (floor 4)"),
        ({"kernels/__init__.py": "from ..run import go"}, "imports tractable.run.go (floor 4)"),
        ({"cli/__init__.py": "import tractable"}, "imports tractable (floor 6)"),
        ({"run.py": "from tractable import Model"}, "imports tractable.Model (floor 6)"),
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
