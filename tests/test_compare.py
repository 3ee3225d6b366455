"""Methods side by side: against an exact answer, against NUTS, and with one which fails."""

import inspect
import sys

import numpy as np
import numpyro.distributions as dist
import pytest

from tractable import MALA, MAP, MLE, NUTS, SGLD, Data, Model, Posterior, RandomWalk, Rejection, compare
from tractable.comparison import COLUMNS, as_reference, interesting, labels
from tractable.core.errors import SettingsError, TractableWarning
from tractable.diagnostics.belief import Draws
from tractable.gallery.models import example
from tractable.glm import linear
from tractable.inference import infer

pytestmark = pytest.mark.laws


@pytest.fixture(scope="module")
def coin():
    model, data, _ = example("beta-bernoulli").build()
    return model, data, example("beta-bernoulli").exact()


@pytest.fixture(scope="module")
def against_exact(coin):
    model, data, exact = coin
    few = {"chains": 4, "draws": 400, "warmup": 400}
    methods = [MAP(), RandomWalk(**few), MALA(**few), NUTS(**few), SGLD(**few), SGLD(batch_size=101)]
    return compare(model, data, methods, held_out=data, reference=exact)


def test_table_has_a_row_a_method(against_exact):
    table = against_exact.table
    assert list(table.columns) == list(COLUMNS)
    assert list(table.index) == ["map", "random-walk", "mala", "nuts", "sgld", "sgld-2"]
    good = table.drop(index="sgld-2")
    assert (good[["seconds", "compiling"]].to_numpy(float) >= 0).all()
    assert np.isnan(table.loc["map", "ess"])
    assert (good["ess"].iloc[1:] > 100).all()
    assert good["verdict"].isin(["trust", "caution", "reject"]).all()
    assert set(against_exact.posteriors) == set(good.index)


def test_distances_to_the_exact_answer_are_their_monte_carlo_errors(against_exact):
    table = against_exact.table
    for label in ("random-walk", "mala", "nuts"):
        error, ratio, ess = (float(table.loc[label, c]) for c in ("mean error", "sd ratio", "ess"))
        assert error < 4 / np.sqrt(ess)
        assert abs(np.log(ratio)) < 4 / np.sqrt(ess)
    assert float(table.loc["sgld", "mean error"]) < 0.3
    assert abs(np.log(float(table.loc["sgld", "sd ratio"]))) < 0.3
    # Of Beta(a, b): the mode, and the observed information there.
    a_minus_1, b_minus_1 = 4 + np.sum(example("beta-bernoulli").build()[1].y), 0
    b_minus_1 = 108 - a_minus_1
    mode = a_minus_1 / 108
    mean, sd = example("beta-bernoulli").exact()["theta"]
    width = np.sqrt(mode**2 * (1 - mode) ** 2 / (a_minus_1 * (1 - mode) ** 2 + b_minus_1 * mode**2))
    np.testing.assert_allclose(table.loc["map", "mean error"], abs(mode - mean) / sd, rtol=1e-5)
    np.testing.assert_allclose(table.loc["map", "sd ratio"], width / sd, rtol=1e-5)


@pytest.mark.test
def test_evaluations_are_counted(against_exact):
    table = against_exact.table
    steps = 4 * (400 + 400)
    assert table.loc["mala", ["gradients", "densities"]].tolist() == [steps, 0]
    assert table.loc["random-walk", ["gradients", "densities"]].tolist() == [0, 4 * (400 * 10 + 400)]  # thinned
    sgld = against_exact.posteriors["sgld"]
    assert table.loc["sgld", "gradients"] == 4 * (400 * sgld.thin + 400)  # a batch is all hundred rows
    nuts = against_exact.posteriors["nuts"]
    spent = nuts.info["gradients"].sum(), nuts.found["gradients of warm-up"]
    assert table.loc["nuts", "gradients"] == sum(spent) and min(spent) >= 4 * 400
    assert table.loc["map", "gradients"] == against_exact.posteriors["map"].found["evaluations"]


