"""Mixtures from the command line: what is fitted, which is chosen, what is left, and how it fails."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import fault, run, task_of
from scipy import stats
from typer.testing import Result

from tractable import EM, load
from tractable.cli import models
from tractable.cli.folders import read_run, write_run
from tractable.cli.models import KINDS, densities
from tractable.cli.reading import whole_numbers
from tractable.core.errors import SettingsError
from tractable.latent.mixture import Gaussians, gaussian_mixture
from tractable.models import bayesian_gaussian_mixture
from tractable.pages.mixtures import Components, most_distinct
from tractable.selection import CRITERIA, evidence_bound
from tractable.tables.columns import Column
from tractable.tables.encoder import Encoder
from tractable.tables.fit import split_rows

pytestmark = pytest.mark.laws

MIXED = ["--model", "gaussian-mixture"]
# The same shapes throughout, so that a second run compiles nothing.
LIGHT = [*MIXED, "--covariance", "spherical", "--set", "starts=2"]
LEFT = {"run.json", "settings.toml", "summary.csv", "posterior.json", "components.csv", "criterion.csv", "report.html"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tables: two kinds of rows; the same with a point many times over; gaps; and others that cannot be used."""
    folder = tmp_path_factory.mktemp("tables")
    generator = np.random.default_rng(1)
    kind = np.arange(60) % 3 > 0  # 40 of one, 20 of the other
    frame = pd.DataFrame(
        {
            "height": np.where(kind, 180, 140) + 5 * generator.normal(size=60),
            "weight": np.where(kind, 80, 30) + 4 * generator.normal(size=60),
            "name": "x",
            "same": 7,
        }
    )
    frame.to_csv(folder / "people.csv", index=False)
    twins = pd.DataFrame(frame[["height", "weight"]])
    twins["height"], twins["weight"] = generator.normal(size=(2, 60))
    kept = split_rows(twins, "", False, 0.2)[0].index[:4]
    twins.loc[kept] = 30.0
    twins.to_csv(folder / "twins.csv", index=False)
    holes = frame[["height", "weight"]].copy()
    holes.loc[[1, 5, 9], "height"], holes.loc[[5, 20], "weight"] = np.nan, np.nan  # row 5 holds nothing
    holes.to_csv(folder / "holes.csv", index=False)
    holes.head(10).drop(index=5).to_csv(folder / "new.csv", index=False)
    frame[["name"]].to_csv(folder / "words.csv", index=False)
    frame[["same"]].to_csv(folder / "same.csv", index=False)
    (folder / "empty.csv").write_text("height,weight\n")
    frame[["height"]].assign(weight=[np.inf, *range(59)]).to_csv(folder / "infinite.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def people(folder) -> tuple[Path, Result]:
    """A run, and what it said."""
    out = folder / "people"
    result = run("fit", folder / "people.csv", *LIGHT, "--components", "1..3", "--out", out)
    return out, result


def test_what_is_said_and_left(people):
    out, result = people
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} >= LEFT
    assert "Left out, as they hold no numbers: 'name'." in result.stderr
    assert "Columns left out, as they are constant in the rows to fit: 'same'." in result.stderr
    for word in ("Number of components", "← chosen", "BIC", "held-out", "height", ", judged ", "starts that agree"):
        assert word in result.stdout, word
    about = read_run(out)
    assert about["problem"]["chosen"] == 2
    assert about["method"]["method"] == "em" and about["method"]["starts"] == 2
    page = (out / "report.html").read_text()
    for head in ("Number of components", "Components", "Rows and components", "Climb", "Settings"):
        assert f"<h2>{head}</h2>" in page, head
    assert page.count("<svg") > 4 and "nan" not in page.partition("<style>")[0] + page.partition("</style>")[2]

    again = run("report", out)
    assert again.exit_code == 0 and ", judged " in again.stdout

    # A user's own load of it.
    posterior = load(out, gaussian_mixture(2, 2, "spherical"))
    weights = posterior.mean().weights
    assert weights[0] > weights[1]
    np.testing.assert_allclose(pd.read_csv(out / "components.csv")["weight"], weights, rtol=1e-8)


def summed(joint: np.ndarray) -> np.ndarray:
    """log Σ_k exp, (n,)."""
    return np.logaddexp.reduce(joint, axis=1)


