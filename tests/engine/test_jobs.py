"""Independent fits over processes: the same bits, one crash ends one fit, and what was killed goes on."""

import functools
import json
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import jax
import joblib
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from commands import fault, run
from sklearn.model_selection import GridSearchCV

import tractable as tr
from tractable.core.errors import DataError, RunError, SettingsError, TractableWarning
from tractable.diagnostics.belief import Draws
from tractable.engine.jobs import Ended, pack, run_jobs, unpack
from tractable.engine.method import Outcome
from tractable.methods import EM
from tractable.models import gaussian_mixture

pytestmark = pytest.mark.laws

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a script's or a notebook's functions are sent
ROWS = np.arange(30) % 2
ANSWER = {"theta": (0.5, 0.085)}
TIMES = ["seconds", "compiling"]


def coin() -> tr.Model:
    """Of functions that no module holds."""
    heads, tails = 2.0, 2.0
    return tr.Model({"theta": dist.Beta(heads, tails)}, lambda params: dist.Bernoulli(params["theta"]))


COIN = coin()


@dataclass(frozen=True, kw_only=True)
class Drawn(tr.Method):
    """Independent normal draws, or a fault."""

    independent: ClassVar[bool] = True
    draws: int = 40
    fault: str = ""

    def learn(self, session):
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "raise":
            raise KeyError("a user's own")
        if self.fault == "warn":
            warnings.warn("read this with care", TractableWarning, stacklevel=2)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(session.key)))
        return Outcome(Draws(positions=rng.normal(size=(1, self.draws, 1))), {"evaluations": 1.0}, {})


def compared(methods: list, n_jobs: int, **options: Any) -> tr.Comparison:
    return tr.compare(COIN, ROWS, methods, reference=ANSWER, progress=False, n_jobs=n_jobs, **options)


def same(one: tr.Comparison, other: tr.Comparison) -> None:
    """Numbers to the last bit."""
    pd.testing.assert_frame_equal(one.table.drop(columns=TIMES), other.table.drop(columns=TIMES), check_exact=True)
    assert one.failures == other.failures and list(one.posteriors) == list(other.posteriors)
    for label, posterior in one.posteriors.items():
        np.testing.assert_array_equal(posterior.values, other.posteriors[label].values)


# The same numbers.


def test_compare_over_processes_has_the_bits_of_one():
    methods = [tr.Rejection(chains=1, draws=20), tr.MAP(), Drawn(fault="raise"), Drawn(fault="warn")]
    with pytest.warns(TractableWarning, match="read this with care"):
        alone = compared(methods, 1, held_out=ROWS)
    heard = []
    with pytest.warns(TractableWarning, match="read this with care"):
        both = compared(methods, 2, held_out=ROWS, on_result=lambda label, _: heard.append(label))
    same(alone, both)
    assert sorted(heard) == sorted(both.posteriors) == ["-2", "map", "rejection"]
    assert both.failures == {"": 'KeyError: "a user\'s own"'}
    found = both.posteriors["rejection"]
    assert found.model is COIN and found.method is methods[0]  # not copies, for which all would be compiled again


@pytest.fixture
def groups() -> np.ndarray:
    return np.concatenate([np.linspace(-6, -4, 30), np.linspace(4, 6, 30)])[:, None]


def test_select_over_processes_has_the_bits_of_one(groups):
    found = [tr.select(lambda k: gaussian_mixture(k, 1), groups, [1, 2], EM(starts=2), n_jobs=n) for n in (1, 2)]
    pd.testing.assert_frame_equal(*(f.table.drop(columns="seconds") for f in found), check_exact=True)
    assert found[1].components == 2 and found[1].remarks == found[0].remarks
    np.testing.assert_array_equal(*(f.posterior.values for f in found))
    assert found[1].posterior.model == gaussian_mixture(2, 1)


def test_an_ensemble_over_processes_has_the_bits_of_one(tmp_path):
    ensemble = tr.DeepEnsemble(size=2)
    alone = tr.infer(COIN, ROWS, ensemble, progress=False)
    beside = replace(ensemble, n_jobs=2)
    both = tr.infer(COIN, ROWS, beside, progress=False, checkpoint=tmp_path)
    np.testing.assert_array_equal(both.values, alone.values)
    assert {f.name for f in tmp_path.glob("member-*")} == {"member-0", "member-1"}
    again = tr.infer(COIN, ROWS, ensemble, progress=False, checkpoint=tmp_path)  # n_jobs is not part of what a run is
    np.testing.assert_array_equal(again.values, alone.values)


