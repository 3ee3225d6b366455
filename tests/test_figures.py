"""Pages quote the figures that scripts have recorded, and documents are as short as they are meant to be."""

import json
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import measuring
    import results_page
finally:
    sys.path.remove(str(BENCHMARKS))

AGAIN = "write it anew: python benchmarks/results_page.py"
RECORD = {"trial": {"figures": {"one": {"s": 1.5, "verdict": "trust"}, "two": {"s": -2, "said, twice": "3 of 4"}}}}
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def test_results_are_those_recorded():
    text = results_page.PAGE.read_text(encoding="utf-8")
    assert text == results_page.page(results_page.records()), AGAIN
    assert len(text.encode()) <= 16_900


@pytest.mark.parametrize("path", results_page.pages(), ids=lambda path: path.stem)
def test_a_page_quotes_the_figures_recorded(path):
    text = path.read_text(encoding="utf-8")
    assert text == results_page.refresh(text, results_page.records()), AGAIN
    assert not re.search(r"^ {0,3}<!-- figure ", text, re.MULTILINE), "Markdown takes a line that begins so for HTML"
    assert text.count("<!-- figure") == text.count("<!-- end -->")


@pytest.mark.parametrize("name", results_page.records())
def test_a_record_names_its_script_and_decision(name):
    record = results_page.records()[name]
    assert {"script", "title", "command", "date", "machine", "versions", "figures", "older", "notes"} <= set(record)
    assert (ROOT / record["script"]).exists()
    assert "decision" not in record or (ROOT / "docs" / "decisions" / record["decision"]).exists()


@pytest.mark.parametrize(
    ("path", "most"),
    [(ROOT / "docs" / "design.md", 2500), (ROOT / "CONTRIBUTING.md", 1200), *((path, 400) for path in DECISIONS)],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_a_document_is_short(path, most):
    assert words(path) <= most


def test_decisions_are_numbered_and_listed():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for number, path in enumerate(DECISIONS, 1):
        title = re.match(r"# (.+)\n", path.read_text(encoding="utf-8"))
        assert title and title[1].startswith(f"{number}. ") and path.name.startswith(f"{number:03d}-")
        assert f"[{title[1]}]({path.name})" in index


def test_links_lead_to_pages():
    for path in (ROOT / "CONTRIBUTING.md", results_page.PAGE, *results_page.pages()):
        for link, heading in re.findall(r"\]\((?!\w+:)([^)#]+)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
            target = path.parent / link
            assert target.exists(), (path, link)
            assert not heading or heading in headings(target), (path, link, heading)


def headings(path: Path) -> set[str]:
    """What the headings of a page are called in links."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_figures_and_tables_are_filled_in():
    page = "It took <!-- figure trial / two / s -->9<!-- end --> s.\n"
    block = "<!-- figures: trial: s; said, twice -->\n<!-- end -->\n"
    text = results_page.refresh(page + block, RECORD)
    assert text.startswith("It took <!-- figure trial / two / s -->−2<!-- end --> s.\n")
    assert "| | s | said, twice |\n|---|--:|--:|\n| one | 1.5 | – |\n| two | −2 | 3 of 4 |\n" in text
    assert results_page.refresh(text, RECORD) == text


@pytest.mark.parametrize(
    ("quoted", "sentence"),
    [
        ("<!-- figure other / one / s --><!-- end -->", "names no record: expected one of trial"),
        ("<!-- figure trial / three / s --><!-- end -->", "names no row of trial.json: expected one of one; two"),
        ("<!-- figure trial / one / ms --><!-- end -->", "names no column of trial.json: expected one of s; verdict"),
        ("<!-- figures: trial: ms -->\n<!-- end -->", "ms names no column"),
    ],
)
def test_a_figure_that_nobody_recorded_is_an_error(quoted, sentence):
    with pytest.raises(KeyError, match=sentence):
        results_page.refresh(quoted, RECORD)


def test_a_run_records_its_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "RESULTS", tmp_path)
    monkeypatch.setattr(measuring, "MEASURED", {})
    monkeypatch.setattr(sys, "argv", ["speed.py", "--data", str(tmp_path), "--epochs", "3"])
    head = ["job", "rows", "s", "verdict"]
    measuring.record("/elsewhere/speed.py", head, [["fit", 1000, 1.23456, "trust"]], names=2, columns=["s"])
    monkeypatch.setattr(measuring, "MEASURED", {})  # another run
    measuring.record("/elsewhere/speed.py", head, [["fit", 10, float("nan"), "trust"]], names=2, columns=["s"])
    found = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    assert found["figures"] == {"fit, 1,000": {"s": 1.235}, "fit, 10": {"s": None}}
    assert found["older"] == ["fit, 1,000"]
    assert found["command"] == "python benchmarks/speed.py --data PATH --epochs 3"
    assert found["script"] == "benchmarks/speed.py" and found["date"] and found["machine"] and found["versions"]["jax"]
    measuring.record("/elsewhere/speed.py", head, [["fit", 10, 2.0, "trust"]], names=2, keep=False)
    assert list(json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))["figures"]) == ["fit, 10"]
    measuring.record("/elsewhere/speed.py", ["", "value"], [["wrong", 0]])  # a second table of one run
    found = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    assert list(found["figures"]) == ["fit, 10", "wrong"] and found["figures"]["wrong"] == 0 and not found["older"]
    monkeypatch.setattr(sys, "argv", ["speed.py", "--quick"])
    measuring.record("/elsewhere/other.py", head, [["fit", 10, 2.0, "trust"]])
    assert not (tmp_path / "other.json").exists()
