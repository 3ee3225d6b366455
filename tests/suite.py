"""Runs a tier of the tests: groups of files, each group in a process of its own, one process a core.

``quick`` and ``test`` also check style and types.

    python tests/suite.py quick
    python tests/suite.py test
    python tests/suite.py laws                          everything that has not passed at this commit
    python tests/suite.py laws --shard 2/4              a part of it, for one of four machines
    python tests/suite.py laws --changed COMMIT         the laws of what changed since a commit (tests/laws_of.toml)
    python tests/suite.py laws --changed COMMIT --rotate 6 --budget 2400
                                                        then one of six shards, by the commit's hash, in 40 minutes

What the laws of a commit gave is kept in ``.laws/COMMIT``, a file of results for each file of tests: a run that was
stopped goes on, and folders of several machines can be copied together. A commit that mends tests alone takes over the
results of those that it left alone. When every file has passed, the commit is written into ``tests/laws_green``. A
process slows down as its programs grow in number, hence the groups.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TESTS, SOURCE = ROOT / "tests", ROOT / "src" / "tractable"
GREEN = TESTS / "laws_green"
SECONDS = TESTS / "seconds.json"
TIERS = ("quick", "test", "laws")
GROUP = {"quick": 500.0, "test": 110.0, "laws": 150.0}  # seconds of a processor in one process, where there are many
DOCTESTS, LINT = "doctests", "lint"  # what is no file of tests
BED = ("conftest.py", "tiers.py", "checked.py")  # what every test runs in
UNKNOWN = 10.0  # seconds of a file that was never measured

# One thread a process: the processes fill the cores. Tests compile ten thousand small programs, which takes two thirds
# of the time without XLA's dearest passes.
ENVIRONMENT = {
    "MPLBACKEND": "Agg", "NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}  # fmt: skip
FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


class Process(NamedTuple):
    """A running group."""

    group: list[str]
    handle: subprocess.Popen
    log: Path


def yardstick() -> float:
    """Seconds of 10⁷ additions in a plain loop: how fast this machine is."""
    begun = time.perf_counter()
    exec("total = 0\nfor number in range(10**7):\n    total += number", {})
    return time.perf_counter() - begun


def git(*words: str) -> str:
    """What git prints; empty where it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def typed() -> str:
    """A digest of what pyright sees, which takes 45 seconds to look at it."""
    files = [*sorted(SOURCE.rglob("*.py")), ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files) + sys.version.encode()).hexdigest()[:12]


def tested_commit() -> str:
    """The commit, with a digest of what is not committed; ``laws_green`` itself does not count."""
    what = ("--", ".", ":!tests/laws_green")
    changed = git("diff", "HEAD", *what)
    for name in git("ls-files", "--others", "--exclude-standard", *what).splitlines():
        changed += name + hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    mark = f"-{hashlib.sha256(changed.encode()).hexdigest()[:12]}" if changed else ""
    return (git("rev-parse", "HEAD") or "no-commit") + mark