def naive(frame: Any, rows: np.ndarray) -> np.ndarray:
    """(n, K) log π_k N(x; μ_k, diag σ_k²) of components.csv; a gap is integrated out, here by leaving it away."""
    out = np.zeros((len(rows), len(frame)))
    for k, (_, one) in enumerate(frame.iterrows()):
        for j, name in enumerate(("height", "weight")):
            terms = stats.norm.logpdf(rows[:, j], one[f"mean of {name}"], one[f"sd of {name}"])
            out[:, k] += np.where(np.isnan(rows[:, j]), 0, terms)
        out[:, k] += np.log(one["weight"])
    return out


def test_criteria_are_those_of_the_components_in_the_tables_units(people, folder):
    out, _ = people
    frame, table = pd.read_csv(out / "components.csv"), pd.read_csv(out / "criterion.csv", index_col=0)
    kept, rest = (part[["height", "weight"]].to_numpy() for part in split_of(folder / "people.csv"))
    assert list(table.index) == [1, 2, 3]
    one = table.loc[2]
    total = summed(naive(frame, kept)).sum()
    np.testing.assert_allclose(one["log likelihood"], total, rtol=1e-9)
    np.testing.assert_allclose(one["held-out"], summed(naive(frame, rest)).mean(), rtol=1e-9)
    assert one["parameters"] == 1 + 4 + 2
    np.testing.assert_allclose(one["BIC"], 7 * np.log(len(kept)) - 2 * total, rtol=1e-9)
    np.testing.assert_allclose(one["AIC"], 2 * 7 - 2 * total, rtol=1e-9)
    # One component is a normal: its maximum is known.
    mean, sd = kept.mean(0), kept.std(0)
    single = stats.norm.logpdf((kept - mean) / sd).sum() - len(kept) * np.log(sd).sum()
    np.testing.assert_allclose(table.loc[1, "log likelihood"], single, rtol=1e-6)


