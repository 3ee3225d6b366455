"""The package's layout: which folder imports which, how large each may be, and what no file leans on."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

SOURCE = Path(__file__).parents[1] / "src" / "tractable"

# Folders and modules, from the ground up: a file imports from its own floor's folder or from lower floors.
FLOORS = {
    1: ["core"],
    2: ["diagnostics"],
    3: ["engine"],
    4: ["mcmc", "sgmcmc", "points", "vi", "networks", "latent", "ladders", "glm"],  # a folder a family of methods
    5: ["methods"],
    6: ["posterior"],
    7: ["inference"],
    8: ["evidence", "comparison", "selection", "verdict", "calibration", "gallery"],
    9: ["kernels", "objectives"],
    # The application: the library below never imports it, but for ``models``, which lists what users may call.
    10: ["tables"],
    11: ["models"],
    12: ["estimators", "pages", "adapters"],
    13: ["cli"],
    14: ["__init__", "__main__"],
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names}
FAMILIES = FLOORS[4]
MODULES = {"inference", "comparison", "selection", "verdict"}  # at top level, besides lists of public names
LISTS = {"kernels", "models", "methods", "objectives"}  # modules that only import the public names of one kind

# Imports between families, (importing, imported): the files, and the reason. At most ten.
BETWEEN_FAMILIES = {
    ("glm", "mcmc"): (["inla.py"], "without a Gaussian likelihood INLA hands over to NUTS"),
    ("glm", "vi"): (
        ["conditional.py", "inla.py"],
        "INLA's likelihood is the ELBO's quadrature of a linear predictor",
    ),
    ("ladders", "glm"): (["units.py"], "a ladder's pixels may be a family of GLMs"),
    ("ladders", "networks"): (
        ["layers.py", "top_down.py"],
        "a layer's parameters are a network's output",
    ),
    ("latent", "mcmc"): (
        ["latent_chains.py", "latent_draws.py"],
        "Monte Carlo EM draws z by Markov chains or rejection",
    ),
    ("mcmc", "latent"): (
        ["full_conditionals.py"],
        "a conjugate-exponential model has full conditionals in closed form",
    ),
    ("networks", "glm"): (["multi_output.py", "network.py"], "a network's output is the predictor of a GLM's family"),
    ("networks", "points"): (["bayes_by_backprop_method.py"], "Bayes by Backprop can begin at a MAP estimate"),
    ("networks", "vi"): (["bayes_by_backprop_method.py"], "Bayes by Backprop is a mean field"),
}

# Lines of code (no docstring, comment or blank line) that each folder may have, and the whole package. Who raises a
# number lowers another in the same commit by as much. The sum of the numbers is the package's ceiling.
BUDGETS = {
    "core": 3_514,
    "engine": 3_488,
    "mcmc": 1_963,
    "sgmcmc": 606,
    "points": 450,
    "vi": 871,
    "networks": 1_139,
    "latent": 4_428,
    "ladders": 1_918,
    "glm": 1_100,
    "diagnostics": 2_784,
    "evidence": 956,
    "posterior": 2_498,
    "calibration": 442,
    "top": 763,
    "tables": 3_096,
    "estimators": 1_433,
    "pages": 1_859,
    "cli": 1_672,
    "adapters": 539,
    "gallery": 371,
}

# What may not be used, and the one top-level name which still may.
FORBIDDEN = {
    "jax._src": None,
    "jax.experimental": None,
    "jaxlib": None,
    "blackjax": None,
    "numpyro.infer": "adapters",
}


def violations(source: Path) -> list[str]:
    """A sentence for every broken rule in the package whose folder is `source`."""
    found, imports = [], {}
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = file.with_suffix("").parts[0]
        floor = FLOOR_OF.get(top)
        reached = imports.setdefault(str(file), set())
        if floor is None:
            found.append(f"{file} has no floor; give {top!r} one in FLOORS.")

        names = list(_used(tree, file))

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
def test_structure():
    assert SOURCE.is_dir(), f"expected the package at {SOURCE}; there is none"
    found = violations(SOURCE)
    assert not found, "\n" + "\n".join(found)


# How each paper is read, from the method that users call to its formulas, within one folder.
READING = {
    "SGLD": ("sgmcmc", ["methods.py", "sgld.py", "gradients.py", "preconditioners.py"]),
    "Bayes by Backprop": ("networks", ["bayes_by_backprop_method.py", "bayes_by_backprop.py", "weight_noise.py"]),
    "EM": ("latent", ["em_method.py", "em_climb.py", "em.py", "gradient_em.py"]),
    "NVIL": ("ladders", ["nvil_methods.py", "amortised.py", "score.py", "ladder.py"]),
    "VAE": ("ladders", ["autoencoding.py", "amortised.py", "pathwise.py", "bounds.py"]),
}


@pytest.mark.parametrize("paper", READING)
def test_a_paper_is_read_in_one_folder(paper):
    """At most four files and 1,500 lines; each file is imported by one that is read before it."""
    folder, files = READING[paper]
    texts = {name: (SOURCE / folder / name).read_text(encoding="utf-8") for name in files}
    assert len(files) <= 4 and sum(text.count("\n") for text in texts.values()) <= 1500
    read: set[str] = set()
    for name, text in texts.items():
        assert not read or name in read, f"no file before {name} imports it"
        used = _used(ast.parse(text), Path(folder, name))
        read |= {Path(_file(dotted, SOURCE)).name for dotted, _, is_import in used if is_import}
    document = ast.get_docstring(ast.parse((SOURCE / folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert document.count("\n") >= 6 and all(name.removesuffix(".py") in document for name in files)


def test_few_modules_stand_at_the_top():
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert modules == MODULES | LISTS | {"__main__"}
    for name in LISTS:
        for node in ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8")).body:
            assert not isinstance(node, ast.ClassDef), f"{name}.py lists public names; its classes belong to a family"
    assert modules | {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {"__init__"} == set(FLOOR_OF)


def between_families(source: Path) -> dict[tuple[str, str], list[str]]:
    """The files of each family that import another family, by (importing, imported)."""
    found: dict[tuple[str, str], set[str]] = {}
    for family in FAMILIES:
        for path in (source / family).glob("*.py"):
            file = path.relative_to(source)
            for name, _, is_import in _used(ast.parse(path.read_text(encoding="utf-8")), file):
                target = _target(name, source) if is_import and _within(name, "tractable") else family
                if target in FAMILIES and target != family:
                    found.setdefault((family, target), set()).add(path.name)
    return {pair: sorted(files) for pair, files in found.items()}


def test_folders_of_tests_are_folders_of_the_package():
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/test_*.py")}
    assert folders <= {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_families_do_not_import_each_other():
    assert between_families(SOURCE) == {pair: files for pair, (files, _) in BETWEEN_FAMILIES.items()}
    assert len(BETWEEN_FAMILIES) <= 10


def test_an_import_between_families_is_seen(tmp_path):
    _write(tmp_path, {"vi/elbo.py": "from ..mcmc import mala\nfrom tractable.core import tree", "mcmc/mala.py": ""})
    assert between_families(tmp_path) == {("vi", "mcmc"): ["elbo.py"]}


def lines_of_code(text: str) -> int:
    """Lines that hold code: no docstring, comment or blank line."""
    documents = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documents.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documents)


def sizes(source: Path) -> dict[str, int]:
    """Lines of code of each folder; of the modules at top level together, by the name "top"."""
    found = dict.fromkeys(BUDGETS, 0)
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).parts
        found[parts[0] if len(parts) > 1 else "top"] += lines_of_code(path.read_text(encoding="utf-8"))
    return found


def test_every_folder_keeps_its_budget():
    found = sizes(SOURCE)
    assert not {name: (size, BUDGETS[name]) for name, size in found.items() if size > BUDGETS[name]}


def test_lines_of_code_are_counted():
    assert (
        lines_of_code(
            '"""A module."""\n\nx = [\n    1,  # one\n]\n\n\ndef f():\n    """Nothing."""\n    # Why.\n    return x\n'
        )
        == 5
    )


# Names that say nothing of what they hold: participles, adverbs and pronouns.
FORBIDDEN_NAMES = {
    "told", "told_of", "lying", "sitting", "several", "beside", "held", "kept", "alike", "apart", "laid", "joined",
    "together", "looks", "looked", "stretches", "narrower", "standing", "exhibit",
}  # fmt: skip
PARAMETERS = 8  # of a function besides self
LONG_FUNCTION, LONG_FILE = 60, 500  # most lines, of a function without its docstring

# What may only fall: parameters typed Any, labels compared where a method should be asked, forbidden names,
# functions of more than PARAMETERS parameters, and functions and files that are too long.
CEILINGS = {"Any": 70, "labels": 2, "names": 0, "parameters": 16, "functions": 2, "files": 3}


def forbidden_names(tree: ast.Module) -> Iterator[str]:
    """Each name of a function, class, argument, variable or attribute that is forbidden, where it is bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound = node.name
        elif isinstance(node, ast.arg):
            bound = node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            bound = node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.alias):
            bound = (node.asname or node.name).rpartition(".")[2]
        else:
            continue
        if bound.strip("_").lower() in FORBIDDEN_NAMES:
            yield bound


