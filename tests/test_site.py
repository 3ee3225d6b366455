"""The site: its reference has every public name, and its glossary every term that a report explains."""

import runpy
from pathlib import Path

import pytest
import reference

import tractable as tr
from tractable.pages.terms import TERMS

pytestmark = pytest.mark.quick

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def conf() -> dict:
    return runpy.run_path(str(DOCS / "conf.py"))


def test_every_public_name_is_in_the_reference(conf, tmp_path):
    conf["write_reference"].__globals__["HERE"] = tmp_path
    conf["write_reference"](None)
    pages = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "reference").glob("*.rst"))
    for of in (tr, *reference.PARTS):
        for name, it in reference.public(of).items():
            if callable(it):
                assert pages.count(f":: {of.__name__}.{name}\n") == 1, name


def test_every_public_name_has_an_example(conf):
    """Some page of the site or some script uses it, or uses a call that returns it."""
    pages = conf["sources"]()
    names = [name for group in conf["public_names"]().values() for name in group]
    assert not [name for name in names if not conf["uses"](name, pages)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("A sum.\n\n    S ← (1 − γ_t) S*\n\nMore.", "A sum.\n\n::\n\n    S ← (1 − γ_t) S*\n\nMore."),
        ("x_ and |y| of ``a_*b``.", "x\\_ and \\|y\\| of ``a_*b``."),
        ("``a of\nb_``.", "``a of\nb_``."),
        (">>> f(*a)\n[1]", ">>> f(*a)\n[1]"),
        ("Args: as for NUTS, and\n    a: one.", "Arguments: as for NUTS, and\n\nArgs:\n    a: one."),
        ("Returns:\n    A table\n\n        a_   one", "Returns:\n    A table\n\n    ::\n\n        a_   one"),
    ],
)
def test_docstrings_become_markup(conf, before, after):
    lines = before.split("\n")
    conf["as_markup"](None, "function", "f", None, None, lines)
    assert "\n".join(lines) == after


def test_the_glossary_has_the_terms_of_reports():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8").lower()
    assert not [term for term in TERMS if term.lower().removesuffix("s") not in text]


def test_every_page_can_be_reached():
    """Each page is in the table of contents of some other, so that a reader finds it."""
    listed = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index", "reference"}  # ``write_reference`` lists the latter
    assert not [name for name in pages if f"\n{name}\n" not in listed]
