"""Does a change leave every method's numbers as they were, to the last bit?

    python benchmarks/same_numbers.py --write numbers.json      in the old checkout
    python benchmarks/same_numbers.py --against numbers.json    in the new one, on the same machine

Bits depend on the processor, the versions and the compiler flags, so both runs must be made on one machine; a file from
another machine tells nothing. ``tests/every_method.py`` has the methods and their models.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import warnings

os.environ["JAX_ENABLE_X64"] = "1"  # must be set before the cases are made
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))

import jax
import numpy as np
from every_method import CASES, numbers

import tractable as tr


def digest(name: str) -> dict[str, object]:
    """A short digest of the numbers of one method's run."""
    case = CASES[name]
    jax.clear_caches()  # programs compiled before could change how sums are computed
    found = np.ascontiguousarray(
        numbers(tr.infer(case.model, tr.Data(*case.data), case.method, seed=3, progress=False))
    )
    return {
        "sha256": hashlib.sha256(found.tobytes()).hexdigest(),
        "shape": list(found.shape),
        "mean": float(found.mean()),
        "root mean square": float(np.sqrt(np.mean(np.square(found)))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=list(CASES))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {}
    before = json.loads(asked.against.read_text()) if asked.against else {}
    for name in asked.names:
        found[name] = digest(name)
        if asked.against:
            same = found[name]["sha256"] == before[name]["sha256"]
            print(f"{name:30} {'same' if same else f'DIFFERS: {before[name]} then, {found[name]} now'}", flush=True)
    if asked.write:
        asked.write.write_text(json.dumps(found, indent=1))
    if asked.against and any(found[name]["sha256"] != before[name]["sha256"] for name in found):
        sys.exit("Some numbers differ.")


if __name__ == "__main__":
    main()
