"""How many single faults in a line of src do the tests catch?

Random lines are drawn, in proportion to the number of lines of each folder, and each gets one fault (a "mutant"): a
wrong sign or factor, a number or comparison that is off by one, a dropped term, or swapped arguments. A copy of the
repository with that fault runs the tests that ``tests/laws_of.toml`` lists for the file: first those of ``make test``
and, if these pass, all other tests of the file (its "laws"). A fault that ends in an error of Python or of shapes tells
nothing about the tests, and is counted separately.

    python benchmarks/mutants.py [--count 230] [--seed 0] [--only FILE:LINE] [--lived]

The table is written to ``benchmarks/results/mutants.json``. Faults that are known not to change any result (equivalent
mutants) are listed in ``benchmarks/results/equivalent.toml``, by their text without the line's number, each with a
sentence that gives the reason.
"""

import argparse
import ast
import concurrent.futures
import functools
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from typing import Any, NamedTuple

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tractable"
FOLDERS = ("core", "diagnostics", "mcmc", "sgmcmc", "vi", "networks", "latent", "ladders", "posterior")
KINDS = ("sign", "factor", "off by one", "dropped term", "swapped arguments")
sys.path.insert(0, str(ROOT / "tests"))

# Errors that Python, JAX or the type checks raise if the types or shapes of a program do not match.
MISFITS = (
    "TypeError", "NameError", "AttributeError", "UnboundLocalError", "IndexError", "KeyError", "ImportError",
    "ModuleNotFoundError", "SyntaxError", "ZeroDivisionError", "RecursionError", "BeartypeCallHint",
    "ConcretizationTypeError", "TracerBoolConversionError", "TracerArrayConversionError",
    "NonConcreteBooleanIndexError", "UnexpectedTracerError", "ScanTypeError",
)  # fmt: skip
SHAPES = re.compile(r"shape|broadcast|dimension|rank|dtype|axis|operands|reshape|concatenate", re.IGNORECASE)


class Mutant(NamedTuple):
    """A line of a file, in its original form and with a fault."""

    file: str
    line: int
    kind: str
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.before.strip()} → {self.after.strip()}"


def without_line(name: str) -> str:
    """A mutant's name without the line's number, which changes when the file is edited."""
    return re.sub(r":\d+ ", " ", name, count=1)


