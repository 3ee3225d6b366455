"""Simulation-based calibration: right methods are trusted, wrong ones rejected, and a killed one goes on."""

import functools
import os
import signal
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logit

import tractable as tr
from tractable.calibration.calibrate import simulate
from tractable.core.errors import CheckpointError, DataError, ModelError, RunError, SettingsError, TractableWarning
from tractable.diagnostics.belief import Draws
from tractable.engine import session as sessions
from tractable.engine.method import Outcome
from tractable.pages.page import write_calibration_page

pytestmark = pytest.mark.laws

ROWS = np.arange(30) % 2
RUNS = 200


def coin() -> tr.Model:
    return tr.Model({"theta": dist.Beta(2.0, 2.0)}, lambda params: dist.Bernoulli(params["theta"]))


COIN = coin()


@dataclass(frozen=True, kw_only=True)
class Conjugate(tr.Method):
    """Independent draws of Beta(a + Σy, a + n − Σy), and of what it is not, on the logit scale."""

    independent = True
    draws: int = 99
    a: float = 2.0  # of the prior that it believes
    width: float = 1.0  # times as wide about the mean
    shift: float = 0.0  # in sds
    learns: bool = True  # else the prior
    twice: bool = False  # every row
    fails: int = -1  # Σy of data on which it fails
    stops: int = -1  # Σy of data at which it is interrupted

    def learn(self, session):
        total, count = int(np.sum(session.data.y)), session.data.size
        if total == self.fails:
            raise RunError(f"{total} heads are too many for me.")
        rng = np.random.default_rng(np.asarray(jax.random.key_data(session.key)))
        seen = self.learns * (1 + self.twice)
        u = logit(rng.beta(self.a + seen * total, self.a + seen * (count - total), self.draws))
        u = u.mean() + self.width * (u - u.mean()) + self.shift * u.std()
        return Outcome(Draws(positions=u[None, :, None]), {}, {}, interrupted=total == self.stops)


def calibrated(method: tr.Method = Conjugate(), runs: int = RUNS, **options) -> tr.Calibration:
    return tr.calibrate(COIN, method, ROWS, **{"runs": runs, "seed": 1, **options})


once = functools.cache(calibrated)  # where several laws look at one calibration


def same(one: tr.Calibration, other: tr.Calibration) -> None:
    for name in ("ranks", "index", "effective"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.names, one.draws, one.failures, one.method) == (other.names, other.draws, other.failures, other.method)


@pytest.fixture(scope="module")
def right() -> tr.Calibration:
    return calibrated()


# Right methods.


def test_exact_draws_are_trusted(right):
    assert right.names == ["theta", "log likelihood"]
    assert right.ranks.shape == (RUNS, 2) and right.ranks.min() >= 0 and right.ranks.max() <= right.draws == 99
    assert right.report().verdict == "trust", right
    for shape in right.shapes:
        assert abs(shape.bias) < 5 * shape.bias_error and abs(np.log(shape.sd_ratio)) < 5 * shape.sd_error
    summary = right.summary()
    assert list(summary.index) == right.names and list(summary["verdict"]) == ["trust", "trust"]
    assert np.all(summary["sd ratio low"] < summary["sd ratio"]) and np.all(summary["bias"] < summary["bias high"])


@pytest.mark.parametrize(
    ("method", "draws"),
    [
        (tr.NUTS(chains=2, draws=150, warmup=150), 19),
        (tr.MALA(chains=2, draws=200, warmup=200), 19),
        pytest.param(tr.Rejection(chains=1, draws=40), 39, marks=pytest.mark.computes),
        pytest.param(tr.FullRank(draws=100), 39, marks=pytest.mark.computes),
        (tr.Laplace(draws=100), 39),
    ],
    ids=["nuts", "mala", "rejection", "fullrank", "laplace"],
)
def test_methods_are_calibrated_on_a_coin(method, draws):
    """100 runs find a mean that is 0.4 sd off 7 times in 10, and an sd 0.7 or 1.5 times the right one 8 in 10."""
    found = tr.calibrate(COIN, method, ROWS, runs=100, draws=draws, seed=3)
    assert min(found.adjusted) > 1e-4, found
    ended = {check.name: check for check in found.report().checks}
    assert ended["effective draws"].verdict == "trust" and ended["runs"].verdict == "trust"


