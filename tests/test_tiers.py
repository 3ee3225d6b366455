"""Each test has its tier, each source file its laws, and the runner runs what it says."""

import ast
import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import suite

pytestmark = pytest.mark.quick


def source_files() -> set[str]:
    """Source files that define something."""
    return {
        path.relative_to(suite.SOURCE).as_posix()
        for path in suite.SOURCE.rglob("*.py")
        if any(
            isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign)
            for node in ast.parse(path.read_text(encoding="utf-8")).body
        )
    }


def test_every_source_file_has_laws_that_are_there():
    table, tests = suite.laws_of(), {}
    assert set(table) == source_files()
    for targets in table.values():
        assert targets
        for target in targets:
            file, _, name = target.partition("::")
            tests.setdefault(file, (suite.TESTS / file).read_text(encoding="utf-8"))
            assert not name or re.search(rf"def {name.partition('[')[0]}\(", tests[file]), target


def test_every_file_says_its_tier():
    for file in suite.every_file()[:-1]:
        text = (suite.TESTS / file).read_text(encoding="utf-8")
        assert re.search(r"^pytestmark = \[?\s*pytest\.mark\.(quick|test|laws)\b", text, re.M), file


def test_the_commit_of_the_last_green_laws_is_a_commit():
    assert re.fullmatch(r"[0-9a-f]{40}\n", suite.GREEN.read_text(encoding="utf-8"))


def test_shards_are_every_file_once_and_take_about_as_long():
    files = suite.every_file()
    cost = {file: float(1 + i % 7) for i, file in enumerate(files)}
    for parts in (1, 2, 4, 6):
        shards = suite.split(files, cost, parts)
        assert sorted(file for shard in shards for file in shard) == sorted(files)
        took = [sum(cost[file] for file in shard) for shard in shards]
        assert max(took) - min(took) <= 7
        assert shards == suite.split(files[::-1], cost, parts)  # on every machine


def test_groups_are_as_long_as_they_should_be_and_doctests_are_alone():
    files = [f"test_{i}.py" for i in range(40)]
    groups = suite.groups_of([*files, suite.DOCTESTS], dict.fromkeys(files, 10.0), 100.0)
    assert groups[0] == [suite.DOCTESTS] and [len(group) for group in groups[1:]] == [10] * 4
    for most, each in ((100.0, 10), (150.0, 20), (1000.0, 20)):  # as many for each of two jobs
        assert {len(group) for group in suite.groups_of(files, dict.fromkeys(files, 10.0), most, 2)} == {each}


def test_a_target_is_run_once():
    found = suite.without_doubles(["a.py::test_x", "b.py", "a.py", "b.py", "c.py::test_y", "c.py::test_y"])
    assert found == ["b.py", "a.py", "c.py::test_y"]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of two source files, four files of tests and a helper of one of them, all committed."""
    for name in ("tests", "src/tractable/core"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".gitignore").write_text(".laws/\n")
    laws = '[laws]\n"a.py" = ["test_one.py", "test_two.py::test_b"]\n"core/b.py" = ["test_two.py"]\n'
    laws += '"page.html" = ["test_three.py"]\n'
    (tmp_path / "tests" / "laws_of.toml").write_text(laws)
    for name in ("a.py", "core/b.py", "page.html"):
        (tmp_path / "src/tractable" / name).write_text("x = 1\n")
    for name in ("one", "two", "three"):
        (tmp_path / f"tests/test_{name}.py").write_text("def test_b():\n    pass\n")
    (tmp_path / "tests/helper.py").write_text("x = 1\n")
    (tmp_path / "tests/test_four.py").write_text("import sys\nfrom helper import x\n")
    for name, value in {"ROOT": "", "TESTS": "tests", "GREEN": "tests/laws_green", "SECONDS": "tests/s.json"}.items():
        monkeypatch.setattr(suite, name, tmp_path / value)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


def commit(repository: Path) -> None:
    for words in (["add", "."], ["commit", "-qm", "all"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=repository, check=True)


def test_the_laws_of_what_changed(repository, capsys):
    head = suite.tested_commit()
    assert re.fullmatch("[0-9a-f]{40}", head) and suite.changed_targets(head) == []
    (repository / "src/tractable/a.py").write_text('"""A text."""\n\nx = 1  # why\n')
    assert suite.changed_targets(head) == []
    (repository / "src/tractable/a.py").write_text("x = 2\n")
    assert suite.changed_targets(head) == ["test_one.py", "test_two.py::test_b"]
    (repository / "src/tractable/page.html").write_text("<p>")  # no Python
    assert suite.changed_targets(head) == ["test_one.py", "test_two.py::test_b", "test_three.py"]
    (repository / "src/tractable/page.html").write_text("x = 1\n")
    (repository / "tests/test_three.py").write_text("")
    (repository / "src/tractable/core/b.py").write_text("x = 2\n")
    assert suite.changed_targets(head) == ["test_one.py", "test_two.py", "test_three.py"]
    (repository / "tests/helper.py").write_text("x = 2\n")
    assert sorted(suite.changed_targets(head)) == ["test_four.py", "test_one.py", "test_three.py", "test_two.py"]
    assert suite.changed_targets("f" * 40) == [] and "not in this repository" in capsys.readouterr().out


def test_the_green_commit_does_not_change_what_is_tested(repository):
    head = suite.tested_commit()
    (repository / "tests/laws_green").write_text(head + "\n")
    assert suite.tested_commit() == head
    (repository / "tests/new.py").write_text("")
    assert suite.tested_commit().startswith(f"{head}-")


class Laws:
    """Laws as they are run, but for the tests: each file of tests takes no time and writes what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: str = "", slow: str = "") -> None:
        self.groups: list[list[str]] = []
        self.failing, self.slow = failing, slow
        monkeypatch.setattr(suite, "start", self.start)
        monkeypatch.setattr(suite, "yardstick", lambda: 1.0)
        monkeypatch.setattr(suite, "GROUP", dict.fromkeys(suite.TIERS, 1.0))

    def start(self, group: list[str], tier: str, results: Path) -> suite.Process:
        self.groups.append(group)
        for file in group if group != [self.slow] else []:
            result = {"file": file, "passed": 1, "skipped": 0, "failed": [], "programs": 0, "loaded": 0, "tests": {}}
            result |= {"seconds": 0.0} | ({"failed": ["x"], "passed": 0} if file == self.failing else {})
            (results / f"{file}.json").write_text(json.dumps(result))
        wait = (
            f"import time; time.sleep({60 if group == [self.slow] else 0}); raise SystemExit({self.failing in group})"
        )
        handle = subprocess.Popen([sys.executable, "-c", wait], start_new_session=True)
        log = results / f"{len(self.groups)}.log"
        log.write_text("what failed")
        return suite.Process(group, handle, log)


