"""Settings of the site, which ``make docs`` builds with Sphinx from this folder."""

import importlib.metadata
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))  # for reference.py, which lists the public names

project = "tractable"
copyright = "the tractable authors"
release = importlib.metadata.version("tractable")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # outputs are committed, and the laws run the pages again
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_block"]
myst_heading_anchors = 3
suppress_warnings = ["ref.python"]

toc_object_entries = False
highlight_language = "none"  # indented blocks are equations
html_theme = "pydata_sphinx_theme"
html_title = f"tractable {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True

HEADS = {
    "functions": "Functions", "methods": "Methods", "values": "Values", "models": "Models", "estimators": "Estimators",
    "kernels": "Kernels", "objectives": "Objectives", "approximations": "Approximations", "gradients": "Gradients",
    "schedules": "Schedules", "errors": "Errors",
}  # fmt: skip


# Pages of the repository that the site shows too, and the site's own page for README.
PAGES = {
    "reference/measured": "benchmarks/RESULTS.md",
    "reference/contributing": "CONTRIBUTING.md",
    "reference/changelog": "CHANGELOG.md",
}
PLACES = {HERE.parent / path: HERE / f"{name}.md" for name, path in {**PAGES, "index": "README.md"}.items()}


def relink(text: str, old: Path, new: Path) -> str:
    """The text of a page that moves from the folder ``old`` to ``new``, with links between pages of the site."""

    def link(found: re.Match[str]) -> str:
        target, mark, anchor = found[1].partition("#")
        if not target or "://" in target:
            return found[0]
        path = Path(os.path.normpath(old / target))
        return f"]({os.path.relpath(PLACES.get(path, path), new)}{mark}{anchor})"

    return re.sub(r"\]\(([^()\s]+)\)", link, text)


def copy_pages(app: Any) -> None:
    """Copy the pages of the repository that lie outside of this folder."""
    for name, path in PAGES.items():
        source, page = HERE.parent / path, HERE / f"{name}.md"
        _write(page, relink(source.read_text(encoding="utf-8"), source.parent, page.parent))


def relink_page(app: Any, name: str, source: list[str]) -> None:
    """Turn a page's links to files of the repository into links to the site's pages."""
    folder = (HERE / name).parent
    source[0] = relink(source[0], folder, folder)


def escape(text: str) -> str:
    """Text of a docstring for reStructuredText, in which only ``names in code`` are markup."""
    parts = re.split(r"(``.+?``)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("``") else re.sub(r"([\\*|`_])", r"\\\1", part) for part in parts)


def as_markup(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Turn indented paragraphs of a docstring, which are equations, into literal blocks, and escape the others."""
    blocks: list[tuple[bool, list[str]]] = []  # whether lines stay as they are, and the lines
    section, depth, before = False, 0, ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if found := re.fullmatch(r"Args: (.*)", line):
            blocks.append((False, [f"Arguments: {found[1]}", ""]))
            line = "Args:"
        if re.fullmatch(r"(Args|Attributes|Returns|Raises|Warns|Yields):", line):
            section, depth = True, 0
        elif line and not indent:
            section, depth = False, 0
        if line and indent < depth:
            depth = 0
        if not depth and not before and indent >= (8 if section else 4):
            depth = indent
            blocks.append((True, [" " * (4 if section else 0) + "::", ""]))
        literal = bool(depth) or line.startswith((">>>", "..."))
        if not blocks or blocks[-1][0] != literal:
            blocks.append((literal, []))
        blocks[-1][1].append(line)
        before = line
    lines[:] = [line for literal, own in blocks for line in (own if literal else escape("\n".join(own)).split("\n"))]


def write_reference(app: Any) -> None:
    """Write a page of the reference for each group of public names, from their docstrings."""
    import reference

    import tractable as tr

    own = reference.public(tr)
    groups: dict[str, list[tuple[str, Any]]] = {name: [] for name in HEADS}
    for name, it in own.items():
        group = "methods" if reference.is_method(it) else "values" if inspect.isclass(it) else "functions"
        if not inspect.ismodule(it):
            groups[group].append((f"tractable.{name}", it))
    for part in reference.PARTS:
        short = part.__name__.rpartition(".")[2]
        for name, it in reference.public(part).items():
            if not inspect.ismodule(it):
                groups[short].append((f"{part.__name__}.{name}", it))
    folder = HERE / "reference"
    folder.mkdir(exist_ok=True)
    for group, names in groups.items():
        parts = [HEADS[group], "=" * len(HEADS[group]), ""]
        for name, it in names:
            kind = "autoclass" if inspect.isclass(it) else "autofunction"
            short = name.rpartition(".")[2]
            parts += [f"``{short}``", "-" * (len(short) + 4), "", f".. {kind}:: {name}"]
            # What a method has besides its settings is for those who write methods: the base has it.
            hidden = not inspect.isclass(it) or (reference.is_method(it) and it is not tr.Method)
            parts += [""] if hidden else ["   :members:", ""]
        text = "\n".join(parts)
        _write(folder / f"{group}.rst", text)
    pages = "\n".join(f"   {page}" for page in (*groups, "/reference"))
    _write(folder / "index.rst", f"Reference\n=========\n\n.. toctree::\n   :maxdepth: 1\n\n{pages}\n")


def _write(page: Path, text: str) -> None:
    """Write a page if its text is new, so that Sphinx reads only new pages."""
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("builder-inited", write_reference)  # the first makes the folder
    app.connect("builder-inited", copy_pages)
    app.connect("source-read", relink_page)
    app.connect("autodoc-process-docstring", as_markup, priority=400)  # before napoleon reads the sections