# Near the posterior of the user's own data.


def near(method: tr.Method, runs: int = 2 * RUNS, **options) -> tr.Calibration:
    return tr.calibrate(COIN, method, data=ROWS, **{"runs": runs, "seed": 1, **options})


def test_exact_draws_are_trusted_near_the_data():
    """θ* is near the data's posterior, and inference reads the data and as many new rows."""
    found = near(Conjugate(draws=2000))
    assert found.report().verdict == "trust", found
    assert "near the posterior of the data" in found.report().title and found.independent >= found.runs
    for shape in found.shapes:
        assert abs(shape.bias) < 5 * shape.bias_error and abs(np.log(shape.sd_ratio)) < 5 * shape.sd_error


@pytest.mark.parametrize(("width", "words"), [(0.5, "too narrow, ∪"), (3.0, "too wide, ∩")])
def test_wrong_widths_are_rejected_near_the_data(width, words):
    """A posterior s sds wide for y gives θ* that spread by (s² + 1) / 4, and draws that spread by s² / 2."""
    found = near(Conjugate(width=width, draws=2000))
    told = {check.name: check for check in found.report().checks}
    assert told["theta"].verdict == "reject" and words in told["theta"].sentence, found
    expected = np.sqrt(2 * width**2 / (1 + width**2))
    assert abs(np.log(found.shapes[0].sd_ratio / expected)) < 5 * found.shapes[0].sd_error + 0.1


def test_a_calibration_near_the_data_goes_on_to_the_same_ranks(tmp_path):
    near(Conjugate(), runs=20, checkpoint=tmp_path)
    same(near(Conjugate(), runs=30, checkpoint=tmp_path), near(Conjugate(), runs=30))


def test_an_improper_prior_is_calibrated_near_the_data():
    model = tr.Model(lambda p: 0.0 * p["a"], lambda p: dist.Normal(p["a"], 1.0), {"a": 0.0})
    y = np.linspace(-1.0, 2.0, 12)
    assert tr.calibrate(model, tr.Laplace(draws=100), data=y, runs=60, draws=39).report().verdict != "reject"


def test_few_draws_of_the_data_are_a_caution():
    found = near(tr.NUTS(chains=1, draws=60, warmup=60), runs=40, draws=9)
    told = {check.name: check for check in found.report().checks}
    assert found.independent < 40 and told["draws of the data's posterior"].verdict == "caution"


@pytest.mark.parametrize("width", [0.6, 1.0, 1.7])
def test_recalibrated_intervals_hold_the_truth_as_often_as_they_say(width):
    """Levels of one calibration, and the coverage of another."""
    level = 0.8
    low, high = calibrated(Conjugate(width=width), 400).levels(level).loc["theta"]
    ranks = calibrated(Conjugate(width=width), 400, seed=2).ranks[:, 0]
    share = np.mean(((ranks + 0.5) / 100 > low) & ((ranks + 0.5) / 100 < high))
    assert abs(share - level) < 5 * np.sqrt(2 * level * (1 - level) / 400)
    plain = np.mean((ranks > 10) & (ranks < 90))
    assert width == 1.0 or abs(plain - level) > abs(share - level)


# Wrong ones, by 200 runs: at 40 further seeds each was rejected 40 times; the right one was trusted 39 times, once
# it got a caution.


@pytest.mark.parametrize(
    ("method", "quantity", "words"),
    [
        (Conjugate(width=0.6), "theta", "too narrow, ∪"),
        (Conjugate(width=1.7), "theta", "too wide, ∩"),
        (Conjugate(shift=0.7), "theta", "too high, a slope"),
        (Conjugate(shift=-0.7), "theta", "too low, a slope"),
        (Conjugate(a=40.0), "theta", "too narrow, ∪"),
        (Conjugate(twice=True), "log likelihood", "too high, a slope"),
        (Conjugate(learns=False), "log likelihood", "too low, a slope"),
    ],
    ids=["narrow", "wide", "high", "low", "prior too narrow", "rows twice", "the prior itself"],
)
def test_a_wrong_method_is_rejected_and_its_fault_is_named(method, quantity, words):
    found = once(method)
    assert found.report().verdict == "reject", found
    told = {check.name: check for check in found.report().checks}
    assert told["uniform ranks"].verdict == told[quantity].verdict == "reject"
    assert words in told[quantity].sentence, told[quantity]