def split_of(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows fitted, rows held out)."""
    return split_rows(pd.read_csv(path), "", False, 0.2)


def test_components_are_a_maximum_with_its_errors(people, folder):
    out, _ = people
    frame = pd.read_csv(out / "components.csv")
    assert list(frame["component"]) == [1, 2] and frame["weight"].is_monotonic_decreasing
    kept = split_of(folder / "people.csv")[0][["height", "weight"]].to_numpy()
    share = np.exp(naive(frame, kept) - summed(naive(frame, kept))[:, None])
    np.testing.assert_allclose(frame["weight"], share.mean(0), atol=1e-4)
    means = share.T @ kept / share.sum(0)[:, None]
    np.testing.assert_allclose(frame[["mean of height", "mean of weight"]], means, rtol=1e-4)
    np.testing.assert_allclose(frame["rows"], frame["weight"] * len(kept))
    # Kinds that do not overlap: a weight is a share of rows that are seen.
    np.testing.assert_allclose(frame["standard error"], np.sqrt(np.prod(frame["weight"]) / len(kept)), rtol=1e-3)


@pytest.mark.test
def test_predictions_are_exact_where_numbers_are_missing(people, folder, tmp_path):
    out, _ = people
    result = run("predict", out, folder / "new.csv", "--out", tmp_path / "deep" / "p.csv")
    assert result.exit_code == 0, result.output
    assert "2 rows with missing values: predicted from the numbers that they have" in result.stderr
    found = pd.read_csv(tmp_path / "deep" / "p.csv")
    assert list(found) == ["component", "p(1)", "p(2)", "log density"]
    rows = pd.read_csv(folder / "new.csv").to_numpy()
    joint = naive(pd.read_csv(out / "components.csv"), rows)
    np.testing.assert_allclose(found["log density"], summed(joint), rtol=1e-8)
    np.testing.assert_allclose(found[["p(1)", "p(2)"]], np.exp(joint - summed(joint)[:, None]), atol=1e-9)
    np.testing.assert_array_equal(found["component"], joint.argmax(1) + 1)

    assert "lacks 'height', 'weight'" in fault("predict", out, folder / "words.csv", "--out", tmp_path / "p.csv")
    assert "'weight' is infinite in row 0" in fault(
        "predict", out, folder / "infinite.csv", "--out", tmp_path / "p.csv"
    )
    words = ["--calibrate", folder / "new.csv", "--out", tmp_path / "p.csv"]
    assert "--calibrate is for --model glm, mlp; got --model gaussian-mixture" in fault(
        "predict", out, folder / "new.csv", *words
    )


def test_a_collapsed_component_is_not_chosen(folder, tmp_path):
    out = tmp_path / "twins"
    result = run("fit", folder / "twins.csv", *LIGHT, "--components", "1,2", "--out", out, "--quiet")
    assert (result.exit_code, result.stdout.strip()) == (0, str(out)), result.output
    assert (
        "2 components would do better by BIC, but that fit is rejected and not chosen: components at" in result.stderr
    )
    table = pd.read_csv(out / "criterion.csv")
    assert list(table["verdict"])[1] == "reject" and np.argmin(table["BIC"]) == 1
    assert read_run(out)["problem"]["chosen"] == 1
    assert "rejected and not chosen" in (out / "report.html").read_text()

    alone = run("fit", folder / "twins.csv", *LIGHT, "--components", "2", "--out", tmp_path / "alone")
    assert alone.exit_code == 3, alone.output
    assert "Every fit is rejected" in alone.stderr
    assert json.loads((tmp_path / "alone" / "posterior.json").read_text())["verdict"] == "reject"


@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_missing_numbers_are_integrated_out(folder, tmp_path):
    out = tmp_path / "holes"
    words = [*MIXED, "--covariance", "diagonal", "--components", "1", "--held-out", "0", "--missing", "exact"]
    result = run(
        "fit", folder / "holes.csv", *words, "--set", "starts=1", "--set", "tolerance=1e-13", "--out", out
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert (
        "Left out: 1 row of 60, with numbers missing or not finite." in result.stderr
        and "held-out" not in result.stdout
    )
    values = pd.read_csv(folder / "holes.csv")
    (one,) = pd.read_csv(out / "components.csv").to_dict("records")
    for name in ("height", "weight"):  # independent columns: each has the maximum of its own numbers
        np.testing.assert_allclose(one[f"mean of {name}"], values[name].mean(), rtol=1e-7)
        np.testing.assert_allclose(one[f"sd of {name}"], values[name].std(ddof=0), rtol=1e-5)
    given = {"table": folder / "holes.csv", "components": "1", "missing": "drop", "held_out": 0.0}
    dropped = task_of(given | {"model": "gaussian-mixture"})
    assert dropped.data.size == 56 and not np.isnan(dropped.data.y).any()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["people.csv", *MIXED, "--target", "height"],
            "--target is for --model glm, mlp; got --model gaussian-mixture",
        ),
        (["people.csv", *MIXED, "--family", "normal"], "--family is for --model glm, mlp, hidden-markov"),
        (["people.csv", *MIXED, "--hidden", "5"], "--hidden is for --model mlp, vae"),
        (["people.csv", *MIXED, "--prior", "scaled"], "--prior is for --model glm, mlp"),
        (["people.csv", *MIXED, "--shifted", "same.csv"], "--shifted is for --model glm, mlp"),
        (["people.csv", *MIXED, "--resume", "--out", "x"], "x holds no run: it has no run.json"),
        ([*MIXED, "--example", "beta-bernoulli"], "--example is for --model glm; got"),
        (MIXED, "expects a file: tractable fit FILE --model gaussian-mixture"),
        (
            ["people.csv", "--target", "height", "--components", "3"],
            "--components is for --model gaussian-mixture; got",
        ),
        (["people.csv", "--target", "height", "--covariance", "full"], "--covariance is for --model gaussian-mixture"),
        (["people.csv", "--target", "height", "--choose", "bic"], "--choose is for --model gaussian-mixture"),
        (["people.csv", *MIXED, "--components", "10..2"], "such as 3, 2,3,5 or 2..10; got '10..2'"),
        (["people.csv", *MIXED, "--components", "0"], "--components expects whole numbers from 1"),
        (["people.csv", *MIXED, "--components", "2...4"], "got '2...4'"),
        (
            ["people.csv", *MIXED, "--components", "2,9999999999"],
            "--components expects whole numbers from 1 to 100,000",
        ),
        (["people.csv", *MIXED, "--components", "49"], "49 with 48 rows to fit: each component needs at least one row"),
        (
            ["people.csv", *MIXED, "--covariance", "round"],
            "--covariance is full, tied, diagonal, spherical; got 'round'",
        ),
        (["people.csv", *MIXED, "--choose", "aic"], "--choose is bic, held-out, evidence; got 'aic'"),
        (["people.csv", *MIXED, "--choose", "held-out", "--held-out", "0"], "give --held-out a share above 0"),
        (["people.csv", *MIXED, "--held-out", "1"], "--held-out expects a share of the rows in [0, 1); got 1"),
        (["people.csv", *MIXED, "--missing", "impute"], "--missing of a mixture is raise, drop, exact; got 'impute'"),
        (["people.csv", *MIXED, "--missing", "exact", "--drop-missing"], "contradict each other"),
        (["people.csv", *MIXED, "--method", "nuts"], "expects --method em; got nuts"),
        (["people.csv", *MIXED, "--set", "draws=5"], "EM has no 'draws'"),
        (["words.csv", *MIXED], "words.csv has no column of numbers, which a mixture of normals needs; got 'name'"),
        (
            ["people.csv", *MIXED, "--exclude", "age"],
            "--exclude age is not a column of the table",
        ),
        (["people.csv", *MIXED, "--exclude", "height", "--exclude", "weight"], "is constant in the rows to fit"),
        (["same.csv", *MIXED], "is constant in the rows to fit, so there is nothing to learn from"),
        (["empty.csv", *MIXED], "holds no rows under its header"),
        (["none.csv", *MIXED], "none.csv does not exist"),
        (["holes.csv", *MIXED], "rows, the first in row 1, column 'height'"),
        (["infinite.csv", *MIXED, "--missing", "exact"], "Column 'weight' is infinite in row 0"),
        (["infinite.csv", *MIXED, "--components", "100", "--missing", "drop"], "up to 100 with 47 rows to fit"),
    ],
)
def test_faults_are_sentences_and_leave_nothing(words, sentence, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in folder.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert sentence in fault("fit", *words)
    assert not list(tmp_path.glob("runs/*"))


def test_a_run_of_mixtures_is_gone_on_with_and_not_overwritten(people, folder):
    out, _ = people
    before = {name: (out / name).read_bytes() for name in ("components.csv", "summary.csv", "settings.toml")}
    about = read_run(out)
    del about["problem"]["chosen"]  # as a run that is killed leaves it
    write_run(out, about)
    again = run("fit", "--resume", "--out", out)
    assert again.exit_code == 0, again.output + again.stderr
    assert run("report", out).exit_code == 0
    assert {name: (out / name).read_bytes() for name in before} == before
    assert "already holds a run. Continue it by --resume" in fault("fit", folder / "people.csv", *LIGHT, "--out", out)
    compared = fault("compare", folder / "people.csv", "--target", "height", *MIXED)
    assert "compare and calibrate accept only --model glm, mlp; got --model gaussian-mixture" in compared


@pytest.mark.quick
def test_what_is_asked_for():
    read = whole_numbers("components", "2,3,5")
    assert read("4") == [4] and read("2 .. 4, 9,3") == [2, 3, 4, 9, 3] and read([3, 2]) == [3, 2]
    with pytest.raises(SettingsError, match="such as 2,3,5"):
        read("")
    assert set(CRITERIA) >= {"bic", "held-out"}


# Laws, each of an implementation: scores of at most 1 where it holds.


def densities_law(implementation) -> dict[str, float]:
    """Densities of rows in the table's units integrate to one, and do not depend on how rows were padded."""
    theta = Gaussians(np.array([0.7, 0.3]), np.array([[-0.5], [1.0]]), np.array([0.3, 1.2]))
    model, encoder = gaussian_mixture(2, 1, "spherical"), Encoder((Column("x", "number", 3.0, 4.0),))
    x = np.linspace(-40, 50, 2001)
    density, share = implementation(model, theta, (x[:, None] - 3) / 4, encoder)
    few, _ = implementation(model, theta, (x[:3, None] - 3) / 4, encoder)
    exact = 0.7 * stats.norm.pdf(x, 1, 4 * np.sqrt(0.3)) + 0.3 * stats.norm.pdf(x, 7, 4 * np.sqrt(1.2))
    return {
        "mass": abs(np.trapezoid(np.exp(density), x) - 1) / 1e-8,
        "density": float(np.max(np.abs(density - np.log(exact)))) / 1e-8,
        "shares": float(np.max(np.abs(share.sum(1) - 1))) / 1e-10,
        "rows alone": float(np.max(np.abs(few - density[:3]))) / 1e-10,
    }


