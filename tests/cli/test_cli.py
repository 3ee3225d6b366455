"""The commands as a user types them: what they leave, what they print, and how they fail."""

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import fault, run, task_of

from tractable import HMC, NUTS, load
from tractable.cli.folders import read_run, write_run
from tractable.cli.models import model_of
from tractable.cli.settings import settings_of, settings_of_each
from tractable.core.errors import SettingsError
from tractable.core.shared import recipe
from tractable.gallery.models import EXAMPLES
from tractable.methods import from_settings
from tractable.tables.columns import contrasts
from tractable.tables.encoder import Encoder
from tractable.tables.fit import split_rows
from tractable.tables.models import data_of

pytestmark = pytest.mark.laws

FEW = ["--set", "draws=64", "--set", "warmup=64", "--set", "chains=2"]
LEFT = {"run.json", "settings.toml", "summary.csv", "posterior.json", "report.html"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """A folder with a table for each kind of target, and rows to predict."""
    folder = tmp_path_factory.mktemp("tables")
    generator = np.random.default_rng(0)
    x, colour = generator.normal(10, 3, 80), generator.choice(["blue", "green", "red"], 80)
    price = 100 + 2 * x + 5 * (colour == "red") + generator.normal(0, 1.5, 80)
    bought = np.where(generator.random(80) < 1 / (1 + np.exp(10 - x)), "yes", "no")
    frame = pd.DataFrame({"x": x, "colour": colour})
    frame.assign(price=price).to_csv(folder / "prices.csv", index=False)
    frame.assign(bought=bought).to_parquet(folder / "sales.parquet", index=False)
    frame.head(5).to_csv(folder / "new.csv", index=False)
    holes = frame.assign(price=price).head(50)
    holes.loc[[1, 7, 20], "x"], holes.loc[[2, 30], "colour"] = np.nan, None
    holes.to_csv(folder / "holes.csv", index=False)
    holes.head(4).drop(columns="price").to_csv(folder / "new-holes.csv", index=False)
    frame.assign(x=frame.x + 40).to_csv(folder / "far.csv", index=False)
    return folder


@pytest.mark.quick
def test_examples_lists_every_one():
    result = run("examples")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in EXAMPLES)


def test_fit_leaves_every_file_and_a_posterior(tmp_path):
    out = tmp_path / "coin"
    result = run("fit", "--example", "beta-bernoulli", "--method", "nuts", *FEW, "--seed", 3, "--out", out)
    assert result.exit_code in (0, 3), result.output
    assert {path.name for path in out.iterdir()} >= LEFT | {"draws.zarr"}
    verdict = json.loads((out / "posterior.json").read_text())["verdict"]
    assert result.exit_code == (3 if verdict == "reject" else 0)
    assert verdict in result.stdout and "theta" in result.stdout and "R-hat" in result.stdout
    assert result.stderr.strip().count("\n") == 0  # one line where there is no terminal

    problem = task_of(read_run(out)["problem"])
    posterior = load(out, problem.model, problem.data)
    assert posterior.method == NUTS(draws=64, warmup=64, chains=2)
    assert posterior.seed == 3
    mean, sd = EXAMPLES["beta-bernoulli"].exact()["theta"]
    assert abs(posterior.mean()["theta"] - mean) < 6 * sd / np.sqrt(posterior.diagnosed.bulk[0])

    again = run("report", out)
    assert again.exit_code == 0
    assert verdict in again.stdout and "report.html" in again.stdout

    assert "already holds a run" in fault("fit", "--example", "beta-bernoulli", "--out", out)
    assert "holds a run of the example 'beta-bernoulli'" in fault("predict", out, tmp_path / "new.csv")


def test_quiet_prints_the_folder_alone(tmp_path):
    out = tmp_path / "coin"
    result = run("fit", "--example", "beta-bernoulli", "--method", "map", "--out", out, "--quiet")
    assert (result.exit_code, result.stdout.strip(), result.stderr) == (0, str(out), "")
    assert {path.name for path in out.iterdir()} >= LEFT | {"belief"}