def test_sizes_of_faults_are_found():
    for method, ratio, bias in ((Conjugate(width=0.6), 0.6, 0.0), (Conjugate(shift=0.7), 1.0, 0.7)):
        shape = once(method).shapes[0]
        assert abs(np.log(shape.sd_ratio / ratio)) < 5 * shape.sd_error + 0.1  # a Beta's logit is not quite normal
        assert abs(shape.bias - bias) < 5 * shape.bias_error + 0.1


def test_parameters_alone_do_not_tell_the_prior_from_the_posterior():
    found = once(Conjugate(learns=False))
    assert found.verdicts == ["trust", "reject"] and found.p_values[1] < 1e-6


def test_quantities_of_ones_own_see_what_they_look_at():
    """Signed by the first half of the rows, θ tells the prior from the posterior."""
    half = {"first half": lambda params, y: params["theta"] * jnp.sign(jnp.mean(y[:15]) - 0.5)}
    for method, verdict in ((Conjugate(), "trust"), (Conjugate(learns=False), "reject")):
        found = calibrated(method, quantities=half)
        assert found.names[-1] == "first half" and found.verdicts[-1] == verdict, found


@pytest.mark.quick
def test_what_is_seen_but_makes_little_is_a_caution():
    ranks = np.sort(np.random.default_rng(0).integers(0, 100, 20_000))
    off = np.minimum((100 * stats.norm.cdf(stats.norm.ppf((ranks + 0.5) / 100) - 0.1)).astype(int), 99)[:, None]
    count = len(off)
    found = tr.Calibration(["a"], off, 99, np.arange(count), np.full(count, 99.0), {}, "NUTS", count)
    assert found.p_values[0] < 1e-10 and found.verdicts == ["caution"]
    assert abs(found.shapes[0].bias - 0.1) < 0.03 and "too high" in found.sentence(0)


# What is drawn.


def test_simulated_data_come_from_the_model():
    """E y = E θ = ½ and Var θ = 1/20 of Beta(2, 2); the rows' mean given θ is θ."""
    data = tr.Data(np.zeros(40, int))
    keys = jax.random.split(jax.random.key(0), 400)
    theta, mean = np.array([(p["theta"], np.mean(d.y)) for p, d in (simulate(COIN, data, k) for k in keys)]).T
    assert abs(theta.mean() - 0.5) < 5.33 * np.sqrt(0.05 / 400)
    z = (mean - theta) / np.sqrt(theta * (1 - theta) / 40)
    assert abs(z.mean()) < 5.33 / np.sqrt(400) and abs(np.mean(z**2) - 1) < 5.33 * np.sqrt(2 / 400)


def test_rows_are_drawn_at_their_inputs_and_miss_what_is_missing():
    line = tr.Model({"slope": dist.Normal(0, 1)}, lambda p, x: dist.Normal(p["slope"] * x, 1e-6).expand([2]).to_event())
    x = np.array([0.0, 1.0, -2.0], np.float32)
    y = np.array([[0, np.nan], [1, 1], [np.nan, 0]], np.float32)
    params, data = simulate(line, tr.Data(y, given=x, missing="keep"), jax.random.key(1))
    np.testing.assert_array_equal(np.isnan(data.y), np.isnan(y))
    np.testing.assert_array_equal(data.given, x)
    seen = ~np.isnan(y)
    np.testing.assert_allclose(data.y[seen], (float(params["slope"]) * x[:, None] + 0 * y)[seen], atol=1e-4)
    assert data.y.dtype == np.float32
    assert len(np.unique(data.y[seen])) == seen.sum()  # rows do not share their noise


def test_drawn_numbers_are_not_cut_to_the_type_of_those_seen():
    line = tr.Model({"mean": dist.Normal(0, 1)}, lambda p: dist.Normal(p["mean"], 1))
    assert np.ptp(simulate(line, tr.Data(np.arange(5)), jax.random.key(0))[1].y % 1) > 0
    assert simulate(COIN, tr.Data(np.ones(5)), jax.random.key(0))[1].y.dtype == float
    counts = tr.Model({"rate": dist.Gamma(1000.0, 1.0)}, lambda p: dist.Poisson(p["rate"]))
    assert simulate(counts, tr.Data(np.ones(5, np.uint8)), jax.random.key(0))[1].y.min() > 255