def of_standardised(model, theta, rows, encoder):
    density, share = densities(model, theta, rows, encoder)
    return density + np.log(encoder.columns[0].sd), share


def with_the_wrong_sign(model, theta, rows, encoder):
    density, share = densities(model, theta, rows, encoder)
    return density + 2 * np.log(encoder.columns[0].sd), share


@pytest.mark.test
def test_densities_are_in_the_tables_units(monkeypatch):
    monkeypatch.setattr(models, "CHUNK", 256)  # several parts, the last one shorter
    scores = densities_law(densities)
    assert max(scores.values()) <= 1, scores
    for wrong in (of_standardised, with_the_wrong_sign):
        assert densities_law(wrong)["mass"] > 1, wrong.__name__


def test_the_evidence_is_in_the_tables_units(folder, tmp_path):
    """Ten times the units is a density a tenth as high a column and row; and two clusters have more of it than one."""
    frame = pd.read_csv(folder / "people.csv")[["height", "weight"]]
    for name, units in (("plain.csv", 1), ("scaled.csv", 10)):
        (units * frame).to_csv(tmp_path / name, index=False)
    asked = {"model": "gaussian-mixture", "components": "1..2", "choose": "evidence"}
    plain, scaled = (task_of({"table": tmp_path / name, **asked}) for name in ("plain.csv", "scaled.csv"))
    found = KINDS["gaussian-mixture"].learn(plain, EM(starts=2), 0, tmp_path / "plain", False).selection
    assert found is not None
    one, two = found.table["evidence"]
    bound = evidence_bound(bayesian_gaussian_mixture(2, 2, weight_concentration=1.0), scaled.data, 2, EM(starts=2))
    units = scaled.encoder.log_scales(scaled.data.y).sum()
    assert abs(two - (bound - units) - plain.data.y.size * np.log(10)) < 1e-2
    assert two > one + 10
    with pytest.raises(SettingsError, match="needs complete rows"):
        task_of({"table": tmp_path / "plain.csv", **asked, "missing": "exact"})


