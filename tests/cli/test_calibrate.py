"""``tractable calibrate``: what it leaves, how it goes on, and how it fails."""

import numpy as np
import pandas as pd
import pytest
from commands import fault, run

from tractable import Calibration

pytestmark = pytest.mark.laws

FEW = ["--set", "draws=40", "--set", "warmup=40", "--set", "chains=2", "--runs", 20]


def test_calibrate_leaves_ranks_and_a_page_and_goes_on(tmp_path):
    out = tmp_path / "coin"
    words = ["calibrate", "--example", "beta-bernoulli", "--method", "nuts", *FEW, "--out", out]
    result = run(*words)
    assert result.exit_code in (0, 3), result.output
    assert "log likelihood" in result.stdout and "uniform ranks" in result.stdout
    found = Calibration.load(out)
    assert found.ranks.shape == (20, 2) and (out / "summary.csv").exists()
    assert "log likelihood" in (out / "report.html").read_text()
    more = run(*words[:-3], 25, "--out", out, "--quiet")
    assert more.exit_code in (0, 3) and more.stdout.strip() == str(out)
    np.testing.assert_array_equal(Calibration.load(out).ranks[:20], found.ranks)
    assert len(Calibration.load(out).ranks) == 25
    assert "holds another run" in fault(*words, "--seed", 7)


def test_the_truth_is_drawn_from_the_posterior_of_the_table(tmp_path):
    words = ["calibrate", "--example", "beta-bernoulli", "--posterior", "--method", "nuts", *FEW, "--out", tmp_path]
    result = run(*words)
    assert result.exit_code in (0, 3), result.output
    assert "draws of the data's posterior" in result.stdout
    assert 0 < Calibration.load(tmp_path).independent < 1000


@pytest.mark.test
def test_calibrate_refuses_in_sentences(tmp_path):
    pd.DataFrame({"x": np.arange(6.0), "y": np.arange(6.0)}).to_csv(tmp_path / "t.csv", index=False)
    table = ["calibrate", tmp_path / "t.csv", "--target", "y"]
    assert "MAP gives one θ" in fault(*table, "--method", "map", "--out", tmp_path / "a")
    assert "whole number ≥ 20" in fault(*table, "--method", "nuts", "--runs", 5, "--out", tmp_path / "b")
    assert "accept only --model glm, mlp; got --model gaussian-mixture" in fault(
        "calibrate", tmp_path / "t.csv", "--model", "gaussian-mixture"
    )
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("{}")
    assert "holds a run of tractable fit. Choose a new or an empty folder" in fault(
        *table, "--method", "nuts", "--out", tmp_path / "c"
    )