def laws(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["suite.py", "laws", "--jobs", "2", *words])
    return suite.main()


def test_shards_add_up_to_a_green_commit(repository, monkeypatch, capsys):
    head = suite.tested_commit()
    Laws(monkeypatch)
    for part in ("1/2", "2/2"):
        assert not suite.GREEN.exists()
        assert laws(monkeypatch, "--shard", part) == 0
    assert suite.GREEN.read_text() == head + "\n"
    assert len(re.findall(r"^[23] passed, 0 failed, 0 skipped$", capsys.readouterr().out, re.M)) == 2
    again = Laws(monkeypatch)
    assert laws(monkeypatch) == 0 and again.groups == []  # everything has passed


def test_what_failed_fails_and_is_run_again(repository, monkeypatch, capsys):
    Laws(monkeypatch, failing="test_two.py")
    assert laws(monkeypatch) == 1 and not suite.GREEN.exists()
    assert "what failed" in capsys.readouterr().out
    again = Laws(monkeypatch)
    assert laws(monkeypatch) == 0 and again.groups == [["test_two.py"]] and suite.GREEN.exists()


@pytest.mark.parametrize(
    ("mended", "again"),
    [
        ("tests/test_two.py", ["test_tiers.py", "test_two.py"]),
        ("tests/helper.py", ["test_four.py", "test_tiers.py", "test_two.py"]),
        ("tests/conftest.py", None),
        ("src/tractable/core/b.py", None),
        ("README.md", None),
    ],
)
def test_a_commit_that_mends_tests_takes_over_what_it_left_alone(repository, monkeypatch, mended, again):
    (repository / "tests/test_tiers.py").write_text("")
    commit(repository)
    Laws(monkeypatch, failing="test_two.py")
    assert laws(monkeypatch) == 1
    (repository / mended).write_text("mended = True\n")
    commit(repository)
    ran = Laws(monkeypatch)
    assert laws(monkeypatch) == 0 and suite.GREEN.read_text().strip() == suite.tested_commit()
    files = sorted(itertools.chain(*ran.groups))
    assert files == (again or sorted(suite.every_file()))


def test_a_budget_lists_what_was_not_run_and_does_not_fail(repository, monkeypatch, capsys):
    Laws(monkeypatch, slow="test_one.py", failing="test_two.py")
    assert laws(monkeypatch, "--budget", "1") == 1  # a failure always fails
    Laws(monkeypatch, slow="test_one.py")
    assert laws(monkeypatch, "--budget", "1") == 0 and not suite.GREEN.exists()
    assert "Not run to the end, 1: test_one.py" in capsys.readouterr().out


def test_options_of_pytest_are_refused(repository, monkeypatch):
    """A file of which some tests were left out has not passed."""
    ran = Laws(monkeypatch)
    with pytest.raises(SystemExit):
        laws(monkeypatch, "-k", "something")
    assert not ran.groups and not suite.GREEN.exists()