def faults(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Faulty replacements of an expression, each with the kind of its fault."""
    found: list[tuple[str, ast.AST]] = []
    if isinstance(node, ast.BinOp):
        swap = {ast.Add: ast.Sub, ast.Sub: ast.Add}
        turn = {ast.Mult: ast.Div, ast.Div: ast.Mult}
        for kind, table in (("sign", swap), ("factor", turn)):
            if type(node.op) in table:
                found.append((kind, ast.BinOp(node.left, table[type(node.op)](), node.right)))
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            found.append(("dropped term", node.left))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        found.append(("sign", node.operand))
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        found.append(("factor", ast.Constant(2 * node.value if node.value else 1.0)))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        found.append(("off by one", ast.Constant(node.value + 1)))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        turn = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
        whole = re.search(r"(?<![\w.])\d+(?![\w.])|len\(|\.size\b|\.shape\b|count", ast.unparse(node))
        if type(node.ops[0]) in turn and whole:  # would change nothing for real numbers, never equal
            found.append(("off by one", ast.Compare(node.left, [turn[type(node.ops[0])]()], node.comparators)))
    elif isinstance(node, ast.Call) and len(node.args) >= 2:
        first, second, *rest = node.args
        plain = not any(isinstance(a, ast.Starred | ast.Lambda) for a in (first, second))
        function = ast.unparse(node.func)
        other = function in ("isinstance", "getattr", "hasattr", "setattr", "zip", "max", "min")
        other |= bool(re.search(r"\.(maximum|minimum|logaddexp|hypot)$", function))  # either order will do
        if plain and not other and ast.unparse(first) != ast.unparse(second):
            found.append(("swapped arguments", ast.Call(node.func, [second, first, *rest], node.keywords)))
    return found


def is_text(node: ast.AST) -> bool:
    """Whether an expression adds or repeats strings, or is part of a sentence."""
    parts = ast.walk(node)
    return any(
        isinstance(p, ast.JoinedStr) or (isinstance(p, ast.Constant) and isinstance(p.value, str)) for p in parts
    )


@functools.cache
def sites(path: pathlib.Path) -> list[Mutant]:
    """Every fault of a file that this script can make."""
    text = path.read_text(encoding="utf-8")
    lines, found = text.splitlines(), []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.Call) and re.search(r"(Error|Warning|warn|Check)$", ast.unparse(node.func)):
            return  # text of messages
        here = getattr(node, "lineno", 0)
        if inside and isinstance(node, ast.expr) and here == node.end_lineno and not is_text(node):
            line = lines[here - 1]
            start, end = (len(line.encode()[:c].decode()) for c in (node.col_offset, node.end_col_offset or 0))
            for kind, fault in faults(node):
                new = f"({ast.unparse(ast.fix_missing_locations(fault))})"
                changed = line[:start] + new + line[end:]
                found.append(Mutant(path.relative_to(SOURCE).as_posix(), here, kind, line, changed))
        inside = inside or isinstance(node, ast.FunctionDef | ast.Lambda)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "defaults", "kw_defaults"):
                continue  # a default is a setting, not a formula
            if isinstance(node, ast.Call) and re.search(r"(default_rng|key|seed)$", ast.unparse(node.func)):
                continue  # another seed would not be a fault
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, inside)

    visit(ast.parse(text), False)
    return found


def draw(count: int, seed: int) -> list[Mutant]:
    """Mutants of each folder in proportion to its lines; for each, first the kind is drawn, and then the place."""
    files = {folder: sorted((SOURCE / folder).rglob("*.py")) for folder in FOLDERS}
    lines = {f: sum(len(p.read_text(encoding="utf-8").splitlines()) for p in paths) for f, paths in files.items()}
    found: list[Mutant] = []
    for i, folder in enumerate(FOLDERS):
        rng = np.random.default_rng([seed, i])  # a larger count draws the same mutants and more
        there = [mutant for path in files[folder] for mutant in sites(path)]
        drawn: list[Mutant] = []
        while len(drawn) < round(count * lines[folder] / sum(lines.values())):
            kind = KINDS[rng.integers(len(KINDS))]
            of_kind = [mutant for mutant in there if mutant.kind == kind]
            mutant = of_kind[rng.integers(len(of_kind))]
            if mutant not in drawn:
                drawn.append(mutant)
        found += drawn
    return found


def died_of(output: str) -> str:
    """How the tests responded to a mutant: 'law' (a test failed), 'misfit' (a type or shape error) or 'nothing'."""
    errors = re.findall(
        r"^(?:E  |.*?:\d+:) +([\w.]*(?:Error|Exception|Failed|Violation|Exit|Warning)\b.*)", output, re.M
    )
    if re.search(r"^INTERNALERROR|ERROR collecting|ImportError while loading", output, re.M):
        return "misfit"
    for error in errors[:1]:
        name, _, message = error.partition(":")
        if name.rpartition(".")[2].startswith(MISFITS) or (name.endswith("ValueError") and SHAPES.search(message)):
            return "misfit"
    return "law"


def copy_of_repository() -> pathlib.Path:
    """A folder with a copy of tests and source, in which a mutant can be written."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mutant-"))
    for name in ("src", "tests", "docs", "examples", "benchmarks", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
                 "pyproject.toml", "constraints.txt", "Makefile"):  # fmt: skip
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / name)
    (ROOT / ".cache").mkdir(exist_ok=True)
    (folder / ".cache").symlink_to(ROOT / ".cache")
    return folder


def run(folder: pathlib.Path, tier: str, targets: list[str], seconds: float) -> tuple[bool, str]:
    """Whether the tests pass, and what they print."""
    import suite

    environment = os.environ | suite.ENVIRONMENT | {"XLA_FLAGS": suite.FLAGS, "PYTHONPATH": str(folder / "src")}
    environment["TRACTABLE_TYPECHECK"] = "0"
    words = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "--tier", tier]
    words += [f"tests/{target}" for target in targets]
    done = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = done.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, 9)
        done.communicate()
        return False, "Failed: it did not end in time"
    return done.returncode in (0, 5), output