@pytest.mark.quick
def test_the_columns_drawn_are_those_in_which_components_differ():
    means = np.array([[0.0, 0, 9, 1, 3, 5], [0.0, 1, 0, 9, 0, 0]])
    found = Components(list("abcdef"), np.array([0.5, 0.5]), np.zeros(2), means, np.stack([np.eye(6)] * 2))
    assert most_distinct(found).tolist() == [2, 3, 4, 5]
    assert most_distinct(found._replace(means=means[:, :2], covariances=np.stack([np.eye(2)] * 2))).tolist() == [0, 1]


# Hidden Markov models.

STATES = ["--model", "hidden-markov", "--set", "starts=2"]


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> tuple[Path, Result]:
    """Six cooks over forty days, some of them off, in any order; two moods that stay."""
    folder, generator = tmp_path_factory.mktemp("days"), np.random.default_rng(2)
    rows = []
    for cook in "abcdef":
        mood = 0
        for day in range(40):
            mood = mood if generator.random() < 0.9 else 1 - mood
            if generator.random() < 0.9:
                rows.append((cook, f"2026-03-{day + 1:02}" if day < 31 else f"2026-04-{day - 30:02}", mood))
    frame = pd.DataFrame(rows, columns=["cook", "date", "mood"])
    frame["taste"] = np.where(frame["mood"] == 0, 7.0, 4.0) + 0.5 * generator.normal(size=len(frame))
    frame.sample(frac=1, random_state=0).to_csv(folder / "days.csv", index=False)
    out = folder / "run"
    typed = ["--states", "1..2", "--by", "cook", "--time", "date", "--exclude", "mood", "--out", out]
    return out, run("fit", folder / "days.csv", *STATES, *typed)


def test_moods_are_found_in_days(days):
    out, result = days
    assert result.exit_code == 0, result.output + result.stderr
    assert "best at 2 states, the most that were tried" in result.stderr
    assert "Steps are 1 day apart" in result.stderr and "The numbers are taken as --family normal" in result.stderr
    for word in ("Number of states", "← chosen", "Transitions", "share of time", "steps it lasts", "in steps of 1 day"):
        assert word in result.stdout, word
    states, moves = (pd.read_csv(out / f"{name}.csv") for name in ("states", "transitions"))
    np.testing.assert_allclose(np.sort(states["mean of taste"]), [4, 7], atol=0.2)
    np.testing.assert_allclose(states["sd of taste"], 0.5, atol=0.1)
    np.testing.assert_allclose(moves[["to 1", "to 2"]].sum(axis=1), 1, atol=1e-6)
    assert moves["to 1"][0] > 0.8 and moves["to 2"][1] > 0.8
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "days by a hidden-markov of 2 states" in page and "Transitions" in page
    assert ", judged " in run("report", out).stdout