def test_names_of_folders_are_readable_and_new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("beta-bernoulli-map", "beta-bernoulli-map-2"):
        assert run("fit", "--example", "beta-bernoulli", "--method", "map", "--quiet").exit_code == 0
        assert (tmp_path / "runs" / name / "report.html").exists()


def test_regression_of_a_table(tables, tmp_path):
    out, predicted = tmp_path / "prices", tmp_path / "deep" / "predictions.csv"
    result = run("fit", tables / "prices.csv", "--target", "price", "--method", "nuts", *FEW, "--out", out)
    assert result.exit_code in (0, 3), result.output
    assert "RMSE" in result.stdout and "log predictive density" in result.stdout
    assert run("predict", out, tables / "new.csv", "--out", predicted).exit_code == 0
    found = pd.read_csv(predicted)
    assert list(found) == ["row", "mean", "sd", "aleatoric", "epistemic", "lower", "upper"]

    # The same from the draws and the table's own columns, without the encoder's code.
    encoder = Encoder.from_dict(read_run(out)["problem"]["encoder"])
    problem = task_of({"table": tables / "prices.csv", "target": "price"})
    assert problem.encoder == encoder
    draws = load(out, model_of(encoder, {})).draws
    weights, intercept, noise = (
        draws[name].reshape(-1, *draws[name].shape[2:]) for name in ("weights", "intercept", "noise")
    )
    new, kept = pd.read_csv(tables / "new.csv"), kept_rows(tables / "prices.csv", "price")
    levels = contrasts(3)
    shares = np.array([np.mean(kept.colour == c) for c in ("blue", "green", "red")])
    codes = [("blue", "green", "red").index(c) for c in new.colour]
    x = np.column_stack([(new.x - kept.x.mean()) / kept.x.std(ddof=0), levels[codes] - shares @ levels])
    centre, unit = kept.price.mean(), kept.price.std(ddof=0)
    means = (intercept + x @ weights.T) * unit + centre  # (row, draw)
    np.testing.assert_allclose(found["mean"], means.mean(1), rtol=1e-4)
    np.testing.assert_allclose(found["epistemic"], means.std(1), rtol=2e-2)
    np.testing.assert_allclose(found["aleatoric"], unit * np.sqrt(np.mean(noise**2)), rtol=1e-3)
    np.testing.assert_allclose(found["sd"], np.hypot(found["aleatoric"], found["epistemic"]), rtol=1e-6)
    width = (found["upper"] - found["lower"]) / (2 * 1.645 * found["sd"])
    assert ((width > 0.7) & (width < 1.3)).all()
    assert np.abs(found["mean"] - (100 + 2 * new.x + 5 * (new.colour == "red"))).max() < 2


def kept_rows(path: Path, target: str) -> pd.DataFrame:
    """The rows of a table that are fitted."""
    return split_rows(pd.read_csv(path), target, False, 0.2)[0]


def test_classification_of_a_table(tables, tmp_path):
    out, predicted = tmp_path / "sales", tmp_path / "predictions.parquet"
    result = run("fit", tables / "sales.parquet", "--target", "bought", "--method", "map", "--out", out)
    assert result.exit_code in (0, 3), result.output
    assert "accuracy" in result.stdout
    assert run("predict", out, tables / "new.csv", "--out", predicted).exit_code == 0
    found = pd.read_parquet(predicted)
    assert list(found) == ["row", "bought", "p(no)", "p(yes)", "epistemic"]

    encoder = Encoder.from_dict(read_run(out)["problem"]["encoder"])
    point = load(out, model_of(encoder, {})).mean()
    new, (column, colour) = pd.read_csv(tables / "new.csv"), encoder.columns
    levels, codes = contrasts(3), [colour.levels.index(c) for c in new.colour]
    x = np.column_stack([(new.x - column.mean) / column.sd, levels[codes] - np.array(colour.shares) @ levels])
    chance = 1 / (1 + np.exp(-(point["intercept"] + x @ point["weights"])))
    np.testing.assert_allclose(found["p(yes)"], chance, atol=1e-5)
    np.testing.assert_allclose(found["p(no)"], 1 - chance, atol=1e-5)
    assert (found["bought"] == np.where(chance > 0.5, "yes", "no")).all()
    np.testing.assert_allclose(found["epistemic"], 0, atol=1e-6)  # a point does not know what it does not know

    new.assign(colour="violet").to_csv(tmp_path / "violet.csv", index=False)
    result = run("predict", out, tmp_path / "violet.csv", "--out", predicted)
    assert result.exit_code == 0 and "never seen in training, 'violet'" in result.stderr
    new.drop(columns="x").to_csv(tmp_path / "less.csv", index=False)
    assert "lacks 'x'" in fault("predict", out, tmp_path / "less.csv", "--out", predicted)
    assert "--out expects a .parquet or .csv file" in fault("predict", out, tables / "new.csv", "--out", "x.txt")