def test_calibrate_over_processes_has_the_bits_of_one():
    found = [tr.calibrate(COIN, Drawn(), ROWS, runs=20, draws=9, n_jobs=n) for n in (1, 2)]
    np.testing.assert_array_equal(found[0].ranks, found[1].ranks)


def test_threads_have_the_bits_of_one():
    methods = [Drawn(), tr.MAP()]
    with joblib.parallel_config(backend="threading", n_jobs=2):
        both = tr.compare(COIN, ROWS, methods, reference=ANSWER, progress=False)
    same(both, compared(methods, 1))


# One crash ends one fit.


def test_a_process_that_dies_ends_one_fit():
    """Two do, in two ways; what ran beside them is whole, and has the bits that it has without them."""
    faults = ["", "exit", "", "kill", ""]
    found = compared([Drawn(draws=40 + i, fault=fault) for i, fault in enumerate(faults)], 2)
    assert list(found.failures) == ["-2", "-4"]
    for label, code in (("-2", "EXIT(3)"), ("-4", "SIGKILL(-9)")):
        assert f"ended without a word ({code})" in found.failures[label]
        assert found.table.loc[label, "verdict"] == "failed"
    whole = compared([Drawn(draws=40 + i) for i in range(5)], 1)
    assert list(found.posteriors) == ["", "-3", "-5"]
    for label, posterior in found.posteriors.items():
        np.testing.assert_array_equal(posterior.values, whole.posteriors[label].values)


def test_one_that_dies_beside_others_but_not_by_itself_is_whole(tmp_path):
    """As where memory holds one at a time. The second waits until the first has died once."""

    def work(index: int, *, folder: Path) -> int:
        begun = folder / str(index)
        again = begun.exists()
        begun.touch()
        if index == 0 and not again:
            while not (folder / "1").exists():
                time.sleep(0.01)
            os._exit(1)
        while index == 1 and not again:
            time.sleep(0.01)
        return index

    ends = list(run_jobs(functools.partial(work, folder=tmp_path), range(3), 2, "this test"))
    assert sorted(e.result for e in ends) == [0, 1, 2] and not any(e.lost for e in ends)


def lost(monkeypatch, module: str, at: int) -> None:
    """Have a module's jobs end as they do where the process of one of them dies."""

    def some(work, todo, n_jobs, what, stop=lambda: False):
        yield from (Ended(i, None, "Its process ended.") if i == at else Ended(i, work(i)) for i in todo)

    monkeypatch.setattr(sys.modules[module], "run_jobs", some)


def test_a_run_of_a_calibration_that_is_lost_is_a_failed_run(monkeypatch):
    lost(monkeypatch, "tractable.calibration.calibrate", 4)
    found = tr.calibrate(COIN, Drawn(), ROWS, runs=20, draws=9)
    assert found.failures == {4: "Its process ended."} and found.runs == 19


@pytest.mark.test
def test_a_member_that_is_lost_is_named(monkeypatch):
    lost(monkeypatch, "tractable.points.ensemble", 1)
    with pytest.raises(RunError, match=r"Member 1 of the ensemble was lost. Its process ended."):
        tr.infer(COIN, ROWS, tr.DeepEnsemble(size=2, member=Drawn()), progress=False)


def test_a_number_of_components_that_is_lost_is_not_chosen(monkeypatch, groups):
    lost(monkeypatch, "tractable.selection", 1)
    found = tr.select(lambda k: gaussian_mixture(k, 1), groups, [1, 2], EM(starts=2))
    assert found.components == 1 and list(found.table["verdict"])[1] == "failed"
    assert "2 components could not be fitted: Its process ended." in found.remarks


# Killed, and gone on with.


class Killed(BaseException):
    """Stands for kill -9: nothing after it is run."""


def test_a_killed_comparison_goes_on(tmp_path):
    methods = [tr.MAP(), Drawn()]

    def killed(label, posterior):
        raise Killed

    with pytest.raises(Killed):
        compared(methods, 1, checkpoint=tmp_path, on_result=killed)
    assert (tmp_path / "map" / "posterior.json").exists() and not (tmp_path / "method").exists()
    clock = (tmp_path / "map" / "clock.json").read_text()
    found = compared(methods, 2, checkpoint=tmp_path)
    same(found, compared(methods, 1))
    assert (tmp_path / "map" / "clock.json").read_text() == clock
    assert found.table.loc["map", "seconds"] == json.loads(clock)["seconds"]  # of the fit, not of reading it
    other = compared([tr.MAP(starts=2)], 1, checkpoint=tmp_path)
    assert "holds another run" in other.failures["map"]