def test_states_of_new_days(days, tmp_path):
    """Rows in any order, some without a number: what states show there is told, and nothing of it is learnt."""
    out, _ = days
    frame = pd.read_csv(out.parent / "days.csv")
    one = frame[frame["cook"] == "b"]
    later = pd.DataFrame({"cook": ["b"] * 2, "date": ["2026-04-12", "2026-06-12"], "mood": [0, 0], "taste": [None] * 2})
    new = pd.concat([one, later])
    new.to_csv(tmp_path / "new.csv", index=False)
    assert run("predict", out, tmp_path / "new.csv", "--out", tmp_path / "told.csv").exit_code == 0
    told = pd.read_csv(tmp_path / "told.csv")
    high = pd.read_csv(out / "states.csv")["mean of taste"].idxmax() + 1
    assert np.mean((told["state"][: len(one)] == high).to_numpy() == (one["mood"] == 0).to_numpy()) > 0.9
    np.testing.assert_allclose(told[["p(1)", "p(2)"]].sum(axis=1), 1, atol=1e-5)
    share = pd.read_csv(out / "states.csv")["share of time"]
    np.testing.assert_allclose(told[["p(1)", "p(2)"]].iloc[-1], share, atol=0.01)  # two months on nothing is known
    assert told["sd of taste"].iloc[-1] > told["sd of taste"].iloc[0]


@pytest.mark.quick
def test_a_column_that_does_not_differ_has_no_states(tmp_path):
    pd.DataFrame({"same": [5] * 20}).to_csv(tmp_path / "same.csv", index=False)
    assert "there is nothing to learn from" in fault("fit", tmp_path / "same.csv", *STATES, "--out", tmp_path / "run")


def test_counts_and_answers_are_told_from_numbers(tmp_path):
    """The family of what states show is read off the numbers, and one that has no sd has no column for it."""
    generator = np.random.default_rng(3)
    busy = np.repeat([0, 1], 30)
    shown = {"poisson": generator.poisson(2 + 10 * busy), "bernoulli": generator.random(60) < 0.1 + 0.8 * busy}
    for family, says in (("poisson", "rate shown"), ("bernoulli", "probability of 1 shown")):
        pd.DataFrame({"shown": shown[family]}).to_csv(tmp_path / "calls.csv", index=False)
        typed = ["--states", "2", "--held-out", "0", "--out", tmp_path / family]
        result = run("fit", tmp_path / "calls.csv", *STATES, *typed)
        assert result.exit_code in (0, 3) and f"The numbers are taken as --family {family}" in result.stderr, (
            result.output
        )
        states = pd.read_csv(tmp_path / family / "states.csv")
        assert states[says].max() > 2 * states[says].min()
        assert (
            run("predict", tmp_path / family, tmp_path / "calls.csv", "--out", tmp_path / f"{family}.csv").exit_code
            == 0
        )
        assert list(pd.read_csv(tmp_path / f"{family}.csv")) == ["state", "p(1)", "p(2)", says]


@pytest.mark.test(
    "words8---family of a hidden-markov is normal, poisson, bernoulli",
    "words9-expects --method em",
    "words3-twice for cook",
    "words2-expects numbers or dates",
)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--by", "cooks"], "--by cooks is not a column of the table"),
        (["--time", "taste", "--by", "cook", "--states", "0"], "--states expects whole numbers"),
        (["--time", "cook"], "expects numbers or dates"),
        (["--time", "mood", "--by", "cook"], "twice for cook"),
        (["--exclude", "moods"], "--exclude moods is not a column"),
        (["--components", "2"], "--components is for --model gaussian-mixture"),
        (["--target", "taste"], "--target is for --model glm, mlp"),
        (["--choose", "held-out"], "needs held-out sequences"),
        (["--family", "categorical", "--exclude", "date"], "--family of a hidden-markov is normal, poisson, bernoulli"),
        (["--method", "map", "--exclude", "date"], "expects --method em"),
    ],
)
def test_what_is_refused_of_sequences(days, words, sentence):
    assert sentence in " ".join(fault("fit", days[0].parent / "days.csv", *STATES, *words).split())