def counted(source: Path) -> dict[str, int]:
    """What is counted, of a package."""
    found = dict.fromkeys(CEILINGS, 0)
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found["files"] += text.count("\n") > LONG_FILE
        found["labels"] += len(re.findall(r"\.label\s*(?:==|!=|in\b)", text))
        found["names"] += sum(1 for _ in forbidden_names(ast.parse(text))) + (path.stem in FORBIDDEN_NAMES)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                found["Any"] += sum(isinstance(a.annotation, ast.Name) and a.annotation.id == "Any" for a in every)
                document = node.body[0] if ast.get_docstring(node) is not None else None
                lines = node.end_lineno - node.lineno + 1
                lines -= document.end_lineno - document.lineno + 1 if document else 0
                found["functions"] += lines > LONG_FUNCTION
                found["parameters"] += len([a for a in every if a.arg not in ("self", "cls")]) > PARAMETERS
    return found


# Outside ``diagnostics.belief`` nothing asks of what kind a method or model is, but for these; numbers only fall.
KINDS = {
    "inference.py": (2, "the door: its arguments are what they should be"),
    "comparison.py": (2, "a door"),
    "evidence/estimate.py": (1, "a door"),
    "evidence/problem.py": (1, "a door"),
    "estimators/ladders.py": (2, "a method by name, or itself"),
    "points/ensemble.py": (
        2,
        "a member is no ensemble; one that draws has one chain",
    ),
    "calibration/calibrate.py": (2, "a door"),
    "latent/conjugate_variational.py": (1, "conjugate_model"),
    "ladders/ladder.py": (1, "ladder_of"),
    "core/latent.py": (1, "latent_model"),
}


