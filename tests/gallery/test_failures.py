"""The gallery of failures: its exact answers, and that a verdict that trusts is right there."""

import numpy as np
import pytest
from commands import run

import tractable as tr
from tractable.core.errors import DataError
from tractable.gallery.failures import FAILURES, Failure, failure
from tractable.pages import failures as page

pytestmark = pytest.mark.laws

EXACT = {
    "two-modes": ([2.4, 2.4], [np.sqrt(1 + 64 * 0.21)] * 2),
    "funnel": ([0, 0], [3, np.exp(9 / 4)]),
    "banana": ([0, 2], [2, np.sqrt(0.25 + 8)]),
    "spike-in-slab": ([0, 0], [np.sqrt((0.01 + 25) / 2)] * 2),
    "collapsed": ([0, 0], [1, 1]),
    "stuck-chain": ([0, 0], [1, 1]),
    "unconverged": ([30, 30], [1, 1]),
}


@pytest.mark.quick
def test_there_are_twelve():
    assert len(FAILURES) == 12
    with pytest.raises(DataError, match="There is no failure 'none'; expected one of two-modes, "):
        failure("none")


@pytest.mark.parametrize("name", EXACT)
def test_exact_answers(name):
    mean, sd = failure(name).exact()
    np.testing.assert_allclose(mean, EXACT[name][0], atol=2e-3)
    np.testing.assert_allclose(sd, EXACT[name][1], rtol=2e-3)


@pytest.mark.parametrize("name", ["large-step", "label-switching", "misspecified"])
def test_the_window_holds_the_mass(name):
    """At its edges the density is less than a millionth of its largest."""
    _, _, mass = failure(name).grid()
    edges = np.concatenate([mass[0], mass[-1], mass[:, 0], mass[:, -1]])
    assert edges.max() < 1e-6 * mass.max()


def wrong(found: page.Answer, target: Failure) -> float:
    """The largest error in units of what is allowed of a posterior; 1 is the limit."""
    assert found.posterior is not None
    (mean, sd), (own, width) = target.exact(), found.posterior.flat_moments
    return float(np.max(np.maximum(np.abs(own - mean) / sd / 0.2, np.abs(np.log(width / sd)) / np.log(1.25))))


QUICK = {"Laplace": tr.Laplace(), "NUTS": tr.NUTS()}


@pytest.mark.computes
@pytest.mark.parametrize("name", ["two-modes", "banana", "spike-in-slab", "collapsed", "improper"])
def test_what_is_trusted_is_right(name, monkeypatch):
    monkeypatch.setattr(page, "USUAL", QUICK)
    target = failure(name)
    found = {answer.method: answer for answer in page.answers(target)}
    for answer in found.values():
        assert answer.verdict != "trust" or (target.proper and wrong(answer, target) < 1)
    assert found["Laplace"].verdict == {"collapsed": "trust", "improper": "failed"}.get(name, "reject")


def test_a_page_shows_every_answer(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "USUAL", {"MAP": tr.MAP(), "Laplace": tr.Laplace()})
    monkeypatch.setattr(page, "FAILURES", {name: FAILURES[name] for name in ("banana", "improper")})
    result = run("examples", "--failures", "--out", tmp_path / "failures")
    assert result.exit_code == 0, result.output
    assert "banana" in result.output
    told = (tmp_path / "failures" / "report.html").read_text(encoding="utf-8")
    assert told.count("<svg viewBox") >= 3
    assert "A bent ridge" in told
    assert "the mean of theta[1] is" in told and "sd off and its sd" in told
    assert "no posterior" in told
