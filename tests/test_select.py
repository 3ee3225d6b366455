"""Choosing the number of components: the criteria, the choice, what is said of it, and how it fails."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import tractable as tr
from tractable.core.check import Check
from tractable.core.errors import RunError, SettingsError
from tractable.diagnostics.report import Report
from tractable.models import bayesian_gaussian_mixture, gaussian_mixture
from tractable.selection import CRITERIA, Candidate, best_row, remarks, table_of

pytestmark = pytest.mark.quick

EM = tr.EM
BEST, OTHER = 0.1, 100.0  # scores of laws, of which 1 is the most that holds


def rows() -> np.ndarray:
    """Forty rows of two kinds."""
    x = np.random.default_rng(0).normal(size=(40, 1))
    return x + 8.0 * (np.arange(40) % 2)[:, None]


def normals(k: int):
    return gaussian_mixture(k, 1, "spherical")


@pytest.mark.laws
def test_criteria_and_choice():
    x, rest = rows()[:30], rows()[30:]
    heard = []
    found = tr.select(
        normals, x, [1, 2], EM(starts=2), held_out=rest, by="evidence", progress=lambda *a: heard.append(a[0]),
        bound_of=lambda k: bayesian_gaussian_mixture(k, 1, "spherical"),
    )  # fmt: skip
    one, two = found.table.to_dict("records")
    total = stats.norm.logpdf(x, x.mean(), x.std()).sum()
    np.testing.assert_allclose(one["log likelihood"], total, rtol=1e-6)
    np.testing.assert_allclose(one["BIC"], 2 * np.log(30) - 2 * one["log likelihood"], rtol=1e-12)
    np.testing.assert_allclose(one["AIC"], 2 * 2 - 2 * one["log likelihood"], rtol=1e-12)
    np.testing.assert_allclose(one["held-out"], stats.norm.logpdf(rest, x.mean(), x.std()).mean(), rtol=1e-5)
    assert [one["parameters"], two["parameters"]] == [2, 5]
    assert found.components == 2 and two["evidence"] > one["evidence"] + 5
    assert found.posterior.sd() is not None and found.posterior.method == EM(starts=2)
    assert any(phase.startswith("2 components, ") for phase in heard)
    assert "2 chosen by evidence." in str(found) and not found.interrupted


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"method": tr.NUTS()}, "needs a method that finds one θ, such as EM\\(\\); got nuts"),
        ({"candidates": []}, "numbers of components, each 1 or more"),
        ({"candidates": [0, 1]}, "got 0 as member 0"),
        ({"by": "aic"}, "by is 'bic', 'held-out', 'evidence'; got 'aic'"),
        ({"by": "held-out"}, "give held_out="),
        ({"by": "evidence"}, "give bound_of="),
    ],
)
def test_faults_are_sentences(words, sentence):
    with pytest.raises(SettingsError, match=sentence):
        tr.select(normals, rows(), **{"candidates": [1], **words})


@pytest.mark.test
def test_nothing_that_could_be_fitted():
    with pytest.raises(RunError, match="No model could be fitted"):
        tr.select(normals, rows()[:3], [5], EM(starts=1))


# Laws, each of an implementation: scores of at most 1 where it holds.


def choice_law(implementation) -> dict[str, float]:
    """The best of those that are sound; of equal ones the fewest components; of the rejected where all are."""

    def table(bic: list[float], verdicts: list[str], held: list[float] | None = None) -> pd.DataFrame:
        return pd.DataFrame({"BIC": bic, "held-out": held or [0.0] * len(bic), "verdict": verdicts})

    fine, nan = ["trust", "caution", "trust"], float("nan")
    cases = {
        "least BIC": (table([3.0, 1.0, 2.0], fine), "bic", 1),
        "most held-out": (table([1.0, 2.0, 3.0], fine, [-3.0, -2.0, -1.0]), "held-out", 2),
        "ties": (table([2.0, 1.0, 1.0], fine), "bic", 1),
        "rejected": (table([2.0, 3.0, 1.0], ["trust", "trust", "reject"]), "bic", 0),
        "failed": (table([nan, 3.0, 4.0], ["failed", "caution", "trust"], [nan, -1.0, -2.0]), "held-out", 1),
        "all rejected": (table([nan, 3.0, 1.0], ["failed", "reject", "reject"]), "bic", 2),
    }
    return {name: BEST if implementation(frame, by) == best else OTHER for name, (frame, by, best) in cases.items()}


def test_the_choice():
    assert max(choice_law(best_row).values()) <= 1, choice_law(best_row)
    wrong = {
        "rejected": lambda frame, by: int(np.nanargmax(CRITERIA[by].sign * frame[CRITERIA[by].column])),
        "least BIC": lambda frame, by: int(np.nanargmax(frame[CRITERIA[by].column])),
        "most held-out": lambda frame, by: int(np.nanargmin(frame[CRITERIA[by].column])),
        "ties": lambda frame, by: len(frame) - 1 - int(np.nanargmin(frame["BIC"].to_numpy()[::-1])),
    }
    for name, implementation in wrong.items():
        assert choice_law(implementation)[name] > 1, name


def candidates_of(bic: list[float], verdicts: list[str]) -> tuple[list[Candidate], pd.DataFrame]:
    """Candidates of 1, 2, … components, and their table."""
    checks = (Check("smallest component", 0.5, "reject", "rows"),)
    posterior = SimpleNamespace(report=lambda: Report("reject", checks, ""), found={"starts that agree": 1})
    out = [
        Candidate(k + 1, None if word == "failed" else posterior, -b / 2, k, -b, 0.0, 0.1, word, "it broke.")  # pyright: ignore[reportArgumentType]
        for k, (b, word) in enumerate(zip(bic, verdicts, strict=True))
    ]
    return out, table_of(out, EM(), 1)  # BIC is as given: log 1 = 0


def test_what_is_remarked_of_a_choice():
    def said(bic: list[float], verdicts: list[str], asked: int, stopped: bool = False) -> str:
        candidates, table = candidates_of(bic, verdicts)
        return " ".join(remarks(candidates, table, best_row(table, "bic"), "bic", asked, stopped))

    assert said([30, 10, 20], ["trust"] * 3, 3) == ""
    assert "best at 3 components, the most that were tried: try more" in said([30, 20, 10], ["trust"] * 3, 3)
    assert "BIC at 3 is within 2 of the best: the data hardly decide" in said([30, 10, 11.5], ["trust"] * 3, 3)
    assert "not chosen: smallest component 0.5, rows." in said([30, 20, 10], ["trust", "trust", "reject"], 3)
    assert "smallest" not in said([10, 20, 30], ["trust", "trust", "reject"], 3)
    assert "3 components could not be fitted: it broke." in said(
        [30, 10, float("nan")], ["trust", "trust", "failed"], 3
    )
    stopped = said([30, 20], ["trust"] * 2, 3, True)
    assert "more than 2 components were not tried" in stopped and "try more" not in stopped


def test_a_likelihood_that_a_floor_sets_is_no_reason_to_choose():
    """Of rows that are equal in one column the likelihood is as high as the floor is low."""
    candidates, table = candidates_of([30, 20, -90], ["trust", "trust", "caution"])
    held_up = [False, False, True]
    assert best_row(table, "bic", held_up) == 1 and best_row(table, "bic") == 2
    assert best_row(table, "held-out", held_up) == 2  # rows that took no part judge it themselves
    assert best_row(table, "bic", [True] * 3) == 2  # where all are held up there is no other
    candidates[2] = candidates[2]._replace(floored=True)
    said = " ".join(remarks(candidates, table, 1, "bic", 3, False))
    assert "3 components would do better by BIC, but only because a variance is at its lower limit" in said
    assert "hardly decide" not in said