def judge(folder: pathlib.Path, mutant: Mutant, targets: list[str], laws: bool) -> dict[str, Any]:
    """The tests' response to a mutant."""
    path = folder / "src" / "tractable" / mutant.file
    original = path.read_text(encoding="utf-8")
    lines = original.splitlines(keepends=True)
    lines[mutant.line - 1] = mutant.after + "\n"
    found: dict[str, Any] = {"mutant": mutant.name, "folder": mutant.file.partition("/")[0], "killed by": "nothing"}
    try:
        path.write_text("".join(lines), encoding="utf-8")
        for tier in ("test", "laws") if laws else ("test",):
            passed, output = run(folder, tier, targets, 900)
            if not passed:
                how = died_of(output)
                found["killed by"] = tier if how == "law" else "misfit"
                killer = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
                found["killer"] = killer[1] if killer else output[-300:]
                break
    finally:
        path.write_text(original, encoding="utf-8")
    return found


def table(found: list[dict[str, Any]], equivalent: dict[str, str]) -> dict[str, Any]:
    """Counts by folder: mutants without type or shape errors, and which tests caught them."""
    rows = {}
    for folder in (*FOLDERS, "all"):
        here = [f for f in found if folder in (f["folder"], "all")]
        counted = [f for f in here if f["killed by"] != "misfit" and without_line(f["mutant"]) not in equivalent]
        test = sum(f["killed by"] == "test" for f in counted)
        laws = test + sum(f["killed by"] == "laws" for f in counted)
        rows[folder] = {
            "mutants": len(counted), "killed by test": test, "killed by laws": laws,
            "died at import or trace": sum(f["killed by"] == "misfit" for f in here),
            "equivalent": sum(f["killed by"] == "nothing" and without_line(f["mutant"]) in equivalent for f in here),
        }  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=230, help="drawn; some die at import or trace")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="run those of one place alone, FILE:LINE, and write nothing")
    parser.add_argument("--lived", action="store_true", help="run those again that lived in the last table")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    parser.add_argument("--no-laws", action="store_true", help="run the tests of make test alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "benchmarks" / "results" / "mutants.json")
    options = parser.parse_args()
    mutants = draw(options.count, options.seed)
    if options.only:
        mutants = [mutant for mutant in mutants if mutant.name.startswith(options.only)]
    last: dict[str, dict[str, Any]] = {}
    if options.lived:
        table_before = json.loads(options.out.read_text(encoding="utf-8"))
        last = {row["mutant"]: row for row in table_before["mutants"] if row["killed by"] != "nothing"}
    if options.list:
        print("\n".join(mutant.name for mutant in mutants))
        return
    import suite
    from measuring import circumstances

    laws_of = suite.laws_of()
    folders: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()
    for _ in range(options.jobs):
        folders.put(copy_of_repository())
    known = ROOT / "benchmarks" / "results" / "equivalent.toml"
    equivalent = tomllib.loads(known.read_text(encoding="utf-8")) if known.exists() else {}

    def one(mutant: Mutant) -> dict[str, Any]:
        if mutant.name in last:
            return last[mutant.name]
        if without_line(mutant.name) in equivalent:
            return {"mutant": mutant.name, "folder": mutant.file.partition("/")[0], "killed by": "nothing"}
        folder = folders.get()
        try:
            found = judge(folder, mutant, laws_of.get(mutant.file, []), not options.no_laws)
        finally:
            folders.put(folder)
        print(f"{found['killed by']:8} {found['mutant']}  [{found.get('killer', '')}]", flush=True)
        return found

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(one, mutants))
    rows = table(found, equivalent)
    print(json.dumps(rows, indent=1))
    if not options.only:
        options.out.parent.mkdir(exist_ok=True)
        result = circumstances(__file__) | {"seed": options.seed, "drawn": options.count, "folders": rows}
        result |= {"equivalent": equivalent, "mutants": found}
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