def test_what_changed_comes_first_then_one_shard(repository, monkeypatch):
    head = suite.tested_commit()
    (repository / "src/tractable/core/b.py").write_text("x = 2\n")
    ran = Laws(monkeypatch)
    assert laws(monkeypatch, "--changed", head, "--rotate", "1") == 0
    assert ran.groups[0] == ["test_two.py"]
    assert sorted(itertools.chain(*ran.groups)) == [
        "doctests", "test_four.py", "test_one.py", "test_three.py", "test_two.py",
    ]  # fmt: skip


SCRIPT = suite.ROOT / "benchmarks" / "mutants.py"


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("mutants")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("return a + b", {("sign", "(a - b)"), ("dropped term", "(a)")}),
        ("return -a * 2.0", {("factor", "(-a / 2.0)"), ("factor", "(4.0)"), ("dropped term", "(-a)"), ("sign", "(a)")}),
        ("return f(a, b)", {("swapped arguments", "(f(b, a))")}),
        ("return x if count > 1 else y", {("off by one", "(count >= 1)"), ("off by one", "(2)")}),
        ("return a > b", set()),  # of two real numbers
        ("raise ValueError(a + b)", set()),
        ("return f'{a + 1}' + name", set()),
        ("return jax.random.key(3)", set()),
    ],
)
def test_faults_are_those_that_the_script_names(mutants, tmp_path, monkeypatch, line, found):
    monkeypatch.setattr(mutants, "SOURCE", tmp_path)
    path = tmp_path / "one.py"
    path.write_text(f"def f(a, b, count=4):\n    {line}\n")
    made = mutants.sites(path)
    assert len(made) == len(found)
    for kind, text in found:
        assert any(mutant.kind == kind and text in mutant.after for mutant in made), (kind, text, made)


def test_mutants_are_drawn_by_seed_in_proportion_to_lines(mutants):
    first, again, other = mutants.draw(60, 1), mutants.draw(60, 1), mutants.draw(60, 2)
    assert first == again != other and len(set(first)) == len(first)
    count = {folder: sum(mutant.file.startswith(f"{folder}/") for mutant in first) for folder in mutants.FOLDERS}
    lines = {
        folder: sum(path.read_text(encoding="utf-8").count("\n") for path in (suite.SOURCE / folder).rglob("*.py"))
        for folder in mutants.FOLDERS
    }
    for folder, number in count.items():
        assert abs(number - 60 * lines[folder] / sum(lines.values())) < 1
    for mutant in first:
        text = (suite.SOURCE / mutant.file).read_text(encoding="utf-8").splitlines()
        assert text[mutant.line - 1] == mutant.before != mutant.after


@pytest.mark.parametrize(
    ("output", "how"),
    [
        ("E   AssertionError: assert 1 == 2", "law"),
        ("E   tractable.core.errors.RunError: A state stopped being finite", "law"),
        ("E   TypeError: unsupported operand", "misfit"),
        ("E   ValueError: Incompatible shapes for broadcasting: (2,), (3,)", "misfit"),
        ("E   ValueError: Expected a step size above 0", "law"),
        ("ImportError while loading conftest", "misfit"),
        ("Failed: it did not end in time", "law"),
    ],
)
def test_a_fault_that_does_not_fit_is_counted_apart(mutants, output, how):
    assert mutants.died_of(output) == how


TIERED = """
import jax.numpy as jnp
import pytest

pytestmark = pytest.mark.laws

@pytest.mark.quick
def test_that_traces():
    jnp.zeros(3) + 1

@pytest.mark.quick
def test_that_does_not():
    pass

@pytest.mark.test("b")
@pytest.mark.parametrize("case", ["a", "b"])
def test_cases(case):
    pass

def test_law():
    pass
"""


def tiered(folder: Path, *words: str) -> str:
    """What pytest prints of the file above."""
    (folder / "test_tiered.py").write_text(TIERED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-c", suite.ROOT / "pyproject.toml"]
    command += ["--rootdir", folder, "-p", "no:cacheprovider", *words]
    environment = os.environ | {"PYTHONPATH": str(suite.TESTS), "TRACTABLE_TYPECHECK": "0"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout


@pytest.mark.test("words1-3")
@pytest.mark.parametrize(
    ("words", "passed"),
    [(["--tier", "quick"], 2), (["--tier", "test"], 3), ([], 3), (["--tier", "laws"], 5)],
)
def test_a_tier_includes_those_before_and_a_quick_test_may_not_trace(tmp_path, words, passed):
    out = tiered(tmp_path, *words, "test_tiered.py")
    assert f"{passed} passed" in out and "1 error" in out, out
    assert "it is marked as quick, and traced" in out


@pytest.mark.laws
@pytest.mark.parametrize(("words", "passed"), [([], "1 passed"), (["--tier", "test"], "1 deselected")])
def test_a_test_that_is_named_runs_whatever_its_tier(tmp_path, words, passed):
    assert passed in tiered(tmp_path, *words, "test_tiered.py::test_law")
