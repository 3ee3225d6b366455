"""Settings of the site, which ``make docs`` builds with Sphinx from this folder."""

import ast
import base64
import importlib.metadata
import inspect
import json
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


def sources() -> dict[str, str]:
    """The code of each page that shows code, by the page's name on the site."""
    pages = {}
    for path in sorted([*HERE.glob("*.md"), *HERE.glob("how-to/*.md")]):
        code = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        pages[str(path.relative_to(HERE).with_suffix(""))] = "\n".join(code)
    for path in notebooks():
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        pages[str(path.relative_to(HERE).with_suffix(""))] = "\n".join(code)
    for path in sorted((HERE.parent / "examples").glob("*.py")):
        pages[f"reference/scripts/{path.stem}"] = path.read_text(encoding="utf-8")
    return pages


# A value is shown where a call returns it.
RETURNED_BY = {
    "Posterior": r"tr\.(infer|fit)\(",
    "Report": r"\.report\(",
    "Prediction": r"\.predict\(",
    "Comparison": r"tr\.compare\(",
    "ModelComparison": r"tr\.compare_models\(",
    "Evidence": r"log_evidence\(",
    "Selection": r"tr\.select\(",
    "Calibration": r"tr\.calibrate\(",
    "Family": r"models\.categorical\(",
    "Regression": r"models\.regression\(",
    "Ladder": r"(belief_network|latent_gaussian)\(",
    "HiddenMarkov": r"hidden_markov\(",
    "LinearGaussian": r"linear_gaussian\(",
    "Layer": r"models\.layer\(",
    "Recognition": r"models\.bottom_up\(",
    "Censored": r"with_censoring\(|censored\(",
    "Objective": r"objectives\.\w+\(",
    "Approximation": r"approximations\.\w+\(",
    "Method": r"tr\.NUTS\(",
}


def uses(full_name: str, pages: dict[str, str]) -> list[str]:
    """The pages whose code uses a public name."""
    module, _, name = full_name.rpartition(".")
    short = "tr" if module == "tractable" else module.rpartition(".")[2]
    direct = rf"\b{short}\.{name}\b" + (rf"|\b{name}\(" if name[0].isupper() else "")
    found = [page for page, code in pages.items() if re.search(direct, code)]
    return found or [page for page, code in pages.items() if re.search(RETURNED_BY.get(name, "(?!)"), code)]


def public_names() -> dict[str, dict[str, Any]]:
    """The public functions and classes by group: their full name and what they are."""
    import reference

    import tractable as tr

    groups: dict[str, dict[str, Any]] = {name: {} for name in HEADS}
    for name, it in reference.public(tr).items():
        group = "methods" if reference.is_method(it) else "values" if inspect.isclass(it) else "functions"
        if not inspect.ismodule(it):
            groups[group][f"tractable.{name}"] = it
    for part in reference.PARTS:
        short = part.__name__.rpartition(".")[2]
        own = reference.public(part).items()
        groups[short] |= {f"{part.__name__}.{name}": it for name, it in own if not inspect.ismodule(it)}
    return groups


def write_reference(app: Any) -> None:
    """Write a page for each public name, from its docstring, with links to the pages that use it."""
    import reference

    import tractable as tr

    folder = HERE / "reference"
    folder.mkdir(exist_ok=True)
    pages = sources()
    for group, names in public_names().items():
        lines = [HEADS[group], "=" * len(HEADS[group]), ""]
        for name, it in names.items():
            short = name.rpartition(".")[2]
            lines.append(f"- :doc:`{short} <{name}>`: {escape(reference.ended(reference.first(it)))}")
            # What a method has besides its settings is for those who write methods: the base has it.
            hidden = not inspect.isclass(it) or (reference.is_method(it) and it is not tr.Method)
            kind = "autoclass" if inspect.isclass(it) else "autofunction"
            own = [short, "=" * len(short), "", f".. {kind}:: {name}", *([] if hidden else ["   :members:"]), ""]
            if shown := uses(name, pages):
                own += ["Examples", "--------", "", *(f"- :doc:`/{page}`" for page in shown[:8])]
            _write(folder / f"{name}.rst", "\n".join(own) + "\n")
        lines += ["", ".. toctree::", "   :hidden:", "", *(f"   {name}" for name in names), ""]
        _write(folder / f"{group}.rst", "\n".join(lines))
    _write(folder / "names.md", reference.text())
    listed = "\n".join(f"   {page}" for page in (*HEADS, "names"))
    _write(folder / "index.rst", f"Reference\n=========\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}\n")


def notebooks() -> list[Path]:
    return sorted(HERE.glob("*/*.ipynb"))


def write_scripts(app: Any) -> None:
    """Write a page for each script under examples/: what it shows, and its code."""
    folder = HERE / "reference" / "scripts"
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((HERE.parent / "examples").glob("*.py")):
        head, _, body = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")
        body = re.sub(r"^    (python .*)$", r"```bash\n\1\n```", body, flags=re.MULTILINE)
        code = f"```{{literalinclude}} ../../../examples/{path.name}\n:language: python\n```"
        _write(folder / f"{path.stem}.md", f"# {head.rstrip('.')}\n{body}\n\n{code}\n")


def write_gallery(app: Any) -> None:
    """Write the index of the gallery: the first picture and the title of each page."""
    folder = HERE / "reference" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    tiles = []
    for path in sorted((HERE / "gallery").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title = "".join(cells[0]["source"]).partition("\n")[0].removeprefix("# ")
        data = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
        picture = base64.b64decode(next(each["image/png"] for each in data if "image/png" in each))
        place = folder / f"{path.stem}.png"
        if not place.exists() or place.read_bytes() != picture:
            place.write_bytes(picture)
        tiles.append(f"[![{title}](pictures/{path.stem}.png) {title}](../gallery/{path.name})\n")
    scripts = "\n".join(f"scripts/{path.stem}" for path in sorted((HERE.parent / "examples").glob("*.py")))
    parts = [
        "# Gallery",
        "Each page has one idea, a picture, its code and its verdict.",
        ":::{container} gallery\n" + "\n".join(tiles) + ":::",
        "```{toctree}\n:hidden:\n:glob:\n\n../gallery/*\n```",
        "## Scripts",
        "These examples are longer, and have options for the command line.",
        f"```{{toctree}}\n:maxdepth: 1\n\n{scripts}\n```",
    ]
    _write(HERE / "reference" / "gallery.md", "\n\n".join(parts) + "\n")


def _write(page: Path, text: str) -> None:
    """Write a page if its text is new, so that Sphinx reads only new pages."""
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("builder-inited", write_reference)  # the first makes the folder
    app.connect("builder-inited", write_scripts)
    app.connect("builder-inited", write_gallery)
    app.connect("builder-inited", copy_pages)
    app.connect("source-read", relink_page)
    app.connect("autodoc-process-docstring", as_markup, priority=400)  # before napoleon reads the sections