def test_causes_that_are_not_seen_are_drawn_too():
    cook = tr.LatentModel(
        {"good": dist.Beta(2, 2)}, lambda p: dist.Bernoulli(p["good"]), lambda p, z: dist.Normal(8.0 * z, 0.1)
    )
    params, data = simulate(cook, tr.Data(np.zeros(200)), jax.random.key(2))
    good = np.mean(data.y > 4)
    assert np.all(np.minimum(abs(data.y), abs(data.y - 8)) < 1)
    assert abs(good - float(params["good"])) < 5.33 * 0.5 / np.sqrt(200)


# Runs that do not come to an end.


def test_runs_that_fail_are_counted_and_named():
    some = calibrated(Conjugate(fails=15))
    assert 0 < len(some.failures) < RUNS and some.runs == RUNS - len(some.failures)
    assert not set(some.failures) & set(some.index.tolist())
    told = next(check for check in some.report().checks if check.name == "failed runs")
    assert told.verdict != "trust" and told.value == len(some.failures) and "too many for me" in told.sentence
    with pytest.raises(RunError, match="No run of the calibration came to its end: run 0: 0 heads"):
        zeros = tr.Model({"theta": dist.Beta(1.0, 1e9)}, COIN.likelihood)
        tr.calibrate(zeros, Conjugate(fails=0), ROWS, runs=20)


def test_few_runs_and_few_draws_are_cautions(right):
    few = calibrated(runs=50)
    assert {check.name: check.verdict for check in few.report().checks}["runs"] == "caution"
    np.testing.assert_array_equal(few.ranks, right.ranks[:50])  # a run does not depend on how many there are
    short = calibrated(Conjugate(draws=12), draws=99)
    told = {check.name: check for check in short.report().checks}["effective draws"]
    assert told.verdict == "caution" and told.value == 12 and short.adjusted.min() > 1e-4
    assert short.ranks.max() > 90  # spread over all ranks


@pytest.mark.test
def test_numbers_that_cannot_be_ranked_fail():
    with pytest.raises(RunError, match="quantity is NaN"):
        calibrated(runs=20, quantities={"bad": lambda params, y: jnp.log(-params["theta"])})


def test_draws_that_weigh_differently_are_chosen_by_weight():
    @dataclass(frozen=True, kw_only=True)
    class Weighted(Conjugate):
        """Half of its draws lie far out and hardly count."""

        draws: int = 400

        def learn(self, session):
            outcome = super().learn(session)
            u, weights = outcome.belief.positions.copy(), np.ones((1, 400))
            u[:, ::2] += 9
            weights[:, ::2] = 1e-9
            return outcome._replace(belief=Draws(positions=u, weights=weights))

    found = calibrated(Weighted())
    assert found.report().verdict == "trust", found
    assert 199 < found.effective.min() <= found.effective.max() < 201


def test_chains_are_thinned_by_their_effective_draws():
    """Exact draws, each nine times in a row, are ranked as if there were a ninth of them, or fewer."""

    @dataclass(frozen=True, kw_only=True)
    class Sticky(Conjugate):
        independent = False
        draws: int = 200

        def learn(self, session):
            outcome = super().learn(session)
            return outcome._replace(belief=Draws(positions=np.repeat(outcome.belief.positions, 9, axis=1)))

    found = calibrated(Sticky(), draws=49)
    assert found.report().checks[0].verdict == "trust", found
    assert 60 < np.median(found.effective) < 140


# Interrupted, killed, gone on with.


class Killed(Exception):
    """Stands for kill -9: nothing after it is run."""


def killed(at: int):
    def heard(phase: str, done: int, of: int) -> None:
        if done == at:
            raise Killed

    return heard


