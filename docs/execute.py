"""Run notebooks of the site and store their outputs: ``python docs/execute.py [docs/tutorials/trust.ipynb ...]``.

The outputs are committed, so that the site can be built without running anything; ``tests/test_tutorials.py`` runs the
notebooks again and compares.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
NOTEBOOKS = sorted(HERE.glob("*/*.ipynb"))


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in its own folder; what belongs to one run only is left out."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}})
    # A backend chosen outside, as the tests' is, would leave the figures out.
    client.execute(env=os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"})
    for i, cell in enumerate(notebook.cells):
        cell["id"], cell["metadata"] = f"cell-{i}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]  # warnings name paths of this machine
            for output in cell.outputs:
                output.pop("execution_count", None)
                if output.output_type == "execute_result":
                    output["execution_count"] = None
    notebook.metadata = nbformat.from_dict({"language_info": {"name": "python"}})
    return notebook


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:] or map(str, NOTEBOOKS)):
        nbformat.write(execute(page), page)
        print(page)