@pytest.mark.quick
def test_every_class_is_fitted_however_rare():
    frame = pd.DataFrame({"x": np.arange(20.0), "kind": ["a"] * 9 + ["b"] * 10 + ["c"]})
    for share in (0.2, 0.5, 0.99):
        kept, rest = split_rows(frame, "kind", True, share)
        assert set(kept["kind"]) == {"a", "b", "c"}
        assert len(kept) + len(rest) == 20


COIN = ["--example", "beta-bernoulli"]
PRICES = ["prices.csv", "--target", "price"]
NETWORK = ["--model", "mlp"]


@pytest.mark.test
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "either a table with --target, or --example; got neither"),
        (["--example", "coin"], "There is no example 'coin'; expected one of beta-bernoulli"),
        (["missing.csv", "--target", "y"], "missing.csv does not exist"),
        (["prices.csv"], "--target is missing"),
        (["prices.csv", "--target", "cost"], "'cost' is not a column of the table; got 'x', 'colour', 'price'"),
        ([*PRICES, "--held-out", "1.5"], "--held-out expects a share of the rows in [0, 1); got 1.5"),
        ([*PRICES, "--family", "poisson"], "--family poisson expects counts: 0, 1, 2"),
        (["holes.csv", "--target", "price"], "Column 'x' has 1 value missing or not finite, the first in row 3"),
        ([*COIN, "--method", "gibs"], "There is no method 'gibs'; there are autoencoding, bbb"),
        ([*COIN, "--set", "drawss=5"], "NUTS has no 'drawss'; it has chains"),
        ([*COIN, "--set", "draws=-5"], "NUTS(draws=...) expects a whole number ≥ 1; got -5"),
        ([*COIN, "--set", "target=1.5"], "NUTS(target=...) expects a number in (0, 1); got 1.5"),
        ([*COIN, "--set", "draws"], "--set expects field=value, such as draws=500; got 'draws'"),
        ([*COIN, "--config", "no.toml"], "There is no file no.toml"),
        ([*COIN, "--method", "sgld", "--set", "batch_size=101"], "more than the 100 rows there are"),
        ([*COIN, "--method", "metropolis", "--set", "proposal=x"], "expects a kernels.Proposal, or None; got 'x'"),
        ([*COIN, "--resume"], "--resume expects --out"),
        (["--resume", "--out", "nothing"], "nothing holds no run: it has no run.json"),
        (
            [*PRICES, "--model", "tree"],
            "--model is one of glm, mlp, gaussian-mixture, hidden-markov, vae, belief-network; got 'tree'",
        ),
        ([*PRICES, "--hidden", "50"], "--hidden is for --model mlp, vae; got --model glm"),
        ([*PRICES, *NETWORK, "--hidden", "50,x"], "with commas between them, such as 50 or 50,50; got '50,x'"),
        ([*PRICES, *NETWORK, "--hidden", "0"], "got '0'"),
        ([*PRICES, "--prior", "relevance"], "--prior of a glm is normal, horseshoe; got 'relevance'"),
        ([*PRICES, *NETWORK, "--prior", "wide"], "prior is 'scaled', 'relevance', an sd"),
        ([*PRICES, *NETWORK, "--prior", "0"], "got 0.0"),
        ([*PRICES, *NETWORK, "--prior", "nan"], "got nan"),
        ([*PRICES, *NETWORK, "--method", "rejection"], "Rejection sampling accepts no draw of so many weights"),
        ([*PRICES, "--missing", "guess"], "--missing is raise, drop, impute; got 'guess'"),
        ([*PRICES, "--missing", "impute", "--drop-missing"], "--drop-missing and --missing impute contradict"),
        ([*PRICES, "--shifted", "prices.csv", "--held-out", "0"], "give --held-out a share above 0"),
        ([*COIN, *NETWORK], "--example is for --model glm; got --model mlp"),
        (
            ["holes.csv", "--target", "price"],
            "let inputs be imputed (--missing impute when fitting), leave out such rows (--missing drop",
        ),
    ],
)
def test_faults_are_sentences_and_leave_nothing(words, sentence, tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("prices.csv",):
        (tmp_path / name).write_bytes((tables / name).read_bytes())
    frame = pd.read_csv(tables / "prices.csv")
    frame.loc[3, "x"] = np.nan
    frame.to_csv(tmp_path / "holes.csv", index=False)
    assert sentence in fault("fit", *words)
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.test
def test_missing_values_are_left_out_when_asked(tables, tmp_path):
    frame = pd.read_csv(tables / "prices.csv")
    frame.loc[3, "x"], frame.loc[5, "price"] = np.nan, np.inf
    frame.to_csv(tmp_path / "holes.csv", index=False)
    assert "--missing drop" in fault("fit", tmp_path / "holes.csv", "--target", "price")
    problem = task_of({"table": tmp_path / "holes.csv", "target": "price", "missing": "drop"})
    assert problem.data.size + problem.held_out.size == 78


@pytest.mark.test
def test_what_a_run_of_fewer_options_did_not_say_is_the_default(tables):
    spec = task_of({"table": tables / "prices.csv", "target": "price"}).spec
    older = {name: spec[name] for name in ("table", "target", "held_out", "family", "encoder")}
    problem = task_of(older)
    assert problem.spec == spec
    assert recipe(model_of(Encoder.from_dict(older["encoder"]), older)) == recipe(problem.model) is not None


@pytest.mark.quick
def test_a_run_of_version_0_1_is_refused_in_a_sentence(tmp_path):
    problem = {"file": "digits.npz", "model": "vae", "encoding": {"family": "normal", "size": 64}}
    write_run(tmp_path / "old", {"problem": problem, "method": {"method": "autoencoding"}, "seed": 0})
    for words in (["predict", tmp_path / "old", tmp_path / "new.npz"], ["fit", "--resume", "--out", tmp_path / "old"]):
        assert "was written by an earlier version of tractable" in fault(*words)


@pytest.mark.parametrize("prior", [None, "scaled", "relevance", "0.5"])
def test_the_prior_of_a_network_outlives_its_run(prior, tables):
    given = {"table": tables / "prices.csv", "target": "price", "model": "mlp", "hidden": "3", "prior": prior}
    problem = task_of(given)
    spec = json.loads(json.dumps(problem.spec))
    assert ("scales.layer0.weight[colour [2]]" in problem.model.names) == (prior == "relevance")
    assert (
        recipe(task_of(spec).model)
        == recipe(model_of(Encoder.from_dict(spec["encoder"]), spec))
        == recipe(problem.model)
        is not None
    )
    sd = np.sqrt(problem.model.prior["weights"]["layer0"]["weight"].variance)
    np.testing.assert_allclose(sd, 0.5 if prior == "0.5" else 3**-0.5, rtol=1e-6)  # 3 inputs
    del spec["prior"]  # as written before there was a choice
    assert (recipe(task_of(spec).model) == recipe(problem.model)) == (prior in (None, "scaled"))


@pytest.mark.quick
def test_settings_come_from_file_name_and_assignments(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('method = "nuts"\ndraws = 50\ntarget = 0.9\nseed = 7\n')

    def made(method, *fields, saved=(), seed=None, file=path):
        given = {"method": method, "config": file, "set_": fields, "seed": seed}
        settings, seed = settings_of(given, HMC(chains=2, draws=40).settings(), dict(saved))
        return from_settings(settings), seed

    assert made(None, "draws=60") == (NUTS(draws=60, target=0.9), 7)
    assert made(None, "warmup=9", file=None) == (HMC(chains=2, draws=40, warmup=9), 0)
    assert made("hmc", "warmup=9", file=None) == (HMC(warmup=9), 0)
    run = {"method": NUTS(draws=5).settings(), "seed": 4}
    assert made(None, saved=run, file=None) == (NUTS(draws=5), 4)
    assert made(None, "draws=6", saved=run, file=None, seed=1) == (NUTS(draws=6), 1)
    other, seed = made("sgld", "step-size=0.001", "preconditioner=none")
    assert (other.label, other.step_size, other.preconditioner, other.draws, seed) == ("sgld", 0.001, None, 1000, 7)
    three = settings_of_each("map, nuts,mala", ["draws=9", "nuts.target=0.7"])
    assert three == [{"method": "map"}, {"method": "nuts", "draws": 9, "target": 0.7}, {"method": "mala", "draws": 9}]
    with pytest.raises(SettingsError, match="is for none of --methods map, mle"):
        settings_of_each("map,mle", ["draws=9"])


def test_resume_needs_nothing_but_the_folder(tmp_path):
    out = tmp_path / "coin"
    words = ["--example", "beta-bernoulli", "--method", "metropolis", *FEW, "--set", "preconditioner=none"]
    assert run("fit", *words, "--out", out, "--quiet").exit_code in (0, 3)
    before = (out / "summary.csv").read_text()
    assert run("fit", "--resume", "--out", out, "--quiet").exit_code in (0, 3)
    assert (out / "summary.csv").read_text() == before
    assert "holds another run" in fault("fit", "--resume", "--out", out, "--seed", 1)


def test_comparison(tmp_path):
    out = tmp_path / "both"
    words = ["compare", "--example", "beta-bernoulli", "--out", out, "--methods"]
    result = run(*words, "map,metropolis,sgld", *FEW, "--set", "sgld.batch_size=1000")
    assert result.exit_code == 0, result.output
    assert "mean error" in result.stdout and "sgld failed" in result.stderr
    assert {"run.json", "comparison.csv", "marginals.png", "report.html"} <= {p.name for p in out.iterdir()}
    table = pd.read_csv(out / "comparison.csv", index_col=0)
    assert list(table.index) == ["map", "random-walk", "sgld"]
    assert (table.loc[["map", "random-walk"], "mean error"] < 0.5).all()
    again = run("report", out)
    assert again.exit_code == 0 and "random-walk" in again.stdout
    assert "There is no method 'gibs'" in fault(*words, "map,gibs")
    assert "cannot be resumed" in fault("fit", "--resume", "--out", out)
    assert run(*words, "sgld", "--set", "batch_size=1000").exit_code == 2


@pytest.mark.filterwarnings(
    "ignore:The model given may differ"
)  # of an example whose arrays are held in more bits here
@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_run_that_can_be_read_and_gone_on_with(number, tmp_path):
    out = tmp_path / "coin"
    words = [sys.executable, "-c", "from tractable.cli import main; main()", "fit", "--quiet", "--out", str(out)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    began = subprocess.Popen(
        [*words, "--example", "beta-bernoulli", "--method", "mala", "--set", "warmup=64", "--set", "draws=100000",
         "--set", "thin=64"],
        env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    # The first step says whose folder it is; the next has draws.
    while (
        not set(out.glob("checkpoint/step-*")) - {out / f"checkpoint/step-{1:012d}"}
        and began.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    began.send_signal(number)
    _, said = began.communicate(timeout=120)
    assert began.returncode == 128 + number, said
    assert "The run was interrupted" in said and "Traceback" not in said
    problem = task_of(read_run(out)["problem"])
    about = json.loads((out / "posterior.json").read_text())
    posterior = load(out, problem.model)
    assert about["interrupted"] and posterior.interrupted
    assert 0 < posterior.count < 100_000
    assert (out / "report.html").exists()


def test_a_network_is_fitted_told_gone_on_with_and_predicts(tables, tmp_path):
    out = tmp_path / "net"
    words = [tables / "holes.csv", "--target", "price", "--model", "mlp", "--hidden", "8", "--missing", "impute"]
    result = run("fit", *words, "--method", "bbb", "--set", "epochs=30", "--shifted", tables / "far.csv", "--out", out)
    assert result.exit_code == 0, result.output
    for word in ("CRPS", "coverage 90 %", "sharpness", "AUROC shifted", "noise", "layer1.weight"):
        assert word in result.stdout, word
    about = read_run(out)
    assert (about["method"]["method"], about["problem"]["model"], about["problem"]["hidden"]) == ("bbb", "mlp", [8])
    encoder = Encoder.from_dict(about["problem"]["encoder"])
    assert encoder.features == [
        "x", "x is missing", "colour [1]", "colour [2]", "colour [3]",
    ]  # fmt: skip
    page = (out / "report.html").read_text()
    assert "layer1.weight" in page and "AUROC shifted" in page and "weights.layer0" not in page

    # What was learnt is there: a run that is gone on with is not learnt again, and says the same.
    summary = (out / "summary.csv").read_text()
    again = run("fit", "--resume", "--out", out)
    (facts, last), (same_facts, end) = (
        re.sub(r"wall time +\S+ \S+", "", each.stdout.rstrip()).rsplit("\n", 1) for each in (result, again)
    )
    same_words = facts.split() == same_facts.split()
    assert again.exit_code == 0 and same_words and "climbing" in last and "climbing" not in end, "only the times differ"
    assert (out / "summary.csv").read_text() == summary
    problem = task_of(about["problem"])  # killed once it was learnt and before it was judged, it is judged then
    load(out, problem.model, problem.data).verify(None).write(out)
    judged = run("fit", "--resume", "--out", out).stdout
    assert "held-out surprise" in judged and "not verified" not in judged
    assert "verdict" in run("report", out).stdout.lower()

    predicted = tmp_path / "predictions.csv"
    assert run("predict", out, tables / "new-holes.csv", "--out", predicted).exit_code == 0
    plain = pd.read_csv(predicted)
    assert len(plain) == 4 and np.isfinite(plain.to_numpy()).all()
    calibrated = ["--calibrate", tables / "prices.csv", "--level", "0.8"]
    assert run("predict", out, tables / "new-holes.csv", "--out", predicted, *calibrated).exit_code == 0
    found = pd.read_csv(predicted)
    np.testing.assert_allclose(found["mean"], plain["mean"], rtol=1e-6)
    # The interval is the mean and a multiple of the sd, one for all rows: the 65th of 80 scores.
    problem = task_of(about["problem"])
    every = from_rows(encoder, tables / "prices.csv")
    told = load(out, problem.model).predict(every.given)
    q = np.sort(np.abs(every.y - told.mean) / told.sd)[int(np.ceil(81 * 0.8)) - 1]
    np.testing.assert_allclose((found["upper"] - found["lower"]) / 2, q * found["sd"], rtol=1e-5)
    assert "lacks it" in fault(
        "predict", out, tables / "new.csv", "--out", predicted, "--calibrate", tables / "new.csv"
    )


def from_rows(encoder: Encoder, path: Path):
    """A table's rows as Data."""
    return data_of(encoder, pd.read_csv(path))


def test_classes_by_an_ensemble_of_networks(tables, tmp_path):
    out, predicted = tmp_path / "sales", tmp_path / "predictions.csv"
    words = [tables / "sales.parquet", "--target", "bought", "--model", "mlp", "--hidden", "8", "--out", out]
    settings = ["--method", "ensemble", "--set", "size=2", "--set", "member=map"]
    result = run("fit", *words, *settings, "--shifted", tables / "far.csv")
    assert result.exit_code == 0, result.output
    for word in ("accuracy", "ECE", "Brier", "AUROC shifted", "Members"):
        assert word in result.stdout, word
    assert "<h2>Members" in (out / "report.html").read_text()
    assert run("predict", out, tables / "new.csv", "--out", predicted).exit_code == 0
    found = pd.read_csv(predicted)
    np.testing.assert_allclose(found["p(no)"] + found["p(yes)"], 1, atol=1e-6)
    assert "is for numbers" in fault(
        "predict", out, tables / "new.csv", "--out", predicted, "--calibrate", tables / "sales.parquet"
    )


def test_comparison_of_networks_has_no_reference(tables, tmp_path):
    out = tmp_path / "nets"
    words = ["compare", tables / "sales.parquet", "--target", "bought", "--model", "mlp", "--hidden", "8", "--out", out]
    result = run(*words, "--methods", "map", "--prior", "0.5")
    assert result.exit_code == 0, result.output
    table = pd.read_csv(out / "comparison.csv", index_col=0)
    assert list(table.index) == ["map"] and np.isfinite(table.loc["map", "held-out"])
    assert table[["mean error", "sd ratio"]].isna().all().all()
    assert "reference" not in result.stdout and (out / "report.html").exists()
    assert "Rejection sampling accepts no draw of so many weights" in fault(*words, "--methods", "rejection")


def test_a_posterior_is_looked_at_again_as_asked(tables, tmp_path):
    fitted = ("fit", "--example", "normal-mean", "--method", "laplace", "--quiet")
    assert run(*fitted, "--out", tmp_path / "looked").exit_code == 0
    assert json.loads((tmp_path / "looked" / "posterior.json").read_text())["verdict"] == "trust"
    assert run(*fitted, "--verify", "none", "--out", tmp_path / "not").exit_code == 0
    about = json.loads((tmp_path / "not" / "posterior.json").read_text())
    assert (about["verdict"], about["checks"][-1]["name"]) == ("caution", "verified")
    much = fault(*fitted, "--verify", "much", "--out", tmp_path / "no")
    assert "--verify is auto, thorough, none; got 'much'" in much
    network = ("fit", tables / "prices.csv", "--model", "mlp", "--verify", "none")
    assert "--verify is for --model glm; got --model mlp" in fault(*network)


def test_the_page_says_how_the_rows_were_read(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": np.arange(100, 180), "x": rng.normal(size=80), "claims": rng.poisson(1.0, 80)})
    table, out = tmp_path / "claims.csv", tmp_path / "run"
    frame.to_csv(table, index=False)
    result = run("fit", table, "--target", "claims", "--method", "map", "--out", out)
    assert result.exit_code == 0, result.output
    told = [line.removeprefix("Note: ") for line in result.stderr.splitlines() if line.startswith("Note: ")]
    assert any("identifier" in each for each in told) and any("--family" in each for each in told)
    page = (out / "report.html").read_text()
    family = read_run(out)["problem"]["family"]
    assert f"family {family}" in result.stderr and family in page
    assert all(each in html.unescape(page) for each in told)
    assert all(each in run("report", out).stderr for each in told)


@pytest.mark.test
def test_a_table_with_many_faults_is_mended_by_what_the_message_names(tmp_path, monkeypatch):
    """One message names all faults; with its remedies the fit succeeds, and predict and --resume need no options."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x, income = generator.normal(50, 20, 40), generator.lognormal(7, 1, 40)
    frame = pd.DataFrame({"x": [f"{v:.1f}" for v in x], "income": [f"€{v:,.0f}" for v in income]})
    frame = frame.assign(share=[f"{v % 9:.1f}%" for v in x], y=[f"{v:.2f}" for v in 0.1 * x + income % 1])
    frame.loc[3, "x"], frame.loc[9, "y"], frame.loc[7, "share"] = "unknown", "-", None
    frame.to_csv("messy.csv", index=False)
    words = ["messy.csv", "--target", "y", "--exclude", "no"]
    text = fault("fit", *words)
    for part in ("'no' is not", "--na-values unknown", "--na-values -,", "--thousands ,", "'share' has 1", "impute"):
        assert part in text
    mended = [*words[:3], "--na-values", "unknown,-", "--thousands", ",", "--missing", "impute", "--out", "run"]
    result = run("fit", *mended, "--method", "map")
    assert "the sign € was removed" in result.stderr
    encoder = Encoder.from_dict(read_run(Path("run"))["problem"]["encoder"])
    assert [column.kind for column in encoder.columns] == ["number"] * 3 and encoder.forms["income"].sign == "€"
    frame.iloc[[3]].drop(columns="y").to_csv("one.csv", index=False)
    run("predict", "run", "one.csv", "--out", "one-out.csv")
    assert np.isfinite(pd.read_csv("one-out.csv")["mean"]).all()
    run("fit", "--resume", "--out", "run")
    assert "leave --na-values out" in fault("fit", "--resume", "--out", "run", "--na-values", "x")