def kinds_asked(source: Path) -> dict[str, int]:
    """How often each file but ``diagnostics.belief`` asks of what kind a method or model is."""
    asks = re.compile(
        r"isinstance\((?:[^()]|\([^()]*\))*\b(?:method|model|member|ladder)\b"
        r"|isinstance\((?:[^()]|\([^()]*\))*, [^()]*\b(?:Method|Model|LatentModel|ConjugateModel|Ladder|MAP|Drawing)\b"
    )
    files = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    found = {name: len(asks.findall(text)) for name, text in files.items() if name != "diagnostics/belief.py"}
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
            "diagnostics/belief.py": "isinstance(model, B)",
        },
    )
    assert kinds_asked(tmp_path) == {"pages/page.py": 2}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"core/model.py": "from tractable.vi import elbo"}, "imports tractable.vi"),
        ({"core/model.py": "import tractable.engine"}, "core/model.py:1 (floor 1) imports tractable.engine (floor 3)"),
        ({"core/model.py": "from tractable import engine"}, "imports tractable.engine (floor 3)"),
        ({"core/model.py": "from .. import engine"}, "imports tractable.engine (floor 3)"),
        ({"core/model.py": "def f():\n    from ..engine.run import go"}, "core/model.py:2 (floor 1) imports"),
        ({"core/__init__.py": "from ..engine.run import go"}, "imports tractable.engine.run.go (floor 3)"),
        ({"posterior/page.py": "from ..pages import page"}, "imports tractable.pages.page (floor 12)"),
        ({"cli/__init__.py": "import tractable"}, "imports tractable (floor 14)"),
        ({"engine/run.py": "from tractable import Model"}, "imports tractable.Model (floor 14)"),
        ({"utils.py": ""}, "utils.py has no floor"),
        (
            {"utils.py": "", "core/model.py": "from ..utils import f"},
            "imports tractable.utils.f, which has no floor",
        ),
        ({"core/model.py": "from jax._src import core"}, "jax._src is not to be used"),
        ({"core/model.py": "import jax.experimental.shard_map"}, "jax.experimental is not to be used"),
        ({"core/model.py": "from jax import experimental"}, "jax.experimental is not to be used"),
        ({"core/model.py": "import jax as j\nj.experimental.io_callback"}, "model.py:2 uses jax.experimental"),
        ({"core/model.py": "from jaxlib import xla_client"}, "jaxlib is not to be used"),
        ({"core/model.py": "from jax import host_callback"}, "callbacks belong between blocks"),
        ({"engine/run.py": "from numpyro.infer import NUTS"}, "numpyro.infer is not to be used outside adapters"),
        (
            {"engine/run.py": "import numpyro\nnumpyro.infer.NUTS"},
            "numpyro.infer is not to be used outside adapters",
        ),
        ({"mcmc/nuts.py": "from blackjax import nuts"}, "blackjax is not to be used"),
        (
            {
                "mcmc/nuts.py": "from tractable.mcmc import mala",
                "mcmc/mala.py": "def f():\n    from . import nuts",
            },
            "mcmc/nuts.py import each other",
        ),
    ],
)
def test_each_violation_is_caught(tmp_path, files, sentence):
    _write(tmp_path, {"engine/run.py": "", "vi/elbo.py": "", "pages/page.py": "", **files})
    found = violations(tmp_path)
    assert any(sentence in line for line in found), found


def test_what_is_allowed_passes(tmp_path):
    _write(
        tmp_path,
        {
            "__init__.py": "from tractable.cli import main\nfrom . import core, kernels",
            "core/model.py": "import jax\nfrom numpyro import distributions\nfrom .tree import f\njax.numpy.sum",
            "core/tree.py": "from tractable.core import schedules",
            "core/schedules.py": "",
            "kernels.py": "from .mcmc.nuts import nuts",
            "mcmc/nuts.py": "import optax\nfrom ..core.model import Kernel",
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