@pytest.mark.test
def test_minibatches_count_by_their_share(coin):
    model, data, _ = coin
    drawn = np.zeros((2, 20, 1))
    method = SGLD(chains=2, draws=20, warmup=10, thin=1, batch_size=30)
    assert Posterior(model, data, method, 0, Draws(positions=drawn)).cost == (
        2 * (20 + 10) * 25 / 100,
        0,
    )  # four blocks of 25
    twice = SGLD(chains=2, draws=20, warmup=10, thin=1, batch_size=30, gradient="control_variates")
    assert Posterior(model, data, twice, 0, Draws(positions=drawn)).cost == (2 * 15, 0)
    counted = Draws(positions=drawn, info={"tries": np.full((2, 20), 3.0)})
    assert Posterior(model, data, Rejection(chains=2, draws=20), 0, counted).cost == (0, 120)


@pytest.mark.test
def test_held_out_is_the_mean_log_predictive_density(against_exact, coin):
    _, data, exact = coin
    mean = float(exact["theta"][0])  # of a Bernoulli, the predictive probability is the posterior mean
    expected = np.mean(np.where(np.asarray(data.y) == 1, np.log(mean), np.log(1 - mean)))
    found = against_exact.table["held-out"].drop(index="sgld-2").astype(float)
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.test
def test_leave_one_out_is_the_exact_one_or_there_is_none(against_exact, coin):
    """Flips left out of Beta(a, b): heads by (a − 1)/(a + b − 1); a point leaves nothing out."""
    _, data, _ = coin
    heads = int(np.sum(data.y))
    a, b = 5 + heads, 5 + len(data.y) - heads
    exact = heads * np.log((a - 1) / (a + b - 1)) + (b - 5) * np.log((b - 1) / (a + b - 1))
    table = against_exact.table[["elpd_loo", "se_loo", "p_loo", "k-hat"]].astype(float)
    assert table.loc["map"].isna().all() and table.loc["sgld-2"].isna().all()
    for label in ("random-walk", "mala", "nuts", "sgld"):
        # The p_loo of a coin is about 1, whose error is that of a variance by so many draws.
        ess = float(against_exact.table.loc[label, "ess"])
        assert abs(table.loc[label, "elpd_loo"] - exact) < 5.33 * np.sqrt(2 / ess) * table.loc[label, "p_loo"]
        assert table.loc[label, "k-hat"] < 0.7
    assert "elpd_loo" in str(against_exact)


@pytest.mark.test
def test_a_method_that_fails_has_its_sentence_and_the_others_go_on(against_exact):
    assert against_exact.table.loc["sgld-2", "verdict"] == "failed"
    assert "more than the 100 rows" in against_exact.failures["sgld-2"]
    printed = str(against_exact)
    assert "sgld-2 failed: SGLD(batch_size=101)" in printed and "mean error" in printed
    assert "nan" not in printed.lower()


def test_plot(against_exact, tmp_path):
    against_exact.plot(tmp_path / "marginals.png")
    assert (tmp_path / "marginals.png").stat().st_size > 10_000


def test_without_a_reference_nuts_is_run(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 5))
    data = Data(x @ np.arange(5.0) / 5 + 0.3 * generator.normal(size=60), x)
    model = linear.bayesian_linear(5, 0.3, 1.0)
    found = compare(model, data, [MAP(), MLE()])
    assert list(found.table.index) == ["reference", "map", "mle"]
    assert np.isnan(found.table.loc["reference", "mean error"])
    assert found.reference.posterior is found.posteriors["reference"]
    assert 0 <= found.table.loc["map", "mean error"] < 0.15
    assert abs(found.table.loc["map", "sd ratio"] - 1) < 0.1
    assert "held-out" not in str(found)
    assert len(interesting(found)) == 4
    found.plot(tmp_path / "marginals.svg")
    assert (tmp_path / "marginals.svg").exists()


def test_a_log_density_without_data():
    model = Model.from_log_density(lambda p: -0.5 * (p["a"] ** 2).sum(), {"a": np.zeros(2)})
    few = {"chains": 2, "draws": 100, "warmup": 100}
    found = compare(model, None, [MALA(**few), SGLD(**few)], reference={"a": (np.zeros(2), np.ones(2))})
    assert found.table.loc["mala", "mean error"] < 0.8
    assert found.table.loc["sgld", "verdict"] == "failed"


