"""No command writes over what is not its own: inputs, runs, and what somebody keeps in a folder."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import fault, run

import tractable as tr
from tractable.cli.folders import may_replace, may_write
from tractable.core import sealed
from tractable.core.errors import CheckpointError

pytestmark = pytest.mark.test


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """A folder with a table, rows to predict, and the run of a fit, which keeps no draws."""
    folder = tmp_path_factory.mktemp("work")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=40)}).assign(y=lambda t: 2 * t.x + rng.normal(size=40))
    frame.to_csv(folder / "table.csv", index=False)
    frame[["x"]].to_csv(folder / "new.csv", index=False)
    frame[["x"]].to_parquet(folder / "new.parquet", index=False)
    done = run("fit", folder / "table.csv", "--target", "y", "--method", "map", "--out", folder / "R", "--quiet")
    assert done.exit_code in (0, 3)
    return folder


@pytest.mark.parametrize(
    ("new", "out", "sentence"),
    [
        ("new.csv", "new.csv", "is the file that is read"),
        ("new.parquet", "new.parquet", "is the file that is read"),
        ("new.csv", "link.csv", "is the file that is read"),
        ("new.csv", "table.csv", "is the file that is read"),
        ("new.csv", "R/summary.csv", "is not an earlier result of this command"),
        ("new.csv", "R/belief/p.csv", "would become a part of the run"),
        ("new.csv", "R/new/p.csv", "would become a part of the run"),
        ("new.csv", "notes.csv", "is not an earlier result of this command"),
        ("new.csv", "empty.csv", "is not an earlier result of this command"),
        ("new.csv", "broken.parquet", "is not an earlier result of this command"),
    ],
)
def test_predictions_replace_only_predictions(fitted, new, out, sentence):
    (fitted / "notes.csv").write_text("name,mean,sd\na,1,2\n")
    (fitted / "empty.csv").write_text("")
    (fitted / "broken.parquet").write_text("no table")
    if not (fitted / "link.csv").is_symlink():
        (fitted / "link.csv").symlink_to(fitted / "new.csv")
    before = tree(fitted)
    assert sentence in " ".join(fault("predict", fitted / "R", fitted / new, "--out", fitted / out).split())
    assert tree(fitted) == before


def test_predictions_may_be_made_again(fitted, tmp_path):
    for name in (tmp_path / "p.csv", tmp_path / "p.parquet", fitted / "R" / "p.csv"):
        widths = []
        for level in (0.5, 0.9):
            assert run("predict", fitted / "R", fitted / "new.csv", "--out", name, "--level", level).exit_code == 0
            found = (pd.read_parquet if name.suffix == ".parquet" else pd.read_csv)(name)
            widths.append(found["upper"] - found["lower"])
        assert np.all(widths[1] > widths[0])


EXAMPLE = ["--example", "beta-bernoulli"]
WORDS = {
    "fit": ["fit", *EXAMPLE, "--method", "map"],
    "compare": ["compare", *EXAMPLE, "--methods", "map"],
    "calibrate": ["calibrate", *EXAMPLE, "--method", "rejection", "--runs", "20"],
    "examples": ["examples", "--failures"],
}


@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize("kept", ["report.html", "summary.csv", "settings.toml", "comparison.csv", "chapter/one.tex"])
def test_somebody_s_folder_is_left_alone(command, kept, tmp_path):
    thesis = tmp_path / "thesis"
    (thesis / kept).parent.mkdir(parents=True)
    (thesis / kept).write_text("mine")
    before = tree(tmp_path)
    said = " ".join(fault(*WORDS[command], "--out", thesis).split())
    assert "which no run wrote. Choose a new or an empty folder" in said and tree(tmp_path) == before


@pytest.mark.parametrize("command", WORDS)
def test_a_finished_fit_is_left_alone(command, fitted):
    before = tree(fitted / "R")
    said = " ".join(fault(*WORDS[command], "--out", fitted / "R").split())
    assert ("already holds a run" if command == "fit" else "holds a run of tractable fit") in said
    assert tree(fitted / "R") == before


@pytest.mark.quick
def test_who_wrote_a_folder(tmp_path):
    for writer, name in (("compare", "C"), ("fit", "F")):
        (tmp_path / name).mkdir()
        sealed.write_sealed(
            tmp_path / name / "run.json", {"problem": {}} | ({"methods": []} if writer == "compare" else {})
        )
    (tmp_path / "K" / "calibration").mkdir(parents=True)
    (tmp_path / "empty" / ".git").mkdir(parents=True)
    allowed = {("compare", "C"), ("fit", "F"), ("calibrate", "K")}
    for command in ("fit", "compare", "calibrate", "examples"):
        may_write(tmp_path / "empty", command)
        may_write(tmp_path / "new", command)
        for name in "CFK":
            if (command, name) in allowed:
                may_write(tmp_path / name, command)
            else:
                with pytest.raises(CheckpointError, match="holds a run of tractable"):
                    may_write(tmp_path / name, command)
    may_replace(tmp_path / "new.csv", (None,), ["a"])


@pytest.mark.parametrize("name", ["settings.toml", "summary.csv"])
def test_somebody_s_files_outlive_python_s_runs_too(name, tmp_path):
    model = tr.Model.from_log_density(lambda z: -z @ z / 2, np.zeros(2))
    (tmp_path / name).write_text("mine")
    with pytest.raises(CheckpointError, match="no run in this folder wrote it"):
        tr.infer(model, None, tr.MAP(starts=1), verify=None, progress=False).save(tmp_path)
    with pytest.raises(CheckpointError, match="no run in this folder wrote it"):
        tr.infer(model, None, tr.NUTS(draws=20, warmup=20, chains=2), checkpoint=tmp_path, verify=None, progress=False)
    assert tree(tmp_path) == {name: b"mine"}
