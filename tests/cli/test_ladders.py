"""Ladders from the command line: what is fitted, what is left, codes of new rows, and how it fails."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import fault, run, task_of
from sklearn.datasets import load_digits
from typer.testing import Result

import tractable as tr
from tractable.cli import fit, models
from tractable.cli.folders import read_run
from tractable.cli.ladders import code_columns
from tractable.core.errors import CheckpointError
from tractable.ladders.encoding import Encoded
from tractable.posterior.saving import Saver
from tractable.tables import support
from tractable.tables.columns import Column
from tractable.tables.encoder import Encoder
from tractable.tables.files import Source
from tractable.tables.fit import split_rows

pytestmark = pytest.mark.laws

LEFT = {"run.json", "settings.toml", "summary.csv", "posterior.json", "belief", "network", "report.html"}
ROWS = 120
VAE = ["--model", "vae", "--latent", "2", "--hidden", "10", "--set", "epochs=3"]
TABLE = ["--model", "vae", "--latent", "1", "--hidden", "4", "--set", "epochs=2", "--held-out", "0"]
BELIEF = ["--model", "belief-network"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Digits in arrays, a table, and files that cannot be used."""
    folder = tmp_path_factory.mktemp("ladders")
    images = load_digits().images[:ROWS]
    np.savez(
        folder / "digits.npz", x_train=images.astype(np.uint8), x_test=images[:7].astype(np.uint8),
        labels=np.array(["a", "b"]),
    )  # fmt: skip
    np.savez(folder / "several.npz", a=images, b=images)
    np.savez_compressed(folder / "one.npz", anything=images / 16)
    np.savez(folder / "objects.npz", x=np.array([{}, None], dtype=object))
    np.savez(folder / "text.npz", x=np.array(["one", "two"]))
    np.savez(folder / "row.npz", x=images[:1])
    np.savez(folder / "narrow.npz", x=images[:, :7, :7])
    np.savez(folder / "signed.npz", x=images - 8)
    np.save(folder / "plain.npy", images / 16)
    (folder / "damaged.npz").write_bytes(b"PK\x03\x04 and nothing more")
    holes = images / 16
    holes[3, 2, 5] = np.nan
    np.savez(folder / "holes.npz", x=holes)
    generator = np.random.default_rng(0)
    z = generator.normal(size=(80, 1))
    x = z * [1.0, 3.0, -20.0] + [5.0, 0.0, 100.0] + 0.3 * generator.normal(size=(80, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(name="x", same=7.0)
    frame.to_csv(folder / "table.csv", index=False)
    frame[["a", "name"]].to_csv(folder / "less.csv", index=False)
    frame[["name"]].to_csv(folder / "words.csv", index=False)
    frame[["same"]].to_csv(folder / "same.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def digits(folder) -> tuple[Path, Result]:
    """A run, and what it said."""
    out = folder / "digits"
    return out, run("fit", folder / "digits.npz", *VAE, "--seed", 3, "--out", out)


def test_what_is_said_and_left(digits):
    out, result = digits
    assert result.exit_code in (0, 3), result.output
    assert {path.name for path in out.iterdir()} >= LEFT
    for note in (
        "Note: Rows are read from the array 'x_train' of digits.npz, which has 'x_train', 'x_test', 'labels'.",
        "Note: Whole numbers from 0 to 16 are divided by 16.",
        "Note: Rows hold numbers from 0 to 1, and are taken as continuous-bernoulli; choose another family with",
        "autoencoding on digits (96 rows of 64 numbers, continuous-bernoulli), into",
    ):
        assert note in result.stderr, note
    for word in ("ELBO", "held-out bound", "for 24 held-out rows", "held-out gap", ", judged ", "Layers"):
        assert word in result.stdout, word
    about, posterior = read_run(out), json.loads((out / "posterior.json").read_text())
    assert about["seed"] == 3 and about["method"]["batch_size"] == 96 and about["problem"]["shape"] == [8, 8]
    assert posterior["checks"][-1]["name"] == "held-out gap"
    assert result.exit_code == (3 if posterior["verdict"] == "reject" else 0)
    page = (out / "report.html").read_text()
    for head in ("Layers", "Drawn from the model", "Reconstructions", "Codes", "Settings"):
        assert f"<h2>{head}</h2>" in page, head
    assert "held-out gap" in page and "data:image/png" in page

    again = run("report", out)
    assert again.exit_code == 0
    for word in ("held-out gap", "report.html"):
        assert word in again.stdout, word


def test_codes_are_those_of_the_posterior(digits, folder, tmp_path):
    out, _ = digits
    images = load_digits().images[:ROWS]
    result = run("predict", out, folder / "digits.npz", "--out", tmp_path / "deep" / "codes.csv")
    assert result.exit_code == 0, result.output
    assert "7 rows of codes and bounds in" in result.stdout and "Rows are read from the array 'x_test'" in result.stderr
    found = pd.read_csv(tmp_path / "deep" / "codes.csv")
    assert list(found) == ["z0_mean", "z0_sd", "z1_mean", "z1_sd", "elbo", "log_evidence"]

    # A user's own load of it.
    model = tr.models.latent_gaussian(64, 2, hidden=(10,), family="continuous bernoulli")
    posterior = tr.load(out, model)
    x = images[:7].reshape(7, 64) / 16
    codes = posterior.encode(x)
    np.testing.assert_allclose(found[["z0_mean", "z1_mean"]], codes.mean[0], rtol=1e-8)
    np.testing.assert_allclose(found[["z0_sd", "z1_sd"]], codes.sd[0], rtol=1e-8)
    evidence = posterior.log_evidence(x, samples=100)
    np.testing.assert_allclose(found["log_evidence"], evidence.log_evidence, rtol=1e-8)
    np.testing.assert_allclose(found["elbo"], evidence.elbo, rtol=1e-8)

    # And of the bounds that were said, by rows that were kept back.
    kept = split_rows(pd.DataFrame(index=range(ROWS)), "", False, 0.2)[0].index
    rest = np.setdiff1d(np.arange(ROWS), kept)
    told = json.loads((out / "posterior.json").read_text())["found"]["held-out bound"]
    again = posterior.log_evidence(images[rest].reshape(-1, 64) / 16, samples=100).mean
    np.testing.assert_allclose(told, again, rtol=1e-8)


def test_what_predict_refuses(digits, folder, tmp_path):
    out, _ = digits
    to = ["--out", tmp_path / "codes.csv"]
    assert "Each row has 49 numbers; expected 64, as in the fitted rows." in fault(
        "predict", out, folder / "narrow.npz", *to
    )
    gaps = fault("predict", out, folder / "holes.npz", *to)
    assert "the first in row 3, at 2, 5 (the top row is 0)" in gaps and "posterior.impute(x)" in gaps
    assert "row 0, at 0, 0, is -0.5: choose" in fault("predict", out, folder / "signed.npz", *to)
    assert "--calibrate is for --model glm, mlp; got --model vae" in fault(
        "predict", out, folder / "one.npz", "--calibrate", folder / "one.npz", *to
    )
    assert "no array 'b'; it has 'anything'" in fault("predict", out, folder / "one.npz", "--array", "b", *to)
    assert "Each row has 4 numbers" in fault("predict", out, folder / "table.csv", *to)
    assert not (tmp_path / "codes.csv").exists()


def test_a_run_that_was_stopped_is_gone_on_with(digits, folder, tmp_path, monkeypatch):
    out, stopped = digits[0], tmp_path / "stopped"
    save = Saver.save

    def killed(self: Saver, run_state: Any, drawn: Any = None) -> None:
        save(self, run_state, drawn)
        if run_state:
            raise CheckpointError("Killed.")

    words = ["fit", folder / "digits.npz", *VAE, "--seed", 3, "--out", stopped]
    monkeypatch.setattr(Saver, "save", killed)
    assert "Killed." in fault(*words)
    monkeypatch.undo()
    assert not (stopped / "posterior.json").exists()
    assert "has no result yet" in fault("report", stopped)
    assert "already holds a run. Continue it by --resume" in fault(*words)
    assert "continues the run with its own options: leave --latent out" in fault(
        "fit", "--resume", "--out", stopped, "--latent", "3"
    )
    assert "holds a run of --model vae; got --model belief-network" in fault(
        "fit", "--resume", "--out", stopped, *BELIEF
    )

    result = run("fit", "--resume", "--out", stopped, "--quiet")
    assert (result.exit_code, result.stdout.strip()) == (digits[1].exit_code, str(stopped)), result.output
    assert (stopped / "summary.csv").read_bytes() == (out / "summary.csv").read_bytes()
    for path in (out, stopped):
        assert run("predict", path, folder / "digits.npz", "--out", tmp_path / f"{path.name}.csv").exit_code == 0
    assert (tmp_path / "digits.csv").read_bytes() == (tmp_path / "stopped.csv").read_bytes()


@pytest.fixture
def without_page(monkeypatch) -> None:
    """Pages cost compilations, and one is looked at."""
    monkeypatch.setattr(fit, "write", lambda *_, **__: None)


def test_a_table_is_told_in_its_own_units(folder, tmp_path, without_page):
    out, to = tmp_path / "table", tmp_path / "codes.csv"
    result = run("fit", folder / "table.csv", *TABLE, "--out", out)
    assert result.exit_code in (0, 3), result.output
    assert "Left out, as they hold no numbers: 'name'." in result.stderr
    assert "Columns left out, as they are constant in the rows to fit: 'same'." in result.stderr
    assert "taken as normal" in result.stderr
    assert "in the file's units" in result.stdout
    assert run("predict", out, folder / "table.csv", "--out", to).exit_code == 0
    found = pd.read_csv(to)

    frame = pd.read_csv(folder / "table.csv")[["a", "b", "c"]]
    x = ((frame - frame.mean()) / frame.std(ddof=0)).to_numpy()
    posterior = tr.load(out, tr.models.latent_gaussian(3, 1, hidden=4, family="normal", noise="shared"))
    evidence = posterior.log_evidence(x, samples=100)
    units = np.log(frame.std(ddof=0)).sum()  # p(x) dx = p(z) dz, z standardised
    np.testing.assert_allclose(found["log_evidence"], evidence.log_evidence - units, rtol=1e-6)
    np.testing.assert_allclose(found["elbo"], evidence.elbo - units, rtol=1e-6)
    np.testing.assert_allclose(found["z0_mean"], posterior.encode(x).mean[0][:, 0], rtol=1e-6)
    lacks = fault("predict", out, folder / "less.csv", "--out", tmp_path / "x.csv")
    assert "lacks 'b', 'c'; expected the columns 'a', 'b', 'c'" in lacks


def test_a_belief_network_of_grey_pixels(folder, tmp_path, monkeypatch, without_page):
    monkeypatch.chdir(tmp_path)
    words = [*BELIEF, "--latent", "14", "--method", "wake-sleep", "--set", "epochs=2", "--held-out", "0"]
    result = run("fit", folder / "one.npz", *words)
    assert result.exit_code in (0, 3), result.output
    assert "from which binary ones are drawn at every use" in result.stderr
    assert "held-out" not in result.stdout
    out = tmp_path / "runs" / "one-belief-network"
    assert read_run(out)["method"]["method"] == "wake-sleep"
    assert run("predict", out, folder / "one.npz", "--out", "codes.csv").exit_code == 0
    found = pd.read_csv("codes.csv")
    assert list(found) == [*(f"h1_{i}_{what}" for i in range(14) for what in ("mean", "sd")), "elbo", "log_evidence"]
    model = tr.models.sigmoid_belief_network(64, (14,), redraw=True)
    codes = tr.load(out, model).encode(np.load(folder / "one.npz")["anything"].reshape(ROWS, 64))
    np.testing.assert_allclose(found.filter(like="_mean"), codes.mean[0], rtol=1e-8)
    assert found.filter(like="_mean").to_numpy().min() >= 0 and found.filter(like="_mean").to_numpy().max() <= 1


LATENT = ["--latent", "2"]
V = ["--model", "vae"]


@pytest.mark.test
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits.npz", *V], "--model vae expects --latent, such as 20"),
        (["digits.npz", *BELIEF], "--model belief-network expects --latent, such as 20, or 200,200"),
        (["digits.npz", *V, "--latent", "two"], "--latent expects whole numbers from 1 to 100,000 with commas"),
        (["digits.npz", *V, "--latent", "0"], "such as 20, or 200,200 for several layers; got '0'"),
        (["digits.npz", *V, *LATENT, "--hidden", "a"], "--hidden expects whole numbers from 1"),
        ([*V, *LATENT], "--model vae expects a file: tractable fit FILE --model vae"),
        (["none.npz", *V, *LATENT], "none.npz does not exist"),
        (["damaged.npz", *V, *LATENT], "damaged.npz is not an .npz file, or is damaged"),
        (["digits.npz", *V, *LATENT, "--array", "y"], "no array 'y'; it has 'x_train', 'x_test', 'labels'"),
        (["digits.npz", *V, *LATENT, "--array", "labels"], "digits.npz: labels holds <U1; expected numbers"),
        (["several.npz", *V, *LATENT], "has the arrays 'a', 'b': choose one with --array NAME"),
        (["objects.npz", *V, *LATENT], "objects.npz holds Python objects, which are not read"),
        (["text.npz", *V, *LATENT], "text.npz: x holds <U3; expected numbers"),
        (["holes.npz", *V, *LATENT], "Numbers are missing or not finite in 1 of 120 rows, the first in"),
        (["holes.npz", *V, *LATENT], "row 3, at 2, 5 (the top row is 0). Use --missing drop"),
        (["holes.npz", *V, *LATENT], "posterior.impute(x) in Python fills in the missing numbers of new rows"),
        (
            ["holes.npz", *V, *LATENT, "--missing", "impute"],
            "--missing of rows of numbers is raise, drop; got 'impute'",
        ),
        (["row.npz", *V, *LATENT], "needs two rows or more to learn from; got 1"),
        (["one.npz", *V, *LATENT, "--family", "bernoulli"], "is 0.3125: use --family continuous-ber"),
        (["signed.npz", *BELIEF, *LATENT], "bernoulli expects 0 and 1; row 0, at 0, 0, is -8: choose another --family"),
        (
            ["signed.npz", *V, *LATENT, "--family", "poisson"],
            "poisson expects counts: 0, 1, 2, …; row 0, at 0, 0, is -8",
        ),
        (["one.npz", *V, *LATENT, "--family", "categorical"], "categorical expects whole numbers from 0 to 255; row 0"),
        (["one.npz", *V, *LATENT, "--family", "gamma"], "--family of a vae's rows is bernoulli, continuous-bernoulli"),
        (
            ["one.npz", *BELIEF, *LATENT, "--family", "normal"],
            "--family of a belief-network's rows is bernoulli; got 'normal'",
        ),
        (["one.npz", *V, *LATENT, "--family", "normal", "--redraw"], "--redraw draws binary pixels"),
        (["one.npz", *V, *LATENT, "--held-out", "1"], "--held-out expects a share of the rows in [0, 1); got 1"),
        (["one.npz", *V, *LATENT, "--target", "a"], "--target is for --model glm, mlp; got --model vae"),
        (["one.npz", *V, *LATENT, "--prior", "scaled"], "--prior is for --model glm, mlp; got"),
        (["one.npz", *V, *LATENT, "--shifted", "one.npz"], "--shifted is for --model glm, mlp; got"),
        ([*V, *LATENT, "--example", "beta-bernoulli"], "--example is for --model glm; got"),
        (
            ["one.npz", *V, *LATENT, "--components", "3"],
            "--components is for --model gaussian-mixture; got --model vae",
        ),
        (
            ["one.npz", *BELIEF, *LATENT, "--hidden", "3"],
            "--hidden is for --model mlp, vae; got --model belief-network",
        ),
        (["one.npz", *V, *LATENT, "--method", "nuts"], "--model vae expects --method autoencoding or importance"),
        (
            ["one.npz", *BELIEF, "--latent", "14", "--method", "autoencoding"],
            "differentiates draws of h, and layer 1 is Bern",
        ),
        (["one.npz", *V, *LATENT, "--set", "draws=5"], "AutoEncoding has no 'draws'"),
        (["one.npz", *V, *LATENT, "--hidden", "10", "--set", "batch_size=97"], "97"),
        (["one.npz", *V, *LATENT, "--resume"], "--resume expects --out"),
        (["table.csv", *V, *LATENT, "--array", "x"], "--array is for an .npz file; table.csv is a table"),
        (["plain.npy", *V, *LATENT, "--array", "x"], "plain.npy holds one array without a name"),
        (["words.csv", *V, *LATENT], "words.csv has no column of numbers; got 'name'"),
        (["same.csv", *V, *LATENT], "Every column of numbers is constant in the rows to fit"),
        (["table.csv", "--target", "a", *LATENT], "--latent is for --model vae, belief-network; got --model glm"),
        (["table.csv", "--target", "a", "--array", "x"], "--array is for --model vae, belief-network"),
        (["table.csv", "--model", "gaussian-mixture", "--redraw"], "--redraw is for --model vae, belief-network"),
        (["table.csv", "--target", "a", "--model", "vea"], "Did you mean 'vae'?"),
    ],
)
def test_faults_are_sentences_and_leave_nothing(words, sentence, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path)
    assert sentence in fault("fit", *words)
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_rows_with_gaps_can_be_left_out(folder):
    given = {"table": folder / "holes.npz", "model": "vae", "latent": "2", "missing": "drop", "held_out": 0.0}
    task = task_of(given)
    assert task.data.size == ROWS - 1 and task.held_out is None
    again = task_of(json.loads(json.dumps(task.spec)))
    assert again.spec == task.spec and again.model is task.model
    assert again.encoder == task.encoder


@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_columns_are_standardised_by_the_rows_fitted(folder):
    task = task_of({"table": folder / "table.csv", "model": "vae", "latent": "1", "held_out": 0.25})
    assert task.model.layers and task.held_out is not None and task.held_out.size == 20
    np.testing.assert_allclose(task.data.y.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(task.data.y.std(0), 1, rtol=1e-12)
    kept, rest = split_rows(pd.read_csv(folder / "table.csv")[["a", "b", "c"]], "", False, 0.25)
    np.testing.assert_allclose(task.held_out.y, (rest - kept.mean()) / kept.std(ddof=0), rtol=1e-10)


# Laws, each of an implementation: scores of at most 1 where it holds.

BEST, OTHER = 0.1, 100.0


def families_law(implementation) -> dict[str, float]:
    """What numbers are taken for, where nothing is said."""
    byte, real = np.uint8, np.float64
    cases = {
        "two": (np.array([[0, 1], [1, 1]], byte), False, ("bernoulli", False, 1.0)),
        "black and white": (np.array([[0, 255], [255, 0]], byte), False, ("bernoulli", False, 255.0)),
        "grey": (np.array([[0, 254], [3, 9]], byte), False, ("continuous-bernoulli", False, 255.0)),
        "few levels": (np.array([[0.0, 16.0], [3.0, 9.0]], real), False, ("continuous-bernoulli", False, 16.0)),
        "shares": (np.array([[0.0, 0.5], [1.0, 0.2]], real), False, ("continuous-bernoulli", False, 1.0)),
        "reals": (np.array([[0.5, 3.0], [1.0, 0.2]], real), False, ("normal", False, 1.0)),
        "signed": (np.array([[-3, 3], [1, 0]]), False, ("normal", False, 1.0)),
        "many levels": (np.array([[0, 256], [1, 0]]), False, ("normal", False, 1.0)),
        "grey causes": (np.array([[0.0, 0.5], [1.0, 0.2]], real), True, ("bernoulli", True, 1.0)),
        "binary causes": (np.array([[True, False], [True, True]]), True, ("bernoulli", False, 1.0)),
    }
    out = {
        name: BEST if implementation(Source(x, (2,), "x", None), None, False, binary) == wanted else OTHER
        for name, (x, binary, wanted) in cases.items()
    }
    table = Source(np.array([[1.0, 90.0], [2.0, 50.0]]), (2,), None, ["a", "b"])  # ages are no pixels
    out["table"] = BEST if implementation(table, None, False, False) == ("normal", False, 1.0) else OTHER
    counts = Source(np.array([[1.0, 90.0], [2.0, 50.0]]), (2,), "x", None)
    out["counts"] = BEST if implementation(counts, "poisson", False, False) == ("poisson", False, 1.0) else OTHER
    return out


@pytest.mark.quick
@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_what_rows_are_taken_for():
    told = support.likely_family
    assert max(families_law(told).values()) <= 1, families_law(told)
    wrong = {
        "black and white": lambda s, *rest: (told(s, *rest)[0], told(s, *rest)[1], 1.0),
        "few levels": lambda s, *rest: (*told(s, *rest)[:2], 255.0 if told(s, *rest)[2] != 1 else 1.0),
        "table": lambda s, *rest: told(s._replace(names=None), *rest),
        "grey causes": lambda s, asked, redraw, binary: told(s, asked, redraw, False),
        "counts": lambda s, asked, *rest: told(s, None, *rest),
    }
    for name, implementation in wrong.items():
        assert families_law(implementation)[name] > 1, name


@pytest.mark.test
def test_models_of_several_layers_and_of_levels(monkeypatch):
    called: dict[str, tuple] = {}
    small = tr.models.sigmoid_belief_network(3, (1,))
    for name in ("hierarchical", "latent_gaussian"):

        def made(*args, name=name, **settings):
            called[name] = args, settings
            return small

        monkeypatch.setattr(tr.models, name, made)
    model_of = models.KINDS["vae"].model
    nine = Encoder(tuple(Column(str(i), "number") for i in range(9)))
    spec = {"latent": [2], "hidden": [5], "redraw": False, "levels": 0, "family": "normal"}
    model_of(spec | {"latent": [3, 2]}, nine)
    assert called["hierarchical"][0] == (9, (3, 2))
    settings = {"hidden": [(5,), (5,)], "family": "normal", "noise": "shared", "redraw": False}
    assert called["hierarchical"][1] == settings
    model_of(spec | {"family": "categorical", "levels": 4}, nine)
    assert called["latent_gaussian"][1]["family"] is tr.models.categorical(4)
    model_of(spec | {"family": "bernoulli", "redraw": True}, nine)
    assert called["latent_gaussian"][1]["redraw"] is True and called["latent_gaussian"][1]["noise"] is None


@pytest.mark.quick
def test_columns_of_several_layers():
    codes = Encoded(
        (np.zeros((4, 3)), np.ones((4, 2))), (np.full((4, 3), 2.0), np.full((4, 2), 3.0)), None, (0, 100)
    )  # fmt: skip
    columns = code_columns(("z", "z{}_"), codes)
    assert list(columns)[:2] == ["z1_0_mean", "z1_0_sd"] and list(columns)[-2:] == ["z2_1_mean", "z2_1_sd"]
    assert columns["z2_1_mean"][0] == 1 and columns["z2_1_sd"][0] == 3
    assert next(iter(code_columns(("h{}_", "h{}_"), codes))) == "h1_0_mean"
    many = Encoded((np.zeros((4, 40)), np.ones((4, 12))), (np.zeros((4, 40)), np.ones((4, 12))), None, (0, 100))
    assert len(code_columns(("h{}_", "h{}_"), many)) == 80  # the first layer's


@pytest.mark.quick
def test_help_says_what_is_usual():
    assert "[default: 1..10]" in run("fit", "--help").stdout


@pytest.mark.quick
def test_pictures():
    assert support.picture((8, 6)) == (8, 6)
    assert support.picture((8, 6, 3)) == (8, 18) and support.picture((3, 8, 6)) == (24, 6)
    assert support.picture((64,)) is None and support.picture(()) is None