@pytest.mark.test
def test_interrupted_comparison_stops(coin, monkeypatch):
    model, data, exact = coin
    seen = []

    def stopped(*args, **kwargs):
        posterior = infer(*args, **kwargs)
        posterior.interrupted = True
        seen.append(posterior)
        return posterior

    monkeypatch.setattr(sys.modules["tractable.comparison"], "infer", stopped)
    found = compare(model, data, [MAP(), MLE()], reference=exact)
    assert found.interrupted and len(seen) == 1 and list(found.table.index) == ["map"]


def test_what_was_asked_for_comes_before_its_reference(coin, monkeypatch):
    """Stopped in the reference, what was asked for is there, and is held against nothing."""
    model, data, _ = coin
    short = RandomWalk(chains=2, draws=20, warmup=0, preconditioner=None)

    def stopped(model, data, method, **options):
        posterior = infer(model, data, method if method.point else short, **options)
        posterior.interrupted = not method.point
        return posterior

    monkeypatch.setattr(sys.modules["tractable.comparison"], "infer", stopped)
    monkeypatch.setattr(sys.modules["tractable.comparison"], "verify_and_improve", lambda posterior, how: posterior)
    found = compare(model, data, [MAP(), MLE()])
    assert found.interrupted and found.reference is None and found.failures == {}
    assert list(found.table.index) == ["reference", "map", "mle"]
    assert list(found.posteriors) == ["map", "mle", "reference"]


@pytest.mark.test
def test_references():
    model = Model({"w": dist.Normal(np.zeros(2), 1.0), "a": dist.Normal(0.0, 1.0)})
    by_shape = as_reference(model, {"w": ([1.0, 2.0], [0.1, 0.2]), "a": (3.0, 0.3, np.sin)})
    by_name = as_reference(model, {"w[1]": (2.0, 0.2), "w[0]": (1.0, 0.1), "a": (3.0, 0.3)})
    assert by_shape.names == ["a", "w[0]", "w[1]"]
    for found in (by_shape, by_name):
        np.testing.assert_array_equal(found.mean, [3, 1, 2])
        np.testing.assert_array_equal(found.sd, [0.3, 0.1, 0.2])
    assert by_shape.densities == (np.sin, None, None)
    with pytest.raises(SettingsError, match=r"The reference expects a, w\[0\], w\[1\]; got a"):
        as_reference(model, {"a": (0.0, 1.0)})
    with pytest.raises(SettingsError, match="positive sd of one shape"):
        as_reference(model, {"a": (0.0, 0.0), "w": ([0.0, 0.0], [1.0, 1.0])})


@pytest.mark.test
def test_faults(coin):
    model, data, _ = coin
    with pytest.raises(SettingsError, match=r"expects a list of methods .* got \[\]"):
        compare(model, data, [])
    with pytest.raises(SettingsError, match="got 'nuts'"):
        inspect.unwrap(compare)(model, data, ["nuts"])  # as without the test bed's type checks


@pytest.mark.test
def test_labels():
    assert labels([MAP(), NUTS(), MAP(), MAP(starts=2)]) == ["map", "nuts", "map-2", "map-3"]


def test_a_reference_is_run_where_it_is_cheap_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(prior=dist.Beta(2.0, 2.0), likelihood=lambda p: dist.Bernoulli(p))
    data, few = Data(np.array([1, 0, 1, 1])), RandomWalk(draws=50, warmup=50)
    heard = []
    asked = compare(model, data, [MAP()], reference=few, on_result=lambda label, _: heard.append(label))
    assert heard == ["map", "reference"] and asked.reference.posterior.method is few
    monkeypatch.setattr(sys.modules["tractable.comparison"], "OPERATIONS", 1.0)
    with pytest.warns(TractableWarning, match=r"No reference is run, as NUTS is forecast to take about [\d,]+ minutes"):
        left = compare(model, data, [MAP()])
    assert left.reference is None and list(left.posteriors) == ["map"]
    assert np.isnan(left.table.loc["map", "mean error"])