def every_file() -> list[str]:
    """Every file of tests, relative to ``tests``, and the examples in docstrings."""
    return [*sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")), DOCTESTS]


def laws_of() -> dict[str, list[str]]:
    """The laws of each source file: files of tests, or tests in them."""
    return tomllib.loads((TESTS / "laws_of.toml").read_text(encoding="utf-8"))["laws"]


def code_of(text: str) -> str:
    """What a source file computes: its syntax tree without docstrings; comments have no place in it."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def changed_targets(commit: str) -> list[str]:
    """The tests of what changed since a commit: laws of source files, tests, and tests that import a changed helper."""
    if not git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        print(f"The commit {commit!r} is not in this repository: nothing can be compared with it.")
        return []
    table, found = laws_of(), []
    for path in git(
        "diff", "--name-only", "--no-renames", commit, "--", "src", "tests", ":!tests/laws_green"
    ).splitlines():
        if path.startswith("src/tractable/"):
            before, now = git("show", f"{commit}:{path}") if path.endswith(".py") else "", ROOT / path
            if before and now.is_file() and code_of(before) == code_of(now.read_text(encoding="utf-8")):
                continue  # only its docstrings and comments are new, and `make test` runs the examples in these
            found += table.get(path.removeprefix("src/tractable/"), [])
        elif Path(path).name.startswith("test_") and (ROOT / path).is_file():
            found.append(path.removeprefix("tests/"))
        elif path.endswith(".py"):
            helper = re.compile(rf"^(from|import) {Path(path).stem}\b", re.MULTILINE)
            found += [f for f in every_file()[:-1] if helper.search((TESTS / f).read_text(encoding="utf-8"))]
    return without_doubles(found)


def take_over(commit: str, kept: Path) -> None:
    """Copy the results of an earlier commit from which this one differs by tests alone, but for files it changed."""
    for folder in kept.parent.iterdir() if kept.parent.is_dir() else ():
        if folder == kept or not re.fullmatch("[0-9a-f]{40}", folder.name):
            continue
        changed = git("diff", "--name-only", folder.name, commit).splitlines() if "-" not in commit else [""]
        if all(path.startswith("tests/") and Path(path).name not in BED for path in changed):
            stale = {target.partition("::")[0] for target in changed_targets(folder.name)} | {"test_tiers.py"}
            kept.mkdir(parents=True, exist_ok=True)
            for path in folder.glob("*.json"):
                result = json.loads(path.read_text(encoding="utf-8"))
                if not result["failed"] and result["file"] not in stale and not (kept / path.name).exists():
                    shutil.copy(path, kept)


def without_doubles(targets: Iterable[str]) -> list[str]:
    """Each target once, and no test of a file that is there whole."""
    once = list(dict.fromkeys(targets))
    return [target for target in once if "::" not in target or target.partition("::")[0] not in once]


def cost_of(tier: str) -> dict[str, float]:
    """Measured seconds of a processor, by file."""
    known = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.is_file() else {}
    return known.get(tier, {})


def record(tier: str, found: list[dict[str, Any]]) -> None:
    """Write the measured seconds of a tier's files."""
    known = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.is_file() else {}
    now = {result["file"]: round(result["seconds"], 1) for result in found}
    known[tier] = {file: s for file, s in sorted((known.get(tier, {}) | now).items()) if file in every_file()}
    SECONDS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def split(files: list[str], cost: dict[str, float], parts: int) -> list[list[str]]:
    """The files in parts that take about as long, the dearest first."""
    out: list[list[str]] = [[] for _ in range(parts)]
    total = [0.0] * parts
    for file in sorted(files, key=lambda file: (-cost.get(file, UNKNOWN), file)):
        least = min(range(parts), key=lambda i: (total[i], i))
        out[least].append(file)
        total[least] += cost.get(file, UNKNOWN)
    return out


def groups_of(targets: list[str], cost: dict[str, float], most: float, jobs: int = 1) -> list[list[str]]:
    """Groups of ``most`` seconds at most, about, the dearest first; as many for each job."""
    files = [target for target in targets if target != DOCTESTS]
    total = sum(cost.get(target.partition("::")[0], UNKNOWN) for target in files)
    parts = jobs * max(1, round(total / most / jobs))
    groups = [group for group in split(files, cost, parts) if group]
    return [[DOCTESTS], *groups] if DOCTESTS in targets else groups


def start(group: list[str], tier: str, results: Path) -> Process:
    """Begin the tests of a group; results of single tests are no results of their file."""
    if any("::" in target for target in group):
        results = results / "parts"
    environment = os.environ | ENVIRONMENT
    if tier != "laws":  # the run-time check of types takes four seconds a process
        environment.setdefault("TRACTABLE_TYPECHECK", "0")
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
    log = Path(tempfile.mkstemp(suffix=".log")[1])
    words = [sys.executable, "-m", "pytest", "-q", "--tier", tier, "--results", results]
    if group == [LINT]:
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        types, checked = "pyright && ", results.parent / f"types-{typed()}"
        if checked.exists():
            types = "echo 'pyright found no fault in these files before' && "
        words = ["sh", "-c", f"ruff check . && ruff format --check . && {types}touch '{checked}'"]
    elif group == [DOCTESTS]:  # in a world like a user's, without the test bed
        words += ["-p", "tiers", "--doctest-modules", "src"]
        environment["PYTHONPATH"] = str(TESTS)
    else:
        words += [f"tests/{target}" for target in group]
    with log.open("w") as out:
        handle = subprocess.Popen(
            words, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    return Process(group, handle, log)


def run(
    groups: list[list[str]], tier: str, results: Path, jobs: int, budget: float | None = None
) -> tuple[set[str], list[str]]:
    """Run groups until all have ended or the budget has; print what failed as it fails.

    Returns:
        The targets of groups in which something failed, and of groups that did not end.
    """
    begun, running, waiting, broken = time.monotonic(), [], list(groups), set[str]()
    (results / "parts").mkdir(parents=True, exist_ok=True)
    for path in results.rglob("failed-*.txt"):  # of an earlier run, whose process may have had the same number
        path.unlink()
    try:
        while waiting or running:
            if budget is not None and time.monotonic() - begun > budget:
                break
            while waiting and len(running) < jobs:
                running.append(start(waiting.pop(0), tier, results))
            time.sleep(0.1)
            for process in [process for process in running if process.handle.poll() is not None]:
                running.remove(process)
                if process.handle.returncode not in (0, 5):  # 5: none of the group's tests is in this tier
                    broken |= set(process.group)
                    print(process.log.read_text(encoding="utf-8", errors="replace"), flush=True)
                process.log.unlink()
                ended = len(groups) - len(waiting) - len(running)
                print(f"{ended} of {len(groups)} groups, {time.monotonic() - begun:,.0f} s", flush=True)
    finally:
        for process in running:
            os.killpg(process.handle.pid, signal.SIGKILL)
            process.handle.wait()
            process.log.unlink()
            for path in results.rglob(f"failed-{process.handle.pid}.txt"):  # before the group was stopped
                broken |= set(process.group)
                print(path.read_text(encoding="utf-8"), flush=True)
    return broken, [target for group in (*(process.group for process in running), *waiting) for target in group]


def read(results: Path) -> dict[str, dict[str, Any]]:
    """The results of files that were run to their end."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json")))
    return {result["file"]: result for result in found}


def report(found: list[dict[str, Any]], tier: str, wall: float) -> None:
    """What the tests cost, and a last line that adds them up."""
    tests = [(seconds, name) for result in found for name, seconds in result["tests"].items()]
    print("\nThe dearest tests, in seconds of a processor:")
    for seconds, name in sorted(tests, reverse=True)[:10]:
        print(f"{seconds:8.1f}  {name}")
    total = {name: sum(result[name] for result in found) for name in ("seconds", "programs", "loaded")}
    print(
        f"{tier}: {len(found)} files, {total['seconds']:,.0f} s of processors in {wall:,.0f} s; {total['programs']:,} "
        f"programs, of them {total['loaded']:,} from .cache. 10⁷ additions take {yardstick():.2f} s here."
    )
    passed, failed, skipped = (
        sum(len(result[name]) if name == "failed" else result[name] for result in found)
        for name in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)


def run_tier(options: argparse.Namespace) -> int:
    """Run ``quick`` or ``test``."""
    tier = options.tier
    files = every_file()
    if tier == "quick":
        files = [file for file in files[:-1] if "mark.quick" in (TESTS / file).read_text(encoding="utf-8")]
    cost, begun = cost_of(tier), time.monotonic()
    cached = any((ROOT / ".cache").glob("*/*"))
    folder = ROOT / ".laws" / tier
    shutil.rmtree(folder, ignore_errors=True)
    groups = [[LINT], *groups_of(files, cost, GROUP[tier], options.jobs)]
    broken, _ = run(groups, tier, folder, options.jobs)
    found = list(read(folder).values())
    report(found, tier, time.monotonic() - begun)
    if options.record:
        record(tier, found)
    loaded, programs = (sum(result[name] for result in found) for name in ("loaded", "programs"))
    if cached and loaded < programs / 2:
        print(
            f"XLA took {loaded} of {programs} programs from .cache: it rejects programs of other flags or processors."
        )
    if broken & {LINT, DOCTESTS} or (broken and not any(result["failed"] for result in found)):
        print(f"Failed, and not counted above: {' '.join(sorted(broken & {LINT, DOCTESTS} or broken))}", flush=True)
    return 1 if broken else 0


def run_laws(options: argparse.Namespace) -> int:
    """Run the laws, or some of them."""
    commit, cost, begun = tested_commit(), cost_of("laws"), time.monotonic()
    kept = ROOT / ".laws" / commit
    files = every_file()
    take_over(commit, kept)
    passed = {file for file, result in read(kept).items() if not result["failed"]}
    batches = [files]  # one after another
    if options.changed:
        batches = [changed_targets(options.changed)]
        print(f"{len(batches[0])} laws of what changed since {options.changed}.")
        if options.rotate:
            shard = int(hashlib.sha256(commit.encode()).hexdigest(), 16) % options.rotate
            batches.append([file for file in split(files, cost, options.rotate)[shard] if file not in batches[0]])
            print(f"Then shard {shard + 1} of {options.rotate}.")
    elif options.shard:
        part, parts = map(int, options.shard.split("/"))
        batches = [split(files, cost, parts)[part - 1]]
    shutil.rmtree(kept / "parts", ignore_errors=True)
    groups = []
    for batch in batches:
        for targets in ([t for t in batch if "::" in t], [t for t in batch if "::" not in t and t not in passed]):
            groups += groups_of(targets, cost, GROUP["laws"])
    broken, unfinished = run(groups, "laws", kept, options.jobs, options.budget)
    found = read(kept)
    missing = [target for target in unfinished if target not in found]
    if missing:
        print(f"\nNot run to the end, {len(missing)}: {' '.join(missing)}")
    here = [result for file, result in found.items() if any(file in batch for batch in batches)]
    report([*read(kept / "parts").values(), *here], "laws", time.monotonic() - begun)
    if options.record:
        record("laws", here)
    green = set(files) <= {file for file, result in found.items() if not result["failed"]}
    if green and "-" not in commit:
        GREEN.write_text(commit + "\n", encoding="utf-8")
        print(f"All laws have passed at {commit}, which is now in {GREEN.relative_to(ROOT)}.")
    return 0 if not broken and (options.budget or not missing) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tier", choices=TIERS)
    parser.add_argument("--shard", help="i/n: the i-th of n parts")
    parser.add_argument("--changed", metavar="COMMIT", help="only the laws of files changed since then")
    parser.add_argument("--rotate", type=int, metavar="N", help="with --changed: also one of N shards")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="stop then; what was not run is listed")
    parser.add_argument("--record", action="store_true", help="write what each file took into tests/seconds.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    options = parser.parse_args()
    return run_laws(options) if options.tier == "laws" else run_tier(options)


if __name__ == "__main__":
    sys.exit(main())