# What is sent.


@pytest.mark.test
def test_what_cannot_be_sent_is_a_sentence_before_anything_runs():
    lock = threading.Lock()
    model = replace(COIN, likelihood=lambda p: (lock, dist.Bernoulli(p["theta"]))[1])
    begun = []
    with pytest.raises(SettingsError, match=r"the job's model cannot be pickled .*lock.*; use n_jobs=1"):
        tr.compare(model, ROWS, [tr.MAP()], reference=ANSWER, n_jobs=2, on_result=lambda *_: begun.append(1))
    assert not begun
    with pytest.raises(SettingsError, match=r"compare\(n_jobs\) expects a number of processes, or -1 .*; got 0"):
        compared([tr.MAP()], 0)


@pytest.mark.quick
def test_what_cannot_come_back_ends_one_job():
    ends = list(run_jobs(functools.partial(lambda i: threading.Lock() if i else i), range(2), 2, "this test"))
    assert [e.result for e in ends if not e.lost] == [0]
    assert "cannot be sent back to this process" in next(e.lost for e in ends if e.lost)


@pytest.mark.quick
def test_rows_on_file_are_sent_by_their_path(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(60_000, dtype=np.float32).reshape(-1, 2))
    data = tr.Data(path, resident=False)
    for rows in (data.y, data.y[10:], data.y[::3, 1], np.asarray(data.y)[5:9]):
        sent = pack(rows)
        assert len(sent) < 1000
        np.testing.assert_array_equal(unpack(sent), rows)
    assert len(pack(data)) < 3000 and pack(np.zeros(60_000, np.float32)).__sizeof__() > 200_000
    sent = pack(data.y)
    path.unlink()
    with pytest.raises(
        DataError, match=r"expected the file .*rows.npy of \d+ bytes on every machine; this machine has no such file"
    ):
        unpack(sent)


@pytest.mark.test
def test_keys_and_what_was_given_come_back_themselves():
    work = functools.partial(print, model=COIN, methods=("a", COIN))
    key, model = unpack(pack((jax.random.key(3), COIN), work), work)
    assert model is COIN and jax.random.key_data(key).tolist() == jax.random.key_data(jax.random.key(3)).tolist()


# From a shell, and by scikit-learn.


def test_jobs_of_a_command(tmp_path):
    for words in (["fit", "--method", "map"], ["compare", "--methods", "map"]):
        assert "expects a number of processes" in fault(*words, "--example", "beta-bernoulli", "--jobs", 0)
    tables = []
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        with joblib.parallel_config(backend="threading"):
            words = ["compare", "--example", "beta-bernoulli", "--methods", "map,mle", "--jobs", jobs, "--out", out]
            assert run(*words).exit_code == 0
        tables.append(pd.read_csv(out / "comparison.csv").drop(columns=TIMES))
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_estimators_are_cloned_pickled_and_searched_over_processes():
    """Folds and settings are scikit-learn's jobs, in JAX's own precision: the same scores to rounding."""
    x = np.linspace(-1.0, 1.0, 20)[:, None]
    y = 2 * x[:, 0] + np.cos(9 * x[:, 0])
    model = tr.estimators.BayesianLinearRegression(verify=None, random_state=0)
    searches = [GridSearchCV(model, {"weight_scale": [0.1, 2.5]}, cv=2, n_jobs=n).fit(x, y) for n in (1, 2)]
    np.testing.assert_allclose(*(s.cv_results_["mean_test_score"] for s in searches), rtol=1e-4)
    best = searches[1].best_estimator_
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(best)).predict(x), best.predict(x))


# On a cluster.


@pytest.mark.quick
def test_dask_on_local_processes_has_the_bits_of_one():
    distributed, dask = pytest.importorskip("dask.distributed"), pytest.importorskip("dask")
    methods = [tr.MAP(), Drawn(), Drawn(fault="exit")]
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),  # one death is enough
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        both = tr.compare(COIN, ROWS, methods, reference=ANSWER, progress=False, n_jobs=2)
    assert list(both.failures) == ["-2"] and "ended without a word" in both.failures["-2"]
    alone = compared(methods[:2], 1)
    for label, posterior in alone.posteriors.items():
        np.testing.assert_array_equal(posterior.values, both.posteriors[label].values)
