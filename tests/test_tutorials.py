"""Pages of the site that run: notebooks print what they printed when their outputs were stored, and so do recipes."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.laws

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOKS = sorted(DOCS.glob("*/*.ipynb"))
# Of the other notebooks, some take minutes, and some print a verdict that another seed may change.
CHECKED = {
    "trust", "bandit", "change-point", "counts", "eight-schools", "gaussian-process", "hidden-markov",
    "item-response", "ordered", "robust", "survival", "two-modes",
}  # fmt: skip
RERUN = [path for path in NOTEBOOKS if path.stem in CHECKED]
RECIPES = sorted((DOCS / "how-to").glob("*.md"))
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)  # code, and what it prints
NUMBER = r"-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?|-?inf|nan"


def printed(cell: Any) -> str:
    """What a cell printed, or the text of its value."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", [])]
    return "".join(text if isinstance(text, str) else "".join(text) for text in texts)


def differs(stored: str, now: str) -> bool:
    """Whether texts differ in words, or in numbers by more than random numbers of another machine may."""
    # NumPy and pandas align numbers by spaces, which change with a digit.
    if "".join(re.sub(NUMBER, "#", stored).split()) != "".join(re.sub(NUMBER, "#", now).split()):
        return True
    first, second = (np.array([float(x.replace(",", "")) for x in re.findall(NUMBER, text)]) for text in (stored, now))
    finite = np.isfinite(first) & np.isfinite(second)
    first, second = first[finite], second[finite]
    return bool(np.any(np.abs(first - second) > 0.1 + 0.4 * np.maximum(np.abs(first), np.abs(second))))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("stored", "now", "expected"),
    [
        ("trust R-hat 1.002", "trust R-hat 1.004", False),
        ("trust R-hat 1.002", "reject R-hat 1.002", True),
        ("ESS of 3,359", "ESS of 2,900", False),
        ("71 % of draws", "7 % of draws", True),
        ("tails -inf", "tails -1e+05", False),
        ("[ 0.9 -2. ]", "[0.95 -1.9]", False),
    ],
)
def test_texts_are_compared(stored, now, expected):
    assert differs(stored, now) == expected


@pytest.mark.quick
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_has_run(path):
    """Every code cell has an output or none to show, and nothing names a path of the machine that ran it."""
    text = path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    assert any(printed(cell) for cell in cells) and not re.search(r"/(home|root|work|tmp)/|Traceback", text)
    assert all(printed(cell) for cell in cells if "print(" in "".join(cell["source"]) and cell["cell_type"] == "code")


@pytest.mark.parametrize("path", RERUN, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_printed(path):
    again = runpy.run_path(str(DOCS / "execute.py"))["execute"](path)
    for stored, now in zip(json.loads(path.read_text(encoding="utf-8"))["cells"], again.cells, strict=True):
        if differs(printed(stored), printed(now)):
            pytest.fail(
                f"{path.name} prints now:\n{printed(now)}\nand printed:\n{printed(stored)}\npython {DOCS}/execute.py"
            )


@pytest.mark.quick
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_answer_questions(path):
    """Every heading is a question, and nearly every recipe has code that runs."""
    recipes = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert recipes and all(recipe.split("\n")[0].endswith("?") for recipe in recipes)
    assert sum("```python" in recipe for recipe in recipes) >= len(recipes) - 1


# Runs blocks of code in a process of its own, in single precision, and writes what each of them printed.
RUN = """
import contextlib, io, json, sys
names, printed = {"__name__": "page"}, []
for code in json.load(sys.stdin):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(compile(code, "page", "exec"), names)
    printed.append(text.getvalue())
print(json.dumps(printed))
"""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_print_what_they_printed(path, tmp_path):
    blocks = BLOCK.findall(path.read_text(encoding="utf-8"))
    command = [sys.executable, "-W", "ignore", "-c", RUN]
    done = subprocess.run(
        command, input=json.dumps([code for code, _ in blocks]), text=True, capture_output=True, cwd=tmp_path
    )
    assert not done.returncode, done.stderr[-3000:]
    for (code, stored), now in zip(blocks, json.loads(done.stdout), strict=True):
        assert not differs(stored, now), f"{code}\nprints now:\n{now}"