@pytest.mark.parametrize(
    "method",
    [
        Conjugate(fails=15),
        pytest.param(tr.Rejection(chains=1, draws=20), marks=pytest.mark.computes),
    ],
    ids=["exact", "rejection"],
)
def test_a_killed_calibration_goes_on_to_the_same_ranks(tmp_path, monkeypatch, method):
    monkeypatch.setattr(sessions, "SAVING", np.inf)  # after every run
    unbroken = calibrated(method, runs=30, draws=19)
    with pytest.raises(Killed):
        calibrated(method, runs=30, draws=19, checkpoint=tmp_path, progress=killed(12))
    with pytest.raises(CheckpointError, match="no calibration"):
        tr.Calibration.load(tmp_path)
    heard = []
    resumed = calibrated(method, runs=30, draws=19, checkpoint=tmp_path, progress=lambda *now: heard.append(now))
    same(resumed, unbroken)
    assert heard[0][1] <= 13 and len(heard) >= 18  # of twelve, the last may not have been saved
    same(tr.Calibration.load(tmp_path), unbroken)
    assert (tmp_path / "summary.csv").read_text().count("\n") == 3


def test_more_runs_go_on_and_fewer_are_the_first(tmp_path, right):
    calibrated(runs=50, checkpoint=tmp_path)
    heard = []
    same(calibrated(checkpoint=tmp_path, progress=lambda *now: heard.append(now)), right)
    assert len(heard) == RUNS - 50
    np.testing.assert_array_equal(calibrated(runs=20, checkpoint=tmp_path).ranks, right.ranks[:20])


