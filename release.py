"""Prepare a release: ``python release.py [STEP ...]`` from a clean checkout, in the environment of ``make test``.

All steps run by default, in this order: ``version`` (the changelog has it), ``site`` (``make docs``), ``links`` (pages
of others that the site names), ``build`` (wheel and source, into dist/), ``install`` (the wheel in new environments,
with the newest and with the lowest dependencies that it allows, on each Python from 3.11 on that is on the path) and
``laws`` (all tests). Each step ends the script where it fails. Nothing is uploaded: that is ``twine upload dist/*``.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
ANSWER = """
import numpy as np, numpyro.distributions as dist, pandas as pd, tractable as tr
coin = tr.Model(prior={"theta": dist.Beta(5.0, 5.0)}, likelihood=lambda p: dist.Bernoulli(p["theta"]))
posterior = tr.infer(coin, tr.Data([1, 0, 1, 1] * 25), tr.NUTS(), seed=0, progress=False)
assert posterior.report().verdict == "trust" and abs(posterior.mean()["theta"] - 80 / 110) < 0.02, posterior.report()
x = np.random.default_rng(0).normal(size=200)
table = pd.DataFrame({"x": x, "kind": ["a", "b"] * 100, "y": np.random.default_rng(1).poisson(np.exp(0.5 * x))})
assert abs(tr.fit(table, "y").summary().loc["x", "mean"] - 0.5) < 0.2
"""


def call(*command: object, folder: Path = ROOT) -> None:
    print("$", *(part if part != ANSWER else "'a coin and a table'" for part in command), flush=True)
    subprocess.run([str(part) for part in command], cwd=folder, check=True)


def version() -> None:
    """The version stands in the changelog, and no file is changed or unknown to git."""
    source = (ROOT / "src/tractable/posterior/run_identity.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+?)"', source, re.MULTILINE)
    if found is None or f"## {found[1]}\n" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        sys.exit(f"CHANGELOG.md has no section for version {found and found[1]}: write what users will see of it.")
    if changed := subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout:
        sys.exit(f"Release from a clean checkout; these files are not committed:\n{changed}")
    print("version", found[1])


def site() -> None:
    call("make", "docs")


def links() -> None:
    call(sys.executable, "-m", "sphinx", "-q", "-b", "linkcheck", "docs", "docs/_build/links")


def build() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    call(sys.executable, "-m", "pip", "install", "-qq", "-c", "constraints.txt", "-e", ".[release]")
    call(sys.executable, "-m", "build", "-o", DIST)
    call(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())


def lowest() -> str:
    """Constraints that take the lowest allowed version of each dependency."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return "".join(re.sub(r">=([^,]+).*", r"==\1", dependency) + "\n" for dependency in listed)


def runs(python: str) -> bool:
    """Whether a Python is there and can make environments; version managers leave names behind that start nothing."""
    command = [python, "-c", "import venv, ensurepip"]
    return bool(shutil.which(python)) and subprocess.run(command, capture_output=True).returncode == 0


def install() -> None:
    """The wheel gives right answers in environments that hold nothing else."""
    (wheel,) = DIST.glob("*.whl")
    pythons = [python for python in PYTHONS if runs(python)]
    print("Of", *PYTHONS, "this machine has", *pythons)
    for python in pythons:
        for name, constraints in (("newest", ""), ("lowest", lowest())):
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                (place / "lowest.txt").write_text(constraints, encoding="utf-8")
                print(f"-- {python}, {name} dependencies")
                call(python, "-m", "venv", place / "env")
                own = place / "env" / "bin" / "python"
                call(own, "-m", "pip", "install", "-qq", "-c", place / "lowest.txt", wheel)
                call(own, "-m", "pip", "check")
                call(own, "-m", "tractable", "--version", folder=place)
                call(own, "-c", ANSWER, folder=place)
                call(own, "-m", "tractable", "compare", "--example", "beta-bernoulli", "--methods", "map,nuts", "--out",
                     place / "run", folder=place)  # fmt: skip


def laws() -> None:
    call("make", "laws")


STEPS = {step.__name__: step for step in (version, site, links, build, install, laws)}

if __name__ == "__main__":
    if unknown := [name for name in sys.argv[1:] if name not in STEPS]:
        sys.exit(f"There is no step {unknown[0]!r}; the steps are {', '.join(STEPS)}.")
    for name in sys.argv[1:] or STEPS:
        STEPS[name]()
