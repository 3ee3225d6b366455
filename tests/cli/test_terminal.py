"""What comes from anybody, a header, a note, a folder, cannot speak to the terminal."""

import re
import runpy
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run

from tractable.cli import main
from tractable.cli.terminal import Terminal
from tractable.core import sealed
from tractable.core.errors import CheckpointError, DataError, RunError, TractableWarning
from tractable.core.shown import CONTROL, printable
from tractable.core.words import tell
from tractable.pages.sections import Section, Table
from tractable.pages.terminal import to_terminal

pytestmark = pytest.mark.quick

HOSTILE = {
    "clears the screen": "\x1b[2J",
    "sets the title": "\x1b]0;owned\x07",
    "one byte of it": "\x9b2J",
    "goes back": "price\b\b\b\b\b",
    "begins the line anew": "reject\rtrust ",
    "rings": "\a",
    "deletes": "\x7f",
    "turns the direction round": "\u202etsurt\u202c",
    "isolates": "\u2066trust\u2069",
    "begins a line that is none": "\u2028trust",
    "moves down": "\v\f",
    "ends nothing": "\x00",
}


def assert_harmless(text: str) -> None:
    assert not CONTROL.search(text), re.escape(text)


@pytest.mark.parametrize("case", HOSTILE)
def test_control_characters_are_shown(case, capsys):
    text = f"a{HOSTILE[case]}b"
    assert_harmless(printable(text))
    assert (
        printable(text).encode().decode("unicode_escape") != "ab" and printable("Zürich\n\t½ → θ") == "Zürich\n\t½ → θ"
    )
    for kind in (DataError, RunError, CheckpointError):
        assert_harmless(str(kind(text)))
    with pytest.warns(TractableWarning) as caught:
        tell(text)
    assert_harmless(str(caught[0].message))
    for stderr in (False, True):
        Terminal(stderr=stderr).print(text)
        Terminal(stderr=stderr).print(to_terminal(Section(text, [Table([text, "verdict"], [[text, text]])])))
    shown = capsys.readouterr()
    assert_harmless(shown.out + shown.err)
    assert (
        shown.out == shown.err and shown.out.count(printable(text)) == 5
    )  # two lines, one of them a title, a head and two cells


def test_text_is_no_markup(capsys):
    Terminal().print("[red]x[/red] :smile: [bold")
    assert capsys.readouterr().out == "[red]x[/red] :smile: [bold\n"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> tuple[Path, str]:
    """The run of a table whose headers and levels are hostile, and what the command printed."""
    folder, rng = tmp_path_factory.mktemp("hostile"), np.random.default_rng(0)
    x, escape = rng.normal(size=60), HOSTILE["clears the screen"]
    levels = rng.choice([f"red{escape}", f"blue{HOSTILE['sets the title']}"], 60)
    frame = pd.DataFrame({f"dose{escape}": x, "colour": levels, f"y{escape}": 2 * x + rng.normal(size=60)})
    frame[f"same{escape}"] = 1.0
    frame.to_csv(folder / "table.csv", index=False)
    words = ["fit", folder / "table.csv", "--target", f"y{escape}", "--method", "laplace", "--out", folder / "R"]
    found = run(*words)
    assert found.exit_code in (0, 3), found.output
    return folder, found.stdout + found.stderr


@pytest.mark.test
def test_headers_and_levels_of_a_table(fitted):
    folder, printed = fitted
    assert_harmless(printed)
    assert r"dose\x1b[2J" in printed and r"same\x1b[2J" in printed
    found = run("report", folder / "R")
    assert_harmless(found.stdout + found.stderr)
    for words in (["predict", folder / "R", folder / "nothing.csv"], ["fit", folder / "table.csv", "--target", "z"]):
        found = run(*words)
        assert found.exit_code == 2
        assert_harmless(found.output)


@pytest.mark.test
@pytest.mark.parametrize("case", HOSTILE)
def test_forged_folders(fitted, tmp_path, case):
    """Notes of a run, names and sentences of its checks, its title: sealed as they should be, by somebody else."""
    text = HOSTILE[case]
    shutil.copytree(fitted[0] / "R", tmp_path / "R")
    about, beside = sealed.read_sealed(tmp_path / "R" / "posterior.json")
    check = {"name": f"R-hat{text}", "value": 1.0, "verdict": "trust", "sentence": f"fine{text}"}
    sealed.write_sealed(
        tmp_path / "R" / "posterior.json",
        about | {"checks": [check], "title": f"NUTS{text}", "seconds": {text: 1.0}},
        beside or (),
    )
    run_, _ = sealed.read_sealed(tmp_path / "R" / "run.json")
    run_["problem"]["notes"] = [f"a note{text}"]
    sealed.write_sealed(tmp_path / "R" / "run.json", run_)
    found = run("report", tmp_path / "R")
    assert found.exit_code in (0, 3), found.output
    assert_harmless(found.stdout + found.stderr)
    assert printable(f"a note{text}") in found.stderr and printable(f"R-hat{text}") in found.stdout


def test_the_version_and_an_output_whose_reader_has_stopped(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tractable", "--version"])
    for start in (main, lambda: runpy.run_module("tractable", run_name="__main__")):
        with pytest.raises(SystemExit) as ended:
            start()
        assert not ended.value.code and capsys.readouterr().out == f"tractable {version('tractable')}\n"
    # Rich and click end with 1 where the pipe was closed.
    monkeypatch.setattr("tractable.cli.app.app", lambda: sys.exit(1))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
