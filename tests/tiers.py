"""The three tiers of the tests, and what a run of them leaves behind: counts and seconds of each file.

Every test or its file is marked as ``quick`` (traces nothing), ``test`` (``make test`` runs it) or ``laws``; a tier
includes those before it. ``@pytest.mark.test("a", "b")`` means the cases of these names alone: the others are laws.
"""

import json
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

TESTS = Path(__file__).parent
TIERS = ("quick", "test", "laws")

# What JAX has done in this process, by the names of its events.
events: Counter[str] = Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
jax.monitoring.register_event_duration_secs_listener(lambda name, _, **__: events.update([name]))
TRACED = "/jax/core/compile/jaxpr_trace_duration"
COMPILED = "/jax/core/compile/backend_compile_duration"
LOADED = "/jax/compilation_cache/cache_hits"


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "which tests to run; each tier includes those before it. By default test, and any that are named"
    parser.addoption("--tier", choices=TIERS, help=about)
    parser.addoption("--results", type=Path, help="folder for a file of results for each file of tests")


def tier_of(item: pytest.Item) -> str:
    """The tier that the test or its file is marked with; a mark with names is for the cases of these names alone."""
    if isinstance(item, pytest.DoctestItem):
        return "test"
    marks = [mark for mark in item.iter_markers() if mark.name in TIERS]
    if not marks:
        raise pytest.UsageError(f"{item.nodeid} is in no tier: mark it or its file as one of {', '.join(TIERS)}")
    mark = marks[0]
    if not mark.args:
        return mark.name
    return mark.name if any(is_case(item, name) for name in mark.args) else "laws"


def is_case(item: pytest.Item, name: str) -> bool:
    """Whether the test is the case of this name, or of a name that begins so, as in ``"exact*"``."""
    case = item.callspec.id  # pyright: ignore[reportAttributeAccessIssue]
    name = name.encode("unicode_escape").decode()  # as pytest writes it
    return case.startswith(name[:-1]) if name.endswith("*") else case == name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is in a later tier; without a tier, tests that were named are run whatever theirs is."""
    chosen = config.getoption("tier")
    tiers = TIERS[: TIERS.index(chosen or "test") + 1]
    named = [argument.partition("::")[2] for argument in config.args if "::" in argument]
    if not named:
        check_cases(items)
    left = [i for i in items if tier_of(i) not in tiers and (chosen or not any(name in i.nodeid for name in named))]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def check_cases(items: list[pytest.Item]) -> None:
    """No test has two marks, and cases that a mark names are there."""
    named: dict[tuple[Path, str], set[str]] = {}
    for item in items:
        marks = [mark for mark in item.own_markers if mark.name in TIERS]
        if len(marks) > 1:
            raise pytest.UsageError(f"{item.nodeid} is in {len(marks)} tiers: leave one mark")
        if marks and isinstance(item, pytest.Function):
            left = named.setdefault((item.path, item.originalname), set(marks[0].args))
            left -= {name for name in left if is_case(item, name)}
    unknown = [f"{path.name}::{name}: {sorted(cases)}" for (path, name), cases in named.items() if cases]
    if unknown:
        raise pytest.UsageError(f"A tier names cases that are not there: {', '.join(unknown)}")


BEFORE = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what was traced so far; in ``make quick``, forget it, so that no test hides behind an earlier one."""
    if item.config.getoption("tier") == "quick":
        jax.clear_caches()
    item.stash[BEFORE] = events[TRACED]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A test that is marked as quick fails if it, or a fixture that it is the first to use, traces a program."""
    traced = events[TRACED] - item.stash[BEFORE]
    if traced and tier_of(item) == "quick":
        pytest.fail(f"it is marked as quick, and traced {traced} programs: mark it as test or laws", pytrace=False)


def seconds() -> float:
    """Of processors, by this process and those it started that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def file_of(item: pytest.Item) -> str:
    """The file of a test, relative to ``tests``; examples in docstrings are all of one."""
    return "doctests" if isinstance(item, pytest.DoctestItem) else item.path.relative_to(TESTS).as_posix()


class Results:
    """Counts and seconds of each file of tests, written when its last test has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, self.nothing()

    @staticmethod
    def nothing() -> dict[str, Any]:
        return {"passed": 0, "skipped": 0, "failed": [], "programs": 0, "loaded": 0, "tests": {}}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[Any]:
        begun, before = seconds(), events.copy()
        result = yield
        self.now["tests"][item.nodeid] = round(seconds() - begun, 3)
        self.now["programs"] += events[COMPILED] - before[COMPILED]
        self.now["loaded"] += events[LOADED] - before[LOADED]
        if nextitem is None or file_of(nextitem) != file_of(item):
            self.write(file_of(item))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with (self.folder / f"failed-{os.getpid()}.txt").open("a", encoding="utf-8") as out:
                out.write(f"FAILED {report.nodeid}\n{report.longreprtext}\n")
            self.now["failed"] = sorted({*self.now["failed"], report.nodeid})
        elif report.skipped:
            self.now["skipped"] += 1
        elif report.when == "call" and report.passed:
            self.now["passed"] += 1

    def write(self, file: str) -> None:
        total = sum(self.now["tests"].values())
        text = json.dumps({"file": file, "seconds": total} | self.now)
        part = self.folder / f"{file.replace('/', '--')}.part"
        part.write_text(text, encoding="utf-8")
        part.rename(part.with_suffix(".json"))
        self.now = self.nothing()


def keep_programs() -> None:
    """Compiled once, a program is found by modules, workers, runs and processes that tests start.

    In the checkout, and not in the cache of whoever runs the tests.
    """
    from tractable.engine import cache

    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache.cache(TESTS.parent / ".cache"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # Mutants replace functions in memory, which the names of files of programs do not see.
    os.environ["TRACTABLE_PROGRAMS"] = "off"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("doctestmodules"):  # which have no test bed
        keep_programs()
    folder = config.getoption("results")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(Results(folder))