def test_another_calibration_is_refused(tmp_path):
    def quantity(params, y):
        return params["theta"] * jnp.sum(y)

    calibrated(runs=20, checkpoint=tmp_path, quantities={"f": quantity})
    ours = {"quantities": {"f": quantity}, "checkpoint": tmp_path, "runs": 20}
    for changed, words in (
        ({"seed": 2}, "seed"), ({"draws": 49}, "calibration.draws"), ({"method": Conjugate(a=3.0)}, "method.a"),
        ({"quantities": {"f": lambda params, y: params["theta"] + jnp.sum(y)}}, "calibration.quantities.f"),
        ({"quantities": None}, "calibration.quantities.f"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=f"holds another run.*{words}"):
            calibrated(**ours | changed)
    with pytest.raises(CheckpointError, match=r"holds another run.*data"):
        tr.calibrate(COIN, Conjugate(), ROWS[:20], seed=1, **ours)
    with pytest.raises(CheckpointError, match=r"holds another run.*model"):
        other = tr.Model({"theta": dist.Beta(2.0, 3.0)}, COIN.likelihood)
        tr.calibrate(other, Conjugate(), ROWS, seed=1, **ours)


def test_ctrl_c_gives_what_there_is(tmp_path, right):
    def heard(phase: str, done: int, of: int) -> None:
        if done == 25:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(TractableWarning, match="was interrupted after 25 runs of 200"):
        found = calibrated(progress=heard, checkpoint=tmp_path)
    assert found.interrupted and found.runs == 25 and found.asked == RUNS
    np.testing.assert_array_equal(found.ranks, right.ranks[:25])
    told = {check.name: check for check in found.report().checks}
    assert told["interrupted"].verdict == "caution" and told["interrupted"].value == 25
    same(calibrated(checkpoint=tmp_path), right)


def test_a_run_that_is_interrupted_is_none():
    with pytest.warns(TractableWarning, match="interrupted"):
        found = calibrated(Conjugate(stops=15))
    assert found.interrupted and 0 < found.runs < RUNS
    zeros = tr.Model({"theta": dist.Beta(1.0, 1e9)}, COIN.likelihood)
    with pytest.raises(RunError, match="stopped before any had ended"):
        tr.calibrate(zeros, Conjugate(stops=0), ROWS, runs=20)


# Over threads and processes.


def test_threads_give_the_same_ranks(right):
    import joblib

    with joblib.parallel_config(backend="threading", n_jobs=2):
        same(calibrated(), right)


def test_processes_give_the_same_ranks(tmp_path):
    """The model is made of functions that no module holds, and was used before it is sent."""
    model = coin()
    method = tr.NUTS(chains=2, draws=60, warmup=60)
    alone = tr.calibrate(model, method, ROWS, runs=20, draws=9, n_jobs=1)
    same(tr.calibrate(model, method, ROWS, runs=20, draws=9, n_jobs=2, checkpoint=tmp_path), alone)
    same(tr.Calibration.load(tmp_path), alone)


@pytest.mark.test
def test_a_backend_that_forks_is_refused():
    import joblib

    with (
        joblib.parallel_config(backend="multiprocessing", n_jobs=2),
        pytest.raises(SettingsError, match="loky, threading, dask"),
    ):
        calibrated(runs=20)


@pytest.mark.test
def test_what_cannot_be_sent_is_refused():
    generator = (i for i in range(3))  # which no pickle holds
    model = tr.Model({"theta": dist.Beta(2.0, 2.0)}, lambda p: (generator, dist.Bernoulli(p["theta"]))[1])
    with pytest.raises(SettingsError, match=r"pickled for other processes, but .*generator.*\); use n_jobs=1"):
        tr.calibrate(model, tr.NUTS(), ROWS, runs=20, n_jobs=2)


# What is shown.


def test_the_page_and_the_plot(tmp_path, right):
    wrong = calibrated(Conjugate(width=0.5, fails=15))
    for name, found in (("right", right), ("wrong", wrong)):
        page = write_calibration_page(tmp_path / name, found, title="A coin").read_text()
        assert page.count("<svg") >= 2 and "log likelihood" in page and found.report().verdict in page
        assert all(check.sentence.split("<")[0][:20] in page for check in found.report().checks if "'" not in check[3])
        found.plot(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert (
        "too narrow, ∪" in page and "too narrow, ∪" in str(wrong) and str(right).startswith("Conjugate calibrated by")
    )


# What cannot be.


@pytest.mark.test
@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: tr.calibrate(COIN, tr.MAP(), ROWS), SettingsError, "MAP gives one θ; use a method that draws"),
        (lambda: tr.calibrate(COIN, tr.MLE(), ROWS), SettingsError, "MLE gives one θ"),
        (lambda: tr.calibrate(COIN, tr.EM(), ROWS), SettingsError, "EM gives one θ"),
        (lambda: calibrated(runs=19), SettingsError, "runs=...\\) expects a whole number ≥ 20; got 19"),
        (lambda: calibrated(draws=8), SettingsError, "draws=...\\) expects a whole number ≥ 9; got 8"),
        (lambda: calibrated(seed=-1), SettingsError, "seed=...\\) expects a whole number from 0 to \\d+; got -1"),
        (lambda: calibrated(quantities={"f": lambda p, y: y}), SettingsError, "one number from .f.; got shape"),
        (lambda: tr.calibrate(COIN, tr.NUTS()), SettingsError, "either data_like, an example of the data, or data="),
        (lambda: tr.calibrate(COIN, tr.NUTS(), ROWS, data=ROWS), SettingsError, "either data_like"),
        (lambda: tr.calibrate(COIN, tr.NUTS(), tr.Data(ROWS, weights=np.ones(30))), DataError, "30 rows with weights"),
        (lambda: tr.calibrate(COIN, tr.NUTS(), tr.Data(ROWS, resident=False)), DataError, "got 30 rows on file"),
        (lambda: tr.calibrate(COIN, tr.NUTS(), tr.Data(ROWS[:0], allow_empty=True)), DataError, "at least.*got 0 rows"),
        (lambda: tr.calibrate(COIN, tr.SGLD(batch_size=31), ROWS), SettingsError, "more than the 30 rows"),
        (
            lambda: tr.calibrate(tr.Model(lambda p: -(p["a"] ** 2), COIN.likelihood, {"a": 0.0}), tr.NUTS(), ROWS),
            ModelError, "a log density without sample",
        ),
        (
            lambda: tr.calibrate(
                tr.Model(
                    {"a": dist.ImproperUniform(dist.constraints.real, (), ())}, lambda p: dist.Normal(p["a"], 1.0)
                ),
                tr.NUTS(), ROWS,
            ),
            ModelError, "this prior is improper",
        ),
        (lambda: tr.calibrate(tr.Model({"a": dist.Normal()}), tr.NUTS(), ROWS), ModelError, "no likelihood"),
    ],
    ids=[
        "map", "mle", "em", "runs", "draws", "seed", "no number", "no data", "data twice", "weights",
        "not resident", "no rows", "batch", "callable", "improper", "no likelihood",
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()
